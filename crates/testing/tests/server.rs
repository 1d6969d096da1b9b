//! What the throw-away servers promise: they answer, survive a crash, and leave nothing behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_testing::{PgServer, PgSettings, drop_database};
use tokio_postgres::NoTls;

fn query(url: &str, statement: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client.query_one(statement, &[]).await?.get(0))
    })
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::yield_now();
    }
}

fn is_running(pid: u32, folder: &Path) -> bool {
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.contains(&*folder.to_string_lossy())
}

#[test]
fn a_server_answers_survives_a_crash_and_cleans_up() {
    let settings = PgSettings { extra: vec![("work_mem".into(), "5MB".into())], ..PgSettings::default() };
    let mut server = PgServer::start(settings).unwrap();
    let url = server.create_database();
    assert_ne!(url, server.create_database());
    assert_eq!(query(&url, "SELECT current_user::text").unwrap(), "tidegate");
    assert_eq!(query(&url, "SELECT current_setting('work_mem')").unwrap(), "5MB");
    assert_eq!(query(&url, "SELECT current_setting('fsync')").unwrap(), "on");
    query(&url, "WITH made AS (SELECT 1) SELECT pg_switch_wal()::text FROM made").unwrap();

    let before = server.pid().unwrap();
    server.kill().unwrap();
    assert_eq!(server.pid(), None);
    assert!(!is_running(before, server.folder()));
    assert!(query(&url, "SELECT ''").is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), Some(before));
    assert_eq!(query(&url, "SELECT 'here'").unwrap(), "here");
    drop_database(&url).unwrap();
    assert!(query(&url, "SELECT ''").is_err());

    let (folder, pid) = (server.folder().to_owned(), server.pid().unwrap());
    server.stop();
    assert!(!folder.exists());
    assert!(!is_running(pid, &folder));
}

#[test]
fn a_killed_owner_leaves_nothing_behind() {
    let mut wrapper = Command::new(env!("CARGO_BIN_EXE_tidegate-testing"))
        .args(["pg", "--", "/bin/sh", "-c", "echo $TIDEGATE_TEST_POSTGRES; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(wrapper.stdout.take().unwrap()), &mut line).unwrap();
    let folder = PathBuf::from(query(line.trim(), "SELECT current_setting('unix_socket_directories')").unwrap());
    let pid_file = std::fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    let pid = pid_file.lines().next().unwrap().parse().unwrap();
    assert!(is_running(pid, &folder));

    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
    wait_until("the server's end", || !is_running(pid, &folder));
    wait_until("the folder's removal", || !folder.exists());
}

#[test]
fn the_wrapper_ends_as_its_command_does() {
    let status = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-testing"));
        command.args(arguments).stderr(Stdio::null()).status().unwrap().code()
    };
    assert_eq!(status(&["pg", "--", "/bin/sh", "-c", "test -n \"$TIDEGATE_TEST_POSTGRES\" && exit 7"]), Some(7));
    assert_eq!(status(&["pg", "--", "/no/such/program"]), Some(127));
    assert_eq!(status(&["pg"]), Some(2));
}
