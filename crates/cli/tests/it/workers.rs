//! Workers: which tasks a claim gets, in which order, and how a worker learns of a cancel.

use crate::harness::{Answer, Claimed, Server, eventually};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(Claimed::id).collect()
}

#[test]
fn w7_a_worker_claims_by_prefix_and_sees_nothing_else() {
    let server = Server::start();
    let types =
        ["billing.invoice.v1", "billing.refund.v1", "billingx.v1", "notify.email.v1", "billing_invoice.v1", "a.v1"];
    let made: Vec<String> = types.iter().map(|name| server.submit(name, json!(name))).collect();
    let claim = |patterns: &[&str]| {
        let claimed = server.claim("w", patterns, 100);
        let seen: Vec<String> = claimed.iter().map(|c| c.view["type"].as_str().expect("a type").to_owned()).collect();
        // Given back for the next pattern.
        claimed.iter().for_each(|c| drop(c.report("snooze", json!({ "for": "0s" })).data(200)));
        eventually("they are back", || (server.list("/api/v1/tasks?status=pending").len() == 6).then_some(()));
        eventually("the tasks are ready again", || {
            let types = server.list("/api/v1/types");
            (types.iter().map(|t| t["ready"].as_u64().unwrap_or(0)).sum::<u64>() == 6).then_some(())
        });
        seen
    };
    assert_eq!(claim(&["billing.%"]), types[..2]);
    assert_eq!(claim(&["billing.invoice.v1"]), types[..1]);
    assert_eq!(claim(&["billing%"]).len(), 4);
    assert_eq!(claim(&["notify.%", "a.%"]), ["notify.email.v1", "a.v1"]);
    assert_eq!(claim(&["%"]), types);
    // Overlapping patterns return no task twice.
    assert_eq!(claim(&["%", "billing.%", "billing.invoice.v1"]).len(), 6);
    // 5c: `_` matches itself, `%` is a wildcard only at the end.
    assert_eq!(claim(&["billing_%"]), ["billing_invoice.v1"]);
    assert!(claim(&["billing_refund.v1", "______", "a_v1"]).is_empty());
    for wrong in ["%.v1", "bil%ing.%", "%%", "billing.%.v1", "", "with space", "ünicode.%"] {
        let request = json!({ "worker_id": "w", "types": [wrong], "wait": "0s" });
        assert_eq!(server.post("/api/v1/tasks/claim", &request).refusal(422), "invalid_body", "{wrong}");
        let request = json!({ "worker_id": "w", "types": [wrong], "credits": 1, "wait": "0s" });
        assert_eq!(server.post("/api/v1/work", &request).refusal(422), "invalid_body", "{wrong}");
    }
    assert_eq!(made.len(), server.list("/api/v1/tasks?status=pending").len());
}

#[test]
fn w8_lower_priority_first_then_older_first() {
    let mut server = Server::start();
    let made: Vec<(u32, String)> = [100, 5, 100, 0, 5, 1_000_000, 0, 100]
        .iter()
        .enumerate()
        .map(|(n, priority)| {
            // The order holds across two types.
            let name = format!("order.{}.v1", n % 2);
            (*priority, server.submit_with(&json!({ "type": name, "payload": n, "priority": priority })))
        })
        .collect();
    let mut expected = made.clone();
    expected.sort_by_key(|(priority, _)| *priority);
    let expected: Vec<&str> = expected.iter().map(|(_, id)| id.as_str()).collect();
    server.crash_and_restart();
    let first = server.claim("w", &["order.%"], 3);
    assert_eq!(ids(&first), expected[..3]);
    let rest = server.claim("w", &["order.%"], 100);
    assert_eq!(ids(&rest), expected[3..]);
}

/// The same for evicted tasks: while a crash point is armed (here one that is never reached), almost none stay in
/// memory.
#[test]
fn w8_the_order_holds_for_evicted_tasks() {
    let never = [("ONWARD_CRASH", "before_commit:1000000")];
    let mut server = Server::with_environment(&[], tempfile::TempDir::new().expect("a folder"), &never);
    let mut rng = testkit::rng::Rng::new(7);
    // Priority, then age; cancelled and deleted tasks are left out.
    let mut left: std::collections::BTreeMap<(u64, usize), String> = std::collections::BTreeMap::new();
    let mut count = 0;
    for round in 0..12 {
        let some: Vec<u64> = (0..40).map(|_| 100 + rng.below(4)).collect();
        let tasks: Vec<Value> =
            some.iter().map(|priority| json!({ "type": "deep.v1", "payload": round, "priority": priority })).collect();
        let made = server.post("/api/v1/tasks", &json!(tasks)).data(201);
        for (view, priority) in made.as_array().expect("a list").iter().zip(&some) {
            left.insert((*priority, count), view["task_id"].as_str().expect("an id").to_owned());
            count += 1;
        }
        for _ in 0..3 {
            let chosen = *left.keys().nth(rng.below(left.len() as u64) as usize).expect("one of them");
            let id = left.remove(&chosen).expect("it is there");
            match rng.one_in(2) {
                true => drop(server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).data(200)),
                false => assert_eq!(server.delete(&format!("/api/v1/tasks/{id}")).status, 204),
            }
        }
        if round % 4 == 3 {
            server.crash_and_restart();
        }
        let claimed = server.claim("w", &["deep.%"], 10 + round);
        let expected: Vec<String> = (0..claimed.len()).map(|_| left.pop_first().expect("one of them").1).collect();
        assert_eq!(ids(&claimed), expected, "round {round}");
        assert_eq!(claimed.len(), 10 + round as usize);
        for claimed in &claimed {
            assert!(claimed.view["input"].is_number());
            claimed.complete(json!(1)).data(200);
        }
    }
    assert_eq!(server.get("/api/v1/types/deep.v1").data(200)["ready"], left.len());
    let mut rest = Vec::new();
    while rest.len() < left.len() {
        let claimed = server.claim("w", &["deep.%"], 100);
        assert!(!claimed.is_empty(), "{} of {}", rest.len(), left.len());
        rest.extend(claimed.iter().map(|c| c.id().to_owned()));
    }
    assert_eq!(rest, left.into_values().collect::<Vec<_>>());
    assert!(server.claim("w", &["deep.%"], 1).is_empty());
}

#[test]
fn w8_two_workers_never_get_the_same_task() {
    let server = Server::start();
    let api = *server;
    let tasks: Vec<Value> = (0..300).map(|n| json!({ "type": "race.v1", "payload": n })).collect();
    let workers: Vec<_> = (0..8)
        .map(|w| {
            std::thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    let wait = if got.is_empty() { "20s" } else { "500ms" };
                    let request =
                        json!({ "worker_id": format!("w{w}"), "types": ["race.%"], "max": 1 + w, "wait": wait });
                    let claimed = api.claim_with(&request);
                    if claimed.is_empty() {
                        return got;
                    }
                    got.extend(claimed.iter().map(|c| c.id().to_owned()));
                }
            })
        })
        .collect();
    for some in tasks.chunks(30) {
        server.post("/api/v1/tasks", &json!(some)).data(201);
    }
    let mut all: Vec<String> = workers.into_iter().flat_map(|w| w.join().expect("a worker")).collect();
    assert_eq!(all.len(), 300);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 300, "no task twice");
}

#[test]
fn a_claim_waits_for_a_task_and_no_longer_than_it_says() {
    let server = Server::start();
    let begun = Instant::now();
    let claim_request = json!({ "worker_id": "w", "types": ["long.%"], "wait": "700ms" });
    let (answer, took) = server.claim_later(claim_request).join().expect("an answer");
    assert_eq!(answer.json(), json!({ "data": [], "cancelled": [] }));
    assert!((700..2_500).contains(&took.as_millis()), "{took:?}");
    let open = server.claim_later(json!({ "worker_id": "w", "types": ["long.%"], "wait": "30s" }));
    server.worker_when_seen("w");
    let id = server.submit("long.wait.v1", json!(1));
    let (answer, _) = open.join().expect("an answer");
    assert_eq!(answer.data(200)[0]["task_id"], json!(id));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// A worker learns of a cancel within a second through its open claim, and in the answer to a heartbeat.
#[test]
fn w11_a_cancel_reaches_the_worker() {
    // One node: a worker's claims reach only the node of its connection, and other nodes can report a cancel only in
    // the answer to a heartbeat.
    let server = Server::alone(&[]);
    for (way, n) in [("claim", 0), ("work", 1)] {
        let worker = format!("w{n}");
        let id = server.submit("stop.v1", json!(n));
        let claimed = server.claim_one(&worker, "stop.v1");
        let (api, path) = (*server, if way == "claim" { "/api/v1/tasks/claim" } else { "/api/v1/work" });
        let mut request = json!({ "worker_id": worker, "types": ["stop.v1"], "wait": "30s" });
        if way == "work" {
            request["credits"] = 1.into();
        }
        let open = std::thread::spawn(move || (api.post(path, &request), Instant::now()));
        // Waits until the claim is open: only this worker has called since.
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(claimed.report("heartbeat", json!({})).data(200)["cancel"], false);
        let sent_at = Instant::now();
        server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).data(200);
        let (answer, at): (Answer, Instant) = open.join().expect("an answer");
        assert!(at.duration_since(sent_at) < Duration::from_secs(1), "{way}: {:?}", at.duration_since(sent_at));
        let body = answer.json();
        match way {
            "claim" => assert_eq!(body, json!({ "data": [], "cancelled": [id] })),
            _ => assert_eq!(body["data"]["leases"], json!([{ "task_id": id, "lease_until": null, "cancel": true }])),
        }
        assert_eq!(claimed.report("heartbeat", json!({})).data(200)["cancel"], true);
        let beat = json!({ "worker_id": "x", "types": ["none.v1"], "credits": 0, "wait": "0s",
            "heartbeats": [{ "task_id": id, "claim_token": claimed.token() }] });
        assert_eq!(server.post("/api/v1/work", &beat).data(200)["leases"][0]["cancel"], true);
    }
    // Without an open claim the next two claims report it: the first answer may be lost.
    let id = server.submit("stop.v1", json!(2));
    server.claim_one("later", "stop.v1");
    server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).data(200);
    let claim_request = json!({ "worker_id": "later", "types": ["stop.v1"], "wait": "30s" });
    for _ in 0..2 {
        let answer = server.post("/api/v1/tasks/claim", &claim_request).json();
        assert_eq!(answer, json!({ "data": [], "cancelled": [id] }));
    }
    let claim_request = json!({ "worker_id": "later", "types": ["stop.v1"], "wait": "0s" });
    assert_eq!(server.post("/api/v1/tasks/claim", &claim_request).json(), json!({ "data": [], "cancelled": [] }));
}

/// A worker that drops its claim just when the answer is sent gets the cancel with its next claim.
#[test]
fn w11_a_cancel_whose_answer_was_lost_is_sent_again() {
    let server = Server::alone(&[]);
    let id = server.submit("stop.v1", json!(1));
    let claimed = server.claim_one("hasty", "stop.v1");
    let claim_request = json!({ "worker_id": "hasty", "types": ["stop.v1"], "credits": 0, "wait": "30s" });
    let socket = send_only(&server, "/api/v1/work", &claim_request);
    std::thread::sleep(Duration::from_millis(150));
    server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).data(200);
    assert!(socket.peek(&mut [0; 16]).is_ok_and(|read| read > 0), "it is answered");
    drop(socket);
    let sent_at = Instant::now();
    let body = server.post("/api/v1/work", &claim_request).data(200)["leases"].clone();
    assert_eq!(body, json!([{ "task_id": id, "lease_until": null, "cancel": true }]));
    assert!(sent_at.elapsed() < Duration::from_secs(1), "{:?}", sent_at.elapsed());
    assert_eq!(claimed.report("heartbeat", json!({})).data(200)["cancel"], true);
}

/// Sends a request and returns the socket without reading the answer.
fn send_only(server: &Server, path: &str, body: &Value) -> std::net::TcpStream {
    let (address, body) = (server.address, body.to_string());
    let mut socket = std::net::TcpStream::connect(address).expect("a connection");
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes())).expect("sent");
    socket
}

/// A client that disconnects while it waits does not lose a task.
#[test]
fn claims_of_disconnected_workers_lose_no_task() {
    let server = Server::start();
    let mut sockets = Vec::new();
    for n in 0..20 {
        let worker = format!("gone{n}");
        let claim_request =
            json!({ "worker_id": worker, "types": ["lost.v1"], "max": 10, "lease": "1h", "wait": "60s" });
        sockets.push(send_only(&server, "/api/v1/tasks/claim", &claim_request));
    }
    eventually("all claims are open", || {
        (server.get("/api/v1/workers").data(200).as_array()?.len() == 20).then_some(())
    });
    // Half of them disconnect before there is a task, the others while tasks are submitted.
    sockets.truncate(10);
    let first = server.submit("lost.v1", json!("first"));
    let going = std::thread::spawn(move || sockets.into_iter().for_each(drop));
    let rest: Vec<Value> = (0..200).map(|n| json!({ "type": "lost.v1", "payload": n })).collect();
    server.post("/api/v1/tasks", &json!(rest)).data(201);
    going.join().expect("they went");
    let mut done = HashSet::new();
    eventually("connected workers get every task", || {
        for claimed in server.claim("there", &["lost.v1"], 100) {
            done.insert(claimed.id().to_owned());
            assert_eq!(server.task(claimed.id())["error"], Value::Null, "a lost delivery is not charged as a failure");
            claimed.complete(json!(1)).data(200);
        }
        // A worker that was still connected when a task became ready may have got it.
        let given = server.list("/api/v1/tasks?type=lost.v1&status=leased").len();
        (done.len() + given == 201).then_some(())
    });
    assert!(done.len() >= 201 - 10 * 10, "ten workers can have got ten tasks each: {}", done.len());
    assert!(!server.task(&first)["status"].is_null());
}

/// The same without a race: the server has noticed the disconnects before a task is submitted.
#[test]
fn a_closed_claim_gets_no_task() {
    let server = Server::start();
    for n in 0..5 {
        let body = json!({ "worker_id": format!("gone{n}"), "types": ["lost.v1"], "lease": "1h", "wait": "60s" });
        let mut socket = std::net::TcpStream::connect(server.address).expect("a connection");
        let head = format!(
            "POST /api/v1/tasks/claim HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            server.address,
            body.to_string().len()
        );
        socket.write_all(head.as_bytes()).expect("sent");
        server.worker_when_seen(&format!("gone{n}"));
    }
    std::thread::sleep(Duration::from_millis(200));
    let made: HashSet<String> = (0..5).map(|n| server.submit("lost.v1", json!(n))).collect();
    let claimed = server.claim("there", &["lost.v1"], 100);
    assert_eq!(claimed.iter().map(|c| c.id().to_owned()).collect::<HashSet<_>>(), made);
    assert!(claimed.iter().all(|c| c.attempt() == 1));
}

#[test]
fn one_work_request_reports_heartbeats_and_claims() {
    // Only the node that gets the heartbeat knows the new deadline.
    let server = Server::alone(&["--clock", "virtual"]);
    let made: Vec<String> = (0..8).map(|n| server.submit("go.v1", json!(n))).collect();
    let work = |done: Value, heartbeats: Value, credits: u32| {
        let body = json!({ "worker_id": "w", "types": ["go.v1"], "credits": credits, "lease": "30s", "wait": "0s",
            "done": done, "heartbeats": heartbeats });
        server.post("/api/v1/work", &body).data(200)
    };
    let first = work(json!([]), json!([]), 5);
    assert_eq!((&first["acks"], &first["leases"]), (&json!([]), &json!([])));
    let tasks = first["tasks"].as_array().expect("a list").clone();
    assert_eq!(tasks.len(), 5);
    let entry = |n: usize, more: Value| {
        let mut entry = json!({ "task_id": tasks[n]["task_id"], "claim_token": tasks[n]["claim_token"] });
        more.as_object().expect("an object").iter().for_each(|(k, v)| entry[k] = v.clone());
        entry
    };
    server.advance("10s");
    let done = json!([
        entry(0, json!({ "result": { "n": 0 } })),
        entry(1, json!({ "error": { "message": "no" }, "final": true })),
        entry(2, json!({ "error": { "message": "not yet" }, "retry_after": "5s" })),
        entry(3, json!({ "snooze": "1h" })),
        { "task_id": tasks[0]["task_id"], "claim_token": "0-0", "result": 1 },
        { "task_id": "task_01jz8k3w9mz6xq4v7n5t2c0b1d", "claim_token": "0-0", "result": 1 },
    ]);
    let beats = json!([
        entry(4, json!({ "progress": { "half": true } })),
        { "task_id": tasks[0]["task_id"], "claim_token": "0-0" },
    ]);
    let second = work(done.clone(), beats, 2);
    let acks: Vec<&str> =
        second["acks"].as_array().expect("a list").iter().map(|a| a["status"].as_str().unwrap()).collect();
    assert_eq!(acks, ["recorded", "recorded", "recorded", "recorded", "stale_claim", "stale_claim"]);
    assert_eq!(second["acks"][1]["task_id"], tasks[1]["task_id"], "in the order of the reports");
    assert_eq!((&second["leases"][0]["cancel"], &second["leases"][1]["cancel"]), (&json!(false), &json!(true)));
    assert!(second["leases"][0]["lease_until"].is_string() && second["leases"][1]["lease_until"].is_null());
    assert_eq!(second["tasks"].as_array().expect("a list").len(), 2);
    let status = |n: usize| server.task(&made[n])["status"].as_str().expect("a status").to_owned();
    assert_eq!([0, 1, 2, 3, 4].map(status), ["succeeded", "failed", "pending", "pending", "leased"]);
    assert_eq!(server.task(&made[4])["progress"], json!({ "half": true }));
    // The same request again: the same answers, and nothing changes.
    let before: Vec<Value> = made.iter().map(|id| server.task(id)).collect();
    let repeat = work(done, json!([]), 0);
    let again: Vec<&str> =
        repeat["acks"].as_array().expect("a list").iter().map(|a| a["status"].as_str().unwrap()).collect();
    assert_eq!(again, acks);
    assert_eq!(made.iter().map(|id| server.task(id)).collect::<Vec<_>>(), before);
    // One invalid entry, and none of them is recorded.
    let wrong = json!({ "worker_id": "w", "types": ["go.v1"], "credits": 0, "done":
        [entry(4, json!({ "result": 1 })), entry(0, json!({ "result": 1, "error": { "message": "both" } }))] });
    let refused = server.post("/api/v1/work", &wrong);
    assert_eq!(refused.refusal(422), "invalid_body");
    assert_eq!(refused.json()["error"]["at"]["path"], "done[1]", "{}", refused.text());
    let wrong = json!({ "worker_id": "w", "types": ["go.v1"], "credits": 0, "done":
        [entry(4, json!({ "result": 1 })), { "task_id": "nonsense", "claim_token": "", "result": 1 }] });
    assert_eq!(server.post("/api/v1/work", &wrong).status, 400);
    assert_eq!(status(4), "leased");
}

#[test]
fn progress_that_is_too_large_does_not_stop_the_work() {
    let server = Server::start();
    server.submit("go.v1", json!(1));
    server.submit("go.v1", json!(2));
    let work = |more: Value| {
        let mut body = json!({ "workerId": "w", "types": ["go.v1"], "credits": 2, "wait": "0s" });
        more.as_object().expect("an object").iter().for_each(|(k, v)| body[k] = v.clone());
        server.post("/api/v1/work", &body).data(200)
    };
    let tasks = work(json!({}))["tasks"].clone();
    let entry = |n: usize, field: &str, value: Value| json!({ "taskId": tasks[n]["task_id"], "claimToken": tasks[n]["claim_token"], field: value });
    let large = json!({ "pageText": "x".repeat(4 * 1024) });
    let answer = work(json!({ "done": [entry(1, "result", json!(2))], "heartbeats": [entry(0, "progress", large)] }));
    assert_eq!(answer["acks"][0]["status"], "recorded", "the other entries count");
    let lease = &answer["leases"][0];
    assert_eq!((&lease["cancel"], &lease["error"]), (&json!(false), &json!("too_large")));
    assert!(lease["lease_until"].is_string(), "the worker keeps the task");
    let small = json!({ "pageText": "x" });
    let saved = work(json!({ "heartbeats": [entry(0, "progress", small.clone())] }));
    assert_eq!(saved["leases"][0]["error"], Value::Null);
    let task = tasks[0]["task_id"].as_str().expect("an id");
    assert_eq!(server.task(task)["progress"], small, "data keeps its spelling");
}

#[test]
fn work_takes_a_thousand_reports_and_no_more() {
    let server = Server::start();
    let tasks: Vec<Value> = (0..1_001).map(|n| json!({ "type": "many.v1", "payload": n })).collect();
    server.post("/api/v1/tasks", &json!(tasks)).data(201);
    let ask = |done: Value, credits: u32| {
        let body = json!({ "worker_id": "w", "types": ["many.v1"], "credits": credits, "lease": "5m", "wait": "5s", "done": done });
        server.post("/api/v1/work", &body)
    };
    let first = ask(json!([]), 1_000).data(200)["tasks"].clone();
    let report = |task: &Value| json!({ "task_id": task["task_id"], "claim_token": task["claim_token"], "result": task["input"] });
    let mut done: Vec<Value> = first.as_array().expect("a list").iter().map(report).collect();
    assert_eq!(done.len(), 1_000);
    let answer = ask(json!(done), 1_000).data(200);
    assert!(answer["acks"].as_array().expect("a list").iter().all(|ack| ack["status"] == "recorded"));
    assert_eq!(answer["tasks"].as_array().expect("a list").len(), 1);
    done.push(report(&answer["tasks"][0]));
    assert_eq!(ask(json!(done), 0).refusal(422), "invalid_body");
    assert_eq!(ask(json!(done[1_000..]), 0).data(200)["acks"][0]["status"], "recorded");
    let ended = server.list("/api/v1/tasks?status=succeeded");
    assert_eq!(ended.len(), 1_001);
    assert!(ended.iter().all(|task| task["result"] == task["input"]));
    assert_eq!(ask(json!([]), 1_001).refusal(422), "invalid_body");
}

#[test]
fn workers_are_listed_with_what_their_claims_say() {
    // Only the node that granted the leases knows how many a worker has.
    let mut server = Server::alone(&[]);
    let request = json!({ "worker_id": "web-1", "types": ["a.%", "b.v1"], "runtime": "python", "version": "1.4.0",
        "slots": 10, "wait": "0s" });
    server.submit("a.v1", json!(1));
    assert_eq!(server.claim_with(&request).len(), 1);
    server.claim("web-2", &["c.v1"], 1);
    let seen = server.get("/api/v1/workers").data(200);
    assert_eq!(seen.as_array().expect("a list").len(), 2);
    let first = &seen[0];
    let expected = json!({ "id": "web-1", "types": ["a.%", "b.v1"], "runtime": "python", "version": "1.4.0", "slots": 10, "leased": 1 });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&first[field], value, "{field}");
    }
    let page = server.get("/api/v1/workers?limit=1").json();
    assert_eq!((page["data"].as_array().expect("a list").len(), page["next"].as_str()), (1, Some("web-1")));
    let next = server.get("/api/v1/workers?limit=1&cursor=web-1").json();
    assert_eq!((&next["data"][0]["id"], &next["next"]), (&json!("web-2"), &Value::Null));
    // Workers survive a restart: they are stored every few seconds.
    std::thread::sleep(Duration::from_secs(6));
    server.crash_and_restart();
    assert_eq!(server.worker_when_seen("web-1")["version"], "1.4.0");
    eventually("its leases are counted again", || (server.worker_when_seen("web-1")["leased"] == 1).then_some(()));
}

/// W22: the state of the queue is in the metrics.
#[test]
fn w22_metrics_show_the_queue() {
    // One node: every node counts all ready tasks, so the sum would count them several times.
    let server = Server::alone(&[]);
    for n in 0..3 {
        server.submit("gauge.v1", json!(n));
    }
    let metric = |name: &str| {
        let text = server.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(&format!("onward_{name} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    eventually("three tasks are ready, and no worker claims them", || {
        (metric("tasks_ready") == 3.0 && metric("types_without_worker") == 1.0).then_some(())
    });
    server.claim("w", &["gauge.v1"], 2);
    eventually("two are leased", || (metric("tasks_leased") == 2.0 && metric("tasks_ready") == 1.0).then_some(()));
    assert_eq!((metric("tasks_leased_total"), metric("types_without_worker")), (2.0, 0.0));
}

/// A draining server answers open claims at once and keeps all leases.
#[test]
fn a_draining_server_answers_open_claims() {
    let mut server = Server::start();
    server.submit("drain.v1", json!(1));
    let claimed = server.claim_one("w", "drain.v1");
    let open = server.claim_later(json!({ "worker_id": "w", "types": ["other.v1"], "wait": "60s" }));
    std::thread::sleep(Duration::from_millis(150));
    assert!(server.terminate().success());
    let (answer, took) = open.join().expect("an answer");
    assert_eq!(answer.data(200), json!([]));
    assert!(took < Duration::from_secs(10), "{took:?}");
    server.start_again();
    Claimed { api: *server, ..claimed }.complete(json!("kept")).data(200);
}
