//! Admits lists, so that they do not slow everything else down. Few run at once, some wait, further ones are refused as
//! `Busy`. Kinds of lists that turned out slow run one at a time with a pause after each, so that together they use at
//! most a fifth of one processor; quick lists do not wait for them. Knows nothing of how a list is read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::Tsid;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::values::{FactsQuery, ListQuery, TypeFilter};

/// How many lists may wait for each one that may run, and how long.
const WAITING: usize = 16;
const MAX_WAIT: Duration = Duration::from_secs(1);
/// A list is slow if it takes longer than `QUICK`. Two in a row, or one that takes `LONG`, make its kind slow.
const QUICK: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_millis(100);
/// After a slow list that took t, no slow list starts for 4t, but for at most `MAX_PAUSE`.
const PAUSE_FACTOR: u32 = 4;
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// How long a slow list waits, and how many may wait. This is longer than the longest pause, so a list with none
/// running or waiting before it is always admitted.
const SLOW_MAX_WAIT: Duration = Duration::from_secs(5);
const SLOW_WAITING: usize = 256;
/// For how long after a slow list further unknown lists of the same client are treated as slow.
const SUSPECTED: Duration = Duration::from_secs(10);
/// A kind is slow after this many slow lists in a row.
const SLOW_AFTER: u8 = 2;
/// How many kinds, and how many clients, are remembered.
const REMEMBERED: usize = 1_024;
/// A page or an offset with more entries than this makes another kind of list.
const SHORT: usize = 100;

/// The error for a list while as many run and wait as may.
pub(crate) fn too_many() -> Error {
    Error::new(ErrorKind::Busy, "too many lists run at once; try again in a second")
}

fn too_many_slow() -> Error {
    let text = "lists like this one take long and run one at a time: narrow the filter, or try again in some seconds";
    Error::new(ErrorKind::Busy, text)
}

/// Lists that cost about the same: lists of one client that filter by the same fields, whatever the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    client: Option<Tsid>,
    shape: u32,
    /// A short page that an index finds entirely: it costs little, even if it takes long on a busy machine.
    light: bool,
}

impl Kind {
    /// The audit of an entry.
    pub(crate) const AUDIT: Self = Self { client: None, shape: u32::MAX, light: false };

    /// Jobs of a client, or of all: a page examines a bounded number of them.
    pub(crate) fn jobs(client: Option<Tsid>) -> Self {
        Self { client, shape: u32::MAX - 2, light: true }
    }

    /// The workers of a client, or all workers.
    pub(crate) fn workers(client: Option<Tsid>) -> Self {
        Self { client, shape: u32::MAX - 1, light: false }
    }

    /// A search for facts.
    pub(crate) fn of_facts(query: &FactsQuery) -> Self {
        let is_pattern = matches!(query.event_type, Some(TypeFilter::Pattern(_)));
        let filters = [
            query.event_type.is_some(),
            query.source.is_some(),
            query.subject.is_some(),
            query.external_id.is_some(),
            query.correlation_id.is_some(),
            !query.terms.is_empty(),
        ];
        let rest = [
            is_pattern,
            query.terms.len() > 1,
            query.client.is_none(),
            query.from.is_some(),
            query.to.is_some(),
            query.before.is_some(),
            query.limit > SHORT,
        ];
        let bits = filters.iter().chain(&rest).fold(0, |bits, part| bits << 1 | u32::from(*part));
        let is_timed = query.from.is_some() || query.to.is_some();
        let is_plain = !(is_pattern || is_timed || query.terms.len() > 1 || query.limit > SHORT);
        let light = is_plain && filters.into_iter().filter(|is_set| *is_set).count() <= 1;
        Self { client: query.client.flatten(), shape: 1 << 30 | bits, light }
    }

    pub(crate) fn of(query: &ListQuery) -> Self {
        let parts = [
            query.queue.is_some(),
            query.event_type.is_some(),
            query.worker.is_some(),
            query.from.is_some(),
            query.to.is_some(),
            query.before.is_some(),
            query.limit > SHORT,
            query.offset > SHORT,
        ];
        let is_filtered = query.queue.is_some() || query.event_type.is_some() || query.worker.is_some();
        let is_timed = query.from.is_some() || query.to.is_some();
        let is_long = query.limit > SHORT || query.offset > SHORT || query.tags.len() > 1;
        let is_held = query.status == Some(tidegate_core::Status::Processing);
        let light = !(is_filtered || is_timed || is_long || is_held);
        let bits = parts.into_iter().fold(0, |bits, part| bits << 1 | u32::from(part));
        let status = query.status.map_or(0, |status| 1 + status as u32);
        Self { client: query.client, shape: bits << 12 | status << 8 | query.tags.len().min(255) as u32, light }
    }
}

/// What was measured about lists.
#[derive(Debug)]
struct Seen {
    /// How many lists of a kind were slow in a row, up to [`SLOW_AFTER`].
    kinds: HashMap<Kind, u8>,
    /// Until when unknown lists of a client are treated as slow.
    clients: HashMap<Option<Tsid>, Instant>,
    /// No slow list starts before this moment.
    slow_from: Instant,
}

#[derive(Debug)]
pub(crate) struct ListGate {
    running: Semaphore,
    waiting: Semaphore,
    slow: Semaphore,
    slow_waiting: Semaphore,
    seen: Mutex<Seen>,
}

impl ListGate {
    pub(crate) fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        Self {
            running: Semaphore::new(at_once),
            waiting: Semaphore::new(at_once * WAITING),
            slow: Semaphore::new(1),
            slow_waiting: Semaphore::new(SLOW_WAITING),
            seen: Mutex::new(Seen { kinds: HashMap::new(), clients: HashMap::new(), slow_from: Instant::now() }),
        }
    }

    /// Waits until the list may run. The permit is held while it runs.
    pub(crate) async fn enter(&self, kind: Kind) -> Result<ListPermit<'_>> {
        let slow = if self.is_slow(kind) { Some(self.enter_slow().await?) } else { None };
        let running = self.enter_any().await?;
        Ok(ListPermit { gate: self, kind, began: Instant::now(), _slow: slow, _running: running })
    }

    async fn enter_any(&self) -> Result<SemaphorePermit<'_>> {
        if let Ok(permit) = self.running.try_acquire() {
            return Ok(permit);
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| too_many())?;
        match timeout(MAX_WAIT, self.running.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(too_many()),
        }
    }

    /// Waits until no slow list runs and the pause after the last one is over. A caller that may not even wait is
    /// refused only after a delay, so that asking again and again costs little.
    async fn enter_slow(&self) -> Result<SemaphorePermit<'_>> {
        let Ok(_waiting) = self.slow_waiting.try_acquire() else {
            tokio::time::sleep(MAX_WAIT).await;
            return Err(too_many_slow());
        };
        let permit = async {
            let permit = self.slow.acquire().await.map_err(|_| too_many_slow())?;
            loop {
                let slow_from = self.seen().slow_from;
                if slow_from <= Instant::now() {
                    return Ok(permit);
                }
                sleep_until(slow_from).await;
            }
        };
        timeout(SLOW_MAX_WAIT, permit).await.unwrap_or_else(|_| Err(too_many_slow()))
    }

    fn is_slow(&self, kind: Kind) -> bool {
        if kind.light {
            return false;
        }
        let seen = self.seen();
        let suspected = || seen.clients.get(&kind.client).is_some_and(|until| *until > Instant::now());
        seen.kinds.get(&kind).map_or_else(suspected, |slow| *slow >= SLOW_AFTER)
    }

    fn learn(&self, kind: Kind, took: Duration) {
        if kind.light {
            return;
        }
        let mut seen = self.seen();
        let now = Instant::now();
        if seen.kinds.len() >= REMEMBERED {
            seen.kinds.clear();
        }
        let slow = seen.kinds.entry(kind).or_default();
        *slow = match took {
            _ if took >= LONG => SLOW_AFTER,
            _ if took > QUICK => SLOW_AFTER.min(*slow + 1),
            _ => 0,
        };
        if *slow >= SLOW_AFTER {
            if seen.clients.len() >= REMEMBERED {
                seen.clients.retain(|_, until| *until > now);
            }
            seen.clients.insert(kind.client, now + SUSPECTED);
        }
        if took > QUICK {
            seen.slow_from = (seen.slow_from.max(now) + took * PAUSE_FACTOR).min(now + MAX_PAUSE);
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list that runs. When it is dropped, the time it took is recorded.
#[derive(Debug)]
pub(crate) struct ListPermit<'a> {
    gate: &'a ListGate,
    kind: Kind,
    began: Instant,
    _slow: Option<SemaphorePermit<'a>>,
    _running: SemaphorePermit<'a>,
}

impl Drop for ListPermit<'_> {
    fn drop(&mut self) {
        self.gate.learn(self.kind, self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tags: usize) -> Kind {
        let tags = (0..tags).map(|number| number.to_string()).collect();
        Kind::of(&ListQuery { tags, client: Some(Tsid::from_i64(7)), ..ListQuery::default() })
    }

    async fn run(gate: &ListGate, kind: Kind, took: Duration) {
        let _permit = gate.enter(kind).await.unwrap();
        tokio::time::advance(took).await;
    }

    #[tokio::test(start_paused = true)]
    async fn slow_lists_take_a_fifth_of_the_time() {
        let gate = ListGate::new(4);
        let began = Instant::now();
        for _ in 0..5 {
            run(&gate, tagged(3), Duration::from_millis(200)).await;
        }
        // The first was not known to be slow; each of the others waited for four times the duration of a list.
        assert_eq!(began.elapsed().as_millis(), 5 * 200 + 4 * 800);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_quick_does_not_wait_for_what_is_slow() {
        let gate = ListGate::new(4);
        let quick = Kind::workers(None);
        run(&gate, quick, Duration::from_millis(1)).await;
        run(&gate, tagged(3), Duration::from_secs(1)).await;
        let began = Instant::now();
        run(&gate, quick, Duration::ZERO).await;
        run(&gate, tagged(1), Duration::ZERO).await;
        assert_eq!(began.elapsed().as_millis(), 0, "another client's list, and a short page that an index finds");
        run(&gate, tagged(4), Duration::ZERO).await;
        assert_eq!(began.elapsed().as_secs(), 4, "a list of an unknown kind by the client that sent the slow one");
        run(&gate, tagged(4), Duration::ZERO).await;
        assert_eq!(began.elapsed().as_secs(), 4, "its kind is known to be quick now");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_nobody_ahead_gets_a_turn_and_others_are_refused() {
        let gate = ListGate::new(4);
        for _ in 0..9 {
            let _ = gate.enter(tagged(3)).await.unwrap();
            gate.learn(tagged(3), Duration::from_secs(2));
        }
        let _first = gate.enter(tagged(3)).await.unwrap();
        let began = Instant::now();
        let refused = gate.enter(tagged(3)).await.unwrap_err();
        assert_eq!((refused.kind(), began.elapsed()), (ErrorKind::Busy, SLOW_MAX_WAIT));
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_moment_does_not_make_a_kind_slow() {
        let gate = ListGate::new(4);
        let (short, long) = (QUICK / 2, QUICK + QUICK / 2);
        for took in [long, short, long, long] {
            assert!(!gate.is_slow(tagged(3)));
            run(&gate, tagged(3), took).await;
        }
        assert!(gate.is_slow(tagged(3)) && gate.is_slow(tagged(4)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_page_is_never_slow() {
        let gate = ListGate::new(4);
        for _ in 0..3 {
            run(&gate, tagged(1), Duration::from_secs(1)).await;
        }
        assert!(!gate.is_slow(tagged(1)) && !gate.is_slow(tagged(2)));
    }

    #[test]
    fn values_do_not_make_a_kind() {
        let base = ListQuery { event_type: Some("a".into()), ..ListQuery::default() };
        let other = ListQuery { event_type: Some("b".into()), ..base.clone() };
        assert_eq!(Kind::of(&base), Kind::of(&other));
        for different in [
            ListQuery { client: Some(Tsid::from_i64(7)), ..base.clone() },
            ListQuery { offset: 1_000, ..base.clone() },
            ListQuery { limit: 1_000, ..base.clone() },
            ListQuery { status: Some(tidegate_core::Status::Failed), ..base.clone() },
            ListQuery { tags: vec!["a".into()], ..base.clone() },
        ] {
            assert_ne!(Kind::of(&base), Kind::of(&different));
        }
    }
}
