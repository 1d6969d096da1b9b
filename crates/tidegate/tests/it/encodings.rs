//! A database whose encoding lacks characters: what it cannot store fails alone.

use tidegate::{AttemptOutcome, EntryId, ErrorKind, EventQueue, Holder, NewEvent, Report};

/// Makes a database in LATIN1 and returns its URL.
async fn latin1() -> String {
    let url = tidegate_testing::fresh_database();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let name: String = client.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    let make = format!("CREATE DATABASE {name}_l1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'");
    client.batch_execute(&make).await.unwrap();
    drop(client);
    driver.await.unwrap().unwrap();
    tidegate_testing::drop_database(&url).unwrap();
    url.replacen(&name, &format!("{name}_l1"), 1)
}

fn kinds<T>(answers: &[tidegate::Result<T>]) -> Vec<Option<ErrorKind>> {
    answers.iter().map(|answer| answer.as_ref().err().map(tidegate::Error::kind)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_character_that_the_database_lacks_fails_its_item_alone() {
    let url = latin1().await;
    let queue = EventQueue::open(&url).await.unwrap();
    let event = |n: usize| {
        let title = if n % 7 == 3 { "An emoji 😀" } else { "Übung" };
        let event = NewEvent::new("t", n.to_string()).title(title).tags(["a"]).max_retries(3);
        if n.is_multiple_of(2) { event.deduplicate(format!("k{n}")) } else { event }
    };
    let answers = queue.publish_many((0..20).map(event).collect()).await;
    let bad = |n: usize| (n % 7 == 3).then_some(ErrorKind::Invalid);
    assert_eq!(kinds(&answers), (0..20).map(bad).collect::<Vec<_>>());

    let worker = queue.consumer().worker("w").unwrap().audited();
    let held = worker.poll_many(100).await.unwrap();
    assert_eq!(held.len(), 17);
    let ids: Vec<EntryId> = held.iter().map(|event| event.id).collect();
    held.into_iter().for_each(tidegate::QueuedEvent::forget);
    let report = |(n, id): (usize, &EntryId)| Report {
        holder: Holder { id: *id, worker: "w".into(), lease: None },
        outcome: AttemptOutcome::Failed,
        status_code: None,
        execution_time_ms: None,
        error_message: Some(if n == 5 { "it broke 💥" } else { "it broke" }.into()),
    };
    let answers = queue.report_many(ids.iter().enumerate().map(report).collect()).await;
    let expected: Vec<_> = (0..17).map(|n| (n == 5).then_some(ErrorKind::Invalid)).collect();
    assert_eq!(kinds(&answers), expected);
    queue.close().await;
    tidegate_testing::drop_database(&url).unwrap();
}
