//! P17: the server on a disk that is full, read-only or failing.

mod disk;
mod power;

use crate::harness::{Act, Answer, Server, Upstream, eventually, reply, sqlite_only, status};
use crate::kill::checker::{self, Load};
use crate::kill::driver::{self, Driver};
use disk::Disk;
use serde_json::json;
use std::time::{Duration, Instant};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Why these tests are skipped on Postgres.
const DISK: &str = "on Postgres the disk is the database server's";

#[test]
fn p17_a_full_disk_refuses_writes_and_recovers_by_itself() {
    writes_stop_and_recover("full");
}

#[test]
fn p17_a_read_only_disk_refuses_writes_and_recovers_by_itself() {
    writes_stop_and_recover("readonly");
}

fn writes_stop_and_recover(fault: &str) {
    if sqlite_only(DISK) {
        return;
    }
    let upstream = Upstream::start();
    let (disk, mut server) = Disk::with_server(&[]);
    upstream.on("/held", [Act::Held(Box::new(reply(200, &[], "kept")))]);
    upstream.on("/once", [Act::Held(Box::new(status(200)))]);
    let steps = "first: { url: $UP/first }\nheld: { url: $UP/held, needs: [first] }\nlast: { url: $UP/last, needs: [held] }\nonce: { url: $UP/once, needs: [first], retry: never }\ndoor: { wait_for_webhook: {}, needs: [once] }";
    let workflow = server.workflow(&upstream.fill(steps));
    let naps = server.workflow("nap: { sleep: 1s }\nend: { noop: {}, needs: [nap] }");
    let runs: Vec<String> = (0..3).map(|_| server.trigger(&workflow, &json!(null))).collect();
    let nap = server.trigger(&naps, &json!(null));
    upstream.wait_for("/held", runs.len());
    upstream.wait_for("/once", runs.len());
    server.when(&nap, "nap", "sleeping");

    disk.set(fault, 1);
    // Results that cannot be written, and a timer that becomes due.
    upstream.release("/held");
    upstream.release("/once");
    let trigger = format!("/api/v1/workflows/{workflow}/trigger");
    let start = |server: &Server| server.send("POST", &trigger, &[JSON, ("Idempotency-Key", "again")], b"null");
    assert_unavailable(&start(&server));
    assert_unavailable(&server.cancel(&runs[0]));
    assert_unavailable(&server.send(
        "POST",
        "/api/v1/workflows",
        &[("Content-Type", "application/yaml")],
        b"name: new\ntasks: { a: { noop: {} } }",
    ));
    let reads_work = || {
        assert_eq!(server.list("/api/v1/runs").len(), 4, "a refused run left a trace");
        assert_eq!(server.run(&runs[1])["tasks"]["first"]["status"], "success");
        server.events(&runs[1]);
    };
    reads_work();
    assert_eq!(server.get("/readyz").refusal(503), "storage_unavailable");
    let before = cpu_time(server.pid());
    // A fixed sleep on purpose: the processor time of an outage of two seconds is measured.
    std::thread::sleep(Duration::from_secs(2));
    let busy = cpu_time(server.pid()) - before;
    assert!(busy < Duration::from_millis(500), "it busy-waits: {busy:?} of 2 s");
    reads_work();
    assert_unavailable(&start(&server));

    disk.clear(fault);
    let cleared = Instant::now();
    let started = eventually("writes work again", || Some(start(&server)).filter(|answer| answer.status != 503));
    let started = started.data(201)["run_id"].as_str().expect("a run id").to_owned();
    for run in runs.iter().chain([&started]) {
        server.when(run, "last", "success");
        // Not `outcome_unknown`: a result that arrived during the outage is kept.
        server.when(run, "once", "success");
    }
    assert_eq!(server.finished(&nap)["status"], "completed", "a timer that became due during the outage");
    assert_eq!(server.get("/readyz").status, 200);
    assert!(cleared.elapsed() < Duration::from_secs(10), "it took {:?}", cleared.elapsed());
    for path in ["/first", "/held", "/last", "/once"] {
        assert_eq!(upstream.effects_on(path).len(), runs.len() + 1, "{path} was executed once for each run");
    }
    server.crash_and_restart();
    assert_eq!(server.list("/api/v1/runs").len(), 5);
    for run in runs.iter().chain([&started]) {
        assert_eq!(server.run(run)["tasks"]["last"]["status"], "success");
        server.cancel(run).data(200);
    }
}

#[track_caller]
fn assert_unavailable(answer: &Answer) {
    assert_eq!(answer.refusal(503), "storage_unavailable");
    assert!(answer.header("retry-after").is_some());
}

/// User and system time of a process so far.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let after_name = stat.rsplit_once(')').expect("its name").1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("ticks")).sum();
    // USER_HZ is 100 wherever Linux runs.
    Duration::from_millis(ticks * 10)
}

#[test]
fn p17_an_error_at_a_sync_stops_the_process_and_nothing_acknowledged_is_lost() {
    if sqlite_only(DISK) {
        return;
    }
    // The first sync or a later one. There are at least three commits, even if all runs share them.
    for k in 1..=3 {
        let (disk, mut server) = Disk::with_server(&[]);
        let workflow = server.workflow("a: { noop: {} }\nb: { noop: {}, needs: [a] }");
        let trigger = format!("/api/v1/workflows/{workflow}/trigger");
        let kept = server.trigger(&workflow, &json!(null));
        server.finished(&kept);
        disk.set("sync", k);
        let api = *server;
        let ask = |key: &str| api.write(&trigger, &[("Idempotency-Key", key)], b"null");
        let keys: Vec<String> = (0..6).map(|i| format!("key-{i}")).collect();
        let answers: Vec<Result<Answer, bool>> = std::thread::scope(|scope| {
            let threads: Vec<_> = keys.iter().map(|key| scope.spawn(|| ask(key))).collect();
            threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
        });
        assert_stopped(&mut server);
        disk.clear("sync");
        server.start_again();
        let there = server.list("/api/v1/runs").len();
        assert_eq!(server.run(&kept)["status"], "completed");
        for (key, answer) in keys.iter().zip(&answers) {
            let again = || {
                server.post_with(&trigger, &[("Idempotency-Key", key)], &json!(null)).json()["data"]["run_id"].clone()
            };
            let run = again();
            assert_eq!(run, again(), "one run for a key");
            match answer {
                Ok(answer) if answer.status == 201 => assert_eq!(answer.json()["data"]["run_id"], run, "k = {k}: lost"),
                Ok(answer) => {
                    let code = answer.refusal(503);
                    assert!(["outcome_unknown", "storage_unavailable"].contains(&code.as_str()), "{}", answer.text());
                }
                Err(_) => {}
            }
            assert_eq!(server.finished(run.as_str().expect("a run id"))["status"], "completed");
        }
        assert!((1..=7).contains(&there), "{there}");
        assert_eq!(server.list("/api/v1/runs").len(), 7, "one run for each key, and the first");
    }
}

#[test]
fn p17_an_error_at_a_sync_stops_an_idle_process_too() {
    if sqlite_only(DISK) {
        return;
    }
    let (disk, mut server) = Disk::with_server(&[]);
    disk.set("sync", 1);
    let definition = b"name: x\ntasks: { a: { noop: {} } }";
    let headers = [("Content-Type", "application/yaml"), ("Idempotency-Key", "x")];
    let answer = server.try_send("POST", "/api/v1/workflows", &headers, definition);
    if let Ok(answer) = answer {
        assert_eq!(answer.refusal(503), "outcome_unknown");
        assert_eq!(answer.json()["error"]["retry"], "same_idempotency_key");
    }
    assert_stopped(&mut server);
    disk.clear("sync");
    server.start_again();
    let id = || server.send("POST", "/api/v1/workflows", &headers, definition).json()["data"]["id"].clone();
    assert_eq!(id(), id());
    assert_eq!(server.list("/api/v1/workflows").len(), 1);
}

#[test]
fn p17_a_process_cannot_start_on_a_failing_disk_and_can_afterwards() {
    if sqlite_only(DISK) {
        return;
    }
    let (disk, mut server) = Disk::with_server(&[]);
    let run = server.trigger(&server.workflow("a: { sleep: 1d }"), &json!(null));
    let before = server.when(&run, "a", "sleeping");
    for (fault, number) in [("full", 1), ("readonly", 1), ("sync", 1)] {
        server.kill();
        disk.set(fault, number);
        assert!(!server.start_with(&[]), "{fault}");
        assert_stopped(&mut server);
        disk.clear(fault);
        server.start_again();
        assert_eq!(server.run(&run), before, "{fault}");
    }
}

#[track_caller]
fn assert_stopped(server: &mut Server) {
    let status = server.ended();
    assert_eq!(status.code(), Some(74), "{status}: {}", server.log());
    // The last log line may be read a little after the process has ended.
    let reasons = || server.log().lines().filter(|line| line.starts_with("error: ")).count();
    eventually("a line says why", || (reasons() > 0).then_some(()));
    assert_eq!(reasons(), 1, "one line says why: {}", server.log());
}

#[test]
fn p1_a_crash_in_the_middle_of_a_checkpoint_loses_nothing() {
    if sqlite_only(DISK) {
        return;
    }
    for k in [1, 2, 9] {
        let flags = driver::flags(&[]);
        let (disk, server) = Disk::with_server(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let upstream = Upstream::start();
        let mut driver = Driver::new(server, &upstream, k.into());
        driver.work_until(10);
        driver.kill();
        disk.set("abort", k);
        let more = driver.allow_more();
        // Arming any crash point, also one that does not exist, makes checkpoints more frequent.
        assert_eq!(driver.run_until_crash("none:1", &mut |_| more()), Some(6), "no checkpoint wrote {k} pages");
        drop(more);
        disk.clear("abort");
        driver.start_again();
        let (server, journal) = driver.finish();
        checker::check(&server, &upstream, &journal, &Load { acked: 10, interrupted: 0, is_time_real: true });
    }
}
