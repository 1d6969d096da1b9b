//! `tidegate serve`: starts logs, traces, metrics and the server, and stops it by signals.

use std::io::Write;

use tidegate_server::{Hurry, Metrics, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::Config;
use crate::failure::Failure;
use crate::masking::without_password;
use crate::settings::{SettingsArgs, open};
use crate::telemetry::{self, Sending};

pub(crate) async fn run(args: SettingsArgs) -> Result<(), Failure> {
    let config = args.config()?;
    let traces = start_logs(&config)?;
    let mut options = config.options.clone();
    options.metrics = Metrics::install(); // before the queue is opened, or its metrics are lost
    options.gateway.secrets.check().map_err(|why| format!("secrets.key_file: {why}"))?;
    let queue = open(&config).await?;
    let database = without_password(&config.database);
    tracing::info!(database, namespace = config.namespace, "opened the database");
    let listener = tidegate_server::listen(config.listen, options.limits.backlog)
        .map_err(|error| format!("cannot listen on {}: {error}", config.listen))?;
    let address = listener.local_addr()?;
    let server = Server::new(queue.clone(), options)?;
    server.may_listen(&listener)?;
    let stop = stop_signal(server.hurry())?;
    say_ready(address)?;
    let served = server.run(listener, stop).await;
    queue.close().await;
    tracing::info!("stopped");
    if let Some(traces) = traces {
        traces.end().await;
    }
    Ok(served?)
}

/// Prints the only line on stdout, which the process that started us may wait for.
fn say_ready(address: std::net::SocketAddr) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "tidegate listens on http://{address}")?;
    out.flush()?;
    Ok(())
}

/// Completes at SIGTERM or SIGINT. A second one ends the grace period; SIGHUP is ignored.
fn stop_signal(hurry: Hurry) -> Result<impl Future<Output = ()>, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            tracing::info!("SIGHUP is ignored: settings are read at start only, restart to change them");
        }
    });
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping once running requests have ended"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping once running requests have ended"),
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            hurry.now();
        });
    })
}

/// Starts logging to stderr, since stdout has only the ready line, and traces to the collector, if one is configured.
fn start_logs(config: &Config) -> Result<Option<Sending>, Failure> {
    let filter = EnvFilter::try_new(&config.log_filter)
        .map_err(|error| format!("log.level = {:?} is not valid: {error}", config.log_filter))?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let lines = if config.json_logs { lines.json().boxed() } else { lines.boxed() };
    let (traces, sending) = config.otlp_endpoint.as_deref().map(telemetry::start).transpose()?.unzip();
    tracing_subscriber::registry().with(traces).with(lines.with_filter(filter)).try_init()?;
    Ok(sending)
}
