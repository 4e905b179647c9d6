//! Several engines on one Postgres database, as in a cluster of several processes.

mod changes_across_nodes;
mod inbox;
mod rollback;
mod tasks;

use bytes::Bytes;
use engine::secret::Secret;
use engine::{ClockMode, Engine, HttpOptions, Options, StartRequest};
use kernel::{Answer, Event, OrgId, RunId, RunStatus, Span, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::PostgresStore;
use store::prelude::*;
use testkit::postgres::shared;

const ORG: OrgId = OrgId::DEFAULT;
/// Longer than any takeover or recovery of a node takes.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Node {
    engine: Engine,
    store: Arc<PostgresStore>,
}

async fn node(url: &str, name: &str) -> Node {
    node_at(url, name, None).await
}

/// Opens a node, with a virtual clock if `clock_start` is given.
async fn node_at(url: &str, name: &str, clock_start: Option<Timestamp>) -> Node {
    let store = Arc::new(PostgresStore::open(url).await.unwrap());
    let options = Options {
        secret: Secret::new([7; 32]),
        public_url: "http://127.0.0.1:7420".into(),
        clock: if clock_start.is_some() { ClockMode::Virtual } else { ClockMode::Real },
        clock_start,
        clock_advance: Span(0),
        accept_clock: false,
        http: HttpOptions::default(),
        seed: None,
        node: name.into(),
        retention: None,
        bash: None,
    };
    Node { engine: Engine::open(store.clone(), options).await.unwrap(), store }
}

impl Node {
    async fn define(&self, definition: Value) {
        let tree = lang::read(definition.to_string().as_bytes(), lang::Syntax::Json).unwrap();
        self.engine.workflows.create(ORG, &lang::compile(&tree).unwrap(), None).await.unwrap();
    }

    async fn start(&self, workflow: &str) -> RunId {
        let resolved = self.engine.workflows.resolve(ORG, workflow).await.unwrap().unwrap();
        self.engine.runs.start(StartRequest::new(ORG, resolved, Bytes::from("{}"))).await.unwrap().run
    }

    async fn status(&self, run: RunId) -> RunStatus {
        self.engine.runs.read(ORG, run).await.unwrap().unwrap().row.status
    }

    async fn completes(&self, run: RunId) {
        let until = Instant::now() + TIMEOUT;
        while self.status(run).await != RunStatus::Completed {
            let explanation = self.engine.runs.explain(ORG, run, None).await.unwrap().unwrap().1;
            assert!(Instant::now() < until, "{run} has not completed: {explanation:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn events(&self, run: RunId) -> Vec<(Timestamp, Event)> {
        let events = self.engine.runs.history(ORG, run).await.unwrap().unwrap();
        events.into_iter().map(|stored| (stored.at, stored.event)).collect()
    }

    /// Stops the engine as a kill would: it does not hand over its work.
    async fn stop(self) {
        self.engine.stop().await;
    }
}

/// An HTTP server that leaves requests unanswered until it is open.
struct Upstream {
    address: SocketAddr,
    is_open: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, is_open) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let (open, asked) = (is_open.clone(), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for mut socket in listener.incoming().flatten() {
                count.fetch_add(1, SeqCst);
                if !open.load(SeqCst) {
                    kept.push(socket);
                    continue;
                }
                let mut request = [0; 4096];
                let _ = socket.read(&mut request);
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
            }
        });
        Upstream { address, is_open, asked }
    }

    /// A step that calls it.
    fn call(&self) -> Value {
        json!({ "url": format!("http://{}/", self.address), "method": "GET", "timeout": "60s", "retries": 5 })
    }

    async fn wait_for_requests(&self, times: usize) {
        let until = Instant::now() + TIMEOUT;
        while self.asked.load(SeqCst) < times {
            assert!(Instant::now() < until, "{} requests arrived", self.asked.load(SeqCst));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_nodes_runs_are_taken_over_within_its_lease() {
    let url = shared().database();
    let (a, b) = (node(&url, "a").await, node(&url, "b").await);
    take_over(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_the_newest_node_are_taken_over_too() {
    let url = shared().database();
    let (b, a) = (node(&url, "b").await, node(&url, "a").await);
    take_over(a, b).await;
}

/// `a` dies while it executes steps, and `b` goes on with its runs.
async fn take_over(a: Node, b: Node) {
    let upstream = Upstream::start();
    a.define(json!({ "name": "call", "tasks": {
        "call": upstream.call(),
        "after": { "needs": ["call"], "noop": {} },
    } }))
    .await;
    a.define(
        json!({ "name": "nap", "tasks": { "nap": { "sleep": "6s" }, "after": { "needs": ["nap"], "noop": {} } } }),
    )
    .await;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.extend([a.start("call").await, a.start("nap").await]);
    }
    upstream.wait_for_requests(10).await;
    upstream.is_open.store(true, SeqCst);
    let died = Instant::now();
    a.stop().await;
    for run in &runs {
        b.completes(*run).await;
    }
    assert!(died.elapsed() < Duration::from_secs(15), "takeover took {:?}", died.elapsed());
    for run in runs {
        let finished = b.events(run).await.iter().filter(|(_, event)| matches!(event, Event::RunCompleted {})).count();
        assert_eq!(finished, 1);
    }
    b.engine.drain(Duration::ZERO).await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_declared_dead_rejoins_and_continues() {
    let url = shared().database();
    let (a, b) = (node(&url, "a").await, node(&url, "b").await);
    let upstream = Upstream::start();
    a.define(json!({ "name": "call", "tasks": { "call": upstream.call() } })).await;
    let mut runs = Vec::new();
    for n in 0..10 {
        runs.push(if n % 2 == 0 { a.start("call").await } else { b.start("call").await });
    }
    upstream.wait_for_requests(10).await;
    upstream.is_open.store(true, SeqCst);
    // The other node declares this one dead.
    let own: u64 =
        shared().sql(testkit::postgres::name_in(&url), "SELECT max(epoch) - 1 FROM onward.nodes").parse().unwrap();
    b.store.leave(own).await.unwrap();
    let late = loop {
        let resolved = a.engine.workflows.resolve(ORG, "call").await.unwrap().unwrap();
        match a.engine.runs.start(StartRequest::new(ORG, resolved, Bytes::from("{}"))).await {
            Ok(started) => break started.run,
            Err(engine::Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(other) => panic!("{other}"),
        }
    };
    a.completes(late).await;
    for (n, run) in runs.into_iter().enumerate() {
        let through = if n % 2 == 0 { &b } else { &a };
        match n % 2 {
            // Runs of the node that was declared dead: the attempt is lost, and the new owner of the run
            // makes another.
            0 => through.completes(run).await,
            _ => assert_eq!(through.status(run).await, RunStatus::Running, "the other node still waits for its answer"),
        }
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_of_64_fed_through_two_nodes_fires_once() {
    let url = shared().database();
    let (a, b) = (node(&url, "a").await, node(&url, "b").await);
    let mut tasks: serde_json::Map<String, Value> =
        (0..64).map(|i| (format!("w{i}"), json!({ "wait_for_webhook": { "timeout": "1h" } }))).collect();
    let all: Vec<String> = tasks.keys().cloned().collect();
    tasks.insert("join".into(), json!({ "needs": all, "log": { "message": "joined" } }));
    a.define(json!({ "name": "join", "tasks": tasks })).await;
    let secret = Secret::new([7; 32]);
    let rounds = if std::env::var_os("ONWARD_LONG").is_some() { 100 } else { 4 };
    for round in 0..rounds {
        let run = if round % 2 == 0 { a.start("join").await } else { b.start("join").await };
        let calls = (0..64).map(|i| {
            let (engine, token) =
                (if i % 2 == 0 { &a } else { &b }.engine.clone(), secret.token(run, &format!("w{i}")));
            tokio::spawn(async move {
                loop {
                    match engine.runs.callback(&token, Bytes::from("{}")).await {
                        Ok(answer) => break answer,
                        Err(engine::Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                        Err(other) => panic!("{other}"),
                    }
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap(), Answer::Applied);
        }
        b.completes(run).await;
        let started = b.events(run).await.iter().filter(|(_, event)| matches!(event, Event::Started { .. })).count();
        assert_eq!(started, 1, "starts of the step after the join");
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_limit_holds_across_nodes_and_every_run_completes() {
    let url = shared().database();
    let (a, b) = (node(&url, "a").await, node(&url, "b").await);
    for (name, limit) in [("one", 1), ("three", 3)] {
        a.define(json!({
            "name": name,
            "concurrency": { "key": "all", "limit": limit },
            "tasks": { "nap": { "sleep": "150ms" } },
        }))
        .await;
    }
    let mut runs = Vec::new();
    for n in 0..16 {
        let through = if n % 3 == 0 { &a } else { &b };
        runs.push((if n % 2 == 0 { 1 } else { 3 }, through.start(if n % 2 == 0 { "one" } else { "three" }).await));
    }
    let mut times = Vec::new();
    for (limit, run) in runs {
        b.completes(run).await;
        let events = b.events(run).await;
        let began = events.iter().find(|(_, e)| matches!(e, Event::TimerSet { .. })).unwrap().0;
        let ended = events.iter().find(|(_, e)| matches!(e, Event::RunCompleted {})).unwrap().0;
        times.push((limit, began, ended));
    }
    for (limit, began, _) in &times {
        let open = times.iter().filter(|(other, from, to)| other == limit && from <= began && began < to).count();
        assert!(open <= *limit, "{open} runs are open at once, the limit is {limit}");
    }
    a.stop().await;
    b.stop().await;
}
