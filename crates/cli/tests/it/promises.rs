//! Promises about graphs that have no file of their own: R25, R26, R27, R35, and callbacks that arrive just when their
//! wait times out.

use crate::harness::{Act, Server, Upstream, eventually, json as answer, status};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

#[test]
fn r25_runs_of_one_workflow_do_not_interfere() {
    let upstream = Upstream::start();
    let server = Server::start();
    let steps = "a: { url: $UP/a, body: { n: '{{trigger.body.n}}' } }\nb: { set: { n: '{{trigger.body.n}}' } }\n\
                 c: { url: '$UP/c/{{trigger.body.n}}', needs: [a, b], body: '{{tasks.b.body}}' }";
    let workflow = server.workflow(&upstream.fill(steps));
    let runs: Vec<(u32, String)> = std::thread::scope(|scope| {
        let start = |n: u32| {
            let (api, workflow) = (*server, &workflow);
            scope.spawn(move || (n, api.trigger(workflow, &json!({ "n": n }))))
        };
        let started: Vec<_> = (0..40).map(start).collect();
        started.into_iter().map(|run| run.join().expect("a start")).collect()
    });
    for (n, run) in &runs {
        let view = server.finished(run);
        assert_eq!((&view["status"], &view["tasks"]["b"]["body"]), (&json!("completed"), &json!({ "n": n })));
        let sent = upstream.effects_on(&format!("/c/{n}"));
        assert_eq!(sent.len(), 1, "each once");
        assert_eq!((sent[0].json(), sent[0].header("x-onward-run")), (json!({ "n": n }), run.as_str()));
    }
}

#[test]
fn r26_r27_every_status_of_a_step_and_of_a_run_is_reached() {
    let upstream = Upstream::start();
    upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    upstream.on("/bad", [status(400)]);
    upstream.on("/down", [status(503)]);
    upstream.on("/hang", [Act::Hang]);
    let server = Server::start();
    let open = upstream.fill(
        "running: { url: $UP/held }\nsleeping: { sleep: 1h }\nwaiting: { wait_for_webhook: {} }\npending: { noop: {}, needs: [running] }\n\
         retrying: { url: $UP/down, retry: { max_attempts: 2, backoff: { type: fixed, min: 1h } } }\n\
         success: { noop: {} }\nfailed: { url: $UP/bad }\nskipped: { noop: {}, needs: [failed] }\n\
         template_error: { url: $UP/x, body: '{{trigger.body.no}}' }\n\
         timeout: { url: $UP/hang, timeout: 50ms, retry: never }\n\
         tell: { url: $UP/tell, body: { url: '{{wait.received.url}}' } }\nreceived: { wait_for_webhook: {} }",
    );
    let run = server.trigger(&server.workflow(&open), &json!({}));
    let url = upstream.wait_for("/tell", 1)[0].json()["url"].as_str().expect("a URL").to_owned();
    assert_eq!(server.call_back(&url, b"7").status, 200);
    for step in
        ["running", "sleeping", "waiting", "pending", "retrying", "success", "failed", "skipped", "template_error"]
    {
        server.when(&run, step, step);
    }
    server.when(&run, "timeout", "timeout");
    let view = server.when(&run, "received", "received");
    assert_eq!(view["status"], "running");
    server.cancel(&run).data(200);
    assert_eq!(server.run(&run)["tasks"]["running"]["status"], "cancelled");
    upstream.release("/held");

    let mut reached = BTreeSet::from([view["status"].clone().to_string(), server.run(&run)["status"].to_string()]);
    let quick = "name: quick\nmax_duration: 200ms\ntasks:\n  z: { sleep: 1h }\n";
    server.define(quick);
    let waiting = server.trigger("quick", &json!({}));
    reached.insert(
        eventually("it waits", || Some(server.run(&waiting)["status"].clone()).filter(|s| s == "waiting")).to_string(),
    );
    reached.insert(server.finished(&waiting)["status"].to_string());
    reached.insert(server.play("a: { noop: {} }", &json!({}))["status"].to_string());
    reached.insert(server.play(&upstream.fill("a: { url: $UP/bad }"), &json!({}))["status"].to_string());
    let words = ["cancelled", "completed", "failed", "running", "timeout", "waiting"];
    assert_eq!(reached, words.iter().map(|word| format!("\"{word}\"")).collect());
}

#[test]
fn r35_open_runs_continue_within_five_seconds_after_a_crash() {
    let upstream = Upstream::start();
    upstream.on("/orphan", [Act::Hang, answer(200, json!({}))]);
    let mut server = Server::with_virtual_clock();
    let yaml = |name: &str, limit: &str, step: &str| {
        format!(
            "name: {name}\nmax_duration: {limit}\ntasks:\n  a: {step}\n  b: {{ noop: {{}}, needs: [a], if: \"true\" }}\n"
        )
    };
    for (name, limit, step) in [
        ("orphan", "30d", "{ url: $UP/orphan, timeout: 1h }"),
        ("sleeper", "30d", "{ sleep: 1h }"),
        ("waiter", "30d", "{ wait_for_webhook: { timeout: 1h } }"),
        ("expired", "1h", "{ sleep: 1d }"),
    ] {
        server.define(&upstream.fill(&yaml(name, limit, step)));
    }
    let runs: Vec<String> =
        ["orphan", "sleeper", "waiter", "expired"].iter().map(|name| server.trigger(name, &json!({}))).collect();
    upstream.wait_for("/orphan", 1);
    server.when(&runs[2], "a", "waiting");
    server.kill();
    let began = Instant::now();
    assert!(server.start_with(&[("ONWARD_CLOCK_ADVANCE".into(), "2h".into())]));
    let ends: Vec<Value> = runs.iter().map(|run| server.finished(run)).collect();
    // This includes the start of the process; no run waits for a slow periodic scan.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let words: Vec<(&str, &str)> = ends
        .iter()
        .map(|view| {
            (view["status"].as_str().unwrap_or_default(), view["tasks"]["a"]["status"].as_str().unwrap_or_default())
        })
        .collect();
    assert_eq!(
        words,
        [("completed", "success"), ("completed", "success"), ("completed", "timeout"), ("timeout", "cancelled")]
    );
    assert_eq!(upstream.effects_on("/orphan").len(), 2, "the interrupted request was sent again, once");
}

#[test]
fn i26_a_callback_at_the_time_of_its_timeout_gets_the_answer_that_matches_the_outcome() {
    let upstream = Upstream::start();
    let server = Server::start();
    let steps = "tell: { url: $UP/tell, body: { url: '{{wait.door.url}}', run: '{{trigger.body.n}}' } }\n\
                 door: { wait_for_webhook: { timeout: 3s }, needs: [tell] }";
    let workflow = server.workflow(&upstream.fill(steps));
    let outcomes: Vec<(u16, String)> = std::thread::scope(|scope| {
        let aim = |n: u64| {
            let (server, upstream, workflow) = (*server, &upstream, &workflow);
            scope.spawn(move || {
                let run = server.trigger(workflow, &json!({ "n": n }));
                let view = server.when(&run, "door", "waiting");
                let announced = upstream.effects_on("/tell");
                let mine = announced.iter().find(|effect| effect.json()["run"] == n).expect("the URL");
                let url = mine.json()["url"].as_str().expect("a URL").to_owned();
                let deadline = crate::harness::micros(&view["tasks"]["door"]["deadline"]);
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
                // From a little before the deadline to a little after it.
                let left = deadline - now.as_micros() as i64 - 12_000 + (n as i64 % 24) * 1_000;
                std::thread::sleep(Duration::from_micros(left.max(0) as u64));
                let answer = server.call_back(&url, b"{}").status;
                let end = server.finished(&run);
                (answer, end["tasks"]["door"]["status"].as_str().expect("a status").to_owned())
            })
        };
        let aimed: Vec<_> = (0..48).map(aim).collect();
        aimed.into_iter().map(|one| one.join().expect("an outcome")).collect()
    });
    for (answer, outcome) in &outcomes {
        assert!(matches!((*answer, outcome.as_str()), (200, "received") | (410, "timeout")), "{answer}, but {outcome}");
    }
}
