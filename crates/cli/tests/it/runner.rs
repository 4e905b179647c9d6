//! `onward run` and `onward resume`: definitions without a server (A29, A33, A34, A38).

use crate::harness::onward_with_input;
use serde_json::{Value, json};
use std::path::Path;

/// What a command printed: its exit code, the document, and the events.
struct Ran {
    code: i32,
    document: Value,
    events: Vec<Value>,
}

fn onward(data: &Path, arguments: &[&str], input: &str) -> Ran {
    let data = data.display().to_string();
    let output = onward_with_input(&[arguments, &["--data", &data]].concat(), input);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    let events = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let document = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{lines}"));
    Ran { code: output.status.code().expect("an exit code"), document, events }
}

fn types(ran: &Ran) -> Vec<&str> {
    ran.events.iter().filter_map(|event| event["type"].as_str()).collect()
}

const LIST: &str = r#"{"steps":[{"id":"a","type":"bash","command":"echo hi","outputVariable":"said"}]}"#;

#[test]
fn a38_a_list_from_standard_input_runs_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let ran = onward(folder.path(), &["run"], LIST);
    assert_eq!((ran.code, &ran.document["status"]), (0, &json!("ok")), "{:#}", ran.document);
    assert_eq!(ran.document["steps"][0]["output"]["stdout"], "hi\n", "{:#}", ran.document);
    assert_eq!((types(&ran)[0], types(&ran).last()), ("run.created", Some(&"run.completed")));
    let failed = onward(folder.path(), &["run"], r#"{"steps":[{"id":"a","type":"bash","command":"exit 3"}]}"#);
    assert_eq!((failed.code, &failed.document["status"]), (40, &json!("failed")), "{:#}", failed.document);
    assert_eq!(failed.document["steps"][0]["error"]["code"], "bash_exit_code:3");
}

#[test]
fn a38_what_cannot_run_is_refused_with_its_own_exit_code_and_stores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let invalid = onward(&data, &["run"], r#"{"steps":[{"type":"nothing"}]}"#);
    assert_eq!((invalid.code, &invalid.document["status"]), (10, &json!("invalid")), "{:#}", invalid.document);
    assert_eq!(invalid.document["problems"][0]["at"]["path"], "steps[0].type", "{:#}", invalid.document);
    let missing = onward(&data, &["run", "/nowhere/list.json"], "");
    assert_eq!((missing.code, &missing.document["error"]["code"]), (10, &json!("unreadable_file")));
    let other = onward(&data, &["run", "--workflow-hash", "sha256:00"], LIST);
    assert_eq!((other.code, &other.document["error"]["code"]), (20, &json!("hash_mismatch")));
    let output = onward_with_input(&["resume", "--execution-id", "run_x", "--decision", "perhaps"], "");
    assert_eq!(output.status.code(), Some(20), "a decision that there is not");
    assert!(!data.exists());
    let hash = "sha256:0b7ac746efed1f1f45f6a7e2ec6309d05fb41f8e5326586428fae1997bb1b5f7";
    let same = r#"{"steps":[{"id":"a","type":"bash","command":"echo hi"}]}"#;
    let ran = onward(&data, &["run", "--workflow-hash", hash], same);
    assert_eq!((ran.code, &ran.document["workflow_hash"]), (0, &json!(hash)), "{:#}", ran.document);
    let unknown =
        onward(&data, &["resume", "--execution-id", "run_00000000000000000000000000", "--decision", "approve"], "");
    assert_eq!(unknown.code, 10, "{:#}", unknown.document);
}

#[test]
fn a29_a33_a34_a_run_stops_at_an_approval_and_goes_on_in_another_process_without_repeating_anything() {
    let folder = tempfile::tempdir().unwrap();
    let marks = folder.path().join("marks");
    let list = json!({
        "name": "release",
        "variables": { "to": "staging" },
        "steps": [
            { "id": "build", "type": "bash", "command": "echo built >> \"$MARKS\"; echo \"$TO\"",
              "env": { "MARKS": marks.display().to_string(), "TO": "{{variables.to}}" }, "outputVariable": "built" },
            { "id": "gate", "type": "approval", "prompt": "Release to {{variables.to}}?" },
            { "id": "ship", "type": "bash", "command": "echo shipped >> \"$MARKS\"",
              "env": { "MARKS": marks.display().to_string() } },
        ],
    });
    let file = folder.path().join("release.json");
    std::fs::write(&file, list.to_string()).unwrap();
    let data = folder.path().join("data");
    let file = file.display().to_string();
    let arguments = ["run", &file, "--input", r#"{"to":"production"}"#, "--execution-id", "r-1"];
    let stopped = onward(&data, &arguments, "");
    assert_eq!((stopped.code, &stopped.document["status"]), (0, &json!("needs_approval")), "{:#}", stopped.document);
    let asked = &stopped.document["requires_approval"];
    assert_eq!((&asked["step_id"], &asked["prompt"]), (&json!("gate"), &json!("Release to production?")));
    let id = stopped.document["execution_id"].as_str().unwrap().to_owned();
    let again = onward(&data, &arguments, "");
    assert_eq!(again.document["execution_id"], id.as_str(), "the same id is the same run");
    let resume = |decision: &str, token: &str| {
        onward(&data, &["resume", "--execution-id", &id, "--decision", decision, "--resume-token", token], "")
    };
    let wrong = resume("approve", "sha256-of-something-else");
    assert_eq!(wrong.code, 20, "{:#}", wrong.document);
    let done = resume("approve", asked["resume_token"].as_str().unwrap());
    assert_eq!((done.code, &done.document["status"]), (0, &json!("ok")), "{:#}", done.document);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "built\nshipped\n", "nothing ran twice");
    assert!(!types(&done).contains(&"run.created"), "only what is new: {:?}", types(&done));

    let denied = onward(&data, &["run", &file, "--execution-id", "r-2"], "");
    let id = denied.document["execution_id"].as_str().unwrap();
    let denied = onward(&data, &["resume", "--execution-id", id, "--decision", "deny"], "");
    assert_eq!((denied.code, &denied.document["status"]), (0, &json!("cancelled")), "{:#}", denied.document);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "built\nshipped\nbuilt\n");
}
