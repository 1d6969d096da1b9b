//! What a validation may read: a budget of steps, and the price of each reading.
//!
//! A validator of the `jsonschema` crate cannot be interrupted, but it sees the document only through the accessors of
//! [`super::node`]. Each of them pays; once the budget is spent, arrays and objects look empty and strings and numbers
//! look like values of another type, so that the validator comes to its end quickly. What it then says is not used.

use std::cell::Cell;

/// The steps that judging a document may take. A step takes about 5 ns, and no more than 20 in the worst case.
pub(super) const TO_JUDGE: i64 = 2_200_000;
/// The steps of judging a document and finding all that is wrong with it.
pub(super) const TO_EXPLAIN: i64 = 3_500_000;
/// The steps of finding what is wrong that are left in any case.
const AT_LEAST: i64 = 500_000;
/// What a reading costs more while errors are looked for: each keyword that is asked makes a list of them.
const EXPLAINING: i64 = 2;

/// What readings cost with a schema, beyond one step for each value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Prices {
    /// For 8 bytes of a string: patterns, formats.
    pub(super) text: u32,
    /// For each member of an object, and for 8 bytes of its name: `patternProperties` and `propertyNames`.
    pub(super) member: u32,
    pub(super) name: u32,
    /// For each error that is made, and for each array or object that its value is in.
    pub(super) error: u32,
    pub(super) level: u32,
    /// For each member of an object and for 8 bytes of its name, while errors are looked for: they list names.
    pub(super) listed: u32,
}

/// A budget that is being spent.
#[derive(Debug)]
pub(super) struct Meter {
    left: Cell<i64>,
    prices: Prices,
    /// What a reading costs more now, and what listing a name costs now.
    extra: Cell<i64>,
    listed: Cell<u32>,
}

impl Default for Meter {
    /// A meter that never runs out.
    fn default() -> Self {
        Self { left: Cell::new(i64::MAX / 2), prices: Prices::default(), extra: Cell::new(0), listed: Cell::new(0) }
    }
}

impl Meter {
    pub(super) fn new(prices: Prices) -> Self {
        Self { left: Cell::new(TO_JUDGE), prices, extra: Cell::new(0), listed: Cell::new(0) }
    }

    /// Starts anew, with what is left of the budget for finding all that is wrong.
    pub(super) fn restart(&self) {
        let spent = TO_JUDGE - self.left.get();
        self.left.set((TO_EXPLAIN - spent).max(AT_LEAST));
        self.extra.set(EXPLAINING);
        self.listed.set(self.prices.listed);
    }

    /// Whether the budget is spent.
    pub(super) fn is_spent(&self) -> bool {
        self.left.get() < 0
    }

    /// Pays for a reading; whether the budget suffices.
    #[inline]
    pub(super) fn pay(&self, steps: i64) -> bool {
        let left = self.left.get() - steps - self.extra.get();
        self.left.set(left);
        left >= 0
    }

    /// Pays for looking at a string.
    #[inline]
    pub(super) fn pay_text(&self, bytes: usize) -> bool {
        self.pay(1 + eighths(bytes, self.prices.text))
    }

    /// Pays for visiting a member.
    #[inline]
    pub(super) fn pay_member(&self, bytes: usize) -> bool {
        let listed = self.listed.get();
        self.pay(
            1 + i64::from(self.prices.member)
                + i64::from(listed)
                + eighths(bytes, self.prices.name.saturating_add(listed / 8)),
        )
    }

    /// Pays for an error about a value.
    pub(super) fn pay_error(&self, pointer: u16, depth: u8) -> bool {
        self.pay(
            i64::from(self.prices.error) + i64::from(pointer / 16) + i64::from(self.prices.level) * i64::from(depth),
        )
    }
}

#[inline]
fn eighths(bytes: usize, price: u32) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX >> 33) * i64::from(price) / 8
}
