//! Crashes at named points. For every point of [`store::crash`], the load of the kill loop runs until the process
//! aborts itself there, once at the first and once at the second time that it gets there. After a restart nothing may
//! be lost, doubled, stuck or early. A point that the load does not reach fails the test, so no point can become dead
//! code.

use crate::harness::{Answer, Server, Upstream, has_point, micros, one_node_only};
use crate::kill::checker::{self, Load, Summary};
use crate::kill::driver::{self, Driver};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use store::crash::Point;
use tempfile::TempDir;

/// How many cases run at once. They mostly wait.
const PARALLEL_CASES: usize = 5;
const SIGABRT: i32 = 6;

/// What makes the process reach a point.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The very first start on an empty folder.
    FirstStart,
    /// A start on data whose last process was killed under load.
    Start,
    /// Load, also on data whose last process was killed.
    Load,
    /// SIGTERM under load.
    Drain,
    /// Moving a virtual clock.
    Clock,
    /// Deleting a run.
    Erase,
    /// Tasks that no worker claims, and that are cancelled.
    Offer,
    /// Runs that end after a child that they close was deleted.
    Close,
}

fn trigger_of(point: Point) -> Way {
    match point {
        Point::MigrationStatement | Point::MigrationUnrecorded | Point::KeyAside => Way::FirstStart,
        Point::HeadsRecovered | Point::EpochClaimed => Way::Start,
        Point::Draining => Way::Drain,
        Point::OffsetStored => Way::Clock,
        Point::RecordsEmptied => Way::Erase,
        Point::ReadyWritten | Point::ReadyRemoved => Way::Offer,
        Point::BeforeClosing | Point::InboxAnswered => Way::Close,
        _ => Way::Load,
    }
}

/// Whether a process reaches the point at most once. Then the second time is in the next process.
fn is_reached_once(point: Point) -> bool {
    matches!(point, Point::MigrationUnrecorded | Point::KeyAside | Point::HeadsRecovered | Point::EpochClaimed)
}

/// Points that the load does not reach, and the tests that do.
fn is_reached_elsewhere(point: Point) -> bool {
    match point {
        // `schedules::a14_each_fire_time_has_one_run_whenever_the_process_dies`
        Point::TickStarted => true,
        // `signals::m21_a_delivery_signals_each_run_once_wherever_the_process_dies`
        Point::SignalSent => true,
        // With several nodes: `postgres::p3_p6_an_input_in_the_inbox_counts_once_wherever_a_node_dies`
        Point::InputDeferred | Point::AnswersTaken => true,
        _ => false,
    }
}

#[test]
fn p1_p2_p9_p20_a_crash_at_any_named_point_loses_and_doubles_nothing() {
    if one_node_only("only the process that reaches the point dies") {
        return;
    }
    let begun = Instant::now();
    let points = Point::ALL.iter().filter(|point| !is_reached_elsewhere(**point) && has_point(**point));
    let cases: Vec<(Point, u32)> = points.flat_map(|point| [(*point, 1), (*point, 2)]).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new((Summary::default(), Vec::new())));
    let work = || {
        while let Some((point, time)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = std::panic::catch_unwind(|| crash_at(*point, *time));
            let mut done = done.lock().unwrap();
            match outcome {
                Ok(summary) => done.0 += summary,
                Err(_) => done.1.push(format!("{}:{time}", point.as_str())),
            }
        }
    };
    std::thread::scope(|scope| (0..PARALLEL_CASES).for_each(|_| drop(scope.spawn(work))));
    let (summary, failed) = done.into_inner().unwrap();
    assert!(failed.is_empty(), "failed, see above: {}", failed.join(", "));
    println!("{} crash points, {} crashes, {summary}, {} s", cases.len() / 2, cases.len(), begun.elapsed().as_secs());
}

/// One case, from an empty folder to the final check.
fn crash_at(point: Point, time: u32) -> Summary {
    let (deaths, hit) = if is_reached_once(point) { (time, 1) } else { (1, time) };
    let crash = format!("{}:{hit}", point.as_str());
    let way = trigger_of(point);
    let flags = driver::flags(if way == Way::Clock { &["--clock", "virtual"] } else { &[] });
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let upstream = Upstream::start();
    let data = TempDir::new().expect("a folder for the data");
    if way == Way::FirstStart {
        for death in 1..=deaths {
            assert_eq!(dies_at_start(&flags, data.path(), &crash), Some(SIGABRT), "{crash}, death {death}");
        }
    }
    let server = Server::with_environment(&flags, data, &[]);
    let mut driver = Driver::new(server, &upstream, u64::from(time));
    driver.work_until(10);
    let clock = match way {
        Way::Clock => Some(now(driver.server())),
        _ => None,
    };
    driver.kill();
    if way != Way::FirstStart {
        for death in 1..=deaths {
            let signal = crash_by(&mut driver, way, &crash);
            assert_eq!(signal, Some(SIGABRT), "{crash}, death {death}: the point was not reached");
        }
    }
    driver.start_again();
    if let Some(before) = clock {
        let after = now(driver.server());
        assert!(after >= before, "I39: virtual time went back: {before} → {after}");
    }
    if way == Way::Erase {
        delete_runs(driver.server(), |answer| {
            assert_eq!(answer.map(|a| a.status).ok(), Some(204), "the second deletion succeeds")
        });
    }
    if way == Way::Offer {
        cancel_unclaimed(driver.server(), |answer| {
            assert_eq!(answer.map(|a| a.status).ok(), Some(204), "a task can be cancelled and deleted in any state")
        });
    }
    if way == Way::Close {
        close_deleted_children(driver.server(), |answer| {
            assert_eq!(answer.map(|a| a.status).ok(), Some(204), "nothing keeps a run that has ended")
        });
    }
    let (server, journal) = driver.finish();
    let is_time_real = way != Way::Clock;
    checker::check(&server, &upstream, &journal, &Load { acked: 10, interrupted: 0, is_time_real })
}

fn dies_at_start(flags: &[&str], data: &std::path::Path, crash: &str) -> Option<i32> {
    use crate::harness::Starting;
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let mut process = Starting::with(data, &flags, &[("ONWARD_CRASH".into(), crash.into())]);
    assert_eq!(process.ready(), None, "{crash} was not reached");
    process.ended()
}

/// Makes the process reach a point and returns the signal that ended it.
fn crash_by(driver: &mut Driver, way: Way, crash: &str) -> Option<i32> {
    let more = driver.allow_more();
    match way {
        Way::FirstStart | Way::Start => driver.run_until_crash(crash, &mut |_| {}),
        Way::Load => driver.run_until_crash(crash, &mut |_| more()),
        // If no step is running just then, there is nothing to drain and the process ends with 0.
        Way::Drain => (0..10).find_map(|_| {
            more();
            driver.run_until_crash(crash, &mut |server| server.ask_to_stop())
        }),
        // The load does not know these runs. A run whose deletion was not committed is still whole, and is deleted the
        // next time.
        Way::Erase => driver.run_until_crash(crash, &mut |server| delete_runs(server, drop)),
        Way::Offer => driver.run_until_crash(crash, &mut |server| cancel_unclaimed(server, drop)),
        Way::Close => driver.run_until_crash(crash, &mut |server| close_deleted_children(server, drop)),
        Way::Clock => driver.run_until_crash(crash, &mut |server| {
            // The server answers once everything that became due is done, or it dies before that.
            let _ = server.try_send("POST", "/api/v1/dev/clock", &[("Content-Type", "application/json")], MOVE);
        }),
    }
}

/// Starts a few runs of a workflow and deletes all of its runs.
fn delete_runs(server: &Server, on_answer: impl Fn(std::io::Result<Answer>)) {
    const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
    const WORKFLOW: &[u8] =
        br#"{"name": "short-lived", "tasks": {"a": {"noop": {}}, "b": {"noop": {}, "needs": ["a"]}}}"#;
    let send = |method: &str, path: &str, body: &[u8]| server.try_send(method, &format!("/api/v1/{path}"), JSON, body);
    let _ = send("POST", "workflows", WORKFLOW);
    for _ in 0..3 {
        let _ = send("POST", "workflows/short-lived/trigger?wait=30s&label=a:b", b"{}");
    }
    let Ok(list) = send("GET", "workflows/short-lived/runs", b"") else { return };
    for run in list.json()["data"].as_array().expect("a list") {
        on_answer(send("DELETE", &format!("runs/{}", run["id"].as_str().expect("an id")), b""));
    }
}

/// Starts a few runs that wait for a worker, of which all but one are evicted. Cancels and deletes all runs of the
/// workflow.
fn cancel_unclaimed(server: &Server, on_answer: impl Fn(std::io::Result<Answer>)) {
    const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
    const WORKFLOW: &[u8] = br#"{"name": "unclaimed", "tasks": {"a": {"task": "unclaimed.v1"}}}"#;
    let send = |method: &str, path: &str, body: &[u8]| server.try_send(method, &format!("/api/v1/{path}"), JSON, body);
    let _ = send("POST", "workflows", WORKFLOW);
    for _ in 0..4 {
        let _ = send("POST", "workflows/unclaimed/trigger", b"{}");
    }
    let Ok(list) = send("GET", "workflows/unclaimed/runs", b"") else { return };
    for run in list.json()["data"].as_array().expect("a list") {
        let id = run["id"].as_str().expect("an id");
        let _ = send("POST", &format!("runs/{id}/cancel"), b"{}");
        on_answer(send("DELETE", &format!("runs/{id}"), b""));
    }
}

/// Starts runs whose child is deleted before they end, ends them, and deletes all runs of the workflow. The row with
/// which each run closes its child has no reader.
fn close_deleted_children(server: &Server, on_answer: impl Fn(std::io::Result<Answer>)) {
    const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
    const BRIEF: &[u8] = br#"{"name": "brief", "tasks": {"a": {"noop": {}}}}"#;
    const CLOSER: &[u8] = br#"{"name": "closer", "tasks": {
        "call": {"subworkflow": {"workflow": "brief", "detached": true, "on_parent_close": "cancel"}},
        "hold": {"needs": ["call"], "pause": {}}}}"#;
    let send = |method: &str, path: &str, body: &[u8]| server.try_send(method, &format!("/api/v1/{path}"), JSON, body);
    let runs_of = |workflow: &str| -> Vec<String> {
        let Ok(list) = send("GET", &format!("workflows/{workflow}/runs"), b"") else { return Vec::new() };
        let ids = list.json()["data"].as_array().expect("a list").clone();
        ids.iter().map(|run| run["id"].as_str().expect("an id").to_owned()).collect()
    };
    for definition in [BRIEF, CLOSER] {
        let _ = send("POST", "workflows", definition);
    }
    for _ in 0..2 {
        let _ = send("POST", "workflows/closer/trigger?wait=300ms", b"{}");
    }
    let until = Instant::now() + std::time::Duration::from_secs(10);
    loop {
        // A child is deleted once its parent knows that it exists; otherwise this answers 409.
        let is_deleted = |run: &String| send("DELETE", &format!("runs/{run}"), b"").is_ok_and(|a| a.status == 204);
        let is_over = runs_of("brief").iter().filter(|run| !is_deleted(run)).count() == 0;
        if is_over || send("GET", "runs?limit=1", b"").is_err() || Instant::now() > until {
            break;
        }
    }
    for run in runs_of("closer") {
        let _ = send("POST", &format!("runs/{run}/cancel"), b"{}");
        let delete = || send("DELETE", &format!("runs/{run}"), b"");
        let patient = || loop {
            match delete() {
                // The row that closes the child is removed soon.
                Ok(answer) if answer.status == 409 && Instant::now() < until => continue,
                other => break other,
            }
        };
        on_answer(patient());
    }
}

const MOVE: &[u8] = br#"{"advance": "150ms"}"#;

fn now(server: &Server) -> i64 {
    micros(&server.get("/api/v1/dev/clock").data(200)["now"])
}
