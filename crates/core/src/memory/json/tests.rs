use std::time::Duration;

use serde_json::Value;

use super::super::event::{EventFields, Source};
use super::super::queue::Wanted;
use super::super::token::Epoch;
use super::*;
use crate::name::QueueName;

fn at(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(1_710_496_800_000 + millisecond).unwrap()
}

/// The state of a queue has every field of the source under its name and with its type, in the shape of its example.
#[test]
fn the_state_has_the_shape_of_the_source() {
    let config = Config { processing_interval: 0, max_retries: 3, ..Config::default() };
    let mut queue =
        Queue::new(QueueName::new("main-queue").unwrap(), config, Durability::Snapshot, Epoch::FIRST, at(0));
    let payload = RawValue::from_string("{ \"amount\":1500.00 }".into()).unwrap();
    let source = Source { kind: Some("integration"), id: Some("xero_main"), name: Some("Xero Accounting") };
    for id in ["evt_0", "evt_1", "evt_2"] {
        let fields = EventFields {
            version: Some("1.0.0"),
            source: Some(source),
            timestamp: Some(at(123)),
            correlation_id: Some("corr_xyz789"),
            ..EventFields::new(id, "invoice.created", &payload)
        };
        queue.publish(Event::new(&fields, at(0)).unwrap(), at(0)).unwrap();
    }
    let held = queue.claim(&Wanted { max: Some(3), ..Wanted::new("w") }, at(1_000)).events;
    queue.ack(held[0].number, held[0].token, at(1_042)).unwrap();
    queue
        .nack(held[1].number, held[1].token, Some("Connection timeout"), Some(Duration::from_secs(9)), at(2_123))
        .unwrap();
    let text = serde_json::to_string(&queue.to_json(0, 100)).unwrap();
    assert_eq!(text.matches("{ \"amount\":1500.00 }").count(), 2, "payloads are as they were sent: {text}");
    let expected = serde_json::json!({
        "id": "main-queue",
        "events": [
            {
                "eventId": "evt_1", "pattern": "invoice.created", "version": "1.0.0",
                "source": {"type": "integration", "id": "xero_main", "name": "Xero Accounting"},
                "timestamp": "2024-03-15T10:00:00.123Z", "payload": {"amount": 1500.00},
                "metadata": {
                    "correlationId": "corr_xyz789", "retryCount": 1, "lastError": "Connection timeout",
                    "lastErrorTime": "2024-03-15T10:00:02.123Z",
                },
            },
            {
                "eventId": "evt_2", "pattern": "invoice.created", "version": "1.0.0",
                "source": {"type": "integration", "id": "xero_main", "name": "Xero Accounting"},
                "timestamp": "2024-03-15T10:00:00.123Z", "payload": {"amount": 1500.00},
                "metadata": {
                    "correlationId": "corr_xyz789", "retryCount": 0,
                    "processingStartTime": "2024-03-15T10:00:01.000Z",
                },
            },
        ],
        "checkpointId": "evt_0",
        "queueMetrics": {"totalProcessed": 1, "totalErrors": 1, "avgProcessingTimeMs": 42},
        "config": {
            "maxQueueDepth": 10000, "batchSize": 100, "processingInterval": 0, "persistenceThreshold": 500,
            "highWatermark": 8000, "persistenceInterval": 5000, "leaseSeconds": 60, "maxRetries": 3,
            "retryDelaySeconds": 0,
        },
        "status": "active",
        "created_at": "2024-03-15T10:00:00.000Z",
        "updated_at": "2024-03-15T10:00:02.123Z",
        "durability": "snapshot", "drained": false, "depth": 2, "nextCursor": null,
    });
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
}

#[test]
fn pages_follow_each_other_across_acks() {
    let mut queue =
        Queue::new(QueueName::new("q").unwrap(), Config::default(), Durability::Snapshot, Epoch::FIRST, at(0));
    let payload = RawValue::from_string("1".into()).unwrap();
    for number in 0..10 {
        let id = number.to_string();
        queue.publish(Event::new(&EventFields::new(&id, "a", &payload), at(0)).unwrap(), at(0)).unwrap();
    }
    let ids = |page: &StateJson<'_>| page.events.iter().map(|event| event.event_id.to_owned()).collect::<Vec<_>>();
    let page = queue.to_json(0, 4);
    let cursor: u64 = page.next_cursor.as_ref().unwrap().parse().unwrap();
    assert_eq!(ids(&page), ["0", "1", "2", "3"]);
    for claimed in queue.claim(&Wanted { max: Some(6), ..Wanted::new("w") }, at(0)).events {
        queue.ack(claimed.number, claimed.token, at(1)).unwrap();
    }
    let page = queue.to_json(cursor, 4);
    assert_eq!(
        (ids(&page), page.next_cursor, page.depth),
        (vec!["6".into(), "7".into(), "8".into(), "9".into()], None, 4)
    );
}

#[test]
fn averages_are_whole_numbers_where_they_can_be() {
    for (processed, processing_micros, expected) in [(0, 0, "0"), (2, 84_000, "42"), (1, 1_500, "1.5")] {
        let metrics = MetricsJson::from(&Totals { processed, errors: 0, processing_micros });
        let text = serde_json::to_string(&metrics).unwrap();
        assert!(text.ends_with(&format!("\"avgProcessingTimeMs\":{expected}}}")), "{text}");
    }
}
