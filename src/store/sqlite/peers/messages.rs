//! Messages on the bus: written by one process, read by others in order.

use std::time::Duration;

use rusqlite::{Connection, ErrorCode, params};

use crate::clock::{Micros, micros};
use crate::node::NodeId;
use crate::store::Notification;
use crate::store::sqlite::nodes::slots::CurrentSlots;
use crate::store::sqlite::nodes::subscriptions::NodeSubscriptions;
use crate::store::sqlite::peers::bus_file::BusFile;

/// How long a message is kept. A reader that is later than this misses it.
const MESSAGE_RETENTION: Duration = Duration::from_secs(60);
/// Most messages that are kept.
const MESSAGES_MAX: i64 = 10_000;
/// Most old messages deleted at a time, and the number of messages between two deletions.
const DELETE_BATCH_MAX: i64 = 256;
const INSERTS_PER_DELETE: i64 = 64;
/// Most messages in one read.
const READ_BATCH_MAX: usize = 64;
/// Most reads in one visit to the bus.
const READ_BATCHES_MAX: usize = 64;

/// One message.
pub(crate) struct BusMessage<'m> {
    /// `None` for a broadcast.
    pub(crate) recipient: Option<NodeId>,
    /// The process that sends it.
    pub(crate) sender_id: NodeId,
    pub(crate) body: &'m [u8],
}

/// Writes a message, and deletes old ones from time to time.
pub(crate) fn insert_message(conn: &Connection, now: Micros, message: &BusMessage<'_>) -> rusqlite::Result<()> {
    let insert = || {
        conn.prepare_cached(
            "INSERT INTO duly_message (to_node_id, sender_id, sent_uptime, body) VALUES (?1, ?2, ?3, ?4)",
        )?
        .insert(params![
            message.recipient.as_ref().map(NodeId::as_bytes),
            message.sender_id.as_bytes(),
            now,
            message.body
        ])
    };
    let message_no = match insert() {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
            // New messages matter more than old ones.
            delete_old_messages(conn, i64::MAX, now)?;
            insert()?
        }
        inserted => inserted?,
    };
    if message_no % INSERTS_PER_DELETE == 0 {
        delete_old_messages(conn, message_no - MESSAGES_MAX, now)?;
    }
    Ok(())
}

/// Deletes some of the oldest messages: those up to this number, old ones, and those from an earlier start of the
/// machine.
fn delete_old_messages(conn: &Connection, upto: i64, now: Micros) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM duly_message WHERE message_no IN (
           SELECT message_no FROM (SELECT message_no, sent_uptime FROM duly_message ORDER BY message_no LIMIT ?1)
            WHERE message_no <= ?2 OR sent_uptime NOT BETWEEN ?3 AND ?4)",
    )?
    .execute(params![DELETE_BATCH_MAX, upto, now - micros(MESSAGE_RETENTION), now])?;
    Ok(())
}

/// Returns the number of the last message.
pub(crate) fn read_last_message_no(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'duly_message'")?
        .query_row([], |row| row.get(0))
}

/// The read position of a node.
pub(crate) struct MessageReader {
    file: BusFile,
    /// The inode of the file that was read.
    inode: u64,
    last_message_no: i64,
    node: NodeId,
    /// The node receives broadcasts.
    broadcasts: bool,
    /// This process. It delivers its own messages without the bus.
    own_sender_id: NodeId,
}

impl MessageReader {
    /// Starts after message `last` of the file with this inode.
    pub(crate) fn starting_after(
        last: i64,
        inode: u64,
        slots: &CurrentSlots,
        node: NodeId,
        all: bool,
        own: NodeId,
    ) -> Self {
        MessageReader {
            file: BusFile::beside(Some(slots)),
            inode,
            last_message_no: last,
            node,
            broadcasts: all,
            own_sender_id: own,
        }
    }

    /// Delivers new messages for this node while there is room. Returns whether there may be more.
    pub(crate) fn deliver_new(&mut self, subscriptions: &NodeSubscriptions) -> bool {
        for _ in 0..READ_BATCHES_MAX {
            let max = READ_BATCH_MAX.min(subscriptions.remaining_room());
            if max == 0 {
                return true;
            }
            match self.deliver_batch(max, subscriptions) {
                Ok(read) if read == max => {}
                Ok(_) => return false,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the bus file");
                    subscriptions.notify(Notification::Gap);
                    return false;
                }
            }
        }
        true
    }

    fn deliver_batch(&mut self, max: usize, subscriptions: &NodeSubscriptions) -> rusqlite::Result<usize> {
        let mut rows = self.read_batch(max)?;
        if self.file.inode() != self.inode {
            // The file was replaced: old messages may be lost, and all messages in this file are new.
            (self.inode, self.last_message_no) = (self.file.inode(), 0);
            subscriptions.notify(Notification::Gap);
            rows = self.read_batch(max)?;
        }
        let read = rows.len();
        if rows.first().is_some_and(|(message_no, _)| *message_no > self.last_message_no + 1) {
            // Some messages were deleted before they were read.
            subscriptions.notify(Notification::Gap);
        }
        for (message_no, body) in rows {
            self.last_message_no = message_no;
            if let Some(body) = body {
                subscriptions.notify(Notification::Message(body));
            }
        }
        Ok(read)
    }

    /// Returns the next messages. Messages for other nodes come without a body.
    fn read_batch(&mut self, max: usize) -> rusqlite::Result<Vec<(i64, Option<Vec<u8>>)>> {
        let (last, node, all, own) = (self.last_message_no, self.node, self.broadcasts, self.own_sender_id);
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
    use crate::store::sqlite::nodes::slots::SlotTable;

    const SECOND_MICROS: Micros = 1_000_000;

    struct BusFixture {
        dir: tempfile::TempDir,
        slots: SlotTable,
        file: BusFile,
        subscriptions: NodeSubscriptions,
        notifications: mpsc::Receiver<Notification>,
    }

    impl BusFixture {
        fn new(room: usize) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let (sender, notifications) = mpsc::channel(room);
            let store = dir.path().join("duly.db");
            std::fs::write(&store, "").expect("writes");
            let slots = SlotTable::open(&store, 0, 0).expect("opens");
            let (file, subscriptions) = (BusFile::beside(slots.current()), NodeSubscriptions::default());
            subscriptions.subscribe_messages(sender, true, None);
            BusFixture { dir, slots, file, subscriptions, notifications }
        }

        fn new_reader(&mut self, node: NodeId, own: NodeId) -> MessageReader {
            let last = self.file.with(read_last_message_no).expect("reads");
            let slots = self.slots.current().expect("is shared");
            MessageReader::starting_after(last, self.file.inode(), slots, node, true, own)
        }

        fn insert(&mut self, at: Micros, to: Option<NodeId>, sender: NodeId, body: u8) {
            self.file
                .with(|conn| insert_message(conn, at, &BusMessage { recipient: to, sender_id: sender, body: &[body] }))
                .expect("puts");
        }

        fn take_notifications(&mut self) -> Vec<Notification> {
            std::iter::from_fn(|| self.notifications.try_recv().ok()).collect()
        }
    }

    fn message_of(body: u8) -> Notification {
        Notification::Message(vec![body])
    }

    #[test]
    fn reader_delivers_only_new_messages_of_others_for_its_node() {
        let mut test = BusFixture::new(CHANNEL_SIZE);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        test.insert(SECOND_MICROS, None, other, 1);
        let mut reading = test.new_reader(node, own);
        for (to, sender, body) in [
            (None, other, 2),
            (Some(node), other, 3),
            (Some(NodeId::fresh()), other, 4),
            (None, own, 5),
            (Some(node), other, 6),
        ] {
            test.insert(SECOND_MICROS, to, sender, body);
        }
        assert!(!reading.deliver_new(&test.subscriptions));
        assert_eq!(test.take_notifications(), [message_of(2), message_of(3), message_of(6)]);
        assert!(!reading.deliver_new(&test.subscriptions));
        assert_eq!(test.take_notifications(), []);
    }

    const CHANNEL_SIZE: usize = 1_024;

    #[test]
    fn messages_stay_on_the_bus_while_the_channel_is_full() {
        let mut test = BusFixture::new(3);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        let mut reading = test.new_reader(node, own);
        (0..5).for_each(|i| test.insert(SECOND_MICROS, None, other, i));
        assert!(reading.deliver_new(&test.subscriptions), "there is more");
        assert_eq!(test.take_notifications(), [message_of(0), message_of(1)]);
        assert!(reading.deliver_new(&test.subscriptions));
        assert_eq!(test.take_notifications(), [message_of(2), message_of(3)]);
        assert!(!reading.deliver_new(&test.subscriptions));
        assert_eq!(test.take_notifications(), [message_of(4)]);
    }

    #[test]
    fn deleted_unread_messages_are_reported_as_a_gap() {
        let mut test = BusFixture::new(CHANNEL_SIZE);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        let mut reading = test.new_reader(node, own);
        test.insert(SECOND_MICROS, None, other, 1);
        for _ in 0..INSERTS_PER_DELETE {
            test.insert(100 * SECOND_MICROS, None, other, 2);
        }
        assert!(!reading.deliver_new(&test.subscriptions));
        let notifications = test.take_notifications();
        assert_eq!(
            (notifications.len() as i64, &notifications[..2]),
            (INSERTS_PER_DELETE + 1, &[Notification::Gap, message_of(2)][..])
        );
    }

    #[test]
    fn recreated_bus_is_read_from_its_start() {
        let mut test = BusFixture::new(CHANNEL_SIZE);
        let (node, own, other) = (NodeId::fresh(), NodeId::fresh(), NodeId::fresh());
        (0..5).for_each(|i| test.insert(SECOND_MICROS, None, other, i));
        let mut reading = test.new_reader(node, own);
        assert!(!reading.deliver_new(&test.subscriptions));
        std::fs::remove_file(test.dir.path().join("duly.db-nodes/bus.db")).expect("removes");
        test.insert(SECOND_MICROS, None, other, 7);
        assert!(!reading.deliver_new(&test.subscriptions));
        assert_eq!(test.take_notifications(), [Notification::Gap, message_of(7)]);
    }
}
