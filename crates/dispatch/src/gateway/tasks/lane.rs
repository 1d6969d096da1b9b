//! The lanes of tasks: one for each pool, service account and origin of a client, so that tasks of an account which cannot be
//! used wait without those of others. Their number is bounded: where a client's tasks go to very
//! many origins, further ones share lanes.

use sha2::{Digest, Sha256};
use tidegate::{SpareLane, Tsid};
use url::Url;

/// What the types of such lanes begin with. Lanes of subscriptions are their ids, without a colon.
const TASKS: &str = "task:";
/// Stands for the pool of a task that names none.
const NO_POOL: &str = "-";
/// Comes before the account, where there is one.
const ACCOUNT: char = '@';
/// How many lanes a client's tasks have before further origins share some.
const MAX_LANES: usize = 1_024;
/// How many lanes of a pool and an account these share.
const SPARE: u64 = 16;
/// The longest type of a lane, in bytes.
const LONGEST: usize = 255;

/// A lane of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskLane {
    /// The pool that the tasks name; it may be gone.
    pub(crate) pool: Option<Tsid>,
    /// The service account in whose name they are sent; it may be gone.
    pub(crate) account: Option<Tsid>,
    /// The origin of their targets; of a lane that several share, a name of its own.
    pub(crate) origin: String,
}

impl TaskLane {
    /// The lane for tasks of this pool, account and target, as it is stored, and the one that is taken where there are too many.
    pub(crate) fn of(pool: Option<Tsid>, account: Option<Tsid>, target: &Url) -> (String, SpareLane) {
        let origin = target.origin().ascii_serialization();
        let hash = Sha256::digest(&origin);
        let hash = hash.iter().take(8).fold(0, |hash: u64, byte| (hash << 8) | u64::from(*byte));
        let text = |origin: &str| text(pool, account, origin);
        let own = text(&origin);
        let own = if own.len() <= LONGEST { own } else { text(&format!("#{hash:016x}")) };
        let spare = text(&format!("~{}", hash % SPARE));
        (own, SpareLane { kind: TASKS, most: MAX_LANES, lane_type: spare })
    }

    /// What its breaker goes by: the origin, or the lane's own name where several share it.
    pub(crate) fn breaker<'a>(&'a self, name: &'a str) -> &'a str {
        if self.origin.starts_with(['~', '#']) { name } else { &self.origin }
    }

    /// Whether the type of a lane is one of tasks.
    pub(crate) fn is_one(lane_type: &str) -> bool {
        lane_type.starts_with(TASKS)
    }

    /// What the types of the lanes of a pool begin with; of all lanes of tasks if `None`.
    pub(crate) fn prefix(pool: Option<Tsid>) -> String {
        pool.map_or_else(|| TASKS.to_owned(), |pool| format!("{TASKS}{pool}"))
    }

    /// Reads the type of a lane; `None` for one that is not of tasks.
    pub(crate) fn parse(lane_type: &str) -> Option<Self> {
        let (by, origin) = lane_type.strip_prefix(TASKS)?.split_once(':')?;
        let (pool, account) = match by.split_once(ACCOUNT) {
            Some((pool, account)) => (pool, Some(account.parse().ok()?)),
            None => (by, None),
        };
        let pool = if pool == NO_POOL { None } else { Some(pool.parse().ok()?) };
        Some(Self { pool, account, origin: origin.to_owned() })
    }
}

fn text(pool: Option<Tsid>, account: Option<Tsid>, origin: &str) -> String {
    let pool = pool.map_or_else(|| NO_POOL.to_owned(), |pool| pool.to_string());
    let account = account.map(|account| format!("{ACCOUNT}{account}")).unwrap_or_default();
    format!("{TASKS}{pool}{account}:{origin}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_read_as_they_were_written() {
        let (pool, account) = (Tsid::from_i64(77), Tsid::from_i64(78));
        for (target, origin) in [
            ("https://example.com/x?y", "https://example.com"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
            ("https://b\u{fc}cher.example/", "https://xn--bcher-kva.example"),
        ] {
            for (pool, account) in [(None, None), (Some(pool), None), (None, Some(pool)), (Some(pool), Some(account))] {
                let (own, spare) = TaskLane::of(pool, account, &target.parse().unwrap());
                assert_eq!(TaskLane::parse(&own), Some(TaskLane { pool, account, origin: origin.to_owned() }));
                let spare = TaskLane::parse(&spare.lane_type).unwrap();
                assert_eq!((spare.pool, spare.account), (pool, account));
            }
        }
        for other in ["0HZXEQ5Y8JY5Z", "task", "task:-", "task:x:https://e.com", "task:-@:https://e.com"] {
            assert_eq!(TaskLane::parse(other), None, "{other}");
        }
    }

    /// However long hosts are and however many there are, lanes are short, and the spare ones few.
    #[test]
    fn lanes_are_short_and_spare_ones_few() {
        let (label, one) = ("a".repeat(62), Some(Tsid::from_i64(1)));
        let mut spares = std::collections::BTreeSet::new();
        for at in 0..500 {
            let host = [label.as_str(), &label, &label, &format!("h{at}{}", "b".repeat(50))].join(".");
            let (own, spare) = TaskLane::of(one, one, &format!("https://{host}:8443/").parse().unwrap());
            assert!(own.len() <= LONGEST && TaskLane::parse(&own).is_some(), "{own}");
            assert!(TaskLane::is_one(&spare.lane_type) && spare.lane_type.len() <= LONGEST);
            spares.insert(spare.lane_type);
        }
        assert_eq!(spares.len() as u64, SPARE);
    }
}
