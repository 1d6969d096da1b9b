//! The deterministic automaton of an expression, over classes of characters that the expression does not tell apart.

use std::collections::HashMap;

use regex_syntax::hir::ClassUnicode;

use super::nfa::{Nfa, spend};
use crate::xsd::bounds::PATTERN_TABLE;

/// No text goes on from here.
const DEAD: u32 = u32::MAX;

/// A compiled regular expression.
#[derive(Debug)]
pub(in crate::xsd) struct Pattern {
    source: Box<str>,
    alphabet: Alphabet,
    /// One row per state, one entry per symbol.
    table: Vec<u32>,
    accepts: Vec<bool>,
}

/// Which symbol a character is.
#[derive(Debug)]
struct Alphabet {
    ascii: [u16; 128],
    /// First and last character of a range, and its symbol. Characters outside all ranges have symbol 0.
    ranges: Vec<(u32, u32, u16)>,
    symbols: usize,
}

impl Pattern {
    /// What it was compiled from.
    pub(in crate::xsd) fn source(&self) -> &str {
        &self.source
    }

    /// How many entries its tables have.
    pub(in crate::xsd) fn entries(&self) -> usize {
        self.table.len() + self.alphabet.ranges.len()
    }

    /// Whether a whole text matches.
    pub(in crate::xsd) fn matches(&self, text: &str) -> bool {
        let mut state = 0;
        for c in text.chars() {
            let symbol = self.alphabet.symbol(c);
            match self.table.get(state * self.alphabet.symbols + symbol) {
                Some(next) if *next != DEAD => state = *next as usize,
                _ => return false,
            }
        }
        self.accepts.get(state).copied().unwrap_or(false)
    }
}

impl Alphabet {
    fn symbol(&self, c: char) -> usize {
        let code = c as u32;
        if let Some(symbol) = self.ascii.get(code as usize) {
            return usize::from(*symbol);
        }
        let at = self.ranges.partition_point(|(_, last, _)| *last < code);
        self.ranges.get(at).filter(|(first, ..)| *first <= code).map_or(0, |(.., symbol)| usize::from(*symbol))
    }

    /// Splits all characters by the classes that they are in. Also returns the symbols of each class.
    fn split(classes: &[ClassUnicode], work: &mut usize) -> Result<(Self, Vec<Vec<u16>>), String> {
        let mut edges: Vec<(u32, usize)> = Vec::new();
        for (number, class) in classes.iter().enumerate() {
            for range in class.ranges() {
                edges.push((range.start() as u32, number));
                edges.push((range.end() as u32 + 1, number));
            }
        }
        spend(work, edges.len())?;
        edges.sort_unstable();
        let mut members = vec![0_u64; classes.len().div_ceil(64)];
        let mut symbols = HashMap::from([(members.clone(), 0_u16)]);
        let mut of_class = vec![Vec::new(); classes.len()];
        let mut alphabet = Self { ascii: [0; 128], ranges: Vec::new(), symbols: 1 };
        let mut at = 0;
        while let Some((start, _)) = edges.get(at).copied() {
            while let Some((_, class)) = edges.get(at).filter(|(edge, _)| *edge == start) {
                members[class / 64] ^= 1 << (class % 64);
                at += 1;
            }
            spend(work, members.len())?;
            let Some((next, _)) = edges.get(at) else { break };
            let symbol = match symbols.get(&members) {
                Some(known) => *known,
                None => {
                    let symbol = u16::try_from(symbols.len()).map_err(|_| "has too many classes")?;
                    symbols.insert(members.clone(), symbol);
                    spend(work, classes.len())?;
                    let within = (0..classes.len()).filter(|class| members[class / 64] >> (class % 64) & 1 == 1);
                    within.for_each(|class| of_class[class].push(symbol));
                    symbol
                }
            };
            if symbol != 0 {
                alphabet.ranges.push((start, next - 1, symbol));
            }
        }
        for (first, last, symbol) in &alphabet.ranges {
            for code in *first..=(*last).min(127) {
                alphabet.ascii[code as usize] = *symbol;
            }
        }
        alphabet.symbols = symbols.len();
        Ok((alphabet, of_class))
    }
}

/// Makes the automaton; every step is taken off `work`.
pub(super) fn build(source: &str, nfa: &Nfa<'_>, work: &mut usize) -> Result<Pattern, String> {
    let (alphabet, of_class) = Alphabet::split(nfa.classes, work)?;
    let mut pattern = Pattern { source: source.into(), alphabet, table: Vec::new(), accepts: Vec::new() };
    let symbols = pattern.alphabet.symbols;
    // A state is what may come next, and whether the text may end.
    let mut states: Vec<Vec<u32>> = Vec::new();
    let mut known: HashMap<(bool, Vec<u32>), u32> = HashMap::new();
    let mut first = nfa.first.clone();
    first.sort_unstable();
    first.dedup();
    known.insert((nfa.nullable, first.clone()), 0);
    states.push(first);
    pattern.accepts.push(nfa.nullable);
    let mut targets: Vec<Vec<u32>> = vec![Vec::new(); symbols];
    let mut at = 0;
    while let Some(next) = states.get(at) {
        at += 1;
        if at * symbols > PATTERN_TABLE {
            return Err(format!("needs an automaton of more than {PATTERN_TABLE} entries: simplify it"));
        }
        for position in next {
            let class = nfa.positions[*position as usize];
            spend(work, of_class[class].len() + 1)?;
            for symbol in &of_class[class] {
                targets[usize::from(*symbol)].push(*position);
            }
        }
        for target in &mut targets {
            if target.is_empty() {
                pattern.table.push(DEAD);
                continue;
            }
            let accepts = target.iter().any(|position| nfa.last[*position as usize]);
            let mut follow: Vec<u32> = Vec::new();
            for position in target.drain(..) {
                let after = &nfa.follow[position as usize];
                spend(work, after.len() + 1)?;
                follow.extend(after);
            }
            follow.sort_unstable();
            follow.dedup();
            let fresh = u32::try_from(states.len()).unwrap_or(DEAD - 1);
            let state = *known.entry((accepts, follow.clone())).or_insert(fresh);
            if state == fresh {
                states.push(follow);
                pattern.accepts.push(accepts);
            }
            pattern.table.push(state);
        }
        spend(work, symbols)?;
    }
    Ok(pattern)
}
