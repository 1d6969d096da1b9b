//! How publishing fares while clients send the worst list queries, over HTTP: one server on one filled database, the same
//! publishers, in turns without and with those who list.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{End, EventQueue, Finalize, QueueName, Timestamp, Tsid};
use tidegate_server::{Keyring, Scope};
use tokio::task::JoinSet;

use super::{Bench, known, server};
use crate::http::Connection;
use crate::report::Outcome;
use crate::runner::{Pair, at_once, median, progress, rate, short};
use crate::scale::{BATCH, CALLERS, CONNECTIONS, PAYLOAD};
use crate::served::Served;
use crate::{Result, tide};

/// Clients that list, each with a key, a queue and a share of the events of its own.
const LISTERS: usize = 8;
/// Tags that there are: as many as a query may name.
const TAGS: usize = 32;
/// Tags of each event.
const TAGS_EACH: usize = 4;
/// Types of events: a client's queue has a lane for each. No multiple of the number of statuses, so that all mix.
const TYPES: usize = 251;
/// How long the server lets slow lists rest, at most.
const REST: Duration = Duration::from_secs(4);
/// How long those who list have the server to themselves before publishers are measured beside them.
const LEAD: Duration = Duration::from_millis(500);

/// Queries that walk far and find little. Asking for every tag and a type that no event has is the heaviest of what ends
/// after 10,000 entries: each step merges a range of every tag in every status. An empty time range looks at all that was
/// published around it. Whether something is held, and by whom, no index says, and a deep offset merges all lanes.
/// Which of them is the worst differs between the databases, so each is tried and the slowest is the one that is sent.
fn queries(moment: Timestamp) -> [String; 5] {
    let tags: Vec<String> = (0..TAGS).map(tag).collect();
    let tags = tags.join(",");
    [
        format!("/events?limit=1000&tags={tags}&type=absent"),
        format!("/events?limit=1000&tags={tags}&type=absent&from={moment}&to={moment}"),
        "/events?limit=1000&status=PROCESSING".into(),
        "/events?limit=1000&worker_id=nobody".into(),
        "/events?limit=1&offset=10000&queue=default&from=2020-01-01T00:00:00Z".into(),
    ]
}

fn tag(number: usize) -> String {
    format!("some-{}", number % TAGS)
}

/// Runs what is wanted of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let names = ["postgres_list_load_publish", "postgres_list_load_p99"];
    if bench.wanted.has_any(&names) {
        let database = bench.server()?.database().await?;
        let callers = set(&database.url, bench.scale.list_load).await?;
        database.settle().await?;
        bench.server()?.checkpoint().await?;
        outcomes.extend(compare(bench, names, &database.url, &callers).await?);
    }
    let names = ["sqlite_list_load_publish", "sqlite_list_load_p99"];
    if bench.wanted.has_any(&names) {
        let folder = bench.sqlite_folder()?;
        let file = folder.path().join("tidegate.db").to_string_lossy().into_owned();
        let callers = set(&file, bench.scale.list_load).await?;
        outcomes.extend(compare(bench, names, &file, &callers).await?);
    }
    Ok(outcomes)
}

/// Who calls the server.
struct Callers {
    publisher: String,
    listers: Vec<Lister>,
}

/// A client that lists.
struct Lister {
    key: String,
    /// When half of its events were published.
    moment: Timestamp,
}

/// Makes the clients' queues and keys, and fills the queues.
async fn set(address: &str, count: usize) -> Result<Callers> {
    let start = Instant::now();
    let queue = EventQueue::open(address).await?;
    let keys = Keyring::new(queue.clone());
    let client = |number: usize| Ok::<Tsid, std::num::TryFromIntError>(Tsid::from_i64(i64::try_from(number)? + 1));
    let mut listers = Vec::with_capacity(LISTERS);
    for number in 0..LISTERS {
        let client = client(number)?;
        let own = QueueName::of(client, QueueName::DEFAULT)?;
        queue.of(own.clone()).await?;
        let moment = fill(&queue, &own, count / LISTERS).await?;
        let key = keys.create(&format!("lists-{number}"), &[Scope::Read], Some(client)).await?.secret;
        listers.push(Lister { key, moment });
    }
    let client = client(LISTERS)?;
    queue.of(QueueName::of(client, QueueName::DEFAULT)?).await?;
    let publisher = keys.create("publishes", &[Scope::Publish], Some(client)).await?.secret;
    queue.close().await;
    progress(&format!("{count} events published in {} s", short(start.elapsed().as_secs_f64())));
    Ok(Callers { publisher, listers })
}

/// Publishes events of one client and ends four of five, each in another way; answers when half of them were there.
async fn fill(queue: &EventQueue, own: &QueueName, count: usize) -> Result<Timestamp> {
    let (next, half) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Timestamp::now())));
    let callers = (0..CALLERS).map(|_| {
        let (queue, own, next, half) = (queue.clone(), own.clone(), Arc::clone(&next), Arc::clone(&half));
        async move {
            loop {
                let start = next.fetch_add(BATCH, Ordering::Relaxed);
                if start >= count {
                    return Ok(());
                }
                if start <= count / 2 {
                    *half.lock().unwrap_or_else(PoisonError::into_inner) = Timestamp::now();
                }
                fill_batch(&queue, &own, start..count.min(start + BATCH)).await?;
            }
        }
    });
    at_once(callers).await?;
    let moment = *half.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(moment)
}

async fn fill_batch(queue: &EventQueue, own: &QueueName, numbers: std::ops::Range<usize>) -> Result<()> {
    let base = tide::event(PAYLOAD).title("a title").queue(own.clone());
    let event = |number: usize| {
        let mut event = base.clone().tags((0..TAGS_EACH).map(|part| tag(number + part * TAGS / TAGS_EACH)));
        event.event_type = format!("type-{}", number % TYPES);
        event
    };
    let answers = queue.publish_many(numbers.clone().map(event).collect()).await;
    let mut ends = Vec::with_capacity(answers.len());
    for (number, answer) in numbers.zip(answers) {
        let id = answer?.id;
        // What has a tag goes through all ways to end, and one in five waits.
        if let Some(end) = End::ALL.get(number % (End::ALL.len() + 1)) {
            ends.push(Finalize { id, token: None, end: *end, errors: None, results: None });
        }
    }
    for answer in queue.store().finalize(ends).await? {
        answer?;
    }
    Ok(())
}

async fn compare(bench: &Bench, names: [&str; 2], address: &str, callers: &Callers) -> Result<Vec<Outcome>> {
    let served = Served::start_with_keys(address).await?;
    let (worst, mut notes) = try_alone(served.address, &callers.listers, names[0]).await?;
    let time = bench.scale.serve * 2;
    // The first pays for plans, lanes and connections.
    publish(served.address, &callers.publisher, bench.scale.serve).await?;
    let (mut rates, mut p99s, mut lists) = (Pair::default(), Pair::default(), Vec::new());
    for run in 1..=bench.scale.runs {
        let calm = publish(served.address, &callers.publisher, time).await?;
        let listing = Listing::start(served.address, &callers.listers, worst).await?;
        tokio::time::sleep(LEAD).await;
        let before = listing.counts();
        let beside = publish(served.address, &callers.publisher, time).await?;
        let after = listing.counts();
        listing.stop().await?;
        let [answered, refused] = [0, 1].map(|kind| rate(after[kind] - before[kind], time));
        let figures = format!(
            "{} vs {} requests/s, p99 {} vs {} ms, {} lists/s answered and {} refused",
            short(beside.rate),
            short(calm.rate),
            short(beside.p99),
            short(calm.p99),
            short(answered),
            short(refused)
        );
        progress(&format!("{} {run}/{}: {figures}", names[0], bench.scale.runs));
        rates.ours.push(beside.rate);
        rates.baseline.push(calm.rate);
        p99s.ours.push(beside.p99);
        p99s.baseline.push(calm.p99);
        lists.push((answered, refused));
    }
    served.stop().await?;
    if lists.iter().all(|(answered, refused)| answered + refused == 0.0) {
        return Err("nobody who lists was answered while events were published".into());
    }
    let middle = |part: fn(&(f64, f64)) -> f64| short(median(&lists.iter().map(part).collect::<Vec<_>>()));
    notes.push(format!("beside publishing {} lists/s answered, {} refused", middle(|one| one.0), middle(|one| one.1)));
    let publish = notes.into_iter().fold(Outcome::beside(known(names[0])?, rates), Outcome::note);
    Ok(vec![publish, Outcome::beside(known(names[1])?, p99s)])
}

/// Sends each query with nothing else to do; answers which one is the slowest, and how long each took.
async fn try_alone(address: SocketAddr, listers: &[Lister], name: &str) -> Result<(usize, Vec<String>)> {
    let lister = listers.first().ok_or("nobody lists")?;
    let mut connection = Connection::open(address).await?.with_key(&lister.key);
    let (mut worst, mut notes) = ((0, 0.0), Vec::new());
    for (number, query) in queries(lister.moment).iter().enumerate() {
        list(&mut connection, query).await?;
        // Slow lists have to rest in between.
        tokio::time::sleep(REST).await;
        let start = Instant::now();
        let status = list(&mut connection, query).await?;
        let took = start.elapsed().as_secs_f64() * 1e3;
        if took > worst.1 {
            worst = (number, took);
        }
        let shown = query.replace(&(0..TAGS).map(tag).collect::<Vec<_>>().join(","), "…");
        notes.push(format!("{shown} alone: {} ms, {status}", short(took)));
    }
    if let Some(note) = notes.get_mut(worst.0) {
        note.push_str(": the worst");
    }
    for note in &notes {
        progress(&format!("{name} {note}"));
    }
    Ok((worst.0, notes))
}

/// Sends a list query. One that took too long, or found no turn, is refused with 503.
async fn list(connection: &mut Connection, query: &str) -> Result<u16> {
    let answer = connection.call("GET", query, b"").await?;
    match answer.status {
        200 | 503 => Ok(answer.status),
        other => Err(format!("{query} answered {other}: {}", String::from_utf8_lossy(answer.body)).into()),
    }
}

/// Clients that list without a pause until they are told to stop.
struct Listing {
    stop: Arc<AtomicBool>,
    /// Lists that were answered, and that were refused.
    counts: Arc<[AtomicUsize; 2]>,
    tasks: JoinSet<Result<()>>,
}

impl Listing {
    async fn start(address: SocketAddr, listers: &[Lister], worst: usize) -> Result<Self> {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new([0, 0].map(AtomicUsize::new)));
        let mut tasks = JoinSet::new();
        for lister in listers {
            let mut connection = Connection::open(address).await?.with_key(&lister.key);
            let query = queries(lister.moment).into_iter().nth(worst).ok_or("there is no such query")?;
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let refused = list(&mut connection, &query).await? != 200;
                    counts[usize::from(refused)].fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        Ok(Self { stop, counts, tasks })
    }

    fn counts(&self) -> [usize; 2] {
        [0, 1].map(|kind| self.counts[kind].load(Ordering::Relaxed))
    }

    /// Waits until the last list has ended.
    async fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// What publishers saw.
struct Published {
    /// Requests per second.
    rate: f64,
    /// The 99th of a hundred requests, in milliseconds.
    p99: f64,
}

/// Publishes one event per request on every connection.
async fn publish(address: SocketAddr, key: &str, time: Duration) -> Result<Published> {
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(address).await?.with_key(key));
    }
    let event: Arc<[u8]> = serde_json::to_vec(&server::event()?)?.into();
    let times = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let work = connections.into_iter().map(|mut connection| {
        let (event, times) = (Arc::clone(&event), Arc::clone(&times));
        async move {
            let mut own = Vec::new();
            while start.elapsed() < time {
                let sent = Instant::now();
                connection.expect(201, "POST", "/events", &event).await?;
                own.push(sent.elapsed().as_secs_f64() * 1e3);
            }
            times.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
            Ok(())
        }
    });
    at_once(work).await?;
    let took = start.elapsed();
    let mut times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_by(f64::total_cmp);
    let p99 = times.get((times.len() * 99).div_ceil(100).saturating_sub(1)).ok_or("nothing was published")?;
    Ok(Published { rate: rate(times.len(), took), p99: *p99 })
}
