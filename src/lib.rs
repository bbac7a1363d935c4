//! dwell: delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
#![forbid(unsafe_code)]

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod duration;
pub mod exit;
pub mod log;
pub mod metrics;
pub mod problem;
pub mod shutdown;
pub mod store;
pub mod topology;
