//! `onward test`, as people and build servers see it: passing cases, failing cases and the reports.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const ORDER: &str = r#"
name: order
tasks:
  charge:
    url: https://pay.example.com/charge
    retry: { max_attempts: 3, backoff: { type: fixed, min: 10s } }
    body: { order_id: "{{trigger.body.order_id}}", from: "{{trigger.headers.x-from}}" }
  receipt:
    needs: [charge]
    url: https://mail.example.com/send
    body: { text: "paid {{tasks.charge.body.amount}}" }
  refused:
    needs: [charge]
    if: tasks.charge.status_code == 402
    set: { reason: "{{tasks.charge.body.reason}}" }
"#;

pub struct Ran {
    pub code: i32,
    /// Without the milliseconds that differ from run to run.
    pub out: String,
    pub err: String,
}

pub fn onward(folder: &Path, flags: &[&str]) -> Ran {
    let output =
        Command::new(env!("CARGO_BIN_EXE_onward")).arg("test").args(flags).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: without_times(&text(output.stdout)), err: text(output.stderr) }
}

/// `(1 h in 12 ms)` becomes `(1 h)`, and `(12 ms)` goes.
fn without_times(text: &str) -> String {
    let line = |line: &str| match line.strip_suffix(" ms)").and_then(|rest| rest.rsplit_once([' ', '('])) {
        Some((head, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => match head.strip_suffix(" in") {
            Some(head) => format!("{head})\n"),
            None => format!("{}\n", head.trim_end()),
        },
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

/// Runs cases of `definition`.
fn check(definition: &str, cases: &str) -> Ran {
    let folder = folder(&[("w.yaml", definition), ("w.test.yaml", cases)]);
    let ran = onward(folder.path(), &[]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "something was left on disk");
    ran
}

fn passes(definition: &str, cases: &str) {
    let ran = check(definition, cases);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn the_examples_pass_and_their_cases_run_every_step() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let ran = onward(root, &["examples", "--coverage"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("14 cases in 4 files: 14 passed"), "{}", ran.out);
    assert!(!ran.out.contains("never"), "{}", ran.out);
    assert!(ran.out.contains("(14 d)"), "two weeks: {}", ran.out);
}

#[test]
fn retries_backoff_and_timeouts_work_as_in_production() {
    passes(
        ORDER,
        r#"
headers: { X-From: shop }
input: { order_id: 7 }
http: { receipt: 200 }
cases:
  - name: two failures, then paid
    http: { charge: [503, { network: connection refused }, { body: { amount: 5 }, took: 2s }] }
    expect:
      status: completed
      took: 22s
      path: [charge, receipt]
      steps:
        charge:
          attempts: 3
          requests:
            - { method: POST, url: "https://pay.example.com/charge", headers: { X-Onward-Attempt: "1" }, body: { order_id: 7, from: shop } }
            - { headers: { x-onward-attempt: "2", content-type: application/json } }
            - {}
        receipt: { requests: { body: { text: paid 5 } } }
        refused: skipped
  - name: three times nothing
    http: { charge: { timeout: true } }
    expect:
      status: failed
      took: 110s
      steps: { charge: { status: timeout, attempts: 3, error: timeout }, receipt: skipped }
  - name: an answer that takes longer than the step waits is no answer
    http: { charge: [{ status: 200, took: 45s }, { status: 200, body: { amount: 1 } }] }
    expect: { took: 40s, steps: { charge: { status: success, attempts: 2 } } }
  - name: the server says when to come back
    http: { charge: [{ status: 429, headers: { Retry-After: "600" } }, { body: { amount: 1 } }] }
    expect: { took: 10m }
  - name: or on which day
    http: { charge: [{ status: 503, headers: { retry-after: "Tue, 01 Jan 2030 00:20:00 GMT" } }, { body: { amount: 1 } }] }
    expect: { took: 20m }
  - name: refused
    http: { charge: { status: 402, body: { reason: declined } } }
    expect:
      status: completed
      path: [charge, refused]
      steps: { charge: { attempts: 1, status_code: 402 }, refused: { body: { reason: declined } }, receipt: skipped }
  - name: a text that is no JSON is one text
    http: { charge: { status: 402, body: "<b>no</b>" } }
    expect: { steps: { charge: { body: "<b>no</b>" }, refused: { status: template_error, error: template_error } } }
"#,
    );
}

#[test]
fn waits_sleeps_and_cancels_take_no_time() {
    let definition = r#"
name: w
max_duration: 20d
tasks:
  nap: { sleep: 13d }
  payment: { needs: [nap], wait_for_webhook: { timeout: 2d } }
  late: { needs: [payment], if: tasks.payment.status == 'timeout', noop: {} }
  forever: { needs: [payment], if: tasks.payment.body.wait == true, wait_for_webhook: {} }
"#;
    passes(
        definition,
        r#"
now: 2027-03-28T00:00:00Z
cases:
  - name: called after a day
    callbacks: { payment: { after: 1d, body: { ok: true } } }
    expect: { status: completed, took: 14d, steps: { payment: { status: received, body: { ok: true } } } }
  - name: called before the step waits
    callbacks: { payment: { at: 1h, body: hello } }
    expect: { took: 13d, steps: { payment: { status: received, body: hello } } }
  - name: a call at the deadline is late
    callbacks: { payment: { after: 2d, body: {} } }
    expect: { took: 15d, steps: { payment: timeout, late: success } }
  - name: no callback arrives
    callbacks: { payment: { never: true } }
    expect: { took: 15d, path: [nap, payment, late], steps: { forever: skipped } }
  - name: cancelled in its sleep
    cancel_after: 3d
    expect: { status: cancelled, took: 3d, steps: { nap: cancelled } }
  - name: cancelled too late
    cancel_after: 300d
    callbacks: { payment: {} }
    expect: { status: completed, took: 13d }
  - name: waits until its time is up
    callbacks: { payment: { body: { wait: true } } }
    expect: { status: timeout, took: 20d, steps: { forever: cancelled } }
"#,
    );
}

#[test]
fn a_request_under_way_can_be_cancelled() {
    passes(
        ORDER,
        r#"
cases:
  - name: cancelled while it waits for an answer
    input: { order_id: 1 }
    headers: { x-from: shop }
    http: { charge: { status: 200, took: 20s } }
    cancel_after: 5s
    expect: { status: cancelled, took: 5s, steps: { charge: cancelled } }
"#,
    );
}

#[test]
fn differences_are_reported_with_their_place() {
    let cases = r#"input: { order_id: 7 }
headers: { x-from: shop }
http: { receipt: 200, charge: { status: 200, body: { amount: 5, items: [1, 2] } } }
cases:
  - name: everything is expected otherwise
    expect:
      status: failed
      path: [charge, refused]
      took: ">= 1h"
      steps:
        charge:
          status: failed
          attempts: 2
          status_code: 402
          error: http_status
          body: { amount: 6, items: [1], note: hi }
          requests: [{ method: PUT, url: "https://a.example", headers: { x-key: k }, body: { order_id: 8 } }, {}]
        receipt: skipped
      other_steps: success
  - name: this one is fine
    expect: { status: completed }
"#;
    let ran = check(ORDER, cases);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    assert_eq!(
        ran.out,
        r#"w.test.yaml
  FAILED  everything is expected otherwise (0 ms)
          w.test.yaml:7:15 status: expected failed, got completed
          w.test.yaml:8:13 path: expected [charge, refused], got [charge, receipt]
          w.test.yaml:12:19 steps.charge.status: expected failed, got success
          w.test.yaml:13:21 steps.charge.attempts: expected 2, got 1
          w.test.yaml:14:24 steps.charge.status_code: expected 402, got 200
          w.test.yaml:15:18 steps.charge.error: expected http_status, got nothing
          w.test.yaml:16:17 steps.charge.body.amount: expected 6, got 5
          w.test.yaml:16:17 steps.charge.body.items: expected [1], got [1,2]
          w.test.yaml:16:17 steps.charge.body.note: expected "hi", got nothing
          w.test.yaml:17:21 steps.charge.requests: expected 2 requests, got 1 request
          w.test.yaml:17:32 steps.charge.requests[0].method: expected PUT, got POST
          w.test.yaml:17:42 steps.charge.requests[0].url: expected https://a.example, got https://pay.example.com/charge
          w.test.yaml:17:81 steps.charge.requests[0].headers.x-key: expected k, got nothing
          w.test.yaml:17:92 steps.charge.requests[0].body.order_id: expected 8, got 7
          w.test.yaml:18:18 steps.receipt.status: expected skipped, got success
          w.test.yaml:19:20 steps.refused.status: expected success, got skipped
          w.test.yaml:9:13 took: expected >= 1h, got 0ms
          why: all 3 steps have settled, 1 of them skipped
  ok      this one is fine (0 ms)
2 cases in 1 file: 1 passed, 1 failed
"#
    );
}

#[test]
fn a_request_without_an_answer_fails_the_case_with_a_hint() {
    let cases = r#"
cases:
  - name: nothing is scripted
    input: { order_id: 7 }
    headers: { x-from: shop }
    expect: { status: completed }
"#;
    let ran = check(ORDER, cases);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    assert_eq!(
        ran.out,
        r#"w.test.yaml
  FAILED  nothing is scripted (0 ms)
          w.test.yaml:3:11 http.charge: expected an answer, got none for POST https://pay.example.com/charge (attempt 1)
            help: add `http: { charge: { status: 200, body: {} } }` to the case, or to the file for all cases
          why: `charge` is on attempt 1
1 case in 1 file: 0 passed, 1 failed
"#
    );
}

const TASKS: &str = r#"
name: tasks
tasks:
  a: { task: work.v1, input: { n: "{{trigger.body.n}}" }, retry: { max_attempts: 2, backoff: { type: fixed, min: 10s, jitter: 0 } } }
  b: { task: work.v1, needs: [a], input: "{{tasks.a.body}}", timeouts: { total: 1h } }
"#;

#[test]
fn workers_are_played_from_the_script() {
    passes(
        TASKS,
        r#"
input: { n: 1 }
tasks: { work.v1: { result: 7 } }
cases:
  - name: by type
    expect: { status: completed, path: [a, b], took: 0s, steps: { a: { input: { n: 1 }, body: 7 }, b: { input: 7, attempts: 1 } } }
  - name: a case overrides the file, and the last answer repeats
    tasks: { a: [{ error: { message: no }, took: 1s }, { result: { n: 2 }, took: 2s }] }
    expect: { status: completed, took: 13s, steps: { a: { attempts: 2 }, b: { input: { n: 2 } } } }
  - name: the worker knows better when to try again
    tasks: { a: [{ error: { message: no }, retry_after: 1h }, { result: null }] }
    expect: { status: completed, took: 1h, steps: { a: { body: null } } }
  - name: a failure that never ends
    tasks: { a: { error: { message: no, code: broken } } }
    expect: { status: failed, took: 10s, steps: { a: { status: failed, error: broken, attempts: 2 }, b: skipped } }
  - name: snoozes are not charged
    tasks: { a: [{ snooze: 1d }, { snooze: 1d }, { snooze: 1d }, { result: 1 }] }
    expect: { status: completed, took: 3d, steps: { a: { attempts: 4 } } }
  - name: all attempts together take too long
    tasks: { b: { result: 1, took: 2h } }
    expect: { status: failed, took: 1h, steps: { b: { status: timeout, error: total_timeout } } }
  - name: cancelled while a worker works
    tasks: { a: { result: 1, took: 1h } }
    cancel_after: 10m
    expect: { status: cancelled, took: 10m, steps: { a: cancelled, b: cancelled } }
"#,
    );
}

#[test]
fn a_task_without_an_answer_fails_the_case_with_a_hint() {
    let cases = r#"
input: { n: 1 }
cases:
  - name: half of it is scripted
    tasks: { a: { result: { n: 2 } } }
    expect: { status: completed, steps: { a: { input: { n: 2 } } } }
  - name: another input
    tasks: { work.v1: { result: 1 } }
    expect: { steps: { a: { input: { n: 2 } } } }
"#;
    let ran = check(TASKS, cases);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    assert_eq!(
        ran.out,
        r#"w.test.yaml
  FAILED  half of it is scripted (0 ms)
          w.test.yaml:4:11 tasks.b: expected an answer, got none for work.v1 {"n":2} (attempt 1)
            help: add `tasks: { b: { result: {} } }` to the case, or to the file for all cases
          why: `b` is with worker `onward test`, on attempt 1
  FAILED  another input (0 ms)
          w.test.yaml:9:36 steps.a.input.n: expected 2, got 1
          why: all 2 steps have settled
2 cases in 1 file: 0 passed, 2 failed
"#
    );
}

#[test]
fn verbose_output_has_every_event_and_request() {
    let folder = folder(&[
        ("w.yaml", ORDER),
        (
            "w.test.yaml",
            r#"
cases:
  - name: one
    input: { order_id: 7 }
    headers: { x-from: shop }
    http: { charge: [503, { status: 402, body: { reason: no } }] }
    expect: { status: completed }
"#,
        ),
    ]);
    let ran = onward(folder.path(), &["-v"]);
    let expected = r#"w.test.yaml
  ok      one (10 s)
          +0ms        run.created
          +0ms        step.started charge #1
          +0ms        step.retrying charge #1: the server answered 503
          +0ms        run.waiting
          +10s        step.started charge #2
          +10s        run.resumed
          +10s        step.failed charge #2: the server answered 402
          +10s        step.skipped receipt
          +10s        step.succeeded refused
          +10s        run.completed
          charge #1 sent POST https://pay.example.com/charge {"order_id":7,"from":"shop"}
          charge #2 sent POST https://pay.example.com/charge {"order_id":7,"from":"shop"}
1 case in 1 file: 1 passed
"#;
    assert_eq!(ran.out, expected);
    let again = onward(folder.path(), &["-v"]);
    assert_eq!(again.out, expected, "the output is the same every time");
}

#[test]
fn unusable_files_are_reported_like_definitions_and_exit_with_2() {
    let typo = "cases:\n  - name: a\n    http: { chrage: 200 }\n    expect: { status: complete }\n";
    let fine = "cases:\n  - name: fine\n    expect: { status: completed }\n";
    let folder = folder(&[
        ("a.yaml", ORDER),
        ("a.test.yaml", typo),
        ("b.yaml", "name: b\ntasks: { one: { nop: {} } }"),
        ("b.test.yml", fine),
        ("c.json", r#"{"name": "c", "tasks": {"one": {"noop": {}}}}"#),
        ("c.test.json", r#"{"cases": [{"name": "fine", "expect": {"status": "completed"}}]}"#),
        ("d.test.yaml", fine),
        ("e.yaml", "name: e\ntasks: { one: { noop: {} } }"),
        ("e.json", "{}"),
        ("e.test.yaml", fine),
        ("f.test.yaml", "cases: [}"),
        (".hidden/g.test.yaml", "cases: [}"),
        ("node_modules/g.test.yaml", "cases: [}"),
    ]);
    let ran = onward(folder.path(), &[]);
    assert_eq!(ran.code, 2, "{}{}", ran.out, ran.err);
    assert_eq!(ran.out, "c.test.json\n  ok      fine (0 ms)\n1 case in 1 file: 1 passed; 5 files cannot be used\n");
    for line in [
        "error[unknown_case_step]: `chrage` is not a step of this workflow",
        " --> a.test.yaml:3:13",
        "help: did you mean `charge`?",
        "error[invalid_value]: `status` is `complete`, allowed is `completed`, `failed`, `cancelled` or `timeout`",
        "error[no_step_kind]",
        " --> b.yaml:2:",
        "error: d.test.yaml: there is no d.yaml, d.yml or d.json beside it; name the definition with `workflow: FILE`",
        "error: e.test.yaml: e.yaml and e.json both match its name; name one with `workflow: FILE`",
        " --> f.test.yaml:1:9",
    ] {
        assert!(ran.err.contains(line), "`{line}` is missing in:\n{}", ran.err);
    }
    assert!(!ran.err.contains("g.test.yaml"), "{}", ran.err);
}

#[test]
fn wrong_usage_ends_with_2() {
    let folder = folder(&[
        ("w.yaml", "name: w\ntasks: { one: { noop: {} } }"),
        (
            "sub/w.test.yaml",
            "workflow: ../w.yaml\ncases:\n  - { name: one, expect: { status: completed } }\n  - { name: two, expect: { status: failed } }\n",
        ),
        ("empty/readme", ""),
    ]);
    let code = |flags: &[&str]| onward(folder.path(), flags).code;
    assert_eq!(code(&["sub"]), 1);
    assert_eq!(code(&["--filter", "one"]), 0);
    assert_eq!(code(&["sub/w.test.yaml", "sub", "--filter", "two"]), 1);
    for flags in
        [&["empty"][..], &["nowhere"], &["--filter", "no-such-case"], &["--nonsense"], &["--junit", "no/such/x.xml"]]
    {
        let ran = onward(folder.path(), flags);
        assert_eq!(ran.code, 2, "{flags:?}: {}", ran.out);
        assert!(ran.err.starts_with("error: "), "{flags:?}: {}", ran.err);
    }
    let ran = onward(folder.path(), &["sub", "sub/w.test.yaml", "sub"]);
    assert!(ran.out.contains("2 cases in 1 file:"), "a file is run once: {}", ran.out);
}

#[test]
fn json_and_junit_report_the_same() {
    let cases = r#"
cases:
  - name: good
    input: { order_id: 7 }
    headers: { x-from: shop }
    http: { charge: { status: 402, body: { reason: no } } }
    expect: { status: completed }
  - name: bad <&>
    expect: { status: completed, steps: { charge: { status: template_error, error: nothing } } }
"#;
    let folder = folder(&[("w.yaml", ORDER), ("w.test.yaml", cases), ("x.test.yaml", "[]")]);
    let ran = onward(folder.path(), &["--json", "--coverage", "--junit", "report.xml"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, ""), "{}", ran.out);
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [good, bad, broken, coverage] = &lines[..] else { panic!("{}", ran.out) };
    assert_eq!(good["case"], "good");
    assert_eq!((&good["passed"], &good["run"]["status"]), (&true.into(), &"completed".into()));
    assert_eq!(good["run"]["path"], serde_json::json!(["charge", "refused"]));
    assert_eq!(good["run"]["steps"]["charge"], serde_json::json!({ "status": "failed", "attempts": 1 }));
    assert_eq!(bad["passed"], false);
    assert_eq!(bad["failures"][0]["what"], "status");
    assert_eq!(bad["failures"][1]["at"], serde_json::json!({ "line": 9, "column": 84 }));
    assert_eq!((&broken["file"], &broken["problems"][0]["code"]), (&"x.test.yaml".into(), &"wrong_type".into()));
    let never = serde_json::json!(["receipt"]);
    assert_eq!((&coverage["coverage"]["never_ran"], &coverage["coverage"]["ran"]), (&never, &2.into()));
    let junit = std::fs::read_to_string(folder.path().join("report.xml")).unwrap();
    assert!(junit.contains(r#"<testsuite name="w.test.yaml" tests="2" failures="1">"#), "{junit}");
    assert!(junit.contains(r#"name="bad &lt;&amp;&gt;""#), "{junit}");
    assert!(
        junit.contains(r#"<failure message="w.test.yaml:9:23 status: expected completed, got failed">"#),
        "{junit}"
    );
    assert!(junit.contains(r#"<testsuite name="x.test.yaml" tests="1" failures="1">"#), "{junit}");
}

#[test]
fn a_workflow_with_trigger_limits_and_notifications_can_be_tested() {
    let definition = r#"
name: w
enabled: false
concurrency: { key: "{{trigger.body.id}}", limit: 1 }
on_failure: { url: https://ops.example.com/alert }
tasks:
  big: { url: https://a.example.com/ }
  after: { needs: [big], url: "https://a.example.com/{{tasks.big.headers.x-id}}", method: GET }
  elsewhere: { url: "https://{{trigger.body.host}}/", allow_hosts: [b.example.com] }
"#;
    let letters = "x".repeat(20_000);
    let cases = format!(
        r#"
input: {{ id: 1, host: b.example.com }}
http:
  big: {{ headers: {{ X-Id: abc }}, body: {{ letters: {letters} }} }}
  after: 200
  elsewhere: 200
cases:
  - name: a large body and a header travel on
    expect:
      status: completed
      steps:
        big: {{ body: {{ letters: {letters} }} }}
        after: {{ requests: {{ method: GET, url: "https://a.example.com/abc" }} }}
  - name: a host that is not allowed is not called
    input: {{ id: 1, host: evil.example.com }}
    expect: {{ steps: {{ elsewhere: {{ status: failed, error: host_not_allowed, requests: [] }} }} }}
  - name: the run fails, and the notice goes nowhere
    http: {{ big: 404, elsewhere: 404 }}
    expect: {{ status: failed }}
"#
    );
    passes(definition, &cases);
}

#[test]
fn a_schedule_starts_no_runs_beside_the_case() {
    let definition = r#"
name: w
trigger: cron
cron: "* * * * *"
tasks:
  call: { url: https://a.example.com/ }
  nap: { needs: [call], sleep: 13d }
"#;
    let cases = "http: { call: 200 }\ncases:\n  - name: one\n    expect: { took: 13d, path: [call, nap], steps: { call: { requests: {} } } }\n";
    passes(definition, cases);
}
