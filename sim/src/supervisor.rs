//! Starts, stops, kills and restarts the processes under test, and reads their progress from their histories.
//!
//! No child outlives the harness: it is killed when the thread that started it ends (so one thread must start them
//! all), and a dropped fleet kills what is left by process id.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::history::{self, Line, OpOutcome, Tail};
use crate::workload::{Failure, Job};

/// How often the harness polls its children.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A command that runs this program as a child, which is killed when the calling thread ends.
pub(crate) fn myself(arguments: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
    Ok(command)
}

/// Whether a process was ended by SIGKILL.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

/// One process under test, across its restarts.
#[derive(Debug)]
struct Member {
    job: Job,
    /// `None` while it is not running.
    child: Option<Child>,
    tails: HashMap<PathBuf, Tail>,
    /// Whether the running process has noted that it published its whole share.
    published: bool,
}

/// The processes of one run.
#[derive(Debug)]
pub(crate) struct Fleet {
    members: Vec<Member>,
    /// The latest snapshot that any process recorded.
    last: Counted,
    /// Snapshots read since all processes had published.
    final_snapshots: u32,
    /// How often processes were started, restarts included.
    pub(crate) starts: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    events: u64,
    live: u64,
    ended: u64,
}

impl Fleet {
    /// Starts a process for each job.
    pub(crate) fn start(jobs: Vec<Job>) -> Result<Self, Failure> {
        let members = jobs.into_iter().map(|job| Member { job, child: None, tails: HashMap::new(), published: false });
        let mut fleet = Self { members: members.collect(), last: Counted::default(), final_snapshots: 0, starts: 0 };
        for index in 0..fleet.members.len() {
            fleet.launch(index, None)?;
        }
        Ok(fleet)
    }

    /// The number of processes.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Starts a process that is not running. `failpoint` (`NAME:PASS`) makes it kill itself there.
    pub(crate) fn launch(&mut self, index: usize, failpoint: Option<&str>) -> Result<(), Failure> {
        let member = &mut self.members[index];
        let log = member.job.folder.join(format!("{}.log", member.job.process));
        let log = OpenOptions::new().append(true).create(true).open(log)?;
        let mut command = myself(&["child", &serde_json::to_string(&member.job)?])?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).env_remove("TIDEGATE_FAILPOINT");
        command.envs(member.job.environment.iter().cloned());
        if let Some(failpoint) = failpoint {
            command.env("TIDEGATE_FAILPOINT", failpoint);
        }
        member.child = Some(command.spawn()?);
        member.published = false;
        self.final_snapshots = 0;
        self.starts += 1;
        Ok(())
    }

    /// Kills a process with SIGKILL and waits until it is gone.
    pub(crate) fn kill(&mut self, index: usize) -> Result<(), Failure> {
        if let Some(mut child) = self.members[index].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends a signal such as SIGSTOP or SIGCONT; does nothing when the process is not running.
    pub(crate) fn signal(&self, index: usize, signal: libc::c_int) -> Result<(), Failure> {
        let Some(child) = &self.members[index].child else { return Ok(()) };
        // SAFETY: kill has no memory effects; the child has not been waited for, so the id is still its own.
        if unsafe { libc::kill(i32::try_from(child.id())?, signal) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// The exit status of a process that ended by itself, once; `None` while it runs and ever after.
    pub(crate) fn ended(&mut self, index: usize) -> Result<Option<ExitStatus>, Failure> {
        let Some(child) = &mut self.members[index].child else { return Ok(None) };
        let status = child.try_wait()?;
        if status.is_some() {
            self.members[index].child = None;
        }
        Ok(status)
    }

    /// Waits until a process ends by itself; `None` when it did not within `limit`.
    pub(crate) fn wait_for_end(&mut self, index: usize, limit: Duration) -> Result<Option<ExitStatus>, Failure> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.ended(index)? {
                return Ok(Some(status));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }

    /// Reads the progress of all processes. A process that exited by itself is an error.
    pub(crate) fn update(&mut self) -> Result<(), Failure> {
        for index in 0..self.members.len() {
            if let Some(status) = self.ended(index)? {
                return Err(format!("{} exited unexpectedly: {status}\n{}", self.name(index), self.log(index)).into());
            }
        }
        self.read_all()
    }

    /// Reads the progress of all processes, running or not.
    pub(crate) fn read_all(&mut self) -> Result<(), Failure> {
        let all_published = self.all_published();
        for index in 0..self.members.len() {
            self.read(index, all_published)?;
        }
        Ok(())
    }

    fn read(&mut self, index: usize, all_published: bool) -> Result<(), Failure> {
        let member = &mut self.members[index];
        for path in history::files(&member.job.folder, Some(&member.job.process))? {
            let tail = member.tails.entry(path.clone()).or_insert_with(|| Tail::new(path));
            for line in tail.milestones()? {
                match line {
                    Line::Note { text, .. } if text == "published" => member.published = true,
                    Line::Result { what: OpOutcome::Counted { events, waiting, leased, ended }, .. } => {
                        self.last = Counted { events, live: waiting + leased, ended };
                        self.final_snapshots += u32::from(all_published);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn all_published(&self) -> bool {
        self.members.iter().all(|member| member.published)
    }

    /// How much of `total` events was published and ended, from 0 to 1.
    pub(crate) fn progress(&self, total: u64) -> f64 {
        (self.last.events + self.last.ended) as f64 / (2 * total.max(1)) as f64
    }

    /// Whether all processes published their share and a snapshot begun after that found nothing live. The first
    /// snapshots read after that may have begun before it, hence two per process.
    pub(crate) fn drained(&self) -> bool {
        self.all_published() && self.final_snapshots >= 2 * self.len() as u32 && self.last.live == 0
    }

    /// The progress as text, for error messages.
    pub(crate) fn situation(&self) -> String {
        let waiting: Vec<&str> =
            self.members.iter().filter(|member| !member.published).map(|member| member.job.process.as_str()).collect();
        format!("{:?}, still publishing: {waiting:?}", self.last)
    }

    /// Asks all processes to stop, by closing their standard input, and waits up to `limit` for each.
    pub(crate) fn stop(&mut self, limit: Duration) -> Result<(), Failure> {
        for member in &mut self.members {
            if let Some(child) = &mut member.child {
                drop(child.stdin.take());
            }
        }
        for index in 0..self.members.len() {
            if self.members[index].child.is_none() {
                continue;
            }
            match self.wait_for_end(index, limit)? {
                Some(status) if status.success() => {}
                Some(status) => {
                    return Err(format!("{} failed to stop: {status}\n{}", self.name(index), self.log(index)).into());
                }
                None => return Err(format!("{} did not stop within {limit:?}", self.name(index)).into()),
            }
        }
        Ok(())
    }

    fn name(&self, index: usize) -> &str {
        &self.members[index].job.process
    }

    /// The last 20 lines that a process wrote to its standard error.
    fn log(&self, index: usize) -> String {
        let job = &self.members[index].job;
        let text = std::fs::read_to_string(job.folder.join(format!("{}.log", job.process))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut child) = member.child.take() {
                // Both fail only when the child has already exited.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
