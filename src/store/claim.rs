//! Claims: what a holder may do, what he may not, and what a crash costs at each line.
//!
//! ```text
//!            park                 claim                    settle
//!  (broker) ──────▶ pending ────────────────▶ claimed ────────────────▶ gone
//!                    ▲  ▲                      │  │  ▲
//!                    │  └─── release ──────────┘  │  └─ renew
//!                    └────── reap (lapsed) ───────┘
//! ```
//!
//! **Where a message is.** Its payload exists from park to settle. It is in exactly one of two sorted sets: `due`
//! (pending) or `lease` (claimed). Each script moves it in one step; Redis runs one script at a time.
//!
//! **Who holds it.** A member of the lease set is id, token and due time, 48 bytes; the token is drawn anew for each
//! claim. Settle, renew and release name the exact member, so only who was given the token can remove it, and only
//! while it is there. No two members of one id exist at once: a claim takes ids from `due` alone, and nothing returns
//! one to `due` without removing its member. Hence: *at any moment at most one token holds a message.*
//!
//! **When a claim ends.** By Redis' clock alone. A lease that has run out still holds until somebody reaps it; from
//! then on the old token opens nothing. The holder's own clock only shortens how long he trusts himself: [`Lease`]
//! counts from before the claim was sent, so [`Lease::remaining`] runs out before Redis' count does (unless his clock
//! stands still, as in a suspended machine: then he may publish what another one publishes too, and his settle hears
//! so).
//!
//! **What a holder may do.** Publish while [`Lease::remaining`] is more than what a publish and its confirm can take;
//! renew while he waits for the confirm; settle once he has it; release what he has not begun. He may *not* begin a
//! publish after half the lease without a renewal, release what he has begun, or settle what is not confirmed.
//!
//! **What a crash costs.**
//!
//! | the holder dies | cost |
//! |---|---|
//! | before the claim ran | nothing |
//! | after it ran, also without having heard | its messages are late by the lease; each is marked as lapsed |
//! | after a publish, before its confirm | the same, and perhaps a copy |
//! | after the confirm, before the settle ran | the same, and a copy |
//! | after the settle ran | nothing |
//!
//! A copy bears the same `dwell-id`. Redis dying like that costs the same, as far as its disk is behind (a lost settle
//! is a copy, a lost claim a claim by another), but never a message that was acknowledged as durable.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::id::Id;
use super::record::{self, Record};
use crate::duration::Millis;

/// What a claim brought: at most as much as was asked for, and at most about 32 MiB of records.
#[derive(Debug)]
pub struct Claim {
    /// The right to settle, renew and release `items`. Kept apart, so that items can be given away.
    pub lease: Lease,
    /// Earliest due first; among equal due times in the order of their ids.
    pub items: Vec<Claimed>,
    /// Until the earliest message that is still pending in this shard is due; zero: one is due already. `None`: there
    /// is none. Counted from the claim.
    pub next_due_in: Option<Millis>,
    /// Messages whose payload somebody has deleted by hand. They are settled and cannot be had; each was logged.
    pub lost: usize,
}

/// One message of a claim.
#[derive(Debug)]
pub struct Claimed {
    /// Its `dwell-id`.
    pub id: Id,
    /// By Redis' clock, in epoch milliseconds.
    pub due_ms: u64,
    /// How often its lease has lapsed before. Above zero it may be a copy of what was published then.
    pub lapses: u32,
    /// What to publish; or bytes that are no record, which must be put to rest and not dropped.
    pub record: Result<Record, Undecodable>,
}

/// Bytes from the store that are no record of a version that this dwell reads.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Undecodable {
    /// Why not.
    #[source]
    pub error: record::Error,
    /// All of them.
    pub bytes: Bytes,
}

/// The right to a claim's messages: what was not settled, released or lost yet. Several tasks may share it, one that
/// renews beside one that settles. Dropping it gives nothing back: the lease lapses.
#[derive(Debug)]
pub struct Lease {
    pub(super) bridge: String,
    pub(super) shard: u16,
    token: [u8; 16],
    length: Millis,
    /// Held for moments only, never across an await.
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    entries: HashMap<Id, Entry>,
    began: Instant,
}

#[derive(Debug)]
struct Entry {
    due_ms: u64,
    key: Option<String>,
}

/// What became of the ids that a holder named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For so many it was done (or, for a settle, had been done before).
    pub done: usize,
    /// These were not held any more: the lease had lapsed and was reaped. Another daemon has them, or will.
    pub not_held: Vec<Id>,
}

// === impl Lease ===

impl Lease {
    pub(super) fn new(bridge: &str, shard: u16, length: Millis, began: Instant) -> Lease {
        let held = Mutex::new(Held { entries: HashMap::new(), began });
        Lease { bridge: bridge.to_owned(), shard, token: *Id::fresh().as_bytes(), length, held }
    }

    /// How long it lasts unless it is renewed.
    #[must_use]
    pub fn length(&self) -> Millis {
        self.length
    }

    /// What is left of it at least; zero once it must be taken for lapsed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.length.to_std().saturating_sub(self.held().began.elapsed())
    }

    /// The bridge it was claimed from.
    #[must_use]
    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// The shard it was claimed from.
    #[must_use]
    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// What is still held, in no order.
    #[must_use]
    pub fn ids(&self) -> Vec<Id> {
        self.held().entries.keys().copied().collect()
    }

    pub(super) fn token(&self) -> &[u8; 16] {
        &self.token
    }

    pub(super) fn add(&self, id: Id, due_ms: u64) {
        self.held().entries.insert(id, Entry { due_ms, key: None });
    }

    pub(super) fn set_key(&self, id: Id, key: Option<&str>) {
        if let Some(entry) = self.held().entries.get_mut(&id) {
            entry.key = key.map(ToOwned::to_owned);
        }
    }

    pub(super) fn restart(&self, began: Instant) {
        self.held().began = began;
    }

    /// Settled, released or lost: no longer ours to name.
    pub(super) fn forget(&self, ids: &[Id]) {
        let mut held = self.held();
        for id in ids {
            held.entries.remove(id);
        }
    }

    /// The exact member of the lease set, and the `x-delay-key`; `None` for an id that is not held (any more).
    pub(super) fn member(&self, id: Id) -> Option<(Vec<u8>, Option<String>)> {
        let held = self.held();
        let entry = held.entries.get(&id)?;
        let mut member = Vec::with_capacity(48);
        member.extend_from_slice(id.as_bytes());
        member.extend_from_slice(&self.token);
        member.extend_from_slice(format!("{:016}", entry.due_ms).as_bytes());
        Some((member, entry.key.clone()))
    }

    /// What a panic of another holder may leave behind is still a map of what is held.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_id_token_and_due_in_48_bytes() {
        let lease = Lease::new("orders", 0, Millis::seconds(30), Instant::now());
        let id = Id::fresh();
        lease.add(id, 1_764_547_200_123);
        lease.set_key(id, Some("k"));
        let (member, key) = lease.member(id).expect("it was just added");
        assert_eq!(member.len(), 48);
        assert_eq!(&member[..16], id.as_bytes());
        assert_eq!(&member[16..32], lease.token());
        assert_eq!(&member[32..], b"0001764547200123");
        assert_eq!(key.as_deref(), Some("k"));
        lease.forget(&[id]);
        assert!(lease.member(id).is_none());
    }

    #[test]
    fn the_holder_trusts_himself_no_longer_than_the_lease() {
        let began = Instant::now().checked_sub(Duration::from_secs(20)).expect("the machine is up for longer");
        let lease = Lease::new("orders", 0, Millis::seconds(30), began);
        assert!(lease.remaining() <= Duration::from_secs(10));
        let lease = Lease::new("orders", 0, Millis::seconds(10), began);
        assert_eq!(lease.remaining(), Duration::ZERO);
    }
}
