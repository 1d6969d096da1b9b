//! A schema's elements as a tree that keeps where everything was written.

use super::reader::{Event, Malformed, Reader};
use super::scope::{ABSENT, Namespaces, Ns, XS};

/// The number of an element of a [`Tree`].
pub(in crate::xsd) type NodeId = usize;

/// An attribute of a [`Node`].
#[derive(Debug)]
pub(in crate::xsd) struct Attr {
    pub(in crate::xsd) ns: Ns,
    pub(in crate::xsd) name: Box<str>,
    pub(in crate::xsd) value: Box<str>,
    pub(in crate::xsd) offset: usize,
}

/// An element.
#[derive(Debug)]
pub(in crate::xsd) struct Node {
    /// The namespace of its name.
    pub(in crate::xsd) ns: Ns,
    /// Its name without the prefix.
    pub(in crate::xsd) name: Box<str>,
    /// Its attributes.
    pub(in crate::xsd) attributes: Vec<Attr>,
    /// Its children. Those of `appinfo` and `documentation` are left out.
    pub(in crate::xsd) children: Vec<NodeId>,
    /// Where its text starts, if it has more text than white space.
    pub(in crate::xsd) text: Option<usize>,
    /// Where it starts.
    pub(in crate::xsd) offset: usize,
    scope: Option<usize>,
}

#[derive(Debug)]
struct Binding {
    prefix: Box<str>,
    uri: Box<str>,
    outer: Option<usize>,
}

/// All elements of a schema; the first is the root.
#[derive(Debug, Default)]
pub(in crate::xsd) struct Tree {
    nodes: Vec<Node>,
    bindings: Vec<Binding>,
}

impl Node {
    /// The value of an attribute without a namespace.
    pub(in crate::xsd) fn get(&self, name: &str) -> Option<&str> {
        self.attribute(name).map(|attr| attr.value.as_ref())
    }

    /// An attribute without a namespace.
    pub(in crate::xsd) fn attribute(&self, name: &str) -> Option<&Attr> {
        self.attributes.iter().find(|attr| attr.ns == ABSENT && *attr.name == *name)
    }

    /// Whether it is this element of XML Schema.
    pub(in crate::xsd) fn is(&self, name: &str) -> bool {
        self.ns == XS && *self.name == *name
    }
}

impl Tree {
    /// Reads a text.
    pub(in crate::xsd) fn read(text: &str) -> Result<Self, Malformed> {
        let known = Namespaces::default();
        let mut reader = Reader::new(text, &known)?;
        let mut tree = Self::default();
        let mut open: Vec<NodeId> = Vec::new();
        // How many elements are open within an `appinfo` or `documentation`.
        let mut skipped = 0_usize;
        loop {
            let offset = reader.offset();
            match reader.next()? {
                Event::Start(_) if skipped > 0 => skipped += 1,
                Event::Start(tag) => {
                    let outer = open.last().and_then(|parent| tree.nodes.get(*parent)).and_then(|node| node.scope);
                    let scope = tree.bind(reader.declared(), outer);
                    let attributes = reader.attributes().iter().map(|one| Attr {
                        ns: one.ns,
                        name: one.local.into(),
                        value: one.value.as_ref().into(),
                        offset: one.offset,
                    });
                    let id = tree.nodes.len();
                    tree.nodes.push(Node {
                        ns: tag.ns,
                        name: tag.local.into(),
                        attributes: attributes.collect(),
                        children: Vec::new(),
                        text: None,
                        offset: tag.offset,
                        scope,
                    });
                    if let Some(parent) = open.last().and_then(|parent| tree.nodes.get_mut(*parent)) {
                        parent.children.push(id);
                    }
                    if tag.ns == XS && matches!(tag.local, "appinfo" | "documentation") {
                        skipped = 1;
                    } else {
                        open.push(id);
                    }
                }
                Event::End if skipped > 0 => skipped -= 1,
                Event::End => {
                    open.pop();
                }
                Event::Text(text) if skipped == 0 && !text.trim_ascii().is_empty() => {
                    if let Some(node) = open.last().and_then(|node| tree.nodes.get_mut(*node)) {
                        node.text.get_or_insert(offset);
                    }
                }
                Event::Text(_) => {}
                Event::Done => return Ok(tree),
            }
        }
    }

    fn bind<'s>(&mut self, declared: impl Iterator<Item = (&'s str, &'s str)>, outer: Option<usize>) -> Option<usize> {
        let mut scope = outer;
        for (prefix, uri) in declared {
            self.bindings.push(Binding { prefix: prefix.into(), uri: uri.into(), outer: scope });
            scope = Some(self.bindings.len() - 1);
        }
        scope
    }

    /// How many elements there are.
    pub(in crate::xsd) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// An element. There is one for every number that this tree gave out.
    pub(in crate::xsd) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// The children of an element, without annotations.
    pub(in crate::xsd) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        self.nodes[id].children.iter().copied().filter(|child| !self.nodes[*child].is("annotation"))
    }

    /// The first child of a name.
    pub(in crate::xsd) fn child(&self, id: NodeId, name: &str) -> Option<NodeId> {
        self.nodes[id].children.iter().copied().find(|child| self.nodes[*child].is(name))
    }

    /// The namespace of a prefix at an element; `None` where it is not declared.
    pub(in crate::xsd) fn resolve(&self, id: NodeId, prefix: &str) -> Option<&str> {
        let mut scope = self.nodes[id].scope;
        while let Some(binding) = scope.and_then(|at| self.bindings.get(at)) {
            if *binding.prefix == *prefix {
                return Some(&binding.uri);
            }
            scope = binding.outer;
        }
        match prefix {
            "" => Some(""),
            "xml" => Some(super::XML_URI),
            _ => None,
        }
    }
}
