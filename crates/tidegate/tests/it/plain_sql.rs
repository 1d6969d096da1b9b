//! Plain SQL as other languages' drivers send it, and rows that this program would never write.

use std::error::Error;
use std::time::Duration;

use tidegate::{DeadLetterFilter, ErrorKind, EventQueue, ListQuery, NewEvent, QueuedEvent};
use tokio_postgres::types::{Format, IsNull, ToSql, Type, private::BytesMut};

use crate::databases::Place;
use crate::support::eventually;

fn own_connection(place: &Place) -> rusqlite::Connection {
    let Place::Sqlite(folder) = place else { panic!("not SQLite") };
    let connection = rusqlite::Connection::open(folder.path().join("queue.db")).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    connection
}

async fn own_client(place: &Place) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&place.address(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Claims this many events, with upkeep in between to sort arrivals in.
async fn take(queue: &EventQueue, count: usize) -> Vec<QueuedEvent> {
    let mut taken = Vec::new();
    for _ in 0..10_000 {
        taken.extend(queue.poll_many(count - taken.len()).await.unwrap());
        if taken.len() == count {
            return taken;
        }
        queue.store().maintain().await.unwrap();
    }
    panic!("only {} of {count} were claimed", taken.len());
}

/// A value as drivers bind it that send text and leave the type to the server: node-postgres, JDBC with
/// `stringtype=unspecified`, psycopg.
#[derive(Debug)]
struct Untyped(&'static str);

impl ToSql for Untyped {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_takes_what_drivers_bind() {
    const TEXT: &str = r#"{"path":  "C:\\dir", "said": "\"é\"\n"}"#;
    let place = Place::postgres();
    let queue = place.open().await;
    let own = own_client(&place).await;
    let publish = "SELECT tidegate.publish($1, $2, priority => $3, tags => $4, available_at => $5, wake => $6)";
    let untyped: [&(dyn ToSql + Sync); 6] = [
        &Untyped("t"),
        &Untyped(TEXT),
        &Untyped("-1"),
        &Untyped("a, b"),
        &Untyped("2026-01-01T00:00:00Z"),
        &Untyped("true"),
    ];
    own.query(publish, &untyped).await.unwrap();
    let kinds = [Type::TEXT, Type::VARCHAR, Type::JSON, Type::BYTEA];
    for kind in kinds {
        let statement = own
            .prepare_typed(
                "SELECT tidegate.publish($1, $2, priority => $3)",
                &[Type::VARCHAR, kind.clone(), Type::INT4],
            )
            .await
            .unwrap();
        let payload: &(dyn ToSql + Sync) = if kind == Type::BYTEA { &TEXT.as_bytes() } else { &Untyped(TEXT) };
        own.query(&statement, &[&"t", payload, &5_i32]).await.unwrap();
    }
    own.batch_execute(&format!("SELECT tidegate.publish('t', '{TEXT}', priority => 100)")).await.unwrap();
    let taken = take(&queue, 6).await;
    assert!(taken.iter().all(|event| event.payload() == TEXT.as_bytes()), "stored as sent");
    own.batch_execute(r#"SELECT tidegate.publish('t', '{"b":  1}'::jsonb)"#).await.unwrap();
    assert_eq!(take(&queue, 1).await[0].payload().as_ref(), br#"{"b": 1}"#, "jsonb has its own form");
    for event in taken {
        event.complete().await.unwrap();
    }
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_callers_of_the_first_function_go_on_after_the_migration() {
    let place = Place::postgres();
    let own = own_client(&place).await;
    own.batch_execute(include_str!("../../../store/tests/fixtures/schema-5.sql")).await.unwrap();
    own.batch_execute("RESET ALL; CREATE VIEW uses AS SELECT tidegate.publish('of.view', '1'::bytea) AS id")
        .await
        .unwrap();
    let prepared = own.prepare("SELECT tidegate.publish($1, $2, message_group => $3)").await.unwrap();
    let params: [&(dyn ToSql + Sync); 3] = [&"of.caller", &b"{}".as_slice(), &"g"];
    own.query_one(&prepared, &params).await.unwrap();

    let queue = place.open().await;
    own.query_one(&prepared, &params).await.unwrap();
    let positional = r"SELECT tidegate.publish('of.caller', '\x7b7d'::bytea, 'default', 0::smallint)";
    own.batch_execute(positional).await.unwrap();
    own.batch_execute("SELECT * FROM uses").await.unwrap();
    own.batch_execute("SELECT tidegate.publish('of.caller', '{}', tags => 'new')").await.unwrap();
    let count = "SELECT count(*) FROM tidegate.entries WHERE event_type = $1";
    for (event_type, expected) in [("of.caller", 4_i64), ("of.view", 1)] {
        assert_eq!(own.query_one(count, &[&event_type]).await.unwrap().get::<_, i64>(0), expected, "{event_type}");
    }
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_open_transactions_wait_only_for_their_own_key() {
    let place = Place::postgres();
    let queue = place.open().await;
    let (mut first, mut second) = (own_client(&place).await, own_client(&place).await);
    let watcher = own_client(&place).await;
    for round in 0..2 {
        // In the first round the key is new, in the second an entry waits under it.
        let one = first.transaction().await.unwrap();
        one.batch_execute(
            "SELECT tidegate.publish('new', '1', message_group => 'g', tags => 'a'), \
             tidegate.publish('t', '1', deduplication_id => 'k', replace_waiting => true, tags => 'a')",
        )
        .await
        .unwrap();
        let two = second.transaction().await.unwrap();
        two.batch_execute(
            "SET LOCAL lock_timeout = '5s'; SELECT tidegate.publish('new', '2', message_group => 'g', tags => 'a'), \
             tidegate.publish('t', '2', deduplication_id => 'other', replace_waiting => true); \
             SET LOCAL lock_timeout = 0",
        )
        .await
        .unwrap();
        let same = "SELECT tidegate.publish('t', '3', deduplication_id => 'k', replace_waiting => true, tags => 'b')";
        let (answer, ()) = tokio::join!(two.batch_execute(same), async {
            eventually("the second waits for the first", async || {
                let waiting = "SELECT count(*) FROM pg_stat_activity \
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
                watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
            })
            .await;
            one.commit().await.unwrap();
        });
        answer.unwrap();
        two.commit().await.unwrap();
        let keyed = watcher.query_one("SELECT count(*) FROM tidegate.event_queue", &[]).await.unwrap();
        assert_eq!(keyed.get::<_, i64>(0), 2 * (round + 1) + 2, "one entry waits under each key");
    }
    let last = "SELECT convert_from(e.payload, 'UTF8'), e.tags FROM tidegate.deduplication d \
        JOIN tidegate.event_queue q ON q.id = d.entry_id JOIN tidegate.events e ON e.id = q.event_id AND e.id = d.event_id \
        WHERE d.key = 'k'";
    let row = watcher.query_one(last, &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("3", "b"));
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_refuses_columns_of_another_type() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let own = own_connection(&place);
    let columns = [
        "event_type",
        "queue",
        "message_group",
        "deduplication_id",
        "source",
        "subject",
        "content_type",
        "correlation_id",
        "causation_id",
        "external_id",
        "attributes",
        "tags",
        "title",
        "description",
        "retry",
        "event_time",
        "available_at",
        "delay_ms",
        "priority",
        "max_attempts",
        "max_retries",
        "replace_waiting",
    ];
    let publish = |column: &str, value: &str| {
        let (names, values) =
            if column == "event_type" { ("", String::new()) } else { ("event_type, ", "'t', ".into()) };
        own.execute_batch(&format!(
            "INSERT INTO tidegate_publish ({names}payload, {column}) VALUES ({values}'{{}}', {value})"
        ))
    };
    for column in columns {
        for value in ["x'7b7d'", "1.5"] {
            let said = publish(column, value).expect_err(column).to_string();
            assert!(said.contains("tidegate"), "{column} {value}: {said}");
        }
    }
    // Invalid UTF-8 in the columns that entries are found by.
    for column in &columns[..10] {
        for bytes in ["fffe", "61c3", "c080", "eda080", "80"] {
            let said = publish(column, &format!("CAST(x'{bytes}' AS TEXT)")).expect_err(column).to_string();
            assert!(said.contains("tidegate"), "{column} {bytes}: {said}");
        }
    }
    assert!(publish("tags", "CAST(x'612cff' AS TEXT)").is_err());
    for payload in ["7", "1.5", "NULL"] {
        let insert = format!("INSERT INTO tidegate_publish (event_type, payload) VALUES ('t', {payload})");
        assert!(own.execute_batch(&insert).is_err(), "{payload}");
    }
    publish("source", "'größe € 😀'").unwrap();
    assert_eq!(take(&queue, 1).await[0].fact.source.as_deref(), Some("größe € 😀"));
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_sets_unreadable_entries_aside_and_goes_on() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let other = queue.named("other").await.unwrap();
    let own = own_connection(&place);
    queue.publish(NewEvent::new("known", "{}")).await.unwrap();
    take(&queue, 1).await.remove(0).complete().await.unwrap();
    // Entries and facts that are made unreadable: some are arrivals, some are in their lane already.
    let spoil = [
        ("known", "events", "source = x'00ff'"),
        ("known", "events", "subject = CAST(x'fffe' AS TEXT)"),
        ("known", "events", "payload = 'text'"),
        ("known", "events", "tags = x'00'"),
        ("new", "events", "event_type = CAST(x'fffe' AS TEXT)"),
        ("new", "events", "event_type = x'74'"),
        ("new", "event_queue", "group_key = x'01'"),
        ("new", "event_queue", "group_key = CAST(x'ff' AS TEXT)"),
    ];
    own.execute_batch("BEGIN IMMEDIATE").unwrap();
    for (event_type, table, change) in spoil {
        own.execute("INSERT INTO tidegate_publish (event_type, payload) VALUES (?1, '{}')", [event_type]).unwrap();
        let of = if table == "events" { "SELECT event_id" } else { "SELECT id" };
        let last = format!("{of} FROM tidegate_event_queue ORDER BY id DESC LIMIT 1");
        own.execute_batch(&format!("UPDATE tidegate_{table} SET {change} WHERE id = ({last})")).unwrap();
    }
    // A title is only displayed, so it may be any text.
    own.execute_batch(
        "INSERT INTO tidegate_publish (event_type, payload, title) VALUES ('prose', '{}', CAST(x'41ff' AS TEXT)); COMMIT",
    )
    .unwrap();
    queue.publish(NewEvent::new("known", "{}")).await.unwrap();
    other.publish(NewEvent::new("known", "{}")).await.unwrap();

    assert_eq!(take(&other, 1).await[0].event_type(), "known", "other queues go on");
    let mut came = Vec::new();
    for event in take(&queue, 2).await {
        came.push(event.event_type().to_owned());
        event.complete().await.unwrap();
    }
    came.sort();
    assert_eq!(came, ["known", "prose"]);
    queue.store().maintain().await.unwrap();
    let dead = queue.dead_letters(None, 100).await.unwrap();
    assert_eq!(dead.len(), spoil.len());
    for letter in &dead {
        assert!(letter.error.as_deref().is_some_and(|error| error.contains("cannot be read")), "{letter:?}");
        queue.why(letter.id).await.unwrap();
    }
    let listed = queue.list(ListQuery { limit: 100, ..ListQuery::default() }).await.unwrap();
    assert_eq!(listed.items.len(), spoil.len() + 4);
    // A redriven one ends as a dead letter again; one whose group cannot be read has no turn in it, so it is not
    // redriven.
    queue.redrive(dead[0].id).await.unwrap();
    assert!(queue.poll().await.unwrap().is_none());
    assert_eq!(queue.redrive(dead[7].id).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(queue.discard_all(DeadLetterFilter::new()).await.unwrap(), spoil.len() as u64);
    queue.close().await;
}
