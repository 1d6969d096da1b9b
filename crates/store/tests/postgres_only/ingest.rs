//! Ingest of a batch that PostgreSQL refuses because of one value in it, while others change the catalogue.

use std::time::Duration;

use tidegate_core::{NewEvent, QueueName};
use tidegate_store::api::*;
use tidegate_store::{ErrorKind, Ingest, IngestAnswer, PutResource, Target};

use crate::scene::*;

fn fact(subject: &str) -> Ingest {
    let mut event = NewEvent::new("t", "{}");
    event.subject = Some(subject.into());
    Ingest::new(event, vec![Target::new(QueueName::default())])
}

/// The first transaction of a batch has found the version; that it changes before the next one fails nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_beside_a_refused_value_fails_no_neighbour() {
    let server = Database::new().await;
    let name = format!("{}_latin1", server.0.rsplit('/').next().unwrap());
    server.execute(&format!("CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")).await;
    let database = Database(format!("{}_latin1", server.0));
    let (store, other) = (database.open().await, database.open().await);
    store.ingest(vec![fact("makes the lane")], None).await.unwrap();
    let flood = tokio::spawn(async move {
        for number in 0..300 {
            let (kind, code, body) = ("pool".into(), format!("r{number}"), "{}".into());
            let put = PutResource::Create { id: None, kind, client: None, code, body };
            other.put_resources(vec![put]).await.unwrap().remove(0).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        other.close().await;
    });
    let mut written = 0;
    while !flood.is_finished() || written < 5 {
        let known = store.catalogue_version().await.unwrap();
        let mut batch: Vec<Ingest> = (0..15).map(|_| fact("plain")).collect();
        batch.insert(7, fact("\u{65e5}"));
        let IngestAnswer::Done(answers) = store.ingest(batch, Some(known)).await.unwrap() else { continue };
        let kinds: Vec<_> =
            answers.iter().map(|answer| answer.as_ref().err().map(tidegate_store::Error::kind)).collect();
        let mut expected = vec![None; 16];
        expected[7] = Some(ErrorKind::Invalid);
        assert_eq!(kinds, expected, "{answers:?}");
        written += 1;
    }
    flood.await.unwrap();
    assert_eq!(store.census().await.unwrap().events, 1 + 15 * written);
    store.close().await;
}
