//! `tidegate export`: writes what a server has as documents that `tidegate apply` reads. Secrets and what the server makes
//! itself (ids, moments) are left out.

use clap::Args;
use serde_json::{Map, Value};

use crate::apply::{Kind, Name, Present};
use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::output;
use crate::yaml;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only these kinds: Client, Queue, Pool, EventType, Schema, Subscription, Schedule.
    #[arg(value_name = "KIND", value_parser = kind)]
    kinds: Vec<Kind>,
    #[command(flatten)]
    server: ServerArgs,
}

fn kind(word: &str) -> Result<Kind, String> {
    let all = || Kind::ALL.map(Kind::word).join(", ");
    Kind::named(word).ok_or_else(|| format!("there is no kind {word:?}: use one of {}", all()))
}

pub(crate) async fn run(args: ExportArgs) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let mut present = Present::read(&client).await?;
    let is_wanted = |name: &&Name| args.kinds.is_empty() || args.kinds.contains(&name.kind);
    let names: Vec<Name> = present.things.keys().filter(is_wanted).cloned().collect();
    for name in names.iter().filter(|name| matches!(name.kind, Kind::EventType | Kind::Schema)) {
        present.refresh(&client, name).await?;
    }
    let things = names.iter().filter_map(|name| Some((name, present.things.get(name)?)));
    let documents: Vec<Map<String, Value>> = things.map(|(name, thing)| document(name, &thing.fields)).collect();
    if args.server.json {
        return output::json(&documents);
    }
    for document in documents {
        output::line(&format!("---\n{}", yaml::document(&document).trim_end_matches('\n')));
    }
    Ok(())
}

/// A thing as a document: kind and names first, and nothing that says what holds anyway.
fn document(name: &Name, fields: &Map<String, Value>) -> Map<String, Value> {
    let mut document = Map::new();
    document.insert("kind".into(), name.kind.word().into());
    for field in name.kind.fields() {
        let Some(value) = fields.get(field.name) else { continue };
        if value.is_null() {
            continue;
        }
        let value = match (name.kind, field.name) {
            (Kind::EventType, "versions") => {
                value.as_array().into_iter().flatten().map(|one| version(&name.code, one)).collect()
            }
            _ => value.clone(),
        };
        document.insert(field.name.into(), value);
    }
    document
}

/// A version without what is not said, and without the name that the server gives its schema by itself.
fn version(code: &str, value: &Value) -> Value {
    let usual = format!("{code} {}", value["version"].as_str().unwrap_or_default());
    let is_said = |(name, value): &(&String, &Value)| {
        !value.is_null() && (name.as_str() != "schemaName" || **value != usual.as_str())
    };
    let said = value.as_object().into_iter().flatten().filter(is_said);
    Value::Object(said.map(|(name, value)| (name.clone(), value.clone())).collect())
}
