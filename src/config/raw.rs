//! Settings as written: every key that exists, the layers they come from, and the merged tree with origins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};
use toml::de::{DeTable, DeValue};

use crate::problem::{Code, Place, Problem, Span, all_of, near, show};
use crate::topology::{bad_toml, duplicate_key, type_name};

/// Every setting, as `section.key`.
pub(super) const KEYS: &[&str] = &[
    "amqp.url",
    "amqp.urls",
    "amqp.username",
    "amqp.password",
    "amqp.prefix",
    "amqp.prefetch",
    "amqp.connect_timeout",
    "amqp.tls.ca_file",
    "amqp.tls.cert_file",
    "amqp.tls.key_file",
    "management.url",
    "management.username",
    "management.password",
    "redis.url",
    "redis.username",
    "redis.password",
    "redis.key_prefix",
    "redis.durability",
    "redis.durability.replicas",
    "redis.shards",
    "redis.timeout",
    "delay.broker_limit",
    "delay.max_delay",
    "pump.batch",
    "pump.lease",
    "run.topology",
    "run.stop_deadline",
    "run.confirm_timeout",
    "log.level",
    "log.format",
    "http.listen",
    "http.token",
];

/// Keys that take a list.
const LISTS: &[&str] = &["amqp.urls"];

/// Words of RabbitMQ's, Redis' and other tools' settings, and what dwell says instead.
const FOREIGN: &[(&[&str], &str)] = &[
    (
        &["amqp.host", "amqp.hostname", "amqp.port", "amqp.vhost", "amqp.uri", "amqp.address"],
        "host, port and vhost stand in one address: `url = \"amqp://host:5672/vhost\"`",
    ),
    (
        &["redis.host", "redis.port", "redis.db", "redis.uri", "redis.address", "redis.addr"],
        "host, port and database stand in one address: `url = \"redis://host:6379/0\"`",
    ),
    (&["amqp.user", "redis.user", "management.user"], "write `username`"),
    (&["amqp.ssl", "redis.ssl", "redis.tls"], "TLS is chosen by the address: `amqps://`, `rediss://`"),
    (&["amqp.heartbeat", "amqp.frame_max"], "it is part of the address: `url = \"amqp://…/%2f?heartbeat=30\"`"),
    (
        &["amqp.exchange", "amqp.queue", "tiers", "bridge", "exchange", "queue"],
        "routes are declared in topology files, not in the settings",
    ),
    (&["redis.prefix"], "write `key_prefix`"),
    (&["http.port", "http.host", "http.addr", "http.address"], "write `listen = \"127.0.0.1:8672\"`"),
    (&["rabbitmq", "rabbit"], "the section is `[amqp]`"),
    (&["logging"], "the section is `[log]`"),
];

/// Where a value comes from, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    Default,
    File,
    Environment,
    Flag,
}

/// A value of the merged tree, with its origin.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub value: Value,
    pub place: Place,
    pub layer: Layer,
}

/// The merged tree of all layers.
pub(super) struct Merged {
    figment: Figment,
    spans: Spans,
}

/// Where the file writes what.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    pub path: PathBuf,
    /// Key (`amqp.url`) or list item (`amqp.urls.0`) → its name and its value.
    pub values: BTreeMap<String, (Span, Span)>,
    /// Section → its header.
    pub sections: BTreeMap<String, Span>,
}

/// The settings file as written.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub spans: Spans,
    dict: Dict,
    /// Every name and every value that is no table, known or not: what may be shown of the file.
    pub leaves: Vec<Leaf>,
    /// False: the text is no TOML, and nothing of it may be shown.
    pub readable: bool,
}

/// A name with its value in the settings file.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub path: String,
    pub key: Span,
    /// `None`: a table, whose own leaves follow.
    pub value: Option<Span>,
}

/// One layer, or one variable of it: what figment merges.
struct Part {
    metadata: Metadata,
    dict: Dict,
}

/// True if the value must never be printed: addresses, passwords, the token, and whatever is no setting (`pasword`).
pub(super) fn is_secret(key: &str) -> bool {
    !KEYS.contains(&key)
        || key.rsplit('.').next().is_some_and(|name| ["url", "urls", "password", "token"].contains(&name))
}

// === impl File ===

impl File {
    /// Text → file; unknown keys, lists and tables in the wrong place are reported and left out.
    pub(super) fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> File {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut file = File { readable: true, ..File::default() };
        file.spans.path = path.to_path_buf();
        for error in errors {
            let span = error.span().unwrap_or(0..0).into();
            if error.message() == "duplicate key" {
                let problem = duplicate_key(path, text, table.get_ref(), span);
                // Both places are shown, and TOML's reader keeps only one of them.
                for place in std::iter::once(&problem.place).chain(problem.also.iter().map(|(place, _)| place)) {
                    if let Place::File { span, .. } = place {
                        file.leaves.push(Leaf { path: String::new(), key: *span, value: None });
                    }
                }
                problems.push(problem);
            } else {
                file.readable = false;
                problems
                    .push(bad_toml(path, error.message(), span).label("here (not shown: the line may hold a secret)"));
            }
        }
        if file.readable {
            file.dict = file.table("", table.get_ref(), problems, true);
        }
        file
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>, problems: &mut Vec<Problem>, known: bool) -> Dict {
        let mut dict = Dict::new();
        for (name, value) in table {
            let key =
                if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
            let (key_span, value_span) = (name.span().into(), value.span().into());
            let is_section =
                KEYS.iter().any(|known| known.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.')));
            let is_key = KEYS.contains(&key.as_str());
            let place = Place::file(&self.spans.path, key_span);
            match value.get_ref() {
                DeValue::Table(inner) => {
                    self.leaves.push(Leaf { path: key.clone(), key: key_span, value: None });
                    if known && !is_section {
                        problems.push(if is_key {
                            Problem::error(
                                Code::WrongType,
                                place,
                                format!("{} takes a single value, not a table", show(&key)),
                            )
                            .label("a table")
                            .help("write `key = value`")
                        } else {
                            unknown(place, &key)
                        });
                    }
                    self.spans.sections.insert(key.clone(), key_span);
                    let inner = self.table(&key, inner, problems, known && is_section);
                    if known && is_section {
                        self.spans.values.insert(key, (key_span, value_span));
                        dict.insert(name.get_ref().to_string(), inner.into());
                    }
                }
                other => {
                    self.leaf(&key, key_span, other, value_span);
                    if !known {
                        continue;
                    }
                    if !is_key {
                        problems.push(if is_section {
                            Problem::error(
                                Code::WrongType,
                                place,
                                format!("{} is a section, not a single value", show(&key)),
                            )
                            .label("a section")
                            .help(format!("write `[{key}]`, and its keys below"))
                        } else {
                            unknown(place, &key)
                        });
                        continue;
                    }
                    match self.value(&key, other, value_span) {
                        Ok(value) => {
                            self.spans.values.insert(key, (key_span, value_span));
                            dict.insert(name.get_ref().to_string(), value);
                        }
                        Err(problem) => problems.push(problem),
                    }
                }
            }
        }
        dict
    }

    /// Lists are shown item by item: an address among several keeps what is no secret in it.
    fn leaf(&mut self, key: &str, key_span: Span, value: &DeValue<'_>, value_span: Span) {
        match value {
            DeValue::Array(array) if LISTS.contains(&key) => {
                self.leaves.push(Leaf { path: key.to_owned(), key: key_span, value: None });
                let items = array.iter().map(|item| item.span().into());
                self.leaves.extend(items.map(|span| Leaf { path: String::new(), key: key_span, value: Some(span) }));
            }
            _ => self.leaves.push(Leaf { path: key.to_owned(), key: key_span, value: Some(value_span) }),
        }
    }

    fn value(&mut self, key: &str, value: &DeValue<'_>, span: Span) -> Result<Value, Problem> {
        let wrong_item = |value: &DeValue<'_>, place: Span, wanted: &str, help: &str| {
            Problem::error(
                Code::WrongType,
                Place::file(&self.spans.path, place),
                format!("{} takes {wanted}, not {}", show(key), type_name(value)),
            )
            .label(type_name(value))
            .help(help)
        };
        let wrong = |wanted: &str, help: &str| wrong_item(value, span, wanted, help);
        match value {
            DeValue::String(text) => Ok(text.to_string().into()),
            DeValue::Boolean(value) => Ok((*value).into()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(Value::from)
                .map_err(|_| wrong("a smaller number", "write a number that fits 64 bits")),
            DeValue::Float(number) => Ok(Value::from(number.as_str().parse::<f64>().unwrap_or(f64::NAN))),
            DeValue::Array(array) if LISTS.contains(&key) => {
                let mut items = Vec::new();
                for (index, item) in array.iter().enumerate() {
                    let DeValue::String(text) = item.get_ref() else {
                        return Err(wrong_item(
                            item.get_ref(),
                            item.span().into(),
                            "a list of texts",
                            "write each in double quotes",
                        ));
                    };
                    items.push(Value::from(text.to_string()));
                    let span = item.span().into();
                    self.spans.values.insert(format!("{key}.{index}"), (span, span));
                }
                Ok(items.into())
            }
            DeValue::Array(_) => Err(wrong("a single value", "write it without `[ ]`")),
            DeValue::Datetime(_) | DeValue::Table(_) => Err(wrong("a text", "write it in double quotes")),
        }
    }
}

fn unknown(place: Place, key: &str) -> Problem {
    let problem = Problem::error(Code::UnknownKey, place, format!("there is no setting {}", show(key)));
    if let Some((_, hint)) = FOREIGN.iter().find(|(words, _)| words.contains(&key)) {
        return problem.label("another tool's word").help(*hint);
    }
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut siblings: Vec<&str> = KEYS
        .iter()
        .filter_map(
            |known| if section.is_empty() { Some(*known) } else { known.strip_prefix(section)?.strip_prefix('.') },
        )
        .map(|rest| rest.split('.').next().unwrap_or(rest))
        .collect();
    siblings.dedup();
    if let Some(meant) = near(name, siblings.iter().copied()) {
        return problem.label(format!("did you mean `{meant}`?")).help(format!("write `{meant}`"));
    }
    // A key that lost its section.
    let elsewhere: Vec<&str> = KEYS.iter().filter(|known| known.rsplit('.').next() == Some(name)).copied().collect();
    if let [home] = elsewhere[..] {
        let home = home.rsplit_once('.').map_or(home, |(section, _)| section);
        return problem.label("in another section").help(format!("write it under `[{home}]`"));
    }
    let help = if section.is_empty() {
        format!("the sections are {}", all_of(&siblings))
    } else {
        format!("the keys of `[{section}]` are {}", all_of(&siblings))
    };
    problem.label("unknown").help(help)
}

// === impl Merged ===

impl Merged {
    /// Defaults < file < environment < flags. What a stronger layer says of one of two keys that exclude each other is
    /// found by [`Found::layer`].
    pub(super) fn new(
        file: File,
        variables: &BTreeMap<&'static str, (String, Value)>,
        flags: &[(&'static str, &'static str, Value)],
    ) -> Merged {
        let mut figment = Figment::new().merge(Part { metadata: Metadata::named("default"), dict: defaults() });
        figment = figment.merge(Part { metadata: Metadata::from("file", file.spans.path.as_path()), dict: file.dict });
        for (key, (variable, value)) in variables {
            figment = figment.merge(Part {
                metadata: Metadata::from("variable", variable.as_str()),
                dict: nest(key, value.clone()),
            });
        }
        for (key, flag, value) in flags {
            figment = figment.merge(Part { metadata: Metadata::from("flag", *flag), dict: nest(key, value.clone()) });
        }
        Merged { figment, spans: file.spans }
    }

    /// The strongest value of a key; a section is a key too.
    pub(super) fn get(&self, key: &str) -> Option<Found> {
        let value = self.figment.find_value(key).ok()?;
        let metadata = self.figment.get_metadata(value.tag())?;
        let (layer, place) = match (metadata.name.as_ref(), &metadata.source) {
            ("variable", Some(Source::Custom(name))) => (Layer::Environment, Place::Variable(name.clone())),
            ("flag", Some(Source::Custom(name))) => (Layer::Flag, Place::Flag(name.clone())),
            ("file", _) => (Layer::File, self.in_file(key)),
            _ => (Layer::Default, Place::Nowhere),
        };
        Some(Found { value, place, layer })
    }

    /// The place of a key's value in the file.
    pub(super) fn in_file(&self, key: &str) -> Place {
        match self.spans.values.get(key) {
            Some((_, value)) => Place::file(&self.spans.path, *value),
            None => Place::whole(&self.spans.path),
        }
    }

    /// The first place that mentions the section, if any does.
    pub(super) fn section(&self, section: &str) -> Option<Place> {
        if let Some(span) = self.spans.sections.get(section) {
            return Some(Place::file(&self.spans.path, *span));
        }
        KEYS.iter()
            .filter(|key| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
            .find_map(|key| self.get(key).filter(|found| found.layer > Layer::Default))
            .map(|found| found.place)
    }
}

impl Provider for Part {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.dict.clone())]))
    }
}

/// The weakest layer. `management` and `redis` have no address here: without one, the section is absent.
fn defaults() -> Dict {
    let texts = [
        ("amqp.url", DEFAULT_AMQP_URL),
        ("amqp.prefix", "dwell"),
        ("amqp.connect_timeout", "10s"),
        ("redis.key_prefix", "dwell"),
        ("redis.durability", "fsync"),
        ("redis.timeout", "5s"),
        ("delay.broker_limit", "2d"),
        ("delay.max_delay", "365d"),
        ("pump.lease", "30s"),
        ("run.topology", "declare"),
        ("run.stop_deadline", "25s"),
        ("run.confirm_timeout", "30s"),
        ("log.level", "info"),
        ("log.format", "text"),
        ("http.listen", "127.0.0.1:8672"),
    ];
    let numbers = [("amqp.prefetch", 1000_i64), ("redis.shards", 1), ("pump.batch", 256)];
    let texts = texts.into_iter().map(|(key, value)| (key, Value::from(value)));
    let numbers = numbers.into_iter().map(|(key, value)| (key, Value::from(value)));
    let mut dict = Dict::new();
    for (key, value) in texts.chain(numbers) {
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        if let Value::Dict(_, section) = dict.entry(section.to_owned()).or_insert_with(|| Dict::new().into()) {
            section.insert(name.to_owned(), value);
        }
    }
    dict
}

/// RabbitMQ as it is installed: it lets `guest` in from the same machine only.
pub(super) const DEFAULT_AMQP_URL: &str = "amqp://guest:guest@127.0.0.1:5672/%2f";

/// `a.b.c` and a value → `{ a = { b = { c = value } } }`
fn nest(key: &str, value: Value) -> Dict {
    let mut names = key.rsplit('.');
    let mut dict = Dict::from([(names.next().unwrap_or(key).to_owned(), value)]);
    for name in names {
        dict = Dict::from([(name.to_owned(), dict.into())]);
    }
    dict
}
