-- Readers of the log go by (xid, id), the order of commits. A dump that is restored into a cluster whose transaction ids are
-- lower would begin again below them: from then on new rows get their transaction's id plus log_xid_offset, so that the order
-- goes on (see `projections::continue_order`).
ALTER TABLE {ns}.meta ADD COLUMN log_xid_offset bigint NOT NULL DEFAULT 0;
CREATE INDEX event_log_commits ON {ns}.event_log (xid, id);

CREATE TABLE {ns}.projections (
    name         text NOT NULL,
    version      integer NOT NULL,
    state        smallint NOT NULL DEFAULT 0, -- 0 building, 1 active, 2 retired
    xid          xid8 NOT NULL DEFAULT '0',
    id           bigint NOT NULL DEFAULT 0,
    events       bigint NOT NULL DEFAULT 0,
    token        bigint NOT NULL DEFAULT 0,
    reader       text,
    reader_until timestamptz,
    failed_entry bigint,
    failures     integer NOT NULL DEFAULT 0,
    error        text,
    retry_at     timestamptz,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
) WITH (
    fillfactor = 10, -- a position is updated with every batch, within its page
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

CREATE TABLE {ns}.projection_documents (
    projection text NOT NULL,
    version    integer NOT NULL,
    key        text COLLATE "C" NOT NULL,
    document   bytea NOT NULL,
    PRIMARY KEY (projection, version, key)
) WITH (
    fillfactor = 70, -- documents are rewritten again and again, mostly within their page
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
