//! `/api/events`: stores events in the source's JSON and in every mode of CloudEvents, shows and lists them. A caller of a
//! client stores and sees that client's events.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, StatusCode};
use tidegate::Tsid;
use tidegate_core::cloud_event::{
    CloudEvent, Form, InvalidCloudEvent, STRUCTURED, Sent, UnsupportedMediaType, split_batch, split_events,
};
use tidegate_dispatch::NewFact;

use crate::access::Caller;
use crate::callers::{Publisher, Reader};
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{EventsBody, PathText, Query, tsid};
use crate::service::Service;
use crate::wire::cloud_event::CloudEventBody;
use crate::wire::facts::{
    FactAnswer, FactPath, FactResult, FactResults, FactsAnswer, FactsParams, NewFactBody, NewFactsBody,
};
use crate::wire::trace;

/// Stores an event, and makes an entry or a job for every subscription that asks for it, together. Takes the source's JSON,
/// and CloudEvents in structured and binary mode.
#[utoipa::path(
    post, path = "/api/events", operation_id = "create_event", tag = "gateway",
    request_body(content(
        (NewFactBody = "application/json"),
        (CloudEventBody = "application/cloudevents+json"),
    ), description = "An event. In binary mode, its attributes are headers (`ce-…`) and the body is its data."),
    responses(
        (status = 201, description = "The event is durable, with all that was made for it.", content(
            (FactAnswer = "application/json"), (CloudEventBody = "application/cloudevents+json"),
        )),
        (status = 200, description = "The event was stored before, under one of its keys.", content(
            (FactAnswer = "application/json"), (CloudEventBody = "application/cloudevents+json"),
        )),
        (status = 409, description = "The event's type keeps changing at the same time.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is in no form that is accepted.", body = ErrorBody),
        (status = 422, description = "The data does not match the version of its type, the type or the version is not accepted, or a key stands for another event.", body = ErrorBody),
        (status = 429, description = "The queue of a subscription is full, draining or gone.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    EventsBody(body): EventsBody,
) -> Result<Response> {
    let fact = match form(&headers)? {
        Form::Json => sent(&caller, &body)?,
        Form::Structured => of_client(&caller, CloudEvent::from_structured(&body).map_err(refused)?)?,
        Form::Binary => of_client(&caller, CloudEvent::from_binary(plain(&headers), body).map_err(refused)?)?,
        Form::Batched => return Err(ApiError::invalid("a batch goes to /api/events/batch")),
    };
    let fact = traced(fact, &headers);
    check_payload(&service, &fact)?;
    let accepted = service.gateway.ingest(fact).await?;
    let status = if accepted.deduplicated { StatusCode::OK } else { StatusCode::CREATED };
    if wants_cloud_event(&headers) {
        let body = accepted.view.event.to_structured(accepted.view.id);
        return Ok((status, [(CONTENT_TYPE, STRUCTURED)], body).into_response());
    }
    let answer = FactAnswer::accepted(accepted, caller.visible(None)?)?;
    let location = format!("/api/events/{}", answer.id);
    Ok((status, [(LOCATION, location)], Json(answer)).into_response())
}

/// Stores many events, each with a result of its own, which shows the first 100 jobs and entries that were made for the event.
/// Takes the source's JSON and CloudEvents in batched mode.
#[utoipa::path(
    post, path = "/api/events/batch", operation_id = "create_events", tag = "gateway",
    request_body(content(
        (NewFactsBody = "application/json"),
        (Vec<CloudEventBody> = "application/cloudevents-batch+json"),
    ), description = "Events."),
    responses(
        (status = 200, description = "A result for each event, in order.", body = FactResults),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is in no form that is accepted.", body = ErrorBody),
    ),
)]
pub(crate) async fn create_many(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    EventsBody(body): EventsBody,
) -> Result<Json<FactResults>> {
    let most = service.options.limits.batch_items;
    let facts: Vec<Result<NewFact>> = match form(&headers)? {
        Form::Json => {
            let events = split_events(&body, most).map_err(refused)?;
            events.iter().map(|event| sent(&caller, event)).collect()
        }
        Form::Batched => {
            let events = split_batch(&body, most).map_err(refused)?;
            let read = |event| of_client(&caller, CloudEvent::from_structured(event).map_err(refused)?);
            events.iter().map(read).collect()
        }
        Form::Structured | Form::Binary => return Err(ApiError::invalid("a single event goes to /api/events")),
    };
    let checked = |fact: NewFact| check_payload(&service, &fact).map(|()| traced(fact, &headers));
    let facts: Vec<Result<NewFact>> = facts.into_iter().map(|fact| fact.and_then(checked)).collect();
    let mut accepted = service.gateway.ingest_many(facts.iter().flatten().cloned().collect()).await.into_iter();
    let lost = || ApiError::new(Code::Indeterminate, "the store gave no answer for this event");
    let answer = |fact: Result<NewFact>| fact.and_then(|_| Ok(accepted.next().ok_or_else(lost)??));
    let visible = caller.visible(None)?;
    let results = facts.into_iter().map(answer).map(|result| FactResult::of(result, visible)).collect();
    Ok(Json(FactResults { results }))
}

/// Lists events, youngest first, each with the first 100 jobs and entries that were made for it.
#[utoipa::path(
    get, path = "/api/events", operation_id = "list_facts", tag = "gateway", params(FactsParams),
    responses((status = 200, body = FactsAnswer, description = "A page. It may hold fewer events than `limit`: only the \
        absence of `nextCursor` means the end.")),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<FactsParams>,
) -> Result<Json<FactsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let page = service.gateway.events(&params.read(visible)?).await?;
    Ok(Json(FactsAnswer::of(page, visible)?))
}

/// Shows an event with the jobs and entries that were made for it; as a CloudEvent for those who accept nothing else.
#[utoipa::path(
    get, path = "/api/events/{id}", operation_id = "show_fact", tag = "gateway", params(FactPath),
    responses(
        (status = 200, description = "The event.", content(
            (FactAnswer = "application/json"), (CloudEventBody = "application/cloudevents+json"),
        )),
        (status = 404, description = "There is no such event.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    headers: HeaderMap,
    PathText(id): PathText,
) -> Result<Response> {
    let found = service.gateway.event(tsid("event", &id)?, caller.visible(None)?.client()).await?;
    if wants_cloud_event(&headers) {
        return Ok(([(CONTENT_TYPE, STRUCTURED)], found.event.to_structured(found.id)).into_response());
    }
    Ok(Json(FactAnswer::of(found)?).into_response())
}

fn form(headers: &HeaderMap) -> Result<Form> {
    let unsupported = |error: UnsupportedMediaType| ApiError::new(Code::UnsupportedMediaType, error.to_string());
    Form::of(plain(headers)).map_err(unsupported)
}

fn plain(headers: &HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
}

fn refused(error: InvalidCloudEvent) -> ApiError {
    ApiError::invalid(error.to_string())
}

/// An event in the source's JSON.
fn sent(caller: &Caller, body: &Bytes) -> Result<NewFact> {
    let Sent { event, client } = Sent::from_json(body).map_err(refused)?;
    let client = client.map(|client: Tsid| client.to_string());
    Ok(NewFact { event, client: caller.visible_as("clientId", client.as_deref())?.client() })
}

/// A CloudEvent, which belongs to the caller's client.
fn of_client(caller: &Caller, event: CloudEvent) -> Result<NewFact> {
    Ok(NewFact { event, client: caller.visible(None)?.client() })
}

/// An event that has no trace context of its own continues that of its request.
fn traced(mut fact: NewFact, headers: &HeaderMap) -> NewFact {
    if let (None, Some(trace)) = (&fact.event.traceparent, trace::of(headers)) {
        fact.event.traceparent = Some(trace.traceparent.to_owned());
        fact.event.tracestate = trace.tracestate.map(str::to_owned);
    }
    fact
}

fn check_payload(service: &Service, fact: &NewFact) -> Result<()> {
    let (length, most) =
        (fact.event.data.as_ref().map_or(0, |data| data.bytes.len()), service.options.limits.payload_bytes);
    if length <= most {
        return Ok(());
    }
    let text = format!(
        "data has {length} bytes, above the limit of {most}: store large data elsewhere, for instance in an object store, \
         and send a URI to it"
    );
    Err(ApiError::new(Code::PayloadTooLarge, text))
}

/// Whether a CloudEvent is the first thing that the caller accepts.
fn wants_cloud_event(headers: &HeaderMap) -> bool {
    let first = headers.get(ACCEPT).and_then(|value| value.to_str().ok()?.split([',', ';']).next());
    first.is_some_and(|first| first.trim().eq_ignore_ascii_case(STRUCTURED))
}
