//! The command line, against a real server: standard output, standard error and the exit code.

use crate::harness::{Server, Upstream, eventually, onward, onward_with_input, status};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a command printed and its exit code.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    #[track_caller]
    pub fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
    }

    /// Checks the exit code, that standard error contains these words, and that standard output is empty.
    #[track_caller]
    pub fn refused(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        words.iter().for_each(|word| assert!(self.err.contains(word), "{word}: {self:?}"));
    }
}

pub struct Shell<'s> {
    server: &'s Server,
    folder: tempfile::TempDir,
}

impl Shell<'_> {
    pub fn new(server: &Server) -> Shell<'_> {
        Shell { server, folder: tempfile::tempdir().expect("a folder") }
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        self.run_with(arguments, "")
    }

    pub fn run_with(&self, arguments: &[&str], input: &str) -> Said {
        let url = format!("http://{}", self.server.address);
        result_of(onward_with_input(&[arguments, &["--url", &url]].concat(), input))
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }
}

fn result_of(output: std::process::Output) -> Said {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Said { code: output.status.code().expect("no signal"), out: text(output.stdout), err: text(output.stderr) }
}

const HELLO: &str = "name: hello\ntasks:\n  greet: { set: { text: \"hi {{trigger.body.name}}\" } }\n  maybe: { noop: {}, needs: [greet], if: \"trigger.body.n == 1\" }\n";

#[test]
fn cli_apply_creates_workflows_and_shows_problems_in_the_source() {
    let server = Server::start();
    let shell = Shell::new(&server);
    let good = shell.file("good.yaml", HELLO);
    let bad = shell.file("bad.yaml", "name: bad\ntasks:\n  greet: { noop: {} }\n  then: { noop: {}, needs: [gret] }\n");
    let both = shell.run(&["workflows", "apply", &bad, &good]);
    assert_eq!(both.code, 1, "one was refused: {both:?}");
    assert_eq!(both.out, format!("{good}: created hello, version 1\n"), "the valid file was applied");
    for word in ["error[needs_unknown_step]", "bad.yaml:4:29", "^^^^", "did you mean `greet`?", "1 problem"] {
        assert!(both.err.contains(word), "{word}: {}", both.err);
    }
    let list = shell.run(&["workflows", "list"]).ok();
    assert!(list.starts_with("NAME "), "{list}");
    assert!(list.lines().nth(1).is_some_and(|line| line.starts_with("hello  enabled")), "{list}");
    let shown = shell.run(&["workflows", "show", "hello", "--json"]).json();
    assert_eq!(shown["definition"]["tasks"]["maybe"]["needs"], json!(["greet"]));
    let definition = shell.run(&["workflows", "show", "hello", "--definition"]).json();
    assert_eq!(definition, shown["definition"]);
    shell.run(&["workflows", "apply", "/nowhere.yaml"]).refused(2, &["cannot read /nowhere.yaml"]);
    shell.run(&["workflows", "show", "missing"]).refused(1, &["error[not_found]", "`missing`"]);
}

#[test]
fn cli_apply_replaces_a_workflow_and_history_and_diff_show_it() {
    let server = Server::start();
    let shell = Shell::new(&server);
    let file = shell.file("hello.yaml", HELLO);
    shell.run(&["workflows", "apply", &file]).ok();
    assert_eq!(shell.run(&["workflows", "apply", &file]).ok(), format!("{file}: unchanged hello, version 1\n"));
    shell.file("hello.yaml", &HELLO.replace("n == 1", "n == 2"));
    assert_eq!(shell.run(&["workflows", "apply", &file]).ok(), format!("{file}: replaced hello, version 2\n"));
    let applied = shell.run(&["workflows", "apply", &file, "--json"]).json();
    assert_eq!(applied["data"][0]["did"], "unchanged");
    let history = shell.run(&["workflows", "history", "hello"]).ok();
    let numbers: Vec<&str> = history.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(numbers, ["2", "1"], "{history}");
    let diff = shell.run(&["workflows", "diff", "hello"]).ok();
    assert!(diff.contains("-") && diff.contains("n == 1") && diff.contains("n == 2"), "{diff}");
    assert_eq!(shell.run(&["workflows", "diff", "hello", "--from", "2", "--to", "2"]).ok(), "no difference\n");
    assert_eq!(shell.run(&["workflows", "disable", "hello"]).ok(), "hello is disabled\n");
    shell.run(&["trigger", "hello"]).refused(1, &["error[workflow_disabled]", "help: "]);
    assert_eq!(shell.run(&["workflows", "enable", "hello"]).ok(), "hello is enabled\n");
    assert_eq!(shell.run(&["workflows", "delete", "hello"]).ok(), "deleted hello\n");
    shell.run(&["workflows", "delete", "hello"]).refused(1, &["error[not_found]"]);
}

#[test]
fn cli_pause_and_resume_a_workflow() {
    let server = Server::start();
    let shell = Shell::new(&server);
    shell.run(&["workflows", "apply", &shell.file("hello.yaml", HELLO)]).ok();
    let paused = shell.run(&["workflows", "pause", "hello", "--note", "deploying", "--actor", "ada"]).ok();
    assert_eq!(paused, "hello is paused\n");
    assert!(shell.run(&["workflows", "show", "hello"]).ok().contains(" by ada: deploying"));
    let run = shell.run(&["trigger", "hello", "--input", "{\"name\": \"x\"}"]).ok().trim().to_owned();
    let explained = shell.run(&["runs", "explain", &run]).ok();
    assert!(explained.contains("resume") && explained.contains("/workflows/"), "{explained}");
    assert_eq!(shell.run(&["workflows", "resume", "hello"]).ok(), "hello is enabled\n");
    server.finished(&run);
}

#[test]
fn cli_trigger_reads_input_from_argument_file_or_stdin_and_shows_where_it_is_wrong() {
    let server = Server::start();
    let shell = Shell::new(&server);
    shell.run_with(&["workflows", "apply", "-"], HELLO).ok();
    let file = shell.file("input.json", "{\"name\": \"file\", \"n\": 1}");
    let at = format!("@{file}");
    for (input, stdin, name) in
        [("{\"name\": \"text\"}", "", "text"), (at.as_str(), "", "file"), ("-", "{\"name\": \"pipe\"}", "pipe")]
    {
        let run = shell.run_with(&["trigger", "hello", "--input", input, "--wait", "30s", "--json"], stdin);
        let run: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(run["tasks"]["greet"]["body"]["text"], format!("hi {name}"), "{input}");
    }
    let labelled = ["trigger", "hello", "--input", &at, "--label", "team=billing", "--idempotency-key", "k1"];
    let run = shell.run(&labelled).ok();
    let again = shell.run(&labelled);
    assert_eq!(again.out, run, "the same key, the same run");
    assert!(again.err.contains("started before"), "{again:?}");
    assert_eq!(server.run(run.trim())["labels"], json!({ "team": "billing" }));
    let listed = shell.run(&["runs", "list", "--label", "team=billing", "--json"]).json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);

    let broken = shell.file("broken.json", "{\n  \"name\": x\n}");
    let output = shell.run(&["trigger", "hello", "--input", &format!("@{broken}")]);
    output.refused(1, &["error[malformed_json]", "broken.json:2:11"]);
    shell.run(&["trigger", "hello", "--input", "@/nowhere"]).refused(2, &["cannot read `@/nowhere`"]);
    shell.run(&["trigger", "hello", "--label", "novalue"]).refused(2, &["key=value"]);
    // The run fails, because the input has no name. It is printed, and the exit code is 1.
    let failed = shell.run(&["trigger", "hello", "--wait", "30s"]);
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.out.contains("failed") && failed.out.contains("STEP"), "{failed:?}");
}

#[test]
fn cli_runs_are_listed_page_by_page() {
    let server = Server::start();
    let shell = Shell::new(&server);
    shell.run_with(&["workflows", "apply", "-"], HELLO).ok();
    for _ in 0..5 {
        shell.run(&["trigger", "hello", "--input", "{\"name\": \"x\"}", "--wait", "30s"]).ok();
    }
    let two = shell.run(&["runs", "list", "--limit", "2"]);
    let cursor = two.err.trim().rsplit(' ').next().unwrap().trim_matches('`').to_owned();
    assert!(two.err.contains("there are more"), "{two:?}");
    assert_eq!(two.ok().lines().count(), 3);
    let rest = shell.run(&["runs", "list", "--cursor", &cursor]);
    assert_eq!((rest.code, rest.err.as_str(), rest.out.lines().count()), (0, "", 4), "{rest:?}");
    let all = shell.run(&["runs", "list", "--all", "--json"]).json();
    assert_eq!((all["data"].as_array().unwrap().len(), &all["next"]), (5, &Value::Null));
    let none = shell.run(&["runs", "list", "--status", "failed"]);
    assert_eq!((none.code, none.out.as_str(), none.err.as_str()), (0, "", "nothing found\n"));
    let none = shell.run(&["runs", "list", "--status", "failed", "--json"]).json();
    assert_eq!(none, json!({ "data": [], "next": null }));
    shell.run(&["runs", "list", "--status", "lost"]).refused(1, &["error[invalid_parameter]", "expected one of"]);
    let refused = shell.run(&["runs", "list", "--status", "lost", "--json"]);
    let error: Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!((refused.code, &error["error"]["code"], refused.err.as_str()), (1, &json!("invalid_parameter"), ""));
}

#[test]
fn cli_runs_can_be_shown_explained_paused_and_cancelled() {
    let server = Server::start();
    let shell = Shell::new(&server);
    let yaml =
        "name: waits\ntasks:\n  ask: { wait_for_webhook: { timeout: 1h } }\n  then: { noop: {}, needs: [ask] }\n";
    shell.run_with(&["workflows", "apply", "-"], yaml).ok();
    let run = shell.run(&["trigger", "waits"]).ok().trim().to_owned();
    server.when(&run, "ask", "waiting");
    let shown = shell.run(&["runs", "show", &run]).ok();
    for word in ["waits version 1", "waiting for  webhook of ask until", "STEP", "then  noop"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no colour without a terminal");
    assert_eq!(shell.run(&["runs", "pause", &run, "--note", "lunch"]).ok(), format!("{run} is paused\n"));
    assert!(shell.run(&["runs", "explain", &run]).ok().contains("what can be done"), "explain lists actions");
    shell.run(&["runs", "resume", &run]).ok();
    shell.run(&["runs", "retry", &run]).refused(1, &["error[nothing_to_retry]"]);
    let cancelled = shell.run(&["runs", "cancel", &run, "--actor", "ada", "--reason", "enough"]).ok();
    assert_eq!(cancelled, format!("{run} is cancelled\n"));
    assert_eq!(server.run(&run)["cancelled_by"], "ada");
    shell.run(&["runs", "show", "nonsense"]).refused(1, &["error[malformed_id]", "run ids look like"]);
    let mixed = shell.run(&["runs", "cancel", "run_00000000000000000000000000", &run]);
    assert_eq!(mixed.code, 1, "{mixed:?}");
    assert_eq!(mixed.out, cancelled, "the second run was cancelled after the first was refused");
}

#[test]
fn cli_follow_prints_every_event_and_the_outcome() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let shell = Shell::new(&server);
    let yaml = "name: flow\ntasks:\n  call: { url: $UP/call, retry: { max_attempts: 3 } }\n  nap: { sleep: 50ms, needs: [call] }\n";
    shell.run_with(&["workflows", "apply", "-"], &upstream.fill(yaml)).ok();
    let followed = shell.run(&["trigger", "flow", "--follow"]);
    assert_eq!(followed.code, 0, "{followed:?}");
    let words: Vec<&str> = followed.out.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(words.first(), Some(&"run.created"), "{followed:?}");
    assert_eq!(words.last(), Some(&"run.completed"), "{followed:?}");
    assert!(words.contains(&"timer.set") && words.contains(&"step.succeeded"), "{followed:?}");
    assert!(followed.err.contains("started") && followed.err.contains("completed in"), "{followed:?}");

    let run = followed.err.split(' ').next().unwrap().to_owned();
    let tail = shell.run(&["runs", "tail", &run, "--json"]).ok();
    let events: Vec<Value> = tail.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=server.events(&run).len() as u64).collect::<Vec<_>>());
    let rest = shell.run(&["runs", "tail", &run, "--after", "3"]).ok();
    assert_eq!(rest.lines().count(), events.len() - 3);

    upstream.on("/call", [status(404)]);
    let failed = shell.run(&["trigger", "flow", "--follow"]);
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.err.contains("failed in"), "{failed:?}");

    let replayed = shell.run(&["runs", "replay", &run, "--follow"]);
    assert!(replayed.err.contains("started"), "{replayed:?}");
    assert_eq!(shell.run(&["runs", "delete", &run]).ok(), format!("{run} is deleted\n"));
    shell.run(&["runs", "tail", &run]).refused(1, &["error[not_found]"]);
}

#[test]
fn cli_follow_survives_a_restart_of_the_server() {
    // The server must come back at the same address.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Server::with(&["--listen", &free.to_string()]);
    let yaml = "name: long\ntasks:\n  ask: { wait_for_webhook: { timeout: 1h } }\n";
    server.define(yaml);
    let run = server.trigger("long", &json!(null));
    server.when(&run, "ask", "waiting");
    let known = server.events(&run).len();
    let mut tail = Command::new(env!("CARGO_BIN_EXE_onward"))
        .args(["runs", "tail", &run, "--json", "--url", &format!("http://{}", server.address)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut seqs: Vec<u64> = Vec::new();
    let mut read = |lines: &mut dyn Iterator<Item = String>| {
        seqs.extend(lines.map(|line| serde_json::from_str::<Value>(&line).unwrap()["seq"].as_u64().unwrap()));
    };
    read(&mut lines.by_ref().take(known));
    server.crash_and_restart();
    server.cancel(&run).data(200);
    read(&mut lines);
    assert_eq!(seqs, (1..=server.events(&run).len() as u64).collect::<Vec<_>>(), "each once");
    assert!(tail.wait().unwrap().success());
}

#[test]
fn cli_triggers_are_created_previewed_fired_and_deleted() {
    let server = Server::start();
    let shell = Shell::new(&server);
    shell.run_with(&["workflows", "apply", "-"], HELLO).ok();
    let yaml =
        "name: nightly\ntype: schedule\nworkflow: hello\nconfig: { cron: \"30 2 * * *\", timezone: Europe/Berlin }\n";
    let wrong = shell.file("wrong.yaml", &yaml.replace("30 2", "99 2"));
    shell.run(&["triggers", "create", &wrong]).refused(1, &["error[invalid_cron]", "wrong.yaml:4:18", "0 to 59"]);
    assert_eq!(shell.run(&["triggers", "list"]).ok(), "", "a refused trigger is not created");
    let made = shell.run_with(&["triggers", "create", "-", "--json"], yaml).json();
    let trigger = made["id"].as_str().unwrap();
    let list = shell.run(&["triggers", "list", "--type", "schedule", "--workflow", "hello"]).ok();
    assert!(list.lines().nth(1).is_some_and(|line| line.contains("nightly  schedule  enabled")), "{list}");
    let preview = shell.run(&["triggers", "preview", trigger, "--count", "3"]).ok();
    assert_eq!(preview.lines().filter(|line| line.contains("T02:30:00+0")).count(), 3, "{preview}");
    assert_eq!(shell.run(&["triggers", "disable", trigger, "--note", "holiday"]).ok(), "nightly is disabled\n");
    assert!(shell.run(&["triggers", "show", trigger]).ok().contains("holiday"));
    assert_eq!(shell.run(&["triggers", "enable", trigger]).ok(), "nightly is enabled\n");
    let run = shell.run(&["triggers", "run", trigger, "--input", "{\"name\": \"hand\"}"]).ok();
    assert_eq!(server.finished(run.trim())["tasks"]["greet"]["body"]["text"], "hi hand");
    let deliveries = shell.run(&["triggers", "deliveries", trigger]).ok();
    assert!(deliveries.contains("started") && deliveries.contains(run.trim()), "{deliveries}");
    shell.run(&["triggers", "run", trigger, "--input", "{"]).refused(2, &["is not JSON"]);
    assert_eq!(shell.run(&["triggers", "delete", trigger]).ok(), format!("{trigger} is deleted\n"));
    shell.run(&["triggers", "show", trigger]).refused(1, &["error[not_found]"]);
}

#[test]
fn cli_reports_an_unreachable_server() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    result_of(onward(&["runs", "list", "--url", &url])).refused(3, &["cannot reach", "onward dev"]);
    result_of(onward(&["workflows", "list", "--url", "nonsense"])).refused(2, &["not the address of a server"]);
    // A server that is not Onward.
    let upstream = Upstream::start();
    let other = result_of(onward(&["runs", "list", "--url", &upstream.fill("$UP")]));
    other.refused(3, &["does not answer like an Onward server"]);
}

#[test]
fn cli_durations_out_of_range_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    for (arguments, message) in [
        (
            &["dev", "--data", data, "--drain-grace", "213503982d"][..],
            "`--drain-grace 213503982d` is out of range: allowed is 0ms to 1d",
        ),
        (&["dev", "--data", data, "--drain-grace", "soon"], "`--drain-grace soon` is not a duration such as 25s"),
        (&["dev", "--data", data, "--retention", "1m"], "allowed is 1h to"),
        (&["dev", "--data", data, "--retention", "213503982d"], "allowed is 1h to"),
        (&["dev", "--data", data, "--clock", "virtual", "--clock-advance", "213503982d"], "allowed is 0ms to"),
        (&["worker", "--types", "a", "--exec", "true", "--drain-grace", "213503982d"], "allowed is 0ms to 1d"),
        (&["worker", "--types", "a", "--exec", "true", "--lease", "2h"], "allowed is 1s to 1h"),
        (&["worker", "--types", "a", "--exec", "true", "--timeout", "213503982d"], "allowed is 1ms to 366d"),
        (&["bench", "flow1", "--seconds", "18446744073709551615"], "1..=86400"),
    ] {
        result_of(onward(arguments)).refused(2, &[message]);
    }
}

#[test]
fn cli_completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = result_of(onward(&["completions", shell])).ok();
        assert!(script.contains("workflows") && script.contains("explain"), "{shell}");
    }
    result_of(onward(&["completions", "csh"])).refused(2, &["possible values"]);
}

#[test]
fn cli_a_closed_pipe_does_not_crash_a_command() {
    let server = Server::start();
    server.define(HELLO);
    let url = format!("http://{}", server.address);
    let binary = env!("CARGO_BIN_EXE_onward");
    let pipe =
        format!("for i in $(seq 3); do '{binary}' runs list --url {url} | true; done; '{binary}' openapi | head -n 1");
    let output = Command::new("sh").args(["-c", &pipe]).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!err.contains("panicked"), "{err}");
    eventually("the server is still ready", || (server.get("/readyz").status == 200).then_some(()));
}
