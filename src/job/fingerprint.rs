//! Fingerprints of errors: the text without the parts that vary. Pure logic.

/// Maximum length of a fingerprint, in bytes. The beginning of an error identifies it best.
pub(crate) const FINGERPRINT_BYTES_MAX: usize = 200;
/// A run of at least this many hex digits is an id.
const ID_HEX_DIGITS_MIN: usize = 8;

/// Returns the first line of an error with numbers, ids and quoted parts replaced: `user 17 has no 'mailbox'` becomes
/// `user # has no '?'`.
pub(crate) fn compute(error: &str) -> String {
    let line = error.lines().find(|line| !line.trim().is_empty()).unwrap_or("").trim();
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if out.len() >= FINGERPRINT_BYTES_MAX {
            break;
        }
        let consumed = match c {
            '"' | '\'' | '`' => quoted_len(rest, c, &out).inspect(|_| out.extend([c, '?', c])),
            c if c.is_alphanumeric() => {
                let word = leading_word(rest);
                out.push_str(&mask_digits(word));
                Some(word.len())
            }
            c if c.is_whitespace() => {
                out.push(' ');
                Some(rest.len() - rest.trim_start().len())
            }
            _ => None,
        };
        let consumed = consumed.unwrap_or_else(|| {
            out.push(c);
            c.len_utf8()
        });
        rest = &rest[consumed..];
    }
    let mut end = out.len().min(FINGERPRINT_BYTES_MAX);
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    out
}

/// Returns the id of a group, in 16 hex digits. The same kind and fingerprint always give the same id.
pub(crate) fn group_id(kind: &str, fingerprint: &str) -> String {
    let name = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, format!("{kind}\n{fingerprint}").as_bytes());
    let mut text = name.simple().to_string();
    text.truncate(16);
    text
}

/// Returns the length of a quoted part with its quotes; `None` for an apostrophe or an unclosed quote.
fn quoted_len(rest: &str, quote: char, before: &str) -> Option<usize> {
    if quote == '\'' && before.chars().next_back().is_some_and(char::is_alphanumeric) {
        return None;
    }
    rest[1..].find(quote).map(|end| end + 2)
}

/// Returns the leading letters and digits, with the characters that join them into an id, number, version or address.
fn leading_word(rest: &str) -> &str {
    let is_joiner = |c: char| matches!(c, '_' | '-' | '.' | ':');
    let end = rest.find(|c: char| !c.is_alphanumeric() && !is_joiner(c)).unwrap_or(rest.len());
    rest[..end].trim_end_matches(is_joiner)
}

/// Replaces the digits of a word; a word that contains an id becomes `#`.
fn mask_digits(word: &str) -> String {
    let is_id =
        |part: &str| part.len() >= ID_HEX_DIGITS_MIN && part.chars().all(|c| c.is_ascii_hexdigit()) && has_digit(part);
    if word.starts_with("0x") || word.split(['-', ':', '.', '_']).any(is_id) {
        return "#".to_owned();
    }
    let mut out = String::new();
    let mut in_number = false;
    for c in word.chars() {
        let digit = c.is_ascii_digit();
        if !digit {
            out.push(c);
        } else if !in_number {
            out.push('#');
        }
        in_number = digit;
    }
    out
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn variable_parts_are_masked() {
        let same = [
            ("timed out after 30s", "timed out after #s"),
            ("user 17 has no 'mailbox'", "user # has no '?'"),
            ("no row 018f3c2a-7b1d-7e00-8000-1234567890ab in \"orders\"", "no row # in \"?\""),
            ("at 0xdeadbeef: can't happen", "at #: can't happen"),
            ("connect 10.0.0.7:5432 refused\nbacktrace 1", "connect #.#.#.#:# refused"),
            ("  \n  spaces   are one", "spaces are one"),
            ("", ""),
            ("don't \"stop", "don't \"stop"),
        ];
        for (error, fingerprint) in same {
            assert_eq!(compute(error), fingerprint, "{error}");
        }
        assert_eq!(compute("commit 8f14e45fceea167a failed"), compute("commit c9f0f895fb98ab91 failed"));
        assert_ne!(group_id("a", "b"), group_id("b", "a"));
        assert_eq!(group_id("mail", "x").len(), 16);
    }

    proptest! {
        #[test]
        fn any_error_has_a_bounded_fingerprint(error in "\\PC{0,400}", odd in "[a-f0-9'\"`:. -]{0,300}") {
            for error in [error, odd] {
                let fingerprint = compute(&error);
                prop_assert!(fingerprint.len() <= FINGERPRINT_BYTES_MAX && !fingerprint.contains('\n'));
            }
        }

        #[test]
        fn numbers_make_no_difference(a in 0u32..1_000_000, b in 0u32..1_000_000) {
            prop_assert_eq!(compute(&format!("row {a} of {b}")), compute(&format!("row {b} of {a}")));
        }
    }
}
