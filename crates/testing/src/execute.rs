//! One statement on a connection of its own.

use std::io;

use tokio_postgres::NoTls;

/// Runs one statement on its own connection. Works inside and outside of an async runtime.
pub(crate) fn execute(url: &str, statement: &str) -> io::Result<()> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(io::Error::other)?;
            let connection = tokio::spawn(connection);
            let answer = client.batch_execute(statement).await;
            drop(client);
            let _ = connection.await;
            answer.map_err(|error| io::Error::other(error.as_db_error().map_or(error.to_string(), ToString::to_string)))
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| Err(io::Error::other("the connecting thread panicked")))
}
