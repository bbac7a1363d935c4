//! Redis' answers as our types. Each helper gives `None`, or [`Malformed`], for an answer of another form.

use redis::Value;

use super::id::Id;

/// An answer of another form than expected, where `None` means something else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Malformed;

/// The elements of an array.
pub(super) fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(values) | Value::Set(values) => Some(values),
        Value::Nil => Some(Vec::new()),
        _ => None,
    }
}

/// A string's bytes, moved and not copied.
pub(super) fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// A string that is text.
pub(super) fn text(value: Value) -> Option<String> {
    bytes(value).and_then(|bytes| String::from_utf8(bytes).ok())
}

/// An integer, also where it comes as digits.
pub(super) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// The 16 bytes of an id.
pub(super) fn id(value: &Value) -> Option<Id> {
    match value {
        Value::BulkString(bytes) => bytes.as_slice().try_into().ok().map(Id::from_bytes),
        _ => None,
    }
}

/// An id, or the empty string for none.
pub(super) fn perhaps_id(value: &Value) -> Result<Option<Id>, Malformed> {
    match value {
        Value::BulkString(bytes) if bytes.is_empty() => Ok(None),
        Value::Nil => Ok(None),
        other => id(other).map(Some).ok_or(Malformed),
    }
}

/// A score in ms, or the empty string for none.
pub(super) fn perhaps_ms(value: &Value) -> Result<Option<u64>, Malformed> {
    match value {
        Value::BulkString(digits) if digits.is_empty() => Ok(None),
        other => integer(other).map(Some).ok_or(Malformed),
    }
}
