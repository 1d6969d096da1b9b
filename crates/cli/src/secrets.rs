//! `tidegate secrets`: the keys that encrypt secrets in the database. It works on the database directly, beside running servers.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use tidegate_dispatch::secrets::{SecretKey, add_key, write_new_key};
use tidegate_dispatch::{Gateway, KeyUse, RotationProgress};

use crate::config::Config;
use crate::failure::Failure;
use crate::output;
use crate::settings::{SettingsArgs, open};

#[derive(Debug, Args)]
pub(crate) struct SecretsArgs {
    #[command(subcommand)]
    command: SecretsCommand,
}

#[derive(Debug, Subcommand)]
enum SecretsCommand {
    /// Make a key, and print it or write it to a file.
    NewKey {
        /// A new file to write it to, which only its owner can read.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Put it before the keys that the file has: it encrypts from now on, and they still decrypt.
        #[arg(long, requires = "file")]
        add: bool,
    },
    /// Encrypt all secrets with the first key. Servers may run meanwhile; it may be stopped and started again.
    Rotate {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(args: SecretsArgs) -> Result<(), Failure> {
    match args.command {
        SecretsCommand::NewKey { file, add } => new_key(file, add),
        SecretsCommand::Rotate { settings, json } => {
            let config = settings.config()?;
            let queue = open(&config).await?;
            let gateway = Gateway::new(queue.clone(), config.options.gateway.clone());
            let done = rotate(&gateway, &config, json).await;
            queue.close().await;
            done
        }
    }
}

fn new_key(file: Option<PathBuf>, add: bool) -> Result<(), Failure> {
    let key = SecretKey::random();
    let Some(file) = file else {
        output::line(&key.text());
        eprintln!(
            "key {}: store it now, in secrets.key or a file; what it encrypts cannot be read without it",
            key.id()
        );
        return Ok(());
    };
    let written = if add { add_key(&file, &key) } else { write_new_key(&file, &key) };
    written.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AlreadyExists => ": --add puts a key before those that it has",
            _ => "",
        };
        format!("{} cannot be written: {error}{hint}", file.display())
    })?;
    eprintln!("key {} is in {}: keep a copy, what it encrypts cannot be read without it", key.id(), file.display());
    Ok(())
}

async fn rotate(gateway: &Gateway, config: &Config, json: bool) -> Result<(), Failure> {
    config.options.gateway.secrets.check().map_err(|why| format!("secrets.key_file: {why}"))?;
    let shows = std::io::stderr().is_terminal() && !json;
    let done = gateway.rotate_secrets(|progress| show(shows, progress)).await?;
    if shows {
        eprintln!();
    }
    let uses = gateway.key_uses().await?;
    if json {
        let used: Vec<_> = uses.iter().map(|one| serde_json::json!({
            "key": one.key.as_ref().map(ToString::to_string), "secrets": one.secrets, "unreadable": one.unreadable,
        })).collect();
        output::json(&serde_json::json!({
            "seen": done.seen, "changed": done.changed, "unreadable": done.unreadable, "keys": used,
        }))?;
    } else {
        output::line(&format!("{} of {} secrets were encrypted anew", done.changed, done.seen));
        uses.iter().for_each(|one| output::line(&said(one)));
    }
    if done.unreadable > 0 {
        return Err(format!(
            "{} secrets cannot be read here: add their keys to secrets.old_keys or secrets.key_file, and rotate again",
            done.unreadable
        )
        .into());
    }
    if !json {
        match uses.len() {
            0 | 1 => output::line(
                "no other key is used any more: older ones can be removed, first from the settings of all servers",
            ),
            _ => output::line(
                "servers still write with another key: make this one the first on all of them, and rotate again",
            ),
        }
    }
    Ok(())
}

fn show(shows: bool, progress: RotationProgress) {
    if shows {
        let _ = write!(std::io::stderr(), "\r{} secrets looked at, {} encrypted anew", progress.seen, progress.changed);
    }
}

fn said(one: &KeyUse) -> String {
    let what = match &one.key {
        Some(key) => format!("with the key {key}"),
        None => "in plain text".to_owned(),
    };
    match one.unreadable {
        0 => format!("{} are {what}", one.secrets),
        some => format!("{} are {what}, {some} of them cannot be read here", one.secrets),
    }
}
