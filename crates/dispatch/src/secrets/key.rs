//! A key that encrypts secrets: 32 random bytes, as text `tgkey_` and base64. It is known by its id, a fingerprint.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// What a key begins with as text.
const PREFIX: &str = "tgkey_";
/// The length of a key of AES-256, in bytes.
pub(super) const LENGTH: usize = 32;
/// What is hashed before a key, so that its id is the hash of nothing else.
const ID_OF: &[u8] = b"tidegate secrets key\0";

/// A key. It is not shown; its text is given out only by [`text`](Self::text).
#[derive(Clone)]
pub struct SecretKey {
    bytes: Zeroizing<[u8; LENGTH]>,
    id: KeyId,
}

/// The fingerprint of a key: 16 hexadecimal digits. It says nothing about the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(String);

/// A text that is no key. It does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key is {PREFIX} and 44 characters of base64: `tidegate secrets new-key` makes one")]
pub struct InvalidKey;

impl SecretKey {
    /// A new key.
    #[must_use]
    pub fn random() -> Self {
        Self::of(Zeroizing::new(rand::random()))
    }

    fn of(bytes: Zeroizing<[u8; LENGTH]>) -> Self {
        let digest = Sha256::new().chain_update(ID_OF).chain_update(bytes.as_slice()).finalize();
        let id = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { bytes, id: KeyId(id) }
    }

    /// Its fingerprint.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// The key itself as text, for the file or the setting that keeps it.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let encoded = Zeroizing::new(STANDARD.encode(self.bytes.as_slice()));
        Zeroizing::new(format!("{PREFIX}{}", *encoded))
    }

    pub(super) fn bytes(&self) -> &[u8; LENGTH] {
        &self.bytes
    }
}

impl FromStr for SecretKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(InvalidKey)?;
        let read = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| InvalidKey)?);
        let mut bytes = Zeroizing::new([0; LENGTH]);
        if read.len() != LENGTH {
            return Err(InvalidKey);
        }
        bytes.copy_from_slice(&read);
        Ok(Self::of(bytes))
    }
}

impl KeyId {
    /// An id as it is stored beside what the key encrypted.
    pub(super) fn stored(text: &str) -> Option<Self> {
        let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_owned()))
    }

    /// It as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}, …)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        let key = SecretKey::random();
        let read: SecretKey = format!(" {}\n", *key.text()).parse().unwrap();
        assert_eq!((read.bytes(), read.id()), (key.bytes(), key.id()));
        assert_ne!(SecretKey::random().id(), key.id());
        assert_eq!(KeyId::stored(key.id().as_str()).as_ref(), Some(key.id()));
        assert!(!format!("{key:?}").contains(&key.text()[PREFIX.len()..]));
        let short = format!("{PREFIX}{}", STANDARD.encode([7; 31]));
        let long = format!("{PREFIX}{}", STANDARD.encode([7; 33]));
        for bad in ["", "tgkey_", &key.text()[1..], &short, &long, "tgkey_###"] {
            assert_eq!(bad.parse::<SecretKey>().unwrap_err(), InvalidKey, "{bad}");
        }
    }

    /// The id is stored with secrets: it must stay what it is.
    #[test]
    fn the_id_of_a_key_never_changes() {
        let key: SecretKey = format!("{PREFIX}{}", STANDARD.encode([0; 32])).parse().unwrap();
        assert_eq!(key.id().as_str(), "8dabd940f80bea0d");
    }
}
