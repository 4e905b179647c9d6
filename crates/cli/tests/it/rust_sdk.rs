//! The Rust SDK against the real server: submitting tasks, working, and what happens when either side dies.
//!
//! The programs of `crates/client/examples` are included in this file, so that the tests compile and run them
//! unchanged. A test that needs a program as a process starts this test binary with the program's name (see
//! [`as_a_process`]).

use crate::harness::eventually;
use client::testing::Server;
use client::worker::{Context, Error, LogLevel};
use client::{Client, Definition, Error as ClientError, Start, Task, TaskQuery, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

mod conformance_worker {
    include!("../../../client/examples/conformance_worker.rs");
    pub fn run() {
        main().expect("it runs");
    }
}
mod quickstart {
    include!("../../../client/examples/quickstart.rs");
    pub fn run() {
        main().expect("it runs");
    }
}

const BINARY: &str = env!("CARGO_BIN_EXE_onward");
/// The environment variable with the program that [`as_a_process`] runs.
const PROGRAM: &str = "ONWARD_TEST_PROGRAM";
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The shell command that runs one of the programs through this test binary.
pub fn program(name: &str) -> String {
    let this = std::env::current_exe().expect("a path");
    format!("env {PROGRAM}={name} {} --exact rust_sdk::as_a_process --nocapture --quiet", this.display())
}

/// Not a test: other tests start it as a process.
#[test]
fn as_a_process() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("quickstart") => quickstart::run(),
        Ok("conformance_worker") => conformance_worker::run(),
        _ => {}
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two folders deep").to_owned()
}

/// Runs a test's body with a server of its own.
fn with_server<R>(test: impl FnOnce(Server) -> R)
where
    R: Future<Output = ()>,
{
    let server = Server::of(Path::new(BINARY), &[]).expect("a server");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        tokio::time::timeout(WAIT_MAX, test(server)).await.expect("the test took too long");
    });
}

/// A worker in the background, until it is stopped.
struct Running {
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<client::Result<()>>,
}

impl Running {
    fn start(worker: Worker) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(worker.run_until(async { stopped.await.unwrap_or_default() }));
        Running { stop, ended }
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.ended.await.expect("the worker does not panic").expect("the worker drains");
    }
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Invoice {
    order: u64,
    lines: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Receipt {
    number: String,
}

fn quickly() -> Value {
    json!({ "max_attempts": 2, "backoff": { "type": "fixed", "min": "50ms" } })
}

#[test]
fn w3_w20_rust_typed_input_and_result() {
    with_server(async |server| {
        let client = server.client();
        let worker = Worker::new(client.clone()).handle("billing.v1", |invoice: Invoice, ctx: Context| async move {
            Ok(Receipt { number: format!("{}-{}-{}", invoice.order, invoice.lines.len(), ctx.attempt()) })
        });
        let running = Running::start(worker);
        let invoice = Invoice { order: 7, lines: vec!["a".into()] };
        let task = Task::new("billing.v1", &invoice).priority(1).label("team", "blue").idempotency_key("once");
        let made = client.tasks().submit(task.clone()).await.unwrap();
        let receipt: Receipt = client.tasks().result(&made.task_id, WAIT_MAX).await.unwrap();
        assert_eq!(receipt, Receipt { number: "7-1-1".into() });
        let again = client.tasks().submit(task).await.unwrap();
        assert!(again.deduplicated && again.task_id == made.task_id);
        let bad = client.tasks().submit(Task::new("billing.v1", &json!({ "order": 1, "lines": [7] }))).await.unwrap();
        match client.tasks().result::<Receipt>(&bad.task_id, WAIT_MAX).await {
            Err(ClientError::Ended { code, message, .. }) => {
                assert_eq!(code, "invalid_input");
                assert!(message.contains("lines[0]"), "{message}");
            }
            other => panic!("{other:?}"),
        }
        let query = TaskQuery { label: Some("team:blue".into()), ..TaskQuery::default() };
        assert_eq!(client.tasks().list(&query).await.unwrap().data.len(), 1);
        let events = client.tasks().events(&made.task_id).await.unwrap();
        assert!(events.len() >= 3, "{events:?}");
        running.stop().await;
    });
}

#[test]
fn w12_w13_rust_errors_decide_and_a_panic_is_one() {
    with_server(async |server| {
        let client = server.client();
        let worker = Worker::new(client.clone()).handle("decide.v1", |what: String, ctx: Context| async move {
            match what.as_str() {
                "io" => Err(std::fs::read("/nowhere/at/all").unwrap_err().into()),
                "panic" => panic!("the handler fell over"),
                "fail" => Err(Error::fail("no").code("never")),
                "huge" => Ok("x".repeat(20_000_000)),
                "later" if ctx.attempt() == 1 => Err(Error::retry_after(Duration::from_millis(50), "busy")),
                _ => Ok("done".to_owned()),
            }
        });
        let running = Running::start(worker);
        for (what, status, attempt, code) in [
            ("io", "failed", 2, "worker_error"),
            ("panic", "failed", 2, "panic"),
            ("fail", "failed", 1, "never"),
            ("huge", "failed", 1, "result_too_large"),
            ("later", "succeeded", 2, ""),
        ] {
            let task = Task::new("decide.v1", &what).retry(quickly());
            let made = client.tasks().submit(task).await.unwrap();
            let view = client.tasks().wait(&made.task_id, WAIT_MAX).await.unwrap();
            assert_eq!((&*view.status, view.attempt), (status, attempt), "{what}: {view:?}");
            if status == "failed" {
                assert_eq!(view.error.unwrap().code, code, "{what}");
            }
        }
        running.stop().await;
    });
}

/// Records that it was dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn w11_rust_a_cancelled_handler_is_dropped() {
    with_server(async |server| {
        let client = server.client();
        let (saw_cancel, was_dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, dropped) = (saw_cancel.clone(), was_dropped.clone());
        let worker = Worker::new(client.clone())
            .slots(1)
            .lease(Duration::from_secs(3_600))
            .cancel_grace(Duration::from_millis(100))
            .handle("deaf.v1", move |_: Value, ctx: Context| {
                let (seen, dropped) = (seen.clone(), Dropped(dropped.clone()));
                async move {
                    let _dropped = dropped;
                    ctx.cancelled().await;
                    seen.store(ctx.is_cancelled() && ctx.heartbeat().await.is_err(), Ordering::SeqCst);
                    // A handler that ignores the cancellation.
                    std::future::pending::<()>().await;
                    Ok(())
                }
            });
        let running = Running::start(worker);
        let first = client.tasks().submit(Task::new("deaf.v1", &1)).await.unwrap();
        while client.tasks().get(&first.task_id).await.unwrap().status != "leased" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sent_at = std::time::Instant::now();
        client.tasks().cancel(&first.task_id, &Default::default()).await.unwrap();
        while !was_dropped.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(sent_at.elapsed() < Duration::from_secs(2), "within a second, and its grace: {:?}", sent_at.elapsed());
        assert!(saw_cancel.load(Ordering::SeqCst));
        running.stop().await;
    });
}

#[test]
fn w10_w17_rust_progress_and_lines_are_kept() {
    with_server(async |server| {
        let client = server.client();
        let worker = Worker::new(client.clone()).handle("pages.v1", |_: Value, ctx: Context| async move {
            let from = ctx.saved::<u32>().unwrap_or(0);
            for number in from..10 {
                ctx.progress(&number)?;
                if number == 4 && from == 0 {
                    ctx.log_at(LogLevel::Warning, "the connection was lost");
                    return Err(Error::retry("interrupted"));
                }
            }
            ctx.heartbeat().await?;
            assert!(ctx.progress(&"x".repeat(5_000)).is_err(), "more than a server would take");
            Ok(from)
        });
        let running = Running::start(worker);
        let made = client.tasks().submit(Task::new("pages.v1", &()).retry(quickly())).await.unwrap();
        let view = client.tasks().wait(&made.task_id, WAIT_MAX).await.unwrap();
        assert_eq!((&*view.status, &view.result, &view.progress), ("succeeded", &json!(4), &json!(9)), "{view:?}");
        let events = serde_json::to_string(&client.tasks().events(&made.task_id).await.unwrap()).unwrap();
        assert!(events.contains("the connection was lost") && events.contains("warning"), "{events}");
        running.stop().await;
    });
}

#[test]
fn w14_rust_a_restarted_server_is_found_again_and_results_are_not_lost() {
    with_server(async |mut server| {
        let client = server.client();
        let done = Arc::new(AtomicU32::new(0));
        let count = done.clone();
        let worker = Worker::new(client.clone()).slots(8).lease(Duration::from_secs(2));
        let worker = worker.handle("work.v1", move |n: u32, _: Context| {
            let count = count.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                count.fetch_add(1, Ordering::SeqCst);
                Ok(n)
            }
        });
        let running = Running::start(worker);
        let tasks = (0..300).map(|n| {
            Task::new("work.v1", &n).retry(json!({ "max_attempts": 3, "backoff": { "type": "fixed", "min": "0s" } }))
        });
        let made = client.tasks().submit_all(tasks).await.unwrap();
        while done.load(Ordering::SeqCst) < 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::task::block_in_place(|| server.restart()).unwrap();
        let mut again = 0;
        for (n, task) in made.iter().enumerate() {
            let view = client.tasks().wait(&task.task_id, WAIT_MAX).await.unwrap();
            assert_eq!((&*view.status, &view.result), ("succeeded", &json!(n)), "{view:?}");
            again += view.attempt - 1;
        }
        // A task that was done before the kill is not done again. A task whose lease was just being sent is done when
        // that lease expires.
        assert!(again <= 8, "{again} tasks had two attempts");
        running.stop().await;
    });
}

#[test]
fn w3_rust_a_worker_that_cannot_start_returns_an_error() {
    with_server(async |server| {
        let worker = Worker::new(server.client()).handle("not a type", |_: Value, _: Context| async move { Ok(()) });
        let error = worker.run_until(std::future::pending()).await.unwrap_err();
        assert!(error.is(api::Code::InvalidBody), "{error}");
        let signalled = server.client().signal("run_01jz8k3w9mz6xq4v7n5t2c0b1d", "paid", &json!({}), None).await;
        assert!(matches!(signalled, Err(ClientError::Refused { status: 404, .. })), "{signalled:?}");
        let late = server.client().tasks().submit(Task::new("unclaimed.v1", &1)).await.unwrap();
        let waited = server.client().tasks().wait(&late.task_id, Duration::from_millis(50)).await;
        assert!(matches!(waited, Err(ClientError::Late { .. })), "{waited:?}");
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        assert!(matches!(client.version().await, Err(ClientError::Unreachable { .. })));
    });
}

#[test]
fn w3_rust_runs_that_wait_get_what_they_wait_for_and_return_their_output() {
    with_server(async |server| {
        let client = server.client();
        let definition = "name: ship
input: { type: object, required: [order] }
output: { order: '{{trigger.body.order}}', paid: '{{tasks.paid.body.amount}}', by: '{{tasks.review.body.actor}}' }
tasks:
  review: { approval: { prompt: 'Ship?', approvers: [ann, bob] } }
  paid: { needs: [review], wait_for_signal: { name: order.paid } }
  hold: { needs: [paid], pause: {} }";
        client.create_workflow(&Definition::Yaml(definition.into())).await.unwrap();
        let start = |order: Value| Start::json(order.to_string().as_bytes());
        let run = client.trigger("ship", &start(json!({ "order": 7 }))).await.unwrap().run_id;
        let signalled = client.signal(&run, "order.paid", &json!({ "amount": 42 }), Some("k1")).await.unwrap();
        assert!(!signalled.deduplicated);
        assert!(client.signal(&run, "order.paid", &json!({ "amount": 42 }), Some("k1")).await.unwrap().deduplicated);
        let open = client.approvals(None, None).await.unwrap().data;
        assert_eq!((open.len(), open[0].run_id.as_str(), open[0].prompt.as_str()), (1, run.as_str(), "Ship?"));
        let decision = |actor: &str| api::DecisionRequest {
            actor: actor.into(),
            step: Some("review".into()),
            shown_hash: Some(open[0].shown_hash.clone()),
            ..Default::default()
        };
        let eve = client.approve(&run, &decision("eve")).await.unwrap_err();
        assert!(eve.is(api::Code::NotAnApprover), "{eve}");
        assert_eq!(client.approve(&run, &decision("ann")).await.unwrap().decision, "approved");
        let resume = api::ResumeRunRequest { step: Some("hold".into()), ..Default::default() };
        let mut tries = 0;
        while client.resume(&run, &resume).await.is_err() {
            tries += 1;
            assert!(tries < 100, "it never waited");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Shipped {
            order: u32,
            paid: u32,
            by: String,
        }
        let shipped: Shipped = client.result(&run, WAIT_MAX).await.unwrap();
        assert_eq!(shipped, Shipped { order: 7, paid: 42, by: "ann".into() });
        let denied = client.trigger("ship", &start(json!({ "order": 8 }))).await.unwrap().run_id;
        let reject = api::DecisionRequest { actor: "bob".into(), ..Default::default() };
        assert_eq!(client.reject(&denied, &reject).await.unwrap().decision, "denied");
        match client.result::<Value>(&denied, WAIT_MAX).await {
            Err(ClientError::Ended { status, .. }) => assert_eq!(status, "cancelled"),
            other => panic!("{other:?}"),
        }
        match client.trigger("ship", &start(json!({ "ordre": 7 }))).await {
            Err(error @ ClientError::Refused { .. }) => {
                assert!(error.is(api::Code::InvalidInput), "{error}");
                let ClientError::Refused { problem, .. } = error else { unreachable!() };
                assert_eq!(problem.problems.unwrap()[0].message, "the body needs a field `order`");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn w3_rust_passes_the_conformance_cases() {
    let run = root().join("sdks/conformance/run.py");
    let mut command = Command::new("timeout");
    command.args(["180", "python3"]).arg(run).args(["--binary", BINARY, "--"]);
    command.args(program("conformance_worker").split(' '));
    let ran = command.output().expect("python runs");
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{out}\n{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_guide_shows_the_program_that_is_run() {
    let guide = std::fs::read_to_string(root().join("docs/guides/rust.md")).expect("the guide");
    let code = include_str!("../../../client/examples/quickstart.rs");
    assert!(guide.contains(&format!("```rust\n{code}```\n")), "docs/guides/rust.md shows another program");
}

#[test]
fn a_test_server_removes_its_data_when_dropped() {
    let server = Server::of(Path::new(BINARY), &["--clock", "virtual"]).expect("a server");
    let url = server.url().to_owned();
    drop(server);
    let address: std::net::SocketAddr = url.trim_start_matches("http://").parse().expect("an address");
    eventually("the port is closed", || std::net::TcpStream::connect(address).is_err().then_some(()));
    assert!(Server::of(Path::new("/nowhere/onward"), &[]).is_err_and(|e| e.to_string().contains("ONWARD_BINARY")));
    assert!(Server::of(Path::new(BINARY), &["--no-such-flag"]).is_err());
}
