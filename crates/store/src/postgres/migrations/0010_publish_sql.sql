-- Publishing by plain SQL, anew: payloads as text, json, jsonb or bytea, every option of an event, the limits of the
-- library, and the payload limit of the running program instead of the first one's.
ALTER TABLE {ns}.meta ADD COLUMN payload_limit bigint NOT NULL DEFAULT {payload_limit};

-- Callers name arguments, and every argument of before still has its name and place, so that a call that worked goes on
-- working: the exchange is one commit, prepared statements are planned again. What depends on the function itself (a view,
-- a function with a parsed body) keeps it under another name.
DO $migrate$
BEGIN
    DROP FUNCTION {ns}.publish(text, bytea, text, smallint, interval, text, text, integer, text, text, text, text, text, text, boolean);
EXCEPTION WHEN dependent_objects_still_exist THEN
    ALTER FUNCTION {ns}.publish(text, bytea, text, smallint, interval, text, text, integer, text, text, text, text, text, text, boolean)
        RENAME TO publish_before_10;
    -- Its body names its arguments by its own name.
    EXECUTE replace(pg_get_functiondef('{ns}.publish_before_10(text, bytea, text, smallint, interval, text, text, integer, text, text, text, text, text, text, boolean)'::regprocedure),
                    'publish.', 'publish_before_10.');
END
$migrate$;

-- Whether a text is JSON. In a block of its own: the error of a cast is the only way to know.
CREATE FUNCTION {ns}.is_json(document text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    PERFORM document::json;
    RETURN true;
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN false;
END
$body$;

-- The same of bytes, which must be UTF-8 then.
CREATE FUNCTION {ns}.is_json(document bytea) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    PERFORM convert_from(document, 'UTF8')::json;
    RETURN true;
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN false;
END
$body$;

-- Tags without outer spaces, empty ones and repeats, in their order.
CREATE FUNCTION {ns}.publish_tags(tags text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $body$
    SELECT array_agg(t.tag ORDER BY t.ord)
    FROM (SELECT btrim(s.tag, E' \t\n\r\f\v') AS tag, min(s.ord) AS ord
          FROM unnest(string_to_array(publish_tags.tags, ',')) WITH ORDINALITY AS s(tag, ord)
          GROUP BY 1) AS t
    WHERE t.tag <> ''
$body$;

-- A retry policy as the library writes it; null where it is none.
CREATE FUNCTION {ns}.publish_retry(retry text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $body$
DECLARE
    policy jsonb;
    fits boolean;
BEGIN
    IF octet_length(retry) > 65536 OR NOT {ns}.is_json(retry) THEN
        RETURN NULL;
    END IF;
    policy := retry::jsonb;
    IF policy ->> 'kind' = 'fixed' THEN
        fits := {ns}.is_delay(policy -> 'delay_ms');
        RETURN CASE WHEN fits THEN jsonb_build_object('kind', 'fixed', 'delay_ms', (policy -> 'delay_ms')::bigint) END;
    ELSIF policy ->> 'kind' = 'exponential' THEN
        policy := '{"factor": 2, "jitter": 0.25}'::jsonb || policy;
        fits := {ns}.is_delay(policy -> 'base_ms') AND {ns}.is_delay(policy -> 'max_ms')
            AND jsonb_typeof(policy -> 'factor') = 'number' AND jsonb_typeof(policy -> 'jitter') = 'number';
        IF fits AND (policy -> 'jitter')::numeric BETWEEN 0 AND 1 AND abs((policy -> 'factor')::numeric) <= 1e15 THEN
            RETURN jsonb_build_object(
                'kind', 'exponential', 'base_ms', (policy -> 'base_ms')::bigint, 'factor', (policy -> 'factor')::float8,
                'max_ms', (policy -> 'max_ms')::bigint, 'jitter', (policy -> 'jitter')::float8);
        END IF;
    ELSIF policy ->> 'kind' = 'list' AND jsonb_typeof(policy -> 'delays_ms') = 'array' THEN
        IF jsonb_array_length(policy -> 'delays_ms') <= 1000
           AND NOT EXISTS (SELECT FROM jsonb_array_elements(policy -> 'delays_ms') AS d WHERE {ns}.is_delay(d) IS NOT TRUE) THEN
            RETURN jsonb_build_object(
                'kind', 'list',
                'delays_ms', (SELECT coalesce(jsonb_agg(d::bigint ORDER BY ord), '[]')
                              FROM jsonb_array_elements(policy -> 'delays_ms') WITH ORDINALITY AS e(d, ord)));
        END IF;
    END IF;
    RETURN NULL;
END
$body$;

-- Whether a value is a whole number of milliseconds of at most a hundred years.
CREATE FUNCTION {ns}.is_delay(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $body$
    SELECT CASE WHEN jsonb_typeof(value) = 'number'
           THEN value::numeric BETWEEN 0 AND 3162240000000 AND value::numeric = trunc(value::numeric) END
$body$;

-- Takes a deduplication key for a new entry and answers nothing held; or answers the entry that holds it, and with
-- `replaces` whether that still waits: it is locked then, and the key stands for the new event already. Keys are locked
-- before entries, as everywhere; an entry that is leased is not waited for.
CREATE FUNCTION {ns}.publish_key(
    queue_id integer, deduplication_id text, new_entry bigint, new_event bigint, moment timestamptz, replaces boolean,
    OUT held_entry bigint, OUT held_event bigint, OUT waits boolean
) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    waits := false;
    -- Whoever takes the key between two looks is found by the next one.
    FOR look IN 1..3 LOOP
        IF replaces THEN
            PERFORM FROM {ns}.deduplication d
            WHERE d.client_id = 0 AND d.kind = 0 AND d.scope = publish_key.queue_id AND d.key = publish_key.deduplication_id
            FOR UPDATE;
        END IF;
        SELECT d.entry_id, d.event_id INTO held_entry, held_event FROM {ns}.deduplication d
        WHERE d.client_id = 0 AND d.kind = 0 AND d.scope = publish_key.queue_id AND d.key = publish_key.deduplication_id
          AND d.expires_at > publish_key.moment;
        IF held_entry IS NULL THEN
            INSERT INTO {ns}.deduplication AS d (client_id, kind, scope, key, entry_id, event_id, expires_at)
            VALUES (0, 0, publish_key.queue_id, publish_key.deduplication_id, new_entry, new_event, moment + interval '24 hours')
            ON CONFLICT (client_id, kind, scope, key) DO UPDATE
                SET entry_id = excluded.entry_id, event_id = excluded.event_id, expires_at = excluded.expires_at
                WHERE d.expires_at <= publish_key.moment;
        ELSIF NOT replaces THEN
            RETURN;
        ELSE
            SELECT true INTO waits FROM {ns}.event_queue q
            WHERE q.id = held_entry AND q.lease_until IS NULL FOR UPDATE;
            waits := waits IS TRUE
                AND EXISTS (SELECT FROM {ns}.event_queue q JOIN {ns}.events e ON e.id = q.event_id WHERE q.id = held_entry);
            UPDATE {ns}.deduplication d
            SET event_id = new_event, entry_id = CASE WHEN waits THEN held_entry ELSE new_entry END,
                expires_at = CASE WHEN waits THEN d.expires_at ELSE moment + interval '24 hours' END
            WHERE d.client_id = 0 AND d.kind = 0 AND d.scope = publish_key.queue_id AND d.key = publish_key.deduplication_id
              AND d.entry_id = held_entry;
        END IF;
        IF FOUND THEN
            held_entry := CASE WHEN waits THEN held_entry END;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'tidegate: deduplication id % was taken meanwhile; try again', publish_key.deduplication_id
        USING ERRCODE = 'serialization_failure';
END
$body$;

-- What every way of publishing by plain SQL comes down to; call publish instead. Types without a lane yet, delayed and
-- grouped events are left as arrived (place 3) and sorted in right after the commit; nothing here waits for another
-- transaction, save for one that publishes under the same deduplication key.
CREATE FUNCTION {ns}.publish_event(
    event_type text, payload bytea, claims_json boolean, queue text, priority integer, delay interval, message_group text,
    deduplication_id text, max_attempts integer, source text, subject text, content_type text, correlation_id text,
    causation_id text, attributes text, wake boolean, tags text, title text, description text, event_time timestamptz,
    available_at timestamptz, replace_waiting boolean, retry text, max_retries integer, external_id text
) RETURNS bigint LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    the_queue   {ns}.queues;
    the_lane    integer;
    the_place   smallint;
    the_due     timestamptz;
    the_moment  timestamptz := clock_timestamp();
    the_id      bigint;
    the_event   bigint;
    the_tags    text[];
    the_retry   text;
    the_type    text := publish_event.event_type;
    the_birth   timestamptz := the_moment;
    held_entry  bigint;
    held_event  bigint;
    waits       boolean := false;
    old_tags    text;
    entries_now bigint;
BEGIN
    -- The transaction id comes before the entry id, so that readers by commit order never miss one.
    PERFORM pg_current_xact_id();
    PERFORM {ns}.publish_check(
        publish_event.event_type, publish_event.payload, publish_event.claims_json, publish_event.priority,
        publish_event.delay, publish_event.message_group, publish_event.deduplication_id, publish_event.max_attempts,
        publish_event.source, publish_event.subject, publish_event.content_type, publish_event.correlation_id,
        publish_event.causation_id, publish_event.attributes, publish_event.title, publish_event.description,
        publish_event.event_time, publish_event.available_at, publish_event.replace_waiting, publish_event.max_retries,
        publish_event.external_id);
    IF publish_event.tags IS NOT NULL THEN
        the_tags := {ns}.publish_tags(publish_event.tags);
        IF cardinality(the_tags) > 32 OR EXISTS (SELECT FROM unnest(the_tags) AS t(tag)
               WHERE octet_length(t.tag) > 255 OR t.tag ~ E'[\\u0001-\\u001f\\u007f-\\u009f]|^\\s|\\s$') THEN
            RAISE EXCEPTION 'tidegate: tags must be at most 32, separated by commas, each of 1 to 255 bytes without control characters'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF publish_event.retry IS NOT NULL THEN
        the_retry := {ns}.publish_retry(publish_event.retry);
        IF the_retry IS NULL THEN
            RAISE EXCEPTION 'tidegate: retry must be JSON such as {"kind":"fixed","delay_ms":1000}: kind fixed, exponential or list, delays at most 100 years, jitter 0 to 1, a list at most 1000 long'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    SELECT * INTO the_queue FROM {ns}.queues
    WHERE coalesce(client_id, 0) = 0 AND name = coalesce(publish_event.queue, 'default');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tidegate: there is no queue %', publish_event.queue USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF the_queue.state = 2 THEN
        RAISE EXCEPTION 'tidegate: queue % is draining', the_queue.name USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    the_id := nextval('{ns}.entry_id');
    the_event := ((extract(epoch FROM the_moment) * 1000)::bigint - 1577836800000) << 22 | (the_id & 4194303);
    IF publish_event.deduplication_id IS NOT NULL THEN
        SELECT k.held_entry, k.held_event, k.waits INTO held_entry, held_event, waits
        FROM {ns}.publish_key(the_queue.id, publish_event.deduplication_id, the_id, the_event, the_moment,
                              coalesce(publish_event.replace_waiting, false)) AS k;
        IF waits THEN
            DELETE FROM {ns}.events e USING {ns}.event_queue q WHERE q.id = held_entry AND e.id = q.event_id
            RETURNING e.event_type, e.created_at, e.tags INTO the_type, the_birth, old_tags;
        ELSIF held_entry IS NOT NULL THEN
            IF EXISTS (SELECT FROM {ns}.events e WHERE e.id = held_event
                       AND (e.event_type <> publish_event.event_type OR e.payload <> publish_event.payload)) THEN
                RAISE EXCEPTION 'tidegate: deduplication id % stands for another event', publish_event.deduplication_id
                    USING ERRCODE = 'unique_violation';
            END IF;
            RETURN held_entry;
        END IF;
    END IF;
    IF the_queue.depth_limit IS NOT NULL AND NOT waits THEN
        SELECT count(*) INTO entries_now FROM (
            SELECT FROM {ns}.event_queue q WHERE q.queue_id = the_queue.id LIMIT the_queue.depth_limit
        ) AS held_now;
        IF entries_now >= the_queue.depth_limit THEN
            RAISE EXCEPTION 'tidegate: queue % is full', the_queue.name USING ERRCODE = 'program_limit_exceeded';
        END IF;
    END IF;
    INSERT INTO {ns}.events (id, created_at, event_type, payload, content_type, source, subject, time, external_id,
                             correlation_id, causation_id, attributes, title, description, tags, retry)
    VALUES (the_event, the_birth, the_type, publish_event.payload, publish_event.content_type, publish_event.source,
            publish_event.subject, publish_event.event_time, publish_event.external_id, publish_event.correlation_id,
            publish_event.causation_id, publish_event.attributes, publish_event.title, publish_event.description,
            array_to_string(the_tags, ','), the_retry);
    IF waits THEN
        -- It waits where it waited, under its old type.
        the_id := held_entry;
        DELETE FROM {ns}.event_handler_states s WHERE s.entry_id = the_id;
        DELETE FROM {ns}.event_tags t WHERE t.entry_id = the_id AND t.tag = ANY (string_to_array(old_tags, ','));
        UPDATE {ns}.event_queue q
        SET event_id = the_event,
            flags = CASE WHEN the_tags IS NOT NULL THEN coalesce(q.flags, 0::smallint) | 1::smallint
                         ELSE nullif(q.flags & 2::smallint, 0) END
        WHERE q.id = the_id
        RETURNING q.place, q.due_at, q.lane INTO the_place, the_due, the_lane;
    ELSE
        SELECT l.id INTO the_lane FROM {ns}.lanes l
        WHERE l.queue_id = the_queue.id AND coalesce(l.event_type, '') = publish_event.event_type
          AND l.priority = publish_event.priority;
        the_due := coalesce(the_moment + publish_event.delay, greatest(publish_event.available_at, the_moment));
        IF publish_event.delay IS NULL AND publish_event.available_at IS NULL THEN
            the_due := NULL;
        END IF;
        the_place := CASE WHEN the_lane IS NULL OR publish_event.message_group IS NOT NULL OR the_due IS NOT NULL THEN 3 ELSE 0 END;
        the_lane := coalesce(the_lane, -publish_event.priority - 1000);
        INSERT INTO {ns}.event_queue (id, event_id, due_at, lane, queue_id, max_attempts, place, exhausted_as, group_key,
                                      token, flags)
        VALUES (the_id, the_event, the_due, the_lane, the_queue.id,
                coalesce(publish_event.max_retries + 1, publish_event.max_attempts, 20), the_place,
                CASE WHEN publish_event.max_retries IS NULL THEN 1 ELSE 2 END, publish_event.message_group, 0,
                CASE WHEN the_tags IS NOT NULL THEN 1 END);
    END IF;
    IF the_tags IS NOT NULL THEN
        -- What has arrived stands among the parked ones of its tags until it is sorted in.
        INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag)
        SELECT the_id,
               CASE WHEN the_place = 1 THEN coalesce((extract(epoch FROM the_due) * 1000000)::bigint, 0) ELSE the_id END,
               the_queue.id, least(the_place, 2),
               coalesce((SELECT l.priority FROM {ns}.lanes l WHERE l.id = the_lane), -the_lane - 1000), t.tag
        FROM unnest(the_tags) AS t(tag);
    END IF;
    IF publish_event.wake THEN
        PERFORM pg_notify('{ns}', 'late');
    END IF;
    RETURN the_id;
END
$body$;

-- Everything that a publisher can get wrong, by the library's rules.
CREATE FUNCTION {ns}.publish_check(
    event_type text, payload bytea, claims_json boolean, priority integer, delay interval, message_group text,
    deduplication_id text, max_attempts integer, source text, subject text, content_type text, correlation_id text,
    causation_id text, attributes text, title text, description text, event_time timestamptz, available_at timestamptz,
    replace_waiting boolean, max_retries integer, external_id text
) RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_variable
DECLARE
    the_limit  bigint;
    media_type text := lower(btrim(split_part(content_type, ';', 1)));
    bad_field  text;
    wrong      text;
BEGIN
    SELECT t.field INTO bad_field
    FROM (VALUES ('event type', coalesce(event_type, '')), ('message group', message_group),
                 ('deduplication id', deduplication_id), ('source', source), ('subject', subject),
                 ('content type', content_type), ('correlation id', correlation_id), ('causation id', causation_id),
                 ('external id', external_id)) AS t(field, value)
    WHERE t.value = '' OR octet_length(t.value) > 255 OR t.value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]'
    LIMIT 1;
    SELECT m.payload_limit INTO the_limit FROM {ns}.meta m;
    wrong := CASE
        WHEN bad_field IS NOT NULL THEN format('the %s must be 1 to 255 bytes without control characters', bad_field)
        WHEN payload IS NULL THEN 'the payload must not be null'
        WHEN octet_length(payload) > the_limit THEN
            format('the payload is above the limit of %s bytes: store it elsewhere and publish a reference to it', the_limit)
        WHEN title = '' OR octet_length(title) > 1000 THEN 'the title must be 1 to 1000 bytes'
        WHEN octet_length(description) > 65536 THEN 'the description must be at most 65536 bytes'
        WHEN priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN 'priority must be -100 to 100'
        WHEN max_attempts < 1 THEN 'max attempts must be at least 1'
        WHEN max_retries NOT BETWEEN 0 AND 1000000 THEN 'max_retries must be 0 to 1000000'
        WHEN max_retries IS NOT NULL AND max_attempts IS NOT NULL THEN 'name either max_attempts or max_retries'
        WHEN delay IS NOT NULL AND available_at IS NOT NULL THEN 'name either delay or available_at'
        WHEN replace_waiting AND deduplication_id IS NULL THEN 'replace_waiting needs a deduplication_id'
        WHEN delay < interval '0' OR delay > interval '36600 days' THEN 'the delay must be from 0 to 100 years'
        WHEN event_time NOT BETWEEN '1970-01-01Z' AND '9998-12-31Z' OR available_at NOT BETWEEN '1970-01-01Z' AND '9998-12-31Z'
            THEN 'event_time and available_at must lie between 1970 and 9998'
        END;
    IF wrong IS NULL AND attributes IS NOT NULL THEN
        IF octet_length(attributes) > 65536 OR NOT {ns}.is_json(attributes) OR json_typeof(attributes::json) <> 'object' THEN
            wrong := 'the attributes must be a JSON object of at most 65536 bytes';
        END IF;
    END IF;
    -- Text without a content type is JSON; bytes are whatever their content type says.
    IF wrong IS NULL AND (CASE WHEN media_type IS NULL THEN claims_json
                               ELSE media_type = 'application/json' OR media_type LIKE '%+json' END)
       AND NOT {ns}.is_json(payload) THEN
        wrong := 'the payload is not JSON: name its content_type, or pass bytea';
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'tidegate: %', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$body$;

-- Publishes inside the caller's own transaction, from any language. The payload is stored as it was given; of text, json,
-- jsonb and bytea an untyped literal or parameter means text.
DO $migrate$
DECLARE
    form text[];
BEGIN
    FOREACH form SLICE 1 IN ARRAY ARRAY[
        ['text', 'convert_to(payload, ''UTF8'')', 'true'],
        ['json', 'convert_to(payload::text, ''UTF8'')', 'false'],
        ['jsonb', 'convert_to(payload::text, ''UTF8'')', 'false'],
        ['bytea', 'payload', 'false']]
    LOOP
        EXECUTE format($create$
            CREATE FUNCTION {ns}.publish(
                event_type text, payload %s, queue text DEFAULT 'default', priority integer DEFAULT 0,
                delay interval DEFAULT NULL, message_group text DEFAULT NULL, deduplication_id text DEFAULT NULL,
                max_attempts integer DEFAULT NULL, source text DEFAULT NULL, subject text DEFAULT NULL,
                content_type text DEFAULT NULL, correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL,
                attributes text DEFAULT NULL, wake boolean DEFAULT false, tags text DEFAULT NULL, title text DEFAULT NULL,
                description text DEFAULT NULL, event_time timestamptz DEFAULT NULL, available_at timestamptz DEFAULT NULL,
                replace_waiting boolean DEFAULT false, retry text DEFAULT NULL, max_retries integer DEFAULT NULL,
                external_id text DEFAULT NULL
            ) RETURNS bigint LANGUAGE sql AS $body$
                SELECT {ns}.publish_event(
                    event_type, %s, %s, queue, priority, delay, message_group, deduplication_id, max_attempts, source,
                    subject, content_type, correlation_id, causation_id, attributes, wake, tags, title, description,
                    event_time, available_at, replace_waiting, retry, max_retries, external_id)
            $body$
        $create$, form[1], form[2], form[3]);
    END LOOP;
END
$migrate$;
