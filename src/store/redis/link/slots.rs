//! Which server of a Cluster has which slot.

use redis::Value;

use crate::store::redis::keys::SLOTS;
use crate::store::redis::url::Address;

/// Ranges of slots with their masters, sorted. Empty until the Cluster has been asked.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotMap {
    ranges: Vec<(u16, u16, Address)>,
}

impl SlotMap {
    /// The answer to CLUSTER SLOTS; a server that names no host means the one that was asked.
    pub(super) fn read(answer: Value, asked: &Address) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in answer.into_sequence().ok()? {
            let [first, last, master, ..] = &range.into_sequence().ok()?[..] else {
                return None;
            };
            let [host, port, ..] = master.as_sequence()? else {
                return None;
            };
            let slot = |value: &Value| match value {
                Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
                _ => None,
            };
            let Value::Int(port) = port else {
                return None;
            };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
                _ => asked.host.clone(),
            };
            ranges.push((slot(first)?, slot(last)?, Address { host, port: u16::try_from(*port).ok()? }));
        }
        ranges.sort();
        Some(SlotMap { ranges })
    }

    pub(super) fn master_of(&self, slot: u16) -> Option<&Address> {
        let at = self.ranges.partition_point(|(first, _, _)| *first <= slot).checked_sub(1)?;
        self.ranges.get(at).filter(|(_, last, _)| slot <= *last).map(|(_, _, address)| address)
    }

    /// Every master once.
    pub(super) fn masters(&self) -> Vec<Address> {
        let mut masters: Vec<Address> = self.ranges.iter().map(|(_, _, address)| address.clone()).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// A server has said where a slot lives now; the rest of the map is asked for later.
    pub(super) fn moved(&mut self, slot: u16, address: Address) {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 2);
        for (first, last, master) in self.ranges.drain(..) {
            if slot < first || slot > last {
                ranges.push((first, last, master));
                continue;
            }
            if first < slot {
                ranges.push((first, slot - 1, master.clone()));
            }
            if slot < last {
                ranges.push((slot + 1, last, master));
            }
        }
        ranges.push((slot, slot, address));
        ranges.sort();
        self.ranges = ranges;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(port: u16) -> Address {
        Address { host: "h".into(), port }
    }

    #[test]
    fn reads_what_a_cluster_answers() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: &str, port: i64| Value::Array(vec![text(host), Value::Int(port), text("id")]);
        let range = |a, b, node: Value| Value::Array(vec![Value::Int(a), Value::Int(b), node.clone(), node]);
        let answer = Value::Array(vec![range(100, 16383, node("b", 2)), range(0, 99, node("", 1))]);
        let map = SlotMap::read(answer, &at(9)).expect("reads");
        assert_eq!(map.master_of(99), Some(&Address { host: "h".into(), port: 1 }));
        assert_eq!(map.master_of(100).map(|a| a.host.as_str()), Some("b"));
        assert_eq!(map.masters().len(), 2);
        assert!(SlotMap::read(Value::Int(3), &at(9)).is_none());
    }

    proptest! {
        #[test]
        fn a_slot_that_moved_is_found_and_no_other_is_lost(moves in proptest::collection::vec((0u16..SLOTS, 1u16..9), 0..40), look in 0u16..SLOTS) {
            let mut map = SlotMap { ranges: vec![(0, SLOTS - 1, at(0))] };
            let mut last = at(0);
            for (slot, port) in moves {
                map.moved(slot, at(port));
                if slot == look {
                    last = at(port);
                }
            }
            prop_assert_eq!(map.master_of(look), Some(&last));
        }
    }
}
