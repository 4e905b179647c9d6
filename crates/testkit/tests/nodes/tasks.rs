//! Tasks and workers on two nodes: what one node records any node hands out, to one worker, within the limits of all.

use super::{Node, ORG, PATIENCE, node};
use bytes::Bytes;
use engine::engine::{
    Alive, Heartbeat, NewTask, Outcome, Report, Reported, TaskKey, TypeChange, WorkReply, WorkRequest,
};
use kernel::{Event, RunId, RunStatus, Span};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::Rate;
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

fn asks(worker: &str, types: &str, credits: u32, wait: Duration) -> WorkRequest {
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

fn done(task: &engine::board::Task) -> Report {
    Report { task: key_of(task), fence: Some(task.fence), outcome: Outcome::Done(Bytes::from("{}")) }
}

fn key_of(task: &engine::board::Task) -> TaskKey {
    TaskKey { run: task.run, step: (!task.is_plain).then_some(task.step) }
}

impl Node {
    async fn submit(&self, tasks: Vec<NewTask>) -> Vec<RunId> {
        self.engine.submit(ORG, tasks).await.unwrap().into_iter().map(|item| item.run).collect()
    }

    async fn work(&self, request: WorkRequest) -> WorkReply {
        self.engine.work(ORG, request).await.unwrap()
    }

    /// Tasks that were handed out, as many as were asked for or fewer if no more come.
    async fn claim(&self, worker: &str, types: &str, credits: u32) -> Vec<engine::board::Task> {
        self.work(asks(worker, types, credits, Duration::from_secs(5))).await.handed.tasks
    }

    async fn claims_nothing(&self, types: &str, wait: Duration) {
        let handed = self.work(asks("nobody", types, 9, wait)).await.handed;
        assert_eq!(handed.tasks, []);
    }

    async fn report(&self, task: &engine::board::Task) -> Reported {
        self.engine.report(ORG, done(task)).await.unwrap()
    }

    async fn heartbeat(&self, task: &engine::board::Task) -> Alive {
        let (task, fence) = (key_of(task), Some(task.fence));
        self.engine.heartbeat(ORG, Heartbeat { task, fence, extend: None, progress: None }).await.unwrap()
    }
}

async fn pair() -> (Node, Node) {
    let url = shared().database();
    (node(&url, "a").await, node(&url, "b").await)
}

async fn both_die(a: Node, b: Node) {
    a.dies().await;
    b.dies().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_submitted_through_one_node_is_claimed_and_done_through_the_other() {
    let (a, b) = pair().await;
    let runs = a.submit(vec![new_task("mail", "", None), new_task("mail", "k", None)]).await;
    let first = b.claim("w", "mail", 1).await.remove(0);
    let second = b.claim("w", "m%", 1).await.remove(0);
    assert_eq!(HashSet::from([first.run, second.run]), HashSet::from_iter(runs.iter().copied()));
    a.claims_nothing("mail", Duration::ZERO).await;
    assert_eq!(b.report(&first).await, Reported::Recorded);
    assert_eq!(a.report(&second).await, Reported::Recorded, "whoever gave it out");
    assert_eq!(b.report(&second).await, Reported::Recorded, "said again");
    for run in runs {
        b.completes(run).await;
    }
    both_die(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_at_another_node_gets_a_task_soon() {
    let (a, b) = pair().await;
    for name in ["never.heard.of", "never.heard.of", "nor.of.this"] {
        let engine = b.engine.clone();
        let waits = asks("w", "n%", 1, Duration::from_secs(20));
        let waiting = tokio::spawn(async move { engine.work(ORG, waits).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let sent = Instant::now();
        let run = a.submit(vec![new_task(name, "", None)]).await[0];
        let handed = waiting.await.unwrap().unwrap().handed;
        assert_eq!(handed.tasks.iter().map(|task| task.run).collect::<Vec<_>>(), [run]);
        assert!(sent.elapsed() < Duration::from_secs(4), "it took {:?}", sent.elapsed());
        assert_eq!(a.report(&handed.tasks[0]).await, Reported::Recorded);
    }
    both_die(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lower_priorities_go_first_whatever_node_they_came_through() {
    let (a, b) = pair().await;
    let mut submitted = Vec::new();
    for (n, priority) in [50, 10, 90, 20, 70, 30].into_iter().enumerate() {
        let through = if n % 2 == 0 { &a } else { &b };
        submitted.push((priority, through.submit(vec![new_task("mail", "", Some(priority))]).await[0]));
    }
    // What the nodes know of the lane may be a moment old.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    submitted.sort();
    for (n, (priority, run)) in submitted.into_iter().enumerate() {
        let through = if n % 2 == 0 { &b } else { &a };
        let task = through.claim("w", "mail", 1).await.remove(0);
        assert_eq!(task.run, run, "the one with priority {priority}");
    }
    both_die(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_work_off_one_backlog_and_everything_is_done_once() {
    const TASKS: usize = 5_000;
    let (a, b) = pair().await;
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
                let ask = asks(&format!("w{n}"), "mail", 25, Duration::from_millis(500));
                let reply = engine.work(ORG, WorkRequest { reports: std::mem::take(&mut reports), ..ask }).await;
                let reply = reply.unwrap();
                assert!(reply.acks.iter().all(|ack| *ack == Reported::Recorded), "{:?}", reply.acks);
                left.fetch_sub(said, SeqCst);
                reports = reply.handed.tasks.iter().map(done).collect();
                mine.extend(reply.handed.tasks.iter().map(|task| task.run));
            }
            mine
        }));
    }
    let began = Instant::now();
    let mut given = Vec::new();
    for worker in workers {
        let mine = tokio::time::timeout(4 * PATIENCE, worker).await.expect("they come to an end").unwrap();
        assert!(mine.len() > TASKS / 50, "everybody had a share: {}", mine.len());
        given.extend(mine);
    }
    println!("{TASKS} tasks in {:?}, {} claims lost", began.elapsed(), conflicts(&a) + conflicts(&b));
    assert_eq!(given.len(), TASKS, "nothing was handed out twice");
    assert_eq!(HashSet::from_iter(given), runs);
    assert!(conflicts(&a) + conflicts(&b) < TASKS as u64 / 5, "they were in each other's way");
    both_die(a, b).await;
}

fn conflicts(node: &Node) -> u64 {
    node.engine.metrics().conflicts_total.get()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_one_run_are_done_through_both_nodes() {
    let (a, b) = pair().await;
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
        assert_eq!(steps.len(), 16, "each went to one worker");
        for (n, task) in held.iter().enumerate() {
            let through = if n % 3 == 0 { &a } else { &b };
            assert_eq!(through.report(task).await, Reported::Recorded);
        }
        b.completes(run).await;
    }
    both_die(a, b).await;
}
