//! Facts by id, what was made for them, and searches for them. A statement that finds candidates does so for each stream, a
//! client `$1` and a type `$13` below an id `$2`: facts with smaller ids, youngest first, at most `$3` and none below `$4`. The
//! conditions that a fact must match besides are the same for all of them: see [`FITS`]. An index is found by all of its
//! columns, as for lists: the first ones are compared with `= ANY (ARRAY[x])`, and rows are ordered by all of them.

use tidegate_core::{End, EntryId};

use crate::error::Result;
use crate::postgres::engine::row::{Moment, queue_name, row};
use crate::postgres::statements::entries::Stage;
use crate::postgres::statements::facts::FactRow;
use crate::sql::{Columns as _, statements};
use crate::values::{FactTarget, Family};

row! {
    /// The id of a fact, the range of numbers that it remembers, and how many entries and jobs were made for it.
    pub(in crate::postgres) struct RangeRow {
        fact_id: i64 = "e.id",
        first_number: Option<i64> = "e.first_number",
        last_number: Option<i64> = "e.last_number",
        targets: Option<i32> = "e.targets",
    }
}

row! {
    /// An entry of a fact. Of which, the position in what was asked for says, counted from 1.
    pub(in crate::postgres) struct TargetRow {
        item: i32 = "i.ord::integer",
        id: i64 = "r.id",
        queue: String = "n.name",
        queue_client: Option<i64> = "n.client_id",
        lane_type: Option<String> = "l.lane_type",
        place: Option<i16> = "r.place",
        is_grouped: bool = "r.is_grouped",
        due_at: Option<Moment> = "r.due_at",
        lease_until: Option<Moment> = "r.lease_until",
        processing_started_at: Option<Moment> = "r.processing_started_at",
        kept_as: Option<i16> = "r.kept_as",
        finished_at: Option<Moment> = "r.finished_at",
        status: Option<i16> = "r.status",
        superseded: i16 = "r.superseded",
        worker: Option<String> = "r.worker",
    }
}

impl TargetRow {
    /// The entry as it is shown with its fact.
    pub(in crate::postgres) fn target(self, family: Family) -> Result<FactTarget> {
        let id = EntryId::new(self.id)?;
        let stage = Stage {
            place: self.place,
            is_grouped: self.is_grouped,
            due_at: self.due_at,
            lease_until: self.lease_until,
            processing_started_at: self.processing_started_at,
            kept_as: self.kept_as.and_then(End::from_code),
            finished_at: self.finished_at,
            status: self.status,
            superseded: self.superseded,
            worker: self.worker,
        };
        let queue = queue_name(self.queue, self.queue_client)?;
        Ok(FactTarget { family, id, queue, phase: stage.phase(id)?, made_at: None, lane_type: self.lane_type })
    }
}

row! {
    /// A fact that may be one of those that are looked for, and the position of its stream, counted from 1.
    pub(in crate::postgres) struct CandidateRow {
        stream: i32 = "s.ord::integer",
        id: i64 = "c.id",
        event_type: String = "c.event_type",
        size: i32 = "c.size",
        fits: bool = "c.fits",
    }
}

row! {
    /// A fact that a walk comes by.
    pub(in crate::postgres) struct WalkedRow {
        id: i64 = "e.id",
        size: i32 = "length(e.payload)",
        is_found: bool = "e.first_number + 0 IS NOT NULL",
    }
}

row! {
    /// A client, 0 for none.
    pub(in crate::postgres) struct ClientRow {
        client_id: i64 = "c.client_id",
    }
}

row! {
    /// A client, 0 for none, and a type of its facts.
    pub(in crate::postgres) struct TypeRow {
        client_id: i64 = "c.client_id",
        event_type: String = "t.event_type",
    }
}

/// Whether fact `e` was stored from `$5` on and before `$6`, and has the source `$7`, the subject `$8`, the publisher's id
/// `$9`, the correlation id `$10`, the type `$11` and all of the terms `$12`, as far as each is given, and is not among the
/// published ones. (fact_terms' primary key)
const FITS: &str = "
    coalesce(
        e.first_number + 0 IS NOT NULL
        AND ($5::timestamptz IS NULL OR e.created_at >= $5) AND ($6::timestamptz IS NULL OR e.created_at < $6)
        AND ($7::text IS NULL OR e.source = $7) AND ($8::text IS NULL OR e.subject = $8)
        AND ($9::text IS NULL OR e.external_id = $9) AND ($10::text IS NULL OR e.correlation_id = $10)
        AND ($11::text IS NULL OR e.event_type = $11)
        AND NOT EXISTS (
            SELECT FROM unnest($12::bytea[]) AS w(term) WHERE NOT EXISTS (
                SELECT FROM {ns}.fact_terms t
                WHERE t.term = w.term AND t.client_id = coalesce(e.client_id, 0) AND e.id = t.event_id OFFSET 0)
            OFFSET 0),
        false)";

/// The client of fact `e`, as indexes have it.
const CLIENT: &str = "coalesce(e.client_id, 0)";

/// A statement that finds candidates of each stream by `inner`, which selects from facts `e`.
fn candidates(inner: &str) -> String {
    let columns = "e.id, e.event_type, length(e.payload) AS size, {fits} AS fits";
    format!(
        "SELECT {} FROM unnest($1::bigint[], $2::bigint[], $13::text[]) WITH ORDINALITY AS s(client_id, before, event_type, ord)
         CROSS JOIN LATERAL ({}) AS c ORDER BY s.ord, c.id DESC",
        CandidateRow::list(),
        inner.replace("{columns}", columns).replace("{fits}", FITS)
    )
}

/// Candidates by the index over a text. Only the first column is compared with an array, so that the order by it is no
/// order by the id alone, which another index has; a second array would read all that is equal, and sort it.
fn found_by(column: &str, parameter: &str) -> String {
    let text = format!("e.{column} COLLATE \"C\"");
    candidates(&format!(
        "SELECT {{columns}} FROM {{ns}}.events e
         WHERE {text} = ANY (ARRAY[{parameter}::text]) AND {CLIENT} = s.client_id
           AND e.id < s.before AND e.id >= $4::bigint AND e.first_number IS NOT NULL AND e.{column} IS NOT NULL
         ORDER BY {text} DESC, {CLIENT} DESC, e.id DESC LIMIT $3::bigint"
    ))
}

/// The clients, at most `$2`, that have facts with the text `$1`: from one to the next along the index over it.
fn clients_of(column: &str) -> String {
    clients(
        &format!("e.{column} COLLATE \"C\" = ANY (ARRAY[$1::text]) AND e.{column} IS NOT NULL AND "),
        &format!("e.{column} COLLATE \"C\", "),
    )
}

/// The clients that have facts for which a condition holds, by an index that is ordered by `order` and then by client.
fn clients(condition: &str, order: &str) -> String {
    let next = |above: &str| {
        format!(
            "SELECT {CLIENT} AS client_id FROM {{ns}}.events e
             WHERE {condition}{CLIENT} > {above} AND e.first_number IS NOT NULL
             ORDER BY {order}{CLIENT} LIMIT 1"
        )
    };
    format!(
        "WITH RECURSIVE c(client_id) AS (
             ({}) UNION ALL SELECT ({}) FROM c AS b WHERE b.client_id IS NOT NULL
         )
         SELECT {} FROM c WHERE c.client_id IS NOT NULL LIMIT $2::bigint",
        next("-1"),
        next("b.client_id"),
        ClientRow::list()
    )
}

/// The live and ended entries of facts that have numbers in a range.
const TARGETS: &str = "
    SELECT {columns}
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS i(event_id, first, last, ord)
    CROSS JOIN LATERAL (
        (SELECT q.id, q.generation, q.queue_id, q.lane, q.place, q.group_key IS NOT NULL AS is_grouped, q.due_at,
                q.lease_until, q.processing_started_at, CASE WHEN q.flags & 8 <> 0 THEN q.exhausted_as END AS kept_as,
                NULL::timestamptz AS finished_at, NULL::smallint AS status, 0::smallint AS superseded, q.worker
         FROM {live} q WHERE q.id >= i.first AND q.id <= i.last AND i.event_id = q.event_id
         ORDER BY q.id LIMIT $4::bigint)
        UNION ALL
        (SELECT g.id, g.generation, g.queue_id, g.lane, NULL, false, NULL, NULL, g.processing_started_at, NULL,
                g.finished_at, g.status, g.superseded, g.worker
         FROM {log} g
         WHERE g.id >= i.first AND g.id <= i.last AND (g.id, g.generation) > (i.first, 0) AND i.event_id = g.event_id
           AND g.superseded + 0 <> 1
         ORDER BY g.id, g.generation LIMIT $4::bigint)
    ) AS r
    CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = r.queue_id OFFSET 0) AS n
    LEFT JOIN LATERAL (
        SELECT CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type
        FROM {lanes} l WHERE l.id = r.lane OFFSET 0
    ) AS l ON true
    ORDER BY i.ord, r.id, r.generation";

statements! {
    /// Statements about facts.
    pub(in crate::postgres) struct Finding {
        /// Facts by id (events' primary key).
        facts: (RangeRow, FactRow) = "
            SELECT {columns} FROM unnest($1::bigint[]) AS i(id)
            CROSS JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = i.id OFFSET 0) AS e";
        /// The entries of facts, live and ended, at most `$4` of each kind for each fact: those whose numbers are between
        /// `$2` and `$3` (primary keys).
        targets: TargetRow = TARGETS;
        /// Facts of clients with the publisher's id (events_external).
        of_external: CandidateRow = &found_by("external_id", "$9");
        /// Facts of clients with a correlation id (events_correlation).
        of_correlation: CandidateRow = &found_by("correlation_id", "$10");
        /// Facts of clients with a subject (events_subject).
        of_subject: CandidateRow = &found_by("subject", "$8");
        /// Facts of clients from a system (events_source).
        of_system: CandidateRow = &found_by("source", "$7");
        /// Facts of clients and types (events_type). The type is a range, so that the order by it is no order by client and
        /// id alone, which events_client has.
        of_type: CandidateRow = &candidates(&format!("
            SELECT {{columns}} FROM {{ns}}.events e
            WHERE {CLIENT} = ANY (ARRAY[s.client_id])
              AND e.event_type COLLATE \"C\" >= s.event_type AND e.event_type COLLATE \"C\" <= s.event_type
              AND e.id < s.before AND e.id >= $4::bigint AND e.first_number IS NOT NULL
            ORDER BY {CLIENT} DESC, e.event_type COLLATE \"C\" DESC, e.id DESC LIMIT $3::bigint"));
        /// Facts of clients (events_client).
        of_client: CandidateRow = &candidates(&format!("
            SELECT {{columns}} FROM {{ns}}.events e
            WHERE {CLIENT} = ANY (ARRAY[s.client_id]) AND e.id < s.before AND e.id >= $4::bigint
              AND e.first_number IS NOT NULL
            ORDER BY {CLIENT} DESC, e.id DESC LIMIT $3::bigint"));
        /// Facts of clients with the first of the terms (fact_terms' primary key, then events').
        of_term: CandidateRow = &candidates("
            SELECT f.id, coalesce(e.event_type, '') AS event_type, coalesce(e.size, 0) AS size,
                   coalesce(e.fits, false) AS fits
            FROM (SELECT f.event_id AS id FROM {ns}.fact_terms f
                  WHERE f.term = ($12::bytea[])[1] AND f.client_id = s.client_id
                    AND f.event_id < s.before AND f.event_id >= $4::bigint
                  ORDER BY f.event_id DESC LIMIT $3::bigint) AS f
            LEFT JOIN LATERAL (SELECT {columns} FROM {ns}.events e WHERE e.id = f.id OFFSET 0) AS e ON true");
        /// All facts, published ones too, which do not fit (events' primary key).
        everything: CandidateRow = &candidates("
            SELECT {columns} FROM {ns}.events e WHERE e.id < s.before AND e.id >= $4::bigint
            ORDER BY e.id DESC LIMIT $3::bigint");
        /// The next facts of a client (events_client).
        walk_client: WalkedRow = &format!("
            SELECT {{columns}} FROM {{ns}}.events e
            WHERE {CLIENT} = ANY (ARRAY[$4::bigint]) AND e.id > $1::bigint AND e.id < $2::bigint
              AND e.first_number IS NOT NULL
            ORDER BY {CLIENT}, e.id LIMIT $3::bigint");
        /// The next facts, published ones too (events' primary key).
        walk: WalkedRow = "
            SELECT {columns} FROM {ns}.events e WHERE e.id > $1::bigint AND e.id < $2::bigint
            ORDER BY e.id LIMIT $3::bigint";
        /// The clients of facts with the publisher's id (events_external).
        clients_of_external: ClientRow = &clients_of("external_id");
        /// The clients of facts with a correlation id (events_correlation).
        clients_of_correlation: ClientRow = &clients_of("correlation_id");
        /// The clients of facts with a subject (events_subject).
        clients_of_subject: ClientRow = &clients_of("subject");
        /// The clients of facts from a system (events_source).
        clients_of_system: ClientRow = &clients_of("source");
        /// The clients of facts (events_client).
        clients: ClientRow = &clients("", "").replace("$2::bigint", "$1::bigint");
        /// The clients of facts with a term (fact_terms' primary key).
        clients_of_term: ClientRow = "
            WITH RECURSIVE c(client_id) AS (
                (SELECT t.client_id FROM {ns}.fact_terms t WHERE t.term = ANY (ARRAY[$1::bytea]) AND t.client_id > -1
                 ORDER BY t.term, t.client_id LIMIT 1)
                UNION ALL
                SELECT (SELECT t.client_id FROM {ns}.fact_terms t
                        WHERE t.term = ANY (ARRAY[$1::bytea]) AND t.client_id > b.client_id
                        ORDER BY t.term, t.client_id LIMIT 1)
                FROM c AS b WHERE b.client_id IS NOT NULL
            )
            SELECT {columns} FROM c WHERE c.client_id IS NOT NULL LIMIT $2::bigint";
        /// The types of clients' facts that begin with `$2`, at most `$3` of each client (events_type).
        types: TypeRow = &format!("
            SELECT {{columns}} FROM unnest($1::bigint[]) AS c(client_id) CROSS JOIN LATERAL (
                WITH RECURSIVE t(event_type) AS (
                    (SELECT e.event_type COLLATE \"C\" FROM {{ns}}.events e
                     WHERE {CLIENT} = ANY (ARRAY[c.client_id]) AND e.event_type COLLATE \"C\" >= $2::text
                       AND e.first_number IS NOT NULL
                     ORDER BY {CLIENT}, e.event_type COLLATE \"C\" LIMIT 1)
                    UNION ALL
                    SELECT (SELECT e.event_type COLLATE \"C\" FROM {{ns}}.events e
                            WHERE {CLIENT} = ANY (ARRAY[c.client_id]) AND e.event_type COLLATE \"C\" > b.event_type
                              AND e.first_number IS NOT NULL
                            ORDER BY {CLIENT}, e.event_type COLLATE \"C\" LIMIT 1)
                    FROM t AS b WHERE starts_with(b.event_type, $2::text)
                )
                SELECT t.event_type FROM t WHERE starts_with(t.event_type, $2::text) LIMIT $3::bigint
            ) AS t");
    }
}
