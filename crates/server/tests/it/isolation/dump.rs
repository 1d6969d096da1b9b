//! All rows of a database, and to which party they belong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::parties::Party;
use crate::scene::Scene;

/// Columns that say when something was last used or seen. They change without any call: a server announces the workers
/// it knows every few seconds.
const TIME_ALONE: [&str; 3] = ["last_used_at", "used_at", "seen_at"];

/// Tables that count over all clients, by names that any client may use.
const SUMS: [&str; 1] = ["tag_counts"];

type Row = Map<String, Value>;

/// All rows, by table.
#[derive(Debug, Default)]
pub(super) struct Dump(BTreeMap<String, Vec<Row>>);

impl Dump {
    pub(super) async fn of(scene: &Scene) -> Self {
        match scene.postgres_address() {
            Some(url) => Self::of_postgres(url).await,
            None => Self::of_sqlite(&scene.sqlite_file()),
        }
    }

    fn of_sqlite(file: &Path) -> Self {
        let db = rusqlite::Connection::open(file).unwrap();
        let mut tables = db.prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").unwrap();
        let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let mut dump = Self::default();
        for table in tables {
            let mut all = db.prepare(&format!("SELECT * FROM \"{table}\"")).unwrap();
            let names: Vec<String> = all.column_names().map(str::to_owned).collect();
            let read = |row: &rusqlite::Row<'_>| {
                let column = |(at, name): (usize, &String)| (name.clone(), value(row.get_ref(at).unwrap()));
                Ok(names.iter().enumerate().map(column).collect::<Row>())
            };
            let rows = all.query_map([], read).unwrap().map(Result::unwrap).collect();
            dump.0.insert(table.trim_start_matches("tidegate_").to_owned(), rows);
        }
        dump
    }

    async fn of_postgres(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'tidegate' ORDER BY 1";
        let mut dump = Self::default();
        for table in client.query(tables, &[]).await.unwrap() {
            let table: String = table.get(0);
            let rows =
                client.query(&format!("SELECT row_to_json(t)::text FROM tidegate.{table} t"), &[]).await.unwrap();
            let rows = rows.iter().map(|row| serde_json::from_str(row.get(0)).unwrap()).collect();
            dump.0.insert(table, rows);
        }
        drop(client);
        connection.await.unwrap().unwrap();
        dump
    }

    /// Whether all ended entries are counted. On Postgres counting also waits for transactions of other databases.
    pub(super) fn is_counted(&self) -> bool {
        let counted = &self.0["log_counts"][0];
        // Postgres counts rows below a transaction id, SQLite counts rows up to and including a number.
        let (column, beyond) = if counted.contains_key("xid") { ("xid", 0) } else { ("seq", 1) };
        let upto = number(&counted[column]) + beyond;
        self.0["event_log"].iter().all(|row| number(&row[column]) < upto)
    }

    /// The rows of some parties, as text: rows with the number of one of their clients, queues, lanes, entries or
    /// events, and rows without any such number that contain one of their markers.
    pub(super) fn of_parties(&self, parties: &[Party]) -> BTreeSet<String> {
        let ids = Ids::of(self, parties);
        let mut found = BTreeSet::new();
        for (table, rows) in &self.0 {
            for row in rows.iter().filter(|row| ids.are_in(table, row)) {
                let mut row = row.clone();
                row.retain(|name, _| !TIME_ALONE.contains(&name.as_str()));
                found.insert(format!("{table} {}", Value::from(row)));
            }
        }
        found
    }

    /// The numbers of these parties' entries and events.
    pub(super) fn numbers_of(&self, parties: &[Party]) -> BTreeSet<i64> {
        let ids = Ids::of(self, parties);
        ids.entries.union(&ids.events).copied().collect()
    }

    fn column<'a>(&'a self, table: &str, column: &'a str) -> impl Iterator<Item = (&'a Row, i64)> {
        let rows = self.0.get(table).unwrap_or_else(|| panic!("there is no table {table}"));
        rows.iter().filter_map(move |row| Some((row, row[column].as_i64()?)))
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap()
}

fn value(value: rusqlite::types::ValueRef<'_>) -> Value {
    use rusqlite::types::ValueRef;
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
    }
}

/// The numbers of everything that belongs to some parties.
struct Ids {
    markers: Vec<String>,
    clients: BTreeSet<i64>,
    queues: BTreeSet<i64>,
    lanes: BTreeSet<i64>,
    entries: BTreeSet<i64>,
    events: BTreeSet<i64>,
    facts: BTreeSet<i64>,
    jobs: Jobs,
}

/// The numbers of jobs' own tables, which count for themselves.
struct Jobs {
    queues: BTreeSet<i64>,
    lanes: BTreeSet<i64>,
    jobs: BTreeSet<i64>,
}

impl Jobs {
    fn of(dump: &Dump, clients: &BTreeSet<Option<i64>>) -> Self {
        let of_clients = |table| -> BTreeSet<i64> {
            let rows = dump.column(table, "id");
            rows.filter(|(row, _)| clients.contains(&row["client_id"].as_i64())).map(|(_, id)| id).collect()
        };
        let queues = of_clients("dispatch_queues");
        let lanes = dump.column("dispatch_lanes", "id");
        let lanes = lanes.filter(|(row, _)| row["queue_id"].as_i64().is_some_and(|id| queues.contains(&id)));
        let lanes = lanes.map(|(_, id)| id).collect();
        let jobs = of_clients("dispatch_queue").union(&of_clients("dispatch_log")).copied().collect();
        Self { queues, lanes, jobs }
    }

    /// The numbers that a column of one of these tables has.
    fn of_column(&self, table: &str, column: &str) -> Option<&BTreeSet<i64>> {
        match (table, column) {
            (_, "queue_id") | ("dispatch_queues", "id") => Some(&self.queues),
            (_, "lane" | "lane_id") | ("dispatch_lanes", "id") => Some(&self.lanes),
            (_, "job" | "entry_id") | ("dispatch_queue" | "dispatch_log", "id") => Some(&self.jobs),
            _ => None,
        }
    }
}

impl Ids {
    fn of(dump: &Dump, parties: &[Party]) -> Self {
        let clients: BTreeSet<Option<i64>> = parties.iter().map(|party| party.client.map(|id| id.to_i64())).collect();
        let queues = dump.column("queues", "id").filter(|(row, _)| clients.contains(&row["client_id"].as_i64()));
        let queues: BTreeSet<i64> = queues.map(|(_, id)| id).collect();
        let of_queues = |table, column| -> BTreeSet<i64> {
            let rows = dump.column(table, column);
            let theirs = rows.filter(|(row, _)| row["queue_id"].as_i64().is_some_and(|id| queues.contains(&id)));
            theirs.map(|(_, id)| id).collect()
        };
        let both = |column| {
            let (live, ended) = (of_queues("event_queue", column), of_queues("event_log", column));
            live.union(&ended).copied().collect()
        };
        let facts = dump.column("events", "id").filter(|(row, _)| clients.contains(&row["client_id"].as_i64()));
        Self {
            facts: facts.map(|(_, id)| id).collect(),
            markers: parties.iter().map(|party| party.marker.clone()).collect(),
            clients: clients.iter().flatten().copied().collect(),
            lanes: of_queues("lanes", "id"),
            entries: both("id"),
            events: both("event_id"),
            queues,
            jobs: Jobs::of(dump, &clients),
        }
    }

    fn are_in(&self, table: &str, row: &Row) -> bool {
        let kind = |column: &str| match (table, column) {
            (_, "client_id") => Some(&self.clients),
            // What was made later for a fact is noted under no client, but under the fact.
            ("deduplication", "scope") => Some(&self.facts),
            (table, column) if table.starts_with("dispatch_") && column != "event_id" => {
                self.jobs.of_column(table, column)
            }
            (_, "queue_id") | ("queues", "id") => Some(&self.queues),
            (_, "lane" | "lane_id") | ("lanes", "id") => Some(&self.lanes),
            (_, "entry_id") | ("event_queue" | "event_log", "id") => Some(&self.entries),
            (_, "event_id") | ("events", "id") => Some(&self.events),
            _ => None,
        };
        let mut numbered = row.iter().filter_map(|(name, value)| Some((kind(name)?, value.as_i64()?))).peekable();
        // A client may use any name, so a row that has numbers is attributed by these alone.
        if numbered.peek().is_some() {
            return numbered.any(|(ids, id)| ids.contains(&id));
        }
        let text = Value::from(row.clone()).to_string();
        !SUMS.contains(&table) && self.markers.iter().any(|marker| text.contains(marker))
    }
}
