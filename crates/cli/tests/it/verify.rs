//! `onward verify`, as scripts see it: exit codes, text and JSON.

use crate::harness::Server;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output};
use store::SqliteStore;
use tempfile::TempDir;
use testkit::conformance::fixtures;

fn verify(data: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onward"));
    command.arg("verify").arg("--data").arg(data).args(flags).env_remove("ONWARD_STORE").env_remove("ONWARD_DATA");
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A store with a run whose record cannot be decoded.
fn store_with_a_bad_record() -> TempDir {
    let folder = TempDir::new().unwrap();
    let store = SqliteStore::open(&folder.path().join("onward.db")).unwrap();
    let written =
        testkit::now(store::JournalStore::commit(&store, &fixtures::batch([fixtures::start(fixtures::run(1))])));
    assert!(written.is_ok());
    folder
}

#[test]
fn a_clean_store_ends_with_0() {
    let folder = TempDir::new().unwrap();
    drop(SqliteStore::open(&folder.path().join("onward.db")).unwrap());
    let output = verify(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).ends_with("no problems\n"));
    assert!(stdout(&verify(folder.path(), &["--json"])).starts_with(r#"{"clean":true,"total":0,"#));
}

#[test]
fn problems_end_with_1_and_have_a_line_each() {
    let folder = store_with_a_bad_record();
    let output = verify(folder.path(), &["--limit", "1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    let expected = format!("version_missing {}: ", fixtures::run(1));
    assert!(text.starts_with(&expected) && text.contains("\n… and "), "{text}");
    let output = verify(folder.path(), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).starts_with(r#"{"clean":false,"total":"#));
}

#[test]
fn wrong_usage_ends_with_2_and_an_unreadable_store_with_74() {
    let folder = TempDir::new().unwrap();
    for flags in [&["--store", "mysql://x"][..], &["--limit", "many"], &["--nonsense"]] {
        assert_eq!(verify(folder.path(), flags).status.code(), Some(2), "{flags:?}");
    }
    let output = verify(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(74));
    assert!(stdout(&output).is_empty() && !output.stderr.is_empty());
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "verify created a file");
    std::fs::write(folder.path().join("onward.db"), "this is not a database at all".repeat(200)).unwrap();
    assert_eq!(verify(folder.path(), &[]).status.code(), Some(74));
}

/// A group or a loop fails with the code of a step inside of it, also one that it could fail with by itself, before the
/// rest of it has ended.
#[test]
fn m10_a_template_error_inside_of_a_group_or_a_loop_is_no_damage() {
    let server = Server::start();
    let bad = "bad: { set: { x: '{{trigger.body.gone}}' } }";
    for steps in [
        format!(
            "g: {{ group: {{ tasks: {{ {bad}, nap: {{ sleep: 1h }}, after: {{ needs: [nap], noop: {{}} }} }} }} }}"
        ),
        format!("g: {{ loop: {{ items: [1, 2, 3], tasks: {{ {bad} }} }} }}"),
    ] {
        let view = server.play(&steps, &json!({}));
        assert_eq!(
            (&view["status"], &view["tasks"]["g"]["error"]["code"]),
            (&"failed".into(), &"template_error".into())
        );
    }
    server.verify();
}
