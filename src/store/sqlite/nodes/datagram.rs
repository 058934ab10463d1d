//! Datagrams between processes, sent to the socket of a slot. They may be lost.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::job::JobId;
use crate::store::LockOwner;
use crate::store::sqlite::nodes::directory::NodesDir;

/// Longest path that fits into a socket address on every system.
const SOCKET_PATH_MAX: usize = 100;
/// Longest datagram. macOS allows no longer ones.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 2_048;
/// Most job ids in one datagram.
pub(crate) const DATAGRAM_IDS_MAX: usize = (DATAGRAM_BYTES_MAX - 2) / 16;

/// First byte of every datagram but the name of a queue, which cannot contain it.
const CONTROL_PREFIX: u8 = 1;
const LOCK_TURN_TAG: u8 = b'T';
const NEW_MESSAGE_TAG: u8 = b'B';
const GAP_TAG: u8 = b'G';
const COMPLETED_TAG: u8 = b'E';
const HEARTBEAT_TAG: u8 = b'H';

/// A notification from one process to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// Claim from this queue.
    Wake(String),
    /// It is this owner's turn.
    LockTurn { name: String, owner: LockOwner },
    /// There are messages on the bus.
    NewMessage,
    /// These jobs have ended; at most [`DATAGRAM_IDS_MAX`].
    Completed(Vec<JobId>),
    /// Send a heartbeat now: its reply has news.
    Heartbeat,
    /// Notifications may have been lost: check everything.
    Gap,
}

impl Datagram {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Datagram::Wake(name) => name.clone().into_bytes(),
            Datagram::LockTurn { name, owner } if name.len() + 18 <= DATAGRAM_BYTES_MAX => {
                [&[CONTROL_PREFIX, LOCK_TURN_TAG], owner.as_bytes().as_slice(), name.as_bytes()].concat()
            }
            // The name is too long for a datagram, so the node must check its turns itself.
            Datagram::LockTurn { .. } | Datagram::Gap => vec![CONTROL_PREFIX, GAP_TAG],
            Datagram::NewMessage => vec![CONTROL_PREFIX, NEW_MESSAGE_TAG],
            Datagram::Heartbeat => vec![CONTROL_PREFIX, HEARTBEAT_TAG],
            Datagram::Completed(ids) => [CONTROL_PREFIX, COMPLETED_TAG]
                .into_iter()
                .chain(ids.iter().flat_map(|id| id.as_bytes().iter().copied()))
                .collect(),
        }
    }

    /// Returns `None` for bytes that no build of this version writes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Datagram> {
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        match bytes {
            [CONTROL_PREFIX, LOCK_TURN_TAG, turn @ ..] => {
                let (owner, name) = turn.split_first_chunk::<16>()?;
                Some(Datagram::LockTurn { name: text(name)?, owner: LockOwner::from_bytes(*owner) })
            }
            [CONTROL_PREFIX, COMPLETED_TAG, ids @ ..] => {
                let (ids, []) = ids.as_chunks::<16>() else {
                    return None;
                };
                Some(Datagram::Completed(ids.iter().map(|id| JobId::from_bytes(*id)).collect()))
            }
            [CONTROL_PREFIX, NEW_MESSAGE_TAG] => Some(Datagram::NewMessage),
            [CONTROL_PREFIX, HEARTBEAT_TAG] => Some(Datagram::Heartbeat),
            [CONTROL_PREFIX, GAP_TAG] => Some(Datagram::Gap),
            [CONTROL_PREFIX, ..] => None,
            name => text(name).map(Datagram::Wake),
        }
    }
}

/// Sends a datagram to a socket. Fails if no process listens there, or if its buffer is full.
pub(crate) fn send(datagram: &Datagram, dir: &NodesDir, socket: &str) -> io::Result<()> {
    let from = UnixDatagram::unbound()?;
    from.set_nonblocking(true)?;
    dir.with_socket_path(socket, |path| from.send_to(&datagram.to_bytes(), path)).map(drop)
}

/// Creates a socket and replaces an old one.
pub(crate) fn bind(dir: &NodesDir, name: &str) -> io::Result<UnixDatagram> {
    let _ = dir.remove(name);
    let socket = dir.with_socket_path(name, |path| UnixDatagram::bind(path))?;
    socket.set_nonblocking(true)?;
    dir.restrict_socket(name)?;
    Ok(socket)
}

/// Rejects a directory whose sockets would have paths that do not fit into a socket address.
pub(crate) fn check_dir(dir: &Path) -> io::Result<()> {
    check_dir_length(dir.as_os_str().len(), cfg!(target_os = "linux")).map_err(io::Error::other)
}

fn check_dir_length(length: usize, has_short_aliases: bool) -> Result<(), String> {
    let max = SOCKET_PATH_MAX - "/1023.sock".len();
    if has_short_aliases || length <= max {
        return Ok(());
    }
    Err(format!(
        "its path has {length} bytes, and this system allows sockets in paths of at most {max}; \
         move the file to a shorter path"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Datagram::parse(&bytes);
        }

        #[test]
        fn datagrams_are_parsed_as_they_were_written(name in "[^\u{0}-\u{1f}]{0,300}", owner in any::<[u8; 16]>()) {
            let turn = Datagram::LockTurn { name: name.clone(), owner: LockOwner::from_bytes(owner) };
            let ended = Datagram::Completed(vec![JobId::from_bytes(owner); DATAGRAM_IDS_MAX]);
            prop_assert!(ended.to_bytes().len() <= DATAGRAM_BYTES_MAX);
            for datagram in [Datagram::Wake(name), turn, ended, Datagram::NewMessage, Datagram::Heartbeat, Datagram::Gap] {
                prop_assert_eq!(Datagram::parse(&datagram.to_bytes()), Some(datagram));
            }
        }
    }

    #[test]
    fn long_directory_is_refused_on_a_system_without_short_aliases() {
        let max = SOCKET_PATH_MAX - "/1023.sock".len();
        assert_eq!(check_dir_length(max + 1, true), Ok(()));
        assert_eq!(check_dir_length(max, false), Ok(()));
        let error = check_dir_length(max + 1, false).expect_err("no socket fits");
        assert!(error.ends_with("; move the file to a shorter path"), "{error}");
    }

    #[test]
    fn lock_turn_with_too_long_name_becomes_a_gap() {
        let turn = Datagram::LockTurn { name: "n".repeat(DATAGRAM_BYTES_MAX), owner: LockOwner::fresh() };
        assert_eq!(Datagram::parse(&turn.to_bytes()), Some(Datagram::Gap));
    }
}
