//! [`DbTx`]: the transaction that a handler or a projection writes in, with one API for both databases. What they write
//! and publish commits together with what the library writes (an end, a position), or not at all.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use tidegate_core::{NewEvent, QueueName};
use tidegate_store::{Finalize, Finalized, ProjectionId, Published, Step};

use super::sql_value::SqlValue;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::queue::native::Native;

/// An open transaction on either database.
///
/// ```
/// # async fn example(tx: &tidegate::DbTx<'_>) -> tidegate::Result<()> {
/// use tidegate::NewEvent;
/// tx.execute("UPDATE accounts SET balance = balance + $1 WHERE id = $2", &[50.into(), "alice".into()]).await?;
/// tx.publish(NewEvent::new("account.credited", r#"{"id": "alice"}"#)).await?;
/// # Ok(()) }
/// ```
pub struct DbTx<'a> {
    inner: Inner<'a>,
    queue: &'a EventQueue,
    /// Queues to wake after the commit.
    touched: Mutex<BTreeSet<QueueName>>,
}

enum Inner<'a> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'a tidegate_store::sqlite::SqliteStore, &'a tidegate_store::sqlite::SqliteTx),
    #[cfg(feature = "postgres")]
    Postgres(&'a tidegate_store::postgres::PostgresStore, &'a tokio_postgres::Transaction<'a>),
    #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
    None(std::marker::PhantomData<&'a ()>),
}

impl fmt::Debug for DbTx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbTx").field("queue", self.queue.name()).finish_non_exhaustive()
    }
}

impl<'a> DbTx<'a> {
    fn new(inner: Inner<'a>, queue: &'a EventQueue) -> Self {
        Self { inner, queue, touched: Mutex::default() }
    }

    /// Runs a statement and returns how many rows it changed. Parameters are `$1`, `$2` … on both databases: `$n` is
    /// the n-th value, wherever and however often it is used.
    ///
    /// # Errors
    /// Any error of the database, and `Invalid` when the number of values and parameters differs. On PostgreSQL the
    /// transaction can then only be rolled back.
    pub async fn execute(&self, sql: &str, params: &[SqlValue]) -> Result<u64> {
        match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(_, tx) => {
                let (sql, params) = (sql.to_owned(), params.to_vec());
                let step = move |conn: &rusqlite::Connection| {
                    let mut statement = conn.prepare_cached(&sql)?;
                    bind(&mut statement, &params)?;
                    let changed = statement.raw_execute();
                    statement.clear_bindings();
                    Ok(changed? as u64)
                };
                tx.run(step).await
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(_, tx) => tx.execute_raw(sql, params).await.map_err(refused),
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => Err(no_database(sql, params)),
        }
    }

    /// Runs a query and returns its rows.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and `Invalid` for a column of a type that [`SqlValue`] cannot hold.
    pub async fn query(&self, sql: &str, params: &[SqlValue]) -> Result<Vec<Vec<SqlValue>>> {
        match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(_, tx) => {
                let (sql, params) = (sql.to_owned(), params.to_vec());
                let step = move |conn: &rusqlite::Connection| {
                    let mut statement = conn.prepare_cached(&sql)?;
                    bind(&mut statement, &params)?;
                    let answer = read(statement.raw_query());
                    statement.clear_bindings();
                    answer
                };
                tx.run(step).await
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(_, tx) => {
                let params: Vec<_> =
                    params.iter().map(|value| value as &(dyn tokio_postgres::types::ToSql + Sync)).collect();
                tx.query(sql, &params).await.map_err(refused)?.iter().map(SqlValue::read_postgres).collect()
            }
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => Err(no_database(sql, params)),
        }
    }

    /// The underlying transaction on PostgreSQL; `None` on SQLite.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn postgres(&self) -> Option<&tokio_postgres::Transaction<'a>> {
        match &self.inner {
            Inner::Postgres(_, tx) => Some(tx),
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(..) => None,
        }
    }

    /// Runs a closure on the connection of the transaction, on SQLite. It must not run BEGIN, COMMIT or ROLLBACK.
    ///
    /// # Errors
    /// The error of the closure, and `Invalid` on another database.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite<T, F>(&self, step: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T> + Send + 'static,
    {
        match &self.inner {
            Inner::Sqlite(_, tx) => tx.run(step).await,
            #[cfg(feature = "postgres")]
            Inner::Postgres(..) => Err(Error::invalid("this transaction is not on SQLite")),
        }
    }

    /// Publishes an event: it exists once the transaction commits.
    ///
    /// # Errors
    /// As [`EventQueue::publish`].
    pub async fn publish(&self, mut event: NewEvent) -> Result<Published> {
        self.queue.address(&mut event);
        let queue = event.queue.clone();
        let published = match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(store, tx) => {
                let store = (*store).clone();
                tx.run(move |conn| store.publish_in(conn, vec![event])).await?
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(store, tx) => store.publish_in(tx, vec![event]).await?,
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => return Err(no_database("publish", &[])),
        };
        self.touch(queue);
        published.into_iter().next().ok_or_else(|| Error::invalid("nothing was published"))
    }

    /// Ends entries; `Fenced` when a lease is no longer held, and the transaction must be rolled back.
    pub(crate) async fn finalize(&self, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        let answers = match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(store, tx) => {
                let store = (*store).clone();
                tx.run(move |conn| store.finalize_in(conn, items)).await?
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(store, tx) => store.finalize_in(tx, items).await?,
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => return Err(no_database("finalize", &[])),
        };
        self.touch(self.queue.name().clone());
        Ok(answers)
    }

    /// Moves a projection's position; `Fenced` when token or position are not the stored ones, and the transaction must
    /// be rolled back.
    pub(crate) async fn advance_projection(&self, step: Step) -> Result<()> {
        match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(store, tx) => {
                let store = (*store).clone();
                tx.run(move |conn| store.advance_projection_in(conn, &step)).await
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(store, tx) => store.advance_projection_in(tx, &step).await,
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => Err(no_database(&step.id.name, &[])),
        }
    }

    /// Makes a version of a projection the active one.
    pub(crate) async fn activate_projection(&self, id: ProjectionId, token: i64) -> Result<()> {
        match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(store, tx) => {
                let store = (*store).clone();
                tx.run(move |conn| store.activate_projection_in(conn, &id, token)).await
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(store, tx) => store.activate_projection_in(tx, &id, token).await,
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => Err(no_database(&id.name, &[token.into()])),
        }
    }

    /// The reason why the database has already rolled the transaction back, if it has.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(_, tx) => tx.check(),
            #[cfg(feature = "postgres")]
            Inner::Postgres(..) => Ok(()),
            #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
            Inner::None(_) => Ok(()),
        }
    }

    fn touch(&self, queue: QueueName) {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).insert(queue);
    }
}

/// Binds values by the number in a parameter's name. SQLite itself treats `$2` as a name and numbers parameters in the
/// order of their first use.
#[cfg(feature = "sqlite")]
fn bind(statement: &mut rusqlite::CachedStatement<'_>, params: &[SqlValue]) -> Result<()> {
    let mut highest = 0;
    for index in 1..=statement.parameter_count() {
        let number = match statement.parameter_name(index) {
            // A plain `?`.
            None => index,
            Some(name) => name
                .strip_prefix(['$', '?'])
                .and_then(|digits| digits.parse().ok())
                .filter(|number| *number > 0)
                .ok_or_else(|| Error::invalid(format!("parameter {name} has no number: use $1, $2 …")))?,
        };
        let value = params.get(number - 1).ok_or_else(|| {
            Error::invalid(format!("the statement uses parameter ${number}, but {} values were given", params.len()))
        })?;
        statement.raw_bind_parameter(index, value)?;
        highest = highest.max(number);
    }
    if highest < params.len() {
        let given = params.len();
        return Err(Error::invalid(format!("{given} values were given, but the statement uses only {highest}")));
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
fn read(mut rows: rusqlite::Rows<'_>) -> Result<Vec<Vec<SqlValue>>> {
    let mut answer = Vec::new();
    while let Some(row) = rows.next()? {
        answer.push(SqlValue::read_sqlite(row)?);
    }
    Ok(answer)
}

/// A missing table or privilege in a statement of the application is `Invalid`: it is neither an error of our own
/// schema nor transient.
#[cfg(feature = "postgres")]
fn refused(error: tokio_postgres::Error) -> Error {
    use tokio_postgres::error::SqlState;
    let said = error.as_db_error().map(|said| said.message().to_owned());
    let is_right = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let error = Error::from(error);
    match said {
        Some(said) if is_right || error.kind() == crate::error::ErrorKind::Schema => {
            Error::invalid(format!("the statement was refused: {said}")).with_source(error)
        }
        _ => error,
    }
}

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
fn no_database(_: &str, _: &[SqlValue]) -> Error {
    Error::invalid("this program was built without a database")
}

impl EventQueue {
    /// Runs async work in one transaction of the queue's database, on either database: the application's statements and
    /// the events it publishes commit together, or are rolled back when it returns an error. On SQLite other writers
    /// wait meanwhile, so it must be short: a transaction that is idle for 10 s (`Options::transaction_patience`) is
    /// rolled back, and calls of the queue itself from within are refused, since they would wait for this transaction.
    ///
    /// ```
    /// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
    /// use tidegate::NewEvent;
    /// queue
    ///     .in_transaction(|tx| {
    ///         Box::pin(async move {
    ///             tx.execute("INSERT INTO orders (id) VALUES ($1)", &[1.into()]).await?;
    ///             tx.publish(NewEvent::new("order.created", r#"{"id": 1}"#)).await
    ///         })
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The error of the work or of the store; `Conflict` when the database rolled it back meanwhile, `Indeterminate`
    /// when the answer to the commit was lost.
    pub async fn in_transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send,
        F: for<'a> FnOnce(&'a DbTx<'a>) -> BoxFuture<'a, Result<T>> + Send,
    {
        let (value, touched) = match &self.shared().native.0 {
            #[cfg(feature = "sqlite")]
            Native::Sqlite(store) => {
                let held = store.begin(self.shared().options.transaction_patience)?;
                let tx = DbTx::new(Inner::Sqlite(store, &held), self);
                let value = held.scope(work(&tx)).await?;
                let touched = tx.touched.into_inner().unwrap_or_else(PoisonError::into_inner);
                held.commit().await?;
                (value, touched)
            }
            #[cfg(feature = "postgres")]
            Native::Postgres(store) => {
                let mut connection = store.connection().await?;
                let begun = connection.begin().await?;
                let tx = DbTx::new(Inner::Postgres(store, begun.transaction()), self);
                let worked = work(&tx).await;
                let touched = tx.touched.into_inner().unwrap_or_else(PoisonError::into_inner);
                match worked {
                    Ok(value) => {
                        begun.commit().await?;
                        (value, touched)
                    }
                    Err(error) => {
                        begun.rollback().await;
                        return Err(error);
                    }
                }
            }
            Native::Other => {
                drop(work);
                return Err(Error::invalid("this queue's store does not support transactions of the application"));
            }
        };
        if !touched.is_empty() {
            self.shared().committed(touched);
        }
        Ok(value)
    }
}
