//! The database loses its latest data: a backup is restored while a node is running.

use super::*;
use engine::services::CancelRun;
use testkit::postgres::PostgresCluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_reports_a_store_rollback_and_continues_from_the_restored_data() {
    let mut cluster = PostgresCluster::start(&[]);
    let a = node(&cluster.database(), "a").await;
    a.define(json!({ "name": "wf", "tasks": {
        "w": { "wait_for_webhook": { "timeout": "1h" } },
        "after": { "needs": ["w"], "noop": {} },
    } }))
    .await;
    let secret = Secret::new([7; 32]);
    let (kept, undone) = (a.start("wf").await, a.start("wf").await);
    tokio::task::block_in_place(|| cluster.back_up());
    let until = Instant::now() + TIMEOUT;
    while a.engine.check().await.is_err() {
        assert!(Instant::now() < until, "the node does not recover from a restart of the server");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lost = a.start("wf").await;
    a.engine.runs.callback(&secret.token(undone, "w"), Bytes::from("{}")).await.unwrap();
    a.completes(undone).await;
    tokio::task::block_in_place(|| cluster.restore());
    let until = Instant::now() + TIMEOUT;
    loop {
        match a.engine.check().await {
            Err(engine::Error::RolledBack) => break,
            Ok(()) | Err(engine::Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(Instant::now() < until, "the rollback was not detected");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The node continues with the restored data and has forgotten everything else.
    for run in [kept, undone] {
        assert_eq!(a.status(run).await, RunStatus::Waiting);
        let until = Instant::now() + TIMEOUT;
        while let Err(error) = a.engine.runs.callback(&secret.token(run, "w"), Bytes::from("{}")).await {
            assert!(matches!(error, engine::Error::Unavailable(_)) && Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        a.completes(run).await;
    }
    assert!(a.engine.runs.read(ORG, lost).await.unwrap().is_none());
    let gone = a.engine.runs.cancel(ORG, lost, CancelRun::plain("me", "")).await;
    assert!(matches!(gone, Err(engine::Error::NotFound(_))), "{gone:?}");
    a.start("wf").await;
    let checked = a.engine.check().await;
    assert!(
        matches!(checked, Err(engine::Error::RolledBack)),
        "the alarm stays until the node is restarted: {checked:?}"
    );
    a.stop().await;
}
