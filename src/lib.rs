//! dwell: delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
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
pub mod duration;
pub mod exit;
pub mod intake;
pub mod log;
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
