//! Claiming: polls that merge, and waiting for work.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidegate_core::QueueName;
use tidegate_core::name::check_text;
use tidegate_store::{Claim, Claimed, ErrorKind, Standing};
use tokio::sync::watch;

use crate::coalescer::{Coalescer, LaneLimits};
use crate::delivery::QueuedEvent;
use crate::error::{Error, Result};
use crate::moments::after;
use crate::options::check_lease;
use crate::release::Late;
use crate::shared::Shared;
use crate::wake::Bell;

/// How long the last claim of a wait may take.
const LAST_CLAIM: Duration = Duration::from_secs(5);

/// Concurrent polls merge when all of this is equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClaimKey {
    pub(crate) queue: QueueName,
    pub(crate) types: Option<Vec<String>>,
    pub(crate) lease: Duration,
    pub(crate) worker: String,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) audit: bool,
}

impl ClaimKey {
    fn claim(&self, max: usize) -> Claim {
        Claim {
            queue: self.queue.clone(),
            types: self.types.clone(),
            max,
            lease: self.lease,
            worker: self.worker.clone(),
            tags: self.tags.clone(),
            audit: self.audit,
        }
    }
}

/// Where delivered entries came from; each of them holds it.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: ClaimKey,
}

/// The polls of one key.
pub(crate) struct ClaimLane {
    pub(crate) origin: Arc<Origin>,
    bell: Arc<Bell>,
    lane: Coalescer<usize, Vec<QueuedEvent>>,
    activity: Arc<Activity>,
    /// One of those who wait lets a claim stand in the store; the polls of the others merge.
    stands: AtomicBool,
}

/// When a key was last polled and announced. It outlives its lane, so that handles made for one poll count too.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    /// Milliseconds since the start, plus one; 0 is never.
    polled: AtomicU64,
    announced: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), polled: AtomicU64::new(0), announced: AtomicU64::new(0) }
    }

    fn clock(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn poll(&self) {
        self.polled.store(self.clock(), Ordering::Relaxed);
    }

    pub(crate) fn announce(&self) {
        self.announced.store(self.clock(), Ordering::Relaxed);
    }

    pub(crate) fn polled_within(&self, time: Duration) -> bool {
        is_within(self.polled.load(Ordering::Relaxed), self.clock(), time)
    }

    pub(crate) fn announced_within(&self, time: Duration) -> bool {
        is_within(self.announced.load(Ordering::Relaxed), self.clock(), time)
    }
}

fn is_within(at: u64, now: u64, time: Duration) -> bool {
    at > 0 && u128::from(now.saturating_sub(at)) < time.as_millis()
}

impl fmt::Debug for ClaimLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimLane").field("key", &self.origin.key).finish_non_exhaustive()
    }
}

impl ClaimLane {
    pub(crate) fn new(shared: &Arc<Shared>, key: ClaimKey, activity: Arc<Activity>) -> Self {
        let base = shared.lane_limits(2);
        let limits = LaneLimits {
            batch_weight: base.batch_items,
            room_weight: base.room_items.max(base.batch_items),
            skip_gone: true,
            ..base
        };
        let bell = shared.bells.of(&key.queue);
        let origin = Arc::new(Origin { shared: Arc::clone(shared), key });
        let lane = {
            let origin = Arc::clone(&origin);
            Coalescer::new("claim", limits, |wanted| *wanted, move |wanted| claim(Arc::clone(&origin), wanted))
        };
        Self { origin, bell, lane, activity, stands: AtomicBool::new(false) }
    }

    /// How many claims the store takes at once.
    pub(crate) fn at_once(&self) -> usize {
        self.lane.at_once()
    }

    pub(crate) fn close(&self) {
        self.lane.close();
    }

    pub(crate) async fn idle(&self) {
        self.lane.idle().await;
    }
}

/// One claim for all who wait: the first comes first.
async fn claim(origin: Arc<Origin>, wanted: Vec<usize>) -> Result<Vec<Result<Vec<QueuedEvent>>>> {
    // The lease began at some moment of this call: its holder counts from before.
    let from = Instant::now();
    let claimed = origin.shared.store.claim(origin.key.claim(wanted.iter().sum())).await?;
    let mut rest = delivered(&origin, claimed, from);
    let share = |count: usize| Ok(rest.by_ref().take(count).collect());
    Ok(wanted.into_iter().map(share).collect())
}

fn delivered(origin: &Arc<Origin>, claimed: Vec<Claimed>, from: Instant) -> impl Iterator<Item = QueuedEvent> {
    let now = Instant::now();
    meter(origin, &claimed);
    claimed.into_iter().map(move |data| QueuedEvent::new(data, Arc::clone(origin), from, now))
}

/// A lane's claim that stands in the store. Dropped, it is taken back, and what it gets too late is released.
struct Stand<'a> {
    lane: &'a ClaimLane,
    claim: Option<Standing>,
}

impl<'a> Stand<'a> {
    /// `None` where the store has nothing of the kind or somebody else of the lane stands already.
    fn begin(lane: &'a ClaimLane, count: usize) -> Option<Self> {
        let Origin { shared, key, .. } = &*lane.origin;
        // Claims by tag are many, and each gets little: they look when they are roused.
        if key.tags.is_some() || shared.is_closed() || lane.stands.swap(true, Ordering::AcqRel) {
            return None;
        }
        let claim = key.claim(count.min(shared.options.limits.batch_items.max(1)));
        // From here on a drop frees the place.
        let mut stand = Self { lane, claim: None };
        stand.claim = Some(shared.store.stand(claim)?);
        Some(stand)
    }

    /// Waits until `alarm` or a ring for what it gets. `None`: nothing yet.
    async fn wait(
        &mut self,
        alarm: tokio::time::Instant,
        rung: &mut watch::Receiver<u64>,
    ) -> Option<Result<Vec<QueuedEvent>>> {
        let claim = self.claim.as_mut()?;
        tokio::select! {
            // What was claimed is answered before anybody rings for it.
            biased;
            answer = claim.answer() => {
                let from = claim.taken_at();
                self.answered(answer, from)
            }
            _ = tokio::time::timeout_at(alarm, rung.changed()) => None,
        }
    }

    fn look(&self) {
        self.lane.activity.poll();
        if let Some(claim) = &self.claim {
            claim.look();
        }
    }

    /// Takes it back, with what it has got.
    async fn withdraw(mut self) -> Option<Result<Vec<QueuedEvent>>> {
        let claim = self.claim.as_mut()?;
        if claim.withdraw() {
            self.claim = None;
            return None;
        }
        let answer = claim.answer().await;
        let from = claim.taken_at();
        self.answered(answer, from)
    }

    fn answered(&mut self, answer: Option<Result<Vec<Claimed>>>, from: Instant) -> Option<Result<Vec<QueuedEvent>>> {
        self.claim = None;
        Some(answer?.map(|claimed| delivered(&self.lane.origin, claimed, from).collect()))
    }

    /// Whether it stands no more, though nobody took it back.
    fn is_over(&self) -> bool {
        self.claim.is_none()
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        self.lane.stands.store(false, Ordering::Release);
        if let Some(claim) = self.claim.take()
            && !claim.withdraw()
        {
            let Origin { shared, key } = &*self.lane.origin;
            shared.release_late(Late { claim, queue: key.queue.clone(), lease: key.lease });
        }
    }
}

fn meter(origin: &Origin, claimed: &[Claimed]) {
    let meters = &origin.shared.meters;
    meters.claimed.increment(claimed.len() as u64);
    origin.shared.count_exhausted();
    for entry in claimed {
        let waited = (entry.claimed_at.as_microsecond() - entry.fact.created_at.as_microsecond()).max(0);
        meters.publish_to_claim.record(waited as f64 / 1e6);
        crate::trace::claimed(entry, &origin.key.worker);
    }
}

/// The moment so long from now, by the runtime's clock.
pub(crate) fn distant(by: Duration) -> tokio::time::Instant {
    after(tokio::time::Instant::now().into_std(), by).into()
}

/// A handle that claims, perhaps only some types, perhaps under another lease or name.
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// use std::time::Duration;
/// let mails = queue.consumer().types(["mail.wanted"])?.lease(Duration::from_secs(300))?;
/// while let Some(event) = mails.next(Duration::from_secs(10)).await? {
///     event.complete().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Consumer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: ClaimKey,
    /// Found or made when it is first needed.
    lane: OnceLock<Arc<ClaimLane>>,
}

impl Consumer {
    pub(crate) fn new(shared: &Arc<Shared>, key: ClaimKey) -> Self {
        Self { shared: Arc::clone(shared), key, lane: OnceLock::new() }
    }

    fn changed(&self, change: impl FnOnce(&mut ClaimKey)) -> Self {
        let mut key = self.key.clone();
        change(&mut key);
        Self::new(&self.shared, key)
    }

    /// The lane that it shares with all who claim with the same words.
    pub(crate) fn lane(&self) -> &Arc<ClaimLane> {
        self.lane.get_or_init(|| self.shared.claim_lane(&self.key))
    }

    /// Claims only these types.
    ///
    /// # Errors
    /// When there is none, or one is not a type.
    pub fn types<T: Into<String>>(&self, types: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut types: Vec<String> = types.into_iter().map(Into::into).collect();
        types.sort_unstable();
        types.dedup();
        if types.is_empty() {
            return Err(Error::invalid("a consumer of no types would never get anything: name one, or leave it out"));
        }
        for event_type in &types {
            check_text("event type", event_type)?;
        }
        Ok(self.changed(|key| key.types = Some(types)))
    }

    /// Claims only entries with any of these tags.
    ///
    /// # Errors
    /// When there is none, or one is not a tag.
    pub fn tags<T: Into<String>>(&self, tags: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut tags: Vec<String> = tags.into_iter().map(Into::into).collect();
        tags.sort_unstable();
        tags.dedup();
        if tags.is_empty() {
            return Err(Error::invalid("a consumer of no tags would never get anything: name one, or leave it out"));
        }
        for tag in &tags {
            tidegate_core::work::check_tag(tag)?;
        }
        Ok(self.changed(|key| key.tags = Some(tags)))
    }

    /// Lets the audit say who picked what.
    #[must_use]
    pub fn audited(&self) -> Self {
        self.changed(|key| key.audit = true)
    }

    /// Claims for this long.
    ///
    /// # Errors
    /// When the lease is not within a millisecond and a year.
    pub fn lease(&self, lease: Duration) -> Result<Self> {
        check_lease(lease)?;
        Ok(self.changed(|key| key.lease = lease))
    }

    /// Claims under this name.
    ///
    /// # Errors
    /// When the name is empty, too long, or has control characters.
    pub fn worker(&self, worker: impl Into<String>) -> Result<Self> {
        let worker = worker.into();
        check_text("worker", &worker)?;
        Ok(self.changed(|key| key.worker = worker))
    }

    /// Claims the next entry, or none, without waiting for one.
    ///
    /// # Errors
    /// The store's.
    pub async fn poll(&self) -> Result<Option<QueuedEvent>> {
        Ok(self.claim(1).await?.pop())
    }

    /// Claims up to `count` entries without waiting for them.
    ///
    /// # Errors
    /// The store's. What was claimed before it is released.
    pub async fn poll_many(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        let most = self.shared.options.limits.batch_items.max(1);
        let mut events = self.claim(count.min(most)).await?;
        let mut full = events.len() == most;
        while full && events.len() < count {
            let more = self.claim((count - events.len()).min(most)).await?;
            full = more.len() == most;
            events.extend(more);
        }
        Ok(events)
    }

    async fn claim(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let lane = self.lane();
        lane.activity.poll();
        lane.lane.call(count).await
    }

    /// Claims the next entry, waiting up to `timeout` for one. Wake-ups rouse it; without any it looks again after the
    /// poll interval.
    ///
    /// # Errors
    /// The store's.
    pub async fn next(&self, timeout: Duration) -> Result<Option<QueuedEvent>> {
        Ok(self.wait_many(1, timeout).await?.pop())
    }

    /// Claims up to `count` entries, waiting up to `timeout` for the first.
    ///
    /// # Errors
    /// The store's.
    pub async fn wait_many(&self, count: usize, timeout: Duration) -> Result<Vec<QueuedEvent>> {
        self.wait_looking(count, timeout, self.shared.options.poll_interval).await
    }

    /// The same with a poll interval of the caller's own.
    pub(crate) async fn wait_looking(
        &self,
        count: usize,
        timeout: Duration,
        interval: Duration,
    ) -> Result<Vec<QueuedEvent>> {
        let mut rung = self.lane().bell.listen();
        let deadline = distant(timeout);
        loop {
            // A claim that is under way at the end may finish, but a store that does not answer must not prolong the
            // wait: what it claims too late is released.
            let looked = Instant::now();
            let last = deadline.max(tokio::time::Instant::now()) + LAST_CLAIM;
            let Ok(polled) = tokio::time::timeout_at(last, self.poll_many(count)).await else {
                return Err(Error::new(ErrorKind::Unavailable, "the database did not answer within the wait"));
            };
            let events = polled?;
            if !events.is_empty() || count == 0 {
                return Ok(events);
            }
            let now = tokio::time::Instant::now();
            if now >= deadline {
                return Ok(events);
            }
            let Some(stand) = Stand::begin(self.lane(), count) else {
                // The bell outlives this call, so an error cannot happen; it would only mean another look.
                let _ = tokio::time::timeout_at(self.alarm(looked, deadline, interval), rung.changed()).await;
                continue;
            };
            if let Some(events) = self.standing(stand, &mut rung, (looked, deadline, interval)).await {
                return events;
            }
        }
    }

    /// Waits with a claim that stands. `None`: it stands no more, and there may be something to claim.
    async fn standing(
        &self,
        mut stand: Stand<'_>,
        rung: &mut watch::Receiver<u64>,
        (mut looked, deadline, interval): (Instant, tokio::time::Instant, Duration),
    ) -> Option<Result<Vec<QueuedEvent>>> {
        loop {
            if let Some(events) = stand.wait(self.alarm(looked, deadline, interval), rung).await {
                return Some(events);
            }
            if stand.is_over() {
                return None;
            }
            if tokio::time::Instant::now() >= deadline {
                return Some(stand.withdraw().await.unwrap_or_else(|| Ok(Vec::new())));
            }
            looked = Instant::now();
            stand.look();
        }
    }

    /// When to look again without being roused.
    fn alarm(&self, looked: Instant, deadline: tokio::time::Instant, interval: Duration) -> tokio::time::Instant {
        let alarm = deadline.min(distant(interval));
        self.lane().bell.next_moment(looked).map_or(alarm, |moment| alarm.min(moment.into()))
    }
}
