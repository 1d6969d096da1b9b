//! What a process loop claims next: how many events, when, and what follows from a failed claim. Only decides: no IO,
//! and every moment is passed in.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// How long to wait for more capacity before a claim of less than a quarter of `concurrency`.
const GATHER: Duration = Duration::from_millis(2);
/// The pause after a claim of a drain that found nothing, while events are in hand.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);
/// A chunk counts as stalled when it takes longer than 1/10 of the lease or than this.
const LONGEST_CHUNK: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// When it is told to stop.
    Forever,
    /// When there is nothing more to claim.
    Drain,
}

/// What a plan depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanSettings {
    pub(crate) mode: Mode,
    /// Most events in hand.
    pub(crate) concurrency: usize,
    /// Most events of one claim.
    pub(crate) batch: usize,
    /// Most claims at once.
    pub(crate) at_once: usize,
}

/// The claims of one run, and the events that it has in hand.
#[derive(Debug)]
pub(crate) struct ClaimPlan {
    settings: PlanSettings,
    /// Events that were claimed and not ended or given back yet.
    in_hand: usize,
    /// Claims under way.
    claims: usize,
    /// How many events the claims under way asked for.
    asked: usize,
    /// Whether the last claim got all it asked for: then there may be more, and a second claim may run beside the
    /// first.
    backlog: bool,
    /// Whether no event was in hand when the last claim began.
    idle_claim: bool,
    /// Since when there is capacity for a small claim only.
    gathering: Option<Instant>,
    /// No claim before this moment.
    claim_again: Option<Instant>,
    pauses: Backoff,
    /// Whether the last claim failed.
    failed: bool,
    /// Whether a drain has found nothing more to claim.
    drained: bool,
    /// Events claimed so far.
    handled: u64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Claim(Ask),
    /// Nothing before this moment, unless a claim is answered or events are let go.
    At(Instant),
    /// Nothing before a claim is answered or events are let go.
    Wait,
    /// The drain is done.
    Over,
}

/// A claim to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) count: usize,
    /// Whether it waits for events when there are none.
    pub(crate) waits: bool,
}

/// What follows from a failed claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// The run ends with the error.
    GiveUp,
    /// The next claim is sent after this pause.
    Pause(Duration),
}

impl ClaimPlan {
    pub(crate) fn new(settings: PlanSettings) -> Self {
        Self {
            settings,
            in_hand: 0,
            claims: 0,
            asked: 0,
            backlog: false,
            idle_claim: false,
            gathering: None,
            claim_again: None,
            pauses: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            failed: false,
            drained: false,
            handled: 0,
        }
    }

    /// What to do at `now`. A claim that it returns counts as under way until [`claimed`](Self::claimed) or
    /// [`failed`](Self::failed).
    pub(crate) fn next(&mut self, now: Instant) -> Next {
        if self.drained && self.in_hand == 0 {
            return Next::Over;
        }
        let PlanSettings { concurrency, batch, at_once, .. } = self.settings;
        let free = concurrency.saturating_sub(self.in_hand + self.asked);
        let at_once = if self.backlog { at_once } else { 1 };
        if self.claims >= at_once || self.drained || free == 0 {
            return Next::Wait;
        }
        if let Some(at) = self.claim_again.filter(|at| now < *at) {
            return Next::At(at);
        }
        if free < concurrency / 4 {
            let due = *self.gathering.get_or_insert(now) + GATHER;
            if now < due {
                return Next::At(due);
            }
        }
        self.gathering = None;
        self.idle_claim = self.in_hand == 0;
        // A second claim does not wait for events: one waiting claim is enough. Neither does a claim after an error, so
        // that health shows at once that claims succeed again.
        let waits = self.settings.mode == Mode::Forever && self.claims == 0 && !self.failed;
        let count = free.min(batch);
        self.asked += count;
        self.claims += 1;
        Next::Claim(Ask { count, waits })
    }

    /// A claim that asked for `asked` events got `got`, which are in hand now.
    pub(crate) fn claimed(&mut self, asked: usize, got: usize, now: Instant) {
        self.answered(asked);
        self.failed = false;
        self.pauses.succeeded();
        self.backlog = self.settings.mode == Mode::Forever && got == asked;
        if got == 0 && self.settings.mode == Mode::Drain {
            // Handlers that ran when the claim began may have published since, or freed the next of their group.
            self.drained = self.idle_claim;
            self.claim_again = Some(now + DRAIN_PAUSE);
        }
        self.in_hand += got;
        self.handled += got as u64;
    }

    /// A claim that asked for `asked` events failed. `closed`: whether the queue is closed.
    pub(crate) fn failed(&mut self, asked: usize, closed: bool, now: Instant) -> AfterFailure {
        self.answered(asked);
        self.failed = true;
        self.backlog = false;
        if closed || self.settings.mode == Mode::Drain {
            return AfterFailure::GiveUp;
        }
        let pause = self.pauses.failed();
        self.claim_again = Some(now + pause);
        AfterFailure::Pause(pause)
    }

    fn answered(&mut self, asked: usize) {
        self.asked -= asked;
        self.claims -= 1;
    }

    /// Events were ended or given back.
    pub(crate) fn let_go(&mut self, count: usize) {
        self.in_hand -= count;
    }

    /// Events that were claimed and not ended or given back yet.
    pub(crate) fn in_hand(&self) -> usize {
        self.in_hand
    }

    /// Events claimed so far.
    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }
}

/// How long a chunk of attempts under leases of this length may take before it counts as stalled.
pub(crate) fn chunk_time(lease: Duration) -> Duration {
    (lease / 10).min(LONGEST_CHUNK)
}

/// Whether a chunk has stalled; one that has not begun has not.
pub(crate) fn is_stalled(began: Option<Instant>, chunk_time: Duration, now: Instant) -> bool {
    began.is_some_and(|began| began + chunk_time <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn plan(mode: Mode) -> ClaimPlan {
        ClaimPlan::new(PlanSettings { mode, concurrency: 100, batch: 60, at_once: 2 })
    }

    fn ask(count: usize, waits: bool) -> Next {
        Next::Claim(Ask { count, waits })
    }

    #[test]
    fn it_asks_for_what_it_has_capacity_for_but_no_more_than_a_batch() {
        let (mut plan, now) = (plan(Mode::Forever), Instant::now());
        assert_eq!(plan.next(now), ask(60, true));
        assert_eq!(plan.next(now), Next::Wait, "one claim is under way");
        plan.claimed(60, 55, now);
        assert_eq!(plan.next(now), ask(45, true));
        plan.claimed(45, 45, now);
        assert_eq!((plan.next(now), plan.in_hand(), plan.handled()), (Next::Wait, 100, 100));
        plan.let_go(30);
        assert_eq!(plan.next(now), ask(30, true));
    }

    #[test]
    fn with_a_backlog_a_second_claim_runs_and_does_not_wait() {
        let (mut plan, now) = (plan(Mode::Forever), Instant::now());
        plan.next(now);
        plan.claimed(60, 60, now);
        plan.let_go(60);
        assert_eq!(plan.next(now), ask(60, true));
        assert_eq!(plan.next(now), ask(40, false));
        assert_eq!(plan.next(now), Next::Wait);
        plan.claimed(60, 59, now);
        assert_eq!(plan.next(now), Next::Wait, "no backlog: one claim at a time");
    }

    #[test]
    fn a_small_claim_waits_a_moment_for_more_capacity() {
        let (mut plan, now) = (plan(Mode::Forever), Instant::now());
        plan.next(now);
        plan.claimed(60, 60, now);
        plan.next(now);
        plan.claimed(40, 40, now);
        plan.let_go(24);
        assert_eq!(plan.next(now), Next::At(now + GATHER));
        assert_eq!(plan.next(now + ms(1)), Next::At(now + GATHER));
        assert_eq!(plan.next(now + GATHER), ask(24, true));
        plan.claimed(24, 24, now + GATHER);
        plan.let_go(25);
        assert_eq!(plan.next(now + GATHER), ask(25, true), "a quarter is enough");
    }

    #[test]
    fn after_an_error_it_pauses_and_then_asks_without_waiting() {
        let (mut plan, now) = (plan(Mode::Forever), Instant::now());
        let mut at = now;
        for pause in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            assert!(matches!(plan.next(at), Next::Claim(_)));
            assert_eq!(plan.failed(60, false, at), AfterFailure::Pause(ms(pause)));
            assert_eq!(plan.next(at), Next::At(at + ms(pause)));
            at += ms(pause);
        }
        assert_eq!(plan.next(at), ask(60, false));
        plan.claimed(60, 0, at);
        assert_eq!(plan.next(at), ask(60, true), "it has recovered");
        assert_eq!(plan.failed(60, false, at), AfterFailure::Pause(ms(100)));
    }

    #[test]
    fn it_gives_up_when_the_queue_is_closed_and_in_a_drain() {
        let now = Instant::now();
        let (mut forever, mut drain) = (plan(Mode::Forever), plan(Mode::Drain));
        forever.next(now);
        assert_eq!(forever.failed(60, true, now), AfterFailure::GiveUp);
        drain.next(now);
        assert_eq!(drain.failed(60, false, now), AfterFailure::GiveUp);
    }

    #[test]
    fn a_drain_is_over_when_an_idle_claim_finds_nothing() {
        let (mut plan, now) = (plan(Mode::Drain), Instant::now());
        assert_eq!(plan.next(now), ask(60, false));
        plan.claimed(60, 2, now);
        assert_eq!(plan.next(now), ask(60, false), "no claim of a drain waits");
        plan.claimed(60, 0, now);
        plan.let_go(2);
        assert_eq!(plan.next(now), Next::At(now + DRAIN_PAUSE), "the two may have published when the claim ran");
        assert_eq!(plan.next(now + DRAIN_PAUSE), ask(60, false));
        plan.claimed(60, 0, now + DRAIN_PAUSE);
        assert_eq!((plan.next(now + DRAIN_PAUSE), plan.handled()), (Next::Over, 2));
    }

    #[test]
    fn a_full_claim_of_a_drain_is_no_backlog() {
        let (mut plan, now) = (plan(Mode::Drain), Instant::now());
        plan.next(now);
        plan.claimed(60, 60, now);
        assert_eq!(plan.next(now), ask(40, false));
        assert_eq!(plan.next(now), Next::Wait);
    }

    #[test]
    fn chunks_may_take_a_tenth_of_the_lease_or_a_second() {
        assert_eq!(chunk_time(ms(500)), ms(50));
        assert_eq!(chunk_time(Duration::from_secs(300)), LONGEST_CHUNK);
        let now = Instant::now();
        assert!(!is_stalled(Some(now), ms(50), now + ms(49)));
        assert!(is_stalled(Some(now), ms(50), now + ms(50)));
        assert!(!is_stalled(None, ms(50), now + ms(50)), "it waits for a thread");
    }
}
