//! What comparing two versions says.

use super::definition;
use crate::compare::Verdict::{self, Breaking, CannotTell, Compatible};
use crate::definition::Definition;
use crate::language::Language as _;
use crate::proto::Proto;

/// Compares two versions, each given as what follows `syntax = "proto3";` with the message `A` for events.
fn changes(old: &str, new: &str) -> Vec<(Verdict, String, String)> {
    let make = |text: &str| {
        let syntax = if text.contains("syntax") { "" } else { "syntax = \"proto3\"; " };
        let strict = text.contains("// strict");
        Definition { message: Some("A".into()), strict, ..definition(&format!("{syntax}{text}")) }
    };
    let comparison = Proto.compare(&make(old), &make(new)).unwrap_or_else(|error| panic!("{old} | {new}: {error}"));
    comparison.changes().iter().map(|one| (one.verdict, one.path.clone(), one.message.clone())).collect()
}

/// The only change between two versions.
fn check(cases: &[(&str, &str, Verdict, &str, &str)]) {
    for (old, new, verdict, path, part) in cases {
        let found = changes(old, new);
        let [(found_verdict, found_path, message)] = found.as_slice() else { panic!("{old} | {new}: {found:?}") };
        assert_eq!((*found_verdict, found_path.as_str()), (*verdict, *path), "{old} | {new}: {message}");
        assert!(message.contains(part), "{old} | {new}: {message}");
    }
}

#[test]
fn equal_versions_have_no_changes() {
    let text = "message A { int32 x = 1; A a = 2; map<string, A> m = 3; oneof o { E e = 4; string s = 5; } enum E { Z = 0; } }";
    assert_eq!(changes(text, text), []);
    let reordered = "message A { oneof o { string s = 5; E e = 4; } map<string, A> m = 3; A a = 2; int32 x = 1; reserved 9; \
                     enum E { Z = 0; } } message B {}";
    assert_eq!(changes(text, reordered), []);
    assert_eq!(
        changes("message A { repeated int32 x = 1; }", "message A { repeated int32 x = 1 [packed = false]; }"),
        []
    );
    assert_eq!(changes("message A { int32 x = 1; }", "message A { optional int32 x = 1; }"), []);
}

#[test]
fn fields() {
    let one = "message A { int32 x = 1; }";
    check(&[
        (one, "message A { int32 x = 1; string y = 2; }", Compatible, "A.y", "a field is added"),
        (one, "message A { int32 x = 2; }", Breaking, "A.x", "the number changes from 1 to 2"),
        (one, "message A { int32 y = 1; }", Breaking, "A.x", "the field is renamed to y"),
        (one, "message A { string y = 1; }", Breaking, "A.x", "the number 1 is used again, for y"),
        (one, "message A { int32 x = 1 [json_name = \"z\"]; }", Breaking, "A.x", "JSON changes from x to z"),
        (one, "message A { string x = 1; }", Breaking, "A.x", "the type changes from int32 to string"),
        (one, "message A { repeated int32 x = 1; }", Breaking, "A.x", "from singular to repeated"),
        (one, "message A { }", Breaking, "A.x", "add \"reserved 1;\""),
        (one, "message A { reserved 1; }", Compatible, "A.x", "its number reserved"),
        ("message A { int32 x = 1; } // strict", "message A { reserved 1; } // strict", Breaking, "A.x", "strict"),
        (one, "message A { int32 x = 1; } // strict", Breaking, "", "becomes strict"),
        ("message A { int32 x = 1; } // strict", one, Compatible, "", "no longer strict"),
        (one, "message A { message X {} X x = 1; }", Breaking, "A.x", "from int32 to message"),
    ]);
}

#[test]
fn names_in_json_that_mean_another_field() {
    let two = |fields: &str| format!("syntax = \"proto2\"; message A {{ {fields} }}");
    let one = two("optional int32 a_b = 1;");
    let taken = changes(&one, &two("optional int32 a_b = 1; optional string c = 2 [json_name = \"a_b\"];"));
    let expected = (Breaking, "A.a_b".to_owned(), "the name a_b means the field c in JSON now".to_owned());
    assert!(taken.contains(&expected) && taken.len() == 2, "{taken:?}");
    let reused = changes(&one, &two("reserved 1; optional string c = 2 [json_name = \"aB\"];"));
    let expected = (Breaking, "A.a_b".to_owned(), "the name aB means the field c in JSON now".to_owned());
    assert!(reused.contains(&expected) && reused.len() == 3, "{reused:?}");
    check(&[(&one, &two("optional int32 a_b = 2;"), Breaking, "A.a_b", "the number changes")]);
}

#[test]
fn types_that_share_an_encoding() {
    let encodings: [(&str, &str, Verdict); 12] = [
        ("int32", "int64", CannotTell),
        ("uint64", "bool", CannotTell),
        ("int32", "E", CannotTell),
        ("E", "uint32", CannotTell),
        ("sint32", "sint64", CannotTell),
        ("fixed32", "sfixed32", CannotTell),
        ("fixed64", "sfixed64", CannotTell),
        ("string", "bytes", CannotTell),
        ("bytes", "string", Breaking),
        ("int32", "sint32", Breaking),
        ("fixed32", "float", Breaking),
        ("double", "int64", Breaking),
    ];
    for (old, new, verdict) in encodings {
        let make = |kind: &str| format!("message A {{ {kind} x = 1; enum E {{ Z = 0; }} }}");
        let found = changes(&make(old), &make(new));
        assert_eq!(
            found.iter().map(|one| (one.0, one.1.as_str())).collect::<Vec<_>>(),
            [(verdict, "A.x")],
            "{old} {new}"
        );
    }
}

#[test]
fn labels_of_proto2() {
    let two = |fields: &str| format!("syntax = \"proto2\"; message A {{ {fields} }}");
    check(&[
        (&two(""), &two("required int32 x = 1;"), Breaking, "A.x", "a required field is added"),
        (&two(""), &two("optional int32 x = 1;"), Compatible, "A.x", "a field is added"),
        (&two("required int32 x = 1;"), &two("reserved 1;"), Breaking, "A.x", "a required field is removed"),
        (&two("required int32 x = 1;"), &two("optional int32 x = 1;"), Breaking, "A.x", "from required to singular"),
        (&two("optional int32 x = 1;"), &two("required int32 x = 1;"), Breaking, "A.x", "from singular to required"),
        (&two("optional int32 x = 1;"), "message A { optional int32 x = 1; }", CannotTell, "A", "syntax"),
        (&two("optional group G = 1 {}"), &two("optional G g = 1; message G {}"), Breaking, "A.g", "group"),
        (
            &two("extensions 10 to 20; } extend A { optional int32 x = 10;"),
            &two("extensions 10 to 20;"),
            Breaking,
            "A.[x]",
            "not reserved",
        ),
    ]);
}

#[test]
fn messages_within_messages() {
    let deep = |field: &str| {
        format!("message A {{ repeated B b = 1; }} message B {{ map<int32, C> c = 1; }} message C {{ {field} }}")
    };
    let any = "import \"google/protobuf/any.proto\"; message A { google.protobuf.Any any = 1; }";
    check(&[
        (&deep("int32 x = 1;"), &deep("int64 x = 1;"), CannotTell, "C.x", "int32 to int64"),
        (&format!("{any} message B {{ int32 x = 1; }}"), &format!("{any} message B {{}}"), Breaking, "B.x", "removed"),
        (&format!("{any} message B {{}}"), any, Breaking, "B", "the message is removed"),
        (
            "message A { map<int32, string> m = 1; }",
            "message A { map<int32, int32> m = 1; }",
            Breaking,
            "A.MEntry.value",
            "string to int32",
        ),
        (
            "message A { B b = 1; } message B {} message C {}",
            "message A { C b = 1; } message B {} message C {}",
            CannotTell,
            "A.b",
            "from B to C",
        ),
    ]);
    assert_eq!(changes("message A { } message B { int32 x = 1; }", "message A { } message B { }"), []);
    let removed = changes("message A { B b = 1; } message B {}", "message A { C b = 1; } message C {}");
    assert_eq!(
        removed.iter().map(|one| (one.0, one.1.as_str())).collect::<Vec<_>>(),
        [(Breaking, "B"), (CannotTell, "A.b")]
    );
    let root = Definition { message: Some("B".into()), ..definition("message A {} message B {}") };
    let other = Definition { message: Some("A".into()), ..root.clone() };
    let comparison = Proto.compare(&root, &other).unwrap();
    assert_eq!(comparison.verdict(), Breaking);
    assert_eq!(comparison.changes()[0].message, "events were B and are A");
}

#[test]
fn enums() {
    let make = |values: &str| format!("message A {{ E e = 1; E f = 2; }} enum E {{ {values} }}");
    check(&[
        (&make("Z = 0;"), &make("Z = 0; O = 1;"), Compatible, "E.O", "a value is added"),
        (&make("Z = 0; O = 1;"), &make("Z = 0;"), Breaking, "E.O", "removed or renamed"),
        (&make("Z = 0; O = 1;"), &make("Z = 0; O = 2;"), Breaking, "E.O", "from 1 to 2"),
    ]);
    let two = format!(
        "syntax = \"proto2\"; {}",
        make("Z = 0;").replace("E e", "optional E e").replace("E f", "optional E f")
    );
    let closed = changes(&make("Z = 0;"), &two);
    assert_eq!(
        closed.iter().map(|one| (one.0, one.1.as_str())).collect::<Vec<_>>(),
        [(CannotTell, "A"), (Breaking, "E")]
    );
}

#[test]
fn oneofs() {
    let apart = "message A { int32 x = 1; int32 y = 2; }";
    let together = "message A { oneof o { int32 x = 1; int32 y = 2; } }";
    check(&[
        (
            apart,
            "message A { oneof o { int32 x = 1; } int32 y = 2; }",
            Compatible,
            "A.x",
            "whose other members are new",
        ),
        ("message A { oneof o { int32 x = 1; } int32 y = 2; }", together, Breaking, "A.y", "together with others"),
        (together, "message A { oneof o { int32 x = 1; } int32 y = 2; }", CannotTell, "A.y", "out of its oneof"),
    ]);
    let into = changes(apart, together);
    assert_eq!(into.iter().map(|one| one.0).collect::<Vec<_>>(), [Breaking, Breaking]);
    let renamed = changes(together, "message A { oneof p { int32 x = 1; int32 y = 2; } }");
    assert_eq!(renamed.iter().map(|one| one.0).collect::<Vec<_>>(), [CannotTell, CannotTell]);
}
