//! Escapes job data: it is untrusted and must not control the terminal that shows it.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns true for control characters and characters that change the direction of text.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes every character that could move the cursor, set colours or hide other text.
pub(crate) fn escape_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if is_unsafe(c) => {
                let _ = write!(escaped, "\\u{{{:x}}}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Escapes JSON text without changing its value.
///
/// Unsafe characters inside strings become JSON escapes. Raw line ends occur only between tokens and become spaces.
pub(crate) fn escape_json(json: &str, one_line: bool) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' if !one_line => escaped.push(c),
            '\n' | '\r' | '\t' => escaped.push(' '),
            c if is_unsafe(c) => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns the first `max` characters, with an ellipsis if there are more.
pub(crate) fn truncate(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((index, _)) => format!("{}…", &text[..index]),
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
            let escaped = escape_json(&json, true);
            prop_assert!(!escaped.contains(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).expect("json"), text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let escaped = escape_text("a\u{1b}[31mred\u{7}\n\u{9b}2J\u{202e}z");
        assert_eq!(escaped, "a\\u{1b}[31mred\\u{7}\\n\\u{9b}2J\\u{202e}z");
        assert!(matches!(escape_text("plain äöü"), Cow::Borrowed(_)));
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let json = "{\"a\":\n\t\"x\u{7f}\u{9b}y\"}";
        let escaped = escape_json(json, true);
        assert_eq!(escaped, "{\"a\":  \"x\\u007f\\u009by\"}");
        let (before, after): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(json).expect("json"), serde_json::from_str(&escaped).expect("json"));
        assert_eq!(before, after);
    }

    #[test]
    fn truncate_cuts_at_char_boundary() {
        assert_eq!(truncate("äöü", 2), "äö…");
        assert_eq!(truncate("äöü", 3), "äöü");
    }
}
