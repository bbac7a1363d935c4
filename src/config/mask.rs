//! The settings file as a problem may show it: without secrets, and without comments (which hold old passwords).

use super::raw::{File, is_secret};
use super::url::redact;
use crate::problem::{Place, Problem, Span};

/// A text with replacements, and where each byte of the original went.
pub(super) struct Masked {
    pub text: String,
    /// Original span → where its replacement lies in `text`.
    moved: Vec<(Span, Span)>,
}

/// Replaces secrets and takes out comments. Values of unknown keys are secrets: `pasword = "…"` is one.
///
/// A file that is no TOML shows nothing: which part of it is the password cannot be known.
pub(super) fn mask(file: &File, text: &str) -> Masked {
    if !file.readable {
        return blanked(text);
    }
    let mut spans: Vec<(Span, bool)> = Vec::new();
    for leaf in &file.leaves {
        spans.push((leaf.key, false));
        spans.extend(leaf.value.map(|value| (value, is_secret(&leaf.path))));
    }
    spans.sort_unstable();
    let mut masked = Masked { text: String::with_capacity(text.len()), moved: Vec::new() };
    let mut at = 0;
    for (span, secret) in spans {
        if span.start < at || span.end < span.start {
            continue;
        }
        let (Some(between), Some(value)) = (text.get(at..span.start), text.get(span.start..span.end)) else { continue };
        masked.structure(between);
        let shown = if secret { hide(value) } else { value.to_owned() };
        masked.replace(span, &shown);
        at = span.end;
    }
    masked.structure(text.get(at..).unwrap_or_default());
    masked
}

/// Keeps lines and lengths, so that line and column stay right, and nothing else.
fn blanked(text: &str) -> Masked {
    let text =
        text.chars().map(|c| if c == '\n' || c == '\r' { c.to_string() } else { " ".repeat(c.len_utf8()) }).collect();
    Masked { text, moved: Vec::new() }
}

/// An address keeps what is no secret in it; everything else becomes three stars.
fn hide(value: &str) -> String {
    let inner = value.trim_matches(['"', '\'']);
    if inner.contains("://") && !inner.contains('\n') { format!("\"{}\"", redact(inner)) } else { "\"***\"".to_owned() }
}

// === impl Masked ===

impl Masked {
    /// Moves the places of the problems of this file to where their bytes are now.
    pub(super) fn follow(&self, problems: &mut [Problem], file: &std::path::Path) {
        let follow = |place: &mut Place| {
            if let Place::File { path, span } = place
                && path == file
            {
                *span = self.moved_to(*span);
            }
        };
        for problem in problems {
            follow(&mut problem.place);
            problem.also.iter_mut().for_each(|(place, _)| follow(place));
        }
    }

    fn moved_to(&self, span: Span) -> Span {
        // Spans of problems are those of names and values; an item within a masked list moves to the whole list.
        let exact = self.moved.iter().find(|(from, _)| *from == span);
        let around = || self.moved.iter().find(|(from, _)| from.start <= span.start && span.end <= from.end);
        let reaching = || {
            let start = self.moved.iter().find(|(from, _)| from.start >= span.start)?;
            Some((span, Span { start: start.1.start, end: start.1.end }))
        };
        exact.or_else(around).copied().or_else(reaching).map_or(span, |(_, to)| to)
    }

    fn replace(&mut self, from: Span, shown: &str) {
        let start = self.text.len();
        self.text.push_str(shown);
        self.moved.push((from, Span { start, end: self.text.len() }));
    }

    /// What stands between names and values: punctuation, spaces, line ends and headers are kept. The rest of a line is
    /// left out from the first other character on: it is a comment, or the value of a key that was written twice.
    fn structure(&mut self, between: &str) {
        for line in between.split_inclusive('\n') {
            if is_header(line) {
                self.text.push_str(line);
                continue;
            }
            let odd = line.find(|c: char| !c.is_whitespace() && !"=.,[]{}".contains(c));
            let (kept, dropped) = line.split_at(odd.unwrap_or(line.len()));
            self.text.push_str(kept);
            if dropped.ends_with('\n') {
                self.text.push('\n');
            }
        }
    }
}

/// `[amqp.tls]`, of which only the last name is in the tree if `[amqp]` came before.
fn is_header(line: &str) -> bool {
    let line = line.trim();
    line.starts_with('[') && line.bytes().all(|b| b.is_ascii_alphanumeric() || b"[]._- ".contains(&b))
}
