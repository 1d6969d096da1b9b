//! Opening a store: connections, the schema, and the tasks beside the verbs.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::list_gate::ListGate;
use crate::outdated::Outdated;
use crate::postgres::engine::connection::{self, Database};
use crate::postgres::engine::errors::{at_open, specific};
use crate::postgres::engine::options::PostgresOptions;
use crate::postgres::engine::store::{Inner, Opened, PostgresStore, Shared};
use crate::postgres::engine::turns::Turns;
use crate::postgres::engine::{health, migrate, tls};
use crate::postgres::statements::Sql;
use crate::postgres::wakeups;
use crate::values::{Family, KeyChanges};

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
        let outdated = Arc::new(Outdated::new(options.schema()));
        let pool = connection::pool(target.clone(), &options)?;
        let database = Database::new(pool, target.clone(), &options, Arc::clone(&outdated));
        let one = PostgresOptions { max_connections: 1, ..options.clone() };
        let heart = Database::new(connection::pool(target.clone(), &one)?, target.clone(), &one, outdated);
        // Lists use at most half of the connections.
        let lists = ListGate::new(options.store.max_lists.min(options.max_connections / 2));
        let ns = options.schema();
        let shared = Arc::new(Shared {
            database,
            heart,
            went_back: Mutex::default(),
            statements: Family::ALL.map(|family| Arc::new(Sql::new(&ns, family))),
            options,
            turns: Turns::default(),
            outbox: Arc::default(),
            partitions_at: Mutex::default(),
            key_changes: KeyChanges::default(),
            lists,
        });
        let families = Family::ALL.map(|family| Inner::new(family, &shared));
        for inner in &families {
            inner.reload_catalog().await?;
        }
        let inner = Arc::clone(&families[Family::Entries as usize]);
        if shared.options.store.migrate {
            inner.add_partitions().await?;
        }
        let probe = tokio::spawn(health::run(Arc::clone(&shared.database.line.health), target.clone()));
        let opened = Arc::new(Opened { families, tasks: Mutex::new(vec![probe]) });
        let outbox = Arc::clone(&shared.outbox);
        let listener = tokio::spawn(wakeups::run(Arc::downgrade(&opened), outbox, target, channel));
        opened.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        Ok(Self { inner, opened })
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
