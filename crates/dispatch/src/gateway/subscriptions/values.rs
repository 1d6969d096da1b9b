//! Subscriptions as callers see them, their defaults and limits, and the form in which resources store them.

use serde::{Deserialize, Serialize};
use tidegate::{Resource, Timestamp, Tsid};
use tidegate_core::event_type::VersionNumber;
use tidegate_core::filter::Filter;
use tidegate_core::matching::TypePattern;

use super::target::Target;
use crate::gateway::error::{GatewayError, Result};
use crate::gateway::values::{check_description, check_name, check_text, damaged, write};

/// The kind of resources that are subscriptions.
pub(crate) const SUBSCRIPTION: &str = "subscription";
/// The kind of resources that are secrets of subscriptions, by the subscription's client and code.
pub(crate) const SIGNING_SECRET: &str = "signing_secret";
/// The most bindings of a subscription.
const MAX_BINDINGS: usize = 100;
/// The most entries of custom configuration, and the longest key and value, in bytes.
const MAX_CONFIG: (usize, usize, usize) = (64, 255, 4_096);
/// The longest name of a transport's queue, in bytes.
const MAX_QUEUE: usize = 255;
/// The longest time-out of a delivery, in seconds.
pub(in crate::gateway) const MAX_TIMEOUT: u32 = 3_600;
/// The most retries.
pub(in crate::gateway) const MAX_RETRIES: u32 = 1_000;
/// The longest delay and age, in seconds: a year.
const MAX_SECONDS: u32 = 31_536_000;
/// The most delays of a list.
const MAX_DELAYS: usize = 100;

/// Whether events go to a subscription's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum SubscriptionStatus {
    /// They do.
    Active,
    /// Nothing is made for it.
    Paused,
}

/// What happens to the rest of a group when a delivery fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DispatchMode {
    /// Deliveries do not wait for each other.
    #[default]
    Immediate,
    /// One after the other; a failed one lets the next ones pass.
    NextOnError,
    /// One after the other; a failed one blocks its group until somebody resolves it.
    BlockOnError,
}

/// The delays between attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RetryStrategy {
    /// The same delay each time.
    Fixed {
        /// The delay.
        delay_seconds: u32,
    },
    /// Doubling, up to a limit.
    Exponential {
        /// The delay after the first attempt.
        base_seconds: u32,
        /// The longest delay.
        max_seconds: u32,
    },
    /// One delay per attempt; the last repeats.
    List {
        /// The delays.
        delays_seconds: Vec<u32>,
    },
}

/// Events that a subscription asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeBinding {
    /// The registered type that was named, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<Tsid>,
    /// The code or pattern; of a type that was named by its id, its code, or that id until the subscription is checked.
    pub code: TypePattern,
    /// The version that events have been validated against; any if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionNumber>,
}

/// Something that the subscription carries for its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigEntry {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// What can be said about a subscription.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionBody {
    /// A name for people.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Which events it asks for.
    pub bindings: Vec<TypeBinding>,
    /// Where they go.
    pub target: Target,
    /// The queue of the transport, if it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// What a failure means for the rest of its group.
    pub mode: DispatchMode,
    /// The pool that limits its deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_pool: Option<Tsid>,
    /// How long a delivery may take.
    pub timeout_seconds: u32,
    /// Attempts after the first one.
    pub max_retries: u32,
    /// The delays between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// How old an event may become before its delivery is given up.
    pub max_age_seconds: u32,
    /// How long after the event its delivery begins.
    pub delay_seconds: u32,
    /// Order within a group: lower goes first.
    pub sequence: i32,
    /// Whether the data alone is sent, or the whole event.
    pub data_only: bool,
    /// Whether the body of a 2xx may ask for another attempt: `{"ack": false, "delaySeconds": 10}`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ack_in_body: bool,
    /// What it carries for its owner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub custom_config: Vec<ConfigEntry>,
    /// The account whose credentials deliveries use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<Tsid>,
    /// Which of those events it wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    /// Its number.
    pub id: Tsid,
    /// Its code, unique per client; it never changes.
    pub code: String,
    /// The client it belongs to, whose events alone it sees; `None` for the anchor level, which sees all.
    pub client: Option<Tsid>,
    /// Whether anything is made for it.
    pub status: SubscriptionStatus,
    /// Since when it is paused; of an ACTIVE one, since when it was the last time.
    pub paused_from: Option<Timestamp>,
    /// Until when an ACTIVE one was paused.
    pub paused_to: Option<Timestamp>,
    /// What is said about it.
    pub body: SubscriptionBody,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change: an entity tag.
    pub revision: i64,
}

/// A subscription in its resource's body.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    status: SubscriptionStatus,
    /// Absent in the version that pauses it: then its own moment counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_from: Option<Timestamp>,
    /// Absent in the version that resumes it: then its own moment counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_to: Option<Timestamp>,
    said: SubscriptionBody,
}

impl TypeBinding {
    /// Whether it names a registered type by its id, and no code beside it.
    pub(super) fn is_by_id_alone(&self) -> bool {
        self.event_type.is_some_and(|id| self.code.to_string() == id.to_string())
    }
}

impl SubscriptionBody {
    /// What the source gives a subscription that says no more than this.
    #[must_use]
    pub fn new(name: String, bindings: Vec<TypeBinding>, target: Target) -> Self {
        Self {
            name,
            description: None,
            bindings,
            target,
            queue: None,
            mode: DispatchMode::default(),
            dispatch_pool: None,
            timeout_seconds: 30,
            max_retries: 3,
            retry_strategy: None,
            max_age_seconds: 86_400,
            delay_seconds: 0,
            sequence: 99,
            data_only: true,
            ack_in_body: false,
            custom_config: Vec::new(),
            service_account: None,
            filter: None,
        }
    }

    /// Checks what can be checked without a database.
    pub(super) fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        check_description(self.description.as_deref())?;
        if self.bindings.is_empty() || self.bindings.len() > MAX_BINDINGS {
            return Err(invalid(&format!("eventTypes must have 1 to {MAX_BINDINGS} items")));
        }
        if let Some(queue) = &self.queue {
            check_text("queue", queue, 1, MAX_QUEUE)?;
        }
        within("timeoutSeconds", self.timeout_seconds, 1, MAX_TIMEOUT)?;
        within("maxRetries", self.max_retries, 0, MAX_RETRIES)?;
        within("maxAgeSeconds", self.max_age_seconds, 1, MAX_SECONDS)?;
        within("delaySeconds", self.delay_seconds, 0, MAX_SECONDS)?;
        self.retry_strategy.as_ref().map_or(Ok(()), RetryStrategy::check)?;
        self.check_config()
    }

    fn check_config(&self) -> Result<()> {
        let (most, key, value) = MAX_CONFIG;
        if self.custom_config.len() > most {
            return Err(invalid(&format!("customConfig must have at most {most} items")));
        }
        for (at, entry) in self.custom_config.iter().enumerate() {
            check_text(&format!("customConfig[{at}].key"), &entry.key, 1, key)?;
            check_text(&format!("customConfig[{at}].value"), &entry.value, 0, value)?;
            if self.custom_config.iter().take(at).any(|other| other.key == entry.key) {
                return Err(invalid(&format!("customConfig[{at}].key {:?} is there twice", entry.key)));
            }
        }
        Ok(())
    }
}

impl RetryStrategy {
    pub(in crate::gateway) fn check(&self) -> Result<()> {
        match self {
            Self::Fixed { delay_seconds } => within("retryStrategy.delaySeconds", *delay_seconds, 0, MAX_SECONDS),
            Self::Exponential { base_seconds, max_seconds } => {
                within("retryStrategy.maxSeconds", *max_seconds, 1, MAX_SECONDS)?;
                within("retryStrategy.baseSeconds", *base_seconds, 1, *max_seconds)
            }
            Self::List { delays_seconds } => {
                if delays_seconds.is_empty() || delays_seconds.len() > MAX_DELAYS {
                    let text = format!("retryStrategy.delaysSeconds must have 1 to {MAX_DELAYS} items");
                    return Err(GatewayError::Invalid(text));
                }
                delays_seconds
                    .iter()
                    .try_for_each(|delay| within("each of retryStrategy.delaysSeconds", *delay, 0, MAX_SECONDS))
            }
        }
    }
}

impl Subscription {
    pub(crate) fn read(resource: &Resource) -> Result<Self> {
        let damaged = damaged(resource);
        let Ok(stored) = serde_json::from_str::<Stored>(&resource.body) else { return Err(damaged("its body")) };
        let is_paused = stored.status == SubscriptionStatus::Paused;
        let paused_from = stored.paused_from.or(is_paused.then_some(resource.updated_at));
        let resumed_at = paused_from.filter(|_| !is_paused).map(|_| resource.updated_at);
        Ok(Self {
            id: resource.id,
            code: resource.code.clone(),
            client: resource.client,
            status: stored.status,
            paused_from,
            paused_to: stored.paused_to.or(resumed_at),
            body: stored.said,
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
        })
    }
}

/// The body of a new subscription's resource.
pub(super) fn stored_new(body: &SubscriptionBody) -> Result<String> {
    write(&Stored { status: SubscriptionStatus::Active, paused_from: None, paused_to: None, said: body.clone() })
}

/// The body of the resource of a subscription that is changed; `moves` if its status changes.
pub(super) fn stored(changed: &Subscription, moves: bool) -> Result<String> {
    let (status, said) = (changed.status, changed.body.clone());
    let (paused_from, paused_to) = match (moves, status) {
        (false, _) => (changed.paused_from, changed.paused_to),
        (true, SubscriptionStatus::Paused) => (None, None),
        (true, SubscriptionStatus::Active) => (changed.paused_from, None),
    };
    write(&Stored { status, paused_from, paused_to, said })
}

fn invalid(text: &str) -> GatewayError {
    GatewayError::Invalid(text.to_owned())
}

pub(in crate::gateway) fn within(field: &str, value: u32, least: u32, most: u32) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(GatewayError::Invalid(format!("{field} must be {least} to {most}")))
}
