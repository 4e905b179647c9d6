//! HTTP steps: what they send, redirects, how many requests run at once, and hosts that are down.

use crate::harness::{Act, Server, Upstream, json, micros, onward, reply, status};
use serde_json::{Value, json};
use std::time::Duration;

/// Redirects `path` to `to`.
fn redirect(upstream: &Upstream, path: &str, status: u16, to: &str) {
    upstream.on(path, [reply(status, &[("Location", to)], "moved")]);
}

/// How many requests a path got.
fn count(upstream: &Upstream, path: &str) -> usize {
    upstream.effects_on(path).len()
}

fn error(view: &Value, step: &str) -> String {
    view["tasks"][step]["error"]["code"].as_str().unwrap_or_default().to_owned()
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(&format!("onward_{name} ")));
    let line = line.unwrap_or_else(|| panic!("no metric {name}: {text}"));
    line.split(' ').nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn r39_a_query_and_a_form_are_encoded_and_added() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let steps = "\
search: { url: '$UP/search?page=1#top', method: GET, query: { q: '{{trigger.body.q}}', tag: [a, '{{trigger.body.n}}'], ids: '{{trigger.body.ids}}', none: '{{trigger.body.none}}', exact: true } }
submit: { url: $UP/submit, needs: [search], query: { dry: false }, form: { q: '{{trigger.body.q}}', 'a&b': 'x {{trigger.body.n}}', ids: '{{trigger.body.ids}}' } }
own: { url: $UP/own, form: { a: 1 }, headers: { Content-Type: application/x-custom } }";
    let body = json!({ "q": "a b&c=d/é+", "n": 7, "ids": [1, "x"], "none": null, "o": { "k": 1 } });
    let view = server.play(&upstream.fill(steps), &body);
    assert_eq!(view["status"], "completed", "{view:#}");
    let search = &upstream.effects_on("/search")[0];
    assert_eq!(search.path, "/search?page=1&q=a%20b%26c%3Dd%2F%C3%A9%2B&tag=a&tag=7&ids=1&ids=x&exact=true");
    let submit = &upstream.effects_on("/submit")[0];
    assert_eq!(submit.path, "/submit?dry=false");
    assert_eq!(submit.header("content-type"), "application/x-www-form-urlencoded");
    assert_eq!(String::from_utf8_lossy(&submit.body), "q=a+b%26c%3Dd%2F%C3%A9%2B&a%26b=x+7&ids=1&ids=x");
    assert_eq!(upstream.effects_on("/own")[0].header("content-type"), "application/x-custom");

    // R40: a query cannot contain an object; nothing is sent.
    let view = server.play(&upstream.fill("a: { url: $UP/never, query: { o: '{{trigger.body.o}}' } }"), &body);
    assert_eq!(view["tasks"]["a"]["status"], "template_error", "{view:#}");
    assert_eq!(count(&upstream, "/never"), 0);
}

#[test]
fn r38_response_headers_are_read_in_any_case() {
    let (server, upstream) = (Server::start(), Upstream::start());
    upstream.on("/a", [reply(200, &[("X-Order-ID", "o 7")], "")]);
    let steps = "\
a: { url: $UP/a }
b: { url: '$UP/b/{{tasks.a.headers.x-order-id}}', needs: [a], if: \"tasks.a.headers.X-ORDER-id == 'o 7'\", headers: { X-Seen: '{{tasks.a.headers.X-Order-Id}}' } }";
    let view = server.play(&upstream.fill(steps), &json!(null));
    assert_eq!(view["tasks"]["b"]["status"], "success", "{view:#}");
    assert_eq!(upstream.effects_on("/b/o%207")[0].header("x-seen"), "o 7");
}

#[test]
fn the_authors_idempotency_key_wins_and_the_engines_own_headers_are_refused() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let steps = "a: { url: $UP/a, headers: { idempotency-key: 'order-{{trigger.body.id}}' } }\nb: { url: $UP/b }";
    let view = server.play(&upstream.fill(steps), &json!({ "id": 7 }));
    let keys: Vec<(String, String)> =
        upstream.effects_on("/a")[0].headers.iter().filter(|(name, _)| name == "idempotency-key").cloned().collect();
    assert_eq!(keys, [("idempotency-key".to_owned(), "order-7".to_owned())]);
    let run = view["id"].as_str().expect("an id");
    assert_eq!(upstream.effects_on("/b")[0].header("idempotency-key"), format!("{run}:b"));
    assert_eq!(upstream.effects_on("/b")[0].header("x-onward-signature"), "", "no secret, no signature");
    let refused = server.post(
        "/api/v1/workflows",
        &json!({ "name": "x", "tasks": { "a": { "url": "http://h", "headers": { "X-Onward-Signature": "x" } } } }),
    );
    assert_eq!(refused.refusal(422), "reserved_header");
}

#[test]
fn signed_requests_carry_the_hmac_of_their_body() {
    let (upstream, other) = (Upstream::start(), Upstream::start());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("signing");
    std::fs::write(&file, "key\n").expect("a file");
    let server = Server::with(&["--signing-secret-file", file.to_str().expect("a path")]);
    redirect(&upstream, "/see", 303, "/seen");
    redirect(&upstream, "/away", 307, &other.fill("$UP/got"));
    let steps = "\
text: { url: $UP/text, body: test }
empty: { url: $UP/empty, method: GET }
see: { url: $UP/see, body: test, redirects: 1 }
away: { url: $UP/away, body: test, redirects: 1 }";
    let view = server.play(&upstream.fill(steps), &json!(null));
    assert_eq!(view["status"], "completed", "{view:#}");
    let signature = |path: &str| upstream.effects_on(path)[0].header("x-onward-signature").to_owned();
    let vector = "sha256=02afb56304902c656fcb737cdd03de6205bb6d401da2812efd9b2d36a08af159";
    let nothing = "sha256=5d5d139563c95b5967b9bd9a8c9b233a9dedb45072794cd232dc1b74832607d0";
    assert_eq!(signature("/text"), vector);
    assert_eq!(signature("/empty"), nothing);
    assert_eq!((signature("/see"), signature("/seen")), (vector.to_owned(), nothing.to_owned()));
    let got = &other.effects_on("/got")[0];
    assert_eq!((got.header("x-onward-signature"), &got.body[..]), ("", &b"test"[..]), "not for another origin");

    for (content, code) in [(Some("\n"), 2), (Some(""), 2), (None, 74)] {
        let _ = std::fs::remove_file(&file);
        if let Some(content) = content {
            std::fs::write(&file, content).expect("a file");
        }
        let data = folder.path().join("data");
        let paths = [data.to_str().expect("a path"), file.to_str().expect("a path")];
        let output = onward(&["dev", "--listen", "127.0.0.1:0", "--data", paths[0], "--signing-secret-file", paths[1]]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(paths[1]), "{stderr}");
    }
}

#[test]
fn t3_redirects_are_followed_as_far_as_the_step_says() {
    let (server, upstream) = (Server::start(), Upstream::start());
    redirect(&upstream, "/one", 302, "two?x=1");
    redirect(&upstream, "/two", 308, "/three");
    redirect(&upstream, "/loop", 307, "/loop");
    redirect(&upstream, "/see", 303, "/seen");
    redirect(&upstream, "/keep", 307, "/kept");
    redirect(&upstream, "/ftp", 302, "ftp://127.0.0.1/");
    redirect(&upstream, "/hung", 302, "/hang");
    upstream.on("/hang", [Act::Hang]);
    upstream.on("/three", [json(200, json!({ "n": 3 }))]);
    let steps = "\
none: { url: $UP/one }
few: { url: $UP/two, redirects: 1, method: GET }
many: { url: $UP/one, redirects: 1 }
enough: { url: $UP/one, redirects: 2, body: { a: 1 } }
loop: { url: $UP/loop, redirects: 10 }
see: { url: $UP/see, redirects: 1, method: PUT, body: { a: 1 } }
keep: { url: $UP/keep, redirects: 1, method: PUT, body: { a: 1 }, headers: { Authorization: mine } }
ftp: { url: $UP/ftp, redirects: 5 }
hung: { url: $UP/hung, redirects: 5, timeout: 300ms, retries: 0 }";
    let view = server.play(&upstream.fill(steps), &json!(null));
    let tasks = &view["tasks"];
    assert_eq!((&tasks["none"]["status_code"], error(&view, "none").as_str()), (&json!(302), "http_status"));
    assert_eq!(tasks["few"]["status"], "success");
    assert_eq!(
        (tasks["many"]["status"].as_str(), error(&view, "many").as_str()),
        (Some("failed"), "too_many_redirects")
    );
    assert_eq!(tasks["enough"]["body"], json!({ "n": 3 }), "{view:#}");
    assert_eq!((error(&view, "loop").as_str(), count(&upstream, "/loop")), ("too_many_redirects", 11), "and no retry");
    assert_eq!(error(&view, "ftp"), "invalid_redirect");
    assert_eq!(tasks["hung"]["status"], "timeout", "one deadline for all redirects: {view:#}");
    let seen = &upstream.effects_on("/seen")[0];
    assert_eq!((seen.method.as_str(), seen.body.len(), seen.header("content-type")), ("GET", 0, ""));
    let kept = &upstream.effects_on("/kept")[0];
    assert_eq!((kept.method.as_str(), kept.json(), kept.header("authorization")), ("PUT", json!({ "a": 1 }), "mine"));
    assert!(upstream.effects_on("/three").iter().all(|e| e.method == "GET"), "a 302 changes the method to GET");
    assert_eq!(upstream.effects_on("/two").iter().filter(|e| e.path == "/two?x=1").count(), 2);
}

#[test]
fn t3_another_origin_gets_no_secrets_and_must_be_allowed() {
    let (server, upstream, other) = (Server::start(), Upstream::start(), Upstream::start());
    redirect(&upstream, "/away", 307, &other.fill("$UP/got"));
    redirect(&upstream, "/host", 307, &other.fill("$UP/never").replace("127.0.0.1", "localhost"));
    let steps = "\
away: { url: $UP/away, redirects: 3, allow_hosts: [127.0.0.1], body: { a: 1 }, headers: { Authorization: a, Cookie: b, X-Signature: c, X-Api-Key: d, X-Auth-Token: e, X-Trace: f } }
host: { url: $UP/host, redirects: 3, allow_hosts: [127.0.0.1] }";
    let view = server.play(&upstream.fill(steps), &json!(null));
    let got = &other.effects_on("/got")[0];
    let secrets = ["authorization", "cookie", "x-signature", "x-api-key", "x-auth-token"];
    assert!(secrets.iter().all(|name| got.header(name).is_empty()), "{:?}", got.headers);
    assert!(secrets.iter().all(|name| !upstream.effects_on("/away")[0].header(name).is_empty()));
    assert_eq!((got.header("x-trace"), got.json()), ("f", json!({ "a": 1 })));
    assert_eq!((error(&view, "host").as_str(), count(&other, "/never")), ("host_not_allowed", 0));
}

#[test]
fn decision_6_retry_after_may_be_a_date_and_is_capped_at_an_hour() {
    let (server, upstream) = (Server::alone(&["--clock", "virtual"]), Upstream::start());
    upstream.on("/busy", [reply(503, &[("Retry-After", "Wed, 21 Oct 2048 07:28:00 GMT")], ""), status(200)]);
    upstream.on("/past", [reply(429, &[("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")], ""), status(200)]);
    let workflow = server.workflow(&upstream.fill("a: { url: $UP/busy }\nb: { url: $UP/past }"));
    let run = server.trigger(&workflow, &json!(null));
    server.when(&run, "b", "success");
    let view = server.when(&run, "a", "retrying");
    let wait = micros(&view["tasks"]["a"]["next_attempt_at"]) - micros(&view["tasks"]["a"]["started_at"]);
    assert!((3_600_000_000..3_660_000_000).contains(&wait), "{wait} µs");
    server.advance("3599s");
    assert_eq!(count(&upstream, "/busy"), 1);
    server.advance("2m");
    assert_eq!(server.finished(&run)["status"], "completed");
}

#[test]
fn r48_an_organisation_has_at_most_five_requests_at_once() {
    let upstream = Upstream::start();
    let server = Server::alone(&["--http-per-organisation", "5"]);
    let steps: String = (0..12).map(|i| format!("s{i}: {{ url: $UP/held }}\n")).collect();
    upstream.on("/held", [Act::Held(Box::new(Act::Slow(Duration::from_millis(30))))]);
    let workflow = server.workflow(&upstream.fill(&steps));
    let (run, other) = (server.trigger(&workflow, &json!(null)), server.trigger(&workflow, &json!(null)));
    upstream.wait_for("/held", 5);
    let queued = |expected: u64| {
        crate::harness::eventually("the queue has its length", || {
            (metric(&server, "http_steps_queued") == expected).then_some(())
        });
    };
    queued(19);
    assert_eq!(server.run(&run)["tasks"]["s11"]["status"], "running");
    let explanation = server.get(&format!("/api/v1/runs/{run}/explain?step=s11")).data(200);
    assert_eq!(explanation["reason"], "queued_by_limit", "{explanation:#}");
    assert_eq!(
        (&explanation["details"]["allowed"], &explanation["details"]["of"]),
        (&json!(5), &json!("organisation"))
    );
    assert_eq!(explanation["details"]["queued_before"], 6);
    // A cancelled request leaves the queue or is aborted.
    server.cancel(&other).data(200);
    queued(7);
    upstream.release("/held");
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert!((0..12).all(|i| view["tasks"][format!("s{i}")]["attempt"] == 1), "{view:#}");
    assert_eq!((count(&upstream, "/held"), upstream.peak()), (12, 5));
    assert_eq!(metric(&server, "http_steps_queued"), 0);
    for number in ["0", "513", "x"] {
        assert_eq!(onward(&["dev", "--http-per-organisation", number]).status.code(), Some(2), "{number}");
    }
}

/// Charged attempts of every step of a run.
fn charged(server: &Server, run: &str) -> Vec<(String, usize)> {
    let events = server.events(run);
    let of = |e: &Value| e["step"].as_str().unwrap_or_default().to_owned();
    let mut steps: Vec<String> = events.iter().map(&of).filter(|step| !step.is_empty()).collect();
    steps.sort();
    steps.dedup();
    let spent = |step: &String| {
        let is_charged = |e: &&Value| e["type"] == "step.retrying" && e["data"]["charged"] == true && of(e) == *step;
        events.iter().filter(is_charged).count()
    };
    steps.into_iter().map(|step| (step.clone(), spent(&step))).collect()
}

#[test]
fn decision_6_a_dead_host_does_not_burn_attempts() {
    let (server, upstream) = (Server::alone(&["--clock", "virtual"]), Upstream::start());
    upstream.on("/dead", [status(503)]);
    let steps: String = (0..10).map(|i| format!("s{i}: {{ url: $UP/dead }}\n")).collect();
    let workflow = server.workflow(&upstream.fill(&steps));
    let runs: Vec<String> = (0..4).map(|_| server.trigger(&workflow, &json!(null))).collect();
    // Without the host's backoff, six attempts would be used up within a minute.
    server.advance("2h");
    let sent = count(&upstream, "/dead");
    // Each run makes at most one attempt before the host is known to be down; then there is a probe after 5, 10, 20 …
    // and then every 300 s.
    assert!((8..=40 + 6 + 24).contains(&sent), "{sent} requests");
    for run in &runs {
        let view = server.run(run);
        assert_eq!(view["status"], "waiting", "{view:#}");
        for (step, task) in view["tasks"].as_object().expect("steps") {
            assert_eq!((&task["status"], error(&view, step).as_str()), (&json!("retrying"), "host_backoff"));
            assert!(task["next_attempt_at"].is_string());
        }
        let spent = charged(&server, run);
        assert!(spent.iter().all(|(_, spent)| *spent < 6), "{spent:?}");
    }

    // No attempt that was held back has a number.
    for run in &runs {
        let started = server.events(run).iter().filter(|e| e["type"] == "step.started").count();
        let view = server.run(run);
        let attempts = view["tasks"].as_object().expect("steps").values().filter_map(|t| t["attempt"].as_u64());
        assert_eq!(attempts.sum::<u64>(), started as u64);
    }

    // A new run has not started its step at all, also after a crash.
    let late = server.workflow(&upstream.fill("a: { url: $UP/late }"));
    let late = server.trigger(&late, &json!(null));
    let view = server.when(&late, "a", "retrying");
    assert_eq!((error(&view, "a").as_str(), count(&upstream, "/late")), ("host_backoff", 0), "{view:#}");
    assert_eq!(
        (&view["tasks"]["a"]["attempt"], &view["tasks"]["a"]["started_at"]),
        (&json!(0), &json!(null)),
        "{view:#}"
    );
    let held = server.events(&late).into_iter().find(|e| e["type"] == "step.retrying").expect("held back");
    assert_eq!((&held["data"]["reason"], &held["attempt"]), (&json!("host_backoff"), &json!(null)), "{held:#}");
    let explanation = server.get(&format!("/api/v1/runs/{late}/explain")).data(200);
    assert_eq!(explanation["reason"], "waiting_for_retry", "{explanation:#}");
    assert!(explanation["summary"].as_str().expect("words").contains("nothing was sent"), "{explanation:#}");
    assert!(metric(&server, "http_steps_held_back_total") > 40);
    let mut server = server;
    server.crash_and_restart();

    upstream.on("/dead", [status(200)]);
    server.advance("10m");
    for run in runs.iter().chain([&late]) {
        assert_eq!(server.finished(run)["status"], "completed");
    }
    assert_eq!(count(&upstream, "/late"), 1);
    assert_eq!(count(&upstream, "/dead"), sent + 40, "each run once more");
}

#[test]
fn decision_6_host_backoff_never_overrules_a_policy_the_author_wrote() {
    let down = |arguments: &[&str]| {
        let (server, upstream) = (Server::alone(arguments), Upstream::start());
        upstream.on("/dead", [status(503)]);
        let workflow = server.workflow(&upstream.fill("a: { url: $UP/dead }\nb: { url: $UP/dead }"));
        let runs: Vec<String> = (0..5).map(|_| server.trigger(&workflow, &json!(null))).collect();
        for run in &runs {
            server.when(run, "a", "retrying");
            server.when(run, "b", "retrying");
        }
        (server, upstream)
    };
    let (server, upstream) = down(&["--clock", "virtual"]);
    server.advance("1m");
    let play = |step: &str| {
        let run = server.trigger(&server.workflow(&upstream.fill(&format!("a: {{ url: $UP/{step} }}"))), &json!(null));
        server.advance("5s");
        server.run(&run)["tasks"]["a"].clone()
    };
    let waiting = play("calm");
    assert_eq!((&waiting["status"], &waiting["attempt"]), (&json!("retrying"), &json!(0)), "{waiting:#}");

    let retry = "retry: { max_attempts: 3, backoff: { type: fixed, min: 500ms } }";
    let own = play(&format!("dead, {retry}"));
    assert_eq!((&own["status"], &own["attempt"]), (&json!("failed"), &json!(3)), "{own:#}");
    assert_eq!(play("dead, retries: 0")["status"], "failed");
    assert_eq!(play("dead, retry: never")["status"], "failed");
    let off = play("dead, host_backoff: false");
    assert_eq!((&off["status"], &off["attempt"]), (&json!("retrying"), &json!(3)), "1 s and 2 s: {off:#}");
    assert_eq!(play(&format!("calm, {retry}, host_backoff: true"))["attempt"], 0, "unless the author asks for it");

    // An operator's `retry` goes through, once.
    let held = server.trigger(&server.workflow(&upstream.fill("a: { url: $UP/dead }")), &json!(null));
    server.when(&held, "a", "retrying");
    let before = count(&upstream, "/dead");
    server.post(&format!("/api/v1/runs/{held}/retry"), &json!({ "step": "a" })).data(200);
    crate::harness::eventually("sent", || (count(&upstream, "/dead") > before).then_some(()));
    let view = server.when(&held, "a", "retrying");
    assert_eq!(view["tasks"]["a"]["attempt"], 1, "{view:#}");

    let (server, upstream) = down(&["--clock", "virtual", "--no-host-backoff"]);
    let run = server.trigger(&server.workflow(&upstream.fill("a: { url: $UP/calm }")), &json!(null));
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(metric(&server, "http_steps_held_back_total"), 0);
}

#[test]
fn decision_6_an_answered_probe_releases_all_waiting_requests() {
    let (server, upstream) = (Server::alone(&["--clock", "virtual"]), Upstream::start());
    upstream.on("/dead", [status(504)]);
    let workflow = server.workflow(&upstream.fill("a: { url: $UP/dead }\nb: { url: $UP/dead }"));
    let runs: Vec<String> = (0..5).map(|_| server.trigger(&workflow, &json!(null))).collect();
    server.advance("1m");
    assert!(runs.iter().all(|run| server.run(run)["status"] == "waiting"));
    upstream.on("/dead", [status(200)]);
    server.advance("5m");
    for run in &runs {
        assert_eq!(server.finished(run)["status"], "completed");
    }
}

#[test]
fn decision_6_one_run_that_retries_quickly_is_not_slowed_down() {
    let (server, upstream) = (Server::start(), Upstream::start());
    upstream.on("/flaky", (0..30).map(|_| status(503)).chain([status(200)]));
    let retry = "retry: { max_attempts: 40, backoff: { type: fixed, min: 1ms } }";
    let view = server.play(&upstream.fill(&format!("a: {{ url: $UP/flaky, {retry} }}")), &json!(null));
    assert_eq!((&view["tasks"]["a"]["status"], &view["tasks"]["a"]["attempt"]), (&json!("success"), &json!(31)));
    assert_eq!(metric(&server, "http_steps_held_back_total"), 0);
}

#[test]
fn decision_6_a_retry_after_also_pauses_requests_of_other_runs_to_the_host() {
    let (server, upstream) = (Server::alone(&["--clock", "virtual"]), Upstream::start());
    upstream.on("/busy", [reply(429, &[("Retry-After", "40")], ""), status(200)]);
    let first = server.workflow(&upstream.fill("a: { url: $UP/busy }\nb: { noop: {}, needs: [a] }"));
    let first = server.trigger(&first, &json!(null));
    server.when(&first, "a", "retrying");
    let second = server.workflow(&upstream.fill("a: { url: $UP/calm }"));
    let second = server.trigger(&second, &json!(null));
    let view = server.when(&second, "a", "retrying");
    assert_eq!(error(&view, "a"), "host_backoff");
    assert_eq!(view["waiting_for"][0]["kind"], "retry");
    assert_eq!(count(&upstream, "/calm"), 0);
    server.advance("41s");
    for run in [&first, &second] {
        assert_eq!(server.finished(run)["status"], "completed");
    }
    assert_eq!((count(&upstream, "/busy"), count(&upstream, "/calm")), (2, 1));
}

#[test]
fn decision_6_queued_requests_are_given_back_when_the_server_drains() {
    let upstream = Upstream::start();
    let mut server = Server::alone(&["--http-per-organisation", "1", "--drain-grace", "60s"]);
    upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    let first = server.trigger(&server.workflow(&upstream.fill("a: { url: $UP/held, retry: never }")), &json!(null));
    upstream.wait_for("/held", 1);
    let once = server.workflow(&upstream.fill("a: { url: $UP/once, retry: never }"));
    let waiting: Vec<String> = (0..20).map(|_| server.trigger(&once, &json!(null))).collect();
    let (api, watch) = (*server, upstream.watch("/once"));
    let released = std::thread::scope(|scope| {
        scope.spawn(|| {
            crate::harness::eventually("draining", || (api.get("/readyz").status == 503).then_some(()));
            crate::harness::eventually("handed back", || {
                waiting.iter().all(|run| api.run(run)["tasks"]["a"]["error"]["code"] == "server_stopping").then_some(())
            });
            upstream.release("/held");
        });
        server.terminate()
    });
    assert_eq!(released.code(), Some(0), "{}", server.log());
    assert_eq!(watch().len(), 0, "nothing new was sent");
    server.start_again();
    assert_eq!(server.finished(&first)["status"], "completed", "the running request was recorded");
    for run in &waiting {
        let view = server.finished(run);
        assert_eq!(view["status"], "completed", "`retry: never`, but it had not been tried: {view:#}");
    }
    assert_eq!(watch().len(), 20);
}
