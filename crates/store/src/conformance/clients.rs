//! Clients: a queue is (client, name), and its entries belong to that client.

use std::time::Duration;

use tidegate_core::{QueueName, QueueState, Tsid};

use super::scene::*;
use crate::ErrorKind::{Invalid, NotFound};
use crate::values::*;
use crate::values::{ListQuery, WorkersQuery};

fn client(number: i64) -> Tsid {
    Tsid::from_i64(number)
}

fn of(number: i64, name: &str) -> QueueName {
    QueueName::of(client(number), name).expect("a queue's name")
}

async fn create(store: &AnyStore, queue: &QueueName) {
    store.put_queue(queue, QueueChange::default()).await.unwrap();
}

fn from(queue: &QueueName) -> Claim {
    Claim { queue: queue.clone(), ..want(10) }
}

pub(super) async fn queues_of_one_name_are_apart(scene: Scene) {
    let store = scene.open().await;
    let queues = [queue("mail"), of(7, "mail"), of(8, "mail")];
    let mut published = Vec::new();
    for name in &queues {
        create(&store, name).await;
        published.push(publish_one(&store, event("t").queue(name.clone())).await);
    }
    let paused = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    store.put_queue(&queues[2], paused).await.unwrap();

    let other = scene.open().await;
    for store in [&store, &other] {
        let known: Vec<QueueName> = store.queues().await.unwrap().into_iter().map(|config| config.name).collect();
        assert_eq!(known, [default_queue(), queues[0].clone(), queues[1].clone(), queues[2].clone()]);
        for (name, id) in queues.iter().zip(&published) {
            assert_eq!(view(store, *id).await.queue, *name);
            assert_eq!(store.depth(name).await.unwrap().total(), 1);
        }
    }
    assert_eq!(ids(&other.claim(from(&queues[1])).await.unwrap()), [published[1]]);
    assert_eq!(ids(&store.claim(from(&queues[2])).await.unwrap()), [], "only this queue is paused");
    assert_eq!(ids(&store.claim(from(&queues[0])).await.unwrap()), [published[0]]);
    assert_eq!(kind(store.claim(from(&of(9, "mail"))).await), NotFound);
    assert_eq!(kind(try_publish(&store, event("t").queue(of(9, "mail"))).await), NotFound);
}

pub(super) async fn what_goes_into_a_clients_queue_is_the_clients(scene: Scene) {
    let store = scene.open().await;
    let mail = of(7, "mail");
    create(&store, &mail).await;
    create(&store, &of(8, "mail")).await;
    let plain = publish_one(&store, event("t").queue(mail.clone())).await;
    let tagged = publish_one(&store, event("t").queue(mail.clone()).tags(["a"]).title("x")).await;
    let elsewhere = publish_one(&store, event("t").queue(of(8, "mail"))).await;
    let unscoped = publish_one(&store, event("t")).await;
    let mut tx = scene.begin().await;
    let own = tx.publish_in(vec![event("t").queue(mail.clone())]).await.unwrap()[0].id;
    tx.commit().await;
    store.maintain().await.unwrap();
    let mut foreign = event("t").queue(mail.clone());
    foreign.client = Some(client(8));
    assert_eq!(kind(try_publish(&store, foreign).await), Invalid);

    for id in [plain, tagged, own] {
        assert_eq!(view(&store, id).await.fact.client, Some(client(7)));
    }
    assert_eq!(view(&store, unscoped).await.fact.client, None);
    let taken = store.claim(from(&mail)).await.unwrap();
    assert_eq!(taken.len(), 3);
    complete(&store, &taken[0]).await;
    complete(&store, &taken[1]).await;
    let works = store.as_ref();
    for (number, expected) in [(7, vec![own, tagged, plain]), (8, vec![elsewhere]), (9, vec![])] {
        let query = ListQuery { client: Some(client(number)), limit: 10, ..ListQuery::default() };
        let page = works.list(query).await.unwrap();
        assert_eq!(page.items.iter().map(|entry| entry.id).collect::<Vec<_>>(), expected);
        assert!(page.items.iter().all(|entry| entry.client == Some(client(number))));
        assert_eq!((page.total, page.total_capped), (expected.len() as u64, false));
    }
}

pub(super) async fn one_worker_in_two_clients_is_two_workers(scene: Scene) {
    let store = scene.open().await;
    for number in [7, 8] {
        let mail = of(number, "mail");
        create(&store, &mail).await;
        publish_one(&store, event("t").queue(mail.clone())).await;
        store.claim(Claim { audit: true, ..from(&mail) }).await.unwrap();
        let seen = LiveConsumer { worker: "w".into(), queue: mail, types: None, tags: vec![] };
        only(store.consumers_seen(vec![seen]).await).unwrap();
    }
    let workers = store.workers(Duration::from_secs(60)).await.unwrap();
    let found: Vec<_> = workers.iter().map(|view| (view.client, view.queues.clone(), view.held)).collect();
    assert_eq!(found, [7, 8].map(|number| (Some(client(number)), vec![of(number, "mail")], 1)));
}

pub(super) async fn a_client_sees_its_own_workers_and_tags_only(scene: Scene) {
    let store = scene.open().await;
    let mut published = Vec::new();
    for number in [7, 8] {
        let mail = of(number, "mail");
        create(&store, &mail).await;
        let tagged = || event("t").queue(mail.clone()).tags(["a"]);
        published.push(publish(&store, vec![tagged(), tagged(), tagged()]).await);
        let taken = store.claim(Claim { max: 2, ..from(&mail) }).await.unwrap();
        complete(&store, &taken[0]).await;
    }
    let works = store.as_ref();
    for (number, own) in [7, 8].into_iter().zip(published) {
        let client = Some(client(number));
        let query = WorkersQuery { client, limit: 10, stale_after: LEASE, ..WorkersQuery::default() };
        let workers = works.workers_page(query).await.unwrap().workers;
        let held: Vec<_> = workers.into_iter().map(|worker| (worker.worker, worker.client, worker.holds)).collect();
        assert_eq!(held, [("w".to_owned(), client, vec![own[1]])]);
        let query = ListQuery { client, tags: vec!["a".into()], limit: 10, ..ListQuery::default() };
        let page = works.list(query).await.unwrap();
        let listed: Vec<_> = page.items.iter().map(|entry| entry.id).collect();
        assert_eq!((listed, page.total), (vec![own[2], own[1], own[0]], 3));
    }
}

pub(super) async fn two_changes_at_once_both_count(scene: Scene) {
    let (one, two) = (scene.open().await, scene.open().await);
    for round in 1..=30_u32 {
        let name = queue(&format!("q{round}"));
        let settings = SettingsChange { lease_seconds: Some(Some(round)), ..SettingsChange::default() };
        let lease = QueueChange { settings, ..QueueChange::default() };
        let settings = SettingsChange { max_retries: Some(Some(round)), ..SettingsChange::default() };
        let retries = QueueChange { settings, depth_limit: Some(Some(5)), ..QueueChange::default() };
        let (first, second) = tokio::join!(one.put_queue(&name, lease), two.put_queue(&name, retries));
        first.unwrap();
        second.unwrap();
        let stored = one.put_queue(&name, QueueChange::default()).await.unwrap();
        assert_eq!((stored.settings.lease_seconds, stored.settings.max_retries), (Some(round), Some(round)));
        assert_eq!(stored.depth_limit, Some(5));
    }
}
