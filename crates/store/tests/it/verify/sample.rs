//! Stores written by the real engine, with runs in every state.

use crate::support::Place;
use bytes::Bytes;
use engine::secret::Secret;
use engine::services::{
    CancelRun, Heartbeat, HeartbeatReply, NewTask, ReportOutcome, Reported, SignalRequest, TaskKey, TaskReport,
    WorkRequest,
};
use engine::task_queue::ClaimedTask;
use engine::{ClockMode, Engine, Idempotency, Options, StartRequest};
use kernel::event::{Failure, LogLine};
use kernel::{Event, OrgId, RunId, RunStatus, Span, Timestamp};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::prelude::*;
use tokio::runtime::Runtime;

pub const ORG: OrgId = OrgId(1);
pub const OTHER: OrgId = OrgId(2);

/// The bytes of a closed database, and the ids of its runs.
pub struct Sample {
    file: Vec<u8>,
    /// `a`, `b`, then a condition that is false; completed.
    pub completed: RunId,
    /// Waits for a callback, has labels, a key and a large body.
    pub waiting: RunId,
    /// Forty steps, then asleep; has a snapshot.
    pub sleeping: RunId,
    /// Slept, woke, completed.
    pub woken: RunId,
    pub cancelled: RunId,
    /// An HTTP request is under way.
    pub running: RunId,
    /// Had labels, a callback, a key and a large body; deleted.
    pub erased: RunId,
    /// Its task is ready, and the run is in memory.
    pub offered: RunId,
    /// Its task is ready, and the run is evicted.
    pub evicted: RunId,
    /// Waits for a signal, an approval and an operator; has a signal that no step has read.
    pub asking: RunId,
    /// A step of its loop waits for `child`, another is asleep, and one iteration has ended. A first-join has started.
    pub parent: RunId,
    pub child: RunId,
}

impl Sample {
    pub fn get() -> &'static Sample {
        static SAMPLE: OnceLock<Sample> = OnceLock::new();
        SAMPLE.get_or_init(make)
    }

    pub fn copy(&self) -> Place {
        let place = Place::new();
        std::fs::write(place.database(), &self.file).unwrap();
        place
    }
}

fn make() -> Sample {
    let place = Place::new();
    let runtime = Runtime::new().unwrap();
    // Never accepts a connection, so requests to it hang.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sample = runtime.block_on(async {
        let engine = open(&place).await;
        let sample = populate(&engine, silent.local_addr().unwrap().port()).await;
        drain(&engine).await;
        engine.stop().await;
        sample
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    // Even if another connection is still open, switching the journal mode copies the log into the file.
    place.raw().pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(())).ok();
    place.raw().pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    evict(&place.raw(), sample.evicted);
    Sample { file: std::fs::read(place.database()).unwrap(), ..sample }
}

/// Writes the rows of an eviction. The engine evicts runs with ready tasks only when there are thousands of them.
fn evict(db: &rusqlite::Connection, run: RunId) {
    for statement in [
        "UPDATE runs SET parked = 1, waiting = 1 << 8, wake_at = expires_at, \
         (head, seq) = (SELECT pos, seq FROM journal WHERE run = $1 ORDER BY pos DESC LIMIT 1) WHERE id = $1",
        "INSERT INTO timers SELECT wake_at, org, id FROM runs WHERE id = $1",
        "INSERT INTO ready VALUES (1, 'mail.send.v1', 'k7', 5, $1, 0)",
    ] {
        assert_eq!(db.execute(statement, [run.0]).unwrap(), 1, "{statement}");
    }
}

pub async fn open(place: &Place) -> Engine {
    // Without checkpoints, so that a copy of the two files is consistent.
    let quiet = store::sqlite::Options { passive_bytes: u64::MAX, restart_bytes: u64::MAX, ..Default::default() };
    open_on(Arc::new(place.open_with(quiet))).await
}

async fn open_on(store: Arc<dyn Store>) -> Engine {
    let options = Options {
        secret: Secret::new([7; 32]),
        public_url: "http://127.0.0.1:7420".into(),
        clock: ClockMode::Virtual,
        clock_start: None,
        clock_advance: kernel::Span(0),
        accept_clock: false,
        http: Default::default(),
        seed: None,
        node: String::new(),
        retention: None,
        bash: None,
    };
    Engine::open(store, options).await.unwrap()
}

/// Writes the same runs to another store and stops the engine. The run named by `evicted` is not evicted here.
pub fn fill<F: Future<Output = Arc<dyn Store>>>(store: impl FnOnce() -> F) -> Sample {
    let runtime = Runtime::new().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sample = runtime.block_on(async {
        let engine = open_on(store().await).await;
        let sample = populate(&engine, silent.local_addr().unwrap().port()).await;
        // Reading the journal assigns positions to the records so far; those of the next run have none.
        engine.store().journal_page(ORG, None, 1).await.unwrap();
        let last = start(&engine, ORG, "callback", &json!({ "last": true })).await;
        in_status(&engine, last, RunStatus::Waiting).await;
        engine.stop().await;
        sample
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    sample
}

async fn populate(engine: &Engine, silent: u16) -> Sample {
    let large = json!({ "amount": 7, "text": "x".repeat(10_000) });
    create(
        engine,
        ORG,
        "plain",
        json!({
            "a": { "noop": {} },
            "b": { "needs": ["a"], "log": { "message": "{{trigger.body.amount}}" } },
            "c": { "needs": ["b"], "if": "trigger.body.amount > 9", "noop": {} },
            "d": { "needs": ["c"], "noop": {} },
            "e": { "needs": ["b"], "set": { "twice": ["{{trigger.body.amount}}", "{{trigger.body.amount}}"] } },
        }),
    )
    .await;
    create(engine, ORG, "sleeper", json!({ "nap": { "sleep": "1m" }, "after": { "needs": ["nap"], "noop": {} } }))
        .await;
    create(engine, ORG, "long", json!({ "night": { "sleep": "8h" } })).await;
    let mut forty: serde_json::Map<String, Value> = (0..40)
        .map(|i| {
            (
                format!("s{i}"),
                json!({ "noop": {}, "needs": if i == 0 { json!([]) } else { json!([format!("s{}", i - 1)]) } }),
            )
        })
        .collect();
    forty.insert("rest".into(), json!({ "sleep": "8h", "needs": ["s39"] }));
    create(engine, ORG, "forty", Value::Object(forty)).await;
    create(
        engine,
        ORG,
        "callback",
        json!({
            "call": { "wait_for_webhook": { "timeout": "3h" } },
            "used": { "needs": ["call"], "if": "tasks.call.body.amount == 7", "noop": {} },
        }),
    )
    .await;
    create(
        engine,
        ORG,
        "broken",
        json!({
            "fails": { "url": "http://127.0.0.1:1/{{trigger.body.nothing}}", "retry": "never" },
            "after": { "needs": ["fails"], "noop": {} },
        }),
    )
    .await;
    create(
        engine,
        ORG,
        "retried",
        json!({ "call": {
        "url": "http://127.0.0.1:1/", "retry": { "max_attempts": 3, "backoff": { "type": "fixed", "min": "5m" } } } }),
    )
    .await;
    create(engine, ORG, "hangs", json!({ "call": { "url": format!("http://127.0.0.1:{silent}/"), "timeout": "1h" } }))
        .await;
    let send = |timeouts: Value| {
        json!({ "send": {
            "task": "mail.send.v1", "input": { "n": "{{trigger.body.n}}" }, "priority": 5,
            "concurrency_key": "k{{trigger.body.n}}", "timeouts": timeouts } })
    };
    create(engine, ORG, "outside", send(json!({ "queue": "1h" }))).await;
    create(engine, ORG, "parked", send(json!({}))).await;
    create(
        engine,
        ORG,
        "asking",
        json!({
            "paid": { "wait_for_signal": { "name": "paid", "timeout": "3h" } },
            "known": { "wait_for_signal": { "name": "known" } },
            "review": { "approval": { "prompt": "Pay {{trigger.body.amount}}?", "items": "{{trigger.body.text}}" } },
            "hold": { "pause": {} },
        }),
    )
    .await;
    create(
        engine,
        ORG,
        "parent",
        json!({
            "fast": { "noop": {} },
            "slow": { "sleep": "8h" },
            "first": { "needs": { "any": ["fast", "slow"] }, "noop": {} },
            "each": { "loop": { "items": [0, 1, 2], "concurrency": 2, "tasks": {
                "skip": { "if": "index == 0", "noop": {} },
                "call": { "if": "index == 1", "subworkflow": { "workflow": "long" } },
                "nap": { "if": "index == 2", "sleep": "7h" },
            } } },
            "aside": { "subworkflow": { "workflow": "plain", "detached": true, "input": { "amount": 1 } } },
            "failed": { "allow_failure": true, "subworkflow": { "workflow": "broken" } },
        }),
    )
    .await;
    create(engine, OTHER, "plain", json!({ "a": { "noop": {} } })).await;
    let yearly = json!({ "trigger": "cron", "cron": "0 0 1 1 *", "tasks": { "a": { "noop": {} } }, "name": "yearly" });
    define(engine, ORG, yearly).await;
    define(engine, ORG, json!({ "name": "brief", "max_duration": "30s", "tasks": { "night": { "sleep": "8h" } } }))
        .await;

    let completed = start(engine, ORG, "plain", &large).await;
    ended(engine, ORG, completed, RunStatus::Completed).await;
    let woken = start(engine, ORG, "sleeper", &json!({})).await;
    let out_of_time = start(engine, ORG, "brief", &json!({})).await;
    engine.virtual_clock.advance(Span::from_secs(120)).await.unwrap();
    ended(engine, ORG, woken, RunStatus::Completed).await;
    ended(engine, ORG, out_of_time, RunStatus::Timeout).await;
    let cancelled = start(engine, ORG, "long", &json!({})).await;
    engine.runs.cancel(ORG, cancelled, CancelRun::plain("me", "why not")).await.unwrap();
    let failed = start(engine, ORG, "broken", &json!({})).await;
    ended(engine, ORG, failed, RunStatus::Failed).await;
    let received = start(engine, ORG, "callback", &json!({})).await;
    let token = Secret::new([7; 32]).token(received, "call");
    engine.runs.callback(&token, Bytes::from(large.to_string())).await.unwrap();
    ended(engine, ORG, received, RunStatus::Completed).await;
    // One notification is delivered, and one waits: there is no such workflow.
    for on_failure in ["plain", "missing"] {
        let name = format!("failing {on_failure}");
        let tasks = json!({ "a": { "url": "http://127.0.0.1:1/", "retry": "never" } });
        define(engine, ORG, json!({ "name": name, "on_failure": { "workflow": on_failure }, "tasks": tasks })).await;
        let failed = start(engine, ORG, &name, &json!({})).await;
        ended(engine, ORG, failed, RunStatus::Failed).await;
        notified(engine, failed, on_failure == "plain").await;
    }
    let theirs = start(engine, OTHER, "plain", &json!({})).await;
    ended(engine, OTHER, theirs, RunStatus::Completed).await;

    let erased = start(engine, ORG, "callback", &json!({ "text": "x".repeat(20_000) })).await;
    engine.runs.cancel(ORG, erased, CancelRun::plain("me", "over")).await.unwrap();
    engine.runs.delete(ORG, erased).await.unwrap();

    let waiting = start(engine, ORG, "callback", &large).await;
    let sleeping = start(engine, ORG, "forty", &json!({})).await;
    let retrying = start(engine, ORG, "retried", &json!({})).await;
    for run in [waiting, sleeping, retrying] {
        in_status(engine, run, RunStatus::Waiting).await;
    }
    let running = start(engine, ORG, "hangs", &json!({})).await;
    plain_tasks(engine).await;
    let offered = start(engine, ORG, "outside", &json!({ "n": 7 })).await;
    let evicted = start(engine, ORG, "parked", &json!({ "n": 7 })).await;
    let asking = start(engine, ORG, "asking", &large).await;
    for name in ["known", "unread"] {
        let body = Bytes::from_static(b"1");
        let signal = SignalRequest { name: name.into(), body, actor: "me".into(), key: Some(name.into()) };
        assert_eq!(engine.runs.signal(ORG, asking, signal).await.unwrap().0, kernel::Answer::Applied);
    }
    let parent = start(engine, ORG, "parent", &large).await;
    in_status(engine, parent, RunStatus::Waiting).await;
    let child = child_of(engine, parent).await;
    Sample {
        file: Vec::new(),
        completed,
        waiting,
        sleeping,
        woken,
        cancelled,
        running,
        erased,
        offered,
        evicted,
        asking,
        parent,
        child,
    }
}

/// Waits until the parent waits for one child and every other child has ended, and returns the one.
async fn child_of(engine: &Engine, parent: RunId) -> RunId {
    loop {
        let history = engine.runs.history(ORG, parent).await.unwrap().unwrap();
        let started = history.iter().filter_map(|stored| match &stored.event {
            Event::ChildStarted { child, workflow, .. } => Some((*child, workflow.as_str())),
            _ => None,
        });
        let started: Vec<_> = started.collect();
        let ended = history.iter().filter(|stored| matches!(stored.event, Event::ChildEnded { .. })).count();
        if started.len() == 3 && ended == 2 {
            return started.iter().find(|(_, workflow)| *workflow == "long").unwrap().0;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Tasks in every state: done with progress, a log and a large result; failed for good; snoozed; waiting for the next
/// attempt; leased; cancelled while leased; scheduled for later; ready; deleted.
async fn plain_tasks(engine: &Engine) {
    let submit = |n: u32, run_at: Option<Timestamp>| NewTask {
        name: "work.v1".into(),
        settings: Default::default(),
        // Too large to be stored in the record itself.
        payload: Bytes::from(json!({ "n": n, "text": "x".repeat(5_000) }).to_string()),
        priority: Some(n),
        run_at,
        key: format!("k{}", n % 2),
        labels: vec![("n".into(), n.to_string())],
        callback_url: String::new(),
        idempotency: Some((format!("task {n}"), [3; 32])),
    };
    let later = engine.now().after(Span::from_secs(3_600));
    engine.tasks.submit(ORG, vec![submit(90, Some(later))]).await.unwrap();
    engine.tasks.submit(ORG, (1..=9).map(|n| submit(n, None)).collect()).await.unwrap();
    let leased = work(engine, 8).await;
    assert_eq!(leased.len(), 8);
    let key = |i: usize| TaskKey::plain(leased[i].run);
    let fence = |i: usize| Some(leased[i].fence);
    let failed = |is_final| {
        let failure = Failure::new("broken", "it is");
        ReportOutcome::Failed { failure, is_final, retry_after: None }
    };
    for i in [0, 1] {
        let progress = Some(Bytes::from_static(b"{\"half\":true}"));
        let heartbeat = Heartbeat { task: key(i), fence: fence(i), extend: None, progress };
        assert!(matches!(engine.tasks.heartbeat(ORG, heartbeat).await.unwrap(), HeartbeatReply::Until(_)));
    }
    let lines = vec![LogLine { message: "read me".into(), ..Default::default() }];
    assert_eq!(engine.tasks.log(ORG, key(0), fence(0), lines).await.unwrap(), Reported::Recorded);
    let large = Bytes::from(json!({ "text": "y".repeat(9_000) }).to_string());
    for (i, outcome) in [
        (0, ReportOutcome::Done(large)),
        (1, failed(false)),
        (2, failed(true)),
        (3, ReportOutcome::Snoozed(Span::from_secs(600))),
        (4, ReportOutcome::Done(Bytes::from_static(b"1"))),
    ] {
        let report = TaskReport { task: key(i), fence: fence(i), outcome };
        assert_eq!(engine.tasks.report(ORG, report).await.unwrap(), Reported::Recorded, "{i}");
    }
    engine.tasks.delete(ORG, key(4), "me".into()).await.unwrap();
    engine.runs.cancel(ORG, leased[5].run, CancelRun::plain("me", "why not")).await.unwrap();
}

/// The tasks that a worker gets for a claim.
async fn work(engine: &Engine, credits: u32) -> Vec<ClaimedTask> {
    let request = WorkRequest {
        worker: "w1".into(),
        types: vec!["work.%".into()],
        runtime: None,
        version: None,
        slots: None,
        credits,
        lease: Span::from_secs(30),
        wait: Duration::from_secs(10),
        reports: vec![],
        heartbeats: vec![],
    };
    engine.tasks.work(ORG, request).await.unwrap().claimed.tasks
}

/// Drains the engine while a step is ready to start, so that the step waits for the next process.
async fn drain(engine: &Engine) {
    let left = start(engine, ORG, "callback", &json!({ "left": true })).await;
    in_status(engine, left, RunStatus::Waiting).await;
    engine.drain(Duration::ZERO).await;
    let token = Secret::new([7; 32]).token(left, "call");
    engine.runs.callback(&token, Bytes::from_static(br#"{"amount":7}"#)).await.unwrap();
    let history = engine.runs.history(ORG, left).await.unwrap().unwrap();
    assert!(history.iter().any(|stored| matches!(stored.event, Event::Scheduled { .. })), "{history:?}");
}

async fn create(engine: &Engine, org: OrgId, name: &str, tasks: Value) {
    define(engine, org, json!({ "name": name, "tasks": tasks })).await;
}

async fn define(engine: &Engine, org: OrgId, definition: Value) {
    let tree = lang::read(definition.to_string().as_bytes(), lang::Syntax::Json).unwrap();
    let compiled = lang::compile(&tree).unwrap();
    let key = Some((format!("make {}", compiled.meta.name), [1; 32]));
    engine.workflows.create(org, &compiled, key).await.unwrap();
}

pub async fn start(engine: &Engine, org: OrgId, workflow: &str, body: &Value) -> RunId {
    begin(engine, org, workflow, body).await.unwrap()
}

async fn begin(engine: &Engine, org: OrgId, workflow: &str, body: &Value) -> Result<RunId, engine::Error> {
    let key = format!("key {}", body.to_string().len());
    let idempotency = Idempotency { scope: None, key, fingerprint: [2; 32] };
    let resolved = engine.workflows.resolve(org, workflow).await.unwrap().unwrap();
    let request = StartRequest {
        headers: vec![("x-a".into(), "b".into())],
        labels: vec![("customer".into(), "c1".into()), ("kind".into(), workflow.into())],
        idempotency: (workflow == "callback").then_some(idempotency),
        ..StartRequest::new(org, resolved, Bytes::from(body.to_string()))
    };
    Ok(engine.runs.start(request).await?.run)
}

pub async fn ended(engine: &Engine, org: OrgId, run: RunId, status: RunStatus) {
    assert!(engine.runs.wait(org, run, Duration::from_secs(30)).await.unwrap());
    assert_eq!(engine.runs.read(org, run).await.unwrap().unwrap().row.status, status);
}

async fn in_status(engine: &Engine, run: RunId, status: RunStatus) {
    while engine.runs.read(ORG, run).await.unwrap().unwrap().row.status != status {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the only notification of a run is delivered, or until its delivery has failed.
async fn notified(engine: &Engine, run: RunId, is_delivered: bool) {
    loop {
        let rows = engine.store().run_notifications(ORG, run).await.unwrap();
        if rows.first().map(|row| !row.error.is_empty()) == (!is_delivered).then_some(true) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Calls `check` while an engine writes to the store.
pub fn while_busy(check: impl FnOnce(&Place)) {
    let place = Place::new();
    let runtime = Runtime::new().unwrap();
    let engine = runtime.block_on(busy(&place));
    check(&place);
    runtime.block_on(engine.stop());
}

/// The files that a kill would leave while the engine writes.
pub fn killed() -> Place {
    let mut copy = None;
    while_busy(|place| copy = Some(place.killed()));
    copy.unwrap()
}

async fn busy(place: &Place) -> Engine {
    let engine = open(place).await;
    let tasks = json!({
        "a": { "noop": {} }, "b": { "noop": {} },
        "join": { "needs": ["a", "b"], "set": { "text": "{{trigger.body.text}}" } },
        "nap": { "needs": ["join"], "sleep": "50ms" }, "end": { "needs": ["nap"], "log": { "message": "{{trigger.body.text}}" } },
    });
    create(&engine, ORG, "busy", tasks).await;
    for _ in 0..8 {
        let engine = engine.clone();
        tokio::spawn(async move {
            let body = json!({ "text": "y".repeat(5_000) });
            while begin(&engine, ORG, "busy", &body).await.is_ok() {}
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    engine
}
