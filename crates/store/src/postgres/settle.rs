//! Ending, extending and giving back leases. Every statement compares the token; what did not match is looked up once to
//! say why.

use std::borrow::{Borrow, Cow};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tidegate_core::{End, EntryId, LeaseToken, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Inner;
use super::connection::{Begin, Confirm, Tx, Work};
use super::errors::Fault;
use super::groups::{Groups, borrowed};
use super::items::{clean, micros};
use super::row;
use super::tags::tagged;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, Extend, Finalize, Finalized, Requeue, RequeueAt};
use crate::work::ByHand;

/// How often a heartbeat that does not fit the clock is written before work that waits for it gives up.
const MAX_BEATS: u32 = 3;

/// Answers, and the queues that got work.
type Settled<T> = (Batch<T>, Vec<i32>);

/// Where an entry was found.
#[derive(Debug, Clone, Copy)]
enum Place {
    Live { token: i64, leased: bool },
    Ended { token: i64, end: End },
}

impl Inner {
    pub(super) async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        self.settle(items.len(), &|tx| async { self.finalize_items(tx, &items).await }.boxed()).await
    }

    pub(super) async fn cancel(&self, asked: Vec<ByHand>) -> Result<Batch<()>> {
        let asked = &asked;
        let items: Vec<Finalize> = asked
            .iter()
            .map(|item| Finalize { id: item.id, token: None, end: End::Cancelled, errors: None, results: None })
            .collect();
        let work = |tx| async { self.cancel_items(tx, asked, &items).await }.boxed();
        // Run again, a cancellation of our own would look like somebody else's.
        let confirm = |tx: Arc<Tx>, (answers, _): &Settled<Finalized>| {
            let ended = |answer: &Result<Finalized>| answer.as_ref().is_ok_and(|done| !done.repeated);
            let ids: Vec<i64> =
                items.iter().zip(answers).filter(|(_, answer)| ended(answer)).map(|(item, _)| item.id.get()).collect();
            async move { self.are_cancelled(&tx, &ids).await }.boxed()
        };
        let answers = self.settle_confirmed(items.len(), &work, &confirm).await?;
        let ended = || Error::new(ErrorKind::AlreadyEnded, "the entry has ended already");
        Ok(answers
            .into_iter()
            .map(|answer| answer.and_then(|done| if done.repeated { Err(ended()) } else { Ok(()) }))
            .collect())
    }

    async fn cancel_items(
        &self,
        tx: Arc<Tx>,
        asked: &[ByHand],
        items: &[Finalize],
    ) -> Result<Settled<Finalized>, Fault> {
        let (answers, queues) = self.finalize_items(Arc::clone(&tx), items).await?;
        let ended = |answer: &Result<Finalized>| answer.as_ref().is_ok_and(|done| !done.repeated);
        let done: Vec<&ByHand> =
            asked.iter().zip(&answers).filter(|(_, answer)| ended(answer)).map(|(item, _)| item).collect();
        self.audit_cancelled(&tx, &done).await?;
        Ok((answers, queues))
    }

    async fn are_cancelled(&self, tx: &Tx, ids: &[i64]) -> Result<bool, Fault> {
        if ids.is_empty() {
            return Ok(true);
        }
        let places = self.look_up(tx, ids).await?;
        Ok(ids.iter().all(|id| matches!(places.get(id), Some(Place::Ended { end: End::Cancelled, .. }))))
    }

    /// Runs one settling transaction and wakes queues in which a group moved on. The work finds itself done when it runs
    /// again, so a lost answer is answered by running again.
    pub(super) async fn settle<'a, T: Send + Sync + 'a>(
        &'a self,
        count: usize,
        work: &Work<'a, Settled<T>>,
    ) -> Result<Batch<T>> {
        self.settle_confirmed(count, work, &|_, _| async { Ok(false) }.boxed()).await
    }

    /// The same for work that writes moments of leases: not by a clock that the heartbeat does not know.
    pub(super) async fn settle_leases<'a, T: Send + Sync + 'a>(
        &'a self,
        count: usize,
        work: &Work<'a, Settled<T>>,
    ) -> Result<Batch<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut tries = 0;
        loop {
            let accept = |prelude| self.accept_clock(prelude);
            let done = self.database.transact(Begin::Write, &accept, work, &|_, _| async { Ok(false) }.boxed()).await;
            match done {
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

    /// The same for work that would take its own effect for somebody else's: after a lost answer it is looked for first.
    pub(super) async fn settle_confirmed<'a, T: Send + Sync + 'a>(
        &'a self,
        count: usize,
        work: &Work<'a, Settled<T>>,
        confirm: &Confirm<'a, Settled<T>>,
    ) -> Result<Batch<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let done = self.database.transact(Begin::Write, &|_| Ok(()), work, confirm).await;
        let (answers, queues) = done.map_err(Fault::into_error)?;
        self.announce(queues);
        Ok(answers)
    }

    pub(super) async fn finalize_items(&self, tx: Arc<Tx>, items: &[Finalize]) -> Result<Settled<Finalized>, Fault> {
        // One statement takes an id once; repeats in the batch follow, so that each is judged by what came before it.
        let mut fresh = vec![false; items.len()];
        let mut freed = Groups::new();
        let mut waiting: Vec<usize> = (0..items.len()).collect();
        while !waiting.is_empty() {
            let mut round: BTreeMap<EntryId, usize> = BTreeMap::new();
            waiting.retain(|index| match round.entry(items[*index].id) {
                Entry::Vacant(place) => {
                    place.insert(*index);
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
        let places = if rest.is_empty() { HashMap::new() } else { self.look_up(&tx, &rest).await? };
        let queues = self.promote(&tx, borrowed(&freed)).await?;
        let answers = items.iter().zip(fresh).map(|(item, fresh)| {
            if fresh {
                return Ok(Finalized { repeated: false, end: item.end });
            }
            judge_finalize(item, places.get(&item.id.get()).copied())
        });
        Ok((answers.collect(), queues.into_iter().collect()))
    }

    /// Moves entries to the log, and notes the groups they leave, which are to be promoted at the transaction's end.
    /// Items are sorted by id and distinct.
    pub(super) async fn move_to_log<F: Borrow<Finalize> + Sync>(
        &self,
        tx: &Tx,
        items: &[F],
        freed: &mut Groups,
    ) -> Result<HashSet<EntryId>, Fault> {
        let rows = self.end_rows(tx, items).await?;
        freed.extend(rows.iter().filter_map(|row| Some((row.get(1), row.get::<_, Option<String>>(2)?))));
        read_ids(&rows)
    }

    /// The same; answers the rows.
    pub(super) async fn end_rows<F: Borrow<Finalize> + Sync>(&self, tx: &Tx, items: &[F]) -> Result<Vec<Row>, Fault> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let items: Vec<&Finalize> = items.iter().map(Borrow::borrow).collect();
        let rows = match Run::new(&items, self.options.store.ids.step) {
            Some(run) => tx.query(&self.sql.finalize_run, &run.params(&self.now())).await?,
            None => tx.query(&self.sql.finalize, &FinalizeColumns::new(&items).params(&self.now())).await?,
        };
        self.end_tags(tx, &rows).await?;
        Ok(rows)
    }

    pub(super) async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        self.settle_leases(items.len(), &|tx| async { self.extend_items(tx, &items).await }.boxed()).await
    }

    pub(super) async fn extend_items(&self, tx: Arc<Tx>, items: &[Extend]) -> Result<Settled<Timestamp>, Fault> {
        // By id and token: a stale holder may ask in the same batch as the real one.
        let mut wanted: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for item in items {
            wanted.insert((item.id.get(), item.token.0), micros(item.lease));
        }
        let mut rows = Vec::with_capacity(wanted.len());
        for round in rounds(wanted.into_iter().collect(), |((id, _), _)| *id) {
            let ids: Vec<i64> = round.iter().map(|((id, _), _)| *id).collect();
            let tokens: Vec<i64> = round.iter().map(|((_, token), _)| *token).collect();
            let leases: Vec<i64> = round.iter().map(|(_, lease)| *lease).collect();
            rows.extend(tx.query(&self.sql.extend, &[&self.now(), &ids, &tokens, &leases]).await?);
        }
        if let Some(row) = rows.first() {
            tx.set_leases_at(row.get(4));
        }
        self.follow_tags(&tx, &tagged(&rows, 0, 3)).await?;
        let extended: HashMap<(i64, i64), Timestamp> =
            rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        let refused = items.iter().filter(|item| !extended.contains_key(&(item.id.get(), item.token.0)));
        let refused: Vec<i64> = refused.map(|item| item.id.get()).collect();
        let places = self.look_up_any(&tx, &refused).await?;
        let answers = items.iter().map(|item| match extended.get(&(item.id.get(), item.token.0)) {
            Some(until) => Ok(*until),
            None => Err(judge_holder(item.id, places.get(&item.id.get()).copied())),
        });
        Ok((answers.collect(), Vec::new()))
    }

    pub(super) async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        // A token is given back once: when the transaction runs again after a lost answer, it may find that it did.
        let answer_lost = AtomicBool::new(false);
        let answer_lost = &answer_lost;
        let items = &items;
        let work = |tx| {
            let in_doubt = answer_lost.load(Ordering::SeqCst);
            async move { self.requeue_items(tx, items, in_doubt).await }.boxed()
        };
        let confirm = |_, _: &Settled<()>| {
            answer_lost.store(true, Ordering::SeqCst);
            async { Ok(false) }.boxed()
        };
        self.settle_confirmed(items.len(), &work, &confirm).await
    }

    /// `in_doubt`: this ran before, and whether it was committed is not known.
    async fn requeue_items(&self, tx: Arc<Tx>, items: &[Requeue], in_doubt: bool) -> Result<Settled<()>, Fault> {
        // A token is given back once; another token of the same entry is judged for itself.
        let mut first: BTreeMap<(EntryId, LeaseToken), usize> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            first.entry((item.id, item.token)).or_insert(index);
        }
        let sorted: Vec<&Requeue> = first.values().map(|index| &items[*index]).collect();
        let rows = self.requeue_rows(&tx, &sorted).await?;
        let returned = tagged(&rows, 0, 3);
        self.follow_tags(&tx, &returned).await?;
        if let Some(first) = returned.iter().min() {
            self.tag_marks.lower(*first);
        }
        self.audit_released(&tx, &rows).await?;
        let returned: HashSet<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let is_first = |index: usize, item: &Requeue| first.get(&(item.id, item.token)) == Some(&index);
        let done =
            |index: usize, item: &Requeue| is_first(index, item) && returned.contains(&(item.id.get(), item.token.0));
        let refused = items.iter().enumerate().filter(|(index, item)| !done(*index, item));
        let refused: Vec<i64> = refused.map(|(_, item)| item.id.get()).collect();
        let places = self.look_up_any(&tx, &refused).await?;
        let answers = items.iter().enumerate().map(|(index, item)| {
            let place = places.get(&item.id.get()).copied();
            if done(index, item) {
                return Ok(());
            }
            match place {
                Some(place) if in_doubt && is_first(index, item) => judge_requeue_in_doubt(item, place),
                place => Err(judge_holder(item.id, place)),
            }
        });
        let queues: HashSet<i32> = rows.iter().map(|row| row.get(2)).collect();
        Ok((answers.collect(), queues.into_iter().collect()))
    }

    /// Runs the requeue statement; items are sorted by id, and distinct by id and token.
    pub(super) async fn requeue_rows(&self, tx: &Tx, items: &[&Requeue]) -> Result<Vec<Row>, Fault> {
        let mut rows = Vec::with_capacity(items.len());
        for round in rounds(items.to_vec(), |item| item.id.get()) {
            rows.extend(tx.query(&self.sql.requeue, &RequeueColumns::new(&round).params(&self.now())).await?);
        }
        // A mark may have passed them while they were leased.
        for returned in &rows {
            let is_timed = returned.get::<_, i16>(7) == 1;
            let (id, due) = (returned.get(0), row::optional_moment(returned, 5));
            self.marks.found_below(returned.get(6), (!is_timed).then_some(id), due.filter(|_| is_timed));
        }
        Ok(rows)
    }

    async fn look_up_any(&self, tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, Place>, Fault> {
        if ids.is_empty() { Ok(HashMap::new()) } else { self.look_up(tx, ids).await }
    }

    async fn look_up(&self, tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, Place>, Fault> {
        let mut places = HashMap::new();
        for row in tx.query(&self.sql.look_up, &[&ids]).await? {
            let (id, token, end): (i64, i64, Option<i16>) = (row.get(0), row.get(1), row.get(2));
            let place = match end.map(End::from_code) {
                None => Place::Live { token, leased: row.get(3) },
                Some(Some(end)) => Place::Ended { token, end },
                Some(None) => return Err(Error::new(ErrorKind::Corrupt, format!("entry {id} has a bad end")).into()),
            };
            places.insert(id, place);
        }
        Ok(places)
    }
}

fn judge_finalize(item: &Finalize, place: Option<Place>) -> Result<Finalized> {
    match place {
        Some(Place::Ended { token, end }) if item.token.is_none_or(|held| held.0 == token) => {
            Ok(Finalized { repeated: true, end })
        }
        Some(_) => Err(Error::fenced()),
        None => Err(Error::no_entry(item.id)),
    }
}

/// Splits sorted items so that no id comes twice in one round, since a statement takes an id once: usually into one.
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

/// A moment that PostgreSQL can hold; one before 1970 is past, whatever it was.
fn storable(at: Timestamp) -> Timestamp {
    at.max(Timestamp::UNIX_EPOCH)
}

/// What became of a requeue whose first run may have been committed, by where its entry is now.
fn judge_requeue_in_doubt(item: &Requeue, place: Place) -> Result<()> {
    match place {
        Place::Live { token, leased: false } if token == item.token.0 => Ok(()),
        // Others had it since: they got it from us, or after the lease ran out.
        Place::Live { token, .. } | Place::Ended { token, .. } if token > item.token.0 => Err(Error::new(
            ErrorKind::Indeterminate,
            "the entry has moved on; whether it was given back before is not known",
        )),
        place => Err(judge_holder(item.id, Some(place))),
    }
}

fn judge_holder(id: EntryId, place: Option<Place>) -> Error {
    if place.is_some() { Error::fenced() } else { Error::no_entry(id) }
}

fn read_ids(rows: &[Row]) -> Result<HashSet<EntryId>, Fault> {
    let mut ids = HashSet::with_capacity(rows.len());
    for row in rows {
        ids.insert(EntryId::new(row.get(0)).map_err(Error::from)?);
    }
    Ok(ids)
}

/// The arrays of the finalise statement.
#[derive(Debug)]
pub(super) struct FinalizeColumns<'a> {
    ids: Vec<i64>,
    /// -1 where the holder does not matter.
    tokens: Vec<i64>,
    ends: Vec<i16>,
    errors: Vec<Option<Cow<'a, str>>>,
    results: Vec<Option<Cow<'a, str>>>,
}

impl<'a> FinalizeColumns<'a> {
    pub(super) fn new(items: &[&'a Finalize]) -> Self {
        Self {
            ids: items.iter().map(|item| item.id.get()).collect(),
            // A token below 0 was never given: it must not pass for the holder who does not matter.
            tokens: items.iter().map(|item| item.token.map_or(-1, |LeaseToken(token)| token.max(0))).collect(),
            ends: items.iter().map(|item| item.end.code()).collect(),
            errors: items.iter().map(|item| clean(item.errors.as_deref())).collect(),
            results: items.iter().map(|item| clean(item.results.as_deref())).collect(),
        }
    }

    pub(super) fn params<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 6] {
        [now, &self.ids, &self.tokens, &self.ends, &self.errors, &self.results]
    }
}

/// Neighbouring entries that all end alike, without errors.
struct Run<'a> {
    first: i64,
    last: i64,
    /// By position from the first; 0, which no claim gives, where an entry of the run is not meant.
    tokens: Vec<i64>,
    step: i64,
    end: i16,
    results: Option<Cow<'a, str>>,
}

impl<'a> Run<'a> {
    /// Items are sorted by id and distinct.
    fn new(items: &[&'a Finalize], step: i64) -> Option<Self> {
        let (first, last) = (items.first()?, items.last()?);
        let (low, high) = (first.id.get(), last.id.get());
        let length = usize::try_from((high - low) / step + 1).ok()?;
        let alike = |item: &&Finalize| {
            item.end == first.end && item.token.is_some() && item.errors.is_none() && item.results == first.results
        };
        if items.len() < 8 || length > items.len() * 2 || !items.iter().all(alike) {
            return None;
        }
        let mut tokens = vec![0; length];
        for item in items {
            let position = usize::try_from((item.id.get() - low) / step).ok()?;
            *tokens.get_mut(position)? = item.token?.0;
        }
        let results = clean(first.results.as_deref());
        Some(Self { first: low, last: high, tokens, step, end: first.end.code(), results })
    }

    fn params<'b>(&'b self, now: &'b Option<Timestamp>) -> [&'b (dyn ToSql + Sync); 7] {
        [now, &self.first, &self.last, &self.tokens, &self.step, &self.end, &self.results]
    }
}

/// The arrays of the requeue statement. None of fixed length holds a null, so that each element is found at once.
struct RequeueColumns<'a> {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    /// 0 stays where it is, 1 at a moment, 2 after a delay.
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
        for (kind, due, delay) in when {
            kinds.push(kind);
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
