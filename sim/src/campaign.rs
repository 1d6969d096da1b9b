//! The fault campaign: faults around the queue, such as clocks, disks and failover. One file per kind of fault.

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod failover;
pub(crate) mod groups;
pub(crate) mod heartbeats;
pub(crate) mod replaces;
pub(crate) mod settings;
pub(crate) mod stops;

use crate::Numbered;
use crate::scenario::Settings;

/// The scenarios of the campaign, with their number of events and faults in the short form.
pub(crate) const SCENARIOS: [Numbered; 8] = [
    (("replaces", replaces::run), 3_000, 0),
    (("group-ends", groups::run), 300, 3),
    (("heartbeats", heartbeats::run), 100, 2),
    (("stops", stops::run), 400, 2),
    (("settings", settings::run), 300, 1),
    (("failover", failover::run), 1_500, 1),
    (("disk", disk::run), 1_500, 4),
    (("clock", clock::run), 1_500, 3),
];

/// The arguments of `campaign`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only the scenarios whose names start with this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Few events and short faults, as in `ci`.
    #[arg(long)]
    pub(crate) short: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

impl Arguments {
    /// The scenarios that `--only` selects.
    pub(crate) fn wanted(&self) -> Vec<Numbered> {
        let only = self.only.as_deref().unwrap_or("");
        SCENARIOS.into_iter().filter(|((name, _), ..)| name.starts_with(only)).collect()
    }
}
