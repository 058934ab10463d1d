//! What travels on ActionHero's channel, in both of its dialects: `requestId` before 19.0.3, `messageId` from then on.
//!
//! Anything may be on a channel: nothing that is read here is believed before its token is.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Longest message that is looked at, in bytes.
pub(super) const BYTES_MAX: usize = crate::MESSAGE_BYTES_MAX;

/// The secret that all nodes share, and that travels in every message. Never shown.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new(token: String) -> Self {
        Token(token)
    }

    /// Compared in constant time, whatever the lengths.
    fn is(&self, other: &str) -> bool {
        let (ours, theirs) = (Sha256::digest(self.0.as_bytes()), Sha256::digest(other.as_bytes()));
        ours.iter().zip(theirs.iter()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

/// The name of a call, in the fields in which it came: an answer carries the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ids {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_id: Option<String>,
}

impl Ids {
    /// In both fields, so that nodes of either dialect can answer.
    pub(super) fn both(id: &str) -> Self {
        Ids { request_id: Some(id.to_owned()), message_id: Some(id.to_owned()) }
    }

    /// The old dialect, and nothing else: there an answer is the list of a callback's arguments.
    fn is_old(&self) -> bool {
        self.message_id.is_none()
    }

    fn any(&self) -> Option<&str> {
        self.message_id.as_deref().or(self.request_id.as_deref())
    }
}

/// What a message says.
#[derive(Debug)]
pub(super) enum Heard {
    /// To be run, by all or by who holds the connection.
    Do { from: String, ids: Ids, method: String, connection: Option<String>, args: Box<RawValue> },
    /// An answer to the call of this name.
    Answer { from: String, id: String, value: Box<RawValue> },
}

/// Why a message is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Malformed,
    /// The token is missing or another.
    Forged,
    /// For others: a kind of message that is none of our business.
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
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

/// Reads what has come on the channel.
pub(super) fn read(bytes: &[u8], token: &Token) -> Result<Heard, Refused> {
    if bytes.len() > BYTES_MAX {
        return Err(Refused::Malformed);
    }
    let wire: Wire = serde_json::from_slice(bytes).map_err(|_| Refused::Malformed)?;
    let text = |value: Option<Value>| match value {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    if !token.is(&text(wire.server_token).ok_or(Refused::Forged)?) {
        return Err(Refused::Forged);
    }
    let from = text(wire.server_id).unwrap_or_default();
    let ids = Ids { request_id: text(wire.request_id), message_id: text(wire.message_id) };
    match text(wire.message_type).as_deref() {
        Some("do") => Ok(Heard::Do {
            from,
            ids,
            method: text(wire.method).ok_or(Refused::Malformed)?,
            connection: connection(wire.connection_id)?,
            args: list(wire.args)?,
        }),
        Some("doResponse") => {
            let id = ids.any().ok_or(Refused::Malformed)?.to_owned();
            Ok(Heard::Answer { from, id, value: answered(&ids, wire.response)? })
        }
        _ => Err(Refused::Other),
    }
}

/// The connection that is meant; what JavaScript takes for nothing is none.
fn connection(value: Option<Value>) -> Result<Option<String>, Refused> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(Refused::Malformed),
    }
}

/// Arguments are a list: what is none is its only element, and nothing is an empty one.
fn list(args: Option<Box<RawValue>>) -> Result<Box<RawValue>, Refused> {
    let text = match args {
        None => "[]".to_owned(),
        Some(args) if args.get().starts_with('[') => return Ok(args),
        Some(args) => format!("[{}]", args.get()),
    };
    RawValue::from_string(text).map_err(|_| Refused::Malformed)
}

/// The value of an answer: in the old dialect a callback's only argument, or all of them if they are several.
fn answered(ids: &Ids, response: Option<Box<RawValue>>) -> Result<Box<RawValue>, Refused> {
    let none = || RawValue::from_string("null".to_owned()).map_err(|_| Refused::Malformed);
    let Some(response) = response else {
        return none();
    };
    if !ids.is_old() {
        return Ok(response);
    }
    let mut all: Vec<Box<RawValue>> = match serde_json::from_str(response.get()) {
        Ok(all) => all,
        Err(_) => return Ok(response),
    };
    match all.len() {
        0 => none(),
        1 => all.pop().ok_or(Refused::Malformed),
        _ => Ok(response),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DoWire<'m> {
    message_type: &'static str,
    server_id: &'m str,
    server_token: &'m str,
    #[serde(flatten)]
    ids: &'m Ids,
    method: &'m str,
    /// Absent, not null: either generation takes that for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_id: Option<&'m str>,
    args: &'m RawValue,
}

/// A call as it is published.
pub(super) fn write_do(
    server: &str,
    token: &Token,
    id: &str,
    method: &str,
    connection_id: Option<&str>,
    args: &RawValue,
) -> String {
    let (ids, message_type) = (Ids::both(id), "do");
    let wire =
        DoWire { message_type, server_id: server, server_token: &token.0, ids: &ids, method, connection_id, args };
    serde_json::to_string(&wire).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerWire<'m> {
    message_type: &'static str,
    server_id: &'m str,
    server_token: &'m str,
    #[serde(flatten)]
    ids: &'m Ids,
    response: &'m RawValue,
}

/// An answer as it is published. In the old dialect it must be a list: anything else ends the process that called.
pub(super) fn write_answer(server: &str, token: &Token, ids: &Ids, value: &RawValue) -> Option<String> {
    ids.any()?;
    let list = RawValue::from_string(format!("[{}]", value.get())).ok()?;
    let (message_type, response) = ("doResponse", if ids.is_old() { &*list } else { value });
    let wire = AnswerWire { message_type, server_id: server, server_token: &token.0, ids, response };
    serde_json::to_string(&wire).ok().filter(|text| text.len() <= BYTES_MAX)
}

/// Whether this names a method of `api`, and nothing else: the old dialect evaluates whatever it is sent.
pub(super) fn is_method(name: &str) -> bool {
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

    fn token() -> Token {
        Token::new("secret".into())
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.into()).expect("JSON")
    }

    #[test]
    fn each_dialect_is_answered_in_its_own_way() {
        let old = Ids { request_id: Some("r".into()), message_id: None };
        let new = Ids { request_id: None, message_id: Some("m".into()) };
        let write = |ids: &Ids| write_answer("s", &token(), ids, &raw("3")).expect("an answer");
        assert_eq!(
            write(&old),
            r#"{"messageType":"doResponse","serverId":"s","serverToken":"secret","requestId":"r","response":[3]}"#
        );
        assert_eq!(
            write(&new),
            r#"{"messageType":"doResponse","serverId":"s","serverToken":"secret","messageId":"m","response":3}"#
        );
        for (ids, id) in [(old, "r"), (new, "m"), (Ids::both("b"), "b")] {
            let Ok(Heard::Answer { id: read, value, .. }) = read(write(&ids).as_bytes(), &token()) else {
                panic!("an answer")
            };
            assert_eq!((read.as_str(), value.get()), (id, "3"));
        }
    }

    #[test]
    fn a_call_without_a_name_is_not_answered() {
        assert_eq!(write_answer("s", &token(), &Ids { request_id: None, message_id: None }, &raw("1")), None);
    }

    #[test]
    fn without_the_token_nothing_is_heard() {
        for bytes in [
            r#"{"messageType":"do","serverToken":"Secret","method":"api.x"}"#,
            r#"{"messageType":"do","serverToken":null,"method":"api.x"}"#,
            r#"{"messageType":"do","method":"api.x"}"#,
            r#"{"messageType":"do","serverToken":["secret"],"method":"api.x"}"#,
        ] {
            assert_eq!(read(bytes.as_bytes(), &token()).expect_err("forged"), Refused::Forged, "{bytes}");
        }
    }

    #[test]
    fn arguments_are_a_list() {
        let args = |args: &str| {
            let bytes = format!(r#"{{"messageType":"do","serverToken":"secret","method":"api.x","args":{args}}}"#);
            match read(bytes.as_bytes(), &token()).expect("heard") {
                Heard::Do { args, .. } => args.get().to_owned(),
                Heard::Answer { .. } => panic!("a call"),
            }
        };
        assert_eq!(args("[12345678901234567890]"), "[12345678901234567890]");
        assert_eq!((args("null"), args("{}"), args("7")), ("[]".into(), "[{}]".into(), "[7]".into()));
    }

    #[test]
    fn only_methods_of_api_are_named() {
        assert!(is_method("api.cache.load") && is_method("api.a1.$b_"));
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
            assert!(!is_method(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes, &token());
        }

        #[test]
        fn no_json_makes_it_panic(kind in "do|doResponse|x", field in "args|response|method|connectionId|requestId|serverId",
                                  value in "null|7|-1|\\[\\]|\\[1,2\\]|\\{\\}|\"x\"|true|1e400") {
            let bytes = format!(r#"{{"messageType":"{kind}","serverToken":"secret","{field}":{value}}}"#);
            let _ = read(bytes.as_bytes(), &token());
        }
    }
}
