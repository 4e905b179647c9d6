//! Tasks and workers on two nodes. A task recorded through one node can be claimed through any node, goes to
//! one worker, and counts towards cluster-wide limits.

use super::{Node, ORG, TIMEOUT, node};
use bytes::Bytes;
use engine::services::{
    CancelRun, Heartbeat, HeartbeatReply, NewTask, ReportOutcome, Reported, TaskKey, TaskReport, TypeChange, WorkReply,
    WorkRequest,
};
use kernel::event::{Event, LogLine, Record};
use kernel::{RunId, RunStatus, Span};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::Rate;
use store::prelude::*;
use testkit::postgres::shared;

const LEASE: Span = Span::from_secs(30);

fn new_task(name: &str, key: &str, priority: Option<u32>) -> NewTask {
    NewTask {
        name: name.into(),
        settings: Default::default(),
        payload: Bytes::from("{}"),
        priority,
        run_at: None,
        key: key.into(),
        labels: Vec::new(),
        callback_url: String::new(),
        idempotency: None,
    }
}

fn work_request(worker: &str, types: &str, credits: u32, wait: Duration) -> WorkRequest {
    WorkRequest {
        worker: worker.into(),
        types: vec![types.into()],
        runtime: None,
        version: None,
        slots: None,
        credits,
        lease: LEASE,
        wait,
        reports: Vec::new(),
        heartbeats: Vec::new(),
    }
}

fn done(task: &engine::task_queue::ClaimedTask) -> TaskReport {
    TaskReport { task: key_of(task), fence: Some(task.fence), outcome: ReportOutcome::Done(Bytes::from("{}")) }
}

fn key_of(task: &engine::task_queue::ClaimedTask) -> TaskKey {
    TaskKey { run: task.run, step: (!task.is_plain).then_some(task.step) }
}

impl Node {
    async fn submit(&self, tasks: Vec<NewTask>) -> Vec<RunId> {
        self.engine.tasks.submit(ORG, tasks).await.unwrap().into_iter().map(|item| item.run).collect()
    }

    async fn work(&self, request: WorkRequest) -> WorkReply {
        self.engine.tasks.work(ORG, request).await.unwrap()
    }

    /// Claims up to `credits` tasks; fewer if there are no more.
    async fn claim(&self, worker: &str, types: &str, credits: u32) -> Vec<engine::task_queue::ClaimedTask> {
        self.work(work_request(worker, types, credits, Duration::from_secs(5))).await.claimed.tasks
    }

    async fn claims_nothing(&self, types: &str, wait: Duration) {
        let claimed = self.work(work_request("idle", types, 9, wait)).await.claimed;
        assert_eq!(claimed.tasks, []);
    }

    async fn report(&self, task: &engine::task_queue::ClaimedTask) -> Reported {
        self.engine.tasks.report(ORG, done(task)).await.unwrap()
    }

    async fn heartbeat(&self, task: &engine::task_queue::ClaimedTask) -> HeartbeatReply {
        let (task, fence) = (key_of(task), Some(task.fence));
        self.engine.tasks.heartbeat(ORG, Heartbeat { task, fence, extend: None, progress: None }).await.unwrap()
    }
}

async fn two_nodes() -> (Node, Node) {
    let url = shared().database();
    (node(&url, "a").await, node(&url, "b").await)
}

async fn stop_both(a: Node, b: Node) {
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_submitted_to_one_node_can_be_claimed_and_completed_on_the_other() {
    let (a, b) = two_nodes().await;
    let runs = a.submit(vec![new_task("mail", "", None), new_task("mail", "k", None)]).await;
    let first = b.claim("w", "mail", 1).await.remove(0);
    let second = b.claim("w", "m%", 1).await.remove(0);
    assert_eq!(HashSet::from([first.run, second.run]), HashSet::from_iter(runs.iter().copied()));
    a.claims_nothing("mail", Duration::ZERO).await;
    assert_eq!(b.report(&first).await, Reported::Recorded);
    assert_eq!(a.report(&second).await, Reported::Recorded, "through the node that did not give it out");
    assert_eq!(b.report(&second).await, Reported::Recorded, "a repeated report");
    for run in runs {
        b.completes(run).await;
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_waiting_on_another_node_soon_gets_a_task() {
    let (a, b) = two_nodes().await;
    for name in ["never.heard.of", "never.heard.of", "nor.of.this"] {
        let engine = b.engine.clone();
        let waits = work_request("w", "n%", 1, Duration::from_secs(20));
        let waiting = tokio::spawn(async move { engine.tasks.work(ORG, waits).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let sent = Instant::now();
        let run = a.submit(vec![new_task(name, "", None)]).await[0];
        let claimed = waiting.await.unwrap().unwrap().claimed;
        assert_eq!(claimed.tasks.iter().map(|task| task.run).collect::<Vec<_>>(), [run]);
        assert!(sent.elapsed() < Duration::from_secs(4), "it took {:?}", sent.elapsed());
        assert_eq!(a.report(&claimed.tasks[0]).await, Reported::Recorded);
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lower_priority_numbers_go_first_across_nodes() {
    let (a, b) = two_nodes().await;
    let mut submitted = Vec::new();
    for (n, priority) in [50, 10, 90, 20, 70, 30].into_iter().enumerate() {
        let through = if n % 2 == 0 { &a } else { &b };
        submitted.push((priority, through.submit(vec![new_task("mail", "", Some(priority))]).await[0]));
    }
    // A node's view of a key queue may be about a second old.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    submitted.sort();
    for (n, (priority, run)) in submitted.into_iter().enumerate() {
        let through = if n % 2 == 0 { &b } else { &a };
        let task = through.claim("w", "mail", 1).await.remove(0);
        assert_eq!(task.run, run, "the task with priority {priority}");
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_drain_one_backlog_and_run_every_task_once() {
    const TASKS: usize = 5_000;
    let (a, b) = two_nodes().await;
    let mut runs = HashSet::new();
    for part in 0..10 {
        let through = if part % 2 == 0 { &a } else { &b };
        let tasks = (0..TASKS / 10).map(|n| new_task("mail", ["", "x", "y"][n % 3], None)).collect();
        runs.extend(through.submit(tasks).await);
    }
    assert_eq!(runs.len(), TASKS);
    let left = Arc::new(AtomicUsize::new(TASKS));
    let mut workers = Vec::new();
    for n in 0..8 {
        let (engine, left) = (if n % 2 == 0 { &a } else { &b }.engine.clone(), left.clone());
        workers.push(tokio::spawn(async move {
            let (mut mine, mut reports) = (Vec::new(), Vec::new());
            while left.load(SeqCst) > 0 {
                let said: usize = reports.len();
                let ask = work_request(&format!("w{n}"), "mail", 25, Duration::from_millis(500));
                let reply = engine.tasks.work(ORG, WorkRequest { reports: std::mem::take(&mut reports), ..ask }).await;
                let reply = reply.unwrap();
                assert!(reply.acks.iter().all(|ack| *ack == Reported::Recorded), "{:?}", reply.acks);
                left.fetch_sub(said, SeqCst);
                reports = reply.claimed.tasks.iter().map(done).collect();
                mine.extend(reply.claimed.tasks.iter().map(|task| task.run));
            }
            mine
        }));
    }
    let began = Instant::now();
    let mut given = Vec::new();
    for worker in workers {
        let mine = tokio::time::timeout(4 * TIMEOUT, worker).await.expect("the workers finish in time").unwrap();
        assert!(mine.len() > TASKS / 50, "every worker got a share, this one got {}", mine.len());
        given.extend(mine);
    }
    println!("{TASKS} tasks in {:?}, {} claims lost to conflicts", began.elapsed(), conflicts(&a) + conflicts(&b));
    assert_eq!(given.len(), TASKS, "no task was given out twice");
    assert_eq!(HashSet::from_iter(given), runs);
    assert!(conflicts(&a) + conflicts(&b) < TASKS as u64 / 5, "the nodes have too many conflicts");
    stop_both(a, b).await;
}

fn conflicts(node: &Node) -> u64 {
    node.engine.metrics().conflicts_total.get()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_one_run_complete_through_both_nodes() {
    let (a, b) = two_nodes().await;
    let mut tasks: serde_json::Map<_, _> = (0..16).map(|n| (format!("t{n}"), json!({ "task": "part" }))).collect();
    let all: Vec<String> = tasks.keys().cloned().collect();
    tasks.insert("join".into(), json!({ "needs": all, "noop": {} }));
    a.define(json!({ "name": "parts", "tasks": tasks })).await;
    for _ in 0..4 {
        let run = a.start("parts").await;
        let (mut held, mut turn) = (Vec::new(), 0);
        while held.len() < 16 {
            turn += 1;
            let through = if turn % 2 == 0 { &a } else { &b };
            let claimed = through.claim("w", "part", 2).await;
            assert!(!claimed.is_empty(), "only {} of 16 could be claimed", held.len());
            held.extend(claimed);
        }
        let steps: HashSet<u32> = held.iter().map(|task| task.step).collect();
        assert_eq!(steps.len(), 16, "each step went to one worker");
        for (n, task) in held.iter().enumerate() {
            let through = if n % 3 == 0 { &a } else { &b };
            assert_eq!(through.report(task).await, Reported::Recorded);
        }
        b.completes(run).await;
    }
    stop_both(a, b).await;
}

/// Runs workers on both nodes until all tasks are done. Returns the most tasks that were held at once, of all
/// keys together and of one key.
async fn run_workers(a: &Node, b: &Node, name: &str, tasks: usize, pause: Duration) -> (usize, usize) {
    let left = Arc::new(AtomicUsize::new(tasks));
    let counts = Arc::new(Mutex::new((HashMap::<String, usize>::new(), 0, 0)));
    let mut workers = Vec::new();
    for n in 0..8 {
        let node = if n % 2 == 0 { a } else { b };
        let (engine, left, counts, name) = (node.engine.clone(), left.clone(), counts.clone(), name.to_owned());
        workers.push(tokio::spawn(async move {
            let until = Instant::now() + 4 * TIMEOUT;
            while left.load(SeqCst) > 0 {
                assert!(Instant::now() < until, "{} tasks are left", left.load(SeqCst));
                let ask = work_request(&format!("w{n}"), &name, 1, Duration::from_millis(500));
                let Some(task) = engine.tasks.work(ORG, ask).await.unwrap().claimed.tasks.pop() else { continue };
                let key = String::from_utf8_lossy(&task.input).into_owned();
                {
                    let mut counts = counts.lock().unwrap();
                    *counts.0.entry(key.clone()).or_default() += 1;
                    let (all, most) = (counts.0.values().sum(), *counts.0.values().max().unwrap());
                    (counts.1, counts.2) = (counts.1.max(all), counts.2.max(most));
                }
                tokio::time::sleep(pause).await;
                *counts.lock().unwrap().0.get_mut(&key).unwrap() -= 1;
                let report = engine.tasks.report(ORG, done(&task)).await.unwrap();
                assert_eq!(report, Reported::Recorded);
                left.fetch_sub(1, SeqCst);
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let counts = counts.lock().unwrap();
    (counts.1, counts.2)
}

/// A task whose payload is its key.
fn keyed(name: &str, key: &str) -> NewTask {
    NewTask { payload: Bytes::from(json!(key).to_string()), ..new_task(name, key, None) }
}

async fn set_limits(node: &Node, name: &str, change: TypeChange) {
    node.engine.tasks.put_type(ORG, name, change).await.unwrap();
    // The other node reads the new limits about a second later.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_limit_is_never_exceeded_and_fully_used() {
    let (a, b) = two_nodes().await;
    set_limits(&a, "mail", TypeChange { limit: Some(Some(3)), ..Default::default() }).await;
    for node in [&a, &b] {
        node.submit((0..45).map(|_| keyed("mail", "")).collect()).await;
    }
    let began = Instant::now();
    let (all, _) = run_workers(&a, &b, "mail", 90, Duration::from_millis(30)).await;
    println!("90 tasks in {:?}, at most {all} at once", began.elapsed());
    assert_eq!(all, 3);
    assert!(b.store.limit_slots(ORG, "mail").await.unwrap().is_empty(), "all limit slots are free");
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_per_key_limit_is_never_exceeded_and_keys_do_not_block_each_other() {
    let (a, b) = two_nodes().await;
    set_limits(&b, "mail", TypeChange { limit_per_key: Some(Some(1)), ..Default::default() }).await;
    for node in [&a, &b] {
        node.submit((0..40).map(|n| keyed("mail", ["", "x", "y", "z"][n % 4])).collect()).await;
    }
    let (all, most) = run_workers(&a, &b, "mail", 80, Duration::from_millis(20)).await;
    assert_eq!(most, 1, "tasks of one key at once");
    assert!(all > 2, "only {all} tasks at once");
    assert!(b.store.limit_slots(ORG, "mail").await.unwrap().is_empty());
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_is_shared_by_all_nodes() {
    let (a, b) = two_nodes().await;
    let rate = Rate { limit: 10, per: Span::from_secs(1), per_key: false };
    set_limits(&a, "mail", TypeChange { rate: Some(Some(rate)), ..Default::default() }).await;
    let mut runs = Vec::new();
    for node in [&a, &b] {
        runs.extend(node.submit((0..20).map(|_| keyed("mail", "")).collect()).await);
    }
    let began = Instant::now();
    run_workers(&a, &b, "mail", 40, Duration::ZERO).await;
    println!("40 tasks in {:?}", began.elapsed());
    // Uses the recorded times. When a worker on a busy machine receives its task says nothing about the rate.
    let mut times = Vec::new();
    for run in runs {
        let records = a.store.history(ORG, run, 0, usize::MAX).await.unwrap().unwrap();
        let records = records.iter().map(|body| Record::open(body).unwrap());
        let is_lease = |event: &Event| matches!(event, Event::Leased { .. });
        times.extend(records.filter(|record| record.events.iter().any(is_lease)).map(|record| record.at));
    }
    times.sort();
    assert_eq!(times.len(), 40);
    for eleven in times.windows(11) {
        let took = eleven[10].since(eleven[0]);
        assert!(took >= rate.per, "eleven leases within {took:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(12), "it took {:?}", began.elapsed());
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_leaks_no_limit_slot_and_its_tasks_complete() {
    let (a, b) = two_nodes().await;
    set_limits(&a, "mail", TypeChange { limit: Some(Some(3)), ..Default::default() }).await;
    let runs = a.submit((0..8).map(|_| new_task("mail", "", None)).collect()).await;
    let short = Span::from_secs(6);
    let mut held = Vec::new();
    while held.len() < 3 {
        let ask =
            WorkRequest { lease: short, ..work_request("w", "mail", 3 - held.len() as u32, Duration::from_secs(5)) };
        held.extend(a.work(ask).await.claimed.tasks);
    }
    b.claims_nothing("mail", Duration::from_millis(50)).await;
    a.stop().await;
    // One worker is still alive and sends a heartbeat through the other node before its lease ends.
    let died = Instant::now();
    let alive = held.pop().unwrap();
    assert!(matches!(b.heartbeat(&alive).await, HeartbeatReply::Until(_)));
    let mut done = HashSet::new();
    let until = Instant::now() + 2 * TIMEOUT;
    while done.len() < 7 {
        assert!(Instant::now() < until, "{} of 7 tasks after {:?}", done.len(), died.elapsed());
        assert!(matches!(b.heartbeat(&alive).await, HeartbeatReply::Until(_)), "after {:?}", died.elapsed());
        let claimed = b.work(work_request("v", "mail", 3, Duration::from_secs(1))).await.claimed.tasks;
        assert!(claimed.len() <= 2, "one of three slots is still held");
        for task in claimed {
            assert_eq!(b.report(&task).await, Reported::Recorded);
            done.insert(task.run);
        }
    }
    assert!(!done.contains(&alive.run));
    assert_eq!(b.report(&alive).await, Reported::Recorded);
    for run in runs {
        b.completes(run).await;
    }
    assert!(b.store.limit_slots(ORG, "mail").await.unwrap().is_empty());
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_failures_snoozes_and_logs_work_through_any_node() {
    let (a, b) = two_nodes().await;
    let runs = a.submit((0..3).map(|_| new_task("mail", "", None)).collect()).await;
    let short = Span::from_secs(2);
    let mut held = Vec::new();
    while held.len() < 3 {
        let ask =
            WorkRequest { lease: short, ..work_request("w", "mail", 3 - held.len() as u32, Duration::from_secs(5)) };
        held.extend(a.work(ask).await.claimed.tasks);
    }
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        for task in &held {
            assert!(matches!(b.heartbeat(task).await, HeartbeatReply::Until(_)), "the lease is extended");
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert!(
        matches!(a.heartbeat(&held[0]).await, HeartbeatReply::Until(_)),
        "the lease is also extended through the first node"
    );
    let line = LogLine { message: "half of it".into(), ..Default::default() };
    let logged = b.engine.tasks.log(ORG, key_of(&held[0]), Some(held[0].fence), vec![line]).await.unwrap();
    assert_eq!(logged, Reported::Recorded);
    let say = |task: &engine::task_queue::ClaimedTask, outcome| TaskReport {
        task: key_of(task),
        fence: Some(task.fence),
        outcome,
    };
    let failure = kernel::event::Failure::new("no", "it cannot be done");
    let failed = ReportOutcome::Failed { failure, is_final: true, retry_after: None };
    assert_eq!(b.engine.tasks.report(ORG, say(&held[0], failed)).await.unwrap(), Reported::Recorded);
    let snoozed = ReportOutcome::Snoozed(Span::from_millis(300));
    assert_eq!(b.engine.tasks.report(ORG, say(&held[1], snoozed)).await.unwrap(), Reported::Recorded);
    assert_eq!(b.report(&held[2]).await, Reported::Recorded);
    let again = a.claim("w", "mail", 1).await.remove(0);
    assert_eq!(again.run, held[1].run, "the snoozed task");
    assert_eq!(b.report(&again).await, Reported::Recorded);
    let mut statuses = Vec::new();
    for run in [held[0].run, held[1].run, held[2].run] {
        statuses.push(a.status(run).await);
    }
    assert_eq!(statuses, [RunStatus::Failed, RunStatus::Completed, RunStatus::Completed]);
    assert_eq!(runs.len(), 3);
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_cancelled_through_another_node_is_called_off_within_a_second() {
    let (a, b) = two_nodes().await;
    for _ in 0..3 {
        let run = a.submit(vec![new_task("mail", "", None)]).await[0];
        let task = a.claim("w", "mail", 1).await.remove(0);
        let engine = a.engine.clone();
        let asked =
            tokio::spawn(
                async move { engine.tasks.work(ORG, work_request("w", "mail", 1, Duration::from_secs(20))).await },
            );
        tokio::time::sleep(Duration::from_millis(100)).await;
        let sent = Instant::now();
        b.engine.runs.cancel(ORG, run, CancelRun::plain("ada", "enough")).await.unwrap();
        let claimed = asked.await.unwrap().unwrap().claimed;
        assert_eq!(claimed.cancellations, [(run, None)]);
        assert!(sent.elapsed() < Duration::from_millis(1_000), "it took {:?}", sent.elapsed());
        assert_eq!(a.heartbeat(&task).await, HeartbeatReply::Cancelled);
    }
    // A worker that reported through another node is not told to stop.
    a.submit(vec![new_task("mail", "", None)]).await;
    let task = a.claim("w", "mail", 1).await.remove(0);
    assert_eq!(b.report(&task).await, Reported::Recorded);
    let claimed = a.work(work_request("w", "mail", 1, Duration::from_secs(2))).await.claimed;
    assert_eq!(claimed, Default::default());
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_tasks_and_workers_are_visible_through_any_node() {
    let (a, b) = two_nodes().await;
    set_limits(&a, "mail", TypeChange { limit: Some(Some(1)), ..Default::default() }).await;
    let run = a.submit((0..5).map(|_| new_task("mail", "", None)).collect()).await[0];
    let debug = |explanation: Option<engine::explain::Explanation>| format!("{explanation:?}");
    let view = b.engine.tasks.task_type(ORG, "mail").await.unwrap().unwrap();
    assert_eq!((view.ready, view.leased, view.workers), (5, 0, 0));
    let metrics = b.engine.metrics_now().await;
    assert_eq!((metrics.tasks_ready.get(), metrics.types_without_worker.get()), (5, 1));
    let explained = debug(b.engine.runs.explain(ORG, run, None).await.unwrap().unwrap().1);
    assert!(explained.contains("no worker"), "{explained}");
    let task = a.claim("w", "mail", 1).await.remove(0);
    let until = Instant::now() + TIMEOUT;
    while b.engine.tasks.workers(ORG).await.unwrap().is_empty() {
        assert!(Instant::now() < until, "the other node does not list the worker");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let view = b.engine.tasks.task_type(ORG, "mail").await.unwrap().unwrap();
    assert_eq!((view.ready, view.leased, view.workers), (4, 1, 1));
    let waiting = if task.run == run { a.submit(vec![new_task("mail", "", None)]).await[0] } else { run };
    let explained = debug(b.engine.runs.explain(ORG, waiting, None).await.unwrap().unwrap().1);
    assert!(explained.contains("limit") || explained.contains("1 at once"), "{explained}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(b.engine.metrics_now().await.types_without_worker.get(), 0);
    stop_both(a, b).await;
}
