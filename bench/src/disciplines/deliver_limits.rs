//! Whether the limits of pools hold across two server processes on one database, as the receiver sees it: a limit per minute
//! in every minute, and the concurrency also while processes are killed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Backend;
use tidegate_dispatch::PoolBody;
use tokio::time::sleep;

use super::webhooks::Maker;
use super::{BACKENDS, Bench, known};
use crate::Result;
use crate::report::Measured;
use crate::runner::{progress, short};
use crate::served::Served;
use crate::sink::{Sink, until_taken};

const MINUTE: Duration = Duration::from_secs(60);
/// After the first delivery so much passes before minutes are counted.
const WARM: Duration = Duration::from_secs(5);
/// Deliveries at once where processes are killed, how long each takes, and how many there are.
const CONCURRENCY: u32 = 16;
const HOLD: Duration = Duration::from_millis(100);
const DELIVERED: usize = 6_000;
/// How many processes are killed, one after the other, and how long after the last one.
const KILLED: usize = 4;
const LIFE: Duration = Duration::from_secs(3);
/// How long a delivery may pause that is looked for after a kill.
const SETTLES: Duration = Duration::from_secs(2);

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        let names = ["most", "least"].map(|what| format!("{prefix}_deliver_rate_{what}"));
        if names.iter().any(|name| bench.wanted.has(name)) {
            let (most, least) = minutes(bench, backend).await?;
            progress(&format!("{prefix}_deliver_rate: between {} and {} %", short(least), short(most)));
            for (name, part) in names.iter().zip([most, least]) {
                outcomes.push(Measured::absolute(known(name)?, vec![part]));
            }
        }
        let name = format!("{prefix}_deliver_killed_excess");
        if bench.wanted.has(&name) {
            let (at_once, lost) = killed(bench, backend).await?;
            let beyond = at_once.saturating_sub(CONCURRENCY as usize) as f64;
            let note = format!("{at_once} at once at most, the longest pause after a kill {} ms", short(lost));
            progress(&format!("{name}: {note}"));
            outcomes.push(Measured::absolute(known(&name)?, vec![beyond]).note(note));
        }
    }
    Ok(outcomes)
}

/// A receiver that remembers when requests arrived.
async fn remembering() -> Result<(Sink, Arc<Mutex<Vec<Instant>>>)> {
    let arrived: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let known = Arc::clone(&arrived);
    let remember = move |_: &[u8]| known.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
    Ok((Sink::calling(Arc::new(remember)).await?, arrived))
}

fn moments(arrived: &Mutex<Vec<Instant>>) -> Vec<Instant> {
    let mut moments = arrived.lock().unwrap_or_else(PoisonError::into_inner).clone();
    moments.sort_unstable();
    moments
}

/// Makes a backlog for a pool.
async fn fill(address: &str, sink: &Sink, pool: &PoolBody, jobs: usize) -> Result<()> {
    let maker = Maker::open(address).await?;
    let pool = maker.pool(pool).await?;
    maker.subscribe("limited", None, sink, |body| body.dispatch_pool = Some(pool)).await?;
    maker.ingest("limited", None, 0..jobs, 0).await?;
    maker.close().await;
    Ok(())
}

/// The fullest and the emptiest minute of two processes under a backlog, in percent of the limit.
async fn minutes(bench: &Bench, backend: Backend) -> Result<(f64, f64)> {
    let database = bench.fresh(backend).await?;
    let (limit, time) = bench.scale.per_minute;
    let (sink, arrived) = remembering().await?;
    let pool = PoolBody { concurrency: 64, rate_limit_per_minute: Some(limit), ..PoolBody::new("Bench".into()) };
    let backlog = 2 * limit as usize * (time.as_secs() as usize / 60 + 1);
    fill(&database.address(), &sink, &pool, backlog).await?;
    let nodes =
        [Served::start_with_router(&database.address()).await?, Served::start_with_router(&database.address()).await?];
    let first = until_taken(std::slice::from_ref(&sink), 1).await?;
    sleep(time.saturating_sub(first.elapsed())).await;
    let end = Instant::now();
    for node in nodes {
        node.stop().await?;
    }
    let (most, least) = windows(&moments(&arrived), first + WARM, end, MINUTE).ok_or("no whole minute was watched")?;
    Ok((most as f64 * 100.0 / f64::from(limit), least as f64 * 100.0 / f64::from(limit)))
}

/// How many of these moments lie at most and at least in a window of this length between two moments; `None` if none fits.
/// The fullest one begins with a moment, the emptiest just after one, or at the start.
fn windows(moments: &[Instant], from: Instant, to: Instant, length: Duration) -> Option<(usize, usize)> {
    let before = |at: Instant| moments.partition_point(|moment| *moment < at);
    let until = |at: Instant| moments.partition_point(|moment| *moment <= at);
    let last = to.checked_sub(length).filter(|last| *last >= from)?;
    let starts = || moments.iter().copied().filter(|at| (from..=last).contains(at));
    let most = starts().chain([from]).map(|at| before(at + length) - before(at)).max()?;
    let least =
        starts().map(|at| until(at + length) - until(at)).chain([before(from + length) - before(from)]).min()?;
    Some((most, least))
}

/// The most deliveries at once while one of two processes after the other is killed and replaced; and the longest time in
/// milliseconds without a delivery after that.
async fn killed(bench: &Bench, backend: Backend) -> Result<(usize, f64)> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    let (sink, arrived) = remembering().await?;
    sink.hold(HOLD);
    let pool = PoolBody { concurrency: CONCURRENCY, ..PoolBody::new("Bench".into()) };
    fill(&address, &sink, &pool, DELIVERED).await?;
    let mut nodes = vec![Served::start_with_router(&address).await?, Served::start_with_router(&address).await?];
    until_taken(std::slice::from_ref(&sink), 1).await?;
    let mut kills = Vec::new();
    for _ in 0..KILLED {
        sleep(LIFE).await;
        let victim = nodes.remove(0);
        kills.push(Instant::now());
        victim.kill().await?;
        sleep(SETTLES).await;
        nodes.push(Served::start_with_router(&address).await?);
    }
    sleep(LIFE).await;
    for node in nodes {
        node.stop().await?;
    }
    let moments = moments(&arrived);
    let pauses = moments.windows(2).filter(|pair| kills.iter().any(|kill| *kill < pair[1] && pair[0] < *kill + LIFE));
    let longest = pauses.map(|pair| pair[1] - pair[0]).max().ok_or("nothing was delivered after a kill")?;
    Ok((sink.most(), longest.as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_and_the_emptiest_window() {
        let start = Instant::now();
        let second = |at: f64| start + Duration::from_secs_f64(at);
        let moments = [0.0, 1.0, 2.0, 2.5, 4.0, 9.0].map(second);
        let of = |from: f64, to: f64| windows(&moments, second(from), second(to), Duration::from_secs(2));
        assert_eq!(of(0.0, 10.0), Some((3, 0)));
        assert_eq!(of(0.0, 4.0), Some((3, 2)));
        assert_eq!(of(0.0, 1.9), None);
    }
}
