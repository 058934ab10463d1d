//! What a proxy does with the bytes of each connection: two threads, one for each way.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::proxy::Direction;

const CHUNK: usize = 64 * 1024;
/// Far longer than it takes a server to read what it is sent.
const HAND_ON_MAX: Duration = Duration::from_secs(20);

/// What all connections of a proxy share.
pub struct Wire {
    target: u16,
    rules: Mutex<Rules>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Rules {
    pub refusing: bool,
    /// By direction.
    pub frozen: [bool; 2],
    /// Requests of these connections are kept back, whatever becomes of who sent them.
    pub held: HashSet<u64>,
    /// Those of them that have sent something since.
    pub kept: HashSet<u64>,
    pub delay: [Duration; 2],
    /// The reply to the next request that contains one of these is lost.
    pub to_drop: Vec<Vec<u8>>,
    pub probability: f64,
    pub random: u64,
    pub dropped: usize,
    pub open: HashMap<u64, Open>,
    last: u64,
}

/// An open connection.
pub struct Open {
    client: TcpStream,
    server: TcpStream,
    doom: Doom,
}

/// Whether the reply to a request on this connection shall be lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doom {
    None,
    /// The request is being handed on: to close now would keep the server from executing it.
    Coming,
    Sent,
}

impl Wire {
    pub fn new(target: u16) -> Wire {
        Wire { target, rules: Mutex::default(), changed: Condvar::new() }
    }

    pub fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("nobody panics with it")
    }

    /// Tells connections that wait to look at the rules again.
    pub fn announce(&self) {
        self.changed.notify_all();
    }

    /// Lets through what was kept back, and waits until all of it is handed on, or the server wants no more of it.
    pub fn hand_on(&self) {
        self.rules().held.clear();
        self.announce();
        let kept = |rules: &mut Rules| !rules.kept.is_empty();
        let waited = self.changed.wait_timeout_while(self.rules(), HAND_ON_MAX, kept).expect("nobody panics with it");
        let in_time = !waited.1.timed_out();
        drop(waited);
        assert!(in_time, "a server does not take what is handed on");
    }

    fn handed_on(&self, id: u64) {
        self.rules().kept.remove(&id);
        self.announce();
    }

    pub fn cut(&self) {
        for (_, open) in self.rules().open.drain() {
            // Fails only if the other side was quicker.
            let _ = open.client.shutdown(Shutdown::Both);
            let _ = open.server.shutdown(Shutdown::Both);
        }
        self.announce();
    }

    /// Waits as the rules say, and answers whether the connection still stands.
    fn may_pass(&self, id: u64, direction: Direction) -> bool {
        let way = direction as usize;
        let delay = self.rules().delay[way];
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut rules = self.rules();
        let held = |rules: &Rules| direction == Direction::Requests && rules.held.contains(&id);
        if held(&rules) {
            rules.kept.insert(id);
        }
        while (rules.frozen[way] || held(&rules)) && rules.open.contains_key(&id) {
            rules = self.changed.wait(rules).expect("nobody panics with it");
        }
        rules.open.contains_key(&id)
    }

    /// Where what is handed on next ends: a transaction goes as a whole where a reply may be lost.
    fn next_end(&self, held: &[u8]) -> Option<usize> {
        let to_drop = !self.rules().to_drop.is_empty();
        if to_drop { step_end(held) } else { request_end(held) }
    }

    /// Notes that a request is about to be handed on, and answers whether its reply shall be lost.
    fn dooms(&self, id: u64, request: &[u8]) -> bool {
        let mut rules = self.rules();
        let Some(hit) = rules.to_drop.iter().position(|text| contains(request, text)) else { return false };
        let Some(open) = rules.open.get_mut(&id).filter(|open| open.doom == Doom::None) else { return false };
        open.doom = Doom::Coming;
        rules.to_drop.remove(hit);
        true
    }

    /// Notes that the doomed request was handed on.
    fn doomed_is_sent(&self, id: u64) {
        if let Some(open) = self.rules().open.get_mut(&id) {
            open.doom = Doom::Sent;
        }
        self.announce();
    }

    /// Whether what the server just sent shall be lost.
    fn is_to_drop(&self, id: u64) -> bool {
        let mut rules = self.rules();
        let doom = |rules: &Rules| rules.open.get(&id).map_or(Doom::None, |open| open.doom);
        while doom(&rules) == Doom::Coming {
            rules = self.changed.wait(rules).expect("nobody panics with it");
        }
        let drop = doom(&rules) == Doom::Sent || (rules.probability > 0.0 && rules.draw() < rules.probability);
        rules.dropped += usize::from(drop);
        drop
    }
}

impl Rules {
    /// The next random number from 0 to 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|window| window == text)
}

/// Connects a client with the server, and hands on between them in two threads that end with the connection.
pub fn join(wire: &Arc<Wire>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", wire.target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let open = Open { client: client.try_clone()?, server: server.try_clone()?, doom: Doom::None };
    let id = {
        let mut rules = wire.rules();
        rules.last += 1;
        let id = rules.last;
        rules.open.insert(id, open);
        id
    };
    let (up, down) = ((client.try_clone()?, server.try_clone()?), (server, client));
    let (for_requests, for_replies) = (wire.clone(), wire.clone());
    std::thread::spawn(move || requests(&for_requests, id, up.0, up.1));
    std::thread::spawn(move || replies(&for_replies, id, down.0, down.1));
    Ok(())
}

fn requests(wire: &Wire, id: u64, mut client: TcpStream, mut server: TcpStream) {
    let mut chunk = vec![0; CHUNK];
    let mut held = Vec::new();
    'open: while let Ok(length @ 1..) = client.read(&mut chunk) {
        held.extend_from_slice(&chunk[..length]);
        if !wire.may_pass(id, Direction::Requests) {
            break;
        }
        // Whole requests only, so that a text in one is found and a doomed one is executed.
        while let Some(end) = wire.next_end(&held) {
            let rest = held.split_off(end);
            let request = std::mem::replace(&mut held, rest);
            // Asked before it is handed on: the reply may come at once.
            let doomed = wire.dooms(id, &request);
            let sent = server.write_all(&request);
            if doomed {
                wire.doomed_is_sent(id);
            }
            if sent.is_err() {
                break 'open;
            }
        }
        wire.handed_on(id);
    }
    wire.handed_on(id);
    let _ = server.shutdown(Shutdown::Write);
}

/// Where the first request ends, or the transaction that begins with it, if it is whole: of a transaction nothing is executed before
/// its end, and the server answers from its beginning.
fn step_end(bytes: &[u8]) -> Option<usize> {
    let mut end = request_end(bytes)?;
    if is_word(&bytes[..end], "MULTI") {
        while !is_word(&bytes[..end], "EXEC") && !is_word(&bytes[..end], "DISCARD") {
            end += request_end(&bytes[end..])?;
        }
    }
    Some(end)
}

/// Whether the last of these requests is this word alone.
fn is_word(requests: &[u8], word: &str) -> bool {
    requests.ends_with(format!("*1\r\n${}\r\n{word}\r\n", word.len()).as_bytes())
}

/// Where the first request ends, if it is whole: `*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`. What is not in this form (TLS, a line
/// typed by hand) ends where it ends.
fn request_end(bytes: &[u8]) -> Option<usize> {
    let number_after = |at: usize, mark: u8| {
        let line = bytes.get(at..)?;
        let end = line.windows(2).position(|two| two == b"\r\n")?;
        let number = str::from_utf8(line[..end].strip_prefix(&[mark])?).ok()?.parse::<usize>().ok()?;
        Some((number, at + end + 2))
    };
    if *bytes.first()? != b'*' {
        return Some(bytes.len());
    }
    let (words, mut at) = number_after(0, b'*')?;
    for _ in 0..words {
        let (length, start) = number_after(at, b'$')?;
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

fn replies(wire: &Wire, id: u64, mut server: TcpStream, mut client: TcpStream) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(length @ 1..) = server.read(&mut chunk) {
        if !wire.may_pass(id, Direction::Replies) {
            break;
        }
        if wire.is_to_drop(id) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Write);
            // The server executes what it has read before it sees the end. To leave with its answers unread would
            // reset the connection, and it would drop what it has not read yet.
            while let Ok(1..) = server.read(&mut chunk) {}
            break;
        }
        if client.write_all(&chunk[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    wire.rules().open.remove(&id);
    wire.announce();
}
