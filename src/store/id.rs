//! `dwell-id`: the name of one message from the moment it is taken in.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// A `UUIDv7`. Its first bytes are the time, so that ids of one process sort in the order they were made, and messages
/// with equal due times come out first in first out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; Id::LENGTH]);

/// The text is no UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a UUID such as 0190163d-8694-739b-aea5-966c26f8ad91")]
pub struct ParseError;

// === impl Id ===

impl Id {
    /// Bytes of an id.
    pub const LENGTH: usize = 16;

    /// A new id, above all that this process has made before.
    #[must_use]
    pub fn fresh() -> Id {
        Id(*Uuid::now_v7().as_bytes())
    }

    /// From its 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Id::LENGTH]) -> Id {
        Id(bytes)
    }

    /// Its 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Id::LENGTH] {
        &self.0
    }
}

/// As hyphenated text: 36 bytes.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_bytes(self.0), f)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

impl FromStr for Id {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Id, ParseError> {
        Uuid::try_parse(text).map(|uuid| Id(uuid.into_bytes())).map_err(|_| ParseError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_from_their_text() {
        let id = Id::fresh();
        assert_eq!(id.to_string().len(), 36);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("not an id".parse::<Id>(), Err(ParseError));
    }

    #[test]
    fn later_ids_sort_after_earlier_ones() {
        let ids: Vec<Id> = (0..10_000).map(|_| Id::fresh()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
