//! Resources: the table `resources`, and the catalogue version.

use tidegate_core::Tsid;

use crate::postgres::engine::row::{Moment, row};
use crate::postgres::statements::catalogue::Compatibility;
use crate::sql::{Only, statements};
use crate::values::{CatalogueVersion, Resource};

row! {
    /// A resource.
    pub(in crate::postgres) struct ResourceRow {
        id: i64 = "r.id",
        kind: String = "r.kind",
        client_id: Option<i64> = "r.client_id",
        code: String = "r.code",
        version: i64 = "r.version",
        deleted: bool = "r.deleted",
        body: String = "r.body",
        created_at: Moment = "r.created_at",
        updated_at: Moment = "r.updated_at",
    }
}

impl From<ResourceRow> for Resource {
    fn from(row: ResourceRow) -> Self {
        Self {
            id: Tsid::from_i64(row.id),
            kind: row.kind,
            client: row.client_id.map(Tsid::from_i64),
            code: row.code,
            version: row.version,
            deleted: row.deleted,
            body: row.body,
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        }
    }
}

row! {
    /// The catalogue version.
    pub(in crate::postgres) struct VersionRow {
        number: i64 = "m.catalogue_version",
        stamp: i64 = "m.stamp",
    }
}

impl From<VersionRow> for CatalogueVersion {
    fn from(row: VersionRow) -> Self {
        Self { number: row.number, stamp: row.stamp }
    }
}

row! {
    /// The catalogue version, whether all resources follow, and one of them where there is any.
    pub(in crate::postgres) struct ChangedRow {
        number: i64 = "k.version",
        stamp: i64 = "k.stamp",
        everything: bool = "k.since < 0",
        id: Option<i64> = "r.id",
        kind: Option<String> = "r.kind",
        client_id: Option<i64> = "r.client_id",
        code: Option<String> = "r.code",
        version: Option<i64> = "r.version",
        deleted: Option<bool> = "r.deleted",
        body: Option<String> = "r.body",
        created_at: Option<Moment> = "r.created_at",
        updated_at: Option<Moment> = "r.updated_at",
    }
}

impl ChangedRow {
    /// The resource, if the row has one.
    pub(in crate::postgres) fn resource(self) -> Option<Resource> {
        Some(Resource {
            id: Tsid::from_i64(self.id?),
            kind: self.kind?,
            client: self.client_id.map(Tsid::from_i64),
            code: self.code?,
            version: self.version?,
            deleted: self.deleted?,
            body: self.body?,
            created_at: self.created_at?.into(),
            updated_at: self.updated_at?.into(),
        })
    }
}

statements! {
    /// Statements about resources.
    pub(in crate::postgres) struct Resources {
        /// The catalogue version, and which programs may run on the schema (one row).
        version: (VersionRow, Compatibility) = "SELECT {columns} FROM {ns}.store m";
        /// Raises the catalogue version (one row).
        raise: (VersionRow, Only<Moment>) = "
            UPDATE {ns}.store m SET catalogue_version = m.catalogue_version + 1
            RETURNING m.catalogue_version AS number, m.stamp AS stamp, {now} AS now";
        /// Whether a version with its stamp is in the history (catalogue_history's primary key).
        is_known: Only<bool> = "
            SELECT EXISTS (SELECT FROM {ns}.catalogue_history h WHERE h.version = $1::bigint AND h.stamp = $2::bigint)";
        /// Locks resources by id, in this order, so that two batches do not deadlock (primary key).
        lock: ResourceRow = "
            SELECT {columns} FROM {ns}.resources r WHERE r.id = ANY ($1::bigint[]) ORDER BY r.id FOR NO KEY UPDATE";
        /// Resources by kind, client and code (resources_code).
        by_codes: ResourceRow = "
            SELECT {columns}
            FROM unnest($1::text[], $2::bigint[], $3::text[]) AS i(kind, client_id, code)
            CROSS JOIN LATERAL (
                SELECT f.* FROM {ns}.resources f
                WHERE f.kind = i.kind AND coalesce(f.client_id, 0) = coalesce(i.client_id, 0) AND f.code = i.code
                  AND NOT f.deleted
                OFFSET 0
            ) AS r";
        /// Adds resources, except those whose code or id another transaction took (primary key, resources_code).
        insert = "
            INSERT INTO {ns}.resources (id, kind, client_id, code, body, version, created_at, updated_at)
            SELECT i.id, i.kind, i.client_id, i.code, i.body, $1::bigint, $2::timestamptz, $2::timestamptz
            FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[])
                AS i(id, kind, client_id, code, body)
            ON CONFLICT DO NOTHING";
        /// Changes resources, each value found by its position (primary key).
        update = "
            UPDATE {ns}.resources r
            SET version = $1::bigint, updated_at = $2::timestamptz,
                deleted = ($4::boolean[])[array_position($3::bigint[], r.id)],
                body = ($5::text[])[array_position($3::bigint[], r.id)]
            WHERE r.id = ANY ($3::bigint[])";
        /// The catalogue version, and the resources that changed since a version ($1 with stamp $2), deleted ones
        /// included; all that are not deleted, if that is not in this database's history (catalogue_history's primary
        /// key, resources_version).
        changes: ChangedRow = "
            WITH known AS MATERIALIZED (
                SELECT m.catalogue_version AS version, m.stamp AS stamp,
                       CASE WHEN $1::bigint <= m.catalogue_version
                                 AND EXISTS (SELECT FROM {ns}.catalogue_history h
                                             WHERE h.version = $1::bigint AND h.stamp = $2::bigint)
                            THEN $1::bigint ELSE -1 END AS since
                FROM {ns}.store m
            )
            SELECT {columns}
            FROM known k LEFT JOIN LATERAL (
                SELECT f.* FROM {ns}.resources f
                WHERE f.version > k.since AND (k.since >= 0 OR NOT f.deleted)
                  AND ($3::text IS NULL OR f.kind = $3::text)
                OFFSET 0
            ) AS r ON true
            ORDER BY r.version, r.id";
        /// A resource by its id, also a deleted one (primary key).
        by_id: ResourceRow = "SELECT {columns} FROM {ns}.resources r WHERE r.id = $1::bigint";
        /// Resources of a kind after a client and a code, up to a client (resources_code).
        list: ResourceRow = "
            SELECT {columns} FROM {ns}.resources r
            WHERE r.kind = $1::text AND (coalesce(r.client_id, 0), r.code) > ($2::bigint, $3::text)
              AND coalesce(r.client_id, 0) <= $4::bigint AND NOT r.deleted
            ORDER BY r.kind, coalesce(r.client_id, 0), r.code LIMIT $5::bigint";
    }
}
