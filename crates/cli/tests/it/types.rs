//! `tidegate types` against a real server.

use crate::{Server, error, text, tidegate};

const CODE: &str = "shop:orders:order:created";
const FIRST: &str = "{\n  \"type\": \"object\",\n  \"required\": [\"orderId\"]\n}\n";
const SECOND: &str = "{\n  \"type\": \"object\",\n  \"required\": [\"orderId\", \"total\"]\n}\n";

/// Runs a command that must fail, and returns what it says.
fn refused(server: &Server, args: &[&str]) -> String {
    let output = tidegate(args).env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(!output.status.success(), "{args:?}: {}", text(&output));
    format!("{}{}", text(&output), error(&output))
}

#[test]
fn a_type_from_its_first_schema_to_a_change_that_breaks() {
    let server = Server::start(&[]);
    let file = |name: &str, content: &str| {
        let path = server.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (file("first.json", FIRST), file("second.json", SECOND));
    let created = server.run(&["types", "create", CODE, "--name", "Order created"]);
    assert!(created.starts_with(&format!("{CODE} is created: ")), "{created}");
    assert_eq!(server.run(&["types", "add", CODE, "1.0", &first]), "version 1.0 is FINALISING");
    assert_eq!(server.run(&["types", "finalise", CODE, "1.0"]), "version 1.0 is CURRENT");
    assert_eq!(server.run(&["types", "show", CODE, "--schema", "1.0"]), FIRST.trim());

    let good = file("good.json", r#"{"orderId": "7"}"#);
    let bad = file("bad.json", "{\n\"total\": 7}");
    assert_eq!(server.run(&["types", "validate", CODE, &good]), "valid by version 1.0");
    let said = refused(&server, &["types", "validate", CODE, &bad]);
    assert!(said.contains("not valid by version 1.0: 1 violations") && said.contains("orderId"), "{said}");

    let said = refused(&server, &["types", "add", CODE, "1.1", &second]);
    assert!(said.contains("version 1.1 breaks what version 1.0 accepts") && said.contains("total"), "{said}");
    let forced = ["types", "add", CODE, "1.1", &second, "--force", "nobody orders without a total"];
    assert_eq!(server.run(&forced), "version 1.1 is FINALISING");
    let shown = server.run(&["types", "show", CODE]);
    assert!(shown.contains("nobody orders without a total"), "{shown}");
    let diff = server.run(&["types", "diff", CODE, "1.0", "1.1"]);
    assert!(diff.contains("-   \"required\": [\"orderId\"]"), "{diff}");
    assert!(diff.contains("+   \"required\": [\"orderId\", \"total\"]"), "{diff}");
    assert!(diff.contains("1.0 to 1.1: breaking") && !diff.contains('\u{1b}'), "no colours outside a terminal: {diff}");
    assert_eq!(server.json(&["types", "diff", CODE, "1.0", "1.0"])["verdict"], "compatible");
    assert_eq!(server.run(&["types", "add", CODE, "1.1", &first, "--replace"]), "version 1.1 is FINALISING");
    server.run(&["types", "finalise", CODE, "1.1"]);
    assert_eq!(server.run(&["types", "deprecate", CODE, "1.1"]), "version 1.1 is DEPRECATED");

    let listed = server.run(&["types", "list", "--code", "shop:*:*:*"]);
    assert!(listed.contains(CODE) && listed.contains("1.0 DEPRECATED, 1.1 DEPRECATED"), "{listed}");
    assert_eq!(server.json(&["types", "list", "--status", "ARCHIVE"]), serde_json::json!([]));
    assert_eq!(server.run(&["types", "archive", CODE]), format!("{CODE} is archived"));
    let said = refused(&server, &["types", "add", CODE, "2.0", &first]);
    assert!(said.contains("is archived"), "{said}");
    server.stop();
}

#[test]
fn a_pattern_is_not_taken_for_the_only_type_that_it_matches() {
    let server = Server::start(&[]);
    server.run(&["types", "create", CODE]);
    let path = server.dir.path().join("order.json");
    std::fs::write(&path, FIRST).unwrap();
    let file = path.to_str().unwrap();
    server.run(&["types", "add", CODE, "1.0", file]);
    for pattern in ["shop:*:*:*", "*:*:*:*", "shop:orders:order:*"] {
        for args in [
            ["types", "archive", pattern].as_slice(),
            &["types", "add", pattern, "1.1", file],
            &["types", "finalise", pattern, "1.0"],
            &["types", "deprecate", pattern, "1.0"],
            &["types", "show", pattern],
        ] {
            let said = refused(&server, args);
            assert!(said.contains(&format!("{pattern} is a pattern: name one event type")), "{said}");
        }
    }
    let found = &server.json(&["types", "list"])[0];
    assert_eq!((&found["status"], &found["specVersions"][0]["status"]), (&"CURRENT".into(), &"FINALISING".into()));
    assert_eq!(found["specVersions"].as_array().unwrap().len(), 1);
    server.stop();
}

#[test]
fn what_is_wrong_says_where() {
    let server = Server::start(&[]);
    server.run(&["types", "create", CODE]);
    let path = server.dir.path().join("order.proto");
    std::fs::write(&path, "syntax = \"proto3\";\nmessage Order { Missing it = 1; }\n").unwrap();
    let said = refused(&server, &["types", "add", CODE, "1.0", path.to_str().unwrap()]);
    assert!(said.contains("422") && said.contains("schema line 2 column"), "{said}");
    let said = refused(&server, &["types", "show", "a:b:c:d"]);
    assert!(said.contains("there is no event type a:b:c:d"), "{said}");
    let said = refused(&server, &["types", "add", CODE, "1.0", "schema.txt"]);
    assert!(said.contains("--schema-type"), "{said}");
    server.stop();
}
