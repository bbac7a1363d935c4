//! The Lua scripts, one a verb, and how to call them.

use std::sync::LazyLock;

use redis::{Cmd, Script};

/// One script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Park,
    Claim,
    Settle,
    Renew,
    Release,
    Reap,
    Cancel,
    Reschedule,
}

/// In the order of [`Verb`].
const TEXTS: [&str; 8] = [
    include_str!("scripts/park.lua"),
    include_str!("scripts/claim.lua"),
    include_str!("scripts/settle.lua"),
    include_str!("scripts/renew.lua"),
    include_str!("scripts/release.lua"),
    include_str!("scripts/reap.lua"),
    include_str!("scripts/cancel.lua"),
    include_str!("scripts/reschedule.lua"),
];

/// SHA-1 of each text: the name under which Redis keeps it.
static HASHES: LazyLock<[String; 8]> = LazyLock::new(|| TEXTS.map(|text| Script::new(text).get_hash().to_owned()));

// === impl Verb ===

impl Verb {
    /// As errors name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Park => "park",
            Verb::Claim => "claim",
            Verb::Settle => "settle",
            Verb::Renew => "renew",
            Verb::Release => "release",
            Verb::Reap => "reap",
            Verb::Cancel => "cancel",
            Verb::Reschedule => "reschedule",
        }
    }

    /// A call by hash with these keys; the arguments follow by [`Cmd::arg`]. Every key that the script touches is
    /// among them, and nothing else is.
    pub(super) fn call(self, keys: &[String]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&HASHES[self as usize]).arg(keys.len()).arg(keys);
        command
    }
}

/// Commands that make all scripts known to a server. Loaded scripts, unlike evaluated ones, are not evicted.
pub(super) fn load_all() -> impl Iterator<Item = Cmd> {
    TEXTS.into_iter().map(|text| {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(text);
        command
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_says_what_it_takes_returns_and_survives() {
        for text in TEXTS {
            let head: String = text.lines().take_while(|line| line.starts_with("--")).collect();
            for word in ["KEYS[1]", "ARGV[1", "Returns", "crash", "maxmemory"] {
                // park is the one that may fail for want of memory, and says that instead.
                let said = head.contains(word) || (word == "maxmemory" && head.contains("want of memory"));
                assert!(said, "{word} is missing in: {head}");
            }
        }
    }

    #[test]
    fn each_verb_has_its_own_script() {
        for verb in [
            Verb::Park,
            Verb::Claim,
            Verb::Settle,
            Verb::Renew,
            Verb::Release,
            Verb::Reap,
            Verb::Cancel,
            Verb::Reschedule,
        ] {
            assert!(TEXTS[verb as usize].starts_with(&format!("-- {}: ", verb.name())), "{verb:?}");
        }
    }
}
