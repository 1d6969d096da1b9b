//! Facts by id, what was made for them, and searches for them. A statement that finds candidates returns facts with ids
//! below `?1`, youngest first, at most `?2` and none below `?3`; `?4` is the client of the stream, null for none, `?5` its
//! type. The conditions that a fact must match besides are the same for all of them: see [`FITS`].

use crate::sql::{Columns as _, Only, statements};
use crate::sqlite::engine::row::{Shown, row};
use crate::sqlite::statements::entries::{EndedPhaseRow, LivePhaseRow};
use crate::sqlite::statements::facts::ShownFactRow;

row! {
    /// The range of numbers that a fact remembers, and how many entries and jobs were made for it.
    pub(in crate::sqlite) struct RangeRow {
        first_number: Option<i64> = "e.first_number",
        last_number: Option<i64> = "e.last_number",
        targets: Option<i64> = "e.targets",
    }
}

row! {
    /// An entry of a fact.
    pub(in crate::sqlite) struct TargetRow {
        id: i64 = "q.id",
        queue: String = "n.name",
        queue_client: Option<i64> = "n.client_id",
        lane_type: Option<Shown> = "CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END",
        worker: Option<Shown> = "q.worker",
    }
}

row! {
    /// A fact that may be one of those that are looked for.
    pub(in crate::sqlite) struct CandidateRow {
        id: i64 = "e.id",
        event_type: Option<Shown> = "e.event_type",
        size: i64 = "length(e.payload)",
        fits: bool = "{fits}",
    }
}

row! {
    /// A fact that a walk comes by.
    pub(in crate::sqlite) struct WalkedRow {
        id: i64 = "e.id",
        size: i64 = "length(e.payload)",
        is_found: bool = "e.first_number IS NOT NULL",
    }
}

/// Whether fact `e` was stored from `?6` on and before `?7`, and has the source `?8`, the subject `?9`, the publisher's id
/// `?10`, the correlation id `?11`, the type `?12` and all of the terms `?13` (hexadecimal digits, as JSON), as far as each
/// is given. (fact_terms' primary key)
const FITS: &str = "
    ((?6 IS NULL OR e.created_at >= ?6) AND (?7 IS NULL OR e.created_at < ?7)
     AND (?8 IS NULL OR e.source = ?8) AND (?9 IS NULL OR e.subject = ?9)
     AND (?10 IS NULL OR e.external_id = ?10) AND (?11 IS NULL OR e.correlation_id = ?11)
     AND (?12 IS NULL OR e.event_type = ?12)
     AND NOT EXISTS (
         SELECT 1 FROM json_each(?13) w WHERE NOT EXISTS (
             SELECT 1 FROM {ns}_fact_terms t
             WHERE t.term = unhex(w.value) AND t.client_id = coalesce(e.client_id, 0) AND t.event_id = e.id)))";

/// The columns of a [`CandidateRow`].
fn candidate() -> String {
    CandidateRow::list().replace("{fits}", &format!("coalesce({FITS}, 0)"))
}

/// Candidates by an index of facts with a range.
fn found_by(index: &str, condition: &str) -> String {
    format!(
        "SELECT {} FROM {{ns}}_events e INDEXED BY {{ns}}_events_{index}
         WHERE {condition} AND e.first_number IS NOT NULL AND e.id < ?1 AND e.id >= ?3
         ORDER BY e.id DESC LIMIT ?2",
        candidate()
    )
}

/// The next client above `?2` that has facts with the text `?1`.
fn next_client(index: &str, column: &str) -> String {
    format!(
        "SELECT client_id FROM {{ns}}_events INDEXED BY {{ns}}_events_{index}
         WHERE {column} = ?1 AND first_number IS NOT NULL AND {column} IS NOT NULL AND client_id > ?2
         ORDER BY client_id LIMIT 1"
    )
}

/// Whether there are facts of no client with the text `?1`.
fn of_no_client(index: &str, column: &str) -> String {
    format!(
        "SELECT EXISTS (
             SELECT 1 FROM {{ns}}_events INDEXED BY {{ns}}_events_{index}
             WHERE {column} = ?1 AND first_number IS NOT NULL AND {column} IS NOT NULL AND client_id IS NULL)"
    )
}

/// The columns and tables of an entry of a fact, which has the number of `q`.
fn target<Phase: crate::sql::Columns>(table: &str) -> String {
    format!(
        "SELECT {} FROM {table} CROSS JOIN {{queues}} n ON n.id = q.queue_id LEFT JOIN {{lanes}} l ON l.id = q.lane
         WHERE q.id BETWEEN ?1 AND ?2 AND q.event_id = ?3",
        <(TargetRow, Phase)>::list()
    )
}

statements! {
    /// Statements about facts.
    pub(in crate::sqlite) struct Finding {
        /// A fact. Primary key.
        fact: (RangeRow, ShownFactRow) = "SELECT {columns} FROM {ns}_events e WHERE e.id = ?1";
        /// The live entries of a fact between two numbers. Primary keys.
        live_targets: (TargetRow, LivePhaseRow) = &format!("
            {} ORDER BY q.id LIMIT ?4", target::<LivePhaseRow>("{live} q"));
        /// The ended entries of a fact between two numbers, the last generation of each last. Index event_log_key, then
        /// primary keys.
        ended_targets: (TargetRow, EndedPhaseRow) = &format!("
            {} AND q.superseded <> 1 ORDER BY q.id, q.generation LIMIT ?4",
            target::<EndedPhaseRow>("{log} q INDEXED BY {log}_key"));
        /// Facts of a client with the publisher's id. Index events_external.
        of_external: CandidateRow = &found_by(
            "external", "e.external_id = ?10 AND e.external_id IS NOT NULL AND e.client_id IS ?4");
        /// Facts of a client with a correlation id. Index events_correlation.
        of_correlation: CandidateRow = &found_by(
            "correlation", "e.correlation_id = ?11 AND e.correlation_id IS NOT NULL AND e.client_id IS ?4");
        /// Facts of a client with a subject. Index events_subject.
        of_subject: CandidateRow = &found_by(
            "subject", "e.subject = ?9 AND e.subject IS NOT NULL AND e.client_id IS ?4");
        /// Facts of a client from a system. Index events_source.
        of_system: CandidateRow = &found_by("source", "e.source = ?8 AND e.source IS NOT NULL AND e.client_id IS ?4");
        /// Facts of a client and a type. Index events_type.
        of_type: CandidateRow = &found_by("type", "e.client_id IS ?4 AND e.event_type = ?5");
        /// Facts of a client. Index events_client.
        of_client: CandidateRow = &found_by("client", "e.client_id IS ?4");
        /// Facts of a client with a term. Primary keys.
        of_term: CandidateRow = &format!("
            SELECT {} FROM {{ns}}_fact_terms f CROSS JOIN {{ns}}_events e ON e.id = f.event_id
            WHERE f.term = ?14 AND f.client_id = coalesce(?4, 0) AND f.event_id < ?1 AND f.event_id >= ?3
            ORDER BY f.event_id DESC LIMIT ?2", candidate());
        /// All facts, published ones too, which do not fit. Primary key.
        everything: CandidateRow = &format!("
            SELECT {} FROM {{ns}}_events e WHERE e.id < ?1 AND e.id >= ?3 ORDER BY e.id DESC LIMIT ?2",
            candidate().replace(" AS fits", " AND e.first_number IS NOT NULL AS fits"));
        /// The next facts of a client. Index events_client.
        walk_client: WalkedRow = "
            SELECT {columns} FROM {ns}_events e INDEXED BY {ns}_events_client
            WHERE e.client_id IS ?4 AND e.first_number IS NOT NULL AND e.id > ?1 AND e.id < ?2 ORDER BY e.id LIMIT ?3";
        /// The next facts, published ones too. Primary key.
        walk: WalkedRow = "
            SELECT {columns} FROM {ns}_events e WHERE e.id > ?1 AND e.id < ?2 ORDER BY e.id LIMIT ?3";
        /// The next client with the publisher's id. Index events_external.
        client_of_external: Only<i64> = &next_client("external", "external_id");
        /// Whether no client has it. Index events_external.
        no_client_of_external: Only<bool> = &of_no_client("external", "external_id");
        /// The next client with a correlation id. Index events_correlation.
        client_of_correlation: Only<i64> = &next_client("correlation", "correlation_id");
        /// Whether no client has it. Index events_correlation.
        no_client_of_correlation: Only<bool> = &of_no_client("correlation", "correlation_id");
        /// The next client with a subject. Index events_subject.
        client_of_subject: Only<i64> = &next_client("subject", "subject");
        /// Whether no client has it. Index events_subject.
        no_client_of_subject: Only<bool> = &of_no_client("subject", "subject");
        /// The next client of a system. Index events_source.
        client_of_system: Only<i64> = &next_client("source", "source");
        /// Whether no client has it. Index events_source.
        no_client_of_system: Only<bool> = &of_no_client("source", "source");
        /// The next client, 0 for none, that has facts with a term. Primary key.
        client_of_term: Only<i64> = "
            SELECT client_id FROM {ns}_fact_terms WHERE term = ?1 AND client_id > ?2 ORDER BY client_id LIMIT 1";
        /// The next client that has facts. Index events_client.
        client: Only<i64> = "
            SELECT client_id FROM {ns}_events INDEXED BY {ns}_events_client
            WHERE first_number IS NOT NULL AND client_id > ?1 ORDER BY client_id LIMIT 1";
        /// Whether there are facts of no client. Index events_client.
        no_client: Only<bool> = "
            SELECT EXISTS (SELECT 1 FROM {ns}_events INDEXED BY {ns}_events_client
                           WHERE first_number IS NOT NULL AND client_id IS NULL)";
        /// The first type of a client's facts, from one on. Index events_type.
        type_from: Only<Shown> = "
            SELECT event_type FROM {ns}_events INDEXED BY {ns}_events_type
            WHERE client_id IS ?1 AND event_type >= ?2 AND first_number IS NOT NULL ORDER BY event_type LIMIT 1";
        /// The next type of a client's facts. Index events_type.
        type_after: Only<Shown> = "
            SELECT event_type FROM {ns}_events INDEXED BY {ns}_events_type
            WHERE client_id IS ?1 AND event_type > ?2 AND first_number IS NOT NULL ORDER BY event_type LIMIT 1";
    }
}
