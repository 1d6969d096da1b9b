//! The schemas within a schema: where they are, which of them are applied to the same value, and what they refer to.
//!
//! Everything a reference leads to is in the document or is a metaschema of a draft; anything else is refused here,
//! before the `jsonschema` crate sees it. The walk is not recursive, and it is bounded by [`super::bounds`].

use std::collections::HashMap;

use referencing::{Registry, Resolver, ResourceRef, uri};
use serde_json::{Map, Value};

use super::bounds::Totals;
use super::dialect::{Dialect, Role};
use super::tree::clip;

/// The URI of schemas that have no `$id`.
const ANONYMOUS: &str = "json-schema:///";

/// Something wrong with a schema, and the JSON pointer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) pointer: String,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}

/// Where a schema is.
#[derive(Debug, Clone)]
enum Place<'v> {
    Root,
    /// In a keyword of another schema, by index or name if the keyword holds several.
    In(usize, &'v str, Option<Segment<'v>>),
    /// Where no keyword holds schemas, but a reference points to.
    At(String),
}

/// Which of several schemas in a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Segment<'v> {
    Index(usize),
    Name(&'v str),
}

/// What a reference leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A schema of the document.
    Schema(usize),
    /// A part of a metaschema.
    Metaschema,
}

/// A schema within a schema.
#[derive(Debug)]
pub(super) struct Schema<'v> {
    pub(super) value: &'v Value,
    place: Place<'v>,
    /// The schemas that are applied to the same value, and whether every one of them has to hold.
    pub(super) same: Vec<(usize, bool)>,
    /// The schemas written in this one, those for the same value included.
    pub(super) nested: Vec<usize>,
    /// By keyword: `$ref`, `$dynamicRef` and `$recursiveRef`, and every schema that they may lead to.
    pub(super) references: Vec<(&'static str, Vec<Target>)>,
    /// The resource that it is part of.
    pub(super) resource: usize,
}

/// All schemas within a schema. The first one is the schema itself.
#[derive(Debug)]
pub(super) struct Graph<'v> {
    pub(super) dialect: Dialect,
    pub(super) schemas: Vec<Schema<'v>>,
    /// How many resources there are: the schema, and each schema in it that has an `$id`.
    pub(super) resources: usize,
    pub(super) totals: Totals,
}

impl<'v> Graph<'v> {
    /// Finds all schemas.
    pub(super) fn build(schema: &'v Value, dialect: Dialect) -> Result<Self, Problem> {
        let resource = ResourceRef::new(schema, dialect.draft());
        let id = resource.id().unwrap_or(ANONYMOUS);
        let base = uri::from_str(id).map_err(|error| Problem::new("/$id", format!("this is no URI: {error}")))?;
        let registry = Registry::new()
            .draft(dialect.draft())
            .retriever(Elsewhere)
            .add(base.as_str(), resource)
            .and_then(referencing::RegistryBuilder::prepare)
            .map_err(|error| Problem::new("", format!("its references cannot be resolved: {error}")))?;
        let mut walk = Walk::new(schema, dialect);
        walk.push(schema, Place::Root, registry.resolver(base))?;
        while let Some((at, resolver)) = walk.open.pop() {
            walk.visit(at, resolver)?;
        }
        walk.resolve_dynamic()?;
        Ok(walk.graph)
    }

    /// The JSON pointer of a schema.
    pub(super) fn pointer(&self, at: usize) -> String {
        let mut steps = Vec::new();
        let mut current = at;
        let mut pointer = loop {
            match &self.schemas[current].place {
                Place::Root => break String::new(),
                Place::At(pointer) => break pointer.clone(),
                Place::In(parent, keyword, segment) => {
                    steps.push((*keyword, *segment));
                    current = *parent;
                }
            }
        };
        for (keyword, segment) in steps.into_iter().rev() {
            push_segment(&mut pointer, keyword);
            match segment {
                None => {}
                Some(Segment::Index(index)) => push_segment(&mut pointer, &index.to_string()),
                Some(Segment::Name(name)) => push_segment(&mut pointer, name),
            }
        }
        pointer
    }

    /// The schema in a keyword of another one.
    pub(super) fn nested(&self, at: usize, keyword: &str) -> Option<usize> {
        self.held(at).find(|(held_in, segment, _)| *held_in == keyword && segment.is_none()).map(|(.., at)| at)
    }

    /// The schemas in a schema, with the keywords that they are in, and the index or name if there are several in one.
    pub(super) fn held(&self, at: usize) -> impl Iterator<Item = (&'v str, Option<Segment<'v>>, usize)> {
        self.schemas[at].nested.iter().filter_map(|nested| match &self.schemas[*nested].place {
            Place::In(_, keyword, segment) => Some((*keyword, *segment, *nested)),
            Place::Root | Place::At(_) => None,
        })
    }
}

/// Adds a name to a JSON pointer.
pub(super) fn push_segment(pointer: &mut String, name: &str) {
    pointer.push('/');
    let mut rest = name;
    // Names may be long, and few have anything to escape.
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'~' | b'/')) {
        pointer.push_str(&rest[..at]);
        pointer.push_str(if rest[at..].starts_with('~') { "~0" } else { "~1" });
        rest = &rest[at + 1..];
    }
    pointer.push_str(rest);
}

/// Answers for every document that is elsewhere, without looking: an empty schema, which is known by not being part of
/// the document. So the reference to it can be told with its position.
struct Elsewhere;

impl referencing::Retrieve for Elsewhere {
    fn retrieve(&self, _: &referencing::Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Value::Object(Map::new()))
    }
}

/// A walk through a schema.
struct Walk<'v, 'r> {
    root: &'v Value,
    graph: Graph<'v>,
    /// Schemas by their addresses.
    known: HashMap<*const Value, usize>,
    /// The pointers of all values, once a reference leads to where no keyword holds schemas.
    pointers: Option<HashMap<*const Value, String>>,
    resources: HashMap<String, usize>,
    open: Vec<(usize, Resolver<'r>)>,
    /// References that may lead to any schema with the same dynamic anchor.
    dynamic: Vec<(usize, usize)>,
}

impl<'v, 'r> Walk<'v, 'r> {
    fn new(root: &'v Value, dialect: Dialect) -> Self {
        let graph = Graph { dialect, schemas: Vec::new(), resources: 0, totals: Totals::default() };
        let (known, resources) = (HashMap::new(), HashMap::new());
        Self { root, graph, known, pointers: None, resources, open: Vec::new(), dynamic: Vec::new() }
    }

    /// Adds a schema that is to be visited.
    fn push(&mut self, value: &'v Value, place: Place<'v>, resolver: Resolver<'r>) -> Result<usize, Problem> {
        let at = self.graph.schemas.len();
        let (same, nested, references) = (Vec::new(), Vec::new(), Vec::new());
        self.graph.schemas.push(Schema { value, place, same, nested, references, resource: 0 });
        self.known.insert(value, at);
        let counted = self.graph.totals.count_schema();
        counted.map_err(|message| Problem::new(self.graph.pointer(at), message))?;
        self.open.push((at, resolver));
        Ok(at)
    }

    fn visit(&mut self, at: usize, resolver: Resolver<'r>) -> Result<(), Problem> {
        let value = self.graph.schemas[at].value;
        let Value::Object(schema) = value else { return Ok(()) };
        let here = ResourceRef::new(value, self.graph.dialect.draft());
        let resolver = resolver.in_subresource(here).map_err(|error| {
            Problem::new(self.graph.pointer(at) + "/$id", format!("this is no URI reference: {error}"))
        })?;
        self.enter_resource(at, schema, &resolver)?;
        let alone = self.graph.dialect.ref_stands_alone() && schema.contains_key("$ref");
        for (keyword, value) in schema {
            if !alone {
                self.visit_keyword(at, keyword, value, &resolver)?;
                let counted = self.graph.totals.count_keyword(keyword, value);
                counted.map_err(|message| Problem::new(self.pointer_of(at, keyword), message))?;
            }
            let known = match (keyword.as_str(), self.graph.dialect) {
                ("$ref", _) => "$ref",
                ("$dynamicRef", Dialect::Draft202012) => "$dynamicRef",
                ("$recursiveRef", Dialect::Draft201909) => "$recursiveRef",
                _ => continue,
            };
            if let Some(reference) = value.as_str() {
                self.refer(at, known, reference, &resolver)?;
            }
        }
        Ok(())
    }

    fn pointer_of(&self, at: usize, keyword: &str) -> String {
        let mut pointer = self.graph.pointer(at);
        push_segment(&mut pointer, keyword);
        pointer
    }

    /// Notes which resource a schema is part of, and that the resource is of the same draft.
    fn enter_resource(
        &mut self,
        at: usize,
        schema: &Map<String, Value>,
        resolver: &Resolver<'r>,
    ) -> Result<(), Problem> {
        if at > 0
            && schema.contains_key("$schema")
            && Dialect::of(self.graph.schemas[at].value) != Ok(self.graph.dialect)
        {
            let message = "a schema within a schema has to be of the same draft";
            return Err(Problem::new(self.pointer_of(at, "$schema"), message));
        }
        let base = resolver.base_uri();
        let next = self.resources.len();
        let resource = *self.resources.entry(base.as_str().to_string()).or_insert(next);
        self.graph.resources = self.resources.len();
        self.graph.schemas[at].resource = resource;
        Ok(())
    }

    fn visit_keyword(
        &mut self,
        at: usize,
        keyword: &'v str,
        value: &'v Value,
        resolver: &Resolver<'r>,
    ) -> Result<(), Problem> {
        let every = !matches!(keyword, "anyOf" | "oneOf" | "not");
        let role = self.graph.dialect.role(keyword);
        match (role, value) {
            (Role::Other, _) => Ok(()),
            (Role::SameList | Role::InnerOrList, Value::Array(list)) => {
                list.iter().enumerate().try_for_each(|(index, value)| {
                    self.nest(at, keyword, Some(Segment::Index(index)), value, role, every, resolver)
                })
            }
            (Role::SameMap | Role::InnerMap | Role::Definitions, Value::Object(map)) => {
                map.iter().filter(|(_, value)| !value.is_array()).try_for_each(|(name, value)| {
                    self.nest(at, keyword, Some(Segment::Name(name)), value, role, every, resolver)
                })
            }
            _ => self.nest(at, keyword, None, value, role, every, resolver),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one call for each shape of keyword")]
    fn nest(
        &mut self,
        at: usize,
        keyword: &'v str,
        segment: Option<Segment<'v>>,
        value: &'v Value,
        role: Role,
        every: bool,
        resolver: &Resolver<'r>,
    ) -> Result<(), Problem> {
        let place = Place::In(at, keyword, segment);
        let nested = match self.known.get(&std::ptr::from_ref(value)) {
            // A reference was here before, when it was not known that a keyword holds this schema.
            Some(known) => {
                self.graph.schemas[*known].place = place;
                *known
            }
            None => self.push(value, place, resolver.clone())?,
        };
        self.graph.schemas[at].nested.push(nested);
        if matches!(role, Role::Same | Role::SameList | Role::SameMap) {
            self.graph.schemas[at].same.push((nested, every));
        }
        Ok(())
    }

    /// Follows a reference.
    fn refer(
        &mut self,
        at: usize,
        keyword: &'static str,
        reference: &str,
        resolver: &Resolver<'r>,
    ) -> Result<(), Problem> {
        let refused = |walk: &Self, message: String| Problem::new(walk.pointer_of(at, keyword), message);
        let counted = self.graph.totals.count_reference();
        counted.map_err(|message| refused(self, message))?;
        let resolved =
            if keyword == "$recursiveRef" { resolver.lookup_recursive_ref() } else { resolver.lookup(reference) };
        let target = match &resolved {
            Ok(resolved) => self.target(resolved.contents(), resolved.resolver())?,
            Err(_) => None,
        };
        let Some(target) = target else {
            let outside = !reference.starts_with('#');
            let why = if outside { "is not in this document: include what it refers to" } else { "leads to nothing" };
            return Err(refused(self, format!("the reference {} {why}", clip(reference, 200))));
        };
        self.graph.schemas[at].references.push((keyword, vec![target]));
        let index = self.graph.schemas[at].references.len() - 1;
        if keyword != "$ref" {
            self.dynamic.push((at, index));
        }
        Ok(())
    }

    /// The schema that a reference resolved to; `None` if it is neither in the document nor of a metaschema.
    fn target(&mut self, contents: &Value, resolver: &Resolver<'r>) -> Result<Option<Target>, Problem> {
        if let Some(known) = self.known.get(&std::ptr::from_ref(contents)) {
            return Ok(Some(Target::Schema(*known)));
        }
        let root = self.root;
        let pointers = self.pointers.get_or_insert_with(|| pointers(root));
        if let Some(pointer) = pointers.get(&std::ptr::from_ref(contents)).cloned() {
            // The same value, borrowed from the document.
            let Some(value) = root.pointer(&pointer) else { return Ok(None) };
            return self.push(value, Place::At(pointer), resolver.clone()).map(|at| Some(Target::Schema(at)));
        }
        let is_metaschema = referencing::SPECIFICATIONS.contains_resource(resolver.base_uri().as_str());
        Ok(is_metaschema.then_some(Target::Metaschema))
    }

    /// Lets dynamic references lead to every schema that they may lead to.
    fn resolve_dynamic(&mut self) -> Result<(), Problem> {
        let mut anchors: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, schema) in self.graph.schemas.iter().enumerate() {
            anchors.entry(anchor(self.graph.dialect, schema.value).unwrap_or_default()).or_default().push(at);
        }
        for (at, index) in std::mem::take(&mut self.dynamic) {
            let Some(Target::Schema(first)) = self.graph.schemas[at].references[index].1.first().copied() else {
                continue;
            };
            let Some(name) = anchor(self.graph.dialect, self.graph.schemas[first].value) else { continue };
            let others = anchors.get(name).into_iter().flatten().filter(|other| **other != first);
            let mut targets = vec![Target::Schema(first)];
            for other in others {
                let counted = self.graph.totals.count_reference();
                counted.map_err(|message| Problem::new(self.graph.pointer(at), message))?;
                targets.push(Target::Schema(*other));
            }
            self.graph.schemas[at].references[index].1 = targets;
        }
        Ok(())
    }
}

/// The name by which dynamic references lead to a schema.
fn anchor(dialect: Dialect, schema: &Value) -> Option<&str> {
    match dialect {
        Dialect::Draft7 => None,
        Dialect::Draft201909 => (schema.get("$recursiveAnchor") == Some(&Value::Bool(true))).then_some("#"),
        Dialect::Draft202012 => schema.get("$dynamicAnchor").and_then(Value::as_str),
    }
}

/// The pointers of all values in a schema.
fn pointers(root: &Value) -> HashMap<*const Value, String> {
    let mut pointers = HashMap::new();
    let mut open = vec![(root, String::new())];
    while let Some((value, pointer)) = open.pop() {
        let join = |name: &str| {
            let mut pointer = pointer.clone();
            push_segment(&mut pointer, name);
            pointer
        };
        match value {
            Value::Object(map) => open.extend(map.iter().map(|(name, value)| (value, join(name)))),
            Value::Array(list) => {
                open.extend(list.iter().enumerate().map(|(index, value)| (value, join(&index.to_string()))))
            }
            _ => {}
        }
        if matches!(value, Value::Object(_) | Value::Bool(_)) {
            pointers.insert(std::ptr::from_ref(value), pointer);
        }
    }
    pointers
}
