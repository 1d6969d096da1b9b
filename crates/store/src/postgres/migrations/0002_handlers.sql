-- What handlers answered while their entry is still live; an entry that ends at once has none, its log row has the results.
CREATE TABLE {ns}.event_handler_states (
    entry_id    bigint NOT NULL,
    handler     text NOT NULL,
    generation  integer NOT NULL,
    result      text NOT NULL, -- JSON
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (entry_id, handler)
);
