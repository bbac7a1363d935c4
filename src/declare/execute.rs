//! Plan → done, step by step, until the first surprise.

use std::sync::Arc;
use std::time::Duration;

use super::declaration::{Argument, Arguments, Binding, Declarations, Exchange, Object, SINCE, Target};
use super::plan::{Action, Phase, Plan, Scope, Step};
use crate::broker::Connection;
use crate::broker::admin::{Admin, DeclareError};
use crate::management::Management;
use crate::names;
use crate::store::Store;

/// What a plan is carried out with.
#[derive(Debug)]
pub struct Executor<'a> {
    /// Declares, binds, deletes.
    pub connection: Arc<Connection>,
    /// Sets policies and counts messages; `None`: no step needs it, because no complete plan is made without it.
    pub management: Option<&'a Management>,
    /// Remembers what leads from the defaults; `None` without one.
    pub store: Option<&'a Store>,
    /// Begins the vhost-wide names.
    pub prefix: &'a str,
    /// What the plan was made for.
    pub wanted: &'a Declarations,
}

/// A step could not be done. What was done before stays done; making a plan again and carrying it out goes on from there.
#[derive(Debug, thiserror::Error)]
#[error("stopped at {at}: {why}")]
pub struct Halt {
    /// How many steps were done before.
    pub done: usize,
    /// The step.
    pub at: String,
    /// What happened.
    pub why: String,
    /// Whether the broker or the store was out of reach, or did not allow it.
    pub unavailable: bool,
}

/// A queue goes after so many looks that found it empty, so far apart: RabbitMQ's own counts are seconds old.
const LOOKS: (u32, Duration) = (3, Duration::from_secs(10));

// === impl Executor ===

impl Executor<'_> {
    /// Carries out what the plan changes and was asked for, in order; tells each step when it is done, and gives their
    /// number.
    ///
    /// A crash at any step leaves a broker in which nothing is lost and nothing comes twice: what catches is made before what
    /// leads to it, a way is unbound before its successor is bound (what comes between goes by the intake), and a queue
    /// goes last.
    ///
    /// # Errors
    /// The first step that could not be done. A plan with refusals is not begun.
    pub async fn carry_out(
        &self,
        plan: &Plan,
        scope: Scope,
        now_ms: u64,
        mut done: impl FnMut(&Step),
    ) -> Result<usize, Halt> {
        let mut admin = Admin::new(self.connection.clone());
        let mut count = 0;
        if let Some(step) = plan.steps.iter().find(|step| matches!(step.action, Action::Refuse { .. })) {
            return Err(Halt { done: 0, at: step.subject(), why: step.reason.clone(), unavailable: false });
        }
        // What could not be seen is declared too: that changes nothing where it exists.
        let steps = plan
            .steps
            .iter()
            .filter(|step| scope.covers(step.by) && (step.changes() || matches!(step.action, Action::Assert(_))));
        let mut ready = Vec::new();
        for step in steps {
            let halt = |(why, unavailable)| Halt { done: count, at: step.subject(), why, unavailable };
            if let Action::Drain { queue, phase: Phase::Ready } = &step.action {
                ready.push((step, queue.as_str()));
                continue;
            }
            self.step(&mut admin, step, now_ms).await.map_err(halt)?;
            count += 1;
            done(step);
        }
        self.see_empty(&ready).await.map_err(|(at, why, unavailable)| Halt { done: count, at, why, unavailable })?;
        for (step, queue) in ready {
            let deleted = admin.delete_queue(queue).await;
            deleted.map_err(|e| {
                let (why, unavailable) = words(e);
                Halt { done: count, at: step.subject(), why, unavailable }
            })?;
            count += 1;
            done(step);
        }
        Ok(count)
    }

    async fn step(&self, admin: &mut Admin, step: &Step, now_ms: u64) -> Result<(), (String, bool)> {
        match &step.action {
            Action::Create(object) | Action::Assert(object) => {
                self.remember(object).await?;
                admin.declare(object).await.map_err(words)
            }
            Action::Unbind(binding) => {
                admin.declare(&Object::Unbound(binding.clone())).await.map_err(words)?;
                self.forget(binding).await;
                Ok(())
            }
            Action::SetPolicy(policy) => {
                let Some(management) = self.management else {
                    return Err(("policies need the management API".into(), true));
                };
                management.set_policy(policy).await.map_err(|e| (e.to_string(), true))
            }
            Action::Drain { queue, phase: Phase::Begin } => self.mark(admin, queue, now_ms).await,
            Action::Drain { .. } | Action::Keep(_) | Action::Refuse { .. } => Ok(()),
        }
    }

    /// Before a default is bound the store remembers it: `run` cannot list bindings, and must find it to unbind it.
    async fn remember(&self, object: &Object) -> Result<(), (String, bool)> {
        let (Object::Binding(binding), Some(store)) = (object, self.store) else { return Ok(()) };
        let Some(way) = self.wanted.defaults.iter().find(|way| way.exchange == binding.source) else { return Ok(()) };
        let Target::Queue(queue) = &binding.target else { return Ok(()) };
        match store.remember_default(&way.bridge, Some(queue)).await {
            Ok(_) => Ok(()),
            Err(error) => Err((format!("the store must remember this binding, and does not answer: {error}"), true)),
        }
    }

    /// One name too many in the memory costs nothing.
    async fn forget(&self, binding: &Binding) {
        let (Some(store), Target::Queue(queue)) = (self.store, &binding.target) else { return };
        if let Some(way) = self.wanted.defaults.iter().find(|way| way.exchange == binding.source)
            && let Err(error) = store.forget_defaults(&way.bridge, std::slice::from_ref(queue)).await
        {
            tracing::debug!(queue = %queue, error = %error, "an unbound default stays remembered");
        }
    }

    /// From now on the queue drains; an older mark is of an earlier time.
    async fn mark(&self, admin: &mut Admin, queue: &str, now_ms: u64) -> Result<(), (String, bool)> {
        let exchange = names::draining(self.prefix);
        let declare =
            Exchange { name: exchange.clone(), kind: "headers".into(), internal: true, arguments: Arguments::new() };
        admin.declare(&Object::Exchange(declare)).await.map_err(words)?;
        if let Some(management) = self.management {
            let bindings = management.bindings().await.map_err(|e| (e.to_string(), true))?;
            let old = super::observed::Observed::listed(Vec::new(), Vec::new(), bindings, Vec::new());
            for mark in old.bindings_to(queue).filter(|binding| binding.source == exchange) {
                admin.declare(&Object::Unbound(mark.clone())).await.map_err(words)?;
            }
        }
        let mark = Binding {
            source: exchange,
            target: Target::Queue(queue.to_owned()),
            routing_key: String::new(),
            arguments: Arguments::from([
                ("x-match".into(), Argument::Text("all-with-x".into())),
                (SINCE.into(), Argument::Int(i64::try_from(now_ms).unwrap_or(i64::MAX))),
            ]),
        };
        admin.declare(&Object::Binding(mark)).await.map_err(words)
    }

    /// All of them, each time, and with nothing but the mark leading to them.
    async fn see_empty(&self, ready: &[(&Step, &str)]) -> Result<(), (String, String, bool)> {
        if ready.is_empty() {
            return Ok(());
        }
        let halt = |step: &Step, why: String, unavailable| Err((step.subject(), why, unavailable));
        let Some(management) = self.management else {
            return halt(ready[0].0, "deleting needs the management API".into(), true);
        };
        let draining = names::draining(self.prefix);
        for look in 0..LOOKS.0 {
            if look > 0 {
                tokio::time::sleep(LOOKS.1).await;
            }
            let bindings = match management.bindings().await {
                Ok(bindings) => super::observed::Observed::listed(Vec::new(), Vec::new(), bindings, Vec::new()),
                Err(error) => return halt(ready[0].0, error.to_string(), true),
            };
            for (step, queue) in ready {
                let messages = match management.queue(queue).await {
                    Ok(Some(info)) => info.messages.map(|n| n + info.messages_dlx.unwrap_or(0)),
                    Ok(None) => return halt(step, "somebody else has deleted it".into(), false),
                    Err(error) => return halt(step, error.to_string(), true),
                };
                match messages {
                    Some(0) => {}
                    Some(n) => return halt(step, format!("it was empty, and holds {n} messages now"), false),
                    None => return halt(step, "how many messages it holds is not known yet".into(), false),
                }
                if let Some(binding) = bindings.bindings_to(queue).find(|binding| binding.source != draining) {
                    let why = format!("exchange '{}' leads to it again", binding.source);
                    return halt(step, why, false);
                }
            }
        }
        Ok(())
    }
}

/// The broker's words, and whether they mean that it is out of reach or does not allow it.
fn words(error: DeclareError) -> (String, bool) {
    match error {
        DeclareError::Refused { code, text } => (format!("{code} {text}"), code == 403),
        DeclareError::Broker(error) => (error.to_string(), true),
    }
}
