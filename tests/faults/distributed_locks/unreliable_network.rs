//! A network that drops, delays and duplicates single messages, and cuts connections.
//!
//! TCP loses no single message, so a proxy of bytes can only cut. But *published* messages travel between the server's
//! replies as separate frames. Frames can be dropped, duplicated or delayed without any effect on the rest of the
//! connection. This proxy therefore parses the server's output value by value (RESP3).

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use test_support::lock;

const CHUNK: usize = 64 * 1024;
/// Wait while no message is delayed.
const IDLE: Duration = Duration::from_secs(3600);

/// The probability of each fault, per message.
#[derive(Clone, Copy)]
pub struct Odds {
    pub drop: f64,
    pub duplicate: f64,
    pub delay: f64,
    pub delay_max: Duration,
}

/// The number of faults so far.
#[derive(Default)]
pub struct FaultCounts {
    pub passed: AtomicU64,
    pub dropped: AtomicU64,
    pub duplicated: AtomicU64,
    pub delayed: AtomicU64,
    pub cuts: AtomicU64,
}

type Client = Arc<Mutex<TcpStream>>;

/// A delayed message.
struct DelayedMessage {
    at: Instant,
    to: Client,
    frame: Vec<u8>,
}

struct Shared {
    target: u16,
    odds: Odds,
    faults: FaultCounts,
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    delayed: Mutex<Sender<DelayedMessage>>,
}

/// A proxy that listens on its own port until the process ends.
pub struct UnreliableProxy {
    port: u16,
    shared: Arc<Shared>,
}

impl UnreliableProxy {
    /// Starts a proxy in front of the server on this port.
    pub fn start(target: u16, odds: Odds) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("has one").port();
        let (sender, receiver) = channel();
        let shared = Arc::new(Shared {
            target,
            odds,
            faults: FaultCounts::default(),
            open: Mutex::default(),
            delayed: Mutex::new(sender),
        });
        std::thread::spawn(move || deliver(&receiver));
        let listener_shared = shared.clone();
        std::thread::spawn(move || {
            for (client, id) in listener.incoming().map_while(Result::ok).zip(0..) {
                // If the server is down, the client sees a connection that is closed at once.
                let _ = join(&listener_shared, id, client);
            }
        });
        UnreliableProxy { port, shared }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn faults(&self) -> &FaultCounts {
        &self.shared.faults
    }

    /// Cuts about half of the connections.
    pub fn cut(&self) {
        lock(&self.shared.open).retain(|_, streams| {
            let stays = fastrand::bool();
            if !stays {
                streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                self.shared.faults.cuts.fetch_add(1, Ordering::Relaxed);
            }
            stays
        });
    }
}

fn join(shared: &Arc<Shared>, id: u64, client: TcpStream) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let streams = [client.try_clone()?, server.try_clone()?];
    lock(&shared.open).insert(id, streams);
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let shared = shared.clone();
    std::thread::spawn(move || {
        replies(&shared, server, &Arc::new(Mutex::new(client)));
        lock(&shared.open).remove(&id);
    });
    Ok(())
}

/// Forwards the server's output until one side closes.
fn replies(shared: &Shared, mut server: TcpStream, client: &Client) {
    let (mut chunk, mut pending) = (vec![0; CHUNK], Vec::new());
    while let Ok(length @ 1..) = server.read(&mut chunk) {
        pending.extend_from_slice(&chunk[..length]);
        let mut start = 0;
        while let Some(end) = value_end(&pending, start) {
            if !forward(shared, &pending[start..end], client) {
                break;
            }
            start = end;
        }
        pending.drain(..start);
    }
    let _ = lock(client).shutdown(Shutdown::Both);
}

fn forward(shared: &Shared, value: &[u8], client: &Client) -> bool {
    let Odds { drop, duplicate, delay, delay_max } = shared.odds;
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    if !is_message(value) {
        return write(client, value).is_ok();
    }
    let later = || {
        let at = Instant::now() + delay_max.mul_f64(fastrand::f64());
        let delayed = DelayedMessage { at, to: client.clone(), frame: value.to_vec() };
        lock(&shared.delayed).send(delayed).is_ok()
    };
    let draw = fastrand::f64();
    if draw < drop {
        count(&shared.faults.dropped);
        true
    } else if draw < drop + duplicate {
        count(&shared.faults.duplicated);
        write(client, value).is_ok() && if fastrand::bool() { write(client, value).is_ok() } else { later() }
    } else if draw < drop + duplicate + delay {
        count(&shared.faults.delayed);
        later()
    } else {
        count(&shared.faults.passed);
        write(client, value).is_ok()
    }
}

fn write(client: &Client, bytes: &[u8]) -> std::io::Result<()> {
    lock(client).write_all(bytes)
}

/// Sends each delayed message at its time.
fn deliver(receiver: &Receiver<DelayedMessage>) {
    let mut waiting: BTreeMap<(Instant, u64), DelayedMessage> = BTreeMap::new();
    for n in 0.. {
        let wait = waiting.keys().next().map_or(IDLE, |(at, _)| at.saturating_duration_since(Instant::now()));
        match receiver.recv_timeout(wait) {
            Ok(message) => drop(waiting.insert((message.at, n), message)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            let message = first.remove();
            // The connection may be closed by now.
            let _ = write(&message.to, &message.frame);
        }
    }
}

/// Returns whether a value is a published message.
fn is_message(value: &[u8]) -> bool {
    value.starts_with(b">") && value.windows(8).take(64).any(|text| text == b"smessage" || text == b"\nmessage")
}

/// Returns the end of the value at this offset, if it is complete.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    let line = bytes.get(start..)?.windows(2).position(|two| two == b"\r\n")?;
    let (kind, rest, mut end) = (*bytes.get(start)?, &bytes[start + 1..start + line], start + line + 2);
    let number = || str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(-1);
    let values = match kind {
        b'$' | b'=' | b'!' if number() >= 0 => {
            end += number().unsigned_abs() as usize + 2;
            0
        }
        b'*' | b'~' | b'>' => number().max(0),
        b'%' => 2 * number().max(0),
        b'|' => 2 * number().max(0) + 1,
        _ => 0,
    };
    for _ in 0..values {
        end = value_end(bytes, end)?;
    }
    (end <= bytes.len()).then_some(end)
}

#[test]
fn protocol_values_are_split_at_their_end() {
    for whole in [
        "+OK\r\n",
        "$3\r\nabc\r\n",
        "$-1\r\n",
        "_\r\n",
        "*2\r\n:1\r\n*1\r\n$0\r\n\r\n",
        "%1\r\n+a\r\n$2\r\n\r\n\r\n",
        ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$4\r\n\r\n\r\n\r\n",
    ] {
        let bytes = whole.as_bytes();
        assert_eq!(value_end(&[bytes, b"+more\r\n"].concat(), 0), Some(bytes.len()), "{whole:?}");
        for cut in 0..bytes.len() {
            assert_eq!(value_end(&bytes[..cut], 0), None, "{whole:?} cut at {cut}");
        }
        assert_eq!(is_message(bytes), whole.starts_with('>'));
    }
}
