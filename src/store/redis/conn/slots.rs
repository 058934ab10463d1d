//! Which server of a Cluster has which slot.

use redis::Value;

use crate::store::redis::keys::SLOTS;
use crate::store::redis::url::Address;

/// Ranges of slots with their masters, sorted. Empty until the Cluster has been asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotMap {
    ranges: Vec<(u16, u16, Address)>,
}

impl SlotMap {
    /// The answer to CLUSTER SLOTS; a server that names no host means the one that was asked.
    pub(crate) fn read(answer: Value, asked: &Address) -> Option<Self> {
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

    /// How many slots have a master.
    fn covers(&self) -> u32 {
        self.ranges.iter().map(|(first, last, _)| u32::from(last.saturating_sub(*first)) + 1).sum()
    }

    /// Every slot has a master: nobody knows more.
    pub(crate) fn is_whole(&self) -> bool {
        self.covers() >= u32::from(SLOTS)
    }

    /// How much it tells to one who misses a slot: first whether it names a master for that, then of how many others.
    pub(crate) fn worth(&self, missed: u16) -> (bool, u32) {
        (self.master_of(missed).is_some(), self.covers())
    }

    /// Whether to believe it rather than what is known: if it names who has the slot that is missed, right or wrong, or knows
    /// of more slots. A server that has just come back without its memory knows of none.
    pub(crate) fn is_news(&self, missed: u16, known: &SlotMap) -> bool {
        let (names_it, covers) = self.worth(missed);
        names_it || covers > known.covers()
    }

    /// Whom to ask for another map, each once: last those who fail, and the one who did not serve the slot that is missed.
    /// A server that is cut off from the others still tells what was so before.
    pub(crate) fn whom_to_ask(&self, missed: u16, more: &[Address], fails: impl Fn(&Address) -> bool) -> Vec<Address> {
        let mut hosts = self.masters();
        for host in more {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        let served = self.master_of(missed);
        hosts.sort_by_cached_key(|host| (Some(host) == served, fails(host)));
        hosts
    }

    pub(crate) fn master_of(&self, slot: u16) -> Option<&Address> {
        let at = self.ranges.partition_point(|(first, _, _)| *first <= slot).checked_sub(1)?;
        self.ranges.get(at).filter(|(_, last, _)| slot <= *last).map(|(_, _, address)| address)
    }

    /// Any slot of this master.
    pub(crate) fn slot_of(&self, master: &Address) -> Option<u16> {
        self.ranges.iter().find(|(_, _, address)| address == master).map(|(first, ..)| *first)
    }

    /// Every master once.
    pub(crate) fn masters(&self) -> Vec<Address> {
        let mut masters: Vec<Address> = self.ranges.iter().map(|(_, _, address)| address.clone()).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// A server has said where a slot lives now; the rest of the map is asked for later.
    pub(crate) fn moved(&mut self, slot: u16, address: Address) {
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

    fn map(ranges: &[(u16, u16, u16)]) -> SlotMap {
        SlotMap { ranges: ranges.iter().map(|(first, last, port)| (*first, *last, at(*port))).collect() }
    }

    #[test]
    fn a_server_without_memory_is_not_believed() {
        let known = map(&[(0, 99, 1), (100, SLOTS - 1, 2)]);
        assert!(known.is_whole() && !map(&[(0, 99, 1)]).is_whole());
        let empty = SlotMap::read(Value::Array(Vec::new()), &at(1)).expect("reads");
        assert!(!empty.is_news(7, &known) && !empty.is_news(7, &SlotMap::default()));
        // It has been given new slots, and knows of no others.
        assert!(!map(&[(0, 6, 1)]).is_news(7, &known));
        assert!(map(&[(0, 6, 1)]).is_news(7, &SlotMap::default()), "better than nothing");
        assert!(map(&[(0, 99, 3)]).is_news(7, &known), "it names who has the slot");
    }

    #[test]
    fn of_several_answers_the_one_that_tells_most_counts() {
        let (few, many, strange) = (map(&[(0, 9, 1)]), map(&[(0, 99, 1)]), map(&[(10, SLOTS - 1, 1)]));
        assert!(many.worth(7) > few.worth(7));
        assert!(few.worth(7) > strange.worth(7), "however many others it names");
    }

    #[test]
    fn who_failed_is_asked_last() {
        let known = map(&[(0, 99, 1), (100, 199, 2), (200, SLOTS - 1, 3)]);
        let ports = |missed, failing: u16| {
            let hosts = known.whom_to_ask(missed, &[at(3), at(4), at(1)], |host| host.port == failing);
            hosts.iter().map(|host| host.port).collect::<Vec<_>>()
        };
        assert_eq!(ports(7, 0), [2, 3, 4, 1]);
        assert_eq!(ports(107, 3), [1, 4, 3, 2]);
        assert_eq!(SlotMap::default().whom_to_ask(7, &[at(4)], |_| true), [at(4)]);
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
