//! `tidegate clients`: tenants.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, ServerArgs, all, path_part};
use crate::failure::Failure;
use crate::output::{self, cell, shown};

#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    #[command(subcommand)]
    command: ClientsCommand,
}

#[derive(Debug, Subcommand)]
enum ClientsCommand {
    /// List clients.
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Create a client.
    Create {
        /// Its code; it never changes.
        code: String,
        /// A name for people; the code if absent.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete a client that has no subscriptions and no keys that are not revoked.
    Delete {
        /// Code or id of the client.
        client: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(crate) async fn run(args: ClientsArgs) -> Result<(), Failure> {
    match args.command {
        ClientsCommand::List { server } => {
            let found = all(&Client::new(&server)?, "/api/clients", &[]).await?;
            if server.json {
                return output::json(&found);
            }
            let columns = ["code", "name", "id", "createdAt"];
            let rows = found.iter().map(|one| columns.iter().map(|column| cell(one, column)).collect()).collect();
            output::table(&["CODE", "NAME", "ID", "CREATED"], rows);
            Ok(())
        }
        ClientsCommand::Create { code, name, server } => {
            let body = json!({ "code": code, "name": name.as_deref().unwrap_or(&code) });
            let made = Client::new(&server)?.post("/api/clients", &body).await?;
            said(&server, &made, &format!("{} is created: {}", cell(&made, "code"), cell(&made, "id")))
        }
        ClientsCommand::Delete { client: named, server } => {
            let client = Client::new(&server)?;
            let found = all(&client, "/api/clients", &[]).await?;
            let id = found.iter().find(|one| one["code"] == named.as_str()).map(|one| cell(one, "id"));
            client.delete(&format!("/api/clients/{}", path_part(id.as_ref().unwrap_or(&named)))).await?;
            output::line(&shown(&format!("{named} is deleted")));
            Ok(())
        }
    }
}

fn said(server: &ServerArgs, answer: &Value, text: &str) -> Result<(), Failure> {
    if server.json {
        return output::json(answer);
    }
    output::line(&shown(text));
    Ok(())
}
