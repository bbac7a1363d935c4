//! What `config/dwell.toml`, the environment and the flags say: addresses, limits, deadlines; never routes.

mod model;

pub use model::*;
