//! Signing secrets of subscriptions: made at random, shown once, kept apart from what every node caches.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::gateway::error::Result;
use crate::gateway::values::write;

/// What secrets begin with, after the specification of Standard Webhooks.
const PREFIX: &str = "whsec_";
/// The length of a secret, in bytes.
const LENGTH: usize = 32;

/// Secrets in their resource's body, the one to sign with first.
#[derive(Serialize, Deserialize)]
struct Stored {
    secrets: Vec<String>,
}

/// A new secret.
pub(super) fn new_secret() -> String {
    format!("{PREFIX}{}", STANDARD.encode(rand::random::<[u8; LENGTH]>()))
}

/// The body of a secret's resource.
pub(super) fn stored(secret: &str) -> Result<String> {
    write(&Stored { secrets: vec![secret.to_owned()] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_long() {
        let (one, other) = (new_secret(), new_secret());
        assert_ne!(one, other);
        let bytes = STANDARD.decode(one.strip_prefix(PREFIX).unwrap()).unwrap();
        assert_eq!(bytes.len(), LENGTH);
    }
}
