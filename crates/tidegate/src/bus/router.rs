//! [`Router`]: handlers by event type. Knows no queue: it gets a claimed event and returns the result of its handler.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tidegate_core::name::check_text;
use tidegate_store::Claimed;

use crate::error::{Error, Result};

type Route = Arc<dyn Fn(Claimed) -> BoxFuture<'static, std::result::Result<(), RouteError>> + Send + Sync>;

/// Handlers by event type.
///
/// ```
/// use serde::Deserialize;
/// use tidegate::Router;
///
/// #[derive(Deserialize)]
/// struct Order {
///     number: u64,
/// }
///
/// let router = Router::new()
///     .on("order.created", async |order: Order| {
///         println!("order {}", order.number);
///         Ok::<_, std::io::Error>(())
///     })
///     .on_event("order.cancelled", async |event: tidegate::Claimed| {
///         println!("attempt {} of {:?}", event.attempts, event.fact.payload);
///         Err("nobody told the warehouse")
///     });
/// assert_eq!(router.types().collect::<Vec<_>>(), ["order.cancelled", "order.created"]);
/// ```
#[derive(Clone, Default)]
pub struct Router {
    routes: BTreeMap<String, Route>,
    repeated: Option<String>,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("types", &self.routes.keys()).finish_non_exhaustive()
    }
}

/// Why an event was not handled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// No handler is registered for its type.
    NoRoute(String),
    /// The payload cannot be deserialized into the handler's type.
    Undecodable(String),
    /// The handler returned an error.
    Failed(String),
    /// The handler panicked.
    Panicked(String),
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute(event_type) => write!(f, "there is no route for {event_type:?}"),
            Self::Undecodable(error) => write!(f, "the payload cannot be read: {error}"),
            Self::Failed(error) => f.write_str(error),
            Self::Panicked(message) => write!(f, "the handler panicked: {message}"),
        }
    }
}

impl std::error::Error for RouteError {}

impl Router {
    /// A router without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Routes events of a type to a handler that takes their payload, deserialized from JSON.
    #[must_use]
    pub fn on<T, F, Fut, E>(self, event_type: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        self.add(event_type.into(), move |event| {
            let payload = serde_json::from_slice::<T>(&event.fact.payload);
            let handled = payload.map(&handler).map_err(|error| RouteError::Undecodable(error.to_string()));
            async move { handled?.await.map_err(|error| RouteError::Failed(error.to_string())) }.boxed()
        })
    }

    /// Routes events of a type to a handler that takes the whole claimed event.
    #[must_use]
    pub fn on_event<F, Fut, E>(self, event_type: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Claimed) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        self.add(event_type.into(), move |event| {
            let handled = handler(event);
            async move { handled.await.map_err(|error| RouteError::Failed(error.to_string())) }.boxed()
        })
    }

    fn add(
        mut self,
        event_type: String,
        route: impl Fn(Claimed) -> BoxFuture<'static, std::result::Result<(), RouteError>> + Send + Sync + 'static,
    ) -> Self {
        match self.routes.entry(event_type) {
            Entry::Occupied(taken) => {
                self.repeated.get_or_insert(taken.key().clone());
            }
            Entry::Vacant(free) => {
                free.insert(Arc::new(route));
            }
        }
        self
    }

    /// The types that have a route, in alphabetical order.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.routes.keys().map(String::as_str)
    }

    /// Runs the handler of an event. A panic becomes [`RouteError::Panicked`].
    ///
    /// # Errors
    /// When there is no route for its type, the payload cannot be read, or the handler fails or panics.
    pub async fn route(&self, event: &Claimed) -> std::result::Result<(), RouteError> {
        let event_type = &event.fact.event_type;
        let Some(route) = self.routes.get(event_type) else { return Err(RouteError::NoRoute(event_type.clone())) };
        let (route, event) = (Arc::clone(route), event.clone());
        // Called inside, for the handler may panic before it returns its future.
        let handled = AssertUnwindSafe(async move { route(event).await }).catch_unwind().await;
        handled.unwrap_or_else(|panic| Err(RouteError::Panicked(panic_text(&*panic))))
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Some(event_type) = &self.repeated {
            return Err(Error::invalid(format!("{event_type:?} has two routes: an event type goes to one handler")));
        }
        if self.routes.is_empty() {
            return Err(Error::invalid("a router without routes would never get anything: add one with on(…)"));
        }
        for event_type in self.types() {
            check_text("event type", event_type)?;
        }
        Ok(())
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
