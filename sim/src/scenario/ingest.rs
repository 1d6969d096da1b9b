//! Two nodes that get the same events at once, killed at random and between the statements of an ingest, and the database
//! restarted under them: every event is there completely and once, or not at all.

mod load;

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::json;
use tidegate_testing::PgServer;
use tokio::sync::watch;

use self::load::{Load, PUBLISHERS};
use super::server_process::ServerProcess;
use super::{Arena, ScenarioResult, Settings, runtime, server};
use crate::checker::Report;
use crate::checker::ingest::{check, check_snapshot};
use crate::state::ingest::{Ingested, read_postgres, read_sqlite};
use crate::supervisor::POLL_INTERVAL;
use crate::workload::{Failure, sqlite_path};

/// The points between the statements of an ingest.
pub(super) const POINTS: [&str; 6] =
    ["ingest.planned", "ingest.keys", "ingest.facts", "ingest.terms", "ingest.targets", "ingest.promoted"];
/// How long a fault may take to have an effect.
const HIT_WITHIN: Duration = Duration::from_secs(60);

/// What is done to the nodes.
#[derive(Debug, Clone)]
enum Fault {
    /// A node is killed at a random moment.
    Kill,
    /// A node kills itself at a failpoint.
    Point(String),
    /// Postgres is killed and restarted.
    Restart,
}

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let arena = Arena::sqlite(settings)?;
    let result = work(&arena, None, settings);
    let sqlite = arena.conclude(result).map_err(|error| format!("sqlite: {error}"))?;
    let mut database = server()?;
    let arena = Arena::postgres(&database, settings)?;
    let result = work(&arena, Some(&mut database), settings);
    let postgres = arena.conclude(result).map_err(|error| format!("postgres: {error}"))?;
    Ok(format!("2 nodes, {PUBLISHERS} publishers; sqlite: {sqlite}; postgres: {postgres}"))
}

fn work(arena: &Arena, mut database: Option<&mut PgServer>, settings: Settings) -> ScenarioResult {
    let deadline = Instant::now() + settings.limit();
    let mut rng = settings.rng();
    let faults = faults(database.is_some(), settings, &mut rng);
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ((one, of_one), (two, of_two)) = (watch::channel(None), watch::channel(None));
    let mut nodes = [ServerProcess::new(arena, "one", one)?, ServerProcess::new(arena, "two", two)?];
    for node in &mut nodes {
        node.start(&mut rng)?;
        node.wait_until_ready()?;
    }
    subscribe(&nodes[0])?;
    let load = Load::new([of_one, of_two], settings.seed());
    let mut publishers = {
        let _inside = clients.enter();
        load.start()
    };
    let per_fault = settings.events.unwrap_or(400);
    for fault in &faults {
        load.allow(per_fault);
        let at = rng.random_range(0..nodes.len());
        strike(fault, &mut nodes[at], database.as_deref_mut(), &load, &mut rng)
            .map_err(|error| format!("{fault:?}: {error}"))?;
        nodes.iter_mut().try_for_each(ServerProcess::wait_until_ready)?;
        let mut report = Report::default();
        // What is sent meanwhile is not read any more.
        let stored = read(arena)?;
        check_snapshot(&stored, load.sent(), &mut report);
        if !report.violations.is_empty() {
            return Err(format!("after {fault:?}: {}", report.explain()).into());
        }
        if Instant::now() > deadline {
            return Err(format!("the faults took longer than {:?}", settings.limit()).into());
        }
    }
    load.end();
    clients.block_on(async {
        let all = async {
            while let Some(ended) = publishers.join_next().await {
                ended??;
            }
            Ok::<_, Failure>(())
        };
        let stuck = |_| "clients were not answered in time";
        tokio::time::timeout_at(deadline.into(), all).await.map_err(stuck)?
    })?;
    let (report, tally) = check(&load.take(), &read(arena)?, load.sent());
    nodes.iter_mut().try_for_each(ServerProcess::stop)?;
    if !report.violations.is_empty() {
        return Err(report.explain().into());
    }
    if tally.sent_again == 0 || tally.at_once == 0 {
        return Err(format!("no fault hit a request, so nothing was tested: {tally}").into());
    }
    Ok(format!("{} faults, {tally}", faults.len()))
}

/// The faults of a run in random order: each failpoint, random kills, and restarts where there is a database to restart.
fn faults(on_postgres: bool, settings: Settings, rng: &mut StdRng) -> Vec<Fault> {
    let kills = settings.kills.unwrap_or(20);
    let commit = if on_postgres {
        ["postgres.before_commit", "postgres.after_commit"]
    } else {
        ["sqlite.before_commit", "sqlite.after_commit"]
    };
    let rounds = if settings.short { 1 } else { 5 };
    let points = (0..rounds).flat_map(|_| POINTS.into_iter().chain(commit));
    let mut faults: Vec<Fault> =
        points.map(|point| Fault::Point(format!("{point}:{}", rng.random_range(1..20)))).collect();
    faults.extend((0..kills).map(|_| Fault::Kill));
    faults.extend((0..kills).filter(|_| on_postgres).map(|_| Fault::Restart));
    faults.shuffle(rng);
    faults
}

fn strike(
    fault: &Fault,
    node: &mut ServerProcess,
    database: Option<&mut PgServer>,
    load: &Load,
    rng: &mut StdRng,
) -> Result<(), Failure> {
    match fault {
        Fault::Kill => {
            let enough = load.answers() + PUBLISHERS;
            let deadline = Instant::now() + HIT_WITHIN;
            while load.answers() < enough && Instant::now() < deadline {
                std::thread::sleep(POLL_INTERVAL);
            }
            std::thread::sleep(Duration::from_millis(rng.random_range(0..100)));
            node.kill()?;
            node.start(rng)
        }
        Fault::Point(point) => {
            node.kill()?;
            node.start_armed(rng, Some(point))?;
            // There must be new events for as long as it lives.
            node.wait_until_killed(HIT_WITHIN, || load.allow(1))?;
            node.start(rng)
        }
        Fault::Restart => {
            let Some(database) = database else { return Ok(()) };
            database.kill()?;
            std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
            Ok(database.restart()?)
        }
    }
}

/// Two queues and two webhooks, for the types of the load. Nothing is delivered within a run.
fn subscribe(node: &ServerProcess) -> Result<(), Failure> {
    for queue in ["first", "second"] {
        node.ask("PUT", &format!("/queues/{queue}"), &json!({}), 200)?;
    }
    let all = json!([{ "eventTypeCode": load::ALL }]);
    let jobs = json!([{ "eventTypeCode": load::ALL }, { "eventTypeCode": load::JOB }]);
    for (code, types, target, mode) in [
        ("first", &all, "queue:first", "IMMEDIATE"),
        ("second", &all, "queue:second", "IMMEDIATE"),
        ("plain", &jobs, "https://example.com/hook", "IMMEDIATE"),
        ("ordered", &all, "https://example.com/hook", "NEXT_ON_ERROR"),
    ] {
        let body = json!({
            "code": code, "name": code, "eventTypes": types, "target": target, "mode": mode, "delaySeconds": 3600,
        });
        node.ask("POST", "/api/subscriptions", &body, 201)?;
    }
    Ok(())
}

fn read(arena: &Arena) -> Result<Ingested, Failure> {
    match sqlite_path(&arena.address) {
        Some(path) => read_sqlite(path),
        None => runtime()?.block_on(read_postgres(&arena.address)),
    }
}
