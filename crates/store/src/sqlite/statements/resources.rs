//! Resources: the table `resources`. The catalogue version is among the statements of the catalogue.

use tidegate_core::Tsid;

use crate::sql::statements;
use crate::sqlite::engine::row::{Moment, row};
use crate::sqlite::statements::catalogue::Version;
use crate::values::{CatalogueVersion, Resource};

row! {
    /// A resource.
    pub(in crate::sqlite) struct ResourceRow {
        id: i64,
        kind: String,
        client_id: Option<i64>,
        code: String,
        version: i64,
        deleted: bool,
        body: String,
        created_at: Moment,
        updated_at: Moment,
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

impl From<Version> for CatalogueVersion {
    fn from(version: Version) -> Self {
        Self { number: version.number, stamp: version.stamp }
    }
}

statements! {
    /// Statements about resources.
    pub(in crate::sqlite) struct Resources {
        /// Raises the catalogue version. One row.
        raise = "UPDATE {ns}_meta SET catalogue_version = catalogue_version + 1";
        /// A resource by its id, also a deleted one. Primary key.
        by_id: ResourceRow = "SELECT {columns} FROM {ns}_resources WHERE id = ?1";
        /// A resource by kind, client and code. Index resources_code.
        by_code: ResourceRow = "
            SELECT {columns} FROM {ns}_resources
            WHERE kind = ?1 AND coalesce(client_id, 0) = coalesce(?2, 0) AND code = ?3 AND NOT deleted";
        /// Adds a resource. Primary key, index resources_code.
        insert = "
            INSERT INTO {ns}_resources (id, kind, client_id, code, body, version, created_at, updated_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)";
        /// Changes a resource. Primary key.
        update = "UPDATE {ns}_resources SET deleted = ?2, body = ?3, version = ?4, updated_at = ?5 WHERE id = ?1";
        /// Resources of one kind, or of all, that changed since a catalogue version, deleted ones included. Index
        /// resources_version.
        changed: ResourceRow = "
            SELECT {columns} FROM {ns}_resources INDEXED BY {ns}_resources_version
            WHERE version > ?1 AND (?2 IS NULL OR kind = ?2) ORDER BY version, id";
        /// All resources of one kind, or of all, that are not deleted. Index resources_version.
        everything: ResourceRow = "
            SELECT {columns} FROM {ns}_resources INDEXED BY {ns}_resources_version
            WHERE version >= 0 AND NOT deleted AND (?1 IS NULL OR kind = ?1) ORDER BY version, id";
        /// Resources of a kind after a client and a code, up to a client. Index resources_code.
        list: ResourceRow = "
            SELECT {columns} FROM {ns}_resources
            WHERE kind = ?1 AND (coalesce(client_id, 0), code) > (?2, ?3) AND coalesce(client_id, 0) <= ?4
              AND NOT deleted
            ORDER BY coalesce(client_id, 0), code LIMIT ?5";
    }
}
