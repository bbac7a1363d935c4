//! dwell: delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
//!
//! The map, in the order of the flow. `ARCHITECTURE.md` has the picture, the invariants and the reasons.
//!
//! What people write:
//! - [`cli`] the commands: arguments, help, output
//! - [`config`] what `config/` says: addresses, limits, deadlines
//! - [`topology`] what `topology/` says: bridges, tiers, work queues
//! - [`problem`] what may be wrong with either, and how it is shown
//!
//! What RabbitMQ is told, once:
//! - [`declare`] topology → broker objects → compared with what is there → declared
//! - [`doctor`] what the live system has that would break a promise
//! - [`management`] RabbitMQ's management API: what exists, and policies
//! - [`names`] every name of an object or header
//!
//! What happens to a message:
//! - [`intake`] consume → decide → place → acknowledge, the only way in
//! - [`message`] what a message carries, and the few things done to it
//! - [`delay`] headers → what was asked for (pure)
//! - [`duration`] `1h30m` and milliseconds
//! - [`decide`] where it goes (pure)
//! - [`reason`] why it rests where it rests
//! - [`parking`] from the intake into the store
//! - [`store`] Redis: park, claim, settle; the only room that names redis
//! - [`pump`] sleep until due → claim → publish → confirm → settle
//! - [`reaper`] claims that have lapsed become due again
//! - [`broker`] RabbitMQ: connections, consumers, publishers; the only room that names lapin
//!
//! What stands around the flow:
//! - [`app`] builds every part, starts the loops, stops them in order
//! - [`shutdown`] signals, stages, one deadline
//! - [`admin`] health, readiness and metrics over HTTP
//! - [`metrics`] every metric in one table
//! - [`rested`] says once a minute what was put to rest
//! - [`log`] what is logged, where, and how often
//! - [`backoff`] growing waits with jitter
//! - [`clock`] time as an argument
//! - [`crash`] places where a test may make the process die
//! - [`exit`] exit codes
//!
//! Whatever dies, nothing is lost: each hop acknowledges only what the next one has confirmed.
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod backoff;
pub mod broker;
pub mod cli;
pub mod clock;
pub mod config;
pub mod crash;
pub mod decide;
pub mod declare;
pub mod delay;
pub mod doctor;
pub mod duration;
pub mod exit;
pub mod intake;
pub mod log;
pub mod management;
pub mod message;
pub mod metrics;
pub mod names;
pub mod parking;
pub mod problem;
pub mod pump;
pub mod reaper;
pub mod reason;
pub mod rested;
pub mod shutdown;
pub mod store;
pub mod topology;
