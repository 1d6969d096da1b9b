//! Every discipline by name, with what it promises. Names are stable: results of different days are compared by them.
//! Nothing here measures.

use serde::Serialize;

/// Whether more or less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// What `must` and `aim` are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    /// The ratio to the baseline of the same run.
    Ratio,
    /// The value itself: there is no baseline, and the ratio is the share of `must` that was used.
    Value,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Discipline {
    /// Its stable name.
    pub(crate) name: &'static str,
    /// What the value is counted in.
    pub(crate) unit: &'static str,
    /// Which way is better.
    pub(crate) better: Better,
    /// What is judged.
    pub(crate) judge: Judge,
    /// What has to be reached.
    pub(crate) must: f64,
    /// What is hoped for.
    pub(crate) aim: f64,
    /// One line for people: what, against what.
    pub(crate) what: &'static str,
}

const fn faster(name: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit: "events/s", better: Better::Higher, judge: Judge::Ratio, must, aim, what }
}

const fn requests(name: &'static str, must: f64, aim: f64, what: &'static str) -> Discipline {
    Discipline { name, unit: "requests/s", better: Better::Higher, judge: Judge::Ratio, must, aim, what }
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

/// All disciplines, in the order of a full run.
pub(crate) const DISCIPLINES: [Discipline; 59] = [
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
    faster("postgres_manager_drain", 0.9, 1.8, "one manager works off no-op events vs the textbook SQL loop"),
    faster("postgres_manager_two_handlers", 0.8, 0.95, "one manager with two handlers per event vs one handler"),
    faster("sqlite_manager_cycle", 0.5, 0.9, "publish + one manager vs the raw three-transaction loop"),
    at_most("postgres_manager_latency_p50", "ms", 4.0, 2.0, "publish to the handler's start at 20/s, the median"),
    at_most("postgres_manager_latency_p99", "ms", 15.0, 8.0, "publish to the handler's start at 20/s, 99th of 100"),
    at_most("sqlite_manager_latency_p50", "ms", 1.5, 0.5, "publish to the handler's start at 20/s, the median"),
    at_most("sqlite_manager_latency_p99", "ms", 8.0, 3.0, "publish to the handler's start at 20/s, 99th of 100"),
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
    level("postgres_subscribe_rare_tag", "claim by a tag of 10 among many waiting events vs only the 10"),
    level("postgres_subscribe_hot_tag", "claim by a tag of all, one of its own, or both, vs only 10 events"),
    level("sqlite_subscribe_rare_tag", "claim by a tag of 10 among many waiting events vs only the 10"),
    level("sqlite_subscribe_hot_tag", "claim by a tag of all, one of its own, or both, vs only 10 events"),
    at_most("postgres_list_p99", "ms", 50.0, 10.0, "GET /events?limit=20 among ended events, the worst filter's p99"),
    at_most("postgres_list_client_p99", "ms", 10.0, 3.0, "the same for a client that owns one of 1,000 of them"),
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
    at_most("sqlite_long_polls_cpu", "%", 2.0, 1.0, "of a core, while 2,000 subscribers wait for what does not come"),
    at_most("sqlite_long_poll_p99", "ms", 20.0, 10.0, "from a publish to the answer of one of 2,000 who wait"),
    at_most("postgres_long_poll_p99", "ms", 20.0, 10.0, "from a publish to the answer of one of 2,000 who wait"),
    at_most("postgres_long_poll_other_node_p99", "ms", 100.0, 50.0, "the same, published at another node"),
];

/// The discipline of this name.
pub(crate) fn discipline(name: &str) -> Option<&'static Discipline> {
    DISCIPLINES.iter().find(|discipline| discipline.name == name)
}

/// Which disciplines a run measures: all, one by its name, or a family by the start of its names.
#[derive(Debug, Clone)]
pub(crate) struct Wanted(Option<String>);

impl Wanted {
    /// Checks what the user asked for.
    ///
    /// # Errors
    /// When no discipline has that name; the message lists them.
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

    /// Whether this discipline is measured. A full name means itself alone, the start of names all that begin so.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.0 {
            None => true,
            Some(only) if discipline(only).is_some() => only == name,
            Some(only) => name.starts_with(only.as_str()),
        }
    }

    /// Whether any of these is measured.
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
