//! RabbitMQ: the only room that names lapin.
//!
//! Reading order: [`connection`] (one connection, watched), [`link`] (kept up for ever), [`consumer`] (deliveries,
//! acknowledged last), [`publisher`] (mandatory, confirmed, settled as a batch), [`wire`] (types and encoding).

pub mod admin;
pub mod connection;
pub mod consumer;
mod error;
pub mod link;
pub mod publisher;
pub mod wire;

pub use connection::{Connection, State};
pub use consumer::{Consumer, Delivery, Receipt};
pub use error::Error;
pub use link::Link;
pub use publisher::{Outcome, Outgoing, Publisher};
