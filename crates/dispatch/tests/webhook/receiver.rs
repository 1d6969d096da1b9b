//! Receivers and the world around a client: names, addresses that are recorded, certificates.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tidegate_dispatch::AllowedTarget;
use tidegate_dispatch::webhook::address::Allowed;
use tidegate_dispatch::webhook::client::{Client, ClientOptions, Holds, Request, Timeouts};
use tidegate_dispatch::webhook::connect::{Checked, Dial, Resolve, ResolveError};
use tidegate_dispatch::webhook::outcome::{Answer, Failure, Outcome};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// A public address that names here have; nothing connects to it.
pub(crate) const PUBLIC: [u8; 4] = [93, 184, 215, 14];
/// The name that receivers' certificates have.
pub(crate) const NAME: &str = "hooks.example";
/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Records each address that is connected to, and connects to another one instead.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
    /// Where connections really go; nowhere by default.
    pub(crate) to: Option<SocketAddr>,
    /// Addresses that nobody answers at.
    pub(crate) silent: Vec<IpAddr>,
    /// Addresses that refuse.
    pub(crate) refusing: Vec<IpAddr>,
}

impl Recorder {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self { to: Some(address), ..Self::default() }
    }

    pub(crate) fn dialled(&self) -> Vec<SocketAddr> {
        self.dialled.lock().unwrap().clone()
    }
}

impl Dial for Recorder {
    fn dial(&self, to: Checked) -> BoxFuture<'static, io::Result<TcpStream>> {
        let address = to.address();
        self.dialled.lock().unwrap().push(address);
        let to = self.to.filter(|_| !self.refusing.contains(&address.ip()));
        let is_silent = self.silent.contains(&address.ip());
        Box::pin(async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            match to {
                Some(to) => TcpStream::connect(to).await,
                None => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }
}

/// Names with lists of addresses: the next one for each look-up, and the last one from then on.
#[derive(Default)]
pub(crate) struct Names(Mutex<HashMap<String, Vec<Vec<IpAddr>>>>);

impl Names {
    pub(crate) fn with(self, name: &str, answers: &[&[&str]]) -> Self {
        let mut answers: Vec<Vec<IpAddr>> =
            answers.iter().map(|answer| answer.iter().map(|one| one.parse().unwrap()).collect()).collect();
        answers.reverse();
        self.0.lock().unwrap().insert(name.to_owned(), answers);
        self
    }

    /// The receiver's name is public.
    pub(crate) fn public() -> Self {
        Self::default().with(NAME, &[&["93.184.215.14"]])
    }
}

impl Resolve for Names {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        let mut names = self.0.lock().unwrap();
        let answer = names.get_mut(name.trim_end_matches('.')).map(|answers| match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop().unwrap(),
        });
        Box::pin(async move { answer.ok_or_else(|| ResolveError::Failed("no such name".into())) })
    }
}

/// Who signs receivers' certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) roots: RootCertStore,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        Self { issuer: Issuer::new(params, key), roots }
    }

    /// TLS with a certificate for a name, changed by `change`, and these protocols.
    pub(crate) fn tls(
        &self,
        name: &str,
        protocols: &[&[u8]],
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A receiver that does with each connection what a function says. It ends when it is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    pub(crate) async fn new<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self { address, task }
    }

    /// Answers each request of HTTP, over TLS if there is any.
    pub(crate) async fn http<F>(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(Taken) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        Self::new(move |stream| {
            let (tls, answer) = (tls.clone(), answer.clone());
            async move {
                let Some(tls) = tls else { return serve_http1(stream, answer).await };
                let Ok(stream) = tls.accept(stream).await else { return };
                match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => serve_http2(stream, answer).await,
                    _ => serve_http1(stream, answer).await,
                }
            }
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

/// A request that was taken.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) head: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

async fn taken(request: http::Request<hyper::body::Incoming>) -> Taken {
    let (head, body) = request.into_parts();
    let line = format!("{} {} {:?}", head.method, head.uri, head.version);
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    Taken { head: line, headers: head.headers, body }
}

async fn serve_http1<S, F>(stream: S, answer: impl Fn(Taken) -> F + Clone)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let service = service_fn(|request| {
        let answer = answer.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(taken(request).await).await) }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn serve_http2<S, F>(stream: S, answer: impl Fn(Taken) -> F + Clone + Send + Sync + 'static)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = answer.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(taken(request).await).await) }
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Reads a request of HTTP/1.1 whose body is `BODY`.
pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.ends_with(BODY) {
        match stream.read_buf(&mut read).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    read
}

/// The body of all requests.
pub(crate) const BODY: &[u8] = b"{\"hello\": \"world\"}";

pub(crate) fn request(url: &str) -> Request {
    Request {
        url: url.parse().unwrap_or_else(|error| panic!("{url}: {error}")),
        headers: HeaderMap::new(),
        body: Bytes::from_static(BODY),
        timeouts: Timeouts { connect: LONG, first_byte: LONG, total: LONG },
    }
}

/// A request to a receiver that is given little time.
pub(crate) fn hasty(url: &str) -> Request {
    let timeouts = Timeouts {
        connect: Duration::from_millis(400),
        first_byte: Duration::from_millis(300),
        total: Duration::from_millis(600),
    };
    Request { timeouts, ..request(url) }
}

/// Options that allow loopback.
pub(crate) fn local() -> ClientOptions {
    let targets: Vec<AllowedTarget> = ["127.0.0.0/8", "::1"].map(|one| one.parse().unwrap()).into();
    ClientOptions::new(Allowed::new(&targets), Arc::new(Names::public()), RootCertStore::empty())
}

/// Options that allow nothing, for a receiver that is public, as `NAME`.
pub(crate) fn public(recorder: &Arc<Recorder>, names: Names, roots: RootCertStore) -> ClientOptions {
    let recorder = Arc::clone(recorder) as Arc<dyn Dial>;
    ClientOptions { dial: recorder, ..ClientOptions::new(Allowed::default(), Arc::new(names), roots) }
}

pub(crate) fn client(options: ClientOptions) -> Client {
    Client::new(options).unwrap()
}

pub(crate) async fn answer(client: &Client, request: &Request) -> Answer {
    match client.deliver(request).await {
        Outcome::Answered(answer) => answer,
        Outcome::Failed(failure) => panic!("{}: {failure}", request.url),
    }
}

pub(crate) async fn failure(client: &Client, request: &Request) -> Failure {
    match client.deliver(request).await {
        Outcome::Failed(failure) => failure,
        Outcome::Answered(answer) => panic!("{}: {answer:?}", request.url),
    }
}

/// Waits until a client holds nothing any more.
pub(crate) async fn until_empty(client: &Client) {
    let nothing = Holds { targets: 0, connections: 0, idle: 0 };
    let empty = async {
        while client.holds() != nothing {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, empty).await.unwrap_or_else(|_| panic!("{:?}", client.holds()));
}
