//! What the pages say is what the code does: tables, names, numbers and links are compared with their sources.

use std::collections::BTreeSet;
use std::path::Path;

use dwell::exit::Code;
use dwell::metrics::TABLE;

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .unwrap_or_else(|e| panic!("{name} cannot be read: {e}"))
}

/// The rows of a table whose head begins with these cells, each row as its cells.
fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(head));
    assert!(lines.next().is_some(), "there is no table that begins with {head}");
    lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

#[test]
fn the_python_example_of_the_readme_is_the_file_that_is_run() {
    let example = page("examples/publish.py");
    assert!(
        page("README.md").contains(&format!("```python\n{example}```")),
        "README.md and examples/publish.py differ"
    );
}

#[test]
fn every_setting_is_on_its_page_with_its_variable_and_no_other_is() {
    let shown: Vec<(String, String)> = table(&page("docs/settings.md"), "| key | default | unit | variable |")
        .into_iter()
        .map(|row| (row[0].clone(), row[3].clone()))
        .collect();
    let keys: Vec<(String, String)> =
        dwell::config::keys().iter().map(|key| (code(key), code(&dwell::config::variable(key)))).collect();
    assert_eq!(shown, keys);
}

#[test]
fn defaults_on_their_page_are_the_defaults() {
    let none: [(&str, &str); 0] = [];
    // A file without a setting, so that none of the working directory is read.
    let empty = tempfile::NamedTempFile::new().expect("a file of its own");
    // Redis is absent unless it has an address, so it is given one: the page shows what the other keys then are.
    let flags = [dwell::config::Override { key: "redis.url", value: "redis://h/0".into(), flag: "--redis-url" }];
    let settings =
        dwell::config::load(Some(empty.path()), none, &flags).settings.expect("defaults are valid").to_string();
    let said =
        |key: &str| settings.split(' ').find_map(|pair| pair.strip_prefix(&format!("{key}="))).map(ToOwned::to_owned);
    let mut compared = 0;
    for row in table(&page("docs/settings.md"), "| key | default | unit | variable |") {
        let (key, default) = (row[0].trim_matches('`'), row[1].trim_matches('`'));
        if let Some(value) = said(key).filter(|_| !["amqp.urls", "redis.url", "http.token"].contains(&key)) {
            assert_eq!(default, value, "{key}");
            compared += 1;
        }
    }
    assert!(compared >= 14, "{compared} defaults were compared: {settings}");
}

#[test]
fn every_metric_is_on_its_page_as_the_code_has_it() {
    let shown = table(&page("docs/metrics.md"), "| metric | kind | labels | help |");
    let defined: Vec<Vec<String>> = TABLE
        .iter()
        .map(|metric| {
            let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
            vec![code(metric.name), metric.kind.as_str().to_owned(), labels.join(", "), metric.help.to_owned()]
        })
        .collect();
    assert_eq!(shown, defined);
}

#[test]
fn exit_codes_in_the_readme_are_those_of_the_code() {
    let shown: Vec<String> =
        table(&page("README.md"), "| exit code | meaning |").into_iter().map(|row| row[0].clone()).collect();
    let codes =
        [Code::Done, Code::Failed, Code::Changes, Code::Refused, Code::Usage, Code::BadInput, Code::Unavailable];
    assert_eq!(shown, codes.map(|code| code.number().to_string()));
}

#[test]
fn headers_of_dwells_own_in_the_readme_exist_and_readiness_reasons_are_all_there() {
    let readme = page("README.md");
    let names = page("src/names.rs");
    for row in table(&readme, "| header | on | meaning |") {
        assert!(names.contains(&format!("\"{}\"", row[0].trim_matches('`'))), "{} is no header of dwell's", row[0]);
    }
    let health = page("src/admin/health.rs");
    let (_, reasons) = health.split_once("impl Reason {").expect("reasons have words");
    let reasons: Vec<&str> = reasons.lines().take_while(|l| !l.starts_with('}')).filter_map(quoted).collect();
    assert!(reasons.len() >= 6, "{reasons:?}");
    for reason in reasons {
        assert!(readme.contains(&code(reason)), "{reason} is not in README.md");
    }
}

/// The text in the first pair of quotes of a line.
fn quoted(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}

#[test]
fn every_module_has_its_line_in_the_map_and_in_the_architecture() {
    let lib = page("src/lib.rs");
    let modules: BTreeSet<&str> =
        lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(modules.len() > 20);
    let architecture = page("ARCHITECTURE.md");
    for module in modules {
        assert!(lib.contains(&format!("//! - [`{module}`]")), "{module} is not on the map in src/lib.rs");
        let rows = [format!("| `{module}.rs`"), format!("| `{module}/`"), format!("| `{module}.rs`, `{module}/`")];
        assert!(rows.iter().any(|row| architecture.contains(row)), "{module} is not in ARCHITECTURE.md");
    }
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "topology/README.md", "docs/metrics.md", "docs/settings.md"]
    {
        let text = page(name);
        let folder = root.join(name).parent().expect("a file is in a folder").to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("https://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            assert!(path.is_empty() || folder.join(path).exists(), "{name} links to {target}, which is not there");
            if path.is_empty() {
                let headings: BTreeSet<String> =
                    text.lines().filter(|line| line.starts_with('#')).map(as_anchor).collect();
                assert!(headings.contains(anchor), "{name} links to #{anchor}: {headings:?}");
            }
        }
    }
}

/// `## Durability in Redis` → `durability-in-redis`
fn as_anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn pages_are_short_enough_to_be_read_and_narrow_enough_to_be_compared() {
    assert!(page("README.md").lines().count() <= 400);
    assert!(page("ARCHITECTURE.md").lines().count() <= 300);
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        for line in page(name).lines().filter(|line| !line.starts_with('|')) {
            assert!(line.chars().count() <= 125, "{name}: {line}");
        }
    }
}
