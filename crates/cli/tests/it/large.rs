//! Lists and reports so large that the next batch is decided while they are written (ADR 0024), and a server that dies
//! meanwhile: whatever was acknowledged is there, whole and once. `ONWARD_SEED` says when it dies.

use crate::harness::{Api, PATIENCE, Server, eventually};
use crate::kill::driver::flags;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::rng::Rng;

const TYPE: &str = "large.work.v1";
const CLIENTS: usize = 3;
/// Lists of a client, and tasks in each.
const LISTS: usize = 6;
const LIST: usize = 400;
const TASKS: usize = CLIENTS * LISTS * LIST;
const KILLS: usize = 4;

/// Nobody while the server is down.
#[derive(Clone)]
struct WebhookEndpoint(Arc<Mutex<Option<Api>>>);

impl WebhookEndpoint {
    /// The same again until it is answered: everything here may be repeated.
    fn insist(&self, path: &str, body: &Value) -> Value {
        let until = Instant::now() + PATIENCE;
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

/// The tasks it was told of, by their ids, with their keys.
fn submit(door: &WebhookEndpoint, client: usize) -> Vec<(String, String)> {
    let mut told = Vec::new();
    for list in 0..LISTS {
        let key = |n: usize| format!("{client}-{list}-{n}");
        let task = |n: usize| json!({ "type": TYPE, "payload": { "key": key(n) }, "idempotency_key": key(n) });
        let made = door.insist("/api/v1/tasks", &json!((0..LIST).map(task).collect::<Vec<_>>()));
        let made = made.as_array().expect("a list");
        assert_eq!(made.len(), LIST);
        let id = |task: &Value| task["task_id"].as_str().expect("an id").to_owned();
        told.extend(made.iter().zip(0..).map(|(task, n)| (id(task), key(n))));
    }
    told
}

/// Reports what it holds and claims more, until there is nothing for a while.
fn work(door: &WebhookEndpoint, number: usize, done: &AtomicUsize) {
    let mut reports: Vec<Value> = Vec::new();
    while done.load(Ordering::SeqCst) < TASKS || !reports.is_empty() {
        let ask = json!({ "worker_id": format!("w{number}"), "types": [TYPE], "credits": 500, "lease": "2s",
            "wait": "200ms", "done": reports });
        let answer = door.insist("/api/v1/work", &ask);
        let acks = answer["acks"].as_array().expect("acks");
        done.fetch_add(acks.iter().filter(|ack| ack["status"] == "recorded").count(), Ordering::SeqCst);
        let report = |task: &Value| {
            json!({ "task_id": task["task_id"], "claim_token": task["claim_token"],
                "result": { "key": task["input"]["key"] } })
        };
        reports = answer["tasks"].as_array().expect("tasks").iter().map(report).collect();
    }
}

/// Kills the server at random moments while something goes on.
fn kill_while(server: &mut Server, door: &WebhookEndpoint, rng: &mut Rng) {
    for _ in 0..KILLS {
        // The one kind of waiting that cannot be polled for: letting it live for a random while.
        std::thread::sleep(Duration::from_millis(60 + rng.below(400)));
        *door.0.lock().unwrap() = None;
        server.kill();
        server.start_again();
        *door.0.lock().unwrap() = Some(**server);
    }
}

#[test]
fn p1_large_lists_and_reports_are_whole_and_once_whenever_the_server_dies() {
    let seed = std::env::var("ONWARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let mut rng = Rng::new(seed);
    println!("seed {seed}");
    let flags = flags(&[]);
    let mut server = Server::with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let door = WebhookEndpoint(Arc::new(Mutex::new(Some(*server))));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let door = door.clone();
            std::thread::spawn(move || submit(&door, client))
        })
        .collect();
    kill_while(&mut server, &door, &mut rng);
    let told: BTreeMap<String, String> =
        clients.into_iter().flat_map(|client| client.join().expect("a client does not fail")).collect();
    let there = |server: &Server, filter: &str| -> BTreeSet<String> {
        let all = server.list(&format!("/api/v1/tasks?type={TYPE}{filter}"));
        let ids: BTreeSet<String> = all.iter().map(|task| task["id"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(ids.len(), all.len(), "listed twice");
        ids
    };
    assert_eq!(told.len(), TASKS);
    assert!(there(&server, "").iter().eq(told.keys()), "every task that was acknowledged, and no other");

    let done = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (door, done) = (door.clone(), done.clone());
            std::thread::spawn(move || work(&door, number, &done))
        })
        .collect();
    kill_while(&mut server, &door, &mut rng);
    eventually("every task is done", || {
        let open = |status: &str| server.get(&format!("/api/v1/tasks?type={TYPE}&status={status}&limit=1")).data(200);
        ["pending", "leased"].iter().all(|status| open(status) == json!([])).then_some(())
    });
    // A report that was recorded and never acknowledged is not counted by whoever made it.
    done.store(TASKS, Ordering::SeqCst);
    workers.into_iter().for_each(|worker| worker.join().expect("a worker does not fail"));
    assert!(there(&server, "&status=succeeded").iter().eq(told.keys()), "every task was done");
    for (id, key) in told.iter().step_by(20) {
        assert_eq!(server.task(id)["result"]["key"], **key, "the result of another");
        let events = server.task_events(id);
        assert_eq!(events.iter().filter(|event| event["type"] == "step.succeeded").count(), 1, "{events:#?}");
    }
}
