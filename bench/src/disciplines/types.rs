//! How long lists and look-ups of event types take over HTTP among very many of them.

use std::sync::Arc;
use std::time::Instant;

use tidegate::{EventQueue, Timestamp, Tsid};
use tidegate_dispatch::{EventTypeBody, Gateway, GatewayOptions, Match, NewVersion, SchemaType};
use tokio::task::JoinSet;

use super::{Bench, known};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{p99, progress, short};
use crate::served::Served;

/// The versions of each type.
const VERSIONS: [&str; 3] = ["1.0", "1.1", "2.0"];
/// The aggregates that types are spread over.
const AGGREGATES: usize = 100;
/// Tasks that create types at once.
const CREATORS: usize = 16;

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let name = "postgres_types_p99";
    if bench.wanted.has(name) {
        let database = bench.server()?.database().await?;
        outcomes.push(measure(bench, name, &database.url).await?);
    }
    let name = "sqlite_types_p99";
    if bench.wanted.has(name) {
        let folder = bench.sqlite_folder()?;
        let file = folder.path().join("tidegate.db").to_string_lossy().into_owned();
        outcomes.push(measure(bench, name, &file).await?);
    }
    Ok(outcomes)
}

/// Creates types, each with [`VERSIONS`], the first of which is CURRENT, and returns their ids.
///
/// # Errors
/// When one cannot be created.
pub(super) async fn create(gateway: &Arc<Gateway>, count: usize, schema: &str) -> Result<Vec<Tsid>> {
    let mut tasks = JoinSet::new();
    for first in 0..CREATORS {
        let (gateway, schema) = (Arc::clone(gateway), schema.to_owned());
        tasks.spawn(async move {
            let mut ids = Vec::new();
            for number in (first..count).step_by(CREATORS) {
                ids.push(create_one(&gateway, number, &schema).await.map_err(|error| error.to_string())?);
            }
            Ok::<Vec<Tsid>, String>(ids)
        });
    }
    let mut ids = Vec::with_capacity(count);
    while let Some(done) = tasks.join_next().await {
        ids.extend(done??);
    }
    Ok(ids)
}

async fn create_one(gateway: &Gateway, number: usize, schema: &str) -> Result<Tsid> {
    let code = format!("shop:area{}:thing{}:event{number}", number % 7, number % AGGREGATES).parse()?;
    let about = EventTypeBody { name: format!("Event {number}"), description: Some("what it means".into()) };
    let made = gateway.create_type(&code, &about).await?;
    for version in VERSIONS {
        let new = NewVersion {
            mime_type: "application/json".into(),
            schema_type: SchemaType::JsonSchema,
            schema: schema.to_owned(),
            message: None,
            strict: false,
            force: None,
            schema_name: None,
            schema_description: None,
        };
        gateway.add_version(made.id, Match::Any, version.parse()?, &new, Timestamp::UNIX_EPOCH).await?;
    }
    gateway.finalise_version(made.id, Match::Any, VERSIONS[0].parse()?).await?;
    Ok(made.id)
}

/// Lists and shows types many times; the result is the worst p99.
async fn measure(bench: &Bench, name: &str, address: &str) -> Result<Measured> {
    let queue = EventQueue::open(address).await?;
    let gateway = Arc::new(Gateway::new(queue.clone(), GatewayOptions::default()));
    let ids = create(&gateway, bench.scale.types, &super::schema::json_schema()).await?;
    drop(gateway);
    queue.close().await;
    let middle = ids.get(ids.len() / 2).ok_or("no type was created")?;
    let paths = [
        "/api/event-types?limit=50".to_owned(),
        "/api/event-types?limit=50&code=shop:area3:*:*".to_owned(),
        "/api/event-types?limit=50&code=*:*:thing7:*".to_owned(),
        "/api/event-types?limit=50&code=shop:*:*:event77".to_owned(),
        "/api/event-types?limit=50&status=ARCHIVE".to_owned(),
        format!("/api/event-types/{middle}"),
    ];
    let served = Served::start(address).await?;
    let mut connection = Connection::open(served.address).await?;
    let (mut worst, mut notes) = (0.0_f64, Vec::new());
    for path in &paths {
        let first = Instant::now();
        connection.expect(200, "GET", path, b"").await?;
        let first = first.elapsed().as_secs_f64() * 1e3;
        let mut times = Vec::with_capacity(bench.scale.lists);
        for _ in 0..bench.scale.lists {
            let start = Instant::now();
            connection.expect(200, "GET", path, b"").await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let p99 = p99(times).ok_or("nothing was listed")?;
        let note = format!("{path}: p99 {} ms, the very first {} ms", short(p99), short(first));
        progress(&format!("{name} {note}"));
        notes.push(note);
        worst = worst.max(p99);
    }
    drop(connection);
    served.stop().await?;
    Ok(notes.into_iter().fold(Measured::absolute(known(name)?, vec![worst]), Measured::note))
}
