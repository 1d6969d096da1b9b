//! Errors for body fields of the wrong type: they name the field and speak of JSON types, not of Rust types.

use serde::de::{DeserializeOwned, Error as _};

/// What serde says it expected, and the same in the words of JSON. The first match is used.
const WORDS: [(&str, &str); 16] = [
    ("untagged enum Tags", "a string or a list of strings"),
    ("enum Retry", "an object with kind fixed, exponential or list"),
    ("struct ", "an object"),
    ("a map", "an object"),
    ("a sequence", "a list"),
    ("a boolean", "true or false"),
    ("a string", "a string"),
    ("string", "a string"),
    ("u8", WHOLE),
    ("u16", WHOLE),
    ("u32", WHOLE),
    ("u64", WHOLE),
    ("f64", "a number"),
    ("i16", "a whole number"),
    ("i32", "a whole number"),
    ("i64", "a whole number"),
];
const WHOLE: &str = "a whole number, 0 or more";

/// Parses a value. An error begins with the path of the invalid field.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        // Tracking paths costs time, so it is only done in a second pass, after a failure.
        let reader = &mut serde_json::Deserializer::from_slice(bytes);
        named(error, serde_path_to_error::deserialize::<_, T>(reader).err().map(|error| error.path().to_string()))
    })
}

/// As [`from_slice`], for one item of a list.
pub(crate) fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, serde_json::Error> {
    let text = value.to_string();
    from_slice(text.as_bytes())
}

fn named(error: serde_json::Error, path: Option<String>) -> serde_json::Error {
    let text = error.to_string();
    // These texts already name the field.
    let is_named = text.starts_with("unknown field") || text.starts_with("missing field");
    match path.filter(|path| error.is_data() && !is_named && path != ".") {
        Some(path) => serde_json::Error::custom(format!("{path} is invalid: {text}")),
        None => error,
    }
}

/// The text of an error as the API tells it: without line and column, and without names of Rust types.
pub(crate) fn said(error: &str) -> String {
    let text = error.split(" at line ").next().unwrap_or(error);
    if let Some((head, _)) = text.split_once("data did not match any variant of untagged enum Tags") {
        return format!("{head}it must be a string or a list of strings");
    }
    let Some((head, expected)) = text.split_once(", expected ") else { return text.to_owned() };
    if let Some((field, number)) = head.split_once("invalid value: integer ") {
        return format!("{field}{} is out of range", number.replace('`', ""));
    }
    let word = |(name, word): &(&str, &'static str)| expected.contains(name).then_some(*word);
    let expected = WORDS.iter().find_map(word).unwrap_or(expected);
    let found = head.replace("invalid type: ", "it is ").replace("invalid value: ", "it is ");
    let found = found.replace("floating point `", "the number `").replace("integer `", "the number `");
    let found = found.replace("string \"", "the string \"").replace("boolean `", "`").replace('`', "");
    let found = found.replace("it is sequence", "it is a list").replace("it is map", "it is an object");
    format!("{found}, but must be {expected}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::wire::retry::Retry;
    use crate::wire::tags::Tags;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Body {
        priority: Option<i16>,
        count: Option<u32>,
        title: Option<String>,
        flag: Option<bool>,
        delay: Option<f64>,
        tags: Option<Tags>,
        retry: Option<Retry>,
        items: Option<Vec<Body>>,
    }

    #[test]
    fn a_misfit_names_its_field_and_no_type_of_the_program() {
        for (body, expected) in [
            (r#"{"priority": "high"}"#, "priority is invalid: it is the string \"high\", but must be a whole number"),
            (r#"{"priority": 40000}"#, "priority is invalid: 40000 is out of range"),
            (r#"{"count": -1}"#, "count is invalid: -1 is out of range"),
            (r#"{"title": 7}"#, "title is invalid: it is the number 7, but must be a string"),
            (r#"{"title": ["a"]}"#, "title is invalid: it is a list, but must be a string"),
            (r#"{"flag": "yes"}"#, "flag is invalid: it is the string \"yes\", but must be true or false"),
            (r#"{"delay": "soon"}"#, "delay is invalid: it is the string \"soon\", but must be a number"),
            (r#"{"tags": 7}"#, "tags is invalid: it must be a string or a list of strings"),
            (r#"{"tags": [7]}"#, "tags is invalid: it must be a string or a list of strings"),
            (r#"{"items": 7}"#, "items is invalid: it is the number 7, but must be a list"),
            (
                r#"{"items": [{"count": true}]}"#,
                "items[0].count is invalid: it is true, but must be a whole number, 0 or more",
            ),
        ] {
            let error = from_slice::<Body>(body.as_bytes()).unwrap_err();
            assert_eq!(said(&error.to_string()), expected, "{body}");
        }
        let retry = from_slice::<Body>(br#"{"retry": "never"}"#).unwrap_err();
        let text = said(&retry.to_string());
        assert!(text.starts_with("retry is invalid") && text.contains("an object"), "{text}");
    }
}
