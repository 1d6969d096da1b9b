//! Applied sets.

use serde::{Deserialize, Serialize};
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{AppliedItem, AppliedSet, AppliedSetsQuery};
use utoipa::{IntoParams, ToSchema};

use super::event_types::limit;
use crate::access::Visible;
use crate::cursor;
use crate::error::Result;

/// The id of an applied set in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct AppliedSetPath {
    /// The id of the applied set.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// A thing that a set has made, or is about to make.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AppliedItemText {
    /// What it is.
    #[schema(min_length = 1, max_length = 100, example = "Subscription")]
    kind: String,
    /// The code of the client it belongs to, if any.
    #[schema(min_length = 1, max_length = 255)]
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// Its code or name.
    #[schema(min_length = 1, max_length = 255, example = "order-mails")]
    code: String,
    /// What tells it from a later one of the same code: its id, or the moment at which it was created.
    #[schema(min_length = 1, max_length = 100, example = "0HZXEQ5Y8JY5Z")]
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    /// While it is about to be made: a fingerprint of what it will say.
    #[schema(min_length = 1, max_length = 100)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<String>,
}

/// A new set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "code": "default", "items": [{ "kind": "Queue", "code": "mail" }] }))]
pub(crate) struct NewAppliedSet {
    /// The name of the set, unique per client; it never changes.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    pub(crate) code: String,
    /// The client whose callers apply it; that of the caller if absent.
    #[schema(min_length = 13, max_length = 13)]
    pub(crate) client_id: Option<String>,
    /// What it has made.
    #[schema(max_items = 4000)]
    items: Vec<AppliedItemText>,
}

/// What a set has from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "items": [{ "kind": "Queue", "code": "mail" }] }))]
pub(crate) struct AppliedSetChange {
    /// What it has made.
    #[schema(max_items = 4000)]
    items: Vec<AppliedItemText>,
}

/// Which sets to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AppliedSetsParams {
    /// Only those of this client; an unscoped caller sees those of all by default.
    #[param(min_length = 13, max_length = 13)]
    #[serde(rename = "clientId")]
    pub(crate) client_id: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A set of documents and what it has made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AppliedSetAnswer {
    /// The id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// The name of the set, which never changes.
    #[schema(example = "default")]
    code: String,
    /// The client whose callers apply it; `null` for the anchor level.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// What it has made.
    items: Vec<AppliedItemText>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A page of sets.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AppliedSetsAnswer {
    /// The sets by client and code.
    items: Vec<AppliedSetAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl NewAppliedSet {
    pub(crate) fn read(self) -> Vec<AppliedItem> {
        self.items.into_iter().map(AppliedItem::from).collect()
    }
}

impl AppliedSetChange {
    pub(crate) fn read(self) -> Vec<AppliedItem> {
        self.items.into_iter().map(AppliedItem::from).collect()
    }
}

impl From<AppliedItemText> for AppliedItem {
    fn from(item: AppliedItemText) -> Self {
        let AppliedItemText { kind, client, code, identity, pending } = item;
        Self { kind, client, code, identity, pending }
    }
}

impl From<AppliedItem> for AppliedItemText {
    fn from(item: AppliedItem) -> Self {
        let AppliedItem { kind, client, code, identity, pending } = item;
        Self { kind, client, code, identity, pending }
    }
}

impl AppliedSetsParams {
    /// The list that the parameters ask for, of what the caller may see.
    pub(crate) fn read(&self, visible: Visible) -> Result<AppliedSetsQuery> {
        let client = visible.client();
        let after = self.cursor.as_deref().map(|text| cursor::read_applied_set(text, client)).transpose()?;
        Ok(AppliedSetsQuery { client: client.map(Some), after, limit: limit(self.limit.as_deref())? })
    }
}

impl From<AppliedSet> for AppliedSetAnswer {
    fn from(set: AppliedSet) -> Self {
        Self {
            id: set.id,
            code: set.code,
            client_id: set.client,
            items: set.items.into_iter().map(AppliedItemText::from).collect(),
            created_at: set.created_at,
            updated_at: set.updated_at,
        }
    }
}

impl AppliedSetsAnswer {
    pub(crate) fn of(page: Vec<AppliedSet>, more: bool, visible: Visible) -> Self {
        let last = page.last().filter(|_| more);
        let next_cursor = last.map(|last| cursor::of_applied_set(visible.client(), last.client, &last.code));
        Self { items: page.into_iter().map(AppliedSetAnswer::from).collect(), next_cursor }
    }
}
