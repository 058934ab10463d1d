//! From a jid to an id, and back where that can be.
//!
//! Ruby's jids are 24 hexadecimal digits: 96 bits, which fit into a UUID of version 8 behind a tag that says what they are.
//! A UUID that is none of those is its own jid, as its text: so an id that duly has printed is found in Sidekiq Web.
//! Whatever else somebody calls a job goes by its digest, which does not lead back.

use sha2::{Digest, Sha256};

use crate::job::JobId;

/// How the ids begin that stand for a jid.
const TAG: u128 = 0x51de41;
const DIGITS: usize = 24;

/// What the 96 bits are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bits {
    Jid = 0,
    Digest = 1,
}

/// The id of a job with this jid.
pub(super) fn of_jid(jid: &str) -> JobId {
    let lower_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if jid.len() == DIGITS && jid.bytes().all(lower_hex) {
        return pack(Bits::Jid, u128::from_str_radix(jid, 16).unwrap_or(0));
    }
    match jid.parse::<JobId>() {
        Ok(id) if id.to_string() == jid && unpack(id).is_none() => id,
        _ => of_bytes(jid.as_bytes()),
    }
}

/// The id of an entry that has no jid: that of its bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> JobId {
    let digest = Sha256::digest(bytes);
    let bits = digest.iter().take(12).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    pack(Bits::Digest, bits)
}

/// The jid of this id; `None` if only its digest is known.
pub(super) fn jid(id: JobId) -> Option<String> {
    match unpack(id) {
        None => Some(id.to_string()),
        Some((Bits::Jid, bits)) => Some(format!("{bits:024x}")),
        Some((Bits::Digest, _)) => None,
    }
}

/// Whether duly has made this id, or its user has: it stands for no jid of Ruby's.
pub(super) fn is_own(id: JobId) -> bool {
    unpack(id).is_none()
}

// 24 bits of tag, 2 that say what follows, 22 bits, version, 12 bits, variant, 62 bits.
fn pack(what: Bits, bits: u128) -> JobId {
    let high = TAG << 24 | (what as u128) << 22 | bits >> 74;
    let (middle, low) = (bits >> 62 & 0xfff, bits & ((1 << 62) - 1));
    JobId::from_bytes((high << 80 | 8 << 76 | middle << 64 | 0b10 << 62 | low).to_be_bytes())
}

fn unpack(id: JobId) -> Option<(Bits, u128)> {
    let all = u128::from_be_bytes(*id.as_bytes());
    let high = all >> 80;
    let what = match high >> 22 & 0b11 {
        0 => Bits::Jid,
        1 => Bits::Digest,
        _ => return None,
    };
    let bits = (high & ((1 << 22) - 1)) << 74 | (all >> 64 & 0xfff) << 62 | all & ((1 << 62) - 1);
    // One that only begins as ours do is a stranger's.
    (high >> 24 == TAG && pack(what, bits) == id).then_some((what, bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_jid_survives(text in "[0-9a-f]{24}") {
            let id = of_jid(&text);
            prop_assert_eq!(jid(id), Some(text));
            prop_assert_eq!(of_jid(&jid(id).expect("has one")), id);
        }

        #[test]
        fn an_id_survives(bytes in any::<[u8; 16]>()) {
            let id = JobId::from_bytes(bytes);
            prop_assert_eq!(jid(id).map(|jid| of_jid(&jid)), Some(id));
        }

        #[test]
        fn any_other_text_has_an_id(text in "\\PC{0,40}") {
            prop_assert_eq!(of_jid(&text), of_jid(&text));
        }
    }

    #[test]
    fn a_uuid_that_looks_like_one_of_ours_is_no_other() {
        let ours = of_jid("000000000000000000000001");
        assert_ne!(of_jid(&ours.to_string()), ours);
        assert_eq!(jid(of_jid("my job")), None);
        assert_ne!(of_jid("my job"), of_jid("my other job"));
    }
}
