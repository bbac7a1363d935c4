//! One parked message as bytes. Pure: no redis here.
//!
//! Records outlive releases: a message parked for a year is read by whatever dwell runs then. Form of version 1:
//!
//! ```text
//! 1 byte   format version
//! varint   length of the meta, then the meta: fields, each
//!            1 byte  tag
//!            varint  length, then the value: UTF-8 text, or a number as a varint
//! varint   length of the properties, then the properties (AMQP's own encoding)
//! rest     body
//! ```
//!
//! A varint is seven bits a byte, lowest first, the high bit set on all but the last. A field that has its default
//! value is left out. A later minor release may add fields: tags below 128 are skipped by who does not know them; tags
//! from 128 on must be understood, and a record with an unknown one is refused rather than misread.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A message with all that is needed to publish it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What dwell itself knows of it.
    pub meta: Meta,
    /// AMQP's own encoding of the properties, headers included; opaque here.
    pub properties: Bytes,
    /// As it was published.
    pub body: Bytes,
}

/// Where a message goes and where it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The bridge that took it in.
    pub bridge: String,
    /// The work exchange it comes out of.
    pub exchange: String,
    /// As it was published.
    pub routing_key: String,
    /// `x-delay-key`.
    pub key: Option<String>,
    /// How many attempts have failed so far; 0 for what is no retry.
    pub attempt: u32,
    /// The broker delivered it to the daemon more than once, so it may be a copy.
    pub redelivered: bool,
    /// When the daemon took it in, in epoch milliseconds by the daemon's clock.
    pub taken_in_ms: u64,
    /// When it was asked to be due, in epoch milliseconds by the daemon's clock; for people. Redis' clock decides.
    pub asked_due_ms: u64,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is not even a version.
    #[error("the record is empty")]
    Empty,
    /// A newer dwell wrote it, or it is no record at all.
    #[error("the record has format version {0}; this dwell reads version {VERSION}")]
    Version(u8),
    /// It ends too early.
    #[error("the record is cut off")]
    Truncated,
    /// A newer dwell wrote a field that must be understood.
    #[error("the record has a field {0} that this dwell does not know and may not skip")]
    Field(u8),
    /// A value does not fit its field.
    #[error("field {0} of the record is damaged")]
    Value(u8),
}

/// The version that [`Record::encode`] writes.
pub const VERSION: u8 = 1;

/// Tags from here on may not be skipped.
const CRITICAL: u8 = 128;

mod tag {
    pub const BRIDGE: u8 = 1;
    pub const EXCHANGE: u8 = 2;
    pub const ROUTING_KEY: u8 = 3;
    pub const KEY: u8 = 4;
    pub const ATTEMPT: u8 = 5;
    pub const REDELIVERED: u8 = 6;
    pub const TAKEN_IN_MS: u8 = 7;
    pub const ASKED_DUE_MS: u8 = 8;
}

// === impl Error ===

impl Error {
    /// A newer dwell may be able to read it.
    #[must_use]
    pub fn is_newer(self) -> bool {
        matches!(self, Error::Version(version) if version > VERSION) || matches!(self, Error::Field(_))
    }
}

// === impl Record ===

impl Record {
    /// As bytes of the current version.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let meta = self.meta.encode();
        let room = 1 + 2 * LONGEST_VARINT + meta.len() + self.properties.len() + self.body.len();
        let mut out = BytesMut::with_capacity(room);
        out.put_u8(VERSION);
        put_varint(&mut out, meta.len() as u64);
        out.put_slice(&meta);
        put_varint(&mut out, self.properties.len() as u64);
        out.put_slice(&self.properties);
        out.put_slice(&self.body);
        out.freeze()
    }

    /// From bytes of any version ever released. Properties and body are slices of `bytes`; nothing is copied.
    pub fn decode(mut bytes: Bytes) -> Result<Record, Error> {
        let meta = take_meta(&mut bytes)?;
        let properties = take(&mut bytes)?;
        Ok(Record { meta, properties, body: bytes })
    }
}

// === impl Meta ===

impl Meta {
    /// The meta of a record of which only the beginning is at hand; [`Error::Truncated`] if that is too little.
    pub fn decode(mut beginning: Bytes) -> Result<Meta, Error> {
        take_meta(&mut beginning)
    }

    fn encode(&self) -> BytesMut {
        let mut out = BytesMut::new();
        put_text(&mut out, tag::BRIDGE, &self.bridge);
        put_text(&mut out, tag::EXCHANGE, &self.exchange);
        put_text(&mut out, tag::ROUTING_KEY, &self.routing_key);
        if let Some(key) = &self.key {
            // Also when it is empty: an empty key is a key.
            put_field(&mut out, tag::KEY, key.as_bytes());
        }
        put_number(&mut out, tag::ATTEMPT, u64::from(self.attempt));
        put_number(&mut out, tag::REDELIVERED, u64::from(self.redelivered));
        put_number(&mut out, tag::TAKEN_IN_MS, self.taken_in_ms);
        put_number(&mut out, tag::ASKED_DUE_MS, self.asked_due_ms);
        out
    }
}

// === helpers ===

const LONGEST_VARINT: usize = 10;

fn take_meta(bytes: &mut Bytes) -> Result<Meta, Error> {
    match bytes.first() {
        None => return Err(Error::Empty),
        Some(&VERSION) => bytes.advance(1),
        Some(&other) => return Err(Error::Version(other)),
    }
    let mut fields = take(bytes)?;
    let mut meta = Meta::default();
    while fields.has_remaining() {
        let tag = fields.get_u8();
        let value = take(&mut fields)?;
        match tag {
            tag::BRIDGE => meta.bridge = text(tag, &value)?,
            tag::EXCHANGE => meta.exchange = text(tag, &value)?,
            tag::ROUTING_KEY => meta.routing_key = text(tag, &value)?,
            tag::KEY => meta.key = Some(text(tag, &value)?),
            tag::ATTEMPT => meta.attempt = number(tag, value)?.try_into().map_err(|_| Error::Value(tag))?,
            tag::REDELIVERED => meta.redelivered = number(tag, value)? != 0,
            tag::TAKEN_IN_MS => meta.taken_in_ms = number(tag, value)?,
            tag::ASKED_DUE_MS => meta.asked_due_ms = number(tag, value)?,
            CRITICAL.. => return Err(Error::Field(tag)),
            _ => {}
        }
    }
    Ok(meta)
}

fn put_text(out: &mut BytesMut, tag: u8, value: &str) {
    if !value.is_empty() {
        put_field(out, tag, value.as_bytes());
    }
}

fn put_number(out: &mut BytesMut, tag: u8, value: u64) {
    if value != 0 {
        let mut digits = BytesMut::with_capacity(LONGEST_VARINT);
        put_varint(&mut digits, value);
        put_field(out, tag, &digits);
    }
}

fn put_field(out: &mut BytesMut, tag: u8, value: &[u8]) {
    out.put_u8(tag);
    put_varint(out, value.len() as u64);
    out.put_slice(value);
}

#[allow(clippy::cast_possible_truncation)] // The byte is what is meant.
fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// A length and that many bytes.
fn take(bytes: &mut Bytes) -> Result<Bytes, Error> {
    let length = usize::try_from(take_varint(bytes)?).map_err(|_| Error::Truncated)?;
    if length > bytes.len() {
        return Err(Error::Truncated);
    }
    Ok(bytes.split_to(length))
}

/// A varint that does not end, or does not fit 64 bits, is as bad as one cut off.
fn take_varint(bytes: &mut Bytes) -> Result<u64, Error> {
    let mut value: u64 = 0;
    for shift in (0..64).step_by(7) {
        if !bytes.has_remaining() {
            return Err(Error::Truncated);
        }
        let byte = bytes.get_u8();
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(Error::Truncated);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Error::Truncated)
}

fn text(tag: u8, value: &[u8]) -> Result<String, Error> {
    std::str::from_utf8(value).map(ToOwned::to_owned).map_err(|_| Error::Value(tag))
}

fn number(tag: u8, mut value: Bytes) -> Result<u64, Error> {
    let number = take_varint(&mut value).map_err(|_| Error::Value(tag))?;
    if value.has_remaining() { Err(Error::Value(tag)) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What `tests/fixtures/record/v1.bin` holds.
    fn golden() -> Record {
        Record {
            meta: Meta {
                bridge: "orders".into(),
                exchange: "orders.work".into(),
                routing_key: "order.4711.close".into(),
                key: Some("order-4711".into()),
                attempt: 3,
                redelivered: true,
                taken_in_ms: 1_764_547_200_123,
                asked_due_ms: 1_765_152_000_123,
            },
            properties: Bytes::from_static(b"\x80\x00\x10application/json"),
            body: Bytes::from_static(b"\x00\xff\xfe\r\n{\"order\":4711}"),
        }
    }

    /// The file was written once, by the first release that had this version, and is never written again: it stands
    /// for the messages that lie in somebody's Redis.
    #[test]
    fn records_of_version_1_are_read() {
        let bytes: &'static [u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/record/v1.bin"));
        assert_eq!(Record::decode(Bytes::from_static(bytes)), Ok(golden()));
    }

    #[test]
    fn fields_of_a_later_minor_release_are_skipped() {
        // Version 1, meta of 5 bytes: an unknown field 9 of one byte, then an attempt; no properties; body "x".
        let bytes = Bytes::from_static(b"\x01\x06\x09\x01\xff\x05\x01\x02\x00x");
        let meta = Meta { attempt: 2, ..Meta::default() };
        assert_eq!(
            Record::decode(bytes),
            Ok(Record { meta, properties: Bytes::new(), body: Bytes::from_static(b"x") })
        );
    }

    #[test]
    fn what_a_newer_release_means_seriously_is_refused() {
        let field = Record::decode(Bytes::from_static(b"\x01\x02\x80\x00\x00x"));
        assert_eq!(field, Err(Error::Field(0x80)));
        let version = Record::decode(Bytes::from_static(b"\x02whatever"));
        assert_eq!(version, Err(Error::Version(2)));
        assert!(Error::Field(0x80).is_newer() && Error::Version(2).is_newer());
        assert!(!Error::Version(0).is_newer() && !Error::Truncated.is_newer());
    }

    #[test]
    fn what_is_no_record_says_why() {
        for (bytes, error) in [
            (&b""[..], Error::Empty),
            (b"{", Error::Version(b'{')),
            (b"\x01", Error::Truncated),
            (b"\x01\x05", Error::Truncated),
            (b"\x01\x00\x03ab", Error::Truncated),
            (b"\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Error::Truncated),
            (b"\x01\x04\x01\x02\xff\xfe\x00", Error::Value(tag::BRIDGE)),
            (b"\x01\x04\x05\x02\x01\x01\x00", Error::Value(tag::ATTEMPT)),
            (b"\x01\x07\x05\x05\xff\xff\xff\xff\x7f\x00", Error::Value(tag::ATTEMPT)),
        ] {
            assert_eq!(Record::decode(Bytes::from_static(bytes)), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn the_body_is_not_copied() {
        let bytes = golden().encode();
        let record = Record::decode(bytes.clone()).expect("it was just encoded");
        assert!(bytes.as_ptr_range().contains(&record.body.as_ptr()));
    }

    /// B88.
    #[test]
    fn binary_bodies_come_out_as_they_went_in() {
        let large = vec![7; 1 << 20];
        for body in [&b""[..], b"\x00\xff\xfe\r\n", b"\xed\xa0\x80", &large] {
            let record = Record { body: Bytes::copy_from_slice(body), ..golden() };
            assert_eq!(Record::decode(record.encode()).map(|record| record.body), Ok(record.body));
        }
    }

    prop_compose! {
        fn any_record()(
            names in any::<[String; 3]>(),
            key: Option<String>,
            attempt: u32,
            redelivered: bool,
            times in any::<[u64; 2]>(),
            properties: Vec<u8>,
            body: Vec<u8>,
        ) -> Record {
            let [bridge, exchange, routing_key] = names;
            let [taken_in_ms, asked_due_ms] = times;
            let meta = Meta { bridge, exchange, routing_key, key, attempt, redelivered, taken_in_ms, asked_due_ms };
            Record { meta, properties: properties.into(), body: body.into() }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(record in any_record()) {
            let bytes = record.encode();
            prop_assert_eq!(Meta::decode(bytes.clone()), Ok(record.meta.clone()));
            prop_assert_eq!(Record::decode(bytes), Ok(record));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Record::decode(bytes.into());
        }

        #[test]
        fn no_damage_to_a_record_panics(record in any_record(), at: proptest::sample::Index, byte: u8) {
            let mut bytes = record.encode().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = Record::decode(bytes.into());
        }
    }
}
