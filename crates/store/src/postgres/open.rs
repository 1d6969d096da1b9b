//! Opening a store: connections, the schema, and the tasks beside the verbs.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use tokio::sync::broadcast;

use crate::error::Result;
use crate::list_gate::ListGate;
use crate::postgres::engine::claim_sizes::ClaimSizes;
use crate::postgres::engine::connection::{self, Database};
use crate::postgres::engine::contention::Contention;
use crate::postgres::engine::errors::{at_open, specific};
use crate::postgres::engine::headroom::Headroom;
use crate::postgres::engine::lane_use::LaneUse;
use crate::postgres::engine::marks::Marks;
use crate::postgres::engine::options::PostgresOptions;
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::engine::tag_marks::TagMarks;
use crate::postgres::engine::turns::Turns;
use crate::postgres::engine::{health, migrate, tls};
use crate::postgres::statements::Sql;
use crate::postgres::wakeups;
use crate::values::{Exhausted, KeyChanges};

impl PostgresStore {
    /// Connects, checks or migrates the schema, and starts listening for wake-ups.
    ///
    /// # Errors
    /// `Invalid` for a bad URL or login, `Unavailable` when the database cannot be reached or is read-only, `Schema`
    /// when this program cannot run on its schema.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Self> {
        options.store.check()?;
        let target = connection::target(url, &options)?;
        let (mut client, driver) = target.connect_driven().await.map_err(at_open)?;
        connection::refuse_shared_sessions(&client, &target).await.map_err(specific)?;
        migrate::migrate(&mut client, &options).await.map_err(specific)?;
        drop(client);
        driver.abort();
        let channel = options.store.namespace.clone();
        let database = Database::new(connection::pool(target.clone(), &options)?, target.clone(), &options);
        let one = PostgresOptions { max_connections: 1, ..options.clone() };
        let heart = Database::new(connection::pool(target.clone(), &one)?, target.clone(), &one);
        // Lists use at most half of the connections.
        let lists = ListGate::new(options.store.max_lists.min(options.max_connections / 2));
        let inner = Arc::new_cyclic(|me| Inner {
            me: me.clone(),
            database,
            heart,
            went_back: Mutex::default(),
            sql: Sql::new(&options.schema()),
            options,
            catalog: RwLock::default(),
            reads_begun: AtomicU64::new(0),
            last_read: tokio::sync::Mutex::default(),
            marks: Marks::default(),
            lane_use: LaneUse::default(),
            turns: Turns::default(),
            tag_marks: TagMarks::default(),
            headroom: Headroom::default(),
            contention: Contention::new(),
            exhausted: Exhausted::default(),
            outbox: Arc::default(),
            wakes: broadcast::channel(64).0,
            partitions_at: Mutex::default(),
            key_changes: KeyChanges::default(),
            claim_sizes: ClaimSizes::default(),
            sweep: Mutex::default(),
            lists,
        });
        inner.reload_catalog().await?;
        if inner.options.store.migrate {
            inner.add_partitions().await?;
        }
        let probe = tokio::spawn(health::run(Arc::clone(&inner.database.line.health), target.clone()));
        let listener = tokio::spawn(wakeups::run(Arc::downgrade(&inner), target, channel));
        Ok(Self { inner, tasks: Mutex::new(vec![listener, probe]) })
    }

    /// Connects as a store would, with the URL's TLS parameters, for programs that inspect the database directly. The
    /// returned task drives the connection until the client is dropped.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn connect(url: &str) -> Result<(tokio_postgres::Client, tokio::task::JoinHandle<()>)> {
        let mut target = tls::Target::read(url)?;
        if target.config.get_connect_timeout().is_none() {
            target.config.connect_timeout(PostgresOptions::default().connect_timeout);
        }
        target.connect_driven().await.map_err(at_open)
    }
}
