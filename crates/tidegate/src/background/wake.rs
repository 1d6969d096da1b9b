//! Wake-ups: hints that something may be claimable.
//!
//! Each queue has a [`WakeUp`], which is raised by publishes of this process and by hints of the store; waiters then
//! poll the store. It also remembers the moments at which this process knows that something becomes due. Losing a
//! wake-up costs time, never an entry: waiters poll by themselves after the poll interval.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Availability, NewEvent, QueueName, Timestamp};
use tidegate_store::{RequeueAt, Wake};
use tokio::sync::{broadcast, watch};

/// Moments remembered per queue at most; further ones are left to the poll interval.
const MAX_MOMENTS: usize = 4_096;
/// A moment is kept for this long after it passed, for waiters that polled just before it and have not computed their
/// alarm yet.
const KEPT: Duration = Duration::from_secs(1);
/// Moments are rounded up to this, so that a burst of equal delays is one moment.
const GRAIN: Duration = Duration::from_millis(2);

/// The wake-ups of all queues that this process waits for, and of the log.
#[derive(Debug)]
pub(crate) struct WakeUps {
    start: Instant,
    queues: Mutex<HashMap<QueueName, Arc<WakeUp>>>,
    /// Rises with every write of this process to the log.
    log: watch::Sender<u64>,
}

/// The wake-ups of one queue.
#[derive(Debug)]
pub(crate) struct WakeUp {
    /// Rises with every wake-up.
    count: watch::Sender<u64>,
    /// When entries of the queue are known to become due.
    moments: Mutex<BTreeSet<Instant>>,
}

impl WakeUps {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), queues: Mutex::default(), log: watch::Sender::new(0) }
    }

    /// The wake-ups of a queue, created at the first call.
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<WakeUp> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wake_up) = queues.get(queue) {
            return Arc::clone(wake_up);
        }
        let wake_up = Arc::new(WakeUp { count: watch::Sender::new(0), moments: Mutex::default() });
        queues.insert(queue.clone(), Arc::clone(&wake_up));
        wake_up
    }

    pub(crate) fn wake(&self, queue: &QueueName) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wake_up) = queues.get(queue) {
            wake_up.wake();
        }
    }

    /// Wakes readers of the log.
    pub(crate) fn logged(&self) {
        self.log.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Sees every write of this process to the log from now on.
    pub(crate) fn log(&self) -> watch::Receiver<u64> {
        self.log.subscribe()
    }

    pub(crate) fn wake_all(&self) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().for_each(|wake_up| wake_up.wake());
    }

    /// Remembers that an entry of a queue becomes due after `delay`.
    pub(crate) fn wake_after(&self, queue: &QueueName, delay: Duration) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wake_up) = queues.get(queue) {
            wake_up.remember(self.rounded(delay));
        }
    }

    /// As [`wake_after`](Self::wake_after) where the queue is not known: waiters of all queues poll then.
    pub(crate) fn wake_all_after(&self, delay: Duration) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.rounded(delay);
        queues.values().for_each(|wake_up| wake_up.remember(at));
    }

    fn rounded(&self, delay: Duration) -> Instant {
        let now = Instant::now();
        let at = now.checked_add(delay).unwrap_or(now);
        let grains = at.duration_since(self.start).as_nanos() / GRAIN.as_nanos() + 1;
        self.start + GRAIN * u32::try_from(grains).unwrap_or(u32::MAX)
    }

    /// Wakes for what was just published: at once, or when it becomes due.
    pub(crate) fn published<'a>(&self, hints: impl Iterator<Item = &'a QueueHint>) {
        for hint in hints {
            match hint.after {
                None => self.wake(&hint.queue),
                Some(delay) => self.wake_after(&hint.queue, delay),
            }
        }
    }
}

impl WakeUp {
    fn wake(&self) {
        self.count.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn remember(&self, at: Instant) {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let sooner = moments.range(Instant::now()..).next().is_none_or(|first| at < *first);
        if moments.len() < MAX_MOMENTS {
            moments.insert(at);
        }
        drop(moments);
        if sooner {
            self.wake(); // waiters compute their alarm again
        }
    }

    /// Sees every wake-up from now on.
    pub(crate) fn listen(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// The first known moment after the last poll at which something becomes due; it may have passed by now.
    pub(crate) fn next_moment(&self, polled_at: Instant) -> Option<Instant> {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        while moments.first().is_some_and(|at| *at + KEPT < polled_at) {
            moments.pop_first();
        }
        moments.range((Bound::Excluded(polled_at), Bound::Unbounded)).next().copied()
    }
}

/// What a batch of publishes brings for one queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueHint {
    queue: QueueName,
    /// When something becomes claimable; `None`: now.
    after: Option<Duration>,
}

/// The hints of a batch. Each event is compared with the last four hints only, so some may be repeated.
pub(crate) fn hints_of(events: &[NewEvent]) -> Vec<QueueHint> {
    let mut all: Vec<QueueHint> = Vec::new();
    for event in events {
        let after = match event.available {
            Availability::Now => None,
            Availability::After(delay) => Some(delay),
            Availability::At(at) => until(at),
        };
        let known = all.iter().rev().take(4).any(|hint| hint.after == after && hint.queue == event.queue);
        if !known {
            all.push(QueueHint { queue: event.queue.clone(), after });
        }
    }
    all
}

/// How long until a requeued entry is claimable again; `None`: now.
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

/// Passes the store's hints on until the queue is closed or its last handle is dropped.
pub(crate) async fn forward(
    wake_ups: Arc<WakeUps>,
    mut hints: broadcast::Receiver<Wake>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let hint = tokio::select! {
            hint = hints.recv() => hint,
            _ = stop.changed() => return,
        };
        match hint {
            Ok(Wake::Queues(queues)) => queues.iter().for_each(|queue| wake_ups.wake(queue)),
            Ok(Wake::Any) | Err(broadcast::error::RecvError::Lagged(_)) => wake_ups.wake_all(),
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
        let wake_ups = WakeUps::new();
        let wake_up = wake_ups.of(&queue());
        let heard = wake_up.listen();
        assert!(!heard.has_changed().unwrap());
        wake_ups.wake(&queue());
        assert!(heard.has_changed().unwrap());
        assert!(!wake_up.listen().has_changed().unwrap());
    }

    #[test]
    fn the_next_moment_is_the_soonest_and_equal_ones_are_one() {
        let wake_ups = WakeUps::new();
        let wake_up = wake_ups.of(&queue());
        for _ in 0..100 {
            wake_ups.wake_after(&queue(), Duration::from_secs(600));
        }
        wake_ups.wake_after(&queue(), Duration::from_secs(60));
        let wait = wake_up.next_moment(Instant::now()).unwrap() - Instant::now();
        assert!(wait > Duration::from_secs(55) && wait < Duration::from_secs(61), "{wait:?}");
        assert!(wake_up.moments.lock().unwrap().len() < 60);
    }

    #[test]
    fn a_moment_of_an_unknown_queue_is_told_to_all() {
        let wake_ups = WakeUps::new();
        let (one, other) = (wake_ups.of(&queue()), wake_ups.of(&QueueName::new("other").unwrap()));
        wake_ups.wake_all_after(Duration::from_secs(60));
        let now = Instant::now();
        assert!(one.next_moment(now).is_some() && other.next_moment(now).is_some());
    }

    #[test]
    fn a_moment_that_passed_since_the_look_is_not_forgotten() {
        let wake_ups = WakeUps::new();
        let wake_up = wake_ups.of(&queue());
        let polled_at = Instant::now();
        wake_ups.wake_after(&queue(), Duration::from_millis(1));
        let moment = wake_up.next_moment(polled_at).unwrap();
        while Instant::now() <= moment {}
        assert_eq!(wake_up.next_moment(polled_at), Some(moment), "a waiter that polled before it polls again");
        assert_eq!(wake_up.next_moment(Instant::now()), None, "a waiter that polled after it does not");
        assert_eq!(wake_up.next_moment(polled_at), Some(moment));
        let heard = wake_up.listen();
        wake_ups.wake_after(&queue(), Duration::from_secs(60));
        assert!(heard.has_changed().unwrap(), "it is the next one now");
        assert!(wake_up.next_moment(Instant::now() + KEPT * 2).is_some());
        assert_eq!(wake_up.moments.lock().unwrap().len(), 1, "the old one is gone");
    }

    #[test]
    fn a_flood_of_moments_is_bounded() {
        let wake_ups = WakeUps::new();
        let wake_up = wake_ups.of(&queue());
        for ms in 0..50_000 {
            wake_ups.wake_after(&queue(), Duration::from_secs(60) + Duration::from_millis(ms * 3));
        }
        assert_eq!(wake_up.moments.lock().unwrap().len(), MAX_MOMENTS);
    }

    #[test]
    fn news_of_one_queue_is_told_once() {
        let events: Vec<NewEvent> = (0..100)
            .map(|n| {
                if n % 2 == 0 { NewEvent::new("t", "1") } else { NewEvent::new("t", "1").delay(Duration::from_secs(9)) }
            })
            .collect();
        assert_eq!(hints_of(&events).len(), 2);
    }
}
