//! The listener: one thread for each local node that other processes can notify.
//!
//! It receives datagrams from the node's socket, messages from the bus, and the end of other processes from the kernel.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::node::NodeId;
use crate::store::sqlite::nodes::datagram;
use crate::store::sqlite::nodes::datagram::{DATAGRAM_BYTES_MAX, Datagram};
use crate::store::sqlite::nodes::process_watch::ProcessWatch;
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::nodes::subscriptions::NodeSubscriptions;
use crate::store::sqlite::peers::messages::MessageReader;
use crate::store::{Notification, Wake};

/// How often to check for new processes to watch, and for messages that came without a datagram.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How soon to read messages again that had no room.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// After this many datagrams at once the socket may have been full, and completions may be lost.
const OVERFLOW_DATAGRAMS_MIN: usize = 8;
/// Most pending wakes of a worker: one for each of its queues.
const WAKES_MAX: usize = 1_024;

/// Subscribes a local node to wakes: from its own process by channel, from other processes by datagram, and from the
/// kernel if another process ends.
pub(crate) fn subscribe_wakes(board: &Arc<NodeRegistry>, node: NodeId) -> io::Result<mpsc::Receiver<Wake>> {
    let ears = board.subscriptions(node).ok_or_else(|| io::Error::other("the node has not sent a heartbeat yet"))?;
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    ears.subscribe_wakes(wakes);
    start_listener(board, node)?;
    Ok(receiver)
}

/// Starts the listener of a node, unless it is running.
pub(crate) fn start_listener(board: &Arc<NodeRegistry>, node: NodeId) -> io::Result<()> {
    let (Some(slot), Some(ears)) = (board.slot_of(node), board.subscriptions(node)) else {
        return Ok(());
    };
    if !board.is_shared() || !ears.try_begin_listening() {
        return Ok(());
    }
    let spawn = || {
        let socket = datagram::bind(&board.socket_path(slot))?;
        let (board, ears) = (board.clone(), ears.clone());
        std::thread::Builder::new().name("duly-listen".into()).spawn(move || run_listener(&board, &socket, &ears))
    };
    spawn().map(drop).inspect_err(|_| ears.end_listening())
}

/// Waits for notifications and delivers them, until the node has no subscription.
fn run_listener(board: &NodeRegistry, socket: &UnixDatagram, ears: &NodeSubscriptions) {
    let mut peers = ProcessWatch::default();
    let mut reading: Option<MessageReader> = None;
    let mut letter = [0; DATAGRAM_BYTES_MAX];
    let mut at_most = POLL_INTERVAL;
    while !ears.end_listening_if_unused() {
        peers.watch_new(board);
        if peers.wait_for_exit(socket, at_most) {
            board.slots().clear_dead();
            ears.wake(Wake::Heartbeat);
            // The locks of the ended process are free, and its waiters are gone.
            ears.notify(Notification::CheckTurns);
        }
        let (mut letters, mut ends) = (0, false);
        while let Ok(len) = socket.recv(&mut letter) {
            let letter = Datagram::parse(&letter[..len]);
            (letters, ends) = (letters + 1, ends || matches!(letter, Some(Datagram::Completed(_))));
            dispatch(letter, ears);
        }
        if ends && letters >= OVERFLOW_DATAGRAMS_MIN {
            ears.notify(Notification::Completed(Vec::new()));
        }
        // Must run after the datagrams: a sender that found the socket full has put its message on the bus before.
        reading = ears.take_message_reader().or(reading).filter(|_| ears.is_subscribed_to_messages());
        let more = reading.as_mut().is_some_and(|reading| reading.deliver_new(ears));
        at_most = if more { BACKLOG_POLL_INTERVAL } else { POLL_INTERVAL };
    }
}

fn dispatch(letter: Option<Datagram>, ears: &NodeSubscriptions) {
    let _ = match letter {
        Some(Datagram::Wake(queue)) => ears.wake(Wake::Queue(queue)),
        Some(Datagram::LockTurn { name, owner }) => ears.notify(Notification::LockTurn { name, owner }),
        Some(Datagram::Completed(ids)) => ears.notify(Notification::Completed(ids)),
        Some(Datagram::Gap) => ears.notify(Notification::Gap),
        // The bus is read after every datagram.
        Some(Datagram::NewMessage) | None => false,
    };
}
