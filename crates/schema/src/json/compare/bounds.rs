//! Bounds: of numbers, lengths, items and properties.

use std::cmp::Ordering;

use serde_json::Value;

use super::super::number::Decimal;
use super::{Walk, below};
use crate::compare::Verdict;

/// Which of two limits is the stricter one, and for values of which types it matters.
struct Bound {
    /// The keyword, and the one that excludes the limit itself.
    keywords: (&'static str, Option<&'static str>),
    lower: bool,
    types: &'static [&'static str],
}

const BOUNDS: [Bound; 8] = [
    Bound { keywords: ("minimum", Some("exclusiveMinimum")), lower: true, types: &["number", "integer"] },
    Bound { keywords: ("maximum", Some("exclusiveMaximum")), lower: false, types: &["number", "integer"] },
    Bound { keywords: ("minLength", None), lower: true, types: &["string"] },
    Bound { keywords: ("maxLength", None), lower: false, types: &["string"] },
    Bound { keywords: ("minItems", None), lower: true, types: &["array"] },
    Bound { keywords: ("maxItems", None), lower: false, types: &["array"] },
    Bound { keywords: ("minProperties", None), lower: true, types: &["object"] },
    Bound { keywords: ("maxProperties", None), lower: false, types: &["object"] },
];

/// A limit as a schema writes it.
struct Limit {
    text: String,
    exclusive: bool,
    keyword: &'static str,
}

impl Bound {
    /// The limit of a schema, the stricter one if it has two.
    fn of(&self, schema: &Value) -> Option<Limit> {
        let limit = |keyword: &'static str, exclusive| {
            let text = schema.get(keyword).filter(|value| value.is_number())?.to_string();
            Some(Limit { text, exclusive, keyword })
        };
        let inclusive = limit(self.keywords.0, false);
        let exclusive = self.keywords.1.and_then(|keyword| limit(keyword, true));
        match (inclusive, exclusive) {
            (Some(one), Some(other)) => Some(if self.is_stricter(&one, &other) { one } else { other }),
            (one, other) => one.or(other),
        }
    }

    /// Whether a limit excludes something that another one does not.
    fn is_stricter(&self, one: &Limit, other: &Limit) -> bool {
        let order = Decimal::read(&one.text).cmp(&Decimal::read(&other.text));
        match if self.lower { order } else { order.reverse() } {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => one.exclusive && !other.exclusive,
        }
    }

    /// Whether a limit excludes nothing.
    fn is_void(&self, limit: &Limit) -> bool {
        self.lower && self.keywords.1.is_none() && Decimal::read(&limit.text) <= Decimal::read("0")
    }
}

impl Walk<'_, '_> {
    /// Compares all bounds of two schemas.
    pub(super) fn bounds(&mut self, old: &Value, new: &Value, types: &[&str], path: &str) {
        for bound in BOUNDS {
            if !bound.types.iter().any(|one| types.contains(one)) {
                continue;
            }
            let (before, after) = (bound.of(old), bound.of(new));
            let (verdict, keyword, message) = match (before, after) {
                (None, Some(after)) if !bound.is_void(&after) => {
                    (Verdict::Breaking, after.keyword, format!("a bound is added: {}", after.text))
                }
                (Some(before), None) if !bound.is_void(&before) => {
                    (Verdict::Compatible, before.keyword, format!("the bound {} is removed", before.text))
                }
                (Some(before), Some(after)) if bound.is_stricter(&after, &before) => {
                    let message = format!("the bound is tightened from {} to {}", before.text, after.text);
                    (Verdict::Breaking, after.keyword, message)
                }
                (Some(before), Some(after)) if bound.is_stricter(&before, &after) => {
                    let message = format!("the bound is loosened from {} to {}", before.text, after.text);
                    (Verdict::Compatible, after.keyword, message)
                }
                _ => continue,
            };
            self.tell(verdict, below(path, keyword), message);
        }
        if types.contains(&"number") || types.contains(&"integer") {
            self.multiples(old.get("multipleOf"), new.get("multipleOf"), &below(path, "multipleOf"));
        }
        let unique = |schema: &Value| schema.get("uniqueItems") == Some(&Value::Bool(true));
        match (unique(old), unique(new)) {
            (false, true) if types.contains(&"array") => {
                self.tell(Verdict::Breaking, below(path, "uniqueItems"), "items have to differ now");
            }
            (true, false) => self.tell(Verdict::Compatible, below(path, "uniqueItems"), "items may be equal now"),
            _ => {}
        }
    }

    fn multiples(&mut self, old: Option<&Value>, new: Option<&Value>, path: &str) {
        let (verdict, message) = match (old.map(Value::to_string), new.map(Value::to_string)) {
            (None, None) => return,
            (Some(old), None) => (Verdict::Compatible, format!("numbers need not be multiples of {old} any more")),
            (None, Some(new)) => (Verdict::Breaking, format!("numbers have to be multiples of {new} now")),
            (Some(old), Some(new)) => {
                let (before, after) = (Decimal::read(&old), Decimal::read(&new));
                if before == after {
                    return;
                }
                let message = format!("numbers have to be multiples of {new} now, not of {old}");
                let verdict = if before.is_multiple_of(&after) { Verdict::Compatible } else { Verdict::Breaking };
                (verdict, message)
            }
        };
        self.tell(verdict, path, message);
    }
}
