-- Resources: configuration that every node caches, in one table whatever its kind. They are part of the catalogue: each row
-- has the catalogue version that last changed it, so a process loads what changed since the version it knows. Programs raise
-- the version themselves, once for all that a transaction writes; where a statement does not, triggers do.
CREATE TABLE {ns}_resources (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,
    client_id  INTEGER,
    code       TEXT NOT NULL,
    version    INTEGER NOT NULL DEFAULT 0,
    deleted    INTEGER NOT NULL DEFAULT 0, -- kept without its body until it is 1,000 versions old
    body       TEXT NOT NULL, -- JSON
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX {ns}_resources_code ON {ns}_resources (kind, coalesce(client_id, 0), code) WHERE NOT deleted;
CREATE INDEX {ns}_resources_version ON {ns}_resources (version);
CREATE INDEX {ns}_resources_deleted ON {ns}_resources (version) WHERE deleted;

DROP TRIGGER {ns}_catalogue_bumped;
CREATE TRIGGER {ns}_catalogue_bumped AFTER UPDATE OF catalogue_version ON {ns}_meta WHEN NEW.catalogue_version > OLD.catalogue_version
BEGIN
    UPDATE {ns}_meta SET stamp = random();
    DELETE FROM {ns}_catalogue_history WHERE version >= NEW.catalogue_version OR version <= NEW.catalogue_version - 1000;
    DELETE FROM {ns}_catalogue_removed WHERE version <= NEW.catalogue_version - 1000;
    DELETE FROM {ns}_resources WHERE deleted AND version <= NEW.catalogue_version - 1000;
    INSERT INTO {ns}_catalogue_history (version, stamp) SELECT catalogue_version, stamp FROM {ns}_meta;
END;
-- A version is a program's only if it is the present one, as it is in the transaction that raised it: an old one comes from a
-- backup.
CREATE TRIGGER {ns}_resource_made AFTER INSERT ON {ns}_resources
WHEN NEW.version = 0 OR NEW.version <> (SELECT catalogue_version FROM {ns}_meta)
BEGIN
    UPDATE {ns}_meta SET catalogue_version = catalogue_version + 1;
    UPDATE {ns}_resources SET version = (SELECT catalogue_version FROM {ns}_meta) WHERE id = NEW.id;
END;
CREATE TRIGGER {ns}_resource_changed AFTER UPDATE OF kind, client_id, code, deleted, body ON {ns}_resources
WHEN (NEW.version = OLD.version OR NEW.version <> (SELECT catalogue_version FROM {ns}_meta)) AND (OLD.kind IS NOT NEW.kind OR OLD.client_id IS NOT NEW.client_id
    OR OLD.code IS NOT NEW.code OR OLD.deleted IS NOT NEW.deleted OR OLD.body IS NOT NEW.body)
BEGIN
    UPDATE {ns}_meta SET catalogue_version = catalogue_version + 1;
    UPDATE {ns}_resources SET version = (SELECT catalogue_version FROM {ns}_meta) WHERE id = NEW.id;
END;
-- Such a row leaves nothing by which others would hear of it: without a history they read everything again.
CREATE TRIGGER {ns}_resource_removed AFTER DELETE ON {ns}_resources WHEN NOT OLD.deleted
BEGIN
    DELETE FROM {ns}_catalogue_history;
    UPDATE {ns}_meta SET catalogue_version = catalogue_version + 1;
END;

-- API keys become resources of kind `key`: the code is the hash in hexadecimal digits, moments in the body are microseconds
-- since 1970. Their numbers stay short, for people type them. When a key was last used is written often, and no part of the catalogue.
INSERT INTO {ns}_resources (id, kind, code, body, created_at, updated_at)
SELECT id, 'key', lower(hex(hash)),
       json_object('name', name, 'scopes', json(scopes), 'client', client_id, 'expires_at', NULL, 'revoked_at', revoked_at),
       created_at, coalesce(revoked_at, created_at)
FROM {ns}_api_keys;
CREATE TABLE {ns}_key_uses (
    id           INTEGER PRIMARY KEY,
    last_used_at INTEGER NOT NULL
);
INSERT INTO {ns}_key_uses (id, last_used_at) SELECT id, last_used_at FROM {ns}_api_keys WHERE last_used_at IS NOT NULL;
ALTER TABLE {ns}_sequence ADD COLUMN key_number INTEGER NOT NULL DEFAULT 0; -- the last that was drawn
UPDATE {ns}_sequence SET key_number = (SELECT coalesce(max(id), 0) FROM {ns}_api_keys);
DROP TABLE {ns}_api_keys;
