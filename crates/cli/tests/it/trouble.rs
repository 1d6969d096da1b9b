//! Problems are reported where operators look for them: settings, folders, the doctor, `/readyz`, the log of the start.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{PATIENCE, Server, error, text, tidegate, without_settings};

/// Asks `/readyz` until it answers with this status.
fn becomes(server: &Server, status: u16) -> String {
    use std::io::Write;
    let address = server.url.trim_start_matches("http://");
    let started = Instant::now();
    loop {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if answer.starts_with(&format!("HTTP/1.1 {status} ")) {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "{answer}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// What the doctor found for one check.
fn diagnosis(data: &str, check: &str) -> serde_json::Value {
    let output = tidegate(&["doctor", "--data-dir", data, "--json"]).output().unwrap();
    let findings: serde_json::Value = serde_json::from_str(&text(&output)).unwrap_or_else(|_| panic!("{output:?}"));
    let is_bad = findings.as_array().unwrap().iter().any(|finding| finding["grade"] == "bad");
    assert_eq!(output.status.success(), !is_bad, "{findings}");
    let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("{check} in {findings}")).clone()
}

/// Simulates a full disk by a limit on file sizes: no file of these processes can grow beyond its first block.
#[test]
fn a_server_that_cannot_write_says_so_and_the_doctor_too() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let refused_with_an_error = |limit: &str, args: &[&str]| {
        let mut command = Command::new("sh");
        without_settings(&mut command);
        let script = format!("trap '' XFSZ; {limit} exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate")]).args(args);
        command
    };
    let mut serve = refused_with_an_error("", &["serve", "--listen", "127.0.0.1:0", "--data-dir", data]);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().split(' ').next_back().unwrap_or_default().to_owned();
    let server = Server { child, url, dir };
    becomes(&server, 200);
    let full = ["--pid", &server.child.id().to_string(), "--fsize=512"];
    assert!(Command::new("prlimit").args(full).status().unwrap().success());
    let publish = ["publish", "Large", "--tags", "a", "--payload", "1"];
    let published = tidegate(&publish).env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(!published.status.success(), "{}", text(&published));
    let answer = becomes(&server, 503);
    assert!(answer.contains("nothing can be written or claimed") && !answer.contains("tidegate.db"), "{answer}");
    let doctor = refused_with_an_error("ulimit -f 1;", &["doctor", "--data-dir", data]).output().unwrap();
    assert!(!doctor.status.success(), "{}", text(&doctor));
}

#[test]
fn the_doctor_sees_a_foreign_lock() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    assert!(tidegate(&["migrate", "--data-dir", data]).output().unwrap().status.success());
    assert_eq!(diagnosis(data, "writes")["grade"], "good");
    let foreign = rusqlite::Connection::open(dir.path().join("tidegate.db")).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let output = tidegate(&["doctor", "--data-dir", data]).output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("locked") || text(&output).contains("lock"), "{}", text(&output));
}

#[test]
fn the_doctor_says_why_a_database_refuses() {
    let server = tidegate_testing::fresh_database();
    let url = server.replace("tidegate@", "nobody_knows_me@");
    let output = tidegate(&["doctor", "--database-url", &url]).output().unwrap();
    assert!(!output.status.success());
    let said = text(&output);
    assert!(said.contains("nobody_knows_me") && !said.contains("db error:"), "{said}");
    tidegate_testing::drop_database(&server).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_to_says_permission() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let mut serve = tidegate(&["serve", "--listen", "127.0.0.1:0", "--data-dir", dir.path().to_str().unwrap()]);
    if std::fs::write(dir.path().join("trial"), "").is_ok() {
        serve.uid(65_534); // root may write everywhere
    }
    let refused = serve.output().unwrap();
    assert!(!refused.status.success());
    let said = error(&refused);
    assert!(said.contains("Permission denied") && said.contains(dir.path().to_str().unwrap()), "{said}");
}

#[test]
fn settings_that_do_not_fit_say_what_would() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    for (setting, words) in [
        ("log.level=inof", &["inof", "error, warn, info, debug, trace"][..]),
        ("log.level=info,inof", &["inof"]),
        ("listen=localhost", &["localhost:8080"]),
        ("listen=no.such.name.invalid:80", &["localhost:8080"]),
        ("max_lanes=0", &["max_lanes", "1 to"]),
        ("unknown_types=refuse", &["refuse", "accept or reject"]),
        ("dispatch.allowed_targets=10.0.0.0/8, a b", &["a b", "10.0.0.0/8) or host name"]),
    ] {
        let refused = tidegate(&["serve", "--data-dir", data, "--set", setting]).output().unwrap();
        assert!(!refused.status.success(), "{setting}");
        let said = error(&refused);
        assert!(words.iter().all(|word| said.contains(word)), "{setting}: {said}");
    }
}

#[test]
fn a_name_is_listened_on_and_the_start_names_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let url = format!("sqlite:{}", file.display());
    let mut serve = tidegate(&["serve", "--listen", "localhost:0", "--database-url", &url, "--set", "max_lanes=1"]);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("http://127.0.0.1:") || line.contains("http://[::1]:"), "{line}");
    let url = line.trim().split(' ').next_back().unwrap_or_default().to_owned();
    let mut server = Server { child, url, dir };
    server.run(&["publish", "First", "--tags", "a"]);
    let second = tidegate(&["publish", "Second", "--tags", "a", "--priority", "7"]);
    let refused = { second }.env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(error(&refused).contains("max_lanes"), "{}", error(&refused));
    let mut log = server.child.stderr.take().unwrap();
    server.stop();
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    assert!(said.contains("opened the database") && said.contains(file.to_str().unwrap()), "{said}");
}

#[test]
fn a_clean_restart_warns_of_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    for _ in 0..2 {
        let args = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
        let mut child = tidegate(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().split(' ').next_back().unwrap_or_default().to_owned();
        let mut server = Server { child, url, dir: tempfile::tempdir().unwrap() };
        let id = server.run(&["publish", "Kept", "--tags", "a"]);
        server.run(&["work", "--tags", "a", "--until-empty", "--", "true"]);
        assert_eq!(server.json(&["events", "show", &id])["status"], "COMPLETED");
        let mut log = server.child.stderr.take().unwrap();
        server.stop();
        let mut said = String::new();
        log.read_to_string(&mut said).unwrap();
        assert!(said.contains("stopped") && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
    }
}

#[test]
fn projections_are_listed_and_removed() {
    let server = Server::start(&[]);
    assert!(server.run(&["projections", "list"]).starts_with("NAME"));
    let refused = tidegate(&["projections", "remove", "none"]).env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(!refused.status.success() && error(&refused).contains("there is no projection"), "{}", error(&refused));
    server.stop();
}
