//! What a filter says about one attribute.

use std::borrow::Cow;
use std::cmp::Ordering;

use jiff::Timestamp;

use super::attribute::MAX_TEXT;
use super::document::Json;
use super::number::Number;

/// The longest text that is read as a time, in bytes.
const MAX_TIME: usize = 64;

/// A value that others are equal to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operand<'v> {
    Null,
    Boolean(bool),
    Number(Number<'v>),
    Text(Cow<'v, str>),
}

/// A value that others are above or below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Limit {
    Number(Number<'static>),
    Time(Timestamp),
}

/// Where values that pass are seen from a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// What a value has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// Anything that is there.
    Exists,
    OneOf(OneOf),
    Prefix(Box<str>),
    Suffix(Box<str>),
    Beyond(Side, Limit),
}

/// Operands in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OneOf(Box<[Operand<'static>]>);

/// A value of an event.
#[derive(Debug, Clone)]
pub(super) enum Value<'v> {
    /// Of an attribute or a pair, which come as text whatever they mean: `5` is the number, and `true` the boolean, too.
    Plain(&'v str),
    /// In data, where each value is of one kind.
    Json(Json<'v>),
}

impl<'v> Value<'v> {
    fn text(&self) -> Option<&'v str> {
        match self {
            Self::Plain(text) | Self::Json(Json::Text(text)) => Some(text),
            Self::Json(_) => None,
        }
    }

    fn number(&self) -> Option<Cow<'_, Number<'v>>> {
        match self {
            Self::Plain(text) if text.len() <= MAX_TEXT => Number::parse(text).map(Cow::Owned),
            Self::Json(Json::Number(number)) => Some(Cow::Borrowed(number)),
            _ => None,
        }
    }

    fn boolean(&self) -> Option<bool> {
        match self {
            Self::Plain("true") => Some(true),
            Self::Plain("false") => Some(false),
            Self::Json(Json::Boolean(boolean)) => Some(*boolean),
            _ => None,
        }
    }

    fn time(&self) -> Option<Timestamp> {
        time(self.text()?)
    }
}

/// Reads an RFC 3339 time.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    if text.len() <= MAX_TIME { text.parse().ok() } else { None }
}

impl OneOf {
    pub(super) fn new(mut operands: Vec<Operand<'static>>) -> Self {
        operands.sort_unstable();
        Self(operands.into())
    }

    fn has(&self, operand: &Operand<'_>) -> bool {
        self.0.binary_search_by(|other| other.cmp(operand)).is_ok()
    }

    fn has_numbers(&self) -> bool {
        self.0.iter().any(|operand| matches!(operand, Operand::Number(_)))
    }

    fn accepts(&self, value: &Value<'_>) -> bool {
        let is_null = matches!(value, Value::Json(Json::Null));
        value.text().is_some_and(|text| self.has(&Operand::Text(Cow::Borrowed(text))))
            || self.has_numbers()
                && value.number().is_some_and(|number| self.has(&Operand::Number(number.into_owned())))
            || value.boolean().is_some_and(|boolean| self.has(&Operand::Boolean(boolean)))
            || is_null && self.has(&Operand::Null)
    }
}

impl Limit {
    fn order(&self, value: &Value<'_>) -> Option<Ordering> {
        match self {
            Self::Number(limit) => value.number().map(|number| number.as_ref().cmp(limit)),
            Self::Time(limit) => value.time().map(|time| time.cmp(limit)),
        }
    }
}

impl Side {
    fn has(self, order: Ordering) -> bool {
        match self {
            Self::Above => order.is_gt(),
            Self::AtLeast => order.is_ge(),
            Self::Below => order.is_lt(),
            Self::AtMost => order.is_le(),
        }
    }
}

impl Condition {
    /// Whether only the empty text passes.
    pub(super) fn is_empty_text(&self) -> bool {
        matches!(self, Self::OneOf(OneOf(operands)) if matches!(&**operands, [Operand::Text(text)] if text.is_empty()))
    }

    /// Whether a value is as it has to be. What cannot be compared, such as a boolean with a limit, is not.
    pub(super) fn accepts(&self, value: &Value<'_>) -> bool {
        match self {
            Self::Exists => true,
            Self::OneOf(operands) => operands.accepts(value),
            Self::Prefix(start) => value.text().is_some_and(|text| text.starts_with(&**start)),
            Self::Suffix(end) => value.text().is_some_and(|text| text.ends_with(&**end)),
            Self::Beyond(side, limit) => limit.order(value).is_some_and(|order| side.has(order)),
        }
    }
}
