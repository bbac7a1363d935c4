//! What `topology/` says: files → parsed with positions → validated. No I/O past parsing.
//!
//! The door is [`load`]`(folder, &Limits) -> `[`Loaded`]; [`parse_texts`] is the same without a disk. `Loaded` has
//! all problems of all files (errors and warnings), the texts for rendering them ([`crate::problem::render`]), and
//! the [`Topology`] if there is no error.

mod load;
mod model;
mod parse;
mod pattern;
mod raw;
mod validate;

pub use load::{Limits, Loaded, load, parse_texts};
pub use model::*;
pub use parse::keys;
pub(crate) use parse::{bad_toml, duplicate_key, type_name};

/// The JSON Schema (2020-12) of topology files, for editors; a test holds it to the parser.
pub const SCHEMA: &str = include_str!("schema.json");
