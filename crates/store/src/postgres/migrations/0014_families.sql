-- Turns within a group, expiry, and a second family of tables.
--
-- rank orders a group before the number. An entry whose expires_at has passed is cancelled instead of claimed. flags has
-- two bits more: 4 keeps its place when it is exhausted; 8 kept: exhausted, and live (place 1, under no lease;
-- exhausted_as is the end that it got, due_at its expiry, or the year 9999). place 4 is aside: after a failure, others of
-- its group run until it is due. The defaults are constants: no row is rewritten.
LOCK TABLE {ns}.event_queue, {ns}.queues, {ns}.lanes IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {ns}.event_queue ADD COLUMN rank integer NOT NULL DEFAULT 0, ADD COLUMN expires_at timestamptz;
ALTER TABLE {ns}.event_log ADD COLUMN rank integer NOT NULL DEFAULT 0, ADD COLUMN expires_at timestamptz;
-- Built anew after this transaction (see indexes.rs): by rank, and with what is aside.
DROP INDEX {ns}.event_queue_parked;
DROP INDEX IF EXISTS {ns}.event_queue_waiting;

-- The second family: jobs of dispatch. Facts, entry ids, keys (of other kinds) and the heartbeat are those of entries.
-- There are no tags, no lists and no projections of jobs, so the indexes that only those use are left out.
CREATE TABLE {ns}.dispatch_queues (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_id   bigint,
    name        text COLLATE "C" NOT NULL,
    state       smallint NOT NULL DEFAULT 0,
    depth_limit bigint,
    settings    text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    version     bigint NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX dispatch_queues_name ON {ns}.dispatch_queues (coalesce(client_id, 0), name);
CREATE INDEX dispatch_queues_version ON {ns}.dispatch_queues (version);

CREATE TABLE {ns}.dispatch_lanes (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id    integer NOT NULL REFERENCES {ns}.dispatch_queues (id),
    priority    smallint NOT NULL,
    event_type  text COLLATE "C",
    version     bigint NOT NULL DEFAULT 0,
    state       smallint NOT NULL DEFAULT 0,
    was_type    text,
    last_entry  bigint,
    retired_xid xid8,
    used_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX dispatch_lanes_key ON {ns}.dispatch_lanes (queue_id, coalesce(event_type, ''), priority);
CREATE INDEX dispatch_lanes_version ON {ns}.dispatch_lanes (version);
CREATE INDEX dispatch_lanes_idle ON {ns}.dispatch_lanes (used_at) WHERE state = 0;
CREATE INDEX dispatch_lanes_retired ON {ns}.dispatch_lanes (id) WHERE state = 1;
CREATE INDEX dispatch_lanes_gone ON {ns}.dispatch_lanes (id) WHERE state = 2;

CREATE TABLE {ns}.dispatch_queue (
    id                    bigint NOT NULL PRIMARY KEY,
    event_id              bigint NOT NULL,
    due_at                timestamptz,
    lease_until           timestamptz,
    processing_started_at timestamptz,
    updated_at            timestamptz,
    expires_at            timestamptz,
    token                 bigint NOT NULL DEFAULT 0,
    client_id             bigint,
    lane                  integer NOT NULL,
    queue_id              integer NOT NULL,
    attempts              integer NOT NULL DEFAULT 0,
    max_attempts          integer NOT NULL,
    generation            integer NOT NULL DEFAULT 1,
    rank                  integer NOT NULL DEFAULT 0,
    place                 smallint NOT NULL,
    exhausted_as          smallint NOT NULL,
    flags                 smallint,
    group_key             text COLLATE "C",
    worker                text COLLATE "C",
    last_error            text
) WITH (
    fillfactor = 36, -- as event_queue: a claim stays within its page
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX dispatch_queue_fresh ON {ns}.dispatch_queue (lane, id) WHERE place = 0;
CREATE INDEX dispatch_queue_timed ON {ns}.dispatch_queue (lane, due_at, id) WHERE place = 1;
CREATE INDEX dispatch_queue_parked ON {ns}.dispatch_queue (queue_id, group_key, rank, id) WHERE place IN (2, 3);
CREATE INDEX dispatch_queue_arrived ON {ns}.dispatch_queue (id) WHERE place = 3;
CREATE INDEX dispatch_queue_aside ON {ns}.dispatch_queue (queue_id, group_key, due_at, id) WHERE place = 4;
CREATE INDEX dispatch_queue_aside_due ON {ns}.dispatch_queue (queue_id, due_at) WHERE place = 4;
CREATE INDEX dispatch_queue_expiry ON {ns}.dispatch_queue (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX dispatch_queue_client ON {ns}.dispatch_queue (client_id, id) WHERE client_id IS NOT NULL;
CREATE UNIQUE INDEX dispatch_queue_group_head ON {ns}.dispatch_queue (queue_id, group_key)
    WHERE place < 2 AND group_key IS NOT NULL;

CREATE TABLE {ns}.dispatch_notes (
    queue_id  integer NOT NULL,
    group_key text NOT NULL
);

CREATE TABLE {ns}.dispatch_log (
    id                    bigint NOT NULL,
    event_id              bigint NOT NULL,
    xid                   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    finished_at           timestamptz NOT NULL,
    processing_started_at timestamptz,
    expires_at            timestamptz,
    token                 bigint NOT NULL,
    client_id             bigint,
    generation            integer NOT NULL,
    lane                  integer NOT NULL,
    queue_id              integer NOT NULL,
    attempts              integer NOT NULL,
    max_attempts          integer NOT NULL,
    rank                  integer NOT NULL DEFAULT 0,
    status                smallint NOT NULL,
    exhausted_as          smallint NOT NULL,
    superseded            smallint NOT NULL DEFAULT 0,
    flags                 smallint,
    group_key             text COLLATE "C",
    worker                text COLLATE "C",
    errors                text,
    results               text,
    PRIMARY KEY (id, generation)
) PARTITION BY RANGE (id);
CREATE TABLE {ns}.dispatch_log_default PARTITION OF {ns}.dispatch_log DEFAULT;
CREATE INDEX dispatch_log_dead_letters ON {ns}.dispatch_log (queue_id, id) WHERE status IN (1, 2) AND superseded = 0;

CREATE TABLE {ns}.dispatch_consumers (
    worker   text COLLATE "C" NOT NULL,
    queue_id integer NOT NULL REFERENCES {ns}.dispatch_queues (id),
    types    text[],
    seen_at  timestamptz NOT NULL,
    PRIMARY KEY (worker, queue_id)
);

-- Live and ended jobs as one, as the view entries shows entries.
CREATE VIEW {ns}.dispatch_jobs AS
SELECT q.id, q.generation, q.event_id, n.name AS queue, e.event_type, l.priority,
       CASE WHEN q.lease_until IS NULL THEN 'PENDING' ELSE 'PROCESSING' END AS status,
       q.attempts, q.max_attempts, q.token, q.due_at AS available_at, q.lease_until, q.processing_started_at,
       coalesce(q.updated_at, e.created_at) AS updated_at, e.created_at, q.worker, q.group_key, q.last_error AS errors,
       false AS superseded, e.payload, n.client_id
FROM {ns}.dispatch_queue q
JOIN {ns}.dispatch_queues n ON n.id = q.queue_id
LEFT JOIN {ns}.dispatch_lanes l ON l.id = q.lane
JOIN {ns}.events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.generation, g.event_id, n.name, e.event_type, l.priority,
       (ARRAY['COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED', 'CANCELLED'])[g.status + 1],
       g.attempts, g.max_attempts, g.token, NULL, NULL, g.processing_started_at,
       g.finished_at, e.created_at, g.worker, g.group_key, g.errors, g.superseded <> 0, e.payload, n.client_id
FROM {ns}.dispatch_log g
JOIN {ns}.dispatch_queues n ON n.id = g.queue_id
LEFT JOIN {ns}.dispatch_lanes l ON l.id = g.lane
JOIN {ns}.events e ON e.id = g.event_id;

-- One version for the catalogues of both families. The kinds of catalogue_removed: 0 queues, 1 lanes,
-- 2 dispatch_queues, 3 dispatch_lanes.
CREATE OR REPLACE FUNCTION {ns}.catalogue_changed() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    of_queues   boolean := TG_TABLE_NAME IN ('queues', 'dispatch_queues');
    the_ids     integer[];
    the_version bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n;
    ELSIF TG_OP = 'DELETE' AND of_queues THEN
        SELECT array_agg(o.id) INTO the_ids FROM old_rows o;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(o.id) INTO the_ids FROM old_rows o WHERE o.state < 2;
    ELSIF of_queues THEN
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n JOIN old_rows o ON o.id = n.id
        WHERE (n.client_id, n.name, n.state, n.depth_limit, n.settings)
              IS DISTINCT FROM (o.client_id, o.name, o.state, o.depth_limit, o.settings);
    ELSE
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n JOIN old_rows o ON o.id = n.id
        WHERE (n.queue_id, n.priority, n.event_type, n.state)
              IS DISTINCT FROM (o.queue_id, o.priority, o.event_type, o.state);
    END IF;
    IF the_ids IS NULL THEN
        RETURN NULL;
    END IF;
    UPDATE {ns}.store SET catalogue_version = catalogue_version + 1 RETURNING catalogue_version INTO the_version;
    IF TG_OP = 'DELETE' THEN
        INSERT INTO {ns}.catalogue_removed (kind, id, version)
        SELECT array_position(ARRAY['queues', 'lanes', 'dispatch_queues', 'dispatch_lanes'], TG_TABLE_NAME::text) - 1,
               i, the_version
        FROM unnest(the_ids) AS i
        ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version;
    ELSE
        EXECUTE format('UPDATE {ns}.%I SET version = $1 WHERE id = ANY ($2)', TG_TABLE_NAME) USING the_version, the_ids;
    END IF;
    RETURN NULL;
END
$body$;
DO $migrate$
DECLARE
    the_table text;
BEGIN
    FOREACH the_table IN ARRAY ARRAY['dispatch_queues', 'dispatch_lanes'] LOOP
        EXECUTE format('CREATE TRIGGER catalogue_made AFTER INSERT ON {ns}.%I REFERENCING NEW TABLE AS new_rows
                        FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed()', the_table);
        EXECUTE format('CREATE TRIGGER catalogue_changed AFTER UPDATE ON {ns}.%I
                        REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
                        FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed()', the_table);
        EXECUTE format('CREATE TRIGGER catalogue_removed AFTER DELETE ON {ns}.%I REFERENCING OLD TABLE AS old_rows
                        FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed()', the_table);
    END LOOP;
END
$migrate$;

-- Publishing by plain SQL: a kept or an expired entry is never replaced; one that is replaced has no expiry any more, and goes
-- on keeping its place if it did.
DO $migrate$
DECLARE
    change     text[];
    definition text;
BEGIN
    FOREACH change SLICE 1 IN ARRAY ARRAY[
        ['publish_key', 'q.lease_until IS NULL FOR UPDATE',
         'q.lease_until IS NULL AND coalesce(q.flags, 0) & 8 = 0
              AND (q.expires_at IS NULL OR q.expires_at > publish_key.moment) FOR UPDATE'],
        ['publish_event', 'SET event_id = the_event,', 'SET event_id = the_event, expires_at = NULL,'],
        ['publish_event', 'q.flags & 2::smallint', 'q.flags & 6::smallint']]
    LOOP
        definition := pg_get_functiondef(('{ns}.' || change[1])::regproc);
        IF strpos(definition, change[2]) = 0 THEN
            RAISE EXCEPTION 'tidegate: the function {ns}.% is not the one of schema 10', change[1];
        END IF;
        EXECUTE replace(definition, change[2], change[3]);
    END LOOP;
END
$migrate$;

-- A program of an older schema knows nothing of ranks, kept places and expiry, and must not go on. Each of its transactions
-- reads the catalogue's stamp: the row that has it moves to the table store, and what is left under the old name tells it to
-- upgrade. (A start of an older program reads the version there and refuses.)
ALTER TABLE {ns}.meta RENAME TO store;
ALTER TABLE {ns}.store RENAME COLUMN generation TO catalogue_version;
ALTER TABLE {ns}.store RENAME COLUMN catalogue_stamp TO stamp;
CREATE FUNCTION {ns}.outdated() RETURNS bigint LANGUAGE plpgsql STABLE AS $body$
BEGIN
    RAISE EXCEPTION 'tidegate: a newer program has migrated this database to schema 14: upgrade this one'
        USING ERRCODE = 'undefined_column';
END
$body$;
CREATE VIEW {ns}.meta AS
SELECT only_row, schema_version, oldest_compatible, id_offset, id_step, {ns}.outdated() AS generation,
       {ns}.outdated() AS catalogue_stamp, payload_limit, log_xid_offset, history, token_base
FROM {ns}.store;
-- With the rights to the table, so that whoever has them is told to upgrade, or starts.
DO $migrate$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s ON {ns}.meta TO %s%s', a.privilege_type,
                      CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                      CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = '{ns}.store'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE granted;
    END LOOP;
END
$migrate$;
CREATE OR REPLACE FUNCTION {ns}.catalogue_bumped() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.stamp := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
    DELETE FROM {ns}.catalogue_history
    WHERE version >= NEW.catalogue_version OR version <= NEW.catalogue_version - 1000;
    DELETE FROM {ns}.catalogue_removed WHERE version <= NEW.catalogue_version - 1000;
    INSERT INTO {ns}.catalogue_history (version, stamp) VALUES (NEW.catalogue_version, NEW.stamp);
    RETURN NEW;
END
$body$;
-- The other functions read the table under its new name: whoever may read it needs no right to the view.
DO $migrate$
DECLARE
    the_function regprocedure;
BEGIN
    FOR the_function IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = '{ns}'::regnamespace AND p.prokind = 'f' AND strpos(p.prosrc, '{ns}.meta') > 0
    LOOP
        EXECUTE replace(pg_get_functiondef(the_function), '{ns}.meta', '{ns}.store');
    END LOOP;
END
$migrate$;

INSERT INTO {ns}.dispatch_queues (name) VALUES ('default');
