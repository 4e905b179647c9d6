//! Leases: a worker has a task for a limited time, and only the holder of the current lease can report its outcome.

use crate::harness::{Claimed, Server, eventually, micros, names};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn claim(server: &Server, worker: &str, lease: &str) -> Vec<Claimed> {
    server.claim_with(&json!({ "worker_id": worker, "types": ["%"], "max": 10, "lease": lease, "wait": "0s" }))
}

#[test]
fn w9_a_claim_leases_for_as_long_as_it_says() {
    let server = Server::with_virtual_clock();
    let ids: Vec<String> = (0..3).map(|n| server.submit("lease.v1", json!(n))).collect();
    for (id, lease, seconds) in [(&ids[0], None, 30), (&ids[1], Some("5s"), 5), (&ids[2], Some("1h"), 3_600)] {
        let mut request = json!({ "worker_id": "w", "types": ["lease.v1"], "wait": "0s" });
        if let Some(lease) = lease {
            request["lease"] = lease.into();
        }
        let claimed = server.claim_with(&request).pop().expect("a task");
        assert_eq!((claimed.id(), &claimed.view["lease_ms"]), (id.as_str(), &json!(seconds * 1_000)));
        let task = server.task(id);
        assert_eq!((&task["status"], &task["leased_by"]), (&json!("leased"), &json!("w")), "{task:#}");
        assert_eq!(task["lease_until"], claimed.view["lease_until"]);
        let lease = micros(&task["lease_until"]) - micros(&task["started_at"]);
        assert!((0..=1_000_000).contains(&(lease - seconds * 1_000_000)), "{task:#}");
    }
    for wrong in ["0s", "500ms", "61m", "soon"] {
        let request = json!({ "worker_id": "w", "types": ["lease.v1"], "lease": wrong, "wait": "0s" });
        assert_eq!(server.post("/api/v1/tasks/claim", &request).refusal(422), "invalid_body", "{wrong}");
    }
}

#[test]
fn w10_a_heartbeat_extends_only_while_leased() {
    // Only the node that gets the heartbeat knows the new deadline.
    let server = Server::alone(&["--clock", "virtual"]);
    let id = server.submit("beat.v1", json!(1));
    let first = claim(&server, "one", "30s").pop().expect("a task");
    server.advance("20s");
    let beat = first.report("heartbeat", json!({})).data(200);
    assert_eq!(beat["cancel"], false);
    assert!(
        micros(&beat["lease_until"]) - micros(&first.view["lease_until"]) >= 20_000_000,
        "extended by the length of the lease"
    );
    let longer = first.report("heartbeat", json!({ "extend": "5m" })).data(200);
    assert_eq!(server.task(&id)["lease_until"], longer["lease_until"], "extended by the given duration");
    // A shorter extension does not shorten the lease.
    assert_eq!(first.report("heartbeat", json!({ "extend": "1s" })).data(200)["lease_until"], longer["lease_until"]);
    server.advance("4m");
    assert_eq!(server.task(&id)["status"], "leased", "the lease was extended");
    server.advance("61s");
    assert_ne!(server.task(&id)["status"], "leased", "the extended lease has expired");
    assert_eq!(first.report("heartbeat", json!({})).refusal(409), "stale_claim");
    assert_eq!(first.report("heartbeat", json!({ "progress": { "page": 1 } })).refusal(409), "stale_claim");
    assert_eq!(server.task(&id)["progress"], Value::Null, "nothing was changed");
    // After the task has ended there is no lease to extend.
    let second = claim(&server, "two", "30s").pop().expect("the task again");
    assert_eq!(second.complete(json!("done")).status, 200);
    for gone in [&first, &second] {
        assert_eq!(gone.report("heartbeat", json!({})).refusal(409), "stale_claim");
    }
    assert_eq!(server.task(&id)["status"], "succeeded");
}

#[test]
fn w10_a_heartbeat_of_another_token_or_task_extends_nothing() {
    let server = Server::with_virtual_clock();
    let ids = [server.submit("beat.v1", json!(1)), server.submit("beat.v1", json!(2))];
    let claimed = claim(&server, "w", "30s");
    let until: Vec<Value> = ids.iter().map(|id| server.task(id)["lease_until"].clone()).collect();
    let [one, other] = &claimed[..] else { panic!("two tasks") };
    server.advance("5s");
    for token in [other.token(), "", "0-0", "nonsense", "ffffffffffffffffffffffff-00000000"] {
        let beat = json!({ "claim_token": token });
        let answer = server.post(&format!("/api/v1/tasks/{}/heartbeat", one.id()), &beat);
        assert_eq!(answer.refusal(409), "stale_claim", "{token}");
    }
    for (id, until) in ids.iter().zip(until) {
        assert_eq!(server.task(id)["lease_until"], until);
    }
}

#[test]
fn w14_an_expired_lease_is_claimable_again_and_counts() {
    let server = Server::with_virtual_clock();
    let id = server.submit("crash.v1", json!({ "n": 1 }));
    for attempt in 1..=3 {
        let claimed = claim(&server, &format!("w{attempt}"), "30s");
        assert_eq!(claimed.iter().map(Claimed::attempt).collect::<Vec<_>>(), [attempt], "attempts count up");
        server.advance("29s");
        assert!(claim(&server, "thief", "30s").is_empty(), "it is still leased");
        server.advance("2s");
    }
    // 5c: a payload that kills its worker is not leased forever.
    let dead = server.task(&id);
    assert_eq!((&dead["status"], &dead["error"]["code"]), (&json!("failed"), &json!("quarantined")), "{dead:#}");
    assert!(claim(&server, "w4", "30s").is_empty());
    let events = server.task_events(&id);
    assert_eq!(names(&events).iter().filter(|name| **name == "step.leased").count(), 3);
    assert_eq!(names(&events).last(), Some(&"run.failed"));
}

#[test]
fn w14_a_lost_lease_counts_as_an_attempt() {
    let server = Server::with_virtual_clock();
    let id = server.submit_with(&json!({ "type": "crash.v1", "max_attempts": 2 }));
    claim(&server, "one", "10s").pop().expect("a task");
    server.advance("11s");
    claim(&server, "two", "10s").pop().expect("the task again, at once");
    server.advance("11s");
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["error"]["code"]), (&json!("failed"), &json!("lease_lost")), "{task:#}");
}

#[test]
fn w14_a_task_can_succeed_after_its_worker_died_once() {
    let server = Server::with_virtual_clock();
    let id = server.submit("crash.v1", json!(1));
    claim(&server, "one", "10s").pop().expect("a task");
    server.advance("11s");
    let second = claim(&server, "two", "10s").pop().expect("the task again");
    second.complete(json!({ "by": "two" })).data(200);
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["attempt"], &task["error"]), (&json!("succeeded"), &json!(2), &Value::Null));
}

#[test]
fn w14_a_task_that_may_be_tried_once_is_not_tried_again_after_a_death() {
    let server = Server::with_virtual_clock();
    let id = server.submit_with(&json!({ "type": "once.v1", "retry": "never" }));
    claim(&server, "one", "10s").pop().expect("a task");
    server.advance("11s");
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["error"]["code"]), (&json!("failed"), &json!("outcome_unknown")), "{task:#}");
}

/// 5c: a worker whose lease has expired overwrites nothing, whatever it reports.
#[test]
fn w14_reports_after_the_lease_expired_are_refused_and_change_nothing() {
    let server = Server::with_virtual_clock();
    let id = server.submit("zombie.v1", json!(1));
    let zombie = claim(&server, "zombie", "10s").pop().expect("a task");
    server.advance("11s");
    let holder = claim(&server, "holder", "10m").pop().expect("the task again");
    let says = |claimed: &Claimed| {
        let all = [
            ("complete", json!({ "result": "zombie" })),
            ("fail", json!({ "error": { "message": "zombie" } })),
            ("fail", json!({ "error": { "message": "zombie" }, "final": true })),
            ("snooze", json!({ "for": "1h" })),
            ("heartbeat", json!({ "progress": "zombie" })),
            ("logs", json!({ "lines": [{ "message": "zombie" }] })),
        ];
        for (what, body) in all {
            assert_eq!(claimed.report(what, body).refusal(409), "stale_claim", "{what}");
        }
        let work = json!({ "worker_id": "zombie", "types": ["none.v1"], "credits": 0, "done":
            [{ "task_id": claimed.id(), "claim_token": claimed.token(), "result": "zombie" }] });
        let acks = server.post("/api/v1/work", &work).data(200)["acks"].clone();
        assert_eq!(acks, json!([{ "task_id": claimed.id(), "status": "stale_claim" }]));
    };
    let before = (server.task(&id), server.task_events(&id));
    says(&zombie);
    assert_eq!((server.task(&id), server.task_events(&id)), before, "while another worker has the lease");
    holder.complete(json!("holder")).data(200);
    let before = (server.task(&id), server.task_events(&id));
    says(&zombie);
    assert_eq!((server.task(&id), server.task_events(&id)), before, "after the task is done");
    assert_eq!(before.0["result"], "holder");
}

#[test]
fn w14_the_same_report_again_is_answered_again_and_another_one_refused() {
    let server = Server::with_virtual_clock();
    let id = server.submit("twice.v1", json!(1));
    let claimed = claim(&server, "w", "30s").pop().expect("a task");
    let first = claimed.complete(json!({ "n": 1 })).data(200);
    assert_eq!(first, json!({ "task_id": id, "status": "recorded" }));
    let events = server.task_events(&id).len();
    assert_eq!(claimed.complete(json!({ "n": 1 })).data(200), first);
    assert_eq!(claimed.complete(json!({ "n": 2 })).refusal(409), "stale_claim");
    assert_eq!(claimed.fail("no").refusal(409), "stale_claim");
    assert_eq!((&server.task(&id)["result"], server.task_events(&id).len()), (&json!({ "n": 1 }), events));
    // The same for a failure and for a snooze.
    for (what, body, other) in [
        ("fail", json!({ "error": { "message": "x" } }), json!({ "error": { "message": "y" } })),
        ("snooze", json!({ "for": "1h" }), json!({ "for": "2h" })),
    ] {
        let id = server.submit("twice.v1", json!(2));
        let claimed = claim(&server, "w", "30s").pop().expect("a task");
        let first = claimed.report(what, body.clone()).data(200);
        let seen = server.task(&id);
        assert_eq!(claimed.report(what, body).data(200), first, "{what}");
        assert_eq!(claimed.report(what, other).refusal(409), "stale_claim", "{what}");
        assert_eq!(server.task(&id), seen, "{what}");
        server.delete(&format!("/api/v1/tasks/{id}"));
    }
}

/// 5c: a cancelled task stays cancelled, whatever its worker reports afterwards.
#[test]
fn w11_cancelled_is_never_overwritten() {
    let server = Server::with_virtual_clock();
    let id = server.submit("late.v1", json!(1));
    let claimed = claim(&server, "w", "30s").pop().expect("a task");
    let cancelled = server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({ "reason": "changed our mind" }));
    assert_eq!(cancelled.data(200)["status"], "cancelled");
    assert_eq!(claimed.report("heartbeat", json!({})).data(200)["cancel"], true);
    assert_eq!(claimed.report("heartbeat", json!({ "progress": 1 })).data(200)["cancel"], true);
    assert_eq!(claimed.complete(json!("too late")).refusal(409), "run_cancelled");
    assert_eq!(claimed.fail("too late").status, 409);
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["result"]), (&json!("cancelled"), &Value::Null), "{task:#}");
    let events = server.task_events(&id);
    assert!(names(&events).contains(&"late_result"), "the late result is in the history: {:?}", names(&events));
    server.advance("1m");
    assert!(claim(&server, "w2", "30s").is_empty());
    let work = json!({ "worker_id": "w", "types": ["none.v1"], "credits": 0, "done":
        [{ "task_id": id, "claim_token": claimed.token(), "result": "again" }] });
    let status = server.post("/api/v1/work", &work).data(200)["acks"][0]["status"].clone();
    assert!(status == "cancelled" || status == "stale_claim", "{status}");
    assert_eq!(server.task(&id)["status"], "cancelled");
}

#[test]
fn w10_progress_survives_to_the_next_attempt() {
    let mut server = Server::with_virtual_clock();
    let id = server.submit("pages.v1", json!(1));
    let first = claim(&server, "one", "30s").pop().expect("a task");
    assert_eq!(first.view["progress"], Value::Null);
    first.report("heartbeat", json!({ "progress": { "page": 1 } })).data(200);
    first.report("heartbeat", json!({ "progress": { "page": 7 } })).data(200);
    assert_eq!(server.task(&id)["progress"], json!({ "page": 7 }));
    server.crash_and_restart();
    server.advance("31s");
    let second = claim(&server, "two", "30s").pop().expect("the task again");
    assert_eq!(second.view["progress"], json!({ "page": 7 }), "after a death");
    second.fail("not yet").data(200);
    server.advance("10m");
    let third = claim(&server, "three", "30s").pop().expect("the task again");
    assert_eq!(third.view["progress"], json!({ "page": 7 }), "after a failure");
    // The largest progress that is allowed, and one byte more.
    let text = "x".repeat(4 * 1024 - 2);
    third.report("heartbeat", json!({ "progress": text })).data(200);
    assert_eq!(third.report("heartbeat", json!({ "progress": format!("{text}x") })).refusal(422), "invalid_body");
    assert_eq!(server.task(&id)["progress"], json!(text));
}

#[test]
fn decision_6_a_snooze_is_not_charged() {
    let server = Server::with_virtual_clock();
    let id = server.submit_with(&json!({ "type": "later.v1", "max_attempts": 1 }));
    for _ in 0..5 {
        let claimed = claim(&server, "w", "30s").pop().expect("a task");
        claimed.report("snooze", json!({ "for": "1h" })).data(200);
        assert_eq!(server.task(&id)["status"], "pending");
        server.advance("59m");
        assert!(claim(&server, "w", "30s").is_empty(), "not before its time");
        server.advance("1m");
    }
    let claimed = claim(&server, "w", "30s").pop().expect("a task");
    claimed.complete(json!("at last")).data(200);
    assert_eq!(server.task(&id)["status"], "succeeded");
    for wrong in [json!("31d"), json!("soon"), json!(-1), Value::Null] {
        let id = server.submit("later.v1", json!(1));
        let claimed = claim(&server, "w", "30s").pop().expect("a task");
        assert_eq!(claimed.report("snooze", json!({ "for": wrong })).refusal(422), "invalid_body");
        assert_eq!(server.task(&id)["status"], "leased");
        claimed.complete(json!(1)).data(200);
    }
}

/// A waiting worker gets the task of an expired lease within one second.
#[test]
fn w14_an_open_claim_gets_the_task_of_an_expired_lease_within_a_second() {
    let server = Server::start();
    let id = server.submit("slow.v1", json!(1));
    let begun = Instant::now();
    claim(&server, "dies", "2s").pop().expect("a task");
    let claim_request = json!({ "worker_id": "waits", "types": ["slow.%"], "wait": "30s" });
    let (answer, _) = server.claim_later(claim_request).join().expect("an answer");
    let took = begun.elapsed();
    let tasks = answer.data(200);
    assert_eq!((&tasks[0]["task_id"], &tasks[0]["attempt"]), (&json!(id), &json!(2)), "{tasks:#}");
    assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&took), "{took:?}");
}

#[test]
fn w14_after_kill_9_an_old_token_still_completes_its_task() {
    let mut server = Server::start();
    let ids = [server.submit("keep.v1", json!(1)), server.submit("keep.v1", json!(2))];
    let held = claim(&server, "w", "60s");
    server.crash_and_restart();
    let held: Vec<Claimed> = held.into_iter().map(|c| Claimed { api: *server, ..c }).collect();
    assert!(claim(&server, "thief", "30s").is_empty(), "a restart ends no lease");
    for (id, claimed) in ids.iter().zip(&held) {
        assert_eq!((server.task(id)["status"].as_str(), claimed.id()), (Some("leased"), id.as_str()));
        assert_eq!(server.task(id)["leased_by"], "w");
        assert_eq!(claimed.report("heartbeat", json!({})).data(200)["cancel"], false);
    }
    held[0].complete(json!("kept")).data(200);
    server.crash_and_restart();
    let again = Claimed { api: *server, ..held[0].clone() };
    assert_eq!(again.complete(json!("kept")).status, 200, "a repeated report is accepted after a restart, too");
    assert_eq!(again.complete(json!("other")).refusal(409), "stale_claim");
    let other = Claimed { api: *server, ..held[1].clone() };
    let work = json!({ "worker_id": "w", "types": ["keep.v1"], "credits": 1, "wait": "0s", "done":
        [{ "task_id": other.id(), "claim_token": other.token(), "result": "kept" }] });
    assert_eq!(server.post("/api/v1/work", &work).data(200)["acks"][0]["status"], "recorded");
    for id in &ids {
        assert_eq!((&server.task(id)["result"], &server.task(id)["attempt"]), (&json!("kept"), &json!(1)));
    }
}

/// The lease of a worker that died with the server expires like any other.
#[test]
fn w14_after_a_restart_a_lease_starts_again_and_expires() {
    let mut server = Server::with_virtual_clock();
    let id = server.submit("gone.v1", json!(1));
    claim(&server, "w", "30s").pop().expect("a task");
    server.advance("20s");
    server.crash_and_restart();
    server.advance("20s");
    assert_eq!(server.task(&id)["status"], "leased", "the lease started again");
    server.advance("11s");
    assert_eq!(claim(&server, "w2", "30s").pop().expect("the task again").attempt(), 2);
}

#[test]
fn logs_of_a_worker_are_kept_among_the_events() {
    let server = Server::with_virtual_clock();
    let id = server.submit("talk.v1", json!(1));
    let claimed = claim(&server, "w", "30s").pop().expect("a task");
    let lines = json!([{ "message": "hello" }, { "level": "warning", "message": "careful" }]);
    claimed.report("logs", json!({ "lines": lines })).data(200);
    let events = server.task_events(&id);
    let logged = events.iter().find(|event| event["type"] == "step.log").expect("it is kept");
    assert!(logged.to_string().contains("careful"), "{logged:#}");
    let many: Vec<Value> = (0..101).map(|_| json!({ "message": "x" })).collect();
    for wrong in [
        json!([]),
        json!(many),
        json!([{ "message": "x".repeat(4_097) }]),
        json!([{ "level": "loud", "message": "x" }]),
        json!([{ "message": 1 }]),
        json!([{ "message": "x", "color": "red" }]),
    ] {
        assert_eq!(claimed.report("logs", json!({ "lines": wrong })).refusal(422), "invalid_body", "{wrong}");
    }
    assert_eq!(server.task_events(&id).len(), events.len());
}

/// Limit slots are derived from the leases, so neither a dead worker nor a restart leaks one.
#[test]
fn limit_slots_are_free_again_after_deaths_and_restarts() {
    let mut server = Server::with_virtual_clock();
    server.put("/api/v1/types/slot.v1", &json!({ "concurrency": { "limit": 2 } })).data(200);
    for n in 0..6 {
        server.submit_with(&json!({ "type": "slot.v1", "payload": n, "max_attempts": 50 }));
    }
    for round in 0..4 {
        let claimed = claim(&server, "w", "10s");
        assert_eq!(claimed.len(), 2, "round {round}");
        assert!(claim(&server, "other", "10s").is_empty(), "no more than two at once");
        if round % 2 == 0 {
            server.crash_and_restart();
            assert!(claim(&server, "other", "10s").is_empty(), "no more than two after a restart");
        }
        server.advance("11s");
    }
    let claimed = claim(&server, "w", "10s");
    claimed[0].complete(json!(1)).data(200);
    assert_eq!(claim(&server, "w", "10s").len(), 1);
    eventually("the type counts two leases", || {
        let seen = server.get("/api/v1/types/slot.v1").data(200);
        (seen["leased"] == 2).then_some(())
    });
}

#[test]
fn w17_heartbeats_are_recorded_at_most_once_a_minute() {
    // Only the node that gets the heartbeats counts the time.
    let server = Server::alone(&["--clock", "virtual"]);
    let task = server.submit("long.v1", json!(1));
    let claim = json!({ "worker_id": "w", "types": ["long.v1"], "lease": "10m", "wait": "0s" });
    let claimed = server.post("/api/v1/tasks/claim", &claim).data(200)[0].clone();
    let beat = || {
        let body = json!({ "claim_token": claimed["claim_token"] });
        server.post(&format!("/api/v1/tasks/{task}/heartbeat"), &body).data(200)
    };
    let recorded = || server.task_events(&task).iter().filter(|event| event["type"] == "step.heartbeat").count();
    beat();
    assert_eq!(recorded(), 0, "a task that is done within a minute costs no write for its heartbeats");
    for minutes in 1..=3 {
        server.advance("61s");
        (0..3).for_each(|_| drop(beat()));
        eventually("the heartbeat is recorded", || (recorded() >= minutes).then_some(()));
        assert_eq!(recorded(), minutes);
    }
    let done = json!({ "claim_token": claimed["claim_token"], "result": 1 });
    server.post(&format!("/api/v1/tasks/{task}/complete"), &done).data(200);
    assert_eq!(server.task(&task)["status"], "succeeded");
}
