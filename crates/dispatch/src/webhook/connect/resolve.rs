//! Names to addresses: by the machine's configuration, a bounded number of look-ups at once, each in bounded time, and one
//! for all that ask for the same name. Does not judge addresses.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::NetError;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::lack;

/// How many look-ups are under way at once. They wait for a socket, not for a thread.
const AT_ONCE: usize = 256;
/// How long a look-up may take, with what it waits for others.
const LONGEST: Duration = Duration::from_secs(5);
/// How long one server's answer is waited for at most, so that a packet that is lost can be sent again in time.
const ONE_SERVER: Duration = Duration::from_secs(2);
/// How many answers are remembered.
const REMEMBERED: u64 = 1_024;
/// How long an answer is remembered, whatever its owner says.
const REMEMBERED_FOR: Duration = Duration::from_secs(60 * 60);
/// The same if there is no such name.
const NOTHING_REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// Finds the addresses of a name.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of a name, in the order in which they are to be tried.
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>>;
}

/// Why a name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// It took too long.
    #[error("looking it up took longer than allowed")]
    Timeout,
    /// There is no such name, or no answer.
    #[error("{0}")]
    Failed(String),
    /// Nobody was asked, for a reason on this node.
    #[error("{0}")]
    Local(String),
}

/// Resolves by the system's configuration: `/etc/resolv.conf` and `/etc/hosts`, read when it is made.
pub struct SystemResolver(TokioResolver);

impl SystemResolver {
    /// Reads the system's configuration.
    pub fn new() -> Result<Self, ResolveError> {
        let failed = |error: &dyn fmt::Display| ResolveError::Failed(format!("no resolver can be made: {error}"));
        let mut builder = TokioResolver::builder_tokio().map_err(|error| failed(&error))?;
        let options = builder.options_mut();
        options.timeout = options.timeout.min(ONE_SERVER);
        options.cache_size = REMEMBERED;
        options.positive_max_ttl = Some(REMEMBERED_FOR);
        options.negative_max_ttl = Some(NOTHING_REMEMBERED_FOR);
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        Ok(Self(builder.build().map_err(|error| failed(&error))?))
    }
}

impl fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SystemResolver")
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        let resolver = self.0.clone();
        Box::pin(async move {
            let found = resolver.lookup_ip(name).await;
            found.map(|found| found.iter().collect()).map_err(of_resolver)
        })
    }
}

fn of_resolver(error: NetError) -> ResolveError {
    let lack = match &error {
        NetError::Io(error) => lack::of_sockets(error),
        _ => None,
    };
    match lack {
        Some(lack) => ResolveError::Local(lack.to_owned()),
        None => ResolveError::Failed(error.to_string()),
    }
}

type Answer = Result<Arc<[IpAddr]>, ResolveError>;
type UnderWay = Arc<Mutex<HashMap<String, watch::Receiver<Option<Answer>>>>>;

/// The look-ups that are under way.
pub(super) struct Lookups {
    resolver: Arc<dyn Resolve>,
    slots: Arc<Semaphore>,
    under_way: UnderWay,
}

/// Takes a look-up off the list, also if the resolver panicked.
struct Listed {
    under_way: UnderWay,
    name: String,
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.under_way).remove(&self.name);
    }
}

impl Lookups {
    pub(super) fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, slots: Arc::new(Semaphore::new(AT_ONCE)), under_way: UnderWay::default() }
    }

    /// The addresses of a name, by the look-up that is under way if there is one.
    pub(super) async fn addresses(&self, name: &str) -> Answer {
        let mut answer = self.started(name);
        let answer = answer.wait_for(Option::is_some).await;
        let failed = || ResolveError::Failed("the look-up broke off".into());
        answer.map_err(|_| failed()).and_then(|answer| answer.clone().unwrap_or_else(|| Err(failed())))
    }

    /// The look-up goes on if its first caller does not.
    fn started(&self, name: &str) -> watch::Receiver<Option<Answer>> {
        let mut under_way = lock(&self.under_way);
        if let Some(answer) = under_way.get(name) {
            return answer.clone();
        }
        let (sender, receiver) = watch::channel(None);
        under_way.insert(name.to_owned(), receiver.clone());
        let listed = Listed { under_way: Arc::clone(&self.under_way), name: name.to_owned() };
        let (slots, resolver, name) = (Arc::clone(&self.slots), Arc::clone(&self.resolver), name.to_owned());
        tokio::spawn(async move {
            let look_up = async {
                let _slot = slots.acquire().await;
                resolver.resolve(name).await
            };
            let found = timeout(LONGEST, look_up).await.unwrap_or(Err(ResolveError::Timeout));
            // Who comes from now on starts anew.
            drop(listed);
            sender.send_replace(Some(found.map(Arc::from)));
        });
        receiver
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// Counts its look-ups; those of `hang` never end, those of `panic` panic.
    #[derive(Default)]
    struct Counting {
        calls: AtomicUsize,
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    struct Present(Arc<AtomicUsize>);

    impl Drop for Present {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Resolve for Counting {
        fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let (now, most) = (Arc::clone(&self.now), Arc::clone(&self.most));
            Box::pin(async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _present = Present(now);
                assert_ne!(name, "panic");
                if name.starts_with("hang") {
                    std::future::pending::<()>().await;
                }
                tokio::task::yield_now().await;
                Ok(vec![IpAddr::from([8, 8, 8, 8])])
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_up_serves_all_that_ask_for_the_name() {
        let resolver = Arc::new(Counting::default());
        let lookups = Lookups::new(Arc::clone(&resolver) as Arc<dyn Resolve>);
        let answers = join_all((0..100).map(|_| lookups.addresses("a.example"))).await;
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap()[..] == [IpAddr::from([8, 8, 8, 8])]));
        assert_eq!(resolver.calls.load(Ordering::SeqCst), 1);
        lookups.addresses("a.example").await.unwrap();
        assert_eq!(resolver.calls.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_are_bounded_in_number_and_time() {
        let resolver = Arc::new(Counting::default());
        let lookups = Lookups::new(Arc::clone(&resolver) as Arc<dyn Resolve>);
        let names: Vec<String> = (0..1_000).map(|number| format!("hang{number}")).collect();
        let started = Instant::now();
        let answers = join_all(names.iter().map(|name| lookups.addresses(name))).await;
        assert!(answers.iter().all(|answer| answer == &Err(ResolveError::Timeout)));
        assert_eq!(started.elapsed().as_secs(), LONGEST.as_secs());
        assert_eq!(resolver.most.load(Ordering::SeqCst), AT_ONCE);
        assert!(lock(&lookups.under_way).is_empty());
        assert!(lookups.addresses("a.example").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_and_a_resolver_that_breaks_leave_nothing() {
        let lookups = Lookups::new(Arc::new(Counting::default()));
        assert!(timeout(Duration::from_secs(1), lookups.addresses("hang")).await.is_err());
        assert!(lookups.addresses("panic").await.is_err());
        assert_eq!(lookups.addresses("hang").await, Err(ResolveError::Timeout));
        assert!(lock(&lookups.under_way).is_empty());
    }
}
