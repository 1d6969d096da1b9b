//! XML Schema: what is made to hurt. Everything is refused or answered, within bounded CPU time.

use std::fmt::Write as _;

mod cpu;

use tidegate_schema::limits::{DEPTH, DOCUMENT_BYTES, MAX_VIOLATIONS, SCHEMA_BYTES};
use tidegate_schema::{Definition, Document, Format, Report, SchemaError, SchemaType, Validator};

fn wrap(body: &str) -> String {
    format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{body}</xs:schema>")
}

fn compile_text(what: &str, content: String) -> Result<Box<dyn Validator>, SchemaError> {
    let definition = Definition { content, ..Definition::default() };
    let result = cpu::bounded(what, || SchemaType::Xsd.language().compile(&definition));
    let verdict = result.as_ref().map_or_else(|error| format!("refused: {error}"), |_| "accepted".into());
    println!("              {verdict:.140}");
    result
}

fn compile(what: &str, body: &str) -> Result<Box<dyn Validator>, SchemaError> {
    compile_text(what, wrap(body))
}

fn refused(what: &str, body: &str, why: &str) {
    let error = compile(what, body).unwrap_err();
    assert!(error.to_string().contains(why), "{what}: {error}");
    assert!(error.position.is_some(), "{what}: {error}");
}

fn validate(what: &str, schema: &dyn Validator, document: &str) -> Report {
    let report = cpu::bounded(what, || schema.validate(Document { bytes: document.as_bytes(), format: Format::Xml }));
    let first = report.violations().first().map_or("valid", |one| &one.message);
    println!("              {} bytes: {} violations, {first:.80}", document.len(), report.total());
    assert!(report.violations().len() <= MAX_VIOLATIONS);
    report
}

/// A document that repeats something until it is as long as documents may be.
fn full(start: &str, end: &str, part: impl Fn(usize) -> String) -> String {
    let mut text = start.to_owned();
    for number in 0.. {
        let next = part(number);
        if text.len() + next.len() + end.len() > DOCUMENT_BYTES {
            break;
        }
        text += &next;
    }
    text + end
}

fn any() -> Box<dyn Validator> {
    compile("any", "<xs:element name=\"a\"/>").unwrap()
}

#[test]
fn nothing_outside_is_looked_at() {
    let schema = any();
    let laughs = "<!DOCTYPE a [<!ENTITY l0 \"lol\"><!ENTITY l1 \"&l0;&l0;&l0;&l0;\"><!ENTITY l2 \"&l1;&l1;&l1;&l1;\">]><a>&l2;</a>";
    for document in [
        laughs,
        "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>",
        "<!DOCTYPE a [<!ENTITY e SYSTEM \"http://127.0.0.1:9/\">]><a>&e;</a>",
        "<?xml version=\"1.0\"?>\n<!DOCTYPE a><a/>",
    ] {
        let report = validate("document type", &*schema, document);
        assert!(report.violations()[0].message.contains("a DOCTYPE is not accepted"), "{report:?}");
    }
    // XInclude is an element like any other.
    let include =
        "<a><xi:include xmlns:xi=\"http://www.w3.org/2001/XInclude\" href=\"file:///etc/passwd\" parse=\"text\"/></a>";
    assert!(validate("xinclude", &*schema, include).is_valid());
    let strict = compile("strict", "<xs:element name=\"a\" type=\"xs:string\"/>").unwrap();
    assert_eq!(validate("xinclude", &*strict, include).total(), 1);
    let hints = "<a xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:noNamespaceSchemaLocation=\"file:///etc/passwd\" \
                 xsi:schemaLocation=\"urn:x http://127.0.0.1:9/x.xsd\"/>";
    assert!(validate("location hints", &*strict, hints).is_valid());
    let stylesheet = "<?xml-stylesheet href=\"http://127.0.0.1:9/\"?><?xml-model href=\"http://127.0.0.1:9/\"?><a/>";
    assert!(validate("processing instructions", &*strict, stylesheet).is_valid());

    refused(
        "import",
        "<xs:import namespace=\"urn:x\" schemaLocation=\"file:///etc/passwd\"/>",
        "import is not supported",
    );
    refused("import of nothing", "<xs:import schemaLocation=\"http://127.0.0.1:9/\"/>", "import is not supported");
    refused("include", "<xs:include schemaLocation=\"file:///etc/passwd\"/>", "include is not supported");
    refused("redefine", "<xs:redefine schemaLocation=\"http://127.0.0.1:9/\"/>", "redefine is not supported");
    refused("notation", "<xs:notation name=\"n\" system=\"http://127.0.0.1:9/\"/>", "notation is not supported");
    let error = compile_text("schema with document type", format!("<!DOCTYPE x [<!ENTITY e \"e\">]>{}", wrap("")))
        .err()
        .unwrap();
    assert!(error.to_string().contains("a DOCTYPE is not accepted"), "{error}");
}

#[test]
fn nesting_is_bounded() {
    let schema = any();
    for depth in [DEPTH, DEPTH + 1, 100_000] {
        let document = "<a>".repeat(depth) + &"</a>".repeat(depth);
        assert_eq!(validate("nested", &*schema, &document).is_valid(), depth == DEPTH);
    }
    let open = "<a>".repeat(100_000);
    assert_eq!(validate("nested and open", &*schema, &open).total(), 1);
    let groups = "<xs:sequence>".repeat(SCHEMA_BYTES / 14);
    refused("nested groups", &format!("<xs:complexType name=\"t\">{groups}"), "nested deeper");
    let mut chain = String::new();
    for number in 0..90 {
        let inner = "<xs:sequence>".repeat(100)
            + &format!("<xs:group ref=\"g{}\"/>", number + 1)
            + &"</xs:sequence>".repeat(100);
        writeln!(chain, "<xs:group name=\"g{number}\"><xs:sequence>{inner}</xs:sequence></xs:group>").unwrap();
    }
    chain += "<xs:group name=\"g90\"><xs:sequence><xs:element name=\"e\"/></xs:sequence></xs:group><xs:element name=\"r\"><xs:complexType><xs:group ref=\"g0\"/></xs:complexType></xs:element>";
    refused("nested through groups", &chain, "nested deeper than 200");
}

#[test]
fn sizes_are_bounded() {
    let error = compile_text("10 MiB schema", " ".repeat(10 << 20)).err().unwrap();
    assert!(error.to_string().contains("longer than"), "{error}");
    let report = validate("10 MiB document", &*any(), &"<a>".repeat(10 << 18));
    assert!(report.violations()[0].message.contains("longer than"), "{report:?}");
}

#[test]
fn violations_are_bounded_and_counted() {
    let schema = compile(
        "ints",
        "<xs:element name=\"r\"><xs:complexType><xs:sequence><xs:element name=\"i\" type=\"xs:int\" maxOccurs=\"unbounded\"/>\
         </xs:sequence></xs:complexType></xs:element>",
    )
    .unwrap();
    let document = format!("<r>{}</r>", "<i>x</i>".repeat(100_000));
    let report = validate("100,000 wrong values", &*schema, &document);
    assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, 100_000));
    assert_eq!(report.violations()[99].path, "/r/i[100]");
    let document = format!("<r>{}</r>", "<x/>".repeat(100_000));
    assert!(validate("100,000 wrong elements", &*schema, &document).total() >= 100_000);
    let document = full("<r", "/>", |number| format!(" a{number}=''"));
    assert!(validate("wrong attributes", &*schema, &document).total() > 10_000);
    let document = full("<r>", "</r>", |number| format!("<n{number}/>"));
    assert!(validate("wrong names", &*schema, &document).total() > 10_000);
}

#[test]
fn patterns_do_not_explode() {
    let with = |pattern: &str| {
        format!(
            "<xs:element name=\"r\"><xs:simpleType><xs:restriction base=\"xs:string\"><xs:pattern value=\"{pattern}\"/>\
             </xs:restriction></xs:simpleType></xs:element>"
        )
    };
    for pattern in ["(a+)+b", "(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*)*x", "((a?){30})b", "(a{1,30}){1,30}b"] {
        let Ok(schema) = compile(pattern, &with(pattern)) else { continue };
        let document = format!("<r>{}</r>", "a".repeat(DOCUMENT_BYTES - 7));
        assert!(!validate(pattern, &*schema, &document).is_valid());
    }
    for pattern in
        ["(a{1,1000}){1,1000}", "(a|b)*a(a|b){40}", "((((a{99}){99}){99}){99}){99}", "(((){1000}){1000}){1000}a{99999}"]
    {
        refused(pattern, &with(pattern), "the pattern");
    }
    refused("1 MiB pattern", &with(&"a?".repeat(200_000)), "the pattern is longer than");
    refused("nested parentheses", &with(&"(".repeat(4_000)), "the pattern");
    refused("nested classes", &with(&"[a-[".repeat(900)), "the pattern");
    let mut many = String::new();
    for number in 0..3_000 {
        let pattern = format!("(a|b)*a(a|b){{9}}{number}");
        write!(many, "<xs:simpleType name=\"t{number}\"><xs:restriction base=\"xs:string\"><xs:pattern value=\"{pattern}\"/></xs:restriction></xs:simpleType>").unwrap();
    }
    refused("3,000 patterns", &many, "the pattern");
}

#[test]
fn content_models_do_not_explode() {
    let nested = |levels: usize, max: &str| {
        let mut body =
            "<xs:element name=\"a\" type=\"xs:string\" minOccurs=\"0\"/><xs:element name=\"b\" type=\"xs:string\"/>"
                .to_owned();
        for _ in 0..levels {
            body = format!("<xs:sequence maxOccurs=\"{max}\">{body}</xs:sequence>");
        }
        format!("<xs:element name=\"r\"><xs:complexType>{body}</xs:complexType></xs:element>")
    };
    for (levels, max) in [(1, "1000000"), (3, "1000000"), (20, "10"), (100, "unbounded")] {
        let schema = compile(&format!("{levels} levels of {max}"), &nested(levels, max)).unwrap();
        let document = full("<r>", "</r>", |_| "<a/><b/><b/>".into());
        assert_eq!(
            validate("full", &*schema, &document).is_valid(),
            levels > 1 || max == "1000000" || max == "unbounded"
        );
    }
    refused(
        "unclear iterations",
        "<xs:element name=\"r\"><xs:complexType><xs:sequence minOccurs=\"2\" maxOccurs=\"1000000\"><xs:element name=\"a\" \
         maxOccurs=\"1000\"/><xs:element name=\"b\" minOccurs=\"0\"/></xs:sequence></xs:complexType></xs:element>",
        "cannot be told apart",
    );
    for (min, max) in [("1", "unbounded"), ("2", "3")] {
        let body = format!(
            "<xs:element name=\"r\"><xs:complexType><xs:sequence><xs:choice minOccurs=\"2\" maxOccurs=\"2\"><xs:element \
             name=\"a\" minOccurs=\"{min}\" maxOccurs=\"{max}\"/><xs:element name=\"b\"/></xs:choice><xs:element \
             name=\"b\"/></xs:sequence></xs:complexType></xs:element>"
        );
        refused("a fixed number of unclear iterations", &body, "cannot be told apart");
    }
    let mut doubling = String::new();
    for number in 0..60 {
        let next = number + 1;
        write!(doubling, "<xs:group name=\"g{number}\"><xs:sequence><xs:group ref=\"g{next}\"/><xs:group ref=\"g{next}\"/></xs:sequence></xs:group>").unwrap();
    }
    for last in ["<xs:element name=\"e\"/>", ""] {
        let body = format!(
            "{doubling}<xs:group name=\"g60\"><xs:sequence>{last}</xs:sequence></xs:group><xs:complexType name=\"t\"><xs:group ref=\"g0\"/></xs:complexType>"
        );
        refused("groups that double", &body, "more than 5000 particles");
    }
    let optional = |count: usize, compositor: &str, occurs: &str| {
        let mut body = format!("<xs:element name=\"r\"><xs:complexType><xs:{compositor} {occurs}>");
        for number in 0..count {
            write!(body, "<xs:element name=\"e{number}\" minOccurs=\"0\"/>").unwrap();
        }
        body + &format!("</xs:{compositor}></xs:complexType></xs:element>")
    };
    for (compositor, occurs) in
        [("sequence", "maxOccurs=\"unbounded\""), ("choice", "maxOccurs=\"unbounded\""), ("all", "")]
    {
        let schema = compile(&format!("4,900 optional in {compositor}"), &optional(4_900, compositor, occurs)).unwrap();
        let document = full("<r>", "</r>", |number| format!("<e{}/>", (number * 7) % 4_900));
        validate("all over", &*schema, &document);
    }
    refused("6,000 optional", &optional(6_000, "sequence", ""), "more than 5000 particles");
}

#[test]
fn chains_and_cycles_are_refused() {
    let chain = |make: &dyn Fn(usize, usize) -> String| (0..9_999).map(|at| make(at, at + 1)).collect::<String>();
    let simple =
        chain(&|at, next| format!("<xs:simpleType name=\"t{at}\"><xs:restriction base=\"t{next}\"/></xs:simpleType>"));
    let simple = simple[..simple.len().min(SCHEMA_BYTES - 500)].rsplit_once("<xs:simpleType").unwrap().0.to_owned();
    let count = simple.matches("<xs:simpleType").count();
    let simple =
        format!("{simple}<xs:simpleType name=\"t{count}\"><xs:restriction base=\"xs:string\"/></xs:simpleType>");
    refused("a chain of simple types", &simple, "chain of more than 100");
    let complex = (0..4_000).map(|at| {
        format!("<xs:complexType name=\"t{at}\"><xs:complexContent><xs:extension base=\"t{}\"/></xs:complexContent></xs:complexType>", at + 1)
    });
    let complex = complex.collect::<String>() + "<xs:complexType name=\"t4000\"/>";
    refused("a chain of complex types", &complex, "chain of more than 100");
    let groups = (0..4_000).map(|at| {
        format!("<xs:group name=\"g{at}\"><xs:sequence><xs:group ref=\"g{}\"/></xs:sequence></xs:group>", at + 1)
    });
    refused(
        "a chain of groups",
        &(groups.collect::<String>() + "<xs:group name=\"g4000\"><xs:sequence/></xs:group>"),
        "chain of more than 100",
    );
    let heads = (0..5_000).map(|at| format!("<xs:element name=\"e{at}\" substitutionGroup=\"e{}\"/>", at + 1));
    refused(
        "a chain of heads",
        &(heads.collect::<String>() + "<xs:element name=\"e5000\"/>"),
        "a chain of more than 100",
    );
    let ring = (0..5_000).map(|at| format!("<xs:element name=\"e{at}\" substitutionGroup=\"e{}\"/>", (at + 1) % 5_000));
    refused("a ring of heads", &ring.collect::<String>(), "circular");
    let ring = (0..5_000).map(|at| {
        format!("<xs:simpleType name=\"t{at}\"><xs:list itemType=\"t{}\"/></xs:simpleType>", (at + 1) % 5_000)
    });
    refused("a ring of lists", &ring.collect::<String>(), "circular");
    let star = (0..6_000).map(|at| format!("<xs:element name=\"e{at}\" substitutionGroup=\"h\"/>"));
    compile("a star of substitutes", &(star.collect::<String>() + "<xs:element name=\"h\"/>")).unwrap();
    let stars = (0..60)
        .map(|at| format!("<xs:element name=\"h{at}\" substitutionGroup=\"h{}\"/>", at + 1))
        .collect::<String>()
        + &(0..4_000).map(|at| format!("<xs:element name=\"e{at}\" substitutionGroup=\"h0\"/>")).collect::<String>()
        + "<xs:element name=\"h60\"/>";
    refused("substitutes of a chain", &stars, "more than 50000 members");
    // Types through which elements nest are no chain of dependencies.
    let nested = (0..4_000).map(|at| format!("<xs:complexType name=\"t{at}\"><xs:sequence><xs:element name=\"e\" type=\"t{}\" minOccurs=\"0\"/></xs:sequence></xs:complexType>", at + 1));
    let nested = nested.collect::<String>() + "<xs:complexType name=\"t4000\"/><xs:element name=\"e\" type=\"t0\"/>";
    compile("4,000 types that nest", &nested).unwrap();
    let language = SchemaType::Xsd.language();
    let definition = Definition { content: wrap(&nested), ..Definition::default() };
    let comparison = cpu::bounded("comparing them", || language.compare(&definition, &definition).unwrap());
    assert!(comparison.changes().is_empty());
}

#[test]
fn inheritance_is_bounded() {
    let mut attributes = "<xs:complexType name=\"t0\">".to_owned();
    for number in 0..2_000 {
        write!(attributes, "<xs:attribute name=\"a{number}\"/>").unwrap();
    }
    attributes += "</xs:complexType>";
    for at in 0..2_000 {
        write!(attributes, "<xs:complexType name=\"u{at}\"><xs:complexContent><xs:extension base=\"t0\"/></xs:complexContent></xs:complexType>").unwrap();
    }
    refused("2,000 types of 2,000 attributes", &attributes, "attributes together");
    let groups = |count: usize, inside: &dyn Fn(usize) -> String, types: usize| {
        let all = (0..count).map(|at| format!("<xs:attributeGroup name=\"g{at}\">{}</xs:attributeGroup>", inside(at)));
        let all = all.collect::<String>();
        let uses = (0..count).map(|at| format!("<xs:attributeGroup ref=\"g{at}\"/>")).collect::<String>();
        all + &(0..types)
            .map(|at| format!("<xs:complexType name=\"t{at}\">{uses}</xs:complexType>"))
            .collect::<String>()
    };
    compile("a type of 2,000 groups", &groups(2_000, &|at| format!("<xs:attribute name=\"a{at}\"/>"), 1)).unwrap();
    let spaces = (0..40_000).map(|at| format!("{at:x} ")).collect::<String>();
    let wildcard = |_| format!("<xs:anyAttribute namespace=\"{spaces}\"/>");
    refused("2,000 wildcards of 40,000 namespaces", &groups(1, &wildcard, 2_000), "attributes together");
    let based = "<xs:extension base=\"t0\"/>";
    let mut heirs = groups(1, &wildcard, 1);
    for at in 0..2_000 {
        write!(heirs, "<xs:complexType name=\"u{at}\"><xs:complexContent>{based}</xs:complexContent></xs:complexType>")
            .unwrap();
    }
    refused("2,000 heirs of 40,000 namespaces", &heirs, "attributes together");
    let mut listed = "<xs:simpleType name=\"t\"><xs:restriction base=\"xs:string\">".to_owned();
    for number in 0..5_000 {
        write!(listed, "<xs:enumeration value=\"v{number}\"/>").unwrap();
    }
    listed += "</xs:restriction></xs:simpleType>";
    for at in 0..3_000 {
        write!(listed, "<xs:simpleType name=\"u{at}\"><xs:restriction base=\"t\"/></xs:simpleType>").unwrap();
    }
    compile("3,000 types of 5,000 values", &listed).unwrap();
    let members = (0..200).map(|at| {
        format!(
            "<xs:simpleType name=\"u{at}\"><xs:union memberTypes=\"xs:int xs:date xs:time xs:float\"/></xs:simpleType>"
        )
    });
    let names = (0..200).map(|at| format!("u{at} ")).collect::<String>();
    let unions = members.collect::<String>()
        + &format!("<xs:simpleType name=\"all\"><xs:union memberTypes=\"{names}\"/></xs:simpleType>");
    refused("a union of 800", &unions, "more than 100 members");
}

#[test]
fn documents_that_take_many_steps_are_answered() {
    let members = "xs:int xs:date xs:time xs:float xs:boolean xs:dateTime ".repeat(16);
    let union = format!(
        "<xs:element name=\"r\"><xs:simpleType><xs:list><xs:simpleType><xs:union memberTypes=\"{members}\"/></xs:simpleType></xs:list></xs:simpleType></xs:element>"
    );
    let schema = compile("a union of 96", &union).unwrap();
    validate("union", &*schema, &full("<r>", "</r>", |_| "x ".into()));
    validate("union of long", &*schema, &full("<r>", "</r>", |_| "x".into()));
    let keys = "<xs:element name=\"a\"><xs:complexType><xs:sequence><xs:element ref=\"a\" minOccurs=\"0\" maxOccurs=\"unbounded\"/></xs:sequence>\
                <xs:attribute name=\"n\"/></xs:complexType><xs:key name=\"k\"><xs:selector xpath=\".//a\"/><xs:field xpath=\"@n\"/></xs:key>\
                <xs:keyref name=\"f\" refer=\"k\"><xs:selector xpath=\".//a\"/><xs:field xpath=\"@n\"/></xs:keyref></xs:element>";
    let schema = compile("keys everywhere", keys).unwrap();
    let deep = "<a>".repeat(120);
    let document = full(&deep, &"</a>".repeat(120), |number| format!("<a n='{number}'/>"));
    validate("keys, deep", &*schema, &document);
    validate("keys, flat", &*schema, &full("<a>", "</a>", |number| format!("<a n='{number}'/>")));
    let required = (0..4_000).map(|at| format!("<xs:attribute name=\"a{at}\" use=\"required\"/>")).collect::<String>();
    let body = format!(
        "<xs:element name=\"r\"><xs:complexType><xs:sequence><xs:element name=\"e\" maxOccurs=\"unbounded\"><xs:complexType>{required}</xs:complexType></xs:element></xs:sequence></xs:complexType></xs:element>"
    );
    let schema = compile("4,000 required attributes", &body).unwrap();
    validate("all missing", &*schema, &full("<r>", "</r>", |_| "<e/>".into()));
    let schema = any();
    validate("one element, many attributes", &*schema, &full("<a ", "/>", |number| format!("a{number}='' ")));
    validate("many namespaces", &*schema, &full("<a ", "/>", |number| format!("xmlns:a{number}='u' ")));
    let spaces = (0..127).map(|number| format!("xmlns:prefix{number}='u{number}' ")).collect::<String>();
    validate("prefixes", &*schema, &full(&format!("<a {spaces}>"), "</a>", |_| "<prefix0:b/>".into()));
    validate("comments", &*schema, &full("<a>", "</a>", |_| "<!---->x".into()));
    validate("references", &*schema, &full("<a>", "</a>", |_| "&#x10FFFF;]".into()));
    let ids = "<xs:element name=\"r\"><xs:complexType><xs:sequence><xs:element name=\"i\" maxOccurs=\"unbounded\"><xs:complexType><xs:attribute name=\"id\" type=\"xs:ID\"/><xs:attribute name=\"to\" type=\"xs:IDREFS\"/></xs:complexType></xs:element></xs:sequence></xs:complexType></xs:element>";
    let schema = compile("ids", ids).unwrap();
    validate("ids", &*schema, &full("<r>", "</r>", |number| format!("<i id='i{number}' to='j{number} k{number}'/>")));
}

#[test]
fn restrictions_of_restrictions_take_bounded_steps() {
    // Every choice of a level could restrict every choice of the other.
    let choice = |levels: usize, name: &str| {
        let mut body = format!("<xs:element name=\"{name}\" type=\"xs:string\"/>");
        for level in 0..levels {
            body = format!(
                "<xs:sequence>{body}<xs:choice>{}</xs:choice></xs:sequence>",
                (0..30).map(|at| format!("<xs:element name=\"e{level}x{at}\"/>")).collect::<String>()
            );
        }
        body
    };
    let body = format!(
        "<xs:complexType name=\"base\"><xs:choice maxOccurs=\"unbounded\">{}</xs:choice></xs:complexType><xs:complexType name=\"less\">\
         <xs:complexContent><xs:restriction base=\"base\"><xs:choice maxOccurs=\"unbounded\">{}</xs:choice></xs:restriction></xs:complexContent></xs:complexType>",
        choice(60, "a"),
        choice(60, "b"),
    );
    assert!(compile("choices of choices", &body).is_err());
}

#[test]
fn many_threads_validate_at_once() {
    let schema = compile("shared", "<xs:element name=\"r\"><xs:simpleType><xs:restriction base=\"xs:int\"><xs:pattern value=\"[0-9]+\"/></xs:restriction></xs:simpleType></xs:element>").unwrap();
    let schema = &*schema;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..1_000 {
                    let document = format!("<r>{}</r>", number * (thread + 1));
                    assert!(schema.validate(Document { bytes: document.as_bytes(), format: Format::Xml }).is_valid());
                }
            });
        }
    });
}

/// Compares two schemas in both directions, and each with itself.
fn compare(what: &str, one: &str, other: &str) {
    let definition = |body: &str| Definition { content: wrap(body), ..Definition::default() };
    let language = SchemaType::Xsd.language();
    for (old, new) in [(one, other), (other, one), (one, one), (other, other)] {
        let (before, after) = (definition(old), definition(new));
        let comparison = cpu::bounded(&format!("comparing {what}"), || {
            language.compare(&before, &after).unwrap_or_else(|error| panic!("{what}: {error}"))
        });
        let shown: usize = comparison.changes().iter().map(|one| one.path.len() + one.message.len()).sum();
        println!("              {} changes, {shown} bytes", comparison.changes().len());
        assert!(shown < 4 << 20 && comparison.changes().len() <= 1_002, "{what}: {shown}");
        let is_cut = comparison.changes().iter().all(|one| one.message.contains("too large"));
        assert!(old != new || is_cut, "{what}: {:?}", comparison.changes().first());
    }
}

#[test]
fn comparisons_are_answered() {
    let long = "n".repeat(200_000);
    let element = |name: &str, inner: &str| {
        format!("<xs:element name=\"{name}\"><xs:complexType>{inner}</xs:complexType></xs:element>")
    };
    let attributes = |count: usize, name: &str| {
        (0..count).map(|at| format!("<xs:attribute name=\"{name}{at}\"/>")).collect::<String>()
    };
    compare(
        "attributes below a long name",
        &element(&long, &attributes(9_000, "a")),
        &element(&long, &attributes(9_000, "b")),
    );
    compare("12,000 attributes", &element("r", &attributes(12_000, "a")), &element("r", &attributes(11_000, "b")));
    let typed = |count: usize, kind: &str| {
        (0..count).map(|at| format!("<xs:element name=\"e{at}\"{kind}</xs:element>")).collect::<String>()
    };
    let group = |inner: &str| format!("<xs:complexType name=\"t\">{inner}</xs:complexType>");
    compare(
        "one type in place of 3,000",
        &(group(&attributes(8_000, "a")) + &typed(3_000, " type=\"t\">")),
        &(group(&attributes(8_000, "a")) + &typed(3_000, "><xs:complexType/>")),
    );
    let children = |count: usize, compositor: &str, name: &dyn Fn(usize) -> usize| {
        let all = (0..count).map(|at| format!("<xs:element name=\"c{}\" type=\"xs:int\" minOccurs=\"0\"/>", name(at)));
        format!("<xs:{compositor}>{}</xs:{compositor}>", all.collect::<String>())
    };
    compare(
        "one content in place of 3,000",
        &(group(&children(4_000, "choice", &|at| at)) + &typed(3_000, " type=\"t\">")),
        &(group(&children(4_000, "choice", &|at| at)) + &typed(3_000, "><xs:complexType><xs:all/></xs:complexType>")),
    );
    for compositor in ["sequence", "choice", "all"] {
        let forward = element("r", &children(4_900, compositor, &|at| at));
        compare(compositor, &forward, &element("r", &children(4_900, compositor, &|at| 4_899 - at)));
        compare(compositor, &forward, &element("r", &children(4_900, compositor, &|at| at + 10_000)));
    }
    let constraints = |name: &str| {
        let all = (0..4_000).map(|at| {
            format!("<xs:unique name=\"{name}{at}\"><xs:selector xpath=\"a\"/><xs:field xpath=\"b\"/></xs:unique>")
        });
        format!("<xs:element name=\"r\">{}</xs:element>", all.collect::<String>())
    };
    compare("4,000 identity constraints", &constraints("u"), &constraints("v"));
    let fixed = |value: &str| {
        format!("<xs:attributeGroup name=\"g\"><xs:attribute name=\"a\" fixed=\"{value}\"/></xs:attributeGroup>")
            + &(0..3_000)
                .map(|at| format!("<xs:complexType name=\"t{at}\"><xs:attributeGroup ref=\"g\"/></xs:complexType>"))
                .collect::<String>()
    };
    compare("a long value of 3,000 types", &fixed(&long), &fixed(&(long.clone() + "n")));
    let listed = |count: usize, more: &str| {
        let values = (0..count).map(|at| format!("<xs:enumeration value=\"v{at}\"/>")).collect::<String>();
        format!("<xs:simpleType name=\"l\"><xs:restriction base=\"xs:string\">{values}</xs:restriction></xs:simpleType>")
            + &(0..2_000).map(|at| format!("<xs:element name=\"e{at}\" fixed=\"v1\"><xs:simpleType><xs:union memberTypes=\"l xs:int{more}\"/></xs:simpleType></xs:element>")).collect::<String>()
    };
    compare("unions of 5,000 values", &listed(5_000, ""), &listed(5_001, " xs:date"));
    let chain = |base: &str| {
        let types = (0..3_000).map(|at| {
            let base = if at % 90 == 0 { base.to_owned() } else { format!("t{}", at - 1) };
            format!("<xs:simpleType name=\"t{at}\"><xs:restriction base=\"{base}\"/></xs:simpleType>")
        });
        types.collect::<String>() + "<xs:element name=\"r\" type=\"xs:token\"/>"
    };
    compare("chains of bases", &chain("xs:token"), &chain("xs:string"));
    let star = |type_of_members: &str| {
        (0..4_000)
            .map(|at| format!("<xs:element name=\"e{at}\" substitutionGroup=\"h\"{type_of_members}/>"))
            .collect::<String>()
            + "<xs:element name=\"h\"/>"
    };
    compare("4,000 substitutes", &star(""), &star(" type=\"xs:int\""));
}

#[test]
fn long_names_are_not_repeated() {
    let strict = compile("strict", "<xs:element name=\"a\"><xs:complexType><xs:sequence><xs:any processContents=\"lax\"/></xs:sequence></xs:complexType></xs:element>").unwrap();
    let long = "n".repeat(200_000);
    let inner = "<a><b/><c/></a>".repeat(40_000);
    for document in [
        format!("<a><{long}>{inner}</{long}></a>"),
        format!("<a>{}</a>", format!("<{long}/>").repeat(5)),
        format!("<{long}/>"),
        format!("<a {long}=''/>"),
        format!("<a><a {long}='' {long}=''/></a>"),
        format!("<a><{long}></a></a>"),
        format!("<a xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"{long}\"/>"),
        format!("<a><{long}:a/></a>"),
        format!("<a>&{long};</a>"),
    ] {
        let report = validate("a long name", &*strict, &document);
        assert!(!report.is_valid());
        let shown = report.violations().iter().map(|one| one.path.len() + one.message.len()).max();
        assert!(shown < Some(12_000), "{shown:?}");
    }
    for body in [
        format!("<xs:element name=\"{long}\" type=\"x\"/>"),
        format!("<xs:element name=\"a\" type=\"{long}\"/>"),
        format!("<xs:{long}/>"),
        format!("<xs:element name=\"a\" {long}=\"\"/>"),
    ] {
        let error = compile("a long name", &body).unwrap_err();
        assert!(error.message.len() < 2_000, "{}", error.message.len());
    }
}

/// What is short in a document and long in its schema, or in a namespace declaration.
#[test]
fn what_stands_for_much_is_answered() {
    let long = "n".repeat(200_000);
    let list = |of: &str, more: &str| {
        format!(
            "<xs:element name=\"r\"><xs:complexType><xs:sequence><xs:element name=\"i\" maxOccurs=\"unbounded\" {of}/></xs:sequence></xs:complexType>{more}</xs:element>"
        )
    };
    let key = "<xs:unique name=\"u\"><xs:selector xpath=\"i\"/><xs:field xpath=\".\"/></xs:unique>";
    let empty = full("<r>", "</r>", |_| "<i/>".into());
    for (what, body) in [
        ("a long default", list(&format!("type=\"xs:string\" default=\"{long}\""), "")),
        ("a long default that is a key", list(&format!("type=\"xs:string\" default=\"{long}\""), key)),
        ("a long fixed value", list(&format!("type=\"xs:string\" fixed=\"{long}\""), "")),
        ("many references", list(&format!("type=\"xs:IDREFS\" default=\"{}\"", "a ".repeat(200_000)), "")),
        (
            "many other references",
            list(
                &format!(
                    "type=\"xs:IDREFS\" default=\"{}\"",
                    (0..50_000).map(|at| format!("a{at} ")).collect::<String>()
                ),
                "",
            ),
        ),
    ] {
        let schema = compile(what, &body).unwrap();
        validate(what, &*schema, &empty);
        validate(&format!("{what}, another one"), &*schema, &full("<r>", "</r>", |_| "<i>x</i>".into()));
        let token = "<i xsi:type='xs:token'/>";
        let start =
            "<r xmlns:xs='http://www.w3.org/2001/XMLSchema' xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance'>";
        validate(&format!("{what}, of another type"), &*schema, &full(start, "</r>", |_| token.into()));
    }
    let references = (0..40_000).map(|at| format!("a{at} ")).collect::<String>();
    let attribute = format!(
        "<xs:complexType name=\"t\"><xs:attribute name=\"a\" type=\"xs:IDREFS\" default=\"{references}\"/></xs:complexType>"
    );
    let schema = compile("attributes with many references", &(attribute + &list("type=\"t\"", ""))).unwrap();
    validate("attributes with many references", &*schema, &empty);
    let fields = "<xs:field xpath=\"@a\"/>".repeat(8_000);
    let key = format!("<xs:unique name=\"u\"><xs:selector xpath=\"i\"/>{fields}</xs:unique>");
    let attribute =
        format!("<xs:complexType name=\"t\"><xs:attribute name=\"a\" default=\"{long}\"/></xs:complexType>");
    let schema = compile("many fields", &(attribute + &list("type=\"t\"", &key))).unwrap();
    validate("many fields of a long default", &*schema, &empty);
    validate("many fields of a long value", &*schema, &format!("<r><i a='{long}'/></r>"));
    validate("many fields", &*schema, &full("<r>", "</r>", |number| format!("<i a='{number}'/>")));

    let names = "<xs:element name=\"r\"><xs:simpleType><xs:restriction><xs:simpleType><xs:list itemType=\"xs:QName\"/></xs:simpleType><xs:maxLength value=\"9999999\"/></xs:restriction></xs:simpleType></xs:element>";
    let listed = names.replace("<xs:maxLength value=\"9999999\"/>", "<xs:enumeration value=\"r\"/>");
    for (what, body) in [("names", names), ("listed names", &*listed)] {
        let schema = compile(what, body).unwrap();
        let start = format!("<r xmlns:p='urn:{}'>", "n".repeat(4_000));
        validate(&format!("{what} of a long namespace"), &*schema, &full(&start, "</r>", |_| "p:a ".into()));
        let start = format!("<r xmlns:p='urn:{long}'>");
        validate(&format!("{what} of a longer namespace"), &*schema, &full(&start, "</r>", |_| "p:a ".into()));
    }
    let start = format!("<a xmlns:p='urn:{}' xmlns:q='urn:{}x' ", "n".repeat(4_000), "n".repeat(4_000));
    validate(
        "attributes of long namespaces",
        &*any(),
        &full(&start, "/>", |number| format!("p:a{number}='' q:a{number}='' ")),
    );

    let required =
        format!("<xs:complexType name=\"t\"><xs:attribute name=\"{long}\" use=\"required\"/></xs:complexType>");
    let schema = compile("a long attribute", &(required + &list("type=\"t\"", ""))).unwrap();
    validate("a long attribute is missing", &*schema, &empty);
    let children = (0..40)
        .map(|at| format!("<xs:element name=\"e{at}{}\" minOccurs=\"0\"/>", &long[..10_000]))
        .collect::<String>();
    let body = format!("<xs:complexType name=\"t\"><xs:sequence>{children}</xs:sequence></xs:complexType>")
        + &list("type=\"t\"", "");
    let schema = compile("long children", &body).unwrap();
    validate("long children are expected", &*schema, &full("<r>", "</r>", |_| "<i><x/></i>".into()));
    let digits = "9".repeat(400_000);
    let schema = compile("a long bound", &format!("<xs:element name=\"r\"><xs:simpleType><xs:list><xs:simpleType><xs:restriction base=\"xs:integer\"><xs:minInclusive value=\"{digits}\"/></xs:restriction></xs:simpleType></xs:list></xs:simpleType></xs:element>")).unwrap();
    validate("a long bound", &*schema, &full("<r>", "</r>", |_| "1 ".into()));
}
