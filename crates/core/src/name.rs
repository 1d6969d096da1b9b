//! Names and keys that users choose, checked once where they enter.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Tsid;

/// The longest name, in bytes, of a queue, an event type, a group, a key or a worker.
pub const MAX_NAME: usize = 255;
/// The longest group of an entry or a job that is made for a fact, in bytes: a subscription puts its code before the
/// event's own group.
pub const MAX_GROUP: usize = 511;

/// The identity of a queue: a name of letters, digits and `. _ - : /`, at most 255 bytes, and its client.
///
/// A queue is (client, name): the queues `mail` of two clients are two queues, and neither is the queue `mail` that
/// belongs to no client. As text a client's queue is `name@CLIENT`; no name has an `@`, so the text is unambiguous.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "StoredName", into = "StoredName")]
pub struct QueueName {
    client: Option<Tsid>,
    name: Box<str>,
}

impl QueueName {
    /// The queue that every deployment has.
    pub const DEFAULT: &'static str = "default";

    /// A queue that belongs to no client.
    ///
    /// # Errors
    /// When the name is empty, too long, or has a character outside the allowed ones.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(allowed) {
            return Err(InvalidName {
                what: "queue name",
                rule: "1 to 255 of letters, digits and . _ - : /",
                given: clip(&name),
            });
        }
        Ok(Self { client: None, name: name.into() })
    }

    /// A client's queue; without a client the same as [`QueueName::new`].
    ///
    /// # Errors
    /// As for [`QueueName::new`], and when the client's id is 0, which stands for no client in indexes.
    pub fn of(client: impl Into<Option<Tsid>>, name: impl Into<String>) -> Result<Self, InvalidName> {
        let client = client.into();
        if let Some(client) = client.filter(|client| client.to_i64() == 0) {
            return Err(InvalidName { what: "client", rule: "an id other than zero", given: client.to_string() });
        }
        Ok(Self { client, ..Self::new(name)? })
    }

    /// The client that the queue belongs to; `None` when it belongs to no client.
    #[must_use]
    pub const fn client(&self) -> Option<Tsid> {
        self.client
    }

    /// The name within its client. Only together with [`QueueName::client`] does it identify a queue.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Default for QueueName {
    fn default() -> Self {
        Self { client: None, name: Self::DEFAULT.into() }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.client.map_or(Ok(()), |client| write!(f, "@{client}"))
    }
}

impl TryFrom<String> for QueueName {
    type Error = InvalidName;
    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl TryFrom<&str> for QueueName {
    type Error = InvalidName;
    fn try_from(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

/// A queue in stored JSON: `name`, or `name@CLIENT`. What callers send is parsed by [`QueueName::new`] instead, which
/// refuses an `@`, so that a name never reaches another client's queue.
#[derive(Serialize, Deserialize)]
struct StoredName(String);

impl From<QueueName> for StoredName {
    fn from(name: QueueName) -> Self {
        Self(name.to_string())
    }
}

impl TryFrom<StoredName> for QueueName {
    type Error = InvalidName;
    fn try_from(StoredName(text): StoredName) -> Result<Self, InvalidName> {
        let Some((name, client)) = text.split_once('@') else { return Self::new(text) };
        let bad = |_| InvalidName { what: "queue", rule: "a name, or name@CLIENT", given: clip(&text) };
        Self::of(client.parse::<Tsid>().map_err(bad)?, name)
    }
}

/// Checks free text that is stored as a key: not empty, at most 255 bytes, no control characters.
///
/// # Errors
/// When the text breaks one of these rules; `what` names it in the message.
pub fn check_text(what: &'static str, text: &str) -> Result<(), InvalidName> {
    if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
        return Err(InvalidName { what, rule: "1 to 255 bytes without control characters", given: clip(text) });
    }
    Ok(())
}

/// Checks the group of an entry or a job that is made for a fact: as [`check_text`], with at most [`MAX_GROUP`] bytes.
///
/// # Errors
/// When the text breaks one of these rules.
pub fn check_group(text: &str) -> Result<(), InvalidName> {
    if text.is_empty() || text.len() > MAX_GROUP || text.chars().any(char::is_control) {
        let (what, rule) = ("message group", "1 to 511 bytes without control characters");
        return Err(InvalidName { what, rule, given: clip(text) });
    }
    Ok(())
}

/// The first 60 characters, for error messages.
fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

/// A name that breaks its rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a valid {what}: it must be {rule}")]
pub struct InvalidName {
    /// What the name is for.
    pub what: &'static str,
    /// What would be accepted.
    pub rule: &'static str,
    /// The first 60 characters of what was given.
    pub given: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names() {
        for good in ["default", "a", "billing.eu-1/retry:x_y", &"q".repeat(255)] {
            assert!(QueueName::new(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "a b", "ü", "a\0", "a\n", "a'b", &"q".repeat(256)] {
            assert!(QueueName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_two_queues_read_alike() {
        let client = Tsid::from_i64(7);
        let (own, unscoped) = (QueueName::of(client, "mail").unwrap(), QueueName::new("mail").unwrap());
        assert_ne!(own, unscoped);
        assert_eq!((own.client(), own.name()), (Some(client), "mail"));
        assert_eq!((own.to_string(), unscoped.to_string()), ("mail@0000000000007".into(), "mail".into()));
        for queue in [own, unscoped, QueueName::new("0000000000007/mail").unwrap()] {
            let text = serde_json::to_string(&queue).unwrap();
            assert_eq!(serde_json::from_str::<QueueName>(&text).unwrap(), queue, "{text}");
        }
        assert!(QueueName::new("mail@0000000000007").is_err(), "a name does not choose a client");
        assert!(serde_json::from_str::<QueueName>("\"mail@nobody\"").is_err());
    }

    #[test]
    fn free_text() {
        for good in ["order.créé", "x", &"x".repeat(255)] {
            assert!(check_text("event type", good).is_ok(), "{good}");
        }
        for bad in ["", "\0", "a\tb", &"x".repeat(256)] {
            let error = check_text("event type", bad).unwrap_err();
            assert!(error.to_string().contains("event type"), "{error}");
        }
    }

    #[test]
    fn groups_of_what_is_made_for_a_fact_are_longer() {
        for good in ["g", &"x".repeat(511)] {
            assert!(check_group(good).is_ok(), "{good}");
        }
        for bad in ["", "a\tb", &"x".repeat(512)] {
            assert!(check_group(bad).unwrap_err().to_string().contains("message group"), "{bad:?}");
        }
    }

    #[test]
    fn text_becomes_a_queue_of_no_client_or_nothing() {
        for name in ["mail", "default"] {
            let expected = QueueName::new(name);
            assert_eq!(QueueName::try_from(name), expected);
            assert_eq!(QueueName::try_from(name.to_owned()), expected);
        }
        assert!(QueueName::try_from("a b").is_err() && QueueName::try_from("a b".to_owned()).is_err());
        assert_eq!(QueueName::of(Tsid::from_i64(0), "mail").unwrap_err().what, "client");
    }

    #[test]
    fn messages_show_the_start_of_what_was_given() {
        let given = "é".repeat(200);
        let start = "é".repeat(60);
        assert_eq!(QueueName::new(given.as_str()).unwrap_err().given, start);
        assert_eq!(check_text("event type", &given).unwrap_err().given, start);
    }
}
