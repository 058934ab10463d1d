//! A bounded map of entries that belong to clients.
//!
//! In a full map, a new entry displaces the oldest of the client that has the most. So no client can displace the
//! entries of one that has fewer.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The entries of all clients.
pub(crate) struct ClientMap<K, V> {
    max: usize,
    len: usize,
    /// The number of the newest entry.
    newest: u64,
    by_client: HashMap<String, ClientEntries<K, V>>,
}

/// The entries of one client. There is at least one.
struct ClientEntries<K, V> {
    /// Each value with the number of its entry.
    values: HashMap<K, (u64, V)>,
    /// The keys by the number of their entry, oldest first.
    order: BTreeMap<u64, K>,
}

impl<K: Clone + Eq + Hash, V> ClientMap<K, V> {
    /// Returns a map for at most `max` entries.
    pub(crate) fn new(max: usize) -> Self {
        ClientMap { max, len: 0, newest: 0, by_client: HashMap::new() }
    }

    pub(crate) fn get(&self, client: &str, key: &K) -> Option<&V> {
        self.by_client.get(client)?.values.get(key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, client: &str, key: &K) -> Option<&mut V> {
        self.by_client.get_mut(client)?.values.get_mut(key).map(|(_, value)| value)
    }

    /// Adds an entry in place of a previous one with the same key.
    pub(crate) fn insert(&mut self, client: &str, key: K, value: V) {
        self.remove(client, &key);
        if self.len >= self.max {
            self.remove_oldest(client);
        }
        self.newest += 1;
        self.len += 1;
        let entries = self.by_client.entry(client.to_owned());
        let entries = entries.or_insert_with(|| ClientEntries { values: HashMap::new(), order: BTreeMap::new() });
        entries.order.insert(self.newest, key.clone());
        entries.values.insert(key, (self.newest, value));
    }

    pub(crate) fn remove(&mut self, client: &str, key: &K) {
        let Some(entries) = self.by_client.get_mut(client) else {
            return;
        };
        if let Some((number, _)) = entries.values.remove(key) {
            entries.order.remove(&number);
            self.len -= 1;
        }
        if entries.values.is_empty() {
            self.by_client.remove(client);
        }
    }

    /// Makes room for an entry of this client: among clients with as many entries, it displaces its own.
    fn remove_oldest(&mut self, client: &str) {
        let largest = self.by_client.iter().max_by_key(|(name, entries)| (entries.values.len(), *name == client));
        let oldest = largest.and_then(|(name, entries)| Some((name.clone(), entries.order.values().next()?.clone())));
        if let Some((name, key)) = oldest {
            self.remove(&name, &key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_with_most_entries_displaces_its_own() {
        let mut map = ClientMap::new(10);
        (0..2).for_each(|key| map.insert("ada", key, "a"));
        (0..100).for_each(|key| map.insert("eve", key, "e"));
        assert_eq!((map.get("ada", &0), map.get("ada", &1)), (Some(&"a"), Some(&"a")));
        assert_eq!((map.get("eve", &91), map.get("eve", &92)), (None, Some(&"e")));
        (2..5).for_each(|key| map.insert("ada", key, "a"));
        assert_eq!((map.get("ada", &0), map.get("eve", &94), map.get("eve", &95)), (Some(&"a"), None, Some(&"e")));
        map.insert("ada", 5, "a");
        assert_eq!((map.get("ada", &0), map.get("eve", &95)), (None, Some(&"e")), "as many: its own");
        assert_eq!(map.len, 10);
    }

    #[test]
    fn removed_entries_make_room() {
        let mut map = ClientMap::new(2);
        map.insert("ada", 1, "a");
        map.insert("ada", 1, "b");
        map.insert("eve", 1, "e");
        map.remove("ada", &1);
        map.remove("ada", &1);
        assert!(map.by_client.len() == 1 && map.len == 1);
        map.insert("eve", 2, "e");
        assert_eq!((map.get("eve", &1), map.get("ada", &1)), (Some(&"e"), None));
    }
}
