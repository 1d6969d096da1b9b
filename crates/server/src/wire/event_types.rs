//! Event types, their versions, and what a validation found.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{
    Change, CodePattern, EventType, EventTypeBody, EventTypeCode, NewVersion, Schema, SchemaType, SpecVersion,
    TypeStatus, TypesQuery, Validated, VersionNumber, VersionStatus,
};
use utoipa::{IntoParams, ToSchema};

use super::violations::ViolationBody;
use crate::access::Caller;
use crate::cursor;
use crate::error::{ApiError, Result};
use crate::parameters::{MAX_LIMIT, number};

/// Items on a page when the request does not say.
pub(crate) const DEFAULT_LIMIT: u64 = 50;

/// The id of an event type in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct TypePath {
    /// The id of the event type.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// The id of an event type and a version in a path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes parameters")]
pub(crate) struct VersionPath {
    /// The id of the event type.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
    /// The version, `MAJOR.MINOR`.
    #[param(pattern = r"^(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$", example = "1.0")]
    version: String,
}

/// The entity tag that a change is made on.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct IfMatchHeader {
    /// Makes the change only if the resource still has this entity tag; otherwise the answer is 412.
    #[param(rename = "If-Match", required = false, example = "\"42\"")]
    if_match: Option<String>,
}

/// A new event type.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "code": "shop:orders:order:created", "name": "Order created" }))]
pub(crate) struct NewEventType {
    /// `application:subdomain:aggregate:event`, unique.
    #[schema(max_length = 255)]
    code: String,
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// What the events mean.
    #[schema(max_length = 65536)]
    description: Option<String>,
}

/// What is said about an event type.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "name": "Order created", "description": "A customer has ordered." }))]
pub(crate) struct EventTypeChange {
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// What the events mean; removed if absent.
    #[schema(max_length = 65536)]
    description: Option<String>,
}

/// Why a version may break what the one before it accepted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Force {
    /// The reason, which is kept.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

/// A version of an event type, new or changed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({
    "version": "1.0", "mimeType": "application/json", "schemaType": "JSON_SCHEMA",
    "schema": "{\"type\": \"object\", \"required\": [\"orderId\"]}"
}))]
pub(crate) struct SpecVersionBody {
    /// `MAJOR.MINOR`, higher than every other version of its major. A change may leave it out.
    version: Option<String>,
    /// The media type of the events' data.
    mime_type: String,
    /// The schema: its text, or a JSON Schema as it is.
    #[schema(value_type = String)]
    schema: Box<RawValue>,
    /// `JSON_SCHEMA`, `PROTO` or `XSD`.
    #[schema(example = "JSON_SCHEMA")]
    schema_type: String,
    /// For PROTO: the full name of the message; may be left out when there is only one.
    message: Option<String>,
    /// For JSON_SCHEMA: asserts `format`. For PROTO: refuses unknown fields.
    strict: Option<bool>,
    /// Accepts a change that breaks what the version before accepts.
    force: Option<Force>,
    /// What the schema is called among `/api/schemas`; the type's code and the version if absent. A change that leaves it
    /// out keeps it.
    #[schema(min_length = 1, max_length = 200)]
    schema_name: Option<String>,
    /// What the schema is for. A change that leaves it out keeps it.
    #[schema(max_length = 65536)]
    schema_description: Option<String>,
}

/// Which event types to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TypesParams {
    /// A code with `*` for any of its four parts.
    #[param(example = "shop:*:order:*")]
    code: Option<String>,
    /// `CURRENT` or `ARCHIVE`.
    #[param(example = "CURRENT")]
    status: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Which version to validate against.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ValidateParams {
    /// The version; if absent the highest CURRENT one or, if there is none, the highest DEPRECATED one.
    #[param(example = "1.0")]
    pub(crate) version: Option<String>,
}

/// An event type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventTypeAnswer {
    /// The id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// The code, which never changes.
    #[schema(value_type = String, example = "shop:orders:order:created")]
    code: EventTypeCode,
    /// A name for people.
    name: String,
    /// What the events mean.
    description: Option<String>,
    /// `CURRENT` or `ARCHIVE`.
    #[schema(value_type = String, example = "CURRENT")]
    status: TypeStatus,
    /// The versions by number. Lists leave their schemas out.
    spec_versions: Vec<SpecVersionAnswer>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A version of an event type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SpecVersionAnswer {
    /// `MAJOR.MINOR`.
    #[schema(value_type = String, example = "1.0")]
    version: VersionNumber,
    /// `FINALISING`, `CURRENT` or `DEPRECATED`.
    #[schema(value_type = String, example = "CURRENT")]
    status: VersionStatus,
    /// The media type of the events' data.
    mime_type: String,
    /// `JSON_SCHEMA`, `PROTO` or `XSD`.
    #[schema(value_type = String, example = "JSON_SCHEMA")]
    schema_type: SchemaType,
    /// The schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    /// The id of the schema among `/api/schemas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    schema_id: Option<Tsid>,
    /// What the schema is called there.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_name: Option<String>,
    /// What the schema is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_description: Option<String>,
    /// For PROTO: the full name of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Whether more is asserted than the language does by itself.
    strict: bool,
    /// Why it may break what the version before it accepted, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    force: Option<ForcedAnswer>,
    /// Differences from the version before of which nobody can tell whether they break something. Only in the answer to a
    /// change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<ViolationBody>,
}

/// A change that breaks and was wanted all the same.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForcedAnswer {
    /// Why.
    reason: String,
    /// Who said so.
    by: String,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

/// A page of event types.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventTypesAnswer {
    /// The event types in the order of their codes.
    items: Vec<EventTypeAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// What a validation found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ValidationAnswer {
    /// Whether the data is valid.
    valid: bool,
    /// What is wrong: the first 100 violations.
    violations: Vec<ViolationBody>,
    /// How many violations there are.
    total: u64,
    /// The version that the data was validated against.
    #[schema(value_type = String, example = "1.0")]
    version: VersionNumber,
}

impl NewEventType {
    /// The code and what is said about the type. 400 when the code is not valid.
    pub(crate) fn read(self) -> Result<(EventTypeCode, EventTypeBody)> {
        let code =
            self.code.parse().map_err(|error| ApiError::invalid(format!("{error}, not {:?}", clip(&self.code))))?;
        Ok((code, EventTypeBody { name: self.name, description: self.description }))
    }
}

impl From<EventTypeChange> for EventTypeBody {
    fn from(body: EventTypeChange) -> Self {
        Self { name: body.name, description: body.description }
    }
}

impl SpecVersionBody {
    /// The number that a new version must name.
    pub(crate) fn number(&self) -> Result<VersionNumber> {
        let named = self.version.as_deref().ok_or_else(|| ApiError::invalid("version is required, such as 1.0"))?;
        version(named)
    }

    /// Refuses a change that names another version than its path.
    pub(crate) fn check_number(&self, expected: VersionNumber) -> Result<()> {
        match self.version.as_deref().map(version).transpose()? {
            Some(named) if named != expected => {
                let text = format!("version is {named}, but the path names {expected}: leave it out, or add a version");
                Err(ApiError::invalid(text))
            }
            _ => Ok(()),
        }
    }

    /// The version that the body describes, forced by `caller` if it is.
    pub(crate) fn read(self, caller: &Caller) -> Result<NewVersion> {
        Ok(NewVersion {
            mime_type: self.mime_type,
            schema_type: schema_type(&self.schema_type)?,
            schema: schema_text("schema", &self.schema)?,
            message: self.message,
            strict: self.strict.unwrap_or(false),
            force: self.force.map(|force| (force.reason, caller.name().to_owned())),
            schema_name: self.schema_name,
            schema_description: self.schema_description,
        })
    }
}

impl TypesParams {
    /// The list that the parameters ask for.
    pub(crate) fn read(&self) -> Result<TypesQuery> {
        let code = self.code.as_deref().map(str::parse::<CodePattern>).transpose();
        let status = match self.status.as_deref() {
            None => None,
            Some("CURRENT") => Some(TypeStatus::Current),
            Some("ARCHIVE") => Some(TypeStatus::Archive),
            Some(other) => {
                return Err(ApiError::invalid(format!("status must be CURRENT or ARCHIVE, not {:?}", clip(other))));
            }
        };
        Ok(TypesQuery {
            code: code.map_err(|error| ApiError::invalid(format!("code: {error}")))?,
            status,
            after: self.cursor.as_deref().map(cursor::read_event_type).transpose()?,
            limit: limit(self.limit.as_deref())?,
        })
    }
}

impl EventTypeAnswer {
    /// A type with its versions' schemas, which are in the order of the versions.
    pub(crate) fn whole(found: &EventType, schemas: Vec<Schema>) -> Self {
        let versions = found.versions.iter().zip(schemas);
        let shown = versions.map(|(version, schema)| SpecVersionAnswer::of(version, Some(schema), &[])).collect();
        Self::with(found, shown)
    }

    /// A type as lists show it.
    pub(crate) fn listed(found: &EventType) -> Self {
        Self::with(found, found.versions.iter().map(|version| SpecVersionAnswer::of(version, None, &[])).collect())
    }

    fn with(found: &EventType, spec_versions: Vec<SpecVersionAnswer>) -> Self {
        Self {
            id: found.id,
            code: found.code.clone(),
            name: found.name.clone(),
            description: found.description.clone(),
            status: found.status,
            spec_versions,
            created_at: found.created_at,
            updated_at: found.updated_at,
        }
    }
}

impl SpecVersionAnswer {
    pub(crate) fn of(version: &SpecVersion, schema: Option<Schema>, warnings: &[Change]) -> Self {
        let (schema_id, schema_name) = schema.as_ref().map(|schema| (schema.id, schema.name.clone())).unzip();
        let (schema, schema_description) = schema.map(|schema| (schema.content, schema.description)).unzip();
        let forced = version.forced.clone();
        Self {
            version: version.version,
            status: version.status,
            mime_type: version.mime_type.clone(),
            schema_type: version.schema_type,
            schema,
            schema_id,
            schema_name,
            schema_description: schema_description.flatten(),
            message: version.message.clone(),
            strict: version.strict,
            force: forced.map(|forced| ForcedAnswer { reason: forced.reason, by: forced.by, at: forced.at }),
            warnings: warnings.iter().map(ViolationBody::of_change).collect(),
        }
    }
}

impl EventTypesAnswer {
    pub(crate) fn of(page: &[std::sync::Arc<EventType>], more: bool) -> Self {
        let last = page.last().filter(|_| more);
        Self {
            items: page.iter().map(|one| EventTypeAnswer::listed(one)).collect(),
            next_cursor: last.map(|last| cursor::of_event_type(last.code.as_str())),
        }
    }
}

impl From<Validated> for ValidationAnswer {
    fn from(found: Validated) -> Self {
        Self {
            valid: found.report.is_valid(),
            violations: found.report.violations().iter().map(ViolationBody::of).collect(),
            total: found.report.total(),
            version: found.version,
        }
    }
}

/// Parses the number of a version.
pub(crate) fn version(text: &str) -> Result<VersionNumber> {
    text.parse().map_err(|error| ApiError::invalid(format!("{error}, not {:?}", clip(text))))
}

/// Parses the name of a language.
pub(crate) fn schema_type(text: &str) -> Result<SchemaType> {
    text.parse()
        .map_err(|_| ApiError::invalid(format!("schemaType must be JSON_SCHEMA, PROTO or XSD, not {:?}", clip(text))))
}

/// A schema that was sent as text, or as JSON, which is kept as it was sent.
pub(crate) fn schema_text(field: &str, raw: &RawValue) -> Result<String> {
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw.get())
            .map_err(|error| ApiError::invalid(format!("{field} cannot be read: {error}"))),
        Some(b'{') => Ok(raw.get().to_owned()),
        _ => Err(ApiError::invalid(format!("{field} must be text, or a JSON Schema as a JSON object"))),
    }
}

/// Parses the size of a page.
pub(crate) fn limit(text: Option<&str>) -> Result<usize> {
    let limit = number("limit", text, 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}
