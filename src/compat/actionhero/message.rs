//! The messages on ActionHero's channel, in both formats: `requestId` before 19.0.3, `messageId` since then.
//!
//! Anyone on the server can publish to a channel, so a message is used only after its token has been checked.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Longest message, in bytes; longer ones are rejected.
pub(super) const CHANNEL_MESSAGE_BYTES_MAX: usize = crate::bounds::MESSAGE_BYTES_MAX;

/// The secret that all nodes share and send in every message. Never shown: the type has no `Debug`.
#[derive(Clone)]
pub(super) struct ServerToken(String);

impl ServerToken {
    pub(super) fn new(token: String) -> Self {
        ServerToken(token)
    }

    /// Compares in constant time, whatever the lengths.
    fn matches(&self, other: &str) -> bool {
        let (own, received) = (Sha256::digest(self.0.as_bytes()), Sha256::digest(other.as_bytes()));
        own.iter().zip(received.iter()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

/// The id of a call, in the fields in which it arrived; the response carries the same fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageIds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_id: Option<String>,
}

impl MessageIds {
    /// Returns ids with both fields set, so that nodes of either format can respond.
    pub(super) fn in_both_fields(id: &str) -> Self {
        MessageIds { request_id: Some(id.to_owned()), message_id: Some(id.to_owned()) }
    }

    /// Returns whether the message has only the old format, in which a response is the list of a callback's arguments.
    fn is_legacy(&self) -> bool {
        self.message_id.is_none()
    }

    fn message_or_request_id(&self) -> Option<&str> {
        self.message_id.as_deref().or(self.request_id.as_deref())
    }
}

/// A parsed message.
#[derive(Debug)]
pub(super) enum ChannelMessage {
    /// A call, for all nodes or for the node that holds the connection.
    Do { from: String, ids: MessageIds, method: String, connection: Option<String>, args: Box<RawValue> },
    /// A response to the call with this id.
    DoResponse { from: String, id: String, value: Box<RawValue> },
}

/// Why a message is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageRejection {
    Malformed,
    /// The token is missing or wrong.
    Forged,
    /// A type of message that duly does not handle.
    NotForUs,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMessage {
    message_type: Option<Value>,
    server_id: Option<Value>,
    server_token: Option<Value>,
    request_id: Option<Value>,
    message_id: Option<Value>,
    method: Option<Value>,
    connection_id: Option<Value>,
    args: Option<Box<RawValue>>,
    response: Option<Box<RawValue>>,
}

/// Parses a message of the channel and checks its token.
pub(super) fn parse_message(bytes: &[u8], token: &ServerToken) -> Result<ChannelMessage, MessageRejection> {
    if bytes.len() > CHANNEL_MESSAGE_BYTES_MAX {
        return Err(MessageRejection::Malformed);
    }
    let message: RawMessage = serde_json::from_slice(bytes).map_err(|_| MessageRejection::Malformed)?;
    let text = |value: Option<Value>| match value {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    if !token.matches(&text(message.server_token).ok_or(MessageRejection::Forged)?) {
        return Err(MessageRejection::Forged);
    }
    let from = text(message.server_id).unwrap_or_default();
    let ids = MessageIds { request_id: text(message.request_id), message_id: text(message.message_id) };
    match text(message.message_type).as_deref() {
        Some("do") => Ok(ChannelMessage::Do {
            from,
            ids,
            method: text(message.method).ok_or(MessageRejection::Malformed)?,
            connection: parse_connection_id(message.connection_id)?,
            args: normalize_args(message.args)?,
        }),
        Some("doResponse") => {
            let id = ids.message_or_request_id().ok_or(MessageRejection::Malformed)?.to_owned();
            Ok(ChannelMessage::DoResponse { from, id, value: parse_response(&ids, message.response)? })
        }
        _ => Err(MessageRejection::NotForUs),
    }
}

/// Parses the id of the connection that a call is for; JavaScript's falsy values mean none.
fn parse_connection_id(value: Option<Value>) -> Result<Option<String>, MessageRejection> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(MessageRejection::Malformed),
    }
}

/// Returns the arguments as a list: a single value becomes its only element, and a missing one an empty list.
fn normalize_args(args: Option<Box<RawValue>>) -> Result<Box<RawValue>, MessageRejection> {
    let text = match args {
        None => "[]".to_owned(),
        Some(args) if args.get().starts_with('[') => return Ok(args),
        Some(args) => format!("[{}]", args.get()),
    };
    RawValue::from_string(text).map_err(|_| MessageRejection::Malformed)
}

/// Returns the value of a response. In the old format, this is the callback's only argument, or the list of several.
fn parse_response(ids: &MessageIds, response: Option<Box<RawValue>>) -> Result<Box<RawValue>, MessageRejection> {
    let none = || RawValue::from_string("null".to_owned()).map_err(|_| MessageRejection::Malformed);
    let Some(response) = response else {
        return none();
    };
    if !ids.is_legacy() {
        return Ok(response);
    }
    let mut arguments: Vec<Box<RawValue>> = match serde_json::from_str(response.get()) {
        Ok(arguments) => arguments,
        Err(_) => return Ok(response),
    };
    match arguments.len() {
        0 => none(),
        1 => arguments.pop().ok_or(MessageRejection::Malformed),
        _ => Ok(response),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DoMessage<'m> {
    message_type: &'static str,
    server_id: &'m str,
    server_token: &'m str,
    #[serde(flatten)]
    ids: &'m MessageIds,
    method: &'m str,
    /// Absent rather than null: both formats treat that as no connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_id: Option<&'m str>,
    args: &'m RawValue,
}

/// Returns a call as it is published.
pub(super) fn encode_do(
    server: &str,
    token: &ServerToken,
    id: &str,
    method: &str,
    connection_id: Option<&str>,
    args: &RawValue,
) -> String {
    let (ids, message_type) = (MessageIds::in_both_fields(id), "do");
    let message =
        DoMessage { message_type, server_id: server, server_token: &token.0, ids: &ids, method, connection_id, args };
    serde_json::to_string(&message).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DoResponseMessage<'m> {
    message_type: &'static str,
    server_id: &'m str,
    server_token: &'m str,
    #[serde(flatten)]
    ids: &'m MessageIds,
    response: &'m RawValue,
}

/// Returns a response as it is published. In the old format it must be a list: anything else crashes the caller.
pub(super) fn encode_do_response(
    server: &str,
    token: &ServerToken,
    ids: &MessageIds,
    value: &RawValue,
) -> Option<String> {
    ids.message_or_request_id()?;
    let list = RawValue::from_string(format!("[{}]", value.get())).ok()?;
    let (message_type, response) = ("doResponse", if ids.is_legacy() { &*list } else { value });
    let message = DoResponseMessage { message_type, server_id: server, server_token: &token.0, ids, response };
    serde_json::to_string(&message).ok().filter(|text| text.len() <= CHANNEL_MESSAGE_BYTES_MAX)
}

/// Returns whether this is the plain name of a method of `api`: old nodes evaluate the text as JavaScript.
///
/// One part below `api` is enough, as in ActionHero: its nodes broadcast `api.log` when they join and leave.
pub(super) fn is_api_method(name: &str) -> bool {
    let word = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == '$')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
    };
    name.len() <= 200 && name.strip_prefix("api.").is_some_and(|rest| rest.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> ServerToken {
        ServerToken::new("secret".into())
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.into()).expect("JSON")
    }

    #[test]
    fn response_uses_the_dialect_of_its_call() {
        let old = MessageIds { request_id: Some("r".into()), message_id: None };
        let new = MessageIds { request_id: None, message_id: Some("m".into()) };
        let encode = |ids: &MessageIds| encode_do_response("s", &token(), ids, &raw("3")).expect("a response");
        assert_eq!(
            encode(&old),
            r#"{"messageType":"doResponse","serverId":"s","serverToken":"secret","requestId":"r","response":[3]}"#
        );
        assert_eq!(
            encode(&new),
            r#"{"messageType":"doResponse","serverId":"s","serverToken":"secret","messageId":"m","response":3}"#
        );
        for (ids, id) in [(old, "r"), (new, "m"), (MessageIds::in_both_fields("b"), "b")] {
            let Ok(ChannelMessage::DoResponse { id: read, value, .. }) =
                parse_message(encode(&ids).as_bytes(), &token())
            else {
                panic!("expected a response")
            };
            assert_eq!((read.as_str(), value.get()), (id, "3"));
        }
    }

    #[test]
    fn call_without_id_gets_no_response() {
        assert_eq!(
            encode_do_response("s", &token(), &MessageIds { request_id: None, message_id: None }, &raw("1")),
            None
        );
    }

    #[test]
    fn message_without_token_is_rejected() {
        for bytes in [
            r#"{"messageType":"do","serverToken":"Secret","method":"api.x"}"#,
            r#"{"messageType":"do","serverToken":null,"method":"api.x"}"#,
            r#"{"messageType":"do","method":"api.x"}"#,
            r#"{"messageType":"do","serverToken":["secret"],"method":"api.x"}"#,
        ] {
            assert_eq!(
                parse_message(bytes.as_bytes(), &token()).expect_err("forged"),
                MessageRejection::Forged,
                "{bytes}"
            );
        }
    }

    #[test]
    fn args_are_normalized_to_a_list() {
        let args = |args: &str| {
            let bytes = format!(r#"{{"messageType":"do","serverToken":"secret","method":"api.x","args":{args}}}"#);
            match parse_message(bytes.as_bytes(), &token()).expect("accepted") {
                ChannelMessage::Do { args, .. } => args.get().to_owned(),
                ChannelMessage::DoResponse { .. } => panic!("expected a call"),
            }
        };
        assert_eq!(args("[12345678901234567890]"), "[12345678901234567890]");
        assert_eq!((args("null"), args("{}"), args("7")), ("[]".into(), "[{}]".into(), "[7]".into()));
    }

    #[test]
    fn only_api_methods_are_accepted() {
        for good in ["api.log", "api.cache.size", "api.chatRoom.addMember", "api.a1.$b_"] {
            assert!(is_api_method(good), "{good}");
        }
        for bad in [
            "",
            "api",
            "api.",
            "api..x",
            "process.exit",
            "api.x()",
            "api.x;process.exit(1)",
            "api.x[0]",
            "api. x",
            "api.1",
        ] {
            assert!(!is_api_method(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_message(&bytes, &token());
        }

        #[test]
        fn parsing_any_json_does_not_panic(
            kind in "do|doResponse|x", field in "args|response|method|connectionId|requestId|serverId",
            value in "null|7|-1|\\[\\]|\\[1,2\\]|\\{\\}|\"x\"|true|1e400") {
            let bytes = format!(r#"{{"messageType":"{kind}","serverToken":"secret","{field}":{value}}}"#);
            let _ = parse_message(bytes.as_bytes(), &token());
        }
    }
}
