//! What `config/dwell.toml`, the environment and the flags say: addresses, limits, deadlines; never routes.
//!
//! The door is [`load`]`(file, environment, flags) -> `[`Loaded`]: all problems in one run, the file's text without its
//! secrets for rendering them, and the [`Settings`] if there is no error. `Settings` prints itself on one line, without
//! secrets.

mod describe;
mod load;
mod mask;
mod model;
mod raw;
mod url;
mod validate;

pub use load::{DEFAULT_FILE, Loaded, Override, load, variable};
pub use model::*;

/// Every setting, as `section.key`.
#[must_use]
pub fn keys() -> &'static [&'static str] {
    raw::KEYS
}
