//! What `topology/` says: files → parsed with positions → validated. No I/O past parsing.

mod model;

pub use model::*;
