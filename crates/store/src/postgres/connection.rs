//! Connections, transactions, and what to do when an answer is lost. Knows nothing of queues.

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

use super::PostgresOptions;
use super::errors::Fault;
use super::health::{Health, SLOW};
use super::tls::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;

/// Settings of our own sessions. Plans must not depend on how full a table was when a statement was first planned, so
/// only nested loops over indexes are allowed; one generic plan per statement.
const SESSION: &str = "-c jit=off -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off \
    -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan -c idle_in_transaction_session_timeout=60000";

/// How our transactions begin. They rely on each statement seeing what was committed before it, whatever the default of the
/// database or the role is.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

const BEGIN_READING: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// How often a transaction that collided is tried again.
const MAX_COLLISIONS: u32 = 20;
/// How long asking the server to stop a statement may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Reads a database URL and adds what our sessions need.
pub(super) fn target(url: &str, options: &PostgresOptions) -> Result<Target> {
    let mut target = Target::read(url)?;
    let config = &mut target.config;
    let mut session = format!("{SESSION} -c lock_timeout={}", options.store.lock_timeout.as_millis());
    if let Some(given) = config.get_options() {
        session = format!("{session} {given}");
    }
    // Also of single statements, and whatever the URL says.
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

/// A pooler that gives sessions away after every transaction loses prepared statements and notifications. It shows when a
/// setting made on one connection is gone as soon as another one is busy: that one got the session.
pub(super) async fn refuse_shared_sessions(client: &Client, target: &Target) -> Result<()> {
    const MARK: &str = "tidegate.session";
    let read = format!("SELECT coalesce(current_setting('{MARK}', true), '')");
    client.batch_execute(&format!("SELECT set_config('{MARK}', 'ours', false)")).await?;
    let (other, driver) = target.connect_driven().await?;
    let busy = other.batch_execute("BEGIN; SELECT 1").await;
    let found = client.simple_query(&read).await;
    drop(other);
    driver.abort();
    busy?;
    let ours = found?.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("ours"),
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

/// A pool of connections to that target.
pub(super) fn pool(target: Target, options: &PostgresOptions) -> Result<Pool> {
    let config = target.config.clone();
    let manager = Manager::from_connect(config, target, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let timeouts = Timeouts {
        wait: Some(options.retry_for),
        create: Some(options.connect_timeout),
        recycle: Some(options.connect_timeout),
    };
    // What is acknowledged must be on disk, whatever the server's default is; and leases must not be given under tokens that
    // were given before a failover.
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

/// Whether a transaction draws its id at the start, or only once it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// It will write.
    Write,
    /// It may find nothing to write, and then costs no commit record.
    Lazy,
    /// It will write, and its work tells itself what every transaction goes by ([`Tx::set_prelude`]).
    Carried,
}

/// Throws a connection away. What it was asked last may still run on the server, which is told to stop.
pub(super) fn abandon(client: Object, line: &Line) {
    let cancel = client.cancel_token();
    drop(Object::take(client));
    let tls = line.target.tls();
    // Without a runtime everything ends anyway.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout(CANCEL_LIMIT, cancel.cancel_query(tls)).await {
                tracing::debug!(%error, "a statement that nobody waits for could not be stopped");
            }
        });
    }
}

/// What every connection of a database shares.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) target: Target,
    pub(super) health: Arc<Health>,
    /// How long one statement may take.
    limit: Duration,
}

impl Line {
    /// Waits for an answer, but no longer than a statement may take or the database is known to be there.
    pub(super) async fn answer<T>(
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

/// An open transaction on a connection of its own. Unless it was ended cleanly, its connection is thrown away: an open
/// transaction never returns to the pool, not even after a panic.
pub(super) struct Tx {
    client: Option<Object>,
    line: Arc<Line>,
    clean: AtomicBool,
    /// Statements that were sent and not answered.
    running: AtomicUsize,
    /// Whether a statement failed: the transaction can then only be rolled back, and COMMIT would not say so.
    failed: AtomicBool,
    xid: OnceLock<String>,
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

    /// Waits for the answer to a statement. One that is given up stays counted as running.
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
    pub(super) async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
        self.answer(async {
            let statement = self.client().prepare_cached(sql).await?;
            self.client().query(&statement, params).await
        })
        .await
    }

    /// Runs a statement and answers how many rows it touched.
    pub(super) async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Fault> {
        self.answer(async {
            let statement = self.client().prepare_cached(sql).await?;
            self.client().execute(&statement, params).await
        })
        .await
    }

    /// Runs a statement without preparing it.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Fault> {
        self.answer(self.client().batch_execute(sql)).await
    }

    /// Ends a transaction that only read.
    pub(super) async fn end_reading(&self) -> Result<(), Fault> {
        self.run("COMMIT").await?;
        self.clean.store(true, Ordering::Release);
        Ok(())
    }

    /// Draws the transaction's id, once it is clear that it will write.
    pub(super) async fn draw_xid(&self) -> Result<(), Fault> {
        if let Some(row) = self.query("SELECT pg_current_xact_id()::text", &[]).await?.first() {
            self.set_xid(row.get(0));
        }
        Ok(())
    }

    /// Says what the transaction goes by, for [`Begin::Carried`].
    pub(super) fn set_prelude(&self, xid: String, prelude: Prelude) {
        self.set_xid(xid);
        let _ = self.prelude.set(prelude);
    }

    /// Says at which moment of the database's clock it writes leases.
    pub(super) fn set_leases_at(&self, moment: Timestamp) {
        let _ = self.leases_at.set(moment);
    }

    /// Says which transaction this is, once known.
    pub(super) fn set_xid(&self, xid: String) {
        let _ = self.xid.set(xid);
    }
}

/// What the start of a transaction told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prelude {
    /// The catalogue's stamp.
    pub(super) stamp: i64,
    /// Whether the heartbeat is neither old nor ahead of the clock, and the clock was not set before leases were written.
    pub(super) heartbeat_near: bool,
}

/// The database: a pool, and the rules of trying again.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) pool: Pool,
    pub(super) line: Arc<Line>,
    /// Turns for transactions of the application's own, fewer than there are connections: however long these take, and
    /// even when they themselves wait for another call of the store, heartbeats and claims go on.
    turns: Arc<Semaphore>,
    write_prelude: String,
    lazy_prelude: String,
    outage_after: Duration,
    retry_for: Duration,
}

/// The work of one transaction.
pub(super) type Work<'a, T> = dyn Fn(Arc<Tx>) -> BoxFuture<'a, Result<T, Fault>> + Send + Sync + 'a;
/// Looks whether a transaction whose answer was lost did happen.
pub(super) type Confirm<'a, T> = dyn Fn(Arc<Tx>, &T) -> BoxFuture<'a, Result<bool, Fault>> + Send + Sync + 'a;
/// Judges what the start of the transaction told.
pub(super) type Accept<'a> = dyn Fn(Prelude) -> Result<(), Fault> + Send + Sync + 'a;

enum Outcome<T> {
    Done(T),
    Fault(Fault),
    /// COMMIT was sent and its answer lost.
    Unknown {
        xid: String,
        value: T,
    },
}

impl Database {
    pub(super) fn new(pool: Pool, target: Target, options: &PostgresOptions) -> Self {
        let ns = &options.schema();
        let prelude = |xid: &str| {
            format!(
                "SELECT {xid}::text, m.catalogue_stamp, \
                        h.at BETWEEN clock_timestamp() - i.outage AND clock_timestamp() + i.outage, clock_timestamp() \
                 FROM {ns}.meta m CROSS JOIN {ns}.heartbeat h \
                 CROSS JOIN (SELECT $1::bigint * interval '1 millisecond' AS outage) AS i"
            )
        };
        let connections = options.max_connections;
        Self {
            pool,
            line: Arc::new(Line { target, health: Health::new(), limit: options.statement_timeout }),
            turns: Arc::new(Semaphore::new(connections.saturating_sub(connections.div_ceil(4)).max(1))),
            write_prelude: prelude("pg_current_xact_id()"),
            lazy_prelude: prelude("NULL"),
            outage_after: options.store.outage_after,
            retry_for: options.retry_for,
        }
    }

    /// Runs one transaction to its end, whatever happens to the connection: lost before COMMIT it runs again; lost at
    /// COMMIT it is looked up by `confirm` once the old transaction is over, and runs again if it did not happen.
    pub(super) async fn transact<T: Send + Sync>(
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
                Outcome::Done(value) => return Ok(value),
                Outcome::Unknown { xid, value } => {
                    if self.find_out(&xid, &value, confirm).await? {
                        return Ok(value);
                    }
                }
                Outcome::Fault(Fault::Again(error)) if collisions < MAX_COLLISIONS => {
                    tracing::debug!(%error, "transaction collided, running it again");
                    collisions += 1;
                    tokio::time::sleep(Duration::from_millis(rand::random_range(1..20))).await;
                }
                Outcome::Fault(Fault::Lost(error)) if Instant::now() + pause < deadline => {
                    tracing::debug!(%error, "connection lost, running the transaction again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Outcome::Fault(fault) => return Err(fault),
            }
        }
    }

    async fn once<T: Send>(&self, begin: Begin, accept: &Accept<'_>, work: &Work<'_, T>) -> Outcome<T> {
        let client = match self.get().await {
            Ok(client) => client,
            Err(fault) => return Outcome::Fault(fault),
        };
        let tx = Arc::new(Tx::new(client, Arc::clone(&self.line), false));
        // Both are sent at once: the work does not wait for BEGIN's answer.
        let (begun, worked) = join(self.begin(&tx, begin), work(Arc::clone(&tx))).await;
        let begun = begun.map(|begun| begun.map(|(prelude, now)| self.with_leases(prelude, now, &tx)));
        // Work that did not get as far as its prelude has failed or has nothing to go by.
        let prelude = begun.map(|prelude| prelude.or_else(|| tx.prelude.get().copied()));
        let accepted = prelude.and_then(|prelude| prelude.map_or(Ok(()), accept));
        // The work's statement may have failed first: what the other was told of then is only that.
        let accepted = match accepted {
            Err(after) if after.is_aftermath() && worked.is_err() => Ok(()),
            accepted => accepted,
        };
        let sound = if tx.failed.load(Ordering::Acquire) { Err(ignored_failure().into()) } else { Ok(()) };
        let value = match accepted.and(worked).and_then(|value| sound.map(|()| value)) {
            Ok(value) => value,
            Err(fault @ Fault::Lost(_)) => return Outcome::Fault(fault),
            Err(fault) => {
                let rolled_back = tx.run("ROLLBACK").await.is_ok();
                tx.clean.store(rolled_back, Ordering::Release);
                return Outcome::Fault(fault);
            }
        };
        failpoint("postgres.before_commit");
        match tx.run("COMMIT").await {
            Ok(()) => {
                tx.clean.store(true, Ordering::Release);
                failpoint("postgres.after_commit");
                Outcome::Done(value)
            }
            Err(fault) => match (fault, tx.xid.get()) {
                (Fault::Lost(_), Some(xid)) => Outcome::Unknown { xid: xid.clone(), value },
                // Nothing was written, so nothing is unknown.
                (Fault::Lost(_), None) if begin == Begin::Lazy => Outcome::Done(value),
                (fault, _) => Outcome::Fault(fault),
            },
        }
    }

    /// Begins, and reads what every transaction goes by, in one round trip.
    async fn begin(&self, tx: &Tx, begin: Begin) -> Result<Option<(Prelude, Timestamp)>, Fault> {
        let sql = match begin {
            Begin::Write => &self.write_prelude,
            Begin::Lazy => &self.lazy_prelude,
            Begin::Carried => return tx.run(BEGIN).await.map(|()| None),
        };
        let outage = i64::try_from(self.outage_after.as_millis()).unwrap_or(i64::MAX);
        let (begun, read) = join(tx.run(BEGIN), tx.query(sql, &[&outage])).await;
        begun?;
        let rows = read?;
        let Some(row) = rows.first() else {
            return Err(Fault::Final(Error::new(ErrorKind::Schema, "the schema was removed while in use")));
        };
        if let Some(xid) = row.get(0) {
            tx.set_xid(xid);
        }
        Ok(Some((Prelude { stamp: row.get(1), heartbeat_near: row.get(2) }, row.get(3))))
    }

    /// A clock that was set between the start of a transaction and the leases that it wrote is another clock.
    fn with_leases(&self, prelude: Prelude, now: Timestamp, tx: &Tx) -> Prelude {
        let apart = tx.leases_at.get().map_or(Duration::ZERO, |at| at.duration_since(now).unsigned_abs());
        // Rows that others held may have been waited for in between.
        Prelude { heartbeat_near: prelude.heartbeat_near && apart <= self.outage_after * 4, ..prelude }
    }

    /// Waits until the transaction is over, then looks whether it happened. The transaction id alone does not tell: a
    /// crash can make the server give the same number again.
    async fn find_out<T: Send + Sync>(&self, xid: &str, value: &T, confirm: &Confirm<'_, T>) -> Result<bool, Fault> {
        let deadline = Instant::now() + self.retry_for;
        loop {
            match self.try_find_out(xid, value, confirm).await {
                Ok(Some(happened)) => return Ok(happened),
                Ok(None) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                // Also while the database is known to be down: it may come back, and then it knows.
                Err(fault) if fault.may_pass() && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(None) => return Err(indeterminate(None)),
                Err(fault) => return Err(indeterminate(Some(fault.into_error()))),
            }
        }
    }

    async fn try_find_out<T: Send + Sync>(
        &self,
        xid: &str,
        value: &T,
        confirm: &Confirm<'_, T>,
    ) -> Result<Option<bool>, Fault> {
        let tx = Arc::new(Tx::new(self.get().await?, Arc::clone(&self.line), true));
        // A number above the next one was forgotten by a crash; asking for its status would be an error. The next one is
        // known only by drawing it: a snapshot ends at the last one that is over, below some that still run.
        let sql = "SELECT CASE WHEN $1::text::xid8 < pg_current_xact_id() THEN pg_xact_status($1::text::xid8) END";
        let rows = tx.query(sql, &[&xid]).await?;
        let status: Option<&str> = rows.first().and_then(|row| row.get(0));
        if status == Some("in progress") {
            return Ok(None);
        }
        confirm(tx, value).await.map(Some)
    }

    /// A connection of the pool, unless the database is known to be down.
    pub(super) async fn get(&self) -> Result<Object, Fault> {
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

    /// A connection for a transaction of the application's own, and the turn to be kept as long as it.
    pub(super) async fn lend(&self) -> Result<(Object, OwnedSemaphorePermit), Fault> {
        let turn = tokio::time::timeout(self.retry_for, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| PoolError::Timeout(TimeoutType::Wait))?.map_err(|_| PoolError::Closed)?;
        Ok((self.get().await?, turn))
    }

    /// A connection for reading; waits while the database is being restarted.
    pub(super) async fn reader_patiently(&self) -> Result<Tx> {
        self.patiently(|| self.reader()).await
    }

    /// Reads by one statement, over another connection where one was lost or a migration changed the answer, for a while.
    pub(super) async fn read_patiently(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let deadline = Instant::now() + self.retry_for;
        loop {
            let reader = self.reader_patiently().await?;
            match reader.query(sql, params).await {
                Err(Fault::Lost(_)) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(10)).await,
                read => return read.map_err(Fault::into_error),
            }
        }
    }

    /// A transaction for a list; waits while the database is being restarted.
    pub(super) async fn list_reader_patiently(&self, limit: Duration) -> Result<Tx> {
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

    /// A transaction that only reads, sees one snapshot, and whose statements the server ends when they take too long.
    async fn list_reader(&self, limit: Duration) -> Result<Tx, Fault> {
        let tx = Tx::new(self.get().await?, Arc::clone(&self.line), false);
        let limit = limit.as_millis().max(1);
        tx.run(&format!("{BEGIN_READING}; SET LOCAL statement_timeout = {limit}")).await?;
        Ok(tx)
    }

    /// A connection for reading, outside any transaction.
    pub(super) async fn reader(&self) -> Result<Tx, Fault> {
        Ok(Tx::new(self.get().await?, Arc::clone(&self.line), true))
    }
}

/// What a COMMIT of a transaction in which a statement failed comes to.
pub(super) fn ignored_failure() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "the transaction was rolled back: a statement in it had failed and the error was passed over; return the error, \
         or run such a statement under a savepoint",
    )
}

fn indeterminate(source: Option<Error>) -> Fault {
    let error = Error::new(
        ErrorKind::Indeterminate,
        "the answer to a commit was lost and could not be found out: it may or may not have happened",
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
