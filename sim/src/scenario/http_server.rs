//! A server under load over HTTP, killed and restarted: its answers are true, and every event is completed once.

mod load;

use std::fs::OpenOptions;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tidegate::EventQueue;
use tidegate_server::{Options, Server};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use self::load::{Load, PUBLISHERS, Tasks, WORKERS};
use super::{Arena, STOP_WITHIN, ScenarioResult, Settings, runtime, server};
use crate::checker::http;
use crate::http::Client;
use crate::state;
use crate::supervisor::{POLL_INTERVAL, myself};
use crate::workload::{Failure, sqlite_path};

/// How long a server may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Below the ephemeral ports, so that no connection of a client occupies a port on which a server is to listen.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

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
    let mut served = ServerProcess::new(arena, address_sender)?;
    let mut rng = settings.rng();
    served.start(&mut rng)?;
    let load = Load::new(address_receiver, settings.seed(), lead);
    let (mut publishers, mut workers) = {
        let _inside = clients.enter();
        load.start()
    };
    for _ in 0..kills {
        served.let_run(&load, &mut rng)?;
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
    served.wait_until_drained(deadline)?;
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

/// The server, across its restarts. It is killed with the harness.
#[derive(Debug)]
struct ServerProcess {
    database: String,
    log: PathBuf,
    child: Option<Child>,
    address: SocketAddr,
    /// Tells clients the address of the server, `None` while it is down.
    address_sender: watch::Sender<Option<SocketAddr>>,
    /// For the harness's own requests.
    runtime: Runtime,
    kills: u32,
}

impl ServerProcess {
    fn new(arena: &Arena, address_sender: watch::Sender<Option<SocketAddr>>) -> Result<Self, Failure> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let log = arena.histories().join("server.log");
        Ok(Self {
            database: arena.address.clone(),
            log,
            child: None,
            address,
            address_sender,
            runtime: runtime()?,
            kills: 0,
        })
    }

    /// Starts the server on a random port.
    fn start(&mut self, rng: &mut StdRng) -> Result<(), Failure> {
        self.address = free_port(rng)?;
        let log = OpenOptions::new().append(true).create(true).open(&self.log)?;
        let mut command = myself(&["server-child", &self.database, &self.address.to_string()])?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).env_remove("TIDEGATE_FAILPOINT");
        self.child = Some(command.spawn()?);
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        if let Some(status) = self.ended()? {
            return Err(self.ended_by_itself(status));
        }
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
            self.kills += 1;
        }
        self.address_sender.send_replace(None);
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.as_mut().map(Child::try_wait).transpose()?.flatten())
    }

    fn ended_by_itself(&self, status: ExitStatus) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let end: Vec<&str> = log.lines().rev().take(10).collect();
        format!("the server ended by itself: {status}\n{}", end.into_iter().rev().collect::<Vec<_>>().join("\n")).into()
    }

    /// Sends a GET request on a new connection; `None` when there was no answer.
    fn get(&self, path: &str) -> Option<crate::http::Answer> {
        self.runtime.block_on(Client::default().send(self.address, "GET", path, None)).ok()
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_WITHIN;
        while self.get("/readyz").is_none_or(|answer| answer.status != 200) {
            if let Some(status) = self.ended()? {
                return Err(self.ended_by_itself(status));
            }
            if Instant::now() > deadline {
                return Err(format!("the server was not ready within {READY_WITHIN:?}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.address_sender.send_replace(Some(self.address));
        Ok(())
    }

    /// Lets the server run for 100 to 600 ms. Three times out of four that time starts only after it has given some
    /// answers, since on a slow machine it might give none before it is killed; otherwise it starts when it is ready.
    fn let_run(&mut self, load: &Load, rng: &mut StdRng) -> Result<(), Failure> {
        let enough = load.answers() + u64::from(rng.random_ratio(3, 4)) * PUBLISHERS;
        self.wait_until_ready()?;
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

    fn wait_until_drained(&mut self, deadline: Instant) -> Result<(), Failure> {
        loop {
            let answer = self.get("/queues/default/metrics").ok_or("the server does not answer")?;
            if answer.status == 200 && answer.body["depth"] == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("not drained in time: {}", answer.body).into());
            }
            std::thread::sleep(POLL_INTERVAL * 5);
        }
    }

    /// Asks the server to stop and waits until it has exited.
    fn stop(&mut self) -> Result<(), Failure> {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
        }
        let deadline = Instant::now() + STOP_WITHIN;
        while Instant::now() < deadline {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.ended_by_itself(status)),
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Err(format!("the server did not stop within {STOP_WITHIN:?}").into())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only when the child has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port(rng: &mut StdRng) -> Result<SocketAddr, Failure> {
    let free = (0..100).find_map(|_| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, rng.random_range(PORTS)));
        TcpListener::bind(address).is_ok().then_some(address)
    });
    Ok(free.ok_or("no free port found")?)
}

/// The server process: runs until the parent closes standard input.
pub(crate) fn child(database: &str, address: &str) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (parent, parent_gone) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // An error, too, means that the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(parent);
    });
    runtime.block_on(async {
        let queue = EventQueue::open(database).await?;
        let listener = tokio::net::TcpListener::bind(address).await?;
        let served = Server::new(queue.clone(), Options::default())?;
        served
            .run(listener, async {
                let _ = parent_gone.await;
            })
            .await?;
        queue.close().await;
        Ok(())
    })
}
