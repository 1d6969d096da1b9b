-- Text that indexes know is ordered by its bytes ("C"), whatever the database's collation is: the order is the one that
-- programs have, and an upgrade of the system's collations leaves the indexes as they are. No table is rewritten, but the
-- indexes of these columns are built anew, under a lock on their table: event_queue_group_head, without which a group could
-- have two heads, event_queue_parked, by which the next of a group is found, and those of small tables. The keys of large
-- tables were built beforehand.

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
ALTER TABLE {ns}.consumers ALTER COLUMN worker TYPE text COLLATE "C";
ALTER TABLE {ns}.projections ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE {ns}.schedules ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE {ns}.maintenance ALTER COLUMN task TYPE text COLLATE "C";

-- A key that was built beside the old one, by bytes, takes its place (see indexes.rs). An index whose collation stays what it
-- is outlasts the change of its column. Where there is none, the change builds the key anew.
DO $migrate$
DECLARE
    the_key text[];
    beside  text;
    change  text;
BEGIN
    FOREACH the_key SLICE 1 IN ARRAY ARRAY[
        ['deduplication', 'key'], ['event_handler_states', 'handler'], ['projection_documents', 'projection']]
    LOOP
        beside := the_key[1] || '_by_bytes';
        change := format('ALTER TABLE {ns}.%I ALTER COLUMN %I TYPE text COLLATE "C"', the_key[1], the_key[2]);
        IF EXISTS (SELECT FROM pg_index x WHERE x.indexrelid = to_regclass('{ns}.' || beside) AND x.indisvalid) THEN
            EXECUTE format('ALTER TABLE {ns}.%I DROP CONSTRAINT %I', the_key[1], the_key[1] || '_pkey');
            EXECUTE change;
            EXECUTE format('ALTER TABLE {ns}.%I ADD CONSTRAINT %I PRIMARY KEY USING INDEX %I',
                           the_key[1], the_key[1] || '_pkey', beside);
        ELSE
            EXECUTE format('DROP INDEX IF EXISTS {ns}.%I', beside);
            EXECUTE change;
        END IF;
    END LOOP;
END
$migrate$;
