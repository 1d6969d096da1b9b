//! Signatures after Standard Webhooks: `v1` by HMAC-SHA256 and `v1a` by Ed25519. Pure: the time is passed in.
//!
//! What is signed is `ID.TIMESTAMP.BODY`, with the body's bytes as they are sent. While secrets are rotated, a webhook
//! carries one signature for each of them, and a receiver accepts it if any of them is right.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{SECRET_KEY_LENGTH, Signature, Signer as _, SigningKey, VerifyingKey};
use hmac::{Hmac, Mac as _};
use http::{HeaderName, HeaderValue};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The header with the id of a webhook, the same at each attempt.
pub const ID: HeaderName = HeaderName::from_static("webhook-id");
/// The header with the time of an attempt, in seconds since 1970.
pub const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// The header with the signatures, separated by spaces.
pub const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// How far a timestamp may be from the receiver's time, as the official libraries have it.
pub const TOLERANCE: Duration = Duration::from_secs(300);

/// The lengths that the specification allows for secrets of HMAC, in bytes.
const HMAC_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;
/// The most signatures that are looked at: each costs a computation for each secret.
const MAX_SIGNATURES: usize = 16;

/// What webhooks are signed with: `whsec_…` (HMAC-SHA256) or `whsk_…` (Ed25519).
#[derive(Clone)]
pub struct SigningSecret(Signing);

#[derive(Clone)]
enum Signing {
    Hmac(Zeroizing<Vec<u8>>),
    Ed25519(Box<SigningKey>),
}

/// What signatures are verified with: `whsec_…` (HMAC-SHA256) or `whpk_…` (Ed25519).
#[derive(Clone)]
pub struct VerifyingSecret(Verifying);

#[derive(Clone)]
enum Verifying {
    Hmac(Zeroizing<Vec<u8>>),
    Ed25519(Box<VerifyingKey>),
}

/// A text that is no secret. It does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    /// It begins with none of the prefixes.
    #[error("a signing secret begins with whsec_ or whsk_, one to verify with with whsec_ or whpk_")]
    Prefix,
    /// What follows the prefix is not base64.
    #[error("a secret is base64, with padding, after its prefix")]
    Base64,
    /// It is too short or too long.
    #[error("a secret has 24 to 64 bytes after whsec_, 32 or 64 after whsk_, 32 after whpk_")]
    Length,
    /// A key of Ed25519 that is none, or whose halves do not belong together.
    #[error("the key after whsk_ or whpk_ is not a key of Ed25519")]
    Key,
}

/// An id that cannot be signed: it is empty, or has other characters than visible ASCII, or a dot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a webhook has visible ASCII characters and no dot")]
pub struct InvalidId;

/// Why a webhook is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// The id is missing or has a dot: with one, other bodies would have the same signature.
    #[error("webhook-id is empty or has a dot")]
    Id,
    /// The timestamp is not a number.
    #[error("webhook-timestamp is not a number of seconds")]
    Timestamp,
    /// The webhook was signed too long ago.
    #[error("webhook-timestamp is too old")]
    TooOld,
    /// The webhook was signed in the future.
    #[error("webhook-timestamp is in the future")]
    TooNew,
    /// No signature belongs to one of the secrets.
    #[error("no signature in webhook-signature is right")]
    Signature,
}

/// The headers that Standard Webhooks adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedHeaders<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`.
    pub timestamp: &'a str,
    /// `webhook-signature`.
    pub signature: &'a str,
}

/// The headers of a webhook that is sent at `timestamp` (seconds since 1970) with exactly this body: one signature for each
/// secret, in their order.
pub fn sign(
    secrets: &[SigningSecret],
    id: &str,
    timestamp: u64,
    body: &[u8],
) -> Result<[(HeaderName, HeaderValue); 3], InvalidId> {
    if id.is_empty() || id.contains('.') || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(InvalidId);
    }
    let time = timestamp.to_string();
    let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(id, &time, body)).collect();
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| InvalidId);
    Ok([(ID, value(id)?), (TIMESTAMP, value(&time)?), (SIGNATURE, value(&signatures.join(" "))?)])
}

/// Accepts a webhook that one of the secrets signed, at most `tolerance` before or after `now` (seconds since 1970).
pub fn verify(
    secrets: &[VerifyingSecret],
    headers: SignedHeaders<'_>,
    body: &[u8],
    now: u64,
    tolerance: Duration,
) -> Result<(), Unverified> {
    let SignedHeaders { id, timestamp, signature } = headers;
    if id.is_empty() || id.contains('.') {
        return Err(Unverified::Id);
    }
    // What is signed is the text: another text for the same number is not accepted.
    let at: u64 = timestamp.parse().map_err(|_| Unverified::Timestamp)?;
    if at.to_string() != timestamp {
        return Err(Unverified::Timestamp);
    }
    if at.saturating_add(tolerance.as_secs()) < now {
        return Err(Unverified::TooOld);
    }
    if at > now.saturating_add(tolerance.as_secs()) {
        return Err(Unverified::TooNew);
    }
    let found = signature.split(' ').take(MAX_SIGNATURES).any(|one| {
        let Some((version, encoded)) = one.split_once(',') else { return false };
        let Ok(given) = STANDARD.decode(encoded) else { return false };
        secrets.iter().any(|secret| secret.accepts(version, &given, id, timestamp, body))
    });
    if found { Ok(()) } else { Err(Unverified::Signature) }
}

impl SigningSecret {
    fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        match &self.0 {
            Signing::Hmac(secret) => {
                let mac = mac(secret, id, timestamp, body).finalize().into_bytes();
                format!("v1,{}", STANDARD.encode(mac))
            }
            Signing::Ed25519(key) => {
                format!("v1a,{}", STANDARD.encode(key.sign(&content(id, timestamp, body)).to_bytes()))
            }
        }
    }

    /// What its signatures are verified with.
    #[must_use]
    pub fn verifying(&self) -> VerifyingSecret {
        VerifyingSecret(match &self.0 {
            Signing::Hmac(secret) => Verifying::Hmac(secret.clone()),
            Signing::Ed25519(key) => Verifying::Ed25519(Box::new(key.verifying_key())),
        })
    }

    /// The public key, `whpk_…`, of a key of Ed25519.
    #[must_use]
    pub fn public_key(&self) -> Option<String> {
        match &self.0 {
            Signing::Hmac(_) => None,
            Signing::Ed25519(key) => Some(format!("whpk_{}", STANDARD.encode(key.verifying_key().as_bytes()))),
        }
    }
}

impl VerifyingSecret {
    fn accepts(&self, version: &str, given: &[u8], id: &str, timestamp: &str, body: &[u8]) -> bool {
        match (&self.0, version) {
            // Compares in constant time.
            (Verifying::Hmac(secret), "v1") => mac(secret, id, timestamp, body).verify_slice(given).is_ok(),
            (Verifying::Ed25519(key), "v1a") => Signature::from_slice(given)
                .is_ok_and(|signature| key.verify_strict(&content(id, timestamp, body), &signature).is_ok()),
            _ => false,
        }
    }
}

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        if let Some(encoded) = text.strip_prefix("whsec_") {
            return Ok(Self(Signing::Hmac(decode_hmac(encoded)?)));
        }
        let bytes = decode(text.strip_prefix("whsk_").ok_or(InvalidSecret::Prefix)?)?;
        // The seed alone, or followed by the public key.
        let (seed, public) = bytes.split_at_checked(SECRET_KEY_LENGTH).ok_or(InvalidSecret::Length)?;
        let seed: Zeroizing<[u8; SECRET_KEY_LENGTH]> =
            Zeroizing::new(seed.try_into().map_err(|_| InvalidSecret::Length)?);
        let key = SigningKey::from_bytes(&seed);
        match public.len() {
            0 => {}
            32 if public == key.verifying_key().as_bytes() => {}
            32 => return Err(InvalidSecret::Key),
            _ => return Err(InvalidSecret::Length),
        }
        Ok(Self(Signing::Ed25519(Box::new(key))))
    }
}

impl FromStr for VerifyingSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        if let Some(encoded) = text.strip_prefix("whsec_") {
            return Ok(Self(Verifying::Hmac(decode_hmac(encoded)?)));
        }
        let bytes = decode(text.strip_prefix("whpk_").ok_or(InvalidSecret::Prefix)?)?;
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| InvalidSecret::Length)?;
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| InvalidSecret::Key)?;
        // With a weak key, one signature is right for many bodies.
        if key.is_weak() {
            return Err(InvalidSecret::Key);
        }
        Ok(Self(Verifying::Ed25519(Box::new(key))))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

impl fmt::Debug for VerifyingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifyingSecret(…)")
    }
}

fn decode_hmac(encoded: &str) -> Result<Zeroizing<Vec<u8>>, InvalidSecret> {
    let secret = decode(encoded)?;
    if HMAC_LENGTHS.contains(&secret.len()) { Ok(secret) } else { Err(InvalidSecret::Length) }
}

fn decode(encoded: &str) -> Result<Zeroizing<Vec<u8>>, InvalidSecret> {
    STANDARD.decode(encoded).map(Zeroizing::new).map_err(|_| InvalidSecret::Base64)
}

fn mac(secret: &[u8], id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

/// Ed25519 goes over its message twice, and needs it in one piece.
fn content(id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    [id.as_bytes(), timestamp.as_bytes(), body].join(&b'.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const KEY: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    const PUBLIC: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    const V1: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const V1A: &str = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";

    fn secret(text: &str) -> SigningSecret {
        text.parse().unwrap()
    }

    fn signatures(secrets: &[&str]) -> String {
        let secrets: Vec<_> = secrets.iter().map(|text| secret(text)).collect();
        let [id, at, signature] = sign(&secrets, MESSAGE, AT, BODY).unwrap();
        assert_eq!((id.1, at.1), (HeaderValue::from_static(MESSAGE), HeaderValue::from_static("1614265330")));
        signature.1.to_str().unwrap().to_owned()
    }

    fn check(keys: &[&str], signature: &str, body: &[u8], now: u64) -> Result<(), Unverified> {
        let keys: Vec<VerifyingSecret> = keys.iter().map(|text| text.parse().unwrap()).collect();
        verify(&keys, SignedHeaders { id: MESSAGE, timestamp: "1614265330", signature }, body, now, TOLERANCE)
    }

    /// The vectors that the official libraries are tested with.
    #[test]
    fn published_vectors() {
        assert_eq!(signatures(&[SECRET]), V1);
        assert_eq!(signatures(&[KEY]), V1A);
        assert_eq!(signatures(&[KEY, SECRET]), format!("{V1A} {V1}"));
        assert_eq!(secret(KEY).public_key().unwrap(), PUBLIC);
        assert_eq!(secret(SECRET).public_key(), None);
        for (keys, signature) in [(SECRET, V1), (PUBLIC, V1A)] {
            assert_eq!(check(&[keys], signature, BODY, AT), Ok(()));
        }
    }

    /// Section 7.1 of RFC 8032, tests 1 to 3, and case 2 of RFC 4231.
    #[test]
    fn vectors_of_the_algorithms() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        for (seed, public, message, signature) in [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
                "",
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
            ),
            (
                "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
                "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
                "72",
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
            ),
            (
                "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
                "af82",
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
            ),
        ] {
            let text = format!("whsk_{}", STANDARD.encode(bytes(seed)));
            let SigningSecret(Signing::Ed25519(key)) = secret(&text) else { panic!("{text}") };
            assert_eq!(key.verifying_key().as_bytes()[..], bytes(public));
            assert_eq!(key.sign(&bytes(message)).to_bytes()[..], bytes(signature));
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let expected = bytes("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(mac.finalize().into_bytes()[..], expected);
    }

    #[test]
    fn any_of_the_secrets_will_do_while_they_are_rotated() {
        const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        let both = signatures(&[SECRET, OTHER, KEY]);
        for keys in [&[SECRET][..], &[OTHER], &[PUBLIC], &[OTHER, SECRET]] {
            assert_eq!(check(keys, &both, BODY, AT), Ok(()));
        }
        assert_eq!(check(&[SECRET, OTHER], V1, BODY, AT), Ok(()));
        assert_eq!(check(&[OTHER], V1, BODY, AT), Err(Unverified::Signature));
        assert_eq!(check(&[], V1, BODY, AT), Err(Unverified::Signature));
        assert_eq!(check(&[SECRET], &format!("v2,abc junk , {V1}"), BODY, AT), Ok(()));
    }

    #[test]
    fn what_was_changed_is_not_accepted() {
        let keys = [SECRET, PUBLIC];
        for signature in [V1, V1A] {
            for at in 0..BODY.len() {
                let mut body = BODY.to_vec();
                body[at] ^= 1;
                assert_eq!(check(&keys, signature, &body, AT), Err(Unverified::Signature));
            }
            for at in 0..signature.len() {
                let mut changed = signature.as_bytes().to_vec();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(changed).unwrap();
                assert_eq!(check(&keys, &changed, BODY, AT), Err(Unverified::Signature), "{changed}");
            }
        }
        // A signature of one version is not one of another.
        let swapped = format!("{} {}", V1.replace("v1,", "v1a,"), V1A.replace("v1a,", "v1,"));
        assert_eq!(check(&keys, &swapped, BODY, AT), Err(Unverified::Signature));
        for (id, timestamp, expected) in [
            ("", "1614265330", Unverified::Id),
            ("msg.1614265330", "1614265330", Unverified::Id),
            ("msg_other", "1614265330", Unverified::Signature),
            (MESSAGE, "1614265331", Unverified::Signature),
            (MESSAGE, "01614265330", Unverified::Timestamp),
            (MESSAGE, "+1614265330", Unverified::Timestamp),
            (MESSAGE, "-1", Unverified::Timestamp),
            (MESSAGE, "", Unverified::Timestamp),
            (MESSAGE, "99999999999999999999", Unverified::Timestamp),
        ] {
            let keys = keys.map(|text| text.parse().unwrap());
            let headers = SignedHeaders { id, timestamp, signature: V1 };
            assert_eq!(verify(&keys, headers, BODY, AT, TOLERANCE), Err(expected), "{id} {timestamp}");
        }
    }

    #[test]
    fn the_time_must_be_near() {
        for (now, expected) in [
            (AT - 300, Ok(())),
            (AT + 300, Ok(())),
            (AT - 301, Err(Unverified::TooNew)),
            (AT + 301, Err(Unverified::TooOld)),
            (0, Err(Unverified::TooNew)),
            (u64::MAX, Err(Unverified::TooOld)),
        ] {
            assert_eq!(check(&[SECRET], V1, BODY, now), expected, "{now}");
        }
    }

    #[test]
    fn secrets_are_read_or_refused_and_never_shown() {
        let of = |prefix: &str, length: usize| format!("{prefix}{}", STANDARD.encode(vec![7; length]));
        for length in [24, 32, 64] {
            assert!(of("whsec_", length).parse::<SigningSecret>().is_ok());
        }
        for (text, expected) in [
            (String::new(), InvalidSecret::Prefix),
            (PUBLIC.to_owned(), InvalidSecret::Prefix),
            (SECRET.to_uppercase(), InvalidSecret::Prefix),
            ("whsec_%".to_owned(), InvalidSecret::Base64),
            ("whsec_".to_owned(), InvalidSecret::Length),
            (of("whsec_", 23), InvalidSecret::Length),
            (of("whsec_", 65), InvalidSecret::Length),
            (of("whsk_", 31), InvalidSecret::Length),
            (of("whsk_", 33), InvalidSecret::Length),
            (of("whsk_", 65), InvalidSecret::Length),
            (of("whsk_", 64), InvalidSecret::Key),
        ] {
            assert_eq!(text.parse::<SigningSecret>().unwrap_err(), expected, "{text}");
        }
        for (text, expected) in [
            (KEY.to_owned(), InvalidSecret::Prefix),
            (of("whpk_", 31), InvalidSecret::Length),
            // The point of order one.
            (format!("whpk_{}", STANDARD.encode([&[1][..], &[0; 31]].concat())), InvalidSecret::Key),
        ] {
            assert_eq!(text.parse::<VerifyingSecret>().unwrap_err(), expected, "{text}");
        }
        for text in [SECRET, KEY] {
            let shown = format!("{:?} {:?}", secret(text), secret(text).verifying());
            assert_eq!(shown, "SigningSecret(…) VerifyingSecret(…)");
        }
    }

    #[test]
    fn ids_that_could_be_mistaken_are_not_signed() {
        for id in ["", "a.b", "a b", "a\r\nx: y", "\u{e9}"] {
            assert_eq!(sign(&[secret(SECRET)], id, AT, BODY), Err(InvalidId), "{id:?}");
        }
    }

    proptest! {
        // Each costs several computations of Ed25519, which are slow where nothing is optimised.
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// What is signed verifies, with each of the secrets, and a body that is not the same does not.
        #[test]
        fn what_is_signed_verifies(
            id in "[!-\\-/-~]{1,40}",
            at: u64,
            body in prop::collection::vec(any::<u8>(), 0..200),
            other in prop::collection::vec(any::<u8>(), 0..200),
            secrets in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 32)), 1..4),
        ) {
            let secrets = secrets.iter().map(|(is_hmac, bytes)| {
                secret(&format!("{}{}", if *is_hmac { "whsec_" } else { "whsk_" }, STANDARD.encode(bytes)))
            });
            let secrets: Vec<SigningSecret> = secrets.collect();
            let headers = sign(&secrets, &id, at, &body).unwrap();
            let [id, timestamp, signature] = headers.each_ref().map(|(_, value)| value.to_str().unwrap());
            let headers = SignedHeaders { id, timestamp, signature };
            for secret in &secrets {
                prop_assert_eq!(verify(&[secret.verifying()], headers, &body, at, TOLERANCE), Ok(()));
                let verified = verify(&[secret.verifying()], headers, &other, at, TOLERANCE);
                prop_assert_eq!(verified.is_ok(), body == other);
            }
        }

        /// Whatever is sent.
        #[test]
        fn nothing_that_is_received_panics(id: String, timestamp: String, signature: String, now: u64) {
            let keys = [SECRET, PUBLIC].map(|text| text.parse().unwrap());
            for timestamp in [timestamp, now.to_string()] {
                for signature in [signature.clone(), format!("v1,{signature}"), format!("v1a,{signature} v1a,")] {
                    let headers = SignedHeaders { id: &id, timestamp: &timestamp, signature: &signature };
                    prop_assert!(verify(&keys, headers, BODY, now, TOLERANCE).is_err());
                }
            }
        }
    }
}
