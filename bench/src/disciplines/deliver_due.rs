//! Very many jobs that are due in the same second: how fast they are listed while they are delivered, and whether the limit of
//! their pool holds.

use std::time::{Duration, Instant};

use serde_json::json;
use serde_json::value::RawValue;
use tidegate::{Backend, Timestamp, Tsid};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::{NewTask, PoolBody, TaskRules};
use tokio::time::sleep;

use super::webhooks::{Lists, Maker};
use super::{BACKENDS, Bench, known};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{progress, rate, short};
use crate::scale::{BATCH, PAYLOAD, payload};
use crate::served::Served;
use crate::sink::Sink;

/// Deliveries at once, and how long each takes.
const CONCURRENCY: u32 = 64;
const HOLD: Duration = Duration::from_millis(5);
/// How long before they are due the server starts.
const AHEAD: Duration = Duration::from_secs(5);
/// How long it may take to make 1,000 jobs.
const EACH_BATCH: Duration = Duration::from_millis(400);
/// The pause after a round of lists.
const PAUSE: Duration = Duration::from_millis(20);
/// For how long nothing may be delivered.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        let names = ["p99", "excess"].map(|what| format!("{prefix}_deliver_due_{what}"));
        if !names.iter().any(|name| bench.wanted.has(name)) {
            continue;
        }
        let seen = measure(bench, backend).await?;
        let p99 = seen.lists.together().ok_or("nothing was listed")?;
        let lists = Measured::absolute(known(&names[0])?, vec![p99]);
        outcomes.push(seen.lists.notes().fold(lists, Measured::note));
        let beyond = seen.most_at_once.saturating_sub(CONCURRENCY as usize) as f64;
        let note = format!("{} at once at most, {} a second", seen.most_at_once, short(seen.per_second));
        progress(&format!("{prefix}_deliver_due: {note}, lists {} ms", short(p99)));
        outcomes.push(Measured::absolute(known(&names[1])?, vec![beyond]).note(note));
    }
    Ok(outcomes)
}

struct Seen {
    lists: Lists,
    most_at_once: usize,
    per_second: f64,
}

async fn measure(bench: &Bench, backend: Backend) -> Result<Seen> {
    let (database, jobs) = (bench.fresh(backend).await?, bench.scale.jobs);
    let address = database.address();
    let sink = Sink::start().await?;
    sink.hold(HOLD);
    let made_in = EACH_BATCH * u32::try_from(jobs / BATCH)?;
    let due = Timestamp::now() + made_in + AHEAD;
    let pool = fill(&address, &sink, jobs, due).await?;
    database.vacuum().await?;
    let left = until(due);
    if left < AHEAD / 2 {
        return Err("the jobs were due before all of them were made".into());
    }
    sleep(left.saturating_sub(AHEAD)).await;
    let served = Served::start_with_router(&address).await?;
    let mut connection = Connection::open(served.address).await?;
    sleep(until(due)).await;
    let (start, mut lists) = (Instant::now(), Lists::of(paths(pool)));
    let (mut before, mut progress_at) = (0, start);
    while sink.taken() < jobs {
        lists.send(&mut connection).await?;
        sleep(PAUSE).await;
        if sink.taken() != before {
            (before, progress_at) = (sink.taken(), Instant::now());
        } else if progress_at.elapsed() > PATIENCE {
            return Err(format!("no webhook in 60 s; {before} of {jobs} were delivered").into());
        }
    }
    let per_second = rate(jobs, start.elapsed());
    drop(connection);
    served.stop().await?;
    if sink.taken() != jobs {
        return Err(format!("expected {jobs} webhooks, found {}", sink.taken()).into());
    }
    Ok(Seen { lists, most_at_once: sink.most(), per_second })
}

/// How long it is until then.
fn until(moment: Timestamp) -> Duration {
    Duration::try_from(moment.duration_since(Timestamp::now())).unwrap_or_default()
}

fn paths(pool: Tsid) -> Vec<String> {
    let filters = ["", "?status=QUEUED", "?status=IN_PROGRESS", "?status=COMPLETED", "?status=ERROR", "?kind=TASK"];
    let mut paths: Vec<String> = filters.map(|filter| format!("/api/dispatch-jobs{filter}")).into();
    paths.push(format!("/api/dispatch-jobs?poolId={pool}"));
    paths.push("/api/dispatch-groups".to_owned());
    paths
}

/// Posts jobs that are all due at one moment; returns their pool.
async fn fill(address: &str, sink: &Sink, jobs: usize, due: Timestamp) -> Result<Tsid> {
    let maker = Maker::open(address).await?;
    let pool = maker.pool(&PoolBody { concurrency: CONCURRENCY, ..PoolBody::new("Bench".into()) }).await?;
    let data = RawValue::from_string(payload(PAYLOAD))?;
    let body = json!({ "type": "bench", "source": "/shop", "subject": "order:12345", "data": data });
    let event = Sent::from_json(&serde_json::to_vec(&body)?.into())?.event;
    let target = format!("http://{}/hook", sink.address());
    let (dispatch_pool_id, scheduled_for) = (Some(pool), Some(due));
    let rules = TaskRules { dispatch_pool_id, scheduled_for, ..TaskRules::new(target.parse()?) };
    let task = NewTask { client: None, event, rules };
    for first in (0..jobs).step_by(BATCH) {
        for created in maker.gateway.create_tasks(vec![task.clone(); BATCH.min(jobs - first)]).await {
            created?;
        }
    }
    maker.close().await;
    Ok(pool)
}
