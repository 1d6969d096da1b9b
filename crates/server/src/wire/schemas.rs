//! Schemas, on their own or of a version of an event type.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{Schema, SchemaBody, SchemaType, SchemasQuery, VersionNumber};
use utoipa::{IntoParams, ToSchema};

use super::event_types::{limit, schema_text, schema_type, version};
use crate::cursor;
use crate::error::{ApiError, Result};

/// The id of a schema in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct SchemaPath {
    /// The id of the schema.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// A schema, new or changed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({
    "name": "Order", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "content": "{\"type\": \"object\"}"
}))]
pub(crate) struct SchemaText {
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// What it is for.
    #[schema(max_length = 65536)]
    description: Option<String>,
    /// The media type of what it describes.
    mime_type: String,
    /// `JSON_SCHEMA`, `PROTO` or `XSD`.
    #[schema(example = "JSON_SCHEMA")]
    schema_type: String,
    /// The schema: its text, or a JSON Schema as it is.
    #[schema(value_type = String)]
    content: Box<RawValue>,
    /// The event type that it becomes a new version of; cannot be changed.
    event_type_id: Option<String>,
    /// The number of that version; cannot be changed.
    version: Option<String>,
}

/// Which schemas to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SchemasParams {
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A schema.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SchemaAnswer {
    /// The id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// A name for people.
    name: String,
    /// What it is for.
    description: Option<String>,
    /// The media type of what it describes.
    mime_type: String,
    /// `JSON_SCHEMA`, `PROTO` or `XSD`.
    #[schema(value_type = String, example = "JSON_SCHEMA")]
    schema_type: SchemaType,
    /// Its text. Lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// The event type that it belongs to, if any.
    #[schema(value_type = Option<String>)]
    event_type_id: Option<Tsid>,
    /// The version of the event type that it belongs to, if any.
    #[schema(value_type = Option<String>)]
    version: Option<VersionNumber>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A page of schemas.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SchemasAnswer {
    /// The schemas in the order of the names that they were created under.
    items: Vec<SchemaAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl SchemaText {
    /// The type and the version that the schema is linked to. 400 when only one of them is named.
    pub(crate) fn link(&self) -> Result<Option<(Tsid, VersionNumber)>> {
        match (self.event_type_id.as_deref(), self.version.as_deref()) {
            (None, None) => Ok(None),
            (Some(id), Some(number)) => {
                let bad = |_| ApiError::invalid("eventTypeId must be the id of an event type: 13 characters");
                Ok(Some((id.parse().map_err(bad)?, version(number)?)))
            }
            _ => Err(ApiError::invalid("eventTypeId and version go together: name both, or neither")),
        }
    }

    pub(crate) fn read(self) -> Result<SchemaBody> {
        Ok(SchemaBody {
            name: self.name,
            description: self.description,
            mime_type: self.mime_type,
            schema_type: schema_type(&self.schema_type)?,
            content: schema_text("content", &self.content)?,
        })
    }
}

impl SchemasParams {
    pub(crate) fn read(&self) -> Result<SchemasQuery> {
        let after = self.cursor.as_deref().map(cursor::read_schema).transpose()?;
        Ok(SchemasQuery { after, limit: limit(self.limit.as_deref())? })
    }
}

impl SchemaAnswer {
    /// A schema with its text.
    pub(crate) fn whole(mut schema: Schema) -> Self {
        let content = std::mem::take(&mut schema.content);
        Self { content: Some(content), ..Self::listed(schema) }
    }

    fn listed(schema: Schema) -> Self {
        Self {
            id: schema.id,
            name: schema.name,
            description: schema.description,
            mime_type: schema.mime_type,
            schema_type: schema.schema_type,
            content: None,
            event_type_id: schema.linked.map(|linked| linked.0),
            version: schema.linked.map(|linked| linked.1),
            created_at: schema.created_at,
            updated_at: schema.updated_at,
        }
    }
}

impl SchemasAnswer {
    pub(crate) fn of(page: Vec<Schema>, more: bool) -> Self {
        let next_cursor = page.last().filter(|_| more).map(|last| cursor::of_schema(last.cursor()));
        Self { items: page.into_iter().map(SchemaAnswer::listed).collect(), next_cursor }
    }
}
