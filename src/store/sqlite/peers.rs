//! The processes of other nodes, each watched until it ends.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::board::Board;
use crate::node::NodeId;

/// Most peers to watch; those beyond are seen by the beat once a second.
const PEERS_MAX: usize = 256;

/// The processes of other nodes.
///
/// A hint only: who is dead is decided by the lock on its slot. Without it the beat, once a second, sees it.
#[derive(Default)]
pub(super) struct Peers {
    watched: HashMap<NodeId, OwnedFd>,
    /// Those that have ended and still stand on the board: telling it once is enough.
    ended: HashSet<NodeId>,
}

impl Peers {
    /// Starts to watch peers that are new on the board.
    pub(super) fn watch(&mut self, board: &Board) {
        let slots = board.all();
        self.ended.retain(|id| slots.iter().any(|slot| slot.id == *id));
        let own = std::process::id();
        for slot in slots {
            let known = self.watched.contains_key(&slot.id) || self.ended.contains(&slot.id);
            if slot.pid != own && !known && self.watched.len() < PEERS_MAX {
                self.watched.extend(open(slot.pid).map(|process| (slot.id, process)));
            }
        }
    }

    /// Sleeps until something comes, or for so long. Answers whether a peer has ended.
    pub(super) fn wait(&mut self, socket: &UnixDatagram, at_most: Duration) -> bool {
        let ids: Vec<NodeId> = self.watched.keys().copied().collect();
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(self.watched.values().map(|process| PollFd::new(process, PollFlags::IN)));
        let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return false;
        }
        let ended: Vec<NodeId> =
            fds[1..].iter().zip(ids).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, id)| id).collect();
        self.watched.retain(|id, _| !ended.contains(id));
        let any = !ended.is_empty();
        self.ended.extend(ended);
        any
    }
}

/// A descriptor that becomes readable when the process ends.
#[cfg(target_os = "linux")]
fn open(pid: u32) -> Option<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn open(_pid: u32) -> Option<OwnedFd> {
    None
}
