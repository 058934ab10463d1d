//! A proxy in front of a server that injects network faults on demand.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::reserved;
use super::wire::{self, Wire};

/// The direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// Listens on its own port and forwards to a server. Stops when dropped.
pub struct Proxy {
    port: u16,
    wire: Arc<Wire>,
    /// The accepting thread; `None` while connections are refused.
    listener_thread: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy in front of the server on this port.
    pub fn start(target: u16) -> Proxy {
        let proxy =
            Proxy { port: reserved::port(), wire: Arc::new(Wire::new(target)), listener_thread: Mutex::new(None) };
        proxy.accept();
        proxy
    }

    /// Returns the port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Loses one reply: forwards the next request that contains `text`, then closes the connection instead of
    /// forwarding its reply. An empty text matches any request; a transaction is one request. Calls add up. Not over
    /// TLS.
    ///
    /// The server executes the request and all earlier requests of this connection. Replies to earlier requests may be
    /// lost too.
    pub fn drop_reply(&self, text: &str) {
        self.wire.rules().to_drop.push(text.as_bytes().to_vec());
    }

    /// Loses replies at random: with this probability, closes the connection when the server sends something. The same
    /// seed makes the same choices for the same order of replies. 0.0 ends it.
    pub fn drop_replies(&self, probability: f64, seed: u64) {
        let mut rules = self.wire.rules();
        (rules.probability, rules.random) = (probability, seed);
    }

    /// Returns the number of lost replies.
    pub fn dropped(&self) -> usize {
        self.wire.rules().dropped
    }

    /// Delays everything in this direction by `time`; zero ends it.
    pub fn delay(&self, direction: Direction, time: Duration) {
        self.wire.rules().delay[direction as usize] = time;
    }

    /// Forwards nothing in this direction until [`Proxy::thaw`]; connections stay open and no data is lost.
    pub fn freeze(&self, direction: Direction) {
        self.wire.rules().frozen[direction as usize] = true;
    }

    /// Ends [`Proxy::freeze`] in both directions.
    pub fn thaw(&self) {
        self.wire.rules().frozen = [false; 2];
        self.wire.notify();
    }

    /// Holds requests of all open connections until [`Proxy::hand_on`], even if clients close them meanwhile. New
    /// connections are not affected. Returns the number of held connections.
    pub fn hold(&self) -> usize {
        let mut rules = self.wire.rules();
        rules.held = rules.open.keys().copied().collect();
        rules.held.len()
    }

    /// Forwards held requests if the server still accepts them, and waits until that is done.
    pub fn hand_on(&self) {
        self.wire.hand_on();
    }

    /// Closes every connection and drops data in transit. New connections are accepted.
    pub fn cut(&self) {
        self.wire.cut();
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.wire.rules().open.len()
    }

    /// Stops listening: the system refuses new connections. Open ones stay.
    pub fn refuse(&self) {
        let Some(listener_thread) = self.listener_thread.lock().expect("no thread panics while holding it").take()
        else {
            return;
        };
        self.wire.rules().refusing = true;
        // Wakes the listener from `accept`, so that it sees that it shall stop.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        listener_thread.join().expect("the listener does not panic");
    }

    /// Accepts connections again.
    pub fn accept(&self) {
        let mut listener_thread = self.listener_thread.lock().expect("no thread panics while holding it");
        if listener_thread.is_some() {
            return;
        }
        self.wire.rules().refusing = false;
        let listener = TcpListener::bind(("127.0.0.1", self.port)).expect("our port is free");
        let wire = self.wire.clone();
        *listener_thread = Some(std::thread::spawn(move || listen(&listener, &wire)));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
        self.cut();
    }
}

fn listen(listener: &TcpListener, wire: &Arc<Wire>) {
    for client in listener.incoming() {
        if wire.rules().refusing {
            return;
        }
        // If the server is down, the client sees a connection that is closed at once.
        let _: io::Result<()> = client.and_then(|client| wire::join(wire, client));
    }
}
