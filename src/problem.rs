//! What is wrong in something that a person wrote, said so that they can mend it.
//!
//! Topology files, settings and environment variables share this one form: a stable code, what, where (file and
//! line, or variable), why, and what to do. A check collects every problem before it gives up, so that a file is
//! mended in one round. The same values render for people ([`render`], with the line and a finger on the spot) and
//! for programs ([`to_json`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde_json::{Value, json};

use crate::duration::{Millis, ParseError};

/// Declares [`Code`] together with its id, its meaning and where it can occur, so that none can be forgotten.
macro_rules! codes {
    ($($variant:ident $id:literal $room:ident $meaning:literal)*) => {
        /// Everything that can be wrong, each with a stable kebab-case id that users may search for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)*
        }

        impl Code {
            /// The closed list.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The stable id, as printed: `unknown-key`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $id,)* }
            }

            /// One line on what the code stands for.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$variant => $meaning,)* }
            }

            /// Where the code can occur.
            #[must_use]
            pub const fn room(self) -> Room {
                match self { $(Code::$variant => Room::$room,)* }
            }
        }
    };
}

codes! {
    Unreadable "unreadable" Both "A file or folder is missing, cannot be read, or is not UTF-8."
    BadToml "bad-toml" Both "The text is no TOML."
    DeclaredTwice "declared-twice" Both "A key, bridge, queue, exchange or binding is declared twice."
    UnknownKey "unknown-key" Both "A key that dwell does not know."
    MissingKey "missing-key" Both "A key that is needed is absent."
    WrongType "wrong-type" Both "A value of another type than the key takes."
    BadValue "bad-value" Both "A word that is none of those the key takes, or a number outside its range."
    BadDuration "bad-duration" Both "No duration: without a unit, or no sum of numbers with units."
    BadName "bad-name" Both "A name that RabbitMQ, Redis or dwell cannot use."
    LimitConflict "limit-conflict" Both "Limits or deadlines that contradict each other, or RabbitMQ's own."
    BadVersion "bad-version" Topology "The format version is absent or unknown."
    EmptyTopology "empty-topology" Topology "No bridge is declared."
    NameCollision "name-collision" Topology "Two things need the same name in RabbitMQ."
    BadReference "bad-reference" Topology "A name that stands for something else than the key needs."
    TierZero "tier-zero" Topology "A tier of no time at all."
    TierTooLong "tier-too-long" Topology "A tier longer than the broker may hold."
    TierTwice "tier-twice" Topology "The same tier, written twice."
    BadBinding "bad-binding" Topology "A binding that its exchange cannot use."
    NoBinding "no-binding" Topology "A queue that no message reaches."
    OddPattern "odd-pattern" Topology "A `*` or `#` that matches only itself."
    ArgumentRefused "argument-refused" Topology "A queue argument that dwell sets itself, or that breaks a promise."
    DeadLetterLoop "dead-letter-loop" Topology "Dead letters go round without passing the daemon; RabbitMQ drops them."
    BadRetry "bad-retry" Topology "A retry schedule that cannot be followed."
    RetryUnreachable "retry-unreachable" Topology "A retry schedule on a queue whose failures do not come to dwell."
    ForeignExchange "foreign-exchange" Topology "A work exchange that dwell does not declare: tiers need its alternate exchange."
    NoEffect "no-effect" Both "Something that is written but changes nothing."
    NotYet "not-yet" Topology "Understood, but not carried out by this release."
    BadUrl "bad-url" Settings "An address that cannot be used."
    SettingConflict "setting-conflict" Settings "Two settings that exclude each other."
    TokenNeeded "token-needed" Settings "The HTTP face would be open to others without a token."
    MissingFile "missing-file" Settings "A file that a setting names cannot be read."
    BadFilter "bad-filter" Settings "A log level that is no filter."
    UnknownVariable "unknown-variable" Settings "A `DWELL_` variable that names no setting."
}

/// Which kind of input a [`Code`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Topology files.
    Topology,
    /// Settings: file, environment, flags.
    Settings,
    /// Either.
    Both,
}

/// Whether a problem stops the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The input is refused.
    Error,
    /// Odd, but understood; the program goes on.
    Warning,
}

/// Where a problem is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A stretch of bytes in a file of [`Sources`]; the whole file (or folder) where `Sources` has no text of it.
    File {
        /// As the file was named when it was read.
        path: PathBuf,
        /// Byte offsets; an empty span at 0 stands for the file as a whole.
        span: Span,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
    /// A default of dwell's own (a required value that nobody gave).
    Nowhere,
}

/// A stretch of bytes. (`std`'s `Range` has no order, and problems are sorted by place.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which of the closed list.
    pub code: Code,
    /// Whether it stops the program.
    pub severity: Severity,
    /// What is wrong, in one sentence without a full stop, with the value (never a secret).
    pub what: String,
    /// Where.
    pub place: Place,
    /// A few words at the finger; may be empty.
    pub label: String,
    /// Further places that matter (the first declaration of a name declared twice), each with its words.
    pub also: Vec<(Place, String)>,
    /// Why it cannot work; may be empty where `what` says it all.
    pub why: String,
    /// What to do about it.
    pub help: String,
}

/// A place within a file, its words, and whether it is the one.
type Finger<'a> = (Span, &'a str, AnnotationKind);

/// The texts of the files that were read, for rendering.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    texts: BTreeMap<PathBuf, String>,
}

/// All problems for people: each with its line and a finger on the spot, then a line that counts them.
///
/// The empty text if there is none. Colours only on request: what goes to a file or a log stays plain.
#[must_use]
pub fn render(problems: &[Problem], sources: &Sources, colour: bool) -> String {
    let mut text = String::new();
    for problem in problems {
        text.push_str(&problem.render(sources, colour));
        text.push_str("\n\n");
    }
    let errors = problems.iter().filter(|p| p.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    match (errors, warnings) {
        (0, 0) => {}
        (0, _) => drop(writeln!(text, "{}", counted(warnings, "warning"))),
        (_, 0) => drop(writeln!(text, "{}", counted(errors, "error"))),
        (_, _) => drop(writeln!(text, "{}, {}", counted(errors, "error"), counted(warnings, "warning"))),
    }
    text
}

/// All problems for programs: a list of objects with the same data that [`render`] shows.
///
/// Lines and columns count from 1, columns in characters.
#[must_use]
pub fn to_json(problems: &[Problem], sources: &Sources) -> Value {
    Value::Array(problems.iter().map(|problem| problem.to_json(sources)).collect())
}

/// True if at least one problem stops the program.
#[must_use]
pub fn any_error(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| problem.severity == Severity::Error)
}

/// Brings problems into the order in which a person meets them: file by file, from top to bottom.
pub fn sort(problems: &mut [Problem]) {
    problems.sort_by(|a, b| (&a.place, a.code).cmp(&(&b.place, b.code)));
}

/// The candidate that a person most likely meant by `word`, if any is near enough to be worth a guess.
#[must_use]
pub fn near<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&folded, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| {
            // A third of the letters may be wrong: `tires` is `tiers`, but `ttl` is not `tiers`.
            let letters = candidate.chars().count().max(folded.chars().count());
            *distance <= (letters / 3).max(1) && *distance < letters
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A number where a duration is meant: the classic way to be wrong by a factor of a thousand.
#[must_use]
pub fn bare_number(place: Place, number: &str) -> Problem {
    let help = if number.bytes().all(|b| b.is_ascii_digit()) {
        format!("write `\"{number}ms\"` or `\"{number}s\"`, whichever is meant")
    } else {
        "write a whole number with its unit, in quotes: `\"1500ms\"`, `\"1h30m\"`".to_owned()
    };
    Problem::error(Code::BadDuration, place, format!("{} has no unit", show(number)))
        .label("milliseconds, or seconds?")
        .why("a bare number is milliseconds to one reader and seconds to the next")
        .help(help)
}

/// A text that is no duration, with the nearest right form.
#[must_use]
pub fn bad_duration(place: Place, text: &str, error: ParseError) -> Problem {
    if error == ParseError::BareNumber {
        return bare_number(place, text.trim_matches(' '));
    }
    let what = match error {
        ParseError::Empty => "the duration is empty".to_owned(),
        _ => format!("{} is no duration: {error}", show(text)),
    };
    let problem = Problem::error(Code::BadDuration, place, what);
    let help = match error {
        ParseError::Overflow => "write a shorter one; 584 million years do not fit".to_owned(),
        _ => match mended_duration(text) {
            Some(mended) => format!("write `\"{mended}\"`"),
            None => "write a sum of numbers with the units `ms`, `s`, `m`, `h`, `d`: `\"30s\"`, `\"1h30m\"`, `\"7d\"`"
                .to_owned(),
        },
    };
    problem.label("no duration").help(help)
}

/// Other tools' ways to write a duration (`5 min`, `1.5h`, `2 weeks`), in dwell's.
fn mended_duration(text: &str) -> Option<String> {
    const OTHER_UNITS: &[(&[&str], u64)] = &[
        (&["ms", "msec", "msecs", "millis", "millisecond", "milliseconds"], 1),
        (&["s", "sec", "secs", "second", "seconds"], 1_000),
        (&["m", "min", "mins", "minute", "minutes"], 60_000),
        (&["h", "hr", "hrs", "hour", "hours"], 3_600_000),
        (&["d", "day", "days"], 86_400_000),
        (&["w", "week", "weeks"], 604_800_000),
    ];
    let lower = text.trim().to_ascii_lowercase();
    let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = lower.split_at(split);
    let (_, size) = OTHER_UNITS.iter().find(|(names, _)| names.contains(&unit.trim()))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
    let thousandths = format!("{whole}{fraction}").parse::<u64>().ok()?.checked_mul(*size)?;
    (thousandths % scale == 0).then(|| Millis(thousandths / scale).to_string())
}

/// A value between backticks as a message shows it: control characters escaped, and not longer than a line.
#[must_use]
pub fn show(value: &str) -> String {
    const LONGEST: usize = 60;
    let escaped: String = value.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    // Quotes need no escape between backticks.
    let escaped = escaped.replace("\\\"", "\"").replace("\\'", "'");
    if value.chars().count() > LONGEST { format!("`{escaped}…`") } else { format!("`{escaped}`") }
}

/// `a`, `b` or `c`, for help texts.
#[must_use]
pub fn one_of(words: &[&str]) -> String {
    listed(words, "or")
}

/// `a`, `b` and `c`, for help texts.
#[must_use]
pub fn all_of(words: &[&str]) -> String {
    listed(words, "and")
}

// === impl Problem ===

impl Problem {
    /// A problem that stops the program; the builder methods below say the rest.
    #[must_use]
    pub fn error(code: Code, place: Place, what: impl Into<String>) -> Problem {
        Problem {
            code,
            severity: Severity::Error,
            what: what.into(),
            place,
            label: String::new(),
            also: Vec::new(),
            why: String::new(),
            help: String::new(),
        }
    }

    /// A problem that does not stop the program.
    #[must_use]
    pub fn warning(code: Code, place: Place, what: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(code, place, what) }
    }

    /// A few words at the finger.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Problem {
        Problem { label: label.into(), ..self }
    }

    /// A further place that matters.
    #[must_use]
    pub fn also(mut self, place: Place, words: impl Into<String>) -> Problem {
        self.also.push((place, words.into()));
        self
    }

    /// Why it cannot work.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Problem {
        Problem { why: why.into(), ..self }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Problem {
        Problem { help: help.into(), ..self }
    }

    /// This one problem for people, without a line end.
    #[must_use]
    pub fn render(&self, sources: &Sources, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(self.what.as_str()).id(self.code.as_str()));
        let mut notes: Vec<String> = Vec::new();

        // Places of one file share a snippet, so that both show in one picture; the primary place comes first.
        let mut by_file: Vec<(&PathBuf, Vec<Finger<'_>>)> = Vec::new();
        let places = std::iter::once((&self.place, self.label.as_str(), AnnotationKind::Primary))
            .chain(self.also.iter().map(|(place, words)| (place, words.as_str(), AnnotationKind::Context)));
        for (place, words, kind) in places {
            let primary = matches!(kind, AnnotationKind::Primary);
            match place {
                Place::File { path, span } => match by_file.iter_mut().find(|(known, _)| *known == path) {
                    Some((_, spans)) => spans.push((*span, words, kind)),
                    None => by_file.push((path, vec![(*span, words, kind)])),
                },
                Place::Nowhere if primary => {}
                other if primary => {
                    group = group.element(Origin::path(other.to_string()));
                    if !words.is_empty() {
                        notes.push(words.to_owned());
                    }
                }
                other => notes.push(if words.is_empty() { other.to_string() } else { format!("{other}: {words}") }),
            }
        }
        for (path, spans) in by_file {
            let name = path.display().to_string();
            let Some(text) = sources.text(path).filter(|text| !text.is_empty()) else {
                group = group.element(Origin::path(name));
                continue;
            };
            let mut snippet = Snippet::source(text).path(name);
            for (span, words, kind) in spans {
                let mut annotation = kind.span(pointable(text, span));
                if !words.is_empty() {
                    annotation = annotation.label(words);
                }
                snippet = snippet.annotation(annotation);
            }
            group = group.element(snippet);
        }
        for note in notes {
            group = group.element(Level::NOTE.with_name("note").message(note));
        }
        if !self.why.is_empty() {
            group = group.element(Level::NOTE.with_name("why").message(self.why.as_str()));
        }
        if !self.help.is_empty() {
            group = group.element(Level::HELP.with_name("help").message(self.help.as_str()));
        }
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group])
    }

    fn to_json(&self, sources: &Sources) -> Value {
        let also: Vec<Value> = self
            .also
            .iter()
            .map(|(place, words)| {
                let mut object = place_json(place, sources);
                object["label"] = json!(words);
                object
            })
            .collect();
        json!({
            "code": self.code.as_str(),
            "severity": self.severity.as_str(),
            "what": self.what,
            "place": place_json(&self.place, sources),
            "label": self.label,
            "also": also,
            "why": self.why,
            "help": self.help,
        })
    }
}

// === impl Severity ===

impl Severity {
    /// `error` or `warning`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

// === impl Place ===

impl Place {
    /// A stretch of bytes of a file.
    #[must_use]
    pub fn file(path: &Path, span: impl Into<Span>) -> Place {
        Place::File { path: path.to_path_buf(), span: span.into() }
    }

    /// A file or folder as a whole.
    #[must_use]
    pub fn whole(path: &Path) -> Place {
        Place::file(path, 0..0)
    }
}

/// Without line numbers, which need the file's text.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::File { path, .. } => write!(f, "{}", path.display()),
            Place::Variable(name) => write!(f, "environment variable {name}"),
            Place::Flag(name) => write!(f, "flag {name}"),
            Place::Nowhere => f.write_str("dwell's default"),
        }
    }
}

// === impl Span ===

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Span {
        Span { start: range.start, end: range.end }
    }
}

// === impl Sources ===

impl Sources {
    /// Keeps a file's text.
    pub fn add(&mut self, path: &Path, text: impl Into<String>) {
        self.texts.insert(path.to_path_buf(), text.into());
    }

    /// The text of a file that was read.
    #[must_use]
    pub fn text(&self, path: &Path) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// The files that were read, in the order of their names.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.texts.keys().map(PathBuf::as_path)
    }

    /// Takes in what another reading found, so that problems of settings and topology render together.
    pub fn absorb(&mut self, other: Sources) {
        self.texts.extend(other.texts);
    }

    /// Line and column of a byte, both from 1, the column in characters.
    #[must_use]
    pub fn line_and_column(&self, path: &Path, offset: usize) -> Option<(usize, usize)> {
        let before = &self.text(path)?[..pointable(self.text(path)?, Span { start: offset, end: offset }).start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Some((line, column))
    }
}

fn place_json(place: &Place, sources: &Sources) -> Value {
    match place {
        Place::File { path, span } => {
            let mut object = json!({ "file": path.display().to_string() });
            if let (Some((line, column)), Some((end_line, end_column))) =
                (sources.line_and_column(path, span.start), sources.line_and_column(path, span.end))
            {
                object["line"] = json!(line);
                object["column"] = json!(column);
                object["end_line"] = json!(end_line);
                object["end_column"] = json!(end_column);
            }
            object
        }
        Place::Variable(name) => json!({ "variable": name }),
        Place::Flag(name) => json!({ "flag": name }),
        Place::Nowhere => json!({}),
    }
}

/// The span within the text, on character boundaries, and on its first line if it covers several (a table's span
/// reaches far, and a finger along ten lines points at nothing).
fn pointable(text: &str, span: Span) -> Range<usize> {
    let boundary = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = boundary(span.start);
    let end = boundary(span.end).max(start);
    let end = text[start..end].find('\n').map_or(end, |line| start + line);
    start..end
}

fn listed(words: &[&str], between: &str) -> String {
    match words {
        [] => String::new(),
        [only] => format!("`{only}`"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|word| format!("`{word}`")).collect();
            format!("{} {between} `{last}`", first.join(", "))
        }
    }
}

fn fold(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_unique_and_kebab_case() {
        let ids: std::collections::BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(ids.len(), Code::ALL.len());
        assert!(ids.iter().all(|id| id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let keys = ["tiers", "exchange", "work_exchange", "native", "long"];
        assert_eq!(near("tires", keys), Some("tiers"));
        assert_eq!(near("Exchange", keys), Some("exchange"));
        assert_eq!(near("work-exchange", keys), Some("work_exchange"));
        assert_eq!(near("ttl", keys), None);
        assert_eq!(near("", keys), None);
    }

    proptest! {
        #[test]
        fn no_place_in_no_text_panics(text in "\\PC*\n?\\PC*", start in 0_usize..80, length in 0_usize..80) {
            let path = Path::new("a.toml");
            let mut sources = Sources::default();
            sources.add(path, text);
            let place = Place::file(path, start..start + length);
            let problem = Problem::error(Code::BadToml, place.clone(), "what").label("here").also(place, "there");
            let _ = render(std::slice::from_ref(&problem), &sources, false);
            let _ = to_json(&[problem], &sources);
        }
    }
}
