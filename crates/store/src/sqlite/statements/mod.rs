//! The statements of the SQLite store, with the index that serves each. `{ns}` is the namespace; `{live}`,
//! `{log}`, `{queues}`, `{lanes}`, `{consumers}`, `{key_kind}` and `{request_kind}` are the family's own (see
//! [`Family::fill`]); `{room}` is the length of what a claim fills in.

pub(in crate::sqlite) mod added;
pub(in crate::sqlite) mod attempts;
pub(in crate::sqlite) mod audit;
pub(in crate::sqlite) mod catalogue;
pub(in crate::sqlite) mod claim;
pub(in crate::sqlite) mod deduplication;
pub(in crate::sqlite) mod dispatch;
pub(in crate::sqlite) mod end;
pub(in crate::sqlite) mod entries;
pub(in crate::sqlite) mod facts;
pub(in crate::sqlite) mod finding;
pub(in crate::sqlite) mod groups;
pub(in crate::sqlite) mod handlers;
pub(in crate::sqlite) mod heartbeat;
pub(in crate::sqlite) mod ingest;
pub(in crate::sqlite) mod jobs;
pub(in crate::sqlite) mod keys;
pub(in crate::sqlite) mod lanes;
pub(in crate::sqlite) mod lists;
pub(in crate::sqlite) mod log_counts;
pub(in crate::sqlite) mod projections;
pub(in crate::sqlite) mod publish;
pub(in crate::sqlite) mod queues;
pub(in crate::sqlite) mod requests;
pub(in crate::sqlite) mod resources;
pub(in crate::sqlite) mod retain;
pub(in crate::sqlite) mod schedules;
pub(in crate::sqlite) mod tags;
pub(in crate::sqlite) mod transactions;

use crate::values::Family;

crate::sql::subjects! {
    /// The statements of each subject.
    pub(in crate::sqlite) struct Sql {
        added: added::Added,
        attempts: attempts::Attempts,
        audit: audit::Audit,
        catalogue: catalogue::Catalogue,
        claim: claim::Claim,
        deduplication: deduplication::Deduplication,
        dispatch: dispatch::Dispatch,
        end: end::End,
        entries: entries::Entries,
        finding: finding::Finding,
        groups: groups::Groups,
        handlers: handlers::Handlers,
        heartbeat: heartbeat::Heartbeat,
        ingest: ingest::Ingest,
        jobs: jobs::Jobs,
        keys: keys::Keys,
        lanes: lanes::Lanes,
        lists: lists::Lists,
        log_counts: log_counts::LogCounts,
        projections: projections::Projections,
        publish: publish::Publish,
        queues: queues::Queues,
        requests: requests::Requests,
        resources: resources::Resources,
        retain: retain::Retain,
        schedules: schedules::Schedules,
        tags: tags::Tags,
        transactions: transactions::Transactions,
    }
}

impl Sql {
    /// The statements of a family in one namespace. Those about deliveries are about jobs in either.
    pub(in crate::sqlite) fn new(namespace: &str, family: Family) -> Self {
        let room = claim::ROOM.to_string();
        let fill =
            |family: Family, text: &str| family.fill(text, "_").replace("{ns}", namespace).replace("{room}", &room);
        Self {
            dispatch: dispatch::Dispatch::new(|text| fill(Family::Jobs, text)),
            jobs: jobs::Jobs::new(|text| fill(Family::Jobs, text)),
            ..Self::filled(|text| fill(family, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::StoreOptions;
    use crate::sql::Declared;
    use crate::sqlite::engine::migrate::migrate;

    /// Every statement compiles against the schema, and only those listed here scan a table.
    #[test]
    fn statements_are_served_by_their_index() {
        let conn = Connection::open_in_memory().unwrap();
        conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).unwrap();
        migrate(&conn, &StoreOptions::default(), 0).unwrap();
        let scans = [
            "dispatch.shift_slots",
            "dispatch.forget_slots",
            "dispatch.forget_rates",
            "queues.depth",
            "queues.depths",
            "entries.census",
            "heartbeat.shift_leases",
            "queues.consumers_since",
            "queues.forget_consumers",
            "handlers.forget",
            "lanes.forget",
            "heartbeat.resign",
            "queues.configs",
            "queues.names",
            "queues.insert",
            "projections.versions",
            "schedules.all_schedules",
            "schedules.due",
            "schedules.next_due",
            "tags.shift_leases",
            "tags.forget",
            "lists.count_live",
            "lists.held_tag",
            "log_counts.client_tail",
            "lists.lanes_of",
            "lists.published_from",
            "attempts.consumers",
            "attempts.held",
            "retain.projections_at",
            "retain.forget_audit",
            "keys.all_keys",
            "dispatch.holders",
            "jobs.has_nodes",
            "dispatch.release",
        ];
        for family in Family::ALL {
            check_statements(&conn, &Sql::new("tidegate", family), &scans);
        }
    }

    /// A condition of an index that lists three values or more would make each of these build a temporary table.
    #[test]
    fn the_statements_of_an_entrys_life_need_no_temporary_tables() {
        let conn = Connection::open_in_memory().unwrap();
        migrate(&conn, &StoreOptions::default(), 0).unwrap();
        for family in Family::ALL {
            let Sql { publish, claim, end, .. } = &Sql::new("tidegate", family);
            let (puts, takes) = ([&publish.put_plain_fact, &publish.put_entry, &publish.put_run], [&claim.take]);
            let ends = [&end.log_run, &end.delete_run, &end.log_held, &end.delete_held, &end.delete_entry];
            for text in puts.into_iter().chain(takes).chain(ends) {
                let mut program = conn.prepare(&format!("EXPLAIN {}", &**text)).unwrap();
                let nulls = vec![rusqlite::types::Null; program.parameter_count()];
                let opcode = |row: &rusqlite::Row<'_>| row.get("opcode");
                let steps: Vec<String> =
                    program.query_map(rusqlite::params_from_iter(nulls), opcode).unwrap().map(Result::unwrap).collect();
                assert!(!steps.iter().any(|step| step == "OpenEphemeral"), "{}: {steps:?}", &**text);
            }
        }
    }

    fn check_statements(conn: &Connection, sql: &Sql, scans: &[&str]) {
        for Declared { name, text, columns } in sql.all() {
            let prepared = conn.prepare(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            let found: Vec<&str> = prepared.column_names().collect();
            let same = columns.iter().zip(&found).all(|(wanted, found)| wanted.is_none_or(|wanted| wanted == *found));
            let fits = columns.is_empty() || same && columns.len() == found.len();
            assert!(fits, "{name} returns {found:?}, its row has {columns:?}");
            let mut plan =
                conn.prepare(&format!("EXPLAIN QUERY PLAN {text}")).unwrap_or_else(|e| panic!("{name}: {e}"));
            let nulls = vec![rusqlite::types::Null; plan.parameter_count()];
            let lines: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(nulls), |row| row.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let small = ["meta", "heartbeat", "sequence", "log_counts"].map(|table| format!("SCAN tidegate_{table}"));
            let scan = lines.iter().find(|line| {
                line.starts_with("SCAN tidegate") && !small.iter().any(|table| line.starts_with(table.as_str()))
                    || line.contains("TEMP B-TREE")
            });
            assert!(scan.is_none() || scans.contains(&name.as_str()), "{name}: {lines:?}");
        }
    }
}
