//! Content models: which children an element may have, in which order.
//!
//! A model is the tree of its particles. Where a document is in it is one leaf and the counters of the repetitions around
//! that leaf. A step climbs from the leaf until some table of first symbols knows what comes next, and descends to the new
//! leaf: at most one is possible, because ambiguous models are refused ([`unique`]). So maxOccurs="1000000" costs a number.

mod compile;
mod run;
mod unique;

pub(super) use compile::{Compiler, Context, Expanded, ExpandedTerm};
pub(super) use run::{Cursor, Step};

use std::sync::Arc;

use super::model::{ElementId, NameId, Wildcard};
use super::xml::Ns;

/// A compiled content model.
#[derive(Debug)]
pub(super) enum ContentModel {
    Tree(Tree),
    All(All),
}

/// The model of sequences and choices.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The tables of all nodes: first symbols, and the children that they may be the first of. Sorted.
    entries: Vec<(Symbol, u32)>,
    leaves: Vec<Leaf>,
    counters: Vec<Counter>,
    root: u32,
    has_wildcards: bool,
    /// Whether some node is unclear.
    is_ambiguous: bool,
}

#[derive(Debug)]
struct Counter {
    min: u32,
    max: u32,
}

/// No node, or no counter.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    shape: Shape,
    parent: u32,
    /// Which child of its parent it is.
    index: u32,
    /// In a sequence: the first sibling after it that cannot be empty, or how many siblings there are.
    next_required: u32,
    /// The fewest iterations, 0 where one may be empty.
    min: u32,
    max: u32,
    counter: u32,
    /// Whether a document can be in several of its iterations at once, as after `aa` in `(a{1,2}, b?){2}`.
    is_unclear: bool,
    /// Its part of the tables.
    table: (u32, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Leaf(u32),
    Choice { first_child: u32 },
    Sequence { first_child: u32, first_required: u32, len: u32 },
}

/// What a child is compared with.
#[derive(Debug, Clone)]
pub(super) enum Leaf {
    Element(ElementId),
    Wildcard(Arc<Wildcard>),
}

/// What a table is looked up by: a name, a namespace, or one of the open wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Symbol {
    Name(NameId),
    Space(Ns),
    /// Any namespace.
    Any,
    /// Any but the target namespace and none.
    Other,
}

/// The model of `all`.
#[derive(Debug)]
pub(super) struct All {
    elements: Vec<(ElementId, bool)>,
    /// The names of elements and of what may stand for them, sorted, and which element they are.
    names: Vec<(NameId, u32)>,
    may_be_empty: bool,
}

impl ContentModel {
    /// The model of no children at all.
    pub(super) fn nothing() -> Self {
        Self::Tree(Tree { root: NONE, ..Tree::default() })
    }

    /// About how many bytes of memory it occupies.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Tree(tree) => {
                tree.nodes.len() * size_of::<Node>() + tree.entries.len() * 12 + tree.leaves.len() * size_of::<Leaf>()
            }
            Self::All(all) => all.elements.len() * 16 + all.names.len() * 8,
        }
    }

    /// Whether an element without children fits.
    pub(super) fn is_nullable(&self) -> bool {
        match self {
            Self::Tree(tree) => tree.nodes.get(tree.root as usize).is_none_or(|root| root.min == 0),
            Self::All(all) => all.may_be_empty || all.elements.iter().all(|(_, is_required)| !is_required),
        }
    }

    /// Whether it accepts an element without children, and no other.
    pub(super) fn is_only_empty(&self) -> bool {
        let has_leaves = match self {
            Self::Tree(tree) => !tree.leaves.is_empty(),
            Self::All(all) => !all.elements.is_empty(),
        };
        self.is_nullable() && !has_leaves
    }

    /// The wildcards in it.
    pub(super) fn wildcards(&self) -> impl Iterator<Item = &Wildcard> {
        let leaves = match self {
            Self::Tree(tree) => tree.leaves.as_slice(),
            Self::All(_) => &[],
        };
        leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Wildcard(wildcard) => Some(&**wildcard),
            Leaf::Element(_) => None,
        })
    }

    /// The elements that it names.
    pub(super) fn elements(&self) -> Vec<ElementId> {
        match self {
            Self::Tree(tree) => tree
                .leaves
                .iter()
                .filter_map(|leaf| match leaf {
                    Leaf::Element(id) => Some(*id),
                    Leaf::Wildcard(_) => None,
                })
                .collect(),
            Self::All(all) => all.elements.iter().map(|(id, _)| *id).collect(),
        }
    }
}
