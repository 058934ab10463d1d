//! The processes of other nodes, each watched until it ends.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::node::NodeId;
use crate::store::sqlite::nodes::registry::Board;

/// Most peers to watch; those beyond are seen by the beat once a second.
const PEERS_MAX: usize = 256;

/// The processes of other nodes.
///
/// A hint only: who is dead is decided by the lock on its slot. Without it the beat, once a second, sees it.
#[derive(Default)]
pub(crate) struct Peers {
    watched: HashMap<NodeId, OwnedFd>,
    /// Those that have ended and still stand on the board: telling it once is enough.
    ended: HashSet<NodeId>,
    /// Those on the board when it was last looked at.
    there: HashSet<NodeId>,
}

impl Peers {
    /// Starts to watch peers that are new on the board.
    pub(crate) fn watch(&mut self, board: &Board) {
        let slots = board.all();
        self.there = slots.iter().map(|slot| slot.id).collect();
        self.ended.retain(|id| self.there.contains(id));
        let own = std::process::id();
        for slot in slots {
            let known = self.watched.contains_key(&slot.id) || self.ended.contains(&slot.id);
            if slot.pid != own && !known && self.watched.len() < PEERS_MAX {
                self.watched.extend(open(slot.pid).map(|process| (slot.id, process)));
            }
        }
    }

    /// Sleeps until something comes, or for so long. Answers whether a peer has ended.
    pub(crate) fn wait(&mut self, socket: &UnixDatagram, at_most: Duration) -> bool {
        let ids: Vec<NodeId> = self.watched.keys().copied().collect();
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(self.watched.values().map(|process| PollFd::new(process, PollFlags::IN)));
        let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        let polled = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        let told = fds[1..].iter().zip(ids).filter(|(fd, _)| polled > 0 && !fd.revents().is_empty());
        let ended: Vec<NodeId> = told.map(|(_, id)| id).collect();
        // Whoever has left the board is let go of only now: one that has died may have been swept off by another already.
        self.watched.retain(|id, _| !ended.contains(id) && self.there.contains(id));
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::sqlite::nodes::slots::{PID_AT, SLOT_BYTES};

    /// Puts a node of this process id on the board.
    fn stand(board: &Board, pid: u32) {
        let mut slot = [0; SLOT_BYTES];
        slot[..16].copy_from_slice(NodeId::fresh().as_bytes());
        slot[PID_AT..PID_AT + 4].copy_from_slice(&pid.to_le_bytes());
        board.slots().write(0, 0, &slot).expect("writes");
    }

    #[test]
    fn who_has_left_the_board_is_watched_no_more() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let board = Board::in_memory(Clock::system());
        let (socket, mut peers) = (UnixDatagram::unbound().expect("a socket"), Peers::default());
        for _ in 0..3 {
            stand(&board, other.id());
            peers.watch(&board);
            assert!(!peers.wait(&socket, Duration::ZERO), "it lives");
            assert_eq!(peers.watched.len(), 1, "of those in its place only the last");
        }
        // It dies, and another has swept it off the board before we look.
        board.slots().write(0, 0, &[0; SLOT_BYTES]).expect("writes");
        other.kill().and_then(|()| other.wait()).expect("ends");
        peers.watch(&board);
        assert!(peers.wait(&socket, Duration::ZERO), "its end is heard of all the same");
        assert!(peers.watched.is_empty());
    }
}
