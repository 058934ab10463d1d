//! Watches the processes of other nodes until they end.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::node::NodeId;
use crate::store::sqlite::nodes::registry::NodeRegistry;

/// Most processes to watch. The end of others is noticed by the heartbeat, within a second.
const WATCHED_PROCESSES_MAX: usize = 256;

/// The processes of other nodes.
///
/// Only a hint: the lock on a slot decides whether its node is dead. Without the hint, the heartbeat notices it within
/// a second.
#[derive(Default)]
pub(crate) struct ProcessWatch {
    watched: HashMap<NodeId, OwnedFd>,
    /// Nodes that ended and are still in the registry: each is reported once.
    exited: HashSet<NodeId>,
    /// Nodes that were in the registry at the last read.
    registered: HashSet<NodeId>,
}

impl ProcessWatch {
    /// Starts to watch nodes that are new in the registry.
    pub(crate) fn watch_new(&mut self, registry: &NodeRegistry) {
        let slots = registry.occupied_slots();
        self.registered = slots.iter().map(|slot| slot.id).collect();
        self.exited.retain(|id| self.registered.contains(id));
        let own_pid = std::process::id();
        for slot in slots {
            let is_known = self.watched.contains_key(&slot.id) || self.exited.contains(&slot.id);
            if slot.pid != own_pid && !is_known && self.watched.len() < WATCHED_PROCESSES_MAX {
                self.watched.extend(open(slot.pid).map(|process| (slot.id, process)));
            }
        }
    }

    /// Sleeps until the socket is readable or a process ends, at most `at_most`. Returns whether a process ended.
    pub(crate) fn wait_for_exit(&mut self, socket: &UnixDatagram, at_most: Duration) -> bool {
        let ids: Vec<NodeId> = self.watched.keys().copied().collect();
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(self.watched.values().map(|process| PollFd::new(process, PollFlags::IN)));
        let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        let polled = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        let exited = fds[1..].iter().zip(ids).filter(|(fd, _)| polled > 0 && !fd.revents().is_empty());
        let ended: Vec<NodeId> = exited.map(|(_, id)| id).collect();
        // Nodes that left the registry are dropped only after the poll: another process may have swept a dead node
        // already.
        self.watched.retain(|id, _| !ended.contains(id) && self.registered.contains(id));
        let any = !ended.is_empty();
        self.exited.extend(ended);
        any
    }
}

/// Opens a descriptor that becomes readable when the process ends.
#[cfg(target_os = "linux")]
fn open(pid: u32) -> Option<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn open(_pid: u32) -> Option<OwnedFd> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::sqlite::nodes::slots::{PID_OFFSET, SLOT_BYTES};

    /// Adds a node with this process id to the registry.
    fn register_process(registry: &NodeRegistry, pid: u32) {
        let mut slot = [0; SLOT_BYTES];
        slot[..16].copy_from_slice(NodeId::fresh().as_bytes());
        slot[PID_OFFSET..PID_OFFSET + 4].copy_from_slice(&pid.to_le_bytes());
        registry.slots().write(0, 0, &slot).expect("writes");
    }

    #[test]
    fn unregistered_process_is_no_longer_watched() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let registry = NodeRegistry::in_memory(Clock::system());
        let (socket, mut processes) = (UnixDatagram::unbound().expect("a socket"), ProcessWatch::default());
        for _ in 0..3 {
            register_process(&registry, other.id());
            processes.watch_new(&registry);
            assert!(!processes.wait_for_exit(&socket, Duration::ZERO), "it is alive");
            assert_eq!(processes.watched.len(), 1, "only the last node in the slot is watched");
        }
        // The process dies, and another process has swept its node from the registry before this one reads it.
        registry.slots().write(0, 0, &[0; SLOT_BYTES]).expect("writes");
        other.kill().and_then(|()| other.wait()).expect("ends");
        processes.watch_new(&registry);
        assert!(processes.wait_for_exit(&socket, Duration::ZERO), "its end is reported");
        assert!(processes.watched.is_empty());
    }
}
