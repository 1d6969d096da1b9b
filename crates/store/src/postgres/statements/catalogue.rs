//! The catalogue of a family: its tables of queues and lanes, and their history, which the families share.

use crate::postgres::engine::row::row;
use crate::sql::statements;

row! {
    /// The catalogue's version, and one change of it where there is any. Which of the other columns are set depends on
    /// the kind of the change.
    pub(in crate::postgres) struct ChangeRow {
        version: i64 = "k.version",
        stamp: i64 = "k.stamp",
        schema_version: i32 = "k.schema_version",
        oldest_compatible: i32 = "k.oldest_compatible",
        /// All queues and lanes follow, not only changed ones.
        everything: bool = "k.since < 0",
        kind: Option<i16> = "r.kind",
        id: Option<i32> = "r.id",
        queue_id: Option<i32> = "r.queue_id",
        name: Option<String> = "r.name",
        client_id: Option<i64> = "r.client_id",
        state: Option<i16> = "r.state",
        depth_limit: Option<i64> = "r.depth_limit",
        settings: Option<String> = "r.settings",
        event_type: Option<String> = "r.event_type",
        priority: Option<i16> = "r.priority",
    }
}

row! {
    /// The version of the schema, and of the oldest program that can run on it.
    pub(in crate::postgres) struct Compatibility {
        schema_version: i32,
        oldest_compatible: i32,
    }
}

statements! {
    /// Statements about the catalogue.
    pub(in crate::postgres) struct Catalogue {
        /// Which programs may run on the schema (one row).
        compatibility: Compatibility = "SELECT {columns} FROM {ns}.store";
        /// The catalogue's version, which programs may run on the schema, and what changed since the known one ($1 with stamp $2); everything, if that is not
        /// in this database's history; nothing, if the stamps are equal (catalogue_history's primary key,
        /// queues_version, lanes_version, catalogue_removed_version). Queues come before lanes.
        changes: ChangeRow = "
            WITH known AS MATERIALIZED (
                SELECT m.catalogue_version AS version, m.stamp AS stamp, m.schema_version, m.oldest_compatible,
                       CASE WHEN m.stamp = $2::bigint AND $1::bigint >= 0 THEN 9223372036854775807
                            WHEN $1::bigint <= m.catalogue_version
                                 AND EXISTS (SELECT FROM {ns}.catalogue_history h
                                             WHERE h.version = $1::bigint AND h.stamp = $2::bigint)
                            THEN $1::bigint ELSE -1 END AS since
                FROM {ns}.store m
            )
            SELECT {columns}
            FROM known k LEFT JOIN LATERAL (
                SELECT 0::smallint AS kind, q.id, q.id AS queue_id, q.name, q.client_id, q.state, q.depth_limit,
                       q.settings, NULL::text AS event_type, NULL::smallint AS priority
                FROM {queues} q WHERE q.version > k.since
                UNION ALL
                SELECT 1::smallint, l.id, l.queue_id, NULL, NULL, l.state, NULL, NULL,
                       CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END, l.priority
                FROM {lanes} l WHERE l.version > k.since AND (k.since >= 0 OR l.state < 2)
                UNION ALL
                SELECT (2 + d.kind - {removed})::smallint, d.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
                FROM {ns}.catalogue_removed d
                WHERE d.version > k.since AND k.since >= 0 AND d.kind IN ({removed}, {removed} + 1)
            ) AS r ON true
            ORDER BY r.kind";
    }
}
