//! Versions of event types: add, change, delete, finalise, deprecate. A version's schema is written with it.

use tidegate::{ChangeResource, DeleteResource, PutResource, Timestamp, Tsid};
use tidegate_core::event_type::{self, VersionNumber, VersionStatus};
use tidegate_schema::Change;

use super::compatibility::ForceAt;
use super::error::{GatewayError, Result};
use super::event_types::only;
use super::schemas::new_code;
use super::values::{
    EventType, Forced, MAX_SCHEMAS_BYTES, MAX_VERSIONS, NewVersion, SCHEMA, Schema, SchemaBody, SpecVersion,
};
use super::{Gateway, Match, Written};

impl Gateway {
    /// Adds a version, FINALISING. Its schema must compile and, unless that is forced, accept what the last finalised
    /// version of its major accepted.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, `Conflict` for a move that the life cycle does not allow, `Invalid`, `Unprocessable`.
    pub async fn add_version(
        &self,
        id: Tsid,
        on: Match,
        number: VersionNumber,
        new: &NewVersion,
        now: Timestamp,
    ) -> Result<Written> {
        new.check()?;
        self.check_compiles(new).await?;
        self.until_written(|| self.try_add(id, on, number, new, ForceAt::Here, now)).await
    }

    /// Adds it to what there is now.
    pub(super) async fn try_add(
        &self,
        id: Tsid,
        on: Match,
        number: VersionNumber,
        new: &NewVersion,
        force_at: ForceAt,
        now: Timestamp,
    ) -> Result<Written> {
        let mut found = self.open_type(id, on).await?;
        event_type::add(&found.stages(), number)?;
        if found.versions.len() >= MAX_VERSIONS {
            let text = format!("the event type {} has {MAX_VERSIONS} versions, which is the limit", found.code);
            return Err(GatewayError::Conflict(text));
        }
        let warnings = self.check_compatible(&found, number, new, force_at).await?;
        let name = new.schema_name.clone().unwrap_or_else(|| format!("{} {number}", found.code));
        let body = schema_body(new, name, new.schema_description.clone());
        self.check_room(&found, number, &body).await?;
        let code = new_code(&body.name);
        found.versions.push(spec_version(number, new, (code.clone(), 0), &body, now));
        found.versions.sort_by_key(|one| one.version);
        let create = PutResource::Create {
            id: None,
            kind: SCHEMA.into(),
            client: None,
            code,
            body: body.body(Some((id, number)), 0)?,
        };
        self.write_version(&found, create, warnings).await
    }

    /// Writes a type with one version's schema, and answers with what both have become.
    async fn write_version(&self, found: &EventType, schema: PutResource, warnings: Vec<Change>) -> Result<Written> {
        let (event_type, others) = self.write_type(found, vec![ChangeResource::Put(schema)]).await?;
        Ok(Written { warnings, ..Written::of(event_type, vec![Schema::read(only(&others)?)?]) })
    }

    /// Refuses a schema that has no room beside those of a type's other versions.
    async fn check_room(&self, found: &EventType, number: VersionNumber, body: &SchemaBody) -> Result<()> {
        let mut all = body.bytes();
        for other in found.versions.iter().filter(|one| one.version != number) {
            all += match other.bytes {
                Some(bytes) => bytes,
                None => self.schema_of(found, other.version).await?.bytes(),
            };
        }
        if all <= MAX_SCHEMAS_BYTES {
            return Ok(());
        }
        let text = format!(
            "the schemas of {} would have {all} bytes together with their descriptions, and {MAX_SCHEMAS_BYTES} are \
             allowed: shorten this one, delete versions that are FINALISING, or go on with another event type",
            found.code
        );
        Err(GatewayError::Conflict(text))
    }

    /// Changes a version while it is FINALISING.
    ///
    /// # Errors
    /// As [`add_version`](Self::add_version).
    pub async fn change_version(
        &self,
        id: Tsid,
        on: Match,
        number: VersionNumber,
        new: &NewVersion,
        now: Timestamp,
    ) -> Result<Written> {
        new.check()?;
        self.check_compiles(new).await?;
        self.until_written(|| async move {
            let found = self.open_type(id, on).await?;
            event_type::change(&found.stages(), number)?;
            let schema = self.schema_of(&found, number).await?;
            let name = new.schema_name.clone().unwrap_or_else(|| schema.name.clone());
            let description = new.schema_description.clone().or_else(|| schema.description.clone());
            let body = schema_body(new, name, description);
            self.try_change((found, schema), number, new, &body, ForceAt::Here, now).await
        })
        .await
    }

    /// Changes a version and its schema, both on the revisions that were read.
    pub(super) async fn try_change(
        &self,
        (mut found, schema): (EventType, Schema),
        number: VersionNumber,
        new: &NewVersion,
        body: &SchemaBody,
        force_at: ForceAt,
        now: Timestamp,
    ) -> Result<Written> {
        let warnings = self.check_compatible(&found, number, new, force_at).await?;
        self.check_room(&found, number, body).await?;
        let edition = schema.edition.wrapping_add(1);
        let changed = spec_version(number, new, (schema.code, edition), body, now);
        found.versions.iter_mut().filter(|one| one.version == number).for_each(|one| *one = changed.clone());
        let body = body.body(Some((found.id, number)), edition)?;
        let put = PutResource::Change { id: schema.id, kind: SCHEMA.into(), expected: Some(schema.revision), body };
        self.write_version(&found, put, warnings).await
    }

    /// Deletes a version while it is FINALISING, and its schema.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Conflict` when it was finalised.
    pub async fn delete_version(&self, id: Tsid, on: Match, number: VersionNumber) -> Result<EventType> {
        self.until_written(|| async move {
            let mut found = self.open_type(id, on).await?;
            event_type::change(&found.stages(), number)?;
            let schema = self.schema_of(&found, number).await?;
            found.versions.retain(|one| one.version != number);
            let delete = DeleteResource { id: schema.id, kind: SCHEMA.into(), expected: Some(schema.revision) };
            Ok(self.write_type(&found, vec![ChangeResource::Delete(delete)]).await?.0)
        })
        .await
    }

    /// Makes a FINALISING version CURRENT; the CURRENT one of its major becomes DEPRECATED. Again, it changes nothing.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, `Conflict` for a move that is not allowed, `Unprocessable` when it breaks what a version
    /// accepts that was finalised after it was added.
    pub async fn finalise_version(&self, id: Tsid, on: Match, number: VersionNumber) -> Result<Written> {
        self.until_written(|| async move {
            let mut found = self.open_type(id, on).await?;
            let after = event_type::finalise(&found.stages(), number)?;
            let schema = self.schema_of(&found, number).await?;
            let Some(after) = after else { return Ok(Written::nothing(found, vec![schema])) };
            let new = as_new(found.version(number)?, schema.clone());
            let warnings = self.check_compatible(&found, number, &new, ForceAt::Version).await?;
            for (version, (_, status)) in found.versions.iter_mut().zip(after) {
                version.status = status;
            }
            let (event_type, _) = self.write_type(&found, Vec::new()).await?;
            Ok(Written { warnings, ..Written::of(event_type, vec![schema]) })
        })
        .await
    }

    /// Marks a CURRENT version as DEPRECATED: it is still accepted, with a warning. Again, it changes nothing.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Conflict` when it is FINALISING.
    pub async fn deprecate_version(&self, id: Tsid, on: Match, number: VersionNumber) -> Result<Written> {
        self.until_written(|| async move {
            let mut found = self.open_type(id, on).await?;
            let is_new = event_type::deprecate(&found.stages(), number)?;
            let schema = self.schema_of(&found, number).await?;
            if !is_new {
                return Ok(Written::nothing(found, vec![schema]));
            }
            let one = |version: &&mut SpecVersion| version.version == number;
            found.versions.iter_mut().filter(one).for_each(|version| version.status = VersionStatus::Deprecated);
            let (event_type, _) = self.write_type(&found, Vec::new()).await?;
            Ok(Written::of(event_type, vec![schema]))
        })
        .await
    }
}

fn spec_version(
    number: VersionNumber,
    new: &NewVersion,
    (schema, edition): (String, u32),
    body: &SchemaBody,
    now: Timestamp,
) -> SpecVersion {
    let forced = new.force.clone().map(|(reason, by)| Forced { reason, by, at: now });
    SpecVersion {
        version: number,
        status: VersionStatus::Finalising,
        mime_type: new.mime_type.clone(),
        schema_type: new.schema_type,
        message: new.message.clone(),
        strict: new.strict,
        forced,
        schema,
        edition,
        bytes: Some(body.bytes()),
    }
}

fn schema_body(new: &NewVersion, name: String, description: Option<String>) -> SchemaBody {
    SchemaBody {
        name,
        description,
        mime_type: new.mime_type.clone(),
        schema_type: new.schema_type,
        content: new.schema.clone(),
    }
}

/// A version as it would be added.
pub(super) fn as_new(version: &SpecVersion, schema: Schema) -> NewVersion {
    NewVersion {
        mime_type: version.mime_type.clone(),
        schema_type: version.schema_type,
        schema: schema.content,
        message: version.message.clone(),
        strict: version.strict,
        force: version.forced.as_ref().map(|forced| (forced.reason.clone(), forced.by.clone())),
        schema_name: Some(schema.name),
        schema_description: schema.description,
    }
}
