//! Listening: connections with time limits, and a shutdown that lets running requests end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tidegate::EventQueue;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::auth::Authenticator;
use crate::handover::{Handover, Watched};
use crate::options::Options;
use crate::router::router;
use crate::service::Service;

/// Why a server did not start or went down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Anybody could reach it and nobody would be asked for credentials.
    #[error(
        "{0} can be reached from other machines, so a key must be required: turn authentication on (auth.required = \
         true, or --require-auth) or listen on a loopback address such as 127.0.0.1"
    )]
    OpenToOthers(SocketAddr),
    /// A setting does not fit.
    #[error("{0}")]
    Setting(String),
    /// The network failed.
    #[error("the listener failed: {0}")]
    Listener(#[from] io::Error),
}

/// A server that is ready to listen.
///
/// ```no_run
/// use tidegate::EventQueue;
/// use tidegate_server::{Options, Server};
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let queue = EventQueue::open("sqlite:events.db").await?;
///     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
///     let handle = Server::new(queue.clone(), Options::default())?.start(listener)?;
///     println!("listening on http://{}", handle.address());
///     handle.stop().await?;
///     queue.close().await;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    stopping: watch::Sender<bool>,
}

impl Server {
    /// A server over a queue. It does not close the queue.
    ///
    /// # Errors
    /// When a setting does not fit.
    pub fn new(queue: EventQueue, options: Options) -> Result<Self, ServerError> {
        let auth = Authenticator::new(&options.auth, &queue).map_err(ServerError::Setting)?;
        let (stopping, stopped) = watch::channel(false);
        let service = Arc::new(Service::new(queue, options, auth, stopped));
        Ok(Self { service, stopping })
    }

    /// Serves until `shutdown` is over: then it accepts nothing more, ends long polls, and lets running requests end
    /// within the grace period.
    ///
    /// # Errors
    /// When it may not listen there, or the listener fails.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        self.may_listen(&listener)?;
        let router = router(&self.service);
        let connections = Connections::new(&self.service.options);
        let upkeep = self.service.start_upkeep();
        tokio::pin!(shutdown);
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&connections.room).acquire_owned() => permit,
                () = &mut shutdown => break,
            };
            let Ok(permit) = permit else { break };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, _)) => connections.serve(stream, router.clone(), permit),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // Out of descriptors, most likely: others must end first.
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        let _ = self.stopping.send(true); // long polls end
        connections.end(self.service.options.grace).await;
        upkeep.abort();
        Ok(())
    }

    /// The same in the background.
    ///
    /// # Errors
    /// When it may not listen there.
    pub fn start(self, listener: TcpListener) -> Result<Handle, ServerError> {
        self.may_listen(&listener)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(self.run(listener, async move {
            let _ = stopped.await;
        }));
        Ok(Handle { address, stop, task })
    }

    /// Says whether it may listen there: without authentication on loopback addresses only.
    ///
    /// # Errors
    /// When it may not.
    pub fn may_listen(&self, listener: &TcpListener) -> Result<(), ServerError> {
        let address = listener.local_addr()?;
        if self.service.options.auth.required || address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(ServerError::OpenToOthers(address))
    }
}

/// A server that runs in the background; dropped, it stops.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServerError>>,
}

impl Handle {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it and waits until running requests have ended.
    ///
    /// # Errors
    /// When the listener had failed.
    pub async fn stop(self) -> Result<(), ServerError> {
        let _ = self.stop.send(());
        self.task.await.map_err(|error| ServerError::Setting(format!("the server's task failed: {error}")))?
    }
}

/// Connections that are open.
struct Connections {
    room: Arc<Semaphore>,
    protocol: http1::Builder,
    graceful: GracefulShutdown,
}

impl Connections {
    fn new(options: &Options) -> Self {
        let mut protocol = http1::Builder::new();
        protocol.timer(TokioTimer::new()).header_read_timeout(options.limits.head_time);
        let room = Arc::new(Semaphore::new(options.limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { room, protocol, graceful: GracefulShutdown::new() }
    }

    fn serve(&self, stream: TcpStream, router: Router, permit: OwnedSemaphorePermit) {
        let _ = stream.set_nodelay(true); // a missing option costs time only
        let handover = Handover::default();
        let io = TokioIo::new(Watched::new(stream, handover.clone()));
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(handover.clone());
            router.clone().oneshot(request.map(Body::new))
        });
        let connection = self.protocol.serve_connection(io, service);
        let watcher: Watcher = self.graceful.watcher();
        tokio::spawn(async move {
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(permit);
        });
    }

    async fn end(self, grace: std::time::Duration) {
        if tokio::time::timeout(grace, self.graceful.shutdown()).await.is_err() {
            tracing::warn!("requests were still running at the end of the grace period");
        }
    }
}

/// The peer was gone before it was accepted; the listener is fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
