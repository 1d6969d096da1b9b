//! Resources on PostgreSQL. A batch locks the rows it is about, decides what to write, raises the catalogue version, and
//! writes under it. The version's row is locked last of all but new rows, so that two batches do not deadlock.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::Tsid;
use tokio_postgres::types::ToSql;

use crate::api::Resources;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::resources::{self, Plan};
use crate::sql::Only;
use crate::values::resources::{check_key, check_kind};
use crate::values::{
    Batch, CatalogueVersion, ChangeResource, DeleteResource, PutResource, Resource, ResourceChanges, ResourcesQuery,
};

#[async_trait]
impl Resources for PostgresStore {
    async fn catalogue_version(&self) -> Result<CatalogueVersion> {
        // Every request reads it: a caller that hangs up must not cost a connection.
        self.detached(|inner| async move { inner.catalogue_version().await }).await
    }

    async fn put_resources(&self, items: Vec<PutResource>) -> Result<Batch<Resource>> {
        self.detached(|inner| async move { inner.put_resources(&items).await }).await
    }

    async fn delete_resources(&self, items: Vec<DeleteResource>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.delete_resources(&items).await }).await
    }

    async fn change_resources(&self, items: Vec<ChangeResource>) -> Result<Vec<Resource>> {
        self.detached(|inner| async move { inner.change_resources(&items).await }).await
    }

    async fn resource_changes(&self, kind: Option<&str>, since: Option<CatalogueVersion>) -> Result<ResourceChanges> {
        kind.map_or(Ok(()), check_kind)?;
        let kind = kind.map(str::to_owned);
        self.attended(|inner| async move { inner.resource_changes(kind.as_deref(), since).await }).await
    }

    async fn resource(&self, kind: &str, id: Tsid) -> Result<Option<Resource>> {
        let kind = kind.to_owned();
        self.attended(|inner| async move { inner.resource(&kind, id).await }).await
    }

    async fn resource_by_code(&self, kind: &str, client: Option<Tsid>, code: &str) -> Result<Option<Resource>> {
        check_key(kind, code)?;
        let (kind, code) = (kind.to_owned(), code.to_owned());
        self.attended(|inner| async move { inner.resource_by_code(&kind, client, &code).await }).await
    }

    async fn resources(&self, query: ResourcesQuery) -> Result<Vec<Resource>> {
        query.check()?;
        self.attended(|inner| async move { inner.resources(&query).await }).await
    }
}

/// What a batch did: its answers, and the version it raised, if it wrote anything.
struct Done<T> {
    answers: Batch<T>,
    version: Option<CatalogueVersion>,
}

impl Inner {
    pub(super) async fn catalogue_version(&self) -> Result<CatalogueVersion> {
        let read = self.read(|tx| async move { tx.row(&self.sql.resources.version, &[]).await }).await?;
        let (version, read) =
            read.ok_or_else(|| Error::new(ErrorKind::Schema, "the schema was removed while in use"))?;
        self.shared.database.outdated.check(read.schema_version, read.oldest_compatible)?;
        Ok(version.into())
    }

    pub(super) async fn put_resources(&self, items: &[PutResource]) -> Result<Batch<Resource>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let work = |tx: Arc<Tx>| async move { self.put_resources_in(&tx, items).await };
        Ok(self.write(work, |tx, done| self.took_place(tx, done.version)).await?.answers)
    }

    async fn put_resources_in(&self, tx: &Tx, items: &[PutResource]) -> Result<Done<Resource>, Fault> {
        let (mut plan, mut drawn) = self.plan(tx, items, &[]).await?;
        let ids = items.iter().map(|item| plan.put(item, &mut drawn)).collect();
        let version = self.write_plan(tx, &mut plan).await?;
        Ok(Done { answers: plan.answers(ids), version })
    }

    async fn change_resources(&self, items: &[ChangeResource]) -> Result<Vec<Resource>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let work = |tx: Arc<Tx>| async move { self.change_resources_in(&tx, items).await };
        let done = self.write(work, |tx, done| self.took_place(tx, done.version)).await?;
        done.answers.into_iter().collect()
    }

    async fn change_resources_in(&self, tx: &Tx, items: &[ChangeResource]) -> Result<Done<Resource>, Fault> {
        let (puts, deleted) = resources::split(items);
        let (mut plan, mut drawn) = self.plan(tx, &puts, &deleted).await?;
        let ids = plan.change(items, &mut drawn)?;
        let version = self.write_plan(tx, &mut plan).await?;
        Ok(Done { answers: plan.answers(ids), version })
    }

    /// A plan over the rows that `items` and the ids `others` are about, and ids for new ones.
    async fn plan(
        &self,
        tx: &Tx,
        items: &[PutResource],
        others: &[i64],
    ) -> Result<(Plan, std::vec::IntoIter<Tsid>), Fault> {
        let sql = &self.sql.resources;
        let mut ids = resources::ids(items);
        ids.extend(others);
        let mut found = tx.rows(&sql.lock, &[&ids]).await?;
        let (mut kinds, mut clients, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        for (kind, client, code) in resources::codes(items) {
            kinds.push(kind);
            clients.push(client);
            codes.push(code);
        }
        found.extend(tx.rows(&sql.by_codes, &[&kinds, &clients, &codes]).await?);
        let plan = Plan::new(found.into_iter().map(Into::into));
        let drawn = self.draw_ids(tx, resources::to_draw(items)).await?;
        let drawn: Vec<Tsid> = drawn.iter().map(|drawn| Tsid::from_i64(drawn.event_id)).collect();
        Ok((plan, drawn.into_iter()))
    }

    async fn delete_resources(&self, items: &[DeleteResource]) -> Result<Batch<()>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let work = |tx: Arc<Tx>| async move { self.delete_resources_in(&tx, items).await };
        Ok(self.write(work, |tx, done| self.took_place(tx, done.version)).await?.answers)
    }

    async fn delete_resources_in(&self, tx: &Tx, items: &[DeleteResource]) -> Result<Done<()>, Fault> {
        let ids: Vec<i64> = items.iter().map(|item| item.id.to_i64()).collect();
        let found = tx.rows(&self.sql.resources.lock, &[&ids]).await?;
        let mut plan = Plan::new(found.into_iter().map(Into::into));
        let answers = items.iter().map(|item| plan.delete(item)).collect();
        let version = self.write_plan(tx, &mut plan).await?;
        Ok(Done { answers, version })
    }

    /// Writes what was decided, under a new catalogue version, which it returns. If another transaction has taken a code
    /// meanwhile, the whole batch runs again and finds it taken.
    pub(super) async fn write_plan(&self, tx: &Tx, plan: &mut Plan) -> Result<Option<CatalogueVersion>, Fault> {
        if !plan.writes() {
            return Ok(None);
        }
        let sql = &self.sql.resources;
        let raised = tx.row(&sql.raise, &[&self.now()]).await?;
        let (version, Only(now)) =
            raised.ok_or_else(|| Error::new(ErrorKind::Schema, "the schema was removed while in use"))?;
        let (version, now) = (CatalogueVersion::from(version), now.0);
        plan.stamp(version, now);
        let new: Vec<&Resource> = plan.inserts().collect();
        if !new.is_empty() {
            let ids: Vec<i64> = new.iter().map(|one| one.id.to_i64()).collect();
            let kinds: Vec<&str> = new.iter().map(|one| one.kind.as_str()).collect();
            let clients: Vec<Option<i64>> = new.iter().map(|one| one.client.map(Tsid::to_i64)).collect();
            let codes: Vec<&str> = new.iter().map(|one| one.code.as_str()).collect();
            let bodies: Vec<&str> = new.iter().map(|one| one.body.as_str()).collect();
            let values: [&(dyn ToSql + Sync); 7] = [&version.number, &now, &ids, &kinds, &clients, &codes, &bodies];
            if tx.execute(&sql.insert, &values).await? < new.len() as u64 {
                return Err(Fault::Again(Error::new(ErrorKind::Busy, "codes are being taken by others; try again")));
            }
        }
        let changed: Vec<&Resource> = plan.updates().collect();
        if !changed.is_empty() {
            let ids: Vec<i64> = changed.iter().map(|one| one.id.to_i64()).collect();
            let deleted: Vec<bool> = changed.iter().map(|one| one.deleted).collect();
            let bodies: Vec<&str> = changed.iter().map(|one| one.body.as_str()).collect();
            tx.execute(&sql.update, &[&version.number, &now, &ids, &deleted, &bodies]).await?;
        }
        Ok(Some(version))
    }

    /// Whether a batch whose answer was lost took place: then its version is in the history, with a stamp that nobody else
    /// can have drawn. One that wrote nothing may run again.
    async fn took_place(&self, tx: Arc<Tx>, version: Option<CatalogueVersion>) -> Result<bool, Fault> {
        let Some(CatalogueVersion { number, stamp }) = version else { return Ok(false) };
        let known = tx.row(&self.sql.resources.is_known, &[&number, &stamp]).await?;
        Ok(known.is_some_and(|known| known.0))
    }

    async fn resource_changes(&self, kind: Option<&str>, since: Option<CatalogueVersion>) -> Result<ResourceChanges> {
        let (number, stamp) = since.map_or((-1, 0), |since| (since.number, since.stamp));
        let changes = &self.sql.resources.changes;
        let rows = self.read(|tx| async move { tx.rows(changes, &[&number, &stamp, &kind]).await }).await?;
        let first = rows.first().ok_or_else(|| Error::new(ErrorKind::Schema, "the schema was removed while in use"))?;
        let version = CatalogueVersion { number: first.number, stamp: first.stamp };
        let complete = first.everything;
        Ok(ResourceChanges { version, complete, items: rows.into_iter().filter_map(|row| row.resource()).collect() })
    }

    async fn resource(&self, kind: &str, id: Tsid) -> Result<Option<Resource>> {
        let id = &id.to_i64();
        let found = self.read(|tx| async move { tx.row(&self.sql.resources.by_id, &[id]).await }).await?;
        Ok(found.map(Resource::from).filter(|found| found.kind == kind && !found.deleted))
    }

    async fn resource_by_code(&self, kind: &str, client: Option<Tsid>, code: &str) -> Result<Option<Resource>> {
        let (kinds, clients, codes) = (&vec![kind], &vec![client.map(Tsid::to_i64)], &vec![code]);
        let by_codes = &self.sql.resources.by_codes;
        let found = self.read(|tx| async move { tx.row(by_codes, &[kinds, clients, codes]).await }).await?;
        Ok(found.map(Into::into))
    }

    async fn resources(&self, query: &ResourcesQuery) -> Result<Vec<Resource>> {
        let (client, code, last) = query.range();
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let list = &self.sql.resources.list;
        let rows = self.read(|tx| async move { tx.rows(list, &[&query.kind, &client, &code, &last, &limit]).await });
        Ok(rows.await?.into_iter().map(Into::into).collect())
    }
}
