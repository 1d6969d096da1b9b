//! Plain SQL on PostgreSQL that writes the same rows as an ingest of events with one subscription: the fact with what it is
//! found by, its key, its term, the entry, and its two tags. One statement per batch, with an array for each column.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, Statement};

use super::postgres::expect_rows;
use super::{hash, hex};
use crate::Result;
use crate::pg::Database;
use crate::runner::{at_once, rate};
use crate::scale::{INGEST_CONNECTIONS, PAYLOAD, REQUEST, payload};

const TABLES: &str = r#"
    CREATE TABLE events (
        id bigint PRIMARY KEY, created_at timestamptz NOT NULL, client_id bigint, event_type text NOT NULL,
        payload bytea NOT NULL, source text, subject text, correlation_id text, attributes text, title text, tags text,
        first_number bigint, last_number bigint, targets integer, terms bytea
    );
    CREATE INDEX ON events (first_number) WHERE first_number IS NOT NULL;
    CREATE INDEX ON events ((coalesce(client_id, 0)), id) WHERE first_number IS NOT NULL;
    CREATE INDEX ON events ((coalesce(client_id, 0)), event_type COLLATE "C", id) WHERE first_number IS NOT NULL;
    CREATE INDEX ON events (source COLLATE "C", (coalesce(client_id, 0)), id) WHERE source IS NOT NULL;
    CREATE INDEX ON events (subject COLLATE "C", (coalesce(client_id, 0)), id) WHERE subject IS NOT NULL;
    CREATE INDEX ON events (correlation_id COLLATE "C", (coalesce(client_id, 0)), id) WHERE correlation_id IS NOT NULL;
    CREATE TABLE event_keys (
        client_id bigint NOT NULL, kind smallint NOT NULL, key text COLLATE "C" NOT NULL, event_id bigint NOT NULL,
        expires_at timestamptz NOT NULL, fingerprint bigint, PRIMARY KEY (client_id, kind, key)
    );
    CREATE INDEX ON event_keys (expires_at);
    CREATE TABLE event_terms (
        client_id bigint NOT NULL, event_id bigint NOT NULL, term bytea NOT NULL, PRIMARY KEY (term, client_id, event_id)
    );
    CREATE TABLE jobs (
        id bigint PRIMARY KEY, event_id bigint NOT NULL, lease_until timestamptz, lane integer NOT NULL,
        queue_id integer NOT NULL, status smallint NOT NULL DEFAULT 0, attempts integer NOT NULL DEFAULT 0,
        max_attempts integer NOT NULL, expires_at timestamptz, worker text
    ) WITH (fillfactor = 36);
    CREATE INDEX ON jobs (lane, id) WHERE status = 0;
    CREATE INDEX ON jobs (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE job_tags (
        job_id bigint NOT NULL, rank bigint NOT NULL, queue_id integer NOT NULL, status smallint NOT NULL,
        tag text COLLATE "C" NOT NULL, PRIMARY KEY (tag, job_id)
    );
    CREATE INDEX ON job_tags (queue_id, tag, status, rank, job_id);"#;

const INSERT: &str = "
    WITH input AS MATERIALIZED (
        SELECT i.* FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[],
            $8::text[]) AS i(id, subject, correlation_id, attributes, payload, tags, term, key)
    ), facts AS (
        INSERT INTO events (id, created_at, event_type, source, subject, correlation_id, attributes, payload, title, tags,
            first_number, last_number, targets, terms)
        SELECT id, now(), 'shop:orders:order:created', '/shop', subject, correlation_id, attributes, payload, subject,
               tags, id, id, 1, term FROM input
    ), keys AS (
        INSERT INTO event_keys (client_id, kind, key, event_id, expires_at, fingerprint)
        SELECT 0, 4, key, id, now() + interval '1 day', id FROM input ORDER BY key ON CONFLICT DO NOTHING
    ), terms AS (
        INSERT INTO event_terms (client_id, event_id, term) SELECT 0, id, term FROM input ORDER BY term, id
    ), entries AS (
        INSERT INTO jobs (id, event_id, lane, queue_id, max_attempts, expires_at)
        SELECT id, id, 1, 2, 20, now() + interval '1 day' FROM input
    )
    INSERT INTO job_tags (job_id, rank, queue_id, status, tag)
    SELECT i.id, i.id, 2, 0, t.tag FROM input i CROSS JOIN LATERAL unnest(string_to_array(i.tags, ',')) AS t(tag)";

/// Writes batches for this long, on as many connections as Tidegate writes batches at once; returns events per second.
///
/// # Errors
/// When a statement fails, or rows are missing at the end.
pub(crate) async fn batches(database: &Database, time: Duration) -> Result<f64> {
    let admin = database.connect().await?;
    admin.batch_execute(TABLES).await?;
    let mut producers = Vec::new();
    for _ in 0..INGEST_CONNECTIONS {
        let client = database.connect().await?;
        let insert = client.prepare(INSERT).await?;
        producers.push((client, insert));
    }
    let (batch, next) = (i64::try_from(REQUEST)?, Arc::new(AtomicI64::new(1)));
    let start = Instant::now();
    at_once(producers.into_iter().map(|(client, insert)| {
        let (next, body) = (Arc::clone(&next), payload(PAYLOAD).into_bytes());
        async move {
            while start.elapsed() < time {
                write(&client, &insert, next.fetch_add(batch, Ordering::Relaxed), &body).await?;
            }
            Ok(())
        }
    }))
    .await?;
    let took = start.elapsed();
    let done = usize::try_from(next.load(Ordering::Relaxed) - 1)?;
    for (table, rows) in [("events", 1), ("event_keys", 1), ("event_terms", 1), ("jobs", 1), ("job_tags", 2)] {
        expect_rows(&admin, table, rows * done).await?;
    }
    Ok(rate(done, took))
}

/// Writes a batch whose first event has this number.
async fn write(client: &Client, insert: &Statement, first: i64, body: &[u8]) -> Result<()> {
    let numbers: Vec<i64> = (first..).take(REQUEST).collect();
    let each = |text: fn(i64) -> String| numbers.iter().map(|number| text(*number)).collect::<Vec<String>>();
    let subjects = each(|number| format!("order:{number}"));
    let requests = each(|number| format!("request-{}", number / 10));
    let attributes = each(|number| {
        let customer = number % 10_000;
        format!(r#"{{"deduplicationid":"order-{number}","contextdata":[["customer","customer-{customer}"]]}}"#)
    });
    let tags = each(|number| format!("shop:orders:order:created,customer:customer-{}", number % 10_000));
    let terms: Vec<[u8; 16]> = numbers.iter().map(|number| hash(number % 10_000)).collect();
    let terms: Vec<&[u8]> = terms.iter().map(<[u8; 16]>::as_slice).collect();
    let (keys, payloads) = (each(hex), vec![body; numbers.len()]);
    client.execute(insert, &[&numbers, &subjects, &requests, &attributes, &payloads, &tags, &terms, &keys]).await?;
    Ok(())
}
