//! Reads the folder and puts the parts together: read → parse each file → validate all.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::model::Topology;
use super::parse::parse;
use super::validate::validate;
use crate::config::Settings;
use crate::duration::Millis;
use crate::problem::{Code, Place, Problem, Sources, any_error, show, sort};

/// What the settings say that topology files are measured by.
#[derive(Clone, Debug)]
pub struct Limits {
    /// `delay.broker_limit`
    pub broker_limit: Millis,
    /// `delay.max_delay`
    pub max_delay: Millis,
    /// `amqp.prefix`
    pub prefix: String,
}

/// What the topology files say, and what is wrong with them.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// `Some` if no problem is an error.
    pub topology: Option<Topology>,
    /// Errors and warnings, file by file.
    pub problems: Vec<Problem>,
    /// The texts, for rendering the problems.
    pub sources: Sources,
}

/// Reads all `*.toml` files of a folder, in the order of their names.
///
/// Subfolders and files whose name begins with a dot are not read (editors keep their drafts there, Kubernetes its
/// versions).
#[must_use]
pub fn load(dir: &Path, limits: &Limits) -> Loaded {
    let mut problems = Vec::new();
    let mut texts = Vec::new();
    let mut files_seen = false;
    match files_of(dir) {
        Ok(files) => {
            for file in files {
                files_seen = true;
                match read(&file) {
                    Ok(text) => texts.push((file, text)),
                    Err(problem) => problems.push(problem),
                }
            }
            if !files_seen {
                problems.push(no_files(dir));
            }
        }
        Err(error) => problems.push(unreadable_folder(dir, &error)),
    }
    // A file that could not be read may hold what seems to be missing.
    let complete = problems.is_empty();
    finish(texts, problems, complete, limits)
}

/// The same from texts in memory.
#[must_use]
pub fn parse_texts(texts: Vec<(PathBuf, String)>, limits: &Limits) -> Loaded {
    finish(texts, Vec::new(), true, limits)
}

fn finish(texts: Vec<(PathBuf, String)>, mut problems: Vec<Problem>, mut complete: bool, limits: &Limits) -> Loaded {
    let mut sources = Sources::default();
    let mut bridges = Vec::new();
    for (path, text) in texts {
        let parsed = parse(&path, &text, &mut problems);
        bridges.extend(parsed.bridges);
        complete &= parsed.complete;
        sources.add(&path, text);
    }
    if bridges.is_empty() && complete {
        let place = sources.paths().next().map_or(Place::Nowhere, Place::whole);
        problems.push(
            Problem::error(Code::EmptyTopology, place, "no bridge is declared")
                .why("a daemon without bridges would look healthy and delay nothing")
                .help("declare one: `[bridge.orders]`"),
        );
    }
    let topology = validate(&bridges, limits, &mut problems);
    sort(&mut problems);
    let topology = (!any_error(&problems)).then_some(topology);
    Loaded { topology, problems, sources }
}

// === impl Limits ===

impl From<&Settings> for Limits {
    fn from(settings: &Settings) -> Limits {
        Limits {
            broker_limit: settings.delay.broker_limit,
            max_delay: settings.delay.max_delay,
            prefix: settings.amqp.prefix.clone(),
        }
    }
}

/// The settings' defaults.
impl Default for Limits {
    fn default() -> Limits {
        Limits { broker_limit: Millis::days(2), max_delay: Millis::days(365), prefix: "dwell".to_owned() }
    }
}

fn files_of(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let toml = path.extension().is_some_and(|extension| extension == "toml");
        if toml && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<String, Problem> {
    let name = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|error| {
        Problem::error(Code::Unreadable, Place::whole(file), format!("{} cannot be read: {error}", show(&name)))
            .help("make the file readable for the user that dwell runs as, or take it away")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
        Problem::error(Code::Unreadable, Place::whole(file), format!("{} is not UTF-8, in line {line}", show(&name)))
            .why("TOML is UTF-8 text")
            .help("save the file as UTF-8")
    })
}

fn no_files(dir: &Path) -> Problem {
    Problem::error(
        Code::EmptyTopology,
        Place::whole(dir),
        format!("{} holds no `*.toml` file", show(&dir.display().to_string())),
    )
    .why("a daemon without bridges would look healthy and delay nothing")
    .help("put a topology file there, or name the folder that has them with `--topology DIR`")
}

fn unreadable_folder(dir: &Path, error: &std::io::Error) -> Problem {
    let name = show(&dir.display().to_string());
    let problem = Problem::error(
        Code::Unreadable,
        Place::whole(dir),
        match error.kind() {
            ErrorKind::NotFound => format!("the topology folder {name} does not exist"),
            ErrorKind::NotADirectory => format!("{name} is no folder"),
            _ => format!("the topology folder {name} cannot be read: {error}"),
        },
    );
    problem.help("name the folder that holds the topology files with `--topology DIR`")
}
