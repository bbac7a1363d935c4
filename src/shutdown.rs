//! Stopping: signals become an order to stop, stages stop in the order of the flow, under one deadline, and who is
//! late is named.
//!
//! The order is the promise "never lost, and no duplicates without a fault": first nothing new is taken in, then what
//! is in hand is finished while the connections still stand, then these are closed, and HTTP goes last so that a
//! probe can watch all of it. A second signal leaves at once: every hop acknowledges last, so that costs duplicates,
//! never messages (case B139).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// What asks dwell to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: a supervisor.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
}

/// The signals that came, in order.
#[derive(Debug)]
pub struct Signals {
    received: mpsc::Receiver<Signal>,
}

/// Everything that must stop, in the order of the flow.
#[derive(Debug, Default)]
pub struct Stages {
    stages: Vec<Stage>,
}

/// Tasks that stop together. Clones are handles to the same stage.
#[derive(Clone, Debug)]
pub struct Stage {
    name: &'static str,
    token: CancellationToken,
    /// Names of the tasks that run, each with how many run under it. A watch, so that the end of the last is heard.
    running: Arc<watch::Sender<BTreeMap<String, usize>>>,
}

/// A task's entry in its stage: leaves when it is dropped, also by a panic.
#[derive(Debug)]
pub struct Entry {
    stage: Stage,
    name: String,
}

/// How the stop went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// Every task ended in time.
    Graceful,
    /// The deadline came; these tasks were still running, each as `stage: task`.
    Late(Vec<String>),
    /// A second signal came; these tasks were still running, each as `stage: task`.
    Forced(Vec<String>),
}

/// Signals so close together are one: `timeout`, shells and some supervisors signal the process and then its group.
const ECHO: Duration = Duration::from_millis(300);

/// After the deadline all that is left is told to stop at once, and gets this long to close what it holds.
const LAST_GRACE: Duration = Duration::from_millis(500);

// === impl Signals ===

impl Signals {
    /// Listens for SIGTERM and SIGINT; from now on neither ends the process by itself. Needs a tokio runtime.
    pub fn listen() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};

        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (sender, signals) = Signals::by_hand();
        tokio::spawn(async move {
            let mut last: Option<Instant> = None;
            loop {
                let signal = tokio::select! {
                    _ = terminate.recv() => Signal::Terminate,
                    _ = interrupt.recv() => Signal::Interrupt,
                };
                if last.replace(Instant::now()).is_some_and(|last| last.elapsed() < ECHO) {
                    continue;
                }
                if sender.send(signal).await.is_err() {
                    break;
                }
            }
        });
        Ok(signals)
    }

    /// Signals that a test sends.
    #[must_use]
    pub fn by_hand() -> (mpsc::Sender<Signal>, Signals) {
        let (sender, received) = mpsc::channel(4);
        (sender, Signals { received })
    }

    /// Waits for the next signal; for ever where none can come any more. Safe to drop half way.
    pub async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

// === impl Stages ===

impl Stages {
    /// No stage yet.
    #[must_use]
    pub fn new() -> Stages {
        Stages::default()
    }

    /// Appends a stage: it stops once all stages before it have.
    pub fn stage(&mut self, name: &'static str) -> Stage {
        let stage = Stage { name, token: CancellationToken::new(), running: Arc::default() };
        self.stages.push(stage.clone());
        stage
    }

    /// Tells stage after stage to stop and waits for its tasks, all within `deadline`. At the deadline, or at a
    /// further signal, everything left is told to stop; after a deadline it gets half a second, after a signal nothing.
    pub async fn stop(&self, signals: &mut Signals, deadline: Duration) -> Ended {
        let end = Instant::now() + deadline;
        let in_order = async {
            for stage in &self.stages {
                tracing::debug!(stage = stage.name, "The stage is told to stop.");
                stage.token.cancel();
                if timeout_at(end, stage.empty()).await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::select! {
            biased;
            in_time = in_order => if in_time {
                return Ended::Graceful;
            },
            _ = signals.next() => {
                self.cancel_all();
                return Ended::Forced(self.running(|_| true));
            }
        }
        // Only who was asked is late; the rest had no chance yet.
        let mut late = self.running(|stage| stage.token.is_cancelled());
        self.cancel_all();
        let all_empty = async {
            for stage in &self.stages {
                stage.empty().await;
            }
        };
        tokio::select! {
            () = all_empty => {}
            () = tokio::time::sleep(LAST_GRACE) => {}
            _ = signals.next() => {}
        }
        for name in self.running(|_| true) {
            if !late.contains(&name) {
                late.push(name);
            }
        }
        Ended::Late(late)
    }

    fn cancel_all(&self) {
        for stage in &self.stages {
            stage.token.cancel();
        }
    }

    /// Who runs in the stages that `which` picks, in flow order.
    fn running(&self, which: impl Fn(&Stage) -> bool) -> Vec<String> {
        self.stages.iter().filter(|stage| which(stage)).flat_map(Stage::names).collect()
    }
}

// === impl Stage ===

impl Stage {
    /// Cancelled when the stage is to stop. A task heeds it at its next safe point.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Enters a task by the name that people will read if it is late (`intake orders`). Keep the entry for as long as
    /// the task runs.
    pub fn enter(&self, name: impl Into<String>) -> Entry {
        let name = name.into();
        self.running.send_modify(|running| *running.entry(name.clone()).or_default() += 1);
        Entry { stage: self.clone(), name }
    }

    /// Spawns a task and keeps it entered until it ends, also by a panic. The handle is for who must know how it
    /// ended; dropping it lets the task run on.
    pub fn spawn<F>(&self, name: impl Into<String>, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let entry = self.enter(name);
        tokio::spawn(async move {
            let output = task.await;
            drop(entry);
            output
        })
    }

    /// Waits until no task is entered.
    async fn empty(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.running.subscribe().wait_for(BTreeMap::is_empty).await;
    }

    fn names(&self) -> Vec<String> {
        self.running.borrow().keys().map(|name| format!("{}: {name}", self.name)).collect()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.stage.running.send_modify(|running| {
            if let Some(count) = running.get_mut(&self.name) {
                *count -= 1;
                if *count == 0 {
                    running.remove(&self.name);
                }
            }
        });
    }
}

// === impl Signal ===

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Terminate => "SIGTERM",
            Signal::Interrupt => "SIGINT",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use super::*;
    use tokio::time::sleep;

    const DEADLINE: Duration = Duration::from_secs(25);

    /// What happened, in order.
    #[derive(Clone, Default)]
    struct Diary(Arc<Mutex<Vec<String>>>);

    impl Diary {
        fn note(&self, line: impl Into<String>) {
            self.lines().push(line.into());
        }

        fn lines(&self) -> MutexGuard<'_, Vec<String>> {
            self.0.lock().expect("no test panics while writing")
        }
    }

    /// A task that takes that long to stop once it is told to.
    fn spawn_slow(stage: &Stage, name: &'static str, takes: Duration, diary: &Diary) {
        let (token, diary) = (stage.token(), diary.clone());
        drop(stage.spawn(name, async move {
            token.cancelled().await;
            diary.note(format!("{name} told"));
            sleep(takes).await;
            diary.note(format!("{name} done"));
        }));
    }

    #[tokio::test(start_paused = true)]
    async fn stages_stop_one_after_the_other() {
        let (_sender, mut signals) = Signals::by_hand();
        let diary = Diary::default();
        let mut stages = Stages::new();
        let (intake, pump, http) = (stages.stage("intake"), stages.stage("pump"), stages.stage("http"));
        // Entered in another order than that of the flow.
        spawn_slow(&http, "http", Duration::ZERO, &diary);
        spawn_slow(&pump, "pump", Duration::from_secs(1), &diary);
        spawn_slow(&intake, "intake", Duration::from_secs(2), &diary);
        assert_eq!(stages.stop(&mut signals, DEADLINE).await, Ended::Graceful);
        assert_eq!(*diary.lines(), ["intake told", "intake done", "pump told", "pump done", "http told", "http done"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_late_are_named_and_the_rest_is_still_told() {
        let (_sender, mut signals) = Signals::by_hand();
        let diary = Diary::default();
        let mut stages = Stages::new();
        let (intake, pump, http) = (stages.stage("intake"), stages.stage("pump"), stages.stage("http"));
        spawn_slow(&intake, "orders", Duration::from_secs(1), &diary);
        spawn_slow(&pump, "orders", Duration::from_secs(3600), &diary);
        spawn_slow(&pump, "mail", Duration::from_secs(2), &diary);
        spawn_slow(&http, "http", Duration::from_millis(100), &diary);
        let start = Instant::now();
        assert_eq!(stages.stop(&mut signals, DEADLINE).await, Ended::Late(vec!["pump: orders".to_owned()]));
        assert_eq!(start.elapsed(), DEADLINE + LAST_GRACE);
        assert_eq!(diary.lines().last().map(String::as_str), Some("http done"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_leaves_at_once() {
        let (sender, mut signals) = Signals::by_hand();
        let diary = Diary::default();
        let mut stages = Stages::new();
        let (intake, http) = (stages.stage("intake"), stages.stage("http"));
        spawn_slow(&intake, "orders", Duration::from_secs(10), &diary);
        spawn_slow(&http, "http", Duration::ZERO, &diary);
        sender.send(Signal::Terminate).await.expect("heard");
        assert_eq!(signals.next().await, Signal::Terminate);
        let start = Instant::now();
        tokio::spawn(async move {
            sleep(Duration::from_secs(3)).await;
            sender.send(Signal::Interrupt).await.expect("heard");
        });
        let forced = Ended::Forced(vec!["intake: orders".to_owned(), "http: http".to_owned()]);
        assert_eq!(stages.stop(&mut signals, DEADLINE).await, forced);
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_holds_nobody_up() {
        let (_sender, mut signals) = Signals::by_hand();
        let mut stages = Stages::new();
        let intake = stages.stage("intake");
        let task = intake.spawn("orders", async { panic!("on purpose") });
        assert!(task.await.expect_err("a panic").is_panic());
        let start = Instant::now();
        assert_eq!(stages.stop(&mut signals, DEADLINE).await, Ended::Graceful);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn two_tasks_of_one_name_are_both_waited_for() {
        let (_sender, mut signals) = Signals::by_hand();
        let diary = Diary::default();
        let mut stages = Stages::new();
        let pump = stages.stage("pump");
        spawn_slow(&pump, "orders", Duration::from_secs(1), &diary);
        spawn_slow(&pump, "orders", Duration::from_secs(5), &diary);
        let start = Instant::now();
        assert_eq!(stages.stop(&mut signals, DEADLINE).await, Ended::Graceful);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_without_tasks_is_over_at_once() {
        let (sender, mut signals) = Signals::by_hand();
        // No signal can come any more: that is no second signal.
        drop(sender);
        let mut stages = Stages::new();
        let stage = stages.stage("intake");
        assert_eq!(stages.stop(&mut signals, DEADLINE).await, Ended::Graceful);
        assert!(stage.token().is_cancelled());
    }
}
