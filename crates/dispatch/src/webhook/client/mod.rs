//! Sends webhooks. Owns what a receiver may cost: time, bytes, connections. Follows no redirects, decompresses nothing, and
//! must not know what an outcome means for a job.

mod answer;
mod notice;
mod pool;

use std::error::Error as _;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use http_body_util::Full;
use rustls::RootCertStore;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use self::notice::Notice;
use self::pool::{Borrowed, Limits, Pool, SendError, Visit};
use super::address::Allowed;
use super::connect::{Connector, Deadlines, Dial, Resolve, Target, Tcp};
use super::outcome::{Failure, FailureClass, Outcome};

/// How often a request is sent at most. It is sent again only if a connection that was kept turned out to be closed before
/// anything of it was sent.
const SENDINGS: usize = 3;
/// How many ports there are, and thus connections from one address to a target. What limits deliveries to a target are pools, each
/// for those who share it: a lower limit for all of them together would let one sender hold up the others.
const PORTS: usize = 1 << 16;
/// Headers that belong to the connection, and those that the client writes itself.
const OWN_HEADERS: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A webhook.
#[derive(Clone)]
pub struct Request {
    /// Where it goes.
    pub url: Url,
    /// Its headers; those that belong to a connection are left out.
    pub headers: HeaderMap,
    /// Its body, sent as it is.
    pub body: Bytes,
    /// How long it may take.
    pub timeouts: Timeouts,
}

/// How long a webhook may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection: the look-up, TCP and TLS. As long again may a webhook wait for a place among others to
    /// the same target, which does not count as its own time.
    pub connect: Duration,
    /// From then until the head of the answer is complete.
    pub first_byte: Duration,
    /// All of it.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), first_byte: Duration::from_secs(30), total: Duration::from_secs(30) }
    }
}

/// How a client is made.
#[derive(Clone)]
pub struct ClientOptions {
    /// What may be reached beyond public addresses with `https://`.
    pub allowed: Allowed,
    /// Finds the addresses of names.
    pub resolver: Arc<dyn Resolve>,
    /// Opens connections.
    pub dial: Arc<dyn Dial>,
    /// Which certificates are trusted.
    pub roots: RootCertStore,
    /// How many webhooks are under way to one target at once, of all senders together; more wait. There are at most as many
    /// connections to it.
    pub at_once: usize,
    /// How many idle connections to one target are kept.
    pub idle: usize,
    /// How many idle connections are kept in all.
    pub idle_in_all: usize,
    /// How long a connection may be idle. Less than receivers take, five seconds by Node's default: a connection that the
    /// receiver closes while a webhook is being sent is a failed attempt.
    pub idle_for: Duration,
}

impl ClientOptions {
    /// The defaults.
    #[must_use]
    pub fn new(allowed: Allowed, resolver: Arc<dyn Resolve>, roots: RootCertStore) -> Self {
        Self {
            allowed,
            resolver,
            dial: Arc::new(Tcp),
            roots,
            at_once: PORTS,
            idle: 256,
            idle_in_all: 512,
            idle_for: Duration::from_secs(4),
        }
    }
}

/// Sends webhooks, over connections that it keeps for the next.
pub struct Client {
    connector: Connector,
    pool: Arc<Pool>,
    /// Of webhooks that were not sent for a reason on this node.
    notice: Mutex<Notice>,
}

/// What a client holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// Targets with webhooks under way or connections.
    pub targets: usize,
    /// Idle connections, and all connections of HTTP/2.
    pub connections: usize,
    /// Idle connections.
    pub idle: usize,
}

impl Client {
    /// Fails if TLS cannot be set up.
    pub fn new(options: ClientOptions) -> Result<Self, rustls::Error> {
        let ClientOptions { allowed, resolver, dial, roots, at_once, idle, idle_in_all, idle_for } = options;
        let connector = Connector::new(allowed, resolver, dial, roots)?;
        let pool = Pool::new(Limits { at_once, idle, idle_in_all, idle_for });
        Ok(Self { connector, pool, notice: Mutex::default() })
    }

    /// What it holds.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let (targets, connections, idle) = self.pool.counts();
        Holds { targets, connections, idle }
    }

    /// Sends a webhook and waits for what comes of it. Dropping the future ends the request.
    pub async fn deliver(&self, request: &Request) -> Outcome {
        let outcome = self.try_deliver(request).await.unwrap_or_else(Outcome::Failed);
        if let Outcome::Failed(failure) = &outcome
            && failure.class == FailureClass::Local
        {
            self.tell(failure);
        }
        outcome
    }

    /// Tells whoever looks after this node what it lacks.
    fn tell(&self, failure: &Failure) {
        let webhooks = self.notice.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
        if let Some(webhooks) = webhooks {
            tracing::warn!(%failure, webhooks, "webhooks cannot be sent for a reason on this node: their jobs wait, and no attempt is counted");
        }
    }

    async fn try_deliver(&self, request: &Request) -> Result<Outcome, Failure> {
        let target = Target::of(&request.url)?;
        let came = Instant::now();
        let visit = timeout(request.timeouts.connect, self.pool.enter(&target)).await.map_err(|_| {
            let why =
                "this node has as many webhooks to one target under way as it sends at once: deliver from more nodes";
            Failure::local(format!("{why}; none to {target} ended within {}", since(came)))
        })?;
        // From here on: that others are under way is nothing that the target did.
        let mut by = Deadlines::from_now(request.timeouts.connect, request.timeouts.total);
        let mut sendings = 0;
        loop {
            sendings += 1;
            // The last one is over a connection that is new, and is the last whatever comes of it.
            let mut borrowed = self.connection(&visit, &target, &mut by, sendings < SENDINGS).await?;
            let message = message(request, &target, borrowed.is_http2())?;
            let sent = Instant::now();
            let answer_by = by.end.min(sent + request.timeouts.first_byte);
            match timeout_at(answer_by, borrowed.send(message)).await {
                Ok(Ok(response)) => {
                    let now = SystemTime::now();
                    return answer::read(response, borrowed, &target, by.end, now).await.map(Outcome::Answered);
                }
                Ok(Err(error)) if error.is_unsent && borrowed.is_reused => {}
                Ok(Err(error)) => return Err(broken(&target, &borrowed, &error)),
                // The connection is given up too: nothing says that it still works.
                Err(_) => return Err(Failure::timeout(format!("{target} did not answer within {}", since(sent)))),
            }
        }
    }

    /// A connection, before its deadline.
    async fn connection(
        &self,
        visit: &Visit,
        target: &Target,
        by: &mut Deadlines,
        takes_kept: bool,
    ) -> Result<Borrowed, Failure> {
        let kept = async { if takes_kept { visit.kept().await } else { None } };
        let late = |_| Failure::timeout(format!("no connection to {target} came about in time"));
        if let Some(kept) = timeout_at(by.connect, kept).await.map_err(late)? {
            return Ok(kept);
        }
        // On the heap: it is large, rare, and would be a part of every request.
        let opened = Box::pin(async {
            let connected = self.connector.connect(target, by).await?;
            timeout_at(by.connect, visit.opened(connected)).await.map_err(late)
        });
        let opened = opened.await?;
        opened.map_err(|error| Failure::connection(format!("no HTTP with {target}: {}", Chain(&error))))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("holds", &self.holds()).finish_non_exhaustive()
    }
}

/// Without what can be secret: the path, the query, headers and the body.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Request");
        shown.field("host", &self.url.host_str()).field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ClientOptions");
        shown.field("allowed", &self.allowed).field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

/// The request as it is written for a version of HTTP.
fn message(request: &Request, target: &Target, is_http2: bool) -> Result<http::Request<Full<Bytes>>, Failure> {
    let refused = || Failure::refused(format!("the URL of the target at {target} cannot be written in HTTP"));
    let url = &request.url;
    let mut path = url.path().to_owned();
    if let Some(query) = url.query() {
        // Never fails: it is written to a text.
        let _ = write!(path, "?{query}");
    }
    let path = PathAndQuery::try_from(path).map_err(|_| refused())?;
    let mut authority = target.host.to_string();
    if let Some(port) = url.port() {
        let _ = write!(authority, ":{port}");
    }
    let mut headers = request.headers.clone();
    for name in &OWN_HEADERS {
        headers.remove(name);
    }
    let own = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(own));
    let mut uri = Uri::builder().path_and_query(path);
    if is_http2 {
        let scheme = if target.is_encrypted { Scheme::HTTPS } else { Scheme::HTTP };
        uri = uri.scheme(scheme).authority(Authority::try_from(authority).map_err(|_| refused())?);
    } else {
        headers.insert(HOST, HeaderValue::try_from(authority).map_err(|_| refused())?);
    }
    let mut message = http::Request::new(Full::new(request.body.clone()));
    *message.method_mut() = Method::POST;
    *message.uri_mut() = uri.build().map_err(|_| refused())?;
    *message.version_mut() = if is_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    *message.headers_mut() = headers;
    Ok(message)
}

/// Why no answer came.
fn broken(target: &Target, borrowed: &Borrowed, sent: &SendError) -> Failure {
    if borrowed.is_spent() {
        return too_much(target);
    }
    let Some(error) = &sent.error else {
        return Failure::connection(format!("the connection to {target} is closed"));
    };
    if error.is_parse() {
        let message = format!("what {target} answered is not taken: {}", Chain(error));
        return Failure::new(FailureClass::InvalidAnswer, message);
    }
    Failure::connection(format!("the connection to {target} broke before an answer came: {}", Chain(error)))
}

fn too_much(target: &Target) -> Failure {
    Failure::new(FailureClass::InvalidAnswer, format!("{target} sends more than is taken"))
}

fn since(start: Instant) -> String {
    format!("{} ms", start.elapsed().as_millis())
}

/// An error with its causes.
struct Chain<'a>(&'a hyper::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
