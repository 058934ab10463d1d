//! Tests of the validation of pushes.

use super::*;
use crate::job::due::{DELAY_MICROS_MAX, DUE_MICROS_MAX};
use proptest::prelude::*;

fn invalid_field(push: Push) -> &'static str {
    match push.check() {
        Ok(()) => "",
        Err(Error::Invalid { field, .. }) => field,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn invalid_push_error_names_its_field() {
    let ok = || Push::new("mail", "{}");
    assert_eq!(invalid_field(ok()), "");
    assert_eq!(invalid_field(Push::new("", "{}")), "kind");
    assert_eq!(invalid_field(Push::new("a b", "{}")), "kind");
    assert_eq!(invalid_field(Push::new("mail", "{")), "args");
    assert_eq!(invalid_field(Push::new("mail", format!("\"{}\"", "x".repeat(ARGS_BYTES_MAX)))), "args");
    assert_eq!(invalid_field(Push::new("mail", "[".repeat(65) + &"]".repeat(65))), "args");
    assert_eq!(invalid_field(ok().queue("a\nb")), "queue");
    assert_eq!(invalid_field(ok().queue("x".repeat(129))), "queue");
    assert_eq!(invalid_field(ok().queue("a{b}")), "queue");
    assert_eq!(invalid_field(ok().unique("")), "unique");
    assert_eq!(invalid_field(ok().unique("a\u{7}")), "unique");
    assert_eq!(invalid_field(ok().max_attempts(0)), "max_attempts");
    assert_eq!(invalid_field(ok().timeout(Duration::ZERO)), "timeout");
    assert_eq!(invalid_field(ok().tags(vec!["t"; 17])), "tags");
    assert_eq!(invalid_field(ok().tag("with space")), "tags");
    assert_eq!(invalid_field(ok().at(crate::clock::from_micros(DUE_MICROS_MAX))), "");
    assert_eq!(invalid_field(ok().at(crate::clock::from_micros(DUE_MICROS_MAX + 1))), "due");
    assert_eq!(invalid_field(ok().after(Duration::from_micros(DELAY_MICROS_MAX as u64))), "");
    assert_eq!(invalid_field(ok().after(Duration::MAX)), "due");
    assert_eq!(invalid_field(ok().traceparent("nonsense")), "traceparent");
    assert_eq!(invalid_field(ok().traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")), "");
}

proptest! {
    #[test]
    fn check_never_panics(kind in ".*", args in ".*", queue in ".*", key in ".*", trace in ".*") {
        let push = Push::new(kind, args).queue(queue).unique(key).traceparent(trace);
        let _ = push.check();
    }

    #[test]
    fn valid_names_pass(name in "[A-Za-z0-9_.:/-]{1,128}") {
        prop_assert!(check_name("queue", &name).is_ok());
    }
}
