//! What a memory queue is configured with: the source's fields, their defaults and bounds, and how they are read from
//! what a caller gives. Knows nothing of events.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name::InvalidName;

/// What survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Everything that was acknowledged: it is written before.
    #[default]
    Journal,
    /// The last persisted state.
    Snapshot,
}

impl Durability {
    /// The number that is stored.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Journal => 0,
            Self::Snapshot => 1,
        }
    }

    /// The durability with this stored number; `None` when there is none.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Journal),
            1 => Some(Self::Snapshot),
            _ => None,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Journal => "journal",
            Self::Snapshot => "snapshot",
        })
    }
}

impl FromStr for Durability {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text {
            "journal" => Ok(Self::Journal),
            "snapshot" => Ok(Self::Snapshot),
            _ => {
                let given = text.chars().take(60).collect();
                Err(InvalidName { what: "durability", rule: "journal or snapshot", given })
            }
        }
    }
}

/// The configuration of a memory queue.
///
/// ```
/// use tidegate_core::memory::Config;
/// let given = serde_json::json!({"maxQueueDepth": 500, "batchSize": 10});
/// let config = Config::default().with(given.as_object().unwrap()).unwrap();
/// assert_eq!((config.max_queue_depth, config.high_watermark, config.batch_size), (500, 400, 10));
/// let refused = Config::default().with(serde_json::json!({"batchSize": -1}).as_object().unwrap()).unwrap_err();
/// assert_eq!(refused.to_string(), "batchSize must be a whole number between 1 and 10000, not -1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The most events that wait or are worked on; a publish beyond it is refused.
    pub max_queue_depth: u32,
    /// How many events a claim takes that names no number.
    pub batch_size: u32,
    /// Milliseconds from one batch to the next; 0 delivers at once.
    pub processing_interval: u32,
    /// So many events that are not persisted yet trigger persistence.
    pub persistence_threshold: u32,
    /// Above this depth publishers are slowed.
    pub high_watermark: u32,
    /// Milliseconds after which changes are persisted.
    pub persistence_interval: u32,
    /// The length of a lease whose claim names none, in seconds.
    pub lease_seconds: u32,
    /// Retries of an event before it is a dead letter.
    pub max_retries: u32,
    /// Seconds from a failure to the retry, when the failure names none.
    pub retry_delay_seconds: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_queue_depth: 10_000,
            batch_size: 100,
            processing_interval: 0,
            persistence_threshold: 500,
            high_watermark: 8_000,
            persistence_interval: 5_000,
            lease_seconds: 60,
            max_retries: 20,
            retry_delay_seconds: 0,
        }
    }
}

/// A field: its name, its least and greatest value, and where it is.
type Field = (&'static str, u32, u32, fn(&mut Config) -> &mut u32);

const DAY: u32 = 86_400;
const HIGH_WATERMARK: &str = "highWatermark";

/// All fields, in the order in which they are stored. What limits a number of events limits memory too.
const FIELDS: [Field; 9] = [
    ("maxQueueDepth", 1, 10_000_000, |config| &mut config.max_queue_depth),
    ("batchSize", 1, 10_000, |config| &mut config.batch_size),
    ("processingInterval", 0, 3_600_000, |config| &mut config.processing_interval),
    ("persistenceThreshold", 1, 10_000_000, |config| &mut config.persistence_threshold),
    (HIGH_WATERMARK, 1, 10_000_000, |config| &mut config.high_watermark),
    ("persistenceInterval", 10, 3_600_000, |config| &mut config.persistence_interval),
    ("leaseSeconds", 1, DAY, |config| &mut config.lease_seconds),
    ("maxRetries", 0, 1_000, |config| &mut config.max_retries),
    ("retryDelaySeconds", 0, 7 * DAY, |config| &mut config.retry_delay_seconds),
];

/// How many fields a configuration has.
pub(super) const FIELD_COUNT: usize = FIELDS.len();

impl Config {
    /// This configuration with what was given. A depth that is given without a highWatermark sets that to 80 % of it.
    ///
    /// # Errors
    /// When a field is unknown, no whole number, out of its bounds, or the highWatermark is above the depth.
    pub fn with(mut self, given: &Map<String, Value>) -> Result<Self, InvalidConfig> {
        for (name, value) in given {
            let Some((name, least, most, place)) = FIELDS.iter().find(|field| field.0 == name) else {
                return Err(InvalidConfig::UnknownField { field: clip(name) });
            };
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let Some(number) = number.filter(|number| (*least..=*most).contains(number)) else {
                return Err(InvalidConfig::OutOfBounds {
                    field: name,
                    least: *least,
                    most: *most,
                    given: clip(&value.to_string()),
                });
            };
            *place(&mut self) = number;
        }
        if given.contains_key("maxQueueDepth") && !given.contains_key(HIGH_WATERMARK) {
            self.high_watermark = (u64::from(self.max_queue_depth) * 4 / 5).max(1) as u32;
        }
        self.check()?;
        Ok(self)
    }

    /// Checks a configuration that was put together in code.
    ///
    /// # Errors
    /// When a field is out of its bounds, or the highWatermark is above the depth.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        for ((field, least, most, _), number) in FIELDS.iter().zip(self.numbers()) {
            if !(*least..=*most).contains(&number) {
                let given = number.to_string();
                return Err(InvalidConfig::OutOfBounds { field, least: *least, most: *most, given });
            }
        }
        if self.high_watermark > self.max_queue_depth {
            return Err(InvalidConfig::WatermarkAboveDepth {
                high_watermark: self.high_watermark,
                max_queue_depth: self.max_queue_depth,
            });
        }
        Ok(())
    }

    /// Where slowed publishers go on: a fifth below the highWatermark, and at least one event.
    #[must_use]
    pub const fn low_watermark(&self) -> u32 {
        let fifth = self.high_watermark / 5;
        self.high_watermark - if fifth == 0 { 1 } else { fifth }
    }

    /// The fields' values, in the order in which they are stored.
    pub(super) fn numbers(mut self) -> [u32; FIELD_COUNT] {
        FIELDS.map(|(.., place)| *place(&mut self))
    }

    /// The configuration with these values; `None` when they break a rule.
    pub(super) fn from_numbers(numbers: [u32; FIELD_COUNT]) -> Option<Self> {
        let mut config = Self::default();
        for ((.., place), number) in FIELDS.iter().zip(numbers) {
            *place(&mut config) = number;
        }
        config.check().is_ok().then_some(config)
    }
}

/// The first 60 characters, for error messages.
fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Why something is not the configuration of a memory queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// A field that there is not.
    #[error("config has no field {field:?}: it has {}", FIELDS.map(|field| field.0).join(", "))]
    UnknownField {
        /// The field that was given.
        field: String,
    },
    /// A value that the field cannot have.
    #[error("{field} must be a whole number between {least} and {most}, not {given}")]
    OutOfBounds {
        /// The field.
        field: &'static str,
        /// The least that it can be.
        least: u32,
        /// The most that it can be.
        most: u32,
        /// What was given.
        given: String,
    },
    /// Publishers would never be slowed.
    #[error("highWatermark must be at most maxQueueDepth, but {high_watermark} is above {max_queue_depth}")]
    WatermarkAboveDepth {
        /// The highWatermark.
        high_watermark: u32,
        /// The depth.
        max_queue_depth: u32,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(given: Value) -> Result<Config, InvalidConfig> {
        Config::default().with(given.as_object().unwrap())
    }

    #[test]
    fn defaults_are_those_of_the_specification() {
        let config = Config::default();
        config.check().unwrap();
        let expected = json!({
            "maxQueueDepth": 10_000, "batchSize": 100, "processingInterval": 0, "persistenceThreshold": 500,
            "highWatermark": 8_000, "persistenceInterval": 5_000, "leaseSeconds": 60, "maxRetries": 20,
            "retryDelaySeconds": 0,
        });
        assert_eq!(serde_json::to_value(config).unwrap(), expected);
        assert_eq!(with(expected).unwrap(), config);
        assert_eq!(with(json!({})).unwrap(), config);
    }

    #[test]
    fn a_given_depth_sets_the_watermark() {
        assert_eq!(with(json!({"maxQueueDepth": 100})).unwrap().high_watermark, 80);
        assert_eq!(with(json!({"maxQueueDepth": 1})).unwrap().high_watermark, 1);
        assert_eq!(with(json!({"maxQueueDepth": 100, "highWatermark": 100})).unwrap().high_watermark, 100);
        assert_eq!(with(json!({"persistenceThreshold": 1_000_000})).unwrap().persistence_threshold, 1_000_000);
    }

    #[test]
    fn each_bad_field_is_named() {
        let bad = [
            (json!({"maxQueueDepth": 0}), "maxQueueDepth must be a whole number between 1 and 10000000, not 0"),
            (json!({"batchSize": -3}), "batchSize must be a whole number between 1 and 10000, not -3"),
            (json!({"batchSize": 1.5}), "not 1.5"),
            (json!({"leaseSeconds": "60"}), "not \"60\""),
            (json!({"maxRetries": null}), "maxRetries must"),
            (json!({"maxRetries": 18_446_744_073_709_551_615_u64}), "between 0 and 1000"),
            (json!({"highWatermark": 10_001}), "highWatermark must be at most maxQueueDepth, but 10001 is above 10000"),
            (json!({"maxQueueDepth": 10, "highWatermark": 11}), "but 11 is above 10"),
            (json!({"depth": 10}), "config has no field \"depth\": it has maxQueueDepth, batchSize"),
        ];
        for (given, message) in bad {
            let error = with(given.clone()).unwrap_err().to_string();
            assert!(error.contains(message), "{given}: {error}");
        }
        for (name, least, most, _) in FIELDS {
            for value in [i64::from(most) + 1, i64::from(least) - 1] {
                let error = with(json!({ name: value })).unwrap_err().to_string();
                assert!(error.starts_with(name), "{error}");
            }
        }
    }

    #[test]
    fn stored_numbers_are_read_back_or_refused() {
        let config = with(json!({"maxQueueDepth": 77, "retryDelaySeconds": 5})).unwrap();
        assert_eq!(Config::from_numbers(config.numbers()), Some(config));
        let mut numbers = config.numbers();
        numbers[4] = 78;
        assert_eq!(Config::from_numbers(numbers), None, "the highWatermark is above the depth");
    }

    #[test]
    fn pressure_ends_below_where_it_begins() {
        for (high, low) in [(8_000, 6_400), (1, 0), (4, 3), (5, 4), (10, 8)] {
            assert_eq!(Config { high_watermark: high, ..Config::default() }.low_watermark(), low);
        }
    }

    #[test]
    fn durabilities_are_read_back() {
        for durability in [Durability::Journal, Durability::Snapshot] {
            assert_eq!(durability.to_string().parse(), Ok(durability));
            assert_eq!(Durability::from_code(durability.code()), Some(durability));
            assert_eq!(serde_json::to_string(&durability).unwrap(), format!("\"{durability}\""));
        }
        assert!("none".parse::<Durability>().unwrap_err().to_string().contains("journal or snapshot"));
        assert_eq!(Durability::from_code(2), None);
    }
}
