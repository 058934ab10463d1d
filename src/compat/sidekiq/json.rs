//! JSON formatted like Ruby's, so that `JSON.generate(JSON.parse(text))` returns the same bytes.
//!
//! Sidekiq finds a member of a set by the JSON it generates from the parsed job: one extra space makes it another
//! member.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Ruby parses at most 100 levels, and the job itself takes two.
const DEPTH_MAX: usize = 98;

/// The fields of a job in their order, each with its original JSON text.
pub(super) struct JsonObject<'t>(Vec<(Cow<'t, str>, &'t RawValue)>);

impl<'t> JsonObject<'t> {
    /// Parses a JSON object.
    pub(super) fn parse(text: &'t str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns the JSON text of a field. If the name occurs twice, the last one counts, as in Ruby.
    pub(super) fn raw(&self, name: &str) -> Option<&'t str> {
        self.0.iter().rev().find(|(field, _)| field == name).map(|(_, value)| value.get())
    }

    /// Returns a field as this type, if it can be converted.
    pub(super) fn get<T: Deserialize<'t>>(&self, name: &str) -> Option<T> {
        self.raw(name).and_then(|text| serde_json::from_str(text).ok())
    }

    /// Returns all fields but these, formatted like Ruby's; a value that Ruby cannot parse stays unchanged.
    pub(super) fn rewrite(&self, without: &[&str]) -> Vec<(String, String)> {
        let mut fields: Vec<(String, String)> = Vec::with_capacity(self.0.len());
        for (name, value) in &self.0 {
            if !without.contains(&&**name) {
                set_field(&mut fields, name, normalize(value.get()).unwrap_or_else(|_| value.get().to_owned()));
            }
        }
        fields
    }
}

/// Replaces a field, or appends it.
pub(super) fn set_field(fields: &mut Vec<(String, String)>, name: &str, text: String) {
    match fields.iter_mut().find(|(field, _)| field == name) {
        Some((_, value)) => *value = text,
        None => fields.push((name.to_owned(), text)),
    }
}

/// Returns the fields as a JSON object.
pub(super) fn encode_object(fields: &[(String, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, text)| format!("{}:{text}", encode_string(name))).collect();
    format!("{{{}}}", fields.join(","))
}

/// Returns a JSON string with its quotes.
pub(super) fn encode_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl<'de> Deserialize<'de> for JsonObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = JsonObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(16);
                while let Some(field) = map.next_entry::<FieldName<'de>, &'de RawValue>()? {
                    fields.push((field.0.0, field.1));
                }
                Ok(JsonObject(fields))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// The name of a field, borrowed unless it contains an escape.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct FieldName<'t>(#[serde(borrow)] Cow<'t, str>);

/// Formats seconds like Ruby, with a fraction: it distinguishes them from milliseconds in every version of Sidekiq.
pub(super) fn encode_seconds(micros: i64) -> String {
    encode_float(micros as f64 / 1_000_000.0)
}

/// Formats a float like Ruby: without an exponent if it has a fraction, or at most 15 digits before the point.
///
/// Versions of Ruby differ for floats with an exponent: the gem json 3.1.0 writes `1e+20` and `0.00001`.
pub(super) fn encode_float(number: f64) -> String {
    let plain = format!("{number:?}");
    let (size, text) = (number.abs(), plain.as_str());
    if size == 0.0 || (1e-4..1e15).contains(&size) || (size > 1.0 && number.fract() != 0.0) {
        return if text.contains('e') { format!("{number:.1}") } else { plain };
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = if digits.contains('.') { digits.to_owned() } else { format!("{digits}.0") };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Returns JSON as Ruby would generate it after parsing. The error describes JSON that Ruby cannot parse.
pub(super) fn normalize(text: &str) -> Result<String, String> {
    let mut writer = Normalizer { text, position: 0, out: String::with_capacity(text.len()) };
    writer.write_value(0)?;
    Ok(writer.out)
}

/// Rewrites a text that should be valid JSON.
struct Normalizer<'t> {
    text: &'t str,
    position: usize,
    out: String,
}

impl Normalizer<'_> {
    fn skip_whitespace_and_peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while bytes.get(self.position).is_some_and(u8::is_ascii_whitespace) {
            self.position += 1;
        }
        bytes.get(self.position).copied().unwrap_or(0)
    }

    fn write_value(&mut self, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX} levels, which Ruby cannot parse"));
        }
        match self.skip_whitespace_and_peek() {
            b'{' => self.write_object(depth),
            b'[' => self.write_array(depth),
            b'"' => {
                let text = self.read_string()?;
                self.out.push_str(&encode_string(&text));
                Ok(())
            }
            0 => Err("ends too early".to_owned()),
            _ => self.write_scalar(),
        }
    }

    fn write_array(&mut self, depth: usize) -> Result<(), String> {
        self.position += 1;
        self.out.push('[');
        let mut first = true;
        while self.skip_whitespace_and_peek() != b']' {
            if !first {
                self.position += 1;
                self.out.push(',');
            }
            first = false;
            self.write_value(depth + 1)?;
        }
        self.position += 1;
        self.out.push(']');
        Ok(())
    }

    /// If a name occurs twice, Ruby keeps the position of the first and the value of the last.
    fn write_object(&mut self, depth: usize) -> Result<(), String> {
        self.position += 1;
        let (mut fields, mut indexes): (Vec<(String, String)>, HashMap<String, usize>) = Default::default();
        while self.skip_whitespace_and_peek() != b'}' {
            if !fields.is_empty() || !indexes.is_empty() {
                self.position += 1;
                self.skip_whitespace_and_peek();
            }
            let name = self.read_string()?;
            self.skip_whitespace_and_peek();
            self.position += 1;
            let before = std::mem::take(&mut self.out);
            self.write_value(depth + 1)?;
            let value = std::mem::replace(&mut self.out, before);
            match indexes.get(&name) {
                Some(index) => fields[*index].1 = value,
                None => {
                    indexes.insert(name.clone(), fields.len());
                    fields.push((name, value));
                }
            }
        }
        self.position += 1;
        self.out.push_str(&encode_object(&fields));
        Ok(())
    }

    fn read_string(&mut self) -> Result<String, String> {
        let (start, bytes) = (self.position, self.text.as_bytes());
        let mut end = start + 1;
        while bytes.get(end).is_some_and(|byte| *byte != b'"') {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.position = (end + 1).min(self.text.len());
        let text = self.text.get(start..self.position).ok_or("a string ends in the middle of a character")?;
        serde_json::from_str(text).map_err(|error| format!("has a string that Ruby cannot represent: {error}"))
    }

    fn write_scalar(&mut self) -> Result<(), String> {
        let (start, bytes) = (self.position, self.text.as_bytes());
        while bytes.get(self.position).is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)) {
            self.position += 1;
        }
        // In invalid JSON, the position may be inside a character.
        let text = self.text.get(start..self.position).unwrap_or_default();
        match text {
            "" => return Err("not JSON".to_owned()),
            "true" | "false" | "null" => self.out.push_str(text),
            "-0" => self.out.push('0'),
            whole if !whole.contains(['.', 'e', 'E']) => self.out.push_str(whole),
            fraction => match fraction.parse::<f64>() {
                Ok(number) if number.is_finite() => self.out.push_str(&encode_float(number)),
                _ => return Err(format!("{fraction} is a number that Ruby cannot represent")),
            },
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn normalized_json_equals_rubys() {
        let assert_unchanged = |text: &str| assert_eq!(normalize(text).expect("valid"), text);
        assert_unchanged(
            r#"{"a":[1,2.5,"é / \" \\ \n \u0001"],"b":{},"c":[],"d":null,"e":123456789012345678901234567890}"#,
        );
        let assert_ruby = |text: &str, ruby: &str| assert_eq!(normalize(text).expect("valid"), ruby);
        assert_ruby(" { \"a\" : 1 , \"b\" : [ ] } ", r#"{"a":1,"b":[]}"#);
        assert_ruby(r#""\u00e9\/""#, "\"é/\"");
        assert_ruby("1e20", "1.0e+20");
        assert_ruby("1E2", "100.0");
        assert_ruby("1e-7", "1.0e-07");
        assert_ruby("0.0001", "0.0001");
        assert_ruby("-0.0", "-0.0");
        assert_ruby("1e15", "1.0e+15");
        assert_ruby("1234567890123456.0", "1.234567890123456e+15");
        assert_unchanged("1234567890123456.5");
        assert_unchanged("999999999999999.0");
        assert_ruby("123456789.0e8", "1.23456789e+16");
        assert_ruby(r#"{"b":1,"a":[{},[]],"b":2}"#, r#"{"b":2,"a":[{},[]]}"#);
        assert!(normalize("1e400").is_err() && normalize(r#""\ud800""#).is_err());
        assert!(normalize(&"[".repeat(200)).is_err());
        assert!(normalize("[A\u{bc6}").is_err(), "invalid, and cut inside a character");
    }

    #[test]
    fn encoded_seconds_have_a_fraction() {
        assert_eq!(encode_seconds(1_794_765_574_492_900), "1794765574.4929");
        assert_eq!(encode_seconds(1_794_765_574_000_000), "1794765574.0");
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in "\\PC*") {
            let _ = normalize(&text);
            let _ = JsonObject::parse(&text);
        }

        #[test]
        fn normalizing_is_idempotent(text in r#"[\[\]{}",:0-9.eE a\\u-]{0,40}"#) {
            if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() && let Ok(once) = normalize(&text) {
                prop_assert_eq!(normalize(&once).expect("valid"), once);
            }
        }

        #[test]
        fn floats_round_trip(number in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
            prop_assert_eq!(encode_float(number).parse::<f64>().expect("a number"), number);
        }
    }
}
