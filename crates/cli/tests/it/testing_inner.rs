//! `onward test` on steps inside of steps, on what people and other systems do, and on child runs.

use super::testing::{folder, onward};

const FULFIL: &str = r#"
name: fulfil
output: { shipped: "{{tasks.each.body}}" }
input: { type: object, required: [lines] }
tasks:
  each:
    loop:
      items: trigger.body.lines
      concurrency: 2
      on_error: continue
      tasks:
        reserve: { url: "https://stock.example.com/{{item}}" }
        pick: { needs: [reserve], task: store.pick.v1, input: { line: "{{item}}" } }
  review: { needs: [each], approval: { prompt: "Ship?", approvers: [ann, bob], timeout: 2d } }
  paid: { needs: [review], wait_for_signal: { name: order.paid, timeout: 5d } }
  hold: { needs: [paid], pause: {} }
  bill: { needs: [hold], subworkflow: { workflow: billing, input: { amount: "{{tasks.paid.body.amount}}" } }, retry: { max_attempts: 2, backoff: { type: fixed, min: 1h } } }
  late: { needs: [bill], if: tasks.bill.failed, noop: {} }
"#;

const BILLING: &str = r#"
name: billing
output: "{{tasks.invoice.body.number}}"
tasks:
  invoice: { url: https://bill.example.com, body: { amount: "{{trigger.body.amount}}" } }
  ok: { needs: [invoice], approval: { prompt: "Sure?" } }
"#;

const PASSING: &str = r#"
input: { lines: [a, b, c] }
http: { reserve: 200 }
tasks: { pick: { result: picked, took: 1h } }
approvals: { review: approve }
signals: { order.paid: { after: 1d, body: { amount: 7 } } }
pauses: { hold: 3h }
children: { billing: { output: R-1, took: 30m } }
cases:
  - name: everything happens
    expect:
      status: completed
      took: 1770m
      output: { shipped: [picked, picked, picked] }
      path: [each, "each[0]/reserve", "each[1]/reserve", "each[0]/pick", "each[1]/pick", "each[2]/reserve", "each[2]/pick", review, paid, hold, bill]
      steps:
        each: success
        each[1]/pick: { attempts: 1, input: { line: b }, body: picked }
        each[2]/reserve: { status: success, requests: [{ url: https://stock.example.com/c }] }
        review: { body: { decision: approved, actor: ann } }
        paid: { body: { amount: 7 } }
        bill: { status: success, attempts: 1, input: { amount: 7 }, body: R-1 }
        late: skipped
      other_steps: success

  - name: one line is out of stock
    http: { "each[1]/reserve": 404 }
    expect:
      status: completed
      steps: { "each[1]/reserve": { status: failed, error: http_status }, "each[1]/pick": skipped, bill: success }

  - name: the second attempt at the child succeeds
    children: { bill: [{ error: no credit, took: 1m }, { output: R-2 }] }
    expect: { status: completed, steps: { bill: { attempts: 2, body: R-2 } } }

  - name: the child times out, and is cancelled
    children: { billing: [{ status: timeout, took: 4h }, { status: cancelled }] }
    expect: { status: completed, steps: { bill: { status: failed, error: child_cancelled, attempts: 2 }, late: success } }

  - name: without a decision
    approvals: { review: { never: true } }
    expect: { status: cancelled, steps: { review: { status: failed, error: approval_timeout }, paid: skipped } }

  - name: bob rejects
    approvals: { review: { decision: reject, actor: bob, after: 1h, comment: too dear } }
    expect:
      status: cancelled
      steps: { review: { status: failed, error: approval_denied, body: { actor: bob, comment: too dear } } }

  - name: the signal is early
    signals: { order.paid: { at: 1m, body: { amount: 9 } } }
    expect: { status: completed, steps: { bill: { input: { amount: 9 } } } }

  - name: the real child
    children:
      billing: { file: billing.yaml, http: { invoice: { body: { number: R-3 } } }, approvals: { ok: { decision: approve, after: 1h } } }
    expect: { status: completed, steps: { bill: { body: R-3 } } }

  - name: a body without lines
    input: {}
    expect: { refused: invalid_input }
"#;

#[test]
fn a_case_scripts_loops_approvals_signals_pauses_and_children() {
    let files = [("fulfil.yaml", FULFIL), ("billing.yaml", BILLING), ("fulfil.test.yaml", PASSING)];
    let ran = onward(folder(&files).path(), &["fulfil.test.yaml", "--coverage"]);
    assert_eq!(ran.code, 0, "{}\n{}", ran.out, ran.err);
    for line in
        ["everything happens (1 d 5 h)", "coverage of fulfil.yaml: 8 of 8 steps ran", "9 cases in 1 file: 9 passed"]
    {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
    let again = onward(folder(&files).path(), &["fulfil.test.yaml", "--coverage"]);
    assert_eq!(again.out, ran.out, "the same every time");
    let verbose = onward(folder(&files).path(), &["-v", "--filter", "everything"]);
    for line in [
        "review was approved by ann at +2h: applied",
        "the signal order.paid was sent at +26h: applied",
        "hold was resumed at +29h: applied",
        "each[0]/pick #1 gave store.pick.v1",
    ] {
        assert!(verbose.out.contains(line), "{line}: {}", verbose.out);
    }
}

#[test]
fn what_the_script_does_not_say_fails_the_case_with_a_hint() {
    let case = |fields: &str| {
        let test = format!(
            "input: {{ lines: [a] }}\nhttp: {{ reserve: 200 }}\ntasks: {{ pick: {{ result: 1 }} }}\ncases:\n  - name: c\n    expect: {{ status: completed }}\n{fields}"
        );
        let files = [("fulfil.yaml", FULFIL), ("billing.yaml", BILLING), ("fulfil.test.yaml", test.as_str())];
        let ran = onward(folder(&files).path(), &[]);
        assert_eq!(ran.code, 1, "{}\n{}", ran.out, ran.err);
        ran.out
    };
    let all = "    signals: { order.paid: { body: { amount: 1 } } }\n    pauses: { hold: 1h }\n";
    let out = case(&format!("{all}    approvals: {{ review: approve }}\n"));
    assert!(
        out.contains("children.bill: expected an answer, got none for `billing` {\"amount\":1} (attempt 1)"),
        "{out}"
    );
    assert!(out.contains("help: add `children: { bill: { output: {} } }` to the case"), "{out}");
    let out = case(&format!("{all}    approvals: {{ review: {{ decision: approve, actor: eve }} }}\n"));
    assert!(out.contains("approvals.review: expected an actor who may decide, got eve"), "{out}");
    let out = case(&format!(
        "{all}    approvals: {{ review: approve }}\n    tasks: {{ 'each[0]/pick': {{ error: {{ message: no }}, final: true }} }}\n    http: {{ reserve: 200 }}\n    children: {{ bill: {{ output: 1 }} }}\n    input: {{}}\n"
    ));
    assert!(out.contains("run: expected a run, got invalid_input: the body needs a field `lines`"), "{out}");
    assert!(out.contains("help: if it is meant to be refused, write `expect: { refused: invalid_input }`"), "{out}");
    let wrong = PASSING
        .replace("each[2]/reserve: {", "each[7]/reserve: {")
        .replace("output: { shipped: [picked, picked, picked] }", "output: { shipped: [picked] }");
    let files = [("fulfil.yaml", FULFIL), ("billing.yaml", BILLING), ("fulfil.test.yaml", wrong.as_str())];
    let ran = onward(folder(&files).path(), &["--filter", "everything"]);
    assert!(
        ran.out.contains("steps.each[7]/reserve: expected a http step, got nothing: it was not opened"),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("output.shipped: expected [\"picked\"], got [\"picked\",\"picked\",\"picked\"]"),
        "{}",
        ran.out
    );
}

#[test]
fn a_child_definition_that_cannot_be_used_is_refused_with_its_place() {
    let test = |file: &str| {
        format!(
            "cases:\n  - name: c\n    children: {{ billing: {{ file: {file} }} }}\n    expect: {{ status: completed }}\n"
        )
    };
    for (file, code, message) in [
        ("nowhere.yaml", "unusable_file", "there is no file nowhere.yaml"),
        ("other.yaml", "unusable_file", "`other.yaml` defines `other`, and the step starts `billing`"),
        ("broken.yaml", "missing_field", "a definition needs a field `tasks`"),
    ] {
        let test = test(file);
        let files = [
            ("fulfil.yaml", FULFIL),
            ("other.yaml", "name: other\ntasks: { a: { noop: {} } }"),
            ("broken.yaml", "name: billing\n"),
            ("fulfil.test.yaml", test.as_str()),
        ];
        let ran = onward(folder(&files).path(), &[]);
        assert_eq!(ran.code, 2, "{}", ran.out);
        assert!(ran.err.contains(&format!("error[{code}]: {message}")), "{}", ran.err);
        let place = if file == "broken.yaml" { "--> broken.yaml:1:1" } else { "--> fulfil.test.yaml:3:34" };
        assert!(ran.err.contains(place), "{}", ran.err);
    }
}
