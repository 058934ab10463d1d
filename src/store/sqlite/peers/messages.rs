//! Messages on the bus: written by one process, read by others in order.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, params};

use crate::clock::{Micros, micros};
use crate::node::NodeId;
use crate::store::Heard;
use crate::store::sqlite::nodes::subscriptions::Ears;
use crate::store::sqlite::peers::bus_file::BusFile;

/// How long a message is kept. A reader that is later than this misses it.
const KEEP: Duration = Duration::from_secs(60);
/// Most messages that are kept.
const MESSAGES_MAX: i64 = 10_000;
/// Most old messages deleted at a time, and the number of messages between two deletions.
const SWEEP_MAX: i64 = 256;
const SWEEP_EVERY: i64 = 64;
/// Most messages in one read.
const READ_MAX: usize = 64;
/// Most reads in one visit to the bus.
const READS_MAX: usize = 64;

/// One message.
pub(crate) struct Message<'m> {
    /// `None` for a broadcast.
    pub(crate) to: Option<NodeId>,
    /// The process that sends it.
    pub(crate) sender: NodeId,
    pub(crate) body: &'m [u8],
}

/// Writes a message, and deletes old ones from time to time.
pub(crate) fn put(conn: &Connection, now: Micros, message: &Message<'_>) -> rusqlite::Result<()> {
    let insert = || {
        conn.prepare_cached(
            "INSERT INTO duly_message (to_node_id, sender_id, sent_uptime, body) VALUES (?1, ?2, ?3, ?4)",
        )?
        .insert(params![
            message.to.as_ref().map(NodeId::as_bytes),
            message.sender.as_bytes(),
            now,
            message.body
        ])
    };
    let message_no = match insert() {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
            // New messages matter more than old ones.
            sweep(conn, i64::MAX, now)?;
            insert()?
        }
        inserted => inserted?,
    };
    if message_no % SWEEP_EVERY == 0 {
        sweep(conn, message_no - MESSAGES_MAX, now)?;
    }
    Ok(())
}

/// Deletes some of the oldest messages: those up to this number, old ones, and those from an earlier start of the
/// machine.
fn sweep(conn: &Connection, upto: i64, now: Micros) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM duly_message WHERE message_no IN (
           SELECT message_no FROM (SELECT message_no, sent_uptime FROM duly_message ORDER BY message_no LIMIT ?1)
            WHERE message_no <= ?2 OR sent_uptime NOT BETWEEN ?3 AND ?4)",
    )?
    .execute(params![SWEEP_MAX, upto, now - micros(KEEP), now])?;
    Ok(())
}

/// Returns the number of the last message.
pub(crate) fn last(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'duly_message'")?
        .query_row([], |row| row.get(0))
}

/// The read position of a node.
pub(crate) struct Reading {
    file: BusFile,
    /// The inode of the file that was read.
    inode: u64,
    last: i64,
    node: NodeId,
    /// The node receives broadcasts.
    all: bool,
    /// This process. It delivers its own messages without the bus.
    own: NodeId,
}

impl Reading {
    /// Starts after message `last` of the file with this inode.
    pub(crate) fn after(last: i64, inode: u64, dir: &Path, node: NodeId, all: bool, own: NodeId) -> Self {
        Reading { file: BusFile::in_dir(Some(dir)), inode, last, node, all, own }
    }

    /// Delivers new messages for this node while there is room. Returns whether there may be more.
    pub(crate) fn read(&mut self, ears: &Ears) -> bool {
        for _ in 0..READS_MAX {
            let max = READ_MAX.min(ears.room());
            if max == 0 {
                return true;
            }
            match self.next(max, ears) {
                Ok(read) if read == max => {}
                Ok(_) => return false,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the bus file");
                    ears.tell(Heard::Gap);
                    return false;
                }
            }
        }
        true
    }

    fn next(&mut self, max: usize, ears: &Ears) -> rusqlite::Result<usize> {
        let mut rows = self.rows(max)?;
        if self.file.inode() != self.inode {
            // The file was replaced: old messages may be lost, and all messages in this file are new.
            (self.inode, self.last) = (self.file.inode(), 0);
            ears.tell(Heard::Gap);
            rows = self.rows(max)?;
        }
        let read = rows.len();
        if rows.first().is_some_and(|(message_no, _)| *message_no > self.last + 1) {
            // Some messages were deleted before they were read.
            ears.tell(Heard::Gap);
        }
        for (message_no, body) in rows {
            self.last = message_no;
            if let Some(body) = body {
                ears.tell(Heard::Message(body));
            }
        }
        Ok(read)
    }

    /// Returns the next messages. Messages for other nodes come without a body.
    fn rows(&mut self, max: usize) -> rusqlite::Result<Vec<(i64, Option<Vec<u8>>)>> {
        let (last, node, all, own) = (self.last, self.node, self.all, self.own);
        self.file.with(|conn| {
            conn.prepare_cached(
                "SELECT message_no, CASE WHEN sender_id <> ?3 AND (to_node_id = ?2 OR (to_node_id IS NULL
                   AND ?5)) THEN body END
                   FROM duly_message WHERE message_no > ?1 ORDER BY message_no LIMIT ?4",
            )?
            .query_map(params![last, node.as_bytes(), own.as_bytes(), max, all], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    const SECOND: Micros = 1_000_000;

    struct Test {
        dir: tempfile::TempDir,
        file: BusFile,
        ears: Ears,
        heard: mpsc::Receiver<Heard>,
    }

    impl Test {
        fn new(room: usize) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let (hears, heard) = mpsc::channel(room);
            let (file, ears) = (BusFile::in_dir(Some(dir.path())), Ears::default());
            ears.start_hearing(hears, true, None);
            Test { dir, file, ears, heard }
        }

        fn reading(&mut self, node: NodeId, own: NodeId) -> Reading {
            let last = self.file.with(last).expect("looks");
            Reading::after(last, self.file.inode(), self.dir.path(), node, true, own)
        }

        fn put(&mut self, at: Micros, to: Option<NodeId>, sender: NodeId, body: u8) {
            self.file.with(|conn| put(conn, at, &Message { to, sender, body: &[body] })).expect("puts");
        }

        fn heard(&mut self) -> Vec<Heard> {
            std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
        }
    }

    fn said(body: u8) -> Heard {
        Heard::Message(vec![body])
    }

    #[test]
    fn a_node_reads_what_is_for_it_from_others_and_since_it_came() {
        let mut test = Test::new(HEARD);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        test.put(SECOND, None, other, 1);
        let mut reading = test.reading(node, own);
        for (to, sender, body) in [
            (None, other, 2),
            (Some(node), other, 3),
            (Some(NodeId::fresh()), other, 4),
            (None, own, 5),
            (Some(node), other, 6),
        ] {
            test.put(SECOND, to, sender, body);
        }
        assert!(!reading.read(&test.ears));
        assert_eq!(test.heard(), [said(2), said(3), said(6)]);
        assert!(!reading.read(&test.ears));
        assert_eq!(test.heard(), []);
    }

    const HEARD: usize = 1_024;

    #[test]
    fn without_room_messages_wait_on_the_bus() {
        let mut test = Test::new(3);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        let mut reading = test.reading(node, own);
        (0..5).for_each(|i| test.put(SECOND, None, other, i));
        assert!(reading.read(&test.ears), "there is more");
        assert_eq!(test.heard(), [said(0), said(1)]);
        assert!(reading.read(&test.ears));
        assert_eq!(test.heard(), [said(2), said(3)]);
        assert!(!reading.read(&test.ears));
        assert_eq!(test.heard(), [said(4)]);
    }

    #[test]
    fn old_messages_go_and_who_missed_them_is_told() {
        let mut test = Test::new(HEARD);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        let mut reading = test.reading(node, own);
        test.put(SECOND, None, other, 1);
        for _ in 0..SWEEP_EVERY {
            test.put(100 * SECOND, None, other, 2);
        }
        assert!(!reading.read(&test.ears));
        let heard = test.heard();
        assert_eq!((heard.len() as i64, &heard[..2]), (SWEEP_EVERY + 1, &[Heard::Gap, said(2)][..]));
    }

    #[test]
    fn a_bus_made_anew_is_read_from_its_start() {
        let mut test = Test::new(HEARD);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        (0..5).for_each(|i| test.put(SECOND, None, other, i));
        let mut reading = test.reading(node, own);
        assert!(!reading.read(&test.ears));
        std::fs::remove_file(test.dir.path().join("bus.db")).expect("removes");
        test.put(SECOND, None, other, 7);
        assert!(!reading.read(&test.ears));
        assert_eq!(test.heard(), [Heard::Gap, said(7)]);
    }
}
