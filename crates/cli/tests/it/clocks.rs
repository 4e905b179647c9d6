//! Machines whose clocks are wrong: a node beside others on one database, and a single server whose clock was set.

use crate::harness::{Api, Server, Starting, eventually, micros, sqlite_only};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::postgres::PostgresCluster;

/// The file that says how wrong the clock of a process is.
struct WallError(std::path::PathBuf);

impl WallError {
    fn new(folder: &Path, seconds: i64) -> WallError {
        let error = WallError(folder.join("wall-error"));
        error.set(seconds);
        error
    }

    fn set(&self, seconds: i64) {
        // The process must never read half a number.
        let aside = self.0.with_extension("new");
        std::fs::write(&aside, (seconds * 1_000_000).to_string()).expect("it is written");
        std::fs::rename(&aside, &self.0).expect("it is renamed");
    }

    fn environment(&self) -> (String, String) {
        ("ONWARD_WALL_ERROR".into(), self.0.to_str().expect("a plain path").into())
    }
}

fn metric(api: &Api, name: &str) -> u64 {
    let text = api.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(&format!("onward_{name} ")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

#[test]
fn p15_a_node_with_a_wrong_clock_fires_nothing_early_and_says_so() {
    let cluster = PostgresCluster::start(&[]);
    let folder = TempDir::new().expect("a folder");
    let wrong = WallError::new(folder.path(), 20);
    let mut server = Server::nodes_on(2, &cluster.database());
    server.restart_one_with(1, &[wrong.environment()]);
    let second = Api::new(&[server.nodes()[1]]);

    let ready = eventually("it is ready", || Some(second.get("/readyz")).filter(|answer| answer.status == 200)).text();
    assert!(ready.contains("ahead of the database's clock"), "{ready}");
    assert!((19_000..21_000).contains(&metric(&second, "clock_skew_ms")));
    assert!(server.log().contains("ahead of the database's clock"), "{}", server.log());

    // Either node may own a run, and both start some.
    let workflow = server.workflow("nap: { sleep: 4s }");
    let began = Instant::now();
    let runs: Vec<String> = (0..12).map(|_| server.trigger(&workflow, &json!(null))).collect();
    let started = began.elapsed();
    while began.elapsed() < Duration::from_millis(3_900) {
        let ended = runs.iter().find(|run| server.run(run)["status"] == "completed");
        // The answer may have taken a while.
        assert!(ended.is_none() || began.elapsed() >= Duration::from_secs(4), "{ended:?} after {:?}", began.elapsed());
    }
    runs.iter().for_each(|run| assert_eq!(server.finished(run)["status"], "completed"));
    assert!(began.elapsed() < started + Duration::from_secs(30), "and none is 20 s late: {:?}", began.elapsed());

    // Half a minute is too much: the node is not ready, and the other one fires its timers and leases its tasks.
    wrong.set(40);
    eventually("it is not ready", || (second.get("/readyz").status == 503).then_some(()));
    let first = Api::new(&[server.nodes()[0]]);
    let runs: Vec<String> = (0..12).map(|_| first.trigger(&workflow, &json!(null))).collect();
    runs.iter().for_each(|run| assert_eq!(first.finished(run)["status"], "completed"));
    let task = first.submit("clock.v1", json!(1));
    let claim = json!({ "worker_id": "w", "types": ["clock.v1"], "wait": "1s" });
    let answer = second.post("/api/v1/tasks/claim", &claim);
    assert!(answer.status == 503 || answer.data(200) == json!([]), "{}", answer.text());
    assert_eq!(first.claim("w", &["clock.v1"], 1)[0].view["task_id"], task);
    let asleep = first.trigger(&first.workflow("nap: { sleep: 1d }"), &json!(null));
    first.when(&asleep, "nap", "sleeping");
    let explanation = second.get(&format!("/api/v1/runs/{asleep}/explain")).data(200);
    let summary = explanation["summary"].as_str().expect("words");
    assert!(summary.contains("this node fires no timers") && summary.contains("ahead of"), "{explanation:#}");
    assert_eq!(explanation["chain"][2]["what"], "clock", "{explanation:#}");

    wrong.set(0);
    let run = eventually("it works again", || {
        let answer = second.post(&format!("/api/v1/workflows/{workflow}/trigger"), &json!(null));
        let run = (answer.status == 201).then(|| answer.data(201)["run_id"].clone())?;
        Some(run.as_str().expect("an id").to_owned())
    });
    assert_eq!(second.finished(&run)["status"], "completed");
    assert_eq!(second.get("/readyz").text(), "ready\n");
}

#[test]
fn p15_engine_time_slows_down_until_a_clock_that_was_set_back_has_caught_up() {
    if sqlite_only("there the clock of the database counts") {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let wrong = WallError::new(folder.path(), 0);
    let environment = wrong.environment();
    let data = TempDir::new().expect("a folder for the data");
    let mut server = Server::with_environment(&[], data, &[(&environment.0, &environment.1)]);
    let ahead = |server: &Server| metric(server, "clock_ahead_ms");
    let nap = server.workflow("nap: { sleep: 1s }");
    // The clock jumps by fifty minutes and comes back.
    let waiting = server.trigger(&server.workflow("nap: { sleep: 40m }"), &json!(null));
    server.when(&waiting, "nap", "sleeping");
    wrong.set(3_000);
    assert_eq!(server.finished(&waiting)["status"], "completed", "what is due by the clock is done");
    wrong.set(0);
    let most = eventually("it is ahead", || Some(ahead(&server)).filter(|ms| *ms > 2_000_000));
    let falls = |server: &Server, from: u64| {
        eventually("engine time is slower than the clock", || Some(ahead(server)).filter(|ms| *ms < from))
    };
    let before = falls(&server, most);
    assert!(server.log().contains("half speed"), "{}", server.log());
    // Delays pass all the same.
    let run = server.trigger(&nap, &json!(null));
    assert_eq!(server.finished(&run)["status"], "completed");
    server.crash_and_restart();
    falls(&server, before);
}

#[test]
fn p15_records_of_the_future_stop_a_start_unless_they_are_accepted() {
    if sqlite_only("there the clock of the database counts") {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let wrong = WallError::new(folder.path(), 7_200);
    let environment = wrong.environment();
    let data = TempDir::new().expect("a folder for the data");
    let mut server = Server::with_environment(&[], data, &[(&environment.0, &environment.1)]);
    let nap = server.workflow("nap: { sleep: 1s }");
    let run = server.trigger(&nap, &json!(null));
    server.when(&run, "nap", "sleeping");
    server.kill();
    wrong.set(0);
    let refused = server.beside(&[]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("--accept-clock"), "{message}");

    let mut accepted = Starting::new(server.data(), &["--accept-clock".to_owned()]);
    let api = Api::new(&[accepted.ready().expect("it starts")]);
    let fresh = api.trigger(&nap, &json!(null));
    assert_eq!(api.finished(&fresh)["status"], "completed");
    let created = |run: &str| micros(&api.events(run)[0]["at"]);
    let (began, future) = (created(&fresh), created(&run));
    assert!(future - began > 7_000_000_000, "a new run has the time of the clock");
    accepted.kill();
    // The record of the future was accepted for good.
    assert!(server.start_with(&[]), "{}", server.log());
    assert_eq!(server.run(&fresh)["status"], "completed");
}
