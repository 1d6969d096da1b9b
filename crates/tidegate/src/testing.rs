//! Support for testing code that publishes and handles events.
//!
//! [`TestQueue`] is a real queue on the real SQLite store, in memory: nothing is written to disk, each test has its
//! own, and it is gone when it is dropped. Time advances only when the test moves it. Apart from time and durability it
//! behaves as in production.
//!
//! ```
//! use std::time::Duration;
//! use serde::Deserialize;
//! use tidegate::testing::TestQueue;
//! use tidegate::{EventBus, NewEvent, Router};
//!
//! #[derive(Debug, Deserialize, PartialEq)]
//! struct Mail {
//!     to: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tidegate::Result<()> {
//! let queue = TestQueue::new().await;
//! let bus = EventBus::new(queue.handle())?;
//! let router = Router::new().on("user.joined", {
//!     let queue = queue.handle();
//!     move |name: String| {
//!         let queue = queue.clone();
//!         async move {
//!             let mail = NewEvent::new("mail.wanted", format!(r#"{{"to": "{name}"}}"#));
//!             queue.publish(mail.delay(Duration::from_secs(3600))).await.map(drop)
//!         }
//!     }
//! });
//! let worker = bus.worker(router)?;
//!
//! bus.publish(NewEvent::new("user.joined", r#""ada""#)).await?;
//! assert_eq!(worker.drain().await?, 1); // works until idle
//! assert_eq!(queue.assert_published::<Mail>("mail.wanted").await, [Mail { to: "ada".into() }]);
//! queue.assert_not_published("mail.sent").await;
//!
//! assert!(queue.poll().await?.is_none()); // the mail waits for its hour
//! queue.advance(Duration::from_secs(3600));
//! assert!(queue.poll().await?.is_some());
//! # Ok(()) }
//! ```

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tidegate_core::{EntryId, IdSpace, Timestamp};
use tidegate_store::{Clock, EntryView, ManualClock};

use crate::queue::EventQueue;
use crate::queue::opening::Builder;

/// 2030-01-01T00:00:00Z, where every test's clock starts.
const START: i64 = 1_893_456_000;
/// Entries read at once.
const PAGE: i64 = 500;
/// After this many pages without any entry the scan stops.
const MAX_EMPTY_PAGES: usize = 20;

/// A queue in memory with a clock that the test moves. Dereferences to [`EventQueue`].
#[derive(Debug)]
pub struct TestQueue {
    queue: EventQueue,
    clock: ManualClock,
    ids: IdSpace,
    path: PathBuf,
}

impl Deref for TestQueue {
    type Target = EventQueue;

    fn deref(&self) -> &EventQueue {
        &self.queue
    }
}

impl TestQueue {
    /// A new, empty queue with default settings, at 2030-01-01T00:00:00Z.
    ///
    /// # Panics
    /// When the queue cannot be opened.
    pub async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    /// A new, empty queue with other settings. The clock cannot be changed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use tidegate::testing::TestQueue;
    /// let queue = TestQueue::with(|builder| builder.payload_limit(100).worker("me")).await;
    /// # queue.close().await;
    /// # }
    /// ```
    ///
    /// # Panics
    /// When a setting is not valid.
    pub async fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = ManualClock::at(Timestamp::from_second(START).unwrap_or_default());
        let mut ids = IdSpace::default();
        let builder = change(EventQueue::builder()).clock(Clock::Manual(clock.clone()));
        let builder = builder.with(|options| ids = options.store.ids);
        match builder.open_in_memory().await {
            Ok((queue, path)) => Self { queue, clock, ids, path },
            Err(error) => panic!("the test queue cannot be opened: {error}"),
        }
    }

    /// A handle of the queue for the code under test.
    #[must_use]
    pub fn handle(&self) -> EventQueue {
        self.queue.clone()
    }

    /// The clock of the queue, which decides due moments and leases. Clones are the same clock.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    /// The time of the test's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Moves the clock forward and wakes all waiters.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.queue.shared().wake_ups.wake_all();
    }

    /// A new connection to the same database, for the application's tables and for
    /// [`publish_in`](EventQueue::publish_in).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::NewEvent;
    /// use tidegate::testing::TestQueue;
    /// let queue = TestQueue::new().await;
    /// let mut connection = queue.connect()?;
    /// connection.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")?;
    /// let mut tx = connection.transaction()?;
    /// tx.execute("INSERT INTO orders VALUES (1)", [])?;
    /// queue.publish_in(&mut tx, NewEvent::new("order.created", "1")).await?;
    /// tx.rollback()?;
    /// queue.assert_not_published("order.created").await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When the queue was closed, or any other error of SQLite.
    pub fn connect(&self) -> rusqlite::Result<rusqlite::Connection> {
        let flags = rusqlite::OpenFlags::default();
        let connection = rusqlite::Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        Ok(connection)
    }

    /// All entries of all queues, live and ended, by number.
    ///
    /// # Panics
    /// When the queue was closed.
    pub async fn published(&self) -> Vec<EntryView> {
        let store = self.queue.store();
        let count = match store.census().await {
            Ok(census) => census.events,
            Err(error) => panic!("published entries cannot be read: {error}"),
        };
        let mut all = Vec::new();
        let mut next = self.ids.offset;
        let mut empty_pages = 0;
        while (all.len() as u64) < count && empty_pages < MAX_EMPTY_PAGES {
            let before = all.len();
            let page = (0..PAGE).filter_map(|step| EntryId::new(next + step * self.ids.step).ok());
            match store.entries(page.collect()).await {
                Ok(views) => all.extend(views.into_iter().flatten()),
                Err(error) => panic!("published entries cannot be read: {error}"),
            }
            empty_pages = if all.len() == before { empty_pages + 1 } else { 0 };
            next += PAGE * self.ids.step;
        }
        all
    }

    /// Returns the payloads of all events of a type, in order.
    ///
    /// # Panics
    /// When there is none, or a payload cannot be deserialized as `T`; the message shows what was published instead.
    pub async fn assert_published<T: DeserializeOwned>(&self, event_type: &str) -> Vec<T> {
        let published = self.published().await;
        let payloads = published.iter().filter(|view| view.fact.event_type == event_type).map(|view| {
            let payload = &view.fact.payload;
            serde_json::from_slice(payload).unwrap_or_else(|error| {
                panic!(
                    "entry {} of type {event_type:?} is not a {}: {error}; its payload is {}",
                    view.id,
                    std::any::type_name::<T>(),
                    String::from_utf8_lossy(payload)
                )
            })
        });
        let payloads: Vec<T> = payloads.collect();
        assert!(!payloads.is_empty(), "no {event_type:?} was published, but {}", summary(&published));
        payloads
    }

    /// Asserts that no event of a type was published.
    ///
    /// # Panics
    /// When one was; the message shows the payloads.
    pub async fn assert_not_published(&self, event_type: &str) {
        let published = self.published().await;
        let payloads: Vec<_> = published
            .iter()
            .filter(|view| view.fact.event_type == event_type)
            .map(|view| String::from_utf8_lossy(&view.fact.payload))
            .collect();
        assert!(payloads.is_empty(), "{event_type:?} was published {} times: {}", payloads.len(), payloads.join(", "));
    }
}

/// The number of entries by event type, as text.
fn summary(published: &[EntryView]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for view in published {
        *counts.entry(&view.fact.event_type).or_default() += 1;
    }
    if counts.is_empty() {
        return "nothing at all".into();
    }
    let parts: Vec<String> = counts.iter().map(|(event_type, count)| format!("{count} × {event_type:?}")).collect();
    parts.join(", ")
}
