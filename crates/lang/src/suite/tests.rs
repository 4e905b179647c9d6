use super::*;
use crate::{Syntax, read};
use kernel::{RunStatus, Span, StepStatus};

const WORKFLOW: &str = "
name: order
tasks:
  charge: { url: https://pay.example.com/charge }
  moved: { url: https://pay.example.com/moved, redirects: 2 }
  payment: { needs: [charge], wait_for_webhook: { timeout: 1h } }
  nap: { needs: [payment], sleep: 1d }
";

const WORLD: World = World {
    time: |text| (text == "2027-03-28T00:00:00Z").then_some(Timestamp(7)),
    keeps_header: |name| name != "cookie",
};

fn suite(source: &str) -> Result<Suite, String> {
    let plan = crate::testing::compiled(WORKFLOW).unwrap().plan;
    let lines = |found: Vec<Diagnostic>| found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let tree = read(source.as_bytes(), Syntax::Yaml).map_err(|m| lines(m.0))?;
    read_suite(&tree, &plan, &Definitions::new(), &WORLD).map_err(lines)
}

/// The problems of one case with these fields beside its name.
fn check(fields: &str, problem: &str) {
    let source = format!("cases: [{{ name: a, {fields} }}]");
    let found = suite(&source).err().unwrap_or_else(|| "1:1 ok".into());
    let without_place: Vec<&str> =
        found.lines().map(|line| line.split_once(' ').map_or(line, |(_, rest)| rest)).collect();
    assert_eq!(without_place.join("\n"), problem, "{source}");
}

/// The problems of one case with these inputs.
fn check_given(fields: &str, problem: &str) {
    check(&format!("expect: {{ status: failed }}, {fields}"), problem);
}

#[test]
fn a_case_has_inputs_and_expectations() {
    let suite = suite(
        r#"
now: 2027-03-28T00:00:00Z
input: { id: 1 }
http: { charge: 200, moved: 503 }
cases:
  - name: one
    http: { charge: [503, { status: 402, body: { reason: no }, took: 2s }, { timeout: true }, { network: refused }] }
    callbacks: { payment: { after: 2h, body: paid } }
    cancel_after: 3d
    expect:
      status: failed
      path: [charge, payment]
      steps:
        charge: { status: failed, attempts: 2, status_code: 402, error: http_status, body: { reason: no }, requests: [{ method: post, headers: { X-A: b } }, {}] }
        payment: skipped
      other_steps: skipped
      took: [">= 1h", "< 2h", 5s]
  - name: two
    input: null
    callbacks: { payment: { at: 1m } }
    expect: { took: 1d }
"#,
    )
    .unwrap();
    assert_eq!((suite.now, suite.cases.len()), (Some(Timestamp(7)), 2));
    let Case { given, expect, .. } = &suite.cases[0];
    assert_eq!(given.input, Some(serde_json::json!({ "id": 1 })), "the file's own");
    let (charge, moved, payment) = (0, 1, 2);
    let json = |status: u16, body: &str| Reply::Response {
        status,
        headers: vec![("content-type".into(), "application/json".into())],
        body: body.into(),
    };
    let bare = |status: u16| Reply::Response { status, headers: vec![], body: vec![] };
    let expected = [
        (bare(503), 0),
        (json(402, r#"{"reason":"no"}"#), 2),
        (Reply::Nothing, 0),
        (Reply::Network("refused".into()), 0),
    ];
    let expected = expected.map(|(reply, took)| Scripted { reply, took: Span::from_secs(took) });
    assert_eq!(given.http.get(charge, "charge").unwrap(), &expected, "a case's own script comes before the file's");
    assert_eq!(given.http.get(moved, "moved").unwrap(), &[Scripted { reply: bare(503), took: Span(0) }]);
    let called = GivenCallback { when: When::After(Span::from_secs(7_200)), body: b"paid".to_vec() };
    assert_eq!(given.callbacks.get(payment, "payment"), Some(&called));
    assert_eq!(given.cancel_after, Some(Span::from_days(3)));
    assert_eq!(expect.status.as_ref().map(|s| s.value), Some(RunStatus::Failed));
    assert_eq!(expect.other_steps.as_ref().map(|s| s.value), Some(StepStatus::Skipped));
    assert_eq!(expect.steps[1].2.status.as_ref().map(|s| s.value), Some(StepStatus::Skipped));
    let requests = expect.steps[0].2.requests.as_ref().unwrap();
    assert_eq!((requests.value.len(), &requests.value[1]), (2, &RequestExpect::default()));
    assert_eq!(requests.value[0].method.as_ref().map(|m| m.value.as_str()), Some("POST"));
    assert_eq!(requests.value[0].headers[0].0, "x-a");
    let bounds: Vec<String> = expect.took.iter().map(|b| b.value.to_string()).collect();
    assert_eq!(bounds, [">= 1h", "< 2h", "5s"]);
    let second = &suite.cases[1].given;
    assert_eq!(second.input, Some(serde_json::Value::Null), "null is an input");
    assert_eq!(second.callbacks.get(payment, "payment").unwrap().when, When::At(Span::from_secs(60)));
}

#[test]
fn bounds_hold_at_their_edges() {
    let hour = Span::from_secs(3_600);
    for (order, less, same, more) in [
        (Order::Exactly, false, true, false),
        (Order::AtMost, true, true, false),
        (Order::AtLeast, false, true, true),
        (Order::Less, true, false, false),
        (Order::More, false, false, true),
    ] {
        let bound = Bound { order, span: hour };
        let held = [Span(hour.0 - 1), hour, Span(hour.0 + 1)].map(|took| bound.holds(took));
        assert_eq!(held, [less, same, more], "{order:?}");
    }
}

#[test]
fn an_unknown_step_is_refused_with_a_suggestion() {
    check_given(
        "http: { chrage: 200 }",
        "unknown_case_step cases[0].http.chrage: `chrage` is not a step of this workflow (did you mean `charge`?)",
    );
    let source = "cases:\n  - name: a\n    expect: { status: failed, path: [charg] }";
    assert!(suite(source).unwrap_err().starts_with("3:38 unknown_case_step cases[0].expect.path[0]: `charg`"));
    check(
        "expect: { path: [charge, refund] }",
        "unknown_case_step cases[0].expect.path[1]: `refund` is not a step of this workflow",
    );
    check(
        "expect: { steps: { napp: success } }",
        "unknown_case_step cases[0].expect.steps.napp: `napp` is not a step of this workflow (did you mean `nap`?)",
    );
}

#[test]
fn a_field_that_the_kind_of_a_step_lacks_is_refused() {
    check_given(
        "http: { nap: 200 }",
        "case_step_kind cases[0].http.nap: `nap` is of kind `sleep` and sends nothing (only http steps send something that is answered)",
    );
    check_given(
        "callbacks: { charge: {} }",
        "case_step_kind cases[0].callbacks.charge: `charge` is of kind `http` and waits for no callback (only wait_for_webhook steps do)",
    );
    check(
        "expect: { steps: { nap: { attempts: 1 } } }",
        "case_step_kind cases[0].expect.steps.nap.attempts: `nap` is of kind `sleep` and has no `attempts` (only http, task and subworkflow steps are attempted)",
    );
    check_given(
        "http: { moved: { status: 302 } }",
        "invalid_value cases[0].http.moved.status: `moved` follows redirects (script the final response instead)",
    );
    check_given(
        "headers: { Cookie: a }",
        "reserved_header cases[0].headers.Cookie: the server does not show `cookie` to a run (headers that authorise, sign or transport a request are never stored)",
    );
}

#[test]
fn a_case_that_cannot_fail_is_refused() {
    for expect in ["{}", "{ took: [] }"] {
        let text = "expects nothing (a case that cannot fail proves nothing; begin with `status: completed`)";
        check(&format!("expect: {expect}"), &format!("empty_expectation cases[0].expect: `expect` {text}"));
    }
    check("input: 1", "missing_field cases[0]: a case needs a field `expect`");
    assert_eq!(suite("cases: []").unwrap_err(), "1:8 missing_field cases: `cases` is empty");
    assert_eq!(suite("now: soon").unwrap_err().lines().count(), 2, "every problem at once");
}

#[test]
fn invalid_values_and_fields_are_refused() {
    check_given("htp: {}", "unknown_field cases[0].htp: there is no field `htp` (did you mean `http`?)");
    check_given(
        "http: { charge: { status_code: 200 } }",
        "unknown_field cases[0].http.charge.status_code: there is no field `status_code` (write `status`)",
    );
    check_given(
        "http: { charge: { timeout: true, body: {} } }",
        "exclusive_fields cases[0].http.charge.body: `timeout` and `body` cannot both be given (keep one of them)",
    );
    check_given(
        "http: { charge: { timeout: false } }",
        "invalid_value cases[0].http.charge.timeout: `timeout` can only be true (leave it out otherwise)",
    );
    check_given("http: { charge: 99 }", "out_of_range cases[0].http.charge: `status` is 99, allowed is 200 to 599");
    check_given(
        "http: { charge: [] }",
        "missing_field cases[0].http.charge: a list of answers needs at least one answer",
    );
    check_given(
        "http: { charge: ok }",
        "wrong_type cases[0].http.charge: an answer must be an object or a status, found a text (write `503`, or `{ status: 200, body: { … } }`)",
    );
    check_given(
        "callbacks: { payment: { after: 1h, at: 2h } }",
        "exclusive_fields cases[0].callbacks.payment.at: `after` and `at` cannot both be given (keep one of them)",
    );
    check(
        "expect: { status: running }",
        "invalid_value cases[0].expect.status: `status` is `running`, allowed is `completed`, `failed`, `cancelled` or `timeout`",
    );
    check(
        "expect: { took: '~ 3h' }",
        "invalid_duration cases[0].expect.took: `took` is `~ 3h`, which is not a duration (write `14d`, `<= 3h` or a list such as `[\">= 1h\", \"< 2h\"]`)",
    );
    let twice = "cases: [{ name: a, expect: { took: 1s } }, { name: a, expect: { took: 1s } }]";
    assert_eq!(suite(twice).unwrap_err(), "1:52 duplicate_case cases[1].name: there are two cases `a`");
}

#[test]
fn the_workflow_file_is_read_before_the_rest() {
    let tree = |source: &str| read(source.as_bytes(), Syntax::Yaml).unwrap();
    assert_eq!(workflow_of(&tree("workflow: a.yaml\ncases: 1")), Ok(Some("a.yaml")));
    assert_eq!(workflow_of(&tree("cases: 1")), Ok(None));
    let problem = |source: &str| workflow_of(&tree(source)).unwrap_err()[0].to_string();
    assert_eq!(problem("workflow: 1"), "1:11 wrong_type workflow: `workflow` must be a text, found a number");
    assert_eq!(problem("[]"), "1:1 wrong_type: a test file must be an object, found a list");
}

const WORKED: &str = "
name: invoices
tasks:
  make: { task: billing.invoice.v1 }
  send: { needs: [make], task: mail.send.v1 }
  tell: { needs: [send], task: mail.send.v1 }
  nap: { sleep: 1d }
";

fn worked(source: &str) -> Result<Suite, String> {
    let plan = crate::testing::compiled(WORKED).unwrap().plan;
    let lines = |found: Vec<Diagnostic>| {
        let line = |d: &Diagnostic| d.to_string().split_once(' ').map_or_else(String::new, |(_, rest)| rest.to_owned());
        found.iter().map(line).collect::<Vec<_>>().join("; ")
    };
    read_suite(&read(source.as_bytes(), Syntax::Yaml).unwrap(), &plan, &Definitions::new(), &WORLD).map_err(lines)
}

#[test]
fn workers_are_scripted_by_step_or_by_type() {
    let suite = worked(
        "
tasks: { billing.invoice.v1: { result: { n: 1 } }, tell: { result: null } }
cases:
  - name: one
    tasks:
      mail.send.v1: [{ error: { message: busy }, retry_after: 5s, took: 2s }, { snooze: 1h }, { result: [1] }]
      send: { error: { message: gone, code: no_such_box }, final: true }
    expect: { steps: { send: { attempts: 1, error: no_such_box } } }
",
    )
    .unwrap();
    let given = &suite.cases[0].given.tasks;
    let worked = |report, took| WorkerAttempt { report, took: Span::from_secs(took) };
    let error = |message: &str, code: Option<&str>, is_final, retry_after: Option<u64>| GivenReport::Error {
        message: message.into(),
        code: code.map(str::to_owned),
        is_final,
        retry_after: retry_after.map(Span::from_secs),
    };
    let result = |json| GivenReport::Result(json);
    assert_eq!(
        given.get(0, "make").unwrap(),
        &[worked(result(serde_json::json!({ "n": 1 })), 0)],
        "the file's, by type"
    );
    assert_eq!(
        given.get(1, "send").unwrap(),
        &[worked(error("gone", Some("no_such_box"), true, None), 0)],
        "a step before its type"
    );
    let expected = [
        worked(error("busy", None, false, Some(5)), 2),
        worked(GivenReport::Snooze(Span::from_secs(3_600)), 0),
        worked(result(serde_json::json!([1])), 0),
    ];
    assert_eq!(given.get(2, "tell").unwrap(), &expected, "a case's type before the file's step");
}

#[test]
fn an_invalid_script_for_workers_is_refused() {
    for (tasks, problem) in [
        (
            "{ billing.invoice.v2: { result: 1 } }",
            "unknown_case_step cases[0].tasks[\"billing.invoice.v2\"]: `billing.invoice.v2` is neither a step of this workflow nor the type of one (did you mean `billing.invoice.v1`?)",
        ),
        (
            "{ nap: { result: 1 } }",
            "case_step_kind cases[0].tasks.nap: `nap` is of kind `sleep` and is not done by a worker (only task steps are)",
        ),
        ("{ make: [] }", "missing_field cases[0].tasks.make: a list of answers needs at least one answer"),
        (
            "{ make: 7 }",
            "wrong_type cases[0].tasks.make: what a worker answers must be an object, found a number (write `{ result: … }` or `{ error: { message: … } }`)",
        ),
        ("{ make: {} }", "missing_field cases[0].tasks.make: a worker answers with `result`, `error` or `snooze`"),
        (
            "{ make: { result: 1, final: true } }",
            "exclusive_fields cases[0].tasks.make.final: `result` and `final` cannot both be given (keep one of them)",
        ),
        (
            "{ make: { error: { code: x } } }",
            "missing_field cases[0].tasks.make.error: `error` needs a field `message`",
        ),
        ("{ make: { error: oops } }", "wrong_type cases[0].tasks.make.error: `error` must be an object, found a text"),
        (
            "{ make: { resutl: 1 } }",
            "missing_field cases[0].tasks.make: a worker answers with `result`, `error` or `snooze`; unknown_field cases[0].tasks.make.resutl: there is no field `resutl` (did you mean `result`?)",
        ),
    ] {
        let source = format!("cases: [{{ name: a, tasks: {tasks}, expect: {{ status: failed }} }}]");
        assert_eq!(worked(&source).err().unwrap_or_default(), problem, "{tasks}");
    }
    let expect = "cases: [{ name: a, expect: { steps: { make: { status_code: 200 }, nap: { attempts: 1 } } } }]";
    assert_eq!(
        worked(expect).unwrap_err(),
        "case_step_kind cases[0].expect.steps.make.status_code: `make` is of kind `task` and has no `status_code` (only http steps send requests); case_step_kind cases[0].expect.steps.nap.attempts: `nap` is of kind `sleep` and has no `attempts` (only http, task and subworkflow steps are attempted)"
    );
}

const NESTED: &str = "
name: nested
tasks:
  each:
    loop:
      items: trigger.body
      tasks:
        charge: { url: https://pay.example.com/charge }
        inner: { loop: { items: item.lines, tasks: { pick: { task: store.pick.v1 } } } }
  both: { group: { tasks: { left: { noop: {} }, paid: { wait_for_signal: { name: order.paid } }, hook: { wait_for_webhook: {} } } } }
  review: { approval: { prompt: Ship? } }
  hold: { pause: {} }
  call: { subworkflow: { workflow: billing, input: { id: 1 } } }
  other: { subworkflow: { workflow: '{{trigger.body.w}}', allow: [billing, shipping] } }
";

fn nested(case: &str) -> Result<Suite, String> {
    let plan = crate::testing::compiled(NESTED).unwrap().plan;
    let billing = crate::testing::compiled("name: billing\ntasks: { pay: { url: https://pay.example.com } }").unwrap();
    let definitions = Definitions::from([("billing.yaml".to_owned(), billing)]);
    let source = format!("cases: [{{ name: a, {case} }}]");
    let lines = |found: Vec<Diagnostic>| {
        let line = |d: &Diagnostic| d.to_string().split_once(' ').map_or_else(String::new, |(_, rest)| rest.to_owned());
        found.iter().map(line).collect::<Vec<_>>().join("; ")
    };
    read_suite(&read(source.as_bytes(), Syntax::Yaml).unwrap(), &plan, &definitions, &WORLD).map_err(lines)
}

fn given_of(fields: &str) -> Given {
    nested(&format!("expect: {{ status: failed }}, {fields}")).unwrap().cases.remove(0).given
}

#[test]
fn m2_inner_steps_are_scripted_by_name_or_by_key() {
    let plan = crate::testing::compiled(NESTED).unwrap().plan;
    let node = |name: &str| plan.find(name).unwrap();
    let given = given_of(
        "http: { charge: 200, 'each[3]/charge': 503 }, tasks: { 'each[0]/inner[2]/pick': { result: 1 }, store.pick.v1: { result: 2 } }",
    );
    let status = |key: &str| match &given.http.get(node("charge"), key).unwrap()[0].reply {
        Reply::Response { status, .. } => *status,
        other => panic!("{other:?}"),
    };
    assert_eq!((status("each[3]/charge"), status("each[4]/charge")), (503, 200));
    let result = |key: &str| given.tasks.get(node("pick"), key).unwrap()[0].report.clone();
    assert_eq!(result("each[0]/inner[2]/pick"), GivenReport::Result(1.into()));
    assert_eq!(result("each[0]/inner[0]/pick"), GivenReport::Result(2.into()));
    let expect = nested(
        "expect: { path: [both/left, left, each, 'each[0]/charge'], steps: { left: success, 'each[1]/charge': skipped } }",
    );
    let expect = expect.unwrap().cases.remove(0).expect;
    assert_eq!(expect.path.unwrap().value, ["both/left", "both/left", "each", "each[0]/charge"]);
    let keys: Vec<&str> = expect.steps.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!(keys, ["both/left", "each[1]/charge"]);
}

#[test]
fn m20_m22_signals_approvals_pauses_and_children_are_scripted() {
    let plan = crate::testing::compiled(NESTED).unwrap().plan;
    let node = |name: &str| plan.find(name).unwrap();
    let given = given_of(
        "signals: { order.paid: [{ after: 2h, body: { n: 1 } }, { at: 1d }] }, approvals: { review: { decision: reject, actor: ann, comment: no, after: 1h } },
         pauses: { hold: 2d }, children: { call: [{ error: down, took: 1m }, { output: [1] }], billing: { status: timeout, took: 3h } }",
    );
    let signals = &given.signals["order.paid"];
    assert_eq!(
        signals[0],
        GivenSignal { when: When::After(Span::from_secs(7_200)), body: serde_json::json!({ "n": 1 }) }
    );
    assert_eq!(signals[1], GivenSignal { when: When::At(Span::from_days(1)), body: serde_json::Value::Null });
    let decision = given.approvals.get(node("review"), "review").unwrap();
    assert_eq!((decision.approves, decision.actor.as_deref(), decision.comment.as_str()), (false, Some("ann"), "no"));
    assert_eq!(given.pauses.get(node("hold"), "hold"), Some(&GivenResume { when: When::After(Span::from_days(2)) }));
    let GivenChild::Scripted(ends) = given.children.get(node("call"), "call").unwrap() else { panic!("scripted") };
    assert_eq!(
        (ends[0].status, ends[0].error.as_str(), ends[0].took),
        (RunStatus::Failed, "down", Span::from_secs(60))
    );
    assert_eq!((ends[1].status, &ends[1].output), (RunStatus::Completed, &serde_json::json!([1])));
    let GivenChild::Scripted(ends) = given.children.get(node("other"), "other").unwrap() else { panic!("scripted") };
    assert_eq!((ends[0].status, ends[0].took), (RunStatus::Timeout, Span::from_secs(10_800)));
    assert!(given_of("approvals: { review: approve }").approvals.get(node("review"), "review").unwrap().approves);
    let given = given_of("children: { call: { file: billing.yaml, http: { pay: 402 } } }");
    let GivenChild::Real(real) = given.children.get(node("call"), "call").unwrap() else { panic!("real") };
    assert_eq!(real.file, "billing.yaml");
    assert!(real.given.http.get(0, "pay").is_some(), "its script names its own steps");
}

#[test]
fn a_wrong_script_for_inner_steps_waits_and_children_is_refused() {
    for (fields, problem) in [
        (
            "http: { 'each/charge[1]': 200 }",
            "unknown_case_step cases[0].http[\"each/charge[1]\"]: `each/charge[1]` is not the key of a step (write `each[0]/charge`)",
        ),
        (
            "http: { 'both/charge': 200 }",
            "unknown_case_step cases[0].http[\"both/charge\"]: `both/charge` is not the key of a step (write `each[0]/charge`)",
        ),
        (
            "tasks: { 'each[0]/inner/pick': { result: 1 } }",
            "unknown_case_step cases[0].tasks[\"each[0]/inner/pick\"]: `each[0]/inner/pick` is not the key of a step (write `each[0]/inner[0]/pick`)",
        ),
        (
            "http: { 'each[0]/chrage': 200 }",
            "unknown_case_step cases[0].http[\"each[0]/chrage\"]: `each[0]/chrage` is not a step of this workflow (did you mean `charge`?)",
        ),
        (
            "signals: { order.payed: {} }",
            "unknown_case_signal cases[0].signals[\"order.payed\"]: no step of this workflow waits for the signal `order.payed` (did you mean `order.paid`?)",
        ),
        (
            "signals: { paid: {} }",
            "unknown_case_signal cases[0].signals.paid: no step of this workflow waits for the signal `paid` (write the name of the signal, not of the step)",
        ),
        (
            "approvals: { hold: approve }",
            "case_step_kind cases[0].approvals.hold: `hold` is of kind `pause` and asks for no approval (only approval steps do)",
        ),
        (
            "approvals: { review: aprove }",
            "invalid_value cases[0].approvals.review: `a decision` is `aprove`, allowed is `approve` or `reject` (did you mean `approve`?)",
        ),
        (
            "approvals: { review: { actor: ann } }",
            "missing_field cases[0].approvals.review: a decision needs a field `decision`",
        ),
        (
            "pauses: { review: 1h }",
            "case_step_kind cases[0].pauses.review: `review` is of kind `approval` and does not pause (only pause steps do)",
        ),
        (
            "callbacks: { hook: { at: 1h } }",
            "invalid_value cases[0].callbacks.hook.at: a callback for a step inside of a group or loop cannot be early (write `after`: its URL exists from when the step begins to wait)",
        ),
        (
            "children: { hold: { output: 1 } }",
            "case_step_kind cases[0].children.hold: `hold` is of kind `pause` and starts no run (only subworkflow steps do)",
        ),
        (
            "children: { biling: { output: 1 } }",
            "unknown_case_step cases[0].children.biling: `biling` is neither a subworkflow step nor a workflow that one starts (did you mean `billing`?)",
        ),
        (
            "children: { call: { status: failed, output: 1 } }",
            "invalid_value cases[0].children.call.output: a run that ends as `failed` has no `output`",
        ),
        (
            "children: { call: { status: timeout } }",
            "missing_field cases[0].children.call: a child that times out needs `took` (it is the `max_duration` of the workflow)",
        ),
        (
            "children: { call: done }",
            "wrong_type cases[0].children.call: how a child ends must be an object, found a text (write `{ output: … }`, `{ status: failed, error: … }` or `{ file: child.yaml }`)",
        ),
        (
            "children: { call: { file: billing.yaml, http: { charge: 200 } } }",
            "unknown_case_step cases[0].children.call.http.charge: `charge` is not a step of this workflow",
        ),
    ] {
        assert_eq!(
            nested(&format!("expect: {{ status: failed }}, {fields}")).err().unwrap_or_default(),
            problem,
            "{fields}"
        );
    }
    for (expect, problem) in [
        (
            "steps: { charge: success }",
            "unknown_case_step cases[0].expect.steps.charge: `charge` is opened in each iteration of a loop (say which one: `each[0]/charge`)",
        ),
        (
            "path: [charge]",
            "unknown_case_step cases[0].expect.path[0]: `charge` is opened in each iteration of a loop (say which one: `each[0]/charge`)",
        ),
        (
            "refused: nonsense",
            "invalid_value cases[0].expect.refused: `refused` is `nonsense`, allowed is `invalid_input` or `concurrency_key_unresolved`",
        ),
        (
            "refused: invalid_input, status: failed",
            "exclusive_fields cases[0].expect.refused: a run that is refused does nothing else to expect",
        ),
    ] {
        assert_eq!(nested(&format!("expect: {{ {expect} }}")).err().unwrap_or_default(), problem, "{expect}");
    }
    let tree = read(b"children: { a: { file: x.yaml, children: { b: { file: y.yaml } } } }\ncases: [{ children: { a: { file: z.yaml } } }]", Syntax::Yaml).unwrap();
    let files: Vec<String> = files_of(&tree).into_iter().map(|(file, _)| file).collect();
    assert_eq!(files, ["x.yaml", "y.yaml", "z.yaml"]);
}
