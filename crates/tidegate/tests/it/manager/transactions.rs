//! Handlers that write in the transaction that ends their event, and what such transactions may do.

use tidegate::SqlValue;

use super::*;

on_each_database! {
    async fn handler_tx_commits_with_the_end_or_not_at_all(place) {
        let queue = place.open().await;
        create_ledger(&queue).await;
        let calls = Calls::default();
        let counted = calls.clone();
        let manager = builder(&queue)
            .on("plain", |_: Delivered<Foo>| async { Handled::Success })
            .handler_tx("ledger", move |event: Delivered<Foo>, tx| {
                let call = counted.add();
                Box::pin(async move {
                    tx.execute("INSERT INTO ledger (number) VALUES ($1)", &[event.number.into()]).await?;
                    tx.publish(NewEvent::new("bar", "{}")).await?;
                    if call == 1 { return Err(tidegate::Error::invalid("after the writes")); }
                    Ok(())
                })
            })
            .build().unwrap();
        let id = publish(&queue, 7).await;
        assert_eq!(manager.drain().await.unwrap(), 2);
        assert_eq!(calls.count(), 2);
        assert_eq!(ledger(&queue).await, [7], "the first attempt's row was rolled back");
        let done = view(&queue, id).await;
        assert!(matches!(done.phase, EntryPhase::Ended { end: End::Completed, .. }));
        assert_eq!(results(&done)["ledger"]["result"], "SUCCESS");
        assert_eq!(results(&done)["plain"]["result"], "SUCCESS");
        assert_eq!(queue.depth().await.unwrap().ready, 1, "one event was published, with the second attempt");
    }

    async fn handler_tx_of_a_lost_lease_writes_nothing(place) {
        let queue = place.open().await;
        create_ledger(&queue).await;
        let other = queue.clone();
        let manager = builder(&queue)
            .on("cancels", move |event: Delivered<Foo>| { let queue = other.clone(); async move { queue.cancel(event.id()).await } })
            .handler_tx("ledger", |event: Delivered<Foo>, tx| Box::pin(async move {
                tx.execute("INSERT INTO ledger (number) VALUES ($1)", &[event.number.into()]).await.map(drop)
            }))
            .build().unwrap();
        let id = publish(&queue, 7).await;
        manager.drain().await.unwrap();
        assert_eq!(end_of(&queue, id).await, Some(End::Cancelled));
        assert_eq!(ledger(&queue).await, [0_i64; 0]);
    }

    async fn handler_tx_that_is_unrecoverable_ends_without_its_writes(place) {
        let queue = place.open().await;
        create_ledger(&queue).await;
        let manager = builder(&queue)
            .handler_tx("ledger", |event: Delivered<Foo>, tx| Box::pin(async move {
                let written = tx.execute("INSERT INTO ledger (number) VALUES ($1)", &[event.number.into()]).await;
                match written { Ok(_) => Handled::unrecoverable("no"), Err(error) => Handled::transient(error.to_string()) }
            }))
            .build().unwrap();
        let id = publish(&queue, 7).await;
        manager.drain().await.unwrap();
        assert_eq!(end_of(&queue, id).await, Some(End::CompletedWithErrors));
        assert_eq!(ledger(&queue).await, [0_i64; 0]);
    }

    async fn a_transaction_of_both_databases_takes_every_value(place) {
        let queue = place.open().await;
        let row = queue.in_transaction(|tx| Box::pin(async move {
            tx.execute("CREATE TABLE kinds (i INTEGER, f DOUBLE PRECISION, t TEXT, n TEXT, b BOOLEAN)", &[]).await?;
            let values = [5.into(), 2.5.into(), "x".into(), SqlValue::Null, true.into()];
            assert_eq!(tx.execute("INSERT INTO kinds VALUES ($1, $2, $3, $4, $5)", &values).await?, 1);
            tx.query("SELECT i, f, t, n, b FROM kinds", &[]).await
        })).await.unwrap().remove(0);
        assert_eq!((row[0].as_i64(), row[1].as_f64(), row[2].as_str()), (Some(5), Some(2.5), Some("x")));
        assert_eq!((&row[3], row[4].as_i64()), (&SqlValue::Null, Some(1)));
        let error = queue.in_transaction(|tx| Box::pin(async move {
            tx.execute("INSERT INTO kinds (i) VALUES ($1)", &[6.into()]).await?;
            tx.execute("INSERT INTO nowhere VALUES ($1)", &[6.into()]).await
        })).await.unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid, "it is the application's table that is missing: {error}");
        let left = queue.in_transaction(|tx| Box::pin(async move { tx.query("SELECT i FROM kinds", &[]).await })).await;
        assert_eq!(left.unwrap().len(), 1, "an error rolls back");
    }
}

async fn create_ledger(queue: &EventQueue) {
    let made = queue
        .in_transaction(|tx| Box::pin(async move { tx.execute("CREATE TABLE ledger (number BIGINT)", &[]).await }));
    made.await.unwrap();
}

async fn ledger(queue: &EventQueue) -> Vec<i64> {
    let rows = queue
        .in_transaction(|tx| Box::pin(async move { tx.query("SELECT number FROM ledger ORDER BY number", &[]).await }));
    rows.await.unwrap().iter().filter_map(|row| row[0].as_i64()).collect()
}

/// More handlers hold transactions than there are connections; leases are still extended, and other calls are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_transactions_of_handlers_leave_connections_for_everybody_else() {
    const EVENTS: u32 = 20;
    let place = Place::postgres();
    let queue = place.open().await;
    let (calls, gate) = (Calls::default(), Arc::new(Semaphore::new(0)));
    let (counted, closed) = (calls.clone(), Arc::clone(&gate));
    let manager = builder(&queue)
        .concurrency(EVENTS as usize)
        .lease(Duration::from_secs(2))
        .handler_tx("slow", move |_: Delivered<Foo>, _| {
            counted.add();
            let gate = Arc::clone(&closed);
            Box::pin(async move { gate.acquire().await.map(drop) })
        })
        .build()
        .unwrap();
    let mut ids = Vec::new();
    for number in 0..EVENTS {
        ids.push(publish(&queue, number).await);
    }
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    eventually("transactions are open", || async { calls.count() > 0 }).await;
    soon("an extension of every lease", async {
        for id in &ids {
            eventually("its lease is longer than it was", || async {
                let EntryPhase::Leased { since, until, .. } = view(&queue, *id).await.phase else { return false };
                until.duration_since(since) > Duration::from_secs(2).try_into().unwrap()
            })
            .await;
        }
    })
    .await;
    gate.add_permits(EVENTS as usize);
    for id in ids {
        eventually("it ends", || async { end_of(&queue, id).await == Some(End::Completed) }).await;
        assert_eq!(view(&queue, id).await.attempts, 1, "no attempt was repeated");
    }
    assert_eq!(calls.count(), EVENTS as usize);
    manager.shutdown();
    soon("the loop ends", running).await.unwrap().unwrap();
}
