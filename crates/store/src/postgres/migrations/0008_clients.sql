-- A queue is (client, name). Until now a client's queue had its name under a prefix of the client's id and belonged to
-- nobody; entries and log rows had their event's client.
UPDATE {ns}.queues q
SET name = substr(q.name, 15),
    client_id = (SELECT bit_or((strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr(q.name, i, 1)) - 1)::bigint << (65 - 5 * i))
                 FROM generate_series(1, 13) AS i)
WHERE q.client_id IS NULL AND q.name ~ '^[0-9A-F][0-9A-HJKMNP-TV-Z]{12}/.' AND q.name !~ '^0{13}/';
-- What nobody's key published into a client's queue is the client's.
UPDATE {ns}.events e SET client_id = n.client_id
FROM {ns}.event_queue q JOIN {ns}.queues n ON n.id = q.queue_id
WHERE e.id = q.event_id AND n.client_id IS NOT NULL AND q.client_id IS DISTINCT FROM n.client_id;
UPDATE {ns}.events e SET client_id = n.client_id
FROM {ns}.event_log g JOIN {ns}.queues n ON n.id = g.queue_id
WHERE e.id = g.event_id AND n.client_id IS NOT NULL AND g.client_id IS DISTINCT FROM n.client_id;
UPDATE {ns}.event_queue q SET client_id = n.client_id
FROM {ns}.queues n WHERE n.id = q.queue_id AND q.client_id IS DISTINCT FROM n.client_id;
UPDATE {ns}.event_log g SET client_id = n.client_id
FROM {ns}.queues n WHERE n.id = g.queue_id AND g.client_id IS DISTINCT FROM n.client_id;
UPDATE {ns}.deduplication d SET client_id = n.client_id
FROM {ns}.queues n
WHERE d.kind = 0 AND d.scope = n.id AND n.client_id IS NOT NULL AND d.client_id = 0
  AND NOT EXISTS (SELECT FROM {ns}.deduplication o
                  WHERE o.client_id = n.client_id AND o.kind = 0 AND o.scope = d.scope AND o.key = d.key);
UPDATE {ns}.schedules
SET template = regexp_replace(template, '"queue":"([0-9A-F][0-9A-HJKMNP-TV-Z]{12})/([^"]+)"', '"queue":"\2@\1"')
WHERE template ~ '"queue":"[0-9A-F][0-9A-HJKMNP-TV-Z]{12}/[^"]+"' AND template !~ '"queue":"0{13}/';
-- Every process reads the queues anew.
UPDATE {ns}.meta SET generation = generation + 1;

CREATE OR REPLACE VIEW {ns}.entries AS
SELECT q.id, q.generation, q.event_id, n.name AS queue, e.event_type, l.priority,
       CASE WHEN q.lease_until IS NULL THEN 'PENDING' ELSE 'PROCESSING' END AS status,
       q.attempts, q.max_attempts, q.token, q.due_at AS available_at, q.lease_until, q.processing_started_at,
       coalesce(q.updated_at, e.created_at) AS updated_at, e.created_at, q.worker, q.group_key, q.last_error AS errors,
       false AS superseded, e.payload, n.client_id
FROM {ns}.event_queue q
JOIN {ns}.queues n ON n.id = q.queue_id
LEFT JOIN {ns}.lanes l ON l.id = q.lane
JOIN {ns}.events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.generation, g.event_id, n.name, e.event_type, l.priority,
       (ARRAY['COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED', 'CANCELLED'])[g.status + 1],
       g.attempts, g.max_attempts, g.token, NULL, NULL, g.processing_started_at,
       g.finished_at, e.created_at, g.worker, g.group_key, g.errors, g.superseded <> 0, e.payload, n.client_id
FROM {ns}.event_log g
JOIN {ns}.queues n ON n.id = g.queue_id
LEFT JOIN {ns}.lanes l ON l.id = g.lane
JOIN {ns}.events e ON e.id = g.event_id;
