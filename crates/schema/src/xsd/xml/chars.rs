//! Classes of characters of XML 1.0 (fifth edition).

/// Whether a character may occur in XML.
pub(in crate::xsd) fn is_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

/// Whether a character is white space in XML.
pub(in crate::xsd) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// The characters that a name may start with; the colon counts.
pub(in crate::xsd) const NAME_START: &[(char, char)] = &[
    (':', ':'),
    ('A', 'Z'),
    ('_', '_'),
    ('a', 'z'),
    ('\u{c0}', '\u{d6}'),
    ('\u{d8}', '\u{f6}'),
    ('\u{f8}', '\u{2ff}'),
    ('\u{370}', '\u{37d}'),
    ('\u{37f}', '\u{1fff}'),
    ('\u{200c}', '\u{200d}'),
    ('\u{2070}', '\u{218f}'),
    ('\u{2c00}', '\u{2fef}'),
    ('\u{3001}', '\u{d7ff}'),
    ('\u{f900}', '\u{fdcf}'),
    ('\u{fdf0}', '\u{fffd}'),
    ('\u{10000}', '\u{effff}'),
];

/// The characters that a name may contain but not start with.
pub(in crate::xsd) const NAME_ONLY: &[(char, char)] =
    &[('-', '.'), ('0', '9'), ('\u{b7}', '\u{b7}'), ('\u{300}', '\u{36f}'), ('\u{203f}', '\u{2040}')];

fn within(ranges: &[(char, char)], c: char) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// Whether a name may start with a character; the colon counts.
pub(in crate::xsd) fn is_name_start(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphabetic() || matches!(c, '_' | ':') } else { within(NAME_START, c) }
}

/// Whether a name may contain a character; the colon counts.
pub(in crate::xsd) fn is_name_char(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
    }
    within(NAME_START, c) || within(NAME_ONLY, c)
}

/// Whether a text is a `Name`.
pub(in crate::xsd) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(is_name_start) && chars.all(is_name_char)
}

/// Whether a text is an `NCName`: a name without a colon.
pub(in crate::xsd) fn is_ncname(text: &str) -> bool {
    is_name(text) && !text.contains(':')
}
