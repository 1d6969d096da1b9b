//! What the engine has once for each family.

use crate::values::Family;

/// One of something for each family.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct PerFamily<T> {
    pub(in crate::sqlite) entries: T,
    pub(in crate::sqlite) jobs: T,
}

impl<T> PerFamily<T> {
    pub(in crate::sqlite) fn new(mut make: impl FnMut(Family) -> T) -> Self {
        Self { entries: make(Family::Entries), jobs: make(Family::Jobs) }
    }

    pub(in crate::sqlite) fn of(&self, family: Family) -> &T {
        match family {
            Family::Entries => &self.entries,
            Family::Jobs => &self.jobs,
        }
    }

    /// A family's own, and the other one's.
    pub(in crate::sqlite) fn split(&mut self, family: Family) -> (&mut T, &mut T) {
        match family {
            Family::Entries => (&mut self.entries, &mut self.jobs),
            Family::Jobs => (&mut self.jobs, &mut self.entries),
        }
    }

    pub(in crate::sqlite) fn all(&self) -> [&T; 2] {
        [&self.entries, &self.jobs]
    }

    pub(in crate::sqlite) fn all_mut(&mut self) -> [&mut T; 2] {
        [&mut self.entries, &mut self.jobs]
    }
}
