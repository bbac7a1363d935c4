//! `dwell doctor`, and `dwell check --broker`: the live system, looked at for what would break a promise.

use clap::Args;

use super::{EXIT_CODES, Inputs, RunOverrides, begin_log, complain, on_runtime, say};
use crate::config::Settings;
use crate::doctor::{self, Error};
use crate::exit::Code;
use crate::topology::Topology;

/// Arguments of `dwell doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct DoctorArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    overrides: RunOverrides,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
}

/// Looks, and says what it found.
pub(super) fn doctor(args: &DoctorArgs) -> Result<Code, Code> {
    let read = args.inputs.read(&args.overrides.flags());
    read.said.whisper();
    let (Some(mut settings), Some(topology)) = (read.settings, read.topology) else { return Err(Code::BadInput) };
    if args.overrides.log.log_level.is_none() {
        "error".clone_into(&mut settings.log.level);
    }
    begin_log(&settings)?;
    let findings = look(&settings, topology)?;
    if args.json {
        say(&doctor::to_json(&findings).to_string());
    } else {
        say(&doctor::render(&findings));
    }
    Ok(verdict(&findings))
}

/// The findings, or why there are none.
pub(super) fn look(settings: &Settings, topology: Topology) -> Result<Vec<doctor::Finding>, Code> {
    match on_runtime(doctor::gather(settings, topology))? {
        Ok(facts) => Ok(doctor::examine(&facts)),
        Err(Error::Broker(error)) => {
            complain(&error.to_string(), "", "start the broker, or correct amqp.url (--amqp-url)");
            Err(Code::Unavailable)
        }
        Err(Error::Store(error)) => {
            complain(&error.to_string(), "", "correct the [redis] section");
            Err(Code::BadInput)
        }
    }
}

/// 1 where a promise would break.
pub(super) fn verdict(findings: &[doctor::Finding]) -> Code {
    if findings.iter().any(|finding| finding.breaks) { Code::Failed } else { Code::Done }
}
