-- Readers of the log go by its seq, which is drawn in the order of commits.
CREATE TABLE {ns}_projections (
    name         TEXT NOT NULL,
    version      INTEGER NOT NULL,
    state        INTEGER NOT NULL DEFAULT 0, -- 0 building, 1 active, 2 retired
    seq          INTEGER NOT NULL DEFAULT 0,
    events       INTEGER NOT NULL DEFAULT 0,
    token        INTEGER NOT NULL DEFAULT 0,
    reader       TEXT,
    reader_until INTEGER,
    failed_entry INTEGER,
    failures     INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    retry_at     INTEGER,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;

CREATE TABLE {ns}_projection_documents (
    projection TEXT NOT NULL,
    version    INTEGER NOT NULL,
    key        TEXT NOT NULL,
    document   BLOB NOT NULL,
    PRIMARY KEY (projection, version, key)
) WITHOUT ROWID;
