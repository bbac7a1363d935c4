//! `dwell plan` and `dwell apply`: what is, what should be, and the steps between.

use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use serde_json::json;

use super::{EXIT_CODES, Inputs, RunOverrides, begin_log, complain, counted, on_runtime, say, whisper};
use crate::broker::Connection;
use crate::config::Settings;
use crate::declare::execute::{Executor, Halt};
use crate::declare::plan::{Plan, Scope, diff};
use crate::declare::{self, Declarations, observe};
use crate::exit::Code;
use crate::management::Management;
use crate::store::Store;
use crate::topology::Topology;

/// Arguments of `dwell plan` and `dwell apply`, which are the same: a plan shows exactly what would be done.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct PlanArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    overrides: RunOverrides,
    /// Also unbind what no file asks for any more, and drain and delete buffer queues that no tier needs.
    #[arg(long)]
    prune: bool,
    /// Also set the policies by which the promises hold on exchanges and queues that others declare.
    #[arg(long)]
    policies: bool,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
}

/// All that was looked at, and the plan.
struct Looked {
    settings: Settings,
    connection: Arc<Connection>,
    management: Option<Management>,
    store: Option<Store>,
    wanted: Declarations,
    plan: Plan,
    now_ms: u64,
}

/// Says what `apply` would do.
pub(super) fn plan(args: &PlanArgs) -> Result<Code, Code> {
    let (settings, topology) = args.read()?;
    let looked = on_runtime(look(settings, topology, args.scope()))??;
    let plan = &looked.plan;
    if args.json {
        say(&plan.to_json(args.scope()).to_string());
    } else {
        say(&plan.for_people(args.scope()));
    }
    Ok(match plan.changes(args.scope()).next() {
        _ if plan.is_refused() => Code::Refused,
        Some(_) => Code::Changes,
        None => Code::Done,
    })
}

/// Does it.
pub(super) fn apply(args: &PlanArgs) -> Result<Code, Code> {
    let (settings, topology) = args.read()?;
    on_runtime(async {
        let looked = look(settings, topology, args.scope()).await?;
        let plan = &looked.plan;
        if plan.is_refused() {
            if args.json {
                say(&json!({ "plan": plan.to_json(args.scope()), "done": 0 }).to_string());
            } else {
                say(&plan.for_people(args.scope()));
            }
            return Ok(Code::Refused);
        }
        let result = if plan.complete { looked.carry_out(args).await } else { looked.declare_blindly().await };
        match (&result, args.json) {
            (Ok(done), true) => {
                say(&json!({ "plan": plan.to_json(args.scope()), "done": done }).to_string());
            }
            (Err(halt), true) => {
                let error = halt.to_string();
                say(&json!({ "plan": plan.to_json(args.scope()), "done": halt.done, "error": error }).to_string());
            }
            (Ok(done), false) => {
                for note in &plan.notes {
                    say(&format!("note: {note}"));
                }
                let steps =
                    if *done == 0 { "nothing to do".to_owned() } else { format!("{} done", counted(*done, "step")) };
                say(&format!("{steps}: the broker is as the topology says"));
            }
            (Err(halt), false) => complain(
                &halt.to_string(),
                &format!(
                    "{} before it",
                    if halt.done == 1 { "1 step was done".into() } else { format!("{} steps were done", halt.done) }
                ),
                "mend that, then `dwell plan` again: what was done stays done, and is not done twice",
            ),
        }
        Ok(match result {
            Ok(_) => Code::Done,
            Err(halt) if halt.unavailable => Code::Unavailable,
            Err(_) => Code::Failed,
        })
    })?
}

/// Looks at everything. Where the management API is configured and does not answer, AMQP alone is asked, and the plan
/// says so.
async fn look(settings: Settings, mut topology: Topology, scope: Scope) -> Result<Looked, Code> {
    let connection = Connection::open(&settings.amqp, "dwell plan").await.map_err(|error| {
        complain(&error.to_string(), "", "start the broker, or correct amqp.url (--amqp-url)");
        Code::Unavailable
    })?;
    let connection = Arc::new(connection);
    let management = settings.management.as_ref().map(|api| Management::new(api, &settings.amqp.vhost()));
    let listed = match &management {
        Some(management) => match observe::list(management).await {
            Ok(observed) => Some(observed),
            Err(error) => {
                whisper(&format!("warning: {error}"));
                None
            }
        },
        None => None,
    };
    if listed.is_none() && (scope.prune || scope.policies) {
        complain(
            "--prune and --policies need RabbitMQ's management API",
            "AMQP can neither list bindings nor count dead letters under way nor set policies",
            "set management.url (DWELL_MANAGEMENT__URL), with a user who has the tag `policymaker`",
        );
        return Err(Code::Unavailable);
    }
    let store = match settings.redis.as_ref().map(Store::open).transpose() {
        Ok(store) => store,
        Err(error) => {
            complain(&error.to_string(), "", "correct the [redis] section");
            return Err(Code::BadInput);
        }
    };
    if let Some(listed) = &listed {
        observe::note_caught(&mut topology, listed);
    }
    let wanted = declare::compile(&topology, &settings.amqp.prefix);
    let mut observed = match listed {
        Some(listed) => listed,
        None => observe::probe(connection.clone(), &wanted, &topology).await.map_err(|error| {
            complain(&error.to_string(), "", "look at the broker, then try again");
            Code::Unavailable
        })?,
    };
    if let Some(store) = &store
        && let Err(error) = observe::count_records(store, &mut observed).await
    {
        whisper(&format!("warning: the store does not answer, so its records were not counted: {error}"));
    }
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis());
    let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
    let plan = diff(&wanted, &topology, &settings.amqp.prefix, &observed, now_ms);
    Ok(Looked { settings, connection, management, store, wanted, plan, now_ms })
}

// === impl PlanArgs ===

impl PlanArgs {
    fn scope(&self) -> Scope {
        Scope { prune: self.prune, policies: self.policies }
    }

    fn read(&self) -> Result<(Settings, Topology), Code> {
        let read = self.inputs.read(&self.overrides.flags());
        read.said.whisper();
        let (Some(mut settings), Some(topology)) = (read.settings, read.topology) else { return Err(Code::BadInput) };
        // The answer says how it went; the daemon's level would add the connection's diary to it.
        if self.overrides.log.log_level.is_none() {
            "error".clone_into(&mut settings.log.level);
        }
        begin_log(&settings)?;
        Ok((settings, topology))
    }
}

// === impl Looked ===

impl Looked {
    async fn carry_out(&self, args: &PlanArgs) -> Result<usize, Halt> {
        let executor = Executor {
            connection: self.connection.clone(),
            management: self.management.as_ref(),
            store: self.store.as_ref(),
            prefix: &self.settings.amqp.prefix,
            wanted: &self.wanted,
        };
        let quiet = args.json;
        executor
            .carry_out(&self.plan, args.scope(), self.now_ms, |step| {
                if !quiet {
                    say(&step.headline());
                }
            })
            .await
    }

    /// Declares as `run` does, where nothing could be compared.
    async fn declare_blindly(&self) -> Result<usize, Halt> {
        match declare::apply(self.connection.clone(), &self.wanted, self.store.as_ref()).await {
            Ok(_) => {
                let (exchanges, queues, bindings) = self.wanted.counts();
                Ok(exchanges + queues + bindings)
            }
            Err(declare::Error::Refused(refusals)) => {
                let unavailable = refusals.iter().any(|refusal| refusal.code == 403);
                let why = declare::Error::Refused(refusals).to_string();
                Err(Halt { done: 0, at: "declaring".into(), why, unavailable })
            }
            Err(error) => Err(Halt { done: 0, at: "declaring".into(), why: error.to_string(), unavailable: true }),
        }
    }
}
