//! What a server does while very many jobs wait: that it lists them as fast, needs no more memory, writes nothing as long as
//! none can be delivered, and keeps the limit of their pool once they are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tidegate::{Backend, End, Family, Finalize, QueueName, Tsid};
use tidegate_dispatch::{DispatchMode, PoolBody, PoolStatus, SubscriptionBody};
use tidegate_store::{Claim, Claimed};
use tokio::time::sleep;

use super::server_memory::stable_resident;
use super::webhooks::{Lists, Maker, type_of};
use super::{BACKENDS, Bench, Fresh, known, wal};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{progress, rate, short};
use crate::scale::BATCH;
use crate::served::Served;
use crate::sink::Sink;

/// With so few jobs the memory of a server is compared.
const FEW: usize = 1_000;
/// Deliveries at once, when there are any, and how long each takes.
const CONCURRENCY: u32 = 16;
const HOLD: Duration = Duration::from_millis(20);
/// For how long nothing happens while writes are counted, beside the lists.
const QUIET: Duration = Duration::from_secs(10);
/// For how long jobs are delivered.
const DELIVERED: Duration = Duration::from_secs(10);
/// Blocked groups, at most.
const BLOCKED: usize = 1_000;
/// Jobs of this share each: ended, blocked, ordered, delayed; and those of a rare subscription, of a client.
const SHARES: (usize, usize) = (10, 1_000);
/// A delay that does not end during a run.
const LATER: u32 = 24 * 3_600;

/// The jobs that were made, and what lists can ask for.
struct Made {
    pool: Tsid,
    client: Tsid,
    /// Subscriptions: with most jobs, with few and old ones, of the client, and with blocked groups.
    most: Tsid,
    rare: Tsid,
    own: Tsid,
    blocked: Tsid,
}

/// What was measured with a number of jobs.
struct Seen {
    lists: Lists,
    written: f64,
    /// Further figures about what was written.
    quiet: String,
    resident: f64,
    most_at_once: usize,
    per_second: f64,
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        let names = ["p99", "rss", "writes", "excess"].map(|what| format!("{prefix}_deliver_waiting_{what}"));
        if !names.iter().any(|name| bench.wanted.has(name)) {
            continue;
        }
        let few = measure(bench, backend, FEW).await?;
        let many = measure(bench, backend, bench.scale.waiting).await?;
        let p99 = many.lists.worst().ok_or("nothing was listed")?;
        let lists = Measured::absolute(known(&names[0])?, vec![p99]);
        outcomes.push(many.lists.notes().fold(lists, Measured::note));
        let note = format!("{} MiB, and {} with {FEW} jobs", short(many.resident), short(few.resident));
        outcomes.push(Measured::absolute(known(&names[1])?, vec![(many.resident - few.resident).max(0.0)]).note(note));
        outcomes.push(Measured::absolute(known(&names[2])?, vec![many.written]).note(many.quiet));
        let beyond = many.most_at_once.saturating_sub(CONCURRENCY as usize) as f64;
        let note = format!("{} at once at most, {} a second", many.most_at_once, short(many.per_second));
        outcomes.push(Measured::absolute(known(&names[3])?, vec![beyond]).note(note));
    }
    Ok(outcomes)
}

async fn measure(bench: &Bench, backend: Backend, jobs: usize) -> Result<Seen> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    let sink = Sink::start().await?;
    let start = Instant::now();
    let made = fill(&address, &sink, jobs).await?;
    database.vacuum().await?;
    progress(&format!("{jobs} jobs wait after {} s", short(start.elapsed().as_secs_f64())));
    let writes = Writes::counted(&database).await?;
    let served = Served::start_with_router(&address).await?;
    let mut connection = Connection::open(served.address).await?;
    let mut lists = Lists::of(paths(&mut connection, &made).await?);
    for _ in 0..bench.scale.lists {
        lists.send(&mut connection).await?;
    }
    lists.notes().for_each(|note| progress(&note));
    drop(connection);
    let quiet = quiet(&database, &served).await?;
    let listed = stable_resident(&served).await?;
    served.stop().await?;
    let written = writes.end(&database).await?;
    if sink.taken() > 0 {
        return Err("jobs were delivered although their pool is suspended".into());
    }
    progress(&format!("{} rows written, {quiet}; {} MiB", short(written), short(listed)));
    let (per_second, delivered) = deliver(&address, &made, &sink).await?;
    let note = format!("{} a second, {} at once; {} MiB", short(per_second), sink.most(), short(delivered));
    progress(&note);
    let resident = listed.max(delivered);
    Ok(Seen { lists, written, quiet, resident, most_at_once: sink.most(), per_second })
}

/// Delivers some of what waits; returns how many a second, and the memory of the server after that.
async fn deliver(address: &str, made: &Made, sink: &Sink) -> Result<(f64, f64)> {
    sink.hold(HOLD);
    Maker::change_pool(address, made.pool, &pool(PoolStatus::Active)).await?;
    let served = Served::start_with_router(address).await?;
    let start = Instant::now();
    sleep(DELIVERED).await;
    let per_second = rate(sink.taken(), start.elapsed());
    if sink.taken() == 0 {
        return Err("nothing was delivered although the pool is active".into());
    }
    let resident = served.resident()?;
    served.stop().await?;
    Ok((per_second, resident))
}

fn pool(status: PoolStatus) -> PoolBody {
    PoolBody { concurrency: CONCURRENCY, status, ..PoolBody::new("Bench".into()) }
}

/// Makes the jobs. The oldest have ended, then come those of groups that are blocked, of a rare subscription and of a client;
/// the others are behind an ordered group, delayed, or could be delivered if their pool were not suspended.
async fn fill(address: &str, sink: &Sink, jobs: usize) -> Result<Made> {
    let maker = Maker::open(address).await?;
    let pool = maker.pool(&pool(PoolStatus::Suspended)).await?;
    let client = maker.gateway.create_client("bench", "Bench").await?.id;
    let subscribe = async |code: &str, client, mode, delay| {
        let change = |body: &mut SubscriptionBody| {
            (body.dispatch_pool, body.mode, body.delay_seconds) = (Some(pool), mode, delay);
        };
        maker.subscribe(code, client, sink, change).await
    };
    let most = subscribe("most", None, DispatchMode::Immediate, 0).await?;
    let rare = subscribe("rare", None, DispatchMode::Immediate, 0).await?;
    let own = subscribe("own", Some(client), DispatchMode::Immediate, 0).await?;
    let blocked = subscribe("blocked", None, DispatchMode::BlockOnError, 0).await?;
    // Its groups are looked at before those that are blocked.
    subscribe("and-ordered", None, DispatchMode::NextOnError, 0).await?;
    subscribe("later", None, DispatchMode::Immediate, LATER).await?;
    let (share, few) = (jobs / SHARES.0, jobs / SHARES.1);
    let groups = BLOCKED.min(share / 10);
    maker.ingest("most", None, 0..share, 0).await?;
    end(&maker, share, End::Completed).await?;
    maker.ingest("blocked", None, 0..groups, groups).await?;
    end(&maker, groups, End::Failed).await?;
    maker.ingest("rare", None, 0..few, 0).await?;
    maker.ingest("own", Some(client), 0..few, 0).await?;
    maker.ingest("blocked", None, groups..share, groups).await?;
    maker.ingest("and-ordered", None, 0..share, share / 5).await?;
    maker.ingest("later", None, 0..share, 0).await?;
    maker.ingest("most", None, 0..jobs - 3 * share - 2 * few, 0).await?;
    let census = maker.queue.store().family(Family::Jobs).census().await?;
    maker.close().await;
    if (census.waiting, census.leased, census.ended) != (jobs as u64, 0, share as u64) {
        return Err(format!("expected {jobs} waiting and {share} ended jobs; found {census:?}").into());
    }
    Ok(Made { pool, client, most, rare, own, blocked })
}

/// Ends so many jobs, all that can be claimed.
async fn end(maker: &Maker, count: usize, end: End) -> Result<()> {
    let store = maker.queue.store().family(Family::Jobs);
    let mut left = count;
    while left > 0 {
        let claim = Claim {
            queue: QueueName::of(None, "dispatch")?,
            types: None,
            max: BATCH,
            lease: Duration::from_secs(60),
            worker: "bench".into(),
            quotas: BTreeMap::new(),
            tags: None,
            audit: false,
        };
        let claimed = store.claim(claim).await?;
        if claimed.is_empty() {
            return Err(format!("a claim returned nothing while {left} jobs were to end").into());
        }
        left -= claimed.len();
        let end = |one: &Claimed| {
            let (id, token) = (one.id, Some(one.token));
            Finalize { id, token, end, errors: None, results: None, attempt: None }
        };
        for answer in store.finalize(claimed.iter().map(end).collect()).await? {
            answer?;
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    items: Vec<Item>,
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    event_id: Option<String>,
}

/// The lists that are measured.
async fn paths(connection: &mut Connection, made: &Made) -> Result<Vec<String>> {
    let Made { pool, client, most, rare, own, blocked } = made;
    let filters = [
        "status=QUEUED".to_owned(),
        "status=PENDING".to_owned(),
        "status=IN_PROGRESS".to_owned(),
        "status=COMPLETED".to_owned(),
        "status=ERROR".to_owned(),
        format!("subscriptionId={most}"),
        format!("subscriptionId={rare}"),
        format!("subscriptionId={rare}&status=QUEUED"),
        format!("subscriptionId={blocked}&status=ERROR"),
        format!("clientId={client}"),
        format!("clientId={client}&status=QUEUED"),
        format!("clientId={client}&subscriptionId={own}"),
        format!("poolId={pool}"),
        format!("code={}", type_of("rare")),
        "messageGroup=blocked:group-7".to_owned(),
        "kind=TASK".to_owned(),
        "kind=EVENT&status=QUEUED".to_owned(),
        "from=2020-01-01T00:00:00Z&to=2100-01-01T00:00:00Z".to_owned(),
    ];
    let mut paths = vec!["/api/dispatch-jobs".to_owned()];
    paths.extend(filters.map(|filter| format!("/api/dispatch-jobs?{filter}")));
    let page: Page = serde_json::from_slice(connection.expect(200, "GET", &paths[0], b"").await?)?;
    let event = page.items.first().and_then(|item| item.event_id.clone()).ok_or("no job with an event was listed")?;
    paths.push(format!("/api/dispatch-jobs?eventId={event}"));
    let deep = page.next_cursor.ok_or("the list of all jobs has a single page")?;
    paths.push(format!("/api/dispatch-jobs?cursor={deep}"));
    paths.push("/api/dispatch-groups".to_owned());
    paths.push(format!("/api/dispatch-groups?clientId={client}"));
    paths.push(with_groups(connection).await?);
    Ok(paths)
}

/// The first page that has blocked groups.
async fn with_groups(connection: &mut Connection) -> Result<String> {
    let mut path = "/api/dispatch-groups".to_owned();
    loop {
        let page: Page = serde_json::from_slice(connection.expect(200, "GET", &path, b"").await?)?;
        if !page.items.is_empty() {
            return Ok(path);
        }
        path = format!("/api/dispatch-groups?cursor={}", page.next_cursor.ok_or("no blocked group was listed")?);
    }
}

/// What is written while nothing happens at all: slots, heartbeats and the like.
async fn quiet(database: &Fresh, served: &Served) -> Result<String> {
    let (log, output) = (log(database).await?, written_by(served)?);
    sleep(QUIET).await;
    let per_second = |bytes: f64| short(bytes / QUIET.as_secs_f64() / 1024.0);
    let log = per_second(self::log(database).await? - log);
    let output = per_second(written_by(served)? - output);
    Ok(match database {
        Fresh::Sqlite(_) => format!("to all tables {output} KiB a second"),
        Fresh::Postgres(_) => format!("to all tables {log} KiB of log a second"),
    })
}

/// The end of PostgreSQL's log, in bytes.
async fn log(database: &Fresh) -> Result<f64> {
    match database {
        Fresh::Sqlite(_) => Ok(0.0),
        Fresh::Postgres(database) => wal::position(&database.connect().await?).await,
    }
}

/// Bytes that a server has written to files and sockets.
fn written_by(served: &Served) -> Result<f64> {
    let io = std::fs::read_to_string(format!("/proc/{}/io", served.pid()?))?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar:")).ok_or("no wchar in /proc/PID/io")?;
    Ok(line.trim().parse()?)
}

/// Counts the rows of live and ended jobs that are written: PostgreSQL counts them itself, SQLite by triggers.
struct Writes {
    before: f64,
}

const TABLES: [&str; 2] = ["tidegate_dispatch_queue", "tidegate_dispatch_log"];
const VERBS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

impl Writes {
    async fn counted(database: &Fresh) -> Result<Self> {
        if let Fresh::Sqlite(_) = database {
            let mut script = "CREATE TABLE bench_writes (count INTEGER NOT NULL);
                              INSERT INTO bench_writes VALUES (0);"
                .to_owned();
            for (table, verb) in TABLES.iter().flat_map(|table| VERBS.map(|verb| (table, verb))) {
                script += &format!(
                    "CREATE TRIGGER bench_{table}_{verb} AFTER {verb} ON {table}
                     BEGIN UPDATE bench_writes SET count = count + 1; END;"
                );
            }
            rusqlite::Connection::open(database.address())?.execute_batch(&script)?;
        }
        Ok(Self { before: rows(database).await? })
    }

    /// The rows that were written, once the server has stopped. Nothing is counted any more.
    async fn end(self, database: &Fresh) -> Result<f64> {
        let written = rows(database).await? - self.before;
        if let Fresh::Sqlite(_) = database {
            let mut script = "DROP TABLE bench_writes;".to_owned();
            for (table, verb) in TABLES.iter().flat_map(|table| VERBS.map(|verb| (table, verb))) {
                script += &format!("DROP TRIGGER bench_{table}_{verb};");
            }
            rusqlite::Connection::open(database.address())?.execute_batch(&script)?;
        }
        Ok(written)
    }
}

/// The rows of jobs that were written so far. What sessions have counted is known once they are idle or have ended, so it is
/// waited until the number stays the same.
async fn rows(database: &Fresh) -> Result<f64> {
    let count = "
        SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables
        WHERE schemaname = 'tidegate' AND (relname = 'dispatch_queue' OR relname LIKE 'dispatch\\_log%')";
    let Fresh::Postgres(database) = database else {
        let connection = rusqlite::Connection::open(database.address())?;
        return Ok(connection.query_row("SELECT count FROM bench_writes", [], |row| row.get(0))?);
    };
    let client = database.connect().await?;
    let mut before = -1.0;
    loop {
        let now: f64 = client.query_one(count, &[]).await?.get(0);
        if now == before {
            return Ok(now);
        }
        before = now;
        sleep(Duration::from_secs(2)).await;
    }
}
