//! Follows the children of one element through a content model.

use super::{All, ContentModel, ElementId, Leaf, NONE, Node, Shape, Symbol, Tree};
use crate::xsd::model::{NameId, Names, UNBOUNDED};
use crate::xsd::xml::{ABSENT, Ns};

/// Where a document is in a content model.
#[derive(Debug, Default)]
pub(in crate::xsd) struct Cursor {
    /// The node of the last child, plus 1; 0 before the first child.
    leaf: u32,
    /// The counters of every state that the document may be in, one after the other. For `all`: one bit per element.
    counts: Vec<u32>,
}

/// A way to take a step: the leaf that it leads to, and the innermost node around both leaves.
#[derive(Debug, Clone, Copy)]
struct Move {
    target: u32,
    around: u32,
    /// Whether that node starts another iteration.
    is_again: bool,
}

/// What a child is, as a content model sees it.
#[derive(Debug, Clone, Copy)]
pub(in crate::xsd) struct Step {
    pub(in crate::xsd) name: Option<NameId>,
    pub(in crate::xsd) ns: Ns,
    /// The target namespace of the schema.
    pub(in crate::xsd) target: Ns,
}

impl ContentModel {
    /// Takes a child, and returns what it is compared with; `None` if it is not allowed here, and nothing has changed.
    /// Steps are taken off `work` where the document may be in several states.
    pub(in crate::xsd) fn step(&self, cursor: &mut Cursor, step: Step, work: &mut u64) -> Option<&Leaf> {
        match self {
            Self::Tree(tree) => tree.step(cursor, step, work),
            Self::All(_) => None,
        }
    }

    /// Takes a child in `all`, and returns the element that it is compared with.
    pub(in crate::xsd) fn step_all(&self, cursor: &mut Cursor, step: Step) -> Option<ElementId> {
        match self {
            Self::All(all) => all.step(cursor, step),
            Self::Tree(_) => None,
        }
    }

    /// Whether the content may end here.
    pub(in crate::xsd) fn may_end(&self, cursor: &Cursor) -> bool {
        match self {
            Self::Tree(tree) => tree.may_end(cursor),
            Self::All(all) => all.may_end(cursor),
        }
    }

    /// The names of some elements that may come next, for people.
    pub(in crate::xsd) fn expected(
        &self,
        cursor: &Cursor,
        show: impl Fn(ElementId) -> String,
        names: &Names,
    ) -> String {
        let mut all = Vec::new();
        match self {
            Self::Tree(tree) => tree.expected(cursor, &mut |symbol| match symbol {
                Symbol::Name(name) => all.push(names.show(name)),
                _ => all.push("other elements".into()),
            }),
            Self::All(model) => all.extend(model.absent(cursor).take(50).map(|(id, _)| show(id))),
        }
        all.dedup();
        let more = all.len().saturating_sub(6);
        all.truncate(6);
        if all.is_empty() {
            return "no more elements are expected".into();
        }
        let last = if more == 0 && all.len() > 1 { all.pop() } else { None };
        let mut text = all.join(", ");
        if let Some(last) = last {
            text = format!("{text} or {last}");
        }
        if more > 0 {
            text = format!("{text} or {more} others");
        }
        format!("expected is {text}")
    }

    /// After an error: moves to where a name occurs in the model, wherever that is.
    pub(in crate::xsd) fn recover(&self, cursor: &mut Cursor, step: Step) -> Option<&Leaf> {
        let Self::Tree(tree) = self else { return None };
        let matching = |node: &Node| {
            matches!(node.shape, Shape::Leaf(_)) && step.name.is_some_and(|name| tree.has(node, Symbol::Name(name)))
        };
        let at = tree.nodes.iter().position(matching)?;
        cursor.leaf = u32::try_from(at + 1).ok()?;
        cursor.counts = tree.counters.iter().map(|counter| counter.min.max(1)).collect();
        tree.leaf(u32::try_from(at).ok()?)
    }
}

impl Tree {
    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    fn leaf(&self, at: u32) -> Option<&Leaf> {
        match self.node(at)?.shape {
            Shape::Leaf(leaf) => self.leaves.get(leaf as usize),
            _ => None,
        }
    }

    fn table(&self, node: &Node) -> &[(Symbol, u32)] {
        self.entries.get(node.table.0 as usize..node.table.1 as usize).unwrap_or_default()
    }

    fn has(&self, node: &Node, symbol: Symbol) -> bool {
        let table = self.table(node);
        let at = table.partition_point(|entry| *entry < (symbol, 0));
        table.get(at).is_some_and(|entry| entry.0 == symbol)
    }

    /// The first child from a place on that a step may enter.
    fn child(&self, node: &Node, step: Step, from: u32) -> Option<u32> {
        let table = self.table(node);
        let find = |symbol: Symbol| {
            let at = table.partition_point(|entry| *entry < (symbol, from));
            table.get(at).filter(|entry| entry.0 == symbol).map(|entry| entry.1)
        };
        let named = step.name.and_then(|name| find(Symbol::Name(name)));
        if !self.has_wildcards {
            return named;
        }
        let open = if step.ns != step.target && step.ns != ABSENT { find(Symbol::Other) } else { None };
        [named, find(Symbol::Space(step.ns)), find(Symbol::Any), open].into_iter().flatten().min()
    }

    /// Descends into the body of a node to the leaf that a step enters.
    fn enter(&self, mut at: u32, step: Step) -> Option<u32> {
        loop {
            let node = self.node(at)?;
            let index = self.child(node, step, 0)?;
            at = match node.shape {
                Shape::Leaf(_) => return Some(at),
                Shape::Choice { first_child } => first_child + index,
                Shape::Sequence { first_child, first_required, .. } if index <= first_required => first_child + index,
                Shape::Sequence { .. } => return None,
            };
        }
    }

    fn has_enough(&self, node: &Node, counts: &[u32]) -> bool {
        counts.get(node.counter as usize).is_none_or(|count| *count >= node.min)
    }

    /// Whether there may be one more iteration.
    fn may_repeat(&self, node: &Node, counts: &[u32]) -> bool {
        node.max == UNBOUNDED
            || (node.max > 1 && counts.get(node.counter as usize).is_none_or(|count| *count < node.max))
    }

    /// The ways to take a step from one state. There is more than one only where a repetition is unclear, and all lead to
    /// one leaf.
    fn ways(&self, leaf: u32, counts: &[u32], step: Step, found: &mut dyn FnMut(Move)) {
        let Some(mut at) = leaf.checked_sub(1) else {
            if let Some(target) = self.enter(self.root, step) {
                found(Move { target, around: NONE, is_again: false });
            }
            return;
        };
        let mut has_found = false;
        while let Some(node) = self.node(at) {
            if (!has_found || node.is_unclear)
                && self.may_repeat(node, counts)
                && let Some(target) = self.enter(at, step)
            {
                found(Move { target, around: at, is_again: true });
                has_found = true;
            }
            if (has_found && !self.is_ambiguous) || !self.has_enough(node, counts) {
                return;
            }
            let Some(parent) = self.node(node.parent) else { return };
            if let Shape::Sequence { first_child, len, .. } = parent.shape {
                let next = self.child(parent, step, node.index + 1).filter(|index| *index <= node.next_required);
                if let Some(target) =
                    next.filter(|_| !has_found).and_then(|index| self.enter(first_child + index, step))
                {
                    found(Move { target, around: node.parent, is_again: false });
                    has_found = true;
                }
                if node.next_required < len {
                    return;
                }
            }
            at = node.parent;
        }
    }

    /// Counts what a move leaves, enters and repeats. What is left goes back to 0, so that states differ only in what
    /// still matters.
    fn apply(&self, from: u32, way: Move, counts: &mut [u32]) {
        for (start, count) in [(from.wrapping_sub(1), 0), (way.target, 1)] {
            let mut at = start;
            while let Some(node) = self.node(at).filter(|_| at != way.around) {
                if let Some(slot) = counts.get_mut(node.counter as usize) {
                    *slot = count;
                }
                at = node.parent;
            }
        }
        if let Some(node) = self.node(way.around).filter(|_| way.is_again)
            && let Some(slot) = counts.get_mut(node.counter as usize)
        {
            *slot = if node.max == UNBOUNDED { (*slot + 1).min(node.min) } else { *slot + 1 };
        }
    }

    fn step(&self, cursor: &mut Cursor, step: Step, work: &mut u64) -> Option<&Leaf> {
        let width = self.counters.len();
        if cursor.leaf == 0 {
            cursor.counts = vec![0; width];
        }
        let from = cursor.leaf;
        let mut way = None;
        if self.is_ambiguous {
            let mut next: Vec<u32> = Vec::new();
            for counts in cursor.counts.chunks_exact(width) {
                self.ways(from, counts, step, &mut |one| {
                    way = Some(one);
                    let start = next.len();
                    next.extend_from_slice(counts);
                    let (known, fresh) = next.split_at_mut(start);
                    self.apply(from, one, fresh);
                    *work = work.saturating_sub(known.len() as u64);
                    if known.chunks_exact(width).any(|known| known == fresh) {
                        next.truncate(start);
                    }
                });
            }
            if way.is_some() {
                cursor.counts = next;
            }
        } else {
            self.ways(from, &cursor.counts, step, &mut |one| way = Some(one));
            if let Some(way) = way.filter(|_| width > 0) {
                self.apply(from, way, &mut cursor.counts);
            }
        }
        let target = way?.target;
        cursor.leaf = target + 1;
        self.leaf(target)
    }

    /// Whether a state may be the last one.
    fn ends(&self, leaf: u32, counts: &[u32]) -> bool {
        let mut at = leaf - 1;
        while let Some(node) = self.node(at) {
            if !self.has_enough(node, counts) {
                return false;
            }
            match self.node(node.parent).map(|parent| parent.shape) {
                None => return true,
                Some(Shape::Sequence { len, .. }) if node.next_required < len => return false,
                Some(_) => at = node.parent,
            }
        }
        true
    }

    fn may_end(&self, cursor: &Cursor) -> bool {
        if cursor.leaf == 0 {
            return self.node(self.root).is_none_or(|root| root.min == 0);
        }
        let width = self.counters.len();
        if width == 0 {
            return self.ends(cursor.leaf, &[]);
        }
        cursor.counts.chunks_exact(width).any(|counts| self.ends(cursor.leaf, counts))
    }

    /// Names some symbols that may come next, seen from the first state.
    fn expected(&self, cursor: &Cursor, tell: &mut dyn FnMut(Symbol)) {
        let mut some = |node: &Node, from: u32, to: u32| {
            let entries = self.table(node).iter().filter(|entry| (from..=to).contains(&entry.1));
            entries.take(50).for_each(|entry| tell(entry.0));
        };
        let within = |node: &Node| match node.shape {
            Shape::Sequence { first_required, .. } => first_required,
            _ => NONE,
        };
        let counts = cursor.counts.get(..self.counters.len()).unwrap_or_default();
        let Some(mut at) = cursor.leaf.checked_sub(1) else {
            if let Some(root) = self.node(self.root) {
                some(root, 0, within(root));
            }
            return;
        };
        while let Some(node) = self.node(at) {
            if self.may_repeat(node, counts) {
                some(node, 0, within(node));
            }
            if !self.has_enough(node, counts) {
                return;
            }
            let Some(parent) = self.node(node.parent) else { return };
            if let Shape::Sequence { len, .. } = parent.shape {
                some(parent, node.index + 1, node.next_required);
                if node.next_required < len {
                    return;
                }
            }
            at = node.parent;
        }
    }
}

impl All {
    fn step(&self, cursor: &mut Cursor, step: Step) -> Option<ElementId> {
        let name = step.name?;
        let at = self.names.binary_search_by_key(&name, |entry| entry.0).ok()?;
        let number = self.names.get(at)?.1 as usize;
        cursor.counts.resize(self.elements.len().div_ceil(32), 0);
        let word = cursor.counts.get_mut(number / 32)?;
        let bit = 1 << (number % 32);
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        cursor.leaf = 1;
        self.elements.get(number).map(|(id, _)| *id)
    }

    /// The elements that were not seen yet, and whether they must still come.
    fn absent(&self, cursor: &Cursor) -> impl Iterator<Item = (ElementId, bool)> {
        let seen = |at: usize| cursor.counts.get(at / 32).is_some_and(|word| word >> (at % 32) & 1 == 1);
        self.elements.iter().enumerate().filter(move |(at, _)| !seen(*at)).map(|(_, one)| *one)
    }

    fn may_end(&self, cursor: &Cursor) -> bool {
        (self.may_be_empty && cursor.leaf == 0) || !self.absent(cursor).any(|(_, is_required)| is_required)
    }
}
