//! Protects a server without authentication from web pages of other sites; programs on this machine may call it.
//!
//! A page whose host name was rebound to a loopback address (DNS rebinding) reaches the server, with its own name in
//! `Host`. So only loopback names and configured ones are accepted there, and requests from other origins are refused.
//! Knows headers, no credentials.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header;
use http::request::Parts;

use crate::error::{ApiError, Code, Result};

/// Host names by which callers may reach the server, besides loopback ones.
#[derive(Debug, Default)]
pub(crate) struct OpenHosts(Vec<String>);

impl OpenHosts {
    /// # Errors
    /// When a name is not a plain host name.
    pub(crate) fn new(names: &[String]) -> Result<Self, String> {
        let read = |name: &String| match Authority::read(name) {
            Some(Authority { host, port: None }) => Ok(host),
            _ => Err(format!("{name:?} in auth.hosts is not a host name: leave out scheme and port")),
        };
        names.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// # Errors
    /// 403 for a request that a page of another site may have sent.
    pub(crate) fn check(&self, parts: &Parts) -> Result<()> {
        let refuse = |text: String| Err(ApiError::new(Code::Forbidden, text));
        if is_of_another_site(parts) {
            return refuse("pages of other sites may not call a server that requires no keys".into());
        }
        let named = self.named(parts)?;
        for origin in parts.headers.get_all(header::ORIGIN) {
            let origin = origin.to_str().ok().and_then(|text| text.split_once("://")).map(|(_, rest)| rest);
            let origin = origin.and_then(Authority::read);
            let fits = |origin: Authority| named.iter().all(|host| *host == origin) || self.0.contains(&origin.host);
            if !origin.is_some_and(fits) {
                return refuse("pages of other origins may not call a server that requires no keys".into());
            }
        }
        Ok(())
    }

    /// The names that the request gives the server: in its request line, in `Host`, or both.
    fn named(&self, parts: &Parts) -> Result<Vec<Authority>> {
        let in_line = parts.uri.authority().map(|authority| authority.as_str());
        let in_headers = parts.headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or_default());
        let mut named = Vec::new();
        for text in in_line.into_iter().chain(in_headers) {
            match Authority::read(text) {
                Some(authority) if authority.is_loopback() || self.0.contains(&authority.host) => named.push(authority),
                _ => return Err(unknown_host(text)),
            }
        }
        if named.is_empty() { Err(unknown_host("")) } else { Ok(named) }
    }
}

fn unknown_host(text: &str) -> ApiError {
    let shown: String = text.chars().take(60).collect();
    let text = format!(
        "the Host {shown:?} is not a loopback name: call 127.0.0.1 or localhost, add the name to auth.hosts, or \
         require keys"
    );
    ApiError::new(Code::Forbidden, text)
}

/// Whether a browser says (in `Sec-Fetch-Site`) that a page of another site sent the request.
fn is_of_another_site(parts: &Parts) -> bool {
    let of_here = |site: &[u8]| site.eq_ignore_ascii_case(b"same-origin") || site.eq_ignore_ascii_case(b"none");
    parts.headers.get_all("sec-fetch-site").iter().any(|site| !of_here(site.as_bytes()))
}

/// A host in lower case without a trailing dot, and its port unless it is a default one (80 or 443).
#[derive(Debug, PartialEq, Eq)]
struct Authority {
    host: String,
    port: Option<u16>,
}

impl Authority {
    fn read(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse::<u16>().ok()?)),
            _ => (text, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_address = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (!is_address && !host.chars().all(plain)) {
            return None;
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        Some(Self { host, port: port.filter(|port| !matches!(port, 80 | 443)) })
    }

    fn is_loopback(&self) -> bool {
        let address = match self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            None => self.host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        };
        self.host == "localhost" || address.is_some_and(|address| address.to_canonical().is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_strictly() {
        let host = |text: &str| Authority::read(text).map(|authority| (authority.host, authority.port));
        assert_eq!(host("LocalHost.:8080"), Some(("localhost".into(), Some(8080))));
        assert_eq!(host("[::1]:80"), Some(("[::1]".into(), None)));
        assert_eq!(host("[::1]"), Some(("[::1]".into(), None)));
        for bad in ["", ":80", "a b", "a/b", "u@localhost", "localhost:", "localhost:x", "localhost:99999", "::1"] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_hosts_can_be_configured() {
        assert!(OpenHosts::new(&["queue.internal".into(), "10.0.0.1".into()]).is_ok());
        for bad in ["https://queue.internal", "queue.internal:81", "*", ""] {
            assert!(OpenHosts::new(&[bad.into()]).is_err(), "{bad}");
        }
    }
}
