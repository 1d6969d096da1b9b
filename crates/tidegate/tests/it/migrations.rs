//! Opening on a PostgreSQL database whose administrator made the schema, and in namespaces that are SQL keywords.

use std::time::Duration;

use tidegate::{EventQueue, NewEvent};
use tokio_postgres::Client;

use crate::databases::Place;
use crate::support::soon;

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_an_administrator_made_needs_no_right_to_make_one() {
    let place = Place::postgres();
    let owner = connect(&place.address()).await;
    let role = format!("modest_{}", std::process::id());
    let made = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA tidegate AUTHORIZATION {role}");
    owner.batch_execute(&made).await.unwrap();
    let address = place.address().replace("tidegate@", &format!("{role}@"));
    let queue = soon("opening", EventQueue::open(&address)).await.unwrap();
    queue.publish(NewEvent::new("t", "{}")).await.unwrap();
    queue.close().await;
    let other = EventQueue::builder().namespace("elsewhere").open(&address).await.unwrap_err();
    assert!(other.to_string().contains("privilege"), "{other}");
    owner.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_may_be_a_word_of_sql() {
    let place = Place::postgres();
    for name in ["order", "user", "table"] {
        let open = || async { EventQueue::builder().namespace(name).open(place.address()).await };
        let (queue, other) = (open().await.unwrap(), open().await.unwrap());
        let client = connect(&place.address()).await;
        client.batch_execute(&format!("SELECT \"{name}\".publish('t', '1', wake => true)")).await.unwrap();
        let event = soon("a wake-up", other.consumer().next(Duration::from_secs(20))).await.unwrap().unwrap();
        event.complete().await.unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 0);
        queue.close().await;
        other.close().await;
    }
}
