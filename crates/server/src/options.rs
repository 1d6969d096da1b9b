//! Settings of a server, with their defaults. Knows nothing of files, flags or the environment; the CLI reads those.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tidegate_dispatch::GatewayOptions;

/// Histogram buckets in seconds, from a fast commit to a long attempt.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// Settings of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Authentication.
    pub auth: AuthOptions,
    /// Limits on requests and connections.
    pub limits: Limits,
    /// How long a shutdown waits for running requests; 10 s by default.
    pub grace: Duration,
    /// A worker that holds a lease and was not heard of for this long is shown as stale; 30 s by default.
    pub stale_after: Duration,
    /// How long a lease lasts when neither the claim nor the queue says; 60 s by default.
    pub lease: Duration,
    /// Whether this server runs the schedules of its database; it does by default. Any number of servers may: each tick is
    /// published once.
    pub run_schedules: bool,
    /// Rules of the gateway.
    pub gateway: GatewayOptions,
    /// Whether this server delivers the jobs of its database; it does by default. Any number of servers may.
    pub run_router: bool,
    /// When old log and audit rows are removed; never by default.
    pub retention: RetentionOptions,
    /// The recorder that `/metrics` shows; without one the path answers 404.
    pub metrics: Option<Metrics>,
    /// How often it is measured for that what waits to be delivered; every 15 s by default.
    pub measure_jobs_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            auth: AuthOptions::default(),
            limits: Limits::default(),
            grace: Duration::from_secs(10),
            stale_after: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            run_schedules: true,
            gateway: GatewayOptions::default(),
            run_router: true,
            retention: RetentionOptions::default(),
            metrics: None,
            measure_jobs_every: Duration::from_secs(15),
        }
    }
}

/// How long ended entries, facts and audit rows are kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RetentionOptions {
    /// Audit rows; kept for ever if absent.
    pub audit: Option<Duration>,
    /// Ended entries other than dead letters; kept for ever if absent.
    pub log: Option<Duration>,
    /// Dead letters; kept for ever if absent.
    pub dead_letters: Option<Duration>,
    /// Facts that no entry refers to any more, unless they went with their only entry; kept for ever if absent.
    pub facts: Option<Duration>,
    /// How often retention runs; every 10 min by default.
    pub every: Duration,
}

impl Default for RetentionOptions {
    fn default() -> Self {
        Self { audit: None, log: None, dead_letters: None, facts: None, every: Duration::from_secs(600) }
    }
}

/// The metrics recorder behind `/metrics`.
#[derive(Clone)]
pub struct Metrics(pub PrometheusHandle);

impl Metrics {
    /// Installs the recorder of this process; to be called before a queue is opened. `None` when one is installed
    /// already: a process has only one.
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

/// Which callers are accepted.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AuthOptions {
    /// Whether a key or token is required. If not, the server listens on loopback addresses only.
    pub required: bool,
    /// Host names, besides loopback ones, by which callers may reach a server that requires no keys.
    pub hosts: Vec<String>,
    /// An issuer whose tokens are accepted besides keys.
    pub oidc: Option<OidcOptions>,
}

/// An OpenID Connect issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OidcOptions {
    /// The URL of the issuer, exactly as in the `iss` claim of its tokens.
    pub issuer: String,
    /// The audience (`aud` claim) that tokens must have.
    pub audience: String,
    /// Whether a token without the claim `tidegate_client` is accepted as an unscoped caller, which sees all clients.
    /// Off by default.
    pub allow_unscoped: bool,
    /// Age at which the keys are fetched again; 5 minutes by default. Until that succeeds the old ones are used.
    pub refresh_after: Duration,
}

impl OidcOptions {
    /// An issuer with all other settings at their defaults.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.into(),
            allow_unscoped: false,
            refresh_after: Duration::from_secs(300),
        }
    }
}

/// Limits on requests and connections.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of one payload; 1 MiB by default.
    pub payload_bytes: usize,
    /// Bytes of a batch request; 32 MiB by default.
    pub batch_bytes: usize,
    /// Items of one batch; 1,000 by default.
    pub batch_items: usize,
    /// How deeply JSON may be nested; 128 by default.
    pub json_depth: usize,
    /// How long a request's headers may take to arrive, and how long a kept-alive connection may be idle; 30 s by
    /// default.
    pub head_time: Duration,
    /// How long a body may take to arrive; 30 s by default.
    pub body_time: Duration,
    /// Bytes of all request bodies in memory together; 256 MiB by default. Beyond it the answer is 503. Batches leave a
    /// quarter of it to single events.
    pub bodies_bytes: usize,
    /// How long a caller may take to read an answer, plus a second for every 16 KiB of it; 30 s by default.
    pub write_time: Duration,
    /// Open connections; 10,000 by default.
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
    /// Bytes of a body with one event: the payload, and 128 KiB for the other fields.
    pub(crate) fn body_bytes(&self) -> usize {
        self.payload_bytes.saturating_add(128 << 10)
    }
}
