//! What a receiver knows a caller by: the header `authorization`, by bearer token (RFC 6750) or user name and password (RFC
//! 7617). Pure, and never shown.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use zeroize::Zeroizing;

use super::mask::Mask;

/// The longest token, user name and password, in bytes. Receivers take 8 KiB of headers or more.
pub const LONGEST: usize = 2 * 1_024;
/// The scheme of a user name and a password.
const BASIC: &str = "Basic";

/// What is sent in `authorization`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(HeaderValue);

/// Texts that are no credentials. It does not repeat them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCredentials {
    /// A token that does not fit into the header.
    #[error("a token has 1 to {LONGEST} characters, all of them visible ASCII")]
    Token,
    /// A user name that would be read as another one.
    #[error("a user name has at most {LONGEST} bytes, no colon and no control character")]
    Username,
    /// A password that cannot be sent.
    #[error("a password has at most {LONGEST} bytes and no control character")]
    Password,
}

impl Credentials {
    /// A bearer token.
    pub fn bearer(token: &str) -> Result<Self, InvalidCredentials> {
        if !(1..=LONGEST).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidCredentials::Token);
        }
        let value = Zeroizing::new(format!("Bearer {token}"));
        Self::secret(&value).ok_or(InvalidCredentials::Token)
    }

    /// A user name, which can be empty, and a password, which can be too. What is not ASCII is sent as UTF-8.
    pub fn basic(username: &str, password: &str) -> Result<Self, InvalidCredentials> {
        let is_sound = |text: &str| text.len() <= LONGEST && !text.chars().any(char::is_control);
        if !is_sound(username) || username.contains(':') {
            return Err(InvalidCredentials::Username);
        }
        if !is_sound(password) {
            return Err(InvalidCredentials::Password);
        }
        let both = Zeroizing::new(format!("{username}:{password}"));
        let encoded = Zeroizing::new(STANDARD.encode(both.as_bytes()));
        let value = Zeroizing::new(format!("{BASIC} {}", *encoded));
        Self::secret(&value).ok_or(InvalidCredentials::Password)
    }

    /// The header to send. Its value is marked as sensitive: it is not shown, and HTTP/2 keeps it out of its tables.
    #[must_use]
    pub fn header(&self) -> (HeaderName, HeaderValue) {
        (AUTHORIZATION, self.0.clone())
    }

    /// Hides them in what comes back: what is sent, and what that encodes.
    pub fn hide_in(&self, mask: &mut Mask) {
        let Some((scheme, sent)) = self.0.to_str().ok().and_then(|value| value.split_once(' ')) else { return };
        mask.add(sent);
        if scheme != BASIC {
            return;
        }
        let Some(both) = STANDARD.decode(sent).ok().and_then(|both| String::from_utf8(both).ok()) else { return };
        let both = Zeroizing::new(both);
        mask.add(&both);
        if let Some((_, password)) = both.split_once(':') {
            mask.add(password);
        }
    }

    fn secret(value: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(value).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(credentials: Result<Credentials, InvalidCredentials>) -> String {
        let (name, value) = credentials.unwrap().header();
        assert_eq!(name, AUTHORIZATION);
        value.to_str().unwrap().to_owned()
    }

    /// The examples of both specifications.
    #[test]
    fn published_examples() {
        assert_eq!(shown(Credentials::bearer("mF_9.B5f-4.1JqM")), "Bearer mF_9.B5f-4.1JqM");
        assert_eq!(shown(Credentials::basic("Aladdin", "open sesame")), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(shown(Credentials::basic("test", "123\u{a3}")), "Basic dGVzdDoxMjPCow==");
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let long = "x".repeat(LONGEST);
        for token in ["", "a b", "a\r\nx: y", "\u{e9}", "a\0", &format!("{long}x")] {
            assert_eq!(Credentials::bearer(token), Err(InvalidCredentials::Token), "{token:?}");
        }
        for username in ["a:b", ":", "a\nb", "\u{7f}", "\u{85}", &format!("{long}x")] {
            assert_eq!(Credentials::basic(username, "x"), Err(InvalidCredentials::Username), "{username:?}");
        }
        for password in ["a\r\nb", "\0", &format!("{long}x")] {
            assert_eq!(Credentials::basic("x", password), Err(InvalidCredentials::Password), "{password:?}");
        }
        assert_eq!(shown(Credentials::basic("", "a:b")), format!("Basic {}", STANDARD.encode(":a:b")));
        assert!(Credentials::bearer(&long).is_ok() && Credentials::basic(&long, &long).is_ok());
    }

    #[test]
    fn what_comes_back_is_masked() {
        let masked = |credentials: Credentials, text: &str| {
            let mut mask = Mask::default();
            credentials.hide_in(&mut mask);
            mask.masked(text.to_owned(), false)
        };
        let bearer = || Credentials::bearer("s3cret").unwrap();
        assert_eq!(masked(bearer(), "authorization: Bearer s3cret"), "authorization: Bearer ***");
        assert_eq!(masked(bearer(), "fine"), "fine");
        let basic = || Credentials::basic("tide", "g\u{e4}te:1").unwrap();
        let sent = shown(Ok(basic()));
        assert_eq!(masked(basic(), &sent), "Basic ***");
        assert_eq!(masked(basic(), "tide:g\u{e4}te:1 tide g\u{e4}te:1 te:1"), "*** tide *** te:1");
    }

    #[test]
    fn they_are_not_shown() {
        for credentials in [Credentials::bearer("s3cret"), Credentials::basic("s3cret", "s3cret")] {
            let credentials = credentials.unwrap();
            let shown = format!("{credentials:?} {:?}", credentials.header());
            assert!(shown.contains("Credentials(…)") && shown.contains("Sensitive"), "{shown}");
        }
    }
}
