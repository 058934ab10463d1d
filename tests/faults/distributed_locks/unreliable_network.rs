//! A network that drops, delays and doubles single messages, and cuts connections.
//!
//! TCP loses no single message, so a proxy of bytes can only cut. But what a server *publishes* travels between its
//! replies as frames that answer no request: whole ones can be left out, sent twice or sent later, and the rest of the
//! connection never notices. So this proxy reads what comes from the server value by value (RESP3).

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const CHUNK: usize = 64 * 1024;
/// Nothing to do for so long.
const IDLE: Duration = Duration::from_secs(3600);

/// How likely what is, for each message.
#[derive(Clone, Copy)]
pub struct Odds {
    pub drop: f64,
    pub double: f64,
    pub delay: f64,
    pub delay_max: Duration,
}

/// What was done so far.
#[derive(Default)]
pub struct Done {
    pub passed: AtomicU64,
    pub dropped: AtomicU64,
    pub doubled: AtomicU64,
    pub delayed: AtomicU64,
    pub cuts: AtomicU64,
}

type Client = Arc<Mutex<TcpStream>>;

/// A message to be sent later.
struct Late {
    at: Instant,
    to: Client,
    frame: Vec<u8>,
}

struct Shared {
    target: u16,
    odds: Odds,
    done: Done,
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    late: Mutex<Sender<Late>>,
}

/// Listens on a port of its own for as long as the process lives.
pub struct Mangle {
    port: u16,
    shared: Arc<Shared>,
}

impl Mangle {
    /// In front of the server on this port.
    pub fn start(target: u16, odds: Odds) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("has one").port();
        let (late, delayed) = channel();
        let shared =
            Arc::new(Shared { target, odds, done: Done::default(), open: Mutex::default(), late: Mutex::new(late) });
        std::thread::spawn(move || deliver(&delayed));
        let listening = shared.clone();
        std::thread::spawn(move || {
            for (client, id) in listener.incoming().map_while(Result::ok).zip(0..) {
                // A server that is away looks to the client like a connection that is closed at once.
                let _ = join(&listening, id, client);
            }
        });
        Mangle { port, shared }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn done(&self) -> &Done {
        &self.shared.done
    }

    /// Cuts about half of the connections.
    pub fn cut(&self) {
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, ends| {
            let stays = fastrand::bool();
            if !stays {
                ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
                self.shared.done.cuts.fetch_add(1, Ordering::Relaxed);
            }
            stays
        });
    }
}

fn join(shared: &Arc<Shared>, id: u64, client: TcpStream) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = [client.try_clone()?, server.try_clone()?];
    shared.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, ends);
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let shared = shared.clone();
    std::thread::spawn(move || {
        replies(&shared, server, &Arc::new(Mutex::new(client)));
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    });
    Ok(())
}

/// Hands on what the server says until one side has had enough.
fn replies(shared: &Shared, mut server: TcpStream, client: &Client) {
    let (mut chunk, mut held) = (vec![0; CHUNK], Vec::new());
    while let Ok(length @ 1..) = server.read(&mut chunk) {
        held.extend_from_slice(&chunk[..length]);
        let mut at = 0;
        while let Some(end) = value_end(&held, at) {
            if !hand_on(shared, &held[at..end], client) {
                break;
            }
            at = end;
        }
        held.drain(..at);
    }
    let _ = lock(client).shutdown(Shutdown::Both);
}

fn hand_on(shared: &Shared, value: &[u8], client: &Client) -> bool {
    let Odds { drop, double, delay, delay_max } = shared.odds;
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    if !is_message(value) {
        return write(client, value).is_ok();
    }
    let later = || {
        let at = Instant::now() + delay_max.mul_f64(fastrand::f64());
        let late = Late { at, to: client.clone(), frame: value.to_vec() };
        shared.late.lock().unwrap_or_else(PoisonError::into_inner).send(late).is_ok()
    };
    let draw = fastrand::f64();
    if draw < drop {
        count(&shared.done.dropped);
        true
    } else if draw < drop + double {
        count(&shared.done.doubled);
        write(client, value).is_ok() && if fastrand::bool() { write(client, value).is_ok() } else { later() }
    } else if draw < drop + double + delay {
        count(&shared.done.delayed);
        later()
    } else {
        count(&shared.done.passed);
        write(client, value).is_ok()
    }
}

fn lock(client: &Client) -> std::sync::MutexGuard<'_, TcpStream> {
    client.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(client: &Client, bytes: &[u8]) -> std::io::Result<()> {
    lock(client).write_all(bytes)
}

/// Sends what is late when its time has come.
fn deliver(delayed: &Receiver<Late>) {
    let mut waiting: BTreeMap<(Instant, u64), Late> = BTreeMap::new();
    for n in 0.. {
        let wait = waiting.keys().next().map_or(IDLE, |(at, _)| at.saturating_duration_since(Instant::now()));
        match delayed.recv_timeout(wait) {
            Ok(late) => drop(waiting.insert((late.at, n), late)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            let late = first.remove();
            // Its connection may be gone by now.
            let _ = write(&late.to, &late.frame);
        }
    }
}

/// Whether a value is something that was published.
fn is_message(value: &[u8]) -> bool {
    value.starts_with(b">") && value.windows(8).take(64).any(|text| text == b"smessage" || text == b"\nmessage")
}

/// Where the value that begins here ends, if it is whole.
fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    let line = bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
    let (kind, rest, mut end) = (*bytes.get(at)?, &bytes[at + 1..at + line], at + line + 2);
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
