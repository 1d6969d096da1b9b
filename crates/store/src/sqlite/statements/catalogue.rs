//! The catalogue: the tables `queues` and `lanes`, and their history.

use std::sync::Arc;

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::row;

row! {
    /// A catalogue version. The stamp is random: two histories of one file may share a number, never a stamp.
    #[derive(Default, Clone, Copy, PartialEq, Eq)]
    pub(in crate::sqlite) struct Version {
        number: i64 = "catalogue_version",
        stamp: i64,
    }
}

row! {
    /// The version of the schema, and of the oldest program that can run on it.
    pub(in crate::sqlite) struct Compatibility {
        schema_version: i32,
        oldest_compatible: i32,
    }
}

row! {
    /// A queue, found by its name.
    pub(in crate::sqlite) struct QueueRow {
        id: i64,
        state: i16,
        depth_limit: Option<i64>,
        settings: Option<String>,
    }
}

row! {
    /// The name of a queue.
    pub(in crate::sqlite) struct NameRow {
        name: String,
        client_id: Option<i64>,
    }
}

row! {
    /// A lane. One without a type is shared by many.
    pub(in crate::sqlite) struct LaneRow {
        id: i64,
        priority: i16,
        event_type: Option<Arc<str>>,
    }
}

statements! {
    /// Statements about the catalogue.
    pub(in crate::sqlite) struct Catalogue {
        /// The catalogue version and its stamp, and which programs may run on the schema. One row.
        version: (Version, Compatibility) = "SELECT {columns} FROM {ns}_meta";
        /// Whether a version with its stamp belongs to this database's history. Primary key.
        is_known = "SELECT 1 FROM {ns}_catalogue_history WHERE version = ?1 AND stamp = ?2";
        /// The queues that changed since a catalogue version, themselves or their lanes, and those whose number was removed
        /// in any family. Indexes queues_version, lanes_version and catalogue_removed_version.
        changed: Only<i64> = "
            SELECT id FROM {queues} INDEXED BY {queues}_version WHERE version > ?1
            UNION ALL SELECT queue_id FROM {lanes} INDEXED BY {lanes}_version WHERE version > ?1
            UNION ALL SELECT queue_id FROM {ns}_catalogue_removed WHERE version > ?1";
        /// A queue by client and name. Index queues_name.
        queue_by_name: QueueRow = "
            SELECT {columns} FROM {queues} WHERE coalesce(client_id, 0) = coalesce(?2, 0) AND name = ?1";
        /// The name and client of a queue. Primary key.
        queue_name: NameRow = "SELECT {columns} FROM {queues} WHERE id = ?1";
        /// The lanes of a queue that take entries. Index lanes_key.
        lanes: LaneRow = "SELECT {columns} FROM {lanes} WHERE queue_id = ?1 AND state = 0";
    }
}
