//! What pull workers do: attempts, their reports, workers.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::statements;

row! {
    /// A live entry that was locked: `q` in a statement, its fact as `e`.
    pub(in crate::postgres) struct LiveRow {
        id: i64 = "q.id",
        token: i64 = "q.token",
        leased: bool = "q.leased",
        worker: Option<String> = "q.worker",
        attempts: i32 = "q.attempts",
        max_attempts: i32 = "q.max_attempts",
        generation: i32 = "q.generation",
        queue_id: i32 = "q.queue_id",
        retry: Option<String> = "e.retry",
        event_id: i64 = "q.event_id",
        processing_started_at: Option<Moment> = "q.processing_started_at",
        attributes: Option<String> = "e.attributes",
    }
}

row! {
    /// An entry that was taken from its holder.
    pub(in crate::postgres) struct ResetRow {
        id: i64 = "q.id",
        queue_id: i32 = "q.queue_id",
        flags: Option<i16> = "q.flags",
    }
}

row! {
    /// The queue of an entry, if there is such an entry.
    pub(in crate::postgres) struct QueueOfRow {
        id: i64,
        queue_id: Option<i32>,
    }
}

row! {
    /// A consumer of a queue `n`.
    pub(in crate::postgres) struct ConsumerRow {
        worker: String = "c.worker",
        name: String = "n.name",
        seen_at: Moment = "c.seen_at",
        client_id: Option<i64> = "n.client_id",
    }
}

row! {
    /// A held entry `q` in a queue `n`.
    pub(in crate::postgres) struct HeldRow {
        worker: Option<String> = "q.worker",
        name: String = "n.name",
        seen_at: Moment = "coalesce(q.updated_at, q.processing_started_at, q.lease_until)",
        id: i64 = "q.id",
        client_id: Option<i64> = "n.client_id",
    }
}

statements! {
    /// Statements about attempts.
    pub(in crate::postgres) struct Attempts {
        /// Locks live entries in the order of their ids (event_queue's primary key, then events').
        lock_live: LiveRow = "
            SELECT {columns}
            FROM unnest($1::bigint[]) AS i(id)
            CROSS JOIN LATERAL (
                SELECT q.*, q.lease_until IS NOT NULL AS leased FROM {live} q WHERE q.id = i.id FOR UPDATE
            ) AS q
            CROSS JOIN LATERAL (SELECT e.retry, e.attributes FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e";
        /// Records that the holders of these entries were heard of (event_queue's primary key; the column is in no
        /// index).
        touch = "UPDATE {live} SET updated_at = {now} WHERE id = ANY ($2::bigint[])";
        /// Takes entries from their holders and makes them due now; the attempt does not count (event_queue's primary
        /// key).
        reset: ResetRow = "
            UPDATE {live} q
            SET lease_until = NULL, worker = NULL, token = q.token + 1, attempts = q.attempts - 1, place = 1,
                due_at = {now}, updated_at = {now}
            WHERE q.id = ANY ($2::bigint[]) AND q.lease_until IS NOT NULL
            RETURNING {columns}";
        /// The queues of entries, live or ended (both primary keys).
        queues_of: QueueOfRow = "
            SELECT i.id, coalesce(
                (SELECT q.queue_id FROM {live} q WHERE q.id = i.id),
                (SELECT g.queue_id FROM {log} g WHERE g.id = i.id ORDER BY g.generation DESC LIMIT 1)) AS queue_id
            FROM unnest($1::bigint[]) AS i(id)";
        /// Consumers, of one client or all (consumers and queues are small).
        consumers: ConsumerRow = "
            SELECT {columns} FROM {consumers} c JOIN {queues} n ON n.id = c.queue_id
            WHERE $1::bigint IS NULL OR n.client_id = $1::bigint";
        /// What workers hold (walks the live table: the list of workers is for people and rarely asked for).
        held: HeldRow = "
            SELECT {columns}
            FROM {live} q
            CROSS JOIN LATERAL (SELECT n.name, n.client_id FROM {queues} n WHERE n.id = q.queue_id OFFSET 0) AS n
            WHERE q.lease_until IS NOT NULL";
        /// What workers hold of one client (event_queue_client, the queues' primary key).
        held_of_client: HeldRow = "
            SELECT {columns}
            FROM {live} q CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = q.queue_id OFFSET 0) AS n
            WHERE q.client_id = $1::bigint AND q.lease_until IS NOT NULL";
    }
}
