//! Prepared situations: how a run gets there, what the explanation says first, and that its first remedy, sent exactly
//! as it is printed, moves the run on. The rows of the table are data; [`check`] knows the API.

use crate::harness::{Act, Server, Upstream, WAIT_MAX, eventually, status};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One thing that happens on the way to a situation. `$UP` is an upstream server, `$DOWN` one whose every answer is 503,
/// `$RUN` the run.
enum Do {
    /// Creates a workflow.
    Define(&'static str),
    /// Starts a run of the workflow that was created last. The last run that was started is explained.
    Start(&'static str),
    /// Submits a task, whose run is explained.
    Submit(&'static str),
    /// A request that succeeds: method, path and body.
    Send(&'static str, &'static str, &'static str),
    Advance(&'static str),
    /// A worker claims a task of this type and keeps it.
    Claim(&'static str),
    /// A worker waits for tasks of this type, and keeps what it gets.
    Listen(&'static str),
    /// Until a step has this status.
    When(&'static str, &'static str),
}
use Do::*;

/// Any step: which one is first depends on the time.
const ANY: &str = "*";

/// What the remedy changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    /// The history of the run goes on.
    TheRun,
    /// There is a new run.
    ANewRun,
}
use Moves::*;

struct Situation {
    name: &'static str,
    way: Vec<Do>,
    /// Asks about this step; if empty, about the run.
    about: &'static str,
    /// The first cause: reason, step and a part of the sentence.
    reason: &'static str,
    step: &'static str,
    says: &'static str,
    /// The last link of its chain, such as `type mail.v1`; not checked if empty.
    root: &'static str,
    /// Its first action that is not `wait`.
    remedy: &'static str,
    moves: Moves,
    flags: &'static [&'static str],
}

fn situation(
    name: &'static str,
    way: impl IntoIterator<Item = Do>,
    (reason, step, says): (&'static str, &'static str, &'static str),
    remedy: &'static str,
) -> Situation {
    let moves = if remedy == "replay" { ANewRun } else { TheRun };
    let way = way.into_iter().collect();
    Situation { name, way, about: "", reason, step, says, root: "", remedy, moves, flags: &[] }
}

impl Situation {
    fn about(self, about: &'static str) -> Situation {
        Situation { about, ..self }
    }

    fn root(self, root: &'static str) -> Situation {
        Situation { root, ..self }
    }

    fn flags(self, flags: &'static [&'static str]) -> Situation {
        Situation { flags, ..self }
    }
}

/// Steps that are at work, wait for time, or failed.
fn steps() -> Vec<Situation> {
    vec![
        situation(
            "an attempt is under way",
            [Define("name: busy\ntasks: { a: { url: $UP/held } }"), Start("{}"), When("a", "running")],
            ("step_running", "a", "`a` is on attempt 1"),
            "cancel",
        )
        .root("step a"),
        situation(
            "a step waits for its next attempt",
            [
                Define("name: flaky\ntasks: { ship: { url: $UP/down, retry: { max_attempts: 9, backoff: { type: fixed, min: 40s } } } }"),
                Start("{}"),
                When("ship", "retrying"),
            ],
            ("waiting_for_retry", "ship", "`ship` failed: the server answered 503 (127.0.0.1); next try in "),
            "retry_now",
        )
        .root("step ship"),
        situation(
            "a step failed several times",
            [
                Define("name: flakier\ntasks: { ship: { url: $UP/down, retry: { max_attempts: 9, backoff: { type: fixed, min: 40s } } } }"),
                Start("{}"),
                When("ship", "retrying"),
                Advance("90s"),
            ],
            ("waiting_for_retry", "ship", "`ship` failed 3 times, last: the server answered 503 (127.0.0.1); next try in "),
            "retry_now",
        ),
        situation(
            "every attempt failed",
            [
                Define("name: doomed\ntasks: { a: { url: $UP/down, retry: { max_attempts: 2, backoff: { type: fixed, min: 1s } } } }"),
                Start("{}"),
                When("a", "retrying"),
                Advance("2s"),
            ],
            ("retry_exhausted", "a", "`a` failed 2 times, last: the server answered 503"),
            "retry",
        ),
        situation(
            "a step failed, and nothing handled it",
            [Define("name: refused\ntasks: { pay: { url: $UP/bad }, ship: { noop: {}, needs: [pay] } }"), Start("{}")],
            ("step_failed", "pay", "`pay` failed: the server answered 400 (127.0.0.1); no step handled it"),
            "retry",
        )
        .root("step pay"),
        situation(
            "a template cannot be filled in",
            [Define("name: hole\ntasks: { a: { url: $UP/ok, body: '{{trigger.body.nothing}}' } }"), Start("{}")],
            ("template_error", "a", "Failed to resolve {{trigger.body.nothing}}"),
            "retry",
        ),
        situation(
            "a step was skipped by its condition",
            [Define("name: picky\ntasks: { a: { noop: {} }, b: { noop: {}, needs: [a], if: trigger.body.n > 3 } }"), Start(r#"{"n": 2}"#)],
            ("skipped_by_condition", "b", "because trigger.body.n was 2"),
            "replay",
        )
        .about("b"),
        situation(
            "a step was skipped because of another",
            [Define("name: chained\ntasks: { a: { url: $UP/bad }, b: { noop: {}, needs: [a] } }"), Start("{}")],
            ("skipped_by_needs", "b", "`a` is failed"),
            "retry",
        )
        .about("b"),
        situation(
            "a step sleeps",
            [Define("name: sleepy\ntasks: { a: { sleep: 30d } }"), Start("{}"), When("a", "sleeping")],
            ("sleeping_until", "a", "`a` sleeps until"),
            "cancel",
        ),
        situation(
            "a step waits for others",
            [Define("name: join\ntasks: { a: { sleep: 30d }, b: { noop: {} }, c: { noop: {}, needs: [a, b] } }"), Start("{}"), When("b", "success")],
            ("waiting_for_dependencies", "c", "`c` waits for `a`"),
            "cancel",
        )
        .about("c"),
        situation(
            "the host is down",
            [
                Define("name: outage\ntasks: { a: { url: $DOWN/x }, b: { url: $DOWN/x }, c: { url: $DOWN/x } }"),
                Start("{}"),
                Start("{}"),
                Start("{}"),
                Start("{}"),
                Advance("3m"),
            ],
            ("waiting_for_retry", ANY, "seems to be down"),
            "retry_now",
        ),
        situation(
            "requests queue for a free slot",
            [
                Define("name: crowd\ntasks: { a: { url: $UP/held } }"),
                Start("{}"),
                When("a", "running"),
                Define("name: late\ntasks: { b: { url: $UP/held } }"),
                Start("{}"),
            ],
            ("queued_by_limit", "b", "`b` waits to send its request: 1 of this organisation are under way"),
            "cancel",
        )
        .flags(&["--http-per-organisation", "1"]),
    ]
}

/// Steps that wait for people and other systems.
fn waits() -> Vec<Situation> {
    vec![
        situation(
            "a step waits for a callback",
            [
                Define("name: callback\ntasks: { a: { wait_for_webhook: { timeout: 30d } } }"),
                Start("{}"),
                When("a", "waiting"),
            ],
            ("waiting_for_webhook", "a", "`a` waits for a call to its URL until"),
            "call_webhook",
        ),
        situation(
            "a step waits for a signal",
            [
                Define("name: signal\ntasks: { a: { wait_for_signal: { name: paid } } }"),
                Start("{}"),
                When("a", "waiting"),
            ],
            ("waiting_for_signal", "a", "`a` waits for the signal `paid`"),
            "send_signal",
        ),
        situation(
            "a step waits for an approval",
            [Define("name: gate\ntasks: { a: { approval: { prompt: 'Ship?' } } }"), Start("{}"), When("a", "waiting")],
            ("paused_for_approval", "a", "Ship?"),
            "approve",
        ),
        situation(
            "a step waits for one of its approvers",
            [
                Define("name: gate-of-ada\ntasks: { a: { approval: { prompt: 'Ship?', approvers: [ada, bob] } } }"),
                Start("{}"),
                When("a", "waiting"),
            ],
            ("paused_for_approval", "a", "`a` waits for an approval until"),
            "approve",
        ),
        situation(
            "a pause step",
            [Define("name: hold\ntasks: { a: { pause: {} } }"), Start("{}"), When("a", "waiting")],
            ("paused_for_manual_action", "a", "`a` waits to be resumed"),
            "resume",
        ),
        situation(
            "an operator paused the run",
            [
                Define("name: stopped\ntasks: { a: { sleep: 30d } }"),
                Start("{}"),
                Send("POST", "/api/v1/runs/$RUN/pause", r#"{"actor": "ada", "note": "the bank is down"}"#),
            ],
            ("paused_for_manual_action", "", "the run was paused by ada (the bank is down)"),
            "resume",
        ),
        situation(
            "a step of a paused run",
            [
                Define("name: stopped-task\ntasks: { a: { task: stopped.v1 } }"),
                Start("{}"),
                Send("POST", "/api/v1/runs/$RUN/pause", "{}"),
            ],
            ("paused_for_manual_action", "a", "`a` starts when the run is resumed"),
            "resume",
        )
        .about("a"),
        situation(
            "the workflow is paused",
            [
                Define("name: closed\ntasks: { a: { noop: {} } }"),
                Send("POST", "/api/v1/workflows/closed/pause", r#"{"actor": "ada"}"#),
                Start("{}"),
            ],
            ("paused_for_manual_action", "", "the workflow `closed` is paused by ada"),
            "resume",
        )
        .root("workflow closed"),
        situation(
            "other runs of the group are open",
            [Define("name: single\nconcurrency: { limit: 1 }\ntasks: { a: { sleep: 30d } }"), Start("{}"), Start("{}")],
            ("queued_by_limit", "", "`single` allows 1 open run, and no run queues before this one"),
            "cancel",
        ),
        situation(
            "the run starts later",
            [Submit(r#"{"type": "later.v1", "delay": "30d"}"#)],
            ("scheduled_for_later", "", "the run is scheduled for"),
            "cancel",
        ),
    ]
}

/// Tasks, workers and types.
fn tasks() -> Vec<Situation> {
    const LIMITED: &str = r#"{"concurrency": {"limit": 1}}"#;
    const LIMITED_BY_KEY: &str = r#"{"concurrency": {"per_key": 1}}"#;
    const RATED: &str = r#"{"rate": {"limit": 1, "per": "1h"}}"#;
    vec![
        situation(
            "no worker ever",
            [Define("name: lonely\ntasks: { a: { task: lonely.v1 } }"), Start("{}")],
            ("waiting_for_worker", "a", "no worker claims `lonely.v1`, and none ever did"),
            "cancel",
        )
        .root("type lonely.v1"),
        situation(
            "the workers are gone",
            [Submit(r#"{"type": "left.v1"}"#), Claim("left.v1"), Submit(r#"{"type": "left.v1"}"#), Advance("10m")],
            ("waiting_for_worker", "task", "no worker claims `left.v1`; one was last seen at"),
            "cancel",
        )
        .root("type left.v1"),
        situation(
            "the workers are busy",
            [Submit(r#"{"type": "busy.v1"}"#), Claim("busy.v1"), Submit(r#"{"type": "busy.v1"}"#)],
            ("waiting_for_worker", "task", "1 worker claims `busy.v1` and is busy"),
            "cancel",
        ),
        situation(
            "a worker has the task",
            [Submit(r#"{"type": "held.v1"}"#), Claim("held.v1")],
            ("step_running", "task", "`task` is with worker `w-held.v1`, on attempt 1"),
            "cancel",
        ),
        situation(
            "the type is paused",
            [
                Submit(r#"{"type": "paused.v1"}"#),
                Send("POST", "/api/v1/types/paused.v1/pause", r#"{"note": "the mailer is down"}"#),
                Listen("paused.v1"),
            ],
            ("queued_by_limit", "task", "the type `paused.v1` is paused (the mailer is down)"),
            "resume_type",
        )
        .root("type paused.v1"),
        situation(
            "the type is disabled",
            [
                Submit(r#"{"type": "off.v1"}"#),
                Send("PUT", "/api/v1/types/off.v1", r#"{"enabled": false}"#),
                Listen("off.v1"),
            ],
            ("queued_by_limit", "task", "the type `off.v1` is disabled"),
            "enable_type",
        )
        .root("type off.v1"),
        situation(
            "the type is at its limit",
            [
                Send("PUT", "/api/v1/types/few.v1", LIMITED),
                Submit(r#"{"type": "few.v1"}"#),
                Claim("few.v1"),
                Submit(r#"{"type": "few.v1"}"#),
            ],
            ("queued_by_limit", "task", "1 tasks of the type may be leased at once"),
            "cancel",
        ),
        situation(
            "the key is at its limit",
            [
                Send("PUT", "/api/v1/types/keyed.v1", LIMITED_BY_KEY),
                Submit(r#"{"type": "keyed.v1", "concurrency_key": "a"}"#),
                Claim("keyed.v1"),
                Submit(r#"{"type": "keyed.v1", "concurrency_key": "a"}"#),
            ],
            ("queued_by_limit", "task", "1 tasks with its key may be leased at once"),
            "cancel",
        ),
        situation(
            "the rate of the type is used up",
            [
                Send("PUT", "/api/v1/types/slow.v1", RATED),
                Submit(r#"{"type": "slow.v1"}"#),
                Claim("slow.v1"),
                Submit(r#"{"type": "slow.v1"}"#),
            ],
            ("queued_by_limit", "task", "the rate of the type allows the next task at"),
            "cancel",
        ),
        situation(
            "the task killed its workers",
            [
                Submit(r#"{"type": "poison.v1"}"#),
                Claim("poison.v1"),
                Advance("2m"),
                Claim("poison.v1"),
                Advance("2m"),
                Claim("poison.v1"),
                Advance("2m"),
            ],
            ("step_failed", "task", "`task` is quarantined: 3 workers died or fell silent doing this"),
            "retry",
        ),
        situation(
            "a dead letter",
            [
                Submit(
                    r#"{"type": "dead.v1", "max_attempts": 2, "retry": {"backoff": {"type": "fixed", "min": "1s"}}}"#,
                ),
                Claim("dead.v1"),
                Send(
                    "POST",
                    "/api/v1/tasks/$TASK/fail",
                    r#"{"claim_token": "$TOKEN", "error": {"message": "no such account"}}"#,
                ),
                Advance("2s"),
                Claim("dead.v1"),
                Send(
                    "POST",
                    "/api/v1/tasks/$TASK/fail",
                    r#"{"claim_token": "$TOKEN", "error": {"message": "no such account"}}"#,
                ),
            ],
            ("retry_exhausted", "task", "`task` failed 2 times, last: no such account"),
            "retry",
        ),
    ]
}

/// Steps inside of others, and runs that start others.
fn nested() -> Vec<Situation> {
    vec![
        situation(
            "an iteration waits, and the others are done",
            [
                Define("name: looping\ntasks: { each: { loop: { items: [1, 2, 3], concurrency: 3, tasks: { w: { if: index == 1, wait_for_signal: { name: go } } } } } }"),
                Start("{}"),
            ],
            ("waiting_for_signal", "each[1]/w", "`each[1]/w` waits for the signal `go`"),
            "send_signal",
        )
        .root("step each[1]/w"),
        situation(
            "one step of a group failed, and another goes on",
            [
                Define("name: grouped\ntasks: { g: { group: { on_error: finish, tasks: { bad: { url: $UP/bad }, nap: { sleep: 30d } } } } }"),
                Start("{}"),
            ],
            ("step_failed", "g/bad", "`g/bad` failed: the server answered 400 (127.0.0.1); no step handles it"),
            "cancel",
        )
        .root("step g/bad"),
        situation(
            "a step failed, and another one sleeps",
            [Define("name: half\ntasks: { bad: { url: $UP/bad }, nap: { sleep: 30d } }"), Start("{}")],
            ("step_failed", "bad", "no step handles it"),
            "cancel",
        ),
        situation(
            "a group failed the run",
            [Define("name: lost-group\ntasks: { g: { group: { tasks: { bad: { url: $UP/bad } } } } }"), Start("{}")],
            ("step_failed", "g", "`g` failed"),
            "retry",
        )
        .root("step g/bad"),
        situation(
            "an iteration failed the run",
            [Define("name: lost-loop\ntasks: { l: { loop: { items: [1], tasks: { bad: { url: $UP/bad } } } } }"), Start("{}")],
            ("step_failed", "l", "iteration 0"),
            "retry",
        )
        .root("step l[0]/bad"),
        situation(
            "the first of several",
            [
                Define("name: race\ntasks: { a: { sleep: 30d }, b: { wait_for_signal: { name: go, timeout: 1d } }, c: { noop: {}, needs: { any: [a, b] } } }"),
                Start("{}"),
                When("b", "waiting"),
            ],
            ("waiting_for_signal", "b", "`b` waits for the signal `go`"),
            "send_signal",
        ),
        situation(
            "a child waits for an approval",
            [
                Define("name: asks\ntasks: { ask: { approval: { prompt: 'Pay 7?' } } }"),
                Define("name: asking\ntasks: { pay: { subworkflow: asks } }"),
                Start("{}"),
            ],
            ("waiting_for_child", "pay", "a run of `asks`: `ask` waits for an approval until"),
            "approve",
        )
        .root("step ask"),
        situation(
            "a child has no worker",
            [
                Define("name: bills\ntasks: { charge: { task: billing.charge.v1 } }"),
                Define("name: billing\ntasks: { pay: { subworkflow: bills } }"),
                Start("{}"),
            ],
            ("waiting_for_child", "pay", "`charge` waits for a worker: no worker claims `billing.charge.v1`"),
            "cancel",
        )
        .root("type billing.charge.v1"),
        situation(
            "the child of a child is in a paused workflow",
            [
                Define("name: leaf\ntasks: { a: { noop: {} } }"),
                Send("POST", "/api/v1/workflows/leaf/pause", "{}"),
                Define("name: middle\ntasks: { call: { subworkflow: leaf } }"),
                Define("name: top\ntasks: { call: { subworkflow: middle } }"),
                Start("{}"),
            ],
            ("waiting_for_child", "call", "a run of `middle`: the workflow `leaf` is paused"),
            "resume",
        )
        .root("workflow leaf"),
        situation(
            "a child failed",
            [
                Define("name: breaks\ntasks: { work: { url: $UP/bad } }"),
                Define("name: calls\ntasks: { call: { subworkflow: breaks, retry: never } }"),
                Start("{}"),
            ],
            ("step_failed", "call", "`call` failed"),
            "retry",
        )
        .root("step work"),
    ]
}

/// Runs that have ended.
fn ended() -> Vec<Situation> {
    vec![
        situation(
            "cancelled",
            [
                Define("name: dropped\ntasks: { a: { sleep: 30d } }"),
                Start("{}"),
                Send("POST", "/api/v1/runs/$RUN/cancel", r#"{"actor": "ada"}"#),
            ],
            ("cancelled", "", "ada cancelled the run"),
            "replay",
        ),
        situation(
            "out of time",
            [Define("name: slow\nmax_duration: 1h\ntasks: { a: { sleep: 1d } }"), Start("{}"), Advance("2h")],
            ("expired", "", "when its time limit expired"),
            "retry",
        ),
        situation(
            "completed",
            [Define("name: fine\ntasks: { a: { noop: {} }, b: { noop: {}, needs: [a] } }"), Start("{}")],
            ("completed", "", "all 2 steps have settled"),
            "replay",
        ),
        situation(
            "completed, with a failure that a step handled",
            [
                Define(
                    "name: healed\ntasks: { pay: { url: $UP/bad }, refund: { noop: {}, needs: [pay], if: tasks.pay.failed } }",
                ),
                Start("{}"),
            ],
            ("completed", "", "`pay` failed, which `refund` handled"),
            "replay",
        ),
        situation(
            "a step timed out",
            [
                Define("name: deadline\ntasks: { a: { wait_for_signal: { name: go, timeout: 1h } } }"),
                Start("{}"),
                When("a", "waiting"),
                Advance("2h"),
            ],
            ("step_timeout", "a", "`a` ran out of time"),
            "retry",
        ),
    ]
}

/// A server and what the situations on it share.
struct World {
    server: Server,
    upstream: Upstream,
    down: Upstream,
}

impl World {
    fn new(flags: &[&str]) -> World {
        let (upstream, down) = (Upstream::start(), Upstream::start());
        upstream.on("/held", [Act::Held(Box::new(status(200)))]);
        upstream.on("/down", [status(503)]);
        upstream.on("/bad", [status(400)]);
        down.on("/x", [status(503)]);
        // Other nodes learn of a worker only after a while.
        let server = Server::alone(&[&["--clock", "virtual"], flags].concat());
        World { server, upstream, down }
    }

    fn explain(&self, run: &str, about: &str) -> Value {
        let query = if about.is_empty() { String::new() } else { format!("?step={about}") };
        self.server.get(&format!("/api/v1/runs/{run}/explain{query}")).data(200)
    }

    /// Goes the way to a situation. Returns the run.
    fn go(&self, way: &[Do]) -> String {
        let server = &self.server;
        let (mut workflow, mut run, mut token) = (String::new(), String::new(), String::new());
        for step in way {
            match step {
                Define(yaml) => {
                    let yaml = self.down.fill(&self.upstream.fill(yaml).replace("$DOWN", "$UP"));
                    workflow = server.define(&yaml)["id"].as_str().expect("an id").to_owned();
                }
                Start(body) => run = server.trigger(&workflow, &body.parse().expect("JSON")),
                Submit(request) => {
                    run = server.submit_with(&request.parse().expect("JSON")).replace("task_", "run_");
                }
                Send(method, path, body) => {
                    let task = run.replace("run_", "task_");
                    let fill =
                        |text: &str| text.replace("$RUN", &run).replace("$TASK", &task).replace("$TOKEN", &token);
                    let answer = send(server, method, &fill(path), Some(&fill(body)));
                    assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
                }
                Advance(by) => drop(server.advance(by)),
                Claim(name) => token = server.claim_one(&format!("w-{name}"), name).token().to_owned(),
                Listen(name) => {
                    let worker = format!("w-{name}");
                    drop(server.claim_later(json!({ "worker_id": worker, "types": [name], "wait": "60s" })));
                    server.worker_when_seen(&worker);
                }
                When(step, status) => drop(server.when(&run, step, status)),
            }
        }
        run
    }
}

fn send(server: &Server, method: &str, path: &str, body: Option<&str>) -> crate::harness::Answer {
    let headers: &[(&str, &str)] = if body.is_some() { &[("Content-Type", "application/json")] } else { &[] };
    server.send(method, path, headers, body.unwrap_or_default().as_bytes())
}

/// Where a run is: its status and the number of its events.
fn position(server: &Server, run: &str) -> (Value, usize) {
    (server.run(run)["status"].clone(), server.events(run).len())
}

fn check(world: &World, situation: &Situation) {
    let Situation { name, about, reason, says, .. } = situation;
    let server = &world.server;
    let run = world.go(&situation.way);
    let is_said = |explanation: &Value| {
        explanation["reason"] == *reason
            && (situation.step == ANY || explanation["step"].as_str().unwrap_or_default() == situation.step)
            && explanation["summary"].as_str().is_some_and(|summary| summary.contains(says))
    };
    let until = Instant::now() + WAIT_MAX;
    let explanation = loop {
        let explanation = world.explain(&run, about);
        if is_said(&explanation) {
            break explanation;
        }
        assert!(Instant::now() < until, "{name}: {reason} of `{}`: {explanation:#}", situation.step);
        std::thread::sleep(Duration::from_millis(20));
    };
    let first = &explanation["causes"][0];
    for field in ["reason", "summary", "step", "details", "next_actions", "chain"] {
        assert_eq!(explanation.get(field), first.get(field), "{name}: the first cause stands at the top, too");
    }
    assert_eq!(explanation["more_causes"], 0, "{name}");
    let chain = first["chain"].as_array().expect("a list");
    if about.is_empty() {
        assert_eq!((&chain[0]["what"], &chain[0]["name"]), (&json!("run"), &json!(run)), "{name}: {chain:#?}");
    }
    if !situation.root.is_empty() {
        let root = chain.last().expect("a link");
        let root = format!("{} {}", root["what"].as_str().unwrap_or("?"), root["name"].as_str().unwrap_or("?"));
        assert_eq!(root, situation.root, "{name}: {chain:#?}");
    }
    let actions = first["next_actions"].as_array().expect("a list");
    let remedy = actions.iter().find(|action| action["action"] != "wait").expect("an action");
    assert_eq!(remedy["action"], situation.remedy, "{name}: {actions:#?}");

    let before = position(server, &run);
    let (method, path) = (remedy["method"].as_str().expect("a method"), remedy["path"].as_str().expect("a path"));
    // Callback URLs name the server.
    let path = path.find("/wh/").map_or(path, |at| &path[at..]);
    let answer = send(server, method, path, remedy.get("body").map(Value::to_string).as_deref());
    assert!(matches!(answer.status, 200 | 201), "{name}: {method} {path}: {}", answer.text());
    match situation.moves {
        TheRun => {
            eventually(&format!("{name}: {run} moves on"), || (position(server, &run) != before).then_some(()));
        }
        ANewRun => {
            let new = answer.json()["data"]["run_id"].as_str().expect("a run").to_owned();
            assert_ne!(new, run, "{name}");
            assert_eq!(server.run(&new)["replayed_from"], json!(run), "{name}");
        }
    }
}

fn check_all(situations: Vec<Situation>) {
    let world = World::new(&[]);
    for situation in &situations {
        match situation.flags {
            [] => check(&world, situation),
            flags => check(&World::new(flags), situation),
        }
    }
}

#[test]
fn s33_situations_of_steps() {
    check_all(steps());
}

#[test]
fn s33_situations_of_waits() {
    check_all(waits());
}

#[test]
fn s33_situations_of_tasks() {
    check_all(tasks());
}

#[test]
fn s33_situations_of_nested_steps_and_runs() {
    check_all(nested());
}

#[test]
fn s33_situations_of_ended_runs() {
    check_all(ended());
}

/// The table "Explain: a reason and safe next actions for every state" of the promises.
#[test]
fn every_reason_of_the_promised_table_has_a_situation() {
    // Told as events in the engine's own tests, because a run passes these states at once.
    const TOLD: &[&str] = &["pending_dispatch", "step_scheduled", "cancelling"];
    const TABLE: &[&[&str]] = &[
        &["pending_dispatch", "scheduled_for_later"],
        &["step_running", "step_scheduled", "waiting_for_worker", "queued_by_limit"],
        &[
            "sleeping_until",
            "waiting_for_webhook",
            "waiting_for_signal",
            "waiting_for_dependencies",
            "waiting_for_child",
        ],
        &["waiting_for_retry"],
        &["paused_for_approval"],
        &["paused_for_manual_action"],
        &["cancelling"],
        &["completed", "step_failed", "retry_exhausted", "template_error", "cancelled", "expired"],
    ];
    let situations: Vec<Situation> = [steps(), waits(), tasks(), nested(), ended()].into_iter().flatten().collect();
    assert!(situations.len() >= 30);
    for reason in TABLE.iter().copied().flatten().filter(|reason| !TOLD.contains(reason)) {
        assert!(situations.iter().any(|situation| situation.reason == *reason), "{reason}");
    }
}
