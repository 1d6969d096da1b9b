//! What is secret is found nowhere: a whole server, logging all it can, with accounts and subscriptions whose secrets can be
//! recognised, delivers, fails, rotates and exports; then every answer, line, metric, row and file is searched for them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::stub::read_request;
use crate::{PATIENCE, Server, text, tidegate};

const TOKEN: &str = "t0ken-that-nobody-sees";
const OTHER_TOKEN: &str = "an0ther-that-nobody-sees";
const PASSWORD: &str = "pa55word-that-nobody-sees";
/// `tide:` and the password in base64.
const BASIC: &str = "dGlkZTpwYTU1d29yZC10aGF0LW5vYm9keS1zZWVz";

/// A place to work in: the server and everything that it and its callers said.
struct Scene {
    server: Server,
    http: reqwest::Client,
    log: std::path::PathBuf,
    /// Of a database on PostgreSQL, its address.
    postgres: Option<String>,
    said: Vec<String>,
    secrets: Vec<String>,
}

/// Answers each request with its own head: 200 below /good, else 500.
fn echo() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let Some((head, _)) = read_request(&stream) else { return };
                let status = if head.starts_with("POST /good") { "200 Good" } else { "500 Bad" };
                let length = head.len();
                let answer =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{head}");
                let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
            });
        }
    });
    url
}

impl Scene {
    fn start(postgres: Option<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let keys = dir.path().join("keys");
        let data = dir.path().join("data");
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
        args.extend(["--allow-target", "127.0.0.1", "--set", "log.level=trace"]);
        let file = format!("secrets.key_file={}", keys.display());
        if let Some(url) = &postgres {
            assert!(tidegate(&["secrets", "new-key", "--file", keys.to_str().unwrap()]).status().unwrap().success());
            args.extend(["--database-url", url, "--set", &file]);
        }
        let mut child =
            tidegate(&args).stdout(Stdio::piped()).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let url = line.trim().split(' ').next_back().unwrap_or_default().to_owned();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let server = Server { child, url, dir };
        let secrets = [TOKEN, OTHER_TOKEN, PASSWORD, BASIC].map(Into::into).into();
        Self { server, http, log, postgres, said: Vec::new(), secrets }
    }

    /// Sends a request and keeps the answer; of one that shows a secret this once, the rest of it.
    async fn send(&mut self, method: &str, path: &str, body: Option<String>) -> Value {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.server.url));
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let heads = format!("{:?}", answer.headers());
        let text = answer.text().await.unwrap();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let mut rest = text;
        if let Some(secret) = value["signingSecret"].as_str() {
            rest = rest.replace(secret, "");
            self.secrets.push(secret.trim_start_matches("whsec_").to_owned());
        }
        self.said.extend([heads, rest]);
        value
    }

    async fn post(&mut self, path: &str, body: Value) -> Value {
        self.send("POST", path, Some(body.to_string())).await
    }

    /// Runs a command and keeps what it printed.
    fn run(&mut self, args: &[&str]) {
        let output = tidegate(args).env("TIDEGATE_URL", &self.server.url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", crate::error(&output));
        self.said.extend([text(&output), crate::error(&output)]);
    }

    /// All that was said so far has none of the secrets.
    fn check(&self) {
        for said in &self.said {
            self.check_text("what was said", said.as_bytes());
        }
    }

    fn check_text(&self, what: &str, bytes: &[u8]) {
        for secret in &self.secrets {
            let found = bytes.windows(secret.len()).position(|window| window == secret.as_bytes());
            if let Some(at) = found {
                let around = String::from_utf8_lossy(&bytes[at.saturating_sub(200)..(at + 100).min(bytes.len())]);
                panic!("{secret} is in {what}: {around}");
            }
        }
    }

    /// The rows of all tables, as text.
    async fn postgres_rows(&self, url: &str) -> String {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'tidegate'";
        let mut all = String::new();
        for table in client.query(tables, &[]).await.unwrap() {
            let table: String = table.get(0);
            for row in client.query(&format!("SELECT t::text FROM tidegate.{table} t"), &[]).await.unwrap() {
                all.push_str(row.get::<_, &str>(0));
            }
        }
        drop(client);
        connection.await.unwrap().unwrap();
        all
    }
}

/// Every path that can be read, with these ids in it.
fn readable(ids: &[(&str, String)]) -> Vec<String> {
    let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
    let paths = document["paths"].as_object().unwrap().iter().filter(|(_, item)| item.get("get").is_some());
    paths
        .filter_map(|(path, _)| {
            let named = ids.iter().find(|(of, _)| path.starts_with(of)).map(|(_, id)| id.as_str());
            let filled = ["id", "name", "key"]
                .iter()
                .fold(path.clone(), |path, part| path.replace(&format!("{{{part}}}"), named.unwrap_or("default")));
            // Waits for events until it gets one.
            (!filled.contains("/subscribe")).then_some(filled)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    everything_is_searched(Scene::start(None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let url = tidegate_testing::fresh_database();
    everything_is_searched(Scene::start(Some(url.clone()))).await;
    tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
}

async fn everything_is_searched(mut scene: Scene) {
    let receiver = echo();
    let accounts = "/api/service-accounts";
    let bearer = json!({ "code": "bearer", "name": "n", "authType": "BEARER", "token": TOKEN });
    let basic = json!({ "code": "basic", "name": "n", "authType": "BASIC", "username": "tide", "password": PASSWORD });
    let mut made = Vec::new();
    for (body, path) in [(bearer, "good"), (basic, "bad")] {
        let account = scene.post(accounts, body.clone()).await;
        let subscription = scene
            .post(
                "/api/subscriptions",
                json!({
                    "code": body["code"], "name": "n", "eventTypes": [{ "eventTypeCode": "a:b:c:d" }], "maxRetries": 1,
                    "retryStrategy": { "type": "fixed", "delaySeconds": 0 }, "target": format!("{receiver}/{path}"),
                    "serviceAccountId": account["id"],
                }),
            )
            .await;
        made.push((account["id"].as_str().unwrap().to_owned(), subscription["id"].as_str().unwrap().to_owned()));
    }
    scene.post(accounts, json!({ "code": "bearer", "name": "n", "authType": "BEARER", "token": TOKEN })).await;
    let changed = json!({ "name": "n", "authType": "BEARER", "token": OTHER_TOKEN }).to_string();
    scene.send("PUT", &format!("{accounts}/{}", made[0].0), Some(changed)).await;
    for (account, subscription) in &made {
        for path in [format!("{accounts}/{account}"), format!("/api/subscriptions/{subscription}")] {
            scene.post(&format!("{path}/rotate-secret"), json!({ "overlapSeconds": 600 })).await;
        }
    }
    for broken in [
        format!(r#"{{"code":"x","name":"n","authType":"BEARER","token":"{TOKEN}"#),
        format!(r#"{{"code":"x","name":"n","authType":"BEARER","token":["{TOKEN}"]}}"#),
        format!(r#"{{"code":"x","name":"n","authType":"BEARER","token":{TOKEN}}}"#),
        format!(r#"{{"code":"x","name":"n","authType":"{TOKEN}"}}"#),
        format!(r#"{{"code":"x","name":"n","authType":"BASIC","username":"u:","password":"{PASSWORD}"}}"#),
    ] {
        scene.send("POST", accounts, Some(broken)).await;
    }
    let event = json!({ "type": "a:b:c:d", "source": "/s", "data": 1 });
    let event = scene.post("/api/events", event).await["id"].as_str().unwrap().to_owned();
    let started = Instant::now();
    loop {
        let shown = scene.send("GET", &format!("/api/events/{event}"), None).await;
        let jobs = shown["dispatchJobs"].as_array().unwrap().clone();
        if jobs.len() == 2 && jobs.iter().all(|job| job["status"] == "COMPLETED" || job["status"] == "ERROR") {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{shown}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let ids = [(accounts, made[1].0.clone()), ("/api/subscriptions", made[1].1.clone()), ("/api/events", event)];
    for path in readable(&ids) {
        scene.send("GET", &path, None).await;
    }
    for list in [accounts, "/api/subscriptions", "/metrics"] {
        scene.send("GET", list, None).await;
    }
    scene.run(&["export"]);
    scene.run(&["export", "--json"]);
    scene.run(&["accounts", "list"]);
    scene.run(&["accounts", "show", "bearer"]);
    scene.run(&["subscriptions", "show", "basic"]);
    scene.check();
    assert!(
        scene.secrets.len() == 12 && scene.said.len() > 100,
        "{} secrets in {}",
        scene.secrets.len(),
        scene.said.len()
    );
    search_what_is_left(scene).await;
}

/// The log, and the database before and after the server has stopped.
async fn search_what_is_left(scene: Scene) {
    let folder = scene.server.dir.path().join("data");
    let search_files = |scene: &Scene| {
        let files = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        files.for_each(|file| scene.check_text(&file.display().to_string(), &std::fs::read(&file).unwrap()));
    };
    search_files(&scene);
    if let Some(url) = &scene.postgres {
        let rows = scene.postgres_rows(url).await;
        assert!(rows.contains("sealed"));
        scene.check_text("the rows", rows.as_bytes());
    }
    let killed = Command::new("kill").arg(scene.server.child.id().to_string()).status().unwrap();
    assert!(killed.success());
    let started = Instant::now();
    while Path::new(&format!("/proc/{}/exe", scene.server.child.id())).exists() {
        assert!(started.elapsed() < PATIENCE, "the server does not stop");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    search_files(&scene);
    let log = std::fs::read(&scene.log).unwrap();
    assert!(log.windows(5).any(|window| window == b"DEBUG"), "it logs more than it does by default");
    scene.check_text("the log", &log);
}
