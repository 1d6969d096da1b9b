//! A pull parser: start tags with resolved names, end tags and text, each checked for well-formedness.

use std::borrow::Cow;
use std::collections::HashSet;

use super::chars::{is_char, is_name_char, is_name_start};
use super::scope::{ABSENT, Namespaces, Ns, Scope};
use crate::limits::DEPTH;

/// A text that is not XML, or not XML that is accepted.
#[derive(Debug)]
pub(in crate::xsd) struct Malformed {
    pub(in crate::xsd) message: String,
    pub(in crate::xsd) offset: usize,
}

type Result<T> = std::result::Result<T, Malformed>;

/// What comes next in a text. Comments and processing instructions are left out.
#[derive(Debug)]
pub(in crate::xsd) enum Event<'d> {
    /// A start tag. Its attributes are the reader's, until the next event.
    Start(Tag<'d>),
    /// An end tag, also that of an empty element.
    End,
    /// A piece of text within the root, with references replaced. Adjacent pieces come apart.
    Text(Cow<'d, str>),
    /// The end of the text, well-formed as a whole.
    Done,
}

/// A start tag.
#[derive(Debug, Clone, Copy)]
pub(in crate::xsd) struct Tag<'d> {
    /// The name as it is written.
    pub(in crate::xsd) raw: &'d str,
    /// The name without its prefix.
    pub(in crate::xsd) local: &'d str,
    /// The namespace.
    pub(in crate::xsd) ns: Ns,
    /// Where the tag starts.
    pub(in crate::xsd) offset: usize,
}

/// An attribute that is no namespace declaration.
#[derive(Debug)]
pub(in crate::xsd) struct Attribute<'d> {
    /// The name as it is written.
    pub(in crate::xsd) raw: &'d str,
    /// The name without its prefix.
    pub(in crate::xsd) local: &'d str,
    /// The namespace.
    pub(in crate::xsd) ns: Ns,
    /// The value, with references replaced and white space made spaces.
    pub(in crate::xsd) value: Cow<'d, str>,
    /// Where the attribute starts.
    pub(in crate::xsd) offset: usize,
}

#[derive(Debug)]
struct Open<'d> {
    raw: &'d str,
    bindings: usize,
}

/// Reads a text.
#[derive(Debug)]
pub(in crate::xsd) struct Reader<'d, 'n> {
    text: &'d str,
    at: usize,
    known: &'n Namespaces,
    scope: Scope<'d>,
    open: Vec<Open<'d>>,
    attributes: Vec<Attribute<'d>>,
    /// Whether the last tag was that of an empty element.
    ends_at_once: bool,
    /// Whether the last event was an end: what the element declared is in scope until the next event.
    has_ended: bool,
    has_root: bool,
}

impl<'d, 'n> Reader<'d, 'n> {
    /// A reader of a text, which may start with a byte order mark.
    pub(in crate::xsd) fn new(text: &'d str, known: &'n Namespaces) -> Result<Self> {
        let mut reader = Self {
            text,
            at: if text.starts_with('\u{feff}') { 3 } else { 0 },
            known,
            scope: Scope::default(),
            open: Vec::new(),
            attributes: Vec::new(),
            ends_at_once: false,
            has_ended: false,
            has_root: false,
        };
        reader.declaration()?;
        Ok(reader)
    }

    /// The attributes of the last start tag.
    pub(in crate::xsd) fn attributes(&self) -> &[Attribute<'d>] {
        &self.attributes
    }

    /// The namespace declarations in scope.
    pub(in crate::xsd) fn scope(&self) -> &Scope<'d> {
        &self.scope
    }

    /// The namespace declarations of the last start tag.
    pub(in crate::xsd) fn declared(&self) -> impl Iterator<Item = (&'d str, &str)> {
        self.scope.since(self.open.last().map_or(0, |open| open.bindings))
    }

    /// Where the next event starts.
    pub(in crate::xsd) fn offset(&self) -> usize {
        self.at
    }

    /// The next event.
    pub(in crate::xsd) fn next(&mut self) -> Result<Event<'d>> {
        if std::mem::take(&mut self.has_ended) {
            self.close();
        }
        if std::mem::take(&mut self.ends_at_once) {
            self.has_ended = true;
            return Ok(Event::End);
        }
        loop {
            let rest = self.rest();
            match rest.as_bytes() {
                [] => return self.done(),
                [b'<', b'/', ..] => return self.end_tag(),
                [b'<', b'?', ..] => self.instruction()?,
                [b'<', b'!', b'-', b'-', ..] => self.comment()?,
                [b'<', b'!', ..] if rest.starts_with("<![CDATA[") && !self.open.is_empty() => return self.cdata(),
                [b'<', b'!', ..] if rest.starts_with("<!DOCTYPE") => {
                    return self
                        .fail("a DOCTYPE is not accepted: entities and defaults of document types are not read");
                }
                [b'<', b'!', ..] => return self.fail("this markup is not allowed here"),
                [b'<', ..] => return self.start_tag(),
                _ => {
                    if let Some(text) = self.characters()? {
                        return Ok(Event::Text(text));
                    }
                }
            }
        }
    }

    fn rest(&self) -> &'d str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Malformed { message: message.into(), offset: self.at })
    }

    fn done(&self) -> Result<Event<'d>> {
        match self.open.last() {
            Some(open) => self.fail(format!("the text ends within the element {:?}", open.raw)),
            None if !self.has_root => self.fail("there is no root element"),
            None => Ok(Event::Done),
        }
    }

    fn close(&mut self) {
        if let Some(open) = self.open.pop() {
            self.scope.truncate(open.bindings);
        }
    }

    /// Reads the XML declaration, if there is one.
    fn declaration(&mut self) -> Result<()> {
        let rest = self.rest();
        if !rest.starts_with("<?xml") || rest[5..].starts_with(is_name_char) {
            return Ok(());
        }
        let Some(end) = rest.find("?>") else { return self.fail("the XML declaration does not end") };
        let mut inner = &rest[5..end];
        let mut names = ["version", "encoding", "standalone"].iter();
        while !inner.trim_ascii().is_empty() {
            let Some((name, value, after)) = pseudo_attribute(inner) else {
                return self.fail("the XML declaration is not well-formed");
            };
            if !names.any(|known| *known == name) || (name != "version" && inner.len() == end - 5) {
                return self.fail("the XML declaration is not well-formed");
            }
            match name {
                "version" if value != "1.0" => {
                    return self.fail(format!("XML version {value:?} is not supported: use 1.0"));
                }
                "encoding" if !["utf-8", "utf8", "us-ascii", "ascii"].contains(&&*value.to_ascii_lowercase()) => {
                    return self.fail(format!("the encoding {value:?} is not supported: use UTF-8"));
                }
                "encoding" if value.to_ascii_lowercase().ends_with("ascii") && !self.text.is_ascii() => {
                    return self.fail(format!("the encoding is {value:?}, which has not all characters of this text"));
                }
                "standalone" if value != "yes" && value != "no" => return self.fail("standalone must be yes or no"),
                _ => inner = after,
            }
        }
        if end == 5 || inner.len() == end - 5 {
            return self.fail("the XML declaration has no version");
        }
        self.at += end + 2;
        Ok(())
    }

    fn comment(&mut self) -> Result<()> {
        let body = &self.rest()[4..];
        let Some(end) = body.find("--") else { return self.fail("this comment does not end") };
        if !body[end + 2..].starts_with('>') {
            return self.fail("\"--\" is not allowed in a comment");
        }
        self.check_chars(&body[..end], self.at + 4)?;
        self.at += 4 + end + 3;
        Ok(())
    }

    fn instruction(&mut self) -> Result<()> {
        let body = &self.rest()[2..];
        let Some(end) = body.find("?>") else { return self.fail("this processing instruction does not end") };
        let body = &body[..end];
        let target = body.split([' ', '\t', '\n', '\r']).next().unwrap_or_default();
        if !super::is_ncname(target) || target.eq_ignore_ascii_case("xml") {
            return self.fail(format!("a processing instruction cannot have the name {target:?} here"));
        }
        self.check_chars(body, self.at + 2)?;
        self.at += 2 + end + 2;
        Ok(())
    }

    fn check_chars(&self, text: &str, offset: usize) -> Result<()> {
        match text.char_indices().find(|(_, c)| !is_char(*c)) {
            Some((at, c)) => {
                Err(Malformed { message: format!("the character {c:?} is not allowed in XML"), offset: offset + at })
            }
            None => Ok(()),
        }
    }

    fn cdata(&mut self) -> Result<Event<'d>> {
        let body = &self.rest()[9..];
        let Some(end) = body.find("]]>") else { return self.fail("this CDATA section does not end") };
        let text = &body[..end];
        self.check_chars(text, self.at + 9)?;
        self.at += 9 + end + 3;
        Ok(Event::Text(line_ends(text)))
    }

    /// Reads text up to the next tag; outside the root only white space is allowed, and nothing is returned.
    fn characters(&mut self) -> Result<Option<Cow<'d, str>>> {
        let rest = self.rest();
        let raw = &rest[..memchr::memchr(b'<', rest.as_bytes()).unwrap_or(rest.len())];
        if self.open.is_empty() {
            if let Some(at) = raw.find(|c| !super::is_space(c)) {
                self.at += at;
                return self.fail("text is not allowed outside the root element");
            }
            self.at += raw.len();
            return Ok(None);
        }
        let text = self.expand(raw, self.at, false)?;
        self.at += raw.len();
        Ok(Some(text))
    }

    /// Replaces references and normalises line ends, in an attribute also other white space.
    fn expand(&self, raw: &'d str, offset: usize, attribute: bool) -> Result<Cow<'d, str>> {
        let special = |byte: u8| match byte {
            b'&' | b'\r' | 0..=8 | 0x0b..=0x1f | 0xef => true,
            b']' => !attribute,
            b'\t' | b'\n' | b'<' => attribute,
            _ => false,
        };
        let Some(first) = raw.bytes().position(special) else { return Ok(Cow::Borrowed(raw)) };
        let mut text = String::with_capacity(raw.len());
        let mut rest = raw;
        let mut skip = first;
        loop {
            text.push_str(&rest[..skip]);
            rest = &rest[skip..];
            let Some(c) = rest.chars().next() else { return Ok(Cow::Owned(text)) };
            let here = offset + raw.len() - rest.len();
            let fail = |message: String| Err(Malformed { message, offset: here });
            let mut length = c.len_utf8();
            match c {
                '&' => match reference(rest) {
                    Ok((meaning, consumed)) => {
                        text.push(meaning);
                        length = consumed;
                    }
                    Err(message) => return fail(message),
                },
                '<' => return fail("\"<\" is not allowed in the value of an attribute".into()),
                '\r' => {
                    text.push(if attribute { ' ' } else { '\n' });
                    length += usize::from(rest[1..].starts_with('\n'));
                }
                '\t' | '\n' => text.push(' '),
                ']' if rest.starts_with("]]>") => return fail("\"]]>\" is not allowed in text".into()),
                other if !is_char(other) => return fail(format!("the character {other:?} is not allowed in XML")),
                other => text.push(other),
            }
            rest = &rest[length..];
            skip = rest.bytes().position(special).unwrap_or(rest.len());
        }
    }

    fn end_tag(&mut self) -> Result<Event<'d>> {
        let rest = &self.rest()[2..];
        let Some(open) = self.open.last() else { return self.fail("there is no element to end here") };
        let matching = rest.strip_prefix(open.raw).filter(|after| !after.starts_with(is_name_char));
        let Some(after) = matching else { return self.fail(format!("the end tag of {:?} is expected here", open.raw)) };
        let after = after.trim_start_matches(super::is_space);
        if !after.starts_with('>') {
            return self.fail("this end tag is not closed by \">\"");
        }
        self.at = self.text.len() - after.len() + 1;
        self.has_ended = true;
        Ok(Event::End)
    }

    /// Reads a name, and splits it at its colon: raw, prefix, local part.
    fn name(&mut self) -> Result<(&'d str, &'d str, &'d str)> {
        let rest = self.rest();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
        let mut end = rest.bytes().position(|byte| !plain(byte)).unwrap_or(rest.len());
        if rest.as_bytes().get(end).is_some_and(|byte| !byte.is_ascii()) {
            end = rest.find(|c| !is_name_char(c)).unwrap_or(rest.len());
        }
        let raw = &rest[..end];
        if !raw.starts_with(is_name_start) {
            return self.fail("a name is expected here");
        }
        let (prefix, local) = match memchr::memchr(b':', raw.as_bytes()) {
            Some(colon) => (&raw[..colon], &raw[colon + 1..]),
            None => ("", raw),
        };
        let is_qualified = raw.len() != local.len();
        if is_qualified && (prefix.is_empty() || !super::is_ncname(local)) {
            return self.fail(format!("{raw:?} is not a name with at most one prefix"));
        }
        self.at += end;
        Ok((raw, prefix, local))
    }

    fn start_tag(&mut self) -> Result<Event<'d>> {
        let offset = self.at;
        if self.open.is_empty() && self.has_root {
            return self.fail("there is a second root element");
        }
        if self.open.len() >= DEPTH {
            return self.fail(format!("elements are nested deeper than {DEPTH}"));
        }
        self.has_root = true;
        self.at += 1;
        let (raw, prefix, local) = self.name()?;
        let bindings = self.scope.len();
        self.attributes.clear();
        let is_qualified = self.tag_attributes(bindings)?;
        self.open.push(Open { raw, bindings });
        let Some((ns, _)) = self.scope.resolve(prefix) else {
            return Err(undeclared(prefix, offset));
        };
        if is_qualified || self.attributes.len() > 1 {
            self.finish_attributes(is_qualified)?;
        }
        Ok(Event::Start(Tag { raw, local, ns, offset }))
    }

    /// Reads the attributes up to the end of the tag, whose namespace declarations start at `bindings`. Returns whether any
    /// has a prefix.
    fn tag_attributes(&mut self, bindings: usize) -> Result<bool> {
        let mut is_qualified = false;
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches(super::is_space);
            let spaced = trimmed.len() < rest.len();
            self.at = self.text.len() - trimmed.len();
            match trimmed.as_bytes() {
                [b'>', ..] => {
                    self.at += 1;
                    return Ok(is_qualified);
                }
                [b'/', b'>', ..] => {
                    self.at += 2;
                    self.ends_at_once = true;
                    return Ok(is_qualified);
                }
                [] => return self.fail("the text ends within a tag"),
                _ if !spaced => return self.fail("white space or the end of the tag is expected here"),
                _ => is_qualified |= self.attribute(bindings)?,
            }
        }
    }

    /// Reads an attribute or a namespace declaration. Returns whether it is an attribute with a prefix.
    fn attribute(&mut self, bindings: usize) -> Result<bool> {
        let offset = self.at;
        let (raw, prefix, local) = self.name()?;
        let rest = self.rest().trim_start_matches(super::is_space);
        let value = rest.strip_prefix('=').map(|rest| rest.trim_start_matches(super::is_space));
        let Some(value) = value else { return self.fail(format!("\"=\" is expected after the attribute {raw:?}")) };
        self.at = self.text.len() - value.len();
        let quote = match value.as_bytes().first() {
            Some(quote @ (b'"' | b'\'')) => *quote,
            _ => return self.fail(format!("the value of the attribute {raw:?} must be in quotes")),
        };
        let Some(end) = memchr::memchr(quote, &value.as_bytes()[1..]) else {
            return self.fail(format!("the value of the attribute {raw:?} does not end"));
        };
        let value = self.expand(&value[1..=end], self.at + 1, true)?;
        self.at += end + 2;
        let declared = match (prefix, local) {
            ("", "xmlns") => Some(""),
            ("xmlns", local) => Some(local),
            _ => None,
        };
        if let Some(declared) = declared {
            return match self.scope.bind(declared, value, self.known, bindings) {
                Ok(()) => Ok(false),
                Err(message) => Err(Malformed { message, offset }),
            };
        }
        self.attributes.push(Attribute { raw, local, ns: ABSENT, value, offset });
        Ok(!prefix.is_empty())
    }

    /// Resolves the prefixes of attributes, and refuses two of one name.
    fn finish_attributes(&mut self, is_qualified: bool) -> Result<()> {
        if is_qualified {
            for attribute in self.attributes.iter_mut().filter(|one| one.raw.len() != one.local.len()) {
                let prefix = &attribute.raw[..attribute.raw.len() - attribute.local.len() - 1];
                match self.scope.resolve(prefix) {
                    Some((ns, _)) => attribute.ns = ns,
                    None => return Err(undeclared(prefix, attribute.offset)),
                }
            }
        }
        let duplicate = if self.attributes.len() <= 8 {
            let same = |one: &Attribute<'_>, other: &Attribute<'_>| {
                one.local == other.local && (one.raw == other.raw || self.space(one) == self.space(other))
            };
            (1..self.attributes.len())
                .find(|later| self.attributes[..*later].iter().any(|one| same(one, &self.attributes[*later])))
        } else {
            let mut seen = HashSet::with_capacity(self.attributes.len());
            (0..self.attributes.len()).find(|at| {
                let attribute = &self.attributes[*at];
                !seen.insert((self.space(attribute), attribute.local))
            })
        };
        match duplicate.and_then(|at| self.attributes.get(at)) {
            Some(attribute) => Err(Malformed {
                message: format!("the attribute {:?} occurs twice", attribute.raw),
                offset: attribute.offset,
            }),
            None => Ok(()),
        }
    }

    /// What attributes of one namespace have in common.
    fn space(&self, attribute: &Attribute<'_>) -> (bool, Option<usize>) {
        if attribute.raw.len() == attribute.local.len() {
            return (false, None);
        }
        let prefix = &attribute.raw[..attribute.raw.len() - attribute.local.len() - 1];
        (true, self.scope.same(prefix))
    }
}

fn undeclared(prefix: &str, offset: usize) -> Malformed {
    Malformed { message: format!("the prefix {prefix:?} is not declared"), offset }
}

/// Splits `name="value"` off the content of an XML declaration.
fn pseudo_attribute(inner: &str) -> Option<(&str, &str, &str)> {
    let trimmed = inner.trim_ascii_start();
    if trimmed.len() == inner.len() {
        return None;
    }
    let (name, rest) = trimmed.split_once('=')?;
    let rest = rest.trim_ascii_start();
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (value, after) = rest[1..].split_once(quote)?;
    Some((name.trim_ascii_end(), value, after))
}

/// Makes all line ends `\n`.
fn line_ends(text: &str) -> Cow<'_, str> {
    if text.contains('\r') { Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n")) } else { Cow::Borrowed(text) }
}

/// What a reference at the start of a text means, and how long it is.
fn reference(text: &str) -> std::result::Result<(char, usize), String> {
    let end = text.bytes().take(16).position(|byte| byte == b';');
    let Some(end) = end else { return Err("\"&\" does not start a reference: write \"&amp;\"".into()) };
    let name = &text[1..end];
    let meaning = match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = match (name.strip_prefix("#x"), name.strip_prefix('#')) {
                (Some(hex), _) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => u32::from_str_radix(hex, 16).ok(),
                (None, Some(digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok(),
                (None, None) if super::is_name(name) => {
                    return Err(format!("the entity {name:?} is not declared: only lt, gt, amp, quot and apos are"));
                }
                _ => None,
            };
            let meaning = number.and_then(char::from_u32).filter(|c| is_char(*c));
            meaning.ok_or_else(|| format!("\"&{name};\" is no character of XML"))?
        }
    };
    Ok((meaning, end + 1))
}
