//! Sleeping and waiting (R30–R34), and callbacks (decision 7, P13).

use crate::harness::{Answer, Server, Upstream, eventually, json, micros};
use serde_json::{Value, json};

/// The second example of the document.
const TRIAL: &str = r#"
start-trial: { url: $UP/activate, body: { user_id: "{{trigger.body.user_id}}" } }
wait-13-days: { needs: [start-trial], sleep: 13d }
send-reminder: { needs: [wait-13-days], url: $UP/remind }
wait-1-day: { needs: [send-reminder], sleep: 1d }
expire-trial: { needs: [wait-1-day], url: $UP/expire, body: { user_id: "{{trigger.body.user_id}}" } }"#;

#[test]
fn r31_the_trial_example_sleeps_as_long_as_it_says_and_no_less() {
    let upstream = Upstream::start();
    let server = Server::with_virtual_clock();
    let workflow = server.workflow(&upstream.fill(TRIAL));
    let run = server.trigger(&workflow, &json!({ "user_id": 9 }));
    let view = server.when(&run, "wait-13-days", "sleeping");
    assert_eq!(view["status"], "waiting");
    assert_eq!(view["waiting_for"][0]["kind"], "sleep");
    let nap = &view["tasks"]["wait-13-days"];
    assert_eq!(micros(&nap["wake_at"]) - micros(&nap["started_at"]), 13 * 86_400 * 1_000_000);
    server.advance("12d");
    server.advance("23h");
    assert_eq!(upstream.effects_on("/remind").len(), 0, "I19: not early");
    assert!(server.advance("1h") >= 1);
    assert_eq!(upstream.effects_on("/remind").len(), 1, "the step is done when the clock request is answered");
    server.advance("23h");
    assert_eq!(upstream.effects_on("/expire").len(), 0);
    server.advance("2h");
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed");
    assert_eq!(upstream.effects_on("/expire")[0].json(), json!({ "user_id": 9 }));
    for (step, days) in [("wait-13-days", 13), ("wait-1-day", 1)] {
        let step = &view["tasks"][step];
        let slept = micros(&step["finished_at"]) - micros(&step["started_at"]);
        let day = 86_400_000_000;
        assert!((days * day..days * day + 5_000_000).contains(&slept), "R31: not early, at most 5 s late: {slept} µs");
    }
}

#[test]
fn r31_one_advance_fires_every_due_timer_in_order() {
    let server = Server::with_virtual_clock();
    let steps = "a: { sleep: 1d }\nb: { sleep: 1d, needs: [a] }\nc: { sleep: 1d, needs: [b] }";
    let workflow = server.workflow(steps);
    let runs: Vec<String> = (0..10).map(|_| server.trigger(&workflow, &json!(null))).collect();
    let before = micros(&server.get("/api/v1/dev/clock").data(200)["now"]);
    assert!(server.advance("10d") >= 30);
    let after = micros(&server.get("/api/v1/dev/clock").data(200)["now"]);
    assert!(after - before >= 10 * 86_400_000_000);
    for run in runs {
        let view = server.run(&run);
        assert_eq!(view["status"], "completed");
        let took = micros(&view["finished_at"]) - micros(&view["started_at"]);
        assert!(took < 3 * 86_400_000_000 + 60_000_000, "each timer fired at its own time: {took} µs");
    }
}

#[test]
fn r31_a_short_sleep_wakes_on_the_real_clock() {
    let server = Server::start();
    let view = server.play("a: { sleep: 300ms }\nb: { noop: {}, needs: [a] }\nc: { sleep: 0 }", &json!(null));
    assert_eq!(view["status"], "completed");
    let slept = micros(&view["tasks"]["a"]["finished_at"]) - micros(&view["tasks"]["a"]["started_at"]);
    assert!((300_000..5_300_000).contains(&slept), "{slept} µs");
}

/// A run that waits for a callback and then sends its body to `/got`.
struct WaitingRun {
    server: Server,
    upstream: Upstream,
    run: String,
    url: String,
}

impl WaitingRun {
    /// The step `before` runs before the wait; the callback's URL is known even while it runs.
    fn new(server: Server, before: &str, timeout: &str) -> WaitingRun {
        let upstream = Upstream::start();
        let steps = format!(
            r#"
ask: {{ url: $UP/ask, body: {{ url: "{{{{wait.door.url}}}}" }} }}
before: {{ {before}, needs: [ask] }}
door: {{ wait_for_webhook: {{ {timeout} }}, needs: [before] }}
got: {{ url: $UP/got, needs: [door], body: {{ got: "{{{{tasks.door.body}}}}" }} }}
late: {{ url: $UP/late, needs: [door], if: "tasks.door.status == 'timeout'" }}"#
        );
        let workflow = server.workflow(&upstream.fill(&steps));
        let run = server.trigger(&workflow, &json!(null));
        let requests = upstream.wait_for("/ask", 1);
        let url = requests[0].json()["url"].as_str().expect("R32: known to earlier steps").to_owned();
        WaitingRun { server, upstream, run, url }
    }

    /// A run that waits already.
    fn open(server: Server, timeout: &str) -> WaitingRun {
        let callback = WaitingRun::new(server, "noop: {}", timeout);
        callback.server.when(&callback.run, "door", "waiting");
        callback
    }

    #[track_caller]
    fn call(&self, body: &[u8]) -> Answer {
        self.server.call_back(&self.url, body)
    }

    #[track_caller]
    fn accept(&self, body: &[u8]) {
        assert_eq!(self.call(body).data(200), json!({ "received": true }));
    }
}

#[test]
fn r32_r33_a_callback_is_received_once() {
    let callback = WaitingRun::open(Server::start(), "timeout: 1h");
    let view = callback.server.run(&callback.run);
    assert_eq!((view["status"].as_str(), view["waiting_for"][0]["kind"].as_str()), (Some("waiting"), Some("webhook")));
    let step = &view["tasks"]["door"];
    assert_eq!(micros(&step["deadline"]) - micros(&step["started_at"]), 3_600_000_000);
    assert_eq!(
        callback.server.get(&callback.url[callback.url.find("/wh/").unwrap()..]).refusal(405),
        "method_not_allowed"
    );
    callback.accept(br#"{"status": "paid", "n": 1}"#);
    let view = callback.server.finished(&callback.run);
    assert_eq!(
        (view["status"].as_str(), view["tasks"]["door"]["status"].as_str()),
        (Some("completed"), Some("received"))
    );
    assert_eq!(view["tasks"]["door"]["body"], json!({ "status": "paid", "n": 1 }));
    assert_eq!(view["tasks"]["late"]["status"], "skipped");
    assert_eq!(callback.upstream.effects_on("/got")[0].json(), json!({ "got": { "status": "paid", "n": 1 } }));
    // The run has ended: a repeat of the same bytes is accepted, others are too late.
    callback.accept(br#"{"status": "paid", "n": 1}"#);
    assert_eq!(callback.call(br#"{"status":"paid","n":1}"#).refusal(410), "callback_gone", "other bytes");
    assert_eq!(callback.server.run(&callback.run), view);
}

#[test]
fn decision_7_while_the_run_is_open_a_repeat_is_accepted_and_other_bytes_conflict() {
    let upstream = Upstream::start();
    let server = Server::start();
    let steps = "ask: { url: $UP/ask, body: { url: \"{{wait.door.url}}\" } }\ndoor: { wait_for_webhook: {}, needs: [ask] }\nnap: { sleep: 1d, needs: [door] }";
    let run = server.trigger(&server.workflow(&upstream.fill(steps)), &json!(null));
    let url = upstream.wait_for("/ask", 1)[0].json()["url"].as_str().unwrap().to_owned();
    server.when(&run, "door", "waiting");
    assert_eq!(server.call_back(&url, b"one").status, 200);
    for _ in 0..3 {
        assert_eq!(server.call_back(&url, b"one").data(200), json!({ "received": true }));
        assert_eq!(server.call_back(&url, b"two").refusal(409), "callback_conflict");
    }
    assert_eq!(server.run(&run)["tasks"]["door"]["body"], "one", "what is not JSON is kept as text");
    server.cancel(&run).data(200);
    assert_eq!(server.call_back(&url, b"one").status, 200, "the identical repeat");
    assert_eq!(server.call_back(&url, b"two").refusal(410), "callback_gone");
}

#[test]
fn p13_a_callback_before_its_wait_is_kept() {
    let mut callback = WaitingRun::new(Server::with_virtual_clock(), "sleep: 1d", "timeout: 1h");
    callback.server.when(&callback.run, "before", "sleeping");
    callback.accept(br#""early""#);
    callback.accept(br#""early""#);
    assert_eq!(callback.call(br#""other""#).refusal(409), "callback_conflict");
    callback.server.crash_and_restart();
    callback.accept(br#""early""#);
    callback.server.advance("1d");
    let view = callback.server.finished(&callback.run);
    assert_eq!((view["status"].as_str(), &view["tasks"]["door"]["body"]), (Some("completed"), &json!("early")));
    assert_eq!(callback.upstream.effects_on("/got")[0].json(), json!({ "got": "early" }));
}

#[test]
fn r34_a_wait_without_a_callback_times_out() {
    let callback = WaitingRun::open(Server::with_virtual_clock(), "timeout: 1h");
    callback.server.advance("59m");
    assert_eq!(callback.server.run(&callback.run)["tasks"]["door"]["status"], "waiting", "not early");
    callback.server.advance("1m");
    let view = callback.server.finished(&callback.run);
    assert_eq!(view["tasks"]["door"]["status"], "timeout");
    assert_eq!(
        (view["tasks"]["got"]["status"].as_str(), view["tasks"]["late"]["status"].as_str()),
        (Some("skipped"), Some("success"))
    );
    assert_eq!(view["status"], "completed", "the timeout was handled");
    assert_eq!(callback.upstream.effects_on("/late").len(), 1);
    assert_eq!(callback.call(b"1").refusal(410), "callback_gone");
}

#[test]
fn decision_7_a_callback_to_a_closed_wait_gets_410() {
    // The run was cancelled.
    let callback = WaitingRun::open(Server::start(), "");
    callback.server.cancel(&callback.run).data(200);
    assert_eq!(callback.call(b"1").refusal(410), "callback_gone");
    assert_eq!(callback.upstream.effects_on("/got").len(), 0);
    // The step was skipped, and the run is still open.
    let (server, upstream) = (Server::start(), Upstream::start());
    let steps = "ask: { url: $UP/ask, body: { url: \"{{wait.door.url}}\" } }\ndoor: { wait_for_webhook: {}, needs: [ask], if: 'false' }\nnap: { sleep: 1d }";
    let run = server.trigger(&server.workflow(&upstream.fill(steps)), &json!(null));
    let url = upstream.wait_for("/ask", 1)[0].json()["url"].as_str().unwrap().to_owned();
    server.when(&run, "door", "skipped");
    assert_eq!(server.call_back(&url, b"1").refusal(410), "callback_gone");
    // The token never existed.
    assert_eq!(server.call_back("/wh/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", b"1").refusal(404), "not_found");
}

#[test]
fn p23_a_callback_may_have_256_kib() {
    let callback = WaitingRun::open(Server::start(), "");
    let body = |n: usize| [&b"\""[..], &vec![b'x'; n - 2], b"\""].concat();
    assert_eq!(callback.call(&body(256 * 1024 + 1)).refusal(413), "too_large");
    assert_eq!(callback.server.run(&callback.run)["tasks"]["door"]["status"], "waiting", "nothing was received");
    callback.accept(&body(256 * 1024));
    let stored = eventually("the callback is stored", || {
        let view = callback.server.run(&callback.run);
        (view["tasks"]["door"]["status"] == "received").then(|| view["tasks"]["door"]["body"].clone())
    });
    assert_eq!(stored.as_str().unwrap().len(), 256 * 1024 - 2);
}

#[test]
fn decision_7_a_callback_body_is_kept_as_json_or_as_text() {
    let cases: [(&[u8], Value); 6] = [
        (br#"{"a": [1, null]}"#, json!({ "a": [1, null] })),
        (b"a=1&b=2", json!("a=1&b=2")),
        (b"{not json", json!("{not json")),
        (b"12", json!(12)),
        (b"", json!("")),
        (b"bad \xff utf-8", json!("bad \u{fffd} utf-8")),
    ];
    let mut callback = WaitingRun::open(Server::start(), "");
    for (body, expected) in cases {
        callback.accept(body);
        let view = callback.server.finished(&callback.run);
        assert_eq!(view["tasks"]["door"]["body"], expected, "{}", String::from_utf8_lossy(body));
        assert_eq!(view["tasks"]["door"]["status"], "received");
        callback = WaitingRun::open(callback.server, "");
    }
}

#[test]
fn i26_of_fifty_different_callbacks_at_once_one_is_accepted() {
    let callback = WaitingRun::open(Server::start(), "");
    let (api, url) = (*callback.server, callback.url.as_str());
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let call = |i: u32| scope.spawn(move || api.call_back(url, format!(r#"{{"n": {i}}}"#).as_bytes()).status);
        let callers: Vec<_> = (0..50).map(call).collect();
        callers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|s| **s == 200).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|s| matches!(s, 200 | 409 | 410)), "{statuses:?}");
    let winner = statuses.iter().position(|s| *s == 200).unwrap();
    let view = callback.server.finished(&callback.run);
    assert_eq!(view["tasks"]["door"]["body"], json!({ "n": winner }));
    assert_eq!(callback.upstream.effects_on("/got")[0].json(), json!({ "got": { "n": winner } }));
}

#[test]
fn i26_fifty_identical_callbacks_at_once_are_all_accepted() {
    let callback = WaitingRun::open(Server::start(), "");
    let (api, url) = (*callback.server, callback.url.as_str());
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(move || assert_eq!(api.call_back(url, br#"{"n": 1}"#).status, 200));
        }
    });
    let view = callback.server.finished(&callback.run);
    assert_eq!(view["status"], "completed");
    let received = callback.server.events(&callback.run).iter().filter(|e| e["type"] == "step.received").count();
    assert_eq!((received, callback.upstream.effects_on("/got").len()), (1, 1));
}

#[test]
fn t14_a_token_is_only_in_its_url() {
    let mut callback = WaitingRun::open(Server::with(&["--public-url", "https://hooks.example.com/base/"]), "");
    let token = callback.url.rsplit('/').next().unwrap().to_owned();
    assert_eq!(callback.url, format!("https://hooks.example.com/base/wh/{token}"));
    assert_eq!(token.len(), 43, "256 bits");
    callback.call(b"first");
    callback.call(b"second");
    callback.server.call_back(&format!("/wh/{token}x"), b"third");
    let view = callback.server.finished(&callback.run);
    let answer = callback.server.call_back(&callback.url, b"again");
    assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    for (place, text) in [
        ("the run", view.to_string()),
        ("its events", Value::from(callback.server.events(&callback.run)).to_string()),
        ("the metrics", callback.server.get("/metrics").text()),
        ("the refusal", answer.text()),
    ] {
        assert!(!text.contains(&token), "the token is in {place}: {text}");
    }
    callback.server.terminate();
    assert!(!callback.server.log().contains(&token), "the token is in the log: {}", callback.server.log());
    assert!(!crate::harness::holds(callback.server.data(), token.as_bytes()), "rows keep only its hash");
}

#[test]
fn r32_a_wait_survives_a_crash_and_its_token_too() {
    let mut callback = WaitingRun::open(Server::start(), "timeout: 1h");
    callback.server.crash_and_restart();
    assert_eq!(callback.server.run(&callback.run)["tasks"]["door"]["status"], "waiting");
    callback.accept(b"7");
    callback.server.crash_and_restart();
    let view = callback.server.finished(&callback.run);
    assert_eq!((view["status"].as_str(), &view["tasks"]["door"]["body"]), (Some("completed"), &json!(7)), "P1");
    callback.accept(b"7");
}

#[test]
fn r30_a_run_that_takes_too_long_ends_as_timeout() {
    let upstream = Upstream::start();
    let mut server = Server::with_virtual_clock();
    upstream.on("/ask", [json(200, json!({}))]);
    let yaml = "name: short\nmax_duration: 1h\ntasks:\n  ask: { url: $UP/ask, body: { url: \"{{wait.door.url}}\" } }\n  door: { wait_for_webhook: {}, needs: [ask] }\n  nap: { sleep: 2d }\n  b: { url: $UP/b, needs: [nap] }";
    server.define(&upstream.fill(yaml));
    for crash in [false, true] {
        let run = server.trigger("short", &json!(null));
        let view = server.when(&run, "door", "waiting");
        assert_eq!(micros(&view["expires_at"]) - micros(&view["started_at"]), 3_600_000_000);
        let url = upstream.effects_on("/ask").pop().unwrap().json()["url"].as_str().unwrap().to_owned();
        if crash {
            server.crash_and_restart();
        }
        server.advance("59m");
        assert_eq!(server.run(&run)["status"], "waiting", "not early");
        server.advance("2m");
        let view = server.finished(&run);
        assert_eq!(view["status"], "timeout");
        assert_eq!(server.call_back(&url, b"1").refusal(410), "callback_gone");
        assert_eq!(server.cancel(&run).refusal(409), "run_ended");
        server.advance("3d");
        assert_eq!(server.run(&run), view, "a terminal state never changes");
        assert_eq!(server.events(&run).last().unwrap()["type"], "run.timeout");
    }
    assert_eq!(upstream.effects_on("/b").len(), 0, "I21");
}

#[test]
fn r30_a_running_request_ends_with_its_run() {
    let upstream = Upstream::start();
    let server = Server::start();
    upstream.on("/hang", [crate::harness::Act::Hang]);
    server.define(&upstream.fill("name: short\nmax_duration: 300ms\ntasks: { a: { url: $UP/hang } }"));
    let run = server.trigger("short", &json!(null));
    let view = server.finished(&run);
    assert_eq!((view["status"].as_str(), view["tasks"]["a"]["status"].as_str()), (Some("timeout"), Some("cancelled")));
    upstream.wait_for_hangup();
}
