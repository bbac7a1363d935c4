//! AMQP's own types and encoding, under the names that the rest of dwell uses.
//!
//! Header values keep their AMQP type from the first byte to the last (a headers exchange tells `1` from `"1"`), so
//! dwell has no type system of its own for them.

use std::io::{self, Cursor, Write};

use lapin::protocol::basic::{gen_properties, parse_properties};

pub use lapin::BasicProperties as Properties;
pub use lapin::types::{AMQPValue as Value, FieldTable as Headers, LongString, ShortString};

/// The stored bytes are no AMQP properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no AMQP 0-9-1 basic properties")]
pub struct NotProperties;

/// Properties in AMQP's own encoding, which keeps every header type exactly.
///
/// # Panics
/// Never: writing to growing memory does not fail.
#[must_use]
pub fn encode_properties(properties: &Properties) -> Vec<u8> {
    let memory = Growing(Cursor::new(Vec::with_capacity(256)));
    cookie_factory::gen_simple(gen_properties(properties), memory)
        .expect("writing properties to memory cannot fail")
        .0
        .into_inner()
}

/// Reads what [`encode_properties`] wrote.
///
/// # Errors
/// [`NotProperties`] where the bytes are cut short, or have anything left over.
pub fn decode_properties(bytes: &[u8]) -> Result<Properties, NotProperties> {
    match parse_properties(bytes) {
        Ok(([], properties)) => Ok(properties),
        _ => Err(NotProperties),
    }
}

/// A short string of a text that is known to be short.
///
/// # Errors
/// The text is longer than AMQP's 255 bytes.
pub fn short(text: &str) -> Result<ShortString, TooLong> {
    ShortString::try_new(text).map_err(|_| TooLong)
}

/// Memory that grows while the encoder goes back to fill in lengths; the encoder's own buffers are of fixed size.
struct Growing(Cursor<Vec<u8>>);

/// A name or key above AMQP's 255 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is longer than the 255 bytes of an AMQP short string")]
pub struct TooLong;

/// A text as the header value that RabbitMQ reads (a short string in a table is encoded with a type it cannot parse).
#[must_use]
pub fn text(value: impl Into<String>) -> Value {
    Value::LongString(LongString::from(value.into()))
}

/// A header value as text, where it is one.
#[must_use]
pub fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::LongString(s) => std::str::from_utf8(s.as_bytes()).ok(),
        Value::ShortString(s) => Some(s.as_str()),
        _ => None,
    }
}

// === impl Growing ===

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for Growing {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl cookie_factory::Seek for Growing {}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::{DecimalValue, FieldArray};

    /// Every header type that RabbitMQ can send.
    fn all_types() -> Headers {
        let mut inner = Headers::default();
        inner.insert("deep".into(), Value::LongLongInt(-1));
        let mut h = Headers::default();
        for (name, value) in [
            ("bool", Value::Boolean(true)),
            ("i8", Value::ShortShortInt(-8)),
            ("u8", Value::ShortShortUInt(8)),
            ("i16", Value::ShortInt(-16)),
            ("u16", Value::ShortUInt(16)),
            ("i32", Value::LongInt(-32)),
            ("u32", Value::LongUInt(32)),
            ("i64", Value::LongLongInt(i64::MIN)),
            ("f32", Value::Float(1.5)),
            ("f64", Value::Double(-2.25)),
            ("decimal", Value::DecimalValue(DecimalValue { scale: 2, value: 12345 })),
            ("text", text("grün")),
            ("bytes", Value::LongString(LongString::from(vec![0xff, 0x00, 0xfe]))),
            ("array", Value::FieldArray(FieldArray::from(vec![Value::Void, Value::Boolean(false)]))),
            ("timestamp", Value::Timestamp(1_764_547_200)),
            ("table", Value::FieldTable(inner)),
            ("byte-array", Value::ByteArray(vec![0u8, 1, 2].into())),
            ("void", Value::Void),
        ] {
            h.insert(name.into(), value);
        }
        h
    }

    #[test]
    fn every_property_and_header_type_comes_back_as_it_was() {
        let p = Properties::default()
            .with_content_type("text/plain".into())
            .with_content_encoding("gzip".into())
            .with_headers(all_types())
            .with_delivery_mode(1)
            .with_priority(9)
            .with_correlation_id("c".into())
            .with_reply_to("r".into())
            .with_expiration("100".into())
            .with_message_id("m".into())
            .with_timestamp(5)
            .with_type("k".into())
            .with_user_id("u".into())
            .with_app_id("a".into())
            .with_cluster_id("x".into());
        assert_eq!(decode_properties(&encode_properties(&p)), Ok(p));
        assert_eq!(decode_properties(&encode_properties(&Properties::default())), Ok(Properties::default()));
    }

    #[test]
    fn cut_or_overlong_bytes_are_refused() {
        let bytes = encode_properties(&Properties::default().with_headers(all_types()));
        for end in 0..bytes.len() {
            assert_eq!(decode_properties(&bytes[..end]), Err(NotProperties), "cut at {end}");
        }
        let mut long = bytes;
        long.push(0);
        assert_eq!(decode_properties(&long), Err(NotProperties));
    }
}
