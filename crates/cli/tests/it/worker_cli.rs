//! `onward worker` against the real server, and the commands `tasks`, `types` and `workers`.

use crate::harness::{Server, eventually, onward};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A worker process, and the folder in which its commands run. Dropping it kills the process.
struct Worker {
    child: Child,
    folder: tempfile::TempDir,
}

impl Worker {
    fn start(server: &Server, script: &str, flags: &[&str]) -> Worker {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_onward"));
        command.args(["worker", "--exec", script, "--url", &format!("http://{}", server.address)]).args(flags);
        if !flags.contains(&"--types") {
            command.args(["--types", "shell.%"]);
        }
        let child = command.current_dir(folder.path()).stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        Worker { child: child.expect("the worker starts"), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn signal(&self, name: &str) {
        let signal = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().expect("sh").success());
    }

    fn ended(&mut self) -> ExitStatus {
        eventually("the worker ends", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ended(server: &Server, id: &str) -> Value {
    eventually(&format!("{id} ends"), || {
        let view = server.get(&format!("/api/v1/tasks/{id}?wait=5s")).data(200);
        (!matches!(view["status"].as_str(), Some("pending" | "leased"))).then_some(view)
    })
}

fn is_alive(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid.trim()]).stderr(Stdio::null()).status().expect("kill").success()
}

const QUICKLY: &str = r#"{"max_attempts": 2, "backoff": {"type": "fixed", "min": "100ms"}}"#;

fn quickly() -> Value {
    serde_json::from_str(QUICKLY).expect("JSON")
}

#[test]
fn w3_w20_a_command_reads_its_input_and_prints_its_result() {
    // Other nodes learn of a worker only after a while.
    let server = Server::alone(&[]);
    let script = r#"case $ONWARD_TYPE in
        shell.echo.v1) cat ;;
        shell.text.v1) echo "hello $(cat)" ;;
        shell.none.v1) exec 0<&- ;;
        shell.env.v1) printf '{"task": "%s", "attempt": %s, "max": %s, "key": "%s", "run": "%s"}' \
            $ONWARD_TASK_ID $ONWARD_ATTEMPT $ONWARD_MAX_ATTEMPTS $ONWARD_IDEMPOTENCY_KEY $ONWARD_RUN_ID ;;
    esac"#;
    let _worker = Worker::start(&server, script, &["--id", "sh-1"]);
    let large = "x".repeat(200_000);
    for (name, payload, expected) in [
        ("shell.echo.v1", json!({ "a": ["ž", 1.5, null] }), json!({ "a": ["ž", 1.5, null] })),
        ("shell.echo.v1", json!(large), json!(large)),
        ("shell.text.v1", json!(7), json!("hello 7")),
        ("shell.none.v1", json!(large), Value::Null),
    ] {
        let id = server.submit_with(&json!({ "type": name, "payload": payload }));
        let view = ended(&server, &id);
        assert_eq!((&view["status"], &view["result"]), (&json!("succeeded"), &expected), "{name}: {}", view["error"]);
    }
    let id = server.submit_with(&json!({ "type": "shell.env.v1" }));
    let view = ended(&server, &id);
    let run = view["run_id"].as_str().expect("a run");
    assert_eq!(view["result"], json!({ "task": id, "attempt": 1, "max": 3, "key": format!("{run}:task"), "run": run }));
    let seen = server.list("/api/v1/workers");
    let seen = seen.iter().find(|worker| worker["id"] == "sh-1").expect("it is listed");
    assert_eq!((&seen["runtime"], &seen["slots"]), (&json!("exec"), &json!(4)));
}

#[test]
fn w12_w13_the_exit_code_of_a_command_decides_the_outcome() {
    let server = Server::start();
    let script = r#"code=$(cat); echo "line one" >&2; echo "code $code at attempt $ONWARD_ATTEMPT" >&2
        if [ $code = 101 ] && [ ! -e snoozed ]; then touch snoozed; echo 1; exit 101; fi
        [ $code = 101 ] || exit $code"#;
    let _worker = Worker::start(&server, script, &[]);
    let submitted = |code: i32| server.submit_with(&json!({ "type": "shell.v1", "payload": code, "retry": quickly() }));
    let [again, tempfail, last] = [3, 75, 100].map(submitted);
    let nap = server.submit_with(&json!({ "type": "shell.v1", "payload": 101, "max_attempts": 1 }));
    for (id, code, attempt) in [(&again, "exit_3", 2), (&tempfail, "exit_75", 2), (&last, "exit_100", 1)] {
        let view = ended(&server, id);
        assert_eq!((&view["status"], &view["attempt"]), (&json!("failed"), &json!(attempt)), "{view}");
        assert_eq!(view["error"]["code"], code);
        let number = code.trim_start_matches("exit_");
        assert_eq!(view["error"]["message"], format!("line one\ncode {number} at attempt {attempt}"));
        let events = server.get(&format!("/api/v1/tasks/{id}/events")).text();
        assert!(events.contains("line one"), "standard error is in the history: {events}");
    }
    let view = ended(&server, &nap);
    assert_eq!(view["status"], "succeeded", "a snooze is not charged as an attempt: {view}");
}

#[test]
fn w3_the_output_of_a_command_is_bounded() {
    let server = Server::start();
    let script = r#"case $ONWARD_TYPE in
        shell.long.v1) head -c 3000000 /dev/zero | tr '\0' x ;;
        shell.noise.v1) yes | head -n 100000 >&2; echo '"done"' ;;
        shell.bytes.v1) printf '\377\376 text' ;;
        shell.missing.v1) /nowhere/at/all ;;
        shell.child.v1) sleep 600 & echo '"left a child"' ;;
        shell.killed.v1) kill -9 $$ ;;
    esac"#;
    let _worker = Worker::start(&server, script, &[]);
    for (name, status, word) in [
        ("shell.long.v1", "failed", "result_too_large"),
        ("shell.noise.v1", "succeeded", "done"),
        ("shell.bytes.v1", "succeeded", "text"),
        ("shell.missing.v1", "failed", "exit_127"),
        ("shell.child.v1", "succeeded", "left a child"),
        ("shell.killed.v1", "failed", "signal_9"),
    ] {
        let view = ended(&server, &server.submit_with(&json!({ "type": name, "max_attempts": 1 })));
        assert_eq!(view["status"], status, "{name}: {view}");
        let shown = if status == "failed" { &view["error"]["code"] } else { &view["result"] };
        assert!(shown.to_string().contains(word), "{name}: {shown}");
    }
}

#[test]
fn w10_a_long_command_keeps_its_lease_and_a_slow_one_is_stopped() {
    let server = Server::start();
    let script = r#"sleep $(cat)"#;
    let _worker = Worker::start(&server, script, &["--lease", "1s", "--timeout", "4s"]);
    let long = server.submit_with(&json!({ "type": "shell.v1", "payload": 2.5, "max_attempts": 1 }));
    let slow = server.submit_with(&json!({ "type": "shell.v1", "payload": 600, "max_attempts": 1 }));
    assert_eq!(ended(&server, &long)["status"], "succeeded");
    let view = ended(&server, &slow);
    assert_eq!((&view["status"], &view["error"]["code"]), (&json!("failed"), &json!("timeout")), "{view}");
}

#[test]
fn w11_cancelling_ends_the_whole_process_group() {
    let server = Server::start();
    // The command and its child ignore SIGTERM: only SIGKILL ends both.
    let script = r#"trap '' TERM; sleep 600 & echo $! > child; echo $$ > leader; wait"#;
    let worker = Worker::start(&server, script, &["--slots", "1", "--lease", "1h"]);
    let id = server.submit_with(&json!({ "type": "shell.v1" }));
    let [leader, child] = ["leader", "child"].map(|name| {
        let path = worker.path(name);
        eventually("the process runs", || std::fs::read_to_string(&path).ok().filter(|pid| pid.ends_with('\n')))
    });
    assert!(is_alive(&leader) && is_alive(&child));
    let sent_at = Instant::now();
    server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).data(200);
    eventually("both are gone", || (!is_alive(&leader) && !is_alive(&child)).then_some(()));
    let took = sent_at.elapsed();
    assert!(
        took > Duration::from_secs(4) && took < Duration::from_secs(20),
        "SIGTERM, five seconds, SIGKILL: {took:?}"
    );
    let next = server.submit_with(&json!({ "type": "other.v1" }));
    assert_eq!(server.task(&next)["status"], "pending", "the worker does not claim this type");
}

#[test]
fn w2_onward_worker_drains_on_sigterm() {
    let server = Server::start();
    let script = r#"n=$(cat); touch started-$n; while [ ! -e go-$n ]; do sleep 0.05; done; echo $n"#;
    let mut worker = Worker::start(&server, script, &["--slots", "2", "--drain-grace", "1h"]);
    let [first, second, third] =
        [1, 2, 3].map(|n| server.submit_with(&json!({ "type": "shell.v1", "payload": n, "max_attempts": 1 })));
    for id in [&first, &second] {
        eventually("it is leased", || (server.task(id)["status"] == "leased").then_some(()));
    }
    eventually("both run", || (worker.path("started-1").exists() && worker.path("started-2").exists()).then_some(()));
    worker.signal("TERM");
    std::fs::write(worker.path("go-1"), "").expect("a file");
    assert_eq!(ended(&server, &first)["result"], 1, "the running task finishes");
    assert_eq!(server.task(&third)["status"], "pending", "no more tasks are claimed");
    assert_eq!(server.task(&second)["status"], "leased");
    worker.signal("TERM");
    assert!(worker.ended().success(), "after a second signal it gives the other tasks back");
    let view = server.task(&second);
    assert_eq!((&view["status"], &view["leased_by"]), (&json!("pending"), &Value::Null), "{view}");
    let worker = Worker::start(&server, "cat", &[]);
    for (id, n) in [(&second, 2), (&third, 3)] {
        let view = ended(&server, id);
        assert_eq!(view["result"], json!(n), "with one attempt, so nothing was charged: {view}");
    }
    drop(worker);
}

#[test]
fn w14_a_killed_worker_and_a_restarted_server_lose_nothing() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|held| held.local_addr()).expect("a free port");
    let mut server = Server::with(&["--listen", &port.to_string()]);
    let script = r#"sleep 0.2; cat"#;
    let mut workers: Vec<Worker> =
        (0..2).map(|_| Worker::start(&server, script, &["--lease", "1s", "--slots", "4"])).collect();
    let list: Vec<Value> = (0..40).map(|n| json!({ "type": "shell.v1", "payload": n, "max_attempts": 9 })).collect();
    let made = server.post("/api/v1/tasks", &json!(list)).data(201);
    let ids: Vec<String> =
        made.as_array().unwrap().iter().map(|task| task["task_id"].as_str().unwrap().to_owned()).collect();
    eventually("some are done", || (server.task(&ids[3])["status"] == "succeeded").then_some(()));
    workers[0].child.kill().expect("kill");
    server.crash_and_restart();
    for (n, id) in ids.iter().enumerate() {
        let view = ended(&server, id);
        assert_eq!((&view["status"], &view["result"]), (&json!("succeeded"), &json!(n)), "{view}");
    }
}

/// Runs a command, checks its exit code and returns its output.
#[track_caller]
fn run_command(server: &Server, code: i32, arguments: &[&str]) -> (String, String) {
    let url = format!("http://{}", server.address);
    let output = onward(&[arguments, &["--url", &url]].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

#[track_caller]
fn ok(server: &Server, arguments: &[&str]) -> String {
    run_command(server, 0, arguments).0
}

#[test]
fn w13_w15_tasks_on_the_command_line() {
    let server = Server::start();
    let id = ok(
        &server,
        &["tasks", "submit", "shell.v1", "--payload", "{\"n\": 1}", "--label", "team=blue", "--priority", "5"],
    );
    let id = id.trim();
    assert!(id.starts_with("task_"), "{id}");
    let key = &["tasks", "submit", "shell.once.v1", "--idempotency-key", "k"];
    assert_eq!(ok(&server, key), ok(&server, key));
    let (_, err) =
        run_command(&server, 1, &["tasks", "submit", "shell.once.v1", "--idempotency-key", "k", "--payload", "2"]);
    assert!(err.contains("error[idempotency_key_reused]"), "{err}");
    let listed = ok(&server, &["tasks", "list", "--type", "shell.%", "--label", "team=blue"]);
    assert!(listed.lines().count() == 2 && listed.contains(id) && listed.contains("pending"), "{listed}");
    let shown = ok(&server, &["tasks", "show", id]);
    assert!(shown.contains("tries    0 of 3") && shown.contains("input    {\"n\":1}"), "{shown}");
    run_command(&server, 2, &["tasks", "submit"]);
    run_command(&server, 2, &["tasks", "submit", "x.v1", "--payload", "{"]);
    run_command(&server, 1, &["tasks", "submit", "no good"]);
    run_command(&server, 2, &["tasks", "bulk", "delete"]);
    run_command(&server, 1, &["tasks", "show", "task_x"]);

    let worker = Worker::start(&server, "echo out of paper >&2; exit 100", &[]);
    let (out, _) = run_command(&server, 1, &["tasks", "show", id, "--follow"]);
    assert!(out.contains("step.failed") && out.contains("error    exit_100: out of paper"), "{out}");
    drop(worker);
    let failed: Value =
        serde_json::from_str(&ok(&server, &["tasks", "list", "--status", "failed", "--json"])).expect("JSON");
    assert!(!failed["data"].as_array().expect("a list").is_empty());
    let _worker = Worker::start(&server, "cat", &[]);
    let released = ok(&server, &["tasks", "retry", id]);
    let view = ended(&server, released.trim());
    assert_eq!(view["result"], json!({ "n": 1 }), "a dead letter is released as a new task");
    assert_eq!(ok(&server, &["tasks", "retry", id]), released, "released once");
    let done = ok(&server, &["tasks", "submit", "shell.v1", "--payload", "[1]", "--wait", "30s"]);
    assert!(done.contains("result   [1]"), "{done}");
    let followed = ok(&server, &["tasks", "submit", "shell.v1", "--payload", "[2]", "--follow", "--json"]);
    let last: Value = serde_json::from_str(followed.lines().last().expect("lines")).expect("JSON");
    assert_eq!((&last["status"], &last["result"]), (&json!("succeeded"), &json!([2])));
}

#[test]
fn w18_w19_bulk_types_and_workers_on_the_command_line() {
    let server = Server::start();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let list: Vec<Value> =
        (0..30).map(|n| json!({ "type": "bulk.v1", "payload": n, "labels": { "n": format!("{}", n % 2) } })).collect();
    std::fs::write(file.path(), json!(list).to_string()).expect("written");
    let ids = ok(&server, &["tasks", "submit", "--from", file.path().to_str().expect("UTF-8")]);
    assert_eq!(ids.lines().count(), 30);
    let would = ok(&server, &["tasks", "bulk", "cancel", "--type", "bulk.%", "--label", "n=1", "--dry-run"]);
    assert!(would.ends_with("15 tasks would be cancelled\n"), "{would}");
    assert_eq!(ok(&server, &["tasks", "bulk", "cancel", "--type", "bulk.%", "--label", "n=1"]), "15 tasks cancelled\n");
    assert_eq!(ok(&server, &["tasks", "bulk", "delete", "--status", "cancelled"]), "15 tasks deleted\n");
    let first = ids.lines().next().expect("an id");
    assert_eq!(ok(&server, &["tasks", "cancel", first]), format!("{first} is cancelled\n"));
    assert_eq!(ok(&server, &["tasks", "delete", first]), format!("{first} is deleted\n"));

    let shown = ok(&server, &["types", "show", "bulk.v1"]);
    assert!(shown.contains("none: no worker claims this type"), "{shown}");
    ok(
        &server,
        &["types", "put", "bulk.v1", "--concurrency", "4", "--rate", "100/1m", "--rate-per-key", "--description", "d"],
    );
    ok(&server, &["types", "put", "bulk.v1", "--concurrency-per-key", "1"]);
    let listed = ok(&server, &["types", "list", "--prefix", "bulk."]);
    assert!(listed.contains("4 at once, 1 of a key at once, 100 per 1m and key"), "{listed}");
    ok(&server, &["types", "put", "bulk.v1", "--concurrency", "none", "--rate", "none", "--disable"]);
    let view: Value = serde_json::from_str(&ok(&server, &["types", "show", "bulk.v1", "--json"])).expect("JSON");
    assert_eq!((&view["concurrency"], &view["rate"]), (&json!({ "per_key": 1 }), &Value::Null));
    run_command(&server, 1, &["tasks", "submit", "bulk.v1"]);
    ok(&server, &["types", "put", "bulk.v1", "--enable"]);
    assert_eq!(ok(&server, &["types", "pause", "bulk.v1", "--note", "lunch"]), "bulk.v1 is paused\n");
    assert_eq!(ok(&server, &["types", "resume", "bulk.v1"]), "bulk.v1 is enabled\n");
    let _worker = Worker::start(&server, "cat", &["--types", "bulk.%", "--types", "other.v1", "--id", "w1"]);
    eventually("it is listed", || {
        let listed = ok(&server, &["workers"]);
        let mut words = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.any(|line| line.starts_with("w1 bulk.%, other.v1 exec")).then_some(())
    });
    run_command(&server, 1, &["worker", "--types", "no good", "--exec", "cat"]);
    run_command(&server, 2, &["worker", "--types", "a.v1"]);
}
