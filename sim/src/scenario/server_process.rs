//! A server as a process of its own, which scenarios kill and restart, and whose address they hand to their clients.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::{Arena, STOP_WITHIN, runtime};
use crate::http::Client;
use crate::supervisor::{POLL_INTERVAL, myself, was_killed};
use crate::workload::Failure;

/// How long a server may take to become ready.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);
/// Below the ephemeral ports, so that no connection of a client occupies a port on which a server is to listen.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The server, across its restarts. It is killed with the harness.
#[derive(Debug)]
pub(super) struct ServerProcess {
    database: String,
    /// The lease of its jobs, if it is to deliver them to this machine and to log what it does.
    job_lease: Option<Duration>,
    log: PathBuf,
    child: Option<Child>,
    address: SocketAddr,
    /// Tells clients the address of the server, `None` while it is down.
    address_sender: watch::Sender<Option<SocketAddr>>,
    /// For the harness's own requests.
    runtime: Runtime,
    pub(super) kills: u32,
}

impl ServerProcess {
    /// A server that is not started yet. Its name is that of its log.
    pub(super) fn new(
        arena: &Arena,
        name: &str,
        address_sender: watch::Sender<Option<SocketAddr>>,
    ) -> Result<Self, Failure> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let log = arena.histories().join(format!("{name}.log"));
        Ok(Self {
            database: arena.address.clone(),
            job_lease: None,
            log,
            child: None,
            address,
            address_sender,
            runtime: runtime()?,
            kills: 0,
        })
    }

    /// Has it deliver jobs to this machine, under leases of this length, and log what it does.
    pub(super) fn delivering(mut self, job_lease: Duration) -> Self {
        self.job_lease = Some(job_lease);
        self
    }

    /// Starts the server on a random port.
    pub(super) fn start(&mut self, rng: &mut StdRng) -> Result<(), Failure> {
        self.start_armed(rng, None)
    }

    /// Starts the server on a random port. `failpoint` (`NAME:PASS`) makes it kill itself there.
    pub(super) fn start_armed(&mut self, rng: &mut StdRng, failpoint: Option<&str>) -> Result<(), Failure> {
        self.address = free_port(rng)?;
        let log = OpenOptions::new().append(true).create(true).open(&self.log)?;
        let mut command = myself(&["server-child", &self.database, &self.address.to_string()])?;
        if let Some(lease) = self.job_lease {
            command.args(["--job-lease-ms", &lease.as_millis().to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).env_remove("TIDEGATE_FAILPOINT");
        command.envs(failpoint.map(|failpoint| ("TIDEGATE_FAILPOINT", failpoint)));
        self.child = Some(command.spawn()?);
        Ok(())
    }

    pub(super) fn kill(&mut self) -> Result<(), Failure> {
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

    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.as_mut().map(Child::try_wait).transpose()?.flatten())
    }

    /// Sends a request of the harness that must be answered with this status; returns the body of the answer.
    pub(super) fn ask(&self, method: &str, path: &str, body: &Value, status: u16) -> Result<Value, Failure> {
        let answer = self.runtime.block_on(Client::default().send(self.address, method, path, Some(body)));
        match answer {
            Ok(answer) if answer.status == status => Ok(answer.body),
            other => Err(format!("{method} {path} was not answered {status}: {other:?}").into()),
        }
    }

    fn ended_by_itself(&self, status: ExitStatus) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let end: Vec<&str> = log.lines().rev().take(10).collect();
        format!("the server ended by itself: {status}\n{}", end.into_iter().rev().collect::<Vec<_>>().join("\n")).into()
    }

    /// Sends a GET request on a new connection; `None` when there was no answer.
    pub(super) fn get(&self, path: &str) -> Option<crate::http::Answer> {
        self.runtime.block_on(Client::default().send(self.address, "GET", path, None)).ok()
    }

    /// Serves clients once it is ready, until it kills itself at its failpoint; calls `meanwhile` until then.
    pub(super) fn wait_until_killed(&mut self, limit: Duration, mut meanwhile: impl FnMut()) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        let mut is_ready = false;
        loop {
            match self.ended()? {
                Some(status) if was_killed(status) => {
                    self.child = None;
                    self.kills += 1;
                    self.address_sender.send_replace(None);
                    return Ok(());
                }
                Some(status) => return Err(self.ended_by_itself(status)),
                None if Instant::now() > deadline => return Err("the failpoint was not reached in time".into()),
                None => {}
            }
            if !is_ready && self.get("/readyz").is_some_and(|answer| answer.status == 200) {
                is_ready = true;
                self.address_sender.send_replace(Some(self.address));
            }
            meanwhile();
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until it is ready, and then hands its address to the clients.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), Failure> {
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

    /// Asks the server to stop and waits until it has exited.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
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
