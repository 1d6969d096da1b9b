//! `tidegate sink`: a local receiver of webhooks. It verifies signatures, prints what it got, and can be told to fail, to delay
//! or to hang, so that retries and limits can be watched.

mod answers;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use serde_json::{Value, json};
use tidegate_dispatch::webhook::signature::{self, SignedHeaders, TOLERANCE, VerifyingSecret, verify};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore};

use crate::failure::Failure;
use crate::output::{self, shown};
use answers::{Failing, Plan};

/// The largest body that is read.
const MAX_BODY: usize = 16 << 20;
/// How much of a body is printed, in bytes.
const PRINTED: usize = 4_096;
/// The most connections at once.
const MAX_CONNECTIONS: usize = 1_024;
/// How long a client may take to send the headers of a request, and its body.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct SinkArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8081", value_name = "ADDR")]
    listen: SocketAddr,
    /// Secret that signatures are verified with; several with commas.
    #[arg(long, env = "TIDEGATE_SINK_SECRET", hide_env_values = true, value_name = "whsec_…", value_delimiter = ',')]
    secret: Vec<String>,
    /// File with such secrets, one per line.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Fail the first N webhooks, or N% of all.
    #[arg(long, value_name = "N|N%")]
    fail: Option<Failing>,
    /// The status of those that fail.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(300..=599), value_name = "STATUS")]
    fail_status: u16,
    /// Seconds to wait before each answer.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    delay: f64,
    /// Never answer.
    #[arg(long)]
    hang: bool,
    /// Stop after so many webhooks.
    #[arg(long)]
    count: Option<u64>,
    /// Print a line of JSON for each webhook.
    #[arg(long)]
    json: bool,
}

/// What all connections share.
struct Sink {
    secrets: Vec<VerifyingSecret>,
    plan: Plan,
    json: bool,
    count: Option<u64>,
    taken: AtomicU64,
    full: Notify,
}

/// Whether a webhook is what its sender signed.
enum Verdict {
    Verified,
    /// There is no secret to verify it with.
    NotVerified,
    Refused(String),
}

pub(crate) async fn run(args: SinkArgs) -> Result<(), Failure> {
    if !(0.0..=86_400.0).contains(&args.delay) {
        return Err("--delay must be 0 to 86400 seconds".into());
    }
    let plan = Plan {
        failing: args.fail,
        status: args.fail_status,
        delay: Duration::from_secs_f64(args.delay),
        hangs: args.hang,
    };
    let secrets = secrets(&args)?;
    let (taken, full) = (AtomicU64::new(0), Notify::new());
    let sink = Arc::new(Sink { secrets, plan, json: args.json, count: args.count, taken, full });
    let listener = TcpListener::bind(args.listen).await.map_err(|error| format!("{}: {error}", args.listen))?;
    eprintln!("tidegate: webhooks are taken at http://{}/", listener.local_addr()?);
    if sink.secrets.is_empty() {
        eprintln!("tidegate: without --secret or --secret-file no signature is verified");
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                // One more than allowed is closed at once.
                let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else { continue };
                let sink = Arc::clone(&sink);
                tasks.spawn(async move {
                    serve(stream, sink).await;
                    drop(permit);
                });
            }
            Some(_) = tasks.join_next() => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = sink.full.notified() => {
                // The last answer is still on its way.
                let _ = tokio::time::timeout(Duration::from_millis(200), async { while tasks.join_next().await.is_some() {} }).await;
                break;
            }
        }
    }
    tasks.shutdown().await;
    Ok(())
}

fn secrets(args: &SinkArgs) -> Result<Vec<VerifyingSecret>, Failure> {
    let mut texts = args.secret.clone();
    if let Some(file) = &args.secret_file {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        texts.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    }
    // Their errors do not show the secret.
    let read = |text: &String| {
        let secret = text.trim().parse::<VerifyingSecret>();
        secret.map_err(|error| Failure::from(format!("a secret: {error}")))
    };
    texts.iter().map(read).collect()
}

async fn serve(stream: TcpStream, sink: Arc<Sink>) {
    let service = service_fn(move |request| {
        let sink = Arc::clone(&sink);
        async move { Ok::<_, Infallible>(sink.answer(request).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(64 << 10);
    // A connection that breaks concerns its client alone.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

impl Sink {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = match tokio::time::timeout(PATIENCE, Limited::new(body, MAX_BODY).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return text(StatusCode::PAYLOAD_TOO_LARGE, "the body broke off, or is larger than 16 MiB"),
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the body took too long"),
        };
        let number = self.taken.fetch_add(1, Ordering::SeqCst) + 1;
        let verdict = self.verdict(&parts.headers, &body);
        let answered = match &verdict {
            Verdict::Refused(_) => StatusCode::UNAUTHORIZED.as_u16(),
            _ => self.plan.status(number),
        };
        self.print(parts.method.as_str(), &parts.uri.to_string(), &parts.headers, &body, &verdict, answered);
        if self.plan.hangs {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(self.plan.delay).await;
        if self.count.is_some_and(|count| number >= count) {
            self.full.notify_one();
        }
        let status = StatusCode::from_u16(answered).unwrap_or(StatusCode::OK);
        match verdict {
            Verdict::Refused(why) => text(status, &why),
            _ => text(status, ""),
        }
    }

    fn verdict(&self, headers: &HeaderMap, body: &[u8]) -> Verdict {
        let field =
            |name: &http::HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if self.secrets.is_empty() {
            return Verdict::NotVerified;
        }
        let signed = SignedHeaders {
            id: field(&signature::ID),
            timestamp: field(&signature::TIMESTAMP),
            signature: field(&signature::SIGNATURE),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match verify(&self.secrets, signed, body, now, TOLERANCE) {
            Ok(()) => Verdict::Verified,
            Err(error) => Verdict::Refused(error.to_string()),
        }
    }

    fn print(&self, method: &str, path: &str, headers: &HeaderMap, body: &[u8], verdict: &Verdict, answered: u16) {
        let field = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let printed = String::from_utf8_lossy(&body[..body.len().min(PRINTED)]);
        let event_type = field("ce-type").map(str::to_owned).or_else(|| {
            let envelope = serde_json::from_slice::<Value>(body).ok()?;
            envelope["type"].as_str().map(str::to_owned)
        });
        let (verified, why) = match verdict {
            Verdict::Verified => (Value::Bool(true), None),
            Verdict::NotVerified => (Value::Null, None),
            Verdict::Refused(why) => (Value::Bool(false), Some(why)),
        };
        if self.json {
            let line = json!({
                "receivedAt": Timestamp::now().to_string(), "method": method, "path": path,
                "webhookId": field("webhook-id"), "type": event_type, "contentType": field("content-type"),
                "traceparent": field("traceparent"), "verified": verified, "why": why, "answered": if self.plan.hangs { Value::Null } else { answered.into() },
                "bytes": body.len(), "body": printed,
            });
            return output::line(&line.to_string());
        }
        let verdict = match verdict {
            Verdict::Verified => "verified".to_owned(),
            Verdict::NotVerified => "not verified".to_owned(),
            Verdict::Refused(why) => format!("REFUSED: {why}"),
        };
        let answered = if self.plan.hangs { "no answer".to_owned() } else { answered.to_string() };
        let (id, event_type) = (field("webhook-id").unwrap_or("-"), event_type.unwrap_or_else(|| "-".into()));
        let line =
            format!("{answered}  {verdict}  {id}  {event_type}  {method} {path}  {} bytes  {printed}", body.len());
        output::line(&shown(&line));
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response
}
