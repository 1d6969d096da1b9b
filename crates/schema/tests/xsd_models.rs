//! XML Schema: content models against an oracle. Random models are expanded literally into automata; what the validator
//! accepts, and which models it refuses as ambiguous, must agree with those.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;
use tidegate_schema::{Definition, Document, Format, SchemaType};

/// A model over the elements a, b and c. The number of an element tells it from others of the same name.
#[derive(Debug, Clone)]
enum Model {
    Element(char),
    Sequence(Vec<(Model, u32, Option<u32>)>),
    Choice(Vec<(Model, u32, Option<u32>)>),
}

type Particle = (Model, u32, Option<u32>);

fn occurs() -> impl Strategy<Value = (u32, Option<u32>)> {
    prop_oneof![
        5 => Just((1, Some(1))),
        3 => Just((0, Some(1))),
        1 => Just((0, None)),
        1 => Just((1, None)),
        1 => Just((2, None)),
        2 => (0..3_u32, 1..3_u32).prop_map(|(min, more)| (min, Some(min + more))),
        2 => (2..4_u32).prop_map(|count| (count, Some(count))),
    ]
}

fn model() -> impl Strategy<Value = Model> {
    let leaf = prop_oneof![Just('a'), Just('b'), Just('c')].prop_map(Model::Element);
    leaf.prop_recursive(3, 8, 3, |inner| {
        let part = (inner, occurs()).prop_map(|(model, (min, max))| (model, min, max));
        let part = part.boxed();
        let sequence = prop::collection::vec(part.clone(), 0..4).prop_map(Model::Sequence);
        // A choice of nothing makes what comes after it unreachable, which only the oracle would notice.
        prop_oneof![sequence, prop::collection::vec(part, 1..4).prop_map(Model::Choice)]
    })
}

fn write((model, min, max): &Particle, out: &mut String) {
    let max = max.map_or_else(|| "unbounded".to_owned(), |max| max.to_string());
    let occurs = format!("minOccurs=\"{min}\" maxOccurs=\"{max}\"");
    let (name, parts) = match model {
        Model::Element(name) => {
            *out += &format!("<xs:element name=\"{name}\" type=\"xs:string\" {occurs}/>");
            return;
        }
        Model::Sequence(parts) => ("sequence", parts),
        Model::Choice(parts) => ("choice", parts),
    };
    *out += &format!("<xs:{name} {occurs}>");
    parts.iter().for_each(|part| write(part, out));
    *out += &format!("</xs:{name}>");
}

/// An automaton without empty moves: positions have the name and the number of their element.
#[derive(Default)]
struct Oracle {
    positions: Vec<(char, usize)>,
    follow: Vec<BTreeSet<usize>>,
}

#[derive(Clone, Default)]
struct Part {
    first: BTreeSet<usize>,
    last: BTreeSet<usize>,
    nullable: bool,
}

impl Oracle {
    fn link(&mut self, from: &BTreeSet<usize>, to: &BTreeSet<usize>) {
        for position in from {
            self.follow[*position].extend(to);
        }
    }

    /// Expands one particle; `number` is that of its first element, which all copies share.
    fn particle(&mut self, (model, min, max): &Particle, number: usize) -> Part {
        let mut whole = Part { nullable: true, ..Part::default() };
        let copies = max.unwrap_or((*min).max(1));
        for copy in 0..copies {
            let part = self.once(model, number);
            if max.is_none() && copy + 1 == copies {
                self.link(&part.last.clone(), &part.first.clone());
            }
            let optional = copy >= *min;
            whole = self.concat(whole, Part { nullable: part.nullable || optional, ..part });
        }
        whole
    }

    fn concat(&mut self, one: Part, other: Part) -> Part {
        self.link(&one.last, &other.first);
        let first = if one.nullable { one.first.union(&other.first).copied().collect() } else { one.first };
        let last = if other.nullable { one.last.union(&other.last).copied().collect() } else { other.last };
        Part { first, last, nullable: one.nullable && other.nullable }
    }

    fn once(&mut self, model: &Model, number: usize) -> Part {
        match model {
            Model::Element(name) => {
                self.positions.push((*name, number));
                self.follow.push(BTreeSet::new());
                let position = BTreeSet::from([self.positions.len() - 1]);
                Part { first: position.clone(), last: position, nullable: false }
            }
            Model::Sequence(parts) => {
                let mut whole = Part { nullable: true, ..Part::default() };
                let mut number = number;
                for part in parts {
                    let next = self.particle(part, number);
                    whole = self.concat(whole, next);
                    number += size(&part.0);
                }
                whole
            }
            Model::Choice(parts) => {
                let mut whole = Part::default();
                let mut number = number;
                for part in parts {
                    let next = self.particle(part, number);
                    whole.first.extend(next.first);
                    whole.last.extend(next.last);
                    whole.nullable |= next.nullable;
                    number += size(&part.0);
                }
                whole
            }
        }
    }

    /// Whether some child may belong to two elements. An optional copy of what is repeated is the same element.
    fn is_ambiguous(&self, part: &Part) -> bool {
        let mut seen: HashSet<BTreeSet<usize>> = HashSet::new();
        let mut queue = vec![part.first.clone()];
        while let Some(next) = queue.pop() {
            for name in ['a', 'b', 'c'] {
                let taken: BTreeSet<usize> = next.iter().copied().filter(|at| self.positions[*at].0 == name).collect();
                let elements: BTreeSet<usize> = taken.iter().map(|at| self.positions[*at].1).collect();
                if elements.len() > 1 {
                    return true;
                }
                let after: BTreeSet<usize> = taken.iter().flat_map(|at| self.follow[*at].iter().copied()).collect();
                if !taken.is_empty() && seen.insert(after.clone()) {
                    queue.push(after);
                }
            }
        }
        false
    }

    /// The positions that the last element of a word may be, given those that may come first; `None` for no word at all.
    fn read(&self, part: &Part, before: Option<&BTreeSet<usize>>, name: char) -> BTreeSet<usize> {
        let next = match before {
            None => part.first.clone(),
            Some(before) => before.iter().flat_map(|at| self.follow[*at].iter().copied()).collect(),
        };
        next.into_iter().filter(|at| self.positions[*at].0 == name).collect()
    }

    /// Adds words that start with `word`, and whether they are accepted: all up to a length. A word that cannot go on is
    /// not continued: what is wrong stays wrong.
    fn words(&self, part: &Part, word: &str, at: &BTreeSet<usize>, words: &mut Vec<(String, bool)>) {
        for name in ['a', 'b', 'c'] {
            let next = self.read(part, Some(at).filter(|_| !word.is_empty()), name);
            let longer = format!("{word}{name}");
            if longer.len() < 6 && !next.is_empty() {
                self.words(part, &longer, &next, words);
            }
            words.push((longer, next.iter().any(|at| part.last.contains(at))));
        }
    }

    /// Adds repetitions of a word, as long as they can go on.
    fn repeated(&self, part: &Part, word: &str, words: &mut Vec<(String, bool)>) {
        let mut at: Option<BTreeSet<usize>> = None;
        for count in 1..14 {
            for name in word.chars() {
                at = Some(self.read(part, at.as_ref(), name));
            }
            let Some(at) = &at else { return };
            words.push((word.repeat(count), at.iter().any(|at| part.last.contains(at))));
            if at.is_empty() {
                return;
            }
        }
    }
}

fn size(model: &Model) -> usize {
    match model {
        Model::Element(_) => 1,
        Model::Sequence(parts) | Model::Choice(parts) => parts.iter().map(|part| size(&part.0)).sum(),
    }
}

fn agree(particle: &Particle) -> Result<(), TestCaseError> {
    let mut oracle = Oracle::default();
    let part = oracle.particle(particle, 0);
    let mut body = String::new();
    write(particle, &mut body);
    let content = format!(
        "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"r\"><xs:complexType>{body}</xs:complexType></xs:element></xs:schema>"
    );
    match SchemaType::Xsd.language().compile(&Definition { content, ..Definition::default() }) {
        Err(error) => {
            let is_ambiguous = oracle.is_ambiguous(&part);
            let is_unclear = error.message.contains("cannot be told apart");
            prop_assert!(is_ambiguous || is_unclear, "{body}: {error}");
            prop_assert!(is_unclear || error.message.contains("is ambiguous"), "{body}: {error}");
        }
        Ok(schema) => {
            prop_assert!(!oracle.is_ambiguous(&part), "{body}: it is ambiguous");
            let mut words = vec![(String::new(), part.nullable)];
            oracle.words(&part, "", &BTreeSet::new(), &mut words);
            for word in ["a", "b", "c", "ab", "aab", "abc", "bc"] {
                oracle.repeated(&part, word, &mut words);
            }
            for (word, is_accepted) in words {
                let children: String = word.chars().map(|name| format!("<{name}/>")).collect();
                let document = format!("<r>{children}</r>");
                let report = schema.validate(Document { bytes: document.as_bytes(), format: Format::Xml });
                prop_assert_eq!(report.is_valid(), is_accepted, "{} {}", body, word);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn validators_agree_with_the_oracle(model in model(), (min, max) in occurs()) {
        // An element is no content by itself.
        let model = match model {
            Model::Element(_) => Model::Sequence(vec![(model, 1, Some(1))]),
            other => other,
        };
        agree(&(model, min, max))?;
    }
}
