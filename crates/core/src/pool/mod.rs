//! What dispatch decides about pools: which lanes may claim how many jobs ([`plan`]), when deliveries may start under a
//! limit per minute ([`rate`]), how many slots each node holds ([`slots`]), whether an origin is tried at all
//! ([`breaker`]), and when a failed job is due again ([`backoff`]). Pure: whoever asks says what time it is, draws random
//! numbers, and carries out what is decided. Nothing here knows how jobs are stored, claimed or delivered.

pub mod backoff;
pub mod breaker;
pub mod plan;
pub mod rate;
pub mod slots;
