//! From the flags of `dwell send` to one message: pure, and all mistakes in one run.

use std::fmt;

use clap::Args;
use jiff::Timestamp;

use crate::broker::Outgoing;
use crate::broker::wire::{self, Headers, Properties as WireProperties, ShortString, TooLong, Value};
use crate::duration::{Millis, ParseError};
use crate::message::Message;

/// What describes the message on the command line.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct MessageArgs {
    /// The exchange to publish to: a bridge's delay exchange, like `orders.delay`.
    #[arg(long, value_name = "NAME")]
    exchange: String,
    /// The routing key; it comes out of the work exchange unchanged.
    #[arg(long, value_name = "KEY")]
    routing_key: String,
    /// How long the message waits: `30s`, `1h30m`, `7d`. Sets the header x-delay.
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    delay: Option<String>,
    /// When the message is due: `2030-01-31T08:00:00+01:00`, or Unix time in milliseconds. Sets the header x-deliver-at.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// The message's own key, to find, replace or cancel it by. Sets the header x-delay-key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// A header, repeatable: `name=value` is text; `name:int=5`, `:float=`, `:bool=`, `:timestamp=` (Unix seconds).
    #[arg(long = "header", value_name = "NAME[:TYPE]=VALUE")]
    headers: Vec<String>,
    /// A property, repeatable: content-type, content-encoding, delivery-mode, priority, correlation-id, reply-to,
    /// expiration, message-id, timestamp, type, user-id, app-id.
    #[arg(long = "property", value_name = "NAME=VALUE")]
    properties: Vec<String>,
}

/// One message to publish, and where. Every name fits AMQP's 255 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct SendRequest {
    /// May be empty: RabbitMQ's default exchange.
    pub exchange: String,
    /// May be empty.
    pub routing_key: String,
    /// No name twice.
    pub headers: Vec<(String, HeaderValue)>,
    /// What AMQP calls basic properties, but for the headers.
    pub properties: Properties,
    /// As given, byte for byte.
    pub body: Vec<u8>,
}

/// The types of header values that the command line can say.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue {
    /// A long string.
    Text(String),
    /// A 64-bit signed integer.
    Int(i64),
    /// A 64-bit float, finite.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// AMQP's timestamp: seconds since 1970.
    Timestamp(u64),
}

/// Basic properties; `None`: absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// A media type.
    pub content_type: Option<String>,
    /// Like `gzip`.
    pub content_encoding: Option<String>,
    /// 1: transient, 2: persistent. 2 unless asked otherwise.
    pub delivery_mode: u8,
    /// 0 to 255.
    pub priority: Option<u8>,
    /// Free text.
    pub correlation_id: Option<String>,
    /// Free text, mostly a queue.
    pub reply_to: Option<String>,
    /// Milliseconds as digits, as RabbitMQ reads it.
    pub expiration: Option<String>,
    /// Free text.
    pub message_id: Option<String>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// Free text.
    pub kind: Option<String>,
    /// RabbitMQ refuses any other than the connection's own user.
    pub user_id: Option<String>,
    /// Free text.
    pub app_id: Option<String>,
}

/// A flag that cannot be understood: what, where, why, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    flag: &'static str,
    what: String,
    /// May be empty.
    why: &'static str,
    help: String,
}

/// Sets one of the properties that are texts.
type SetText = fn(WireProperties, ShortString) -> WireProperties;

/// What waits that long.
const DELAY: &str = "x-delay";
/// What is due then.
const DELIVER_AT: &str = "x-deliver-at";
/// What the message is found by.
const DELAY_KEY: &str = "x-delay-key";
/// Below it an integer is taken for seconds by mistake: as milliseconds it would lie before March 1973.
const LOOKS_LIKE_SECONDS: i64 = 100_000_000_000;
/// RabbitMQ's longest timer in milliseconds: ten years.
const LONGEST_EXPIRATION: u64 = 315_360_000_000;
/// AMQP's short strings: names, keys, most properties.
const SHORT: usize = 255;

const PROPERTIES: [&str; 12] = [
    "content-type",
    "content-encoding",
    "delivery-mode",
    "priority",
    "correlation-id",
    "reply-to",
    "expiration",
    "message-id",
    "timestamp",
    "type",
    "user-id",
    "app-id",
];

/// Understands the flags, or says everything that is wrong with them.
pub(super) fn understand(args: &MessageArgs, body: Vec<u8>) -> Result<SendRequest, Vec<Fault>> {
    let mut faults = Vec::new();
    let mut headers = Vec::new();
    if let Some(text) = &args.delay {
        keep(delay(text), &mut faults, |millis| headers.push((DELAY.to_owned(), HeaderValue::Int(millis))));
    }
    if let Some(text) = &args.at {
        keep(instant(text), &mut faults, |millis| headers.push((DELIVER_AT.to_owned(), HeaderValue::Int(millis))));
    }
    if let Some(key) = &args.key {
        headers.push((DELAY_KEY.to_owned(), HeaderValue::Text(key.clone())));
    }
    for text in &args.headers {
        keep(header(text), &mut faults, |(name, value)| {
            headers.push((name, value));
        });
    }
    for (index, (name, _)) in headers.iter().enumerate() {
        if headers[..index].iter().any(|(earlier, _)| earlier == name) {
            faults.push(twice("--header", name));
        }
    }
    let mut properties = Properties::default();
    let mut seen: Vec<&str> = Vec::new();
    for text in &args.properties {
        let name = text.split('=').next().unwrap_or_default();
        if seen.contains(&name) {
            faults.push(twice("--property", name));
        }
        seen.push(name);
        keep(properties.set(text), &mut faults, |()| {});
    }
    keep(short("--exchange", &args.exchange), &mut faults, |_| {});
    keep(short("--routing-key", &args.routing_key), &mut faults, |_| {});
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(SendRequest {
        exchange: args.exchange.clone(),
        routing_key: args.routing_key.clone(),
        headers,
        properties,
        body,
    })
}

/// `7d` → 604,800,000 ms.
fn delay(text: &str) -> Result<i64, Fault> {
    let fault = |what: String, why, help: String| Fault { flag: "--delay", what, why, help };
    let millis = text.parse::<Millis>().map_err(|error| match error {
        ParseError::BareNumber => {
            let number = text.trim();
            fault(
                format!("`{text}` has no unit"),
                "milliseconds to one reader are seconds to the next",
                format!("write `{number}ms`, `{number}s`, `{number}m`, `{number}h` or `{number}d`"),
            )
        }
        other => fault(
            format!("`{text}` is no duration: {other}"),
            "",
            "write a sum of numbers with units, like `30s`, `1h30m` or `7d`".to_owned(),
        ),
    })?;
    i64::try_from(millis.0).map_err(|_| {
        fault(
            format!("`{text}` is too long"),
            "a header's integer holds 292 million years of milliseconds",
            "write a shorter delay".to_owned(),
        )
    })
}

/// RFC 3339 with an offset, or Unix milliseconds → Unix milliseconds, rounded up: never early.
fn instant(text: &str) -> Result<i64, Fault> {
    let fault = |what: String, why, help: String| Fault { flag: "--at", what, why, help };
    let trimmed = text.trim();
    if !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
        let millis: i64 = trimmed.parse().map_err(|_| {
            fault(
                format!("`{text}` does not fit 64 bits of milliseconds"),
                "",
                "write an earlier time, like `2030-01-31T08:00:00Z`".to_owned(),
            )
        })?;
        if millis < LOOKS_LIKE_SECONDS {
            return Err(fault(
                format!("`{text}` looks like seconds"),
                "an integer is milliseconds since 1970, and as such this one lies before March 1973",
                format!("write `{millis}000`, or the time as `2030-01-31T08:00:00Z`"),
            ));
        }
        return Ok(millis);
    }
    let timestamp: Timestamp = trimmed.parse().map_err(|_| {
        fault(
            format!("`{text}` is no time"),
            "without an offset it would be a different instant on every machine",
            "write it with its offset, like `2030-01-31T08:00:00+01:00` or `…Z`, or as Unix milliseconds".to_owned(),
        )
    })?;
    let nanos = timestamp.as_nanosecond();
    let up = i128::from(nanos.rem_euclid(1_000_000) != 0);
    // A timestamp ends with the year 9999, which fits.
    Ok(i64::try_from(nanos.div_euclid(1_000_000) + up).unwrap_or(i64::MAX))
}

/// `name=value` or `name:type=value`.
fn header(text: &str) -> Result<(String, HeaderValue), Fault> {
    let fault = |what: String, why, help: &str| Fault { flag: "--header", what, why, help: help.to_owned() };
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| fault(format!("`{text}` has no `=`"), "", "write `name=value` or `name:int=5`"))?;
    let (name, kind) = name.rsplit_once(':').unwrap_or((name, "text"));
    if name.is_empty() {
        return Err(fault(format!("`{text}` has no name"), "", "write `name=value` or `name:int=5`"));
    }
    short("--header", name)?;
    let no = |what: &str, help| fault(format!("`{value}` is no {what}"), "", help);
    let value = match kind {
        "text" => HeaderValue::Text(value.to_owned()),
        "int" => value.parse().map(HeaderValue::Int).map_err(|_| no("64-bit integer", "write digits, like `5`"))?,
        "float" => value
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .map(HeaderValue::Float)
            .ok_or_else(|| no("number", "write it like `1.5`"))?,
        "bool" => value.parse().map(HeaderValue::Bool).map_err(|_| no("boolean", "write `true` or `false`"))?,
        "timestamp" => value
            .parse()
            .map(HeaderValue::Timestamp)
            .map_err(|_| no("timestamp", "write whole seconds since 1970, like `1893456000`"))?,
        _ => {
            return Err(fault(
                format!("`{kind}` is no type of header"),
                "what stands behind the last colon of a header's name is its type",
                "use text, int, float, bool or timestamp; a name with a colon of its own ends in `:text`",
            ));
        }
    };
    Ok((name.to_owned(), value))
}

/// AMQP counts names, keys and most properties in one byte.
fn short(flag: &'static str, text: &str) -> Result<String, Fault> {
    if text.len() <= SHORT {
        return Ok(text.to_owned());
    }
    Err(Fault {
        flag,
        what: format!("a text of {} bytes", text.len()),
        why: "AMQP carries at most 255 bytes here",
        help: "shorten it".to_owned(),
    })
}

fn twice(flag: &'static str, name: &str) -> Fault {
    Fault {
        flag,
        what: format!("`{name}` is given twice"),
        why: "a message has each header and property once (`--delay`, `--at` and `--key` set headers too)",
        help: "leave one of them out".to_owned(),
    }
}

fn keep<T>(result: Result<T, Fault>, faults: &mut Vec<Fault>, take: impl FnOnce(T)) {
    match result {
        Ok(value) => take(value),
        Err(fault) => faults.push(fault),
    }
}

// === impl SendRequest ===

impl SendRequest {
    /// As the broker's room takes it. No `dwell-id`: with one the gate would send it to the intake, and an exact tier
    /// delay would need the daemon.
    ///
    /// # Errors
    /// A name, key or property is longer than 255 bytes; never for a request that came from the command line.
    pub fn outgoing(&self) -> Result<Outgoing, TooLong> {
        let mut headers = Headers::default();
        for (name, value) in &self.headers {
            headers.insert(wire::short(name)?, value.into());
        }
        let given = &self.properties;
        let mut properties = WireProperties::default().with_delivery_mode(given.delivery_mode).with_headers(headers);
        if let Some(priority) = given.priority {
            properties = properties.with_priority(priority);
        }
        if let Some(seconds) = given.timestamp {
            properties = properties.with_timestamp(seconds);
        }
        let texts: [(&Option<String>, SetText); 9] = [
            (&given.content_type, WireProperties::with_content_type),
            (&given.content_encoding, WireProperties::with_content_encoding),
            (&given.correlation_id, WireProperties::with_correlation_id),
            (&given.reply_to, WireProperties::with_reply_to),
            (&given.expiration, WireProperties::with_expiration),
            (&given.message_id, WireProperties::with_message_id),
            (&given.kind, WireProperties::with_type),
            (&given.user_id, WireProperties::with_user_id),
            (&given.app_id, WireProperties::with_app_id),
        ];
        for (text, set) in texts {
            if let Some(text) = text {
                properties = set(properties, wire::short(text)?);
            }
        }
        let message =
            Message { routing_key: wire::short(&self.routing_key)?, properties, body: self.body.clone().into() };
        Ok(Outgoing { exchange: wire::short(&self.exchange)?, message })
    }
}

// === impl Properties ===

impl Properties {
    /// Sets one from `name=value`.
    fn set(&mut self, text: &str) -> Result<(), Fault> {
        let fault = |what: String, help: String| Fault { flag: "--property", what, why: "", help };
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| fault(format!("`{text}` has no `=`"), "write `content-type=text/plain`".to_owned()))?;
        let number = |what: &str| fault(format!("`{value}` is no {what}"), format!("write `{name}=` and {what}"));
        let text = short("--property", value)?;
        match name {
            "content-type" => self.content_type = Some(text),
            "content-encoding" => self.content_encoding = Some(text),
            "delivery-mode" => {
                self.delivery_mode = match value {
                    "1" => 1,
                    "2" => 2,
                    _ => return Err(number("1 (transient) or 2 (persistent)")),
                }
            }
            "priority" => self.priority = Some(value.parse().map_err(|_| number("number from 0 to 255"))?),
            "correlation-id" => self.correlation_id = Some(text),
            "reply-to" => self.reply_to = Some(text),
            "expiration" => {
                // RabbitMQ closes the channel over anything else, and over more than its longest timer.
                let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                let millis = value.parse().unwrap_or(u64::MAX);
                if !digits || millis > LONGEST_EXPIRATION {
                    return Err(number("whole number of milliseconds, at most ten years"));
                }
                self.expiration = Some(text);
            }
            "message-id" => self.message_id = Some(text),
            "timestamp" => {
                self.timestamp = Some(value.parse().map_err(|_| number("whole number of seconds since 1970"))?);
            }
            "type" => self.kind = Some(text),
            "user-id" => self.user_id = Some(text),
            "app-id" => self.app_id = Some(text),
            _ => {
                let near = PROPERTIES.into_iter().min_by_key(|known| strsim::damerau_levenshtein(known, name));
                let near = near.filter(|known| strsim::damerau_levenshtein(known, name) <= 3);
                return Err(fault(
                    format!("`{name}` is no property"),
                    match near {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => format!("use one of {}; anything else is a `--header`", PROPERTIES.join(", ")),
                    },
                ));
            }
        }
        Ok(())
    }
}

impl Default for Properties {
    /// Persistent, and nothing else.
    fn default() -> Properties {
        Properties {
            content_type: None,
            content_encoding: None,
            delivery_mode: 2,
            priority: None,
            correlation_id: None,
            reply_to: None,
            expiration: None,
            message_id: None,
            timestamp: None,
            kind: None,
            user_id: None,
            app_id: None,
        }
    }
}

// === impl Fault, HeaderValue ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n --> {}", self.what, self.flag)?;
        if !self.why.is_empty() {
            write!(f, "\n  = why: {}", self.why)?;
        }
        write!(f, "\n  = help: {}", self.help)
    }
}

impl From<&HeaderValue> for Value {
    fn from(value: &HeaderValue) -> Value {
        match value {
            HeaderValue::Text(text) => wire::text(text.as_str()),
            HeaderValue::Int(number) => Value::LongLongInt(*number),
            HeaderValue::Float(number) => Value::Double(*number),
            HeaderValue::Bool(yes) => Value::Boolean(*yes),
            HeaderValue::Timestamp(seconds) => Value::Timestamp(*seconds),
        }
    }
}

impl From<&HeaderValue> for serde_json::Value {
    fn from(value: &HeaderValue) -> serde_json::Value {
        match value {
            HeaderValue::Text(text) => text.as_str().into(),
            HeaderValue::Int(number) => (*number).into(),
            HeaderValue::Float(number) => (*number).into(),
            HeaderValue::Bool(yes) => (*yes).into(),
            HeaderValue::Timestamp(seconds) => (*seconds).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> MessageArgs {
        MessageArgs {
            exchange: "orders.delay".to_owned(),
            routing_key: "order.eu.close".to_owned(),
            ..MessageArgs::default()
        }
    }

    fn headers(args: &MessageArgs) -> Vec<(String, HeaderValue)> {
        understand(args, vec![]).expect("understood").headers
    }

    fn whats(args: &MessageArgs) -> Vec<String> {
        understand(args, vec![]).expect_err("not understood").into_iter().map(|fault| fault.what).collect()
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn seven_days_become_a_64_bit_header() {
        let args = MessageArgs { delay: Some("7d".to_owned()), ..args() };
        assert_eq!(headers(&args), [("x-delay".to_owned(), HeaderValue::Int(604_800_000))]);
    }

    #[test]
    fn a_time_becomes_unix_milliseconds() {
        for (at, millis) in [
            ("2030-01-31T08:00:00+01:00", 1_896_073_200_000),
            ("2030-01-31T07:00:00Z", 1_896_073_200_000),
            // Rounded up: never early.
            ("2030-01-31T07:00:00.0001Z", 1_896_073_200_001),
            ("1896073200000", 1_896_073_200_000),
            ("1969-12-31T23:59:59.9995Z", 0),
        ] {
            let args = MessageArgs { at: Some(at.to_owned()), ..args() };
            assert_eq!(headers(&args), [("x-deliver-at".to_owned(), HeaderValue::Int(millis))], "{at}");
        }
    }

    #[test]
    fn a_delay_without_a_unit_is_refused_with_a_hint() {
        let args = MessageArgs { delay: Some("7".to_owned()), ..args() };
        let faults = understand(&args, vec![]).expect_err("no unit");
        assert_eq!(
            faults[0].to_string(),
            "error: `7` has no unit\n --> --delay\n  = why: milliseconds to one reader are seconds to the next\n  \
             = help: write `7ms`, `7s`, `7m`, `7h` or `7d`"
        );
    }

    #[test]
    fn times_that_are_none_or_in_seconds_are_refused() {
        for (at, what) in [
            ("1896073200", "`1896073200` looks like seconds"),
            ("2030-01-31T08:00:00", "`2030-01-31T08:00:00` is no time"),
            ("tomorrow", "`tomorrow` is no time"),
            ("", "`` is no time"),
            ("99999999999999999999", "`99999999999999999999` does not fit 64 bits of milliseconds"),
        ] {
            assert_eq!(whats(&MessageArgs { at: Some(at.to_owned()), ..args() }), [what]);
        }
    }

    #[test]
    fn headers_have_the_type_that_is_asked_for() {
        let args = MessageArgs {
            headers: texts(&[
                "a=1",
                "b:int=-5",
                "c:float=1.5",
                "d:bool=true",
                "e:timestamp=1893456000",
                "f:g:text=x=y",
                "h=",
            ]),
            ..args()
        };
        assert_eq!(
            headers(&args),
            [
                ("a".to_owned(), HeaderValue::Text("1".to_owned())),
                ("b".to_owned(), HeaderValue::Int(-5)),
                ("c".to_owned(), HeaderValue::Float(1.5)),
                ("d".to_owned(), HeaderValue::Bool(true)),
                ("e".to_owned(), HeaderValue::Timestamp(1_893_456_000)),
                ("f:g".to_owned(), HeaderValue::Text("x=y".to_owned())),
                ("h".to_owned(), HeaderValue::Text(String::new())),
            ]
        );
    }

    #[test]
    fn properties_are_set_by_their_amqp_names() {
        let args = MessageArgs {
            properties: texts(&[
                "content-type=application/json",
                "priority=4",
                "expiration=60000",
                "type=order",
                "timestamp=1893456000",
                "delivery-mode=1",
            ]),
            ..args()
        };
        assert_eq!(
            understand(&args, b"{}".to_vec()).expect("understood").properties,
            Properties {
                content_type: Some("application/json".to_owned()),
                priority: Some(4),
                expiration: Some("60000".to_owned()),
                kind: Some("order".to_owned()),
                timestamp: Some(1_893_456_000),
                delivery_mode: 1,
                ..Properties::default()
            }
        );
    }

    #[test]
    fn all_mistakes_are_told_in_one_run() {
        let args = MessageArgs {
            exchange: "x".repeat(256),
            delay: Some("soon".to_owned()),
            headers: texts(&["novalue", "=5", "n:int=five", "n:number=5"]),
            properties: texts(&["priority=256", "contenttype=a", "expiration=+5", "colour=red"]),
            ..args()
        };
        assert_eq!(
            whats(&args),
            [
                "`soon` is no duration: it is not a sum of numbers with units (ms, s, m, h, d)",
                "`novalue` has no `=`",
                "`=5` has no name",
                "`five` is no 64-bit integer",
                "`number` is no type of header",
                "`256` is no number from 0 to 255",
                "`contenttype` is no property",
                "`+5` is no whole number of milliseconds, at most ten years",
                "`colour` is no property",
                "a text of 256 bytes",
            ]
        );
    }

    #[test]
    fn nothing_may_be_given_twice() {
        let args = MessageArgs {
            delay: Some("5s".to_owned()),
            headers: texts(&["x-delay:int=5000"]),
            properties: texts(&["type=a", "type=b"]),
            ..args()
        };
        assert_eq!(whats(&args), ["`x-delay` is given twice", "`type` is given twice"]);
    }

    #[test]
    fn the_key_is_a_header_too() {
        let args = MessageArgs { key: Some("order-17".to_owned()), ..args() };
        assert_eq!(headers(&args), [("x-delay-key".to_owned(), HeaderValue::Text("order-17".to_owned()))]);
    }

    #[test]
    fn the_broker_is_given_what_was_asked_for_in_its_own_types() {
        let args = MessageArgs {
            delay: Some("7d".to_owned()),
            headers: texts(&["a=1", "b:float=1.5", "c:bool=true", "d:timestamp=5"]),
            properties: texts(&["content-type=text/plain", "type=order", "app-id=shop", "priority=3", "timestamp=7"]),
            ..args()
        };
        let out = understand(&args, b"body".to_vec()).expect("understood").outgoing().expect("short");
        assert_eq!((out.exchange.as_str(), out.message.routing_key.as_str()), ("orders.delay", "order.eu.close"));
        assert_eq!(out.message.body.as_ref(), b"body");
        assert_eq!(out.message.header("x-delay"), Some(&Value::LongLongInt(604_800_000)));
        assert_eq!(out.message.header("a"), Some(&wire::text("1")));
        assert_eq!(out.message.header("b"), Some(&Value::Double(1.5)));
        assert_eq!(out.message.header("c"), Some(&Value::Boolean(true)));
        assert_eq!(out.message.header("d"), Some(&Value::Timestamp(5)));
        let properties = &out.message.properties;
        assert_eq!((*properties.delivery_mode(), *properties.priority()), (Some(2), Some(3)));
        assert_eq!(*properties.timestamp(), Some(7));
        let text = |property: &Option<ShortString>| property.as_ref().map(|text| text.as_str().to_owned());
        assert_eq!(text(properties.content_type()).as_deref(), Some("text/plain"));
        assert_eq!(text(properties.kind()).as_deref(), Some("order"));
        assert_eq!(text(properties.app_id()).as_deref(), Some("shop"));
        assert_eq!(text(properties.message_id()), None);
    }
}
