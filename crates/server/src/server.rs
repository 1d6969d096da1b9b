//! The listener: accepts connections, bounds their number and times, and shuts down gracefully. Knows no routes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tidegate::EventQueue;
use tidegate_dispatch::Router as Deliveries;
use tidegate_dispatch::webhook::address::Allowed;
use tidegate_dispatch::webhook::client::{Client, ClientOptions};
use tidegate_dispatch::webhook::connect::{SystemResolver, system_roots};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::auth::Authenticator;
use crate::handover::{Handover, Watched};
use crate::options::Options;
use crate::peer::PeerStream;
use crate::router::router;
use crate::service::Service;
use crate::upkeep;

/// Why a server did not start, or stopped serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Authentication is off and the address can be reached from other machines.
    #[error(
        "{0} can be reached from other machines, so a key must be required: turn authentication on (auth.required = \
         true, or --require-auth) or listen on a loopback address such as 127.0.0.1"
    )]
    OpenToOthers(SocketAddr),
    /// A setting is invalid, or the server's task failed.
    #[error("{0}")]
    Setting(String),
    /// The listening socket failed.
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
    hurry: Hurry,
}

/// Ends the grace period of a stopping server early.
#[derive(Debug, Clone)]
pub struct Hurry(watch::Sender<bool>);

impl Hurry {
    /// Has the server not wait for running requests: from now on if it is stopping, otherwise once it stops.
    pub fn now(&self) {
        self.0.send_replace(true);
    }

    async fn wanted(&self) {
        // `self` holds the sender, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|hurry| *hurry).await;
    }
}

/// Binds a listener with a queue of up to `backlog` connections that are not accepted yet, so that many connections at
/// once are not refused.
///
/// # Errors
/// When the address cannot be bound.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

impl Server {
    /// Makes a server for a queue. The server does not close the queue; that is left to the caller.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new(queue: EventQueue, options: Options) -> Result<Self, ServerError> {
        let auth = Authenticator::new(&options.auth, &queue).map_err(ServerError::Setting)?;
        let (stopping, stopped) = watch::channel(false);
        let service = Arc::new(Service::new(queue, options, auth, stopped));
        Ok(Self { service, stopping, hurry: Hurry(watch::Sender::new(false)) })
    }

    /// A handle that ends the grace period early.
    #[must_use]
    pub fn hurry(&self) -> Hurry {
        self.hurry.clone()
    }

    /// Serves until `shutdown` completes. Then it accepts no more connections, ends long polls, and waits up to the
    /// grace period for running requests.
    ///
    /// # Errors
    /// When the server [may not listen](Self::may_listen) on this address, or the listener fails.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        self.may_listen(&listener)?;
        let router = router(&self.service);
        let connections = Connections::new(&self.service.options);
        let upkeep = upkeep::start(&self.service);
        let deliveries = self.deliver()?;
        tokio::pin!(shutdown);
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&connections.permits).acquire_owned() => permit,
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
                    // Most likely out of file descriptors: wait for other connections to close.
                    tracing::warn!(%error, "accepting a connection failed; check the limit of open files");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        let _ = self.stopping.send(true); // long polls end
        connections.end(self.service.options.grace, &self.hurry).await;
        if let Some(deliveries) = deliveries {
            deliveries.stop().await;
        }
        upkeep.abort();
        Ok(())
    }

    /// Starts to deliver jobs, if it is to.
    fn deliver(&self) -> Result<Option<Deliveries>, ServerError> {
        let options = &self.service.options;
        if !options.run_router {
            return Ok(None);
        }
        let failed = |error: &dyn std::error::Error| ServerError::Setting(format!("webhooks cannot be sent: {error}"));
        let resolver = SystemResolver::new().map_err(|error| failed(&error))?;
        let allowed = Allowed::new(&options.gateway.allowed_targets);
        let client = Client::new(ClientOptions::new(allowed, Arc::new(resolver), system_roots()));
        let client = client.map_err(|error| failed(&error))?;
        Ok(Some(Deliveries::start(Arc::clone(&self.service.gateway), client)))
    }

    /// Runs the server in a background task. See [`run`](Self::run).
    ///
    /// # Errors
    /// When the server [may not listen](Self::may_listen) on this address.
    pub fn start(self, listener: TcpListener) -> Result<Handle, ServerError> {
        self.may_listen(&listener)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(self.run(listener, async move {
            let _ = stopped.await;
        }));
        Ok(Handle { address, stop, task })
    }

    /// Checks that the server may listen on this address: without authentication only loopback addresses are allowed.
    ///
    /// # Errors
    /// [`ServerError::OpenToOthers`] when it may not.
    pub fn may_listen(&self, listener: &TcpListener) -> Result<(), ServerError> {
        let address = listener.local_addr()?;
        if self.service.options.auth.required || address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(ServerError::OpenToOthers(address))
    }
}

/// A server that runs in the background. Dropping the handle stops the server.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServerError>>,
}

impl Handle {
    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server and waits for running requests, up to the grace period.
    ///
    /// # Errors
    /// When the listener failed, or the server's task panicked.
    pub async fn stop(self) -> Result<(), ServerError> {
        let _ = self.stop.send(());
        self.task.await.map_err(|error| ServerError::Setting(format!("the server's task failed: {error}")))?
    }
}

/// The open connections.
struct Connections {
    /// One permit per open connection.
    permits: Arc<Semaphore>,
    protocol: http1::Builder,
    graceful: GracefulShutdown,
    write_time: Duration,
}

/// The request was aborted because its caller is gone.
#[derive(Debug, thiserror::Error)]
#[error("the caller hung up")]
struct HungUp;

impl Connections {
    fn new(options: &Options) -> Self {
        let mut protocol = http1::Builder::new();
        protocol.timer(TokioTimer::new()).header_read_timeout(options.limits.head_time).half_close(true);
        let permits = Arc::new(Semaphore::new(options.limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { permits, protocol, graceful: GracefulShutdown::new(), write_time: options.limits.write_time }
    }

    fn serve(&self, stream: TcpStream, router: Router, permit: OwnedSemaphorePermit) {
        let _ = stream.set_nodelay(true); // without it answers are only slower
        let stream = PeerStream::new(stream, self.write_time);
        let peer = stream.peer();
        let handover = Handover::new(peer.clone());
        let io = TokioIo::new(Watched::new(stream, handover.clone()));
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(handover.clone());
            let answer = router.clone().oneshot(request.map(Body::new));
            let peer = peer.clone();
            async move {
                tokio::select! {
                    biased;
                    answer = answer => answer.map_err(|never| match never {}),
                    () = peer.given_up() => Err(HungUp),
                }
            }
        });
        let connection = self.protocol.serve_connection(io, service);
        let watcher: Watcher = self.graceful.watcher();
        tokio::spawn(async move {
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(%error, "connection failed");
            }
            drop(permit);
        });
    }

    async fn end(self, grace: Duration, hurry: &Hurry) {
        tokio::select! {
            () = self.graceful.shutdown() => {}
            () = tokio::time::sleep(grace) => tracing::warn!("grace period is over, but requests are still running"),
            () = hurry.wanted() => tracing::warn!("asked to hurry: not waiting for running requests"),
        }
    }
}

/// Whether an accept error concerns only the one connection (its peer was gone already) and not the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
