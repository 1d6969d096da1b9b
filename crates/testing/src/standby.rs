//! Streaming replication: a standby of a running server, and its promotion.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use crate::execute::execute;
use crate::process::wait_until;
use crate::server::PgServer;

/// How long a standby may take to follow, or to be promoted.
const PATIENCE: Duration = Duration::from_secs(120);

impl PgServer {
    /// Copies this server as it is now and starts the copy as its standby, which follows it through `port`: its own, or
    /// a proxy's. Make one copy at a time.
    ///
    /// # Errors
    /// When it cannot be copied or does not start; the message says why.
    pub fn standby(&self, port: u16) -> io::Result<Self> {
        let mut standby = Self::prepare()?;
        let data = standby.folder().join("data");
        let output = standby
            .command("pg_basebackup")
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "tidegate"])
            .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"])
            .arg(&data)
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("pg_basebackup failed: {}", said.trim())));
        }
        // The last value of a name counts.
        let mut settings = File::options().append(true).open(data.join("postgresql.auto.conf"))?;
        writeln!(settings, "unix_socket_directories = '{}'", standby.folder().display())?;
        standby.launch_anywhere()?;
        Ok(standby)
    }

    /// Makes every commit wait for the standby from now on, and waits until the standby is synchronous.
    ///
    /// # Errors
    /// When no standby becomes synchronous in time.
    pub fn replicate_synchronously(&self) -> io::Result<()> {
        let url = self.url("postgres");
        execute(&url, "ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        execute(&url, "SELECT pg_reload_conf()")?;
        let kept_up = "DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync') THEN RAISE 'not yet'; END IF;
        END $$";
        wait_until("a synchronous standby", PATIENCE, || Ok(execute(&url, kept_up).is_ok()))
    }

    /// Makes this standby the primary, and waits until it accepts writes.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn promote(&self) -> io::Result<()> {
        let url = self.url("postgres");
        execute(&url, "SELECT pg_promote(true, 60)")?;
        let primary = "DO $$ BEGIN IF pg_is_in_recovery() THEN RAISE 'not yet'; END IF; END $$";
        wait_until("the promotion", PATIENCE, || Ok(execute(&url, primary).is_ok()))
    }
}
