//! Turns for lists: whatever they cost, everything else goes on. Few run at once, some wait, and more are told to come back.
//! Lists of a kind that took long run one at a time, with a rest after each, so that together they take a fifth of one
//! processor. What is quick does not wait for them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::Tsid;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::work::ListQuery;

/// Lists that wait for each one that may run, at most, and how long they wait.
const WAITING: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);
/// A list that takes longer may be slow, or have had a bad moment; two in a row, or one that takes as long as the second, are.
const QUICK: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_millis(100);
/// How many times as long as it took nothing slow runs after a slow list, and how long at most.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(4);
/// How long a slow list waits, and how many may: one that nobody else is ahead of always gets its turn.
const SLOW_PATIENCE: Duration = Duration::from_secs(5);
const SLOW_WAITING: usize = 256;
/// For how long a client whose list was slow is expected to send more of them.
const SUSPECTED: Duration = Duration::from_secs(10);
/// So many slow lists in a row say that their kind is.
const SURE: u8 = 2;
/// Kinds and clients that are remembered.
const REMEMBERED: usize = 1_024;
/// Places from which on a page, or what it passes over, is another kind of list than a short one.
const SHORT: usize = 100;

/// What a list answers while as many run as may.
pub(crate) fn too_many() -> Error {
    Error::new(ErrorKind::Busy, "too many lists run at once; try again in a second")
}

fn too_many_slow() -> Error {
    let text = "lists like this one take long and run one at a time: narrow the filter, or try again in some seconds";
    Error::new(ErrorKind::Busy, text)
}

/// Lists that cost about the same: those of one client that filter by the same things, whatever the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    client: Option<Tsid>,
    shape: u32,
    /// An index leads to all of a short page: it costs little, however long it takes on a machine that is busy.
    light: bool,
}

impl Kind {
    /// An entry's audit.
    pub(crate) const AUDIT: Self = Self { client: None, shape: u32::MAX, light: false };

    /// Workers of a client, or all.
    pub(crate) fn workers(client: Option<Tsid>) -> Self {
        Self { client, shape: u32::MAX - 1, light: false }
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

/// What was seen of lists.
#[derive(Debug)]
struct Seen {
    /// How many lists of a kind were slow in a row, up to [`SURE`].
    kinds: HashMap<Kind, u8>,
    /// Until when a client is suspected.
    clients: HashMap<Option<Tsid>, Instant>,
    /// Nothing slow starts before.
    rested: Instant,
}

#[derive(Debug)]
pub(crate) struct Turns {
    running: Semaphore,
    waiting: Semaphore,
    slow: Semaphore,
    slow_waiting: Semaphore,
    seen: Mutex<Seen>,
}

impl Turns {
    pub(crate) fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        Self {
            running: Semaphore::new(at_once),
            waiting: Semaphore::new(at_once * WAITING),
            slow: Semaphore::new(1),
            slow_waiting: Semaphore::new(SLOW_WAITING),
            seen: Mutex::new(Seen { kinds: HashMap::new(), clients: HashMap::new(), rested: Instant::now() }),
        }
    }

    /// A turn, to be kept while the list runs.
    pub(crate) async fn enter(&self, kind: Kind) -> Result<Turn<'_>> {
        let slow = if self.is_slow(kind) { Some(self.enter_slowly().await?) } else { None };
        let running = self.enter_any().await?;
        Ok(Turn { turns: self, kind, began: Instant::now(), _slow: slow, _running: running })
    }

    async fn enter_any(&self) -> Result<SemaphorePermit<'_>> {
        if let Ok(turn) = self.running.try_acquire() {
            return Ok(turn);
        }
        let _seat = self.waiting.try_acquire().map_err(|_| too_many())?;
        match timeout(PATIENCE, self.running.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(too_many()),
        }
    }

    /// Waits until no slow list runs and the last one's rest is over. Whoever finds no seat waits a while all the same, so
    /// that asking again and again costs little.
    async fn enter_slowly(&self) -> Result<SemaphorePermit<'_>> {
        let Ok(_seat) = self.slow_waiting.try_acquire() else {
            tokio::time::sleep(PATIENCE).await;
            return Err(too_many_slow());
        };
        let turn = async {
            let turn = self.slow.acquire().await.map_err(|_| too_many_slow())?;
            loop {
                let rested = self.seen().rested;
                if rested <= Instant::now() {
                    return Ok(turn);
                }
                sleep_until(rested).await;
            }
        };
        timeout(SLOW_PATIENCE, turn).await.unwrap_or_else(|_| Err(too_many_slow()))
    }

    fn is_slow(&self, kind: Kind) -> bool {
        if kind.light {
            return false;
        }
        let seen = self.seen();
        let suspected = || seen.clients.get(&kind.client).is_some_and(|until| *until > Instant::now());
        seen.kinds.get(&kind).map_or_else(suspected, |slow| *slow >= SURE)
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
            _ if took >= LONG => SURE,
            _ if took > QUICK => SURE.min(*slow + 1),
            _ => 0,
        };
        if *slow >= SURE {
            if seen.clients.len() >= REMEMBERED {
                seen.clients.retain(|_, until| *until > now);
            }
            seen.clients.insert(kind.client, now + SUSPECTED);
        }
        if took > QUICK {
            seen.rested = (seen.rested.max(now) + took * REST).min(now + LONGEST_REST);
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list that runs. However it ends, what it took is learnt.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    kind: Kind,
    began: Instant,
    _slow: Option<SemaphorePermit<'a>>,
    _running: SemaphorePermit<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.learn(self.kind, self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tags: usize) -> Kind {
        let tags = (0..tags).map(|number| number.to_string()).collect();
        Kind::of(&ListQuery { tags, client: Some(Tsid::from_i64(7)), ..ListQuery::default() })
    }

    async fn run(turns: &Turns, kind: Kind, took: Duration) {
        let _turn = turns.enter(kind).await.unwrap();
        tokio::time::advance(took).await;
    }

    #[tokio::test(start_paused = true)]
    async fn slow_lists_take_a_fifth_of_the_time() {
        let turns = Turns::new(4);
        let began = Instant::now();
        for _ in 0..5 {
            run(&turns, tagged(3), Duration::from_millis(200)).await;
        }
        // The first was not known to be slow; each of the others waited for four times its time.
        assert_eq!(began.elapsed().as_millis(), 5 * 200 + 4 * 800);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_quick_does_not_wait_for_what_is_slow() {
        let turns = Turns::new(4);
        let quick = Kind::workers(None);
        run(&turns, quick, Duration::from_millis(1)).await;
        run(&turns, tagged(3), Duration::from_secs(1)).await;
        let began = Instant::now();
        run(&turns, quick, Duration::ZERO).await;
        run(&turns, tagged(1), Duration::ZERO).await;
        assert_eq!(began.elapsed().as_millis(), 0, "of others, or a short page that an index has");
        run(&turns, tagged(4), Duration::ZERO).await;
        assert_eq!(began.elapsed().as_secs(), 4, "a list of another kind by the client that sent the slow one");
        run(&turns, tagged(4), Duration::ZERO).await;
        assert_eq!(began.elapsed().as_secs(), 4, "which was quick");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_nobody_ahead_gets_a_turn_and_others_are_refused() {
        let turns = Turns::new(4);
        for _ in 0..9 {
            let _ = turns.enter(tagged(3)).await.unwrap();
            turns.learn(tagged(3), Duration::from_secs(2));
        }
        let _first = turns.enter(tagged(3)).await.unwrap();
        let began = Instant::now();
        let refused = turns.enter(tagged(3)).await.unwrap_err();
        assert_eq!((refused.kind(), began.elapsed()), (ErrorKind::Busy, SLOW_PATIENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_moment_does_not_make_a_kind_slow() {
        let turns = Turns::new(4);
        let (short, long) = (QUICK / 2, QUICK + QUICK / 2);
        for took in [long, short, long, long] {
            assert!(!turns.is_slow(tagged(3)));
            run(&turns, tagged(3), took).await;
        }
        assert!(turns.is_slow(tagged(3)) && turns.is_slow(tagged(4)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_page_is_never_slow() {
        let turns = Turns::new(4);
        for _ in 0..3 {
            run(&turns, tagged(1), Duration::from_secs(1)).await;
        }
        assert!(!turns.is_slow(tagged(1)) && !turns.is_slow(tagged(2)));
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
