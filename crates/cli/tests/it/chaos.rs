//! Workers and the server are killed at random, and each task still ends once, with the result of the worker that held
//! its last lease. Workers are threads here: a worker that dies forgets its tasks, a slow worker reports after its
//! lease has expired.
//!
//! `ONWARD_TASKS` (default 500), `ONWARD_WORKERS` (10), `ONWARD_KILLS` (5 here) and `ONWARD_SEED` set the load.

use crate::harness::{Answer, Api, Server, WAIT_MAX, eventually};
use crate::kill::driver::flags;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::rng::Rng;

/// Tasks submitted in one request.
const CHUNK: usize = 50;
const TYPE: &str = "chaos.work.v1";
/// The shortest lease, and the latest time after a claim at which a slow worker reports.
const LEASE: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_millis(2_000);
/// The server is killed after at most this many milliseconds.
const LIFE: u64 = 600;

/// One lease, as the worker knows it.
#[derive(Clone, Debug)]
struct Grant {
    task: String,
    token: String,
    worker: String,
}

/// The outcome of a report, as far as its worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Recorded,
    Refused,
    /// The server never answered, also when the report was repeated.
    Nothing,
}

/// A reported result and its outcome.
struct Completion {
    lease: Grant,
    result: Value,
    outcome: Told,
}

#[derive(Default)]
struct Journal {
    leases: Vec<Grant>,
    completions: Vec<Completion>,
    /// Tasks that were submitted, by their number.
    tasks: BTreeMap<u64, String>,
    cancelled: HashSet<String>,
}

struct World {
    /// None while the server is down.
    api: Mutex<Option<Api>>,
    journal: Mutex<Journal>,
    is_over: AtomicBool,
    deaths: AtomicU64,
}

impl World {
    /// Waits for a running server; none when the test is over.
    fn api(&self) -> Option<Api> {
        loop {
            match *self.api.lock().unwrap() {
                _ if self.is_over.load(Ordering::Relaxed) => return None,
                Some(api) => return Some(api),
                None => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn post(&self, path: &str, body: &Value) -> Option<Answer> {
        self.api()?.write(path, &[], body.to_string().as_bytes()).ok()
    }

    /// Sends a request again and again until it is answered. Every request in this file may be repeated.
    fn send_until_answered(&self, path: &str, body: &Value) -> Option<Answer> {
        let until = Instant::now() + WAIT_MAX;
        while Instant::now() < until {
            match self.post(path, body) {
                Some(answer) if answer.status < 500 => return Some(answer),
                _ if self.is_over.load(Ordering::Relaxed) => return None,
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        None
    }

    /// Submits tasks, spread over about the time in which the server is killed.
    fn produce(&self, count: u64, kills: u64, mut rng: Rng) {
        let numbers: Vec<u64> = (0..count).collect();
        let pause = Duration::from_millis(kills * LIFE / 2 * CHUNK as u64 / count.max(1));
        for some in numbers.chunks(CHUNK) {
            std::thread::sleep(pause);
            let task = |n: &u64| {
                json!({ "type": TYPE, "payload": { "n": n }, "idempotency_key": format!("n{n}"),
                "max_attempts": 100, "priority": 100 + n % 3, "concurrency_key": format!("k{}", n % 7) })
            };
            let body = json!(some.iter().map(task).collect::<Vec<_>>());
            let answer =
                self.send_until_answered("/api/v1/tasks", &body).expect("the server takes the tasks in the end");
            let seen = answer.json();
            assert!(matches!(answer.status, 200 | 201), "{seen}");
            let mut made = Vec::new();
            for (n, view) in some.iter().zip(seen["data"].as_array().expect("a list")) {
                let id = view["task_id"].as_str().expect("an id").to_owned();
                made.push(id.clone());
                assert_eq!(self.journal.lock().unwrap().tasks.insert(*n, id), None);
            }
            let chosen = made[rng.below(made.len() as u64) as usize].clone();
            if let Some(answer) = self.send_until_answered(&format!("/api/v1/tasks/{chosen}/cancel"), &json!({})) {
                assert!(matches!(answer.status, 200 | 409), "{}", answer.text());
                if answer.status == 200 {
                    self.journal.lock().unwrap().cancelled.insert(chosen);
                }
            }
        }
    }

    /// Runs a worker, and a new one each time it dies.
    fn work(&self, number: u64, mut rng: Rng) {
        for life in 0.. {
            if self.live(&format!("w{number}.{life}"), &mut rng).is_none() {
                return;
            }
            self.deaths.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One worker, until it dies (`Some`) or the test is over (`None`).
    fn live(&self, worker: &str, rng: &mut Rng) -> Option<()> {
        // Results to be reported late, and when.
        let mut later: Vec<(Instant, Grant, Value)> = Vec::new();
        loop {
            let due = |(at, ..): &(Instant, Grant, Value)| *at <= Instant::now();
            let (now, rest): (Vec<_>, Vec<_>) = later.into_iter().partition(due);
            later = rest;
            for (_, lease, result) in now {
                self.complete(lease, result, rng);
            }
            let claim = json!({ "worker_id": worker, "types": ["chaos.%"], "max": 1 + rng.below(8),
                "lease": format!("{}s", LEASE.as_secs()), "wait": "100ms" });
            self.api()?;
            let Some(answer) = self.post("/api/v1/tasks/claim", &claim).filter(|answer| answer.status == 200) else {
                continue;
            };
            let tasks = answer.json()["data"].as_array().expect("a list").clone();
            let leases: Vec<(Grant, Value)> =
                tasks.iter().map(|task| (lease(task, worker), task["input"].clone())).collect();
            self.journal.lock().unwrap().leases.extend(leases.iter().map(|(lease, _)| lease.clone()));
            for (lease, input) in leases {
                let result = json!({ "n": input["n"], "by": worker, "token": lease.token });
                match rng.below(100) {
                    // The worker dies, and with it everything that it holds or has yet to report.
                    0 => return Some(()),
                    1..=3 => drop(lease),
                    4..=7 => {
                        let late = LEASE.as_millis() as u64 + rng.below((LATE - LEASE).as_millis() as u64);
                        later.push((Instant::now() + Duration::from_millis(late), lease, result));
                    }
                    8..=10 => {
                        self.report(&lease, "fail", json!({ "error": { "message": "not now" }, "retry_after": "0s" }))
                    }
                    11..=12 => self.report(&lease, "snooze", json!({ "for": "0s" })),
                    13..=15 => self.report(&lease, "heartbeat", json!({ "progress": { "by": worker } })),
                    _ => self.complete(lease, result, rng),
                }
            }
        }
    }

    fn report(&self, lease: &Grant, what: &str, mut body: Value) {
        body["claim_token"] = json!(lease.token);
        if let Some(answer) = self.send_until_answered(&format!("/api/v1/tasks/{}/{what}", lease.task), &body) {
            assert!(matches!(answer.status, 200 | 409), "{what}: {} {}", answer.status, answer.text());
        }
    }

    /// Reports a result until there is an answer, through one of the two routes, and sometimes twice.
    fn complete(&self, lease: Grant, result: Value, rng: &mut Rng) {
        let single = json!({ "claim_token": lease.token, "result": result });
        let done = json!({ "task_id": lease.task, "claim_token": lease.token, "result": result });
        let work =
            json!({ "worker_id": lease.worker, "types": ["none.v1"], "credits": 0, "wait": "0s", "done": [done] });
        let reports_twice = rng.one_in(3);
        let mut send = || match rng.one_in(2) {
            true => self
                .send_until_answered(&format!("/api/v1/tasks/{}/complete", lease.task), &single)
                .map(|answer| answer.status == 200),
            false => self
                .send_until_answered("/api/v1/work", &work)
                .map(|answer| answer.json()["data"]["acks"][0]["status"] == "recorded"),
        };
        let outcome = |answer: Option<bool>| match answer {
            Some(true) => Told::Recorded,
            Some(false) => Told::Refused,
            None => Told::Nothing,
        };
        let first = outcome(send());
        if first != Told::Nothing && reports_twice {
            let again = outcome(send());
            assert!(again == first || again == Told::Nothing, "{first:?}, then {again:?}: {lease:?}");
        }
        self.journal.lock().unwrap().completions.push(Completion { lease, result, outcome: first });
    }
}

fn lease(task: &Value, worker: &str) -> Grant {
    let text = |field: &str| task[field].as_str().expect("a text").to_owned();
    Grant { task: text("task_id"), token: text("claim_token"), worker: worker.to_owned() }
}

#[test]
fn w2_w8_w14_each_task_ends_once_with_the_result_of_its_last_lease() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|t| t.parse().ok()).unwrap_or(default);
    let (tasks, workers, kills) =
        (number("ONWARD_TASKS", 500), number("ONWARD_WORKERS", 10), number("ONWARD_KILLS", 5));
    let seed = number("ONWARD_SEED", u64::from(std::process::id()));
    let mut rng = Rng::new(seed);
    let flags = flags(&[]);
    let mut server = Server::with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let world = Arc::new(World {
        api: Mutex::new(Some(*server)),
        journal: Mutex::default(),
        is_over: AtomicBool::new(false),
        deaths: AtomicU64::new(0),
    });
    let producer = {
        let (world, rng) = (world.clone(), Rng::new(rng.number()));
        std::thread::spawn(move || world.produce(tasks, kills, rng))
    };
    let workers: Vec<_> = (0..workers)
        .map(|n| {
            let (world, rng) = (world.clone(), Rng::new(rng.number()));
            std::thread::spawn(move || world.work(n, rng))
        })
        .collect();
    for kill in 0..kills {
        // A fixed sleep on purpose: the server lives for a random time before it is killed.
        std::thread::sleep(Duration::from_millis(50 + rng.below(LIFE - 50)));
        server.kill_at_once();
        *world.api.lock().unwrap() = None;
        if kill < 10 || rng.one_in(10) {
            server.verify();
        }
        server.start_again();
        *world.api.lock().unwrap() = Some(*server);
    }
    producer.join().expect("the producer does not fail");
    // A task that killed three workers has failed. The bulk retry releases it as a new task.
    let released = eventually("every task ends", || {
        let bulk = json!({ "action": "retry", "filter": { "type": TYPE, "status": "failed" } });
        server.post("/api/v1/tasks/bulk", &bulk).data(200);
        let open = |status: &str| server.get(&format!("/api/v1/tasks?type={TYPE}&status={status}&limit=1")).data(200);
        let is_over = ["pending", "leased"].iter().all(|status| open(status) == json!([]));
        let failed = server.list(&format!("/api/v1/tasks?type={TYPE}&status=failed"));
        // A task may have failed since the bulk retry.
        (is_over && failed.iter().all(|task| task["released_as"].is_string())).then_some(failed)
    });
    // Slow workers may still send their reports.
    std::thread::sleep(LATE);
    world.is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().expect("a worker does not fail");
    }
    server.crash_and_restart();
    let world = Arc::into_inner(world).expect("all threads have ended");
    let summary = check(&server, &world.journal.into_inner().unwrap(), &released);
    println!("seed {seed}: {kills} kills of the server, {} of workers, {summary}", world.deaths.into_inner());
}

fn check(server: &Server, journal: &Journal, released: &[Value]) -> String {
    let mut tokens = HashSet::new();
    for lease in &journal.leases {
        assert!(tokens.insert((&lease.task, &lease.token)), "leased to two workers: {lease:?}");
    }
    let mut completions: HashMap<&str, Vec<&Completion>> = HashMap::new();
    for completion in &journal.completions {
        completions.entry(&completion.lease.task).or_default().push(completion);
    }
    let replaced: HashMap<&str, &str> = released
        .iter()
        .map(|task| (task["id"].as_str().expect("an id"), task["released_as"].as_str().expect("released")))
        .collect();
    for task in released {
        assert_eq!(task["error"]["code"], "quarantined", "{task:#}");
    }
    let mut counts = BTreeMap::new();
    for (n, first) in &journal.tasks {
        // The task that it was released as, which may have been released again.
        let mut id = first.as_str();
        while let Some(next) = replaced.get(id) {
            assert!(
                completions.get(id).into_iter().flatten().all(|c| c.outcome != Told::Recorded),
                "{id} has a result but was released"
            );
            id = next;
        }
        let task = server.task(id);
        let status = task["status"].as_str().expect("a status");
        *counts.entry(status.to_owned()).or_insert(0u64) += 1;
        let events = server.task_events(id);
        let of = |name: &str| {
            events.iter().filter(|e| e["type"] == name).map(|e| e["seq"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        let reported: Vec<&Completion> = completions.get(id).cloned().unwrap_or_default();
        let recorded: Vec<&&Completion> = reported.iter().filter(|c| c.outcome == Told::Recorded).collect();
        match status {
            "cancelled" => {
                assert!(journal.cancelled.contains(first), "{id} was cancelled without a request");
                assert!(recorded.is_empty() && task["result"].is_null(), "{task:#}");
            }
            "succeeded" => {
                assert!(!journal.cancelled.contains(id), "{id} was cancelled: {task:#} {events:#?}");
                assert_eq!(of("step.succeeded").len(), 1, "{id}");
                assert_eq!(task["result"]["n"], *n, "the result of another task: {task:#}");
                // The token begins with the number of the event that recorded the lease.
                let last = *of("step.leased").last().expect("it was leased");
                let token = task["result"]["token"].as_str().expect("a token");
                assert_eq!(token.split('-').next(), Some(format!("{last:x}").as_str()), "not the last lease: {task:#}");
                assert!(recorded.len() <= 1, "{id}: two completions counted");
                let source = recorded
                    .first()
                    .copied()
                    .or_else(|| reported.iter().find(|c| c.outcome == Told::Nothing && c.result == task["result"]));
                let source = source.unwrap_or_else(|| panic!("no worker reported this: {task:#}"));
                assert_eq!(source.result, task["result"], "{id}: another result was reported");
            }
            other => panic!("{id} is {other}: {task:#}"),
        }
    }
    for cancelled in &journal.cancelled {
        assert_eq!(server.task(cancelled)["status"], "cancelled");
    }
    let refused = journal.completions.iter().filter(|c| c.outcome == Told::Refused).count();
    assert!(refused > 0, "no report was late, so the test proves nothing");
    let (leases, quarantined) = (journal.leases.len(), released.len());
    format!("{leases} leases, {refused} late completions refused, {quarantined} released, {counts:?}")
}
