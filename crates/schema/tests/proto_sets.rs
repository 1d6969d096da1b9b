//! Descriptor sets that anybody can make: large ones, broken ones, and those that proptest comes up with. None may panic,
//! overflow a stack of 2 MiB, or be followed anywhere.

use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FieldOptions,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, OneofDescriptorProto, descriptor_proto,
};
use tidegate_schema::limits::SCHEMA_BYTES;
use tidegate_schema::proto::Proto;
use tidegate_schema::{Definition, Document, Format, Language as _};

const OLD2: &str = include_str!("proto/old2.proto");

/// Compiles on a small stack, and prints the time that it took.
fn compile(name: &str, content: &str, message: &str) -> Result<(), String> {
    let definition = Definition { content: content.into(), message: Some(message.into()), strict: false };
    let job = move || {
        let start = Instant::now();
        (Proto.compile(&definition).map(drop).map_err(|error| error.to_string()), start.elapsed().as_secs_f64() * 1e3)
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(job).unwrap();
    let (result, took) = thread.join().unwrap_or_else(|_| panic!("{name} panicked"));
    println!("{took:9.2} ms  {name}");
    result
}

/// A field of length and bytes.
fn block(key: u8, inner: &[u8]) -> Vec<u8> {
    let mut bytes = vec![key];
    let mut length = inner.len();
    while length > 0x7f {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(inner);
    bytes
}

fn encode(set: &FileDescriptorSet) -> String {
    BASE64_STANDARD.encode(set.encode_to_vec())
}

#[test]
fn descriptor_sets_are_bounded() {
    let file = |name: String, dependency: Vec<String>| FileDescriptorProto {
        name: Some(name),
        public_dependency: (0..).take(dependency.len()).collect(),
        dependency,
        message_type: vec![DescriptorProto { name: Some("A".into()), ..Default::default() }],
        ..Default::default()
    };
    // Each of these can be reached on 2^60 ways.
    let mut diamonds = (0..60)
        .flat_map(|number| {
            let next = |side: char| format!("{}{side}", number + 1);
            let mut one = file(format!("{number}a"), vec![next('a'), next('b')]);
            let mut other = file(format!("{number}b"), vec![next('a'), next('b')]);
            (one.package, other.package) = (Some(format!("a{number}")), Some(format!("b{number}")));
            [one, other]
        })
        .collect::<Vec<_>>();
    diamonds.extend(["60a", "60b"].map(|name| file(name.into(), vec![])));
    diamonds[120].package = Some("end".into());
    let small = FileDescriptorSet { file: diamonds[60..].to_vec() };
    assert!(compile("diamonds of public imports", &encode(&small), "end.A").is_ok());
    let nested = (0..2_000).fold(Vec::new(), |inner, _| block(0x1a, &inner));
    let cases: Vec<(&str, String)> = vec![
        ("too many diamonds", encode(&FileDescriptorSet { file: diamonds })),
        ("a circle", encode(&FileDescriptorSet { file: vec![file("a".into(), vec!["a".into()])] })),
        ("empty files", BASE64_STANDARD.encode([0x0a, 0].repeat(190_000))),
        ("empty messages", BASE64_STANDARD.encode(block(0x0a, &[0x22, 0].repeat(190_000)))),
        ("messages within each other", BASE64_STANDARD.encode(block(0x0a, &block(0x22, &nested)))),
        ("groups", BASE64_STANDARD.encode(vec![0x0b; 380_000])),
        ("letters", "A".repeat(SCHEMA_BYTES)),
        ("spaces", format!("A{}", " ".repeat(SCHEMA_BYTES - 1))),
    ];
    for (name, content) in &cases {
        let error = compile(name, content, "A").err().unwrap_or_else(|| panic!("{name} compiles"));
        assert!(error.len() < 1_000, "{name}: {error}");
    }
}

fn arbitrary_field() -> impl Strategy<Value = FieldDescriptorProto> {
    let name = prop::sample::select(vec!["a", "b", "c", "key", "value", "", "ä", "a b"]);
    let kind = prop::option::of(-1..20_i32);
    let type_name =
        prop::option::weighted(0.4, prop::sample::select(vec![".A", "B", "A.B", ".E", ".p.A", "E", "", ".", "a"]));
    let numbers = (prop::option::of(0..6_i32), prop::option::of(-1..5_i32), prop::option::weighted(0.2, -1..3_i32));
    let rest =
        (prop::option::weighted(0.2, prop::sample::select(vec!["1", "\\x1é", "\\777", "\\", "A"])), any::<[bool; 3]>());
    (name, kind, type_name, numbers, rest).prop_map(
        |(name, kind, type_name, (number, label, oneof), (default, flags))| FieldDescriptorProto {
            name: Some(name.into()),
            number,
            label,
            r#type: kind,
            type_name: type_name.map(Into::into),
            extendee: flags[0].then(|| ".A".into()),
            default_value: default.map(Into::into),
            oneof_index: oneof,
            proto3_optional: flags[1].then_some(true),
            options: flags[2].then(|| FieldOptions { packed: Some(flags[0]), ..Default::default() }),
            ..Default::default()
        },
    )
}

fn arbitrary_message() -> impl Strategy<Value = DescriptorProto> {
    let fields = || prop::collection::vec(arbitrary_field(), 0..4);
    let options = (any::<[bool; 3]>(), prop::collection::vec((0..9_i32, 0..9_i32), 0..3));
    let leaf = (prop::sample::select(vec!["A", "B", "E", ""]), fields(), options.clone()).prop_map(make_message);
    leaf.prop_recursive(3, 8, 3, move |inner| {
        let name = prop::sample::select(vec!["A", "B", "E", ""]);
        let nested = prop::collection::vec(inner, 0..3);
        (name, fields(), options.clone(), nested).prop_map(|(name, fields, options, nested)| DescriptorProto {
            nested_type: nested,
            ..make_message((name, fields, options))
        })
    })
}

type MessageParts = (&'static str, Vec<FieldDescriptorProto>, ([bool; 3], Vec<(i32, i32)>));

fn make_message((name, mut field, (flags, ranges)): MessageParts) -> DescriptorProto {
    let extension = if flags[1] { field.pop().into_iter().collect() } else { Vec::new() };
    let is_entry =
        MessageOptions { map_entry: Some(flags[0]), message_set_wire_format: Some(flags[2]), ..Default::default() };
    let range = |&(start, end): &(i32, i32)| descriptor_proto::ExtensionRange {
        start: Some(start),
        end: Some(end),
        options: None,
    };
    DescriptorProto {
        name: Some(name.into()),
        field,
        extension,
        oneof_decl: flags[1]
            .then(|| OneofDescriptorProto { name: Some("o".into()), options: None })
            .into_iter()
            .collect(),
        options: (flags[0] || flags[2]).then_some(is_entry),
        extension_range: ranges.iter().map(range).collect(),
        ..Default::default()
    }
}

fn arbitrary_file() -> impl Strategy<Value = FileDescriptorProto> {
    let messages = prop::collection::vec(arbitrary_message(), 0..3);
    let extensions = prop::collection::vec(arbitrary_field(), 0..2);
    let values = prop::collection::vec((prop::sample::select(vec!["X", "Y", "A"]), 0..3_i32), 0..3);
    let names = prop::sample::select(vec!["a", "b", "google/protobuf/any.proto"]);
    let imports = prop::collection::vec(prop::sample::select(vec!["a", "b", "google/protobuf/any.proto"]), 0..3);
    let syntax = prop::option::of(prop::sample::select(vec!["proto2", "proto3", "editions", ""]));
    let package = prop::option::weighted(0.2, prop::sample::select(vec!["p", "google.protobuf", "p.", ""]));
    (messages, extensions, values, names, imports, syntax, (package, prop::collection::vec(-1..4_i32, 0..2))).prop_map(
        |(message_type, extension, values, name, imports, syntax, (package, public_dependency))| FileDescriptorProto {
            name: Some(name.into()),
            package: package.map(Into::into),
            dependency: imports.into_iter().map(Into::into).collect(),
            public_dependency,
            message_type,
            extension,
            enum_type: vec![EnumDescriptorProto {
                name: Some("E".into()),
                value: values
                    .into_iter()
                    .map(|(name, number)| EnumValueDescriptorProto {
                        name: Some(name.into()),
                        number: Some(number),
                        options: None,
                    })
                    .collect(),
                ..Default::default()
            }],
            syntax: syntax.map(Into::into),
            ..Default::default()
        },
    )
}

/// Compiles and, if that succeeds, validates and compares.
fn use_all(content: &str, message: &str, bytes: &[u8]) {
    for strict in [false, true] {
        let definition = Definition { content: content.into(), message: Some(message.into()), strict };
        if let Ok(validator) = Proto.compile(&definition) {
            for format in [Format::Protobuf, Format::Json] {
                validator.validate(Document { bytes, format });
            }
            Proto.compare(&definition, &definition).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_no_set(bytes in any_bytes(200), document in any_bytes(40)) {
        use_all(&BASE64_STANDARD.encode(&bytes), "A", &document);
    }

    #[test]
    fn any_descriptors_are_refused_or_work(file in prop::collection::vec(arbitrary_file(), 1..3), document in any_bytes(40)) {
        use_all(&encode(&FileDescriptorSet { file }), "A", &document);
    }

    #[test]
    fn changed_sets_are_refused_or_work(
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        document in any_bytes(40),
    ) {
        let file = protox_parse::parse("a.proto", OLD2).unwrap();
        let file = vec![FileDescriptorProto { source_code_info: None, ..file }];
        let mut bytes = FileDescriptorSet { file }.encode_to_vec();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        use_all(&BASE64_STANDARD.encode(&bytes), "fixtures.Old", &document);
    }

    #[test]
    fn changed_texts_are_refused_or_work(changes in prop::collection::vec((any::<usize>(), piece()), 1..4)) {
        let mut text = OLD2.to_owned();
        for (at, piece) in changes {
            let at = text.floor_char_boundary(at % text.len());
            let end = text.floor_char_boundary((at + piece.len()).min(text.len()));
            text.replace_range(at..end, piece);
        }
        use_all(&text, "fixtures.Old", b"{}");
    }

    #[test]
    fn any_text_is_refused_or_works(pieces in prop::collection::vec(piece(), 0..60)) {
        use_all(&pieces.join(" "), "A", b"{}");
    }
}

fn any_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "message",
        "enum",
        "A",
        "B",
        "E",
        "=",
        "1",
        "2",
        ";",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "(",
        ")",
        ",",
        ".",
        "\"",
        "/*",
        "//",
        "#",
        "\n",
        "-",
        "optional",
        "required",
        "repeated",
        "oneof",
        "map",
        "group",
        "int32",
        "string",
        "option",
        "reserved",
        "extend",
        "extensions",
        "to",
        "max",
        "import",
        "package",
        "syntax",
        "\"proto3\"",
        "default",
        "'\\x1'",
    ])
}
