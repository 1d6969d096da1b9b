//! Connections that are kept for the next webhook to the same target. Bounds how many requests to a target are under way at
//! once, and with them its connections, how many idle ones are kept, and for how long. Must not know what is sent.
//!
//! A connection of HTTP/1.1 is taken out while it is used; those of HTTP/2 are shared and stay. There are never more
//! connections than places at the target's gate, since one is opened only if none is idle.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::super::connect::{Connected, Meter, Target};

/// The most bytes of an answer's head.
const MAX_HEAD: usize = 32 * 1_024;
/// The most requests at once on a connection of HTTP/2.
const MAX_STREAMS: usize = 64;
/// How long a connection that was given back may take until it is ready. It is at once, unless the receiver answered before
/// it had read the request.
const READY_WITHIN: Duration = Duration::from_millis(100);
/// How far a receiver may be ahead of us on a stream of HTTP/2, and on all of a connection together.
const WINDOWS: (u32, u32) = (65_535, 1 << 20);

/// What the pool keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Requests under way to a target at once.
    pub(super) at_once: usize,
    /// Idle connections to a target.
    pub(super) idle: usize,
    /// Idle connections to all targets together.
    pub(super) idle_in_all: usize,
    /// How long a connection may be idle.
    pub(super) idle_for: Duration,
}

pub(super) struct Pool {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    hosts: HashMap<Target, Host>,
    /// Idle connections of all hosts.
    idle: usize,
    last_id: u64,
}

struct Host {
    gate: Arc<Semaphore>,
    visits: usize,
    connections: Vec<Kept>,
}

/// A connection that is in the pool: an idle one of HTTP/1.1, or one of HTTP/2.
struct Kept {
    id: u64,
    sender: Sender,
    meter: Arc<Meter>,
    in_flight: usize,
    /// How many requests at once the receiver takes.
    streams: Arc<AtomicUsize>,
    /// Takes no more requests.
    is_retired: bool,
    idle_since: Instant,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }
}

/// A place at a target's gate.
pub(super) struct Visit {
    pool: Arc<Pool>,
    target: Target,
    _place: OwnedSemaphorePermit,
}

/// A request that got no answer.
pub(super) struct SendError {
    pub(super) error: Option<hyper::Error>,
    /// Whether nothing of it was sent.
    pub(super) is_unsent: bool,
}

/// A connection, for one request. It is given up when it is dropped, unless it was given back.
pub(super) struct Borrowed {
    pool: Arc<Pool>,
    target: Target,
    id: u64,
    sender: Option<Sender>,
    meter: Arc<Meter>,
    streams: Arc<AtomicUsize>,
    /// Whether it had a request before.
    pub(super) is_reused: bool,
}

impl Pool {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Waits for a place at a target's gate.
    pub(super) async fn enter(self: &Arc<Self>, target: &Target) -> Visit {
        /// Takes the visit back if nobody waits any more.
        struct Waiting<'a>(&'a Pool, Option<&'a Target>);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                if let Some(target) = self.1 {
                    self.0.leave(target);
                }
            }
        }
        let gate = {
            let mut state = self.lock();
            let new =
                || Host { gate: Arc::new(Semaphore::new(self.limits.at_once)), visits: 0, connections: Vec::new() };
            let host = state.hosts.entry(target.clone()).or_insert_with(new);
            host.visits += 1;
            Arc::clone(&host.gate)
        };
        let mut waiting = Waiting(self, Some(target));
        let place = gate.acquire_owned().await.expect("gates are never closed");
        waiting.1 = None;
        Visit { pool: Arc::clone(self), target: target.clone(), _place: place }
    }

    /// How many targets, connections in the pool and idle ones there are.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.hosts.len(), state.hosts.values().map(|host| host.connections.len()).sum(), state.idle)
    }

    fn leave(&self, target: &Target) {
        let mut state = self.lock();
        if let Some(host) = state.hosts.get_mut(target) {
            host.visits -= 1;
        }
        state.prune(target);
    }

    /// A connection is gone.
    fn forget(&self, target: &Target, id: u64) {
        let mut state = self.lock();
        state.remove(target, |kept| kept.id == id);
        state.prune(target);
    }

    /// Closes a connection that was idle for too long, and says when to look again.
    fn expire(&self, target: &Target, id: u64) -> Instant {
        let mut state = self.lock();
        let (now, longest) = (Instant::now(), self.limits.idle_for);
        let is_over = |kept: &Kept| kept.id == id && kept.in_flight == 0 && kept.idle_since + longest <= now;
        state.remove(target, is_over);
        let kept = state.hosts.get(target).and_then(|host| host.connections.iter().find(|kept| kept.id == id));
        let again = kept.filter(|kept| kept.in_flight == 0).map_or(now, |kept| kept.idle_since) + longest;
        state.prune(target);
        again
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes connections off the pool.
    fn remove(&mut self, target: &Target, is_meant: impl Fn(&Kept) -> bool) {
        let Some(host) = self.hosts.get_mut(target) else { return };
        let idle = &mut self.idle;
        host.connections.retain(|kept| {
            let is_meant = is_meant(kept);
            if is_meant && kept.in_flight == 0 {
                *idle -= 1;
                kept.meter.cut();
            }
            !is_meant
        });
    }

    /// Forgets a target that has nothing.
    fn prune(&mut self, target: &Target) {
        if self.hosts.get(target).is_some_and(|host| host.visits == 0 && host.connections.is_empty()) {
            self.hosts.remove(target);
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.pool.leave(&self.target);
    }
}

impl Visit {
    /// A connection that is kept and takes one more request.
    pub(super) async fn kept(&self) -> Option<Borrowed> {
        loop {
            let mut borrowed = self.next_kept()?;
            let is_ready = match &mut borrowed.sender {
                Some(Sender::Http1(sender)) => matches!(timeout(READY_WITHIN, sender.ready()).await, Ok(Ok(()))),
                Some(Sender::Http2(sender)) => sender.ready().await.is_ok(),
                None => false,
            };
            if is_ready {
                borrowed.meter.grant(if borrowed.is_http2() { MAX_STREAMS } else { 1 });
                return Some(borrowed);
            }
        }
    }

    fn next_kept(&self) -> Option<Borrowed> {
        let mut state = self.pool.lock();
        let (now, longest) = (Instant::now(), self.pool.limits.idle_for);
        let is_over = |kept: &Kept| {
            kept.sender.is_closed() || kept.is_retired || (kept.in_flight == 0 && kept.idle_since + longest <= now)
        };
        let State { hosts, idle, .. } = &mut *state;
        let host = hosts.get_mut(&self.target)?;
        // The one that was used last: the others get old, and are closed. Those that are over and are not met here close
        // themselves.
        let mut at = host.connections.len();
        loop {
            at = at.checked_sub(1)?;
            let kept = &host.connections[at];
            if !is_over(kept) {
                if kept.has_room() {
                    break;
                }
            } else if kept.in_flight == 0 {
                kept.meter.cut();
                *idle -= 1;
                host.connections.remove(at);
            }
        }
        if host.connections[at].in_flight == 0 {
            *idle -= 1;
        }
        let (id, meter, streams, sender) = match &mut host.connections[at] {
            Kept { id, sender: Sender::Http2(sender), meter, streams, in_flight, .. } => {
                *in_flight += 1;
                (*id, Arc::clone(meter), Arc::clone(streams), Sender::Http2(sender.clone()))
            }
            Kept { sender: Sender::Http1(_), .. } => {
                let kept = host.connections.remove(at);
                (kept.id, kept.meter, kept.streams, kept.sender)
            }
        };
        Some(self.borrowed(id, sender, meter, streams, true))
    }

    /// A new connection, for one request first.
    pub(super) async fn opened(&self, connected: Connected) -> hyper::Result<Borrowed> {
        let id = {
            let mut state = self.pool.lock();
            state.last_id += 1;
            state.last_id
        };
        let Connected { io, meter, is_http2 } = connected;
        let streams = Arc::new(AtomicUsize::new(if is_http2 { MAX_STREAMS } else { 1 }));
        let (pool, target, io) = (Arc::downgrade(&self.pool), self.target.clone(), TokioIo::new(io));
        if !is_http2 {
            let mut builder = http1::Builder::new();
            builder.max_header_size(MAX_HEAD).max_buf_size(2 * MAX_HEAD);
            let (sender, connection) = builder.handshake(io).await?;
            tokio::spawn(drive(connection, pool, target, id, self.pool.limits.idle_for));
            return Ok(self.borrowed(id, Sender::Http1(sender), meter, streams, false));
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .initial_max_send_streams(MAX_STREAMS);
        let (sender, mut connection) = builder.handshake(io).await?;
        let known = Arc::clone(&streams);
        let run = async move {
            poll_fn(|cx| {
                let polled = Pin::new(&mut connection).poll(cx);
                if polled.is_pending() {
                    known.store(connection.current_max_send_streams().clamp(1, MAX_STREAMS), Ordering::Relaxed);
                }
                polled
            })
            .await
        };
        tokio::spawn(drive(run, pool, target, id, self.pool.limits.idle_for));
        let kept = Kept {
            id,
            sender: Sender::Http2(sender.clone()),
            meter: Arc::clone(&meter),
            in_flight: 1,
            streams: Arc::clone(&streams),
            is_retired: false,
            idle_since: Instant::now(),
        };
        if let Some(host) = self.pool.lock().hosts.get_mut(&self.target) {
            host.connections.push(kept);
        }
        Ok(self.borrowed(id, Sender::Http2(sender), meter, streams, false))
    }

    fn borrowed(
        &self,
        id: u64,
        sender: Sender,
        meter: Arc<Meter>,
        streams: Arc<AtomicUsize>,
        is_reused: bool,
    ) -> Borrowed {
        let (pool, target) = (Arc::clone(&self.pool), self.target.clone());
        Borrowed { pool, target, id, sender: Some(sender), meter, streams, is_reused }
    }
}

impl Kept {
    fn has_room(&self) -> bool {
        self.in_flight < self.streams.load(Ordering::Relaxed)
    }
}

impl Borrowed {
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Some(Sender::Http2(_)))
    }

    /// Whether the receiver sent more than is taken.
    pub(super) fn is_spent(&self) -> bool {
        self.meter.is_spent()
    }

    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        let sent = match &mut self.sender {
            Some(Sender::Http1(sender)) => sender.try_send_request(request).await,
            Some(Sender::Http2(sender)) => sender.try_send_request(request).await,
            None => return Err(SendError { error: None, is_unsent: true }),
        };
        sent.map_err(|mut error| SendError {
            is_unsent: error.take_message().is_some(),
            error: Some(error.into_error()),
        })
    }

    /// Its answer was read to the end: the connection can have the next request.
    pub(super) fn give_back(mut self) {
        self.end(true);
    }

    /// Its stream of HTTP/2 ended before its time, and the others go on. A connection of HTTP/1.1 is closed.
    pub(super) fn give_up_stream(mut self) {
        let is_http2 = self.is_http2();
        self.end(is_http2);
    }

    fn end(&mut self, is_good: bool) {
        let Some(sender) = self.sender.take() else { return };
        let limits = self.pool.limits;
        let mut state = self.pool.lock();
        let is_full = state.idle >= limits.idle_in_all;
        let State { hosts, idle, .. } = &mut *state;
        let Some(host) = hosts.get_mut(&self.target) else { return self.meter.cut() };
        let idle_here = || host.connections.iter().filter(|kept| kept.in_flight == 0).count();
        let has_place = host.connections.len() < limits.idle || idle_here() < limits.idle;
        let is_kept = is_good && !is_full && has_place && !sender.is_closed();
        if let Sender::Http1(_) = sender {
            if !is_kept {
                return self.meter.cut();
            }
            *idle += 1;
            return host.connections.push(Kept {
                id: self.id,
                sender,
                meter: Arc::clone(&self.meter),
                in_flight: 0,
                streams: Arc::clone(&self.streams),
                is_retired: false,
                idle_since: Instant::now(),
            });
        }
        let Some(at) = host.connections.iter().position(|kept| kept.id == self.id) else { return };
        let kept = &mut host.connections[at];
        kept.in_flight -= 1;
        kept.is_retired |= !is_good;
        if kept.in_flight > 0 {
            return;
        }
        if is_kept && !kept.is_retired {
            *idle += 1;
            kept.idle_since = Instant::now();
        } else {
            host.connections.remove(at);
            self.meter.cut();
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Runs a connection until it ends or was idle for too long.
async fn drive<R>(run: R, pool: Weak<Pool>, target: Target, id: u64, idle_for: Duration)
where
    R: Future,
{
    // It is closed before it is forgotten: so nobody puts back what is gone.
    {
        let mut run = pin!(run);
        let mut look = Instant::now() + idle_for;
        loop {
            tokio::select! {
                _ = &mut run => break,
                () = sleep_until(look) => match pool.upgrade() {
                    Some(pool) => look = pool.expire(&target, id),
                    None => look += idle_for,
                },
            }
        }
    }
    if let Some(pool) = pool.upgrade() {
        pool.forget(&target, id);
    }
}
