//! Tags of entries, live and ended.
//!
//! For every statement here that changes tag rows by `ctid`: the transaction has locked the entry in an earlier
//! statement, so no other one moves its tag rows. A tag row is found as the first at or after its key: only the primary
//! key has that order.

use crate::postgres::statements::claim::{Audit, ClaimRow, lease_taken};
use crate::sql::{Only, statements};

/// The present moment in microseconds, as tag rows are ranked.
const NOW_US: &str = "(extract(epoch FROM {now}) * 1000000)::bigint";
/// The event type of the entry that tag row `t` belongs to (event_queue's and events' primary keys).
const TYPE_OF: &str = "
    (SELECT e.event_type FROM {ns}.events e WHERE e.id = (SELECT q.event_id FROM {live} q WHERE q.id = t.entry_id))";
/// The state of a live entry's tag rows: 0 fresh, 1 timed, 2 parked, arrived or aside, 3 leased.
const STATE: &str = "CASE WHEN q.lease_until IS NOT NULL THEN 3 ELSE least(q.place, 2) END";
/// The order of tag rows within a state: by the end of the lease or the due moment, in microseconds, or by number.
const RANK: &str = "
    CASE WHEN q.lease_until IS NOT NULL THEN (extract(epoch FROM q.lease_until) * 1000000)::bigint
         WHEN q.place = 1 THEN (extract(epoch FROM q.due_at) * 1000000)::bigint ELSE q.id END";

/// Fills in what statements about tags have in common.
fn fill(text: &str) -> String {
    text.replace("{state}", STATE).replace("{rank}", RANK).replace("{type_of}", TYPE_OF).replace("{now_us}", NOW_US)
}

/// Offers the first entries of each tag, priority and state (event_tags_rank); fresh ones from the tag's low-water mark
/// on. Takes the first of these by priority and id, skipping rows that other claims have locked.
const TAKE: &str = "
WITH offered AS MATERIALIZED (
    SELECT o.entry_id AS id, p.priority
    FROM unnest($2::text[], $3::smallint[], $10::bigint[]) AS p(tag, priority, mark)
    CROSS JOIN LATERAL (
        (SELECT t.entry_id FROM {ns}.event_tags t
         WHERE t.queue_id = $4 AND t.tag = p.tag AND t.state = 0 AND t.priority = p.priority AND t.rank >= p.mark
           AND ($5::text[] IS NULL OR {type_of} = ANY ($5::text[]))
         ORDER BY t.rank, t.entry_id LIMIT $6)
        UNION ALL
        (SELECT t.entry_id FROM {ns}.event_tags t
         WHERE t.queue_id = $4 AND t.tag = p.tag AND t.state = 1 AND t.priority = p.priority AND t.rank <= {now_us}
           AND ($5::text[] IS NULL OR {type_of} = ANY ($5::text[]))
         ORDER BY t.rank, t.entry_id LIMIT $6)
        UNION ALL
        (SELECT t.entry_id FROM {ns}.event_tags t
         WHERE t.queue_id = $4 AND t.tag = p.tag AND t.state = 3 AND t.priority = p.priority AND t.rank <= {now_us}
           AND ($5::text[] IS NULL OR {type_of} = ANY ($5::text[]))
         ORDER BY t.rank, t.entry_id LIMIT $6)
    ) AS o
    GROUP BY o.entry_id, p.priority
    ORDER BY p.priority, o.entry_id LIMIT $6
), taken AS MATERIALIZED (
    SELECT q.ctid
    FROM offered o CROSS JOIN LATERAL (
        SELECT q.ctid FROM {live} q
        WHERE q.id = o.id AND q.place < 2 AND (q.place = 0 OR q.due_at <= {now})
          AND (q.lease_until IS NULL OR q.lease_until <= {now})
        FOR UPDATE SKIP LOCKED
    ) AS q
    LIMIT $7
)";

statements! {
    /// Statements about tags.
    pub(in crate::postgres) struct Tags {
        /// Claims by tag: [`TAKE`], then leases what was taken.
        claim: ClaimRow = &lease_taken(&fill(TAKE), Audit::Off);
        /// The same, flagged as audited.
        claim_audited: ClaimRow = &lease_taken(&fill(TAKE), Audit::On);
        /// Which of these tags have something to claim: reads the first row of each priority and state
        /// (event_tags_rank).
        claimable: Only<String> = &fill("
            WITH priorities AS MATERIALIZED (
                SELECT DISTINCT l.priority FROM {lanes} l JOIN {queues} n ON n.id = l.queue_id
                WHERE l.queue_id = $2 AND n.state <> $4
            )
            SELECT w.tag FROM unnest($3::text[]) AS w(tag)
            WHERE EXISTS (
                SELECT FROM priorities p CROSS JOIN LATERAL (
                    (SELECT FROM {ns}.event_tags t
                     WHERE t.queue_id = $2 AND t.tag = w.tag AND t.state = 0 AND t.priority = p.priority LIMIT 1)
                    UNION ALL
                    (SELECT FROM {ns}.event_tags t
                     WHERE t.queue_id = $2 AND t.tag = w.tag AND t.state = 1 AND t.priority = p.priority
                       AND t.rank <= {now_us} LIMIT 1)
                    UNION ALL
                    (SELECT FROM {ns}.event_tags t
                     WHERE t.queue_id = $2 AND t.tag = w.tag AND t.state = 3 AND t.priority = p.priority
                       AND t.rank <= {now_us} LIMIT 1)
                ) AS found)");
        /// Moves the tag rows of claimed entries to the leased state, ordered by the end of the lease (event_tags'
        /// primary key).
        lease = "
            WITH found AS MATERIALIZED (
                SELECT f.place, i.rank FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS i(tag, id, rank)
                CROSS JOIN LATERAL (
                    SELECT n.place FROM (
                        SELECT t.ctid AS place, t.tag, t.entry_id FROM {ns}.event_tags t
                        WHERE (t.tag, t.entry_id) >= (i.tag, i.id) ORDER BY t.tag, t.entry_id LIMIT 1
                    ) AS n WHERE n.tag = i.tag AND n.entry_id = i.id
                ) AS f
            )
            UPDATE {ns}.event_tags t SET state = 3, rank = f.rank FROM found f WHERE t.ctid = f.place";
        /// Sets the tag rows of live entries to the entries' present state and rank (primary keys).
        follow = &fill("
            WITH found AS MATERIALIZED (
                SELECT f.place, {state} AS state, {rank} AS rank
                FROM unnest($1::bigint[]) AS i(id)
                CROSS JOIN LATERAL (SELECT * FROM {live} q WHERE q.id = i.id OFFSET 0) AS q
                CROSS JOIN LATERAL unnest(string_to_array(
                    (SELECT e.tags FROM {ns}.events e WHERE e.id = q.event_id), ',')) AS x(tag)
                CROSS JOIN LATERAL (
                    SELECT n.place FROM (
                        SELECT t.ctid AS place, t.tag, t.entry_id FROM {ns}.event_tags t
                        WHERE (t.tag, t.entry_id) >= (x.tag, q.id) ORDER BY t.tag, t.entry_id LIMIT 1
                    ) AS n WHERE n.tag = x.tag AND n.entry_id = q.id
                ) AS f
            )
            UPDATE {ns}.event_tags t SET state = f.state, rank = f.rank FROM found f WHERE t.ctid = f.place");
        /// Moves the tag rows of ended entries to log_tags (primary keys).
        end = "
            WITH ended AS MATERIALIZED (
                SELECT i.id, i.status, x.tag,
                       (SELECT n.client_id FROM {queues} n WHERE n.id = i.queue_id) AS client_id
                FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::integer[])
                    AS i(id, event_id, status, queue_id)
                CROSS JOIN LATERAL unnest(string_to_array(
                    (SELECT e.tags FROM {ns}.events e WHERE e.id = i.event_id), ',')) AS x(tag)
            ), found AS MATERIALIZED (
                SELECT f.place FROM ended x CROSS JOIN LATERAL (
                    SELECT n.place FROM (
                        SELECT t.ctid AS place, t.tag, t.entry_id FROM {ns}.event_tags t
                        WHERE (t.tag, t.entry_id) >= (x.tag, x.id) ORDER BY t.tag, t.entry_id LIMIT 1
                    ) AS n WHERE n.tag = x.tag AND n.entry_id = x.id
                ) AS f
            ), gone AS (
                DELETE FROM {ns}.event_tags t USING found f WHERE t.ctid = f.place
            )
            INSERT INTO {ns}.log_tags (entry_id, status, tag, client_id) SELECT id, status, tag, client_id FROM ended
            ON CONFLICT (tag, status, entry_id) DO NOTHING";
        /// Writes the tag rows of entries that are live again or got another fact, and removes those in log_tags
        /// (primary keys).
        put = &fill("
            WITH back AS MATERIALIZED (
                SELECT q.id, q.queue_id, q.client_id, {state} AS state, {rank} AS rank,
                       coalesce(l.priority, -q.lane - 1000) AS priority, x.tag
                FROM unnest($1::bigint[]) AS i(id)
                CROSS JOIN LATERAL (SELECT * FROM {live} q WHERE q.id = i.id OFFSET 0) AS q
                LEFT JOIN LATERAL (SELECT * FROM {lanes} l WHERE l.id = q.lane OFFSET 0) AS l ON true
                CROSS JOIN LATERAL unnest(string_to_array(
                    (SELECT e.tags FROM {ns}.events e WHERE e.id = q.event_id), ',')) AS x(tag)
            ), found AS MATERIALIZED (
                SELECT f.place FROM back b CROSS JOIN LATERAL (
                    SELECT t.ctid AS place FROM {ns}.log_tags t
                    WHERE t.tag = b.tag AND t.status IN (1, 2) AND t.entry_id = b.id OFFSET 0
                ) AS f
            ), gone AS (
                DELETE FROM {ns}.log_tags t USING found f WHERE t.ctid = f.place
            )
            INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag, client_id)
            SELECT id, rank, queue_id, state, priority, tag, client_id FROM back
            ON CONFLICT (tag, entry_id) DO NOTHING");
        /// Moves the tag rows of leased entries by an outage, like the leases themselves (walks all live tags).
        shift_leases = "
            UPDATE {ns}.event_tags
            SET rank = rank + (extract(epoch FROM $1::timestamptz - $2::timestamptz) * 1000000)::bigint
            WHERE state = 3 AND rank > (extract(epoch FROM $2::timestamptz) * 1000000)::bigint";
        /// Removes the tag rows of entries whose facts, and with them their tags, are missing (walks all live tags: it
        /// is rare).
        forget = "DELETE FROM {ns}.event_tags t WHERE t.entry_id = ANY ($1::bigint[])";
    }
}
