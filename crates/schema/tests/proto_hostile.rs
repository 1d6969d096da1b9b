//! Schemas and documents that are meant to hurt. Each is judged in a thread with a stack of 2 MiB, within bounded CPU time;
//! with `--nocapture` the time that each takes is printed.

use std::fmt::Write as _;

use tidegate_schema::limits::{DOCUMENT_BYTES, MAX_VIOLATIONS, SCHEMA_BYTES};
use tidegate_schema::proto::Proto;
use tidegate_schema::{Definition, Document, Format, Language as _, Report, SchemaError, Validator, Verdict};

mod cpu;

/// Runs on a small stack, within bounded CPU time.
fn run<T: Send>(name: &str, job: impl FnMut() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(2 << 20);
        let thread = builder.spawn_scoped(scope, || cpu::bounded(name, job)).unwrap();
        thread.join().unwrap_or_else(|_| panic!("{name} panicked or took too long"))
    })
}

fn compile(content: &str, message: &str, strict: bool) -> Result<Box<dyn Validator>, SchemaError> {
    Proto.compile(&Definition { content: content.into(), message: Some(message.into()), strict })
}

/// Repeats a text up to the longest schema.
fn full(piece: &str) -> String {
    piece.repeat(SCHEMA_BYTES / piece.len())
}

fn fields(count: usize, options: &str) -> String {
    let mut text = String::new();
    for number in 1..=count {
        let number = if number < 19_000 { number } else { number + 1_000 };
        let _ = write!(text, "int32 f{number}={number}{options};");
    }
    text
}

#[test]
fn texts_are_refused() {
    let deep = |open: &str, close: &str, count: usize| format!("{}{}", open.repeat(count), close.repeat(count));
    let ranges = (0..2_550).map(|number| format!("reserved {};", number * 2 + 1)).collect::<String>();
    let long = "a".repeat(100 << 10);
    let path = format!("message A {{ optional {}b c = 1; }}", "a.".repeat(200_000));
    let unknown = (1..4_950).map(|number| format!("optional T{number} f{number}={number};")).collect::<String>();
    let cases: Vec<(&str, String)> = vec![
        ("10 MiB", "message A {}".repeat((10 << 20) / 12)),
        ("100,000 messages within each other", deep("message a{", "}", 100_000)),
        ("100 messages within each other", deep("message a{", "}", 100)),
        ("32 messages within each other", deep("message a{", "}", 32)),
        ("100,000 groups within each other", format!("message A {{ {}", deep("optional group A = 1 {", "}", 20_000))),
        ("100,000 braces", "{".repeat(100_000)),
        ("100,000 brackets", format!("message A {{ optional int32 a = 1 {}", "[".repeat(100_000))),
        ("100,000 parentheses", format!("option {}", "(".repeat(100_000))),
        ("100,000 angles", format!("message A {{ {}", "map<int32,".repeat(50_000))),
        ("aggregates within each other", format!("option (x) = {}", deep("{a ", "}", 100_000))),
        ("aggregates within comments", format!("option (x) = {{ # /*\n {} # */\n }}", deep("{a ", "}", 100_000))),
        ("minuses", format!("message A {{ optional int32 a = 1 [default = {}1]; }}", "-".repeat(100_000))),
        ("100,000 fields", format!("syntax=\"proto3\"; message A {{ {} }}", fields(100_000, ""))),
        ("9,000 fields", format!("syntax=\"proto3\"; message A {{ {} }}", fields(9_000, ""))),
        ("40,000 messages", full("message A{}")),
        (
            "as many ranges",
            format!("message A {{ {ranges} {} }}", fields(2_400, "").replace("int32", "optional int32")),
        ),
        ("a range twice", format!("message A {{ {} }}", "reserved 1 to max;".repeat(5_000))),
        ("unknown types", format!("message A {{ {unknown} }}")),
        ("unknown options", format!("syntax=\"proto3\"; message A {{ {} }}", fields(2_450, "[(a.b).c=1]"))),
        ("names of 100 KiB", format!("message {long} {{ }}")),
        ("a package of 100 KiB", format!("package {}; message A {{ }}", ["a"; 50_000].join("."))),
        ("a type of 400 KiB", path),
        ("huge numbers", format!("message A {{ optional int32 a = {}; }}", "9".repeat(200))),
        ("longer numbers", format!("message A {{ optional int32 a = {}; }}", "9".repeat(200_000))),
        ("an open comment", format!("message A {{}} /* {}", " ".repeat(500_000))),
        ("comments within comments", full("/*")),
        ("an open string", format!("message A {{ optional string a = 1 [default = \"{}", "a".repeat(500_000))),
        ("quotes", full("\"")),
        ("escapes", format!("option a = \"{}\";", "\\".repeat(500_000))),
        ("many strings", format!("option a = {};", "\"a\" ".repeat(120_000))),
        ("semicolons", full(";")),
        ("words", full("message ")),
        ("dots", full(".")),
        ("no tokens", full("@ ")),
        ("zeros", full("\0")),
        ("letters", full("ä ")),
        ("imports", full("import \"a\";")),
        ("an import of a file", "import \"/etc/passwd\"; message A {}".into()),
        ("an import of a file above", "import \"../../Cargo.toml\"; message A {}".into()),
        ("a public import of a file", "import public \"Cargo.toml\"; message A {}".into()),
        ("packages", full("package a;")),
        ("nothing", String::new()),
    ];
    for (name, text) in &cases {
        let result = run(name, || compile(text, "A", false));
        let error = result.err().unwrap_or_else(|| panic!("{name} compiles"));
        assert!(error.to_string().len() < 1_000, "{name}: {error}");
    }
}

#[test]
fn large_texts_compile() {
    let chain = (0..2_450)
        .map(|number| format!("message M{number} {{ M{} m = 1; }}", (number + 1) % 2_450))
        .collect::<String>();
    let values = (1..4_990).rev().map(|number| format!("V{number}={number};")).collect::<String>();
    let nested = format!("{}int32 x = 2;{}", "message A { A a = 1; ".repeat(31), "}".repeat(31));
    let options = "message O { O o = 1; int32 i = 2; } extend google.protobuf.MessageOptions { O opt = 50000; }";
    let aggregate = format!("{}i: 1{}", "o {".repeat(60), "}".repeat(60));
    let three = "syntax=\"proto3\"; import \"google/protobuf/descriptor.proto\";";
    let cases: Vec<(&str, String)> = vec![
        ("4,950 fields", format!("{three} message A {{ {} }}", fields(4_950, ""))),
        ("2,450 deprecated fields", format!("{three} message A {{ {} }}", fields(2_450, "[deprecated=true]"))),
        ("2,450 messages in a circle", format!("{three} message A {{ M0 m = 1; }} {chain}")),
        ("4,990 values of an enum", format!("{three} enum E {{ Z=0; {values} }} message A {{ E e = 1; }}")),
        ("31 messages within each other", format!("{three} {nested}")),
        ("deep aggregates", format!("{three} {options} message A {{ option (opt) = {{ {aggregate} }}; }}")),
        ("many comments", format!("{three} message A {{}} {}", "/* a */\n// b\n".repeat(30_000))),
        ("long json names", format!("{three} message A {{ int32 a = 1 [json_name = \"{}\"]; }}", "x".repeat(400_000))),
    ];
    for (name, text) in &cases {
        let validator = run(name, || compile(text, "A", false)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(validator.size() < 16 << 20, "{name}: {}", validator.size());
        let definition = Definition { content: text.clone(), message: Some("A".into()), strict: false };
        let comparison = run(&format!("{name}, compared"), || Proto.compare(&definition, &definition)).unwrap();
        assert!(comparison.changes().is_empty(), "{name}");
    }
    let (few, many) = (&cases[4].1, &cases[0].1);
    let definition = |content: &str| Definition { content: content.into(), message: Some("A".into()), strict: true };
    let comparison = run("4,950 changes", || Proto.compare(&definition(many), &definition(few))).unwrap();
    assert_eq!(comparison.changes().len(), 1_001);
}

#[test]
fn comparisons_are_bounded() {
    let enums = |count: usize, values: usize, name: &str| {
        let one = |at: usize| {
            let values = (1..values).map(|value| format!("{name}{at}V{value}={value};")).collect::<String>();
            format!("enum {name}{at} {{ {name}{at}V0=0; {values} }}")
        };
        (0..count).map(one).collect::<String>()
    };
    let fields = |count: usize, kind: &dyn Fn(usize) -> String, oneof: &str| {
        let all = (1..=count).map(|at| format!("{} f{at}={at};", kind(at - 1))).collect::<String>();
        let all = if oneof.is_empty() { all } else { format!("oneof {oneof} {{ {all} }}") };
        format!("syntax=\"proto3\"; message A {{ {all} }}")
    };
    let int = |_: usize| "int32".to_owned();
    let long = "o".repeat(250);
    let cases = [
        (
            "one enum in place of 1,200",
            fields(1_200, &|_| "E0".into(), "") + &enums(1, 2_400, "E"),
            fields(1_200, &|at| format!("E{at}"), "") + &enums(1_200, 2, "E"),
        ),
        ("a oneof of another name", fields(4_900, &int, &format!("{long}a")), fields(4_900, &int, &format!("{long}b"))),
        ("fields that move into a oneof", fields(4_900, &int, ""), fields(4_900, &int, "o")),
        ("4,900 fields of another type", fields(4_900, &int, ""), fields(4_900, &|_| "string".into(), "")),
    ];
    for (name, old, new) in &cases {
        for (old, new) in [(old, new), (new, old)] {
            let definition =
                |content: &str| Definition { content: content.into(), message: Some("A".into()), strict: true };
            let (before, after) = (definition(old), definition(new));
            let comparison = run(&format!("comparing {name}"), || Proto.compare(&before, &after)).unwrap();
            let shown = comparison.changes().iter().map(|one| one.path.len() + one.message.len()).sum::<usize>();
            assert!(comparison.changes().len() <= 1_001 && shown < 2 << 20, "{name}: {shown}");
            assert!(comparison.verdict() > Verdict::Compatible, "{name}");
        }
    }
}

const HOSTILE: &str = r#"
syntax = "proto2";
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
message A {
  repeated Empty empties = 1;
  optional A a = 2;
  repeated A many = 3;
  optional group G = 4 { optional A a = 1; optional group G = 4 {} }
  map<string, A> map = 5;
  repeated bool bools = 6 [packed = true];
  repeated int64 numbers = 7 [packed = true];
  repeated R required = 8;
  optional R merged = 9;
  map<string, R> required_map = 10;
  optional string text = 11;
  oneof o { R one = 12; R other = 13; }
  repeated string texts = 14;
  optional google.protobuf.Struct struct = 15;
  optional google.protobuf.Any any = 16;
  repeated C colors = 17 [packed = true];
  optional bytes raw = 18;
}
message Empty {}
message R { required int32 x = 1; optional R r = 2; }
enum C { RED = 1; }
"#;

fn varint(mut number: usize) -> Vec<u8> {
    let mut to = Vec::new();
    while number > 0x7f {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
    to
}

/// A field of length and bytes.
fn block(number: usize, inner: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(inner.len()), inner.to_vec()].concat()
}

/// Messages within each other, up to the longest document.
fn nested(key: u8) -> Vec<u8> {
    let mut reversed = Vec::new();
    while reversed.len() < DOCUMENT_BYTES - 4 {
        let length = varint(reversed.len());
        reversed.extend(length.into_iter().rev());
        reversed.push(key);
    }
    reversed.reverse();
    reversed
}

fn fill(piece: &[u8]) -> Vec<u8> {
    piece.repeat(DOCUMENT_BYTES / piece.len())
}

fn check(validator: &dyn Validator, name: &str, bytes: &[u8], format: Format) -> Report {
    assert!(bytes.len() <= DOCUMENT_BYTES, "{name}: {}", bytes.len());
    let report = run(name, || validator.validate(Document { bytes, format }));
    assert!(report.violations().len() <= MAX_VIOLATIONS);
    let shown = report.violations().iter().map(|one| one.path.len() + one.message.len()).sum::<usize>();
    assert!(shown < 2 << 20, "{name}: {shown}");
    report
}

#[test]
fn binary_documents_are_bounded() {
    let lenient = compile(HOSTILE, "A", false).unwrap();
    let strict = compile(HOSTILE, "A", true).unwrap();
    let half = DOCUMENT_BYTES / 2;
    let groups = |key: u8| [vec![key; half], vec![key + 1; half]].concat();
    let with_length = |number: usize, piece: &[u8]| block(number, &piece.repeat((DOCUMENT_BYTES - 10) / piece.len()));
    let mut bad_end = with_length(11, b"a");
    *bad_end.last_mut().unwrap() = 0xff;
    let entry = block(10, &[block(1, b"k"), block(2, &[])].concat());
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("500,000 empty messages", fill(&[0x0a, 0]), true),
        ("messages within each other", nested(0x12), false),
        ("repeated messages within each other", nested(0x1a), false),
        ("groups within each other", groups(0x23), false),
        ("groups in place of messages within each other", groups(0x7b), false),
        ("groups without end", fill(&[0x23]), false),
        ("packed bools", with_length(6, &[1]), true),
        ("packed numbers", with_length(7, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), true),
        ("packed blocks of nothing", fill(&[0x3a, 0]), true),
        ("messages without required fields", fill(&[0x42, 0]), false),
        ("a merged message", fill(&[0x4a, 2, 8, 1]), true),
        ("a merged message that lacks a field", fill(&[0x4a, 0]), false),
        ("entries of one key", fill(&entry), false),
        ("entries without a key", fill(&[0x2a, 0]), true),
        ("members of a oneof in turn", fill(&[0x62, 0, 0x6a, 0]), false),
        ("strings", fill(&[0x72, 1, b'a']), true),
        ("strings that are no UTF-8", fill(&[0x72, 1, 0xff]), false),
        ("a string that is no UTF-8 at its end", bad_end, false),
        ("wrong wire types", fill(&[0x58, 1]), true),
        ("unknown fields", fill(&[0xf8, 0x7f, 1]), true),
        ("ones", fill(&[0xff]), false),
        ("zeros", fill(&[0]), false),
        ("messages that lack required fields within each other", nested(0x12), false),
    ];
    for (name, bytes, is_valid) in &cases {
        let report = check(&*lenient, name, bytes, Format::Protobuf);
        assert_eq!(report.is_valid(), *is_valid, "{name}: {:?}", report.violations().first());
    }
    for (name, piece) in [("packed numbers of 10 MiB", &[7][..]), ("100,000 violations in 10 MiB", b"\x72\x01\xff")] {
        let bytes = match piece {
            [one] => block(7, &vec![*one; 10 << 20]),
            _ => piece.repeat((10 << 20) / piece.len()),
        };
        let report = run(name, || lenient.validate(Document { bytes: &bytes, format: Format::Protobuf }));
        assert!(report.violations()[0].message.contains("more than 1048576"), "{report:?}");
    }
    let unknown = check(&*strict, "unknown fields, strict", &fill(&[0xf8, 0x7f, 1]), Format::Protobuf);
    assert_eq!((unknown.violations().len(), unknown.total()), (MAX_VIOLATIONS, (DOCUMENT_BYTES / 3) as u64));
    let colors = check(&*strict, "unknown values, strict", &with_length(17, &[7]), Format::Protobuf);
    assert!(colors.total() > 1_000_000);
    let between = fill(&[0x42, 2, 8, 1, 0x72, 1, 0xff]);
    check(&*strict, "violations in between", &between, Format::Protobuf);
    let deep_paths =
        [fill(&[0x0a, 0])[..DOCUMENT_BYTES - 1_000].to_vec(), block(3, &fill(&[0x72, 1, 0xff])[..900])].concat();
    check(&*strict, "a violation behind 500,000 elements", &deep_paths, Format::Protobuf);
}

#[test]
fn missing_fields_are_counted_without_being_listed() {
    let fields = (1..=4_900).map(|number| format!("required int32 f{number}={number};")).collect::<String>();
    let text = format!("syntax=\"proto2\"; message A {{ repeated R r = 1; }} message R {{ {fields} }}");
    let validator = compile(&text, "A", false).unwrap();
    let report = check(&*validator, "2.5 billion missing fields", &fill(&[0x0a, 0]), Format::Protobuf);
    assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, 4_900 * (DOCUMENT_BYTES / 2) as u64));
    let json = format!("{{\"r\":[{}{{}}]}}", "{},".repeat(DOCUMENT_BYTES / 3 - 10));
    let report = check(&*validator, "1.7 billion missing fields in JSON", json.as_bytes(), Format::Json);
    assert_eq!(report.total(), 4_900 * (DOCUMENT_BYTES / 3 - 9) as u64);
}

#[test]
fn json_documents_are_bounded() {
    let lenient = compile(HOSTILE, "A", false).unwrap();
    let strict = compile(HOSTILE, "A", true).unwrap();
    let list = |name: &str, element: &str| {
        let count = (DOCUMENT_BYTES - 100) / (element.len() + 1);
        format!("{{\"{name}\":[{}{element}]}}", format!("{element},").repeat(count - 1))
    };
    let nested = |open: &str, close: &str, depth: usize| format!("{}{{}}{}", open.repeat(depth), close.repeat(depth));
    let any = (0..120).fold("{}".to_owned(), |inner, _| format!("{{\"any\":{inner},\"@type\":\"x/A\"}}"));
    let padded = format!("{{\"any\":{any},\"texts\":[{}\"\"]}}", "\"\",".repeat(300_000));
    let keys = (0..60_000).map(|number| format!("\"k{number}\":{{}},")).collect::<String>();
    let cases: Vec<(&str, String, bool)> = vec![
        ("empty objects", list("empties", "{}"), true),
        ("wrong elements", list("bools", "1"), false),
        ("wrong lines", list("bools", "\n1"), false),
        ("brackets", "[".repeat(DOCUMENT_BYTES), false),
        ("objects within each other", nested("{\"a\":", "}", 100_000), false),
        ("120 objects within each other", nested("{\"a\":", "}", 120), true),
        ("a struct of lists", format!("{{\"struct\":{{\"a\":{}", list("b", "[]")) + "}}", true),
        ("a number of 1 MiB", format!("{{\"numbers\":[{}]}}", "1".repeat(DOCUMENT_BYTES - 100)), false),
        ("a fraction of 1 MiB", format!("{{\"numbers\":[1.{}]}}", "0".repeat(DOCUMENT_BYTES - 100)), true),
        ("escapes", format!("{{\"texts\":[\"{}\"]}}", "\\u00e4".repeat((DOCUMENT_BYTES - 100) / 6)), true),
        ("base64", format!("{{\"raw\":\"{}\"}}", "AAAA".repeat((DOCUMENT_BYTES - 100) / 4)), true),
        ("Any within each other", format!("{{\"any\":{any}}}"), true),
        ("Any within each other before more", padded, true),
        ("keys", format!("{{\"map\":{{{keys}\"k\":{{}}}}}}"), true),
        ("a key again and again", format!("{{\"map\":{{{}\"k\":{{}}}}}}", "\"k\":{},".repeat(120_000)), false),
        ("a field again and again", format!("{{{}\"a\":{{}}}}", "\"a\":{},".repeat(120_000)), false),
        ("unknown members", format!("{{{}\"a\":{{}}}}", keys.replace("{}", "[]")), true),
        ("missing fields", list("required", "{}"), false),
        ("spaces", " ".repeat(DOCUMENT_BYTES), false),
        ("quotes", "\"".repeat(DOCUMENT_BYTES), false),
    ];
    for (name, text, is_valid) in &cases {
        let report = check(&*lenient, name, text.as_bytes(), Format::Json);
        assert_eq!(report.is_valid(), *is_valid, "{name}: {:?}", report.violations().first());
        check(&*strict, &format!("{name}, strict"), text.as_bytes(), Format::Json);
    }
}
