//! The thin end of the library: arguments in, exit code out.

use dwell::cli;
use dwell::exit::Code;

fn main() -> Code {
    // Settings, logs and the run itself depend on the command: see `cli::carry_out`.
    match cli::parse(std::env::args_os()) {
        Ok(command) => cli::carry_out(command),
        Err(code) => code,
    }
}
