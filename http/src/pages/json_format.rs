//! Formats JSON for reading, token by token: a number of thirty digits stays exact. Pure.

/// The most bytes of a value on a page.
pub(super) const SHOWN_BYTES: usize = 4_000;
/// The most bytes of a value that is shown in full; the raw JSON has the rest.
pub(super) const SHOWN_BYTES_MAX: usize = 256 * 1024;
/// The deepest indented level: a megabyte of brackets would give a terabyte of blanks.
const INDENT_MAX: usize = 24;
/// The values of keys that contain one of these words are masked.
const SECRET_WORDS: [&str; 9] =
    ["password", "passwd", "secret", "token", "authorization", "api_key", "apikey", "private_key", "credential"];

/// A part of the text, with its CSS class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonSpan {
    pub class: &'static str,
    pub text: String,
}

/// A formatted value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FormattedJson {
    pub spans: Vec<JsonSpan>,
    /// The value is longer than the limit.
    pub cut: bool,
    /// A value was masked because of its key.
    pub masked: bool,
}

/// Formats JSON text, or returns other text as it is, up to `bytes_max` bytes.
pub(super) fn format_json(text: &str, bytes_max: usize) -> FormattedJson {
    let mut formatter = JsonFormatter { bytes_max, ..JsonFormatter::default() };
    let mut rest = text.trim();
    while !rest.is_empty() && !formatter.is_full() {
        let (token, after) = rest.split_at(token_len(rest));
        rest = after.trim_start();
        formatter.push_token(token, rest);
    }
    formatter.output.cut = formatter.output.cut || !rest.is_empty();
    formatter.output
}

/// Returns the length of the first token: a bracket, a sign, a string, or a bare word.
fn token_len(text: &str) -> usize {
    let mut chars = text.char_indices();
    match chars.next() {
        None => 0,
        Some((_, '{' | '}' | '[' | ']' | ':' | ',')) => 1,
        Some((_, '"')) => {
            let mut escaped = false;
            for (at, char) in chars {
                match char {
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    '"' => return at + 1,
                    _ => {}
                }
            }
            text.len()
        }
        Some(_) => {
            let ends = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | '[' | ']' | ':' | ',' | '"');
            text.find(ends).unwrap_or(text.len())
        }
    }
}

#[derive(Default)]
struct JsonFormatter {
    output: FormattedJson,
    bytes: usize,
    bytes_max: usize,
    depth: usize,
    /// The next value is a secret.
    hide_next: bool,
    /// The depth at which a masked object or list began.
    hidden_from: Option<usize>,
}

impl JsonFormatter {
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    fn push_token(&mut self, token: &str, rest: &str) {
        match token {
            "{" | "[" => self.open(token, rest),
            "}" | "]" => self.close(token),
            "," => {
                self.write("", ",");
                self.new_line();
            }
            ":" => self.write("", ": "),
            _ if token.starts_with('"') && rest.starts_with(':') => {
                let name = token.to_lowercase();
                self.hide_next = SECRET_WORDS.iter().any(|word| name.contains(word));
                self.write("key", token);
            }
            _ if self.hide_next => {
                self.hide_next = false;
                self.mask();
            }
            _ if token.starts_with('"') => self.write("text", token),
            _ if token.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => self.write("number", token),
            _ => self.write("word", token),
        }
    }

    fn open(&mut self, token: &str, rest: &str) {
        if self.hide_next && self.hidden_from.is_none() {
            self.hide_next = false;
            self.mask();
            self.hidden_from = Some(self.depth);
        }
        self.write("", token);
        self.depth += 1;
        if !rest.starts_with(['}', ']']) {
            self.new_line();
        }
    }

    fn close(&mut self, token: &str) {
        self.depth = self.depth.saturating_sub(1);
        let empty = self.output.spans.last().is_some_and(|span| span.text.ends_with(['{', '[']));
        if !empty {
            self.new_line();
        }
        self.write("", token);
        if self.hidden_from == Some(self.depth) {
            self.hidden_from = None;
        }
    }

    fn mask(&mut self) {
        self.output.masked = true;
        self.write("mask", "••••••");
    }

    fn new_line(&mut self) {
        let indent = "  ".repeat(self.depth.min(INDENT_MAX));
        self.write("", &format!("\n{indent}"));
    }

    fn write(&mut self, class: &'static str, text: &str) {
        if (self.hidden_from.is_some() && class != "mask") || self.is_full() {
            return;
        }
        let mut end = text.len().min(self.bytes_max - self.bytes);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.output.cut |= end < text.len();
        // A character that does not fit ends the text.
        self.bytes = if end < text.len() { self.bytes_max } else { self.bytes + end };
        match self.output.spans.last_mut() {
            Some(last) if last.class == class => last.text.push_str(&text[..end]),
            _ => self.output.spans.push(JsonSpan { class, text: text[..end].to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(json: &str) -> String {
        format_json(json, SHOWN_BYTES).spans.into_iter().map(|span| span.text).collect()
    }

    #[test]
    fn numbers_stay_exact_and_keys_in_their_order() {
        let json = r#"{"z":123456789012345678901234567890,"a":[1.10,-0,1e400],"e":{},"f":[]}"#;
        let shown = "{\n  \"z\": 123456789012345678901234567890,\n  \"a\": [\n    1.10,\n    -0,\n    1e400\n  ],\n  \"e\": {},\n  \"f\": []\n}";
        assert_eq!(text(json), shown);
    }

    #[test]
    fn secrets_of_any_type_are_masked() {
        let json = r#"{"to":"ada","Password":"p1","auth":{"access_token":{"x":["p2"]},"n":1},"api_key":7,"z":2}"#;
        let shown = format_json(json, SHOWN_BYTES);
        assert!(shown.masked);
        let text: String = shown.spans.into_iter().map(|span| span.text).collect();
        assert!(!text.contains("p1") && !text.contains("p2") && !text.contains('7'), "{text}");
        assert!(text.contains("\"n\": 1") && text.contains("\"z\": 2"), "what follows is shown: {text}");
    }

    #[test]
    fn long_values_are_cut() {
        let shown = format_json(&format!("[{}]", "1,".repeat(10_000)), 100);
        assert!(shown.cut && shown.spans.iter().map(|span| span.text.len()).sum::<usize>() <= 100);
        assert!(!format_json("[1,2]", 100).cut);
    }

    proptest! {
        #[test]
        fn any_text_stays_within_its_bounds(json in "[\\PC\\n{}\\[\\]\",:\\\\]*", max in 1usize..200) {
            let shown = format_json(&json, max);
            prop_assert!(shown.spans.iter().map(|span| span.text.len()).sum::<usize>() <= max);
        }

        #[test]
        fn formatted_json_is_the_same_json(numbers in proptest::collection::vec(any::<i64>(), 0..20), word in "[a-z\\\\\"é]*") {
            let value = serde_json::json!({ "numbers": numbers, "w": { "o": word }, "none": null });
            let again: serde_json::Value = serde_json::from_str(&text(&value.to_string())).expect("still JSON");
            prop_assert_eq!(again, value);
        }
    }
}
