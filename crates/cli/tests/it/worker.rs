//! `tidegate work` beyond the normal case: stops, commands that leave processes behind, last failures, escaped titles.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::{PATIENCE, Server, tidegate};

/// A worker in a process group of its own, as a terminal would start it.
fn worker(server: &Server, args: &[&str]) -> Child {
    let mut command = tidegate(args);
    command.env("TIDEGATE_URL", &server.url).stderr(Stdio::piped()).stdout(Stdio::null()).process_group(0);
    command.spawn().unwrap()
}

/// Signals a whole group, as Ctrl-C does.
fn signal_group(child: &Child, signal: &str) {
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args([signal, "--", &group]).status().unwrap().success());
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Waits until the worker has exited successfully, and returns its stderr.
#[track_caller]
fn ended(mut child: Child) -> String {
    wait_until("the worker ends", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn an_interrupt_stops_the_command_and_uses_up_no_retry() {
    let server = Server::start(&[]);
    let id = server.run(&["publish", "Long", "--tags", "long"]);
    let begun = server.dir.path().join("begun");
    let gone = server.dir.path().join("gone");
    // On SIGTERM the shell leaves a file; the command it runs would take far longer.
    let script = format!("trap 'touch {}; exit 1' TERM; touch {}; sleep 600 & wait", gone.display(), begun.display());
    let running = worker(&server, &["work", "--tags", "long", "--", "sh", "-c", &script]);
    wait_until("the command runs", || begun.exists());
    signal_group(&running, "-INT");
    let said = ended(running);
    assert!(said.contains("released"), "{said}");
    assert!(gone.exists(), "the command was not asked to end");
    let shown = server.json(&["events", "show", &id]);
    assert_eq!(
        (&shown["status"], &shown["retry_count"], &shown["attempts"]),
        (&"PENDING".into(), &0.into(), &0.into())
    );
    // Another worker can claim it at once.
    server.run(&["work", "--tags", "long", "--until-empty", "--", "true"]);
    assert_eq!(server.json(&["events", "show", &id])["status"], "COMPLETED");
    server.stop();
}

#[test]
fn asked_to_terminate_it_lets_the_command_end_and_asked_twice_it_does_not() {
    let server = Server::start(&[]);
    let id = server.run(&["publish", "Short", "--tags", "short"]);
    let (begun, end) = (server.dir.path().join("begun"), server.dir.path().join("end"));
    let script = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done", begun.display(), end.display());
    let running = worker(&server, &["work", "--tags", "short", "--", "sh", "-c", &script]);
    wait_until("the command runs", || begun.exists());
    signal_group(&running, "-TERM");
    std::fs::write(&end, "").unwrap();
    ended(running);
    assert_eq!(server.json(&["events", "show", &id])["status"], "COMPLETED");

    let id = server.run(&["publish", "Endless", "--tags", "short"]);
    std::fs::remove_file(&begun).unwrap();
    let script = format!("touch {}; sleep 600", begun.display());
    let running = worker(&server, &["work", "--tags", "short", "--", "sh", "-c", &script]);
    wait_until("the command runs", || begun.exists());
    signal_group(&running, "-TERM");
    // Two signals that arrive before the first is handled count as one: repeat until it takes effect.
    wait_until("the second signal releases the event", || {
        signal_group(&running, "-TERM");
        server.json(&["events", "show", &id])["status"] == "PENDING"
    });
    ended(running);
    assert_eq!(server.json(&["events", "show", &id])["retry_count"], 0);
    server.stop();
}

#[test]
fn a_command_that_leaves_something_behind_does_not_hold_it_up() {
    let server = Server::start(&[]);
    let id = server.run(&["publish", "Leaves a child", "--tags", "left"]);
    let number = server.dir.path().join("number");
    let script = format!("sleep 600 & echo $! > {}; echo it broke >&2; exit 3", number.display());
    let started = Instant::now();
    let args = ["work", "--tags", "left", "--lease-seconds", "2", "--until-empty", "--", "sh", "-c", &script];
    let said = ended(worker(&server, &args));
    assert!(started.elapsed() < PATIENCE && said.contains("failed"), "{said}");
    let shown = server.json(&["events", "show", &id]);
    let last = shown["logs"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["action"], &last["error_message"]), (&"FAILED".into(), &"it broke".into()));
    assert_eq!(shown["attempts"], 1, "the lease was kept");
    let left = std::fs::read_to_string(number).unwrap();
    assert!(Command::new("kill").arg(left.trim()).status().unwrap().success(), "the process left behind was stopped");
    server.stop();
}

#[test]
fn the_last_failure_is_done_and_titles_are_escaped() {
    let server = Server::start(&[]);
    let title = "Red \u{1b}[31malert\u{7}";
    let id = server.run(&["publish", title, "--tags", "last", "--max-retries", "0"]);
    let said = ended(worker(&server, &["work", "--tags", "last", "--until-empty", "--", "false"]));
    assert!(said.contains("failed, no retry is left") && !said.contains("400"), "{said}");
    assert!(said.contains("Red \\u{1b}[31malert\\u{7}"), "{said}");
    assert!(!said.contains('\u{1b}') && !said.contains('\u{7}'), "{said:?}");
    assert_eq!(server.json(&["events", "show", &id])["status"], "FAILED");
    for command in [&["events", "list"][..], &["tail", "-n", "1", "--count", "1"], &["events", "show", &id]] {
        assert!(!server.run(command).contains('\u{1b}'), "{command:?}");
    }
    server.stop();
}
