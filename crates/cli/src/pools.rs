//! `tidegate pools`: lists and shows dispatch pools with what each holds and what waits for it.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::{Client, ServerArgs, all, path_part};
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
    Show {
        /// Code or id of the pool.
        pool: String,
        /// The client that it belongs to, if its code is that of several.
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(crate) async fn run(args: PoolsArgs) -> Result<(), Failure> {
    match args.command {
        PoolsCommand::List { client, server } => {
            let found = pools(&Client::new(&server)?, client).await?;
            if server.json { output::json(&found) } else { list(&found) }
        }
        PoolsCommand::Show { pool, client, server } => {
            let found = find(&Client::new(&server)?, &pool, client).await?;
            if server.json { output::json(&found) } else { show(&found) }
        }
    }
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
