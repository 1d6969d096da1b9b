//! The names that a schema knows, as numbers.

use std::collections::HashMap;

use crate::xsd::xml::{ABSENT, Namespaces, Ns};

/// A qualified name as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::xsd) struct NameId(pub(in crate::xsd) u32);

/// All names of a schema.
#[derive(Debug, Default)]
pub(in crate::xsd) struct Names {
    pub(in crate::xsd) spaces: Namespaces,
    /// The names of each namespace.
    numbers: Vec<HashMap<Box<str>, NameId>>,
    names: Vec<(Ns, Box<str>)>,
}

impl Names {
    /// The number of a name, which becomes known by this.
    pub(in crate::xsd) fn intern(&mut self, ns: Ns, local: &str) -> NameId {
        let at = ns.0 as usize;
        if self.numbers.len() <= at {
            self.numbers.resize_with(at + 1, HashMap::new);
        }
        if let Some(known) = self.numbers[at].get(local) {
            return *known;
        }
        let number = NameId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push((ns, local.into()));
        self.numbers[at].insert(local.into(), number);
        number
    }

    /// The number of a name, if the schema knows it.
    pub(in crate::xsd) fn find(&self, ns: Ns, local: &str) -> Option<NameId> {
        self.numbers.get(ns.0 as usize)?.get(local).copied()
    }

    /// The namespace of a name.
    pub(in crate::xsd) fn ns(&self, name: NameId) -> Ns {
        self.names.get(name.0 as usize).map_or(ABSENT, |(ns, _)| *ns)
    }

    /// A name without its namespace.
    pub(in crate::xsd) fn local(&self, name: NameId) -> &str {
        self.names.get(name.0 as usize).map_or("", |(_, local)| local)
    }

    /// A name for people: in quotes, without its namespace, and shortened.
    pub(in crate::xsd) fn show(&self, name: NameId) -> String {
        let local = self.local(name);
        match local.char_indices().nth(80) {
            Some((end, _)) => format!("{:?}…", &local[..end]),
            None => format!("{local:?}"),
        }
    }

    /// About how many bytes of memory the names occupy.
    pub(in crate::xsd) fn size(&self) -> usize {
        self.names.iter().map(|(_, local)| 96 + 2 * local.len()).sum()
    }
}
