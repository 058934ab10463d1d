//! A checksum over pushed data, so that data corrupted on disk or in memory is detected and never run.

/// Returns the CRC-32 of these parts. Each part's length counts too, so that no byte can move between parts.
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
        fn flipped_bit_changes_checksum(mut bytes in proptest::collection::vec(any::<u8>(), 1..300), bit in any::<usize>()) {
            let before = crc32(&[b"kind", &bytes]);
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(crc32(&[b"kind", &bytes]), before);
        }
    }

    #[test]
    fn bytes_moved_between_parts_change_the_checksum() {
        assert_ne!(crc32(&[b"ab", b"c"]), crc32(&[b"a", b"bc"]));
    }
}
