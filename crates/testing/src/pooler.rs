//! PgBouncer in front of a server, to test our sessions through a pooler.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::binaries;
use crate::process::{signal, wait_until};

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// When the pooler may give a server connection to another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// After every transaction.
    Transaction,
}

/// A running PgBouncer. Dropping it stops it and removes its folder.
#[derive(Debug)]
pub struct Pooler {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl Pooler {
    /// Starts PgBouncer in front of the server at this URL.
    ///
    /// # Errors
    /// When PgBouncer is not installed or does not start.
    pub fn start(server: &str, mode: PoolMode) -> io::Result<Self> {
        let config: tokio_postgres::Config = server.parse().map_err(io::Error::other)?;
        let target = config.get_ports().first().copied().unwrap_or(5432);
        let folder = tempfile::Builder::new().prefix("tidegate-pooler-").tempdir()?.keep();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mode = if mode == PoolMode::Session { "session" } else { "transaction" };
        let user = config.get_user().unwrap_or("postgres");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={target} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\npool_mode = {mode}\nunix_socket_dir =\ndefault_pool_size = 50\n\
             max_client_conn = 200\nignore_startup_parameters = options,extra_float_digits\n"
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, settings)?;
        let mut command = Command::new("pgbouncer");
        command.env("PATH", format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default()));
        if let Some(user) = binaries::unprivileged()? {
            use std::os::unix::process::CommandExt;
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))?;
            command.uid(user.uid).gid(user.gid);
        }
        let child = command.arg("-q").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("pgbouncer cannot be started: install it with scripts/test ({error})"))
        })?;
        let mut pooler = Self { child, folder, port };
        wait_until("the pooler's start", PATIENCE, || {
            if let Some(status) = pooler.child.try_wait()? {
                return Err(io::Error::other(format!("pgbouncer ended with {status}")));
            }
            Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
        })?;
        Ok(pooler)
    }

    /// The URL of the same database through the pooler.
    ///
    /// # Panics
    /// When the URL cannot be parsed.
    #[must_use]
    pub fn url(&self, server: &str) -> String {
        let config: tokio_postgres::Config = server.parse().expect("a database's URL");
        let (user, database) = (config.get_user().unwrap_or("postgres"), config.get_dbname().unwrap_or("postgres"));
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // Errors are ignored, since a drop must not panic.
        let _ = signal(self.child.id(), libc::SIGKILL);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
