//! Facets: what a simple type demands beyond how its values are written.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::simple::{Reading, Wrong};
use crate::xsd::regex::Pattern;
use crate::xsd::value::Value;

/// The facets of a simple type, inherited ones included.
#[derive(Debug, Clone, Default)]
pub(in crate::xsd) struct Facets {
    pub(in crate::xsd) length: Option<usize>,
    pub(in crate::xsd) min_length: Option<usize>,
    pub(in crate::xsd) max_length: Option<usize>,
    /// One of each list must match.
    pub(in crate::xsd) patterns: Vec<Arc<[Arc<Pattern>]>>,
    /// The keys of the values that are listed.
    pub(in crate::xsd) enumeration: Option<Arc<HashSet<Box<str>>>>,
    pub(in crate::xsd) min: Option<Limit>,
    pub(in crate::xsd) max: Option<Limit>,
    pub(in crate::xsd) total_digits: Option<usize>,
    pub(in crate::xsd) fraction_digits: Option<usize>,
    /// The names of those that derived types cannot change.
    pub(in crate::xsd) fixed: Vec<&'static str>,
}

/// A bound on values.
#[derive(Debug, Clone)]
pub(in crate::xsd) struct Limit {
    pub(in crate::xsd) text: Arc<str>,
    pub(in crate::xsd) value: Arc<Value<'static>>,
    pub(in crate::xsd) is_inclusive: bool,
}

impl Facets {
    /// Whether there is none.
    pub(in crate::xsd) fn is_empty(&self) -> bool {
        self.has_no_sizes()
            && self.patterns.is_empty()
            && self.enumeration.is_none()
            && self.min.is_none()
            && self.max.is_none()
            && self.total_digits.is_none()
            && self.fraction_digits.is_none()
    }

    fn has_no_sizes(&self) -> bool {
        self.length.is_none() && self.min_length.is_none() && self.max_length.is_none()
    }

    /// Checks a text against the patterns.
    pub(super) fn check_patterns<'m>(&'m self, text: &str, reading: &mut Reading<'_>) -> Result<(), Wrong<'m>> {
        for alternatives in &self.patterns {
            let mut matches = false;
            for pattern in alternatives.iter() {
                if !reading.spend(text.len() + 1) {
                    return Err(Wrong::Work);
                }
                if pattern.matches(text) {
                    matches = true;
                    break;
                }
            }
            if !matches {
                return Err(Wrong::Pattern(alternatives));
            }
        }
        Ok(())
    }

    /// Checks a number of characters, bytes or items; it is only counted if it is asked for.
    pub(super) fn check_length<'m>(&'m self, count: impl FnOnce() -> usize) -> Result<(), Wrong<'m>> {
        if self.has_no_sizes() {
            return Ok(());
        }
        let length = count();
        if let Some(expected) = self.length.filter(|expected| *expected != length) {
            return Err(Wrong::Length("exactly", expected, length));
        }
        if let Some(expected) = self.min_length.filter(|expected| *expected > length) {
            return Err(Wrong::Length("at least", expected, length));
        }
        if let Some(expected) = self.max_length.filter(|expected| *expected < length) {
            return Err(Wrong::Length("at most", expected, length));
        }
        Ok(())
    }

    /// Checks a value against the bounds and the numbers of digits.
    pub(super) fn check_value<'m>(&'m self, value: &Value<'_>) -> Result<(), Wrong<'m>> {
        if let Some(min) = &self.min
            && !min.lets_in(value, Ordering::Greater)
        {
            return Err(Wrong::Bound(if min.is_inclusive { "at least" } else { "greater than" }, min));
        }
        if let Some(max) = &self.max
            && !max.lets_in(value, Ordering::Less)
        {
            return Err(Wrong::Bound(if max.is_inclusive { "at most" } else { "less than" }, max));
        }
        if let Value::Decimal(number) = value {
            if let Some(most) = self.total_digits.filter(|most| *most < number.total_digits()) {
                return Err(Wrong::Digits("digits", most));
            }
            if let Some(most) = self.fraction_digits.filter(|most| *most < number.fraction_digits()) {
                return Err(Wrong::Digits("digits after the point", most));
            }
        }
        Ok(())
    }

    /// About how many bytes of memory they occupy.
    pub(in crate::xsd) fn size(&self) -> usize {
        let values = self.enumeration.as_ref().map_or(0, |values| values.iter().map(|value| 48 + value.len()).sum());
        let patterns: usize = self.patterns.iter().flat_map(|one| one.iter()).map(|one| 600 + 8 * one.entries()).sum();
        size_of::<Self>() + values + patterns
    }
}

impl Limit {
    fn lets_in(&self, value: &Value<'_>, side: Ordering) -> bool {
        match value.compare(&self.value) {
            Some(Ordering::Equal) => self.is_inclusive,
            order => order == Some(side),
        }
    }
}
