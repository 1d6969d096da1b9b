//! Events in the JSON format of CloudEvents, as the OpenAPI document describes them. They are read and written by
//! `tidegate_core::cloud_event`.

use serde::Serialize;
use utoipa::ToSchema;

/// An event in the JSON format of CloudEvents 1.0. Further members are extension attributes: booleans, whole numbers of 32
/// bits, or texts.
#[derive(Debug, ToSchema)]
#[schema(example = json!({
    "specversion": "1.0", "id": "A234-1234-1234", "source": "/shop", "type": "shop:orders:order:created",
    "datacontenttype": "application/json", "data": { "amount": 99.99 }, "correlationid": "req-1"
}))]
#[expect(dead_code, reason = "it only describes a body, which is read and written by its parts")]
pub(crate) struct CloudEventBody {
    /// `1.0`.
    #[schema(example = "1.0")]
    specversion: String,
    /// The producer's id. Together with the source it is a key: a repeat within 24 hours is answered with the first event.
    #[schema(min_length = 1)]
    id: String,
    /// Where it happened: a URI-reference.
    #[schema(min_length = 1)]
    source: String,
    /// The type.
    #[schema(min_length = 1, max_length = 255)]
    r#type: String,
    /// What it is about.
    subject: Option<String>,
    /// When it happened.
    #[schema(value_type = Option<String>, format = DateTime)]
    time: Option<String>,
    /// The media type of the data; JSON if absent.
    datacontenttype: Option<String>,
    /// The schema that the data adheres to: a URI.
    dataschema: Option<String>,
    /// What happened: any JSON, or a text if the media type is not JSON.
    #[schema(value_type = Value, required = false)]
    data: Option<String>,
    /// What happened, in Base64, instead of `data`.
    data_base64: Option<String>,
}

/// The value of an attribute.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it only describes an answer")]
pub(crate) enum AttributeSchema {
    /// A boolean.
    Boolean(bool),
    /// A whole number.
    Integer(i32),
    /// A text.
    Text(String),
}
