//! HTTP beside the flow, never in it: whether dwell lives, whether it is ready and why not, and its metrics.

mod health;

pub use health::{Complaint, Health, Part, Readiness, Reason, State, readiness};
