//! HTTP beside the flow, never in it: whether dwell lives, whether it is ready and why not, and its metrics.

mod access;
mod health;
mod server;

pub use access::{Access, Unguarded};
pub use health::{Complaint, Health, Part, Readiness, Reason, State, readiness};
pub use server::{BindError, Site, bind, serve};
