//! Every key in Redis, one function each.
//!
//! All keys of one shard of one bridge share a hash tag, `{<bridge>.<shard>}`, so that a script may touch them
//! together in Redis Cluster. Bridge names are `[A-Za-z0-9._-]`, and settings refuse braces in the prefix: neither can
//! change the tag.

use super::id::Id;

/// The names of all keys under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    shards: u16,
}

/// The keys of one shard of one bridge.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    stem: String,
}

// === impl Keys ===

impl Keys {
    pub(super) fn new(prefix: &str, shards: u16) -> Keys {
        Keys { prefix: prefix.to_owned(), shards: shards.max(1) }
    }

    pub(super) fn shards(&self) -> u16 {
        self.shards
    }

    /// HASH: what the whole prefix has agreed on (`layout`, `shards`).
    pub(super) fn meta(&self) -> String {
        format!("{}:meta", self.prefix)
    }

    /// SET: names of bridges that have ever parked. Without the tag of a shard, so no script touches it.
    pub(super) fn bridges(&self) -> String {
        format!("{}:bridges", self.prefix)
    }

    /// SET: buffer queues that may be bound to the bridge's default exchange. No shard's name ends like it.
    pub(super) fn defaults(&self, bridge: &str) -> String {
        format!("{}:{{{bridge}}}:defaults", self.prefix)
    }

    pub(super) fn shard(&self, bridge: &str, shard: u16) -> Shard {
        Shard { stem: format!("{}:{{{bridge}.{shard}}}", self.prefix) }
    }

    /// In which shard a message lives: by its key if it has one, so that all messages of a key meet, else by its id.
    pub(super) fn shard_of(&self, id: Id, key: Option<&str>) -> u16 {
        key.map_or_else(|| self.spread(id.as_bytes()), |key| self.shard_of_key(key))
    }

    /// In which shard all messages of a key live.
    pub(super) fn shard_of_key(&self, key: &str) -> u16 {
        self.spread(key.as_bytes())
    }

    fn spread(&self, bytes: &[u8]) -> u16 {
        let hash = fnv1a(bytes);
        // The remainder is below `shards`, which is 16 bits.
        u16::try_from(hash % u32::from(self.shards)).unwrap_or(0)
    }
}

// === impl Shard ===

impl Shard {
    /// ZSET: pending messages; score = due in ms, member = id.
    pub(super) fn due(&self) -> String {
        format!("{}:due", self.stem)
    }

    /// ZSET: claimed messages; score = when the lease lapses in ms, member = id, token, due (see `claim.rs`).
    pub(super) fn lease(&self) -> String {
        format!("{}:lease", self.stem)
    }

    /// HASH: id → how often its lease has lapsed. Without an entry: never.
    pub(super) fn lapsed(&self) -> String {
        format!("{}:lapsed", self.stem)
    }

    /// HASH: x-delay-key → id.
    pub(super) fn keys(&self) -> String {
        format!("{}:keys", self.stem)
    }

    /// STRING: the record of one message.
    pub(super) fn payload(&self, id: Id) -> String {
        format!("{}:m:{id}", self.stem)
    }
}

// === helpers ===

/// FNV-1a, 32 bits, written out because it may never change: another hash would look for messages in other shards.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // The published test vectors.
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }

    /// B102.
    #[test]
    fn all_keys_of_a_shard_share_one_tag() {
        let shard = Keys::new("dwell", 4).shard("orders", 3);
        for key in [shard.due(), shard.lease(), shard.lapsed(), shard.keys(), shard.payload(Id::fresh())] {
            let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
            assert_eq!(tag, Some("orders.3"), "{key}");
            assert!(key.starts_with("dwell:{"), "{key}");
        }
    }

    #[test]
    fn fresh_ids_spread_over_the_shards() {
        let keys = Keys::new("dwell", 8);
        let mut counts = [0; 8];
        for _ in 0..8_000 {
            counts[usize::from(keys.shard_of(Id::fresh(), None))] += 1;
        }
        assert!(counts.iter().all(|count| (700..1_300).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_key_decides_the_shard_and_not_the_id() {
        let keys = Keys::new("dwell", 256);
        let one = keys.shard_of(Id::fresh(), Some("order-1"));
        assert!((0..100).all(|_| keys.shard_of(Id::fresh(), Some("order-1")) == one));
    }
}
