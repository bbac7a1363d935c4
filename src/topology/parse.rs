//! Text → raw: TOML walked by hand, because serde loses the positions inside anything untagged.
//!
//! Reports what can be seen without knowing other values: syntax, unknown keys, wrong types, missing keys.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::model::Argument;
use super::raw::{ArgumentAt, At, Bind, Bridge, Exponential, Queue, Retry, WorkExchange};
use crate::problem::{Code, Place, Problem, Span, all_of, bare_number, near, show};

/// The format version that this release reads.
const VERSION: &str = "1";

const FILE_KEYS: &[&str] = &["version", "bridge"];
const BRIDGE_KEYS: &[&str] = &[
    "exchange",
    "work_exchange",
    "tiers",
    "default_delay",
    "native",
    "cancellable",
    "long",
    "broker_limit",
    "max_delay",
    "queue_type",
    "queue",
];
const WORK_EXCHANGE_KEYS: &[&str] = &["name", "type", "declare"];
const QUEUE_KEYS: &[&str] = &["name", "bind", "retry", "declare", "arguments"];
const RETRY_KEYS: &[&str] = &["first", "factor", "max", "attempts", "jitter"];

/// Every table that a topology file may hold, with its keys.
#[must_use]
pub fn keys() -> [(&'static str, &'static [&'static str]); 5] {
    [
        ("file", FILE_KEYS),
        ("bridge", BRIDGE_KEYS),
        ("work_exchange", WORK_EXCHANGE_KEYS),
        ("queue", QUEUE_KEYS),
        ("retry", RETRY_KEYS),
    ]
}

/// Words of RabbitMQ and of other tools, and what dwell says instead: asked before near names.
const FOREIGN_FILE: &[(&[&str], &str)] =
    &[(&["bridges"], "each bridge is a table of its own: `[bridge.orders]`"), (&["include"], INCLUDE)];
const INCLUDE: &str = "all `*.toml` files of the folder are read and merged; nothing needs to be included";
const FOREIGN_BRIDGE: &[(&[&str], &str)] = &[
    (
        &["ttl", "ttls", "delay", "delays", "wait", "x-message-ttl", "x-delay"],
        "delays with a buffer queue of their own are `tiers = [\"10s\", \"1m\"]`; what a message without a delay header waits is `default_delay`",
    ),
    (
        &["dlx", "dead_letter_exchange", "x-dead-letter-exchange", "dead_letter"],
        "where due messages come out is `work_exchange`; dwell sets the dead-letter exchanges itself",
    ),
    (
        &["type", "kind", "x-delayed-type", "delayed_type"],
        "the type belongs to the work exchange: `work_exchange = { type = \"topic\" }`",
    ),
    (&["queues"], "each work queue is a table of its own: `[[bridge.<name>.queue]]`"),
    (&["delay_exchange", "name"], "the delay exchange where publishers publish is `exchange`"),
    (&["target", "destination", "to"], "where due messages come out is `work_exchange`"),
    (
        &["durable", "auto_delete", "internal"],
        "everything that dwell declares is durable and stays; there is no such choice",
    ),
    (&["vhost"], "one daemon serves one vhost, and it is named in the setting `amqp.url`"),
    (&["retry", "retries"], "a retry schedule belongs to a queue: `[[bridge.<name>.queue]]` has `retry`"),
    (&["bind", "routing_key", "bindings"], "bindings belong to a queue: `[[bridge.<name>.queue]]` has `bind`"),
    (&["max", "limit"], "the longest delay is `max_delay`, the longest in the broker `broker_limit`"),
    (&["store"], "where delays above the broker limit wait is `long = \"store\"`"),
];
const FOREIGN_QUEUE: &[(&[&str], &str)] = &[
    (
        &["routing_key", "routing_keys", "binding", "bindings", "binding_key", "key", "keys"],
        "routing keys are listed in `bind = [\"…\"]`",
    ),
    (&["ttl", "message_ttl"], "as RabbitMQ's own argument: `arguments = { x-message-ttl = 60000 }` (milliseconds)"),
    (
        &["dlx", "dead_letter_exchange", "dead_letter"],
        "failures come back to dwell by themselves; to send them elsewhere: `arguments = { x-dead-letter-exchange = \"…\" }`",
    ),
    (
        &["durable", "exclusive", "auto_delete", "transient"],
        "work queues are durable and stay (RabbitMQ 4.3 refuses others); there is no such choice",
    ),
    (&["type", "queue_type"], "work queues are always quorum queues"),
    (&["tiers", "delay", "delays", "default_delay"], "delays belong to the bridge, above its queues"),
    (
        &["max_retries", "max_attempts", "attempts", "retries", "backoff"],
        "`retry = [\"5s\", \"20s\"]`, or `retry = { first = \"1s\", attempts = 8 }`",
    ),
    (&["max_length"], "as RabbitMQ's own argument: `arguments = { x-max-length = 10000 }`"),
    (&["args", "argument"], "further queue arguments are `arguments = { … }`"),
];
const FOREIGN_WORK_EXCHANGE: &[(&[&str], &str)] = &[
    (&["kind", "x-delayed-type", "exchange_type"], "the type is `type`"),
    (&["exchange"], "the name is `name`"),
    (&["passive", "external"], "someone else's exchange is `declare = false`"),
    (
        &["durable", "auto_delete", "internal", "arguments"],
        "the work exchange is durable and stays, with the unrouted queue as its alternate exchange; there is no such choice",
    ),
];
const FOREIGN_RETRY: &[(&[&str], &str)] = &[
    (&["initial", "delay", "base", "min", "start"], "the first delay is `first`"),
    (&["multiplier", "exponent"], "each delay is the one before times `factor`"),
    (&["max_delay", "cap", "limit"], "the longest delay is `max`"),
    (&["max_attempts", "max_retries", "count", "times", "retries"], "how often is `attempts`"),
    (&["random", "randomize", "spread"], "the spread is `jitter`, from 0 to 1"),
];

/// What one file says, as far as it can be read.
///
/// A file that is no TOML gives no bridges: guessing on would bury the one mistake under its consequences.
pub(super) fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Parsed {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut firsts = Vec::new();
    let duplicates_only = errors.iter().all(|error| error.message() == "duplicate key");
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        if error.message() == "duplicate key" {
            firsts
                .extend(first_of(text, table.get_ref(), span.clone().into()).map(|first| (span.clone().into(), first)));
            problems.push(duplicate_key(path, text, table.get_ref(), span.into()));
        } else if !duplicates_only {
            problems.push(bad_toml(path, error.message(), span.into()));
        }
    }
    if !duplicates_only {
        return Parsed { bridges: Vec::new(), complete: false };
    }
    let mut parser = Parser { path, text, problems, complete: true, firsts };
    let bridges = parser.file(table.get_ref());
    Parsed { bridges, complete: parser.complete }
}

/// What [`parse`] found.
pub(super) struct Parsed {
    pub bridges: Vec<Bridge>,
    /// False: something that may be a bridge was not understood, so that absence proves nothing.
    pub complete: bool,
}

/// Says what a syntax error is, without TOML's own jargon where it is short of words.
pub(crate) fn bad_toml(path: &Path, message: &str, span: Span) -> Problem {
    Problem::error(Code::BadToml, Place::file(path, span), format!("this is no TOML: {message}"))
        .label("here")
        .help("names and texts stand in double quotes, lists in `[ ]`, inline tables in `{ }` on one line; see https://toml.io")
}

/// TOML names only the second place of a key written twice; the first one is looked up.
pub(crate) fn duplicate_key(path: &Path, text: &str, table: &DeTable<'_>, second: Span) -> Problem {
    let key = text.get(second.start..second.end).unwrap_or("key");
    let mut problem =
        Problem::error(Code::DeclaredTwice, Place::file(path, second), format!("{} is written twice", show(key)))
            .label("again here")
            .help("keep one of the two; to add to a table, write all its keys under one header");
    if let Some(first) = first_of(text, table, second) {
        problem = problem.also(Place::file(path, first), "first here");
    }
    problem
}

/// The nearest key of that name above the second one: in the text before that line, or (on the same line) in what
/// the parser kept.
fn first_of(text: &str, table: &DeTable<'_>, second: Span) -> Option<Span> {
    let key = text.get(second.start..second.end)?.trim_matches(['"', '\'']);
    let line = text.get(..second.start)?.rfind('\n').map_or(0, |at| at + 1);
    let mut found = Vec::new();
    spans_of(table, key, &mut found);
    let (before, _) = DeTable::parse_recoverable(text.get(..line)?);
    spans_of(before.get_ref(), key, &mut found);
    found.into_iter().filter(|span| span.end <= second.start).max_by_key(|span| span.start)
}

fn spans_of(table: &DeTable<'_>, key: &str, found: &mut Vec<Span>) {
    for (name, value) in table {
        if name.get_ref() == key {
            found.push(name.span().into());
        }
        spans_within(value.get_ref(), key, found);
    }
}

fn spans_within(value: &DeValue<'_>, key: &str, found: &mut Vec<Span>) {
    match value {
        DeValue::Table(table) => spans_of(table, key, found),
        DeValue::Array(array) => array.iter().for_each(|item| spans_within(item.get_ref(), key, found)),
        _ => {}
    }
}

/// One file being read.
struct Parser<'a> {
    path: &'a Path,
    text: &'a str,
    problems: &'a mut Vec<Problem>,
    complete: bool,
    /// Of keys written twice, the second place → the first: TOML's reader keeps a table's second header.
    firsts: Vec<(Span, Span)>,
}

/// A key of a table with its value, as the walk meets them.
struct Entry<'t, 'i> {
    key: &'t str,
    key_span: Span,
    value: &'t DeValue<'i>,
    value_span: Span,
}

// === impl Parser: the tables of the format, outermost first ===

impl Parser<'_> {
    fn file(&mut self, table: &DeTable<'_>) -> Vec<Bridge> {
        let mut bridges = Vec::new();
        let mut version = false;
        for entry in self.entries(table) {
            match entry.key {
                "version" => {
                    version = true;
                    self.version(&entry);
                }
                "bridge" => {
                    if let DeValue::Table(named) = entry.value {
                        for entry in self.entries(named) {
                            let help = format!("a bridge is a table under one header: `[bridge.{}]`", entry.key);
                            match self.table(&entry, &help) {
                                Some(table) => {
                                    let bridge = self.bridge(&entry, table);
                                    bridges.push(bridge);
                                }
                                None => self.complete = false,
                            }
                        }
                    } else {
                        self.complete = false;
                        self.wrong_type(&entry, "a table", "bridges are written `[bridge.<name>]`");
                    }
                }
                _ => {
                    self.complete = false;
                    self.unknown_file_key(&entry);
                }
            }
        }
        if !version {
            self.problems.push(
                Problem::error(Code::BadVersion, self.place((0..0).into()), "the file does not say its format version")
                    .why("the format may change one day, and a file of today must not be misread then")
                    .help("write `version = 1` at the top"),
            );
        }
        bridges
    }

    fn version(&mut self, entry: &Entry<'_, '_>) {
        let fine =
            matches!(entry.value, DeValue::Integer(number) if number.radix() == 10 && number.as_str() == VERSION);
        if !fine {
            self.problems.push(
                Problem::error(
                    Code::BadVersion,
                    self.place(entry.value_span),
                    format!("format version {} is unknown", self.written(entry.value_span)),
                )
                .label("not 1")
                .why("this release reads version 1 of the format only")
                .help("write `version = 1`, without quotes"),
            );
        }
    }

    fn bridge(&mut self, header: &Entry<'_, '_>, table: &DeTable<'_>) -> Bridge {
        let name = At { value: header.key.to_owned(), place: self.place(header.key_span) };
        let mut bridge = Bridge {
            name,
            exchange: None,
            work_exchange: None,
            tiers: Vec::new(),
            default_delay: None,
            native: None,
            cancellable: None,
            long: None,
            broker_limit: None,
            max_delay: None,
            queue_type: None,
            queues: Vec::new(),
        };
        for entry in self.entries(table) {
            match entry.key {
                "exchange" => {
                    bridge.exchange =
                        self.string(&entry, "the exchange is named by a text: `exchange = \"orders.delay\"`");
                }
                "work_exchange" => bridge.work_exchange = self.work_exchange(&entry),
                "tiers" => {
                    bridge.tiers =
                        self.durations(&entry, "tiers are a list: `tiers = [\"10s\", \"1m\"]`").unwrap_or_default();
                }
                "default_delay" => bridge.default_delay = self.duration(&entry),
                "native" => bridge.native = self.boolean(&entry),
                "cancellable" => bridge.cancellable = self.boolean(&entry),
                "long" => bridge.long = self.string(&entry, "write `long = \"store\"` or `long = \"reject\"`"),
                "broker_limit" => bridge.broker_limit = self.duration(&entry),
                "max_delay" => bridge.max_delay = self.duration(&entry),
                "queue_type" => {
                    bridge.queue_type =
                        self.string(&entry, "write `queue_type = \"quorum\"` or `queue_type = \"classic\"`");
                }
                "queue" => bridge.queues = self.queues(&entry, header.key),
                _ => self.unknown_key(&entry, "a bridge", BRIDGE_KEYS, FOREIGN_BRIDGE),
            }
        }
        bridge
    }

    fn work_exchange(&mut self, entry: &Entry<'_, '_>) -> Option<WorkExchange> {
        let mut exchange = WorkExchange { name: None, kind: None, declare: None };
        match entry.value {
            // Its name alone, for who is content with a topic exchange.
            DeValue::String(name) => {
                exchange.name = Some(At { value: name.to_string(), place: self.place(entry.value_span) });
            }
            DeValue::Table(table) => {
                for entry in self.entries(table) {
                    match entry.key {
                        "name" => {
                            exchange.name = self.string(&entry, "the exchange is named by a text: `name = \"orders\"`");
                        }
                        "type" => exchange.kind = self.string(&entry, "write `type = \"topic\"`"),
                        "declare" => exchange.declare = self.boolean(&entry),
                        _ => self.unknown_key(&entry, "a work exchange", WORK_EXCHANGE_KEYS, FOREIGN_WORK_EXCHANGE),
                    }
                }
            }
            _ => {
                self.wrong_type(entry, "a table", "write `work_exchange = { name = \"orders\", type = \"topic\" }`");
                return None;
            }
        }
        Some(exchange)
    }

    fn queues(&mut self, entry: &Entry<'_, '_>, bridge: &str) -> Vec<Queue> {
        let help =
            format!("queues are written `[[bridge.{bridge}.queue]]`, with two brackets, one header for each queue");
        let DeValue::Array(array) = entry.value else {
            self.wrong_type(entry, "a list of tables", &help);
            return Vec::new();
        };
        let mut queues = Vec::new();
        for item in array {
            match item.get_ref() {
                DeValue::Table(table) => queues.extend(self.queue(entry, table, item.span().into())),
                other => {
                    let item = Entry {
                        key: entry.key,
                        key_span: entry.key_span,
                        value: other,
                        value_span: item.span().into(),
                    };
                    self.wrong_type(&item, "a table", &help);
                }
            }
        }
        queues
    }

    fn queue(&mut self, header: &Entry<'_, '_>, table: &DeTable<'_>, span: Span) -> Option<Queue> {
        let (mut name, mut bind, mut retry, mut declare, mut arguments) = (None, None, None, None, BTreeMap::new());
        let mut bind_refused = false;
        let mut named = false;
        for entry in self.entries(table) {
            match entry.key {
                "name" => {
                    named = true;
                    name = self.string(&entry, "the queue is named by a text: `name = \"orders.close\"`");
                }
                "bind" => {
                    let before = self.problems.len();
                    bind = self.bind(&entry);
                    bind_refused = self.problems.len() > before;
                }
                "retry" => retry = self.retry(&entry),
                "declare" => declare = self.boolean(&entry),
                "arguments" => {
                    if let Some(table) = self.table(&entry, "write `arguments = { x-single-active-consumer = true }`") {
                        arguments = self.arguments(table);
                    }
                }
                key if key.starts_with("x-") => {
                    let help = format!("write `arguments = {{ {key} = … }}`");
                    self.problems.push(
                        Problem::error(Code::UnknownKey, self.place(entry.key_span), format!("{} is no key of a queue", show(key)))
                            .label("a queue argument")
                            .why("RabbitMQ's own arguments stand in a table of their own, so that a typo in a key of dwell's is seen")
                            .help(help),
                    );
                }
                _ => self.unknown_key(&entry, "a queue", QUEUE_KEYS, FOREIGN_QUEUE),
            }
        }
        if !named {
            // An array of tables has its headers' spans; an inline table has its own.
            let span = if span.start < span.end { span } else { header.key_span };
            self.problems.push(
                Problem::error(Code::MissingKey, self.place(span), "the queue has no name")
                    .label("this queue")
                    .help("write `name = \"orders.close\"` under its header"),
            );
        }
        Some(Queue { name: name?, bind, bind_refused, retry, declare, arguments })
    }

    fn bind(&mut self, entry: &Entry<'_, '_>) -> Option<At<Vec<Bind>>> {
        const HELP: &str = "write `bind = [\"order.*.close\"]`; for a headers exchange `bind = [{ x-match = \"all\", type = \"invoice\" }]`";
        let DeValue::Array(array) = entry.value else {
            self.wrong_type(entry, "a list", HELP);
            return None;
        };
        let mut binds = Vec::new();
        for item in array {
            let place = self.place(item.span().into());
            match item.get_ref() {
                DeValue::String(key) => binds.push(Bind::Key(At { value: key.to_string(), place })),
                DeValue::Table(table) => {
                    let before = self.problems.len();
                    let headers = self.arguments(table);
                    if self.problems.len() == before {
                        binds.push(Bind::Headers(At { value: headers, place }));
                    }
                }
                other => {
                    let item = Entry {
                        key: entry.key,
                        key_span: entry.key_span,
                        value: other,
                        value_span: item.span().into(),
                    };
                    self.wrong_type(&item, "a text or a table of headers", HELP);
                }
            }
        }
        Some(At { value: binds, place: self.place(entry.value_span) })
    }

    fn retry(&mut self, entry: &Entry<'_, '_>) -> Option<At<Retry>> {
        const HELP: &str = "write `retry = [\"5s\", \"20s\"]`, or `retry = { first = \"1s\", factor = 2, max = \"1h\", attempts = 8, jitter = 0.1 }`";
        let retry = match entry.value {
            DeValue::Array(_) => Retry::List(self.durations(entry, HELP)?),
            DeValue::Table(table) => {
                let mut retry = Exponential { first: None, factor: None, max: None, attempts: None, jitter: None };
                let mut first = false;
                for entry in self.entries(table) {
                    match entry.key {
                        "first" => {
                            first = true;
                            retry.first = self.duration(&entry);
                        }
                        "factor" => retry.factor = self.number(&entry),
                        "max" => retry.max = self.duration(&entry),
                        "attempts" => retry.attempts = self.integer(&entry),
                        "jitter" => retry.jitter = self.number(&entry),
                        _ => self.unknown_key(&entry, "a retry schedule", RETRY_KEYS, FOREIGN_RETRY),
                    }
                }
                if !first {
                    self.problems.push(
                        Problem::error(
                            Code::MissingKey,
                            self.place(entry.value_span),
                            "the retry schedule has no first delay",
                        )
                        .label("no `first`")
                        .help(HELP),
                    );
                }
                Retry::Exponential(Box::new(retry))
            }
            _ => {
                self.wrong_type(entry, "a list of durations or a table", HELP);
                return None;
            }
        };
        Some(At { value: retry, place: self.place(entry.value_span) })
    }

    fn arguments(&mut self, table: &DeTable<'_>) -> BTreeMap<String, ArgumentAt> {
        let mut arguments = BTreeMap::new();
        for entry in self.entries(table) {
            let value = match entry.value {
                DeValue::Boolean(value) => Argument::Bool(*value),
                DeValue::String(text) => Argument::Text(text.to_string()),
                DeValue::Integer(_) => match self.integer(&entry) {
                    Some(number) => Argument::Int(number.value),
                    None => continue,
                },
                _ => {
                    self.wrong_type(&entry, "a text, an integer or a boolean", "other types cannot be written here");
                    continue;
                }
            };
            let value = At { value, place: self.place(entry.value_span) };
            arguments.insert(entry.key.to_owned(), ArgumentAt { key: self.place(entry.key_span), value });
        }
        arguments
    }
}

// === impl Parser: single values ===

impl Parser<'_> {
    fn string(&mut self, entry: &Entry<'_, '_>, help: &str) -> Option<At<String>> {
        let DeValue::String(text) = entry.value else {
            self.wrong_type(entry, "a text", help);
            return None;
        };
        Some(At { value: text.to_string(), place: self.place(entry.value_span) })
    }

    fn boolean(&mut self, entry: &Entry<'_, '_>) -> Option<At<bool>> {
        let DeValue::Boolean(value) = entry.value else {
            self.wrong_type(entry, "a boolean", "write `true` or `false`, without quotes");
            return None;
        };
        Some(At { value: *value, place: self.place(entry.value_span) })
    }

    fn integer(&mut self, entry: &Entry<'_, '_>) -> Option<At<i64>> {
        let DeValue::Integer(number) = entry.value else {
            self.wrong_type(entry, "an integer", "write a whole number, without quotes");
            return None;
        };
        let Ok(value) = i64::from_str_radix(number.as_str(), number.radix()) else {
            self.problems.push(
                Problem::error(
                    Code::BadValue,
                    self.place(entry.value_span),
                    format!("{} does not fit a 64-bit integer", self.written(entry.value_span)),
                )
                .label("too large")
                .help("write a smaller number"),
            );
            return None;
        };
        Some(At { value, place: self.place(entry.value_span) })
    }

    /// An integer or a float.
    fn number(&mut self, entry: &Entry<'_, '_>) -> Option<At<f64>> {
        let text = match entry.value {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => {
                self.wrong_type(entry, "a number", "write a number, without quotes: `2` or `1.5`");
                return None;
            }
        };
        // TOML's floats are a subset of Rust's, up to `inf` and `nan`, which `validate` refuses.
        let value = text.parse().unwrap_or(f64::NAN);
        Some(At { value, place: self.place(entry.value_span) })
    }

    fn duration(&mut self, entry: &Entry<'_, '_>) -> Option<At<String>> {
        match entry.value {
            DeValue::String(text) => Some(At { value: text.to_string(), place: self.place(entry.value_span) }),
            DeValue::Integer(number) => {
                let place = self.place(entry.value_span);
                self.problems.push(bare_number(place, &number.to_string()));
                None
            }
            DeValue::Float(number) => {
                let place = self.place(entry.value_span);
                self.problems.push(bare_number(place, number.as_str()));
                None
            }
            _ => {
                self.wrong_type(entry, "a duration", "write a text: `\"30s\"`, `\"1h30m\"`, `\"7d\"`");
                None
            }
        }
    }

    fn durations(&mut self, entry: &Entry<'_, '_>, help: &str) -> Option<Vec<At<String>>> {
        let DeValue::Array(array) = entry.value else {
            self.wrong_type(entry, "a list of durations", help);
            return None;
        };
        let items = array.iter().map(|item| Entry {
            key: entry.key,
            key_span: entry.key_span,
            value: item.get_ref(),
            value_span: item.span().into(),
        });
        Some(items.filter_map(|item| self.duration(&item)).collect())
    }

    fn table<'t, 'i>(&mut self, entry: &Entry<'t, 'i>, help: &str) -> Option<&'t DeTable<'i>> {
        let DeValue::Table(table) = entry.value else {
            self.wrong_type(entry, "a table", help);
            return None;
        };
        Some(table)
    }
}

// === impl Parser: what is wrong ===

impl Parser<'_> {
    fn wrong_type(&mut self, entry: &Entry<'_, '_>, wanted: &str, help: &str) {
        let found = type_name(entry.value);
        self.problems.push(
            Problem::error(
                Code::WrongType,
                self.place(entry.value_span),
                format!("{} takes {wanted}, not {found}", show(entry.key)),
            )
            .label(found)
            .help(help),
        );
    }

    fn unknown_key(&mut self, entry: &Entry<'_, '_>, of: &str, known: &[&'static str], foreign: &[(&[&str], &str)]) {
        let problem = Problem::error(
            Code::UnknownKey,
            self.place(entry.key_span),
            format!("{} is no key of {of}", show(entry.key)),
        );
        let hint = foreign.iter().find(|(words, _)| words.contains(&entry.key.to_ascii_lowercase().as_str()));
        let problem = match (hint, near(entry.key, known.iter().copied())) {
            (Some((_, hint)), _) => problem.label("another tool's word").help(*hint),
            (None, Some(meant)) => problem.label(format!("did you mean `{meant}`?")).help(format!("write `{meant}`")),
            (None, None) => problem.label("unknown").help(format!("the keys of {of} are {}", all_of(known))),
        };
        self.problems.push(problem);
    }

    /// At the top level a word is most often a bridge or a bridge's key that lost its header.
    fn unknown_file_key(&mut self, entry: &Entry<'_, '_>) {
        let problem = Problem::error(
            Code::UnknownKey,
            self.place(entry.key_span),
            format!("{} is no key of a topology file", show(entry.key)),
        );
        if BRIDGE_KEYS.contains(&entry.key) {
            self.problems.push(
                problem.label("a key of a bridge").help("write it under the header of its bridge: `[bridge.<name>]`"),
            );
        } else if matches!(entry.value, DeValue::Table(_)) && near(entry.key, FILE_KEYS.iter().copied()).is_none() {
            let help = format!("a bridge is written `[bridge.{}]`", entry.key);
            self.problems.push(problem.label("a table of its own").help(help));
        } else {
            self.unknown_key(entry, "a topology file", FILE_KEYS, FOREIGN_FILE);
        }
    }

    /// The entries of a table in the order of the file (TOML's own map has them by name).
    fn entries<'t, 'i>(&self, table: &'t DeTable<'i>) -> Vec<Entry<'t, 'i>> {
        let first =
            |span: Span| self.firsts.iter().find(|(second, _)| *second == span).map_or(span, |(_, first)| *first);
        let mut entries: Vec<Entry<'t, 'i>> = table
            .iter()
            .map(|(key, value)| Entry {
                key: key.get_ref(),
                key_span: first(key.span().into()),
                value: value.get_ref(),
                value_span: value.span().into(),
            })
            .collect();
        entries.sort_by_key(|entry| entry.key_span);
        entries
    }

    fn place(&self, span: Span) -> Place {
        Place::file(self.path, span)
    }

    /// The value as the file writes it.
    fn written(&self, span: Span) -> String {
        show(self.text.get(span.start..span.end).unwrap_or_default())
    }
}

/// What TOML calls the value.
pub(crate) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
