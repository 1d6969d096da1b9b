//! Every discipline by name, with the limits it has to meet. Names are stable, since results of different days are
//! compared by them. Nothing here measures.

use serde::Serialize;

/// Whether higher or lower values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// Higher is better.
    Higher,
    /// Lower is better.
    Lower,
}

/// What `must` and `aim` are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    /// The ratio to the baseline of the same run.
    Ratio,
    /// The value itself. There is no baseline, and the ratio is `value / must`.
    Value,
}

/// One measured property.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Discipline {
    /// The stable name.
    pub(crate) name: &'static str,
    /// The unit of the value.
    pub(crate) unit: &'static str,
    /// Whether higher or lower values are better.
    pub(crate) better: Better,
    /// What the limits apply to.
    pub(crate) judge: Judge,
    /// The limit that has to be met.
    pub(crate) must: f64,
    /// The limit that is aimed at; stricter than `must`.
    pub(crate) aim: f64,
    /// One line that says what is measured, and against which baseline.
    pub(crate) what: &'static str,
}

const fn faster(name: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit: "events/s", better: Better::Higher, judge: Judge::Ratio, must, aim, what }
}

const fn requests(name: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit: "requests/s", better: Better::Higher, judge: Judge::Ratio, must, aim, what }
}

const fn delivered(name: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit: "webhooks/s", better: Better::Higher, judge: Judge::Ratio, must, aim, what }
}

const fn level(name: &'static str, what: &'static str) -> Discipline {
    Discipline { name, unit: "ms", better: Better::Lower, judge: Judge::Ratio, must: 2.0, aim: 1.2, what }
}

const fn flat(name: &'static str, unit: &'static str, what: &'static str) -> Discipline {
    Discipline { name, unit, better: Better::Lower, judge: Judge::Ratio, must: 1.5, aim: 1.1, what }
}

const fn at_most(name: &'static str, unit: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit, better: Better::Lower, judge: Judge::Value, must, aim, what }
}

const fn grown(name: &'static str, what: &'static str) -> Discipline {
    Discipline { name, unit: "ms", better: Better::Lower, judge: Judge::Ratio, must: 1.2, aim: 1.1, what }
}

const fn at_least(name: &'static str, unit: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit, better: Better::Higher, judge: Judge::Value, must, aim, what }
}

/// For counts of what must not happen at all.
const fn none(name: &'static str, unit: &'static str, what: &'static str) -> Discipline {
    at_most(name, unit, 0.5, 0.0, what)
}

const fn beside(name: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit: "µs", better: Better::Lower, judge: Judge::Ratio, must, aim, what }
}

const fn few(name: &'static str, what: &'static str) -> Discipline {
    Discipline { name, unit: "µs", better: Better::Lower, judge: Judge::Ratio, must: 1.5, aim: 1.1, what }
}

/// All disciplines. A full run measures them family by family, so its order differs slightly.
pub(crate) const DISCIPLINES: [Discipline; 124] = [
    faster("postgres_drain", 1.0, 2.0, "claim + finalise in batches of 1,000 vs the textbook SQL loop"),
    faster("postgres_publish_many", 0.6, 0.85, "publish_many of 1,000 vs raw batched insert of the same rows"),
    faster("postgres_single_publish", 2.5, 4.0, "64 tasks calling publish vs raw single rows on 32 connections"),
    faster("sqlite_cycle", 0.6, 1.0, "publish + claim + finalise by 1,000 vs the raw three-transaction loop"),
    faster("sqlite_single_publish", 4.0, 6.0, "64 tasks calling publish vs raw single-row commits"),
    flat("postgres_claim_flat_backlog_time", "ms", "claim of 100 from a large backlog vs a small one"),
    flat("postgres_claim_flat_backlog_pages", "pages", "claim of 100 from a large backlog vs a small one"),
    flat("postgres_claim_flat_delayed_time", "ms", "claim of 100 behind delayed entries vs without them"),
    flat("postgres_claim_flat_delayed_pages", "pages", "claim of 100 behind delayed entries vs without them"),
    flat("postgres_claim_flat_foreign_time", "ms", "claim of 100 behind foreign types vs without them"),
    flat("postgres_claim_flat_foreign_pages", "pages", "claim of 100 behind foreign types vs without them"),
    flat("sqlite_claim_flat_backlog_time", "ms", "claim of 100 from a large backlog vs a small one"),
    flat("sqlite_claim_flat_delayed_time", "ms", "claim of 100 behind delayed entries vs without them"),
    flat("sqlite_claim_flat_foreign_time", "ms", "claim of 100 behind foreign types vs without them"),
    flat(
        "postgres_claim_many_lanes",
        "ms",
        "claim of 100 where there are 1,000 lanes in each of many queues vs one lane",
    ),
    flat("postgres_claim_many_lanes_pages", "pages", "the same, by pages"),
    flat("postgres_claim_many_leased", "ms", "claim of 100 behind leased entries vs without them"),
    flat("postgres_claim_many_leased_pages", "pages", "the same, by pages"),
    flat(
        "sqlite_claim_many_lanes",
        "ms",
        "claim of 100 where there are 1,000 lanes in each of many queues vs one lane",
    ),
    flat("sqlite_claim_many_leased", "ms", "claim of 100 behind leased entries vs without them"),
    faster("postgres_held_snapshot", 0.7, 0.95, "whole cycle while a snapshot is held open elsewhere vs without"),
    at_most("postgres_wal_bytes_per_event", "bytes", 1600.0, 900.0, "WAL from publish to end, 200-byte payload"),
    at_most("memory_rss_sqlite", "MiB", 200.0, 80.0, "peak resident memory over 1 KiB events, SQLite inside"),
    at_most("memory_rss_postgres", "MiB", 200.0, 80.0, "peak resident memory over 1 KiB events, without the server"),
    faster(
        "postgres_manager_drain",
        0.9,
        1.8,
        "one manager works off no-op events vs the textbook SQL loop on 2 connections",
    ),
    faster("postgres_manager_two_handlers", 0.8, 0.95, "one manager with two handlers per event vs one handler"),
    faster("sqlite_manager_cycle", 0.5, 0.9, "publish + one manager vs the raw three-transaction loop"),
    at_most("postgres_manager_latency_p50", "ms", 4.0, 2.0, "publish to the handler's start at 20/s, the median"),
    at_most("postgres_manager_latency_p99", "ms", 15.0, 8.0, "publish to the handler's start at 20/s, 99th percentile"),
    at_most("sqlite_manager_latency_p50", "ms", 1.5, 0.5, "publish to the handler's start at 20/s, the median"),
    at_most("sqlite_manager_latency_p99", "ms", 8.0, 3.0, "publish to the handler's start at 20/s, 99th percentile"),
    at_most("postgres_wake_same_process", "ms", 10.0, 5.0, "an idle manager starts on a publish of its own process"),
    at_most("postgres_wake_publish", "ms", 50.0, 25.0, "an idle manager starts on a publish of another process"),
    at_most("postgres_wake_publish_in", "ms", 50.0, 25.0, "the same, published in a caller's transaction"),
    at_most("postgres_wake_sql", "ms", 50.0, 25.0, "the same, published with plain SQL that notifies"),
    at_most("postgres_wake_lost", "ms", 120.0, 105.0, "the same without any notification: the poll interval is 100 ms"),
    at_most("postgres_manager_idle_cpu", "%", 1.0, 0.5, "of a core, while a manager has nothing to do"),
    at_most("sqlite_manager_idle_cpu", "%", 1.0, 0.5, "of a core, while a manager has nothing to do"),
    faster("postgres_projection", 0.7, 1.0, "a projection into documents by key vs a plain SELECT + upsert loop"),
    requests("server_publish", 0.3, 0.6, "POST /events on 64 connections, SQLite, vs a bare handler of the same JSON"),
    requests("server_cycle", 0.25, 0.5, "publish, subscribe, complete on 64 connections, SQLite, vs bare handlers"),
    faster("server_cycle_batches", 0.4, 0.7, "the same three in batches of 100 vs raw SQL that writes the same rows"),
    level("postgres_subscribe_rare_tag", "claim by a tag that 10 of many waiting events have vs only those 10"),
    level("postgres_subscribe_hot_tag", "claim by a shared tag, an event's own tag, or either, vs only 10 events"),
    level("sqlite_subscribe_rare_tag", "claim by a tag that 10 of many waiting events have vs only those 10"),
    level("sqlite_subscribe_hot_tag", "claim by a shared tag, an event's own tag, or either, vs only 10 events"),
    at_most("postgres_list_p99", "ms", 50.0, 10.0, "GET /events?limit=20 among ended events, the worst filter's p99"),
    at_most("postgres_list_client_p99", "ms", 10.0, 3.0, "the same for a client that owns one in 1,000 of them"),
    at_most("sqlite_list_p99", "ms", 50.0, 10.0, "GET /events?limit=20 among ended events, the worst filter's p99"),
    requests(
        "postgres_list_load_publish",
        0.8,
        0.95,
        "POST /events while 8 clients send the worst list vs without them",
    ),
    level("postgres_list_load_p99", "the same, the p99 of a publish"),
    requests("sqlite_list_load_publish", 0.8, 0.95, "POST /events while 8 clients send the worst list vs without them"),
    level("sqlite_list_load_p99", "the same, the p99 of a publish"),
    at_most("server_rss_idle", "MiB", 60.0, 30.0, "resident memory of an idle server, SQLite inside"),
    at_most("server_rss_long_polls", "MiB", 150.0, 80.0, "the same while 2,000 subscribers wait, each for its own tag"),
    at_most("sqlite_long_polls_cpu", "%", 2.0, 1.0, "of a core, while 2,000 subscribers wait and nothing is published"),
    at_most("sqlite_long_poll_p99", "ms", 20.0, 10.0, "from a publish to the answer to one of 2,000 subscribers"),
    at_most("postgres_long_poll_p99", "ms", 20.0, 10.0, "from a publish to the answer to one of 2,000 subscribers"),
    at_most("postgres_long_poll_other_node_p99", "ms", 100.0, 50.0, "the same, published at another node"),
    beside("schema_json", 2.0, 1.0, "JSON Schema: judging an event of 20 fields and 1 KiB vs reading it into a value"),
    beside(
        "schema_proto",
        1.5,
        1.1,
        "PROTO: judging a message of 20 fields and 1 KiB vs decoding it by its descriptor",
    ),
    beside("schema_xsd", 20.0, 5.0, "XSD: judging a document of 20 elements and 1 KiB vs reading its markup"),
    beside("schema_cached", 1.2, 1.05, "judging by a type among 10,000 whose schemas are compiled vs a single one"),
    at_most("postgres_types_p99", "ms", 10.0, 3.0, "lists and look-ups among 10,000 event types, the worst one's p99"),
    at_most("sqlite_types_p99", "ms", 10.0, 3.0, "lists and look-ups among 10,000 event types, the worst one's p99"),
    few("matching_exact", "an event's subscriptions, 3 of 10,000, by exact types, vs 3 of 10"),
    few("matching_wildcard", "an event's subscriptions, 3 of 10,000, by patterns, vs 3 of 10"),
    requests("postgres_ingest_none", 0.9, 1.2, "POST /api/events that nobody subscribes to vs POST /events"),
    requests("postgres_ingest_one", 0.6, 0.9, "POST /api/events with 1 matching subscription vs POST /events"),
    requests("postgres_ingest_ten", 0.2, 0.4, "POST /api/events with 10 matching subscriptions vs POST /events"),
    requests("postgres_ingest_context", 0.7, 0.85, "POST /api/events with 3 pairs of context data vs none"),
    requests("sqlite_ingest_none", 0.9, 1.2, "POST /api/events that nobody subscribes to vs POST /events"),
    requests("sqlite_ingest_one", 0.6, 0.9, "POST /api/events with 1 matching subscription vs POST /events"),
    requests("sqlite_ingest_ten", 0.2, 0.4, "POST /api/events with 10 matching subscriptions vs POST /events"),
    requests("sqlite_ingest_context", 0.7, 0.85, "POST /api/events with 3 pairs of context data vs none"),
    faster("postgres_ingest_batch", 0.5, 0.8, "POST /api/events/batch of 100 vs raw SQL that writes the same rows"),
    faster("sqlite_ingest_batch", 0.5, 0.8, "POST /api/events/batch of 100 vs raw SQL that writes the same rows"),
    at_most("postgres_fan_out_entries_p99", "ms", 100.0, 50.0, "POST /api/events beside an event with 5,000 entries"),
    at_most("postgres_fan_out_jobs_p99", "ms", 100.0, 50.0, "POST /api/events beside an event with 5,000 jobs"),
    at_most("sqlite_fan_out_entries_p99", "ms", 100.0, 50.0, "POST /api/events beside an event with 5,000 entries"),
    at_most("sqlite_fan_out_jobs_p99", "ms", 100.0, 50.0, "POST /api/events beside an event with 5,000 jobs"),
    at_most("postgres_search_p99", "ms", 20.0, 5.0, "searches among 1,000,000 events, the worst one's p99"),
    at_most("sqlite_search_p99", "ms", 20.0, 5.0, "searches among 1,000,000 events, the worst one's p99"),
    delivered(
        "postgres_deliver_backlog",
        0.3,
        0.5,
        "a backlog of jobs to one receiver, 256 in flight, vs a bare loop of the HTTP library",
    ),
    delivered("postgres_deliver_ordered", 0.6, 0.9, "the same in NEXT_ON_ERROR with 1,000 groups vs IMMEDIATE"),
    delivered("postgres_deliver_lanes", 0.7, 0.9, "the same by subscriptions with 100 jobs each vs one with all"),
    delivered(
        "postgres_deliver_end_to_end",
        0.2,
        0.35,
        "POST /api/events on 32 connections, delivered, vs a bare loop of the HTTP library",
    ),
    delivered("postgres_deliver_ten", 0.9, 1.5, "the same with ten receivers of each event vs one"),
    delivered(
        "sqlite_deliver_backlog",
        0.45,
        0.7,
        "a backlog of jobs to one receiver, 256 in flight, vs a bare loop of the HTTP library",
    ),
    delivered("sqlite_deliver_ordered", 0.6, 0.9, "the same in NEXT_ON_ERROR with 1,000 groups vs IMMEDIATE"),
    delivered("sqlite_deliver_lanes", 0.7, 0.9, "the same by subscriptions with 100 jobs each vs one with all"),
    delivered(
        "sqlite_deliver_end_to_end",
        0.2,
        0.35,
        "POST /api/events on 32 connections, delivered, vs a bare loop of the HTTP library",
    ),
    delivered("sqlite_deliver_ten", 0.9, 1.5, "the same with ten receivers of each event vs one"),
    at_most("postgres_deliver_latency_p50", "ms", 6.0, 3.0, "accepted to received by a webhook, at 100/s, the median"),
    at_most(
        "postgres_deliver_latency_p99",
        "ms",
        25.0,
        10.0,
        "accepted to received by a webhook, at 100/s, 99th percentile",
    ),
    at_most("sqlite_deliver_latency_p50", "ms", 3.0, 1.5, "accepted to received by a webhook, at 100/s, the median"),
    at_most(
        "sqlite_deliver_latency_p99",
        "ms",
        15.0,
        6.0,
        "accepted to received by a webhook, at 100/s, 99th percentile",
    ),
    at_most("postgres_deliver_wal", "bytes", 1500.0, 900.0, "WAL from the claim of a job to its end, 200-byte payload"),
    grown(
        "postgres_deliver_beside_dead_p99",
        "webhooks to 1,000 healthy receivers beside a target that refuses connections, the p99, vs without it",
    ),
    grown("postgres_deliver_beside_dns_p99", "the same beside one that hangs in DNS"),
    grown("postgres_deliver_beside_silent_p99", "the same beside one that accepts and says nothing"),
    grown("postgres_deliver_beside_slow_p99", "the same beside one that answers a byte per second"),
    grown(
        "sqlite_deliver_beside_dead_p99",
        "webhooks to 1,000 healthy receivers beside a target that refuses connections, the p99, vs without it",
    ),
    grown("sqlite_deliver_beside_dns_p99", "the same beside one that hangs in DNS"),
    grown("sqlite_deliver_beside_silent_p99", "the same beside one that accepts and says nothing"),
    grown("sqlite_deliver_beside_slow_p99", "the same beside one that answers a byte per second"),
    at_most(
        "postgres_deliver_waiting_p99",
        "ms",
        50.0,
        10.0,
        "lists of jobs and groups among 1,000,000 waiting jobs, the p99",
    ),
    at_most(
        "postgres_deliver_waiting_rss",
        "MiB",
        48.0,
        16.0,
        "memory of the server beyond that of one with 1,000 waiting jobs",
    ),
    none("postgres_deliver_waiting_writes", "rows", "rows of jobs written while none of them can be delivered"),
    none("postgres_deliver_waiting_excess", "deliveries", "at once beyond a pool's limit of 16, with that backlog"),
    at_most(
        "postgres_deliver_due_p99",
        "ms",
        50.0,
        20.0,
        "the lists while 100,000 jobs are delivered that are due in one second",
    ),
    none("postgres_deliver_due_excess", "deliveries", "at once beyond the pool's limit of 64 meanwhile"),
    at_most(
        "postgres_deliver_rate_most",
        "%",
        102.0,
        100.5,
        "deliveries in the fullest minute, of the pool's limit, with two nodes",
    ),
    at_least("postgres_deliver_rate_least", "%", 95.0, 99.0, "the same in the emptiest minute, under a backlog"),
    none("postgres_deliver_killed_excess", "deliveries", "at once beyond a pool's limit of 16 while nodes are killed"),
    at_most(
        "sqlite_deliver_waiting_p99",
        "ms",
        50.0,
        10.0,
        "lists of jobs and groups among 1,000,000 waiting jobs, the p99",
    ),
    at_most(
        "sqlite_deliver_waiting_rss",
        "MiB",
        48.0,
        16.0,
        "memory of the server beyond that of one with 1,000 waiting jobs",
    ),
    none("sqlite_deliver_waiting_writes", "rows", "rows of jobs written while none of them can be delivered"),
    none("sqlite_deliver_waiting_excess", "deliveries", "at once beyond a pool's limit of 16, with that backlog"),
    at_most(
        "sqlite_deliver_due_p99",
        "ms",
        50.0,
        20.0,
        "the lists while 100,000 jobs are delivered that are due in one second",
    ),
    none("sqlite_deliver_due_excess", "deliveries", "at once beyond the pool's limit of 64 meanwhile"),
    at_most(
        "sqlite_deliver_rate_most",
        "%",
        102.0,
        100.5,
        "deliveries in the fullest minute, of the pool's limit, with two nodes",
    ),
    at_least("sqlite_deliver_rate_least", "%", 95.0, 99.0, "the same in the emptiest minute, under a backlog"),
    none("sqlite_deliver_killed_excess", "deliveries", "at once beyond a pool's limit of 16 while nodes are killed"),
];

/// The discipline with this name, or `None`.
pub(crate) fn discipline(name: &str) -> Option<&'static Discipline> {
    DISCIPLINES.iter().find(|discipline| discipline.name == name)
}

/// Which disciplines a run measures: all, one by its full name, or all whose names begin with a prefix.
#[derive(Debug, Clone)]
pub(crate) struct Wanted(Option<String>);

impl Wanted {
    /// Checks the value of `--only`.
    ///
    /// # Errors
    /// When it is neither a name nor a prefix of one; the message lists all names.
    pub(crate) fn new(only: Option<String>) -> Result<Self, String> {
        let wanted = Self(only);
        if DISCIPLINES.iter().any(|discipline| wanted.has(discipline.name)) {
            return Ok(wanted);
        }
        let names: Vec<&str> = DISCIPLINES.iter().map(|discipline| discipline.name).collect();
        Err(format!(
            "there is no discipline {:?}; the disciplines are:\n  {}",
            wanted.0.unwrap_or_default(),
            names.join("\n  ")
        ))
    }

    /// Whether this discipline is measured. A full name selects only itself, even where it is a prefix of other names.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.0 {
            None => true,
            Some(only) if discipline(only).is_some() => only == name,
            Some(only) => name.starts_with(only.as_str()),
        }
    }

    /// Whether any of these disciplines is measured.
    pub(crate) fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_aims_are_beyond_musts() {
        let names: HashSet<&str> = DISCIPLINES.iter().map(|discipline| discipline.name).collect();
        assert_eq!(names.len(), DISCIPLINES.len());
        for discipline in &DISCIPLINES {
            match discipline.better {
                Better::Higher => assert!(discipline.aim > discipline.must, "{}", discipline.name),
                Better::Lower => assert!(discipline.aim < discipline.must, "{}", discipline.name),
            }
        }
    }

    #[test]
    fn one_name_or_the_start_of_names() {
        let all = Wanted::new(None).unwrap();
        assert!(DISCIPLINES.iter().all(|discipline| all.has(discipline.name)));
        let one = Wanted::new(Some("postgres_drain".into())).unwrap();
        assert!(one.has("postgres_drain") && !one.has("sqlite_cycle"));
        let family = Wanted::new(Some("sqlite_claim_flat".into())).unwrap();
        assert_eq!(DISCIPLINES.iter().filter(|discipline| family.has(discipline.name)).count(), 3);
        let error = Wanted::new(Some("nonsense".into())).unwrap_err();
        assert!(error.contains("nonsense") && error.contains("sqlite_cycle"), "{error}");
    }
}
