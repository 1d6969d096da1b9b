//! Filters of subscriptions: which events of the types that a subscription asks for it really gets. The dialects are those
//! of the CloudEvents Subscriptions API, and `exists`, `in`, `gt`, `gte`, `lt`, `lte` of ours. Knows nothing of
//! subscriptions and of where they and their events are stored.
//!
//! An expression is an object with one dialect. All of a filter's expressions must hold.
//!
//! | expression | holds when |
//! |---|---|
//! | `{"exact": {"type": "order.created"}}` | the attribute is equal to this; so for each, when there are several |
//! | `{"prefix": {"source": "/shop/"}}`, `suffix` | it is a text that begins or ends so |
//! | `{"in": {"context.region": ["eu", "us"]}}` | it is equal to one of these |
//! | `{"gt": {"data/order/total": 100}}`, `gte`, `lt`, `lte` | it is more, at least, less, at most this: a number, or an RFC 3339 time |
//! | `{"exists": ["subject", "data/order"]}` | all these are there; one name needs no array |
//! | `{"all": […]}`, `{"any": […]}`, `{"not": {…}}` | all, one, none of the nested expressions hold |
//!
//! Attributes are the context attributes and extensions of CloudEvents by their names, `context.KEY` for the values that
//! context data have for a key (of several, one that passes is enough), and `data/POINTER` for a value in JSON data, by
//! the rest of a JSON pointer. Nothing holds of what is not there, and `not` of that does. Data that are no JSON have no
//! values.
//!
//! In data, a text is equal to texts only, a number to numbers of the same value (`1e2` is `100`, and no digit is
//! lost), and `true`, `false` and `null` to themselves. Attributes and context data are texts whatever they mean, so there
//! a number is also equal to a text that reads as that number.

mod attribute;
mod condition;
mod document;
mod facts;
mod invalid;
mod number;
mod parse;
#[cfg(test)]
mod tests;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use attribute::MAX_TEXT;
pub use facts::{Candidate, Facts};
pub use invalid::{InvalidFilter, Problem};

use attribute::Attribute;
use condition::Condition;

/// The most expressions of a filter. Those within `all`, `any` and `not` count, and each attribute counts as one.
pub const MAX_EXPRESSIONS: usize = 64;
/// How many expressions may be within one another.
pub const MAX_DEPTH: usize = 8;
/// The most values of an `in`.
pub const MAX_VALUES: usize = 256;
/// The longest filter, in bytes of JSON.
pub const MAX_SIZE: usize = 64 << 10;

/// A list of expressions that must all hold of an event. Without any, all events pass.
///
/// ```
/// use tidegate_core::cloud_event::CloudEvent;
/// use tidegate_core::filter::{Candidate, Filter};
/// let filter: Filter = serde_json::from_str(r#"[{"prefix": {"source": "/shop/"}}, {"gte": {"data/total": 100}}]"#).unwrap();
/// let event = |total: &str| {
///     let json = r#"{"specversion": "1.0", "id": "1", "type": "t", "source": "/shop/eu", "data": {"total": TOTAL}}"#;
///     CloudEvent::from_structured(&json.replace("TOTAL", total).into()).unwrap()
/// };
/// assert!(filter.accepts(&Candidate::new(&event("1e2"))));
/// assert!(!filter.accepts(&Candidate::new(&event("99.99"))));
/// assert!(!filter.accepts(&Candidate::new(&event("\"100\""))), "a text is no number");
/// ```
#[derive(Debug, Clone)]
pub struct Filter {
    /// As it was given.
    json: Box<RawValue>,
    expressions: Box<[Expression]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    All(Box<[Expression]>),
    Any(Box<[Expression]>),
    Not(Box<Expression>),
    /// All must pass.
    Tests(Box<[(Attribute, Condition)]>),
}

impl Filter {
    /// Reads a filter from JSON.
    ///
    /// # Errors
    /// Names every place that is wrong and says what to change.
    pub fn parse(json: Box<RawValue>) -> Result<Self, InvalidFilter> {
        Ok(Self { expressions: parse::parse(&json)?, json })
    }

    /// Whether an event passes.
    #[must_use]
    pub fn accepts(&self, event: &Candidate<'_>) -> bool {
        self.expressions.iter().all(|expression| expression.holds(event))
    }

    /// The filter as it was given, JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        self.json.get()
    }
}

impl Expression {
    fn holds(&self, event: &Candidate<'_>) -> bool {
        match self {
            Self::All(nested) => nested.iter().all(|expression| expression.holds(event)),
            Self::Any(nested) => nested.iter().any(|expression| expression.holds(event)),
            Self::Not(nested) => !nested.holds(event),
            Self::Tests(tests) => {
                tests.iter().all(|(attribute, condition)| event.has(attribute, |value| condition.accepts(value)))
            }
        }
    }
}

/// Filters are equal when they were given as the same text.
impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json()
    }
}

impl Eq for Filter {}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

/// From a deserialiser of `serde_json`; others have no raw values.
impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(Box::deserialize(deserializer)?).map_err(Error::custom)
    }
}
