//! Inputs of runs that several nodes change at the same time.

use super::*;
use kernel::inbox::{InboxKind, StoredAnswer, StoredInput};
use kernel::{InboxId, Input};
use store::{InboxKey, InboxRow};

const WAITING: &str = "waits";

async fn two_nodes_and_a_run() -> (Node, Node, RunId) {
    let url = shared().database();
    let (a, b) = (node(&url, "a").await, node(&url, "b").await);
    a.define(json!({ "name": WAITING, "tasks": { "wait": { "sleep": "1h" } } })).await;
    let run = a.start(WAITING).await;
    (a, b, run)
}

fn row(run: RunId, n: u8, input: Input) -> InboxRow {
    let body = StoredInput::of(input).unwrap().seal();
    let key = (ORG, run, InboxId([n; 16]));
    InboxRow { key, kind: InboxKind::Input, body, written_at: Timestamp(0), sender: None }
}

fn cancel() -> Input {
    Input::Cancel { actor: "ada".into(), reason: "changed my mind".into(), compensate: false }
}

async fn answer(node: &Node, key: InboxKey) -> StoredAnswer {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some((_, answer)) = node.store.take_inbox_answers(&[key]).await.unwrap().pop() {
            return StoredAnswer::open(&answer).unwrap();
        }
        assert!(Instant::now() < until, "the row has no answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a node that is killed right after it wrote the rows leaves behind.
#[tokio::test]
async fn a_row_whose_writer_is_gone_is_applied_once() {
    let (a, b, run) = two_nodes_and_a_run().await;
    let rows = [row(run, 1, cancel()), row(run, 2, cancel()), row(RunId([9; 16]), 3, cancel())];
    a.store.put_inbox(&rows).await.unwrap();
    a.stop().await;

    let first = answer(&b, rows[0].key).await;
    assert!(matches!(first, StoredAnswer::Run { status: RunStatus::Cancelled, .. }), "{first:?}");
    let second = answer(&b, rows[1].key).await;
    assert!(matches!(second, StoredAnswer::Run { status: RunStatus::Cancelled, .. }), "{second:?}");
    assert_eq!(answer(&b, rows[2].key).await, StoredAnswer::NotFound {});
    let ends = b.events(run).await.into_iter().filter(|(_, event)| matches!(event, Event::RunCancelled { .. })).count();
    assert_eq!(ends, 1);
    b.stop().await;
}

/// Clients of both nodes change one run as fast as they can. All of them are answered.
#[tokio::test(flavor = "multi_thread")]
async fn no_caller_is_refused_because_the_run_changes_too_fast() {
    let (a, b, run) = two_nodes_and_a_run().await;
    let clients = (0..32).map(|n| {
        let runs = if n % 2 == 0 { a.engine.runs.clone() } else { b.engine.runs.clone() };
        tokio::spawn(async move {
            for _ in 0..20 {
                runs.pause(ORG, run, "ada".into(), String::new()).await?;
                runs.resume(ORG, run, "ada".into()).await?;
            }
            Ok::<(), engine::Error>(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap().expect("no request is refused");
    }
    let left = a.store.inbox(InboxKind::Input, None, 10).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    a.stop().await;
    b.stop().await;
}
