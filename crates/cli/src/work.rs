//! `tidegate work`: runs a command for each event. The payload is its stdin, its exit code the verdict.
//!
//! Commands run in process groups of their own, so that Ctrl-C reaches this process alone: it stops them and gives their
//! events back, which uses up no retry. A lease is kept from the claim until the verdict is reported.

use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::Failure;
use crate::client::{Client, Refused, ServerArgs, is_status};
use crate::output::{cell, shown};

/// How long one request waits for an event.
const WAIT: u64 = 30;
/// How much of what a command says on stderr goes into its failure.
const MAX_ERROR: usize = 4_000;
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// A verdict is reported again while the server is away.
const REPORT_TRIES: u32 = 30;
/// How long a command may take to end once it was asked to,
const LAST_MOMENTS: Duration = Duration::from_secs(5);
/// and how long its last words are waited for: what it has started may keep its stderr open for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// Take events with any of these tags.
    #[arg(long, value_name = "TAG,…", required_unless_present = "queue")]
    tags: Option<String>,
    /// Take events of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// The name of this worker; `host:pid` if absent.
    #[arg(long)]
    worker_id: Option<String>,
    /// Seconds until somebody else may take an event when this worker dies.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    lease_seconds: u64,
    /// Commands that run at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    concurrency: u16,
    /// Stop when there is nothing to do.
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// An event as far as a worker needs it.
#[derive(Debug, Deserialize)]
struct Event {
    id: u64,
    title: String,
    tags: String,
    attempts: u32,
    lease: i64,
    payload: Option<Box<RawValue>>,
    traceparent: Option<String>,
}

/// What this process was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stop {
    Not,
    /// Take nothing more; commands that run may end.
    Finish,
    /// Stop the commands too, and give their events back.
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
        tasks.spawn(Arc::clone(&worker).work_off());
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
            // Whoever asks twice does not want to wait.
            _ = terminate.recv() => stopping.send_modify(|stop| {
                *stop = if *stop == Stop::Not { Stop::Finish } else { Stop::Now };
            }),
            _ = interrupt.recv() => { let _ = stopping.send(Stop::Now); }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

impl Worker {
    /// Takes events until it is told to stop; a command that runs then may end.
    async fn work_off(self: Arc<Self>) -> Result<(), Failure> {
        let mut stop = self.stop.clone();
        loop {
            let taken = tokio::select! {
                taken = self.take() => taken,
                _ = stop.wait_for(|stop| *stop != Stop::Not) => return Ok(()),
            };
            match taken {
                Ok(Some(event)) => self.handle(event).await?,
                Ok(None) if self.args.until_empty => return Ok(()),
                Ok(None) => {}
                Err(error) if is_passing(&error) => {
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

    async fn take(&self) -> Result<Option<Event>, Failure> {
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

    async fn handle(&self, event: Event) -> Result<(), Failure> {
        let started = Instant::now();
        let holder = json!({ "worker_id": self.id, "lease": event.lease });
        let begun = self.client.post(&format!("/events/{}/start", event.id), &holder).await;
        if let Err(error) = begun
            && is_status(&error, StatusCode::CONFLICT)
        {
            eprintln!("tidegate: event {}: {error}", event.id);
            return Ok(());
        }
        let verdict = match self.spawn(&event) {
            Ok(child) => self.attend(child, &event, &holder).await,
            Err(error) => Verdict::Failed { code: 127, error: format!("the command cannot be started: {error}") },
        };
        if matches!(verdict, Verdict::Stopped) {
            return self.give_back(&event, &holder).await;
        }
        let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (verb, mut report) = match verdict {
            Verdict::Completed => ("complete", json!({ "status_code": 0 })),
            Verdict::Failed { code, error } => ("fail", json!({ "status_code": code, "error_message": error })),
            Verdict::Lost | Verdict::Stopped => {
                eprintln!("tidegate: event {} is no longer ours; its command was stopped", event.id);
                return Ok(());
            }
        };
        report["worker_id"] = self.id.clone().into();
        report["lease"] = event.lease.into();
        report["execution_time_ms"] = took.into();
        self.report(&event, verb, &report).await
    }

    /// Reports until the server has heard it, or said that it is no longer ours to say.
    async fn report(&self, event: &Event, verb: &str, report: &serde_json::Value) -> Result<(), Failure> {
        let path = format!("/events/{}/{verb}", event.id);
        for attempt in 1.. {
            let outcome = match self.client.post(&path, report).await {
                Ok(answer) if verb == "fail" => format!("failed, next try at {}", cell(&answer, "next_retry_at")),
                Ok(_) => "completed".into(),
                // That is how the API says that the failure was recorded and was the last.
                Err(error) if is_code(&error, "max_retries_exceeded") => "failed, no retry is left".into(),
                Err(error) if is_passing(&error) && attempt < REPORT_TRIES => {
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

    /// Lets others take the event at once; the attempt does not count.
    async fn give_back(&self, event: &Event, holder: &serde_json::Value) -> Result<(), Failure> {
        let given = self.client.post(&format!("/events/{}/release", event.id), holder).await;
        let outcome = given.map_or_else(|error| error.to_string(), |_| "stopped and given back".into());
        eprintln!("tidegate: event {} ({}): {outcome}", event.id, shown(&event.title));
        Ok(())
    }

    fn spawn(&self, event: &Event) -> std::io::Result<Child> {
        let (program, arguments) = self.args.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
        command.env("EVENT_ID", event.id.to_string()).env("EVENT_TITLE", event.title.replace('\0', ""));
        command.env("EVENT_TAGS", event.tags.replace('\0', "")).env("EVENT_ATTEMPT", event.attempts.to_string());
        if let Some(traceparent) = &event.traceparent {
            command.env("TRACEPARENT", traceparent);
        }
        command.spawn()
    }

    /// Feeds the command, keeps the lease while it runs, and says how it ended.
    async fn attend(&self, mut child: Child, event: &Event, holder: &serde_json::Value) -> Verdict {
        let payload = event.payload.as_ref().map_or("null", |payload| payload.get()).to_owned();
        if let Some(mut stdin) = child.stdin.take() {
            tokio::spawn(async move {
                // A command may end without reading all of it.
                let _ = stdin.write_all(payload.as_bytes()).await;
            });
        }
        let said = Words::default();
        let listening = child.stderr.take().map(|stderr| tokio::spawn(said.clone().listen(stderr)));
        let mut stop = self.stop.clone();
        let told = async move {
            let _ = stop.wait_for(|stop| *stop == Stop::Now).await;
        };
        let attended = async {
            let (ended, was_stopped) = tokio::select! {
                ended = child.wait() => (ended, false),
                () = told => (end(&mut child).await, true),
            };
            let failed = match ended {
                Ok(status) if status.success() => return Verdict::Completed,
                _ if was_stopped => return Verdict::Stopped,
                Ok(status) => status,
                Err(error) => return Verdict::Failed { code: 1, error: error.to_string() },
            };
            if let Some(listening) = listening {
                let _ = tokio::time::timeout(LAST_WORDS, listening).await;
            }
            let said = said.last();
            let error = if said.trim().is_empty() { failed.to_string() } else { said.trim().to_owned() };
            Verdict::Failed { code: failed.code().unwrap_or(-1), error: error.replace('\0', "") }
        };
        let verdict = tokio::select! {
            verdict = attended => Some(verdict),
            () = self.keep(event, holder) => None,
        };
        match verdict {
            Some(verdict) => verdict,
            None => {
                let _ = end(&mut child).await;
                Verdict::Lost
            }
        }
    }

    /// Keeps the lease; over when it is lost.
    async fn keep(&self, event: &Event, holder: &serde_json::Value) {
        let mut beat = holder.clone();
        beat["lease_seconds"] = self.args.lease_seconds.into();
        let path = format!("/events/{}/heartbeat", event.id);
        let every = Duration::from_millis((self.args.lease_seconds * 1000 / 3).max(100));
        loop {
            tokio::time::sleep(every).await;
            let kept = tokio::time::timeout(every.max(RETRY_PAUSE), self.client.post(&path, &beat)).await;
            if kept.is_ok_and(|kept| kept.is_err_and(|error| is_status(&error, StatusCode::CONFLICT))) {
                return;
            }
        }
    }
}

/// Ends a command and all that it has started: asks first.
async fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    signal_group(child, libc::SIGTERM);
    if let Ok(ended) = tokio::time::timeout(LAST_MOMENTS, child.wait()).await {
        return ended;
    }
    signal_group(child, libc::SIGKILL);
    child.wait().await
}

fn signal_group(child: &Child, signal: i32) {
    // Without a number it has ended and was waited for: the number may be somebody else's by now.
    if let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // SAFETY: kill takes two numbers and touches no memory.
        unsafe { libc::kill(-group, signal) };
    }
}

/// How a command ended.
enum Verdict {
    Completed,
    Failed {
        code: i32,
        error: String,
    },
    /// The lease is somebody else's.
    Lost,
    /// By us, because we were told to stop.
    Stopped,
}

/// The end of what a command says on stderr.
#[derive(Debug, Clone, Default)]
struct Words(Arc<Mutex<Vec<u8>>>);

impl Words {
    /// Passes stderr on and keeps its end.
    async fn listen(self, mut stderr: tokio::process::ChildStderr) {
        let mut chunk = [0_u8; 8192];
        while let Ok(count) = stderr.read(&mut chunk).await {
            if count == 0 {
                break;
            }
            let _ = tokio::io::stderr().write_all(&chunk[..count]).await;
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&chunk[..count]);
            if kept.len() > 2 * MAX_ERROR {
                let from = kept.len() - MAX_ERROR;
                kept.drain(..from);
            }
        }
    }

    fn last(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = kept.len().saturating_sub(MAX_ERROR);
        String::from_utf8_lossy(&kept[from..]).into_owned()
    }
}

/// Whether the server said this code.
fn is_code(error: &Failure, code: &str) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.code == code)
}

/// Whether the same request may succeed a little later: the server is away, busy or stopping.
fn is_passing(error: &Failure) -> bool {
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
