//! Sets of characters, and the classes that have names.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use super::blocks::BLOCKS;
use crate::xsd::xml::{NAME_ONLY, NAME_START};

/// The categories that may be named.
const CATEGORIES: &[&str] = &[
    "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Z", "Zs", "Zl", "Zp", "S", "Sm", "Sc", "Sk", "So", "C", "Cc", "Cf", "Co", "Cn",
];

/// The set of some ranges.
pub(super) fn of(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|(first, last)| ClassUnicodeRange::new(*first, *last)))
}

/// All characters that are not in a set.
pub(super) fn negated(mut class: ClassUnicode) -> ClassUnicode {
    class.negate();
    class
}

/// The set that an escape means, such as `\d`; `None` if it is none.
pub(super) fn escape(letter: char) -> Option<ClassUnicode> {
    if letter.is_ascii_uppercase() {
        return escape(letter.to_ascii_lowercase()).map(negated);
    }
    match letter {
        's' => Some(of(&[(' ', ' '), ('\t', '\t'), ('\n', '\n'), ('\r', '\r')])),
        'i' => Some(of(NAME_START)),
        'c' => {
            let mut class = of(NAME_START);
            class.union(&of(NAME_ONLY));
            Some(class)
        }
        'd' => category("Nd"),
        'w' => {
            let mut class = category("P")?;
            class.union(&category("Z")?);
            class.union(&category("C")?);
            Some(negated(class))
        }
        _ => None,
    }
}

/// The set that a name in `\p{…}` means.
pub(super) fn property(name: &str) -> Result<ClassUnicode, String> {
    if let Some(block) = name.strip_prefix("Is") {
        let ranges: Vec<_> =
            BLOCKS.iter().filter(|(.., known)| *known == block).map(|(first, last, _)| (*first, *last)).collect();
        return if ranges.is_empty() { Err(format!("there is no block {name:?}")) } else { Ok(of(&ranges)) };
    }
    category(name).ok_or_else(|| format!("there is no category {name:?}"))
}

fn category(name: &str) -> Option<ClassUnicode> {
    if !CATEGORIES.contains(&name) {
        return None;
    }
    let parsed = regex_syntax::parse(&format!(r"\p{{{name}}}")).ok()?;
    match parsed.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        _ => None,
    }
}
