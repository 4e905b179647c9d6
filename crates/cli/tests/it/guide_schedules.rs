//! The schedules that the guides define, fired on a virtual clock: each must start a run that does not fail.
//!
//! Definitions and triggers are the `<<'YAML'` documents of a page, applied in order. A page with a `cron:` line that
//! is in none of them fails the test, so that a schedule written in another way is not missed.

use crate::harness::{Api, Server, eventually, is_terminal, micros, onward_with_input};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[test]
fn p12_every_schedule_of_the_guides_starts_runs_that_do_not_fail() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two folders deep");
    let guides = std::fs::read_dir(root.join("docs/guides")).expect("the guides");
    let mut pages: Vec<PathBuf> = guides.map(|entry| entry.expect("a guide").path()).collect();
    pages.extend([root.join("README.md"), root.join("docs/tutorial.md")]);
    pages.sort();
    let problems: Vec<String> = pages.iter().flat_map(|page| problems(page)).collect();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// What is wrong with the schedules of a page.
fn problems(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).expect("the page");
    let crons = text.lines().filter(|line| line.trim_start().starts_with("cron:")).count();
    if crons == 0 {
        return Vec::new();
    }
    let name = page.file_name().expect("a file").to_string_lossy().into_owned();
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-03-01T00:00:00Z"]);
    let url = format!("http://{}", server.address);
    for document in documents(&text) {
        let noun = if document.contains("\ntasks:") { ["workflows", "apply"] } else { ["triggers", "create"] };
        let applied = onward_with_input(&[&noun[..], &["-", "--url", &url]].concat(), &document);
        assert!(applied.status.success(), "{name}: {document}\n{}", String::from_utf8_lossy(&applied.stderr));
    }
    let schedules = server.list("/api/v1/triggers?type=schedule");
    let mut problems = Vec::new();
    if schedules.len() != crons {
        problems.push(format!("{name} has {crons} `cron:` lines, but {} schedules were found", schedules.len()));
    }
    problems.extend(schedules.iter().filter_map(|schedule| {
        let problem = fire(&server, schedule)?;
        Some(format!("{name}: the schedule `{}` ({}): {problem}", schedule["name"], schedule["config"]["cron"]))
    }));
    problems
}

/// The documents of a page that set up workflows and triggers.
fn documents(text: &str) -> Vec<String> {
    let ends = text.split("<<'YAML'\n").skip(1).filter_map(|rest| rest.split_once("\nYAML\n"));
    let documents = ends.map(|(document, _)| format!("{document}\n"));
    documents.filter(|document| document.contains("tasks:") || document.contains("cron:")).collect()
}

/// Moves the clock to the next fire time and follows its run. Returns what went wrong.
fn fire(server: &Api, schedule: &Value) -> Option<String> {
    let path = format!("/api/v1/triggers/{}", schedule["id"].as_str().expect("an id"));
    let next = server.get(&path).data(200)["next_at"].clone();
    let now = server.get("/api/v1/dev/clock").data(200)["now"].clone();
    let wait = (micros(&next) - micros(&now)).max(0) / 1_000_000 + 1;
    server.advance(&format!("{wait}s"));
    let log = server.list(&format!("{path}/deliveries"));
    let Some(line) = log.iter().find(|line| line["scheduled_for"] == next) else {
        return Some(format!("nothing in its log for {next}: {log:?}"));
    };
    let Some(run) = line["run_id"].as_str() else { return Some(format!("no run was started: {line}")) };
    let run = eventually(&format!("{run} ends or waits"), || {
        for task in server.claim("guide", &["%"], 10) {
            task.complete(json!({ "sent": true })).data(200);
        }
        let view = server.run(run);
        let waits = view["waiting_for"].as_array().is_some_and(|list| list.iter().all(|w| w["kind"] == "webhook"));
        (is_terminal(&view) || view["status"] == "waiting" && waits).then_some(view)
    });
    match run["status"].as_str() {
        Some("completed" | "waiting") => None,
        _ => Some(format!("its run of {next} is {}: {}", run["status"], run["error"])),
    }
}
