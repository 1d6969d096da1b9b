//! Shows a plan: as a table for people, as JSON for programs.

use serde_json::{Map, Value, json};

use super::plan::{Action, Plan, Step};
use crate::exact;
use crate::output::{self, shown};

/// The longest value that is shown whole, in characters.
const LONGEST: usize = 60;

/// Prints what a plan changes, and how much stays.
pub(crate) fn table(plan: &Plan) {
    let noted = |step: &&Step| step.action != Action::Unchanged || step.note.is_some();
    let mut rows = Vec::new();
    for step in plan.steps.iter().filter(noted) {
        let note = step.note.clone().unwrap_or_default();
        let note =
            if step.adopts && step.action == Action::Change { "from now on this set's".to_owned() } else { note };
        let (action, kind) = (step.action.word().to_owned(), step.name.kind.word().to_owned());
        rows.push(vec![action, kind, step.name.within(), note]);
        for detail in details(step) {
            rows.push(vec![String::new(), String::new(), format!("  {detail}"), String::new()]);
        }
    }
    if !rows.is_empty() {
        output::table(&["ACTION", "KIND", "NAME", "NOTE"], rows);
    }
    output::line(&summary(plan));
}

fn details(step: &Step) -> Vec<String> {
    let differences = step.differences.iter();
    let differences =
        differences.map(|one| shown(&format!("{}: {} -> {}", one.field, short(&one.from), short(&one.to))));
    differences.chain(step.versions.iter().map(ToString::to_string)).collect()
}

/// How much a plan changes.
pub(crate) fn summary(plan: &Plan) -> String {
    let counted = |action: Action, done: &str| match plan.count(action) {
        0 => None,
        count => Some(format!("{count} {done}")),
    };
    let all = [
        counted(Action::Create, "to create"),
        counted(Action::Change, "to change"),
        counted(Action::Adopt, "to adopt"),
        counted(Action::Delete, "to delete"),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    let unchanged = plan.count(Action::Unchanged);
    match all.is_empty() {
        true => format!("nothing to change; {unchanged} unchanged"),
        false => format!("{}, {unchanged} unchanged", all.join(", ")),
    }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => "nothing".to_owned(),
        Value::String(text) => text.clone(),
        other => exact::to_string(other).unwrap_or_default(),
    };
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}

/// A plan as JSON.
pub(crate) fn json(plan: &Plan, set: &str) -> Map<String, Value> {
    let step = |step: &Step| {
        let fields = step.differences.iter();
        let fields: Vec<Value> =
            fields.map(|one| json!({ "field": one.field, "from": one.from, "to": one.to })).collect();
        let versions: Vec<String> = step.versions.iter().map(ToString::to_string).collect();
        json!({
            "action": step.action.word(), "kind": step.name.kind.word(), "client": step.name.client,
            "code": step.name.code, "fields": fields, "steps": versions, "adopts": step.adopts, "note": step.note,
        })
    };
    let mut shown = Map::new();
    shown.insert("set".into(), set.into());
    shown.insert("plan".into(), plan.steps.iter().map(step).collect());
    shown.insert("changes".into(), plan.changes().count().into());
    shown
}
