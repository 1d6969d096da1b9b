//! What is reported about documents, in binary and in JSON.

use super::definition;
use crate::definition::{Definition, Document, Format};
use crate::error::Position;
use crate::language::{Language as _, Validator};
use crate::limits::{DOCUMENT_BYTES, MAX_VIOLATIONS};
use crate::proto::Proto;

/// A value on the wire.
enum Wire {
    Int(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'static [u8]),
    Message(Vec<(u32, Wire)>),
    Group(Vec<(u32, Wire)>),
}

use Wire::{Bytes, Fixed32, Fixed64, Group, Int, Message};

fn varint(mut value: u64, to: &mut Vec<u8>) {
    while value > 0x7f {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn encode(fields: &[(u32, Wire)]) -> Vec<u8> {
    let mut to = Vec::new();
    for (number, value) in fields {
        let key = |wire: u32, to: &mut Vec<u8>| varint(u64::from(number << 3 | wire), to);
        match value {
            Int(value) => {
                key(0, &mut to);
                varint(*value, &mut to);
            }
            Fixed64(value) => {
                key(1, &mut to);
                to.extend(value.to_le_bytes());
            }
            Fixed32(value) => {
                key(5, &mut to);
                to.extend(value.to_le_bytes());
            }
            Bytes(bytes) => {
                key(2, &mut to);
                varint(bytes.len() as u64, &mut to);
                to.extend(*bytes);
            }
            Message(fields) => {
                key(2, &mut to);
                let inner = encode(fields);
                varint(inner.len() as u64, &mut to);
                to.extend(inner);
            }
            Group(fields) => {
                key(3, &mut to);
                to.extend(encode(fields));
                key(4, &mut to);
            }
        }
    }
    to
}

const SHOP: &str = r#"
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";

message Order {
  string id = 1;
  repeated Line lines = 2;
  map<string, Line> labels = 3;
  map<sint32, string> by_number = 4;
  repeated int32 counts = 5;
  repeated fixed32 codes = 6;
  Kind kind = 7;
  oneof payment { string card = 8; int64 cash = 9; }
  Order parent = 10;
  bytes raw = 11;
  double weight = 12;
  bool is_paid = 13;
  google.protobuf.Timestamp at = 14;
  google.protobuf.Struct extra = 15;
  google.protobuf.Any any = 16;
  google.protobuf.Int64Value count = 17;
  google.protobuf.Value value = 18;
  repeated string notes = 300;
}
message Line { string sku = 1; uint32 quantity = 2; }
enum Kind { PLAIN = 0; GIFT = 1; }
"#;

const OLD: &str = r#"
syntax = "proto2";
message A {
  required int32 x = 1;
  optional B b = 2;
  repeated B list = 3;
  map<int32, B> map = 4;
  oneof o { B one = 5; B other = 6; }
  optional group G = 7 { required string name = 1; }
  optional Color color = 8;
  repeated Color colors = 9;
  extensions 100 to 200;
}
message B { required int32 y = 1; optional A a = 2; required Color color = 3; }
enum Color { RED = 1; BLUE = 2; }
extend A { optional B more = 100; }
"#;

fn validator(content: &str, message: &str, strict: bool) -> Box<dyn Validator> {
    Proto.compile(&Definition { message: Some(message.into()), strict, ..definition(content) }).unwrap()
}

/// What is wrong with a document: `path: message`.
fn found(validator: &dyn Validator, bytes: &[u8], format: Format) -> Vec<String> {
    let report = validator.validate(Document { bytes, format });
    let show =
        |position: Option<Position>| position.map(|at| format!("{}:{} ", at.line, at.column)).unwrap_or_default();
    let violations = report.violations().iter();
    violations.map(|one| format!("{}{}: {}", show(one.position), one.path, one.message)).collect()
}

#[test]
fn binary_documents() {
    let line = |sku: &'static [u8]| Message(vec![(1, Bytes(sku)), (2, Int(1))]);
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &[]),
        (encode(&[(1, Bytes(b"a")), (2, line(b"x")), (3, Message(vec![(1, Bytes(b"k")), (2, line(b"y"))]))]), &[]),
        (encode(&[(5, Bytes(&[1, 2, 0x96, 1])), (5, Int(7)), (6, Fixed32(1)), (6, Bytes(&[0; 8])), (7, Int(99))]), &[]),
        (encode(&[(99, Int(1)), (98, Group(vec![(1, Int(1))])), (97, Fixed64(1))]), &[]),
        (encode(&[(1, Bytes(&[0x61, 0xff]))]), &["id: the string is not UTF-8, at byte 3"]),
        (
            encode(&[(2, line(b"x")), (2, line(b"\xff")), (5, Int(1)), (2, line(b"\xfe"))]),
            &["lines[1].sku: the string is not UTF-8, at byte 11", "lines[2].sku: the string is not UTF-8, at byte 20"],
        ),
        (
            encode(&[(3, Message(vec![(1, Bytes(b"a b")), (2, line(b"\xff"))]))]),
            &["labels[\"a b\"].sku: the string is not UTF-8, at byte 11"],
        ),
        (
            encode(&[(4, Message(vec![(1, Int(3)), (2, Bytes(b"\xff"))]))]),
            &["by_number[\"-2\"]: the string is not UTF-8, at byte 6"],
        ),
        // Another wire type than declared makes an unknown field.
        (encode(&[(3, Message(vec![(1, Int(1))])), (1, Int(5)), (12, Int(5)), (2, Group(vec![(1, Int(1))]))]), &[]),
        (encode(&[(2, Int(1)), (2, line(b"\xff"))]), &["lines[0].sku: the string is not UTF-8"]),
        (vec![0x0b, 0x0b], &["id: group 1 is not ended"]),
        (encode(&[(5, Bytes(&[1, 0x80]))]), &["counts[1]: the data ends within a value"]),
        (encode(&[(5, Int(1)), (5, Bytes(&[1, 2])), (5, Bytes(&[0xff; 11]))]), &["counts[3]: a varint is longer"]),
        (encode(&[(6, Bytes(&[0; 7]))]), &["codes: 7 bytes are no whole number of fixed32 of 4 bytes"]),
        (encode(&[(300, Bytes(b"a")), (300, Bytes(b"\xff"))]), &["notes[1]: the string is not UTF-8"]),
        (vec![0x0a, 5, 0x61], &["id: the data ends within a value, at byte 1"]),
        (vec![0x80], &[": the data ends within a value, at byte 0"]),
        (vec![0x00], &[": 0 is no field number"]),
        (vec![0x0f], &[": 7 is no wire type"]),
        (vec![0x0c], &[": the end of group 1 has no start"]),
        (vec![0x9b, 0x06], &[": group 99 is not ended"]),
        (
            // What comes after a broken message is looked at all the same.
            encode(&[(10, Message(vec![(1, Bytes(b"a")), (2, Bytes(&[0x0a, 9]))])), (2, line(b"\xff"))]),
            &["parent.lines[0].sku: the data ends within a value", "lines[0].sku: the string is not UTF-8"],
        ),
        (vec![0x0a; DOCUMENT_BYTES + 1], &[": the document has 1048577 bytes, more than 1048576"]),
    ];
    let shop = validator(SHOP, "shop.Order", false);
    for (bytes, expected) in cases {
        let shown = &bytes[..bytes.len().min(40)];
        let found = found(&*shop, &bytes, Format::Protobuf);
        assert_eq!(found.len(), expected.len(), "{shown:x?}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{shown:x?}: {found}");
        }
    }
}

#[test]
fn strict_schemas_refuse_what_they_do_not_know() {
    let shop = validator(SHOP, "shop.Order", true);
    let bytes = encode(&[
        (99, Int(1)),
        (2, Message(vec![])),
        (2, Message(vec![(7, Int(1))])),
        (3, Message(vec![(1, Bytes(b"k")), (3, Int(1)), (2, Message(vec![(9, Int(1))]))])),
        (7, Int(99)),
        (10, Message(vec![(400, Group(vec![]))])),
    ]);
    let expected = [
        ": shop.Order has no field 99, at byte 0",
        "lines[1]: shop.Line has no field 7, at byte 7",
        "labels[\"k\"]: shop.Order.LabelsEntry has no field 3, at byte 14",
        "labels[\"k\"]: shop.Line has no field 9, at byte 18",
        "parent: shop.Order has no field 400, at byte 24",
    ];
    assert_eq!(found(&*shop, &bytes, Format::Protobuf), expected);
    let bytes = encode(&[
        (1, Int(5)),
        (3, Message(vec![(1, Int(1))])),
        (5, Fixed32(7)),
        (10, Message(vec![(2, Group(vec![(1, Int(1))]))])),
        (12, Int(5)),
    ]);
    let expected = [
        "id: string is framed as a length and bytes, found a varint, at byte 1",
        "labels[\"\"].key: string is framed as a length and bytes, found a varint, at byte 5",
        "counts: int32 is framed as a varint, found 4 bytes, at byte 7",
        "parent.lines[0]: message is framed as a length and bytes, found a group, at byte 14",
        "weight: double is framed as 8 bytes, found a varint, at byte 18",
    ];
    assert_eq!(found(&*shop, &bytes, Format::Protobuf), expected);
    let old = validator(OLD, "A", true);
    let bytes = encode(&[(1, Int(1)), (8, Int(3)), (9, Int(1)), (9, Bytes(&[2, 3])), (9, Int(4))]);
    let expected = [
        "color: 3 is no value of the closed enum Color",
        "colors[2]: 3 is no value of the closed enum Color",
        "colors[3]: 4 is no value of the closed enum Color",
    ];
    assert_eq!(found(&*old, &bytes, Format::Protobuf), expected);
    assert_eq!(found(&*validator(OLD, "A", false), &bytes, Format::Protobuf), [""; 0]);
}

#[test]
fn required_fields_count_after_merging() {
    let b = || vec![(1, Int(1)), (3, Int(1))];
    let with =
        |fields: Vec<(u32, Wire)>| encode(&[vec![(1, Int(1))], fields].into_iter().flatten().collect::<Vec<_>>());
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &["x"]),
        (with(vec![]), &[]),
        (with(vec![(2, Message(vec![]))]), &["b.y", "b.color"]),
        // Two occurrences are one message.
        (with(vec![(2, Message(vec![(1, Int(1))])), (2, Message(vec![(3, Int(1))]))]), &[]),
        (with(vec![(3, Message(vec![(1, Int(1))])), (3, Message(vec![(3, Int(1))]))]), &["list[0].color", "list[1].y"]),
        // The last entry of a key counts.
        (
            with(vec![
                (4, Message(vec![(1, Int(7)), (2, Message(vec![]))])),
                (4, Message(vec![(1, Int(7)), (2, Message(b()))])),
                (4, Message(vec![(1, Int(8)), (2, Message(vec![(1, Int(1))]))])),
            ]),
            &["map[\"8\"].color"],
        ),
        (with(vec![(4, Message(vec![(1, Int(9))]))]), &["map[\"9\"].y", "map[\"9\"].color"]),
        // The last member of a oneof counts.
        (with(vec![(5, Message(vec![])), (6, Message(b()))]), &[]),
        (with(vec![(5, Message(vec![(1, Int(1))])), (6, Message(b())), (5, Message(vec![(3, Int(1))]))]), &["one.y"]),
        (with(vec![(5, Message(vec![(1, Int(1))])), (5, Message(vec![(3, Int(1))]))]), &[]),
        (with(vec![(7, Group(vec![]))]), &["g.name"]),
        (with(vec![(7, Group(vec![(1, Bytes(b"n"))]))]), &[]),
        (with(vec![(100, Message(vec![]))]), &["[more].y", "[more].color"]),
        (with(vec![(2, Message(vec![(1, Int(1)), (3, Int(1)), (2, Message(vec![]))]))]), &["b.a.x"]),
        // With another wire type it is an unknown field: it is not there, is not merged, and clears no oneof.
        (encode(&[(1, Bytes(b"1"))]), &["x"]),
        (encode(&[(1, Fixed32(1)), (1, Int(1))]), &[]),
        (with(vec![(2, Group(b()))]), &[]),
        (with(vec![(2, Message(vec![(1, Int(1))])), (2, Group(vec![(3, Int(1))]))]), &["b.color"]),
        (with(vec![(5, Message(vec![(1, Int(1))])), (6, Int(1))]), &["one.color"]),
        (with(vec![(3, Int(1)), (3, Message(vec![(1, Int(1))]))]), &["list[0].color"]),
        // An unknown value of a closed enum is an unknown field.
        (with(vec![(2, Message(vec![(1, Int(1)), (3, Int(9))]))]), &["b.color"]),
    ];
    let old = validator(OLD, "A", false);
    for (bytes, expected) in cases {
        let report = old.validate(Document { bytes: &bytes, format: Format::Protobuf });
        let paths = report.violations().iter().map(|one| one.path.as_str()).collect::<Vec<_>>();
        assert_eq!(paths, expected, "{bytes:x?}");
    }
}

#[test]
fn json_documents() {
    let cases: &[(&str, &[&str])] = &[
        ("{}", &[]),
        (
            r#"{"id": "a", "lines": [{"sku": "x", "quantity": 1e0}], "isPaid": true, "is_paid": null}"#,
            &["1:71 is_paid: the field occurs twice"],
        ),
        (r#"{"isPaid": true, "kind": "GIFT", "cash": "5", "raw": "AA==", "weight": "NaN", "counts": [1, 2]}"#, &[]),
        (
            r#"{"kind": 7, "kind": null, "parent": null, "at": "2026-01-01T00:00:00Z", "count": "5", "value": null}"#,
            &["1:13 kind: the field occurs twice"],
        ),
        (r#"{"extra": {"a": [1, null, {"b": "c"}]}, "labels": {"k": {"sku": "s"}}, "byNumber": {"-5": "x"}}"#, &[]),
        (r#"{"any": {"@type": "type.googleapis.com/shop.Line", "sku": "s"}}"#, &[]),
        (r#"{"any": {"value": "2026-01-01T00:00:00Z", "@type": "x/google.protobuf.Timestamp"}}"#, &[]),
        (r#"{"any": {}}"#, &[]),
        ("", &["1:1 : no JSON: expected a value, found the end"]),
        ("{\n \"id\": \"a\",\n}", &["3:1 : no JSON: expected the name of a member"]),
        (
            "{\n  \"lines\": [{}, {\"sku\": 5,\n \"quantity\": -1}]}",
            &[
                "2:25 lines[1].sku: expected a string, found 5",
                "3:14 lines[1].quantity: expected a whole number from 0 to 4294967295, found -1",
            ],
        ),
        ("[]", &["1:1 : expected an object (shop.Order), found an array"]),
        ("null", &["1:1 : expected an object (shop.Order), found null"]),
        (
            r#"{"lines": {}, "counts": [1, null, "x"]}"#,
            &[
                "1:11 lines: expected an array, found an object",
                "1:29 counts[1]: expected a whole number of 32 bits, found null",
                "1:35 counts[2]: expected a whole number of 32 bits, found \"x\"",
            ],
        ),
        (
            r#"{"card": "a", "cash": 1}"#,
            &["1:15 cash: \"card\" is set already, and both are members of the oneof payment"],
        ),
        (r#"{"card": "a", "cash": null}"#, &[]),
        (
            r#"{"labels": {"a": {}, "a": {}, "b": 1}, "byNumber": {"x": "y"}}"#,
            &[
                "1:22 labels[\"a\"]: the key occurs twice",
                "1:36 labels[\"b\"]: expected an object (shop.Line), found 1",
                "1:53 byNumber[\"x\"]: expected a whole number of 32 bits as the key of a map, found \"x\"",
            ],
        ),
        (r#"{"kind": "NONE", "nothing": [1]}"#, &[]),
        (
            r#"{"kind": 1.5, "at": "today", "count": true, "raw": "!", "isPaid": 1}"#,
            &[
                "1:10 kind: expected a value of the enum shop.Kind, by its name or number, found 1.5",
                "1:21 at: expected a moment from year 1 to 9999",
                "1:39 count: expected a whole number of 64 bits",
                "1:52 raw: expected a string in base64, found \"!\"",
                "1:67 isPaid: expected true or false, found 1",
            ],
        ),
        (
            r#"{"any": {"sku": 1}, "extra": [], "value": 1e999}"#,
            &[
                "1:9 any: an Any needs the member \"@type\"",
                "1:30 extra: expected an object, found an array",
                "1:43 value: expected a number in the range of double, found 1e999",
            ],
        ),
        (
            r#"{"any": {"@type": "x/shop.Nothing"}}"#,
            &["1:19 any[\"@type\"]: expected the URL of a type of this schema"],
        ),
        (r#"{"any": {"@type": "x/google.protobuf.Timestamp"}}"#, &["1:9 any: an Any of a well-known type needs"]),
        ("{\"id\": \"\\ud800\"}", &["1:9 : the first half of a surrogate pair"]),
    ];
    let shop = validator(SHOP, "shop.Order", false);
    for (text, expected) in cases {
        let found = found(&*shop, text.as_bytes(), Format::Json);
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        for (found, expected) in found.iter().zip(*expected) {
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}

#[test]
fn strict_json() {
    let shop = validator(SHOP, "shop.Order", true);
    let text = r#"{"nothing": 1, "lines": [{"a b": 1}], "kind": "NONE", "any": {"@type": "x/shop.Line", "x": 1}}"#;
    let expected = [
        "1:2 nothing: shop.Order has no such field",
        "1:27 lines[0][\"a b\"]: shop.Line has no such field",
        "1:47 kind: expected a value of the enum shop.Kind, found \"NONE\"",
        "1:87 any.x: shop.Line has no such field",
    ];
    assert_eq!(found(&*shop, text.as_bytes(), Format::Json), expected);
    let old = validator(OLD, "A", false);
    let text = r#"{"b": {"y": 1}, "list": [{}], "color": 9, "[more]": {"color": "RED"}}"#;
    let expected = [
        "1:1 x: the required field is missing from A",
        "1:7 b.color: the required field is missing from B",
        "1:26 list[0].y: the required field is missing from B",
        "1:26 list[0].color: the required field is missing from B",
        "1:40 color: expected a value of the closed enum Color, found 9",
        "1:53 [more].y: the required field is missing from B",
    ];
    assert_eq!(found(&*old, text.as_bytes(), Format::Json), expected);
}

#[test]
fn other_documents() {
    let shop = validator(SHOP, "shop.Order", false);
    let xml = found(&*shop, b"<a/>", Format::Xml);
    assert_eq!(xml, [": Protocol Buffers are sent in binary or as JSON, not as XML"]);
    assert_eq!(found(&*shop, b"{\"id\": \"\xff\"}", Format::Json), ["1:9 : the document is not UTF-8"]);
    let many = encode(&(0..1_000).map(|_| (1, Bytes(b"\xff"))).collect::<Vec<_>>());
    let report = shop.validate(Document { bytes: &many, format: Format::Protobuf });
    assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, 1_000));
    let many = format!("[{}]", ["1"; 500].join(",\n"));
    let text = format!("{{\"notes\": {many}, \"nothing\": 1}}");
    let report = shop.validate(Document { bytes: text.as_bytes(), format: Format::Json });
    assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, 500));
    assert_eq!(report.violations()[99].position, Some(Position { line: 100, column: 1 }));
    let many = encode(&(0..1_000).map(|_| (3, Message(vec![]))).collect::<Vec<_>>());
    let report = validator(OLD, "A", false).validate(Document { bytes: &many, format: Format::Protobuf });
    assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, 2_001));
}
