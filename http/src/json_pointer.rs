//! Locates an error in JSON text, as a JSON pointer (RFC 6901). Pure.

/// Returns the pointer to an error, and its message without line and column.
pub(super) fn locate_error(text: &[u8], error: &serde_json::Error) -> (String, String) {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default().to_owned();
    let before: usize =
        text.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(|l| l.len() + 1).sum();
    let upto = (before + error.column()).min(text.len());
    let parent = pointer_to_end(&text[..upto]);
    // The error of a missing or unknown field names the field, but its position is that of the enclosing object.
    let named = ["missing field", "unknown field"].iter().any(|start| message.starts_with(start));
    match backquoted(&message).filter(|_| named) {
        Some(name) => {
            let within = match parent.rsplit_once('/') {
                Some((within, last)) if message.starts_with("unknown") && last == escape(name) => within,
                _ => &parent,
            };
            (format!("{within}/{}", escape(name)), message.clone())
        }
        None => (parent, message),
    }
}

/// Returns the text between the first two backquotes.
pub(super) fn backquoted(message: &str) -> Option<&str> {
    message.split('`').nth(1)
}

fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A segment of the pointer to the end of a text.
enum Segment {
    /// The last key of an object.
    Key(Option<String>),
    /// An index in a list.
    Item(usize),
}

/// Returns the pointer to the end of a text that is a prefix of valid JSON.
fn pointer_to_end(text: &[u8]) -> String {
    let mut segments: Vec<Segment> = Vec::new();
    let mut pos = 0;
    while let Some(byte) = text.get(pos) {
        match byte {
            b'{' => segments.push(Segment::Key(None)),
            b'[' => segments.push(Segment::Item(0)),
            b'}' | b']' => drop(segments.pop()),
            b',' => match segments.last_mut() {
                Some(Segment::Key(key)) => *key = None,
                Some(Segment::Item(item)) => *item += 1,
                None => {}
            },
            b'"' => {
                let end = string_end(text, pos);
                if let Some(Segment::Key(key @ None)) = segments.last_mut() {
                    *key = serde_json::from_slice(text.get(pos..end).unwrap_or_default()).ok();
                }
                pos = end.saturating_sub(1).max(pos);
            }
            _ => {}
        }
        pos += 1;
    }
    segments.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Key(None) => pointer,
        Segment::Key(Some(key)) => format!("{pointer}/{}", escape(key)),
        Segment::Item(item) => format!("{pointer}/{item}"),
    })
}

/// Returns the position after the string that begins at `start`.
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
    #[allow(dead_code, reason = "only deserialized")]
    struct Job {
        kind: String,
        #[serde(default)]
        tags: Vec<String>,
        #[serde(default)]
        max: u32,
    }

    fn pointer(text: &str) -> String {
        locate_error(text.as_bytes(), &serde_json::from_str::<Job>(text).expect_err("wrong")).0
    }

    #[test]
    fn the_field_at_fault_is_named() {
        assert_eq!(pointer(r#"{"kind": 7}"#), "/kind");
        assert_eq!(pointer(r#"{"kind": "a", "max": -1}"#), "/max");
        assert_eq!(pointer(r#"{"kind": "a", "tags": ["x", 7]}"#), "/tags/1");
        assert_eq!(pointer(r#"{"max": 1}"#), "/kind");
        assert_eq!(pointer("{\"kind\": \"a\",\n \"knid\": 1}"), "/knid");
        assert_eq!(pointer(r#"{"kind": "a", "a/b": 1}"#), "/a~1b");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected(text in ".*") {
            let _ = pointer_to_end(text.as_bytes());
            if let Err(error) = serde_json::from_str::<Job>(&text) {
                let _ = locate_error(text.as_bytes(), &error);
            }
        }
    }
}
