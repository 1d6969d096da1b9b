//! Who holds what, on PostgreSQL: locks live entries, and finds out whether a worker holds the entry that it names.

use std::collections::{BTreeSet, HashMap};

use tidegate_core::name::check_text;
use tidegate_core::{Action, EntryId, LeaseToken, RetryPolicy, Timestamp, Tsid};

use crate::error::{Error, ErrorKind};
use crate::postgres::audit::by_entry;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::row::count;
use crate::postgres::engine::store::Inner;
use crate::postgres::statements::attempts::LiveRow;
use crate::values::attempts::already_reported;
use crate::values::{AuditRow, Holder};

/// A live entry whose row this transaction has locked.
pub(super) struct Live {
    pub(super) token: LeaseToken,
    /// Also when the lease has run out and no other worker took the entry over yet.
    pub(super) leased: bool,
    pub(super) worker: Option<String>,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) generation: u32,
    pub(super) queue_id: i32,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) event_id: Tsid,
    /// When it was last claimed.
    pub(super) since: Option<Timestamp>,
    pub(super) attributes: Option<String>,
}

impl From<LiveRow> for Live {
    fn from(row: LiveRow) -> Self {
        Self {
            token: LeaseToken(row.token),
            leased: row.leased,
            worker: row.worker,
            attempts: count(row.attempts),
            max_attempts: count(row.max_attempts),
            generation: count(row.generation),
            queue_id: row.queue_id,
            retry: row.retry.and_then(|text| serde_json::from_str(&text).ok()),
            event_id: Tsid::from_i64(row.event_id),
            since: row.processing_started_at.map(Into::into),
            attributes: row.attributes,
        }
    }
}

impl Live {
    pub(super) fn is_held_by(&self, holder: &Holder) -> bool {
        self.leased
            && self.worker.as_deref() == Some(holder.worker.as_str())
            && holder.lease.is_none_or(|lease| lease == self.token)
    }

    /// The audit row of an action on this entry.
    pub(super) fn row(&self, entry: EntryId, action: Action) -> AuditRow {
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

impl Inner {
    /// Locks live entries in the order of their ids, and returns them by id.
    pub(super) async fn lock_live(
        &self,
        tx: &Tx,
        ids: impl Iterator<Item = EntryId>,
    ) -> Result<HashMap<i64, Live>, Fault> {
        let ids: BTreeSet<i64> = ids.map(EntryId::get).collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        let rows = tx.rows(&self.sql.attempts.lock_live, &[&ids]).await?;
        Ok(rows.into_iter().map(|row| (row.id, row.into())).collect())
    }

    /// The last report of each holder on its entry, by entry.
    pub(super) async fn last_reports(&self, tx: &Tx, holders: &[&Holder]) -> Result<HashMap<i64, AuditRow>, Fault> {
        if holders.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<i64> = holders.iter().map(|holder| holder.id.get()).collect();
        let workers: Vec<&str> = holders.iter().map(|holder| holder.worker.as_str()).collect();
        // PostgreSQL cannot store NUL, so no report was recorded under such a name; `check_text` refuses it.
        let workers: Vec<String> = workers.iter().map(|worker| worker.replace('\0', "\u{FFFD}")).collect();
        let tokens: Vec<Option<i64>> = holders.iter().map(|holder| holder.lease.map(|lease| lease.0)).collect();
        Ok(by_entry(tx.rows(&self.sql.audit.last_reports, &[&ids, &workers, &tokens]).await?)?)
    }

    /// Locks the entries of these holders. Returns the live ones by id, and the errors of workers that do not hold
    /// their entry, by position.
    pub(super) async fn held<'a>(
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
        self.explain_own_reports(tx, &holders, &live, &mut refused).await?;
        Ok((live, refused))
    }

    /// A worker that is fenced because it reported on this attempt itself gets `AlreadyEnded` instead: the entry is
    /// under no lease, and the last report on it is this worker's.
    async fn explain_own_reports(
        &self,
        tx: &Tx,
        holders: &[&Holder],
        live: &HashMap<i64, Live>,
        refused: &mut HashMap<usize, Error>,
    ) -> Result<(), Fault> {
        let is_free = |holder: &Holder| live.get(&holder.id.get()).is_none_or(|live| !live.leased);
        let mut unheld: Vec<usize> = refused
            .iter()
            .filter(|(index, error)| error.kind() == ErrorKind::Fenced && is_free(holders[**index]))
            .map(|(index, _)| *index)
            .collect();
        unheld.sort_unstable();
        let asked: Vec<&Holder> = unheld.iter().map(|index| holders[*index]).collect();
        let recorded = self.last_reports(tx, &asked).await?;
        for index in unheld {
            let holder = holders[index];
            let is_last = |row: &AuditRow| live.get(&holder.id.get()).is_none_or(|live| live.token == row.token);
            let is_own = |row: &&AuditRow| row.worker.as_deref() == Some(holder.worker.as_str());
            if recorded.get(&holder.id.get()).filter(is_own).is_some_and(is_last) {
                refused.insert(index, already_reported());
            }
        }
        Ok(())
    }
}

/// The error for a worker that does not hold its entry; `known` are the entries that exist.
pub(super) fn nothing_held(id: EntryId, known: &BTreeSet<i64>) -> Error {
    if known.contains(&id.get()) { Error::fenced() } else { Error::no_entry(id) }
}
