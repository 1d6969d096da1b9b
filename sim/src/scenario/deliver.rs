//! Nodes that deliver webhooks to a receiver that fails at random. They are killed at random moments, between an attempt and
//! its record, and around commits, and Postgres is killed and restarted under them: order, limits and records hold, and
//! nothing is lost.

mod load;
mod receiver;
mod secrets;

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;
use serde_json::json;
use tidegate_testing::PgServer;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::load::{Load, PUBLISHERS};
use self::receiver::Receiver;
use super::server_process::ServerProcess;
use super::{Arena, ScenarioResult, Settings, runtime, server};
use crate::checker::Report;
use crate::checker::deliver::{ALL, Kill, Mode, POOLS, Run, SOME, SUBSCRIPTIONS, Tally, check, check_snapshot};
use crate::history::now;
use crate::state::deliver::{Jobs, read_postgres, read_sqlite, waiting_postgres, waiting_sqlite};
use crate::supervisor::POLL_INTERVAL;
use crate::workload::{Failure, sqlite_path};

/// The point between an attempt and its record.
pub(super) const ATTEMPT_MADE: &str = "attempt.made";
/// How long a fault may take to have an effect, and how long nothing may be delivered: slots and jobs of a dead node come back
/// when its leases have ended.
const HIT_WITHIN: Duration = Duration::from_secs(60);
/// Requests that the receiver gets between two faults.
const REQUESTS_BETWEEN: u64 = 15;
/// No new events while more jobs than this wait, or so: nodes that are killed every few seconds deliver slowly.
const MAX_WAITING: u64 = 1_500;
/// In a long run, every so many faults a snapshot is checked, which costs the more the more was delivered.
const SNAPSHOT_EVERY: usize = 20;

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

/// The nodes, and what happened to them.
struct Nodes<'a> {
    arena: &'a Arena,
    database: Option<&'a mut PgServer>,
    nodes: Vec<ServerProcess>,
    kills: Vec<Kill>,
}

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let arena = Arena::sqlite(settings)?;
    let result = work(&arena, None, settings);
    let sqlite = arena.conclude(result).map_err(|error| format!("sqlite: {error}"))?;
    let mut database = server()?;
    let arena = Arena::postgres(&database, settings)?;
    let result = work(&arena, Some(&mut database), settings);
    let postgres = arena.conclude(result).map_err(|error| format!("postgres: {error}"))?;
    Ok(format!("{PUBLISHERS} publishers; sqlite: {sqlite}; postgres: {postgres}"))
}

fn work(arena: &Arena, database: Option<&mut PgServer>, settings: Settings) -> ScenarioResult {
    let deadline = Instant::now() + settings.limit();
    let mut rng = settings.rng();
    let lease = Duration::from_secs(if settings.short { 2 } else { 5 });
    let faults = faults(database.is_some(), settings, &mut rng);
    let count = settings.processes.unwrap_or(if database.is_some() { 3 } else { 2 });
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
    for number in 0..count {
        let (sender, address) = watch::channel(None);
        nodes.push(ServerProcess::new(arena, &format!("node{number}"), sender)?.delivering(lease));
        addresses.push(address);
    }
    let mut nodes = Nodes { arena, database, nodes, kills: Vec::new() };
    for node in &mut nodes.nodes {
        node.start(&mut rng)?;
        node.wait_until_ready()?;
    }
    let receiver = clients.block_on(Receiver::start(settings.seed()))?;
    let (pools, subscriptions, secrets) = subscribe(&nodes.nodes[0], &receiver, settings.short)?;
    receiver.verify_by(secrets.clone());
    let load = Load::new(addresses, if settings.short { 20 } else { 100 }, settings.seed());
    let mut publishers = {
        let _inside = clients.enter();
        load.start()
    };
    let mut run = Run { pools, subscriptions, lease: micros(lease), ..Run::default() };
    let result = nodes
        .go(&faults, &load, &receiver, settings, deadline, &mut rng, &run)
        .and_then(|()| join(&clients, &mut publishers, deadline))
        .and_then(|()| nodes.wait_until_drained(deadline))
        .and_then(|()| nodes.nodes.iter_mut().try_for_each(ServerProcess::stop));
    (run.taken, (run.published, run.refused)) = (receiver.taken(), load.answers());
    run.kills = std::mem::take(&mut nodes.kills);
    write_down(arena, &run)?;
    result?;
    let (mut report, tally) = check(&run, &read(arena)?);
    for file in secrets::leaked(&arena.path, &secrets)? {
        report.violate(crate::checker::Invariant::SecretsKept, file);
    }
    if !report.violations.is_empty() {
        return Err(report.explain().into());
    }
    tally.check(&run)?;
    Ok(format!("{count} nodes, {} faults, {tally}", faults.len()))
}

impl Nodes<'_> {
    /// Lets events in, and strikes again and again.
    #[expect(clippy::too_many_arguments, reason = "the parts of one run")]
    fn go(
        &mut self,
        faults: &[Fault],
        load: &Load,
        receiver: &Receiver,
        settings: Settings,
        deadline: Instant,
        rng: &mut StdRng,
        run: &Run,
    ) -> Result<(), Failure> {
        let per_fault = settings.events.unwrap_or(20);
        for (number, fault) in faults.iter().enumerate() {
            if load.jobs().saturating_sub(receiver.count()) < MAX_WAITING {
                load.allow(per_fault);
            }
            let enough = receiver.count() + REQUESTS_BETWEEN;
            let until = Instant::now() + HIT_WITHIN;
            while receiver.count() < enough {
                if Instant::now() > until {
                    return Err(format!("nothing was delivered for {HIT_WITHIN:?} before fault {number}").into());
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            self.strike(fault, load, rng).map_err(|error| format!("{fault:?}: {error}"))?;
            if settings.short || number % SNAPSHOT_EVERY == 0 {
                let mut report = Report::default();
                check_snapshot(run, &read(self.arena)?, &mut report);
                if !report.violations.is_empty() {
                    return Err(format!("after {fault:?}: {}", report.explain()).into());
                }
            }
            if Instant::now() > deadline {
                return Err(format!("the faults took longer than {:?}", settings.limit()).into());
            }
        }
        load.end();
        Ok(())
    }

    fn strike(&mut self, fault: &Fault, load: &Load, rng: &mut StdRng) -> Result<(), Failure> {
        let at = rng.random_range(0..self.nodes.len());
        match fault {
            Fault::Kill => {
                std::thread::sleep(Duration::from_millis(rng.random_range(0..400)));
                self.kill(at)?;
                self.nodes[at].start(rng)?;
            }
            Fault::Point(point) => {
                self.kill(at)?;
                self.nodes[at].start_armed(rng, Some(point))?;
                let (mut alive_at, mut again_at) = (now(), Instant::now());
                // There must be something to do for as long as it lives.
                self.nodes[at].wait_until_killed(HIT_WITHIN, || {
                    alive_at = now();
                    if Instant::now() >= again_at {
                        load.allow(1);
                        again_at = Instant::now() + Duration::from_millis(50);
                    }
                })?;
                self.kills.push(Kill { from: alive_at, until: now(), is_of_database: false });
                self.nodes[at].start(rng)?;
            }
            Fault::Restart => {
                let Some(database) = &mut self.database else { return Ok(()) };
                let from = now();
                database.kill()?;
                std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
                database.restart()?;
                self.kills.push(Kill { from, until: now(), is_of_database: true });
            }
        }
        self.nodes.iter_mut().try_for_each(ServerProcess::wait_until_ready)
    }

    fn kill(&mut self, at: usize) -> Result<(), Failure> {
        let from = now();
        self.nodes[at].kill()?;
        self.kills.push(Kill { from, until: now(), is_of_database: false });
        Ok(())
    }

    /// Waits until every job has ended: what is behind a blocked head does so by its expiry.
    fn wait_until_drained(&self, deadline: Instant) -> Result<(), Failure> {
        loop {
            let waiting = match sqlite_path(&self.arena.address) {
                Some(path) => waiting_sqlite(path)?,
                None => runtime()?.block_on(waiting_postgres(&self.arena.address))?,
            };
            if waiting == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{waiting} jobs did not end in time").into());
            }
            std::thread::sleep(POLL_INTERVAL * 10);
        }
    }
}

/// The faults of a run in random order: kills at random moments, at a point between an attempt and its record, and around
/// commits; and restarts where there is a database to restart.
fn faults(on_postgres: bool, settings: Settings, rng: &mut StdRng) -> Vec<Fault> {
    let kills = settings.kills.unwrap_or(60);
    let commits = match on_postgres {
        true => ["postgres.before_commit", "postgres.after_commit"],
        false => ["sqlite.before_commit", "sqlite.after_commit"],
    };
    // Of each kind at least one, and about half of all at points.
    let mut faults = Vec::new();
    for number in 0..kills {
        faults.push(match number % 4 {
            0 => Fault::Point(format!("{ATTEMPT_MADE}:{}", rng.random_range(1..20))),
            1 => Fault::Kill,
            2 => Fault::Point(format!("{}:{}", commits[number as usize / 4 % 2], rng.random_range(20..200))),
            _ if on_postgres && number % 8 == 3 => Fault::Restart,
            _ => Fault::Kill,
        });
    }
    faults.shuffle(rng);
    faults
}

/// Creates the pools and the subscriptions; returns their ids, and the secrets of the subscriptions.
#[expect(clippy::type_complexity, reason = "three lists that are taken apart at once")]
fn subscribe(
    node: &ServerProcess,
    receiver: &Receiver,
    is_short: bool,
) -> Result<(Vec<String>, Vec<String>, Vec<String>), Failure> {
    let (mut pools, mut subscriptions, mut secrets) = (Vec::new(), Vec::new(), Vec::new());
    let text = |body: &serde_json::Value, field: &str| body[field].as_str().map(str::to_owned).ok_or("it is missing");
    for pool in POOLS {
        let body = json!({
            "code": pool.code, "name": pool.code, "concurrency": pool.concurrency, "rateLimitPerMinute": pool.per_minute,
        });
        pools.push(text(&node.ask("POST", "/api/dispatch-pools", &body, 201)?, "id")?);
    }
    for one in SUBSCRIPTIONS {
        let mut types = vec![json!({ "eventTypeCode": ALL })];
        if one.takes_some {
            types.push(json!({ "eventTypeCode": SOME }));
        }
        let mode = match one.mode {
            Mode::Immediate => "IMMEDIATE",
            Mode::NextOnError => "NEXT_ON_ERROR",
            Mode::BlockOnError => "BLOCK_ON_ERROR",
        };
        let mut body = json!({
            "code": one.code, "name": one.code, "eventTypes": types, "mode": mode, "dispatchPoolId": pools[one.pool],
            "target": format!("http://{}/{}", receiver.address, one.code), "dataOnly": one.data_only,
            "maxRetries": one.max_retries, "timeoutSeconds": 1,
            "retryStrategy": { "type": "fixed", "delaySeconds": 1 },
        });
        if one.expires {
            body["maxAgeSeconds"] = json!(if is_short { 5 } else { 30 });
        }
        let created = node.ask("POST", "/api/subscriptions", &body, 201)?;
        subscriptions.push(text(&created, "id")?);
        secrets.push(text(&created, "signingSecret")?);
    }
    Ok((pools, subscriptions, secrets))
}

/// Waits until all events are answered.
fn join(
    clients: &Runtime,
    publishers: &mut tokio::task::JoinSet<Result<(), Failure>>,
    deadline: Instant,
) -> Result<(), Failure> {
    clients.block_on(async {
        let all = async {
            while let Some(ended) = publishers.join_next().await {
                ended??;
            }
            Ok::<_, Failure>(())
        };
        let stuck = |_| "clients were not answered in time";
        tokio::time::timeout_at(deadline.into(), all).await.map_err(stuck)?
    })
}

fn read(arena: &Arena) -> Result<Jobs, Failure> {
    match sqlite_path(&arena.address) {
        Some(path) => read_sqlite(path),
        None => runtime()?.block_on(read_postgres(&arena.address)),
    }
}

/// Writes what was sent, taken and killed to files of lines, for whoever looks into a failure.
fn write_down(arena: &Arena, run: &Run) -> Result<(), Failure> {
    fn lines<T: Serialize>(all: &[T]) -> Result<String, Failure> {
        let mut text = String::new();
        for one in all {
            text.push_str(&serde_json::to_string(one)?);
            text.push('\n');
        }
        Ok(text)
    }
    let folder = arena.histories();
    std::fs::write(folder.join("published.lines"), lines(&run.published)?)?;
    std::fs::write(folder.join("taken.lines"), lines(&run.taken)?)?;
    std::fs::write(folder.join("kills.lines"), lines(&run.kills)?)?;
    Ok(())
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

impl Tally {
    /// Fails unless the run met what it is to test.
    fn check(&self, run: &Run) -> Result<(), Failure> {
        let met = [
            ("a request was in flight at a kill", self.cut),
            ("a crash fell between a delivery and its record", self.delivered_again),
            ("a job failed for good", self.failed),
            ("a job expired behind a blocked head", self.expired),
            ("a late event overtook others", self.overtakes),
            ("a job of NEXT_ON_ERROR stepped aside for another", self.stepped_aside),
        ];
        let missing: Vec<&str> = met.iter().filter(|(_, count)| *count == 0).map(|(what, _)| *what).collect();
        match missing.is_empty() || run.kills.len() < 5 {
            true => Ok(()),
            false => Err(format!("not tested, for it never happened: {}: {self}", missing.join("; ")).into()),
        }
    }
}
