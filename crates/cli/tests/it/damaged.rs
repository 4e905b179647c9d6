//! One run whose stored data cannot be read does not hide the others: lists, bulk changes and retention go on.

use crate::harness::{Server, eventually, onward, sqlite_only};
use rusqlite::Connection;
use serde_json::{Value, json};

/// Stops the server, changes one row of a run, and starts the server again.
fn change(server: &mut Server, run: &str, statement: &str) {
    server.kill_at_once();
    let id = kernel::RunId::parse(run).expect("a run id");
    let file = Connection::open(server.data().join("onward.db")).expect("the store");
    assert_eq!(file.execute(statement, [id.0]).expect("the statement"), 1, "{statement}");
    drop(file);
    server.start_again();
}

const BREAK_RECORD: &str = "UPDATE journal SET body = CAST(body || x'00' AS BLOB) WHERE run = $1 AND seq = 1";
const MEND_RECORD: &str = "UPDATE journal SET body = substr(body, 1, length(body) - 1) WHERE run = $1 AND seq = 1";
const BREAK_ROW: &str = "UPDATE runs SET version = -1 WHERE id = $1";
const MEND_ROW: &str = "UPDATE runs SET version = 1 WHERE id = $1";

fn ids(list: &Value, name: &str) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|item| item[name].as_str().expect("an id").to_owned()).collect()
}

fn run_of(task: &str) -> String {
    task.replace("task_", "run_")
}

#[test]
fn a_damaged_task_does_not_hide_the_others_from_lists_and_bulk_changes() {
    if sqlite_only("the test damages the file") {
        return;
    }
    let mut server = Server::start();
    let tasks: Vec<String> = (0..3).map(|n| server.submit("mail.send.v1", json!(n))).collect();
    let damaged = run_of(&tasks[1]);
    for (damage, repair) in [(BREAK_RECORD, MEND_RECORD), (BREAK_ROW, MEND_ROW)] {
        change(&mut server, &damaged, damage);
        for filter in ["", "?type=mail.%25", "?status=pending"] {
            let page = server.get(&format!("/api/v1/tasks{filter}"));
            assert_eq!(page.status, 200, "{filter}: {}", page.text());
            let page = page.json();
            assert_eq!(ids(&page["data"], "id"), [tasks[2].clone(), tasks[0].clone()], "{filter}");
            assert_eq!(ids(&page["unreadable"], "run_id"), [damaged.as_str()], "{filter}");
            assert_eq!(page["unreadable"][0]["code"], "run_damaged");
        }
        let request = json!({ "action": "cancel", "filter": { "type": "mail.send.v1" }, "dry_run": true });
        let seen = server.post("/api/v1/tasks/bulk", &request).data(200);
        assert_eq!((&seen["matched"], ids(&seen["unreadable"], "run_id")), (&json!(2), vec![damaged.clone()]));
        let url = format!("http://{}", server.address);
        let listed = onward(&["tasks", "list", "--url", &url]);
        let (out, err) = (String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
        assert!(listed.status.success() && out.contains(&tasks[0]), "{out}{err}");
        assert!(err.contains(&format!("warning: {damaged} cannot be read")), "{err}");
        let listed = onward(&["tasks", "list", "--json", "--url", &url]);
        let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        assert_eq!(ids(&listed["unreadable"], "run_id"), [damaged.as_str()]);
        change(&mut server, &damaged, repair);
        assert_eq!(server.list("/api/v1/tasks").len(), 3, "the task can be read again");
    }
    change(&mut server, &damaged, BREAK_RECORD);
    let request = json!({ "action": "cancel", "filter": { "type": "mail.send.v1" } });
    let seen = server.post("/api/v1/tasks/bulk", &request).data(200);
    assert_eq!((&seen["matched"], &seen["changed"]), (&json!(2), &json!(2)));
    change(&mut server, &damaged, MEND_RECORD);
    assert_eq!(server.task(&tasks[1])["status"], "pending");
    assert_eq!(server.task(&tasks[2])["status"], "cancelled");
}

#[test]
fn a_damaged_run_does_not_hide_the_others_from_lists_and_retention() {
    if sqlite_only("the test damages the file") {
        return;
    }
    let mut server = Server::with(&["--clock", "virtual", "--retention", "2d"]);
    let workflow = server.workflow("a: {noop: {}}");
    let runs: Vec<String> = (0..4).map(|_| server.trigger(&workflow, &json!(null))).collect();
    runs.iter().for_each(|run| assert_eq!(server.finished(run)["status"], "completed"));
    change(&mut server, &runs[1], BREAK_ROW);
    change(&mut server, &runs[2], BREAK_RECORD);
    for path in ["/api/v1/runs", "/api/v1/runs?limit=2", "/api/v1/runs?status=completed"] {
        let (mut seen, mut unreadable, mut next) = (Vec::new(), Vec::new(), None::<String>);
        for _ in 0..runs.len() {
            let more = next.as_ref().map(|next| format!("{}cursor={next}", if path.contains('?') { '&' } else { '?' }));
            let page = server.get(&format!("{path}{}", more.unwrap_or_default())).json();
            seen.extend(ids(&page["data"], "id"));
            unreadable.extend(ids(&page["unreadable"], "run_id"));
            next = page["next"].as_str().map(str::to_owned);
            if next.is_none() {
                break;
            }
        }
        assert_eq!(seen, [runs[3].clone(), runs[2].clone(), runs[0].clone()], "{path}: its row is whole");
        assert_eq!(unreadable, [runs[1].as_str()], "{path}");
    }
    assert_eq!(server.get(&format!("/api/v1/runs/{}", runs[1])).refusal(500), "run_damaged");
    server.advance("3d");
    eventually("the other runs are deleted", || {
        let left = server.get("/api/v1/runs").json();
        (ids(&left["data"], "id") == [runs[2].as_str()]).then_some(())
    });
    change(&mut server, &runs[1], MEND_ROW);
    change(&mut server, &runs[2], MEND_RECORD);
    eventually("retention deletes the runs once they can be read", || {
        server.advance("1h");
        server.list("/api/v1/runs").is_empty().then_some(())
    });
}
