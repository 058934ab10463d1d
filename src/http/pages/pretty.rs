//! JSON laid out for reading, token by token from its own text: a number of thirty digits stays that number. Pure.

/// As much of a value as a page shows before it is asked for more.
pub(super) const SHOWN_BYTES: usize = 4_000;
/// As much as it shows when asked; the rest is at the raw JSON.
pub(super) const SHOWN_BYTES_MAX: usize = 256 * 1024;
/// Deeper levels are not indented further: a megabyte of brackets would be a terabyte of blanks.
const INDENT_MAX: usize = 24;
/// Values of keys that have one of these words in them are not shown.
const SECRET: [&str; 9] =
    ["password", "passwd", "secret", "token", "authorization", "api_key", "apikey", "private_key", "credential"];

/// A piece of the text, and what it is (the name of a class in the page's style).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub what: &'static str,
    pub text: String,
}

/// A value laid out for reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pretty {
    pub pieces: Vec<Piece>,
    /// There is more.
    pub cut: bool,
    /// Something was not shown because its key sounds like a secret.
    pub masked: bool,
}

/// Lays out JSON text, or any other text as it is, up to so many bytes.
pub(super) fn pretty(text: &str, bytes_max: usize) -> Pretty {
    let mut out = Layout { bytes_max, ..Layout::default() };
    let mut rest = text.trim();
    while !rest.is_empty() && !out.full() {
        let (token, after) = rest.split_at(token_len(rest));
        rest = after.trim_start();
        out.take(token, rest);
    }
    out.done.cut = out.done.cut || !rest.is_empty();
    out.done
}

/// The length of the token that the text begins with: a bracket, a sign, a whole string, or a bare word.
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
struct Layout {
    done: Pretty,
    bytes: usize,
    bytes_max: usize,
    depth: usize,
    /// The value that comes next is a secret.
    hide: bool,
    /// The depth at which a hidden object or list began.
    hidden_from: Option<usize>,
}

impl Layout {
    fn full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    fn take(&mut self, token: &str, rest: &str) {
        match token {
            "{" | "[" => self.open(token, rest),
            "}" | "]" => self.close(token),
            "," => {
                self.put("", ",");
                self.line();
            }
            ":" => self.put("", ": "),
            _ if token.starts_with('"') && rest.starts_with(':') => {
                let name = token.to_lowercase();
                self.hide = SECRET.iter().any(|word| name.contains(word));
                self.put("key", token);
            }
            _ if self.hide => {
                self.hide = false;
                self.mask();
            }
            _ if token.starts_with('"') => self.put("text", token),
            _ if token.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => self.put("number", token),
            _ => self.put("word", token),
        }
    }

    fn open(&mut self, token: &str, rest: &str) {
        if self.hide && self.hidden_from.is_none() {
            self.hide = false;
            self.mask();
            self.hidden_from = Some(self.depth);
        }
        self.put("", token);
        self.depth += 1;
        if !rest.starts_with(['}', ']']) {
            self.line();
        }
    }

    fn close(&mut self, token: &str) {
        self.depth = self.depth.saturating_sub(1);
        let empty = self.done.pieces.last().is_some_and(|piece| piece.text.ends_with(['{', '[']));
        if !empty {
            self.line();
        }
        self.put("", token);
        if self.hidden_from == Some(self.depth) {
            self.hidden_from = None;
        }
    }

    fn mask(&mut self) {
        self.done.masked = true;
        self.put("mask", "••••••");
    }

    fn line(&mut self) {
        let indent = "  ".repeat(self.depth.min(INDENT_MAX));
        self.put("", &format!("\n{indent}"));
    }

    fn put(&mut self, what: &'static str, text: &str) {
        if (self.hidden_from.is_some() && what != "mask") || self.full() {
            return;
        }
        let mut end = text.len().min(self.bytes_max - self.bytes);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.done.cut |= end < text.len();
        // A character that does not fit any more ends the text, too.
        self.bytes = if end < text.len() { self.bytes_max } else { self.bytes + end };
        match self.done.pieces.last_mut() {
            Some(last) if last.what == what => last.text.push_str(&text[..end]),
            _ => self.done.pieces.push(Piece { what, text: text[..end].to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(json: &str) -> String {
        pretty(json, SHOWN_BYTES).pieces.into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn numbers_stay_exact_and_keys_in_their_order() {
        let json = r#"{"z":123456789012345678901234567890,"a":[1.10,-0,1e400],"e":{},"f":[]}"#;
        let shown = "{\n  \"z\": 123456789012345678901234567890,\n  \"a\": [\n    1.10,\n    -0,\n    1e400\n  ],\n  \"e\": {},\n  \"f\": []\n}";
        assert_eq!(text(json), shown);
    }

    #[test]
    fn secrets_are_not_shown_whatever_they_are() {
        let json = r#"{"to":"ada","Password":"p1","auth":{"access_token":{"x":["p2"]},"n":1},"api_key":7,"z":2}"#;
        let shown = pretty(json, SHOWN_BYTES);
        assert!(shown.masked);
        let text: String = shown.pieces.into_iter().map(|piece| piece.text).collect();
        assert!(!text.contains("p1") && !text.contains("p2") && !text.contains('7'), "{text}");
        assert!(text.contains("\"n\": 1") && text.contains("\"z\": 2"), "what follows is shown: {text}");
    }

    #[test]
    fn long_values_are_cut() {
        let shown = pretty(&format!("[{}]", "1,".repeat(10_000)), 100);
        assert!(shown.cut && shown.pieces.iter().map(|piece| piece.text.len()).sum::<usize>() <= 100);
        assert!(!pretty("[1,2]", 100).cut);
    }

    proptest! {
        #[test]
        fn any_text_is_laid_out_within_its_bounds(json in "[\\PC\\n{}\\[\\]\",:\\\\]*", max in 1usize..200) {
            let shown = pretty(&json, max);
            prop_assert!(shown.pieces.iter().map(|piece| piece.text.len()).sum::<usize>() <= max);
        }

        #[test]
        fn laid_out_json_is_the_same_json(numbers in proptest::collection::vec(any::<i64>(), 0..20), word in "[a-z\\\\\"é]*") {
            let value = serde_json::json!({ "numbers": numbers, "w": { "o": word }, "none": null });
            let again: serde_json::Value = serde_json::from_str(&text(&value.to_string())).expect("still JSON");
            prop_assert_eq!(again, value);
        }
    }
}
