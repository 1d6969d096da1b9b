//! `tidegate listen`: events are forwarded to a local address as signed webhooks, for as long as it runs.
//!
//! A subscription, made for this run and deleted at its end, sends events to a queue; the worker API hands them out and keeps
//! them until they are forwarded. The queue's name is reused: `listen.1` is that of the first one who listens, and so on.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use jiff::Timestamp;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_core::cloud_event::{CloudEvent, Message, STRUCTURED};
use tidegate_dispatch::webhook::signature::{SigningSecret, sign};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{Client, ServerArgs, is_status, path_part};
use crate::failure::Failure;
use crate::output::{self, cell, shown};
use crate::replay;

/// Seconds that one claim waits for an event.
const WAIT: u64 = 20;
/// Seconds for which an event is leased: longer than a receiver may take.
const LEASE: u64 = 60;
/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often an event is tried again, and after how many milliseconds.
const RETRIES: (u32, u64) = (1_000, 2_000);
/// How long an event waits for a receiver that fails, in seconds.
const MAX_AGE: u32 = 3_600;
/// How many can listen at once.
const MAX_LISTENERS: u32 = 100;
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct ListenArgs {
    /// Where webhooks are sent, such as http://127.0.0.1:3000/hook.
    #[arg(long, value_name = "URL")]
    forward_to: Url,
    /// The types to forward: codes, registered or not, with * for any part; all if absent.
    #[arg(long = "type", value_name = "PATTERN")]
    types: Vec<String>,
    /// Forward events first that were accepted since this moment.
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Send the whole event as a CloudEvent, instead of its data with the attributes in headers.
    #[arg(long)]
    envelope: bool,
    /// Secret to sign with; a new one, which is shown, if absent.
    #[arg(long, env = "TIDEGATE_SINK_SECRET", hide_env_values = true, value_name = "whsec_…")]
    secret: Option<String>,
    /// The client whose events are forwarded.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// An event that was claimed.
#[derive(Debug, Deserialize)]
struct Claimed {
    id: i64,
    event_id: String,
    lease: i64,
    attempts: u32,
    payload: Option<Box<RawValue>>,
}

struct Listener {
    args: ListenArgs,
    client: Client,
    http: reqwest::Client,
    secret: SigningSecret,
    /// The name of the queue, and the code of the subscription.
    name: String,
    /// The path of the subscription.
    path: String,
    worker: String,
}

pub(crate) async fn run(args: ListenArgs) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let http =
        reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none()).no_proxy().build()?;
    let text = match &args.secret {
        Some(secret) => secret.clone(),
        None => {
            let secret = tidegate_dispatch::new_signing_secret();
            eprintln!("tidegate: webhooks are signed with {}", secret.shown());
            secret.shown().to_owned()
        }
    };
    let secret = text.trim().parse::<SigningSecret>().map_err(|error| format!("--secret: {error}"))?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (name, path) = subscribe(&client, &args).await?;
    let worker = format!("listen:{}", std::process::id());
    let listener = Listener { args, client, http, secret, name, path, worker };
    eprintln!("tidegate: events are forwarded to {}; Ctrl-C ends that", listener.args.forward_to);
    let ended = tokio::select! {
        ended = listener.listen() => ended,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    let removed = listener.remove().await;
    ended.and(removed)
}

/// Makes the subscription and its queue under the first name that nobody else has.
async fn subscribe(client: &Client, args: &ListenArgs) -> Result<(String, String), Failure> {
    let types: Vec<String> = match args.types.is_empty() {
        true => ["*", "*:*", "*:*:*", "*:*:*:*"].map(str::to_owned).to_vec(),
        false => args.types.clone(),
    };
    let types: Vec<Value> = types.iter().map(|code| json!({ "eventTypeCode": code })).collect();
    let of = args.client.as_deref().map(|id| format!("?client={}", path_part(id))).unwrap_or_default();
    for number in 1..=MAX_LISTENERS {
        let name = format!("listen.{number}");
        let (retries, delay_ms) = RETRIES;
        let queue = json!({ "max_retries": retries, "retry": { "kind": "fixed", "delay_ms": delay_ms } });
        client.put(&format!("/queues/{name}{of}"), &queue).await?;
        let mut body = json!({
            "code": name, "name": "tidegate listen", "target": format!("queue:{name}"), "eventTypes": types,
            "description": "Made by `tidegate listen` for as long as that runs.",
            "dataOnly": false, "maxAgeSeconds": MAX_AGE,
        });
        if let Some(client) = &args.client {
            body["clientId"] = client.as_str().into();
        }
        match client.post("/api/subscriptions", &body).await {
            Ok(made) => return Ok((name, format!("/api/subscriptions/{}", cell(&made, "id")))),
            // Somebody else listens under it, or was killed: `tidegate subscriptions list` shows them.
            Err(error) if is_status(&error, StatusCode::CONFLICT) => {}
            Err(error) => return Err(error),
        }
    }
    Err(format!("{MAX_LISTENERS} listen already: delete subscriptions named listen.… that nobody needs").into())
}

impl Listener {
    async fn listen(&self) -> Result<(), Failure> {
        // What an earlier run has left is not for this one.
        self.clear().await?;
        let since = async {
            match self.args.since {
                Some(from) => self.replay(from).await,
                None => Ok(()),
            }
        };
        // Until the process is told to end, or something fails for good.
        tokio::try_join!(since, self.forward_all()).map(|((), ())| ())
    }

    async fn forward_all(&self) -> Result<(), Failure> {
        loop {
            match self.claim(WAIT).await {
                Ok(Some(event)) => self.forward(&event).await?,
                Ok(None) => {}
                Err(error) => self.pause(error).await?,
            }
        }
    }

    /// Waits after an error of the server that may pass.
    async fn pause(&self, error: Failure) -> Result<(), Failure> {
        let is_mine =
            error.downcast_ref::<crate::client::Refused>().is_some_and(|refused| refused.status.is_client_error());
        if is_mine && !is_status(&error, StatusCode::TOO_MANY_REQUESTS) {
            return Err(error);
        }
        eprintln!("tidegate: {error}; trying again");
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// Has the server put past events into the queue.
    async fn replay(&self, from: Timestamp) -> Result<(), Failure> {
        let body = json!({ "from": from.to_string(), "to": Timestamp::now().to_string() });
        let begun = self.client.post(&format!("{}/replay", self.path), &body).await?;
        let (replayed, _) = replay::go_on(&self.client, &self.path, &begun).await?;
        eprintln!("tidegate: {replayed} past events are forwarded");
        Ok(())
    }

    async fn claim(&self, wait: u64) -> Result<Option<Claimed>, Failure> {
        let mut query = vec![
            ("queue", self.name.clone()),
            ("worker_id", self.worker.clone()),
            ("wait", wait.to_string()),
            ("lease_seconds", LEASE.to_string()),
        ];
        query.extend(self.args.client.iter().map(|id| ("client", id.clone())));
        let answer = self.client.get_text("/events/subscribe", &query).await?;
        Ok(answer.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    /// Sends an event, tells what came of it, and reports that: the queue hands out again what failed.
    async fn forward(&self, claimed: &Claimed) -> Result<(), Failure> {
        let (event_type, outcome) = match self.send(claimed).await {
            Ok((event_type, status)) => (event_type, Ok(status)),
            Err(error) => ("-".to_owned(), Err(error.to_string())),
        };
        let is_done = outcome.as_ref().is_ok_and(|status| status.is_success());
        let told = match &outcome {
            Ok(status) => status.as_u16().to_string(),
            Err(error) => error.clone(),
        };
        self.tell(claimed, &event_type, &outcome, &told);
        let mut report = json!({ "worker_id": self.worker, "lease": claimed.lease });
        let verb = if is_done { "complete" } else { "fail" };
        if !is_done {
            report["error_message"] = told.into();
        }
        match self.client.post(&format!("/events/{}/{verb}", claimed.id), &report).await {
            Ok(_) => Ok(()),
            // The lease is lost, or no retry is left: the queue goes on without this one.
            Err(error) if error.is::<crate::client::Refused>() => {
                eprintln!("tidegate: event {}: {error}", claimed.event_id);
                Ok(())
            }
            Err(error) => self.pause(error).await,
        }
    }

    async fn send(&self, claimed: &Claimed) -> Result<(String, StatusCode), Failure> {
        let body = claimed.payload.as_ref().map_or("null", |payload| payload.get());
        let body = Bytes::from(body.to_owned());
        let event = CloudEvent::from_structured(&body).map_err(|error| error.to_string())?;
        let own: Tsid = claimed.event_id.parse().map_err(|_| "the server gave an id that is none")?;
        let mut message = match self.args.envelope {
            true => Message { headers: vec![("content-type".into(), STRUCTURED.into())], body },
            false => event.to_binary(own),
        };
        let traces = [("traceparent", &event.traceparent), ("tracestate", &event.tracestate)];
        message.headers.extend(traces.into_iter().filter_map(|(name, value)| Some((name.into(), value.clone()?))));
        let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        // The same for every attempt, as a job's.
        let id = format!("listen_{}", claimed.id);
        let secrets = std::slice::from_ref(&self.secret);
        let signed = sign(secrets, &id, now, &message.body).map_err(|error| error.to_string())?;
        let mut request = self.http.post(self.args.forward_to.clone());
        for (name, value) in &message.headers {
            request = request.header(&**name, value);
        }
        for (name, value) in signed {
            request = request.header(name, value);
        }
        let answer = request.body(message.body).send().await;
        let answer = answer.map_err(|error| output::with_cause(&error.without_url()))?;
        Ok((event.event_type, answer.status()))
    }

    fn tell(&self, claimed: &Claimed, event_type: &str, outcome: &Result<StatusCode, String>, told: &str) {
        if self.args.server.json {
            let status = outcome.as_ref().ok().map(StatusCode::as_u16);
            let line = json!({
                "eventId": claimed.event_id, "type": event_type, "attempt": claimed.attempts, "status": status,
                "error": outcome.as_ref().err(),
            });
            return output::line(&line.to_string());
        }
        let attempt = if claimed.attempts > 1 { format!("  attempt {}", claimed.attempts) } else { String::new() };
        output::line(&shown(&format!("{told}  {}  {event_type}{attempt}", claimed.event_id)));
    }

    /// Takes what is left in the queue out of it.
    async fn clear(&self) -> Result<(), Failure> {
        while let Some(left) = self.claim(0).await? {
            let report = json!({ "worker_id": self.worker, "lease": left.lease });
            self.client.post(&format!("/events/{}/complete", left.id), &report).await?;
        }
        Ok(())
    }

    /// Deletes the subscription, and leaves nothing that can be claimed in the queue. What waits for a retry expires.
    async fn remove(&self) -> Result<(), Failure> {
        self.client.delete(&self.path).await?;
        self.clear().await
    }
}
