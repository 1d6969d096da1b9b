//! What becomes of the versions of an event type: decided without a server, by the life that versions have.

use std::fmt;

use serde_json::Value;

use super::normal::{same, same_schema};

/// A step in the life of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VersionStep {
    Add(String),
    Change(String),
    Finalise(String),
    Deprecate(String),
}

impl fmt::Display for VersionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(number) => write!(f, "version {number}: add"),
            Self::Change(number) => write!(f, "version {number}: change"),
            Self::Finalise(number) => write!(f, "version {number}: finalise"),
            Self::Deprecate(number) => write!(f, "version {number}: deprecate"),
        }
    }
}

/// A version on its way through the steps.
struct Stage {
    number: (u64, u64),
    text: String,
    status: String,
}

/// The steps from the versions that a type has to those that its document says, and the versions that only the type has,
/// which stay.
///
/// # Errors
/// What the life of versions does not allow, and what to say instead.
pub(crate) fn steps(wanted: &[Value], present: &[Value]) -> Result<(Vec<VersionStep>, Vec<String>), String> {
    let mut stages = present.iter().map(stage).collect::<Result<Vec<_>, _>>()?;
    let mut all = wanted.iter().map(|one| Ok((number(&one["version"])?, one))).collect::<Result<Vec<_>, String>>()?;
    all.sort_by_key(|(number, _)| *number);
    check(&all)?;
    let mut steps = Vec::new();
    for (number, version) in &all {
        let text = text(&version["version"]);
        let known = present.iter().find(|one| one["version"] == version["version"]);
        match known {
            None => {
                let higher = stages.iter().find(|stage| stage.number.0 == number.0 && stage.number > *number);
                if let Some(higher) = higher {
                    let why = format!("the type has {}, and a new version must be higher", higher.text);
                    return Err(format!("version {text} cannot be added: {why}"));
                }
                steps.push(VersionStep::Add(text.clone()));
                stages.push(Stage { number: *number, text: text.clone(), status: "FINALISING".into() });
            }
            Some(known) => {
                if let Some(field) = differs(version, known) {
                    if known["status"] != "FINALISING" {
                        let status = self::text(&known["status"]);
                        let text = format!("version {text} is {status} and its {field} differs: a version that was");
                        return Err(format!("{text} finalised does not change any more; add a new version"));
                    }
                    steps.push(VersionStep::Change(text.clone()));
                }
            }
        }
        finalise(version, &text, &mut stages, &mut steps)?;
    }
    for (_, version) in &all {
        let text = text(&version["version"]);
        let is_current = stages.iter().any(|stage| stage.text == text && stage.status == "CURRENT");
        if version["status"] == "DEPRECATED" && is_current {
            steps.push(VersionStep::Deprecate(text));
        }
    }
    let unsaid = |one: &&Value| !wanted.iter().any(|other| other["version"] == one["version"]);
    let unsaid = present.iter().filter(unsaid);
    Ok((steps, unsaid.map(|one| format!("{} {}", text(&one["version"]), text(&one["status"]))).collect()))
}

/// Finalises a version that is to be in use, or refuses the way back.
fn finalise(version: &Value, text: &str, stages: &mut [Stage], steps: &mut Vec<VersionStep>) -> Result<(), String> {
    let wanted = version["status"].as_str();
    let Some(at) = stages.iter().position(|stage| stage.text == text) else { return Ok(()) };
    let (number, status) = (stages[at].number, stages[at].status.clone());
    match (wanted, status.as_str()) {
        (Some("CURRENT" | "DEPRECATED"), "FINALISING") => {
            steps.push(VersionStep::Finalise(text.to_owned()));
            let before = |stage: &&mut Stage| stage.number.0 == number.0 && stage.status == "CURRENT";
            stages.iter_mut().filter(before).for_each(|stage| stage.status = "DEPRECATED".into());
            stages[at].status = "CURRENT".into();
            Ok(())
        }
        (Some(wanted @ "FINALISING"), "CURRENT" | "DEPRECATED") | (Some(wanted @ "CURRENT"), "DEPRECATED") => {
            Err(format!("version {text} is {status} and cannot become {wanted} again: add a new version"))
        }
        _ => Ok(()),
    }
}

/// Refuses versions that are there twice, and two of a major that are to be in use.
fn check(all: &[((u64, u64), &Value)]) -> Result<(), String> {
    for pair in all.windows(2) {
        if pair[0].0 == pair[1].0 {
            return Err(format!("version {} is there twice", text(&pair[0].1["version"])));
        }
    }
    let mut current: Option<((u64, u64), &Value)> = None;
    for (number, version) in all.iter().filter(|(_, version)| version["status"] == "CURRENT") {
        if let Some((before, other)) = current
            && before.0 == number.0
        {
            let (one, two) = (text(&other["version"]), text(&version["version"]));
            return Err(format!("versions {one} and {two} are both CURRENT: a major has one; say {one} is DEPRECATED"));
        }
        current = Some((*number, version));
    }
    Ok(())
}

/// The first field by which a version differs from the one that the type has.
fn differs(version: &Value, known: &Value) -> Option<&'static str> {
    if !same_schema(&version["schemaType"], &version["schema"], &known["schema"]) {
        return Some("schema");
    }
    // A message that is left out is found by the server, and what the schema is called stays as it is.
    let is_left_out = |name: &str| !matches!(name, "schemaType" | "mimeType" | "strict") && version[name].is_null();
    ["schemaType", "mimeType", "message", "strict", "schemaName", "schemaDescription"]
        .into_iter()
        .find(|name| !(same(&version[*name], &known[*name]) || is_left_out(name)))
}

fn stage(version: &Value) -> Result<Stage, String> {
    let (text, status) = (text(&version["version"]), text(&version["status"]));
    Ok(Stage { number: number(&version["version"])?, text, status })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(version: &Value) -> Result<(u64, u64), String> {
    let text = version.as_str().unwrap_or_default();
    let parsed = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| format!("version {text:?} must be MAJOR.MINOR, such as 1.0"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(number: &str, status: Option<&str>, schema: &str) -> Value {
        json!({
            "version": number, "status": status, "schemaType": "JSON_SCHEMA", "mimeType": "application/json",
            "message": null, "strict": false, "schema": schema,
        })
    }

    fn said(wanted: &[Value], present: &[Value]) -> Result<Vec<String>, String> {
        steps(wanted, present).map(|(steps, _)| steps.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn versions_go_through_their_lives() {
        let (a, b) = ("{}", r#"{"type":"object"}"#);
        let old = [version("1.0", Some("CURRENT"), a)];
        let new = [version("1.1", Some("CURRENT"), b), version("1.0", Some("DEPRECATED"), " { } ")];
        assert_eq!(said(&new, &old).unwrap(), ["version 1.1: add", "version 1.1: finalise"]);
        let all = ["version 1.0: add", "version 1.0: finalise", "version 1.1: add", "version 1.1: finalise"];
        assert_eq!(said(&new, &[]).unwrap(), all, "on an empty server the first one passes through its life");
        let after = [version("1.0", Some("DEPRECATED"), a), version("1.1", Some("CURRENT"), b)];
        assert!(said(&new, &after).unwrap().is_empty());
        let ten = [version("1.10", None, a), version("1.9", None, a)];
        assert_eq!(said(&ten, &[]).unwrap(), ["version 1.9: add", "version 1.10: add"]);
        let gone = [version("1.1", Some("DEPRECATED"), b)];
        assert_eq!(said(&gone, &after).unwrap(), ["version 1.1: deprecate"]);
        let open = [version("2.0", Some("FINALISING"), a)];
        assert_eq!(said(&[version("2.0", None, b)], &open).unwrap(), ["version 2.0: change"]);
        assert_eq!(steps(&[], &open).unwrap().1, ["2.0 FINALISING"]);
    }

    #[test]
    fn a_schema_keeps_its_name_unless_another_one_is_said() {
        let named = |status: &str, name: &str| {
            let mut version = version("1.0", Some(status), "{}");
            version["schemaName"] = name.into();
            version
        };
        let (open, fixed) = ([named("FINALISING", "Order")], [named("CURRENT", "Order")]);
        assert!(said(&[version("1.0", None, "{}")], &open).unwrap().is_empty());
        assert!(said(&fixed, &fixed).unwrap().is_empty());
        assert_eq!(said(&[named("FINALISING", "Orders")], &open).unwrap(), ["version 1.0: change"]);
        let refused = said(&[named("CURRENT", "Orders")], &fixed).unwrap_err();
        assert!(refused.contains("its schemaName differs"), "{refused}");
    }

    #[test]
    fn what_the_life_does_not_allow_is_refused_with_what_to_do() {
        let (a, b) = ("{}", r#"{"type":"object"}"#);
        let old = [version("1.1", Some("CURRENT"), a), version("1.0", Some("DEPRECATED"), a)];
        for (wanted, why) in [
            (vec![version("1.1", Some("CURRENT"), b)], "version 1.1 is CURRENT and its schema differs"),
            (vec![version("1.1", None, b)], "add a new version"),
            (vec![version("1.1", Some("FINALISING"), a)], "cannot become FINALISING again"),
            (vec![version("1.0", Some("CURRENT"), a)], "cannot become CURRENT again"),
            (vec![version("1.1", Some("CURRENT"), a), version("1.2", Some("CURRENT"), a)], "say 1.1 is DEPRECATED"),
            (vec![version("1.2", None, a), version("1.2", None, a)], "twice"),
            (vec![version("1", None, a)], "MAJOR.MINOR"),
        ] {
            let refused = said(&wanted, &old).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let higher = [version("1.5", Some("CURRENT"), a)];
        assert!(said(&[version("1.4", None, a)], &higher).unwrap_err().contains("must be higher"));
    }
}
