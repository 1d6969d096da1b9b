//! One read for many callers, each of whom needs an answer that was read after it asked.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::Result;

/// Reads a value, one read at a time. Callers that come while a read is under way share the next one, so each answer was
/// read after its caller came, and however many callers there are, no more than one read runs.
#[derive(Debug)]
pub(crate) struct SharedRead<T> {
    /// How many reads were begun.
    begun: AtomicU64,
    /// The answer of the last read, with its number.
    last: Mutex<Option<(u64, Result<T>)>>,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), last: Mutex::default() }
    }
}

impl<T: Clone> SharedRead<T> {
    /// The value as `read` finds it, or as the read of another caller found it that began after this call. An error is
    /// shared too: while the store does not answer, callers do not wait for one failure after the other.
    ///
    /// # Errors
    /// That of the read.
    pub(crate) async fn get<F: Future<Output = Result<T>>>(&self, read: impl FnOnce() -> F) -> Result<T> {
        let begun = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some((number, answer)) = &*last
            && *number > begun
        {
            return answer.clone();
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = read().await;
        *last = Some((number, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Semaphore;

    use super::*;
    use crate::error::{Error, ErrorKind};

    /// A value that rises with every read; reads wait for a permit.
    #[derive(Debug, Default)]
    struct Source {
        shared: SharedRead<usize>,
        reads: AtomicUsize,
        permits: Option<Semaphore>,
        fails: bool,
    }

    impl Source {
        async fn get(self: Arc<Self>) -> Result<usize> {
            self.shared
                .get(|| async {
                    let number = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
                    if let Some(permits) = &self.permits {
                        permits.acquire().await.expect("it is open").forget();
                    }
                    if self.fails { Err(Error::new(ErrorKind::Unavailable, "down")) } else { Ok(number) }
                })
                .await
        }

        fn reads(&self) -> usize {
            self.reads.load(Ordering::SeqCst)
        }

        fn allow(&self, reads: usize) {
            self.permits.as_ref().expect("reads wait").add_permits(reads);
        }
    }

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_comes_during_a_read_shares_the_next() {
        let source = Arc::new(Source { permits: Some(Semaphore::new(0)), ..Source::default() });
        let first = tokio::spawn(Arc::clone(&source).get());
        settle().await;
        assert_eq!(source.reads(), 1);
        let others: Vec<_> = (0..20).map(|_| tokio::spawn(Arc::clone(&source).get())).collect();
        settle().await;
        source.allow(1);
        assert_eq!(first.await.unwrap().unwrap(), 1);
        source.allow(1);
        for other in others {
            assert_eq!(other.await.unwrap().unwrap(), 2, "not the read that was under way");
        }
        source.allow(1);
        assert_eq!(Arc::clone(&source).get().await.unwrap(), 3, "an answer is never used again");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_its_read_to_the_next() {
        let source = Arc::new(Source { permits: Some(Semaphore::new(0)), ..Source::default() });
        let first = tokio::spawn(Arc::clone(&source).get());
        settle().await;
        let second = tokio::spawn(Arc::clone(&source).get());
        settle().await;
        first.abort();
        source.allow(1);
        assert_eq!(second.await.unwrap().unwrap(), 2);
    }

    #[tokio::test]
    async fn errors_are_shared_as_answers_are() {
        let source = Arc::new(Source { permits: Some(Semaphore::new(0)), fails: true, ..Source::default() });
        let callers: Vec<_> = (0..20).map(|_| tokio::spawn(Arc::clone(&source).get())).collect();
        settle().await;
        source.allow(2);
        for caller in callers {
            assert_eq!(caller.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(source.reads(), 2);
    }
}
