//! How much publishing suffers while clients send the worst list queries, over HTTP: one server on one filled database,
//! the same publishers, in turns without and with listing clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{End, EventQueue, Finalize, QueueName, Timestamp, Tsid};
use tidegate_server::{Keyring, Scope};
use tokio::task::JoinSet;

use super::{Bench, known, server};
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{Pair, at_once, median, p99, progress, rate, short};
use crate::scale::{BATCH, CALLERS, CONNECTIONS, PAYLOAD};
use crate::served::Served;
use crate::{Result, tide};

/// Clients that list. Each has its own key, queue and share of the events.
const LISTERS: usize = 8;
/// Different tags: as many as a query may name.
const TAGS: usize = 32;
/// Tags per event.
const TAGS_EACH: usize = 4;
/// Event types; a client's queue has a lane for each. Not a multiple of the number of statuses, so that every type
/// occurs in every status.
const TYPES: usize = 251;
/// The longest pause that the server's list gate makes after a slow list.
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// How long the clients list before publishing is measured beside them.
const LEAD: Duration = Duration::from_millis(500);

/// Queries that read many rows and return few. Asking for every tag and a type that no event has is the most expensive
/// of those that stop after 10,000 entries: each step merges a range of every tag in every status. An empty time range
/// reads all that was published around it. No index says whether an entry is held, or by which worker. A large offset
/// merges all lanes. Which one is the worst differs between databases, so each is tried, and the slowest is used.
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

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let names = ["postgres_list_load_publish", "postgres_list_load_p99"];
    if bench.wanted.has_any(&names) {
        let database = bench.server()?.database().await?;
        let callers = prepare(&database.url, bench.scale.list_load).await?;
        database.vacuum().await?;
        bench.server()?.checkpoint().await?;
        outcomes.extend(compare(bench, names, &database.url, &callers).await?);
    }
    let names = ["sqlite_list_load_publish", "sqlite_list_load_p99"];
    if bench.wanted.has_any(&names) {
        let folder = bench.sqlite_folder()?;
        let file = folder.path().join("tidegate.db").to_string_lossy().into_owned();
        let callers = prepare(&file, bench.scale.list_load).await?;
        outcomes.extend(compare(bench, names, &file, &callers).await?);
    }
    Ok(outcomes)
}

/// The API keys of the clients.
struct Callers {
    publisher: String,
    listers: Vec<Lister>,
}

/// A client that lists.
struct Lister {
    key: String,
    /// When about half of its events were published.
    moment: Timestamp,
}

/// Creates the clients' queues and keys, and fills the queues of those that list.
async fn prepare(address: &str, count: usize) -> Result<Callers> {
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

/// Publishes events of one client and ends four in five of them, each in another way; returns the moment when about
/// half of them were published.
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
        // Every tag occurs with every kind of end; one event in five stays live.
        if let Some(end) = End::ALL.get(number % (End::ALL.len() + 1)) {
            ends.push(Finalize { id, token: None, end: *end, errors: None, results: None, attempt: None });
        }
    }
    for answer in queue.store().finalize(ends).await? {
        answer?;
    }
    Ok(())
}

async fn compare(bench: &Bench, names: [&str; 2], address: &str, callers: &Callers) -> Result<Vec<Measured>> {
    let served = Served::start_with_keys(address).await?;
    let (worst, mut notes) = try_alone(served.address, &callers.listers, names[0]).await?;
    let time = bench.scale.serve * 2;
    // The first run pays for plans, lanes and connections, and is not counted.
    publish(served.address, &callers.publisher, bench.scale.serve).await?;
    let (mut rates, mut p99s, mut lists) = (Pair::default(), Pair::default(), Vec::new());
    for run in 1..=bench.scale.runs {
        let without = publish(served.address, &callers.publisher, time).await?;
        let listing = Listing::start(served.address, &callers.listers, worst).await?;
        tokio::time::sleep(LEAD).await;
        let before = listing.counts();
        let with = publish(served.address, &callers.publisher, time).await?;
        let after = listing.counts();
        listing.stop().await?;
        let [answered, refused] = [0, 1].map(|kind| rate(after[kind] - before[kind], time));
        let figures = format!(
            "{} vs {} requests/s, p99 {} vs {} ms, {} lists/s answered and {} refused",
            short(with.rate),
            short(without.rate),
            short(with.p99),
            short(without.p99),
            short(answered),
            short(refused)
        );
        progress(&format!("{} {run}/{}: {figures}", names[0], bench.scale.runs));
        rates.ours.push(with.rate);
        rates.baseline.push(without.rate);
        p99s.ours.push(with.p99);
        p99s.baseline.push(without.p99);
        lists.push((answered, refused));
    }
    served.stop().await?;
    if lists.iter().all(|(answered, refused)| answered + refused == 0.0) {
        return Err("no list was answered or refused while events were published".into());
    }
    let middle = |part: fn(&(f64, f64)) -> f64| short(median(&lists.iter().map(part).collect::<Vec<_>>()));
    notes.push(format!("beside publishing {} lists/s answered, {} refused", middle(|one| one.0), middle(|one| one.1)));
    let publish = notes.into_iter().fold(Measured::beside(known(names[0])?, rates), Measured::note);
    Ok(vec![publish, Measured::beside(known(names[1])?, p99s)])
}

/// Sends each query to the idle server; returns the index of the slowest one, and a note on each.
async fn try_alone(address: SocketAddr, listers: &[Lister], name: &str) -> Result<(usize, Vec<String>)> {
    let lister = listers.first().ok_or("there is no client that lists")?;
    let mut connection = Connection::open(address).await?.with_key(&lister.key);
    let (mut worst, mut notes) = ((0, 0.0), Vec::new());
    for (number, query) in queries(lister.moment).iter().enumerate() {
        list(&mut connection, query).await?;
        // Wait for the end of the list gate's pause, so that it is not part of the measured time.
        tokio::time::sleep(MAX_PAUSE).await;
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

/// Sends a list query. The server answers 503 if it takes too long, or is not admitted.
async fn list(connection: &mut Connection, query: &str) -> Result<u16> {
    let answer = connection.call("GET", query, b"").await?;
    match answer.status {
        200 | 503 => Ok(answer.status),
        other => Err(format!("{query} answered {other}: {}", String::from_utf8_lossy(answer.body)).into()),
    }
}

/// Clients that send lists one after the other until stopped.
struct Listing {
    stop: Arc<AtomicBool>,
    /// Lists that were answered, and lists that were refused.
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

    /// Stops the clients and waits for their last lists.
    async fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// What the publishers measured.
struct Published {
    /// Requests per second.
    rate: f64,
    /// The 99th percentile of a request, in milliseconds.
    p99: f64,
}

/// Publishes one event per request on every connection for this long.
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
    let times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    let rate = rate(times.len(), took);
    Ok(Published { rate, p99: p99(times).ok_or("nothing was published")? })
}
