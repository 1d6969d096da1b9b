//! Groups whose entries are published by plain SQL and ended in the application's own transactions, while processes and
//! the database are killed: order is kept, and after all processes were killed, upkeep alone gives every group a head.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tidegate_store::Store;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::sqlite::{SqliteOptions, SqliteStore};
use tidegate_testing::PgServer;

use crate::checker::Rules;
use crate::scenario::{Arena, Faults, ScenarioResult, Settings, drive, kill_one, runtime, server};
use crate::supervisor::{Fleet, POLL_INTERVAL};
use crate::workload::{Failure, Job, sqlite_path};

/// How long upkeep may take to give every group a head.
const MENDED_WITHIN: Duration = Duration::from_secs(30);
/// Counts the groups that have parked or arrived entries and no head.
const HEADLESS: &str = "SELECT count(*) FROM (SELECT DISTINCT queue_id, group_key FROM {queue}
                                              WHERE group_key IS NOT NULL AND place IN (2, 3)) g
                        WHERE NOT EXISTS (SELECT 1 FROM {queue} b WHERE b.queue_id = g.queue_id
                                          AND b.group_key = g.group_key AND b.place < 2)";

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let arena = Arena::sqlite(settings)?;
    let result = work(&arena, None, settings);
    let on_sqlite = arena.conclude(result)?;
    let mut server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let result = work(&arena, Some(&mut server), settings);
    Ok(format!("SQLite: {on_sqlite}; Postgres: {}", arena.conclude(result)?))
}

fn work(arena: &Arena, mut server: Option<&mut PgServer>, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(6_000);
    let kills = settings.kills.unwrap_or(24);
    let processes = if server.is_some() { settings.processes.unwrap_or(3).max(1) } else { 1 };
    let job = |number: u32| Job { grouped: true, groups: 12, ..arena.job(&format!("w{number}"), events) };
    let mut jobs: Vec<Job> = (0..processes).map(job).collect();
    match server {
        Some(_) => jobs.push(arena.sampler()),
        None => jobs[0].census_ms = Some(50),
    }
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(kills, settings.rng());
    let mut total_kills = 0;
    let mut headless = 0;
    let total = u64::from(processes) * events;
    drive(&mut fleet, total, &mut faults, settings.limit(), |fleet, rng| {
        match (rng.random_range(0..4), &mut server) {
            (0, _) => kill_one(fleet, processes as usize, rng),
            (1, Some(server)) => restart(server, rng),
            _ => {
                total_kills += 1;
                headless += kill_all(fleet, arena)?;
                Ok(())
            }
        }
    })?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{total_kills} times all killed, {headless} groups without a head then; {}", report.counts))
}

fn restart(server: &mut PgServer, rng: &mut StdRng) -> Result<(), Failure> {
    server.kill()?;
    std::thread::sleep(Duration::from_millis(rng.random_range(0..500)));
    Ok(server.restart()?)
}

/// Kills all processes, runs upkeep until every group has a head, and restarts them. Returns how many groups had none
/// before upkeep.
fn kill_all(fleet: &mut Fleet, arena: &Arena) -> Result<u64, Failure> {
    for index in 0..fleet.len() {
        fleet.kill(index)?;
    }
    let before = headless(arena)?;
    runtime()?
        .block_on(async {
            let store = open(arena).await?;
            let deadline = Instant::now() + MENDED_WITHIN;
            let mut mended = 0;
            while headless_async(arena).await? > 0 {
                if Instant::now() > deadline {
                    return Err(format!("groups without a head after {MENDED_WITHIN:?} of upkeep").into());
                }
                mended += store.maintain().await?.groups_mended;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            store.close().await;
            // The sweep is for groups that lost their head because rows were removed by hand. Here notes and arrivals
            // must suffice.
            if mended > 0 { Err(format!("{mended} groups got a head only by the sweep").into()) } else { Ok(()) }
        })
        .map_err(|error: Failure| error)?;
    for index in 0..fleet.len() {
        fleet.launch(index, None)?;
    }
    Ok(before)
}

async fn open(arena: &Arena) -> Result<Box<dyn Store>, Failure> {
    Ok(match sqlite_path(&arena.address) {
        Some(path) => Box::new(SqliteStore::open(path, SqliteOptions::default()).await?),
        None => Box::new(PostgresStore::open(&arena.address, PostgresOptions::default()).await?),
    })
}

fn headless(arena: &Arena) -> Result<u64, Failure> {
    runtime()?.block_on(headless_async(arena))
}

async fn headless_async(arena: &Arena) -> Result<u64, Failure> {
    let count: i64 = match sqlite_path(&arena.address) {
        Some(path) => {
            let connection = rusqlite::Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            connection.query_row(&HEADLESS.replace("{queue}", "tidegate_event_queue"), [], |row| row.get(0))?
        }
        None => {
            let (client, connection) = tokio_postgres::connect(&arena.address, tokio_postgres::NoTls).await?;
            // Ends with the client, whose calls return the errors of the connection.
            tokio::spawn(connection);
            client.query_one(&HEADLESS.replace("{queue}", "tidegate.event_queue"), &[]).await?.try_get(0)?
        }
    };
    Ok(u64::try_from(count)?)
}
