//! The numeric keywords, judged by all digits: `minimum`, `maximum`, the exclusive ones and `multipleOf`.

use std::cmp::Ordering;
use std::sync::Arc;

use jsonschema::json::Node;
use jsonschema::{Keyword, Retrieve, ValidationError, ValidationOptions};
use serde_json::Value;

use super::meter::Meter;
use super::node::Metered;
use super::number::{Decimal, Number};
use super::tree::Cursor;

type Options<'i> = ValidationOptions<'i, Arc<dyn Retrieve>, Metered>;

/// A bound or a divisor.
struct Numeric {
    limit: String,
    integer: Option<i128>,
    /// The integer below the limit, if the limit is none.
    floor: Option<i128>,
    rule: Rule,
    /// What is expected, in words.
    expected: String,
}

#[derive(Clone, Copy)]
enum Rule {
    /// The number compares to the limit in one of these ways.
    Compares(&'static [Ordering], &'static str),
    MultipleOf,
}

const RULES: [(&str, Rule); 5] = [
    ("minimum", Rule::Compares(&[Ordering::Equal, Ordering::Greater], "at least")),
    ("maximum", Rule::Compares(&[Ordering::Equal, Ordering::Less], "at most")),
    ("exclusiveMinimum", Rule::Compares(&[Ordering::Greater], "more than")),
    ("exclusiveMaximum", Rule::Compares(&[Ordering::Less], "less than")),
    ("multipleOf", Rule::MultipleOf),
];

/// Options with these keywords instead of those of the crate.
pub(super) fn register(mut options: Options<'_>) -> Options<'_> {
    for (name, rule) in RULES {
        options = options.with_keyword(name, move |_, value, _| {
            let Value::Number(limit) = value else {
                return Err(ValidationError::custom("this has to be a number"));
            };
            let integer = limit.as_i64().map(i128::from).or_else(|| limit.as_u64().map(i128::from));
            let double =
                limit.as_f64().filter(|double| integer.is_none() && double.fract() != 0.0 && double.abs() < 1e18);
            // A double below 2^63 converts exactly, and no integer lies between it and its floor.
            let floor = double.map(|double| double.floor() as i128);
            let words = match rule {
                Rule::Compares(_, words) => words,
                Rule::MultipleOf => "a multiple of",
            };
            let expected = format!("{words} {limit}");
            Ok(Box::new(Numeric { limit: limit.to_string(), integer, floor, rule, expected }))
        });
    }
    options
}

impl Numeric {
    /// Whether a number is as the keyword demands. Pays the meter for what takes more steps than reading the number.
    fn holds(&self, number: Number<'_>, meter: &Meter) -> bool {
        let short = (number.text.len() <= 18).then(|| number.text.parse::<i64>().ok()).flatten().map(i128::from);
        match (self.rule, short, self.integer, self.floor) {
            (Rule::Compares(accepted, _), Some(number), Some(limit), _) => accepted.contains(&number.cmp(&limit)),
            (Rule::Compares(accepted, _), Some(number), _, Some(floor)) => {
                accepted.contains(if number <= floor { &Ordering::Less } else { &Ordering::Greater })
            }
            (Rule::MultipleOf, Some(number), Some(limit), _) if limit != 0 => number % limit == 0,
            (Rule::Compares(accepted, _), ..) => {
                meter.pay(4);
                accepted.contains(&Decimal::read(number.text).cmp(&Decimal::read(&self.limit)))
            }
            (Rule::MultipleOf, ..) => {
                let (number, limit) = (Decimal::read(number.text), Decimal::read(&self.limit));
                // Once the budget is spent nothing is judged any more.
                !meter.pay(4 + number.steps_of_multiple(&limit)) || number.is_multiple_of(&limit)
            }
        }
    }
}

impl<'i> Keyword<'i, Metered> for Numeric {
    fn validate(&self, instance: Cursor<'i>) -> Result<(), ValidationError<'i>> {
        if Keyword::<Metered>::is_valid(self, instance) {
            Ok(())
        } else {
            Err(ValidationError::custom(self.expected.as_str()))
        }
    }

    fn is_valid(&self, instance: Cursor<'i>) -> bool {
        instance.as_number().is_none_or(|number| self.holds(number, &instance.tree.meter))
    }
}
