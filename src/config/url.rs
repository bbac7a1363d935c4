//! Addresses: what each client library would silently misread, refused with the reason; and how they are printed.
//!
//! The messages here never hold a part of the address that may be a secret.

use ::url::Url;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::problem::{near, one_of, show};

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub what: String,
    pub why: &'static str,
    pub help: String,
}

/// Separate keys that are put into the address.
#[derive(Clone, Debug, Default)]
pub(super) struct Credentials {
    pub username: Option<String>,
    pub password: Option<String>,
}

const AMQP_QUERY: &[&str] = &["frame_max", "channel_max", "heartbeat", "connection_timeout", "auth_mechanism"];
const AUTH_MECHANISMS: &[&str] = &["plain", "amqplain", "external", "anonymous", "rabbit-cr-demo"];
/// RabbitMQ 4.1 refuses smaller frames before it lets anybody in (case B91).
const SMALLEST_FRAME: u64 = 8192;

/// An address of RabbitMQ, with the credentials put in: the address, and its vhost.
pub(super) fn amqp(text: &str, credentials: &Credentials) -> Result<(String, String), Fault> {
    let mut url = parse(text, &["amqp", "amqps"], "amqp://user:password@host:5672/%2f")?;
    match url.host() {
        None => return Err(no_host("amqp://host:5672/%2f")),
        // lapin's own parser (amq-protocol-uri 10.6) overlooks such a host and connects to `localhost` instead.
        Some(::url::Host::Ipv6(_)) => {
            return Err(fault(
                "the address names its host by IPv6 number",
                "the AMQP client overlooks such a host, and would connect to `localhost`",
                "write a host name that resolves to it",
            ));
        }
        Some(_) => {}
    }
    let vhost = match url.path() {
        "" => "/".to_owned(),
        // Case B20: to RabbitMQ that is a vhost with an empty name.
        "/" => {
            return Err(fault(
                "the address ends in `/`, which names a vhost with an empty name",
                "an address without a vhost means the vhost `/`, one that ends in a slash the vhost without a name",
                "write `%2f` after the slash for the default vhost: `amqp://host:5672/%2f`",
            ));
        }
        path => percent_decode_str(&path[1..]).decode_utf8_lossy().into_owned(),
    };
    let mut external = false;
    for (key, value) in url.query_pairs() {
        let number = value.parse::<u64>().ok();
        match key.as_ref() {
            "frame_max" if number.is_none_or(|bytes| bytes < SMALLEST_FRAME || bytes > u64::from(u32::MAX)) => {
                return Err(fault(
                    format!("`frame_max={}` is too small, or no number", shown_number(&value)),
                    "RabbitMQ 4.1 refuses frames below 8192 bytes, and headers grow at each dead-lettering",
                    "take it out, or write at least `frame_max=8192`",
                ));
            }
            "channel_max" if number.is_none_or(|n| !(16..=65535).contains(&n)) => {
                return Err(fault(
                    format!("`channel_max={}` is out of range", shown_number(&value)),
                    "dwell needs a few channels for each bridge",
                    "take it out, or write a number from 16 to 65535",
                ));
            }
            "heartbeat" if number.is_none_or(|n| n > 65535) => {
                return Err(fault(
                    format!("`heartbeat={}` is no number of seconds", shown_number(&value)),
                    "",
                    "write seconds: `heartbeat=30`",
                ));
            }
            "connection_timeout" if number.is_none() => {
                return Err(fault(
                    "`connection_timeout` is no number of milliseconds",
                    "",
                    "take it out, and write the setting `amqp.connect_timeout` instead",
                ));
            }
            "auth_mechanism" => {
                let word = value.to_lowercase();
                external = word == "external" || word == "anonymous";
                if !AUTH_MECHANISMS.contains(&word.as_str()) {
                    return Err(fault("`auth_mechanism` is unknown", "", format!("write {}", one_of(AUTH_MECHANISMS))));
                }
            }
            known if AMQP_QUERY.contains(&known) => {}
            other => {
                let help = match near(other, AMQP_QUERY.iter().copied()) {
                    Some(meant) => format!("write `{meant}`"),
                    None => format!("take it out; known are {} (TLS files are `amqp.tls.…`)", one_of(AMQP_QUERY)),
                };
                return Err(fault(
                    "the address has an unknown parameter after `?`",
                    "the AMQP client would ignore it",
                    help,
                ));
            }
        }
    }
    fill_in(&mut url, credentials)?;
    let named = !url.username().is_empty();
    if !external && named != url.password().is_some() {
        let missing = if named { "password" } else { "user name" };
        return Err(fault(
            format!("the address has no {missing}"),
            "the AMQP client would silently take `guest` for it",
            format!(
                "write both, `amqp://user:password@host`, or the key `{}`",
                if named { "password" } else { "username" }
            ),
        ));
    }
    Ok((url.into(), vhost))
}

/// An address of the management API, with the credentials put in, without a slash at its end.
pub(super) fn management(text: &str, credentials: &Credentials) -> Result<String, Fault> {
    let mut url = parse(text, &["http", "https"], "http://user:password@host:15672")?;
    if url.host().is_none() {
        return Err(no_host("http://host:15672"));
    }
    if url.query().is_some() {
        return Err(fault("the address has parameters after `?`", "the management API has none", "take them out"));
    }
    fill_in(&mut url, credentials)?;
    if url.username().is_empty() || url.password().is_none() {
        return Err(fault(
            "the address has no user name or no password",
            "the management API lets nobody in without",
            "write both, `http://user:password@host:15672`, or the keys `username` and `password`",
        ));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// An address of Redis, with the credentials put in.
pub(super) fn redis(text: &str, credentials: &Credentials) -> Result<String, Fault> {
    let mut url = parse(text, &["redis", "rediss", "unix"], "redis://host:6379/0")?;
    if url.scheme() == "unix" {
        if url.path().trim_matches('/').is_empty() {
            return Err(fault("the address names no socket", "", "write its path: `unix:///run/redis/redis.sock`"));
        }
        // A path has no room for a user: redis reads them behind the question mark.
        for (key, value) in [("user", &credentials.username), ("pass", &credentials.password)] {
            if let Some(value) = value {
                if url.query_pairs().any(|(known, _)| known == key) {
                    return Err(twice());
                }
                let pair = format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
                let query = url.query().map_or_else(|| pair.clone(), |query| format!("{query}&{pair}"));
                url.set_query(Some(&query));
            }
        }
        return Ok(url.into());
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(no_host("redis://host:6379/0"));
    }
    let database = url.path().trim_matches('/');
    if !database.is_empty() && database.parse::<u16>().is_err() {
        return Err(fault("the database in the address is no number", "", "write `redis://host:6379/0`"));
    }
    fill_in(&mut url, credentials)?;
    Ok(url.into())
}

/// The address as it may be printed: user name, password and unknown parameters are stars.
///
/// Works on the text, not on what a parser makes of it: a password with raw special characters must not escape.
pub(super) fn redact(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return "***".to_owned() };
    if !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) {
        return "***".to_owned();
    }
    let (stars, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("***@", rest),
        None => ("", rest),
    };
    let (address, query) = rest.split_once('?').map_or((rest, None), |(address, query)| (address, Some(query)));
    // `user:password` without a host looks like host and port, but for the port.
    let (authority, path) = address.split_once('/').map_or((address, None), |(host, path)| (host, Some(path)));
    let odd_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.bytes().all(|b| b.is_ascii_digit()));
    if authority.contains('#') || path.is_some_and(|path| path.contains('#')) || (odd_port && !authority.ends_with(']'))
    {
        return format!("{scheme}://***");
    }
    let query: Vec<String> = query.map_or_else(Vec::new, |query| {
        query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((key, _)) if AMQP_QUERY.contains(&key) || matches!(key, "db" | "protocol") => pair.to_owned(),
                Some((key, _)) if matches!(key, "user" | "pass" | "password") => format!("{key}=***"),
                _ => "***".to_owned(),
            })
            .collect()
    });
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("{scheme}://{stars}{address}{query}")
}

fn parse(text: &str, schemes: &[&str], example: &str) -> Result<Url, Fault> {
    if text.trim().is_empty() {
        return Err(fault("the address is empty", "", format!("write `{example}`")));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(fault("the address has no scheme", "", format!("begin it with `{}://`", schemes[0])));
    };
    if !schemes.contains(&scheme) {
        let alike = if scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+') {
            show(scheme)
        } else {
            "the scheme".to_owned()
        };
        let help = if let Some(meant) = near(scheme, schemes.iter().copied()) {
            format!("did you mean `{meant}://`?")
        } else {
            let schemes: Vec<String> = schemes.iter().map(|scheme| format!("{scheme}://")).collect();
            format!("begin it with {}", one_of(&schemes.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        return Err(fault(format!("{alike} is none of the schemes that can be used here"), "", help));
    }
    special_characters(rest)?;
    Url::parse(text).map_err(|error| {
        fault(format!("the address cannot be read: {error}"), "", format!("it looks like `{example}`"))
    })
}

/// Case B127: a password with `#`, `/`, `?`, `@`, `%` breaks the address elsewhere, and the error then points there.
fn special_characters(rest: &str) -> Result<(), Fault> {
    let encode = || {
        fault(
            "the address has characters that must be percent-encoded",
            "in a user name, password or vhost the characters `# / ? @ % :`, spaces and others end that part of the address",
            "percent-encode them (`#` is `%23`, `/` is `%2F`, `?` is `%3F`, `@` is `%40`, `%` is `%25`, space is `%20`), or \
             write user name and password as keys of their own, `username` and `password`, as they are",
        )
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let odd = |c: char| c.is_control() || c.is_whitespace() || !c.is_ascii() || "\"<>\\^`{|}".contains(c);
    let fine_percent = |text: &str| {
        text.split('%').skip(1).all(|after| after.len() >= 2 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
    };
    if rest.contains(odd)
        || !fine_percent(rest)
        || authority.matches('@').count() > 1
        || tail.contains('@')
        || rest.contains('#')
    {
        return Err(encode());
    }
    Ok(())
}

fn fill_in(url: &mut Url, credentials: &Credentials) -> Result<(), Fault> {
    let given = credentials.username.is_some() && !url.username().is_empty();
    if given || (credentials.password.is_some() && url.password().is_some()) {
        return Err(twice());
    }
    let no_room = |()| fault("the address has no room for a user name", "", "write an address with a host");
    if let Some(username) = &credentials.username {
        let encoded = utf8_percent_encode(username, NON_ALPHANUMERIC).to_string();
        url.set_username(&encoded).map_err(no_room)?;
    }
    if let Some(password) = &credentials.password {
        let encoded = utf8_percent_encode(password, NON_ALPHANUMERIC).to_string();
        url.set_password(Some(&encoded)).map_err(no_room)?;
    }
    Ok(())
}

fn twice() -> Fault {
    fault(
        "the address and a key of its own both give the user name or the password",
        "which of the two is meant cannot be known",
        "keep one of them",
    )
}

fn no_host(example: &str) -> Fault {
    fault("the address names no host", "the client would silently take `localhost`", format!("write `{example}`"))
}

fn fault(what: impl Into<String>, why: &'static str, help: impl Into<String>) -> Fault {
    Fault { what: what.into(), why, help: help.into() }
}

/// A number may be shown; anything else may be a password that went astray.
fn shown_number(value: &str) -> &str {
    if value.len() <= 20 && value.bytes().all(|b| b.is_ascii_digit()) { value } else { "…" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: Credentials = Credentials { username: None, password: None };

    #[test]
    fn addresses_that_work_are_taken_as_they_are() {
        for (text, vhost) in [
            ("amqp://guest:guest@127.0.0.1:5672/%2f", "/"),
            ("amqp://u:p@host", "/"),
            ("amqps://u:p%23%24%40%2F%3A%25+%20%C3%A9@host:5671/team?heartbeat=30&frame_max=8192", "team"),
            ("amqp://host/v", "v"),
            ("amqps://host?auth_mechanism=external", "/"),
        ] {
            assert_eq!(amqp(text, &NONE), Ok((text.to_owned(), vhost.to_owned())), "{text}");
        }
        for text in ["redis://h:6379/0", "rediss://:p@h", "redis://[::1]:6379", "unix:///run/redis.sock?db=1&pass=x"] {
            assert_eq!(redis(text, &NONE), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_a_client_would_misread_is_refused() {
        for text in [
            "",
            "host:5672",
            "ampq://u:p@h/%2f",
            "amqp://u:p@h/",
            "amqp://u:@h",
            "amqp://u@h",
            "amqp://:p@h",
            "amqp:///vhost",
            "amqp://u:p@[2001:db8::7]:5672/%2f",
            "amqp://u:p#$@/:%+ é@h/%2f",
            "amqp://u:p@x@h/%2f",
            "amqp://u:p%zz@h/%2f",
            "amqp://u:p@h:port/%2f",
            "amqp://u:p@h:99999/%2f",
            "amqp://u:p@h/%2f?frame_max=4096",
            "amqp://u:p@h/%2f?frame_max=big",
            "amqp://u:p@h/%2f?heartbeats=3",
            "amqp://u:p@h/%2f?auth_mechanism=magic",
        ] {
            assert!(amqp(text, &NONE).is_err(), "{text}");
        }
        for text in ["redis://h/abc", "redis://", "redis:///0", "unix://", "rediss://h/#insecure", "http://h"] {
            assert!(redis(text, &NONE).is_err(), "{text}");
        }
        for text in ["http://h:15672", "http://u:p@h:15672/?x=1", "amqp://u:p@h"] {
            assert!(management(text, &NONE).is_err(), "{text}");
        }
    }

    #[test]
    fn separate_keys_may_hold_any_character() {
        let keys = Credentials { username: Some("svc".to_owned()), password: Some("p#$@/:%+ é".to_owned()) };
        let expected = "amqp://svc:p%23%24%40%2F%3A%25%2B%20%C3%A9@h:5672/%2f";
        assert_eq!(amqp("amqp://h:5672/%2f", &keys).map(|(url, _)| url), Ok(expected.to_owned()));
        assert_eq!(
            redis("unix:///run/r.sock?db=2", &keys),
            Ok("unix:///run/r.sock?db=2&user=svc&pass=p%23%24%40%2F%3A%25%2B%20%C3%A9".to_owned())
        );
        assert!(amqp("amqp://u:p@h/%2f", &keys).is_err());
    }

    #[test]
    fn nothing_that_may_be_a_secret_is_printed() {
        for (text, shown) in [
            ("amqp://u:secret@h:5672/%2f", "amqp://***@h:5672/%2f"),
            ("amqp://u:se/cr#et@h:5672/%2f", "amqp://***@h:5672/%2f"),
            ("amqp://u:secret", "amqp://***"),
            ("amqp://u:se#cret", "amqp://***"),
            ("unix:///run/r.sock?db=1&pass=secret", "unix:///run/r.sock?db=1&pass=***"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("secret", "***"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    proptest! {
        #[test]
        fn no_password_gets_into_a_fault(password in "[!-~é ]{6,20}") {
            prop_assume!(!"the address has characters that must be percent-encoded user name password".contains(&password));
            for scheme in ["amqp", "redis", "http"] {
                let text = format!("{scheme}://user:{password}@host:1/0");
                for result in [amqp(&text, &NONE).map(|_| ()), redis(&text, &NONE).map(|_| ()), management(&text, &NONE).map(|_| ())] {
                    if let Err(fault) = result {
                        let said = format!("{} {}", fault.what, fault.help);
                        prop_assert!(!said.contains(&password), "{said}");
                    }
                }
                prop_assert!(!redact(&text).contains(&password));
            }
        }
    }
}
