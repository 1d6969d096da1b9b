//! Unfavourable Postgres settings: a role with a `statement_timeout` of one second, REPEATABLE READ by default, and in
//! every case another session that locks the table of live entries for a long time.

use std::time::Duration;

use tidegate_testing::PgServer;

use crate::checker::Rules;
use crate::scenario::{Arena, Faults, ScenarioResult, Settings, drive, runtime, server};
use crate::supervisor::Fleet;
use crate::workload::Failure;

/// One way to configure the database.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    /// Executed by a superuser beforehand, with the names of the database for `{db}` and of the role for `{role}`.
    setup: &'static str,
}

const CASES: [Case; 3] = [
    Case { name: "statement_timeout of 1 s", setup: "ALTER ROLE {role} SET statement_timeout = '1s'" },
    Case {
        name: "repeatable read",
        setup: "ALTER DATABASE {db} SET default_transaction_isolation = 'repeatable read'",
    },
    Case { name: "as usual", setup: "SELECT 1" },
];

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let mut summaries = Vec::new();
    for case in CASES {
        let mut arena = Arena::postgres(&server, settings)?;
        let direct = arena.address.clone();
        arena.address = runtime()?.block_on(set_up(&server, &direct, case))?;
        let result = work(&arena, &direct, settings).map_err(|error| format!("{}: {error}", case.name).into());
        summaries.push(format!("{}: {}", case.name, arena.conclude(result)?));
    }
    Ok(summaries.join("; "))
}

/// Creates a role that owns the database and applies the settings; returns the address for that role.
async fn set_up(server: &PgServer, url: &str, case: Case) -> Result<String, Failure> {
    let database = url.rsplit('/').next().ok_or("the URL has no database")?;
    let role = format!("role_{database}");
    let client = connect(&server.url("postgres")).await?;
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await?;
    client.batch_execute(&format!("ALTER DATABASE {database} OWNER TO {role}")).await?;
    client.batch_execute(&case.setup.replace("{role}", &role).replace("{db}", database)).await?;
    Ok(format!("postgres://{role}@127.0.0.1:{}/{database}", server.port()))
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    // Ends with the client, whose calls return the errors of the connection.
    tokio::spawn(connection);
    Ok(client)
}

fn work(arena: &Arena, direct: &str, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(3_000);
    let locks = settings.kills.unwrap_or(3);
    let held = Duration::from_secs(if settings.short { 5 } else { 20 });
    let processes = settings.processes.unwrap_or(2).max(1);
    let mut jobs: Vec<_> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::early(locks, settings.rng());
    let mut struck = 0;
    let total = u64::from(processes) * events;
    drive(&mut fleet, total, &mut faults, settings.limit(), |_, _| {
        struck += 1;
        runtime()?.block_on(lock(direct, held))
    })?;
    if struck == 0 {
        return Err("no lock was taken, so nothing was tested".into());
    }
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{struck} locks of {held:?}, {}", report.counts))
}

/// Locks the table of live entries exclusively for `held`.
async fn lock(url: &str, held: Duration) -> Result<(), Failure> {
    let client = connect(url).await?;
    client.batch_execute("BEGIN; LOCK TABLE tidegate.event_queue IN ACCESS EXCLUSIVE MODE").await?;
    tokio::time::sleep(held).await;
    Ok(client.batch_execute("COMMIT").await?)
}
