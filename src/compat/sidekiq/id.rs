//! Conversion between Sidekiq's jids and job ids.
//!
//! A jid of Ruby has 24 hexadecimal digits: 96 bits, which fit into a UUID of version 8 after a tag that marks them.
//! Any other UUID is its own jid, as text, so that an id printed by duly can be found in Sidekiq Web.
//! Every other jid is represented by a digest, which cannot be converted back.

use sha2::{Digest, Sha256};

use crate::job::JobId;

/// The first 24 bits of an id that represents a jid.
const JID_TAG: u128 = 0x51de41;
const JID_DIGITS: usize = 24;

/// The meaning of the 96 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IdSource {
    Jid = 0,
    Digest = 1,
}

/// Returns the id of a job with this jid.
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

/// Returns the id of an entry without a jid, derived from its bytes.
pub(super) fn id_from_bytes(bytes: &[u8]) -> JobId {
    let digest = Sha256::digest(bytes);
    let bits = digest.iter().take(12).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    pack(IdSource::Digest, bits)
}

/// Returns the jid of this id; `None` if only its digest is known.
pub(super) fn jid_from_id(id: JobId) -> Option<String> {
    match unpack(id) {
        None => Some(id.to_string()),
        Some((IdSource::Jid, bits)) => Some(format!("{bits:024x}")),
        Some((IdSource::Digest, _)) => None,
    }
}

/// Returns the id of the job to which Sidekiq gave this jid: 24 lower-case hexadecimal digits. `None` for other text.
///
/// ```
/// let id = duly::compat::id_of_jid("0123456789abcdef01234567").expect("a jid");
/// assert_eq!(duly::compat::jid_of_id(id).as_deref(), Some("0123456789abcdef01234567"));
/// ```
#[must_use]
pub fn id_of_jid(jid: &str) -> Option<JobId> {
    let id = id_from_jid(jid);
    jid_of_id(id).is_some().then_some(id)
}

/// Returns the jid that Sidekiq gave this job; `None` if duly pushed it, whose id is its jid.
#[must_use]
pub fn jid_of_id(id: JobId) -> Option<String> {
    match unpack(id) {
        Some((IdSource::Jid, bits)) => Some(format!("{bits:024x}")),
        _ => None,
    }
}

/// Returns whether duly or its user generated this id, rather than Ruby.
pub(super) fn is_duly_id(id: JobId) -> bool {
    unpack(id).is_none()
}

// Layout: 24 bits of tag, 2 bits of source, 22 bits of value, version, 12 bits of value, variant, 62 bits of value.
fn pack(source: IdSource, bits: u128) -> JobId {
    let high = JID_TAG << 24 | (source as u128) << 22 | bits >> 74;
    let (middle, low) = (bits >> 62 & 0xfff, bits & ((1 << 62) - 1));
    JobId::from_bytes((high << 80 | 8 << 76 | middle << 64 | 0b10 << 62 | low).to_be_bytes())
}

fn unpack(id: JobId) -> Option<(IdSource, u128)> {
    let all = u128::from_be_bytes(*id.as_bytes());
    let high = all >> 80;
    let source = match high >> 22 & 0b11 {
        0 => IdSource::Jid,
        1 => IdSource::Digest,
        _ => return None,
    };
    let bits = (high & ((1 << 22) - 1)) << 74 | (all >> 64 & 0xfff) << 62 | all & ((1 << 62) - 1);
    // A foreign id may start with the tag by chance.
    (high >> 24 == JID_TAG && pack(source, bits) == id).then_some((source, bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn jids_round_trip(text in "[0-9a-f]{24}") {
            let id = id_from_jid(&text);
            prop_assert_eq!(jid_from_id(id), Some(text));
            prop_assert_eq!(id_from_jid(&jid_from_id(id).expect("has one")), id);
        }

        #[test]
        fn ids_round_trip(bytes in any::<[u8; 16]>()) {
            let id = JobId::from_bytes(bytes);
            prop_assert_eq!(jid_from_id(id).map(|jid| id_from_jid(&jid)), Some(id));
        }

        #[test]
        fn any_text_has_a_stable_id(text in "\\PC{0,40}") {
            prop_assert_eq!(id_from_jid(&text), id_from_jid(&text));
        }
    }

    #[test]
    fn uuid_resembling_a_packed_jid_gets_another_id() {
        let packed = id_from_jid("000000000000000000000001");
        assert_ne!(id_from_jid(&packed.to_string()), packed);
        assert_eq!(jid_from_id(id_from_jid("my job")), None);
        assert_ne!(id_from_jid("my job"), id_from_jid("my other job"));
    }
}
