//! The OpenAPI document, generated from the handlers. A test compares the committed copy, docs/openapi.json, with it.

use http::Method;
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi as Document, RefOr, Response, Schema};
use utoipa::{Modify, OpenApi};

use crate::error::{Code, ErrorBody};
use crate::routes::workers;
use crate::routes::{
    accounts, applied_sets, clients, event_types, events, facts, health, jobs, keys, list, manual, pools, projections,
};
use crate::routes::{publish, queues, replays, report_batch, reports, schedules, schemas};
use crate::routes::{subscribe, subscriptions, tasks, versions};
use crate::unknown_fields::Parameters;

/// Routes for probes and scrapers, which may add query parameters of their own: unknown ones are not refused there.
const FOR_MACHINES: [&str; 4] = ["/livez", "/readyz", "/metrics", "/openapi.json"];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate",
        description = "A durable event queue: publishers post events with tags, workers claim them and report.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        publish::create, publish::create_many,
        subscribe::subscribe, subscribe::claim,
        reports::start, reports::heartbeat, reports::complete, reports::fail, reports::release,
        report_batch::complete_many, report_batch::fail_many,
        list::list, events::show, events::why,
        manual::reset, manual::cancel, manual::redrive, manual::redrive_many,
        queues::list, queues::show, queues::put, queues::pause, queues::resume, queues::drain, queues::metrics,
        workers::list,
        event_types::list, event_types::create, event_types::show, event_types::change, event_types::archive,
        event_types::validate,
        versions::add, versions::change, versions::remove, versions::finalise, versions::deprecate,
        schemas::list, schemas::create, schemas::show, schemas::change, schemas::remove,
        facts::list, facts::create, facts::create_many, facts::show,
        subscriptions::list, subscriptions::create, subscriptions::show, subscriptions::change, subscriptions::remove,
        subscriptions::pause, subscriptions::resume, subscriptions::preview, subscriptions::rotate_secret,
        tasks::create, tasks::create_many,
        replays::replay, replays::test,
        clients::list, clients::create, clients::show, clients::change, clients::remove,
        jobs::list, jobs::show, jobs::why, jobs::retry, jobs::cancel, jobs::ignore, jobs::bulk, jobs::groups,
        pools::list, pools::create, pools::show, pools::change, pools::remove,
        accounts::list, accounts::create, accounts::show, accounts::change, accounts::remove, accounts::rotate_secret,
        applied_sets::list, applied_sets::create, applied_sets::show, applied_sets::change, applied_sets::remove,
        keys::list, keys::create, keys::revoke,
        schedules::list, schedules::show, schedules::put, schedules::remove, schedules::pause, schedules::resume,
        schedules::run,
        projections::list, projections::show, projections::remove, projections::document,
        health::livez, health::readyz, health::metrics,
    ),
    components(schemas(ErrorBody, Code)),
    security(("bearer" = [])),
    modifiers(&CommonAnswers),
)]
struct Api;

/// Adds the security scheme, and the error answers that every operation has.
struct CommonAnswers;

impl Modify for CommonAnswers {
    fn modify(&self, document: &mut Document) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key, or a token of the configured OpenID Connect issuer."))
            .build();
        if let Some(components) = &mut document.components {
            components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
        }
        for (path, item) in &mut document.paths.paths {
            let is_open = matches!(path.as_str(), "/livez" | "/readyz");
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
            for operation in operations.into_iter().flatten() {
                if is_open {
                    continue;
                }
                for (status, text) in [
                    ("400", "The request is invalid; `error` says what to change."),
                    ("401", "The credentials are missing or not valid."),
                    ("403", "The credentials do not allow this."),
                    ("408", "The body did not arrive in time."),
                    ("503", "The server is overloaded, or the database does not answer; try again."),
                ] {
                    operation.responses.responses.entry(status.into()).or_insert_with(|| RefOr::T(error(text)));
                }
            }
        }
    }
}

fn error(description: &str) -> Response {
    let schema: RefOr<Schema> = utoipa::openapi::Ref::from_schema_name("ErrorBody").into();
    let content = Content::new(Some(schema));
    utoipa::openapi::ResponseBuilder::new().description(description).content("application/json", content).build()
}

/// The document as JSON text.
///
/// ```
/// assert!(tidegate_server::openapi().contains("\"openapi\": \"3.1.0\""));
/// ```
#[must_use]
pub fn document() -> String {
    let mut text = Api::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// The query parameters of each operation, except those [`FOR_MACHINES`].
pub(crate) fn parameters() -> Parameters {
    let mut known = Parameters::default();
    for (path, item) in Api::openapi().paths.paths {
        if FOR_MACHINES.contains(&path.as_str()) {
            continue;
        }
        let operations = [
            (Method::GET, item.get),
            (Method::PUT, item.put),
            (Method::POST, item.post),
            (Method::DELETE, item.delete),
            (Method::PATCH, item.patch),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let all = operation.parameters.unwrap_or_default().into_iter();
            let names = all.filter(|one| one.parameter_in == ParameterIn::Query).map(|one| one.name).collect();
            known.0.entry(path.clone()).or_default().push((method, names));
        }
    }
    known
}
