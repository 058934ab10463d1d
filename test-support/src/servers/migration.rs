//! Migration of a slot from one master to another.

use super::client::Reply;
use super::server::Server;

/// Timeout of moving one key. On loopback a move is much quicker.
const MOVE_MS: &str = "5000";

/// The state of a migration when `pause` is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationStage {
    /// The slot is migrating and importing, and no key has moved. Commands on absent keys get ASK.
    Opened,
    /// This key has moved. Commands on several keys of which only some have moved get TRYAGAIN.
    Moved(String),
    /// All keys have moved, and both masters still report the slot as migrating.
    Emptied,
    /// The new master owns the slot and all masters know: the old one replies MOVED.
    Closed,
}

/// Moves a slot and all its keys, and calls `pause` at each stage.
///
/// Keys that clients write to the old master during the migration are moved too.
#[track_caller]
pub fn migrate(slot: u16, from: &Server, to: &Server, masters: Vec<&Server>, mut pause: impl FnMut(MigrationStage)) {
    let slot = slot.to_string();
    let (from_id, to_id) = (id(from), id(to));
    assert_ne!(from_id, to_id, "the slot is there already");
    to.send_command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.send_command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    pause(MigrationStage::Opened);
    while let Some(key) = first_key(from, &slot) {
        move_key(&key, from, to);
        pause(MigrationStage::Moved(String::from_utf8_lossy(&key).into_owned()));
    }
    pause(MigrationStage::Emptied);
    // The new owner comes first, so that the slot always has an owner.
    for node in [to, from].into_iter().chain(masters) {
        node.send_command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    pause(MigrationStage::Closed);
}

fn id(node: &Server) -> String {
    node.send_command(&["CLUSTER", "MYID"]).text()
}

fn first_key(node: &Server, slot: &str) -> Option<Vec<u8>> {
    match node.send_command(&["CLUSTER", "GETKEYSINSLOT", slot, "1"]).list() {
        [Reply::Text(key)] => Some(key.clone()),
        _ => None,
    }
}

#[track_caller]
fn move_key(key: &[u8], from: &Server, to: &Server) {
    let port = to.port().to_string();
    let mut command: Vec<&[u8]> = vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", MOVE_MS.as_bytes()];
    if let Some(password) = to.password() {
        command.extend([b"AUTH".as_slice(), password.as_bytes()]);
    }
    command.extend([b"KEYS".as_slice(), key]);
    from.send_command(&command);
}
