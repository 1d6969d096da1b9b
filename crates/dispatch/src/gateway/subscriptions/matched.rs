//! The subscriptions in memory, by the events that they ask for.

use std::sync::Arc;

use tidegate::{Resource, Tsid};
use tidegate_core::event_type::VersionNumber;
use tidegate_core::filter::Candidate;
use tidegate_core::matching::{Binding, Index};

use super::values::{SUBSCRIPTION, Subscription, SubscriptionStatus};
use crate::gateway::kept::Kind;

/// The ACTIVE subscriptions. A clone shares what later changes leave alone.
#[derive(Debug, Clone, Default)]
pub(in crate::gateway) struct Subscriptions {
    index: Index<Arc<Subscription>>,
}

impl Subscriptions {
    /// Those that ask for an event of this client, type and version, whatever their filters say, in the order of their ids.
    pub(in crate::gateway) fn asking(
        &self,
        client: Option<Tsid>,
        event_type: &str,
        version: Option<VersionNumber>,
    ) -> Vec<&Arc<Subscription>> {
        self.index.matching(client, event_type, version).into_iter().map(|(_, found)| found).collect()
    }
}

impl Kind for Subscriptions {
    const NAME: &'static str = SUBSCRIPTION;

    fn apply(&mut self, resource: &Resource) {
        self.index.remove(resource.id);
        if resource.deleted {
            return;
        }
        match Subscription::read(resource) {
            Ok(read) if read.status == SubscriptionStatus::Active => {
                self.index.insert(read.id, read.client, read.asked(), Arc::new(read));
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, code = resource.code, "a subscription is left out"),
        }
    }
}

impl Subscription {
    /// What it asks for.
    pub(in crate::gateway) fn asked(&self) -> Vec<Binding> {
        let one = |binding: &super::TypeBinding| Binding { pattern: binding.code.clone(), version: binding.version };
        self.body.bindings.iter().map(one).collect()
    }

    /// Whether what is made for it is a job that can be delivered at once.
    pub(in crate::gateway) fn is_due_at_once(&self) -> bool {
        matches!(self.body.target, super::Target::Webhook(_)) && self.body.delay_seconds == 0
    }

    /// Whether its filter takes an event.
    pub(in crate::gateway) fn accepts(&self, event: &Candidate<'_>) -> bool {
        self.body.filter.as_ref().is_none_or(|filter| filter.accepts(event))
    }
}
