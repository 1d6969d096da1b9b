//! Validation of data against a version of an event type.

use std::sync::Arc;

use tidegate::{CatalogueVersion, Tsid};
use tidegate_core::event_type::{VersionNumber, default_version};
use tidegate_schema::{Document, Format, Report, Validator};

use super::compatibility::bad_schema;
use super::error::{GatewayError, Result};
use super::values::{EventType, SpecVersion};
use super::{Gateway, Match, TRIES};

/// Documents up to this size are validated where they are; larger ones apart from the threads that serve requests.
const SMALL: usize = 16 << 10;

/// What a validation found, and against which version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validated {
    /// The version.
    pub version: VersionNumber,
    /// What is wrong.
    pub report: Report,
}

impl Gateway {
    /// Validates data against a version of a type, or against the one that an event which names none is validated against.
    /// `media_type` is that of the data;
    /// the version's when `None`.
    ///
    /// # Errors
    /// `NotFound` when there is no such type or version, `Unsupported` for a media type that the version's schema cannot
    /// judge.
    pub async fn validate(
        &self,
        id: Tsid,
        number: Option<VersionNumber>,
        media_type: Option<&str>,
        data: Vec<u8>,
        known: Option<CatalogueVersion>,
    ) -> Result<Validated> {
        let found = self.event_type(id, known).await?;
        let number = number.or_else(|| default_version(&found.stages())).ok_or_else(|| {
            GatewayError::NotFound(format!("{} has no finalised version: name one, such as 1.0", found.code))
        })?;
        let version = found.version(number)?;
        let media_type = media_type.unwrap_or(&version.mime_type);
        let format = version.schema_type.format(media_type).ok_or_else(|| {
            let text =
                format!("{media_type:?} cannot be validated by a {}: send {}", version.schema_type, version.mime_type);
            GatewayError::Unsupported(text)
        })?;
        let report = self.report(&found, number, format, data).await?;
        Ok(Validated { version: number, report })
    }

    /// What is wrong with data by a version of a type.
    pub(super) async fn report(
        &self,
        found: &EventType,
        number: VersionNumber,
        format: Format,
        data: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Report> {
        let validator = self.validator(found, number).await?;
        if data.as_ref().len() <= SMALL {
            return Ok(validator.validate(Document { bytes: data.as_ref(), format }));
        }
        self.apart.run(move || validator.validate(Document { bytes: data.as_ref(), format })).await
    }

    /// The compiled schema of a version.
    async fn validator(&self, found: &EventType, number: VersionNumber) -> Result<Arc<dyn Validator>> {
        let mut read = None;
        for _ in 0..TRIES {
            let found = read.as_ref().unwrap_or(found);
            let version = found.version(number)?;
            let key = (version.schema.clone(), version.edition);
            match self.validators.get(key, || self.compile(found, version)).await {
                Err(error) if error.is_race() => {}
                validator => return validator,
            }
            read = Some(self.stored_type(found.id, Match::Any).await?);
        }
        Err(GatewayError::Conflict("the schema keeps changing; try again".into()))
    }

    async fn compile(&self, found: &EventType, version: &SpecVersion) -> Result<Box<dyn Validator>> {
        let schema = self.schema_of(found, version.version).await?;
        let (schema_type, definition) = (version.schema_type, super::versions::as_new(version, schema).definition());
        let compiled = self.apart.run(move || schema_type.language().compile(&definition)).await?;
        compiled.map_err(|error| bad_schema("schema", schema_type, error))
    }
}
