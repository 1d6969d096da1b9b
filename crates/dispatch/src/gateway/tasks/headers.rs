//! Headers that the sender of a task adds to its webhook: which are refused, and which values are not shown.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};

use crate::gateway::error::{GatewayError, Result};

/// The most headers, the longest value, and the most bytes of all names and values.
const MAX_HEADERS: (usize, usize, usize) = (64, 4_096, 16 << 10);
/// What belongs to the connection, or is written by whoever sends the webhook.
const RESERVED: [&str; 14] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "authorization",
];
/// What the names of reserved headers begin with.
const RESERVED_PREFIXES: [&str; 2] = ["webhook-", "ce-"];
/// What the names of headers have in them whose values look like credentials.
const SECRET_PARTS: [&str; 7] = ["auth", "cookie", "key", "pass", "secret", "signature", "token"];
/// Stands for a value that is not shown.
const HIDDEN: &str = "***";

/// Checks headers, and writes their names in lower case.
pub(super) fn checked(headers: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let (most, longest, together) = MAX_HEADERS;
    if headers.len() > most {
        return Err(GatewayError::Invalid(format!("headers must have at most {most} items")));
    }
    let mut plain = BTreeMap::new();
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        let refused = |why: &str| GatewayError::Invalid(format!("headers: {name:.60} {why}"));
        if HeaderName::try_from(&lower).is_err() {
            return Err(refused("is not the name of a header"));
        }
        if lower == "authorization" {
            return Err(refused("is not taken here: name a serviceAccountId"));
        }
        if lower == "content-type" {
            return Err(refused("is not taken here: say payloadContentType"));
        }
        let is_reserved = RESERVED.contains(&&*lower) || RESERVED_PREFIXES.iter().any(|part| lower.starts_with(part));
        if is_reserved {
            return Err(refused("is written by the server itself: leave it out"));
        }
        if value.len() > longest || HeaderValue::from_str(value).is_err() || !value.is_ascii() {
            return Err(refused(&format!("must have a value of at most {longest} visible ASCII characters")));
        }
        if plain.insert(lower, value.clone()).is_some() {
            return Err(refused("is there twice"));
        }
    }
    if plain.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > together {
        return Err(GatewayError::Invalid(format!("headers must have at most {together} bytes together")));
    }
    Ok(plain)
}

/// Headers as they are shown: without values that look like credentials.
pub(super) fn shown(headers: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_secret = |name: &str| SECRET_PARTS.iter().any(|part| name.contains(part));
    let show = |(name, value): (&String, &String)| {
        (name.clone(), if is_secret(name) { HIDDEN.to_owned() } else { value.clone() })
    };
    headers.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn headers_are_kept_in_lower_case_or_refused_with_what_to_change() {
        let good = headers(&[("X-Tenant", "a b"), ("accept", "*/*"), ("user-agent", "")]);
        assert_eq!(checked(&good).unwrap(), headers(&[("x-tenant", "a b"), ("accept", "*/*"), ("user-agent", "")]));
        let long = "x".repeat(MAX_HEADERS.1 + 1);
        for (pairs, why) in [
            (&[("Host", "x")][..], "leave it out"),
            (&[("Webhook-Id", "x")], "leave it out"),
            (&[("ce-type", "x")], "leave it out"),
            (&[("Transfer-Encoding", "chunked")], "leave it out"),
            (&[("AUTHORIZATION", "Bearer x")], "serviceAccountId"),
            (&[("Content-Type", "x")], "payloadContentType"),
            (&[("a b", "x")], "not the name"),
            (&[("", "x")], "not the name"),
            (&[(":path", "x")], "not the name"),
            (&[("x", "a\r\nb: c")], "visible ASCII"),
            (&[("x", "\u{fc}")], "visible ASCII"),
            (&[("x", &long)], "visible ASCII"),
            (&[("X-A", "1"), ("x-a", "2")], "twice"),
        ] {
            let error = checked(&headers(pairs)).unwrap_err().to_string();
            assert!(error.contains(why), "{pairs:?}: {error}");
        }
        let many: BTreeMap<_, _> = (0..65).map(|at| (format!("x-{at}"), String::new())).collect();
        assert!(checked(&many).unwrap_err().to_string().contains("64 items"));
        let large: BTreeMap<_, _> = (0..5).map(|at| (format!("x-{at}"), "x".repeat(4_000))).collect();
        assert!(checked(&large).unwrap_err().to_string().contains("bytes together"));
    }

    #[test]
    fn values_that_look_like_credentials_are_not_shown() {
        let all = headers(&[("x-api-key", "k"), ("x-tenant", "t"), ("cookie", "c"), ("x-auth-token", "a")]);
        let expected =
            headers(&[("x-api-key", HIDDEN), ("x-tenant", "t"), ("cookie", HIDDEN), ("x-auth-token", HIDDEN)]);
        assert_eq!(shown(&all), expected);
    }
}
