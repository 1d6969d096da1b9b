//! What applications implement: event types, handlers, middleware. Knows nothing of claims and leases.

use std::any::{Any, TypeId};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::{EntryId, Handled, NewEvent, TraceContext};
use tidegate_store::Claimed;

use crate::error::{Error, Result};
use crate::queue::transactions::db_tx::DbTx;

/// An event type: a payload that is deserialized from JSON, and the name of the type.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderCreated { id: u64 }
///
/// impl tidegate::Event for OrderCreated {
///     const TYPE: &'static str = "order.created";
/// }
///
/// use tidegate::Event;
/// let event = OrderCreated { id: 7 }.to_new()?;
/// assert_eq!((event.event_type.as_str(), &event.payload[..]), ("order.created", &br#"{"id":7}"#[..]));
/// # Ok::<_, tidegate::Error>(())
/// ```
pub trait Event: DeserializeOwned + Send + Sync + 'static {
    /// The name of the event type.
    const TYPE: &'static str;

    /// The event to publish; delay, group and the rest can still be set.
    ///
    /// # Errors
    /// `Invalid` when it cannot be serialized as JSON.
    fn to_new(&self) -> Result<NewEvent>
    where
        Self: Serialize,
    {
        let payload = serde_json::to_vec(self).map_err(|error| {
            Error::invalid(format!("{} cannot be written as JSON: {error}", Self::TYPE)).with_source(error)
        })?;
        Ok(NewEvent::new(Self::TYPE, payload))
    }
}

/// An event as a handler gets it: the decoded payload (by dereference) and its entry. Clones share one payload.
pub struct Delivered<E> {
    event: Arc<E>,
    entry: Arc<Claimed>,
}

impl<E> Clone for Delivered<E> {
    fn clone(&self) -> Self {
        Self { event: Arc::clone(&self.event), entry: Arc::clone(&self.entry) }
    }
}

impl<E: fmt::Debug> fmt::Debug for Delivered<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivered").field("event", &self.event).field("entry", &self.entry.id).finish_non_exhaustive()
    }
}

impl<E> Deref for Delivered<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.event
    }
}

impl<E> Delivered<E> {
    /// The entry's number.
    #[must_use]
    pub fn id(&self) -> EntryId {
        self.entry.id
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.entry.attempts
    }

    /// The trace context that its publisher put into the attributes, to be passed on by the handler; `None` without
    /// one.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of_attributes(self.entry.fact.attributes.as_deref())
    }

    /// The entry as it was claimed: its fact, its attempts, its lease.
    #[must_use]
    pub fn entry(&self) -> &Claimed {
        &self.entry
    }
}

/// A handler as a type of its own.
///
/// ```
/// use tidegate::{Delivered, Event, EventHandler, Handled};
/// # #[derive(serde::Deserialize)] struct OrderCreated { id: u64 }
/// # impl Event for OrderCreated { const TYPE: &'static str = "order.created"; }
/// struct SendMail;
///
/// impl EventHandler for SendMail {
///     type Event = OrderCreated;
///
///     fn id(&self) -> &str {
///         "send-mail"
///     }
///
///     async fn handle(&self, event: Delivered<OrderCreated>) -> Handled {
///         println!("order {} on attempt {}", event.id, event.attempts());
///         Handled::Success
///     }
/// }
/// ```
pub trait EventHandler: Send + Sync + 'static {
    /// The event type that it handles.
    type Event: Event;

    /// The id of the handler: unique in its manager and the same after every restart, since results are recorded under
    /// it.
    fn id(&self) -> &str;

    /// Handles one event. The future is dropped when it takes longer than its timeout, when the lease is lost, and at
    /// the end of a shutdown's grace period.
    fn handle(&self, event: Delivered<Self::Event>) -> impl Future<Output = Handled> + Send;

    /// How long it may take; `None`: the manager's default.
    fn timeout(&self) -> Option<Duration> {
        None
    }
}

/// One call of one handler, as middleware sees it.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// The handler's id.
    pub handler: Arc<str>,
    /// The entry as it was claimed.
    pub entry: Arc<Claimed>,
}

/// Wraps every handler call: it may await `next` or not, and may change the result.
///
/// ```
/// use futures_util::future::BoxFuture;
/// use tidegate::{Handled, Invocation};
/// fn timed<'a>(call: &'a Invocation, next: BoxFuture<'a, Handled>) -> BoxFuture<'a, Handled> {
///     Box::pin(async move {
///         let started = std::time::Instant::now();
///         let answer = next.await;
///         println!("{} took {:?}", call.handler, started.elapsed());
///         answer
///     })
/// }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Runs one handler.
    fn around<'a>(&'a self, call: &'a Invocation, next: BoxFuture<'a, Handled>) -> BoxFuture<'a, Handled>;
}

impl<F> Middleware for F
where
    F: for<'a> Fn(&'a Invocation, BoxFuture<'a, Handled>) -> BoxFuture<'a, Handled> + Send + Sync + 'static,
{
    fn around<'a>(&'a self, call: &'a Invocation, next: BoxFuture<'a, Handled>) -> BoxFuture<'a, Handled> {
        self(call, next)
    }
}

/// A payload that was decoded once for all handlers of its kind.
pub(crate) type Payload = Arc<dyn Any + Send + Sync>;
type Plain = dyn Fn(Payload, Arc<Claimed>) -> BoxFuture<'static, Handled> + Send + Sync;
type InTx = dyn for<'a> Fn(Payload, Arc<Claimed>, &'a DbTx<'a>) -> BoxFuture<'a, Handled> + Send + Sync;

/// How a handler is called.
#[derive(Clone)]
pub(crate) enum Call {
    Plain(Arc<Plain>),
    /// In the transaction that ends the event.
    InTx(Arc<InTx>),
}

/// A handler as the manager keeps it, without its types.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) id: Arc<str>,
    /// The type it handles; every type when `None`.
    pub(crate) event_type: Option<String>,
    pub(crate) kind: TypeId,
    pub(crate) decode: fn(&Claimed) -> Result<Payload, String>,
    pub(crate) call: Call,
    pub(crate) timeout: Option<Duration>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("id", &self.id).field("event_type", &self.event_type).finish_non_exhaustive()
    }
}

impl Registered {
    pub(crate) fn of_type<H: EventHandler>(handler: H) -> Self {
        let (id, timeout) = (handler.id().into(), handler.timeout());
        let handler = Arc::new(handler);
        let call = move |event: Delivered<H::Event>| {
            let handler = Arc::clone(&handler);
            async move { handler.handle(event).await }
        };
        Self { timeout, ..Self::closure::<H::Event, _, _, _>(id, call) }
    }

    pub(crate) fn closure<E, F, Fut, R>(id: Arc<str>, handle: F) -> Self
    where
        E: Event,
        F: Fn(Delivered<E>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Into<Handled>,
    {
        let call = move |payload: Payload, entry: Arc<Claimed>| -> BoxFuture<'static, Handled> {
            match payload.downcast::<E>() {
                Ok(event) => {
                    let answer = handle(Delivered { event, entry });
                    Box::pin(async move { answer.await.into() })
                }
                Err(_) => wrong_kind(),
            }
        };
        Self::typed::<E>(id, Call::Plain(Arc::new(call)))
    }

    pub(crate) fn in_tx<E, F, R>(id: Arc<str>, handle: F) -> Self
    where
        E: Event,
        R: Into<Handled> + Send + 'static,
        F: for<'a> Fn(Delivered<E>, &'a DbTx<'a>) -> BoxFuture<'a, R> + Send + Sync + 'static,
    {
        let handle = Arc::new(handle);
        let call: Arc<InTx> = Arc::new(move |payload: Payload, entry: Arc<Claimed>, tx| {
            let handle = Arc::clone(&handle);
            Box::pin(async move {
                match payload.downcast::<E>() {
                    Ok(event) => handle(Delivered { event, entry }, tx).await.into(),
                    Err(_) => wrong_kind().await,
                }
            })
        });
        Self::typed::<E>(id, Call::InTx(call))
    }

    /// A handler of claimed events without decoding, of one type or of all.
    pub(crate) fn raw<F, Fut, R>(id: Arc<str>, event_type: Option<String>, handle: F) -> Self
    where
        F: Fn(Arc<Claimed>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Into<Handled>,
    {
        let call = move |_: Payload, entry: Arc<Claimed>| -> BoxFuture<'static, Handled> {
            let answer = handle(entry);
            Box::pin(async move { answer.await.into() })
        };
        let decode = |_: &Claimed| Ok(Arc::new(()) as Payload);
        Self { id, event_type, kind: TypeId::of::<()>(), decode, call: Call::Plain(Arc::new(call)), timeout: None }
    }

    fn typed<E: Event>(id: Arc<str>, call: Call) -> Self {
        let event_type = Some(E::TYPE.to_owned());
        Self { id, event_type, kind: TypeId::of::<E>(), decode: decode::<E>, call, timeout: None }
    }
}

fn decode<E: Event>(entry: &Claimed) -> Result<Payload, String> {
    match serde_json::from_slice::<E>(&entry.fact.payload) {
        Ok(event) => Ok(Arc::new(event)),
        Err(error) => Err(format!("the payload cannot be read as {}: {error}", E::TYPE)),
    }
}

/// Cannot happen: the payload is always decoded by the handler's own `decode`.
fn wrong_kind() -> BoxFuture<'static, Handled> {
    Box::pin(async { Handled::unrecoverable("the payload was read as another kind of event") })
}
