//! `dwell schema` and `dwell export`: what dwell knows, for other programs.

use clap::{Args, Subcommand};

use super::{EXIT_CODES, Inputs, RunOverrides, say, whisper};
use crate::declare::{self, definitions};
use crate::exit::Code;

/// Arguments of `dwell export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// RabbitMQ definitions in JSON, to import into a vhost (`rabbitmqctl import_definitions`, or the management API).
    Definitions(DefinitionsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
struct DefinitionsArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    overrides: RunOverrides,
    /// Name this vhost in every object; without it the file is for a vhost's own import
    /// (`POST /api/definitions/<vhost>`).
    #[arg(long, value_name = "VHOST")]
    vhost: Option<String>,
}

/// Prints the JSON Schema of topology files.
pub(super) fn schema() -> Code {
    say(crate::topology::SCHEMA.trim_end());
    Code::Done
}

/// Prints definitions.
pub(super) fn export(args: &ExportArgs) -> Result<Code, Code> {
    let What::Definitions(args) = &args.what;
    let read = args.inputs.read(&args.overrides.flags());
    read.said.whisper();
    let (Some(settings), Some(topology)) = (read.settings, read.topology) else { return Err(Code::BadInput) };
    let wanted = declare::compile(&topology, &settings.amqp.prefix);
    let (json, left_out) = definitions(&wanted, args.vhost.as_deref());
    say(&format!("{json:#}"));
    if !left_out.is_empty() {
        whisper(&format!(
            "warning: {} bindings are not among the definitions, because RabbitMQ's JSON cannot say that a header need only be \
             there: `dwell apply` or `dwell run` must make them, before anybody publishes",
            left_out.len()
        ));
        for binding in left_out {
            whisper(&format!("  {binding}"));
        }
    }
    Ok(Code::Done)
}
