//! How the process ends: one type for all exit codes, so that scripts can rely on them.

use std::process::{ExitCode, Termination};

/// Every exit code of dwell. The numbers are part of the interface; 64, 65 and 69 are those of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Done, or nothing to do.
    Done = 0,
    /// Failed, or stopped half way.
    Failed = 1,
    /// `plan` found that something would change.
    Changes = 3,
    /// Refused: what exists conflicts with what was asked for.
    Refused = 4,
    /// The command line is wrong.
    Usage = 64,
    /// A file or a setting is wrong.
    BadInput = 65,
    /// Broker or store are out of reach, or do not allow it.
    Unavailable = 69,
}

// === impl Code ===

impl Code {
    /// The number that the shell sees.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code.number())
    }
}

/// Lets `main` return a [`Code`].
impl Termination for Code {
    fn report(self) -> ExitCode {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_manual() {
        let codes =
            [Code::Done, Code::Failed, Code::Changes, Code::Refused, Code::Usage, Code::BadInput, Code::Unavailable];
        assert_eq!(codes.map(Code::number), [0, 1, 3, 4, 64, 65, 69]);
    }
}
