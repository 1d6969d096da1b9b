//! `tidegate projections`.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::Failure;
use crate::client::{Client, ServerArgs, path_part};
use crate::output::{self, cell};

#[derive(Debug, Args)]
pub(crate) struct ProjectionsArgs {
    #[command(subcommand)]
    command: ProjectionsCommand,
}

#[derive(Debug, Subcommand)]
enum ProjectionsCommand {
    /// List projections with how far they have read.
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a projection with its documents: it then holds no row of the log back.
    Remove {
        /// Its name.
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
