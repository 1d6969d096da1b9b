//! Reading: entries, why, depth, census. Nothing here writes.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::{Depth, End, EntryId, LeaseToken, QueueConfig, QueueName, QueueState, Timestamp, Tsid, Why};
use tokio_postgres::Row;

use super::Inner;
use super::catalog::Queue;
use super::connection::Tx;
use super::errors::Fault;
use super::items::{ARRIVED, FRESH, PARKED};
use super::row;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Census, Consumer, EntryPhase, EntryView};

impl Inner {
    pub(super) async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.entries, &[&numbers]).await.map_err(Fault::into_error)?;
        let mut views: HashMap<i64, EntryView> = HashMap::new();
        for row in &rows {
            let view = read_view(row)?;
            // Between two reads of one statement there is no gap, but a discarded generation may stand beside a live one.
            let newer = views.get(&view.id.get()).is_none_or(|other| other.generation < view.generation);
            if newer {
                views.insert(view.id.get(), view);
            }
        }
        Ok(numbers.iter().map(|id| views.get(id).cloned()).collect())
    }

    pub(super) async fn why(&self, id: EntryId) -> Result<Why> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        match self.why_live(&reader, id).await.map_err(Fault::into_error)? {
            Some(why) => Ok(why),
            None => {
                drop(reader);
                let view = self.entries(vec![id]).await?.pop().flatten().ok_or_else(|| Error::no_entry(id))?;
                match view.phase {
                    EntryPhase::Ended { end, at, .. } => Ok(Why::Ended { end, at }),
                    // It came back (a redrive) between the two looks.
                    _ => Ok(Why::Ready { ahead: 0 }),
                }
            }
        }
    }

    async fn why_live(&self, tx: &Tx, id: EntryId) -> Result<Option<Why>, Fault> {
        let rows = tx.query(&self.sql.why, &[&self.now(), &id.get()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (until, worker): (Option<Timestamp>, Option<String>) = (row::optional_moment(row, 0), row.get(1));
        let (place, due): (i16, Option<Timestamp>) = (row.get(2), row::optional_moment(row, 3));
        let (group, queue_id, state): (Option<String>, i32, i16) = (row.get(4), row.get(5), row.get(6));
        let (event_type, now): (String, Timestamp) = (row.get(7), row::moment(row, 8));
        let tags = row::tags(row.get(9));
        if let Some(until) = until {
            let worker = worker.unwrap_or_default();
            return Ok(Some(if until > now {
                Why::Leased { worker, until }
            } else {
                Why::Abandoned { worker, since: until }
            }));
        }
        if let (PARKED | ARRIVED, Some(group)) = (place, group) {
            let rows = tx.query(&self.sql.ahead_in_group, &[&queue_id, &group, &id.get()]).await?;
            let ahead = rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64;
            if ahead > 0 {
                return Ok(Some(Why::BehindInGroup { group, ahead }));
            }
        }
        if QueueState::from_code(state) == Some(QueueState::Paused) {
            return Ok(Some(Why::QueuePaused));
        }
        if let Some(at) = due.filter(|due| *due > now && place != FRESH) {
            return Ok(Some(Why::DueAt { at }));
        }
        let wanted = Consumer::wants_for(&event_type, &tags);
        let rows = tx.query(&self.sql.live_consumer, &[&self.now(), &queue_id, &wanted]).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            return Ok(Some(Why::NoLiveConsumer { event_type, tags }));
        }
        let rows = tx.query(&self.sql.ahead_in_queue, &[&self.now(), &id.get()]).await?;
        let ahead = rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64;
        Ok(Some(Why::Ready { ahead }))
    }

    pub(super) async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        let queue_id = self.queue(queue).await?.id;
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.depth, &[&self.now(), &queue_id]).await.map_err(Fault::into_error)?;
        let count = |column: usize| rows.first().map_or(0, |row| row.get::<_, i64>(column)) as u64;
        Ok(Depth { ready: count(0), delayed: count(1), parked: count(2), leased: count(3) })
    }

    pub(super) async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.depths, &[&self.now()]).await.map_err(Fault::into_error)?;
        drop(reader);
        let count = |row: &Row, column: usize| row.get::<_, i64>(column) as u64;
        let depth = |row: &Row| Depth {
            ready: count(row, 0),
            delayed: count(row, 1),
            parked: count(row, 2),
            leased: count(row, 3),
        };
        let mut found: HashMap<i32, Depth> = rows.iter().map(|row| (row.get(4), depth(row))).collect();
        let catalog = self.catalog().await?;
        Ok(catalog.queues().map(|queue| (queue.name.clone(), found.remove(&queue.id).unwrap_or_default())).collect())
    }

    pub(super) async fn census(&self) -> Result<Census> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.census, &[]).await.map_err(Fault::into_error)?;
        let count = |column: usize| rows.first().map_or(0, |row| row.get::<_, i64>(column)) as u64;
        Ok(Census { events: count(0), waiting: count(1), leased: count(2), ended: count(3) })
    }

    pub(super) async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.reload_catalog().await?;
        let catalog = self.catalog().await?;
        let mut queues: Vec<QueueConfig> = catalog.queues().map(|queue| queue.config()).collect();
        queues.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(queues)
    }

    /// For how long the first entry of each queue could have been claimed.
    pub(super) async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.oldest, &[&self.now()]).await.map_err(Fault::into_error)?;
        drop(reader);
        let mut ages: HashMap<i32, f64> = HashMap::new();
        for row in &rows {
            let oldest = ages.entry(row.get(0)).or_insert(0.0);
            *oldest = oldest.max(row.get(1));
        }
        let age = |queue: &Queue| ages.get(&queue.id).and_then(|age| Duration::try_from_secs_f64(*age).ok());
        Ok(self.catalog().await?.queues().map(|queue| (queue.name.clone(), age(queue))).collect())
    }

    /// One queue, as it stands now.
    pub(super) async fn queue_config(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        self.reload_catalog().await?;
        Ok(self.catalog().await?.queue(name).ok().map(|queue| queue.config()))
    }
}

/// Columns of the entries statement.
fn read_view(row: &Row) -> Result<EntryView> {
    let id = EntryId::new(row.get(0))?;
    let lane: i32 = row.get(19);
    let priority: Option<i16> = row.get(7);
    Ok(EntryView {
        id,
        event_id: Tsid::from_i64(row.get(1)),
        queue: row::queue(row, 2, 21)?,
        generation: row::count(row.get(3)),
        attempts: row::count(row.get(4)),
        max_attempts: row::count(row.get(5)),
        token: LeaseToken(row.get(6)),
        priority: priority.unwrap_or((-lane - 1000) as i16),
        group: row.get(8),
        phase: read_phase(row, id)?,
        error: row.get(17),
        results: row.get(18),
        updated_at: row::moment(row, 20),
        fact: row::fact(row, 22),
    })
}

fn read_phase(row: &Row, id: EntryId) -> Result<EntryPhase> {
    let place: Option<i16> = row.get(9);
    let Some(place) = place else {
        let end = End::from_code(row.get(14))
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("entry {id} has a bad end")))?;
        let superseded = row.get::<_, i16>(16) != 0;
        return Ok(EntryPhase::Ended { end, at: row::moment(row, 13), worker: row.get(15), superseded });
    };
    if let Some(until) = row::optional_moment(row, 11) {
        let since = row::optional_moment(row, 12);
        let worker: Option<String> = row.get(15);
        return Ok(EntryPhase::Leased { worker: worker.unwrap_or_default(), since: since.unwrap_or(until), until });
    }
    let grouped = row.get::<_, Option<&str>>(8).is_some();
    Ok(match place {
        FRESH => EntryPhase::Waiting { due: None },
        PARKED => EntryPhase::Parked,
        ARRIVED if grouped => EntryPhase::Parked,
        _ => EntryPhase::Waiting { due: row::optional_moment(row, 10) },
    })
}
