//! What a transaction reads about itself: its prelude and its id, and afterwards whether it took place. Connections run
//! these statements, so they are not among the subjects.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};

row! {
    /// What a transaction reads at its start, to decide whether it may go on.
    pub(in crate::postgres) struct PreludeRow {
        xid: Option<String>,
        stamp: i64,
        schema_version: i32,
        oldest_compatible: i32,
        /// The heartbeat is neither old nor ahead of the clock.
        heartbeat_near: bool,
        now: Moment,
    }
}

/// Reads a [`PreludeRow`].
const PRELUDE: &str = "
    SELECT {xid}::text AS xid, m.stamp AS stamp, m.schema_version, m.oldest_compatible,
           h.at BETWEEN clock_timestamp() - i.outage AND clock_timestamp() + i.outage AS heartbeat_near,
           clock_timestamp() AS now
    FROM {ns}.store m CROSS JOIN {ns}.heartbeat h
    CROSS JOIN (SELECT $1::bigint * interval '1 millisecond' AS outage) AS i";

statements! {
    /// Statements about transactions.
    pub(in crate::postgres) struct Transactions {
        /// The prelude of a transaction that will write: draws its id (one row).
        prelude_of_write: PreludeRow = &PRELUDE.replace("{xid}", "pg_current_xact_id()");
        /// The prelude of a transaction that may write nothing (one row).
        prelude_of_lazy: PreludeRow = &PRELUDE.replace("{xid}", "NULL");
        /// Draws the id of the transaction.
        draw_id: Only<String> = "SELECT pg_current_xact_id()::text";
        /// What became of a transaction. An id that the server has not given yet was lost in a crash, and asking for its
        /// status would be an error. The next id is known only by drawing it: a snapshot ends at the last one that is
        /// over, below some that still run.
        status: Only<Option<String>> = "
            SELECT CASE WHEN $1::text::xid8 < pg_current_xact_id() THEN pg_xact_status($1::text::xid8) END";
    }
}
