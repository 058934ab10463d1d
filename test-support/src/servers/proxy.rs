//! A proxy of ours in front of a server, which fails on demand: the network of the tests.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::reserved;
use super::wire::{self, Wire};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// Listens on a port of its own and hands on to a server, until told otherwise. Ends when dropped.
pub struct Proxy {
    port: u16,
    wire: Arc<Wire>,
    /// Takes connections; None while they are refused.
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// A proxy in front of the server on this port.
    pub fn start(target: u16) -> Proxy {
        let proxy = Proxy { port: reserved::port(), wire: Arc::new(Wire::new(target)), listening: Mutex::new(None) };
        proxy.accept();
        proxy
    }

    /// Where clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Loses one reply: the next request that contains `text` is handed on, and when the server answers it, the client
    /// gets a closed connection instead. Empty text stands for any request; a transaction is one. Calls add up. Not over TLS.
    ///
    /// The server executes the request, and all that was sent before it on this connection, of which replies may be
    /// lost too.
    pub fn drop_reply(&self, text: &str) {
        self.wire.rules().to_drop.push(text.as_bytes().to_vec());
    }

    /// Loses replies at random from now on: whenever the server sends something, with this probability the client gets
    /// a closed connection instead. The same seed makes the same choices in the same order of replies. 0.0 ends it.
    pub fn drop_replies(&self, probability: f64, seed: u64) {
        let mut rules = self.wire.rules();
        (rules.probability, rules.random) = (probability, seed);
    }

    /// How many replies were lost so far.
    pub fn dropped(&self) -> usize {
        self.wire.rules().dropped
    }

    /// Holds back everything that goes this way for so long; zero ends it.
    pub fn delay(&self, direction: Direction, time: Duration) {
        self.wire.rules().delay[direction as usize] = time;
    }

    /// Lets nothing through this way until [`Proxy::thaw`]; connections stay open and nothing is lost.
    pub fn freeze(&self, direction: Direction) {
        self.wire.rules().frozen[direction as usize] = true;
    }

    /// Lets through what was frozen, both ways.
    pub fn thaw(&self) {
        self.wire.rules().frozen = [false; 2];
        self.wire.announce();
    }

    /// Keeps back what clients send over the connections that are open now, until [`Proxy::hand_on`]; also if they close them
    /// meanwhile. New ones are as any. Answers how many these are.
    pub fn hold(&self) -> usize {
        let mut rules = self.wire.rules();
        rules.held = rules.open.keys().copied().collect();
        rules.held.len()
    }

    /// Hands on what was kept back, where the server still takes it, and waits until that is done.
    pub fn hand_on(&self) {
        self.wire.hand_on();
    }

    /// Closes every connection now; what was on its way is lost. New ones are taken.
    pub fn cut(&self) {
        self.wire.cut();
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.wire.rules().open.len()
    }

    /// From now on nobody listens: new connections are refused by the system. Open ones stay.
    pub fn refuse(&self) {
        let Some(listening) = self.listening.lock().expect("nobody panics with it").take() else { return };
        self.wire.rules().refusing = true;
        // Wakes it from waiting for a connection, to see that it shall end.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        listening.join().expect("the listener does not panic");
    }

    /// Takes connections again.
    pub fn accept(&self) {
        let mut listening = self.listening.lock().expect("nobody panics with it");
        if listening.is_some() {
            return;
        }
        self.wire.rules().refusing = false;
        let listener = TcpListener::bind(("127.0.0.1", self.port)).expect("our port is free");
        let wire = self.wire.clone();
        *listening = Some(std::thread::spawn(move || listen(&listener, &wire)));
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
        // A server that is away looks to the client like a connection that is closed at once.
        let _: io::Result<()> = client.and_then(|client| wire::join(wire, client));
    }
}
