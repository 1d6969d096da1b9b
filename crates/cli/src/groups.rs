//! `tidegate groups`: lists message groups in which nothing is delivered.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, ServerArgs, all};
use crate::failure::Failure;
use crate::output::{self, cell};

/// List message groups that a failed job blocks: which job, since when, why, and how many wait.
#[derive(Debug, Args)]
pub(crate) struct GroupsArgs {
    /// Only groups of the client with this id.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: GroupsArgs) -> Result<(), Failure> {
    let mut query = vec![("blocked", "true".to_owned())];
    query.extend(args.client.map(|id| ("clientId", id)));
    let found = all(&Client::new(&args.server)?, "/api/dispatch-groups", &query).await?;
    if args.server.json {
        return output::json(&found);
    }
    let row = |group: &Value| {
        let job = cell(&group["blockedBy"], "id");
        vec![
            cell(group, "messageGroup"),
            job,
            cell(group, "blockedSince"),
            cell(group, "waiting"),
            cell(group, "reason"),
        ]
    };
    output::table(&["GROUP", "BLOCKED BY", "SINCE", "WAITING", "WHY"], found.iter().map(row).collect());
    Ok(())
}
