//! House rules as code: the walls between rooms, the headings of scripts, the list of cases.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How many cases there are: an id that is lost or invented shows here.
const CASES: usize = 107;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below a folder with that ending, with its path from the root and its text.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).expect("text")));
            }
        }
    }
    assert!(!found.is_empty(), "no .{ending} files below {folder}");
    found.sort();
    found
}

/// Lines of code, with their numbers, without what follows `//`; good enough for names that stand in no text.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line.split("//").next().unwrap_or_default()))
}

/// The line without what stands in quotes: a name in a text is no use of it.
fn without_texts(line: &str) -> String {
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// Whether a path into that crate begins in the line: `lapin::…`, and not `other_lapin::…`.
fn names_crate(line: &str, name: &str) -> bool {
    let path = format!("{name}::");
    line.match_indices(&path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

#[test]
fn outside_systems_have_one_door_each() {
    let doors = [("lapin", "src/broker/"), ("redis", "src/store/"), ("backoff", "src/backoff.rs")];
    let mut wrong = Vec::new();
    for (name, text) in files("src", "rs") {
        for (number, line) in code(&text) {
            for (krate, door) in doors {
                // `crate::backoff::` is our own module of that name.
                if names_crate(&without_texts(line), krate) && !name.starts_with(door) {
                    wrong.push(format!("{name}:{number} names {krate}; only {door} may"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_script_begins_with_what_it_takes_and_returns() {
    for (name, text) in files("src", "lua") {
        let heading: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
        let verb = Path::new(&name).file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(
            heading.first().is_some_and(|line| line.starts_with(&format!("-- {verb}: "))),
            "{name}: its verb first"
        );
        for word in ["KEYS", "ARGV", "Returns"] {
            assert!(heading.iter().any(|line| line.contains(word)), "{name}: the heading does not say {word}");
        }
    }
}

#[test]
fn every_crash_point_stands_at_exactly_one_line() {
    let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in files("src", "rs") {
        for (number, line) in code(&text) {
            if let Some((point, _)) = line.split_once("crash::point(\"").and_then(|(_, rest)| rest.split_once('"')) {
                used.entry(point.to_owned()).or_default().push(format!("{name}:{number}"));
            }
        }
    }
    for point in dwell::crash::POINTS {
        let places = used.remove(point).unwrap_or_default();
        assert_eq!(places.len(), 1, "{point} stands at {places:?}");
        let room = point.split('.').next().unwrap_or_default();
        assert!(places[0].starts_with(&format!("src/{room}.rs:")), "{point} stands at {places:?}");
    }
    assert!(used.is_empty(), "not in crash::POINTS: {used:?}");
}

#[test]
fn nothing_is_left_to_do_and_no_test_is_switched_off() {
    // Put together here, so that this file does not find itself.
    let never = ["todo", "unimplemented", "dbg"].map(|word| format!("{word}!(")).into_iter();
    let never: Vec<String> = never.chain(["ignore", "ignore ="].map(|word| format!("#[{word}"))).collect();
    let mut wrong = Vec::new();
    for (name, text) in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        for (number, line) in code(&text) {
            wrong.extend(never.iter().filter(|w| line.contains(*w)).map(|w| format!("{name}:{number} has {w}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_case_has_a_test_that_exists_or_says_when() {
    let text = fs::read_to_string(root().join("tests/cases.toml")).expect("the list of cases");
    let cases: toml::Table = text.parse().expect("TOML");
    let mut wrong = Vec::new();
    for (id, entry) in &cases {
        if !id.strip_prefix('B').is_some_and(|n| n.len() >= 2 && n.bytes().all(|b| b.is_ascii_digit())) {
            wrong.push(format!("{id} is no case id"));
        }
        let tests: Vec<&str> = match entry.get("test") {
            Some(toml::Value::String(one)) => vec![one],
            Some(toml::Value::Array(several)) => several.iter().filter_map(toml::Value::as_str).collect(),
            _ => Vec::new(),
        };
        let later = entry.get("later").and_then(toml::Value::as_str).unwrap_or_default();
        if tests.is_empty() == later.is_empty() {
            wrong.push(format!("{id} must have either `test` or `later`"));
        }
        wrong.extend(tests.iter().filter(|test| !exists(test)).map(|test| format!("{id}: there is no test {test}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(cases.len(), CASES, "the list of cases");
}

/// `tests/live/intake.rs::name`: the file has a test function of that name.
fn exists(test: &str) -> bool {
    let Some((file, name)) = test.rsplit_once("::") else { return false };
    let Ok(source) = fs::read_to_string(root().join(file)) else { return false };
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let heads = [format!("fn {name}("), format!("async fn {name}(")];
    lines.iter().enumerate().any(|(i, line)| {
        heads.iter().any(|head| line.starts_with(head.as_str()))
            && lines[..i].iter().rev().take_while(|l| !l.is_empty() && **l != "}").any(|l| is_test_attribute(l))
    })
}

fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[test]") || line.starts_with("#[tokio::test") || line.starts_with("#[live")
}

/// A case id in a test's name is in the list, and the list names that test's case.
#[test]
fn case_ids_in_test_names_are_in_the_list() {
    let text = fs::read_to_string(root().join("tests/cases.toml")).expect("the list of cases");
    let cases: toml::Table = text.parse().expect("TOML");
    let known: BTreeSet<String> = cases.keys().map(|id| id.to_lowercase()).collect();
    for (name, text) in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        for (number, line) in code(&text) {
            let Some((_, rest)) = line.split_once("fn b") else { continue };
            let function = format!("b{}", rest.split('(').next().unwrap_or_default());
            for part in function.split('_') {
                let is_id =
                    part.len() >= 3 && part.strip_prefix('b').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
                if !is_id {
                    break;
                }
                assert!(known.contains(part), "{name}:{number}: there is no case {part}");
            }
        }
    }
}

/// The README's table of metrics is the one that `/metrics` is made of.
#[test]
fn their_page_lists_every_metric_and_no_other() {
    let Ok(readme) = fs::read_to_string(root().join("docs/metrics.md")) else { return };
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
    let mentioned: BTreeSet<&str> = readme
        .lines()
        .filter(|line| line.starts_with("| `dwell_"))
        .filter_map(|line| line.strip_prefix("| `")?.split(|c| !is_name(c)).next())
        .collect();
    let real: BTreeSet<&str> = dwell::metrics::TABLE.iter().map(|metric| metric.name).collect();
    assert_eq!(mentioned, real, "docs/metrics.md and the metrics");
}
