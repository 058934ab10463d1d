//! Tests of cron rules: their validation and their stored form.

use super::*;
use crate::job::args::{Args, PushExt};
use crate::job::{UniqueKey, UniqueScope};
use proptest::prelude::*;

/// A job that is pushed by hand can have the key of a rule.
#[test]
fn key_of_a_rule_is_shared_by_all_kinds_of_its_queue() {
    let key = UniqueKey::scoped(UniqueScope::Queue, "mail", "cron:report");
    assert_eq!(cron_unique_key("report"), key.as_str());
    assert_eq!(rule_name_from_key(key.as_str()), Some("report"));
}

#[test]
fn job_of_rule_with_id_due_or_unique_key_is_rejected() {
    let rejected = |push: Push| CronRule::new("r", "* * * * *", push).expect_err("is rejected").to_string();
    assert!(rejected(Push::new("mail", "{}").id(JobId::from_name("x"))).contains("id"));
    assert!(rejected(Push::new("mail", "{}").after(Duration::from_secs(1))).contains("due"));
    assert!(rejected(Push::new("mail", "{}").unique("x")).contains("unique"));
    assert!(rejected(Push::new("mail", "{")).contains("args"));
}

#[derive(Serialize, Deserialize)]
struct Invoice {
    customer: u64,
}

impl Args for Invoice {
    const KIND: &'static str = "invoice";

    fn defaults(&self, push: Push) -> Push {
        let id = JobId::from_name("invoice");
        push.queue("billing").unique("customer:7").after(Duration::from_secs(1)).id(id).tag("money")
    }
}

#[test]
fn rule_takes_over_the_defaults_of_its_args_but_for_those_that_a_tick_sets() {
    let rule = CronRule::new("r", "* * * * *", Invoice { customer: 7 }).expect("a rule");
    assert_eq!((rule.queue.as_str(), rule.tags.as_slice()), ("billing", &["money".to_owned()][..]));
    assert_eq!(rule.to_push().unique, None);
    let rejected = |push: Push| CronRule::new("r", "* * * * *", push).expect_err("is explicit").to_string();
    assert!(rejected(Invoice { customer: 7 }.unique("mine")).contains("a unique key"));
    assert!(rejected(Invoice { customer: 7 }.after(Duration::from_secs(2))).contains("a due time"));
    assert!(rejected(Invoice { customer: 7 }.id(JobId::from_name("mine"))).contains("an id"));
    assert!(CronRule::new("r", "* * * * *", Invoice { customer: 7 }.now().max_attempts(3)).is_ok());
}

#[test]
fn push_unsets_the_defaults_of_its_args() {
    let push = Invoice { customer: 7 }.no_unique().now().no_tags();
    assert_eq!((push.unique.as_deref(), push.due, push.tags.len()), (None, Due::Now, 0));
    assert_eq!(push.queue, "billing");
}

#[test]
fn invalid_rule_error_names_its_field() {
    let field = |change: fn(&mut CronRule)| {
        let mut rule = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule");
        change(&mut rule);
        match rule.check() {
            Ok(_) => "",
            Err(Error::Invalid { field, .. }) => field,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(field(|_| ()), "");
    assert_eq!(field(|rule| rule.name = "a b".into()), "cron");
    assert_eq!(field(|rule| rule.pattern = "* * *".into()), "pattern");
    assert_eq!(field(|rule| rule.tz = "Nowhere".into()), "tz");
    assert_eq!(field(|rule| rule.args = "9".repeat(CRON_ARGS_BYTES_MAX + 1)), "args");
    assert_eq!(field(|rule| rule.jitter = JITTER_MAX * 2), "jitter");
    assert_eq!(field(|rule| rule.missed = Missed::All(0)), "missed");
    assert_eq!(field(|rule| rule.queue = "{".into()), "queue");
}

proptest! {
    #[test]
    fn rule_survives_its_json(
        args in "[0-9]{1,30}|\"\\PC{0,9}\"|\\[ 1,  2\\]",
        tags in proptest::collection::vec("[a-z]{1,4}", 0..3),
        keep in proptest::option::of(0u64..9_999_999),
        all in 1..=MISSED_TICKS_MAX,
    ) {
        prop_assume!(serde_json::from_str::<serde::de::IgnoredAny>(&args).is_ok());
        let mut push = Push::new("mail", args).tags(tags);
        push.keep = keep.map(Duration::from_millis);
        let rule = CronRule::new("r", "* * * * *", push).expect("a rule");
        let rule = rule.missed(Missed::All(all)).overlap(Overlap::Queue);
        prop_assert_eq!(CronRule::from_json(&rule.to_json()), Some(rule));
    }

    #[test]
    fn any_text_parses_or_is_rejected(text in ".*") {
        let _ = (CronRule::from_json(&text), text.parse::<Missed>(), text.parse::<Overlap>());
    }
}

#[test]
fn newer_format_is_not_parsed() {
    let text = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule").to_json();
    assert!(CronRule::from_json(&text).is_some());
    assert_eq!(CronRule::from_json(&text.replace("\"format\":1", "\"format\":2")), None);
}
