//! What pull workers report, on PostgreSQL: ends of attempts, starts and heartbeats; and resets, with the audit rows of
//! all these. A batch first locks its entries in the order of their ids, then writes what was decided in a few
//! statements for all of them. What follows from a report is decided by `tidegate_core::attempt`, not here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use tidegate_core::attempt::{Attempt, Recorded, ReportDecision, decide, retry_delay};
use tidegate_core::name::check_text;
use tidegate_core::{Action, AttemptOutcome, EntryId, QueueName, Timestamp};

use crate::api::Attempts;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::audit::by_entry;
use crate::postgres::dead_letters::Again;
use crate::postgres::engine::bisect::in_halves;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::store::PostgresStore;
use crate::postgres::flags::is_tagged;
use crate::postgres::groups::{Groups, borrowed};
use crate::postgres::holders::{Live, nothing_held};
use crate::values::attempts::{NO_REPORTS, lease_required, not_resettable, replay};
use crate::values::{
    AuditRow, Batch, Extend, Finalize, Heartbeat, HeartbeatLease, Held, Holder, ManualAction, Report, Reported,
    Requeue, RequeueAt,
};

#[async_trait]
impl Attempts for PostgresStore {
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>> {
        self.refuse_jobs(NO_REPORTS)?;
        self.detached(|inner| async move { inner.report(items).await }).await
    }

    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>> {
        self.refuse_jobs(NO_REPORTS)?;
        self.detached(|inner| async move { inner.started(items).await }).await
    }

    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>> {
        self.detached(|inner| async move { inner.heartbeat(items).await }).await
    }

    async fn reset(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.reset(items).await }).await
    }

    async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.attended(|inner| async move { inner.audit(id, after, limit).await }).await
    }
}

/// What a batch of reports changed: queues in which something may be claimable now, and groups that lost their head.
#[derive(Default)]
struct Moved {
    queues: Vec<i32>,
    freed: Groups,
}

/// Splits items into rounds in which no entry occurs twice; each round is a list of indexes.
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
        // When the transaction runs again after a lost answer, the audit row of its first run answers the report.
        in_halves(items, &|items: Vec<Report>| {
            async move {
                let items = &items[..];
                self.transact_batch(items.len(), &|tx| async move { self.report_items(tx, items).await }.boxed()).await
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
        let recorded = self.last_reports(tx, &others).await?;
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
            match (decide_report(item, found, record), found, record) {
                (ReportDecision::End(end), Some(live), _) => ends.push((*index, *item, live, end)),
                (ReportDecision::Retry, Some(live), _) => retries.push((*index, *item, live)),
                (ReportDecision::Replay, _, Some(row)) => answers[*index] = Some(replay(row.clone())),
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
            // Answered from the audit row, so that a repeat gets the same answer.
            answers[index] = Some(match (replay(row), live.get(&id.get())) {
                (Ok(reported), Some(live)) => Ok(self.first_report(reported, live).await?),
                (answer, _) => answer,
            });
        }
        Ok(())
    }

    /// Completes the answer to a report that was not recorded before; repeats are answered without these fields.
    async fn first_report(&self, reported: Reported, live: &Live) -> Result<Reported, Fault> {
        let queue = self.catalog().await?.queue_by_id(live.queue_id).map(|queue| queue.name.clone());
        let held_for = crate::values::attempts::held_for(live.since, reported.row.created_at);
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
                errors: (item.outcome == AttemptOutcome::Failed)
                    .then(|| crate::values::attempts::error_list(item.error_message.as_deref())),
                results: None,
                attempt: None,
            })
            .collect();
        if items.is_empty() {
            return Ok(Vec::new());
        }
        items.sort_by_key(|item| item.id);
        self.move_to_log(tx, &items, freed).await?;
        let row = |(_, item, live, _): &(usize, &Report, &Live, tidegate_core::End)| {
            let mut row = row_of(item, live);
            if item.outcome == AttemptOutcome::Failed {
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
                aside: false,
                error: item.error_message.clone(),
                attempt: None,
            });
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        items.sort_by_key(|item| item.id);
        let rows = self.requeue_rows(tx, &items.iter().collect::<Vec<_>>()).await?;
        let with_tags = rows.iter().filter(|row| is_tagged(row.flags));
        self.follow_tags(tx, &with_tags.map(|row| row.id).collect::<Vec<_>>()).await?;
        let due: HashMap<i64, Timestamp> = rows.iter().filter_map(|row| Some((row.id, row.due_at?.into()))).collect();
        queues.extend(rows.iter().map(|row| row.queue_id));
        let row = |(_, item, live): &(usize, &Report, &Live)| {
            let mut row = row_of(item, live);
            row.next_retry_at = due.get(&item.holder.id.get()).copied();
            (row.retry_count, row.max_retries) = (Some(live.attempts), Some(live.max_attempts.saturating_sub(1)));
            row
        };
        Ok(retries.iter().map(row).collect())
    }

    /// Which of these entries exist, live or ended.
    pub(super) async fn known(&self, tx: &Tx, ids: impl Iterator<Item = EntryId>) -> Result<BTreeSet<i64>, Fault> {
        let ids: Vec<i64> = ids.map(EntryId::get).collect();
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        Ok(tx.rows(&self.sql.end.look_up, &[&ids]).await?.iter().map(|row| row.id).collect())
    }

    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>> {
        let items = &items;
        self.transact_leases(items.len(), &|tx| async move { self.start_items(tx, items).await }.boxed()).await
    }

    async fn start_items(&self, tx: Arc<Tx>, items: &[Holder]) -> Result<(Batch<AuditRow>, Vec<i32>), Fault> {
        let (live, refused) = self.held(&tx, items.iter()).await?;
        let tokens: BTreeMap<i64, i64> = live.iter().map(|(id, live)| (*id, live.token.0)).collect();
        let (ids, tokens): (Vec<i64>, Vec<i64>) = tokens.into_iter().unzip();
        let mut rows = by_entry(tx.rows(&self.sql.audit.last_starts, &[&ids, &tokens]).await?)?;
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
        tx.execute(&self.sql.attempts.touch, &[&self.now(), &alive.into_iter().collect::<Vec<_>>()]).await?;
        let answer = |(index, item): (usize, &Holder)| match refused.get(&index) {
            Some(error) => Err(error.clone()),
            None => rows.get(&item.id.get()).cloned().ok_or_else(|| Error::no_entry(item.id)),
        };
        Ok((items.iter().enumerate().map(answer).collect(), Vec::new()))
    }

    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>> {
        let items = &items;
        self.transact_leases(items.len(), &|tx| async move { self.heartbeat_items(tx, items).await }.boxed()).await
    }

    async fn heartbeat_items(&self, tx: Arc<Tx>, items: &[Heartbeat]) -> Result<(Batch<Held>, Vec<i32>), Fault> {
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

    /// The lease that each claim asked for, in milliseconds and by entry, for heartbeats that name none. Read from the
    /// audit.
    async fn claimed_for(
        &self,
        tx: &Tx,
        items: &[Heartbeat],
        live: &HashMap<i64, Live>,
    ) -> Result<HashMap<i64, i64>, Fault> {
        let unnamed = items.iter().filter(|item| matches!(item.lease, HeartbeatLease::AsClaimed { .. }));
        let wanted: BTreeMap<i64, i64> =
            unnamed.filter_map(|item| Some((item.holder.id.get(), live.get(&item.holder.id.get())?.token.0))).collect();
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let (ids, tokens): (Vec<i64>, Vec<i64>) = wanted.into_iter().unzip();
        let rows = tx.rows(&self.sql.audit.claimed_for, &[&ids, &tokens]).await?;
        Ok(rows.into_iter().map(|row| (row.id, row.lease)).collect())
    }

    pub(super) async fn queues_of(&self, ids: &[EntryId]) -> Result<Vec<Option<QueueName>>> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        let numbers = &numbers;
        let rows = self.read(|tx| async move { tx.rows(&self.sql.attempts.queues_of, &[numbers]).await }).await?;
        let found: HashMap<i64, i32> = rows.into_iter().filter_map(|row| Some((row.id, row.queue_id?))).collect();
        let mut catalog = self.catalog().await?;
        if found.values().any(|queue| catalog.queue_by_id(*queue).is_none()) {
            self.reload_catalog().await?;
            catalog = self.catalog().await?;
        }
        let name = |id: &i64| Some(catalog.queue_by_id(*found.get(id)?)?.name.clone());
        Ok(numbers.iter().map(name).collect())
    }

    async fn reset(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        let items = &items;
        let work = |tx| async move { self.reset_items(tx, items).await }.boxed();
        // After a lost answer the audit rows are looked for first: run again, our own reset would look like an entry
        // that cannot be reset.
        let confirm = |tx: Arc<Tx>, (answers, _): &(Batch<i64>, Vec<i32>)| {
            let rows = items.iter().zip(answers).filter_map(|(item, row)| Some((item.id.get(), *row.as_ref().ok()?)));
            let (entries, rows): (Vec<i64>, Vec<i64>) = rows.unzip();
            async move {
                let found = tx.rows(&self.sql.audit.resets_exist, &[&entries, &rows]).await?;
                Ok(found.len() == rows.len())
            }
            .boxed()
        };
        let answers = self.transact_confirmed(items.len(), &work, &confirm).await?;
        Ok(answers.into_iter().map(|answer| answer.map(drop)).collect())
    }

    /// Takes entries from their holders, and redrives those that failed. Returns the id of each reset's audit row.
    async fn reset_items(&self, tx: Arc<Tx>, items: &[ManualAction]) -> Result<(Batch<i64>, Vec<i32>), Fault> {
        let asked: BTreeMap<i64, &ManualAction> = items.iter().rev().map(|item| (item.id.get(), item)).collect();
        let ids: Vec<i64> = asked.keys().copied().collect();
        let held = tx.rows(&self.sql.attempts.reset, &[&self.now(), &ids]).await?;
        let mut done: BTreeSet<i64> = held.iter().map(|row| row.id).collect();
        let mut queues: Vec<i32> = held.iter().map(|row| row.queue_id).collect();
        let with_tags: Vec<i64> = held.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(&tx, &with_tags).await?;
        let rest: Vec<i64> = ids.iter().copied().filter(|id| !done.contains(id)).collect();
        if !rest.is_empty() {
            let (made, freed) = self.redrive_rows(&tx, &rest, Again::Reset).await?;
            done.extend(made.keys());
            queues.extend(freed);
        }
        let reset: Vec<&ManualAction> = asked.into_values().filter(|item| done.contains(&item.id.get())).collect();
        let mut open = self.audit_started_over(&tx, &reset, Action::Reset).await?;
        let known = self.known(&tx, items.iter().map(|item| item.id)).await?;
        let answer = |item: &ManualAction| {
            if let Some(row) = open.remove(&item.id.get()) {
                Ok(row)
            } else if known.contains(&item.id.get()) {
                Err(not_resettable(item.id, "it is none of these"))
            } else {
                Err(Error::no_entry(item.id))
            }
        };
        Ok((items.iter().map(answer).collect(), queues))
    }
}

fn decide_report(item: &Report, live: Option<&Live>, recorded: Option<&AuditRow>) -> ReportDecision {
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

fn lost_row(id: EntryId) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the audit of entry {id} was not written"))
}

fn all_answered<T>(answers: Vec<Option<Result<T>>>) -> Batch<T> {
    let lost = || Err(Error::new(ErrorKind::Indeterminate, "the database gave no answer for this item"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}
