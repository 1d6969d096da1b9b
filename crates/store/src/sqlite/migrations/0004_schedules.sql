-- A row is changed with the publish of its tick, so that each tick happens once across all processes.
CREATE TABLE {ns}_schedules (
    name       TEXT PRIMARY KEY,
    cron       TEXT NOT NULL,
    timezone   TEXT NOT NULL,
    missed     INTEGER NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    template   TEXT NOT NULL, -- the event to publish, JSON
    next_at    INTEGER NOT NULL,
    last_at    INTEGER,
    last_entry INTEGER,
    ticks      INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
