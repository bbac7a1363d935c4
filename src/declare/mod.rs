//! From intention to broker objects: topology → declarations (pure) → declared.

mod apply;
mod compile;
pub mod declaration;

pub use apply::{Buffers, Error, Refusal, apply};
pub use compile::compile;
