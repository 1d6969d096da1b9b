//! Families: two sets of queues in one database, by the same verbs.

use std::time::Duration;

use tidegate_core::{End, QueueState};

use super::scene::*;
use crate::ErrorKind;
use crate::values::*;

pub(super) async fn two_families_are_apart(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let grouped = || event("t").group("g").deduplicate("k");
    let entry = publish_one(&store, grouped()).await;
    let job = publish_one(&jobs, grouped()).await;
    assert_ne!(entry, job, "numbers are drawn from one space");
    assert_eq!((depth(&store).await.ready, depth(&jobs).await.ready), (1, 1), "groups and keys are apart");
    assert_eq!(claim_ids(&jobs, 9).await, [job]);
    let taken = claim_one(&store).await;
    assert_eq!(taken.id, entry);
    assert_eq!(kind(finalize(&jobs, end(&taken, End::Completed)).await), ErrorKind::NotFound);
    assert_eq!(jobs.entries(vec![entry]).await.unwrap(), [None]);
    complete(&store, &taken).await;
    assert_eq!((depth(&store).await.total(), depth(&jobs).await.leased), (0, 1));
    // Through another handle, and through the handle of the other family, it is the same family.
    let again = jobs.family(Family::Entries).family(Family::Jobs);
    assert_eq!(depth(&again).await.leased, 1);
    assert_eq!(store.entries(vec![entry]).await.unwrap().len(), 1);
}

pub(super) async fn queues_of_one_name_are_two(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let pause = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    jobs.put_queue(&queue("q"), pause).await.unwrap();
    assert_eq!(store.queue(&queue("q")).await.unwrap(), None);
    store.put_queue(&queue("q"), QueueChange::default()).await.unwrap();
    let of_q = || event("t").queue(queue("q"));
    publish_one(&store, of_q()).await;
    publish_one(&jobs, of_q()).await;
    let claim = Claim { queue: queue("q"), ..want(9) };
    assert_eq!(jobs.claim(claim.clone()).await.unwrap(), [], "it is paused");
    assert_eq!(store.claim(claim).await.unwrap().len(), 1);
    // Another process sees each family's own settings.
    let there = scene.open().await;
    let state = there.family(Family::Jobs).queue(&queue("q")).await.unwrap().map(|config| config.state);
    assert_eq!(state, Some(QueueState::Paused));
    assert_eq!(there.queue(&queue("q")).await.unwrap().map(|config| config.state), Some(QueueState::Active));
}

pub(super) async fn upkeep_serves_both(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    for family in [&store, &jobs] {
        publish(family, vec![event("old").expires_after(seconds(5)), event("t")]).await;
    }
    scene.advance(5);
    let expired = store.maintain().await.unwrap().expired + jobs.maintain().await.unwrap().expired;
    assert_eq!((expired, depth(&store).await.total(), depth(&jobs).await.total()), (2, 1, 1));
}

pub(super) async fn an_outage_moves_the_leases_of_both(scene: Scene) {
    let store = scene.open_on_database_time().await;
    store.maintain().await.unwrap();
    let mut held = Vec::new();
    for family in Family::ALL {
        let family = store.family(family);
        publish_one(&family, event("t")).await;
        let short = Claim { lease: Duration::from_millis(20), ..want(1) };
        held.push(family.claim(short).await.unwrap().remove(0));
    }
    store.close().await;
    scene.fixture.age_heartbeat(seconds(600)).await;
    let store = scene.open_on_database_time().await;
    // One of them notices the outage, for both.
    store.family(Family::Jobs).beat().await.unwrap();
    for (family, held) in Family::ALL.into_iter().zip(&held) {
        let family = store.family(family);
        assert_eq!(claim(&family, 9).await, [], "the lease was held when the store went down");
        complete(&family, held).await;
    }
}

pub(super) async fn jobs_have_neither_tags_nor_audit(scene: Scene) {
    let jobs = scene.open().await.family(Family::Jobs);
    assert_eq!(kind(try_publish(&jobs, event("t").tags(["a"])).await), ErrorKind::Invalid);
    publish_one(&jobs, event("t")).await;
    assert_eq!(kind(jobs.claim(Claim { audit: true, ..want(1) }).await), ErrorKind::Invalid);
    assert_eq!(kind(jobs.claim(Claim { tags: Some(vec!["a".into()]), ..want(1) }).await), ErrorKind::Invalid);
    assert_eq!(kind(jobs.list(ListQuery::default()).await), ErrorKind::Invalid);
    assert_eq!(kind(jobs.claimable(&default_queue(), vec!["a".into()]).await), ErrorKind::Invalid);
    assert_eq!(kind(jobs.report(Vec::new()).await), ErrorKind::Invalid);
    assert_eq!(kind(jobs.started(Vec::new()).await), ErrorKind::Invalid);
    assert_eq!(claim(&jobs, 1).await.len(), 1);
}

pub(super) async fn a_claim_by_tag_takes_no_quotas(scene: Scene) {
    let store = scene.open().await;
    let quotas = std::collections::BTreeMap::from([("t".to_owned(), 1)]);
    let claim = Claim { tags: Some(vec!["a".into()]), quotas, ..want(1) };
    assert_eq!(kind(store.claim(claim).await), ErrorKind::Invalid);
}
