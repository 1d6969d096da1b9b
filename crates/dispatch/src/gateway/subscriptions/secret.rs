//! Signing secrets of subscriptions: made at random, shown once, kept apart from what every node caches.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tidegate::Resource;

use crate::gateway::error::Result;
use crate::gateway::values::{damaged, write};
use crate::webhook::signature::SigningSecret;

/// What secrets begin with, after the specification of Standard Webhooks.
const PREFIX: &str = "whsec_";
/// The length of a secret, in bytes.
const LENGTH: usize = 32;

/// Secrets in their resource's body, the one to sign with first.
#[derive(Serialize, Deserialize)]
pub(crate) struct Secrets {
    secrets: Vec<String>,
}

impl Secrets {
    pub(crate) fn read(resource: &Resource) -> Result<Self> {
        serde_json::from_str(&resource.body).map_err(|_| damaged(resource)("its body"))
    }

    /// What webhooks are signed with. What is none is left out.
    pub(crate) fn parsed(&self) -> Vec<SigningSecret> {
        self.secrets.iter().filter_map(|secret| secret.parse().ok()).collect()
    }
}

/// A new signing secret, made at random: `whsec_` and 32 bytes in base64.
#[must_use]
pub fn new_signing_secret() -> String {
    format!("{PREFIX}{}", STANDARD.encode(rand::random::<[u8; LENGTH]>()))
}

/// The body of a secret's resource.
pub(super) fn stored(secret: &str) -> Result<String> {
    write(&Secrets { secrets: vec![secret.to_owned()] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_long() {
        let (one, other) = (new_signing_secret(), new_signing_secret());
        assert_ne!(one, other);
        let bytes = STANDARD.decode(one.strip_prefix(PREFIX).unwrap()).unwrap();
        assert_eq!(bytes.len(), LENGTH);
    }
}
