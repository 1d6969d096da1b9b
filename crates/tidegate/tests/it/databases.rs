//! A fresh database for each test, on SQLite and on PostgreSQL.

use std::time::Duration;

use tidegate::{Builder, EventQueue};

/// The database of one test; it is removed when this is dropped.
pub(crate) enum Place {
    Sqlite(tempfile::TempDir),
    Postgres(String),
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(crate) fn postgres() -> Self {
        Self::Postgres(tidegate_testing::fresh_database())
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("queue.db").display()),
            Self::Postgres(url) => url.clone(),
        }
    }

    /// Opens with a poll interval so long that waiters only see what wake-ups tell them of.
    pub(crate) async fn open(&self) -> EventQueue {
        self.open_with(|builder| builder).await
    }

    pub(crate) async fn open_with(&self, change: impl FnOnce(Builder) -> Builder) -> EventQueue {
        let builder = EventQueue::builder().poll_interval(Duration::from_secs(3600));
        change(builder).open(self.address()).await.unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Postgres(url) = self {
            let url = url.clone();
            // Dropping a database blocks, and this may be a thread of a runtime.
            let dropped = std::thread::spawn(move || tidegate_testing::drop_database(&url)).join();
            if !std::thread::panicking() {
                dropped.unwrap().unwrap();
            }
        }
    }
}

/// Writes each test once and runs it on both databases.
macro_rules! on_each_database {
    ($(async fn $name:ident($place:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn case($place: &crate::databases::Place) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                case(&crate::databases::Place::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                case(&crate::databases::Place::postgres()).await;
            }
        }
    )*};
}

pub(crate) use on_each_database;
