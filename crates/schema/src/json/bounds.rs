//! What a schema may cost, decided before it is compiled.
//!
//! **The rule.** A value of a document is judged by a schema and, at the same place, by all schemas that this one applies
//! to the same value: through `allOf`, `anyOf`, `oneOf`, `not`, `if`, `then`, `else`, `dependentSchemas` and references.
//! Expanded to a tree, with each reference replaced by what it leads to, these schemas
//! - must not contain themselves: validation would not end,
//! - are at most [`MAX_SAME_DEPTH`] deep: validation is recursive,
//! - cost at most [`MAX_STEPS`]: one step for each schema and keyword, counted as often as it occurs in the tree. What
//!   `unevaluatedProperties` and `unevaluatedItems` look at is counted again for each level that looks.
//!
//! So the cost for one value is bounded. The cost for a document is not: `anyOf` of two references to the schema itself,
//! applied to members, doubles with each level, and a mebibyte has half a million values. Therefore what a validation
//! reads is metered ([`super::meter`]): a document that takes more than its budget is not valid, and the report says so.
//! Once the budget is spent the validator sees no more values, and what is left of it is bounded by the rule: at most
//! [`MAX_STEPS`] for each of the [`DEPTH`](crate::limits::DEPTH) levels that it is in.
//!
//! The rest bounds what the compiler does: numbers of schemas, references, patterns and values, and
//! [`MAX_BUILT`] for compilations of the same schema under another location, which `unevaluated*` and references
//! between resources (`$id`) cause.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::dialect::Role;
use super::graph::{Graph, Problem, Target};
use super::meter::Prices;
use super::pattern::{MAX_STATES, weigh};
use super::source::CACHE_BYTES;

/// The most schemas within a schema.
pub(super) const MAX_SCHEMAS: usize = 5_000;
/// The most references.
pub(super) const MAX_REFERENCES: usize = 5_000;
/// The most values in all `enum`s and `const`s, those within arrays and objects included.
pub(super) const MAX_VALUES: usize = 20_000;
/// The deepest tree of schemas that are applied to the same value.
pub(super) const MAX_SAME_DEPTH: usize = 40;
/// The most memory for what errors show of `not` and annotations tell of `contentSchema`: both are copied, and may be
/// nested.
const MAX_COPIED: usize = 4 << 20;
/// The most that judging one value may cost.
pub(super) const MAX_STEPS: u64 = 20_000;
/// The most that compiling may cost.
pub(super) const MAX_BUILT: u64 = 40_000;
/// The deepest recursion of compilations.
const MAX_BUILD_DEPTH: usize = 200;

/// What is counted while a schema is walked.
#[derive(Debug, Default)]
pub(super) struct Totals {
    schemas: usize,
    references: usize,
    values: usize,
    states: u64,
    /// The price of the dearest pattern, and that of all patterns of a `patternProperties`.
    pattern_price: u64,
    names_price: u64,
    name_patterns: usize,
    /// How many patterns keep so many states busy that matching may fill its cache.
    wide_patterns: usize,
    /// The longest text that an error copies from the schema.
    longest: usize,
    /// The memory of all copies that the compiler makes of schemas.
    copied: usize,
    /// The price of formats, if they are asserted, and of encoded contents.
    format_price: u64,
    content_price: u64,
    weights: HashMap<String, super::pattern::Weight>,
}

impl Totals {
    pub(super) fn count_schema(&mut self) -> Result<(), String> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return Err(format!("there are more than {MAX_SCHEMAS} schemas in this one"));
        }
        Ok(())
    }

    pub(super) fn count_reference(&mut self) -> Result<(), String> {
        self.references += 1;
        if self.references > MAX_REFERENCES {
            return Err(format!("there are more than {MAX_REFERENCES} references"));
        }
        Ok(())
    }

    /// Counts what is in a keyword, apart from schemas.
    pub(super) fn count_keyword(&mut self, keyword: &str, value: &Value) -> Result<(), String> {
        match (keyword, value) {
            ("pattern", Value::String(pattern)) => {
                self.pattern_price = self.pattern_price.max(self.count_pattern(pattern)?);
                self.longest = self.longest.max(pattern.len());
            }
            ("patternProperties", Value::Object(patterns)) => {
                let mut price = 0_u64;
                for pattern in patterns.keys() {
                    price = price.saturating_add(
                        self.count_pattern(pattern)
                            .map_err(|message| format!("in {}: {message}", super::tree::clip(pattern, 100)))?,
                    );
                }
                self.names_price = self.names_price.max(price);
                self.name_patterns = self.name_patterns.max(patterns.len());
            }
            ("enum" | "const", value) => {
                self.values += count_values(value);
                if self.values > MAX_VALUES {
                    return Err(format!("there are more than {MAX_VALUES} values in `enum` and `const`"));
                }
            }
            ("required", Value::Array(names)) => {
                let longest = names.iter().filter_map(Value::as_str).map(str::len).max();
                self.longest = self.longest.max(longest.unwrap_or_default());
            }
            ("not" | "contentSchema", schema) => {
                let size = memory(schema);
                self.longest = self.longest.max(size);
                self.copied += size;
                if self.copied > MAX_COPIED {
                    return Err("the schemas in `not` and `contentSchema` are too large".into());
                }
            }
            ("format", Value::String(name)) => {
                let price = if name == "regex" { 96 } else { 16 };
                self.format_price = self.format_price.max(price);
                self.longest = self.longest.max(name.len());
            }
            ("contentMediaType" | "contentEncoding", _) => self.content_price = 16,
            _ => {}
        }
        Ok(())
    }

    /// About how much memory the compiled schema takes, from that of its text.
    pub(super) fn size(&self, text: usize) -> usize {
        let states = usize::try_from(self.states).unwrap_or(usize::MAX >> 8);
        let caches = self.wide_patterns * CACHE_BYTES;
        4096 + 6 * text + 800 * self.schemas + 300 * self.values + self.copied + 80 * states + caches
    }

    /// Weighs a pattern; the price of matching it.
    fn count_pattern(&mut self, pattern: &str) -> Result<u64, String> {
        if let Some(weight) = self.weights.get(pattern) {
            return Ok(weight.price);
        }
        let weight = weigh(pattern)?;
        self.states = self.states.saturating_add(weight.states);
        if self.states > MAX_STATES {
            return Err(format!(
                "all patterns together have more than {MAX_STATES} states: use fewer or smaller counts"
            ));
        }
        self.wide_patterns += usize::from(!weight.is_narrow());
        self.weights.insert(pattern.to_string(), weight);
        Ok(weight.price)
    }
}

/// How many values there are in a value. It is at most [`DEPTH`](crate::limits::DEPTH) deep.
fn count_values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count_values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(count_values).sum::<usize>(),
        _ => 1,
    }
}

/// About how many bytes a copy of a value takes.
fn memory(value: &Value) -> usize {
    match value {
        Value::Array(items) => 32 + items.iter().map(memory).sum::<usize>(),
        Value::Object(members) => {
            256 + members.iter().map(|(name, value)| 64 + name.len() + memory(value)).sum::<usize>()
        }
        Value::String(text) => 32 + text.len(),
        _ => 32,
    }
}

/// What judging one value with a schema costs.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// How deep the tree of schemas is.
    depth: usize,
    /// Whether it holds.
    judged: u64,
    /// What it evaluates, for `unevaluated*`.
    marked: u64,
    /// All errors.
    explained: u64,
}

/// The costs of a schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// The deepest tree of schemas for the same value.
    pub(super) depth: usize,
    pub(super) prices: Prices,
}

/// Checks what a schema costs.
pub(super) fn check(graph: &Graph<'_>, strict: bool) -> Result<Costs, Problem> {
    let costs = same_costs(graph)?;
    Builder::check(graph)?;
    check_scopes(graph)?;
    let depth = costs.iter().map(|cost| cost.depth).max().unwrap_or_default();
    let names = (0..graph.schemas.len()).filter_map(|at| graph.nested(at, "propertyNames"));
    let names = names.map(|at| costs[at].judged).max().unwrap_or_default();
    let totals = &graph.totals;
    let formats = if strict { totals.format_price } else { 0 };
    let text = totals.pattern_price.max(totals.content_price).max(formats).max(1);
    let price = |steps: u64| u32::try_from(steps).unwrap_or(u32::MAX);
    let longest = (0..graph.schemas.len()).map(|at| graph.pointer(at).len()).max().unwrap_or_default() as u64;
    let prices = Prices {
        text: price(text),
        member: price(2 * totals.name_patterns as u64 + names),
        name: price(1 + totals.names_price + names.saturating_mul(text)),
        error: price(22 + (totals.longest as u64 + longest) / 16),
        level: price(if graph.schemas.iter().any(|schema| !schema.references.is_empty()) {
            2 + longest / 16
        } else {
            0
        }),
        listed: if graph.schemas.iter().any(|schema| lists_names(schema.value)) { 8 } else { 0 },
    };
    Ok(Costs { depth, prices })
}

/// Whether an error of a schema copies the names of all members that are not allowed.
fn lists_names(schema: &Value) -> bool {
    schema.get("additionalProperties") == Some(&Value::Bool(false)) || schema.get("unevaluatedProperties").is_some()
}

/// The schemas that are applied to the same value, and whether every one of them has to hold.
fn same<'g>(graph: &'g Graph<'_>, at: usize) -> impl Iterator<Item = (usize, bool)> + 'g {
    let schema = &graph.schemas[at];
    let referred = schema.references.iter().flat_map(|(_, targets)| targets).filter_map(|target| match target {
        Target::Schema(target) => Some((*target, true)),
        Target::Metaschema => None,
    });
    schema.same.iter().copied().chain(referred)
}

/// What a schema costs without those it applies. A metaschema is a tree of its own.
fn own_cost(graph: &Graph<'_>, at: usize) -> u64 {
    let schema = &graph.schemas[at];
    let metaschemas =
        schema.references.iter().filter(|(_, targets)| targets.contains(&Target::Metaschema)).count() as u64;
    1 + schema.value.as_object().map_or(0, Map::len) as u64 + 200 * metaschemas
}

/// What compiling a schema costs without those in it: about one for 64 bytes of what it copies.
fn own_weight(graph: &Graph<'_>, at: usize) -> u64 {
    let keywords = graph.schemas[at].value.as_object().into_iter().flatten();
    let copied = keywords.map(|(keyword, value)| match (keyword.as_str(), graph.dialect.role(keyword)) {
        ("not", _) | (_, Role::Other) => memory(value),
        (_, Role::InnerMap) => 32 * value.as_object().map_or(0, Map::len),
        _ => 0,
    });
    1 + copied.sum::<usize>() as u64 / 64
}

fn evaluates_rest(graph: &Graph<'_>, at: usize) -> bool {
    let value = graph.schemas[at].value;
    value.get("unevaluatedProperties").is_some() || value.get("unevaluatedItems").is_some()
}

/// The costs of all schemas; an error if one contains itself or costs too much.
fn same_costs(graph: &Graph<'_>) -> Result<Vec<Cost>, Problem> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; graph.schemas.len()];
    let mut costs = vec![Cost::default(); graph.schemas.len()];
    for start in 0..graph.schemas.len() {
        let mut open = vec![start];
        while let Some(at) = open.last().copied() {
            match states[at] {
                State::New => {
                    states[at] = State::Open;
                    for (next, _) in same(graph, at) {
                        match states[next] {
                            State::New => open.push(next),
                            State::Open => return Err(endless(graph, at)),
                            State::Done => {}
                        }
                    }
                }
                State::Open => {
                    states[at] = State::Done;
                    costs[at] = same_cost(graph, at, &costs)?;
                    open.pop();
                }
                State::Done => {
                    open.pop();
                }
            }
        }
    }
    Ok(costs)
}

fn endless(graph: &Graph<'_>, at: usize) -> Problem {
    let mut pointer = graph.pointer(at);
    let reference = graph.schemas[at].references.first().map(|(keyword, _)| *keyword);
    if let Some(keyword) = reference {
        super::graph::push_segment(&mut pointer, keyword);
    }
    Problem::new(pointer, "the schema is applied to the same value again and again: validation would not end")
}

/// The cost of a schema from those of the schemas that it applies to the same value.
fn same_cost(graph: &Graph<'_>, at: usize, costs: &[Cost]) -> Result<Cost, Problem> {
    let own = own_cost(graph, at);
    let mut cost = Cost { depth: 0, judged: own, marked: own, explained: own };
    for (next, every) in same(graph, at) {
        let next = costs[next];
        cost.depth = cost.depth.max(next.depth);
        cost.judged = cost.judged.saturating_add(next.judged);
        cost.marked = cost.marked.saturating_add(next.judged).saturating_add(next.marked);
        let again = if every { 0 } else { next.judged.saturating_mul(2) };
        cost.explained = cost.explained.saturating_add(next.explained).saturating_add(again);
    }
    cost.depth += 1;
    if evaluates_rest(graph, at) {
        cost.judged = cost.judged.saturating_add(cost.marked);
        cost.explained = cost.explained.saturating_add(cost.marked);
    }
    if cost.depth > MAX_SAME_DEPTH {
        let message = format!("more than {MAX_SAME_DEPTH} schemas apply each other to the same value");
        return Err(Problem::new(graph.pointer(at), message));
    }
    if cost.explained.max(cost.marked) > MAX_STEPS {
        let message = format!(
            "judging one value takes more than {MAX_STEPS} steps, counting every schema and keyword as often as \
             references and combinations lead to it"
        );
        return Err(Problem::new(graph.pointer(at), message));
    }
    Ok(cost)
}

/// Estimates what the compiler does. It compiles each schema once, but `unevaluated*` makes it compile what is applied to
/// the same value again, under the location of the reference that leads there.
struct Builder<'g, 'v> {
    graph: &'g Graph<'v>,
    weights: Vec<u64>,
    /// What compiling a schema costs, and what compiling it for `unevaluated*` costs.
    built: Vec<Option<u64>>,
    marked: Vec<Option<u64>>,
}

impl<'g, 'v> Builder<'g, 'v> {
    fn check(graph: &'g Graph<'v>) -> Result<(), Problem> {
        let count = graph.schemas.len();
        if !(0..count).any(|at| evaluates_rest(graph, at)) {
            return Ok(());
        }
        let weights = (0..count).map(|at| own_weight(graph, at)).collect();
        let mut builder = Self { graph, weights, built: vec![None; count], marked: vec![None; count] };
        let mut total = 0_u64;
        for at in 0..count {
            total = total.saturating_add(if evaluates_rest(graph, at) {
                builder.mark(at, 0)?
            } else {
                builder.weights[at]
            });
            if total > MAX_BUILT {
                return Err(builder.too_much(at));
            }
        }
        Ok(())
    }

    fn too_much(&self, at: usize) -> Problem {
        let message = "compiling `unevaluatedProperties` or `unevaluatedItems` takes too much: nest fewer of them";
        Problem::new(self.graph.pointer(at), message)
    }

    /// Compiling a schema and those written in it.
    fn build(&mut self, at: usize, depth: usize) -> Result<u64, Problem> {
        if let Some(built) = self.built[at] {
            return Ok(built);
        }
        if depth > MAX_BUILD_DEPTH {
            return Err(self.too_much(at));
        }
        // What is being compiled is not compiled again.
        self.built[at] = Some(1);
        let mut total = self.weights[at];
        for nested in self.graph.schemas[at].nested.clone() {
            total = total.saturating_add(self.build(nested, depth + 1)?);
        }
        if evaluates_rest(self.graph, at) {
            total = total.saturating_add(self.mark(at, depth + 1)?);
        }
        self.built[at] = Some(total);
        Ok(total)
    }

    /// Compiling what a schema evaluates.
    fn mark(&mut self, at: usize, depth: usize) -> Result<u64, Problem> {
        if let Some(marked) = self.marked[at] {
            return Ok(marked);
        }
        if depth > MAX_BUILD_DEPTH {
            return Err(self.too_much(at));
        }
        self.marked[at] = Some(1);
        let mut total = self.weights[at];
        for nested in self.graph.schemas[at].nested.clone() {
            total = total.saturating_add(self.build(nested, depth + 1)?);
        }
        let next: Vec<usize> = same(self.graph, at).map(|(next, _)| next).collect();
        for next in next {
            total = total.saturating_add(self.mark(next, depth + 1)?);
        }
        self.marked[at] = Some(total);
        Ok(total)
    }
}

/// A resource (a schema with `$id`) is compiled once for each way that references lead into it, because a dynamic
/// reference may depend on the way.
fn check_scopes(graph: &Graph<'_>) -> Result<(), Problem> {
    if graph.resources <= 1 {
        return Ok(());
    }
    let mut sizes = vec![0_u64; graph.resources];
    let mut leads = vec![Vec::new(); graph.resources];
    for (at, schema) in graph.schemas.iter().enumerate() {
        sizes[schema.resource] += own_weight(graph, at);
        let targets = schema.references.iter().flat_map(|(_, targets)| targets);
        for target in targets {
            if let Target::Schema(target) = target {
                leads[schema.resource].push(graph.schemas[*target].resource);
            }
        }
    }
    for (resource, leads) in leads.iter_mut().enumerate() {
        leads.sort_unstable();
        leads.dedup();
        leads.retain(|lead| *lead != resource);
    }
    let mut spent = 0_u64;
    let mut way = vec![(0, 0)];
    let mut on_way = vec![false; graph.resources];
    while let Some((resource, next)) = way.last_mut() {
        if *next == 0 {
            spent = spent.saturating_add(sizes[*resource] + 1);
            on_way[*resource] = true;
        }
        if spent > MAX_BUILT || way.len() > MAX_SAME_DEPTH {
            let message = "the schemas with `$id` refer to each other in too many ways: use fewer `$id`s";
            return Err(Problem::new("", message));
        }
        let Some((resource, next)) = way.last_mut() else { break };
        let lead = leads[*resource].get(*next).copied();
        *next += 1;
        match lead {
            Some(lead) if on_way[lead] => {}
            Some(lead) => way.push((lead, 0)),
            None => {
                on_way[*resource] = false;
                way.pop();
            }
        }
    }
    Ok(())
}
