//! Signals, approvals and pauses, as users write and see them (M20–M23, T15, T16, P14).

use crate::harness::{Act, Api, Server, Upstream, eventually, json, micros, one_node_only, onward};
use serde_json::{Value, json};

/// A workflow that waits twice for the same signal, one after the other.
const TWO_PAYMENTS: &str = "
first: { wait_for_signal: { name: paid } }
second: { needs: [first], wait_for_signal: { name: paid, timeout: 1h } }
end: { needs: [second], set: { first: '{{tasks.first.body.n}}', second: '{{tasks.second.body.n}}' } }";

fn signal(server: &Api, run: &str, name: &str, body: &Value) -> Value {
    server.post(&format!("/api/v1/runs/{run}/signals/{name}"), body).data(200)
}

fn events_of(server: &Api, run: &str, name: &str) -> Vec<Value> {
    server.events(run).into_iter().filter(|event| event["type"] == name).collect()
}

#[test]
fn m20_signals_are_kept_in_order_and_each_is_read_once_across_a_kill() {
    let mut server = Server::start();
    let workflow = server.workflow("nap: { sleep: 400ms }\nfirst: { needs: [nap], wait_for_signal: { name: paid } }\nsecond: { needs: [first], wait_for_signal: { name: paid } }\nend: { needs: [second], set: { got: ['{{tasks.first.body.n}}', '{{tasks.second.body.n}}'] } }");
    let run = server.trigger(&workflow, &json!({}));
    // Both arrive before any step waits for them.
    signal(&server, &run, "paid", &json!({ "n": 1 }));
    signal(&server, &run, "paid", &json!({ "n": 2 }));
    signal(&server, &run, "paid", &json!({ "n": 3 }));
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["end"]["body"], json!({ "got": [1, 2] }), "{view:#}");
    assert_eq!(view["unread_signals"], json!({ "paid": 1 }));
    assert_eq!(view["tasks"]["first"]["status"], "received");
    assert_eq!(events_of(&server, &run, "signal.consumed").len(), 2);
    let late = server.post(&format!("/api/v1/runs/{run}/signals/paid"), &json!({}));
    assert_eq!(late.refusal(409), "run_ended");
    server.verify();
}

#[test]
fn m20_a_repeated_key_sends_once_and_another_body_is_refused() {
    let server = Server::start();
    let workflow = server.workflow(TWO_PAYMENTS);
    let run = server.trigger(&workflow, &json!({}));
    let path = format!("/api/v1/runs/{run}/signals/paid");
    let send = |body: Value| server.post_with(&path, &[("idempotency-key", "k1")], &body);
    assert_eq!(send(json!({ "n": 1 })).data(200).get("deduplicated"), None);
    assert_eq!(send(json!({ "n": 1 })).data(200)["deduplicated"], true);
    assert_eq!(send(json!({ "n": 2 })).refusal(422), "idempotency_key_reused");
    server.when(&run, "second", "waiting");
    assert_eq!(server.run(&run)["tasks"]["first"]["body"], json!({ "n": 1 }));
    signal(&server, &run, "paid", &json!({ "n": 2 }));
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["end"]["body"], json!({ "first": 1, "second": 2 }));
    // A repeat after the end still gets its first answer.
    assert_eq!(send(json!({ "n": 1 })).data(200)["deduplicated"], true);
    server.verify();
}

#[test]
fn m20_m5_a_deadline_wins_against_a_signal_that_arrives_later_and_too_many_are_refused() {
    let mut server = Server::with_virtual_clock();
    let workflow = server.workflow("w: { wait_for_signal: { name: go, timeout: 1h }, allow_failure: true }\nafter: { needs: [w], if: tasks.w.failed, wait_for_signal: { name: other } }");
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "w", "waiting");
    let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    assert_eq!((&explained["reason"], &explained["details"]["name"]), (&json!("waiting_for_signal"), &json!("go")));
    server.advance("61m");
    let view = server.when(&run, "after", "waiting");
    assert_eq!(view["tasks"]["w"]["status"], "timeout", "{view:#}");
    assert_eq!(view["tasks"]["w"]["error"]["code"], "wait_timeout");
    for n in 0..1_000 {
        signal(&server, &run, "go", &json!(n));
    }
    for _ in 0..2 {
        let one_more = server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!(0));
        assert_eq!(one_more.refusal(409), "too_many_signals");
        assert!(one_more.text().contains("1,000"), "{}", one_more.text());
        server.crash_and_restart();
    }
    assert_eq!(server.run(&run)["unread_signals"], json!({ "go": 1_000 }));
    assert_eq!(
        server.post(&format!("/api/v1/runs/{run}/signals/no%20name"), &json!(0)).refusal(422),
        "invalid_parameter"
    );
    server.verify();
}

/// Asks before it charges; a denial leads to `told`.
const GATE: &str = r#"
ask:
  approval:
    prompt: "Charge {{trigger.body.amount}}?"
    items: { amount: "{{trigger.body.amount}}" }
    approvers: [ada, bob]
    timeout: 1d
charge: { needs: [ask], url: $UP/charge }
told: { needs: [ask], if: "tasks.ask.failed", url: $UP/told, body: "{{tasks.ask.body}}" }"#;

fn decide(server: &Api, run: &str, verb: &str, body: &Value) -> crate::harness::Answer {
    server.post(&format!("/api/v1/runs/{run}/{verb}"), body)
}

#[test]
fn p14_i27_t15_an_approval_shows_what_it_is_about_and_counts_once() {
    let upstream = Upstream::start();
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill(GATE));
    let run = server.trigger(&workflow, &json!({ "amount": 40 }));
    let view = server.when(&run, "ask", "waiting");
    assert_eq!((&view["status"], &view["waiting_for"][0]["kind"]), (&json!("waiting"), &json!("approval")));
    server.crash_and_restart();
    let open = server.list("/api/v1/approvals");
    let gate = open.iter().find(|gate| gate["run_id"] == run.as_str()).expect("it is listed");
    assert_eq!((&gate["step"], &gate["prompt"]), (&json!("ask"), &json!("Charge 40?")));
    assert_eq!((&gate["items"], &gate["approvers"]), (&json!({ "amount": 40 }), &json!(["ada", "bob"])));
    let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    assert_eq!(explained["reason"], "paused_for_approval", "{explained:#}");
    assert_eq!(explained["details"]["token"], gate["token"]);

    assert_eq!(decide(&server, &run, "approve", &json!({})).refusal(422), "invalid_body", "someone decides");
    assert_eq!(decide(&server, &run, "approve", &json!({ "actor": "eve" })).refusal(403), "not_an_approver");
    let stale = json!({ "actor": "ada", "shown_hash": "sha256:00" });
    assert_eq!(decide(&server, &run, "approve", &stale).refusal(409), "approval_changed");
    assert_eq!(
        decide(&server, &run, "approve", &json!({ "actor": "ada", "step": "charge" })).refusal(409),
        "not_waiting"
    );
    assert_eq!(
        decide(&server, &run, "approve", &json!({ "actor": "ada", "step": "nope" })).refusal(422),
        "invalid_body"
    );
    assert_eq!(
        decide(&server, &run, "reject", &json!({ "actor": "ada", "approve": true })).refusal(422),
        "invalid_body"
    );

    let good = json!({ "actor": "ada", "comment": "fine", "token": gate["token"], "shown_hash": gate["shown_hash"] });
    let decided = decide(&server, &run, "approve", &good).data(200);
    assert_eq!((&decided["step"], &decided["decision"]), (&json!("ask"), &json!("approved")));
    assert_eq!(decide(&server, &run, "approve", &good).data(200)["repeated"], true);
    assert_eq!(decide(&server, &run, "reject", &json!({ "actor": "bob" })).refusal(409), "already_decided");
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(
        (&view["status"], &view["tasks"]["told"]["status"]),
        (&json!("completed"), &json!("skipped")),
        "{view:#}"
    );
    let record = &view["tasks"]["ask"]["body"];
    assert_eq!(
        (&record["decision"], &record["actor"], &record["comment"]),
        (&json!("approved"), &json!("ada"), &json!("fine"))
    );
    assert_eq!(
        (&record["shown_hash"], &view["tasks"]["ask"]["approval"]["decision"]),
        (&gate["shown_hash"], &json!("approved"))
    );
    assert!(micros(&record["at"]) > 0);
    assert!(server.list("/api/v1/approvals").iter().all(|gate| gate["run_id"] != run.as_str()));
    let approved = &events_of(&server, &run, "approval.approved")[0];
    assert_eq!((&approved["actor"], &approved["data"]["comment"]), (&json!("ada"), &json!("fine")));
    assert_eq!(events_of(&server, &run, "approval.requested").len(), 1);
    server.verify();
}

#[test]
fn m22_a_denial_is_a_failure_that_can_be_handled_and_otherwise_cancels_the_run() {
    let upstream = Upstream::start();
    let server = Server::start();
    let workflow = server.workflow(&upstream.fill(GATE));
    let run = server.trigger(&workflow, &json!({ "amount": 40 }));
    server.when(&run, "ask", "waiting");
    let no = json!({ "actor": "bob", "comment": "too much" });
    assert_eq!(decide(&server, &run, "reject", &no).data(200)["decision"], "denied");
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "the branch that asks `tasks.ask.failed` handles it: {view:#}");
    assert_eq!(view["tasks"]["ask"]["error"]["code"], "approval_denied");
    assert_eq!(upstream.effects_on("/told")[0].json()["comment"], "too much");
    assert_eq!(upstream.effects_on("/charge").len(), 0);

    let workflow = server
        .workflow("ask: { approval: { prompt: 'Go?' } }\nother: { sleep: 100ms }\nend: { needs: [other], noop: {} }");
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "ask", "waiting");
    let denied = decide(&server, &run, "approve", &json!({ "actor": "bob", "approve": false })).data(200);
    assert_eq!(denied["decision"], "denied");
    let view = server.finished(&run);
    assert_eq!(view["status"], "cancelled", "{view:#}");
    assert_eq!(view["tasks"]["end"]["status"], "success", "other branches go on");
    let last = server.events(&run).pop().unwrap();
    assert_eq!((&last["type"], &last["data"]["reason"]), (&json!("run.cancelled"), &json!("approval_denied")));
    server.verify();
}

#[test]
fn m22_a_decision_counts_once_however_the_server_ends_after_it() {
    let upstream = Upstream::start();
    upstream.on("/hold", [Act::Hang, json(200, json!({}))]);
    let mut server = Server::start();
    // Something else is under way, so that the run goes on after the decision.
    let steps = upstream.fill(
        "ask: { approval: { prompt: 'Go?', timeout: 1d } }\nask2: { approval: { prompt: 'Sure?' } }\nhold: { url: $UP/hold }\ntold: { needs: [ask, hold], if: tasks.ask.failed, set: { said: '{{tasks.ask.body.comment}}' } }",
    );
    let workflow = server.workflow(&steps);
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "ask2", "waiting");
    upstream.wait_for("/hold", 1);
    let deny = json!({ "actor": "bob", "step": "ask", "comment": "not today" });
    let decided = decide(&server, &run, "reject", &deny).data(200);
    assert_eq!((&decided["decision"], decided.get("repeated")), (&json!("denied"), None), "{decided:#}");
    let record = server.run(&run)["tasks"]["ask"].clone();
    assert_eq!((&record["status"], &record["error"]["code"]), (&json!("failed"), &json!("approval_denied")));
    assert_eq!((&record["body"]["decision"], &record["body"]["actor"]), (&json!("denied"), &json!("bob")));
    server.crash_and_restart();
    assert_eq!(server.run(&run)["tasks"]["ask"], record, "the record of the decision is what it was");
    assert_eq!(decide(&server, &run, "reject", &deny).data(200)["repeated"], true);
    let other = json!({ "actor": "ada", "step": "ask" });
    assert_eq!(decide(&server, &run, "approve", &other).refusal(409), "already_decided");
    assert_eq!(events_of(&server, &run, "approval.denied").len(), 1);
    // The second gate is denied too, which nothing handles.
    decide(&server, &run, "reject", &json!({ "actor": "eve", "step": "ask2" })).data(200);
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["status"], "cancelled", "{view:#}");
    assert_eq!((&view["tasks"]["ask"], &view["tasks"]["told"]["body"]), (&record, &json!({ "said": "not today" })));
    assert_eq!(server.events(&run).pop().expect("events")["data"]["reason"], "approval_denied");
    server.crash_and_restart();
    assert_eq!(server.run(&run), view);
    server.verify();
}

#[test]
fn m22_m23_pauses_and_deadlines_are_kept_across_kills() {
    let mut server = Server::with_virtual_clock();
    let workflow = server.workflow(
        "a: { pause: {} }\nb: { pause: {} }\nask: { approval: { prompt: p, timeout: 1h, default: approve } }\nend: { needs: [a, b, ask], noop: {} }",
    );
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "ask", "waiting");
    server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "actor": "ada", "step": "a" })).data(200);
    server.crash_and_restart();
    let view = server.run(&run);
    let statuses = ["a", "b", "ask"].map(|step| view["tasks"][step]["status"].as_str().expect("a status").to_owned());
    assert_eq!(statuses, ["success", "waiting", "waiting"], "what was resumed stays resumed, and nothing else is");
    server.advance("59m");
    assert_eq!(server.run(&run)["tasks"]["ask"]["status"], "waiting", "not before its deadline");
    server.crash_and_restart();
    server.advance("1m");
    let view = server.when(&run, "ask", "success");
    assert_eq!(view["tasks"]["ask"]["body"]["decision"], "approved", "{view:#}");
    // The deadline has decided, so a person is too late, also after another kill.
    server.crash_and_restart();
    let late = decide(&server, &run, "reject", &json!({ "actor": "bob", "step": "ask" }));
    assert_eq!(late.refusal(409), "already_decided");
    server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "actor": "ada" })).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    server.verify();
}

#[test]
fn m23_every_open_wait_keeps_its_row_until_it_ends_across_kills() {
    let mut server = Server::start();
    let workflow = server.workflow(
        "each: { loop: { items: [0, 1, 2], concurrency: 3, tasks: { ask: { approval: { prompt: 'Item {{item}}?', timeout: 2h } } } } }\nhold: { pause: {} }\npaid: { wait_for_signal: { name: paid } }",
    );
    let run = server.trigger(&workflow, &json!({}));
    let gates = |server: &Server| server.list("/api/v1/approvals");
    let open = eventually("three gates", || Some(gates(&server)).filter(|open| open.len() == 3));
    let steps: Vec<&Value> = open.iter().map(|gate| &gate["step"]).collect();
    assert_eq!(steps, ["each[0]/ask", "each[1]/ask", "each[2]/ask"]);
    assert!(open.iter().all(|gate| micros(&gate["deadline"]) - micros(&gate["requested_at"]) == 7_200_000_000));
    server.crash_and_restart();
    assert_eq!(gates(&server), open, "name, deadline, token and what is shown are the same");
    decide(&server, &run, "approve", &json!({ "actor": "ada", "step": "each[1]/ask" })).data(200);
    server.crash_and_restart();
    assert_eq!(gates(&server), [open[0].clone(), open[2].clone()]);
    // A signal finds the wait by its name, the resume the pause, although neither is in memory.
    signal(&server, &run, "paid", &json!({}));
    server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "actor": "ada", "step": "hold" })).data(200);
    server.cancel(&run);
    server.crash_and_restart();
    assert_eq!(gates(&server), Vec::<Value>::new(), "the end of the run closes the rest");
    let view = server.finished(&run);
    assert_eq!(
        (&view["tasks"]["paid"]["status"], &view["tasks"]["hold"]["status"]),
        (&json!("received"), &json!("success"))
    );
    server.verify();
}

#[test]
fn t15_p14_the_actor_that_started_a_run_does_not_approve_it_where_the_gate_says_so() {
    let mut server = Server::start();
    let workflow =
        server.workflow("ask: { approval: { prompt: p, exclude_initiator: true } }\nend: { needs: [ask], noop: {} }");
    let started = server.post(&format!("/api/v1/workflows/{workflow}/trigger?actor=ada"), &json!({})).data(201);
    let run = started["run_id"].as_str().expect("an id");
    server.when(run, "ask", "waiting");
    assert_eq!(server.events(run)[0]["actor"], "ada");
    for verb in ["approve", "reject"] {
        let own = decide(&server, run, verb, &json!({ "actor": "ada" }));
        assert_eq!(own.refusal(403), "not_an_approver", "{verb}");
    }
    server.crash_and_restart();
    let own = decide(&server, run, "approve", &json!({ "actor": "ada", "step": "ask" }));
    assert_eq!(own.refusal(403), "not_an_approver", "the initiator is stored with the run");
    assert_eq!(server.run(run)["tasks"]["ask"]["status"], "waiting");
    decide(&server, run, "approve", &json!({ "actor": "bob" })).data(200);
    assert_eq!(server.finished(run)["tasks"]["ask"]["body"]["actor"], "bob");
    let long = server.post(&format!("/api/v1/workflows/{workflow}/trigger?actor={}", "a".repeat(2_000)), &json!({}));
    assert_eq!(long.refusal(422), "invalid_parameter");
    server.verify();
}

#[test]
fn t15_p14_following_a_link_decides_nothing() {
    let server = Server::start();
    let workflow =
        server.workflow("ask: { approval: { prompt: p } }\nhold: { pause: {} }\ndoor: { wait_for_webhook: {} }");
    let run = server.trigger(&workflow, &json!({}));
    let view = server.when(&run, "door", "waiting");
    server.when(&run, "ask", "waiting");
    let gate = &server.list("/api/v1/approvals")[0];
    let explained = server.get(&format!("/api/v1/runs/{run}/explain?step=door")).data(200);
    let url = explained["details"]["url"].as_str().expect("its URL");
    let before = server.events(&run);
    let token = gate["token"].as_str().expect("its token");
    let links = [
        format!("/api/v1/runs/{run}/approve?actor=ada&token={token}"),
        format!("/api/v1/runs/{run}/reject?actor=ada&step=ask"),
        format!("/api/v1/runs/{run}/resume?step=hold"),
        format!("/api/v1/runs/{run}/signals/go"),
        url[url.find("/wh/").expect("a callback URL")..].to_owned(),
    ];
    for link in &links {
        // The answer to HEAD has no body, whatever its headers say.
        let _ = server.try_send("HEAD", link, &[("purpose", "prefetch")], b"");
        let got = server.send("GET", link, &[("purpose", "prefetch")], b"");
        assert!(matches!(got.status, 404 | 405), "GET {link} is no route: {} {}", got.status, got.text());
    }
    assert_eq!(server.events(&run), before, "nothing was recorded");
    assert_eq!(server.run(&run)["tasks"], view["tasks"], "and everything waits as before");
    server.verify();
}

#[test]
fn m22_the_deadline_decides_as_declared() {
    let server = Server::with_virtual_clock();
    let play = |settings: &str| {
        let workflow = server.workflow(&format!("ask: {{ approval: {{ prompt: p, timeout: 1h{settings} }} }}"));
        let run = server.trigger(&workflow, &json!({}));
        server.when(&run, "ask", "waiting");
        server.advance("1h");
        server.finished(&run)
    };
    let view = play(", default: approve");
    assert_eq!((&view["status"], &view["tasks"]["ask"]["body"]["decision"]), (&json!("completed"), &json!("approved")));
    let view = play(", default: deny");
    assert_eq!(
        (&view["status"], &view["tasks"]["ask"]["error"]["code"]),
        (&json!("cancelled"), &json!("approval_denied"))
    );
    let view = play("");
    assert_eq!(
        (&view["status"], &view["tasks"]["ask"]["error"]["code"]),
        (&json!("cancelled"), &json!("approval_timeout"))
    );
    server.verify();
}

#[test]
fn t16_i27_of_decisions_that_race_one_wins() {
    let server = Server::start();
    let workflow = server.workflow("ask: { approval: { prompt: p, timeout: 300ms }, allow_failure: true }");
    for _ in 0..10 {
        let run = server.trigger(&workflow, &json!({}));
        server.when(&run, "ask", "waiting");
        let outcomes: Vec<(bool, u16)> = std::thread::scope(|scope| {
            let send = |n: usize| {
                let (server, run): (Api, &String) = (*server, &run);
                scope.spawn(move || {
                    // Some arrive about when the deadline passes.
                    std::thread::sleep(std::time::Duration::from_millis(200 * (n as u64 / 4)));
                    let verb = if n.is_multiple_of(2) { "approve" } else { "reject" };
                    let answer = decide(&server, run, verb, &json!({ "actor": format!("actor-{n}"), "step": "ask" }));
                    (n.is_multiple_of(2), answer.status)
                })
            };
            (0..8).map(send).collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect()
        });
        let view = server.finished(&run);
        let decided =
            events_of(&server, &run, "approval.approved").len() + events_of(&server, &run, "approval.denied").len();
        assert_eq!(decided, 1, "{:#?}", server.events(&run));
        let is_approved = view["tasks"]["ask"]["status"] == "success";
        for (approves, status) in outcomes {
            assert!(
                status == 200 && approves == is_approved || status == 409,
                "{status} for approve={approves}: {view:#}"
            );
        }
    }
    server.verify();
}

#[test]
fn m22_m23_a_pause_waits_until_it_is_resumed_by_name_or_alone() {
    let server = Server::start();
    let workflow = server.workflow("a: { pause: {} }\nb: { pause: {} }\nend: { needs: [a, b], noop: {} }");
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "b", "waiting");
    let resume = |body: Value| server.post(&format!("/api/v1/runs/{run}/resume"), &body);
    let several = resume(json!({ "actor": "ada" }));
    assert_eq!(several.refusal(409), "step_required");
    assert!(several.text().contains("a, b"), "{}", several.text());
    resume(json!({ "actor": "ada", "step": "a" })).data(200);
    resume(json!({ "actor": "ada", "step": "a" })).data(200);
    // A paused run is resumed before its steps.
    server.post(&format!("/api/v1/runs/{run}/pause"), &json!({})).data(200);
    resume(json!({})).data(200);
    assert_eq!(server.run(&run)["tasks"]["b"]["status"], "waiting");
    resume(json!({})).data(200);
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(resume(json!({})).refusal(409), "run_ended");
    server.verify();
}

#[test]
fn m23_the_inbox_of_approvals_is_paged_and_the_command_line_decides() {
    let server = Server::start();
    let workflow = server.workflow("ask: { approval: { prompt: 'Go on with {{trigger.body}}?' } }");
    let runs: Vec<String> = (0..5).map(|n| server.trigger(&workflow, &json!(n))).collect();
    runs.iter().for_each(|run| drop(server.when(run, "ask", "waiting")));
    let first = server.get("/api/v1/approvals?limit=2").json();
    assert_eq!(first["data"].as_array().unwrap().len(), 2, "{first:#}");
    let cursor = first["next"].as_str().unwrap();
    let second = server.get(&format!("/api/v1/approvals?limit=500&cursor={cursor}")).json();
    assert_eq!(second["data"].as_array().unwrap().len(), 3, "{second:#}");
    assert_eq!(server.get("/api/v1/approvals?cursor=x").refusal(422), "invalid_parameter");
    let url = format!("http://{}", server.nodes()[0]);
    let cli = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--url", &url]);
        let output = onward(&all);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, table) = cli(&["approvals", "list"]);
    assert!(code == Some(0) && table.contains("Go on with 3?"), "{table}");
    let (code, said) = cli(&["runs", "approve", &runs[0], "--actor", "ada"]);
    assert!(code == Some(0) && said.contains("ask of") && said.contains("approved"), "{said}");
    assert_eq!(cli(&["runs", "reject", &runs[0], "--actor", "ada"]).0, Some(1));
    assert_eq!(cli(&["runs", "reject", &runs[1], "--actor", "ada"]).0, Some(0));
    assert_eq!(server.finished(&runs[0])["status"], "completed");
    assert_eq!(server.finished(&runs[1])["status"], "cancelled");
    let waiting = server.workflow("w: { wait_for_signal: { name: go } }");
    let run = server.trigger(&waiting, &json!({}));
    let (code, said) = cli(&["runs", "signal", &run, "go", "--input", "{\"n\": 7}"]);
    assert!(code == Some(0) && said.contains("go"), "{said}");
    assert_eq!(server.finished(&run)["tasks"]["w"]["body"], json!({ "n": 7 }));
}

#[test]
fn p10_a_cancelled_run_closes_its_waits() {
    let server = Server::start();
    let workflow =
        server.workflow("a: { approval: { prompt: p } }\nb: { wait_for_signal: { name: go } }\nc: { pause: {} }");
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "c", "waiting");
    assert_eq!(server.cancel(&run).status, 200);
    assert_eq!(decide(&server, &run, "approve", &json!({ "actor": "ada", "step": "a" })).status, 409);
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!(0)).refusal(409), "run_ended");
    eventually("the approval leaves the list", || {
        server.list("/api/v1/approvals").iter().all(|gate| gate["run_id"] != run.as_str()).then_some(())
    });
    server.verify();
}

#[test]
fn m2_m20_waits_inside_loops_have_keys_urls_and_signals_of_their_own() {
    let upstream = Upstream::start();
    upstream.on("/ask", (0..3).map(|_| json(200, json!({}))));
    let server = Server::start();
    let workflow = server.workflow(&upstream.fill(
        "
each:
  loop:
    items: trigger.body.orders
    as: order
    concurrency: 3
    tasks:
      ask: { url: $UP/ask, body: { order: '{{order}}', url: '{{wait.answer.url}}' } }
      answer: { needs: [ask], wait_for_webhook: {} }
    output: '{{tasks.answer.body}}'",
    ));
    let run = server.trigger(&workflow, &json!({ "orders": [1, 2, 3] }));
    for effect in upstream.wait_for("/ask", 3) {
        let body = effect.json();
        let url = body["url"].as_str().unwrap().to_owned();
        assert_eq!(server.call_back(&url, format!("{{\"of\":{}}}", body["order"]).as_bytes()).status, 200);
    }
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["each"]["body"], json!([{ "of": 1 }, { "of": 2 }, { "of": 3 }]), "{view:#}");
    server.verify();
}

#[test]
fn m22_answers_to_steps_in_a_loop_can_be_repeated_after_their_iteration() {
    let upstream = Upstream::start();
    upstream.on("/ask", [json(200, json!({}))]);
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill(
        "
each:
  loop:
    items: trigger.body
    tasks:
      url: { url: $UP/ask, body: { url: '{{wait.answer.url}}' } }
      answer: { needs: [url], wait_for_webhook: {} }
gates:
  needs: [each]
  loop: { items: trigger.body, tasks: { ask: { approval: { prompt: 'Go on with {{item}}?', items: ['{{item}}'] } } } }
pauses: { needs: [gates], loop: { items: trigger.body, tasks: { hold: { pause: {} } } } }",
    ));
    let run = server.trigger(&workflow, &json!(["a"]));
    let url = upstream.wait_for("/ask", 1)[0].json()["url"].as_str().unwrap().to_owned();
    assert_eq!(server.call_back(&url, b"1").status, 200);
    let gate = eventually("the approval is open", || server.list("/api/v1/approvals").pop());
    assert_eq!(gate["step"], "gates[0]/ask");
    let again = |server: &Server| {
        assert_eq!(server.call_back(&url, b"1").status, 200, "an identical repeat");
        assert!(matches!(server.call_back(&url, b"2").status, 409 | 410), "another body");
    };
    again(&server);
    let shown = json!({ "actor": "ada", "token": gate["token"], "shown_hash": gate["shown_hash"] });
    decide(&server, &run, "approve", &shown).data(200);
    let resume = || server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "step": "pauses[0]/hold" }));
    eventually("the pause is reached", || (resume().status == 200).then_some(()));
    assert_eq!(server.finished(&run)["status"], "completed");
    resume().data(200);
    server.crash_and_restart();
    again(&server);
    for request in [shown, json!({ "actor": "ada", "step": "gates[0]/ask" })] {
        assert_eq!(decide(&server, &run, "approve", &request).data(200)["repeated"], true, "{request}");
        assert_eq!(decide(&server, &run, "reject", &request).refusal(409), "already_decided", "{request}");
    }
    server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "step": "pauses[0]/hold" })).data(200);
    let nowhere = server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "step": "pauses[1]/hold" }));
    assert_eq!(nowhere.refusal(422), "invalid_body");
    let explained = server.get(&format!("/api/v1/runs/{run}/explain?step=gates%5B0%5D/ask")).data(200);
    assert_eq!((&explained["step"], &explained["details"]["kind"]), (&json!("gates[0]/ask"), &json!("approval")));
    assert_eq!(
        server.get(&format!("/api/v1/runs/{run}/explain?step=gates%5B1%5D/ask")).refusal(422),
        "invalid_parameter"
    );
    server.verify();
}

/// The person who started the run cannot approve what it asks for, neither in the run nor in its children.
#[test]
fn t15_p14_the_initiator_of_a_run_cannot_approve_where_that_is_excluded() {
    let server = Server::start();
    server.define(
        "name: gate\ntasks: { ask: { approval: { prompt: p, approvers: [ada, eve], exclude_initiator: true } } }",
    );
    server.define("name: caller\ntasks: { call: { subworkflow: gate } }");
    let started = |answer: crate::harness::Answer| answer.data(201)["run_id"].as_str().expect("an id").to_owned();
    let settle = |run: &str, initiator: &str, other: &str| {
        let view = server.when(run, "ask", "waiting");
        assert_eq!(view["trigger"]["actor"], initiator, "{view:#}");
        assert_eq!(decide(&server, run, "approve", &json!({ "actor": initiator })).refusal(403), "not_an_approver");
        decide(&server, run, "approve", &json!({ "actor": other })).data(200);
        assert_eq!(server.finished(run)["status"], "completed");
    };
    let first = started(server.post("/api/v1/workflows/gate/trigger?actor=eve", &json!({})));
    settle(&first, "eve", "ada");
    let replayed = server.post(&format!("/api/v1/runs/{first}/replay"), &json!({ "actor": "ada" })).data(201);
    settle(replayed["run_id"].as_str().unwrap(), "ada", "eve");
    let manual = json!({ "workflow": "gate", "actor": "eve" });
    settle(&started(server.post("/api/v1/triggers/manual/run", &manual)), "eve", "ada");
    let items = json!({ "items": [{ "body": 1 }] });
    let batch = server.post("/api/v1/workflows/gate/trigger-batch?actor=eve", &items).data(201);
    settle(batch[0]["run_id"].as_str().unwrap(), "eve", "ada");
    let trigger = json!({ "name": "t", "type": "manual", "workflow": "gate" });
    let id = server.post("/api/v1/triggers", &trigger).data(201)["id"].as_str().unwrap().to_owned();
    settle(&started(server.post(&format!("/api/v1/triggers/{id}/run"), &json!({ "actor": "eve" }))), "eve", "ada");
    let url = format!("http://{}", server.nodes()[0]);
    let said = onward(&["trigger", "gate", "--actor", "eve", "--url", &url]);
    settle(String::from_utf8_lossy(&said.stdout).trim(), "eve", "ada");

    let parent = started(server.post("/api/v1/workflows/caller/trigger?actor=eve", &json!({})));
    let view = server.when(&parent, "call", "waiting");
    let child = view["tasks"]["call"]["child"]["run_id"].as_str().unwrap().to_owned();
    eventually("the child exists", || (server.get(&format!("/api/v1/runs/{child}")).status == 200).then_some(()));
    settle(&child, "eve", "ada");
    assert_eq!(server.finished(&parent)["status"], "completed");
    let long = "x".repeat(1_025);
    let refused = server.post(&format!("/api/v1/workflows/gate/trigger?actor={long}"), &json!({}));
    assert_eq!(refused.refusal(422), "invalid_parameter");
    let anonymous = server.trigger("gate", &json!({}));
    assert_eq!(server.when(&anonymous, "ask", "waiting")["trigger"]["actor"], Value::Null);
    server.verify();
}

/// A signal that a run cannot take now is not acknowledged: the sender repeats it.
#[test]
fn m21_a_delivery_that_a_run_cannot_take_is_not_lost() {
    let server = Server::start();
    let workflow = server.workflow(
        "first: { wait_for_signal: { name: go } }\nsecond: { needs: [first], wait_for_signal: { name: paid } }",
    );
    let config = json!({ "path": "full", "unsigned": true, "signal": { "name": "paid", "correlate": "$.order", "label": "order" } });
    let trigger = json!({ "name": "full", "type": "webhook", "workflow": workflow, "config": config });
    let id = server.post("/api/v1/triggers", &trigger).data(201)["id"].as_str().expect("an id").to_owned();
    let start = || {
        let path = format!("/api/v1/workflows/{workflow}/trigger?label=order:7");
        server.post(&path, &json!({})).data(201)["run_id"].as_str().expect("an id").to_owned()
    };
    let (full, other) = (start(), start());
    (0..1_000).for_each(|n| drop(signal(&server, &full, "noise", &json!(n))));
    let deliver = || server.post_with("/webhooks/full", &[("webhook-id", "d1")], &json!({ "order": 7 }));
    assert_eq!(deliver().refusal(503), "run_full");
    assert_eq!(deliver().refusal(503), "run_full", "again, and not as a repeat of what was done");
    let log = server.list(&format!("/api/v1/triggers/{id}/deliveries"));
    assert!(log.iter().all(|line| line["outcome"] == "rejected" && line["reason"] == "run_full"), "{log:?}");
    server.cancel(&full);
    let done = deliver().data(202);
    assert_eq!(done["signalled"], 1, "{done:#}");
    assert_eq!(server.run(&other)["unread_signals"], json!({ "paid": 1 }), "it got the signal once");
    assert_eq!(deliver().data(200)["deduplicated"], true);
    server.verify();
}

#[test]
fn m21_a_webhook_signals_every_open_run_with_the_label_once_for_each_delivery() {
    let mut server = Server::start();
    let workflow = server.workflow(
        "paid: { wait_for_signal: { name: paid } }\nagain: { needs: [paid], wait_for_signal: { name: paid } }",
    );
    let config = json!({ "path": "payments", "unsigned": true, "signal": { "name": "paid", "correlate": "$.data.order", "label": "order" } });
    server
        .post("/api/v1/triggers", &json!({ "name": "p", "type": "webhook", "workflow": workflow, "config": config }))
        .data(201);
    let start = |order: u32| {
        let path = format!("/api/v1/workflows/{workflow}/trigger?label=order:{order}");
        server.post(&path, &json!({})).data(201)["run_id"].as_str().expect("an id").to_owned()
    };
    let (first, second, other) = (start(7), start(7), start(8));
    let deliver = |server: &Api, id: &str, order: u32| {
        let body = json!({ "data": { "order": order }, "amount": 40 });
        server.post_with("/webhooks/payments", &[("webhook-id", id)], &body)
    };
    assert_eq!(deliver(&server, "d1", 7).data(202)["signalled"], 2);
    for run in [&first, &second] {
        let view = server.when(run, "again", "waiting");
        assert_eq!(view["tasks"]["paid"]["body"], json!({ "data": { "order": 7 }, "amount": 40 }));
    }
    server.crash_and_restart();
    let repeated = deliver(&server, "d1", 7).data(200);
    assert_eq!((&repeated["signalled"], &repeated["deduplicated"]), (&json!(2), &json!(true)));
    assert_eq!(deliver(&server, "d1", 8).refusal(422), "delivery_id_reused");
    assert_eq!(deliver(&server, "d2", 9).data(202)["signalled"], 0, "no run has this label");
    for run in [&first, &second, &other] {
        assert!(!crate::harness::is_terminal(&server.run(run)), "it waits for one more signal");
    }
    assert_eq!(deliver(&server, "d3", 7).data(202)["signalled"], 2);
    assert_eq!(server.finished(&first)["status"], "completed");
    let log = server.list("/api/v1/triggers");
    let id = log[0]["id"].as_str().expect("an id");
    let outcomes: Vec<Value> = server
        .list(&format!("/api/v1/triggers/{id}/deliveries"))
        .iter()
        .filter(|line| line["outcome"] != "rejected")
        .map(|line| json!([line["id"], line["outcome"], line["reason"]]))
        .collect();
    assert_eq!(
        outcomes,
        [json!(["d3", "signalled", "2"]), json!(["d2", "skipped", "no_match"]), json!(["d1", "signalled", "2"])]
    );
    server.verify();
}

/// The process dies in the middle of a delivery's signals, or when all are sent and the delivery is not in the log.
#[test]
fn m21_a_delivery_signals_each_run_once_wherever_the_process_dies() {
    if one_node_only("only the process that reaches the point dies") {
        return;
    }
    const RUNS: usize = 5;
    for crash in ["signal_sent:1", "signal_sent:3", "signal_sent:5"] {
        let mut server = Server::start();
        let workflow = server.workflow("paid: { wait_for_signal: { name: paid } }\nhold: { needs: [paid], pause: {} }");
        let config = json!({ "path": "payments", "unsigned": true, "signal": { "name": "paid", "correlate": "$.order", "label": "order" } });
        let trigger = json!({ "name": "p", "type": "webhook", "workflow": workflow, "config": config });
        let trigger = server.post("/api/v1/triggers", &trigger).data(201)["id"].as_str().expect("an id").to_owned();
        let start = |order: u32| {
            let path = format!("/api/v1/workflows/{workflow}/trigger?label=order:{order}");
            server.post(&path, &json!({})).data(201)["run_id"].as_str().expect("an id").to_owned()
        };
        let runs: Vec<String> = (0..RUNS).map(|_| start(7)).collect();
        let other = start(8);
        runs.iter().for_each(|run| drop(server.when(run, "paid", "waiting")));
        server.kill();
        assert!(server.start_with(&[("ONWARD_CRASH".into(), crash.into())]), "{crash}");
        let body = json!({ "order": 7, "n": 1 }).to_string();
        let headers = [("content-type", "application/json"), ("webhook-id", "d1")];
        let deliver = |server: &Server| server.try_send("POST", "/webhooks/payments", &headers, body.as_bytes());
        let cut_off = deliver(&server);
        assert!(cut_off.is_err(), "{crash} was not reached: {cut_off:?}");
        server.start_again();
        let before: usize = runs.iter().map(|run| events_of(&server, run, "signal.received").len()).sum();
        let sent: usize = crash["signal_sent:".len()..].parse().expect("a number");
        assert_eq!(before, sent, "{crash}: what was sent is durable");
        let log = |server: &Server| server.list(&format!("/api/v1/triggers/{trigger}/deliveries"));
        assert_eq!(log(&server).len(), 0, "{crash}: the delivery is not over");
        // The sender has no answer, so it sends the delivery again, and once more.
        assert_eq!(deliver(&server).expect("an answer").data(202)["signalled"], RUNS);
        let again = deliver(&server).expect("an answer").data(200);
        assert_eq!((&again["signalled"], &again["deduplicated"]), (&json!(RUNS), &json!(true)));
        for run in &runs {
            assert_eq!(events_of(&server, run, "signal.received").len(), 1, "{crash}: {run} has it once");
            let view = server.when(run, "hold", "waiting");
            assert_eq!(view["tasks"]["paid"]["body"], json!({ "order": 7, "n": 1 }));
            assert_eq!(view.get("unread_signals").filter(|unread| **unread != json!({})), None, "{crash}: {view:#}");
        }
        assert_eq!(events_of(&server, &other, "signal.received").len(), 0, "{crash}: another order");
        let lines = log(&server);
        assert_eq!((lines.len(), &lines[0]["outcome"]), (1, &json!("signalled")), "{crash}: one line for a delivery");
        server.verify();
    }
}
