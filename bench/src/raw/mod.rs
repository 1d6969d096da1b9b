//! The baselines: bare loops of good plain SQL that write the same rows. Must not use any code of Tidegate.

pub(crate) mod postgres;
pub(crate) mod postgres_ingest;
pub(crate) mod sqlite;
pub(crate) mod sqlite_ingest;
pub(crate) mod sqlite_work;

/// What stands for the hash of a key or a term: neighbours are far apart, as hashes are.
fn hash(number: i64) -> [u8; 16] {
    u128::from(number.unsigned_abs() + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes()
}

/// The same in hexadecimal digits.
fn hex(number: i64) -> String {
    format!("{:032x}", u128::from_be_bytes(hash(number)))
}
