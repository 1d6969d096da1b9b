//! Parses parameters, which are texts: ids, numbers, flags, moments. An error names the parameter and what it must be.

use tidegate::EntryId;

use crate::access::NamedEntry;
use crate::error::{ApiError, Code, Result};

/// The largest page of a list.
pub(crate) const MAX_LIMIT: u64 = 1_000;

/// Parses the id of an event.
pub(crate) fn entry_id(text: &str) -> Result<NamedEntry> {
    text.parse::<i64>().ok().and_then(|raw| EntryId::new(raw).ok()).map(NamedEntry::new).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        ApiError::new(Code::InvalidId, format!("{shown:?} is not an event id: it must be between 1 and 2^53 - 1"))
    })
}

/// Parses a whole number from `least` to `most`.
pub(crate) fn number(name: &str, text: Option<&str>, least: u64, most: u64) -> Result<Option<u64>> {
    let Some(text) = text else { return Ok(None) };
    match text.trim().parse::<u64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(ApiError::invalid(format!("{name} must be a number from {least} to {most}, not {shown:?}")))
        }
    }
}

/// 400 unless a batch of events has 1 to `most` items.
pub(crate) fn check_count(count: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(ApiError::invalid(format!("events has {count} items: it must have 1 to {most}")))
}

/// Parses a boolean; false if absent.
pub(crate) fn flag(name: &str, text: Option<&str>) -> Result<bool> {
    match text.unwrap_or("false") {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        other => {
            let shown: String = other.chars().take(40).collect();
            Err(ApiError::invalid(format!("{name} must be true or false, not {shown:?}")))
        }
    }
}

/// Parses a moment from 1970 to 9999.
pub(crate) fn moment(name: &str, text: Option<&str>) -> Result<Option<tidegate::Timestamp>> {
    let Some(text) = text else { return Ok(None) };
    let in_range = |at: &tidegate::Timestamp| (0..253_370_764_800).contains(&at.as_second());
    match text.parse::<tidegate::Timestamp>() {
        Ok(at) if in_range(&at) => Ok(Some(at)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(ApiError::invalid(format!(
                "{name} must be an RFC 3339 time after 1970, such as 2030-01-31T10:30:00Z, not {shown:?}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbers_below_2_to_the_53() {
        assert_eq!(entry_id("1001").unwrap().number(), 1001);
        for bad in ["0", "-1", "abc", "", "1.5", "9007199254740992", "9223372036854775808", "1e3", " 1"] {
            assert!(entry_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_moments_and_flags_have_bounds() {
        assert_eq!(number("limit", Some("10"), 1, 100).unwrap(), Some(10));
        for bad in ["-1", "0", "101", "99999999999999999999999", "x"] {
            assert!(number("limit", Some(bad), 1, 100).is_err(), "{bad}");
        }
        assert!(flag("include_logs", Some("true")).unwrap());
        assert!(flag("include_logs", Some("maybe")).is_err());
        assert!(moment("from", Some("2025-12-24T10:30:00Z")).unwrap().is_some());
        for bad in ["yesterday", "-009999-01-01T00:00:00Z", "1960-01-01T00:00:00Z"] {
            assert!(moment("from", Some(bad)).is_err(), "{bad}");
        }
    }
}
