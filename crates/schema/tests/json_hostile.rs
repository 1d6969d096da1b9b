//! Schemas and documents that are made to take long, to overflow the stack or to reach for something outside. Each is
//! refused or answered, within bounded CPU time.

use std::fmt::Write;

use tidegate_schema::{Definition, Document, Format, Report, SchemaError, SchemaType, Validator, limits};

mod cpu;

const MODERN: &str = "\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",";
const MIB: usize = 1 << 20;

/// The beginning of a text, to tell cases apart.
fn start(text: &str) -> String {
    text.chars().take(120).collect()
}

fn compile(schema: &str) -> Result<Box<dyn Validator>, SchemaError> {
    let definition = Definition { content: schema.into(), strict: true, ..Definition::default() };
    let name = format!("compiling {}", start(schema));
    cpu::bounded(&name, || SchemaType::JsonSchema.language().compile(&definition))
}

/// Why a schema is refused.
fn refusal(schema: &str) -> String {
    match compile(schema) {
        Ok(_) => panic!("accepted: {}", start(schema)),
        Err(error) => error.to_string(),
    }
}

fn validate(schema: &str, document: &str) -> Report {
    let validator = compile(schema).unwrap();
    let name = format!("{} judges {}", start(schema), start(document));
    let report =
        cpu::bounded(&name, || validator.validate(Document { bytes: document.as_bytes(), format: Format::Json }));
    let longest = report.violations().iter().map(|violation| violation.message.len() + violation.path.len()).max();
    assert!(longest.unwrap_or_default() < 10_000, "{longest:?}");
    report
}

/// An array of about a mebibyte.
fn array_of(item: &str) -> String {
    let count = (MIB - 2) / (item.len() + 1);
    format!("[{}]", vec![item; count].join(","))
}

/// Definitions of which each one refers to the next one.
fn chain(count: usize, link: impl Fn(usize) -> String, last: &str) -> String {
    let mut definitions = String::new();
    for at in 0..count {
        let _ = write!(definitions, "\"d{at}\":{},", link(at + 1));
    }
    format!("\"$ref\":\"#/definitions/d0\",\"definitions\":{{{definitions}\"d{count}\":{last}}}")
}

#[test]
fn nothing_outside_is_reached() {
    for outside in
        ["http://127.0.0.1:1/a", "https://example.com/a", "file:///etc/passwd", "//host/a", "a.json", "urn:a:b"]
    {
        let error = refusal(&format!("{{\"items\":{{\"$ref\":\"{outside}\"}}}}"));
        assert!(error.contains("is not in this document") && error.contains("line 1"), "{error}");
        let error = refusal(&format!("{{{MODERN}\"items\":{{\"$dynamicRef\":\"{outside}\"}}}}"));
        assert!(error.contains("is not in this document"), "{error}");
        let error = refusal(&format!("{{\"$schema\":\"{outside}\"}}"));
        assert!(error.contains("are supported"), "{error}");
    }
}

#[test]
fn sizes_and_depths_are_bounded() {
    assert!(refusal(&" ".repeat(10 * MIB)).contains("at most 524288 are allowed"));
    assert!(refusal(&"[".repeat(100_000)).contains("nested more than 128 deep"));
    assert!(refusal(&"{\"not\":".repeat(50_000)).contains("nested more than 128 deep"));
    let nested = format!("{}{{}}{}", "{\"not\":".repeat(120), "}".repeat(120));
    assert!(refusal(&nested).contains("apply each other to the same value"));
    assert!(refusal(&format!("{{\"allOf\":[{}]}}", vec!["{}"; 170_000].join(","))).contains("more than 5000 schemas"));
    let values: Vec<String> = (0..70_000).map(|value| value.to_string()).collect();
    assert!(refusal(&format!("{{\"enum\":[{}]}}", values.join(","))).contains("more than 20000 values"));
    assert!(refusal(&format!("{{\"pattern\":\"{}\"}}", "a".repeat(MIB))).contains("at most 524288 are allowed"));
    assert!(refusal(&format!("{{\"pattern\":\"{}\"}}", "(a".repeat(200_000))).contains("at most 2048 are allowed"));
    assert!(refusal("{\"pattern\":\"((((a{99}){99}){99}){99}){99}\"}").contains("states"));
    let patterns: Vec<String> = (0..4_000).map(|at| format!("\"^a{at}[bc]+$\":true")).collect();
    assert!(
        refusal(&format!("{{\"patternProperties\":{{{}}}}}", patterns.join(","))).contains("all patterns together")
    );

    assert!(validate("{}", &" ".repeat(10 * MIB)).violations()[0].message.contains("at most 1048576 are validated"));
    assert!(validate("{}", &"[".repeat(100_000)).violations()[0].message.contains("nested more than 128 deep"));
    let deepest = format!("{}{}", "[".repeat(limits::DEPTH), "]".repeat(limits::DEPTH));
    assert!(validate("{\"items\":{\"$ref\":\"#\"}}", &deepest).is_valid());
}

#[test]
fn schemas_that_never_end_are_refused() {
    assert!(refusal("{\"$ref\":\"#\"}").contains("would not end"));
    let ring = format!(
        "{{{}}}",
        chain(30, |next| format!("{{\"anyOf\":[{{\"$ref\":\"#/definitions/d{next}\"}}]}}"), "{\"$ref\":\"#\"}")
    );
    assert!(refusal(&ring).contains("would not end"));
    let link = |next: usize| format!("{{\"$ref\":\"#/definitions/d{next}\"}}");
    assert!(refusal(&format!("{{{}}}", chain(10_000, link, "true"))).contains("more than 5000 schemas"));
    assert!(refusal(&format!("{{{}}}", chain(4_000, link, "true"))).contains("apply each other to the same value"));
    let inner = |next: usize| format!("{{\"properties\":{{\"a\":{{\"$ref\":\"#/definitions/d{next}\"}}}}}}");
    let document = format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100));
    assert!(validate(&format!("{{{}}}", chain(1_500, inner, "true")), &document).is_valid());
}

#[test]
fn dynamic_references_that_loop_are_refused_or_end() {
    let loops = [
        "\"$dynamicAnchor\":\"a\",\"$dynamicRef\":\"#a\"",
        "\"$dynamicAnchor\":\"a\",\"allOf\":[{\"not\":{\"$dynamicRef\":\"#a\"}}]",
        "\"$dynamicAnchor\":\"a\",\"$ref\":\"#/$defs/b\",\"$defs\":{\"b\":{\"$dynamicRef\":\"#a\"}}",
        // The loop goes through another resource.
        "\"$id\":\"http://a/\",\"$dynamicAnchor\":\"a\",\"$ref\":\"b\",\"$defs\":{\"b\":{\"$id\":\"b\",\"$dynamicRef\":\"#a\",\
         \"$defs\":{\"c\":{\"$dynamicAnchor\":\"a\"}}}}",
    ];
    for inner in loops {
        assert!(refusal(&format!("{{{MODERN}{inner}}}")).contains("would not end"), "{inner}");
    }
    let recursive = "{\"$schema\":\"https://json-schema.org/draft/2019-09/schema\",\"$recursiveAnchor\":true,\"$recursiveRef\":\"#\"}";
    assert!(refusal(recursive).contains("would not end"));
    // Each of these references may lead to each of the anchors of that name.
    for (count, expected) in [(100, "more than 5000 references"), (50, "use fewer `$id`s")] {
        let mut definitions = String::new();
        for at in 0..count {
            let _ = write!(
                definitions,
                "\"d{at}\":{{\"$id\":\"d{at}\",\"$dynamicAnchor\":\"a\",\"properties\":{{\"p\":{{\"$dynamicRef\":\"#a\"}}}}}},"
            );
        }
        let root = "\"$id\":\"http://a/\",\"$dynamicRef\":\"d0#a\"";
        let error = refusal(&format!("{{{MODERN}{root},\"$defs\":{{{definitions}\"e\":true}}}}"));
        assert!(error.contains(expected), "{error}");
    }
    let tree = format!(
        "{{{MODERN}\"$dynamicAnchor\":\"a\",\"properties\":{{\"p\":{{\"$dynamicRef\":\"#a\"}}}},\"unevaluatedProperties\":false}}"
    );
    let document = format!("{}1{}", "{\"p\":".repeat(120), "}".repeat(120));
    assert!(validate(&tree, &document).is_valid());
}

#[test]
fn numbers_of_any_size_are_judged() {
    let digits = "7".repeat(MIB - 20);
    let numbers = [
        "1e999999999999999999999".to_string(),
        "-1e-999999999999999999999".into(),
        "1e9223372036854775807".into(),
        digits.clone(),
        format!("0.{digits}"),
        format!("{digits}e-{}", digits.len()),
        format!("1e{digits}"),
        format!("1e-{digits}"),
        array_of("1e999999999999999999"),
        array_of("123456789012345678901234567890e-99999999"),
    ];
    for keyword in [
        "\"multipleOf\":1e-300",
        "\"multipleOf\":1e300",
        "\"multipleOf\":18446744073709551615",
        "\"multipleOf\":0.000000000000007",
        "\"minimum\":-1e300,\"maximum\":1e300",
        "\"type\":\"integer\"",
        "\"enum\":[1e300,0.1,18446744073709551615]",
        "\"const\":1",
    ] {
        for number in &numbers {
            validate(&format!("{{{keyword}}}"), number);
            validate(&format!("{{\"items\":{{{keyword}}},\"uniqueItems\":true}}"), number);
        }
    }
    for number in ["1e400", "1e-400", "1e99999999999", "0.1000000000000000000001", &digits[..400_000]] {
        for keyword in ["multipleOf", "minimum", "const"] {
            refusal(&format!("{{\"{keyword}\":{number}}}"));
        }
    }
}

#[test]
fn exponential_schemas_are_refused() {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let link = |next: usize| {
            format!("{{\"{keyword}\":[{{\"$ref\":\"#/definitions/d{next}\"}},{{\"$ref\":\"#/definitions/d{next}\"}}]}}")
        };
        let error = refusal(&format!("{{{}}}", chain(30, link, "{\"type\":\"string\"}")));
        assert!(error.contains("judging one value takes more than"), "{error}");
        let link = |next: usize| {
            format!(
                "{{\"{keyword}\":[{{\"$ref\":\"#/definitions/d{next}\"}},{{\"$ref\":\"#/definitions/d{next}\"}}],\"unevaluatedProperties\":false}}"
            )
        };
        let error = refusal(&format!("{{{MODERN}{}}}", chain(14, link, "{\"type\":\"string\"}")));
        assert!(error.contains("judging one value takes more than"), "{error}");
    }
    let nots = |next: usize| {
        format!("{{\"not\":{{\"$ref\":\"#/definitions/d{next}\"}},\"if\":{{\"$ref\":\"#/definitions/d{next}\"}}}}")
    };
    assert!(refusal(&format!("{{{}}}", chain(30, nots, "true"))).contains("judging one value takes more than"));
    let mut ids = String::new();
    for level in 0..30 {
        for name in ["x", "y"] {
            let next = level + 1;
            let _ = write!(
                ids,
                "\"{name}{level}\":{{\"$id\":\"{name}{level}\",\"items\":{{\"$ref\":\"x{next}\"}},\"contains\":{{\"$ref\":\"y{next}\"}}}},"
            );
        }
    }
    let error = refusal(&format!(
        "{{{MODERN}\"$id\":\"http://a/\",\"$ref\":\"x0\",\"$defs\":{{{ids}\"x30\":{{\"$id\":\"x30\"}},\"y30\":{{\"$id\":\"y30\"}}}}}}"
    ));
    assert!(error.contains("use fewer `$id`s"), "{error}");
    let chained = |next: usize| {
        format!("{{\"additionalProperties\":{{\"$ref\":\"#/definitions/d{next}\",\"unevaluatedProperties\":false}}}}")
    };
    assert!(refusal(&format!("{{{MODERN}{}}}", chain(1_500, chained, "{}"))).contains("takes too much"));
}

#[test]
fn recursion_that_doubles_with_each_level_is_answered() {
    let document = format!("{}1{}", "{\"a\":".repeat(127), "}".repeat(127));
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let both = format!(
            "{{\"properties\":{{\"a\":{{\"{keyword}\":[{{\"$ref\":\"#\"}},{{\"$ref\":\"#\"}}]}}}},\"required\":[\"b\"]}}"
        );
        assert!(!validate(&both, &document).is_valid(), "{keyword}");
    }
    let rest = format!(
        "{{{MODERN}\"anyOf\":[{{\"properties\":{{\"a\":{{\"$ref\":\"#\"}}}}}},{{\"properties\":{{\"a\":{{\"$ref\":\"#\"}},\"b\":true}}}}],\
         \"unevaluatedProperties\":{{\"$ref\":\"#\"}}}}"
    );
    validate(&rest, &document);
}

#[test]
fn patterns_that_explode_elsewhere_are_linear() {
    let text = format!("\"{}!\"", "a".repeat(100_000));
    for pattern in ["(a+)+$", "^(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"] {
        assert!(!validate(&format!("{{\"pattern\":\"{pattern}\"}}"), &text).is_valid(), "{pattern}");
    }
    // All states of this one are busy: a long text is not judged.
    let text: String = (0..200_000).map(|at| if (at ^ (at >> 3) ^ (at >> 7)) % 3 == 0 { 'a' } else { 'b' }).collect();
    let report = validate("{\"pattern\":\"[ab]*a[ab]{200}c\"}", &format!("\"{text}\""));
    assert!(report.violations()[0].message.contains("it cannot be judged"), "{report:?}");
}

#[test]
fn many_violations_are_counted() {
    let many = format!("[{}]", vec!["1"; 100_000].join(","));
    let report = validate("{\"items\":{\"type\":\"string\"}}", &many);
    assert_eq!((report.total(), report.violations().len()), (100_000, limits::MAX_VIOLATIONS));
    let report = validate("{\"items\":{\"type\":\"string\"}}", &array_of("1"));
    assert!(report.total() > 100_000, "{}", report.total());
    let alternatives = "{\"items\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"},{\"const\":2}]}}";
    assert!(!validate(alternatives, &array_of("1")).is_valid());
    let long = format!("{{\"items\":{{\"required\":[\"{}\"]}}}}", "x".repeat(300_000));
    assert!(!validate(&long, &array_of("{}")).is_valid());
    let not = format!("{{\"items\":{{\"not\":{{\"$comment\":\"{}\"}}}}}}", "x".repeat(300_000));
    assert!(!validate(&not, &array_of("{}")).is_valid());
    let huge = format!("[{}]", vec!["\"no integer, and more of it\""; 10 * MIB / 28].join(","));
    assert!(validate("{\"items\":{\"type\":\"integer\"}}", &huge).violations()[0].message.contains("at most 1048576"));
    let name = format!("{{\"{}\":[{}]}}", "n".repeat(4_000), vec!["1"; 200_000].join(","));
    assert!(!validate("{\"additionalProperties\":{\"items\":{\"type\":\"null\"}}}", &name).is_valid());
}

#[test]
fn large_documents_are_answered() {
    let numbers: Vec<String> = (0..150_000).map(|number| number.to_string()).collect();
    let numbers = format!("[{}]", numbers.join(","));
    let members: Vec<String> = (0..70_000).map(|at| format!("\"k{at}\":{at}")).collect();
    let members = format!("{{{}}}", members.join(","));
    assert!(validate("{\"uniqueItems\":true}", &numbers).is_valid());
    assert!(!validate("{\"uniqueItems\":true}", &array_of("[{\"a\":[1,2,{}]}]")).is_valid());
    let values: Vec<String> = (0..19_000).map(|value| format!("{value}.5,\"s{value}\"")).take(9_500).collect();
    validate(&format!("{{\"items\":{{\"enum\":[{}]}}}}", values.join(",")), &numbers);
    let alternatives: Vec<String> =
        (0..1_000).map(|at| format!("{{\"properties\":{{\"a\":{{\"const\":{at}}}}},\"required\":[\"a\"]}}")).collect();
    let alternatives = format!("{{\"items\":{{\"oneOf\":[{}]}}}}", alternatives.join(","));
    validate(&alternatives, &array_of("1"));
    validate(&alternatives, &array_of("{\"a\":999}"));
    for schema in [
        "{\"propertyNames\":{\"pattern\":\"^k[0-9]+$\",\"minLength\":2}}".to_string(),
        "{\"additionalProperties\":{\"type\":\"string\"}}".to_string(),
        format!(
            "{{\"allOf\":[{}]}}",
            vec!["{\"properties\":{\"k0\":true},\"additionalProperties\":false}"; 500].join(",")
        ),
        format!(
            "{{{MODERN}\"anyOf\":[{{\"properties\":{{\"k1\":true}}}}],\"unevaluatedProperties\":{{\"type\":\"null\"}}}}"
        ),
        format!("{{\"items\":{{\"allOf\":[{}]}}}}", vec!["{\"minimum\":0.5}"; 2_000].join(",")),
        format!(
            "{{{MODERN}\"allOf\":[{}]}}",
            vec!["{\"contains\":{\"const\":2},\"unevaluatedItems\":{\"type\":\"null\"}}"; 100].join(",")
        ),
        "{\"items\":{\"multipleOf\":0.01,\"minimum\":0.5}}".to_string(),
    ] {
        validate(&schema, &members);
        validate(&schema, &numbers);
        validate(&schema, &array_of("0.123456789012345678901234567890"));
        validate(&schema, &format!("[{}]", "9".repeat(MIB - 2)));
    }
    for format in ["idn-hostname", "regex", "uri-template", "email", "idn-email", "iri", "duration"] {
        for unit in ["ü.", "(", "{a}", "a@", "[a-"] {
            validate(&format!("{{\"format\":\"{format}\"}}"), &format!("\"{}\"", unit.repeat((MIB - 10) / unit.len())));
        }
    }
}

/// Definitions in a circle: each has a member that refers to the next one, and `more`.
fn circle(length: usize, name: &str, more: &str) -> String {
    let define = |at: usize| {
        let next = (at + 1) % length;
        format!("\"{name}{at}\":{{\"properties\":{{\"x\":{{\"$ref\":\"#/definitions/{name}{next}\"}}{more}}}}}")
    };
    let all: Vec<String> = (0..length).map(define).collect();
    format!("{{\"properties\":{{\"x\":{{\"$ref\":\"#/definitions/{name}0\"}}}},\"definitions\":{{{}}}}}", all.join(","))
}

#[test]
fn comparisons_are_answered() {
    let members = |count: usize, schema: &str| (0..count).map(|at| format!(",\"m{at}\":{schema}")).collect::<String>();
    let values = |count: usize| (0..count).map(|at| format!("\"v{at}\"")).collect::<Vec<_>>().join(",");
    let with_enum = |count: usize| format!("}},\"enum\":[{}],\"default\":{{", values(count));
    let long = "n".repeat(3_800);
    let required = |from: usize| (from..from + 40_000).map(|at| format!("\"r{at}\"")).collect::<Vec<_>>().join(",");
    let patterns = |count: usize, min: usize| {
        let all: Vec<String> = (0..count).map(|at| format!("\"^p{at}$\":{{\"minLength\":{min}}}")).collect();
        format!("{{\"patternProperties\":{{{}}}}}", all.join(","))
    };
    let listed = |keyword: &str, count: usize, min: usize| {
        let all: Vec<String> = (0..count).map(|at| format!("{{\"minLength\":{}}}", at % 7 + min)).collect();
        format!("{{\"{keyword}\":[{}]}}", all.join(","))
    };
    let closed = |names: &str| format!("{{\"properties\":{{\"x\":true{names}}},\"additionalProperties\":false}}");
    let alike = |length: usize, name: &str| {
        circle(length, name, "").replace("{\"$ref\"", "{\"not\":{\"const\":[1,2,3,4,5]},\"$ref\"")
    };
    let nots = |length: usize, name: &str, count: usize| {
        let inner = circle(length, name, &with_enum(count));
        let (properties, definitions) = inner.split_once(",\"definitions\"").unwrap();
        format!("{{\"not\":{properties}}},\"definitions\"{definitions}")
    };
    let cases = [
        ("circles of different lengths", circle(4, "a", &members(1_200, "true")), circle(2_400, "b", "")),
        ("circles with long names", circle(47, &long, &members(90, "true")), circle(48, &long, &members(80, "{}"))),
        ("circles with values", circle(2, "a", &with_enum(9_000)), circle(2_001, "b", &with_enum(1))),
        ("circles that are alike", nots(160, "a", 100), nots(161, "b", 100)),
        ("circles without values that are alike", alike(500, "a"), alike(501, "b")),
        (
            "40,000 names",
            format!("{{\"required\":[{}]}}", required(0)),
            format!("{{\"required\":[{}]}}", required(20_000)),
        ),
        ("19,000 values", format!("{{\"enum\":[{}]}}", values(19_000)), format!("{{\"enum\":[{}]}}", values(1))),
        ("900 patterns", patterns(900, 1), patterns(900, 2)),
        ("2,000 alternatives", listed("anyOf", 2_000, 1), listed("anyOf", 2_000, 2)),
        ("2,000 conditions", listed("allOf", 2_000, 2), listed("allOf", 2_000, 1)),
        ("a closed object", closed(&members(4_900, "true")), closed("")),
    ];
    for (name, old, new) in cases {
        for (old, new) in [(&old, &new), (&new, &old), (&old, &old)] {
            let definition =
                |content: &str| Definition { content: content.into(), strict: true, ..Definition::default() };
            let (before, after) = (definition(old), definition(new));
            assert!(
                compile(old).is_ok() && compile(new).is_ok(),
                "{name}: {:?} {:?}",
                compile(old).err(),
                compile(new).err()
            );
            let language = SchemaType::JsonSchema.language();
            let comparison = cpu::bounded(&format!("comparing {name}"), || language.compare(&before, &after).unwrap());
            let shown: usize = comparison.changes().iter().map(|one| one.path.len() + one.message.len()).sum();
            assert!(shown < 8 * MIB && comparison.changes().len() <= 1_001, "{name}: {shown}");
            assert!(old != new || comparison.changes().is_empty(), "{name}: {:?}", comparison.changes().first());
        }
    }
}

#[test]
fn identifiers_are_bounded() {
    let long = "n".repeat(100_000);
    let many = |count: usize, schema: &dyn Fn(usize) -> String| {
        (0..count).map(|at| format!("\"p{at}\":{}", schema(at))).collect::<Vec<_>>().join(",")
    };
    let nested = format!("{}{}{}", "{\"$id\":\"nnnnnnnnnn/\",\"not\":".repeat(60), "{\"$id\":\"x\"}", "}".repeat(60));
    let cases = [
        (
            "references within a long identifier",
            "http://a/".to_string() + &long,
            many(4_000, &|_| "{\"$ref\":\"#/$defs/x\"}".into()),
        ),
        (
            "references to a long identifier",
            "http://a/".to_string() + &long,
            many(2_000, &|_| "{\"$ref\":\"x\"}".into()),
        ),
        (
            "identifiers below a long one",
            "http://a/".to_string() + &long + "/",
            many(4_000, &|at| format!("{{\"$id\":\"i{at}\"}}")),
        ),
        ("many identifiers", "http://a/".into(), many(15_000, &|at| format!("{{\"$id\":\"i{at}\"}}"))),
        ("4,000 identifiers", "http://a/".into(), many(4_000, &|at| format!("{{\"$id\":\"i{at}\"}}"))),
        ("identifiers again", "http://a/".into(), many(4_000, &|_| "{\"$id\":\"i\"}".into())),
        ("identifiers within each other", "http://a/".into(), many(150, &|_| nested.clone())),
        ("4,000 anchors", "http://a/".into(), many(4_000, &|at| format!("{{\"$anchor\":\"i{at}\"}}"))),
        ("15,000 anchors", "http://a/".into(), many(15_000, &|at| format!("{{\"$dynamicAnchor\":\"i{at}\"}}"))),
        (
            "4,000 references to anchors",
            "http://a/".into(),
            many(2_000, &|at| format!("{{\"$anchor\":\"i{at}\",\"items\":{{\"$ref\":\"#i{}\"}}}}", (at + 1) % 2_000)),
        ),
        (
            "references with escapes",
            "http://a/".into(),
            many(4_000, &|_| format!("{{\"$ref\":\"#/$defs/{}\"}}", "~0%41".repeat(10))),
        ),
        ("long references", "http://a/".into(), many(4, &|_| format!("{{\"$ref\":\"{long}\"}}"))),
        ("deep references", "http://a/".into(), many(4, &|_| format!("{{\"$ref\":\"#{}\"}}", "/a".repeat(50_000)))),
    ];
    for (name, id, properties) in &cases {
        let schema = format!(
            "{{{MODERN}\"$id\":\"{id}\",\"properties\":{{{properties}}},\"$defs\":{{\"x\":{{\"$id\":\"x\"}}}}}}"
        );
        let definition = Definition { content: schema, strict: true, ..Definition::default() };
        let language = SchemaType::JsonSchema.language();
        let result = cpu::bounded(name, || language.compile(&definition));
        println!("              {:.100}", result.err().map_or_else(|| "accepted".into(), |error| error.to_string()));
        cpu::bounded(&format!("comparing {name}"), || language.compare(&definition, &definition).is_ok());
    }
}
