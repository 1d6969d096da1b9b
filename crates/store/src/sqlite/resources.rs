//! Resources on SQLite: a batch reads the rows it is about, decides what to write, raises the catalogue version, and
//! writes under it.

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::api::Resources;
use crate::error::Result;
use crate::resources::{self, Plan};
use crate::sqlite::engine::catalogue::{current_version, is_known};
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, moment};
use crate::values::resources::{check_key, check_kind};
use crate::values::{
    Batch, CatalogueVersion, ChangeResource, DeleteResource, PutResource, Resource, ResourceChanges, ResourcesQuery,
};

#[async_trait]
impl Resources for SqliteStore {
    async fn catalogue_version(&self) -> Result<CatalogueVersion> {
        self.read(|tx| Ok(current_version(tx.conn, tx.shared)?.into())).await
    }

    async fn put_resources(&self, items: Vec<PutResource>) -> Result<Batch<Resource>> {
        self.write(Urgency::End, move |tx| put(tx, &items)).await
    }

    async fn delete_resources(&self, items: Vec<DeleteResource>) -> Result<Batch<()>> {
        self.write(Urgency::End, move |tx| delete(tx, &items)).await
    }

    async fn change_resources(&self, items: Vec<ChangeResource>) -> Result<Vec<Resource>> {
        self.write(Urgency::End, move |tx| change(tx, &items)).await
    }

    async fn resource_changes(&self, kind: Option<&str>, since: Option<CatalogueVersion>) -> Result<ResourceChanges> {
        kind.map_or(Ok(()), check_kind)?;
        let kind = kind.map(str::to_owned);
        self.read(move |tx| changes(tx, kind.as_deref(), since)).await
    }

    async fn resource(&self, kind: &str, id: Tsid) -> Result<Option<Resource>> {
        let kind = kind.to_owned();
        let found = self.read(move |tx| tx.row(&tx.sql().resources.by_id, [id.to_i64()])).await?;
        Ok(found.map(Resource::from).filter(|resource| resource.kind == kind && !resource.deleted))
    }

    async fn resource_by_code(&self, kind: &str, client: Option<Tsid>, code: &str) -> Result<Option<Resource>> {
        check_key(kind, code)?;
        let key = (kind.to_owned(), client.map(Tsid::to_i64), code.to_owned());
        let found = self.read(move |tx| tx.row(&tx.sql().resources.by_code, key)).await?;
        Ok(found.map(Into::into))
    }

    async fn resources(&self, query: ResourcesQuery) -> Result<Vec<Resource>> {
        query.check()?;
        self.read(move |tx| {
            let (client, code, last) = query.range();
            let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
            let rows = tx.rows(&tx.sql().resources.list, (&query.kind, client, code, last, limit))?;
            Ok(rows.into_iter().map(Into::into).collect())
        })
        .await
    }
}

pub(super) fn put(tx: &Tx<'_>, items: &[PutResource]) -> Result<Batch<Resource>> {
    planned(tx, items, &[], |plan, drawn| Ok(items.iter().map(|item| plan.put(item, drawn)).collect()))
}

/// An error undoes the whole job.
fn change(tx: &Tx<'_>, items: &[ChangeResource]) -> Result<Vec<Resource>> {
    let (puts, deleted) = resources::split(items);
    planned(tx, &puts, &deleted, |plan, drawn| plan.change(items, drawn))?.into_iter().collect()
}

/// Reads the rows that `items` and the ids `others` are about, plans, and writes what was planned.
fn planned(
    tx: &Tx<'_>,
    items: &[PutResource],
    others: &[i64],
    decide: impl FnOnce(&mut Plan, &mut dyn Iterator<Item = Tsid>) -> Result<Vec<Result<Tsid>>>,
) -> Result<Batch<Resource>> {
    let sql = &tx.sql().resources;
    let mut found = Vec::new();
    for id in resources::ids(items).iter().chain(others) {
        found.extend(tx.row(&sql.by_id, [*id])?);
    }
    for key in resources::codes(items) {
        found.extend(tx.row(&sql.by_code, key)?);
    }
    let mut plan = Plan::new(found.into_iter().map(Into::into));
    let first = tx.number(&tx.sql().publish.next_entry_id)?;
    let step = tx.shared.options.ids.step;
    let mut drawn = (0_i64..).map(|count| Tsid::from_parts(tx.now / 1000, first + count * step));
    let ids = decide(&mut plan, &mut drawn)?;
    let next = first + step * resources::to_draw(items) as i64;
    if write(tx, &mut plan)? && next != first {
        tx.execute(&tx.sql().publish.save_entry_id, [next])?;
    }
    Ok(plan.answers(ids))
}

fn delete(tx: &Tx<'_>, items: &[DeleteResource]) -> Result<Batch<()>> {
    let mut found = Vec::new();
    for item in items {
        found.extend(tx.row(&tx.sql().resources.by_id, [item.id.to_i64()])?);
    }
    let mut plan = Plan::new(found.into_iter().map(Into::into));
    let answers = items.iter().map(|item| plan.delete(item)).collect();
    write(tx, &mut plan)?;
    Ok(answers)
}

/// Writes what was decided, under a new catalogue version. False if there was nothing to write.
pub(super) fn write(tx: &Tx<'_>, plan: &mut Plan) -> Result<bool> {
    if !plan.writes() {
        return Ok(false);
    }
    let sql = &tx.sql().resources;
    tx.execute(&sql.raise, [])?;
    let version = CatalogueVersion::from(current_version(tx.conn, tx.shared)?);
    plan.stamp(version, moment(tx.now)?);
    for one in plan.inserts() {
        let client = one.client.map(Tsid::to_i64);
        tx.execute(&sql.insert, (one.id.to_i64(), &one.kind, client, &one.code, &one.body, one.version, tx.now))?;
    }
    for one in plan.updates() {
        tx.execute(&sql.update, (one.id.to_i64(), one.deleted, &one.body, one.version, tx.now))?;
    }
    Ok(true)
}

fn changes(tx: &Tx<'_>, kind: Option<&str>, since: Option<CatalogueVersion>) -> Result<ResourceChanges> {
    let sql = &tx.sql().resources;
    let now = current_version(tx.conn, tx.shared)?;
    let known = match since {
        Some(since) if since.number <= now.number && is_known(tx.conn, tx.sql(), since.number, since.stamp)? => {
            Some(since)
        }
        _ => None,
    };
    let rows = match known {
        Some(since) => tx.rows(&sql.changed, (since.number, kind))?,
        None => tx.rows(&sql.everything, [kind])?,
    };
    let items = rows.into_iter().map(Into::into).collect();
    Ok(ResourceChanges { version: now.into(), complete: known.is_none(), items })
}
