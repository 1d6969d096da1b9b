-- The catalogue (queues and lanes) has a version, meta.generation, and a stamp that is drawn at random with every version:
-- two histories of one database (a restore, a failover that lost commits) may share a number, never a stamp. Triggers raise
-- the version with every change of a row, whoever makes it, and write it into the row. So a process loads what changed since
-- the version it knows, if it finds that version with its stamp in the history, else everything.
ALTER TABLE {ns}.meta ADD COLUMN catalogue_stamp bigint NOT NULL DEFAULT 0;
ALTER TABLE {ns}.queues ADD COLUMN version bigint NOT NULL DEFAULT 0;
-- state: 0 takes entries; 1 retired: no more entries, those it has are still claimed; 2 gone, kept for the entries in the log
-- that were in it. A lane that is not in state 0 keeps its type in was_type: its key is free for another lane.
ALTER TABLE {ns}.lanes
    ADD COLUMN version bigint NOT NULL DEFAULT 0,
    ADD COLUMN state smallint NOT NULL DEFAULT 0,
    ADD COLUMN was_type text,
    ADD COLUMN last_entry bigint, -- once it is gone: no entry with a higher number was in it
    ADD COLUMN retired_xid xid8, -- once transactions below it are over, nobody can still be adding entries
    ADD COLUMN used_at timestamptz NOT NULL DEFAULT clock_timestamp(); -- about when it was last claimed from
CREATE INDEX queues_version ON {ns}.queues (version);
CREATE INDEX lanes_version ON {ns}.lanes (version);
CREATE INDEX lanes_idle ON {ns}.lanes (used_at) WHERE state = 0;
CREATE INDEX lanes_retired ON {ns}.lanes (id) WHERE state = 1;
CREATE INDEX lanes_gone ON {ns}.lanes (id) WHERE state = 2;

CREATE TABLE {ns}.catalogue_history (
    version bigint PRIMARY KEY,
    stamp   bigint NOT NULL
);
-- Rows that were deleted: queues (kind 0) and lanes (kind 1).
CREATE TABLE {ns}.catalogue_removed (
    kind    smallint NOT NULL,
    id      integer NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE INDEX catalogue_removed_version ON {ns}.catalogue_removed (version);

CREATE FUNCTION {ns}.catalogue_bumped() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.catalogue_stamp := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
    DELETE FROM {ns}.catalogue_history WHERE version >= NEW.generation OR version <= NEW.generation - 1000;
    DELETE FROM {ns}.catalogue_removed WHERE version <= NEW.generation - 1000;
    INSERT INTO {ns}.catalogue_history (version, stamp) VALUES (NEW.generation, NEW.catalogue_stamp);
    RETURN NEW;
END
$body$;
CREATE TRIGGER catalogue_bumped BEFORE UPDATE OF generation ON {ns}.meta
    FOR EACH ROW WHEN (NEW.generation > OLD.generation) EXECUTE FUNCTION {ns}.catalogue_bumped();

-- Once per statement, and only for rows that are different now.
CREATE FUNCTION {ns}.catalogue_changed() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    the_ids     integer[];
    the_version bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n;
    ELSIF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'queues' THEN
        SELECT array_agg(o.id) INTO the_ids FROM old_rows o;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(o.id) INTO the_ids FROM old_rows o WHERE o.state < 2;
    ELSIF TG_TABLE_NAME = 'queues' THEN
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n JOIN old_rows o ON o.id = n.id
        WHERE (n.client_id, n.name, n.state, n.depth_limit, n.settings)
              IS DISTINCT FROM (o.client_id, o.name, o.state, o.depth_limit, o.settings);
    ELSE
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n JOIN old_rows o ON o.id = n.id
        WHERE (n.queue_id, n.priority, n.event_type, n.state) IS DISTINCT FROM (o.queue_id, o.priority, o.event_type, o.state);
    END IF;
    IF the_ids IS NULL THEN
        RETURN NULL;
    END IF;
    UPDATE {ns}.meta SET generation = generation + 1 RETURNING generation INTO the_version;
    IF TG_OP = 'DELETE' THEN
        INSERT INTO {ns}.catalogue_removed (kind, id, version)
        SELECT CASE TG_TABLE_NAME WHEN 'queues' THEN 0 ELSE 1 END, i, the_version FROM unnest(the_ids) AS i
        ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version;
    ELSIF TG_TABLE_NAME = 'queues' THEN
        UPDATE {ns}.queues SET version = the_version WHERE id = ANY (the_ids);
    ELSE
        UPDATE {ns}.lanes SET version = the_version WHERE id = ANY (the_ids);
    END IF;
    RETURN NULL;
END
$body$;
CREATE TRIGGER catalogue_made AFTER INSERT ON {ns}.queues REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed();
CREATE TRIGGER catalogue_changed AFTER UPDATE ON {ns}.queues REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed();
CREATE TRIGGER catalogue_removed AFTER DELETE ON {ns}.queues REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed();
CREATE TRIGGER catalogue_made AFTER INSERT ON {ns}.lanes REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed();
CREATE TRIGGER catalogue_changed AFTER UPDATE ON {ns}.lanes REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed();
CREATE TRIGGER catalogue_removed AFTER DELETE ON {ns}.lanes REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.catalogue_changed();
UPDATE {ns}.meta SET generation = generation + 1;

-- Maintenance that one process does for all: whoever holds the lease.
CREATE TABLE {ns}.maintenance (
    task   text PRIMARY KEY,
    holder text NOT NULL,
    until  timestamptz NOT NULL
);
