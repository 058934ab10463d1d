//! Forwarding of the bytes of a proxy's connections, with one thread per direction.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::proxy::Direction;

const CHUNK: usize = 64 * 1024;
/// Far longer than a server takes to read the data.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(20);

/// The state shared by all connections of a proxy.
pub struct Wire {
    target: u16,
    rules: Mutex<Rules>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Rules {
    pub refusing: bool,
    /// Indexed by direction.
    pub frozen: [bool; 2],
    /// Connections with held requests, even if their client has closed them.
    pub held: HashSet<u64>,
    /// Held connections that have sent something since.
    pub held_with_data: HashSet<u64>,
    pub delay: [Duration; 2],
    /// The reply to the next request that contains one of these texts is lost.
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
    loss: ReplyLoss,
}

/// Whether the reply to a request on this connection is to be lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyLoss {
    None,
    /// The request is being forwarded: closing now would prevent its execution.
    Forwarding,
    Forwarded,
}

impl Wire {
    pub fn new(target: u16) -> Wire {
        Wire { target, rules: Mutex::default(), changed: Condvar::new() }
    }

    pub fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("no thread panics while holding it")
    }

    /// Wakes connections that wait for a change of the rules.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Releases held requests, and waits until all of them are forwarded or the server rejects them.
    pub fn hand_on(&self) {
        self.rules().held.clear();
        self.notify();
        let has_pending = |rules: &mut Rules| !rules.held_with_data.is_empty();
        let waited = self
            .changed
            .wait_timeout_while(self.rules(), FORWARD_TIMEOUT, has_pending)
            .expect("no thread panics while holding it");
        let in_time = !waited.1.timed_out();
        drop(waited);
        assert!(in_time, "timed out waiting for the server to accept forwarded requests");
    }

    fn mark_forwarded(&self, id: u64) {
        self.rules().held_with_data.remove(&id);
        self.notify();
    }

    pub fn cut(&self) {
        for (_, open) in self.rules().open.drain() {
            // Fails only if the other side has closed it first.
            let _ = open.client.shutdown(Shutdown::Both);
            let _ = open.server.shutdown(Shutdown::Both);
        }
        self.notify();
    }

    /// Waits as the rules demand, and returns whether the connection is still open.
    fn may_pass(&self, id: u64, direction: Direction) -> bool {
        let index = direction as usize;
        let delay = self.rules().delay[index];
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut rules = self.rules();
        let is_held = |rules: &Rules| direction == Direction::Requests && rules.held.contains(&id);
        if is_held(&rules) {
            rules.held_with_data.insert(id);
        }
        while (rules.frozen[index] || is_held(&rules)) && rules.open.contains_key(&id) {
            rules = self.changed.wait(rules).expect("no thread panics while holding it");
        }
        rules.open.contains_key(&id)
    }

    /// Returns the end of the next chunk to forward. If a reply is to be lost, a transaction is forwarded whole.
    fn next_end(&self, pending: &[u8]) -> Option<usize> {
        let to_drop = !self.rules().to_drop.is_empty();
        if to_drop { transaction_end(pending) } else { request_end(pending) }
    }

    /// Returns whether the reply to this request is to be lost, and if so marks the connection before it is forwarded.
    fn marks_for_loss(&self, id: u64, request: &[u8]) -> bool {
        let mut rules = self.rules();
        let Some(hit) = rules.to_drop.iter().position(|text| contains(request, text)) else { return false };
        let Some(open) = rules.open.get_mut(&id).filter(|open| open.loss == ReplyLoss::None) else { return false };
        open.loss = ReplyLoss::Forwarding;
        rules.to_drop.remove(hit);
        true
    }

    /// Records that the request with the lost reply was forwarded.
    fn loss_is_forwarded(&self, id: u64) {
        if let Some(open) = self.rules().open.get_mut(&id) {
            open.loss = ReplyLoss::Forwarded;
        }
        self.notify();
    }

    /// Returns whether the data that the server just sent is to be lost.
    fn is_to_drop(&self, id: u64) -> bool {
        let mut rules = self.rules();
        let loss = |rules: &Rules| rules.open.get(&id).map_or(ReplyLoss::None, |open| open.loss);
        while loss(&rules) == ReplyLoss::Forwarding {
            rules = self.changed.wait(rules).expect("no thread panics while holding it");
        }
        let drop =
            loss(&rules) == ReplyLoss::Forwarded || (rules.probability > 0.0 && rules.draw() < rules.probability);
        rules.dropped += usize::from(drop);
        drop
    }
}

impl Rules {
    /// Returns the next random number between 0 and 1 (SplitMix64).
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

/// Connects a client with the server. Two threads forward between them, and end with the connection.
pub fn join(wire: &Arc<Wire>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", wire.target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let open = Open { client: client.try_clone()?, server: server.try_clone()?, loss: ReplyLoss::None };
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
    let mut pending = Vec::new();
    'open: while let Ok(length @ 1..) = client.read(&mut chunk) {
        pending.extend_from_slice(&chunk[..length]);
        if !wire.may_pass(id, Direction::Requests) {
            break;
        }
        // Only whole requests are forwarded, so that a text is found and a request with a lost reply is executed.
        while let Some(end) = wire.next_end(&pending) {
            let rest = pending.split_off(end);
            let request = std::mem::replace(&mut pending, rest);
            // Checked before forwarding, since the reply may arrive at once.
            let loses_reply = wire.marks_for_loss(id, &request);
            let sent = server.write_all(&request);
            if loses_reply {
                wire.loss_is_forwarded(id);
            }
            if sent.is_err() {
                break 'open;
            }
        }
        wire.mark_forwarded(id);
    }
    wire.mark_forwarded(id);
    let _ = server.shutdown(Shutdown::Write);
}

/// Returns the end of the first request, or of the transaction that starts with it, if complete. The server replies to
/// the start of a transaction, but executes nothing before its end.
fn transaction_end(bytes: &[u8]) -> Option<usize> {
    let mut end = request_end(bytes)?;
    if is_word(&bytes[..end], "MULTI") {
        while !is_word(&bytes[..end], "EXEC") && !is_word(&bytes[..end], "DISCARD") {
            end += request_end(&bytes[end..])?;
        }
    }
    Some(end)
}

/// Returns whether the last of these requests consists of this word only.
fn is_word(requests: &[u8], word: &str) -> bool {
    requests.ends_with(format!("*1\r\n${}\r\n{word}\r\n", word.len()).as_bytes())
}

/// Returns the end of the first request if it is complete: `*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`. All bytes in any other
/// form (TLS, inline commands) count as one request.
fn request_end(bytes: &[u8]) -> Option<usize> {
    let number_after = |offset: usize, mark: u8| {
        let line = bytes.get(offset..)?;
        let end = line.windows(2).position(|two| two == b"\r\n")?;
        let number = str::from_utf8(line[..end].strip_prefix(&[mark])?).ok()?.parse::<usize>().ok()?;
        Some((number, offset + end + 2))
    };
    if *bytes.first()? != b'*' {
        return Some(bytes.len());
    }
    let (words, mut end) = number_after(0, b'*')?;
    for _ in 0..words {
        let (length, start) = number_after(end, b'$')?;
        end = start + length + 2;
    }
    (end <= bytes.len()).then_some(end)
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
            // The server executes all requests it has read before it sees the end of the connection. Leaving its
            // replies unread would reset the connection, and it would drop requests that it has not read yet.
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
    wire.notify();
}
