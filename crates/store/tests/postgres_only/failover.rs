//! A failover that loses commits.

use std::time::Duration;

use tidegate_store::postgres::PostgresStore;
use tidegate_store::{ErrorKind, ProjectionId, Projections, Store};
use tidegate_testing::{PgServer, PgSettings, Proxy};
use tokio_postgres::NoTls;

use crate::scene::*;

/// A primary that is followed by a standby, both behind a door.
struct Pair {
    primary: PgServer,
    standby: PgServer,
    /// What the standby is sent goes through here.
    line: Proxy,
    door: Proxy,
    url: String,
}

impl Pair {
    async fn start() -> Self {
        let made = tokio::task::spawn_blocking(|| {
            let primary = PgServer::start(PgSettings::default())?;
            let line = Proxy::start(primary.port())?;
            let standby = primary.standby(line.port())?;
            let door = Proxy::start(primary.port())?;
            let url = door.url(&primary.create_database());
            std::io::Result::Ok(Self { primary, standby, line, door, url })
        });
        made.await.unwrap().unwrap()
    }

    /// Waits until the standby has everything.
    async fn replicated(&self) {
        let (primary, connection) = tokio_postgres::connect(&self.primary.url("postgres"), NoTls).await.unwrap();
        tokio::spawn(connection);
        let caught_up = "SELECT count(*) > 0 AND bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication";
        eventually("the standby caught up", async || primary.query_one(caught_up, &[]).await.unwrap().get(0)).await;
    }

    /// The primary dies, and the standby takes over with what it was sent.
    async fn fail_over(mut self) -> Self {
        tokio::task::spawn_blocking(move || {
            self.line.cut();
            self.primary.kill()?;
            self.door.cut();
            self.standby.promote()?;
            self.door.lead_to(self.standby.port());
            self.door.pass();
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
    pair.line.go_silent();
    let lost = claim(&store, 1).await.remove(0);
    let reader = take(&store, &id, "one").await;
    let pair = pair.fail_over().await;

    let given = claim(&store, 1).await.remove(0);
    assert_eq!(given.id, lost.id);
    assert!(given.token > lost.token, "{:?} after {:?}", given.token, lost.token);
    assert!(given.token.0 < 1 << 53, "every reader of JSON can tell {:?} from the next", given.token);
    let refused = store.finalize(vec![end(&lost)]).await.unwrap().remove(0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    assert!(take(&store, &id, "two").await > reader);
    // Another process finds it entered, and raises nothing.
    let other = open_at(&pair.url).await;
    publish(&other, vec![event("t")]).await;
    assert_eq!(claim(&other, 1).await[0].token, given.token);
    complete(&store, &[given]).await;
}
