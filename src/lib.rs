//! dwell: delayed messages, retries and long schedules for any RabbitMQ, without a plugin.
#![forbid(unsafe_code)]

pub mod admin;
pub mod broker;
pub mod clock;
pub mod config;
pub mod decide;
pub mod declare;
pub mod delay;
pub mod duration;
pub mod exit;
pub mod message;
pub mod metrics;
pub mod names;
pub mod problem;
pub mod reason;
pub mod store;
pub mod topology;
