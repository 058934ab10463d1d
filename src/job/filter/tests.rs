//! The filter language, by examples and by random input.

use crate::job::filter::*;
use proptest::prelude::*;

fn parse_filter(text: &str) -> Filter {
    text.parse().expect(text)
}

fn parse_error(text: &str) -> String {
    text.parse::<Filter>().expect_err(text).to_string()
}

#[test]
fn every_field_name_parses() {
    let hour = Duration::from_secs(3_600);
    let filter = parse_filter(
        "state:dead kind:email queue:x tag:y tag:z priority:high args.to:ada error:timeout since:1h until:+10m",
    );
    let expected = Filter {
        state: Some(State::Dead),
        kind: Some("email".into()),
        queue: Some("x".into()),
        tags: vec!["y".into(), "z".into()],
        priority: Some(Priority::High),
        args: vec![("to".into(), "ada".into())],
        error: Some("timeout".into()),
        since: Some(FilterTime::Ago(hour)),
        until: Some(FilterTime::In(hour / 6)),
        ..Filter::default()
    };
    assert_eq!(filter, expected);
    assert_eq!(parse_filter(""), Filter::default());
    assert_eq!(parse_filter("  connection  \"reset by peer\" ").text, ["connection", "reset by peer"]);
    assert_eq!(parse_filter("-state:done -x").not, [FilterTerm::State(State::Done), FilterTerm::Text("x".into())]);
    assert_eq!(
        parse_filter(r#"kind:"a b" "a\"b:c""#),
        Filter { kind: Some("a b".into()), text: vec!["a\"b:c".into()], ..Filter::all() }
    );
    let soon = Filter { state: Some(State::Scheduled), until: Some(FilterTime::In(hour / 6)), ..Filter::all() };
    assert_eq!(parse_filter("due<10m"), soon);
    let day = Filter { since: Some(FilterTime::At(from_micros(1_764_547_200_000_000))), ..Filter::all() };
    assert_eq!(parse_filter("since:2025-12-01"), day);
}

#[test]
fn parse_error_points_at_position() {
    assert_eq!(
        parse_error("kind:mail stat:dead"),
        "filter: unknown field \"stat\"; use id, state, queue, kind, tag, priority, args.PATH, error, group, \
         since, until, due<TIME, due>TIME; a word with a colon needs quotes\n  kind:mail stat:dead\n            ^"
    );
    let cases = [
        ("state:ded", 6, "not a state"),
        ("queue: mail", 6, "no value after queue:"),
        ("kind:a kind:b", 7, "given twice"),
        ("error:\"time out", 6, "not closed"),
        ("since:yesterday", 6, "not a time"),
        ("args.:x", 0, "invalid path"),
        ("due:10m", 0, "due<10m"),
        ("priority:urgent", 9, "not a priority"),
        ("a -", 2, "no word after the minus"),
        ("-since:1h", 0, "cannot be negated"),
        ("state:dead due<1h", 11, "selects scheduled jobs"),
        ("tries>3", 0, "only due"),
        ("kind:mail id:c11", 13, "not an id"),
        ("id:7c11 id:7c12", 8, "given twice"),
    ];
    for (text, position, reason) in cases {
        let error = parse_error(text);
        assert!(error.contains(reason), "{error}");
        let caret = error.lines().last().and_then(|line| line.find('^')).expect("a caret");
        assert_eq!(caret, position + 2, "{error}");
    }
    for (text, position) in [("state:dead 6f0c7c11", 11), ("beef", 0), ("kind:mail -2026", 10)] {
        let error = Filter::parse_for_change(text).expect_err(text).to_string();
        let caret = error.lines().last().and_then(|line| line.find('^')).expect("a caret");
        assert!(error.contains("looks like an id") && caret == position + 2, "{error}");
        assert!(text.parse::<Filter>().is_ok(), "a list may search for the word");
    }
    assert!(Filter::parse_for_change("kind:beef \"dead beef\" bee id:7c11 2026-11-18 \"cafe\"").is_ok());
    assert!(parse_error(&"x ".repeat(100)).contains("more than 64"));
    assert!(parse_error(&"x".repeat(5_000)).contains("longer than"));
}

#[test]
fn relative_times_resolve_against_now() {
    let now = from_micros(1_000_000_000_000_000);
    assert_eq!(FilterTime::Ago(Duration::from_secs(60)).resolve(now), now - Duration::from_secs(60));
    assert_eq!(FilterTime::In(Duration::from_secs(60)).resolve(now), now + Duration::from_secs(60));
    assert!(Filter { limit: 7, ..Filter::default() }.is_all() && !parse_filter("x").is_all());
}

fn any_word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "[ -~]{1,12}", "\\PC{1,6}"].prop_filter("not blank", |word| !word.trim().is_empty())
}

fn any_filter_time() -> impl Strategy<Value = FilterTime> {
    prop_oneof![
        (0u64..10_000_000_000).prop_map(|millis| FilterTime::Ago(Duration::from_millis(millis))),
        (0u64..10_000_000_000).prop_map(|millis| FilterTime::In(Duration::from_millis(millis))),
        (0i64..4_000_000_000_000_000).prop_map(|micros| FilterTime::At(from_micros(micros))),
    ]
}

fn any_state() -> impl Strategy<Value = State> {
    proptest::sample::select(State::ALL.to_vec())
}

fn any_id() -> impl Strategy<Value = IdPart> {
    prop_oneof!["[0-9a-f]{4,32}", "…[0-9a-f]{4,32}", "[0-9a-f]{4,16}…[0-9a-f]{0,16}"]
        .prop_map(|text| text.parse().expect("a part of an id"))
}

fn any_term() -> impl Strategy<Value = FilterTerm> {
    prop_oneof![
        any_id().prop_map(FilterTerm::Id),
        any_state().prop_map(FilterTerm::State),
        any_word().prop_map(FilterTerm::Queue),
        any_word().prop_map(FilterTerm::Tag),
        ("[a-z]{1,5}(\\.[a-z0-9]{1,3}){0,2}", any_word()).prop_map(|(path, needle)| FilterTerm::Args(path, needle)),
        any_word().prop_map(FilterTerm::Error),
        any_word().prop_map(FilterTerm::Text),
    ]
}

proptest! {
    #[test]
    fn any_text_parses_or_is_rejected(text in "\\PC{0,60}", odd in "[a-z:\"\\\\<>.+ -]{0,40}") {
        for text in [text, odd] {
            if let Ok(filter) = text.parse::<Filter>() {
                prop_assert_eq!(filter.to_string().parse::<Filter>().expect("its own text"), filter);
            }
        }
    }

    #[test]
    fn filters_survive_their_text(
        (id, queue) in (proptest::option::of(any_id()), proptest::option::of(any_word())),
        (kind, error) in (proptest::option::of(any_word()), proptest::option::of(any_word())),
        state in proptest::option::of(any_state()),
        tags in proptest::collection::vec(any_word(), 0..3),
        text in proptest::collection::vec(any_word(), 0..3),
        not in proptest::collection::vec(any_term(), 0..3),
        (since, until) in (proptest::option::of(any_filter_time()), proptest::option::of(any_filter_time())),
    ) {
        let filter = Filter { id, queue, kind, error, state, tags, text, not, since, until, ..Filter::default() };
        let shown = filter.to_string();
        prop_assert_eq!(Filter::parse_for_change(&shown).expect(&shown), filter.clone());
        prop_assert_eq!(shown.parse::<Filter>().expect(&shown), filter);
    }
}
