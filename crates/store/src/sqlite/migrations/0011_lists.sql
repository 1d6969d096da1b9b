-- Lists whose cost follows the page: what a client, a queue, a type, a worker or a tag has, in the order of numbers and by
-- how it ended. Entries that belong to no client pay nothing for the indexes of clients, and a claim touches no column that
-- any of these knows.
ALTER TABLE {ns}_event_tags ADD COLUMN client_id INTEGER; -- as its queue's
ALTER TABLE {ns}_log_tags ADD COLUMN client_id INTEGER;
UPDATE {ns}_event_tags SET client_id = (SELECT n.client_id FROM {ns}_queues n WHERE n.id = queue_id)
WHERE queue_id IN (SELECT n.id FROM {ns}_queues n WHERE n.client_id IS NOT NULL);
UPDATE {ns}_log_tags SET client_id = (SELECT g.client_id FROM {ns}_event_log g WHERE g.id = entry_id ORDER BY g.generation DESC LIMIT 1)
WHERE EXISTS (SELECT 1 FROM {ns}_event_log g WHERE g.id = entry_id AND g.client_id IS NOT NULL);
CREATE INDEX {ns}_event_tags_client ON {ns}_event_tags (client_id, tag, entry_id) WHERE client_id IS NOT NULL;
CREATE INDEX {ns}_log_tags_client ON {ns}_log_tags (client_id, tag, status, entry_id) WHERE client_id IS NOT NULL;

CREATE INDEX {ns}_event_queue_client ON {ns}_event_queue (client_id) WHERE client_id IS NOT NULL;
-- Beside event_queue_fresh: what waits for its moment or its turn, by number.
CREATE INDEX {ns}_event_queue_waiting ON {ns}_event_queue (lane) WHERE place IN (1, 2);
CREATE INDEX {ns}_event_log_client ON {ns}_event_log (client_id, status, id) WHERE client_id IS NOT NULL AND superseded <> 1;
-- What ended before it was sorted into a lane.
CREATE INDEX {ns}_event_log_unsorted ON {ns}_event_log (lane) WHERE lane < 0 AND superseded <> 1;
-- What was redriven is passed over in none of the lists.
DROP INDEX {ns}_event_log_ends;
CREATE INDEX {ns}_event_log_ends ON {ns}_event_log (status, id) WHERE status > 0 AND superseded <> 1;
CREATE INDEX {ns}_event_log_redriven ON {ns}_event_log (client_id, status, id) WHERE client_id IS NOT NULL AND superseded = 1;

-- In which stretches of 32 numbers a lane or a worker has ended entries, by how they ended. Upkeep writes it with the counts,
-- so that an end pays for no index of these. A worker stands under its client and, for everybody, under client 0.
CREATE TABLE {ns}_log_lanes (
    lane    INTEGER NOT NULL,
    status  INTEGER NOT NULL,
    stretch INTEGER NOT NULL,
    PRIMARY KEY (lane, status, stretch)
) WITHOUT ROWID;
CREATE INDEX {ns}_log_lanes_stretch ON {ns}_log_lanes (stretch);
CREATE TABLE {ns}_log_workers (
    client_id INTEGER NOT NULL,
    worker    TEXT NOT NULL,
    status    INTEGER NOT NULL,
    stretch   INTEGER NOT NULL,
    PRIMARY KEY (client_id, worker, status, stretch)
) WITHOUT ROWID;
CREATE INDEX {ns}_log_workers_stretch ON {ns}_log_workers (stretch);

-- Log rows counted, by client and status (tag '') and by client, tag and status. Everything is counted anew.
CREATE TABLE {ns}_client_counts (
    client_id INTEGER NOT NULL,
    tag       TEXT NOT NULL,
    status    INTEGER NOT NULL,
    rows      INTEGER NOT NULL,
    PRIMARY KEY (client_id, tag, status)
) WITHOUT ROWID;
DELETE FROM {ns}_tag_counts;
UPDATE {ns}_log_counts SET seq = 0, counts = '[0,0,0,0]';
