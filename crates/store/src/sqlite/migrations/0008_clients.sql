-- A queue is (client, name). Until now a client's queue had its name under a prefix of the client's id and belonged to
-- nobody; entries and log rows had their event's client.
UPDATE {ns}_queues
SET name = substr(name, 15),
    client_id = (WITH RECURSIVE digits(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM digits WHERE i < 13)
                 SELECT sum((instr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr({ns}_queues.name, i, 1)) - 1) << (65 - 5 * i))
                 FROM digits)
WHERE client_id IS NULL AND length(name) > 14 AND name NOT GLOB '0000000000000/*'
  AND name GLOB '[0-9A-F][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z]'
             || '[0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z]'
             || '[0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z]/?*';
-- What nobody's key published into a client's queue is the client's.
UPDATE {ns}_events SET client_id = (
    SELECT n.client_id FROM {ns}_event_queue q JOIN {ns}_queues n ON n.id = q.queue_id WHERE q.event_id = {ns}_events.id)
WHERE id IN (SELECT q.event_id FROM {ns}_event_queue q JOIN {ns}_queues n ON n.id = q.queue_id
             WHERE n.client_id IS NOT NULL AND q.client_id IS NOT n.client_id);
UPDATE {ns}_events SET client_id = (
    SELECT n.client_id FROM {ns}_event_log g JOIN {ns}_queues n ON n.id = g.queue_id WHERE g.event_id = {ns}_events.id)
WHERE id IN (SELECT g.event_id FROM {ns}_event_log g JOIN {ns}_queues n ON n.id = g.queue_id
             WHERE n.client_id IS NOT NULL AND g.client_id IS NOT n.client_id);
UPDATE {ns}_event_queue SET client_id = (SELECT n.client_id FROM {ns}_queues n WHERE n.id = queue_id)
WHERE client_id IS NOT (SELECT n.client_id FROM {ns}_queues n WHERE n.id = queue_id);
UPDATE {ns}_event_log SET client_id = (SELECT n.client_id FROM {ns}_queues n WHERE n.id = queue_id)
WHERE client_id IS NOT (SELECT n.client_id FROM {ns}_queues n WHERE n.id = queue_id);
UPDATE OR IGNORE {ns}_deduplication SET client_id = (SELECT n.client_id FROM {ns}_queues n WHERE n.id = scope)
WHERE kind = 0 AND client_id = 0 AND scope IN (SELECT n.id FROM {ns}_queues n WHERE n.client_id IS NOT NULL);
UPDATE {ns}_schedules
SET template = json_set(template, '$.queue',
    substr(json_extract(template, '$.queue'), 15) || '@' || substr(json_extract(template, '$.queue'), 1, 13))
WHERE length(json_extract(template, '$.queue')) > 14 AND json_extract(template, '$.queue') NOT GLOB '0000000000000/*'
  AND json_extract(template, '$.queue')
      GLOB '[0-9A-F][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z]'
        || '[0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z]'
        || '[0-9A-HJKMNP-TV-Z][0-9A-HJKMNP-TV-Z]/?*';
-- Every process reads the queues anew.
UPDATE {ns}_meta SET generation = generation + 1;

DROP VIEW {ns}_entries;
CREATE VIEW {ns}_entries AS
SELECT q.id, q.generation, q.event_id, n.name AS queue, e.event_type, coalesce(l.priority, -1000 - q.lane) AS priority,
       CASE WHEN q.lease_until IS NULL THEN 'PENDING' ELSE 'PROCESSING' END AS status,
       q.attempts, q.max_attempts, q.token, q.due_at AS available_at, q.lease_until, q.processing_started_at,
       coalesce(q.updated_at, e.created_at) AS updated_at, e.created_at, q.worker, q.group_key, q.last_error AS errors,
       0 AS superseded, e.payload, n.client_id
FROM {ns}_event_queue q
JOIN {ns}_queues n ON n.id = q.queue_id
LEFT JOIN {ns}_lanes l ON l.id = q.lane
JOIN {ns}_events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.generation, g.event_id, n.name, e.event_type, coalesce(l.priority, -1000 - g.lane),
       CASE g.status WHEN 0 THEN 'COMPLETED' WHEN 1 THEN 'COMPLETED_WITH_ERRORS' WHEN 2 THEN 'FAILED' ELSE 'CANCELLED' END,
       g.attempts, g.max_attempts, g.token, NULL, NULL, g.processing_started_at,
       g.finished_at, e.created_at, g.worker, g.group_key, g.errors, g.superseded, e.payload, n.client_id
FROM {ns}_event_log g
JOIN {ns}_queues n ON n.id = g.queue_id
LEFT JOIN {ns}_lanes l ON l.id = g.lane
JOIN {ns}_events e ON e.id = g.event_id;
