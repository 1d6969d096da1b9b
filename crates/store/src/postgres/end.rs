//! Ends entries, and extends and gives back leases. Every statement compares the token; entries that did not match are
//! looked up once, to say why.

use std::borrow::{Borrow, Cow};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Action, End, EntryId, LeaseToken, Place, Timestamp};
use tokio_postgres::types::ToSql;

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::flags::{is_audited, is_tagged};
use crate::postgres::groups::{Groups, borrowed};
use crate::postgres::items::{clean, micros};
use crate::postgres::statements::end::{EndedRow, FoundRow, RequeuedRow};
use crate::values::jobs::cancel_errors;
use crate::values::{Batch, Extend, Finalize, Finalized, ManualAction, Requeue, RequeueAt};

/// How often the heartbeat is written while it does not fit the clock, before work that needs it gives up.
const MAX_BEATS: u32 = 3;

/// One answer per item, and the queues in which something may be claimable now.
type Answered<T> = (Batch<T>, Vec<i32>);

/// Where an entry was found.
#[derive(Debug, Clone, Copy)]
enum Found {
    Live {
        token: i64,
        leased: bool,
    },
    /// Live, exhausted as this end, and keeps its place.
    Kept {
        token: i64,
        end: End,
    },
    Ended {
        token: i64,
        end: End,
    },
}

impl Inner {
    pub(super) async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        let items = &items;
        self.transact_batch(items.len(), |tx| async move { self.finalize_items(tx, items).await }).await
    }

    pub(super) async fn cancel(&self, asked: Vec<ManualAction>) -> Result<Batch<()>> {
        let asked = &asked;
        let items: Vec<Finalize> = asked
            .iter()
            .map(|item| Finalize {
                id: item.id,
                token: None,
                end: End::Cancelled,
                errors: cancel_errors(self.family, item),
                results: None,
                attempt: None,
            })
            .collect();
        let items = &items;
        let work = |tx| async move { self.cancel_items(tx, asked, items).await };
        // After a lost answer the entries are looked up first: run again, our own cancellation would look like another
        // caller's.
        let confirm = |tx: Arc<Tx>, (answers, _): &Answered<Finalized>| {
            let ended = items.iter().zip(answers).filter(|(_, answer)| is_first_end(answer));
            let ids: Vec<i64> = ended.map(|(item, _)| item.id.get()).collect();
            async move { self.are_cancelled(&tx, &ids).await }
        };
        let answers = self.transact_confirmed(items.len(), work, confirm).await?;
        let ended = || Error::new(ErrorKind::AlreadyEnded, "the entry has ended already");
        Ok(answers
            .into_iter()
            .map(|answer| answer.and_then(|done| if done.repeated { Err(ended()) } else { Ok(()) }))
            .collect())
    }

    async fn cancel_items(
        &self,
        tx: Arc<Tx>,
        asked: &[ManualAction],
        items: &[Finalize],
    ) -> Result<Answered<Finalized>, Fault> {
        let (answers, queues) = self.finalize_items(Arc::clone(&tx), items).await?;
        let ended = asked.iter().zip(&answers).filter(|(_, answer)| is_first_end(answer));
        let ended: Vec<&ManualAction> = ended.map(|(item, _)| item).collect();
        self.audit_ended(&tx, &ended, Action::Cancelled).await?;
        Ok((answers, queues))
    }

    async fn are_cancelled(&self, tx: &Tx, ids: &[i64]) -> Result<bool, Fault> {
        if ids.is_empty() {
            return Ok(true);
        }
        let known = self.look_up(tx, ids).await?;
        Ok(ids.iter().all(|id| matches!(known.get(id), Some(Found::Ended { end: End::Cancelled, .. }))))
    }

    /// Runs one transaction, then wakes the queues in which something may be claimable. After a lost answer the work
    /// runs again: it must recognise what it did before.
    pub(super) async fn transact_batch<'a, T, F>(
        &'a self,
        count: usize,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
    ) -> Result<Batch<T>>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<Answered<T>, Fault>> + Send + 'a,
    {
        self.transact_confirmed(count, work, |_, _| async { Ok(false) }).await
    }

    /// The same for work that writes leases, which it must not do while the heartbeat does not fit the clock.
    pub(super) async fn transact_leases<'a, T, F>(
        &'a self,
        count: usize,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
    ) -> Result<Batch<T>>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<Answered<T>, Fault>> + Send + 'a,
    {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut tries = 0;
        loop {
            let accept = |prelude| self.accept_clock(prelude);
            match self.transact(Begin::Write, accept, &work, |_, _| async { Ok(false) }).await {
                Ok((answers, queues)) => {
                    self.announce(queues);
                    return Ok(answers);
                }
                Err(Fault::StaleHeartbeat) if tries < MAX_BEATS => {
                    tries += 1;
                    self.beat().await?;
                }
                Err(fault) => return Err(fault.into_error()),
            }
        }
    }

    /// The same for work that would take its own effect for another caller's: after a lost answer `confirm` finds out
    /// first whether it took place.
    pub(super) async fn transact_confirmed<'a, T, F, C>(
        &'a self,
        count: usize,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
        confirm: impl Fn(Arc<Tx>, &Answered<T>) -> C + Send + Sync + 'a,
    ) -> Result<Batch<T>>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<Answered<T>, Fault>> + Send + 'a,
        C: Future<Output = Result<bool, Fault>> + Send + 'a,
    {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (answers, queues) = self.write(work, confirm).await?;
        self.announce(queues);
        Ok(answers)
    }

    pub(super) async fn finalize_items(&self, tx: Arc<Tx>, items: &[Finalize]) -> Result<Answered<Finalized>, Fault> {
        // A statement takes each id once. Repeats in the batch follow in further rounds, so that each sees what the
        // items before it did.
        let mut fresh = vec![false; items.len()];
        let mut freed = Groups::new();
        let mut waiting: Vec<usize> = (0..items.len()).collect();
        while !waiting.is_empty() {
            let mut round: BTreeMap<EntryId, usize> = BTreeMap::new();
            waiting.retain(|index| match round.entry(items[*index].id) {
                Entry::Vacant(slot) => {
                    slot.insert(*index);
                    false
                }
                Entry::Occupied(_) => true,
            });
            let distinct: Vec<&Finalize> = round.values().map(|index| &items[*index]).collect();
            let moved = self.move_to_log(&tx, &distinct, &mut freed).await?;
            for (id, index) in round {
                fresh[index] = moved.contains(&id);
            }
        }
        let rest: Vec<i64> =
            items.iter().zip(&fresh).filter(|(_, fresh)| !**fresh).map(|(item, _)| item.id.get()).collect();
        let known = if rest.is_empty() { HashMap::new() } else { self.look_up(&tx, &rest).await? };
        let queues = self.promote(&tx, borrowed(&freed)).await?;
        let answers = items.iter().zip(fresh).map(|(item, fresh)| {
            if fresh {
                return Ok(Finalized { repeated: false, end: item.end });
            }
            judge_finalize(item, known.get(&item.id.get()).copied())
        });
        Ok((answers.collect(), queues.into_iter().collect()))
    }

    /// Moves entries to the log, or keeps them in their place, and returns those that it moved or kept. Adds the groups
    /// that they leave to `freed`, for promotion at the end of the transaction. Items are sorted by id and distinct.
    pub(super) async fn move_to_log<F: Borrow<Finalize> + Sync>(
        &self,
        tx: &Tx,
        items: &[F],
        freed: &mut Groups,
    ) -> Result<HashSet<EntryId>, Fault> {
        let rows = self.end_rows(tx, items).await?;
        let mut moved = HashSet::with_capacity(rows.len());
        for row in rows {
            moved.insert(EntryId::new(row.id).map_err(Error::from)?);
            freed.extend(row.group_key.map(|group| (row.queue_id, group)));
        }
        let may_be_kept = |item: &&Finalize| item.token.is_some() && item.end.is_dead_letter();
        let rest = items.iter().map(Borrow::borrow).filter(may_be_kept).filter(|item| !moved.contains(&item.id));
        let rest: Vec<&Finalize> = rest.collect();
        moved.extend(self.keep(tx, &rest).await?);
        Ok(moved)
    }

    /// Keeps those of these entries in their place that do so when their holder ends them as dead letters. Returns which.
    /// Items are sorted by id and distinct.
    pub(super) async fn keep(&self, tx: &Tx, items: &[&Finalize]) -> Result<Vec<EntryId>, Fault> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let columns = FinalizeColumns::new(items);
        let kept = tx.rows(&self.sql.end.keep, &columns.params(&self.now())).await?;
        let with_tags: Vec<i64> = kept.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(tx, &with_tags).await?;
        let of_kept: HashSet<i64> = kept.iter().map(|row| row.id).collect();
        let attempts = items.iter().filter(|item| of_kept.contains(&item.id.get()));
        self.record_attempts(tx, attempts.map(|item| (item.id, item.attempt.as_deref())).collect()).await?;
        Ok(kept.iter().map(|row| EntryId::new(row.id)).collect::<Result<_, _>>().map_err(Error::from)?)
    }

    /// Moves entries to the log and returns the statement's rows. Items are sorted by id and distinct.
    pub(super) async fn end_rows<F: Borrow<Finalize> + Sync>(
        &self,
        tx: &Tx,
        items: &[F],
    ) -> Result<Vec<EndedRow>, Fault> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let items: Vec<&Finalize> = items.iter().map(Borrow::borrow).collect();
        let with_attempts = items.iter().any(|item| item.attempt.is_some());
        let (sql, of_jobs, now) = (&self.sql.end, &self.sql.dispatch, self.now());
        let rows = match Run::new(&items, self.shared.options.store.ids.step) {
            Some(run) if with_attempts => tx.rows(&of_jobs.finalize_run, &run.params_with_attempts(&now)).await?,
            Some(run) => tx.rows(&sql.finalize_run, &run.params(&now)).await?,
            None => {
                let columns = FinalizeColumns::new(&items);
                match with_attempts {
                    true => tx.rows(&of_jobs.finalize, &columns.params_with_attempts(&now)).await?,
                    false => tx.rows(&sql.finalize, &columns.params(&now)).await?,
                }
            }
        };
        self.end_tags(tx, &rows).await?;
        Ok(rows)
    }

    pub(super) async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        let items = &items;
        self.transact_leases(items.len(), |tx| async move { self.extend_items(tx, items).await }).await
    }

    pub(super) async fn extend_items(&self, tx: Arc<Tx>, items: &[Extend]) -> Result<Answered<Timestamp>, Fault> {
        // By id and token: a former holder may ask in the same batch as the present one.
        let mut wanted: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for item in items {
            wanted.insert((item.id.get(), item.token.0), micros(item.lease));
        }
        let mut rows = Vec::with_capacity(wanted.len());
        for round in rounds(wanted.into_iter().collect(), |((id, _), _)| *id) {
            let ids: Vec<i64> = round.iter().map(|((id, _), _)| *id).collect();
            let tokens: Vec<i64> = round.iter().map(|((_, token), _)| *token).collect();
            let leases: Vec<i64> = round.iter().map(|(_, lease)| *lease).collect();
            rows.extend(tx.rows(&self.sql.end.extend, &[&self.now(), &ids, &tokens, &leases]).await?);
        }
        if let Some(row) = rows.first() {
            tx.set_leases_at(row.updated_at.into());
        }
        let with_tags: Vec<i64> = rows.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(&tx, &with_tags).await?;
        let extended: HashMap<(i64, i64), Timestamp> =
            rows.iter().map(|row| ((row.id, row.token), row.lease_until.into())).collect();
        let refused = items.iter().filter(|item| !extended.contains_key(&(item.id.get(), item.token.0)));
        let refused: Vec<i64> = refused.map(|item| item.id.get()).collect();
        let known = self.look_up_any(&tx, &refused).await?;
        let answers = items.iter().map(|item| match extended.get(&(item.id.get(), item.token.0)) {
            Some(until) => Ok(*until),
            None => Err(judge_holder(item.id, known.get(&item.id.get()).copied())),
        });
        Ok((answers.collect(), Vec::new()))
    }

    pub(super) async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        // A lease can be given back once. Run again after a lost answer, the transaction may find that it did so
        // before.
        let answer_lost = AtomicBool::new(false);
        let answer_lost = &answer_lost;
        let items = &items;
        let work = |tx| {
            let in_doubt = answer_lost.load(Ordering::SeqCst);
            async move { self.requeue_items(tx, items, in_doubt).await }
        };
        let confirm = |_, _: &Answered<()>| {
            answer_lost.store(true, Ordering::SeqCst);
            async { Ok(false) }
        };
        self.transact_confirmed(items.len(), work, confirm).await
    }

    /// `in_doubt`: an earlier run of this may have been committed.
    async fn requeue_items(&self, tx: Arc<Tx>, items: &[Requeue], in_doubt: bool) -> Result<Answered<()>, Fault> {
        // Of items with the same token only the first counts; another token of the same entry is answered by itself.
        let mut first: BTreeMap<(EntryId, LeaseToken), usize> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            first.entry((item.id, item.token)).or_insert(index);
        }
        let sorted: Vec<&Requeue> = first.values().map(|index| &items[*index]).collect();
        let rows = self.requeue_rows(&tx, &sorted).await?;
        let with_tags: Vec<i64> = rows.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(&tx, &with_tags).await?;
        if let Some(first) = with_tags.iter().min() {
            self.tag_marks.lower(*first);
        }
        let audited: HashSet<(i64, i64)> =
            rows.iter().filter(|row| is_audited(row.flags)).map(|row| (row.id, row.token)).collect();
        let is_audited = |item: &&Requeue| audited.contains(&(item.id.get(), item.token.0));
        self.audit_released(&tx, &sorted.into_iter().filter(is_audited).collect::<Vec<_>>()).await?;
        let returned: HashSet<(i64, i64)> = rows.iter().map(|row| (row.id, row.token)).collect();
        let attempts = first.values().map(|index| &items[*index]);
        let attempts = attempts.filter(|item| returned.contains(&(item.id.get(), item.token.0)));
        self.record_attempts(&tx, attempts.map(|item| (item.id, item.attempt.as_deref())).collect()).await?;
        let is_first = |index: usize, item: &Requeue| first.get(&(item.id, item.token)) == Some(&index);
        let done =
            |index: usize, item: &Requeue| is_first(index, item) && returned.contains(&(item.id.get(), item.token.0));
        let refused = items.iter().enumerate().filter(|(index, item)| !done(*index, item));
        let refused: Vec<i64> = refused.map(|(_, item)| item.id.get()).collect();
        let known = self.look_up_any(&tx, &refused).await?;
        let answers = items.iter().enumerate().map(|(index, item)| {
            let found = known.get(&item.id.get()).copied();
            if done(index, item) {
                return Ok(());
            }
            match found {
                Some(found) if in_doubt && is_first(index, item) => judge_requeue_in_doubt(item, found),
                found => Err(judge_holder(item.id, found)),
            }
        });
        let stepped_aside = rows.iter().filter(|row| row.place == Place::Aside.code());
        let left = stepped_aside.filter_map(|row| Some((row.queue_id, row.group_key.as_deref()?)));
        self.promote(&tx, left).await?;
        let queues: HashSet<i32> = rows.iter().map(|row| row.queue_id).collect();
        Ok((answers.collect(), queues.into_iter().collect()))
    }

    /// Runs the requeue statement. Items are sorted by id, and distinct by id and token.
    pub(super) async fn requeue_rows(&self, tx: &Tx, items: &[&Requeue]) -> Result<Vec<RequeuedRow>, Fault> {
        let mut rows = Vec::with_capacity(items.len());
        for round in rounds(items.to_vec(), |item| item.id.get()) {
            rows.extend(tx.rows(&self.sql.end.requeue, &RequeueColumns::new(&round).params(&self.now())).await?);
        }
        // The lane's mark may have passed them while they were leased.
        for row in &rows {
            match Place::from_code(row.place) {
                Some(Place::Fresh) => self.marks.found_below(row.lane, Some(row.id), None),
                Some(Place::Timed) => self.marks.found_below(row.lane, None, row.due_at.map(Timestamp::from)),
                _ => {}
            }
        }
        Ok(rows)
    }

    /// As [`Self::look_up`], without a query where there are no ids.
    async fn look_up_any(&self, tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, Found>, Fault> {
        if ids.is_empty() { Ok(HashMap::new()) } else { self.look_up(tx, ids).await }
    }

    async fn look_up(&self, tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, Found>, Fault> {
        let rows = tx.rows(&self.sql.end.look_up, &[&ids]).await?;
        Ok(rows.into_iter().map(|row| Ok((row.id, Found::try_from(row)?))).collect::<Result<_>>()?)
    }
}

impl TryFrom<FoundRow> for Found {
    type Error = Error;

    fn try_from(row: FoundRow) -> Result<Self> {
        let FoundRow { id, token, leased, .. } = row;
        let unknown = || Error::new(ErrorKind::Corrupt, format!("entry {id} has an unknown end"));
        let end = |code| End::from_code(code).ok_or_else(unknown);
        Ok(match (row.status, row.kept_as) {
            (Some(code), _) => Self::Ended { token, end: end(code)? },
            (None, Some(code)) => Self::Kept { token, end: end(code)? },
            (None, None) => Self::Live { token, leased },
        })
    }
}

/// Whether this call ended the entry.
fn is_first_end(answer: &Result<Finalized>) -> bool {
    answer.as_ref().is_ok_and(|done| !done.repeated)
}

fn judge_finalize(item: &Finalize, found: Option<Found>) -> Result<Finalized> {
    match found {
        Some(Found::Ended { token, end } | Found::Kept { token, end })
            if item.token.is_none_or(|held| held.0 == token) =>
        {
            Ok(Finalized { repeated: true, end })
        }
        Some(_) => Err(Error::fenced()),
        None => Err(Error::no_entry(item.id)),
    }
}

/// Splits sorted items so that no id occurs twice in a round, since a statement takes an id once. Usually one round.
fn rounds<T>(items: Vec<T>, id: impl Fn(&T) -> i64) -> Vec<Vec<T>> {
    let mut rounds: Vec<Vec<T>> = Vec::new();
    let (mut last, mut repeat) = (None, 0);
    for item in items {
        repeat = if last == Some(id(&item)) { repeat + 1 } else { 0 };
        last = Some(id(&item));
        if rounds.len() <= repeat {
            rounds.push(Vec::new());
        }
        rounds[repeat].push(item);
    }
    rounds
}

/// A moment that PostgreSQL can store. One before 1970 becomes 1970: both are past.
fn storable(at: Timestamp) -> Timestamp {
    at.max(Timestamp::UNIX_EPOCH)
}

/// The answer to a requeue whose first run may have been committed, by the present state of its entry.
fn judge_requeue_in_doubt(item: &Requeue, found: Found) -> Result<()> {
    match found {
        Found::Live { token, leased: false } if token == item.token.0 => Ok(()),
        // It was claimed since, because the first run gave it back or the lease ran out, or it was reset.
        Found::Live { token, .. } | Found::Kept { token, .. } | Found::Ended { token, .. } if token > item.token.0 => {
            Err(Error::new(
                ErrorKind::Indeterminate,
                "the entry was claimed or reset since; whether this lease was given back before is not known",
            ))
        }
        found => Err(judge_holder(item.id, Some(found))),
    }
}

fn judge_holder(id: EntryId, found: Option<Found>) -> Error {
    if found.is_some() { Error::fenced() } else { Error::no_entry(id) }
}

/// The arrays of the finalise statement.
#[derive(Debug)]
pub(super) struct FinalizeColumns<'a> {
    ids: Vec<i64>,
    /// -1 where no token was named, which matches any holder.
    tokens: Vec<i64>,
    ends: Vec<i16>,
    errors: Vec<Option<Cow<'a, str>>>,
    results: Vec<Option<Cow<'a, str>>>,
    attempts: Vec<Option<Cow<'a, str>>>,
}

impl<'a> FinalizeColumns<'a> {
    pub(super) fn new(items: &[&'a Finalize]) -> Self {
        Self {
            ids: items.iter().map(|item| item.id.get()).collect(),
            // No claim gives a token below 0: it must not be taken for -1.
            tokens: items.iter().map(|item| item.token.map_or(-1, |LeaseToken(token)| token.max(0))).collect(),
            ends: items.iter().map(|item| item.end.code()).collect(),
            errors: items.iter().map(|item| clean(item.errors.as_deref())).collect(),
            results: items.iter().map(|item| clean(item.results.as_deref())).collect(),
            attempts: items.iter().map(|item| clean(item.attempt.as_deref())).collect(),
        }
    }

    pub(super) fn params<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 6] {
        [now, &self.ids, &self.tokens, &self.ends, &self.errors, &self.results]
    }

    fn params_with_attempts<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 7] {
        let [now, ids, tokens, ends, errors, results] = self.params(now);
        [now, ids, tokens, ends, errors, results, &self.attempts]
    }
}

/// A run: neighbouring entries that all end alike, without errors.
struct Run<'a> {
    first: i64,
    last: i64,
    /// By position from the first; 0, which no claim gives, for numbers in between that are not among the items.
    tokens: Vec<i64>,
    step: i64,
    end: i16,
    results: Option<Cow<'a, str>>,
    /// By position, as the tokens.
    attempts: Vec<Option<Cow<'a, str>>>,
}

impl<'a> Run<'a> {
    /// `None` for fewer than 8 items, too many gaps, different ends, or dead letters, of which some may keep their place.
    /// Items are sorted by id and distinct.
    fn new(items: &[&'a Finalize], step: i64) -> Option<Self> {
        let (first, last) = (items.first()?, items.last()?);
        let (low, high) = (first.id.get(), last.id.get());
        let length = usize::try_from((high - low) / step + 1).ok()?;
        let alike = |item: &&Finalize| {
            item.end == first.end && item.token.is_some() && item.errors.is_none() && item.results == first.results
        };
        if items.len() < 8 || length > items.len() * 2 || first.end.is_dead_letter() || !items.iter().all(alike) {
            return None;
        }
        let (mut tokens, mut attempts) = (vec![0; length], vec![None; length]);
        for item in items {
            let position = usize::try_from((item.id.get() - low) / step).ok()?;
            *tokens.get_mut(position)? = item.token?.0;
            *attempts.get_mut(position)? = clean(item.attempt.as_deref());
        }
        let results = clean(first.results.as_deref());
        Some(Self { first: low, last: high, tokens, step, end: first.end.code(), results, attempts })
    }

    fn params<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 7] {
        [now, &self.first, &self.last, &self.tokens, &self.step, &self.end, &self.results]
    }

    fn params_with_attempts<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 8] {
        let [now, first, last, tokens, step, end, results] = self.params(now);
        [now, first, last, tokens, step, end, results, &self.attempts]
    }
}

/// The arrays of the requeue statement. Those of fixed-length values hold no null: PostgreSQL then finds an element by
/// its offset.
struct RequeueColumns<'a> {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    /// 0 keeps its place, 1 is due at a moment, 2 after a delay; 3 and 4 the same, and steps aside.
    kinds: Vec<i16>,
    dues: Vec<Timestamp>,
    delays: Vec<i64>,
    counts: Vec<bool>,
    errors: Vec<Option<Cow<'a, str>>>,
}

impl<'a> RequeueColumns<'a> {
    fn new(items: &[&'a Requeue]) -> Self {
        let when = items.iter().map(|item| match item.when {
            RequeueAt::At(at) => (1, storable(at), 0),
            RequeueAt::After(delay) => (2, Timestamp::UNIX_EPOCH, micros(delay)),
            RequeueAt::Now => (0, Timestamp::UNIX_EPOCH, 0),
        });
        let (mut kinds, mut dues, mut delays): (Vec<i16>, Vec<Timestamp>, Vec<i64>) = Default::default();
        for ((kind, due, delay), item) in when.zip(items) {
            kinds.push(if item.aside && kind > 0 { kind + 2 } else { kind });
            dues.push(due);
            delays.push(delay);
        }
        Self {
            ids: items.iter().map(|item| item.id.get()).collect(),
            tokens: items.iter().map(|item| item.token.0).collect(),
            kinds,
            dues,
            delays,
            counts: items.iter().map(|item| item.counts).collect(),
            errors: items.iter().map(|item| clean(item.error.as_deref())).collect(),
        }
    }

    fn params<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 8] {
        [now, &self.ids, &self.tokens, &self.kinds, &self.dues, &self.delays, &self.counts, &self.errors]
    }
}
