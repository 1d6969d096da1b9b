//! Names by which filters reach into an event.

/// The longest name or value of a filter, in bytes.
pub const MAX_TEXT: usize = 1024;

/// What of an event a filter looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attribute {
    /// A context attribute or extension of CloudEvents.
    Context(Box<str>),
    /// The values of the context data with this key.
    Pair(Box<str>),
    /// The value in JSON data to which these tokens of a JSON pointer lead.
    Data(Box<[Box<str>]>),
}

impl Attribute {
    /// Reads a name.
    ///
    /// # Errors
    /// Says what to write instead.
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        const POINTER: &str = "the data are reached by data/ and a JSON pointer, as in data/order/total";
        if name.len() > MAX_TEXT {
            return Err(too_long("name", name));
        }
        if let Some(key) = name.strip_prefix("context.") {
            let pair = || Self::Pair(key.into());
            return (!key.is_empty())
                .then(pair)
                .ok_or_else(|| "context. needs a key behind it, as in context.region".into());
        }
        match name.strip_prefix("data/") {
            Some("") => return Err(POINTER.into()),
            Some(pointer) => {
                let tokens: Option<Box<[_]>> = pointer.split('/').map(token).collect();
                let wrong = "a JSON pointer has ~0 for ~ and ~1 for / in a name, and no other ~";
                return tokens.map(Self::Data).ok_or_else(|| wrong.into());
            }
            None => {}
        }
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let lower = name.to_ascii_lowercase();
        match name {
            "data" => Err(POINTER.into()),
            "contextdata" => Err("context data are looked up by key, as in context.region".into()),
            _ if is_name(name) => Ok(Self::Context(name.into())),
            _ if is_name(&lower) => Err(format!("attributes have lower-case names: write {lower}")),
            _ => {
                Err("must be the name of an attribute (lower-case letters and digits), context.KEY or data/POINTER"
                    .into())
            }
        }
    }
}

/// What a text that is longer than it may be is told.
pub(super) fn too_long(what: &str, text: &str) -> String {
    format!("the {what} has {} bytes: it may have {MAX_TEXT}", text.len())
}

/// A token of a JSON pointer without its escapes.
fn token(escaped: &str) -> Option<Box<str>> {
    let mut parts = escaped.split('~');
    let mut token = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(1)?;
        token.push(match code {
            "0" => '~',
            "1" => '/',
            _ => return None,
        });
        token.push_str(rest);
    }
    Some(token.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_three_kinds() {
        let data = |tokens: &[&str]| Attribute::Data(tokens.iter().map(|token| (*token).into()).collect());
        let cases = [
            ("type", Attribute::Context("type".into())),
            ("myext1", Attribute::Context("myext1".into())),
            ("context", Attribute::Context("context".into())),
            ("context.Region", Attribute::Pair("Region".into())),
            ("context.a.b/ä", Attribute::Pair("a.b/ä".into())),
            ("data/a", data(&["a"])),
            ("data/a/0/b", data(&["a", "0", "b"])),
            ("data//x", data(&["", "x"])),
            ("data/a/", data(&["a", ""])),
            ("data/a~1b/~0~1~01", data(&["a/b", "~/~1"])),
            ("data/Größe", data(&["Größe"])),
        ];
        for (name, expected) in cases {
            assert_eq!(Attribute::parse(name), Ok(expected), "{name}");
        }
        assert!(Attribute::parse(&"x".repeat(MAX_TEXT)).is_ok());
    }

    #[test]
    fn other_names_are_told_what_to_write() {
        let long = format!("data/{}", "x".repeat(MAX_TEXT));
        let cases = [
            ("", "context.KEY or data/POINTER"),
            ("Type", "write type"),
            ("deduplicationId", "write deduplicationid"),
            ("my-ext", "context.KEY or data/POINTER"),
            ("data_base64", "context.KEY or data/POINTER"),
            ("größe", "context.KEY or data/POINTER"),
            ("context.", "context.region"),
            ("contextdata", "context.region"),
            ("contextData", "write contextdata"),
            ("data", "data/order/total"),
            ("data/", "data/order/total"),
            ("data/a~", "~0 for ~"),
            ("data/a~2b", "~0 for ~"),
            ("data/~é", "~0 for ~"),
            (&long, "1029 bytes"),
        ];
        for (name, expected) in cases {
            let reason = Attribute::parse(name).unwrap_err();
            assert!(reason.contains(expected), "{name}: {reason}");
        }
    }
}
