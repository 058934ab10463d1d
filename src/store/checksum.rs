//! A checksum of what was pushed: what a disk or a memory has changed since is told from it, and never run.

/// CRC-32 of these parts. Each counts with its length, so that no byte can move from one to the next.
pub(super) fn crc32(parts: &[&[u8]]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for part in parts {
        sum.update(&(part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_flipped_bit_is_seen(mut bytes in proptest::collection::vec(any::<u8>(), 1..300), at in any::<usize>()) {
            let before = crc32(&[b"kind", &bytes]);
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_ne!(crc32(&[b"kind", &bytes]), before);
        }
    }

    #[test]
    fn bytes_moved_between_parts_change_the_checksum() {
        assert_ne!(crc32(&[b"ab", b"c"]), crc32(&[b"a", b"bc"]));
    }
}
