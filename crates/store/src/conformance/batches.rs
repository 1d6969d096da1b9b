//! Each verb is a batch: one answer per item, and one bad item never fails its neighbours.

use tidegate_core::{End, EntryId, NewEvent};

use super::scene::*;
use crate::ErrorKind::{Fenced, Invalid, NotFound};
use crate::values::*;

pub(super) async fn one_bad_item_in_a_thousand(scene: Scene) {
    let store = scene.open().await;
    let mut batch = events(1000);
    batch[500] = event("");
    let answers = store.publish(batch).await.unwrap();
    let bad: Vec<usize> = (0..1000).filter(|index| answers[*index].is_err()).collect();
    assert_eq!(bad, [500]);
    assert_eq!(answers[500].as_ref().unwrap_err().kind(), Invalid);
    let claimed = claim(&store, 1000).await;
    assert_eq!(claimed.len(), 999);
    let mut items: Vec<Finalize> = claimed.iter().map(|claimed| end(claimed, End::Completed)).collect();
    items.insert(500, end_by_id(EntryId::new(999_999).unwrap(), End::Completed));
    let answers = store.finalize(items).await.unwrap();
    let bad: Vec<usize> = (0..1000).filter(|index| answers[*index].is_err()).collect();
    assert_eq!(bad, [500]);
    assert_eq!(census(&store).await, Census { events: 999, waiting: 0, leased: 0, ended: 999 });
}

pub(super) async fn the_same_entry_twice_in_one_batch(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(5)).await;
    let claimed = claim(&store, 4).await;
    let twice = vec![end(&claimed[0], End::Completed), end(&claimed[0], End::Failed)];
    let answers: Vec<Finalized> = store.finalize(twice).await.unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().map(|answer| answer.repeated).collect::<Vec<_>>(), [false, true]);
    assert_eq!(answers[1].end, End::Completed, "the first item counts");
    let extension = Extend { id: claimed[1].id, token: claimed[1].token, lease: LEASE };
    assert_eq!(kinds(&store.extend(vec![extension, extension]).await.unwrap()), [None, None]);
    let answers = store.requeue(vec![release(&claimed[2]), release(&claimed[2])]).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(Fenced)]);
    let answers = store.cancel(vec![claimed[3].id, claimed[3].id]).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(crate::ErrorKind::AlreadyEnded)]);
    finalize(&store, end(&claimed[1], End::Failed)).await.unwrap();
    let answers = store.redrive(vec![claimed[1].id, claimed[1].id]).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(crate::ErrorKind::Conflict)]);
    let shown = store.entries(vec![claimed[1].id, claimed[1].id]).await.unwrap();
    assert_eq!(shown[0], shown[1]);
    census(&store).await;
}

pub(super) async fn mixed_answers_in_one_finalize(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(4)).await;
    let zombie = claim_one(&store).await;
    scene.advance(60);
    let claimed = claim(&store, 4).await;
    complete(&store, &claimed[1]).await;
    let unknown = EntryId::new(999_999).unwrap();
    let items = vec![
        end(&zombie, End::Completed),
        end(&claimed[3], End::Failed),
        end_by_id(unknown, End::Completed),
        end(&claimed[1], End::Completed),
        end_by_id(claimed[2].id, End::Cancelled),
        end(&claimed[0], End::Completed),
    ];
    let answers = store.finalize(items).await.unwrap();
    assert_eq!(kinds(&answers), [Some(Fenced), None, Some(NotFound), None, None, None]);
    let repeated: Vec<bool> = answers.iter().flatten().map(|answer| answer.repeated).collect();
    assert_eq!(repeated, [false, true, false, false]);
    let ends: Vec<End> = answers.iter().flatten().map(|answer| answer.end).collect();
    assert_eq!(ends, [End::Failed, End::Completed, End::Cancelled, End::Completed]);
}

pub(super) async fn a_thousand_of_everything(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, events(1000)).await;
    let claimed = claim(&store, 1000).await;
    assert_eq!(ids(&claimed), published);
    let extensions =
        claimed.iter().map(|claimed| Extend { id: claimed.id, token: claimed.token, lease: LEASE }).collect();
    assert_eq!(kinds(&store.extend(extensions).await.unwrap()), vec![None; 1000]);
    let released = store.requeue(claimed.iter().map(release).collect()).await.unwrap();
    assert_eq!(kinds(&released), vec![None; 1000]);
    let claimed = claim(&store, 1000).await;
    assert_eq!(ids(&claimed), published);
    let ends = claimed.iter().map(|claimed| end(claimed, End::Failed)).collect();
    assert_eq!(kinds(&store.finalize(ends).await.unwrap()), vec![None; 1000]);
    assert_eq!(dead_letters(&store).await, published);
    assert_eq!(kinds(&store.redrive(published.clone()).await.unwrap()), vec![None; 1000]);
    assert_eq!(kinds(&store.cancel(published.clone()).await.unwrap()), vec![None; 1000]);
    let shown = store.entries(published).await.unwrap();
    assert!(shown.iter().flatten().all(|view| ended(view) == Some(End::Cancelled) && view.generation == 2));
    assert_eq!(census(&store).await, Census { events: 1000, waiting: 0, leased: 0, ended: 1000 });
}

pub(super) async fn mixed_queues_in_one_batch(scene: Scene) {
    let store = scene.open().await;
    let names = ["default", "b", "c"];
    for name in &names[1..] {
        store.put_queue(&queue(name), QueueChange::default()).await.unwrap();
    }
    let batch: Vec<NewEvent> = (0..30).map(|number| event("t").queue(queue(names[number % 3]))).collect();
    let published = publish(&store, batch).await;
    assert!(published.is_sorted());
    let mut claimed = Vec::new();
    for name in names {
        let mine = store.claim(Claim { queue: queue(name), ..want(100) }).await.unwrap();
        assert_eq!(mine.len(), 10);
        claimed.extend(mine);
    }
    let ends = claimed.iter().map(|claimed| end(claimed, End::Completed)).collect();
    assert_eq!(kinds(&store.finalize(ends).await.unwrap()), vec![None; 30]);
}
