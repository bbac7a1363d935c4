//! What can go wrong at the broker, with the questions that callers ask of it.

use lapin::ErrorKind;
use lapin::protocol::AMQPErrorKind;

/// A failure at RabbitMQ.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("RabbitMQ at {address}: {why}")]
    Unreachable {
        /// Host and port, without credentials.
        address: String,
        /// The cause, told apart: refused, handshake timeout, TLS, login, vhost.
        why: String,
    },
    /// The broker closed the channel: 403, 404, 405, 406 and the like.
    #[error("RabbitMQ refused {what}: {code} {text}")]
    Refused {
        /// What was asked of it.
        what: String,
        /// AMQP reply code.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// What came in cannot be parsed (a name that is not UTF-8); the connection is gone.
    #[error("something that came in while {what} cannot be parsed by the AMQP client; the connection was lost")]
    Unparsable {
        /// What was going on.
        what: String,
    },
    /// The connection ended.
    #[error("the connection to RabbitMQ was lost while {what}: {why}")]
    Lost {
        /// What was going on.
        what: String,
        /// The cause.
        why: String,
    },
    /// No answer within the deadline.
    #[error("RabbitMQ did not answer within {ms} ms: {what}")]
    Timeout {
        /// What was asked of it.
        what: String,
        /// The deadline in milliseconds.
        ms: u64,
    },
}

// === impl Error ===

impl Error {
    /// Turns lapin's error into ours; `what` says what was going on.
    pub(super) fn from_lapin(error: &lapin::Error, what: &str) -> Error {
        match error.kind() {
            ErrorKind::ProtocolError(e) if matches!(e.kind(), AMQPErrorKind::Soft(_)) => {
                Error::Refused { what: what.to_owned(), code: e.get_id(), text: e.get_message().to_string() }
            }
            ErrorKind::ParsingError(_) => Error::Unparsable { what: what.to_owned() },
            _ => Error::Lost { what: what.to_owned(), why: error.to_string() },
        }
    }
}
