//! How a sink answers. Pure.

use std::str::FromStr;
use std::time::Duration;

/// Which webhooks fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failing {
    /// The first ones.
    First(u64),
    /// So many of a hundred, evenly.
    Percent(u64),
}

/// What a sink does with webhooks.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) failing: Option<Failing>,
    /// The status of those that fail.
    pub(super) status: u16,
    pub(super) delay: Duration,
    pub(super) hangs: bool,
}

impl FromStr for Failing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is neither a number of webhooks nor a percentage such as 20%");
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(percent) if percent <= 100 => Ok(Self::Percent(percent)),
                _ => Err(wrong()),
            },
            None => text.parse().map(Self::First).map_err(|_| wrong()),
        }
    }
}

impl Failing {
    /// Whether the webhook with this number, from 1 on, fails.
    fn fails(self, number: u64) -> bool {
        match self {
            Self::First(count) => number <= count,
            Self::Percent(percent) => {
                let failed = |number: u64| u128::from(number) * u128::from(percent) / 100;
                failed(number) > failed(number - 1)
            }
        }
    }
}

impl Plan {
    /// The status of the answer to the webhook with this number, from 1 on.
    pub(super) fn status(&self, number: u64) -> u16 {
        match self.failing {
            Some(failing) if failing.fails(number) => self.status,
            _ => 200,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_or_a_part_of_all_fail() {
        let failed = |text: &str| {
            let failing: Failing = text.parse().unwrap();
            (1..=100).filter(|number| failing.fails(*number)).collect::<Vec<u64>>()
        };
        assert_eq!(failed("3"), [1, 2, 3]);
        assert_eq!(failed("20%").len(), 20);
        assert_eq!(failed("25%")[..3], [4, 8, 12]);
        assert_eq!((failed("0%").len(), failed("100%").len(), failed("33%").len()), (0, 100, 33));
        for bad in ["", "x", "-1", "101%", "%", "1.5%"] {
            assert!(bad.parse::<Failing>().is_err(), "{bad}");
        }
    }
}
