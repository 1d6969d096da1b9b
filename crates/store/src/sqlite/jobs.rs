//! Jobs as operators see them on SQLite.

use async_trait::async_trait;
use tidegate_core::{Action, EntryId, Generation, QueueName, Timestamp, Tsid};

use crate::api::JobDesk;
use crate::error::{Error, Result};
use crate::list_gate::Kind;
use crate::listing::{Range, Searches};
use crate::sql::{FromRow as _, Only};
use crate::sqlite::audit::{audit_ended, audit_manual};
use crate::sqlite::dead_letters::retry;
use crate::sqlite::end::{Ending, end_live};
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::row::{Moment, Shown, queue_name};
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, entry_id, moment};
use crate::sqlite::flags;
use crate::sqlite::found::{last_log, live};
use crate::sqlite::queues;
use crate::sqlite::statements::entries::{ended_view, live_view};
use crate::sqlite::statements::jobs::{HeadRow, JobLaneRow, LaneTypeRow, SeenRow, SlotsRow};
use crate::values::facts::numbers_of;
use crate::values::jobs::{Head, Heads, Look, Looking, Seen, ignored_note, near, not_failed};
use crate::values::{
    Batch, BlockedCount, BlockedGroup, BlockedPage, BlockedQuery, COUNTED_JOBS, EntryView, Family, HeldSlots, JobLane,
    JobView, JobsPage, JobsQuery, LaneAsk, LaneHolds, MAX_TARGETS, ManualAction, PoolKey, PoolView,
};

#[async_trait]
impl JobDesk for SqliteStore {
    async fn job(&self, id: Tsid) -> Result<Option<JobView>> {
        self.of_family(Family::Jobs).read(move |tx| job(tx, id)).await
    }

    async fn list_jobs(&self, query: JobsQuery) -> Result<JobsPage> {
        query.check()?;
        let kind = Kind::jobs(query.client);
        self.of_family(Family::Jobs).read_list(kind, move |tx| list(tx, &query)).await
    }

    async fn retry_jobs(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>> {
        self.of_family(Family::Jobs).write(Urgency::Publish, move |tx| retry(tx, &items)).await
    }

    async fn ignore_jobs(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.of_family(Family::Jobs)
            .write(Urgency::End, move |tx| items.iter().map(|item| ignore(tx, item)).collect())
            .await
    }

    async fn blocked_groups(&self, query: BlockedQuery) -> Result<BlockedPage> {
        query.check()?;
        let kind = Kind::jobs(query.queue.as_ref().and_then(QueueName::client));
        self.of_family(Family::Jobs).read_list(kind, move |tx| blocked(tx, &query)).await
    }

    async fn count_blocked(&self, after: Option<(i64, String)>) -> Result<BlockedCount> {
        self.of_family(Family::Jobs).read_list(Kind::jobs(None), move |tx| count_blocked(tx, after)).await
    }

    async fn lanes_hold(&self, lanes: Vec<LaneAsk>) -> Result<Vec<LaneHolds>> {
        let hold = move |tx: &mut Tx<'_>| lanes.iter().map(|ask| holds(tx, ask)).collect();
        self.of_family(Family::Jobs).read_list(Kind::jobs(None), hold).await
    }

    async fn slots_held(&self, pools: Vec<PoolKey>) -> Result<Vec<Vec<HeldSlots>>> {
        let held = move |tx: &mut Tx<'_>| pools.iter().map(|pool| slots(tx, pool)).collect();
        self.of_family(Family::Jobs).read(held).await
    }

    async fn pool_view(&self, pool: PoolKey) -> Result<PoolView> {
        self.of_family(Family::Jobs).read(move |tx| pool_view(tx, &pool)).await
    }

    async fn job_lanes(&self, after: i64, limit: usize) -> Result<Vec<JobLane>> {
        self.of_family(Family::Jobs).read(move |tx| job_lanes(tx, after, limit)).await
    }

    async fn jobs_of_lane(&self, lane: i64, limit: usize) -> Result<Vec<EntryId>> {
        self.of_family(Family::Jobs).read(move |tx| of_lane(tx, lane, limit)).await
    }
}

fn job(tx: &Tx<'_>, id: Tsid) -> Result<Option<JobView>> {
    let (first, last) = near(id);
    let highest = tx.number(&tx.sql().publish.next_entry_id)?;
    for number in numbers_of(id, highest) {
        if !tx.row(&tx.sql().jobs.may_be, (number, first, last))?.is_some_and(|Only(may_be)| may_be) {
            continue;
        }
        if let Some(view) = view(tx, number, true)?.filter(|view| view.id() == id) {
            return Ok(Some(view));
        }
    }
    Ok(None)
}

fn view(tx: &Tx<'_>, number: i64, is_whole: bool) -> Result<Option<JobView>> {
    let sql = &tx.sql().jobs;
    let (live, ended) = if is_whole { (&sql.live, &sql.ended) } else { (&sql.live_summary, &sql.ended_summary) };
    let id = entry_id(number)?;
    if let Some((row, lane)) = tx.row(live, [number])? {
        return live_view(id, row).map(|entry| Some(shown(entry, lane)));
    }
    let Some((row, lane)) = tx.row(ended, [number])? else { return Ok(None) };
    ended_view(id, row).map(|entry| Some(shown(entry, lane)))
}

fn shown(entry: EntryView, lane: LaneTypeRow) -> JobView {
    JobView { entry, lane_type: lane.lane_type.map(|Shown(lane_type)| lane_type) }
}

fn list(tx: &Tx<'_>, query: &JobsQuery) -> Result<JobsPage> {
    let wanted = Wanted::new(tx, query)?;
    let mut looking = Looking::new(query, range(tx, query)?);
    if let Some(event) = query.event {
        let added = tx.rows(&tx.sql().added.of_fact, (event.to_i64(), MAX_TARGETS as i64))?;
        for numbers in looking.added(added.into_iter().map(|one| one.entry_id).collect()) {
            let views = numbers.iter().map(|id| view(tx, *id, false)).collect::<Result<Vec<_>>>()?;
            if !looking.add_first(views.into_iter().flatten()) {
                break;
            }
        }
    }
    while let Some(look) = looking.look() {
        let seen = wanted.look(tx, look)?;
        let mut views = std::collections::HashMap::new();
        for id in &seen.ids {
            views.extend(view(tx, *id, false)?.map(|view| (*id, view)));
        }
        looking.add(look, &seen, |id| views.remove(&id));
    }
    Ok(looking.finish())
}

/// What a look compares.
struct Wanted {
    codes: Vec<i16>,
    client: Option<i64>,
    lanes: Option<Vec<i64>>,
}

impl Wanted {
    fn new(tx: &Tx<'_>, query: &JobsQuery) -> Result<Self> {
        let client = query.client.map(Tsid::to_i64);
        let lanes = if query.names_lanes() { Some(lanes(tx, client, query)?) } else { None };
        Ok(Self { codes: query.codes(), client, lanes })
    }

    fn fits(&self, row: &SeenRow) -> bool {
        self.codes.contains(&row.state)
            && (self.client.is_none() || self.client == row.client_id)
            && self.lanes.as_ref().is_none_or(|lanes| lanes.contains(&row.lane))
    }

    fn look(&self, tx: &Tx<'_>, look: Look) -> Result<Seen> {
        let sql = &tx.sql().jobs;
        let live = match self.client {
            Some(client) => tx.rows(&sql.look_live_of_client, (look.before, look.after, look.live, client))?,
            None => tx.rows(&sql.look_live, (look.before, look.after, look.live))?,
        };
        let ended = tx.rows(&sql.look_ended, (look.before, look.after, look.ended))?;
        let end_of =
            |rows: &[SeenRow], limit: i64| rows.last().filter(|_| rows.len() as i64 >= limit).map(|last| last.id);
        let down_to = end_of(&live, look.live).max(end_of(&ended, look.ended));
        let mut ids: Vec<i64> = live.iter().chain(&ended).filter(|row| self.fits(row)).map(|row| row.id).collect();
        ids.retain(|id| *id >= down_to.unwrap_or(0));
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        ids.truncate(usize::try_from(look.limit).unwrap_or(0));
        Ok(Seen { ids, down_to })
    }
}

fn lanes(tx: &Tx<'_>, client: Option<i64>, query: &JobsQuery) -> Result<Vec<i64>> {
    let sql = &tx.sql().jobs;
    let mut lanes = Vec::new();
    for lane_type in query.lane_types.iter().flatten() {
        lanes.extend(tx.rows(&sql.lanes_of_type, (client, lane_type))?.into_iter().map(|Only(lane)| lane));
    }
    if let Some(prefix) = &query.lane_prefix {
        lanes.extend(tx.rows(&sql.lanes_of_prefix, (client, prefix))?.into_iter().map(|Only(lane)| lane));
    }
    Ok(lanes)
}

/// The numbers that jobs of the query's event and time can have.
fn range(tx: &Tx<'_>, query: &JobsQuery) -> Result<Range> {
    let sql = tx.sql();
    if let Some(event) = query.event {
        let numbers = tx.row(&sql.jobs.numbers_of_fact, [event.to_i64()])?;
        return Ok(match numbers.map(|row| (row.first_number, row.last_number)) {
            None => Range::NOTHING,
            Some((Some(first), Some(last))) => Range::between(first, last),
            // A fact of exactly one job, which has one of these numbers.
            Some(_) => {
                let highest = tx.number(&sql.publish.next_entry_id)?;
                numbers_of(event, highest).last().map_or(Range::NOTHING, |last| Range::between(1, last))
            }
        });
    }
    if query.from.is_none() && query.to.is_none() {
        return Ok(Range::EVERYTHING);
    }
    let highest = tx.row(&sql.lists.last_number, [])?.map_or(0, |Only(last)| last);
    let mut published = tx.prepare(&sql.lists.published_from)?;
    let mut searches = Searches::between(query.from, query.to, highest);
    loop {
        let pivots = searches.pivots();
        if pivots.is_empty() {
            return Ok(searches.range());
        }
        let mut found = Vec::with_capacity(pivots.len());
        for pivot in pivots {
            let at = published.query([pivot])?.next()?.map(|row| Only::<Moment>::read(row, 0)).transpose()?;
            found.push((pivot, at.map(|Only(at)| at.into())));
        }
        searches.learn(&found);
    }
}

/// Notes that a failed job needs nothing more. One that keeps its place ends.
fn ignore(tx: &mut Tx<'_>, item: &ManualAction) -> Result<Result<()>> {
    let id = item.id.get();
    let note = ignored_note(item, moment(tx.now)?);
    if let Some(found) = live(tx, id)? {
        if !flags::is_kept(found.flags) {
            return Ok(Err(not_failed(item.id)));
        }
        let ending = Ending { results: Some(&note), ..Ending::new(found.exhausted_as()?) };
        end_live(tx, id, &found, &ending)?;
        audit_manual(tx, item, Action::Ignored, &found)?;
        return Ok(Ok(()));
    }
    let Some(last) = last_log(tx, id)? else { return Ok(Err(Error::no_entry(item.id))) };
    if last.superseded || !last.end.is_dead_letter() {
        return Ok(Err(not_failed(item.id)));
    }
    let noted = tx.row(&tx.sql().jobs.note, [last.seq])?.and_then(|Only(note)| note);
    if noted.is_none() {
        tx.execute(&tx.sql().jobs.ignore, (last.seq, &note))?;
        audit_ended(tx, item, Action::Ignored, &last)?;
    }
    Ok(Ok(()))
}

fn blocked(tx: &Tx<'_>, query: &BlockedQuery) -> Result<BlockedPage> {
    let sql = &tx.sql().jobs;
    let queue = query.queue.as_ref().map(|queue| queues::queue(tx, queue)).transpose()?.map(|queue| queue.id);
    let mut heads = Heads::new(query);
    look_at(tx, &mut heads, queue)?;
    let mut groups = Vec::with_capacity(heads.kept.len());
    for id in &heads.kept {
        let Some(head) = view(tx, *id, false)? else { continue };
        let behind = tx.row(&sql.behind, (id, COUNTED_JOBS as i64 + 1))?.map_or(0, |Only(behind)| behind);
        groups.push(BlockedGroup { head, behind: behind.unsigned_abs() });
    }
    Ok(BlockedPage { groups, next: heads.next() })
}

fn count_blocked(tx: &Tx<'_>, after: Option<(i64, String)>) -> Result<BlockedCount> {
    let mut heads = Heads::to_count(after);
    look_at(tx, &mut heads, None)?;
    Ok(heads.count())
}

/// Looks at heads of groups, as many as are wanted.
fn look_at(tx: &Tx<'_>, heads: &mut Heads, queue: Option<i64>) -> Result<()> {
    let sql = &tx.sql().jobs;
    while let Some(step) = heads.step() {
        let (after, group) = &heads.after;
        let rows = match queue {
            Some(queue) => tx.rows(&sql.heads_of_queue, (queue, group, step as i64))?,
            None => tx.rows(&sql.heads, (after, group, step as i64))?,
        };
        let head =
            |row: HeadRow| Head { id: row.id, queue_id: row.queue_id, group: row.group_key.0, is_kept: row.is_kept };
        heads.add(step, rows.into_iter().map(head).collect());
    }
    Ok(())
}

fn holds(tx: &Tx<'_>, ask: &LaneAsk) -> Result<LaneHolds> {
    let sql = &tx.sql().jobs;
    let most = COUNTED_JOBS as i64;
    let mut holds = LaneHolds::default();
    let queue = match queues::queue(tx, &ask.queue) {
        Ok(queue) => queue.id,
        // Nothing was ever made for it.
        Err(error) if error.kind() == crate::ErrorKind::NotFound => return Ok(holds),
        Err(error) => return Err(error),
    };
    let mut oldest: Option<i64> = None;
    for Only(lane) in tx.rows(&sql.lane_by_type, (queue, &ask.lane_type))? {
        let fresh = tx.rows(&sql.fresh_of_lane, (lane, most))?;
        let timed = tx.rows(&sql.timed_of_lane, (lane, most))?;
        let first = fresh.iter().filter(|row| row.is_free).map(|row| row.made_at).min();
        let due = timed.iter().filter(|row| row.is_free).filter_map(|row| row.due_at).filter(|due| *due <= tx.now);
        oldest = [oldest, first, due.min()].into_iter().flatten().min();
        holds.is_capped |= fresh.len() as i64 >= most || timed.len() as i64 >= most;
        holds.waiting += fresh.iter().chain(&timed).filter(|row| row.is_free).count() as u64;
        holds.leased += fresh.iter().chain(&timed).filter(|row| row.is_leased).count() as u64;
    }
    if let Some(groups) = &ask.groups {
        let parked = tx.row(&sql.parked_in, (queue, groups, most))?.map_or(0, |Only(rows)| rows)
            + tx.row(&sql.parked_below, (queue, groups, most))?.map_or(0, |Only(rows)| rows);
        holds.is_capped |= parked >= most;
        holds.waiting += parked.unsigned_abs();
    }
    holds.oldest = oldest.map(|since| std::time::Duration::from_micros(u64::try_from(tx.now - since).unwrap_or(0)));
    Ok(holds)
}

fn slots(tx: &Tx<'_>, pool: &PoolKey) -> Result<Vec<HeldSlots>> {
    let (pool, client) = pool.stored();
    let rows = tx.rows(&tx.sql().jobs.held, (pool, client, tx.now))?;
    let held = |row: SlotsRow| HeldSlots { node: row.node, slots: row.slots, wanted: row.wanted };
    Ok(rows.into_iter().map(held).collect())
}

fn pool_view(tx: &Tx<'_>, pool: &PoolKey) -> Result<PoolView> {
    let (next, now) = (tx.row(&tx.sql().dispatch.moment, pool.stored())?, moment(tx.now)?);
    Ok(PoolView {
        slots: slots(tx, pool)?,
        moment: next.map(|Only(next)| Timestamp::from(next)).filter(|next| *next > now),
        has_nodes: tx.row(&tx.sql().jobs.has_nodes, [tx.now])?.is_some_and(|Only(has_nodes)| has_nodes),
    })
}

fn job_lanes(tx: &Tx<'_>, after: i64, limit: usize) -> Result<Vec<JobLane>> {
    let lane = |row: JobLaneRow| {
        let queue = queue_name(row.queue, row.client_id)?;
        Ok(JobLane { id: row.id, queue, lane_type: row.lane_type.0 })
    };
    tx.rows(&tx.sql().jobs.lanes, (after, limit as i64))?.into_iter().map(lane).collect()
}

fn of_lane(tx: &Tx<'_>, lane: i64, limit: usize) -> Result<Vec<EntryId>> {
    let sql = &tx.sql().jobs;
    let mut found = tx.rows(&sql.fresh_free, (lane, limit as i64))?;
    found.extend(tx.rows(&sql.waiting_free, (lane, limit as i64))?);
    found.into_iter().take(limit).map(|Only(id)| entry_id(id)).collect()
}
