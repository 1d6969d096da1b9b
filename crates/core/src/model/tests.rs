use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(60);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn event(kind: &str) -> NewEvent {
    NewEvent::new(kind, "{}")
}

fn numbers(ids: &[EntryId]) -> Vec<i64> {
    ids.iter().map(|id| id.get()).collect()
}

#[test]
fn priority_then_order() {
    let mut model = Model::new();
    for priority in [0, 5, -3, 0] {
        model.publish(&event("a").priority(priority), at(0));
    }
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(0))), [3, 1, 4, 2]);
}

#[test]
fn a_group_is_worked_off_one_by_one() {
    let mut model = Model::new();
    for _ in 0..3 {
        model.publish(&event("a").group("g"), at(0));
    }
    for expected in 1..=3 {
        let ids = model.claim(9, None, "w", LEASE, at(expected));
        assert_eq!(numbers(&ids), [expected]);
        model.apply(ids[0], &Input::Finalize { token: None, end: End::Completed }, at(expected)).unwrap();
    }
}

#[test]
fn keys_keep_the_first_or_replace_it_while_it_waits() {
    let mut model = Model::new();
    let first = event("a").deduplicate("k");
    assert!(matches!(model.publish(&first, at(0)), PublishOutcome::Created(_)));
    assert!(matches!(model.publish(&first, at(1)), PublishOutcome::Duplicate(_)));
    assert_eq!(model.publish(&NewEvent::new("a", "[1]").deduplicate("k"), at(1)), PublishOutcome::KeyConflict);
    let other = NewEvent::new("a", "[2]").replace_waiting("k");
    assert!(matches!(model.publish(&other, at(2)), PublishOutcome::Replaced(_)));
    model.claim(1, None, "w", LEASE, at(3));
    assert!(matches!(model.publish(&other, at(4)), PublishOutcome::Created(_)));
    assert!(matches!(model.publish(&first, at(200_000)), PublishOutcome::Created(_)));
}

fn created(outcome: PublishOutcome) -> EntryId {
    let PublishOutcome::Created(id) = outcome else { panic!("{outcome:?}") };
    id
}

#[test]
fn a_key_stands_for_one_type_and_payload_until_it_expires() {
    let mut model = Model::new();
    let first = event("a").deduplicate("k");
    let id = created(model.publish(&first, at(0)));
    assert_eq!(model.publish(&event("b").deduplicate("k"), at(1)), PublishOutcome::KeyConflict);
    assert_eq!(model.publish(&first, at(86_399)), PublishOutcome::Duplicate(id));
    assert_ne!(created(model.publish(&first, at(86_400))), id);
}

#[test]
fn replaced_contents_are_what_the_key_stands_for() {
    let mut model = Model::new();
    let id = created(model.publish(&NewEvent::new("a", "[1]").replace_waiting("k"), at(0)));
    let second = NewEvent::new("a", "[2]");
    assert_eq!(model.publish(&second.clone().replace_waiting("k"), at(1)), PublishOutcome::Replaced(id));
    assert_eq!(model.payload(id), Some(b"[2]".as_slice()));
    assert_eq!(model.publish(&second.deduplicate("k"), at(2)), PublishOutcome::Duplicate(id));
    assert_eq!(model.payload(EntryId::new(9).unwrap()), None);
}

#[test]
fn a_draining_queue_answers_repeats_and_takes_nothing_new() {
    let mut model = Model::new();
    let first = event("a").deduplicate("k");
    let id = created(model.publish(&first, at(0)));
    model.state = QueueState::Draining;
    assert_eq!(model.publish(&first, at(1)), PublishOutcome::Duplicate(id));
    for new in [event("a"), event("a").deduplicate("other"), NewEvent::new("a", "[1]").replace_waiting("k")] {
        assert_eq!(model.publish(&new, at(1)), PublishOutcome::Draining, "{new:?}");
    }
    assert_eq!(model.claim(9, None, "w", LEASE, at(2)), [id]);
}

#[test]
fn a_paused_queue_accepts_and_does_not_deliver() {
    let mut model = Model { state: QueueState::Paused, ..Model::new() };
    let id = created(model.publish(&event("a"), at(0)));
    assert_eq!(model.claim(9, None, "w", LEASE, at(1)), []);
    model.state = QueueState::Active;
    assert_eq!(model.claim(9, None, "w", LEASE, at(1)), [id]);
}

#[test]
fn a_full_queue_still_answers_repeats() {
    let mut model = Model { depth_limit: Some(2), ..Model::new() };
    let first = event("a").deduplicate("k");
    let id = created(model.publish(&first, at(0)));
    created(model.publish(&event("a"), at(0)));
    assert_eq!(model.publish(&event("a"), at(0)), PublishOutcome::Full);
    assert_eq!(model.publish(&first, at(0)), PublishOutcome::Duplicate(id));
    model.apply(id, &Input::Cancel, at(0)).unwrap();
    created(model.publish(&event("a"), at(0)));
}

#[test]
fn a_claim_takes_the_types_it_names() {
    let mut model = Model::new();
    for kind in ["a", "b", "c", "a"] {
        model.publish(&event(kind), at(0));
    }
    let types = ["a".to_owned(), "c".to_owned()];
    assert_eq!(numbers(&model.claim(2, Some(&types), "w", LEASE, at(0))), [1, 3]);
    assert_eq!(numbers(&model.claim(9, Some(&types), "w", LEASE, at(0))), [4]);
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(0))), [2]);
}

#[test]
fn entries_that_end_in_a_claim_make_room_for_no_more_than_was_asked() {
    let mut model = Model::new();
    model.publish(&event("a").max_attempts(1), at(0));
    assert_eq!(numbers(&model.claim(1, None, "w", LEASE, at(0))), [1]);
    for _ in 0..4 {
        model.publish(&event("a"), at(60));
    }
    assert_eq!(numbers(&model.claim(2, None, "w", LEASE, at(60))), [2, 3]);
    assert_eq!((model.ended(End::CompletedWithErrors), model.ended(End::Completed)), (1, 0));
}

#[test]
fn a_retry_sorts_by_its_moment_and_a_release_goes_back_to_where_it_was() {
    let mut model = Model::new();
    model.publish(&event("a"), at(0));
    model.publish(&event("a").delay(Duration::from_secs(10)), at(0));
    let requeue = |model: &mut Model, id: i64, due, second| {
        let id = EntryId::new(id).unwrap();
        let token = model.entry(id).unwrap().token;
        model.apply(id, &Input::Requeue { token, due, counts: true, aside: false }, at(second)).unwrap();
        model.entry(id).unwrap().phase.clone()
    };
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(10))), [1, 2]);
    assert_eq!(requeue(&mut model, 1, Some(at(20)), 11), Phase::Waiting { due: Some(at(20)) });
    assert_eq!(requeue(&mut model, 2, None, 11), Phase::Waiting { due: Some(at(10)) });
    assert_eq!(numbers(&model.claim(1, None, "w", LEASE, at(20))), [2], "it was due before the other");
    assert_eq!(numbers(&model.claim(1, None, "w", LEASE, at(20))), [1]);
    assert_eq!(requeue(&mut model, 1, None, 21), Phase::Waiting { due: Some(at(20)) });
}

#[test]
fn a_redriven_entry_waits_for_its_group() {
    let mut model = Model::new();
    let (alone, member) = (event("a"), event("a").group("g"));
    for new in [&alone, &member, &member] {
        model.publish(new, at(0));
    }
    for id in model.claim(9, None, "w", LEASE, at(1)) {
        model.apply(id, &Input::Finalize { token: None, end: End::Failed }, at(1)).unwrap();
    }
    for id in [1, 2] {
        model.apply(EntryId::new(id).unwrap(), &Input::Redrive, at(5)).unwrap();
    }
    assert_eq!(phase(&model, 1), Phase::Waiting { due: Some(at(5)) });
    assert_eq!(phase(&model, 2), Phase::Parked, "the third of all is the head of the group now");
    model.apply(EntryId::new(3).unwrap(), &Input::Cancel, at(6)).unwrap();
    assert_eq!(phase(&model, 2), Phase::Waiting { due: Some(at(6)) });
    let unknown = model.apply(EntryId::new(9).unwrap(), &Input::Cancel, at(6));
    assert_eq!(unknown, Err(Refusal::AlreadyEnded));
}

#[test]
fn depth_tells_ready_delayed_parked_and_leased_apart() {
    let mut model = Model::new();
    model.publish(&event("a"), at(0));
    model.claim(1, None, "w", LEASE, at(0));
    for _ in 0..2 {
        model.publish(&event("a").available_at(at(10)), at(0));
    }
    for _ in 0..4 {
        model.publish(&event("a").group("g"), at(0));
    }
    for _ in 0..4 {
        model.publish(&event("a"), at(0));
    }
    assert_eq!(model.depth(at(9)), Depth { ready: 5, delayed: 2, parked: 3, leased: 1 });
    assert_eq!(model.depth(at(10)), Depth { ready: 7, delayed: 0, parked: 3, leased: 1 });
    assert_eq!(model.ids().count(), 11);
}

fn phase(model: &Model, id: i64) -> Phase {
    model.entry(EntryId::new(id).unwrap()).unwrap().phase.clone()
}

#[test]
fn a_smaller_rank_goes_before_heads_that_were_not_started() {
    let mut model = Model::new();
    for rank in [5, 5, 1] {
        model.publish(&event("a").group("g").rank(rank), at(0));
    }
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(1))), [3]);
    model.publish(&event("a").group("g").rank(0), at(1));
    assert_eq!(phase(&model, 4), Phase::Parked, "the head was started");
    for expected in [4, 1, 2] {
        let head = if expected == 4 {
            3
        } else if expected == 1 {
            4
        } else {
            1
        };
        model.apply(EntryId::new(head).unwrap(), &Input::Finalize { token: None, end: End::Completed }, at(2)).unwrap();
        assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(2))), [expected]);
    }
}

#[test]
fn what_stepped_aside_takes_the_next_turn_once_it_is_due() {
    let mut model = Model::new();
    for _ in 0..3 {
        model.publish(&event("a").group("g"), at(0));
    }
    let ids = model.claim(9, None, "w", LEASE, at(0));
    let aside = Input::Requeue { token: LeaseToken(1), due: Some(at(20)), counts: true, aside: true };
    model.apply(ids[0], &aside, at(1)).unwrap();
    assert_eq!(phase(&model, 1), Phase::Aside { due: at(20) });
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(19))), [2]);
    model.maintain(at(20));
    assert_eq!(phase(&model, 1), Phase::Aside { due: at(20) }, "the group has a head");
    model.apply(EntryId::new(2).unwrap(), &Input::Finalize { token: None, end: End::Completed }, at(21)).unwrap();
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(21))), [1], "it goes before the parked one");
    // Alone in its group it is promoted by the claim that finds it due.
    model.apply(EntryId::new(3).unwrap(), &Input::Cancel, at(21)).unwrap();
    let aside = Input::Requeue { token: LeaseToken(2), due: Some(at(40)), counts: true, aside: true };
    model.apply(ids[0], &aside, at(22)).unwrap();
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(39))), [] as [i64; 0]);
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(40))), [1]);
    assert_eq!(model.depth(at(40)), Depth { leased: 1, ..Depth::default() });
}

#[test]
fn a_kept_entry_holds_its_group_until_it_is_redriven_or_expires() {
    let mut model = Model::new();
    let kept = event("a").group("g").max_attempts(1).keep_place().expires_after(Duration::from_secs(500));
    model.publish(&kept, at(0));
    model.publish(&event("a").group("g"), at(0));
    model.claim(9, None, "w", LEASE, at(0));
    let first = EntryId::new(1).unwrap();
    let failed = Input::Finalize { token: Some(LeaseToken(1)), end: End::Failed };
    model.apply(first, &failed, at(1)).unwrap();
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(400))), [] as [i64; 0]);
    model.apply(first, &Input::Redrive, at(400)).unwrap();
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(400))), [1], "it did not lose its place");
    let failed = Input::Finalize { token: Some(LeaseToken(2)), end: End::Failed };
    model.apply(first, &failed, at(401)).unwrap();
    model.maintain(at(499));
    assert_eq!(phase(&model, 1), Phase::Kept(End::Failed));
    model.maintain(at(500));
    assert_eq!(phase(&model, 1), Phase::Ended(End::Failed));
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(500))), [2]);
}

#[test]
fn quotas_bound_each_lane() {
    let mut model = Model::new();
    for kind in ["a", "a", "a", "b", "b"] {
        model.publish(&event(kind), at(0));
    }
    model.publish(&event("a").priority(-1), at(0));
    let quotas = BTreeMap::from([("a".to_owned(), 1)]);
    let claimed = model.claim_within(9, None, &quotas, "w", LEASE, at(0));
    assert_eq!(numbers(&claimed), [6, 1, 4, 5], "one of each lane of type a");
    assert_eq!(numbers(&model.claim_within(9, None, &quotas, "w", LEASE, at(0))), [2]);
}

#[test]
fn what_expired_is_cancelled_by_a_claim_or_by_upkeep_and_frees_its_group() {
    let mut model = Model::new();
    for _ in 0..2 {
        model.publish(&event("a").group("g").expires_after(Duration::from_secs(10)), at(0));
    }
    model.publish(&event("a").group("g"), at(0));
    assert_eq!(numbers(&model.claim(9, None, "w", LEASE, at(10))), [3]);
    assert_eq!(model.ended(End::Cancelled), 2);
    model.publish(&event("a").expires_at(at(20)), at(10));
    model.maintain(at(20));
    assert_eq!(phase(&model, 4), Phase::Ended(End::Cancelled));
}

#[derive(Debug, Clone)]
enum Step {
    Publish { kind: u8, priority: i16, group: Option<u8>, delay: u64, rank: i32, expires: u64, keeps_place: bool },
    Claim { max: usize, kind: Option<u8> },
    Apply { pick: usize, how: u8 },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..3, -1_i16..2, proptest::option::of(0_u8..3), 0_u64..3, -1_i32..2, 0_u64..4, any::<bool>()).prop_map(
            |(kind, priority, group, delay, rank, expires, keeps_place)| Step::Publish {
                kind,
                priority,
                group,
                delay: delay * 20,
                rank,
                expires: expires * 100,
                keeps_place,
            },
        ),
        (1_usize..5, proptest::option::of(0_u8..3)).prop_map(|(max, kind)| Step::Claim { max, kind }),
        (0_usize..50, 0_u8..8).prop_map(|(pick, how)| Step::Apply { pick, how }),
    ]
}

proptest! {
    /// Over any history: created = live + ended; at most one entry of a group is waiting or leased; and once
    /// everything is due and claimed, everything ends.
    #[test]
    fn every_history_keeps_the_invariants(steps in proptest::collection::vec((any_step(), 0_i64..40), 1..120)) {
        let mut model = Model::new();
        let mut now = 0;
        let mut created = 0;
        for (step, pause) in steps {
            now += pause;
            created += usize::from(matches!(step, Step::Publish { .. }));
            play(&mut model, step, at(now));
            check_groups(&model)?;
            let ended: usize = End::ALL.into_iter().map(|end| model.ended(end)).sum();
            prop_assert_eq!(created, model.depth(at(now)).total() as usize + ended);
        }
        for round in 0..500 {
            let late = at(now + 1000 + round * 100);
            for id in model.ids().collect::<Vec<_>>() {
                if matches!(model.entry(id).unwrap().phase, Phase::Kept(_)) {
                    model.apply(id, &Input::Cancel, late).unwrap();
                }
            }
            for id in model.claim(100, None, "w", LEASE, late) {
                model.apply(id, &Input::Finalize { token: None, end: End::Completed }, late).unwrap();
            }
        }
        prop_assert_eq!(model.depth(at(now)).total(), 0);
    }
}

fn play(model: &mut Model, step: Step, now: Timestamp) {
    match step {
        Step::Publish { kind, priority, group, delay, rank, expires, keeps_place } => {
            let mut new = event(&format!("t{kind}")).priority(priority).max_attempts(3).rank(rank);
            new.group = group.map(|group| format!("g{group}"));
            new.keeps_place = keeps_place && group.is_some();
            if expires > 0 {
                new = new.expires_after(Duration::from_secs(expires));
            }
            if delay > 0 {
                new = new.delay(Duration::from_secs(delay));
            }
            model.publish(&new, now);
        }
        Step::Claim { max, kind } => {
            let types = kind.map(|kind| vec![format!("t{kind}")]);
            model.claim(max, types.as_deref(), "w", LEASE, now);
        }
        Step::Apply { pick, how } => {
            let ids: Vec<EntryId> = model.ids().collect();
            let Some(id) = ids.get(pick % ids.len().max(1)).copied() else { return };
            let token = model.entry(id).unwrap().token;
            let input = match how {
                0 => Input::Finalize { token: Some(token), end: End::Completed },
                1 => Input::Requeue { token, due: None, counts: false, aside: false },
                2 => Input::Requeue { token, due: Some(later(now, LEASE)), counts: true, aside: false },
                3 => Input::Cancel,
                4 => Input::Finalize { token: Some(token), end: End::Failed },
                5 => Input::Requeue { token, due: Some(later(now, LEASE)), counts: true, aside: true },
                6 => return model.maintain(now),
                _ => Input::Redrive,
            };
            let _ = model.apply(id, &input, now);
        }
    }
}

fn check_groups(model: &Model) -> Result<(), TestCaseError> {
    let mut open: HashMap<&str, u32> = HashMap::new();
    for item in model.items.values() {
        if let Some(group) = &item.event.group {
            let slot = open.entry(group).or_default();
            let holds = matches!(item.entry.phase, Phase::Waiting { .. } | Phase::Leased(_) | Phase::Kept(_));
            *slot += u32::from(holds);
            prop_assert!(*slot <= 1, "two entries of group {} are waiting or leased", group);
        }
    }
    Ok(())
}
