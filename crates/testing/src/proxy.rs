//! A TCP proxy in front of a server that acts as a failing network: it goes silent, cuts connections, or leads to
//! another server.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What happens to the bytes of all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Silent,
    Cut,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    target: u16,
    next: u64,
    /// The client and the server end of each connection, by number.
    open: HashMap<u64, [TcpStream; 2]>,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the proxy is silent. Returns whether the connection is still open.
    fn may_pass(&self, number: u64) -> bool {
        let mut state = self.lock();
        while state.mode == Mode::Silent && !state.closed && state.open.contains_key(&number) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.closed && state.open.contains_key(&number)
    }
}

/// A running proxy at 127.0.0.1. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to this port of 127.0.0.1.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let state = State { mode: Mode::Pass, target, next: 0, open: HashMap::new(), closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &accepting));
        Ok(Self { shared, port, acceptor: Some(acceptor) })
    }

    /// The port it listens on, at 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the same database through the proxy.
    ///
    /// # Panics
    /// When the URL cannot be parsed.
    #[must_use]
    pub fn url(&self, server: &str) -> String {
        let config: tokio_postgres::Config = server.parse().expect("a database's URL");
        let (user, database) = (config.get_user().unwrap_or("postgres"), config.get_dbname().unwrap_or("postgres"));
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// Holds all bytes back and keeps connections open; [`pass`](Self::pass) delivers them late.
    pub fn go_silent(&self) {
        self.set(Mode::Silent);
    }

    /// Closes all connections, and new ones as they arrive.
    pub fn cut(&self) {
        // Mode and connections change under one lock, so that bytes that were held back cannot pass in between.
        let open = {
            let mut state = self.shared.lock();
            state.mode = Mode::Cut;
            std::mem::take(&mut state.open)
        };
        self.shared.changed.notify_all();
        for [client, server] in open.values() {
            shut(client, server);
        }
    }

    /// Lets all bytes pass.
    pub fn pass(&self) {
        self.set(Mode::Pass);
    }

    /// Leads new connections to another port.
    pub fn lead_to(&self, target: u16) {
        self.shared.lock().target = target;
    }

    fn set(&self, mode: Mode) {
        self.shared.lock().mode = mode;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.cut();
        // The acceptor waits for a connection: this one wakes it up.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.lock().closed {
            return;
        }
        // If the server cannot be reached, the client sees its connection closed.
        if let Ok(client) = client {
            let _ = connect(client, shared);
        }
    }
}

fn connect(client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let target = {
        let state = shared.lock();
        if state.mode == Mode::Cut {
            return Ok(());
        }
        state.target
    };
    let server = TcpStream::connect(("127.0.0.1", target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = [client.try_clone()?, server.try_clone()?];
    let (up, down) = ((client.try_clone()?, server.try_clone()?), (server, client));
    let mut state = shared.lock();
    let number = state.next;
    state.next += 1;
    if state.mode == Mode::Cut || state.closed {
        return Ok(());
    }
    state.open.insert(number, ends);
    drop(state);
    for (from, to) in [up, down] {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || copy(from, to, number, &shared));
    }
    Ok(())
}

/// Copies one direction until either side is closed.
fn copy(mut from: TcpStream, mut to: TcpStream, number: u64, shared: &Shared) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 && shared.may_pass(number) => {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
    // A silent network does not pass on the close either: wait until it may.
    shared.may_pass(number);
    shut(&from, &to);
    shared.lock().open.remove(&number);
}

fn shut(one: &TcpStream, other: &TcpStream) {
    // Fails only when the socket is closed already.
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn say(stream: &mut TcpStream, word: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(word)?;
        let mut heard = vec![0; word.len()];
        stream.read_exact(&mut heard).map(|()| heard)
    }

    fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut &stream));
            }
        });
        port
    }

    #[test]
    fn bytes_pass_wait_and_are_cut_off() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        assert_eq!(say(&mut stream, b"one", PATIENCE).unwrap(), b"one");
        proxy.go_silent();
        assert!(say(&mut stream, b"two", Duration::from_millis(200)).is_err(), "nothing passes");
        proxy.pass();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut late = [0; 3];
        stream.read_exact(&mut late).unwrap();
        assert_eq!(&late, b"two", "it comes late");
        proxy.cut();
        assert!(say(&mut stream, b"three", Duration::from_millis(200)).is_err());
        proxy.lead_to(echo());
        proxy.pass();
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        assert_eq!(say(&mut stream, b"four", PATIENCE).unwrap(), b"four");
    }
}
