//! Flags for settings, `tidegate config`, `tidegate migrate`, and opening the database.

use std::path::{Path, PathBuf};

use clap::Args;
use tidegate::EventQueue;

use crate::config::{Config, Values};
use crate::failure::Failure;
use crate::output;
use crate::setting_table::default_file;

/// Where settings come from.
#[derive(Debug, Args)]
pub(crate) struct SettingsArgs {
    /// Address and port to listen on; port 0 picks a free one.
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Folder of the embedded database.
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// PostgreSQL database instead of the embedded one.
    #[arg(long, global = true, value_name = "postgres://…")]
    database_url: Option<String>,
    /// Settings file.
    #[arg(long, global = true, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Require a key or a token of every caller.
    #[arg(long, global = true)]
    require_auth: bool,
    /// Allow webhooks to a private or unencrypted target: an address, a network or a host name; may be repeated.
    #[arg(long = "allow-target", global = true, value_name = "TARGET")]
    allow_target: Vec<String>,
    /// Set any setting; may be repeated.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SettingsArgs {
    pub(crate) fn values(&self) -> Result<Values, Failure> {
        let mut flags: Vec<(String, String, &'static str)> = Vec::new();
        for pair in &self.set {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("--set {pair}: it must be KEY=VALUE"))?;
            flags.push((key.into(), value.into(), "--set"));
        }
        let named = [
            ("listen", &self.listen, "--listen"),
            ("data_dir", &self.data_dir, "--data-dir"),
            ("database_url", &self.database_url, "--database-url"),
        ];
        for (key, value, flag) in named {
            if let Some(value) = value {
                flags.push((key.into(), value.clone(), flag));
            }
        }
        if !self.allow_target.is_empty() {
            flags.push(("dispatch.allowed_targets".into(), self.allow_target.join(","), "--allow-target"));
        }
        if self.require_auth {
            flags.push(("auth.required".into(), "true".into(), "--require-auth"));
        }
        Ok(Values::gather(self.config.as_deref(), std::env::vars(), flags)?)
    }

    pub(crate) fn config(&self) -> Result<Config, Failure> {
        Ok(self.values()?.typed_config()?)
    }
}

/// Opens the database that the settings name.
pub(crate) async fn open(config: &Config) -> Result<EventQueue, Failure> {
    if let Some(dir) = &config.data_dir {
        std::fs::create_dir_all(dir).map_err(|error| format!("{} cannot be created: {error}", dir.display()))?;
    }
    let max_lanes = config.max_lanes;
    let builder = EventQueue::builder()
        .namespace(config.namespace.clone())
        .lease(config.options.lease)
        .payload_limit(config.options.limits.payload_bytes)
        .with(|options| {
            options.queue_labels = config.queue_labels;
            options.store.max_lanes = max_lanes;
        });
    builder.open(&config.database).await.map_err(|error| {
        let refused = config.sqlite_file().and_then(|file| why_not_writable(&file));
        let text = output::with_cause(&error);
        refused.map_or_else(|| format!("the database cannot be opened: {text}"), |why| format!("{why} ({text})")).into()
    })
}

/// Why the system refuses to write a database file or its folder; `None` if it does not. SQLite's errors do not say.
fn why_not_writable(file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let trial = folder.join(format!(".tidegate-{}", std::process::id()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&trial);
    let (at, error) = match (made, std::fs::OpenOptions::new().write(true).open(file)) {
        (Err(error), _) => (folder, error),
        (Ok(_), opened) => {
            let _ = std::fs::remove_file(&trial);
            (file, opened.err().filter(|error| error.kind() != std::io::ErrorKind::NotFound)?)
        }
    };
    Some(format!("{} cannot be written to: {error}", at.display()))
}

/// Flags of `tidegate config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print a commented file with every setting at its default instead.
    #[arg(long)]
    default: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn show(args: ConfigArgs) -> Result<(), Failure> {
    if args.default {
        print!("{}", default_file());
        return Ok(());
    }
    let values = args.settings.values()?;
    if args.json {
        let rows = values.rows().into_iter();
        let rows: Vec<_> = rows
            .map(|(key, value, source)| serde_json::json!({ "key": key, "value": value, "source": source }))
            .collect();
        return output::json(&rows);
    }
    let rows = values.rows().into_iter().map(|(key, value, source)| vec![key.to_owned(), value, source]).collect();
    output::table(&["SETTING", "VALUE", "FROM"], rows);
    values.typed_config()?; // after the table, so that it is shown even when a value is not valid
    Ok(())
}

pub(crate) async fn migrate(args: SettingsArgs) -> Result<(), Failure> {
    let config = args.config()?;
    let queue = open(&config).await?;
    println!("the schema is at version {}", tidegate_server::SCHEMA_VERSION);
    queue.close().await;
    Ok(())
}
