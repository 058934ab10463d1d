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
use crate::store::sqlite::nodes::datagram::{LETTER_BYTES_MAX, Letter};
use crate::store::sqlite::nodes::process_watch::Peers;
use crate::store::sqlite::nodes::registry::Board;
use crate::store::sqlite::nodes::subscriptions::Ears;
use crate::store::sqlite::peers::messages::Reading;
use crate::store::{Heard, Wake};

/// How often to check for new processes to watch, and for messages that came without a datagram.
const LOOK: Duration = Duration::from_secs(1);
/// How soon to read messages again that had no room.
const LOOK_SOON: Duration = Duration::from_millis(5);
/// After this many datagrams at once the socket may have been full, and completions may be lost.
const MANY: usize = 8;
/// Most pending wakes of a worker: one for each of its queues.
const WAKES_MAX: usize = 1_024;

/// Subscribes a local node to wakes: from its own process by channel, from other processes by datagram, and from the
/// kernel if another process ends.
pub(crate) fn subscribe(board: &Arc<Board>, node: NodeId) -> io::Result<mpsc::Receiver<Wake>> {
    let ears = board.ears(node).ok_or_else(|| io::Error::other("the node has not sent a heartbeat yet"))?;
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    ears.start_waking(wakes);
    start(board, node)?;
    Ok(receiver)
}

/// Starts the listener of a node, unless it is running.
pub(crate) fn start(board: &Arc<Board>, node: NodeId) -> io::Result<()> {
    let (Some(slot), Some(ears)) = (board.slot_of(node), board.ears(node)) else {
        return Ok(());
    };
    if !board.is_shared() || !ears.begin_listening() {
        return Ok(());
    }
    let spawn = || {
        let socket = datagram::open(&board.socket(slot))?;
        let (board, ears) = (board.clone(), ears.clone());
        std::thread::Builder::new().name("duly-listen".into()).spawn(move || listen(&board, &socket, &ears))
    };
    spawn().map(drop).inspect_err(|_| ears.stop_listening())
}

/// Waits for notifications and delivers them, until the node has no subscription.
fn listen(board: &Board, socket: &UnixDatagram, ears: &Ears) {
    let mut peers = Peers::default();
    let mut reading: Option<Reading> = None;
    let mut letter = [0; LETTER_BYTES_MAX];
    let mut at_most = LOOK;
    while !ears.rest() {
        peers.watch(board);
        if peers.wait(socket, at_most) {
            board.slots().sweep();
            ears.wake(Wake::Beat);
            // The locks of the ended process are free, and its waiters are gone.
            ears.tell(Heard::Look);
        }
        let (mut letters, mut ends) = (0, false);
        while let Ok(len) = socket.recv(&mut letter) {
            let letter = Letter::parse(&letter[..len]);
            (letters, ends) = (letters + 1, ends || matches!(letter, Some(Letter::Ended(_))));
            pass_on(letter, ears);
        }
        if ends && letters >= MANY {
            ears.tell(Heard::Ended(Vec::new()));
        }
        // Must run after the datagrams: a sender that found the socket full has put its message on the bus before.
        reading = ears.take_reading().or(reading).filter(|_| ears.hears());
        let more = reading.as_mut().is_some_and(|reading| reading.read(ears));
        at_most = if more { LOOK_SOON } else { LOOK };
    }
}

fn pass_on(letter: Option<Letter>, ears: &Ears) {
    let _ = match letter {
        Some(Letter::Queue(queue)) => ears.wake(Wake::Queue(queue)),
        Some(Letter::Turn { name, owner }) => ears.tell(Heard::Turn { name, owner }),
        Some(Letter::Ended(ids)) => ears.tell(Heard::Ended(ids)),
        Some(Letter::Gap) => ears.tell(Heard::Gap),
        // The bus is read after every datagram.
        Some(Letter::Bus) | None => false,
    };
}
