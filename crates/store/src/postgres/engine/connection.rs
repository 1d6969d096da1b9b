//! Connections, transactions, and what happens when an answer is lost. Knows nothing of queues.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, TimeoutType, Timeouts,
};
use futures_util::future::{BoxFuture, join};
use tidegate_core::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, SimpleQueryMessage};

use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;
use crate::outdated::Outdated;
use crate::postgres::engine::errors::{Fault, ignored_failure};
use crate::postgres::engine::health::{Health, SLOW};
use crate::postgres::engine::options::PostgresOptions;
use crate::postgres::engine::tls::Target;
use crate::postgres::statements::transactions::{PreludeRow, Transactions};
use crate::sql::{FromRow, Only, Statement};

/// Settings of the store's sessions. A plan must not depend on how full a table was when the statement was first
/// planned, so only nested loops over indexes are allowed, with one generic plan per statement.
const SESSION: &str = "-c jit=off -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off \
    -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan -c idle_in_transaction_session_timeout=60000";

/// How the store's transactions begin. They rely on each statement seeing what was committed before it, so the
/// isolation level does not depend on the default of the database or the role.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

const BEGIN_READING: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// How often a transaction that hit a deadlock or a serialisation failure is run again.
const MAX_COLLISIONS: u32 = 20;
/// How long a request to cancel a statement may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Reads a database URL and adds the settings of the store's sessions.
pub(in crate::postgres) fn target(url: &str, options: &PostgresOptions) -> Result<Target> {
    let mut target = Target::read(url)?;
    let config = &mut target.config;
    let mut session = format!("{SESSION} -c lock_timeout={}", options.store.lock_timeout.as_millis());
    if let Some(given) = config.get_options() {
        session = format!("{session} {given}");
    }
    // Last, so that it wins over the URL's options. It covers statements outside a transaction too.
    session.push_str(" -c default_transaction_isolation=read\\ committed");
    config.options(&session);
    if config.get_application_name().is_none() {
        config.application_name("tidegate");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(options.connect_timeout);
    }
    config.keepalives_idle(Duration::from_secs(15)).tcp_user_timeout(Duration::from_secs(30));
    Ok(target)
}

/// Refuses a pooler that reassigns sessions after every transaction, which loses prepared statements and notifications.
/// It is found by a setting that is made on one connection and gone once another one is busy: that one got the session.
pub(in crate::postgres) async fn refuse_shared_sessions(client: &Client, target: &Target) -> Result<()> {
    const MARK: &str = "tidegate.session";
    let read = format!("SELECT coalesce(current_setting('{MARK}', true), '') AS mark");
    client.batch_execute(&format!("SELECT set_config('{MARK}', 'ours', false)")).await?;
    let (other, driver) = target.connect_driven().await?;
    let busy = other.batch_execute("BEGIN; SELECT 1").await;
    let found = client.simple_query(&read).await;
    drop(other);
    driver.abort();
    busy?;
    let ours = found?.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get("mark") == Some("ours"),
        _ => false,
    });
    if ours {
        return Ok(());
    }
    Err(Error::invalid(
        "this address leads to a pooler in transaction mode, which loses prepared statements and notifications: \
         connect to PostgreSQL itself, or through a pool in session mode",
    ))
}

/// A pool of connections to the target.
pub(in crate::postgres) fn pool(target: Target, options: &PostgresOptions) -> Result<Pool> {
    let config = target.config.clone();
    let manager = Manager::from_connect(config, target, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let timeouts = Timeouts {
        wait: Some(options.retry_for),
        create: Some(options.connect_timeout),
        recycle: Some(options.connect_timeout),
    };
    // For each new connection: what is acknowledged must be on disk, whatever the server's default is; and no lease may
    // get a token that was given before a failover.
    let enter: Arc<str> = format!(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
         SELECT {}.enter_history()",
        options.schema()
    )
    .into();
    let entered = Hook::async_fn(move |client, _| {
        let enter = Arc::clone(&enter);
        Box::pin(async move {
            client.simple_query(&enter).await.map_err(HookError::Backend)?;
            Ok(())
        })
    });
    Pool::builder(manager)
        .max_size(options.max_connections)
        .timeouts(timeouts)
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .post_create(entered)
        .build()
        .map_err(|error| Error::invalid("the connection pool cannot be built").with_source(error))
}

/// When a transaction draws its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) enum Begin {
    /// At the start: it will write.
    Write,
    /// Once it writes: it may find nothing to write, and then costs no commit record.
    Lazy,
    /// In its own first statement, which also reads the prelude ([`Tx::set_prelude`]) and so saves a query.
    Carried,
}

/// Closes a connection, and has the server cancel the statement that may still run on it.
pub(in crate::postgres) fn abandon(client: Object, line: &Line) {
    let cancel = client.cancel_token();
    drop(Object::take(client));
    let tls = line.target.tls();
    // Without a runtime the process is ending, and nothing can be sent.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout(CANCEL_LIMIT, cancel.cancel_query(tls)).await {
                tracing::debug!(%error, "could not cancel an abandoned statement; it may still run on the server");
            }
        });
    }
}

/// What all connections to a database share.
#[derive(Debug)]
pub(in crate::postgres) struct Line {
    pub(in crate::postgres) target: Target,
    pub(in crate::postgres) health: Arc<Health>,
    /// How long one statement may take.
    limit: Duration,
    sql: Transactions,
}

impl Line {
    /// Waits for an answer until the statement's deadline, or until the database is known to be down. A slow answer has
    /// the database probed.
    pub(in crate::postgres) async fn answer<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Fault> {
        tokio::pin!(work);
        let soon = SLOW.min(self.limit);
        let answer = match tokio::time::timeout(soon, &mut work).await {
            Ok(answer) => answer,
            Err(_) => {
                self.health.suspect();
                tokio::select! {
                    answer = &mut work => answer,
                    error = self.health.gone() => return Err(Fault::Lost(error)),
                    () = tokio::time::sleep(self.limit.saturating_sub(soon)) => return Err(unanswered(self.limit)),
                }
            }
        };
        answer.map_err(|error| {
            let fault = Fault::from(error);
            self.health.note(&fault);
            fault
        })
    }
}

fn unanswered(limit: Duration) -> Fault {
    Fault::Lost(Error::new(ErrorKind::Unavailable, format!("the database did not answer within {limit:?}")))
}

/// An open transaction on a connection of its own. Unless it ended cleanly, its connection is closed: an open
/// transaction never returns to the pool, not even after a panic.
pub(in crate::postgres) struct Tx {
    client: Option<Object>,
    line: Arc<Line>,
    /// No transaction is open, so the connection may return to the pool.
    clean: AtomicBool,
    /// Statements that were sent and not answered yet.
    running: AtomicUsize,
    /// Whether a statement failed: the transaction can then only be rolled back, and COMMIT would not say so.
    failed: AtomicBool,
    /// The transaction's id, once it was drawn.
    xid: OnceLock<String>,
    /// What the work itself read, for [`Begin::Carried`].
    prelude: OnceLock<Prelude>,
    leases_at: OnceLock<Timestamp>,
}

impl Drop for Tx {
    fn drop(&mut self) {
        let running = *self.running.get_mut() > 0;
        match self.client.take() {
            Some(client) if running => abandon(client, &self.line),
            Some(client) if !*self.clean.get_mut() => drop(Object::take(client)),
            _ => {}
        }
    }
}

impl Tx {
    fn new(client: Object, line: Arc<Line>, clean: bool) -> Self {
        Self {
            client: Some(client),
            line,
            clean: AtomicBool::new(clean),
            running: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            xid: OnceLock::new(),
            prelude: OnceLock::new(),
            leases_at: OnceLock::new(),
        }
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("a connection is taken only by drop")
    }

    /// Waits for the answer to a statement. One whose answer is lost stays counted as running.
    async fn answer<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
        self.running.fetch_add(1, Ordering::AcqRel);
        let answer = self.line.answer(work).await;
        match &answer {
            Err(Fault::Lost(_)) => self.clean.store(false, Ordering::Release),
            answer => {
                self.running.fetch_sub(1, Ordering::AcqRel);
                if answer.is_err() {
                    self.failed.store(true, Ordering::Release);
                }
            }
        }
        answer
    }

    /// Runs a statement, prepared once per connection.
    pub(in crate::postgres) async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Fault> {
        self.answer(async {
            let statement = self.client().prepare_cached(sql).await?;
            self.client().query(&statement, params).await
        })
        .await
    }

    /// Runs a statement and reads its rows.
    pub(in crate::postgres) async fn rows<R: FromRow<Row>>(
        &self,
        statement: &Statement<R>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<R>, Fault> {
        let rows = self.query(statement, params).await?;
        Ok(rows.iter().map(|row| R::read(row, 0)).collect::<Result<_>>()?)
    }

    /// Runs a statement and reads its first row, if there is one.
    pub(in crate::postgres) async fn row<R: FromRow<Row>>(
        &self,
        statement: &Statement<R>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<R>, Fault> {
        let rows = self.query(statement, params).await?;
        Ok(rows.first().map(|row| R::read(row, 0)).transpose()?)
    }

    /// Runs a statement and returns how many rows it changed.
    pub(in crate::postgres) async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Fault> {
        self.answer(async {
            let statement = self.client().prepare_cached(sql).await?;
            self.client().execute(&statement, params).await
        })
        .await
    }

    /// Runs a statement without preparing it.
    pub(in crate::postgres) async fn run(&self, sql: &str) -> Result<(), Fault> {
        self.answer(self.client().batch_execute(sql)).await
    }

    /// Ends a transaction that only read.
    pub(in crate::postgres) async fn end_reading(&self) -> Result<(), Fault> {
        self.run("COMMIT").await?;
        self.clean.store(true, Ordering::Release);
        Ok(())
    }

    /// Draws the transaction's id, once it is clear that the transaction writes.
    pub(in crate::postgres) async fn draw_xid(&self) -> Result<(), Fault> {
        if let Some(Only(xid)) = self.row(&self.line.sql.draw_id, &[]).await? {
            self.set_xid(xid);
        }
        Ok(())
    }

    /// Records the transaction's id and prelude, which the work of a [`Begin::Carried`] transaction read itself.
    pub(in crate::postgres) fn set_prelude(&self, xid: String, prelude: Prelude) {
        self.set_xid(xid);
        let _ = self.prelude.set(prelude);
    }

    /// Records when, by the database's clock, this transaction writes leases.
    pub(in crate::postgres) fn set_leases_at(&self, moment: Timestamp) {
        let _ = self.leases_at.set(moment);
    }

    /// Records the transaction's id.
    pub(in crate::postgres) fn set_xid(&self, xid: String) {
        let _ = self.xid.set(xid);
    }
}

/// What a transaction reads at its start, to decide whether it may go on.
#[derive(Debug, Clone, Copy)]
pub(in crate::postgres) struct Prelude {
    /// The stamp of the database's catalogue.
    pub(in crate::postgres) stamp: i64,
    /// The heartbeat is neither old nor ahead of the clock, and the clock was not set before leases were written.
    pub(in crate::postgres) heartbeat_near: bool,
}

/// The database: a pool of connections, and the rules by which transactions run again.
#[derive(Debug)]
pub(in crate::postgres) struct Database {
    pub(in crate::postgres) pool: Pool,
    pub(in crate::postgres) line: Arc<Line>,
    /// Permits for the application's own transactions, fewer than there are connections: however long these take, and
    /// even when they wait for another call of the store, heartbeats and claims go on.
    permits: Arc<Semaphore>,
    pub(in crate::postgres) outdated: Arc<Outdated>,
    outage_after: Duration,
    retry_for: Duration,
}

/// The work of one transaction.
pub(in crate::postgres) type Work<'a, T> = dyn Fn(Arc<Tx>) -> BoxFuture<'a, Result<T, Fault>> + Send + Sync + 'a;
/// Finds out whether a transaction whose answer was lost took place.
pub(in crate::postgres) type Confirm<'a, T> =
    dyn Fn(Arc<Tx>, &T) -> BoxFuture<'a, Result<bool, Fault>> + Send + Sync + 'a;
/// Decides by the prelude whether a transaction may go on.
pub(in crate::postgres) type Accept<'a> = dyn Fn(Prelude) -> Result<(), Fault> + Send + Sync + 'a;

enum Committed<T> {
    Done(T),
    Fault(Fault),
    /// COMMIT was sent and its answer lost.
    Unknown {
        xid: String,
        value: T,
    },
}

impl Database {
    pub(in crate::postgres) fn new(
        pool: Pool,
        target: Target,
        options: &PostgresOptions,
        outdated: Arc<Outdated>,
    ) -> Self {
        let ns = options.schema();
        let sql = Transactions::new(|text| text.replace("{ns}", &ns));
        let connections = options.max_connections;
        Self {
            pool,
            line: Arc::new(Line { target, health: Health::new(), limit: options.statement_timeout, sql }),
            permits: Arc::new(Semaphore::new(connections.saturating_sub(connections.div_ceil(4)).max(1))),
            outdated,
            outage_after: options.store.outage_after,
            retry_for: options.retry_for,
        }
    }

    /// Runs one transaction until its outcome is known. If the connection is lost before COMMIT, it runs again; if it
    /// is lost at COMMIT, `confirm` finds out whether it took place, once it is over, and it runs again if it did not.
    pub(in crate::postgres) async fn transact<T: Send + Sync>(
        &self,
        begin: Begin,
        accept: &Accept<'_>,
        work: &Work<'_, T>,
        confirm: &Confirm<'_, T>,
    ) -> Result<T, Fault> {
        let deadline = Instant::now() + self.retry_for;
        let mut collisions = 0;
        let mut pause = Duration::from_millis(10);
        loop {
            match self.once(begin, accept, work).await {
                Committed::Done(value) => return Ok(value),
                Committed::Unknown { xid, value } => {
                    if self.resolve(&xid, &value, confirm).await? {
                        return Ok(value);
                    }
                }
                Committed::Fault(Fault::Again(error)) if collisions < MAX_COLLISIONS => {
                    tracing::debug!(%error, "transaction collided, running it again");
                    collisions += 1;
                    tokio::time::sleep(Duration::from_millis(rand::random_range(1..20))).await;
                }
                Committed::Fault(Fault::Lost(error)) if Instant::now() + pause < deadline => {
                    tracing::debug!(%error, "connection lost, running the transaction again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Committed::Fault(fault) => return Err(fault),
            }
        }
    }

    async fn once<T: Send>(&self, begin: Begin, accept: &Accept<'_>, work: &Work<'_, T>) -> Committed<T> {
        let client = match self.get().await {
            Ok(client) => client,
            Err(fault) => return Committed::Fault(fault),
        };
        let tx = Arc::new(Tx::new(client, Arc::clone(&self.line), false));
        // Sent together: the work does not wait for the answer to BEGIN.
        let (begun, worked) = join(self.begin(&tx, begin), work(Arc::clone(&tx))).await;
        let begun = begun.map(|begun| begun.map(|(prelude, now)| self.with_leases(prelude, now, &tx)));
        // Where `Begin::Carried` work set no prelude, it failed or wrote nothing.
        let prelude = begun.map(|prelude| prelude.or_else(|| tx.prelude.get().copied()));
        let accepted = prelude.and_then(|prelude| prelude.map_or(Ok(()), accept));
        // If a statement of the work failed first, the prelude's query only reports the aborted transaction: keep the
        // error of the work.
        let accepted = match accepted {
            Err(after) if after.is_aftermath() && worked.is_err() => Ok(()),
            accepted => accepted,
        };
        let sound = if tx.failed.load(Ordering::Acquire) { Err(ignored_failure().into()) } else { Ok(()) };
        let value = match accepted.and(worked).and_then(|value| sound.map(|()| value)) {
            Ok(value) => value,
            Err(fault @ Fault::Lost(_)) => return Committed::Fault(fault),
            Err(fault) => {
                let rolled_back = tx.run("ROLLBACK").await.is_ok();
                tx.clean.store(rolled_back, Ordering::Release);
                return Committed::Fault(fault);
            }
        };
        failpoint("postgres.before_commit");
        match tx.run("COMMIT").await {
            Ok(()) => {
                tx.clean.store(true, Ordering::Release);
                failpoint("postgres.after_commit");
                Committed::Done(value)
            }
            Err(fault) => match (fault, tx.xid.get()) {
                (Fault::Lost(_), Some(xid)) => Committed::Unknown { xid: xid.clone(), value },
                // No id was drawn, so nothing was written.
                (Fault::Lost(_), None) if begin == Begin::Lazy => Committed::Done(value),
                (fault, _) => Committed::Fault(fault),
            },
        }
    }

    /// Begins, and reads the prelude and the database's clock, in one round trip.
    async fn begin(&self, tx: &Tx, begin: Begin) -> Result<Option<(Prelude, Timestamp)>, Fault> {
        let prelude = match begin {
            Begin::Write => &self.line.sql.prelude_of_write,
            Begin::Lazy => &self.line.sql.prelude_of_lazy,
            Begin::Carried => return tx.run(BEGIN).await.map(|()| None),
        };
        let outage = i64::try_from(self.outage_after.as_millis()).unwrap_or(i64::MAX);
        let (begun, read) = join(tx.run(BEGIN), tx.row(prelude, &[&outage])).await;
        begun?;
        let Some(PreludeRow { xid, stamp, schema_version, oldest_compatible, heartbeat_near, now }) = read? else {
            return Err(Fault::Final(Error::new(ErrorKind::Schema, "the schema was removed while in use")));
        };
        self.outdated.check(schema_version, oldest_compatible)?;
        if let Some(xid) = xid {
            tx.set_xid(xid);
        }
        Ok(Some((Prelude { stamp, heartbeat_near }, now.into())))
    }

    /// The heartbeat is not near if the clock was set between the start of the transaction and the leases that it
    /// wrote.
    fn with_leases(&self, prelude: Prelude, now: Timestamp, tx: &Tx) -> Prelude {
        let apart = tx.leases_at.get().map_or(Duration::ZERO, |at| at.duration_since(now).unsigned_abs());
        // Four times the bound: the transaction may have waited for locked rows in between.
        Prelude { heartbeat_near: prelude.heartbeat_near && apart <= self.outage_after * 4, ..prelude }
    }

    /// Waits until a transaction is over, then finds out whether it took place. Its id alone does not tell: after a
    /// crash the server may give the same id again.
    async fn resolve<T: Send + Sync>(&self, xid: &str, value: &T, confirm: &Confirm<'_, T>) -> Result<bool, Fault> {
        let deadline = Instant::now() + self.retry_for;
        loop {
            match self.try_resolve(xid, value, confirm).await {
                Ok(Some(happened)) => return Ok(happened),
                Ok(None) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                // Also while the database is known to be down: once it is back, it can tell.
                Err(fault) if fault.may_pass() && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(None) => return Err(indeterminate(None)),
                Err(fault) => return Err(indeterminate(Some(fault.into_error()))),
            }
        }
    }

    /// `None` while the transaction still runs.
    async fn try_resolve<T: Send + Sync>(
        &self,
        xid: &str,
        value: &T,
        confirm: &Confirm<'_, T>,
    ) -> Result<Option<bool>, Fault> {
        let tx = Arc::new(Tx::new(self.get().await?, Arc::clone(&self.line), true));
        let status = tx.row(&self.line.sql.status, &[&xid]).await?.and_then(|Only(status)| status);
        if status.as_deref() == Some("in progress") {
            return Ok(None);
        }
        confirm(tx, value).await.map(Some)
    }

    /// A connection of the pool; refused within a second while the database is known to be down.
    pub(in crate::postgres) async fn get(&self) -> Result<Object, Fault> {
        let health = &self.line.health;
        health.admit().await?;
        let got = tokio::select! {
            biased;
            got = self.pool.get() => got.map_err(Fault::from),
            error = health.gone() => return Err(Fault::Final(error)),
        };
        match &got {
            Err(Fault::Lost(_)) => health.suspect(),
            Err(fault) => health.note(fault),
            Ok(_) => {}
        }
        got
    }

    /// A connection for a transaction of the application's own, and the permit to keep as long as the connection.
    pub(in crate::postgres) async fn lend(&self) -> Result<(Object, OwnedSemaphorePermit), Fault> {
        let permit = tokio::time::timeout(self.retry_for, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| PoolError::Timeout(TimeoutType::Wait))?.map_err(|_| PoolError::Closed)?;
        Ok((self.get().await?, permit))
    }

    /// A connection for reading; tries for `retry_for` while the database is being restarted.
    pub(in crate::postgres) async fn reader_patiently(&self) -> Result<Tx> {
        self.patiently(|| self.reader()).await
    }

    /// A transaction for a list; tries for `retry_for` while the database is being restarted.
    pub(in crate::postgres) async fn list_reader_patiently(&self, limit: Duration) -> Result<Tx> {
        self.patiently(|| self.list_reader(limit)).await
    }

    async fn patiently<F: Future<Output = Result<Tx, Fault>>>(&self, reader: impl Fn() -> F) -> Result<Tx> {
        let deadline = Instant::now() + self.retry_for;
        loop {
            match reader().await {
                Err(Fault::Lost(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await
                }
                reader => return reader.map_err(Fault::into_error),
            }
        }
    }

    /// A read-only transaction of one snapshot, whose statements the server cancels after `limit`.
    async fn list_reader(&self, limit: Duration) -> Result<Tx, Fault> {
        let tx = Tx::new(self.get().await?, Arc::clone(&self.line), false);
        let limit = limit.as_millis().max(1);
        tx.run(&format!("{BEGIN_READING}; SET LOCAL statement_timeout = {limit}")).await?;
        Ok(tx)
    }

    /// A connection for reading, outside any transaction.
    pub(in crate::postgres) async fn reader(&self) -> Result<Tx, Fault> {
        Ok(Tx::new(self.get().await?, Arc::clone(&self.line), true))
    }
}

fn indeterminate(source: Option<Error>) -> Fault {
    let error = Error::new(
        ErrorKind::Indeterminate,
        "the answer to a commit was lost, and whether it took place could not be found out",
    );
    Fault::Final(match source {
        Some(source) => error.with_source(source),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_urls_are_told() {
        let options = PostgresOptions::default();
        for bad in ["", "nonsense", "postgres://", "postgres://h:notaport/db", "mysql://h/db"] {
            let error = target(bad, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}: {error}");
        }
        assert!(target("postgres://user@localhost:5432/db?options=-c%20work_mem%3D8MB", &options).is_ok());
    }
}
