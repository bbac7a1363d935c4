//! Durations as people write them (`10s`, `1h30m`, `7d`) and as the program counts them: whole milliseconds.
//!
//! One grammar serves topology files, settings, the command line and the `x-delay` header: a sum of
//! `<digits><unit>` with units `ms`, `s`, `m`, `h`, `d`. A bare number is refused with its own error, because a
//! number without a unit is the classic way to be wrong by a factor of a thousand (case B112).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text is empty or blank.
    #[error("it is empty")]
    Empty,
    /// Digits only: which unit was meant cannot be known.
    #[error("it has no unit")]
    BareNumber,
    /// A character or unit that the grammar does not know.
    #[error("it is not a sum of numbers with units (ms, s, m, h, d)")]
    Malformed,
    /// The sum does not fit 64 bits of milliseconds.
    #[error("it does not fit 64 bits of milliseconds")]
    Overflow,
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Units from the longest to the shortest, as [`Millis`]' `Display` writes them.
const UNITS: [(&str, u64); 5] = [("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)];

// === impl Millis ===

impl Millis {
    /// No time at all.
    pub const ZERO: Millis = Millis(0);

    /// That many seconds.
    #[must_use]
    pub const fn seconds(n: u64) -> Millis {
        Millis(n * SECOND)
    }

    /// That many days.
    #[must_use]
    pub const fn days(n: u64) -> Millis {
        Millis(n * DAY)
    }

    /// As AMQP's integers, which have a sign; what exceeds them is longer than any broker holds.
    #[must_use]
    pub fn to_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// As the standard library's type, for timers.
    #[must_use]
    pub const fn to_std(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// The shortest exact form, longest unit first: 90,000 ms is `1m30s`. Names of buffer queues are made of it, so
/// `60s` and `1m` in a file mean the same queue.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0ms");
        }
        let mut left = self.0;
        for (unit, size) in UNITS {
            let n = left / size;
            left %= size;
            if n > 0 {
                write!(f, "{n}{unit}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Millis {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim_matches(' ');
        if text.is_empty() {
            return Err(ParseError::Empty);
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseError::BareNumber);
        }
        let mut total: u64 = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, tail) = tail.split_at(letters);
            let size =
                UNITS.iter().find(|(name, _)| *name == unit).map(|(_, size)| *size).ok_or(ParseError::Malformed)?;
            if number.is_empty() {
                return Err(ParseError::Malformed);
            }
            let n: u64 = number.parse().map_err(|_| ParseError::Overflow)?;
            let part = n.checked_mul(size).ok_or(ParseError::Overflow)?;
            total = total.checked_add(part).ok_or(ParseError::Overflow)?;
            rest = tail;
        }
        Ok(Millis(total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sums_of_units_are_read() {
        for (text, ms) in [
            ("1ms", 1),
            ("10s", 10_000),
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1d2h3m4s5ms", 93_784_005),
            (" 5s ", 5_000),
            ("0s", 0),
            // B15: seconds times a thousand must not overflow 32 bits.
            ("3600000s", 3_600_000_000),
            ("1000h", 3_600_000_000),
            ("42d", 3_628_800_000),
        ] {
            assert_eq!(text.parse(), Ok(Millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for (text, error) in [
            ("", ParseError::Empty),
            ("  ", ParseError::Empty),
            ("5", ParseError::BareNumber),
            ("soon", ParseError::Malformed),
            ("5,000", ParseError::Malformed),
            ("1e3", ParseError::Malformed),
            ("0x10", ParseError::Malformed),
            ("-5s", ParseError::Malformed),
            ("5 s", ParseError::Malformed),
            ("5m3", ParseError::Malformed),
            ("5µs", ParseError::Malformed),
            ("1.5h", ParseError::Malformed),
            ("99999999999999999999s", ParseError::Overflow),
            ("18446744073709551615d", ParseError::Overflow),
        ] {
            assert_eq!(text.parse::<Millis>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ms: u64) {
            prop_assert_eq!(Millis(ms).to_string().parse(), Ok(Millis(ms)));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Millis>();
        }
    }
}
