//! Servers in child processes: Tidegate's over a database, and the floor, bare handlers that parse and return the same
//! JSON and store nothing. A child serves until its standard input ends, so it never outlives the benchmark.

use std::io::Read;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::EventQueue;
use tidegate_dispatch::secrets::SecretOptions;
use tidegate_server::{Metrics, Options, Server};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::Result;
use crate::scale::{PAYLOAD, payload};

/// The value of `--serve-child` that starts the floor instead of a server over a database.
pub(crate) const FLOOR: &str = "floor";
const NOW: &str = "2025-12-24T10:30:00.123456Z";

/// A running server process; killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    /// The address it listens on.
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Served {
    /// Starts a server over the database at this address, or the floor ([`FLOOR`]).
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start(what: &str) -> Result<Self> {
        Self::spawn(&["--serve-child", what]).await
    }

    /// Starts a server that requires API keys.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start_with_keys(what: &str) -> Result<Self> {
        Self::spawn(&["--serve-child", what, "--serve-keys"]).await
    }

    /// Starts a server that delivers jobs, also to loopback addresses.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start_with_router(what: &str) -> Result<Self> {
        Self::spawn(&["--serve-child", what, "--serve-router"]).await
    }

    async fn spawn(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = child.stdout.take().ok_or("the server's standard output is not piped")?;
        let line = BufReader::new(out).lines().next_line().await?;
        let address = line.ok_or("the server exited before it printed its address")?.parse()?;
        Ok(Self { address, child })
    }

    /// The resident memory of the process now, in MiB.
    ///
    /// # Errors
    /// When the process has exited, or `/proc` does not have the figure.
    pub(crate) fn resident(&self) -> Result<f64> {
        let pid = self.pid()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in /proc/PID/status")?;
        let kib: f64 = line.split_whitespace().next().ok_or("no VmRSS in /proc/PID/status")?.parse()?;
        Ok(kib / 1024.0)
    }

    /// The process id.
    ///
    /// # Errors
    /// When the process has exited.
    pub(crate) fn pid(&self) -> Result<u32> {
        self.child.id().ok_or_else(|| "the server has exited".into())
    }

    /// Kills the server, as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Shuts the server down gracefully and waits for it.
    ///
    /// # Errors
    /// When it exits with an error.
    pub(crate) async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        if status.success() { Ok(()) } else { Err(format!("the server exited with {status}").into()) }
    }
}

/// The main function of the child process. Prints the address as soon as it listens.
///
/// # Errors
/// When the database cannot be opened or the server fails.
pub(crate) async fn child(what: &str, keys: bool, router: bool) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    if what == FLOOR {
        println!("{address}");
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true); // without it the floor is only slower
        });
        tokio::select! {
            served = axum::serve(listener, floor()?).into_future() => served?,
            () = input_ends() => {}
        }
        return Ok(());
    }
    let mut options = Options::default();
    options.auth.required = keys;
    options.run_router = router;
    options.gateway.secrets = secrets();
    options.gateway.allowed_targets = vec!["127.0.0.1".parse()?];
    options.metrics = Metrics::install(); // as in `tidegate serve`, since metrics are part of the cost
    let queue = EventQueue::open(what).await?;
    let server = Server::new(queue.clone(), options)?;
    println!("{address}");
    server.run(listener, input_ends()).await?;
    queue.close().await;
    Ok(())
}

/// The key of secrets, the same in all processes and on all databases: it protects nothing here, and costs what any does.
pub(crate) fn secrets() -> SecretOptions {
    let key = "tgkey_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse();
    SecretOptions { key: key.ok(), ..SecretOptions::default() }
}

async fn input_ends() {
    // An error of the input counts as its end.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
}

/// Handlers that only parse and write JSON.
fn floor() -> Result<Router> {
    let payload: Arc<RawValue> = RawValue::from_string(payload(PAYLOAD))?.into();
    let router = Router::new()
        .route("/events", post(create))
        .route("/events/subscribe", get(subscribe))
        .route("/events/{id}/complete", post(complete));
    Ok(router.with_state(payload))
}

#[derive(Debug, Deserialize)]
struct Posted {
    title: String,
    description: Option<String>,
    tags: String,
    payload: Box<RawValue>,
}

#[derive(Debug, Serialize)]
struct Shown {
    id: i64,
    event_id: &'static str,
    title: String,
    tags: String,
    status: &'static str,
    retry_count: u32,
    queue: &'static str,
    r#type: &'static str,
    created_at: &'static str,
    description: Option<String>,
    payload: Box<RawValue>,
    max_retries: u32,
    next_retry_at: Option<&'static str>,
    updated_at: &'static str,
    attempts: u32,
    priority: i16,
    lease: i64,
}

impl Shown {
    fn of(posted: Posted, status: &'static str) -> Self {
        Self {
            id: 1001,
            event_id: "0HZXEQ5Y8JY5Z",
            title: posted.title,
            tags: posted.tags,
            status,
            retry_count: 0,
            queue: "default",
            r#type: "event",
            created_at: NOW,
            description: posted.description,
            payload: posted.payload,
            max_retries: 3,
            next_retry_at: None,
            updated_at: NOW,
            attempts: 0,
            priority: 0,
            lease: 1,
        }
    }
}

async fn create(Json(posted): Json<Posted>) -> (StatusCode, Json<Shown>) {
    (StatusCode::CREATED, Json(Shown::of(posted, "PENDING")))
}

async fn subscribe(State(payload): State<Arc<RawValue>>, RawQuery(query): RawQuery) -> Result<Json<Shown>, StatusCode> {
    let query = query.unwrap_or_default();
    let field = |name: &str| query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
    let (Some((_, tags)), Some(_)) = (field("tags"), field("worker_id")) else {
        return Err(StatusCode::BAD_REQUEST);
    };
    let posted =
        Posted { title: "a title".into(), description: None, tags: tags.into(), payload: (*payload).to_owned() };
    Ok(Json(Shown::of(posted, "PROCESSING")))
}

#[derive(Debug, Deserialize)]
struct Report {
    worker_id: String,
    execution_time_ms: Option<i64>,
    status_code: Option<i32>,
}

#[derive(Debug, Serialize)]
struct Reported {
    event_id: i64,
    worker_id: String,
    action: &'static str,
    status_code: Option<i32>,
    execution_time_ms: Option<i64>,
    created_at: &'static str,
}

async fn complete(Path(id): Path<i64>, Json(report): Json<Report>) -> Json<Reported> {
    Json(Reported {
        event_id: id,
        worker_id: report.worker_id,
        action: "COMPLETED",
        status_code: report.status_code,
        execution_time_ms: report.execution_time_ms,
        created_at: NOW,
    })
}
