//! Random histories, applied to a store and to [`Model`], and compared after every step.
//!
//! The seed is fixed, so that a run is repeatable; `TIDEGATE_MODEL_SEED` and `TIDEGATE_MODEL_CASES` explore further.
//! Each history has a namespace of its own. A failing history is shrunk before it is reported.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use tidegate_core::model::{Model, PublishOutcome as Modelled};
use tidegate_core::{End, EntryId, Input, LeaseToken, NewEvent, Phase, QueueState, Refusal, entry::later};

use super::scene::*;
use crate::ErrorKind;
use crate::values::*;

#[derive(Debug, Clone)]
enum Step {
    Publish(Vec<Spec>),
    Claim { max: usize, kind: Option<u8>, quota: Option<usize> },
    Finalize { pick: usize, token: Token, end: End },
    Extend { pick: usize, token: Token, lease: u64 },
    Requeue { pick: usize, token: Token, when: When, counts: bool, aside: bool },
    Cancel { pick: usize },
    Redrive { pick: usize },
    State(QueueState),
    Limit(Option<u64>),
    Maintain,
    Reopen,
    Advance(u64),
}

#[derive(Debug, Clone)]
struct Spec {
    kind: u8,
    priority: i16,
    group: Option<u8>,
    delay: u64,
    key: Option<(u8, bool)>,
    payload: u8,
    attempts: u32,
    rank: i32,
    expires: Option<u64>,
    keeps_place: bool,
}

#[derive(Debug, Clone, Copy)]
enum Token {
    Current,
    Old,
    Absent,
}

#[derive(Debug, Clone, Copy)]
enum When {
    Now,
    After(u64),
    Ago(u64),
}

pub(super) async fn random_histories_match_the_model(scene: Scene) {
    compare(scene, || prop_oneof![3 => Just(None), 1 => (0_u8..3).prop_map(Some)].boxed(), 40).await;
}

pub(super) async fn random_histories_of_groups_match_the_model(scene: Scene) {
    compare(scene, || (0_u8..2).prop_map(Some).boxed(), 40).await;
}

fn any_step(group: BoxedStrategy<Option<u8>>) -> impl Strategy<Value = Step> {
    let key = prop_oneof![4 => Just(None), 1 => (0_u8..3, any::<bool>()).prop_map(Some)];
    let priority = prop_oneof![3 => Just(0_i16), 1 => -2_i16..3];
    let delay = prop_oneof![3 => Just(0_u64), 1 => 1_u64..100];
    let rank = prop_oneof![3 => Just(0_i32), 1 => -2_i32..3];
    let expires = proptest::option::weighted(0.2, 1_u64..300);
    let turn = (rank, expires, proptest::bool::weighted(0.3));
    let spec = (0_u8..3, priority, group, delay, key, 0_u8..2, 1_u32..4, turn).prop_map(
        |(kind, priority, group, delay, key, payload, attempts, (rank, expires, keeps_place))| Spec {
            kind,
            priority,
            group,
            delay,
            key,
            payload,
            attempts,
            rank,
            expires,
            keeps_place: keeps_place && group.is_some(),
        },
    );
    let pick = 0_usize..64;
    let token = prop_oneof![6 => Just(Token::Current), 1 => Just(Token::Old), 1 => Just(Token::Absent)];
    let end = proptest::sample::select(End::ALL.to_vec());
    let when = prop_oneof![Just(When::Now), (1_u64..90).prop_map(When::After), (1_u64..90).prop_map(When::Ago)];
    let state =
        prop_oneof![3 => Just(QueueState::Active), 1 => Just(QueueState::Paused), 1 => Just(QueueState::Draining)];
    prop_oneof![
        8 => proptest::collection::vec(spec, 1..5).prop_map(Step::Publish),
        8 => (1_usize..5, proptest::option::weighted(0.4, 0_u8..4), proptest::option::weighted(0.2, 0_usize..3))
            .prop_map(|(max, kind, quota)| Step::Claim { max, kind, quota }),
        6 => (pick.clone(), token.clone(), end).prop_map(|(pick, token, end)| Step::Finalize { pick, token, end }),
        2 => (pick.clone(), token.clone(), 1_u64..200).prop_map(|(pick, token, lease)| Step::Extend { pick, token, lease }),
        4 => (pick.clone(), token, when, any::<bool>(), any::<bool>())
            .prop_map(|(pick, token, when, counts, aside)| Step::Requeue { pick, token, when, counts, aside }),
        1 => pick.clone().prop_map(|pick| Step::Cancel { pick }),
        2 => pick.prop_map(|pick| Step::Redrive { pick }),
        1 => state.prop_map(Step::State),
        1 => proptest::option::of(1_u64..20).prop_map(Step::Limit),
        1 => Just(Step::Maintain),
        1 => Just(Step::Reopen),
        5 => (1_u64..80).prop_map(Step::Advance),
    ]
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn compare(scene: Scene, group: fn() -> BoxedStrategy<Option<u8>>, cases: u32) {
    let cases = from_environment("TIDEGATE_MODEL_CASES").and_then(|cases| cases.try_into().ok()).unwrap_or(cases);
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&from_environment("TIDEGATE_MODEL_SEED").unwrap_or(1).to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let runtime = tokio::runtime::Handle::current();
    let checking = tokio::task::spawn_blocking(move || {
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let histories = proptest::collection::vec(any_step(group()), 1..60);
        let next = AtomicU32::new(0);
        runner
            .run(&histories, |steps| {
                let namespace = format!("h{}", next.fetch_add(1, Ordering::SeqCst));
                runtime.block_on(play(&scene, namespace, steps))
            })
            .map_err(|error| match error {
                TestError::Fail(reason, steps) => {
                    let listed: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
                    format!("store and model differ: {reason}\nafter\n{}", listed.join("\n"))
                }
                error => error.to_string(),
            })
    });
    if let Err(difference) = checking.await.expect("the comparison runs") {
        panic!("{difference}");
    }
}

async fn play(scene: &Scene, namespace: String, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let options = StoreOptions { namespace, ..scene.options() };
    let store = scene.open_with(options.clone()).await;
    let mut twins = Twins { scene, options, store, model: Model::new(), ours: Vec::new(), number: HashMap::new() };
    for (index, step) in steps.iter().enumerate() {
        let compared = match twins.step(step).await {
            Ok(()) => twins.compare().await,
            refused => refused,
        };
        compared.map_err(|error| TestCaseError::fail(format!("step {index}, {step:?}: {error}")))?;
    }
    twins.store.close().await;
    scene.fixture.drop_namespace(&twins.options.namespace).await;
    Ok(())
}

/// The store, the model, and which of their entries belong together. "Ours" are the store's, "theirs" the model's.
struct Twins<'a> {
    scene: &'a Scene,
    options: StoreOptions,
    store: AnyStore,
    model: Model,
    /// The store's id of each entry, at the model's number minus one.
    ours: Vec<EntryId>,
    /// The model's number of each of the store's ids.
    number: HashMap<EntryId, EntryId>,
}

impl Twins<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Publish(specs) => self.publish(specs).await,
            Step::Claim { max, kind, quota } => self.claim(*max, *kind, *quota).await,
            Step::Finalize { pick, token, end } => self.finalize(*pick, *token, *end).await,
            Step::Extend { pick, token, lease } => self.extend(*pick, *token, seconds(*lease)).await,
            Step::Requeue { pick, token, when, counts, aside } => {
                self.requeue(*pick, *token, *when, *counts, *aside).await
            }
            Step::Cancel { pick } => self.cancel(*pick).await,
            Step::Redrive { pick } => self.redrive(*pick).await,
            Step::State(state) => {
                self.model.state = *state;
                self.change(QueueChange { state: Some(*state), ..QueueChange::default() }).await
            }
            Step::Limit(limit) => {
                self.model.depth_limit = *limit;
                self.change(QueueChange { depth_limit: Some(*limit), ..QueueChange::default() }).await
            }
            Step::Maintain => {
                self.model.maintain(self.scene.now());
                self.store.maintain().await.map(drop).map_err(unexpected)
            }
            Step::Reopen => {
                self.store.close().await;
                self.store = self.scene.open_with(self.options.clone()).await;
                Ok(())
            }
            Step::Advance(seconds) => {
                self.scene.advance(*seconds);
                Ok(())
            }
        }
    }

    async fn change(&mut self, change: QueueChange) -> Result<(), TestCaseError> {
        self.store.put_queue(&default_queue(), change).await.map(drop).map_err(unexpected)
    }

    async fn publish(&mut self, specs: &[Spec]) -> Result<(), TestCaseError> {
        let family = self.scene.fixture.family();
        let events: Vec<NewEvent> = specs.iter().map(|spec| spec.event(family)).collect();
        let answers = self.store.publish(events.clone()).await.map_err(unexpected)?;
        prop_assert_eq!(answers.len(), events.len());
        for (event, answer) in events.iter().zip(answers) {
            let modelled = self.model.publish(event, self.scene.now());
            let ours = answer.map(|published| (published.outcome, published.id)).map_err(|error| error.kind());
            if let (Modelled::Created(theirs), Ok((PublishOutcome::Created, id))) = (modelled, ours) {
                prop_assert!(self.ours.last().is_none_or(|last| *last < id), "ids rise");
                self.ours.push(id);
                self.number.insert(id, theirs);
                continue;
            }
            let expected = match modelled {
                Modelled::Duplicate(id) => Ok((PublishOutcome::Duplicate, self.our(id))),
                Modelled::Replaced(id) => Ok((PublishOutcome::Replaced, self.our(id))),
                Modelled::KeyConflict => Err(ErrorKind::Conflict),
                Modelled::Full | Modelled::Draining => Err(ErrorKind::Full),
                Modelled::Created(id) => {
                    return Err(TestCaseError::fail(format!("the model created {id}, the store answered {ours:?}")));
                }
            };
            prop_assert_eq!(ours, expected, "{:?}", event);
        }
        Ok(())
    }

    async fn claim(&mut self, max: usize, kind: Option<u8>, quota: Option<usize>) -> Result<(), TestCaseError> {
        let types = kind.map(|kind| vec![format!("t{kind}")]);
        // Events of some types are tagged with their type. A claim of everything with that tag takes what a claim of
        // everything of that type takes.
        let tagged = |kind| is_tagged(kind, self.scene.fixture.family());
        let by_tag = kind.is_some_and(tagged) && max.is_multiple_of(2) && quota.is_none();
        let max = if by_tag { ALL } else { max };
        let quotas: BTreeMap<String, usize> = quota.into_iter().map(|quota| ("t0".to_owned(), quota)).collect();
        let theirs = self.model.claim_within(max, types.as_deref(), &quotas, "w", LEASE, self.scene.now());
        let claim = if by_tag { Claim { tags: types, ..want(max) } } else { Claim { types, quotas, ..want(max) } };
        let claimed = self.store.claim(claim).await.map_err(unexpected)?;
        let ours: Vec<Option<EntryId>> = claimed.iter().map(|claimed| self.number.get(&claimed.id).copied()).collect();
        prop_assert_eq!(ours, theirs.into_iter().map(Some).collect::<Vec<_>>(), "claimed, in the model's numbers");
        for claimed in claimed {
            let entry = self.model.entry(self.number[&claimed.id]).expect("it was claimed");
            let ours = (claimed.attempts, claimed.token, claimed.generation, claimed.max_attempts);
            prop_assert_eq!(ours, (entry.attempts, entry.token, entry.generation, entry.max_attempts));
            prop_assert_eq!(claimed.lease_until, later(self.scene.now(), LEASE));
        }
        Ok(())
    }

    async fn finalize(&mut self, pick: usize, token: Token, end: End) -> Result<(), TestCaseError> {
        let Some((theirs, ours, current)) = self.pick(pick) else { return Ok(()) };
        let token = token.of(current);
        let modelled = self.model.apply(theirs, &Input::Finalize { token, end }, self.scene.now());
        let answer = finalize(&self.store, Finalize { token, ..end_by_id(ours, end) }).await;
        let answer = answer.map(|finalized| finalized.repeated).map_err(|error| error.kind());
        let expected = match modelled {
            Ok(()) => Ok(false),
            Err(Refusal::AlreadyEnded) => Ok(true),
            Err(_) => Err(ErrorKind::Fenced),
        };
        prop_assert_eq!(answer, expected);
        Ok(())
    }

    async fn extend(&mut self, pick: usize, token: Token, lease: Duration) -> Result<(), TestCaseError> {
        let Some((theirs, ours, current)) = self.pick(pick) else { return Ok(()) };
        let token = token.of(current).unwrap_or(LeaseToken(0));
        let modelled = self.model.apply(theirs, &Input::Extend { token, lease }, self.scene.now());
        let answer = only(self.store.extend(vec![Extend { id: ours, token, lease }]).await);
        let expected = modelled.map(|()| later(self.scene.now(), lease)).map_err(|_| ErrorKind::Fenced);
        prop_assert_eq!(answer.map_err(|error| error.kind()), expected);
        Ok(())
    }

    async fn requeue(
        &mut self,
        pick: usize,
        token: Token,
        when: When,
        counts: bool,
        aside: bool,
    ) -> Result<(), TestCaseError> {
        let Some((theirs, ours, current)) = self.pick(pick) else { return Ok(()) };
        let now = self.scene.now();
        let token = token.of(current).unwrap_or(LeaseToken(0));
        let (when, due) = match when {
            When::Now => (RequeueAt::Now, None),
            When::After(wait) => (RequeueAt::After(seconds(wait)), Some(later(now, seconds(wait)))),
            When::Ago(ago) => {
                let at = now - seconds(ago);
                (RequeueAt::At(at), Some(at))
            }
        };
        let modelled = self.model.apply(theirs, &Input::Requeue { token, due, counts, aside }, now);
        let answer =
            requeue(&self.store, Requeue { id: ours, token, when, counts, aside, error: None, attempt: None }).await;
        prop_assert_eq!(answer.map_err(|error| error.kind()), modelled.map_err(|_| ErrorKind::Fenced));
        Ok(())
    }

    async fn cancel(&mut self, pick: usize) -> Result<(), TestCaseError> {
        let Some((theirs, ours, _)) = self.pick(pick) else { return Ok(()) };
        let modelled = self.model.apply(theirs, &Input::Cancel, self.scene.now());
        let answer = cancel(&self.store, ours).await.map_err(|error| error.kind());
        prop_assert_eq!(answer, modelled.map_err(|_| ErrorKind::AlreadyEnded));
        Ok(())
    }

    async fn redrive(&mut self, pick: usize) -> Result<(), TestCaseError> {
        let Some((theirs, ours, _)) = self.pick(pick) else { return Ok(()) };
        let modelled = self.model.apply(theirs, &Input::Redrive, self.scene.now());
        let answer = redrive(&self.store, ours).await.map_err(|error| error.kind());
        let generation = self.model.entry(theirs).map_or(0, |entry| entry.generation);
        prop_assert_eq!(answer, modelled.map(|()| generation).map_err(|_| ErrorKind::Conflict));
        Ok(())
    }

    /// Compares depth, census and every entry.
    async fn compare(&self) -> Result<(), TestCaseError> {
        let now = self.scene.now();
        prop_assert_eq!(self.store.depth(&default_queue()).await.map_err(unexpected)?, self.model.depth(now));
        let census = self.store.census().await.map_err(unexpected)?;
        prop_assert_eq!(census.events as usize, self.ours.len(), "{:?}", census);
        prop_assert_eq!(census.events, census.waiting + census.leased + census.ended, "{:?}", census);
        let views = self.store.entries(self.ours.clone()).await.map_err(unexpected)?;
        for (theirs, view) in self.model.ids().zip(views) {
            let entry = self.model.entry(theirs).expect("the model knows its ids");
            let Some(view) = view else { return Err(TestCaseError::fail(format!("entry {theirs} is missing"))) };
            let ours = (view.attempts, view.token, view.generation, view.max_attempts);
            let expected = (entry.attempts, entry.token, entry.generation, entry.max_attempts);
            prop_assert_eq!(ours, expected, "attempts, token, generation, maximum of {}", theirs);
            prop_assert_eq!(view.expires_at, entry.expires, "expiry of {}", theirs);
            let same = match (&view.phase, &entry.phase) {
                (EntryPhase::Parked, Phase::Parked) => true,
                (EntryPhase::Waiting { due }, Phase::Waiting { due: expected }) => due == expected,
                (EntryPhase::Leased { worker, until, .. }, Phase::Leased(lease)) => {
                    (worker, until) == (&lease.worker, &lease.until)
                }
                (EntryPhase::Aside { due }, Phase::Aside { due: expected }) => due == expected,
                (EntryPhase::Kept { end }, Phase::Kept(expected)) => end == expected,
                (EntryPhase::Ended { end, superseded, .. }, Phase::Ended(expected)) => end == expected && !superseded,
                _ => false,
            };
            prop_assert!(same, "entry {} is {:?}, not {:?}", theirs, view.phase, entry.phase);
            prop_assert_eq!(Some(view.fact.payload.as_ref()), self.model.payload(theirs), "payload of {}", theirs);
        }
        Ok(())
    }

    /// One of the entries: the model's number, the store's id and the current token; `None` while there are none.
    fn pick(&self, pick: usize) -> Option<(EntryId, EntryId, LeaseToken)> {
        let index = pick % self.ours.len().max(1);
        let theirs = self.model.ids().nth(index)?;
        Some((theirs, self.our(theirs), self.model.entry(theirs)?.token))
    }

    fn our(&self, theirs: EntryId) -> EntryId {
        self.ours[usize::try_from(theirs.get()).expect("a small number") - 1]
    }
}

impl Token {
    fn of(self, current: LeaseToken) -> Option<LeaseToken> {
        match self {
            Self::Current => Some(current),
            Self::Old => Some(LeaseToken(current.0 - 1)),
            Self::Absent => None,
        }
    }
}

/// More than any history publishes.
const ALL: usize = 1000;

/// Whether events of this type are tagged with it. Jobs have no tags.
fn is_tagged(kind: u8, family: Family) -> bool {
    kind < 2 && family == Family::Entries
}

impl Spec {
    fn event(&self, family: Family) -> NewEvent {
        // Each key is used with one type; another type under the same key is a conformance case of its own.
        let kind = self.key.map_or(self.kind, |(key, _)| key);
        let mut event = NewEvent::new(format!("t{kind}"), format!("p{}", self.payload))
            .priority(self.priority)
            .max_attempts(self.attempts);
        if is_tagged(kind, family) {
            event = event.tags([format!("t{kind}"), "all".to_owned()]);
        }
        event.group = self.group.map(|group| format!("g{group}"));
        event.rank = self.rank;
        event.keeps_place = self.keeps_place;
        if let Some(age) = self.expires {
            event = event.expires_after(seconds(age));
        }
        if self.delay > 0 {
            event = event.delay(seconds(self.delay));
        }
        match self.key {
            Some((key, true)) => event.replace_waiting(format!("k{key}")),
            Some((key, false)) => event.deduplicate(format!("k{key}")),
            None => event,
        }
        .window(seconds(150))
    }
}

/// Sets the window of the deduplication key, if there is one.
trait Window {
    fn window(self, window: Duration) -> Self;
}

impl Window for NewEvent {
    fn window(mut self, window: Duration) -> Self {
        if let Some(deduplication) = &mut self.deduplication {
            deduplication.window = window;
        }
        self
    }
}

fn unexpected(error: crate::Error) -> TestCaseError {
    TestCaseError::fail(format!("unexpected error: {error} ({:?})", error.kind()))
}
