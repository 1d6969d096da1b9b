//! Settings of `serve`, declared once: the commented default file, the environment and `--set` all derive from
//! [`SETTINGS`]. Later sources win: defaults, file, environment, flags.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its key in the file, dotted.
    pub(crate) key: &'static str,
    /// Its default as text.
    pub(crate) default: &'static str,
    /// Whether its value is text in the file, so that it is quoted there.
    pub(crate) quoted: bool,
    /// What it does.
    pub(crate) help: &'static str,
}

const fn text(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, default, quoted: true, help }
}

const fn plain(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, default, quoted: false, help }
}

/// Every setting.
pub(crate) const SETTINGS: &[Setting] = &[
    text("listen", "127.0.0.1:8080", "Address or name, and port, to listen on; port 0 picks a free one."),
    text("data_dir", "./tidegate-data", "Where the embedded database lives, unless database_url is set."),
    text(
        "database_url",
        "",
        "A database elsewhere instead: postgres://user@host/name, or sqlite:PATH for the file of an application that \
         embeds the library.",
    ),
    text("namespace", "tidegate", "Schema (PostgreSQL) or table prefix (SQLite)."),
    plain("max_lanes", "4096", "Pairs of an event type and a priority that a queue may hold at once."),
    plain("grace_seconds", "10", "How long running requests may take to end at a shutdown."),
    plain("lease_seconds", "60", "How long a worker holds an event if it does not say."),
    plain("stale_seconds", "30", "A worker that holds something and is silent for this long looks stale."),
    plain("auth.required", "false", "Whether callers need a key or a token. Must be true to listen beyond loopback."),
    text(
        "auth.hosts",
        "",
        "Names beside loopback ones that callers may use in Host without keys, separated by commas.",
    ),
    text("auth.oidc.issuer", "", "An OpenID Connect issuer whose tokens are accepted beside keys."),
    text("auth.oidc.audience", "", "The audience that such tokens must be meant for."),
    plain(
        "auth.oidc.allow_unscoped",
        "false",
        "Whether tokens that name no client are accepted; they see all clients.",
    ),
    plain("limits.payload_bytes", "1048576", "The largest payload of one event."),
    plain("limits.batch_bytes", "33554432", "The largest body of a batch."),
    plain("limits.batch_items", "1000", "Items of one batch."),
    plain("limits.json_depth", "128", "How deeply JSON may be nested."),
    plain("limits.head_seconds", "30", "How long a request's head may take to arrive, and a kept connection be idle."),
    plain("limits.body_seconds", "30", "How long a body may take to arrive."),
    plain("limits.bodies_bytes", "268435456", "Bytes of all request bodies together; beyond, the answer is 503."),
    plain("limits.write_seconds", "30", "How long a caller may take to read an answer, plus a second per 16 KiB."),
    plain("limits.connections", "10000", "Connections at once."),
    plain("limits.backlog", "4096", "Connections that wait to be accepted; the system may allow fewer."),
    plain("retention.audit_days", "0", "What workers did is forgotten after so many days; 0 keeps it for ever."),
    plain("retention.log_days", "0", "Ended events are forgotten after so many days; 0 keeps them for ever."),
    plain("retention.dead_letter_days", "0", "Dead letters are forgotten after so many days; 0 keeps them for ever."),
    plain("metrics.queue_labels", "1000", "Queues that metrics show by name; all others are summed as _other."),
    text("log.format", "text", "text, or json for machines."),
    text("log.level", "info", "error, warn, info, debug, trace, or a filter such as info,tidegate_server=debug."),
    text(
        "telemetry.otlp_endpoint",
        "",
        "Where traces go by OTLP over HTTP, such as http://127.0.0.1:4318; none if empty.",
    ),
];

/// How much is logged.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Variables of the environment that are not settings of the server.
const OTHER_VARIABLES: [&str; 3] = ["TIDEGATE_CONFIG", "TIDEGATE_URL", "TIDEGATE_KEY"];

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

/// Values as text, each with where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Values(BTreeMap<&'static str, (String, Source)>);

impl Values {
    /// Defaults, then the file, then the environment, then flags.
    pub(crate) fn gather(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: Vec<(String, String, &'static str)>,
    ) -> Result<Self, ConfigError> {
        let defaults = SETTINGS.iter().map(|setting| (setting.key, (setting.default.into(), Source::Default)));
        let mut values = Self(defaults.collect());
        if let Some(path) = file {
            values.read_file(path)?;
        }
        for (name, value) in environment {
            values.read_variable(name, value)?;
        }
        for (key, value, flag) in flags {
            values.set(&key, value, Source::Flag(flag))?;
        }
        Ok(values)
    }

    fn set(&mut self, key: &str, value: String, source: Source) -> Result<(), ConfigError> {
        match SETTINGS.iter().find(|setting| setting.key == key) {
            Some(setting) => {
                self.0.insert(setting.key, (value, source));
                Ok(())
            }
            None => Err(ConfigError(format!("{key:?} ({source}) is not a setting; `tidegate config` lists them all"))),
        }
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let shown = path.display();
        let contents =
            std::fs::read_to_string(path).map_err(|error| ConfigError(format!("{shown} cannot be read: {error}")))?;
        let table = contents.parse::<toml::Table>().map_err(|error| ConfigError(format!("{shown}: {error}")))?;
        let mut flat = Vec::new();
        flatten("", table, &mut flat);
        for (key, value) in flat {
            self.set(&key, value, Source::File(path.into()))?;
        }
        Ok(())
    }

    fn read_variable(&mut self, name: String, value: String) -> Result<(), ConfigError> {
        if !name.starts_with("TIDEGATE_") || OTHER_VARIABLES.contains(&name.as_str()) {
            return Ok(());
        }
        match SETTINGS.iter().find(|setting| variable(setting.key) == name) {
            Some(setting) => self.set(setting.key, value, Source::Environment(name)),
            None => Err(ConfigError(format!("the variable {name} is not a setting; `tidegate config` lists them all"))),
        }
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", |(value, _)| value)
    }

    fn typed<T: FromStr>(&self, key: &'static str, what: &str) -> Result<T, ConfigError> {
        let (value, source) = &self.0[key];
        value.parse().map_err(|_| ConfigError(format!("{key} = {value:?} ({source}) does not fit: it must be {what}")))
    }

    fn within(&self, key: &'static str, least: u64, most: u64) -> Result<u64, ConfigError> {
        let what = format!("a number from {least} to {most}");
        let value: u64 = self.typed(key, &what)?;
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        let (text, source) = &self.0[key];
        Err(ConfigError(format!("{key} = {text} ({source}) does not fit: it must be {what}")))
    }

    /// Each setting with its value and source; secrets are left out.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String, String)> {
        let row = |setting: &Setting| {
            let (value, source) = &self.0[setting.key];
            (setting.key, without_password(value), source.to_string())
        };
        SETTINGS.iter().map(row).collect()
    }

    /// Checks every value.
    pub(crate) fn typed_config(&self) -> Result<Config, ConfigError> {
        let seconds = |key, most| Ok::<_, ConfigError>(Duration::from_secs(self.within(key, 1, most)?));
        let optional = |key| Some(self.get(key).to_owned()).filter(|value| !value.is_empty());
        let mut options = tidegate_server::Options::default();
        options.grace = Duration::from_secs(self.within("grace_seconds", 0, 3600)?);
        options.lease = seconds("lease_seconds", 86_400)?;
        options.stale_after = seconds("stale_seconds", 86_400)?;
        options.auth.required = self.typed("auth.required", "true or false")?;
        let hosts = self.get("auth.hosts").split(',').map(str::trim).filter(|host| !host.is_empty());
        options.auth.hosts = hosts.map(Into::into).collect();
        options.auth.oidc = match (optional("auth.oidc.issuer"), optional("auth.oidc.audience")) {
            (Some(issuer), Some(audience)) => {
                let mut oidc = tidegate_server::OidcOptions::new(issuer, audience);
                oidc.allow_unscoped = self.typed("auth.oidc.allow_unscoped", "true or false")?;
                Some(oidc)
            }
            (None, None) => None,
            _ => return Err(ConfigError("auth.oidc.issuer and auth.oidc.audience go together".into())),
        };
        let days = |key| {
            let days = self.within(key, 0, 36_500)?;
            Ok::<_, ConfigError>((days > 0).then(|| Duration::from_secs(days * 86_400)))
        };
        options.retention.audit = days("retention.audit_days")?;
        options.retention.log = days("retention.log_days")?;
        options.retention.dead_letters = days("retention.dead_letter_days")?;
        let limits = &mut options.limits;
        limits.payload_bytes = self.within("limits.payload_bytes", 1, 256 << 20)? as usize;
        limits.batch_bytes = self.within("limits.batch_bytes", 1, 1 << 30)? as usize;
        limits.batch_items = self.within("limits.batch_items", 1, 10_000)? as usize;
        limits.json_depth = self.within("limits.json_depth", 1, 1_000)? as usize;
        limits.head_time = seconds("limits.head_seconds", 3600)?;
        limits.body_time = seconds("limits.body_seconds", 3600)?;
        limits.bodies_bytes = self.within("limits.bodies_bytes", 1 << 20, 1 << 40)? as usize;
        limits.write_time = seconds("limits.write_seconds", 3600)?;
        limits.backlog = self.within("limits.backlog", 1, 65_535)? as u32;
        limits.connections = self.within("limits.connections", 1, 1_000_000)? as usize;
        Ok(Config {
            listen: self.address("listen")?,
            max_lanes: self.within("max_lanes", 1, 1_000_000)? as usize,
            database: self.database(),
            data_dir: (self.get("database_url").is_empty()).then(|| self.get("data_dir").into()),
            namespace: self.get("namespace").into(),
            json_logs: match self.get("log.format") {
                "text" => false,
                "json" => true,
                other => return Err(ConfigError(format!("log.format = {other:?} does not fit: use text or json"))),
            },
            log_filter: self.log_filter()?,
            queue_labels: self.within("metrics.queue_labels", 0, 1_000_000)? as usize,
            otlp_endpoint: optional("telemetry.otlp_endpoint"),
            options,
        })
    }

    /// An address, or what a name such as `localhost` stands for.
    fn address(&self, key: &'static str) -> Result<SocketAddr, ConfigError> {
        let (value, source) = &self.0[key];
        let found: Vec<SocketAddr> = value.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| {
            let must = "an address or name and a port, such as 127.0.0.1:8080 or localhost:8080";
            ConfigError(format!("{key} = {value:?} ({source}) does not fit: it must be {must}"))
        })
    }

    /// A filter of logs. A word that is no level would be taken for the name of a module, and silence all others.
    fn log_filter(&self) -> Result<String, ConfigError> {
        let (value, source) = &self.0["log.level"];
        let is_known = |part: &str| part.contains('=') || LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
        match value.split(',').map(str::trim).find(|part| !part.is_empty() && !is_known(part)) {
            None => Ok(value.clone()),
            Some(part) => Err(ConfigError(format!(
                "log.level = {value:?} ({source}) does not fit: {part:?} is not one of {}, nor a pair such as \
                 tidegate_server=debug",
                LEVELS.join(", ")
            ))),
        }
    }

    /// The database's address.
    pub(crate) fn database(&self) -> String {
        match self.get("database_url") {
            "" => format!("sqlite:{}", Path::new(self.get("data_dir")).join("tidegate.db").display()),
            url => url.into(),
        }
    }
}

/// Settings that fit.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) database: String,
    /// The folder to make, for the embedded database.
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) max_lanes: usize,
    pub(crate) json_logs: bool,
    pub(crate) log_filter: String,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) queue_labels: usize,
    pub(crate) options: tidegate_server::Options,
}

impl Config {
    /// The database's file, where it is SQLite.
    pub(crate) fn sqlite_file(&self) -> Option<PathBuf> {
        if self.database.starts_with("postgres:") || self.database.starts_with("postgresql:") {
            return None;
        }
        let path = self.database.strip_prefix("sqlite:").unwrap_or(&self.database);
        Some(path.strip_prefix("//").unwrap_or(path).into())
    }
}

/// The variable of a setting.
fn variable(key: &str) -> String {
    format!("TIDEGATE_{}", key.replace('.', "_").to_uppercase())
}

fn flatten(prefix: &str, table: toml::Table, flat: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(inner) => flatten(&key, inner, flat),
            toml::Value::String(text) => flat.push((key, text)),
            other => flat.push((key, other.to_string())),
        }
    }
}

/// A value without its secrets: the password of an address, and what is called one in its query or in `key=value` pairs.
pub(crate) fn without_password(value: &str) -> String {
    let mut shown = value.to_owned();
    if let Some((scheme, rest)) = value.split_once("://")
        && let Some((user, host)) = rest.rsplit_once('@')
        && let Some((name, _)) = user.split_once(':')
    {
        shown = format!("{scheme}://{name}:***@{host}");
    }
    let mut from = 0;
    while let Some((at, word)) = first_secret(&shown[from..]) {
        let start = from + at + word.len();
        let rest = &shown[start..];
        let length = match rest.chars().next() {
            Some(quote @ ('\'' | '"')) => rest[1..].find(quote).map_or(rest.len(), |end| end + 2),
            _ => rest.find(|c: char| c == '&' || c.is_whitespace()).unwrap_or(rest.len()),
        };
        shown.replace_range(start..start + length, "***");
        from = start + 3;
    }
    shown
}

/// The first name of a secret and where it stands. `sslpassword=` ends like `password=`.
fn first_secret(text: &str) -> Option<(usize, &'static str)> {
    let lower = text.to_ascii_lowercase();
    ["password=", "passwd=", "secret=", "token=", "apikey=", "api_key="]
        .into_iter()
        .filter_map(|word| Some((lower.find(word)?, word)))
        .min()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(file: Option<&Path>, environment: &[(&str, &str)]) -> Result<Values, ConfigError> {
        Values::gather(file, environment.iter().map(|(name, value)| (name.to_string(), value.to_string())), Vec::new())
    }

    #[test]
    fn the_defaults_fit() {
        let config = gather(None, &[]).unwrap().typed_config().unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.database, "sqlite:./tidegate-data/tidegate.db");
        assert!(!config.options.auth.required);
        let defaults = tidegate_server::Options::default();
        assert_eq!(config.options.limits.payload_bytes, defaults.limits.payload_bytes);
        assert_eq!(config.options.limits.batch_bytes, defaults.limits.batch_bytes);
        assert_eq!(config.options.limits.head_time, defaults.limits.head_time);
        assert_eq!(config.options.limits.bodies_bytes, defaults.limits.bodies_bytes);
        assert_eq!(config.options.limits.write_time, defaults.limits.write_time);
        assert_eq!(config.options.limits.backlog, defaults.limits.backlog);
    }

    #[test]
    fn later_sources_win_and_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.toml");
        std::fs::write(&path, "listen = \"127.0.0.1:1\"\nlease_seconds = 5\n[limits]\nbatch_items = 7\n").unwrap();
        let flags = vec![("listen".to_owned(), "127.0.0.1:3".to_owned(), "--listen")];
        let environment = [
            ("TIDEGATE_LISTEN", "127.0.0.1:2"),
            ("TIDEGATE_LIMITS_BATCH_ITEMS", "9"),
            ("HOME", "x"),
            ("TIDEGATE_URL", "y"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let values = Values::gather(Some(&path), environment, flags).unwrap();
        let config = values.typed_config().unwrap();
        assert_eq!(config.listen.port(), 3);
        assert_eq!(config.options.limits.batch_items, 9);
        assert_eq!(config.options.lease, Duration::from_secs(5));
        let source = |key: &str| values.rows().into_iter().find(|row| row.0 == key).unwrap().2;
        assert_eq!(source("listen"), "flag --listen");
        assert_eq!(source("limits.batch_items"), "environment TIDEGATE_LIMITS_BATCH_ITEMS");
        assert!(source("lease_seconds").starts_with("file "));
        assert_eq!(source("grace_seconds"), "default");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.toml");
        for (contents, named) in
            [("lisen = \"x\"\n", "lisen"), ("[limits]\nbatch = 1\n", "limits.batch"), ("listen = \n", "tidegate.toml")]
        {
            std::fs::write(&path, contents).unwrap();
            let error = gather(Some(&path), &[]).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(gather(None, &[("TIDEGATE_LISEN", "x")]).unwrap_err().to_string().contains("TIDEGATE_LISEN"));
        for (name, value) in [
            ("TIDEGATE_LISTEN", "8080"),
            ("TIDEGATE_LEASE_SECONDS", "0"),
            ("TIDEGATE_LEASE_SECONDS", "-1"),
            ("TIDEGATE_AUTH_REQUIRED", "perhaps"),
            ("TIDEGATE_LOG_FORMAT", "xml"),
            ("TIDEGATE_AUTH_OIDC_ISSUER", "https://issuer.example"),
        ] {
            assert!(gather(None, &[(name, value)]).unwrap().typed_config().is_err(), "{name}={value}");
        }
    }

    #[test]
    fn the_default_file_is_a_file_of_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.toml");
        let uncommented: String = default_file()
            .lines()
            .map(|line| {
                line.strip_prefix("# ").filter(|rest| rest.contains(" = ") && !rest.contains(". ")).unwrap_or(line)
            })
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(&path, uncommented).unwrap();
        let read = gather(Some(&path), &[]).unwrap();
        let defaults = gather(None, &[]).unwrap();
        for (from_file, default) in read.rows().into_iter().zip(defaults.rows()) {
            assert_eq!(from_file.1, default.1, "{}", default.0);
            assert!(from_file.2.starts_with("file"), "{} is not in the file", default.0);
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let values = gather(None, &[("TIDEGATE_DATABASE_URL", "postgres://u:secret@h/d")]).unwrap();
        assert!(!format!("{:?}", values.rows()).contains("secret"));
        assert_eq!(values.database(), "postgres://u:secret@h/d");
        for url in [
            "postgres://h/d?user=u&password=secret",
            "postgres://h/d?password=secret&sslmode=require",
            "postgres://u@h/d?PassWord=secret",
            "postgres://u:secret@h/d?sslpassword=secret",
            "postgres://u:se?secret@h/d",
            "postgres://u:secret@x@h/d?password=secret",
            "host=h user=u password=secret dbname=d",
            "host=h password='secret one' dbname=d",
            "host=h password='secret",
        ] {
            let values = gather(None, &[("TIDEGATE_DATABASE_URL", url)]).unwrap();
            let shown = format!("{:?}", values.rows());
            assert!(!shown.contains("secret"), "{url}: {shown}");
            assert!(shown.contains("***"), "{url}: {shown}");
        }
        let plain = "postgres://u@h:5432/d?sslmode=require";
        assert_eq!(without_password(plain), plain);
        assert_eq!(
            without_password("postgres://h/d?password=x&sslmode=require"),
            "postgres://h/d?password=***&sslmode=require"
        );
    }
}
