//! A client that names what belongs to another: every operation answers 403 or 404, and never with data.

use reqwest::Method;
use tidegate_server::{Keyring, Scope};

use super::calls::Operation;
use super::parties::{FIRST, Party, SECOND};
use super::walk::project;
use crate::scene::{Answer, Scene, on_both, send};

/// Operations that answer anybody, without credentials and without data.
const FOR_ANYBODY: [&str; 2] = ["livez", "readyz"];
/// Operations about what is the same for all clients.
const FOR_ALL_CLIENTS: [&str; 2] = ["list_event_types", "list_schemas"];
/// Operations that name nobody and answer with what is the caller's own.
const FOR_ONESELF: [&str; 2] = ["list_clients", "list_keys"];

on_both! {
    with keys:
    every_operation_refuses_a_stranger,
}

async fn every_operation_refuses_a_stranger(mut scene: Scene) {
    let keys = Keyring::new(scene.queue.clone());
    let (mut owner, stranger) = (Party::new(Some(FIRST)), Party::new(Some(SECOND)));
    let key = keys.create("owner", &[Scope::Admin], owner.client).await.unwrap().secret;
    owner.fill(&scene, &key, 0).await;
    project(&scene, &owner).await;
    scene.with_key(keys.create("stranger", &[Scope::Admin], stranger.client).await.unwrap().secret);
    for operation in Operation::all() {
        let id = operation.id.as_str();
        let is_for_anybody = [&FOR_ANYBODY, &FOR_ALL_CLIENTS, &FOR_ONESELF].iter().any(|all| all.contains(&id));
        for call in operation.calls_about(&owner) {
            let answer = send(call.request(&scene)).await;
            assert!(is_for_anybody || is_refused(&answer), "{call:?}: {} {}", answer.status, answer.text);
            shows_nothing(&owner, &call.sent(), &answer);
        }
    }
    // The one route that is not in the document: the document under the empty key.
    let path = format!("/projections/{}/", owner.word("projection"));
    send(scene.request(Method::GET, &path)).await.refused(403, "forbidden");
    scene.close().await;
}

/// Whether an answer, or each result of a batch, is 403 or 404.
fn is_refused(answer: &Answer) -> bool {
    let is_refusal = |status: u64| matches!(status, 403 | 404);
    if is_refusal(answer.status.as_u16().into()) {
        return true;
    }
    let body = answer.json();
    let results = body["results"].as_array().map_or(&[][..], Vec::as_slice);
    !results.is_empty() && results.iter().all(|result| result["status"].as_u64().is_some_and(is_refusal))
}

/// The texts of the party that are in an answer were sent with the request.
fn shows_nothing(party: &Party, sent: &[String], answer: &Answer) {
    let mut text = format!("{:?} {}", answer.headers, answer.text);
    for word in sent {
        text = text.replace(word, "");
    }
    assert!(!text.contains(&party.marker), "{text}");
}
