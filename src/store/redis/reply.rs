//! Reads the reply of a script, value by value.

use redis::Value;

use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::Capacity;

/// The values of one reply, first to last.
pub(crate) struct ScriptReply {
    op: &'static str,
    values: std::vec::IntoIter<Value>,
    /// The store's time when the script ran.
    pub(crate) now: Micros,
}

impl ScriptReply {
    /// Parses a reply: every script returns a list that starts with the store's time.
    pub(crate) fn new(op: &'static str, value: Value) -> Result<Self> {
        let values = value.into_sequence().map_err(|_| unexpected_reply(op))?.into_iter();
        let mut reply = ScriptReply { op, values, now: 0 };
        reply.now = reply.int()?;
        Ok(reply)
    }

    /// Returns the reply to a push that was accepted in full.
    pub(crate) fn push_accepted(op: &'static str, now: Micros) -> Self {
        ScriptReply { op, values: vec![Value::Array(Vec::new()), Value::Array(Vec::new())].into_iter(), now }
    }

    fn next_value(&mut self) -> Result<Value> {
        self.values.next().ok_or_else(|| unexpected_reply(self.op))
    }

    /// Returns whether a push was rejected because the queue is full; the reply then has only the capacity.
    pub(super) fn is_queue_full(&self) -> bool {
        matches!(self.values.as_slice().first(), Some(Value::BulkString(word)) if word == b"full")
    }

    /// Returns the capacity of the queue if the push was rejected because of it.
    pub(super) fn take_exceeded_capacity(&mut self) -> Result<Option<Capacity>> {
        if !self.is_queue_full() {
            return Ok(None);
        }
        self.next_value()?;
        self.capacity().map(Some)
    }

    /// Reads a capacity: two optional numbers.
    pub(super) fn capacity(&mut self) -> Result<Capacity> {
        let mut number = || self.optional_int().map(|number| number.and_then(|number| u64::try_from(number).ok()));
        Ok(Capacity { jobs: number()?, bytes: number()? })
    }

    /// Takes the last value, if it is a number.
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

    /// Reads an optional number.
    pub(crate) fn optional_int(&mut self) -> Result<Option<i64>> {
        Ok(int_from_value(&self.next_value()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        bytes_from_value(self.next_value()?).ok_or_else(|| unexpected_reply(self.op))
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| unexpected_reply(self.op))
    }

    /// Reads a list of byte strings; missing ones are `None`.
    pub(crate) fn list(&mut self) -> Result<Vec<Option<Vec<u8>>>> {
        byte_list(self.op, self.next_value()?)
    }

    pub(crate) fn values(&mut self) -> Result<Vec<Value>> {
        self.next_value()?.into_sequence().map_err(|_| unexpected_reply(self.op))
    }

    /// Reads a list of ids.
    pub(crate) fn ids(&mut self) -> Result<Vec<JobId>> {
        let op = self.op;
        self.list()?
            .iter()
            .map(|bytes| bytes.as_deref().and_then(parse_job_id).ok_or_else(|| unexpected_reply(op)))
            .collect()
    }

    /// Reads all remaining values as ids.
    pub(crate) fn remaining_ids(self) -> Result<Vec<JobId>> {
        let op = self.op;
        self.values
            .map(|value| bytes_from_value(value).as_deref().and_then(parse_job_id).ok_or_else(|| unexpected_reply(op)))
            .collect()
    }

    /// Reads a list of nested replies.
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

/// Parses a number, which may have an exponent, as large scores do. Returns 0 for any other text.
pub(crate) fn parse_number(text: &[u8]) -> i64 {
    let text = String::from_utf8_lossy(text);
    text.parse().unwrap_or_else(|_| text.parse::<f64>().unwrap_or(0.0) as i64)
}

/// Reads the reply of a script or a plain command as a list of byte strings; missing ones are `None`.
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

/// Builds the error for a reply that no script returns. The request has run.
fn unexpected_reply(op: &'static str) -> Error {
    Error::unknown_with_cause(op, "unexpected reply from the server")
}
