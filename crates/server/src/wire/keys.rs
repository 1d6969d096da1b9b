//! API keys.

use serde::{Deserialize, Serialize};
use tidegate::{Timestamp, Tsid};
use utoipa::{IntoParams, ToSchema};

use crate::auth::KeyInfo;
use crate::error::{ApiError, Result};
use crate::scope::Scope;

/// The id of a key in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct KeyPath {
    /// The id of the key.
    #[param(value_type = u64, minimum = 1, example = 7)]
    id: String,
}

/// A new key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "name": "order service", "scopes": ["publish", "read"] }))]
pub(crate) struct NewKeyBody {
    /// A name for people, also shown as the actor in the audit.
    #[schema(min_length = 1, max_length = 255)]
    pub(crate) name: String,
    /// What it may do.
    pub(crate) scopes: Vec<Scope>,
    /// The client it belongs to; that of the caller, or all clients, if absent.
    #[schema(min_length = 13, max_length = 13)]
    client_id: Option<String>,
    /// When it becomes invalid; never if absent.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<String>,
}

/// A key that was just created.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewKeyAnswer {
    /// The key itself. It is shown this once.
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) info: KeyAnswer,
}

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyAnswer {
    /// The number by which it is revoked.
    pub(crate) id: i64,
    /// A name for people.
    name: String,
    /// What it may do.
    scopes: Vec<String>,
    /// The client it belongs to; `null` for a key that sees all clients.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last used, to within some seconds.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
    /// Until when it is valid.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Timestamp>,
}

/// All keys that the caller may see.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeysAnswer {
    /// The keys in the order of their creation, revoked ones included.
    pub(crate) items: Vec<KeyAnswer>,
}

impl NewKeyBody {
    /// The client that the key is to belong to, as the body names it.
    pub(crate) fn client(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    /// When the key becomes invalid.
    pub(crate) fn expiry(&self) -> Result<Option<Timestamp>> {
        let bad = |_| ApiError::invalid("expiresAt must be a moment such as 2030-01-01T00:00:00Z");
        self.expires_at.as_deref().map(|text| text.parse().map_err(bad)).transpose()
    }
}

impl From<KeyInfo> for KeyAnswer {
    fn from(key: KeyInfo) -> Self {
        Self {
            id: key.id,
            name: key.name,
            scopes: key.scopes,
            client_id: key.client,
            created_at: key.created_at,
            last_used_at: key.last_used_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
        }
    }
}
