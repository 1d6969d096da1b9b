//! The official JSON-Schema-Test-Suite. What comes out otherwise is listed in `exceptions.txt`, with reasons; an
//! exception that is none is a failure as well. Only tests that need a document from elsewhere may be listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate_schema::{Definition, Document, Format, SchemaType};

const DRAFTS: [(&str, &str); 3] = [
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/json_schema_suite")
}

/// The lines of the list: `draft/file.json | group | test or * | reason`.
fn exceptions() -> BTreeSet<String> {
    let text = fs::read_to_string(folder().join("exceptions.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let parts: Vec<&str> = line.split(" | ").collect();
            assert!(parts.len() == 4 && !parts[3].is_empty(), "no reason: {line}");
            parts[..3].join(" | ")
        })
        .collect()
}

/// The tests of a group that come out otherwise; `*` if its schema is refused.
fn run(group: &Value, dialect: &str) -> Vec<(String, String)> {
    let mut schema = group["schema"].clone();
    if let Value::Object(schema) = &mut schema {
        schema.entry("$schema").or_insert_with(|| dialect.into());
    }
    // Without `$schema` a schema is of draft 7; a boolean means the same in all drafts.
    let definition = Definition { content: schema.to_string(), ..Definition::default() };
    let validator = match SchemaType::JsonSchema.language().compile(&definition) {
        Ok(validator) => validator,
        Err(error) => return vec![("*".into(), error.to_string())],
    };
    let tests = group["tests"].as_array().unwrap();
    let wrong = tests.iter().filter_map(|test| {
        let bytes = test["data"].to_string();
        let report = validator.validate(Document { bytes: bytes.as_bytes(), format: Format::Json });
        let expected = test["valid"].as_bool().unwrap();
        (report.is_valid() != expected)
            .then(|| (test["description"].as_str().unwrap().to_string(), format!("{:?}", report.violations().first())))
    });
    wrong.collect()
}

#[test]
fn all_required_tests_pass_but_the_listed_ones() {
    let (mut count, mut wrong, mut details) = (0, BTreeSet::new(), Vec::new());
    for (draft, dialect) in DRAFTS {
        let mut files: Vec<_> = fs::read_dir(folder().join(draft)).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 30, "{draft}");
        for file in files {
            let name = format!("{draft}/{}", file.file_name().unwrap().to_str().unwrap());
            let groups: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            for group in groups.as_array().unwrap() {
                count += group["tests"].as_array().unwrap().len();
                for (test, why) in run(group, dialect) {
                    let key = format!("{name} | {} | {test}", group["description"].as_str().unwrap());
                    details.push(format!("{key} | {why}"));
                    wrong.insert(key);
                }
            }
        }
    }
    let expected = exceptions();
    // What is refused for another reason than being elsewhere is no exception.
    let elsewhere = ["is not in this document: include what it refers to", "`$schema` is \"http://localhost:1234/"];
    let others = details.iter().filter(|detail| !elsewhere.iter().any(|reason| detail.contains(reason)));
    let others: Vec<_> = others.collect();
    assert!(others.is_empty(), "not for want of another document: {others:#?}");
    details.retain(|detail| !expected.iter().any(|key| detail.starts_with(&format!("{key} | "))));
    assert!(details.is_empty(), "not listed:\n{}", details.join("\n"));
    let passed: Vec<_> = expected.difference(&wrong).collect();
    assert!(passed.is_empty(), "listed, but they pass: {passed:#?}");
    println!("{count} tests, {} exceptions", expected.len());
    assert!(count > 3_000, "{count}");
}
