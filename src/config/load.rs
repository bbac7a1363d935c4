//! Reads the layers and puts them together: defaults < file < environment < flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use figment::value::Value;

use super::mask::mask;
use super::model::Settings;
use super::raw::{File, KEYS, Merged};
use super::validate::validate;
use crate::problem::{Code, Place, Problem, Sources, any_error, near, show, sort};

/// Read if no file is named; it may be absent.
pub const DEFAULT_FILE: &str = "config/dwell.toml";

/// Every setting's variable begins so.
const PREFIX: &str = "DWELL_";

/// A setting given by a flag of the command line: it wins over everything else.
#[derive(Clone, Debug)]
pub struct Override {
    /// `section.key`, as in the file.
    pub key: &'static str,
    /// As text, whatever the setting's type.
    pub value: String,
    /// For messages: `--amqp-url`.
    pub flag: &'static str,
}

/// What file, environment and flags say, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// `Some` if no problem is an error.
    pub settings: Option<Settings>,
    /// Errors and warnings.
    pub problems: Vec<Problem>,
    /// The file's text without its secrets, for rendering the problems.
    pub sources: Sources,
    /// The file that was read, if any was.
    pub file: Option<PathBuf>,
}

/// Reads all settings.
///
/// `file`: `None` reads [`DEFAULT_FILE`] if it is there; a named file must be there. `environment`: all variables, for
/// example `std::env::vars_os()`; those without the prefix `DWELL_` are not looked at.
#[must_use]
pub fn load<K, V>(file: Option<&Path>, environment: impl IntoIterator<Item = (K, V)>, flags: &[Override]) -> Loaded
where
    K: Into<OsString>,
    V: Into<OsString>,
{
    let mut problems = Vec::new();
    let mut sources = Sources::default();
    let path = file.unwrap_or(Path::new(DEFAULT_FILE));
    let text = read_file(path, file.is_some(), &mut problems);
    let mut masked = None;
    let parsed = match &text {
        Some(text) => {
            let parsed = File::parse(path, text, &mut problems);
            let shown = mask(&parsed, text);
            sources.add(path, shown.text.clone());
            masked = Some(shown);
            parsed
        }
        None => File::default(),
    };
    let variables = read_environment(environment, &mut problems);
    let flags = read_flags(flags, &mut problems);
    let merged = Merged::new(parsed, &variables, &flags);
    let settings = validate(&merged, &mut problems);
    sort(&mut problems);
    if let Some(masked) = &masked {
        masked.follow(&mut problems, path);
    }
    let settings = (!any_error(&problems)).then_some(settings);
    Loaded { settings, problems, sources, file: text.map(|_| path.to_path_buf()) }
}

/// The environment variable of a setting: `amqp.url` → `DWELL_AMQP__URL`.
#[must_use]
pub fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

fn read_file(path: &Path, named: bool, problems: &mut Vec<Problem>) -> Option<String> {
    let name = show(&path.display().to_string());
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound && !named => return None,
        Err(error) => {
            let what = match error.kind() {
                ErrorKind::NotFound => format!("the settings file {name} does not exist"),
                _ => format!("the settings file {name} cannot be read: {error}"),
            };
            problems.push(
                Problem::error(Code::Unreadable, Place::whole(path), what)
                    .help("name a file that is there and readable, or none: environment variables can say everything"),
            );
            return None;
        }
    };
    if let Ok(text) = String::from_utf8(bytes) {
        Some(text)
    } else {
        problems.push(
            Problem::error(Code::Unreadable, Place::whole(path), format!("the settings file {name} is not UTF-8"))
                .why("TOML is UTF-8 text")
                .help("save the file as UTF-8"),
        );
        None
    }
}

/// Variables of settings, by key. A variable's value is a text as it stands: a password `007` stays one.
fn read_environment<K: Into<OsString>, V: Into<OsString>>(
    environment: impl IntoIterator<Item = (K, V)>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<&'static str, (String, Value)> {
    let mut found: BTreeMap<&'static str, (String, Value)> = BTreeMap::new();
    let known: BTreeMap<String, &'static str> = KEYS.iter().map(|key| (variable(key), *key)).collect();
    // In the order of their names, so that messages do not depend on the system's order.
    let variables: BTreeMap<OsString, OsString> =
        environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)).map(str::to_owned) else { continue };
        if name.starts_with("DWELL_TEST_") || name == "DWELL_CRASH_AT" {
            continue;
        }
        let file_of = name.strip_suffix("_FILE").and_then(|base| known.get(base));
        let (key, value) = match (known.get(&name), file_of) {
            (Some(key), _) => (*key, value.into_string().map_err(|_| not_utf8(&name))),
            (None, Some(key)) => (*key, read_secret(&name, Path::new(&value))),
            (None, None) => {
                problems.push(unknown_variable(&name, known.keys().map(String::as_str)));
                continue;
            }
        };
        let value = match value {
            Ok(value) => value,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        if let Some((first, _)) = found.get(key) {
            problems.push(
                Problem::error(
                    Code::SettingConflict,
                    Place::Variable(name.clone()),
                    format!("{} and {} exclude each other", show(first), show(&name)),
                )
                .label(format!("both give `{key}`"))
                .why("which of them is meant cannot be known")
                .help("unset one of them"),
            );
            continue;
        }
        found.insert(key, (name, Value::from(value)));
    }
    found
}

fn not_utf8(name: &str) -> Problem {
    Problem::error(
        Code::WrongType,
        Place::Variable(name.to_owned()),
        format!("the value of {} is not UTF-8", show(name)),
    )
    .help("set it to UTF-8 text")
}

/// A mounted secret. Editors and `echo` end it with a line end that nobody means.
fn read_secret(name: &str, path: &Path) -> Result<String, Problem> {
    let place = || Place::Variable(name.to_owned());
    let shown = show(&path.display().to_string());
    let text = std::fs::read_to_string(path).map_err(|error| {
        Problem::error(Code::MissingFile, place(), format!("{shown} cannot be read: {error}"))
            .help("name a UTF-8 text file that the daemon's user can read")
    })?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    if text.is_empty() {
        return Err(Problem::error(Code::MissingFile, place(), format!("{shown} is empty"))
            .help("write the value into the file, or unset the variable"));
    }
    Ok(text.to_owned())
}

fn unknown_variable<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Problem {
    let problem = Problem::warning(
        Code::UnknownVariable,
        Place::Variable(name.to_owned()),
        format!("{} names no setting", show(name)),
    )
    .label("ignored");
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let upper = name.to_ascii_uppercase();
    let joined = |text: &str| text.replace("__", "_");
    if let Some(meant) = known.clone().find(|known| joined(known) == joined(&upper)) {
        return problem
            .why("section and key are joined by two underscores, all in capitals")
            .help(format!("did you mean `{meant}`?"));
    }
    if is_service_link(rest) {
        return problem
            .why("Kubernetes gives every container such variables for each service of its namespace, here one named `dwell…`")
            .help("nothing to do; to be rid of it set `enableServiceLinks: false` in the pod's spec");
    }
    match near(name.strip_suffix("_FILE").unwrap_or(&upper), known) {
        Some(meant) => problem.help(format!("did you mean `{meant}`?")),
        None => {
            problem.help("unset it, or see config/dwell.example.toml for the settings: `amqp.url` is `DWELL_AMQP__URL`")
        }
    }
}

/// `PORT`, `SERVICE_HOST`, `SERVICE_PORT_HTTP`, `PORT_8672_TCP_ADDR`, also after the rest of a longer service's name.
fn is_service_link(rest: &str) -> bool {
    let tail = |from: &str| format!("_{rest}").find(from).is_some();
    rest == "PORT"
        || rest.ends_with("_PORT")
        || tail("_SERVICE_HOST")
        || tail("_SERVICE_PORT")
        || (tail("_PORT_") && (tail("_TCP") || tail("_UDP")))
}

fn read_flags(flags: &[Override], problems: &mut Vec<Problem>) -> Vec<(&'static str, &'static str, Value)> {
    let mut found = Vec::new();
    for flag in flags {
        if KEYS.contains(&flag.key) {
            found.push((flag.key, flag.flag, Value::from(flag.value.clone())));
        } else {
            problems.push(
                Problem::error(
                    Code::UnknownKey,
                    Place::Flag(flag.flag.to_owned()),
                    format!("there is no setting {}", show(flag.key)),
                )
                .help("this is a mistake in dwell, please report it"),
            );
        }
    }
    found
}
