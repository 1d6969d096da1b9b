//! State that all handlers of a server share: the queue, queues by name, waiters, credentials, and the budget for
//! bodies. Knows no routes and no SQL.

use std::sync::Arc;

use tidegate::EventQueue;
use tidegate_dispatch::Gateway;
use tokio::sync::watch;

use crate::auth::Authenticator;
use crate::body_budget::Bodies;
use crate::known_queues::KnownQueues;
use crate::options::Options;
use crate::waiters::Waiters;

/// The shared state of a server.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) queue: EventQueue,
    pub(crate) queues: KnownQueues,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) options: Options,
    pub(crate) auth: Authenticator,
    pub(crate) waiters: Waiters,
    pub(crate) bodies: Arc<Bodies>,
    stopping: watch::Receiver<bool>,
}

impl Service {
    pub(crate) fn new(
        queue: EventQueue,
        options: Options,
        auth: Authenticator,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let bodies = Arc::new(Bodies::new(options.limits.bodies_bytes));
        let queues = KnownQueues::new(queue.clone());
        let gateway = Arc::new(Gateway::new(queue.clone(), options.gateway.clone()));
        Self { queue, queues, gateway, options, auth, waiters: Waiters::default(), bodies, stopping }
    }

    /// Waits until the server begins to stop.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as the server, so an error (sender dropped) means a stop too.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}
