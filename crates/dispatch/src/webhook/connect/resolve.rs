//! Names to addresses: by the machine's configuration, a bounded number of look-ups at once, each in bounded time, and one
//! for all that ask for the same name. What a look-up waits for others is told apart from what it takes. Does not judge
//! addresses.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::NetError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::known::Known;
use super::lack;

/// How many look-ups are under way at once, of names that answered when they were asked for last. They wait for a socket, not for a
/// thread.
const KNOWN_AT_ONCE: usize = 192;
/// The same of other names. They have places of their own, so that any number of names whose server says nothing holds up none that
/// webhooks are sent to.
const OTHERS_AT_ONCE: usize = 64;
/// How long a look-up may take once somebody is asked.
const LONGEST: Duration = Duration::from_secs(5);
/// How long it may wait for others before.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Why nobody was asked.
const BUSY: &str = "this node looks up as many names as it does at once: see whether its name servers answer";
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

pub(super) type Answer = Result<Arc<[IpAddr]>, ResolveError>;
type UnderWay = Arc<Mutex<HashMap<String, watch::Receiver<Progress>>>>;

/// The look-ups that are under way.
pub(super) struct Lookups {
    resolver: Arc<dyn Resolve>,
    known: Arc<Mutex<Known>>,
    of_known: Arc<Semaphore>,
    of_others: Arc<Semaphore>,
    under_way: UnderWay,
}

/// A look-up, which may serve several callers.
pub(super) struct LookUp(watch::Receiver<Progress>);

/// How far a look-up is.
enum Progress {
    /// It waits for others.
    Waiting,
    Asking,
    Done(Answer),
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

impl LookUp {
    /// Waits until somebody is asked, or nobody will be.
    pub(super) async fn begun(&mut self) {
        // If the look-up broke off, its answer says so.
        let _ = self.0.wait_for(|progress| !matches!(progress, Progress::Waiting)).await;
    }

    pub(super) async fn answer(mut self) -> Answer {
        match self.0.wait_for(|progress| matches!(progress, Progress::Done(_))).await.as_deref() {
            Ok(Progress::Done(answer)) => answer.clone(),
            Ok(_) | Err(_) => Err(ResolveError::Failed("the look-up broke off".into())),
        }
    }
}

impl Lookups {
    pub(super) fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self {
            resolver,
            known: Arc::default(),
            of_known: Arc::new(Semaphore::new(KNOWN_AT_ONCE)),
            of_others: Arc::new(Semaphore::new(OTHERS_AT_ONCE)),
            under_way: UnderWay::default(),
        }
    }

    /// A look-up of a name: the one that is under way if there is one, and none where there is a recent answer and no place to ask
    /// for another. It goes on if its first caller does not.
    pub(super) fn of(&self, name: &str) -> LookUp {
        let mut under_way = lock(&self.under_way);
        if let Some(progress) = under_way.get(name) {
            return LookUp(progress.clone());
        }
        let (is_known, recent) = {
            let known = lock(&self.known);
            (known.has(name), known.recent(name, Instant::now()))
        };
        let slots = if is_known { &self.of_known } else { &self.of_others };
        let slot = Arc::clone(slots).try_acquire_owned().ok();
        if let (None, Some(addresses)) = (&slot, recent) {
            return LookUp(watch::channel(Progress::Done(Ok(addresses))).1);
        }
        let first = if slot.is_some() { Progress::Asking } else { Progress::Waiting };
        let (sender, receiver) = watch::channel(first);
        under_way.insert(name.to_owned(), receiver.clone());
        let listed = Listed { under_way: Arc::clone(&self.under_way), name: name.to_owned() };
        let (slots, resolver, known) = (Arc::clone(slots), Arc::clone(&self.resolver), Arc::clone(&self.known));
        tokio::spawn(async move {
            let answer = look_up(slot, slots, resolver, &listed.name, &sender).await;
            lock(&known).note(&listed.name, &answer, Instant::now());
            // Who comes from now on starts anew.
            drop(listed);
            sender.send_replace(Progress::Done(answer));
        });
        LookUp(receiver)
    }
}

/// Looks a name up as soon as there is a slot for it.
async fn look_up(
    slot: Option<OwnedSemaphorePermit>,
    slots: Arc<Semaphore>,
    resolver: Arc<dyn Resolve>,
    name: &str,
    progress: &watch::Sender<Progress>,
) -> Answer {
    let _slot = match slot {
        Some(slot) => slot,
        None => match timeout(LONGEST_WAIT, slots.acquire_owned()).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(_)) | Err(_) => return Err(ResolveError::Local(BUSY.into())),
        },
    };
    progress.send_replace(Progress::Asking);
    let found = timeout(LONGEST, resolver.resolve(name.to_owned())).await.unwrap_or(Err(ResolveError::Timeout));
    found.map(Arc::from)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    /// Counts its look-ups; those of `hang` never end, those of `panic` panic.
    #[derive(Default)]
    struct Counting {
        /// From now on no look-up ends.
        is_silent: AtomicBool,
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
            let is_silent = self.is_silent.load(Ordering::SeqCst);
            let (now, most) = (Arc::clone(&self.now), Arc::clone(&self.most));
            Box::pin(async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _present = Present(now);
                assert_ne!(name, "panic");
                if is_silent || name.starts_with("hang") {
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

    impl Lookups {
        async fn addresses(&self, name: &str) -> Answer {
            self.of(name).answer().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_are_bounded_in_number_and_time() {
        let resolver = Arc::new(Counting::default());
        let lookups = Lookups::new(Arc::clone(&resolver) as Arc<dyn Resolve>);
        let names: Vec<String> = (0..1_000).map(|number| format!("hang{number}")).collect();
        let started = Instant::now();
        let answers = join_all(names.iter().map(|name| lookups.addresses(name))).await;
        let asked = answers.iter().filter(|answer| **answer == Err(ResolveError::Timeout)).count();
        let unasked = answers.iter().filter(|answer| matches!(answer, Err(ResolveError::Local(_)))).count();
        assert!(asked >= OTHERS_AT_ONCE && asked + unasked == 1_000, "{asked} {unasked}");
        assert!(started.elapsed() <= LONGEST_WAIT + LONGEST, "{:?}", started.elapsed());
        assert_eq!(resolver.most.load(Ordering::SeqCst), OTHERS_AT_ONCE);
        assert!(lock(&lookups.under_way).is_empty());
        assert!(lookups.addresses("a.example").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_answer_do_not_wait_for_those_that_never_did() {
        let lookups = Lookups::new(Arc::new(Counting::default()));
        lookups.addresses("a.example").await.unwrap();
        // Until that is no recent answer any more.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let hanging: Vec<_> = (0..1_000).map(|number| lookups.of(&format!("hang{number}"))).collect();
        let started = Instant::now();
        lookups.addresses("a.example").await.unwrap();
        assert_eq!(started.elapsed(), Duration::ZERO);
        drop(hanging);
    }

    #[tokio::test(start_paused = true)]
    async fn a_recent_answer_is_taken_where_there_is_no_place_to_ask() {
        let resolver = Arc::new(Counting::default());
        let lookups = Lookups::new(Arc::clone(&resolver) as Arc<dyn Resolve>);
        let names: Vec<_> = (0..=KNOWN_AT_ONCE).map(|number| format!("{number}.example")).collect();
        for name in &names {
            lookups.addresses(name).await.unwrap();
        }
        resolver.is_silent.store(true, Ordering::SeqCst);
        let (last, first) = names.split_last().unwrap();
        let hanging: Vec<_> = first.iter().map(|name| lookups.of(name)).collect();
        let started = Instant::now();
        lookups.addresses(last).await.unwrap();
        assert_eq!(started.elapsed(), Duration::ZERO);
        for look_up in hanging {
            assert_eq!(look_up.answer().await, Err(ResolveError::Timeout));
        }
        // They have lost their places: nobody waits for them any more.
        let hanging: Vec<_> = first.iter().map(|name| lookups.of(name)).collect();
        resolver.is_silent.store(false, Ordering::SeqCst);
        let started = Instant::now();
        lookups.addresses(last).await.unwrap();
        assert_eq!(started.elapsed(), Duration::ZERO);
        drop(hanging);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_look_up_waits_for_others_is_told_apart() {
        let lookups = Lookups::new(Arc::new(Counting::default()));
        let hanging: Vec<_> = (0..OTHERS_AT_ONCE).map(|number| lookups.of(&format!("hang{number}"))).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut late = lookups.of("a.example");
        let started = Instant::now();
        late.begun().await;
        assert_eq!(started.elapsed(), LONGEST - Duration::from_secs(1));
        assert!(late.answer().await.is_ok());
        drop(hanging);
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
