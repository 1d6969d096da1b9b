//! Failures that stop a projection are shown, and a slow batch does not lose the reader's lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::projection::{ProjectionForm, ProjectionState};
use tidegate::{EntryId, EventLogProjectionBuilder, EventQueue, NewEvent, Projection, RetryPolicy};
use tokio::sync::oneshot;

use crate::databases::{Place, on_each_database};
use crate::support::{eventually, soon};

async fn logged(queue: &EventQueue, number: u32) -> EntryId {
    let id = queue.publish(NewEvent::new("counted", number.to_string())).await.unwrap().id;
    queue.finalize(id, [""; 0]).await.unwrap();
    id
}

fn base(version: i32) -> EventLogProjectionBuilder {
    EventLogProjectionBuilder::new("counts").version(version).retry(RetryPolicy::fixed(Duration::from_millis(5)))
}

/// A projection that runs in the background until it is stopped.
struct Running(Option<oneshot::Sender<()>>, tokio::task::JoinHandle<tidegate::Result<()>>);

fn run<F: ProjectionForm>(projection: &Projection<F>) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let projection = projection.clone();
    let task = tokio::spawn(async move { projection.run(async { drop(stopped.await) }).await });
    Running(Some(stop), task)
}

impl Running {
    async fn stop(mut self) {
        drop(self.0.take());
        soon("the end of the loop", self.1).await.unwrap().unwrap();
    }
}

/// Waits until a failure of at least two tries is shown, and returns it.
async fn shown<F: ProjectionForm>(
    queue: &EventQueue,
    projection: &Projection<F>,
) -> tidegate::projection::ProjectionFailure {
    eventually("it is shown", || async {
        projection.status().await.unwrap().failure.is_some_and(|failure| failure.failures > 1)
    })
    .await;
    let health = queue.health().await;
    assert!(!health.is_good());
    assert_eq!(health.stopped_projections[0].id, *projection.id());
    projection.status().await.unwrap().failure.unwrap()
}

/// Statements that make the database refuse documents, and accept them again.
fn refusing(place: &Place) -> (&'static [&'static str], &'static [&'static str]) {
    match place {
        Place::Sqlite(_) => (
            &["CREATE TRIGGER refuse BEFORE INSERT ON tidegate_projection_documents \
               BEGIN SELECT RAISE(ABORT, 'no documents today'); END"],
            &["DROP TRIGGER refuse"],
        ),
        Place::Postgres(_) => (
            &[
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql \
                 AS $$ BEGIN RAISE EXCEPTION 'no documents today'; END $$",
                "CREATE TRIGGER refuse BEFORE INSERT ON tidegate.projection_documents EXECUTE FUNCTION refuse()",
            ],
            &["DROP TRIGGER refuse ON tidegate.projection_documents"],
        ),
    }
}

async fn execute(queue: &EventQueue, statements: &'static [&'static str]) {
    let done = queue.in_transaction(|tx| {
        Box::pin(async move {
            for statement in statements {
                tx.execute(statement, &[]).await?;
            }
            Ok(())
        })
    });
    done.await.unwrap();
}

/// Whether something is broken, until it is mended.
#[derive(Clone, Default)]
struct Broken(Arc<AtomicBool>);

impl Broken {
    fn is_mended(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn mend(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

on_each_database! {
    async fn a_panic_before_a_handlers_future_is_shown(place) {
        let queue = place.open().await;
        let broken = Broken::default();
        let told = broken.clone();
        let projection = base(1)
            .sql()
            .on::<u32>("counted", move |_, event| {
                assert!(event.data != 2 || told.is_mended(), "two is too much");
                Box::pin(async { Ok(()) })
            })
            .open(&queue)
            .await
            .unwrap();
        logged(&queue, 1).await;
        let bad = logged(&queue, 2).await;
        let running = run(&projection);
        let failure = shown(&queue, &projection).await;
        assert_eq!(failure.entry, Some(bad));
        assert!(failure.error.contains("panicked") && failure.error.contains("two is too much"), "{failure:?}");
        assert_eq!(projection.status().await.unwrap().events, 1, "what came before is included");
        broken.mend();
        projection.wait_for(bad, crate::support::PATIENCE).await.unwrap();
        assert_eq!(projection.status().await.unwrap().failure, None);
        eventually("good health", || async { queue.health().await.is_good() }).await;
        running.stop().await;
        queue.close().await;
    }

    async fn events_whose_documents_were_refused_are_folded_again_from_what_is_stored(place) {
        let queue = place.open().await;
        let sum = |sum: Option<u64>, event: tidegate::LoggedEvent<u32>| Some(sum.unwrap_or(0) + u64::from(event.data));
        let projection =
            base(1).documents::<u64>().on("counted", |_| "all".to_owned(), sum).open(&queue).await.unwrap();
        let (refuse, accept) = refusing(place);
        execute(&queue, refuse).await;
        let last = logged(&queue, 1).await;
        let running = run(&projection);
        let failure = shown(&queue, &projection).await;
        assert!(failure.error.contains("no documents today"), "{failure:?}");
        execute(&queue, accept).await;
        projection.wait_for(last, crate::support::PATIENCE).await.unwrap();
        assert_eq!(projection.get("all").await.unwrap(), Some(1), "each event counts once");
        running.stop().await;
        queue.close().await;
    }

    async fn a_setup_that_fails_is_shown_until_it_succeeds(place) {
        let queue = place.open().await;
        for (version, panics) in [(1, false), (2, true)] {
            let broken = Broken::default();
            let told = broken.clone();
            let projection = base(version)
                .sql()
                .setup(move |tx, _| {
                    assert!(!panics || told.is_mended(), "no table");
                    let told = told.clone();
                    Box::pin(async move {
                        let sql = if told.is_mended() { "SELECT 1" } else { "SELECT 1 FROM no_table" };
                        tx.query(sql, &[]).await?;
                        Ok(())
                    })
                })
                .on::<u32>("counted", |_, _| Box::pin(async { Ok(()) }))
                .open(&queue)
                .await
                .unwrap();
            let running = run(&projection);
            let failure = shown(&queue, &projection).await;
            assert_eq!(failure.entry, None, "it is not an event that fails");
            assert!(failure.error.contains("setup"), "{failure:?}");
            assert!(failure.error.replace('_', " ").contains("no table"), "{failure:?}");
            let error = projection.wait_for(logged(&queue, 1).await, Duration::from_millis(20)).await.unwrap_err();
            assert!(version > 1 || error.to_string().contains("is stopped"), "{error}");
            broken.mend();
            eventually("good health", || async { queue.health().await.is_good() }).await;
            eventually("it reads", || async { projection.status().await.unwrap().events > 0 }).await;
            running.stop().await;
        }
        queue.close().await;
    }

    async fn a_switch_that_fails_is_shown_until_it_succeeds(place) {
        let queue = place.open().await;
        let plain = |version| base(version).sql().on::<u32>("counted", |_, _| Box::pin(async { Ok(()) }));
        plain(1).open(&queue).await.unwrap().catch_up().await.unwrap();
        let broken = Broken::default();
        let told = broken.clone();
        let second = plain(2)
            .switch(move |_, _| {
                let told = told.clone();
                Box::pin(async move { if told.is_mended() { Ok(()) } else { Err("the view is locked".into()) } })
            })
            .open(&queue)
            .await
            .unwrap();
        let running = run(&second);
        let failure = shown(&queue, &second).await;
        assert_eq!(failure.entry, None);
        assert!(failure.error.contains("switch") && failure.error.contains("the view is locked"), "{failure:?}");
        assert_eq!(second.status().await.unwrap().state, ProjectionState::Building);
        broken.mend();
        eventually("the new version", || async { second.status().await.unwrap().state == ProjectionState::Active }).await;
        assert_eq!(second.status().await.unwrap().failure, None);
        running.stop().await;
        queue.close().await;
    }

    async fn a_batch_longer_than_the_lease_is_taken_in_once(place) {
        let (one, two) = (place.open().await, place.open().await);
        // Long enough that one late heartbeat does not lose it.
        let lease = Duration::from_secs(3);
        let runs = Arc::new(AtomicUsize::new(0));
        let open = async |queue: &EventQueue| {
            let runs = Arc::clone(&runs);
            base(1)
                .reader_lease(lease)
                .poll_interval(Duration::from_millis(20))
                .sql()
                .on::<u32>("counted", move |_, _| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    Box::pin(async move {
                        // Longer than the lease.
                        tokio::time::sleep(lease + lease / 2).await;
                        Ok(())
                    })
                })
                .open(queue)
                .await
                .unwrap()
        };
        let (first, second) = (open(&one).await, open(&two).await);
        let entry = logged(&one, 1).await;
        let running = (run(&first), run(&second));
        second.wait_for(entry, crate::support::PATIENCE).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1, "no other reader began it");
        assert_eq!(first.status().await.unwrap().events, 1);
        running.0.stop().await;
        running.1.stop().await;
        one.close().await;
        two.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fold_longer_than_the_lease_is_folded_once() {
    let place = crate::databases::Place::sqlite();
    let (one, two) = (place.open().await, place.open().await);
    // Long enough that one late heartbeat does not lose it.
    let lease = Duration::from_secs(3);
    let runs = Arc::new(AtomicUsize::new(0));
    let open = async |queue: &EventQueue| {
        let runs = Arc::clone(&runs);
        let fold = move |count: Option<u64>, _: tidegate::LoggedEvent<u32>| {
            runs.fetch_add(1, Ordering::SeqCst);
            // Longer than the lease.
            tokio::task::block_in_place(|| std::thread::sleep(lease + lease / 2));
            Some(count.unwrap_or(0) + 1)
        };
        let base = base(1).reader_lease(lease).poll_interval(Duration::from_millis(20));
        base.documents::<u64>().on("counted", |_| "all".to_owned(), fold).open(queue).await.unwrap()
    };
    let (first, second) = (open(&one).await, open(&two).await);
    let entry = logged(&one, 1).await;
    let running = (run(&first), run(&second));
    second.wait_for(entry, crate::support::PATIENCE).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1, "no other reader began it");
    running.0.stop().await;
    running.1.stop().await;
    one.close().await;
    two.close().await;
}
