//! The subjects of a store that a test double does not implement itself: refused, or passed on to another store.

/// Implements these traits for a type: calls the macro `$how` with each trait and its verbs.
macro_rules! other_subjects {
    ($how:ident, $type:ty) => {
        $how! { $type, tidegate_store::Attempts, { }
            report(items: Vec<Report>) -> Batch<Reported>;
            started(items: Vec<Holder>) -> Batch<AuditRow>;
            heartbeat(items: Vec<Heartbeat>) -> Batch<Held>;
            reset(items: Vec<ManualAction>) -> Batch<()>;
            audit_page(id: EntryId, after: i64, limit: usize) -> Vec<AuditRow>;
        }
        $how! { $type, tidegate_store::Ingestion, { }
            ingest(items: Vec<Ingest>, under: Option<CatalogueVersion>) -> IngestAnswer;
            add_targets(items: Vec<tidegate::AddTarget>) -> Batch<tidegate::AddedTarget>;
        }
        $how! { $type, tidegate_store::Dispatch, { }
            waiting_lanes(queue: Option<QueueName>) -> WaitingLanes;
            limits(node: &str, asks: Vec<LimitAsk>, hold: std::time::Duration) -> Vec<LimitGrant>;
            slot_holders() -> Vec<String>;
            release_slots(nodes: Vec<String>) -> ();
            job_attempts(id: EntryId) -> Vec<JobAttempt>;
            tasks(ids: Vec<EntryId>) -> Vec<Option<String>>;
        }
        $how! { $type, tidegate_store::Facts, { }
            facts(ids: Vec<tidegate_core::Tsid>, targets: usize) -> Vec<Option<StoredFact>>;
            find_facts(query: FactsQuery) -> FactsPage;
            walk_facts(walk: tidegate::FactsWalk) -> tidegate::WalkedFacts;
        }
        $how! { $type, tidegate_store::JobDesk, { }
            job(id: tidegate_core::Tsid) -> Option<tidegate::JobView>;
            list_jobs(query: tidegate::JobsQuery) -> tidegate::JobsPage;
            retry_jobs(items: Vec<ManualAction>) -> Batch<tidegate_core::Generation>;
            ignore_jobs(items: Vec<ManualAction>) -> Batch<()>;
            blocked_groups(query: tidegate::BlockedQuery) -> tidegate::BlockedPage;
            count_blocked(after: Option<(i64, String)>) -> tidegate::BlockedCount;
            lanes_hold(lanes: Vec<tidegate::LaneAsk>) -> Vec<tidegate::LaneHolds>;
            slots_held(pools: Vec<tidegate::PoolKey>) -> Vec<Vec<tidegate::HeldSlots>>;
            pool_view(pool: tidegate::PoolKey) -> tidegate::PoolView;
            job_lanes(after: i64, limit: usize) -> Vec<tidegate::JobLane>;
            jobs_of_lane(lane: i64, limit: usize) -> Vec<EntryId>;
        }
        $how! { $type, tidegate_store::Projections, { }
            register(id: &ProjectionId) -> ProjectionView;
            take_reader(id: &ProjectionId, reader: &str, lease: std::time::Duration) -> Option<Reader>;
            keep_reader(id: &ProjectionId, token: i64, lease: std::time::Duration) -> ();
            leave_reader(id: &ProjectionId, token: i64) -> ();
            read_log(query: ReadLog) -> LogPage;
            apply(step: Step, changes: Vec<Change>) -> ();
            fail(failure: Failed) -> ();
            documents(id: &ProjectionId, keys: Vec<String>) -> Vec<Option<bytes::Bytes>>;
            list_documents(id: &ProjectionId, query: ListDocuments) -> Vec<Document>;
            activate(id: &ProjectionId, token: i64) -> ();
            remove(name: &str) -> bool;
            sweep(name: &str) -> bool;
            projections() -> Vec<ProjectionView>;
            active(name: &str) -> Option<ProjectionView>;
            lag(id: &ProjectionId, bound: u32) -> Lag;
            logged_at(entry: EntryId) -> Option<Position>;
        }
        $how! { $type, tidegate_store::Schedules, { }
            put_schedule(spec: ScheduleSpec) -> ScheduleView;
            schedule(name: &str) -> Option<ScheduleView>;
            list_schedules() -> Vec<ScheduleView>;
            delete_schedule(name: &str) -> bool;
            pause_schedule(name: &str, paused: bool) -> ScheduleView;
            due_schedules(limit: usize) -> DueSchedules;
            tick(tick: Tick) -> Option<Vec<Published>>;
        }
        $how! { $type, tidegate_store::Resources, { }
            catalogue_version() -> CatalogueVersion;
            put_resources(items: Vec<PutResource>) -> Batch<Resource>;
            delete_resources(items: Vec<DeleteResource>) -> Batch<()>;
            change_resources(items: Vec<ChangeResource>) -> Vec<Resource>;
            resource_changes(kind: Option<&str>, since: Option<CatalogueVersion>) -> ResourceChanges;
            resource(kind: &str, id: tidegate_core::Tsid) -> Option<Resource>;
            resource_by_code(kind: &str, client: Option<tidegate_core::Tsid>, code: &str) -> Option<Resource>;
            resources(query: ResourcesQuery) -> Vec<Resource>;
        }
        $how! { $type, tidegate_store::KeyStore, {
                fn key_changes(&self) -> u64 {
                    0
                }
            }
            put_key(key: NewKey) -> KeyView;
            keys() -> Vec<KeyView>;
            revoke_key(id: i64) -> KeyView;
            keys_by_hash(hashes: Vec<Vec<u8>>) -> Vec<Option<KeyView>>;
            keys_used(ids: Vec<i64>, ago: std::time::Duration) -> ();
        }
    };
}

/// Every verb is refused.
macro_rules! refuse {
    ($type:ty, $trait:path, { $($own:item)* } $($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl $trait for $type {
            $($own)*
            $(async fn $verb(&self, $(_: $kind),*) -> Result<$answer> {
                Err(Error::invalid(concat!(stringify!($verb), " is not for this test")))
            })*
        }
    };
}

/// Every verb is passed on to the store inside.
macro_rules! pass_on {
    ($type:ty, $trait:path, { $($own:item)* } $($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl $trait for $type {
            $($own)*
            $(async fn $verb(&self, $($name: $kind),*) -> Result<$answer> {
                self.inner.$verb($($name),*).await
            })*
        }
    };
}

pub(crate) use {other_subjects, pass_on, refuse};
