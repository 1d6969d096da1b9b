//! The size limit of a claim: payloads of at most `MAX_CLAIM_BYTES` together.

use tidegate_core::{EntryId, NewEvent, PayloadLimit};

use super::scene::*;
use super::work::{job, pick};
use crate::values::*;

fn of_size(size: usize) -> NewEvent {
    NewEvent::new("t", vec![b'x'; size])
}

fn bytes(claimed: &[Claimed]) -> usize {
    claimed.iter().map(|entry| entry.fact.payload.len()).sum()
}

/// Claims until nothing is left; returns the ids and the number of entries of each claim.
async fn drain(store: &AnyStore, claim: &Claim) -> (Vec<EntryId>, Vec<usize>) {
    let (mut all, mut counts) = (Vec::new(), Vec::new());
    loop {
        let claimed = store.claim(claim.clone()).await.unwrap();
        assert!(claimed.len() <= 1 || bytes(&claimed) <= MAX_CLAIM_BYTES, "{} bytes", bytes(&claimed));
        assert!(claimed.iter().all(|entry| (entry.attempts, entry.token.0) == (1, 1)), "each is leased once");
        if claimed.is_empty() {
            return (all, counts);
        }
        all.extend(ids(&claimed));
        counts.push(claimed.len());
    }
}

pub(super) async fn a_claim_takes_no_more_bytes_than_it_may(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, (0..20).map(|_| of_size(1 << 20)).collect()).await;
    let (claimed, counts) = drain(&store, &want(100)).await;
    assert_eq!(claimed, published, "in order");
    assert_eq!(counts[0], 8, "as many as fit: {counts:?}");
    // Once events are small again, each claim takes many.
    let small = publish(&store, events(300)).await;
    let (claimed, counts) = drain(&store, &want(100)).await;
    assert_eq!(claimed, small);
    assert!(counts.len() <= 20, "{counts:?}");
}

pub(super) async fn a_claim_by_tag_or_of_many_lanes_takes_no_more_bytes_than_it_may(scene: Scene) {
    let store = scene.open().await;
    let tagged = |n: usize| {
        let mut event = job().priority(if n.is_multiple_of(3) { -1 } else { 0 });
        event.payload = vec![b'x'; 700 << 10].into();
        event.event_type = format!("t{}", n % 5);
        event
    };
    let published = publish(&store, (0..30).map(tagged).collect()).await;
    let first = published.iter().enumerate().filter(|(n, _)| n % 3 == 0);
    let rest = published.iter().enumerate().filter(|(n, _)| n % 3 != 0);
    let expected: Vec<EntryId> = first.chain(rest).map(|(_, id)| *id).collect();
    let (claimed, _) = drain(&store, &pick("w", 1000)).await;
    assert_eq!(claimed, expected, "by priority, then in order");
    let published = publish(&store, (0..30).map(tagged).collect()).await;
    let (mut claimed, _) = drain(&store, &want(1000)).await;
    claimed.sort_unstable();
    assert_eq!(claimed, published);
}

pub(super) async fn an_event_larger_than_a_claim_goes_alone(scene: Scene) {
    let options = StoreOptions { payload_limit: PayloadLimit(MAX_CLAIM_BYTES * 2), ..scene.options() };
    let store = scene.open_with(options).await;
    let sizes = [10, MAX_CLAIM_BYTES + 1, 10, 10, MAX_CLAIM_BYTES];
    let published = publish(&store, sizes.map(of_size).to_vec()).await;
    let (claimed, counts) = drain(&store, &want(100)).await;
    assert_eq!(claimed, published);
    assert_eq!(counts, [1, 1, 2, 1]);
}
