//! The names under which the database knows routers. On Linux a name tells of which process it is, so that another process
//! of the same machine can say whether that one is dead. Pure: what the machine tells is an argument.

use std::str::FromStr;

/// What tells a process from all others: the boot of its machine, its namespaces, its number among them and when it started.
///
/// While a namespace exists no other one has its number. So whoever has the same boot and namespace either can be looked for
/// from here, or was in a namespace that is gone with all of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) boot: String,
    /// Of process ids.
    pub(super) pids: u64,
    /// Of clocks: start times are told by those of whoever reads them.
    pub(super) clocks: u64,
    pub(super) pid: u32,
    /// In clock ticks since the boot.
    pub(super) started: u64,
}

/// What the machine says about a process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nobody,
    /// A process that started then.
    Started(u64),
    /// There is one, and nothing more can be read about it; or not even that.
    Unknown,
}

impl Process {
    /// The name of a router in this process, one of all that it may have.
    pub(super) fn name(&self, random: u64) -> String {
        let Self { boot, pids, clocks, pid, started } = self;
        format!("{boot}/{pids}/{clocks}/{pid}/{started}/{random:016x}")
    }

    /// The process of a name; `None` for names that tell none.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let boot = parts.next().filter(|boot| !boot.is_empty())?.to_owned();
        let (pids, clocks) = (number(parts.next()?)?, number(parts.next()?)?);
        let (pid, started) = (number(parts.next()?)?, number(parts.next()?)?);
        let random = parts.next()?;
        (random.len() == 16 && parts.next().is_none()).then_some(Self { boot, pids, clocks, pid, started })
    }

    /// Whether another process is dead for certain. `find` says what the machine knows of a process id; it is only asked
    /// about ids that mean the same here and there.
    pub(super) fn knows_dead(&self, other: &Self, find: impl FnOnce(u32) -> Found) -> bool {
        let is_near = self.boot == other.boot && self.pids == other.pids && self.clocks == other.clocks;
        is_near
            && match find(other.pid) {
                Found::Nobody => true,
                Found::Started(at) => at != other.started,
                Found::Unknown => false,
            }
    }
}

/// A number as it is written here: nothing else reads as the same process.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The process id and the start time in `/proc/{pid}/stat`. The name of the program, in parentheses, may contain anything.
pub(super) fn of_stat(stat: &str) -> Option<(u32, u64)> {
    let (pid, rest) = (stat.split_once(' ')?.0, stat.rsplit_once(')')?.1);
    Some((number(pid)?, number(rest.split_ascii_whitespace().nth(19)?)?))
}

/// The number of a namespace, of what its link in `/proc` says: `pid:[4026531836]`.
pub(super) fn of_link(link: &str) -> Option<u64> {
    number(link.split_once(":[")?.1.strip_suffix(']')?)
}

/// Whether `/proc` is that of this process's own namespace, by its `/proc/self/status`: this lists the ids of the process
/// from the namespace of `/proc` inwards.
pub(super) fn is_own_proc(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_ascii_whitespace().count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "749cacf5-bebe-4b6d-a043-85ecf559a872";

    fn process() -> Process {
        Process { boot: BOOT.to_owned(), pids: 4_026_531_836, clocks: 4_026_531_834, pid: 812, started: 2_735_152 }
    }

    #[test]
    fn names_tell_the_process_and_differ() {
        let (one, other) = (process().name(1), process().name(u64::MAX));
        assert_eq!(one, format!("{BOOT}/4026531836/4026531834/812/2735152/0000000000000001"));
        assert_ne!(one, other);
        assert_eq!((Process::of_name(&one), Process::of_name(&other)), (Some(process()), Some(process())));
    }

    #[test]
    fn other_names_tell_none() {
        let name = process().name(7);
        for broken in [
            "",
            "node 1",
            "0123456789abcdef0123456789abcdef",
            &name[1 + BOOT.len()..],
            &name[BOOT.len()..],
            &name[..name.len() - 1],
            &format!("{name}/"),
            &name.replace("/812/", "/+812/"),
            &name.replace("/812/", "//"),
            &name.replace("/812/", "/99999999999/"),
        ] {
            assert_eq!(Process::of_name(broken), None, "{broken}");
        }
    }

    #[test]
    fn only_a_process_that_can_be_looked_for_is_known_to_be_dead() {
        let own = Process { pid: 4, started: 9, ..process() };
        let other = process();
        assert!(own.knows_dead(&other, |_| Found::Nobody));
        assert!(own.knows_dead(&other, |_| Found::Started(other.started + 1)), "its id is another one's now");
        assert!(!own.knows_dead(&other, |_| Found::Started(other.started)));
        assert!(!own.knows_dead(&other, |_| Found::Unknown));
        assert!(!own.knows_dead(&own, |pid| if pid == 4 { Found::Started(9) } else { Found::Nobody }));
        for elsewhere in [
            Process { boot: "x".to_owned(), ..process() },
            Process { pids: 1, ..process() },
            Process { clocks: 1, ..process() },
        ] {
            assert!(!own.knows_dead(&elsewhere, |_| panic!("its id means nothing here")), "{elsewhere:?}");
        }
    }

    #[test]
    fn what_the_machine_says_is_read() {
        let rest = "S 1 1 1 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 9 0 2735152 3133440 362 18446744073709551615";
        for program in ["tidegate", "a b", "a) R 1 1 1 (b", ")", "a\nb"] {
            assert_eq!(of_stat(&format!("812 ({program}) {rest}")), Some((812, 2_735_152)), "{program}");
        }
        assert_eq!((of_stat(""), of_stat("812 (a) S 1 1")), (None, None));
        assert_eq!(
            (of_link("pid:[4026531836]"), of_link("pid:[]x"), of_link("4026531836")),
            (Some(4_026_531_836), None, None)
        );
        assert!(is_own_proc("Name:\ttidegate\nNSpid:\t812\nThreads:\t9\n"));
        assert!(!is_own_proc("Name:\ttidegate\nNSpid:\t30812\t812\n"), "that of a namespace around it");
        assert!(!is_own_proc("Name:\ttidegate\n"));
    }
}
