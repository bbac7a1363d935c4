//! Delayed messages, watched: publishes what publishers publish, and shows when and by which way each comes out.
//!
//! `make demo` runs it. It works in a vhost and under a key prefix of its own, which it deletes again, on the services
//! that `DWELL_TEST_AMQP_URL`, `DWELL_TEST_REDIS_URL` and `DWELL_TEST_MANAGEMENT_URL` name. The program `dwell` runs
//! beside it as a process, and knows nothing of the demo.

mod ground;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use ground::{Ground, TOPOLOGY, Trouble};
use table::{By, Came, Sent, Way, late_ms, seconds};

/// Watch delayed messages arrive.
#[derive(Parser)]
struct Arguments {
    /// Break the bridge before anything is published; the demo must notice.
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<Broken>,
    /// The daemon to run; the one that cargo has built beside this program by default.
    #[arg(long, value_name = "PROGRAM")]
    dwell: Option<PathBuf>,
}

/// What may be broken.
#[derive(Clone, Copy, ValueEnum)]
enum Broken {
    /// The work queue gets nothing from the work exchange.
    Work,
    /// The tier of one second is not known to the broker: the daemon must stand in.
    Tier,
}

/// One thing that publishers do.
struct Step {
    name: &'static str,
    header: Option<(&'static str, Ask)>,
    wait: Option<Duration>,
    by: By,
}

/// A header's value.
enum Ask {
    Int(i64),
    Text(&'static str),
    /// Epoch milliseconds, that long from when it is published.
    Instant(Duration),
}

/// Such a delay already counts as long: two days in real life.
const BROKER_LIMIT: Duration = Duration::from_secs(4);

const ROUTING_KEY: &str = "order.4711.close";

/// How long after the last due time a message may still come.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long to look for second copies once everything is there.
const AFTERMATH: Duration = Duration::from_millis(400);

fn steps() -> Vec<Step> {
    let ms = |n| Some(Duration::from_millis(n));
    let step = |name, header, wait, by| Step { name, header, wait, by };
    vec![
        step("a tier, as an integer", Some(("x-delay", Ask::Int(1000))), ms(1000), By::Broker),
        step("a tier, as a string", Some(("x-delay", Ask::Text("2000"))), ms(2000), By::Broker),
        step("no header: the default", None, ms(1000), By::Broker),
        step("an off-tier delay", Some(("x-delay", Ask::Int(1234))), ms(1234), By::Dwell),
        step("above the broker limit", Some(("x-delay", Ask::Text("5s"))), ms(5000), By::Dwell),
        step("an instant", Some(("x-deliver-at", Ask::Instant(Duration::from_millis(2500)))), ms(2500), By::Dwell),
        step("no delay at all", Some(("x-delay", Ask::Int(0))), ms(0), By::Dwell),
        step("nobody can read that", Some(("x-delay", Ask::Text("soon"))), None, By::Rejected("invalid-delay")),
    ]
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut ground = match Ground::prepare() {
        Ok(ground) => ground,
        Err(trouble) => {
            eprintln!("demo: {trouble}");
            return ExitCode::from(69);
        }
    };
    let ended = tokio::select! {
        ended = run(&arguments, &mut ground) => ended,
        () = asked_to_stop() => Err("stopped by a signal".into()),
    };
    // The ground cleans up when it is dropped, in all three cases.
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("\nThe daemon's last lines:\n{}", ground.last_words());
            ExitCode::FAILURE
        }
        Err(trouble) => {
            eprintln!("demo: {trouble}\n{}", ground.last_words());
            ExitCode::FAILURE
        }
    }
}

/// From the first line to the verdict: whether all went well.
async fn run(arguments: &Arguments, ground: &mut Ground) -> Result<bool, Trouble> {
    let host = format!("{}:{}", ground.amqp.host_str().unwrap_or("?"), ground.amqp.port().unwrap_or(5672));
    println!("The bridge, in the vhost {} on {host}:\n", ground.name);
    print!("{}", indent(TOPOLOGY));
    println!("\nThe broker limit is {} here, so that a long delay takes seconds.\n", seconds(BROKER_LIMIT));

    let program = match &arguments.dwell {
        Some(program) => program.clone(),
        None => beside_this_program()?,
    };
    ground.start_daemon(&program, TOPOLOGY, BROKER_LIMIT).await?;
    let connection = Connection::connect(ground.amqp.as_str(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    if let Some(broken) = arguments.broken {
        break_bridge(&channel, broken).await?;
    }

    let began = Instant::now();
    let (arrivals, mut inbox) = mpsc::unbounded_channel();
    for queue in ["orders.close", "dwell.rejected"] {
        consume(&channel, queue, began, arrivals.clone()).await?;
    }
    let sent = publish_all(&connection, began).await?;
    println!("{} messages are published. They come out:\n", sent.len());
    let came = gather(&sent, began, &mut inbox).await;

    let faults = table::faults(&sent, &came);
    println!("\n{}\n{}", table::render(&sent, &came), table::verdict(&sent, &faults));
    Ok(faults.is_empty())
}

/// Publishes every message, each confirmed before the next one.
async fn publish_all(connection: &Connection, began: Instant) -> Result<Vec<Sent>, Trouble> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut sent = Vec::new();
    for (number, step) in steps().into_iter().enumerate() {
        let mut headers = FieldTable::default();
        let at = began.elapsed();
        let mut due = step.wait.map(|wait| at + wait);
        let shown = match step.header {
            None => "(none)".to_owned(),
            Some((name, ask)) => {
                let (value, shown) = match ask {
                    Ask::Int(n) => (AMQPValue::LongInt(i32::try_from(n)?), n.to_string()),
                    Ask::Text(text) => (AMQPValue::LongString(text.into()), format!("{text:?}")),
                    Ask::Instant(wait) => {
                        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                        let ms = u64::try_from((now + wait).as_millis())?;
                        due = Some(at + Duration::from_millis(ms).saturating_sub(now));
                        (AMQPValue::LongLongInt(i64::try_from(ms)?), ms.to_string())
                    }
                };
                headers.insert(name.into(), value);
                format!("{name}: {shown}")
            }
        };
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("text/plain".into())
            .with_message_id(number.to_string().into())
            .with_headers(headers);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let publish =
            channel.basic_publish("orders.delay".into(), ROUTING_KEY.into(), options, step.name.as_bytes(), properties);
        match publish.await?.await? {
            Confirmation::Ack(None) => {}
            other => return Err(format!("the broker did not take \"{}\": {other:?}", step.name).into()),
        }
        sent.push(Sent { name: step.name, header: shown, at, due, by: step.by });
    }
    Ok(sent)
}

/// Hands on everything that comes by a queue, with the time at which it came.
async fn consume(
    channel: &Channel,
    queue: &'static str,
    began: Instant,
    arrivals: mpsc::UnboundedSender<Came>,
) -> Result<(), Trouble> {
    let options = BasicConsumeOptions::default();
    let mut stream = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
    tokio::spawn(async move {
        while let Some(Ok(delivery)) = stream.next().await {
            let at = began.elapsed();
            let came = read(&delivery, queue, at);
            let _ = delivery.ack(BasicAckOptions::default()).await;
            if came.is_some_and(|came| arrivals.send(came).is_err()) {
                return;
            }
        }
    });
    Ok(())
}

/// What a delivery tells by itself.
fn read(delivery: &Delivery, queue: &str, at: Duration) -> Option<Came> {
    let properties = &delivery.properties;
    let number: usize = properties.message_id().as_ref()?.as_str().parse().ok()?;
    let headers = properties.headers().clone().unwrap_or_default();
    let header = |name: &str| headers.inner().get(name).and_then(text);
    let way = if queue == "dwell.rejected" {
        Way::Rejected(header("dwell-reason").unwrap_or_else(|| "no reason".into()))
    } else if let Some(tier) = header("dwell-tier") {
        Way::Tier(tier)
    } else if let Some(id) = header("dwell-id") {
        Way::Dwell(since_taken_in(&id).unwrap_or_default())
    } else {
        died_in(headers.inner().get("x-death")).map_or(Way::Straight, Way::Broker)
    };
    let unchanged = delivery.routing_key.as_str() == ROUTING_KEY
        && properties.content_type().as_ref().is_some_and(|t| t.as_str() == "text/plain")
        && steps().get(number).is_some_and(|step| step.name.as_bytes() == &delivery.data[..]);
    Some(Came { number, at, way, unchanged })
}

/// A `dwell-id` is a UUID of version 7: it says when the daemon took the message in.
fn since_taken_in(id: &str) -> Option<Duration> {
    let (seconds, nanos) = uuid::Uuid::parse_str(id).ok()?.get_timestamp()?.to_unix();
    SystemTime::now().duration_since(UNIX_EPOCH + Duration::new(seconds, nanos)).ok()
}

/// The queue of the latest entry in the broker's history of deaths.
fn died_in(death: Option<&AMQPValue>) -> Option<String> {
    let AMQPValue::FieldArray(entries) = death? else { return None };
    let AMQPValue::FieldTable(latest) = entries.as_slice().first()? else { return None };
    latest.inner().get("queue").and_then(text)
}

fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(s) => Some(String::from_utf8_lossy(s.as_bytes()).into_owned()),
        AMQPValue::ShortString(s) => Some(s.to_string()),
        _ => None,
    }
}

/// Shows what comes as it comes, until all is there or nothing more can be hoped for.
async fn gather(sent: &[Sent], began: Instant, inbox: &mut mpsc::UnboundedReceiver<Came>) -> Vec<Came> {
    let last_due = sent.iter().filter_map(|s| s.due).max().unwrap_or_default();
    let mut give_up = last_due + PATIENCE;
    let mut came: Vec<Came> = Vec::new();
    loop {
        let left = give_up.saturating_sub(began.elapsed());
        let Ok(Some(arrival)) = tokio::time::timeout(left, inbox.recv()).await else { return came };
        let Some(message) = sent.get(arrival.number) else { continue };
        let late = message.due.map_or(String::new(), |due| format!(", {:.1} ms late", late_ms(due, arrival.at)));
        println!("{:>9}  {}: {}{late}", seconds(arrival.at), message.name, arrival.way);
        came.push(arrival);
        let complete = (0..sent.len()).all(|number| came.iter().any(|c| c.number == number));
        if complete {
            give_up = give_up.min(began.elapsed() + AFTERMATH);
        }
    }
}

/// Takes bindings away once the daemon consumes: before that it would put them back.
async fn break_bridge(channel: &Channel, broken: Broken) -> Result<(), Trouble> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    while channel.queue_declare("orders.intake".into(), passive, FieldTable::default()).await?.consumer_count() == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    match broken {
        Broken::Work => {
            println!("Broken on purpose: the work queue is unbound from the work exchange.\n");
            let none = FieldTable::default();
            channel.queue_unbind("orders.close".into(), "orders".into(), "order.*.close".into(), none).await?;
        }
        Broken::Tier => {
            println!("Broken on purpose: the broker does not know the tier of one second.\n");
            for value in [AMQPValue::LongLongInt(1000), AMQPValue::LongString("1000".into())] {
                let mut arguments = FieldTable::default();
                arguments.insert("x-match".into(), AMQPValue::LongString("all-with-x".into()));
                arguments.insert("x-delay".into(), value);
                channel.queue_unbind("orders.wait.1s".into(), "orders.tiers".into(), "".into(), arguments).await?;
            }
        }
    }
    Ok(())
}

/// `target/debug/examples/demo` → `target/debug/dwell`
fn beside_this_program() -> Result<PathBuf, Trouble> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(|examples| examples.parent()).ok_or("this program is nowhere")?;
    let dwell = folder.join("dwell");
    if dwell.exists() { Ok(dwell) } else { Err(format!("{} is not built: `cargo build`", dwell.display()).into()) }
}

async fn asked_to_stop() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect()
}
