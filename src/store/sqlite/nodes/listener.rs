//! Listening: one thread for each node of this process to which other processes can speak.
//!
//! It takes letters from the node's socket, messages from the bus, and the kernel's word that a peer has ended.

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

/// How often to look for new peers to watch, and for messages whose letter was lost.
const LOOK: Duration = Duration::from_secs(1);
/// How soon to look again for messages for which there was no room.
const LOOK_SOON: Duration = Duration::from_millis(5);
/// So many letters at once: there may have been no room for more, and some ends may not have been told.
const MANY: usize = 8;
/// Wakes that may wait for a worker: one for each queue that it can have.
const WAKES_MAX: usize = 1_024;

/// The wakes for a node of this process: from its own process through the channel,
/// from others by letter, and from the kernel when a peer's process ends.
pub(crate) fn subscribe(board: &Arc<Board>, node: NodeId) -> io::Result<mpsc::Receiver<Wake>> {
    let ears = board.ears(node).ok_or_else(|| io::Error::other("the node has not beaten yet"))?;
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    ears.start_waking(wakes);
    start(board, node)?;
    Ok(receiver)
}

/// Starts to listen for a node, unless somebody does.
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

/// Sleeps until something comes, and passes it on, until nobody wants it any more.
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
            // What it held is free, and its places in lines are.
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
        // After the letters: who could not send one because too many were here has put its message there before.
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
        // The bus is looked at whatever the letter says.
        Some(Letter::Bus) | None => false,
    };
}
