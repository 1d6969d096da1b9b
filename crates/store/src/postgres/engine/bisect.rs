//! One bad item must not fail its batch: where the database refuses a batch because of a value in it (a character that
//! its encoding lacks), the batch is halved until the refused item is alone. Knows nothing of what the work is.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{ErrorKind, Result};
use crate::values::Batch;

/// Work on a batch, which answers each item or fails as a whole.
pub(in crate::postgres) type OnBatch<'a, I, T> = dyn Fn(Vec<I>) -> BoxFuture<'a, Result<Batch<T>>> + Send + Sync + 'a;

/// Runs work on a batch; if that fails as `Invalid`, on its halves.
pub(in crate::postgres) fn in_halves<'a, I: Clone + Send + Sync + 'a, T: Send + 'a>(
    items: Vec<I>,
    work: &'a OnBatch<'a, I, T>,
) -> BoxFuture<'a, Result<Batch<T>>> {
    async move {
        if items.len() < 2 {
            return work(items).await;
        }
        match work(items.clone()).await {
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(halves(items, work).await),
            answers => answers,
        }
    }
    .boxed()
}

/// Runs work on the halves of a batch of which the whole was refused.
pub(in crate::postgres) async fn halves<'a, I: Clone + Send + Sync + 'a, T: Send + 'a>(
    items: Vec<I>,
    work: &'a OnBatch<'a, I, T>,
) -> Batch<T> {
    let (first, rest) = items.split_at(items.len() / 2);
    let mut answers = half(first.to_vec(), work).await;
    answers.extend(half(rest.to_vec(), work).await);
    answers
}

/// The answers of one half; an error of the whole half becomes the answer of each item.
async fn half<'a, I: Clone + Send + Sync + 'a, T: Send + 'a>(items: Vec<I>, work: &'a OnBatch<'a, I, T>) -> Batch<T> {
    let count = items.len();
    match in_halves(items, work).await {
        Ok(answers) => answers,
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}
