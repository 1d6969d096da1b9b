//! Jobs as operators see them on PostgreSQL.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{Action, End, EntryId, Generation, QueueName, Tsid};
use tokio_postgres::types::ToSql;

use crate::api::JobDesk;
use crate::error::{Error, ErrorKind, Result};
use crate::list_gate::Kind;
use crate::listing::{Range, Searches};
use crate::postgres::dead_letters::Again;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::row::{count, queue_name};
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::statements::jobs::{HeadRow, JobLaneRow, JobRow, LaneRow};
use crate::sql::{Only, Statement};
use crate::values::facts::numbers_of;
use crate::values::jobs::{Head, Heads, Look, Looking, Seen, ignored_note, near, not_failed};
use crate::values::{
    Batch, BlockedCount, BlockedGroup, BlockedPage, BlockedQuery, COUNTED_JOBS, EntryView, Family, Finalize, HeldSlots,
    JobLane, JobView, JobsPage, JobsQuery, LaneAsk, LaneHolds, MAX_TARGETS, ManualAction, PoolKey, PoolView,
};

#[async_trait]
impl JobDesk for PostgresStore {
    async fn job(&self, id: Tsid) -> Result<Option<JobView>> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.job(id).await }).await
    }

    async fn list_jobs(&self, query: JobsQuery) -> Result<JobsPage> {
        query.check()?;
        self.of(Family::Jobs).attended(move |inner| async move { inner.list_jobs(query).await }).await
    }

    async fn retry_jobs(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>> {
        self.of(Family::Jobs).detached(|inner| async move { inner.redrive(items, Again::Retry).await }).await
    }

    async fn ignore_jobs(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.of(Family::Jobs).detached(|inner| async move { inner.ignore(items).await }).await
    }

    async fn blocked_groups(&self, query: BlockedQuery) -> Result<BlockedPage> {
        query.check()?;
        self.of(Family::Jobs).attended(move |inner| async move { inner.blocked_groups(query).await }).await
    }

    async fn count_blocked(&self, after: Option<(i64, String)>) -> Result<BlockedCount> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.count_blocked(after).await }).await
    }

    async fn lanes_hold(&self, lanes: Vec<LaneAsk>) -> Result<Vec<LaneHolds>> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.lanes_hold(&lanes).await }).await
    }

    async fn slots_held(&self, pools: Vec<PoolKey>) -> Result<Vec<Vec<HeldSlots>>> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.slots_held(&pools).await }).await
    }

    async fn pool_view(&self, pool: PoolKey) -> Result<PoolView> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.pool_view(pool).await }).await
    }

    async fn job_lanes(&self, after: i64, limit: usize) -> Result<Vec<JobLane>> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.job_lanes(after, limit).await }).await
    }

    async fn jobs_of_lane(&self, lane: i64, limit: usize) -> Result<Vec<EntryId>> {
        self.of(Family::Jobs).attended(move |inner| async move { inner.jobs_of_lane(lane, limit).await }).await
    }
}

impl Inner {
    async fn job(&self, id: Tsid) -> Result<Option<JobView>> {
        let (first, last) = near(id);
        self.read(|tx| async move {
            let highest = tx.row(&self.sql.heartbeat.last_number, &[]).await?.map_or(0, |Only(last)| last);
            let numbers: Vec<i64> = numbers_of(id, highest).collect();
            let found = tx.rows(&self.sql.jobs.with_number, &[&numbers, &first, &last]).await?;
            let found: Vec<i64> = found.into_iter().map(|Only(number)| number).collect();
            let views = self.job_views(&tx, &self.sql.jobs.whole, &found).await?;
            Ok(views.into_values().find(|view| view.id() == id))
        })
        .await
    }

    async fn list_jobs(&self, query: JobsQuery) -> Result<JobsPage> {
        let kind = Kind::jobs(query.client);
        self.in_turn(kind, |tx| async move { self.list_jobs_with(&tx, &query).await }).await
    }

    async fn list_jobs_with(&self, tx: &Tx, query: &JobsQuery) -> Result<JobsPage, Fault> {
        let lanes = if query.names_lanes() { Some(self.lanes_of_types(tx, query).await?) } else { None };
        let range = self.range_of_jobs(tx, query).await?;
        let mut looking = Looking::new(query, range);
        if let Some(event) = query.event {
            let added = tx.rows(&self.sql.added.of_facts, &[&vec![event.to_i64()], &(MAX_TARGETS as i64)]).await?;
            for numbers in looking.added(added.into_iter().map(|one| one.entry_id).collect()) {
                let mut views = self.job_views(tx, &self.sql.jobs.summaries, &numbers).await?;
                if !looking.add_first(numbers.iter().filter_map(|id| views.remove(id))) {
                    break;
                }
            }
        }
        while let Some(look) = looking.look() {
            let seen = self.look_for_jobs(tx, query, lanes.as_deref(), look).await?;
            let mut views = self.job_views(tx, &self.sql.jobs.summaries, &seen.ids).await?;
            looking.add(look, &seen, |id| views.remove(&id));
        }
        tx.end_reading().await?;
        Ok(looking.finish())
    }

    async fn lanes_of_types(&self, tx: &Tx, query: &JobsQuery) -> Result<Vec<i32>, Fault> {
        let (client, types) = (query.client.map(Tsid::to_i64), query.lane_types.as_deref().unwrap_or_default());
        let rows = tx.rows(&self.sql.jobs.lanes_of_types, &[&client, &types, &query.lane_prefix]).await?;
        Ok(rows.into_iter().map(|Only(lane)| lane).collect())
    }

    async fn look_for_jobs(
        &self,
        tx: &Tx,
        query: &JobsQuery,
        lanes: Option<&[i32]>,
        look: Look,
    ) -> Result<Seen, Fault> {
        let (codes, client) = (query.codes(), query.client.map(Tsid::to_i64));
        let params: [&(dyn ToSql + Sync); 8] =
            [&look.before, &look.after, &look.live, &look.ended, &look.limit, &codes, &client, &lanes];
        let sql = &self.sql.jobs;
        let statement = if client.is_some() { &sql.look_of_client } else { &sql.look };
        let rows = tx.rows(statement, &params).await?;
        let down_to = rows.first().and_then(|row| row.down_to);
        Ok(Seen { ids: rows.iter().filter_map(|row| row.id).collect(), down_to })
    }

    /// The numbers that jobs of the query's event and time can have.
    async fn range_of_jobs(&self, tx: &Tx, query: &JobsQuery) -> Result<Range, Fault> {
        let sql = &self.sql.jobs;
        let highest = || async { Ok::<_, Fault>(tx.row(&sql.last_number, &[]).await?.map_or(0, |Only(last)| last)) };
        if let Some(event) = query.event {
            let found = tx.row(&sql.numbers_of_fact, &[&event.to_i64()]).await?;
            let numbers = found.map(|row| (row.first_number, row.last_number));
            return Ok(match numbers {
                None => Range::NOTHING,
                Some((Some(first), Some(last))) => Range::between(first, last),
                // A fact of exactly one job, which has one of these numbers.
                Some(_) => {
                    numbers_of(event, highest().await?).last().map_or(Range::NOTHING, |last| Range::between(1, last))
                }
            });
        }
        if query.from.is_none() && query.to.is_none() {
            return Ok(Range::EVERYTHING);
        }
        let mut searches = Searches::between(query.from, query.to, highest().await?);
        loop {
            let pivots = searches.pivots();
            if pivots.is_empty() {
                return Ok(searches.range());
            }
            let rows = tx.rows(&sql.made_from, &[&pivots]).await?;
            let found = rows.into_iter().map(|row| (row.pivot, row.published_at.map(Into::into)));
            searches.learn(&found.collect::<Vec<_>>());
        }
    }

    /// Jobs by number, the latest generation of each.
    async fn job_views(
        &self,
        tx: &Tx,
        statement: &Statement<JobRow>,
        ids: &[i64],
    ) -> Result<HashMap<i64, JobView>, Fault> {
        let mut views: HashMap<i64, JobView> = HashMap::new();
        if ids.is_empty() {
            return Ok(views);
        }
        for row in tx.rows(statement, &[&ids]).await? {
            let view = JobView::try_from(row)?;
            let id = view.entry.id.get();
            // A discarded generation may be found beside a live one: the newest counts.
            if views.get(&id).is_none_or(|other| other.entry.generation < view.entry.generation) {
                views.insert(id, view);
            }
        }
        Ok(views)
    }
}

impl Inner {
    async fn ignore(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        let items = &items;
        // Running it again is harmless: what is ignored stays so.
        let work = |tx| async move { self.ignore_items(tx, items).await };
        self.transact_batch(items.len(), work).await
    }

    async fn ignore_items(&self, tx: Arc<Tx>, items: &[ManualAction]) -> Result<(Batch<()>, Vec<i32>), Fault> {
        let now = self.moment();
        let asked: BTreeMap<i64, &ManualAction> = items.iter().rev().map(|item| (item.id.get(), item)).collect();
        let ids: Vec<i64> = asked.keys().copied().collect();
        let notes: Vec<String> = asked.values().map(|item| ignored_note(item, now)).collect();
        let ended = tx.rows(&self.sql.jobs.ignore, &[&ids, &notes]).await?;
        let mut done: HashSet<i64> = ended.into_iter().map(|Only(id)| id).collect();
        let rest: Vec<i64> = ids.iter().copied().filter(|id| !done.contains(id)).collect();
        let mut ends = Vec::new();
        for row in tx.rows(&self.sql.jobs.lock_kept, &[&rest]).await? {
            let end = End::from_code(row.exhausted_as)
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a job has an unknown end"))?;
            let results = asked.get(&row.id).map(|item| ignored_note(item, now));
            let id = EntryId::new(row.id).map_err(Error::from)?;
            ends.push(Finalize { id, token: None, end, errors: None, results, attempt: None });
        }
        // Last of what waits for rows: it takes the locks of groups.
        let (_, queues) = self.finalize_items(Arc::clone(&tx), &ends).await?;
        done.extend(ends.iter().map(|end| end.id.get()));
        let acted: Vec<&ManualAction> = asked.into_values().filter(|item| done.contains(&item.id.get())).collect();
        self.audit_ended(&tx, &acted, Action::Ignored).await?;
        let left: Vec<i64> = ids.iter().copied().filter(|id| !done.contains(id)).collect();
        let mut known = HashSet::new();
        if !left.is_empty() {
            done.extend(tx.rows(&self.sql.jobs.ignored, &[&left]).await?.into_iter().map(|Only(id)| id));
            known.extend(tx.rows(&self.sql.end.look_up, &[&left]).await?.into_iter().map(|row| row.id));
        }
        let answer = |item: &ManualAction| match item.id.get() {
            id if done.contains(&id) => Ok(()),
            id if known.contains(&id) => Err(not_failed(item.id)),
            _ => Err(Error::no_entry(item.id)),
        };
        Ok((items.iter().map(answer).collect(), queues))
    }

    async fn blocked_groups(&self, query: BlockedQuery) -> Result<BlockedPage> {
        let queue = match &query.queue {
            None => None,
            Some(queue) => Some(self.queue(queue).await?.id),
        };
        let kind = Kind::jobs(query.queue.as_ref().and_then(QueueName::client));
        self.in_turn(kind, |tx| async move { self.blocked_groups_with(&tx, &query, queue).await }).await
    }

    async fn blocked_groups_with(
        &self,
        tx: &Tx,
        query: &BlockedQuery,
        queue: Option<i32>,
    ) -> Result<BlockedPage, Fault> {
        let sql = &self.sql.jobs;
        let mut heads = Heads::new(query);
        self.look_at(tx, &mut heads, queue).await?;
        let mut views = self.job_views(tx, &sql.summaries, &heads.kept).await?;
        let most = COUNTED_JOBS as i64 + 1;
        let behind = tx.rows(&sql.behind, &[&heads.kept, &most]).await?;
        let mut behind: HashMap<i64, u64> = behind.into_iter().map(|row| (row.id, row.behind.unsigned_abs())).collect();
        tx.end_reading().await?;
        let group =
            |id: &i64| Some(BlockedGroup { head: views.remove(id)?, behind: behind.remove(id).unwrap_or_default() });
        let groups = heads.kept.iter().filter_map(group).collect();
        Ok(BlockedPage { groups, next: heads.next() })
    }

    async fn count_blocked(&self, after: Option<(i64, String)>) -> Result<BlockedCount> {
        self.in_turn(Kind::jobs(None), |tx| async move {
            let mut heads = Heads::to_count(after.clone());
            self.look_at(&tx, &mut heads, None).await?;
            tx.end_reading().await?;
            Ok(heads.count())
        })
        .await
    }

    /// Looks at heads of groups, as many as are wanted.
    async fn look_at(&self, tx: &Tx, heads: &mut Heads, queue: Option<i32>) -> Result<(), Fault> {
        let sql = &self.sql.jobs;
        while let Some(step) = heads.step() {
            let after = i32::try_from(heads.after.0).unwrap_or(i32::MAX);
            let (statement, of) = match queue {
                Some(queue) => (&sql.heads_of_queue, queue),
                None => (&sql.heads, after),
            };
            let rows = tx.rows(statement, &[&of, &heads.after.1, &(step as i64)]).await?;
            let head = |row: HeadRow| Head {
                id: row.id,
                queue_id: row.queue_id.into(),
                group: row.group_key,
                is_kept: row.is_kept,
            };
            heads.add(step, rows.into_iter().map(head).collect());
        }
        Ok(())
    }

    async fn lanes_hold(&self, lanes: &[LaneAsk]) -> Result<Vec<LaneHolds>> {
        let mut holds = vec![LaneHolds::default(); lanes.len()];
        if lanes.is_empty() {
            return Ok(holds);
        }
        let clients: Vec<i64> = lanes.iter().map(|ask| ask.queue.client().map_or(0, Tsid::to_i64)).collect();
        let names: Vec<&str> = lanes.iter().map(|ask| ask.queue.name()).collect();
        let types: Vec<&str> = lanes.iter().map(|ask| ask.lane_type.as_str()).collect();
        let (clients, names, types) = (&clients, &names, &types);
        let most = COUNTED_JOBS as i64;
        let found = self.in_turn(Kind::jobs(None), |tx| async move {
            let rows = tx.rows(&self.sql.jobs.lanes_by_type, &[clients, names, types]).await?;
            let items: Vec<i64> = rows.iter().map(|row| row.item).collect();
            let numbers: Vec<i32> = rows.iter().map(|row| row.lane).collect();
            let queues: Vec<i32> = rows.iter().map(|row| row.queue_id).collect();
            let of = |row: &LaneRow| lanes.get(usize::try_from(row.item - 1).ok()?)?.groups.as_deref();
            let groups: Vec<Option<&str>> = rows.iter().map(of).collect();
            let params: [&(dyn ToSql + Sync); 6] = [&self.now(), &items, &numbers, &queues, &groups, &most];
            let found = tx.rows(&self.sql.jobs.holds, &params).await?;
            tx.end_reading().await?;
            Ok(found)
        });
        for row in found.await? {
            let Some(of) = usize::try_from(row.item - 1).ok().and_then(|at| holds.get_mut(at)) else { continue };
            of.waiting += row.waiting.unsigned_abs();
            of.leased += row.leased.unsigned_abs();
            of.is_capped |= row.is_capped;
            let oldest = row.oldest.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
            of.oldest = of.oldest.max(oldest);
        }
        Ok(holds)
    }

    async fn slots_held(&self, pools: &[PoolKey]) -> Result<Vec<Vec<HeldSlots>>> {
        let mut held = vec![Vec::new(); pools.len()];
        if pools.is_empty() {
            return Ok(held);
        }
        let (ids, clients): (Vec<i64>, Vec<i64>) = pools.iter().map(PoolKey::stored).unzip();
        let params: [&(dyn ToSql + Sync); 3] = [&self.now(), &ids, &clients];
        for row in self.read(|tx| async move { tx.rows(&self.sql.jobs.held, &params).await }).await? {
            let Some(of) = usize::try_from(row.item - 1).ok().and_then(|at| held.get_mut(at)) else { continue };
            of.push(HeldSlots { node: row.node, slots: count(row.slots), wanted: count(row.wanted) });
        }
        Ok(held)
    }

    async fn pool_view(&self, pool: PoolKey) -> Result<PoolView> {
        let slots = self.slots_held(&[pool]).await?.pop().unwrap_or_default();
        let (id, client) = pool.stored();
        let params: [&(dyn ToSql + Sync); 3] = [&self.now(), &id, &client];
        let row = self.read(|tx| async move { tx.row(&self.sql.jobs.pool, &params).await }).await?;
        let (moment, has_nodes) = row.map_or((None, false), |row| (row.moment, row.has_nodes));
        Ok(PoolView { slots, moment: moment.map(Into::into), has_nodes })
    }

    async fn job_lanes(&self, after: i64, limit: usize) -> Result<Vec<JobLane>> {
        let (after, limit) = (i32::try_from(after).unwrap_or(i32::MAX), limit as i64);
        let rows = self.read(|tx| async move { tx.rows(&self.sql.jobs.lanes, &[&after, &limit]).await }).await?;
        let lane = |row: JobLaneRow| {
            let queue = queue_name(row.queue, row.client_id)?;
            Ok(JobLane { id: row.id.into(), queue, lane_type: row.lane_type })
        };
        rows.into_iter().map(lane).collect()
    }

    async fn jobs_of_lane(&self, lane: i64, limit: usize) -> Result<Vec<EntryId>> {
        let (lane, limit) = (i32::try_from(lane).unwrap_or(0), limit as i64);
        let found = self.read(|tx| async move { tx.rows(&self.sql.jobs.of_lane, &[&lane, &limit]).await }).await?;
        found.into_iter().map(|Only(id)| Ok(EntryId::new(id)?)).collect()
    }
}

impl TryFrom<JobRow> for JobView {
    type Error = Error;

    fn try_from((entry, (fact, lane)): JobRow) -> Result<Self> {
        Ok(Self { entry: EntryView::try_from((entry, fact))?, lane_type: lane.lane_type })
    }
}
