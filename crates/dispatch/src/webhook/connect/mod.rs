//! Connections to receivers. Owns that only checked addresses are connected to: every address is checked right before, those
//! of names as they were just resolved and those in URLs too. Never uses a proxy. Must not know HTTP.

mod known;
mod lack;
mod line;
mod resolve;
mod tls;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::address::{Allowed, Refused, without_dot};
use super::outcome::Failure;
pub(super) use line::Meter;
use resolve::Lookups;
pub use resolve::{Resolve, ResolveError, SystemResolver};
pub use tls::system_roots;

/// How many addresses of a name are tried.
const MAX_ADDRESSES: usize = 8;

/// An address that was checked. Only the connector makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checked(SocketAddr);

impl Checked {
    /// The address.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

/// Opens connections; tests record here what would be reached.
pub trait Dial: Send + Sync + 'static {
    /// Connects to an address.
    fn dial(&self, to: Checked) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// Until when a webhook may take, by the clock of what its target does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// Until there is a connection.
    pub(super) connect: Instant,
    /// All of it.
    pub(super) end: Instant,
}

impl Deadlines {
    pub(super) fn from_now(connect: Duration, total: Duration) -> Self {
        let now = Instant::now();
        Self { connect: now + connect.min(total), end: now + total }
    }

    /// So long was waited for something that is nothing of the target's.
    fn put_off(&mut self, by: Duration) {
        self.connect += by;
        self.end += by;
    }
}

/// Opens connections by TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, to: Checked) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(async move {
            let tcp = TcpStream::connect(to.0).await?;
            tcp.set_nodelay(true)?;
            Ok(tcp)
        })
    }
}

/// Where a webhook goes: the part of its URL that decides about connections.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) is_encrypted: bool,
}

impl Target {
    /// Of a URL that webhooks can go to.
    pub(super) fn of(url: &Url) -> Result<Self, Failure> {
        let refused = |why: &str| Err(Failure::refused(format!("the target {why}")));
        let is_encrypted = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return refused("is neither https:// nor http://"),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return refused("has credentials in it");
        }
        match (url.host(), url.port_or_known_default()) {
            (Some(host), Some(port)) if port != 0 => Ok(Self { host: host.to_owned(), port, is_encrypted }),
            _ => refused("has no host and port"),
        }
    }
}

/// Without what is secret in a URL.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// An open connection, and what it may receive.
pub(super) struct Connected {
    pub(super) io: Box<dyn Io>,
    pub(super) meter: Arc<Meter>,
    /// Whether HTTP/2 was agreed upon.
    pub(super) is_http2: bool,
}

/// What can be read and written.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connects to receivers.
pub(super) struct Connector {
    allowed: Allowed,
    lookups: Lookups,
    dial: Arc<dyn Dial>,
    tls: Arc<ClientConfig>,
}

impl Connector {
    pub(super) fn new(
        allowed: Allowed,
        resolver: Arc<dyn Resolve>,
        dial: Arc<dyn Dial>,
        roots: RootCertStore,
    ) -> Result<Self, rustls::Error> {
        Ok(Self { allowed, lookups: Lookups::new(resolver), dial, tls: tls::config(roots)? })
    }

    /// Connects, and agrees upon TLS and a protocol, before the deadline.
    pub(super) async fn connect(&self, target: &Target, by: &mut Deadlines) -> Result<Connected, Failure> {
        let addresses = self.addresses(target, by).await?;
        let deadline = by.connect;
        let tcp = self.dial(target, &addresses, deadline).await?;
        let meter = Arc::new(Meter::new());
        let line = line::Line::new(tcp, Arc::clone(&meter));
        if !target.is_encrypted {
            return Ok(Connected { io: Box::new(line), meter, is_http2: false });
        }
        let handshake = TlsConnector::from(Arc::clone(&self.tls)).connect(server_name(target)?, line);
        let stream = timeout_at(deadline, handshake)
            .await
            .map_err(|_| Failure::timeout(format!("the TLS handshake with {target} took too long")))?
            .map_err(|error| Failure::connection(format!("the TLS handshake with {target} failed: {error}")))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Connected { io: Box::new(stream), meter, is_http2 })
    }

    /// The addresses of a target that may be connected to.
    async fn addresses(&self, target: &Target, by: &mut Deadlines) -> Result<Vec<Checked>, Failure> {
        let host = borrowed(&target.host);
        if !target.is_encrypted && !self.allowed.has_host(&host) {
            return Err(Failure::refused(format!(
                "{target} is not among dispatch.allowed_targets: only those may be reached without https://"
            )));
        }
        match host {
            Host::Ipv4(address) => self.check(target, &[IpAddr::V4(address)]),
            Host::Ipv6(address) => self.check(target, &[IpAddr::V6(address)]),
            Host::Domain(name) => {
                let late = || Failure::timeout(format!("looking up {name} took too long"));
                let mut look_up = self.lookups.of(name);
                let came = Instant::now();
                look_up.begun().await;
                by.put_off(came.elapsed());
                let found = timeout_at(by.connect, look_up.answer()).await.map_err(|_| late())?;
                let found = found.map_err(|error| match error {
                    ResolveError::Timeout => late(),
                    ResolveError::Failed(why) => Failure::connection(format!("{name} was not found: {why}")),
                    ResolveError::Local(why) => Failure::local(format!("{why}; {name} was not looked up")),
                })?;
                self.check(target, &found)
            }
        }
    }

    /// Those that may be connected to. The others are not named: what a name is within this network is not for everyone.
    fn check(&self, target: &Target, found: &[IpAddr]) -> Result<Vec<Checked>, Failure> {
        let host = borrowed(&target.host);
        let (mut checked, mut refused) = (Vec::new(), None::<Refused>);
        for address in found {
            match self.allowed.check(&host, *address) {
                Ok(()) => checked.push(Checked(SocketAddr::new(*address, target.port))),
                Err(why) => refused = Some(why),
            }
        }
        checked.truncate(MAX_ADDRESSES);
        match refused {
            _ if !checked.is_empty() => Ok(checked),
            Some(why) => Err(Failure::refused(format!(
                "{target} must not be reached: it has {why}, and is not among dispatch.allowed_targets"
            ))),
            None => Err(Failure::connection(format!("{} has no addresses", target.host))),
        }
    }

    /// Tries one address after the other, each for its part of the time that is left. What this node lacked for one of them
    /// counts, whatever came of the others: that one may have answered.
    async fn dial(&self, target: &Target, addresses: &[Checked], deadline: Instant) -> Result<TcpStream, Failure> {
        let (mut last, mut local) = (None, None);
        for (at, address) in addresses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let part = left / u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            match timeout_at(Instant::now() + part, self.dial.dial(*address)).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => match lack::of_connections(&error, address.0.ip()) {
                    Some(lack) => local = Some(Failure::local(format!("{lack}; no connection to {target} ({error})"))),
                    None => last = Some(Failure::connection(why_not(target, *address, &error))),
                },
                Err(_) => last = Some(Failure::timeout(why_not(target, *address, &"it took too long"))),
            }
        }
        Err(local.or(last).unwrap_or_else(|| Failure::connection(format!("{target} has no addresses"))))
    }
}

fn why_not(target: &Target, address: Checked, why: &dyn fmt::Display) -> String {
    format!("no connection to {target} at {}: {why}", address.0.ip())
}

fn borrowed(host: &Host) -> Host<&str> {
    match host {
        Host::Domain(name) => Host::Domain(name),
        Host::Ipv4(address) => Host::Ipv4(*address),
        Host::Ipv6(address) => Host::Ipv6(*address),
    }
}

fn server_name(target: &Target) -> Result<ServerName<'static>, Failure> {
    match &target.host {
        Host::Domain(name) => ServerName::try_from(without_dot(name).to_owned())
            .map_err(|_| Failure::refused(format!("{name} is no name that a certificate can have"))),
        Host::Ipv4(address) => Ok(ServerName::from(IpAddr::V4(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(IpAddr::V6(*address))),
    }
}
