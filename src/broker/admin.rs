//! Declaring and counting: the requests that change or look at topology, each on a channel that may be lost to it.

use std::sync::Arc;

use lapin::ExchangeKind;
use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, ExchangeUnbindOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};

use super::connection::Connection;
use super::error::Error;
use super::wire::{self, Headers, ShortString, Value};
use crate::declare::declaration::{Argument, Arguments, Binding, Exchange, Object, Queue, Target};

/// A channel for declarations, replaced whenever the broker closes it over one of them.
#[derive(Debug)]
pub struct Admin {
    connection: Arc<Connection>,
    channel: Option<lapin::Channel>,
}

/// Why an object was not declared.
#[derive(Clone, Debug)]
pub enum DeclareError {
    /// The broker refuses this object; others may work.
    Refused {
        /// AMQP reply code.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// The broker is gone, or too slow.
    Broker(Error),
}

// === impl Admin ===

impl Admin {
    /// For declarations on that connection.
    #[must_use]
    pub fn new(connection: Arc<Connection>) -> Admin {
        Admin { connection, channel: None }
    }

    /// Declares one object; a no-op where it exists as described.
    ///
    /// # Errors
    /// [`DeclareError::Refused`] where it exists otherwise (406) or may not be declared (403).
    pub async fn declare(&mut self, object: &Object) -> Result<(), DeclareError> {
        let what = format!("declaring {object}");
        let result = match object {
            Object::Exchange(x) => self.exchange(x, &what).await,
            Object::Queue(q) => self.queue(q, &what).await,
            Object::Binding(b) => self.bind(b, &what).await,
            Object::Unbound(b) => match self.unbind(b, &what).await {
                // Neither queue nor exchange: then there is no binding either.
                Err(Error::Refused { code: 404, .. }) => {
                    self.channel = None;
                    Ok(())
                }
                other => other,
            },
        };
        self.outcome(result)
    }

    /// A refusal has cost the channel.
    fn outcome(&mut self, result: Result<(), Error>) -> Result<(), DeclareError> {
        result.map_err(|e| {
            self.channel = None;
            match e {
                Error::Refused { code, text, .. } => DeclareError::Refused { code, text },
                other => DeclareError::Broker(other),
            }
        })
    }

    /// Whether an exchange or a queue exists, by a passive declare; `None`: the broker will not say (403: some versions
    /// want rights for it). For bindings, which AMQP cannot ask for, always `None`.
    ///
    /// # Errors
    /// The broker is gone, or too slow.
    pub async fn exists(&mut self, object: &Object) -> Result<Option<bool>, Error> {
        let what = format!("looking for {object}");
        let connection = self.connection.clone();
        let answer = match object {
            Object::Exchange(x) => {
                let Ok(name) = wire::short(&x.name) else { return Ok(None) };
                let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                let channel = self.channel().await?;
                let declare = channel.exchange_declare(name, kind(&x.kind), options, Headers::default());
                connection.ask(&what, declare).await
            }
            Object::Queue(q) => {
                let Ok(name) = wire::short(&q.name) else { return Ok(None) };
                let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                let channel = self.channel().await?;
                connection.ask(&what, channel.queue_declare(name, options, Headers::default())).await.map(|_| ())
            }
            Object::Binding(_) | Object::Unbound(_) => return Ok(None),
        };
        if answer.is_err() {
            self.channel = None;
        }
        match answer {
            Ok(()) => Ok(Some(true)),
            Err(Error::Refused { code: 404, .. }) => Ok(Some(false)),
            Err(Error::Refused { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Deletes a queue, whatever is in it: quorum queues know no delete-if-empty, so the caller must have made sure.
    ///
    /// # Errors
    /// See [`Admin::declare`].
    pub async fn delete_queue(&mut self, queue: &str) -> Result<(), DeclareError> {
        let what = format!("deleting queue '{queue}'");
        let connection = self.connection.clone();
        let deleted = async {
            let channel = self.channel().await?;
            let delete = channel.queue_delete(name(queue)?, QueueDeleteOptions::default());
            connection.ask(&what, delete).await.map(|_| ())
        }
        .await;
        self.outcome(deleted)
    }

    /// Deletes an exchange and the bindings from and to it.
    ///
    /// # Errors
    /// See [`Admin::declare`].
    pub async fn delete_exchange(&mut self, exchange: &str) -> Result<(), DeclareError> {
        let what = format!("deleting exchange '{exchange}'");
        let connection = self.connection.clone();
        let deleted = async {
            let channel = self.channel().await?;
            connection.ask(&what, channel.exchange_delete(name(exchange)?, ExchangeDeleteOptions::default())).await
        }
        .await;
        self.outcome(deleted)
    }

    /// How many messages are ready in a queue, by a passive declare; `None` where the broker will not say (missing,
    /// or not allowed: some versions want rights for it).
    pub async fn depth(&mut self, queue: &str) -> Result<Option<u32>, Error> {
        let Ok(name) = wire::short(queue) else { return Ok(None) };
        let connection = self.connection.clone();
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declare = channel.queue_declare(name, options, Headers::default());
        match connection.ask("looking at a queue", declare).await {
            Ok(queue) => Ok(Some(queue.message_count())),
            Err(Error::Refused { .. }) => {
                self.channel = None;
                Ok(None)
            }
            Err(e) => {
                self.channel = None;
                Err(e)
            }
        }
    }

    async fn channel(&mut self) -> Result<&lapin::Channel, Error> {
        if !self.channel.as_ref().is_some_and(|c| c.status().connected()) {
            self.channel = Some(self.connection.channel().await?);
        }
        self.channel.as_ref().ok_or_else(|| Error::Lost { what: "declaring".into(), why: "no channel".into() })
    }

    async fn exchange(&mut self, x: &Exchange, what: &str) -> Result<(), Error> {
        let name = name(&x.name)?;
        let options =
            ExchangeDeclareOptions { durable: true, internal: x.internal, ..ExchangeDeclareOptions::default() };
        let connection = self.connection.clone();
        let channel = self.channel().await?;
        connection.ask(what, channel.exchange_declare(name, kind(&x.kind), options, table(&x.arguments)?)).await
    }

    async fn queue(&mut self, q: &Queue, what: &str) -> Result<(), Error> {
        let name = name(&q.name)?;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let connection = self.connection.clone();
        let channel = self.channel().await?;
        connection.ask(what, channel.queue_declare(name, options, table(&q.arguments)?)).await.map(|_| ())
    }

    async fn unbind(&mut self, b: &Binding, what: &str) -> Result<(), Error> {
        let (source, key) = (name(&b.source)?, name(&b.routing_key)?);
        let arguments = table(&b.arguments)?;
        let connection = self.connection.clone();
        let channel = self.channel().await?;
        match &b.target {
            Target::Queue(queue) => {
                connection.ask(what, channel.queue_unbind(name(queue)?, source, key, arguments)).await
            }
            Target::Exchange(exchange) => {
                let options = ExchangeUnbindOptions::default();
                connection.ask(what, channel.exchange_unbind(name(exchange)?, source, key, options, arguments)).await
            }
        }
    }

    async fn bind(&mut self, b: &Binding, what: &str) -> Result<(), Error> {
        let (source, key) = (name(&b.source)?, name(&b.routing_key)?);
        let arguments = table(&b.arguments)?;
        let connection = self.connection.clone();
        let channel = self.channel().await?;
        match &b.target {
            Target::Queue(queue) => {
                let options = QueueBindOptions::default();
                connection.ask(what, channel.queue_bind(name(queue)?, source, key, options, arguments)).await
            }
            Target::Exchange(exchange) => {
                let options = ExchangeBindOptions::default();
                connection.ask(what, channel.exchange_bind(name(exchange)?, source, key, options, arguments)).await
            }
        }
    }
}

fn kind(name: &str) -> ExchangeKind {
    match name {
        "topic" => ExchangeKind::Topic,
        "direct" => ExchangeKind::Direct,
        "fanout" => ExchangeKind::Fanout,
        "headers" => ExchangeKind::Headers,
        other => ExchangeKind::Custom(other.to_owned()),
    }
}

fn name(text: &str) -> Result<ShortString, Error> {
    // Topologies are validated; a name that is too long can only be a defect, and is refused rather than a panic.
    wire::short(text).map_err(|e| Error::Refused { what: text.to_owned(), code: 406, text: e.to_string() })
}

fn table(arguments: &Arguments) -> Result<Headers, Error> {
    let mut table = Headers::default();
    for (key, value) in arguments {
        let value = match value {
            Argument::Bool(b) => Value::Boolean(*b),
            Argument::Int(n) => Value::LongLongInt(*n),
            Argument::Text(s) => wire::text(s),
            Argument::Present => Value::Void,
            // Only ever read from a broker, never declared.
            Argument::Other(json) => wire::text(json),
        };
        table.insert(name(key)?, value);
    }
    Ok(table)
}
