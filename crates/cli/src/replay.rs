//! `tidegate replay`: delivers stored events to a subscription once more. Each request does a bounded part; this repeats it until
//! the range is done. Stopped half-way, the same command goes on: nothing is made twice.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tidegate::Tsid;

use crate::client::{Client, is_status};
use crate::failure::Failure;
use crate::output;
use crate::subscriptions::Named;

/// How long to wait while the queue that the subscription sends to is full, or the server is busy.
const PAUSE: Duration = Duration::from_secs(2);
/// The length of the progress bar, in characters.
const BAR: usize = 30;

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    of: Named,
    /// Events accepted at this moment or later, such as 2030-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    from: Timestamp,
    /// Events accepted before this moment; now if absent.
    #[arg(long, value_name = "TIME")]
    to: Option<Timestamp>,
    /// A name that tells this replay from others of the same range: the same replay makes nothing twice.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Leave out events of which the subscription has a job already.
    #[arg(long)]
    missing_only: bool,
}

/// What all requests have done together.
#[derive(Debug, Default)]
struct Done {
    replayed: u64,
    repeated: u64,
    examined: u64,
}

pub(crate) async fn run(args: ReplayArgs) -> Result<(), Failure> {
    let client = Client::new(&args.of.server)?;
    let to = args.to.unwrap_or_else(Timestamp::now);
    let body = json!({
        "from": args.from.to_string(), "to": to.to_string(),
        "replayId": args.id, "missingOnly": args.missing_only,
    });
    let path = args.of.path(&client).await?;
    let done = replay(&client, &path, body).await?;
    if args.of.server.json {
        return output::json(&json!({
            "from": args.from.to_string(), "to": to.to_string(), "replayId": args.id,
            "replayed": done.replayed, "repeated": done.repeated, "examined": done.examined,
        }));
    }
    output::line(&format!("{} of {} events are replayed{}", done.replayed, done.examined, done.before()));
    if args.to.is_none() {
        eprintln!("the same replay again: --to {to}");
    }
    Ok(())
}

/// Repeats the request at a subscription's path until its range is done.
async fn replay(client: &Client, path: &str, mut body: Value) -> Result<Done, Failure> {
    let moment = |name: &str| body[name].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let range = moment("from").zip(moment("to"));
    // What has no name stays out of the request.
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let (mut done, mut bar) = (Done::default(), Bar::new(range));
    loop {
        let answer = match client.post(&format!("{path}/replay"), &body).await {
            Err(error) if is_full(&error) => {
                bar.say(&format!("{error}; trying again"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            answer => answer?,
        };
        done.add(&answer);
        match answer["nextCursor"].as_str() {
            Some(cursor) => {
                bar.show(cursor, &done);
                body["cursor"] = cursor.into();
            }
            None => {
                bar.end();
                return Ok(done);
            }
        }
    }
}

/// Replays the rest of what a request has begun, as its answer tells it.
pub(crate) async fn go_on(client: &Client, path: &str, begun: &Value) -> Result<(u64, u64), Failure> {
    let mut done = Done::default();
    done.add(begun);
    if let Some(cursor) = begun["nextCursor"].as_str() {
        let body = json!({
            "from": begun["from"], "to": begun["to"], "replayId": begun["replayId"],
            "missingOnly": begun["missingOnly"], "cursor": cursor,
        });
        let rest = replay(client, path, body).await?;
        (done.replayed, done.examined) = (done.replayed + rest.replayed, done.examined + rest.examined);
    }
    Ok((done.replayed, done.examined))
}

fn is_full(error: &Failure) -> bool {
    is_status(error, StatusCode::TOO_MANY_REQUESTS) || is_status(error, StatusCode::SERVICE_UNAVAILABLE)
}

impl Done {
    fn add(&mut self, answer: &Value) {
        let count = |name: &str| answer[name].as_u64().unwrap_or_default();
        self.replayed += count("replayed");
        self.repeated += count("repeated");
        self.examined += count("examined");
    }

    fn before(&self) -> String {
        match self.repeated {
            0 => String::new(),
            before => format!("; {before} had been replayed before"),
        }
    }
}

/// How far a replay has come, on a terminal.
struct Bar {
    range: Option<(Timestamp, Timestamp)>,
    is_shown: bool,
}

impl Bar {
    fn new(range: Option<(Timestamp, Timestamp)>) -> Self {
        Self { range, is_shown: std::io::stderr().is_terminal() }
    }

    /// Shows where the next request goes on: a cursor tells when its event was accepted.
    fn show(&self, cursor: &str, done: &Done) {
        if !self.is_shown {
            return;
        }
        let share = self.share(cursor);
        let full = (share * BAR as f64) as usize;
        let bar: String = (0..BAR).map(|at| if at < full { '#' } else { '.' }).collect();
        eprint!("\r[{bar}] {:3.0} %  {} replayed", share * 100.0, done.replayed);
        let _ = std::io::stderr().flush();
    }

    fn share(&self, cursor: &str) -> f64 {
        let (Some((from, to)), Ok(at)) = (self.range, cursor.parse::<Tsid>()) else { return 0.0 };
        let (from, to) = (from.as_millisecond(), to.as_millisecond());
        let share = (at.unix_ms() - from) as f64 / (to - from).max(1) as f64;
        share.clamp(0.0, 1.0)
    }

    fn say(&mut self, text: &str) {
        self.end();
        eprintln!("tidegate: {text}");
    }

    fn end(&self) {
        if self.is_shown {
            eprint!("\r{}\r", " ".repeat(BAR + 40));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_by_the_moment_in_a_cursor() {
        let at = |ms: i64| Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap();
        let bar = Bar { range: Some((at(0), at(1_000))), is_shown: false };
        let cursor = |ms: i64| Tsid::from_parts(1_700_000_000_000 + ms, 7).to_string();
        assert_eq!((bar.share(&cursor(250)), bar.share(&cursor(5_000)), bar.share("x")), (0.25, 1.0, 0.0));
    }
}
