//! The schemas and documents of the crate's own tests.

use std::fs;
use std::path::{Path, PathBuf};

use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use serde_json::Value;
use tidegate_schema::{Definition, Format, SchemaType, Validator};

use crate::Input;

/// A schema of the tests, and documents for it.
pub(crate) struct Schema {
    language: SchemaType,
    strict: bool,
    is_set: bool,
    message: String,
    content: Vec<u8>,
    pub(crate) format: Format,
    pub(crate) documents: Vec<Vec<u8>>,
}

impl Schema {
    fn text(language: SchemaType, content: impl Into<String>, format: Format) -> Self {
        let content = content.into().into_bytes();
        Self { language, strict: false, is_set: false, message: String::new(), content, format, documents: Vec::new() }
    }

    /// The schema as an input has it.
    pub(crate) fn input(&self) -> Input<'_> {
        let message = self.message.as_bytes();
        Input { strict: self.strict, is_set: self.is_set, message, content: &self.content }
    }

    /// Compiles it; some are there to be refused.
    pub(crate) fn compile(&self) -> Option<(Box<dyn Validator>, Format)> {
        let definition: Definition = self.input().definition();
        let validator = self.language.language().compile(&definition).ok()?;
        Some((validator, self.format))
    }
}

/// All schemas of a language, always in the same order.
pub(crate) fn schemas(language: SchemaType) -> Vec<Schema> {
    match language {
        SchemaType::JsonSchema => json(),
        SchemaType::Proto => proto(),
        SchemaType::Xsd => xsd(),
    }
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder with an extension, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = entries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

/// The official suite.
fn json() -> Vec<Schema> {
    let mut schemas = Vec::new();
    for (draft, dialect) in [
        ("draft7", "http://json-schema.org/draft-07/schema#"),
        ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
        ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
    ] {
        for file in files(&tests().join("json_schema_suite").join(draft), "json") {
            let groups: Vec<Value> = serde_json::from_str(&read(&file)).expect("a file of the suite");
            for mut group in groups {
                if let Some(schema) = group["schema"].as_object_mut() {
                    schema.entry("$schema").or_insert_with(|| dialect.into());
                }
                let documents = group["tests"].as_array().into_iter().flatten();
                let documents = documents.map(|test| test["data"].to_string().into_bytes()).collect();
                let plain = Schema::text(SchemaType::JsonSchema, group["schema"].to_string(), Format::Json);
                schemas.push(Schema { strict: file.ends_with("format.json"), documents, ..plain });
            }
        }
    }
    schemas
}

/// The fixtures in both formats, lenient and strict, as text and as a descriptor set; then the texts of the tests.
fn proto() -> Vec<Schema> {
    type Case = (bool, bool, String, String, String, String);
    let cases: Vec<Case> = serde_json::from_str(&read(tests().join("proto/cases.json"))).expect("the cases");
    let mut schemas = Vec::new();
    for (name, message) in [("all3", "fixtures.All"), ("old2", "fixtures.Old")] {
        let text = read(tests().join(format!("proto/{name}.proto")));
        for (format, word) in [(Format::Protobuf, "binary"), (Format::Json, "json")] {
            let documents = cases.iter().filter(|case| case.2 == name && case.3 == word).map(|case| match format {
                Format::Protobuf => bytes_of(&case.5),
                _ => case.5.clone().into_bytes(),
            });
            let documents = documents.collect::<Vec<_>>();
            for strict in [false, true] {
                let plain = Schema::text(SchemaType::Proto, text.as_str(), format);
                schemas.push(Schema { strict, message: message.into(), documents: documents.clone(), ..plain });
            }
        }
        let plain = Schema::text(SchemaType::Proto, "", Format::Protobuf);
        schemas.push(Schema { is_set: true, message: message.into(), content: set(&text), ..plain });
    }
    let folder = tests().join("../src/proto/tests");
    let sources = files(&folder, "rs").into_iter().chain([tests().join("proto_hostile.rs")]);
    for literal in sources.flat_map(|file| literals(&read(file))).filter(|literal| literal.contains("message ")) {
        for format in [Format::Protobuf, Format::Json] {
            let plain = Schema::text(SchemaType::Proto, literal.as_str(), format);
            schemas.push(Schema {
                message: "A".into(),
                documents: vec![b"{}".to_vec(), b"\x08\x01".to_vec()],
                ..plain
            });
        }
    }
    schemas
}

fn set(text: &str) -> Vec<u8> {
    let file = protox_parse::parse("a.proto", text).expect("a fixture");
    FileDescriptorSet { file: vec![FileDescriptorProto { source_code_info: None, ..file }] }.encode_to_vec()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or_default();
    hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The string literals of Rust code, roughly.
fn literals(code: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find('"') {
        let is_raw = rest[..at].ends_with("r#");
        rest = &rest[at + 1..];
        if is_raw {
            let (literal, behind) = rest.split_once("\"#").unwrap_or((rest, ""));
            literals.push(literal.to_owned());
            rest = behind;
            continue;
        }
        let mut literal = String::new();
        let mut characters = rest.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    rest = &rest[at + 1..];
                    break;
                }
                '\\' => {
                    literal.extend(characters.next().map(|(_, escaped)| if escaped == 'n' { '\n' } else { escaped }))
                }
                other => literal.push(other),
            }
        }
        literals.push(literal.replace("{{", "{").replace("}}", "}"));
    }
    literals
}

/// The cases of `xsd/cases`: a schema below `=== name: verdict`, its documents below `--- verdict`.
fn xsd() -> Vec<Schema> {
    let mut schemas = Vec::new();
    for file in files(&tests().join("xsd/cases"), "txt") {
        for part in read(&file).split("\n=== ").skip(1) {
            let body = part.split_once('\n').map_or("", |(_, body)| body);
            let mut sections = body.split("\n--- ");
            let schema = sections.next().unwrap_or_default();
            let schema = schema.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
            let schema = schema.trim();
            let schema = if schema.starts_with("<xs:schema") || schema.starts_with("<schema") {
                schema.to_owned()
            } else {
                format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{schema}</xs:schema>")
            };
            let xsi = "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"";
            let document =
                |section: &str| section.split_once('\n').map_or("", |(_, text)| text).trim().replace("XSI", xsi);
            let documents = sections.map(|section| document(section).into_bytes()).collect();
            schemas.push(Schema { documents, ..Schema::text(SchemaType::Xsd, schema, Format::Xml) });
        }
    }
    schemas
}
