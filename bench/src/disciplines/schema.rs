//! Validation of data of about 1 KiB, in process: compared with reading the same data, and with few or many other compiled
//! schemas beside it.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use tidegate::{CatalogueVersion, EventQueue, Tsid};
use tidegate_dispatch::{Definition, Document, Format, Gateway, GatewayOptions, SchemaType, Validator};

use super::{Bench, known};
use crate::Result;
use crate::report::Measured;
use crate::runner::interleave;

const JSON: &str = "schema_json";
const PROTO: &str = "schema_proto";
const XSD: &str = "schema_xsd";
const CACHED: &str = "schema_cached";

/// Fields of the event.
const FIELDS: usize = 20;
/// Calls by which a measurement warms up.
const WARM: usize = 200;

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a schema does not compile or its data is not valid.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let calls = bench.scale.validations;
    let runs = bench.scale.runs;
    if bench.wanted.has(JSON) {
        let (validator, data) = (compiled(SchemaType::JsonSchema, json_schema(), None)?, json());
        let ours = async || validated(&*validator, &data, Format::Json, calls);
        let baseline = async || {
            micros(calls, || {
                black_box(serde_json::from_slice::<serde_json::Value>(black_box(&data)).is_ok());
            })
        };
        outcomes.push(Measured::beside(known(JSON)?, interleave(JSON, runs, ours, baseline).await?));
    }
    if bench.wanted.has(PROTO) {
        let validator = compiled(SchemaType::Proto, proto_schema(), Some("bench.Event"))?;
        let message = message(&proto_schema())?;
        let data = prost_reflect::prost::Message::encode_to_vec(&message);
        let descriptor = prost_reflect::ReflectMessage::descriptor(&message);
        let ours = async || validated(&*validator, &data, Format::Protobuf, calls);
        let baseline = async || {
            micros(calls, || {
                black_box(DynamicMessage::decode(descriptor.clone(), black_box(&data[..])).is_ok());
            })
        };
        outcomes.push(Measured::beside(known(PROTO)?, interleave(PROTO, runs, ours, baseline).await?));
    }
    if bench.wanted.has(XSD) {
        let (validator, data) = (compiled(SchemaType::Xsd, xsd(), None)?, xml());
        let ours = async || validated(&*validator, &data, Format::Xml, calls);
        let baseline = async || {
            micros(calls, || {
                black_box(read_xml(black_box(&data)));
            })
        };
        outcomes.push(Measured::beside(known(XSD)?, interleave(XSD, runs, ours, baseline).await?));
    }
    if bench.wanted.has(CACHED) {
        outcomes.push(cached(bench, calls, runs).await?);
    }
    Ok(outcomes)
}

/// The gateway's own judgement, with the schemas of many types compiled and with one alone. The catalogue version is given,
/// so that neither side reads a database.
async fn cached(bench: &Bench, calls: usize, runs: usize) -> Result<Measured> {
    let (folder, data) = (bench.sqlite_folder()?, json());
    let many = Judge::open(&folder.path().join("many.db"), bench.scale.types, &data).await?;
    let alone = Judge::open(&folder.path().join("alone.db"), 1, &data).await?;
    let measured = {
        let (ours, baseline) = (async || many.micros(calls, &data).await, async || alone.micros(calls, &data).await);
        Measured::beside(known(CACHED)?, interleave(CACHED, runs, ours, baseline).await?)
    };
    many.queue.close().await;
    alone.queue.close().await;
    Ok(measured)
}

/// A gateway whose types' schemas are all compiled.
struct Judge {
    queue: EventQueue,
    gateway: Arc<Gateway>,
    version: CatalogueVersion,
    used: Tsid,
}

impl Judge {
    async fn open(file: &Path, count: usize, data: &[u8]) -> Result<Self> {
        let queue = EventQueue::open(&file.to_string_lossy()).await?;
        // Room for all of them: what is measured is the look-up.
        let options = GatewayOptions { validator_bytes: 4 << 30, ..GatewayOptions::default() };
        let gateway = Arc::new(Gateway::new(queue.clone(), options));
        let ids = super::types::create(&gateway, count, &json_schema()).await?;
        let version = queue.catalogue_version().await?;
        for id in &ids {
            gateway.validate(*id, None, None, data.to_vec(), Some(version)).await?;
        }
        let used = *ids.get(ids.len() / 2).ok_or("there is no type")?;
        Ok(Self { queue, gateway, version, used })
    }

    /// Microseconds per judgement.
    async fn micros(&self, calls: usize, data: &[u8]) -> Result<f64> {
        let mut started = Instant::now();
        for call in 0..WARM + calls {
            if call == WARM {
                started = Instant::now();
            }
            let found = self.gateway.validate(self.used, None, None, data.to_vec(), Some(self.version)).await?;
            black_box(found.report.is_valid());
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / calls as f64)
    }
}

fn compiled(schema_type: SchemaType, content: String, message: Option<&str>) -> Result<Box<dyn Validator>> {
    let definition = Definition { content, message: message.map(Into::into), strict: false };
    Ok(schema_type.language().compile(&definition)?)
}

fn validated(validator: &dyn Validator, data: &[u8], format: Format, calls: usize) -> Result<f64> {
    let report = validator.validate(Document { bytes: data, format });
    if !report.is_valid() {
        return Err(format!("the data is not valid: {:?}", report.violations()).into());
    }
    micros(calls, || {
        black_box(validator.validate(Document { bytes: black_box(data), format }).is_valid());
    })
}

/// Microseconds per call.
fn micros(calls: usize, mut call: impl FnMut()) -> Result<f64> {
    (0..WARM).for_each(|_| call());
    let started = Instant::now();
    (0..calls).for_each(|_| call());
    Ok(started.elapsed().as_secs_f64() * 1e6 / calls as f64)
}

/// A text that makes 20 fields about 1 KiB.
fn text(at: usize) -> String {
    format!("the tide comes in and goes out again {at:02}")
}

fn json() -> Vec<u8> {
    let fields: Vec<String> = (0..FIELDS)
        .map(|at| match at % 4 {
            0 => format!("\"field{at}\": {}", 1_000 + at),
            _ => format!("\"field{at}\": \"{}\"", text(at)),
        })
        .collect();
    format!("{{{}}}", fields.join(", ")).into_bytes()
}

pub(super) fn json_schema() -> String {
    let property = |at: usize| match at % 4 {
        0 => format!(r#""field{at}": {{"type": "integer", "minimum": 0, "maximum": 1000000}}"#),
        1 => format!(r#""field{at}": {{"type": "string", "pattern": "^[a-z0-9 ]+$"}}"#),
        _ => format!(r#""field{at}": {{"type": "string", "minLength": 1, "maxLength": 200}}"#),
    };
    let properties: Vec<String> = (0..FIELDS).map(property).collect();
    let required: Vec<String> = (0..FIELDS / 2).map(|at| format!("\"field{at}\"")).collect();
    let (properties, required) = (properties.join(", "), required.join(", "));
    format!(
        r#"{{"type": "object", "required": [{required}], "properties": {{{properties}}}, "additionalProperties": false}}"#
    )
}

fn proto_schema() -> String {
    let field = |at: usize| match at % 4 {
        0 => format!("int64 field{at} = {};", at + 1),
        _ => format!("string field{at} = {};", at + 1),
    };
    let fields: Vec<String> = (0..FIELDS).map(field).collect();
    format!("syntax = \"proto3\"; package bench; message Event {{ {} }}", fields.join(" "))
}

fn message(schema: &str) -> Result<DynamicMessage> {
    let file = protox::file::File::from_source("bench.proto", schema)?;
    let set = protox::Compiler::with_file_resolver(One(file)).open_file("bench.proto")?.file_descriptor_set();
    let pool = DescriptorPool::from_file_descriptor_set(set)?;
    let descriptor = pool.get_message_by_name("bench.Event").ok_or("there is no bench.Event")?;
    let mut message = DynamicMessage::new(descriptor);
    for at in 0..FIELDS {
        let value = if at % 4 == 0 { Value::I64(1_000 + at as i64) } else { Value::String(text(at)) };
        message.set_field_by_name(&format!("field{at}"), value);
    }
    Ok(message)
}

/// The resolver of one file.
struct One(protox::file::File);

impl protox::file::FileResolver for One {
    fn open_file(&self, name: &str) -> std::result::Result<protox::file::File, protox::Error> {
        if name == "bench.proto" { Ok(self.0.clone()) } else { Err(protox::Error::file_not_found(name)) }
    }
}

fn xml() -> Vec<u8> {
    let fields: Vec<String> = (0..FIELDS)
        .map(|at| match at % 4 {
            0 => format!("<field{at}>{}</field{at}>", 1_000 + at),
            _ => format!("<field{at}>{}</field{at}>", text(at)),
        })
        .collect();
    format!("<event>{}</event>", fields.concat()).into_bytes()
}

fn xsd() -> String {
    let field = |at: usize| {
        let of = if at.is_multiple_of(4) { "xs:int" } else { "xs:string" };
        format!(r#"<xs:element name="field{at}" type="{of}"/>"#)
    };
    let fields: String = (0..FIELDS).map(field).collect();
    format!(
        r#"<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="event"><xs:complexType><xs:sequence>{fields}</xs:sequence></xs:complexType></xs:element></xs:schema>"#
    )
}

fn read_xml(data: &[u8]) -> usize {
    let mut reader = quick_xml::Reader::from_reader(data);
    let mut events = 0;
    loop {
        match reader.read_event() {
            Ok(quick_xml::events::Event::Eof) | Err(_) => return events,
            Ok(_) => events += 1,
        }
    }
}
