//! dwell: delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
#![forbid(unsafe_code)]

pub mod broker;
pub mod config;
pub mod delay;
pub mod duration;
pub mod names;
pub mod problem;
pub mod reason;
pub mod store;
pub mod topology;
