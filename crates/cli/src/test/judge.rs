//! Compares what a case expects with what happened. Pure; it reports every difference, not only the first.

use super::play::{PlayFailure, Story, Unscripted};
use engine::PendingCall;
use kernel::Plan;
use lang::suite::{Case, Expected, RequestExpect, StepExpect};
use serde_json::Value;

/// One difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Where the expectation is in the file, in bytes.
    pub at: Option<usize>,
    /// What differs: `steps.charge.attempts`.
    pub what: String,
    pub expected: String,
    pub got: String,
    pub hint: Option<String>,
}

/// Longer values are cut in messages.
const SHOWN_MAX: usize = 300;

/// A run that could not be started, unless the case expects that.
pub fn judge_refusal(case: &Case, why: &PlayFailure) -> Option<Mismatch> {
    let got = match why.code {
        Some(code) => format!("{code}: {}", why.message),
        None => why.message.clone(),
    };
    let mismatch = |at, what: &str, expected: &str, hint| Mismatch {
        at,
        what: what.into(),
        expected: expected.into(),
        got: shown(&got),
        hint,
    };
    match &case.expect.refused {
        Some(refused) if Some(refused.value.as_str()) == why.code => None,
        Some(refused) => Some(mismatch(Some(refused.at), "refused", &refused.value, None)),
        None => {
            let hint =
                why.code.map(|code| format!("if it is meant to be refused, write `expect: {{ refused: {code} }}`"));
            Some(mismatch(why.code.map(|_| case.at), "run", "a run", hint))
        }
    }
}

pub fn judge(plan: &Plan, case: &Case, story: &Story) -> Vec<Mismatch> {
    let mut out = Judge { found: Vec::new() };
    if let Some(missing) = &story.unscripted {
        out.found.push(unscripted(case, missing));
        return out.found;
    }
    for (step, actor) in &story.forbidden {
        out.found.push(Mismatch {
            at: Some(case.at),
            what: format!("approvals.{step}"),
            expected: "an actor who may decide".into(),
            got: shown(actor),
            hint: Some("the `approvers` of the step list who may".into()),
        });
    }
    let run = &story.reading.run;
    let expect = &case.expect;
    out.same("status", expect.status.as_ref(), run.status());
    let names = |steps: &[String]| format!("[{}]", steps.join(", "));
    if let Some(path) = &expect.path {
        let got = story.path();
        if got != path.value {
            out.push(Some(path.at), "path", names(&path.value), names(&got));
        }
    }
    for (key, node, expect) in &expect.steps {
        step_differs(plan, (key, *node), expect, story, &mut out);
    }
    if let Some(others) = &expect.other_steps {
        let steps = run.steps().filter(|(step, _)| run.iteration(*step).is_none());
        for (step, state) in steps {
            let key = run.key(plan, step);
            if !expect.steps.iter().any(|(named, ..)| *named == key) {
                out.same(&format!("steps.{key}.status"), Some(others), state.status());
            }
        }
    }
    if let Some(output) = &expect.output {
        out.within("output", output, story.output.as_ref());
    }
    if let Some(refused) = &expect.refused {
        out.push(Some(refused.at), "refused", refused.value.clone(), "a run that started".into());
    }
    let took = story.took();
    for bound in expect.took.iter().filter(|bound| !bound.value.holds(took)) {
        out.push(Some(bound.at), "took", bound.value.to_string(), took.to_string());
    }
    out.found
}

fn unscripted(case: &Case, missing: &Unscripted) -> Mismatch {
    let (what, got, answer) = match missing {
        Unscripted::Call(PendingCall { step, method, url, attempt, .. }) => (
            format!("http.{step}"),
            format!("none for {method} {url} (attempt {attempt})"),
            format!("http: {{ {}: {{ status: 200, body: {{}} }} }}", name_of(step)),
        ),
        Unscripted::Task(task) => (
            format!("tasks.{}", task.step_key),
            shown(&format!(
                "none for {} {} (attempt {})",
                task.name,
                String::from_utf8_lossy(&task.input),
                task.attempt
            )),
            format!("tasks: {{ {}: {{ result: {{}} }} }}", name_of(&task.step_key)),
        ),
        Unscripted::Child { step, workflow, input, attempt } => (
            format!("children.{step}"),
            shown(&format!("none for `{workflow}` {input} (attempt {attempt})")),
            format!("children: {{ {}: {{ output: {{}} }} }}", name_of(step)),
        ),
    };
    let hint = Some(format!("add `{answer}` to the case, or to the file for all cases"));
    Mismatch { at: Some(case.at), what, expected: "an answer".into(), got, hint }
}

/// The name of a step, which stands for it in every iteration.
fn name_of(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

fn step_differs(plan: &Plan, (key, node): (&str, u32), expect: &StepExpect, story: &Story, out: &mut Judge) {
    let run = &story.reading.run;
    let Some(step) = run.find(plan, key) else {
        // Steps of groups and loops exist when they are opened.
        let at = expect.places().next();
        let kind = plan.node_at(node).body.as_ref().map_or("step", kernel::plan::Body::kind);
        out.push(at, format!("steps.{key}"), format!("a {kind} step"), "nothing: it was not opened".into());
        return;
    };
    let state = run.step(step);
    let what = |field: &str| format!("steps.{key}.{field}");
    out.same(&what("status"), expect.status.as_ref(), state.status());
    out.same(&what("attempts"), expect.attempts.as_ref(), state.attempt);
    let code = state.response.as_ref().and_then(|response| response.status_code);
    out.same_option(&what("status_code"), expect.status_code.as_ref(), code);
    let error = state.failure.as_ref().map(|failure| failure.code.clone());
    out.same_option(&what("error"), expect.error.as_ref(), error);
    if let Some(body) = &expect.body {
        let got = state.body().and_then(|payload| payload.value(&story.reading.payloads).ok());
        out.within(&what("body"), body, got.as_ref());
    }
    if let Some(input) = &expect.input {
        out.within(&what("input"), input, story.input(step).as_ref());
    }
    if let Some(requests) = &expect.requests {
        let sent = story.requests(key);
        if sent.len() != requests.value.len() {
            let count = |n: usize| format!("{n} request{}", if n == 1 { "" } else { "s" });
            out.push(Some(requests.at), what("requests"), count(requests.value.len()), count(sent.len()));
        }
        for (nth, (expect, call)) in requests.value.iter().zip(sent).enumerate() {
            request_differs(&what(&format!("requests[{nth}]")), expect, call, out);
        }
    }
}

fn request_differs(what: &str, expect: &RequestExpect, call: &PendingCall, out: &mut Judge) {
    out.same(&format!("{what}.method"), expect.method.as_ref(), call.method.clone());
    out.same(&format!("{what}.url"), expect.url.as_ref(), call.url.clone());
    for (name, value) in &expect.headers {
        let got = call.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        out.same_option(&format!("{what}.headers.{name}"), Some(value), got.map(|(_, value)| value.clone()));
    }
    if let Some(body) = &expect.body {
        let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
        let got = call.body.as_ref().map(|bytes| serde_json::from_slice(bytes).unwrap_or_else(|_| text(bytes)));
        out.within(&format!("{what}.body"), body, got.as_ref());
    }
}

struct Judge {
    found: Vec<Mismatch>,
}

impl Judge {
    fn push(&mut self, at: Option<usize>, what: impl Into<String>, expected: String, got: String) {
        let (expected, got) = (shown(&expected), shown(&got));
        self.found.push(Mismatch { at, what: what.into(), expected, got, hint: None });
    }

    fn same<T: PartialEq + ToString>(&mut self, what: &str, expected: Option<&Expected<T>>, got: T) {
        self.same_option(what, expected, Some(got));
    }

    fn same_option<T: PartialEq + ToString>(&mut self, what: &str, expected: Option<&Expected<T>>, got: Option<T>) {
        if let Some(expected) = expected
            && Some(&expected.value) != got.as_ref()
        {
            let got = got.map_or_else(|| "nothing".to_owned(), |got| got.to_string());
            self.push(Some(expected.at), what, expected.value.to_string(), got);
        }
    }

    fn within(&mut self, what: &str, expected: &Expected<Value>, got: Option<&Value>) {
        compare(what, expected.at, &expected.value, got, self);
    }
}

/// An object must have the expected members and may have more. A list must have the same length. Everything else must
/// be equal. A missing member does not equal `null`, but a missing body does.
fn compare(what: &str, at: usize, expected: &Value, got: Option<&Value>, out: &mut Judge) {
    match (expected, got) {
        (Value::Object(wanted), Some(Value::Object(found))) => {
            for (key, wanted) in wanted {
                compare(&format!("{what}.{key}"), at, wanted, found.get(key), out);
            }
        }
        (Value::Array(wanted), Some(Value::Array(found))) if wanted.len() == found.len() => {
            for (nth, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(&format!("{what}[{nth}]"), at, wanted, Some(found), out);
            }
        }
        (Value::Number(wanted), Some(Value::Number(found))) if wanted.as_f64() == found.as_f64() => {}
        (Value::Null, None) if what.ends_with(".body") || what == "output" => {}
        (wanted, Some(found)) if wanted == found => {}
        (wanted, found) => {
            let got = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
            out.push(Some(at), what, wanted.to_string(), got);
        }
    }
}

/// The text on one line and cut. Control and bidirectional characters are escaped: they could rearrange the line.
pub fn shown(text: &str) -> String {
    let is_hostile = |c: char| {
        c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
    };
    let mut out = String::new();
    for (nth, c) in text.chars().enumerate() {
        match c {
            _ if nth == SHOWN_MAX => return out + "…",
            c if is_hostile(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn differences(expected: Value, got: Option<Value>) -> Vec<String> {
        let mut out = Judge { found: Vec::new() };
        out.within("x.body", &Expected { value: expected, at: 0 }, got.as_ref());
        out.found.into_iter().map(|m| format!("{}: {} / {}", m.what, m.expected, m.got)).collect()
    }

    #[test]
    fn objects_may_have_more_members_and_lists_may_not() {
        for (expected, got) in [
            (json!({}), json!({ "a": 1 })),
            (
                json!({ "a": { "b": [1, { "c": null }] } }),
                json!({ "a": { "b": [1.0, { "c": null, "d": 2 }], "e": 1 } }),
            ),
            (json!("text"), json!("text")),
            (json!(null), json!(null)),
        ] {
            assert_eq!(differences(expected, Some(got)), [""; 0]);
        }
        assert_eq!(differences(json!(null), None), [""; 0], "no body is null");
        assert_eq!(
            differences(
                json!({ "a": 1, "b": { "c": null }, "d": [1], "e": "1" }),
                Some(json!({ "a": 2, "b": {}, "d": [1, 2], "e": 1 }))
            ),
            ["x.body.a: 1 / 2", "x.body.b.c: null / nothing", "x.body.d: [1] / [1,2]", "x.body.e: \"1\" / 1"]
        );
        assert_eq!(differences(json!({ "a": 1 }), None), ["x.body: {\"a\":1} / nothing"]);
    }

    #[test]
    fn t18_shown_values_are_cut_and_escaped() {
        assert_eq!(shown("a\u{1b}[2J\u{202e}"), "a\\u{1b}[2J\\u{202e}");
        assert_eq!(shown(&"x".repeat(1_000)).chars().count(), SHOWN_MAX + 1);
    }
}
