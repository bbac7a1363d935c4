//! Merged tree → settings: one function per section, all problems collected.
//!
//! Where a value is wrong a stand-in takes its place, so that everything else is still looked at; settings with an
//! error are dropped.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use figment::value::Value;
use tracing_subscriber::EnvFilter;

use super::model::{
    Amqp, Delay, Durability, Http, Log, LogFormat, Management, Pump, Redis, Run, Secret, Settings, Tls, TopologyMode,
};
use super::raw::{DEFAULT_AMQP_URL, Found, Layer, Merged};
use super::url::{self, Credentials, Fault};
use crate::duration::Millis;
use crate::problem::{Code, Place, Problem, Severity, bad_duration, bare_number, near, one_of, show};

/// RabbitMQ refuses a longer TTL (406; case B12).
const BROKER_CEILING: Millis = Millis::days(3650);
/// A hundred years, as for a bridge.
const LONGEST_DELAY: Millis = Millis::days(36_500);
const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

/// All sections, judged.
pub(super) fn validate(merged: &Merged, problems: &mut Vec<Problem>) -> Settings {
    let mut check = Check { merged, problems };
    let settings = Settings {
        amqp: check.amqp(),
        management: check.management(),
        redis: check.redis(),
        delay: check.delay(),
        pump: check.pump(),
        run: check.run(),
        log: check.log(),
        http: check.http(),
    };
    check.lease_outlasts_confirm(&settings);
    settings
}

/// One run of all checks.
struct Check<'a> {
    merged: &'a Merged,
    problems: &'a mut Vec<Problem>,
}

// === impl Check: sections ===

impl Check<'_> {
    fn amqp(&mut self) -> Amqp {
        let urls = self.amqp_urls();
        let tls = self.tls();
        if let Some((key, place)) =
            tls.1.filter(|_| !urls.is_empty() && urls.iter().all(|url| url.expose().starts_with("amqp://")))
        {
            self.problems.push(
                Problem::warning(Code::NoEffect, place, format!("{} has no effect", show(key)))
                    .label("never read")
                    .why("every address of RabbitMQ is `amqp://`, without TLS")
                    .help("write `amqps://` in the address, usually with port 5671"),
            );
        }
        Amqp {
            urls,
            prefix: self.name("amqp.prefix", 50, "dwell's vhost-wide names begin with it"),
            prefetch: self.count("amqp.prefetch", 1..=65_535),
            connect_timeout: self.between("amqp.connect_timeout", Millis(100), Millis::seconds(300)),
            tls: tls.0,
        }
    }

    fn amqp_urls(&mut self) -> Vec<Secret> {
        let single = self.merged.get("amqp.url");
        let list = self.merged.get("amqp.urls");
        let credentials = self.credentials("amqp");
        let (found, texts) = match (single, list) {
            (Some(single), Some(list)) if single.layer == list.layer => {
                self.problems.push(
                    Problem::error(Code::SettingConflict, list.place, "`amqp.url` and `amqp.urls` exclude each other")
                        .label("a list here")
                        .also(single.place, "a single address here")
                        .why("which of them is meant cannot be known")
                        .help("keep one of them"),
                );
                return Vec::new();
            }
            (Some(single), list) if list.as_ref().is_none_or(|list| list.layer < single.layer) => {
                let text = self.as_text("amqp.url", &single);
                // The default's user is no user that somebody chose: keys of their own replace it.
                let text = match text {
                    Some(_)
                        if single.layer == Layer::Default
                            && (credentials.username.is_some() || credentials.password.is_some()) =>
                    {
                        Some(DEFAULT_AMQP_URL.replace("guest:guest@", ""))
                    }
                    text => text,
                };
                let texts = text.into_iter().map(|text| (single.place.clone(), text)).collect();
                (single, texts)
            }
            (_, Some(list)) => {
                let texts = self.as_list("amqp.urls", &list);
                (list, texts)
            }
            // `url` has a default, so one of the two is there.
            (_, None) => return Vec::new(),
        };
        if texts.is_empty() && matches!(found.value, Value::Array(..)) {
            self.problems.push(
                Problem::error(Code::BadUrl, found.place, "`amqp.urls` is an empty list")
                    .label("no address")
                    .help("write at least one address"),
            );
            return Vec::new();
        }
        let mut urls = Vec::new();
        let mut first: Option<(String, Place)> = None;
        for (place, text) in texts {
            match url::amqp(&text, &credentials) {
                Ok((url, vhost)) => {
                    match &first {
                        Some((known, at)) if *known != vhost => self.problems.push(
                            Problem::error(
                                Code::SettingConflict,
                                place,
                                format!("the addresses name two vhosts, {} and {}", show(known), show(&vhost)),
                            )
                            .label("another vhost")
                            .also(at.clone(), "the first address")
                            .why("one daemon serves one vhost; the addresses are tried in turn for the same one")
                            .help("name nodes of one cluster, all with the same vhost"),
                        ),
                        Some(_) => {}
                        None => first = Some((vhost, place)),
                    }
                    urls.push(Secret::new(url));
                }
                Err(fault) => self.bad_url(place, fault),
            }
        }
        urls
    }

    /// The files, and the first setting that names one.
    fn tls(&mut self) -> (Tls, Option<(&'static str, Place)>) {
        let keys = ["amqp.tls.ca_file", "amqp.tls.cert_file", "amqp.tls.key_file"];
        let named = keys.map(|key| self.optional_text(key).map(|text| (key, text)));
        let mut first = None;
        for (key, (text, place)) in named.iter().flatten() {
            first = first.or_else(|| Some((*key, place.clone())));
            if let Err(error) = std::fs::File::open(text).and_then(|file| file.metadata()).and_then(|metadata| {
                if metadata.is_dir() { Err(std::io::Error::other("it is a folder")) } else { Ok(()) }
            }) {
                self.problems.push(
                    Problem::error(Code::MissingFile, place.clone(), format!("{} cannot be read: {error}", show(text)))
                        .label(format!("`{key}`"))
                        .help("name a PEM file that the daemon's user can read (relative to the working directory)"),
                );
            }
        }
        let path = |at: &Option<(&str, (String, Place))>| at.as_ref().map(|(_, (text, _))| PathBuf::from(text));
        let [ca, cert, key] = &named;
        if let (Some((given, (_, place))), None) | (None, Some((given, (_, place)))) = (cert, key) {
            let missing = if given.ends_with("cert_file") { "amqp.tls.key_file" } else { "amqp.tls.cert_file" };
            self.problems.push(
                Problem::error(Code::SettingConflict, place.clone(), format!("`{given}` is set without `{missing}`"))
                    .label("half of a pair")
                    .why("a certificate proves nothing without its key, nor a key without its certificate")
                    .help(format!("set `{missing}` too, or neither")),
            );
        }
        (Tls { ca_file: path(ca), cert_file: path(cert), key_file: path(key) }, first)
    }

    fn management(&mut self) -> Option<Management> {
        let url = self.address("management", url::management)?;
        Some(Management { url })
    }

    fn redis(&mut self) -> Option<Redis> {
        let url = self.address("redis", url::redis);
        // Looked at even without an address, so that all problems show in one run.
        let redis = Redis {
            url: url.clone().unwrap_or_else(|| Secret::new("")),
            key_prefix: self.name(
                "redis.key_prefix",
                100,
                "every key of dwell's begins with it, before a hash tag in braces",
            ),
            durability: self.durability(),
            shards: self.count("redis.shards", 1..=256),
            timeout: self.between("redis.timeout", Millis(100), Millis::seconds(300)),
        };
        url.map(|_| redis)
    }

    /// An address of a section that is absent unless it is named.
    fn address(&mut self, section: &str, read: fn(&str, &Credentials) -> Result<String, Fault>) -> Option<Secret> {
        let mentioned = self.merged.section(section)?;
        let credentials = self.credentials(section);
        let key = format!("{section}.url");
        let Some(found) = self.merged.get(&key) else {
            // Reported by the file's own check if it is there with the wrong type.
            self.problems.push(
                Problem::error(Code::MissingKey, mentioned, format!("`[{section}]` has no `url`"))
                    .label("without an address")
                    .why("what is configured here would never be used")
                    .help(format!("write `url`, or set `{}`, or take the section out", super::variable(&key))),
            );
            return None;
        };
        let text = self.as_text(&key, &found)?;
        match read(&text, &credentials) {
            Ok(url) => Some(Secret::new(url)),
            Err(fault) => {
                self.bad_url(found.place, fault);
                None
            }
        }
    }

    fn durability(&mut self) -> Durability {
        const HELP: &str = "write \"fsync\", \"memory\" or `{ replicas = 1 }`";
        if self.merged.get("redis.durability.replicas").is_some() {
            return Durability::Replicas(self.count("redis.durability.replicas", 1..=100));
        }
        let Some(found) = self.merged.get("redis.durability") else { return Durability::Fsync };
        let problem = match &found.value {
            Value::String(..) => None,
            Value::Dict(..) => Some(
                Problem::error(Code::MissingKey, found.place, "`redis.durability` says no `replicas`").label("empty"),
            ),
            other => Some(
                Problem::error(Code::WrongType, found.place, "`redis.durability` takes a text or a table")
                    .label(type_name(other)),
            ),
        };
        if let Some(problem) = problem {
            self.problems.push(problem.help(HELP));
            return Durability::Fsync;
        }
        let words = [("fsync", Durability::Fsync), ("memory", Durability::Memory)];
        self.word("redis.durability", &words, HELP).unwrap_or(Durability::Fsync)
    }

    fn delay(&mut self) -> Delay {
        let broker_limit = self.between("delay.broker_limit", Millis(1), BROKER_CEILING);
        let max_delay = self.between("delay.max_delay", Millis(1), LONGEST_DELAY);
        if let (Some(limit), Some(max)) = (self.merged.get("delay.broker_limit"), self.merged.get("delay.max_delay"))
            && broker_limit > max_delay
            && !self.refused(&limit.place)
            && !self.refused(&max.place)
        {
            self.problems.push(
                Problem::error(
                    Code::LimitConflict,
                    limit.place,
                    format!("delay.broker_limit {broker_limit} is above delay.max_delay {max_delay}"),
                )
                .label("longer than any delay")
                .also(max.place, "max_delay is set here")
                .why("a delay above max_delay is rejected, so the two contradict each other")
                .help("write a shorter broker_limit or a longer max_delay"),
            );
        }
        Delay { broker_limit, max_delay }
    }

    fn pump(&mut self) -> Pump {
        Pump {
            batch: self.count("pump.batch", 1..=1000),
            lease: self.between("pump.lease", Millis::seconds(1), Millis::seconds(3600)),
        }
    }

    fn run(&mut self) -> Run {
        let modes = [("declare", TopologyMode::Declare), ("verify", TopologyMode::Verify)];
        let topology = self.word("run.topology", &modes, "write \"declare\" or \"verify\"");
        Run {
            topology: topology.unwrap_or_default(),
            stop_deadline: self.between("run.stop_deadline", Millis(100), Millis::seconds(3600)),
            confirm_timeout: self.between("run.confirm_timeout", Millis(100), Millis::seconds(3600)),
        }
    }

    fn lease_outlasts_confirm(&mut self, settings: &Settings) {
        let (lease, confirm) = (settings.pump.lease, settings.run.confirm_timeout);
        let (Some(lease_at), Some(confirm_at)) =
            (self.merged.get("pump.lease"), self.merged.get("run.confirm_timeout"))
        else {
            return;
        };
        if lease < confirm && !self.refused(&lease_at.place) && !self.refused(&confirm_at.place) {
            self.problems.push(
                Problem::error(
                    Code::LimitConflict,
                    lease_at.place,
                    format!("pump.lease {lease} is shorter than run.confirm_timeout {confirm}"),
                )
                .label("lapses too early")
                .also(confirm_at.place, format!("a publish may wait {confirm} for its confirm"))
                .why("a claim that lapses while its publish is still unanswered is published again by another daemon")
                .help("write a longer lease or a shorter confirm_timeout"),
            );
        }
    }

    fn log(&mut self) -> Log {
        let level = self.text("log.level").map_or_else(
            || "info".to_owned(),
            |(level, place)| {
                self.filter(&level, place);
                level
            },
        );
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        let format = self.word("log.format", &formats, "write \"text\" or \"json\"").unwrap_or(LogFormat::Text);
        Log { level, format }
    }

    /// tracing takes any word for the name of a module, so that a misspelt level would silently turn logging off.
    fn filter(&mut self, level: &str, place: Place) {
        let mut problem = Problem::error(Code::BadFilter, place, format!("{} is no log level", show(level)));
        let lower = level.to_ascii_lowercase();
        let bare = lower.split(',').map(str::trim).find(|part| {
            let word = part.rsplit('=').next().unwrap_or(part);
            let level_expected = part.contains('=') || !lower.contains(',');
            !word.contains(['[', ']', '{'])
                && !LEVELS.contains(&word)
                && (level_expected || near(word, LEVELS.iter().copied()).is_some())
        });
        let meant = bare.and_then(|part| near(part.rsplit('=').next().unwrap_or(part), LEVELS.iter().copied()));
        if bare.is_none() && !level.trim().is_empty() && EnvFilter::try_new(level).is_ok() {
            return;
        }
        problem.help = match meant {
            Some(meant) => {
                problem.label = format!("did you mean `{meant}`?");
                format!("write `{meant}`")
            }
            None => format!("write {}, or a filter as `info,dwell::pump=debug`", one_of(LEVELS)),
        };
        self.problems.push(problem);
    }

    fn http(&mut self) -> Http {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 8672));
        let token = self.optional_text("http.token").map(|(token, place)| {
            if !token.bytes().all(|b| b.is_ascii_graphic()) {
                self.problems.push(
                    Problem::error(Code::BadValue, place, "`http.token` has characters that no HTTP header can carry")
                        .label("not ASCII, or a space")
                        .help("use letters, digits and signs, for example the output of `openssl rand -hex 24`"),
                );
            }
            Secret::new(token)
        });
        let Some((text, place)) = self.text("http.listen") else { return Http { listen: loopback, token } };
        let Ok(listen) = text.parse::<SocketAddr>() else {
            let help = match text.rsplit_once(':') {
                Some(("", port)) => {
                    format!("write `0.0.0.0:{port}` for all addresses, `127.0.0.1:{port}` for this machine")
                }
                Some(("localhost", port)) => format!("write `127.0.0.1:{port}`"),
                _ => "write a numeric address and a port: `127.0.0.1:8672`, `[::1]:8672`".to_owned(),
            };
            self.problems.push(
                Problem::error(Code::BadValue, place, format!("http.listen {} is no address", show(&text)))
                    .label("no address and port")
                    .help(help),
            );
            return Http { listen: loopback, token };
        };
        if !listen.ip().is_loopback() && token.is_none() {
            self.problems.push(
                Problem::error(
                    Code::TokenNeeded,
                    place,
                    format!("http.listen {listen} is open to other machines, and there is no token"),
                )
                .label("not a loopback address")
                .why("`/` and `/api` show, cancel and replay messages to whoever asks")
                .help(format!(
                    "set `http.token` (`{}` names a mounted secret), or listen on 127.0.0.1",
                    super::variable("http.token") + "_FILE"
                )),
            );
        }
        Http { listen, token }
    }
}

// === impl Check: single values ===

impl Check<'_> {
    /// True if the value there was refused already, so that a stand-in stands in.
    fn refused(&self, place: &Place) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error && problem.place == *place)
    }

    fn credentials(&mut self, section: &str) -> Credentials {
        let mut take = |key: &str| self.optional_text(&format!("{section}.{key}")).map(|(text, _)| text);
        Credentials { username: take("username"), password: take("password") }
    }

    fn bad_url(&mut self, place: Place, fault: Fault) {
        self.problems.push(
            Problem::error(Code::BadUrl, place, fault.what).label("this address").why(fault.why).help(fault.help),
        );
    }

    /// A text; `None` if absent or (reported) none.
    fn text(&mut self, key: &str) -> Option<(String, Place)> {
        let found = self.merged.get(key)?;
        let text = self.as_text(key, &found)?;
        Some((text, found.place))
    }

    /// A text for which emptiness means absence.
    fn optional_text(&mut self, key: &str) -> Option<(String, Place)> {
        self.text(key).filter(|(text, _)| !text.is_empty())
    }

    fn as_text(&mut self, key: &str, found: &Found) -> Option<String> {
        if let Value::String(_, text) = &found.value {
            return Some(text.clone());
        }
        self.problems.push(
            Problem::error(Code::WrongType, found.place.clone(), format!("{} takes a text", show(key)))
                .label(type_name(&found.value))
                .help("write it in double quotes"),
        );
        None
    }

    /// A list of texts; in an environment variable or flag, one text with commas.
    fn as_list(&mut self, key: &str, found: &Found) -> Vec<(Place, String)> {
        match &found.value {
            Value::Array(_, items) => items
                .iter()
                .enumerate()
                .filter_map(|(index, item)| {
                    let place = match found.layer {
                        Layer::File => self.merged.in_file(&format!("{key}.{index}")),
                        _ => found.place.clone(),
                    };
                    item.as_str().map(|text| (place, text.to_owned()))
                })
                .collect(),
            Value::String(_, text) if found.layer > Layer::File => {
                text.split(',').map(|part| (found.place.clone(), part.trim().to_owned())).collect()
            }
            other => {
                self.problems.push(
                    Problem::error(
                        Code::WrongType,
                        found.place.clone(),
                        format!("{} takes a list of texts", show(key)),
                    )
                    .label(type_name(other))
                    .help("write `[\"…\", \"…\"]`"),
                );
                Vec::new()
            }
        }
    }

    /// A duration within its range; the lower bound where it is not.
    fn between(&mut self, key: &str, least: Millis, most: Millis) -> Millis {
        let Some(found) = self.merged.get(key) else { return least };
        if let Value::Num(_, number) = &found.value {
            let shown = number.to_i128().map(|n| n.to_string()).or_else(|| number.to_u128().map(|n| n.to_string()));
            let shown = shown.or_else(|| number.to_f64().map(|n| n.to_string())).unwrap_or_default();
            self.problems.push(bare_number(found.place, &shown));
            return least;
        }
        let Some(text) = self.as_text(key, &found) else { return least };
        match text.parse::<Millis>() {
            Ok(millis) if millis >= least && millis <= most => millis,
            Ok(_) => {
                let why = if most == BROKER_CEILING {
                    "RabbitMQ refuses a TTL above 315360000000 ms, ten years (406)"
                } else {
                    ""
                };
                self.problems.push(
                    Problem::error(Code::LimitConflict, found.place, format!("{key} cannot be {}", show(&text)))
                        .label("out of range")
                        .why(why)
                        .help(format!("write a duration from `\"{least}\"` to `\"{most}\"`")),
                );
                least
            }
            Err(error) => {
                self.problems.push(bad_duration(found.place, &text, error));
                least
            }
        }
    }

    /// A whole number within its range; the lower bound where it is not.
    fn count(&mut self, key: &str, range: RangeInclusive<u16>) -> u16 {
        let least = *range.start();
        let Some(found) = self.merged.get(key) else { return least };
        let number = match &found.value {
            Value::Num(_, number) => number.to_i128(),
            // Variables and flags are texts.
            Value::String(_, text) if found.layer > Layer::File => text.trim().parse().ok(),
            _ => None,
        };
        match number.map(|number| u16::try_from(number).ok().filter(|n| range.contains(n))) {
            Some(Some(number)) => number,
            Some(None) => {
                self.problems.push(
                    Problem::error(
                        Code::BadValue,
                        found.place,
                        format!("{key} cannot be {}", number.unwrap_or_default()),
                    )
                    .label("out of range")
                    .help(format!(
                        "write a whole number from {} to {}",
                        range.start(),
                        range.end()
                    )),
                );
                least
            }
            None => {
                self.problems.push(
                    Problem::error(Code::WrongType, found.place, format!("{} takes a whole number", show(key)))
                        .label(type_name(&found.value))
                        .help(format!(
                            "write a number from {} to {}{}",
                            range.start(),
                            range.end(),
                            if found.layer > Layer::File { "" } else { ", without quotes" }
                        )),
                );
                least
            }
        }
    }

    fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)], help: &str) -> Option<T> {
        let (text, place) = self.text(key)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let problem = Problem::error(Code::BadValue, place, format!("{} is no `{key}`", show(&text)));
        self.problems.push(match near(&text, words.iter().map(|(word, _)| *word)) {
            Some(meant) => problem.label(format!("did you mean `{meant}`?")).help(format!("write \"{meant}\"")),
            None => problem.label("unknown").help(help),
        });
        None
    }

    /// The beginning of names in RabbitMQ or Redis.
    fn name(&mut self, key: &str, longest: usize, why: &str) -> String {
        let Some((text, place)) = self.text(key) else { return String::new() };
        let fine = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b));
        // `amq.` names are RabbitMQ's own; a colon is Redis' way to part names.
        let reserved = key == "amqp.prefix" && (text == "amq" || text.starts_with("amq.") || text.contains(':'));
        if !fine || reserved || text.is_empty() || text.len() > longest {
            let colon = if key == "amqp.prefix" { ", not beginning with `amq.`" } else { ", `:`" };
            self.problems.push(
                Problem::error(Code::BadName, place, format!("{key} cannot be {}", show(&text)))
                    .label("no name")
                    .why(why)
                    .help(format!("use 1 to {longest} letters, digits, `.`, `_`, `-`{colon}")),
            );
        }
        text
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(..) => "a text",
        Value::Char(..) => "a character",
        Value::Bool(..) => "a boolean",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a table",
        Value::Array(..) => "a list",
    }
}
