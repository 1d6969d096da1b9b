//! Signing secrets that are replaced.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Timestamp;
use tidegate_dispatch::{Rotated, SecretText, SigningScheme};
use utoipa::ToSchema;

use crate::error::{ApiError, Result};

/// How a signing secret is to be replaced. An empty body is `{}`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "overlapSeconds": 86400 }))]
pub(crate) struct RotateText {
    /// For how long the secrets before it sign as well; 86,400 (a day) by default, 0 to end them at once.
    #[schema(maximum = 2_592_000)]
    overlap_seconds: Option<u64>,
    /// `v1` (HMAC-SHA256, a secret that both sides have) or `v1a` (Ed25519, of which the receiver gets the public key); that of
    /// the newest secret by default.
    #[schema(example = "v1")]
    scheme: Option<String>,
}

/// A signing secret that was just made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RotatedAnswer {
    /// `v1` or `v1a`.
    #[schema(value_type = String, example = "v1")]
    scheme: SigningScheme,
    /// The secret (`whsec_…`), shown this once; absent with `v1a`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    signing_secret: Option<SecretText>,
    /// The public key (`whpk_…`) that webhooks are verified with; absent with `v1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    /// Until when the secrets before it sign as well; `null` if they do not any more.
    #[schema(value_type = Option<String>, format = DateTime)]
    others_valid_until: Option<Timestamp>,
}

impl RotateText {
    pub(crate) fn overlap(&self) -> Option<Duration> {
        self.overlap_seconds.map(Duration::from_secs)
    }

    pub(crate) fn scheme(&self) -> Result<Option<SigningScheme>> {
        match self.scheme.as_deref() {
            None => Ok(None),
            Some("v1") => Ok(Some(SigningScheme::V1)),
            Some("v1a") => Ok(Some(SigningScheme::V1a)),
            Some(_) => Err(ApiError::invalid("scheme must be v1 or v1a")),
        }
    }
}

impl From<Rotated> for RotatedAnswer {
    fn from(rotated: Rotated) -> Self {
        let Rotated { secret, public_key, scheme, others_until } = rotated;
        Self { scheme, signing_secret: secret, public_key, others_valid_until: others_until }
    }
}
