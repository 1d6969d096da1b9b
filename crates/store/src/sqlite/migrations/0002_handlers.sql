-- What handlers answered while their entry is still live; an entry that ends at once has none, its log row has the results.
CREATE TABLE {ns}_event_handler_states (
    entry_id    INTEGER NOT NULL,
    handler     TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    result      TEXT NOT NULL, -- JSON
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (entry_id, handler)
) WITHOUT ROWID;
