//! Event types: create, list, show, change, archive.

use std::sync::Arc;

use tidegate::{CatalogueVersion, ChangeResource, ErrorKind, PutResource, Resource, Tsid};
use tidegate_core::event_type::{CodePattern, EventTypeCode, TypeStatus};

use super::error::{GatewayError, Result};
use super::values::{EVENT_TYPE, EventType, EventTypeBody};
use super::{Gateway, Match, Written};

/// Which event types to list, in the order of their codes.
#[derive(Debug, Clone, Default)]
pub struct TypesQuery {
    /// Only those whose codes match.
    pub code: Option<CodePattern>,
    /// Only those with this status.
    pub status: Option<TypeStatus>,
    /// Only those after this code.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

impl Gateway {
    /// Creates an event type, CURRENT and without versions.
    ///
    /// # Errors
    /// `Invalid`, or `Conflict` when the code is taken.
    pub async fn create_type(&self, code: &EventTypeCode, body: &EventTypeBody) -> Result<EventType> {
        body.check()?;
        let created = EventType {
            id: Tsid::from_i64(0),
            code: code.clone(),
            name: body.name.clone(),
            description: body.description.clone(),
            status: TypeStatus::Current,
            versions: Vec::new(),
            created_at: tidegate::Timestamp::UNIX_EPOCH,
            updated_at: tidegate::Timestamp::UNIX_EPOCH,
            revision: 0,
        };
        let put = PutResource::Create {
            id: None,
            kind: EVENT_TYPE.into(),
            client: None,
            code: code.to_string(),
            body: created.body()?,
        };
        let written = self.queue.resources().change(vec![ChangeResource::Put(put)]).await;
        let taken = |_| GatewayError::Conflict(format!("there is an event type {code} already: change that one"));
        match written {
            Err(error) if error.kind() == ErrorKind::Conflict => Err(taken(error)),
            written => EventType::read(only(&written?)?),
        }
    }

    /// Lists event types, and says whether there are more.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_types(
        &self,
        query: &TypesQuery,
        version: Option<CatalogueVersion>,
    ) -> Result<(Vec<Arc<EventType>>, bool)> {
        let types = self.types.at(&self.queue, self.version(version).await?).await?;
        let prefix = query.code.as_ref().map(CodePattern::prefix).unwrap_or_default();
        let fits = |one: &&Arc<EventType>| {
            query.code.as_ref().is_none_or(|pattern| pattern.matches(one.code.as_str()))
                && query.status.is_none_or(|status| status == one.status)
        };
        let mut found = types.with_prefix(&prefix, query.after.as_deref()).filter(fits);
        let page: Vec<_> = found.by_ref().take(query.limit).cloned().collect();
        Ok((page, found.next().is_some()))
    }

    /// An event type by its id.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn event_type(&self, id: Tsid, version: Option<CatalogueVersion>) -> Result<Arc<EventType>> {
        let types = self.types.at(&self.queue, self.version(version).await?).await?;
        types.by_id(id).cloned().ok_or_else(|| no_type(id))
    }

    /// Changes what is said about a type.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, `Conflict` when it is archived, or `Invalid`.
    pub async fn change_type(&self, id: Tsid, on: Match, body: &EventTypeBody) -> Result<Written> {
        body.check()?;
        self.until_written(|| async move {
            let mut changed = self.open_type(id, on).await?;
            // Every change of a schema changes the type: those that were read before are those of the revision written on.
            let schemas = self.schemas_of(&changed).await?;
            (changed.name, changed.description) = (body.name.clone(), body.description.clone());
            let (event_type, _) = self.write_type(&changed, Vec::new()).await?;
            Ok(Written::of(event_type, schemas))
        })
        .await
    }

    /// Archives a type: its events are refused, and nothing of it changes any more. Again, it changes nothing.
    ///
    /// # Errors
    /// `NotFound`, or `Changed`.
    pub async fn archive_type(&self, id: Tsid, on: Match) -> Result<Written> {
        self.until_written(|| async move {
            let mut found = self.stored_type(id, on).await?;
            let schemas = self.schemas_of(&found).await?;
            if found.status == TypeStatus::Archive {
                return Ok(Written::nothing(found, schemas));
            }
            found.status = TypeStatus::Archive;
            let (event_type, _) = self.write_type(&found, Vec::new()).await?;
            Ok(Written::of(event_type, schemas))
        })
        .await
    }

    /// A type as the store has it now.
    pub(super) async fn stored_type(&self, id: Tsid, on: Match) -> Result<EventType> {
        let found = self.queue.resources().get(EVENT_TYPE, id).await?.ok_or_else(|| no_type(id))?;
        let found = EventType::read(&found)?;
        on.check(found.revision, &format_args!("the event type {}", found.code))?;
        Ok(found)
    }

    /// The same, if it can still change.
    pub(super) async fn open_type(&self, id: Tsid, on: Match) -> Result<EventType> {
        let found = self.stored_type(id, on).await?;
        match found.status {
            TypeStatus::Current => Ok(found),
            TypeStatus::Archive => {
                let text = format!("the event type {} is archived and does not change any more", found.code);
                Err(GatewayError::Conflict(text))
            }
        }
    }

    /// Writes a type over the revision that was read, together with other changes. Returns what all of them have left.
    pub(super) async fn write_type(
        &self,
        changed: &EventType,
        others: Vec<ChangeResource>,
    ) -> Result<(EventType, Vec<Resource>)> {
        let put = PutResource::Change {
            id: changed.id,
            kind: EVENT_TYPE.into(),
            expected: Some(changed.revision),
            body: changed.body()?,
        };
        let mut items = vec![ChangeResource::Put(put)];
        items.extend(others);
        let mut written = self.queue.resources().change(items).await?;
        let event_type = EventType::read(only(&written)?)?;
        written.remove(0);
        Ok((event_type, written))
    }
}

/// The first resource of an answer.
pub(super) fn only(written: &[Resource]) -> Result<&Resource> {
    let lost = || tidegate::Error::new(ErrorKind::Corrupt, "the store did not answer with what it wrote");
    Ok(written.first().ok_or_else(lost)?)
}

pub(super) fn no_type(id: Tsid) -> GatewayError {
    GatewayError::NotFound(format!("there is no event type {id}"))
}
