-- Lists whose cost follows the page: what a client, a queue, a type, a worker or a tag has, in the order of numbers and by
-- how it ended. Entries that belong to no client pay nothing for the indexes of clients, and a claim touches no column that
-- any of these knows.
ALTER TABLE {ns}.event_tags ADD COLUMN client_id bigint; -- as its queue's
ALTER TABLE {ns}.log_tags ADD COLUMN client_id bigint;
UPDATE {ns}.event_tags t SET client_id = n.client_id
FROM {ns}.queues n WHERE n.id = t.queue_id AND n.client_id IS NOT NULL;
UPDATE {ns}.log_tags t SET client_id = g.client_id
FROM {ns}.event_log g WHERE g.id = t.entry_id AND g.client_id IS NOT NULL;
CREATE INDEX event_tags_client ON {ns}.event_tags (client_id, tag, entry_id) WHERE client_id IS NOT NULL;
CREATE INDEX log_tags_client ON {ns}.log_tags (client_id, tag, status, entry_id) WHERE client_id IS NOT NULL;

CREATE INDEX event_queue_client ON {ns}.event_queue (client_id, id) WHERE client_id IS NOT NULL;
-- Beside event_queue_fresh: what waits for its moment or its turn, by number.
CREATE INDEX event_queue_waiting ON {ns}.event_queue (lane, id) WHERE place IN (1, 2);
CREATE INDEX event_log_client ON {ns}.event_log (client_id, status, id) WHERE client_id IS NOT NULL AND superseded <> 1;
CREATE INDEX event_log_lane ON {ns}.event_log (lane, status, id) WHERE superseded <> 1;
-- What was redriven is passed over in none of the lists.
DROP INDEX {ns}.event_log_ends;
CREATE INDEX event_log_ends ON {ns}.event_log (status, id) WHERE status > 0 AND superseded <> 1;
CREATE INDEX event_log_redriven ON {ns}.event_log (client_id, status, id) WHERE client_id IS NOT NULL AND superseded = 1;

-- Log rows counted, by client and status (tag '') and by client, tag and status. Everything is counted anew.
CREATE TABLE {ns}.client_counts (
    client_id bigint NOT NULL,
    tag       text COLLATE "C" NOT NULL,
    status    smallint NOT NULL,
    rows      bigint NOT NULL,
    PRIMARY KEY (client_id, tag, status)
);
DELETE FROM {ns}.tag_counts;
UPDATE {ns}.log_counts SET xid = '0', counts = '{0,0,0,0}';
