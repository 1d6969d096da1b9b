-- Lists whose cost follows the page: what a client, a queue, a type, a worker or a tag has, in the order of numbers and by
-- how it ended. Entries that belong to no client pay nothing for the indexes of clients, and a claim touches no column that
-- any of these knows.
ALTER TABLE {ns}.event_tags ADD COLUMN client_id bigint; -- as its queue's
ALTER TABLE {ns}.log_tags ADD COLUMN client_id bigint;
-- The rows that there are get theirs, and lists their indexes, after this transaction (see indexes.rs).

-- What was redriven is passed over in none of the lists: it is built anew.
DROP INDEX {ns}.event_log_ends;

-- In which stretches of 32 numbers a lane or a worker has ended entries, by how they ended. Upkeep writes it with the counts,
-- so that an end pays for no index of these. A worker stands under its client and, for everybody, under client 0.
CREATE TABLE {ns}.log_lanes (
    lane    integer NOT NULL,
    status  smallint NOT NULL,
    stretch bigint NOT NULL,
    PRIMARY KEY (lane, status, stretch)
);
CREATE INDEX log_lanes_stretch ON {ns}.log_lanes (stretch);
CREATE TABLE {ns}.log_workers (
    client_id bigint NOT NULL,
    worker    text COLLATE "C" NOT NULL,
    status    smallint NOT NULL,
    stretch   bigint NOT NULL,
    PRIMARY KEY (client_id, worker, status, stretch)
);
CREATE INDEX log_workers_stretch ON {ns}.log_workers (stretch);

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
