use rand::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_core::{NewEvent, Tsid};
use tidegate_store::*;

async fn open(target: &str) -> Arc<dyn Store> {
    if target.starts_with("postgres") {
        Arc::new(postgres::PostgresStore::open(target, Default::default()).await.unwrap())
    } else {
        Arc::new(sqlite::SqliteStore::open(target, Default::default()).await.unwrap())
    }
}

fn item(terms: usize, texts: bool, keys: bool) -> Ingest {
    let mut rng = rand::rng();
    let mut fact = NewEvent::new(format!("app:sub:agg:ev{}", rng.random_range(0..20)), vec![b'x'; 200]);
    fact.client = Some(Tsid::from_i64(rng.random_range(1..11)));
    let hex = |rng: &mut rand::rngs::ThreadRng| format!("{:032x}", rng.random::<u128>());
    if texts {
        fact.source = Some(format!("/src/{}", rng.random_range(0..5)));
        fact.subject = Some(format!("order-{}", rng.random_range(0..500_000)));
        fact.external_id = Some(hex(&mut rng));
        fact.correlation_id = Some(format!("{}", rng.random_range(0..200_000)));
    }
    let all =
        [("tenant", rng.random_range(0..20_u64)), ("order", rng.random_range(0..1_000_000)), ("trace", rng.random())];
    let terms = all[..terms].iter().map(|(n, v)| FactTerm::new(*n, v.to_string())).collect();
    let mut item = Ingest { terms, stands_alone: true, ..Ingest::new(fact, vec![]) };
    if keys {
        item.keys = vec![FactKey::identity("/s", &hex(&mut rng), 1, Duration::from_secs(86400))];
    }
    item
}

async fn put(store: &Arc<dyn Store>, n: usize, batch: usize, make: impl Fn() -> Ingest) -> f64 {
    let mut spent = Duration::ZERO;
    for _ in 0..n / batch {
        let items: Vec<Ingest> = (0..batch).map(|_| make()).collect();
        let at = Instant::now();
        store.ingest(items, None).await.unwrap();
        spent += at.elapsed();
    }
    n as f64 / spent.as_secs_f64()
}

async fn timed(name: &str, store: &Arc<dyn Store>, rounds: usize, make: impl Fn() -> FactsQuery) {
    let mut times = Vec::new();
    let mut found = 0;
    for _ in 0..rounds {
        let query = make();
        let at = Instant::now();
        found += store.find_facts(query).await.unwrap().facts.len();
        times.push(at.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{name:28} p50 {:7.2} ms  p99 {:7.2} ms  found {:.1}",
        times[rounds / 2],
        times[rounds * 99 / 100],
        found as f64 / rounds as f64
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (target, load): (&str, usize) = (&args[1], args[2].parse().unwrap());
    let store = open(target).await;
    for round in 0..2 {
        for (name, terms, texts, keys) in [
            ("bare", 0, false, false),
            ("3 terms", 3, false, false),
            ("texts", 0, true, false),
            ("texts + 3 terms", 3, true, false),
            ("texts + 3 terms + key", 3, true, true),
        ] {
            let rate = put(&store, 64 * 60, 64, || item(terms, texts, keys)).await;
            println!("round {round} batches of 64, {name:24} {rate:9.0} facts/s");
        }
        if round == 0 {
            let at = Instant::now();
            let rate = put(&store, load, 2_000, || item(3, true, false)).await;
            println!("loaded {load} in {:?}: {rate:.0} facts/s", at.elapsed());
        }
    }
    let rng = || rand::rng();
    let client = || Some(Some(Tsid::from_i64(rand::rng().random_range(1..11))));
    let base = |client| FactsQuery { client, limit: 50, targets: 100, ..FactsQuery::default() };
    let n = 500;
    timed("correlation id, client", &store, n, || FactsQuery {
        correlation_id: Some(rng().random_range(0..200_000).to_string()),
        ..base(client())
    })
    .await;
    timed("correlation id, all", &store, n, || FactsQuery {
        correlation_id: Some(rand::rng().random_range(0..200_000).to_string()),
        ..base(None)
    })
    .await;
    timed("rare term, client", &store, n, || FactsQuery {
        terms: vec![FactTerm::new("order", rand::rng().random_range(0..1_000_000).to_string())],
        ..base(client())
    })
    .await;
    timed("rare term, all", &store, n, || FactsQuery {
        terms: vec![FactTerm::new("order", rand::rng().random_range(0..1_000_000).to_string())],
        ..base(None)
    })
    .await;
    timed("common term, client", &store, n, || FactsQuery {
        terms: vec![FactTerm::new("tenant", rand::rng().random_range(0..20).to_string())],
        ..base(client())
    })
    .await;
    timed("common term, all", &store, n, || FactsQuery {
        terms: vec![FactTerm::new("tenant", rand::rng().random_range(0..20).to_string())],
        ..base(None)
    })
    .await;
    timed("type, client", &store, n, || FactsQuery {
        event_type: Some(TypeFilter::Exact("app:sub:agg:ev3".into())),
        ..base(client())
    })
    .await;
    timed("pattern, client", &store, n, || FactsQuery {
        event_type: Some(TypeFilter::Pattern("app:*:agg:*".parse().unwrap())),
        ..base(client())
    })
    .await;
    timed("pattern, all", &store, n, || FactsQuery {
        event_type: Some(TypeFilter::Pattern("app:*:agg:*".parse().unwrap())),
        ..base(None)
    })
    .await;
    timed("nothing, client", &store, n, || base(client())).await;
    timed("nothing, all", &store, n, || base(None)).await;
    timed("source + subject, client", &store, n, || FactsQuery {
        source: Some("/src/1".into()),
        subject: Some(format!("order-{}", rand::rng().random_range(0..500_000))),
        ..base(client())
    })
    .await;
    timed("type + common term (worst)", &store, 20, || FactsQuery {
        event_type: Some(TypeFilter::Exact("no".into())),
        terms: vec![FactTerm::new("tenant", "1")],
        ..base(client())
    })
    .await;
    store.close().await;
}
