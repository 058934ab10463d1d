//! From a jid to an id, and back where that can be.
//!
//! Ruby's jids are 24 hexadecimal digits: 96 bits, which fit into a UUID of version 8 behind a tag that says what they are.
//! A UUID that is none of those is its own jid, as its text: so an id that duly has printed is found in Sidekiq Web.
//! Whatever else somebody calls a job goes by its digest, which does not lead back.

use sha2::{Digest, Sha256};

use crate::job::JobId;

/// How the ids begin that stand for a jid.
const JID_TAG: u128 = 0x51de41;
const JID_DIGITS: usize = 24;

/// What the 96 bits are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IdSource {
    Jid = 0,
    Digest = 1,
}

/// The id of a job with this jid.
pub(super) fn id_from_jid(jid: &str) -> JobId {
    let lower_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if jid.len() == JID_DIGITS && jid.bytes().all(lower_hex) {
        return pack(IdSource::Jid, u128::from_str_radix(jid, 16).unwrap_or(0));
    }
    match jid.parse::<JobId>() {
        Ok(id) if id.to_string() == jid && unpack(id).is_none() => id,
        _ => id_from_bytes(jid.as_bytes()),
    }
}

/// The id of an entry that has no jid: that of its bytes.
pub(super) fn id_from_bytes(bytes: &[u8]) -> JobId {
    let digest = Sha256::digest(bytes);
    let bits = digest.iter().take(12).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    pack(IdSource::Digest, bits)
}

/// The jid of this id; `None` if only its digest is known.
pub(super) fn jid_from_id(id: JobId) -> Option<String> {
    match unpack(id) {
        None => Some(id.to_string()),
        Some((IdSource::Jid, bits)) => Some(format!("{bits:024x}")),
        Some((IdSource::Digest, _)) => None,
    }
}

/// Whether duly has made this id, or its user has: it stands for no jid of Ruby's.
pub(super) fn is_duly_id(id: JobId) -> bool {
    unpack(id).is_none()
}

// 24 bits of tag, 2 that say what follows, 22 bits, version, 12 bits, variant, 62 bits.
fn pack(what: IdSource, bits: u128) -> JobId {
    let high = JID_TAG << 24 | (what as u128) << 22 | bits >> 74;
    let (middle, low) = (bits >> 62 & 0xfff, bits & ((1 << 62) - 1));
    JobId::from_bytes((high << 80 | 8 << 76 | middle << 64 | 0b10 << 62 | low).to_be_bytes())
}

fn unpack(id: JobId) -> Option<(IdSource, u128)> {
    let all = u128::from_be_bytes(*id.as_bytes());
    let high = all >> 80;
    let what = match high >> 22 & 0b11 {
        0 => IdSource::Jid,
        1 => IdSource::Digest,
        _ => return None,
    };
    let bits = (high & ((1 << 22) - 1)) << 74 | (all >> 64 & 0xfff) << 62 | all & ((1 << 62) - 1);
    // One that only begins as ours do is a stranger's.
    (high >> 24 == JID_TAG && pack(what, bits) == id).then_some((what, bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_jid_survives(text in "[0-9a-f]{24}") {
            let id = id_from_jid(&text);
            prop_assert_eq!(jid_from_id(id), Some(text));
            prop_assert_eq!(id_from_jid(&jid_from_id(id).expect("has one")), id);
        }

        #[test]
        fn an_id_survives(bytes in any::<[u8; 16]>()) {
            let id = JobId::from_bytes(bytes);
            prop_assert_eq!(jid_from_id(id).map(|jid| id_from_jid(&jid)), Some(id));
        }

        #[test]
        fn any_other_text_has_an_id(text in "\\PC{0,40}") {
            prop_assert_eq!(id_from_jid(&text), id_from_jid(&text));
        }
    }

    #[test]
    fn uuid_resembling_a_packed_jid_gets_another_id() {
        let ours = id_from_jid("000000000000000000000001");
        assert_ne!(id_from_jid(&ours.to_string()), ours);
        assert_eq!(jid_from_id(id_from_jid("my job")), None);
        assert_ne!(id_from_jid("my job"), id_from_jid("my other job"));
    }
}
