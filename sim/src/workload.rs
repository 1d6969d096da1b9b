//! What a process under test does: it publishes its share, works off what it gets, counts, and writes it all down.
//!
//! It uses the library as applications do. It must not know who kills it or when. Everything it decides comes from its
//! seed; what it does next after a kill comes from its own earlier histories.

mod consume;
mod handle;
mod outbox;
mod own_end;
mod plan;
mod publish;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tidegate::{ErrorKind, EventQueue};

pub(crate) use self::handle::{EFFECTS, IN_TX, PLAIN};
use crate::history::{self, Answer, Intent, Outcome, Recorder};

/// How long a process tries to open its database; it may be down.
const OPEN_WITHIN: Duration = Duration::from_secs(120);
/// Pause after an answer that says that the database is not there.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(50);
/// After a refusal: while the database is known to be down, calls are refused at once.
const DENIED_BACK_OFF: Duration = Duration::from_millis(500);

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What one process shall do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Its name; its histories are called so.
    pub(crate) process: String,
    /// Where histories are written.
    pub(crate) folder: PathBuf,
    /// `sqlite:PATH` or `postgres://…`.
    pub(crate) address: String,
    pub(crate) seed: u64,
    /// Events it publishes in all its lives together.
    pub(crate) events: u64,
    pub(crate) publishers: usize,
    pub(crate) consumers: usize,
    /// Entries that one claim asks for.
    pub(crate) batch: usize,
    pub(crate) lease_ms: u64,
    /// FIFO groups that the processes share.
    pub(crate) groups: u32,
    /// Pause between snapshots; none are taken without.
    pub(crate) census_ms: Option<u64>,
    /// Whether consumers hold on to leases too long, hang up and so on; else they only complete.
    pub(crate) mischief: bool,
    /// Publishes one event that kills whoever takes it.
    pub(crate) poison: bool,
    /// Attempts of each event.
    pub(crate) max_attempts: u32,
    /// Works events off with handlers, so many at once, and publishes what they can read.
    #[serde(default)]
    pub(crate) handlers: Option<usize>,
    /// All events are in groups, and half of them are published and ended in transactions of the process's own.
    #[serde(default)]
    pub(crate) grouped: bool,
    /// Environment variables of its own.
    #[serde(default)]
    pub(crate) environment: Vec<(String, String)>,
}

/// What the tasks of one process share.
#[derive(Debug)]
struct Life {
    job: Job,
    queue: EventQueue,
    recorder: Recorder,
    /// Set once the parent wants no more.
    stop: AtomicBool,
    /// How many lives came before.
    incarnation: u64,
    /// The connection for transactions of its own.
    own: tokio::sync::Mutex<Option<tokio_postgres::Client>>,
}

impl Life {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The choices of one task in this life.
    fn choices(&self, task: u64) -> StdRng {
        StdRng::seed_from_u64(plan::mix(&[self.job.seed, plan::hash(&self.job.process), self.incarnation, task]))
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.job.lease_ms)
    }

    async fn back_off(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Unknown { .. } => tokio::time::sleep(BACK_OFF).await,
            Outcome::Denied { .. } => tokio::time::sleep(DENIED_BACK_OFF).await,
            Outcome::Published { answers } if answers.iter().any(|answer| matches!(answer, Answer::Denied { .. })) => {
                tokio::time::sleep(DENIED_BACK_OFF).await;
            }
            _ => {}
        }
    }
}

/// Sorts an error into what it says about the operation.
fn outcome_of(error: &tidegate::Error) -> Outcome {
    let text = format!("{:?}: {error}", error.kind());
    match error.kind() {
        ErrorKind::Fenced => Outcome::Fenced,
        ErrorKind::Busy | ErrorKind::Unavailable => Outcome::Denied { error: text },
        ErrorKind::Indeterminate | ErrorKind::Corrupt => Outcome::Unknown { error: text },
        _ => Outcome::Refused { error: text },
    }
}

/// Lives until the parent closes our standard input.
pub(crate) fn run(job: &str) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(job)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(live(job))
}

async fn live(job: Job) -> Result<(), Failure> {
    let past = history::read(&job.folder, Some(&job.process))?;
    let incarnation = history::files(&job.folder, Some(&job.process))?.len() as u64;
    let recorder = Recorder::start(&job.folder, &job.process)?;
    let queue = open(&job).await?;
    let life =
        Arc::new(Life { job, queue, recorder, stop: AtomicBool::new(false), incarnation, own: Default::default() });
    life.recorder.note("ready")?;
    watch_parent(&life);

    let mut tasks = tokio::task::JoinSet::new();
    if life.job.poison && past.is_empty() {
        publish::poison(&life).await?;
    }
    tasks.spawn(publish::run(Arc::clone(&life), plan::Plan::resume(&life.job, &past)));
    for number in 0..life.job.consumers {
        tasks.spawn(consume::run(Arc::clone(&life), number as u64));
    }
    if let Some(concurrency) = life.job.handlers {
        tasks.spawn(handle::run(Arc::clone(&life), concurrency));
    }
    if let Some(pause) = life.job.census_ms {
        tasks.spawn(count(Arc::clone(&life), Duration::from_millis(pause)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    tokio::time::timeout(Duration::from_secs(30), life.queue.close()).await?;
    life.recorder.note("closed")?;
    Ok(())
}

async fn open(job: &Job) -> Result<EventQueue, Failure> {
    let deadline = Instant::now() + OPEN_WITHIN;
    loop {
        let builder = EventQueue::builder()
            .worker(job.process.as_str())
            .lease(Duration::from_millis(job.lease_ms))
            .poll_interval(Duration::from_millis(100));
        match builder.open(&job.address).await {
            Ok(queue) => return Ok(queue),
            Err(error) if Instant::now() < deadline && error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(BACK_OFF).await;
            }
            Err(error) if Instant::now() < deadline && error.kind() == ErrorKind::Busy => {
                tokio::time::sleep(BACK_OFF).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Standard input ends when the parent wants us to stop, or is gone.
fn watch_parent(life: &Arc<Life>) {
    let life = Arc::clone(life);
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // Whatever ends the wait, an error included, the parent is not there any more.
        let _ = std::io::stdin().read_to_end(&mut rest);
        life.stop.store(true, Ordering::Relaxed);
    });
}

/// Takes a snapshot again and again.
async fn count(life: Arc<Life>, pause: Duration) -> Result<(), Failure> {
    while !life.stopped() {
        let op = life.recorder.intent(Intent::Census)?;
        let outcome = match life.queue.store().census().await {
            Ok(c) => Outcome::Counted { events: c.events, waiting: c.waiting, leased: c.leased, ended: c.ended },
            Err(error) => outcome_of(&error),
        };
        life.recorder.result(op, outcome)?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// The file of a `sqlite:` address.
pub(crate) fn sqlite_path(address: &str) -> Option<&Path> {
    address.strip_prefix("sqlite:").map(Path::new)
}
