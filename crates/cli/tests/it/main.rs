//! The `tidegate` binary end to end: a real server process, and the commands against it.

mod apply;
mod exports;
mod jobs;
mod no_secret_is_shown;
mod secrets;
mod stub;
mod stubbed;
mod trouble;
mod types;
mod webhooks;
mod worker;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// The binary, without the `TIDEGATE_*` variables of the environment that runs the tests.
fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    without_settings(&mut command);
    command.args(args);
    command
}

fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
        command.env_remove(name);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

struct Server {
    child: Child,
    url: String,
    dir: tempfile::TempDir,
}

impl Server {
    fn start(extra: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
        args.extend(extra);
        let mut child = tidegate(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().split(' ').next_back().unwrap_or_default().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{line:?}");
        Self { child, url, dir }
    }

    fn data(&self) -> String {
        self.dir.path().join("data").to_str().unwrap().to_owned()
    }

    /// Runs a command against the server; it must succeed.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let output = tidegate(args).env("TIDEGATE_URL", &self.url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", error(&output));
        text(&output)
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.run(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Sends SIGTERM, waits for the exit, and returns how long that took.
    fn stop(mut self) -> Duration {
        let started = Instant::now();
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                break;
            }
            assert!(started.elapsed() < PATIENCE, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "stdout has only the start line");
        started.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn events_are_published_worked_off_and_shown() {
    let server = Server::start(&[]);
    let good = server.run(&["publish", "Say hello", "--tags", "greet", "--payload", r#"{"name": "Alice"}"#]);
    let out = server.dir.path().join("out");
    let script =
        format!("cat > {0}; echo \" $EVENT_ID $EVENT_TITLE $EVENT_TAGS $EVENT_ATTEMPT\" >> {0}", out.display());
    server.run(&["work", "--tags", "greet", "--worker-id", "me:1", "--until-empty", "--", "sh", "-c", &script]);
    let written = std::fs::read_to_string(&out).unwrap();
    assert_eq!(written.trim(), format!(r#"{{"name": "Alice"}} {good} Say hello greet 1"#));

    let bad = server.run(&["publish", "Fail", "--tags", "greet", "--max-retries", "0"]);
    let script = "echo it broke >&2; exit 3";
    server.run(&["work", "--tags", "greet", "--worker-id", "me:2", "--until-empty", "--", "sh", "-c", script]);
    let shown = server.json(&["events", "show", &bad]);
    assert_eq!(shown["status"], "FAILED");
    let last = shown["logs"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["status_code"], &last["error_message"]), (&3.into(), &"it broke".into()));
    let actions: Vec<&str> =
        shown["logs"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["PICKED", "STARTED", "FAILED"]);

    let listed = server.run(&["events", "list"]);
    assert!(listed.contains("COMPLETED") && listed.contains("FAILED") && listed.contains("Say hello"), "{listed}");
    assert_eq!(server.json(&["events", "list", "--status", "COMPLETED"])["total"], 1);
    assert_eq!(server.json(&["events", "reset", &bad, "--reason", "try again"])["status"], "PENDING");
    server.run(&["work", "--tags", "greet", "--until-empty", "--", "false"]);
    assert!(server.run(&["events", "redrive"]).starts_with("1 "));
    let queues = server.run(&["queues", "list"]);
    assert!(queues.contains("default") && queues.contains("active"), "{queues}");
    assert!(server.run(&["queues", "pause", "default"]).ends_with("is paused"));
    server.run(&["queues", "set", "mail", "--max-retries", "7"]);
    assert_eq!(server.json(&["queues", "list"])[1]["max_retries"], 7);
    let tailed = server.run(&["tail", "-n", "2", "--count", "2"]);
    assert_eq!(tailed.lines().count(), 2, "{tailed}");
    server.stop();
}

#[test]
fn a_long_command_keeps_its_event() {
    let server = Server::start(&[]);
    let id = server.run(&["publish", "Slow", "--tags", "slow"]);
    // The lease is one second; the command takes longer than that.
    server.run(&["work", "--tags", "slow", "--lease-seconds", "1", "--until-empty", "--", "sh", "-c", "sleep 2.5"]);
    let shown = server.json(&["events", "show", &id]);
    assert_eq!((&shown["status"], &shown["attempts"]), (&"COMPLETED".into(), &1.into()));
    server.stop();
}

#[test]
fn a_stop_ends_waiting_workers_polls_and_the_server() {
    let server = Server::start(&[]);
    let mut worker = tidegate(&["work", "--tags", "none", "--worker-id", "waiting", "--", "true"]);
    let mut worker = worker.env("TIDEGATE_URL", &server.url).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !server.run(&["queues", "list"]).contains("default") {
        assert!(started.elapsed() < PATIENCE);
    }
    assert!(server.stop() < Duration::from_secs(9));
    worker.kill().unwrap();
    worker.wait().unwrap();
}

/// A request that never ends delays a stop by the grace period; a second signal cuts that short. SIGHUP does not stop
/// the server at all.
#[test]
fn a_second_signal_hurries_and_a_hang_up_is_ignored() {
    use std::io::Write;
    let mut server = Server::start(&["--set", "grace_seconds=600", "--set", "limits.body_seconds=600"]);
    let signal = |name: &str, server: &Server| {
        assert!(Command::new("kill").args([name, &server.child.id().to_string()]).status().unwrap().success());
    };
    for _ in 0..3 {
        signal("-HUP", &server);
        server.run(&["publish", "Still here", "--tags", "a"]);
    }
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut endless = std::net::TcpStream::connect(&address).unwrap();
    let head =
        "POST /events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    endless.write_all(head.as_bytes()).unwrap();
    server.run(&["publish", "It was heard", "--tags", "a"]);
    signal("-TERM", &server);
    let started = Instant::now();
    while std::net::TcpStream::connect(&address).is_ok() {
        assert!(started.elapsed() < PATIENCE, "the server still listens");
    }
    assert!(server.child.try_wait().unwrap().is_none(), "a running request has its grace period");
    signal("-TERM", &server);
    let started = Instant::now();
    while server.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < PATIENCE, "the second signal does not end the server");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn keys_are_made_shown_once_and_revoked() {
    let server = Server::start(&["--require-auth"]);
    let refused = tidegate(&["events", "list"]).env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(!refused.status.success());
    assert!(error(&refused).contains("401") && error(&refused).contains("TIDEGATE_KEY"), "{}", error(&refused));
    let data = server.data();
    let secret = server.run(&["keys", "create", "ci", "--scopes", "publish,manage", "--data-dir", &data]);
    assert!(secret.starts_with("tg_"));
    let listed = server.run(&["keys", "list", "--data-dir", &data]);
    assert!(listed.contains("ci") && listed.contains("publish,manage") && !listed.contains(&secret), "{listed}");
    let with_key =
        || tidegate(&["events", "list"]).env("TIDEGATE_URL", &server.url).env("TIDEGATE_KEY", &secret).output();
    assert!(with_key().unwrap().status.success());
    server.run(&["keys", "revoke", "1", "--data-dir", &data]);
    assert!(!with_key().unwrap().status.success(), "refused by the next request, though another process revoked it");
    server.stop();
}

#[test]
fn settings_say_where_they_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.toml");
    std::fs::write(&file, "lease_seconds = 7\n").unwrap();
    let file = file.to_str().unwrap();
    let shown =
        tidegate(&["config", "--config", file, "--listen", "127.0.0.1:1"]).env("TIDEGATE_GRACE_SECONDS", "3").output();
    let shown = text(&shown.unwrap());
    let row =
        |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key} in {shown}"));
    assert!(row("listen").contains("flag --listen"));
    assert!(row("lease_seconds").contains("file "));
    assert!(row("grace_seconds").contains("environment TIDEGATE_GRACE_SECONDS"));
    assert!(row("stale_seconds").contains("default"));
    std::fs::write(file, "leese_seconds = 7\n").unwrap();
    let refused = tidegate(&["serve", "--config", file]).output().unwrap();
    assert!(!refused.status.success() && error(&refused).contains("leese_seconds"), "{}", error(&refused));
}

#[test]
fn the_commented_defaults_are_the_committed_ones() {
    let generated = text(&tidegate(&["config", "--default"]).output().unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tidegate.toml");
    if std::env::var_os("WRITE_DEFAULTS").is_some() {
        std::fs::write(&path, format!("{generated}\n")).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed.trim() == generated,
        "docs/tidegate.toml is out of date: run this test with WRITE_DEFAULTS=1 and commit the file"
    );
}

#[test]
fn it_does_not_listen_to_strangers_without_keys() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let refused = tidegate(&["serve", "--listen", "0.0.0.0:0", "--data-dir", data]).output().unwrap();
    assert!(!refused.status.success());
    assert_eq!(text(&refused), "");
    assert!(error(&refused).contains("auth.required"), "{}", error(&refused));
}

#[test]
fn the_doctor_looks_at_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let migrated = tidegate(&["migrate", "--data-dir", data]).output().unwrap();
    assert!(migrated.status.success(), "{}", error(&migrated));
    let good = tidegate(&["doctor", "--data-dir", data, "--json"]).output().unwrap();
    assert!(good.status.success(), "{} {}", text(&good), error(&good));
    assert!(!text(&good).contains("\"bad\""), "{}", text(&good));
    let bad = tidegate(&["doctor", "--database-url", "postgres://nobody@127.0.0.1:1/none"]).output().unwrap();
    assert!(!bad.status.success());
    assert!(text(&bad).contains("database_url"), "{}", text(&bad));
    let open = tidegate(&["doctor", "--data-dir", data, "--listen", "0.0.0.0:80"]).output().unwrap();
    assert!(!open.status.success() && text(&open).contains("auth.required"), "{}", text(&open));
}

#[test]
fn nothing_there_is_said_plainly() {
    let refused = tidegate(&["events", "list", "--url", "http://127.0.0.1:1"]).output().unwrap();
    assert!(!refused.status.success());
    assert!(error(&refused).contains("is a server running there?"), "{}", error(&refused));
}

/// Accepts one request to the trace collector, answers it with 200, and returns its body.
fn receive(listener: &std::net::TcpListener) -> String {
    use std::io::Write;
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (head, body) = stub::read_request(&stream).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").unwrap();
    assert!(head.starts_with("POST /v1/traces "), "{head}");
    String::from_utf8(body).unwrap()
}

#[test]
fn traces_go_to_their_collector() {
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("telemetry.otlp_endpoint=http://{}", collector.local_addr().unwrap());
    let server = Server::start(&["--set", &endpoint, "--set", "log.format=json", "--set", "log.level=warn"]);
    server.run(&["publish", "Traced", "--tags", "a"]);
    let sent: serde_json::Value = serde_json::from_str(&receive(&collector)).unwrap();
    let span = &sent["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&span["name"], &span["kind"]), (&"POST /events".into(), &2.into()), "{sent}");
    assert_eq!(span["traceId"].as_str().unwrap().len(), 32);
    server.stop();
}
