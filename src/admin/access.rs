//! Who may see the page and the API.
//!
//! On a loopback address whoever has a shell on the machine; on any other address whoever has the token. What probes
//! and Prometheus read (`/healthz`, `/readyz`, `/metrics`) holds no message and is open everywhere.

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use crate::config::{Http, Secret};

/// What a request to a guarded path needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: only this machine reaches the address.
    Local,
    /// `Authorization: Bearer <token>`.
    Token(Secret),
}

/// The settings would open the API to the network; dwell refuses to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("http.listen is {0}, which is not a loopback address, and http.token is empty")]
pub struct Unguarded(pub std::net::SocketAddr);

// === impl Access ===

impl Access {
    /// What the settings ask for.
    pub fn of(http: &Http) -> Result<Access, Unguarded> {
        // `::ffff:127.0.0.1` is loopback as well.
        if http.listen.ip().to_canonical().is_loopback() {
            return Ok(Access::Local);
        }
        match &http.token {
            Some(token) if !token.expose().is_empty() => Ok(Access::Token(token.clone())),
            _ => Err(Unguarded(http.listen)),
        }
    }

    /// Whether a request with these headers may pass. The time it takes tells nothing of the token but its length.
    #[must_use]
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        match self {
            Access::Local => true,
            Access::Token(token) => {
                bearer(headers).is_some_and(|given| bool::from(given.ct_eq(token.expose().as_bytes())))
            }
        }
    }
}

/// The token that a request carries. The scheme's case does not matter (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(listen: &str, token: Option<&str>) -> Http {
        Http { listen: listen.parse().expect("an address"), token: token.map(Secret::new) }
    }

    fn with_authorization(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().expect("a header value"))])
    }

    #[test]
    fn loopback_needs_no_token() {
        for listen in ["127.0.0.1:8672", "127.9.9.9:1", "[::1]:8672", "[::ffff:127.0.0.1]:8672"] {
            assert_eq!(Access::of(&http(listen, None)), Ok(Access::Local), "{listen}");
        }
    }

    #[test]
    fn any_other_address_is_refused_without_a_token() {
        for listen in ["0.0.0.0:8672", "[::]:8672", "10.0.0.1:8672", "[::ffff:10.0.0.1]:8672"] {
            for token in [None, Some("")] {
                let settings = http(listen, token);
                assert_eq!(Access::of(&settings), Err(Unguarded(settings.listen)), "{listen} {token:?}");
            }
            assert_eq!(Access::of(&http(listen, Some("s3cret"))), Ok(Access::Token(Secret::new("s3cret"))));
        }
    }

    #[test]
    fn only_the_very_token_passes() {
        let access = Access::Token(Secret::new("s3cret"));
        for passes in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret "] {
            assert!(access.admits(&with_authorization(passes)), "{passes}");
        }
        for fails in
            ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Bearer S3cret", "Basic s3cret", "s3cret"]
        {
            assert!(!access.admits(&with_authorization(fails)), "{fails}");
        }
        assert!(!access.admits(&HeaderMap::new()));
    }
}
