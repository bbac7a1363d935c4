//! From intention to broker objects: topology → declarations (pure) → compared with what is there → plan (pure) → carried
//! out. `run` declares without looking (`apply`), the commands look first (`observe`, `plan`, `execute`).

mod apply;
mod compile;
pub mod declaration;
mod definitions;
pub mod execute;
pub mod observe;
pub mod observed;
pub mod plan;
#[cfg(test)]
mod replay;
mod show;
mod verify;

pub use apply::{Buffers, Error, Refusal, apply};
pub use compile::compile;
pub use declaration::Declarations;
pub use definitions::definitions;
pub use verify::verify;
