-- Facts on their own: the numbers of the entries and jobs that refer to a fact lie from first_number to last_number
-- (none if last_number is less). Null for a fact of exactly one entry, such as every published one: it goes with that entry.
-- In a database that is not new, the columns and the index that retention walks along were made before (see indexes.rs).
ALTER TABLE {ns}.events ADD COLUMN IF NOT EXISTS first_number bigint, ADD COLUMN IF NOT EXISTS last_number bigint;

-- Publishing by plain SQL: a fact that other entries refer to stays when one of them gets other contents.
DO $migrate$
DECLARE
    change     text[];
    definition text := pg_get_functiondef('{ns}.publish_event'::regproc);
BEGIN
    FOREACH change SLICE 1 IN ARRAY ARRAY[
        ['WHERE q.id = held_entry AND e.id = q.event_id',
         'WHERE q.id = held_entry AND e.id = q.event_id AND e.first_number IS NULL'],
        ['RETURNING e.event_type, e.created_at, e.tags INTO the_type, the_birth, old_tags;',
         'RETURNING e.event_type, e.created_at, e.tags INTO the_type, the_birth, old_tags;
            IF NOT FOUND THEN
                SELECT e.event_type, e.created_at, e.tags INTO the_type, the_birth, old_tags
                FROM {ns}.event_queue q JOIN {ns}.events e ON e.id = q.event_id WHERE q.id = held_entry;
            END IF;']]
    LOOP
        IF strpos(definition, change[1]) = 0 THEN
            RAISE EXCEPTION 'tidegate: the function {ns}.publish_event is not the one of this schema';
        END IF;
        definition := replace(definition, change[1], change[2]);
    END LOOP;
    EXECUTE definition;
END
$migrate$;
