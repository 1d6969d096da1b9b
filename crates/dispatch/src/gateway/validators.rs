//! Compiled schemas, bounded in bytes: one is compiled once, however many ask for it at once. Those that were not used for
//! the longest time go first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_schema::Validator;
use tokio::sync::OnceCell;

use super::error::Result;

/// A schema's code and edition: together they name one text.
pub(super) type Key = (String, u32);

/// What an entry of the cache takes beside its validator, in bytes.
const OVERHEAD: usize = 512;

/// The cache.
#[derive(Debug)]
pub(super) struct Validators {
    entries: Mutex<HashMap<Key, Arc<Entry>>>,
    /// The most bytes that all may occupy.
    budget: usize,
    /// Rises with every use: which was used before which.
    clock: AtomicU64,
}

#[derive(Debug, Default)]
struct Entry {
    compiled: OnceCell<Arc<dyn Validator>>,
    size: AtomicUsize,
    used: AtomicU64,
    /// How many callers wait for it to be compiled, or compile it. Changes under the lock of the entries only.
    waiting: AtomicUsize,
}

/// A caller for whom an entry is compiled. An entry that is not, and that nobody waits for any more, is forgotten, also
/// when its last caller has hung up.
struct Waiting<'c> {
    cache: &'c Validators,
    key: Key,
    entry: Arc<Entry>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut entries = self.cache.lock();
        let was_last = self.entry.waiting.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last && !self.entry.compiled.initialized() {
            entries.remove(&self.key);
        }
    }
}

impl Validators {
    pub(super) fn new(budget: usize) -> Self {
        Self { entries: Mutex::default(), budget, clock: AtomicU64::new(0) }
    }

    /// The validator of a key. Of those who ask at once, one compiles it; after an error the next one tries again.
    pub(super) async fn get<F>(&self, key: Key, compile: impl FnOnce() -> F) -> Result<Arc<dyn Validator>>
    where
        F: Future<Output = Result<Box<dyn Validator>>>,
    {
        let waiting = match self.find(key) {
            Ok(compiled) => return Ok(compiled),
            Err(waiting) => waiting,
        };
        let entry = &waiting.entry;
        let compiled = entry.compiled.get_or_try_init(|| async { compile().await.map(Arc::from) }).await?;
        entry.size.store(compiled.size().saturating_add(OVERHEAD), Ordering::Relaxed);
        self.make_room();
        Ok(Arc::clone(compiled))
    }

    /// What is compiled under a key, or the entry in which it will be.
    fn find(&self, key: Key) -> Result<Arc<dyn Validator>, Waiting<'_>> {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(compiled) = entry.compiled.get() {
            return Ok(Arc::clone(compiled));
        }
        entry.waiting.fetch_add(1, Ordering::Relaxed);
        Err(Waiting { cache: self, key, entry: Arc::clone(entry) })
    }

    /// Forgets those that were not used for the longest time, down to nine tenths of the budget.
    fn make_room(&self) {
        let mut entries = self.lock();
        let size = |entry: &Arc<Entry>| entry.size.load(Ordering::Relaxed);
        let mut occupied: usize = entries.values().map(size).sum();
        if occupied <= self.budget {
            return;
        }
        let mut by_use: Vec<(u64, usize, Key)> = entries
            .iter()
            .filter(|(_, entry)| entry.compiled.initialized())
            .map(|(key, entry)| (entry.used.load(Ordering::Relaxed), size(entry), key.clone()))
            .collect();
        by_use.sort_unstable();
        // The one that was used last stays, even if it is larger than the budget.
        by_use.pop();
        for (_, size, key) in by_use {
            if occupied <= self.budget / 10 * 9 {
                break;
            }
            occupied = occupied.saturating_sub(size);
            entries.remove(&key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_schema::{Document, Report};

    use super::super::error::GatewayError;
    use super::*;

    #[derive(Debug)]
    struct Sized(usize);

    impl Validator for Sized {
        fn validate(&self, _: Document<'_>) -> Report {
            Report::default()
        }

        fn size(&self) -> usize {
            self.0
        }
    }

    fn key(number: u32) -> Key {
        ("schema".into(), number)
    }

    /// Asks for one; returns whether it was compiled for that.
    async fn ask(cache: &Validators, number: u32, size: usize) -> bool {
        let compiled = AtomicUsize::new(0);
        let compile = || async {
            compiled.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Sized(size)) as Box<dyn Validator>)
        };
        cache.get(key(number), compile).await.unwrap();
        compiled.into_inner() == 1
    }

    #[tokio::test]
    async fn what_was_not_used_for_long_makes_room() {
        let cache = Validators::new(10 * (1_000 + OVERHEAD));
        for number in 0..10 {
            assert!(ask(&cache, number, 1_000).await);
        }
        assert!(!ask(&cache, 0, 1_000).await, "all fit, and 0 was used last");
        assert!(ask(&cache, 10, 1_000).await);
        assert!(!ask(&cache, 0, 1_000).await && !ask(&cache, 10, 1_000).await);
        assert!(ask(&cache, 1, 1_000).await, "the one that was used before all others is gone");
        assert!(ask(&cache, 99, 1_000_000).await, "one that is larger than the budget is used");
        assert!(!ask(&cache, 99, 1_000_000).await && ask(&cache, 0, 1_000).await, "and kept as the only one");
    }

    #[tokio::test]
    async fn those_who_ask_at_once_share_one_compilation() {
        let cache = Arc::new(Validators::new(1 << 20));
        let compiled = Arc::new(AtomicUsize::new(0));
        let ask = |_| {
            let (cache, compiled) = (Arc::clone(&cache), Arc::clone(&compiled));
            tokio::spawn(async move {
                let compile = || async {
                    compiled.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok(Box::new(Sized(1)) as Box<dyn Validator>)
                };
                cache.get(key(1), compile).await.map(drop)
            })
        };
        let all: Vec<_> = (0..100).map(ask).collect();
        for one in all {
            one.await.unwrap().unwrap();
        }
        assert_eq!(compiled.load(Ordering::SeqCst), 1);
    }

    /// Polls once, and returns what was asked for if it is there.
    async fn polled<T>(asked: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        tokio::select! {
            biased;
            done = asked => Some(done),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn a_caller_that_hangs_up_leaves_nothing() {
        let cache = Validators::new(1 << 20);
        let never = || std::future::pending::<Result<Box<dyn Validator>>>();
        let (mut first, mut second) = (Box::pin(cache.get(key(1), never)), Box::pin(cache.get(key(1), never)));
        assert!(polled(&mut first).await.is_none() && polled(&mut second).await.is_none());
        drop(first);
        assert_eq!(cache.lock().len(), 1, "the other one still waits");
        drop(second);
        assert!(cache.lock().is_empty());
    }

    #[tokio::test]
    async fn what_fails_for_one_is_compiled_once_for_the_others() {
        let cache = Validators::new(1 << 20);
        let (fail, failing) = tokio::sync::oneshot::channel::<()>();
        let (go, going) = tokio::sync::oneshot::channel::<()>();
        let mut first = Box::pin(cache.get(key(1), || async {
            failing.await.ok();
            Err(GatewayError::Conflict("no".into()))
        }));
        let mut second = Box::pin(cache.get(key(1), || async {
            going.await.ok();
            Ok(Box::new(Sized(1)) as Box<dyn Validator>)
        }));
        assert!(polled(&mut first).await.is_none() && polled(&mut second).await.is_none());
        fail.send(()).unwrap();
        assert!(first.await.is_err());
        assert!(polled(&mut second).await.is_none(), "now the second one compiles");
        let mut third = Box::pin(cache.get(key(1), || async { panic!("compiled twice") }));
        assert!(polled(&mut third).await.is_none());
        go.send(()).unwrap();
        assert!(second.await.is_ok() && third.await.is_ok());
        assert!(!ask(&cache, 1, 1).await, "it is kept");
    }

    #[tokio::test]
    async fn an_error_is_not_kept() {
        let cache = Validators::new(1 << 20);
        let fails = || async { Err(GatewayError::Conflict("no".into())) };
        assert!(cache.get(key(1), fails).await.is_err());
        assert!(cache.lock().is_empty());
        assert!(ask(&cache, 1, 1).await);
    }
}
