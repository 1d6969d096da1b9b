-- The first schema. {ns} is the namespace, which exists; {id_offset} and {id_step} are the id space. Statements run in one
-- transaction.

CREATE TABLE {ns}.meta (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    schema_version    integer NOT NULL,
    oldest_compatible integer NOT NULL,
    id_offset         bigint  NOT NULL,
    id_step           bigint  NOT NULL,
    generation        bigint  NOT NULL DEFAULT 1
);

-- Written about once a second: leases expire only while it is young.
CREATE TABLE {ns}.heartbeat (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    at       timestamptz NOT NULL
);

CREATE SEQUENCE {ns}.entry_id AS bigint
    START WITH {id_offset} INCREMENT BY {id_step} MINVALUE 1 MAXVALUE 9007199254740991 CACHE 1;

CREATE TABLE {ns}.queues (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_id   bigint,
    name        text NOT NULL,
    state       smallint NOT NULL DEFAULT 0,
    depth_limit bigint,
    settings    text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX queues_name ON {ns}.queues (coalesce(client_id, 0), name);

-- One lane per (queue, type, priority); event_type is null where many types share one.
CREATE TABLE {ns}.lanes (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id   integer NOT NULL REFERENCES {ns}.queues (id),
    priority   smallint NOT NULL,
    event_type text
);
CREATE UNIQUE INDEX lanes_key ON {ns}.lanes (queue_id, coalesce(event_type, ''), priority);

-- Facts: written once, never updated.
CREATE TABLE {ns}.events (
    id             bigint NOT NULL PRIMARY KEY,
    created_at     timestamptz NOT NULL,
    client_id      bigint,
    event_type     text NOT NULL,
    payload        bytea NOT NULL,
    content_type   text,
    source         text,
    subject        text,
    time           timestamptz,
    external_id    text,
    correlation_id text,
    causation_id   text,
    attributes     text
) PARTITION BY RANGE (id);
CREATE TABLE {ns}.events_default PARTITION OF {ns}.events DEFAULT;

-- Live work. A claim touches only columns that no index knows, so that it is a heap-only update.
CREATE TABLE {ns}.event_queue (
    id                    bigint NOT NULL PRIMARY KEY,
    event_id              bigint NOT NULL,
    due_at                timestamptz,
    lease_until           timestamptz,
    processing_started_at timestamptz,
    updated_at            timestamptz,
    token                 bigint NOT NULL DEFAULT 0,
    client_id             bigint,
    lane                  integer NOT NULL,
    queue_id              integer NOT NULL,
    attempts              integer NOT NULL DEFAULT 0,
    max_attempts          integer NOT NULL,
    generation            integer NOT NULL DEFAULT 1,
    place                 smallint NOT NULL,
    exhausted_as          smallint NOT NULL,
    group_key             text,
    worker                text,
    last_error            text
) WITH (
    fillfactor = 36, -- every row of a page can be claimed once within the page: a claimed row is half as long again
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX event_queue_fresh ON {ns}.event_queue (lane, id) WHERE place = 0;
CREATE INDEX event_queue_timed ON {ns}.event_queue (lane, due_at, id) WHERE place = 1;
CREATE INDEX event_queue_parked ON {ns}.event_queue (queue_id, group_key, id) WHERE place >= 2;
CREATE INDEX event_queue_arrived ON {ns}.event_queue (id) WHERE place = 3;
CREATE UNIQUE INDEX event_queue_group_head ON {ns}.event_queue (queue_id, group_key)
    WHERE place < 2 AND group_key IS NOT NULL;

-- Groups whose head was ended by a caller's own transaction: who is next is decided after its commit.
CREATE TABLE {ns}.group_notes (
    queue_id  integer NOT NULL,
    group_key text NOT NULL
);

-- History: append-only but for `superseded`. xid orders readers by commit.
CREATE TABLE {ns}.event_log (
    id                    bigint NOT NULL,
    event_id              bigint NOT NULL,
    xid                   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    finished_at           timestamptz NOT NULL,
    processing_started_at timestamptz,
    token                 bigint NOT NULL,
    client_id             bigint,
    generation            integer NOT NULL,
    lane                  integer NOT NULL,
    queue_id              integer NOT NULL,
    attempts              integer NOT NULL,
    max_attempts          integer NOT NULL,
    status                smallint NOT NULL,
    exhausted_as          smallint NOT NULL,
    superseded            smallint NOT NULL DEFAULT 0, -- 0 stands, 1 redriven since, 2 discarded
    group_key             text,
    worker                text,
    errors                text,
    results               text,
    PRIMARY KEY (id, generation)
) PARTITION BY RANGE (id);
CREATE TABLE {ns}.event_log_default PARTITION OF {ns}.event_log DEFAULT;
CREATE INDEX event_log_dead_letters ON {ns}.event_log (queue_id, id) WHERE status IN (1, 2) AND superseded = 0;

-- Keys of entries (kind 0, scope = queue) and, later, of other writes.
CREATE TABLE {ns}.deduplication (
    client_id  bigint NOT NULL,
    kind       smallint NOT NULL,
    scope      bigint NOT NULL,
    key        text NOT NULL,
    entry_id   bigint NOT NULL,
    event_id   bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (client_id, kind, scope, key)
);
CREATE INDEX deduplication_expiry ON {ns}.deduplication (expires_at);

CREATE TABLE {ns}.consumers (
    worker   text NOT NULL,
    queue_id integer NOT NULL REFERENCES {ns}.queues (id),
    types    text[],
    seen_at  timestamptz NOT NULL,
    PRIMARY KEY (worker, queue_id)
);

-- Live and ended entries as one, with statuses by name.
CREATE VIEW {ns}.entries AS
SELECT q.id, q.generation, q.event_id, n.name AS queue, e.event_type, l.priority,
       CASE WHEN q.lease_until IS NULL THEN 'PENDING' ELSE 'PROCESSING' END AS status,
       q.attempts, q.max_attempts, q.token, q.due_at AS available_at, q.lease_until, q.processing_started_at,
       coalesce(q.updated_at, e.created_at) AS updated_at, e.created_at, q.worker, q.group_key, q.last_error AS errors,
       false AS superseded, e.payload
FROM {ns}.event_queue q
JOIN {ns}.queues n ON n.id = q.queue_id
LEFT JOIN {ns}.lanes l ON l.id = q.lane
JOIN {ns}.events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.generation, g.event_id, n.name, e.event_type, l.priority,
       (ARRAY['COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED', 'CANCELLED'])[g.status + 1],
       g.attempts, g.max_attempts, g.token, NULL, NULL, g.processing_started_at,
       g.finished_at, e.created_at, g.worker, g.group_key, g.errors, g.superseded <> 0, e.payload
FROM {ns}.event_log g
JOIN {ns}.queues n ON n.id = g.queue_id
LEFT JOIN {ns}.lanes l ON l.id = g.lane
JOIN {ns}.events e ON e.id = g.event_id;

-- Publishes inside the caller's own transaction, from any language. Types without a lane yet, and grouped events, are
-- left as arrived (place 3) and sorted in right after the commit; nothing here waits for another transaction, save for
-- one that publishes under the same deduplication key.
CREATE FUNCTION {ns}.publish(
    event_type text,
    payload bytea,
    queue text DEFAULT 'default',
    priority smallint DEFAULT 0,
    delay interval DEFAULT NULL,
    message_group text DEFAULT NULL,
    deduplication_id text DEFAULT NULL,
    max_attempts integer DEFAULT 20,
    source text DEFAULT NULL,
    subject text DEFAULT NULL,
    content_type text DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    causation_id text DEFAULT NULL,
    attributes text DEFAULT NULL,
    wake boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    the_queue   {ns}.queues;
    the_lane    integer;
    the_place   smallint;
    the_due     timestamptz;
    the_moment  timestamptz := clock_timestamp();
    the_id      bigint;
    the_event   bigint;
    held        bigint;
    entries_now bigint;
BEGIN
    -- The transaction id comes before the entry id, so that readers by commit order never miss one.
    PERFORM pg_current_xact_id();
    IF publish.event_type IS NULL OR publish.event_type = '' OR octet_length(publish.event_type) > 255
       OR publish.event_type ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'tidegate: the event type must be 1 to 255 bytes without control characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.payload IS NULL THEN
        RAISE EXCEPTION 'tidegate: the payload must not be null' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(publish.payload) > {payload_limit} THEN
        RAISE EXCEPTION 'tidegate: the payload is above the limit of {payload_limit} bytes: store it elsewhere and publish a reference to it'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.message_group = '' OR octet_length(publish.message_group) > 255
       OR publish.deduplication_id = '' OR octet_length(publish.deduplication_id) > 255 THEN
        RAISE EXCEPTION 'tidegate: message group and deduplication id must be 1 to 255 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.priority IS NULL OR publish.priority NOT BETWEEN -100 AND 100
       OR publish.max_attempts IS NULL OR publish.max_attempts < 1 THEN
        RAISE EXCEPTION 'tidegate: priority must be -100 to 100, max attempts at least 1'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO the_queue FROM {ns}.queues WHERE coalesce(client_id, 0) = 0 AND name = publish.queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tidegate: there is no queue %', publish.queue USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF the_queue.state = 2 THEN
        RAISE EXCEPTION 'tidegate: queue % is draining', publish.queue USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    the_id := nextval('{ns}.entry_id');
    the_event := ((extract(epoch FROM the_moment) * 1000)::bigint - 1577836800000) << 22 | (the_id & 4194303);
    IF publish.deduplication_id IS NOT NULL THEN
        INSERT INTO {ns}.deduplication AS d (client_id, kind, scope, key, entry_id, event_id, expires_at)
        VALUES (0, 0, the_queue.id, publish.deduplication_id, the_id, the_event, the_moment + interval '24 hours')
        ON CONFLICT (client_id, kind, scope, key) DO UPDATE
            SET entry_id = excluded.entry_id, event_id = excluded.event_id, expires_at = excluded.expires_at
            WHERE d.expires_at <= the_moment;
        IF NOT FOUND THEN
            SELECT d.entry_id, d.event_id INTO held, the_event FROM {ns}.deduplication d
            WHERE client_id = 0 AND kind = 0 AND scope = the_queue.id AND key = publish.deduplication_id;
            IF EXISTS (SELECT FROM {ns}.events e WHERE e.id = the_event
                       AND (e.event_type <> publish.event_type OR e.payload <> publish.payload)) THEN
                RAISE EXCEPTION 'tidegate: deduplication id % stands for another event', publish.deduplication_id
                    USING ERRCODE = 'unique_violation';
            END IF;
            RETURN held;
        END IF;
    END IF;
    IF the_queue.depth_limit IS NOT NULL THEN
        SELECT count(*) INTO entries_now FROM (
            SELECT FROM {ns}.event_queue q WHERE q.queue_id = the_queue.id LIMIT the_queue.depth_limit
        ) AS held_now;
        IF entries_now >= the_queue.depth_limit THEN
            RAISE EXCEPTION 'tidegate: queue % is full', publish.queue USING ERRCODE = 'program_limit_exceeded';
        END IF;
    END IF;
    SELECT l.id INTO the_lane FROM {ns}.lanes l
    WHERE l.queue_id = the_queue.id AND coalesce(l.event_type, '') = publish.event_type AND l.priority = publish.priority;
    the_due := the_moment + publish.delay;
    the_place := CASE WHEN the_lane IS NULL OR publish.message_group IS NOT NULL OR the_due IS NOT NULL THEN 3 ELSE 0 END;
    INSERT INTO {ns}.events (id, created_at, event_type, payload, content_type, source, subject, correlation_id,
                             causation_id, attributes)
    VALUES (the_event, the_moment, publish.event_type, publish.payload, publish.content_type, publish.source,
            publish.subject, publish.correlation_id, publish.causation_id, publish.attributes);
    INSERT INTO {ns}.event_queue (id, event_id, due_at, lane, queue_id, max_attempts, place, exhausted_as, group_key, token)
    VALUES (the_id, the_event, the_due, coalesce(the_lane, -publish.priority - 1000), the_queue.id, publish.max_attempts,
            the_place, 1, publish.message_group, 0);
    IF publish.wake THEN
        PERFORM pg_notify('{ns}', 'late');
    END IF;
    RETURN the_id;
END
$body$;
