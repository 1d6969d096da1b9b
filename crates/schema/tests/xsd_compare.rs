//! XML Schema: what comparing two versions tells.

use tidegate_schema::{Definition, Document, Format, SchemaType, Verdict};

fn wrap(body: &str) -> String {
    if body.starts_with("<xs:schema") {
        return body.into();
    }
    format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{body}</xs:schema>")
}

fn changes(old: &str, new: &str) -> Vec<(Verdict, String, String)> {
    let definition = |body: &str| Definition { content: wrap(body), ..Definition::default() };
    let comparison = SchemaType::Xsd.language().compare(&definition(old), &definition(new)).unwrap();
    comparison.changes().iter().map(|one| (one.verdict, one.path.clone(), one.message.clone())).collect()
}

/// Checks the first change, and that there is no other one.
fn check(old: &str, new: &str, verdict: Verdict, path: &str, message: &str) {
    let found = changes(old, new);
    assert!(found.len() == 1, "{old}\n{new}\n{found:#?}");
    assert!(found[0].0 == verdict && found[0].1 == path && found[0].2.contains(message), "{old}\n{new}\n{found:#?}");
}

fn sequence(content: &str) -> String {
    format!("<xs:element name=\"r\"><xs:complexType><xs:sequence>{content}</xs:sequence></xs:complexType></xs:element>")
}

fn attributes(content: &str) -> String {
    format!("<xs:element name=\"r\"><xs:complexType>{content}</xs:complexType></xs:element>")
}

fn simple(facets: &str) -> String {
    format!("<xs:element name=\"r\"><xs:simpleType>{facets}</xs:simpleType></xs:element>")
}

#[test]
fn elements() {
    use Verdict::{Breaking, CannotTell, Compatible};
    let a = "<xs:element name=\"a\" type=\"xs:string\"/>";
    let b = "<xs:element name=\"b\" type=\"xs:string\"/>";
    let optional_b = "<xs:element name=\"b\" type=\"xs:string\" minOccurs=\"0\"/>";
    let both = format!("{a}{b}");
    check(&sequence(a), &sequence(&both), Breaking, "/r/b", "must be there was added");
    check(&sequence(&both), &sequence(a), Breaking, "/r/b", "removed");
    check(&sequence(a), &sequence(&format!("{a}{optional_b}")), Compatible, "/r/b", "optional content was added");
    check(&sequence(a), &sequence(&format!("{optional_b}{a}")), Compatible, "/r/b", "optional content was added");
    check(
        &sequence(&format!("{a}{optional_b}")),
        &sequence(&both),
        Breaking,
        "/r/b",
        "minOccurs was raised from 0 to 1",
    );
    check(&sequence(&both), &sequence(&format!("{a}{optional_b}")), Compatible, "/r/b", "minOccurs was lowered");
    let moved = changes(&sequence(&both), &sequence(&format!("{b}{a}")));
    assert!(moved.iter().any(|one| one.0 == Breaking && one.2.contains("moved")), "{moved:?}");
    let many = "<xs:element name=\"a\" type=\"xs:string\" maxOccurs=\"5\"/>";
    check(&sequence(a), &sequence(many), Compatible, "/r/a", "maxOccurs was raised from 1 to 5");
    check(&sequence(many), &sequence(a), Breaking, "/r/a", "maxOccurs was lowered from 5 to 1");
    let date = changes(&sequence(a), &sequence("<xs:element name=\"a\" type=\"xs:date\"/>"));
    assert!(date.iter().all(|one| one.0 == CannotTell && one.1 == "/r/a"), "{date:?}");
    assert!(date.iter().any(|one| one.2.contains("from String to Date")), "{date:?}");
    check(a, &both, Compatible, "/b", "a global element was added");
    check(&both, a, Breaking, "/b", "the global element was removed");
    let any = "<xs:element name=\"x\"><xs:complexType><xs:sequence><xs:any processContents=\"lax\"/></xs:sequence></xs:complexType></xs:element>";
    check(any, &format!("{any}{a}"), CannotTell, "/a", "a wildcard let it in before");
    check(
        &sequence(a),
        &sequence("<xs:element name=\"a\" type=\"xs:string\" nillable=\"true\"/>"),
        Compatible,
        "/r/a",
        "no longer not nillable",
    );
    check(
        &sequence(a),
        &sequence("<xs:element name=\"a\" type=\"xs:string\" fixed=\"x\"/>"),
        Breaking,
        "/r/a",
        "now fixed",
    );
    let choice = |content: &str| {
        format!("<xs:element name=\"r\"><xs:complexType><xs:choice>{content}</xs:choice></xs:complexType></xs:element>")
    };
    check(&choice(a), &choice(&format!("{b}{a}")), Compatible, "/r/b", "a branch was added");
    check(&choice(&both), &choice(b), Breaking, "/r/a", "removed");
    check(&sequence(a), &choice(a), CannotTell, "/r", "from sequence to choice");
    check(&attributes(""), &sequence(optional_b), Compatible, "/r", "optional content was added");
    check(&sequence(optional_b), &attributes(""), Breaking, "/r", "the content was removed");
}

#[test]
fn attributes_of_types() {
    use Verdict::{Breaking, CannotTell, Compatible};
    let optional = "<xs:attribute name=\"a\" type=\"xs:int\"/>";
    let required = "<xs:attribute name=\"a\" type=\"xs:int\" use=\"required\"/>";
    check(&attributes(""), &attributes(optional), Compatible, "/r/@a", "optional attribute was added");
    check(&attributes(""), &attributes(required), Breaking, "/r/@a", "required attribute was added");
    check(&attributes(optional), &attributes(""), Breaking, "/r/@a", "removed");
    check(&attributes(optional), &attributes(required), Breaking, "/r/@a", "now required");
    check(&attributes(required), &attributes(optional), Compatible, "/r/@a", "no longer required");
    check(
        &attributes("<xs:attribute name=\"a\" type=\"xs:int\" default=\"1\"/>"),
        &attributes("<xs:attribute name=\"a\" type=\"xs:int\" default=\"2\"/>"),
        Breaking,
        "/r/@a",
        "the default changed",
    );
    check(&attributes("<xs:anyAttribute/>"), &attributes(""), Breaking, "/r", "anyAttribute was removed");
    check(
        &attributes("<xs:anyAttribute/>"),
        &attributes(&format!("{optional}<xs:anyAttribute/>")),
        CannotTell,
        "/r/@a",
        "wildcard let in before",
    );
    check(
        &attributes("<xs:anyAttribute namespace=\"urn:a\"/>"),
        &attributes("<xs:anyAttribute namespace=\"urn:b urn:a\"/>"),
        Compatible,
        "/r",
        "more namespaces",
    );
    check(
        &attributes("<xs:anyAttribute namespace=\"urn:a urn:b\"/>"),
        &attributes("<xs:anyAttribute namespace=\"urn:c urn:a\"/>"),
        Breaking,
        "/r",
        "fewer namespaces",
    );
}

#[test]
fn simple_types() {
    use Verdict::{Breaking, CannotTell, Compatible};
    let restriction =
        |base: &str, facets: &str| simple(&format!("<xs:restriction base=\"xs:{base}\">{facets}</xs:restriction>"));
    let facet = |name: &str, value: &str| format!("<xs:{name} value=\"{value}\"/>");
    let string = |facets: &str| restriction("string", facets);
    let int = |facets: &str| restriction("integer", facets);
    check(&string(""), &string(&facet("maxLength", "5")), Breaking, "/r", "maxLength was tightened to 5");
    check(
        &string(&facet("maxLength", "5")),
        &string(&facet("maxLength", "6")),
        Compatible,
        "/r",
        "maxLength was loosened",
    );
    check(
        &string(&facet("minLength", "5")),
        &string(&facet("minLength", "6")),
        Breaking,
        "/r",
        "minLength was tightened",
    );
    check(&string(&facet("length", "5")), &string(&facet("length", "6")), Breaking, "/r", "length is now 6");
    check(&int(""), &int(&facet("minInclusive", "1")), Breaking, "/r", "the lower bound 1 was added");
    check(&int(&facet("minInclusive", "1")), &int(&facet("minExclusive", "1")), Breaking, "/r", "now exclusive");
    check(
        &int(&facet("maxInclusive", "1")),
        &int(&facet("maxInclusive", "2")),
        Compatible,
        "/r",
        "the upper bound was loosened to 2",
    );
    check(
        &int(&facet("maxInclusive", "2")),
        &int(&facet("maxInclusive", "1")),
        Breaking,
        "/r",
        "tightened from 2 to 1",
    );
    check(&restriction("decimal", ""), &int(""), Breaking, "/r", "narrowed from Decimal to Integer");
    check(&int(""), &restriction("decimal", ""), Compatible, "/r", "widened from Integer to Decimal");
    check(&restriction("int", ""), &restriction("date", ""), CannotTell, "/r", "from Integer to Date");
    let two = facet("enumeration", "a") + &facet("enumeration", "b");
    check(&string(&facet("enumeration", "a")), &string(&two), Compatible, "/r", "the value \"b\" was added");
    check(&string(&two), &string(&facet("enumeration", "a")), Breaking, "/r", "the value \"b\" was removed");
    check(&string(""), &string(&two), Breaking, "/r", "an enumeration was added");
    check(&string(""), &string(&facet("pattern", "a")), Breaking, "/r", "a pattern was added");
    check(&string(&facet("pattern", "a")), &string(&facet("pattern", "b")), CannotTell, "/r", "the pattern changed");
    check(
        &string(&facet("pattern", "a")),
        &string(&(facet("pattern", "a") + &facet("pattern", "b"))),
        Compatible,
        "/r",
        "as an alternative",
    );
    let union = |members: &str| simple(&format!("<xs:union memberTypes=\"{members}\"/>"));
    check(&union("xs:int"), &union("xs:int xs:date"), Compatible, "/r", "members were added");
    check(&union("xs:int xs:date"), &union("xs:int"), Breaking, "/r", "members were removed");
    let list = |item: &str| simple(&format!("<xs:list itemType=\"xs:{item}\"/>"));
    check(&list("integer"), &list("decimal"), Compatible, "/r", "widened");
}

#[test]
fn schemas() {
    use Verdict::{Breaking, CannotTell, Compatible};
    let header = |attributes: &str| {
        format!(
            "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\" {attributes}><xs:element name=\"r\" type=\"xs:int\"/></xs:schema>"
        )
    };
    check(
        &header("targetNamespace=\"urn:a\""),
        &header("targetNamespace=\"urn:b\""),
        Breaking,
        "",
        "the target namespace changed",
    );
    check(&header(""), &header("elementFormDefault=\"qualified\""), Breaking, "", "elementFormDefault changed");
    assert_eq!(changes(&header(""), &header("version=\"2\"")), []);
    let named = "<xs:simpleType name=\"t\"><xs:restriction base=\"xs:int\"/></xs:simpleType>";
    check(named, "", CannotTell, "type t", "the type was removed");
    let keyed = "<xs:element name=\"r\"><xs:key name=\"k\"><xs:selector xpath=\"a\"/><xs:field xpath=\"@b\"/></xs:key></xs:element>";
    check("<xs:element name=\"r\"/>", keyed, Breaking, "/r", "the identity constraint \"k\" was added");
    check(keyed, "<xs:element name=\"r\"/>", Compatible, "/r", "the identity constraint \"k\" was removed");
    check(keyed, &keyed.replace("@b", "@c"), CannotTell, "/r", "the identity constraint \"k\" changed");
}

#[test]
fn what_documents_may_rely_on_is_not_compatible() {
    use Verdict::CannotTell;
    let element = |kind: &str| format!("<xs:element name=\"r\" type=\"{kind}\"/>");
    let twins = "<xs:complexType name=\"a\"/><xs:complexType name=\"b\"/>";
    check(&(element("a") + twins), &(element("b") + twins), CannotTell, "/r", "the old one by xsi:type");
    assert_eq!(changes(&element("xs:int"), &element("xs:integer")).iter().filter(|one| one.0 == CannotTell).count(), 0);
    let text = "<xs:element name=\"r\"><xs:complexType><xs:simpleContent><xs:extension base=\"xs:integer\"/></xs:simpleContent></xs:complexType></xs:element>";
    let found = changes(&element("xs:integer"), text);
    assert!(found.iter().all(|one| one.0 == CannotTell && one.2.contains("xsi:type")), "{found:?}");
    assert!(!found.is_empty());

    let id = |kind: &str| attributes(&format!("<xs:attribute name=\"a\" type=\"xs:{kind}\"/>"));
    check(&id("ID"), &id("NCName"), CannotTell, "/r/@a", "documents may refer to identifiers");
    let wild = |more: &str| attributes(&format!("{more}<xs:anyAttribute namespace=\"urn:x\"/>"));
    let added = wild("<xs:attribute name=\"a\" type=\"xs:ID\"/>");
    check(&wild(""), &added, CannotTell, "/r/@a", "a wildcard may have let in another one");

    let fixed = |kind: &str| format!("<xs:element name=\"r\" type=\"xs:{kind}\" fixed=\"a\"/>");
    let found = changes(&fixed("token"), &fixed("string"));
    assert!(found.iter().any(|one| one.0 == CannotTell && one.2.contains("white space")), "{found:?}");
    let key = "<xs:element name=\"k\"><xs:key name=\"k\"><xs:selector xpath=\"a\"/><xs:field xpath=\"b\"/></xs:key></xs:element>";
    let nillable = |more: &str| format!("<xs:element name=\"b\" type=\"xs:int\"{more}/>{key}");
    check(&nillable(""), &nillable(" nillable=\"true\""), CannotTell, "/b", "a field of a key must not be");
    let any = |process: &str| sequence(&format!("<xs:any processContents=\"{process}\"/>"));
    check(&any("strict"), &any("skip"), CannotTell, "/r", "no longer sees identifiers");
    check(&any("strict"), &any("lax"), Verdict::Compatible, "/r", "checks less");
}

/// What two versions judge differently must not be told compatible. Each case has a document that only the old one accepts.
#[test]
fn what_xsi_type_blocks_and_equality_decide_is_not_compatible() {
    let typed = |more: &str| format!("<xs:element name=\"r\" type=\"b\"/>{more}");
    let extension =
        "<xs:complexType name=\"d\"><xs:complexContent><xs:extension base=\"b\"/></xs:complexContent></xs:complexType>";
    let base = "<xs:complexType name=\"b\"><xs:attribute name=\"a\"/></xs:complexType>";
    let blocking = "<xs:element name=\"r\" type=\"b\" block=\"restriction\"/>";
    let simple = |name: &str, base: &str| {
        format!(
            "<xs:simpleType name=\"{name}\"><xs:restriction base=\"{base}\"><xs:maxLength value=\"3\"/></xs:restriction></xs:simpleType>"
        )
    };
    let union =
        |members: &str| format!("<xs:simpleType name=\"b\"><xs:union memberTypes=\"{members}\"/></xs:simpleType>");
    let pair = simple("c", "xs:string") + &simple("d", "xs:string");
    let any = |process: &str| {
        sequence(&format!("<xs:any namespace=\"##local\" processContents=\"{process}\" minOccurs=\"0\"/>"))
            + "<xs:attribute name=\"g\" type=\"xs:string\"/>"
            + "<xs:element name=\"w\"><xs:complexType><xs:anyAttribute namespace=\"##local\"/></xs:complexType></xs:element>"
    };
    let blocked = |block: &str| {
        format!(
            "{base}<xs:complexType name=\"n\"{block}><xs:attribute name=\"a\"/></xs:complexType>\
             <xs:complexType name=\"m\"><xs:complexContent><xs:restriction base=\"n\"><xs:attribute name=\"a\"/></xs:restriction></xs:complexContent></xs:complexType>\
             <xs:complexType name=\"d\"><xs:complexContent><xs:extension base=\"m\"/></xs:complexContent></xs:complexType>"
        )
    };
    let digits = |max: &str| {
        format!(
            "<xs:element name=\"r\"><xs:complexType><xs:sequence><xs:element name=\"i\" maxOccurs=\"9\"><xs:simpleType><xs:union><xs:simpleType>\
             <xs:restriction base=\"xs:integer\"><xs:maxInclusive value=\"{max}\"/></xs:restriction></xs:simpleType><xs:simpleType><xs:restriction base=\"xs:string\"/>\
             </xs:simpleType></xs:union></xs:simpleType></xs:element></xs:sequence></xs:complexType>\
             <xs:unique name=\"u\"><xs:selector xpath=\"i\"/><xs:field xpath=\".\"/></xs:unique></xs:element>"
        )
    };
    let heads = |member: &str| {
        format!(
            "{base}<xs:complexType name=\"r1\"><xs:complexContent><xs:restriction base=\"b\"><xs:attribute name=\"a\"/></xs:restriction></xs:complexContent></xs:complexType>\
             <xs:complexType name=\"e1\"><xs:complexContent><xs:extension base=\"b\"/></xs:complexContent></xs:complexType>\
             <xs:element name=\"h\" type=\"b\" block=\"extension\"/><xs:element name=\"m\" substitutionGroup=\"h\">{member}</xs:element>{}",
            sequence("<xs:element ref=\"h\"/>")
        )
    };
    let anonymous = |how: &str, more: &str| {
        format!(
            "<xs:complexType><xs:complexContent><xs:{how} base=\"b\">{more}</xs:{how}></xs:complexContent></xs:complexType>"
        )
    };
    let xsi = "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"";
    let derived = |name: &str| format!("<r {xsi} xsi:type=\"{name}\">x</r>");
    let attribute = "<xs:attribute name=\"a\"/>";
    let cases = [
        (
            format!("{blocking}{base}{extension}"),
            format!(
                "{blocking}{base}{}",
                extension.replace(
                    "<xs:extension base=\"b\"/>",
                    &format!("<xs:restriction base=\"b\">{attribute}</xs:restriction>")
                )
            ),
            format!("<r {xsi} xsi:type=\"d\"/>"),
        ),
        (
            typed(&(simple("b", "xs:string") + &simple("d", "b"))),
            typed(&(simple("b", "xs:string") + &simple("d", "xs:string"))),
            derived("d"),
        ),
        (typed(&(union("c") + &pair)), typed(&(union("d") + &pair)), derived("c")),
        (
            any("strict"),
            any("strict") + "<xs:element name=\"z\" type=\"xs:int\"/>",
            format!("<r {xsi}><z xmlns:xs=\"http://www.w3.org/2001/XMLSchema\" xsi:type=\"xs:string\"/></r>"),
        ),
        (any("lax"), any("lax").replace("type=\"xs:string\"", "type=\"xs:string\" fixed=\"x\""), "<w g=\"y\"/>".into()),
        (
            blocked("") + "<xs:element name=\"r\" type=\"m\"/>",
            blocked(" block=\"extension\"") + "<xs:element name=\"r\" type=\"n\"/>",
            format!("<r {xsi} xsi:type=\"d\"/>"),
        ),
        (digits("9"), digits("99"), "<r><i>15</i><i>015</i></r>".into()),
        (heads(&anonymous("restriction", attribute)), heads(&anonymous("extension", "")), "<r><m/></r>".into()),
    ];
    for (old, new, document) in cases {
        let definition = |body: &str| Definition { content: wrap(body), ..Definition::default() };
        let language = SchemaType::Xsd.language();
        let accepts = |body: &str| {
            let validator = language.compile(&definition(body)).unwrap_or_else(|error| panic!("{body}: {error}"));
            validator.validate(Document { bytes: document.as_bytes(), format: Format::Xml })
        };
        assert!(accepts(&old).is_valid(), "{old}\n{document}\n{:?}", accepts(&old));
        assert!(!accepts(&new).is_valid(), "{new}\n{document}");
        let comparison = language.compare(&definition(&old), &definition(&new)).unwrap();
        assert!(comparison.verdict() > Verdict::Compatible, "{old}\n{new}\n{comparison:?}");
    }
}
