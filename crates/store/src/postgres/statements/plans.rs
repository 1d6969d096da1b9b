//! Tests that the plan of every statement stays good. Our connections plan a statement once, perhaps while the tables
//! are empty and vacuum has recorded that, and keep the plan while the tables fill. So in any plan each scan of a table
//! must be bound by a condition on the leading column of an index: no walk over a table, no join whose key is only a
//! filter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::api::*;
use crate::postgres::engine::connection;
use crate::postgres::engine::options::PostgresOptions;
use crate::postgres::engine::store::PostgresStore;
use crate::postgres::statements::Sql;
use crate::postgres::statements::transactions::Transactions;
use crate::values::Family;

/// Small tables, which may be read whole, and what keeps them small.
const SMALL: &[(&str, &str)] = &[
    ("store", "one row"),
    ("heartbeat", "one row"),
    ("log_counts", "one row"),
    ("entry_id", "a sequence, one row"),
    ("maintenance", "a row per task that a process is elected for"),
    ("catalogue_history", "the last 1,000 versions"),
    ("catalogue_removed", "what the last 1,000 versions removed"),
    ("queues", "a row per created queue"),
    ("consumers", "a row per queue and worker of the last day"),
    ("projections", "a row per version of a projection that the program declares"),
    ("schedules", "a row per created schedule"),
    ("group_notes", "emptied by every round of upkeep and every claim that finds too little"),
];

/// What a statement may nevertheless walk over (a table, or a named index), and why. The rest of the statement is
/// checked.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "queues.depths",
        "event_queue",
        "a gauge: counts all queues in one walk, with pauses that limit its share of the time",
    ),
    ("log_counts.start_over", "client_counts", "starts counting over, once after a restore"),
    ("groups.arrivals", "event_queue_arrived", "from its start, 1,000 rows at most; it holds nothing but arrivals"),
    ("tags.shift_leases", "event_tags", "moves all leases, once after an outage"),
    ("retain.forget_audit", "event_audit_pkey", "retention: from its start, as many rows as it may remove"),
    ("lanes.close", "lanes_retired", "lanes between two rounds of maintenance, each of which retires 1,000 at most"),
    ("lanes.left", "lanes_retired", "the same"),
    ("lanes.forget", "lanes_gone", "maintenance: an index of only the lanes that are gone but still named by the log"),
    ("attempts.held", "event_queue", "counts live entries for the list of workers, which people read"),
    ("jobs.pool", "dispatch_slots", "up to the first live row; a row per pool and node that uses it"),
    ("dispatch.holders", "dispatch_slots", "every few seconds at most: a row per pool and node that uses it"),
    ("dispatch.release", "dispatch_slots", "the slots of a node that died, once"),
    ("dispatch.shift_slots", "dispatch_slots", "moves the slots of all pools, once after an outage"),
    ("dispatch.forget_slots", "dispatch_slots", "maintenance: a row per pool and node that uses it"),
    ("dispatch.forget_rates", "dispatch_rates", "maintenance: a row per pool with a limit per minute"),
    ("lists.total", "event_queue", "counts live entries, up to a limit, when a list asks for its total"),
    ("lists.tag_total", "event_tags", "counts live entries, up to a limit, when a list asks for its total"),
    ("entries.census", "events", "counts everything, for tests"),
    ("entries.census", "event_queue", "counts everything, for tests"),
    ("entries.census", "event_log", "counts everything, for tests"),
    ("heartbeat.shift_leases", "event_queue", "moves all leases, once after an outage"),
    ("heartbeat.shift_leases_back", "event_queue", "moves all leases, once after the clock went back"),
    ("tags.shift_leases", "event_tags", "moves all leases, once after an outage"),
    ("projections.highest_xid", "event_log", "when a store opens: one row, from the end of each partition's index"),
    ("log_counts.start_over", "tag_counts", "starts counting over, once after a restore"),
    (
        "tags.forget",
        "event_tags",
        "tags of an entry whose fact is missing, which is damage: nothing says which tags it had",
    ),
];

/// Statements that run in a caller's own transaction, and so in sessions with other settings than ours.
/// (`publish.count_entries` runs there too, but stops at the queue's limit, so that a walk may be the best way to count.)
const CALLERS: &[&str] = &[
    "publish.write",
    "deduplication.known",
    "deduplication.take",
    "deduplication.lock_waiting",
    "deduplication.replace",
    "end.finalize",
    "end.keep",
    "tags.follow",
    "tags.put",
    "tags.end",
];

/// How many entries are loaded, unless the environment variable [`ROWS_SETTING`] says otherwise: enough for a walk over
/// a table to be far more expensive than an index, few enough for a test.
const ROWS: u32 = 200_000;
const ROWS_SETTING: &str = "TIDEGATE_PLAN_ROWS";

/// Columns that must be found by an index wherever a statement compares them.
const KEYS: [&str; 6] = ["lane", "tag", "entry_id", "event_id", "group_key", "stretch"];

struct Plans {
    client: Client,
    statements: BTreeMap<String, String>,
    /// The leading column of each index.
    leading: BTreeMap<String, String>,
    small: BTreeSet<String>,
    /// The allowed walks that were seen.
    walked: Mutex<BTreeSet<(&'static str, &'static str)>>,
}

impl Plans {
    async fn new(url: &str, family: Family) -> Self {
        let options = PostgresOptions::default();
        let target = connection::target(url, &options).unwrap();
        let (client, _driver) = target.connect_driven().await.unwrap();
        let (namespace, schema) = (&options.store.namespace, options.schema());
        let statements = statements(&schema, family);
        let leading = client
            .query(
                // For an expression, the column in it.
                "SELECT i.relname, coalesce(a.attname::text, substring(pg_get_indexdef(i.oid, 1, true) FROM '[(]([a-z_]+)'), '')
                 FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                 LEFT JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
                 WHERE i.relnamespace = $1::text::regnamespace",
                &[namespace],
            )
            .await
            .unwrap();
        let leading = leading.iter().map(|row| (row.get::<_, String>(0), row.get(1))).collect();
        let small = SMALL.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { client, statements, leading, small, walked: Mutex::default() }
    }

    /// What is wrong with the plans of these statements, as they would be prepared now.
    async fn faults(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, sql) in self.statements.iter().filter(|(name, _)| wanted(name)) {
            for fault in self.faults_of(name, &self.explain(name, sql).await) {
                faults.push(format!("{name}: {fault}"));
            }
        }
        faults
    }

    /// The plan of a prepared statement.
    async fn explain(&self, name: &str, sql: &str) -> Value {
        let parameters = (1..100).take_while(|number| has_parameter(sql, *number)).count();
        let values = if parameters == 0 { String::new() } else { format!("({})", vec!["NULL"; parameters].join(", ")) };
        let run =
            format!("PREPARE checked AS {sql}; EXPLAIN (FORMAT JSON) EXECUTE checked{values}; DEALLOCATE checked");
        let answer = self.client.simple_query(&run).await.unwrap_or_else(|error| panic!("{name}: {error:?}\n{sql}"));
        let text = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        serde_json::from_str::<Value>(&text.unwrap()).unwrap()[0]["Plan"].clone()
    }

    /// Whether a statement may walk over a table or an index.
    fn is_allowed(&self, name: &str, relation: &str, index: &str) -> bool {
        let (relation, index) = (as_of_entries(relation), as_of_entries(index));
        let of_small = || self.small.iter().any(|small| index.starts_with(&format!("{small}_")));
        // The name of a partition begins with that of its table.
        let is = |what: &str| {
            what == index || relation.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        self.small.contains(&relation)
            || relation.is_empty() && of_small()
            || ALLOWED.iter().find(|(of, what, _)| *of == name && is(what)).is_some_and(|(of, what, _)| {
                self.walked.lock().unwrap().insert((*of, *what));
                true
            })
    }

    fn faults_of(&self, name: &str, node: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let text = |key: &str| node[key].as_str().unwrap_or_default();
        let (kind, relation) = (text("Node Type"), text("Relation Name"));
        let (index, condition) = (text("Index Name"), text("Index Cond"));
        let bound = match kind {
            "Seq Scan" | "Tid Scan" => !text("TID Cond").is_empty(),
            "Index Scan" | "Index Only Scan" | "Bitmap Index Scan" => {
                mentions(condition, self.leading.get(index).map(String::as_str).unwrap_or_default())
            }
            _ => true,
        };
        if !bound && !self.is_allowed(name, relation, index) {
            faults.push(format!("{kind} of {relation} {index} without a condition on its key: {condition}"));
        }
        // An index that covers only part of the condition is not the one that finds a lane or a tag.
        let only_compared = KEYS.into_iter().find(|key| is_compared(text("Filter"), key));
        if let Some(key) = only_compared.filter(|_| !index.is_empty() && !self.is_allowed(name, relation, index)) {
            faults.push(format!("{key} is only compared in {index}: {}", text("Filter")));
        }
        // A row is found by its ctid; in which partition it is can only be a filter.
        if !text("Join Filter").is_empty() && !text("Join Filter").contains(".tableoid = ") {
            faults.push(format!("a join by comparing only: {}", text("Join Filter")));
        }
        for child in node["Plans"].as_array().into_iter().flatten() {
            faults.extend(self.faults_of(name, child));
        }
        faults
    }

    /// Treats tables that are empty now as small.
    async fn leave_out_empty(&mut self) {
        let empty = "SELECT relname::text FROM pg_class WHERE relnamespace = 'tidegate'::regnamespace AND relkind = 'r'
                     AND pg_relation_size(oid) = 0";
        let rows = self.client.query(empty, &[]).await.unwrap();
        self.small.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }
}

/// The statements of a family by name; of jobs, those that differ from the statements of entries.
fn statements(schema: &str, family: Family) -> BTreeMap<String, String> {
    let all = |family: Family| -> BTreeMap<String, String> {
        let sql = Sql::new(schema, family);
        sql.all().into_iter().map(|declared| (declared.name, declared.text.to_owned())).collect()
    };
    let (of_entries, mut wanted) = (all(Family::Entries), all(family));
    wanted.retain(|name, text| family == Family::Entries || of_entries.get(name) != Some(text));
    wanted
}

/// The name that a table or an index of jobs has among those of entries.
fn as_of_entries(name: &str) -> String {
    let names = [
        ("dispatch_queues", "queues"),
        ("dispatch_queue", "event_queue"),
        ("dispatch_log", "event_log"),
        ("dispatch_lanes", "lanes"),
        ("dispatch_notes", "group_notes"),
        ("dispatch_consumers", "consumers"),
    ];
    names.iter().fold(name.to_owned(), |name, (of_jobs, of_entries)| name.replace(of_jobs, of_entries))
}

fn has_parameter(sql: &str, number: usize) -> bool {
    let name = format!("${number}");
    sql.match_indices(&name).any(|(at, _)| !sql[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a filter compares a column of the table itself with something.
fn is_compared(filter: &str, column: &str) -> bool {
    ["=", ">=", "<=", ">", "<"].iter().any(|sign| filter.contains(&format!("({column} {sign} ")))
}

/// Whether a condition names a column.
fn mentions(condition: &str, column: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    !column.is_empty()
        && condition
            .match_indices(column)
            .any(|(at, _)| !condition[..at].ends_with(part) && !condition[at + column.len()..].starts_with(part))
}

/// Fills every large table, most of it in one lane. Statistics stay those of empty tables.
fn load(rows: u32) -> String {
    format!(
        // The catalogue's triggers compare old with new rows: for so many lanes at once they need a hash join, which
        // they never do in production.
        "SET enable_hashjoin = on;
         INSERT INTO tidegate.queues (name) SELECT 'q' || n FROM generate_series(1, 20) AS n;
         INSERT INTO tidegate.lanes (queue_id, priority, event_type)
             SELECT 1 + n % 20, 0, 't' || n FROM generate_series(1, {rows} / 20) AS n;
         INSERT INTO tidegate.dispatch_queues (name) SELECT name FROM tidegate.queues WHERE name <> 'default';
         INSERT INTO tidegate.dispatch_lanes (queue_id, priority, event_type)
             SELECT queue_id, priority, event_type FROM tidegate.lanes;
         SET enable_hashjoin = off;
         INSERT INTO tidegate.events (id, created_at, event_type, payload, tags)
             SELECT n, now(), 't1', '{{}}', CASE WHEN n % 10 = 0 THEN 'a,b' END FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.events (id, created_at, client_id, event_type, payload, source, subject, external_id,
                                      correlation_id, first_number, last_number)
             SELECT 10 * {rows} + n, now(), nullif(n % 7, 0), 't' || n % 50, '{{}}', 's' || n % 20, 'j' || n % 1000, 'x' || n,
                    'c' || n, 10 * {rows} + n, 10 * {rows} + n - 1 FROM generate_series(1, {rows} / 2) AS n;
         INSERT INTO tidegate.fact_terms (term, client_id, event_id)
             SELECT decode(md5((n % 1000)::text), 'hex'), n % 7, 10 * {rows} + n FROM generate_series(1, {rows} / 2) AS n;
         INSERT INTO tidegate.event_queue (id, event_id, lane, queue_id, max_attempts, place, exhausted_as, group_key, due_at,
                                           rank, expires_at)
             SELECT n, n, CASE WHEN n % 100 < 4 THEN 2 + n % 1000 ELSE 1 END, 1, 20, n % 5, 1,
                    CASE WHEN n % 5 > 1 THEN 'g' || n END, now(), n % 3, CASE WHEN n % 7 = 0 THEN now() + interval '1 day' END
             FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.dispatch_queue (id, event_id, lane, queue_id, max_attempts, place, exhausted_as, group_key, due_at,
                                              rank, expires_at)
             SELECT id, event_id, lane, queue_id, max_attempts, place, exhausted_as, group_key, due_at, rank, expires_at
             FROM tidegate.event_queue;
         INSERT INTO tidegate.event_log (id, event_id, finished_at, token, generation, lane, queue_id, attempts, max_attempts,
                                         status, exhausted_as)
             SELECT n, n, now(), 1, 1, 1, 1, 1, 20, n % 4, 1 FROM generate_series({rows} + 1, 2 * {rows}) AS n;
         INSERT INTO tidegate.dispatch_log (id, event_id, finished_at, token, generation, lane, queue_id, attempts, max_attempts,
                                            status, exhausted_as)
             SELECT n, n, now(), 1, 1, 1, 1, 1, 20, n % 4, 1 FROM generate_series({rows} + 1, 2 * {rows}) AS n;
         INSERT INTO tidegate.event_tags (entry_id, rank, queue_id, state, priority, tag)
             SELECT n, n, 1, n % 4, 0, 'a' FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.log_tags (entry_id, status, tag) SELECT n, n % 4, 'a' FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.tag_counts (tag, status, rows) SELECT 'a' || n, 0, 1 FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.log_lanes (lane, status, stretch)
             SELECT 1 + n % 100, n % 4, n / 400 FROM generate_series(1, {rows}) AS n ON CONFLICT DO NOTHING;
         INSERT INTO tidegate.log_workers (client_id, worker, status, stretch)
             SELECT n % 2, 'w' || n % 50, n % 4, n / 400 FROM generate_series(1, {rows}) AS n ON CONFLICT DO NOTHING;
         INSERT INTO tidegate.deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at)
             SELECT 0, n % 2, 0, 'k' || n, n, n, now() FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.event_handler_states SELECT n, 'h', 1, '{{}}', now() FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.event_audit (entry_id, token, created_at, generation, attempt, action)
             SELECT n, 1, now(), 1, 1, 0 FROM generate_series(1, {rows}) AS n;
         SET enable_hashjoin = on;
         INSERT INTO tidegate.resources (id, kind, code, body, version)
             SELECT n, 'k' || n % 3, 'c' || n, '{{}}', 1 + n % 500 FROM generate_series(1, {rows}) AS n;
         SET enable_hashjoin = off;
         INSERT INTO tidegate.dispatch_slots (pool, client_id, node, slots, wanted, since, until)
             SELECT n / 4, n % 7, 'n' || n, 1, 1, now(), now() FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.dispatch_rates (pool, client_id, moment)
             SELECT n, n % 7, now() FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.dispatch_attempts (job, generation, attempt, record)
             SELECT n / 3, 1, 1 + n % 3, '{{}}' FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.dispatch_tasks (job, task) SELECT n, '{{}}' FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.key_uses SELECT n, now() FROM generate_series(1, {rows}) AS n;
         INSERT INTO tidegate.projection_documents SELECT 'p', 1, 'k' || n, '' FROM generate_series(1, {rows}) AS n"
    )
}

/// Turns autovacuum off, so that only the test updates statistics.
const LEAVE_ALONE: &str = "DO $$ DECLARE t regclass; BEGIN
    FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'tidegate'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', t);
    END LOOP; END $$";

const DEFAULTS: &str = "RESET jit; SET enable_seqscan = on; SET enable_bitmapscan = on; SET enable_hashjoin = on; \
    SET enable_mergejoin = on; SET plan_cache_mode = force_generic_plan";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_walks_over_a_table_however_its_plan_was_made() {
    let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
    PostgresStore::open(&url, PostgresOptions::default()).await.unwrap().close().await;
    let (plans, jobs) = (Plans::new(&url, Family::Entries).await, Plans::new(&url, Family::Jobs).await);
    assert!(plans.statements.len() > 100, "only {} statements were found", plans.statements.len());
    assert!((50..plans.statements.len()).contains(&jobs.statements.len()), "{} of jobs", jobs.statements.len());
    plans.run(LEAVE_ALONE).await;
    plans.run("VACUUM ANALYZE").await;
    let mut faults = vec!["while empty:".to_owned()];
    faults.extend(plans.faults(|_| true).await);
    faults.extend(jobs.faults(|_| true).await);
    let rows = std::env::var(ROWS_SETTING).map_or(ROWS, |rows| rows.parse().expect(ROWS_SETTING));
    // One transaction each: readers of the log in other tests on this server would wait for one long writer.
    for statement in load(rows).split(";\n") {
        plans.run(statement).await;
    }
    faults.push("while full, as if empty:".to_owned());
    faults.extend(plans.faults(|_| true).await);
    faults.extend(jobs.faults(|_| true).await);
    // A caller's session plans every time, for the tables as they are: empty ones may be walked over.
    let mut other = Plans::new(&url, Family::Entries).await;
    other.run(DEFAULTS).await;
    other.leave_out_empty().await;
    faults.push("in a caller's session:".to_owned());
    faults.extend(other.faults(|name| CALLERS.contains(&name)).await);
    plans.run("ANALYZE").await;
    faults.push("while full:".to_owned());
    faults.extend(plans.faults(|_| true).await);
    faults.extend(jobs.faults(|_| true).await);
    faults.push("in a caller's session, while full:".to_owned());
    faults.extend(other.faults(|name| CALLERS.contains(&name)).await);
    assert_eq!(faults.len(), 5, "{}", faults.join("\n"));
    let walked = plans.walked.lock().unwrap().clone();
    for (name, what, _) in ALLOWED {
        assert!(walked.contains(&(name, what)), "{name} does not walk over {what} any more: remove it from ALLOWED");
    }
    drop((plans, jobs, other));
    tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_statement_returns_the_columns_of_its_row() {
    let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
    PostgresStore::open(&url, PostgresOptions::default()).await.unwrap().close().await;
    let plans = Plans::new(&url, Family::Entries).await;
    let schema = PostgresOptions::default().schema();
    let transactions = Transactions::new(|text| text.replace("{ns}", &schema));
    let sql = Family::ALL.map(|family| Sql::new(&schema, family));
    for declared in sql.iter().flat_map(Sql::all).chain(transactions.all()) {
        let prepared = plans.client.prepare(declared.text).await.unwrap_or_else(|e| panic!("{}: {e:?}", declared.name));
        let found: Vec<&str> = prepared.columns().iter().map(tokio_postgres::Column::name).collect();
        let same =
            declared.columns.iter().zip(&found).all(|(wanted, found)| wanted.is_none_or(|wanted| wanted == *found));
        // A statement without a row type may still count what it changes.
        let fits = declared.columns.is_empty() || same && declared.columns.len() == found.len();
        assert!(fits, "{} returns {found:?}, its row has {:?}", declared.name, declared.columns);
    }
}
