//! XML Schema: the cases of `xsd/cases`, and what other processors make of them.
//!
//! A case is a schema that must be accepted or refused, and documents that must be valid or not. `xsd/judge.py` runs
//! PyPI's `xmlschema` and Java's validator over the same files and writes `xsd/judges.tsv` (the script `xsd/judge` does it all); where they disagree with what is
//! expected, `xsd/differences.tsv` says who is right and why.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use tidegate_schema::{Definition, Document, Format, SchemaType, Validator};

const XSI: &str = "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"";

/// A schema and its documents.
#[derive(Debug)]
struct Case {
    /// The file and the name.
    id: String,
    schema: String,
    is_accepted: bool,
    documents: Vec<(bool, String)>,
}

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xsd"))
}

fn cases() -> Vec<Case> {
    let mut files: Vec<_> =
        std::fs::read_dir(directory().join("cases")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let group = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        for part in text.split("\n=== ").skip(1) {
            let (head, body) = part.split_once('\n').unwrap();
            let (name, verdict) = head.split_once(": ").unwrap();
            let mut sections = body.split("\n--- ");
            let schema = sections.next().unwrap();
            let comments =
                schema.split_inclusive('\n').take_while(|line| line.starts_with('#')).map(str::len).sum::<usize>();
            let schema = schema[comments..].trim();
            let documents = sections.map(|section| {
                let (verdict, document) = section.split_once('\n').unwrap();
                assert!(["valid", "invalid"].contains(&verdict), "{group}/{name}: {verdict}");
                (verdict == "valid", document.trim().replace("XSI", XSI))
            });
            assert!(["accepted", "refused"].contains(&verdict), "{group}/{name}: {verdict}");
            cases.push(Case {
                id: format!("{group}/{name}"),
                schema: if schema.starts_with("<xs:schema") || schema.starts_with("<schema") {
                    schema.into()
                } else {
                    format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{schema}</xs:schema>")
                },
                is_accepted: verdict == "accepted",
                documents: documents.collect(),
            });
        }
    }
    cases
}

fn compile(schema: &str) -> Result<Box<dyn Validator>, tidegate_schema::SchemaError> {
    SchemaType::Xsd.language().compile(&Definition { content: schema.into(), ..Definition::default() })
}

fn word(is_good: bool, good: &'static str, bad: &'static str) -> &'static str {
    if is_good { good } else { bad }
}

/// Tells an edited case from the one that was judged: FNV-1a with 32 bits, as in `xsd/judge.py`.
fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// What is expected, as `judges.tsv` has it: one line for each schema and each document, with its digest.
fn expected() -> BTreeMap<String, (String, &'static str)> {
    let mut all = BTreeMap::new();
    for case in cases() {
        for (at, (is_valid, document)) in case.documents.iter().enumerate() {
            let verdict = word(*is_valid, "valid", "invalid");
            all.insert(format!("{}#{}", case.id, at + 1), (digest(document), verdict));
        }
        let verdict = word(case.is_accepted, "accepted", "refused");
        let again = all.insert(case.id.clone(), (digest(&case.schema), verdict));
        assert_eq!(again, None, "{} occurs twice", case.id);
    }
    all
}

#[test]
fn every_case_is_decided_as_expected() {
    let cases = cases();
    let documents: usize = cases.iter().map(|case| case.documents.len()).sum();
    assert!(cases.len() >= 200 && documents >= 300, "{} schemas, {documents} documents", cases.len());
    let mut wrong = String::new();
    for case in cases {
        match compile(&case.schema) {
            Err(error) if case.is_accepted => writeln!(wrong, "{}: {error}", case.id).unwrap(),
            Err(error) => {
                let position = error.position.unwrap_or_else(|| panic!("{}: no position", case.id));
                assert!(position.line <= case.schema.lines().count() as u32, "{}: {position}", case.id);
            }
            Ok(_) if !case.is_accepted => writeln!(wrong, "{}: accepted", case.id).unwrap(),
            Ok(validator) => {
                for (at, (is_valid, document)) in case.documents.iter().enumerate() {
                    let report = validator.validate(Document { bytes: document.as_bytes(), format: Format::Xml });
                    if report.is_valid() != *is_valid {
                        writeln!(wrong, "{}#{}: {:?}", case.id, at + 1, report.violations()).unwrap();
                    }
                    for violation in report.violations() {
                        assert!(violation.position.is_some() && !violation.message.is_empty(), "{violation:?}");
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The digest of a case, and what each judge says of it; `-` where a judge was not asked.
type Judged = (String, Vec<String>);

/// The judges, and their verdicts by case.
fn judged() -> (Vec<String>, HashMap<String, Judged>) {
    let text = std::fs::read_to_string(directory().join("judges.tsv")).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').map(str::to_owned));
    let judges = lines.next().unwrap().skip(2).collect();
    let rows = lines.map(|mut columns| (columns.next().unwrap(), (columns.next().unwrap(), columns.collect())));
    (judges, rows.collect())
}

#[test]
fn where_judges_differ_it_is_known_why() {
    let expected = expected();
    let (judges, judged) = judged();
    let text = std::fs::read_to_string(directory().join("differences.tsv")).unwrap();
    let mut known: BTreeMap<(String, String), String> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        assert!(columns.len() == 3 && !columns[2].is_empty(), "{line:?}");
        known.insert((columns[0].into(), columns[1].into()), columns[2].into());
    }
    let mut news = String::new();
    let mut both = [0; 2];
    for (id, (digest, verdict)) in &expected {
        let (judged_digest, verdicts) =
            judged.get(id).unwrap_or_else(|| panic!("{id} is not judged: run tests/xsd/judge"));
        assert_eq!(digest, judged_digest, "{id} was edited since it was judged: run tests/xsd/judge");
        if id.contains('#') && verdicts.iter().all(|one| ["valid", "invalid"].contains(&one.as_str())) {
            both[usize::from(*verdict == "valid")] += 1;
        }
        for (judge, other) in judges.iter().zip(verdicts).filter(|(_, other)| *other != verdict && *other != "-") {
            match known.remove(&(id.clone(), judge.clone())) {
                Some(why) => println!("{id}: {verdict}, {judge} says {other}: {why}"),
                None => writeln!(news, "{id}\t{judge}\t({other}, expected {verdict})").unwrap(),
            }
        }
    }
    assert_eq!(judged.len(), expected.len(), "judges.tsv has cases that are gone: run tests/xsd/judge");
    assert!(
        both.iter().all(|count| *count >= 60),
        "too few invalid and valid documents have verdicts of both: {both:?}"
    );
    assert!(news.is_empty(), "differences that are not explained:\n{news}");
    assert!(known.is_empty(), "differences that are gone: {known:?}");
}

#[test]
fn violations_say_what_and_where() {
    let schema = compile(
        "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"order\"><xs:complexType><xs:sequence>\
         <xs:element name=\"line\" maxOccurs=\"unbounded\"><xs:complexType><xs:sequence><xs:element name=\"note\" type=\"xs:string\" \
         minOccurs=\"0\"/></xs:sequence><xs:attribute name=\"sku\" use=\"required\"><xs:simpleType><xs:restriction base=\"xs:string\">\
         <xs:pattern value=\"[A-Z]{3}\"/></xs:restriction></xs:simpleType></xs:attribute></xs:complexType></xs:element>\
         <xs:element name=\"total\" type=\"xs:decimal\"/></xs:sequence></xs:complexType></xs:element></xs:schema>",
    )
    .unwrap();
    let document =
        "<order>\n  <line sku=\"ABC\"/>\n  <line sku=\"ab\"/>\n  <line><x/></line>\n  <total>many</total>\n</order>";
    let report = schema.validate(Document { bytes: document.as_bytes(), format: Format::Xml });
    let found: Vec<String> = report
        .violations()
        .iter()
        .map(|one| format!("{} {} {}", one.path, one.position.map_or("".into(), |at| at.to_string()), one.message))
        .collect();
    assert_eq!(
        found,
        [
            "/order/line[2]/@sku line 3, column 9 \"ab\" is wrong: it does not match the pattern \"[A-Z]{3}\"",
            "/order/line[3] line 4, column 3 the attribute \"sku\" is missing",
            "/order/line[3]/x line 4, column 9 the element \"x\" is not allowed here: expected is \"note\"",
            "/order/total line 5, column 3 \"many\" is wrong: it is no decimal number",
        ]
    );
    assert_eq!(report.total(), 4);
}

#[test]
fn what_is_no_xml_in_utf_8_is_told() {
    let schema =
        compile("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"a\"/></xs:schema>")
            .unwrap();
    let utf_16: Vec<u8> = [0xff, 0xfe].into_iter().chain("<a/>".encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let cases: &[(&[u8], &str)] = &[
        (b"", "the document is empty"),
        (&utf_16, "the document is not in UTF-8"),
        (b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><a/>", "the encoding \"ISO-8859-1\" is not supported"),
        (b"<?xml version=\"1.1\"?><a/>", "XML version \"1.1\" is not supported"),
        (b"<a>", "the text ends within the element \"a\""),
        (b"<a></b>", "the end tag of \"a\" is expected here"),
        (b"<a/><a/>", "there is a second root element"),
        (b"<a b=\"1\" b=\"2\"/>", "the attribute \"b\" occurs twice"),
        (b"<a xmlns:p=\"urn:x\" xmlns:q=\"urn:x\" p:b=\"1\" q:b=\"2\"/>", "the attribute \"q:b\" occurs twice"),
        (b"<a xmlns:p=\"urn:x\" xmlns:p=\"urn:y\"/>", "the prefix \"p\" is declared twice"),
        (b"<a xmlns=\"\" b=\"1\" xmlns=\"\"/>", "the default namespace is declared twice"),
        (b"<?xml version=\"1.0\" encoding=\"US-ASCII\"?><a>\xc3\xa4</a>", "has not all characters of this text"),
        (b"<p:a/>", "the prefix \"p\" is not declared"),
        (b"<a>&nbsp;</a>", "the entity \"nbsp\" is not declared"),
        (b"<a>&#0;</a>", "is no character of XML"),
        (b"<a>\x01</a>", "is not allowed in XML"),
        (b"<a>]]></a>", "is not allowed in text"),
        (b"<a b='<'/>", "is not allowed in the value of an attribute"),
        (b"<a b=1/>", "must be in quotes"),
        (b"<a b='1'c='2'/>", "white space or the end of the tag is expected"),
        (b"<!-- a -- b --><a/>", "is not allowed in a comment"),
        (b"text<a/>", "text is not allowed outside the root element"),
        (b" <?xml version=\"1.0\"?><a/>", "a processing instruction cannot have the name \"xml\""),
        (b"   ", "there is no root element"),
    ];
    for (bytes, why) in cases {
        let report = schema.validate(Document { bytes, format: Format::Xml });
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(report.total(), 1, "{text:?}: {report:?}");
        assert!(report.violations()[0].message.contains(why), "{text:?}: {report:?}");
    }
    let good: &[&[u8]] = &[
        b"\xef\xbb\xbf<a/>",
        b"<?xml version='1.0' encoding='utf-8' standalone='yes' ?>\n<!-- x --><?pi y?><a/>\n<!-- z -->",
        b"<a b='&lt;&#x41;&#66;'>\r\n&amp;<![CDATA[<x>]]></a >",
        b"<?xml version='1.0' encoding='us-ascii'?><a xmlns:p='urn:x'><b xmlns:p='urn:y'/><c xmlns:p='urn:z'/></a>",
    ];
    for bytes in good {
        let report = schema.validate(Document { bytes, format: Format::Xml });
        assert!(report.is_valid(), "{report:?}");
    }
    let report = schema.validate(Document { bytes: b"{}", format: Format::Json });
    assert_eq!(report.violations()[0].message, "the schema is an XML Schema, so the document must be XML");
}
