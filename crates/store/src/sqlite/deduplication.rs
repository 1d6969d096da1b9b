//! Deduplication keys: answering repeats, taking keys, and replacing the entry that waits under a key.

use tidegate_core::{DedupMode, Deduplication, NewEvent, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::tx::later;
use crate::sqlite::publish::{Answer, Publishing, client};
use crate::sqlite::statements::deduplication::KeyRow;
use crate::sqlite::tags;
use crate::values::{PublishOutcome, Published};

impl Publishing<'_, '_> {
    /// The answer to a repeated key; `None` when a new entry is to be created.
    pub(super) fn repeat(
        &mut self,
        queue: usize,
        event: &NewEvent,
        dedup: &Deduplication,
    ) -> Result<Option<Result<Published>>> {
        let sql = self.tx.sql();
        let scope = self.tx.known.queues[queue].id;
        let found = self.tx.row(&sql.deduplication.find, (client(event), scope, &dedup.key))?;
        let Some(key) = found.filter(|key| key.expires_at > self.tx.now) else { return Ok(None) };
        match dedup.mode {
            DedupMode::KeepFirst => self.keep_first(&key, event, dedup).map(Some),
            DedupMode::ReplaceWaiting => Ok(self.replace_waiting(&key, scope, event, dedup)?.map(Ok)),
        }
    }

    /// Answers with the first entry, or with an error if its event has other contents.
    fn keep_first(&mut self, key: &KeyRow, event: &NewEvent, dedup: &Deduplication) -> Answer {
        let sql = self.tx.sql();
        let mut statement = self.tx.prepare(&sql.deduplication.contents)?;
        let mut rows = statement.query([key.event_id])?;
        let mut created_at = self.tx.now;
        if let Some(row) = rows.next()? {
            created_at = row.get("created_at")?;
            let same = row.get_ref("event_type")?.as_str().ok() == Some(event.event_type.as_str())
                && row.get_ref("payload")?.as_blob().ok() == Some(&event.payload[..]);
            if !same {
                let message = format!(
                    "deduplication key {:?} stands for another event: use another key or the same contents",
                    dedup.key
                );
                return Ok(Err(Error::new(ErrorKind::Conflict, message)));
            }
        }
        self.published(key.entry_id, Tsid::from_i64(key.event_id), PublishOutcome::Duplicate, created_at).map(Ok)
    }

    /// Gives the waiting entry a new fact, and its expiry. It keeps the old type, which its lane depends on; the old fact
    /// is removed, unless it has other entries, and with it what handlers answered about it.
    fn replace_waiting(
        &mut self,
        key: &KeyRow,
        scope: i64,
        event: &NewEvent,
        dedup: &Deduplication,
    ) -> Result<Option<Published>> {
        let sql = self.tx.sql();
        let now = self.tx.now;
        let number = self.next_id;
        let event_id = Tsid::from_parts(now / 1000, number);
        let (id, held, tagged) = (key.entry_id, key.event_id, !event.tags.is_empty());
        let expires = self.expires_at(event)?;
        if self.tx.execute(&sql.deduplication.replace, (id, event_id.to_i64(), now, tagged, expires))? == 0 {
            return Ok(None);
        }
        self.draw()?;
        let old_type = self.tx.row(&sql.deduplication.event_type, [held])?.and_then(|of| of.0);
        let event_type = old_type.as_ref().map_or(event.event_type.as_str(), |old_type| old_type.0.as_str());
        self.write_fact(number, event_type, event)?;
        tags::remove(self.tx, id, &tags::of_fact(self.tx, held)?)?;
        tags::put(self.tx, id, &event.tags)?;
        self.tx.execute(&sql.publish.remove_fact, [held])?;
        self.tx.execute(&sql.handlers.forget_entry, [id])?;
        self.tx.execute(&sql.deduplication.point, (client(event), scope, &dedup.key, event_id.to_i64()))?;
        self.published(id, event_id, PublishOutcome::Replaced, now).map(Some)
    }

    /// Takes the key for a new entry.
    pub(super) fn take_key(
        &self,
        scope: i64,
        event: &NewEvent,
        dedup: &Deduplication,
        (id, event_id): (i64, Tsid),
    ) -> Result<()> {
        let expires = later(self.tx.now, dedup.window)?;
        let key = (client(event), scope, &dedup.key, id, event_id.to_i64(), expires);
        self.tx.execute(&self.tx.sql().deduplication.put, key)?;
        Ok(())
    }
}
