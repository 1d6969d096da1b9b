-- What pull workers need. Entries without tags pay nothing for it.
ALTER TABLE {ns}.events
    ADD COLUMN title text, ADD COLUMN description text,
    ADD COLUMN tags text, -- separated by commas
    ADD COLUMN retry text; -- JSON
-- 1 has tags, 2 the audit knows of a claim; null where neither.
ALTER TABLE {ns}.event_queue ADD COLUMN flags smallint;
ALTER TABLE {ns}.event_log ADD COLUMN flags smallint;
ALTER TABLE {ns}.deduplication ADD COLUMN fingerprint bigint;
CREATE INDEX event_log_ends ON {ns}.event_log (status, id) WHERE status > 0;
CREATE INDEX event_log_superseded ON {ns}.event_log (status, id) WHERE superseded = 1;

-- The tags of live entries. rank is the entry's number while it is ready (state 0) or parked (2), its due moment while it
-- is timed (1), and the end of its lease while it is held (3); moments in microseconds since 1970.
CREATE TABLE {ns}.event_tags (
    entry_id bigint NOT NULL,
    rank     bigint NOT NULL,
    queue_id integer NOT NULL,
    state    smallint NOT NULL,
    priority smallint NOT NULL,
    tag      text COLLATE "C" NOT NULL,
    PRIMARY KEY (tag, entry_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX event_tags_rank ON {ns}.event_tags (queue_id, tag, state, priority, rank, entry_id);

-- The tags of ended entries, with how they ended.
CREATE TABLE {ns}.log_tags (
    entry_id bigint NOT NULL,
    status   smallint NOT NULL,
    tag      text COLLATE "C" NOT NULL,
    PRIMARY KEY (tag, status, entry_id)
);

-- Log rows counted: all of transactions below xid, by status; and the same by tag and status.
CREATE TABLE {ns}.log_counts (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xid      xid8 NOT NULL,
    counts   bigint[] NOT NULL
);
INSERT INTO {ns}.log_counts (xid, counts) VALUES ('0', '{0,0,0,0}');
CREATE TABLE {ns}.tag_counts (
    tag    text COLLATE "C" NOT NULL,
    status smallint NOT NULL,
    rows   bigint NOT NULL,
    PRIMARY KEY (tag, status)
);

-- What workers did: append-only.
CREATE TABLE {ns}.event_audit (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entry_id          bigint NOT NULL,
    token             bigint NOT NULL,
    created_at        timestamptz NOT NULL,
    next_retry_at     timestamptz,
    execution_time_ms bigint,
    generation        integer NOT NULL,
    attempt           integer NOT NULL,
    status_code       integer,
    retry_count       integer,
    max_retries       integer,
    action            smallint NOT NULL,
    worker            text,
    message           text
);
CREATE INDEX event_audit_entry ON {ns}.event_audit (entry_id, id);

CREATE TABLE {ns}.api_keys (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash         bytea NOT NULL UNIQUE,
    name         text NOT NULL,
    scopes       text NOT NULL, -- JSON list
    client_id    bigint,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_used_at timestamptz,
    revoked_at   timestamptz
);
