//! A process under test: publishes its share of events, claims and ends entries, takes snapshots, and records it all.
//!
//! Uses the library as applications do, and must not know when it is killed. All its choices come from the seed; after
//! a restart it continues from its own earlier histories.

mod consume;
mod handle;
mod job;
mod life;
mod outbox;
mod own_end;
mod plan;
mod publish;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::{ErrorKind, EventQueue};

pub(crate) use self::handle::{EFFECTS, IN_TX, PLAIN};
pub(crate) use self::job::{Failure, Job, sqlite_path};
pub(crate) use self::life::BACK_OFF;
use self::life::{Life, outcome_of};
use crate::history::{self, Intent, OpOutcome, Recorder};

/// How long a process keeps trying to open its database, which may be down.
const OPEN_WITHIN: Duration = Duration::from_secs(120);
/// Runs the job until the parent closes standard input.
pub(crate) fn run(job: &str) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(job)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run_job(job))
}

async fn run_job(job: Job) -> Result<(), Failure> {
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

/// Sets `stop` when standard input ends: the parent asks the process to stop, or is gone.
fn watch_parent(life: &Arc<Life>) {
    let life = Arc::clone(life);
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // An error, too, means that the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut rest);
        life.stop.store(true, Ordering::Relaxed);
    });
}

/// Takes snapshots until the process is asked to stop.
async fn count(life: Arc<Life>, pause: Duration) -> Result<(), Failure> {
    while !life.stopped() {
        let op = life.recorder.intent(Intent::Census)?;
        let outcome = match life.queue.store().census().await {
            Ok(c) => OpOutcome::Counted { events: c.events, waiting: c.waiting, leased: c.leased, ended: c.ended },
            Err(error) => outcome_of(&error),
        };
        life.recorder.result(op, outcome)?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}
