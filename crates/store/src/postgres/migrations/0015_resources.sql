-- Resources: configuration that every node caches, in one table whatever its kind. They are part of the catalogue: each row
-- has the catalogue version that last changed it, so a process loads what changed since the version it knows. Programs raise
-- the version themselves, once for all that a transaction writes; where a statement does not, triggers do.
CREATE TABLE {ns}.resources (
    id         bigint PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL,
    client_id  bigint,
    code       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL DEFAULT 0,
    deleted    boolean NOT NULL DEFAULT false, -- kept without its body until it is 1,000 versions old
    body       text NOT NULL, -- JSON
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX resources_code ON {ns}.resources (kind, coalesce(client_id, 0), code) WHERE NOT deleted;
CREATE INDEX resources_version ON {ns}.resources (version);
CREATE INDEX resources_deleted ON {ns}.resources (version) WHERE deleted;

CREATE OR REPLACE FUNCTION {ns}.catalogue_bumped() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.stamp := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
    DELETE FROM {ns}.catalogue_history WHERE version >= NEW.catalogue_version OR version <= NEW.catalogue_version - 1000;
    DELETE FROM {ns}.catalogue_removed WHERE version <= NEW.catalogue_version - 1000;
    DELETE FROM {ns}.resources WHERE deleted AND version <= NEW.catalogue_version - 1000;
    INSERT INTO {ns}.catalogue_history (version, stamp) VALUES (NEW.catalogue_version, NEW.stamp);
    RETURN NEW;
END
$body$;

-- Once per statement, and only for rows that are different now and did not get a version of their own. A version is a
-- program's only if it is the present one, as it is in the transaction that raised it: an old one comes from a backup.
CREATE FUNCTION {ns}.resources_changed() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    the_ids     bigint[];
    the_version bigint;
BEGIN
    SELECT m.catalogue_version INTO the_version FROM {ns}.store m;
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n WHERE n.version = 0 OR n.version <> the_version;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(o.id) INTO the_ids FROM old_rows o WHERE NOT o.deleted;
    ELSE
        SELECT array_agg(n.id) INTO the_ids FROM new_rows n JOIN old_rows o ON o.id = n.id
        WHERE (n.version = o.version OR n.version <> the_version)
          AND (n.kind, n.client_id, n.code, n.deleted, n.body)
              IS DISTINCT FROM (o.kind, o.client_id, o.code, o.deleted, o.body);
    END IF;
    IF the_ids IS NOT NULL THEN
        UPDATE {ns}.store SET catalogue_version = catalogue_version + 1 RETURNING catalogue_version INTO the_version;
        UPDATE {ns}.resources SET version = the_version WHERE id = ANY (the_ids);
    END IF;
    -- Such a row leaves nothing by which others would hear of it: without a history they read everything again. Under the
    -- lock on the version, so that no version comes in between.
    IF TG_OP = 'DELETE' AND the_ids IS NOT NULL THEN
        DELETE FROM {ns}.catalogue_history WHERE version < the_version;
    END IF;
    RETURN NULL;
END
$body$;
CREATE TRIGGER resources_made AFTER INSERT ON {ns}.resources REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.resources_changed();
CREATE TRIGGER resources_changed AFTER UPDATE ON {ns}.resources REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.resources_changed();
CREATE TRIGGER resources_removed AFTER DELETE ON {ns}.resources REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {ns}.resources_changed();

-- API keys become resources of kind `key`: the code is the hash in hexadecimal digits, moments in the body are microseconds
-- since 1970. Their numbers stay short, for people type them. When a key was last used is written often, and no part of the catalogue.
INSERT INTO {ns}.resources (id, kind, code, body, created_at, updated_at)
SELECT k.id, 'key', encode(k.hash, 'hex'),
       json_build_object('name', k.name, 'scopes', k.scopes::json, 'client', k.client_id, 'expires_at', NULL,
                         'revoked_at', (extract(epoch FROM k.revoked_at) * 1000000)::bigint)::text,
       k.created_at, coalesce(k.revoked_at, k.created_at)
FROM {ns}.api_keys k;
CREATE TABLE {ns}.key_uses (
    id           bigint PRIMARY KEY,
    last_used_at timestamptz NOT NULL
);
INSERT INTO {ns}.key_uses (id, last_used_at) SELECT id, last_used_at FROM {ns}.api_keys WHERE last_used_at IS NOT NULL;
CREATE SEQUENCE {ns}.key_number;
SELECT setval('{ns}.key_number', coalesce(max(id), 1), max(id) IS NOT NULL) FROM {ns}.api_keys;
DROP TABLE {ns}.api_keys;
