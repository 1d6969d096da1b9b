-- What deliveries need: the limits of pools that hold across nodes, and what came of attempts. A pool is (pool, client_id),
-- each 0 for none: the built-in default pool of a client has no number, any other no client.
CREATE TABLE {ns}_dispatch_slots (
    pool      INTEGER NOT NULL,
    client_id INTEGER NOT NULL,
    node      TEXT NOT NULL,
    slots     INTEGER NOT NULL, -- the node's until `until`
    wanted    INTEGER NOT NULL, -- those that it could use
    since     INTEGER NOT NULL, -- since when it has held so many
    until     INTEGER NOT NULL,
    PRIMARY KEY (pool, client_id, node)
) WITHOUT ROWID;
CREATE TABLE {ns}_dispatch_rates (
    pool      INTEGER NOT NULL,
    client_id INTEGER NOT NULL,
    moment    INTEGER NOT NULL, -- when the next delivery may begin
    PRIMARY KEY (pool, client_id)
) WITHOUT ROWID;

-- The records of attempts, JSON: in the log that of the attempt by which the job ended, here those of all others.
ALTER TABLE {ns}_dispatch_log ADD COLUMN attempt TEXT;
CREATE TABLE {ns}_dispatch_attempts (
    job        INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    record     TEXT NOT NULL,
    PRIMARY KEY (job, generation, attempt)
) WITHOUT ROWID;
