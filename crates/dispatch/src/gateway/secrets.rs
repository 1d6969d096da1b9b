//! What the resource of a secret holds: what webhooks are signed with, newest first, and the credentials of a service account.
//! Kept apart from what every node caches and shows, and encrypted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use tidegate::{ChangeResource, Error, ErrorKind, PutResource, Resource, Timestamp};
use zeroize::Zeroizing;

use super::Gateway;
use super::error::{GatewayError, Result, gone};
use super::subscriptions::SIGNING_SECRET;
use crate::secrets::{Place, SecretKeys, Unreadable};
use crate::webhook::credentials::{Credentials, InvalidCredentials};
use crate::webhook::signature::SigningSecret;

/// What secrets of HMAC begin with, after the specification of Standard Webhooks.
const SHARED: &str = "whsec_";
/// What private keys of Ed25519 begin with.
const PRIVATE: &str = "whsk_";
/// The length of a secret, in bytes.
const LENGTH: usize = 32;
/// The most secrets that are valid at once: each is a signature in every webhook.
const MAX_VALID: usize = 4;
/// For how long a secret that was replaced signs, unless said otherwise.
pub(crate) const OVERLAP: Duration = Duration::from_secs(86_400);
/// The longest such time.
pub(crate) const MAX_OVERLAP: Duration = Duration::from_secs(30 * 86_400);

/// How webhooks are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SigningScheme {
    /// With HMAC-SHA256: both sides have the same secret.
    V1,
    /// With Ed25519: the receiver has a public key.
    V1a,
}

/// A text that must not be shown. It is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SecretText(Zeroizing<String>);

/// What a receiver is to be told of a new secret.
#[derive(Debug)]
pub struct Rotated {
    /// The secret, shown this once; `None` where the receiver needs a public key alone.
    pub secret: Option<SecretText>,
    /// What the receiver verifies with, where that is no secret.
    pub public_key: Option<String>,
    /// How it signs.
    pub scheme: SigningScheme,
    /// Until when those before it sign as well; `None` if they do not any more.
    pub others_until: Option<Timestamp>,
}

/// The contents.
#[derive(Serialize, Deserialize)]
pub(super) struct Contents {
    secrets: Vec<Held>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) credentials: Option<StoredCredentials>,
}

/// A secret that signs.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Written")]
struct Held {
    secret: SecretText,
    /// Until when it does, if it was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// A secret as it is written; older programs wrote its text alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Alone(SecretText),
    Held { secret: SecretText, until: Option<Timestamp> },
}

/// What an account is known by.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "UPPERCASE")]
pub(super) enum StoredCredentials {
    Bearer { token: SecretText },
    Basic { username: String, password: SecretText },
}

/// What webhooks are signed with and carry, as it was read from a resource.
#[derive(Debug)]
pub(crate) struct Opened {
    all: Arc<[SigningSecret]>,
    /// Until when each of them signs.
    until: Vec<Option<Timestamp>>,
    pub(crate) credentials: Option<Credentials>,
}

impl SecretText {
    /// Takes a text as a secret.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, for the one who is to have it.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// Reads a text. What it says about anything else does not repeat it: it may be a secret all the same.
struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = SecretText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<SecretText, E> {
        Ok(SecretText::new(text.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> std::result::Result<SecretText, E> {
        Ok(SecretText::new(text))
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> std::result::Result<SecretText, E> {
        Err(no_text())
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> std::result::Result<SecretText, E> {
        Err(no_text())
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> std::result::Result<SecretText, E> {
        Err(no_text())
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> std::result::Result<SecretText, E> {
        Err(no_text())
    }
}

fn no_text<E: serde::de::Error>() -> E {
    E::custom("it must be a string")
}

impl From<Written> for Held {
    fn from(written: Written) -> Self {
        match written {
            Written::Alone(secret) => Self { secret, until: None },
            Written::Held { secret, until } => Self { secret, until },
        }
    }
}

/// A new signing secret of the usual scheme, made at random.
#[must_use]
pub fn new_signing_secret() -> SecretText {
    SigningScheme::V1.new_secret()
}

impl SigningScheme {
    fn new_secret(self) -> SecretText {
        let prefix = match self {
            Self::V1 => SHARED,
            Self::V1a => PRIVATE,
        };
        let bytes = Zeroizing::new(rand::random::<[u8; LENGTH]>());
        let encoded = Zeroizing::new(STANDARD.encode(bytes.as_slice()));
        SecretText::new(format!("{prefix}{}", *encoded))
    }

    fn of(secret: &SecretText) -> Self {
        if secret.shown().starts_with(PRIVATE) { Self::V1a } else { Self::V1 }
    }
}

impl StoredCredentials {
    /// What is sent.
    pub(super) fn header(&self) -> std::result::Result<Credentials, InvalidCredentials> {
        match self {
            Self::Bearer { token } => Credentials::bearer(token.shown()),
            Self::Basic { username, password } => Credentials::basic(username, password.shown()),
        }
    }
}

impl Contents {
    /// A new secret that signs alone, and what a receiver is to be told.
    pub(super) fn new(credentials: Option<StoredCredentials>) -> (Self, SecretText) {
        let secret = new_signing_secret();
        (Self { secrets: vec![Held { secret: secret.clone(), until: None }], credentials }, secret)
    }

    /// What a resource holds.
    pub(super) fn open(resource: &Resource, keys: &SecretKeys) -> std::result::Result<Self, Unreadable> {
        let text = keys.open(resource)?;
        serde_json::from_str(&text).map_err(|_| Unreadable::Damaged)
    }

    /// The body of the resource.
    pub(super) fn seal(&self, place: Place<'_>, keys: &SecretKeys) -> Result<String> {
        let failed = |_| GatewayError::Invalid("the secret cannot be stored".into());
        let text = Zeroizing::new(serde_json::to_string(self).map_err(failed)?);
        Ok(keys.seal(place, &text)?)
    }

    /// What changes the resource to this, if nobody else has changed it since it was read.
    pub(super) fn change(&self, found: &Resource, keys: &SecretKeys) -> Result<ChangeResource> {
        let (id, kind, body) = (found.id, found.kind.clone(), self.seal(Place::of(found), keys)?);
        Ok(ChangeResource::Put(PutResource::Change { id, kind, expected: Some(found.version), body }))
    }

    /// Puts a new secret before the others, which sign for `overlap` longer.
    ///
    /// # Errors
    /// `Invalid` for an overlap that is too long, `Conflict` when too many secrets are valid already.
    pub(super) fn rotate(
        &mut self,
        scheme: Option<SigningScheme>,
        overlap: Option<Duration>,
        now: Timestamp,
    ) -> Result<Rotated> {
        let overlap = overlap.unwrap_or(OVERLAP);
        if overlap > MAX_OVERLAP {
            return Err(GatewayError::Invalid(format!("overlapSeconds must be 0 to {}", MAX_OVERLAP.as_secs())));
        }
        let scheme = scheme.or_else(|| Some(SigningScheme::of(&self.secrets.first()?.secret)));
        let scheme = scheme.unwrap_or(SigningScheme::V1);
        let end = now + overlap;
        self.secrets.iter_mut().for_each(|held| held.until = Some(held.until.map_or(end, |until| until.min(end))));
        self.secrets.retain(|held| held.until.is_none_or(|until| until > now));
        if self.secrets.len() >= MAX_VALID {
            let first = self.secrets.iter().filter_map(|held| held.until).min().unwrap_or(end);
            let text = format!(
                "{MAX_VALID} secrets are valid already: wait until {first}, or rotate with overlapSeconds 0, which ends them"
            );
            return Err(GatewayError::Conflict(text));
        }
        let secret = scheme.new_secret();
        self.secrets.insert(0, Held { secret: secret.clone(), until: None });
        let public_key = secret.shown().parse::<SigningSecret>().ok().and_then(|secret| secret.public_key());
        Ok(Rotated {
            secret: public_key.is_none().then_some(secret),
            public_key,
            scheme,
            others_until: self.secrets.iter().filter_map(|held| held.until).max(),
        })
    }
}

impl Gateway {
    /// The keys of its secrets.
    pub(crate) fn secret_keys(&self) -> &Arc<SecretKeys> {
        &self.secret_keys
    }

    /// The resource with the secret of another one.
    pub(super) async fn secret_of(&self, owner: &Resource, kind: &str) -> Result<Resource> {
        let found = self.queue.resources().by_code(kind, owner.client, &owner.code).await?;
        let lost = || Error::new(ErrorKind::Corrupt, format!("the {} {} has no stored secret", owner.kind, owner.id));
        Ok(found.ok_or_else(lost)?)
    }

    /// Whether the resource of a secret holds something that can be used.
    pub(super) fn contents_of(&self, resource: &Resource) -> std::result::Result<(), Unreadable> {
        Opened::read(resource, &self.secret_keys).map(drop)
    }

    /// What the resource of a secret holds.
    pub(super) fn contents(&self, resource: &Resource) -> Result<Contents> {
        Contents::open(resource, &self.secret_keys).map_err(|unreadable| {
            let (kind, code) = (&resource.kind, &resource.code);
            let text = format!("the {kind} of {code} cannot be read: {unreadable}");
            match unreadable {
                Unreadable::MissingKey(_) => Error::new(ErrorKind::Unavailable, text).into(),
                Unreadable::Damaged => Error::new(ErrorKind::Corrupt, text).into(),
            }
        })
    }

    /// Gives what this resource is the owner of a new signing secret.
    pub(super) async fn rotate_secret_of(
        &self,
        owner: &Resource,
        kind: &str,
        scheme: Option<SigningScheme>,
        overlap: Option<Duration>,
    ) -> Result<Rotated> {
        let found = self.secret_of(owner, kind).await?;
        let mut contents = match self.contents(&found) {
            // Nothing of what cannot be read is to stay: so a subscription recovers from a key that was lost.
            Err(_) if overlap == Some(Duration::ZERO) && kind == SIGNING_SECRET => {
                Contents { secrets: Vec::new(), credentials: None }
            }
            read => read?,
        };
        let rotated = contents.rotate(scheme, overlap, Timestamp::now())?;
        let change = contents.change(&found, &self.secret_keys)?;
        self.queue.resources().change(vec![change]).await.map_err(gone)?;
        Ok(rotated)
    }
}

impl Opened {
    /// What a resource holds.
    pub(crate) fn read(resource: &Resource, keys: &SecretKeys) -> std::result::Result<Self, Unreadable> {
        let contents = Contents::open(resource, keys)?;
        let read = |held: &Held| Some((held.secret.shown().parse().ok()?, held.until));
        let (all, until): (Vec<SigningSecret>, Vec<_>) = contents.secrets.iter().filter_map(read).unzip();
        // A secret that cannot be used is no reason to send webhooks without it.
        if all.is_empty() || all.len() < contents.secrets.len() {
            return Err(Unreadable::Damaged);
        }
        let credentials = contents.credentials.map(|stored| stored.header()).transpose();
        Ok(Self { all: all.into(), until, credentials: credentials.map_err(|_| Unreadable::Damaged)? })
    }

    /// The secrets that sign at a moment, the newest first.
    pub(crate) fn signing(&self, now: Timestamp) -> Arc<[SigningSecret]> {
        let is_valid = |until: &Option<Timestamp>| until.is_none_or(|until| until > now);
        if self.until.iter().all(is_valid) {
            return Arc::clone(&self.all);
        }
        let valid = self.all.iter().zip(&self.until).filter(|(_, until)| is_valid(until));
        valid.map(|(secret, _)| secret.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{DatabasePlace, Tsid};

    use super::*;
    use crate::secrets::SecretOptions;

    fn keys() -> SecretKeys {
        SecretKeys::new(SecretOptions::default(), &DatabasePlace::Memory)
    }

    fn resource(body: String) -> Resource {
        Resource {
            id: Tsid::from_i64(1),
            kind: "k".into(),
            client: None,
            code: "c".into(),
            version: 1,
            deleted: false,
            body,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn stored(contents: &Contents, keys: &SecretKeys) -> Resource {
        resource(contents.seal(Place { kind: "k", client: None, code: "c" }, keys).unwrap())
    }

    #[test]
    fn secrets_differ_and_are_long() {
        let (one, other) = (SigningScheme::V1.new_secret(), SigningScheme::V1.new_secret());
        assert_ne!(one.shown(), other.shown());
        assert_eq!(STANDARD.decode(one.shown().strip_prefix(SHARED).unwrap()).unwrap().len(), LENGTH);
        assert_eq!(format!("{one:?}"), "SecretText(…)");
    }

    #[test]
    fn what_older_programs_wrote_is_read() {
        let keys = keys();
        let old = SigningScheme::V1.new_secret();
        let plain = resource(format!(r#"{{"secrets":["{}"]}}"#, old.shown()));
        let mut contents = Contents::open(&plain, &keys).unwrap();
        assert_eq!(contents.secrets[0].secret, old);
        contents.rotate(None, None, Timestamp::UNIX_EPOCH).unwrap();
        let again = stored(&contents, &keys);
        assert!(!again.body.contains(old.shown()));
        assert_eq!(Contents::open(&again, &keys).unwrap().secrets[1].secret, old);
    }

    #[test]
    fn secrets_that_were_replaced_sign_until_their_time_is_over() {
        let (keys, at) = (keys(), |seconds| Timestamp::from_second(seconds).unwrap());
        let (mut contents, _) = Contents::new(None);
        let told = contents.rotate(None, Some(Duration::from_secs(100)), at(0)).unwrap();
        assert_eq!((told.others_until, told.scheme), (Some(at(100)), SigningScheme::V1));
        assert!(told.secret.is_some() && told.public_key.is_none());
        contents.rotate(None, Some(Duration::from_secs(500)), at(10)).unwrap();
        let opened = Opened::read(&stored(&contents, &keys), &keys).unwrap();
        let count = |seconds| opened.signing(at(seconds)).len();
        assert_eq!([count(11), count(99), count(100), count(509), count(510)], [3, 3, 2, 2, 1]);
        contents.rotate(None, None, at(20)).unwrap();
        let full = contents.rotate(None, None, at(21)).unwrap_err().to_string();
        assert!(full.contains("1970-01-01T00:01:40Z"), "{full}");
        let told = contents.rotate(None, Some(Duration::ZERO), at(22)).unwrap();
        assert_eq!((told.others_until, contents.secrets.len()), (None, 1));
        assert!(contents.rotate(None, Some(MAX_OVERLAP + Duration::from_secs(1)), at(23)).is_err());
    }

    #[test]
    fn a_scheme_stays_until_another_is_asked_for_and_private_keys_are_not_shown() {
        let now = Timestamp::UNIX_EPOCH;
        let (mut contents, _) = Contents::new(None);
        for scheme in [Some(SigningScheme::V1a), None] {
            let told = contents.rotate(scheme, None, now).unwrap();
            assert_eq!(told.scheme, SigningScheme::V1a);
            assert!(told.secret.is_none() && told.public_key.unwrap().starts_with("whpk_"));
        }
        assert_eq!(contents.rotate(Some(SigningScheme::V1), None, now).unwrap().scheme, SigningScheme::V1);
    }
}
