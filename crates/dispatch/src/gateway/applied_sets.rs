//! Applied sets: what a set of documents has made, so that only that is removed once the documents no longer have it. The
//! gateway keeps the list and does not act on it; who applies documents decides what it says.

use serde::{Deserialize, Serialize};
use tidegate::{
    ChangeResource, DeleteResource, ErrorKind, MAX_RESOURCES, PutResource, Resource, ResourcesQuery, Timestamp, Tsid,
};

use super::error::{GatewayError, Result};
use super::event_types::only;
use super::values::{check_code, check_text, damaged, write};
use super::{Gateway, Match};

/// The kind of resources that are applied sets.
const APPLIED_SET: &str = "applied_set";
/// The most things that a set has.
const MAX_ITEMS: usize = 4_000;
/// The longest kind of a thing, and the longest identity and fingerprint, in bytes.
const MAX_WORD: usize = 100;
/// The longest code of a thing and of its client, in bytes.
const MAX_CODE: usize = 255;

/// A thing that a set has made, or is about to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedItem {
    /// What it is, such as `Subscription`.
    pub kind: String,
    /// The code of the client it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Its code or name.
    pub code: String,
    /// What tells it from a later one of the same code: its id, or the moment at which it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// While it is about to be made: a fingerprint of what it will say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
}

/// A set with what it has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedSet {
    /// Its number.
    pub id: Tsid,
    /// Its name, unique per client; it never changes.
    pub code: String,
    /// The client whose callers apply it; `None` for the anchor level.
    pub client: Option<Tsid>,
    /// What it has made.
    pub items: Vec<AppliedItem>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change: an entity tag.
    pub revision: i64,
}

/// Which sets to list, by client and code.
#[derive(Debug, Clone, Default)]
pub struct AppliedSetsQuery {
    /// Only those of this client (`Some(None)`: of the anchor level); of all if `None`.
    pub client: Option<Option<Tsid>>,
    /// Only those after this client and code.
    pub after: Option<(Option<Tsid>, String)>,
    /// At most so many.
    pub limit: usize,
}

/// A set in its resource's body.
#[derive(Debug, Serialize, Deserialize)]
struct StoredSet {
    items: Vec<AppliedItem>,
}

impl AppliedSet {
    fn read(resource: &Resource) -> Result<Self> {
        let damaged = damaged(resource);
        let Ok(stored) = serde_json::from_str::<StoredSet>(&resource.body) else { return Err(damaged("its body")) };
        Ok(Self {
            id: resource.id,
            code: resource.code.clone(),
            client: resource.client,
            items: stored.items,
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
        })
    }
}

/// The body of a set's resource, whose items are checked.
fn stored(items: &[AppliedItem]) -> Result<String> {
    if items.len() > MAX_ITEMS {
        return Err(GatewayError::Invalid(format!("items must have at most {MAX_ITEMS}: apply several sets")));
    }
    for (at, item) in items.iter().enumerate() {
        let check = |field: &str, text: &str, most| check_text(&format!("items[{at}].{field}"), text, 1, most);
        check("kind", &item.kind, MAX_WORD)?;
        check("code", &item.code, MAX_CODE)?;
        item.client.as_deref().map_or(Ok(()), |text| check("client", text, MAX_CODE))?;
        item.identity.as_deref().map_or(Ok(()), |text| check("identity", text, MAX_WORD))?;
        item.pending.as_deref().map_or(Ok(()), |text| check("pending", text, MAX_WORD))?;
    }
    write(&StoredSet { items: items.to_vec() })
}

impl Gateway {
    /// Creates a set.
    ///
    /// # Errors
    /// `Invalid`, or `Conflict` when the client has one of this code.
    pub async fn create_applied_set(
        &self,
        client: Option<Tsid>,
        code: &str,
        items: &[AppliedItem],
    ) -> Result<AppliedSet> {
        check_code(code)?;
        let (kind, code, body) = (APPLIED_SET.to_owned(), code.to_owned(), stored(items)?);
        let put = PutResource::Create { id: None, kind, client, code: code.clone(), body };
        match self.queue.resources().change(vec![ChangeResource::Put(put)]).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(GatewayError::Conflict(format!("there is an applied set {code} already: change that one")))
            }
            written => AppliedSet::read(only(&written?)?),
        }
    }

    /// Lists sets, and says whether there are more.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_applied_sets(&self, query: &AppliedSetsQuery) -> Result<(Vec<AppliedSet>, bool)> {
        let limit = query.limit.min(MAX_RESOURCES - 1);
        let (kind, client, after) = (APPLIED_SET.to_owned(), query.client, query.after.clone());
        let rows = self.queue.resources().list(ResourcesQuery { kind, client, after, limit: limit + 1 }).await?;
        let mut found = rows.iter().map(AppliedSet::read).collect::<Result<Vec<_>>>()?;
        let more = found.len() > limit;
        found.truncate(limit);
        Ok((found, more))
    }

    /// A set by its id, if it belongs to this client (`None`: whoever it belongs to).
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn applied_set(&self, id: Tsid, client: Option<Tsid>) -> Result<AppliedSet> {
        self.stored_applied_set(id, client, Match::Any).await
    }

    /// Changes what a set has.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Invalid`.
    pub async fn change_applied_set(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        on: Match,
        items: &[AppliedItem],
    ) -> Result<AppliedSet> {
        let body = &stored(items)?;
        self.until_written(|| async move {
            let found = self.stored_applied_set(id, client, on).await?;
            let (kind, expected) = (APPLIED_SET.to_owned(), Some(found.revision));
            let put = PutResource::Change { id, kind, expected, body: body.clone() };
            AppliedSet::read(only(&self.queue.resources().change(vec![ChangeResource::Put(put)]).await?)?)
        })
        .await
    }

    /// Deletes a set. What it has made stays.
    ///
    /// # Errors
    /// `NotFound`, or `Changed`.
    pub async fn delete_applied_set(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<()> {
        self.until_written(|| async move {
            let found = self.stored_applied_set(id, client, on).await?;
            let delete = DeleteResource { id, kind: APPLIED_SET.into(), expected: Some(found.revision) };
            self.queue.resources().change(vec![ChangeResource::Delete(delete)]).await?;
            Ok(())
        })
        .await
    }

    async fn stored_applied_set(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<AppliedSet> {
        let missing = || GatewayError::NotFound(format!("there is no applied set {id}"));
        let found = self.queue.resources().get(APPLIED_SET, id).await?.ok_or_else(missing)?;
        if client.is_some() && found.client != client {
            return Err(missing());
        }
        let found = AppliedSet::read(&found)?;
        on.check(found.revision, &format_args!("the applied set {}", found.code))?;
        Ok(found)
    }
}
