//! What a body has that is of another type than its field: the refusal names the field and speaks of JSON, not of Rust.

use serde::de::{DeserializeOwned, Error as _};

/// What the parser expected, by its own names, and as people who write JSON say it. The first that fits counts.
const WORDS: [(&str, &str); 16] = [
    ("untagged enum Tags", "text or a list of texts"),
    ("enum Retry", "an object with kind fixed, exponential or list"),
    ("struct ", "an object"),
    ("a map", "an object"),
    ("a sequence", "a list"),
    ("a boolean", "true or false"),
    ("a string", "text"),
    ("string", "text"),
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

/// Reads a value; an error begins with the field that does not fit.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        // Only a failure pays for the second reading, which follows the path.
        let reader = &mut serde_json::Deserializer::from_slice(bytes);
        named(error, serde_path_to_error::deserialize::<_, T>(reader).err().map(|error| error.path().to_string()))
    })
}

/// The same for one value of a list.
pub(crate) fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, serde_json::Error> {
    let text = value.to_string();
    from_slice(text.as_bytes())
}

fn named(error: serde_json::Error, path: Option<String>) -> serde_json::Error {
    let text = error.to_string();
    // An unknown field is named by the text itself.
    let is_named = text.starts_with("unknown field") || text.starts_with("missing field");
    match path.filter(|path| error.is_data() && !is_named && path != ".") {
        Some(path) => serde_json::Error::custom(format!("{path} does not fit: {text}")),
        None => error,
    }
}

/// The text of an error in the words of the API: without places in the text and without names of types.
pub(crate) fn said(error: &str) -> String {
    let text = error.split(" at line ").next().unwrap_or(error);
    if let Some((head, _)) = text.split_once("data did not match any variant of untagged enum Tags") {
        return format!("{head}it must be text or a list of texts");
    }
    let Some((head, expected)) = text.split_once(", expected ") else { return text.to_owned() };
    if let Some((field, number)) = head.split_once("invalid value: integer ") {
        return format!("{field}{} is out of range", number.replace('`', ""));
    }
    let word = |(name, word): &(&str, &'static str)| expected.contains(name).then_some(*word);
    let expected = WORDS.iter().find_map(word).unwrap_or(expected);
    let found = head.replace("invalid type: ", "it is ").replace("invalid value: ", "it is ");
    let found = found.replace("floating point `", "the number `").replace("integer `", "the number `");
    let found = found.replace("string \"", "the text \"").replace("boolean `", "`").replace('`', "");
    let found = found.replace("it is sequence", "it is a list").replace("it is map", "it is an object");
    format!("{found}, and must be {expected}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::wire::{Retry, Tags};

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read")]
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
            (r#"{"priority": "high"}"#, "priority does not fit: it is the text \"high\", and must be a whole number"),
            (r#"{"priority": 40000}"#, "priority does not fit: 40000 is out of range"),
            (r#"{"count": -1}"#, "count does not fit: -1 is out of range"),
            (r#"{"title": 7}"#, "title does not fit: it is the number 7, and must be text"),
            (r#"{"title": ["a"]}"#, "title does not fit: it is a list, and must be text"),
            (r#"{"flag": "yes"}"#, "flag does not fit: it is the text \"yes\", and must be true or false"),
            (r#"{"delay": "soon"}"#, "delay does not fit: it is the text \"soon\", and must be a number"),
            (r#"{"tags": 7}"#, "tags does not fit: it must be text or a list of texts"),
            (r#"{"tags": [7]}"#, "tags does not fit: it must be text or a list of texts"),
            (r#"{"items": 7}"#, "items does not fit: it is the number 7, and must be a list"),
            (
                r#"{"items": [{"count": true}]}"#,
                "items[0].count does not fit: it is true, and must be a whole number, 0 or more",
            ),
        ] {
            let error = from_slice::<Body>(body.as_bytes()).unwrap_err();
            assert_eq!(said(&error.to_string()), expected, "{body}");
        }
        let retry = from_slice::<Body>(br#"{"retry": "never"}"#).unwrap_err();
        let text = said(&retry.to_string());
        assert!(text.starts_with("retry does not fit") && text.contains("an object"), "{text}");
    }
}
