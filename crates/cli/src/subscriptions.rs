//! `tidegate subscriptions`: standing rules that send events to queues and webhooks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::accounts::Rotation;
use crate::client::{Client, ServerArgs, all, path_part};
use crate::exact;
use crate::failure::Failure;
use crate::files::read_json;
use crate::output::{self, cell, shown};
use crate::replay;

#[derive(Debug, Args)]
pub(crate) struct SubscriptionsArgs {
    #[command(subcommand)]
    command: SubscriptionsCommand,
}

#[derive(Debug, Subcommand)]
enum SubscriptionsCommand {
    /// List subscriptions.
    List {
        /// Only those of this client.
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show a subscription.
    Show(Named),
    /// Create a subscription. Its signing secret is shown this once.
    Create(CreateArgs),
    /// Change a subscription to what a file says.
    Change {
        #[command(flatten)]
        of: Named,
        /// The subscription as JSON; - for standard input.
        file: PathBuf,
    },
    /// Pause a subscription: nothing is made for it from the next event on.
    Pause(Named),
    /// Resume a paused subscription.
    Resume {
        #[command(flatten)]
        of: Named,
        /// Replay what came while it was paused.
        #[arg(long)]
        replay: bool,
    },
    /// Send a test event to a subscription, and show what came of the first attempt.
    Test {
        #[command(flatten)]
        of: Named,
        /// Seconds to wait for the first attempt.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=60))]
        wait: u64,
    },
    /// Give a subscription a new signing secret, which is shown this once.
    RotateSecret {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        how: Rotation,
    },
    /// Delete a subscription.
    Delete(Named),
    /// Show which of the last events a subscription would have taken.
    Preview {
        #[command(flatten)]
        of: Named,
        /// Maximum number of events.
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
}

/// A subscription by its code or its id.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Code or id of the subscription.
    #[arg(value_name = "SUBSCRIPTION")]
    named: String,
    /// The client that it belongs to, if its code is that of several.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Its code, unique per client.
    code: String,
    /// The types it asks for: codes, registered or not, with * for any part.
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file")]
    types: Vec<String>,
    /// Where events go: queue:NAME or https://….
    #[arg(long, required_unless_present = "file")]
    target: Option<String>,
    /// A name for people; the code if absent.
    #[arg(long)]
    name: Option<String>,
    /// Which of those events it wants, as JSON: an expression or an array of them.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// The client that it belongs to.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// All other fields, as JSON; - for standard input.
    #[arg(long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: SubscriptionsArgs) -> Result<(), Failure> {
    match args.command {
        SubscriptionsCommand::List { client, server } => list(client, &server).await,
        SubscriptionsCommand::Show(of) => {
            let found = of.find(&Client::new(&of.server)?).await?;
            if of.server.json { output::json(&found) } else { show(&found) }
        }
        SubscriptionsCommand::Create(args) => create(args).await,
        SubscriptionsCommand::Change { of, file } => {
            let client = Client::new(&of.server)?;
            let path = of.path(&client).await?;
            let changed = client.put(&path, &read_json(&file)?).await?;
            said(&of.server, &changed, "changed")
        }
        SubscriptionsCommand::Pause(of) => act(&of, "pause", "paused").await,
        SubscriptionsCommand::Resume { of, replay: false } => act(&of, "resume", "resumed").await,
        SubscriptionsCommand::Resume { of, replay: true } => resume(&of).await,
        SubscriptionsCommand::Test { of, wait } => test(&of, wait).await,
        SubscriptionsCommand::RotateSecret { of, how } => {
            let client = Client::new(&of.server)?;
            how.run(&client, &of.path(&client).await?, &of.server).await
        }
        SubscriptionsCommand::Delete(of) => {
            let client = Client::new(&of.server)?;
            client.delete(&of.path(&client).await?).await?;
            output::line(&shown(&format!("{} is deleted", of.named)));
            Ok(())
        }
        SubscriptionsCommand::Preview { of, limit } => preview(&of, limit).await,
    }
}

impl Named {
    async fn find(&self, client: &Client) -> Result<Value, Failure> {
        // An id has 13 characters of Crockford's base 32; a code that looks like one is looked for as a code first.
        let query: Vec<_> = self.client.iter().map(|id| ("clientId", id.clone())).collect();
        let found = all(client, "/api/subscriptions", &query).await?;
        let mut named = found.into_iter().filter(|one| one["code"] == self.named.as_str());
        match (named.next(), named.next()) {
            (Some(found), None) => Ok(found),
            (Some(_), Some(_)) => {
                Err(format!("several clients have a subscription {}: name one with --client", shown(&self.named))
                    .into())
            }
            (None, _) => client.get(&format!("/api/subscriptions/{}", path_part(&self.named)), &[]).await,
        }
    }

    /// The path of the subscription.
    pub(crate) async fn path(&self, client: &Client) -> Result<String, Failure> {
        Ok(format!("/api/subscriptions/{}", cell(&self.find(client).await?, "id")))
    }
}

async fn list(of: Option<String>, server: &ServerArgs) -> Result<(), Failure> {
    let query: Vec<_> = of.into_iter().map(|id| ("clientId", id)).collect();
    let found = all(&Client::new(server)?, "/api/subscriptions", &query).await?;
    if server.json {
        return output::json(&found);
    }
    let columns = ["code", "status", "target", "mode", "clientId", "id"];
    let row = |one: &Value| {
        let mut row: Vec<String> = columns.iter().map(|column| cell(one, column)).collect();
        row.insert(2, types_of(one));
        row
    };
    let rows = found.iter().map(row).collect();
    output::table(&["CODE", "STATUS", "TYPES", "TARGET", "MODE", "CLIENT", "ID"], rows);
    Ok(())
}

fn types_of(subscription: &Value) -> String {
    let bindings = subscription["eventTypes"].as_array().into_iter().flatten();
    let one = |binding: &Value| match binding["specVersion"].as_str() {
        Some(version) => format!("{} {version}", cell(binding, "eventTypeCode")),
        None => cell(binding, "eventTypeCode"),
    };
    bindings.map(one).collect::<Vec<_>>().join(", ")
}

fn show(found: &Value) -> Result<(), Failure> {
    for (name, value) in found.as_object().into_iter().flatten() {
        let text = if name == "eventTypes" { types_of(found) } else { cell(&json!({ "value": value }), "value") };
        output::line(&shown(&format!("{name:<18} {text}")));
    }
    Ok(())
}

async fn create(args: CreateArgs) -> Result<(), Failure> {
    let mut body = match &args.file {
        Some(file) => read_json(file)?,
        None => json!({}),
    };
    let fields = body.as_object_mut().ok_or("the file must hold a JSON object")?;
    fields.insert("code".into(), args.code.clone().into());
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.into(), value);
        }
    };
    let types: Vec<Value> = args.types.iter().map(|code| json!({ "eventTypeCode": code })).collect();
    set("eventTypes", Some(types.into()).filter(|_| !args.types.is_empty()));
    set("target", args.target.map(Value::from));
    set("name", args.name.map(Value::from));
    set("clientId", args.client.map(Value::from));
    let filter = args.filter.as_deref().map(exact::from_str).transpose();
    set("filter", filter.map_err(|error| format!("--filter is not JSON: {error}"))?);
    fields.entry("name").or_insert_with(|| args.code.into());
    let made = Client::new(&args.server)?.post("/api/subscriptions", &body).await?;
    if args.server.json {
        return output::json(&made);
    }
    output::line(&cell(&made, "signingSecret"));
    let text =
        format!("{} is created: {}; above is its signing secret: store it now", cell(&made, "code"), cell(&made, "id"));
    eprintln!("{}", shown(&text));
    Ok(())
}

async fn act(of: &Named, verb: &str, done: &str) -> Result<(), Failure> {
    let client = Client::new(&of.server)?;
    let answer = client.post(&format!("{}/{verb}", of.path(&client).await?), &json!({})).await?;
    said(&of.server, &answer, done)
}

fn said(server: &ServerArgs, answer: &Value, done: &str) -> Result<(), Failure> {
    if server.json {
        return output::json(answer);
    }
    output::line(&shown(&format!("{} is {done}", cell(answer, "code"))));
    Ok(())
}

/// Resumes a subscription and replays what came meanwhile, to the end.
async fn resume(of: &Named) -> Result<(), Failure> {
    let client = Client::new(&of.server)?;
    let path = of.path(&client).await?;
    let answer = client.post(&format!("{path}/resume"), &json!({ "replay": true })).await?;
    let (replayed, examined) = replay::go_on(&client, &path, &answer["replay"]).await?;
    if of.server.json {
        return output::json(&json!({ "subscription": answer, "replayed": replayed, "examined": examined }));
    }
    let text = format!("{} is resumed; {replayed} events are replayed", cell(&answer, "code"));
    output::line(&shown(&text));
    Ok(())
}

/// Sends a test event. The command fails if the attempt did.
async fn test(of: &Named, wait: u64) -> Result<(), Failure> {
    let client = Client::new(&of.server)?;
    let path = format!("{}/test?wait={wait}", of.path(&client).await?);
    let answer = client.post(&path, &json!({})).await?;
    let attempt = &answer["attempt"];
    if of.server.json {
        output::json(&answer)?;
    } else {
        let outcome = match (attempt["status"].as_str(), answer["entryId"].as_i64()) {
            (Some(status), _) => {
                let [took, code, error] =
                    ["durationMillis", "responseCode", "errorMessage"].map(|name| cell(attempt, name));
                format!("{status}, {took} ms, answer {code} {error}")
            }
            (None, Some(entry)) => format!("entry {entry}"),
            (None, None) if attempt.is_object() => "an attempt was made, but this server cannot read it".to_owned(),
            (None, None) => format!("job {}: no attempt within {wait} seconds", cell(&answer, "id")),
        };
        output::line(&shown(&outcome));
    }
    match attempt["status"].as_str() {
        Some(status) if status != "SUCCESS" => Err("the test event was not taken".into()),
        _ => Ok(()),
    }
}

async fn preview(of: &Named, limit: u32) -> Result<(), Failure> {
    let client = Client::new(&of.server)?;
    let path = format!("{}/preview?limit={limit}", of.path(&client).await?);
    let answer = client.post(&path, &json!({})).await?;
    if of.server.json {
        return output::json(&answer);
    }
    let columns = ["id", "type", "subject", "createdAt"];
    let rows = answer["items"].as_array().into_iter().flatten();
    let rows = rows.map(|event| columns.iter().map(|column| cell(event, column)).collect()).collect();
    output::table(&["ID", "TYPE", "SUBJECT", "STORED"], rows);
    Ok(())
}
