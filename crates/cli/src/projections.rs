//! `tidegate projections`: lists and removes projections.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::{Client, ServerArgs, path_part};
use crate::failure::Failure;
use crate::output::{self, cell};

#[derive(Debug, Args)]
pub(crate) struct ProjectionsArgs {
    #[command(subcommand)]
    command: ProjectionsCommand,
}

#[derive(Debug, Subcommand)]
enum ProjectionsCommand {
    /// List projections with their positions.
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a projection and its documents. Retention then no longer keeps log rows for it.
    Remove {
        /// Name of the projection.
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(crate) async fn run(args: ProjectionsArgs) -> Result<(), Failure> {
    match args.command {
        ProjectionsCommand::List { server } => list(&server).await,
        ProjectionsCommand::Remove { name, server } => {
            Client::new(&server)?.delete(&format!("/projections/{}", path_part(&name))).await?;
            if server.json {
                return output::json(&serde_json::json!({ "name": name, "removed": true }));
            }
            output::line(&format!("{} is removed", output::shown(&name)));
            Ok(())
        }
    }
}

async fn list(server: &ServerArgs) -> Result<(), Failure> {
    let answer = Client::new(server)?.get("/projections", &[]).await?;
    let projections = answer["projections"].as_array().cloned().unwrap_or_default();
    if server.json {
        return output::json(&projections);
    }
    let row = |one: &Value| {
        let state = if one["stopped"] == true { "stopped".into() } else { cell(one, "state") };
        vec![cell(one, "name"), cell(one, "version"), state, cell(one, "events"), cell(&one["lag"], "rows")]
    };
    output::table(&["NAME", "VERSION", "STATE", "EVENTS", "BEHIND"], projections.iter().map(row).collect());
    Ok(())
}
