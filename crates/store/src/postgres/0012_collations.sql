-- Text that indexes know is ordered by its bytes ("C"), whatever the database's collation is: the order is the one that
-- programs have, and an upgrade of the system's collations leaves the indexes as they are. No table is rewritten, but the
-- indexes of these columns are built anew, under a lock on their table.

-- What live work needs comes first: whoever holds it makes this try fail before anything else waits.
LOCK TABLE {ns}.event_queue, {ns}.queues, {ns}.lanes, {ns}.deduplication IN ACCESS EXCLUSIVE MODE;

-- The view knows three of the columns, so that it is made anew, with the rights that others have to it. Where something that
-- is not ours is built on it, these stay as they are.
DO $migrate$
DECLARE
    definition text := pg_get_viewdef('{ns}.entries'::regclass);
    grants     text[];
    granted    text;
BEGIN
    SELECT array_agg(format('GRANT %s ON {ns}.entries TO %s%s', a.privilege_type,
                            CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                            CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END))
    INTO grants
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
    WHERE c.oid = '{ns}.entries'::regclass AND a.grantee <> c.relowner;
    BEGIN
        DROP VIEW {ns}.entries;
    EXCEPTION WHEN dependent_objects_still_exist THEN
        RAISE NOTICE 'tidegate: something depends on {ns}.entries; names of queues, groups and workers keep their collation';
        RETURN;
    END;
    ALTER TABLE {ns}.queues ALTER COLUMN name TYPE text COLLATE "C";
    ALTER TABLE {ns}.event_queue ALTER COLUMN group_key TYPE text COLLATE "C";
    ALTER TABLE {ns}.event_log ALTER COLUMN group_key TYPE text COLLATE "C";
    ALTER TABLE {ns}.event_queue ALTER COLUMN worker TYPE text COLLATE "C";
    ALTER TABLE {ns}.event_log ALTER COLUMN worker TYPE text COLLATE "C";
    EXECUTE 'CREATE VIEW {ns}.entries AS ' || definition;
    FOREACH granted IN ARRAY coalesce(grants, '{}') LOOP
        EXECUTE granted;
    END LOOP;
END
$migrate$;

ALTER TABLE {ns}.lanes ALTER COLUMN event_type TYPE text COLLATE "C";
ALTER TABLE {ns}.deduplication ALTER COLUMN key TYPE text COLLATE "C";
ALTER TABLE {ns}.consumers ALTER COLUMN worker TYPE text COLLATE "C";
ALTER TABLE {ns}.event_handler_states ALTER COLUMN handler TYPE text COLLATE "C";
ALTER TABLE {ns}.projections ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE {ns}.projection_documents ALTER COLUMN projection TYPE text COLLATE "C";
ALTER TABLE {ns}.schedules ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE {ns}.maintenance ALTER COLUMN task TYPE text COLLATE "C";

-- For lists by worker: workers of two clients may have one name; each row is in one of these.
CREATE INDEX event_log_worker ON {ns}.event_log (worker, status, id)
    WHERE worker IS NOT NULL AND client_id IS NULL AND superseded <> 1;
CREATE INDEX event_log_worker_client ON {ns}.event_log (client_id, worker, status, id)
    WHERE client_id IS NOT NULL AND worker IS NOT NULL AND superseded <> 1;
