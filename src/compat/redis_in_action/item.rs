//! An item of Redis in Action: a JSON array of identifier, queue, name and args, formatted like Python's `json.dumps`.

use serde_json::value::RawValue;

use crate::job::JobId;

/// The fields of an item.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Any text; Redis in Action itself uses UUIDs.
    pub(super) identifier: String,
    pub(super) queue: String,
    pub(super) name: String,
    /// JSON, kept byte for byte.
    pub(super) args: String,
}

impl Item {
    /// Parses an item. The error describes what is wrong with it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Item, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
        let (identifier, queue, name, args) = serde_json::from_str::<(String, String, String, Box<RawValue>)>(text)
            .map_err(|error| format!("not an array of identifier, queue, name and args: {error}"))?;
        // Both become fields of records and parts of keys.
        if name.is_empty() || queue.is_empty() || [&name, &queue].iter().any(|text| text.contains(char::is_control)) {
            return Err("queue and name must not be empty or contain control characters".to_owned());
        }
        Ok(Item { identifier, queue, name, args: args.get().to_owned() })
    }

    /// Returns the job's id: the identifier if it is a UUID, else an id derived from it.
    pub(super) fn job_id(&self) -> JobId {
        self.identifier.parse().unwrap_or_else(|_| JobId::from_name(&self.identifier))
    }

    /// Returns the JSON that Python would write.
    pub(super) fn encode(&self) -> String {
        let quoted = |text: &str| to_python_json(&serde_json::Value::from(text).to_string());
        format!(
            "[{}, {}, {}, {}]",
            quoted(&self.identifier),
            quoted(&self.queue),
            quoted(&self.name),
            to_python_json(&self.args)
        )
    }
}

/// Formats JSON like Python's `json.dumps`: a space after each comma and colon, none elsewhere, ASCII only.
/// Numbers and the order of keys stay unchanged. The text must be valid JSON.
fn to_python_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 16);
    let mut chars = json.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                out.push('"');
                write_string(&mut chars, &mut out);
            }
            ',' | ':' => {
                out.push(c);
                out.push(' ');
            }
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

/// Copies the rest of a string, up to its closing quote.
fn write_string(chars: &mut std::str::Chars<'_>, out: &mut String) {
    while let Some(c) = chars.next() {
        match c {
            '"' => return out.push('"'),
            '\\' => match chars.next() {
                // Python never writes this escape.
                Some('/') => out.push('/'),
                Some('u') => {
                    let code: String = chars.by_ref().take(4).collect();
                    write_utf16_unit(u32::from_str_radix(&code, 16).unwrap_or(0xFFFD), out);
                }
                Some(other) => out.extend(['\\', other]),
                None => return,
            },
            c if c.is_ascii() => out.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| write_utf16_unit(u32::from(*unit), out)),
        }
    }
}

/// Writes one UTF-16 code unit as Python does.
fn write_utf16_unit(unit: u32, out: &mut String) {
    match unit {
        0x08 => out.push_str("\\b"),
        0x09 => out.push_str("\\t"),
        0x0A => out.push_str("\\n"),
        0x0C => out.push_str("\\f"),
        0x0D => out.push_str("\\r"),
        0x22 => out.push_str("\\\""),
        0x5C => out.push_str("\\\\"),
        0x20..=0x7E => out.extend(char::from_u32(unit)),
        other => out.push_str(&format!("\\u{other:04x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoded_item_equals_pythons() {
        // The output of `json.dumps` in Python 3.11.
        let item = Item {
            identifier: "6a1f3c1e-0000-4000-8000-000000000001".into(),
            queue: "mail".into(),
            name: "send".into(),
            args: "[1,{\"b\":[],\"a\":\"gr\\u00fc\\u00DFe \u{1F600} \\/ \u{7f}\"},null, 1.5 ]".into(),
        };
        let python = r#"["6a1f3c1e-0000-4000-8000-000000000001", "mail", "send", [1, {"b": [], "a": "gr\u00fc\u00dfe \ud83d\ude00 / \u007f"}, null, 1.5]]"#;
        assert_eq!(item.encode(), python.replace("\\u007f", "\u{7f}"));
        assert_eq!(Item::parse(python.as_bytes()).expect("an item").job_id().to_string(), item.identifier);
    }

    #[test]
    fn malformed_item_is_rejected() {
        for bytes in [
            &b"{}"[..],
            b"[1,2]",
            b"\xff",
            b"[\"a\", \"q\", \"n\"]",
            b"[\"a\", \"q\", \"n\", [], 5]",
            b"[\"a\",\"q\",\"\\t\",[]]",
        ] {
            assert!(Item::parse(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }

    proptest! {
        #[test]
        fn any_text_round_trips(text in "\\PC{0,40}", key in "\\PC{0,10}") {
            let args = serde_json::json!([{ (key): text }, 123456789012345678u64]);
            let item = Item { identifier: "x".into(), queue: "q".into(), name: "n".into(), args: args.to_string() };
            let bytes = item.encode();
            prop_assert!(bytes.is_ascii());
            let parsed = Item::parse(bytes.as_bytes()).expect("an item");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&parsed.args).expect("JSON"), args);
        }

        #[test]
        fn parsing_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Item::parse(&bytes);
        }
    }
}
