//! Whether a claim that found less than it wanted scans again, and what it does before. Pure: the stores scan, say what
//! they found, and carry out what is decided here. A claim that has all it wants does not ask.

/// How much a claim has to find before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// At least one entry: each further scan costs a transaction.
    Any,
    /// As many as it wants: further scans are part of the same transaction.
    All,
}

/// What one scan found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scan {
    /// It claimed entries.
    pub took: bool,
    /// It ended entries that could not be claimed: they are exhausted or expired, or cannot be read.
    pub ended: bool,
    /// Other claims took some of what it was offered.
    pub contended: bool,
}

/// What a claim does after a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Answer with what was claimed.
    Answer,
    /// Scan again.
    Scan,
    /// Have more entries offered and scan again. Where no more can be offered, ask again about a scan that was not
    /// contended.
    Widen,
    /// Sort arrivals in. If there were any, scan again; else ask again.
    SortArrivals,
    /// Scan again, and from now on from the bottom of the lanes instead of their low-water marks.
    ScanFromBottom,
}

/// Why a scan was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollback {
    /// It was planned by a catalogue or under a heartbeat that is not current.
    Stale,
    /// What it claimed has more bytes than one answer may have.
    Oversized,
}

/// What a claim does after a scan that was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Bring up to date what was stale, or claim as much as fits, and scan again.
    Scan,
    /// Answer with what earlier scans claimed.
    Answer,
    /// Fail: an empty answer would mean that there is nothing to claim.
    Fail,
}

/// After so many scans that only ended entries or ended some, a claim answers: of a group each scan finds one, and what was
/// claimed by the first scan is held until the answer.
const MAX_ENDING_SCANS: usize = 32;

/// What one claim has tried so far.
#[derive(Debug)]
pub struct Search {
    goal: Goal,
    ending_scans: usize,
    sorted: bool,
    from_bottom: bool,
    rollbacks: usize,
}

impl Search {
    /// A claim that has tried nothing yet.
    #[must_use]
    pub const fn new(goal: Goal) -> Self {
        Self { goal, ending_scans: 0, sorted: false, from_bottom: false, rollbacks: 0 }
    }

    /// Whether scans start at the bottom of the lanes.
    #[must_use]
    pub const fn is_from_bottom(&self) -> bool {
        self.from_bottom
    }

    /// Decides what follows a scan after which something is still wanted. `may_start_lower` says whether the scan
    /// started above the bottom of a lane and may be repeated from there now; it is called only if that matters.
    pub fn after(&mut self, scan: Scan, may_start_lower: impl FnOnce() -> bool) -> Next {
        if scan.ended {
            // Those entries were in the way of others.
            self.ending_scans += 1;
            return if self.ending_scans < MAX_ENDING_SCANS { Next::Scan } else { Next::Answer };
        }
        if scan.contended {
            return Next::Widen;
        }
        if scan.took && self.goal == Goal::Any {
            return Next::Answer;
        }
        if !self.sorted {
            self.sorted = true;
            return Next::SortArrivals;
        }
        if !self.from_bottom && may_start_lower() {
            self.from_bottom = true;
            return Next::ScanFromBottom;
        }
        Next::Answer
    }

    /// Decides what follows a scan that was rolled back; `limit` of them end the claim. `claimed`: earlier scans
    /// claimed something.
    pub fn after_rollback(&mut self, why: Rollback, claimed: bool, limit: usize) -> Retry {
        if claimed && why == Rollback::Oversized {
            return Retry::Answer;
        }
        self.rollbacks += 1;
        match (self.rollbacks < limit, claimed) {
            (true, _) => Retry::Scan,
            (false, true) => Retry::Answer,
            (false, false) => Retry::Fail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Scan = Scan { took: false, ended: false, contended: false };
    const SOME: Scan = Scan { took: true, ..NOTHING };

    /// What a search does after scans that all find the same, until it answers.
    fn steps(goal: Goal, scan: Scan, may_start_lower: bool) -> Vec<Next> {
        let mut search = Search::new(goal);
        let mut steps = Vec::new();
        while steps.len() < 10 && steps.last() != Some(&Next::Answer) {
            steps.push(search.after(scan, || may_start_lower));
        }
        steps
    }

    #[test]
    fn a_claim_that_finds_nothing_sorts_arrivals_in_and_starts_lower_each_once() {
        for goal in [Goal::Any, Goal::All] {
            assert_eq!(steps(goal, NOTHING, false), [Next::SortArrivals, Next::Answer]);
            assert_eq!(steps(goal, NOTHING, true), [Next::SortArrivals, Next::ScanFromBottom, Next::Answer]);
        }
    }

    #[test]
    fn a_claim_that_found_some_answers_unless_it_is_to_find_all() {
        assert_eq!(steps(Goal::Any, SOME, true), [Next::Answer]);
        assert_eq!(steps(Goal::All, SOME, true), [Next::SortArrivals, Next::ScanFromBottom, Next::Answer]);
    }

    #[test]
    fn entries_that_ended_and_other_claims_come_first() {
        let mut search = Search::new(Goal::Any);
        let ask = |search: &mut Search, scan| search.after(scan, || panic!("asked too early"));
        assert_eq!(ask(&mut search, Scan { ended: true, contended: true, ..SOME }), Next::Scan);
        assert_eq!(ask(&mut search, Scan { ended: true, ..NOTHING }), Next::Scan);
        assert_eq!(ask(&mut search, Scan { contended: true, ..SOME }), Next::Widen);
        assert_eq!(ask(&mut search, Scan { contended: true, ..NOTHING }), Next::Widen);
        assert_eq!(ask(&mut search, NOTHING), Next::SortArrivals);
        assert_eq!(ask(&mut search, Scan { contended: true, ..NOTHING }), Next::Widen);
        assert_eq!(ask(&mut search, SOME), Next::Answer);
    }

    #[test]
    fn a_claim_that_only_ends_entries_answers_after_a_while() {
        let mut search = Search::new(Goal::All);
        let ended = Scan { ended: true, ..NOTHING };
        let scans = std::iter::repeat_with(|| search.after(ended, || true)).take_while(|next| *next == Next::Scan);
        assert_eq!(scans.take(1000).count(), MAX_ENDING_SCANS - 1);
    }

    #[test]
    fn scans_start_at_the_bottom_from_the_first_such_scan_on() {
        let mut search = Search::new(Goal::Any);
        search.after(NOTHING, || false);
        assert_eq!(search.after(NOTHING, || false), Next::Answer);
        assert!(!search.is_from_bottom());
        assert_eq!(search.after(NOTHING, || true), Next::ScanFromBottom);
        assert!(search.is_from_bottom());
        assert_eq!(search.after(Scan { ended: true, ..NOTHING }, || true), Next::Scan);
        assert!(search.is_from_bottom());
        assert_eq!(search.after(NOTHING, || true), Next::Answer);
    }

    #[test]
    fn a_stale_claim_tries_for_a_while_and_fails_only_with_empty_hands() {
        for (claimed, last) in [(false, Retry::Fail), (true, Retry::Answer)] {
            let mut search = Search::new(Goal::Any);
            let tries: Vec<Retry> = (0..3).map(|_| search.after_rollback(Rollback::Stale, claimed, 3)).collect();
            assert_eq!(tries, [Retry::Scan, Retry::Scan, last]);
        }
    }

    #[test]
    fn a_claim_that_exceeds_an_answer_scans_again_only_with_empty_hands() {
        let mut search = Search::new(Goal::Any);
        assert_eq!(search.after_rollback(Rollback::Oversized, false, 3), Retry::Scan);
        assert_eq!(search.after_rollback(Rollback::Stale, false, 3), Retry::Scan);
        assert_eq!(search.after_rollback(Rollback::Oversized, true, 3), Retry::Answer);
        assert_eq!(search.after_rollback(Rollback::Oversized, false, 3), Retry::Fail);
    }
}
