use super::*;

/// Why a schema is refused.
fn refusal(schema: &str) -> String {
    let definition = Definition { content: schema.into(), strict: true, ..Definition::default() };
    compile(&definition).map(|_| format!("{schema} is accepted")).unwrap_or_else(|error| error.to_string())
}

fn modern(schema: &str) -> String {
    schema.replacen('{', "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",", 1)
}

#[test]
fn what_is_no_schema_is_refused_with_its_position() {
    let cases = [
        ("", "the schema is not valid JSON: expected a value, found the end (line 1, column 1)"),
        ("{\n \"a\": }", "expected a value, found '}' (line 2, column 7)"),
        ("[]", "the schema is neither an object nor `true` or `false` (line 1, column 1)"),
        ("{\"a\":1,\n\"a\":2}", "the name \"a\" occurs twice in an object (line 2, column 1)"),
        ("{\"type\":\n\"strin\"}", "/type: this is no type: use array,"),
        ("{\"type\":\n\"strin\"}", "(line 2, column 1)"),
        (
            "{\"properties\":{\"a\":{\"minLength\":-1}}}",
            "/properties/a/minLength: -1 is less than the minimum of 0 (line 1, column 33)",
        ),
        ("{\"required\":[\"a\",\"a\"]}", "/required: "),
        ("{\"properties\":{\"a\":5}}", "/properties/a: 5 is not of types \"boolean\", \"object\" (line 1, column 20)"),
        ("{\"multipleOf\":0}", "/multipleOf: "),
        ("{\"minimum\":1e400}", "number out of range"),
        ("{\"minimum\":18446744073709551617}", "/minimum: the number \"18446744073709551617\" has too many digits"),
        ("{\"items\":{\"enum\":[1,[0.1000000000000000000001]]}}", "/items/enum: the number"),
        (
            "{\"$schema\":\"http://json-schema.org/draft-04/schema#\"}",
            "/$schema: `$schema` is \"http://json-schema.org/draft-04/schema#\": ",
        ),
        (
            "{\"$schema\":\"https://example.com/mine\"}",
            "\"https://json-schema.org/draft/2020-12/schema\" are supported (line 1, column 12)",
        ),
        ("{\"$schema\":5}", "`$schema` is no string"),
        (
            "{\"allOf\":[{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\"}]}",
            "/allOf/0/$schema: a schema within a schema has to be of the same draft",
        ),
    ];
    for (schema, expected) in cases {
        let error = refusal(schema);
        assert!(error.contains(expected), "{schema}: {error}");
    }
}

#[test]
fn references_that_leave_the_document_are_refused() {
    let cases = [
        (
            "{\"$ref\":\"http://example.com/a.json\"}",
            "/$ref: the reference \"http://example.com/a.json\" is not in this document: include what it refers to (line 1, column 9)",
        ),
        (
            "{\"items\":\n{\"$ref\":\"file:///etc/passwd#/a\"}}",
            "/items/$ref: the reference \"file:///etc/passwd#/a\" is not in this document: include what it refers to (line 2, column 9)",
        ),
        ("{\"$ref\":\"other.json\"}", "is not in this document"),
        ("{\"$id\":\"https://example.com/a/\",\"$ref\":\"b\"}", "is not in this document"),
        (
            "{\"$ref\":\"#/definitions/none\"}",
            "the reference \"#/definitions/none\" leads to nothing (line 1, column 9)",
        ),
        ("{\"$ref\":\"#nowhere\"}", "leads to nothing"),
        ("{\"$ref\":\"#/a\",\"a\":5}", "leads to nothing"),
        ("{\"$id\":\"no uri\"}", "/$id: "),
    ];
    for (schema, expected) in cases {
        let error = refusal(schema);
        assert!(error.contains(expected), "{schema}: {error}");
    }
    let modern_cases =
        ["{\"$dynamicRef\":\"https://example.com/x#y\"}", "{\"$ref\":\"https://json-schema.org/draft/2020-12/none\"}"];
    for schema in modern_cases {
        assert!(refusal(&modern(schema)).contains("is not in this document"), "{schema}: {}", refusal(&modern(schema)));
    }
    let old =
        "{\"$schema\":\"https://json-schema.org/draft/2019-09/schema\",\"$recursiveRef\":\"https://example.com/\"}";
    assert!(!refusal(old).contains("is accepted"), "{}", refusal(old));
}

#[test]
fn references_within_the_document_and_to_metaschemas_are_followed() {
    let accepted = [
        "{\"$ref\":\"#/definitions/a\",\"definitions\":{\"a\":{\"type\":\"string\"}}}",
        "{\"$ref\":\"#/x/0\",\"x\":[{\"type\":\"string\"}]}",
        "{\"$ref\":\"#/definitions/a%25b~1c\",\"definitions\":{\"a%b/c\":{\"type\":\"string\"}}}",
        "{\"properties\":{\"a\":{\"$ref\":\"#\"}}}",
        "{\"$id\":\"https://example.com/a\",\"properties\":{\"a\":{\"$ref\":\"a#\"}}}",
        "{\"items\":{\"$ref\":\"http://json-schema.org/draft-07/schema#\"}}",
        "{\"allOf\":[{\"$ref\":\"b\"}],\"$id\":\"https://example.com/a\",\"definitions\":{\"b\":{\"$id\":\"b\",\"type\":\"null\"}}}",
    ];
    for schema in accepted {
        assert!(refusal(schema).ends_with("is accepted"), "{}", refusal(schema));
    }
}

#[test]
fn schemas_that_would_not_end_are_refused() {
    let cases = [
        "{\"$ref\":\"#\"}",
        "{\"allOf\":[{\"$ref\":\"#\"}]}",
        "{\"anyOf\":[{\"not\":{\"$ref\":\"#/definitions/a\"}}],\"definitions\":{\"a\":{\"if\":{\"$ref\":\"#\"}}}}",
        "{\"dependencies\":{\"a\":{\"$ref\":\"#\"}}}",
    ];
    for schema in cases {
        let error = refusal(schema);
        assert!(error.contains("again and again: validation would not end"), "{schema}: {error}");
        assert!(error.contains("/$ref: "), "{error}");
    }
    let dynamic = modern("{\"$dynamicAnchor\":\"x\",\"allOf\":[{\"$dynamicRef\":\"#x\"}]}");
    assert!(refusal(&dynamic).contains("again and again"), "{}", refusal(&dynamic));
    let recursive = "{\"$schema\":\"https://json-schema.org/draft/2019-09/schema\",\"$recursiveAnchor\":true,\"not\":{\"$recursiveRef\":\"#\"}}";
    assert!(refusal(recursive).contains("again and again"), "{}", refusal(recursive));
}

#[test]
fn patterns_without_a_linear_engine_are_refused_with_their_position() {
    let cases = [
        (
            "{\"items\":{\n\"pattern\":\"^(?!a)\"}}",
            "/items/pattern: the pattern looks ahead or behind",
            "(line 2, column 11)",
        ),
        ("{\"pattern\":\"(a)\\\\1\"}", "/pattern: the pattern refers back to a group", "(line 1, column 12)"),
        (
            "{\"patternProperties\":{\"(?<=a)\":true}}",
            "/patternProperties: in \"(?<=a)\": the pattern looks",
            "(line 1, column 22)",
        ),
        ("{\"pattern\":\"(\"}", "/pattern: the pattern is no regular expression of ECMA 262", "(line 1, column 12)"),
        ("{\"pattern\":\"a{999}{999}\"}", "/pattern: the pattern has more than", "(line 1, column 12)"),
    ];
    for (schema, expected, position) in cases {
        let error = refusal(schema);
        assert!(error.contains(expected) && error.ends_with(position), "{schema}: {error}");
    }
}

#[test]
fn booleans_are_schemas() {
    for schema in ["true", "false", " {} "] {
        assert!(refusal(schema).ends_with("is accepted"), "{schema}: {}", refusal(schema));
    }
}
