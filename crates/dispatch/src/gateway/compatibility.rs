//! Whether a version's schema compiles, and whether it accepts what the version before it accepted.

use tidegate_core::event_type::{self, VersionNumber};
use tidegate_schema::{Change, Comparison, Definition, SchemaError, SchemaType, Verdict, Violation};

use super::Gateway;
use super::error::{GatewayError, Result};
use super::values::{EventType, NewVersion, Schema, SchemaBody, SpecVersion};
use super::versions::as_new;

/// The most changes that a refusal shows.
const SHOWN: usize = 100;

/// Where a caller can say why a change that breaks is wanted all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForceAt {
    /// In the request itself.
    Here,
    /// Not in this one: with the version.
    Version,
}

impl Gateway {
    /// Refuses a schema that does not compile, with where it is wrong.
    pub(super) async fn check_compiles(&self, new: &NewVersion) -> Result<()> {
        self.compiles(new.schema_type, new.definition(), "schema").await
    }

    /// The same for the text in a field.
    pub(super) async fn compiles(
        &self,
        schema_type: SchemaType,
        definition: Definition,
        field: &'static str,
    ) -> Result<()> {
        let compiled = self.apart.run(move || schema_type.language().compile(&definition).map(drop)).await?;
        compiled.map_err(|error| bad_schema(field, schema_type, error))
    }

    /// Refuses the text of a schema that no data is validated against.
    pub(super) async fn check_alone(&self, body: &SchemaBody) -> Result<()> {
        let (schema_type, definition) = (body.schema_type, body.definition());
        let checked = self.apart.run(move || schema_type.language().check(&definition)).await?;
        checked.map_err(|error| bad_schema("content", schema_type, error))
    }

    /// Refuses a version that breaks what its predecessor accepted, unless that is forced. Returns the differences of which
    /// nobody can tell.
    pub(super) async fn check_compatible(
        &self,
        found: &EventType,
        number: VersionNumber,
        new: &NewVersion,
        force_at: ForceAt,
    ) -> Result<Vec<Change>> {
        let Some(before) = event_type::predecessor(&found.stages(), number) else { return Ok(Vec::new()) };
        if new.force.is_some() {
            return Ok(Vec::new());
        }
        let version = found.version(before)?;
        if version.schema_type != new.schema_type {
            let text = format!("schemaType was {} and is {}", version.schema_type, new.schema_type);
            return Err(breaks(number, before, force_at, vec![Violation::new("schemaType", text)]));
        }
        let old = self.schema_of(found, before).await?;
        let old = as_new(version, old).definition();
        let comparison = self.differences(new.schema_type, old, new.definition()).await?;
        if comparison.verdict() < Verdict::Breaking {
            return Ok(comparison.at_least(Verdict::CannotTell).take(SHOWN).cloned().collect());
        }
        let shown = comparison.at_least(Verdict::Breaking).take(SHOWN);
        let violations = shown.map(|change| Violation::new(&change.path, &change.message)).collect();
        Err(breaks(number, before, force_at, violations))
    }

    /// Compares the schemas of two versions of a type.
    ///
    /// # Errors
    /// `NotFound`, or `Conflict` when their schemas are of different languages.
    pub async fn compare_versions(
        &self,
        found: &EventType,
        old: VersionNumber,
        new: VersionNumber,
    ) -> Result<Comparison> {
        let (before, after) = (found.version(old)?, found.version(new)?);
        if before.schema_type != after.schema_type {
            let text =
                format!("{old} is {} and {new} is {}: they cannot be compared", before.schema_type, after.schema_type);
            return Err(GatewayError::Conflict(text));
        }
        let definition = |version: &SpecVersion, schema: Schema| as_new(version, schema).definition();
        let old = definition(before, self.schema_of(found, old).await?);
        let new = definition(after, self.schema_of(found, new).await?);
        self.differences(before.schema_type, old, new).await
    }

    async fn differences(&self, schema_type: SchemaType, old: Definition, new: Definition) -> Result<Comparison> {
        let compared = self.apart.run(move || schema_type.language().compare(&old, &new)).await?;
        compared.map_err(|error| bad_schema("schema", schema_type, error))
    }
}

fn breaks(number: VersionNumber, before: VersionNumber, force_at: ForceAt, violations: Vec<Violation>) -> GatewayError {
    let or = match force_at {
        ForceAt::Here => "say why it is wanted in force.reason",
        ForceAt::Version => "write it as a version of its event type, which may say why it is wanted",
    };
    let message = format!(
        "version {number} breaks what version {before} accepts: change the schema, use the next major ({}.0), or {or}",
        u64::from(number.major) + 1
    );
    GatewayError::Unprocessable { message, violations }
}

pub(super) fn bad_schema(field: &'static str, schema_type: SchemaType, error: SchemaError) -> GatewayError {
    let message = format!("{field} is not a {schema_type} that can be used: {error}");
    let violation = Violation { path: field.into(), message: error.message, position: error.position };
    GatewayError::Unprocessable { message, violations: vec![violation] }
}
