-- The first schema. {ns} is the namespace, {id_offset} and {id_step} the id space, {now} the moment of the migration in
-- microseconds; statements run in one transaction. Moments are INTEGER microseconds since 1970. Only old, plain SQL:
-- applications read and publish with whatever SQLite their language brings.
CREATE TABLE {ns}_meta (
    only_row          INTEGER PRIMARY KEY CHECK (only_row = 1),
    schema_version    INTEGER NOT NULL,
    oldest_compatible INTEGER NOT NULL,
    id_offset         INTEGER NOT NULL,
    id_step           INTEGER NOT NULL,
    generation        INTEGER NOT NULL DEFAULT 1
);

-- Written about once a second: leases expire only while it is young.
CREATE TABLE {ns}_heartbeat (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    at       INTEGER NOT NULL
);

-- The next numbers to draw: entry ids, and log rows in the order of their commits. Drawn in the writing transaction.
CREATE TABLE {ns}_sequence (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    entry_id INTEGER NOT NULL,
    log_seq  INTEGER NOT NULL
);

CREATE TABLE {ns}_queues (
    id          INTEGER PRIMARY KEY,
    client_id   INTEGER,
    name        TEXT NOT NULL,
    state       INTEGER NOT NULL DEFAULT 0,
    depth_limit INTEGER,
    settings    TEXT,
    created_at  INTEGER NOT NULL
);
CREATE UNIQUE INDEX {ns}_queues_name ON {ns}_queues (coalesce(client_id, 0), name);

-- One lane per (queue, type, priority); event_type is null where many types share one.
CREATE TABLE {ns}_lanes (
    id         INTEGER PRIMARY KEY,
    queue_id   INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    event_type TEXT
);
CREATE UNIQUE INDEX {ns}_lanes_key ON {ns}_lanes (queue_id, coalesce(event_type, ''), priority);

-- Facts: written once, never updated.
CREATE TABLE {ns}_events (
    id             INTEGER PRIMARY KEY,
    created_at     INTEGER NOT NULL,
    client_id      INTEGER,
    event_type     TEXT NOT NULL,
    content_type   TEXT,
    source         TEXT,
    subject        TEXT,
    time           INTEGER,
    external_id    TEXT,
    correlation_id TEXT,
    causation_id   TEXT,
    attributes     TEXT,
    payload        BLOB NOT NULL
);

-- Live work. A claim touches only columns that no index knows. `room` is as long as the columns that a claim fills, and
-- the claim takes that much from it: the row keeps its length and is overwritten where it stands.
CREATE TABLE {ns}_event_queue (
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
    room                  BLOB
);
-- Every index ends with the rowid, which is the entry's id.
CREATE INDEX {ns}_event_queue_fresh ON {ns}_event_queue (lane) WHERE place = 0;
CREATE INDEX {ns}_event_queue_timed ON {ns}_event_queue (lane, due_at) WHERE place = 1;
CREATE INDEX {ns}_event_queue_parked ON {ns}_event_queue (queue_id, group_key) WHERE place >= 2;
CREATE INDEX {ns}_event_queue_arrived ON {ns}_event_queue (place) WHERE place = 3;
CREATE UNIQUE INDEX {ns}_event_queue_group_head ON {ns}_event_queue (queue_id, group_key)
    WHERE place < 2 AND group_key IS NOT NULL;

-- History: append-only but for `superseded`. seq orders readers by commit.
CREATE TABLE {ns}_event_log (
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
    results               TEXT
);
CREATE UNIQUE INDEX {ns}_event_log_key ON {ns}_event_log (id, generation);
CREATE INDEX {ns}_event_log_dead_letters ON {ns}_event_log (queue_id, id) WHERE status IN (1, 2) AND superseded = 0;

-- Keys of entries (kind 0, scope = queue) and, later, of other writes.
CREATE TABLE {ns}_deduplication (
    client_id  INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    scope      INTEGER NOT NULL,
    key        TEXT NOT NULL,
    entry_id   INTEGER NOT NULL,
    event_id   INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (client_id, kind, scope, key)
) WITHOUT ROWID;
CREATE INDEX {ns}_deduplication_expiry ON {ns}_deduplication (expires_at);

-- types is a JSON list; null means all.
CREATE TABLE {ns}_consumers (
    worker   TEXT NOT NULL,
    queue_id INTEGER NOT NULL,
    types    TEXT,
    seen_at  INTEGER NOT NULL,
    PRIMARY KEY (worker, queue_id)
) WITHOUT ROWID;

INSERT INTO {ns}_meta (only_row, schema_version, oldest_compatible, id_offset, id_step) VALUES (1, 1, 1, {id_offset}, {id_step});
INSERT INTO {ns}_heartbeat (only_row, at) VALUES (1, {now});
INSERT INTO {ns}_sequence (only_row, entry_id, log_seq) VALUES (1, {id_offset}, 1);
INSERT INTO {ns}_queues (name, created_at) VALUES ('default', {now});

-- Live and ended entries as one, with statuses by name.
CREATE VIEW {ns}_entries AS
SELECT q.id, q.generation, q.event_id, n.name AS queue, e.event_type, coalesce(l.priority, -1000 - q.lane) AS priority,
       CASE WHEN q.lease_until IS NULL THEN 'PENDING' ELSE 'PROCESSING' END AS status,
       q.attempts, q.max_attempts, q.token, q.due_at AS available_at, q.lease_until, q.processing_started_at,
       coalesce(q.updated_at, e.created_at) AS updated_at, e.created_at, q.worker, q.group_key, q.last_error AS errors,
       0 AS superseded, e.payload
FROM {ns}_event_queue q
JOIN {ns}_queues n ON n.id = q.queue_id
LEFT JOIN {ns}_lanes l ON l.id = q.lane
JOIN {ns}_events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.generation, g.event_id, n.name, e.event_type, coalesce(l.priority, -1000 - g.lane),
       CASE g.status WHEN 0 THEN 'COMPLETED' WHEN 1 THEN 'COMPLETED_WITH_ERRORS' WHEN 2 THEN 'FAILED' ELSE 'CANCELLED' END,
       g.attempts, g.max_attempts, g.token, NULL, NULL, g.processing_started_at,
       g.finished_at, e.created_at, g.worker, g.group_key, g.errors, g.superseded, e.payload
FROM {ns}_event_log g
JOIN {ns}_queues n ON n.id = g.queue_id
LEFT JOIN {ns}_lanes l ON l.id = g.lane
JOIN {ns}_events e ON e.id = g.event_id;

-- Publishes inside the caller's own transaction, from any language: INSERT INTO {ns}_publish (event_type, payload) ...
-- Types without a lane yet, delayed and grouped events are left as arrived (place 3) and sorted in after the commit. A
-- repeat of a deduplication id inserts nothing. 'now' stands still within one statement.
CREATE VIEW {ns}_publish AS
SELECT e.event_type, e.payload, n.name AS queue, coalesce(l.priority, -1000 - q.lane) AS priority, NULL AS delay_ms,
       q.group_key AS message_group, NULL AS deduplication_id, q.max_attempts, e.source, e.subject, e.content_type,
       e.correlation_id, e.causation_id, e.attributes
FROM {ns}_event_queue q
JOIN {ns}_queues n ON n.id = q.queue_id
LEFT JOIN {ns}_lanes l ON l.id = q.lane
JOIN {ns}_events e ON e.id = q.event_id;

CREATE TRIGGER {ns}_publish_insert INSTEAD OF INSERT ON {ns}_publish
BEGIN
    SELECT RAISE(ABORT, 'tidegate: the event type must be 1 to 255 bytes without control characters')
    WHERE NEW.event_type IS NULL OR typeof(NEW.event_type) <> 'text' OR NEW.event_type = ''
       OR length(CAST(NEW.event_type AS BLOB)) > 255 OR instr(NEW.event_type, char(0)) > 0
       OR NEW.event_type GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'tidegate: the payload must not be null') WHERE NEW.payload IS NULL;
    SELECT RAISE(ABORT, 'tidegate: the payload is above the limit of {payload_limit} bytes: store it elsewhere and publish a reference to it')
    WHERE length(CAST(NEW.payload AS BLOB)) > {payload_limit};
    SELECT RAISE(ABORT, 'tidegate: message group and deduplication id must be 1 to 255 bytes')
    WHERE NEW.message_group = '' OR length(CAST(NEW.message_group AS BLOB)) > 255
       OR NEW.deduplication_id = '' OR length(CAST(NEW.deduplication_id AS BLOB)) > 255;
    SELECT RAISE(ABORT, 'tidegate: source, subject, content type, correlation and causation id must be 1 to 255 bytes')
    WHERE NEW.source = '' OR length(CAST(NEW.source AS BLOB)) > 255
       OR NEW.subject = '' OR length(CAST(NEW.subject AS BLOB)) > 255
       OR NEW.content_type = '' OR length(CAST(NEW.content_type AS BLOB)) > 255
       OR NEW.correlation_id = '' OR length(CAST(NEW.correlation_id AS BLOB)) > 255
       OR NEW.causation_id = '' OR length(CAST(NEW.causation_id AS BLOB)) > 255;
    SELECT RAISE(ABORT, 'tidegate: the attributes must be JSON text of at most 65536 bytes')
    WHERE length(CAST(NEW.attributes AS BLOB)) > 65536;
    SELECT RAISE(ABORT, 'tidegate: priority must be -100 to 100, max attempts at least 1, delay_ms at least 0')
    WHERE typeof(coalesce(NEW.priority, 0)) <> 'integer' OR coalesce(NEW.priority, 0) NOT BETWEEN -100 AND 100
       OR typeof(coalesce(NEW.max_attempts, 20)) <> 'integer'
       OR coalesce(NEW.max_attempts, 20) NOT BETWEEN 1 AND 2147483647
       OR typeof(coalesce(NEW.delay_ms, 0)) <> 'integer'
       OR coalesce(NEW.delay_ms, 0) NOT BETWEEN 0 AND 3153600000000;
    SELECT RAISE(ABORT, 'tidegate: there is no such queue')
    WHERE NOT EXISTS (SELECT 1 FROM {ns}_queues
                      WHERE coalesce(client_id, 0) = 0 AND name = coalesce(NEW.queue, 'default'));
    SELECT RAISE(ABORT, 'tidegate: the queue is draining')
    FROM {ns}_queues
    WHERE coalesce(client_id, 0) = 0 AND name = coalesce(NEW.queue, 'default') AND state = 2;
    SELECT RAISE(ABORT, 'tidegate: the deduplication id stands for another event')
    FROM {ns}_deduplication d
    JOIN {ns}_queues n ON n.id = d.scope AND n.name = coalesce(NEW.queue, 'default') AND coalesce(n.client_id, 0) = 0
    JOIN {ns}_events e ON e.id = d.event_id
    WHERE d.client_id = 0 AND d.kind = 0 AND d.key = NEW.deduplication_id AND d.expires_at > {sql_now}
      AND (e.event_type <> NEW.event_type OR e.payload <> CAST(NEW.payload AS BLOB));
    -- From here on a live key means a repeat: nothing is written.
    SELECT RAISE(ABORT, 'tidegate: the queue is full')
    FROM {ns}_queues n
    WHERE coalesce(n.client_id, 0) = 0 AND n.name = coalesce(NEW.queue, 'default') AND n.depth_limit IS NOT NULL
      AND (SELECT count(*) FROM (SELECT 1 FROM {ns}_event_queue q WHERE q.queue_id = n.id
           LIMIT (SELECT depth_limit FROM {ns}_queues WHERE coalesce(client_id, 0) = 0 AND name = coalesce(NEW.queue, 'default'))))
          >= n.depth_limit
      AND NOT EXISTS (SELECT 1 FROM {ns}_deduplication d WHERE d.client_id = 0 AND d.kind = 0 AND d.scope = n.id
                      AND d.key = NEW.deduplication_id AND d.expires_at > {sql_now});
    INSERT INTO {ns}_event_queue (id, event_id, due_at, lane, queue_id, max_attempts, place, exhausted_as, group_key, room)
    SELECT s.entry_id, (({sql_now} / 1000 - 1577836800000) << 22) | (s.entry_id & 4194303),
           {sql_now} + NEW.delay_ms * 1000,
           coalesce(l.id, -coalesce(NEW.priority, 0) - 1000), n.id, coalesce(NEW.max_attempts, 20),
           CASE WHEN l.id IS NULL OR NEW.message_group IS NOT NULL OR NEW.delay_ms IS NOT NULL THEN 3 ELSE 0 END,
           1, NEW.message_group, zeroblob({room})
    FROM {ns}_sequence s
    JOIN {ns}_queues n ON coalesce(n.client_id, 0) = 0 AND n.name = coalesce(NEW.queue, 'default')
    LEFT JOIN {ns}_lanes l ON l.queue_id = n.id AND coalesce(l.event_type, '') = NEW.event_type
                          AND l.priority = coalesce(NEW.priority, 0)
    WHERE NOT EXISTS (SELECT 1 FROM {ns}_deduplication d WHERE d.client_id = 0 AND d.kind = 0 AND d.scope = n.id
                      AND d.key = NEW.deduplication_id AND d.expires_at > {sql_now});
    -- The entry above holds the number that is still the next one, unless this is a repeat.
    INSERT INTO {ns}_events (id, created_at, event_type, payload, content_type, source, subject, correlation_id,
                             causation_id, attributes)
    SELECT q.event_id, {sql_now}, NEW.event_type, CAST(NEW.payload AS BLOB), NEW.content_type, NEW.source, NEW.subject,
           NEW.correlation_id, NEW.causation_id, NEW.attributes
    FROM {ns}_sequence s JOIN {ns}_event_queue q ON q.id = s.entry_id;
    INSERT OR REPLACE INTO {ns}_deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at)
    SELECT 0, 0, q.queue_id, NEW.deduplication_id, q.id, q.event_id, {sql_now} + 86400000000
    FROM {ns}_sequence s JOIN {ns}_event_queue q ON q.id = s.entry_id
    WHERE NEW.deduplication_id IS NOT NULL;
    UPDATE {ns}_sequence SET entry_id = entry_id + {id_step}
    WHERE EXISTS (SELECT 1 FROM {ns}_event_queue q WHERE q.id = entry_id);
END;
