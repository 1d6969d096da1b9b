//! An event as a publisher hands it in, with its defaults and limits. It is checked here and not changed.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use crate::attempt::{MAX_DESCRIPTION, MAX_TAGS, MAX_TITLE, check_tag, is_readable};
use crate::entry::{End, later};
use crate::id::Tsid;
use crate::name::{InvalidName, QueueName, check_text};
use crate::queue::QueueSettings;
use crate::retry::RetryPolicy;

/// Attempts of an entry by default.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 20;
/// How long deduplication and idempotency keys are remembered by default.
pub const DEFAULT_DEDUP_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Priorities run from `-MAX_PRIORITY` (first) to `MAX_PRIORITY` (last).
pub const MAX_PRIORITY: i16 = 100;
/// The largest payload by default, in bytes.
pub const DEFAULT_PAYLOAD_LIMIT: usize = 1 << 20;
/// The largest attributes document, in bytes.
pub const MAX_ATTRIBUTES: usize = 64 << 10;

/// An event to be published: the fact, and how its entry is worked on.
///
/// ```
/// use tidegate_core::NewEvent;
/// let event = NewEvent::new("order.created", r#"{"amount": 99.99}"#).group("order:12345").priority(-5);
/// assert!(event.check(Default::default()).is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewEvent {
    /// The queue it is published to.
    pub queue: QueueName,
    /// The event's type, such as `order.created`.
    pub event_type: String,
    /// The payload's bytes, kept and returned exactly as given.
    pub payload: Bytes,
    /// The payload's media type; `application/json` when `None`.
    pub content_type: Option<String>,
    /// The system it came from.
    pub source: Option<String>,
    /// The thing it is about, such as `order:12345`.
    pub subject: Option<String>,
    /// When it happened; the moment of publication when `None`.
    pub time: Option<Timestamp>,
    /// The publisher's own id of the event.
    pub external_id: Option<String>,
    /// Shared by the events of one request.
    pub correlation_id: Option<String>,
    /// The id of the event that caused this one.
    pub causation_id: Option<String>,
    /// Further attributes (context data, trace parent), a JSON object as text.
    pub attributes: Option<String>,
    /// The client it belongs to; the queue's when `None`.
    pub client: Option<Tsid>,
    /// Lower goes first; see [`MAX_PRIORITY`].
    pub priority: i16,
    /// When it may first be claimed.
    pub available: Availability,
    /// The group: its entries run one after the other, in the order of publication.
    pub group: Option<String>,
    /// Suppresses repeats under a key.
    pub deduplication: Option<Deduplication>,
    /// Attempts after which the entry is exhausted.
    pub max_attempts: u32,
    /// Whether the queue's own number of retries, if it sets one, replaces `max_attempts`.
    pub retries_of_queue: bool,
    /// How the entry ends when it is exhausted: [`End::CompletedWithErrors`] or [`End::Failed`].
    pub exhausted_as: End,
    /// Whether the entry stays live when it is exhausted, so that nothing else of its group runs until it is redriven,
    /// ended manually or expires.
    pub keeps_place: bool,
    /// Order within the group before the order of publication; lower goes first. A head that no worker has claimed yet
    /// is overtaken by a lower rank.
    pub rank: i32,
    /// From when on the entry is cancelled instead of claimed.
    pub expires: Option<Expiry>,
    /// A title, for people.
    pub title: Option<String>,
    /// A description, for people.
    pub description: Option<String>,
    /// Tags that workers and lists select it by.
    pub tags: Vec<String>,
    /// The delays between attempts; the queue's policy when `None`.
    pub retry: Option<RetryPolicy>,
    /// Answers a repeated request with its first result.
    pub idempotency: Option<Idempotency>,
}

/// The idempotency key of one request: a repeat within the window is answered with the first result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The key, unique per client.
    pub key: String,
    /// A hash of the request: another request under the same key is a conflict.
    pub fingerprint: i64,
    /// How long the key is remembered.
    pub window: Duration,
}

impl Idempotency {
    /// A key that is remembered for 24 hours.
    pub fn new(key: impl Into<String>, fingerprint: i64) -> Self {
        Self { key: key.into(), fingerprint, window: DEFAULT_DEDUP_WINDOW }
    }
}

/// When an entry may first be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Availability {
    /// At once.
    #[default]
    Now,
    /// At a moment of database time.
    At(Timestamp),
    /// This long after publication, in database time.
    After(Duration),
}

/// When an entry that nobody works on is cancelled, in database time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// At a moment.
    At(Timestamp),
    /// This long after publication.
    After(Duration),
}

impl Expiry {
    /// The moment, for an entry that is published now.
    #[must_use]
    pub fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::After(age) => later(now, age),
        }
    }
}

/// Suppresses repeats of one logical event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deduplication {
    /// The key, unique per client and queue.
    pub key: String,
    /// What a repeat does.
    pub mode: DedupMode,
    /// How long the key is remembered.
    pub window: Duration,
}

/// What a repeat of a deduplication key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DedupMode {
    /// The first entry stays and is the answer; a repeat with other contents is a conflict.
    #[default]
    KeepFirst,
    /// While the first entry still waits, its contents and its expiry are replaced; type, priority, due moment, group, rank
    /// and number of attempts stay. Once it was claimed or has expired, the repeat becomes a new entry.
    ReplaceWaiting,
}

/// The largest payload that is accepted, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadLimit(pub usize);

impl Default for PayloadLimit {
    fn default() -> Self {
        Self(DEFAULT_PAYLOAD_LIMIT)
    }
}

impl NewEvent {
    /// An event for the queue `default` with every option at its default.
    pub fn new(event_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            queue: QueueName::default(),
            event_type: event_type.into(),
            payload: payload.into(),
            content_type: None,
            source: None,
            subject: None,
            time: None,
            external_id: None,
            correlation_id: None,
            causation_id: None,
            attributes: None,
            client: None,
            priority: 0,
            available: Availability::Now,
            group: None,
            deduplication: None,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            retries_of_queue: false,
            exhausted_as: End::CompletedWithErrors,
            keeps_place: false,
            rank: 0,
            expires: None,
            title: None,
            description: None,
            tags: Vec::new(),
            retry: None,
            idempotency: None,
        }
    }

    /// Sets the order within the group, before that of publication: lower goes first, 0 by default.
    #[must_use]
    pub fn rank(mut self, rank: i32) -> Self {
        self.rank = rank;
        self
    }

    /// Cancels the entry if no worker has taken it this long after publication.
    #[must_use]
    pub fn expires_after(mut self, age: Duration) -> Self {
        self.expires = Some(Expiry::After(age));
        self
    }

    /// Cancels the entry if no worker has taken it by a moment of database time.
    #[must_use]
    pub fn expires_at(mut self, at: Timestamp) -> Self {
        self.expires = Some(Expiry::At(at));
        self
    }

    /// Keeps the entry live when it is exhausted, so that nothing else of its group runs before somebody looked at it.
    #[must_use]
    pub fn keep_place(mut self) -> Self {
        self.keeps_place = true;
        self
    }

    /// Sets the title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Adds tags; repeats are dropped.
    #[must_use]
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        for tag in tags {
            let tag = tag.into();
            if !self.tags.contains(&tag) {
                self.tags.push(tag);
            }
        }
        self
    }

    /// Sets the number of retries after the first attempt; an exhausted entry then ends as FAILED.
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_attempts = retries.saturating_add(1);
        self.exhausted_as = End::Failed;
        self
    }

    /// As [`max_retries`](Self::max_retries) with the number that the queue sets, or with `otherwise` where it sets none.
    /// The store looks that up when it writes the entry.
    #[must_use]
    pub fn retries_of_queue(mut self, otherwise: u32) -> Self {
        self.retries_of_queue = true;
        self.max_retries(otherwise)
    }

    /// The attempts after which its entry is exhausted in a queue with these settings.
    #[must_use]
    pub fn attempts_in(&self, settings: &QueueSettings) -> u32 {
        settings.attempts(self.retries_of_queue, self.max_attempts)
    }

    /// Sets the delays between attempts.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Whether it has fields that only pull workers use; the stores keep more about such entries.
    #[must_use]
    pub fn is_for_workers(&self) -> bool {
        self.title.is_some() || self.description.is_some() || !self.tags.is_empty() || self.retry.is_some()
    }

    /// Sets the queue; `default` if not called.
    #[must_use]
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    /// Sets the priority: lower goes first, 0 by default.
    #[must_use]
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Makes it claimable this long after publication.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.available = Availability::After(delay);
        self
    }

    /// Makes it claimable from a moment of database time on.
    #[must_use]
    pub fn available_at(mut self, at: Timestamp) -> Self {
        self.available = Availability::At(at);
        self
    }

    /// Puts it into a group, whose entries run one after the other.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Suppresses repeats under this key for 24 hours; the first entry stays.
    #[must_use]
    pub fn deduplicate(mut self, key: impl Into<String>) -> Self {
        self.deduplication =
            Some(Deduplication { key: key.into(), mode: DedupMode::KeepFirst, window: DEFAULT_DEDUP_WINDOW });
        self
    }

    /// Replaces the contents of the entry that still waits under this key, if there is one.
    #[must_use]
    pub fn replace_waiting(mut self, key: impl Into<String>) -> Self {
        self.deduplication =
            Some(Deduplication { key: key.into(), mode: DedupMode::ReplaceWaiting, window: DEFAULT_DEDUP_WINDOW });
        self
    }

    /// Sets the number of attempts after which the entry is exhausted; 20 by default.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The client that the fact belongs to: its own, else its queue's.
    #[must_use]
    pub fn owner(&self) -> Option<Tsid> {
        self.client.or(self.queue.client())
    }

    /// Whether the fact has nothing but a type and a payload.
    #[must_use]
    pub fn is_bare_fact(&self) -> bool {
        let texts = [
            &self.content_type,
            &self.source,
            &self.subject,
            &self.external_id,
            &self.correlation_id,
            &self.causation_id,
            &self.attributes,
        ];
        !self.is_for_workers()
            && self.owner().is_none()
            && self.time.is_none()
            && texts.into_iter().all(Option::is_none)
    }

    /// Roughly the bytes that it occupies; batches are bounded by their sum.
    #[must_use]
    pub fn weight(&self) -> usize {
        let texts = [&self.source, &self.subject, &self.attributes, &self.group, &self.external_id];
        let described = [&self.title, &self.description].into_iter().flatten().map(String::len).sum::<usize>();
        let tags = self.tags.iter().map(|tag| tag.len() + 64).sum::<usize>();
        256 + self.payload.len() + described + tags + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// Names the first field that is invalid, and what would be accepted.
    pub fn check(&self, limit: PayloadLimit) -> Result<(), InvalidEvent> {
        check_text("event type", &self.event_type)?;
        if self.queue.client().is_some() && self.owner() != self.queue.client() {
            return Err(InvalidEvent::OtherClient);
        }
        if self.payload.len() > limit.0 {
            return Err(InvalidEvent::PayloadTooLarge { size: self.payload.len(), limit: limit.0 });
        }
        let texts = [
            ("content type", &self.content_type),
            ("source", &self.source),
            ("subject", &self.subject),
            ("external id", &self.external_id),
            ("correlation id", &self.correlation_id),
            ("causation id", &self.causation_id),
            ("message group", &self.group),
        ];
        for (what, text) in texts {
            if let Some(text) = text {
                check_text(what, text)?;
            }
        }
        if let Some(deduplication) = &self.deduplication {
            check_text("deduplication key", &deduplication.key)?;
        }
        if let Some(attributes) = &self.attributes
            && (attributes.len() > MAX_ATTRIBUTES || attributes.contains('\0'))
        {
            return Err(InvalidEvent::BadAttributes);
        }
        if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority) {
            return Err(InvalidEvent::PriorityOutOfRange(self.priority));
        }
        if self.max_attempts == 0 || i32::try_from(self.max_attempts).is_err() {
            return Err(InvalidEvent::MaxAttemptsOutOfRange(self.max_attempts));
        }
        if !matches!(self.exhausted_as, End::CompletedWithErrors | End::Failed) {
            return Err(InvalidEvent::BadExhaustedEnd(self.exhausted_as));
        }
        if self.keeps_place && self.group.is_none() {
            return Err(InvalidEvent::KeepsNoPlace);
        }
        self.check_for_workers()?;
        self.check_moments()
    }

    fn check_for_workers(&self) -> Result<(), InvalidEvent> {
        let fits = |title: &String| !title.is_empty() && !title.contains('\0') && title.chars().count() <= MAX_TITLE;
        if !self.title.as_ref().is_none_or(fits) {
            return Err(InvalidEvent::BadTitle);
        }
        if self.description.as_ref().is_some_and(|description| !is_readable(description, MAX_DESCRIPTION)) {
            return Err(InvalidEvent::BadDescription);
        }
        if self.tags.len() > MAX_TAGS {
            return Err(InvalidEvent::TooManyTags(self.tags.len()));
        }
        for (index, tag) in self.tags.iter().enumerate() {
            check_tag(tag)?;
            if self.tags[..index].contains(tag) {
                return Err(InvalidEvent::RepeatedTag(tag.clone()));
            }
        }
        if let Some(idempotency) = &self.idempotency {
            check_text("idempotency key", &idempotency.key)?;
        }
        if self.retry.as_ref().is_some_and(|policy| !policy.is_sane()) {
            return Err(InvalidEvent::BadRetry);
        }
        Ok(())
    }

    fn check_moments(&self) -> Result<(), InvalidEvent> {
        let year = Duration::from_secs(366 * 24 * 3600);
        let far = matches!(self.available, Availability::After(delay) if delay > 100 * year);
        let out_of_range = |at: &Timestamp| !(0..253_370_764_800).contains(&at.as_second());
        let bad_moment = matches!(&self.available, Availability::At(at) if out_of_range(at));
        let bad_expiry = match &self.expires {
            Some(Expiry::At(at)) => out_of_range(at),
            Some(Expiry::After(age)) => *age > 100 * year,
            None => false,
        };
        if far || bad_moment || bad_expiry || self.time.as_ref().is_some_and(out_of_range) {
            return Err(InvalidEvent::MomentOutOfRange);
        }
        let windows =
            [self.deduplication.as_ref().map(|dedup| dedup.window), self.idempotency.as_ref().map(|key| key.window)];
        if windows.into_iter().flatten().any(|window| window.is_zero() || window > year) {
            return Err(InvalidEvent::WindowOutOfRange);
        }
        Ok(())
    }
}

/// Why an event cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    /// A name or a text that breaks its rule.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// An event of one client for a queue of another.
    #[error("the event names another client than its queue's: leave the client out, the queue's is used")]
    OtherClient,
    /// The payload is larger than the limit.
    #[error(
        "the payload has {size} bytes, above the limit of {limit}: store it elsewhere and publish a reference to it"
    )]
    PayloadTooLarge {
        /// The payload's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The attributes are too large or contain a NUL.
    #[error("the attributes must be JSON text of at most {MAX_ATTRIBUTES} bytes without NUL characters")]
    BadAttributes,
    /// The priority is out of range.
    #[error("priority {0} is out of range: it must be -{MAX_PRIORITY} to {MAX_PRIORITY}")]
    PriorityOutOfRange(i16),
    /// The number of attempts is out of range.
    #[error("max attempts {0} is out of range: it must be 1 to 2147483647")]
    MaxAttemptsOutOfRange(u32),
    /// An exhausted entry must end as a dead letter.
    #[error("an exhausted entry cannot end as {0}: use COMPLETED_WITH_ERRORS or FAILED")]
    BadExhaustedEnd(End),
    /// Only an entry of a group has a place to keep.
    #[error("an entry keeps its place for its group: name a message group, or leave keeps_place out")]
    KeepsNoPlace,
    /// A moment that a database may not be able to store, or a delay that is too long.
    #[error("a moment must be between 1970 and 9998, a delay at most 100 years")]
    MomentOutOfRange,
    /// The title is empty, too long or contains a NUL.
    #[error("the title must be 1 to {MAX_TITLE} characters without NUL characters")]
    BadTitle,
    /// The description is too long or contains a NUL.
    #[error("the description must be at most {MAX_DESCRIPTION} bytes without NUL characters")]
    BadDescription,
    /// There are too many tags.
    #[error("{0} tags are too many: use at most {MAX_TAGS}")]
    TooManyTags(usize),
    /// A tag is given twice.
    #[error("the tag {0:?} is given twice")]
    RepeatedTag(String),
    /// The retry policy is out of range.
    #[error(
        "the retry policy is out of range: delays must be at most 100 years, jitter 0 to 1, a list at most 1000 long"
    )]
    BadRetry,
    /// The window of a deduplication or idempotency key is out of range.
    #[error("the window of a deduplication or idempotency key must be above zero and at most 366 days")]
    WindowOutOfRange,
}

#[cfg(test)]
mod tests;
