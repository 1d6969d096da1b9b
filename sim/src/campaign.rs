//! The fault campaign: what goes wrong around a queue rather than inside it. One file per fault; this one lists them.

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

/// Every scenario, with its events and faults in the short form.
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

/// What `campaign` is given.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only the scenarios whose names begin so.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Few events and short faults, as in `ci`.
    #[arg(long)]
    pub(crate) short: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

impl Arguments {
    /// The scenarios that are wanted.
    pub(crate) fn wanted(&self) -> Vec<Numbered> {
        let only = self.only.as_deref().unwrap_or("");
        SCENARIOS.into_iter().filter(|((name, _), ..)| name.starts_with(only)).collect()
    }
}
