//! Replaces waiting entries through plain SQL, on a connection that the library does not know.

use std::time::Duration;

use rusqlite::ErrorCode;
use tokio_postgres::{Client, NoTls};

use crate::workload::{Failure, sqlite_path};

const BY_KEY: &str = "SELECT entry_id FROM tidegate_deduplication WHERE client_id = 0 AND kind = 0 AND key = ?1
                      AND scope = (SELECT id FROM tidegate_queues WHERE name = 'default')";

/// A connection, opened on first use.
pub(super) enum PlainSql {
    Sqlite(String, Option<rusqlite::Connection>),
    Postgres(String, Option<Client>),
}

impl PlainSql {
    pub(super) fn new(address: &str) -> Self {
        match sqlite_path(address) {
            Some(path) => Self::Sqlite(path.display().to_string(), None),
            None => Self::Postgres(address.to_owned(), None),
        }
    }

    /// Publishes and returns the entry that now holds the content; `None` when the database was busy for too long.
    pub(super) async fn publish(&mut self, key: &str, content: &str) -> Result<Option<i64>, Failure> {
        let payload = format!("{content}\n").into_bytes();
        match self {
            Self::Sqlite(path, connection) => {
                tokio::task::block_in_place(|| match publish_sqlite(path, connection, key, &payload) {
                    // Others held the write lock all the time: nothing was written.
                    Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::DatabaseBusy => Ok(None),
                    entry => Ok(Some(entry?)),
                })
            }
            Self::Postgres(url, client) => {
                let client = match client.take() {
                    Some(open) => client.insert(open),
                    None => {
                        let (opened, connection) = tokio_postgres::connect(url, NoTls).await?;
                        // Ends with the client, whose calls return the errors of the connection.
                        tokio::spawn(connection);
                        client.insert(opened)
                    }
                };
                let sql = "SELECT tidegate.publish(event_type => 'sim.replaced', payload => $1::bytea,
                                                   deduplication_id => $2, replace_waiting => true)";
                Ok(Some(client.query_one(sql, &[&payload, &key]).await?.try_get(0)?))
            }
        }
    }
}

fn publish_sqlite(
    path: &str,
    connection: &mut Option<rusqlite::Connection>,
    key: &str,
    payload: &[u8],
) -> rusqlite::Result<i64> {
    let connection = match connection.take() {
        Some(open) => connection.insert(open),
        None => {
            let opened = rusqlite::Connection::open(path)?;
            opened.busy_timeout(Duration::from_secs(30))?;
            opened.pragma_update(None, "synchronous", "FULL")?;
            connection.insert(opened)
        }
    };
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    tx.execute(
        "INSERT INTO tidegate_publish (event_type, payload, deduplication_id, replace_waiting)
         VALUES ('sim.replaced', ?1, ?2, 1)",
        rusqlite::params![payload, key],
    )?;
    let entry = tx.query_row(BY_KEY, [key], |row| row.get(0))?;
    tx.commit()?;
    Ok(entry)
}
