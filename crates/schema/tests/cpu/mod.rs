//! CPU time of hostile cases: what other processes do to the clock on the wall has no bearing on it.

use std::time::Duration;

/// The most CPU time that compiling, validating or comparing once may take in an optimised build.
const BOUND: Duration = Duration::from_millis(100);
/// How many times as much an unoptimised build may take.
const UNOPTIMISED: u32 = 100;

/// The CPU time that this thread has used.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "this system tells no CPU time of threads");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Runs a job and asserts that it keeps within the bound; with `--nocapture` the time is printed. A job that is above it
/// is measured twice again, and the shortest time counts: a neighbour on the same core takes caches away.
pub(crate) fn bounded<T>(name: &str, mut job: impl FnMut() -> T) -> T {
    let bound = if cfg!(debug_assertions) { BOUND * UNOPTIMISED } else { BOUND };
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let before = used();
        let result = job();
        shortest = shortest.min(used() - before);
        if shortest <= bound {
            println!("{:9.2} ms  {name}", shortest.as_secs_f64() * 1e3);
            return result;
        }
    }
    panic!("{name} takes {shortest:?} of CPU time, more than {bound:?}");
}
