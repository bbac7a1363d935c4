//! Publishing with mandatory and confirms, and the truth about each message afterwards.
//!
//! lapin attaches a `basic.return` to whichever confirm completes next, so an unroutable message can be reported as
//! confirmed and a routed one as returned. Therefore a batch is settled as a whole: only when every confirm of the
//! batch is in, the `dwell-id`s seen in any returned message are subtracted. Confirms are also mixed up where two
//! tasks publish on one channel; a [`Publisher`] takes `&mut self`, so it has one user at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation};
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use super::error::Error;
use super::link::Link;
use super::wire::{self, ShortString};
use crate::config::Amqp;
use crate::message::Message;
use crate::metrics;
use crate::names::header;

/// A message and where it is to go. In a batch its headers must hold a `dwell-id`, by which returns are told apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// The exchange; empty for RabbitMQ's default exchange.
    pub exchange: ShortString,
    /// The message, ready to go.
    pub message: Message,
}

/// What became of a message that was to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every queue it was routed to has it.
    Confirmed,
    /// No queue wanted it; the broker kept nothing.
    Returned {
        /// The broker's words, such as `NO_ROUTE`.
        why: String,
    },
    /// A queue refused it (full, or without a leader). Others may have it.
    Nacked,
    /// The broker closed the channel over this very message: 403, 404, 406 and the like.
    Refused {
        /// AMQP reply code.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// It was never handed to the connection: nobody can have it.
    NotBegun {
        /// Why not.
        why: String,
    },
    /// It was handed over and no answer came: somebody may have it.
    Unknown {
        /// What happened instead.
        why: String,
    },
}

/// Whether the broker may take later what it refuses now with this code: an exchange that is missing (404), a right that
/// is missing (403), an object that somebody else holds (405). The rest lies in the message.
#[must_use]
pub fn passes_with_time(code: u16) -> bool {
    matches!(code, 403..=405)
}

impl From<&Outcome> for metrics::Publish {
    fn from(outcome: &Outcome) -> metrics::Publish {
        match outcome {
            Outcome::Confirmed => metrics::Publish::Confirmed,
            Outcome::Returned { .. } => metrics::Publish::Returned,
            Outcome::Nacked => metrics::Publish::Nacked,
            Outcome::Refused { .. } => metrics::Publish::Refused,
            Outcome::NotBegun { .. } | Outcome::Unknown { .. } => metrics::Publish::Unknown,
        }
    }
}

/// One publishing channel, opened when it is first needed and again whenever it is lost.
#[derive(Debug)]
pub struct Publisher {
    link: Link,
    lane: Option<Lane>,
    confirm_timeout: Duration,
}

/// A channel in confirm mode and the connection it lives on.
#[derive(Debug)]
struct Lane {
    connection: Arc<Connection>,
    channel: lapin::Channel,
}

/// What one attempt at a batch has shown.
struct Attempt {
    outcomes: Vec<Outcome>,
    /// The broker closed the channel with these words; one of the unknown ones is to blame.
    refusal: Option<(u16, String)>,
}

// === impl Publisher ===

impl Publisher {
    /// A publisher on a connection that may not be up yet.
    #[must_use]
    pub fn new(link: Link, confirm_timeout: Duration) -> Publisher {
        Publisher { link, lane: None, confirm_timeout }
    }

    /// Publishes a batch and tells the truth about each message, in the same order.
    ///
    /// Messages that could not be handed over by `begin_by` are [`Outcome::NotBegun`]. Where the connection takes
    /// nothing (blocked) past that, it is cut, so that what lapin has buffered is never published later.
    ///
    /// Where the broker closes the channel over one message, the ones without an answer are published again, one by
    /// one: a single poison message must not hold up the rest. That may make second copies, as after any lost answer.
    pub async fn publish(&mut self, batch: &[Outgoing], begin_by: Instant) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let attempt = self.attempt(batch, begin_by).await;
        let Some((code, text)) = attempt.refusal else { return attempt.outcomes };
        let mut outcomes = attempt.outcomes;
        let open: Vec<usize> = (0..batch.len())
            .filter(|&i| matches!(outcomes[i], Outcome::Unknown { .. } | Outcome::NotBegun { .. }))
            .collect();
        if let [only] = open[..] {
            outcomes[only] = Outcome::Refused { code, text };
            return outcomes;
        }
        let mut gone: Option<(ShortString, Outcome)> = None;
        for i in open {
            // An exchange that is gone is gone for all: asking for each message would only cost a channel each.
            if let Some((exchange, outcome)) = &gone
                && *exchange == batch[i].exchange
            {
                outcomes[i] = outcome.clone();
                continue;
            }
            let alone = self.attempt(&batch[i..=i], begin_by.max(Instant::now() + Duration::from_secs(1))).await;
            outcomes[i] = match alone.refusal {
                Some((code, text)) => {
                    let refused = Outcome::Refused { code, text };
                    if code == 404 {
                        gone = Some((batch[i].exchange.clone(), refused.clone()));
                    }
                    refused
                }
                None => alone.outcomes.into_iter().next().unwrap_or(Outcome::NotBegun { why: "no answer".into() }),
            };
        }
        outcomes
    }

    async fn attempt(&mut self, batch: &[Outgoing], begin_by: Instant) -> Attempt {
        let not_begun = |why: String| Attempt { outcomes: vec![Outcome::NotBegun { why }; batch.len()], refusal: None };
        let confirm_timeout = self.confirm_timeout;
        let lane = match timeout_at(begin_by, self.lane()).await {
            Ok(Ok(lane)) => lane,
            Ok(Err(e)) => return not_begun(e.to_string()),
            Err(_) => return not_begun("no connection in time".into()),
        };

        // Hand over. `basic_publish` returns when the frames are queued at the socket, so a connection that takes
        // nothing stops this loop, not the confirms.
        let mut confirms = Vec::with_capacity(batch.len());
        let mut failure: Option<Error> = None;
        let mut half_begun = false;
        for out in batch {
            // Looked at before: a publish that is awaited at all has its frames queued already.
            if Instant::now() >= begin_by {
                break;
            }
            let publish = lane.channel.basic_publish(
                out.exchange.clone(),
                out.message.routing_key.clone(),
                BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
                &out.message.body,
                out.message.properties.clone(),
            );
            match timeout_at(begin_by, publish).await {
                Ok(Ok(confirm)) => confirms.push(confirm),
                Ok(Err(e)) => {
                    failure = Some(Error::from_lapin(&e, "publishing"));
                    half_begun = true;
                    break;
                }
                Err(_) => {
                    // Blocked: what lapin has buffered would go out whenever the alarm ends. A connection that is only
                    // slow carries other bridges too, and is not cut for one batch.
                    if !lane.connection.is_up() {
                        lane.connection.abort();
                    }
                    failure = Some(Error::Lost {
                        what: "publishing".into(),
                        why: "the connection did not take it in time".into(),
                    });
                    half_begun = true;
                    break;
                }
            }
        }
        let begun = confirms.len();

        // Hear every confirm of the batch before any of them counts.
        let deadline = Instant::now() + confirm_timeout;
        let heard = join_all(confirms.into_iter().map(|confirm| timeout_at(deadline, confirm))).await;
        let mut returned: HashMap<String, String> = HashMap::new();
        let mut outcomes = Vec::with_capacity(batch.len());
        for answer in heard {
            outcomes.push(match answer {
                Ok(Ok(Confirmation::Ack(back))) => {
                    note_return(&mut returned, back.as_ref());
                    Outcome::Confirmed
                }
                Ok(Ok(Confirmation::Nack(back))) => {
                    note_return(&mut returned, back.as_ref());
                    Outcome::Nacked
                }
                Ok(Ok(Confirmation::NotRequested)) => Outcome::Unknown { why: "the channel gives no confirms".into() },
                Ok(Err(e)) => {
                    let e = Error::from_lapin(&e, "awaiting a confirm");
                    let why = e.to_string();
                    // The broker's own words say more than "the channel is closed", which a later publish met first.
                    if matches!(e, Error::Refused { .. }) || failure.is_none() {
                        failure = Some(e);
                    }
                    Outcome::Unknown { why }
                }
                Err(_) => {
                    // Blocked since: what lapin has buffered would go out whenever the alarm ends.
                    if !lane.connection.is_up() {
                        lane.connection.abort();
                    }
                    failure.get_or_insert(Error::Timeout {
                        what: "awaiting a confirm".into(),
                        ms: u64::try_from(confirm_timeout.as_millis()).unwrap_or(u64::MAX),
                    });
                    Outcome::Unknown { why: "no confirm in time".into() }
                }
            });
        }
        let alone = batch.len() == 1;
        for (outcome, out) in outcomes.iter_mut().zip(batch) {
            let id = out.message.header(header::ID).and_then(wire::as_text);
            // What was published alone needs no id to be told apart.
            let back = if alone { returned.values().next() } else { id.and_then(|id| returned.get(id)) };
            if let Some(why) = back {
                *outcome = Outcome::Returned { why: why.clone() };
            }
        }
        if begun < batch.len() {
            let why = failure.as_ref().map_or_else(|| "not begun in time".to_owned(), ToString::to_string);
            // The message at which handing over failed may be half in lapin's buffer: nobody can say.
            if half_begun {
                outcomes.push(Outcome::Unknown { why: why.clone() });
            }
            outcomes.resize(batch.len(), Outcome::NotBegun { why });
        }
        let refusal = match &failure {
            Some(Error::Refused { code, text, .. }) => Some((*code, text.clone())),
            _ => None,
        };
        if failure.is_some() {
            // A channel with an answer missing is never used again: a late confirm or return would be counted
            // for another batch.
            self.drop_lane();
        }
        Attempt { outcomes, refusal }
    }

    async fn lane(&mut self) -> Result<&Lane, Error> {
        let usable = self.lane.as_ref().is_some_and(|l| l.connection.is_up() && l.channel.status().connected());
        if !usable {
            self.drop_lane();
            let connection = self.link.connection().await;
            let channel = connection.channel().await?;
            connection.ask("switching to confirms", channel.confirm_select(ConfirmSelectOptions::default())).await?;
            self.lane = Some(Lane { connection, channel });
        }
        self.lane.as_ref().ok_or_else(|| Error::Lost { what: "publishing".into(), why: "the channel is gone".into() })
    }

    /// Closes the channel in the background: a closed or dead one must not keep the caller waiting.
    fn drop_lane(&mut self) {
        if let Some(lane) = self.lane.take()
            && lane.connection.is_up()
            && lane.channel.status().connected()
        {
            tokio::spawn(async move {
                let _ = lane.connection.ask("closing a channel", lane.channel.close(200, "replaced".into())).await;
            });
        }
    }
}

fn note_return(returned: &mut HashMap<String, String>, back: Option<&lapin::message::BasicReturnMessage>) {
    let Some(back) = back else { return };
    let id = BasicProperties::headers(&back.properties)
        .as_ref()
        .and_then(|h| h.inner().get(header::ID))
        .and_then(wire::as_text);
    returned.insert(id.unwrap_or_default().to_owned(), format!("{} {}", back.reply_code, back.reply_text));
}

/// Publishes one message on a connection of its own, and waits for its confirm; for the command line. The message needs
/// no `dwell-id`.
///
/// # Errors
/// No address of the settings answers, or none lets us in.
pub async fn publish_one(settings: &Amqp, message: Outgoing, confirm_timeout: Duration) -> Result<Outcome, Error> {
    let settings = Arc::new(settings.clone());
    let connection = Arc::new(Connection::open(&settings, "dwell send").await?);
    let mut publisher = Publisher::new(Link::to(settings, connection.clone()), confirm_timeout);
    let outcome = publisher.publish(&[message], Instant::now() + confirm_timeout).await.into_iter().next();
    publisher.lane = None;
    connection.close(Duration::from_secs(2)).await;
    Ok(outcome.unwrap_or(Outcome::NotBegun { why: "nothing was published".into() }))
}
