//! `tidegate work`: runs a command for each event. The payload is its stdin, its exit code the attempt outcome.
//!
//! Commands run in their own process groups, so that Ctrl-C reaches this process only: it stops them and releases their
//! events, which uses up no retry. The lease is extended from the claim until the outcome is reported.

mod command;
mod event;
mod lease;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use reqwest::StatusCode;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::client::{Client, Refused, ServerArgs, is_status};
use crate::failure::Failure;
use crate::output::{cell, shown};
use command::CommandEnd;
use event::Event;
use lease::KeptLease;

/// Seconds that one claim waits for an event.
const WAIT: u64 = 30;
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often an outcome is reported, one [`RETRY_PAUSE`] apart, while the server is unavailable.
const REPORT_TRIES: u32 = 30;

#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// Claim events with any of these tags.
    #[arg(long, value_name = "TAG,…", required_unless_present = "queue")]
    tags: Option<String>,
    /// Claim events of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Name of this worker; `host:pid` if absent.
    #[arg(long)]
    worker_id: Option<String>,
    /// Seconds until another worker may claim an event if this worker dies.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    lease_seconds: u64,
    /// Number of commands to run at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    concurrency: u16,
    /// Stop when there is nothing to claim.
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Command to run for each event, and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Whether, and how, this process was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stop {
    Not,
    /// Claim nothing more; running commands may end.
    Finish,
    /// Stop the running commands too, and release their events.
    Now,
}

#[derive(Debug)]
struct Worker {
    client: Client,
    args: WorkArgs,
    id: String,
    stop: watch::Receiver<Stop>,
}

pub(crate) async fn run(args: WorkArgs) -> Result<ExitCode, Failure> {
    let (stopping, stop) = watch::channel(Stop::Not);
    let id = args.worker_id.clone().unwrap_or_else(|| format!("{}:{}", hostname(), std::process::id()));
    let worker = Arc::new(Worker { client: Client::new(&args.server)?, id, stop, args });
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..worker.args.concurrency {
        tasks.spawn(Arc::clone(&worker).work());
    }
    let mut failed = None;
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => {
                    let _ = stopping.send(Stop::Finish);
                    failed = Some(error);
                }
                Some(Err(error)) => failed = Some(error.into()),
            },
            // A second SIGTERM stops the running commands too.
            _ = terminate.recv() => stopping.send_modify(|stop| {
                *stop = if *stop == Stop::Not { Stop::Finish } else { Stop::Now };
            }),
            _ = interrupt.recv() => { let _ = stopping.send(Stop::Now); }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

impl Worker {
    /// Claims events and runs their commands until it is told to stop; a running command may end.
    async fn work(self: Arc<Self>) -> Result<(), Failure> {
        let mut stop = self.stop.clone();
        loop {
            let claimed = tokio::select! {
                claimed = self.claim() => claimed,
                _ = stop.wait_for(|stop| *stop != Stop::Not) => return Ok(()),
            };
            match claimed {
                Ok(Some(event)) => self.handle(event).await?,
                Ok(None) if self.args.until_empty => return Ok(()),
                Ok(None) => {}
                Err(error) if is_transient(&error) => {
                    eprintln!("tidegate: {error}; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(RETRY_PAUSE) => {}
                        _ = stop.wait_for(|stop| *stop != Stop::Not) => return Ok(()),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn claim(&self) -> Result<Option<Event>, Failure> {
        let wait = if self.args.until_empty { 0 } else { WAIT };
        let mut query = vec![
            ("worker_id", self.id.clone()),
            ("wait", wait.to_string()),
            ("lease_seconds", self.args.lease_seconds.to_string()),
        ];
        let optional = [("tags", &self.args.tags), ("queue", &self.args.queue)];
        query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        let answer = self.client.get_text("/events/subscribe", &query).await?;
        Ok(answer.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    /// Runs the command for an event and reports how it ended.
    async fn handle(&self, event: Event) -> Result<(), Failure> {
        let started = Instant::now();
        let holder = json!({ "worker_id": self.id, "lease": event.lease });
        // Held until this returns: a server that is slow to take the report must not take the event for abandoned.
        let lease = KeptLease::keep(self.client.clone(), event.id, &holder, self.args.lease_seconds);
        let begun = self.client.post(&format!("/events/{}/start", event.id), &holder).await;
        if let Err(error) = begun
            && is_status(&error, StatusCode::CONFLICT)
        {
            eprintln!("tidegate: event {}: {error}", event.id);
            return Ok(());
        }
        let mut stop = self.stop.clone();
        let told_to_stop = async move {
            let _ = stop.wait_for(|stop| *stop == Stop::Now).await;
        };
        let end = command::run(&self.args.command, &event, lease.lost(), told_to_stop).await;
        if matches!(end, CommandEnd::Stopped) {
            return self.release(&event, &holder).await;
        }
        let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (verb, mut report) = match end {
            CommandEnd::Completed => ("complete", json!({ "status_code": 0 })),
            CommandEnd::Failed { code, error } => ("fail", json!({ "status_code": code, "error_message": error })),
            CommandEnd::Lost | CommandEnd::Stopped => {
                eprintln!("tidegate: event {}: the lease was lost, its command was stopped", event.id);
                return Ok(());
            }
        };
        report["worker_id"] = self.id.clone().into();
        report["lease"] = event.lease.into();
        report["execution_time_ms"] = took.into();
        self.report(&event, verb, &report).await
    }

    /// Reports an outcome until the server accepts or refuses it; tries again while the server is unavailable. A lost
    /// lease does not end it: an earlier try may have been recorded, and then a repeat gets its answer.
    async fn report(&self, event: &Event, verb: &str, report: &serde_json::Value) -> Result<(), Failure> {
        let path = format!("/events/{}/{verb}", event.id);
        for attempt in 1.. {
            let outcome = match self.client.post(&path, report).await {
                Ok(answer) if verb == "fail" => format!("failed, next try at {}", cell(&answer, "next_retry_at")),
                Ok(_) => "completed".into(),
                // The answer of the API to a failure that was recorded and leaves no retry.
                Err(error) if is_code(&error, "max_retries_exceeded") => "failed, no retry is left".into(),
                Err(error) if is_transient(&error) && attempt < REPORT_TRIES => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    continue;
                }
                Err(error) if error.is::<Refused>() => error.to_string(),
                Err(error) => return Err(error),
            };
            eprintln!("tidegate: event {} ({}): {}", event.id, shown(&event.title), shown(&outcome));
            break;
        }
        Ok(())
    }

    /// Releases the event: another worker can claim it at once, and the attempt does not count.
    async fn release(&self, event: &Event, holder: &serde_json::Value) -> Result<(), Failure> {
        let released = self.client.post(&format!("/events/{}/release", event.id), holder).await;
        let outcome = released.map_or_else(|error| error.to_string(), |_| "stopped and released".into());
        eprintln!("tidegate: event {} ({}): {outcome}", event.id, shown(&event.title));
        Ok(())
    }
}

/// Whether the server answered with this error code.
fn is_code(error: &Failure, code: &str) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.code == code)
}

/// Whether the same request may succeed later: the server is unreachable, busy or stopping.
fn is_transient(error: &Failure) -> bool {
    match error.downcast_ref::<Refused>() {
        Some(refused) => refused.status.is_server_error() || refused.status == StatusCode::TOO_MANY_REQUESTS,
        None => !error.is::<serde_json::Error>(),
    }
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().chars().filter(|c| !c.is_control()).take(100).collect::<String>())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".into())
}
