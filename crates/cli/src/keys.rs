//! `tidegate keys`: works on the database directly, so that the first key can be made before any caller has one.

use clap::{Args, Subcommand};
use tidegate::Tsid;
use tidegate_server::{KeyInfo, Keyring, Scope};

use crate::failure::Failure;
use crate::output;
use crate::settings::{SettingsArgs, open};

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key. It is shown once.
    Create {
        /// Name of the key, for people.
        name: String,
        /// What it may do: publish, consume, read, manage (with read), admin (everything).
        #[arg(long, value_delimiter = ',', required = true, value_name = "SCOPE,…")]
        scopes: Vec<Scope>,
        /// The client it belongs to; all clients if absent.
        #[arg(long, value_name = "ID")]
        client: Option<Tsid>,
        /// When it becomes invalid, such as 2030-01-01T00:00:00Z; never if absent.
        #[arg(long, value_name = "MOMENT")]
        expires_at: Option<tidegate::Timestamp>,
    },
    /// List keys, without their secrets.
    List,
    /// Revoke a key.
    Revoke {
        /// Id of the key, as `list` shows it.
        id: i64,
    },
}

pub(crate) async fn run(args: KeysArgs) -> Result<(), Failure> {
    let queue = open(&args.settings.config()?).await?;
    let keys = Keyring::new(queue.clone());
    let done = act(&keys, args.command, args.json).await;
    queue.close().await;
    done
}

async fn act(keys: &Keyring, command: KeysCommand, json: bool) -> Result<(), Failure> {
    match command {
        KeysCommand::Create { name, scopes, client, expires_at } => {
            let key = keys.create_until(&name, &scopes, client, expires_at).await?;
            if json {
                return output::json(&serde_json::json!({ "key": key.secret, "info": key.info }));
            }
            output::line(&key.secret);
            eprintln!("key {} ({name}): store it now, it is not shown again", key.info.id);
        }
        KeysCommand::List => {
            let all = keys.list().await?;
            if json {
                return output::json(&all);
            }
            output::table(
                &["ID", "NAME", "SCOPES", "CLIENT", "CREATED", "LAST USED", "EXPIRES", "REVOKED"],
                all.iter().map(row).collect(),
            );
        }
        KeysCommand::Revoke { id } => {
            let key = keys.revoke(id).await?;
            if json {
                return output::json(&key);
            }
            output::line(&format!("key {id} ({}) is revoked", key.name));
        }
    }
    Ok(())
}

fn row(key: &KeyInfo) -> Vec<String> {
    let moment = |at: Option<tidegate::Timestamp>| at.map_or("-".into(), |at| at.to_string());
    vec![
        key.id.to_string(),
        key.name.clone(),
        key.scopes.join(","),
        key.client.map_or("-".into(), |client| client.to_string()),
        key.created_at.to_string(),
        moment(key.last_used_at),
        moment(key.expires_at),
        moment(key.revoked_at),
    ]
}
