use super::*;
use crate::{canonical_json, content_hash};
use kernel::Plan;
use kernel::plan::Backoff;

fn read_settings(json: Json) -> Result<TaskSettings, String> {
    let Json::Object(request) = json else { panic!("not an object") };
    settings(&request).map_err(|found| {
        let brief = |d: &Diagnostic| format!("{} {}: {}", d.code, d.path, d.message);
        found.iter().map(brief).collect::<Vec<_>>().join("; ")
    })
}

#[test]
fn w1_a_single_task_is_a_run_with_one_step_that_never_expires() {
    let TaskDefinition { layout, .. } = define("billing.invoice.v1", &TaskSettings::default());
    let plan = Plan::new(layout).unwrap();
    assert_eq!(Plan::decode(&plan.encode()).unwrap().layout(), plan.layout());
    assert_eq!((plan.layout().form, plan.verdict(), plan.nodes().len()), (Form::Task, Verdict::DirectUnhandled, 1));
    assert_eq!(plan.layout().max_duration, Span(u64::MAX));
    let (node, task) = (plan.node_at(0), plan.node_at(0).task().unwrap());
    assert_eq!((node.key.as_str(), task.name.as_str(), &task.input), ("task", "billing.invoice.v1", &None));
    assert_eq!((node.retry.max_attempts, node.retry.backoff, node.retry.jitter), (3, Backoff::Quadratic, 100));
}

#[test]
fn equal_settings_have_equal_hashes_however_they_are_written() {
    let hash = |json: Json| define("a.v1", &read_settings(json).unwrap()).hash;
    let default = hash(json!({}));
    for same in [
        json!({ "max_attempts": 3 }),
        json!({ "type": "ignored", "payload": [1], "retry": { "max_attempts": 3 } }),
        json!({ "timeouts": {} }),
        json!({ "retry": { "backoff": { "type": "quadratic", "min": 60, "jitter": 0.1 } } }),
    ] {
        assert_eq!(hash(same.clone()), default, "{same}");
    }
    for other in [
        json!({ "max_attempts": 2 }),
        json!({ "retry": "never" }),
        json!({ "retry": { "backoff": { "type": "quadratic", "min": "1m" } } }),
        json!({ "timeouts": { "queue": "1m" } }),
    ] {
        assert_ne!(hash(other.clone()), default, "{other}");
    }
    assert_ne!(define("b.v1", &TaskSettings::default()).hash, default, "another type is another definition");
}

#[test]
fn a_definition_is_canonical_and_reads_back() {
    for request in [
        json!({}),
        json!({ "retry": "never" }),
        json!({ "max_attempts": 7, "timeouts": { "total": "2d", "queue": "90s", "heartbeat": "1500ms", "attempt": 30 } }),
        json!({ "retry": { "max_attempts": 5, "backoff": { "type": "exponential", "min": "1s", "max": "1m", "jitter": 1 } } }),
        json!({ "retry": { "backoff": { "type": "fixed", "min": "0s", "jitter": 0.001 } } }),
    ] {
        let settings = read_settings(request).unwrap();
        let TaskDefinition { source, hash, .. } = define("a.v1", &settings);
        let text = source.to_string();
        let tree = read(text.as_bytes(), Syntax::Json).unwrap();
        assert_eq!(canonical_json(&tree), text);
        assert_eq!(content_hash(&tree), hash);
        assert_eq!(read_settings(source).unwrap(), settings);
    }
    let source = define("a.v1", &TaskSettings::default()).source.to_string();
    let retry = r#"{"backoff":{"jitter":0.1,"min":"1m","type":"quadratic"},"max_attempts":3}"#;
    assert_eq!(source, format!(r#"{{"retry":{retry},"type":"a.v1"}}"#), "a stored definition means the same forever");
}

#[test]
fn invalid_settings_are_refused_with_their_path() {
    for (request, expected) in [
        (json!({ "max_attempts": 0 }), "out_of_range max_attempts: `max_attempts` is 0, allowed is 1 to 100"),
        (json!({ "max_attempts": 101 }), "out_of_range max_attempts: `max_attempts` is 101, allowed is 1 to 100"),
        (
            json!({ "max_attempts": "3" }),
            "wrong_type max_attempts: `max_attempts` must be a whole number, found a text",
        ),
        (
            json!({ "max_attempts": 3, "retry": { "max_attempts": 3 } }),
            "exclusive_fields max_attempts: `max_attempts` and `retry.max_attempts` cannot both be given",
        ),
        (
            json!({ "max_attempts": 1, "retry": "never" }),
            "exclusive_fields max_attempts: `max_attempts` and `retry: never` cannot both be given",
        ),
        (
            json!({ "retry": { "backoff": { "type": "cubic", "min": "1s" } } }),
            "invalid_value retry.backoff.type: `type` is `cubic`, allowed is `fixed`, `exponential` or `quadratic`",
        ),
        (json!({ "retry": 3 }), "wrong_type retry: `retry` must be `never` or an object, found a number"),
        (
            json!({ "timeouts": { "heartbeat": "1ms" } }),
            "out_of_range timeouts.heartbeat: `heartbeat` is 1ms, allowed is 1s to 366d",
        ),
        (json!({ "timeouts": { "run": "1m" } }), "unknown_field timeouts.run: there is no field `run`"),
        (json!({ "timeouts": null }), "wrong_type timeouts: `timeouts` must be an object, found null"),
        (
            json!({ "retry": "always", "timeouts": { "queue": -1 } }),
            "wrong_type retry: `retry` must be `never` or an object, found a text; invalid_duration timeouts.queue: `queue` must be a duration, found -1",
        ),
    ] {
        assert_eq!(read_settings(request.clone()).unwrap_err(), expected, "{request}");
    }
}

#[test]
fn decision_16_type_names_are_checked() {
    assert_eq!(check_type("billing.invoice.v1"), Ok(()));
    for name in ["", "a..b", "a.%", "a b", &"x".repeat(201)] {
        let problem = check_type(name).unwrap_err();
        assert!(problem.code == "invalid_type" && problem.hint.is_some(), "{problem}");
    }
}
