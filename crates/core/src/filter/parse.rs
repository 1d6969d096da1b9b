//! Filters from JSON. All that is wrong is told, each with its place.

use std::collections::HashSet;

use serde_json::value::RawValue;

use super::attribute::{Attribute, MAX_TEXT, too_long};
use super::condition::{Condition, Limit, OneOf, Operand, Side, time};
use super::document::{Document, Json, Node};
use super::invalid::InvalidFilter;
use super::{Expression, MAX_DEPTH, MAX_EXPRESSIONS, MAX_SIZE, MAX_VALUES};

const DIALECTS: &str = "exact, prefix, suffix, all, any, not, exists, in, gt, gte, lt, lte";

pub(super) fn parse(json: &RawValue) -> Result<Box<[Expression]>, InvalidFilter> {
    let mut parser = Parser { place: Vec::new(), invalid: InvalidFilter::default(), expressions: 0 };
    match parser.filter(json) {
        Some(expressions) if parser.invalid.problems().is_empty() => Ok(expressions),
        _ => Err(parser.invalid),
    }
}

struct Parser {
    /// The tokens of the pointer to what is being read.
    place: Vec<String>,
    invalid: InvalidFilter,
    expressions: usize,
}

/// Readers return `None` after they told a problem.
impl Parser {
    fn problem<T>(&mut self, reason: impl Into<String>) -> Option<T> {
        self.invalid.add(&self.place, reason.into());
        None
    }

    /// Reads something one level further down.
    fn at<T>(&mut self, token: &str, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let shown = clip(token);
        self.place.push(shown);
        let read = read(self);
        self.place.pop();
        read
    }

    fn filter(&mut self, json: &RawValue) -> Option<Box<[Expression]>> {
        let size = json.get().len();
        if size > MAX_SIZE {
            return self.problem(format!("has {size} bytes: it may have {MAX_SIZE}"));
        }
        let document = Document::index(json)?;
        let whole = document.whole();
        if document.value(whole) != Json::Array {
            return self.problem("must be a list of expressions, such as [{\"exact\": {\"type\": \"order.created\"}}]");
        }
        let expressions = self.list(&document, whole, 1);
        if self.expressions > MAX_EXPRESSIONS {
            let found = self.expressions;
            return self.problem(format!(
                "has {found} expressions: it may have {MAX_EXPRESSIONS}, and each attribute of exact, in and the like counts"
            ));
        }
        expressions
    }

    fn list(&mut self, document: &Document<'_>, node: Node, depth: usize) -> Option<Box<[Expression]>> {
        let items = document.items(node).iter().enumerate();
        let read: Vec<_> =
            items.map(|(at, item)| self.at(&at.to_string(), |this| this.expression(document, *item, depth))).collect();
        read.into_iter().collect()
    }

    fn expression(&mut self, document: &Document<'_>, node: Node, depth: usize) -> Option<Expression> {
        if document.value(node) != Json::Object {
            return self.problem(format!("must be an object with one of {DIALECTS}"));
        }
        if depth > MAX_DEPTH {
            return self.problem(format!("is nested too deep: expressions may be within {} others", MAX_DEPTH - 1));
        }
        let mut members = document.members(node);
        let (Some((dialect, value)), None) = (members.next(), members.next()) else {
            let found: Vec<_> = document.members(node).take(4).filter_map(|(name, _)| name).map(clip).collect();
            return if found.is_empty() {
                self.problem(format!("must have one of {DIALECTS}"))
            } else {
                let found = found.join(", ");
                self.problem(format!("must have one dialect, not several ({found}): write one object for each"))
            };
        };
        let dialect = dialect.unwrap_or_default();
        self.at(dialect, |this| this.dialect(document, dialect, value, depth))
    }

    fn dialect(&mut self, document: &Document<'_>, dialect: &str, node: Node, depth: usize) -> Option<Expression> {
        match dialect {
            "all" | "any" => {
                self.expressions += 1;
                if document.items(node).is_empty() {
                    return self.problem("must be an array with at least one expression");
                }
                let nested = self.list(document, node, depth + 1)?;
                Some(if dialect == "all" { Expression::All(nested) } else { Expression::Any(nested) })
            }
            "not" => {
                self.expressions += 1;
                Some(Expression::Not(Box::new(self.expression(document, node, depth + 1)?)))
            }
            "exists" => self.exists(document, node),
            "exact" | "in" | "prefix" | "suffix" | "gt" | "gte" | "lt" | "lte" => self.tests(document, dialect, node),
            _ => self.problem(format!("is no dialect: use one of {DIALECTS}")),
        }
    }

    /// Reads an object of attributes, each with what its value has to be.
    fn tests(&mut self, document: &Document<'_>, dialect: &str, node: Node) -> Option<Expression> {
        let members: Vec<_> = document.members(node).collect();
        self.expressions += members.len();
        if members.is_empty() {
            return self.problem("must be an object with at least one attribute, such as {\"type\": …}");
        }
        let mut names = HashSet::new();
        let read = |(name, value): (Option<&str>, Node)| {
            let name = name.unwrap_or_default();
            let repeated = !names.insert(name.to_owned());
            self.at(name, |this| {
                if repeated {
                    return this.problem("is given twice: write one object for each");
                }
                let (attribute, condition) = (this.attribute(name), this.condition(document, dialect, value));
                let (attribute, condition) = (attribute?, condition?);
                if dialect == "exact" && matches!(attribute, Attribute::Context(_)) && condition.is_empty_text() {
                    return this.problem("must not be empty: attributes never are; use exists");
                }
                Some((attribute, condition))
            })
        };
        let tests: Vec<_> = members.into_iter().map(read).collect();
        Some(Expression::Tests(tests.into_iter().collect::<Option<_>>()?))
    }

    fn condition(&mut self, document: &Document<'_>, dialect: &str, node: Node) -> Option<Condition> {
        let value = document.value(node);
        let side = match dialect {
            "exact" => return Some(Condition::OneOf(OneOf::new(vec![self.operand(value)?]))),
            "in" => return self.one_of(document, node),
            "prefix" => return Some(Condition::Prefix(self.affix(value)?)),
            "suffix" => return Some(Condition::Suffix(self.affix(value)?)),
            "gt" => Side::Above,
            "gte" => Side::AtLeast,
            "lt" => Side::Below,
            _ => Side::AtMost,
        };
        Some(Condition::Beyond(side, self.limit(value)?))
    }

    fn exists(&mut self, document: &Document<'_>, node: Node) -> Option<Expression> {
        let one = [node];
        let (names, is_list) = match document.value(node) {
            Json::Array => (document.items(node), true),
            _ => (&one[..], false),
        };
        self.expressions += names.len();
        if names.is_empty() {
            return self.problem("must have at least one name of an attribute");
        }
        let name = |this: &mut Self, node: Node| match document.value(node) {
            Json::Text(name) => Some((this.attribute(name)?, Condition::Exists)),
            _ => this.problem("must be the name of an attribute, or an array of names"),
        };
        let read = |(at, node): (usize, &Node)| match is_list {
            true => self.at(&at.to_string(), |this| name(this, *node)),
            false => name(self, *node),
        };
        let tests: Vec<_> = names.iter().enumerate().map(read).collect();
        Some(Expression::Tests(tests.into_iter().collect::<Option<_>>()?))
    }

    fn attribute(&mut self, name: &str) -> Option<Attribute> {
        match Attribute::parse(name) {
            Ok(attribute) => Some(attribute),
            Err(reason) => self.problem(reason),
        }
    }

    fn one_of(&mut self, document: &Document<'_>, node: Node) -> Option<Condition> {
        let items = document.items(node);
        if items.is_empty() || items.len() > MAX_VALUES {
            return self.problem(format!("must be an array of 1 to {MAX_VALUES} values"));
        }
        let read = |(at, item): (usize, &Node)| self.at(&at.to_string(), |this| this.operand(document.value(*item)));
        let operands: Vec<_> = items.iter().enumerate().map(read).collect();
        Some(Condition::OneOf(OneOf::new(operands.into_iter().collect::<Option<_>>()?)))
    }

    fn operand(&mut self, value: Json<'_>) -> Option<Operand<'static>> {
        match value {
            Json::Null => Some(Operand::Null),
            Json::Boolean(boolean) => Some(Operand::Boolean(boolean)),
            Json::Number(number) if number.is_moderate() => Some(Operand::Number(number.into_owned())),
            Json::Text(text) if text.len() <= MAX_TEXT => Some(Operand::Text(text.to_owned().into())),
            Json::Text(text) => self.problem(too_long("value", text)),
            Json::Number(_) => self.problem("is a number beyond all measure"),
            Json::Unreadable | Json::Array | Json::Object => {
                self.problem("must be a string, a number, true, false or null")
            }
        }
    }

    fn affix(&mut self, value: Json<'_>) -> Option<Box<str>> {
        match value {
            Json::Text("") => self.problem("must not be empty: every string has that; use exists"),
            Json::Text(text) if text.len() <= MAX_TEXT => Some(text.into()),
            Json::Text(text) => self.problem(too_long("value", text)),
            _ => self.problem("must be a string"),
        }
    }

    fn limit(&mut self, value: Json<'_>) -> Option<Limit> {
        let limit = match &value {
            Json::Number(number) if number.is_moderate() => Some(Limit::Number(number.clone().into_owned())),
            Json::Text(text) => time(text).map(Limit::Time),
            _ => None,
        };
        match limit {
            Some(limit) => Some(limit),
            None => self.problem("must be a number, or an RFC 3339 time such as \"2030-01-31T10:30:00Z\""),
        }
    }
}

/// The first 60 characters, as what was sent may be long.
fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}
