//! What is wrong in something that a person wrote, said so that they can mend it.
//!
//! Topology files, settings and environment variables share this one form: a stable code, what, where (file and
//! line, or variable), why, and what to do. A check collects every problem before it gives up, so that a file is
//! mended in one round. The same values render for people (with the line and a finger on the spot) and as JSON.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Everything that can be wrong, each with a stable kebab-case id that users may search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// The file is not readable or no TOML.
    Unreadable,
    /// A key that dwell does not know.
    UnknownKey,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A stretch of bytes in a file of [`Sources`].
    File { path: PathBuf, span: Range<usize> },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
    /// A default of dwell's own (a required value that nobody gave).
    Nowhere,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    pub code: Code,
    pub severity: Severity,
    /// What is wrong, in one sentence without a full stop, with the value (never a secret).
    pub what: String,
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

/// The texts of the files that were read, for rendering.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    texts: BTreeMap<PathBuf, String>,
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
}
