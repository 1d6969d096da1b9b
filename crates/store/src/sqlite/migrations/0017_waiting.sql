-- A list of three places in an index's condition costs each write to the table a lookup in a temporary table: two
-- comparisons say the same.
DROP INDEX {ns}_event_queue_waiting;
CREATE INDEX {ns}_event_queue_waiting ON {ns}_event_queue (lane) WHERE place > 0 AND place <> 3;
DROP INDEX {ns}_dispatch_queue_waiting;
CREATE INDEX {ns}_dispatch_queue_waiting ON {ns}_dispatch_queue (lane) WHERE place > 0 AND place <> 3;
