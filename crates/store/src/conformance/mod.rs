//! The conformance suite: the cases that every store must pass, as a library.
//!
//! Cases see a store through [`Store`], a caller's own transactions and plain SQL. They know no database: a [`Fixture`]
//! provides one. New cases are added here, never to one backend's own tests;
//! [`conformance_cases!`](crate::conformance_cases) lists them, so that a test binary can make a test of each.

mod added_targets;
mod attempts;
mod audit;
mod bad_input;
mod batches;
mod bounds;
mod catalogue;
mod clients;
mod concurrency;
mod counting;
mod dead_letters;
mod deduplication;
mod delays;
mod dispatch;
mod eligibility;
mod fact_batches;
mod fact_keys;
mod fact_retention;
mod fact_search;
mod fact_targets;
mod fact_versions;
mod facts;
mod families;
mod fencing;
mod groups;
mod handlers;
mod ids;
mod job_desk;
mod jobs;
mod lanes;
mod lists;
mod model;
mod namespaces;
mod order;
mod outage;
mod outbox;
mod payloads;
mod plain_sql;
mod projections;
mod queues;
mod replacing;
mod resources;
mod restart;
mod scene;
mod schedules;
mod schema;
mod tags;
mod tasks;
mod turns;
mod wakeups;
mod why;
mod work;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{NewEvent, Tsid};

use crate::api::Store;
use crate::error::Result;
use crate::values::{Backend, Family, Finalize, Finalized, Published, StoreOptions};

pub use jobs::Jobs;
pub use scene::Scene;

/// A fresh database for one case.
#[async_trait]
pub trait Fixture: Debug + Send + Sync + 'static {
    /// The database that this fixture provides.
    fn backend(&self) -> Backend;

    /// The family whose verbs the opened stores have.
    fn family(&self) -> Family {
        Family::Entries
    }

    /// Opens the store as another process would; several may be open at once.
    async fn open(&self, options: StoreOptions) -> Result<Arc<dyn Store>>;

    /// Begins a transaction of the application on a connection of its own. Its calls of the store go to the store that
    /// was opened last.
    async fn begin(&self) -> Box<dyn CallerTx>;

    /// The number of rows in the application's own table.
    async fn own_rows(&self) -> u64;

    /// Sets the schema version and the oldest compatible version that the default namespace stores.
    async fn set_schema(&self, version: i32, oldest_compatible: i32);

    /// Moves the stored heartbeat of the default namespace back by this much.
    async fn age_heartbeat(&self, by: Duration);

    /// Runs a statement on a connection of its own. Tables of the default namespace are written as `tidegate.TABLE`.
    async fn sql(&self, statement: &str);

    /// The number that a query returns; its tables are written as for [`sql`](Self::sql).
    async fn number(&self, query: &str) -> i64;

    /// Deletes a fact of the default namespace without the store knowing.
    async fn lose_fact(&self, event: Tsid);

    /// Whether a transaction waits for a lock of another one; `None` where the database cannot tell.
    async fn somebody_waits(&self) -> Option<bool>;

    /// The number of transactions that are open while nothing runs in them.
    async fn forgotten_transactions(&self) -> u64;

    /// Removes all that a namespace has, where many of them slow down each other. Its stores are closed.
    async fn drop_namespace(&self, _namespace: &str) {}

    /// Closes every store and removes the database.
    async fn finish(&self);
}

/// A transaction of the application.
#[async_trait]
pub trait CallerTx: Send {
    /// Publishes in this transaction through the store.
    async fn publish_in(&mut self, events: Vec<NewEvent>) -> Result<Vec<Published>>;

    /// Ends entries in this transaction through the store.
    async fn finalize_in(&mut self, items: Vec<Finalize>) -> Result<Vec<Finalized>>;

    /// Publishes with plain SQL, as a program in another language would. The error is the database's message.
    async fn publish_sql(&mut self, event: &NewEvent) -> std::result::Result<(), String>;

    /// Runs a statement. The error is the database's message.
    async fn run_sql(&mut self, statement: &str) -> std::result::Result<(), String>;

    /// Writes a row into the application's own table.
    async fn write_own_row(&mut self);

    /// Commits the transaction.
    async fn commit(self: Box<Self>);

    /// Rolls the transaction back.
    async fn rollback(self: Box<Self>);
}

/// A case, ready to run.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One behaviour that every store must show.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// `subject::name`.
    pub name: &'static str,
    /// Runs the case; it panics when the store behaves differently.
    pub run: fn(Scene) -> Running,
}

/// Runs one case by its name on a fresh database.
///
/// # Panics
/// When the store does not behave as the case says, or when there is no such case.
pub async fn run(name: &str, fixture: Arc<dyn Fixture>) {
    let Some(case) = cases().into_iter().find(|case| case.name == name) else { panic!("there is no case {name}") };
    let running = tokio::spawn((case.run)(Scene::new(fixture.clone())));
    let outcome = running.await;
    fixture.finish().await;
    if let Err(error) = outcome {
        match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("the case did not complete: {error}"),
        }
    }
}

macro_rules! registry {
    ($($subject:ident { $($name:ident),* $(,)? })*) => {
        /// Every case.
        #[must_use]
        pub fn cases() -> Vec<Case> {
            vec![$($(Case {
                name: concat!(stringify!($subject), "::", stringify!($name)),
                run: |scene| Box::pin($subject::$name(scene)),
            }),*),*]
        }
    };
}

/// Calls the macro `$then` with the subjects and names of all cases, as `subject { name, name, } …`.
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident) => {
        $then! {
            eligibility {
                publish_is_pending_with_no_attempts,
                nothing_to_claim_is_an_empty_answer,
                claim_leases_and_counts_an_attempt,
                a_leased_entry_is_not_offered,
                an_abandoned_entry_is_claimed_again,
                the_lease_runs_from_each_claim,
                finalize_moves_to_the_log,
                finalize_with_errors_is_completed_with_errors,
                finalize_by_id_without_a_claim,
                finalize_is_idempotent,
                claim_by_type_takes_only_these_types,
                facts_come_back_in_full,
            }
            attempts {
                each_abandonment_counts,
                releases_never_use_up_attempts,
                failures_count_and_keep_their_error,
                an_end_that_says_no_errors_keeps_the_last_one,
                neighbours_that_say_no_errors_keep_their_last_ones,
                an_event_that_kills_its_worker_ends_in_the_log,
                exhausted_entries_end_as_they_were_told,
                a_retry_that_used_the_last_attempt_ends_at_the_next_claim,
                exhausted_entries_do_not_hide_the_ones_behind,
            }
            fencing {
                an_old_token_changes_nothing,
                two_tokens_in_one_batch_are_each_judged,
                a_zombie_in_the_same_process_is_fenced,
                an_expired_lease_that_nobody_took_still_finishes,
                a_released_lease_cannot_finish,
                tokens_rise_and_survive_a_redrive,
                a_repeat_under_the_ending_token_is_repeated,
                a_late_finalize_after_the_end_is_fenced,
                extend_moves_the_lease,
                extend_and_requeue_of_the_unknown,
                tokens_of_the_future_are_fenced,
                zombies_that_end_a_whole_run_are_each_fenced,
                a_zombie_inside_a_run_is_fenced_alone,
            }
            handlers {
                answers_are_kept_by_entry_and_handler,
                a_later_answer_replaces_an_earlier_one,
                a_stale_holder_records_nothing,
                answers_outlive_a_retry_and_are_forgotten_after_the_end,
                a_redriven_entry_knows_its_last_results,
                a_run_that_ends_alike_keeps_its_results,
                what_handlers_answered_outlives_exhaustion,
            }
            order {
                oldest_first,
                priority_before_order,
                order_within_one_batch,
                a_release_keeps_its_place,
                priorities_across_types,
                more_types_than_lanes,
                late_starts_do_not_hide_earlier_entries,
                retried_entries_and_fresh_ones_share_one_order,
            }
            delays {
                a_delayed_entry_waits_for_its_moment,
                a_moment_in_the_past_is_due_at_once,
                many_delayed_in_front_hide_nothing,
                snooze_waits_without_counting,
                retry_at_waits_and_counts,
                due_entries_go_by_their_due_moment_within_a_lane,
            }
            groups {
                one_of_a_group_in_flight_in_order,
                groups_do_not_hold_each_other_up,
                one_claim_takes_one_of_each_group,
                a_released_head_stays_first,
                a_retrying_head_holds_its_group,
                a_delayed_head_holds_its_group,
                a_cancelled_head_frees_the_next,
                an_exhausted_head_frees_the_next,
                a_cancelled_follower_is_skipped,
                a_redriven_member_goes_in_by_its_number,
                the_same_group_in_two_queues_is_two_groups,
                an_abandoned_head_is_taken_over_before_its_followers,
                a_follower_in_an_open_transaction_while_the_head_ends,
                a_follower_that_commits_before_the_head_ends,
                concurrent_publishers_and_workers_keep_groups_in_order,
                a_group_never_stalls_when_ends_race_with_publishes,
            }
            turns {
                a_smaller_rank_goes_first,
                a_head_that_was_not_started_is_overtaken,
                a_failure_steps_aside_and_comes_back,
                what_is_aside_alone_is_found_when_due,
                a_head_is_not_overtaken_while_one_aside_is_due,
                aside_without_a_group_is_a_retry,
                what_is_aside_can_be_ended_and_replaced,
                an_exhausted_entry_keeps_its_place,
                a_dead_worker_leaves_its_last_attempt_kept,
                a_kept_entry_ends_when_it_expires,
                a_new_generation_keeps_rank_and_place,
                a_key_of_a_kept_entry_makes_a_new_one,
                a_kept_entry_keeps_what_its_handlers_answered,
                a_replaced_entry_takes_the_new_expiry,
                a_claim_ends_a_bounded_number_of_entries,
                a_claim_cancels_what_expired,
                upkeep_cancels_what_expired_wherever_it_waits,
                quotas_bound_each_lane,
                quotas_take_the_first_by_number,
                quotas_hold_though_entries_end_in_the_claim,
                turns_hold_however_many_race,
            }
            families {
                two_families_are_apart,
                queues_of_one_name_are_two,
                upkeep_serves_both,
                an_outage_moves_the_leases_of_both,
                jobs_have_neither_tags_nor_audit,
                a_claim_by_tag_takes_no_quotas,
            }
            deduplication {
                a_repeat_answers_the_first,
                a_repeat_is_answered_by_a_queue_that_takes_nothing_new,
                a_repeat_after_the_end_still_answers_the_first,
                another_body_under_the_key_is_a_conflict,
                keys_are_scoped_by_queue,
                keys_are_scoped_by_client,
                keys_expire,
                a_repeat_inside_one_batch,
                replace_changes_what_waits,
                replace_of_a_taken_entry_is_a_new_one,
                concurrent_repeats_make_one_entry,
                a_rolled_back_key_is_free,
            }
            replacing {
                concurrent_replacements_leave_one_entry_with_its_fact,
                concurrent_takeovers_of_a_key_make_one_entry,
                a_replacement_that_waited_for_another_finds_its_contents,
                several_are_replaced_in_one_batch,
                recorded_successes_go_with_the_contents,
                an_entry_without_its_fact_is_set_aside_with_the_reason,
                a_replacement_mends_an_entry_without_its_fact,
            }
            facts {
                a_fact_has_any_number_of_entries,
                every_field_of_a_fact_comes_back,
                entries_of_a_fact_live_on_their_own,
                a_claim_takes_several_entries_of_a_fact,
                a_shared_payload_counts_with_each_entry,
                a_target_can_name_its_lane,
                a_fact_has_entries_and_jobs,
                ingests_and_publishes_run_side_by_side,
                an_ingest_wakes,
            }
            fact_batches {
                a_bad_target_refuses_its_item_alone,
                a_large_batch_is_written_in_parts,
                groups_of_targets_are_longer_than_those_of_events,
                targets_take_the_retries_of_their_queue,
                a_refused_fact_takes_room_in_no_family,
                nothing_to_ingest_is_an_empty_answer,
            }
            fact_retention {
                a_fact_stays_while_anything_refers_to_it,
                facts_are_removed_in_batches_beside_the_log,
                a_projection_reads_each_entry_with_its_fact,
                one_of_many_gets_other_contents,
                a_lost_fact_ends_all_of_its_entries,
            }
            fact_keys {
                a_repeat_is_answered_with_the_first,
                either_key_of_a_fact_is_enough,
                a_key_is_known_until_it_expires,
                keys_are_a_clients_own,
                keys_of_publishes_are_others,
                a_batch_repeats_itself,
                a_repeat_needs_no_queue,
                a_repeat_outlives_its_first,
                bad_keys_are_refused,
                of_many_at_once_one_is_new,
            }
            fact_search {
                every_filter_finds_what_a_scan_finds,
                facts_are_found_in_full,
                a_page_examines_no_more_than_it_may,
                a_page_is_bounded_in_bytes,
                more_streams_than_are_merged_are_searched_all_the_same,
                terms_go_with_their_facts,
            }
            fact_targets {
                an_event_is_made_into_jobs_of_thousands_of_lanes,
                an_entry_can_carry_the_whole_event,
                a_fact_shows_its_targets_in_every_state,
                published_facts_show_their_entry,
                a_fact_that_stands_alone_outlives_its_entry,
                a_fact_that_stands_alone_outlives_a_replacement,
            }
            added_targets {
                a_target_is_added_once_under_its_key,
                entries_that_are_added_are_like_others,
                a_fact_stays_while_something_that_was_added_refers_to_it,
                what_cannot_be_added_is_refused,
                of_many_at_once_each_is_added_once,
                a_time_range_finds_entries_beside_those_that_were_added,
                a_walk_comes_by_every_fact_in_order,
            }
            fact_versions {
                nothing_is_written_under_another_version,
                lanes_that_are_missing_do_not_keep_an_ingest_from_ending,
                a_flood_of_changes_does_not_stop_ingest,
                a_large_batch_is_written_under_one_version,
            }
            dispatch {
                lanes_that_hold_something_wait,
                timed_jobs_wait_once_they_are_due,
                a_job_that_is_kept_for_ever_is_never_due,
                slots_are_shared_by_nodes,
                slots_never_exceed_the_limit,
                slots_of_a_dead_node_come_back,
                slots_of_a_node_are_given_back_by_its_name,
                each_node_has_its_turn,
                no_slot_expires_during_an_outage,
                a_rate_holds_across_nodes,
                pools_are_apart,
                attempts_are_recorded_with_what_follows,
                only_the_holder_records_an_attempt,
                attempts_of_earlier_generations_stay,
                the_last_attempt_at_a_kept_job_is_recorded,
                each_of_a_run_has_its_own_record,
                bad_records_are_refused_alone,
                attempts_go_with_their_job,
            }
            job_desk {
                jobs_are_found_by_their_ids,
                jobs_are_listed_by_state_and_lane,
                a_page_looks_at_a_bounded_number,
                failed_and_cancelled_jobs_are_retried,
                a_failed_job_is_ignored_once,
                an_ignored_head_frees_its_group,
                blocked_groups_are_listed_in_pages,
                blocked_groups_are_counted_in_pieces,
                lanes_say_what_waits,
                a_pool_says_who_holds_it_and_when_it_goes_on,
                jobs_of_a_lane_are_found_wherever_they_wait,
                jobs_behind_the_head_of_another_lane_are_found,
                a_retry_finds_its_lane_again,
                jobs_that_were_added_are_found_with_their_event,
            }
            tasks {
                what_is_said_about_a_task_is_read_with_it,
                a_task_is_stored_once_under_its_key,
                a_task_goes_with_its_job,
                bad_tasks_are_refused_alone,
                lanes_of_a_kind_are_bounded,
            }
            dead_letters {
                listed_by_queue_type_and_page,
                only_the_middle_two_ends_are_dead_letters,
                redrive_starts_a_generation,
                a_new_generation_has_no_error_yet,
                redrive_of_anything_else_is_a_conflict,
                each_generation_ends_once,
                discard_takes_off_the_list,
                cancel_ends_whoever_holds,
                cancel_tells_ended_from_unknown,
                errors_and_results_are_kept,
            }
            bounds {
                a_claim_takes_no_more_bytes_than_it_may,
                a_claim_by_tag_or_of_many_lanes_takes_no_more_bytes_than_it_may,
                an_event_larger_than_a_claim_goes_alone,
            }
            clients {
                queues_of_one_name_are_apart,
                what_goes_into_a_clients_queue_is_the_clients,
                one_worker_in_two_clients_is_two_workers,
                a_client_sees_its_own_workers_and_tags_only,
                two_changes_at_once_both_count,
            }
            queues {
                the_default_queue_exists,
                put_creates_and_changes,
                events_take_the_retries_of_their_queue,
                queues_are_apart,
                a_paused_queue_accepts_but_does_not_deliver,
                a_draining_queue_refuses_but_delivers,
                a_full_queue_refuses,
                a_repeated_key_is_answered_by_a_full_queue,
                changes_reach_other_processes,
                an_unknown_queue_is_not_found,
                the_first_claimable_entry_tells_a_queues_age,
            }
            catalogue {
                a_version_that_was_set_back_stops_nobody,
                an_equal_version_of_another_history_is_noticed,
                reading_and_unchanged_changes_leave_the_version,
                changes_by_plain_sql_are_seen,
                a_process_that_slept_through_many_changes_catches_up,
            }
            resources {
                created_changed_and_found,
                changes_are_made_together_or_not_at_all,
                a_taken_code_is_a_conflict,
                a_change_names_the_version_it_expects,
                a_change_without_effect_writes_nothing,
                each_item_of_a_batch_is_answered,
                what_changed_since_a_version,
                a_version_that_is_not_in_the_history_reads_everything,
                deleted_ones_are_kept_for_a_thousand_versions,
                changes_of_resources_by_plain_sql_are_seen,
                versions_that_plain_sql_brings_hide_nothing,
                processes_race_for_a_code,
                expected_versions_lose_no_change,
                a_batch_that_fails_leaves_nothing,
                listed_by_client_and_code,
                bad_resources_are_refused,
                the_use_of_a_key_leaves_the_version,
                a_key_that_cannot_be_read_hides_no_other,
            }
            lanes {
                one_too_many_is_refused_and_names_the_limit,
                arrivals_beyond_the_limit_are_delivered,
                idle_lanes_go_and_come_back,
                lanes_in_use_stay,
                an_entry_of_a_late_transaction_is_not_lost,
                a_dead_letter_of_a_removed_lane_is_redriven,
                an_entry_in_a_removed_lane_is_found,
                empty_lanes_are_stepped_over_and_hide_nothing,
                a_shared_lane_among_many_gives_only_what_is_wanted,
                leases_in_front_are_passed_and_found_again,
            }
            outbox {
                commits_with_the_callers_rows,
                takes_the_retries_of_the_queue,
                rolls_back_with_the_callers_rows,
                an_open_transaction_holds_nobody_up_for_long,
                without_a_wake_it_is_still_delivered,
                upkeep_sorts_arrivals_in,
                every_option_works_in_a_callers_transaction,
                a_late_commit_is_found_below_later_entries,
                a_commit_that_took_long_is_found_once_nothing_else_is_left,
                a_commit_that_took_long_is_found_below_a_backlog,
                finalize_in_commits_with_effects,
                finalize_in_rolls_back_with_effects,
                finalize_in_with_a_stale_lease_is_fenced,
                finalize_in_frees_the_group,
                finalize_in_frees_the_group_also_beside_a_new_type,
                a_group_keeps_its_order_across_callers_transactions,
                a_bad_event_fails_the_call,
                plain_sql_publishes,
                plain_sql_rolls_back,
                plain_sql_knows_the_options,
                plain_sql_refuses_bad_input,
                plain_sql_deduplicates,
                plain_sql_of_a_new_type_is_claimed,
            }
            plain_sql {
                every_option_of_an_event,
                tags_lead_to_it,
                replace_changes_what_waits,
                replace_of_a_taken_entry_is_a_new_one,
                text_is_stored_as_sent,
                what_claims_to_be_json_must_be,
                limits_are_those_of_the_library,
                the_payload_limit_is_the_running_programs,
                moments_beyond_reach_are_shown,
            }
            why {
                ready_and_how_many_are_ahead,
                no_live_consumer_for_its_type,
                no_live_consumer_for_its_tags,
                due_at,
                leased_and_abandoned,
                behind_in_group,
                queue_paused,
                ended,
                unknown_is_not_found,
            }
            counting {
                depth_counts_each_kind,
                census_balances_over_every_end,
                census_balances_while_others_write,
                depth_of_a_paused_queue_counts_ready,
            }
            bad_input {
                each_bad_event_is_refused_alone,
                payloads_above_the_limit,
                claims_that_make_no_sense,
                texts_that_no_database_can_hold,
                unknown_entries,
                empty_batches,
                extreme_leases_and_moments,
                hostile_texts_are_only_texts,
            }
            batches {
                one_bad_item_in_a_thousand,
                the_same_entry_twice_in_one_batch,
                mixed_answers_in_one_finalize,
                a_thousand_of_everything,
                mixed_queues_in_one_batch,
            }
            schema {
                a_newer_schema_is_refused,
                a_newer_but_compatible_schema_works,
                an_older_schema_is_refused_without_migration,
                an_empty_database_is_refused_without_migration,
                the_same_program_twice,
                concurrent_first_starts,
                an_upgrade_stops_processes_that_run,
                an_upgrade_stops_callers_transactions,
                an_upgrade_that_this_program_can_bear_stops_nobody,
            }
            ids {
                ids_follow_offset_and_step,
                another_id_space_is_refused,
                ids_are_never_used_again,
                event_ids_are_unique_and_sort_by_time,
                two_processes_draw_apart,
            }
            namespaces {
                two_in_one_database_do_not_see_each_other,
                bad_namespaces_are_refused,
            }
            concurrency {
                many_claimers_get_each_entry_once,
                many_processes_get_each_entry_once,
                concurrent_finalizers_end_it_once,
                finalize_races_with_takeover,
                cancelled_futures_leave_nothing_half_done,
                crossing_batches_do_not_deadlock,
            }
            outage {
                leases_do_not_expire_while_the_store_was_down,
                leases_expire_while_the_heartbeat_is_young,
                an_outage_is_told_once,
                a_heartbeat_alone_keeps_leases_running_out,
            }
            wakeups {
                a_publish_wakes_its_own_process,
                a_publish_wakes_another_process,
                a_callers_commit_wakes_when_told,
                a_freed_group_wakes,
            }
            restart {
                everything_is_there_after_reopening,
                closing_twice_is_fine,
                a_closed_store_answers_with_an_error,
                another_process_sees_every_commit_at_once,
            }
            payloads {
                every_byte_value_comes_back,
                empty_and_large_payloads,
                json_is_not_reformatted,
            }
            schedules {
                a_new_schedule_waits_for_its_next_tick,
                an_unchanged_definition_keeps_its_next_tick,
                bad_definitions_are_refused_and_nothing_is_written,
                listed_found_and_deleted,
                a_tick_publishes_once_and_tells_its_moment,
                each_policy_after_a_jump_forward,
                a_clock_that_goes_back_repeats_nothing,
                processes_race_for_ticks,
                a_paused_schedule_stands_still,
                a_stale_tick_changes_nothing,
                what_cannot_be_published_is_not_lost,
                every_option_of_the_event_counts,
                every_field_of_the_event_is_in_its_ticks,
                an_unchanged_definition_of_every_field_writes_nothing,
                database_time_decides,
            }
            projections {
                the_log_is_read_in_order_with_its_facts,
                pages_follow_each_other,
                unwanted_rows_are_walked_over,
                each_generation_has_its_row,
                late_ends_and_late_commits_are_read,
                position_and_documents_move_together,
                one_reader_at_a_time,
                concurrent_readers_get_one_lease,
                a_failure_is_shown_and_cleared,
                a_failure_of_another_event_counts_anew,
                a_failure_of_no_event_is_shown_and_cleared,
                a_new_version_takes_over,
                documents_are_listed_by_prefix_and_page,
                lag_is_counted_up_to_a_bound,
                bad_names_are_refused,
            }
            tags {
                any_of_the_tags_matches,
                which_tags_have_something_to_claim,
                claims_by_tag_go_by_priority_then_order,
                claims_with_and_without_tags_share_entries,
                delayed_and_retried_entries_come_when_due,
                an_abandoned_entry_is_found_by_its_tag,
                a_released_entry_is_found_again,
                a_released_entry_goes_first_again_at_once,
                groups_keep_their_order,
                queues_types_and_pauses_hold,
                ended_and_redriven_entries,
                exhausted_entries_are_not_offered_again,
                replaced_contents_bring_their_own_tags,
                tags_in_a_callers_transaction,
                bad_tags_are_refused,
                many_claimers_by_tag_get_each_entry_once,
            }
            work {
                complete_ends_and_records,
                three_retries_are_four_attempts,
                repeats_answer_the_record,
                a_later_attempt_of_the_same_worker_is_a_new_record,
                who_holds_nothing_changes_nothing,
                an_expired_lease_that_nobody_took_still_reports,
                an_abandonment_uses_up_a_retry,
                retries_wait_as_event_or_queue_say,
                a_queue_can_require_leases,
                concurrent_repeats_record_once,
                each_of_a_batch_is_answered,
                a_heartbeat_extends_the_lease,
                a_heartbeat_that_names_no_lease_keeps_that_of_the_claim,
                the_queue_of_an_entry_is_known_live_and_ended,
                a_reset_of_a_held_entry_fences_its_holder,
                a_reset_of_a_failed_entry_starts_over,
                only_held_and_failed_entries_are_reset,
                a_repeated_request_answers_its_first_result,
                workers_are_seen_and_go_stale,
                a_start_is_a_sign_of_life,
                ids_of_both_kinds_are_told,
                keys_are_kept_and_revoked,
            }
            audit {
                the_whole_story_is_kept,
                a_takeover_says_who_abandoned,
                upkeep_says_who_abandoned_what_expired,
                a_release_is_not_an_abandonment,
                a_reset_keeps_its_reason,
                what_is_done_by_hand_says_who,
                claims_without_audit_leave_no_trace,
                untagged_claims_can_be_audited,
            }
            lists {
                every_filter_and_its_total,
                pages_by_offset_and_cursor,
                other_filters,
                items_show_what_the_source_shows,
                pages_are_full_among_others,
                pages_are_full_however_far_apart_their_entries_are,
                totals_of_a_client_follow_redrives_and_retention,
                an_offset_invents_no_total,
                what_has_just_arrived_is_listed,
                a_list_that_takes_too_long_is_stopped,
                lists_take_turns,
                audit_and_workers_in_pages,
                retention_forgets_what_nobody_needs,
                retention_removes_the_last_fact_of_an_entry,
                retention_waits_for_projections,
                retention_waits_for_a_version_that_is_being_built,
                a_removed_projection_holds_no_row_back,
            }
            model {
                random_histories_match_the_model,
                random_histories_of_groups_match_the_model,
            }
        }
    };
}

/// Calls the macro `$then` with the cases that hold for [`Family::Jobs`] too: those without tags, audit, lists and callers'
/// own transactions.
#[macro_export]
macro_rules! jobs_cases {
    ($then:ident) => {
        $then! {
            eligibility {
                publish_is_pending_with_no_attempts,
                nothing_to_claim_is_an_empty_answer,
                claim_leases_and_counts_an_attempt,
                a_leased_entry_is_not_offered,
                an_abandoned_entry_is_claimed_again,
                the_lease_runs_from_each_claim,
                finalize_moves_to_the_log,
                finalize_with_errors_is_completed_with_errors,
                finalize_by_id_without_a_claim,
                finalize_is_idempotent,
                claim_by_type_takes_only_these_types,
            }
            attempts {
                each_abandonment_counts,
                releases_never_use_up_attempts,
                failures_count_and_keep_their_error,
                an_end_that_says_no_errors_keeps_the_last_one,
                neighbours_that_say_no_errors_keep_their_last_ones,
                an_event_that_kills_its_worker_ends_in_the_log,
                exhausted_entries_end_as_they_were_told,
                a_retry_that_used_the_last_attempt_ends_at_the_next_claim,
                exhausted_entries_do_not_hide_the_ones_behind,
            }
            fencing {
                an_old_token_changes_nothing,
                two_tokens_in_one_batch_are_each_judged,
                a_zombie_in_the_same_process_is_fenced,
                an_expired_lease_that_nobody_took_still_finishes,
                a_released_lease_cannot_finish,
                tokens_rise_and_survive_a_redrive,
                a_repeat_under_the_ending_token_is_repeated,
                a_late_finalize_after_the_end_is_fenced,
                extend_moves_the_lease,
                extend_and_requeue_of_the_unknown,
                tokens_of_the_future_are_fenced,
                zombies_that_end_a_whole_run_are_each_fenced,
                a_zombie_inside_a_run_is_fenced_alone,
            }
            order {
                oldest_first,
                priority_before_order,
                order_within_one_batch,
                a_release_keeps_its_place,
                priorities_across_types,
                more_types_than_lanes,
                late_starts_do_not_hide_earlier_entries,
                retried_entries_and_fresh_ones_share_one_order,
            }
            delays {
                a_delayed_entry_waits_for_its_moment,
                a_moment_in_the_past_is_due_at_once,
                many_delayed_in_front_hide_nothing,
                snooze_waits_without_counting,
                retry_at_waits_and_counts,
                due_entries_go_by_their_due_moment_within_a_lane,
            }
            groups {
                one_of_a_group_in_flight_in_order,
                groups_do_not_hold_each_other_up,
                one_claim_takes_one_of_each_group,
                a_released_head_stays_first,
                a_retrying_head_holds_its_group,
                a_delayed_head_holds_its_group,
                a_cancelled_head_frees_the_next,
                an_exhausted_head_frees_the_next,
                a_cancelled_follower_is_skipped,
                a_redriven_member_goes_in_by_its_number,
                the_same_group_in_two_queues_is_two_groups,
                an_abandoned_head_is_taken_over_before_its_followers,
                concurrent_publishers_and_workers_keep_groups_in_order,
                a_group_never_stalls_when_ends_race_with_publishes,
            }
            turns {
                a_smaller_rank_goes_first,
                a_head_that_was_not_started_is_overtaken,
                a_failure_steps_aside_and_comes_back,
                what_is_aside_alone_is_found_when_due,
                a_head_is_not_overtaken_while_one_aside_is_due,
                aside_without_a_group_is_a_retry,
                what_is_aside_can_be_ended_and_replaced,
                an_exhausted_entry_keeps_its_place,
                a_dead_worker_leaves_its_last_attempt_kept,
                a_kept_entry_ends_when_it_expires,
                a_new_generation_keeps_rank_and_place,
                a_key_of_a_kept_entry_makes_a_new_one,
                a_kept_entry_keeps_what_its_handlers_answered,
                a_replaced_entry_takes_the_new_expiry,
                a_claim_ends_a_bounded_number_of_entries,
                a_claim_cancels_what_expired,
                upkeep_cancels_what_expired_wherever_it_waits,
                quotas_bound_each_lane,
                quotas_take_the_first_by_number,
                quotas_hold_though_entries_end_in_the_claim,
                turns_hold_however_many_race,
            }
            deduplication {
                a_repeat_answers_the_first,
                a_repeat_is_answered_by_a_queue_that_takes_nothing_new,
                a_repeat_after_the_end_still_answers_the_first,
                another_body_under_the_key_is_a_conflict,
                keys_are_scoped_by_queue,
                keys_are_scoped_by_client,
                keys_expire,
                a_repeat_inside_one_batch,
                replace_changes_what_waits,
                replace_of_a_taken_entry_is_a_new_one,
                concurrent_repeats_make_one_entry,
            }
            replacing {
                concurrent_replacements_leave_one_entry_with_its_fact,
                concurrent_takeovers_of_a_key_make_one_entry,
                a_replacement_mends_an_entry_without_its_fact,
            }
            dead_letters {
                listed_by_queue_type_and_page,
                only_the_middle_two_ends_are_dead_letters,
                redrive_starts_a_generation,
                a_new_generation_has_no_error_yet,
                redrive_of_anything_else_is_a_conflict,
                each_generation_ends_once,
                discard_takes_off_the_list,
                cancel_ends_whoever_holds,
                cancel_tells_ended_from_unknown,
                errors_and_results_are_kept,
            }
            bounds {
                a_claim_takes_no_more_bytes_than_it_may,
                an_event_larger_than_a_claim_goes_alone,
            }
            clients {
                queues_of_one_name_are_apart,
                two_changes_at_once_both_count,
            }
            queues {
                the_default_queue_exists,
                put_creates_and_changes,
                events_take_the_retries_of_their_queue,
                queues_are_apart,
                a_paused_queue_accepts_but_does_not_deliver,
                a_draining_queue_refuses_but_delivers,
                a_full_queue_refuses,
                a_repeated_key_is_answered_by_a_full_queue,
                changes_reach_other_processes,
                an_unknown_queue_is_not_found,
                the_first_claimable_entry_tells_a_queues_age,
            }
            catalogue {
                a_version_that_was_set_back_stops_nobody,
                an_equal_version_of_another_history_is_noticed,
                reading_and_unchanged_changes_leave_the_version,
                changes_by_plain_sql_are_seen,
                a_process_that_slept_through_many_changes_catches_up,
            }
            lanes {
                one_too_many_is_refused_and_names_the_limit,
                idle_lanes_go_and_come_back,
                lanes_in_use_stay,
                a_dead_letter_of_a_removed_lane_is_redriven,
                an_entry_in_a_removed_lane_is_found,
                leases_in_front_are_passed_and_found_again,
            }
            why {
                ready_and_how_many_are_ahead,
                no_live_consumer_for_its_type,
                due_at,
                leased_and_abandoned,
                behind_in_group,
                queue_paused,
                ended,
                unknown_is_not_found,
            }
            counting {
                depth_counts_each_kind,
                census_balances_over_every_end,
                census_balances_while_others_write,
                depth_of_a_paused_queue_counts_ready,
            }
            bad_input {
                each_bad_event_is_refused_alone,
                payloads_above_the_limit,
                texts_that_no_database_can_hold,
                unknown_entries,
                empty_batches,
                extreme_leases_and_moments,
            }
            batches {
                one_bad_item_in_a_thousand,
                the_same_entry_twice_in_one_batch,
                mixed_answers_in_one_finalize,
                a_thousand_of_everything,
                mixed_queues_in_one_batch,
            }
            concurrency {
                many_claimers_get_each_entry_once,
                many_processes_get_each_entry_once,
                concurrent_finalizers_end_it_once,
                finalize_races_with_takeover,
                cancelled_futures_leave_nothing_half_done,
                crossing_batches_do_not_deadlock,
            }
            outage {
                leases_do_not_expire_while_the_store_was_down,
                leases_expire_while_the_heartbeat_is_young,
                an_outage_is_told_once,
                a_heartbeat_alone_keeps_leases_running_out,
            }
            wakeups {
                a_publish_wakes_its_own_process,
                a_publish_wakes_another_process,
                a_freed_group_wakes,
            }
            restart {
                everything_is_there_after_reopening,
                closing_twice_is_fine,
                a_closed_store_answers_with_an_error,
                another_process_sees_every_commit_at_once,
            }
            payloads {
                every_byte_value_comes_back,
                empty_and_large_payloads,
                json_is_not_reformatted,
            }
            model {
                random_histories_match_the_model,
                random_histories_of_groups_match_the_model,
            }
        }
    };
}

conformance_cases!(registry);
