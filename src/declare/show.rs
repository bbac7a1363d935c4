//! How a plan prints: for people, and for programs.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value, json};

use super::declaration::{Argument, Arguments, Binding, Object, Target};
use super::definitions::table;
use super::plan::{Action, By, Phase, Plan, Scope, Step};
use crate::duration::Millis;
use crate::names::header;

// === impl Step ===

impl Step {
    /// The sign in front of the step: `+`, `=`, `?`, `-`, `~`, `*` or `!`.
    #[must_use]
    pub const fn sign(&self) -> char {
        match self.action {
            Action::Create(_) => '+',
            Action::Keep(_) => '=',
            Action::Assert(_) => '?',
            Action::Unbind(_) => '-',
            Action::Drain { .. } => '~',
            Action::SetPolicy(_) => '*',
            Action::Refuse { .. } => '!',
        }
    }

    /// The word for the step, as in the JSON form.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.action {
            Action::Create(_) => "create",
            Action::Keep(_) => "keep",
            Action::Assert(_) => "assert",
            Action::Unbind(_) => "unbind",
            Action::Drain { .. } => "drain",
            Action::SetPolicy(_) => "policy",
            Action::Refuse { .. } => "refuse",
        }
    }

    /// What it is about.
    #[must_use]
    pub fn subject(&self) -> String {
        match &self.action {
            Action::Create(o) | Action::Keep(o) | Action::Assert(o) | Action::Refuse { object: o, .. } => describe(o),
            Action::Unbind(b) => describe(&Object::Binding(b.clone())),
            Action::Drain { queue, .. } => format!("queue '{queue}'"),
            Action::SetPolicy(policy) => {
                let definition = Value::Object(policy.definition.clone());
                format!("'{}' on {} {}: {definition}", policy.name, policy.apply_to, policy.pattern)
            }
        }
    }

    /// Sign, word and subject in one line.
    #[must_use]
    pub fn headline(&self) -> String {
        format!("{} {:<6}  {}", self.sign(), self.word(), self.subject())
    }

    fn to_json(&self, scope: Scope) -> Value {
        let mut out = Map::from_iter([
            ("action".to_owned(), self.word().into()),
            ("subject".to_owned(), self.subject().into()),
            ("reason".to_owned(), self.reason.clone().into()),
            ("changes".to_owned(), self.changes().into()),
            ("asked_for".to_owned(), scope.covers(self.by).into()),
            ("needs".to_owned(), self.by.flag().into()),
        ]);
        match &self.action {
            Action::Create(o) | Action::Keep(o) | Action::Assert(o) => {
                out.insert("object".into(), object_json(o));
            }
            Action::Unbind(b) => {
                out.insert("object".into(), binding_json(b));
            }
            Action::Drain { queue, phase } => {
                out.insert("object".into(), json!({ "kind": "queue", "name": queue }));
                out.insert("phase".into(), phase_json(phase));
            }
            Action::SetPolicy(p) => {
                let policy = json!({
                    "kind": "policy", "name": p.name, "pattern": p.pattern, "apply-to": p.apply_to,
                    "priority": p.priority, "definition": p.definition,
                });
                out.insert("object".into(), policy);
            }
            Action::Refuse { object, help } => {
                out.insert("object".into(), object_json(object));
                out.insert("help".into(), help.clone().into());
            }
        }
        Value::Object(out)
    }
}

// === impl By ===

impl By {
    /// The flag of `apply` that asks for it; nothing where `apply` alone does.
    const fn flag(self) -> &'static str {
        match self {
            By::Apply => "",
            By::Prune => "--prune",
            By::Policies => "--policies",
        }
    }
}

// === impl Plan ===

impl Plan {
    /// For people: what changes, in order, then what would with further flags, what is in the way, and what to know. What
    /// stays is only counted.
    #[must_use]
    pub fn for_people(&self, scope: Scope) -> String {
        let mut out = String::new();
        let asked = |step: &&Step| scope.covers(step.by) || matches!(step.action, Action::Refuse { .. });
        let shown = self.steps.iter().filter(|step| !matches!(step.action, Action::Keep(_) | Action::Assert(_)));
        let (now, later): (Vec<&Step>, Vec<&Step>) = shown.partition(asked);
        write_all(&mut out, now);
        for by in [By::Prune, By::Policies] {
            let mut steps = later.iter().copied().filter(|step| step.by == by).peekable();
            if steps.peek().is_some() {
                let _ = writeln!(out, "with {}:", by.flag());
            }
            write_all(&mut out, steps);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let s = self.summary();
        let mut counts = Vec::new();
        for (n, what) in [
            (s.create, "to create"),
            (s.keep, "as they should be"),
            (s.assert, "not compared"),
            (s.unbind, "to unbind"),
            (s.drain, "draining"),
            (s.policies, "policies to set"),
            (s.refuse, "refused"),
        ] {
            if n > 0 {
                counts.push(format!("{n} {what}"));
            }
        }
        let verdict = match (self.is_refused(), self.changes(scope).count()) {
            (true, _) => "Refused; nothing would be done",
            (false, 0) => "Nothing to do",
            (false, _) => "To do",
        };
        let _ = write!(out, "{verdict}: {}.", counts.join(", "));
        out
    }

    /// For programs: every step, those that change nothing among them.
    #[must_use]
    pub fn to_json(&self, scope: Scope) -> Value {
        let s = self.summary();
        json!({
            "complete": self.complete,
            "refused": self.is_refused(),
            "changes": self.changes(scope).count(),
            "steps": self.steps.iter().map(|step| step.to_json(scope)).collect::<Vec<_>>(),
            "notes": self.notes,
            "summary": {
                "create": s.create, "keep": s.keep, "assert": s.assert, "unbind": s.unbind, "drain": s.drain,
                "policies": s.policies, "refuse": s.refuse,
            },
        })
    }
}

/// One step for people, with its reason where there is more to say than that something is missing.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline())?;
        if self.reason != "missing" {
            writeln!(f, "            {}", self.reason)?;
        }
        if let Action::Refuse { help, .. } = &self.action {
            writeln!(f, "            do: {help}")?;
        }
        Ok(())
    }
}

// === helpers ===

/// Steps of one kind and reason bear it once, the last of them.
fn write_all<'a>(out: &mut String, steps: impl IntoIterator<Item = &'a Step>) {
    let mut steps = steps.into_iter().peekable();
    while let Some(step) = steps.next() {
        let again = steps.peek().is_some_and(|next| next.word() == step.word() && next.reason == step.reason);
        let _ = if again { writeln!(out, "{}", step.headline()) } else { write!(out, "{step}") };
    }
}

/// `binding of queue 'q' to exchange 'x' on key 'k'`, or on the header it matches.
fn describe(object: &Object) -> String {
    let mut text = object.to_string();
    match object {
        Object::Queue(q) => {
            for (name, word) in [("x-queue-type", ""), ("x-message-ttl", "TTL "), ("x-dead-letter-exchange", "→ ")] {
                let value = match q.arguments.get(name) {
                    None => continue,
                    Some(Argument::Int(ms)) => Millis(u64::try_from(*ms).unwrap_or_default()).to_string(),
                    Some(Argument::Text(value)) => value.clone(),
                    Some(value) => value.to_string(),
                };
                let _ = write!(text, ", {word}{value}");
            }
        }
        Object::Exchange(x) => {
            let _ = write!(text, ", {}", x.kind);
            if let Some(Argument::Text(alternate)) = x.arguments.get("alternate-exchange") {
                let _ = write!(text, ", else → {alternate}");
            }
        }
        Object::Binding(b) | Object::Unbound(b) => {
            if !b.routing_key.is_empty() {
                let _ = write!(text, " on key '{}'", b.routing_key);
            }
            text.push_str(&matching(&b.arguments));
        }
    }
    text
}

/// ` on x-delay = 1000`; the ten headers of the gate in few words.
fn matching(arguments: &Arguments) -> String {
    let matches: Vec<(&String, &Argument)> = arguments.iter().filter(|(name, _)| *name != "x-match").collect();
    match matches[..] {
        [] => String::new(),
        [(name, Argument::Present)] => format!(" on any {name}"),
        [(name, value)] => format!(" on {name} = {value}"),
        _ if arguments.contains_key(header::DELAY_KEY) => " on any header that needs the daemon".to_owned(),
        _ => format!(" on {} headers", matches.len()),
    }
}

fn phase_json(phase: &Phase) -> Value {
    match phase {
        Phase::Begin => json!({ "is": "begin" }),
        Phase::Until(at) => json!({ "is": "until", "at_ms": at }),
        Phase::Holds(messages) => json!({ "is": "holds", "messages": messages }),
        Phase::Led(source) => json!({ "is": "led", "by": source }),
        Phase::Ready => json!({ "is": "ready" }),
    }
}

fn object_json(object: &Object) -> Value {
    match object {
        Object::Exchange(x) => json!({
            "kind": "exchange", "name": x.name, "type": x.kind, "internal": x.internal, "arguments": table(&x.arguments),
        }),
        Object::Queue(q) => json!({ "kind": "queue", "name": q.name, "arguments": table(&q.arguments) }),
        Object::Binding(b) | Object::Unbound(b) => binding_json(b),
    }
}

fn binding_json(b: &Binding) -> Value {
    let (kind, to) = match &b.target {
        Target::Queue(name) => ("queue", name),
        Target::Exchange(name) => ("exchange", name),
    };
    json!({
        "kind": "binding", "source": b.source, "destination_type": kind, "destination": to,
        "routing_key": b.routing_key, "arguments": table(&b.arguments),
    })
}
