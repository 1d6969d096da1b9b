//! Waiting lanes, limits of pools, attempts at jobs; and the decisions about them that need no database.

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::pool::rate::Rate;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tidegate_core::pool::slots::{Held, grant};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tidegate_core::{EntryId, Timestamp, entry::later, name::check_text};
use tidegate_core::{Generation, QueueName, Tsid};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::error::{Error, Result};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::failpoint::failpoint;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::values::{Batch, Family, Finalize, Requeue};

/// The most bytes that the record of an attempt may have.
pub const MAX_ATTEMPT_BYTES: usize = 16 << 10;

/// The most tasks that are read at once.
pub const MAX_TASKS: usize = 10_000;

/// Which lanes hold jobs that may be claimable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitingLanes {
    /// Queues, and what their jobs are sorted by ([`Target::lane_type`](crate::Target::lane_type)), each pair once.
    pub lanes: Vec<(QueueName, String)>,
    /// After what time the first timed job is due that is not due yet, in any lane that was looked at.
    pub next_due_in: Option<Duration>,
}

/// A pool, as its limits are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey {
    /// Its number; `None` for the built-in default pool of the client.
    pub pool: Option<Tsid>,
    /// The client, of a default pool; `None` for pools that have a number.
    pub client: Option<Tsid>,
}

impl PoolKey {
    /// A pool that was created.
    #[must_use]
    pub fn of(pool: Tsid) -> Self {
        Self { pool: Some(pool), client: None }
    }

    /// The built-in default pool of a client, or of no client.
    #[must_use]
    pub fn default_of(client: Option<Tsid>) -> Self {
        Self { pool: None, client }
    }

    /// As it is stored: 0 for none.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn stored(&self) -> (i64, i64) {
        (self.pool.map_or(0, Tsid::to_i64), self.client.map_or(0, Tsid::to_i64))
    }
}

/// What a node needs of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitAsk {
    /// The pool.
    pub pool: PoolKey,
    /// Its limit of deliveries at once, on all nodes together.
    pub concurrency: u32,
    /// The slots that the node uses.
    pub in_use: u32,
    /// The slots that it could use now, those in use included.
    pub wanted: u32,
    /// The pool's limit per minute, and at how many moments the node could begin a delivery.
    pub rate: Option<(Rate, u32)>,
}

/// What a node gets of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitGrant {
    /// The slots that it holds: those in use, at least.
    pub slots: u32,
    /// How many of them it is to use: while so many are in use, it begins no delivery. Less than `slots` where others
    /// wait for what it uses beyond its share.
    pub usable: u32,
    /// When deliveries may begin under the limit per minute, from now; one each. Empty without such a limit.
    pub starts: Vec<Duration>,
    /// After what time more moments can be had; `None` without such a limit.
    pub ask_again_in: Option<Duration>,
}

/// An attempt at a job, as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobAttempt {
    /// The generation that it was made in.
    pub generation: Generation,
    /// Its number in the generation, from 1.
    pub attempt: u32,
    /// The record, as it was given.
    pub record: String,
}

/// A lane that holds something.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Debug)]
pub(crate) struct WaitingLane {
    pub(crate) queue: QueueName,
    pub(crate) lane_type: String,
    /// Something in it may be claimable now.
    pub(crate) is_due: bool,
    /// After how many microseconds the first timed job is due that is not due yet.
    pub(crate) due_in: Option<i64>,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl FromIterator<WaitingLane> for WaitingLanes {
    fn from_iter<I: IntoIterator<Item = WaitingLane>>(found: I) -> Self {
        let (mut lanes, mut next): (BTreeSet<(QueueName, String)>, Option<i64>) = Default::default();
        for lane in found {
            next = [next, lane.due_in].into_iter().flatten().min();
            if lane.is_due {
                lanes.insert((lane.queue, lane.lane_type));
            }
        }
        let next_due_in = next.map(|next| Duration::from_micros(u64::try_from(next).unwrap_or(0)));
        Self { lanes: lanes.into_iter().collect(), next_due_in }
    }
}

/// Checks a record of an attempt.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn check_attempt(family: Family, record: Option<&str>) -> Result<()> {
    match record {
        None => Ok(()),
        Some(_) if family != Family::Jobs => Err(Error::invalid("only attempts at jobs are recorded")),
        Some(record) if record.len() > MAX_ATTEMPT_BYTES => {
            Err(Error::invalid(format!("the record of an attempt may have {MAX_ATTEMPT_BYTES} bytes at most")))
        }
        Some(_) => {
            // It was made, and nothing of it is written.
            failpoint("attempt.made");
            Ok(())
        }
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Finalize {
    pub(crate) fn check(&self, family: Family) -> Result<()> {
        check_attempt(family, self.attempt.as_deref())
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Requeue {
    pub(crate) fn check(&self, family: Family) -> Result<()> {
        if self.attempt.is_some() && !self.counts {
            return Err(Error::invalid("an attempt that does not count has no number to be recorded under"));
        }
        check_attempt(family, self.attempt.as_deref())
    }
}

/// Does a batch without the items that are refused; these are answered with the reason.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) async fn without_refused<I, T, F>(
    items: Vec<I>,
    check: impl Fn(&I) -> Result<()>,
    run: impl FnOnce(Vec<I>) -> F,
) -> Result<Batch<T>>
where
    F: Future<Output = Result<Batch<T>>>,
{
    let checked: Vec<Result<()>> = items.iter().map(check).collect();
    if checked.iter().all(Result::is_ok) {
        return run(items).await;
    }
    let accepted = items.into_iter().zip(&checked).filter(|(_, checked)| checked.is_ok()).map(|(item, _)| item);
    let mut answers = run(accepted.collect()).await?.into_iter();
    let lost = || Err(Error::new(crate::ErrorKind::Corrupt, "an item of the batch was not answered"));
    Ok(checked.into_iter().map(|checked| checked.and_then(|()| answers.next().unwrap_or_else(lost))).collect())
}

/// Checks what can be checked without a database.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn check_asks(node: &str, asks: &[LimitAsk]) -> Result<()> {
    check_text("node", node)?;
    let pools: BTreeSet<PoolKey> = asks.iter().map(|ask| ask.pool).collect();
    if pools.len() < asks.len() {
        return Err(Error::invalid("a pool is named twice"));
    }
    Ok(())
}

/// Checks the names of nodes.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn check_nodes(nodes: &[String]) -> Result<()> {
    Ok(nodes.iter().try_for_each(|node| check_text("node", node))?)
}

/// Checks how many tasks are asked for.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn check_tasks(ids: &[EntryId]) -> Result<()> {
    if ids.len() > MAX_TASKS {
        return Err(Error::invalid(format!("at most {MAX_TASKS} tasks are read at once, not {}", ids.len())));
    }
    Ok(())
}

/// The slots of a node, as they are stored.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotsRow {
    pub(crate) node: String,
    pub(crate) slots: u32,
    pub(crate) wanted: u32,
    /// Since when it has held so many.
    pub(crate) since: Timestamp,
    /// Until when they are its own.
    pub(crate) until: Timestamp,
}

/// What is stored about a pool.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Debug, Default)]
pub(crate) struct StoredLimits {
    /// The slots of all nodes.
    pub(crate) slots: Vec<SlotsRow>,
    /// The moment of the limit per minute.
    pub(crate) moment: Option<Timestamp>,
}

/// What follows from an ask.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Debug)]
pub(crate) struct LimitPlan {
    pub(crate) grant: LimitGrant,
    /// The asking node's row to write; `None` when it holds and wants nothing.
    pub(crate) row: Option<SlotsRow>,
    /// The nodes whose rows are to be removed.
    pub(crate) removed: Vec<String>,
    /// The moment of the limit per minute, if it changes.
    pub(crate) moment: Option<Timestamp>,
}

/// Decides what a node gets of a pool by what is stored, at a moment of database time.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn plan_limits(
    node: &str,
    ask: &LimitAsk,
    stored: StoredLimits,
    now: Timestamp,
    hold: Duration,
) -> LimitPlan {
    let wanted = ask.wanted.max(ask.in_use);
    let (mut held, over): (Vec<SlotsRow>, Vec<SlotsRow>) = stored.slots.into_iter().partition(|row| row.until > now);
    let is_own = |row: &SlotsRow| row.node == node;
    let was_stored = held.iter().chain(&over).any(is_own);
    let mut removed: Vec<String> = over.into_iter().filter(|row| !is_own(row)).map(|row| row.node).collect();
    let until = later(now, hold);
    let mut own = match held.iter().position(is_own) {
        Some(at) => SlotsRow { wanted, until, ..held.swap_remove(at) },
        None => SlotsRow { node: node.to_owned(), slots: 0, wanted, since: now, until },
    };
    held.push(own.clone());
    held.sort_by(|a, b| (a.since, &a.node).cmp(&(b.since, &b.node)));
    let me = held.iter().position(is_own).unwrap_or_default();
    let for_how_long = |row: &SlotsRow| Duration::try_from(now.duration_since(row.since)).unwrap_or_default();
    let nodes: Vec<Held> = held
        .iter()
        .map(|row| Held { slots: row.slots, wanted: row.wanted, unchanged_for: for_how_long(row) })
        .collect();
    let granted = grant(ask.concurrency, &nodes, me, ask.in_use);
    if granted.slots != own.slots {
        (own.slots, own.since) = (granted.slots, now);
    }
    let is_idle = own.slots == 0 && own.wanted == 0;
    if is_idle && was_stored {
        removed.push(node.to_owned());
    }
    let before = stored.moment.unwrap_or(Timestamp::MIN);
    let reserved = ask.rate.map(|(rate, wanted)| rate.reserve(before, now, wanted));
    let from_now = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
    LimitPlan {
        grant: LimitGrant {
            slots: granted.slots,
            usable: granted.usable,
            starts: reserved.iter().flat_map(|reserved| reserved.starts().map(from_now)).collect(),
            ask_again_in: reserved.map(|reserved| from_now(reserved.ask_again_at())),
        },
        row: (!is_idle).then_some(own),
        removed,
        moment: reserved.map(|reserved| reserved.stored()).filter(|moment| *moment != before),
    }
}
