//! A message on its way through the daemon: what it carries, and the few things that dwell does to it.
//!
//! Everything else comes out as it went in (promise 5). The functions here are pure; they are all that ever changes a
//! property or header.

use bytes::Bytes;

use crate::broker::wire::{self, Headers, Properties, ShortString, Value};
use crate::names::header;
use crate::reason::Reason;
use crate::store::Id;

/// Routing key, properties and body of one message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Never touched: it decides the work queues.
    pub routing_key: ShortString,
    /// All fourteen properties, headers among them.
    pub properties: Properties,
    /// Never looked into.
    pub body: Bytes,
}

/// A header that dwell relies on has a type or size it cannot use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKey;

/// Longest `x-delay-key` in bytes; the same as AMQP's own names.
const LONGEST_KEY: usize = 255;

/// AMQP's `delivery_mode` for messages that survive a broker restart.
const PERSISTENT: u8 = 2;

// === impl Message ===

impl Message {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&Value> {
        self.properties.headers().as_ref().and_then(|h| h.inner().get(name))
    }

    /// The publisher's key.
    ///
    /// # Errors
    /// The header is there but is no text or integer of 1 to 255 bytes.
    pub fn key(&self) -> Result<Option<String>, BadKey> {
        let text = match self.header(header::DELAY_KEY) {
            None => return Ok(None),
            Some(Value::LongLongInt(n)) => n.to_string(),
            Some(Value::LongInt(n)) => n.to_string(),
            Some(Value::LongUInt(n)) => n.to_string(),
            Some(Value::ShortInt(n)) => n.to_string(),
            Some(Value::ShortUInt(n)) => n.to_string(),
            Some(Value::ShortShortInt(n)) => n.to_string(),
            Some(Value::ShortShortUInt(n)) => n.to_string(),
            Some(value) => wire::as_text(value).ok_or(BadKey)?.to_owned(),
        };
        if text.is_empty() || text.len() > LONGEST_KEY { Err(BadKey) } else { Ok(Some(text)) }
    }

    /// Where the message died in `queue` because its own `expiration` passed there, puts that `expiration` back: the
    /// broker took it away and left it in the history of deaths. To be called before [`Message::strip`].
    pub fn restore_expiration(&mut self, queue: &str) {
        if self.properties.expiration().is_some() {
            return;
        }
        let Some(original) = expired_in(self.header(header::DEATH), queue) else { return };
        self.properties = std::mem::take(&mut self.properties).with_expiration(original);
    }

    /// Removes the bookkeeping of an earlier pass, the broker's and our own.
    pub fn strip(&mut self) {
        let stale = self
            .properties
            .headers()
            .as_ref()
            .is_some_and(|h| h.inner().keys().any(|name| header::is_stripped(name.as_str())));
        if stale {
            self.edit_headers(|headers| {
                *headers = Headers::from(
                    headers
                        .inner()
                        .iter()
                        .filter(|(name, _)| !header::is_stripped(name.as_str()))
                        .map(|(name, value)| (name.clone(), value.clone()))
                        .collect::<std::collections::BTreeMap<_, _>>(),
                );
            });
        }
    }

    /// Gives the message its identity, and makes it fit to be published by us: persistent (a transient one would be
    /// lost with the next broker restart), without a `user_id` that the broker would refuse.
    ///
    /// RabbitMQ closes the channel on a `user_id` that is not the publishing user's own; copied as it came it would
    /// kill every attempt (case B85). The publisher's own goes to `dwell-user-id`.
    pub fn adopt(&mut self, id: Id, own_user: &str) {
        let foreign = self.properties.user_id().as_ref().filter(|u| u.as_str() != own_user).cloned();
        if foreign.is_some() {
            self.properties = without(&self.properties, Without::UserId);
        }
        self.properties = std::mem::take(&mut self.properties).with_delivery_mode(PERSISTENT);
        self.edit_headers(|headers| {
            headers.insert(header::ID.into(), wire::text(id.to_string()));
            if let Some(user) = foreign {
                headers.insert(header::USER_ID.into(), wire::text(user.to_string()));
            }
        });
    }

    /// Marks a message of which an earlier copy may have been delivered.
    pub fn mark_redelivered(&mut self) {
        self.edit_headers(|headers| {
            headers.insert(header::REDELIVERED.into(), Value::Boolean(true));
        });
    }

    /// Names the buffer queue that the message is to be placed in.
    pub fn address_tier(&mut self, queue: &str) {
        self.edit_headers(|headers| {
            headers.insert(header::TIER.into(), wire::text(queue));
        });
    }

    /// Makes the message fit to rest: with its reason, and without an `expiration`, which would end its rest.
    pub fn put_to_rest(&mut self, reason: Reason, bridge: &str) {
        let expiration = self.properties.expiration().clone();
        if expiration.is_some() {
            self.properties = without(&self.properties, Without::Expiration);
        }
        self.edit_headers(|headers| {
            headers.insert(header::REASON.into(), wire::text(reason.as_str()));
            headers.insert(header::BRIDGE.into(), wire::text(bridge));
            if let Some(expiration) = expiration {
                headers.insert(header::EXPIRATION.into(), wire::text(expiration.to_string()));
            }
        });
    }

    /// Whether properties and headers fit one frame of that many bytes; a larger block would cost the connection
    /// (501 `FRAME_ERROR`, case B90). The broker may add a little of its own; 4 kB are left for that.
    #[must_use]
    pub fn fits_frame(&self, frame_max: u32) -> bool {
        const SPARE: usize = 4096;
        wire::encode_properties(&self.properties).len() + SPARE <= frame_max as usize
    }

    fn edit_headers(&mut self, edit: impl FnOnce(&mut Headers)) {
        let mut headers = self.properties.headers().clone().unwrap_or_default();
        edit(&mut headers);
        self.properties = std::mem::take(&mut self.properties).with_headers(headers);
    }
}

/// A property that lapin's builder can set but not unset.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Expiration,
    UserId,
}

fn without(p: &Properties, property: Without) -> Properties {
    let mut new = Properties::default();
    macro_rules! copy {
        ($($get:ident => $set:ident),*) => {
            $(if let Some(value) = p.$get().clone() { new = new.$set(value); })*
        };
    }
    copy!(content_type => with_content_type, content_encoding => with_content_encoding, headers => with_headers,
        delivery_mode => with_delivery_mode, priority => with_priority, correlation_id => with_correlation_id,
        reply_to => with_reply_to, message_id => with_message_id, timestamp => with_timestamp, kind => with_type,
        app_id => with_app_id, cluster_id => with_cluster_id);
    if let (Some(value), true) = (p.expiration().clone(), property != Without::Expiration) {
        new = new.with_expiration(value);
    }
    if let (Some(value), true) = (p.user_id().clone(), property != Without::UserId) {
        new = new.with_user_id(value);
    }
    new
}

/// The `original-expiration` of the entry that says "expired in that queue".
fn expired_in(death: Option<&Value>, queue: &str) -> Option<ShortString> {
    let Some(Value::FieldArray(entries)) = death else { return None };
    entries.as_slice().iter().find_map(|entry| {
        let Value::FieldTable(table) = entry else { return None };
        let text = |name: &str| table.inner().get(name).and_then(wire::as_text);
        if text("queue") != Some(queue) || text("reason") != Some("expired") {
            return None;
        }
        // Checked as the broker checks it: anything else in that place would cost the channel (case B34).
        let original = text("original-expiration")?;
        let ms: u64 = original.parse().ok().filter(|_| original.bytes().all(|b| b.is_ascii_digit()))?;
        (ms <= LONGEST_EXPIRATION_MS).then(|| wire::short(original).ok()).flatten()
    })
}

/// RabbitMQ's own ceiling for `expiration` (ten years).
const LONGEST_EXPIRATION_MS: u64 = 315_360_000_000;
