//! What patterns cost, known before they are compiled.
//!
//! The engine is linear in the text, but its factor is the number of states that one byte keeps busy. A pattern is
//! measured by its structure: how many states it has (compilation, memory), and how many of them can be busy at once
//! (matching). As long as one character decides how to go on, few are: `^[a-z]+(:[0-9]+)?$`. When it does not, as in
//! `[ab]*a[ab]{50}`, all of them can be. Look-around and back references have no linear engine and are refused.

use regex_syntax::ast::ErrorKind;
use regex_syntax::ast::parse::Parser as AstParser;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

/// The longest pattern, in bytes.
pub(super) const MAX_LENGTH: usize = 2 << 10;
/// The most states of all patterns of a schema together.
pub(super) const MAX_STATES: u64 = 100_000;
/// What a pattern costs besides its states.
const EACH: u64 = 50;
/// The deepest nesting of groups.
const MAX_GROUPS: u32 = 50;
/// Up to so many busy states and states in all, matching goes through states that are cached.
const FEW_BUSY: u64 = 8;
const FEW_STATES: u64 = 1_000;

/// The price where few of many states are busy.
const MANY_STATES_PRICE: u64 = 8;

/// What a pattern costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// How many states it has, and what compiling it costs besides.
    pub(super) states: u64,
    /// The steps for matching 8 bytes.
    pub(super) price: u64,
}

impl Weight {
    /// Whether few states are busy at once, so that there are few sets of them.
    pub(super) fn is_narrow(self) -> bool {
        self.price <= MANY_STATES_PRICE
    }
}

/// Measures a pattern; the error says what to change.
pub(super) fn weigh(pattern: &str) -> Result<Weight, String> {
    if pattern.len() > MAX_LENGTH {
        return Err(format!("the pattern has {} bytes, at most {MAX_LENGTH} are allowed", pattern.len()));
    }
    let hir = translate(pattern)?;
    let part = measure(&hir);
    if part.states > MAX_STATES {
        return Err(format!(
            "the pattern has more than {MAX_STATES} states once its repetitions are expanded: use smaller counts"
        ));
    }
    // Without an anchor a match may begin anywhere, so that all states can be busy.
    let anchored = hir.properties().look_set_prefix().contains(Look::Start);
    let busy = if anchored { part.busy.min(part.states) } else { part.states };
    let price = match (busy <= FEW_BUSY, part.states <= FEW_STATES) {
        (true, true) => 1,
        (true, false) => MANY_STATES_PRICE,
        // A state that is busy takes about 10 ns for each byte.
        (false, _) => busy.saturating_mul(4),
    };
    Ok(Weight { states: part.states.saturating_add(EACH), price })
}

/// The pattern as the engine will see it. It is written in the syntax of ECMA 262, which the `jsonschema` crate
/// translates.
fn translate(pattern: &str) -> Result<Hir, String> {
    let error = AstParser::new().parse(pattern).err();
    match error.as_ref().map(|error| error.kind()) {
        Some(ErrorKind::UnsupportedLookAround) => {
            return Err("the pattern looks ahead or behind (`(?=`, `(?!`, `(?<=`, `(?<!`), which is not supported: \
                        matching has to be linear"
                .into());
        }
        Some(ErrorKind::UnsupportedBackreference) => {
            return Err(
                "the pattern refers back to a group (as `\\1` does), which is not supported: matching has to be \
                        linear"
                    .into(),
            );
        }
        _ => {}
    }
    let why = error.map(|error| format!(": {}", error.kind())).unwrap_or_default();
    let translated = jsonschema_regex::to_rust_regex(pattern)
        .map_err(|()| format!("the pattern is no regular expression of ECMA 262{why}"))?;
    let mut parser = regex_syntax::ParserBuilder::new().nest_limit(MAX_GROUPS).build();
    parser.parse(&translated).map_err(|error| {
        let reason = match &error {
            regex_syntax::Error::Parse(error) => error.kind().to_string(),
            regex_syntax::Error::Translate(error) => error.kind().to_string(),
            _ => "it cannot be compiled".to_string(),
        };
        format!("the pattern is not supported: {reason}")
    })
}

/// What is known of where a part ends, once it is known where it begins.
#[derive(Debug, Clone)]
enum End {
    /// In one place.
    Known,
    /// Where a character follows that is none of these.
    Before(ClassUnicode),
    /// In several places.
    Unknown,
}

/// A part of a pattern.
#[derive(Debug, Clone)]
struct Part {
    states: u64,
    busy: u64,
    /// The characters that it can begin with, and whether it can be empty.
    first: ClassUnicode,
    empty: bool,
    end: End,
}

/// Measures a part. Groups are nested [`MAX_GROUPS`] deep at most.
fn measure(hir: &Hir) -> Part {
    let nothing = ClassUnicode::empty();
    match hir.kind() {
        HirKind::Empty => Part { states: 1, busy: 1, first: nothing, empty: true, end: End::Known },
        // Nothing follows the end, not even a character that something else could begin with.
        HirKind::Look(Look::End) => Part { states: 1, busy: 1, first: nothing, empty: false, end: End::Known },
        HirKind::Look(_) => Part { states: 1, busy: 1, first: nothing, empty: true, end: End::Known },
        HirKind::Literal(literal) => {
            let states = literal.0.len() as u64 + 1;
            let first = std::str::from_utf8(&literal.0).ok().and_then(|text| text.chars().next());
            let first = first.map_or_else(anything, |first| ClassUnicode::new([ClassUnicodeRange::new(first, first)]));
            Part { states, busy: 1, first, empty: false, end: End::Known }
        }
        HirKind::Class(class) => measure_class(class),
        HirKind::Capture(capture) => {
            let part = measure(&capture.sub);
            Part { states: part.states.saturating_add(2), ..part }
        }
        HirKind::Concat(parts) => {
            let empty = Part { states: 1, busy: 1, first: nothing, empty: true, end: End::Known };
            parts.iter().map(measure).fold(empty, |before, part| follow(&before, &part))
        }
        HirKind::Alternation(parts) => alternate(parts),
        HirKind::Repetition(repetition) => repeat(repetition),
    }
}

fn anything() -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new('\0', char::MAX)])
}

/// A class takes a state for each sequence of byte ranges, about two for each range beyond ASCII.
fn measure_class(class: &Class) -> Part {
    let (states, first) = match class {
        Class::Unicode(class) => {
            let states = class.ranges().iter().map(|range| if range.end().is_ascii() { 1 } else { 2 });
            (states.sum::<u64>() + 1, class.clone())
        }
        Class::Bytes(class) => (class.ranges().len() as u64 + 1, anything()),
    };
    Part { states, busy: 1, first, empty: false, end: End::Known }
}

fn is_disjoint(one: &ClassUnicode, other: &ClassUnicode) -> bool {
    let mut both = one.clone();
    both.intersect(other);
    both.ranges().is_empty()
}

fn union(one: &ClassUnicode, other: &ClassUnicode) -> ClassUnicode {
    let mut both = one.clone();
    both.union(other);
    both
}

/// Whether the next character tells that a part has ended and the next one begins.
fn is_told(end: &End, next: &Part) -> bool {
    match end {
        End::Known => true,
        End::Before(class) => !next.empty && is_disjoint(class, &next.first),
        End::Unknown => false,
    }
}

/// Two parts, one after the other.
fn follow(before: &Part, part: &Part) -> Part {
    let states = before.states.saturating_add(part.states);
    let first = if before.empty { union(&before.first, &part.first) } else { before.first.clone() };
    let empty = before.empty && part.empty;
    let waiting = u64::from(!matches!(before.end, End::Known));
    if is_told(&before.end, part) {
        let busy = (before.busy + waiting).max(part.busy);
        return Part { states, busy, first, empty, end: part.end.clone() };
    }
    match (&before.end, &part.end) {
        // The next character tells whether the first part goes on, the optional one begins, or neither.
        (End::Before(class), after)
            if part.empty && is_disjoint(class, &part.first) && !matches!(after, End::Unknown) =>
        {
            let class = union(class, &part.first);
            let class = if let End::Before(other) = after { union(&class, other) } else { class };
            let busy = (before.busy + 1).max(part.busy) + 1;
            Part { states, busy, first, empty, end: End::Before(class) }
        }
        _ => {
            let busy = before.busy.saturating_add(part.states);
            Part { states, busy, first, empty, end: End::Unknown }
        }
    }
}

/// One of several parts.
fn alternate(parts: &[Hir]) -> Part {
    let parts: Vec<Part> = parts.iter().map(measure).collect();
    let states = parts.iter().fold(2_u64, |sum, part| sum.saturating_add(part.states).saturating_add(1));
    let mut first = ClassUnicode::empty();
    let mut told = true;
    let mut end = End::Known;
    for part in &parts {
        told &= !part.empty && is_disjoint(&first, &part.first);
        first = union(&first, &part.first);
        end = match (end, &part.end) {
            (End::Unknown, _) | (_, End::Unknown) => End::Unknown,
            (End::Known, other) => other.clone(),
            (one, End::Known) => one,
            (End::Before(one), End::Before(other)) => End::Before(union(&one, other)),
        };
    }
    let empty = parts.iter().any(|part| part.empty);
    if !told {
        return Part { states, busy: states, first, empty, end: End::Unknown };
    }
    let busy = parts.iter().map(|part| part.busy).max().unwrap_or(1);
    Part { states, busy, first, empty, end }
}

/// A part several times.
fn repeat(repetition: &Repetition) -> Part {
    let part = measure(&repetition.sub);
    let times = u64::from(repetition.max.unwrap_or(repetition.min)).max(1);
    let states = part.states.saturating_add(1).saturating_mul(times).saturating_add(1);
    let (first, empty) = (part.first.clone(), part.empty || repetition.min == 0);
    if part.empty || !is_told(&part.end, &part) {
        return Part { states, busy: states, first, empty, end: End::Unknown };
    }
    let waiting = u64::from(!matches!(part.end, End::Known));
    if repetition.max == Some(repetition.min) {
        return Part { states, busy: part.busy + waiting, first, empty, end: part.end };
    }
    let end = match &part.end {
        End::Before(class) => End::Before(union(class, &first)),
        _ => End::Before(first.clone()),
    };
    Part { states, busy: part.busy + waiting + 1, first, empty, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_one_character_decides_are_cheap() {
        let cheap = [
            "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
            "^[A-Z]{3}$",
            "^[a-z]+(:[a-z]+){3}$",
            "^ORD-[0-9]{4}-[0-9]{9}$",
            "^(EUR|USD|GBP)$",
            "^\\+?[0-9 ]{5,20}$",
            "^[a-z][a-z0-9]{0,62}$",
            "^-?[0-9]+(\\.[0-9]+)?$",
            "^(\\d{4})-(\\d{2})-(\\d{2})$",
        ];
        for pattern in cheap {
            assert_eq!(weigh(pattern).unwrap().price, 1, "{pattern}");
        }
    }

    #[test]
    fn patterns_that_keep_many_states_busy_are_dear() {
        let dear = [
            "[ab]*a[ab]{50}c",
            "^[a-z]{1,64}[a-z]{1,64}$",
            "^(a?){50}(a?){50}c",
            "^([ab]|[ab][ab]|[ab][ab][ab]){1,100}c",
            "(?:a.{0,50}b.{0,50}){2}c",
            "^(([ab]{1,10}){1,10}){1,10}c$",
        ];
        for pattern in dear {
            assert!(weigh(pattern).unwrap().price >= 200, "{pattern}: {:?}", weigh(pattern));
        }
    }

    #[test]
    fn what_is_not_linear_is_refused() {
        let cases = [
            ("^(?!x)", "looks ahead or behind"),
            ("a(?=b)", "looks ahead or behind"),
            ("(?<=a)b", "looks ahead or behind"),
            ("(a)\\1", "refers back to a group"),
            ("a{1000}{1000}", "states"),
            ("((((a{100}){100}){100}){100}){100}", "states"),
            ("(", "no regular expression of ECMA 262"),
            ("[b-a]", "no regular expression of ECMA 262"),
        ];
        for (pattern, expected) in cases {
            let error = weigh(pattern).unwrap_err();
            assert!(error.contains(expected), "{pattern}: {error}");
        }
        assert!(weigh(&"a".repeat(MAX_LENGTH + 1)).unwrap_err().contains("bytes"));
        assert!(weigh(&"(".repeat(1000)).is_err());
    }
}
