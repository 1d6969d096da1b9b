//! Lists of entries and their totals. A statement that finds candidates returns numbers of entries below `?1`, youngest
//! first, at most `?2`; `?3` is the live part (`LivePart`) or the end.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Moment, Shown, row};
use crate::sqlite::statements::added::made_at;

row! {
    /// An ended entry, as far as lists by stretches need it.
    pub(in crate::sqlite) struct EndedRow {
        id: i64,
        status: i16,
        lane: i64,
        worker: Option<String>,
        client_id: Option<i64>,
    }
}

row! {
    /// A lane, and whether it holds other types than the wanted one.
    pub(in crate::sqlite) struct LaneRow {
        id: i64,
        mixed: bool,
    }
}

row! {
    /// An entry as lists show it. `state` is the end of the lease of a live entry, and the code of the end of an ended
    /// one.
    pub(in crate::sqlite) struct SummaryRow {
        event_id: i64,
        name: String,
        attempts: u32,
        max_attempts: u32,
        priority: i16,
        group_key: Option<Shown>,
        worker: Option<String>,
        updated_at: Moment,
        state: Option<i64>,
        due_at: Option<Moment>,
        event_type: Option<Shown>,
        title: Option<Shown>,
        tags: Option<Shown>,
        client_id: Option<i64>,
        created_at: Moment,
    }
}

row! {
    /// The number of live entries, and of those that are held.
    pub(in crate::sqlite) struct LiveCountRow {
        live: i64 = "count(*)",
        held: i64 = "coalesce(sum(lease_until IS NOT NULL), 0)",
    }
}

/// What a list shows of a fact, which may be missing. The moment of an entry that was added to its fact is its own (see
/// `added.rs`).
macro_rules! fact {
    ($entry:literal) => {
        concat!(
            "coalesce(e.event_type, l.event_type, '') AS event_type, e.title, e.tags, n.client_id,
             coalesce(CASE WHEN ",
            $entry,
            ".flags & 32 THEN
                 (SELECT d.fingerprint FROM {ns}_deduplication d
                  WHERE d.client_id = 0 AND d.kind = 7 AND d.scope = ",
            $entry,
            ".event_id AND d.entry_id = ",
            $entry,
            ".id LIMIT 1) END, e.created_at, ((",
            $entry,
            ".event_id >> 22) + 1577836800000) * 1000) AS created_at"
        )
    };
}

statements! {
    /// Statements about lists.
    pub(in crate::sqlite) struct Lists {
        /// Live entries. Primary key.
        live: Only<i64> = "
            SELECT id FROM {live} WHERE id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3))
            ORDER BY id DESC LIMIT ?2";
        /// Ended entries. Index event_log_key.
        log: Only<i64> = "
            SELECT id FROM {log} INDEXED BY {log}_key WHERE id < ?1 AND superseded <> 1 ORDER BY id DESC LIMIT ?2";
        /// Entries with one end other than COMPLETED. Index event_log_ends.
        ended: Only<i64> = "
            SELECT id FROM {log} INDEXED BY {log}_ends
            WHERE status = ?3 AND status > 0 AND superseded <> 1 AND id < ?1 ORDER BY id DESC LIMIT ?2";
        /// Live entries of a client. Index event_queue_client.
        live_of_client: Only<i64> = "
            SELECT id FROM {live} INDEXED BY {live}_client
            WHERE client_id = ?4 AND id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3))
            ORDER BY id DESC LIMIT ?2";
        /// Ended entries of a client. Index event_log_client.
        log_of_client: Only<i64> = "
            SELECT id FROM {log} INDEXED BY {log}_client
            WHERE client_id = ?4 AND status = ?3 AND superseded <> 1 AND id < ?1 ORDER BY id DESC LIMIT ?2";
        /// Fresh entries of a lane. Index event_queue_fresh.
        fresh: Only<i64> = "
            SELECT id FROM {live} INDEXED BY {live}_fresh
            WHERE lane = ?4 AND place = 0 AND id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3))
            ORDER BY id DESC LIMIT ?2";
        /// Timed, parked and aside entries of a lane. Index event_queue_waiting.
        waiting: Only<i64> = "
            SELECT id FROM {live} INDEXED BY {live}_waiting
            WHERE lane = ?4 AND place > 0 AND place <> 3 AND id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3))
            ORDER BY id DESC LIMIT ?2";
        /// Arrivals of a client, a queue and a type, as far as each is given. Index event_queue_arrived, then primary
        /// keys.
        arrived: Only<i64> = "
            SELECT q.id FROM {live} q INDEXED BY {live}_arrived
            WHERE q.place = 3 AND q.id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3))
              AND (?4 IS NULL OR q.client_id = ?4)
              AND (?5 IS NULL OR EXISTS (SELECT 1 FROM {queues} n WHERE n.id = q.queue_id AND n.name = ?5
                                         AND coalesce(n.client_id, 0) = coalesce(?6, 0)))
              AND (?7 IS NULL OR (SELECT e.event_type FROM {ns}_events e WHERE e.id = q.event_id) = ?7)
            ORDER BY q.id DESC LIMIT ?2";
        /// Live entries with a tag. Primary key.
        live_tag: Only<i64> = "
            SELECT entry_id FROM {ns}_event_tags WHERE tag = ?4 AND entry_id < ?1 AND (?3 = 1 OR state <> 3)
            ORDER BY entry_id DESC LIMIT ?2";
        /// Live entries of a client with a tag. Index event_tags_client.
        live_tag_of_client: Only<i64> = "
            SELECT entry_id FROM {ns}_event_tags INDEXED BY {ns}_event_tags_client
            WHERE client_id = ?5 AND tag = ?4 AND entry_id < ?1 AND (?3 = 1 OR state <> 3)
            ORDER BY entry_id DESC LIMIT ?2";
        /// Held entries with a tag. Index event_tags_rank, in each queue.
        held_tag: Only<i64> = "
            SELECT t.entry_id FROM {queues} n CROSS JOIN {ns}_event_tags t INDEXED BY {ns}_event_tags_rank
                ON t.queue_id = n.id
            WHERE t.tag = ?4 AND t.state = ?3 AND t.entry_id < ?1 AND (?5 IS NULL OR n.client_id = ?5)
            ORDER BY t.entry_id DESC LIMIT ?2";
        /// Ended entries with a tag. Primary key.
        log_tag: Only<i64> = "
            SELECT entry_id FROM {ns}_log_tags WHERE tag = ?4 AND status = ?3 AND entry_id < ?1
            ORDER BY entry_id DESC LIMIT ?2";
        /// Ended entries of a client with a tag. Index log_tags_client.
        log_tag_of_client: Only<i64> = "
            SELECT entry_id FROM {ns}_log_tags INDEXED BY {ns}_log_tags_client
            WHERE client_id = ?5 AND tag = ?4 AND status = ?3 AND entry_id < ?1 ORDER BY entry_id DESC LIMIT ?2";
        /// Entries that a worker holds. Primary key: walks over those that wait, as leases have no index.
        held_by_worker: Only<i64> = "
            SELECT id FROM {live}
            WHERE id < ?1 AND lease_until IS NOT NULL AND worker = ?4 AND ?3 IN (1, 3) ORDER BY id DESC LIMIT ?2";
        /// Entries of a client that a worker holds. Index event_queue_client.
        held_by_worker_of_client: Only<i64> = "
            SELECT id FROM {live} INDEXED BY {live}_client
            WHERE client_id = ?5 AND id < ?1 AND lease_until IS NOT NULL AND worker = ?4 AND ?3 IN (1, 3)
            ORDER BY id DESC LIMIT ?2";
        /// The stretches in which a lane has entries with one end, from `?1` down. Primary key.
        lane_stretches: Only<i64> = "
            SELECT stretch FROM {ns}_log_lanes WHERE lane = ?4 AND status = ?3 AND stretch <= ?1
            ORDER BY stretch DESC LIMIT ?2";
        /// The stretches in which a worker has entries with one end, from `?1` down. Primary key.
        worker_stretches: Only<i64> = "
            SELECT stretch FROM {ns}_log_workers WHERE client_id = ?5 AND worker = ?4 AND status = ?3 AND stretch <= ?1
            ORDER BY stretch DESC LIMIT ?2";
        /// What ended in a stretch. Index event_log_key.
        in_stretch: EndedRow = "
            SELECT {columns} FROM {log} INDEXED BY {log}_key WHERE id >= ?1 AND id < ?2 AND superseded <> 1";
        /// What ended after the counted rows. Primary key.
        uncounted: EndedRow = "SELECT {columns} FROM {log} WHERE seq > ?1 AND superseded <> 1";
        /// The lanes of a client, a queue and a type, as far as each is given, and whether a lane holds other types
        /// too. The queues, whole, and index lanes_key.
        lanes_of: LaneRow = "
            SELECT l.id,
                   ?4 IS NOT NULL AND CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END IS NULL AS mixed
            FROM {queues} n CROSS JOIN {lanes} l ON l.queue_id = n.id
            WHERE (?1 IS NULL OR n.client_id = ?1)
              AND (?2 IS NULL OR n.name = ?2 AND coalesce(n.client_id, 0) = coalesce(?3, 0))
              AND (?4 IS NULL OR CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END IS NULL
                   OR CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END = ?4) LIMIT ?5";
        /// The next lane below zero, which entries have that ended before they were sorted in, whatever their queue.
        /// Index event_log_unsorted.
        next_lane_below: Only<Option<i64>> = "
            SELECT min(lane) FROM {log} INDEXED BY {log}_unsorted WHERE lane > ?1 AND lane < 0 AND superseded <> 1";
        /// The greatest number of an entry. The ends of the primary key and of event_log_key.
        last_number: Only<i64> = "
            SELECT max(coalesce((SELECT max(id) FROM {live}), 0), coalesce((SELECT max(id) FROM {log}), 0))";
        /// When the first entry at or above a number was published. Primary keys and event_log_key.
        published_from: Only<Moment> = &format!("
            SELECT coalesce({}, (SELECT e.created_at FROM {{ns}}_events e WHERE e.id = c.event_id),
                            ((c.event_id >> 22) + 1577836800000) * 1000)
            FROM (
                SELECT * FROM (SELECT id, event_id, flags FROM {{live}} WHERE id >= ?1 ORDER BY id LIMIT 1)
                UNION ALL
                SELECT * FROM (
                    SELECT id, event_id, flags FROM {{log}} INDEXED BY {{log}}_key WHERE id >= ?1 ORDER BY id LIMIT 1)
            ) AS c ORDER BY c.id LIMIT 1", made_at("c"));
        /// A live entry in a list. Primary keys.
        summary_live: SummaryRow = concat!("
            SELECT q.event_id, n.name, q.attempts, q.max_attempts, coalesce(l.priority, -1000 - q.lane) AS priority,
                   q.group_key, q.worker, coalesce(q.updated_at, e.created_at, 0) AS updated_at,
                   q.lease_until AS state, CASE WHEN q.flags & 8 THEN NULL ELSE q.due_at END AS due_at, ", fact!("q"), "
            FROM {live} q JOIN {queues} n ON n.id = q.queue_id LEFT JOIN {lanes} l ON l.id = q.lane
            LEFT JOIN {ns}_events e ON e.id = q.event_id WHERE q.id = ?1");
        /// An ended entry in a list. Index event_log_key, from its end, then primary keys.
        summary_ended: SummaryRow = concat!("
            SELECT g.event_id, n.name, g.attempts, g.max_attempts, coalesce(l.priority, -1000 - g.lane) AS priority,
                   g.group_key, g.worker, g.finished_at AS updated_at, g.status AS state,
                   NULL AS due_at, ", fact!("g"), "
            FROM {log} g JOIN {queues} n ON n.id = g.queue_id LEFT JOIN {lanes} l ON l.id = g.lane
            LEFT JOIN {ns}_events e ON e.id = g.event_id WHERE g.id = ?1 ORDER BY g.generation DESC LIMIT 1");
        /// The number of live entries, and of those that are held. The live table, up to a bound.
        count_live: LiveCountRow = "
            SELECT {columns} FROM (SELECT CASE WHEN ?2 THEN lease_until END AS lease_until FROM {live} LIMIT ?1)";
        /// The same for a client. Index event_queue_client, up to a bound.
        count_live_of_client: LiveCountRow = "
            SELECT {columns}
            FROM (SELECT CASE WHEN ?2 THEN lease_until END AS lease_until
                  FROM {live} INDEXED BY {live}_client WHERE client_id = ?3 LIMIT ?1)";
        /// The number of live entries with a tag. Primary key, up to a bound.
        count_live_tag: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {ns}_event_tags WHERE tag = ?2 LIMIT ?1)";
        /// The same for a client. Index event_tags_client, up to a bound.
        count_live_tag_of_client: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {ns}_event_tags INDEXED BY {ns}_event_tags_client
                                  WHERE client_id = ?3 AND tag = ?2 LIMIT ?1)";
        /// The number of held entries with a tag. Index event_tags_rank, one walk per queue.
        count_held_tag: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {queues} n
                CROSS JOIN {ns}_event_tags t INDEXED BY {ns}_event_tags_rank ON t.queue_id = n.id
                WHERE t.tag = ?2 AND t.state = 3 AND (?3 IS NULL OR n.client_id = ?3) LIMIT ?1)";
        /// The number of redriven log rows, by end. Index event_log_superseded.
        count_redriven: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {log} INDEXED BY {log}_superseded
                                  WHERE superseded = 1 AND status = ?1 LIMIT ?2)";
        /// The same for a client. Index event_log_redriven.
        count_redriven_of_client: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {log} INDEXED BY {log}_redriven
                                  WHERE client_id = ?3 AND superseded = 1 AND status = ?1 LIMIT ?2)";
        /// The same for a tag. Index event_log_superseded, then primary keys.
        count_redriven_tag: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {log} g INDEXED BY {log}_superseded
                CROSS JOIN {ns}_events e ON e.id = g.event_id
                WHERE g.superseded = 1 AND g.status = ?1 AND g.flags & 1
                  AND instr(',' || e.tags || ',', ',' || ?3 || ',') > 0 LIMIT ?2)";
        /// The same for a client and a tag. Index event_log_redriven, then primary keys.
        count_redriven_tag_of_client: Only<i64> = "
            SELECT count(*) FROM (SELECT 1 FROM {log} g INDEXED BY {log}_redriven
                CROSS JOIN {ns}_events e ON e.id = g.event_id
                WHERE g.client_id = ?4 AND g.superseded = 1 AND g.status = ?1 AND g.flags & 1
                  AND instr(',' || e.tags || ',', ',' || ?3 || ',') > 0 LIMIT ?2)";
    }
}
