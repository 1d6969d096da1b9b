//! Every statement of the SQLite store, with the index that serves it. `{ns}` is the namespace.

use super::claim::ROOM;

macro_rules! queries {
    ($($(#[doc = $doc:literal])* $name:ident = $sql:expr;)*) => {
        /// The statements under one namespace.
        #[derive(Debug)]
        pub(super) struct Sql {
            $($(#[doc = $doc])* pub(super) $name: Box<str>,)*
        }

        impl Sql {
            pub(super) fn new(namespace: &str) -> Self {
                Self { $($name: fill($sql, namespace),)* }
            }

            #[cfg(test)]
            pub(super) fn all(&self) -> Vec<(&'static str, &str)> {
                vec![$((stringify!($name), &*self.$name)),*]
            }
        }
    };
}

fn fill(sql: &str, namespace: &str) -> Box<str> {
    sql.replace("{ns}", namespace).replace("{room}", &ROOM.to_string()).into()
}

/// The columns of a fact, in the order in which `facts::read` takes them.
macro_rules! fact {
    () => {
        "e.client_id, e.event_type, e.payload, e.content_type, e.source, e.subject, e.time, e.external_id, \
         e.correlation_id, e.causation_id, e.attributes, e.created_at, e.title, e.description, e.tags, e.retry"
    };
}

/// The same where the fact may be missing: its type is then its lane's, and its moment the one that the event's id holds.
macro_rules! shown_fact {
    ($entry:literal) => {
        concat!(
            "e.client_id, coalesce(e.event_type, l.event_type, ''), coalesce(e.payload, x''), e.content_type, e.source, \
             e.subject, e.time, e.external_id, e.correlation_id, e.causation_id, e.attributes, \
             coalesce(e.created_at, ((",
            $entry,
            ".event_id >> 22) + 1577836800000) * 1000), e.title, e.description, e.tags, e.retry"
        )
    };
}

/// What a claim needs to know of a candidate.
macro_rules! candidate {
    () => {
        "q.id, q.event_id, q.generation, q.attempts, q.max_attempts, q.token, q.exhausted_as, q.group_key, \
         q.last_error, q.flags"
    };
}

/// The columns of an audit row, in the order in which `work::read_audit` takes them.
macro_rules! audit {
    () => {
        "id, entry_id, action, worker, generation, attempt, token, status_code, execution_time_ms, message, \
         next_retry_at, retry_count, max_retries, created_at, \
         coalesce((SELECT q.event_id FROM {ns}_event_queue q WHERE q.id = entry_id), \
                  (SELECT g.event_id FROM {ns}_event_log g WHERE g.id = entry_id LIMIT 1))"
    };
}

/// What a list shows of a fact, which may be missing.
macro_rules! summary {
    ($entry:literal) => {
        concat!(
            "coalesce(e.event_type, l.event_type, ''), e.title, e.tags, n.client_id, coalesce(e.created_at, ((",
            $entry,
            ".event_id >> 22) + 1577836800000) * 1000)"
        )
    };
}

/// What is shown of an API key.
macro_rules! api_key {
    () => {
        "id, name, scopes, client_id, created_at, last_used_at, revoked_at"
    };
}

/// The columns of a projection, in the order in which `projections::view` takes them.
macro_rules! projection {
    () => {
        "name, version, state, seq, events, reader, reader_until, failed_entry, failures, error, retry_at, updated_at"
    };
}

queries! {
    /// One row.
    catalogue = "SELECT generation, catalogue_stamp FROM {ns}_meta";
    /// Primary key. Whether a version with its stamp belongs to this database's history.
    catalogue_known = "SELECT 1 FROM {ns}_catalogue_history WHERE version = ?1 AND stamp = ?2";
    /// Indexes queues_version, lanes_version and catalogue_removed_version.
    catalogue_changes = "SELECT id FROM {ns}_queues INDEXED BY {ns}_queues_version WHERE version > ?1 \
         UNION ALL SELECT queue_id FROM {ns}_lanes INDEXED BY {ns}_lanes_version WHERE version > ?1 \
         UNION ALL SELECT queue_id FROM {ns}_catalogue_removed WHERE version > ?1";
    /// One row.
    heartbeat = "SELECT at FROM {ns}_heartbeat";
    /// One row each; the last event by its primary key, which rises with time.
    last_moment = "SELECT CAST(max(coalesce((SELECT at FROM {ns}_heartbeat), 0), \
         coalesce((SELECT created_at FROM {ns}_events WHERE id = (SELECT max(id) FROM {ns}_events)), 0)) AS INTEGER)";
    /// One row.
    beat = "UPDATE {ns}_heartbeat SET at = ?1";
    /// Appends; always rolled back.
    probe_room = "INSERT INTO {ns}_events (id, created_at, event_type, payload) VALUES (-1, 0, '', zeroblob(?1))";
    /// One row.
    probe_write = "UPDATE {ns}_sequence SET entry_id = entry_id";
    /// No row: a write transaction begins.
    begin_writing = "UPDATE {ns}_sequence SET entry_id = entry_id WHERE only_row = 0";
    /// One row.
    next_entry_id = "SELECT entry_id FROM {ns}_sequence";
    /// One row.
    save_entry_id = "UPDATE {ns}_sequence SET entry_id = ?1";
    /// One row.
    next_log_seq = "SELECT log_seq FROM {ns}_sequence";
    /// One row.
    save_log_seq = "UPDATE {ns}_sequence SET log_seq = ?1";

    /// Index queues_name.
    queue_by_name = "SELECT id, state, depth_limit, settings FROM {ns}_queues WHERE coalesce(client_id, 0) = coalesce(?2, 0) AND name = ?1";
    /// Index queues_name, whole: queues are few.
    queues = "SELECT name, state, depth_limit, settings, client_id FROM {ns}_queues ORDER BY coalesce(client_id, 0), name";
    /// Primary key.
    queue_name = "SELECT name, client_id FROM {ns}_queues WHERE id = ?1";
    /// Appends.
    insert_queue = "INSERT INTO {ns}_queues (name, state, depth_limit, created_at, settings, client_id) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    /// Primary key.
    update_queue = "UPDATE {ns}_queues SET state = ?2, depth_limit = ?3, settings = ?4 WHERE id = ?1";
    /// Index lanes_key.
    lanes_of_queue = "SELECT id, priority, event_type FROM {ns}_lanes WHERE queue_id = ?1 AND state = 0";
    /// Appends.
    insert_lane = "INSERT INTO {ns}_lanes (queue_id, priority, event_type, used_at) VALUES (?1, ?2, ?3, ?4)";

    /// Primary key.
    note_lane = "UPDATE {ns}_lanes SET used_at = ?2 WHERE id = ?1 AND used_at < ?3";
    /// Indexes lanes_idle, event_queue_fresh and event_queue_timed.
    idle_lanes = "SELECT l.id, l.queue_id FROM {ns}_lanes l INDEXED BY {ns}_lanes_idle \
         WHERE l.state = 0 AND l.used_at < ?1 \
         AND NOT EXISTS (SELECT 1 FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh WHERE q.lane = l.id AND q.place = 0) \
         AND NOT EXISTS (SELECT 1 FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_timed WHERE q.lane = l.id AND q.place = 1) \
         LIMIT ?2";
    /// Index event_queue_parked, up to a bound.
    parked_lanes = "SELECT lane FROM {ns}_event_queue INDEXED BY {ns}_event_queue_parked \
         WHERE queue_id = ?1 AND place >= 2 LIMIT ?2";
    /// Primary key. No event type begins with that character, so the key is free for another lane.
    remove_lane = "UPDATE {ns}_lanes SET state = 2, was_type = event_type, event_type = char(1) || id, \
         last_entry = (SELECT entry_id FROM {ns}_sequence) WHERE id = ?1";
    /// Index lanes_gone, then the ends of others: lanes that no entry was in any more and that no process can know.
    forget_lanes = "DELETE FROM {ns}_lanes WHERE id IN (SELECT id FROM {ns}_lanes INDEXED BY {ns}_lanes_gone \
         WHERE state = 2 AND version < (SELECT min(version) FROM {ns}_catalogue_history) \
         AND last_entry < coalesce((SELECT min(id) FROM {ns}_event_log), 9223372036854775807) \
         AND last_entry < coalesce((SELECT min(id) FROM {ns}_event_queue), 9223372036854775807) LIMIT ?1)";
    /// Index event_queue_fresh, from one lane that holds something to the next; the lanes' primary key.
    fresh_strays = "WITH RECURSIVE step(lane) AS (\
         SELECT min(lane) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_fresh WHERE place = 0 \
         UNION ALL SELECT (SELECT min(q.lane) FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh \
             WHERE q.place = 0 AND q.lane > step.lane) FROM step WHERE step.lane IS NOT NULL) \
         SELECT l.id, l.priority FROM step CROSS JOIN {ns}_lanes l ON l.id = step.lane WHERE l.state = 2";
    /// Index event_queue_timed, from one lane that holds something to the next; the lanes' primary key.
    timed_strays = "WITH RECURSIVE step(lane) AS (\
         SELECT min(lane) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_timed WHERE place = 1 \
         UNION ALL SELECT (SELECT min(q.lane) FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_timed \
             WHERE q.place = 1 AND q.lane > step.lane) FROM step WHERE step.lane IS NOT NULL) \
         SELECT l.id, l.priority FROM step CROSS JOIN {ns}_lanes l ON l.id = step.lane WHERE l.state = 2";
    /// Index event_queue_fresh.
    rescue_fresh = "UPDATE {ns}_event_queue INDEXED BY {ns}_event_queue_fresh SET place = 3, lane = ?2 \
         WHERE lane = ?1 AND place = 0 AND lease_until IS NULL";
    /// Index event_queue_timed.
    rescue_timed = "UPDATE {ns}_event_queue INDEXED BY {ns}_event_queue_timed SET place = 3, lane = ?2 \
         WHERE lane = ?1 AND place = 1 AND lease_until IS NULL";
    /// Primary keys.
    lane_of_entry = "SELECT l.state, l.priority FROM {ns}_event_queue q CROSS JOIN {ns}_lanes l ON l.id = q.lane WHERE q.id = ?1";
    /// Primary key.
    set_lane = "UPDATE {ns}_event_queue SET lane = ?2 WHERE id = ?1";

    /// Appends, save for clocks that were set back.
    insert_fact = "INSERT INTO {ns}_events (id, created_at, client_id, event_type, content_type, source, subject, time, \
         external_id, correlation_id, causation_id, attributes, payload, title, description, tags, retry) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";
    /// Appends; one entry in the index of its place.
    insert_entry = "INSERT INTO {ns}_event_queue (id, event_id, due_at, client_id, lane, queue_id, max_attempts, place, \
         exhausted_as, group_key, token, attempts, generation, room, flags) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 1, zeroblob({room}), ?11)";
    /// The facts' primary key, a run of neighbours just written; appends. An event's id ends with the entry's.
    insert_run = "INSERT INTO {ns}_event_queue (id, event_id, client_id, lane, queue_id, max_attempts, place, \
         exhausted_as, token, attempts, generation, room) \
         SELECT (e.id & 4194303) | ?3, e.id, ?8, ?4, ?5, ?6, 0, ?7, 0, 0, 1, zeroblob({room}) \
         FROM {ns}_events e WHERE e.id BETWEEN ?1 AND ?2";
    /// Appends: a fact without the rarer fields.
    insert_plain_fact = "INSERT INTO {ns}_events (id, created_at, event_type, payload) VALUES (?1, ?2, ?3, ?4)";
    /// Primary key.
    find_key = "SELECT entry_id, event_id, expires_at FROM {ns}_deduplication \
         WHERE client_id = ?1 AND kind = 0 AND scope = ?2 AND key = ?3";
    /// Primary key.
    put_key = "INSERT OR REPLACE INTO {ns}_deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at) \
         VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6)";
    /// Primary key.
    point_key = "UPDATE {ns}_deduplication SET event_id = ?4 WHERE client_id = ?1 AND kind = 0 AND scope = ?2 AND key = ?3";
    /// Primary key.
    fact_body = "SELECT event_type, payload, created_at FROM {ns}_events WHERE id = ?1";
    /// Primary key.
    replace_waiting = "UPDATE {ns}_event_queue SET event_id = ?2, updated_at = ?3, room = zeroblob({room} - 8), \
         flags = CASE WHEN ?4 THEN coalesce(flags, 0) | 1 ELSE nullif(flags & 2, 0) END \
         WHERE id = ?1 AND lease_until IS NULL";
    /// Primary key.
    delete_fact = "DELETE FROM {ns}_events WHERE id = ?1";
    /// Indexes event_queue_fresh, _timed and _parked, at most as many entries as the limit.
    count_queue = "SELECT count(*) FROM (\
         SELECT 1 FROM {ns}_lanes l JOIN {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh ON q.lane = l.id AND q.place = 0 \
         WHERE l.queue_id = ?1 AND l.state = 0 \
         UNION ALL \
         SELECT 1 FROM {ns}_lanes l JOIN {ns}_event_queue q INDEXED BY {ns}_event_queue_timed ON q.lane = l.id AND q.place = 1 \
         WHERE l.queue_id = ?1 AND l.state = 0 \
         UNION ALL \
         SELECT 1 FROM {ns}_event_queue INDEXED BY {ns}_event_queue_parked WHERE queue_id = ?1 AND place >= 2 \
         LIMIT ?2)";

    /// Index event_queue_fresh: the next lane that holds something.
    next_fresh_lane = "SELECT min(lane) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_fresh \
         WHERE place = 0 AND lane BETWEEN ?1 AND ?2";
    /// Index event_queue_timed: the next lane that holds something.
    next_timed_lane = "SELECT min(lane) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_timed \
         WHERE place = 1 AND lane BETWEEN ?1 AND ?2";
    /// Index event_queue_fresh, from the lane's mark on, and the facts' primary key; stepped only as far as needed.
    fresh = concat!("SELECT ", candidate!(), ", ", fact!(), " FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh \
         LEFT JOIN {ns}_events e ON e.id = q.event_id \
         WHERE q.lane = ?1 AND q.place = 0 AND q.id > ?3 AND (q.lease_until IS NULL OR q.lease_until <= ?2) ORDER BY q.id");
    /// Index event_queue_timed and the facts' primary key; stepped only as far as needed.
    timed = concat!("SELECT ", candidate!(), ", ", fact!(), " FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_timed \
         LEFT JOIN {ns}_events e ON e.id = q.event_id \
         WHERE q.lane = ?1 AND q.place = 1 AND q.due_at <= ?2 AND (q.lease_until IS NULL OR q.lease_until <= ?2) \
         ORDER BY q.due_at, q.id");
    /// Index event_queue_fresh, over what was claimed and what stood leased before it.
    leased_below = "SELECT max(id), min(lease_until) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_fresh \
         WHERE lane = ?1 AND place = 0 AND id > ?2 AND id <= ?3 AND lease_until > ?4";
    /// Primary key, a run of neighbours; no index knows a column that it changes, and the rows keep their length.
    take = "UPDATE {ns}_event_queue SET lease_until = ?3, processing_started_at = ?4, updated_at = ?4, \
         token = token + 1, attempts = attempts + 1, worker = ?5, room = zeroblob(?6) WHERE id BETWEEN ?1 AND ?2";
    /// The same for a claim that the audit keeps.
    take_audited = "UPDATE {ns}_event_queue SET lease_until = ?3, processing_started_at = ?4, updated_at = ?4, \
         token = token + 1, attempts = attempts + 1, worker = ?5, room = zeroblob(?6), flags = coalesce(flags, 0) | 2 \
         WHERE id BETWEEN ?1 AND ?2";

    /// Primary key, a run of neighbours; the log appends. All held under equal tokens, in no group.
    log_run = "INSERT INTO {ns}_event_log (seq, id, generation, event_id, finished_at, processing_started_at, token, \
         client_id, lane, queue_id, attempts, max_attempts, status, exhausted_as, superseded, worker, errors, results) \
         SELECT ?1 + (id - ?2) / ?7, id, generation, event_id, ?5, processing_started_at, token, \
         client_id, lane, queue_id, attempts, max_attempts, ?6, exhausted_as, 0, worker, \
         CASE WHEN ?6 <> 0 THEN last_error END, ?8 \
         FROM {ns}_event_queue WHERE id BETWEEN ?2 AND ?3 AND token = ?4 AND lease_until IS NOT NULL AND group_key IS NULL \
         AND flags IS NULL";
    /// Primary key, from its end: takes a run back that did not fit.
    unlog_run = "DELETE FROM {ns}_event_log WHERE seq >= ?1";
    /// Primary keys: keeps what a handler answered while the lease is held.
    record_handled = "INSERT OR REPLACE INTO {ns}_event_handler_states (entry_id, handler, generation, result, recorded_at) \
         SELECT id, ?3, generation, ?4, ?5 FROM {ns}_event_queue \
         WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL";
    /// Primary key.
    handled = "SELECT handler, result FROM {ns}_event_handler_states WHERE entry_id = ?1 ORDER BY handler";
    /// Index on (id, generation), and the queue's primary key: what was answered about other contents does not count.
    last_results = "SELECT CASE WHEN event_id = (SELECT q.event_id FROM {ns}_event_queue q WHERE q.id = ?1) THEN results END \
         FROM {ns}_event_log WHERE id = ?1 ORDER BY generation DESC LIMIT 1";
    /// Primary key.
    forget_answers = "DELETE FROM {ns}_event_handler_states WHERE entry_id = ?1";
    /// Primary keys, from the start.
    forget_handled = "DELETE FROM {ns}_event_handler_states WHERE (entry_id, handler) IN \
         (SELECT entry_id, handler FROM {ns}_event_handler_states \
          WHERE entry_id NOT IN (SELECT id FROM {ns}_event_queue) LIMIT ?1)";
    /// Primary key, a run of neighbours.
    delete_run = "DELETE FROM {ns}_event_queue WHERE id BETWEEN ?1 AND ?2";
    /// Primary key; the log appends. The usual end: held under this token, in no group.
    log_held = "INSERT INTO {ns}_event_log (seq, id, generation, event_id, finished_at, processing_started_at, token, \
         client_id, lane, queue_id, attempts, max_attempts, status, exhausted_as, superseded, worker, errors, results) \
         SELECT ?1, id, generation, event_id, ?4, processing_started_at, token, \
         client_id, lane, queue_id, attempts, max_attempts, ?5, exhausted_as, 0, worker, \
         coalesce(?6, CASE WHEN ?5 <> 0 THEN last_error END), ?7 \
         FROM {ns}_event_queue WHERE id = ?2 AND token = ?3 AND lease_until IS NOT NULL AND group_key IS NULL \
         AND flags IS NULL";
    /// Primary key; the log appends.
    log_any = "INSERT INTO {ns}_event_log (seq, id, generation, event_id, finished_at, processing_started_at, token, \
         client_id, lane, queue_id, attempts, max_attempts, status, exhausted_as, superseded, group_key, worker, errors, results, \
         flags) \
         SELECT ?1, id, generation, event_id, ?3, processing_started_at, token + ?4, \
         client_id, lane, queue_id, attempts, max_attempts, ?5, exhausted_as, 0, group_key, ?6, \
         coalesce(?7, CASE WHEN ?5 <> 0 THEN last_error END), ?8, flags \
         FROM {ns}_event_queue WHERE id = ?2";
    /// Primary key.
    delete_held = "DELETE FROM {ns}_event_queue WHERE id = ?1 AND lease_until IS NOT NULL";
    /// Primary key.
    delete_entry = "DELETE FROM {ns}_event_queue WHERE id = ?1";
    /// Primary key.
    live = "SELECT token, lease_until, queue_id, group_key, worker, flags, event_id, attempts, max_attempts, generation, \
         processing_started_at \
         FROM {ns}_event_queue WHERE id = ?1";
    /// Index event_log_key, from its end.
    last_log = "SELECT seq, generation, token, status, superseded, queue_id, group_key, flags, event_id FROM {ns}_event_log \
         WHERE id = ?1 ORDER BY generation DESC LIMIT 1";
    /// Primary key.
    extend = "UPDATE {ns}_event_queue SET lease_until = ?3, updated_at = ?4 \
         WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING flags";
    /// Primary key; stays in its index.
    requeue_now = "UPDATE {ns}_event_queue SET lease_until = NULL, worker = NULL, updated_at = ?3, attempts = attempts - ?4, \
         last_error = coalesce(?5, last_error), room = zeroblob({room} - 16) \
         WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING queue_id, flags";
    /// Primary key; moves to event_queue_timed.
    requeue_at = "UPDATE {ns}_event_queue SET lease_until = NULL, worker = NULL, updated_at = ?3, attempts = attempts - ?4, \
         last_error = coalesce(?5, last_error), place = 1, due_at = ?6, room = zeroblob({room} - 16) \
         WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING queue_id, flags";
    /// Indexes event_queue_group_head and event_queue_parked. An entry that arrived by plain SQL keeps its turn; while its
    /// lane is not known, the group waits until it is sorted in.
    promote = "UPDATE {ns}_event_queue SET place = 1, due_at = max(coalesce(due_at, ?3), ?3) \
         WHERE id = (SELECT id FROM {ns}_event_queue INDEXED BY {ns}_event_queue_parked \
                     WHERE queue_id = ?1 AND group_key = ?2 AND place >= 2 ORDER BY id LIMIT 1) \
         AND lane > 0 AND NOT EXISTS (SELECT 1 FROM {ns}_event_queue INDEXED BY {ns}_event_queue_group_head \
                         WHERE queue_id = ?1 AND group_key = ?2 AND group_key IS NOT NULL AND place < 2) \
         RETURNING id, flags";

    /// Primary key of the log; the queue's indexes take the entry back.
    redrive = "INSERT INTO {ns}_event_queue (id, event_id, due_at, token, client_id, lane, queue_id, attempts, \
         max_attempts, generation, place, exhausted_as, group_key, updated_at, room, flags) \
         SELECT id, event_id, ?2, token + ?3, client_id, lane, queue_id, 0, max_attempts, generation + 1, \
         CASE WHEN group_key IS NULL THEN 1 ELSE 2 END, exhausted_as, group_key, ?2, zeroblob({room} - 8), flags \
         FROM {ns}_event_log WHERE seq = ?1";
    /// Primary key.
    supersede = "UPDATE {ns}_event_log SET superseded = ?2 WHERE seq = ?1";
    /// Index event_log_dead_letters.
    dead_letters = "SELECT id FROM {ns}_event_log INDEXED BY {ns}_event_log_dead_letters \
         WHERE queue_id = ?1 AND status IN (1, 2) AND superseded = 0 AND id > ?2 ORDER BY id LIMIT ?3";
    /// Index event_log_dead_letters and the facts' primary key.
    dead_letters_of_type = "SELECT g.id FROM {ns}_event_log g INDEXED BY {ns}_event_log_dead_letters \
         CROSS JOIN {ns}_events e ON e.id = g.event_id \
         WHERE g.queue_id = ?1 AND g.status IN (1, 2) AND g.superseded = 0 AND g.id > ?2 AND e.event_type = ?4 \
         ORDER BY g.id LIMIT ?3";

    /// Primary keys.
    view_live = concat!("SELECT q.event_id, n.name, q.generation, q.attempts, q.max_attempts, q.token, \
         coalesce(l.priority, -1000 - q.lane), q.group_key, q.last_error, NULL, q.place, q.due_at, q.lease_until, \
         q.processing_started_at, q.worker, q.queue_id, coalesce(q.updated_at, e.created_at, 0), n.client_id, ", shown_fact!("q"), " \
         FROM {ns}_event_queue q JOIN {ns}_queues n ON n.id = q.queue_id LEFT JOIN {ns}_lanes l ON l.id = q.lane \
         LEFT JOIN {ns}_events e ON e.id = q.event_id WHERE q.id = ?1");
    /// Index event_log_key, from its end, then primary keys.
    view_ended = concat!("SELECT g.event_id, n.name, g.generation, g.attempts, g.max_attempts, g.token, \
         coalesce(l.priority, -1000 - g.lane), g.group_key, g.errors, g.results, g.status, g.finished_at, g.superseded, \
         NULL, g.worker, g.queue_id, g.finished_at, n.client_id, ", shown_fact!("g"), " \
         FROM {ns}_event_log g JOIN {ns}_queues n ON n.id = g.queue_id LEFT JOIN {ns}_lanes l ON l.id = g.lane \
         LEFT JOIN {ns}_events e ON e.id = g.event_id WHERE g.id = ?1 ORDER BY g.generation DESC LIMIT 1");
    /// Indexes event_queue_group_head and _parked: everybody of the group who goes before.
    ahead_in_group = "SELECT (SELECT count(*) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_group_head \
             WHERE queue_id = ?1 AND group_key = ?2 AND group_key IS NOT NULL AND place < 2 AND id <> ?3) + \
         (SELECT count(*) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_parked \
             WHERE queue_id = ?1 AND group_key = ?2 AND place >= 2 AND id < ?3)";
    /// Indexes event_queue_fresh and event_queue_timed, at most as many entries as are counted or skipped as leased.
    ahead_in_queue = "SELECT count(*) FROM (\
         SELECT 1 FROM {ns}_lanes l CROSS JOIN {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh \
         ON q.lane = l.id AND q.place = 0 \
         WHERE l.queue_id = ?1 AND l.state = 0 AND (l.priority < ?2 OR l.priority = ?2 AND q.id < ?3) \
         AND (q.lease_until IS NULL OR q.lease_until <= ?4) \
         UNION ALL \
         SELECT 1 FROM {ns}_lanes l CROSS JOIN {ns}_event_queue q INDEXED BY {ns}_event_queue_timed \
         ON q.lane = l.id AND q.place = 1 AND q.due_at <= ?4 \
         WHERE l.queue_id = ?1 AND l.state = 0 AND (l.priority < ?2 OR l.priority = ?2 AND q.id < ?3) \
         AND (q.lease_until IS NULL OR q.lease_until <= ?4) \
         LIMIT 1000)";
    /// The live table, whole: counting everything reads everything.
    depth = "SELECT \
         count(*) FILTER (WHERE lease_until IS NULL AND place < 2 AND (place = 0 OR due_at <= ?2)), \
         count(*) FILTER (WHERE lease_until IS NULL AND place = 1 AND due_at > ?2), \
         count(*) FILTER (WHERE place >= 2), \
         count(*) FILTER (WHERE lease_until IS NOT NULL) \
         FROM {ns}_event_queue WHERE queue_id = ?1";
    /// The live table, whole: counting everything reads everything.
    depths = "SELECT d.ready, d.delayed, d.parked, d.leased, n.name, n.client_id FROM {ns}_queues n LEFT JOIN (SELECT queue_id, \
         count(*) FILTER (WHERE lease_until IS NULL AND place < 2 AND (place = 0 OR due_at <= ?1)) AS ready, \
         count(*) FILTER (WHERE lease_until IS NULL AND place = 1 AND due_at > ?1) AS delayed, \
         count(*) FILTER (WHERE place >= 2) AS parked, \
         count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased \
         FROM {ns}_event_queue GROUP BY queue_id) d ON d.queue_id = n.id";
    /// Index event_queue_fresh, from one lane that holds something to the next.
    oldest_fresh = "WITH RECURSIVE step(lane) AS (\
         SELECT min(lane) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_fresh WHERE place = 0 \
         UNION ALL SELECT (SELECT min(q.lane) FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh \
             WHERE q.place = 0 AND q.lane > step.lane) FROM step WHERE step.lane IS NOT NULL) \
         SELECT l.queue_id, (SELECT ((q.event_id >> 22) + 1577836800000) * 1000 \
             FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_fresh WHERE q.lane = step.lane AND q.place = 0 \
             AND (q.lease_until IS NULL OR q.lease_until <= ?1) ORDER BY q.id LIMIT 1) \
         FROM step CROSS JOIN {ns}_lanes l ON l.id = step.lane";
    /// Index event_queue_timed, from one lane that holds something to the next.
    oldest_timed = "WITH RECURSIVE step(lane) AS (\
         SELECT min(lane) FROM {ns}_event_queue INDEXED BY {ns}_event_queue_timed WHERE place = 1 \
         UNION ALL SELECT (SELECT min(q.lane) FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_timed \
             WHERE q.place = 1 AND q.lane > step.lane) FROM step WHERE step.lane IS NOT NULL) \
         SELECT l.queue_id, (SELECT q.due_at FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_timed \
             WHERE q.lane = step.lane AND q.place = 1 AND q.due_at <= ?1 \
             AND (q.lease_until IS NULL OR q.lease_until <= ?1) ORDER BY q.due_at, q.id LIMIT 1) \
         FROM step CROSS JOIN {ns}_lanes l ON l.id = step.lane";
    /// The same index as its table's name, whole: queues are few.
    queue_ids = "SELECT id, name, client_id FROM {ns}_queues";
    /// All of it, once. An entry that ever ended has one log row of generation 1; one that lives again has a later one.
    census = "SELECT (SELECT count(*) FROM {ns}_events), \
         (SELECT count(*) FROM {ns}_event_queue WHERE lease_until IS NULL), \
         (SELECT count(*) FROM {ns}_event_queue WHERE lease_until IS NOT NULL), \
         (SELECT count(*) FROM {ns}_event_log INDEXED BY {ns}_event_log_key WHERE generation = 1) - \
         (SELECT count(*) FROM {ns}_event_queue WHERE generation > 1)";

    /// Primary key.
    consumer_seen = "INSERT OR REPLACE INTO {ns}_consumers (worker, queue_id, types, seen_at) VALUES (?1, ?2, ?3, ?4)";
    /// The whole table, which holds a day's consumers.
    consumers_since = "SELECT types FROM {ns}_consumers WHERE queue_id = ?1 AND seen_at >= ?2";
    /// The whole table, which holds a day's consumers.
    forget_consumers = "DELETE FROM {ns}_consumers WHERE seen_at < ?1";
    /// Index event_queue_arrived.
    any_arrived = "SELECT 1 FROM {ns}_event_queue INDEXED BY {ns}_event_queue_arrived WHERE place = 3 LIMIT 1";
    /// Index event_queue_arrived and the facts' primary key.
    arrived = "SELECT q.id, q.queue_id, q.lane, q.due_at, q.group_key, e.event_type, q.flags \
         FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_arrived LEFT JOIN {ns}_events e ON e.id = q.event_id \
         WHERE q.place = 3 ORDER BY q.id LIMIT ?1";
    /// Primary key; leaves event_queue_arrived for the index of its new place.
    sort_in = "UPDATE {ns}_event_queue SET lane = ?2, place = ?3, due_at = ?4 WHERE id = ?1";
    /// Primary key: takes or keeps the lease of a task.
    elect = "INSERT INTO {ns}_maintenance (task, holder, until) VALUES (?1, ?2, ?3) \
         ON CONFLICT (task) DO UPDATE SET holder = excluded.holder, until = excluded.until \
         WHERE holder = excluded.holder OR until <= ?4";
    /// The whole table, which has a row per task.
    resign = "DELETE FROM {ns}_maintenance WHERE holder = ?1";
    /// Index deduplication_expiry.
    forget_keys = "DELETE FROM {ns}_deduplication WHERE (client_id, kind, scope, key) IN \
         (SELECT client_id, kind, scope, key FROM {ns}_deduplication INDEXED BY {ns}_deduplication_expiry \
          WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
    /// The live table, whole: only after an outage.
    move_leases = "UPDATE {ns}_event_queue SET lease_until = lease_until + ?2 WHERE lease_until > ?1";

    /// Primary key.
    projection = concat!("SELECT ", projection!(), " FROM {ns}_projections WHERE name = ?1 AND version = ?2");
    /// Primary key, all versions of a name.
    active_projection = concat!("SELECT ", projection!(), " FROM {ns}_projections WHERE name = ?1 AND state = 1");
    /// Primary key, whole: projections are few.
    projections = concat!("SELECT ", projection!(), " FROM {ns}_projections ORDER BY name, version");
    /// Primary key, all versions of a name. The first is active at once; none is made below the active one.
    register_projection = "INSERT OR IGNORE INTO {ns}_projections (name, version, state, created_at, updated_at) \
         SELECT ?1, ?2, NOT EXISTS (SELECT 1 FROM {ns}_projections WHERE name = ?1 AND state < 2), ?3, ?3 \
         WHERE NOT EXISTS (SELECT 1 FROM {ns}_projections WHERE name = ?1 AND state = 1 AND version >= ?2)";
    /// Primary key. One who asks again keeps what he has.
    take_projection = "UPDATE {ns}_projections SET reader = ?3, reader_until = ?4, token = token + 1, updated_at = ?5 \
         WHERE name = ?1 AND version = ?2 AND state < 2 AND (reader IS NULL OR reader = ?3 OR reader_until <= ?5) \
         RETURNING token, seq, state";
    /// Primary key.
    keep_projection = "UPDATE {ns}_projections SET reader_until = ?4 \
         WHERE name = ?1 AND version = ?2 AND token = ?3 AND state < 2 AND reader IS NOT NULL";
    /// Primary key.
    leave_projection = "UPDATE {ns}_projections SET reader = NULL, reader_until = NULL, updated_at = ?4 \
         WHERE name = ?1 AND version = ?2 AND token = ?3";
    /// The log's primary key, in its order; the facts' primary key for each.
    read_log = concat!("SELECT g.seq, g.id, g.generation, g.event_id, g.status, g.finished_at, ", fact!(),
         " FROM {ns}_event_log g LEFT JOIN {ns}_events e ON e.id = g.event_id WHERE g.seq > ?1 ORDER BY g.seq LIMIT ?2");
    /// Primary key.
    advance_projection = "UPDATE {ns}_projections SET seq = ?5, events = events + ?6, reader_until = ?7, updated_at = ?8, \
         failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL \
         WHERE name = ?1 AND version = ?2 AND token = ?3 AND seq = ?4 AND state < 2";
    /// Primary key.
    fail_projection = "UPDATE {ns}_projections SET \
         failures = CASE WHEN failed_entry IS ?4 THEN failures + 1 ELSE 1 END, failed_entry = ?4, error = ?5, retry_at = ?6, \
         reader_until = ?7, updated_at = ?8 WHERE name = ?1 AND version = ?2 AND token = ?3 AND state < 2";
    /// Primary key.
    activate_projection = "UPDATE {ns}_projections SET state = 1, updated_at = ?4, \
         failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL \
         WHERE name = ?1 AND version = ?2 AND token = ?3 AND state < 2";
    /// Primary key, all versions of a name. Their readers are fenced.
    remove_projection = "UPDATE {ns}_projections SET state = 2, token = token + 1, reader = NULL, reader_until = NULL, \
         failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = ?2 WHERE name = ?1";
    /// Primary key, all versions of a name. Their readers are fenced.
    retire_projections = "UPDATE {ns}_projections SET state = 2, token = token + 1, reader = NULL, reader_until = NULL, \
         failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = ?3 \
         WHERE name = ?1 AND version < ?2 AND state < 2";
    /// Primary key.
    put_document = "INSERT INTO {ns}_projection_documents (projection, version, key, document) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (projection, version, key) DO UPDATE SET document = excluded.document";
    /// Primary key.
    change_document = "UPDATE {ns}_projection_documents SET document = ?4 \
         WHERE projection = ?1 AND version = ?2 AND key = ?3";
    /// Primary key.
    remove_document = "DELETE FROM {ns}_projection_documents WHERE projection = ?1 AND version = ?2 AND key = ?3";
    /// Primary key.
    document = "SELECT document FROM {ns}_projection_documents WHERE projection = ?1 AND version = ?2 AND key = ?3";
    /// Primary key, from the prefix or the last key on.
    list_documents = "SELECT key, document FROM {ns}_projection_documents WHERE projection = ?1 AND version = ?2 \
         AND key >= ?6 AND substr(key, 1, length(?3)) = ?3 AND (?4 IS NULL OR key > ?4) ORDER BY key LIMIT ?5";
    /// Primary keys, per retired version.
    sweep_documents = "DELETE FROM {ns}_projection_documents WHERE (projection, version, key) IN (\
         SELECT d.projection, d.version, d.key FROM {ns}_projections p \
         JOIN {ns}_projection_documents d ON d.projection = p.name AND d.version = p.version \
         WHERE p.name = ?1 AND p.state = 2 LIMIT ?2)";
    /// Primary keys.
    sweep_projections = "DELETE FROM {ns}_projections WHERE name = ?1 AND state = 2 AND NOT EXISTS (\
         SELECT 1 FROM {ns}_projection_documents d \
         WHERE d.projection = {ns}_projections.name AND d.version = {ns}_projections.version)";
    /// The log's primary key.
    unread = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_log WHERE seq > ?1 LIMIT ?2)";
    /// The log's primary key.
    first_unread = "SELECT finished_at FROM {ns}_event_log WHERE seq > ?1 ORDER BY seq LIMIT 1";
    /// Index event_log_key; the queue's primary key.
    logged_at = "SELECT seq FROM {ns}_event_log WHERE id = ?1 \
         AND NOT EXISTS (SELECT 1 FROM {ns}_event_queue q WHERE q.id = ?1) ORDER BY generation DESC LIMIT 1";
    /// The live tags, whole: only after an outage.
    move_tag_leases = "UPDATE {ns}_event_tags SET rank = rank + ?2 WHERE state = 3 AND rank > ?1";

    /// Primary key.
    find_request = "SELECT entry_id, event_id, expires_at, fingerprint FROM {ns}_deduplication \
         WHERE client_id = ?1 AND kind = 1 AND scope = 0 AND key = ?2";
    /// Primary key.
    put_request = "INSERT OR REPLACE INTO {ns}_deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at, \
         fingerprint) VALUES (?1, 1, 0, ?2, ?3, ?4, ?5, ?6)";
    /// Primary key.
    tags_of_fact = "SELECT tags FROM {ns}_events WHERE id = ?1";
    /// Primary key.
    retry_of_fact = "SELECT retry FROM {ns}_events WHERE id = ?1";
    /// Primary key.
    attributes_of_fact = "SELECT attributes FROM {ns}_events WHERE id = ?1";
    /// Primary keys.
    where_is = "SELECT q.event_id, q.queue_id, q.place, q.due_at, q.lease_until, coalesce(l.priority, -1000 - q.lane), \
         q.client_id \
         FROM {ns}_event_queue q LEFT JOIN {ns}_lanes l ON l.id = q.lane WHERE q.id = ?1";
    /// Primary key and event_tags_rank.
    put_tag = "INSERT OR REPLACE INTO {ns}_event_tags (tag, entry_id, queue_id, state, priority, rank, client_id) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    /// Primary key; moves in event_tags_rank.
    move_tag = "UPDATE {ns}_event_tags SET state = ?3, rank = ?4 WHERE tag = ?1 AND entry_id = ?2";
    /// Primary key.
    delete_tag = "DELETE FROM {ns}_event_tags WHERE tag = ?1 AND entry_id = ?2";
    /// The live tags, whole: only for an entry whose fact, and with it its tags, is missing.
    forget_tags = "DELETE FROM {ns}_event_tags WHERE entry_id = ?1";
    /// Primary key.
    put_log_tag = "INSERT OR REPLACE INTO {ns}_log_tags (tag, status, entry_id, client_id) VALUES (?1, ?2, ?3, ?4)";
    /// Primary key.
    client_of_queue = "SELECT client_id FROM {ns}_queues WHERE id = ?1";
    /// Primary key.
    delete_log_tag = "DELETE FROM {ns}_log_tags WHERE tag = ?1 AND status = ?2 AND entry_id = ?3";
    /// Index event_tags_rank, then primary keys; stepped only as far as needed.
    tagged = concat!("SELECT ", candidate!(), ", ", fact!(), " FROM {ns}_event_tags t INDEXED BY {ns}_event_tags_rank \
         CROSS JOIN {ns}_event_queue q ON q.id = t.entry_id LEFT JOIN {ns}_events e ON e.id = q.event_id \
         WHERE t.queue_id = ?1 AND t.tag = ?2 AND t.state = ?3 AND t.priority = ?4 AND t.rank <= ?5 \
         AND q.place < 2 AND (q.place = 0 OR q.due_at <= ?6) AND (q.lease_until IS NULL OR q.lease_until <= ?6) \
         ORDER BY t.rank, t.entry_id");
    /// Index event_tags_rank.
    probe_tag = "SELECT 1 FROM {ns}_event_tags INDEXED BY {ns}_event_tags_rank \
         WHERE queue_id = ?1 AND tag = ?2 AND state = ?3 AND priority = ?4 AND rank <= ?5 LIMIT 1";
    /// Appends.
    add_audit = "INSERT INTO {ns}_event_audit (entry_id, action, worker, generation, attempt, token, status_code, \
         execution_time_ms, message, next_retry_at, retry_count, max_retries, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
    /// Index event_audit_entry, from its end; appends. The last thing known is that somebody else holds it.
    add_abandoned = "INSERT INTO {ns}_event_audit (entry_id, action, worker, generation, attempt, token, created_at) \
         SELECT entry_id, ?4, worker, generation, attempt, token, ?3 FROM {ns}_event_audit \
         WHERE id = (SELECT id FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry WHERE entry_id = ?1 \
                     ORDER BY id DESC LIMIT 1) \
         AND action IN (0, 1) AND token < ?2";
    /// The same for one that is given back.
    add_released = "INSERT INTO {ns}_event_audit (entry_id, action, worker, generation, attempt, token, message, created_at) \
         SELECT entry_id, ?4, worker, generation, attempt, token, ?5, ?3 FROM {ns}_event_audit \
         WHERE id = (SELECT id FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry WHERE entry_id = ?1 \
                     ORDER BY id DESC LIMIT 1) \
         AND action IN (0, 1) AND token = ?2";
    /// Index event_audit_entry.
    audit = concat!("SELECT ", audit!(), " FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry \
         WHERE entry_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
    /// Index event_audit_entry, from its end.
    last_verdict = concat!("SELECT ", audit!(), " FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry \
         WHERE entry_id = ?1 AND worker = ?2 AND (?3 IS NULL OR token = ?3) AND action IN (2, 3) ORDER BY id DESC LIMIT 1");
    /// Index on the entry and the row's number.
    claimed_for = "SELECT execution_time_ms FROM {ns}_event_audit WHERE entry_id = ?1 AND token = ?2 AND action = 0 \
         ORDER BY id DESC LIMIT 1";
    /// Index event_audit_entry, from its end.
    last_start = concat!("SELECT ", audit!(), " FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry \
         WHERE entry_id = ?1 AND worker = ?2 AND token = ?3 AND action = 1 ORDER BY id DESC LIMIT 1");
    /// Primary key; index event_log_key.
    event_of = "SELECT coalesce((SELECT event_id FROM {ns}_event_queue WHERE id = ?1), \
         (SELECT event_id FROM {ns}_event_log WHERE id = ?1 LIMIT 1))";
    /// Primary key.
    touch = "UPDATE {ns}_event_queue SET updated_at = ?2 WHERE id = ?1";
    /// Primary key; moves to event_queue_timed.
    reset = "UPDATE {ns}_event_queue SET lease_until = NULL, worker = NULL, updated_at = ?2, attempts = attempts - 1, \
         token = token + 1, place = 1, due_at = ?2, room = zeroblob({room} - 16) \
         WHERE id = ?1 AND lease_until IS NOT NULL";

    /// One row.
    log_counts = "SELECT seq, counts FROM {ns}_log_counts";
    /// One row.
    save_log_counts = "UPDATE {ns}_log_counts SET seq = ?2, counts = ?3 WHERE seq = ?1";
    /// Primary key of the log, from where the counts stop.
    log_tail = "SELECT coalesce(max(seq), ?1), coalesce(sum(status = 0), 0), coalesce(sum(status = 1), 0), \
         coalesce(sum(status = 2), 0), coalesce(sum(status = 3), 0) \
         FROM (SELECT seq, status FROM {ns}_event_log WHERE seq > ?1 ORDER BY seq LIMIT ?2)";
    /// Primary keys, from where the counts stop.
    tagged_tail = "SELECT g.status, e.tags, g.client_id FROM {ns}_event_log g CROSS JOIN {ns}_events e ON e.id = g.event_id \
         WHERE g.seq > ?1 AND g.seq <= ?2 AND g.flags & 1";
    /// Primary key, from where the counts stop.
    client_tail = "SELECT client_id, status, count(*) FROM (\
         SELECT client_id, status FROM {ns}_event_log WHERE seq > ?1 AND seq <= ?2) \
         WHERE client_id IS NOT NULL AND (?3 IS NULL OR client_id = ?3) GROUP BY client_id, status";
    /// Primary key.
    count_client = "INSERT INTO {ns}_client_counts (client_id, tag, status, rows) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (client_id, tag, status) DO UPDATE SET rows = rows + excluded.rows";
    /// Primary key.
    client_count = "SELECT rows FROM {ns}_client_counts WHERE client_id = ?1 AND tag = ?2 AND status = ?3";
    /// Primary key.
    drop_empty_client_count = "DELETE FROM {ns}_client_counts WHERE client_id = ?1 AND tag = ?2 AND status = ?3 AND rows <= 0";
    /// Primary key.
    count_tag = "INSERT INTO {ns}_tag_counts (tag, status, rows) VALUES (?1, ?2, ?3) \
         ON CONFLICT (tag, status) DO UPDATE SET rows = rows + excluded.rows";
    /// Primary key.
    tag_count = "SELECT rows FROM {ns}_tag_counts WHERE tag = ?1 AND status = ?2";
    /// Index event_log_superseded.
    count_superseded = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_log INDEXED BY {ns}_event_log_superseded \
         WHERE superseded = 1 AND status = ?1 LIMIT ?2)";
    /// Index event_log_redriven.
    count_redriven = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_log INDEXED BY {ns}_event_log_redriven \
         WHERE client_id = ?3 AND superseded = 1 AND status = ?1 LIMIT ?2)";
    /// Index event_log_superseded, then primary keys.
    count_superseded_tag = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_log g INDEXED BY {ns}_event_log_superseded \
         CROSS JOIN {ns}_events e ON e.id = g.event_id \
         WHERE g.superseded = 1 AND g.status = ?1 AND g.flags & 1 AND instr(',' || e.tags || ',', ',' || ?3 || ',') > 0 LIMIT ?2)";
    /// Index event_log_redriven, then primary keys.
    count_redriven_tag = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_log g INDEXED BY {ns}_event_log_redriven \
         CROSS JOIN {ns}_events e ON e.id = g.event_id \
         WHERE g.client_id = ?4 AND g.superseded = 1 AND g.status = ?1 AND g.flags & 1 \
         AND instr(',' || e.tags || ',', ',' || ?3 || ',') > 0 LIMIT ?2)";
    /// The live table, up to a bound: how many rows, and how many of them are held.
    count_live = "SELECT count(*), coalesce(sum(lease_until IS NOT NULL), 0) \
         FROM (SELECT CASE WHEN ?2 THEN lease_until END AS lease_until FROM {ns}_event_queue LIMIT ?1)";
    /// Index event_queue_client.
    count_live_client = "SELECT count(*), coalesce(sum(lease_until IS NOT NULL), 0) \
         FROM (SELECT CASE WHEN ?2 THEN lease_until END AS lease_until \
               FROM {ns}_event_queue INDEXED BY {ns}_event_queue_client WHERE client_id = ?3 LIMIT ?1)";
    /// Primary key.
    count_live_tag = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_tags WHERE tag = ?2 LIMIT ?1)";
    /// Index event_tags_client.
    count_live_tag_client = "SELECT count(*) FROM (SELECT 1 FROM {ns}_event_tags INDEXED BY {ns}_event_tags_client \
         WHERE client_id = ?3 AND tag = ?2 LIMIT ?1)";
    /// Index event_tags_rank, one walk per queue.
    count_held_tag = "SELECT count(*) FROM (SELECT 1 FROM {ns}_queues n \
         CROSS JOIN {ns}_event_tags t INDEXED BY {ns}_event_tags_rank ON t.queue_id = n.id \
         WHERE t.tag = ?2 AND t.state = 3 AND (?3 IS NULL OR n.client_id = ?3) LIMIT ?1)";

    // Lists: numbers below ?1, youngest first, at most ?2. ?3 is the live part (`LivePart`) or how entries ended.

    /// Primary key.
    list_live = "SELECT id FROM {ns}_event_queue WHERE id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3)) ORDER BY id DESC LIMIT ?2";
    /// Index event_log_key.
    list_log = "SELECT id FROM {ns}_event_log INDEXED BY {ns}_event_log_key WHERE id < ?1 AND superseded <> 1 \
         ORDER BY id DESC LIMIT ?2";
    /// Index event_log_ends.
    list_ended = "SELECT id FROM {ns}_event_log INDEXED BY {ns}_event_log_ends \
         WHERE status = ?3 AND status > 0 AND superseded <> 1 AND id < ?1 ORDER BY id DESC LIMIT ?2";
    /// Index event_queue_client.
    list_live_client = "SELECT id FROM {ns}_event_queue INDEXED BY {ns}_event_queue_client \
         WHERE client_id = ?4 AND id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3)) ORDER BY id DESC LIMIT ?2";
    /// Index event_log_client.
    list_log_client = "SELECT id FROM {ns}_event_log INDEXED BY {ns}_event_log_client \
         WHERE client_id = ?4 AND status = ?3 AND superseded <> 1 AND id < ?1 ORDER BY id DESC LIMIT ?2";
    /// Index event_queue_fresh.
    list_fresh = "SELECT id FROM {ns}_event_queue INDEXED BY {ns}_event_queue_fresh \
         WHERE lane = ?4 AND place = 0 AND id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3)) ORDER BY id DESC LIMIT ?2";
    /// Index event_queue_waiting.
    list_waiting = "SELECT id FROM {ns}_event_queue INDEXED BY {ns}_event_queue_waiting \
         WHERE lane = ?4 AND place IN (1, 2) AND id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3)) ORDER BY id DESC LIMIT ?2";
    /// Index event_queue_arrived, then primary keys.
    list_arrived = "SELECT q.id FROM {ns}_event_queue q INDEXED BY {ns}_event_queue_arrived \
         WHERE q.place = 3 AND q.id < ?1 AND (?3 = 1 OR (lease_until IS NOT NULL) = (?3 = 3)) AND (?4 IS NULL OR q.client_id = ?4) \
         AND (?5 IS NULL OR EXISTS (SELECT 1 FROM {ns}_queues n WHERE n.id = q.queue_id AND n.name = ?5 \
                                    AND coalesce(n.client_id, 0) = coalesce(?6, 0))) \
         AND (?7 IS NULL OR (SELECT e.event_type FROM {ns}_events e WHERE e.id = q.event_id) = ?7) \
         ORDER BY q.id DESC LIMIT ?2";
    /// Primary key: the stretches in which a lane has entries that ended one way.
    lane_stretches = "SELECT stretch FROM {ns}_log_lanes WHERE lane = ?4 AND status = ?3 AND stretch <= ?1 \
         ORDER BY stretch DESC LIMIT ?2";
    /// Primary key: those of a worker.
    worker_stretches = "SELECT stretch FROM {ns}_log_workers WHERE client_id = ?5 AND worker = ?4 AND status = ?3 AND stretch <= ?1 \
         ORDER BY stretch DESC LIMIT ?2";
    /// Index event_log_key: what ended in a stretch.
    list_stretch = "SELECT id, status, lane, worker, client_id FROM {ns}_event_log INDEXED BY {ns}_event_log_key \
         WHERE id >= ?1 AND id < ?2 AND superseded <> 1";
    /// Primary key: what ended since the counts stop.
    list_since = "SELECT id, status, lane, worker, client_id FROM {ns}_event_log WHERE seq > ?1 AND superseded <> 1";
    /// Primary keys.
    add_lane_stretch = "INSERT OR IGNORE INTO {ns}_log_lanes (lane, status, stretch) VALUES (?1, ?2, ?3)";
    add_worker_stretch = "INSERT OR IGNORE INTO {ns}_log_workers (client_id, worker, status, stretch) VALUES (?1, ?2, ?3, ?4)";
    /// Indexes log_lanes_stretch and log_workers_stretch.
    lanes_in_stretch = "SELECT lane, status FROM {ns}_log_lanes WHERE stretch = ?1";
    workers_in_stretch = "SELECT client_id, worker, status FROM {ns}_log_workers WHERE stretch = ?1";
    /// Primary keys.
    forget_lane_stretch = "DELETE FROM {ns}_log_lanes WHERE lane = ?1 AND status = ?2 AND stretch = ?3";
    forget_worker_stretch = "DELETE FROM {ns}_log_workers WHERE client_id = ?1 AND worker = ?2 AND status = ?3 AND stretch = ?4";
    /// Index event_log_key: everything that is left of a stretch.
    left_in_stretch = "SELECT id >> ?3, status, lane, worker, client_id FROM {ns}_event_log INDEXED BY {ns}_event_log_key \
         WHERE id >= ?1 AND id < ?2";
    /// Primary key, from where the counts stop.
    stretches_tail = "SELECT id >> ?3, status, lane, worker, client_id FROM {ns}_event_log WHERE seq > ?1 AND seq <= ?2";
    /// Primary key.
    list_tag = "SELECT entry_id FROM {ns}_event_tags WHERE tag = ?4 AND entry_id < ?1 AND (?3 = 1 OR state <> 3) \
         ORDER BY entry_id DESC LIMIT ?2";
    /// Index event_tags_client.
    list_tag_client = "SELECT entry_id FROM {ns}_event_tags INDEXED BY {ns}_event_tags_client \
         WHERE client_id = ?5 AND tag = ?4 AND entry_id < ?1 AND (?3 = 1 OR state <> 3) ORDER BY entry_id DESC LIMIT ?2";
    /// Index event_tags_rank, in each queue.
    list_tag_held = "SELECT t.entry_id FROM {ns}_queues n CROSS JOIN {ns}_event_tags t INDEXED BY {ns}_event_tags_rank \
         ON t.queue_id = n.id WHERE t.tag = ?4 AND t.state = ?3 AND t.entry_id < ?1 AND (?5 IS NULL OR n.client_id = ?5) \
         ORDER BY t.entry_id DESC LIMIT ?2";
    /// Primary key.
    list_log_tag = "SELECT entry_id FROM {ns}_log_tags WHERE tag = ?4 AND status = ?3 AND entry_id < ?1 \
         ORDER BY entry_id DESC LIMIT ?2";
    /// Index log_tags_client.
    list_log_tag_client = "SELECT entry_id FROM {ns}_log_tags INDEXED BY {ns}_log_tags_client \
         WHERE client_id = ?5 AND tag = ?4 AND status = ?3 AND entry_id < ?1 ORDER BY entry_id DESC LIMIT ?2";
    /// Primary key: held entries are found by walking over those that wait.
    list_worker_live = "SELECT id FROM {ns}_event_queue \
         WHERE id < ?1 AND lease_until IS NOT NULL AND worker = ?4 AND ?3 IN (1, 3) ORDER BY id DESC LIMIT ?2";
    /// Index event_queue_client.
    list_worker_live_client = "SELECT id FROM {ns}_event_queue INDEXED BY {ns}_event_queue_client \
         WHERE client_id = ?5 AND id < ?1 AND lease_until IS NOT NULL AND worker = ?4 AND ?3 IN (1, 3) \
         ORDER BY id DESC LIMIT ?2";
    /// The queues, whole, and index lanes_key: the lanes of a client, a queue and a type, as far as each is given, and whether
    /// a lane holds other types too.
    lanes_of = "SELECT l.id, ?4 IS NOT NULL AND CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END IS NULL \
         FROM {ns}_queues n CROSS JOIN {ns}_lanes l ON l.queue_id = n.id \
         WHERE (?1 IS NULL OR n.client_id = ?1) \
         AND (?2 IS NULL OR n.name = ?2 AND coalesce(n.client_id, 0) = coalesce(?3, 0)) \
         AND (?4 IS NULL OR CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END IS NULL \
              OR CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END = ?4) LIMIT ?5";
    /// Index event_log_unsorted: lanes below zero, from one to the next. What ended before it was sorted in has such a one,
    /// whatever its queue.
    next_lane_below = "SELECT min(lane) FROM {ns}_event_log INDEXED BY {ns}_event_log_unsorted \
         WHERE lane > ?1 AND lane < 0 AND superseded <> 1";
    /// The ends of the primary key and of event_log_key.
    last_number = "SELECT max(coalesce((SELECT max(id) FROM {ns}_event_queue), 0), \
         coalesce((SELECT max(id) FROM {ns}_event_log), 0))";
    /// Primary keys and event_log_key: when the first entry at or above a number was published.
    moment_from = "SELECT coalesce((SELECT e.created_at FROM {ns}_events e WHERE e.id = c.event_id), \
         ((c.event_id >> 22) + 1577836800000) * 1000) FROM (\
         SELECT * FROM (SELECT id, event_id FROM {ns}_event_queue WHERE id >= ?1 ORDER BY id LIMIT 1) UNION ALL \
         SELECT * FROM (SELECT id, event_id FROM {ns}_event_log INDEXED BY {ns}_event_log_key WHERE id >= ?1 ORDER BY id LIMIT 1)\
         ) AS c ORDER BY c.id LIMIT 1";

    /// Primary keys.
    summary_live = concat!("SELECT q.event_id, n.name, q.attempts, q.max_attempts, coalesce(l.priority, -1000 - q.lane), \
         q.group_key, q.worker, coalesce(q.updated_at, e.created_at, 0), q.lease_until, q.due_at, ", summary!("q"), " \
         FROM {ns}_event_queue q JOIN {ns}_queues n ON n.id = q.queue_id LEFT JOIN {ns}_lanes l ON l.id = q.lane \
         LEFT JOIN {ns}_events e ON e.id = q.event_id WHERE q.id = ?1");
    /// Index event_log_key, from its end, then primary keys.
    summary_ended = concat!("SELECT g.event_id, n.name, g.attempts, g.max_attempts, coalesce(l.priority, -1000 - g.lane), \
         g.group_key, g.worker, g.finished_at, g.status, NULL, ", summary!("g"), " \
         FROM {ns}_event_log g JOIN {ns}_queues n ON n.id = g.queue_id LEFT JOIN {ns}_lanes l ON l.id = g.lane \
         LEFT JOIN {ns}_events e ON e.id = g.event_id WHERE g.id = ?1 ORDER BY g.generation DESC LIMIT 1");
    /// The whole table, which holds a day's consumers.
    all_consumers = "SELECT c.worker, n.name, c.seen_at, n.client_id FROM {ns}_consumers c \
         JOIN {ns}_queues n ON n.id = c.queue_id WHERE ?1 IS NULL OR n.client_id = ?1";
    /// The live table, whole: the worker list is asked for by people.
    all_held = "SELECT q.worker, n.name, q.id, coalesce(q.updated_at, q.processing_started_at, q.lease_until), n.client_id \
         FROM {ns}_event_queue q JOIN {ns}_queues n ON n.id = q.queue_id \
         WHERE q.lease_until IS NOT NULL AND (?1 IS NULL OR n.client_id = ?1)";

    /// Primary key, from its start.
    forget_audit = "DELETE FROM {ns}_event_audit WHERE id IN \
         (SELECT id FROM (SELECT id, created_at FROM {ns}_event_audit ORDER BY id LIMIT ?2) WHERE created_at < ?1)";
    /// Index event_log_key, from where the last batch stopped.
    old_entries = "SELECT id, max(generation), event_id, min(seq), max(seq), max(finished_at), max(flags), client_id \
         FROM {ns}_event_log INDEXED BY {ns}_event_log_key WHERE id > ?1 GROUP BY id ORDER BY id LIMIT ?2";
    /// Index event_log_key.
    old_entry = "SELECT id, max(generation), event_id, min(seq), max(seq), max(finished_at), max(flags), client_id \
         FROM {ns}_event_log INDEXED BY {ns}_event_log_key WHERE id = ?1 GROUP BY id";
    /// Index event_log_key.
    log_rows_of = "SELECT seq, status, superseded FROM {ns}_event_log INDEXED BY {ns}_event_log_key WHERE id = ?1";
    /// Index event_log_key.
    forget_log = "DELETE FROM {ns}_event_log WHERE id = ?1";
    /// The whole table, which is small.
    projections_at = "SELECT min(seq) FROM {ns}_projections WHERE state < 2";
    /// Primary key.
    drop_empty_count = "DELETE FROM {ns}_tag_counts WHERE tag = ?1 AND status = ?2 AND rows <= 0";

    /// Appends.
    put_api_key = "INSERT INTO {ns}_api_keys (hash, name, scopes, client_id, created_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    /// The whole table, in the order of its primary key.
    api_keys = concat!("SELECT ", api_key!(), " FROM {ns}_api_keys ORDER BY id");
    /// Primary key.
    api_key = concat!("SELECT ", api_key!(), " FROM {ns}_api_keys WHERE id = ?1");
    /// Unique index on the hash.
    api_key_by_hash = concat!("SELECT ", api_key!(), " FROM {ns}_api_keys WHERE hash = ?1");
    /// Primary key.
    revoke_api_key = "UPDATE {ns}_api_keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1";
    /// Primary key.
    use_api_key = "UPDATE {ns}_api_keys SET last_used_at = ?2 WHERE id = ?1";
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// Every statement compiles against the schema, and those that must not scan do not.
    #[test]
    fn statements_are_served_by_their_index() {
        let conn = Connection::open_in_memory().unwrap();
        conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).unwrap();
        super::super::migrate::migrate(&conn, &crate::StoreOptions::default(), 0).unwrap();
        let sql = Sql::new("tidegate");
        let scans = [
            "depth",
            "depths",
            "census",
            "move_leases",
            "consumers_since",
            "forget_consumers",
            "forget_handled",
            "forget_lanes",
            "resign",
            "queues",
            "queue_ids",
            "insert_queue",
            "projections",
            "move_tag_leases",
            "forget_tags",
            "count_live",
            "list_tag_held",
            "client_tail",
            "lanes_of",
            "moment_from",
            "all_consumers",
            "all_held",
            "projections_at",
            "forget_audit",
            "api_keys",
        ];
        for (name, text) in sql.all() {
            let mut plan =
                conn.prepare(&format!("EXPLAIN QUERY PLAN {text}")).unwrap_or_else(|e| panic!("{name}: {e}"));
            let nulls = vec![rusqlite::types::Null; plan.parameter_count()];
            let lines: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(nulls), |row| row.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let small = ["meta", "heartbeat", "sequence", "log_counts"].map(|table| format!("SCAN tidegate_{table}"));
            let scan = lines.iter().find(|line| {
                line.starts_with("SCAN tidegate") && !small.iter().any(|table| line.starts_with(table.as_str()))
                    || line.contains("TEMP B-TREE")
            });
            assert!(scan.is_none() || scans.contains(&name), "{name}: {lines:?}");
        }
    }
}
