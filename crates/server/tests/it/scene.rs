//! A server on a free port over a throw-away database, and a client for it.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tidegate::EventQueue;
use tidegate_dispatch::secrets::SecretOptions;
use tidegate_server::{Handle, Metrics, Options, Server};

/// How long a test waits for something: nothing takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Scene {
    pub(crate) queue: EventQueue,
    pub(crate) http: reqwest::Client,
    server: Option<Handle>,
    base: String,
    key: Option<String>,
    _place: Place,
}

enum Place {
    Folder { dir: tempfile::TempDir },
    Postgres(String),
    Elsewhere,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Postgres(url) = self {
            let url = url.clone();
            let _ = std::thread::spawn(move || tidegate_testing::drop_database(&url)).join();
        }
    }
}

/// The keys of servers on PostgreSQL, where one must be configured.
pub(crate) fn shared_secrets() -> SecretOptions {
    let key = Some("tgkey_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse().unwrap());
    SecretOptions { key, ..SecretOptions::default() }
}

fn guarded() -> Options {
    let mut options = Options::default();
    options.auth.required = true;
    options
}

fn delivering() -> Options {
    let mut options = Options::default();
    options.run_router = true;
    options.gateway.allowed_targets = vec!["127.0.0.1".parse().unwrap()];
    options
}

/// The recorder must be there before a queue is opened.
fn measured() -> Options {
    let mut options = delivering();
    options.metrics = Metrics::install();
    options.measure_jobs_every = Duration::from_millis(200);
    options
}

/// An HTTP answer with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.text))
    }

    /// Checks the status and returns the body.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// Checks that this is an error with this status and code, and returns its text.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> String {
        let body = self.expect(status);
        assert_eq!(body["code"], code, "{body}");
        assert_eq!(self.headers["content-type"], "application/json");
        let text = body["error"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{body}");
        text.to_owned()
    }
}

impl Scene {
    pub(crate) async fn sqlite() -> Self {
        Self::sqlite_with(Options::default()).await
    }

    pub(crate) async fn sqlite_with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let queue = EventQueue::open(dir.path().join("tidegate.db").to_str().unwrap()).await.unwrap();
        Self::start(queue, options, Place::Folder { dir }).await
    }

    pub(crate) async fn postgres() -> Self {
        let url = tidegate_testing::fresh_database();
        let queue = EventQueue::open(&url).await.unwrap();
        Self::start(queue, Options::default(), Place::Postgres(url)).await
    }

    /// On a database that the test drops itself.
    pub(crate) async fn at(url: &str) -> Self {
        let queue = EventQueue::open(url).await.unwrap();
        Self::start(queue, Options::default(), Place::Elsewhere).await
    }

    /// With keys required.
    pub(crate) async fn guarded_sqlite() -> Self {
        Self::sqlite_with(guarded()).await
    }

    /// With keys required.
    pub(crate) async fn guarded_postgres() -> Self {
        let url = tidegate_testing::fresh_database();
        let queue = EventQueue::open(&url).await.unwrap();
        Self::start(queue, guarded(), Place::Postgres(url)).await
    }

    /// On a database that an earlier version wrote, with keys required.
    pub(crate) async fn sqlite_of(file: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.db");
        std::fs::write(&path, file).unwrap();
        let queue = EventQueue::open(path.to_str().unwrap()).await.unwrap();
        Self::start(queue, guarded(), Place::Folder { dir }).await
    }

    /// On a Postgres database from a dump of an earlier version, with keys required.
    pub(crate) async fn postgres_of(dump: &str) -> Self {
        let url = tidegate_testing::fresh_database();
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(dump).await.unwrap();
        let queue = EventQueue::open(&url).await.unwrap();
        Self::start(queue, guarded(), Place::Postgres(url)).await
    }

    /// With a server that delivers webhooks to this machine.
    pub(crate) async fn delivering_sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let queue = EventQueue::open(dir.path().join("tidegate.db").to_str().unwrap()).await.unwrap();
        Self::serve(queue, delivering(), Place::Folder { dir }).await
    }

    /// With a server that delivers webhooks to this machine.
    pub(crate) async fn delivering_postgres() -> Self {
        let url = tidegate_testing::fresh_database();
        let queue = EventQueue::open(&url).await.unwrap();
        Self::serve(queue, delivering(), Place::Postgres(url)).await
    }

    /// With a server that delivers webhooks to this machine and measures what waits every moment.
    pub(crate) async fn measured_sqlite() -> Self {
        let options = measured();
        let dir = tempfile::tempdir().unwrap();
        let queue = EventQueue::open(dir.path().join("tidegate.db").to_str().unwrap()).await.unwrap();
        Self::serve(queue, options, Place::Folder { dir }).await
    }

    /// With a server that delivers webhooks to this machine and measures what waits every moment.
    pub(crate) async fn measured_postgres() -> Self {
        let options = measured();
        let url = tidegate_testing::fresh_database();
        let queue = EventQueue::open(&url).await.unwrap();
        Self::serve(queue, options, Place::Postgres(url)).await
    }

    /// With a server that delivers nothing: what tests look at stays as it is.
    async fn start(queue: EventQueue, mut options: Options, place: Place) -> Self {
        options.run_router = false;
        Self::serve(queue, options, place).await
    }

    async fn serve(queue: EventQueue, mut options: Options, place: Place) -> Self {
        if !matches!(place, Place::Folder { .. }) {
            options.gateway.secrets = shared_secrets();
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(queue.clone(), options).unwrap().start(listener).unwrap();
        let base = format!("http://{}", server.address());
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(90)).build().unwrap();
        Self { queue, http, server: Some(server), base, key: None, _place: place }
    }

    /// The database's file, where it is SQLite.
    pub(crate) fn sqlite_file(&self) -> std::path::PathBuf {
        match &self._place {
            Place::Folder { dir } => dir.path().join("tidegate.db"),
            Place::Postgres(_) | Place::Elsewhere => panic!("this scene has no SQLite file"),
        }
    }

    /// The database's address, where it is Postgres.
    pub(crate) fn postgres_address(&self) -> Option<&str> {
        match &self._place {
            Place::Postgres(url) => Some(url),
            Place::Folder { .. } | Place::Elsewhere => None,
        }
    }

    /// The database's address, for a second node.
    pub(crate) fn postgres_url(&self) -> &str {
        self.postgres_address().unwrap_or_else(|| panic!("this scene has no Postgres database"))
    }

    pub(crate) fn with_key(&mut self, key: impl Into<String>) {
        self.key = Some(key.into());
    }

    pub(crate) fn address(&self) -> String {
        self.base.trim_start_matches("http://").to_owned()
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// A request with another key than the scene's.
    pub(crate) fn request_with(&self, key: &str, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(key)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::PUT, path).json(&body)).await
    }

    /// Posts text as JSON.
    pub(crate) async fn post_text(&self, path: &str, text: impl Into<reqwest::Body>) -> Answer {
        send(self.request(Method::POST, path).header("content-type", "application/json").body(text)).await
    }

    /// Publishes an event with this tag and returns its number.
    pub(crate) async fn publish(&self, tag: &str) -> i64 {
        let body = json!({ "title": "An event", "tags": tag, "payload": { "tag": tag } });
        self.post("/events", body).await.expect(201)["id"].as_i64().unwrap()
    }

    /// Claims an event with this tag, which must come within 10 seconds.
    pub(crate) async fn take(&self, tag: &str, worker: &str) -> Value {
        self.get(&format!("/events/subscribe?tags={tag}&worker_id={worker}&wait=10")).await.expect(200)
    }

    pub(crate) async fn status(&self, id: i64) -> String {
        self.get(&format!("/events/{id}")).await.expect(200)["status"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn stop_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await.unwrap();
        }
    }

    pub(crate) async fn close(mut self) {
        self.stop_server().await;
        self.queue.close().await;
    }
}

pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    assert!(!status.is_server_error() || status.as_u16() == 503, "{status}: {text}");
    Answer { status, headers, text }
}

/// Runs cases on both databases.
macro_rules! on_both {
    (with keys: $($case:ident),* $(,)?) => {
        crate::scene::on_both!(guarded_sqlite, guarded_postgres: $($case),*);
    };
    ($sqlite:ident, $postgres:ident: $($case:ident),*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::scene::Scene::$sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::scene::Scene::$postgres().await).await;
            })*
        }
    };
    (delivering: $($case:ident),* $(,)?) => {
        crate::scene::on_both!(delivering_sqlite, delivering_postgres: $($case),*);
    };
    (measured: $($case:ident),* $(,)?) => {
        crate::scene::on_both!(measured_sqlite, measured_postgres: $($case),*);
    };
    ($($case:ident),* $(,)?) => {
        crate::scene::on_both!(sqlite, postgres: $($case),*);
    };
}
pub(crate) use on_both;
