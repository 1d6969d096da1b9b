//! The bodies of requests, made from documents: codes of clients, pools, accounts and types become ids.

use serde_json::{Map, Value, json};

use super::documents::Document;
use super::kinds::{Kind, Name};
use super::present::{Present, Thing};

/// The body that creates a thing, or that changes one to what its document says.
///
/// # Errors
/// When something that the document names is not there any more.
pub(crate) fn body(
    document: &Document,
    name: &Name,
    known: Option<&Thing>,
    present: &Present,
) -> Result<Value, String> {
    let mut fields = document.fields.clone();
    let steps: &[&str] = match name.kind {
        Kind::Queue => &["name", "client", "state"],
        Kind::EventType => &["status", "versions"],
        Kind::Subscription => &["status"],
        Kind::Schedule => &["name", "paused"],
        Kind::Client | Kind::Pool | Kind::Schema => &[],
    };
    fields.retain(|field, _| !steps.contains(&field.as_str()));
    let client = match fields.remove("client").as_ref().and_then(Value::as_str).filter(|_| name.client.is_some()) {
        Some(code) => Some(present.client_id(code).ok_or_else(|| format!("client: there is no client {code}"))?),
        None => None,
    };
    match name.kind {
        Kind::Pool => {
            // It is part of what a change says, and stays as it is unless the document says otherwise.
            if let Some(known) = known {
                fields.entry("status").or_insert_with(|| known.fields["status"].clone());
            }
        }
        Kind::Subscription => subscription(&mut fields, name, present)?,
        Kind::Schedule => event(&mut fields, present)?,
        _ => {}
    }
    if known.is_some() && name.kind != Kind::Schema {
        fields.remove("code");
    } else if let Some(client) = client {
        fields.insert("clientId".into(), client.into());
    }
    if name.kind != Kind::Queue {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(Value::Object(fields))
}

fn subscription(fields: &mut Map<String, Value>, name: &Name, present: &Present) -> Result<(), String> {
    if let Some(pool) = fields.remove("dispatchPool").as_ref().and_then(Value::as_str) {
        let id = present.pool_id(name.client.as_deref(), pool);
        fields.insert(
            "dispatchPoolId".into(),
            id.ok_or_else(|| format!("dispatchPool: there is no pool {pool}"))?.into(),
        );
    }
    if let Some(account) = fields.remove("serviceAccount").as_ref().and_then(Value::as_str) {
        let id = present.account_id(name.client.as_deref(), account);
        let missing = || format!("serviceAccount: there is no service account {account}");
        fields.insert("serviceAccountId".into(), id.ok_or_else(missing)?.into());
    }
    for binding in fields.get_mut("eventTypes").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(code) = binding["eventType"].as_str() else { continue };
        let id = present.type_id(code).ok_or_else(|| format!("eventTypes: there is no event type {code}"))?;
        let mut named = json!({ "eventTypeId": id });
        if !binding["specVersion"].is_null() {
            named["specVersion"] = binding["specVersion"].clone();
        }
        *binding = named;
    }
    Ok(())
}

fn event(fields: &mut Map<String, Value>, present: &Present) -> Result<(), String> {
    let Some(event) = fields.get_mut("event").and_then(Value::as_object_mut) else { return Ok(()) };
    let Some(code) = event.get("client").and_then(Value::as_str).map(str::to_owned) else { return Ok(()) };
    let id = present.client_id(&code).ok_or_else(|| format!("event.client: there is no client {code}"))?;
    event.insert("client".into(), id.into());
    Ok(())
}

/// The body that adds or changes a version of an event type.
pub(crate) fn version(document: &Document, number: &str) -> Option<Value> {
    let all = document.fields.get("versions").and_then(Value::as_array)?;
    let mut fields = all.iter().find(|one| one["version"] == number)?.as_object().cloned()?;
    fields.remove("status");
    fields.retain(|_, value| !value.is_null());
    Some(Value::Object(fields))
}
