//! Makes content models: expands groups, simplifies repetitions, numbers nodes and leaves, and fills the tables.

use std::collections::HashMap;

use super::unique::{Overlap, Sets};
use super::{All, ContentModel, Counter, Leaf, NONE, Node, Shape, Symbol, Tree};
use crate::xsd::bounds::{ALL_POSITIONS, CONFIGURATIONS, POSITIONS, TABLE_ENTRIES};
use crate::xsd::model::{Allowed, Compositor, Element, ElementId, NameId, Names, Particle, Term, UNBOUNDED};
use crate::xsd::xml::{ABSENT, Ns};

/// The deepest nesting of a content model, with groups expanded.
const NESTING: usize = 200;

/// A particle with all groups expanded.
#[derive(Debug, Clone)]
pub(in crate::xsd) struct Expanded {
    pub(in crate::xsd) min: u32,
    pub(in crate::xsd) max: u32,
    pub(in crate::xsd) offset: usize,
    pub(in crate::xsd) term: ExpandedTerm,
}

/// What an [`Expanded`] consists of.
#[derive(Debug, Clone)]
pub(in crate::xsd) enum ExpandedTerm {
    Leaf(Leaf),
    Group(Compositor, Vec<Expanded>),
}

/// A refusal: what is wrong, and where.
pub(in crate::xsd) type Refused = (String, usize);

/// Expands a particle. `left` is how many particles may still be visited.
fn expand(particle: &Particle, left: &mut usize, depth: usize) -> Result<Expanded, Refused> {
    let refuse = |why: String| Err((why, particle.offset));
    if depth > NESTING {
        return refuse(format!("the content model is nested deeper than {NESTING}, with its groups expanded"));
    }
    let Some(fewer) = left.checked_sub(1) else {
        return refuse(format!("the content model has more than {POSITIONS} particles, with its groups expanded"));
    };
    *left = fewer;
    let (min, max, offset) = (particle.min, particle.max, particle.offset);
    let term = match &particle.term {
        Term::Element(id) => ExpandedTerm::Leaf(Leaf::Element(*id)),
        Term::Wildcard(wildcard) => ExpandedTerm::Leaf(Leaf::Wildcard(wildcard.clone())),
        Term::Group(compositor, particles) => {
            let mut parts = Vec::with_capacity(particles.len());
            for inner in particles.iter() {
                if *compositor != Compositor::All || inner.max == 1 {
                    parts.push(expand(inner, left, depth + 1)?);
                    continue;
                }
                return Err(("an element in \"all\" cannot occur more than once".into(), inner.offset));
            }
            if depth > 0 && *compositor == Compositor::All {
                return refuse("\"all\" must be the whole content of its type".into());
            }
            ExpandedTerm::Group(*compositor, parts)
        }
    };
    Ok(Expanded { min, max, offset, term })
}

/// Takes particles that are alone in a group together with it, where their occurrences are one range.
fn simplify(mut particle: Expanded) -> Expanded {
    let ExpandedTerm::Group(compositor, parts) = particle.term else { return particle };
    let mut parts: Vec<Expanded> = parts.into_iter().map(simplify).collect();
    if let Some(only) = parts.pop_if(|_| compositor != Compositor::All) {
        match merge(particle.min, particle.max, &only).filter(|_| parts.is_empty()) {
            Some((min, max)) => return Expanded { min, max, ..only },
            None => parts.push(only),
        }
    }
    particle.term = ExpandedTerm::Group(compositor, parts);
    particle
}

/// The occurrences of a particle and of one that is alone in it, taken together, if they are one range.
fn merge(min: u32, max: u32, inner: &Expanded) -> Option<(u32, u32)> {
    let times = |one: u32, other: u32| match (one, other) {
        (UNBOUNDED, _) | (_, UNBOUNDED) => UNBOUNDED,
        _ => one.saturating_mul(other).min(UNBOUNDED - 1),
    };
    let (from, to) = (u64::from(inner.min), u64::from(inner.max));
    let has_gaps = min < max
        && if min == 0 {
            from > 1
        } else {
            to != u64::from(UNBOUNDED) && (u64::from(min) + 1) * from > u64::from(min) * to + 1
        };
    (!has_gaps).then(|| (times(min, inner.min), times(max, inner.max)))
}

/// Compiles the content models of one schema within common bounds.
#[derive(Debug)]
pub(in crate::xsd) struct Compiler {
    positions: usize,
    entries: usize,
}

impl Default for Compiler {
    fn default() -> Self {
        Self { positions: ALL_POSITIONS, entries: TABLE_ENTRIES }
    }
}

/// What compiling looks things up in.
#[derive(Debug, Clone, Copy)]
pub(in crate::xsd) struct Context<'m> {
    pub(in crate::xsd) names: &'m Names,
    pub(in crate::xsd) target: Ns,
    pub(in crate::xsd) elements: &'m [Element],
    pub(in crate::xsd) substitutes: &'m HashMap<ElementId, Vec<ElementId>>,
}

impl Context<'_> {
    /// The names of an element and of those that may stand for it.
    fn names_of(&self, id: ElementId) -> impl Iterator<Item = NameId> {
        let others = self.substitutes.get(&id).map_or(&[][..], Vec::as_slice);
        let all = std::iter::once(id).chain(others.iter().copied());
        all.filter_map(|one| self.elements.get(one)).map(|element| element.name)
    }

    fn symbols(&self, leaf: &Leaf) -> Vec<Symbol> {
        match leaf {
            Leaf::Element(id) => self.names_of(*id).map(Symbol::Name).collect(),
            Leaf::Wildcard(wildcard) => match &wildcard.allowed {
                Allowed::Any => vec![Symbol::Any],
                Allowed::Not(_) => vec![Symbol::Other],
                Allowed::Only(list) => list.iter().copied().map(Symbol::Space).collect(),
            },
        }
    }

    /// Whether an open wildcard lets a namespace in that is not the target namespace.
    pub(super) fn is_foreign(&self, ns: Ns) -> bool {
        ns != self.target && ns != ABSENT
    }

    pub(super) fn ns(&self, name: NameId) -> Ns {
        self.names.ns(name)
    }

    pub(super) fn show(&self, leaf: &Leaf) -> String {
        match leaf {
            Leaf::Element(id) => {
                self.elements.get(*id).map_or_else(String::new, |one| format!("element {}", self.names.show(one.name)))
            }
            Leaf::Wildcard(_) => "wildcard".into(),
        }
    }
}

impl Compiler {
    /// Expands and compiles the content of a type.
    pub(in crate::xsd) fn compile(
        &mut self,
        particle: &Particle,
        context: Context<'_>,
    ) -> Result<(ContentModel, Expanded), Refused> {
        let mut left = POSITIONS.min(self.positions);
        let before = left;
        let expanded = expand(particle, &mut left, 0)?;
        self.positions -= before - left;
        let model = match &expanded.term {
            ExpandedTerm::Group(Compositor::All, parts) => self.all(&expanded, parts, context)?,
            _ => self.tree(&simplify(expanded.clone()), context)?,
        };
        Ok((model, expanded))
    }

    fn all(&mut self, whole: &Expanded, parts: &[Expanded], context: Context<'_>) -> Result<ContentModel, Refused> {
        let mut elements = Vec::new();
        let mut names: Vec<(NameId, u32)> = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let ExpandedTerm::Leaf(Leaf::Element(id)) = &part.term else {
                return Err(("\"all\" can contain only elements".into(), part.offset));
            };
            elements.push((*id, part.min > 0));
            names.extend(context.names_of(*id).map(|name| (name, u32::try_from(at).unwrap_or(NONE))));
            self.spend(names.len().min(1), part.offset)?;
        }
        names.sort_unstable();
        self.spend(names.len(), whole.offset)?;
        if let Some([(name, _), (_, at)]) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let offset = parts.get(*at as usize).map_or(whole.offset, |part| part.offset);
            return Err((super::unique::ambiguous(&format!("element {}", context.names.show(*name))), offset));
        }
        Ok(ContentModel::All(All { elements, names, may_be_empty: whole.min == 0 }))
    }

    fn tree(&mut self, whole: &Expanded, context: Context<'_>) -> Result<ContentModel, Refused> {
        let mut building = Building { tree: Tree::default(), context, compiler: self, offsets: Vec::new() };
        let root = building.reserve();
        let sets = building.node(whole, root, NONE, 0)?;
        drop(sets);
        let mut tree = building.tree;
        tree.root = root;
        Ok(ContentModel::Tree(tree))
    }

    pub(super) fn spend(&mut self, entries: usize, offset: usize) -> Result<(), Refused> {
        match self.entries.checked_sub(entries) {
            Some(left) => {
                self.entries = left;
                Ok(())
            }
            None => Err(("the content models of this schema are too large, with their groups expanded".into(), offset)),
        }
    }
}

struct Building<'c, 'm> {
    tree: Tree,
    context: Context<'m>,
    compiler: &'c mut Compiler,
    /// Where each leaf is written.
    offsets: Vec<usize>,
}

fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(NONE)
}

impl Building<'_, '_> {
    fn reserve(&mut self) -> u32 {
        self.tree.nodes.push(Node {
            shape: Shape::Choice { first_child: 0 },
            parent: NONE,
            index: 0,
            next_required: 0,
            min: 0,
            max: 0,
            counter: NONE,
            is_unclear: false,
            table: (0, 0),
        });
        number(self.tree.nodes.len() - 1)
    }

    /// Builds a node in its reserved place, and returns what it may start with and go on with.
    fn node(&mut self, part: &Expanded, at: u32, parent: u32, index: u32) -> Result<Sets, Refused> {
        let mut entries = Vec::new();
        let first_counter = self.tree.counters.len();
        let (shape, mut sets) = match &part.term {
            ExpandedTerm::Leaf(leaf) => {
                let number_of_leaf = number(self.tree.leaves.len());
                self.tree.leaves.push(leaf.clone());
                self.offsets.push(part.offset);
                self.tree.has_wildcards |= matches!(leaf, Leaf::Wildcard(_));
                let symbols = self.context.symbols(leaf);
                self.compiler.spend(symbols.len(), part.offset)?;
                let sets = Sets::of(&symbols, number_of_leaf, self.context);
                entries.extend(symbols.into_iter().map(|symbol| (symbol, 0)));
                (Shape::Leaf(number_of_leaf), sets)
            }
            ExpandedTerm::Group(compositor, parts) => {
                let first_child = number(self.tree.nodes.len());
                for _ in parts {
                    self.reserve();
                }
                let mut all = Vec::with_capacity(parts.len());
                for (child, part) in parts.iter().enumerate() {
                    let sets = self.node(part, first_child + number(child), at, number(child))?;
                    entries.extend(sets.first_symbols().map(|symbol| (symbol, number(child))));
                    self.compiler.spend(sets.len(), part.offset)?;
                    all.push(sets);
                }
                if *compositor == Compositor::Choice {
                    (Shape::Choice { first_child }, self.check(Sets::choice(all, self.context))?)
                } else {
                    let len = number(parts.len());
                    let first_required = self.required(first_child, len);
                    let shape = Shape::Sequence { first_child, first_required, len };
                    (shape, self.check(Sets::sequence(all, self.context))?)
                }
            }
        };
        entries.sort_unstable();
        self.compiler.spend(entries.len(), part.offset)?;
        let start = number(self.tree.entries.len());
        self.tree.entries.extend(entries);
        let min = if sets.is_nullable { 0 } else { part.min };
        let goes_on_alike = if part.max > 1 {
            let repeated = sets.repeat(min < part.max, self.context);
            self.check(repeated)?
        } else {
            false
        };
        sets.is_nullable = min == 0;
        let is_counted = min > 1 || (part.max > 1 && part.max != UNBOUNDED);
        let counter = if is_counted {
            self.tree.counters.push(Counter { min, max: part.max });
            number(self.tree.counters.len() - 1)
        } else {
            NONE
        };
        let is_unclear = goes_on_alike && self.unclear(first_counter, min, part.offset)?;
        let table = (start, number(self.tree.entries.len()));
        let next_required = 0;
        if let Some(node) = self.tree.nodes.get_mut(at as usize) {
            *node = Node { shape, parent, index, next_required, min, max: part.max, counter, is_unclear, table };
        }
        Ok(sets)
    }

    /// Whether a repetition whose iterations may go on where they also start must be followed in several states at once.
    /// It need not be where fewer iterations are as good as more: nothing in it occurs at least twice.
    fn unclear(&mut self, first_counter: usize, min: u32, offset: usize) -> Result<bool, Refused> {
        let counters = self.tree.counters.get(first_counter..).unwrap_or_default();
        if min < 2 && counters.iter().all(|counter| counter.min < 2) {
            return Ok(false);
        }
        let states = counters.iter().try_fold(1_u64, |product, counter| {
            let states = if counter.max == UNBOUNDED { counter.min } else { counter.max };
            product.checked_mul(u64::from(states))
        });
        if states.is_none_or(|states| states > CONFIGURATIONS) {
            let why = "the content model repeats something whose repetitions cannot be told apart, such as (a+, b?){2,100}: \
                       write it with one repetition, or with smaller numbers";
            return Err((why.into(), offset));
        }
        self.tree.is_ambiguous = true;
        Ok(true)
    }

    /// Fills in, for each child of a sequence, which sibling after it is the first that cannot be empty.
    fn required(&mut self, first_child: u32, len: u32) -> u32 {
        let mut next = len;
        for child in (0..len).rev() {
            if let Some(node) = self.tree.nodes.get_mut((first_child + child) as usize) {
                node.next_required = next;
                if node.min > 0 {
                    next = child;
                }
            }
        }
        next
    }

    fn check<T>(&self, result: Result<T, Overlap>) -> Result<T, Refused> {
        result.map_err(|Overlap { leaf, is_sure }| {
            let offset = self.offsets.get(leaf as usize).copied().unwrap_or(0);
            if !is_sure {
                let why = "the content model repeats something whose repetitions cannot be told apart, and goes on with what \
                           they may also start with, such as (a+ | b){2}, b: write it with one repetition";
                return (why.into(), offset);
            }
            let what = self.tree.leaves.get(leaf as usize).map_or_else(String::new, |leaf| self.context.show(leaf));
            (super::unique::ambiguous(&what), offset)
        })
    }
}
