//! Schemas: those on their own, and those of versions, which are changed as their versions are.

use tidegate::{
    CatalogueVersion, ChangeResource, DeleteResource, Error, ErrorKind, MAX_RESOURCES, PutResource, ResourcesQuery,
    Timestamp, Tsid,
};
use tidegate_core::event_type::VersionNumber;

use super::error::{GatewayError, Result};
use super::event_types::only;
use super::values::{EventType, MAX_NAME, NewVersion, SCHEMA, Schema, SchemaBody};
use super::{Gateway, Match};

/// Which schemas to list, in the order of their names.
#[derive(Debug, Clone, Default)]
pub struct SchemasQuery {
    /// Only those after this one, as a list returned it.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// A code for a new schema: schemas are listed in its order, and several may have the same name.
pub(super) fn new_code(name: &str) -> String {
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}/{:016x}", &name[..end], rand::random::<u64>())
}

impl Schema {
    /// Where a list goes on after this schema.
    #[must_use]
    pub fn cursor(&self) -> &str {
        &self.code
    }
}

impl Gateway {
    /// Registers a schema, on its own or as a new version of an event type.
    ///
    /// # Errors
    /// `Invalid`, `Unprocessable` when it does not compile; with a link also those of
    /// [`add_version`](Self::add_version).
    pub async fn create_schema(
        &self,
        body: &SchemaBody,
        link: Option<(Tsid, VersionNumber)>,
        now: Timestamp,
    ) -> Result<Schema> {
        body.check()?;
        self.compiles(body.schema_type, body.definition(), "content").await?;
        if let Some((id, number)) = link {
            let new = as_version(body, None, false);
            let written = self.until_written(|| self.try_add(id, Match::Any, number, &new, Some(body), now)).await?;
            return self.schema_of(&written.event_type, number).await;
        }
        let put = PutResource::Create {
            id: None,
            kind: SCHEMA.into(),
            client: None,
            code: new_code(&body.name),
            body: body.body(None, 0)?,
        };
        let written = self.queue.resources().change(vec![ChangeResource::Put(put)]).await?;
        Schema::read(only(&written)?)
    }

    /// Lists schemas, and says whether there are more.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_schemas(&self, query: &SchemasQuery) -> Result<(Vec<Schema>, bool)> {
        let limit = query.limit.min(MAX_RESOURCES - 1);
        let wanted = ResourcesQuery {
            kind: SCHEMA.into(),
            client: Some(None),
            after: query.after.clone().map(|after| (None, after)),
            limit: limit + 1,
        };
        let rows = self.queue.resources().list(wanted).await?;
        let mut schemas = rows.iter().map(Schema::read).collect::<Result<Vec<_>>>()?;
        let more = schemas.len() > limit;
        schemas.truncate(limit);
        Ok((schemas, more))
    }

    /// A schema by its id.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn schema(&self, id: Tsid) -> Result<Schema> {
        self.stored_schema(id, Match::Any).await
    }

    /// Changes a schema. That of a version can be changed while the version is FINALISING.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, `Invalid`, `Unprocessable`, and `Conflict` when its version was finalised.
    pub async fn change_schema(&self, id: Tsid, on: Match, body: &SchemaBody, now: Timestamp) -> Result<Schema> {
        body.check()?;
        self.until_written(|| async move {
            let found = self.stored_schema(id, on).await?;
            let Some((of, number)) = found.linked else {
                self.compiles(body.schema_type, body.definition(), "content").await?;
                let put = PutResource::Change {
                    id,
                    kind: SCHEMA.into(),
                    expected: Some(found.revision),
                    body: body.body(None, found.edition.wrapping_add(1))?,
                };
                let written = self.queue.resources().change(vec![ChangeResource::Put(put)]).await?;
                return Schema::read(only(&written)?);
            };
            let version = self.stored_type(of, Match::Any).await?.version(number)?.clone();
            let new = as_version(body, version.message, version.strict);
            self.compiles(new.schema_type, new.definition(), "content").await?;
            let written = self.try_change(of, Match::Any, number, &new, Some(body), now).await?;
            self.schema_of(&written.event_type, number).await
        })
        .await
    }

    /// Deletes a schema that is on its own. That of a version is deleted with its version.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Conflict` when it belongs to a version.
    pub async fn delete_schema(&self, id: Tsid, on: Match) -> Result<()> {
        self.until_written(|| async move {
            let found = self.stored_schema(id, on).await?;
            if let Some((of, number)) = found.linked {
                let text =
                    format!("this is the schema of version {number} of the event type {of}: delete that version");
                return Err(GatewayError::Conflict(text));
            }
            let delete = DeleteResource { id, kind: SCHEMA.into(), expected: Some(found.revision) };
            self.queue.resources().change(vec![ChangeResource::Delete(delete)]).await?;
            Ok(())
        })
        .await
    }

    async fn stored_schema(&self, id: Tsid, on: Match) -> Result<Schema> {
        let missing = || GatewayError::NotFound(format!("there is no schema {id}"));
        let found = Schema::read(&self.queue.resources().get(SCHEMA, id).await?.ok_or_else(missing)?)?;
        on.check(found.revision, &format_args!("the schema {id}"))?;
        Ok(found)
    }

    /// The schema of a version of a type that was read. An error of the class `Conflict` when it has changed since.
    ///
    /// # Errors
    /// `NotFound` when there is no such version, or the store's.
    pub async fn schema_of(&self, found: &EventType, number: VersionNumber) -> Result<Schema> {
        let version = found.version(number)?;
        let stored = self.queue.resources().by_code(SCHEMA, None, &version.schema).await?;
        let stored = stored.as_ref().map(Schema::read).transpose()?;
        stored.filter(|schema| schema.edition == version.edition).ok_or_else(|| {
            let text = format!("the schema of {} {number} has changed meanwhile; try again", found.code);
            Error::new(ErrorKind::Conflict, text).into()
        })
    }

    /// A type with the schemas of its versions, in the order of the versions.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn type_with_schemas(
        &self,
        id: Tsid,
        version: Option<CatalogueVersion>,
    ) -> Result<(EventType, Vec<Schema>)> {
        let found = self.event_type(id, version).await?;
        self.with_schemas(EventType::clone(&found)).await
    }

    /// The same for a type that was read; should its schemas have changed since, as it is now.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn with_schemas(&self, mut found: EventType) -> Result<(EventType, Vec<Schema>)> {
        let mut tried = 0;
        loop {
            match self.schemas_of(&found).await {
                Err(error) if error.is_race() && tried < super::TRIES => tried += 1,
                schemas => return Ok((found, schemas?)),
            }
            found = self.stored_type(found.id, Match::Any).await?;
        }
    }

    /// The schemas of a type that was read, in the order of its versions.
    ///
    /// # Errors
    /// As [`schema_of`](Self::schema_of).
    pub async fn schemas_of(&self, found: &EventType) -> Result<Vec<Schema>> {
        let mut schemas = Vec::with_capacity(found.versions.len());
        for version in &found.versions {
            schemas.push(self.schema_of(found, version.version).await?);
        }
        Ok(schemas)
    }
}

fn as_version(body: &SchemaBody, message: Option<String>, strict: bool) -> NewVersion {
    NewVersion {
        mime_type: body.mime_type.clone(),
        schema_type: body.schema_type,
        schema: body.content.clone(),
        message,
        strict,
        force: None,
    }
}
