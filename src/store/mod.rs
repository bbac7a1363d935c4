//! Long delays: the only room that names redis.
//!
//! A message is parked here until it is due, then claimed under a lease, published, and settled. `claim.rs` has the
//! proof that it is never lost and when it may come twice; `scripts/` has one Lua file a verb.

mod claim;
mod client;
mod connection;
mod durable;
mod error;
mod health;
mod id;
mod keys;
pub mod record;
mod reply;
mod script;

pub use claim::{Claim, Claimed, Lease, Outcome, Undecodable};
pub use client::{Cancelled, Depth, Park, Parked, Rescheduled, Store, Target};
pub use error::{Before, Error, Kind};
pub use health::{Guarantee, Health};
pub use id::Id;
pub use record::{Meta, Record};
