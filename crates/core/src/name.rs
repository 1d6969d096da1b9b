//! Names that users choose, checked once at the edge.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes, of a queue, an event type, a group, a key or a worker.
pub const MAX_NAME: usize = 255;

/// The name of a queue: letters, digits and `. _ - : /`, at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueName(Box<str>);

impl QueueName {
    /// The queue that every deployment has.
    pub const DEFAULT: &'static str = "default";

    /// Checks a name.
    ///
    /// # Errors
    /// When it is empty, too long, or has a character outside the allowed ones.
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
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for QueueName {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

impl From<QueueName> for String {
    fn from(name: QueueName) -> Self {
        name.0.into()
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

/// The start of a text, short enough for a message.
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
    /// The start of what was given.
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
    fn free_text() {
        assert!(check_text("event type", "order.créé").is_ok());
        for bad in ["", "\0", "a\tb", &"x".repeat(256)] {
            let error = check_text("event type", bad).unwrap_err();
            assert!(error.to_string().contains("event type"), "{error}");
        }
    }
}
