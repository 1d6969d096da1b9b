//! `tidegate doctor`: checks settings, the database, its version, clock and durability, and says what to change.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::config::Config;
use crate::failure::Failure;
use crate::output;
use crate::settings::{SettingsArgs, open};

/// Seconds by which the database's clock may differ from ours without a warning.
const CLOCK_SLACK: f64 = 2.0;
/// How long one check of the database may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Good,
    Warning,
    Bad,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    grade: Grade,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Good, found: found.into(), advice: None }
    }

    fn graded(check: &'static str, grade: Grade, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, grade, found: found.into(), advice: Some(advice.into()) }
    }
}

pub(crate) async fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let mut findings = Vec::new();
    match args.settings.config() {
        Ok(config) => {
            findings.push(Finding::good("settings", "every setting is valid"));
            findings.push(check_access(&config));
            check_database(&config, &mut findings).await;
        }
        Err(error) => findings.push(Finding::graded("settings", Grade::Bad, error.to_string(), "correct the setting")),
    }
    let is_bad = findings.iter().any(|finding| finding.grade == Grade::Bad);
    if args.json {
        output::json(&findings)?;
    } else {
        let grade = |grade| match grade {
            Grade::Good => "good",
            Grade::Warning => "warning",
            Grade::Bad => "BAD",
        };
        let row = |finding: &Finding| {
            let advice = finding.advice.clone().unwrap_or_default();
            vec![finding.check.to_owned(), grade(finding.grade).to_owned(), finding.found.clone(), advice]
        };
        output::table(&["CHECK", "GRADE", "FOUND", "WHAT TO DO"], findings.iter().map(row).collect());
    }
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check_access(config: &Config) -> Finding {
    let address = config.listen;
    match (config.options.auth.required, address.ip().to_canonical().is_loopback()) {
        (true, _) => Finding::good("access", "every caller needs a key or a token"),
        (false, true) => Finding::good("access", format!("{address} can be reached from this machine only")),
        (false, false) => Finding::graded(
            "access",
            Grade::Bad,
            format!("{address} can be reached from other machines without a key, so the server will not start"),
            "set auth.required = true and make a key with `tidegate keys create`",
        ),
    }
}

async fn check_database(config: &Config, findings: &mut Vec<Finding>) {
    let file = config.sqlite_file();
    if file.is_none() {
        match tokio::time::timeout(PATIENCE, check_postgres(&config.database)).await {
            Ok(Ok(found)) => findings.extend(found),
            Ok(Err(error)) => {
                let advice =
                    "check database_url, that the server runs, and that it accepts connections from this machine";
                return findings.push(Finding::graded("database", Grade::Bad, error, advice));
            }
            Err(_) => {
                let advice = "check that the database can be reached from here";
                return findings.push(Finding::graded("database", Grade::Bad, "no answer within 10 s", advice));
            }
        }
    }
    let started = Instant::now();
    match open(config).await {
        Ok(queue) => {
            let version = tidegate_server::SCHEMA_VERSION;
            findings.push(Finding::good("schema", format!("version {version}, opened in {:?}", started.elapsed())));
            findings.push(check_health(&queue).await);
            findings.push(check_writes(&queue).await);
            findings.extend(check_secrets(&queue, config).await);
            queue.close().await;
        }
        Err(error) => {
            let advice = "the message says what is missing";
            findings.push(Finding::graded("schema", Grade::Bad, error.to_string(), advice));
        }
    }
    if let Some(path) = file {
        match tokio::task::spawn_blocking(move || check_sqlite(&path)).await {
            Ok(Ok(found)) => findings.extend(found),
            Ok(Err(error)) => {
                let advice = "check that the folder can be read and the file is a database";
                findings.push(Finding::graded("database", Grade::Bad, error.to_string(), advice));
            }
            Err(error) => findings.push(Finding::graded("database", Grade::Bad, error.to_string(), "try again")),
        }
    }
}

async fn check_health(queue: &tidegate::EventQueue) -> Finding {
    let health = queue.health().await;
    match health.store {
        Ok(()) if health.answered_in > Duration::from_secs(1) => Finding::graded(
            "answers",
            Grade::Warning,
            format!("the database took {:?} to answer", health.answered_in),
            "look for load, locks or a slow disk",
        ),
        Ok(()) => Finding::good("answers", format!("within {:?}", health.answered_in)),
        Err(error) => Finding::graded("answers", Grade::Bad, error.to_string(), "look at the database's own log"),
    }
}

/// Tries a write and a claim, without changing anything, to see whether a server could work.
async fn check_writes(queue: &tidegate::EventQueue) -> Finding {
    match tokio::time::timeout(PATIENCE, queue.probe()).await {
        Ok(Ok(())) => Finding::good("writes", "a write and a claim would succeed"),
        Ok(Err(error)) => {
            let advice = "look for a full disk, another program that holds the database, a file that was moved, a \
                          standby, or missing permissions";
            Finding::graded("writes", Grade::Bad, output::with_cause(&error), advice)
        }
        Err(_) => {
            let advice = "look for another program that holds the database, or a disk that does not answer";
            Finding::graded("writes", Grade::Bad, "nothing can be written within 10 s", advice)
        }
    }
}

/// Whether secrets can be stored, and those that are stored can be read.
async fn check_secrets(queue: &tidegate::EventQueue, config: &Config) -> Vec<Finding> {
    let options = &config.options.gateway;
    let mut findings = Vec::new();
    let how = "set secrets.key or secrets.key_file, the same on all servers; `tidegate secrets new-key` makes a key";
    if let Err(why) = options.secrets.check() {
        findings.push(Finding::graded("secrets", Grade::Bad, why, how));
    } else if options.secrets.key.is_none() && options.secrets.key_file.is_none() && config.sqlite_file().is_none() {
        let found = "no key to encrypt secrets: subscriptions and service accounts cannot be created";
        findings.push(Finding::graded("secrets", Grade::Warning, found, how));
    }
    let gateway = tidegate_dispatch::Gateway::new(queue.clone(), options.clone());
    let uses = match tokio::time::timeout(PATIENCE, gateway.key_uses()).await {
        Ok(Ok(uses)) => uses,
        Ok(Err(error)) => {
            let advice = "look at the database's own log";
            findings.push(Finding::graded("secrets", Grade::Bad, error.to_string(), advice));
            return findings;
        }
        Err(_) => {
            findings.push(Finding::graded("secrets", Grade::Warning, "not looked at within 10 s", "try again"));
            return findings;
        }
    };
    for one in uses {
        findings.push(match (&one.key, one.unreadable) {
            (Some(key), 0) => Finding::good("secrets", format!("{} are encrypted with the key {key}", one.secrets)),
            (Some(key), some) => Finding::graded(
                "secrets",
                Grade::Bad,
                format!("{some} are encrypted with the key {key} and cannot be read here: webhooks that need them wait"),
                "add that key to secrets.old_keys or secrets.key_file; if it is there, the secrets are damaged: replace them",
            ),
            (None, _) => Finding::graded(
                "secrets",
                Grade::Warning,
                format!("{} are in plain text, as an older program stored them", one.secrets),
                "run `tidegate secrets rotate`",
            ),
        });
    }
    findings
}

fn check_sqlite(path: &Path) -> rusqlite::Result<Vec<Finding>> {
    let conn = rusqlite::Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    conn.busy_timeout(PATIENCE)?;
    let text = |sql: &str, name: &str| conn.query_row(sql, [], |row| row.get::<_, String>(name));
    let mut findings = vec![Finding::good("database", format!("SQLite {}", rusqlite::version()))];
    let mode = text("PRAGMA journal_mode", "journal_mode")?;
    findings.push(if mode.eq_ignore_ascii_case("wal") {
        Finding::good("durability", "write-ahead log, every commit is synced")
    } else {
        let found = format!("journal_mode is {mode}");
        Finding::graded(
            "durability",
            Grade::Warning,
            found,
            "another program changed it; start the server once to set it back",
        )
    });
    let sound = text("PRAGMA quick_check(1)", "quick_check")?;
    findings.push(if sound == "ok" {
        Finding::good("integrity", "the file is sound")
    } else {
        Finding::graded("integrity", Grade::Bad, sound, "stop the server, keep a copy, and restore a backup")
    });
    Ok(findings)
}

async fn check_postgres(url: &str) -> Result<Vec<Finding>, String> {
    check_server(url).await.map_err(|error| output::with_cause(&*error))
}

async fn check_server(url: &str) -> Result<Vec<Finding>, Failure> {
    let (client, driver) = tidegate::postgres::PostgresStore::connect(url).await?;
    let mut findings = Vec::new();
    let version = "SELECT current_setting('server_version_num')::int AS number, version()";
    let row = client.query_one(version, &[]).await?;
    let (number, version): (i32, String) = (row.get("number"), row.get("version"));
    let version = version.split(',').next().unwrap_or_default().to_owned();
    findings.push(if number >= 130_000 {
        Finding::good("database", version)
    } else {
        Finding::graded("database", Grade::Bad, version, "use PostgreSQL 13 or later")
    });
    for (name, advice, grade) in [
        ("fsync", "set fsync = on: a power loss may destroy the whole database", Grade::Bad),
        ("full_page_writes", "set full_page_writes = on: a power loss may tear pages", Grade::Bad),
        ("synchronous_commit", "set synchronous_commit = on: a crash may lose acknowledged commits", Grade::Warning),
    ] {
        let row = client.query_one("SELECT current_setting($1)", &[&name]).await?;
        let value: String = row.get("current_setting");
        findings.push(if value == "off" {
            Finding::graded("durability", grade, format!("{name} is off"), advice)
        } else {
            Finding::good("durability", format!("{name} is {value}"))
        });
    }
    findings.push(check_clock(&client).await?);
    drop(client);
    driver.abort();
    Ok(findings)
}

async fn check_clock(client: &tokio_postgres::Client) -> Result<Finding, Failure> {
    let row = client.query_one("SELECT extract(epoch FROM clock_timestamp())::float8 AS now", &[]).await?;
    let theirs: f64 = row.get("now");
    let ours = tidegate::Timestamp::now().as_microsecond() as f64 / 1e6;
    let off = ours - theirs;
    let found = format!("this machine is {off:+.3} s off the database");
    Ok(if off.abs() <= CLOCK_SLACK {
        Finding::good("clock", found)
    } else {
        let advice = "the database's clock decides, so nothing breaks; set both by NTP to read logs in order";
        Finding::graded("clock", Grade::Warning, found, advice)
    })
}
