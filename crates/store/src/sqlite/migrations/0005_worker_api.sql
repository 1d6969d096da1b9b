-- What pull workers need. Entries without tags pay nothing for it.
ALTER TABLE {ns}_events ADD COLUMN title TEXT;
ALTER TABLE {ns}_events ADD COLUMN description TEXT;
ALTER TABLE {ns}_events ADD COLUMN tags TEXT; -- separated by commas
ALTER TABLE {ns}_events ADD COLUMN retry TEXT; -- JSON
-- 1 has tags, 2 the audit knows of a claim; null where neither.
ALTER TABLE {ns}_event_queue ADD COLUMN flags INTEGER;
ALTER TABLE {ns}_event_log ADD COLUMN flags INTEGER;
ALTER TABLE {ns}_deduplication ADD COLUMN fingerprint INTEGER;
-- Until now 1 stood for both; from now on 1 is redriven, 2 discarded.
UPDATE {ns}_event_log SET superseded = 2
WHERE superseded = 1 AND id NOT IN (SELECT id FROM {ns}_event_queue)
  AND NOT EXISTS (SELECT 1 FROM {ns}_event_log later WHERE later.id = {ns}_event_log.id AND later.generation > {ns}_event_log.generation);
CREATE INDEX {ns}_event_log_ends ON {ns}_event_log (status, id) WHERE status > 0;
CREATE INDEX {ns}_event_log_superseded ON {ns}_event_log (status, id) WHERE superseded = 1;

-- The tags of live entries. rank is the entry's number while it is ready (state 0) or parked (2), its due moment while it
-- is timed (1), and the end of its lease while it is held (3).
CREATE TABLE {ns}_event_tags (
    tag      TEXT NOT NULL,
    entry_id INTEGER NOT NULL,
    queue_id INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    rank     INTEGER NOT NULL,
    PRIMARY KEY (tag, entry_id)
) WITHOUT ROWID;
CREATE INDEX {ns}_event_tags_rank ON {ns}_event_tags (queue_id, tag, state, priority, rank, entry_id);

-- The tags of ended entries, with how they ended.
CREATE TABLE {ns}_log_tags (
    tag      TEXT NOT NULL,
    status   INTEGER NOT NULL,
    entry_id INTEGER NOT NULL,
    PRIMARY KEY (tag, status, entry_id)
) WITHOUT ROWID;

-- Log rows counted up to a row, by status; and the same by tag and status.
CREATE TABLE {ns}_log_counts (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    seq      INTEGER NOT NULL,
    counts   TEXT NOT NULL -- JSON list by status
);
INSERT INTO {ns}_log_counts (only_row, seq, counts) VALUES (1, 0, '[0,0,0,0]');
CREATE TABLE {ns}_tag_counts (
    tag    TEXT NOT NULL,
    status INTEGER NOT NULL,
    rows   INTEGER NOT NULL,
    PRIMARY KEY (tag, status)
) WITHOUT ROWID;

-- What workers did: append-only.
CREATE TABLE {ns}_event_audit (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    entry_id          INTEGER NOT NULL,
    action            INTEGER NOT NULL,
    worker            TEXT,
    generation        INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    token             INTEGER NOT NULL,
    status_code       INTEGER,
    execution_time_ms INTEGER,
    message           TEXT,
    next_retry_at     INTEGER,
    retry_count       INTEGER,
    max_retries       INTEGER,
    created_at        INTEGER NOT NULL
);
CREATE INDEX {ns}_event_audit_entry ON {ns}_event_audit (entry_id, id);

CREATE TABLE {ns}_api_keys (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    hash         BLOB NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    scopes       TEXT NOT NULL, -- JSON list
    client_id    INTEGER,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at   INTEGER
);
