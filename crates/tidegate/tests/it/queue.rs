//! Publishing, claiming, ending, requeueing and waking on both databases.

use std::time::Duration;

use serde::Deserialize;
use tidegate::{
    Clock, End, EntryPhase, ErrorKind, EventQueue, Failure, ManualClock, NewEvent, PublishOutcome, RetryPolicy,
    Timestamp, Why,
};

use crate::databases::on_each_database;
use crate::support::{eventually, soon, yields};

const HOUR: Duration = Duration::from_secs(3600);

fn event(number: usize) -> NewEvent {
    NewEvent::new("order.created", format!("{{\"number\": {number}}}"))
}

#[derive(Deserialize)]
struct Order {
    number: usize,
}

async fn ended(queue: &EventQueue, id: tidegate::EntryId) -> End {
    match queue.entry(id).await.unwrap().unwrap().phase {
        EntryPhase::Ended { end, .. } => end,
        other => panic!("{id} has not ended: {other:?}"),
    }
}

on_each_database! {
    async fn publish_claim_complete(place) {
        let queue = place.open().await;
        let published = queue.publish(event(1)).await.unwrap();
        assert_eq!(published.outcome, PublishOutcome::Created);
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!((held.id, held.event_id, held.attempts), (published.id, published.event_id, 1));
        assert_eq!(held.event_type(), "order.created");
        assert_eq!(held.json::<Order>().unwrap().number, 1);
        assert_eq!(held.json::<Vec<u8>>().unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(held.payload().as_ref(), b"{\"number\": 1}");
        assert!(queue.poll().await.unwrap().is_none());
        assert!(!held.complete().await.unwrap().repeated);
        assert_eq!(ended(&queue, published.id).await, End::Completed);
        queue.close().await;
    }

    async fn many_at_once_are_answered_in_order(place) {
        let queue = place.open().await;
        let mut events: Vec<NewEvent> = (0..2_500).map(event).collect();
        events[1_234] = NewEvent::new("", "bad");
        let answers = queue.publish_many(events).await;
        assert_eq!(answers[1_234].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
        let ids: Vec<_> = answers.iter().flatten().map(|published| published.id).collect();
        assert_eq!(ids.len(), 2_499);
        assert!(ids.is_sorted(), "ids rise in the order of the call");
        let held = queue.poll_many(2_400).await.unwrap();
        assert_eq!(held.len(), 2_400);
        assert!(held.iter().map(|event| event.id).eq(ids[..2_400].iter().copied()));
        let ends = queue.finalize_many(held).await;
        assert!(ends.iter().all(|end| end.as_ref().is_ok_and(|end| !end.repeated)));
        let rest = queue.poll_many(1_000).await.unwrap();
        assert_eq!(rest.len(), 99);
        drop(rest);
        eventually("dropped ones are ready again", || async { queue.depth().await.unwrap().ready == 99 }).await;
        queue.close().await;
    }

    async fn who_goes_away_while_waiting_leaves_no_lease(place) {
        let queue = place.open().await;
        for round in 0..300 {
            let waiting = tokio::spawn({
                let queue = queue.clone();
                async move { queue.wait_many(1, HOUR).await }
            });
            yields(20).await;
            let publishing = tokio::spawn({
                let queue = queue.clone();
                async move { queue.publish(event(round)).await }
            });
            // Abort before, while or after the event is claimed for it.
            yields(round % 60 * 5).await;
            waiting.abort();
            publishing.await.unwrap().unwrap();
            drop(waiting.await);
            eventually("the event is released", || async { queue.depth().await.unwrap().ready == 1 }).await;
            // A claim that was under way may get it once more without a caller.
            let held = soon("it can be claimed", queue.next(HOUR)).await.unwrap().unwrap();
            assert_eq!(held.attempts, 1, "no attempt counted");
            held.complete().await.unwrap();
        }
        queue.close().await;
    }

    async fn a_drop_releases_and_does_not_count(place) {
        let queue = place.open().await;
        queue.publish(event(1).max_attempts(1)).await.unwrap();
        for round in 1..=5 {
            let held = soon("claim", queue.next(HOUR)).await.unwrap().unwrap();
            assert_eq!((held.attempts, held.token.0), (1, round));
        }
        soon("claim", queue.next(HOUR)).await.unwrap().unwrap().complete().await.unwrap();
        queue.close().await;
    }

    async fn failures_follow_the_policy_and_end_as_dead_letters(place) {
        let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
        let policy = RetryPolicy::list([10, 60].map(Duration::from_secs));
        let queue = place.open_with(|builder| builder.clock(Clock::Manual(clock.clone())).retry(policy)).await;
        let id = queue.publish(event(1).max_attempts(3)).await.unwrap().id;
        for (attempt, seconds) in [(1, 10), (2, 60)] {
            let held = queue.poll().await.unwrap().unwrap();
            assert_eq!(held.attempts, attempt);
            assert!(!held.is_last_attempt());
            let after = Duration::from_secs(seconds);
            assert_eq!(held.fail(format!("broken {attempt}")).await.unwrap(), Failure::Retry { after });
            clock.advance(after - Duration::from_millis(1));
            assert!(queue.poll().await.unwrap().is_none(), "not due yet");
            assert!(matches!(queue.why(id).await.unwrap(), Why::DueAt { .. }));
            clock.advance(Duration::from_millis(1));
        }
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!(held.last_error.as_deref(), Some("broken 2"));
        assert!(held.is_last_attempt());
        assert_eq!(held.fail("broken \"3\"").await.unwrap(), Failure::Ended(End::CompletedWithErrors));
        let dead = queue.dead_letters(None, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].error.as_deref(), Some(r#"["broken \"3\""]"#));
        assert_eq!(queue.redrive(id).await.unwrap(), 2);
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!((held.generation, held.attempts), (2, 1));
        held.complete().await.unwrap();
        assert_eq!(queue.redrive(id).await.unwrap_err().kind(), ErrorKind::Conflict);
        queue.close().await;
    }

    async fn the_publisher_chooses_how_exhausted_entries_end(place) {
        let queue = place.open().await;
        let mut once = event(1).max_attempts(1);
        once.exhausted_as = End::Failed;
        let id = queue.publish(once).await.unwrap().id;
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!(held.fail("broken").await.unwrap(), Failure::Ended(End::Failed));
        assert!(matches!(queue.why(id).await.unwrap(), Why::Ended { end: End::Failed, .. }));
        queue.close().await;
    }

    async fn finalising_by_id_is_idempotent(place) {
        let queue = place.open().await;
        let good = queue.publish(event(1)).await.unwrap().id;
        let bad = queue.publish(event(2)).await.unwrap().id;
        let none: [&str; 0] = [];
        assert!(!queue.finalize(good, none).await.unwrap().repeated);
        let again = queue.finalize(good, ["too late"]).await.unwrap();
        assert_eq!((again.repeated, again.end), (true, End::Completed));
        assert_eq!(queue.finalize(bad, ["a", "b"]).await.unwrap().end, End::CompletedWithErrors);
        assert_eq!(queue.entry(bad).await.unwrap().unwrap().error.as_deref(), Some(r#"["a","b"]"#));
        let unknown = tidegate::EntryId::new(999_999).unwrap();
        assert_eq!(queue.finalize(unknown, none).await.unwrap_err().kind(), ErrorKind::NotFound);
        queue.close().await;
    }

    async fn a_zombie_in_the_same_process_is_fenced(place) {
        let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
        let queue = place.open_with(|builder| builder.clock(Clock::Manual(clock.clone()))).await;
        queue.publish(event(1)).await.unwrap();
        let mut zombie = queue.poll().await.unwrap().unwrap();
        clock.advance(Duration::from_secs(61));
        let heir = queue.poll().await.unwrap().unwrap();
        assert_eq!((heir.id, heir.attempts), (zombie.id, 2));
        assert_eq!(zombie.extend(HOUR).await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(queue.release(zombie.id, zombie.token).await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(zombie.complete().await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(queue.depth().await.unwrap().leased, 1, "the heir still holds it");
        heir.complete().await.unwrap();
        queue.close().await;
    }

    async fn a_late_holder_whose_entry_nobody_took_may_finish(place) {
        let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
        let queue = place.open_with(|builder| builder.clock(Clock::Manual(clock.clone()))).await;
        queue.publish_many(vec![event(1), event(2)]).await;
        let late = queue.poll().await.unwrap().unwrap();
        let mut long = queue.poll().await.unwrap().unwrap();
        assert_eq!(long.extend(HOUR).await.unwrap(), clock.now() + HOUR);
        clock.advance(Duration::from_secs(61));
        assert!(!late.complete().await.unwrap().repeated);
        assert!(queue.poll().await.unwrap().is_none(), "the extended lease holds");
        let claimed = long.into_parts();
        queue.snooze(claimed.id, claimed.token, HOUR).await.unwrap();
        assert_eq!(queue.depth().await.unwrap().delayed, 1);
        queue.close().await;
    }

    async fn snooze_release_and_retry_go_back_as_they_should(place) {
        let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
        let queue = place.open_with(|builder| builder.clock(Clock::Manual(clock.clone()))).await;
        queue.publish(event(1)).await.unwrap();
        queue.poll().await.unwrap().unwrap().release().await.unwrap();
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!(held.attempts, 1);
        held.snooze(HOUR).await.unwrap();
        assert!(queue.poll().await.unwrap().is_none());
        clock.advance(HOUR);
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!(held.attempts, 1);
        held.retry_at(clock.now() + HOUR, "wait").await.unwrap();
        clock.advance(HOUR);
        let held = queue.poll().await.unwrap().unwrap();
        assert_eq!(held.attempts, 2);
        let id = held.id;
        queue.cancel(id).await.unwrap();
        let late = held.complete().await.unwrap();
        assert_eq!((late.repeated, late.end), (true, End::Cancelled), "it stays as it ended");
        assert_eq!(queue.cancel(id).await.unwrap_err().kind(), ErrorKind::AlreadyEnded);
        assert_eq!(ended(&queue, id).await, End::Cancelled);
        queue.close().await;
    }

    async fn types_and_names_keep_apart(place) {
        let queue = place.open().await;
        queue.publish_many(vec![NewEvent::new("a", "1"), NewEvent::new("b", "2"), NewEvent::new("c", "3")]).await;
        let some = queue.consumer().types(["c", "b"]).unwrap().worker("w2").unwrap();
        let held = some.poll_many(10).await.unwrap();
        assert_eq!(held.iter().map(|event| event.event_type()).collect::<Vec<_>>(), ["b", "c"]);
        assert!(matches!(queue.why(held[0].id).await.unwrap(), Why::Leased { worker, .. } if worker == "w2"));
        assert_eq!(queue.consumer().types(Vec::<String>::new()).unwrap_err().kind(), ErrorKind::Invalid);
        let billing = queue.named("billing").await.unwrap();
        billing.publish(event(1)).await.unwrap();
        assert_eq!(billing.depth().await.unwrap().ready, 1);
        assert_eq!(queue.depth().await.unwrap().ready, 1);
        billing.poll().await.unwrap().unwrap().complete().await.unwrap();
        assert_eq!(queue.queues().await.unwrap().len(), 2);
        queue.close().await;
    }

    async fn a_group_goes_one_by_one_and_wakes_the_next(place) {
        let queue = place.open().await;
        let answers = queue.publish_many((0..5).map(|number| event(number).group("g")).collect()).await;
        for answer in answers {
            let id = answer.unwrap().id;
            let held = soon("the next of the group", queue.next(HOUR)).await.unwrap().unwrap();
            assert_eq!(held.id, id);
            assert!(queue.poll().await.unwrap().is_none(), "one of a group at a time");
            held.complete().await.unwrap();
        }
        queue.close().await;
    }

    async fn publishes_of_one_group_keep_their_order_under_load(place) {
        let queue = place.open().await;
        let tasks: Vec<_> = (0..4).map(|group| tokio::spawn({
            let queue = queue.clone();
            async move {
                for number in 0..25 {
                    queue.publish(event(number).group(format!("g{group}"))).await.unwrap();
                }
            }
        })).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut next = std::collections::HashMap::<String, usize>::new();
        for _ in 0..100 {
            let held = soon("claim", queue.next(HOUR)).await.unwrap().unwrap();
            let expected = next.entry(held.group.clone().unwrap()).or_default();
            assert_eq!(held.json::<Order>().unwrap().number, *expected);
            *expected += 1;
            held.complete().await.unwrap();
        }
        queue.close().await;
    }

    async fn keys_suppress_repeats(place) {
        let queue = place.open().await;
        let first = queue.publish(event(1).deduplicate("k")).await.unwrap();
        let repeats: Vec<_> = (0..20).map(|_| tokio::spawn({
            let queue = queue.clone();
            async move { queue.publish(event(1).deduplicate("k")).await }
        })).collect();
        for repeat in repeats {
            let repeat = repeat.await.unwrap().unwrap();
            assert_eq!((repeat.id, repeat.outcome), (first.id, PublishOutcome::Duplicate));
        }
        assert_eq!(queue.publish(event(2).deduplicate("k")).await.unwrap_err().kind(), ErrorKind::Conflict);
        queue.close().await;
    }

    async fn a_waiter_is_woken_without_polling(place) {
        let queue = place.open().await;
        for round in 0..20 {
            let waiter = tokio::spawn({ let queue = queue.clone(); async move { queue.next(HOUR).await } });
            yields(round).await;
            queue.publish(event(round)).await.unwrap();
            soon("woken", waiter).await.unwrap().unwrap().unwrap().complete().await.unwrap();
        }
        queue.close().await;
    }

    async fn a_waiter_on_another_instance_is_woken_without_polling(place) {
        let (one, other) = (place.open().await, place.open().await);
        for round in 0..5 {
            let waiter = tokio::spawn({ let other = other.clone(); async move { other.next(HOUR).await } });
            yields(round).await;
            one.publish(event(round)).await.unwrap();
            soon("woken", waiter).await.unwrap().unwrap().unwrap().complete().await.unwrap();
        }
        one.close().await;
        other.close().await;
    }

    async fn a_delayed_event_wakes_when_it_is_due(place) {
        let queue = place.open().await;
        queue.publish(event(1).delay(Duration::from_millis(60))).await.unwrap();
        let held = soon("due", queue.next(HOUR)).await.unwrap().unwrap();
        held.complete().await.unwrap();
        queue.close().await;
    }

    async fn ten_thousand_cancelled_futures_lose_nothing(place) {
        let queue = place.open().await;
        let mut acknowledged = 0;
        for number in 0..5_000 {
            tokio::select! {
                biased;
                answer = queue.publish(event(number)) => { answer.unwrap(); acknowledged += 1; }
                () = yields(number % 40) => {}
            }
            tokio::select! {
                biased;
                held = queue.poll() => drop(held.unwrap()),
                () = yields(number % 23) => {}
            }
        }
        eventually("nothing stays leased", || async { queue.depth().await.unwrap().leased == 0 }).await;
        let mut worked = 0;
        loop {
            let held = soon("work goes on", queue.poll_many(500)).await.unwrap();
            if held.is_empty() {
                break;
            }
            assert!(held.iter().all(|event| event.attempts == 1), "a hang-up does not count");
            worked += queue.finalize_many(held).await.into_iter().filter(Result::is_ok).count();
        }
        assert!(worked >= acknowledged, "{worked} completed of {acknowledged} acknowledged");
        queue.publish(event(1)).await.unwrap();
        queue.close().await;
    }
}
