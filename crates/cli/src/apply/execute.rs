//! Takes the steps of a plan, one after the other, each on what was read. It stops at the first one that is refused.

use std::io::Write;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::bodies;
use super::kinds::{Kind, Name};
use super::plan::{Action, Plan, Step};
use super::present::{Present, Thing};
use super::sets::{Sets, fingerprint};
use super::versions::VersionStep;
use crate::client::{Client, Refused, is_status, path_part};
use crate::failure::Failure;
use crate::output::{self, cell, shown};

/// Where signing secrets go.
#[derive(Debug)]
pub(crate) enum Secrets {
    /// They are printed, once.
    Printed,
    /// They are kept for the answer in JSON.
    Kept(Vec<Value>),
    /// They are added to a file, one JSON object per line.
    File(std::fs::File),
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The steps that were taken.
    pub(crate) steps: Vec<(Action, Name)>,
    /// The step that failed, and why.
    pub(crate) failed: Option<(Name, String)>,
}

/// A plan on its way.
pub(crate) struct Execution<'a> {
    pub(crate) client: &'a Client,
    pub(crate) present: Present,
    pub(crate) sets: Sets,
    pub(crate) secrets: Secrets,
}

impl Execution<'_> {
    /// Takes all steps.
    ///
    /// # Errors
    /// When the record of the set cannot be written. A step that fails is in the answer.
    pub(crate) async fn run(&mut self, plan: &Plan) -> Result<Done, Failure> {
        let creates = plan.steps.iter().filter(|step| step.action == Action::Create);
        let noted: Vec<(Name, String)> = creates
            .filter_map(|step| {
                let document = step.document.as_ref()?;
                Some((step.name.clone(), fingerprint(step.name.kind, &step.name.code, &document.fields)))
            })
            .collect();
        let adopted: Vec<Name> = plan.steps.iter().filter(|step| step.adopts).map(|step| step.name.clone()).collect();
        self.sets.begin(self.client, &self.present, &noted, &adopted).await?;
        let mut done = Done::default();
        let (mut made, mut gone) = (Vec::new(), Vec::new());
        let mut given_up: Vec<Name> = noted.into_iter().map(|(name, _)| name).collect();
        for step in plan.changes() {
            let taken = self.take(step, &mut made).await;
            if let Err(error) = taken {
                // Without an answer it may have been made: it stays noted, and the next apply will know.
                if error.downcast_ref::<Refused>().is_none() {
                    given_up.retain(|name| *name != step.name);
                }
                done.failed = Some((step.name.clone(), said(&step.name, &error)));
                break;
            }
            if step.action == Action::Delete {
                gone.push(step.name.clone());
            }
            done.steps.push((step.action, step.name.clone()));
        }
        self.sets.end(self.client, &made, &gone, &given_up).await?;
        Ok(done)
    }

    async fn take(&mut self, step: &Step, made: &mut Vec<(Name, Option<String>)>) -> Result<(), Failure> {
        match step.action {
            Action::Create | Action::Change => self.put(step, made).await,
            Action::Delete => self.delete(&step.name).await,
            Action::Adopt | Action::Unchanged => Ok(()),
        }
    }

    async fn put(&mut self, step: &Step, made: &mut Vec<(Name, Option<String>)>) -> Result<(), Failure> {
        let (name, Some(document)) = (&step.name, &step.document) else { return Ok(()) };
        let known = self.present.things.get(name).cloned();
        let body = bodies::body(document, name, known.as_ref(), &self.present)?;
        let is_new = step.action == Action::Create;
        let Some(path) = name.kind.path() else {
            return self.put_by_name(step, body, known.as_ref(), made).await;
        };
        let later = ["status", "versions"];
        let is_said = step.differences.iter().any(|one| !later.contains(&one.field) || name.kind == Kind::Pool);
        let mut at = At { path: String::new(), tag: known.as_ref().and_then(|known| known.tag.clone()) };
        if is_new {
            let (answer, tag) = self.client.send_tagged(Method::POST, path, Some(&body), None).await?;
            made.push((name.clone(), answer["id"].as_str().map(str::to_owned)));
            self.secret(name, &answer)?;
            at = At { path: format!("{path}/{}", path_part(&cell(&answer, "id"))), tag };
            self.present.add(name.kind, &answer)?;
        } else {
            let id = known.as_ref().and_then(|known| known.identity.clone()).unwrap_or_default();
            at.path = format!("{path}/{}", path_part(&id));
            if is_said {
                at.tag = self.client.send_tagged(Method::PUT, &at.path, Some(&body), at.tag.as_deref()).await?.1;
            }
        }
        for version in &step.versions {
            self.version(&mut at, version, step).await?;
        }
        let status = document.fields.get("status").and_then(Value::as_str);
        let verb = match (name.kind, status) {
            (Kind::Subscription, Some("PAUSED")) => "pause",
            (Kind::Subscription, Some("ACTIVE")) if !is_new => "resume",
            (Kind::EventType, Some("ARCHIVE")) => "archive",
            _ => return Ok(()),
        };
        if is_new || step.differences.iter().any(|one| one.field == "status") {
            self.client.send_tagged(Method::POST, &format!("{}/{verb}", at.path), None, at.tag.as_deref()).await?;
        }
        Ok(())
    }

    async fn version(&self, at: &mut At, step: &VersionStep, of: &Step) -> Result<(), Failure> {
        let base = format!("{}/versions", at.path);
        let said = |number: &str| of.document.as_ref().and_then(|document| bodies::version(document, number));
        let (method, path, body) = match step {
            VersionStep::Add(number) => (Method::POST, base, said(number)),
            VersionStep::Change(number) => (Method::PUT, format!("{base}/{}", path_part(number)), said(number)),
            VersionStep::Finalise(number) => (Method::POST, format!("{base}/{}/finalise", path_part(number)), None),
            VersionStep::Deprecate(number) => (Method::POST, format!("{base}/{}/deprecate", path_part(number)), None),
        };
        let (_, tag) = self.client.send_tagged(method, &path, body.as_ref(), at.tag.as_deref()).await?;
        at.tag = tag;
        Ok(())
    }

    /// Puts a queue or a schedule, which have no entity tags: they are read once more right before.
    async fn put_by_name(
        &mut self,
        step: &Step,
        body: Value,
        known: Option<&Thing>,
        made: &mut Vec<(Name, Option<String>)>,
    ) -> Result<(), Failure> {
        let (name, Some(document)) = (&step.name, &step.document) else { return Ok(()) };
        let (path, query) = self.by_name(name)?;
        self.check_unchanged(name, &path, &query, known).await?;
        let answer = self.client.put(&format!("{path}{query}"), &body).await?;
        if step.action == Action::Create {
            let identity = answer["created_at"].as_str().filter(|_| name.kind == Kind::Schedule);
            made.push((name.clone(), identity.map(str::to_owned)));
        }
        let verb = match (name.kind, document.fields.get("state").or(document.fields.get("paused"))) {
            (Kind::Queue, Some(state)) if *state != answer["state"] => match state.as_str() {
                Some("paused") => "pause",
                Some("draining") => "drain",
                _ => "resume",
            },
            (Kind::Schedule, Some(paused)) if *paused != answer["paused"] => {
                if *paused == true {
                    "pause"
                } else {
                    "resume"
                }
            }
            _ => return Ok(()),
        };
        self.client.post(&format!("{path}/{verb}{query}"), &json!({})).await?;
        Ok(())
    }

    /// Where a queue or a schedule is: its path, and what follows it.
    fn by_name(&self, name: &Name) -> Result<(String, String), Failure> {
        let base = if name.kind == Kind::Queue { "/queues" } else { "/schedules" };
        let query = match &name.client {
            Some(code) => {
                let id = self.present.client_id(code).ok_or_else(|| format!("there is no client {code}"))?;
                format!("?client={}", path_part(&id))
            }
            None => String::new(),
        };
        Ok((format!("{base}/{}", path_part(&name.code)), query))
    }

    async fn check_unchanged(
        &self,
        name: &Name,
        path: &str,
        query: &str,
        known: Option<&Thing>,
    ) -> Result<(), Failure> {
        let changed = || format!("{name} has changed since it was read: apply again, and look at the new plan").into();
        let found = match self.client.get(&format!("{path}{query}"), &[]).await {
            Err(error) if is_status(&error, StatusCode::NOT_FOUND) => None,
            found => Some(found?),
        };
        match (found, known) {
            (None, None) => Ok(()),
            (Some(found), Some(known)) if self.present.shows(name.kind, &found) == known.fields => Ok(()),
            _ => Err(changed()),
        }
    }

    async fn delete(&mut self, name: &Name) -> Result<(), Failure> {
        let Some(thing) = self.present.things.get(name).cloned() else { return Ok(()) };
        let id = thing.identity.clone().unwrap_or_default();
        let deleted = match name.kind.path() {
            Some(path) if name.kind == Kind::EventType => {
                let path = format!("{path}/{}/archive", path_part(&id));
                self.client.send_tagged(Method::POST, &path, None, thing.tag.as_deref()).await.map(drop)
            }
            Some(path) => {
                let path = format!("{path}/{}", path_part(&id));
                self.client.send_tagged(Method::DELETE, &path, None, thing.tag.as_deref()).await.map(drop)
            }
            None => {
                let (path, query) = self.by_name(name)?;
                self.check_unchanged(name, &path, &query, Some(&thing)).await?;
                self.client.delete(&format!("{path}{query}")).await.map(drop)
            }
        };
        match deleted {
            Err(error) if is_status(&error, StatusCode::NOT_FOUND) => {}
            deleted => deleted?,
        }
        self.present.remove(name);
        Ok(())
    }

    /// Hands on the signing secret in an answer, at once: it is shown this one time.
    fn secret(&mut self, name: &Name, answer: &Value) -> Result<(), Failure> {
        let Some(secret) = answer["signingSecret"].as_str() else { return Ok(()) };
        let said = json!({
            "client": name.client, "code": name.code, "id": answer["id"], "signingSecret": secret,
        });
        match &mut self.secrets {
            Secrets::Printed => {
                output::line(&format!("signing secret of {}: {secret}", shown(&name.within())));
            }
            Secrets::Kept(all) => all.push(said),
            Secrets::File(file) => {
                let written = writeln!(file, "{said}").and_then(|()| file.sync_data());
                if let Err(error) = written {
                    output::line(&format!("signing secret of {}: {secret}", shown(&name.within())));
                    return Err(
                        format!("the file of secrets cannot be written, so the last one is above: {error}").into()
                    );
                }
            }
        }
        Ok(())
    }
}

/// Where a thing is, and the revision that the next step is taken on.
struct At {
    path: String,
    tag: Option<String>,
}

fn said(name: &Name, error: &Failure) -> String {
    if is_status(error, StatusCode::PRECONDITION_FAILED) {
        return format!(
            "{name} has changed since it was read and was not overwritten: apply again, and look at the new plan"
        );
    }
    format!("{name}: {error}")
}
