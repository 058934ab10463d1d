//! Messages between nodes: a call or a reply, signed if there is a cluster key.
//!
//! A frame is the format's digit, the name of a key, a signature, and JSON. The signature covers the whole JSON,
//! including both nodes, the direction, the id and the deadline. So copying any part of one message into another breaks
//! the signature. The key itself is never sent.

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
/// Most cluster keys: the current one and those being rotated out.
const CLUSTER_KEYS_MAX: usize = 8;

const FORMAT: u8 = b'1';
const KEY_NAME_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
const HEADER_BYTES: usize = 1 + KEY_NAME_BYTES + MAC_BYTES;
/// Part of every signature, so that data signed for another purpose cannot pass for a message.
const SIGNATURE_CONTEXT: &[u8] = b"duly message 1\0";

/// The keys for messages between nodes: the first signs, all of them verify.
#[derive(Clone, Default)]
pub(crate) struct ClusterKeys(Vec<ClusterKey>);

#[derive(Clone)]
struct ClusterKey {
    /// Identifies the key that signed a message, without revealing it.
    name: [u8; KEY_NAME_BYTES],
    mac: Hmac<Sha256>,
}

impl ClusterKeys {
    pub(crate) fn new(keys: &[String]) -> Result<Self> {
        if keys.len() > CLUSTER_KEYS_MAX {
            return Err(Error::invalid("cluster_key", format!("at most {CLUSTER_KEYS_MAX} keys")));
        }
        keys.iter().map(|key| ClusterKey::new(key.as_bytes())).collect::<Result<_>>().map(ClusterKeys)
    }

    fn sign(&self, body: &[u8]) -> ([u8; KEY_NAME_BYTES], [u8; MAC_BYTES]) {
        match self.0.first() {
            None => ([0; KEY_NAME_BYTES], [0; MAC_BYTES]),
            Some(key) => (key.name, key.compute_mac(body).finalize().into_bytes().into()),
        }
    }

    /// Returns whether one of the keys signed a message; without keys, every message is accepted.
    fn verify(&self, name: &[u8], mac: &[u8], body: &[u8]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let mut candidates = self.0.iter().filter(|key| key.name == name);
        // Compared in constant time.
        candidates.any(|key| key.compute_mac(body).verify_slice(mac).is_ok())
    }
}

impl ClusterKey {
    fn new(key: &[u8]) -> Result<Self> {
        if key.len() < CLUSTER_KEY_BYTES_MIN {
            let reason = format!("has {} bytes; use at least {CLUSTER_KEY_BYTES_MIN} random bytes", key.len());
            return Err(Error::invalid("cluster_key", reason));
        }
        let mac = Hmac::<Sha256>::new_from_slice(key)
            .map_err(|_| Error::invalid("cluster_key", "cannot be used as a key"))?;
        let mut name = [0; KEY_NAME_BYTES];
        let hash = Sha256::new().chain_update(b"duly key name\0").chain_update(key).finalize();
        name.copy_from_slice(&hash[..KEY_NAME_BYTES]);
        Ok(ClusterKey { name, mac })
    }

    fn compute_mac(&self, body: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(SIGNATURE_CONTEXT).chain_update(body)
    }
}

impl std::fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// A message between nodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerMessage {
    /// Identifies the call and its replies.
    pub(crate) id: Uuid,
    pub(crate) from: NodeId,
    /// The recipient; `None` for a broadcast.
    pub(crate) to: Option<NodeId>,
    pub(crate) body: MessageBody,
}

/// The content of a message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum MessageBody {
    Call {
        method: String,
        args: Box<RawValue>,
        /// When it was sent, by the store's clock.
        sent: Micros,
        /// When the caller stops waiting, by the store's clock.
        deadline: Micros,
        /// The connection that the caller addressed.
        #[serde(skip_serializing_if = "Option::is_none")]
        connection: Option<String>,
        /// The caller expects no reply.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_reply: bool,
    },
    Value(Box<RawValue>),
    /// The method failed.
    Failed(String),
    NoMethod,
    /// The node no longer holds the addressed connection.
    NoConnection(String),
    /// A limit of the method is reached.
    Busy(String),
}

impl PeerMessage {
    pub(crate) fn seal(&self, keys: &ClusterKeys) -> Result<Vec<u8>> {
        let body = serde_json::to_vec(self).map_err(|e| Error::invalid("message", e.to_string()))?;
        if HEADER_BYTES + body.len() > MESSAGE_BYTES_MAX {
            let reason = format!("{} bytes long; at most {MESSAGE_BYTES_MAX} fit into a message", body.len());
            return Err(Error::invalid("message", reason));
        }
        let (name, mac) = keys.sign(&body);
        let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
        frame.push(FORMAT);
        frame.extend(name);
        frame.extend(mac);
        frame.extend(body);
        Ok(frame)
    }

    /// Verifies and decodes a frame, addressed to a node for which `is_local` is true or to all.
    pub(crate) fn open(
        frame: &[u8],
        keys: &ClusterKeys,
        is_local: impl Fn(NodeId) -> bool,
    ) -> Result<PeerMessage, RejectReason> {
        if frame.len() > MESSAGE_BYTES_MAX {
            return Err(RejectReason::TooLong);
        }
        let (&[format, ..], Some((head, body))) = (frame, frame.split_at_checked(HEADER_BYTES)) else {
            return Err(RejectReason::Malformed);
        };
        if format != FORMAT {
            return Err(RejectReason::Malformed);
        }
        if !keys.verify(&head[1..=KEY_NAME_BYTES], &head[1 + KEY_NAME_BYTES..], body) {
            return Err(RejectReason::Forged);
        }
        let message: PeerMessage = serde_json::from_slice(body).map_err(|_| RejectReason::Malformed)?;
        // Only a call can be broadcast.
        let is_call = matches!(message.body, MessageBody::Call { .. });
        match message.to {
            Some(node) if is_local(node) => Ok(message),
            None if is_call => Ok(message),
            _ => Err(RejectReason::NotForUs),
        }
    }
}

/// Why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectReason {
    Malformed,
    TooLong,
    Forged,
    /// Addressed to another node, or a broadcast reply.
    NotForUs,
    Expired,
    /// Received before.
    Replayed,
    /// There are too many calls to remember.
    TooMany,
}

/// Returns the deadline of a call as it is sent.
pub(crate) fn deadline_micros(now: SystemTime, timeout: std::time::Duration) -> Micros {
    to_micros(now).saturating_add(crate::clock::micros(timeout))
}

pub(crate) fn deadline_time(deadline: Micros) -> SystemTime {
    from_micros(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD_KEY: &str = "an old key of more than thirty-two bytes";
    const NEW_KEY: &str = "a new key, which is just as long as the old";

    fn cluster_keys(keys: &[&str]) -> ClusterKeys {
        ClusterKeys::new(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()).expect("good keys")
    }

    fn call_message(to: Option<NodeId>) -> PeerMessage {
        let args = RawValue::from_string("[123456789012345678901234567890,-0,null]".into()).expect("JSON");
        let body =
            MessageBody::Call { method: "m".into(), args, sent: 6, deadline: 7, connection: None, no_reply: false };
        PeerMessage { id: Uuid::now_v7(), from: NodeId::fresh(), to, body }
    }

    fn open_message(frame: &[u8], keys: &ClusterKeys) -> Result<PeerMessage, RejectReason> {
        PeerMessage::open(frame, keys, |_| true)
    }

    #[test]
    fn args_are_transferred_byte_for_byte() {
        let frame = call_message(None).seal(&cluster_keys(&[NEW_KEY])).expect("seals");
        let Ok(PeerMessage { body: MessageBody::Call { args, .. }, .. }) =
            open_message(&frame, &cluster_keys(&[NEW_KEY]))
        else {
            panic!("a call")
        };
        assert_eq!(args.get(), "[123456789012345678901234567890,-0,null]");
    }

    #[test]
    fn keys_can_be_rotated() {
        let old = call_message(None).seal(&cluster_keys(&[OLD_KEY])).expect("seals");
        let new = call_message(None).seal(&cluster_keys(&[NEW_KEY, OLD_KEY])).expect("seals");
        assert!(
            open_message(&old, &cluster_keys(&[OLD_KEY, NEW_KEY])).is_ok(),
            "all nodes get the new key as the second"
        );
        assert!(open_message(&old, &cluster_keys(&[NEW_KEY, OLD_KEY])).is_ok(), "then all nodes sign with it");
        assert!(open_message(&new, &cluster_keys(&[OLD_KEY, NEW_KEY])).is_ok());
        assert_eq!(
            open_message(&old, &cluster_keys(&[NEW_KEY])).expect_err("then the old key is removed"),
            RejectReason::Forged
        );
    }

    #[test]
    fn unsigned_message_is_rejected_with_cluster_key() {
        let unsigned = call_message(None).seal(&ClusterKeys::default()).expect("seals");
        assert_eq!(open_message(&unsigned, &cluster_keys(&[NEW_KEY])).expect_err("unsigned"), RejectReason::Forged);
        assert!(open_message(&unsigned, &ClusterKeys::default()).is_ok());
    }

    #[test]
    fn message_for_another_node_is_rejected() {
        let (us, them) = (NodeId::fresh(), NodeId::fresh());
        let frame = call_message(Some(them)).seal(&cluster_keys(&[NEW_KEY])).expect("seals");
        let opened = PeerMessage::open(&frame, &cluster_keys(&[NEW_KEY]), |node| node == us);
        assert_eq!(opened.expect_err("not for us"), RejectReason::NotForUs);
    }

    #[test]
    fn broadcast_reply_is_rejected() {
        let message = PeerMessage { body: MessageBody::NoMethod, ..call_message(None) };
        let frame = message.seal(&ClusterKeys::default()).expect("seals");
        assert_eq!(
            open_message(&frame, &ClusterKeys::default()).expect_err("a broadcast reply"),
            RejectReason::NotForUs
        );
    }

    #[test]
    fn short_key_is_rejected() {
        assert_eq!(ClusterKeys::new(&["short".into()]).expect_err("too short").code(), "invalid");
    }

    #[test]
    fn debug_output_hides_keys() {
        assert!(!format!("{:?}", cluster_keys(&[NEW_KEY])).contains("new"));
    }

    proptest! {
        #[test]
        fn changed_byte_is_rejected(index in 0usize..400, byte in any::<u8>()) {
            let mut frame = call_message(None).seal(&cluster_keys(&[NEW_KEY])).expect("seals");
            let index = index % frame.len();
            prop_assume!(frame[index] != byte);
            frame[index] = byte;
            prop_assert!(open_message(&frame, &cluster_keys(&[NEW_KEY])).is_err());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(frame in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = open_message(&frame, &cluster_keys(&[NEW_KEY]));
            let _ = open_message(&frame, &ClusterKeys::default());
            let mut unsigned = vec![FORMAT];
            unsigned.extend([0; HEADER_BYTES - 1]);
            unsigned.extend(frame);
            let _ = open_message(&unsigned, &ClusterKeys::default());
        }

        #[test]
        fn shortened_message_is_rejected(cut in 1usize..300) {
            let frame = call_message(None).seal(&cluster_keys(&[NEW_KEY])).expect("seals");
            let cut = cut.min(frame.len());
            prop_assert!(open_message(&frame[..frame.len() - cut], &cluster_keys(&[NEW_KEY])).is_err());
        }
    }
}
