//! Describes the machine that a run was made on, and reads the CPU time of processes. Linux only (`/proc`).

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Result;

/// The machine, as far as `/proc` describes it.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_mib: u64,
    kernel: String,
    filesystem: String,
}

impl Machine {
    /// Reads the description of this machine. `folder` is where the databases are.
    pub(crate) fn detect(folder: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = kib.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown CPU".into()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            filesystem: filesystem(&read("/proc/mounts"), folder),
        }
    }

    /// One line for the subtitle of a drawing.
    pub(crate) fn short(&self) -> String {
        format!("{} × {}, {} GiB, Linux {}", self.cores, self.cpu, self.memory_mib.div_ceil(1024), self.kernel)
    }

    /// The first line of a report.
    pub(crate) fn header(&self) -> String {
        format!(
            "Machine: {} × {}, {} MiB of memory, Linux {}, databases on {}",
            self.cores, self.cpu, self.memory_mib, self.kernel, self.filesystem
        )
    }
}

/// The type of the file system that holds a folder. It matters because an fsync costs nothing on one in memory.
fn filesystem(mounts: &str, folder: &Path) -> String {
    let mount = |line: &'_ str| -> Option<(usize, String)> {
        let mut fields = line.split_whitespace();
        let (_, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
        folder.starts_with(place).then(|| (place.len(), kind.to_owned()))
    };
    let deepest = mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth);
    deepest.map_or_else(|| "an unknown file system".into(), |(_, kind)| kind)
}

/// The CPU time that a process has used so far, user and system.
///
/// # Errors
/// When the process is gone, or `/proc` does not have its times.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain spaces. User and system time are the 12th and 13th field after it, in
    // hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| {
        fields.get(index).and_then(|field| field.parse::<u64>().ok()).ok_or("no CPU times in /proc/PID/stat")
    };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_counts() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nbad\n/dev/vdb /tmpfiles xfs rw 0 0\n";
        assert_eq!(filesystem(mounts, Path::new("/tmp/bench")), "tmpfs");
        assert_eq!(filesystem(mounts, Path::new("/var/tmp")), "ext4");
        assert_eq!(filesystem("", Path::new("/tmp")), "an unknown file system");
    }
}
