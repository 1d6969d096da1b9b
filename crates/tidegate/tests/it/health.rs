//! Health shows a failure while it lasts, and that it is over.

use std::time::Duration;

use tidegate::{Delivered, Event, EventManager, Handled};

use crate::databases::on_each_database;
use crate::hindered::Hindered;
use crate::support::eventually;

#[derive(Debug, serde::Deserialize)]
struct Nothing;

impl Event for Nothing {
    const TYPE: &'static str = "nothing";
}

on_each_database! {
    async fn a_manager_that_cannot_claim_says_why(place) {
        let queue = place.open().await;
        let (store, hindered) = Hindered::open(&queue, |builder| builder).await;
        let manager = EventManager::builder(&hindered)
            .poll_interval(Duration::from_millis(10))
            .on("h", |_: Delivered<Nothing>| async { Handled::Success })
            .build()
            .unwrap();
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        eventually("it is healthy", || async { manager.health().await.is_good() }).await;
        store.claim.fail();
        eventually("the failure is shown", || async { manager.health().await.trouble.is_some() }).await;
        let health = manager.health().await;
        assert!(!health.is_good());
        assert!(health.trouble.unwrap().1.to_string().contains("failed by the test"));
        assert!(health.queue.is_good(), "the store itself answers");
        store.claim.work();
        eventually("it is healthy again", || async { manager.health().await.is_good() }).await;
        manager.shutdown();
        running.await.unwrap().unwrap();
        hindered.close().await;
        queue.close().await;
    }
}
