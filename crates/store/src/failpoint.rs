//! Named points at which the crash harness can kill the process; compiled out without the feature `failpoints`.

/// Marks a failpoint. With the feature on and `TIDEGATE_FAILPOINT=name:n` in the environment, the `n`-th time that the
/// failpoint of that name is reached kills the process with SIGKILL.
#[cfg(feature = "failpoints")]
pub fn failpoint(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    let armed = ARMED.get_or_init(|| {
        let setting = std::env::var("TIDEGATE_FAILPOINT").ok()?;
        let (name, count) = setting.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((armed_name, count)) = armed
        && armed_name == name
        && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *count
    {
        // SAFETY: kill has no memory effects; the process ends here as if the machine had stopped it.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::thread::park();
        }
    }
}

/// Marks a failpoint (compiled out).
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn failpoint(_name: &str) {}

/// Marks a point between the statements of an ingest: the failpoint `ingest.` and the step. The store's own tests reach these.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[inline(always)]
pub(crate) fn ingest_failpoint(_step: &str) {
    #[cfg(feature = "failpoints")]
    failpoint(&format!("ingest.{_step}"));
}
