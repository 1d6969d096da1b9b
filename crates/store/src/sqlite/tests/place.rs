//! Files that are moved, deleted or replaced while the database is open; the write-ahead log; and what a probe reports.

use super::*;

fn wal(scene: &Scene) -> u64 {
    let name = format!("{}-wal", scene.path().display());
    std::fs::metadata(name).map_or(0, |file| file.len())
}

/// How many times this process has the database's file open.
fn descriptors(scene: &Scene) -> usize {
    let path = std::fs::canonicalize(scene.path()).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter(|file| file.as_ref().is_ok_and(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == path)))
        .count()
}

async fn is_refused(store: &SqliteStore, file: &str) {
    for error in [
        store.publish(vec![event()]).await.unwrap_err(),
        store.claim(want(1)).await.unwrap_err(),
        store.maintain().await.unwrap_err(),
        store.probe().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(file) && error.to_string().contains("restart"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_into_a_file_that_was_moved_and_all_goes_on_once_it_is_back() {
    for suffix in ["", "-wal", "-shm"] {
        let scene = Scene::new();
        let store = scene.open().await;
        store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
        store.probe().await.unwrap();
        let (here, there) = (format!("{}{suffix}", scene.path().display()), scene.folder.path().join("elsewhere"));
        std::fs::rename(&here, &there).unwrap();
        is_refused(&store, &format!("events.db{suffix} was moved or deleted")).await;
        let conn = scene.connect();
        conn.execute_batch("BEGIN").unwrap();
        let error = store.publish_in(&conn, vec![event()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        drop(conn);
        std::fs::rename(&there, &here).unwrap();
        store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
        assert_eq!(store.census().await.unwrap().events, 2);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_once_the_file_was_deleted_or_replaced() {
    let scene = Scene::new();
    let store = scene.open().await;
    std::fs::remove_file(scene.path()).unwrap();
    is_refused(&store, "events.db was moved or deleted").await;
    std::fs::write(scene.path(), "another file").unwrap();
    is_refused(&store, "events.db was replaced").await;
    store.close().await;
}

/// A start may wait for long between opening its first connection and its last.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_replaced_while_it_is_opened_is_refused() {
    let scene = Scene::new();
    let foreign = scene.connect();
    foreign.execute_batch("PRAGMA journal_mode = wal; BEGIN IMMEDIATE; CREATE TABLE mine (x)").unwrap();
    let opening = {
        let path = scene.path();
        tokio::spawn(async move { SqliteStore::open(path, SqliteOptions::default()).await })
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while descriptors(&scene) < 2 {
        assert!(tokio::time::Instant::now() < deadline, "the start opens the file");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // By now it waits for the lock, or is about to.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!opening.is_finished());
    std::fs::rename(scene.path(), scene.folder.path().join("elsewhere")).unwrap();
    std::fs::write(scene.path(), "").unwrap();
    foreign.execute_batch("ROLLBACK").unwrap();
    let error = opening.await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("was replaced"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_write_ahead_log_is_cut_back_once_a_long_reader_is_gone() {
    let scene = Scene::new();
    let store = scene.open().await;
    let reader = scene.connect();
    reader.execute_batch("BEGIN; SELECT count(*) FROM tidegate_events").unwrap();
    let large = || vec![NewEvent::new("t", vec![7_u8; 1 << 20]); 8];
    while wal(&scene) < 70 << 20 {
        assert!(store.publish(large()).await.unwrap().iter().all(Result::is_ok));
    }
    assert!(store.probe().await.unwrap().wal_bytes.unwrap() >= 70 << 20, "its length is reported");
    reader.execute_batch("COMMIT").unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while wal(&scene) > 16 << 20 {
        assert!(tokio::time::Instant::now() < deadline, "it stays at {} bytes", wal(&scene));
        // Publishing goes on meanwhile.
        store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    }
    assert_eq!(scene.count("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
}

/// Without a reader that blocks checkpoints, the log does not grow beyond bounds, even if the writer is never idle.
#[tokio::test(flavor = "multi_thread")]
async fn the_write_ahead_log_starts_over_under_load() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut written = 0;
    while written < 320 {
        assert!(
            store.publish(vec![NewEvent::new("t", vec![7_u8; 1 << 20]); 4]).await.unwrap().iter().all(Result::is_ok)
        );
        written += 4;
        assert!(wal(&scene) < 160 << 20, "{} bytes", wal(&scene));
    }
    assert_eq!(store.census().await.unwrap().events, 320);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_sees_a_full_database_and_a_foreign_lock_and_changes_nothing() {
    let scene = Scene::new();
    let store =
        scene.open_with(StoreOptions { lock_timeout: Duration::from_millis(50), ..StoreOptions::default() }).await;
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    for _ in 0..3 {
        store.probe().await.unwrap();
    }
    assert_eq!(scene.count("SELECT count(*) FROM tidegate_events"), 1);
    let limit = |pages: i64| move |conn: &Connection| Ok(conn.pragma_update(None, "max_page_count", pages)?);
    store.transaction(limit(scene.count("PRAGMA page_count"))).await.unwrap();
    let error = store.probe().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("no space"), "{error}");
    store.transaction(limit(1 << 20)).await.unwrap();
    store.probe().await.unwrap();

    let foreign = scene.connect();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), ErrorKind::Busy);
    foreign.execute_batch("ROLLBACK").unwrap();
    store.probe().await.unwrap();
    assert_eq!(store.claim(want(9)).await.unwrap().len(), 1, "what was there can still be claimed");
}
