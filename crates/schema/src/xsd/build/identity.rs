//! Identity constraints and the XPaths in them.

use std::collections::HashMap;

use super::{Builder, Built, refuse};
use crate::xsd::bounds::XPATH_STEPS;
use crate::xsd::model::{Constraint, ConstraintId, NameId, Path, Role, Test};
use crate::xsd::xml::{ABSENT, NodeId, is_ncname, is_space};

impl Builder<'_> {
    /// Builds all identity constraints, keys before references to them.
    pub(super) fn identity_constraints(&mut self) -> Built<()> {
        let nodes = std::mem::take(&mut self.constraint_nodes);
        let mut known: HashMap<NameId, ConstraintId> = HashMap::new();
        let mut referring = Vec::new();
        for (element, node) in nodes {
            let offset = self.tree.node(node).offset;
            let name = self.global_name(node)?;
            let built = self.constraint(node, name)?;
            let id = self.model.constraints.len();
            if known.insert(name, id).is_some() {
                let why = format!("the identity constraint {} is defined twice", self.model.names.show(name));
                return refuse(why, offset);
            }
            self.model.constraints.push(built);
            if let Some(element) = self.model.elements.get_mut(element) {
                element.constraints.push(id);
            }
            if self.tree.node(node).is("keyref") {
                referring.push((id, node));
            }
        }
        for (id, node) in referring {
            let element = self.tree.node(node);
            let Some((name, offset)) = self.reference(node, "refer")? else {
                return refuse("a keyref needs a refer", element.offset);
            };
            let Some(target) = known.get(&name).copied().filter(|target| self.is_key(*target)) else {
                return refuse(format!("there is no key or unique {}", self.model.names.show(name)), offset);
            };
            let fields = |id: ConstraintId| self.model.constraints.get(id).map_or(0, |one| one.fields.len());
            if fields(id) != fields(target) {
                return refuse("a keyref must have as many fields as what it refers to", element.offset);
            }
            if let Some(one) = self.model.constraints.get_mut(target) {
                one.is_referred = true;
            }
            if let Some(one) = self.model.constraints.get_mut(id) {
                one.role = Role::Keyref(target);
            }
        }
        Ok(())
    }

    fn is_key(&self, id: ConstraintId) -> bool {
        let node = self.model.constraints.get(id);
        node.is_some_and(|one| !matches!(one.role, Role::Keyref(_)))
    }

    fn constraint(&mut self, node: NodeId, name: NameId) -> Built<Constraint> {
        let element = self.tree.node(node);
        let role = match &*element.name {
            "key" => Role::Key,
            "unique" => Role::Unique,
            // What it refers to is known when all are built.
            _ => Role::Keyref(ConstraintId::MAX),
        };
        let mut selector = None;
        let mut fields = Vec::new();
        for child in self.tree.children(node).collect::<Vec<_>>() {
            let is_field = self.tree.node(child).is("field");
            let paths = self.xpath(child, is_field)?;
            if is_field {
                fields.push(paths);
            } else {
                selector = Some(paths);
            }
        }
        match selector {
            Some(selector) if !fields.is_empty() => Ok(Constraint { name, role, selector, fields, is_referred: false }),
            _ => refuse("an identity constraint needs a selector, and fields after it", element.offset),
        }
    }

    fn xpath(&mut self, node: NodeId, is_field: bool) -> Built<Vec<Path>> {
        let element = self.tree.node(node);
        let Some(attr) = element.attribute("xpath") else {
            return refuse(format!("this {} has no xpath", element.name), element.offset);
        };
        let tokens = tokens(&attr.value);
        let wrong = || {
            let kind = if is_field { "field" } else { "selector" };
            let why = format!("{:?} is not an XPath that a {kind} may have, such as .//a/b", attr.value);
            refuse(why, attr.offset)
        };
        let mut paths = Vec::new();
        let mut count = 0;
        for alternative in tokens.split(|token| *token == "|") {
            let Some(path) = self.path(node, alternative, is_field) else { return wrong() };
            count += path.steps.len() + 1;
            paths.push(path);
        }
        if count > XPATH_STEPS {
            return refuse(format!("the XPath has more than {XPATH_STEPS} steps"), attr.offset);
        }
        Ok(paths)
    }

    fn path(&mut self, node: NodeId, tokens: &[&str], is_field: bool) -> Option<Path> {
        let (is_deep, mut rest) = match tokens {
            [".", "//", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let mut path = Path { is_deep, steps: Vec::new(), attribute: None };
        loop {
            let (is_attribute, name) = match rest {
                ["@", ..] => (true, &rest[1..]),
                ["attribute", "::", ..] => (true, &rest[2..]),
                ["child", "::", ..] => (false, &rest[2..]),
                _ => (false, rest),
            };
            let has_axis = name.len() < rest.len();
            let (test, after) = match name {
                [".", after @ ..] if !has_axis => (None, after),
                [prefix, ":", "*", after @ ..] => {
                    let uri = self.tree.resolve(node, prefix).filter(|_| is_ncname(prefix))?;
                    (Some(Test::Space(self.model.names.spaces.intern(uri))), after)
                }
                [prefix, ":", local, after @ ..] => {
                    let uri = self.tree.resolve(node, prefix).filter(|_| is_ncname(prefix) && is_ncname(local))?;
                    let space = self.model.names.spaces.intern(uri);
                    (Some(Test::Name(self.model.names.intern(space, local))), after)
                }
                ["*", after @ ..] => (Some(Test::Any), after),
                [local, after @ ..] if is_ncname(local) => {
                    (Some(Test::Name(self.model.names.intern(ABSENT, local))), after)
                }
                _ => return None,
            };
            if is_attribute {
                path.attribute = test;
                return (is_field && after.is_empty()).then_some(path);
            }
            path.steps.extend(test);
            match after {
                [] => return Some(path),
                ["/", more @ ..] => rest = more,
                _ => return None,
            }
        }
    }
}

/// Splits an XPath into names and symbols.
fn tokens(xpath: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = xpath.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let is_symbol = |c: char| matches!(c, '/' | ':' | '|' | '*' | '@') || is_space(c);
        let length = match rest.as_bytes() {
            [b'/', b'/', ..] | [b':', b':', ..] => 2,
            // A name cannot start with a point.
            [b'.', ..] => 1,
            _ if is_symbol(first) => 1,
            _ => rest.find(is_symbol).unwrap_or(rest.len()),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start_matches(is_space);
    }
    tokens
}
