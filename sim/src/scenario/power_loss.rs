//! Lost power: unlike after kill -9, the page cache is gone. A preload library discards the unsynced writes of a
//! process that publishes and completes events on SQLite and reports each acknowledgement through a pipe. With
//! synchronous=FULL nothing acknowledged may be missing; with OFF something must be, or the test would not notice a
//! missing fsync.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tidegate::{EventQueue, NewEvent};
use tidegate_store::sqlite::{SqliteOptions, SqliteStore, Synchronous};

use super::{ScenarioResult, Settings};
use crate::denied::{self, retried};
use crate::supervisor::{POLL_INTERVAL, myself};
use crate::workload::Failure;

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/powerloss.so"));
/// The exit code with which the preload library ends the process.
const POWER_LOST: i32 = 99;
const CHILD_TIMEOUT: Duration = Duration::from_secs(60);
const PUBLISHERS: usize = 4;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let losses = settings.kills.unwrap_or(30);
    let mut rng = settings.rng();
    let full = lose(losses, Synchronous::Full, settings, &mut rng)?;
    if full.missing > 0 {
        return Err(format!("synchronous=FULL lost {} of {} acknowledged", full.missing, full.acknowledged).into());
    }
    let off = lose(losses.min(5), Synchronous::Off, settings, &mut rng)?;
    if off.missing == 0 {
        return Err(format!("synchronous=OFF lost none of {}, so nothing was tested", off.acknowledged).into());
    }
    Ok(format!(
        "FULL: {} power losses, none of {} acknowledged missing; OFF: {} of {} missing",
        losses, full.acknowledged, off.missing, off.acknowledged
    ))
}

/// How many operations were acknowledged, and how many of them are missing.
#[derive(Debug, Default)]
struct Losses {
    acknowledged: usize,
    missing: usize,
}

/// What the child reported as acknowledged: keys of published events, ids of completed ones.
#[derive(Debug, Default)]
struct Acks {
    published: HashSet<String>,
    completed: HashSet<i64>,
}

fn lose(losses: u32, mode: Synchronous, settings: Settings, rng: &mut StdRng) -> Result<Losses, Failure> {
    let folder = tempfile::Builder::new().prefix("tidegate-power-").tempdir()?;
    let library = folder.path().join("powerloss.so");
    std::fs::write(&library, LIBRARY)?;
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o755))?;
    let data = folder.path().join("data");
    std::fs::create_dir(&data)?;
    let mut acks = Acks::default();
    let mut missing = 0;
    for life in 0..losses {
        let mut child = Guard(start(&library, &data, mode, life, rng)?);
        let acknowledged = read_until_power_loss(&mut child.0, &mut acks, rng)?;
        if acknowledged == 0 && life == 0 {
            return Err("the child acknowledged nothing before the power loss".into());
        }
        missing = missing_in(&data.join("events.db"), &acks, mode)?;
        if missing > 0 {
            break;
        }
    }
    if missing > 0 && mode == Synchronous::Full || settings.keep {
        eprintln!("the database is kept in {}", folder.keep().display());
    }
    Ok(Losses { acknowledged: acks.published.len() + acks.completed.len(), missing })
}

/// Kills the child when dropped.
#[derive(Debug)]
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only when the child has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(library: &Path, data: &Path, mode: Synchronous, life: u32, rng: &mut StdRng) -> Result<Child, Failure> {
    let file = data.join("events.db").display().to_string();
    let off = if mode == Synchronous::Off { "off" } else { "full" };
    let mut command = myself(&["power-child", &file, off, &life.to_string()])?;
    command.env("LD_PRELOAD", library).env("TIDEGATE_POWERLOSS_DIR", data).stdin(Stdio::null()).stdout(Stdio::piped());
    // Half of the time some of the unsynced writes reach the disk anyway.
    if rng.random() {
        let (percent, seed) = (rng.random_range(1..100), rng.random::<u32>());
        command.env("TIDEGATE_POWERLOSS_KEEP", format!("{percent}:{seed}"));
    }
    Ok(command.spawn()?)
}

/// Reads what the child reports, cuts its power at a random moment, and reads the rest. Returns how many operations
/// were acknowledged.
fn read_until_power_loss(child: &mut Child, acks: &mut Acks, rng: &mut StdRng) -> Result<usize, Failure> {
    let before = acks.published.len() + acks.completed.len();
    let output = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
    let (sender, lines) = std::sync::mpsc::channel();
    let reader =
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let first = lines.recv_timeout(CHILD_TIMEOUT)?;
    note(&first, acks)?;
    std::thread::sleep(Duration::from_micros(rng.random_range(0..400_000)));
    // SAFETY: kill has no memory effects; the child has not been waited for, so the id is still its own.
    if unsafe { libc::kill(i32::try_from(child.id())?, libc::SIGUSR1) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let status = wait(child)?;
    if status.code() != Some(POWER_LOST) {
        return Err(format!("the child did not exit with {POWER_LOST}: {status}").into());
    }
    for line in lines {
        note(&line, acks)?;
    }
    // The thread ends with the child's output; its result only says whether the channel was still open.
    let _ = reader.join();
    Ok(acks.published.len() + acks.completed.len() - before)
}

fn wait(child: &mut Child) -> Result<std::process::ExitStatus, Failure> {
    let deadline = Instant::now() + CHILD_TIMEOUT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Err("the child did not exit after the power loss".into())
}

fn note(line: &str, acks: &mut Acks) -> Result<(), Failure> {
    match line.split_once(' ') {
        Some(("published", key)) => acks.published.insert(key.into()),
        Some(("completed", id)) => acks.completed.insert(id.parse()?),
        _ => return Err(format!("unexpected output of the child: {line:?}").into()),
    };
    Ok(())
}

/// Reads the database without the library and counts the acknowledged operations that are missing.
fn missing_in(file: &Path, acks: &Acks, mode: Synchronous) -> Result<usize, Failure> {
    let all = acks.published.len() + acks.completed.len();
    // The wal-index lives in shared memory and would not survive a real power loss.
    let shared = PathBuf::from(format!("{}-shm", file.display()));
    match std::fs::remove_file(shared) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let state = match crate::state::read_sqlite(file) {
        Ok(state) => state,
        // Without syncs the file may be empty or damaged: then everything is lost.
        Err(_) if mode == Synchronous::Off => return Ok(all),
        Err(error) => return Err(error),
    };
    let connection = rusqlite::Connection::open(file)?;
    let health: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if health != "ok" && mode == Synchronous::Full {
        return Err(format!("the database is damaged: {health}").into());
    }
    let keys: HashSet<&str> = state.entries().map(|(_, key)| key).collect();
    let ended: HashSet<i64> = state.log.iter().map(|row| row.id).collect();
    let unpublished = acks.published.iter().filter(|key| !keys.contains(key.as_str())).count();
    Ok(unpublished + acks.completed.iter().filter(|id| !ended.contains(*id)).count())
}

/// The child process: publishes and completes as fast as it can, and reports each operation once it is acknowledged.
pub(crate) fn child(file: &str, mode: &str, life: u32) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut options = SqliteOptions::default();
    options.synchronous = if mode == "off" { Synchronous::Off } else { Synchronous::Full };
    runtime.block_on(async move {
        let store = SqliteStore::open(file, options).await?;
        let queue = EventQueue::builder().with_sqlite(Arc::new(store)).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..PUBLISHERS {
            tasks.spawn(publish(queue.clone(), format!("{life}/{number}")));
        }
        tasks.spawn(complete(queue));
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    })
}

/// Each line is one write, so that the parent never reads a partial line.
fn say(what: &str, which: impl std::fmt::Display) -> Result<(), Failure> {
    Ok(std::io::stdout().lock().write_all(format!("{what} {which}\n").as_bytes())?)
}

async fn publish(queue: EventQueue, name: String) -> Result<(), Failure> {
    for number in 0_u64.. {
        let key = format!("{name}/{number}");
        let event = NewEvent::new("sim.power", format!("{key}\n"));
        retried(|| queue.publish(event.clone())).await?;
        say("published", key)?;
    }
    Ok(())
}

async fn complete(queue: EventQueue) -> Result<(), Failure> {
    loop {
        for event in retried(|| queue.wait_many(10, Duration::from_secs(1))).await? {
            let id = event.id.get();
            denied::complete(&queue, &event.hand_over()).await?;
            say("completed", id)?;
        }
    }
}
