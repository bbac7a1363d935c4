//! What can go wrong with the store, and the questions that callers ask about it.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::duration::Millis;

/// A call to the store failed. Names the verb and, where there is one, the key; never an address with its password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("redis, {verb}{}: {kind}", key.as_ref().map(|key| format!(" {key}")).unwrap_or_default())]
pub struct Error {
    verb: &'static str,
    key: Option<String>,
    kind: Kind,
    before: Before,
}

/// What earlier parks of one message may have left behind. Its record may be gone again by now: released, and never to
/// be parked anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// Nothing: none of them reached the server.
    #[default]
    Nothing,
    /// One was sent and not heard of: perhaps it was written.
    Perhaps,
    /// It was written by the connection of this number, and is not known to be durable.
    Written(u64),
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Kind {
    /// No connection, or it broke. The command may have run.
    #[error("out of reach: {0}")]
    Unreachable(String),
    /// No answer in time. The command may have run.
    #[error("no answer within {0}")]
    Timeout(Millis),
    /// At `maxmemory`: nothing was written.
    #[error("it is full (maxmemory)")]
    Full,
    /// A replica answered; a failover may be under way.
    #[error("it is a replica and takes no writes")]
    Replica,
    /// Loading its data, busy with a script, its master down, and the like: it will pass.
    #[error("not ready: {0}")]
    NotReady(String),
    /// Written, but not known to be as durable as the settings ask.
    #[error("written, but not known to be durable: {0}")]
    NotDurable(String),
    /// The key names another message each time we look.
    #[error("too many writers replace this key at once")]
    Contended,
    /// The wait is longer than a due time can say.
    #[error("the wait of {0} is too long")]
    TooLong(Millis),
    /// Credentials or rights are missing.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The server, or what lies in it, is unfit for this store.
    #[error("{0}")]
    Unfit(String),
    /// A key of the wrong type, an answer that makes no sense, a command that does not exist.
    #[error("unexpected: {0}")]
    Unexpected(String),
}

/// Passing conditions: B105.
const NOT_READY: [&str; 10] = [
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "UNBLOCKED",
    "UNKILLABLE",
    "NOSCRIPT",
];

// === impl Error ===

impl Error {
    /// The same call may succeed later without anybody's help. After [`Kind::Unreachable`], [`Kind::Timeout`] and
    /// [`Kind::NotDurable`] it may have taken effect already; every verb may be called again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            Kind::Unreachable(_)
            | Kind::Timeout(_)
            | Kind::Full
            | Kind::Replica
            | Kind::NotReady(_)
            | Kind::NotDurable(_)
            | Kind::Contended => true,
            Kind::TooLong(_) | Kind::Denied(_) | Kind::Unfit(_) | Kind::Unexpected(_) => false,
        }
    }

    /// Redis is at `maxmemory`. Also retryable: what is released makes room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// A person must change something: rights, credentials, the server's or our settings, a damaged key. Neither
    /// fatal nor retryable is an error of one message alone ([`Kind::TooLong`]).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, Kind::Denied(_) | Kind::Unfit(_) | Kind::Unexpected(_))
    }

    /// What went wrong, apart from where.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What a failed park may have left behind all the same: to be handed in with the next park of that message.
    #[must_use]
    pub fn before(&self) -> Before {
        self.before
    }

    pub(super) fn new(verb: &'static str, key: Option<&str>, kind: Kind) -> Error {
        Error { verb, key: key.map(ToOwned::to_owned), kind, before: Before::Nothing }
    }

    #[must_use]
    pub(super) fn leaving(self, before: Before) -> Error {
        Error { before, ..self }
    }

    /// What the driver or the server said, sorted.
    pub(super) fn sort(verb: &'static str, key: Option<&str>, error: &RedisError) -> Error {
        Error::new(verb, key, Kind::sort(error))
    }

    /// An answer that the verb does not give.
    pub(super) fn answer(verb: &'static str, key: Option<&str>) -> Error {
        Error::new(verb, key, Kind::Unexpected("the answer has another form than this verb gives".into()))
    }

    /// The same error, said of another verb: one connection's failure is told to all who waited for it.
    #[must_use]
    pub(super) fn of(mut self, verb: &'static str, key: Option<&str>) -> Error {
        self.verb = verb;
        if key.is_some() {
            self.key = key.map(ToOwned::to_owned);
        }
        self
    }

    /// The connection must not be used again. redis-rs keeps one that talks to a replica after a failover, and one that
    /// no longer answers; we do not.
    pub(super) fn spoils_connection(&self) -> bool {
        matches!(
            self.kind,
            Kind::Unreachable(_) | Kind::Timeout(_) | Kind::Replica | Kind::NotReady(_) | Kind::Unfit(_)
        )
    }
}

// === impl Kind ===

impl Kind {
    fn sort(error: &RedisError) -> Kind {
        let text = error.to_string();
        // Before version 7 an error inside a script comes as ERR, with the code somewhere in the text.
        let code = error.code().unwrap_or_default();
        let says = |word: &str| code == word || text.contains(&format!("-{word} "));
        match error.kind() {
            // Broken, or out of step: only a new connection helps.
            ErrorKind::Io | ErrorKind::Parse => Kind::Unreachable(text),
            // The password was wrong, or none was given: the text names neither.
            ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => Kind::Denied(text),
            ErrorKind::InvalidClientConfig => Kind::Unfit(text),
            _ if says("NOPERM") || says("NOAUTH") || says("WRONGPASS") => Kind::Denied(text),
            _ if says("OOM") => Kind::Full,
            _ if says("READONLY") => Kind::Replica,
            _ if NOT_READY.iter().any(|word| says(word)) => Kind::NotReady(text),
            // WAITAOF after somebody has switched the append-only file off.
            _ if text.contains("appendonly is disabled") => Kind::Unfit(text),
            _ => Kind::Unexpected(text),
        }
    }
}

/// Does this error say that the server does not know the script (any more)?
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, detail: &str) -> Error {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        Error::sort("park", Some("dwell:{orders.0}:due"), &error)
    }

    /// B105.
    #[test]
    fn what_passes_is_told_from_what_needs_a_person() {
        for code in ["LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY", "READONLY", "MISCONF", "CLUSTERDOWN", "UNBLOCKED"] {
            let error = server(code, "said the server");
            assert!(error.is_retryable() && !error.is_fatal() && !error.is_full(), "{error}");
            assert!(error.spoils_connection(), "{error}");
        }
        for code in ["NOPERM", "WRONGTYPE", "NOAUTH", "WRONGPASS", "ERR"] {
            let error = server(code, "said the server");
            assert!(error.is_fatal() && !error.is_retryable() && !error.is_full(), "{error}");
        }
        let full = server("OOM", "command not allowed when used memory > 'maxmemory'.");
        assert!(full.is_full() && full.is_retryable() && !full.is_fatal() && !full.spoils_connection());
    }

    #[test]
    fn codes_inside_the_text_of_a_script_error_are_found() {
        let old = server("ERR", "Error running script (call to f_0): @user_script:47: -OOM command not allowed when");
        assert!(old.is_full(), "{old}");
        let old = server("ERR", "Error running script (call to f_0): @user_script:47: -READONLY You can't write");
        assert_eq!(old.kind(), &Kind::Replica);
    }

    #[test]
    fn the_message_names_verb_and_key() {
        let text = server("WRONGTYPE", "Operation against a key holding the wrong kind of value").to_string();
        assert!(text.starts_with("redis, park dwell:{orders.0}:due: "), "{text}");
        assert!(text.contains("wrong kind of value"), "{text}");
    }
}
