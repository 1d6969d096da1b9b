//! Reads entries, why an entry waits, and counts. Nothing here writes.

use std::collections::HashMap;

use tidegate_core::{End, EntryId, Place, QueueState, Timestamp, Why};
use tokio_postgres::types::ToSql;

use crate::error::{Error, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::row;
use crate::postgres::engine::store::Inner;
use crate::sql::Only;
use crate::values::{Census, EntryPhase, EntryView, LiveConsumer};

impl Inner {
    pub(super) async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        let numbers = &ids.iter().map(|id| id.get()).collect::<Vec<i64>>();
        let rows = self.read(|tx| async move { tx.rows(&self.sql.entries.by_number, &[numbers]).await }).await?;
        let mut views: HashMap<i64, EntryView> = HashMap::new();
        for row in rows {
            let view = EntryView::try_from(row)?;
            // A discarded generation may be found beside a live one: the newest counts.
            let newer = views.get(&view.id.get()).is_none_or(|other| other.generation < view.generation);
            if newer {
                views.insert(view.id.get(), view);
            }
        }
        Ok(numbers.iter().map(|id| views.get(id).cloned()).collect())
    }

    pub(super) async fn why(&self, id: EntryId) -> Result<Why> {
        if let Some(why) = self.read(|tx| async move { self.why_live(&tx, id).await }).await? {
            return Ok(why);
        }
        let view = self.entries(vec![id]).await?.pop().flatten().ok_or_else(|| Error::no_entry(id))?;
        match view.phase {
            EntryPhase::Ended { end, at, .. } => Ok(Why::Ended { end, at }),
            // It was redriven between the two reads.
            _ => Ok(Why::Ready { ahead: 0 }),
        }
    }

    async fn why_live(&self, tx: &Tx, id: EntryId) -> Result<Option<Why>, Fault> {
        let sql = &self.sql.entries;
        let Some(row) = tx.row(&sql.why, &[&self.now(), &id.get()]).await? else { return Ok(None) };
        let now = Timestamp::from(row.now);
        if let Some(until) = row.lease_until.map(Timestamp::from) {
            let worker = row.worker.unwrap_or_default();
            return Ok(Some(if until > now {
                Why::Leased { worker, until }
            } else {
                Why::Abandoned { worker, since: until }
            }));
        }
        let place = Place::from_code(row.place);
        let due = row.due_at.map(Timestamp::from);
        if let (Some(Place::Aside), Some(at)) = (place, due.filter(|due| *due > now)) {
            return Ok(Some(Why::SteppedAside { at }));
        }
        if let (Some(Place::Parked | Place::Arrived | Place::Aside), Some(group)) = (place, row.group_key) {
            // What is aside and due comes before all parked ones.
            let rank = if place == Some(Place::Aside) { i32::MIN } else { row.rank };
            let params: [&(dyn ToSql + Sync); 5] = [&self.now(), &row.queue_id, &group, &rank, &id.get()];
            let ahead = tx.row(&sql.ahead_in_group, &params).await?;
            let ahead = ahead.map_or(0, |Only(ahead)| ahead) as u64;
            if ahead > 0 {
                return Ok(Some(Why::BehindInGroup { group, ahead }));
            }
        }
        if let Some(end) = row.kept_as.and_then(End::from_code) {
            return Ok(Some(Why::KeepsPlace { end }));
        }
        if QueueState::from_code(row.queue_state) == Some(QueueState::Paused) {
            return Ok(Some(Why::QueuePaused));
        }
        if let Some(at) = due.filter(|due| *due > now && place != Some(Place::Fresh)) {
            return Ok(Some(Why::DueAt { at }));
        }
        let (event_type, tags) = (row.event_type, row::tags(row.tags.as_deref()));
        let wanted = LiveConsumer::wants_for(&event_type, &tags);
        let live = tx.row(&self.sql.queues.live_consumer, &[&self.now(), &row.queue_id, &wanted]).await?;
        if !live.is_some_and(|Only(live)| live) {
            return Ok(Some(Why::NoLiveConsumer { event_type, tags }));
        }
        let ahead = tx.row(&sql.ahead_in_queue, &[&self.now(), &id.get()]).await?;
        Ok(Some(Why::Ready { ahead: ahead.map_or(0, |Only(ahead)| ahead) as u64 }))
    }

    pub(super) async fn census(&self) -> Result<Census> {
        let census = self.read(|tx| async move { tx.row(&self.sql.entries.census, &[]).await }).await?;
        Ok(census.map(Census::from).unwrap_or_default())
    }
}
