//! Parsing of durations as people write them.

use std::time::Duration;

/// Parses a duration such as `500ms`, `90s`, `1h30m`, `7d` or `0`. The error describes the problem.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let signed = parse_span(text).ok_or_else(|| {
        // The text is a duration that is too long if smaller numbers make it parse.
        let mut small = text.replace(|c: char| c.is_ascii_digit(), "1");
        while small.contains("11") {
            small = small.replace("11", "1");
        }
        let problem = if parse_span(&small).is_some() { "too long" } else { "not a duration" };
        format!("{problem}; write 500ms, 90s, 1h30m or 7d")
    })?;
    Duration::try_from(signed).map_err(|_| "negative; write it without the minus".to_owned())
}

fn parse_span(text: &str) -> Option<jiff::SignedDuration> {
    let span: jiff::Span = text.parse().ok()?;
    span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_duration_says_what_is_wrong() {
        for (text, problem) in
            [("99999999d", "too long"), ("1h 99999999999999999999s", "too long"), ("-5m", "negative")]
        {
            assert!(
                parse_duration(text).is_err_and(|error| error.starts_with(problem)),
                "{text}: {:?}",
                parse_duration(text)
            );
        }
        for text in ["", "10", "111111111111", "soon", "5 bananas"] {
            assert!(parse_duration(text).is_err_and(|error| error.starts_with("not a duration")), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_duration_parses_or_is_refused(text in ".*") {
            let _ = parse_duration(&text);
        }

        #[test]
        fn whole_seconds_survive(secs in 0u64..100_000_000) {
            prop_assert_eq!(parse_duration(&format!("{secs}s")).expect("good"), Duration::from_secs(secs));
        }
    }
}
