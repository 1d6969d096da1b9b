use std::time::Duration;

use serde_json::value::RawValue;

use super::super::blob::Blob;
use super::super::event::EventFields;
use super::super::queue::{Published, Wanted};
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_710_000_000 + second).unwrap()
}

fn name() -> QueueName {
    QueueName::new("billing").unwrap()
}

fn event(number: usize) -> Event {
    let payload = RawValue::from_string(format!("{{\"n\": {number}}}")).unwrap();
    Event::new(&EventFields::new(&format!("evt_{number}"), "invoice.created", &payload), at(0)).unwrap()
}

/// A queue's storage.
struct Stored {
    row: StateRow,
    blobs: Vec<Blob>,
}

/// A queue that has stored a blob for each round of publishes, claims, acks, nacks and dead letters.
fn stored(durability: Durability, rounds: usize) -> (Queue, Stored) {
    let config = Config { max_retries: 1, ..Config::default() };
    let mut queue = Queue::new(name(), config, durability, Epoch::FIRST, at(0));
    let mut blobs = Vec::new();
    for round in 0..rounds {
        for number in 0..4 {
            let published = queue.publish(event(round * 4 + number), at(0));
            assert!(matches!(published, Ok(Published::Added(_))));
        }
        let now = at(round as i64);
        let events = queue.claim(&Wanted { max: Some(3), ..Wanted::new("w") }, now).events;
        for (which, claimed) in events.iter().enumerate() {
            match which {
                0 => assert!(queue.nack(claimed.number, claimed.token, Some("timeout"), None, now).is_ok()),
                1 => queue.ack(claimed.number, claimed.token, now).unwrap(),
                _ => queue.release(claimed.number, claimed.token, None, now).unwrap(),
            }
        }
        let blob = queue.cut(usize::MAX, now).unwrap();
        queue.saved(blob.key.seq);
        blobs.push(blob);
    }
    let row = StateRow::of(&mut queue);
    (queue, Stored { row, blobs })
}

fn recover(stored: &Stored, accept_loss: bool) -> Result<Recovered, Box<RecoveryRefused>> {
    let mut recovery = Recovery::new(name(), &stored.row, stored.row.checksum(), at(100));
    stored.blobs.iter().for_each(|blob| recovery.read(&blob.key, &blob.bytes));
    recovery.finish(Epoch::FIRST.next().unwrap(), accept_loss, at(101))
}

fn listed(queue: &Queue) -> Vec<(String, u32, Option<String>)> {
    let events = queue.list(0).map(|event| (event.event.event_id().to_owned(), event.retry_count, event.last_error));
    let dead = queue.list_dead_letters(0).map(|event| (event.event.event_id().to_owned(), 99, event.last_error));
    events.chain(dead).map(|(id, retries, error)| (id, retries, error.map(Into::into))).collect()
}

fn damage(stored: &Stored) -> Damage {
    recover(stored, false).map(|recovered| recovered.loss).unwrap_err().loss.damage
}

#[test]
fn a_queue_is_recovered_as_it_was() {
    for durability in [Durability::Journal, Durability::Snapshot] {
        let (queue, stored) = stored(durability, 6);
        let recovered = recover(&stored, false).unwrap();
        assert_eq!(listed(&recovered.queue), listed(&queue));
        assert!(listed(&queue).iter().any(|event| event.1 == 99), "there is a dead letter");
        assert_eq!(recovered.queue.state(), queue.state());
        assert_eq!((recovered.loss.as_ref(), recovered.queue.epoch().get()), (None, 2));
        let record = serde_json::to_value(recovered.record("r1".into())).unwrap();
        let expected = serde_json::json!({
            "id": "r1", "checkpointId": queue.checkpoint_id(), "eventsRecovered": listed(&queue).len(),
            "recoveryStartTime": "2024-03-09T16:01:40.000Z", "recoveryCompleteTime": "2024-03-09T16:01:41.000Z",
            "status": "completed",
        });
        assert_eq!(record, expected);
    }
}

#[test]
fn every_changed_byte_and_every_truncation_is_detected() {
    let (_, stored) = stored(Durability::Journal, 2);
    let blob = &stored.blobs[1];
    let check = |bytes: &[u8]| blob::open(&name(), &blob.key, bytes).map(drop);
    assert!(check(&blob.bytes).is_ok());
    for length in 0..blob.bytes.len() {
        assert!(check(&blob.bytes[..length]).is_err(), "{length} bytes");
    }
    let mut longer = blob.bytes.to_vec();
    longer.push(0);
    assert!(check(&longer).is_err());
    let mut bytes = blob.bytes.to_vec();
    for at in 0..bytes.len() {
        for flip in 1..=255_u8 {
            bytes[at] ^= flip;
            assert!(check(&bytes).is_err(), "byte {at} ^ {flip}");
            bytes[at] ^= flip;
        }
    }
}

#[test]
fn every_changed_key_column_is_detected() {
    let (_, stored) = stored(Durability::Journal, 2);
    let blob = &stored.blobs[1];
    for bit in 0..64 {
        let change = 1_u64 << bit;
        let mut keys = vec![
            BlobKey { seq: blob.key.seq ^ change, ..blob.key },
            BlobKey { epoch: blob.key.epoch ^ change, ..blob.key },
            BlobKey { first: blob.key.first ^ change, ..blob.key },
            BlobKey { last: blob.key.last ^ change, ..blob.key },
        ];
        if bit < 32 {
            keys.push(BlobKey { crc: blob.key.crc ^ change as u32, ..blob.key });
        }
        for key in keys {
            assert!(matches!(blob::open(&name(), &key, &blob.bytes), Err(Damage::Column { .. })), "{key:?}");
        }
    }
    let other = QueueName::new("other").unwrap();
    assert_eq!(blob::open(&other, &blob.key, &blob.bytes).unwrap_err(), Damage::OtherQueue("billing".into()));
}

#[test]
fn every_changed_field_of_the_row_is_detected() {
    let (_, stored) = stored(Durability::Journal, 2);
    let row = &stored.row;
    let with = |change: fn(&mut State)| {
        let mut row = row.clone();
        change(&mut row.state);
        row
    };
    let changed = [
        with(|state| state.status = QueueState::Paused),
        with(|state| state.durability = Durability::Snapshot),
        with(|state| state.config.batch_size += 1),
        with(|state| state.config.retry_delay_seconds += 1),
        with(|state| state.created_at += 1),
        with(|state| state.updated_at += 1),
        with(|state| state.totals.processed += 1),
        with(|state| state.totals.errors += 1),
        with(|state| state.totals.processing_micros += 1),
        with(|state| state.checkpoint += 1),
        with(|state| state.checkpoint_id = "other".into()),
        with(|state| state.next_number += 1),
        StateRow { epoch: row.epoch + 1, ..row.clone() },
        StateRow { first_seq: row.first_seq + 1, ..row.clone() },
        StateRow { last_seq: row.last_seq - 1, ..row.clone() },
        StateRow { name: QueueName::new("other").unwrap(), ..row.clone() },
    ];
    for changed in changed {
        let mut recovery = Recovery::new(name(), &changed, row.checksum(), at(100));
        stored.blobs.iter().for_each(|blob| recovery.read(&blob.key, &blob.bytes));
        let refused = recovery.finish(Epoch::FIRST.next().unwrap(), false, at(101)).unwrap_err();
        assert!(matches!(refused.loss.damage, Damage::StateRow { .. }), "{changed:?}");
        assert_eq!((refused.loss.at, refused.loss.good_through), (0, 2));
    }
}

#[test]
fn a_row_that_was_changed_costs_nothing_when_the_loss_is_accepted() {
    let (queue, stored) = stored(Durability::Journal, 3);
    let mut recovery = Recovery::new(name(), &stored.row, stored.row.checksum() ^ 1, at(100));
    stored.blobs.iter().for_each(|blob| recovery.read(&blob.key, &blob.bytes));
    let recovered = recovery.finish(Epoch::FIRST.next().unwrap(), true, at(101)).unwrap();
    assert_eq!(listed(&recovered.queue), listed(&queue));
    assert_eq!(recovered.queue.state().config, queue.state().config, "blobs have the configuration too");
}

#[test]
fn missing_blobs_are_detected() {
    for missing in 0..6 {
        let (_, mut stored) = stored(Durability::Journal, 6);
        stored.blobs.remove(missing);
        let seq = missing as u64 + 1;
        let expected = match missing {
            5 => Damage::MissingAtEnd { expected: 6, last: 6 },
            _ => Damage::Missing { expected: seq, found: seq + 1 },
        };
        assert_eq!(damage(&stored), expected);
    }
    let (_, mut stored) = stored(Durability::Journal, 6);
    stored.blobs.swap(2, 3);
    assert_eq!(damage(&stored), Damage::Missing { expected: 3, found: 4 });
}

#[test]
fn a_key_that_was_changed_to_one_that_is_not_needed_is_detected() {
    let mut queue = Queue::new(name(), Config::default(), Durability::Snapshot, Epoch::FIRST, at(0));
    let mut row = StateRow::of(&mut queue);
    let mut blobs = Vec::new();
    for number in 0..6 {
        queue.publish(event(number), at(0)).unwrap();
        blobs.push(queue.cut(usize::MAX, at(0)).unwrap());
        for claimed in queue.claim(&Wanted::new("w"), at(0)).events {
            queue.ack(claimed.number, claimed.token, at(0)).unwrap();
        }
        queue.saved(number as u64 + 1);
        if number == 4 {
            row = StateRow::of(&mut queue);
        }
    }
    assert_eq!((row.first_seq, row.last_seq), (5, 5));
    let mut stored = Stored { row, blobs };
    assert!(recover(&stored, false).unwrap().loss.is_none(), "blobs that are not needed are passed over");
    stored.blobs[5].key.seq = 2;
    stored.blobs.sort_by_key(|blob| blob.key.seq);
    let loss = recover(&stored, false).unwrap().loss.unwrap();
    assert_eq!(loss.damage, Damage::Column { column: "seq", expected: 6, found: 2 });
}

#[test]
fn a_blob_of_an_owner_whose_time_was_over_is_detected() {
    let (_, mut first) = stored(Durability::Journal, 2);
    let recovered = recover(&first, false).unwrap();
    let mut second = recovered.queue;
    second.publish(event(900), at(200)).unwrap();
    let late = second.cut(usize::MAX, at(200)).unwrap();
    first.blobs.push(late);
    assert!(recover(&first, false).is_ok());
    // The old owner writes on under the next number.
    let (mut old, _) = stored(Durability::Journal, 3);
    old.publish(event(901), at(200)).unwrap();
    first.blobs.push(old.cut(usize::MAX, at(200)).unwrap());
    assert_eq!(damage(&first), Damage::Epoch { after: 2, found: 1 });
}

#[test]
fn a_journal_refuses_and_says_what_to_do() {
    let (_, mut stored) = stored(Durability::Journal, 6);
    let mut bytes = stored.blobs[3].bytes.to_vec();
    bytes[60] ^= 1;
    stored.blobs[3].bytes = bytes.into();
    let refused = recover(&stored, false).unwrap_err();
    let loss = &refused.loss;
    assert_eq!((loss.at, loss.good_through, loss.blobs, loss.readable), (4, 3, 3, 2));
    assert_eq!(loss.published, 8);
    let text = refused.to_string();
    for part in ["billing", "blob 4 is damaged", "its bytes have changed", "backup", "tidegate queues repair billing"] {
        assert!(text.contains(part), "{text}");
    }
    let record = serde_json::to_value(refused.record("r2".into(), at(100))).unwrap();
    assert_eq!((&record["status"], &record["recoveryCompleteTime"]), (&"failed".into(), &serde_json::Value::Null));
}

#[test]
fn what_is_good_before_damage_is_all_that_counts_once_the_loss_is_accepted() {
    for durability in [Durability::Journal, Durability::Snapshot] {
        for damaged in 0..6 {
            let (_, mut stored) = stored(durability, 6);
            let (good, _) = self::stored(durability, damaged);
            let mut bytes = stored.blobs[damaged].bytes.to_vec();
            let last = bytes.len() - 10;
            bytes[last] ^= 0x80;
            stored.blobs[damaged].bytes = bytes.into();
            // A snapshot goes on by itself.
            let recovered = recover(&stored, durability == Durability::Journal).unwrap();
            if damaged > 0 {
                assert_eq!(listed(&recovered.queue), listed(&good), "blob {}", damaged + 1);
            } else {
                assert_eq!(listed(&recovered.queue), []);
            }
            let loss = recovered.loss.as_ref().unwrap();
            assert_eq!(
                (loss.at, loss.blobs, loss.readable),
                (damaged as u64 + 1, 6 - damaged as u64, 5 - damaged as u64)
            );
            assert_eq!(recovered.record("r".into()).status, "completed_with_loss");
            assert_goes_on(recovered, &listed(&good));
        }
    }
}

/// After a loss everything is stored anew, under numbers that were not used, and recovered from there.
fn assert_goes_on(recovered: Recovered, expected: &[(String, u32, Option<String>)]) {
    let mut queue = recovered.queue;
    let mut blobs = Vec::new();
    while let Some(blob) = queue.cut(300, at(102)) {
        queue.saved(blob.key.seq);
        blobs.push(blob);
    }
    let row = StateRow::of(&mut queue);
    assert_eq!((row.first_seq, blobs[0].key.seq), (7, 7));
    let again = recover(&Stored { row, blobs }, false).unwrap();
    assert_eq!((listed(&again.queue), again.loss), (expected.to_vec(), None));
    assert_eq!(again.queue.state(), queue.state());
    assert!(again.queue.state().next_number >= 20 || expected.is_empty());
}

#[test]
fn records_that_make_no_sense_are_refused_as_a_whole() {
    let (_, stored) = stored(Durability::Journal, 1);
    let good = &stored.blobs[0];
    let body_at = 48 + "billing".len();
    let body = &good.bytes[body_at..good.bytes.len() - 4];
    let count = u32::from_le_bytes(good.bytes[40..44].try_into().unwrap());
    let make = |body: &[u8], count: u32, key: BlobKey| {
        let mut bytes = blob::begin("billing");
        bytes.extend_from_slice(body);
        blob::complete(bytes, "billing", key, count, false)
    };
    assert_eq!(make(body, count, good.key), *good);
    let damaged = [
        make(body, count + 1, good.key),
        make(body, u32::MAX, good.key),
        make(body, count - 1, good.key),
        make(&body[..body.len() - 1], count, good.key),
        make(&[body, &[4, 2]].concat(), count + 1, good.key),
        make(&[&[99], body].concat(), count + 1, good.key),
        make(&[], 0, good.key),
        make(body, count, BlobKey { last: good.key.first, ..good.key }),
    ];
    for blob in damaged {
        let mut recovery = Recovery::new(name(), &stored.row, stored.row.checksum(), at(100));
        recovery.read(&blob.key, &blob.bytes);
        assert_eq!(recovery.cells.len(), 0, "nothing of it counts");
        let refused = recovery.finish(Epoch::FIRST, false, at(101)).unwrap_err();
        assert!(matches!(refused.loss.damage, Damage::Records(_)), "{refused}");
    }
}

#[test]
fn bodies_of_any_bytes_are_read_without_a_panic() {
    let (_, stored) = stored(Durability::Journal, 2);
    let good = &stored.blobs[1];
    let body_at = 48 + "billing".len();
    let body = &good.bytes[body_at..good.bytes.len() - 4];
    for at_byte in 0..body.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bytes = blob::begin("billing");
            bytes.extend_from_slice(body);
            bytes[body_at + at_byte] ^= flip;
            let blob = blob::complete(bytes, "billing", good.key, 11, false);
            let mut recovery = Recovery::new(name(), &stored.row, stored.row.checksum(), at(100));
            recovery.read(&stored.blobs[0].key, &stored.blobs[0].bytes);
            recovery.read(&blob.key, &blob.bytes);
            let _ = recovery.finish(Epoch::FIRST.next().unwrap(), true, at(101));
        }
    }
}

#[test]
fn claims_that_a_crash_ended_count_with_a_journal() {
    for (durability, retries) in [(Durability::Journal, 1), (Durability::Snapshot, 0)] {
        let mut queue = Queue::new(name(), Config::default(), durability, Epoch::FIRST, at(0));
        queue.publish(event(1), at(0)).unwrap();
        let first = queue.cut(usize::MAX, at(0)).unwrap();
        queue.saved(first.key.seq);
        assert_eq!(queue.claim(&Wanted::new("w"), at(0)).events.len(), 1);
        let blobs = [Some(first), queue.cut(usize::MAX, at(0))].into_iter().flatten().collect();
        let recovered = recover(&Stored { row: StateRow::of(&mut queue), blobs }, false).unwrap();
        let listed = recovered.queue.list(0).next().unwrap();
        assert_eq!(listed.retry_count, retries);
    }
}

#[test]
fn blobs_that_are_not_needed_are_dropped_and_sparse_ones_compacted() {
    let mut queue = Queue::new(name(), Config::default(), Durability::Journal, Epoch::FIRST, at(0));
    let mut blobs: Vec<Blob> = Vec::new();
    let payload = RawValue::from_string(format!("\"{}\"", "x".repeat(2_000))).unwrap();
    let mut row = StateRow::of(&mut queue);
    let mut most = 0;
    for round in 0..200_usize {
        for number in 0..20 {
            let id = format!("{round}-{number}");
            queue.publish(Event::new(&EventFields::new(&id, "p", &payload), at(0)).unwrap(), at(0)).unwrap();
        }
        // One of each blob stays.
        let events = queue.claim(&Wanted { lease: Some(Duration::from_secs(9_999)), ..Wanted::new("w") }, at(0)).events;
        for claimed in events.iter().filter(|claimed| !claimed.event.event_id().ends_with("-7")) {
            queue.ack(claimed.number, claimed.token, at(0)).unwrap();
        }
        queue.compact(64 << 10);
        let blob = queue.cut(usize::MAX, at(0)).unwrap();
        queue.saved(blob.key.seq);
        blobs.push(blob);
        row = StateRow::of(&mut queue);
        blobs.retain(|blob| blob.key.seq >= row.first_seq);
        most = most.max(blobs.iter().map(|blob| blob.bytes.len()).sum());
    }
    let (stored, live) = queue.stored_bytes();
    assert_eq!(stored, blobs.iter().map(|blob| blob.bytes.len() as u64).sum::<u64>());
    assert!(most < 3 << 20 && live < 500 << 10, "at most {most} bytes were stored, {live} are needed");
    let recovered = recover(&Stored { row, blobs }, false).unwrap();
    let ids = |queue: &Queue| queue.list(0).map(|event| event.event.event_id().to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&recovered.queue), ids(&queue));
    assert_eq!(recovered.queue.checkpoint_id(), queue.checkpoint_id());
}
