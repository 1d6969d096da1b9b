//! The syntax of regular expressions (XML Schema part 2, appendix F).

use std::collections::HashMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::class;

/// The deepest nesting of parentheses or of subtracted classes.
const NESTING: usize = 100;

/// A parsed expression and the classes it refers to.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) root: Ast,
    pub(super) classes: Vec<ClassUnicode>,
}

/// An expression.
#[derive(Debug)]
pub(super) enum Ast {
    /// One character of a class.
    Class(usize),
    /// One after the other.
    Concat(Vec<Ast>),
    /// One of several.
    Either(Vec<Ast>),
    /// Several times.
    Repeat(Box<Ast>, u32, Option<u32>),
}

/// Parses an expression.
pub(super) fn parse(source: &str) -> Result<Parsed, String> {
    let chars: Vec<char> = source.chars().collect();
    let mut parser = Parser { chars: &chars, at: 0, classes: Vec::new(), known: HashMap::new() };
    let root = parser.expression(0)?;
    match parser.peek() {
        Some(c) => Err(format!("{c:?} at character {} does not belong there", parser.at + 1)),
        None => Ok(Parsed { root, classes: parser.classes }),
    }
}

struct Parser<'s> {
    chars: &'s [char],
    at: usize,
    classes: Vec<ClassUnicode>,
    known: HashMap<Vec<(char, char)>, usize>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn peek_after(&self) -> Option<char> {
        self.chars.get(self.at + 1).copied()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn take(&mut self) -> Result<char, String> {
        let c = self.peek().ok_or("it ends too early")?;
        self.at += 1;
        Ok(c)
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.eat(wanted) { Ok(()) } else { Err(format!("{wanted:?} is missing at character {}", self.at + 1)) }
    }

    fn class(&mut self, class: ClassUnicode) -> Ast {
        let key: Vec<_> = class.ranges().iter().map(|range| (range.start(), range.end())).collect();
        let next = self.classes.len();
        let number = *self.known.entry(key).or_insert(next);
        if number == next {
            self.classes.push(class);
        }
        Ast::Class(number)
    }

    fn expression(&mut self, depth: usize) -> Result<Ast, String> {
        if depth > NESTING {
            return Err(format!("parentheses are nested deeper than {NESTING}"));
        }
        let mut branches = vec![self.branch(depth)?];
        while self.eat('|') {
            branches.push(self.branch(depth)?);
        }
        Ok(if branches.len() == 1 { branches.remove(0) } else { Ast::Either(branches) })
    }

    fn branch(&mut self, depth: usize) -> Result<Ast, String> {
        let mut pieces = Vec::new();
        while self.peek().is_some_and(|c| c != '|' && c != ')') {
            let atom = self.atom(depth)?;
            pieces.push(self.quantified(atom)?);
        }
        Ok(if pieces.len() == 1 { pieces.remove(0) } else { Ast::Concat(pieces) })
    }

    fn quantified(&mut self, atom: Ast) -> Result<Ast, String> {
        let (min, max) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => {
                self.at += 1;
                let (min, max) = self.quantity()?;
                return Ok(Ast::Repeat(Box::new(atom), min, max));
            }
            _ => return Ok(atom),
        };
        self.at += 1;
        Ok(Ast::Repeat(Box::new(atom), min, max))
    }

    fn quantity(&mut self) -> Result<(u32, Option<u32>), String> {
        let min = self.number()?;
        let max = if !self.eat(',') {
            Some(min)
        } else if self.peek() == Some('}') {
            None
        } else {
            Some(self.number()?)
        };
        self.expect('}')?;
        match max {
            Some(max) if max < min => Err(format!("the quantity {{{min},{max}}} is out of order")),
            _ => Ok((min, max)),
        }
    }

    fn number(&mut self) -> Result<u32, String> {
        let digits: String = self.chars[self.at..].iter().take_while(|c| c.is_ascii_digit()).collect();
        self.at += digits.len();
        digits.parse().map_err(|_| format!("a quantity at character {} is no number, or too large", self.at + 1))
    }

    fn atom(&mut self, depth: usize) -> Result<Ast, String> {
        match self.take()? {
            '(' => {
                let inner = self.expression(depth + 1)?;
                self.expect(')')?;
                Ok(inner)
            }
            '[' => {
                let class = self.group(depth)?;
                Ok(self.class(class))
            }
            '.' => Ok(self.class(class::negated(class::of(&[('\n', '\n'), ('\r', '\r')])))),
            '\\' => {
                let class = match self.escape()? {
                    Escape::Char(c) => class::of(&[(c, c)]),
                    Escape::Class(class) => class,
                };
                Ok(self.class(class))
            }
            c @ ('?' | '*' | '+' | '{' | '}' | ']') => {
                Err(format!("{c:?} at character {} needs a backslash, or something before it", self.at))
            }
            c => Ok(self.class(class::of(&[(c, c)]))),
        }
    }

    fn escape(&mut self) -> Result<Escape, String> {
        match self.take()? {
            'n' => Ok(Escape::Char('\n')),
            'r' => Ok(Escape::Char('\r')),
            't' => Ok(Escape::Char('\t')),
            c @ ('\\' | '|' | '.' | '-' | '^' | '?' | '*' | '+' | '{' | '}' | '(' | ')' | '[' | ']') => {
                Ok(Escape::Char(c))
            }
            letter @ ('p' | 'P') => {
                self.expect('{')?;
                let name: String = self.chars[self.at..].iter().take_while(|c| **c != '}').collect();
                self.at += name.chars().count();
                self.expect('}')?;
                let class = class::property(&name)?;
                Ok(Escape::Class(if letter == 'P' { class::negated(class) } else { class }))
            }
            letter => match class::escape(letter) {
                Some(class) => Ok(Escape::Class(class)),
                None => Err(format!("\"\\{letter}\" is no escape")),
            },
        }
    }

    /// Reads a class in brackets, after the opening one.
    fn group(&mut self, depth: usize) -> Result<ClassUnicode, String> {
        if depth > NESTING {
            return Err(format!("classes are nested deeper than {NESTING}"));
        }
        let is_negative = self.eat('^');
        let mut ranges = Vec::new();
        let mut class = ClassUnicode::empty();
        let mut is_empty = true;
        loop {
            let subtracts = self.peek() == Some('-') && self.peek_after() == Some('[');
            if is_empty && (self.peek() == Some(']') || subtracts) {
                return Err("a class in brackets is empty".into());
            }
            if self.eat(']') {
                class.union(&ClassUnicode::new(ranges));
                return Ok(if is_negative { class::negated(class) } else { class });
            }
            if subtracts {
                self.at += 2;
                let subtracted = self.group(depth + 1)?;
                self.expect(']')?;
                class.union(&ClassUnicode::new(ranges));
                let mut class = if is_negative { class::negated(class) } else { class };
                class.difference(&subtracted);
                return Ok(class);
            }
            match self.member(is_empty)? {
                Escape::Class(other) => class.union(&other),
                Escape::Char(first) => ranges.push(self.range(first)?),
            }
            is_empty = false;
        }
    }

    /// Reads one character or class within brackets.
    fn member(&mut self, is_first: bool) -> Result<Escape, String> {
        match self.take()? {
            '\\' => self.escape(),
            '[' => Err("\"[\" within brackets needs a backslash".into()),
            '-' if !is_first && self.peek() != Some(']') => {
                Err("\"-\" within brackets needs a backslash, unless it is first or last".into())
            }
            c => Ok(Escape::Char(c)),
        }
    }

    /// Reads the rest of a range that starts with a character.
    fn range(&mut self, first: char) -> Result<ClassUnicodeRange, String> {
        let is_range = self.peek() == Some('-') && !matches!(self.peek_after(), Some('[' | ']') | None);
        if !is_range {
            return Ok(ClassUnicodeRange::new(first, first));
        }
        self.at += 1;
        let last = match self.take()? {
            '\\' => match self.escape()? {
                Escape::Char(c) => c,
                Escape::Class(_) => return Err("a range within brackets ends with a class".into()),
            },
            c @ ('-' | '[') => return Err(format!("{c:?} within brackets needs a backslash")),
            c => c,
        };
        if last < first {
            return Err(format!("the range {first}-{last} is out of order"));
        }
        Ok(ClassUnicodeRange::new(first, last))
    }
}

enum Escape {
    Char(char),
    Class(ClassUnicode),
}
