//! The kinds of documents, declared once: their fields, what these hold, and what counts when they are absent. Fields have
//! the names that the API gives them; what the API names by an id, documents name by its code.

use std::fmt;

use serde_json::{Value, json};

/// What a document describes, in the order in which things need each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Client,
    Queue,
    Pool,
    EventType,
    Schema,
    Subscription,
    Schedule,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    Number,
    Flag,
    List,
    Fields,
    /// Anything that JSON can say.
    Anything,
}

/// What counts when a field is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It must not be.
    Refused,
    /// Nothing is said.
    Nothing,
    /// This JSON.
    Is(&'static str),
    /// The code of the document.
    Code,
    /// It stays as it is: what is paused is not resumed by documents that say nothing about it.
    AsItIs,
}

/// A field of a kind.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) holds: Holds,
    pub(crate) absent: Absent,
}

const fn field(name: &'static str, holds: Holds, absent: Absent) -> Field {
    Field { name, holds, absent }
}

use Absent::{AsItIs, Code, Is, Nothing, Refused};
use Holds::{Anything, Fields, Flag, List, Number, Text, Word};

const CLIENT: &[Field] = &[field("code", Text, Refused), field("name", Text, Code)];

const QUEUE: &[Field] = &[
    field("name", Text, Refused),
    field("client", Text, Nothing),
    field("state", Word(&["active", "paused", "draining"]), AsItIs),
    field("depth_limit", Number, Nothing),
    field("lease_seconds", Number, Nothing),
    field("max_retries", Number, Nothing),
    field("retry", Fields, Nothing),
    field("require_lease", Flag, Is("false")),
];

const POOL: &[Field] = &[
    field("code", Text, Refused),
    field("client", Text, Nothing),
    field("name", Text, Code),
    field("concurrency", Number, Is("10")),
    field("rateLimitPerMinute", Number, Nothing),
    field("status", Word(&["ACTIVE", "SUSPENDED"]), AsItIs),
];

const EVENT_TYPE: &[Field] = &[
    field("code", Text, Refused),
    field("name", Text, Code),
    field("description", Text, Nothing),
    field("status", Word(&["CURRENT", "ARCHIVE"]), AsItIs),
    field("versions", List, AsItIs),
];

/// The words of the life of a version.
const STAGES: &[&str] = &["FINALISING", "CURRENT", "DEPRECATED"];
/// The languages of schemas.
const LANGUAGES: &[&str] = &["JSON_SCHEMA", "PROTO", "XSD"];

/// The fields of each of an event type's versions.
pub(crate) const VERSION: &[Field] = &[
    field("version", Text, Refused),
    field("status", Word(STAGES), AsItIs),
    field("schemaType", Word(LANGUAGES), Is("\"JSON_SCHEMA\"")),
    field("mimeType", Text, Nothing),
    field("message", Text, Nothing),
    field("strict", Flag, Is("false")),
    field("schema", Anything, Nothing),
    field("schemaFile", Text, Nothing),
    field("schemaName", Text, AsItIs),
    field("schemaDescription", Text, AsItIs),
    field("force", Fields, AsItIs),
];

const SCHEMA: &[Field] = &[
    field("name", Text, Refused),
    field("description", Text, Nothing),
    field("schemaType", Word(LANGUAGES), Is("\"JSON_SCHEMA\"")),
    field("mimeType", Text, Nothing),
    field("content", Anything, Nothing),
    field("contentFile", Text, Nothing),
];

const SUBSCRIPTION: &[Field] = &[
    field("code", Text, Refused),
    field("client", Text, Nothing),
    field("name", Text, Code),
    field("description", Text, Nothing),
    field("status", Word(&["ACTIVE", "PAUSED"]), AsItIs),
    field("eventTypes", List, Refused),
    field("target", Text, Refused),
    field("queue", Text, Nothing),
    field("mode", Word(&["IMMEDIATE", "NEXT_ON_ERROR", "BLOCK_ON_ERROR"]), Is("\"IMMEDIATE\"")),
    field("dispatchPool", Text, Nothing),
    field("timeoutSeconds", Number, Is("30")),
    field("maxRetries", Number, Is("3")),
    field("retryStrategy", Fields, Nothing),
    field("maxAgeSeconds", Number, Is("86400")),
    field("delaySeconds", Number, Is("0")),
    field("sequence", Number, Is("99")),
    field("dataOnly", Flag, Is("true")),
    field("ackInBody", Flag, Is("false")),
    field("customConfig", List, Is("[]")),
    field("serviceAccount", Text, Nothing),
    field("filter", Anything, Nothing),
];

/// The fields of each of a subscription's bindings.
pub(crate) const BINDING: &[Field] =
    &[field("eventType", Text, Nothing), field("eventTypeCode", Text, Nothing), field("specVersion", Text, Nothing)];

const SCHEDULE: &[Field] = &[
    field("name", Text, Refused),
    field("cron", Text, Refused),
    field("timezone", Text, Is("\"UTC\"")),
    field("missed", Word(&["once", "all", "skip"]), Is("\"once\"")),
    field("paused", Flag, AsItIs),
    field("event", Fields, Refused),
];

/// The fields of a schedule's event.
pub(crate) const EVENT: &[Field] = &[
    field("type", Text, Refused),
    field("payload", Anything, Nothing),
    field("payload_base64", Text, Nothing),
    field("content_type", Text, Nothing),
    field("title", Text, Nothing),
    field("description", Text, Nothing),
    field("tags", Anything, Nothing),
    field("queue", Text, Is("\"default\"")),
    field("client", Text, Nothing),
    field("source", Text, Nothing),
    field("subject", Text, Nothing),
    field("external_id", Text, Nothing),
    field("correlation_id", Text, Nothing),
    field("causation_id", Text, Nothing),
    field("attributes", Fields, Nothing),
    field("priority", Number, Nothing),
    field("delay_seconds", Number, Nothing),
    field("message_group", Text, Nothing),
    field("rank", Number, Nothing),
    field("keep_place", Flag, Nothing),
    field("deduplication_id", Text, Nothing),
    field("deduplication_mode", Word(&["keep_first", "replace_waiting"]), Nothing),
    field("deduplication_seconds", Number, Nothing),
    field("expires_after_seconds", Number, Nothing),
    field("expires_at", Text, Nothing),
    field("max_retries", Number, Nothing),
    field("retries_of_queue", Flag, Nothing),
    field("exhausted_as", Word(&["FAILED", "COMPLETED_WITH_ERRORS"]), Is("\"FAILED\"")),
    field("retry", Fields, Nothing),
];

impl Kind {
    /// All kinds, in the order in which things need each other.
    pub(crate) const ALL: [Self; 7] =
        [Self::Client, Self::Queue, Self::Pool, Self::EventType, Self::Schema, Self::Subscription, Self::Schedule];

    /// The word in documents.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Client => "Client",
            Self::Queue => "Queue",
            Self::Pool => "Pool",
            Self::EventType => "EventType",
            Self::Schema => "Schema",
            Self::Subscription => "Subscription",
            Self::Schedule => "Schedule",
        }
    }

    /// The kind with this word; on the command line case does not matter, and a plural will do.
    pub(crate) fn named(word: &str) -> Option<Self> {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
        let word = plain(word);
        let fits = |kind: &Self| {
            let own = plain(kind.word());
            word == own || word == format!("{own}s")
        };
        Self::ALL.into_iter().find(fits)
    }

    pub(crate) const fn fields(self) -> &'static [Field] {
        match self {
            Self::Client => CLIENT,
            Self::Queue => QUEUE,
            Self::Pool => POOL,
            Self::EventType => EVENT_TYPE,
            Self::Schema => SCHEMA,
            Self::Subscription => SUBSCRIPTION,
            Self::Schedule => SCHEDULE,
        }
    }

    /// The field by which one is told from others of its kind and client.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Queue | Self::Schema | Self::Schedule => "name",
            Self::Client | Self::Pool | Self::EventType | Self::Subscription => "code",
        }
    }

    /// Where the API has them; `None` for those that it addresses by their names.
    pub(crate) const fn path(self) -> Option<&'static str> {
        match self {
            Self::Client => Some("/api/clients"),
            Self::Pool => Some("/api/dispatch-pools"),
            Self::EventType => Some("/api/event-types"),
            Self::Schema => Some("/api/schemas"),
            Self::Subscription => Some("/api/subscriptions"),
            Self::Queue | Self::Schedule => None,
        }
    }
}

impl Field {
    /// What counts when the field is absent from a document of this code; `None` when it stays as it is.
    pub(crate) fn when_absent(&self, code: &str) -> Option<Value> {
        match self.absent {
            Absent::Refused | Absent::Nothing => Some(Value::Null),
            Absent::Is(text) => Some(serde_json::from_str(text).unwrap_or_default()),
            Absent::Code => Some(json!(code)),
            Absent::AsItIs => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a document or a stored thing is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) kind: Kind,
    /// The code of its client, if it has one.
    pub(crate) client: Option<String>,
    pub(crate) code: String,
}

impl Name {
    /// Its code, after that of its client.
    pub(crate) fn within(&self) -> String {
        match &self.client {
            Some(client) => format!("{client}/{}", self.code),
            None => self.code.clone(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.within())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a request's body in the API's document.
    fn of_document(body: &str) -> Vec<String> {
        let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
        let fields = document["components"]["schemas"][body]["properties"].as_object().unwrap();
        fields.keys().cloned().collect()
    }

    /// Every field that the API takes can be said in a document: a new one has to be declared here.
    #[test]
    fn documents_say_all_that_the_api_takes() {
        let ids = [
            ("clientId", "client"),
            ("dispatchPoolId", "dispatchPool"),
            ("eventTypeId", "eventType"),
            ("serviceAccountId", "serviceAccount"),
        ];
        let bodies = [
            ("NewClient", Kind::Client.fields()),
            ("QueueBody", Kind::Queue.fields()),
            ("PoolText", Kind::Pool.fields()),
            ("NewEventType", Kind::EventType.fields()),
            ("SpecVersionBody", VERSION),
            ("SubscriptionText", Kind::Subscription.fields()),
            ("Binding", BINDING),
            ("ScheduleText", Kind::Schedule.fields()),
            ("ScheduledEvent", EVENT),
        ];
        for (body, fields) in bodies {
            for name in of_document(body) {
                let name = ids.iter().find(|(id, _)| *id == name).map_or(name.as_str(), |(_, code)| code);
                assert!(fields.iter().any(|field| field.name == name), "{name} of {body}");
            }
        }
    }

    #[test]
    fn defaults_are_json() {
        for kind in Kind::ALL {
            for field in kind.fields().iter().chain(VERSION).chain(BINDING).chain(EVENT) {
                if let Absent::Is(text) = field.absent {
                    assert!(serde_json::from_str::<Value>(text).is_ok(), "{}", field.name);
                }
            }
            assert_eq!(Kind::named(kind.word()), Some(kind));
        }
        assert_eq!(Kind::named("event-types"), Some(Kind::EventType));
        assert_eq!(Kind::named("Job"), None);
    }
}
