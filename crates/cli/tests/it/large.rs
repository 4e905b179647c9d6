//! Requests so large that the engine decides the next batch while it writes them (ADR 0024), and a server that is
//! killed meanwhile: everything acknowledged is stored, whole and once. `ONWARD_SEED` sets when it is killed.

use crate::harness::{Api, Server, WAIT_MAX, eventually};
use crate::kill::driver::flags;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::rng::Rng;

const TYPE: &str = "large.work.v1";
const CLIENTS: usize = 3;
/// Requests of each client, and tasks in each request.
const LISTS: usize = 6;
const LIST: usize = 400;
const TASKS: usize = CLIENTS * LISTS * LIST;
const KILLS: usize = 4;

/// The server's address; none while it is down.
#[derive(Clone)]
struct CurrentServer(Arc<Mutex<Option<Api>>>);

impl CurrentServer {
    /// Sends a request again and again until it is answered. Every request in this file may be repeated.
    fn send_until_answered(&self, path: &str, body: &Value) -> Value {
        let until = Instant::now() + WAIT_MAX;
        while Instant::now() < until {
            let api = *self.0.lock().unwrap();
            match api.and_then(|api| api.write(path, &[], body.to_string().as_bytes()).ok()) {
                Some(answer) if answer.status < 300 => return answer.json()["data"].clone(),
                Some(answer) if answer.status != 503 => panic!("{path}: {} {}", answer.status, answer.text()),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        panic!("{path} was never answered")
    }
}

/// Submits tasks and returns the acknowledged ones: ids and keys.
fn submit(current: &CurrentServer, client: usize) -> Vec<(String, String)> {
    let mut acknowledged = Vec::new();
    for list in 0..LISTS {
        let key = |n: usize| format!("{client}-{list}-{n}");
        let task = |n: usize| json!({ "type": TYPE, "payload": { "key": key(n) }, "idempotency_key": key(n) });
        let made = current.send_until_answered("/api/v1/tasks", &json!((0..LIST).map(task).collect::<Vec<_>>()));
        let made = made.as_array().expect("a list");
        assert_eq!(made.len(), LIST);
        let id = |task: &Value| task["task_id"].as_str().expect("an id").to_owned();
        acknowledged.extend(made.iter().zip(0..).map(|(task, n)| (id(task), key(n))));
    }
    acknowledged
}

/// Reports the tasks it holds and claims more, until there is nothing to claim for a while.
fn work(current: &CurrentServer, number: usize, done: &AtomicUsize) {
    let mut reports: Vec<Value> = Vec::new();
    while done.load(Ordering::SeqCst) < TASKS || !reports.is_empty() {
        let ask = json!({ "worker_id": format!("w{number}"), "types": [TYPE], "credits": 500, "lease": "2s",
            "wait": "200ms", "done": reports });
        let answer = current.send_until_answered("/api/v1/work", &ask);
        let acks = answer["acks"].as_array().expect("acks");
        done.fetch_add(acks.iter().filter(|ack| ack["status"] == "recorded").count(), Ordering::SeqCst);
        let report = |task: &Value| {
            json!({ "task_id": task["task_id"], "claim_token": task["claim_token"],
                "result": { "key": task["input"]["key"] } })
        };
        reports = answer["tasks"].as_array().expect("tasks").iter().map(report).collect();
    }
}

/// Kills the server at random times.
fn kill_while(server: &mut Server, current: &CurrentServer, rng: &mut Rng) {
    for _ in 0..KILLS {
        // A fixed sleep on purpose: the server lives for a random time before it is killed.
        std::thread::sleep(Duration::from_millis(60 + rng.below(400)));
        *current.0.lock().unwrap() = None;
        server.kill();
        server.start_again();
        *current.0.lock().unwrap() = Some(**server);
    }
}

#[test]
fn p1_large_requests_are_stored_whole_and_once_whenever_the_server_dies() {
    let seed = std::env::var("ONWARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let mut rng = Rng::new(seed);
    println!("seed {seed}");
    let flags = flags(&[]);
    let mut server = Server::with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let current = CurrentServer(Arc::new(Mutex::new(Some(*server))));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let current = current.clone();
            std::thread::spawn(move || submit(&current, client))
        })
        .collect();
    kill_while(&mut server, &current, &mut rng);
    let acknowledged: BTreeMap<String, String> =
        clients.into_iter().flat_map(|client| client.join().expect("a client does not fail")).collect();
    let there = |server: &Server, filter: &str| -> BTreeSet<String> {
        let all = server.list(&format!("/api/v1/tasks?type={TYPE}{filter}"));
        let ids: BTreeSet<String> = all.iter().map(|task| task["id"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(ids.len(), all.len(), "listed twice");
        ids
    };
    assert_eq!(acknowledged.len(), TASKS);
    assert!(there(&server, "").iter().eq(acknowledged.keys()), "the stored tasks are not the acknowledged ones");

    let done = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (current, done) = (current.clone(), done.clone());
            std::thread::spawn(move || work(&current, number, &done))
        })
        .collect();
    kill_while(&mut server, &current, &mut rng);
    eventually("every task is done", || {
        let open = |status: &str| server.get(&format!("/api/v1/tasks?type={TYPE}&status={status}&limit=1")).data(200);
        ["pending", "leased"].iter().all(|status| open(status) == json!([])).then_some(())
    });
    // A worker does not count a report that was recorded but never acknowledged.
    done.store(TASKS, Ordering::SeqCst);
    workers.into_iter().for_each(|worker| worker.join().expect("a worker does not fail"));
    assert!(there(&server, "&status=succeeded").iter().eq(acknowledged.keys()), "every task was done");
    for (id, key) in acknowledged.iter().step_by(20) {
        assert_eq!(server.task(id)["result"]["key"], **key, "the result of another task");
        let events = server.task_events(id);
        assert_eq!(events.iter().filter(|event| event["type"] == "step.succeeded").count(), 1, "{events:#?}");
    }
}
