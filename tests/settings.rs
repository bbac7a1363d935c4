//! Settings in, problems or the valid settings out: every fixture with its answer as a snapshot, and the layers.
//!
//! A fixture under `invalid/` is named after the code that it is about. To see and accept what changed:
//! `INSTA_UPDATE=always cargo test --test settings`, then read the diff.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dwell::config::{self, Durability, Loaded, LogFormat, Override, Settings, load};
use dwell::duration::Millis;
use dwell::problem::{self, Code, Room, render, to_json};
use proptest::prelude::*;

const INVALID: &str = "tests/fixtures/settings/invalid";
/// The password of all fixtures: no answer may hold it.
const SECRET: &str = "hunter2";
const NO_VARIABLES: [(&str, &str); 0] = [];

#[test]
fn every_invalid_file_says_what_is_wrong_and_where() {
    for fixture in fixtures() {
        let loaded = from_file(&fixture);
        let name = fixture.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(
            loaded.problems.iter().any(|problem| name.starts_with(problem.code.as_str())),
            "{name}: none of its problems has the code of its name: {:?}",
            loaded.problems
        );
        assert_eq!(loaded.settings.is_some(), !problem::any_error(&loaded.problems), "{name}");
        snapshot(&name, &render(&loaded.problems, &loaded.sources, false));
    }
}

#[test]
fn no_answer_holds_a_secret() {
    for fixture in fixtures() {
        let loaded = from_file(&fixture);
        for text in [render(&loaded.problems, &loaded.sources, false), said(&loaded), format!("{loaded:?}")] {
            assert!(!text.contains(SECRET), "{}: {text}", fixture.display());
        }
    }
}

#[test]
fn every_problem_says_what_to_do() {
    for fixture in fixtures() {
        for problem in from_file(&fixture).problems {
            assert!(!problem.help.is_empty(), "{}: {}", fixture.display(), problem.what);
            assert!(!problem.what.ends_with('.'), "{}: {}", fixture.display(), problem.what);
        }
    }
}

#[test]
fn every_code_has_a_fixture() {
    let mut seen: BTreeSet<Code> = fixtures().iter().flat_map(|f| from_file(f).problems).map(|p| p.code).collect();
    // These are about no file's text; the tests below have them.
    seen.extend([Code::Unreadable, Code::UnknownVariable]);
    let missing: Vec<&str> = Code::ALL
        .iter()
        .filter(|code| code.room() != Room::Topology && !seen.contains(code))
        .map(|code| code.as_str())
        .collect();
    assert!(missing.is_empty(), "no fixture for {missing:?}");
}

#[test]
fn nothing_given_is_a_local_rabbitmq_without_a_store() {
    let settings = valid(from_environment(NO_VARIABLES));
    snapshot("defaults", &settings.to_string());
    assert!(settings.redis.is_none());
    assert!(settings.management.is_none());
    assert_eq!(settings.amqp.urls[0].expose(), "amqp://guest:guest@127.0.0.1:5672/%2f");
}

#[test]
fn the_example_has_every_setting_and_its_default() {
    let text = std::fs::read_to_string("config/dwell.example.toml").expect("readable");
    assert_eq!(valid(from_text(&text)), valid(from_environment(NO_VARIABLES)), "as shipped it changes nothing");

    let uncommented: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("# ") && *line != "#" && !line.starts_with("#urls"))
        .map(|line| line.strip_prefix('#').unwrap_or(line))
        .collect();
    let loaded = from_text(&uncommented.join("\n"));
    // The management API's user stands in its address, so that nothing else is left to say.
    assert_eq!(said(&loaded), "[]");
    let settings = valid(loaded);
    let defaults = valid(from_environment([("DWELL_REDIS__URL", "redis://127.0.0.1:6379/0")]));
    assert_eq!(Settings { management: None, ..settings }, defaults);

    for key in config::keys() {
        let name = key.rsplit('.').next().expect("a name");
        assert!(text.lines().any(|line| line.contains(&format!("{name} ="))), "{key} is not in the example");
    }
}

#[test]
fn the_stronger_layer_wins() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("dwell.toml");
    std::fs::write(&path, "[amqp]\nprefetch = 10\nprefix = \"file\"\n[pump]\nbatch = 10\n[log]\nformat = \"json\"\n")
        .expect("written");
    let variables = [("DWELL_AMQP__PREFETCH", "20"), ("DWELL_PUMP__BATCH", "20"), ("UNRELATED", "1")];
    let flags = [Override { key: "pump.batch", value: "30".to_owned(), flag: "--batch" }];
    let settings = valid(load(Some(&path), variables, &flags));
    let seen = (settings.amqp.prefix.as_str(), settings.amqp.prefetch, settings.pump.batch, settings.log.format);
    assert_eq!(seen, ("file", 20, 30, LogFormat::Json));
}

#[test]
fn one_address_may_replace_several_and_the_other_way_round() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("dwell.toml");
    std::fs::write(&path, "[amqp]\nurls = [\"amqp://a\", \"amqp://b\"]\n").expect("written");
    let hosts = |variables: &[(&str, &str)]| {
        let settings = valid(load(Some(&path), variables.iter().copied(), &[]));
        settings.amqp.urls.iter().map(|url| url.expose().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(hosts(&[]), ["amqp://a", "amqp://b"]);
    assert_eq!(hosts(&[("DWELL_AMQP__URL", "amqp://c")]), ["amqp://c"]);
    std::fs::write(&path, "[amqp]\nurl = \"amqp://a\"\n").expect("written");
    assert_eq!(hosts(&[("DWELL_AMQP__URLS", "amqp://b, amqp://c")]), ["amqp://b", "amqp://c"]);
}

#[test]
fn what_looks_like_a_number_stays_a_password() {
    for password in ["12345", "007", "true", "1.50", "[abc]", " a b ", "p#$@/:%+ é", "\"quoted\"", "{a=1}"] {
        let settings = valid(from_environment([
            ("DWELL_AMQP__URL", "amqp://svc@rabbit:5672/%2f"),
            ("DWELL_AMQP__PASSWORD", password),
            ("DWELL_REDIS__URL", "redis://redis:6379"),
            ("DWELL_REDIS__PASSWORD", password),
        ]));
        for url in [settings.amqp.urls[0].expose(), settings.redis.expect("a store").url.expose()] {
            let url = url::Url::parse(url).expect("an address");
            let encoded = url.password().expect("a password");
            assert_eq!(percent_encoding::percent_decode_str(encoded).decode_utf8().expect("UTF-8"), password);
        }
    }
}

#[test]
fn a_password_of_its_own_replaces_the_default_guest() {
    let settings = valid(from_environment([("DWELL_AMQP__USERNAME", "svc"), ("DWELL_AMQP__PASSWORD", "x")]));
    assert_eq!(settings.amqp.urls[0].expose(), "amqp://svc:x@127.0.0.1:5672/%2f");
    // Half of a pair is never completed by `guest`.
    assert_eq!(codes(&from_environment([("DWELL_AMQP__USERNAME", "svc")])), [Code::BadUrl]);
    assert_eq!(codes(&from_environment([("DWELL_AMQP__PASSWORD", "x")])), [Code::BadUrl]);
}

#[test]
fn a_password_in_two_places_is_refused() {
    let loaded = from_environment([("DWELL_AMQP__URL", "amqp://u:hunter2@h/%2f"), ("DWELL_AMQP__PASSWORD", "hunter2")]);
    assert_eq!(codes(&loaded), [Code::BadUrl]);
    assert!(!said(&loaded).contains(SECRET));
}

#[test]
fn a_mounted_secret_is_read_without_its_line_end() {
    let dir = tempfile::tempdir().expect("a folder");
    for (written, read) in
        [("s3cret\n", "s3cret"), ("s3cret\r\n", "s3cret"), ("s3cret", "s3cret"), ("s3cret\n\n", "s3cret\n")]
    {
        let path = dir.path().join("token");
        std::fs::write(&path, written).expect("written");
        let loaded = from_environment(
            [("DWELL_HTTP__TOKEN_FILE".into(), path.clone().into_os_string())] as [(std::ffi::OsString, _); 1]
        );
        let token = loaded.settings.and_then(|settings| settings.http.token);
        // A line end within is no HTTP header.
        let expected = (!read.contains('\n')).then_some(read);
        assert_eq!(token.as_ref().map(config::Secret::expose), expected, "{written:?}");
    }
}

#[test]
fn variables_in_trouble_are_named_and_never_shown() {
    let dir = tempfile::tempdir().expect("a folder");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "\n").expect("written");
    let empty = empty.to_str().expect("UTF-8").to_owned();
    let loaded = from_environment([
        ("DWELL_AMQP__URL", "amqp://u:hunter2@h/"),
        ("DWELL_AMQP__PREFETCH", "many"),
        ("DWELL_HTTP__TOKEN", "hunter2"),
        ("DWELL_HTTP__TOKEN_FILE", "/no/such/file"),
        ("DWELL_REDIS__URL_FILE", empty.as_str()),
        ("DWELL_PUMP__LEASE", "30"),
    ]);
    let text = render(&loaded.problems, &loaded.sources, false).replace(&empty, "/run/secrets/empty");
    assert!(!text.contains(SECRET));
    snapshot("variables-in-trouble", &text);
}

#[test]
fn a_value_and_a_file_for_the_same_setting_exclude_each_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("token");
    std::fs::write(&path, "hunter2").expect("written");
    let path = path.to_str().expect("UTF-8");
    let loaded = from_environment([("DWELL_HTTP__TOKEN", "hunter2"), ("DWELL_HTTP__TOKEN_FILE", path)]);
    assert_eq!(codes(&loaded), [Code::SettingConflict]);
}

#[test]
fn a_foreign_variable_is_a_warning() {
    let loaded = from_environment([
        ("DWELL_SERVICE_HOST", "10.0.0.1"),
        ("DWELL_PORT", "tcp://10.0.0.1:8672"),
        ("DWELL_PORT_8672_TCP_ADDR", "10.0.0.1"),
        ("DWELL_REDIS_SERVICE_PORT_TLS", "6379"),
        ("DWELL_AMQP_URL", "amqp://u:hunter2@h/%2f"),
        ("DWELL_AMPQ__URL", "amqp://u:hunter2@h/%2f"),
        ("DWELL_SECRET", "hunter2"),
        ("DWELL_TEST_AMQP_URL", "ignored"),
        ("DWELL_CRASH_AT", "ignored"),
    ]);
    assert!(loaded.settings.is_some());
    let text = render(&loaded.problems, &loaded.sources, false);
    assert!(!text.contains(SECRET));
    snapshot("unknown-variable", &text);
}

#[test]
fn a_named_file_must_be_there_and_the_default_need_not() {
    let loaded = load(Some(Path::new("no/such/dwell.toml")), NO_VARIABLES, &[]);
    assert_eq!(codes(&loaded), [Code::Unreadable]);
    assert!(loaded.settings.is_none());
    assert!(!Path::new(config::DEFAULT_FILE).exists(), "this test needs its absence");
    assert_eq!(codes(&load(None, NO_VARIABLES, &[])), []);
}

#[test]
fn durability_is_a_word_or_a_number_of_replicas() {
    let durability = |variables: &[(&str, &str)]| {
        let all = [("DWELL_REDIS__URL", "redis://h")].into_iter().chain(variables.iter().copied());
        valid(load(None, all, &[])).redis.expect("a store").durability
    };
    assert_eq!(durability(&[]), Durability::Fsync);
    assert_eq!(durability(&[("DWELL_REDIS__DURABILITY", "memory")]), Durability::Memory);
    assert_eq!(durability(&[("DWELL_REDIS__DURABILITY__REPLICAS", "2")]), Durability::Replicas(2));
    let text = "[redis]\nurl = \"redis://h\"\ndurability = { replicas = 1 }\n";
    assert_eq!(valid(from_text(text)).redis.expect("a store").durability, Durability::Replicas(1));
}

#[test]
fn short_times_that_fit_each_other_are_fine() {
    let settings = valid(from_environment([
        ("DWELL_DELAY__BROKER_LIMIT", "2s"),
        ("DWELL_PUMP__LEASE", "1s"),
        ("DWELL_RUN__CONFIRM_TIMEOUT", "1s"),
    ]));
    assert_eq!(settings.delay.broker_limit, Millis::seconds(2));
}

#[test]
fn a_log_level_may_be_a_filter() {
    for level in ["warn", "INFO", "info,dwell::pump=debug", "dwell=trace,lapin=off", "info,dwell[span]=debug"] {
        assert_eq!(valid(from_environment([("DWELL_LOG__LEVEL", level)])).log.level, level);
    }
    for level in ["", "loud", "dwell=loud", "inf,dwell=debug", "=", "[["] {
        assert_eq!(codes(&from_environment([("DWELL_LOG__LEVEL", level)])), [Code::BadFilter], "{level}");
    }
}

#[test]
fn what_is_printed_of_the_settings_has_no_secret() {
    let settings = valid(from_environment([
        ("DWELL_AMQP__URL", "amqp://user:hunter2@h/%2f"),
        ("DWELL_MANAGEMENT__URL", "http://user:hunter2@h:15672"),
        ("DWELL_REDIS__URL", "unix:///run/redis.sock?pass=hunter2"),
        ("DWELL_HTTP__TOKEN", "hunter2"),
    ]));
    let shown = format!("{settings} {settings:?}");
    assert!(!shown.contains(SECRET), "{shown}");
    snapshot("printed", &settings.to_string());
}

proptest! {
    #[test]
    fn no_file_panics_or_shows_its_passwords(
        text in "(\\[|\\]|\\{|\\}|=|\"|'|,|\\.|#|\n|\n| |amqp|redis|tls|url|urls|password|hunter2|\"hunter2\"|\"amqp://u:hunter2@h\"|7|1979-05-27|\u{e9}){0,60}"
    ) {
        let loaded = from_text(&text);
        let shown = render(&loaded.problems, &loaded.sources, false);
        let _ = to_json(&loaded.problems, &loaded.sources);
        // A bare `hunter2` may be the name of a key, which is no secret.
        let values = text.replace("\"hunter2\"", "").replace("u:hunter2@", "");
        prop_assert!(values.contains(SECRET) || !shown.contains(SECRET), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_variable_panics(value in "\\PC*") {
        for key in config::keys() {
            let loaded = from_environment([(config::variable(key), value.clone())]);
            let _ = render(&loaded.problems, &loaded.sources, false);
        }
    }
}

fn from_file(path: &Path) -> Loaded {
    load(Some(path), NO_VARIABLES, &[])
}

fn from_text(text: &str) -> Loaded {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("dwell.toml");
    std::fs::write(&path, text).expect("written");
    from_file(&path)
}

fn from_environment<K: Into<std::ffi::OsString>, V: Into<std::ffi::OsString>>(
    variables: impl IntoIterator<Item = (K, V)>,
) -> Loaded {
    load(None, variables, &[])
}

fn valid(loaded: Loaded) -> Settings {
    let text = render(&loaded.problems, &loaded.sources, false);
    loaded.settings.unwrap_or_else(|| panic!("{text}"))
}

fn codes(loaded: &Loaded) -> Vec<Code> {
    loaded.problems.iter().map(|problem| problem.code).collect()
}

fn said(loaded: &Loaded) -> String {
    to_json(&loaded.problems, &loaded.sources).to_string()
}

fn fixtures() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(INVALID).expect("the fixtures").map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("fixtures/settings/snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
