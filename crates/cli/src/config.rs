//! Values of the settings: collected from the defaults, the file, the environment and flags, of which later ones win,
//! then parsed and checked.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tidegate_dispatch::secrets::{SecretKey, SecretOptions};
use tidegate_dispatch::{AllowedTarget, UnknownTypes};

use crate::masking::without_password;
use crate::setting_table::{SETTINGS, Setting, variable};

/// Levels of `log.level`.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Environment variables of ours that are not settings of the server.
const OTHER_VARIABLES: [&str; 4] = ["TIDEGATE_CONFIG", "TIDEGATE_URL", "TIDEGATE_KEY", "TIDEGATE_ACCOUNT_SECRET"];

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

/// A setting that is unknown or not valid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

/// The values of all settings as text, each with its source.
#[derive(Debug, Clone)]
pub(crate) struct Values(BTreeMap<&'static str, (String, Source)>);

impl Values {
    /// Collects values from the defaults, the file, the environment and flags; later sources win.
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
            Some(setting) if setting.is_secret && matches!(source, Source::Flag(_)) => Err(ConfigError(format!(
                "{key} must not be a flag, which others on this machine can read: use the variable {}, the settings file, or \
                 secrets.key_file",
                variable(key)
            ))),
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
        // Not the error's own text, which repeats the line: it may hold a secret.
        let line = |at: usize| contents.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        let table = contents.parse::<toml::Table>().map_err(|error| {
            let line = line(error.span().map_or(0, |span| span.start));
            ConfigError(format!("{shown}:{line}: {}", error.message()))
        })?;
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
        value.parse().map_err(|_| ConfigError(format!("{key} = {value:?} ({source}) is not valid: it must be {what}")))
    }

    fn within(&self, key: &'static str, least: u64, most: u64) -> Result<u64, ConfigError> {
        let what = format!("a number from {least} to {most}");
        let value: u64 = self.typed(key, &what)?;
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        let (text, source) = &self.0[key];
        Err(ConfigError(format!("{key} = {text} ({source}) is not valid: it must be {what}")))
    }

    /// Each setting with its value and source; secrets are masked.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String, String)> {
        let row = |setting: &Setting| {
            let (value, source) = &self.0[setting.key];
            let masked = if setting.is_secret && !value.is_empty() { "***".into() } else { without_password(value) };
            (setting.key, masked, source.to_string())
        };
        SETTINGS.iter().map(row).collect()
    }

    /// Parses and checks every value.
    pub(crate) fn typed_config(&self) -> Result<Config, ConfigError> {
        let seconds = |key, most| Ok::<_, ConfigError>(Duration::from_secs(self.within(key, 1, most)?));
        let optional = |key| Some(self.get(key).to_owned()).filter(|value| !value.is_empty());
        let mut options = tidegate_server::Options::default();
        options.grace = Duration::from_secs(self.within("grace_seconds", 0, 3600)?);
        options.lease = seconds("lease_seconds", 86_400)?;
        options.stale_after = seconds("stale_seconds", 86_400)?;
        options.run_schedules = self.typed("run_schedules", "true or false")?;
        options.run_router = self.typed("dispatch.enabled", "true or false")?;
        options.gateway.unknown_types = match self.get("unknown_types") {
            "accept" => UnknownTypes::Accept,
            "reject" => UnknownTypes::Reject,
            other => return Err(ConfigError(format!("unknown_types = {other:?} is not valid: use accept or reject"))),
        };
        options.gateway.allowed_targets = self.allowed_targets()?;
        options.gateway.secrets = self.secrets()?;
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
        options.retention.facts = match self.get("retention.fact_days") {
            "log" => options.retention.log,
            _ => days("retention.fact_days")?,
        };
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
                other => return Err(ConfigError(format!("log.format = {other:?} is not valid: use text or json"))),
            },
            log_filter: self.log_filter()?,
            queue_labels: self.within("metrics.queue_labels", 0, 1_000_000)? as usize,
            otlp_endpoint: optional("telemetry.otlp_endpoint"),
            options,
        })
    }

    /// Webhook targets that are allowed although they are not public or not encrypted.
    fn allowed_targets(&self) -> Result<Vec<AllowedTarget>, ConfigError> {
        let (value, source) = &self.0["dispatch.allowed_targets"];
        let named = value.split(',').map(str::trim).filter(|target| !target.is_empty());
        let invalid = |why| ConfigError(format!("dispatch.allowed_targets = {value:?} ({source}) is not valid: {why}"));
        named.map(|target| target.parse().map_err(invalid)).collect()
    }

    /// The keys of secrets. What is wrong with one does not repeat it.
    fn secrets(&self) -> Result<SecretOptions, ConfigError> {
        let keys = |key: &'static str| {
            let (value, source) = &self.0[key];
            let named = value.split(',').map(str::trim).filter(|one| !one.is_empty());
            let read = named.map(|one| {
                one.parse::<SecretKey>().map_err(|why| ConfigError(format!("{key} ({source}) is not valid: {why}")))
            });
            read.collect::<Result<Vec<_>, _>>()
        };
        let mut first = keys("secrets.key")?;
        if first.len() > 1 {
            return Err(ConfigError("secrets.key is one key: others are for secrets.old_keys".into()));
        }
        let key_file = Some(self.get("secrets.key_file")).filter(|file| !file.is_empty()).map(PathBuf::from);
        Ok(SecretOptions { key: first.pop(), key_file, old_keys: keys("secrets.old_keys")? })
    }

    /// A socket address, or what a name such as `localhost` resolves to, preferably IPv4.
    fn address(&self, key: &'static str) -> Result<SocketAddr, ConfigError> {
        let (value, source) = &self.0[key];
        let found: Vec<SocketAddr> = value.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| {
            let must = "an address or name and a port, such as 127.0.0.1:8080 or localhost:8080";
            ConfigError(format!("{key} = {value:?} ({source}) is not valid: it must be {must}"))
        })
    }

    /// The log filter. Unknown levels are refused: they would be taken for module names and silence everything else.
    fn log_filter(&self) -> Result<String, ConfigError> {
        let (value, source) = &self.0["log.level"];
        let is_known = |part: &str| part.contains('=') || LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
        match value.split(',').map(str::trim).find(|part| !part.is_empty() && !is_known(part)) {
            None => Ok(value.clone()),
            Some(part) => Err(ConfigError(format!(
                "log.level = {value:?} ({source}) is not valid: {part:?} is not one of {}, nor a pair such as \
                 tidegate_server=debug",
                LEVELS.join(", ")
            ))),
        }
    }

    /// The URL of the database.
    pub(crate) fn database(&self) -> String {
        match self.get("database_url") {
            "" => format!("sqlite:{}", Path::new(self.get("data_dir")).join("tidegate.db").display()),
            url => url.into(),
        }
    }
}

/// Checked settings.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) database: String,
    /// The folder to create for the embedded database; `None` when `database_url` is set.
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
    /// The database's file; `None` for PostgreSQL.
    pub(crate) fn sqlite_file(&self) -> Option<PathBuf> {
        if self.database.starts_with("postgres:") || self.database.starts_with("postgresql:") {
            return None;
        }
        let path = self.database.strip_prefix("sqlite:").unwrap_or(&self.database);
        Some(path.strip_prefix("//").unwrap_or(path).into())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_table::default_file;

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
    fn facts_are_kept_as_long_as_the_log_unless_said_otherwise() {
        let facts = |settings: &[(&str, &str)]| {
            let config = gather(None, settings).unwrap().typed_config();
            config.map(|config| config.options.retention.facts.map(|kept| kept.as_secs() / 86_400))
        };
        let log = ("TIDEGATE_RETENTION_LOG_DAYS", "30");
        assert_eq!(facts(&[]).unwrap(), None);
        assert_eq!(facts(&[log]).unwrap(), Some(30));
        assert_eq!(facts(&[log, ("TIDEGATE_RETENTION_FACT_DAYS", "90")]).unwrap(), Some(90));
        assert_eq!(facts(&[log, ("TIDEGATE_RETENTION_FACT_DAYS", "0")]).unwrap(), None);
        assert!(facts(&[("TIDEGATE_RETENTION_FACT_DAYS", "long")]).is_err());
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
    fn keys_are_read_and_never_shown() {
        let (one, other) = (SecretKey::random(), SecretKey::random());
        let shown = |text: &str| text.contains(&one.text()[6..]) || text.contains(&other.text()[6..]);
        let both = format!("{}, {}", *one.text(), *other.text());
        let values =
            gather(None, &[("TIDEGATE_SECRETS_KEY", &one.text()), ("TIDEGATE_SECRETS_OLD_KEYS", &both)]).unwrap();
        let config = values.typed_config().unwrap();
        assert_eq!(config.options.gateway.secrets.key.as_ref().unwrap().id(), one.id());
        assert_eq!(config.options.gateway.secrets.old_keys.len(), 2);
        assert!(!shown(&format!("{:?} {:?}", values.rows(), config.options.gateway.secrets)));
        for (name, value) in
            [("TIDEGATE_SECRETS_KEY", &both), ("TIDEGATE_SECRETS_OLD_KEYS", &one.text()[1..].to_owned())]
        {
            let error = gather(None, &[(name, value)]).unwrap().typed_config().unwrap_err().to_string();
            assert!(error.contains("secrets.") && !shown(&error), "{error}");
        }
        let flag = vec![("secrets.key".to_owned(), one.text().to_string(), "--set")];
        let error = Values::gather(None, Vec::new(), flag).unwrap_err().to_string();
        assert!(error.contains("TIDEGATE_SECRETS_KEY") && !shown(&error), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.toml");
        std::fs::write(&path, format!("\n[secrets]\nkey = \"{}\n", *one.text())).unwrap();
        let error = gather(Some(&path), &[]).unwrap_err().to_string();
        assert!(error.contains("tidegate.toml:3") && !shown(&error), "{error}");
    }

    #[test]
    fn passwords_are_not_shown() {
        let values = gather(None, &[("TIDEGATE_DATABASE_URL", "postgres://u:hidden@h/d")]).unwrap();
        assert!(!format!("{:?}", values.rows()).contains("hidden"));
        assert_eq!(values.database(), "postgres://u:hidden@h/d");
        for url in [
            "postgres://h/d?user=u&password=hidden",
            "postgres://h/d?password=hidden&sslmode=require",
            "postgres://u@h/d?PassWord=hidden",
            "postgres://u:hidden@h/d?sslpassword=hidden",
            "postgres://u:se?hidden@h/d",
            "postgres://u:hidden@x@h/d?password=hidden",
            "host=h user=u password=hidden dbname=d",
            "host=h password='hidden one' dbname=d",
            "host=h password='hidden",
        ] {
            let values = gather(None, &[("TIDEGATE_DATABASE_URL", url)]).unwrap();
            let shown = format!("{:?}", values.rows());
            assert!(!shown.contains("hidden"), "{url}: {shown}");
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
