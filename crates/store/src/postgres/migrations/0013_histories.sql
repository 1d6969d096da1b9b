-- A failover that loses commits, or a restore, sets a database back: a lease that was given since is forgotten, and its
-- entry would be given again under the same token. So the database knows which history it is in (the server, its timeline,
-- the table that says so), and each connection sees to it, before anything else, that a new history starts with tokens
-- above all that may have been given in the one it left. By how much is drawn at random: two standbys may both go on from
-- the same point.
ALTER TABLE {ns}.meta
    ADD COLUMN history text,
    ADD COLUMN token_base bigint NOT NULL DEFAULT 0;

-- With the rights of whoever made it: two roles that may read different things must not see two histories.
CREATE FUNCTION {ns}.history() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    server   text := '';
    timeline text := '';
BEGIN
    -- Where a service keeps these to itself, the other parts still tell.
    BEGIN
        SELECT s.system_identifier::text INTO server FROM pg_control_system() AS s;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    RETURN concat_ws('/', server, timeline, '{ns}.meta'::regclass::oid);
END
$body$;

CREATE FUNCTION {ns}.enter_history() RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    here text;
BEGIN
    -- A session that began on a standby goes on when that becomes the primary, and would be one that did not look.
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    here := {ns}.history();
    IF EXISTS (SELECT FROM {ns}.meta m WHERE m.history IS DISTINCT FROM here) THEN
        -- Tokens stay below 2^53, which every reader of JSON can tell apart.
        UPDATE {ns}.meta m
        SET history = here, token_base = m.token_base + (1 + floor(random() * 65535)::bigint) * 1048576
        WHERE m.history IS DISTINCT FROM here;
    END IF;
END
$body$;

UPDATE {ns}.meta SET history = {ns}.history();
