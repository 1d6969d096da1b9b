//! One PostgreSQL server: initdb, start, pause, kill, restart, stop.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::binaries::{self, User};
use crate::execute::execute;
use crate::process::{children, is_gone, signal, wait_until};

/// How long a start, a recovery or a stop may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Once our end of its standard input is closed, stops the server whose folder is `$1` and removes the folder. The
/// process is checked against the folder, since its id may belong to another process by then.
const WATCHDOG: &str = r#"
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
runs() { [ -n "$pid" ] && grep -qsF "$1" "/proc/$pid/cmdline"; }
if runs "$1"; then
    kill -QUIT "$pid"
    n=0
    while runs "$1" && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
    if runs "$1"; then kill -KILL "$pid"; fi
fi
rm -rf "$1"
"#;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct PgSettings {
    /// Whether commits are durable. Off is faster, and enough for tests that do not crash the machine.
    pub fsync: bool,
    /// The size of its page cache, as `postgresql.conf` writes it.
    pub shared_buffers: String,
    /// The most connections that it accepts.
    pub max_connections: u32,
    /// Further settings of `postgresql.conf`; the last value of a name counts.
    pub extra: Vec<(String, String)>,
    /// Environment variables of its processes.
    pub environment: Vec<(String, String)>,
}

impl Default for PgSettings {
    fn default() -> Self {
        Self {
            fsync: true,
            shared_buffers: "256MB".into(),
            max_connections: 200,
            extra: Vec::new(),
            environment: Vec::new(),
        }
    }
}

/// A running server. Dropping it stops it and removes its folder.
#[derive(Debug)]
pub struct PgServer {
    programs: PathBuf,
    user: Option<User>,
    folder: PathBuf,
    port: u16,
    postmaster: Option<Child>,
    environment: Vec<(String, String)>,
    watchdog: Option<(Child, ChildStdin)>,
}

impl PgServer {
    /// Sets up a new server and starts it.
    ///
    /// # Errors
    /// When the server programs are missing or fail; the message says what to do, or ends with the server's log.
    pub fn start(settings: PgSettings) -> io::Result<Self> {
        let mut server = Self::prepare()?;
        server.environment = settings.environment.clone();
        server.initdb(&settings)?;
        server.launch_anywhere()?;
        Ok(server)
    }

    /// Creates the folder for a server and starts its watchdog.
    pub(crate) fn prepare() -> io::Result<Self> {
        let programs = binaries::folder()?;
        let user = binaries::unprivileged()?;
        let folder = tempfile::Builder::new().prefix("tidegate-pg-").tempdir()?.keep();
        if let Some(user) = user {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        // From here on the watchdog removes the folder, even if the rest of the start fails.
        let watchdog = Some(start_watchdog(&folder)?);
        Ok(Self { programs, user, folder, port: 0, postmaster: None, watchdog, environment: Vec::new() })
    }

    /// Starts the server on a free port.
    pub(crate) fn launch_anywhere(&mut self) -> io::Result<()> {
        // Another process may take the port before the server listens on it.
        let mut attempts = 0;
        loop {
            self.port = free_port()?;
            match self.launch() {
                Err(error) if attempts < 3 && error.to_string().contains("Address already in use") => attempts += 1,
                answer => return answer,
            }
        }
    }

    /// The URL of one of its databases; `postgres` always exists.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://tidegate@127.0.0.1:{}/{database}", self.port)
    }

    /// The port it listens on, at 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its unix socket; the data is in `data` below it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One of the programs that came with the server, such as `pg_dump`; else the one in `PATH`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        // `postgres` may be a symlink whose target has the other programs beside it.
        let real = self.programs.join("postgres").canonicalize().ok();
        let real = real.as_deref().and_then(Path::parent).map(|folder| folder.join(name));
        let beside = [Some(self.programs.join(name)), real].into_iter().flatten().find(|path| path.is_file());
        beside.unwrap_or_else(|| PathBuf::from(name))
    }

    /// The postmaster's process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Child::id)
    }

    /// Creates a new database and returns its URL.
    ///
    /// # Panics
    /// When the server refuses.
    #[must_use]
    pub fn create_database(&self) -> String {
        self.url(&create_database_at(&self.url("postgres")))
    }

    /// Kills the server and all its processes at once, as a crash would, and waits until they are gone.
    ///
    /// # Errors
    /// When they do not end in time.
    pub fn kill(&mut self) -> io::Result<()> {
        let Some(mut postmaster) = self.postmaster.take() else { return Ok(()) };
        let pid = postmaster.id();
        // Paused first, so that it does not fork while its children are listed.
        signal(pid, libc::SIGSTOP)?;
        let backends = children(pid)?;
        signal(pid, libc::SIGKILL)?;
        for backend in &backends {
            signal(*backend, libc::SIGKILL)?;
        }
        postmaster.wait()?;
        wait_until("the end of the server's processes", PATIENCE, || Ok(backends.iter().all(|pid| is_gone(*pid))))
    }

    /// Pauses all its processes: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When a process cannot be signalled.
    pub fn pause(&self) -> io::Result<()> {
        self.signal_all(libc::SIGSTOP)
    }

    /// Resumes its paused processes.
    ///
    /// # Errors
    /// When a process cannot be signalled.
    pub fn resume(&self) -> io::Result<()> {
        self.signal_all(libc::SIGCONT)
    }

    fn signal_all(&self, number: i32) -> io::Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // The postmaster first: while paused, it does not fork as its children are listed.
        signal(pid, number)?;
        children(pid)?.into_iter().try_for_each(|child| signal(child, number))
    }

    /// Starts it again, on the same port and data, and waits until it answers. A running server is killed first.
    ///
    /// # Errors
    /// When it does not come up; the message ends with the server's log.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        self.launch()
    }

    /// Waits until the server answers. If it has ended by itself, it is started again on its data.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn revive(&mut self) -> io::Result<()> {
        let url = self.url("postgres");
        wait_until("the server's return", PATIENCE, || {
            let gone = match &mut self.postmaster {
                Some(postmaster) => postmaster.try_wait()?.is_some(),
                None => true,
            };
            if gone {
                self.kill()?;
                self.launch()?;
            }
            Ok(execute(&url, "SELECT 1").is_ok())
        })
    }

    /// Stops the server and removes its folder, as dropping it does.
    pub fn stop(self) {
        drop(self);
    }

    fn initdb(&self, settings: &PgSettings) -> io::Result<()> {
        let data = self.folder.join("data");
        let output = self
            .command("initdb")
            .args(["-U", "tidegate", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("initdb failed: {}", said.trim())));
        }
        let on_or_off = if settings.fsync { "on" } else { "off" };
        let mut lines = vec![
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("unix_socket_directories".to_owned(), self.folder.display().to_string()),
            ("max_connections".to_owned(), settings.max_connections.to_string()),
            ("shared_buffers".to_owned(), settings.shared_buffers.clone()),
            ("fsync".to_owned(), on_or_off.to_owned()),
        ];
        lines.extend(settings.extra.iter().cloned());
        let text: String =
            lines.iter().map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect();
        std::fs::write(data.join("postgresql.auto.conf"), text)
    }

    fn launch(&mut self) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let skip = log.metadata()?.len();
        let postmaster = self
            .command("postgres")
            .envs(self.environment.iter().cloned())
            .arg("-D")
            .arg(self.folder.join("data"))
            .args(["-p", &self.port.to_string()])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.postmaster = Some(postmaster);
        let url = self.url("postgres");
        let answer = wait_until("the server's start", PATIENCE, || {
            if let Some(child) = &mut self.postmaster
                && let Some(status) = child.try_wait()?
            {
                self.postmaster = None;
                return Err(io::Error::other(format!("the server ended with {status}")));
            }
            Ok(execute(&url, "SELECT 1").is_ok())
        });
        answer.map_err(|error| io::Error::new(error.kind(), format!("{error}; its log: {}", self.log_since(skip))))
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log_since(&self, skip: u64) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let start = usize::try_from(skip).unwrap_or(0).min(log.len());
        String::from_utf8_lossy(&log[start..]).trim().to_owned()
    }

    /// One of PostgreSQL's programs, as the unprivileged user and in its own process group, so that Ctrl-C in the
    /// terminal reaches only us.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        command.current_dir(&self.folder).stdin(Stdio::null()).process_group(0);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }
}

impl Drop for PgServer {
    fn drop(&mut self) {
        // A paused process would not react to the signal.
        let _ = self.resume();
        if let Some(mut postmaster) = self.postmaster.take() {
            let _ = signal(postmaster.id(), libc::SIGQUIT);
            let stopped = wait_until("the server's stop", PATIENCE, || Ok(postmaster.try_wait()?.is_some()));
            if stopped.is_err() {
                let _ = postmaster.kill();
                let _ = postmaster.wait();
            }
        }
        if let Some((mut watchdog, pipe)) = self.watchdog.take() {
            drop(pipe);
            let _ = watchdog.wait();
        }
    }
}

fn start_watchdog(folder: &Path) -> io::Result<(Child, ChildStdin)> {
    let mut watchdog = Command::new("/bin/sh")
        .args(["-c", WATCHDOG, "tidegate-pg-watchdog"])
        .arg(folder)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let pipe = watchdog.stdin.take().ok_or_else(|| io::Error::other("the watchdog has no standard input"))?;
    Ok((watchdog, pipe))
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Creates a database with a unique name on the server at `url` and returns the name.
///
/// # Panics
/// When the server refuses.
pub(crate) fn create_database_at(url: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Process ids are reused; the time makes the name unique.
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("t{}_{since:x}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    if let Err(error) = execute(url, &format!("CREATE DATABASE {name}")) {
        panic!("cannot create a database at {url}: {error}");
    }
    name
}
