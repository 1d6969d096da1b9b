-- A row is changed with the publish of its tick, so that each tick happens once across all nodes.
CREATE TABLE {ns}.schedules (
    name       text PRIMARY KEY,
    cron       text NOT NULL,
    timezone   text NOT NULL,
    missed     smallint NOT NULL,
    paused     boolean NOT NULL DEFAULT false,
    template   text NOT NULL, -- the event to publish, JSON
    next_at    timestamptz NOT NULL,
    last_at    timestamptz,
    last_entry bigint,
    ticks      bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
