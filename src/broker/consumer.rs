//! Consuming: deliveries in chunks, acknowledged one by one and last.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery as LapinDelivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;

use super::connection::{Connection, State, under_deadline};
use super::error::Error;
use super::wire::short;
use crate::message::Message;

/// A consumer of one queue, on a channel of its own with its prefetch set before it began.
#[derive(Debug)]
pub struct Consumer {
    connection: Arc<Connection>,
    channel: lapin::Channel,
    stream: lapin::Consumer,
    queue: String,
    /// The end of the stream, met while a chunk was being filled: lapin says it once and is silent from then on.
    ended: Option<Error>,
}

/// A chunk ends at so many bytes of bodies: a thousand small messages are no burden, a thousand of 16 MiB are.
const CHUNK_BYTES: usize = 8 << 20;

/// A message that was delivered and not yet answered.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// The broker has delivered it before, or may have.
    pub redelivered: bool,
    /// By which it is answered.
    pub receipt: Receipt,
}

/// The right to answer one delivery, once.
#[derive(Debug)]
pub struct Receipt(lapin::Acker);

// === impl Consumer ===

impl Consumer {
    /// Begins to consume; the broker sends `prefetch` unacknowledged messages at most.
    pub async fn open(connection: Arc<Connection>, queue: &str, prefetch: u16) -> Result<Consumer, Error> {
        let channel = connection.channel_with_prefetch(prefetch).await?;
        let name = short(queue).map_err(|e| Error::Lost { what: queue.to_owned(), why: e.to_string() })?;
        let consume = channel.basic_consume(name, "".into(), BasicConsumeOptions::default(), FieldTable::default());
        let stream = connection.ask(&format!("consuming queue {queue}"), consume).await?;
        Ok(Consumer { connection, channel, stream, queue: queue.to_owned(), ended: None })
    }

    /// Waits for a delivery and takes with it what else is there already, `max` at most: low traffic is served at
    /// once, high traffic in full chunks.
    ///
    /// # Errors
    /// The consumer has ended: cancelled by the broker (queue deleted, leader lost), channel or connection lost. A
    /// new one must be opened. Every delivery that was not answered comes again.
    pub async fn next_chunk(&mut self, max: usize) -> Result<Vec<Delivery>, Error> {
        if let Some(error) = self.ended.take() {
            return Err(error);
        }
        let mut state = self.connection.state();
        let first = tokio::select! {
            biased;
            first = self.stream.next() => first,
            // lapin's stream can stay silent when the connection dies (case B117).
            _ = state.wait_for(|s| matches!(s, State::Down { .. })) => return Err(self.why_down("the connection ended")),
        };
        let first = self.delivery(first)?;
        let mut bytes = first.message.body.len();
        let mut chunk = vec![first];
        while chunk.len() < max && bytes < CHUNK_BYTES {
            let Some(item) = self.stream.next().now_or_never() else { break };
            match self.delivery(item) {
                Ok(delivery) => {
                    bytes += delivery.message.body.len();
                    chunk.push(delivery);
                }
                Err(error) => {
                    self.ended = Some(error);
                    break;
                }
            }
        }
        Ok(chunk)
    }

    /// Stops the broker from sending more. What was delivered can still be acknowledged.
    pub async fn cancel(&self) {
        let cancel = self.channel.basic_cancel(self.stream.tag(), BasicCancelOptions::default());
        let _ = self.connection.ask("cancelling a consumer", cancel).await;
    }

    /// Makes sure that the queue has heard the acknowledgements that went out, before the channel is closed.
    ///
    /// A channel keeps at most 32 commands to a quorum queue under way (`SOFT_LIMIT` of `rabbit_fifo_client`); acks
    /// beyond them wait in the channel, and closing it drops them: messages that were acknowledged come again. AMQP
    /// has no answer to an ack, but beginning to consume is answered by the queue, in order with the acks sent before;
    /// ending it again leaves time for those that waited. One message may be delivered to that consumer; it is given
    /// back like all that is unanswered.
    pub async fn flush(&self) {
        if let Err(error) = self.flushed().await {
            tracing::debug!(queue = %self.queue, error = %error, "acknowledgements were not flushed; some may come again");
        }
    }

    async fn flushed(&self) -> Result<(), Error> {
        let what = format!("flushing acknowledgements of queue {}", self.queue);
        self.connection.ask(&what, self.channel.basic_qos(1, BasicQosOptions::default())).await?;
        let name = short(&self.queue).map_err(|e| Error::Lost { what: what.clone(), why: e.to_string() })?;
        let consume =
            self.channel.basic_consume(name, "".into(), BasicConsumeOptions::default(), FieldTable::default());
        let barrier = self.connection.ask(&what, consume).await?;
        self.connection.ask(&what, self.channel.basic_cancel(barrier.tag(), BasicCancelOptions::default())).await
    }

    /// Gives back everything unanswered by closing the channel.
    pub async fn close(self) {
        let _ = self.connection.ask("closing a channel", self.channel.close(200, "done".into())).await;
    }

    fn delivery(&self, item: Option<lapin::Result<LapinDelivery>>) -> Result<Delivery, Error> {
        match item {
            Some(Ok(delivery)) => Ok(Delivery::from(delivery)),
            Some(Err(e)) => Err(match Error::from_lapin(&e, &self.what()) {
                // The channel's error is often only "closed"; the connection knows why.
                Error::Lost { why, .. } => self.why_down(&why),
                other => other,
            }),
            None => Err(self.why_down("the broker cancelled the consumer (queue deleted, or its leader was lost)")),
        }
    }

    /// Why nothing comes any more: the connection's own reason where it is down, else `otherwise`.
    fn why_down(&self, otherwise: &str) -> Error {
        match &*self.connection.state().borrow() {
            State::Down { unparsable: true, .. } => Error::Unparsable { what: self.what() },
            State::Down { why, .. } => Error::Lost { what: self.what(), why: why.clone() },
            _ => Error::Lost { what: self.what(), why: otherwise.to_owned() },
        }
    }

    fn what(&self) -> String {
        format!("consuming queue {}", self.queue)
    }
}

// === impl Delivery ===

impl From<LapinDelivery> for Delivery {
    fn from(d: LapinDelivery) -> Delivery {
        Delivery {
            message: Message { routing_key: d.routing_key, properties: d.properties, body: Bytes::from(d.data) },
            redelivered: d.redelivered,
            receipt: Receipt(d.acker),
        }
    }
}

// === impl Receipt ===

impl Receipt {
    /// Whether the channel that delivered it still lives; otherwise the broker delivers the message again, and
    /// nothing done for this copy is worth doing.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.usable()
    }
}

/// Acknowledges; how many acknowledgements went out.
///
/// One that did not is no error here: the broker delivers that message again, which every caller must stand anyway
/// (lapin answers "not done" for a delivery of a lost channel, and must never acknowledge another message instead).
pub async fn ack_all(receipts: impl IntoIterator<Item = Receipt>) -> usize {
    let acks = receipts.into_iter().map(|r| async move {
        matches!(under_deadline("acknowledging", r.0.ack(BasicAckOptions::default())).await, Ok(true))
    });
    join_all(acks).await.into_iter().filter(|done| *done).count()
}

/// Refuses a delivery for good: the queue's own dead-letter exchange takes it.
pub async fn reject(receipt: Receipt) -> bool {
    let options = BasicRejectOptions { requeue: false };
    matches!(under_deadline("rejecting", receipt.0.reject(options)).await, Ok(true))
}
