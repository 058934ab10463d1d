//! The depth of nested JSON. Deep text breaks readers with a limit, together with all other jobs in one response.

use crate::error::{Error, Result};

/// Maximum depth of nested objects and lists in args and results.
pub const JSON_DEPTH_MAX: usize = 64;

/// Returns an error about `field` if JSON text is nested too deep.
pub(crate) fn check_depth(field: &'static str, json: &str) -> Result<()> {
    match nesting_depth(json.as_bytes()) {
        ..=JSON_DEPTH_MAX => Ok(()),
        depth => {
            Err(Error::invalid(field, format!("nested {depth} levels deep; at most {JSON_DEPTH_MAX} are allowed")))
        }
    }
}

/// Returns how deep JSON text is nested, by its brackets.
#[doc(hidden)]
#[must_use]
pub fn nesting_depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested_lists(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn only_json_beyond_the_maximum_depth_is_rejected() {
        assert!(check_depth("args", &nested_lists(JSON_DEPTH_MAX)).is_ok());
        assert!(check_depth("args", &nested_lists(JSON_DEPTH_MAX + 1)).is_err());
        assert!(check_depth("args", &format!("{:?}", "\"[".repeat(100))).is_ok(), "brackets in strings do not count");
        assert!(check_depth("args", &format!("[{}]", vec!["[]"; 100].join(","))).is_ok(), "nor do lists side by side");
    }
}
