//! Why a message rests where it rests: the closed list behind the `dwell-reason` header, metrics and logs.

use std::fmt;

/// Why a message was put to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The delay header cannot be understood.
    InvalidDelay,
    /// The delay is above `max_delay`, or above the broker limit where `long = "reject"`.
    DelayTooLarge,
    /// An absolute time that can only have been meant in seconds.
    LooksLikeSeconds,
    /// `x-delay` and `x-deliver-at` on one message.
    BothHeaders,
    /// A header or stored record that dwell relies on is damaged.
    BadEnvelope,
    /// Above what the broker takes.
    TooBig,
    /// The delay needs the store, and there is none.
    StoreNeeded,
    /// No queue wanted it.
    Unroutable,
    /// Its retries are used up.
    RetriesUsedUp,
    /// Its `expiration` passed in a work queue.
    Expired,
    /// A work queue's length limit pushed it out.
    Maxlen,
    /// It was delivered too often without an answer.
    DeliveryLimit,
}

// === impl Reason ===

impl Reason {
    /// The stable text, as in the header.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::InvalidDelay => "invalid-delay",
            Reason::DelayTooLarge => "delay-too-large",
            Reason::LooksLikeSeconds => "looks-like-seconds",
            Reason::BothHeaders => "both-headers",
            Reason::BadEnvelope => "bad-envelope",
            Reason::TooBig => "too-big",
            Reason::StoreNeeded => "store-needed",
            Reason::Unroutable => "unroutable",
            Reason::RetriesUsedUp => "retries-used-up",
            Reason::Expired => "expired",
            Reason::Maxlen => "maxlen",
            Reason::DeliveryLimit => "delivery-limit",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
