use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The ticks after a moment, as the zone's clock shows them.
fn ticks(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(expression, zone).unwrap();
    let mut tick = at(after);
    let next = |_| {
        tick = cron.next(tick).unwrap();
        tick.to_zoned(cron.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
    };
    (0..count).map(next).collect()
}

fn check(expression: &str, zone: &str, after: &str, expected: &[&str]) {
    assert_eq!(ticks(expression, zone, after, expected.len()), expected, "{expression} in {zone} after {after}");
}

#[test]
fn fields() {
    let from = "2026-01-01T00:00:00Z"; // a Thursday
    check("* * * * *", "UTC", from, &["2026-01-01 00:01:00 +00:00", "2026-01-01 00:02:00 +00:00"]);
    check("*/20 * * * * *", "UTC", from, &["2026-01-01 00:00:20 +00:00", "2026-01-01 00:00:40 +00:00"]);
    check("5/20 0 * * *", "UTC", from, &["2026-01-01 00:05:00 +00:00", "2026-01-01 00:25:00 +00:00"]);
    check("0 9-17/4 * * *", "UTC", from, &["2026-01-01 09:00:00 +00:00", "2026-01-01 13:00:00 +00:00"]);
    check("0 0 * * MON,5-6", "UTC", from, &["2026-01-02 00:00:00 +00:00", "2026-01-03 00:00:00 +00:00"]);
    check(
        "0 0 * * FRI-SUN",
        "UTC",
        "2026-01-03T00:00:00Z",
        &["2026-01-04 00:00:00 +00:00", "2026-01-09 00:00:00 +00:00"],
    );
    check("0 0 * * 7", "UTC", from, &["2026-01-04 00:00:00 +00:00"]);
    check("0 0 1 feb,12 *", "UTC", from, &["2026-02-01 00:00:00 +00:00", "2026-12-01 00:00:00 +00:00"]);
    check("0 0 L * ?", "UTC", from, &["2026-01-31 00:00:00 +00:00", "2026-02-28 00:00:00 +00:00"]);
    check("0 0 L 12 *", "UTC", from, &["2026-12-31 00:00:00 +00:00", "2027-12-31 00:00:00 +00:00"]);
    check("0 0 29 2 *", "UTC", from, &["2028-02-29 00:00:00 +00:00", "2032-02-29 00:00:00 +00:00"]);
    check("0 0 * * 5#2", "UTC", from, &["2026-01-09 00:00:00 +00:00", "2026-02-13 00:00:00 +00:00"]);
    check("0 0 * * FRIL", "UTC", from, &["2026-01-30 00:00:00 +00:00", "2026-02-27 00:00:00 +00:00"]);
    for (word, next) in [("@hourly", "2026-01-01 01"), ("@daily", "2026-01-02 00"), ("@weekly", "2026-01-04 00")] {
        check(word, "UTC", from, &[&format!("{next}:00:00 +00:00")]);
    }
}

#[test]
fn either_day_is_enough_when_both_are_restricted() {
    let from = "2026-01-01T00:00:00Z";
    check(
        "0 0 13 * FRI",
        "UTC",
        from,
        &["2026-01-02 00:00:00 +00:00", "2026-01-09 00:00:00 +00:00", "2026-01-13 00:00:00 +00:00"],
    );
    check("0 0 */2 * FRI", "UTC", from, &["2026-01-09 00:00:00 +00:00", "2026-01-23 00:00:00 +00:00"]);
}

#[test]
fn a_moment_that_the_clock_skips_happens_when_it_has_jumped() {
    // Berlin, 2026-03-29: the clock jumps from 02:00 to 03:00.
    let berlin = "Europe/Berlin";
    check(
        "30 2 * * *",
        berlin,
        "2026-03-27T12:00:00Z",
        &["2026-03-28 02:30:00 +01:00", "2026-03-29 03:00:00 +02:00", "2026-03-30 02:30:00 +02:00"],
    );
    check(
        "*/15 2,3 * * *",
        berlin,
        "2026-03-29T00:50:00Z",
        &["2026-03-29 03:00:00 +02:00", "2026-03-29 03:15:00 +02:00"],
    );
    // Samoa skipped 30 December 2011.
    check(
        "0 12 30 12 *",
        "Pacific/Apia",
        "2011-12-01T00:00:00Z",
        &["2011-12-31 00:00:00 +14:00", "2012-12-30 12:00:00 +14:00"],
    );
}

#[test]
fn a_moment_that_the_clock_shows_twice_happens_the_first_time() {
    // Berlin, 2026-10-25: the clock goes back from 03:00 to 02:00.
    let berlin = "Europe/Berlin";
    check("30 2 * * *", berlin, "2026-10-24T12:00:00Z", &["2026-10-25 02:30:00 +02:00", "2026-10-26 02:30:00 +01:00"]);
    check("30 2 * * *", berlin, "2026-10-25T01:10:00Z", &["2026-10-26 02:30:00 +01:00"]);
    check("* * 2 * * *", berlin, "2026-10-25T01:00:00Z", &["2026-10-26 02:00:00 +01:00"]);
}

#[test]
fn every_hour_follows_time_as_it_passes() {
    let berlin = "Europe/Berlin";
    check(
        "30 * * * *",
        berlin,
        "2026-10-24T23:45:00Z",
        &["2026-10-25 02:30:00 +02:00", "2026-10-25 02:30:00 +01:00", "2026-10-25 03:30:00 +01:00"],
    );
    check("30 * * * *", berlin, "2026-03-29T00:00:00Z", &["2026-03-29 01:30:00 +01:00", "2026-03-29 03:30:00 +02:00"]);
    check("0 */3 * * *", berlin, "2026-03-29T00:00:00Z", &["2026-03-29 03:00:00 +02:00", "2026-03-29 06:00:00 +02:00"]);
    // The clock changes by half an hour.
    check(
        "0 * * * *",
        "Australia/Lord_Howe",
        "2026-10-03T15:10:00Z",
        &["2026-10-04 03:00:00 +11:00", "2026-10-04 04:00:00 +11:00"],
    );
}

#[test]
fn bad_expressions_say_what_is_wrong() {
    let cases = [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of the week"),
        ("* * * * MOON", "day of the week"),
        ("5-1 * * * *", "backwards"),
        ("*/0 * * * *", "step"),
        ("*/x * * * *", "step"),
        ("1,,2 * * * *", "empty part"),
        ("+1 * * * *", "minute"),
        ("* * * * 5#6", "nth"),
        ("* * 15W * *", "nearest weekday"),
        ("0 0 30 2 *", "no such day"),
        ("@sometimes", "shorthand"),
        ("\u{1f980} * * * *", "minute"),
        ("* * * * 1-", "day of the week"),
    ];
    for (expression, expected) in cases {
        let error = Cron::parse(expression, "UTC").unwrap_err().to_string();
        assert!(error.contains(expected), "{expression:?}: {error}");
    }
    let long = format!("{} * * * *", "1,".repeat(200));
    assert!(Cron::parse(&long, "UTC").unwrap_err().to_string().contains("longer"));
    for zone in ["", "Mars/Olympus", "../etc/passwd", "+01:00"] {
        let error = Cron::parse("* * * * *", zone).unwrap_err();
        assert_eq!(error.what, "time zone", "{error}");
    }
}

#[test]
fn time_ends_without_a_panic() {
    let cron = Cron::parse("0 0 29 2 *", "Europe/Berlin").unwrap();
    assert_eq!(cron.next(Timestamp::MAX), None);
    assert!(Cron::parse("* * * * * *", "UTC").unwrap().next(Timestamp::MIN).is_some());
}

#[test]
fn days_at_the_edges_of_weeks_and_months() {
    let from = "2026-01-01T00:00:00Z"; // a Thursday
    check("0 0 * * 3#1", "UTC", from, &["2026-01-07 00:00:00 +00:00", "2026-02-04 00:00:00 +00:00"]);
    check("0 0 * * 4#2", "UTC", from, &["2026-01-08 00:00:00 +00:00", "2026-02-12 00:00:00 +00:00"]);
    check("0 0 * * 7#1", "UTC", from, &["2026-01-04 00:00:00 +00:00", "2026-02-01 00:00:00 +00:00"]);
    check("0 0 * * 6#5", "UTC", from, &["2026-01-31 00:00:00 +00:00", "2026-05-30 00:00:00 +00:00"]);
    check("0 0 * * SATL", "UTC", from, &["2026-01-31 00:00:00 +00:00", "2026-02-28 00:00:00 +00:00"]);
    check("0 0 ? * FRI", "UTC", from, &["2026-01-02 00:00:00 +00:00", "2026-01-09 00:00:00 +00:00"]);
    check("0 0 * * 1#1,1#3", "UTC", from, &["2026-01-05 00:00:00 +00:00", "2026-01-19 00:00:00 +00:00"]);
    check("0 0 * * MONL,FRIL", "UTC", from, &["2026-01-26 00:00:00 +00:00", "2026-01-30 00:00:00 +00:00"]);
}

#[test]
fn an_expression_has_at_most_255_bytes_and_may_repeat_itself() {
    let longest = format!("{}0 * * * *", "0,".repeat(123));
    assert_eq!(longest.len(), 255);
    check(&longest, "UTC", "2026-01-01T00:00:00Z", &["2026-01-01 01:00:00 +00:00", "2026-01-01 02:00:00 +00:00"]);
    let error = Cron::parse(&format!("{longest} "), "UTC").unwrap_err();
    assert!(error.why.contains("longer"), "{error}");
    assert_eq!(error.given, longest[..60]);
}

#[test]
fn ranges_to_zero_are_only_for_days_of_the_week() {
    for expression in ["5-0 * * * *", "* 7-0 * * *", "* * 7-0 * *"] {
        assert!(Cron::parse(expression, "UTC").is_err(), "{expression}");
    }
}
