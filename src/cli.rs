//! The commands: arguments, help, output for people and programs, exit codes.
//!
//! What is asked for goes to standard output, everything else to standard error. An error says what, where, why and
//! what to do.

mod doctor;
mod export;
mod init;
mod plan;
mod send;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value, json};

use crate::app;
use crate::broker::Outcome;
use crate::broker::publisher::publish_one;
use crate::config::{self, LogFormat, Override, Settings};
use crate::duration::Millis;
use crate::exit::Code;
use crate::log;
use crate::problem::{self, Problem, Sources};
use crate::topology::{self, Limits, Topology};

pub use send::{HeaderValue, Properties, SendRequest};

/// Delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
#[derive(Parser, Debug)]
#[command(name = "dwell", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What dwell is asked to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the daemon.
    Run(RunArgs),
    /// Read settings and topology files, and say everything that is wrong with them.
    Check(CheckArgs),
    /// Compare the topology with what RabbitMQ has, and say what `apply` would do.
    Plan(plan::PlanArgs),
    /// Do what `plan` says.
    Apply(plan::PlanArgs),
    /// Look at RabbitMQ and Redis for what would break a promise.
    Doctor(doctor::DoctorArgs),
    /// Write a commented topology and settings pair to begin with.
    Init(init::InitArgs),
    /// Print the JSON Schema of topology files, for editors.
    Schema,
    /// Print the topology for other programs.
    Export(export::ExportArgs),
    /// Publish one message and wait for the broker's confirm.
    Send(SendArgs),
}

/// Arguments of `dwell run`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    overrides: RunOverrides,
    /// Declare nothing; only look whether all is there (run.topology = "verify").
    #[arg(long)]
    verify_only: bool,
}

/// Arguments of `dwell check`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct CheckArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    overrides: RunOverrides,
    /// Also look at RabbitMQ and Redis, as `dwell doctor` does.
    #[arg(long)]
    broker: bool,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `dwell send`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct SendArgs {
    #[command(flatten)]
    message: send::MessageArgs,
    /// The body as text, or `-` to read it from standard input.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    body: Option<String>,
    /// Read the body from a file, byte for byte.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Settings file; `config/dwell.toml` where there is one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The broker, instead of the settings' (amqp.url).
    #[arg(long, visible_alias = "amqp-url", value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    log: LogOverrides,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Inputs {
    /// Settings file; `config/dwell.toml` where there is one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of topology files.
    #[arg(long, value_name = "DIR", default_value = "topology")]
    topology: PathBuf,
}

/// Flags that win over the settings file and the environment.
#[derive(Args, Debug)]
struct RunOverrides {
    /// The broker (amqp.url).
    #[arg(long, value_name = "URL")]
    amqp_url: Option<String>,
    /// The management API (management.url).
    #[arg(long, value_name = "URL")]
    management_url: Option<String>,
    /// Redis (redis.url).
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Where /healthz, /readyz and /metrics answer (http.listen).
    #[arg(long, value_name = "ADDRESS:PORT")]
    http_listen: Option<String>,
    #[command(flatten)]
    log: LogOverrides,
}

#[derive(Args, Debug)]
struct LogOverrides {
    /// error, warn, info, debug, trace, or a filter like `info,dwell::pump=debug` (log.level).
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// text or json (log.format).
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

const EXIT_CODES: &str = "Exit codes: 0 done or nothing to do, 1 failed or stopped half way, 3 `plan` has changes, 4 refused, \
                          64 usage, 65 bad file or setting, 69 broker or store out of reach or not allowed.";

/// RabbitMQ's own limit before 4.0, and more than any later one takes without being told to.
const MAX_BODY: u64 = 128 * 1024 * 1024;

/// Understands the command line. `Err`: help, version or what is wrong was printed, and the process ends with that.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Code> {
    match Cli::try_parse_from(args) {
        Ok(cli) => Ok(cli.command),
        Err(error) => {
            // Where even the message cannot be printed, the exit code still tells.
            let _ = error.print();
            Err(if error.use_stderr() { Code::Usage } else { Code::Done })
        }
    }
}

/// Does what was asked, from settings to exit code.
pub fn carry_out(command: Command) -> Code {
    let done = match command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Apply(args) => plan::apply(&args),
        Command::Init(args) => init::init(&args),
        Command::Schema => Ok(export::schema()),
        Command::Export(args) => export::export(&args),
        Command::Send(args) => send(&args),
    };
    done.unwrap_or_else(|code| code)
}

// === run ===

fn run(args: &RunArgs) -> Result<Code, Code> {
    let mut flags = args.overrides.flags();
    flags.extend(args.verify_only.then(|| Override {
        key: "run.topology",
        value: "verify".to_owned(),
        flag: "--verify-only",
    }));
    let read = args.inputs.read(&flags);
    let (Some(settings), Some(topology)) = (read.settings, read.topology) else {
        read.said.whisper();
        return Err(Code::BadInput);
    };
    begin_log(&settings)?;
    read.said.warn(settings.log.format);
    on_runtime(app::run(settings, topology))
}

// === check ===

fn check(args: &CheckArgs) -> Result<Code, Code> {
    let read = args.inputs.read(&args.overrides.flags());
    let topology = read.topology.as_ref().filter(|_| read.settings.is_some());
    if !args.json {
        read.said.whisper();
        if let Some(topology) = topology {
            say(&summary(topology));
        }
    }
    let found = match (&read.settings, topology) {
        (Some(settings), Some(topology)) if args.broker => Some(doctor::look(settings, topology.clone())?),
        _ => None,
    };
    if args.json {
        let bridges: Vec<Value> = topology.iter().flat_map(|topology| &topology.bridges).map(bridge_json).collect();
        let mut answer = json!({ "ok": topology.is_some(), "problems": read.said.to_json(), "bridges": bridges });
        if let Some(found) = &found {
            answer["broker"] = crate::doctor::to_json(found);
        }
        say(&answer.to_string());
    } else if let Some(found) = &found {
        say(&crate::doctor::render(found));
    }
    Ok(match (topology, &found) {
        (None, _) => Code::BadInput,
        (Some(_), Some(found)) => doctor::verdict(found),
        (Some(_), None) => Code::Done,
    })
}

/// `2 bridges, 5 tiers, 3 work queues: all well`, then a line for each bridge.
fn summary(topology: &Topology) -> String {
    let bridges = &topology.bridges;
    let mut text = format!(
        "{}, {}, {}: all well",
        counted(bridges.len(), "bridge"),
        counted(bridges.iter().map(|bridge| bridge.tiers.len()).sum(), "tier"),
        counted(bridges.iter().map(|bridge| bridge.queues.len()).sum(), "work queue"),
    );
    for bridge in bridges {
        let tiers = match bridge.tiers.as_slice() {
            [] => "no tiers".to_owned(),
            tiers => format!("tiers {}", tiers.iter().map(Millis::to_string).collect::<Vec<_>>().join(" ")),
        };
        let queues = match bridge.queues.as_slice() {
            [] => "no work queue".to_owned(),
            queues => queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>().join(" "),
        };
        let (name, from, to) = (&bridge.name, &bridge.exchange, &bridge.work_exchange.name);
        let _ = write!(text, "\n  {name}: {from} → {tiers} → {to} → {queues}");
    }
    text
}

fn bridge_json(bridge: &topology::Bridge) -> Value {
    json!({
        "name": bridge.name,
        "exchange": bridge.exchange,
        "work_exchange": bridge.work_exchange.name,
        "tiers": bridge.tiers.iter().map(Millis::to_string).collect::<Vec<_>>(),
        "queues": bridge.queues.iter().map(|queue| &queue.name).collect::<Vec<_>>(),
    })
}

// === send ===

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum NotSent {
    /// No connection, or not with these credentials, or not allowed to publish there.
    #[error("the broker is out of reach or does not allow it: {0}")]
    Unavailable(String),
    /// The broker refused it: mostly, there is no such exchange.
    #[error("the broker refused the message: {0}")]
    Refused(String),
    /// Confirmed, but no queue wanted it: it is gone.
    #[error("no queue wanted the message, and it was not kept")]
    Returned,
    /// `basic.nack`.
    #[error("the broker could not keep the message")]
    Nacked,
    /// No confirm came.
    #[error("no confirm came, so whether the broker has the message is not known: {0}")]
    Unknown(String),
}

fn send(args: &SendArgs) -> Result<Code, Code> {
    // Flags are understood before anything is read: whoever pipes a large body in learns of a typo first.
    let mut request = send::understand(&args.message, Vec::new()).map_err(|faults| {
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        whisper(&texts.join("\n\n"));
        Code::Usage
    })?;
    let config::Loaded { settings, problems, sources, .. } =
        config::load(args.config.as_deref(), std::env::vars_os(), &args.flags());
    let said = Said(vec![(problems, sources)]);
    let Some(mut settings) = settings else {
        said.whisper();
        return Err(Code::BadInput);
    };
    // The answer says how it went; the daemon's level would add the connection's diary to it.
    if args.log.log_level.is_none() {
        "error".clone_into(&mut settings.log.level);
    }
    begin_log(&settings)?;
    said.whisper();
    request.body = args.body()?;
    let sent = on_runtime(publish(settings, request.clone()))?;
    match (&sent, args.json) {
        (Ok(()), false) => say(&confirmed(&request)),
        (Err(error), false) => complain(&error.to_string(), "", error.help()),
        (sent, true) => {
            let mut answer = request_json(&request);
            answer.insert("confirmed".to_owned(), sent.is_ok().into());
            if let Err(error) = sent {
                answer.insert("error".to_owned(), error.to_string().into());
            }
            say(&Value::Object(answer).to_string());
        }
    }
    Ok(sent.map_or_else(|error| error.code(), |()| Code::Done))
}

/// Publishes one message, mandatory, and waits for its confirm for at most `run.confirm_timeout`.
async fn publish(settings: Settings, request: SendRequest) -> Result<(), NotSent> {
    let message = request.outgoing().map_err(|e| NotSent::Refused(e.to_string()))?;
    let deadline = settings.run.confirm_timeout.to_std();
    match publish_one(&settings.amqp, message, deadline).await {
        Ok(Outcome::Confirmed) => Ok(()),
        Ok(Outcome::Returned { .. }) => Err(NotSent::Returned),
        Ok(Outcome::Nacked) => Err(NotSent::Nacked),
        Ok(Outcome::Refused { code: 403, text }) => Err(NotSent::Unavailable(text)),
        Ok(Outcome::Refused { text, .. }) => Err(NotSent::Refused(text)),
        Ok(Outcome::NotBegun { why }) => Err(NotSent::Unavailable(why)),
        Ok(Outcome::Unknown { why }) => Err(NotSent::Unknown(why)),
        Err(error) => Err(NotSent::Unavailable(error.to_string())),
    }
}

/// `confirmed: 12 bytes to orders.delay with routing key order.close, x-delay 604800000`.
fn confirmed(request: &SendRequest) -> String {
    let exchange = if request.exchange.is_empty() { "the default exchange" } else { &request.exchange };
    let mut text = format!(
        "confirmed: {} to {exchange} with routing key `{}`",
        counted(request.body.len(), "byte"),
        request.routing_key
    );
    for (name, value) in &request.headers {
        let _ = write!(text, ", {name} {}", Value::from(value));
    }
    text
}

fn request_json(request: &SendRequest) -> Map<String, Value> {
    let headers: Map<String, Value> =
        request.headers.iter().map(|(name, value)| (name.clone(), Value::from(value))).collect();
    Map::from_iter([
        ("exchange".to_owned(), request.exchange.as_str().into()),
        ("routing_key".to_owned(), request.routing_key.as_str().into()),
        ("headers".to_owned(), headers.into()),
        ("bytes".to_owned(), request.body.len().into()),
    ])
}

// === impl SendArgs ===

impl SendArgs {
    /// The body from where the arguments say.
    fn body(&self) -> Result<Vec<u8>, Code> {
        let (read, from) = match (&self.file, self.body.as_deref()) {
            (Some(path), _) => (std::fs::File::open(path).and_then(read_body), path.display().to_string()),
            (None, Some("-")) => (read_body(io::stdin()), "standard input".to_owned()),
            (None, text) => return Ok(text.unwrap_or_default().as_bytes().to_vec()),
        };
        match read {
            Ok(body) if body.len() as u64 > MAX_BODY => {
                complain(
                    &format!("the body from {from} is larger than 128 MiB"),
                    "RabbitMQ takes no larger message",
                    "put it elsewhere and send its address",
                );
                Err(Code::BadInput)
            }
            Ok(body) => Ok(body),
            Err(error) => {
                complain(&format!("the body cannot be read from {from}: {error}"), "", "check its name and rights");
                Err(Code::BadInput)
            }
        }
    }

    fn flags(&self) -> Vec<Override> {
        let mut flags = self.log.flags();
        flags.extend(given("--url", "amqp.url", self.url.as_ref()));
        flags
    }
}

/// Everything, or one byte more than is allowed.
fn read_body(from: impl Read) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    from.take(MAX_BODY + 1).read_to_end(&mut body)?;
    Ok(body)
}

// === impl NotSent ===

impl NotSent {
    /// What the process ends with.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            NotSent::Unavailable(_) => Code::Unavailable,
            NotSent::Refused(_) | NotSent::Returned | NotSent::Nacked | NotSent::Unknown(_) => Code::Failed,
        }
    }

    const fn help(&self) -> &'static str {
        match self {
            NotSent::Unavailable(_) => "check amqp.url (or --url), its user and password, and that user's rights",
            NotSent::Refused(_) => "check --exchange: `dwell check` lists the bridges' delay exchanges",
            NotSent::Returned => "bind a queue to the exchange, or check --exchange and --routing-key",
            NotSent::Nacked => "send it again; if that fails too, look at the queue's limits and the broker's log",
            NotSent::Unknown(_) => "look for it before you send it again: it may arrive twice",
        }
    }
}

// === Settings and topology, and what is wrong with them ===

/// What was read.
struct ReadInputs {
    /// `None`: something is wrong, see `said`.
    settings: Option<Settings>,
    /// `None`: something is wrong, see `said`.
    topology: Option<Topology>,
    said: Said,
}

/// Problems beside the texts that they point into: of the settings, then of the topology.
struct Said(Vec<(Vec<Problem>, Sources)>);

// === impl Inputs, RunOverrides, LogOverrides ===

impl Inputs {
    /// Reads settings and topology, so that what is wrong with either is told in one run.
    fn read(&self, flags: &[Override]) -> ReadInputs {
        let settings = config::load(self.config.as_deref(), std::env::vars_os(), flags);
        let limits = settings.settings.as_ref().map(Limits::from).unwrap_or_default();
        let topology = topology::load(&self.topology, &limits);
        ReadInputs {
            settings: settings.settings,
            topology: topology.topology,
            said: Said(vec![(settings.problems, settings.sources), (topology.problems, topology.sources)]),
        }
    }
}

impl RunOverrides {
    fn flags(&self) -> Vec<Override> {
        let mut flags = self.log.flags();
        flags.extend(given("--amqp-url", "amqp.url", self.amqp_url.as_ref()));
        flags.extend(given("--management-url", "management.url", self.management_url.as_ref()));
        flags.extend(given("--redis-url", "redis.url", self.redis_url.as_ref()));
        flags.extend(given("--http-listen", "http.listen", self.http_listen.as_ref()));
        flags
    }
}

impl LogOverrides {
    fn flags(&self) -> Vec<Override> {
        let level = given("--log-level", "log.level", self.log_level.as_ref());
        let format = given("--log-format", "log.format", self.log_format.as_ref());
        level.into_iter().chain(format).collect()
    }
}

// === impl Said ===

impl Said {
    /// All of it for people, on standard error.
    fn whisper(&self) {
        let color = io::stderr().is_terminal();
        for (problems, sources) in &self.0 {
            if !problems.is_empty() {
                whisper(problem::render(problems, sources, color).trim_end());
            }
        }
    }

    /// Warnings in the form that the log has, so that whoever reads JSON reads nothing else.
    fn warn(&self, format: LogFormat) {
        if format == LogFormat::Text {
            return self.whisper();
        }
        for problem in self.0.iter().flat_map(|(problems, _)| problems) {
            tracing::warn!(
                code = problem.code.as_str(), place = %problem.place, why = problem.why, help = problem.help,
                "{}", problem.what
            );
        }
    }

    fn to_json(&self) -> Value {
        let lists = self.0.iter().map(|(problems, sources)| problem::to_json(problems, sources));
        Value::Array(lists.flat_map(|list| if let Value::Array(list) = list { list } else { Vec::new() }).collect())
    }
}

// === Helpers ===

fn given(flag: &'static str, key: &'static str, value: Option<&String>) -> Option<Override> {
    value.map(|value| Override { key, value: value.clone(), flag })
}

fn begin_log(settings: &Settings) -> Result<(), Code> {
    log::init(&settings.log).map_err(|error| {
        complain(&error.to_string(), "", "use a level (`info`) or a filter (`info,dwell::pump=debug`)");
        Code::BadInput
    })
}

/// Runs a future to its end. What still runs beside it then is left behind: the future has waited for what matters.
fn on_runtime<T>(future: impl Future<Output = T>) -> Result<T, Code> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        complain(&format!("no threads to run on: {error}"), "", "raise the limit on processes (ulimit -u)");
        Code::Failed
    })?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

/// An error for people, in the form that problems have. `why` may be empty.
fn complain(what: &str, why: &str, help: &str) {
    let why = if why.is_empty() { String::new() } else { format!("\n  = why: {why}") };
    whisper(&format!("error: {what}{why}\n  = help: {help}"));
}

/// A line of what was asked for. A reader who has gone (`| head`) is no error.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// A line beside what was asked for.
fn whisper(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// `1 bridge`, `2 bridges`.
fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
