//! Any sequence of what can happen to a memory queue, compared with the simple model after every step. What is stored is a
//! list of blobs and a row; a crash forgets everything else.

use proptest::prelude::*;

use super::super::super::blob::Blob;
use super::super::super::recovery::Recovery;
use super::super::super::row::StateRow;
use super::model::{At, Model, Said};
use super::*;

#[derive(Debug, Clone)]
enum Step {
    Publish {
        id: u8,
        pattern: usize,
        body: u8,
    },
    Claim {
        max: usize,
        choice: usize,
        lease: u64,
    },
    Ack(usize),
    Nack {
        which: usize,
        delay: u64,
    },
    Release {
        which: usize,
        delay: u64,
    },
    Extend {
        which: usize,
        lease: u64,
    },
    Redrive(usize),
    Discard(usize),
    Pass(i64),
    Pause,
    Resume,
    Drain,
    Switch,
    /// Cut, and perhaps crash before it is stored.
    Store,
    Lose,
    WriteRow,
    Compact,
    Crash,
}

const PATTERNS: [&str; 3] = ["a.x", "a.y", "b"];

fn choices() -> Vec<Vec<Pattern>> {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    vec![vec![], vec![], parse(&["a.*"]), parse(&["b", "a.y"]), parse(&[">"])]
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0_usize..64;
    let delay = prop_oneof![Just(0_u64), 1..20_u64];
    prop_oneof![
        8 => (0..12_u8, 0..3_usize, 0..8_u8).prop_map(|(id, pattern, body)| Step::Publish { id, pattern, body: body / 7 }),
        6 => (1..5_usize, 0..5_usize, 1..15_u64).prop_map(|(max, choice, lease)| Step::Claim { max, choice, lease }),
        6 => which.clone().prop_map(Step::Ack),
        3 => (which.clone(), delay.clone()).prop_map(|(which, delay)| Step::Nack { which, delay }),
        1 => (which.clone(), delay).prop_map(|(which, delay)| Step::Release { which, delay }),
        1 => (which.clone(), 1..15_u64).prop_map(|(which, lease)| Step::Extend { which, lease }),
        1 => which.clone().prop_map(Step::Redrive),
        1 => which.prop_map(Step::Discard),
        3 => (1..12_i64).prop_map(Step::Pass),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => Just(Step::Drain),
        1 => Just(Step::Switch),
        6 => Just(Step::Store),
        1 => Just(Step::Lose),
        2 => Just(Step::WriteRow),
        2 => Just(Step::Compact),
        2 => Just(Step::Crash),
    ]
}

/// The fast queue, the model, and what is stored of both.
struct Pair {
    queue: Queue,
    model: Model,
    now: i64,
    /// Every lease that was ever given: number, token, and how many claims the event had had, if in this epoch.
    leases: Vec<(u64, LeaseToken, Option<u32>)>,
    blobs: Vec<Blob>,
    row: StateRow,
    stored: Model,
    compactions: usize,
}

impl Pair {
    fn new(durability: Durability) -> Self {
        let mut queue = Queue::new(QueueName::new("q").unwrap(), SOON, durability, Epoch::FIRST, at(0));
        let model = Model::new(SOON, if durability == Durability::Journal { 1 } else { u64::MAX });
        let row = StateRow::of(&mut queue);
        let stored = model.clone();
        Self { queue, model, now: 0, leases: Vec::new(), blobs: Vec::new(), row, stored, compactions: 0 }
    }

    fn lease(&self, which: usize) -> Option<(u64, LeaseToken, u32)> {
        let (number, token, claims) = *self.leases.get(which.checked_rem(self.leases.len())?)?;
        Some((number, token, claims.unwrap_or(u32::MAX)))
    }

    fn store(&mut self) {
        if let Some(blob) = self.queue.cut(usize::MAX, at(self.now)) {
            assert_eq!(blob.key.seq, self.blobs.last().map_or(self.row.first_seq, |last| last.key.seq + 1));
            self.queue.saved(blob.key.seq);
            self.blobs.push(blob);
        }
        assert!(!self.queue.has_changes());
        if self.queue.durability() == Durability::Journal {
            self.model.stored_before = self.model.next;
        }
        self.stored = self.model.clone();
    }

    fn crash(&mut self) {
        let mut recovery = Recovery::new(self.queue.name().clone(), &self.row, self.row.checksum(), at(self.now));
        self.blobs.iter().for_each(|blob| recovery.read(&blob.key, &blob.bytes));
        let epoch = self.queue.epoch().next().unwrap();
        let recovered = recovery.finish(epoch, false, at(self.now)).unwrap();
        assert_eq!(recovered.loss, None);
        self.queue = recovered.queue;
        self.model = self.stored.clone();
        assert_eq!(recovered.events as usize, self.model.items.len() + self.model.dead.len());
        let counts_claims = self.queue.durability() == Durability::Journal;
        self.model.recover(counts_claims, self.now);
        self.leases.iter_mut().for_each(|lease| lease.2 = None);
    }

    fn publish(&mut self, id: u8, pattern: usize, body: u8) {
        let (id, pattern) = (format!("e{id}"), PATTERNS[pattern]);
        let said = match self.queue.publish(event_with(&id, pattern, &body.to_string()), at(self.now)) {
            Ok(Published::Added(number)) => Said::Added(number_of(number)),
            Ok(Published::Repeated(number)) => Said::Repeated(number_of(number)),
            Err(PublishRefused::Conflict) => Said::Conflict,
            Err(PublishRefused::Full(_)) => Said::Full,
            Err(PublishRefused::Draining) => Said::Draining,
            Err(PublishRefused::Behind) => unreachable!(),
        };
        assert_eq!(said, self.model.publish(&id, pattern, body));
    }

    fn claim(&mut self, max: usize, choice: usize, lease: u64) {
        let patterns = &choices()[choice];
        let lease_for = Some(Duration::from_secs(lease));
        let wanted = Wanted { max: Some(max), patterns, lease: lease_for, ..Wanted::new("w") };
        let batch = self.queue.claim(&wanted, at(self.now));
        let numbers: Vec<u64> = batch.events.iter().map(|claimed| number_of(claimed.number)).collect();
        assert_eq!(numbers, self.model.claim(max, patterns, lease as i64, self.now));
        for claimed in batch.events {
            let number = number_of(claimed.number);
            let item = &self.model.items[&number];
            assert_eq!((claimed.event.event_id(), claimed.retry_count), (item.id.as_str(), item.retries));
            assert!(self.leases.iter().filter(|lease| lease.0 == number).all(|lease| lease.1 < claimed.token));
            self.leases.push((number, claimed.token, Some(item.claims)));
        }
    }

    fn apply(&mut self, step: &Step) {
        let now = at(self.now);
        let seconds = |delay: u64| Some(Duration::from_secs(delay));
        match *step {
            Step::Publish { id, pattern, body } => self.publish(id, pattern, body),
            Step::Claim { max, choice, lease } => self.claim(max, choice, lease),
            Step::Ack(which) => {
                let Some((number, token, claims)) = self.lease(which) else { return };
                let held = self.model.holds(number, claims, true);
                assert_eq!(self.queue.ack(entry(number), token, now).is_ok(), held);
                if held {
                    self.model.ack(number);
                }
            }
            Step::Nack { which, delay } => {
                let Some((number, token, claims)) = self.lease(which) else { return };
                let held = self.model.holds(number, claims, false);
                let nacked = self.queue.nack(entry(number), token, Some("no"), seconds(delay), now);
                assert_eq!(nacked.is_ok(), held);
                if held {
                    self.model.fail(number, self.now, delay as i64, At::Ready);
                }
            }
            Step::Release { which, delay } => {
                let Some((number, token, claims)) = self.lease(which) else { return };
                let held = self.model.holds(number, claims, false);
                assert_eq!(self.queue.release(entry(number), token, seconds(delay), now).is_ok(), held);
                if held {
                    self.model.release(number, self.now, delay as i64);
                }
            }
            Step::Extend { which, lease } => {
                let Some((number, token, claims)) = self.lease(which) else { return };
                let held = self.model.holds(number, claims, false);
                let extended = self.queue.extend(&[(entry(number), token)], seconds(lease), now);
                assert_eq!(extended[0].is_ok(), held);
                if held {
                    self.model.items.get_mut(&number).unwrap().at = At::Leased(self.now + lease as i64);
                }
            }
            Step::Redrive(which) => {
                let number = 1 + which as u64 % self.model.next;
                let said = self.model.redrive(number);
                match self.queue.redrive(entry(number), now) {
                    Ok(redriven) => assert_eq!(said, Some(Said::Added(number_of(redriven)))),
                    Err(RedriveRefused::Unknown) => assert_eq!(said, None),
                    Err(_) => assert!(matches!(said, Some(Said::Full | Said::Draining))),
                }
            }
            Step::Discard(which) => {
                let number = 1 + which as u64 % self.model.next;
                assert_eq!(self.queue.discard(entry(number), now), self.model.dead.remove(&number).is_some());
            }
            Step::Pass(seconds) => self.now += seconds,
            Step::Pause => {
                if self.queue.pause(now).is_ok() {
                    self.model.status = QueueState::Paused;
                } else {
                    assert_eq!(self.model.status, QueueState::Draining);
                }
            }
            Step::Resume => {
                self.queue.resume(now);
                self.model.status = QueueState::Active;
            }
            Step::Drain => {
                self.queue.drain(now);
                self.model.status = QueueState::Draining;
            }
            Step::Switch => self.switch(),
            Step::Store => self.store(),
            Step::Lose => {
                drop(self.queue.cut(usize::MAX, now));
                self.crash();
            }
            Step::WriteRow => {
                self.row = StateRow::of(&mut self.queue);
                self.blobs.retain(|blob| blob.key.seq >= self.row.first_seq);
            }
            Step::Compact => self.compactions += usize::from(self.queue.compact_for_test(200)),
            Step::Crash => self.crash(),
        }
    }

    /// Changes the durability.
    fn switch(&mut self) {
        let other = match self.queue.durability() {
            Durability::Journal => Durability::Snapshot,
            Durability::Snapshot => Durability::Journal,
        };
        self.queue.configure(SOON, other, at(self.now));
        self.model.stored_before = if other == Durability::Journal { self.model.next } else { u64::MAX };
    }

    fn compare(&mut self) {
        self.queue.tick(at(self.now));
        self.model.wake(self.now);
        let listed: Vec<_> = self
            .queue
            .list(0)
            .map(|listed| {
                let phase = match listed.phase {
                    ListedPhase::Ready => At::Ready,
                    ListedPhase::Delayed(due) => At::Delayed(due.as_second() - at(0).as_second()),
                    ListedPhase::Leased { until, .. } => At::Leased(until.as_second() - at(0).as_second()),
                };
                (number_of(listed.number), listed.event.event_id().to_owned(), listed.retry_count, phase)
            })
            .collect();
        let expected: Vec<_> = self
            .model
            .items
            .iter()
            .map(|(number, item)| {
                let phase = if item.at == At::Abandoned { At::Ready } else { item.at.clone() };
                (*number, item.id.clone(), item.retries, phase)
            })
            .collect();
        assert_eq!(listed, expected);
        let dead: Vec<_> =
            self.queue.list_dead_letters(0).map(|dead| (number_of(dead.number), dead.retry_count)).collect();
        let expected: Vec<_> = self.model.dead.iter().map(|(number, item)| (*number, item.retries)).collect();
        assert_eq!(dead, expected);
        assert_eq!((self.queue.checkpoint(), self.queue.checkpoint_id()), self.model.checkpoint());
        let totals = self.queue.totals();
        assert_eq!((totals.processed, totals.errors), (self.model.processed, self.model.errors));
        assert_eq!((self.queue.status(), self.queue.is_slow()), (self.model.status, self.model.slow));
        let depth = self.queue.depth();
        let leased = self.model.items.values().filter(|item| matches!(item.at, At::Leased(_))).count() as u64;
        let delayed = self.model.items.values().filter(|item| matches!(item.at, At::Delayed(_))).count() as u64;
        assert_eq!((depth.total(), depth.leased, depth.delayed), (self.model.items.len() as u64, leased, delayed));
        for (number, item) in self.model.items.iter().chain(&self.model.dead) {
            assert_eq!(self.queue.find(&item.id).map(number_of), Some(*number));
        }
    }
}

fn run(durability: Durability, steps: &[Step], switches: bool) {
    let mut pair = Pair::new(durability);
    pair.store();
    for step in steps {
        if switches || !matches!(step, Step::Switch) {
            pair.apply(step);
        }
        pair.compare();
    }
    pair.store();
    pair.crash();
    pair.compare();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_sequence_is_as_in_the_model_with_a_journal(steps in proptest::collection::vec(step(), 1..120)) {
        run(Durability::Journal, &steps, false);
    }

    #[test]
    fn any_sequence_is_as_in_the_model_with_snapshots(steps in proptest::collection::vec(step(), 1..120)) {
        run(Durability::Snapshot, &steps, false);
    }

    #[test]
    fn any_sequence_is_as_in_the_model_with_both_in_turn(steps in proptest::collection::vec(step(), 1..120)) {
        run(Durability::Snapshot, &steps, true);
    }
}

/// Events that were published as a snapshot are recorded after an end before them, and after later events.
#[test]
fn the_end_before_what_is_recorded_later_is_known_after_a_crash() {
    let publish = |id| Step::Publish { id, pattern: 1, body: 0 };
    let claim = |max| Step::Claim { max, choice: 0, lease: 9 };
    let steps = [publish(1), publish(2), publish(3), Step::Store, publish(4), Step::Switch, claim(4), publish(5)];
    // The leases are of 1 to 4, in this order.
    let ends = [Step::Ack(2), Step::Store, Step::Ack(1), Step::Store, Step::Ack(0)];
    run(Durability::Snapshot, &[&steps[..], &ends].concat(), true);
}

/// A claim that a crash of a snapshot has undone does not count when the queue has become a journal.
#[test]
fn a_claim_from_before_a_snapshot_does_not_count_later() {
    let publish = Step::Publish { id: 1, pattern: 1, body: 0 };
    let claim = Step::Claim { max: 1, choice: 0, lease: 9 };
    let before = [publish, claim, Step::Store, Step::Switch, Step::Switch, Step::Store];
    let crashes = [Step::Crash, Step::Switch, Step::Store, Step::Crash];
    run(Durability::Snapshot, &[&before[..], &crashes].concat(), true);
}
