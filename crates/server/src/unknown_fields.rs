//! Refuses unknown body fields and query parameters, so that a typo is never ignored silently. The error names the
//! unknown one and suggests the most similar known one.

use std::collections::HashMap;

use http::Method;

use crate::error::{ApiError, Result};
use crate::percent::decode;

/// The query parameters of each operation by route and method, from the OpenAPI document.
#[derive(Debug, Default)]
pub(crate) struct Parameters(pub(crate) HashMap<String, Vec<(Method, Vec<String>)>>);

impl Parameters {
    /// Refuses query parameters that the operation does not have. Routes without an entry accept any.
    pub(crate) fn check(&self, method: &Method, route: &str, query: &str) -> Result<()> {
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let operation = self.0.get(route).and_then(|all| all.iter().find(|(known, _)| known == method));
        let Some((_, known)) = operation else { return Ok(()) };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = decode(pair.split_once('=').map_or(pair, |(name, _)| name))?;
            if !known.iter().any(|known| stands_for(known, &name)) {
                return Err(refusal("parameter", &name, known));
            }
        }
        Ok(())
    }
}

/// Whether a parameter of the document is this one. In `context.{key}`, any text may stand for what is in braces.
fn stands_for(known: &str, name: &str) -> bool {
    match known.split_once('{') {
        Some((prefix, _)) => name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty()),
        None => known == name,
    }
}

/// The error for an unknown field, if that is what serde reported; otherwise `None`. It is read from serde's text,
/// which alone has the names: an extra pass over every body would cost each request.
pub(crate) fn field(error: &serde_json::Error) -> Option<ApiError> {
    let text = error.to_string();
    let rest = text.strip_prefix("unknown field `")?;
    let (name, known) = rest.rsplit_once("`, expected ").or_else(|| rest.rsplit_once("`, there are no fields"))?;
    let known: Vec<String> = known.split('`').skip(1).step_by(2).map(Into::into).collect();
    Some(refusal("field", name, &known))
}

fn refusal(what: &str, name: &str, known: &[String]) -> ApiError {
    let shown: String = name.chars().take(60).collect();
    let text = match nearest(name, known) {
        None => format!("{shown:?} is not a known {what}: none is accepted here"),
        Some(nearest) => {
            let all = known.join(", ");
            format!("{shown:?} is not a known {what}; did you mean {nearest:?}? Known: {all}")
        }
    };
    ApiError::invalid(text)
}

/// The most similar known name: first one that differs only in case and punctuation, then one that only has letters
/// added or left out, then the one with the smallest edit distance.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    let plain = |text: &str| -> Vec<char> {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(100).collect()
    };
    let sent = plain(name);
    known.iter().min_by_key(|known| {
        let known = plain(known);
        let shared = sent.iter().zip(&known).take_while(|(a, b)| a == b).count();
        let is_part = !sent.is_empty() && (is_within(&sent, &known) || is_within(&known, &sent));
        match is_part {
            true => (usize::from(sent != known), usize::MAX - shared, sent.len().abs_diff(known.len())),
            false => (2, distance(&sent, &known), usize::MAX - shared),
        }
    })
}

/// Whether `part` is a subsequence of `whole`.
fn is_within(part: &[char], whole: &[char]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|wanted| rest.any(|letter| letter == wanted))
}

/// The edit distance: letters to insert, remove or replace.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_what_was_probably_meant() {
        let known: Vec<String> = ["title", "tags", "max_retries", "delay_seconds", "deduplication_id", "retry", "type"]
            .map(Into::into)
            .to_vec();
        for (sent, meant) in [
            ("delay", "delay_seconds"),
            ("dedup_id", "deduplication_id"),
            ("maxRetries", "max_retries"),
            ("tag", "tags"),
            ("titel", "title"),
            ("event_type", "type"),
        ] {
            assert_eq!(nearest(sent, &known).unwrap(), meant);
        }
        assert_eq!(nearest("x", &[]), None);
    }
}
