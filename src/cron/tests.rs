//! Patterns and time zones: clock changes, missed ticks, and bounded searches.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::plan::MISSED_TICKS_MAX;
use super::rule::CRON_ARGS_BYTES_MAX;
use super::schedule::split_fixed_times;
use super::*;
use crate::clock::to_micros;
use crate::job::JobId;
use crate::job::push::Push;
use crate::store::CronRecord;

/// Parses a time such as `2026-03-29T02:30:00+01:00`.
fn parse_time(text: &str) -> SystemTime {
    SystemTime::from(text.parse::<Timestamp>().expect("a time"))
}

fn next_ticks(pattern: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let schedule = Schedule::parse(pattern, zone).expect("is valid");
    schedule.ticks_after(parse_time(from)).take(count).map(|tick| schedule.format_in_zone(tick)).collect()
}

#[test]
fn fixed_time_in_dst_gap_fires_after_gap_and_repeating_pattern_skips_it() {
    // Clocks go forward from 02:00 to 03:00.
    let daily = next_ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2);
    assert_eq!(daily, ["Sun 2026-03-29 03:00 CEST", "Mon 2026-03-30 02:30 CEST"]);
    let often = next_ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00:00+01:00", 3);
    assert_eq!(often, ["Sun 2026-03-29 01:30 CET", "Sun 2026-03-29 03:00 CEST", "Sun 2026-03-29 03:30 CEST"]);
    let new_york = next_ticks("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", 2);
    assert_eq!(new_york, ["Sun 2026-03-08 03:00 EDT", "Mon 2026-03-09 02:30 EDT"]);
    // By half an hour only, from 02:00 to 02:30.
    let lord_howe = next_ticks("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T20:00:00Z", 2);
    assert_eq!(lord_howe, ["Sun 2026-10-04 02:30 +11", "Mon 2026-10-05 02:15 +11"]);
}

#[test]
fn fixed_time_in_dst_fold_fires_once_and_repeating_pattern_twice() {
    // Clocks go from 03:00 back to 02:00.
    let daily = next_ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2);
    assert_eq!(daily, ["Sun 2026-10-25 02:30 CEST", "Mon 2026-10-26 02:30 CET"]);
    let often = next_ticks("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:45:00+02:00", 5);
    let both = ["02:00 CEST", "02:30 CEST", "02:00 CET", "02:30 CET", "03:00 CET"];
    assert_eq!(often, both.map(|time| format!("Sun 2026-10-25 {time}")));
    let new_york = next_ticks("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", 2);
    assert_eq!(new_york, ["Sun 2026-11-01 01:30 EDT", "Mon 2026-11-02 01:30 EST"]);
    // From 02:00 back to 01:30.
    let lord_howe = next_ticks("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", 2);
    assert_eq!(lord_howe, ["Sun 2026-04-05 01:45 +11", "Mon 2026-04-06 01:45 +1030"]);
}

#[test]
fn listed_times_are_fixed_times() {
    let gap = "2027-03-28T00:00:00+01:00";
    let fold = "2026-10-25T00:00:00+02:00";
    assert_eq!(
        next_ticks("15 2,14 * * *", "Europe/Berlin", gap, 3),
        ["Sun 2027-03-28 03:00 CEST", "Sun 2027-03-28 14:15 CEST", "Mon 2027-03-29 02:15 CEST"]
    );
    assert_eq!(
        next_ticks("15 2,14 * * *", "Europe/Berlin", fold, 3),
        ["Sun 2026-10-25 02:15 CEST", "Sun 2026-10-25 14:15 CET", "Mon 2026-10-26 02:15 CET"]
    );
    assert_eq!(
        next_ticks("0,30 2 * * *", "Europe/Berlin", gap, 2),
        ["Sun 2027-03-28 03:00 CEST", "Mon 2027-03-29 02:00 CEST"],
        "two skipped times fire once"
    );
    assert_eq!(
        next_ticks("0,30 30 2 * * *", "Europe/Berlin", fold, 3),
        ["Sun 2026-10-25 02:30 CEST", "Sun 2026-10-25 02:30:30 CEST", "Mon 2026-10-26 02:30 CET"]
    );
    assert!(
        split_fixed_times("*/10 2,14 * * *").is_empty() && split_fixed_times("0-5 2 * * *").is_empty(),
        "repeating patterns have no fixed times"
    );
    assert!(split_fixed_times("30 2 * * *").is_empty() && split_fixed_times("@daily").is_empty());
}

#[test]
fn dst_note_describes_gap_and_fold() {
    let daily = Schedule::parse("30 2 * * *", "Europe/Berlin").expect("is valid");
    assert!(daily.dst_note(parse_time("2026-03-29T03:00:00+02:00")).is_some_and(|note| note.contains("skipped")));
    assert!(
        daily.dst_note(parse_time("2026-10-25T02:30:00+02:00")).is_some_and(|note| note.contains("first time only"))
    );
    assert_eq!(daily.dst_note(parse_time("2026-10-26T02:30:00+01:00")), None);
    let listed = Schedule::parse("0,30 2 * * *", "Europe/Berlin").expect("is valid");
    assert!(
        listed
            .dst_note(parse_time("2026-10-25T02:00:00+02:00"))
            .is_some_and(|note| note.contains("the first time only"))
    );
    let often = Schedule::parse("*/30 * * * *", "Europe/Berlin").expect("is valid");
    assert!(often.dst_note(parse_time("2026-10-25T02:30:00+02:00")).is_some_and(|note| note.contains("is the first")));
    assert!(often.dst_note(parse_time("2026-10-25T02:30:00+01:00")).is_some_and(|note| note.contains("is the second")));
}

#[test]
fn ticks_before_are_those_after_in_reverse() {
    // The weeks of the clock changes in these zones.
    let changes =
        [("2026-03-07T00:00:00Z", "2026-04-06T10:20:30.5Z"), ("2026-10-03T00:00:00Z", "2026-11-02T10:20:30Z")];
    for (start, end) in changes.map(|(start, end)| (parse_time(start), parse_time(end))) {
        for pattern in ["30 2 * * *", "30 2,14 * * *", "*/30 * * * *", "0 3 * * MON", "*/20 30 2 * * SUN"] {
            for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"] {
                let schedule = Schedule::parse(pattern, zone).expect("valid");
                let after: Vec<_> = schedule.ticks_after(start).take_while(|tick| *tick < end).collect();
                let mut before: Vec<_> = schedule.ticks_before(end).take_while(|tick| *tick > start).collect();
                before.reverse();
                assert_eq!(before, after, "{pattern} in {zone}");
            }
        }
    }
    let leap = Schedule::parse("0 0 29 2 *", "UTC").expect("valid");
    let last = leap.ticks_before(parse_time("2026-11-15T10:20:30Z")).next();
    assert_eq!(last, Some(parse_time("2024-02-29T00:00:00Z")));
}

fn cron_record(pattern: &str, next: SystemTime, change: impl FnOnce(CronRule) -> CronRule) -> CronRecord {
    let rule = change(CronRule::new("r", pattern, Push::new("mail", "{}")).expect("a rule"));
    CronRecord { rule, revision: 1, paused: false, next: Some(next), waiting: false, last: None }
}

/// Returns how many seconds ago the fired ticks were due.
fn fired_seconds_ago(record: &CronRecord, now: SystemTime) -> Vec<u64> {
    let schedule = record.rule.schedule().expect("is valid");
    let firing = plan_firing(&schedule, record, now).expect("has a tick");
    assert!(firing.next.is_some_and(|next| next > now), "the next tick is in the future");
    let ids: Vec<_> = firing.jobs.iter().map(|job| job.id).collect();
    let ago = |id: &_| (0..100_000).find(|s| tick_job_id("r", to_micros(now - Duration::from_secs(*s))) == *id);
    ids.iter().map(|id| ago(id).expect("a tick")).collect()
}

/// Fires in as many batches as needed, and returns all jobs.
fn fire_all_batches(record: &mut CronRecord, now: SystemTime) -> Vec<JobId> {
    let schedule = record.rule.schedule().expect("is valid");
    let mut ids = Vec::new();
    while record.next.is_some_and(|next| next <= now) {
        let firing = plan_firing(&schedule, record, now).expect("has a tick");
        assert!(firing.jobs.len() <= FIRE_JOBS_MAX);
        ids.extend(firing.jobs.iter().map(|job| job.id));
        record.next = firing.next;
    }
    ids
}

/// Returns the jobs of the ticks this many seconds ago.
fn tick_job_ids(now: SystemTime, ago: impl IntoIterator<Item = u64>) -> Vec<JobId> {
    ago.into_iter().map(|seconds| tick_job_id("r", to_micros(now - Duration::from_secs(seconds)))).collect()
}

#[test]
fn missed_ticks_follow_the_missed_policy() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let ago = |s| now - Duration::from_secs(s);
    let minutely = |missed| cron_record("* * * * *", ago(3600), |rule| rule.missed(missed));
    assert_eq!(fired_seconds_ago(&minutely(Missed::Skip), now), [0]);
    assert_eq!(fired_seconds_ago(&minutely(Missed::Once), now), [60, 0]);
    assert_eq!(fired_seconds_ago(&minutely(Missed::All(3)), now), [180, 120, 60, 0]);
    assert_eq!(fired_seconds_ago(&minutely(Missed::All(1000)), now).len(), 61);
    assert_eq!(
        fired_seconds_ago(&cron_record("0 0 * * *", ago(43_200), |rule| rule), now),
        [43_200],
        "midnight was missed and fires later"
    );
    let none: [u64; 0] = [];
    assert_eq!(fired_seconds_ago(&cron_record("0 0 * * *", ago(43_200), |rule| rule.missed(Missed::Skip)), now), none);
}

#[test]
fn ticks_beyond_one_batch_fire_in_the_next() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let long = format!("\"{}\"", "x".repeat(CRON_ARGS_BYTES_MAX - 2));
    let mut rule = cron_record("* * * * * *", now - Duration::from_secs(400), |rule| rule.missed(Missed::All(1000)));
    rule.rule.args = long;
    let schedule = rule.rule.schedule().expect("is valid");
    let (mut ids, mut batches) = (Vec::new(), 0);
    while rule.next.is_some_and(|next| next <= now) {
        let firing = plan_firing(&schedule, &rule, now).expect("has a tick");
        assert!(!firing.jobs.is_empty() && firing.jobs.len() * rule.rule.args.len() <= FIRE_BYTES_MAX);
        ids.extend(firing.jobs.iter().map(|job| job.id));
        rule.next = firing.next;
        batches += 1;
    }
    let expected = (0..=400).rev().map(|ago| tick_job_id("r", to_micros(now - Duration::from_secs(ago))));
    assert_eq!((ids, batches), (expected.collect::<Vec<_>>(), 7), "each once, oldest first");
}

#[test]
fn short_outage_misses_no_tick() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let each_second = cron_record("* * * * * *", now - Duration::from_secs(4), |rule| rule.missed(Missed::Skip));
    assert_eq!(fired_seconds_ago(&each_second, now), [4, 3, 2, 1, 0]);
}

#[test]
fn rule_idle_for_years_fires_at_most_missed_max() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let mut each_second = cron_record("* * * * * *", parse_time("2000-01-01T00:00:00Z"), |rule| {
        rule.missed(Missed::All(MISSED_TICKS_MAX))
    });
    assert_eq!(fire_all_batches(&mut each_second, now).len(), MISSED_TICKS_MAX as usize + 11);
}

/// A slightly longer window may hold far more ticks than can be scanned. The newest ones still count.
#[test]
fn newest_missed_ticks_fire_after_dense_old_ones() {
    let now = parse_time("2030-01-26T05:00:00Z");
    let away = |pattern, missed| {
        cron_record(pattern, parse_time("2029-12-27T00:00:00Z"), |rule: CronRule| rule.missed(missed))
    };
    let last = now.duration_since(parse_time("2030-01-10T23:59:00Z")).expect("is past").as_secs();
    assert_eq!(fire_all_batches(&mut away("* * 1-10 * *", Missed::Once), now), tick_job_ids(now, [last]));
    let thousand = fire_all_batches(&mut away("* * 1-10,26 * *", Missed::All(MISSED_TICKS_MAX)), now);
    assert_eq!(thousand.len(), MISSED_TICKS_MAX as usize + 1);
    assert!(thousand.ends_with(&tick_job_ids(now, (0..=300).rev().map(|minutes| minutes * 60))), "with those on time");
}

#[test]
fn without_overlap_only_newest_tick_fires() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let record = |waiting| CronRecord {
        waiting,
        ..cron_record("0 0 * * *", now - Duration::from_secs(43_200), |rule| {
            rule.overlap(Overlap::Queue).missed(Missed::Skip)
        })
    };
    assert_eq!(fired_seconds_ago(&record(true), now), [43_200], "it has waited on purpose");
    assert!(fired_seconds_ago(&record(false), now).is_empty());
    let each_second = cron_record("* * * * * *", now - Duration::from_secs(4), |rule| rule.overlap(Overlap::Skip));
    assert_eq!(fired_seconds_ago(&each_second, now), [0]);
}

#[test]
fn changed_rule_keeps_due_tick_and_fires_none_twice() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let schedule = Schedule::parse("0 * * * *", "UTC").expect("is valid");
    let due = cron_record("* * * * *", now - Duration::from_secs(1), |rule| rule);
    assert_eq!(next_tick(&schedule, &due, now), due.next);
    let later = cron_record("* * * * *", now + Duration::from_secs(7), |rule| rule);
    assert_eq!(next_tick(&schedule, &later, now), Some(parse_time("2030-01-01T13:00:00Z")));
    // The clock was set back after the last tick: by a few seconds, and by so much that the rule would stop.
    let each_second = Schedule::parse("* * * * * *", "UTC").expect("is valid");
    let set_back = |by| CronRecord { last: Some(now + Duration::from_secs(by)), ..later.clone() };
    assert_eq!(next_tick(&each_second, &set_back(8), now), Some(now + Duration::from_secs(9)));
    assert_eq!(next_tick(&each_second, &set_back(3_600), now), Some(now + Duration::from_secs(1)));
}

/// The next tick was planned while the clock was ahead. Afterwards the clock was behind for a while.
#[test]
fn late_tick_is_planned_again_and_fires_no_earlier_one() {
    let now = parse_time("2030-01-01T12:00:30Z");
    let minute = Duration::from_secs(60);
    let schedule = Schedule::parse("* * * * *", "UTC").expect("is valid");
    let late = cron_record("* * * * *", now + 1_000 * minute, |rule| rule.missed(Missed::All(100)));
    let planned = plan_again(&schedule, &late, now).expect("it is late");
    assert_eq!((planned.next, planned.revision), (Some(parse_time("2030-01-01T12:01:00Z")), late.revision + 1));
    assert_eq!(plan_again(&schedule, &planned, now), None, "it is not late any more");
    let never = CronRecord { next: None, ..late.clone() };
    assert_eq!(plan_again(&schedule, &never, now).expect("has ticks").next, planned.next);
    assert_eq!(plan_again(&schedule, &CronRecord { paused: true, ..never }, now), None);

    let last = Some(parse_time("2030-01-01T12:00:00Z"));
    let behind = CronRecord { next: Some(now - 1_000 * minute), last, ..late };
    let firing = plan_firing(&schedule, &behind, now).expect("has a tick");
    assert!(firing.jobs.is_empty(), "all of these have fired: {}", firing.jobs.len());
    assert_eq!(firing.next, planned.next);
}

#[test]
fn jitter_is_deterministic_and_bounded() {
    let now = parse_time("2030-01-01T12:00:00Z");
    let rule = cron_record("* * * * *", now, |rule| rule.jitter(Duration::from_secs(30)));
    let due = |record: &CronRecord| {
        let firing = plan_firing(&rule.rule.schedule().expect("is valid"), record, now).expect("has a tick");
        match firing.jobs[0].due {
            crate::job::push::Due::At(due) => due,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(due(&rule), due(&rule));
    assert!(due(&rule) >= now && due(&rule) <= now + Duration::from_secs(30));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn ticks_increase_and_searches_end(
        fields in proptest::collection::vec(
            "\\*|[0-9]{1,2}|[0-9],1[0-9]|\\*/[1-9]|[0-9]-[0-9]|L|[1-5]#[1-5]|1?[0-9]W", 5..=6
        ),
        zone in proptest::sample::select(
            vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]
        ),
        from in 0i64..4_000_000_000,
    ) {
        if let Ok(schedule) = Schedule::parse(&fields.join(" "), zone) {
            let mut last = from * 1_000_000 + 999_999;
            for _ in 0..20 {
                let Some(next) = schedule.next_after(last) else { break };
                prop_assert!(next > last);
                last = next;
            }
        }
    }

    #[test]
    fn any_text_parses_or_is_rejected(pattern in ".{0,40}", zone in ".{0,20}") {
        let _ = Schedule::parse(&pattern, "UTC");
        let _ = Schedule::parse("* * * * *", &zone);
    }
}

/// A machine may have no time zones, such as a small container. Then those of this build are used.
#[test]
fn time_zones_are_bundled() {
    let bundled = jiff::tz::TimeZoneDatabase::bundled();
    for name in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"] {
        let zone = bundled.get(name).expect("is in the build");
        let noon = "2026-07-01T12:00:00Z".parse::<Timestamp>().expect("a time");
        assert_eq!(zone.to_offset(noon), TimeZone::get(name).expect("is known").to_offset(noon));
    }
}
