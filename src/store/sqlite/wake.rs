//! Wakes: a channel within the process, a datagram to other processes, a file descriptor that tells a peer's end.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;

use super::board::Board;
use crate::node::NodeId;
use crate::store::Wake;

/// Longest path that a socket address has room for on every system.
const SOCKET_PATH_MAX: usize = 100;
/// How often to look for new peers to watch.
const PEERS: Duration = Duration::from_secs(1);
/// Most peers to watch; those beyond are seen by the beat once a second.
const PEERS_MAX: usize = 256;
/// Wakes that may wait for a worker; more would tell it nothing new.
const WAKES_MAX: usize = 64;

/// Sends wakes: after a push, and after a claim that left ready jobs behind.
#[derive(Clone)]
pub(crate) struct Waker {
    board: Arc<Board>,
}

impl Waker {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Waker { board }
    }

    /// Wakes one idle node for each of these queues, one of this process before another's.
    pub(super) fn wake(&self, queues: BTreeSet<String>) {
        for queue in queues {
            if !self.board.wake_local(&queue) {
                self.wake_elsewhere(&queue);
            }
        }
    }

    fn wake_elsewhere(&self, queue: &str) {
        if !self.board.is_shared() {
            return;
        }
        let idle = self.board.idle_elsewhere(queue);
        if idle.is_empty() {
            return;
        }
        let Ok(socket) = UnixDatagram::unbound().and_then(|s| s.set_nonblocking(true).map(|()| s)) else {
            return;
        };
        // The first that takes it is enough; a dead one's socket refuses.
        let _ = idle.into_iter().any(|slot| {
            with_short_path(&self.board.socket(slot), |path| socket.send_to(queue.as_bytes(), path)).is_ok()
        });
    }
}

/// The wakes for a node of this process: from its own process through the channel,
/// from others by datagram, and from the kernel when a peer's process ends.
pub(super) fn subscribe(board: &Arc<Board>, node: NodeId, slot: usize) -> io::Result<mpsc::Receiver<Wake>> {
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    board.subscribe(node, wakes.clone());
    if board.is_shared() {
        let path = board.socket(slot);
        let _ = std::fs::remove_file(&path);
        let socket = with_short_path(&path, |path| UnixDatagram::bind(path))?;
        socket.set_nonblocking(true)?;
        let board = board.clone();
        std::thread::Builder::new().name("duly-wake".into()).spawn(move || listen(&board, &socket, &wakes))?;
    }
    Ok(receiver)
}

/// Sleeps until a datagram comes or a peer ends, and passes it on, until nobody listens any more.
fn listen(board: &Board, socket: &UnixDatagram, wakes: &mpsc::Sender<Wake>) {
    let mut peers = Peers::default();
    let mut name = [0; crate::push::NAME_BYTES_MAX];
    while !wakes.is_closed() {
        peers.watch(board);
        if peers.wait(socket) {
            board.sweep();
            let _ = wakes.try_send(Wake::Beat);
        }
        while let Ok(len) = socket.recv(&mut name) {
            if let Ok(queue) = std::str::from_utf8(&name[..len]) {
                let _ = wakes.try_send(Wake::Queue(queue.to_owned()));
            }
        }
    }
}

/// The processes of other nodes, each watched until it ends.
///
/// A hint only: who is dead is decided by the lock on its slot. Without it the beat, once a second, sees it.
#[derive(Default)]
struct Peers {
    watched: HashMap<NodeId, OwnedFd>,
    /// Those that have ended and still stand on the board: telling it once is enough.
    ended: HashSet<NodeId>,
}

impl Peers {
    /// Starts to watch peers that are new on the board.
    fn watch(&mut self, board: &Board) {
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

    /// Sleeps until something comes, or it is time to look for new peers. Answers whether a peer has ended.
    fn wait(&mut self, socket: &UnixDatagram) -> bool {
        let ids: Vec<NodeId> = self.watched.keys().copied().collect();
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(self.watched.values().map(|process| PollFd::new(process, PollFlags::IN)));
        let timeout = Timespec { tv_sec: PEERS.as_secs().cast_signed(), tv_nsec: 0 };
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

/// Calls `run` with the path, or with a short way to the same file where a socket address has no room for it.
fn with_short_path<T>(path: &Path, run: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return run(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return run(path);
    };
    let dir = std::fs::File::open(dir)?;
    let short: PathBuf =
        [Path::new("/proc/self/fd"), Path::new(&dir.as_raw_fd().to_string()), Path::new(name)].iter().collect();
    run(&short)
}
