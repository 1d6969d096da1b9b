//! Projections on both databases: folds, versions, failures, readers, waiting, SQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::projection::{Documents, FormBuilder, ProjectionState, Sql};
use tidegate::{EntryId, ErrorKind, EventLogProjectionBuilder, EventQueue, NewEvent, Projection, RetryPolicy};
use tokio::sync::oneshot;

use crate::databases::on_each_database;
use crate::support::{eventually, soon};

#[derive(Debug, Serialize, Deserialize, Clone)]
pub(crate) struct Placed {
    pub(crate) customer: String,
    pub(crate) amount: i64,
}

#[derive(Debug, Serialize, Deserialize, Clone, PartialEq, Default)]
struct Total {
    orders: u64,
    amount: i64,
}

fn placed(customer: &str, amount: i64) -> NewEvent {
    let order = Placed { customer: customer.into(), amount };
    NewEvent::new("order.placed", serde_json::to_string(&order).unwrap())
}

/// Publishes an event and completes it.
async fn logged(queue: &EventQueue, event: NewEvent) -> EntryId {
    let id = queue.publish(event).await.unwrap().id;
    let none: [&str; 0] = [];
    queue.finalize(id, none).await.unwrap();
    id
}

fn base(version: i32) -> EventLogProjectionBuilder {
    EventLogProjectionBuilder::new("totals").version(version).retry(RetryPolicy::fixed(Duration::from_millis(5)))
}

fn totals(version: i32) -> FormBuilder<Documents<Total>> {
    base(version)
        .batch_size(3)
        .documents::<Total>()
        .on::<Placed, _, _>(
            "order.placed",
            |event| event.data.customer.clone(),
            |total, event| {
                let total = total.unwrap_or_default();
                Some(Total { orders: total.orders + 1, amount: total.amount + event.data.amount })
            },
        )
        .on::<String, _, _>("customer.gone", |event| event.data.clone(), |_, _| None)
}

fn gone(customer: &str) -> NewEvent {
    NewEvent::new("customer.gone", serde_json::to_string(customer).unwrap())
}

/// A projection that runs in the background.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<tidegate::Result<()>>,
}

fn run<S: Serialize + serde::de::DeserializeOwned + Send + Sync + 'static>(
    projection: &Projection<Documents<S>>,
) -> Running {
    let (stop, stopped) = oneshot::channel();
    let projection = projection.clone();
    let task = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        projection.run(stopped).await
    });
    Running { stop: Some(stop), task }
}

impl Running {
    async fn stop(mut self) {
        drop(self.stop.take());
        soon("the end of the loop", self.task).await.unwrap().unwrap();
    }
}

on_each_database! {
    async fn events_become_documents(place) {
        let queue = place.open().await;
        let totals = totals(1).open(&queue).await.unwrap();
        for n in 0..10 {
            logged(&queue, placed(["ann", "bob"][n % 2], 10)).await;
        }
        logged(&queue, NewEvent::new("of.no.interest", "not JSON")).await;
        logged(&queue, gone("bob")).await;
        let failed = queue.publish(placed("ann", 1000)).await.unwrap();
        queue.finalize(failed.id, ["went wrong"]).await.unwrap();
        totals.catch_up().await.unwrap();
        assert_eq!(totals.get("ann").await.unwrap(), Some(Total { orders: 5, amount: 50 }));
        assert_eq!(totals.get("bob").await.unwrap(), None);
        logged(&queue, placed("bob", 1)).await;
        logged(&queue, placed("carl", 2)).await;
        totals.catch_up().await.unwrap();
        let all = totals.list("", None, 10).await.unwrap();
        let keys: Vec<&str> = all.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["ann", "bob", "carl"]);
        assert_eq!(all[1].1, Total { orders: 1, amount: 1 }, "a document that was removed starts over");
        assert_eq!(totals.list("", Some("ann"), 1).await.unwrap()[0].0, "bob");
        let status = totals.status().await.unwrap();
        assert_eq!((status.events, status.state, status.reader), (13, ProjectionState::Active, None));
        assert_eq!(totals.lag().await.unwrap().rows, 0);
        queue.close().await;
    }

    async fn a_running_projection_is_woken_and_waited_for(place) {
        let queue = place.open().await;
        let totals = totals(1).open(&queue).await.unwrap();
        let running = run(&totals);
        for n in 1..=20 {
            let entry = logged(&queue, placed("ann", 1)).await;
            soon("it is passed", totals.wait_for(entry, Duration::MAX)).await.unwrap();
            assert_eq!(totals.get("ann").await.unwrap().unwrap().orders, n, "what was waited for is there");
        }
        let live = queue.publish(placed("ann", 1)).await.unwrap().id;
        let error = totals.wait_for(live, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("has not ended"), "{error}");
        let unknown = EntryId::new(999_999).unwrap();
        assert_eq!(totals.wait_for(unknown, Duration::from_millis(1)).await.unwrap_err().kind(), ErrorKind::NotFound);
        running.stop().await;
        assert_eq!(totals.status().await.unwrap().reader, None, "the lease is given back");
        queue.close().await;
    }

    async fn a_rebuild_equals_the_incremental_result(place) {
        let queue = place.open().await;
        let old = totals(1).open(&queue).await.unwrap();
        for n in 0..60 {
            let customer = format!("c{}", n % 7);
            let event = if n % 11 == 10 { gone(&customer) } else { placed(&customer, n) };
            logged(&queue, event).await;
            if n % 5 == 0 {
                old.catch_up().await.unwrap();
            }
        }
        old.catch_up().await.unwrap();
        let incremental = old.list("", None, 100).await.unwrap();
        assert!(incremental.len() > 3);

        let new = totals(2).open(&queue).await.unwrap();
        assert_eq!(new.status().await.unwrap().state, ProjectionState::Building);
        assert_eq!(new.list("", None, 100).await.unwrap(), incremental, "the old version answers meanwhile");
        new.catch_up().await.unwrap();
        assert_eq!(new.status().await.unwrap().state, ProjectionState::Active);
        assert_eq!(new.list("", None, 100).await.unwrap(), incremental);
        assert_eq!(old.get("c1").await.unwrap(), new.get("c1").await.unwrap(), "old handles read the new version");
        eventually("the old version swept", || async { queue.projections().await.unwrap().len() == 1 }).await;
        old.catch_up().await.unwrap();
        assert_eq!(old.status().await.unwrap().state, ProjectionState::Retired, "an old program changes nothing");
        assert_eq!(queue.projections().await.unwrap().len(), 1);
        queue.close().await;
    }

    async fn a_failing_event_stops_it_until_it_is_mended(place) {
        let queue = place.open().await;
        let mended = Arc::new(AtomicBool::new(false));
        let tries = Arc::new(AtomicUsize::new(0));
        let fold = {
            let (mended, tries) = (Arc::clone(&mended), Arc::clone(&tries));
            move |total: Option<Total>, event: tidegate::LoggedEvent<Placed>| {
                if event.data.amount < 0 {
                    tries.fetch_add(1, Ordering::SeqCst);
                    if !mended.load(Ordering::SeqCst) {
                        assert!(event.data.amount != -2, "a panic is a failure too");
                        return Err("amounts are not negative");
                    }
                }
                let total = total.unwrap_or_default();
                Ok(Some(Total { orders: total.orders + 1, amount: total.amount + event.data.amount }))
            }
        };
        let key = |event: &tidegate::LoggedEvent<Placed>| event.data.customer.clone();
        let totals =
            base(1).documents::<Total>().on("order.placed", key, fold).open(&queue).await.unwrap();
        logged(&queue, placed("ann", 1)).await;
        logged(&queue, placed("ann", 2)).await;
        let bad = logged(&queue, placed("ann", -1)).await;
        let after = logged(&queue, placed("bob", 3)).await;
        let running = run(&totals);
        eventually("two tries", || async { tries.load(Ordering::SeqCst) > 1 }).await;
        eventually("shown", || async { totals.status().await.unwrap().failure.is_some_and(|f| f.failures > 1) }).await;
        let status = totals.status().await.unwrap();
        let failure = status.failure.unwrap();
        assert_eq!((failure.entry, status.events), (Some(bad), 2), "what came before is included");
        assert!(failure.error.contains("amounts are not negative"), "{failure:?}");
        assert_eq!(totals.get("ann").await.unwrap(), Some(Total { orders: 2, amount: 3 }));
        assert_eq!(totals.get("bob").await.unwrap(), None, "nothing after it");
        let health = queue.health().await;
        assert!(!health.is_good());
        assert_eq!(health.stopped_projections[0].failure.as_ref().unwrap().entry, Some(bad));
        let error = totals.wait_for(after, Duration::from_millis(20)).await.unwrap_err();
        assert!(error.to_string().contains("is stopped"), "{error}");

        mended.store(true, Ordering::SeqCst);
        totals.wait_for(after, crate::support::PATIENCE).await.unwrap();
        assert_eq!(totals.get("ann").await.unwrap(), Some(Total { orders: 3, amount: 2 }));
        assert_eq!(totals.status().await.unwrap().failure, None);
        eventually("good health", || async { queue.health().await.is_good() }).await;
        running.stop().await;

        mended.store(false, Ordering::SeqCst);
        logged(&queue, placed("ann", -2)).await;
        let error = totals.catch_up().await.unwrap_err();
        assert!(error.to_string().contains("panic"), "{error}");
        mended.store(true, Ordering::SeqCst);
        totals.catch_up().await.unwrap();
        logged(&queue, NewEvent::new("order.placed", "{\"customer\": 7}")).await;
        let error = totals.catch_up().await.unwrap_err();
        assert!(error.to_string().contains("payload cannot be read"), "{error}");
        assert_eq!(totals.get("ann").await.unwrap(), Some(Total { orders: 4, amount: 0 }));
        queue.close().await;
    }

    async fn one_of_two_reads_and_the_other_takes_over(place) {
        let (one, two) = (place.open().await, place.open().await);
        // Long enough that one late heartbeat does not lose it.
        let lease = Duration::from_secs(3);
        let open = async |queue: &EventQueue| {
            let base = base(1).reader_lease(lease).poll_interval(Duration::from_millis(20));
            let fold = |count: Option<u64>, _: tidegate::LoggedEvent<Placed>| Some(count.unwrap_or(0) + 1);
            base.documents::<u64>().on("order.placed", |_| "all".to_owned(), fold).open(queue).await.unwrap()
        };
        let (first, second) = (open(&one).await, open(&two).await);
        let running = (run(&first), run(&second));
        let reader = async || first.status().await.unwrap().reader;
        eventually("one of them reads", || async { reader().await.is_some() }).await;
        let (at_first, leased_until) = reader().await.unwrap();
        for _ in 0..20 {
            let entry = logged(&one, placed("a", 1)).await;
            second.wait_for(entry, crate::support::PATIENCE).await.unwrap();
        }
        eventually("its lease is kept for longer than it lasts", || async {
            let (name, until) = reader().await.expect("one of them reads");
            assert_eq!(name, at_first, "one of them all the time");
            until.duration_since(leased_until) > lease.try_into().unwrap()
        }).await;
        running.0.stop().await;
        running.1.stop().await;
        assert_eq!(second.get("all").await.unwrap(), Some(20));

        let log = one.store();
        let dead = log.take_reader(first.id(), "dead", lease).await.unwrap().unwrap();
        let running = run(&second);
        let entry = logged(&one, placed("a", 1)).await;
        let early = second.wait_for(entry, lease / 6).await;
        assert_eq!(early.unwrap_err().kind(), ErrorKind::Busy, "the dead reader's lease holds");
        second.wait_for(entry, crate::support::PATIENCE).await.unwrap();
        let late = log.keep_reader(first.id(), dead.token, Duration::from_secs(1)).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(second.get("all").await.unwrap(), Some(21));
        running.stop().await;
        one.close().await;
        two.close().await;
    }

    async fn mistakes_are_told(place) {
        let queue = place.open().await;
        let none = EventLogProjectionBuilder::new("p").documents::<u64>().open(&queue).await;
        assert!(none.unwrap_err().to_string().contains("no handler"));
        let twice = totals(1).on::<Placed, _, _>("order.placed", |_| None, |state, _| state).open(&queue).await;
        assert!(twice.unwrap_err().to_string().contains("two handlers"));
        assert_eq!(totals(0).open(&queue).await.unwrap_err().kind(), ErrorKind::Invalid);
        queue.close().await;
    }

    async fn sql_writes_with_the_position(place) {
        let queue = place.open().await;
        let first = sql(1).open(&queue).await.unwrap();
        for n in 0..10 {
            logged(&queue, placed(["ann", "bob"][n % 2], 10)).await;
        }
        first.catch_up().await.unwrap();
        assert_eq!(sums(&queue, "sums_1").await, [("ann".to_owned(), 50), ("bob".to_owned(), 50)]);

        logged(&queue, placed("ann", 5)).await;
        let bad = logged(&queue, placed("broken", 1)).await;
        logged(&queue, placed("ann", 7)).await;
        let error = first.catch_up().await.unwrap_err();
        assert!(error.to_string().contains("no such customer"), "{error}");
        assert_eq!(first.status().await.unwrap().failure.unwrap().entry, Some(bad));
        assert_eq!(sums(&queue, "sums_1").await, [("ann".to_owned(), 55), ("bob".to_owned(), 50)]);

        let second = sql(2).open(&queue).await.unwrap();
        second.catch_up().await.unwrap();
        let expected = [("ann".to_owned(), 62), ("bob".to_owned(), 50), ("broken".to_owned(), 1)];
        assert_eq!(sums(&queue, "sums").await, expected, "the hook pointed the view at the new table");
        assert!(queue.in_transaction(|tx| Box::pin(tx.query("SELECT * FROM sums_1", &[]))).await.is_err(), "dropped");
        queue.close().await;
    }
}

/// Version 1 refuses the customer `broken`; later ones do not.
fn sql(version: i32) -> FormBuilder<Sql> {
    base(version)
        .sql()
        .setup(|tx, version| {
            Box::pin(async move {
                let table =
                    format!("CREATE TABLE IF NOT EXISTS sums_{version} (customer TEXT PRIMARY KEY, amount BIGINT)");
                tx.execute(&table, &[]).await?;
                Ok(())
            })
        })
        .on::<Placed>("order.placed", move |tx, event| {
            Box::pin(async move {
                let (customer, amount) = (event.data.customer, event.data.amount);
                let upsert = format!(
                    "INSERT INTO sums_{version} AS s (customer, amount) VALUES ($1, $2)
                     ON CONFLICT (customer) DO UPDATE SET amount = s.amount + excluded.amount"
                );
                tx.execute(&upsert, &[customer.as_str().into(), amount.into()]).await?;
                if version == 1 && customer == "broken" {
                    return Err("there is no such customer".into());
                }
                Ok(())
            })
        })
        .switch(|tx, version| {
            Box::pin(async move {
                tx.execute("DROP VIEW IF EXISTS sums", &[]).await?;
                tx.execute(&format!("CREATE VIEW sums AS SELECT * FROM sums_{version}"), &[]).await?;
                tx.execute(&format!("DROP TABLE IF EXISTS sums_{}", version - 1), &[]).await?;
                Ok(())
            })
        })
}

async fn sums(queue: &EventQueue, table: &'static str) -> Vec<(String, i64)> {
    let rows = queue.in_transaction(move |tx| {
        Box::pin(async move { tx.query(&format!("SELECT customer, amount FROM {table} ORDER BY customer"), &[]).await })
    });
    let read = |row: &Vec<tidegate::SqlValue>| (row[0].as_str().unwrap().to_owned(), row[1].as_i64().unwrap());
    rows.await.unwrap().iter().map(read).collect()
}
