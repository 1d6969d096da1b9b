//! `tidegate serve`.

use std::io::Write;

use tidegate_server::{Hurry, Metrics, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::Failure;
use crate::config::{Config, without_password};
use crate::settings::{SettingsArgs, open};
use crate::telemetry::{self, Sending};

pub(crate) async fn run(args: SettingsArgs) -> Result<(), Failure> {
    let config = args.config()?;
    let traces = start_logs(&config)?;
    let mut options = config.options.clone();
    options.metrics = Metrics::install(); // before the queue is opened, or it would not be counted
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

/// The one line on stdout: whoever started us may wait for it.
fn say_ready(address: std::net::SocketAddr) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "tidegate listens on http://{address}")?;
    out.flush()?;
    Ok(())
}

/// Over when somebody asks the process to stop. Asked again, it hurries; a hang-up of the terminal is not asking.
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
            _ = terminate.recv() => tracing::info!("asked to stop: running requests may end"),
            _ = interrupt.recv() => tracing::info!("interrupted: running requests may end"),
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

/// Logs go to stderr, so that stdout keeps its one line; traces go to their collector, if there is one.
fn start_logs(config: &Config) -> Result<Option<Sending>, Failure> {
    let filter = EnvFilter::try_new(&config.log_filter)
        .map_err(|error| format!("log.level = {:?} does not fit: {error}", config.log_filter))?;
    // Colours are for people at a terminal.
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let lines = if config.json_logs { lines.json().boxed() } else { lines.boxed() };
    let (traces, sending) = config.otlp_endpoint.as_deref().map(telemetry::start).transpose()?.unzip();
    tracing_subscriber::registry().with(traces).with(lines.with_filter(filter)).try_init()?;
    Ok(sending)
}
