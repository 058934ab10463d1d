//! The formats of stored texts, as `record.rs` and the scripts define them.

use std::fmt::Write as _;

pub type Bytes = Vec<u8>;

/// The maximum of every counter.
pub const COUNT_MAX: u32 = u32::MAX >> 1;

/// The mutable fields of a job after a failure or a change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meta {
    pub due: i64,
    pub changed: i64,
    pub attempts: u32,
    pub crashes: u32,
    pub runs: u32,
    pub turn: u32,
}

impl Meta {
    pub fn text(&self) -> Bytes {
        format!("{:016}{:016}{}", self.due, self.changed, self.counts()).into_bytes()
    }

    pub fn counts(&self) -> String {
        format!("{:010}{:010}{:010}{:010}", self.attempts, self.crashes, self.runs, self.turn)
    }

    pub fn read(text: &[u8]) -> Option<Meta> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() >= 72 && text.is_ascii())?;
        let small = |from: usize| text[from..from + 10].parse().ok();
        let (due, changed) = (text[..16].parse().ok()?, text[16..32].parse().ok()?);
        Some(Meta { due, changed, attempts: small(32)?, crashes: small(42)?, runs: small(52)?, turn: small(62)? })
    }
}

/// Returns a record; scripts read its priority, the store also its unique key.
pub fn record(priority: u8, key: &str, args: &str) -> Bytes {
    // Records with a key have tags, one of them twice.
    let tags = if key.is_empty() { "" } else { "blue red blue" };
    format!("1{priority}\tkind\t5\t\t\t\t\t{key}\t{tags}\t\n{args}").into_bytes()
}

/// Returns the index terms of a record: its kind and its tags.
pub fn index_terms(record: &[u8]) -> String {
    let head = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let fields: Vec<_> = head.split(|byte| *byte == b'\t').map(String::from_utf8_lossy).collect();
    match (fields.get(1), fields.get(8)) {
        (Some(kind), Some(tags)) if tags.is_empty() => kind.to_string(),
        (Some(kind), Some(tags)) => format!("{kind} {tags}"),
        _ => String::new(),
    }
}

/// Returns the index members of a job: one per term, with its state and time.
pub fn members(state: char, terms: &str, moment: &str, id: &[u8]) -> Vec<Bytes> {
    let terms = terms.split(' ').filter(|term| !term.is_empty()).enumerate();
    let terms = terms.map(|(n, term)| format!("{state}{}{term}\0{moment}", if n == 0 { 'k' } else { 't' }));
    terms.map(|term| [term.as_bytes(), id].concat()).collect()
}

/// Returns the priority in a record; an invalid one counts as normal.
pub fn priority_of(record: &[u8]) -> u8 {
    record.get(1).filter(|digit| (b'0'..=b'3').contains(digit)).map_or(2, |digit| digit - b'0')
}

pub fn key_of(record: &[u8]) -> String {
    let head = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let key = head.split(|byte| *byte == b'\t').nth(7).unwrap_or_default();
    String::from_utf8_lossy(key).into_owned()
}

/// Returns the flag of a job: its priority, as a letter if it has a meta.
pub fn flag(priority: u8, has_meta: bool) -> u8 {
    priority + if has_meta { b'a' } else { b'0' }
}

/// Returns the ticket of a job: id, flag and turn.
pub fn ticket(id: &[u8], priority: u8, turn: Option<u32>) -> Bytes {
    let turn_text = turn.map(|turn| turn.to_string()).unwrap_or_default();
    [id, &[flag(priority, turn.is_some())], turn_text.as_bytes()].concat()
}

/// Returns the ticket in the schedule, which ends with the index terms.
pub fn due_ticket(id: &[u8], record: &[u8], turn: Option<u32>) -> Bytes {
    [&ticket(id, priority_of(record), turn), &b" "[..], index_terms(record).as_bytes()].concat()
}

/// Returns the hint that a job of this kind was deferred until a time.
pub fn deferred_hint(kind: &str, priority: u8, due_ticket: &[u8], due: i64) -> Bytes {
    [format!("{kind}\0{priority}").as_bytes(), due_ticket, format!("{due:016}").as_bytes()].concat()
}

/// Returns the ticket in a ready list: only the id for a job without a meta.
pub fn ready_ticket(id: &[u8], priority: u8, turn: Option<u32>) -> Bytes {
    if turn.is_some() { ticket(id, priority, turn) } else { id.to_vec() }
}

pub fn held_value(node: &str, fence: i64, flag: u8) -> Bytes {
    format!("{:<64}{}", format!("{node} {fence:016}"), char::from(flag)).into_bytes()
}

/// Returns node, fence and flag of a held value; defaults for damaged parts.
pub fn read_held(value: &[u8]) -> (String, i64, u8) {
    let text = |from: usize, to: usize| String::from_utf8_lossy(value.get(from..to).unwrap_or_default());
    (text(0, 36).into_owned(), text(37, 53).parse().unwrap_or(0), value.get(64).copied().unwrap_or(0))
}

/// Returns the id in a ticket; of a damaged one, the rest of it.
pub fn id_of(ticket: &[u8]) -> &[u8] {
    ticket.get(..16).unwrap_or(ticket)
}

/// Returns a run without its time: a failure or a release.
pub fn run(attempt: u32, node: &str, outcome: char) -> String {
    let error = if outcome == 'l' { "" } else { "oh" };
    format!("{attempt:010}{node}{outcome}{:016}{:016}{:05}{error}output", 5, 7, error.len())
}

/// Returns the ack of a done job.
pub fn ack(node: &str) -> String {
    format!("{node} 5 7 output")
}

/// Escapes bytes for display.
pub fn shown(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => write!(text, "\\x{byte:02x}").expect("a text can grow"),
        }
        text
    })
}
