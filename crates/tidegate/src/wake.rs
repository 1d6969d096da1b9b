//! Who waits for work, and what rouses them.
//!
//! Each queue has a [`Bell`]. Publishes of this process and hints of the store ring it; waiters look at the store again
//! when it rang. It also remembers the moments at which this process knows something becomes due. All of it only saves
//! time: waiters look by themselves after the poll interval.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Availability, NewEvent, QueueName, Timestamp};
use tidegate_store::{RequeueAt, Wake};
use tokio::sync::{broadcast, watch};

/// Moments remembered per queue at most; later ones are left to the poll interval.
const MAX_MOMENTS: usize = 4_096;
/// A moment is kept for this long after it passed, for those who looked just before it and have not reckoned their alarm yet.
const KEPT: Duration = Duration::from_secs(1);
/// Moments are rounded up to this, so that a burst of equal delays is one.
const GRAIN: Duration = Duration::from_millis(2);

/// The bells of all queues that somebody here waits for.
#[derive(Debug)]
pub(crate) struct Bells {
    start: Instant,
    queues: Mutex<HashMap<QueueName, Arc<Bell>>>,
    log: watch::Sender<u64>,
}

/// The bell of one queue.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: watch::Sender<u64>,
    moments: Mutex<BTreeSet<Instant>>,
}

impl Bells {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), queues: Mutex::default(), log: watch::Sender::new(0) }
    }

    /// The bell of a queue; made when it is first asked for.
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<Bell> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = queues.get(queue) {
            return Arc::clone(bell);
        }
        let bell = Arc::new(Bell { rung: watch::Sender::new(0), moments: Mutex::default() });
        queues.insert(queue.clone(), Arc::clone(&bell));
        bell
    }

    pub(crate) fn ring(&self, queue: &QueueName) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = queues.get(queue) {
            bell.ring();
        }
    }

    /// Something was written to the log.
    pub(crate) fn logged(&self) {
        self.log.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Hears of everything that this process writes to the log from now on.
    pub(crate) fn log(&self) -> watch::Receiver<u64> {
        self.log.subscribe()
    }

    pub(crate) fn ring_all(&self) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().for_each(|bell| bell.ring());
    }

    /// Notes that something of a queue becomes due after a while.
    pub(crate) fn ring_after(&self, queue: &QueueName, delay: Duration) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = queues.get(queue) {
            bell.remember(self.rounded(delay));
        }
    }

    /// The same where the queue is not known: everybody looks then.
    pub(crate) fn ring_all_after(&self, delay: Duration) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.rounded(delay);
        queues.values().for_each(|bell| bell.remember(at));
    }

    fn rounded(&self, delay: Duration) -> Instant {
        let now = Instant::now();
        let at = now.checked_add(delay).unwrap_or(now);
        let grains = at.duration_since(self.start).as_nanos() / GRAIN.as_nanos() + 1;
        self.start + GRAIN * u32::try_from(grains).unwrap_or(u32::MAX)
    }

    /// Rings for what was just published: at once, or when it becomes due.
    pub(crate) fn published<'a>(&self, news: impl Iterator<Item = &'a News>) {
        for news in news {
            match news.after {
                None => self.ring(&news.queue),
                Some(delay) => self.ring_after(&news.queue, delay),
            }
        }
    }
}

impl Bell {
    fn ring(&self) {
        self.rung.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn remember(&self, at: Instant) {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let sooner = moments.range(Instant::now()..).next().is_none_or(|first| at < *first);
        if moments.len() < MAX_MOMENTS {
            moments.insert(at);
        }
        drop(moments);
        if sooner {
            self.ring(); // sleepers reckon their alarm anew
        }
    }

    /// Hears every ring from now on.
    pub(crate) fn listen(&self) -> watch::Receiver<u64> {
        self.rung.subscribe()
    }

    /// The first known moment at which something becomes due after the last look at the store, which may have passed by now.
    pub(crate) fn next_moment(&self, looked: Instant) -> Option<Instant> {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        while moments.first().is_some_and(|at| *at + KEPT < looked) {
            moments.pop_first();
        }
        moments.range((Bound::Excluded(looked), Bound::Unbounded)).next().copied()
    }
}

/// What a batch of publishes has for one queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct News {
    queue: QueueName,
    /// `None`: something is claimable now; else after how long.
    after: Option<Duration>,
}

/// What a batch has for whom, with repeats left out.
pub(crate) fn news_of(events: &[NewEvent]) -> Vec<News> {
    let mut all: Vec<News> = Vec::new();
    for event in events {
        let after = match event.available {
            Availability::Now => None,
            Availability::After(delay) => Some(delay),
            Availability::At(at) => until(at),
        };
        let known = all.iter().rev().take(4).any(|news| news.after == after && news.queue == event.queue);
        if !known {
            all.push(News { queue: event.queue.clone(), after });
        }
    }
    all
}

/// How long until a returned entry is claimable again; `None` when it is now.
pub(crate) fn delay_of(when: RequeueAt) -> Option<Duration> {
    match when {
        RequeueAt::Now => None,
        RequeueAt::After(delay) => Some(delay),
        RequeueAt::At(at) => until(at),
    }
}

fn until(at: Timestamp) -> Option<Duration> {
    Duration::try_from(at.duration_since(Timestamp::now())).ok().filter(|delay| !delay.is_zero())
}

/// Passes the store's hints on until the queue is dropped or closed.
pub(crate) async fn forward(bells: Arc<Bells>, mut hints: broadcast::Receiver<Wake>, mut stop: watch::Receiver<bool>) {
    loop {
        let hint = tokio::select! {
            hint = hints.recv() => hint,
            _ = stop.changed() => return,
        };
        match hint {
            Ok(Wake::Queues(queues)) => queues.iter().for_each(|queue| bells.ring(queue)),
            Ok(Wake::Any) | Err(broadcast::error::RecvError::Lagged(_)) => bells.ring_all(),
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> QueueName {
        QueueName::default()
    }

    #[test]
    fn a_ring_is_heard_by_those_who_listened_before() {
        let bells = Bells::new();
        let bell = bells.of(&queue());
        let heard = bell.listen();
        assert!(!heard.has_changed().unwrap());
        bells.ring(&queue());
        assert!(heard.has_changed().unwrap());
        assert!(!bell.listen().has_changed().unwrap());
    }

    #[test]
    fn the_next_moment_is_the_soonest_and_equal_ones_are_one() {
        let bells = Bells::new();
        let bell = bells.of(&queue());
        for _ in 0..100 {
            bells.ring_after(&queue(), Duration::from_secs(600));
        }
        bells.ring_after(&queue(), Duration::from_secs(60));
        let wait = bell.next_moment(Instant::now()).unwrap() - Instant::now();
        assert!(wait > Duration::from_secs(55) && wait < Duration::from_secs(61), "{wait:?}");
        assert!(bell.moments.lock().unwrap().len() < 60);
    }

    #[test]
    fn a_moment_of_an_unknown_queue_is_told_to_all() {
        let bells = Bells::new();
        let (one, other) = (bells.of(&queue()), bells.of(&QueueName::new("other").unwrap()));
        bells.ring_all_after(Duration::from_secs(60));
        let now = Instant::now();
        assert!(one.next_moment(now).is_some() && other.next_moment(now).is_some());
    }

    #[test]
    fn a_moment_that_passed_since_the_look_is_not_forgotten() {
        let bells = Bells::new();
        let bell = bells.of(&queue());
        let looked = Instant::now();
        bells.ring_after(&queue(), Duration::from_millis(1));
        let moment = bell.next_moment(looked).unwrap();
        while Instant::now() <= moment {}
        assert_eq!(bell.next_moment(looked), Some(moment), "who looked before it looks again at once");
        assert_eq!(bell.next_moment(Instant::now()), None, "who looked after it need not");
        assert_eq!(bell.next_moment(looked), Some(moment));
        let heard = bell.listen();
        bells.ring_after(&queue(), Duration::from_secs(60));
        assert!(heard.has_changed().unwrap(), "it is the next one now");
        assert!(bell.next_moment(Instant::now() + KEPT * 2).is_some());
        assert_eq!(bell.moments.lock().unwrap().len(), 1, "the old one is gone");
    }

    #[test]
    fn a_flood_of_moments_is_bounded() {
        let bells = Bells::new();
        let bell = bells.of(&queue());
        for ms in 0..50_000 {
            bells.ring_after(&queue(), Duration::from_secs(60) + Duration::from_millis(ms * 3));
        }
        assert_eq!(bell.moments.lock().unwrap().len(), MAX_MOMENTS);
    }

    #[test]
    fn news_of_one_queue_is_told_once() {
        let events: Vec<NewEvent> = (0..100)
            .map(|n| {
                if n % 2 == 0 { NewEvent::new("t", "1") } else { NewEvent::new("t", "1").delay(Duration::from_secs(9)) }
            })
            .collect();
        assert_eq!(news_of(&events).len(), 2);
    }
}
