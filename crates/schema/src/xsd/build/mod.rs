//! Builds the components of a schema from its text, and refuses what is not a valid schema or not supported.
//!
//! The order: the grammar of the elements ([`grammar`]), the names of global components, cycles and the order of
//! dependency ([`order`]), then the components in that order, and then the checks that need all of them.

mod attributes;
mod builtin;
mod complex;
mod derive;
mod elements;
mod facets;
mod grammar;
mod identity;
mod order;
mod particles;
mod read;
mod restrict;
mod simple;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::bounds::{ATTRIBUTES, CHECKS, PATTERNS, WORK};
use super::content::{ContentModel, Expanded};
use super::model::{
    ANY_TYPE, ElementId, Model, NameId, Names, Particle, Term, Type, TypeId, Use, Wildcard, derivation,
};
use super::regex::Patterns;
use super::xml::{ABSENT, Malformed, NodeId, Ns, Tree, XML, XS_URI, XSI_URI};
use crate::error::{Position, SchemaError};

/// A schema that is refused: why, and where.
#[derive(Debug)]
pub(super) struct Refusal {
    message: String,
    offset: usize,
}

type Built<T> = Result<T, Refusal>;

fn refuse<T>(message: impl Into<String>, offset: usize) -> Built<T> {
    Err(Refusal { message: message.into(), offset })
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self { message: format!("the schema is not well-formed XML: {}", malformed.message), offset: malformed.offset }
    }
}

impl From<(String, usize)> for Refusal {
    fn from((message, offset): (String, usize)) -> Self {
        Self { message, offset }
    }
}

/// Builds a schema.
pub(super) fn build(text: &str) -> Result<Model, SchemaError> {
    let built = Tree::read(text).map_err(Refusal::from).and_then(|tree| {
        grammar::check(&tree)?;
        Builder::new(&tree)?.build()
    });
    built.map_err(|refusal| {
        // Names are as long as they are.
        let message = match refusal.message.char_indices().nth(MESSAGE) {
            Some((end, _)) => format!("{}…", &refusal.message[..end]),
            None => refusal.message,
        };
        SchemaError::at(message, Position::of(text, refusal.offset))
    })
}

/// The longest message, in characters.
const MESSAGE: usize = 500;

/// The attributes of a group of them.
#[derive(Debug, Clone, Default)]
struct Attributes {
    uses: Vec<Use>,
    /// The names that a restriction takes away.
    prohibited: Vec<NameId>,
    wildcard: Option<Wildcard>,
}

struct Builder<'t> {
    tree: &'t Tree,
    model: Model,
    block_default: u8,
    final_default: u8,
    /// Whether the namespace of `xml:lang` is imported.
    has_xml: bool,
    /// The elements of global types, groups and attribute groups.
    type_nodes: HashMap<NameId, NodeId>,
    group_nodes: HashMap<NameId, NodeId>,
    attribute_group_nodes: HashMap<NameId, NodeId>,
    types: HashMap<NodeId, TypeId>,
    /// The types that are complex, also before they are built.
    complex: HashSet<TypeId>,
    groups: HashMap<NameId, Term>,
    attribute_groups: HashMap<NameId, Attributes>,
    /// Elements whose default or fixed value is still to be checked.
    element_values: Vec<(ElementId, NodeId)>,
    /// Elements without a type of their own.
    untyped: Vec<ElementId>,
    /// The identity constraints of elements.
    constraint_nodes: Vec<(ElementId, NodeId)>,
    /// The content models of complex types with their groups expanded.
    expanded: HashMap<TypeId, Arc<Expanded>>,
    /// Where the content of complex types will be once all elements are known.
    pending: Arc<ContentModel>,
    patterns: Patterns,
    /// What is left of the bounds.
    work: u64,
    inherited_patterns: usize,
    inherited_attributes: usize,
    checks: usize,
}

impl<'t> Builder<'t> {
    fn new(tree: &'t Tree) -> Built<Self> {
        let mut names = Names::default();
        let root = tree.node(0);
        let target = match root.attribute("targetNamespace") {
            Some(attr) if attr.value.trim_ascii().is_empty() => {
                return refuse("targetNamespace cannot be empty: leave it out", attr.offset);
            }
            Some(attr) if [XS_URI, XSI_URI].contains(&attr.value.trim_ascii()) => {
                return refuse("targetNamespace cannot be a namespace of XML Schema itself", attr.offset);
            }
            Some(attr) => names.spaces.intern(attr.value.trim_ascii()),
            None => ABSENT,
        };
        let model = Model {
            names,
            target,
            is_element_qualified: false,
            is_attribute_qualified: false,
            elements: Vec::new(),
            globals: HashMap::new(),
            attributes: Vec::new(),
            global_attributes: HashMap::new(),
            types: Vec::new(),
            global_types: HashMap::new(),
            constraints: Vec::new(),
            substitutes: HashMap::new(),
        };
        let mut builder = Self {
            tree,
            model,
            block_default: 0,
            final_default: 0,
            has_xml: false,
            type_nodes: HashMap::new(),
            group_nodes: HashMap::new(),
            attribute_group_nodes: HashMap::new(),
            types: HashMap::new(),
            complex: HashSet::from([ANY_TYPE]),
            groups: HashMap::new(),
            attribute_groups: HashMap::new(),
            element_values: Vec::new(),
            untyped: Vec::new(),
            constraint_nodes: Vec::new(),
            expanded: HashMap::new(),
            pending: Arc::new(ContentModel::nothing()),
            patterns: Patterns::default(),
            work: WORK,
            inherited_patterns: PATTERNS,
            inherited_attributes: ATTRIBUTES,
            checks: CHECKS,
        };
        builder.model.is_element_qualified = builder.form(0, "elementFormDefault")?.unwrap_or(false);
        builder.model.is_attribute_qualified = builder.form(0, "attributeFormDefault")?.unwrap_or(false);
        builder.block_default = builder.derivations(0, "blockDefault", read::BLOCK_ELEMENT)?.unwrap_or(0);
        builder.final_default = builder.derivations(0, "finalDefault", read::FINAL_ANY)?.unwrap_or(0);
        builtin::add(&mut builder.model, &builder.pending);
        Ok(builder)
    }

    fn build(mut self) -> Built<Model> {
        self.register()?;
        let order = order::order(&self)?;
        let (simple, others): (Vec<NodeId>, Vec<NodeId>) =
            order.into_iter().partition(|node| self.tree.node(*node).is("simpleType"));
        for node in simple {
            self.simple_type(node)?;
        }
        self.global_attributes()?;
        self.global_elements()?;
        for node in others {
            match &*self.tree.node(node).name {
                "attributeGroup" => self.attribute_group(node)?,
                "group" => self.group(node)?,
                _ => self.complex_type(node)?,
            }
        }
        self.heads()?;
        self.substitutes()?;
        self.contents()?;
        self.element_defaults()?;
        self.identity_constraints()?;
        self.check_derivations()?;
        Ok(self.model)
    }

    /// Registers the names of global components, and gives every type a number.
    fn register(&mut self) -> Built<()> {
        for child in self.tree.children(0).collect::<Vec<_>>() {
            let node = self.tree.node(child);
            let kind: &str = &node.name;
            if kind == "import" {
                if self.model.target == XML {
                    return refuse("a schema cannot import its own target namespace", node.offset);
                }
                if !std::mem::replace(&mut self.has_xml, true) {
                    self.xml_attributes();
                }
                continue;
            }
            let name = self.global_name(child)?;
            let map = match kind {
                "simpleType" | "complexType" => &mut self.type_nodes,
                "group" => &mut self.group_nodes,
                "attributeGroup" => &mut self.attribute_group_nodes,
                // Elements and attributes are found in the model.
                _ => continue,
            };
            if map.insert(name, child).is_some() {
                return refuse(format!("{} is defined twice", self.model.names.show(name)), node.offset);
            }
        }
        for id in 0..self.tree.len() {
            let node = self.tree.node(id);
            if node.is("simpleType") || node.is("complexType") {
                let number = self.model.types.len();
                self.model.types.push(builtin::placeholder());
                self.types.insert(id, number);
                if node.is("complexType") {
                    self.complex.insert(number);
                }
            }
        }
        for (name, node) in &self.type_nodes {
            if let Some(id) = self.types.get(node) {
                self.model.global_types.insert(*name, *id);
            }
        }
        Ok(())
    }

    /// The name of a global component.
    fn global_name(&mut self, node: NodeId) -> Built<NameId> {
        let local = self.required_name(node)?;
        Ok(self.model.names.intern(self.model.target, local))
    }

    fn set_type(&mut self, node: NodeId, built: Type) {
        if let Some(slot) = self.types.get(&node).and_then(|id| self.model.types.get_mut(*id)) {
            *slot = built;
        }
    }

    /// Whether a type is complex, also before it is built.
    fn is_complex(&self, id: TypeId) -> bool {
        self.complex.contains(&id)
    }

    /// The type that a node of a type was given.
    fn type_of(&self, node: NodeId) -> TypeId {
        self.types.get(&node).copied().unwrap_or(ANY_TYPE)
    }
}

/// A particle that occurs once.
fn once(term: Term, offset: usize) -> Particle {
    Particle { min: 1, max: 1, term, offset }
}

const EXTENSION: u8 = derivation::EXTENSION;
const RESTRICTION: u8 = derivation::RESTRICTION;

/// The namespace of a local element or attribute.
fn local_space(is_qualified: bool, target: Ns) -> Ns {
    if is_qualified { target } else { ABSENT }
}
