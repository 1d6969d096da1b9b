//! Glushkov's automaton of an expression: one position per occurrence of a class, and which position may follow which.

use regex_syntax::hir::ClassUnicode;

use super::parse::{Ast, Parsed};
use crate::xsd::bounds::PATTERN_POSITIONS;

/// An automaton without empty moves.
#[derive(Debug)]
pub(super) struct Nfa<'p> {
    pub(super) classes: &'p [ClassUnicode],
    /// The class of each position.
    pub(super) positions: Vec<usize>,
    /// The positions that may follow each position.
    pub(super) follow: Vec<Vec<u32>>,
    /// The positions that a text may start with.
    pub(super) first: Vec<u32>,
    /// Whether a text may end at each position.
    pub(super) last: Vec<bool>,
    /// Whether the empty text matches.
    pub(super) nullable: bool,
}

#[derive(Debug, Default)]
struct Part {
    first: Vec<u32>,
    last: Vec<u32>,
    nullable: bool,
}

/// Makes the automaton; every step is taken off `work`.
pub(super) fn build<'p>(parsed: &'p Parsed, work: &mut usize) -> Result<Nfa<'p>, String> {
    let mut builder = Builder { positions: Vec::new(), follow: Vec::new(), work };
    let part = builder.part(&parsed.root)?;
    let mut last = vec![false; builder.positions.len()];
    for position in &part.last {
        last[*position as usize] = true;
    }
    Ok(Nfa {
        classes: &parsed.classes,
        positions: builder.positions,
        follow: builder.follow,
        first: part.first,
        last,
        nullable: part.nullable,
    })
}

/// Takes steps off what is left.
pub(super) fn spend(work: &mut usize, steps: usize) -> Result<(), String> {
    match work.checked_sub(steps) {
        Some(left) => {
            *work = left;
            Ok(())
        }
        None => Err("is too complex: use fewer alternatives or smaller repetitions".into()),
    }
}

struct Builder<'w> {
    positions: Vec<usize>,
    follow: Vec<Vec<u32>>,
    work: &'w mut usize,
}

impl Builder<'_> {
    fn part(&mut self, ast: &Ast) -> Result<Part, String> {
        spend(self.work, 1)?;
        match ast {
            Ast::Class(class) => {
                if self.positions.len() >= PATTERN_POSITIONS {
                    return Err(format!("has more than {PATTERN_POSITIONS} positions with its repetitions expanded"));
                }
                let position = u32::try_from(self.positions.len()).unwrap_or(u32::MAX);
                self.positions.push(*class);
                self.follow.push(Vec::new());
                Ok(Part { first: vec![position], last: vec![position], nullable: false })
            }
            Ast::Concat(parts) => {
                let mut whole = Part { nullable: true, ..Part::default() };
                for part in parts {
                    let next = self.part(part)?;
                    self.link(&whole.last, &next.first)?;
                    if whole.nullable {
                        whole.first.extend(&next.first);
                    }
                    if !next.nullable {
                        whole.last.clear();
                    }
                    spend(self.work, next.last.len() + next.first.len())?;
                    whole.last.extend(&next.last);
                    whole.nullable &= next.nullable;
                }
                Ok(whole)
            }
            Ast::Either(parts) => {
                let mut whole = Part::default();
                for part in parts {
                    let next = self.part(part)?;
                    spend(self.work, next.last.len() + next.first.len())?;
                    whole.first.extend(&next.first);
                    whole.last.extend(&next.last);
                    whole.nullable |= next.nullable;
                }
                Ok(whole)
            }
            Ast::Repeat(inner, min, max) => self.repeat(inner, *min, *max),
        }
    }

    /// Expands a repetition. Where the inner part may be empty, any number of copies up to the largest will do.
    fn repeat(&mut self, inner: &Ast, min: u32, max: Option<u32>) -> Result<Part, String> {
        let mut whole = Part { nullable: min == 0, ..Part::default() };
        let copies = max.unwrap_or_else(|| min.max(1));
        let mut min = min;
        let mut previous: Vec<u32> = Vec::new();
        for copy in 0..copies {
            let next = self.part(inner)?;
            if next.nullable {
                min = 0;
                whole.nullable = true;
            }
            if next.first.is_empty() {
                return Ok(whole);
            }
            spend(self.work, next.first.len() + next.last.len())?;
            if copy == 0 {
                whole.first.clone_from(&next.first);
            }
            self.link(&previous, &next.first)?;
            if max.is_none() && copy + 1 == copies {
                self.link(&next.last, &next.first)?;
            }
            if copy + 1 >= min {
                whole.last.extend(&next.last);
            }
            previous = next.last;
        }
        Ok(whole)
    }

    fn link(&mut self, from: &[u32], to: &[u32]) -> Result<(), String> {
        for position in from {
            spend(self.work, to.len() + 1)?;
            self.follow[*position as usize].extend(to);
        }
        Ok(())
    }
}
