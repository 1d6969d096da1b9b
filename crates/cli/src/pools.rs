//! `tidegate pools`: lists and shows dispatch pools with what each holds and what waits for it, suspends and resumes them, and
//! changes their limits.

use std::str::FromStr;

use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::client::{Client, ServerArgs, all, is_status, path_part};
use crate::failure::Failure;
use crate::output::{self, cell};

#[derive(Debug, Args)]
pub(crate) struct PoolsArgs {
    #[command(subcommand)]
    command: PoolsCommand,
}

#[derive(Debug, Subcommand)]
enum PoolsCommand {
    /// List pools with what each holds and what waits for it.
    List {
        /// Only pools of the client with this id.
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show a pool, and the slots that nodes hold.
    Show(Named),
    /// Suspend a pool: its jobs wait. Deliveries that are under way end as they do.
    Suspend(Named),
    /// Resume a suspended pool.
    Resume(Named),
    /// Change the limits of a pool. What is not said stays.
    Set {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        limits: Limits,
    },
}

/// A pool by its code or its id.
#[derive(Debug, Args)]
struct Named {
    /// Code or id of the pool.
    pool: String,
    /// The client that it belongs to, if its code is that of several.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// What a pool allows.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Limits {
    /// Deliveries at once, on all nodes together.
    #[arg(long, value_name = "COUNT")]
    concurrency: Option<u32>,
    /// Deliveries per minute, on all nodes together, or none.
    #[arg(long, value_name = "PER_MINUTE")]
    rate: Option<Rate>,
}

/// A limit per minute; `None` for none.
#[derive(Debug, Clone, Copy)]
struct Rate(Option<u32>);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|rate| Self(Some(rate))).map_err(|_| "must be a whole number, or none".to_owned()),
        }
    }
}

/// How often a change is made again on what another caller has written meanwhile.
const TRIES: usize = 5;
/// What is said about a pool and can be changed.
const FIELDS: [&str; 4] = ["name", "concurrency", "rateLimitPerMinute", "status"];

pub(crate) async fn run(args: PoolsArgs) -> Result<(), Failure> {
    match args.command {
        PoolsCommand::List { client, server } => {
            let found = pools(&Client::new(&server)?, client).await?;
            if server.json { output::json(&found) } else { list(&found) }
        }
        PoolsCommand::Show(Named { pool, client, server }) => {
            let found = find(&Client::new(&server)?, &pool, client).await?;
            if server.json { output::json(&found) } else { show(&found) }
        }
        PoolsCommand::Suspend(of) => {
            let changed = change(&of, json!({ "status": "SUSPENDED" })).await?;
            told(&of, &changed, "is suspended")
        }
        PoolsCommand::Resume(of) => {
            let changed = change(&of, json!({ "status": "ACTIVE" })).await?;
            told(&of, &changed, "is active")
        }
        PoolsCommand::Set { of, limits } => {
            let mut fields = Map::new();
            fields.extend(limits.concurrency.map(|count| ("concurrency".to_owned(), count.into())));
            fields.extend(limits.rate.map(|Rate(rate)| ("rateLimitPerMinute".to_owned(), json!(rate))));
            let changed = change(&of, Value::Object(fields)).await?;
            let rate = match changed["rateLimitPerMinute"].as_u64() {
                Some(rate) => format!("{rate} per minute"),
                None => "without a limit per minute".to_owned(),
            };
            told(&of, &changed, &format!("delivers {} at once, {rate}", cell(&changed, "concurrency")))
        }
    }
}

/// Changes some fields of a pool and leaves the others as they are, also where somebody else changes them at the same time.
async fn change(of: &Named, fields: Value) -> Result<Value, Failure> {
    let client = Client::new(&of.server)?;
    let found = find(&client, &of.pool, of.client.clone()).await?;
    let path = format!("/api/dispatch-pools/{}", path_part(&cell(&found, "id")));
    let mut tries = 0;
    loop {
        let (known, tag) = client.get_tagged(&path).await?;
        let of_pool = |name: &str| (name.to_owned(), fields.get(name).unwrap_or(&known[name]).clone());
        let body = Value::Object(FIELDS.into_iter().map(of_pool).collect());
        tries += 1;
        match client.send_tagged(Method::PUT, &path, Some(&body), tag.as_deref()).await {
            Err(lost) if tries < TRIES && is_status(&lost, StatusCode::PRECONDITION_FAILED) => {}
            changed => return Ok(changed?.0),
        }
    }
}

fn told(of: &Named, changed: &Value, what: &str) -> Result<(), Failure> {
    if of.server.json {
        return output::json(changed);
    }
    output::line(&output::shown(&format!("{} {what}", cell(changed, "code"))));
    Ok(())
}

async fn pools(client: &Client, of: Option<String>) -> Result<Vec<Value>, Failure> {
    let query: Vec<_> = of.into_iter().map(|id| ("clientId", id)).collect();
    all(client, "/api/dispatch-pools", &query).await
}

async fn find(client: &Client, named: &str, of: Option<String>) -> Result<Value, Failure> {
    // An id has 13 characters of Crockford's base 32; a code that looks like one is looked for as a code first.
    let mut found = pools(client, of).await?.into_iter().filter(|pool| pool["code"] == named);
    match (found.next(), found.next()) {
        (Some(found), None) => Ok(found),
        (Some(_), Some(_)) => {
            Err(format!("several clients have a pool {}: name one with --client", output::shown(named)).into())
        }
        (None, _) => client.get(&format!("/api/dispatch-pools/{}", path_part(named)), &[]).await,
    }
}

fn list(found: &[Value]) -> Result<(), Failure> {
    let row = |pool: &Value| {
        let holds = &pool["holds"];
        vec![
            cell(pool, "code"),
            cell(pool, "status"),
            format!("{}/{}", cell(holds, "inUse"), cell(pool, "concurrency")),
            cell(pool, "rateLimitPerMinute"),
            cell(holds, "waiting"),
            cell(holds, "oldestWaitingSeconds"),
            cell(pool, "clientId"),
            cell(pool, "id"),
        ]
    };
    let head = ["CODE", "STATUS", "IN USE", "PER MINUTE", "WAITING", "OLDEST S", "CLIENT", "ID"];
    output::table(&head, found.iter().map(row).collect());
    Ok(())
}

fn show(pool: &Value) -> Result<(), Failure> {
    let fields = |value: &Value, without: &str| -> Vec<Vec<String>> {
        let fields = value.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, value)| *name != without && !value.is_null());
        fields.map(|(name, _)| vec![name.clone(), cell(value, name)]).collect()
    };
    let mut rows = fields(pool, "holds");
    rows.extend(fields(&pool["holds"], "slots"));
    output::table(&["FIELD", "VALUE"], rows);
    if let Some(slots) = pool["holds"]["slots"].as_array().filter(|slots| !slots.is_empty()) {
        let columns = ["node", "slots", "wanted"];
        let rows = slots.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
        output::line("");
        output::table(&["NODE", "SLOTS", "WANTED"], rows);
    }
    Ok(())
}
