-- What deliveries need: the limits of pools that hold across nodes, and what came of attempts. A pool is (pool, client_id),
-- each 0 for none: the built-in default pool of a client has no number, any other no client.
CREATE TABLE {ns}.dispatch_slots (
    pool      bigint NOT NULL,
    client_id bigint NOT NULL,
    node      text COLLATE "C" NOT NULL,
    slots     integer NOT NULL,     -- the node's until `until`
    wanted    integer NOT NULL,     -- those that it could use
    since     timestamptz NOT NULL, -- since when it has held so many
    until     timestamptz NOT NULL,
    PRIMARY KEY (pool, client_id, node)
) WITH (
    fillfactor = 50, -- every row is written several times a second, and stays within its page
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0
);
CREATE TABLE {ns}.dispatch_rates (
    pool      bigint NOT NULL,
    client_id bigint NOT NULL,
    moment    timestamptz NOT NULL, -- when the next delivery may begin
    PRIMARY KEY (pool, client_id)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0
);

-- The records of attempts, JSON: in the log that of the attempt by which the job ended, here those of all others.
ALTER TABLE {ns}.dispatch_log ADD COLUMN attempt text;
CREATE TABLE {ns}.dispatch_attempts (
    job        bigint NOT NULL,
    generation integer NOT NULL,
    attempt    integer NOT NULL,
    record     text NOT NULL,
    PRIMARY KEY (job, generation, attempt)
);
