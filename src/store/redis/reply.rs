//! What a script answers, taken apart in its order.

use redis::Value;

use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::Capacity;

/// The values of one answer, first to last.
pub(crate) struct ScriptReply {
    op: &'static str,
    values: std::vec::IntoIter<Value>,
    /// The store's time when the script ran.
    pub(crate) now: Micros,
}

impl ScriptReply {
    /// Every script answers a list that begins with the store's time.
    pub(crate) fn new(op: &'static str, value: Value) -> Result<Self> {
        let values = value.into_sequence().map_err(|_| unexpected_reply(op))?.into_iter();
        let mut reply = ScriptReply { op, values, now: 0 };
        reply.now = reply.int()?;
        Ok(reply)
    }

    /// What a push answers that nothing was in the way of.
    pub(crate) fn push_accepted(op: &'static str, now: Micros) -> Self {
        ScriptReply { op, values: vec![Value::Array(Vec::new()), Value::Array(Vec::new())].into_iter(), now }
    }

    fn next_value(&mut self) -> Result<Value> {
        self.values.next().ok_or_else(|| unexpected_reply(self.op))
    }

    /// Whether a queue is too full: then a push answers nothing else.
    pub(super) fn is_queue_full(&self) -> bool {
        matches!(self.values.as_slice().first(), Some(Value::BulkString(word)) if word == b"full")
    }

    /// The limit of a queue that is too full, if that is what is answered.
    pub(super) fn take_exceeded_capacity(&mut self) -> Result<Option<Capacity>> {
        if !self.is_queue_full() {
            return Ok(None);
        }
        self.next_value()?;
        self.capacity().map(Some)
    }

    /// A limit: two numbers, or nothing.
    pub(super) fn capacity(&mut self) -> Result<Capacity> {
        let mut number = || self.optional_int().map(|number| number.and_then(|number| u64::try_from(number).ok()));
        Ok(Capacity { jobs: number()?, bytes: number()? })
    }

    /// The last value, if it is a number.
    pub(crate) fn last_int(&mut self) -> Option<i64> {
        self.values.next_back().as_ref().and_then(int_from_value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.as_slice().is_empty()
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        let value = self.next_value()?;
        int_from_value(&value).ok_or_else(|| unexpected_reply(self.op))
    }

    /// A number, or nothing.
    pub(crate) fn optional_int(&mut self) -> Result<Option<i64>> {
        Ok(int_from_value(&self.next_value()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        bytes_from_value(self.next_value()?).ok_or_else(|| unexpected_reply(self.op))
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| unexpected_reply(self.op))
    }

    /// A list of byte strings; those that are missing are `None`.
    pub(crate) fn list(&mut self) -> Result<Vec<Option<Vec<u8>>>> {
        byte_list(self.op, self.next_value()?)
    }

    pub(crate) fn values(&mut self) -> Result<Vec<Value>> {
        self.next_value()?.into_sequence().map_err(|_| unexpected_reply(self.op))
    }

    /// A list of ids.
    pub(crate) fn ids(&mut self) -> Result<Vec<JobId>> {
        let op = self.op;
        self.list()?
            .iter()
            .map(|bytes| bytes.as_deref().and_then(parse_job_id).ok_or_else(|| unexpected_reply(op)))
            .collect()
    }

    /// All that is left, as ids.
    pub(crate) fn remaining_ids(self) -> Result<Vec<JobId>> {
        let op = self.op;
        self.values
            .map(|value| bytes_from_value(value).as_deref().and_then(parse_job_id).ok_or_else(|| unexpected_reply(op)))
            .collect()
    }

    /// A list of answers within this one.
    pub(crate) fn rows(&mut self) -> Result<Vec<ScriptReply>> {
        let (op, now) = (self.op, self.now);
        let row = |value: Value| {
            let values = value.into_sequence().map_err(|_| unexpected_reply(op))?.into_iter();
            Ok(ScriptReply { op, values, now })
        };
        self.values()?.into_iter().map(row).collect()
    }
}

pub(crate) fn parse_job_id(bytes: &[u8]) -> Option<JobId> {
    bytes.try_into().ok().map(JobId::from_bytes)
}

fn int_from_value(value: &Value) -> Option<i64> {
    match value {
        Value::Int(int) => Some(*int),
        Value::Double(number) => Some(*number as i64),
        Value::BulkString(text) if !text.is_empty() => Some(parse_number(text)),
        _ => None,
    }
}

/// A number from its text: scores come with an exponent when they are large. What is none is 0.
pub(crate) fn parse_number(text: &[u8]) -> i64 {
    let text = String::from_utf8_lossy(text);
    text.parse().unwrap_or_else(|_| text.parse::<f64>().unwrap_or(0.0) as i64)
}

/// A list of byte strings, of a script or of a plain command; those that are missing are `None`.
pub(super) fn byte_list(op: &'static str, value: Value) -> Result<Vec<Option<Vec<u8>>>> {
    let values = value.into_sequence().map_err(|_| unexpected_reply(op))?;
    Ok(values.into_iter().map(bytes_from_value).collect())
}

fn bytes_from_value(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        Value::Int(int) => Some(int.to_string().into_bytes()),
        _ => None,
    }
}

/// An answer that no script of ours gives. It was carried out, whatever it was.
fn unexpected_reply(op: &'static str) -> Error {
    Error::Unknown { op, source: Some("the server gave an answer that duly does not understand".into()) }
}
