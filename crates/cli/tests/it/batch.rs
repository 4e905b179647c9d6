//! Starting many runs with one request: all of them or none (decision 11).

use crate::harness::{Answer, Api, Server};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn trigger(server: &Api, workflow: &str, items: &Value) -> Answer {
    server.post(&format!("/api/v1/workflows/{workflow}/trigger-batch"), &json!({ "items": items }))
}

fn ids(data: &Value) -> Vec<String> {
    data.as_array().unwrap().iter().map(|item| item["run_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn decision_11_a_batch_starts_its_runs_in_order() {
    let mut server = Server::start();
    let workflow = server.workflow("a: {set: {n: \"{{trigger.body.n}}\"}}");
    let items: Vec<Value> = (0..300).map(|n| json!({ "body": { "n": n }, "labels": { "n": n.to_string() } })).collect();
    let data = trigger(&server, &workflow, &json!(items)).data(201);
    assert!(data.as_array().unwrap().iter().all(|item| item.get("deduplicated").is_none()));
    server.crash_and_restart();
    let runs = ids(&data);
    assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), 300);
    for n in [0, 7, 299] {
        let view = server.finished(&runs[n]);
        assert_eq!((&view["input"], &view["labels"]), (&json!({ "n": n }), &json!({ "n": n.to_string() })));
        assert_eq!(view["tasks"]["a"]["body"]["n"], n);
    }
    runs.iter().for_each(|run| drop(server.finished(run)));
    assert_eq!(server.list("/api/v1/runs").len(), 300);
}

#[test]
fn decision_11_one_bad_item_starts_no_run_and_every_problem_is_reported() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}");
    let items = json!([{ "body": 1 }, { "body": 2, "idempotency_key": "" }, 7, { "body": 3, "when": "now" },
        { "labels": { "a": 1 } }, { "body": "x".repeat(256 * 1024) }]);
    let answer = trigger(&server, &workflow, &items);
    answer.refusal(422);
    let problems = answer.json()["error"]["problems"].clone();
    let places: Vec<&str> = problems.as_array().unwrap().iter().map(|p| p["at"]["path"].as_str().unwrap()).collect();
    let expected = [
        "items[1].idempotency_key",
        "items[2]",
        "items[3].when",
        "items[4].body",
        "items[4].labels.a",
        "items[5].body",
    ];
    assert_eq!(places, expected);
    for body in [
        json!({ "items": [] }),
        json!({ "items": {} }),
        json!({}),
        json!([]),
        json!({ "items": [{ "body": 1 }], "x": 1 }),
    ] {
        let answer = server.post(&format!("/api/v1/workflows/{workflow}/trigger-batch"), &body);
        assert_eq!(answer.refusal(422), "invalid_body", "{body}");
    }
    let many: Vec<Value> = (0..1_001).map(|_| json!({ "body": 1 })).collect();
    assert_eq!(trigger(&server, &workflow, &json!(many)).refusal(422), "invalid_body");
    assert_eq!(trigger(&server, "nothing", &json!([{ "body": 1 }])).refusal(404), "not_found");
    let twice = br#"{"items": [{"body": {"a": 1, "a": 2}}]}"#;
    let path = format!("/api/v1/workflows/{workflow}/trigger-batch");
    assert_eq!(server.send("POST", &path, &[("Content-Type", "application/json")], twice).status, 400);
    server.post(&format!("/api/v1/workflows/{workflow}/disable"), &json!({})).data(200);
    assert_eq!(trigger(&server, &workflow, &json!([{ "body": 1 }])).refusal(409), "workflow_disabled");
    assert!(server.list("/api/v1/runs").is_empty(), "nothing was created");
}

#[test]
fn decision_11_a_repeated_batch_starts_nothing_twice() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}");
    let item = |n: u32, key: &str| json!({ "body": { "n": n }, "idempotency_key": key });
    let single = server.post_with(
        &format!("/api/v1/workflows/{workflow}/trigger"),
        &[("Idempotency-Key", "k1")],
        &json!({ "n": 1 }),
    );
    let single = single.data(201)["run_id"].as_str().unwrap().to_owned();
    let items = json!([item(0, "k0"), item(1, "k1"), item(0, "k0"), { "body": 9 }]);
    let first = trigger(&server, &workflow, &items).data(201);
    let runs = ids(&first);
    assert_eq!((&runs[1], &runs[2]), (&single, &runs[0]), "a single start and a batch share keys");
    let flags = |data: &Value| -> Vec<bool> {
        data.as_array().unwrap().iter().map(|item| item["deduplicated"] == true).collect()
    };
    assert_eq!(flags(&first), [false, true, true, false]);
    let again = trigger(&server, &workflow, &items).data(201);
    assert_eq!((&ids(&again)[..3], flags(&again)), (&runs[..3], vec![true, true, true, false]));
    assert_eq!(server.list("/api/v1/runs").len(), 4);
    // A key that another request used refuses the whole batch, and the error names the item.
    let clash = trigger(&server, &workflow, &json!([item(5, "k5"), item(2, "k1"), item(6, "k6"), item(3, "k0")]));
    assert_eq!(clash.refusal(422), "idempotency_key_reused");
    let places: Vec<Value> =
        clash.json()["error"]["problems"].as_array().unwrap().iter().map(|p| p["at"]["path"].clone()).collect();
    assert_eq!(places, ["items[1].idempotency_key", "items[3].idempotency_key"]);
    assert_eq!(server.list("/api/v1/runs").len(), 4);
    trigger(&server, &workflow, &json!([item(5, "k5")])).data(201);
    // A key whose run was deleted is still used up.
    server.finished(&single);
    assert_eq!(server.delete(&format!("/api/v1/runs/{single}")).status, 204);
    let after = trigger(&server, &workflow, &json!([item(1, "k1"), { "body": 1 }])).data(201);
    assert_eq!(
        (&ids(&after)[0], &after[0]["status"], &after[0]["deduplicated"]),
        (&single, &json!("deleted"), &json!(true))
    );
}

#[test]
fn decision_11_a_batch_may_have_one_key() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}");
    let path = format!("/api/v1/workflows/{workflow}/trigger-batch");
    let send = |items: Value| server.post_with(&path, &[("Idempotency-Key", "k")], &json!({ "items": items }));
    let first = send(json!([{ "body": 1 }, { "body": 1 }])).data(201);
    let again = send(json!([{ "body": 1 }, { "body": 1 }])).data(200);
    assert_eq!(ids(&first), ids(&again));
    assert!(again.as_array().unwrap().iter().all(|item| item["deduplicated"] == true));
    for other in [
        json!([{ "body": 1 }]),
        json!([{ "body": 1 }, { "body": 2 }]),
        json!([{ "body": 1 }, { "body": 1 }, { "body": 1 }]),
    ] {
        assert_eq!(send(other.clone()).refusal(422), "idempotency_key_reused", "{other}");
    }
    assert_eq!(send(json!([{ "body": 1, "idempotencyKey": "other" }])).refusal(422), "invalid_header");
    assert_eq!(server.list("/api/v1/runs").len(), 2);
}

#[test]
fn decision_11_batches_that_share_keys_agree_on_their_runs() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}");
    let items: Vec<Value> = (0..50).map(|n| json!({ "body": n, "idempotency_key": format!("k{n}") })).collect();
    let answers: Vec<Vec<String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|client| {
                let mut mine = items.clone();
                mine.rotate_left(client * 7);
                let (api, workflow): (Api, _) = (*server, &workflow);
                scope.spawn(move || {
                    let answer = trigger(&api, workflow, &json!(mine));
                    let mut runs = ids(&answer.data(if answer.status == 200 { 200 } else { 201 }));
                    runs.rotate_right(client * 7);
                    runs
                })
            })
            .collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|runs| *runs == answers[0]));
    assert_eq!(server.list("/api/v1/runs").len(), 50);
}

#[test]
fn decision_11_a_batch_cut_off_by_a_crash_is_stored_whole_or_not_at_all() {
    let mut server = Server::start();
    let workflow = server.workflow("a: {sleep: 1ms}\nb: {noop: {}, needs: [a]}");
    for round in 0..6u64 {
        let items: Vec<Value> =
            (0..200).map(|n| json!({ "body": n, "labels": { "round": round.to_string() } })).collect();
        let body = json!({ "items": items }).to_string();
        let path = format!("/api/v1/workflows/{workflow}/trigger-batch");
        let api = *server;
        let sent = std::thread::spawn(move || api.write(&path, &[], body.as_bytes()));
        std::thread::sleep(std::time::Duration::from_millis(4 + round * 6));
        server.crash_and_restart();
        let answered = sent.join().unwrap().is_ok_and(|answer| answer.status == 201);
        let count = server.list(&format!("/api/v1/runs?label=round:{round}")).len();
        assert!(count == 200 || count == 0 && !answered, "{count} runs, answered: {answered}");
    }
}
