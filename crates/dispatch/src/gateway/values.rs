//! Event types, versions and schemas as callers see them, and the forms in which resources store them.

use serde::{Deserialize, Serialize};
use tidegate::{Error, ErrorKind, Resource, Timestamp, Tsid};
use tidegate_core::event_type::{EventTypeCode, Stage, TypeStatus, VersionNumber, VersionStatus};
use tidegate_schema::{Definition, SchemaType};

use super::error::{GatewayError, Result};

/// The kind of resources that are event types.
pub(super) const EVENT_TYPE: &str = "event_type";
/// The kind of resources that are schemas.
pub(super) const SCHEMA: &str = "schema";
/// The longest name of a type or a schema, in bytes.
pub(super) const MAX_NAME: usize = 200;
/// The longest code of a client or a subscription, in bytes.
const MAX_SHORT_CODE: usize = 100;
/// The longest description, in bytes.
pub(super) const MAX_DESCRIPTION: usize = 65_536;
/// The longest reason, in bytes.
const MAX_REASON: usize = 1_000;
/// The most versions of a type.
pub(super) const MAX_VERSIONS: usize = 500;
/// The most bytes that the schemas of a type have together: whoever asks for the type gets all of them at once.
pub(super) const MAX_SCHEMAS_BYTES: usize = 16 << 20;

/// An event type with its versions, without their schemas' texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventType {
    /// Its number.
    pub id: Tsid,
    /// Its code, which never changes.
    pub code: EventTypeCode,
    /// A name for people.
    pub name: String,
    /// What the events mean.
    pub description: Option<String>,
    /// Whether its events are accepted.
    pub status: TypeStatus,
    /// Its versions by number.
    pub versions: Vec<SpecVersion>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change of the type and of its versions' schemas: an entity tag.
    pub revision: i64,
}

/// A version of an event type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecVersion {
    /// Its number.
    pub version: VersionNumber,
    /// Where it is in its life.
    pub status: VersionStatus,
    /// The media type of the events' data.
    pub mime_type: String,
    /// The language of its schema.
    pub schema_type: SchemaType,
    /// For Protocol Buffers: the full name of the message that events are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether more is asserted than the language does by itself; see [`Definition::strict`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Why it may break what the version before it accepted, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<Forced>,
    /// The code of the resource that holds its schema.
    pub(super) schema: String,
    /// How often its schema was changed: with the code above it names one text.
    pub(super) edition: u32,
    /// The bytes of its schema's text and description; `None` if the version was written before they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<usize>,
}

/// A change that breaks and was wanted all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forced {
    /// Why.
    pub reason: String,
    /// Who said so.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// A schema with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// Its number.
    pub id: Tsid,
    /// A name for people.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The media type of what it describes.
    pub mime_type: String,
    /// Its language.
    pub schema_type: SchemaType,
    /// Its text; lists leave it empty.
    pub content: String,
    /// The type and the version whose schema it is, if it is one's.
    pub linked: Option<(Tsid, VersionNumber)>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change: an entity tag.
    pub revision: i64,
    /// Its place among others in lists: it begins with the name that it was created under.
    pub(super) code: String,
    pub(super) edition: u32,
}

/// What can be said about a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTypeBody {
    /// A name for people.
    pub name: String,
    /// What the events mean.
    pub description: Option<String>,
}

/// What a new or changed version says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVersion {
    /// The media type of the events' data.
    pub mime_type: String,
    /// The language of the schema.
    pub schema_type: SchemaType,
    /// The schema.
    pub schema: String,
    /// For Protocol Buffers: the full name of the message.
    pub message: Option<String>,
    /// Whether more is asserted than the language does by itself.
    pub strict: bool,
    /// Why the version may break what the one before it accepted, and who says so.
    pub force: Option<(String, String)>,
    /// What the schema is called; by default the code of the type and the number. A change keeps it if it says nothing.
    pub schema_name: Option<String>,
    /// What the schema is for. A change keeps it if it says nothing.
    pub schema_description: Option<String>,
}

/// What a new or changed schema says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaBody {
    /// A name for people.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The media type of what it describes.
    pub mime_type: String,
    /// Its language.
    pub schema_type: SchemaType,
    /// Its text.
    pub content: String,
}

/// An event type in its resource's body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredType {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    pub(super) status: TypeStatus,
    #[serde(default)]
    pub(super) versions: Vec<SpecVersion>,
}

/// A schema in its resource's body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredSchema {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    pub(super) mime_type: String,
    pub(super) schema_type: SchemaType,
    pub(super) content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) event_type: Option<Tsid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<VersionNumber>,
    #[serde(default)]
    pub(super) edition: u32,
}

pub(super) fn damaged(resource: &Resource) -> impl FnOnce(&'static str) -> GatewayError {
    let text = format!("the stored {} {} cannot be read", resource.kind, resource.id);
    move |what| Error::new(ErrorKind::Corrupt, format!("{text}: {what}")).into()
}

impl EventType {
    pub(super) fn read(resource: &Resource) -> Result<Self> {
        let damaged = damaged(resource);
        let Ok(code) = resource.code.parse() else { return Err(damaged("its code")) };
        let Ok(stored) = serde_json::from_str::<StoredType>(&resource.body) else { return Err(damaged("its body")) };
        Ok(Self {
            id: resource.id,
            code,
            name: stored.name,
            description: stored.description,
            status: stored.status,
            versions: stored.versions,
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
        })
    }

    /// The versions' numbers and where they are in their lives.
    #[must_use]
    pub fn stages(&self) -> Vec<Stage> {
        self.versions.iter().map(|one| (one.version, one.status)).collect()
    }

    /// A version of it.
    ///
    /// # Errors
    /// `NotFound` when there is none of this number.
    pub fn version(&self, number: VersionNumber) -> Result<&SpecVersion> {
        let found = self.versions.iter().find(|one| one.version == number);
        found.ok_or_else(|| GatewayError::NotFound(format!("{} has no version {number}", self.code)))
    }

    pub(super) fn body(&self) -> Result<String> {
        let (name, description, versions) = (self.name.clone(), self.description.clone(), self.versions.clone());
        write(&StoredType { name, description, status: self.status, versions })
    }
}

impl Schema {
    pub(super) fn read(resource: &Resource) -> Result<Self> {
        let damaged = damaged(resource);
        let Ok(stored) = serde_json::from_str::<StoredSchema>(&resource.body) else { return Err(damaged("its body")) };
        Ok(Self {
            id: resource.id,
            name: stored.name,
            description: stored.description,
            mime_type: stored.mime_type,
            schema_type: stored.schema_type,
            content: stored.content,
            linked: stored.event_type.zip(stored.version),
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
            code: resource.code.clone(),
            edition: stored.edition,
        })
    }

    /// The bytes that whoever asks for its type gets with it.
    pub(super) fn bytes(&self) -> usize {
        bytes(&self.content, self.description.as_deref())
    }
}

fn bytes(content: &str, description: Option<&str>) -> usize {
    content.len() + description.map_or(0, str::len)
}

impl SchemaBody {
    pub(super) fn body(&self, linked: Option<(Tsid, VersionNumber)>, edition: u32) -> Result<String> {
        write(&StoredSchema {
            name: self.name.clone(),
            description: self.description.clone(),
            mime_type: self.mime_type.clone(),
            schema_type: self.schema_type,
            content: self.content.clone(),
            event_type: linked.map(|linked| linked.0),
            version: linked.map(|linked| linked.1),
            edition,
        })
    }

    pub(super) fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        check_description(self.description.as_deref())?;
        check_mime_type(&self.mime_type, self.schema_type)
    }

    /// The bytes that whoever asks for a type gets with it.
    pub(super) fn bytes(&self) -> usize {
        bytes(&self.content, self.description.as_deref())
    }

    pub(super) fn definition(&self) -> Definition {
        Definition { content: self.content.clone(), message: None, strict: false }
    }
}

impl NewVersion {
    pub(super) fn definition(&self) -> Definition {
        Definition { content: self.schema.clone(), message: self.message.clone(), strict: self.strict }
    }

    pub(super) fn check(&self) -> Result<()> {
        check_mime_type(&self.mime_type, self.schema_type)?;
        if self.message.is_some() && self.schema_type != SchemaType::Proto {
            return Err(GatewayError::Invalid("message is for schemaType PROTO only: leave it out".into()));
        }
        if let Some(name) = &self.schema_name {
            check_label("schemaName", name)?;
        }
        if let Some(text) = &self.schema_description {
            check_text("schemaDescription", text, 0, MAX_DESCRIPTION)?;
        }
        match &self.force {
            Some((reason, _)) => check_text("force.reason", reason, 1, MAX_REASON),
            None => Ok(()),
        }
    }
}

impl EventTypeBody {
    pub(super) fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        check_description(self.description.as_deref())
    }
}

/// What is stored, as JSON.
pub(super) fn write(stored: &impl Serialize) -> Result<String> {
    serde_json::to_string(stored).map_err(|error| Error::invalid(format!("it cannot be stored: {error}")).into())
}

pub(super) fn check_name(name: &str) -> Result<()> {
    check_label("name", name)
}

/// Checks a name in a field.
fn check_label(field: &str, name: &str) -> Result<()> {
    check_text(field, name, 1, MAX_NAME)?;
    match name.chars().any(char::is_control) {
        true => Err(GatewayError::Invalid(format!("{field} must not have control characters"))),
        false => Ok(()),
    }
}

pub(super) fn check_description(description: Option<&str>) -> Result<()> {
    description.map_or(Ok(()), |text| check_text("description", text, 0, MAX_DESCRIPTION))
}

pub(super) fn check_text(field: &str, text: &str, least: usize, most: usize) -> Result<()> {
    if text.trim().len() < least || text.len() > most || text.contains('\0') {
        let text = format!("{field} must have {least} to {most} bytes and no NUL character");
        return Err(GatewayError::Invalid(text));
    }
    Ok(())
}

/// Checks the code of a client or a subscription. It has no ':', so that what is joined with one can be told apart.
pub(super) fn check_code(code: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=MAX_SHORT_CODE).contains(&code.len()) && code.bytes().all(is_plain) {
        return Ok(());
    }
    let text = format!("code must have 1 to {MAX_SHORT_CODE} letters, digits, '.', '_' and '-'");
    Err(GatewayError::Invalid(text))
}

fn check_mime_type(mime_type: &str, schema_type: SchemaType) -> Result<()> {
    check_text("mimeType", mime_type, 1, MAX_NAME)?;
    if schema_type.format(mime_type).is_some() && !mime_type.chars().any(char::is_control) {
        return Ok(());
    }
    let fitting = match schema_type {
        SchemaType::JsonSchema => "application/json, or one that ends with +json",
        SchemaType::Proto => "application/protobuf, application/x-protobuf or application/json",
        SchemaType::Xsd => "application/xml, text/xml, or one that ends with +xml",
    };
    let text = format!("mimeType {mime_type:?} does not fit schemaType {schema_type}: use {fitting}");
    Err(GatewayError::Invalid(text))
}
