//! Which schemas are refused, and what the error says.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MessageOptions,
};

use super::{compile, definition};
use crate::definition::Definition;
use crate::language::Language as _;
use crate::limits::SCHEMA_BYTES;
use crate::proto::Proto;

/// Each schema with a part of its error.
fn check_refused(cases: &[(&str, &str)]) {
    for (content, part) in cases {
        let shown = &content[..content.len().min(200)];
        let error = compile(content).err().unwrap_or_else(|| panic!("{shown} compiles")).to_string();
        assert!(error.contains(part), "{shown}: {error}");
        assert!(error.len() < 1_000, "{shown}: {error}");
    }
}

#[test]
fn texts_that_compile() {
    for content in [
        "message A {}",
        "syntax = \"proto3\"; package a.b; message A { int32 x = 1; }",
        "syntax = \"proto2\"; message A { required int32 x = 1; optional group G = 2 { optional A a = 1; } }",
        "syntax = \"proto3\"; import \"google/protobuf/timestamp.proto\"; message A { google.protobuf.Timestamp t = 1; }",
        "syntax = \"proto3\"; import public \"google/protobuf/any.proto\"; message A { google.protobuf.Any any = 1; }",
        "syntax = \"proto3\"; message A { reserved 2, 4 to max; reserved \"b\"; map<string, A> as = 1; }",
        "syntax = \"proto3\"; import \"google/protobuf/descriptor.proto\"; message A { int32 x = 1 [(o) = { a: 1 }]; } \
         extend google.protobuf.FieldOptions { O o = 50000; } message O { int32 a = 1; }",
        "message A { extensions 100 to 200; } extend A { optional int32 x = 100; }",
    ] {
        let definition = Definition { message: Some("A".into()), ..definition(content) };
        let named = Definition { message: Some("a.b.A".into()), ..definition.clone() };
        let result = Proto.compile(&definition).or_else(|_| Proto.compile(&named));
        assert!(result.is_ok(), "{content}: {result:?}");
    }
}

#[test]
fn errors_say_where() {
    check_refused(&[
        ("syntax = \"proto3\";\nmessage A {\n  int32 x 1;\n}", "expected '=', but found '1' (line 3, column 11)"),
        ("syntax = \"proto3\";\nmessage A {", "(line 2, column 12)"),
        ("syntax = \"proto4\"; message A {}", "unknown syntax 'proto4' (line 1, column 10)"),
        ("edition = \"2023\"; message A {}", "editions are not supported"),
        ("syntax = \"proto3\";\nmessage A { int32 x = 1; int32 y = 1; }", "number '1'"),
        ("syntax = \"proto3\";\nmessage A { int32 x = 1; int32 y = 1; }", "(line 2, column 36)"),
        ("syntax = \"proto3\";\nmessage A { /* ä */ B b = 1; }", "name 'B' is not defined"),
        ("syntax = \"proto3\";\nmessage A { /* ä */ B b = 1; }", "(line 2, column 21)"),
        ("syntax = \"proto3\"; message A { reserved 5 to 9; int32 x = 7; }", "(line 1, column 59)"),
        ("syntax = \"proto3\"; message A { reserved \"x\"; int32 x = 7; }", "the name \"x\" is reserved (line 1"),
        ("syntax = \"proto3\"; enum E { Z = 0; reserved \"O\"; O = 1; }", "the name \"O\" is reserved (line 1"),
        ("syntax = \"proto3\"; message A { int32 x = 0; }", "(line 1, column"),
        ("syntax = \"proto3\"; message A { int32 x = 19500; }", "(line 1, column"),
        ("syntax = \"proto3\"; message A { int32 x = 536870912; }", "(line 1, column"),
        ("syntax = \"proto3\"; message A { int32 x = 99999999999999999999; }", "integer is too large"),
        ("syntax = \"proto3\"; message A { required int32 x = 1; }", "required"),
        ("syntax = \"proto3\"; enum E { A = 1; }", "(line 1, column"),
        ("syntax = \"proto3\"; enum E { A = 0; B = 0; } message M {}", "(line 1, column"),
        ("syntax = \"proto3\"; message A {} message A {}", "'A' is defined twice"),
        ("syntax = \"proto3\"; message A { map<float, int32> m = 1; }", "map field key type"),
        ("syntax = \"proto3\"; message A { int32 x = 1 [nope = 1]; }", "nope"),
        ("syntax = \"proto3\"; message A { reserved 1 to 5, 3; }", "overlap (line 1, column 20)"),
        ("message A { option message_set_wire_format = true; extensions 4 to max; }", "message_set_wire_format"),
        ("message A { option map_entry = true; optional int32 key = 1; }", "map_entry is not supported"),
        ("syntax = \"proto3\"; package google.protobuf; message Any {}", "google.protobuf.Any"),
        ("package a; package b; message A {}", "the package is given twice (line 1, column 12)"),
    ]);
}

#[test]
fn imports_are_refused() {
    check_refused(&[
        ("syntax = \"proto3\";\n\n  import \"x.proto\";", "the import \"x.proto\" is refused: only the well-known"),
        ("syntax = \"proto3\";\n\n  import \"x.proto\";", "(line 3, column 3)"),
        ("import \"/etc/passwd\"; message A {}", "(line 1, column 8)"),
        ("import \"../x.proto\"; message A {}", "(line 1, column 8)"),
        ("import public \"a/b.proto\"; message A {}", "is refused"),
        ("import weak \"http://example.com/x.proto\"; message A {}", "(line 1, column"),
        ("import \"google/protobuf/nothing.proto\"; message A {}", "is refused"),
        ("import \"schema.proto\"; message A {}", "is refused"),
        (
            "import \"google/protobuf/any.proto\"; import \"google/protobuf/any.proto\"; message A {}",
            "is imported twice (line 1, column 37)",
        ),
        ("message A { optional google.protobuf.Any any = 1; }", "google.protobuf.Any"),
    ]);
}

#[test]
fn the_message_is_chosen_by_its_full_name() {
    let two = "syntax = \"proto3\"; package shop; message A { message Inner {} } message B {}";
    let choose = |content: &str, message: Option<&str>| {
        let definition = Definition { message: message.map(Into::into), ..definition(content) };
        Proto.compile(&definition).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(choose(two, Some("shop.A")), Ok(()));
    assert_eq!(choose(two, Some("shop.A.Inner")), Ok(()));
    assert_eq!(choose("message A { optional B b = 1; message B {} }", None), Ok(()));
    let several = "the schema has several messages; name the one that events are: shop.A, shop.B";
    assert_eq!(choose(two, None), Err(several.into()));
    let unknown = "there is no message \"A\"; give the full name of one of these: shop.A, shop.B";
    assert_eq!(choose(two, Some("A")), Err(unknown.into()));
    assert_eq!(choose("", None), Err("the schema has no message".into()));
    assert_eq!(choose("enum E { A = 1; }", None), Err("the schema has no message".into()));
    let many = (0..100).map(|number| format!("message M{number} {{}}")).collect::<String>();
    assert!(choose(&many, None).unwrap_err().ends_with("M9, 90 more"));
    let map = "syntax = \"proto3\"; message A { map<int32, int32> m = 1; }";
    assert!(choose(map, Some("A.MEntry")).is_err());
}

#[test]
fn a_schema_that_nothing_is_validated_by_needs_no_choice_among_its_messages() {
    let check = |content: &str, message: Option<&str>| {
        let definition = Definition { message: message.map(Into::into), ..definition(content) };
        Proto.check(&definition).map_err(|error| error.to_string())
    };
    let two = "syntax = \"proto3\"; package shop; message A { message Inner {} } message B {}";
    assert_eq!(check(two, None), Ok(()));
    assert_eq!(check(two, Some("shop.B")), Ok(()));
    assert!(check(two, Some("B")).unwrap_err().contains("there is no message \"B\""));
    assert_eq!(check("enum E { A = 1; }", None), Err("the schema has no message".into()));
    assert!(
        check("message A {} message B { optional C c = 1; }", None).unwrap_err().contains("name 'C' is not defined")
    );
    let unsupported = "message A {} message B { option message_set_wire_format = true; extensions 4 to max; }";
    assert!(check(unsupported, None).unwrap_err().contains("message_set_wire_format"), "each message is looked at");
}

fn field(name: &str, number: i32, kind: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        r#type: Some(kind.into()),
        label: Some(Label::Optional.into()),
        ..Default::default()
    }
}

fn file(name: &str, dependency: &[&str], message: DescriptorProto) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.into()),
        dependency: dependency.iter().map(|&name| name.into()).collect(),
        message_type: vec![message],
        syntax: Some("proto3".into()),
        ..Default::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.into()), field, ..Default::default() }
}

fn encode(files: Vec<FileDescriptorProto>) -> String {
    BASE64_STANDARD.encode(FileDescriptorSet { file: files }.encode_to_vec())
}

#[test]
fn descriptor_sets_bring_their_imports() {
    let typed = |kind: &str| FieldDescriptorProto { type_name: Some(kind.into()), ..field("x", 1, Type::Message) };
    let inner = || file("inner.proto", &[], message("Inner", vec![field("a", 1, Type::String)]));
    let mut through = file("through.proto", &["inner.proto"], message("Through", vec![]));
    through.public_dependency = vec![0];
    let outer = file("outer.proto", &["through.proto"], message("Outer", vec![typed(".Inner")]));
    let set = encode(vec![outer.clone(), through, inner()]);
    let wrapped = set.as_bytes().chunks(20).map(|line| String::from_utf8_lossy(line) + "\n").collect::<String>();
    for content in [&set, &wrapped] {
        let definition = Definition { message: Some("Outer".into()), ..definition(content) };
        assert!(Proto.compile(&definition).is_ok());
    }
    let stamp = message("A", vec![typed(".google.protobuf.Timestamp")]);
    assert!(compile(&encode(vec![file("a.proto", &["google/protobuf/timestamp.proto"], stamp.clone())])).is_ok());
    let circle = |name: &str, other: &str| {
        let mut file = file(name, &[other, other], message("A", vec![]));
        file.public_dependency = vec![0, 1];
        file
    };
    let entry = DescriptorProto {
        options: Some(MessageOptions { map_entry: Some(true), ..Default::default() }),
        ..message("E", vec![field("key", 1, Type::Double), field("value", 2, Type::Int32)])
    };
    let mut required = field("r", 1, Type::Int32);
    required.set_label(Label::Required);
    let mut escape = file("a.proto", &[], message("A", vec![field("b", 1, Type::Bytes)]));
    escape.message_type[0].field[0].default_value = Some("\\x1é\\777".into());
    assert!(compile(&encode(vec![escape])).is_ok());
    check_refused(&[
        ("AAAA", "cannot be decoded"),
        ("message", "only base64 characters and is read as a descriptor set"),
        (&encode(vec![outer]), "the import \"through.proto\" is refused"),
        (&encode(vec![circle("a", "b"), circle("b", "a")]), "is imported twice"),
        (&encode(vec![file("a", &["a"], message("A", vec![]))]), "circle of imports"),
        (&encode(vec![inner(), inner()]), "the same name"),
        (&encode(vec![file("a.proto", &[], stamp)]), "google.protobuf.Timestamp"),
        (&encode(vec![file("a.proto", &[], entry)]), "is no entry of a map"),
        (&encode(vec![file("a.proto", &[], message("A", vec![required]))]), "proto3 does not have"),
        (&encode(vec![file("a.proto", &[], message("not a name", vec![]))]), "is no name"),
        (&encode(vec![file("a.proto", &[], message("A", vec![typed(".B")]))]), "B"),
        (
            &encode(vec![file(
                "a.proto",
                &[],
                message("A", vec![field("a", 1, Type::Bool), field("b", 1, Type::Bool)]),
            )]),
            "number '1'",
        ),
        (
            &encode(vec![FileDescriptorProto { syntax: Some("editions".into()), ..inner() }]),
            "the syntax \"editions\" is not supported",
        ),
    ]);
}

#[test]
fn sizes_are_bounded() {
    let fields = (1..=5_000).map(|number| format!("int32 f{number} = {number};")).collect::<String>();
    let long = "a".repeat(255);
    check_refused(&[
        (&" ".repeat(SCHEMA_BYTES + 1), "more than 524288"),
        (&format!("syntax = \"proto3\"; message A {{ {fields} }}"), "more than 5000 messages, fields and other parts"),
        (&format!("package {long}.{long}; message {long} {{}}"), "longer than 512 bytes"),
        (&format!("message {long}a {{}}"), "longer than 255 bytes"),
    ]);
}

#[test]
fn sizes_are_estimated() {
    let small = compile("message A {}").unwrap().size();
    let fields = (1..=1_000).map(|number| format!("int32 f{number} = {number};")).collect::<String>();
    let large = compile(&format!("syntax = \"proto3\"; message A {{ {fields} }}")).unwrap().size();
    assert!((100..2_000).contains(&small), "{small}");
    assert!((50_000..500_000).contains(&large), "{large}");
}
