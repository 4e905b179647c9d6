//! Schedules: every fire time starts one run, whatever happens in between (R10, R37, A14, decision 15).

use crate::harness::{Server, eventually, micros, one_node_only};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tempfile::TempDir;

const SECOND: i64 = 1_000_000;

fn at(start: &str) -> Server {
    Server::with(&["--clock", "virtual", "--clock-start", start])
}

/// Creates a schedule for a new workflow of these steps and returns its id.
#[track_caller]
fn schedule(server: &Server, steps: &str, config: Value) -> String {
    let workflow = server.workflow(steps);
    let made = json!({ "name": "s", "type": "schedule", "workflow": workflow, "config": config });
    server.post("/api/v1/triggers", &made).data(201)["id"].as_str().expect("an id").to_owned()
}

/// The trigger's log, oldest first.
#[track_caller]
fn log(server: &Server, trigger: &str) -> Vec<Value> {
    let mut lines = server.list(&format!("/api/v1/triggers/{trigger}/deliveries"));
    lines.reverse();
    lines
}

/// Time of day, outcome and reason of each line of the log.
#[track_caller]
fn brief(server: &Server, trigger: &str) -> Vec<String> {
    let word = |line: &Value| {
        let time = &line["scheduled_for"].as_str().expect("a fire time")[11..16];
        let reason = line["reason"].as_str().map(|reason| format!(" {reason}")).unwrap_or_default();
        format!("{time} {}{reason}", line["outcome"].as_str().expect("an outcome"))
    };
    log(server, trigger).iter().map(word).collect()
}

/// Every line that started a run has its own run, with the same fire time.
#[track_caller]
fn check_runs(server: &Server, trigger: &str) -> Vec<Value> {
    let mut runs = Vec::new();
    for line in log(server, trigger).iter().filter(|line| line["outcome"] == "started") {
        let run = server.run(line["run_id"].as_str().expect("a run"));
        assert_eq!(run["trigger"]["scheduled_for"], line["scheduled_for"]);
        assert_eq!((&run["trigger"]["type"], &run["trigger"]["id"]), (&json!("schedule"), &json!(trigger)));
        runs.push(run);
    }
    let mut ids: Vec<&str> = runs.iter().filter_map(|run| run["id"].as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), runs.len(), "two fire times share a run");
    runs
}

#[test]
fn r37_a_schedule_starts_its_runs_with_its_input() {
    let server = at("2027-01-01T08:59:00Z");
    server.define(
        "name: c\ntrigger: cron\ncron: '0 9 * * *'\nschedule: {input: {to: ops, n: 1}}\n\
         tasks: {a: {set: {to: '{{trigger.body.to}}', day: '{{trigger.scheduled_for}}', cc: \"{{trigger.body.cc ?? 'none'}}\"}}}",
    );
    let trigger = server.list("/api/v1/triggers")[0].clone();
    assert_eq!(trigger["input"], json!({ "to": "ops", "n": 1 }));
    let id = trigger["id"].as_str().unwrap();
    server.advance("2m");
    let scheduled = check_runs(&server, id).remove(0);
    assert_eq!(scheduled["tasks"]["a"]["body"], json!({ "to": "ops", "day": "2027-01-01T09:00:00Z", "cc": "none" }));
    // A run that is started by hand differs in nothing but its time.
    let run = |body: &Value| {
        let fired = server.post(&format!("/api/v1/triggers/{id}/run"), body).data(201);
        server.finished(fired["run_id"].as_str().unwrap())
    };
    let by_hand = run(&json!({}));
    assert_eq!((&by_hand["status"], &by_hand["input"]), (&json!("completed"), &scheduled["input"]));
    let keys = |run: &Value| run["trigger"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!((keys(&by_hand), &by_hand["trigger"]["type"]), (keys(&scheduled), &json!("schedule")));
    let given = run(&json!({ "variables": { "cc": "boss" } }));
    assert_eq!(given["input"], json!({ "to": "ops", "n": 1, "cc": "boss" }));
    check_runs(&server, id);
}

#[test]
fn r10_r37_a_cron_workflow_fires_when_due_with_an_empty_body() {
    let server = at("2027-01-01T08:59:00Z");
    let made = server
        .define("name: c\ntrigger: cron\ncron: '0 9 * * 1-5'\ntasks: {a: {set: {day: '{{trigger.scheduled_for}}'}}}");
    assert_eq!(made["trigger"], "cron");
    let triggers = server.list("/api/v1/triggers");
    assert_eq!(triggers.len(), 1);
    let trigger = &triggers[0];
    assert_eq!(
        (&trigger["type"], &trigger["is_owned"], &trigger["workflow_id"]),
        (&json!("schedule"), &json!(true), &made["id"])
    );
    assert_eq!(
        (&trigger["next_at"], &trigger["config"]["cron"]),
        (&json!("2027-01-01T09:00:00Z"), &json!("0 9 * * 1-5"))
    );
    assert!(server.advance("2m") >= 1);
    let runs = server.list(&format!("/api/v1/workflows/{}/runs", made["id"].as_str().unwrap()));
    assert_eq!(runs.len(), 1);
    let run = server.run(runs[0]["id"].as_str().unwrap());
    assert_eq!((&run["status"], &run["trigger"]["body"], &run["input"]), (&json!("completed"), &json!({}), &json!({})));
    assert_eq!(run["trigger"]["scheduled_for"], "2027-01-01T09:00:00Z");
    assert_eq!(run["tasks"]["a"]["body"]["day"], "2027-01-01T09:00:00Z", "the workflow can read its fire time");
    let late = micros(&run["started_at"]) - micros(&run["trigger"]["scheduled_for"]);
    assert!((0..SECOND).contains(&late), "{late} µs");
    let id = trigger["id"].as_str().unwrap();
    let trigger = server.get(&format!("/api/v1/triggers/{id}")).data(200);
    assert_eq!(trigger["next_at"], "2027-01-04T09:00:00Z", "R37: next time is advanced, over the weekend");
    assert_eq!(trigger["last_run_id"], runs[0]["id"]);
    server.advance("1d");
    assert_eq!(check_runs(&server, id).len(), 1);
}

#[test]
fn decision_15_berlin_fires_once_on_both_days_the_clock_changes() {
    let server = at("2027-03-26T12:00:00Z");
    let trigger = schedule(&server, "a: { noop: {} }", json!({ "cron": "30 2 * * *", "timezone": "Europe/Berlin" }));
    server.advance("4d");
    let fire_times = |server: &Server| -> Vec<String> {
        let runs = check_runs(server, &trigger);
        for run in &runs {
            let late = micros(&run["started_at"]) - micros(&run["trigger"]["scheduled_for"]);
            assert!((0..SECOND).contains(&late), "{late} µs late");
        }
        runs.iter().map(|run| run["trigger"]["scheduled_for"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        fire_times(&server),
        ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z", "2027-03-30T00:30:00Z"]
    );
    server.advance("216d");
    let all = fire_times(&server);
    assert_eq!(all[all.len() - 3..], ["2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"]);
    assert_eq!(all.len(), 220, "once a day");
}

#[test]
fn a14_each_missed_policy_after_three_hours_of_downtime() {
    let mut server = at("2027-01-01T09:30:00Z");
    let policies = [
        ("skip", json!({ "missed": "skip" })),
        ("latest", json!({})),
        ("all", json!({ "missed": "all" })),
        ("window", json!({ "missed": "all", "missed_window": "2h" })),
        ("max", json!({ "missed": "all", "missed_max": 1 })),
    ];
    let triggers: Vec<(&str, String)> = policies
        .into_iter()
        .map(|(name, mut config)| {
            config["cron"] = json!("0 * * * *");
            (name, schedule(&server, "a: { noop: {} }", config))
        })
        .collect();
    server.kill();
    assert!(server.start_with(&[("ONWARD_CLOCK_ADVANCE".into(), "3h".into())]));
    let expected = BTreeMap::from([
        ("skip", vec!["10:00 skipped missed", "11:00 skipped missed", "12:00 skipped missed"]),
        ("latest", vec!["10:00 skipped missed", "11:00 skipped missed", "12:00 started"]),
        ("all", vec!["10:00 started", "11:00 started", "12:00 started"]),
        ("window", vec!["10:00 skipped missed 1 fire times", "11:00 started", "12:00 started"]),
        ("max", vec!["10:00 skipped missed", "11:00 skipped missed", "12:00 started"]),
    ]);
    for (name, trigger) in &triggers {
        let expected = &expected[name];
        let found = eventually("the missed fire times are in the log", || {
            Some(brief(&server, trigger)).filter(|found| found.len() >= expected.len())
        });
        assert_eq!(found, *expected, "{name}");
        check_runs(&server, trigger);
        eventually("the next fire time is set", || {
            let next = server.get(&format!("/api/v1/triggers/{trigger}")).data(200)["next_at"].clone();
            (next == "2027-01-01T13:00:00Z").then_some(())
        });
    }
    // No fire time is handled twice.
    server.crash_and_restart();
    server.advance("30m");
    for (name, trigger) in &triggers {
        let found = brief(&server, trigger);
        assert_eq!((found.len(), found.last().map(String::as_str)), (4, Some("13:00 started")), "{name}: {found:?}");
    }
}

#[test]
fn a14_a_year_of_minutes_is_one_line() {
    let mut server = at("2027-01-01T00:00:30Z");
    let skip = schedule(&server, "a: { noop: {} }", json!({ "cron": "* * * * *", "missed": "skip" }));
    let latest = schedule(&server, "a: { noop: {} }", json!({ "cron": "* * * * *" }));
    server.kill();
    assert!(server.start_with(&[("ONWARD_CLOCK_ADVANCE".into(), "365d".into())]));
    for (trigger, last) in [(&skip, "skipped"), (&latest, "started")] {
        let lines = eventually("the missed fire times are in the log", || {
            let lines = log(&server, trigger);
            let is_done = |line: &Value| line["outcome"] == "started" || line["outcome"] == last;
            Some(lines).filter(|lines| lines.len() >= 1_000 && lines.last().is_some_and(is_done))
        });
        assert!(lines.len() <= 1_001, "{}", lines.len());
        assert!(check_runs(&server, trigger).len() <= 3, "only the newest fire times");
    }
}

#[test]
fn a14_overlap_is_allowed_skipped_or_queued() {
    let server = at("2027-01-01T00:00:30Z");
    let slow = "a: { sleep: 150s }";
    let config = |overlap: &str| json!({ "cron": "* * * * *", "overlap": overlap });
    let allow = schedule(&server, slow, config("allow"));
    let skip = schedule(&server, slow, config("skip"));
    let queue = schedule(&server, slow, config("queue"));
    server.advance("4m");
    assert_eq!(brief(&server, &allow), ["00:01 started", "00:02 started", "00:03 started", "00:04 started"]);
    assert_eq!(
        brief(&server, &skip),
        ["00:01 started", "00:02 skipped overlap", "00:03 skipped overlap", "00:04 started"]
    );
    assert_eq!(
        brief(&server, &queue),
        ["00:01 started", "00:02 started", "00:03 queued overlap", "00:04 queued overlap"]
    );
    let runs = check_runs(&server, &queue);
    let begun = micros(&runs[1]["started_at"]) - micros(&runs[0]["finished_at"]);
    assert!((0..2 * SECOND).contains(&begun), "when the run before it ended: {begun} µs");
    // Disabling the trigger drops the queued fire times.
    let answer = server.post(&format!("/api/v1/triggers/{queue}/disable"), &json!({}));
    assert_eq!(answer.data(200)["enabled"], false);
    let found = brief(&server, &queue);
    assert_eq!(found[2..], ["00:03 skipped trigger_disabled", "00:04 skipped trigger_disabled"]);
}

#[test]
fn a14_queued_fire_times_survive_a_crash_and_are_bounded() {
    let mut server = at("2027-01-01T00:00:30Z");
    let queue = schedule(&server, "a: { sleep: 3h }", json!({ "cron": "* * * * *", "overlap": "queue" }));
    server.advance("110m");
    let found = brief(&server, &queue);
    let count = |word: &str| found.iter().filter(|line| line.contains(word)).count();
    assert_eq!((count("started"), count("queued"), count("skipped queue_full")), (1, 100, 9));
    server.crash_and_restart();
    server.advance("71m");
    let found = brief(&server, &queue);
    assert_eq!(found[1], "00:02 started", "the queued run started");
    check_runs(&server, &queue);
}

#[test]
fn a14_jitter_moves_the_start_and_not_the_fire_time() {
    let server = at("2027-01-01T00:30:00Z");
    let trigger = schedule(&server, "a: { noop: {} }", json!({ "cron": "0 * * * *", "jitter": "10m" }));
    let preview = server.get(&format!("/api/v1/triggers/{trigger}/preview?count=5")).json()["data"].clone();
    server.advance("5h");
    let runs = check_runs(&server, &trigger);
    assert_eq!(runs.len(), 5);
    let mut spread = std::collections::BTreeSet::new();
    for (run, planned) in runs.iter().zip(preview.as_array().unwrap()) {
        assert_eq!(run["trigger"]["scheduled_for"], planned["at"]);
        let late = micros(&run["started_at"]) - micros(&planned["starts_at"]);
        assert!((0..SECOND).contains(&late), "{late} µs after its time");
        spread.insert(micros(&planned["starts_at"]) - micros(&planned["at"]));
    }
    assert!(spread.len() > 1 && spread.iter().all(|late| (0..=600 * SECOND).contains(late)), "{spread:?}");
}

#[test]
fn a11_a_paused_schedule_does_nothing_and_starts_from_now() {
    let server = at("2027-01-01T00:30:00Z");
    let trigger = schedule(&server, "a: { noop: {} }", json!({ "cron": "0 * * * *", "missed": "all" }));
    let path = format!("/api/v1/triggers/{trigger}");
    let paused = server.post(&format!("{path}/disable"), &json!({ "note": "the warehouse moves" })).data(200);
    assert_eq!(
        (&paused["enabled"], &paused["note"], &paused["next_at"]),
        (&json!(false), &json!("the warehouse moves"), &Value::Null)
    );
    server.advance("3h");
    assert_eq!(log(&server, &trigger).len(), 0);
    let resumed = server.send("POST", &format!("{path}/enable"), &[], b"").data(200);
    assert_eq!(
        (&resumed["enabled"], &resumed["note"], &resumed["next_at"]),
        (&json!(true), &Value::Null, &json!("2027-01-01T04:00:00Z"))
    );
    server.advance("1h");
    assert_eq!(brief(&server, &trigger), ["04:00 started"]);
    // A changed schedule also starts from now.
    let patch = json!({ "config": { "cron": "15 * * * *" } });
    let changed = server.send("PATCH", &path, &[("Content-Type", "application/json")], patch.to_string().as_bytes());
    assert_eq!(changed.data(200)["next_at"], "2027-01-01T05:15:00Z");
    assert_eq!(server.get(&path).data(200)["config"]["missed"], "all", "a field that is not named stays");
}

#[test]
fn a14_a_disabled_workflow_makes_recorded_skips() {
    let server = at("2027-01-01T00:30:00Z");
    server.define("name: off\nenabled: false\ntrigger: cron\ncron: '0 * * * *'\ntasks: {a: {noop: {}}}");
    let trigger = server.list("/api/v1/triggers")[0]["id"].as_str().unwrap().to_owned();
    server.advance("2h");
    assert_eq!(brief(&server, &trigger), ["01:00 skipped workflow_disabled", "02:00 skipped workflow_disabled"]);
    assert_eq!(server.list("/api/v1/runs").len(), 0);
}

#[test]
fn a14_a_preview_lists_the_next_fire_times() {
    let server = at("2027-03-27T00:00:00Z");
    let query = "cron=30+2+*+*+*&timezone=Europe/Berlin&count=2";
    let fire_times = server.get(&format!("/api/v1/triggers/preview?{query}")).json();
    assert_eq!(
        fire_times["data"],
        json!([
            { "at": "2027-03-27T01:30:00Z", "local": "2027-03-27T02:30:00+01:00", "starts_at": "2027-03-27T01:30:00Z" },
            { "at": "2027-03-28T01:00:00Z", "local": "2027-03-28T03:00:00+02:00", "starts_at": "2027-03-28T01:00:00Z" },
        ])
    );
    for bad in ["", "cron=60+*+*+*+*", "cron=*+*+*+*+*&timezone=Mars", "cron=*+*+*+*+*&count=0", "corn=x"] {
        server.get(&format!("/api/v1/triggers/preview?{bad}")).refusal(422);
    }
    let trigger = schedule(&server, "a: { noop: {} }", json!({ "cron": "0 12 * * *" }));
    let later = server.get(&format!("/api/v1/triggers/{trigger}/preview?count=1&from=2030-05-05T12:00:00Z")).json();
    assert_eq!(later["data"][0]["at"], "2030-05-06T12:00:00Z");
    assert_eq!(server.get(&format!("/api/v1/triggers/{trigger}/preview")).json()["data"].as_array().unwrap().len(), 5);
}

#[test]
fn a14_each_fire_time_has_one_run_whenever_the_process_dies() {
    if one_node_only("only the process that reaches the point dies") {
        return;
    }
    for crash in [
        "tick_started:1",
        "tick_started:4",
        "before_commit:5",
        "after_commit:5",
        "after_commit:8",
        "before_settle:6",
        "offset_stored:3",
    ] {
        let data = TempDir::new().expect("a folder for the data");
        let flags = ["--clock", "virtual", "--clock-start", "2027-01-01T00:00:30Z"];
        let mut server = Server::with_environment(&flags, data, &[]);
        let trigger = schedule(&server, "a: { noop: {} }", json!({ "cron": "* * * * *" }));
        server.kill();
        assert!(server.start_with(&[("ONWARD_CRASH".into(), crash.into())]), "{crash}");
        let advance = json!({ "advance": "10m" }).to_string();
        let moved =
            server.try_send("POST", "/api/v1/dev/clock", &[("Content-Type", "application/json")], advance.as_bytes());
        assert!(moved.is_err(), "{crash} was not reached: {moved:?}");
        server.start_again();
        server.advance("10m");
        let found = brief(&server, &trigger);
        let fire_times: Vec<String> = (1..=found.len()).map(|n| format!("00:{n:02} started")).collect();
        assert!(found.len() >= 10, "{crash}: {found:?}");
        assert_eq!(found, fire_times, "{crash}");
        check_runs(&server, &trigger);
        let runs = server.list("/api/v1/runs");
        assert_eq!(runs.len(), found.len(), "{crash}: no run without a line");
    }
}

#[test]
fn a14_each_fire_time_has_one_run_however_often_the_process_is_killed() {
    let mut server = at("2027-01-01T00:00:30Z");
    let allow = schedule(&server, "a: { noop: {} }", json!({ "cron": "* * * * *" }));
    let skip =
        schedule(&server, "a: { sleep: 90s }", json!({ "cron": "* * * * *", "overlap": "skip", "missed": "skip" }));
    for round in 0..8 {
        let api = *server;
        let walking = std::thread::spawn(move || {
            let advance = json!({ "advance": "20m" }).to_string();
            let _ =
                api.try_send("POST", "/api/v1/dev/clock", &[("Content-Type", "application/json")], advance.as_bytes());
        });
        // Longer every time, so that each kill hits another place.
        std::thread::sleep(std::time::Duration::from_millis(7 + 13 * round));
        server.kill();
        walking.join().unwrap();
        server.start_again();
    }
    server.advance("2m");
    for trigger in [&allow, &skip] {
        let lines = log(&server, trigger);
        let fire_times: Vec<i64> = lines.iter().map(|line| micros(&line["scheduled_for"])).collect();
        assert!(fire_times.windows(2).all(|pair| pair[1] - pair[0] == 60 * SECOND), "each minute once: {lines:?}");
        check_runs(&server, trigger);
    }
    let started = |trigger: &str| log(&server, trigger).iter().filter(|line| line["outcome"] == "started").count();
    assert_eq!(started(&allow), log(&server, &allow).len());
    assert_eq!(server.list("/api/v1/runs").len(), started(&allow) + started(&skip), "no run without a line");
}

#[test]
fn a14_one_advance_fires_a_day_of_minutes() {
    let server = at("2027-01-01T00:00:30Z");
    let trigger = schedule(&server, "a: { noop: {} }", json!({ "cron": "* * * * *" }));
    assert!(server.advance("1d") >= 1_440);
    let lines = log(&server, &trigger);
    assert!((1_000..=1_001).contains(&lines.len()), "only the newest lines are kept");
    assert_eq!(lines.last().map(|line| line["scheduled_for"].clone()), Some(json!("2027-01-02T00:00:00Z")));
    assert_eq!(server.list("/api/v1/runs").len(), 1_440);
}
