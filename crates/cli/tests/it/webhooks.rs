//! Webhooks end to end: the guide as it is written, the sink, replays, and what is forwarded to a local address.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::{PATIENCE, Server, error, tidegate};

const GUIDE: &str = include_str!("../../../../docs/guides/webhooks.md");

/// A program that runs beside a test, of which each line of its output is read.
struct Program {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Program {
    /// Starts it with both of its outputs in one stream of lines.
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        Self { child, lines }
    }

    /// The next line with this text.
    #[track_caller]
    fn line(&self, with: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(with) => return line,
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with {with:?}: {seen:?}"),
            }
        }
    }

    #[track_caller]
    fn json(&self, with: &str) -> Value {
        serde_json::from_str(&self.line(with)).unwrap()
    }

    /// Ends it as Ctrl-C does, and returns whether it ended well.
    fn interrupt(mut self) -> bool {
        assert!(Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success());
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(started.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sink on a free port, and its address.
fn sink(extra: &[&str]) -> (Program, String) {
    let mut command = tidegate(&["sink", "--listen", "127.0.0.1:0", "--json"]);
    command.args(extra);
    let program = Program::start(command);
    let said = program.line("webhooks are taken at");
    (program, said.rsplit(' ').next().unwrap().to_owned())
}

fn server() -> Server {
    Server::start(&["--allow-target", "127.0.0.1"])
}

fn publish(server: &Server, number: u32) -> String {
    let event = json!({ "specversion": "1.0", "id": number.to_string(), "type": "shop:orders:order:created",
        "source": "/shop", "datacontenttype": "application/json", "data": { "order": number } });
    let file = server.dir.path().join("event.json");
    std::fs::write(&file, event.to_string()).unwrap();
    server.run(&["events", "publish", "--cloudevent", file.to_str().unwrap()])
}

/// Subscribes to all orders, and returns the secret.
fn subscribe(server: &Server, code: &str, target: &str) -> String {
    server.run(&["subscriptions", "create", code, "--type", "shop:orders:order:*", "--target", target])
}

#[test]
fn a_sink_verifies_and_fails_as_it_is_told() {
    let server = server();
    let secret_file = server.dir.path().join("secret.txt");
    let (first, address) = sink(&["--fail", "1", "--fail-status", "503"]);
    let secret = subscribe(&server, "orders", &address);
    std::fs::write(&secret_file, format!("{secret}\n")).unwrap();
    publish(&server, 1);
    let failed = first.json("webhookId");
    assert_eq!((&failed["verified"], &failed["answered"]), (&Value::Null, &503.into()));
    let repeated = first.json("webhookId");
    assert_eq!((&repeated["webhookId"], &repeated["answered"]), (&failed["webhookId"], &200.into()));
    assert_eq!((&repeated["type"], &repeated["body"]), (&"shop:orders:order:created".into(), &"{\"order\":1}".into()));
    assert!(first.interrupt(), "Ctrl-C ends it cleanly");

    let port = address.trim_end_matches('/');
    let port = port.rsplit(':').next().unwrap();
    let file = secret_file.to_str().unwrap();
    let listen = format!("127.0.0.1:{port}");
    let mut command = tidegate(&["sink", "--json", "--secret-file", file, "--count", "2", "--listen", &listen]);
    command.env("TIDEGATE_SINK_SECRET", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
    let second = Program::start(command);
    second.line("webhooks are taken at");
    server.run(&["subscriptions", "test", "orders"]);
    let verified = second.json("webhookId");
    assert_eq!((&verified["verified"], &verified["answered"]), (&true.into(), &200.into()));
    let forged = Command::new("curl").args(["-sS", "-d", "{}", &address]).output().unwrap();
    let forged = String::from_utf8_lossy(&forged.stdout).into_owned();
    let refused = second.json("verified");
    assert_eq!((&refused["verified"], &refused["answered"]), (&false.into(), &401.into()));
    assert!(!forged.is_empty() && !forged.contains("whsec"), "{forged}");
    server.stop();
}

#[test]
fn events_are_replayed_and_what_a_pause_missed_comes_with_the_resume() {
    let server = server();
    for number in 1..=3 {
        publish(&server, number);
    }
    let (taken, address) = sink(&[]);
    subscribe(&server, "orders", &address);
    let range = ["--from", "2020-01-01T00:00:00Z", "--to", "2100-01-01T00:00:00Z"];
    let replay = |extra: &[&str]| server.json(&[&["replay", "orders"], &range[..], extra].concat());
    assert_eq!(replay(&[])["replayed"], 3);
    let first: Vec<Value> = (0..3).map(|_| taken.json("webhookId")["webhookId"].clone()).collect();
    let again = replay(&[]);
    assert_eq!((&again["replayed"], &again["repeated"]), (&0.into(), &3.into()));
    assert_eq!(replay(&["--missing-only", "--id", "other"])["replayed"], 0);
    assert_eq!(replay(&["--id", "again"])["replayed"], 3);
    let second: Vec<Value> = (0..3).map(|_| taken.json("webhookId")["webhookId"].clone()).collect();
    assert!(first.iter().all(|id| !second.contains(id)), "a replayed job has an id of its own");
    server.run(&["subscriptions", "pause", "orders"]);
    publish(&server, 4);
    let refused = tidegate(&["subscriptions", "test", "orders"]).env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(error(&refused).contains("paused"), "{}", error(&refused));
    let resumed = server.run(&["subscriptions", "resume", "orders", "--replay"]);
    assert!(resumed.contains("1 events are replayed"), "{resumed}");
    assert_eq!(taken.json("webhookId")["body"], "{\"order\":4}");
    server.stop();
}

#[test]
fn events_are_forwarded_for_as_long_as_somebody_listens() {
    let server = server();
    publish(&server, 1);
    let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let mut command = tidegate(&["sink", "--listen", "127.0.0.1:0", "--json", "--fail", "1"]);
    command.env("TIDEGATE_SINK_SECRET", secret);
    let taken = Program::start(command);
    let address = taken.line("webhooks are taken at").rsplit(' ').next().unwrap().to_owned();
    let since = ["listen", "--forward-to", &address, "--json", "--since", "2020-01-01T00:00:00Z"];
    let mut command = tidegate(&since);
    command.env("TIDEGATE_URL", &server.url).env("TIDEGATE_SINK_SECRET", secret);
    let listener = Program::start(command);
    let failed = listener.json("eventId");
    assert_eq!((&failed["status"], &failed["attempt"]), (&500.into(), &1.into()));
    let repeated = listener.json("eventId");
    assert_eq!((&repeated["status"], &repeated["attempt"]), (&200.into(), &2.into()));
    publish(&server, 2);
    let next = listener.json("eventId");
    assert_eq!((&next["status"], &next["type"]), (&200.into(), &"shop:orders:order:created".into()));
    let seen: Vec<Value> = (0..3).map(|_| taken.json("webhookId")).collect();
    assert!(seen.iter().all(|one| one["verified"] == true), "{seen:?}");
    assert_eq!(seen[0]["webhookId"], seen[1]["webhookId"], "the same for every attempt");
    assert_eq!((&seen[2]["body"], &seen[2]["contentType"]), (&"{\"order\":2}".into(), &"application/json".into()));
    assert!(listener.interrupt(), "Ctrl-C ends it cleanly");
    assert_eq!(server.json(&["subscriptions", "list"]), json!([]), "its subscription is gone");
    server.stop();
}

/// The code blocks of a language in the guide.
fn blocks(language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in GUIDE.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(of)) if of == language => block = Some(String::new()),
            (None, Some(_)) => block = None,
            (Some(_), Some(_)) => blocks.extend(block.take()),
            (Some(text), None) => text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    blocks
}

/// The guide's own receivers take what the guide's commands send.
#[test]
fn the_guide_works_as_it_is_written() {
    let sdks = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("sdks").join("webhooks");
    assert!(sdks.join("node_modules").exists(), "run scripts/install-sdks, or scripts/test, which runs it");
    let shell = blocks("sh");
    assert_eq!(shell.len(), 7, "{shell:?}");
    let server = server();
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    // Commands as they stand, but for the addresses, which are those of this test.
    let run = |block: &str, sink: &str| {
        let text =
            block.replace("http://127.0.0.1:8081/hook", sink).replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
        let bin = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap().to_owned();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash")
            .args(["-euc", &text])
            .current_dir(server.dir.path())
            .env("PATH", path)
            .env("TIDEGATE_URL", &server.url)
            .output()
            .unwrap();
        assert!(output.status.success(), "{text}: {}", error(&output));
        crate::text(&output)
    };
    let receivers: [(&str, PathBuf, &str); 2] =
        [("python", sdks.join("python/bin/python"), "receiver.py"), ("js", PathBuf::from("node"), "receiver.cjs")];
    for (language, program, file) in receivers {
        let code = blocks(language).remove(0);
        let file = server.dir.path().join(file);
        std::fs::write(&file, code).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let address = format!("http://127.0.0.1:{free}/hook");
        let create = shell[2].lines().next().unwrap();
        run(create, &address);
        let secret = std::fs::read_to_string(server.dir.path().join("secret.txt")).unwrap();
        let mut command = Command::new(program);
        command.arg(&file).env("PORT", &free).env("WEBHOOK_SECRET", secret.trim());
        command.env("NODE_PATH", sdks.join("node_modules"));
        let receiver = Program::start(command);
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", free.parse().unwrap())).is_err() {
            assert!(started.elapsed() < PATIENCE, "{language} does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let tested = run(shell[2].lines().nth(1).unwrap(), &address);
        assert!(tested.starts_with("SUCCESS"), "{language}: {tested}");
        receiver.line("tidegate:dispatch:subscription:test");
        run(&shell[3], &address);
        assert!(receiver.line("shop:orders:order:created").contains(r#"{"order": 1001}"#));
        run(&shell[4], &address);
        let replayed = run(&shell[5], &address);
        assert!(replayed.contains("events are replayed"), "{replayed}");
        receiver.line("shop:orders:order:created");
        run("tidegate subscriptions delete orders", &address);
    }
    // The other blocks run for as long as somebody lets them: they start.
    for block in [&shell[0], &shell[1], &shell[6]] {
        let command = block.split_whitespace().nth(1).unwrap();
        let help = tidegate(&[command, "--help"]).output().unwrap();
        let help = crate::text(&help);
        for flag in block.split_whitespace().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{flag} of {block}");
        }
    }
    server.stop();
}
