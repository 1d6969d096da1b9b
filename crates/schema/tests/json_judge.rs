//! JSON Schema: the cases of `json/cases`, and what another implementation makes of them.
//!
//! A case is a schema that must be accepted or refused, and documents that must be valid, invalid, or invalid in strict mode
//! only, in which formats are asserted. The script `json/judge` asks PyPI's `jsonschema` and writes `json/verdicts.tsv`;
//! where that disagrees with what is expected, `json/differences.tsv` says who is right and why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use tidegate_schema::{Definition, Document, Format, SchemaType, Validator};

/// The verdict on a schema or on one of its documents.
struct Verdict {
    /// The case, and the document by its number.
    id: String,
    text: String,
    expected: String,
    found: String,
    /// Why, for messages.
    why: String,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/json"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// Compiles with and without strict mode. Schemas are compiled as they are written, but for `$schema`.
fn compile(schema: &str, draft: &str) -> Result<[Box<dyn Validator>; 2], String> {
    let uri = match draft {
        "draft7" => "http://json-schema.org/draft-07/schema#",
        "2019-09" => "https://json-schema.org/draft/2019-09/schema",
        "2020-12" => "https://json-schema.org/draft/2020-12/schema",
        other => panic!("{other} is no draft"),
    };
    let mut value: Value = serde_json::from_str(schema).unwrap();
    if let Some(keywords) = value.as_object_mut() {
        keywords.entry("$schema").or_insert_with(|| uri.into());
    }
    let make = |strict| {
        let definition = Definition { content: value.to_string(), strict, ..Definition::default() };
        SchemaType::JsonSchema.language().compile(&definition).map_err(|error| error.to_string())
    };
    Ok([make(false)?, make(true)?])
}

fn judge(validators: &[Box<dyn Validator>; 2], text: &str) -> (&'static str, String) {
    let document = Document { bytes: text.as_bytes(), format: Format::Json };
    let [lenient, strict] = [0, 1].map(|at| validators[at].validate(document));
    let why = lenient.violations().iter().chain(strict.violations()).next().map(|one| one.message.clone());
    let verdict = match (lenient.is_valid(), strict.is_valid()) {
        (true, true) => "valid",
        (true, false) => "invalid when strict",
        (false, false) => "invalid",
        (false, true) => "valid when strict",
    };
    (verdict, why.unwrap_or_default())
}

fn verdicts() -> Vec<Verdict> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder().join("cases")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut verdicts = Vec::new();
    for file in files {
        let group = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        for part in text.split("\n=== ").skip(1) {
            let (head, body) = part.split_once('\n').unwrap();
            let (name, expected) = head.split_once(": ").unwrap();
            let (expected, draft) = expected.split_once(' ').unwrap();
            let mut sections = body.trim_end_matches('\n').split("\n--- ");
            let schema = sections.next().unwrap().trim();
            let compiled = compile(schema, draft);
            let id = format!("{group}/{name}");
            verdicts.push(Verdict {
                id: format!("{id}\tschema"),
                text: schema.into(),
                expected: expected.into(),
                found: if compiled.is_ok() { "accepted" } else { "refused" }.into(),
                why: compiled.as_ref().err().cloned().unwrap_or_default(),
            });
            let Ok(validators) = compiled else { continue };
            for (number, section) in sections.enumerate() {
                let (expected, text) = section.split_once('\n').unwrap_or((section, ""));
                let text = text.trim_matches('\n');
                let (found, why) = judge(&validators, text);
                let (expected, found) = (expected.into(), found.into());
                verdicts.push(Verdict { id: format!("{id}\t{number}"), text: text.into(), expected, found, why });
            }
        }
    }
    verdicts
}

/// FNV-1a with 32 bits, as in `json/judge.py`.
fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

#[test]
fn verdicts_are_as_expected() {
    let verdicts = verdicts();
    let wrong: Vec<String> = verdicts
        .iter()
        .filter(|one| one.found != one.expected)
        .map(|one| format!("{}: {} instead of {}: {} {}", one.id, one.found, one.expected, one.text, one.why))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let count = |word: &str| verdicts.iter().filter(|one| one.expected == word).count();
    assert!(count("valid") >= 60 && count("invalid") >= 60 && count("invalid when strict") >= 20);
    assert!(count("refused") >= 10);
}

#[test]
fn where_the_judge_differs_there_is_a_reason() {
    let mut theirs: BTreeMap<String, (String, String)> = BTreeMap::new();
    for line in read("verdicts.tsv").lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let [case, number, digest, verdict] = parts[..] else { panic!("{line}") };
        theirs.insert(format!("{case}\t{number}"), (digest.into(), verdict.into()));
    }
    let mut reasons: BTreeSet<String> = BTreeSet::new();
    for line in read("differences.tsv").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts: Vec<&str> = line.split('\t').collect();
        assert!(parts.len() == 3 && !parts[2].is_empty(), "no reason: {line}");
        reasons.insert(format!("{}\t{}", parts[0], parts[1]));
    }
    let mut surprises = Vec::new();
    for one in verdicts() {
        // A name that is there twice is not found again; documents of a schema that they refuse have no verdict.
        let Some((judged, verdict)) = theirs.remove(&one.id) else {
            if !reasons.remove(&one.id) {
                surprises.push(format!("{} was not judged: run json/judge", one.id));
            }
            continue;
        };
        assert_eq!(judged, digest(&one.text), "{} was edited: run json/judge", one.id);
        if verdict != one.expected && !reasons.remove(&one.id) {
            surprises.push(format!("{}: {verdict}, here {}: {}", one.id, one.expected, one.text));
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    assert!(theirs.is_empty(), "judged, but gone: {theirs:?}");
    assert!(reasons.is_empty(), "no longer different: {reasons:?}");
}
