//! Gives back the slots of routers whose process is dead for certain, so that after a crash the next process on the machine
//! does not wait until their grants end. Slots of a node that may merely be cut off stay held: it may still deliver.

use std::time::{Duration, Instant};

use tidegate::Jobs;
use tokio::task::JoinHandle;

use super::node::Process;

/// How often it is looked for dead routers while slots are wanted.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// This router's name, and when it was looked for dead ones.
#[derive(Debug)]
pub(super) struct Predecessors {
    /// Under which the database knows this router.
    name: String,
    /// `None` where the system does not tell: then nobody is known to be dead.
    own: Option<Process>,
    looks_at: Option<Instant>,
    look: Option<JoinHandle<()>>,
}

impl Predecessors {
    /// With a name for a router of this process that no other one has.
    pub(super) fn of_this_process() -> Self {
        let own = machine::own();
        let random = || format!("{:032x}", rand::random::<u128>());
        let name = own.as_ref().map_or_else(random, |own| own.name(rand::random()));
        Self { name, own, looks_at: None, look: None }
    }

    /// Under which the database knows this router.
    pub(super) fn own_name(&self) -> &str {
        &self.name
    }

    /// Looks for dead routers at the start, and every few seconds while slots are wanted.
    pub(super) fn look(&mut self, jobs: &Jobs, wants_slots: bool, now: Instant) {
        let Some(own) = &self.own else { return };
        let is_due = self.looks_at.is_none_or(|at| wants_slots && now >= at);
        if !is_due || self.look.as_ref().is_some_and(|look| !look.is_finished()) {
            return;
        }
        self.looks_at = Some(now + LOOK_EVERY);
        let (jobs, own) = (jobs.clone(), own.clone());
        self.look = Some(tokio::spawn(async move {
            if let Err(error) = release(&jobs, &own).await {
                tracing::warn!(%error, "slots of routers that died could not be looked for");
            }
        }));
    }

    /// Looks no more.
    pub(super) fn stop(&mut self) {
        if let Some(look) = self.look.take() {
            look.abort();
        }
    }
}

async fn release(jobs: &Jobs, own: &Process) -> tidegate::Result<()> {
    let names = jobs.slot_holders().await?;
    let is_dead = |name: &String| Process::of_name(name).is_some_and(|other| own.knows_dead(&other, machine::find));
    let dead: Vec<String> = names.into_iter().filter(is_dead).collect();
    if !dead.is_empty() {
        tracing::info!(routers = dead.len(), "slots of processes of this machine that died are given back");
        jobs.release_slots(dead).await?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
mod machine {
    use std::fs::{read_link, read_to_string};

    use crate::router::node::{Found, Process, is_own_proc, of_link, of_stat};

    /// This process, where all of it can be read.
    pub(super) fn own() -> Option<Process> {
        let read = |path| read_to_string(path).ok();
        if !is_own_proc(&read("/proc/self/status")?) {
            return None;
        }
        let namespace = |path| of_link(read_link(path).ok()?.to_str()?);
        let pids = namespace("/proc/self/ns/pid")?;
        // Older systems have one clock for all.
        let clocks = namespace("/proc/self/ns/time").unwrap_or(0);
        let (pid, started) = of_stat(&read("/proc/self/stat")?).filter(|(pid, _)| *pid == std::process::id())?;
        let boot = read("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let process = Process { boot, pids, clocks, pid, started };
        // What does not read as itself is not to be recognised by others either.
        (Process::of_name(&process.name(0)).as_ref() == Some(&process)).then_some(process)
    }

    /// What is known of a process id. `/proc` may hide processes of other users, so it does not tell that there is nobody.
    pub(super) fn find(pid: u32) -> Found {
        let Some(id) = i32::try_from(pid).ok().filter(|id| *id > 0) else { return Found::Unknown };
        // SAFETY: signal 0 is sent to nobody; it only asks whether there is a process.
        let error = match unsafe { libc::kill(id, 0) } {
            0 => None,
            _ => std::io::Error::last_os_error().raw_os_error(),
        };
        if error == Some(libc::ESRCH) {
            return Found::Nobody;
        }
        match read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => {
                of_stat(&stat).filter(|(of, _)| *of == pid).map_or(Found::Unknown, |(_, at)| Found::Started(at))
            }
            Err(_) => Found::Unknown,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod machine {
    use crate::router::node::{Found, Process};

    pub(super) fn own() -> Option<Process> {
        None
    }

    pub(super) fn find(_pid: u32) -> Found {
        Found::Unknown
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::router::node::Found;

    #[test]
    fn processes_of_this_machine_are_told_apart() {
        let own = machine::own().expect("it can be read");
        assert_eq!(machine::find(own.pid), Found::Started(own.started));
        assert!(!own.knows_dead(&own, machine::find));
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = other.id();
        let Found::Started(started) = machine::find(pid) else { panic!("it runs") };
        let there = Process { pid, started, ..own.clone() };
        assert!(!own.knows_dead(&there, machine::find), "it lives");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(own.knows_dead(&there, machine::find));
    }

    #[test]
    fn routers_of_one_process_have_names_of_their_own() {
        let (one, other) = (Predecessors::of_this_process(), Predecessors::of_this_process());
        assert_ne!(one.own_name(), other.own_name());
        assert_eq!(Process::of_name(one.own_name()), Process::of_name(other.own_name()));
    }
}
