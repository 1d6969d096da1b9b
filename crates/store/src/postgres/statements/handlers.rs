//! What handlers answered: the table `event_handler_states`.

use crate::postgres::engine::row::row;
use crate::sql::statements;

row! {
    /// A lease that is still held.
    pub(in crate::postgres) struct HeldRow {
        id: i64,
        token: i64,
    }
}

row! {
    /// What a handler answered about an entry; without a handler, the results of the entry's previous generation.
    pub(in crate::postgres) struct HandledRow {
        entry_id: i64,
        handler: Option<String>,
        result: Option<String>,
    }
}

row! {
    /// How many answers were removed from a part of the table, and where that part ends.
    pub(in crate::postgres) struct ForgottenRow {
        gone: i64 = "(SELECT count(*) FROM gone)",
        entry_id: i64 = "l.entry_id",
        handler: String = "l.handler",
    }
}

statements! {
    /// Statements about handlers.
    pub(in crate::postgres) struct Handlers {
        /// Records handlers' answers for leases that are still held (event_queue's and event_handler_states' primary
        /// keys). The lock keeps others from taking the entry over before this commits.
        record: HeldRow = "
            WITH held AS MATERIALIZED (
                SELECT q.id, q.token, q.generation, i.handler, i.result
                FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS i(id, token, handler, result)
                CROSS JOIN LATERAL (
                    SELECT q.id, q.token, q.generation FROM {live} q
                    WHERE q.id = i.id AND q.token = i.token AND q.lease_until IS NOT NULL FOR SHARE
                ) AS q
            ), recorded AS (
                INSERT INTO {ns}.event_handler_states (entry_id, handler, generation, result, recorded_at)
                SELECT id, handler, generation, result, {now} FROM held
                ON CONFLICT (entry_id, handler) DO UPDATE
                    SET generation = excluded.generation, result = excluded.result, recorded_at = excluded.recorded_at
            )
            SELECT {columns} FROM held";
        /// What handlers answered (primary keys). A null handler stands for the results of the previous generation,
        /// which count if the entry still has the same fact.
        handled: HandledRow = "
            SELECT s.entry_id, s.handler, s.result FROM {ns}.event_handler_states s
            WHERE s.entry_id = ANY ($1::bigint[])
            UNION ALL
            SELECT g.id, NULL, g.results
            FROM unnest($1::bigint[]) AS i(id)
            CROSS JOIN LATERAL (
                SELECT g.id, g.event_id, g.results FROM {log} g
                WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) ORDER BY g.generation DESC LIMIT 1
            ) AS g
            WHERE g.results IS NOT NULL AND g.event_id = (SELECT q.event_id FROM {live} q WHERE q.id = i.id)";
        /// Deletes answers about entries of both families that have ended, within one part of the table, and returns where that part
        /// ends (primary keys).
        forget: ForgottenRow = "
            WITH looked AS MATERIALIZED (
                SELECT s.ctid AS place, s.entry_id, s.handler FROM {ns}.event_handler_states s
                WHERE (s.entry_id, s.handler) > ($2::bigint, $3::text) ORDER BY s.entry_id, s.handler LIMIT $4::bigint
            ), gone AS (
                DELETE FROM {ns}.event_handler_states s WHERE s.ctid = ANY (ARRAY(
                    SELECT l.place FROM looked l
                    WHERE NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.id = l.entry_id OFFSET 0)
                      AND NOT EXISTS (SELECT FROM {ns}.dispatch_queue q WHERE q.id = l.entry_id OFFSET 0)
                    LIMIT $1::bigint
                )) RETURNING s.entry_id
            )
            SELECT {columns} FROM looked l ORDER BY l.entry_id DESC, l.handler DESC LIMIT 1";
    }
}
