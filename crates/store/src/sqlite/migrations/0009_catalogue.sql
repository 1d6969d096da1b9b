-- The catalogue (queues and lanes) has a version, meta.generation, and a stamp that is drawn at random with every version:
-- two histories of one database (a restored file) may share a number, never a stamp. Triggers raise the version with every
-- change of a row, whoever makes it, and write it into the row. So a process forgets what changed since the version it knows,
-- if it finds that version with its stamp in the history, else everything.
ALTER TABLE {ns}_meta ADD COLUMN catalogue_stamp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {ns}_queues ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
-- state: 0 takes entries; 2 gone, kept for the entries in the log that were in it. Such a lane keeps its type in was_type: its
-- key is free for another lane, and no entry with a number above last_entry was in it. used_at: about when it was last used.
ALTER TABLE {ns}_lanes ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {ns}_lanes ADD COLUMN state INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {ns}_lanes ADD COLUMN was_type TEXT;
ALTER TABLE {ns}_lanes ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {ns}_lanes ADD COLUMN last_entry INTEGER;
CREATE INDEX {ns}_queues_version ON {ns}_queues (version);
CREATE INDEX {ns}_lanes_version ON {ns}_lanes (version);
CREATE INDEX {ns}_lanes_idle ON {ns}_lanes (used_at) WHERE state = 0;
CREATE INDEX {ns}_lanes_gone ON {ns}_lanes (version) WHERE state = 2;

CREATE TABLE {ns}_catalogue_history (
    version INTEGER PRIMARY KEY,
    stamp   INTEGER NOT NULL
);
-- Rows that were deleted: queues (kind 0) and lanes (kind 1, with the queue's id).
CREATE TABLE {ns}_catalogue_removed (
    kind     INTEGER NOT NULL,
    id       INTEGER NOT NULL,
    queue_id INTEGER NOT NULL,
    version  INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE INDEX {ns}_catalogue_removed_version ON {ns}_catalogue_removed (version);

CREATE TRIGGER {ns}_catalogue_bumped AFTER UPDATE OF generation ON {ns}_meta WHEN NEW.generation > OLD.generation
BEGIN
    UPDATE {ns}_meta SET catalogue_stamp = random();
    DELETE FROM {ns}_catalogue_history WHERE version >= NEW.generation OR version <= NEW.generation - 1000;
    DELETE FROM {ns}_catalogue_removed WHERE version <= NEW.generation - 1000;
    INSERT INTO {ns}_catalogue_history (version, stamp) SELECT generation, catalogue_stamp FROM {ns}_meta;
END;
CREATE TRIGGER {ns}_queue_made AFTER INSERT ON {ns}_queues
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_queues SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_queue_changed AFTER UPDATE OF client_id, name, state, depth_limit, settings ON {ns}_queues
WHEN OLD.client_id IS NOT NEW.client_id OR OLD.name IS NOT NEW.name OR OLD.state IS NOT NEW.state
    OR OLD.depth_limit IS NOT NEW.depth_limit OR OLD.settings IS NOT NEW.settings
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_queues SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_queue_removed AFTER DELETE ON {ns}_queues
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    INSERT OR REPLACE INTO {ns}_catalogue_removed (kind, id, queue_id, version)
    SELECT 0, OLD.id, OLD.id, generation FROM {ns}_meta;
END;
CREATE TRIGGER {ns}_lane_made AFTER INSERT ON {ns}_lanes
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_lanes SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_lane_changed AFTER UPDATE OF queue_id, priority, event_type, state ON {ns}_lanes
WHEN OLD.queue_id IS NOT NEW.queue_id OR OLD.priority IS NOT NEW.priority OR OLD.event_type IS NOT NEW.event_type
    OR OLD.state IS NOT NEW.state
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    UPDATE {ns}_lanes SET version = (SELECT generation FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_lane_removed AFTER DELETE ON {ns}_lanes WHEN OLD.state < 2
BEGIN
    UPDATE {ns}_meta SET generation = generation + 1;
    INSERT OR REPLACE INTO {ns}_catalogue_removed (kind, id, queue_id, version)
    SELECT 1, OLD.id, OLD.queue_id, generation FROM {ns}_meta;
END;
UPDATE {ns}_meta SET generation = generation + 1;

-- Maintenance that one process does for all: whoever holds the lease.
CREATE TABLE {ns}_maintenance (
    task   TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until  INTEGER NOT NULL
) WITHOUT ROWID;
