//! Reads jobs, what is recorded of attempts at them, and the slots of pools, with plain SQL.

use std::collections::HashMap;
use std::path::Path;

use tidegate::Tsid;

use super::Failure;

/// The statements, with `{p}` where the namespace goes, and `us(…)` around moments. Jobs are named as their webhooks are: by the
/// milliseconds at which their event was stored, and their number.
const LIVE: &str = "SELECT q.id, us(e.created_at), q.group_key, CASE WHEN q.lease_until IS NOT NULL THEN 1 ELSE 0 END
    FROM {p}dispatch_queue q JOIN {p}events e ON e.id = q.event_id";
const ENDED: &str =
    "SELECT g.id, us(e.created_at), g.status, g.attempts, g.max_attempts, us(g.finished_at), us(g.expires_at),
        g.attempt, g.token
    FROM {p}dispatch_log g JOIN {p}events e ON e.id = g.event_id";
const ATTEMPTS: &str = "SELECT job, attempt, record FROM {p}dispatch_attempts";
const SLOTS: &str = "SELECT pool, CAST(sum(slots) AS bigint) FROM {p}dispatch_slots WHERE until > {now} GROUP BY pool";
const WAITING: &str = "SELECT count(*) FROM {p}dispatch_queue";

/// What one snapshot holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Jobs {
    pub(crate) live: Vec<LiveJob>,
    pub(crate) ended: Vec<EndedJob>,
    /// The slots of each pool that nodes hold.
    pub(crate) slots: Vec<(String, i64)>,
}

/// A row of `dispatch_queue`.
#[derive(Debug, Clone)]
pub(crate) struct LiveJob {
    pub(crate) id: String,
    pub(crate) group: Option<String>,
    pub(crate) is_leased: bool,
}

/// A row of `dispatch_log`, with all that is recorded of attempts. Moments in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct EndedJob {
    pub(crate) id: String,
    pub(crate) status: i64,
    pub(crate) attempts: i64,
    pub(crate) max_attempts: i64,
    pub(crate) finished_at: i64,
    pub(crate) expires_at: Option<i64>,
    /// The token of its last claim, which rises with each: those that were given back and those of dead nodes count too.
    pub(crate) token: i64,
    /// Numbers and records.
    pub(crate) records: Vec<(i64, String)>,
}

/// The id that the webhooks of a job carry.
fn id_of(number: i64, created_us: i64) -> String {
    Tsid::from_parts(created_us / 1_000, number).to_string()
}

/// Gives jobs their records: those of other attempts, and the one by which each ended.
fn with_records(ended: Vec<(i64, EndedJob)>, attempts: Vec<(i64, i64, String)>) -> Vec<EndedJob> {
    let mut by_job: HashMap<i64, Vec<(i64, String)>> = HashMap::new();
    for (job, attempt, record) in attempts {
        by_job.entry(job).or_default().push((attempt, record));
    }
    let add = |(number, mut job): (i64, EndedJob)| {
        job.records.extend(by_job.remove(&number).unwrap_or_default());
        job.records.sort();
        job
    };
    ended.into_iter().map(add).collect()
}

fn for_postgres(statement: &str) -> String {
    let mut text = statement.replace("{p}", "tidegate.").replace("{now}", "clock_timestamp()");
    while let Some((before, rest)) = text.split_once("us(")
        && let Some((moment, after)) = rest.split_once(')')
    {
        text = format!("{before}CAST(extract(epoch FROM {moment}) * 1000000 AS bigint){after}");
    }
    text
}

fn for_sqlite(statement: &str) -> String {
    let now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)";
    statement.replace("{p}", "tidegate_").replace("us(", "(").replace("{now}", now)
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    // It ends when the client is dropped.
    tokio::spawn(connection);
    Ok(client)
}

/// Reads a Postgres database in one snapshot.
pub(crate) async fn read_postgres(url: &str) -> Result<Jobs, Failure> {
    let mut client = connect(url).await?;
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let mut jobs = Jobs::default();
    for row in snapshot.query(&for_postgres(LIVE), &[]).await? {
        let is_leased = row.try_get::<_, i32>(3)? == 1;
        jobs.live.push(LiveJob { id: id_of(row.try_get(0)?, row.try_get(1)?), group: row.try_get(2)?, is_leased });
    }
    let mut ended = Vec::new();
    for row in snapshot.query(&for_postgres(ENDED), &[]).await? {
        let attempts: i32 = row.try_get(3)?;
        let job = EndedJob {
            id: id_of(row.try_get(0)?, row.try_get(1)?),
            status: row.try_get::<_, i16>(2)?.into(),
            attempts: attempts.into(),
            max_attempts: row.try_get::<_, i32>(4)?.into(),
            finished_at: row.try_get(5)?,
            expires_at: row.try_get(6)?,
            token: row.try_get(8)?,
            records: row.try_get::<_, Option<String>>(7)?.map(|record| (attempts.into(), record)).into_iter().collect(),
        };
        ended.push((row.try_get(0)?, job));
    }
    let mut attempts = Vec::new();
    for row in snapshot.query(&for_postgres(ATTEMPTS), &[]).await? {
        attempts.push((row.try_get(0)?, row.try_get::<_, i32>(1)?.into(), row.try_get(2)?));
    }
    for row in snapshot.query(&for_postgres(SLOTS), &[]).await? {
        jobs.slots.push((Tsid::from_i64(row.try_get(0)?).to_string(), row.try_get(1)?));
    }
    snapshot.commit().await?;
    jobs.ended = with_records(ended, attempts);
    Ok(jobs)
}

/// Reads a SQLite database in one snapshot.
pub(crate) fn read_sqlite(path: &Path) -> Result<Jobs, Failure> {
    let mut connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    let snapshot = connection.transaction()?;
    let live = snapshot
        .prepare(&for_sqlite(LIVE))?
        .query_map([], |row| {
            let id = id_of(row.get(0)?, row.get(1)?);
            Ok(LiveJob { id, group: row.get(2)?, is_leased: row.get::<_, i64>(3)? == 1 })
        })?
        .collect::<Result<_, _>>()?;
    let ended = snapshot
        .prepare(&for_sqlite(ENDED))?
        .query_map([], |row| {
            let attempts: i64 = row.get(3)?;
            let job = EndedJob {
                id: id_of(row.get(0)?, row.get(1)?),
                status: row.get(2)?,
                attempts,
                max_attempts: row.get(4)?,
                finished_at: row.get(5)?,
                expires_at: row.get(6)?,
                token: row.get(8)?,
                records: row.get::<_, Option<String>>(7)?.map(|record| (attempts, record)).into_iter().collect(),
            };
            Ok((row.get(0)?, job))
        })?
        .collect::<Result<_, _>>()?;
    let attempts = snapshot
        .prepare(&for_sqlite(ATTEMPTS))?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let slots = snapshot
        .prepare(&for_sqlite(SLOTS))?
        .query_map([], |row| Ok((Tsid::from_i64(row.get(0)?).to_string(), row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(Jobs { live, ended: with_records(ended, attempts), slots })
}

/// How many jobs have not ended, on Postgres.
pub(crate) async fn waiting_postgres(url: &str) -> Result<i64, Failure> {
    Ok(connect(url).await?.query_one(&for_postgres(WAITING), &[]).await?.try_get(0)?)
}

/// How many jobs have not ended, on SQLite.
pub(crate) fn waiting_sqlite(path: &Path) -> Result<i64, Failure> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    Ok(connection.query_row(&for_sqlite(WAITING), [], |row| row.get(0))?)
}
