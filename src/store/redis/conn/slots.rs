//! The slot map of a Cluster: which master serves which slot.

use redis::Value;

use crate::store::redis::keys::CLUSTER_SLOTS;
use crate::store::redis::url::ServerAddress;

/// Sorted ranges of slots with their masters. Empty until the first discovery.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotMap {
    ranges: Vec<(u16, u16, ServerAddress)>,
}

impl SlotMap {
    /// Parses the reply to `CLUSTER SLOTS`. A server without a host is the one that replied.
    pub(crate) fn parse(reply: Value, sender: &ServerAddress) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in reply.into_sequence().ok()? {
            let [first, last, master, ..] = &range.into_sequence().ok()?[..] else {
                return None;
            };
            let [host, port, ..] = master.as_sequence()? else {
                return None;
            };
            let slot = |value: &Value| match value {
                Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < CLUSTER_SLOTS),
                _ => None,
            };
            let Value::Int(port) = port else {
                return None;
            };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
                _ => sender.host.clone(),
            };
            ranges.push((slot(first)?, slot(last)?, ServerAddress { host, port: u16::try_from(*port).ok()? }));
        }
        ranges.sort();
        Some(SlotMap { ranges })
    }

    /// Returns the number of slots that have a master.
    fn covered_slots(&self) -> u32 {
        self.ranges.iter().map(|(first, last, _)| u32::from(last.saturating_sub(*first)) + 1).sum()
    }

    /// Returns whether every slot has a master.
    pub(crate) fn is_complete(&self) -> bool {
        self.covered_slots() >= u32::from(CLUSTER_SLOTS)
    }

    /// Ranks a map for a caller that misses a slot: first whether it names that master, then by the number of slots.
    pub(crate) fn rank_for(&self, missed: u16) -> (bool, u32) {
        (self.master_of(missed).is_some(), self.covered_slots())
    }

    /// Returns whether this map should replace `known`: it names a master for the missed slot, or covers more slots.
    /// A server that restarted without its data covers none.
    pub(crate) fn is_better_than(&self, missed: u16, known: &SlotMap) -> bool {
        let (names_missed, covers) = self.rank_for(missed);
        names_missed || covers > known.covered_slots()
    }

    /// Returns the servers to ask for a new map, each once. Failing servers, and then the one that did not serve the
    /// missed slot, come last: a server that is cut off from the others still reports the old map.
    pub(crate) fn query_order(
        &self,
        missed: u16,
        more: &[ServerAddress],
        is_failing: impl Fn(&ServerAddress) -> bool,
    ) -> Vec<ServerAddress> {
        let mut hosts = self.masters();
        for host in more {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        let served = self.master_of(missed);
        hosts.sort_by_cached_key(|host| (Some(host) == served, is_failing(host)));
        hosts
    }

    pub(crate) fn master_of(&self, slot: u16) -> Option<&ServerAddress> {
        let index = self.ranges.partition_point(|(first, _, _)| *first <= slot).checked_sub(1)?;
        self.ranges.get(index).filter(|(_, last, _)| slot <= *last).map(|(_, _, address)| address)
    }

    /// Returns any slot of this master.
    pub(crate) fn any_slot_of(&self, master: &ServerAddress) -> Option<u16> {
        self.ranges.iter().find(|(_, _, address)| address == master).map(|(first, ..)| *first)
    }

    /// Returns every master once.
    pub(crate) fn masters(&self) -> Vec<ServerAddress> {
        let mut masters: Vec<ServerAddress> = self.ranges.iter().map(|(_, _, address)| address.clone()).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// Records that a slot has moved; the rest of the map is discovered later.
    pub(crate) fn set_master(&mut self, slot: u16, address: ServerAddress) {
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

    fn address(port: u16) -> ServerAddress {
        ServerAddress { host: "h".into(), port }
    }

    #[test]
    fn cluster_slots_reply_is_parsed() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: &str, port: i64| Value::Array(vec![text(host), Value::Int(port), text("id")]);
        let range = |a, b, node: Value| Value::Array(vec![Value::Int(a), Value::Int(b), node.clone(), node]);
        let reply = Value::Array(vec![range(100, 16383, node("b", 2)), range(0, 99, node("", 1))]);
        let map = SlotMap::parse(reply, &address(9)).expect("reads");
        assert_eq!(map.master_of(99), Some(&ServerAddress { host: "h".into(), port: 1 }));
        assert_eq!(map.master_of(100).map(|a| a.host.as_str()), Some("b"));
        assert_eq!(map.masters().len(), 2);
        assert!(SlotMap::parse(Value::Int(3), &address(9)).is_none());
    }

    fn slot_map(ranges: &[(u16, u16, u16)]) -> SlotMap {
        SlotMap { ranges: ranges.iter().map(|(first, last, port)| (*first, *last, address(*port))).collect() }
    }

    #[test]
    fn incomplete_map_does_not_replace_complete_one() {
        let known = slot_map(&[(0, 99, 1), (100, CLUSTER_SLOTS - 1, 2)]);
        assert!(known.is_complete() && !slot_map(&[(0, 99, 1)]).is_complete());
        let empty = SlotMap::parse(Value::Array(Vec::new()), &address(1)).expect("reads");
        assert!(!empty.is_better_than(7, &known) && !empty.is_better_than(7, &SlotMap::default()));
        // A server that has just received its first slots and does not see the others.
        assert!(!slot_map(&[(0, 6, 1)]).is_better_than(7, &known));
        assert!(slot_map(&[(0, 6, 1)]).is_better_than(7, &SlotMap::default()), "better than nothing");
        assert!(slot_map(&[(0, 99, 3)]).is_better_than(7, &known), "it names a master for the slot");
    }

    #[test]
    fn map_naming_the_missed_slot_ranks_highest() {
        let (few, many, other) =
            (slot_map(&[(0, 9, 1)]), slot_map(&[(0, 99, 1)]), slot_map(&[(10, CLUSTER_SLOTS - 1, 1)]));
        assert!(many.rank_for(7) > few.rank_for(7));
        assert!(few.rank_for(7) > other.rank_for(7), "however many others it names");
    }

    #[test]
    fn failing_server_is_queried_last() {
        let known = slot_map(&[(0, 99, 1), (100, 199, 2), (200, CLUSTER_SLOTS - 1, 3)]);
        let ports = |missed, failing: u16| {
            let hosts = known.query_order(missed, &[address(3), address(4), address(1)], |host| host.port == failing);
            hosts.iter().map(|host| host.port).collect::<Vec<_>>()
        };
        assert_eq!(ports(7, 0), [2, 3, 4, 1]);
        assert_eq!(ports(107, 3), [1, 4, 3, 2]);
        assert_eq!(SlotMap::default().query_order(7, &[address(4)], |_| true), [address(4)]);
    }

    proptest! {
        #[test]
        fn moved_slot_is_found_and_no_other_is_lost(moves in proptest::collection::vec((0u16..CLUSTER_SLOTS, 1u16..9), 0..40), slot_checked in 0u16..CLUSTER_SLOTS) {
            let mut map = SlotMap { ranges: vec![(0, CLUSTER_SLOTS - 1, address(0))] };
            let mut last = address(0);
            for (slot, port) in moves {
                map.set_master(slot, address(port));
                if slot == slot_checked {
                    last = address(port);
                }
            }
            prop_assert_eq!(map.master_of(slot_checked), Some(&last));
        }
    }
}
