//! Whether a claim's cost stays flat: with a large backlog, behind delayed entries, behind foreign types.
//!
//! Each claim of 100 is timed alone; between two claims what was claimed is finalised and as much is published again, so
//! that the scene stays as it is. Pages are those that the claim's statements touched, as PostgreSQL counts them.

use std::time::{Duration, Instant};

use tidegate::{End, EventQueue, Finalize, NewEvent};
use tidegate_store::Claim;
use tokio_postgres::Client;

use super::{Bench, known};
use crate::pg::Database;
use crate::report::Outcome;
use crate::runner::{Pair, median, progress, short};
use crate::scale::{CLAIM, PAYLOAD};
use crate::{Result, tide};

/// Claims that are made before any is measured: plans and caches get warm.
const WARM_UP: usize = 10;
/// Long enough that no run sees a delayed entry become due.
const DELAY: Duration = Duration::from_secs(24 * 3600);

/// What stands in the way of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    Plain,
    Backlog,
    Delayed,
    Foreign,
}

impl Scene {
    const HARD: [Self; 3] = [Self::Backlog, Self::Delayed, Self::Foreign];

    fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Backlog => "backlog",
            Self::Delayed => "delayed",
            Self::Foreign => "foreign",
        }
    }
}

/// Runs what is wanted of this family.
///
/// # Errors
/// When a database refuses.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    outcomes.extend(run_postgres(bench).await?);
    outcomes.extend(run_sqlite(bench).await?);
    Ok(outcomes)
}

async fn run_postgres(bench: &Bench) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for scene in Scene::HARD {
        let names = ["time", "pages"].map(|what| format!("postgres_claim_flat_{}_{what}", scene.word()));
        if !bench.wanted.has_any(&[&names[0], &names[1]]) {
            continue;
        }
        let mut stages = Vec::new();
        for scene in [scene, Scene::Plain] {
            let database = bench.server()?.database().await?;
            let counter = PageCounter::new(&database).await?;
            let queue = EventQueue::open(&database.url).await?;
            set(&queue, scene, bench).await?;
            database.settle().await?;
            stages.push((database, queue, Some(counter)));
        }
        bench.server()?.checkpoint().await?;
        let [hard, plain] = [&stages[0], &stages[1]].map(|stage| (&stage.1, stage.2.as_ref()));
        let (times, pages) = compare(bench, scene, hard, plain).await?;
        outcomes.push(Outcome::beside(known(&names[0])?, times));
        outcomes.push(Outcome::beside(known(&names[1])?, pages));
        for (_, queue, _) in &stages {
            queue.close().await;
        }
    }
    Ok(outcomes)
}

async fn run_sqlite(bench: &Bench) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for scene in Scene::HARD {
        let name = format!("sqlite_claim_flat_{}_time", scene.word());
        if !bench.wanted.has(&name) {
            continue;
        }
        let mut stages = Vec::new();
        for scene in [scene, Scene::Plain] {
            let folder = bench.sqlite_folder()?;
            let queue = EventQueue::open(folder.path().join("tidegate.db").to_string_lossy()).await?;
            set(&queue, scene, bench).await?;
            stages.push((folder, queue));
        }
        let (times, _) = compare(bench, scene, (&stages[0].1, None), (&stages[1].1, None)).await?;
        outcomes.push(Outcome::beside(known(&name)?, times));
        for (_, queue) in &stages {
            queue.close().await;
        }
    }
    Ok(outcomes)
}

/// Publishes what makes a scene; what stands in front comes first.
async fn set(queue: &EventQueue, scene: Scene, bench: &Bench) -> Result<()> {
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
    }
    tide::fill(queue, &event, scale.backlog_small).await
}

/// Rounds of claims in turns; answers times in milliseconds and pages.
async fn compare(
    bench: &Bench,
    scene: Scene,
    hard: (&EventQueue, Option<&PageCounter>),
    plain: (&EventQueue, Option<&PageCounter>),
) -> Result<(Pair, Pair)> {
    // Both sides ask in the same way; only the foreign types need a filter.
    let types = (scene == Scene::Foreign).then(|| vec![tide::TYPE.to_owned()]);
    for (queue, counter) in [hard, plain] {
        round(queue, counter, types.as_deref(), WARM_UP).await?;
    }
    let (mut times, mut pages) = (Pair::default(), Pair::default());
    for run in 1..=bench.scale.runs {
        let ours = round(hard.0, hard.1, types.as_deref(), bench.scale.claims).await?;
        let beside = round(plain.0, plain.1, types.as_deref(), bench.scale.claims).await?;
        let figures =
            format!("{} vs {} ms, {} vs {} pages", short(ours.0), short(beside.0), short(ours.1), short(beside.1));
        progress(&format!("{:?} claim_flat_{} {run}/{}: {figures}", hard.0.backend(), scene.word(), bench.scale.runs));
        times.ours.push(ours.0);
        times.baseline.push(beside.0);
        pages.ours.push(ours.1);
        pages.baseline.push(beside.1);
    }
    Ok((times, pages))
}

/// A round of claims; answers the medians of their times in milliseconds and of their pages.
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
        let claim = Claim {
            queue: queue.name().clone(),
            types: types.map(<[String]>::to_vec),
            max: CLAIM,
            lease: Duration::from_secs(60),
            worker: "bench".into(),
            tags: None,
            audit: false,
        };
        let start = Instant::now();
        let claimed = queue.store().claim(claim).await?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if let Some(counter) = counter {
            pages.push(counter.pages().await?);
        }
        if claimed.len() != CLAIM {
            return Err(format!("a claim of {CLAIM} got {}", claimed.len()).into());
        }
        let end = |id, token| Finalize { id, token: Some(token), end: End::Completed, errors: None, results: None };
        let ends = claimed.iter().map(|one| end(one.id, one.token)).collect();
        for answer in queue.store().finalize(ends).await? {
            answer?;
        }
        tide::publish(queue, &event, CLAIM).await?;
    }
    Ok((median(&times), median(&pages)))
}

/// Counts the pages that statements of one database touch, whether cached or not, by `pg_stat_statements`: unlike the
/// server's other counters it is exact at once and leaves vacuum out.
#[derive(Debug)]
struct PageCounter(Client);

impl PageCounter {
    /// Switches counting on for connections to this database that are made from now on.
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
