//! Whether the cost of a claim stays flat: with a large backlog, behind delayed entries, behind foreign types, among
//! many lanes, behind leased entries.
//!
//! Each claim of 100 is timed alone. After each, the claimed entries are finalised and as many are published, so that
//! the scene does not change. Pages are those that the claim's statements touched, as PostgreSQL counts them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate::{End, EventQueue, Finalize, NewEvent, QueueName};
use tidegate_store::{Claim, Claimed, QueueChange};
use tokio_postgres::Client;

use super::{Bench, known};
use crate::pg::Database;
use crate::report::Measured;
use crate::runner::{Pair, median, progress, short};
use crate::scale::{BATCH, CLAIM, PAYLOAD};
use crate::{Result, tide};

/// Claims before the first measured one, to warm up plans and caches.
const WARM_UP: usize = 10;
/// Lanes per queue in [`Scene::Lanes`].
const LANES: usize = 1_000;
/// Types of these lanes; each has `LANES / TYPES` priorities.
const TYPES: usize = 250;
/// Delays and leases of this length do not end during a run.
const DELAY: Duration = Duration::from_secs(24 * 3600);

/// What the queue holds besides the entries that a claim takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    Plain,
    Backlog,
    Delayed,
    Foreign,
    Lanes,
    Leased,
}

impl Scene {
    const HARD: [Self; 5] = [Self::Backlog, Self::Delayed, Self::Foreign, Self::Lanes, Self::Leased];

    fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Backlog => "flat_backlog",
            Self::Delayed => "flat_delayed",
            Self::Foreign => "flat_foreign",
            Self::Lanes => "many_lanes",
            Self::Leased => "many_leased",
        }
    }

    /// The names of the disciplines by time and by pages.
    fn names(self, database: &str) -> [String; 2] {
        let name = format!("{database}_claim_{}", self.word());
        match self {
            Self::Lanes | Self::Leased => [name.clone(), format!("{name}_pages")],
            _ => ["time", "pages"].map(|what| format!("{name}_{what}")),
        }
    }
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    outcomes.extend(run_postgres(bench).await?);
    outcomes.extend(run_sqlite(bench).await?);
    Ok(outcomes)
}

async fn run_postgres(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for scene in Scene::HARD {
        let names = scene.names("postgres");
        if !bench.wanted.has_any(&[&names[0], &names[1]]) {
            continue;
        }
        let mut stages = Vec::new();
        for scene in [scene, Scene::Plain] {
            let database = bench.server()?.database().await?;
            let counter = PageCounter::new(&database).await?;
            let queue = EventQueue::open(&database.url).await?;
            prepare(&queue, scene, bench).await?;
            database.vacuum().await?;
            stages.push((database, queue, Some(counter)));
        }
        bench.server()?.checkpoint().await?;
        let [hard, plain] = [&stages[0], &stages[1]].map(|stage| (&stage.1, stage.2.as_ref()));
        let (times, pages) = compare(bench, scene, hard, plain).await?;
        outcomes.push(Measured::beside(known(&names[0])?, times));
        outcomes.push(Measured::beside(known(&names[1])?, pages));
        for (_, queue, _) in &stages {
            queue.close().await;
        }
    }
    Ok(outcomes)
}

async fn run_sqlite(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for scene in Scene::HARD {
        let [name, _] = scene.names("sqlite");
        if !bench.wanted.has(&name) {
            continue;
        }
        let mut stages = Vec::new();
        for scene in [scene, Scene::Plain] {
            let folder = bench.sqlite_folder()?;
            let queue = EventQueue::open(folder.path().join("tidegate.db").to_string_lossy()).await?;
            prepare(&queue, scene, bench).await?;
            stages.push((folder, queue));
        }
        let (times, _) = compare(bench, scene, (&stages[0].1, None), (&stages[1].1, None)).await?;
        outcomes.push(Measured::beside(known(&name)?, times));
        for (_, queue) in &stages {
            queue.close().await;
        }
    }
    Ok(outcomes)
}

/// Fills the queue for a scene. Entries that the claims have to pass are published first.
async fn prepare(queue: &EventQueue, scene: Scene, bench: &Bench) -> Result<()> {
    let scale = bench.scale;
    let event = tide::event(PAYLOAD);
    match scene {
        Scene::Plain => {}
        Scene::Backlog => return tide::fill(queue, &event, scale.backlog_large).await,
        Scene::Delayed => tide::fill(queue, &event.clone().delay(DELAY), scale.in_front).await?,
        Scene::Foreign => {
            let foreign = NewEvent::new("foreign", event.payload.clone());
            tide::fill(queue, &foreign, scale.in_front).await?;
        }
        Scene::Lanes => {
            for number in 0..scale.lane_queues {
                make_lanes(queue, number).await?;
            }
        }
        Scene::Leased => {
            tide::fill(queue, &event, scale.leased).await?;
            let mut left = scale.leased;
            while left > 0 {
                let held = queue.store().claim(Claim { lease: DELAY, ..want(queue, BATCH.min(left)) }).await?;
                if held.is_empty() {
                    return Err(format!("a claim returned nothing while {left} entries were still to be leased").into());
                }
                left -= held.len();
            }
        }
    }
    tide::fill(queue, &event, scale.backlog_small).await
}

/// Makes the lanes of a queue by one entry each, which is ended again. The first queue is the one that is claimed from.
async fn make_lanes(queue: &EventQueue, number: usize) -> Result<()> {
    let name = if number == 0 { queue.name().clone() } else { QueueName::new(format!("lanes-{number}"))? };
    queue.store().put_queue(&name, QueueChange::default()).await?;
    let event = |number: usize| {
        let priority = (number / TYPES) as i16;
        NewEvent::new(format!("type-{}", number % TYPES), "{}").priority(priority).queue(name.clone())
    };
    let events: Vec<NewEvent> = (0..LANES).map(event).collect();
    let mut left = 0;
    for answer in queue.publish_many(events).await {
        answer?;
        left += 1;
    }
    while left > 0 {
        let claimed = queue.store().claim(Claim { queue: name.clone(), ..want(queue, BATCH) }).await?;
        if claimed.is_empty() {
            return Err(format!("a claim from {name} returned nothing while {left} entries were waiting").into());
        }
        left -= claimed.len();
        finalize(queue, &claimed).await?;
    }
    Ok(())
}

fn want(queue: &EventQueue, max: usize) -> Claim {
    Claim {
        queue: queue.name().clone(),
        types: None,
        max,
        lease: Duration::from_secs(60),
        worker: "bench".into(),
        quotas: BTreeMap::new(),
        tags: None,
        audit: false,
    }
}

async fn finalize(queue: &EventQueue, claimed: &[Claimed]) -> Result<()> {
    let end = |id, token| Finalize {
        id,
        token: Some(token),
        end: End::Completed,
        errors: None,
        results: None,
        attempt: None,
    };
    let ends = claimed.iter().map(|one| end(one.id, one.token)).collect();
    for answer in queue.store().finalize(ends).await? {
        answer?;
    }
    Ok(())
}

/// Measures both queues in turns; returns milliseconds and pages per claim.
async fn compare(
    bench: &Bench,
    scene: Scene,
    hard: (&EventQueue, Option<&PageCounter>),
    plain: (&EventQueue, Option<&PageCounter>),
) -> Result<(Pair, Pair)> {
    // Both sides claim in the same way. Only the scene with foreign types needs a filter.
    let types = (scene == Scene::Foreign).then(|| vec![tide::TYPE.to_owned()]);
    for (queue, counter) in [hard, plain] {
        round(queue, counter, types.as_deref(), WARM_UP).await?;
    }
    let (mut times, mut pages) = (Pair::default(), Pair::default());
    for run in 1..=bench.scale.runs {
        let ours = round(hard.0, hard.1, types.as_deref(), bench.scale.claims).await?;
        let baseline = round(plain.0, plain.1, types.as_deref(), bench.scale.claims).await?;
        let figures =
            format!("{} vs {} ms, {} vs {} pages", short(ours.0), short(baseline.0), short(ours.1), short(baseline.1));
        progress(&format!("{:?} claim_{} {run}/{}: {figures}", hard.0.backend(), scene.word(), bench.scale.runs));
        times.ours.push(ours.0);
        times.baseline.push(baseline.0);
        pages.ours.push(ours.1);
        pages.baseline.push(baseline.1);
    }
    Ok((times, pages))
}

/// Claims several times; returns the medians of milliseconds and of pages per claim.
async fn round(
    queue: &EventQueue,
    counter: Option<&PageCounter>,
    types: Option<&[String]>,
    claims: usize,
) -> Result<(f64, f64)> {
    let (mut times, mut pages) = (Vec::new(), Vec::new());
    let event = tide::event(PAYLOAD);
    for _ in 0..claims {
        if let Some(counter) = counter {
            counter.reset().await?;
        }
        let claim = Claim { types: types.map(<[String]>::to_vec), ..want(queue, CLAIM) };
        let start = Instant::now();
        let claimed = queue.store().claim(claim).await?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if let Some(counter) = counter {
            pages.push(counter.pages().await?);
        }
        if claimed.len() != CLAIM {
            return Err(format!("a claim of {CLAIM} returned {} entries", claimed.len()).into());
        }
        finalize(queue, &claimed).await?;
        tide::publish(queue, &event, CLAIM).await?;
    }
    Ok((median(&times), median(&pages)))
}

/// Counts the pages that statements of one database touch, cached or not, by `pg_stat_statements`. Unlike the server's
/// other counters it is up to date at once and does not include vacuum.
#[derive(Debug)]
struct PageCounter(Client);

impl PageCounter {
    /// Switches counting on for connections to this database that are opened from now on.
    async fn new(database: &Database) -> Result<Self> {
        let client = database.connect().await?;
        let track = "DO $$ BEGIN
            EXECUTE format('ALTER DATABASE %I SET pg_stat_statements.track = top', current_database());
        END $$";
        client.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
        client.batch_execute(track).await?;
        Ok(Self(client))
    }

    async fn reset(&self) -> Result<()> {
        Ok(self.0.batch_execute("SELECT pg_stat_statements_reset()").await?)
    }

    async fn pages(&self) -> Result<f64> {
        let sum = "SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8 FROM pg_stat_statements
                   WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        Ok(self.0.query_one(sum, &[]).await?.get(0))
    }
}
