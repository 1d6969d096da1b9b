//! Where a subscription sends events: a webhook or a queue.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tidegate::QueueName;
use url::{Host, Url};

use crate::gateway::error::{GatewayError, Result};

/// The longest target, in bytes.
const MAX_TARGET: usize = 2_048;

/// Where events go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// A webhook: `https://…`, or `http://…` to allowed addresses.
    Webhook(Url),
    /// A queue of the subscription's client: `queue:NAME`.
    Queue(String),
}

/// A place that webhooks may be sent to although it is not public or not encrypted: an address, a network or a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedTarget {
    /// An address or a network.
    Network(IpNet),
    /// A host name, in lower case.
    Host(String),
}

impl FromStr for Target {
    type Err = GatewayError;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| GatewayError::Invalid(format!("target {why}"));
        let check_length = |text: &str| match text.len() > MAX_TARGET {
            true => Err(invalid(&format!("must have at most {MAX_TARGET} bytes, percent-encoded"))),
            false => Ok(()),
        };
        check_length(text)?;
        if let Some(name) = text.strip_prefix("queue:") {
            // The client does not matter for the form of a name.
            QueueName::of(None, name).map_err(|error| invalid(&format!("names no queue: {error}")))?;
            return Ok(Self::Queue(name.to_owned()));
        }
        if text.chars().any(|one| one.is_control() || one.is_whitespace()) {
            return Err(invalid("must not have white space or control characters: encode them"));
        }
        let url =
            Url::parse(text).map_err(|error| invalid(&format!("must be an https:// URL or queue:NAME ({error})")))?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(invalid(&format!("must be an https:// URL or queue:NAME, not {}:", url.scheme())));
        }
        // Parsers of URLs forgive these, each in its own way.
        let authority = text.get(url.scheme().len()..).and_then(|rest| rest.strip_prefix("://"));
        if authority.is_none_or(|authority| authority.starts_with('/')) || text.contains('\\') {
            return Err(invalid("must have two slashes before its host, and no backslashes"));
        }
        if let Some(Host::Domain(name)) = url.host()
            && name.strip_suffix('.').unwrap_or(name).split('.').any(str::is_empty)
        {
            return Err(invalid(&format!("has a host with an empty part: {name}")));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("must not have credentials in it: name a serviceAccountId"));
        }
        if url.fragment().is_some() {
            return Err(invalid("must not have a fragment (#…): it would never be sent"));
        }
        if url.port() == Some(0) {
            return Err(invalid("must not have port 0"));
        }
        // What is not ASCII was encoded: a target that is kept can be read again.
        check_length(url.as_str())?;
        Ok(Self::Webhook(url))
    }
}

impl TryFrom<String> for Target {
    type Error = GatewayError;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Webhook(url) => url.fmt(f),
            Self::Queue(name) => write!(f, "queue:{name}"),
        }
    }
}

impl Target {
    /// Refuses an unencrypted webhook to a place that is not allowed.
    pub(in crate::gateway) fn check(&self, allowed: &[AllowedTarget]) -> Result<()> {
        let Self::Webhook(url) = self else { return Ok(()) };
        if url.scheme() == "https" || url.host().is_some_and(|host| allowed.iter().any(|one| one.has(&host))) {
            return Ok(());
        }
        Err(GatewayError::Invalid(format!(
            "target must begin with https://: http:// is for hosts in dispatch.allowed_targets, and {} is not among them",
            url.host_str().unwrap_or("this one")
        )))
    }
}

impl AllowedTarget {
    /// Whether a host is this one, or in this network.
    fn has(&self, host: &Host<&str>) -> bool {
        let address = match host {
            Host::Domain(name) => return matches!(self, Self::Host(own) if own.eq_ignore_ascii_case(name)),
            Host::Ipv4(address) => IpAddr::V4(*address),
            Host::Ipv6(address) => IpAddr::V6(*address).to_canonical(),
        };
        matches!(self, Self::Network(network) if network.contains(&address))
    }
}

impl FromStr for AllowedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.to_canonical().into()));
        }
        match Host::parse(text) {
            Ok(Host::Domain(name)) => Ok(Self::Host(name.to_ascii_lowercase())),
            _ => Err(format!("{text:?} is no address, network (10.0.0.0/8) or host name")),
        }
    }
}

impl fmt::Display for AllowedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Host(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_refused_with_what_to_change() {
        for good in ["https://example.com/hook?x=1", "http://localhost:8080/", "queue:mail", "https://[::1]:9/"] {
            let target: Target = good.parse().unwrap();
            assert_eq!(target.to_string(), good);
        }
        for (bad, why) in [
            ("ftp://example.com/", "not ftp:"),
            ("example.com", "must be an https:// URL"),
            ("https://", "must be an https:// URL"),
            ("https://a:b@example.com/", "credentials"),
            ("https://a@example.com/", "credentials"),
            ("https://example.com/#x", "fragment"),
            ("https://example.com:0/", "port 0"),
            ("https://example.com/a b", "white space"),
            (" https://example.com/", "white space"),
            ("queue:", "names no queue"),
            ("queue:a b", "names no queue"),
            ("javascript:alert(1)", "not javascript:"),
            ("https:example.com", "two slashes"),
            ("https:/example.com", "two slashes"),
            ("https:///example.com", "two slashes"),
            ("https:\\\\example.com\\x", "two slashes"),
            ("https://example.com\\@evil.example/", "backslashes"),
            ("https://./", "empty part"),
            ("https://\u{3002}/", "empty part"),
            ("https://a..example.com/", "empty part"),
            ("https://.example.com/", "empty part"),
            ("https://example.com:65536/", "port"),
            ("https://[fe80::1%25eth0]/", "IPv6"),
        ] {
            let error = bad.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
        assert!(format!("https://e.com/{}", "x".repeat(MAX_TARGET)).parse::<Target>().is_err());
    }

    /// What is kept is the URL as it was normalised: it must not be refused when it is read.
    #[test]
    fn what_is_accepted_can_be_read_again() {
        let long = |letter: &str, times: usize| format!("https://e.com/{}", letter.repeat(times));
        for text in [
            "HTTPS://EXAMPLE.com.:443/a/../\u{fc}?\u{fc}='\"<>`{}|^",
            "https://b\u{fc}cher.example",
            "https://e\u{3002}com:8443",
            "https://0x7f.1",
            "https://[::FFFF:127.0.0.1]/",
            &long("\u{fc}", 339),
            &long("x", 2_034),
        ] {
            let target: Target = text.parse().unwrap();
            let kept = target.to_string();
            assert_eq!(kept.parse::<Target>().unwrap(), target, "{text}: {kept}");
        }
        for text in [long("\u{fc}", 340), long("x", 2_035)] {
            assert!(text.parse::<Target>().unwrap_err().to_string().contains("2048 bytes"), "{text}");
        }
    }

    #[test]
    fn plain_http_goes_to_allowed_hosts_only() {
        let allowed: Vec<AllowedTarget> =
            ["10.0.0.0/8", "127.0.0.1", "::1", "Hooks.internal"].map(|one| one.parse().unwrap()).into();
        let check = |text: &str| text.parse::<Target>().unwrap().check(&allowed);
        for good in [
            "http://10.1.2.3/",
            "http://127.0.0.1:80/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::1]/",
            "http://HOOKS.internal/x",
            "https://anywhere.example/",
            "queue:q",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["http://11.0.0.1/", "http://127.0.0.2/", "http://example.com/", "http://x.hooks.internal/"] {
            assert!(check(bad).unwrap_err().to_string().contains("allowed_targets"), "{bad}");
        }
        for bad in ["", "10.0.0.0/33", "a b", "http://x"] {
            assert!(bad.parse::<AllowedTarget>().is_err(), "{bad}");
        }
    }
}
