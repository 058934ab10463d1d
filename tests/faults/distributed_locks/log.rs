//! The log of a client's locks. Each event is written at once, so that a killed client's events are kept.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::distributed_locks::clock::boot_micros;

/// An event of a client, with its time on the shared clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub at: i64,
    /// The number of the client's request.
    pub request: u64,
    pub event: LockEvent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// Is about to request this lock.
    Requested(String),
    /// Has acquired it with this fence, until then by its own clock.
    Acquired { fence: u64, until: i64 },
    /// Still holds it, until then by its own clock.
    Held { until: i64 },
    /// Is about to release it.
    Releasing,
    /// Has learnt that it is lost.
    Lost,
}

pub struct Log(File);

impl Log {
    pub fn at(path: &Path) -> Self {
        Log(File::create(path).expect("a file of the test's own"))
    }

    /// Writes an event of this moment.
    pub fn now(&mut self, request: u64, event: LockEvent) {
        self.write(&LogEntry { at: boot_micros(), request, event });
    }

    pub fn write(&mut self, entry: &LogEntry) {
        let LogEntry { at, request, event } = entry;
        let event = match event {
            LockEvent::Requested(name) => format!("requested {name}"),
            LockEvent::Acquired { fence, until } => format!("acquired {fence} {until}"),
            LockEvent::Held { until } => format!("held {until}"),
            LockEvent::Releasing => "releasing".into(),
            LockEvent::Lost => "lost".into(),
        };
        // In one system call.
        self.0.write_all(format!("{at} {request} {event}\n").as_bytes()).expect("writes");
    }
}

/// Returns all events of a client. A last line that was cut off by its death is ignored.
pub fn read(path: &Path) -> Vec<LogEntry> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{}: {line:?}", path.display()))).collect()
}

fn parse(line: &str) -> Option<LogEntry> {
    let words: Vec<&str> = line.split(' ').collect();
    let (at, request) = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
    let event = match words[2..] {
        ["requested", name] => LockEvent::Requested(name.into()),
        ["acquired", fence, until] => LockEvent::Acquired { fence: fence.parse().ok()?, until: until.parse().ok()? },
        ["held", until] => LockEvent::Held { until: until.parse().ok()? },
        ["releasing"] => LockEvent::Releasing,
        ["lost"] => LockEvent::Lost,
        _ => return None,
    };
    Some(LogEntry { at, request, event })
}

#[test]
fn log_lines_parse_as_written() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("log");
    let events = [
        LockEvent::Requested("a".into()),
        LockEvent::Acquired { fence: 7, until: 8 },
        LockEvent::Held { until: 9 },
        LockEvent::Releasing,
        LockEvent::Lost,
    ];
    let entries: Vec<LogEntry> =
        events.into_iter().zip(1..).map(|(event, at)| LogEntry { at, request: 3, event }).collect();
    let mut log = Log::at(&path);
    entries.iter().for_each(|entry| log.write(entry));
    log.0.write_all(b"12 3 hel").expect("writes");
    assert_eq!(read(&path), entries);
}
