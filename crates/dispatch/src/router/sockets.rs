//! How many attempts may be under way at once, by the files that this process may have open: each attempt needs a socket, and
//! so do the callers of the server.

/// Where the system does not tell.
const OTHERWISE: u32 = 10_000;

/// Half of the files that may be open.
pub(super) fn at_most() -> u32 {
    let limits = std::fs::read_to_string("/proc/self/limits").ok();
    limits.and_then(|limits| of_limits(&limits)).map_or(OTHERWISE, |files| (files / 2).max(1))
}

/// The limit in force, by the text of `/proc/PID/limits`; `None` where there is none.
fn of_limits(limits: &str) -> Option<u32> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(u32::try_from(soft).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_in_force_counts() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max processes             95914                95914                processes \n\
                    Max open files            1024                 1048576              files     \n";
        assert_eq!(of_limits(text), Some(1_024));
        assert_eq!(of_limits(&text.replace("1024 ", "unlimited ")), None);
        assert_eq!(of_limits(""), None);
        assert!(at_most() > 0);
    }
}
