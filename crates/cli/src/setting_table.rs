//! The settings of `serve`, declared once: the commented default file, the environment and `--set` all derive from
//! [`SETTINGS`].

/// The declaration of one setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Dotted key in the file.
    pub(crate) key: &'static str,
    /// Default value as text.
    pub(crate) default: &'static str,
    /// Whether the value is a string in the file, and so quoted.
    pub(crate) quoted: bool,
    /// Help text of the default file.
    pub(crate) help: &'static str,
    /// Whether the value must not be shown, nor be on a command line.
    pub(crate) is_secret: bool,
}

const fn text(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, default, quoted: true, help, is_secret: false }
}

const fn secret(key: &'static str, help: &'static str) -> Setting {
    Setting { key, default: "", quoted: true, help, is_secret: true }
}

const fn plain(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, default, quoted: false, help, is_secret: false }
}

/// All settings, in the order of the default file.
pub(crate) const SETTINGS: &[Setting] = &[
    text("listen", "127.0.0.1:8080", "Address or name, and port, to listen on; port 0 picks a free one."),
    text("data_dir", "./tidegate-data", "Folder of the embedded database, unless database_url is set."),
    text(
        "database_url",
        "",
        "Another database instead: postgres://user@host/name, or sqlite:PATH for the file of an application that \
         embeds the library.",
    ),
    text("namespace", "tidegate", "Schema (PostgreSQL) or table prefix (SQLite)."),
    plain("max_lanes", "4096", "Lanes (pairs of event type and priority) that a queue may have at once."),
    plain("grace_seconds", "10", "Seconds that running requests may take to end at a shutdown."),
    plain("lease_seconds", "60", "Seconds that a lease lasts when neither the claim nor the queue names a length."),
    plain("stale_seconds", "30", "Seconds of silence after which a worker that holds a lease is shown as stale."),
    plain(
        "run_schedules",
        "true",
        "Whether this server publishes what schedules are due. Any number of servers may: each tick is published once.",
    ),
    text("unknown_types", "accept", "Whether events of types that are not registered are taken: accept or reject."),
    plain("dispatch.enabled", "true", "Whether this server delivers webhooks. Any number of servers may."),
    text(
        "dispatch.allowed_targets",
        "",
        "Private or unencrypted webhook targets that are allowed: addresses, networks or host names, separated by commas.",
    ),
    secret(
        "secrets.key",
        "Key that encrypts signing secrets and credentials in the database; `tidegate secrets new-key` makes one. Not as a \
         flag, which others could read.",
    ),
    text(
        "secrets.key_file",
        "",
        "File with such keys instead, one in each line: the first encrypts, all decrypt. With the embedded database one is made \
         beside it if neither is set.",
    ),
    secret(
        "secrets.old_keys",
        "Keys that still decrypt, separated by commas, until `tidegate secrets rotate` is through.",
    ),
    plain("auth.required", "false", "Whether callers need a key or a token. Must be true to listen beyond loopback."),
    text(
        "auth.hosts",
        "",
        "Host names, besides loopback ones, that callers without keys may send in Host, separated by commas.",
    ),
    text("auth.oidc.issuer", "", "OpenID Connect issuer whose tokens are accepted besides keys."),
    text("auth.oidc.audience", "", "Audience that these tokens must have."),
    plain(
        "auth.oidc.allow_unscoped",
        "false",
        "Whether tokens that name no client are accepted; they see all clients.",
    ),
    plain("limits.payload_bytes", "1048576", "Largest payload of one event."),
    plain("limits.batch_bytes", "33554432", "Largest body of a batch."),
    plain("limits.batch_items", "1000", "Most items of one batch."),
    plain("limits.json_depth", "128", "Depth to which JSON may be nested."),
    plain(
        "limits.head_seconds",
        "30",
        "Seconds that a request's head may take to arrive, and a connection may be idle.",
    ),
    plain("limits.body_seconds", "30", "Seconds that a body may take to arrive."),
    plain("limits.bodies_bytes", "268435456", "Bytes of all request bodies together; beyond that, the answer is 503."),
    plain("limits.write_seconds", "30", "Seconds that a caller may take to read an answer, plus one per 16 KiB."),
    plain("limits.connections", "10000", "Open connections at once."),
    plain("limits.backlog", "4096", "Connections that may wait to be accepted; the system may allow fewer."),
    plain("retention.audit_days", "0", "Days after which audit rows are removed; 0 keeps them forever."),
    plain("retention.log_days", "0", "Days after which ended events are removed; 0 keeps them forever."),
    plain("retention.dead_letter_days", "0", "Days after which dead letters are removed; 0 keeps them forever."),
    text(
        "retention.fact_days",
        "log",
        "Days after which facts are removed that no entry refers to any more; 0 keeps them forever, log is log_days.",
    ),
    plain("metrics.queue_labels", "1000", "Queues that metrics show by name; all others are summed as _other."),
    text("log.format", "text", "text or json."),
    text("log.level", "info", "error, warn, info, debug, trace, or a filter such as info,tidegate_server=debug."),
    text(
        "telemetry.otlp_endpoint",
        "",
        "Collector for traces by OTLP over HTTP, such as http://127.0.0.1:4318; none if empty.",
    ),
];

/// The environment variable of a setting.
pub(crate) fn variable(key: &str) -> String {
    format!("TIDEGATE_{}", key.replace('.', "_").to_uppercase())
}

/// The default file with every setting commented out.
pub(crate) fn default_file() -> String {
    let mut file = String::from("# Settings of `tidegate serve`. Every value shown is the default.\n");
    let mut section = "";
    for setting in SETTINGS {
        let (table, name) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
        if table != section {
            section = table;
            file.push_str(&format!("\n[{table}]\n"));
        } else {
            file.push('\n');
        }
        let value = if setting.quoted { format!("{:?}", setting.default) } else { setting.default.into() };
        file.push_str(&format!("# {} Environment: {}.\n# {name} = {value}\n", setting.help, variable(setting.key)));
    }
    file
}
