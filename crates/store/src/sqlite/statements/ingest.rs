//! Facts with any number of targets: written by ingest, removed by retention. Their entries are written by the statement
//! of publishing.

use crate::sql::{Columns as _, statements};
use crate::sqlite::engine::row::row;

/// How many terms one statement writes.
pub(in crate::sqlite) const TERMS_AT_ONCE: usize = 16;

/// The rows of as many terms.
fn term_rows() -> String {
    vec!["(?, ?, ?)"; TERMS_AT_ONCE].join(", ")
}

/// The tables whose rows refer to facts by a number within the fact's range.
pub(super) const REFERRING: [&str; 4] =
    ["{ns}_event_queue", "{ns}_event_log", "{ns}_dispatch_queue", "{ns}_dispatch_log"];

row! {
    /// A fact with a range of numbers.
    pub(in crate::sqlite) struct RangedFact {
        id: i64 = "e.id",
        first_number: i64 = "e.first_number",
        created_at: i64 = "e.created_at",
        /// Nothing refers to it.
        is_free: bool = "{is_free}",
    }
}

row! {
    /// A fact that was removed, by what its terms are found.
    pub(in crate::sqlite) struct GoneFact {
        client_id: Option<i64>,
        /// Its terms as they are stored, one after the other.
        terms: Option<Vec<u8>>,
    }
}

/// Whether no row refers to the fact `e`. Primary keys of the live tables, indexes event_log_key and dispatch_log_key: few
/// rows, since the numbers of a range were drawn together, and one for each target that was added.
fn is_free() -> String {
    let free = REFERRING.map(|table| {
        format!(
            "NOT EXISTS (SELECT 1 FROM {table} r
                         WHERE r.id BETWEEN e.first_number AND e.last_number AND r.event_id = e.id)"
        )
    });
    format!("({} AND {})", free.join(" AND "), super::added::none_is_left())
}

/// The columns of [`RangedFact`].
fn columns() -> String {
    RangedFact::list().replace("{is_free}", &is_free())
}

statements! {
    /// Statements about facts with any number of targets.
    pub(in crate::sqlite) struct Ingest {
        /// Writes a fact with its range of numbers. Appends; with a range it adds to events_first_number, events_client,
        /// events_type, and the indexes over what else it has.
        put_fact = "
            INSERT INTO {ns}_events (id, created_at, client_id, event_type, content_type, source, subject, time,
                external_id, correlation_id, causation_id, attributes, payload, title, description, tags, retry,
                first_number, last_number, targets, terms)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)";
        /// Writes a term of a fact. Primary key.
        put_term = "INSERT INTO {ns}_fact_terms (term, client_id, event_id) VALUES (?1, ?2, ?3)";
        /// Writes many terms of facts. Primary key.
        put_terms = &format!("INSERT INTO {{ns}}_fact_terms (term, client_id, event_id) VALUES {}", term_rows());
        /// Facts with a range, by their first number. Index events_first_number, from where the last batch stopped.
        ranged_facts: RangedFact = &format!("
            SELECT {} FROM {{ns}}_events e INDEXED BY {{ns}}_events_first_number
            WHERE e.first_number > ?1 ORDER BY e.first_number LIMIT ?2", columns());
        /// Removes a fact that nothing refers to. Primary key.
        remove_free: GoneFact = &format!("
            DELETE FROM {{ns}}_events AS e WHERE e.id = ?1 AND e.first_number IS NOT NULL AND {}
            RETURNING {{columns}}", is_free());
        /// Removes a term of a fact. Primary key.
        remove_term = "DELETE FROM {ns}_fact_terms WHERE term = ?1 AND client_id = ?2 AND event_id = ?3";
    }
}
