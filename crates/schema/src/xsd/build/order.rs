//! What depends on what: types on their bases and members, groups on the groups that they refer to. Refuses cycles and
//! long chains, and puts everything in an order in which it can be built.

use std::collections::HashMap;

use super::{Builder, Built, refuse};
use crate::xsd::bounds::CHAIN;
use crate::xsd::xml::NodeId;

/// Something that is referred to, and where.
type Edge = (NodeId, usize);

#[derive(Clone, Copy)]
enum State {
    Open,
    /// Done, with the length of the longest chain below it.
    Done(usize),
}

struct Visit {
    node: NodeId,
    edges: Vec<Edge>,
    next: usize,
    depth: usize,
}

/// All types, groups and attribute groups, each after what it depends on.
pub(super) fn order(builder: &Builder<'_>) -> Built<Vec<NodeId>> {
    let mut order = Vec::new();
    let mut states: HashMap<NodeId, State> = HashMap::new();
    let tree = builder.tree;
    for start in 0..tree.len() {
        let node = tree.node(start);
        let is_global = ["group", "attributeGroup"].iter().any(|kind| node.is(kind)) && node.get("name").is_some();
        if (!is_global && !node.is("simpleType") && !node.is("complexType")) || states.contains_key(&start) {
            continue;
        }
        states.insert(start, State::Open);
        let mut visits = vec![Visit { node: start, edges: edges(builder, start)?, next: 0, depth: 0 }];
        while let Some(visit) = visits.last_mut() {
            let Some((target, offset)) = visit.edges.get(visit.next).copied() else {
                let (node, depth) = (visit.node, visit.depth);
                if depth > CHAIN {
                    let offset = tree.node(node).offset;
                    return refuse(format!("this depends on others through a chain of more than {CHAIN}"), offset);
                }
                states.insert(node, State::Done(depth));
                order.push(node);
                visits.pop();
                if let Some(outer) = visits.last_mut() {
                    outer.depth = outer.depth.max(depth + 1);
                }
                continue;
            };
            visit.next += 1;
            match states.get(&target) {
                Some(State::Open) => {
                    let name = tree.node(target).get("name").map_or_else(String::new, |name| format!(" {name:?}"));
                    let kind = &tree.node(target).name;
                    return refuse(format!("the definition of the {kind}{name} is circular"), offset);
                }
                Some(State::Done(depth)) => visit.depth = visit.depth.max(depth + 1),
                None => {
                    states.insert(target, State::Open);
                    visits.push(Visit { node: target, edges: edges(builder, target)?, next: 0, depth: 0 });
                }
            }
        }
    }
    Ok(order)
}

/// What a type, group or attribute group depends on.
fn edges(builder: &Builder<'_>, node: NodeId) -> Built<Vec<Edge>> {
    let mut edges = Vec::new();
    for child in builder.tree.children(node) {
        collect(builder, child, &mut edges)?;
    }
    Ok(edges)
}

fn collect(builder: &Builder<'_>, node: NodeId, edges: &mut Vec<Edge>) -> Built<()> {
    let tree = builder.tree;
    let element = tree.node(node);
    match &*element.name {
        "simpleType" => {
            edges.push((node, element.offset));
            return Ok(());
        }
        // The types of elements and attributes may refer to what encloses them.
        "element" | "attribute" => return Ok(()),
        "group" => named(builder, node, "ref", &builder.group_nodes, edges)?,
        "attributeGroup" => named(builder, node, "ref", &builder.attribute_group_nodes, edges)?,
        "restriction" | "extension" => named(builder, node, "base", &builder.type_nodes, edges)?,
        "list" => named(builder, node, "itemType", &builder.type_nodes, edges)?,
        "union" => named(builder, node, "memberTypes", &builder.type_nodes, edges)?,
        _ => {}
    }
    for child in tree.children(node) {
        collect(builder, child, edges)?;
    }
    Ok(())
}

/// Adds what the names in an attribute refer to. Names that are wrong are refused later.
fn named(
    builder: &Builder<'_>,
    node: NodeId,
    attribute: &str,
    known: &HashMap<crate::xsd::model::NameId, NodeId>,
    edges: &mut Vec<Edge>,
) -> Built<()> {
    let Some(attr) = builder.tree.node(node).attribute(attribute) else { return Ok(()) };
    for word in attr.value.split_ascii_whitespace() {
        let (prefix, local) = word.split_once(':').unwrap_or(("", word));
        let names = &builder.model.names;
        let is_target =
            builder.tree.resolve(node, prefix).is_some_and(|uri| names.spaces.find(uri) == builder.model.target);
        let name = names.find(builder.model.target, local).filter(|_| is_target);
        if let Some(target) = name.and_then(|name| known.get(&name)) {
            edges.push((*target, attr.offset));
        }
    }
    Ok(())
}
