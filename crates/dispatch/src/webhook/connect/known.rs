//! Names that have answered: which they are, and what they answered last. Pure: the time is passed in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::resolve::{Answer, ResolveError};

/// How many names are known; of more, those that answered last.
const MOST: usize = 4_096;
/// For how long an answer is taken instead of another one.
const RECENT: Duration = Duration::from_secs(30);

/// The names.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<String, Last>);

#[derive(Debug)]
struct Last {
    addresses: Arc<[IpAddr]>,
    at: Instant,
}

impl Known {
    /// Whether a name answered when it was asked for last.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// What a name answered just now.
    pub(super) fn recent(&self, name: &str, now: Instant) -> Option<Arc<[IpAddr]>> {
        self.0.get(name).filter(|last| now < last.at + RECENT).map(|last| Arc::clone(&last.addresses))
    }

    /// A look-up has ended. Who stops to answer is a stranger again: else a name server could fill the places of those that do.
    pub(super) fn note(&mut self, name: &str, answer: &Answer, now: Instant) {
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                if self.0.len() >= MOST && !self.has(name) {
                    self.forget_oldest();
                }
                self.0.insert(name.to_owned(), Last { addresses: Arc::clone(addresses), at: now });
            }
            // Nobody was asked.
            Err(ResolveError::Local(_)) => {}
            Ok(_) | Err(_) => drop(self.0.remove(name)),
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, last)| last.at).map(|(name, _)| name.clone());
        if let Some(name) = oldest {
            self.0.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: &str) -> Answer {
        Ok([address.parse().unwrap()].into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_known_while_it_answers_and_its_answer_is_recent_for_a_while() {
        let (mut known, now) = (Known::default(), Instant::now());
        assert!(!known.has("a") && known.recent("a", now).is_none());
        known.note("a", &found("8.8.8.8"), now);
        known.note("a", &found("9.9.9.9"), now + RECENT / 2);
        assert_eq!(known.recent("a", now + RECENT), found("9.9.9.9").ok());
        assert_eq!((known.recent("a", now + 2 * RECENT), known.has("a")), (None, true));
        known.note("a", &Err(ResolveError::Local("no socket".into())), now);
        assert!(known.has("a"));
        for answer in [Err(ResolveError::Timeout), Err(ResolveError::Failed("no".into())), Ok([].into())] {
            known.note("a", &found("8.8.8.8"), now);
            known.note("a", &answer, now);
            assert!(!known.has("a"), "{answer:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_names_that_answered_last_are_known() {
        let (mut known, start) = (Known::default(), Instant::now());
        let at = |number: usize| start + Duration::from_millis(number as u64);
        for number in 0..MOST + 10 {
            known.note(&number.to_string(), &found("8.8.8.8"), at(number));
            known.note("0", &found("8.8.8.8"), at(number));
        }
        assert_eq!(known.0.len(), MOST);
        assert!(known.has("0") && !known.has("1") && !known.has("10") && known.has("11"));
    }
}
