use super::*;

fn problems(json: &str) -> Vec<(String, String)> {
    let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
    let invalid = Filter::parse(raw).expect_err(json);
    assert!(!invalid.problems().is_empty(), "{json}");
    invalid.problems().iter().map(|problem| (problem.at.clone(), problem.reason.clone())).collect()
}

#[test]
fn each_problem_has_its_place_and_says_what_to_write() {
    let cases = [
        ("{}", "", "list of expressions"),
        ("null", "", "list of expressions"),
        (r#"{"exact": {"type": "a"}}"#, "", "list of expressions"),
        ("[1]", "/0", "object with one of exact"),
        ("[[]]", "/0", "object with one of exact"),
        ("[{}]", "/0", "must have one of exact"),
        (r#"[{"sql": "type = 'a'"}]"#, "/0/sql", "is no dialect: use one of exact"),
        (r#"[{"Exact": {"type": "a"}}]"#, "/0/Exact", "is no dialect"),
        (r#"[{"\ud800": {"type": "a"}}]"#, "/0/", "is no dialect"),
        (r#"[{"exact": {"type": "a"}, "prefix": {"type": "b"}}]"#, "/0", "not several (exact, prefix)"),
        (r#"[{"exact": {"type": "a"}, "exact": {"type": "b"}}]"#, "/0", "not several (exact, exact)"),
        (r#"[{"exact": {}}]"#, "/0/exact", "at least one attribute"),
        (r#"[{"exact": []}]"#, "/0/exact", "at least one attribute"),
        (r#"[{"exact": "type"}]"#, "/0/exact", "at least one attribute"),
        (r#"[{"exact": {"type": {}}}]"#, "/0/exact/type", "must be a string, a number"),
        (r#"[{"exact": {"type": ["a"]}}]"#, "/0/exact/type", "must be a string, a number"),
        (r#"[{"exact": {"type": "\udc00"}}]"#, "/0/exact/type", "must be a string, a number"),
        (r#"[{"exact": {"type": ""}}]"#, "/0/exact/type", "must not be empty"),
        (r#"[{"exact": {"Type": "a"}}]"#, "/0/exact/Type", "write type"),
        (r#"[{"exact": {"a~/b": "a"}}]"#, "/0/exact/a~0~1b", "name of an attribute"),
        (r#"[{"exact": {"data/": "a"}}]"#, "/0/exact/data~1", "JSON pointer"),
        (r#"[{"exact": {"type": "a", "type": "b"}}]"#, "/0/exact/type", "is given twice"),
        (r#"[{"exact": {"data/n": 1e9999999999999999999}}]"#, "/0/exact/data~1n", "beyond all measure"),
        (r#"[{"prefix": {"type": 1}}]"#, "/0/prefix/type", "must be a string"),
        (r#"[{"suffix": {"data/x": ""}}]"#, "/0/suffix/data~1x", "use exists"),
        (r#"[{"exists": []}]"#, "/0/exists", "at least one name"),
        (r#"[{"exists": {}}]"#, "/0/exists", "array of names"),
        (r#"[{"exists": ["type", 1]}]"#, "/0/exists/1", "array of names"),
        (r#"[{"exists": "Type"}]"#, "/0/exists", "write type"),
        (r#"[{"in": {"type": "a"}}]"#, "/0/in/type", "array of 1 to 256"),
        (r#"[{"in": {"type": []}}]"#, "/0/in/type", "array of 1 to 256"),
        (r#"[{"in": {"type": ["a", {}]}}]"#, "/0/in/type/1", "must be a string, a number"),
        (r#"[{"gt": {"time": "yesterday"}}]"#, "/0/gt/time", "RFC 3339"),
        (r#"[{"lte": {"data/n": true}}]"#, "/0/lte/data~1n", "RFC 3339"),
        (r#"[{"all": []}]"#, "/0/all", "at least one expression"),
        (r#"[{"any": {}}]"#, "/0/any", "at least one expression"),
        (r#"[{"not": []}]"#, "/0/not", "object with one of exact"),
        (r#"[{"not": {"any": [{"not": 1}]}}]"#, "/0/not/any/0/not", "object with one of exact"),
    ];
    for (json, at, reason) in cases {
        let found = problems(json);
        assert_eq!((found.len(), found[0].0.as_str()), (1, at), "{json}: {found:?}");
        assert!(found[0].1.contains(reason), "{json}: {found:?}");
    }
}

#[test]
fn all_problems_are_told_in_their_order() {
    let json =
        r#"[{"exact": {"Type": {}}}, {"exists": "type"}, {"any": [{"exact": {"Source": "x"}}, {"gt": {"a": "b"}}]}]"#;
    let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
    let invalid = Filter::parse(raw).unwrap_err().within("/filters");
    let places: Vec<_> = invalid.problems().iter().map(|problem| problem.at.as_str()).collect();
    let expected =
        ["/filters/0/exact/Type", "/filters/0/exact/Type", "/filters/2/any/0/exact/Source", "/filters/2/any/1/gt/a"];
    assert_eq!(places, expected);
    let text = invalid.to_string();
    assert!(text.starts_with("/filters/0/exact/Type: attributes have lower-case names: write type; "), "{text}");

    let many = format!("[{}1]", "1,".repeat(1000));
    let error = serde_json::from_str::<Filter>(&many).unwrap_err().to_string();
    assert!(error.contains("/15: ") && error.contains("; and 985 more"), "{error}");
    assert!(!error.contains("/16: "), "{error}");
    let error = serde_json::from_str::<Filter>("{}").unwrap_err().to_string();
    assert!(error.starts_with("the filter: must be a list"), "{error}");
}

fn nested(depth: usize) -> String {
    (1..depth).fold(r#"{"exists": "type"}"#.into(), |inner: String, _| format!(r#"{{"not": {inner}}}"#))
}

/// The limits are where they are said to be: what is at one passes, and what is beyond it does not.
#[test]
fn size_is_limited() {
    let list = |expression: String| format!("[{expression}]");
    let expressions = |count: usize| list(vec![r#"{"exists": "type"}"#; count].join(","));
    let attributes = |count: usize| {
        let members: Vec<_> = (0..count).map(|at| format!(r#""a{at}": "x""#)).collect();
        list(format!(r#"{{"not": {{"exact": {{{}}}}}}}"#, members.join(",")))
    };
    let values = |count: usize| list(format!(r#"{{"in": {{"type": [{}0]}}}}"#, "0,".repeat(count - 1)));
    let text = |length: usize| list(format!(r#"{{"exact": {{"type": "{}"}}}}"#, "x".repeat(length)));
    let name = |length: usize| list(format!(r#"{{"exists": "{}"}}"#, "x".repeat(length)));
    let number = |length: usize| list(format!(r#"{{"gt": {{"data/n": {}}}}}"#, "1".repeat(length)));
    let padded = |length: usize| format!("[{}]", " ".repeat(length - 2));
    let cases = [
        (expressions(MAX_EXPRESSIONS), expressions(MAX_EXPRESSIONS + 1), "65 expressions"),
        (attributes(MAX_EXPRESSIONS - 1), attributes(MAX_EXPRESSIONS), "65 expressions"),
        (list(nested(MAX_DEPTH)), list(nested(MAX_DEPTH + 1)), "nested too deep"),
        (values(MAX_VALUES), values(MAX_VALUES + 1), "array of 1 to 256"),
        (text(MAX_TEXT), text(MAX_TEXT + 1), "1025 bytes"),
        (name(MAX_TEXT), name(MAX_TEXT + 1), "1025 bytes"),
        (number(MAX_TEXT), number(MAX_TEXT + 1), "must be a number"),
        (padded(MAX_SIZE), padded(MAX_SIZE + 1), "65537 bytes"),
    ];
    for (good, bad, expected) in cases {
        filter(&good);
        let found = problems(&bad);
        assert!(found.len() == 1 && found[0].1.contains(expected), "{found:?}");
    }
}

#[test]
fn hostile_filters_are_refused_without_recursion() {
    let deep = 30_000;
    for json in [
        format!("{}{}", "[".repeat(deep), "]".repeat(deep)),
        format!("[{}1{}]", r#"{"not":"#.repeat(deep / 4), "}".repeat(deep / 4)),
        format!("[{}1{}]", r#"{"all":["#.repeat(deep / 4), "]}".repeat(deep / 4)),
    ] {
        let raw = RawValue::from_string(json).unwrap();
        assert_eq!(Filter::parse(raw).unwrap_err().problems().len(), 1);
    }
    let long = format!(r#"[{{"{}": 1}}]"#, "x".repeat(60_000));
    assert!(problems(&long)[0].0.len() < 100, "what was sent is shown in part");
}
