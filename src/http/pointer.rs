//! Where in a JSON text something is wrong, as a JSON pointer (RFC 6901). Pure.

/// How deep a text is nested, as far as its brackets tell.
pub(super) fn depth(text: &[u8]) -> usize {
    let (mut deep, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                deep += 1;
                deepest = deepest.max(deep);
            }
            b']' | b'}' if !quoted => deep = deep.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The place of an error, and what it says without line and column.
pub(super) fn of(text: &[u8], error: &serde_json::Error) -> (String, String) {
    let said = error.to_string();
    let said = said.split(" at line ").next().unwrap_or_default().to_owned();
    let before: usize =
        text.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(|l| l.len() + 1).sum();
    let upto = (before + error.column()).min(text.len());
    let parent = at(&text[..upto]);
    // A field that is missing or unknown is named, but the place is that of what it should be in.
    let named = ["missing field", "unknown field"].iter().any(|start| said.starts_with(start));
    match quoted(&said).filter(|_| named) {
        Some(name) => {
            let within = match parent.rsplit_once('/') {
                Some((within, last)) if said.starts_with("unknown") && last == escape(name) => within,
                _ => &parent,
            };
            (format!("{within}/{}", escape(name)), said.clone())
        }
        None => (parent, said),
    }
}

/// What stands between the first two backticks.
pub(super) fn quoted(said: &str) -> Option<&str> {
    said.split('`').nth(1)
}

fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A part of the way to where a text ends.
enum Step {
    /// In an object, at this key so far.
    Key(Option<String>),
    /// In a list, at this place.
    Item(usize),
}

/// The place at which a text ends that is valid JSON so far.
fn at(text: &[u8]) -> String {
    let mut way: Vec<Step> = Vec::new();
    let mut pos = 0;
    while let Some(byte) = text.get(pos) {
        match byte {
            b'{' => way.push(Step::Key(None)),
            b'[' => way.push(Step::Item(0)),
            b'}' | b']' => drop(way.pop()),
            b',' => match way.last_mut() {
                Some(Step::Key(key)) => *key = None,
                Some(Step::Item(item)) => *item += 1,
                None => {}
            },
            b'"' => {
                let end = string_end(text, pos);
                if let Some(Step::Key(key @ None)) = way.last_mut() {
                    *key = serde_json::from_slice(text.get(pos..end).unwrap_or_default()).ok();
                }
                pos = end.saturating_sub(1).max(pos);
            }
            _ => {}
        }
        pos += 1;
    }
    way.iter().fold(String::new(), |pointer, step| match step {
        Step::Key(None) => pointer,
        Step::Key(Some(key)) => format!("{pointer}/{}", escape(key)),
        Step::Item(item) => format!("{pointer}/{item}"),
    })
}

/// The place behind a string that begins here.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut pos = start + 1;
    while let Some(byte) = text.get(pos) {
        match byte {
            b'\\' => pos += 2,
            b'"' => return pos + 1,
            _ => pos += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Job {
        kind: String,
        #[serde(default)]
        tags: Vec<String>,
        #[serde(default)]
        max: u32,
    }

    fn place(text: &str) -> String {
        of(text.as_bytes(), &serde_json::from_str::<Job>(text).expect_err("wrong")).0
    }

    #[test]
    fn the_field_at_fault_is_named() {
        assert_eq!(place(r#"{"kind": 7}"#), "/kind");
        assert_eq!(place(r#"{"kind": "a", "max": -1}"#), "/max");
        assert_eq!(place(r#"{"kind": "a", "tags": ["x", 7]}"#), "/tags/1");
        assert_eq!(place(r#"{"max": 1}"#), "/kind");
        assert_eq!(place("{\"kind\": \"a\",\n \"knid\": 1}"), "/knid");
        assert_eq!(place(r#"{"kind": "a", "a/b": 1}"#), "/a~1b");
    }

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(depth(br#"{"a": "[[[", "b": ["\"[", [1]]}"#), 3);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = (depth(text.as_bytes()), at(text.as_bytes()));
            if let Err(error) = serde_json::from_str::<Job>(&text) {
                let _ = of(text.as_bytes(), &error);
            }
        }
    }
}
