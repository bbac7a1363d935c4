//! dwell: delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
#![forbid(unsafe_code)]

pub mod backoff;
pub mod config;
pub mod duration;
pub mod problem;
pub mod store;
pub mod topology;
