//! The daemon against a real RabbitMQ and a real Redis, from outside: what a publisher and a consumer can see.
//!
//! Each test has a vhost and a key prefix of its own and deletes both. The servers are those of the `DWELL_TEST_*`
//! variables (`make services`); tests that kill a server start one of their own.
#![allow(missing_docs)] // The sentence names are the documentation.

mod connect;
mod declare;
mod doctor;
mod examples;
mod export;
mod faults;
mod intake;
mod plan;
mod preserve;
mod pump;
mod several;
mod shutdown;
mod support;
mod tiers;
