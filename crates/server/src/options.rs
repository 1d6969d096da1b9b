//! Settings of a server.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Seconds; from a fast commit to a long job.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// Settings of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Who is let in.
    pub auth: AuthOptions,
    /// Bounds of requests.
    pub limits: Limits,
    /// How long running requests may take to end after a shutdown began; 10 s by default.
    pub grace: Duration,
    /// A worker that holds something and was silent for this long looks stale; 30 s by default.
    pub stale_after: Duration,
    /// How long a subscriber's lease lasts if it does not say; 60 s by default.
    pub lease: Duration,
    /// What is forgotten after how long; nothing by default.
    pub retention: RetentionOptions,
    /// What `/metrics` shows; without it the path answers 404.
    pub metrics: Option<Metrics>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            auth: AuthOptions::default(),
            limits: Limits::default(),
            grace: Duration::from_secs(10),
            stale_after: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            retention: RetentionOptions::default(),
            metrics: None,
        }
    }
}

/// What is forgotten after how long.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RetentionOptions {
    /// What workers did; kept for ever if absent.
    pub audit: Option<Duration>,
    /// Ended events that are no dead letters; kept for ever if absent.
    pub log: Option<Duration>,
    /// Dead letters; kept for ever if absent.
    pub dead_letters: Option<Duration>,
    /// How often it is looked for; 10 min by default.
    pub every: Duration,
}

impl Default for RetentionOptions {
    fn default() -> Self {
        Self { audit: None, log: None, dead_letters: None, every: Duration::from_secs(600) }
    }
}

/// What is recorded for `/metrics`.
#[derive(Clone)]
pub struct Metrics(pub PrometheusHandle);

impl Metrics {
    /// Installs the process' recorder, to be called before a queue is opened. `None` when there is one already: a process
    /// has one recorder, whoever installs it.
    #[must_use]
    pub fn install() -> Option<Self> {
        let builder = PrometheusBuilder::new().set_buckets(&BUCKETS).ok()?;
        let sizes = Matcher::Full("tidegate_batch_size".into());
        let recorder = builder.set_buckets_for_metric(sizes, &[1.0, 10.0, 100.0, 1000.0]).ok()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        Some(Self(handle))
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Who is let in.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AuthOptions {
    /// Whether a key or token is needed. Without, the server listens on loopback addresses only.
    pub required: bool,
    /// Names, beside loopback ones, that callers may reach a server without keys by.
    pub hosts: Vec<String>,
    /// An issuer whose tokens are accepted beside keys.
    pub oidc: Option<OidcOptions>,
}

/// An OpenID Connect issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OidcOptions {
    /// Its address, as tokens name it.
    pub issuer: String,
    /// The audience tokens must be meant for.
    pub audience: String,
    /// Whether a token that names no client is accepted; it then sees all of them. Refused by default.
    pub allow_unscoped: bool,
    /// Keys are fetched anew after this long; 5 minutes by default. The old ones serve until that is done.
    pub refresh_after: Duration,
}

impl OidcOptions {
    /// An issuer with everything else at its default.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.into(),
            allow_unscoped: false,
            refresh_after: Duration::from_secs(300),
        }
    }
}

/// Bounds of requests.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// The largest payload; 1 MiB by default.
    pub payload_bytes: usize,
    /// The largest body with many events; 32 MiB by default.
    pub batch_bytes: usize,
    /// Items of one batch; 1,000 by default.
    pub batch_items: usize,
    /// How deeply JSON may be nested; 128 by default.
    pub json_depth: usize,
    /// How long a request's head may take to arrive, and a kept connection be idle; 30 s by default.
    pub head_time: Duration,
    /// How long a body may take to arrive; 30 s by default.
    pub body_time: Duration,
    /// All request bodies that are read or worked on together; 256 MiB by default. Beyond it the answer is 503. Batches
    /// leave a quarter of it to single events.
    pub bodies_bytes: usize,
    /// How long a caller may take to read an answer, plus a second for every 16 KiB of it; 30 s by default.
    pub write_time: Duration,
    /// Connections at once; 10,000 by default.
    pub connections: usize,
    /// Connections that wait to be accepted; 4,096 by default. The system may allow fewer (`net.core.somaxconn`).
    pub backlog: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 1 << 20,
            batch_bytes: 32 << 20,
            batch_items: 1_000,
            json_depth: 128,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            bodies_bytes: 256 << 20,
            write_time: Duration::from_secs(30),
            connections: 10_000,
            backlog: 4_096,
        }
    }
}

impl Limits {
    /// A body with one event: the payload and room for what is around it.
    pub(crate) fn body_bytes(&self) -> usize {
        self.payload_bytes.saturating_add(128 << 10)
    }
}
