use super::*;

fn check(event: NewEvent) -> Result<(), InvalidEvent> {
    event.check(PayloadLimit::default())
}

#[test]
fn good_events_pass() {
    let event = NewEvent::new("order.created", "{}");
    assert_eq!(check(event.clone()), Ok(()));
    assert_eq!(check(event.clone().priority(-100).group("g").deduplicate("k")), Ok(()));
    assert_eq!(check(event.delay(Duration::from_secs(3600))), Ok(()));
    assert_eq!(check(NewEvent::new("t", vec![0_u8; DEFAULT_PAYLOAD_LIMIT])), Ok(()));
    assert_eq!(check(NewEvent::new("t", "{}").title("😀".repeat(1000))), Ok(()));
}

#[test]
fn each_bad_field_is_named() {
    let good = NewEvent::new("order.created", "{}");
    let mut zero_window = good.clone().deduplicate("k");
    zero_window.deduplication.as_mut().unwrap().window = Duration::ZERO;
    let mut bad_end = good.clone();
    bad_end.exhausted_as = End::Completed;
    let mut nul = good.clone();
    nul.attributes = Some("{\"a\":\"\0\"}".into());
    let cases = [
        (NewEvent::new("", "{}"), "event type"),
        (NewEvent::new("a\0b", "{}"), "event type"),
        (NewEvent::new("t", vec![0_u8; DEFAULT_PAYLOAD_LIMIT + 1]), "limit of 1048576"),
        (good.clone().priority(101), "priority 101"),
        (good.clone().priority(i16::MIN + 1), "priority"),
        (good.clone().max_attempts(0), "max attempts 0"),
        (good.clone().max_attempts(u32::MAX), "max attempts"),
        (good.clone().group(""), "message group"),
        (good.clone().deduplicate("\u{7}"), "deduplication key"),
        (good.clone().delay(Duration::MAX), "moment"),
        (good.clone().available_at(Timestamp::MAX), "moment"),
        (good.clone().expires_at(Timestamp::MAX), "moment"),
        (good.clone().expires_after(Duration::MAX), "moment"),
        (good.clone().keep_place(), "message group"),
        (zero_window, "window"),
        (bad_end, "COMPLETED"),
        (nul, "attributes"),
        (good.clone().title(""), "title"),
        (good.clone().title("ä".repeat(1001)), "title"),
        (good.clone().description("\0"), "description"),
        (good.clone().tags((0..33).map(|n| n.to_string())), "33 tags"),
        (good.clone().tags(["a,b"]), "tag"),
        (good.clone().retry(RetryPolicy::Fixed { delay_ms: u64::MAX }), "retry"),
    ];
    for (event, expected) in cases {
        let error = check(event).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not name {expected:?}");
    }
}

const YEAR: Duration = Duration::from_secs(31_622_400);

#[test]
fn limits_are_where_they_are_said_to_be() {
    assert_eq!(DEFAULT_DEDUP_WINDOW, Duration::from_secs(86_400));
    assert_eq!(Idempotency::new("k", 1).window, DEFAULT_DEDUP_WINDOW);
    let good = || NewEvent::new("t", "{}");
    let with = |set: &dyn Fn(&mut NewEvent)| {
        let mut event = good().deduplicate("k");
        event.idempotency = Some(Idempotency::new("k", 1));
        set(&mut event);
        event
    };
    let attributes = |length| with(&|event| event.attributes = Some("x".repeat(length)));
    let dedup = |window| with(&|event| event.deduplication.as_mut().unwrap().window = window);
    let idempotency = |window| with(&|event| event.idempotency.as_mut().unwrap().window = window);
    let moment = |second| Timestamp::from_second(second).unwrap();
    let time = |second| with(&|event| event.time = Some(moment(second)));
    let second = Duration::from_secs(1);
    let cases = [
        (attributes(65_536), attributes(65_537), InvalidEvent::BadAttributes),
        (good().description("x".repeat(65_536)), good().description("x".repeat(65_537)), InvalidEvent::BadDescription),
        (good().tags((0..32).map(|n| n.to_string())), good().tags((0..33).map(|n| n.to_string())), {
            InvalidEvent::TooManyTags(33)
        }),
        (good().priority(100), good().priority(101), InvalidEvent::PriorityOutOfRange(101)),
        (good().priority(-100), good().priority(-101), InvalidEvent::PriorityOutOfRange(-101)),
        (good().max_attempts(1), good().max_attempts(0), InvalidEvent::MaxAttemptsOutOfRange(0)),
        (good().delay(100 * YEAR), good().delay(100 * YEAR + second), InvalidEvent::MomentOutOfRange),
        (good().available_at(moment(0)), good().available_at(moment(-1)), InvalidEvent::MomentOutOfRange),
        (time(253_370_764_799), time(253_370_764_800), InvalidEvent::MomentOutOfRange),
        (dedup(YEAR), dedup(YEAR + second), InvalidEvent::WindowOutOfRange),
        (idempotency(YEAR), idempotency(YEAR + second), InvalidEvent::WindowOutOfRange),
        (idempotency(second), idempotency(Duration::ZERO), InvalidEvent::WindowOutOfRange),
    ];
    for (last_good, first_bad, error) in cases {
        assert_eq!(check(last_good), Ok(()), "{error}");
        assert_eq!(check(first_bad), Err(error));
    }
}

#[test]
fn texts_for_people_hold_no_nul() {
    let good = NewEvent::new("t", "{}").title("a title").description("several\nlines");
    assert_eq!(check(good.clone()), Ok(()));
    assert_eq!(check(good.clone().title("a\0b")), Err(InvalidEvent::BadTitle));
    assert_eq!(check(good.description("a\0b")), Err(InvalidEvent::BadDescription));
}

#[test]
fn tags_are_named_once() {
    let mut event = NewEvent::new("t", "{}").tags(["a", "b", "a"]);
    assert_eq!(event.tags, ["a", "b"]);
    assert_eq!(check(event.clone()), Ok(()));
    event.tags.push("a".into());
    assert_eq!(check(event), Err(InvalidEvent::RepeatedTag("a".into())));
}

#[test]
fn retries_come_after_the_first_attempt() {
    let event = NewEvent::new("t", "{}").max_retries(3);
    assert_eq!((event.max_attempts, event.exhausted_as), (4, End::Failed));
}

#[test]
fn an_events_owner_is_its_client_else_its_queues() {
    let (one, two) = (Tsid::from_i64(1), Tsid::from_i64(2));
    let in_queue_of = |client: Option<Tsid>| NewEvent::new("t", "{}").queue(QueueName::of(client, "q").unwrap());
    let of = |client, event: NewEvent| NewEvent { client, ..event };
    let cases = [
        (in_queue_of(None), None, Ok(())),
        (in_queue_of(Some(one)), Some(one), Ok(())),
        (of(Some(two), in_queue_of(None)), Some(two), Ok(())),
        (of(Some(one), in_queue_of(Some(one))), Some(one), Ok(())),
        (of(Some(two), in_queue_of(Some(one))), Some(two), Err(InvalidEvent::OtherClient)),
    ];
    for (event, owner, checked) in cases {
        assert_eq!((event.owner(), check(event.clone())), (owner, checked), "{event:?}");
    }
}

#[test]
fn one_field_more_is_no_bare_fact() {
    let bare = || NewEvent::new("t", "{}").group("g").priority(5).deduplicate("k");
    assert!(bare().is_bare_fact() && !bare().is_for_workers());
    let for_workers = [
        bare().title("t"),
        bare().description("d"),
        bare().tags(["a"]),
        bare().retry(RetryPolicy::fixed(Duration::from_secs(1))),
    ];
    for event in for_workers {
        assert!(event.is_for_workers() && !event.is_bare_fact(), "{event:?}");
    }
    let text = || Some("x".to_owned());
    let facts = [
        NewEvent { content_type: text(), ..bare() },
        NewEvent { source: text(), ..bare() },
        NewEvent { subject: text(), ..bare() },
        NewEvent { external_id: text(), ..bare() },
        NewEvent { correlation_id: text(), ..bare() },
        NewEvent { causation_id: text(), ..bare() },
        NewEvent { attributes: text(), ..bare() },
        NewEvent { time: Some(Timestamp::UNIX_EPOCH), ..bare() },
        NewEvent { client: Some(Tsid::from_i64(1)), ..bare() },
        bare().queue(QueueName::of(Tsid::from_i64(1), "q").unwrap()),
    ];
    for event in facts {
        assert!(!event.is_bare_fact() && !event.is_for_workers(), "{event:?}");
    }
}

#[test]
fn weight_adds_up_what_varies() {
    let event = NewEvent::new("t", "12345");
    assert_eq!(event.weight(), 256 + 5);
    let mut full = event.title("123").description("1234567").tags(["12", "3"]).group("12");
    full.source = Some("1".into());
    full.subject = Some("1234".into());
    full.attributes = Some("{}".into());
    full.external_id = Some("12345678".into());
    assert_eq!(full.weight(), 256 + 5 + (3 + 7) + (2 + 64 + 1 + 64) + (2 + 1 + 4 + 2 + 8));
}
