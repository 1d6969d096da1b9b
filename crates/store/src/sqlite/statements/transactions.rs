//! What transactions themselves do, whatever their verb: take the write lock, number log rows.

use crate::sql::{Only, statements};

statements! {
    /// Statements about transactions.
    pub(in crate::sqlite) struct Transactions {
        /// Begins a write transaction without changing a row. Primary key; it matches no row.
        begin_writing = "UPDATE {ns}_sequence SET entry_id = entry_id WHERE only_row = 0";
        /// The number of the next log row. One row.
        next_log_seq: Only<i64> = "SELECT log_seq FROM {ns}_sequence";
        /// Saves the number of the next log row. One row.
        save_log_seq = "UPDATE {ns}_sequence SET log_seq = ?1";
    }
}
