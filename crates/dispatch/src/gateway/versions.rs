//! Versions of event types: add, change, delete, finalise, deprecate. A version's schema is written with it.

use tidegate::{ChangeResource, DeleteResource, PutResource, Timestamp, Tsid};
use tidegate_core::event_type::{self, VersionNumber, VersionStatus};

use super::error::{GatewayError, Result};
use super::schemas::new_code;
use super::values::{EventType, Forced, MAX_VERSIONS, NewVersion, SCHEMA, Schema, SchemaBody, SpecVersion};
use super::{Changed, Gateway, Match, Written};

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
        self.until_written(|| self.try_add(id, on, number, new, None, now)).await
    }

    /// The same with a name and a description of the schema.
    pub(super) async fn try_add(
        &self,
        id: Tsid,
        on: Match,
        number: VersionNumber,
        new: &NewVersion,
        about: Option<&SchemaBody>,
        now: Timestamp,
    ) -> Result<Written> {
        let mut found = self.open_type(id, on).await?;
        event_type::add(&found.stages(), number)?;
        if found.versions.len() >= MAX_VERSIONS {
            let text = format!("the event type {} has {MAX_VERSIONS} versions, which is the limit", found.code);
            return Err(GatewayError::Conflict(text));
        }
        let warnings = self.check_compatible(&found, number, new).await?;
        let name = about.map_or_else(|| format!("{} {number}", found.code), |about| about.name.clone());
        let code = new_code(&name);
        found.versions.push(spec_version(number, new, code.clone(), 0, now));
        found.versions.sort_by_key(|one| one.version);
        let body = schema_body(new, name, about.and_then(|about| about.description.clone()));
        let create = PutResource::Create {
            id: None,
            kind: SCHEMA.into(),
            client: None,
            code,
            body: body.body(Some((id, number)), 0)?,
        };
        let event_type = self.write_type(&found, vec![ChangeResource::Put(create)]).await?;
        Ok(Written { event_type, changed: Changed::Yes, warnings })
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
        self.until_written(|| self.try_change(id, on, number, new, None, now)).await
    }

    /// The same with a name and a description of the schema, which otherwise keeps its own.
    pub(super) async fn try_change(
        &self,
        id: Tsid,
        on: Match,
        number: VersionNumber,
        new: &NewVersion,
        about: Option<&SchemaBody>,
        now: Timestamp,
    ) -> Result<Written> {
        let mut found = self.open_type(id, on).await?;
        event_type::change(&found.stages(), number)?;
        let warnings = self.check_compatible(&found, number, new).await?;
        let schema = self.schema_of(&found, number).await?;
        let (name, description) = match about {
            Some(about) => (about.name.clone(), about.description.clone()),
            None => (schema.name.clone(), schema.description.clone()),
        };
        let edition = schema.edition.wrapping_add(1);
        let changed = spec_version(number, new, schema.code.clone(), edition, now);
        found.versions.iter_mut().filter(|one| one.version == number).for_each(|one| *one = changed.clone());
        let body = schema_body(new, name, description).body(Some((id, number)), edition)?;
        let put = PutResource::Change { id: schema.id, kind: SCHEMA.into(), expected: Some(schema.revision), body };
        let event_type = self.write_type(&found, vec![ChangeResource::Put(put)]).await?;
        Ok(Written { event_type, changed: Changed::Yes, warnings })
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
            self.write_type(&found, vec![ChangeResource::Delete(delete)]).await
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
            let Some(after) = event_type::finalise(&found.stages(), number)? else {
                return Ok(Written::nothing(found));
            };
            let own = found.version(number)?.clone();
            let schema = self.schema_of(&found, number).await?;
            let warnings = self.check_compatible(&found, number, &as_new(&own, schema)).await?;
            for (version, (_, status)) in found.versions.iter_mut().zip(after) {
                version.status = status;
            }
            let event_type = self.write_type(&found, Vec::new()).await?;
            Ok(Written { event_type, changed: Changed::Yes, warnings })
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
            if !event_type::deprecate(&found.stages(), number)? {
                return Ok(Written::nothing(found));
            }
            let one = |version: &&mut SpecVersion| version.version == number;
            found.versions.iter_mut().filter(one).for_each(|version| version.status = VersionStatus::Deprecated);
            let event_type = self.write_type(&found, Vec::new()).await?;
            Ok(Written { event_type, changed: Changed::Yes, warnings: Vec::new() })
        })
        .await
    }
}

fn spec_version(number: VersionNumber, new: &NewVersion, schema: String, edition: u32, now: Timestamp) -> SpecVersion {
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
    }
}
