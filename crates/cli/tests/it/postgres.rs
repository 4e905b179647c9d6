//! A server on a Postgres that fails: everything acknowledged is stored, nothing is done twice, and the process
//! recovers by itself. (With `ONWARD_TEST_STORE=postgres` all other tests run on a Postgres that works.)

use crate::harness::{Api, Server, Upstream, eventually, is_terminal};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::postgres::{PostgresCluster, name_in};
use testkit::rng::Rng;

/// Clients that start runs, each under a key of its own, and repeat each request until it is answered.
struct Load {
    is_over: Arc<AtomicBool>,
    runs: Arc<Mutex<Vec<(String, String)>>>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(api: Api, workflow: &str) -> Load {
        Load::paced(api, workflow, Duration::ZERO)
    }

    /// With a pause between two runs.
    fn paced(api: Api, workflow: &str, rest: Duration) -> Load {
        let (is_over, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let clients = (0..4).map(|client| {
            let (is_over, runs, path) =
                (is_over.clone(), runs.clone(), format!("/api/v1/workflows/{workflow}/trigger"));
            std::thread::spawn(move || {
                for n in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("{client}-{n}");
                    let body = json!({ "key": key }).to_string();
                    let started = eventually("it is started", || {
                        let answer = api.write(&path, &[("Idempotency-Key", &key)], body.as_bytes()).ok()?;
                        match answer.status {
                            200 | 201 => Some(answer.json()["data"]["run_id"].as_str().expect("a run").to_owned()),
                            503 => None,
                            other => panic!("{other}: {}", answer.text()),
                        }
                    });
                    runs.lock().unwrap().push((key, started));
                    std::thread::sleep(rest);
                }
            })
        });
        let clients = clients.collect();
        Load { is_over, runs, clients }
    }

    fn count(&self) -> usize {
        self.runs.lock().unwrap().len()
    }

    fn wait_for_more(&self, more: usize) {
        let wanted = self.count() + more;
        eventually("runs are started", || (self.count() >= wanted).then_some(()));
    }

    fn end(self) -> Vec<(String, String)> {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("a client does not fail"));
        std::mem::take(&mut *self.runs.lock().unwrap())
    }
}

/// Checks that every key has one run, every run completed, and each step sent its request under one key.
fn check(server: &Server, upstream: &Upstream, started: &[(String, String)]) {
    eventually("every run ends", || {
        server.list("/api/v1/runs?status=pending,running,waiting").is_empty().then_some(())
    });
    let runs = server.list("/api/v1/runs");
    assert!(runs.iter().all(|run| is_terminal(run) && run["status"] == "completed"));
    assert_eq!(runs.len(), started.len(), "a run that no client started");
    for (key, run) in started {
        let view = server.run(run);
        assert_eq!(view["trigger"]["body"]["key"], json!(key));
    }
    let mut effects: Vec<Value> =
        upstream.effects_on("/call").iter().map(|effect| effect.json()["key"].clone()).collect();
    effects.sort_by_key(Value::to_string);
    effects.dedup();
    assert_eq!(effects.len(), started.len(), "each run sent its request");
}

const STEPS: &str = "a: { noop: {} }\nb: { needs: [a], url: $UP/call, method: POST, body: { key: \"{{trigger.body.key}}\" } }\nc: { needs: [b], noop: {} }";

#[test]
fn p18_the_server_waits_for_a_database_that_is_down() {
    let mut cluster = PostgresCluster::start(&[]);
    let upstream = Upstream::start();
    let mut server = Server::on(&cluster.database());
    let workflow = server.workflow(&upstream.fill(STEPS));
    let load = Load::start(*server, &workflow);
    for is_kill in [true, false] {
        load.wait_for_more(20);
        cluster.stop(is_kill);
        eventually("it is not ready", || (server.get("/readyz").status == 503).then_some(()));
        let refused = server.get("/api/v1/runs");
        assert_eq!(refused.refusal(503), "storage_unavailable");
        cluster.start_again();
        let began = Instant::now();
        load.wait_for_more(20);
        assert!(began.elapsed() < Duration::from_secs(10), "it recovers soon: {:?}", began.elapsed());
        // Each node reconnects by itself.
        eventually("all are ready", || {
            let answers = |path: &str| (0..4).all(|_| server.get(path).status == 200);
            (answers("/readyz") && answers("/api/v1/runs?limit=1")).then_some(())
        });
    }
    let started = load.end();
    check(&server, &upstream, &started);
    assert_eq!(server.has_ended(), None, "the process has not ended");
}

#[test]
fn p18_a_database_that_lost_acknowledged_writes_is_detected() {
    let mut cluster = PostgresCluster::start(&[]);
    // Only the process that saw the acknowledgement can know that it was lost.
    let mut server = Server::alone_on(&cluster.database());
    let workflow = server.workflow("w: { wait_for_webhook: { timeout: 1h } }");
    let path = format!("/api/v1/workflows/{workflow}/trigger");
    let start =
        |server: &Server| server.post(&path, &json!({})).data(201)["run_id"].as_str().expect("a run").to_owned();
    let kept = start(&server);
    cluster.back_up();
    eventually("it is ready again", || (server.get("/readyz").status == 200).then_some(()));
    let lost = start(&server);
    assert_eq!(server.run(&lost)["status"], "waiting");
    cluster.restore();
    eventually("it is not ready", || {
        let answer = server.get("/readyz");
        (answer.status == 503 && answer.refusal(503) == "store_rollback_detected").then_some(())
    });
    assert!(server.get("/metrics").text().contains("\nonward_store_rollbacks_total 1\n"));
    assert_eq!(server.get(&format!("/api/v1/runs/{lost}")).status, 404);
    eventually("it works on", || {
        let answer = server.post(&format!("/api/v1/runs/{kept}/cancel"), &json!({}));
        (answer.status < 300).then_some(())
    });
    eventually("the run ends", || (server.run(&kept)["status"] == "cancelled").then_some(()));
    assert_eq!(server.get("/readyz").refusal(503), "store_rollback_detected", "until an operator has fixed it");
    assert_eq!(server.has_ended(), None, "the process has not ended");
}

#[test]
fn a_benchmark_leaves_no_database_behind() {
    let cluster = testkit::postgres::shared();
    let folder = tempfile::tempdir().unwrap();
    let databases = || cluster.sql("postgres", "SELECT count(*) FROM pg_database WHERE datname LIKE 'onward_bench%'");
    for workload in [&["flow10"][..], &["flow10", "--external"]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_onward"))
            .arg("bench")
            .args(workload)
            .args(["--seconds", "1", "--concurrency", "8", "--json", "--data"])
            .arg(folder.path())
            .env("ONWARD_BENCH_STORE", cluster.url("postgres"))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        let figures: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(figures.iter().all(|one| one["store"] == "postgres" && one["ok"] == true), "{printed}");
        let wal = figures[0]["wal_bytes_per_step"].as_f64();
        assert!(wal.is_some_and(|bytes| bytes > 100.0), "{printed}");
        assert_eq!(databases(), "0");
    }
    assert_eq!(crate::harness::onward(&["bench", "flow1", "--store", "mysql://x"]).status.code(), Some(2));
}

#[test]
fn p18_sessions_terminated_at_any_time_lose_and_double_nothing() {
    let cluster = PostgresCluster::start(&[]);
    let upstream = Upstream::start();
    let url = cluster.database();
    let mut server = Server::on(&url);
    let workflow = server.workflow(&upstream.fill(STEPS));
    let load = Load::start(*server, &workflow);
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", name_in(&url));
    for _ in 0..20 {
        load.wait_for_more(5);
        cluster.sql("postgres", &end);
    }
    load.wait_for_more(5);
    let started = load.end();
    check(&server, &upstream, &started);
    assert_eq!(server.has_ended(), None, "the process has not ended");
}

/// Two nodes: one is paused until its lease expires and then continues, sessions are terminated, the database is
/// restarted, and one node is killed.
#[test]
fn p18_two_nodes_on_a_failing_database_lose_and_double_nothing() {
    let mut cluster = PostgresCluster::start(&[]);
    let upstream = Upstream::start();
    let url = cluster.database();
    let mut server = Server::nodes_on(2, &url);
    let workflow = server.workflow(&upstream.fill(STEPS));
    let load = Load::start(*server, &workflow);
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", name_in(&url));
    load.wait_for_more(50);
    for paused in [0, 1] {
        server.signal_one(paused, "STOP");
        // Longer than a node's lease.
        std::thread::sleep(Duration::from_secs(6));
        server.signal_one(paused, "CONT");
        load.wait_for_more(50);
        cluster.sql("postgres", &end);
        load.wait_for_more(50);
        cluster.stop(paused == 0);
        cluster.start_again();
        let began = Instant::now();
        load.wait_for_more(50);
        assert!(began.elapsed() < Duration::from_secs(10), "it recovers soon: {:?}", began.elapsed());
    }
    server.lose(0);
    load.wait_for_more(50);
    let started = load.end();
    eventually("it answers", || (server.get("/api/v1/runs?limit=1").status == 200).then_some(()));
    check(&server, &upstream, &started);
    server.kill();
}

/// Faults in any order, while the sessions that listen for cluster events are terminated again and again: the nodes
/// must not depend on those events.
/// `ONWARD_LONG` makes the test run for a minute; `ONWARD_SEED` sets the order of the faults.
#[test]
fn p18_any_faults_without_cluster_events_lose_and_double_nothing() {
    let seed = std::env::var("ONWARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let long = std::env::var_os("ONWARD_LONG").is_some();
    let (lasting, mut rng) = (Duration::from_secs(if long { 62 } else { 8 }), Rng::new(seed));
    let mut cluster = PostgresCluster::start(&[]);
    let upstream = Upstream::start();
    let url = cluster.database();
    let mut server = Server::nodes_on(2, &url);
    let workflow = server.workflow(&upstream.fill(STEPS));
    let load = Load::paced(*server, &workflow, Duration::from_millis(5));
    let name = name_in(&url);
    let end = |which: &str| {
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND {which}")
    };
    // The session that listens also sends.
    let (all_sessions, listeners) = (end("true"), end("(query LIKE 'LISTEN %' OR query LIKE '%pg_notify(%')"));
    let mut cuts = 0;
    let mut cut_listeners_for = |cluster: &PostgresCluster, rest: Duration| {
        let until = Instant::now() + rest;
        while Instant::now() < until {
            let cut = cluster.psql("postgres", &listeners);
            cuts += String::from_utf8_lossy(&cut.stdout).matches('t').count();
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let mut happened = Vec::new();
    let until = Instant::now() + lasting;
    while Instant::now() < until {
        let node = rng.below(2) as usize;
        let what =
            rng.pick(&["end sessions", "crash the database", "restart the database", "stop a node", "kill a node"]);
        happened.push(format!("{what} {node}"));
        match what {
            "end sessions" => drop(cluster.psql("postgres", &all_sessions)),
            "crash the database" | "restart the database" => {
                cluster.stop(what.starts_with("crash"));
                cluster.start_again();
            }
            "stop a node" => {
                server.signal_one(node, "STOP");
                // Longer than a node's lease.
                cut_listeners_for(&cluster, Duration::from_secs(6));
                server.signal_one(node, "CONT");
            }
            _ => server.restart_one(node),
        }
        cut_listeners_for(&cluster, Duration::from_millis(500 + rng.below(2_500)));
    }
    load.wait_for_more(50);
    let started = load.end();
    println!("seed {seed}: {} runs, {cuts} listeners cut off; {happened:?}", started.len());
    assert!(cuts > 10, "{cuts} listeners were cut off");
    // Requests go to both nodes in turn: neither has ended by itself.
    check(&server, &upstream, &started);
}

/// Two processes with the same node name would take over each other's runs.
#[test]
fn a_second_node_on_one_data_folder_is_refused() {
    let cluster = testkit::postgres::shared();
    let mut server = Server::alone_on(&cluster.database());
    let second = server.beside(&[]);
    assert_eq!(second.status.code(), Some(75), "{}", String::from_utf8_lossy(&second.stderr));
    assert!(String::from_utf8_lossy(&second.stderr).contains("give each its own `--data`"));
    assert_eq!(server.has_ended(), None, "the first process still runs");
}

/// Two nodes give signals to one run, so that their records conflict, and one of them dies: when it has written an input
/// into the inbox, and when it has taken the answer out of it. Clients repeat under their keys what was not answered.
#[test]
fn p3_p6_an_input_in_the_inbox_counts_once_wherever_a_node_dies() {
    const CLIENTS: usize = 8;
    const EACH: usize = 40;
    const SIGABRT: i32 = 6;
    let cluster = testkit::postgres::shared();
    for crash in ["input_deferred:1", "input_deferred:3", "answers_taken:1", "answers_taken:3"] {
        let mut server = Server::nodes_on(2, &cluster.database());
        let workflow =
            server.workflow("all: { loop: { items: trigger.body, tasks: { w: { wait_for_signal: { name: go } } } } }");
        let run = server.trigger(&workflow, &json!((0..CLIENTS * EACH).collect::<Vec<usize>>()));
        server.when(&run, "all", "running");
        server.restart_one_with(1, &[("ONWARD_CRASH".into(), crash.into())]);
        let path = format!("/api/v1/runs/{run}/signals/go");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (api, path): (Api, String) = (*server, path.clone());
                std::thread::spawn(move || {
                    for n in 0..EACH {
                        let (key, body) = (format!("{client}-{n}"), json!([client, n]).to_string());
                        eventually("the signal is accepted", || {
                            match api.write(&path, &[("Idempotency-Key", &key)], body.as_bytes()).ok()?.status {
                                200 => Some(()),
                                503 => None,
                                other => panic!("{crash}: {other}"),
                            }
                        });
                    }
                })
            })
            .collect();
        let signal = eventually(&format!("{crash} is reached"), || server.signal_that_ended(1));
        assert_eq!(signal, SIGABRT, "{crash}");
        server.restart_one(1);
        clients.into_iter().for_each(|client| client.join().expect("a client does not fail"));
        let view = server.finished(&run);
        let read: Vec<(u64, u64)> = view["tasks"]["all"]["body"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|of| (of[0].as_u64().expect("a client"), of[1].as_u64().expect("a number")))
            .collect();
        let events = server.events(&run);
        let received = events.iter().filter(|event| event["type"] == "signal.received").count();
        assert_eq!(
            (received, read.len()),
            (CLIENTS * EACH, CLIENTS * EACH),
            "{crash}: each was received and read once"
        );
        for client in 0..CLIENTS as u64 {
            let numbers: Vec<u64> = read.iter().filter(|(of, _)| *of == client).map(|(_, n)| *n).collect();
            assert_eq!(
                numbers,
                (0..EACH as u64).collect::<Vec<_>>(),
                "{crash}: in the order in which {client} sent them"
            );
        }
        server.verify();
    }
}

/// A client that reads `deleted` forgets the run, so a stream says that only if the database says so.
#[test]
fn p18_i37_a_stream_does_not_call_a_run_deleted_when_the_database_cannot_be_read() {
    let mut cluster = PostgresCluster::start(&[]);
    let server = Server::on(&cluster.database());
    let workflow = server.workflow("w: { wait_for_signal: { name: go } }");
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "w", "waiting");
    let path = format!("/api/v1/runs/{run}/stream");
    let history = server.events(&run).len();
    let mut streams: Vec<_> = (0..4).map(|_| server.stream(&path, None)).collect();
    for stream in &mut streams {
        assert_eq!((0..history).filter_map(|_| stream.next()).count(), history);
    }
    let last = streams[0].last.clone();
    cluster.stop(true);
    for stream in streams {
        let said = stream.rest();
        assert!(said.is_empty(), "the stream breaks off, and says nothing about the run: {said:?}");
    }
    cluster.start_again();
    eventually("it is ready", || (0..4).all(|_| server.get("/readyz").status == 200).then_some(()));
    let resumed = server.stream(&path, last.as_deref());
    server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!({})).data(200);
    let said = resumed.rest();
    let end = said.last().expect("an end");
    assert_eq!((end.event.as_deref(), &end.data["status"]), (Some("end"), &json!("completed")));
}
