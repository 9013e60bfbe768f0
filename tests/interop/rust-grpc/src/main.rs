//! A producer and a simple consumer of version 5 with their defaults, given nothing but an access point.
//! Arguments: the access point, a topic, and a word that the group begins with. It prints "passed connect" when both have met, then
//! "acknowledged COUNT" now and then, until it reads a line; then everything acknowledged must arrive at the consumer.
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Display;
use std::future::Future;
use std::io::stdin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};
use tokio::time::sleep;

const FIRST: usize = 8;
const PATIENCE: Duration = Duration::from_secs(90);
const RETRY: Duration = Duration::from_millis(20);
const INVISIBLE: Duration = Duration::from_secs(20);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Default)]
struct Found {
    acknowledged: Mutex<HashSet<String>>,
    taken: Mutex<HashSet<String>>,
    acks: AtomicUsize,
    failures: AtomicUsize,
    stopped: AtomicBool,
}

impl Found {
    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn all_taken(&self) -> bool {
        self.taken.lock().unwrap().is_superset(&self.acknowledged.lock().unwrap())
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (access_point, topic, group) = (words[1].clone(), words[2].clone(), words[3].clone());
    let found: &'static Found = Box::leak(Box::default());
    report("connect", connect(found, access_point, topic, group)).await;
    tokio::spawn(async move {
        while !found.stopped.load(SeqCst) {
            println!("acknowledged {}", found.count());
            sleep(Duration::from_millis(100)).await;
        }
    });
    tokio::task::spawn_blocking(|| stdin().read_line(&mut String::new())).await.unwrap().unwrap();
    found.stopped.store(true, SeqCst);
    sleep(Duration::from_millis(500)).await;
    println!("acknowledged {} in the end, failed attempts: {}", found.count(), found.failures.load(SeqCst));
    report("survive-simple", until("the simple consumer has all", || found.all_taken())).await;
    std::process::exit(0);
}

async fn connect(found: &'static Found, access_point: String, topic: String, group: String) -> Outcome<()> {
    let mut place = ClientOption::default();
    place.set_access_url(access_point);
    let mut consuming = SimpleConsumerOption::default();
    consuming.set_topics(vec![topic.clone()]);
    consuming.set_consumer_group(format!("{group}-simple"));
    let mut consumer = SimpleConsumer::new(consuming, place.clone())?;
    consumer.start().await?;
    let mut producing = ProducerOption::default();
    producing.set_topics(vec![topic.clone()]);
    let mut producer = Producer::new(producing, place)?;
    producer.start().await?;
    for number in 0..FIRST {
        send(found, &producer, &topic, number).await?;
    }
    tokio::spawn(receive(found, consumer, topic.clone()));
    until("the consumer has the first messages", || found.acks.load(SeqCst) >= FIRST && found.all_taken()).await?;
    tokio::spawn(send_on(found, producer, topic));
    Ok(())
}

async fn send_on(found: &'static Found, producer: Producer, topic: String) {
    for number in FIRST.. {
        while !found.stopped.load(SeqCst) && send(found, &producer, &topic, number).await.is_err() {
            found.failures.fetch_add(1, SeqCst);
            sleep(RETRY).await;
        }
        if found.stopped.load(SeqCst) {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn send(found: &Found, producer: &Producer, topic: &str, number: usize) -> Outcome<()> {
    let body = number.to_string();
    let message = MessageBuilder::builder().set_topic(topic).set_body(body.clone().into_bytes()).build()?;
    producer.send(message).await?;
    found.acknowledged.lock().unwrap().insert(body);
    Ok(())
}

async fn receive(found: &Found, consumer: SimpleConsumer, topic: String) {
    let everything = FilterExpression::new(FilterType::Tag, "*");
    loop {
        match consumer.receive_with(&topic, &everything, 32, INVISIBLE).await {
            Err(_) => sleep(RETRY).await,
            Ok(messages) => {
                for each in messages {
                    // an ack whose answer is lost may count all the same
                    found.taken.lock().unwrap().insert(String::from_utf8_lossy(each.body()).into_owned());
                    if consumer.ack(&each).await.is_ok() {
                        found.acks.fetch_add(1, SeqCst);
                    }
                }
            }
        }
    }
}

async fn report<E: Display>(name: &str, promise: impl Future<Output = Result<(), E>>) {
    match promise.await {
        Ok(()) => println!("passed {name}"),
        Err(error) => println!("failed {name}: {}", error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) -> Outcome<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("not within {} s: {what}", PATIENCE.as_secs()).into());
        }
        sleep(RETRY).await;
    }
    Ok(())
}
