//! Batches of facts: an answer for each item, whatever becomes of the others.

use std::collections::HashMap;

use tidegate_core::{End, EntryId, QueueName, QueueState, Tsid};

use super::facts::{claim_from, counted, fact, ingest_one, made, payload, to, to_default, to_group, try_ingest};
use super::scene::*;
use crate::ErrorKind::{Full, Invalid, NotFound};
use crate::values::*;

pub(super) async fn a_bad_target_refuses_its_item_alone(scene: Scene) {
    let store = scene.open_with(StoreOptions { max_lanes: 2, max_job_lanes: 2, ..scene.options() }).await;
    let (full, drained) = (made(&store, "full").await, made(&store, "drained").await);
    store.put_queue(&full, QueueChange { depth_limit: Some(Some(3)), ..QueueChange::default() }).await.unwrap();
    let state = Some(QueueState::Draining);
    store.put_queue(&drained, QueueChange { state, ..QueueChange::default() }).await.unwrap();
    let with = |bad: Target| fact("t", "{}", vec![to(&default_queue()), to(&full), bad]);
    let good = to(&default_queue());
    let batch = vec![
        with(to(&queue("nobody"))),
        with(to(&drained)),
        with(to_group(&full, "")),
        with(Target { priority: 101, ..good.clone() }),
        with(Target { max_attempts: 0, ..good.clone() }),
        with(Target { exhausted_as: End::Completed, ..good.clone() }),
        with(Target { keeps_place: true, ..good.clone() }),
        with(Target { family: Family::Jobs, ..to(&full) }),
        with(to(&QueueName::of(Some(Tsid::from_i64(5)), "theirs").unwrap())),
        fact("", "{}", vec![]),
        fact("t", "{}", vec![to(&full); 4]),
        fact("t", "{}", vec![to(&full); 2]),
        fact("t", "{}", vec![to(&default_queue()), to(&full), to(&full)]),
        fact("t", "{}", vec![to(&default_queue()), to(&full)]),
        fact("t", "{}", vec![to(&full)]),
        fact("t", "{}", vec![good.clone()]),
    ];
    let answers = try_ingest(&store, batch).await;
    let invalid = Some(Invalid);
    assert_eq!(
        kinds(&answers),
        [
            vec![
                Some(NotFound),
                Some(Full),
                invalid,
                invalid,
                invalid,
                invalid,
                invalid,
                Some(NotFound),
                invalid,
                invalid
            ],
            vec![Some(Full), None, Some(Full), None, Some(Full), None],
        ]
        .concat()
    );
    assert!(answers[10].as_ref().unwrap_err().to_string().contains("full is full"));
    assert_eq!(counted(&store).await, (3, 5), "a refused item leaves nothing");
    // The queue has one lane more to give.
    let lanes = vec![Target { priority: 1, ..good.clone() }, Target { priority: 2, ..good.clone() }];
    let first = try_ingest(&store, vec![fact("t", "{}", lanes.clone()), fact("t", "{}", lanes[..1].to_vec())]).await;
    let again = try_ingest(&store, vec![fact("t", "{}", lanes.clone()), fact("t", "{}", lanes[..1].to_vec())]).await;
    assert!(kinds(&first).contains(&Some(Full)) && kinds(&again).contains(&Some(Full)), "{first:?} {again:?}");
    let done = first.iter().chain(&again).flatten().map(|fact| fact.targets.len()).sum::<usize>() as u64;
    assert_eq!(counted(&store).await.1, 5 + done);
}

pub(super) async fn a_large_batch_is_written_in_parts(scene: Scene) {
    let store = scene.open().await;
    let other = made(&store, "other").await;
    let batch: Vec<Ingest> = (0..102)
        .map(|number| {
            let targets =
                if number == 50 { vec![to(&queue("nobody"))] } else { [to_default(50), vec![to(&other); 50]].concat() };
            fact("t", &number.to_string(), targets)
        })
        .collect();
    let answers = try_ingest(&store, batch).await;
    assert_eq!(answers.len(), 102);
    let mut last = 0;
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Err(error) => assert_eq!((number, error.kind()), (50, NotFound)),
            Ok(fact) => {
                assert_eq!(fact.targets.len(), 100);
                assert!(fact.targets[0].get() > last && fact.targets.is_sorted());
                last = fact.targets[99].get();
            }
        }
    }
    assert_eq!(counted(&store).await, (101, 10_100));
    let by_id: HashMap<EntryId, usize> = (answers.iter().enumerate())
        .flat_map(|(number, answer)| {
            answer.iter().flat_map(move |fact| fact.targets.iter().map(move |id| (*id, number)))
        })
        .collect();
    let claimed = claim_from(&store, &other, 1000).await;
    assert_eq!(claimed.len(), 1000);
    for held in claimed {
        assert_eq!(payload(&held.fact), by_id[&held.id].to_string());
    }
    let too_many = fact("t", "{}", to_default(MAX_TARGETS + 1));
    assert_eq!(kind(try_ingest(&store, vec![too_many]).await.remove(0)), Invalid);
    assert_eq!(ingest_one(&store, fact("t", "{}", to_default(MAX_TARGETS))).await.targets.len(), MAX_TARGETS);
}

/// A subscription puts its code before the group of an event, which may have 255 bytes by itself.
pub(super) async fn groups_of_targets_are_longer_than_those_of_events(scene: Scene) {
    let store = scene.open().await;
    let of = |family, length| Target { family, ..to_group(&default_queue(), &"g".repeat(length)) };
    for family in Family::ALL {
        let own = store.family(family);
        let batch = vec![fact("t", "1", vec![of(family, 511); 2]), fact("t", "2", vec![of(family, 512)])];
        let answers = try_ingest(&store, batch).await;
        assert_eq!(kinds(&answers), [None, Some(Invalid)]);
        let [first, second] = answers[0].as_ref().unwrap().targets[..] else { panic!("{answers:?}") };
        let head = claim_one(&own).await;
        assert_eq!((head.id, head.group.as_deref()), (first, Some(&*"g".repeat(511))));
        finalize(&own, end(&head, End::Failed)).await.unwrap();
        assert_eq!(redrive(&own, first).await.unwrap(), 2, "its group is read back");
        let next = claim_one(&own).await;
        assert_eq!((next.id, own.claim(want(9)).await.unwrap().len()), (second, 0), "the others wait");
        complete(&own, &next).await;
        complete(&own, &claim_one(&own).await).await;
    }
}

/// A target that says no number of attempts has those of its queue, as an event that is published to it.
pub(super) async fn targets_take_the_retries_of_their_queue(scene: Scene) {
    let (store, other) = (scene.open().await, scene.open().await);
    let set = |max_retries| QueueChange {
        settings: SettingsChange { max_retries: Some(max_retries), ..SettingsChange::default() },
        ..QueueChange::default()
    };
    let asks = || Target { max_attempts: 5, retries_of_queue: true, ..to(&default_queue()) };
    for (retries, expected) in [(None, 5), (Some(7), 8), (Some(0), 1)] {
        other.put_queue(&default_queue(), set(retries)).await.unwrap();
        let own = Target { max_attempts: 3, ..to(&default_queue()) };
        let stored = ingest_one(&store, fact("t", "{}", vec![asks(), own])).await;
        let attempts = [view(&store, stored.targets[0]).await, view(&store, stored.targets[1]).await];
        assert_eq!(attempts.map(|view| view.max_attempts), [expected, 3], "{retries:?}");
    }
}

pub(super) async fn a_refused_fact_takes_room_in_no_family(scene: Scene) {
    let store = scene.open().await;
    let (name, jobs) = (queue("narrow"), store.family(Family::Jobs));
    let one = QueueChange { depth_limit: Some(Some(1)), ..QueueChange::default() };
    store.put_queue(&name, one.clone()).await.unwrap();
    jobs.put_queue(&name, one).await.unwrap();
    publish_one(&jobs, event("t").queue(name.clone())).await;
    let job = || Target { family: Family::Jobs, ..to(&name) };
    let batch = vec![fact("t", "{}", vec![to(&name), job()]), fact("t", "{}", vec![to(&name)])];
    assert_eq!(kinds(&try_ingest(&store, batch).await), [Some(Full), None]);
}

pub(super) async fn nothing_to_ingest_is_an_empty_answer(scene: Scene) {
    let store = scene.open().await;
    assert!(try_ingest(&store, Vec::new()).await.is_empty());
    let refused = try_ingest(&store, vec![fact("t", "{}", vec![to(&queue("nobody"))]); 2]).await;
    assert_eq!(kinds(&refused), [Some(NotFound); 2]);
    assert_eq!(counted(&store).await, (0, 0));
}
