//! Job data is written by others: it must not be able to drive the terminal it is shown on.

use std::borrow::Cow;
use std::fmt::Write;

/// Control characters, and those that turn the direction of text: nothing that a line of text needs.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text with everything visible that could move the cursor, set colours or hide other text.
pub(crate) fn escape_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_unsafe(c) => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// The same for JSON text, which stays JSON with the same meaning.
///
/// Inside strings such characters get an escape; raw line ends can only stand between tokens, where a space will do.
pub(crate) fn escape_json(json: &str, one_line: bool) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' if !one_line => shown.push(c),
            '\n' | '\r' | '\t' => shown.push(' '),
            c if is_unsafe(c) => {
                let _ = write!(shown, "\\u{:04x}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    shown
}

/// The first `max` characters, with a sign that there was more.
pub(crate) fn truncate(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_made_safe(text in any::<String>()) {
            prop_assert!(!escape_text(&text).contains(is_unsafe));
        }

        #[test]
        fn any_json_text_keeps_its_meaning(text in any::<String>()) {
            let json = serde_json::to_string(&text).expect("json");
            let shown = escape_json(&json, true);
            prop_assert!(!shown.contains(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).expect("json"), text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let shown = escape_text("a\u{1b}[31mred\u{7}\n\u{9b}2J\u{202e}z");
        assert_eq!(shown, "a\\u{1b}[31mred\\u{7}\\n\\u{9b}2J\\u{202e}z");
        assert!(matches!(escape_text("plain äöü"), Cow::Borrowed(_)));
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let json = "{\"a\":\n\t\"x\u{7f}\u{9b}y\"}";
        let shown = escape_json(json, true);
        assert_eq!(shown, "{\"a\":  \"x\\u007f\\u009by\"}");
        let (before, after): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(json).expect("json"), serde_json::from_str(&shown).expect("json"));
        assert_eq!(before, after);
    }

    #[test]
    fn truncate_cuts_at_char_boundary() {
        assert_eq!(truncate("äöü", 2), "äö…");
        assert_eq!(truncate("äöü", 3), "äöü");
    }
}
