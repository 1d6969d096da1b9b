//! Schemas: those on their own, and those of versions, which are changed as their versions are.

use tidegate::{
    CatalogueVersion, ChangeResource, DeleteResource, Error, ErrorKind, MAX_RESOURCES, PutResource, ResourcesQuery,
    Timestamp, Tsid,
};
use tidegate_core::event_type::{self, VersionNumber};
use tidegate_schema::SchemaType;

use super::compatibility::ForceAt;
use super::error::{GatewayError, Result};
use super::event_types::only;
use super::values::{EventType, MAX_NAME, NewVersion, SCHEMA, Schema, SchemaBody};
use super::{Gateway, Match, Written};

/// How many schemas a list reads at once: each is at most as large as a resource.
const PIECE: usize = 16;
/// The most bytes of stored schemas that are read for one page of a list, but for the piece in which it ends.
const PAGE_BYTES: usize = 16 << 20;

/// Which schemas to list, in the order of the names that they were created under.
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
        if let Some((id, number)) = link {
            let new = as_version(body, None, false);
            self.compiles_linked(body, &new).await?;
            let add = || self.try_add(id, Match::Any, number, &new, ForceAt::Version, now);
            return the_schema(self.until_written(add).await?);
        }
        self.check_alone(body).await?;
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

    /// Lists schemas without their texts, and says whether there are more. A page of large schemas may be shorter than
    /// its limit: texts are stored with what a list shows, and few of them are read at once.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_schemas(&self, query: &SchemasQuery) -> Result<(Vec<Schema>, bool)> {
        let limit = query.limit.min(MAX_RESOURCES);
        let (mut schemas, mut bytes, mut after) = (Vec::new(), 0, query.after.clone());
        loop {
            // One more than the page has room for: whether there are more.
            let piece = PIECE.min(limit - schemas.len() + 1);
            let wanted = ResourcesQuery {
                kind: SCHEMA.into(),
                client: Some(None),
                after: after.map(|after| (None, after)),
                limit: piece,
            };
            let rows = self.queue.resources().list(wanted).await?;
            let is_last = rows.len() < piece;
            for row in rows {
                if schemas.len() == limit || bytes > PAGE_BYTES {
                    return Ok((schemas, true));
                }
                bytes += row.body.len();
                schemas.push(Schema { content: String::new(), ..Schema::read(&row)? });
            }
            if is_last {
                return Ok((schemas, false));
            }
            after = schemas.last().map(|last: &Schema| last.code.clone());
        }
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
                self.check_alone(body).await?;
                let put = PutResource::Change {
                    id,
                    kind: SCHEMA.into(),
                    expected: Some(found.revision),
                    body: body.body(None, found.edition.wrapping_add(1))?,
                };
                let written = self.queue.resources().change(vec![ChangeResource::Put(put)]).await?;
                return Schema::read(only(&written)?);
            };
            let of = self.open_type(of, Match::Any).await?;
            event_type::change(&of.stages(), number)?;
            let version = of.version(number)?;
            if (&version.schema, version.edition) != (&found.code, found.edition) {
                return Err(changed_meanwhile(&of, number));
            }
            let new = as_version(body, version.message.clone(), version.strict);
            self.compiles_linked(body, &new).await?;
            the_schema(self.try_change((of, found), number, &new, body, ForceAt::Version, now).await?)
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

    /// Refuses the text of a version's schema that does not compile.
    async fn compiles_linked(&self, body: &SchemaBody, new: &NewVersion) -> Result<()> {
        let (mut message, violations) = match self.compiles(new.schema_type, new.definition(), "content").await {
            Err(GatewayError::Unprocessable { message, violations }) => (message, violations),
            other => return other,
        };
        if new.schema_type == SchemaType::Proto && self.check_alone(body).await.is_ok() {
            message.push_str(": the message of a version is named where versions of its event type are written");
        }
        Err(GatewayError::Unprocessable { message, violations })
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
        stored.filter(|schema| schema.edition == version.edition).ok_or_else(|| changed_meanwhile(found, number))
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
    async fn with_schemas(&self, mut found: EventType) -> Result<(EventType, Vec<Schema>)> {
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
    pub(super) async fn schemas_of(&self, found: &EventType) -> Result<Vec<Schema>> {
        let mut schemas = Vec::with_capacity(found.versions.len());
        for version in &found.versions {
            schemas.push(self.schema_of(found, version.version).await?);
        }
        Ok(schemas)
    }
}

/// The other writer's error, after which the same call may succeed.
fn changed_meanwhile(found: &EventType, number: VersionNumber) -> GatewayError {
    let text = format!("the schema of {} {number} has changed meanwhile; try again", found.code);
    Error::new(ErrorKind::Conflict, text).into()
}

/// The schema of the one version that a change was about.
fn the_schema(written: Written) -> Result<Schema> {
    let lost = || Error::new(ErrorKind::Corrupt, "a version was written without its schema");
    Ok(written.schemas.into_iter().next().ok_or_else(lost)?)
}

fn as_version(body: &SchemaBody, message: Option<String>, strict: bool) -> NewVersion {
    NewVersion {
        mime_type: body.mime_type.clone(),
        schema_type: body.schema_type,
        schema: body.content.clone(),
        message: message.filter(|_| body.schema_type == SchemaType::Proto),
        strict,
        force: None,
        schema_name: Some(body.name.clone()),
        schema_description: body.description.clone(),
    }
}
