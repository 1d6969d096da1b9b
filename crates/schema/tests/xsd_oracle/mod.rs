//! Content models expanded literally into automata: slow and simple, to compare the validator with.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;
use tidegate_schema::{Definition, SchemaError, SchemaType, Validator};

/// The children that documents have: the elements a, b and c, an element that is not declared, and one of each of two other
/// namespaces.
pub(crate) const CHILDREN: [(char, &str); 6] = [
    ('a', "<a/>"),
    ('b', "<b/>"),
    ('c', "<c/>"),
    ('z', "<z/>"),
    ('x', "<n xmlns=\"urn:x\"/>"),
    ('y', "<n xmlns=\"urn:y\"/>"),
];

/// What a child is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaf {
    Element(char),
    /// The wildcards `##any`, `##local`, `##other` and `urn:x`.
    Any,
    Local,
    Other,
    Space,
}

impl Leaf {
    fn matches(self, child: char) -> bool {
        match self {
            Self::Element(name) => name == child,
            Self::Any => true,
            Self::Local => !"xy".contains(child),
            Self::Other => "xy".contains(child),
            Self::Space => child == 'x',
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Model {
    Leaf(Leaf),
    Sequence(Vec<Particle>),
    Choice(Vec<Particle>),
}

/// A model, and how often it occurs.
pub(crate) type Particle = (Model, u32, Option<u32>);

pub(crate) fn occurs() -> impl Strategy<Value = (u32, Option<u32>)> {
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

pub(crate) fn model() -> impl Strategy<Value = Model> {
    let wildcard = prop_oneof![Just(Leaf::Any), Just(Leaf::Local), Just(Leaf::Other), Just(Leaf::Space)];
    let element = prop_oneof![Just('a'), Just('b'), Just('c')].prop_map(Leaf::Element);
    let leaf = prop_oneof![8 => element, 1 => wildcard].prop_map(Model::Leaf);
    leaf.prop_recursive(3, 8, 3, |inner| {
        let part = (inner, occurs()).prop_map(|(model, (min, max))| (model, min, max));
        let part = part.boxed();
        let sequence = prop::collection::vec(part.clone(), 0..4).prop_map(Model::Sequence);
        // A choice of nothing makes what comes after it unreachable, which only the oracle would notice.
        prop_oneof![sequence, prop::collection::vec(part, 1..4).prop_map(Model::Choice)]
    })
}

/// A leaf is no content by itself.
pub(crate) fn content(model: Model) -> Model {
    match model {
        Model::Leaf(_) => Model::Sequence(vec![(model, 1, Some(1))]),
        other => other,
    }
}

pub(crate) fn write((model, min, max): &Particle, out: &mut String) {
    let max = max.map_or_else(|| "unbounded".to_owned(), |max| max.to_string());
    let occurs = format!("minOccurs=\"{min}\" maxOccurs=\"{max}\"");
    let wildcard = |namespace: &str| format!("<xs:any namespace=\"{namespace}\" processContents=\"skip\" {occurs}/>");
    let (name, parts) = match model {
        Model::Leaf(leaf) => {
            *out += &match leaf {
                Leaf::Element(name) => format!("<xs:element name=\"{name}\" type=\"xs:string\" {occurs}/>"),
                Leaf::Any => wildcard("##any"),
                Leaf::Local => wildcard("##local"),
                Leaf::Other => wildcard("##other"),
                Leaf::Space => wildcard("urn:x"),
            };
            return;
        }
        Model::Sequence(parts) => ("sequence", parts),
        Model::Choice(parts) => ("choice", parts),
    };
    *out += &format!("<xs:{name} {occurs}>");
    parts.iter().for_each(|part| write(part, out));
    *out += &format!("</xs:{name}>");
}

pub(crate) fn compile(body: &str) -> Result<Box<dyn Validator>, SchemaError> {
    SchemaType::Xsd.language().compile(&definition(body))
}

pub(crate) fn definition(body: &str) -> Definition {
    let content = format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{body}</xs:schema>");
    Definition { content, ..Definition::default() }
}

/// An automaton without empty moves. The number of a leaf tells it from others; copies of one leaf share it.
#[derive(Default)]
pub(crate) struct Oracle {
    positions: Vec<(Leaf, usize)>,
    follow: Vec<BTreeSet<usize>>,
}

#[derive(Clone, Default)]
pub(crate) struct Part {
    pub(crate) first: BTreeSet<usize>,
    pub(crate) last: BTreeSet<usize>,
    pub(crate) nullable: bool,
}

/// Where a document may be; `None` before the first child.
pub(crate) type State = Option<BTreeSet<usize>>;

impl Oracle {
    pub(crate) fn of(particle: &Particle) -> (Self, Part) {
        let mut oracle = Self::default();
        let part = oracle.particle(particle, 0);
        (oracle, part)
    }

    fn link(&mut self, from: &BTreeSet<usize>, to: &BTreeSet<usize>) {
        for position in from {
            self.follow[*position].extend(to);
        }
    }

    /// Expands one particle; `number` is that of its first leaf.
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
        let mut number = number;
        match model {
            Model::Leaf(leaf) => {
                self.positions.push((*leaf, number));
                self.follow.push(BTreeSet::new());
                let position = BTreeSet::from([self.positions.len() - 1]);
                Part { first: position.clone(), last: position, nullable: false }
            }
            Model::Sequence(parts) => {
                let mut whole = Part { nullable: true, ..Part::default() };
                for part in parts {
                    let next = self.particle(part, number);
                    whole = self.concat(whole, next);
                    number += size(&part.0);
                }
                whole
            }
            Model::Choice(parts) => {
                let mut whole = Part::default();
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

    /// The positions that a child may be.
    pub(crate) fn read(&self, part: &Part, before: &State, child: char) -> BTreeSet<usize> {
        let next = match before {
            None => part.first.clone(),
            Some(before) => before.iter().flat_map(|at| self.follow[*at].iter().copied()).collect(),
        };
        next.into_iter().filter(|at| self.positions[*at].0.matches(child)).collect()
    }

    pub(crate) fn accepts(part: &Part, at: &State) -> bool {
        at.as_ref().map_or(part.nullable, |at| at.iter().any(|position| part.last.contains(position)))
    }

    /// Whether some child may belong to two leaves. An optional copy of what is repeated is the same leaf.
    pub(crate) fn is_ambiguous(&self, part: &Part) -> bool {
        let mut seen: HashSet<State> = HashSet::from([None]);
        let mut queue: Vec<State> = vec![None];
        while let Some(before) = queue.pop() {
            for (child, _) in CHILDREN {
                let taken = self.read(part, &before, child);
                let leaves: BTreeSet<usize> = taken.iter().map(|at| self.positions[*at].1).collect();
                if leaves.len() > 1 {
                    return true;
                }
                if !taken.is_empty() && seen.insert(Some(taken.clone())) {
                    queue.push(Some(taken));
                }
            }
        }
        false
    }
}

fn size(model: &Model) -> usize {
    match model {
        Model::Leaf(_) => 1,
        Model::Sequence(parts) | Model::Choice(parts) => parts.iter().map(|part| size(&part.0)).sum(),
    }
}
