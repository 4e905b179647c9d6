//! `bash` steps on real servers (seed 001 A25 and 2b): what commands get and answer, and that each ends with its step.

use crate::harness::{Answer, Api, Server, Starting, eventually, one_node_only, onward, sqlite_only};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const KEY: &str = "a-key-of-these-tests-0123456789";

fn define(server: &Server, steps: Value) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("bash-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let view = server.post("/api/v1/workflows", &json!({ "name": name, "steps": steps })).data(201);
    assert!(view["problems"].as_array().is_none_or(Vec::is_empty), "{view:#}");
    view["id"].as_str().expect("an id").to_owned()
}

fn start(server: &Server, steps: Value, body: &Value) -> String {
    server.trigger(&define(server, steps), body)
}

fn play(server: &Server, steps: Value, body: &Value) -> Value {
    server.finished(&start(server, steps, body))
}

/// Waits until a command has written this file.
fn written(path: &Path) -> String {
    eventually("a command has written", || std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')))
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Whether a process has this word in its command line.
fn is_running(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes()))
}

/// A duration that no other process sleeps for, so that it can be found.
fn unique_sleep() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{}.{}", 1_000 + std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn a25_a_command_gets_values_by_env_and_stdin_and_answers_with_its_output() {
    let server = Server::start();
    let run = play(
        &server,
        json!([
            { "id": "a", "type": "bash", "command": "echo \"$WHO:$N:$LIST\"; cat; echo oops >&2",
              "env": { "WHO": "{{variables.who}}", "N": 7, "LIST": "{{variables.list}}" }, "stdin": "in: {{variables.who}}",
              "timeoutMs": 5000, "outputVariable": "said" },
            { "id": "b", "type": "set", "values": { "code": "{{outputs.said.exit_code}}" } },
        ]),
        &json!({ "who": "$(id) `id`; exit 9", "list": [1, { "a": "b" }] }),
    );
    assert_eq!(run["status"], "completed", "{run:#}");
    let body = &run["tasks"]["a"]["body"];
    assert_eq!(body["stdout"], "$(id) `id`; exit 9:7:[1,{\"a\":\"b\"}]\nin: $(id) `id`; exit 9");
    assert_eq!((&body["stderr"], &body["exit_code"], &body["timeout_ms"]), (&json!("oops\n"), &json!(0), &json!(5000)));
    assert!(body["command"].as_str().is_some_and(|text| text.starts_with("echo")) && body["duration_ms"].is_u64());
    assert!(!Path::new(body["cwd"].as_str().expect("a folder")).exists(), "the work folder was private");
    assert_eq!(body.as_object().expect("an object").len(), 7);
    assert_eq!(run["tasks"]["b"]["body"]["code"], 0);
    server.verify();
}

#[test]
fn a25_a_graph_runs_commands_too_and_an_exit_code_is_the_code_of_the_failure() {
    let server = Server::start();
    let run = server.play(
        "a: {bash: {command: 'echo to-err >&2; exit 3'}}\nb: {bash: {command: 'kill -9 $$'}}\nc: {bash: {command: no-such-program}}\n\
         d: {needs: [a], if: \"tasks.a.error.code == 'bash_exit_code:3'\", tool: bash, arguments: {command: 'echo handled'}}",
        &json!({}),
    );
    let tasks = &run["tasks"];
    assert_eq!(tasks["a"]["error"]["code"], "bash_exit_code:3", "{run:#}");
    assert_eq!(tasks["a"]["error"]["message"], "the command ended with exit code 3: to-err");
    assert_eq!(tasks["a"]["attempt"], 1, "one attempt is the default");
    assert_eq!(tasks["b"]["error"]["code"], "bash_exit_code:137");
    assert_eq!(tasks["c"]["error"]["code"], "bash_exit_code:127");
    server.verify();
}

#[test]
fn a25_a_failed_command_is_retried_if_the_step_says_so() {
    let server = Server::start();
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("tries");
    let command = format!("echo try >> {0}; test $(wc -l < {0}) -ge 3", file.display());
    let retry = json!({ "max_attempts": 3, "backoff": { "type": "fixed", "min": "10ms", "max": "10ms" } });
    let run = play(&server, json!([{ "id": "a", "type": "bash", "command": command, "retry": retry }]), &json!({}));
    assert_eq!((&run["status"], &run["tasks"]["a"]["attempt"]), (&json!("completed"), &json!(3)), "{run:#}");
    server.verify();
}

#[test]
fn a25_each_stream_is_cut_at_64k_characters_with_a_marker() {
    let server = Server::start();
    let command = "head -c 200000 /dev/zero | tr '\\0' x; head -c 65536 /dev/zero | tr '\\0' y >&2";
    let run = play(&server, json!([{ "id": "a", "type": "bash", "command": command }]), &json!({}));
    let body = &run["tasks"]["a"]["body"];
    let (out, err) = (body["stdout"].as_str().expect("a text"), body["stderr"].as_str().expect("a text"));
    assert_eq!((out.len(), err.len()), (65_536 + "\n[output truncated]".len(), 65_536));
    assert!(out.ends_with("x\n[output truncated]"));
    server.verify();
}

#[test]
fn a25_at_its_time_limit_a_command_ends_with_all_of_its_processes() {
    let server = Server::start();
    let sleep = unique_sleep();
    let command = format!("setsid sleep {sleep} & (trap '' TERM; sleep {sleep}) & sleep {sleep}");
    let started = Instant::now();
    let run = play(&server, json!([{ "id": "a", "type": "bash", "command": command, "timeoutMs": 1000 }]), &json!({}));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(run["tasks"]["a"]["error"]["code"], "bash_timeout:1000", "{run:#}");
    assert_eq!(run["tasks"]["a"]["status"], "failed");
    assert!(!is_running(&sleep));
    server.verify();
}

#[test]
fn a25_cancelling_the_run_kills_its_commands_at_once() {
    let server = Server::start();
    let sleep = unique_sleep();
    let command = format!("setsid sleep {sleep} & sleep {sleep}");
    let run = start(&server, json!([{ "id": "a", "type": "bash", "command": command }]), &json!({}));
    eventually("it runs", || is_running(&sleep).then_some(()));
    server.cancel(&run).data(200);
    let cancelled = Instant::now();
    eventually("the command is gone", || (!is_running(&sleep)).then_some(()));
    assert!(cancelled.elapsed() < Duration::from_secs(8), "{:?}", cancelled.elapsed());
    assert_eq!(server.run(&run)["status"], "cancelled");
    server.verify();
}

#[test]
fn a25_cancelling_is_heard_when_every_slot_is_taken() {
    let server = Server::alone(&["--bash-slots", "1"]);
    let sleep = unique_sleep();
    let step = |command: String| json!([{ "id": "a", "type": "bash", "command": command }]);
    let first = start(&server, step(format!("sleep {sleep}")), &json!({}));
    eventually("it runs", || is_running(&sleep).then_some(()));
    let second = start(&server, step("echo next".into()), &json!({}));
    assert_eq!(server.run(&second)["tasks"]["a"]["status"], "pending");
    let cancelled = Instant::now();
    server.cancel(&first).data(200);
    assert_eq!(server.finished(&second)["tasks"]["a"]["body"]["stdout"], "next\n");
    assert!(cancelled.elapsed() < Duration::from_secs(3), "{:?}", cancelled.elapsed());
}

#[test]
fn a25_a_command_whose_end_is_recorded_is_not_repeated_after_a_crash() {
    let mut server = Server::start();
    let folder = TempDir::new().expect("a folder");
    let (one, two, three) = (folder.path().join("1"), folder.path().join("2"), folder.path().join("3"));
    let sleep = unique_sleep();
    // The second command ends by itself only when it runs again.
    let second = format!("echo try >> {0}; test $(wc -l < {0}) -ge 2 || sleep {sleep}", two.display());
    let steps = json!([
        { "id": "one", "type": "bash", "command": format!("echo try >> {}", one.display()) },
        { "id": "two", "type": "bash", "command": second },
        { "id": "three", "type": "bash", "command": format!("echo try >> {}", three.display()) },
    ]);
    let run = start(&server, steps, &json!({}));
    eventually("the second command runs", || is_running(&sleep).then_some(()));
    server.kill_at_once();
    eventually("its processes ended with the server", || (!is_running(&sleep)).then_some(()));
    server.start_again();
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!([lines(&one), lines(&two), lines(&three)], [1, 2, 1], "only the step that was at work ran again");
    let repeated = server.events(&run).iter().filter(|event| event["data"]["code"] == "lease_lost").count();
    assert_eq!(view["tasks"]["two"]["attempt"], 2, "{repeated}: {view:#}");
    server.verify();
}

#[test]
fn a25_retry_never_means_that_a_command_runs_at_most_once() {
    let mut server = Server::start();
    let folder = TempDir::new().expect("a folder");
    let (file, sleep) = (folder.path().join("tries"), unique_sleep());
    let command = format!("echo try >> {}; sleep {sleep}", file.display());
    let steps = json!([{ "id": "a", "type": "bash", "command": command, "retry": "never" }]);
    let run = start(&server, steps, &json!({}));
    eventually("it runs", || is_running(&sleep).then_some(()));
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["a"]["error"]["code"], "outcome_unknown", "{view:#}");
    assert_eq!(lines(&file), 1);
}

#[test]
fn a25_a_drain_waits_for_commands_and_hands_back_those_that_do_not_end() {
    let mut server = Server::with(&["--drain-grace", "2s"]);
    let folder = TempDir::new().expect("a folder");
    let [file, quick, gate] = ["long", "quick", "gate"].map(|name| folder.path().join(name));
    let sleep = unique_sleep();
    let long = format!("echo try >> {0}; test $(wc -l < {0}) -ge 2 || sleep {sleep}", file.display());
    let short =
        format!("echo try >> {}; until test -e {}; do sleep 0.05; done; echo done", quick.display(), gate.display());
    let long = start(&server, json!([{ "id": "a", "type": "bash", "command": long }]), &json!({}));
    let short = start(&server, json!([{ "id": "a", "type": "bash", "command": short }]), &json!({}));
    eventually("both run", || (is_running(&sleep) && lines(&quick) == 1).then_some(()));
    server.ask_to_stop();
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(&gate, "open").expect("a file");
    assert!(server.ended().success());
    assert!(!is_running(&sleep), "nothing runs without its server");
    server.start_again();
    let view = server.finished(&long);
    assert_eq!((&view["status"], lines(&file)), (&json!("completed"), 2), "{view:#}");
    let view = server.finished(&short);
    assert_eq!((&view["tasks"]["a"]["body"]["stdout"], lines(&quick)), (&json!("done\n"), 1), "{view:#}");
    let lost = server.events(&long).iter().filter(|event| event["type"] == "step.lease_lost").count();
    assert_eq!(lost, 0, "it was handed back");
}

#[test]
fn a25_a_virtual_clock_waits_for_commands() {
    if one_node_only("a virtual clock is one process's") {
        return;
    }
    let server = Server::with_virtual_clock();
    let steps = json!([
        { "type": "sleep", "duration": "1h" },
        { "id": "a", "type": "bash", "command": "sleep 0.3; echo late" },
        { "type": "sleep", "duration": "1h" },
        { "id": "b", "type": "bash", "command": "echo later" },
    ]);
    let run = start(&server, steps, &json!({}));
    server.advance("3h");
    let view = server.run(&run);
    assert_eq!((&view["status"], &view["tasks"]["a"]["attempt"]), (&json!("completed"), &json!(1)), "{view:#}");
    server.verify();
}

#[test]
fn t35_the_version_says_how_commands_are_contained() {
    let server = Server::start();
    let bash = server.get("/api/v1/version").data(200)["bash"].clone();
    assert_eq!(
        (&bash["enabled"], &bash["required"], &bash["network"]),
        (&json!(true), &json!("supervised"), &json!(true))
    );
    assert!(bash["features"].as_array().is_some_and(|features| features.len() == 15), "{bash:#}");
    assert!(["none", "supervised", "restricted", "isolated"].contains(&bash["level"].as_str().expect("a level")));
    eventually("the log has the report", || server.log().contains("bash steps run on this server").then_some(()));
    // Several nodes tell each other their workers every few seconds.
    eventually("the worker is listed", || {
        let workers = server.list("/api/v1/workers");
        workers.iter().any(|worker| worker["types"] == json!(["onward.bash"])).then_some(())
    });
}

/// A server for others, with its key.
struct Serving {
    _process: Starting,
    api: Api,
    _data: TempDir,
}

impl Serving {
    fn start(flags: &[&str]) -> Serving {
        let data = TempDir::new().expect("a folder");
        let flags = [&["--listen", "127.0.0.1:0"], flags].concat();
        let mut process = Starting::serving(data.path(), &flags, &[("ONWARD_ADMIN_KEY", KEY)]);
        let address = process.ready().unwrap_or_else(|| panic!("not ready: {}", process.log()));
        Serving { _process: process, api: Api::new(&[SocketAddr::from(([127, 0, 0, 1], address.port()))]), _data: data }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("Authorization", &*format!("Bearer {KEY}")), ("Content-Type", "application/json")];
        self.api.send(method, path, &headers, body.to_string().as_bytes())
    }

    fn get(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null).data(200)
    }

    fn start_run(&self, steps: Value) -> (String, Value) {
        let view = self.send("POST", "/api/v1/workflows", &json!({ "name": "w", "steps": steps })).data(201);
        let run = self.send("POST", "/api/v1/workflows/w/trigger", &json!({})).json()["data"]["run_id"].clone();
        (run.as_str().expect("a run").to_owned(), view["problems"].clone())
    }

    fn finished(&self, run: &str) -> Value {
        let path = format!("/api/v1/runs/{run}");
        eventually("the run ends", || {
            let view = self.get(&path);
            crate::harness::is_terminal(&view).then_some(view)
        })
    }
}

#[test]
fn t35_serve_runs_no_commands_unless_told_to_and_says_so() {
    let server = Serving::start(&[]);
    assert_eq!(server.get("/api/v1/version")["bash"], json!({ "enabled": false }));
    let (run, problems) = server.start_run(json!([{ "id": "a", "type": "bash", "command": "echo hi" }]));
    assert_eq!((&problems[0]["code"], &problems[0]["severity"]), (&json!("bash_disabled"), &json!("warning")));
    eventually("it waits", || {
        (server.get(&format!("/api/v1/runs/{run}"))["tasks"]["a"]["status"] == "pending").then_some(())
    });
    let explained = server.get(&format!("/api/v1/runs/{run}/explain"));
    assert_eq!(explained["reason"], "waiting_for_worker", "{explained:#}");
    assert!(explained["summary"].as_str().is_some_and(|text| text.contains("onward serve --bash")), "{explained:#}");
}

#[test]
fn t35_serve_with_bash_lets_commands_into_their_folder_only() {
    let server = Serving::start(&["--bash"]);
    let level = server.get("/api/v1/version")["bash"]["level"].clone();
    if level != "restricted" && level != "isolated" {
        println!("skipped: this machine offers {level} only");
        return;
    }
    let outside = TempDir::new().expect("a folder");
    let file = outside.path().join("x");
    let command = format!(
        "echo mine > x && cat x; echo > {} || echo denied; (exec 3<>/dev/tcp/127.0.0.1/1) 2>&1 | grep -c refused; echo end",
        file.display()
    );
    let (run, problems) = server.start_run(json!([{ "id": "a", "type": "bash", "command": command }]));
    assert!(problems.as_array().is_none_or(Vec::is_empty), "{problems:#}");
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["a"]["body"]["stdout"], "mine\ndenied\n0\nend\n", "{view:#}");
    assert!(!file.exists());
}

#[test]
fn t35_below_the_required_level_a_step_is_refused_and_never_degraded() {
    if sqlite_only("root in a user namespace does not reach the socket of the database") {
        return;
    }
    // A root without the right to make namespaces, and without any left to make.
    const WITHOUT: &str = "echo 0 > /proc/sys/user/max_user_namespaces && \
                           exec setpriv --bounding-set -sys_admin --inh-caps -all \"$@\"";
    let tried = Command::new("unshare").args(["-Ur", "sh", "-c", WITHOUT, "sh", "true"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: namespaces cannot be taken away here");
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let wrapper = folder.path().join("onward");
    let script = format!("#!/bin/sh\nexec unshare -Ur sh -c '{WITHOUT}' sh {} \"$@\"\n", env!("CARGO_BIN_EXE_onward"));
    std::fs::write(&wrapper, script).expect("a file");
    std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).expect("executable");
    let data = TempDir::new().expect("a folder");
    let server = Server::of_release(wrapper.to_str().expect("a path"), &["--bash-isolation", "isolated"], data);
    assert_ne!(server.get("/api/v1/version").data(200)["bash"]["level"], "isolated");
    let run = play(&server, json!([{ "id": "a", "type": "bash", "command": "echo ran", "retries": 3 }]), &json!({}));
    let step = &run["tasks"]["a"];
    assert_eq!((&step["error"]["code"], &step["attempt"]), (&json!("sandbox_unavailable"), &json!(1)), "{step:#}");
    let message = step["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`isolated` is required") && message.contains("process_namespace"), "{message}");
    assert!(server.log().contains("bash steps are refused"), "{}", server.log());
}

#[test]
fn t35_all_commands_work_in_the_workspace() {
    let folder = TempDir::new().expect("a folder");
    let workspace = std::fs::canonicalize(folder.path()).expect("a path");
    let server = Server::with(&["--workspace", workspace.to_str().expect("a path")]);
    let steps = json!([
        { "id": "a", "type": "bash", "command": "echo kept > note" },
        { "id": "b", "type": "bash", "command": "cat note; pwd" },
    ]);
    let run = play(&server, steps, &json!({}));
    assert_eq!(run["tasks"]["b"]["body"]["stdout"], format!("kept\n{}\n", workspace.display()), "{run:#}");
    assert_eq!(written(&workspace.join("note")), "kept\n");
}

#[test]
fn a25_onward_test_answers_for_commands_and_runs_none() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("ran");
    let list = format!(
        "name: list\nsteps:\n  - {{ id: a, type: bash, command: 'touch {}' }}\n  - {{ id: b, type: log, message: '{{{{tasks.a.body.stdout}}}}' }}\n",
        file.display()
    );
    std::fs::write(folder.path().join("list.yaml"), list).expect("a file");
    let cases = folder.path().join("list.test.yaml");
    let text = "workflow: list.yaml\ncases:\n  - name: it answers\n    tasks: { a: { result: { stdout: hi, exit_code: 0 } } }\n    \
                expect: { status: completed, steps: { a: success, b: success } }\n  - name: it fails\n    \
                tasks: { a: { error: { code: 'bash_exit_code:3', message: bad } } }\n    expect: { status: failed, steps: { a: failed, b: skipped } }\n";
    std::fs::write(&cases, text).expect("a file");
    let tested = onward(&["test", cases.to_str().expect("a path")]);
    assert!(tested.status.success(), "{tested:?}");
    assert!(!file.exists());
}
