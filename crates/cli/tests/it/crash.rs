//! Death at named moments: for every point of [`store::crash`], at its first and its second time, the
//! load of the kill loop runs until the process aborts itself there. After a restart nothing may be
//! lost, doubled, stuck or early. A point the load does not get to is a failure: every one is proved to
//! be alive.

use crate::harness::{Answer, Server, Upstream, has_point, micros, one_node_only};
use crate::kill::checker::{self, Load, Summary};
use crate::kill::driver::{self, Driver};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use store::crash::Point;
use tempfile::TempDir;

/// Cases under way at once: they mostly wait.
const SIDE_BY_SIDE: usize = 5;
const SIGABRT: i32 = 6;

/// What leads to a point.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The very first start on an empty folder.
    FirstStart,
    /// A start on data whose last process was killed at work.
    Start,
    /// Load, on such data too.
    Load,
    /// SIGTERM under load.
    Drain,
    /// Moving a virtual clock.
    Clock,
    /// Deleting a run.
    Erase,
    /// Tasks that nobody claims, and that are called off.
    Offer,
}

fn way_to(point: Point) -> Way {
    match point {
        Point::MigrationStatement | Point::MigrationUnrecorded | Point::KeyAside => Way::FirstStart,
        Point::HeadsRecovered | Point::EpochClaimed => Way::Start,
        Point::Draining => Way::Drain,
        Point::OffsetStored => Way::Clock,
        Point::RecordsEmptied => Way::Erase,
        Point::ReadyWritten | Point::ReadyRemoved => Way::Offer,
        _ => Way::Load,
    }
}

/// Does a process get there once at most? Then the second time is the next process's.
fn comes_once(point: Point) -> bool {
    matches!(point, Point::MigrationUnrecorded | Point::KeyAside | Point::HeadsRecovered | Point::EpochClaimed)
}

#[test]
fn p1_p2_p9_p20_a_crash_at_any_named_point_loses_and_doubles_nothing() {
    if one_node_only("it is the process that gets to the point that dies") {
        return;
    }
    let begun = Instant::now();
    // The load has no schedules; `schedules::a14_each_moment_has_one_run_whenever_the_process_dies` has.
    let points = Point::ALL.iter().filter(|point| **point != Point::TickStarted && has_point(**point));
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
    std::thread::scope(|scope| (0..SIDE_BY_SIDE).for_each(|_| drop(scope.spawn(work))));
    let (summary, failed) = done.into_inner().unwrap();
    assert!(failed.is_empty(), "failed, see above: {}", failed.join(", "));
    println!("{} crash points, {} crashes, {summary}, {} s", cases.len() / 2, cases.len(), begun.elapsed().as_secs());
}

/// One case from an empty folder to the check.
fn crash_at(point: Point, time: u32) -> Summary {
    let (deaths, hit) = if comes_once(point) { (time, 1) } else { (1, time) };
    let crash = format!("{}:{hit}", point.as_str());
    let way = way_to(point);
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
            let signal = die(&mut driver, way, &crash);
            assert_eq!(signal, Some(SIGABRT), "{crash}, death {death}: the point was not reached");
        }
    }
    driver.start_again();
    if let Some(before) = clock {
        let after = now(driver.server());
        assert!(after >= before, "I39: virtual time went back: {before} → {after}");
    }
    if way == Way::Erase {
        erase(driver.server(), |answer| {
            assert_eq!(answer.map(|a| a.status).ok(), Some(204), "it goes the second time")
        });
    }
    if way == Way::Offer {
        offer(driver.server(), |answer| {
            assert_eq!(answer.map(|a| a.status).ok(), Some(204), "whatever became of it, it is called off and goes")
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

/// Goes the way to a point; answers the signal that ended the process.
fn die(driver: &mut Driver, way: Way, crash: &str) -> Option<i32> {
    let more = driver.allow_more();
    match way {
        Way::FirstStart | Way::Start => driver.until_it_dies(crash, &mut |_| {}),
        Way::Load => driver.until_it_dies(crash, &mut |_| more()),
        // When nothing happens to be under way, there is nothing to wait for and the process ends with 0.
        Way::Drain => (0..10).find_map(|_| {
            more();
            driver.until_it_dies(crash, &mut |server| server.ask_to_stop())
        }),
        // What is deleted was nobody's: a run whose deletion did not land is there, whole, and goes next time.
        Way::Erase => driver.until_it_dies(crash, &mut |server| erase(server, drop)),
        Way::Offer => driver.until_it_dies(crash, &mut |server| offer(server, drop)),
        Way::Clock => driver.until_it_dies(crash, &mut |server| {
            // It answers once everything the move set off is done, or never.
            let _ = server.try_send("POST", "/api/v1/dev/clock", &[("Content-Type", "application/json")], MOVE);
        }),
    }
}

/// Makes a few runs and deletes all of their kind.
fn erase(server: &Server, told: impl Fn(std::io::Result<Answer>)) {
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
        told(send("DELETE", &format!("runs/{}", run["id"].as_str().expect("an id")), b""));
    }
}

/// Makes a few runs that wait for a worker, of which all but one leave memory; calls off and deletes all of their
/// kind.
fn offer(server: &Server, told: impl Fn(std::io::Result<Answer>)) {
    const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
    const WORKFLOW: &[u8] = br#"{"name": "unclaimed", "tasks": {"a": {"task": "nobody.knows.v1"}}}"#;
    let send = |method: &str, path: &str, body: &[u8]| server.try_send(method, &format!("/api/v1/{path}"), JSON, body);
    let _ = send("POST", "workflows", WORKFLOW);
    for _ in 0..4 {
        let _ = send("POST", "workflows/unclaimed/trigger", b"{}");
    }
    let Ok(list) = send("GET", "workflows/unclaimed/runs", b"") else { return };
    for run in list.json()["data"].as_array().expect("a list") {
        let id = run["id"].as_str().expect("an id");
        let _ = send("POST", &format!("runs/{id}/cancel"), b"{}");
        told(send("DELETE", &format!("runs/{id}"), b""));
    }
}

const MOVE: &[u8] = br#"{"advance": "150ms"}"#;

fn now(server: &Server) -> i64 {
    micros(&server.get("/api/v1/dev/clock").data(200)["now"])
}
