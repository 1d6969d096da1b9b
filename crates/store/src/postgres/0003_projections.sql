-- Readers of the log go by (epoch, xid, id). The epoch rises when the cluster's transaction ids start anew below those of
-- the log, that is after a dump was restored elsewhere.
ALTER TABLE {ns}.event_log ADD COLUMN epoch integer NOT NULL DEFAULT 1;
CREATE INDEX event_log_commits ON {ns}.event_log (xid, id);

CREATE TABLE {ns}.projections (
    name         text NOT NULL,
    version      integer NOT NULL,
    state        smallint NOT NULL DEFAULT 0, -- 0 building, 1 active, 2 retired
    epoch        integer NOT NULL DEFAULT 1,
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
);

CREATE TABLE {ns}.projection_documents (
    projection text NOT NULL,
    version    integer NOT NULL,
    key        text NOT NULL,
    document   bytea NOT NULL,
    PRIMARY KEY (projection, version, key)
);
