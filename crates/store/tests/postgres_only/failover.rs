//! A failover that loses commits.

use std::time::Duration;

use tidegate_store::api::*;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{ErrorKind, ProjectionId};
use tidegate_testing::{PgServer, PgSettings, Proxy};
use tokio_postgres::NoTls;

use crate::scene::*;

/// A primary and its standby, with a proxy in front that leads clients to the one in charge.
struct Pair {
    primary: PgServer,
    standby: PgServer,
    /// Carries the replication to the standby.
    replication: Proxy,
    /// What clients connect to.
    front: Proxy,
    url: String,
}

impl Pair {
    async fn start() -> Self {
        let made = tokio::task::spawn_blocking(|| {
            let primary = PgServer::start(PgSettings::default())?;
            let replication = Proxy::start(primary.port())?;
            let standby = primary.standby(replication.port())?;
            let front = Proxy::start(primary.port())?;
            let url = front.url(&primary.create_database());
            std::io::Result::Ok(Self { primary, standby, replication, front, url })
        });
        made.await.unwrap().unwrap()
    }

    /// Waits until the standby has replayed everything.
    async fn replicated(&self) {
        let (primary, connection) = tokio_postgres::connect(&self.primary.url("postgres"), NoTls).await.unwrap();
        tokio::spawn(connection);
        let caught_up = "SELECT count(*) > 0 AND bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication";
        eventually("the standby caught up", async || primary.query_one(caught_up, &[]).await.unwrap().get(0)).await;
    }

    /// Kills the primary and promotes the standby, which knows only what was replicated.
    async fn fail_over(mut self) -> Self {
        tokio::task::spawn_blocking(move || {
            self.replication.cut();
            self.primary.kill()?;
            self.front.cut();
            self.standby.promote()?;
            self.front.lead_to(self.standby.port());
            self.front.pass();
            std::io::Result::Ok(self)
        })
        .await
        .unwrap()
        .unwrap()
    }
}

async fn take(store: &PostgresStore, id: &ProjectionId, reader: &str) -> i64 {
    store.take_reader(id, reader, Duration::from_secs(60)).await.unwrap().unwrap().token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_given_and_lost_is_given_again_under_another_token() {
    let pair = Pair::start().await;
    let store = open_at(&pair.url).await;
    let id = ProjectionId { name: "totals".into(), version: 1 };
    store.register(&id).await.unwrap();
    publish(&store, vec![event("t")]).await;
    pair.replicated().await;
    pair.replication.go_silent();
    let lost = claim(&store, 1).await.remove(0);
    let reader = take(&store, &id, "one").await;
    let pair = pair.fail_over().await;

    let given = claim(&store, 1).await.remove(0);
    assert_eq!(given.id, lost.id);
    assert!(given.token > lost.token, "{:?} after {:?}", given.token, lost.token);
    assert!(given.token.0 < 1 << 53, "{:?} is exact as a JSON number", given.token);
    let refused = store.finalize(vec![end(&lost)]).await.unwrap().remove(0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    assert!(take(&store, &id, "two").await > reader);
    // Another process finds the new history recorded, and does not raise the base of tokens again.
    let other = open_at(&pair.url).await;
    publish(&other, vec![event("t")]).await;
    assert_eq!(claim(&other, 1).await[0].token, given.token);
    complete(&store, &[given]).await;
}
