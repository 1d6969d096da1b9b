//! What a request names and nobody knows: fields of bodies, parameters of queries. The refusal says which, and which known
//! one is nearest, so that a slip of the pen never does nothing.

use std::collections::HashMap;

use http::Method;

use crate::error::{ApiError, Result};
use crate::extract::decode;

/// The parameters that each operation takes in its query, by route and method, as the OpenAPI document has them.
#[derive(Debug, Default)]
pub(crate) struct Parameters(pub(crate) HashMap<String, Vec<(Method, Vec<String>)>>);

impl Parameters {
    /// Refuses a parameter that the operation does not take.
    pub(crate) fn check(&self, method: &Method, route: &str, query: &str) -> Result<()> {
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let operation = self.0.get(route).and_then(|all| all.iter().find(|(known, _)| known == method));
        let Some((_, known)) = operation else { return Ok(()) };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = decode(pair.split_once('=').map_or(pair, |(name, _)| name))?;
            if !known.contains(&name) {
                return Err(refusal("parameter", &name, known));
            }
        }
        Ok(())
    }
}

/// The refusal of a field, if that is what the parser stumbled over. Reads its text: the names are nowhere else, and
/// another pass over every body would cost each request.
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
        None => format!("{shown:?} is not a known {what}: there is none here"),
        Some(nearest) => {
            let all = known.join(", ");
            format!("{shown:?} is not a known {what}; did you mean {nearest:?}? Known are {all}")
        }
    };
    ApiError::invalid(text)
}

/// The known name that is most like this one: the same but for case and signs, then one that only has more or fewer
/// letters, then the one with the fewest letters to change.
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

/// Whether the letters of one stand in the other in their order.
fn is_within(part: &[char], whole: &[char]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|wanted| rest.any(|letter| letter == wanted))
}

/// Letters to insert, remove or replace.
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
