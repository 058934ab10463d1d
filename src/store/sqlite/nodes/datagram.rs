//! Datagrams between processes, sent to the socket of a slot. They may be lost.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::job::JobId;
use crate::store::Owner;

/// Longest path that fits into a socket address on every system.
const SOCKET_PATH_MAX: usize = 100;
/// Longest datagram.
pub(crate) const LETTER_BYTES_MAX: usize = 4_096;
/// Most job ids in one datagram.
pub(crate) const LETTER_IDS_MAX: usize = (LETTER_BYTES_MAX - 2) / 16;

/// First byte of every datagram but the name of a queue, which cannot contain it.
const HALL: u8 = 1;
const TURN: u8 = b'T';
const BUS: u8 = b'B';
const GAP: u8 = b'G';
const ENDED: u8 = b'E';

/// A notification from one process to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// Claim from this queue.
    Queue(String),
    /// It is this owner's turn.
    Turn { name: String, owner: Owner },
    /// There are messages on the bus.
    Bus,
    /// These jobs have ended; at most [`LETTER_IDS_MAX`].
    Ended(Vec<JobId>),
    /// Notifications may have been lost: check everything.
    Gap,
}

impl Letter {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Letter::Queue(name) => name.clone().into_bytes(),
            Letter::Turn { name, owner } if name.len() + 18 <= LETTER_BYTES_MAX => {
                [&[HALL, TURN], owner.as_bytes().as_slice(), name.as_bytes()].concat()
            }
            // The name is too long for a datagram, so the node must check its turns itself.
            Letter::Turn { .. } | Letter::Gap => vec![HALL, GAP],
            Letter::Bus => vec![HALL, BUS],
            Letter::Ended(ids) => {
                [HALL, ENDED].into_iter().chain(ids.iter().flat_map(|id| id.as_bytes().iter().copied())).collect()
            }
        }
    }

    /// Returns `None` for bytes that no build of this version writes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Letter> {
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        match bytes {
            [HALL, TURN, turn @ ..] => {
                let (owner, name) = turn.split_first_chunk::<16>()?;
                Some(Letter::Turn { name: text(name)?, owner: Owner::from_bytes(*owner) })
            }
            [HALL, ENDED, ids @ ..] => {
                let (ids, []) = ids.as_chunks::<16>() else {
                    return None;
                };
                Some(Letter::Ended(ids.iter().map(|id| JobId::from_bytes(*id)).collect()))
            }
            [HALL, BUS] => Some(Letter::Bus),
            [HALL, GAP] => Some(Letter::Gap),
            [HALL, ..] => None,
            name => text(name).map(Letter::Queue),
        }
    }
}

/// Sends a datagram to the socket at this path. Fails if no process listens there, or if its buffer is full.
pub(crate) fn send(letter: &Letter, socket: &Path) -> io::Result<()> {
    let from = UnixDatagram::unbound()?;
    from.set_nonblocking(true)?;
    with_short_path(socket, |path| from.send_to(&letter.bytes(), path)).map(drop)
}

/// Creates a socket at this path and replaces an old one.
pub(crate) fn open(path: &Path) -> io::Result<UnixDatagram> {
    let _ = std::fs::remove_file(path);
    let socket = with_short_path(path, |path| UnixDatagram::bind(path))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Calls `run` with the path, or with a short alias of it if the path does not fit into a socket address.
fn with_short_path<T>(path: &Path, run: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return run(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return run(path);
    };
    let dir = std::fs::File::open(dir)?;
    let short: PathBuf =
        [Path::new("/proc/self/fd"), Path::new(&dir.as_raw_fd().to_string()), Path::new(name)].iter().collect();
    run(&short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Letter::parse(&bytes);
        }

        #[test]
        fn letters_survive_the_way(name in "[^\u{0}-\u{1f}]{0,300}", owner in any::<[u8; 16]>()) {
            let turn = Letter::Turn { name: name.clone(), owner: Owner::from_bytes(owner) };
            let ended = Letter::Ended(vec![JobId::from_bytes(owner); LETTER_IDS_MAX]);
            prop_assert!(ended.bytes().len() <= LETTER_BYTES_MAX);
            for letter in [Letter::Queue(name), turn, ended, Letter::Bus, Letter::Gap] {
                prop_assert_eq!(Letter::parse(&letter.bytes()), Some(letter));
            }
        }
    }

    #[test]
    fn a_name_that_does_not_fit_says_that_there_is_something() {
        let turn = Letter::Turn { name: "n".repeat(LETTER_BYTES_MAX), owner: Owner::fresh() };
        assert_eq!(Letter::parse(&turn.bytes()), Some(Letter::Gap));
    }
}
