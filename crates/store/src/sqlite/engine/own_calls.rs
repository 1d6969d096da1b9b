//! Which tasks and threads hold a store's writer, so that a call that would wait for itself is refused at once.

use std::cell::Cell;
use std::sync::Arc;

use super::inbox::Inbox;
use crate::error::{Error, Result};

tokio::task_local! {
    /// The stores whose writer this task holds.
    pub(in crate::sqlite) static HELD: Vec<usize>;
}

thread_local! {
    /// The store whose writer this thread is.
    static WRITER_OF: Cell<usize> = const { Cell::new(0) };
}

/// A number that identifies an open store.
pub(in crate::sqlite) fn number(inbox: &Arc<Inbox>) -> usize {
    Arc::as_ptr(inbox).addr()
}

/// Marks this thread as the store's writer.
pub(in crate::sqlite) fn mark_thread(inbox: &Arc<Inbox>) {
    WRITER_OF.set(number(inbox));
}

/// Refuses a call by the task or thread that holds the writer: it would wait for itself.
pub(in crate::sqlite) fn refuse_own_call(inbox: &Arc<Inbox>) -> Result<()> {
    let this = number(inbox);
    if WRITER_OF.get() == this || HELD.try_with(|held| held.contains(&this)).unwrap_or(false) {
        return Err(Error::invalid(
            "this call would wait for the transaction that it is made in: use the transaction's own methods \
             (its publish, execute and query), or make the call after the transaction",
        ));
    }
    Ok(())
}
