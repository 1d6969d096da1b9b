//! The form in which a resource's body holds a secret: encrypted with AES-256-GCM under a random nonce, and beside it the id of
//! the key. What is encrypted is bound to its resource's kind, client and code, so that a body cannot be moved to another row.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use tidegate::{Resource, Tsid};
use zeroize::Zeroizing;

use super::key::{KeyId, SecretKey};

/// The resource that holds a secret. Its kind and code have no control characters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) kind: &'a str,
    pub(crate) client: Option<Tsid>,
    pub(crate) code: &'a str,
}

/// A body with an encrypted secret.
#[derive(Debug, Serialize, Deserialize)]
struct Sealed {
    /// The id of the key.
    key: String,
    /// The nonce, and what was encrypted, with its tag.
    sealed: String,
}

/// It was encrypted with another key or for another resource, or was changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changed;

impl<'a> Place<'a> {
    pub(crate) fn of(resource: &'a Resource) -> Self {
        Self { kind: &resource.kind, client: resource.client, code: &resource.code }
    }

    fn bound(&self) -> Vec<u8> {
        let client = self.client.map(|client| client.to_string()).unwrap_or_default();
        format!("tidegate secret 1\n{}\n{client}\n{}", self.kind, self.code).into_bytes()
    }
}

/// The id of the key that a body is encrypted with; `None` for a body in plain text.
pub(crate) fn key_of(body: &str) -> Option<KeyId> {
    KeyId::stored(&serde_json::from_str::<Sealed>(body).ok()?.key)
}

/// The body for a secret.
pub(super) fn seal(key: &SecretKey, place: Place<'_>, secret: &str) -> String {
    let nonce: [u8; NONCE_LEN] = rand::random();
    let mut bytes = Zeroizing::new(Vec::with_capacity(secret.len() + AES_256_GCM.tag_len()));
    bytes.extend_from_slice(secret.as_bytes());
    let sealed = cipher(key).seal_in_place_append_tag(
        Nonce::assume_unique_for_key(nonce),
        Aad::from(place.bound()),
        &mut *bytes,
    );
    sealed.expect("a secret is shorter than 64 GiB");
    let sealed = STANDARD.encode([&nonce[..], &bytes].concat());
    // Two texts without anything to escape.
    format!(r#"{{"key":"{}","sealed":"{sealed}"}}"#, key.id())
}

/// The secret in a body that this key has encrypted.
pub(super) fn open(key: &SecretKey, place: Place<'_>, body: &str) -> Result<Zeroizing<String>, Changed> {
    let stored: Sealed = serde_json::from_str(body).map_err(|_| Changed)?;
    let bytes = Zeroizing::new(STANDARD.decode(stored.sealed).map_err(|_| Changed)?);
    let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN).ok_or(Changed)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Changed)?;
    let mut opened = Zeroizing::new(sealed.to_vec());
    let secret = cipher(key).open_in_place(nonce, Aad::from(place.bound()), &mut opened).map_err(|_| Changed)?;
    std::str::from_utf8(secret).map(|text| Zeroizing::new(text.to_owned())).map_err(|_| Changed)
}

fn cipher(key: &SecretKey) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.bytes()).expect("a key has as many bytes as AES-256 takes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place<'_> = Place { kind: "k", client: None, code: "c" };

    #[test]
    fn what_was_sealed_is_opened_by_its_key_in_its_place_alone() {
        let (key, other) = (SecretKey::random(), SecretKey::random());
        let body = seal(&key, PLACE, "s3cret");
        assert!(!body.contains("s3cret"));
        assert_eq!(key_of(&body).as_ref(), Some(key.id()));
        assert_eq!(*open(&key, PLACE, &body).unwrap(), "s3cret");
        assert_ne!(seal(&key, PLACE, "s3cret"), body, "the nonce is a new one");
        assert_eq!(open(&other, PLACE, &body).unwrap_err(), Changed);
        let client = Some(Tsid::from_i64(1));
        for place in [Place { kind: "j", ..PLACE }, Place { client, ..PLACE }, Place { code: "d", ..PLACE }] {
            assert_eq!(open(&key, place, &body).unwrap_err(), Changed, "{place:?}");
        }
        assert_eq!(key_of(r#"{"secrets":["whsec_x"]}"#), None);
    }

    proptest! {
        #[test]
        fn a_changed_body_is_not_opened(secret in ".{0,80}", at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let key = SecretKey::random();
            let body = seal(&key, PLACE, &secret);
            prop_assert_eq!(&*open(&key, PLACE, &body).unwrap(), &secret);
            let mut stored: Sealed = serde_json::from_str(&body).unwrap();
            let mut bytes = STANDARD.decode(&stored.sealed).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            stored.sealed = STANDARD.encode(bytes);
            prop_assert!(open(&key, PLACE, &serde_json::to_string(&stored).unwrap()).is_err());
        }
    }
}
