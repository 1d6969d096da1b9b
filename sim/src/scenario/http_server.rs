//! A server under load over HTTP, killed and restarted: its answers are true, and every event is completed once.

mod load;

use std::io::Read;
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tidegate::Builder;
use tidegate_server::{Options, Server};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tracing_subscriber::filter::LevelFilter;

use self::load::{Load, PUBLISHERS, Tasks, WORKERS};
use super::server_process::{READY_WITHIN, ServerProcess};
use super::{Arena, ScenarioResult, Settings, runtime, server};
use crate::checker::http;
use crate::state;
use crate::supervisor::POLL_INTERVAL;
use crate::workload::{Failure, sqlite_path};

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let arena = Arena::sqlite(settings)?;
    let result = work(&arena, settings);
    let sqlite = arena.conclude(result).map_err(|error| format!("sqlite: {error}"))?;
    let postgres = server()?;
    let arena = Arena::postgres(&postgres, settings)?;
    let result = work(&arena, settings);
    let postgres = arena.conclude(result).map_err(|error| format!("postgres: {error}"))?;
    Ok(format!("{PUBLISHERS} publishers, {WORKERS} workers; sqlite: {sqlite}; postgres: {postgres}"))
}

fn work(arena: &Arena, settings: Settings) -> ScenarioResult {
    let kills = settings.kills.unwrap_or(50);
    let lead = i64::try_from(settings.events.unwrap_or(2_000))?;
    let deadline = Instant::now() + settings.limit();
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (address_sender, address_receiver) = watch::channel(None);
    let mut served = ServerProcess::new(arena, "server", address_sender)?;
    let mut rng = settings.rng();
    served.start(&mut rng)?;
    let load = Load::new(address_receiver, settings.seed(), lead);
    let (mut publishers, mut workers) = {
        let _inside = clients.enter();
        load.start()
    };
    for _ in 0..kills {
        let_run(&mut served, &load, &mut rng)?;
        served.kill()?;
        served.start(&mut rng)?;
        // Every fourth time also while it starts.
        if rng.random_ratio(1, 4) {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..60)));
            served.kill()?;
            served.start(&mut rng)?;
        }
        if Instant::now() > deadline {
            return Err(format!("the kills took longer than {:?}", settings.limit()).into());
        }
    }
    served.wait_until_ready()?;
    load.end_publishing();
    join(&clients, &mut publishers, deadline)?;
    wait_until_drained(&served, deadline)?;
    load.end_working();
    join(&clients, &mut workers, deadline)?;
    served.stop()?;
    let (report, tally) = http::check(&load.take(), &arena.state()?, &audit(arena)?);
    if !report.violations.is_empty() {
        return Err(report.explain().into());
    }
    if kills > 0 && (tally.published_again == 0 || tally.completed_again + tally.retaken == 0) {
        return Err(format!("no kill hit a request or a lease, so nothing was tested: {tally}").into());
    }
    Ok(format!("{} kills, {tally}", served.kills))
}

/// Waits until all clients have an answer to their last request.
fn join(clients: &Runtime, tasks: &mut Tasks, deadline: Instant) -> Result<(), Failure> {
    clients.block_on(async {
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok(())
        };
        let stuck = |_| "clients were not answered in time";
        tokio::time::timeout_at(deadline.into(), all).await.map_err(stuck)?
    })
}

fn audit(arena: &Arena) -> Result<Vec<state::AuditRow>, Failure> {
    match sqlite_path(&arena.address) {
        Some(path) => state::read_audit_sqlite(path),
        None => runtime()?.block_on(state::read_audit_postgres(&arena.address)),
    }
}

/// Lets the server run for 100 to 600 ms. Three times out of four that time starts only after it has given some
/// answers, since on a slow machine it might give none before it is killed; otherwise it starts when it is ready.
fn let_run(served: &mut ServerProcess, load: &Load, rng: &mut StdRng) -> Result<(), Failure> {
    let enough = load.answers() + u64::from(rng.random_ratio(3, 4)) * PUBLISHERS;
    served.wait_until_ready()?;
    let deadline = Instant::now() + READY_WITHIN;
    while load.answers() < enough {
        if Instant::now() > deadline {
            return Err(format!("the server answered too few requests within {READY_WITHIN:?}").into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    std::thread::sleep(Duration::from_millis(rng.random_range(100..600)));
    Ok(())
}

fn wait_until_drained(served: &ServerProcess, deadline: Instant) -> Result<(), Failure> {
    loop {
        let answer = served.get("/queues/default/metrics").ok_or("the server does not answer")?;
        if answer.status == 200 && answer.body["depth"] == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("not drained in time: {}", answer.body).into());
        }
        std::thread::sleep(POLL_INTERVAL * 5);
    }
}

/// The server process: runs until the parent closes standard input. With a lease of jobs it delivers them to this machine,
/// and logs all it has to say.
pub(crate) fn child(database: &str, address: &str, job_lease: Option<Duration>) -> Result<(), Failure> {
    let (mut options, mut settings) = (Options::default(), tidegate::Options::default());
    if let Some(lease) = job_lease {
        options.gateway.allowed_targets = vec!["127.0.0.1".parse()?];
        settings.lease = lease;
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::DEBUG)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (parent, parent_gone) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // An error, too, means that the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(parent);
    });
    runtime.block_on(async {
        let queue = Builder::from(settings).open(database).await?;
        let listener = tokio::net::TcpListener::bind(address).await?;
        // On PostgreSQL a key must be configured before subscriptions are made.
        options.gateway.secrets.key = Some("tgkey_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse()?);
        let served = Server::new(queue.clone(), options)?;
        served
            .run(listener, async {
                let _ = parent_gone.await;
            })
            .await?;
        queue.close().await;
        Ok(())
    })
}
