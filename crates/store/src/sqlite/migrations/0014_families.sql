-- Order within a group, expiry, entries that step aside or keep their place; and a second family of tables with the same
-- columns and indexes, for jobs. Flags: 1 has tags, 2 the audit knows of a claim, 4 keeps its place when it is exhausted,
-- 8 is kept: exhausted and live. A kept entry is timed (place 1) and due when it expires. Place 4 is aside.
ALTER TABLE {ns}_event_queue ADD COLUMN expires_at INTEGER;
ALTER TABLE {ns}_event_queue ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {ns}_event_log ADD COLUMN expires_at INTEGER;
ALTER TABLE {ns}_event_log ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
DROP INDEX {ns}_event_queue_parked;
CREATE INDEX {ns}_event_queue_parked ON {ns}_event_queue (queue_id, group_key, rank) WHERE place IN (2, 3);
CREATE INDEX {ns}_event_queue_aside ON {ns}_event_queue (queue_id, group_key, due_at) WHERE place = 4;
CREATE INDEX {ns}_event_queue_aside_due ON {ns}_event_queue (queue_id, due_at) WHERE place = 4;
CREATE INDEX {ns}_event_queue_expiry ON {ns}_event_queue (expires_at) WHERE expires_at IS NOT NULL;
DROP INDEX {ns}_event_queue_waiting;
CREATE INDEX {ns}_event_queue_waiting ON {ns}_event_queue (lane) WHERE place IN (1, 2, 4);

-- The second family. It shares facts, entry ids, numbers of log rows, keys (kinds 2 and 3 of deduplication), the catalogue
-- version (kinds 2 and 3 of catalogue_removed) and the heartbeat.
CREATE TABLE {ns}_dispatch_queues (
    id          INTEGER PRIMARY KEY,
    client_id   INTEGER,
    name        TEXT NOT NULL,
    state       INTEGER NOT NULL DEFAULT 0,
    depth_limit INTEGER,
    settings    TEXT,
    created_at  INTEGER NOT NULL,
    version     INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX {ns}_dispatch_queues_name ON {ns}_dispatch_queues (coalesce(client_id, 0), name);
CREATE INDEX {ns}_dispatch_queues_version ON {ns}_dispatch_queues (version);

CREATE TABLE {ns}_dispatch_lanes (
    id         INTEGER PRIMARY KEY,
    queue_id   INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    event_type TEXT,
    version    INTEGER NOT NULL DEFAULT 0,
    state      INTEGER NOT NULL DEFAULT 0,
    was_type   TEXT,
    used_at    INTEGER NOT NULL DEFAULT 0,
    last_entry INTEGER
);
CREATE UNIQUE INDEX {ns}_dispatch_lanes_key ON {ns}_dispatch_lanes (queue_id, coalesce(event_type, ''), priority);
CREATE INDEX {ns}_dispatch_lanes_version ON {ns}_dispatch_lanes (version);
CREATE INDEX {ns}_dispatch_lanes_idle ON {ns}_dispatch_lanes (used_at) WHERE state = 0;
CREATE INDEX {ns}_dispatch_lanes_gone ON {ns}_dispatch_lanes (version) WHERE state = 2;

CREATE TABLE {ns}_dispatch_queue (
    id                    INTEGER PRIMARY KEY,
    event_id              INTEGER NOT NULL,
    due_at                INTEGER,
    lease_until           INTEGER,
    processing_started_at INTEGER,
    updated_at            INTEGER,
    token                 INTEGER NOT NULL DEFAULT 0,
    client_id             INTEGER,
    lane                  INTEGER NOT NULL,
    queue_id              INTEGER NOT NULL,
    attempts              INTEGER NOT NULL DEFAULT 0,
    max_attempts          INTEGER NOT NULL,
    generation            INTEGER NOT NULL DEFAULT 1,
    place                 INTEGER NOT NULL,
    exhausted_as          INTEGER NOT NULL,
    group_key             TEXT,
    worker                TEXT,
    last_error            TEXT,
    room                  BLOB,
    flags                 INTEGER,
    expires_at            INTEGER,
    rank                  INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX {ns}_dispatch_queue_fresh ON {ns}_dispatch_queue (lane) WHERE place = 0;
CREATE INDEX {ns}_dispatch_queue_timed ON {ns}_dispatch_queue (lane, due_at) WHERE place = 1;
CREATE INDEX {ns}_dispatch_queue_parked ON {ns}_dispatch_queue (queue_id, group_key, rank) WHERE place IN (2, 3);
CREATE INDEX {ns}_dispatch_queue_arrived ON {ns}_dispatch_queue (place) WHERE place = 3;
CREATE INDEX {ns}_dispatch_queue_aside ON {ns}_dispatch_queue (queue_id, group_key, due_at) WHERE place = 4;
CREATE INDEX {ns}_dispatch_queue_aside_due ON {ns}_dispatch_queue (queue_id, due_at) WHERE place = 4;
CREATE INDEX {ns}_dispatch_queue_expiry ON {ns}_dispatch_queue (expires_at) WHERE expires_at IS NOT NULL;
CREATE UNIQUE INDEX {ns}_dispatch_queue_group_head ON {ns}_dispatch_queue (queue_id, group_key)
    WHERE place < 2 AND group_key IS NOT NULL;
CREATE INDEX {ns}_dispatch_queue_client ON {ns}_dispatch_queue (client_id) WHERE client_id IS NOT NULL;
CREATE INDEX {ns}_dispatch_queue_waiting ON {ns}_dispatch_queue (lane) WHERE place IN (1, 2, 4);

CREATE TABLE {ns}_dispatch_log (
    seq                   INTEGER PRIMARY KEY,
    id                    INTEGER NOT NULL,
    generation            INTEGER NOT NULL,
    event_id              INTEGER NOT NULL,
    finished_at           INTEGER NOT NULL,
    processing_started_at INTEGER,
    token                 INTEGER NOT NULL,
    client_id             INTEGER,
    lane                  INTEGER NOT NULL,
    queue_id              INTEGER NOT NULL,
    attempts              INTEGER NOT NULL,
    max_attempts          INTEGER NOT NULL,
    status                INTEGER NOT NULL,
    exhausted_as          INTEGER NOT NULL,
    superseded            INTEGER NOT NULL DEFAULT 0,
    group_key             TEXT,
    worker                TEXT,
    errors                TEXT,
    results               TEXT,
    flags                 INTEGER,
    expires_at            INTEGER,
    rank                  INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX {ns}_dispatch_log_key ON {ns}_dispatch_log (id, generation);
CREATE INDEX {ns}_dispatch_log_dead_letters ON {ns}_dispatch_log (queue_id, id) WHERE status IN (1, 2) AND superseded = 0;
CREATE INDEX {ns}_dispatch_log_superseded ON {ns}_dispatch_log (status, id) WHERE superseded = 1;
CREATE INDEX {ns}_dispatch_log_ends ON {ns}_dispatch_log (status, id) WHERE status > 0 AND superseded <> 1;
CREATE INDEX {ns}_dispatch_log_client ON {ns}_dispatch_log (client_id, status, id)
    WHERE client_id IS NOT NULL AND superseded <> 1;
CREATE INDEX {ns}_dispatch_log_unsorted ON {ns}_dispatch_log (lane) WHERE lane < 0 AND superseded <> 1;
CREATE INDEX {ns}_dispatch_log_redriven ON {ns}_dispatch_log (client_id, status, id)
    WHERE client_id IS NOT NULL AND superseded = 1;

CREATE TABLE {ns}_dispatch_consumers (
    worker   TEXT NOT NULL,
    queue_id INTEGER NOT NULL,
    types    TEXT,
    seen_at  INTEGER NOT NULL,
    PRIMARY KEY (worker, queue_id)
) WITHOUT ROWID;

CREATE TRIGGER {ns}_dispatch_queue_made AFTER INSERT ON {ns}_dispatch_queues
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_dispatch_queues SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_dispatch_queue_changed
AFTER UPDATE OF client_id, name, state, depth_limit, settings ON {ns}_dispatch_queues
WHEN OLD.client_id IS NOT NEW.client_id OR OLD.name IS NOT NEW.name OR OLD.state IS NOT NEW.state
    OR OLD.depth_limit IS NOT NEW.depth_limit OR OLD.settings IS NOT NEW.settings
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_dispatch_queues SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_dispatch_queue_removed AFTER DELETE ON {ns}_dispatch_queues
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    INSERT OR REPLACE INTO {ns}_catalogue_removed (kind, id, queue_id, version)
    SELECT 2, OLD.id, OLD.id, generation FROM {ns}_meta;
END;
CREATE TRIGGER {ns}_dispatch_lane_made AFTER INSERT ON {ns}_dispatch_lanes
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_dispatch_lanes SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_dispatch_lane_changed
AFTER UPDATE OF queue_id, priority, event_type, state ON {ns}_dispatch_lanes
WHEN OLD.queue_id IS NOT NEW.queue_id OR OLD.priority IS NOT NEW.priority OR OLD.event_type IS NOT NEW.event_type
    OR OLD.state IS NOT NEW.state
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_dispatch_lanes SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_dispatch_lane_removed AFTER DELETE ON {ns}_dispatch_lanes WHEN OLD.state < 2
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    INSERT OR REPLACE INTO {ns}_catalogue_removed (kind, id, queue_id, version)
    SELECT 3, OLD.id, OLD.queue_id, generation FROM {ns}_meta;
END;
INSERT INTO {ns}_dispatch_queues (name, created_at) VALUES ('default', {sql_now});

-- Live and ended jobs as one, as the view of entries.
CREATE VIEW {ns}_dispatch_jobs AS
SELECT q.id, q.generation, q.event_id, n.name AS queue, e.event_type, coalesce(l.priority, -1000 - q.lane) AS priority,
       CASE WHEN q.lease_until IS NULL THEN 'PENDING' ELSE 'PROCESSING' END AS status,
       q.attempts, q.max_attempts, q.token, q.due_at AS available_at, q.lease_until, q.processing_started_at,
       coalesce(q.updated_at, e.created_at) AS updated_at, e.created_at, q.worker, q.group_key, q.last_error AS errors,
       0 AS superseded, e.payload, n.client_id
FROM {ns}_dispatch_queue q
JOIN {ns}_dispatch_queues n ON n.id = q.queue_id
LEFT JOIN {ns}_dispatch_lanes l ON l.id = q.lane
JOIN {ns}_events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.generation, g.event_id, n.name, e.event_type, coalesce(l.priority, -1000 - g.lane),
       CASE g.status WHEN 0 THEN 'COMPLETED' WHEN 1 THEN 'COMPLETED_WITH_ERRORS' WHEN 2 THEN 'FAILED' ELSE 'CANCELLED' END,
       g.attempts, g.max_attempts, g.token, NULL, NULL, g.processing_started_at,
       g.finished_at, e.created_at, g.worker, g.group_key, g.errors, g.superseded, e.payload, n.client_id
FROM {ns}_dispatch_log g
JOIN {ns}_dispatch_queues n ON n.id = g.queue_id
LEFT JOIN {ns}_dispatch_lanes l ON l.id = g.lane
JOIN {ns}_events e ON e.id = g.event_id;

-- Publishing by plain SQL as before, but: a kept entry is not replaced, flags of a kept place stay, and entries that have
-- stepped aside count.
DROP TRIGGER {ns}_publish_insert;
DROP TRIGGER {ns}_publish_checked_insert;
-- Publishes inside the caller's own transaction, from any language: INSERT INTO {ns}_publish (event_type, payload) ...
-- Types without a lane yet, delayed and grouped events are left as arrived (place 3) and sorted in after the commit. A
-- repeat of a deduplication id inserts nothing. 'now' stands still within one statement.
CREATE TRIGGER {ns}_publish_insert INSTEAD OF INSERT ON {ns}_publish
BEGIN
    SELECT CASE field
        WHEN 1 THEN RAISE(ABORT, 'tidegate: the event type must be text of 1 to 255 bytes without control characters')
        WHEN 2 THEN RAISE(ABORT, 'tidegate: the message group must be text of 1 to 255 bytes without control characters')
        WHEN 3 THEN RAISE(ABORT, 'tidegate: the deduplication id must be text of 1 to 255 bytes without control characters')
        WHEN 4 THEN RAISE(ABORT, 'tidegate: the source must be text of 1 to 255 bytes without control characters')
        WHEN 5 THEN RAISE(ABORT, 'tidegate: the subject must be text of 1 to 255 bytes without control characters')
        WHEN 6 THEN RAISE(ABORT, 'tidegate: the content type must be text of 1 to 255 bytes without control characters')
        WHEN 7 THEN RAISE(ABORT, 'tidegate: the correlation id must be text of 1 to 255 bytes without control characters')
        WHEN 8 THEN RAISE(ABORT, 'tidegate: the causation id must be text of 1 to 255 bytes without control characters')
        WHEN 9 THEN RAISE(ABORT, 'tidegate: the external id must be text of 1 to 255 bytes without control characters')
        END
    FROM (SELECT 1 AS field, coalesce(NEW.event_type, '') AS x
          UNION ALL SELECT 2, NEW.message_group UNION ALL SELECT 3, NEW.deduplication_id
          UNION ALL SELECT 4, NEW.source UNION ALL SELECT 5, NEW.subject UNION ALL SELECT 6, NEW.content_type
          UNION ALL SELECT 7, NEW.correlation_id UNION ALL SELECT 8, NEW.causation_id UNION ALL SELECT 9, NEW.external_id)
    WHERE x IS NOT NULL AND (typeof(x) <> 'text' OR x = '' OR length(CAST(x AS BLOB)) > 255 OR {bad_text});
    SELECT RAISE(ABORT, 'tidegate: the payload must be text or a blob, not null or a number') WHERE typeof(NEW.payload) NOT IN ('text', 'blob');
    SELECT RAISE(ABORT, 'tidegate: the payload is above the limit (payload_limit in {ns}_meta): store it elsewhere and publish a reference to it')
    FROM {ns}_meta WHERE length(CAST(NEW.payload AS BLOB)) > payload_limit;
    -- Text without a content type is JSON; a blob is whatever its content type says.
    SELECT RAISE(ABORT, 'tidegate: the payload is not JSON: name its content_type, or pass a blob')
    WHERE CASE WHEN NEW.content_type IS NULL THEN typeof(NEW.payload) = 'text'
               ELSE lower(trim(substr(NEW.content_type, 1, instr(NEW.content_type || ';', ';') - 1))) = 'application/json'
                 OR lower(trim(substr(NEW.content_type, 1, instr(NEW.content_type || ';', ';') - 1))) LIKE '%+json' END
      AND (instr(CAST(NEW.payload AS BLOB), x'00') > 0 OR NOT json_valid(CAST(NEW.payload AS TEXT)));
    SELECT RAISE(ABORT, 'tidegate: the title must be text of 1 to 1000 bytes without NUL characters')
    WHERE NEW.title IS NOT NULL AND (typeof(NEW.title) <> 'text' OR NEW.title = ''
       OR length(CAST(NEW.title AS BLOB)) > 1000 OR instr(NEW.title, char(0)) > 0);
    SELECT RAISE(ABORT, 'tidegate: the description must be text of at most 65536 bytes without NUL characters')
    WHERE NEW.description IS NOT NULL AND (typeof(NEW.description) <> 'text'
       OR length(CAST(NEW.description AS BLOB)) > 65536 OR instr(NEW.description, char(0)) > 0);
    SELECT RAISE(ABORT, 'tidegate: the attributes must be a JSON object as text of at most 65536 bytes')
    WHERE NEW.attributes IS NOT NULL AND CASE
        WHEN typeof(NEW.attributes) <> 'text' OR length(CAST(NEW.attributes AS BLOB)) > 65536
             OR instr(NEW.attributes, char(0)) > 0 OR NOT json_valid(NEW.attributes) THEN 1
        ELSE json_type(NEW.attributes) <> 'object' END;
    SELECT RAISE(ABORT, 'tidegate: tags must be text: at most 32, separated by commas, each of 1 to 255 bytes without control characters')
    WHERE NEW.tags IS NOT NULL AND CASE
        WHEN typeof(NEW.tags) <> 'text' OR length(CAST(NEW.tags AS BLOB)) > 16384 THEN 1
        ELSE EXISTS (SELECT 1 FROM (SELECT NEW.tags AS x) WHERE {bad_text})
          OR EXISTS (WITH RECURSIVE split(count, tag, rest) AS (
                         SELECT 0, '', {tags}
                         UNION ALL
                         SELECT count + 1, substr(rest, 1, instr(rest || ',', ',') - 1), substr(rest, instr(rest || ',', ',') + 1)
                         FROM split WHERE rest <> '')
                     SELECT 1 FROM split WHERE count > 32 OR length(CAST(tag AS BLOB)) > 255) END;
    SELECT RAISE(ABORT, 'tidegate: retry must be JSON text such as {"kind":"fixed","delay_ms":1000}: kind fixed, exponential or list, delays at most 100 years, jitter 0 to 1, a list at most 1000 long')
    WHERE NEW.retry IS NOT NULL AND CASE
        WHEN typeof(NEW.retry) <> 'text' OR length(CAST(NEW.retry AS BLOB)) > 65536 OR instr(NEW.retry, char(0)) > 0
             OR NOT json_valid(NEW.retry) THEN 1
        ELSE {retry} IS NULL END;
    SELECT RAISE(ABORT, 'tidegate: priority must be -100 to 100, max attempts at least 1, max_retries 0 to 1000000, delay_ms 0 to 3153600000000, replace_waiting 0 or 1, all of them integers')
    WHERE typeof(coalesce(NEW.priority, 0)) <> 'integer' OR coalesce(NEW.priority, 0) NOT BETWEEN -100 AND 100
       OR typeof(coalesce(NEW.max_attempts, 20)) <> 'integer'
       OR coalesce(NEW.max_attempts, 20) NOT BETWEEN 1 AND 2147483647
       OR typeof(coalesce(NEW.max_retries, 0)) <> 'integer' OR coalesce(NEW.max_retries, 0) NOT BETWEEN 0 AND 1000000
       OR typeof(coalesce(NEW.delay_ms, 0)) <> 'integer'
       OR coalesce(NEW.delay_ms, 0) NOT BETWEEN 0 AND 3153600000000
       OR typeof(coalesce(NEW.replace_waiting, 0)) <> 'integer' OR coalesce(NEW.replace_waiting, 0) NOT IN (0, 1);
    SELECT RAISE(ABORT, 'tidegate: name either max_attempts or max_retries, either delay_ms or available_at; replace_waiting needs a deduplication_id')
    WHERE (NEW.max_attempts IS NOT NULL AND NEW.max_retries IS NOT NULL)
       OR (NEW.delay_ms IS NOT NULL AND NEW.available_at IS NOT NULL)
       OR (NEW.replace_waiting = 1 AND NEW.deduplication_id IS NULL);
    SELECT RAISE(ABORT, 'tidegate: event_time and available_at must be ISO 8601 text or integer microseconds since 1970, from 1970 to 9998')
    WHERE (NEW.event_time IS NOT NULL AND coalesce({event_time} NOT BETWEEN 0 AND 253370764799999999, 1))
       OR (NEW.available_at IS NOT NULL AND coalesce({available_at} NOT BETWEEN 0 AND 253370764799999999, 1));
    SELECT RAISE(ABORT, 'tidegate: there is no such queue')
    WHERE NOT EXISTS (SELECT 1 FROM {ns}_queues
                      WHERE coalesce(client_id, 0) = 0 AND name = coalesce(NEW.queue, 'default'));
    INSERT INTO {ns}_publish_checked (event_type, payload, source, subject, content_type, correlation_id, causation_id,
        external_id, attributes, title, description, retry, tags, event_time, due, group_key, max_attempts, exhausted_as,
        deduplication_id, priority, queue_id, lane, now, number, event_id, held_entry, held_event, creates, replaces)
    SELECT NEW.event_type, CAST(NEW.payload AS BLOB), NEW.source, NEW.subject, NEW.content_type, NEW.correlation_id,
           NEW.causation_id, NEW.external_id, NEW.attributes, NEW.title, NEW.description,
           CASE WHEN NEW.retry IS NOT NULL THEN {retry} END, nullif({tags}, ''),
           {event_time}, coalesce({sql_now} + NEW.delay_ms * 1000, max({sql_now}, {available_at})), NEW.message_group,
           coalesce(NEW.max_attempts, NEW.max_retries + 1, 20), CASE WHEN NEW.max_retries IS NULL THEN 1 ELSE 2 END,
           NEW.deduplication_id, coalesce(NEW.priority, 0), n.id, l.id, {sql_now}, s.entry_id,
           (({sql_now} / 1000 - 1577836800000) << 22) | (s.entry_id & 4194303), d.entry_id, d.event_id,
           d.entry_id IS NULL OR (coalesce(NEW.replace_waiting, 0) AND w.id IS NULL),
           coalesce(NEW.replace_waiting, 0) AND w.id IS NOT NULL
    FROM {ns}_sequence s
    JOIN {ns}_queues n ON coalesce(n.client_id, 0) = 0 AND n.name = coalesce(NEW.queue, 'default')
    LEFT JOIN {ns}_lanes l ON l.queue_id = n.id AND coalesce(l.event_type, '') = NEW.event_type
                          AND l.priority = coalesce(NEW.priority, 0)
    LEFT JOIN {ns}_deduplication d ON d.client_id = 0 AND d.kind = 0 AND d.scope = n.id AND d.key = NEW.deduplication_id
                                  AND d.expires_at > {sql_now}
    LEFT JOIN {ns}_event_queue w ON w.id = d.entry_id AND w.lease_until IS NULL AND coalesce(w.flags, 0) & 8 = 0
                                AND (w.expires_at IS NULL OR w.expires_at > {sql_now})
                                AND EXISTS (SELECT 1 FROM {ns}_events e WHERE e.id = w.event_id);
END;

CREATE TRIGGER {ns}_publish_checked_insert INSTEAD OF INSERT ON {ns}_publish_checked
BEGIN
    SELECT RAISE(ABORT, 'tidegate: the queue is draining') FROM {ns}_queues WHERE id = NEW.queue_id AND state = 2;
    SELECT RAISE(ABORT, 'tidegate: the deduplication id stands for another event')
    FROM {ns}_events e
    WHERE NOT NEW.creates AND NOT NEW.replaces AND e.id = NEW.held_event
      AND (e.event_type <> NEW.event_type OR e.payload <> NEW.payload);
    -- Indexes event_queue_fresh, _timed, _parked and _aside_due, at most as many entries as the limit.
    SELECT RAISE(ABORT, 'tidegate: the queue is full')
    FROM {ns}_queues n
    WHERE NEW.creates AND n.id = NEW.queue_id AND n.depth_limit IS NOT NULL
      AND (SELECT count(*) FROM (
               SELECT 1 FROM {ns}_lanes l CROSS JOIN {ns}_event_queue q ON q.lane = l.id AND q.place = 0
               WHERE l.queue_id = NEW.queue_id
               UNION ALL
               SELECT 1 FROM {ns}_lanes l CROSS JOIN {ns}_event_queue q ON q.lane = l.id AND q.place = 1
               WHERE l.queue_id = NEW.queue_id
               UNION ALL
               SELECT 1 FROM {ns}_event_queue q WHERE q.queue_id = NEW.queue_id AND q.place IN (2, 3)
               UNION ALL
               SELECT 1 FROM {ns}_event_queue q WHERE q.queue_id = NEW.queue_id AND q.place = 4
               LIMIT (SELECT depth_limit FROM {ns}_queues WHERE id = NEW.queue_id))) >= n.depth_limit;
    -- The waiting entry gets a new fact under its old type, for that is where it waits; the old fact goes.
    DELETE FROM {ns}_event_tags
    WHERE NEW.replaces AND entry_id = NEW.held_entry AND tag IN (
        SELECT tag FROM (WITH RECURSIVE split(tag, rest) AS (
            SELECT NULL, (SELECT CAST(e.tags AS TEXT) FROM {ns}_event_queue q JOIN {ns}_events e ON e.id = q.event_id
                          WHERE q.id = NEW.held_entry AND NEW.replaces)
            UNION ALL
            SELECT substr(rest, 1, instr(rest || ',', ',') - 1), substr(rest, instr(rest || ',', ',') + 1)
            FROM split WHERE rest <> '')
        SELECT tag FROM split WHERE tag IS NOT NULL));
    INSERT INTO {ns}_events (id, created_at, event_type, payload, content_type, source, subject, time, external_id,
                             correlation_id, causation_id, attributes, title, description, tags, retry)
    SELECT NEW.event_id, NEW.now,
           CASE WHEN NEW.replaces THEN (SELECT e.event_type FROM {ns}_event_queue q JOIN {ns}_events e ON e.id = q.event_id
                                        WHERE q.id = NEW.held_entry)
                ELSE NEW.event_type END,
           NEW.payload, NEW.content_type, NEW.source, NEW.subject, NEW.event_time, NEW.external_id, NEW.correlation_id,
           NEW.causation_id, NEW.attributes, NEW.title, NEW.description, NEW.tags, NEW.retry
    WHERE NEW.creates OR NEW.replaces;
    DELETE FROM {ns}_events
    WHERE NEW.replaces AND id = (SELECT q.event_id FROM {ns}_event_queue q WHERE q.id = NEW.held_entry);
    DELETE FROM {ns}_event_handler_states WHERE NEW.replaces AND entry_id = NEW.held_entry;
    UPDATE {ns}_event_queue
    SET event_id = NEW.event_id, updated_at = NEW.now, room = zeroblob({room} - 8), expires_at = NULL,
        flags = CASE WHEN NEW.tags IS NOT NULL THEN coalesce(flags, 0) | 1 ELSE nullif(flags & 6, 0) END
    WHERE NEW.replaces AND id = NEW.held_entry;
    INSERT INTO {ns}_event_queue (id, event_id, due_at, lane, queue_id, max_attempts, place, exhausted_as, group_key, room,
                                  flags)
    SELECT NEW.number, NEW.event_id, NEW.due, coalesce(NEW.lane, -NEW.priority - 1000), NEW.queue_id, NEW.max_attempts,
           CASE WHEN NEW.lane IS NULL OR NEW.group_key IS NOT NULL OR NEW.due IS NOT NULL THEN 3 ELSE 0 END,
           NEW.exhausted_as, NEW.group_key, zeroblob({room}), CASE WHEN NEW.tags IS NOT NULL THEN 1 END
    WHERE NEW.creates;
    -- What has arrived stands among the parked ones of its tags until it is sorted in.
    INSERT OR REPLACE INTO {ns}_event_tags (tag, entry_id, queue_id, state, priority, rank)
    SELECT t.tag, q.id, q.queue_id, min(q.place, 2), coalesce(l.priority, -1000 - q.lane),
           CASE WHEN q.place = 1 THEN coalesce(q.due_at, 0) ELSE q.id END
    FROM (WITH RECURSIVE split(tag, rest) AS (
              SELECT NULL, NEW.tags
              UNION ALL
              SELECT substr(rest, 1, instr(rest || ',', ',') - 1), substr(rest, instr(rest || ',', ',') + 1)
              FROM split WHERE rest <> '')
          SELECT tag FROM split WHERE tag IS NOT NULL) AS t
    JOIN {ns}_event_queue q ON q.id = CASE WHEN NEW.replaces THEN NEW.held_entry ELSE NEW.number END
    LEFT JOIN {ns}_lanes l ON l.id = q.lane
    WHERE NEW.creates OR NEW.replaces;
    UPDATE {ns}_deduplication SET event_id = NEW.event_id
    WHERE NEW.replaces AND client_id = 0 AND kind = 0 AND scope = NEW.queue_id AND key = NEW.deduplication_id;
    INSERT OR REPLACE INTO {ns}_deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at)
    SELECT 0, 0, NEW.queue_id, NEW.deduplication_id, NEW.number, NEW.event_id, NEW.now + 86400000000
    WHERE NEW.creates AND NEW.deduplication_id IS NOT NULL;
    UPDATE {ns}_sequence SET entry_id = entry_id + (SELECT id_step FROM {ns}_meta) WHERE NEW.creates OR NEW.replaces;
END;

-- A program of an older schema knows nothing of ranks, kept places and expiry, and must not go on: where each of its
-- transactions reads the catalogue's version, it finds text, an error that is not its caller's. (Without the columns it would
-- take its caller's request for wrong.) Triggers follow the new names.
ALTER TABLE {ns}_meta RENAME COLUMN generation TO catalogue_version;
ALTER TABLE {ns}_meta RENAME COLUMN catalogue_stamp TO stamp;
ALTER TABLE {ns}_meta ADD COLUMN generation TEXT NOT NULL
    DEFAULT 'a newer program has migrated this database to schema 14: upgrade this one';
ALTER TABLE {ns}_meta ADD COLUMN catalogue_stamp TEXT NOT NULL
    DEFAULT 'a newer program has migrated this database to schema 14: upgrade this one';
