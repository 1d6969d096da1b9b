//! Plain commits beside the load, one at a time, to measure the disk's own latency: where their p99 rises too, a rise of the
//! load's p99 is not caused by the queue.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::database::Database;
use super::load::Load;
use crate::Result;

const EVERY: Duration = Duration::from_millis(50);

/// Commits one small change every [`EVERY`], until the load stops.
///
/// # Errors
/// When the database refuses.
pub(super) async fn run(load: Arc<Load>, database: Arc<Database>) -> Result<()> {
    match &*database {
        Database::Sqlite(path) => {
            let path = path.with_file_name("plain.db");
            tokio::task::spawn_blocking(move || sqlite(&load, &path)).await?
        }
        Database::Postgres(url) => postgres(&load, url).await,
    }
}

fn sqlite(load: &Load, path: &Path) -> Result<()> {
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE plain (number INTEGER NOT NULL); \
         INSERT INTO plain VALUES (0)",
    )?;
    while !load.stop.load(Ordering::Relaxed) {
        std::thread::sleep(EVERY);
        let began = Instant::now();
        connection.execute("UPDATE plain SET number = number + 1", [])?;
        load.committed(began.elapsed());
    }
    Ok(())
}

async fn postgres(load: &Load, url: &str) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    // It ends with the client, whose calls return its errors.
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE plain (number bigint NOT NULL); INSERT INTO plain VALUES (0)").await?;
    let update = client.prepare("UPDATE plain SET number = number + 1").await?;
    while !load.stop.load(Ordering::Relaxed) {
        tokio::time::sleep(EVERY).await;
        let began = Instant::now();
        client.execute(&update, &[]).await?;
        load.committed(began.elapsed());
    }
    Ok(())
}
