//! The cost of a claim by tag: with ten matching events among very many, and with a tag that all events share besides
//! one that only a single event has.
//!
//! Each claim takes one event, as a subscriber does, and is timed alone. Then the event is finalised and one with the
//! same tags is published, so that the scene does not change.

use std::time::{Duration, Instant};

use tidegate::{End, EventQueue, Finalize, NewEvent};
use tidegate_store::Claim;

use super::{Bench, known};
use crate::report::Measured;
use crate::runner::{Pair, median, progress, short};
use crate::scale::{BATCH, PAYLOAD};
use crate::{Result, tide};

/// Events with the rare tag, and all events of the baseline.
const FEW: usize = 10;
/// Claims before the first measured one.
const WARM_UP: usize = 10;

/// How the tags are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    Rare,
    Hot,
}

impl Scene {
    fn name(self, backend: &str) -> String {
        let word = if self == Self::Rare { "rare" } else { "hot" };
        format!("{backend}_subscribe_{word}_tag")
    }

    /// The tags of the event with this number. Events with the rare tag come last.
    fn tags(self, number: usize, count: usize) -> Vec<String> {
        match self {
            Self::Rare if number + FEW < count => vec!["common".into()],
            Self::Rare => vec!["rare".into()],
            Self::Hot => vec!["hot".into(), format!("own-{number}")],
        }
    }

    /// The sets of tags that are claimed by; each is measured on its own.
    fn asks(self) -> Vec<Vec<String>> {
        let ask = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect();
        match self {
            Self::Rare => vec![ask(&["rare"])],
            Self::Hot => vec![ask(&["hot"]), ask(&["own-7"]), ask(&["hot", "own-7"])],
        }
    }
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for scene in [Scene::Rare, Scene::Hot] {
        let many = if scene == Scene::Rare { bench.scale.rare } else { bench.scale.hot };
        let name = scene.name("postgres");
        if bench.wanted.has(&name) {
            let mut stages = Vec::new();
            for count in [many, FEW] {
                let database = bench.server()?.database().await?;
                let queue = EventQueue::open(&database.url).await?;
                prepare(&queue, scene, count).await?;
                database.vacuum().await?;
                stages.push((database, queue));
            }
            bench.server()?.checkpoint().await?;
            outcomes.push(compare(bench, scene, &name, &stages[0].1, &stages[1].1).await?);
        }
        let name = scene.name("sqlite");
        if bench.wanted.has(&name) {
            let mut stages = Vec::new();
            for count in [many, FEW] {
                let folder = bench.sqlite_folder()?;
                let queue = EventQueue::open(folder.path().join("tidegate.db").to_string_lossy()).await?;
                prepare(&queue, scene, count).await?;
                stages.push((folder, queue));
            }
            outcomes.push(compare(bench, scene, &name, &stages[0].1, &stages[1].1).await?);
        }
    }
    Ok(outcomes)
}

fn event(tags: Vec<String>) -> NewEvent {
    tide::event(PAYLOAD).title("a title").tags(tags)
}

async fn prepare(queue: &EventQueue, scene: Scene, count: usize) -> Result<()> {
    for start in (0..count).step_by(BATCH) {
        let events = (start..count.min(start + BATCH)).map(|number| event(scene.tags(number, count))).collect();
        for answer in queue.publish_many(events).await {
            answer?;
        }
    }
    Ok(())
}

/// Measures both queues in turns. Of several sets of tags the one with the worst ratio counts.
async fn compare(bench: &Bench, scene: Scene, name: &str, hard: &EventQueue, few: &EventQueue) -> Result<Measured> {
    let mut found: Vec<(Vec<String>, Pair)> = Vec::new();
    for ask in scene.asks() {
        for queue in [hard, few] {
            round(queue, &ask, WARM_UP).await?;
        }
        let mut pair = Pair::default();
        for run in 1..=bench.scale.runs {
            let ours = round(hard, &ask, bench.scale.claims).await?;
            let baseline = round(few, &ask, bench.scale.claims).await?;
            let figures = format!("{} vs {} ms", short(ours), short(baseline));
            progress(&format!("{name} by {} {run}/{}: {figures}", ask.join(","), bench.scale.runs));
            pair.ours.push(ours);
            pair.baseline.push(baseline);
        }
        found.push((ask, pair));
    }
    for queue in [hard, few] {
        queue.close().await;
    }
    let ratio = |pair: &Pair| median(&pair.ours) / median(&pair.baseline);
    found.sort_by(|one, other| ratio(&other.1).total_cmp(&ratio(&one.1)));
    let notes: Vec<String> =
        found.iter().map(|(ask, pair)| format!("by {}: {:.2}×", ask.join(","), ratio(pair))).collect();
    let (_, worst) = found.swap_remove(0);
    Ok(notes.into_iter().fold(Measured::beside(known(name)?, worst), Measured::note))
}

/// Claims several times; returns the median in milliseconds.
async fn round(queue: &EventQueue, ask: &[String], claims: usize) -> Result<f64> {
    let mut times = Vec::with_capacity(claims);
    for _ in 0..claims {
        let claim = Claim {
            queue: queue.name().clone(),
            types: None,
            max: 1,
            lease: Duration::from_secs(60),
            worker: "bench".into(),
            tags: Some(ask.to_vec()),
            quotas: std::collections::BTreeMap::new(),
            audit: true,
        };
        let start = Instant::now();
        let claimed = queue.store().claim(claim).await?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let Some(one) = claimed.into_iter().next() else {
            return Err(format!("a claim by the tag {} returned nothing", ask.join(" or ")).into());
        };
        let end = Finalize {
            id: one.id,
            token: Some(one.token),
            end: End::Completed,
            errors: None,
            results: None,
            attempt: None,
        };
        for answer in queue.store().finalize(vec![end]).await? {
            answer?;
        }
        queue.publish(event(one.fact.tags)).await?;
    }
    Ok(median(&times))
}
