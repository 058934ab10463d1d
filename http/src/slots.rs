//! Slots for connections: which connection ends if there are too many.
//!
//! A connection is *unknown* until it sends a request of an identified client. While the server works on such a request it
//! is *busy*, and *idle* after each response. If there are too many connections, unknown ones end, first those of the
//! address that has most, then idle ones. So clients that send nothing keep no others out: neither identified clients nor
//! probes. Busy connections stay.
//!
//! A client may have at most as many busy connections as slots are left. One busy client gets half of the slots, two get a
//! third each, and so on: however many there are, some slots stay for clients with few requests.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use crate::client_network::client_network;
use crate::sync::LockExt;

/// The slots that stay for unknown connections, such as those of probes, while all others are in use: one in sixteen,
/// but always this many.
const RESERVED_SHARE: usize = 16;
const RESERVED_MIN: usize = 8;

/// The slots of a server.
pub(crate) struct Slots {
    max: usize,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    last: u64,
    /// The unknown connections by their age.
    unknown: BTreeMap<u64, UnknownConnection>,
    unknown_by_address: HashMap<IpAddr, usize>,
    /// The idle connections by the time at which they became idle, and how to end them.
    idle: BTreeMap<u64, CancellationToken>,
    busy: usize,
    busy_by_client: HashMap<String, usize>,
}

struct UnknownConnection {
    address: IpAddr,
    evict: CancellationToken,
}

/// The reason why a connection cannot become busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// All slots are busy.
    Full,
    /// The client has its share of the slots.
    ClientShare,
}

impl Slots {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Slots { max, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock_unpoisoned()
    }

    /// Adds a connection. It may end others.
    pub(crate) fn open(self: &Arc<Self>, address: IpAddr) -> Slot {
        let slot = Slot {
            slots: self.clone(),
            address: client_network(address),
            number: Mutex::new(None),
            evicted: CancellationToken::new(),
        };
        slot.wait(false);
        slot
    }

    /// Ends connections until their numbers are within the limits.
    fn evict(&self, state: &mut SlotState) {
        let reserved = (self.max / RESERVED_SHARE).max(RESERVED_MIN);
        let max = self.max.saturating_sub(state.busy).max(reserved);
        while state.unknown.len() + state.idle.len() > max {
            let idle = state.idle.keys().next().copied();
            let oldest = if state.unknown.len() > reserved { None } else { idle };
            oldest.or_else(|| state.oldest_unknown()).into_iter().for_each(|number| state.end(number));
        }
    }
}

impl SlotState {
    /// Returns the oldest unknown connection of an address that has most of them.
    fn oldest_unknown(&self) -> Option<u64> {
        let count = |address: &IpAddr| self.unknown_by_address.get(address).copied().unwrap_or(0);
        let most = self.unknown_by_address.values().max().copied()?;
        self.unknown.iter().find(|(_, unknown)| count(&unknown.address) == most).map(|(number, _)| *number)
    }

    /// Ends a connection that is not busy.
    fn end(&mut self, number: u64) {
        if let Some(evict) = self.remove(number) {
            evict.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<CancellationToken> {
        if let Some(unknown) = self.unknown.remove(&number) {
            decrement(&mut self.unknown_by_address, &unknown.address);
            return Some(unknown.evict);
        }
        self.idle.remove(&number)
    }
}

fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// The slot of one connection.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    address: IpAddr,
    /// The number among the connections that are not busy; `None` while this one is.
    number: Mutex<Option<u64>>,
    /// The connection must end.
    pub(crate) evicted: CancellationToken,
}

impl Slot {
    /// Adds the connection to those that are not busy.
    fn wait(&self, is_known: bool) {
        let mut state = self.slots.state();
        state.last += 1;
        let (number, evict) = (state.last, self.evicted.clone());
        if is_known {
            state.idle.insert(number, evict);
        } else {
            state.unknown.insert(number, UnknownConnection { address: self.address, evict });
            *state.unknown_by_address.entry(self.address).or_default() += 1;
        }
        *self.number.lock_unpoisoned() = Some(number);
        self.slots.evict(&mut state);
    }

    /// Makes the connection busy with a request of this client, until the returned value is dropped. A client without a
    /// name has no share.
    pub(crate) fn become_busy(self: &Arc<Self>, client: Option<&str>) -> Result<BusySlot, NoSlot> {
        let mut state = self.slots.state();
        let left = self.slots.max.saturating_sub(state.busy);
        if left == 0 {
            return Err(NoSlot::Full);
        }
        if let Some(client) = client {
            if state.busy_by_client.get(client).copied().unwrap_or(0) >= left {
                return Err(NoSlot::ClientShare);
            }
            *state.busy_by_client.entry(client.to_owned()).or_default() += 1;
        }
        state.busy += 1;
        let number = self.number.lock_unpoisoned().take();
        number.and_then(|number| state.remove(number));
        Ok(BusySlot { slot: self.clone(), client: client.map(str::to_owned) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let number = self.number.lock_unpoisoned().take();
        number.and_then(|number| self.slots.state().remove(number));
    }
}

/// A slot that is in use for a request.
pub(crate) struct BusySlot {
    slot: Arc<Slot>,
    client: Option<String>,
}

/// A body that keeps the slot of its connection.
pub(crate) struct HeldBody {
    body: Body,
    _slot: Arc<BusySlot>,
}

impl HeldBody {
    /// Returns the same body; the slot is in use until it is sent.
    pub(crate) fn new(body: Body, slot: Arc<BusySlot>) -> Self {
        HeldBody { body, _slot: slot }
    }
}

impl hyper::body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for BusySlot {
    fn drop(&mut self) {
        {
            let mut state = self.slot.slots.state();
            state.busy -= 1;
            if let Some(client) = &self.client {
                decrement(&mut state.busy_by_client, client);
            }
        }
        self.slot.wait(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn evicted(slots: &[Arc<Slot>]) -> usize {
        slots.iter().filter(|slot| slot.evicted.is_cancelled()).count()
    }

    #[test]
    fn silent_connections_of_one_address_displace_only_each_other() {
        let slots = Slots::new(64);
        let other = Arc::new(slots.open(address(2)));
        let silent: Vec<_> = (0..100).map(|_| Arc::new(slots.open(address(1)))).collect();
        assert_eq!(evicted(&silent), 100 - 63);
        assert_eq!(evicted(&silent[37..]), 0, "the newest stay");
        assert!(!other.evicted.is_cancelled());
    }

    #[test]
    fn silent_connections_of_many_addresses_keep_no_identified_client_out() {
        let slots = Slots::new(16);
        let silent: Vec<_> = (0..200).map(|last| Arc::new(slots.open(address(last)))).collect();
        assert_eq!(evicted(&silent), 200 - 16);
        let busy: Vec<_> = (0..16)
            .map(|no| Arc::new(slots.open(address(201))).become_busy(Some(&format!("client {no}"))).ok())
            .collect();
        assert!(busy.iter().all(Option::is_some));
        let probe = Arc::new(slots.open(address(202)));
        assert!(!probe.evicted.is_cancelled(), "a slot is left for probes");
        assert_eq!(probe.become_busy(Some("late")).err(), Some(NoSlot::Full));
        drop(busy);
        assert!(probe.become_busy(Some("late")).is_ok());
    }

    #[test]
    fn idle_connections_of_a_proxy_stay_until_slots_are_needed() {
        let slots = Slots::new(64);
        let known: Vec<_> = (0..64)
            .map(|_| {
                let slot = Arc::new(slots.open(address(1)));
                drop(slot.become_busy(Some("ada")));
                slot
            })
            .collect();
        assert_eq!(evicted(&known), 0, "however many have one address");
        let silent: Vec<_> = (2..40).map(|last| Arc::new(slots.open(address(last)))).collect();
        assert_eq!(evicted(&silent[silent.len() - RESERVED_MIN..]), 0, "probes get in");
        assert!(evicted(&known) <= RESERVED_MIN, "and silent ones displace few others");
    }

    #[test]
    fn client_gets_half_of_the_slots() {
        let slots = Slots::new(16);
        let open = || Arc::new(slots.open(address(1)));
        let busy: Vec<_> = (0..8).map(|_| open().become_busy(Some("ada")).ok()).collect();
        assert!(busy.iter().all(Option::is_some));
        assert_eq!(open().become_busy(Some("ada")).err(), Some(NoSlot::ClientShare));
        assert!(open().become_busy(Some("bob")).is_ok() && open().become_busy(None).is_ok());
        drop(busy);
        assert!(open().become_busy(Some("ada")).is_ok());
        let state = slots.state();
        assert!(state.unknown.is_empty() && state.idle.is_empty() && state.busy == 0, "nothing is left over");
        assert!(state.unknown_by_address.is_empty() && state.busy_by_client.is_empty());
    }

    #[test]
    fn busy_clients_leave_slots_for_others() {
        const CLIENTS: usize = 4;
        let slots = Slots::new(64);
        let mut busy = Vec::new();
        let mut counts = Vec::new();
        for no in 0..CLIENTS {
            let client = format!("client {no}");
            let before = busy.len();
            busy.extend(std::iter::from_fn(|| Arc::new(slots.open(address(1))).become_busy(Some(&client)).ok()));
            counts.push(busy.len() - before);
        }
        assert_eq!(counts, [32, 16, 8, 4]);
        let late: Vec<_> =
            (0..4).map(|no| Arc::new(slots.open(address(2))).become_busy(Some(&no.to_string()))).collect();
        assert!(late.iter().all(Result::is_ok));
    }
}
