//! Whether an event is valid by its type, and by which version of it.

use std::sync::Arc;

use tidegate_core::cloud_event::{CloudEvent, DataKind};
use tidegate_core::event_type::{TypeStatus, VersionNumber, VersionStatus, default_version};
use tidegate_schema::{Format, Violation};

use crate::gateway::error::{GatewayError, Result};
use crate::gateway::types::Types;
use crate::gateway::{EventType, Gateway, UnknownTypes};

/// The revision of the type that an event was judged by; `None` if its type was not registered.
pub(super) type Revision = Option<i64>;

/// What the judgement on an event rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The version it is valid by; `None` if it was not validated.
    pub(super) version: Option<VersionNumber>,
    pub(super) revision: Revision,
}

/// An event that may be stored.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    /// What its sender should know.
    pub(super) warnings: Vec<String>,
}

impl Verdict {
    /// Whether it would be the same under these types.
    pub(super) fn holds(&self, event_type: &str, types: &Types) -> bool {
        self.revision == types.by_code(event_type).map(|found| found.revision)
    }
}

impl Gateway {
    /// Judges an event by the types that this node knows. The flush that stores it finds out whether these are still the
    /// present ones; what is refused is judged by the present ones at once.
    pub(super) async fn judge(&self, event: &CloudEvent) -> Result<Judgement> {
        let known = self.types.known();
        let refusal = match known.version() {
            Some(_) => match self.judge_by(&known, event).await {
                Err(error) => Some(error),
                passed => return passed,
            },
            None => None,
        };
        let present = self.types.at(&self.queue, self.queue.catalogue_version().await?).await?;
        match refusal {
            Some(error) if present.version() == known.version() => Err(error),
            _ => self.judge_by(&present, event).await,
        }
    }

    async fn judge_by(&self, types: &Types, event: &CloudEvent) -> Result<Judgement> {
        let Some(found) = types.by_code(&event.event_type) else {
            return match self.options.unknown_types {
                UnknownTypes::Accept => Ok(Judgement::passed(None, None)),
                UnknownTypes::Reject => Err(refused("type", format!("{:?} is not registered", event.event_type))),
            };
        };
        if found.status == TypeStatus::Archive {
            return Err(refused("type", format!("the event type {} is archived: its events are refused", found.code)));
        }
        let Some(number) = named(event).or_else(|| default_version(&found.stages())) else {
            let mut judgement = Judgement::passed(None, Some(found.revision));
            if !found.versions.is_empty() {
                let text = format!("the event was not validated: all versions of {} are FINALISING", found.code);
                judgement.warnings.push(text);
            }
            return Ok(judgement);
        };
        let mut judgement = Judgement::passed(Some(number), Some(found.revision));
        match found.versions.iter().find(|one| one.version == number).map(|one| one.status) {
            None if found.versions.is_empty() => return Ok(Judgement::passed(None, Some(found.revision))),
            None => return Err(refused("schemaVersion", format!("{} has no version {number}", found.code))),
            Some(VersionStatus::Finalising) => {
                let text = format!("version {number} of {} is FINALISING: events cannot name it yet", found.code);
                return Err(refused("schemaVersion", text));
            }
            Some(VersionStatus::Deprecated) => {
                judgement.warnings.push(format!("version {number} of {} is DEPRECATED", found.code));
            }
            Some(VersionStatus::Current) => {}
        }
        self.validate_event(found, number, event).await?;
        Ok(judgement)
    }

    async fn validate_event(&self, found: &Arc<EventType>, number: VersionNumber, event: &CloudEvent) -> Result<()> {
        let version = found.version(number)?;
        let media_type = match &event.data {
            Some(data) if data.kind == DataKind::Untyped => &version.mime_type,
            _ => event.datacontenttype.as_deref().unwrap_or("application/json"),
        };
        let Some(format) = version.schema_type.format(media_type) else {
            let text =
                format!("{media_type:?} cannot be validated by a {}: send {}", version.schema_type, version.mime_type);
            return Err(refused("datacontenttype", text));
        };
        let data = event.data.as_ref().map(|data| data.bytes.clone()).unwrap_or_default();
        let report = self.report(found, number, format, data).await?;
        if report.is_valid() {
            return Ok(());
        }
        let violations = report.violations().iter().map(|one| within_data(one, format)).collect();
        let message = match report.total() {
            1 => format!("data does not match version {number} of {}", found.code),
            total => format!("data does not match version {number} of {}: {total} violations", found.code),
        };
        Err(GatewayError::Unprocessable { message, violations })
    }
}

impl Judgement {
    fn passed(version: Option<VersionNumber>, revision: Revision) -> Self {
        Self { verdict: Verdict { version, revision }, warnings: Vec::new() }
    }
}

/// The version that an event names: by its schemaVersion, else at the end of its dataschema (`…/1.0`).
fn named(event: &CloudEvent) -> Option<VersionNumber> {
    event.schema_version.or_else(|| {
        let last = event.dataschema.as_deref()?.rsplit(['/', ':', '#']).next()?;
        last.strip_prefix('v').unwrap_or(last).parse().ok()
    })
}

/// A violation with the field `data` before its path.
fn within_data(violation: &Violation, format: Format) -> Violation {
    let path = match (violation.path.as_str(), format) {
        ("", _) => "data".to_owned(),
        (path, _) if path.starts_with('/') => format!("data{path}"),
        (path, _) => format!("data.{path}"),
    };
    Violation { path, ..violation.clone() }
}

fn refused(path: &str, message: String) -> GatewayError {
    GatewayError::Unprocessable { message: message.clone(), violations: vec![Violation::new(path, message)] }
}
