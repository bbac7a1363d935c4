//! What a publisher asked for, read from the headers (pure).
//!
//! The rule behind every line: a delay that is not understood is never "now". Elsewhere a text, a float or a number
//! above 32 bits is silently delivered at once (cases B01 to B11); here it either means what it says or is rejected
//! with a reason.

use crate::broker::wire::{Headers, Value, as_text};
use crate::duration::{Millis, ParseError};
use crate::names::header;
use crate::reason::Reason;

/// An absolute time below this many milliseconds (March 1973) was meant in seconds.
pub const SECONDS_BY_MISTAKE_BELOW_MS: i128 = 100_000_000_000;

/// When a message should come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// That long after the daemon took it in.
    After(Millis),
    /// A negative delay: due now. Told apart from zero because a publisher who computes it may have a clock problem.
    Negative,
    /// At that moment, in epoch milliseconds.
    At(u64),
}

/// Why a message's wish cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The stable reason.
    pub reason: Reason,
    /// What was seen, for the log and the rejected message; bounded.
    pub detail: String,
}

/// Reads `x-delay` and `x-deliver-at`; `None`: neither is there.
///
/// # Errors
/// Both are there, or the one that is there cannot be understood.
pub fn asked(headers: Option<&Headers>) -> Result<Option<Delay>, Malformed> {
    let Some(headers) = headers else { return Ok(None) };
    let get = |name: &str| headers.inner().get(name);
    match (get(header::DELAY), get(header::DELIVER_AT)) {
        (None, None) => Ok(None),
        (Some(value), None) => relative(value).map(Some),
        (None, Some(value)) => absolute(value).map(Some),
        (Some(_), Some(_)) => Err(Malformed {
            reason: Reason::BothHeaders,
            detail: format!("both {} and {} are set", header::DELAY, header::DELIVER_AT),
        }),
    }
}

fn relative(value: &Value) -> Result<Delay, Malformed> {
    let ms = match value {
        Value::Float(_) | Value::Double(_) => float(value)?,
        _ => {
            let Some(n) = integer(value) else { return text_delay(value) };
            n
        }
    };
    Ok(after(ms))
}

fn after(ms: i128) -> Delay {
    if ms < 0 { Delay::Negative } else { Delay::After(Millis(u64::try_from(ms).unwrap_or(u64::MAX))) }
}

/// A digit string (case B01), or a duration with units.
fn text_delay(value: &Value) -> Result<Delay, Malformed> {
    let Some(text) = text_like(value) else {
        return Err(invalid(header::DELAY, value, "its type is no number and no text"));
    };
    match digits(text) {
        Some(Ok(ms)) => return Ok(after(ms)),
        Some(Err(())) => return Err(too_large(header::DELAY, value)),
        None => {}
    }
    match text.parse::<Millis>() {
        Ok(ms) => Ok(Delay::After(ms)),
        Err(ParseError::Overflow) => Err(too_large(header::DELAY, value)),
        Err(e) => Err(invalid(header::DELAY, value, &e.to_string())),
    }
}

fn absolute(value: &Value) -> Result<Delay, Malformed> {
    if let Value::Timestamp(seconds) = value {
        // An AMQP timestamp is in seconds by its type: no guessing.
        return Ok(Delay::At(seconds.saturating_mul(1000)));
    }
    let ms = match value {
        // JavaScript clients send whole numbers above 32 bits as doubles, Python's time.time() * 1000 is one.
        Value::Float(_) | Value::Double(_) => float(value)?,
        _ => {
            if let Some(n) = integer(value) {
                n
            } else {
                let Some(text) = text_like(value) else {
                    return Err(invalid(header::DELIVER_AT, value, "its type is no number, timestamp or text"));
                };
                match digits(text) {
                    Some(Ok(ms)) => ms,
                    Some(Err(())) => return Err(too_large(header::DELIVER_AT, value)),
                    None => return rfc3339(text, value),
                }
            }
        }
    };
    if ms < SECONDS_BY_MISTAKE_BELOW_MS {
        return Err(Malformed {
            reason: Reason::LooksLikeSeconds,
            detail: format!("{} is {}: epoch milliseconds are expected", header::DELIVER_AT, shown(value)),
        });
    }
    Ok(Delay::At(u64::try_from(ms).unwrap_or(u64::MAX)))
}

fn rfc3339(text: &str, value: &Value) -> Result<Delay, Malformed> {
    // jiff refuses a time without offset, which would mean another instant on every machine.
    let at: jiff::Timestamp = text.trim_matches(' ').parse().map_err(|_| {
        invalid(header::DELIVER_AT, value, "it is no RFC 3339 time with offset and no epoch milliseconds")
    })?;
    // Rounded up: a fraction of a millisecond must not make a message early.
    let ms = at.as_nanosecond().div_euclid(1_000_000) + i128::from(at.as_nanosecond().rem_euclid(1_000_000) != 0);
    Ok(Delay::At(u64::try_from(ms.max(0)).unwrap_or(u64::MAX)))
}

fn integer(value: &Value) -> Option<i128> {
    Some(match value {
        Value::ShortShortInt(n) => i128::from(*n),
        Value::ShortShortUInt(n) => i128::from(*n),
        Value::ShortInt(n) => i128::from(*n),
        Value::ShortUInt(n) => i128::from(*n),
        Value::LongInt(n) => i128::from(*n),
        Value::LongUInt(n) => i128::from(*n),
        Value::LongLongInt(n) => i128::from(*n),
        _ => return None,
    })
}

/// A float's whole part (case B02). NaN and infinities mean nothing; what is above 64 bits is too large, not zero.
fn float(value: &Value) -> Result<i128, Malformed> {
    let number = match value {
        Value::Float(f) => f64::from(*f),
        Value::Double(d) => *d,
        _ => f64::NAN,
    };
    if !number.is_finite() {
        return Err(invalid(header::DELAY, value, "it is no finite number"));
    }
    // The cast saturates, and -0.9 counts as negative: it was meant as a moment that has passed.
    #[allow(clippy::cast_possible_truncation)] // Truncation is the meaning: the fraction is dropped.
    let whole = number.trunc() as i128;
    Ok(if number < 0.0 && whole == 0 { -1 } else { whole })
}

/// Digits with an optional sign and blanks around; `Some(Err)` where the number does not fit.
fn digits(text: &str) -> Option<Result<i128, ()>> {
    let text = text.trim_matches([' ', '\t']);
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // i128 holds 38 digits; a longer run (leading zeros apart) is beyond any delay, and its sign decides.
    match text.parse::<i128>() {
        Ok(n) => Some(Ok(n)),
        Err(_) if text.starts_with('-') => Some(Ok(i128::MIN)),
        Err(_) => Some(Err(())),
    }
}

/// Text, also where the client sent it as an array of bytes.
fn text_like(value: &Value) -> Option<&str> {
    match value {
        Value::ByteArray(bytes) => std::str::from_utf8(bytes.as_slice()).ok(),
        other => as_text(other),
    }
}

fn invalid(name: &str, value: &Value, why: &str) -> Malformed {
    Malformed { reason: Reason::InvalidDelay, detail: format!("{name} is {}: {why}", shown(value)) }
}

fn too_large(name: &str, value: &Value) -> Malformed {
    Malformed { reason: Reason::DelayTooLarge, detail: format!("{name} is {}", shown(value)) }
}

/// A value for people, at most 60 characters of it: a header may be 100 kB of anything.
fn shown(value: &Value) -> String {
    let full = match text_like(value) {
        Some(text) => format!("{:?}", text.chars().take(61).collect::<String>()),
        None => match integer(value) {
            Some(n) => n.to_string(),
            None => match value {
                Value::Float(f) => f.to_string(),
                Value::Double(d) => d.to_string(),
                other => format!("of type {:?}", other.get_type()),
            },
        },
    };
    if full.chars().count() > 60 { full.chars().take(60).chain("…".chars()).collect() } else { full }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::wire::text;
    use made::{array, bytes};
    use proptest::prelude::*;

    /// Values that only the wire room can name are made here once.
    mod made {
        use super::Value;

        pub fn bytes(b: &[u8]) -> Value {
            Value::ByteArray(b.to_vec().into())
        }

        pub fn array() -> Value {
            Value::FieldArray(vec![Value::LongInt(5000)].into())
        }
    }

    fn x_delay(value: Value) -> Result<Delay, Reason> {
        let mut h = Headers::default();
        h.insert(header::DELAY.into(), value);
        asked(Some(&h)).map(|d| d.expect("a header was set")).map_err(|m| m.reason)
    }

    fn x_deliver_at(value: Value) -> Result<Delay, Reason> {
        let mut h = Headers::default();
        h.insert(header::DELIVER_AT.into(), value);
        asked(Some(&h)).map(|d| d.expect("a header was set")).map_err(|m| m.reason)
    }

    #[allow(clippy::unnecessary_wraps)] // Compared with results.
    fn ms(n: u64) -> Result<Delay, Reason> {
        Ok(Delay::After(Millis(n)))
    }

    #[test]
    fn b01_a_delay_sent_as_text_is_read_as_milliseconds() {
        for s in ["5000", "05000", " 5000", "5000 ", "+5000", "\t5000"] {
            assert_eq!(x_delay(text(s)), ms(5000), "{s:?}");
        }
    }

    #[test]
    fn b02_a_delay_sent_as_floating_point_loses_its_fraction_only() {
        assert_eq!(x_delay(Value::Double(60_000.0)), ms(60_000));
        assert_eq!(x_delay(Value::Float(60_000.0)), ms(60_000));
        assert_eq!(x_delay(Value::Double(1500.9)), ms(1500));
        assert_eq!(x_delay(Value::Double(f64::NAN)), Err(Reason::InvalidDelay));
        assert_eq!(x_delay(Value::Double(f64::INFINITY)), Err(Reason::InvalidDelay));
        assert_eq!(x_delay(Value::Double(f64::NEG_INFINITY)), Err(Reason::InvalidDelay));
        assert_eq!(x_delay(Value::Double(1e300)), ms(u64::MAX), "over every limit, never zero");
        assert_eq!(x_delay(Value::Double(-1e300)), Ok(Delay::Negative));
        assert_eq!(x_delay(Value::Double(-0.5)), Ok(Delay::Negative));
        assert_eq!(x_delay(Value::Double(0.4)), ms(0));
    }

    #[test]
    fn b05_words_are_invalid_and_durations_are_not() {
        for s in ["soon", "5,000", "1e3", "0x10", "", "5 s", "٥", "-"] {
            assert_eq!(x_delay(text(s)), Err(Reason::InvalidDelay), "{s:?}");
        }
        assert_eq!(x_delay(text("5s")), ms(5000));
        assert_eq!(x_delay(text("7d")), ms(604_800_000));
        assert_eq!(x_delay(text("1h30m")), ms(5_400_000));
    }

    #[test]
    fn b06_wrong_containers_are_invalid_except_bytes_of_digits() {
        assert_eq!(x_delay(bytes(b"5000")), ms(5000));
        for value in [
            Value::Boolean(true),
            Value::Timestamp(5000),
            array(),
            Value::FieldTable(Headers::default()),
            Value::Void,
            bytes(b"\xff\xfe"),
        ] {
            assert_eq!(x_delay(value.clone()), Err(Reason::InvalidDelay), "{value:?}");
        }
    }

    #[test]
    fn b10_b11_values_beyond_32_bits_are_kept_whole() {
        for n in [2_147_483_648_i64, 4_294_967_295, 4_294_967_296, 15_552_000_000, 31_536_000_000, i64::MAX] {
            assert_eq!(x_delay(Value::LongLongInt(n)), ms(n.unsigned_abs()), "{n}");
            assert_eq!(x_delay(text(n.to_string())), ms(n.unsigned_abs()), "{n} as text");
        }
        assert_eq!(x_delay(Value::LongUInt(u32::MAX)), ms(4_294_967_295));
        assert_eq!(x_delay(text("9".repeat(50))), Err(Reason::DelayTooLarge));
    }

    #[test]
    fn every_integer_width_is_read() {
        for value in [
            Value::ShortShortInt(100),
            Value::ShortShortUInt(100),
            Value::ShortInt(100),
            Value::ShortUInt(100),
            Value::LongInt(100),
            Value::LongUInt(100),
            Value::LongLongInt(100),
        ] {
            assert_eq!(x_delay(value.clone()), ms(100), "{value:?}");
        }
    }

    #[test]
    fn b17_negative_is_due_now_and_told_apart() {
        for value in [Value::LongInt(-1), Value::LongInt(-5000), Value::LongLongInt(i64::MIN), text("-5000")] {
            assert_eq!(x_delay(value.clone()), Ok(Delay::Negative), "{value:?}");
        }
    }

    #[test]
    fn b18_zero_is_zero() {
        assert_eq!(x_delay(Value::LongInt(0)), ms(0));
        assert_eq!(x_delay(text("0")), ms(0));
    }

    #[test]
    fn an_instant_is_read_in_all_its_forms() {
        let at = Ok(Delay::At(1_764_547_200_000));
        assert_eq!(x_deliver_at(Value::Timestamp(1_764_547_200)), at);
        assert_eq!(x_deliver_at(Value::LongLongInt(1_764_547_200_000)), at);
        assert_eq!(x_deliver_at(Value::Double(1_764_547_200_000.5)), at);
        assert_eq!(x_deliver_at(text("1764547200000")), at);
        assert_eq!(x_deliver_at(text("2025-12-01T00:00:00Z")), at);
        assert_eq!(x_deliver_at(text("2025-12-01T02:00:00+02:00")), at);
        assert_eq!(x_deliver_at(text("2025-12-01T00:00:00.000000001Z")), Ok(Delay::At(1_764_547_200_001)));
    }

    #[test]
    fn seconds_by_mistake_are_refused_rather_than_delivered_at_once() {
        for value in [
            Value::LongInt(1_764_547_200),
            Value::LongLongInt(99_999_999_999),
            Value::Double(1_764_547_200.0),
            text("1764547200"),
            Value::LongInt(-5),
            Value::LongInt(0),
        ] {
            assert_eq!(x_deliver_at(value.clone()), Err(Reason::LooksLikeSeconds), "{value:?}");
        }
        assert_eq!(x_deliver_at(Value::LongLongInt(100_000_000_000)), Ok(Delay::At(100_000_000_000)));
    }

    #[test]
    fn an_instant_that_is_none_is_invalid() {
        for value in [
            text("2025-12-01T00:00:00"),
            text("tomorrow"),
            text(""),
            Value::Boolean(true),
            Value::Void,
            array(),
            Value::Double(f64::NAN),
        ] {
            assert_eq!(x_deliver_at(value.clone()), Err(Reason::InvalidDelay), "{value:?}");
        }
        assert_eq!(x_deliver_at(Value::Timestamp(u64::MAX)), Ok(Delay::At(u64::MAX)));
    }

    #[test]
    fn both_headers_are_refused_and_none_is_none() {
        let mut h = Headers::default();
        assert_eq!(asked(Some(&h)), Ok(None));
        assert_eq!(asked(None), Ok(None));
        h.insert(header::DELAY.into(), Value::LongInt(1));
        h.insert(header::DELIVER_AT.into(), Value::Timestamp(1));
        assert_eq!(asked(Some(&h)).unwrap_err().reason, Reason::BothHeaders);
    }

    #[test]
    fn what_is_shown_of_a_value_is_bounded() {
        let mut h = Headers::default();
        h.insert(header::DELAY.into(), text("x".repeat(100_000)));
        assert!(asked(Some(&h)).unwrap_err().detail.len() < 200);
    }

    proptest! {
        #[test]
        fn no_text_and_no_number_panics(s in "\\PC*", n: i64, d: f64, f: f32) {
            for value in [text(s), Value::LongLongInt(n), Value::Double(d), Value::Float(f)] {
                let _ = x_delay(value.clone());
                let _ = x_deliver_at(value);
            }
        }

        #[test]
        fn a_positive_delay_is_never_shortened(n in 0..=i64::MAX) {
            prop_assert_eq!(x_delay(Value::LongLongInt(n)), ms(n.unsigned_abs()));
        }
    }
}
