//! What travels between nodes: a call or a reply, signed if there is a cluster key.
//!
//! A frame is the format's digit, the name of a key, a signature, and JSON. The signature is over all of the JSON, in which
//! stand both nodes, the direction, the id and the moment from which it is too late: whoever takes any part of it
//! from one message into another breaks the signature. The key itself never travels.

use std::time::SystemTime;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::{Micros, from_micros, to_micros};
use crate::error::{Error, Result};
use crate::node::NodeId;

/// Longest message between nodes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Shortest cluster key, in bytes: a shorter one can be guessed.
pub const CLUSTER_KEY_BYTES_MIN: usize = 32;
/// Most cluster keys: the present one, and those that are on their way out.
const KEYS_MAX: usize = 8;

const FORMAT: u8 = b'1';
const NAME_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
const HEAD_BYTES: usize = 1 + NAME_BYTES + MAC_BYTES;
/// Signed with every message, so that nothing that was signed for another purpose passes for one.
const PURPOSE: &[u8] = b"duly message 1\0";

/// The keys that nodes sign and check messages with: the first signs, all of them check.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Clone)]
struct Key {
    /// Tells which key a message is signed with, and nothing about it.
    name: [u8; NAME_BYTES],
    mac: Hmac<Sha256>,
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Result<Self> {
        if keys.len() > KEYS_MAX {
            return Err(Error::invalid("cluster_key", format!("at most {KEYS_MAX} keys")));
        }
        keys.iter().map(|key| Key::new(key.as_bytes())).collect::<Result<_>>().map(Keys)
    }

    fn sign(&self, body: &[u8]) -> ([u8; NAME_BYTES], [u8; MAC_BYTES]) {
        match self.0.first() {
            None => ([0; NAME_BYTES], [0; MAC_BYTES]),
            Some(key) => (key.name, key.mac_of(body).finalize().into_bytes().into()),
        }
    }

    /// Whether a message is signed with one of the keys; without any key every message will do.
    fn check(&self, name: &[u8], mac: &[u8], body: &[u8]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let mut named = self.0.iter().filter(|key| key.name == name);
        // Compared in constant time.
        named.any(|key| key.mac_of(body).verify_slice(mac).is_ok())
    }
}

impl Key {
    fn new(key: &[u8]) -> Result<Self> {
        if key.len() < CLUSTER_KEY_BYTES_MIN {
            let reason = format!("has {} bytes; at least {CLUSTER_KEY_BYTES_MIN} random ones are needed", key.len());
            return Err(Error::invalid("cluster_key", reason));
        }
        let mac = Hmac::<Sha256>::new_from_slice(key)
            .map_err(|_| Error::invalid("cluster_key", "cannot be used as a key"))?;
        let mut name = [0; NAME_BYTES];
        let hash = Sha256::new().chain_update(b"duly key name\0").chain_update(key).finalize();
        name.copy_from_slice(&hash[..NAME_BYTES]);
        Ok(Key { name, mac })
    }

    fn mac_of(&self, body: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(PURPOSE).chain_update(body)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// A message between nodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    /// Names the call, and its replies.
    pub(crate) id: Uuid,
    pub(crate) from: NodeId,
    /// Whom it is for; `None` is everyone.
    pub(crate) to: Option<NodeId>,
    pub(crate) says: Says,
}

/// What a message says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Says {
    Call {
        method: String,
        args: Box<RawValue>,
        /// When it was sent, by the store's clock.
        sent: Micros,
        /// From this moment on, by the store's clock, nobody waits for a reply.
        deadline: Micros,
        /// The connection that the caller looked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        connection: Option<String>,
        /// Nobody waits for a reply at all.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        forget: bool,
    },
    Value(Box<RawValue>),
    /// The method has failed.
    Failed(String),
    NoMethod,
    /// The connection that the caller looked for is not held there any more.
    NoConnection(String),
    /// The method has as much to do as it may have.
    Busy(String),
}

impl Message {
    pub(crate) fn seal(&self, keys: &Keys) -> Result<Vec<u8>> {
        let body = serde_json::to_vec(self).map_err(|e| Error::invalid("message", e.to_string()))?;
        if HEAD_BYTES + body.len() > MESSAGE_BYTES_MAX {
            let reason = format!("{} bytes long; at most {MESSAGE_BYTES_MAX} fit into a message", body.len());
            return Err(Error::invalid("message", reason));
        }
        let (name, mac) = keys.sign(&body);
        let mut frame = Vec::with_capacity(HEAD_BYTES + body.len());
        frame.push(FORMAT);
        frame.extend(name);
        frame.extend(mac);
        frame.extend(body);
        Ok(frame)
    }

    /// Reads a frame that was sent to one of `ours`.
    pub(crate) fn open(frame: &[u8], keys: &Keys, ours: impl Fn(NodeId) -> bool) -> Result<Message, Refused> {
        if frame.len() > MESSAGE_BYTES_MAX {
            return Err(Refused::TooLong);
        }
        let (&[format, ..], Some((head, body))) = (frame, frame.split_at_checked(HEAD_BYTES)) else {
            return Err(Refused::Malformed);
        };
        if format != FORMAT {
            return Err(Refused::Malformed);
        }
        if !keys.check(&head[1..=NAME_BYTES], &head[1 + NAME_BYTES..], body) {
            return Err(Refused::Forged);
        }
        let message: Message = serde_json::from_slice(body).map_err(|_| Refused::Malformed)?;
        // Only a call can be for everyone.
        let is_call = matches!(message.says, Says::Call { .. });
        match message.to {
            Some(node) if ours(node) => Ok(message),
            None if is_call => Ok(message),
            _ => Err(Refused::NotForUs),
        }
    }
}

/// Why a message is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Malformed,
    TooLong,
    Forged,
    /// Meant for another node, or sent the wrong way round.
    NotForUs,
    Late,
    /// Heard before.
    Replayed,
    /// Too many to remember.
    Flood,
}

/// When a call is over, as it travels.
pub(crate) fn deadline(now: SystemTime, timeout: std::time::Duration) -> Micros {
    to_micros(now).saturating_add(crate::clock::micros(timeout))
}

pub(crate) fn moment(deadline: Micros) -> SystemTime {
    from_micros(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: &str = "an old key of more than thirty-two bytes";
    const NEW: &str = "a new key, which is just as long as the old";

    fn keys(of: &[&str]) -> Keys {
        Keys::new(&of.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()).expect("good keys")
    }

    fn call(to: Option<NodeId>) -> Message {
        let args = RawValue::from_string("[123456789012345678901234567890,-0,null]".into()).expect("JSON");
        let says = Says::Call { method: "m".into(), args, sent: 6, deadline: 7, connection: None, forget: false };
        Message { id: Uuid::now_v7(), from: NodeId::fresh(), to, says }
    }

    fn open(frame: &[u8], keys: &Keys) -> Result<Message, Refused> {
        Message::open(frame, keys, |_| true)
    }

    #[test]
    fn args_travel_byte_for_byte() {
        let frame = call(None).seal(&keys(&[NEW])).expect("seals");
        let Ok(Message { says: Says::Call { args, .. }, .. }) = open(&frame, &keys(&[NEW])) else { panic!("a call") };
        assert_eq!(args.get(), "[123456789012345678901234567890,-0,null]");
    }

    #[test]
    fn keys_can_be_rotated() {
        let old = call(None).seal(&keys(&[OLD])).expect("seals");
        let new = call(None).seal(&keys(&[NEW, OLD])).expect("seals");
        assert!(open(&old, &keys(&[OLD, NEW])).is_ok(), "first everyone learns the new key");
        assert!(open(&old, &keys(&[NEW, OLD])).is_ok(), "then everyone signs with it");
        assert!(open(&new, &keys(&[OLD, NEW])).is_ok());
        assert_eq!(open(&old, &keys(&[NEW])).expect_err("then the old one goes"), Refused::Forged);
    }

    #[test]
    fn an_unsigned_message_is_refused_where_there_is_a_key() {
        let unsigned = call(None).seal(&Keys::default()).expect("seals");
        assert_eq!(open(&unsigned, &keys(&[NEW])).expect_err("unsigned"), Refused::Forged);
        assert!(open(&unsigned, &Keys::default()).is_ok());
    }

    #[test]
    fn a_message_for_another_node_is_refused() {
        let (us, them) = (NodeId::fresh(), NodeId::fresh());
        let frame = call(Some(them)).seal(&keys(&[NEW])).expect("seals");
        let opened = Message::open(&frame, &keys(&[NEW]), |node| node == us);
        assert_eq!(opened.expect_err("not for us"), Refused::NotForUs);
    }

    #[test]
    fn a_reply_to_everyone_is_refused() {
        let message = Message { says: Says::NoMethod, ..call(None) };
        let frame = message.seal(&Keys::default()).expect("seals");
        assert_eq!(open(&frame, &Keys::default()).expect_err("the wrong way round"), Refused::NotForUs);
    }

    #[test]
    fn a_short_key_is_refused() {
        assert_eq!(Keys::new(&["short".into()]).expect_err("too short").code(), "invalid");
    }

    #[test]
    fn a_key_is_never_shown() {
        assert!(!format!("{:?}", keys(&[NEW])).contains("new"));
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_noticed(at in 0usize..400, to in any::<u8>()) {
            let mut frame = call(None).seal(&keys(&[NEW])).expect("seals");
            let at = at % frame.len();
            prop_assume!(frame[at] != to);
            frame[at] = to;
            prop_assert!(open(&frame, &keys(&[NEW])).is_err());
        }

        #[test]
        fn no_bytes_make_it_panic(frame in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = open(&frame, &keys(&[NEW]));
            let _ = open(&frame, &Keys::default());
            let mut unsigned = vec![FORMAT];
            unsigned.extend([0; HEAD_BYTES - 1]);
            unsigned.extend(frame);
            let _ = open(&unsigned, &Keys::default());
        }

        #[test]
        fn a_shortened_message_is_refused(cut in 1usize..300) {
            let frame = call(None).seal(&keys(&[NEW])).expect("seals");
            let cut = cut.min(frame.len());
            prop_assert!(open(&frame[..frame.len() - cut], &keys(&[NEW])).is_err());
        }
    }
}
