//! When it is said that webhooks cannot be sent for a reason on this node: not for each of them, since such a reason is one for
//! all. Pure: the time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// How often it is said at most.
const EVERY: Duration = Duration::from_secs(30);

/// When it was said last, and how many webhooks there were since.
#[derive(Debug, Default)]
pub(super) struct Notice {
    said: Option<Instant>,
    unsaid: u64,
}

impl Notice {
    /// One more webhook. Says how many to speak of now, this one included, if it is time.
    pub(super) fn one_more(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self.said.is_some_and(|said| now < said + EVERY) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_said_once_in_a_while_and_of_all() {
        let (mut notice, start) = (Notice::default(), Instant::now());
        assert_eq!(notice.one_more(start), Some(1));
        for second in 1..30 {
            assert_eq!(notice.one_more(start + Duration::from_secs(second)), None);
        }
        assert_eq!(notice.one_more(start + EVERY), Some(30));
        assert_eq!(notice.one_more(start + EVERY), None);
        assert_eq!(notice.one_more(start + 3 * EVERY), Some(2));
    }
}
