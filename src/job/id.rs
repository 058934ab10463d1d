//! The id of a job, and a part of it, as people copy it from a list.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;
use crate::uuid_id::uuid_id;

/// Fewest digits of a part: fewer would match jobs by chance.
pub const ID_PART_DIGITS_MIN: usize = 4;
/// The digits of a whole id.
const ID_DIGITS: usize = 32;
/// The shape of an id, in which `x` stands for any digit.
const ID_SHAPE: &str = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

/// The id of a job. The pusher chooses it, so that a push can be repeated safely.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);
uuid_id!(JobId);

impl JobId {
    /// Returns the id derived from a name of your own, such as `"invoice:7"`. The same name always gives the same id.
    ///
    /// A push with such an id is idempotent without storing the id anywhere.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::JobId::from_name("invoice:7"), duly::JobId::from_name("invoice:7"));
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        const NAMESPACE: Uuid = Uuid::from_u128(0x6475_6c79_0000_5000_8000_6a6f_6220_6964);
        JobId(Uuid::new_v5(&NAMESPACE, name.as_bytes()))
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Uuid::parse_str(text).map(JobId).map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            Error::invalid("id", format!("{shown:?} is not a job id; use the UUID that the push returned"))
        })
    }
}

/// The beginning or the end of a job's id: at least 4 hexadecimal digits. `…` stands for the digits left out.
///
/// Ids begin with the time of their push, so the end distinguishes jobs better.
///
/// # Examples
///
/// ```
/// use duly::{JobId, job::IdPart};
///
/// let id: JobId = "0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c11".parse()?;
/// for text in ["7c11", "0198F7A1", "0198f7a1-5a3c", "…6f0c7c11", "0198f7a1…7c11"] {
///     assert!(text.parse::<IdPart>()?.matches(id), "{text}");
/// }
/// assert!(!"5a3c".parse::<IdPart>()?.matches(id), "neither the beginning nor the end");
/// assert!("c11".parse::<IdPart>().is_err(), "too short");
/// # Ok::<_, duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPart {
    start: Digits,
    end: Digits,
    /// One of the two must match; otherwise both.
    is_either: bool,
}

/// Some hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digits {
    value: u128,
    len: usize,
}

impl Digits {
    const NONE: Digits = Digits { value: 0, len: 0 };

    fn parse(digits: &str) -> Option<Digits> {
        match digits.len() {
            0 => Some(Digits::NONE),
            len @ 1..=ID_DIGITS => Some(Digits { value: u128::from_str_radix(digits, 16).ok()?, len }),
            _ => None,
        }
    }

    /// Returns the number of bits of an id besides these digits.
    fn other_bits(self) -> u32 {
        128 - 4 * self.len as u32
    }
}

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len == 0 { Ok(()) } else { write!(f, "{:0len$x}", self.value, len = self.len) }
    }
}

impl IdPart {
    /// Returns whether the id has this part.
    #[must_use]
    pub fn matches(&self, id: JobId) -> bool {
        let id = u128::from_be_bytes(*id.as_bytes());
        let starts = self.start.len == 0 || id >> self.start.other_bits() == self.start.value;
        let ends = self.end.len == 0 || id & (u128::MAX >> self.end.other_bits()) == self.end.value;
        if self.is_either { starts || ends } else { starts && ends }
    }

    /// Returns whether a word looks like an id or a part of one, even if it is mistyped.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::job::IdPart;
    ///
    /// assert!(IdPart::is_id_like("beef") && IdPart::is_id_like("0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c1"));
    /// assert!(!IdPart::is_id_like("mail") && !IdPart::is_id_like("2026-11-18"));
    /// ```
    #[must_use]
    pub fn is_id_like(word: &str) -> bool {
        let has_digits_only = word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let has_hyphens_of_id = word.find('-') == Some(8) || word.matches('-').count() == 4;
        let is_long = word.len() >= ID_PART_DIGITS_MIN && !word.contains('-');
        word.parse::<IdPart>().is_ok() || (has_digits_only && (is_long || has_hyphens_of_id))
    }

    /// Returns the id if this is a whole one.
    #[must_use]
    pub fn as_whole(&self) -> Option<JobId> {
        (self.start.len == ID_DIGITS).then(|| JobId::from_bytes(self.start.value.to_be_bytes()))
    }

    /// Returns whether jobs can only be found by the end of their ids, for which no store has an index.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn needs_scan(&self) -> bool {
        self.start.len == 0 || (self.is_either && self.start.len < ID_DIGITS)
    }

    /// Returns the smallest and the largest id with the beginning; `None` if any beginning matches.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn start_range(&self) -> Option<(JobId, JobId)> {
        let bits = self.start.other_bits();
        let first = self.start.value.checked_shl(bits)?;
        let rest = 1u128.checked_shl(bits)? - 1;
        Some((JobId::from_bytes(first.to_be_bytes()), JobId::from_bytes((first | rest).to_be_bytes())))
    }

    /// Returns the bytes that a matching id begins with, and those it ends with. A half byte is left out.
    #[cfg(feature = "redis")]
    pub(crate) fn whole_bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let half_bits = 4 * (self.start.len as u32 % 2);
        let start = (self.start.value >> half_bits).to_be_bytes();
        let end = self.end.value.to_be_bytes();
        (start[16 - self.start.len / 2..].to_vec(), end[16 - self.end.len / 2..].to_vec())
    }

    /// Returns whether a beginning and an end are two alternatives.
    #[cfg(feature = "redis")]
    pub(crate) fn is_either(&self) -> bool {
        self.is_either
    }
}

impl From<JobId> for IdPart {
    fn from(id: JobId) -> Self {
        let digits = Digits { value: u128::from_be_bytes(*id.as_bytes()), len: ID_DIGITS };
        IdPart { start: digits, end: digits, is_either: true }
    }
}

impl fmt::Display for IdPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_either, self.as_whole()) {
            (_, Some(id)) => id.fmt(f),
            (true, None) => self.start.fmt(f),
            (false, None) => write!(f, "{}…{}", self.start, self.end),
        }
    }
}

impl FromStr for IdPart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            Error::invalid(
                "id",
                format!(
                    "{shown:?} is not the id of a job; use the UUID that the push returned, or {ID_PART_DIGITS_MIN} or more digits of its beginning or end"
                ),
            )
        })
    }
}

fn parse(text: &str) -> Option<IdPart> {
    let (start, end, is_either) = match text.split_once('…') {
        Some((start, end)) => (parse_digits(start, true)?, parse_digits(end, false)?, false),
        None => match (parse_digits(text, true), parse_digits(text, false)) {
            (Some(start), Some(end)) => (start, end, true),
            (Some(start), None) => (start, Digits::NONE, false),
            (None, end) => (Digits::NONE, end?, false),
        },
    };
    let len = if is_either { start.len } else { start.len + end.len };
    (ID_PART_DIGITS_MIN..=ID_DIGITS).contains(&len).then_some(IdPart { start, end, is_either })
}

/// Returns the digits of the beginning or the end of an id. Hyphens may be left out, but not be at other places.
fn parse_digits(text: &str, is_start: bool) -> Option<Digits> {
    let is_hex = |byte: u8| byte.is_ascii_hexdigit();
    if text.contains('-') {
        let shape = match is_start {
            true => ID_SHAPE.get(..text.len())?,
            false => ID_SHAPE.get(ID_SHAPE.len().checked_sub(text.len())?..)?,
        };
        let fits = |(byte, shape): (u8, u8)| if shape == b'-' { byte == b'-' } else { is_hex(byte) };
        text.bytes().zip(shape.bytes()).all(fits).then_some(())?;
    } else {
        text.bytes().all(is_hex).then_some(())?;
    }
    Digits::parse(&text.replace('-', ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_of_an_id_match_it_and_round_trip(bytes in any::<[u8; 16]>(), cut in 4usize..=36, upper: bool) {
            let id = JobId::from_bytes(bytes);
            let text = if upper { id.to_string().to_uppercase() } else { id.to_string() };
            let plain = text.replace('-', "");
            let plain_cut = cut.min(plain.len());
            let parts = [&text[..cut], &text[text.len() - cut..], &plain[..plain_cut], &plain[plain.len() - plain_cut..]];
            for text in parts.into_iter().filter(|text| text.replace('-', "").len() >= ID_PART_DIGITS_MIN) {
                let part: IdPart = text.parse().expect(text);
                prop_assert!(part.matches(id), "{}", text);
                prop_assert!(part.start_range().is_none_or(|(from, to)| part.is_either || (from <= id && id <= to)));
                prop_assert_eq!(part.to_string().parse::<IdPart>().expect("its own text"), part);
            }
            prop_assert_eq!(text.parse::<IdPart>().expect("whole").as_whole(), Some(id));
        }

        #[test]
        fn parsing_any_text_does_not_panic(text in ".*") {
            let _ = (text.parse::<IdPart>(), IdPart::is_id_like(&text));
        }
    }

    #[test]
    fn mistyped_id_is_like_an_id() {
        let id = JobId::fresh().to_string();
        for word in [&id[..], &id[..35], &id[..13], &id[..4], &id[32..], &id.replace('-', ""), "beef", "…7c11"] {
            assert!(IdPart::is_id_like(word), "{word}");
        }
        for word in ["bee", "kind:mail", "2026-11-18", "a-b-c-d-no", "", "…"] {
            assert!(!IdPart::is_id_like(word), "{word}");
        }
    }
}
