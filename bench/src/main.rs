//! Measures Tidegate beside the raw limit of the same database, in one run on one machine. This file only wires.

mod catalogue;
mod machine;
mod pg;
mod plot;
mod raw;
mod report;
mod runner;
mod scale;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    println!("{}", machine::Machine::look(dir.path()).header());
    let server = pg::Server::start()?;
    println!("{}\n{}", server.describe().await?, raw::sqlite::describe());
    for i in 0..3 {
        let n = 200_000;
        let a = raw::postgres::drain(&server.database().await?, n).await?;
        let b = raw::postgres::publish_many(&server.database().await?, n).await?;
        let c = raw::postgres::publish_single(&server.database().await?, 50_000).await?;
        let d = raw::sqlite::cycle(&dir.path().join(format!("a{i}")), n)?;
        let e = raw::sqlite::publish_single(&dir.path().join(format!("b{i}")), 20_000)?;
        println!("{a} {b} {c} {d} {e}");
    }
    let o: Vec<report::Outcome> = vec![];
    std::fs::write("/tmp/x.svg", plot::svg(&o, "x"))?;
    println!("{}{}", report::table(&o), report::json(&o)?);
    Ok(())
}
