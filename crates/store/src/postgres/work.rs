//! What pull workers report, on PostgreSQL: attempts that end, starts, heartbeats, resets, and their audit. Entries are
//! locked first, in the order of their ids; what is decided about them then is written in a few statements for all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use tidegate_core::name::check_text;
use tidegate_core::work::{Attempt, Decision, Recorded, decide, retry_delay};
use tidegate_core::{Action, EntryId, LeaseToken, Outcome, QueueName, QueueState, RetryPolicy, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::audit::read_rows;
use super::connection::Tx;
use super::errors::Fault;
use super::groups::{Groups, borrowed};
use super::halves::in_halves;
use super::row::count;
use super::tags::tagged;
use super::{Inner, PostgresStore};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, Extend, Finalize, Requeue, RequeueAt};
use crate::turns::Kind;
use crate::work::{
    AuditRow, ByHand, Heartbeat, HeartbeatLease, Held, Holder, ListQuery, Page, Report, Reported, Retained, Retention,
    WorkStore, WorkersPage, WorkersQuery, already_reported, lease_required, not_resettable, replay,
};

/// Entries that a worker is shown to hold, at most.
const SHOWN: usize = 100;

#[async_trait]
impl WorkStore for PostgresStore {
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>> {
        self.detached(|inner| async move { inner.report(items).await }).await
    }

    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>> {
        self.detached(|inner| async move { inner.started(items).await }).await
    }

    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>> {
        self.detached(|inner| async move { inner.heartbeat(items).await }).await
    }

    async fn reset(&self, items: Vec<ByHand>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.reset(items).await }).await
    }

    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        self.detached(|inner| async move { inner.queues_of(&ids).await }).await
    }

    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        self.detached(|inner| async move { inner.event_of(id).await }).await
    }

    async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.attended(|inner| async move { inner.audit(id, after, limit).await }).await
    }

    async fn list(&self, query: ListQuery) -> Result<Page> {
        self.attended(|inner| async move { inner.list(query).await }).await
    }

    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        self.attended(|inner| async move { inner.workers(query).await }).await
    }

    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        let queue = queue.clone();
        self.detached(|inner| async move { inner.claimable(&queue, &tags).await }).await
    }

    async fn retain(&self, retention: Retention) -> Result<Retained> {
        self.detached(|inner| async move { inner.retain(retention).await }).await
    }
}

/// A live entry, locked.
struct Live {
    token: LeaseToken,
    leased: bool,
    worker: Option<String>,
    attempts: u32,
    max_attempts: u32,
    generation: u32,
    queue_id: i32,
    retry: Option<RetryPolicy>,
    event_id: Tsid,
    since: Option<Timestamp>,
    attributes: Option<String>,
}

impl Live {
    fn is_held_by(&self, holder: &Holder) -> bool {
        self.leased
            && self.worker.as_deref() == Some(holder.worker.as_str())
            && holder.lease.is_none_or(|lease| lease == self.token)
    }

    fn row(&self, entry: EntryId, action: Action) -> AuditRow {
        AuditRow {
            id: 0,
            entry,
            event_id: Some(self.event_id),
            action,
            worker: self.worker.clone(),
            actor: None,
            generation: self.generation,
            attempt: self.attempts,
            token: self.token,
            status_code: None,
            execution_time_ms: None,
            message: None,
            next_retry_at: None,
            retry_count: None,
            max_retries: None,
            created_at: Timestamp::UNIX_EPOCH,
        }
    }
}

/// What a batch of reports moved: queues that got work, and groups that lost their head.
#[derive(Default)]
struct Moved {
    queues: Vec<i32>,
    freed: Groups,
}

/// Splits items into rounds in which no entry comes twice; each round is a list of indexes.
fn rounds<I>(items: &[I], id: impl Fn(&I) -> EntryId) -> Vec<Vec<usize>> {
    let mut rounds: Vec<(BTreeSet<EntryId>, Vec<usize>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let id = id(item);
        match rounds.iter_mut().find(|(ids, _)| !ids.contains(&id)) {
            Some((ids, round)) => {
                ids.insert(id);
                round.push(index);
            }
            None => rounds.push((BTreeSet::from([id]), vec![index])),
        }
    }
    rounds.into_iter().map(|(_, round)| round).collect()
}

impl Inner {
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>> {
        // A report that was recorded is found recorded when it runs again, so a lost answer is answered by that.
        in_halves(items, &|items: Vec<Report>| {
            async move {
                let items = &items[..];
                self.settle(items.len(), &|tx| async move { self.report_items(tx, items).await }.boxed()).await
            }
            .boxed()
        })
        .await
    }

    async fn report_items(&self, tx: Arc<Tx>, items: &[Report]) -> Result<(Batch<Reported>, Vec<i32>), Fault> {
        let mut answers: Vec<Option<Result<Reported>>> = items.iter().map(|_| None).collect();
        let mut moved = Moved::default();
        for round in rounds(items, |item| item.holder.id) {
            let round: Vec<(usize, &Report)> = round.into_iter().map(|index| (index, &items[index])).collect();
            self.report_round(&tx, &round, &mut answers, &mut moved).await?;
        }
        let Moved { mut queues, freed } = moved;
        queues.extend(self.promote(&tx, borrowed(&freed)).await?);
        Ok((all_answered(answers), queues))
    }

    async fn report_round(
        &self,
        tx: &Tx,
        round: &[(usize, &Report)],
        answers: &mut [Option<Result<Reported>>],
        moved: &mut Moved,
    ) -> Result<(), Fault> {
        let live = self.lock_live(tx, round.iter().map(|(_, item)| item.holder.id)).await?;
        let others = round
            .iter()
            .filter(|(_, item)| !live.get(&item.holder.id.get()).is_some_and(|live| live.is_held_by(&item.holder)));
        let others: Vec<&Holder> = others.map(|(_, item)| &item.holder).collect();
        let recorded = self.last_verdicts(tx, &others).await?;
        let known = self.known(tx, others.iter().map(|holder| holder.id)).await?;
        let mut ends = Vec::new();
        let mut retries = Vec::new();
        for (index, item) in round {
            let id = item.holder.id;
            let found = live.get(&id.get());
            if let Err(error) = self.check_report(&item.holder, found).await? {
                answers[*index] = Some(Err(error));
                continue;
            }
            let record = recorded.get(&id.get());
            match (judge(item, found, record), found, record) {
                (Decision::End(end), Some(live), _) => ends.push((*index, *item, live, end)),
                (Decision::Retry, Some(live), _) => retries.push((*index, *item, live)),
                (Decision::Replay, _, Some(row)) => answers[*index] = Some(replay(row.clone())),
                _ => answers[*index] = Some(Err(nothing_held(id, &known))),
            }
        }
        let mut rows = self.end_attempts(tx, &ends, &mut moved.freed).await?;
        rows.extend(self.retry_attempts(tx, &retries, &mut moved.queues).await?);
        let ended = ends.iter().map(|(index, item, ..)| (*index, item.holder.id));
        let retried = retries.iter().map(|(index, item, _)| (*index, item.holder.id));
        let written = self.add_audit(tx, &rows).await?;
        for (index, id) in ended.chain(retried) {
            let row = written.get(&id.get()).cloned().ok_or_else(|| lost_row(id))?;
            // The record decides: what it says is what any repeat will be told.
            answers[index] = Some(match (replay(row), live.get(&id.get())) {
                (Ok(reported), Some(live)) => Ok(self.first_report(reported, live).await?),
                (answer, _) => answer,
            });
        }
        Ok(())
    }

    /// A report that was not recorded before.
    async fn first_report(&self, reported: Reported, live: &Live) -> Result<Reported, Fault> {
        let queue = self.catalog().await?.queue_by_id(live.queue_id).map(|queue| queue.name.clone());
        let held_for = crate::work::held_for(live.since, reported.row.created_at);
        Ok(Reported { repeated: false, queue, held_for, attributes: live.attributes.clone(), ..reported })
    }

    async fn check_report(&self, holder: &Holder, live: Option<&Live>) -> Result<Result<()>, Fault> {
        if let Err(error) = check_text("worker", &holder.worker) {
            return Ok(Err(error.into()));
        }
        let Some(live) = live else { return Ok(Ok(())) };
        if holder.lease.is_none() && self.settings_of(live.queue_id).await?.require_lease {
            return Ok(Err(lease_required()));
        }
        Ok(Ok(()))
    }

    async fn settings_of(&self, queue_id: i32) -> Result<tidegate_core::QueueSettings, Fault> {
        let catalog = self.catalog().await?;
        Ok(catalog.queue_by_id(queue_id).map(|queue| queue.settings.clone()).unwrap_or_default())
    }

    async fn end_attempts(
        &self,
        tx: &Tx,
        ends: &[(usize, &Report, &Live, tidegate_core::End)],
        freed: &mut Groups,
    ) -> Result<Vec<AuditRow>, Fault> {
        let mut items: Vec<Finalize> = ends
            .iter()
            .map(|(_, item, live, end)| Finalize {
                id: item.holder.id,
                token: Some(live.token),
                end: *end,
                errors: (item.outcome == Outcome::Failed)
                    .then(|| crate::work::error_list(item.error_message.as_deref())),
                results: None,
            })
            .collect();
        if items.is_empty() {
            return Ok(Vec::new());
        }
        items.sort_by_key(|item| item.id);
        self.move_to_log(tx, &items, freed).await?;
        let row = |(_, item, live, _): &(usize, &Report, &Live, tidegate_core::End)| {
            let mut row = row_of(item, live);
            if item.outcome == Outcome::Failed {
                row.retry_count = Some(live.attempts.saturating_sub(1));
                row.max_retries = Some(live.max_attempts.saturating_sub(1));
            }
            row
        };
        Ok(ends.iter().map(row).collect())
    }

    async fn retry_attempts(
        &self,
        tx: &Tx,
        retries: &[(usize, &Report, &Live)],
        queues: &mut Vec<i32>,
    ) -> Result<Vec<AuditRow>, Fault> {
        let mut items = Vec::with_capacity(retries.len());
        for (_, item, live) in retries {
            let settings = self.settings_of(live.queue_id).await?;
            let delay = retry_delay(live.retry.as_ref(), settings.retry.as_ref(), live.attempts, rand::random());
            items.push(Requeue {
                id: item.holder.id,
                token: live.token,
                when: RequeueAt::After(delay),
                counts: true,
                error: item.error_message.clone(),
            });
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        items.sort_by_key(|item| item.id);
        let rows = self.requeue_rows(tx, &items.iter().collect::<Vec<_>>()).await?;
        self.follow_tags(tx, &tagged(&rows, 0, 3)).await?;
        let due: HashMap<i64, Timestamp> = rows.iter().map(|row| (row.get(0), row.get(5))).collect();
        queues.extend(rows.iter().map(|row| row.get::<_, i32>(2)));
        let row = |(_, item, live): &(usize, &Report, &Live)| {
            let mut row = row_of(item, live);
            row.next_retry_at = due.get(&item.holder.id.get()).copied();
            (row.retry_count, row.max_retries) = (Some(live.attempts), Some(live.max_attempts.saturating_sub(1)));
            row
        };
        Ok(retries.iter().map(row).collect())
    }

    /// Locks live entries in the order of their ids.
    async fn lock_live(&self, tx: &Tx, ids: impl Iterator<Item = EntryId>) -> Result<HashMap<i64, Live>, Fault> {
        let ids: BTreeSet<i64> = ids.map(EntryId::get).collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        let rows = tx.query(&self.sql.work.lock_live, &[&ids]).await?;
        Ok(rows.iter().map(|row| (row.get(0), read_live(row))).collect())
    }

    /// Which of these entries there are at all.
    async fn known(&self, tx: &Tx, ids: impl Iterator<Item = EntryId>) -> Result<BTreeSet<i64>, Fault> {
        let ids: Vec<i64> = ids.map(EntryId::get).collect();
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        Ok(tx.query(&self.sql.look_up, &[&ids]).await?.iter().map(|row| row.get(0)).collect())
    }

    async fn last_verdicts(&self, tx: &Tx, holders: &[&Holder]) -> Result<HashMap<i64, AuditRow>, Fault> {
        if holders.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<i64> = holders.iter().map(|holder| holder.id.get()).collect();
        let workers: Vec<&str> = holders.iter().map(|holder| holder.worker.as_str()).collect();
        // A text that PostgreSQL cannot hold was never recorded; it is refused elsewhere.
        let workers: Vec<String> = workers.iter().map(|worker| worker.replace('\0', "\u{FFFD}")).collect();
        let tokens: Vec<Option<i64>> = holders.iter().map(|holder| holder.lease.map(|lease| lease.0)).collect();
        let rows = tx.query(&self.sql.work.last_verdicts, &[&ids, &workers, &tokens]).await?;
        read_rows(&rows)
    }

    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>> {
        let items = &items;
        self.settle_leases(items.len(), &|tx| async move { self.start_items(tx, items).await }.boxed()).await
    }

    async fn start_items(&self, tx: Arc<Tx>, items: &[Holder]) -> Result<(Batch<AuditRow>, Vec<i32>), Fault> {
        let (live, refused) = self.held(&tx, items.iter()).await?;
        let tokens: BTreeMap<i64, i64> = live.iter().map(|(id, live)| (*id, live.token.0)).collect();
        let (ids, tokens): (Vec<i64>, Vec<i64>) = tokens.into_iter().unzip();
        let mut rows: HashMap<i64, AuditRow> =
            read_rows(&tx.query(&self.sql.work.last_starts, &[&ids, &tokens]).await?)?;
        let mut new: BTreeMap<EntryId, AuditRow> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            if !refused.contains_key(&index)
                && !rows.contains_key(&item.id.get())
                && let Some(live) = live.get(&item.id.get())
            {
                new.insert(item.id, live.row(item.id, Action::Started));
            }
        }
        rows.extend(self.add_audit(&tx, &new.into_values().collect::<Vec<_>>()).await?);
        let alive = items.iter().enumerate().filter(|(index, _)| !refused.contains_key(index));
        let alive: BTreeSet<i64> = alive.map(|(_, item)| item.id.get()).collect();
        tx.execute(&self.sql.work.touch, &[&self.now(), &alive.into_iter().collect::<Vec<_>>()]).await?;
        let answer = |(index, item): (usize, &Holder)| match refused.get(&index) {
            Some(error) => Err(error.clone()),
            None => rows.get(&item.id.get()).cloned().ok_or_else(|| Error::no_entry(item.id)),
        };
        Ok((items.iter().enumerate().map(answer).collect(), Vec::new()))
    }

    /// Locks what these hold; says who holds nothing, by position.
    async fn held<'a>(
        &self,
        tx: &Tx,
        holders: impl Iterator<Item = &'a Holder>,
    ) -> Result<(HashMap<i64, Live>, HashMap<usize, Error>), Fault> {
        let holders: Vec<&Holder> = holders.collect();
        let live = self.lock_live(tx, holders.iter().map(|holder| holder.id)).await?;
        let missing = holders.iter().filter(|holder| !live.contains_key(&holder.id.get()));
        let mut known = self.known(tx, missing.map(|holder| holder.id)).await?;
        known.extend(live.keys());
        let mut refused = HashMap::new();
        for (index, holder) in holders.iter().enumerate() {
            if let Err(error) = check_text("worker", &holder.worker) {
                refused.insert(index, error.into());
            } else if !live.get(&holder.id.get()).is_some_and(|live| live.is_held_by(holder)) {
                refused.insert(index, nothing_held(holder.id, &known));
            }
        }
        self.tell_who_reported(tx, &holders, &live, &mut refused).await?;
        Ok((live, refused))
    }

    /// Where nobody holds an entry any more because the holder itself reported on it, that is what it is told.
    async fn tell_who_reported(
        &self,
        tx: &Tx,
        holders: &[&Holder],
        live: &HashMap<i64, Live>,
        refused: &mut HashMap<usize, Error>,
    ) -> Result<(), Fault> {
        let is_free = |holder: &Holder| live.get(&holder.id.get()).is_none_or(|live| !live.leased);
        let mut of_nobody: Vec<usize> = refused
            .iter()
            .filter(|(index, error)| error.kind() == ErrorKind::Fenced && is_free(holders[**index]))
            .map(|(index, _)| *index)
            .collect();
        of_nobody.sort_unstable();
        let asked: Vec<&Holder> = of_nobody.iter().map(|index| holders[*index]).collect();
        let recorded = self.last_verdicts(tx, &asked).await?;
        for index in of_nobody {
            let holder = holders[index];
            let is_last = |row: &AuditRow| live.get(&holder.id.get()).is_none_or(|live| live.token == row.token);
            let is_own = |row: &&AuditRow| row.worker.as_deref() == Some(holder.worker.as_str());
            if recorded.get(&holder.id.get()).filter(is_own).is_some_and(is_last) {
                refused.insert(index, already_reported());
            }
        }
        Ok(())
    }

    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>> {
        let items = &items;
        self.settle_leases(items.len(), &|tx| async move { self.beat_items(tx, items).await }.boxed()).await
    }

    async fn beat_items(&self, tx: Arc<Tx>, items: &[Heartbeat]) -> Result<(Batch<Held>, Vec<i32>), Fault> {
        let (live, refused) = self.held(&tx, items.iter().map(|item| &item.holder)).await?;
        let claimed = self.claimed_for(&tx, items, &live).await?;
        let mut extends = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let id = item.holder.id.get();
            if let (None, Some(live)) = (refused.get(&index), live.get(&id)) {
                let lease = item.lease.length(claimed.get(&id).copied(), &self.settings_of(live.queue_id).await?);
                extends.push(Extend { id: item.holder.id, token: live.token, lease });
            }
        }
        let (extended, _) = self.extend_items(Arc::clone(&tx), &extends).await?;
        let mut extended = extends.iter().zip(extended);
        let answer = |(index, item): (usize, &Heartbeat)| match refused.get(&index) {
            Some(error) => Err(error.clone()),
            None => {
                let (extend, until) = extended.next().ok_or_else(|| Error::no_entry(item.holder.id))?;
                let live = live.get(&item.holder.id.get()).ok_or_else(|| Error::no_entry(item.holder.id))?;
                let (event_id, attempts) = (live.event_id, live.attempts);
                Ok(Held { event_id, token: extend.token, lease_until: until?, attempts })
            }
        };
        Ok((items.iter().enumerate().map(answer).collect(), Vec::new()))
    }

    /// How long the claims asked for, in milliseconds, where somebody wants to know. The audit says it.
    async fn claimed_for(
        &self,
        tx: &Tx,
        items: &[Heartbeat],
        live: &HashMap<i64, Live>,
    ) -> Result<HashMap<i64, i64>, Fault> {
        let unsaid = items.iter().filter(|item| matches!(item.lease, HeartbeatLease::AsClaimed { .. }));
        let wanted: BTreeMap<i64, i64> =
            unsaid.filter_map(|item| Some((item.holder.id.get(), live.get(&item.holder.id.get())?.token.0))).collect();
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let (ids, tokens): (Vec<i64>, Vec<i64>) = wanted.into_iter().unzip();
        let rows = tx.query(&self.sql.work.claimed_for, &[&ids, &tokens]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn queues_of(&self, ids: &[EntryId]) -> Result<Vec<Option<QueueName>>> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        let rows = self.database.read_patiently(&self.sql.work.queues_of, &[&numbers]).await?;
        let found: HashMap<i64, i32> =
            rows.iter().filter_map(|row| Some((row.get(0), row.get::<_, Option<i32>>(1)?))).collect();
        let mut catalog = self.catalog().await?;
        if found.values().any(|queue| catalog.queue_by_id(*queue).is_none()) {
            self.reload_catalog().await?;
            catalog = self.catalog().await?;
        }
        let name = |id: &i64| Some(catalog.queue_by_id(*found.get(id)?)?.name.clone());
        Ok(numbers.iter().map(name).collect())
    }

    async fn reset(&self, items: Vec<ByHand>) -> Result<Batch<()>> {
        let items = &items;
        let work = |tx| async move { self.reset_items(tx, items).await }.boxed();
        // Run again, a reset of our own would look like an entry that cannot be reset.
        let confirm = |tx: Arc<Tx>, (answers, _): &(Batch<i64>, Vec<i32>)| {
            let rows = items.iter().zip(answers).filter_map(|(item, row)| Some((item.id.get(), *row.as_ref().ok()?)));
            let (entries, rows): (Vec<i64>, Vec<i64>) = rows.unzip();
            async move {
                let found = tx.query(&self.sql.work.resets_stand, &[&entries, &rows]).await?;
                Ok(found.len() == rows.len())
            }
            .boxed()
        };
        let answers = self.settle_confirmed(items.len(), &work, &confirm).await?;
        Ok(answers.into_iter().map(|answer| answer.map(drop)).collect())
    }

    /// Answers the audit row of each.
    async fn reset_items(&self, tx: Arc<Tx>, items: &[ByHand]) -> Result<(Batch<i64>, Vec<i32>), Fault> {
        let asked: BTreeMap<i64, &ByHand> = items.iter().rev().map(|item| (item.id.get(), item)).collect();
        let ids: Vec<i64> = asked.keys().copied().collect();
        let held = tx.query(&self.sql.work.reset, &[&self.now(), &ids]).await?;
        let mut done: BTreeSet<i64> = held.iter().map(|row| row.get(0)).collect();
        let mut queues: Vec<i32> = held.iter().map(|row| row.get(1)).collect();
        self.follow_tags(&tx, &tagged(&held, 0, 2)).await?;
        let rest: Vec<i64> = ids.iter().copied().filter(|id| !done.contains(id)).collect();
        if !rest.is_empty() {
            let (made, freed) = self.redrive_rows(&tx, &rest, true).await?;
            done.extend(made.keys());
            queues.extend(freed);
        }
        let reset: Vec<&ByHand> = asked.into_values().filter(|item| done.contains(&item.id.get())).collect();
        let mut open = self.audit_started_over(&tx, &reset, Action::Reset).await?;
        let known = self.known(&tx, items.iter().map(|item| item.id)).await?;
        let answer = |item: &ByHand| {
            if let Some(row) = open.remove(&item.id.get()) {
                Ok(row)
            } else if known.contains(&item.id.get()) {
                Err(not_resettable(item.id, "it is neither"))
            } else {
                Err(Error::no_entry(item.id))
            }
        };
        Ok((items.iter().map(answer).collect(), queues))
    }

    async fn claimable(&self, queue: &QueueName, tags: &[String]) -> Result<Vec<String>> {
        let queue_id = self.queue(queue).await?.id;
        let params: [&(dyn ToSql + Sync); 4] = [&self.now(), &queue_id, &tags, &QueueState::Paused.code()];
        let rows = self.database.read_patiently(&self.sql.work.claimable, &params).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn workers(&self, query: WorkersQuery) -> Result<WorkersPage> {
        let now = self.database_time().await.map_err(Fault::into_error)?;
        let known = self.in_turn(Kind::workers(query.client), |tx| async move {
            self.known_workers(&tx, query.client).await.map(|known| (known, query))
        });
        let (known, query) = known.await?;
        Ok(crate::work::judge_workers(known, now, &query))
    }

    async fn known_workers(&self, tx: &Tx, client: Option<Tsid>) -> Result<crate::work::Workers, Fault> {
        let client = client.map(Tsid::to_i64);
        let mut known = BTreeMap::new();
        for row in tx.query(&self.sql.work.consumers, &[&client]).await? {
            crate::work::seen(&mut known, row.get(0), super::row::queue(&row, 1, 3).map_err(Error::from)?, row.get(2));
        }
        let held = if client.is_some() { &self.sql.work.held_of_client } else { &self.sql.work.held };
        let params: &[&(dyn ToSql + Sync)] = if client.is_some() { &[&client] } else { &[] };
        for row in tx.query(held, params).await? {
            let worker: Option<String> = row.get(0);
            let queue = super::row::queue(&row, 1, 4).map_err(Error::from)?;
            let view = crate::work::seen(&mut known, worker.unwrap_or_default(), queue, row.get(2));
            view.held += 1;
            if view.holds.len() < SHOWN {
                view.holds.push(EntryId::new(row.get(3)).map_err(Error::from)?);
            }
        }
        tx.end_reading().await?;
        Ok(known)
    }
}

fn judge(item: &Report, live: Option<&Live>, recorded: Option<&AuditRow>) -> Decision {
    let attempt = live.map(|live| Attempt {
        holder: live.worker.as_deref().filter(|_| live.leased).map(|worker| (worker, live.token)),
        attempts: live.attempts,
        max_attempts: live.max_attempts,
    });
    let recorded = recorded.map(|row| Recorded { action: row.action, token: row.token });
    decide(attempt, recorded, &item.holder.worker, item.holder.lease, item.outcome)
}

fn row_of(item: &Report, live: &Live) -> AuditRow {
    AuditRow {
        worker: Some(item.holder.worker.clone()),
        status_code: item.status_code,
        execution_time_ms: item.execution_time_ms,
        message: item.error_message.clone(),
        ..live.row(item.holder.id, item.outcome.action())
    }
}

fn nothing_held(id: EntryId, known: &BTreeSet<i64>) -> Error {
    if known.contains(&id.get()) { Error::fenced() } else { Error::no_entry(id) }
}

fn lost_row(id: EntryId) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the audit of entry {id} was not written"))
}

fn all_answered<T>(answers: Vec<Option<Result<T>>>) -> Batch<T> {
    let lost = || Err(Error::new(ErrorKind::Indeterminate, "the database gave no answer for this item"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

fn read_live(row: &Row) -> Live {
    Live {
        token: LeaseToken(row.get(1)),
        leased: row.get(2),
        worker: row.get(3),
        attempts: count(row.get(4)),
        max_attempts: count(row.get(5)),
        generation: count(row.get(6)),
        queue_id: row.get(7),
        retry: row.get::<_, Option<&str>>(8).and_then(|text| serde_json::from_str(text).ok()),
        event_id: Tsid::from_i64(row.get(9)),
        since: super::row::optional_moment(row, 10),
        attributes: row.get(11),
    }
}
