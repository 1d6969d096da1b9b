//! The lanes of tasks that this node has met. The store's look tells which there are; each has a route like a subscription,
//! made of its name: the pool, as long as that is there, and the origin.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{PoolKey, QueueName, Tsid};

use super::routes::Route;
use crate::gateway::tasks::TaskLane;

/// For how long a lane is remembered in which nothing waits.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The lanes. Their ids are of this process only, and negative: no resource has such a one.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskLanes {
    by_name: HashMap<(QueueName, String), Tsid>,
    lanes: HashMap<Tsid, Known>,
    last: i64,
}

#[derive(Debug, Clone)]
struct Known {
    route: Arc<Route>,
    lane: TaskLane,
    /// When something was known to wait in it last.
    used: Instant,
}

impl TaskLanes {
    pub(super) fn all(&self) -> impl Iterator<Item = (Tsid, &Arc<Route>)> {
        self.lanes.iter().map(|(id, known)| (*id, &known.route))
    }

    pub(super) fn get(&self, id: Tsid) -> Option<&Arc<Route>> {
        self.lanes.get(&id).map(|known| &known.route)
    }

    /// A lane by its name.
    pub(super) fn find(&self, queue: &QueueName, lane: &str) -> Option<Tsid> {
        self.by_name.get(&(queue.clone(), lane.to_owned())).copied()
    }

    /// Something waits in a lane.
    pub(super) fn used(&mut self, id: Tsid, now: Instant) {
        if let Some(known) = self.lanes.get_mut(&id) {
            known.used = now;
        }
    }

    /// Adds a lane that was not met before; `None` if its name is none of a lane of tasks.
    pub(super) fn add(
        &mut self,
        queue: &QueueName,
        name: &str,
        has_pool: impl Fn(Tsid) -> bool,
        now: Instant,
    ) -> Option<(Tsid, Arc<Route>)> {
        let lane = TaskLane::parse(name)?;
        self.last -= 1;
        let id = Tsid::from_i64(self.last);
        let route = Arc::new(route(queue, name, &lane, has_pool));
        self.by_name.insert((queue.clone(), name.to_owned()), id);
        self.lanes.insert(id, Known { route: Arc::clone(&route), lane, used: now });
        Some((id, route))
    }

    /// Goes by the pools that there are now.
    pub(super) fn go_by(&mut self, has_pool: impl Fn(Tsid) -> bool) {
        for known in self.lanes.values_mut() {
            if known.route.pool != pool(&known.route.queue, &known.lane, &has_pool) {
                let (queue, name) = (known.route.queue.clone(), known.route.lane.clone());
                known.route = Arc::new(route(&queue, &name, &known.lane, &has_pool));
            }
        }
    }

    /// Forgets lanes in which nothing has waited for long, as far as `may_go` has it.
    pub(super) fn forget(&mut self, now: Instant, mut may_go: impl FnMut(Tsid) -> bool) {
        let (by_name, lanes) = (&mut self.by_name, &mut self.lanes);
        lanes.retain(|id, known| {
            let is_old = now.saturating_duration_since(known.used) > REMEMBERED;
            let goes = is_old && may_go(*id);
            if goes {
                by_name.remove(&(known.route.queue.clone(), known.route.lane.clone()));
            }
            !goes
        });
    }
}

/// The pool that limits a lane: the default one of its client where the one that its tasks name is gone, so that they do not
/// wait for ever.
fn pool(queue: &QueueName, lane: &TaskLane, has_pool: impl Fn(Tsid) -> bool) -> PoolKey {
    let named = lane.pool.filter(|pool| has_pool(*pool));
    named.map_or_else(|| PoolKey::default_of(queue.client()), PoolKey::of)
}

fn route(queue: &QueueName, name: &str, lane: &TaskLane, has_pool: impl Fn(Tsid) -> bool) -> Route {
    Route {
        subscription: None,
        account: lane.account,
        lane: name.to_owned(),
        queue: queue.clone(),
        pool: pool(queue, lane, has_pool),
        origin: (queue.client(), lane.breaker(name).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_by_their_pool_while_it_is_there() {
        let (now, client, own) = (Instant::now(), Tsid::from_i64(7), Tsid::from_i64(9));
        let queue = QueueName::of(Some(client), "dispatch").unwrap();
        let name = format!("task:{own}:https://e.com");
        let mut lanes = TaskLanes::default();
        let (id, route) = lanes.add(&queue, &name, |_| true, now).unwrap();
        assert_eq!((route.pool, &*route.origin.1), (PoolKey::of(own), "https://e.com"));
        assert_eq!((lanes.find(&queue, &name), id.to_i64()), (Some(id), -1));
        lanes.go_by(|_| true);
        assert!(Arc::ptr_eq(lanes.get(id).unwrap(), &route), "what has not changed is the same");
        lanes.go_by(|_| false);
        assert_eq!(lanes.get(id).unwrap().pool, PoolKey::default_of(Some(client)), "the pool was deleted");
        assert!(lanes.add(&queue, "task:x", |_| true, now).is_none());
        let (spare, route) = lanes.add(&queue, "task:-:~3", |_| true, now).unwrap();
        assert_eq!(route.origin.1, "task:-:~3", "no origin is meant");
        let later = now + REMEMBERED + Duration::from_secs(1);
        lanes.forget(later, |_| false);
        lanes.used(id, later);
        lanes.forget(later, |_| true);
        assert_eq!((lanes.get(spare).is_none(), lanes.find(&queue, "task:-:~3")), (true, None));
        assert!(lanes.get(id).is_some());
    }
}
