//! Invalid input: each bad item is refused with a clear error, nothing is half-written, nothing panics.

use std::time::Duration;

use tidegate_core::{End, EntryId, LeaseToken, NewEvent, PayloadLimit, Timestamp};

use super::scene::*;
use crate::ErrorKind::{Invalid, NotFound};
use crate::values::*;

pub(super) async fn each_bad_event_is_refused_alone(scene: Scene) {
    let store = scene.open().await;
    let mut bad_end = event("t");
    bad_end.exhausted_as = End::Completed;
    let mut nul = event("t");
    nul.source = Some("a\0b".into());
    let bad = [
        event(""),
        event("a\0b"),
        event(&"x".repeat(256)),
        event("t").priority(101),
        event("t").max_attempts(0),
        event("t").group(""),
        event("t").deduplicate("\u{7}"),
        event("t").delay(Duration::MAX),
        event("t").available_at(Timestamp::MAX),
        bad_end,
        nul,
    ];
    let count = bad.len();
    let mut batch = Vec::new();
    for event in bad {
        batch.extend([event, super::scene::event("t")]);
    }
    let answers = kinds(&store.publish(batch).await.unwrap());
    assert_eq!(answers, [Some(Invalid), None].repeat(count));
    assert_eq!(claim(&store, 100).await.len(), count);
    census(&store).await;
}

pub(super) async fn payloads_above_the_limit(scene: Scene) {
    let store = scene.open_with(StoreOptions { payload_limit: PayloadLimit(1000), ..scene.options() }).await;
    let answers =
        store.publish(vec![NewEvent::new("t", vec![1; 1000]), NewEvent::new("t", vec![1; 1001])]).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(Invalid)]);
    let said = answers[1].as_ref().unwrap_err().to_string();
    assert!(said.contains("1001") && said.contains("1000"), "{said}");
}

pub(super) async fn claims_that_make_no_sense(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(2)).await;
    assert_eq!(store.claim(want(0)).await.unwrap(), []);
    for worker in [String::new(), "a\0b".into(), "x".repeat(256)] {
        assert_eq!(kind(store.claim(Claim { worker: worker.clone(), ..want(1) }).await), Invalid, "{worker:?}");
        let consumer = LiveConsumer { worker, queue: default_queue(), types: None, tags: vec![] };
        let answers = store.consumers_seen(vec![consumer]).await.unwrap();
        assert_eq!(answers.into_iter().map(kind).collect::<Vec<_>>(), [Invalid]);
    }
    let odd = store.claim(want_types(1, &["a\0b"])).await;
    assert!(odd.as_ref().map_or_else(|error| error.kind() == Invalid, Vec::is_empty), "{odd:?}");
    assert_eq!(claim(&store, usize::MAX).await.len(), 2, "all that there are");
}

pub(super) async fn texts_that_no_database_can_hold(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(4)).await;
    let claimed = claim(&store, 4).await;
    let nul = Some("a\0b".to_owned());
    let items = vec![
        end(&claimed[0], End::Completed),
        Finalize { errors: nul.clone(), ..end(&claimed[1], End::Failed) },
        end(&claimed[2], End::Completed),
    ];
    let answers = kinds(&store.finalize(items).await.unwrap());
    assert_eq!((answers[0], answers[2]), (None, None), "its neighbours are not affected");
    assert!(matches!(answers[1], None | Some(Invalid)), "{answers:?}");
    let answer = requeue(&store, Requeue { error: nul, ..release(&claimed[3]) }).await;
    assert!(answer.as_ref().map_or_else(|error| error.kind() == Invalid, |()| true), "{answer:?}");
    census(&store).await;
}

pub(super) async fn unknown_entries(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let unknown = EntryId::new((1 << 53) - 1).unwrap();
    assert_eq!(
        store.entries(vec![unknown, id, unknown]).await.unwrap().iter().map(Option::is_some).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert_eq!(kind(finalize(&store, end_by_id(unknown, End::Completed)).await), NotFound);
    let item = Finalize { token: Some(LeaseToken(1)), ..end_by_id(unknown, End::Completed) };
    assert_eq!(kind(finalize(&store, item).await), NotFound);
    assert_eq!(kind(cancel(&store, unknown).await), NotFound);
    assert_eq!(kind(redrive(&store, unknown).await), NotFound);
    assert_eq!(kind(discard(&store, unknown).await), NotFound);
    assert_eq!(kind(store.why(unknown).await), NotFound);
}

pub(super) async fn empty_batches(scene: Scene) {
    let store = scene.open().await;
    assert!(store.publish(vec![]).await.unwrap().is_empty());
    assert!(store.finalize(vec![]).await.unwrap().is_empty());
    assert!(store.extend(vec![]).await.unwrap().is_empty());
    assert!(store.requeue(vec![]).await.unwrap().is_empty());
    assert!(store.cancel(vec![]).await.unwrap().is_empty());
    assert!(store.redrive(vec![]).await.unwrap().is_empty());
    assert!(store.discard(vec![]).await.unwrap().is_empty());
    assert!(store.entries(vec![]).await.unwrap().is_empty());
}

pub(super) async fn extreme_leases_and_moments(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(4)).await;
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(u64::MAX), Duration::MAX] {
        let answer = store.claim(Claim { lease, ..want(1) }).await;
        let Ok(claimed) = answer else {
            assert_eq!(kind(answer), Invalid, "{lease:?}");
            continue;
        };
        for claimed in &claimed {
            let _ = extend(&store, claimed, Duration::MAX).await.map_err(|error| assert_eq!(error.kind(), Invalid));
            for when in [RequeueAt::After(Duration::MAX), RequeueAt::At(Timestamp::MAX), RequeueAt::At(Timestamp::MIN)]
            {
                let answer = requeue(&store, retry(claimed, when)).await;
                assert!(answer.is_ok() || matches!(kind(answer), Invalid | crate::ErrorKind::Fenced));
            }
        }
    }
    let everything = store.entries((1..=4).map(|raw| EntryId::new(raw).unwrap()).collect()).await.unwrap();
    assert!(everything.iter().all(Option::is_some), "everything written can be read");
    assert_eq!(census(&store).await.events, 4);
    publish_one(&store, event("t")).await;
}

pub(super) async fn hostile_texts_are_only_texts(scene: Scene) {
    let store = scene.open().await;
    let hostile = "'; DROP TABLE tidegate_events; -- \" \\ % _ $1 ?1 {ns} 𝄞 \u{202e}";
    let mut odd = NewEvent::new(hostile, hostile).group(hostile).deduplicate(hostile);
    odd.subject = Some(hostile.into());
    let id = publish_one(&store, odd).await;
    let consumer = LiveConsumer {
        worker: hostile.into(),
        queue: default_queue(),
        types: Some(vec![hostile.into()]),
        tags: vec![],
    };
    store.consumers_seen(vec![consumer]).await.unwrap().remove(0).unwrap();
    let claimed = store.claim(Claim { worker: hostile.into(), ..want_types(1, &[hostile]) }).await.unwrap().remove(0);
    assert_eq!((claimed.id, claimed.fact.subject.as_deref()), (id, Some(hostile)));
    let errors = Some(hostile.to_owned());
    finalize(&store, Finalize { errors: errors.clone(), ..end(&claimed, End::Failed) }).await.unwrap();
    let listed = DeadLetters { queue: default_queue(), event_type: Some(hostile.into()), after: None, limit: 9 };
    assert_eq!(store.dead_letters(listed).await.unwrap()[0].error, errors);
}
