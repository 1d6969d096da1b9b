//! Replays: stored events are made into jobs or entries of one subscription once more, in the order in which they were
//! accepted.
//!
//! A replay is identified by its subscription, its time range and a name. What it makes of an event is kept under a key of
//! that identity, so a replay that is repeated, by whomever and on whatever node, makes what is missing and nothing twice. One
//! call does a bounded part of the work and says where the next one goes on; if its answer is lost, the part is repeated.
//!
//! Test events are stored like others, but never replayed: each was for one subscription.

use std::time::{Duration, Instant};

use tidegate::{AddTarget, FactsWalk, Family, MAX_TARGETS, StoredFact, Timestamp, Tsid};
use tidegate_core::cloud_event::CloudEvent;

use super::Gateway;
use super::error::{GatewayError, Result};
use super::ingest::{SHOWN_OF_EACH, event_of, target_of};
use super::subscriptions::{Subscription, Target};
use super::trial::TEST_EVENT;

/// How many events one call looks at.
const EXAMINED: usize = 10_000;
/// After how long it ends, however few it has looked at.
const TAKES: Duration = Duration::from_secs(2);
/// How many events are read at once, and at most written in one transaction.
const STEP: usize = 500;
/// The same where it is looked what was made of each.
const SMALL_STEP: usize = 100;
/// The longest name of a replay, in bytes.
const MAX_NAME: usize = 255;

/// What to replay to a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Events accepted at this moment or later.
    pub from: Timestamp,
    /// Events accepted before this moment.
    pub to: Timestamp,
    /// Tells this replay from others of the same range; it may be empty.
    pub name: String,
    /// Leaves out events that the subscription has a job of already.
    pub missing_only: bool,
    /// Where the last call has stopped.
    pub after: Option<Tsid>,
}

/// What a call has done of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replayed {
    /// Jobs and entries that it has made.
    pub made: usize,
    /// Those that this replay had made before.
    pub repeated: usize,
    /// Events that it has looked at.
    pub examined: usize,
    /// Where the next call goes on; `None` at the end of the range.
    pub next: Option<Tsid>,
}

impl Replay {
    /// A replay of a time range, from its beginning.
    #[must_use]
    pub fn new(from: Timestamp, to: Timestamp) -> Self {
        Self { from, to, name: String::new(), missing_only: false, after: None }
    }

    fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(GatewayError::Invalid(text));
        if self.from >= self.to {
            return invalid("from must be before to".into());
        }
        if self.name.len() > MAX_NAME {
            return invalid(format!("replayId must have at most {MAX_NAME} bytes"));
        }
        Ok(())
    }

    /// What the jobs and entries of this replay are kept under.
    fn key(&self, subscription: &Subscription) -> String {
        let (from, to) = (self.from.as_microsecond(), self.to.as_microsecond());
        format!("{}:{from}:{to}:{}", subscription.id, self.name)
    }

    /// The ids between which the events of its range are. The range of ids is wider: an id has milliseconds, which a database
    /// may have rounded.
    fn ids(&self) -> (Tsid, Tsid) {
        let first = Tsid::from_parts(self.from.as_millisecond().saturating_sub(1), 0);
        let end = Tsid::from_parts(self.to.as_millisecond().saturating_add(2), 0);
        (self.after.map_or(first, |after| after.max(first)), end)
    }
}

impl Replayed {
    fn add(&mut self, other: Self) {
        self.made += other.made;
        self.repeated += other.repeated;
        self.examined += other.examined;
    }
}

impl Gateway {
    /// Makes jobs or entries of a subscription, as it is now, for stored events of a time range that it takes, in the order in
    /// which they were accepted. It does a bounded part of that; see [`Replayed::next`].
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, or the store's: then a part may be done, and repeating the call makes what is missing.
    pub async fn replay(&self, id: Tsid, client: Option<Tsid>, replay: &Replay) -> Result<Replayed> {
        replay.check()?;
        let subscription = self.subscription(id, client).await?;
        let (began, mut done) = (Instant::now(), Replayed::default());
        let (mut after, before) = replay.ids();
        while done.examined < EXAMINED && began.elapsed() < TAKES {
            let client = subscription.client.map(Some);
            let walk = FactsWalk { client, after, before, limit: if replay.missing_only { SMALL_STEP } else { STEP } };
            let walked = self.queue.facts().walk(walk).await?;
            done.add(self.replay_facts(&subscription, replay, walked.facts).await?);
            done.next = walked.next;
            let Some(next) = walked.next else { break };
            after = next;
        }
        if done.made > 0 {
            self.made.add(Some(subscription.id).filter(|_| subscription.is_due_at_once()).into_iter());
        }
        Ok(done)
    }

    /// Replays those of some events that the subscription takes, in one transaction.
    async fn replay_facts(
        &self,
        subscription: &Subscription,
        replay: &Replay,
        facts: Vec<StoredFact>,
    ) -> Result<Replayed> {
        let mut done = Replayed { examined: facts.len(), ..Replayed::default() };
        let key = replay.key(subscription);
        let range = replay.from..replay.to;
        let mut items = Vec::new();
        for fact in facts {
            if !range.contains(&fact.fact.created_at) {
                continue;
            }
            let event = event_of(&fact.fact);
            // A test event is for the subscription that was tested, and says nothing to any other.
            if event.event_type != TEST_EVENT && subscription.takes(&event) {
                items.push(item(subscription, &event, &fact, &key)?);
            }
        }
        if replay.missing_only {
            self.leave_out_made(subscription, &mut items).await?;
        }
        if items.is_empty() {
            return Ok(done);
        }
        for added in self.queue.facts().add_targets(items).await? {
            match added {
                Ok(added) if added.is_new => done.made += 1,
                Ok(_) => done.repeated += 1,
                // Retention has removed the event meanwhile.
                Err(error) if error.kind() == tidegate::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// Leaves out events of which the subscription has a job. Entries do not tell for whom they were made.
    async fn leave_out_made(&self, subscription: &Subscription, items: &mut Vec<AddTarget>) -> Result<()> {
        let Target::Webhook(_) = subscription.body.target else { return Ok(()) };
        let lane = subscription.id.to_string();
        let mut made = std::collections::HashSet::new();
        let read = async |ids: Vec<Tsid>, shown: usize| self.queue.facts().get(ids, shown).await;
        let is_mine = |fact: &StoredFact| {
            let mine = |lane_type: Option<&str>| lane_type == Some(&lane);
            fact.targets.iter().any(|target| target.family == Family::Jobs && mine(target.lane_type.as_deref()))
        };
        let ids = items.iter().map(|item| item.fact).collect();
        for fact in read(ids, SHOWN_OF_EACH).await?.into_iter().flatten() {
            let is_made = match is_mine(&fact) {
                // There may be one among those that were not read.
                false if fact.targets.len() == SHOWN_OF_EACH => {
                    read(vec![fact.id], MAX_TARGETS).await?.iter().flatten().any(is_mine)
                }
                is_made => is_made,
            };
            made.extend(is_made.then_some(fact.id));
        }
        items.retain(|item| !made.contains(&item.fact));
        Ok(())
    }
}

/// What is made of an event for a subscription.
fn item(subscription: &Subscription, event: &CloudEvent, fact: &StoredFact, key: &str) -> Result<AddTarget> {
    Ok(AddTarget::new(fact, key, target_of(subscription, event)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_moments_is_within_its_range_of_ids() {
        let at = |micros: i64| Timestamp::from_microsecond(micros).unwrap();
        let (from, to) = (at(1_700_000_000_123_456), at(1_700_000_000_123_999));
        let (first, end) = Replay::new(from, to).ids();
        let id = |ms: i64, number: i64| Tsid::from_parts(ms, number);
        for number in [0, 1, (1 << 22) - 1] {
            assert!(id(1_700_000_000_123, number) > first && id(1_700_000_000_124, number) < end, "{number}");
            assert!(id(1_700_000_000_121, number) < first && id(1_700_000_000_125, number) >= end, "{number}");
        }
        let cursor = id(1_700_000_000_123, 77);
        assert_eq!(Replay { after: Some(cursor), ..Replay::new(from, to) }.ids().0, cursor);
        assert_eq!(Replay { after: Some(id(1_600_000_000_000, 1)), ..Replay::new(from, to) }.ids().0, first);
        assert!(Replay::new(to, from).check().is_err());
    }
}
