//! The order in which the writer runs jobs, and what a failed transaction leaves behind.

use std::sync::Mutex;

use super::*;
use crate::values::QueueChange;
use tidegate_core::QueueState;

/// Ten transactions of the application's own wait, and behind them one job of every other class.
#[tokio::test(flavor = "multi_thread")]
async fn every_class_of_jobs_gets_its_turn() {
    let scene = Scene::new();
    let store = scene.open().await;
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let (release, holder) = hold(&store).await;
    let mut jobs = tokio::task::JoinSet::new();
    for count in 0..10 {
        let held = store.begin(Duration::from_secs(20)).unwrap();
        let order = order.clone();
        jobs.spawn(async move {
            held.run(move |_| {
                order.lock().unwrap().push("held");
                Ok(())
            })
            .await?;
            held.commit().await
        });
        eventually("it waits", || waiting(&store) == count + 1).await;
    }
    let classes = [(Urgency::Publish, "publish"), (Urgency::Claim, "claim"), (Urgency::End, "upkeep")];
    for (count, (urgency, name)) in classes.into_iter().enumerate() {
        let (mine, order) = (store.clone(), order.clone());
        jobs.spawn(async move {
            mine.write(urgency, move |_| {
                order.lock().unwrap().push(name);
                Ok(())
            })
            .await
        });
        eventually("it waits", || waiting(&store) == 11 + count).await;
    }
    drop(release);
    holder.await.unwrap().unwrap();
    assert!(jobs.join_all().await.into_iter().all(|outcome| outcome.is_ok()));
    let order = order.lock().unwrap();
    assert_eq!(order.len(), 13);
    for name in ["publish", "claim", "upkeep"] {
        let place = order.iter().position(|done| *done == name).unwrap();
        assert!(place <= 3, "{name} waited for {place} others: {order:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_applications_transactions_are_not_starved_by_others() {
    let scene = Scene::new();
    let store = scene.open().await;
    let (release, holder) = hold(&store).await;
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let publishes = 3 * 256;
    let mut jobs = tokio::task::JoinSet::new();
    for count in 0..publishes {
        let (mine, order) = (store.clone(), order.clone());
        jobs.spawn(async move {
            mine.write(Urgency::Publish, move |_| {
                order.lock().unwrap().push("publish");
                Ok(())
            })
            .await
        });
        eventually("it waits", || waiting(&store) == count + 1).await;
    }
    let noted = order.clone();
    let (mine, started) = (store.clone(), publishes + 1);
    jobs.spawn(async move {
        mine.transaction(move |_| {
            noted.lock().unwrap().push("alone");
            Ok(())
        })
        .await
    });
    eventually("it waits", || waiting(&store) == started).await;
    drop(release);
    holder.await.unwrap().unwrap();
    assert!(jobs.join_all().await.into_iter().all(|outcome| outcome.is_ok()));
    let place = order.lock().unwrap().iter().position(|done| *done == "alone").unwrap();
    assert!(place <= 256, "it waited for {place} publishes");
}

/// What a job wrote that released its own savepoint can no longer be separated from the work of the others.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_told_of_a_failure_has_written_nothing() {
    let scene = Scene::new();
    let store = scene.open().await;
    let (release, holder) = hold(&store).await;
    let (first, second) = (store.clone(), store.clone());
    let publish = tokio::spawn(async move { first.publish(vec![event()]).await });
    eventually("it waits", || waiting(&store) == 1).await;
    let spoiling = tokio::spawn(async move {
        second
            .write(Urgency::Publish, |tx| {
                publish::publish(tx, &[event()])?;
                Ok(tx.conn.execute_batch("RELEASE job")?)
            })
            .await
    });
    eventually("both wait", || waiting(&store) == 2).await;
    drop(release);
    holder.await.unwrap().unwrap();
    assert!(spoiling.await.unwrap().is_err());
    assert!(publish.await.unwrap().is_err(), "the whole transaction is lost");
    assert_eq!(store.census().await.unwrap().events, 0, "and nothing of it was written");
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
}

/// A transaction that raised the catalogue version fails; another process then raises it to the same number.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_changed_is_seen_after_a_failure_of_our_own() {
    let scene = Scene::new();
    let (store, other) = (scene.open().await, scene.open().await);
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    let (release, holder) = hold(&store).await;
    let mut jobs = tokio::task::JoinSet::new();
    for number in 0..3 {
        let mine = store.clone();
        jobs.spawn(async move {
            if number == 1 {
                let failing = |tx: &mut Tx<'_>| {
                    publish::publish(tx, &[NewEvent::new("a new lane", "{}")])?;
                    Err::<(), _>(Error::new(ErrorKind::Conflict, "on purpose"))
                };
                return mine.write(Urgency::Publish, failing).await.unwrap_err().kind() == ErrorKind::Conflict;
            }
            mine.publish(vec![event()]).await.is_ok()
        });
        eventually("it waits", || waiting(&store) == number + 1).await;
    }
    drop(release);
    holder.await.unwrap().unwrap();
    assert!(jobs.join_all().await.into_iter().all(|outcome| outcome));
    let paused = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    other.put_queue(&QueueName::default(), paused).await.unwrap();
    assert_eq!(store.claim(want(9)).await.unwrap(), [], "the queue is paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_in_a_transaction_that_sqlite_rolled_back_is_refused() {
    let scene = Scene::new();
    let store = scene.open().await;
    let conn = scene.connect();
    conn.execute_batch("CREATE TABLE own (n INTEGER PRIMARY KEY); BEGIN IMMEDIATE; INSERT INTO own VALUES (1)")
        .unwrap();
    conn.execute_batch("INSERT OR ROLLBACK INTO own VALUES (1)").unwrap_err();
    let error = store.publish_in(&conn, vec![event()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(store.census().await.unwrap().events, 0);
}
