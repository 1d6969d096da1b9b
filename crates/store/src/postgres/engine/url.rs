//! Takes the TLS parameters, which `tls` handles instead of the driver, out of a database URL or a `key=value` string.
//! Pure.

use crate::error::{Error, Result};

/// The TLS parameters of a URL, as they were given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::postgres) struct Given {
    pub(in crate::postgres) mode: Option<String>,
    pub(in crate::postgres) root: Option<String>,
    pub(in crate::postgres) certificate: Option<String>,
    pub(in crate::postgres) key: Option<String>,
}

impl Given {
    /// Keeps the parameter if it is about TLS; false if it is not.
    fn keep(&mut self, name: &str, value: &str) -> bool {
        let place = match name {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.root,
            "sslcert" => &mut self.certificate,
            "sslkey" => &mut self.key,
            _ => return false,
        };
        // Empty means the default, as in libpq.
        *place = (!value.is_empty()).then(|| value.to_owned());
        true
    }
}

/// The text without the TLS parameters, and the parameters.
pub(in crate::postgres) fn split(text: &str) -> Result<(String, Given)> {
    match text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
        Some(rest) => split_url(text, text.len() - rest.len()),
        None => split_pairs(text),
    }
}

fn split_url(text: &str, scheme: usize) -> Result<(String, Given)> {
    // Credentials end at the first `@`, as the driver reads them: a password may hold a question mark.
    let after = text[scheme..].find('@').map_or(scheme, |at| scheme + at + 1);
    let Some(query) = text[after..].find('?').map(|at| after + at) else {
        return Ok((text.to_owned(), Given::default()));
    };
    let mut given = Given::default();
    let mut kept = Vec::new();
    for pair in text[query + 1..].split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !given.keep(&decode(name)?, &decode(value)?) {
            kept.push(pair);
        }
    }
    let mark = if kept.is_empty() { "" } else { "?" };
    Ok((format!("{}{mark}{}", &text[..query], kept.join("&")), given))
}

fn split_pairs(text: &str) -> Result<(String, Given)> {
    let mut given = Given::default();
    let mut kept = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once('=') else {
            // Not a `key=value` pair: the driver reports what is wrong with it.
            kept.push(rest);
            break;
        };
        let after = after.trim_start();
        let (value, length) = read_value(after)?;
        let end = rest.len() - after.len() + length;
        if !given.keep(name.trim(), &value) {
            kept.push(&rest[..end]);
        }
        rest = rest[end..].trim_start();
    }
    Ok((kept.join(" "), given))
}

/// The value at the start of a `key=value` string, and how many bytes it takes there.
fn read_value(text: &str) -> Result<(String, usize)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, at + 1)),
            space if !quoted && space.is_whitespace() => return Ok((value, at)),
            other => value.push(other),
        }
    }
    if quoted {
        return Err(Error::invalid("the database URL cannot be read: a quoted value does not end"));
    }
    Ok((value, text.len()))
}

/// Undoes percent encoding.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |digit: u8| char::from(digit).to_digit(16);
        let decoded = match (first, tail) {
            (b'%', [high, low, ..]) => {
                hex(*high).zip(hex(*low)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            _ => None,
        };
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes)
        .map_err(|error| Error::invalid("the database URL holds bytes that are not UTF-8").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(mode: &str, root: &str, certificate: &str, key: &str) -> Given {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Given { mode: some(mode), root: some(root), certificate: some(certificate), key: some(key) }
    }

    #[test]
    fn tls_parameters_are_taken_out_of_a_url() {
        for (text, rest, expected) in [
            ("postgres://u@h/d", "postgres://u@h/d", given("", "", "", "")),
            ("postgres://u@h/d?sslmode=verify-full", "postgres://u@h/d", given("verify-full", "", "", "")),
            (
                "postgresql://u:a?sslmode=x@h/d?connect_timeout=3&sslrootcert=%2Fetc%2Fa%20b.pem&options=-c%20a%3Db",
                "postgresql://u:a?sslmode=x@h/d?connect_timeout=3&options=-c%20a%3Db",
                given("", "/etc/a b.pem", "", ""),
            ),
            ("postgres://u@h/d?sslcert=c&sslkey=k&sslmode=", "postgres://u@h/d", given("", "", "c", "k")),
            (
                "host=h sslmode = verify-ca sslrootcert='a \\'b' user='x y'",
                "host=h user='x y'",
                given("verify-ca", "a 'b", "", ""),
            ),
            ("nonsense", "nonsense", given("", "", "", "")),
        ] {
            assert_eq!(split(text).unwrap(), (rest.to_owned(), expected), "{text}");
        }
        assert!(split("sslkey='x").is_err());
        assert!(split("postgres://h/d?sslkey=%FF").is_err());
    }
}
