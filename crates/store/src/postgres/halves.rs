//! One bad item must not fail its batch: where the database refuses a batch because of a value in it (a character that its
//! encoding lacks), the batch is halved until the refusal is the one item's own.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{ErrorKind, Result};
use crate::store::Batch;

/// Work on a batch; it answers for each item or fails as a whole.
pub(super) type OnBatch<'a, I, T> = dyn Fn(Vec<I>) -> BoxFuture<'a, Result<Batch<T>>> + Send + Sync + 'a;

/// Runs work on a batch, and on its halves where the database refuses a value.
pub(super) fn in_halves<'a, I: Clone + Send + Sync + 'a, T: Send + 'a>(
    items: Vec<I>,
    work: &'a OnBatch<'a, I, T>,
) -> BoxFuture<'a, Result<Batch<T>>> {
    async move {
        if items.len() < 2 {
            return work(items).await;
        }
        match work(items.clone()).await {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let (first, rest) = items.split_at(items.len() / 2);
                let mut answers = alone(first.to_vec(), work).await;
                answers.extend(alone(rest.to_vec(), work).await);
                Ok(answers)
            }
            answers => answers,
        }
    }
    .boxed()
}

/// The answers of a part: an error of all of it is each item's.
async fn alone<'a, I: Clone + Send + Sync + 'a, T: Send + 'a>(items: Vec<I>, work: &'a OnBatch<'a, I, T>) -> Batch<T> {
    let count = items.len();
    match in_halves(items, work).await {
        Ok(answers) => answers,
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}
