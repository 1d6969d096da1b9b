//! The grammar of schemas: which elements and attributes of XML Schema may stand where. What is not supported is refused
//! here, and so is what is not known: nothing that is written is passed over.

use std::collections::HashSet;

use super::{Built, refuse};
use crate::xsd::xml::{ABSENT, Node, NodeId, Tree, VERSIONING, XML_URI, XS, XS_URI, is_ncname};

/// Elements that may follow each other in one place, and how many of them.
struct Slot(&'static [&'static str], usize);

const ONE: usize = 1;
const MANY: usize = usize::MAX;

const ANNOTATION: Slot = Slot(&["annotation"], ONE);
const ATTRIBUTES: Slot = Slot(&["attribute", "attributeGroup"], MANY);
const ANY_ATTRIBUTE: Slot = Slot(&["anyAttribute"], ONE);
const GROUP: Slot = Slot(&["group", "all", "choice", "sequence"], ONE);
const SIMPLE: Slot = Slot(&["simpleType"], ONE);
const FACETS: Slot = Slot(
    &[
        "minExclusive",
        "minInclusive",
        "maxExclusive",
        "maxInclusive",
        "totalDigits",
        "fractionDigits",
        "length",
        "minLength",
        "maxLength",
        "enumeration",
        "whiteSpace",
        "pattern",
    ],
    MANY,
);

struct Rule {
    attributes: &'static [&'static str],
    children: &'static [Slot],
}

const fn rule(attributes: &'static [&'static str], children: &'static [Slot]) -> Option<Rule> {
    Some(Rule { attributes, children })
}

/// The rule of an element within its parent, or `None` where there is no such element.
fn rule_of(name: &str, parent: &str, has_ref: bool) -> Option<Rule> {
    let is_global = parent == "schema";
    match name {
        "annotation" => rule(&["id"], &[Slot(&["appinfo", "documentation"], MANY)]),
        "appinfo" => rule(&["source"], &[]),
        "documentation" => rule(&["source"], &[]),
        "import" => rule(&["namespace", "schemaLocation", "id"], &[ANNOTATION]),
        "element" | "attribute" | "complexType" | "simpleType" | "group" | "attributeGroup" => {
            declaration(name, is_global, has_ref)
        }
        "all" => rule(&["id", "minOccurs", "maxOccurs"], &[ANNOTATION, Slot(&["element"], MANY)]),
        "choice" | "sequence" => rule(
            &["id", "minOccurs", "maxOccurs"],
            &[ANNOTATION, Slot(&["element", "group", "choice", "sequence", "any"], MANY)],
        ),
        "any" => rule(&["id", "minOccurs", "maxOccurs", "namespace", "processContents"], &[ANNOTATION]),
        "anyAttribute" => rule(&["id", "namespace", "processContents"], &[ANNOTATION]),
        "simpleContent" => rule(&["id"], &[ANNOTATION, Slot(&["restriction", "extension"], ONE)]),
        "complexContent" => rule(&["id", "mixed"], &[ANNOTATION, Slot(&["restriction", "extension"], ONE)]),
        "extension" if parent == "simpleContent" => rule(&["id", "base"], &[ANNOTATION, ATTRIBUTES, ANY_ATTRIBUTE]),
        "extension" => rule(&["id", "base"], &[ANNOTATION, GROUP, ATTRIBUTES, ANY_ATTRIBUTE]),
        "restriction" => match parent {
            "simpleType" => rule(&["id", "base"], &[ANNOTATION, SIMPLE, FACETS]),
            "simpleContent" => rule(&["id", "base"], &[ANNOTATION, SIMPLE, FACETS, ATTRIBUTES, ANY_ATTRIBUTE]),
            _ => rule(&["id", "base"], &[ANNOTATION, GROUP, ATTRIBUTES, ANY_ATTRIBUTE]),
        },
        "list" => rule(&["id", "itemType"], &[ANNOTATION, SIMPLE]),
        "union" => rule(&["id", "memberTypes"], &[ANNOTATION, Slot(&["simpleType"], MANY)]),
        "unique" | "key" => rule(&["id", "name"], &[ANNOTATION, Slot(&["selector"], ONE), Slot(&["field"], MANY)]),
        "keyref" => rule(&["id", "name", "refer"], &[ANNOTATION, Slot(&["selector"], ONE), Slot(&["field"], MANY)]),
        "selector" | "field" => rule(&["id", "xpath"], &[ANNOTATION]),
        "enumeration" | "pattern" => rule(&["id", "value"], &[ANNOTATION]),
        facet if FACETS.0.contains(&facet) => rule(&["id", "value", "fixed"], &[ANNOTATION]),
        _ => None,
    }
}

const TYPE_CHILDREN: &[Slot] = &[ANNOTATION, GROUP, ATTRIBUTES, ANY_ATTRIBUTE];

fn declaration(name: &str, is_global: bool, has_ref: bool) -> Option<Rule> {
    const CONSTRAINTS: Slot = Slot(&["unique", "key", "keyref"], MANY);
    const TYPE: Slot = Slot(&["simpleType", "complexType"], ONE);
    match name {
        "element" if is_global => rule(
            &["id", "name", "type", "substitutionGroup", "default", "fixed", "nillable", "abstract", "final", "block"],
            &[ANNOTATION, TYPE, CONSTRAINTS],
        ),
        "element" if has_ref => rule(&["id", "ref", "minOccurs", "maxOccurs"], &[ANNOTATION]),
        "element" => rule(
            &["id", "name", "type", "minOccurs", "maxOccurs", "default", "fixed", "nillable", "block", "form"],
            &[ANNOTATION, TYPE, CONSTRAINTS],
        ),
        "attribute" if is_global => rule(&["id", "name", "type", "default", "fixed"], &[ANNOTATION, SIMPLE]),
        "attribute" if has_ref => rule(&["id", "ref", "use", "default", "fixed"], &[ANNOTATION]),
        "attribute" => rule(&["id", "name", "type", "use", "default", "fixed", "form"], &[ANNOTATION, SIMPLE]),
        "complexType" if is_global => rule(&["id", "name", "mixed", "abstract", "final", "block"], TYPE_CHILDREN),
        "complexType" => rule(&["id", "mixed"], TYPE_CHILDREN),
        "simpleType" => {
            const VARIETY: Slot = Slot(&["restriction", "list", "union"], ONE);
            if is_global {
                rule(&["id", "name", "final"], &[ANNOTATION, VARIETY])
            } else {
                rule(&["id"], &[ANNOTATION, VARIETY])
            }
        }
        "group" if is_global => rule(&["id", "name"], &[ANNOTATION, Slot(&["all", "choice", "sequence"], ONE)]),
        "group" => rule(&["id", "ref", "minOccurs", "maxOccurs"], &[ANNOTATION]),
        "attributeGroup" if is_global => rule(&["id", "name"], &[ANNOTATION, ATTRIBUTES, ANY_ATTRIBUTE]),
        "attributeGroup" => rule(&["id", "ref"], &[ANNOTATION]),
        _ => None,
    }
}

/// Checks all of a schema.
pub(super) fn check(tree: &Tree) -> Built<()> {
    let root = tree.node(0);
    if !root.is("schema") {
        return refuse(format!("the root element must be schema of the namespace {XS_URI}"), root.offset);
    }
    let schema = Rule {
        attributes: &[
            "targetNamespace",
            "version",
            "finalDefault",
            "blockDefault",
            "attributeFormDefault",
            "elementFormDefault",
            "id",
        ],
        children: &[
            Slot(&["include", "import", "redefine", "annotation"], MANY),
            Slot(
                &[
                    "simpleType",
                    "complexType",
                    "group",
                    "attributeGroup",
                    "element",
                    "attribute",
                    "notation",
                    "annotation",
                ],
                MANY,
            ),
        ],
    };
    let mut ids = HashSet::new();
    check_node(tree, 0, &schema, &mut ids)
}

fn check_node<'t>(tree: &'t Tree, id: NodeId, rule: &Rule, ids: &mut HashSet<&'t str>) -> Built<()> {
    let node = tree.node(id);
    let name: &str = &node.name;
    if let Some(text) = node.text {
        return refuse(format!("text is not allowed in {name}"), text);
    }
    check_attributes(node, rule, ids)?;
    // `simpleContent` and `complexContent` stand alone in a type.
    let contents = [ANNOTATION, Slot(&["simpleContent", "complexContent"], ONE)];
    let has_contents = name == "complexType"
        && node.children.iter().any(|child| {
            let child = tree.node(*child);
            child.is("simpleContent") || child.is("complexContent")
        });
    let slots = if has_contents { &contents[..] } else { rule.children };
    let mut slots = slots.iter();
    let mut slot = slots.next();
    let mut count = 0;
    for child_id in &node.children {
        let child = tree.node(*child_id);
        let child_name: &str = &child.name;
        if child.ns == XS {
            supported(tree, *child_id)?;
        }
        while let Some(Slot(allowed, most)) = slot {
            if count < *most && allowed.contains(&child_name) {
                break;
            }
            slot = slots.next();
            count = 0;
        }
        count += 1;
        let has_ref = child.get("ref").is_some();
        match rule_of(child_name, name, has_ref).filter(|_| child.ns == XS && slot.is_some()) {
            // The children of these are not part of the tree.
            Some(rule) if matches!(child_name, "appinfo" | "documentation") => check_attributes(child, &rule, ids)?,
            Some(rule) => check_node(tree, *child_id, &rule, ids)?,
            None => return refuse(format!("{child_name} is not allowed in {name} here"), child.offset),
        }
    }
    Ok(())
}

fn check_attributes<'t>(node: &'t Node, rule: &Rule, ids: &mut HashSet<&'t str>) -> Built<()> {
    for attr in &node.attributes {
        let is_known = attr.ns != ABSENT || rule.attributes.contains(&&*attr.name);
        if attr.ns == XS || !is_known {
            return refuse(format!("the attribute {:?} is not allowed in {} here", attr.name, node.name), attr.offset);
        }
        if attr.ns == VERSIONING {
            return refuse(
                "conditional inclusion is not supported: it is of XML Schema 1.1, and this is 1.0",
                attr.offset,
            );
        }
        if attr.ns == ABSENT && &*attr.name == "id" {
            let value = attr.value.trim_ascii();
            if !is_ncname(value) || !ids.insert(value) {
                return refuse(format!("the id {value:?} is no identifier, or occurs twice"), attr.offset);
            }
        }
    }
    Ok(())
}

/// Refuses what XML Schema has and this implementation has not.
fn supported(tree: &Tree, id: NodeId) -> Built<()> {
    let node = tree.node(id);
    match &*node.name {
        "include" | "redefine" => {
            let why =
                format!("{} is not supported: nothing is fetched, so put all of the schema into one text", node.name);
            refuse(why, node.offset)
        }
        "import" if node.get("namespace").is_none_or(|uri| uri.trim_ascii() != XML_URI) => {
            let why = format!("import is not supported, but for {XML_URI}: nothing is fetched");
            refuse(why, node.offset)
        }
        "notation" => refuse("notation is not supported", node.offset),
        _ => Ok(()),
    }
}
