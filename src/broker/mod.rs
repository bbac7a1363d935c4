//! RabbitMQ: the only room that names lapin.

pub mod wire;
