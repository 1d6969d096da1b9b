mod model;
mod sequences;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::super::event::EventFields;
use super::super::pattern::Pattern;
use super::*;
use crate::entry::LeaseToken;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

pub(super) fn event_with(id: &str, pattern: &str, payload: &str) -> Event {
    let payload = RawValue::from_string(payload.to_owned()).unwrap();
    Event::new(&EventFields::new(id, pattern, &payload), at(0)).unwrap()
}

fn event(id: &str) -> Event {
    event_with(id, "invoice.created", "{}")
}

fn snapshot_queue(config: Config) -> Queue {
    Queue::new(QueueName::new("q").unwrap(), config, Durability::Snapshot, Epoch::FIRST, at(0))
}

fn with_events(config: Config, ids: &[&str]) -> Queue {
    let mut queue = snapshot_queue(config);
    for id in ids {
        assert!(matches!(queue.publish(event(id), at(0)), Ok(Published::Added(_))), "{id}");
    }
    queue
}

fn claim(queue: &mut Queue, max: usize, now: i64) -> Vec<Claimed> {
    queue.claim(&Wanted { max: Some(max), ..Wanted::new("w") }, at(now)).events
}

fn ids(events: &[Claimed]) -> Vec<&str> {
    events.iter().map(|claimed| claimed.event.event_id()).collect()
}

const SOON: Config = Config {
    max_queue_depth: 6,
    batch_size: 100,
    processing_interval: 0,
    persistence_threshold: 3,
    high_watermark: 4,
    persistence_interval: 5_000,
    lease_seconds: 10,
    max_retries: 2,
    retry_delay_seconds: 0,
};

#[test]
fn events_are_claimed_in_order_and_acked_once() {
    let mut queue = with_events(SOON, &["a", "b", "c"]);
    let first = claim(&mut queue, 2, 0);
    assert_eq!(ids(&first), ["a", "b"]);
    assert_eq!(ids(&claim(&mut queue, 9, 0)), ["c"]);
    assert_eq!(queue.ack(first[1].number, first[1].token, at(1)), Ok(()));
    assert_eq!((queue.checkpoint_id(), queue.checkpoint()), (None, 0), "a has not ended");
    assert_eq!(queue.ack(first[0].number, first[0].token, at(3)), Ok(()));
    assert_eq!((queue.checkpoint_id(), queue.checkpoint()), (Some("b"), 2));
    assert_eq!(queue.ack(first[0].number, first[0].token, at(3)), Err(LeaseRefused::Ended));
    assert_eq!(queue.ack(entry(9), first[0].token, at(3)), Err(LeaseRefused::Unknown));
    let totals = *queue.totals();
    assert_eq!((totals.processed, totals.errors, totals.average_millis()), (2, 0, 2_000.0));
}

#[test]
fn an_event_id_is_unique_while_the_event_is_live_or_a_dead_letter() {
    let mut queue = with_events(Config { max_retries: 0, ..SOON }, &["a"]);
    assert_eq!(queue.publish(event("a"), at(5)), Ok(Published::Repeated(entry(1))));
    assert_eq!(queue.publish(event_with("a", "b", "{}"), at(5)), Err(PublishRefused::Conflict));
    let held = claim(&mut queue, 1, 0);
    assert_eq!(queue.publish(event("a"), at(5)), Ok(Published::Repeated(entry(1))));
    assert_eq!(queue.nack(held[0].number, held[0].token, Some("no"), None, at(1)), Ok(Nacked::DeadLetter));
    assert_eq!(queue.publish(event("a"), at(5)), Ok(Published::Repeated(entry(1))));
    assert_eq!((queue.dead_letters(), queue.checkpoint_id()), (1, Some("a")), "a dead letter holds nothing back");
    assert!(queue.discard(entry(1), at(6)) && !queue.discard(entry(1), at(6)));
    assert_eq!(queue.publish(event_with("a", "b", "{}"), at(7)), Ok(Published::Added(entry(2))));
}

#[test]
fn a_lease_that_expired_counts_and_its_holder_may_end_the_event_until_it_is_claimed_again() {
    let mut queue = with_events(SOON, &["a", "b"]);
    let lost = claim(&mut queue, 2, 0);
    queue.tick(at(9));
    assert_eq!(queue.depth().leased, 2);
    queue.tick(at(10));
    assert_eq!((queue.depth().leased, queue.totals().errors), (0, 2));
    assert_eq!(queue.nack(lost[0].number, lost[0].token, None, None, at(11)), Err(LeaseRefused::Fenced));
    assert_eq!(queue.ack(lost[1].number, lost[1].token, at(11)), Ok(()));
    let again = claim(&mut queue, 2, 11);
    assert_eq!((ids(&again), again[0].retry_count), (vec!["a"], 1));
    assert_eq!(queue.ack(lost[0].number, lost[0].token, at(11)), Err(LeaseRefused::Fenced));
    let listed: Vec<_> = queue.list(0).collect();
    assert_eq!(listed[0].last_error, Some("abandoned: the lease of w expired"));
}

#[test]
fn tokens_of_another_owner_are_fenced() {
    let mut queue = with_events(SOON, &["a"]);
    let held = claim(&mut queue, 1, 0);
    let other = Epoch::FIRST.next().unwrap().token(1);
    assert_ne!(other, held[0].token);
    assert_eq!(queue.ack(held[0].number, other, at(0)), Err(LeaseRefused::Fenced));
    assert_eq!(queue.ack(held[0].number, LeaseToken(0), at(0)), Err(LeaseRefused::Fenced));
}

#[test]
fn failures_are_retried_with_delay_until_they_are_dead_letters() {
    let mut queue = with_events(SOON, &["a", "b"]);
    for (retry_count, now) in [(1, 0), (2, 30)] {
        let held = claim(&mut queue, 1, now);
        assert_eq!(ids(&held), ["a"]);
        let nacked = queue.nack(held[0].number, held[0].token, Some("no"), Some(Duration::from_secs(30)), at(now));
        assert_eq!(nacked, Ok(Nacked::Retry { retry_count, due: at(now + 30) }));
        assert_eq!(queue.nack(held[0].number, held[0].token, None, None, at(now)), Err(LeaseRefused::Fenced));
    }
    assert_eq!(queue.next_wake(), Some(at(60)));
    let held = claim(&mut queue, 9, 60);
    assert_eq!(ids(&held), ["a", "b"], "a retry keeps its place");
    assert_eq!(
        queue.nack(held[0].number, held[0].token, Some(&"é".repeat(5_000)), None, at(60)),
        Ok(Nacked::DeadLetter)
    );
    let letter = queue.list_dead_letters(0).next().unwrap();
    assert_eq!((letter.retry_count, letter.since, letter.last_error.unwrap().len()), (2, at(60), 2_000));
    assert_eq!(queue.redrive(letter.number, at(70)), Ok(entry(3)));
    assert_eq!(queue.redrive(entry(1), at(70)), Err(RedriveRefused::Unknown));
    let held = claim(&mut queue, 9, 70);
    assert_eq!(ids(&held)[1..], ["a"], "b's lease expired, and a is behind it");
    assert_eq!((held[1].number, held[1].retry_count), (entry(3), 0));
}

#[test]
fn releases_do_not_count_and_extended_leases_last() {
    let mut queue = with_events(SOON, &["a", "b", "c"]);
    let held = claim(&mut queue, 3, 0);
    queue.release(held[0].number, held[0].token, None, at(1)).unwrap();
    assert_eq!(queue.ack(held[0].number, held[0].token, at(1)), Err(LeaseRefused::Fenced));
    let items: Vec<_> = held.iter().map(|claimed| (claimed.number, claimed.token)).collect();
    let until = at(108);
    let extended = queue.extend(&items, Some(Duration::from_secs(100)), at(8));
    assert_eq!(extended, [Err(LeaseRefused::Fenced), Ok(until), Ok(until)]);
    let again = claim(&mut queue, 9, 50);
    assert_eq!((ids(&again), again[0].retry_count), (vec!["a"], 0));
    queue.shift_leases(Duration::from_secs(7));
    queue.tick(at(66));
    assert_eq!(queue.depth().leased, 3);
    queue.tick(at(67));
    assert_eq!(queue.depth().leased, 2, "a's lease of ten seconds, and the seven");
    queue.ack(items[1].0, items[1].1, at(108)).unwrap();
    assert_eq!(queue.totals().processing_micros, 108_000_000, "since it was claimed");
}

#[test]
fn patterns_choose_and_nothing_is_lost_between_them() {
    let mut queue = snapshot_queue(Config::default());
    for (id, pattern) in [("1", "a.x"), ("2", "b.x"), ("3", "a.y"), ("4", "a.x.z"), ("5", "b.x")] {
        queue.publish(event_with(id, pattern, "1"), at(0)).unwrap();
    }
    let patterns = |texts: &[&str]| -> Vec<Pattern> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let mut claim = |max, texts: &[&str]| {
        let patterns = patterns(texts);
        let wanted = Wanted { max: Some(max), patterns: &patterns, ..Wanted::new("w") };
        let events = queue.claim(&wanted, at(0)).events;
        events.iter().map(|claimed| claimed.event.event_id().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(claim(9, &["c.>"]), Vec::<String>::new());
    assert_eq!(claim(2, &["b.x", "a.*"]), ["1", "2"]);
    assert_eq!(claim(9, &["a.>"]), ["3", "4"]);
    assert_eq!(claim(9, &[]), ["5"]);
    queue.publish(event_with("6", "c.new", "1"), at(0)).unwrap();
    let patterns = patterns(&["c.>"]);
    let wanted = Wanted { patterns: &patterns, ..Wanted::new("w") };
    assert_eq!(ids(&queue.claim(&wanted, at(0)).events), ["6"], "a lane that was made since");
}

#[test]
fn lanes_of_patterns_that_are_gone_are_removed() {
    let mut queue = snapshot_queue(Config::default());
    let any: Vec<Pattern> = vec![">".parse().unwrap()];
    for number in 0..5_000 {
        let id = number.to_string();
        queue.publish(event_with(&id, &format!("user.{number}"), "1"), at(0)).unwrap();
        let patterns = if number % 2 == 0 { &any[..] } else { &[] };
        let events = queue.claim(&Wanted { patterns, ..Wanted::new("w") }, at(0)).events;
        assert_eq!(ids(&events), [id.as_str()]);
        queue.ack(events[0].number, events[0].token, at(0)).unwrap();
    }
    assert!(queue.lanes.len() < 300, "{} lanes", queue.lanes.len());
}

#[test]
fn a_claim_is_bounded_in_bytes() {
    let mut queue = snapshot_queue(SOON);
    for id in ["a", "b", "c"] {
        queue.publish(event_with(id, "p", &format!("\"{}\"", "x".repeat(1_000))), at(0)).unwrap();
    }
    let wanted = Wanted { max_bytes: 2_500, ..Wanted::new("w") };
    assert_eq!(ids(&queue.claim(&wanted, at(0)).events), ["a", "b"]);
    let wanted = Wanted { max_bytes: 1, ..Wanted::new("w") };
    assert_eq!(ids(&queue.claim(&wanted, at(0)).events), ["c"], "at least one");
}

#[test]
fn pressure_begins_above_the_watermark_and_ends_below_it() {
    let mut queue = with_events(SOON, &["a", "b", "c", "d"]);
    assert!(!queue.is_slow());
    queue.publish(event("e"), at(0)).unwrap();
    assert!(queue.is_slow());
    queue.publish(event("f"), at(0)).unwrap();
    assert_eq!(queue.publish(event("g"), at(0)), Err(PublishRefused::Full(6)));
    assert_eq!(queue.publish(event("a"), at(0)), Ok(Published::Repeated(entry(1))), "a repeat is answered");
    let held = claim(&mut queue, 9, 0);
    for (at_, slow) in [(0, true), (1, true), (2, false)] {
        queue.ack(held[at_].number, held[at_].token, at(0)).unwrap();
        assert_eq!(queue.is_slow(), slow, "{at_}");
    }
}

#[test]
fn statuses_and_their_refusals() {
    let mut queue = with_events(SOON, &["a"]);
    assert_eq!((queue.pause(at(1)), queue.pause(at(1))), (Ok(true), Ok(false)));
    queue.publish(event("b"), at(1)).unwrap();
    assert!(claim(&mut queue, 9, 1).is_empty() && queue.next_wake().is_none());
    assert!(queue.drain(at(2)) && !queue.is_drained());
    assert_eq!(queue.pause(at(2)), Err(StatusRefused::Draining));
    assert_eq!(queue.publish(event("c"), at(2)), Err(PublishRefused::Draining));
    for claimed in claim(&mut queue, 9, 2) {
        queue.ack(claimed.number, claimed.token, at(3)).unwrap();
    }
    assert!(queue.is_drained());
    assert!(queue.resume(at(4)) && !queue.resume(at(4)) && !queue.is_drained());
    queue.publish(event("c"), at(5)).unwrap();
}

#[test]
fn batches_are_paced() {
    let mut queue = with_events(Config { processing_interval: 1_000, batch_size: 1, ..SOON }, &["a", "b"]);
    assert_eq!(ids(&queue.claim(&Wanted::new("w"), at(0)).events), ["a"]);
    assert!(queue.claim(&Wanted::new("w"), at(0)).events.is_empty());
    assert_eq!(queue.next_wake(), Some(at(1)));
    assert_eq!(ids(&queue.claim(&Wanted::new("w"), at(1)).events), ["b"]);
}

#[test]
fn journalled_events_can_be_claimed_once_they_are_stored() {
    let mut queue = Queue::new(QueueName::new("q").unwrap(), SOON, Durability::Journal, Epoch::FIRST, at(0));
    queue.publish(event("a"), at(0)).unwrap();
    let first = queue.cut(0, at(0)).unwrap();
    assert_eq!((queue.awaits(), queue.cut(0, at(0))), (first.key.seq, None));
    queue.publish(event("b"), at(0)).unwrap();
    assert_eq!(queue.awaits(), first.key.seq + 1);
    assert!(claim(&mut queue, 9, 0).is_empty(), "nothing is stored yet");
    queue.saved(first.key.seq);
    assert_eq!(ids(&claim(&mut queue, 9, 0)), ["a"]);
}

#[test]
fn snapshots_are_due_by_number_and_by_time() {
    let mut queue = snapshot_queue(SOON);
    queue.cut(usize::MAX, at(0)).unwrap();
    queue.publish(event("a"), at(1)).unwrap();
    assert!(!queue.is_persistence_due(at(4)) && queue.is_persistence_due(at(5)));
    queue.publish(event("b"), at(1)).unwrap();
    queue.publish(event("c"), at(1)).unwrap();
    assert!(queue.is_persistence_due(at(1)), "the threshold is 3");
    queue.cut(usize::MAX, at(1)).unwrap();
    assert!(!queue.is_persistence_due(at(100)), "nothing has changed");
    let held = claim(&mut queue, 1, 100);
    queue.ack(held[0].number, held[0].token, at(100)).unwrap();
    assert!(queue.is_persistence_due(at(105)));
    let taken = queue.take_checkpoint().unwrap();
    assert_eq!((taken.checkpoint_id.as_str(), taken.event_count), ("a", 1));
    assert_eq!(queue.take_checkpoint(), None);
}

#[test]
fn a_snapshot_comes_in_pieces() {
    let mut queue = snapshot_queue(Config::default());
    for number in 0..1_000 {
        queue.publish(event(&number.to_string()), at(0)).unwrap();
    }
    let mut blobs = Vec::new();
    while let Some(blob) = queue.cut(4_096, at(0)) {
        assert!(blob.bytes.len() < 4_096 + 300);
        blobs.push(blob);
    }
    assert!(blobs.len() > 5 && blobs.iter().rev().skip(1).all(|blob| blob.more_follows));
    assert!(!blobs.last().unwrap().more_follows);
}

proptest! {
    /// An error of any bytes is cut off at a character.
    #[test]
    fn errors_are_cut_off(error in "\\PC{0,1200}") {
        let mut queue = with_events(SOON, &["a"]);
        let held = claim(&mut queue, 1, 0);
        queue.nack(held[0].number, held[0].token, Some(&error), None, at(0)).unwrap();
        let listed = queue.list(0).next().unwrap();
        prop_assert!(error.starts_with(listed.last_error.unwrap()));
    }
}
