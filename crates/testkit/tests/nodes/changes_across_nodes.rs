//! A change made through one node applies on the other: at once where clients rely on it, and soon
//! everywhere.

use super::*;
use engine::WorkflowChange;
use engine::services::{
    Heartbeat, HeartbeatReply, NewTask, ReportOutcome, Reported, TaskKey, TaskReport, TypeChange, WorkRequest,
};
use lang::MetaChange;
use lang::task::TaskSettings;
use store::{DeliveryOutcome, TriggerRow, WorkflowRow};

async fn two_nodes() -> (Node, Node) {
    let url = shared().database();
    (node(&url, "a").await, node(&url, "b").await)
}

/// Two nodes that send each other no cluster events, so each has to read changes from the store.
async fn two_nodes_without_cluster_events() -> (Node, Node) {
    let (a, b) = two_nodes().await;
    a.store.mute();
    b.store.mute();
    (a, b)
}

async fn stop_both(a: Node, b: Node) {
    a.stop().await;
    b.stop().await;
}

fn compiled(definition: &Value) -> lang::Compiled {
    lang::compile(&lang::read(definition.to_string().as_bytes(), lang::Syntax::Json).unwrap()).unwrap()
}

impl Node {
    async fn edit(&self, name: &str, change: WorkflowChange<'_>) -> WorkflowRow {
        self.engine.workflows.edit(ORG, name, &change, None).await.unwrap()
    }

    async fn try_start(&self, workflow: &str) -> Result<RunId, engine::Error> {
        let resolved =
            self.engine.workflows.resolve(ORG, workflow).await?.ok_or(engine::Error::NotFound("workflow"))?;
        self.engine.runs.start(StartRequest::new(ORG, resolved, Bytes::from("{}"))).await.map(|started| started.run)
    }

    async fn submit_one(&self, name: &str) -> Result<RunId, engine::Error> {
        let task = NewTask {
            name: name.into(),
            settings: TaskSettings::default(),
            payload: Bytes::from("{}"),
            priority: None,
            run_at: None,
            key: String::new(),
            labels: Vec::new(),
            callback_url: String::new(),
            idempotency: None,
        };
        Ok(self.engine.tasks.submit(ORG, vec![task]).await?.remove(0).run)
    }

    async fn claim_of(&self, name: &str) -> Vec<(TaskKey, u64)> {
        let request = WorkRequest {
            worker: "w".into(),
            types: vec![name.into()],
            runtime: None,
            version: None,
            slots: None,
            credits: 10,
            lease: Span::from_secs(30),
            wait: Duration::ZERO,
            reports: Vec::new(),
            heartbeats: Vec::new(),
        };
        let claimed = self.engine.tasks.work(ORG, request).await.unwrap().claimed;
        claimed.tasks.into_iter().map(|task| (TaskKey::plain(task.run), task.fence)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_edit_on_one_node_is_visible_on_the_other_at_once() {
    let (a, b) = two_nodes().await;
    let definition = |n: u32| json!({ "name": "wf", "tasks": { "t": { "log": { "message": format!("{n}") } } } });
    a.define(definition(1)).await;
    for n in 2..12 {
        let (writer, reader) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        reader.start("wf").await;
        writer.edit("wf", WorkflowChange::Replace(&compiled(&definition(n)))).await;
        let run = reader.start("wf").await;
        let reading = writer.engine.runs.read(ORG, run).await.unwrap().unwrap();
        assert_eq!(reading.row.version, n, "the version that was current at the start request");
        let off = MetaChange { enabled: Some(false), ..MetaChange::default() };
        writer.edit("wf", WorkflowChange::Describe(&off)).await;
        assert!(matches!(reader.try_start("wf").await, Err(engine::Error::Disabled)));
        reader.edit("wf", WorkflowChange::Describe(&MetaChange { enabled: Some(true), ..off })).await;
        writer.start("wf").await;
    }
    let renamed = MetaChange { name: Some("other".into()), ..MetaChange::default() };
    a.edit("wf", WorkflowChange::Describe(&renamed)).await;
    b.start("other").await;
    b.edit("other", WorkflowChange::Delete).await;
    assert!(matches!(a.try_start("other").await, Err(engine::Error::NotFound(_))));
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_paused_through_one_node_is_paused_on_the_other() {
    pause_and_resume(two_nodes().await).await;
}

async fn pause_and_resume((a, b): (Node, Node)) {
    a.define(json!({ "name": "wf", "tasks": { "t": { "noop": {} } } })).await;
    let id = a.engine.workflows.resolve(ORG, "wf").await.unwrap().unwrap().row.id;
    for round in 0..6 {
        let (one, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        one.engine.workflows.pause(ORG, id, "me".into(), String::new()).await.unwrap();
        let held = [one.start("wf").await, other.start("wf").await];
        for run in held {
            assert_eq!(one.status(run).await, RunStatus::Pending);
        }
        other.engine.workflows.resume(ORG, id).await.unwrap();
        let run = one.start("wf").await;
        assert_ne!(one.status(run).await, RunStatus::Pending, "the workflow was resumed");
        for run in held {
            one.completes(run).await;
        }
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_changed_through_one_node_is_changed_on_the_other() {
    change_a_type(two_nodes().await).await;
}

async fn change_a_type((a, b): (Node, Node)) {
    for round in 0..4 {
        let (one, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let name = format!("mail.{round}");
        other.submit_one(&name).await.unwrap();
        one.engine.tasks.put_type(ORG, &name, TypeChange { enabled: Some(false), ..Default::default() }).await.unwrap();
        assert!(matches!(other.submit_one(&name).await, Err(engine::Error::Items(_))), "the type is disabled");
        assert_eq!(other.claim_of(&name).await, [], "a disabled type has no claimable tasks");
        one.engine.tasks.put_type(ORG, &name, TypeChange { enabled: Some(true), ..Default::default() }).await.unwrap();
        one.engine.tasks.pause_type(ORG, &name, "me".into(), String::new()).await.unwrap();
        other.submit_one(&name).await.unwrap();
        assert_eq!(other.claim_of(&name).await, [], "a paused type has no claimable tasks");
        let explanation =
            other.engine.runs.explain(ORG, other.submit_one(&name).await.unwrap(), None).await.unwrap().unwrap().1;
        assert!(format!("{explanation:?}").contains("paused"), "{explanation:?}");
        one.engine.tasks.resume_type(ORG, &name).await.unwrap();
        assert_eq!(other.claim_of(&name).await.len(), 3, "the type was resumed");
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_waiting_on_one_node_is_notified_when_the_run_ends_on_the_other() {
    wait_and_subscribe(two_nodes().await).await;
}

async fn wait_and_subscribe((a, b): (Node, Node)) {
    a.define(json!({ "name": "wf", "tasks": { "w": { "wait_for_webhook": { "timeout": "1h" } } } })).await;
    let secret = Secret::new([7; 32]);
    for round in 0..6 {
        let (one, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let run = one.start("wf").await;
        let (waiting, beside) = (one.engine.clone(), other.engine.clone());
        let waits = [
            tokio::spawn(async move { waiting.runs.wait(ORG, run, TIMEOUT).await }),
            tokio::spawn(async move { beside.runs.wait(ORG, run, TIMEOUT).await }),
        ];
        let mut follower = one.engine.subscriptions.run(ORG, run, 0).await.unwrap().unwrap();
        let mut all = one.engine.subscriptions.all(ORG, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        other.engine.runs.callback(&secret.token(run, "w"), Bytes::from("{}")).await.unwrap();
        let ended = Instant::now();
        for wait in waits {
            assert!(wait.await.unwrap().unwrap());
        }
        assert!(ended.elapsed() < Duration::from_secs(3), "{:?}", ended.elapsed());
        let mut has_ended = false;
        while let Some(happened) = tokio::time::timeout(TIMEOUT, follower.next()).await.unwrap().unwrap() {
            has_ended |= happened.iter().any(|one| one.stored.event.is_end());
        }
        assert!(has_ended);
        loop {
            let (happened, _) = tokio::time::timeout(TIMEOUT, all.next()).await.unwrap().unwrap();
            if happened.iter().flat_map(|(_, events)| events).any(|one| one.run == run && one.stored.event.is_end()) {
                break;
            }
        }
        assert!(ended.elapsed() < Duration::from_secs(6), "{:?}", ended.elapsed());
        let missing = RunId([9; 16]);
        let answer = one.engine.runs.wait(ORG, missing, TIMEOUT).await;
        assert!(matches!(answer, Err(engine::Error::NotFound(_))), "{answer:?}");
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_claimed_on_one_node_can_be_reported_to_the_other() {
    report_to_other_node(two_nodes().await).await;
}

async fn report_to_other_node((a, b): (Node, Node)) {
    for _ in 0..4 {
        let run = a.submit_one("mail").await.unwrap();
        let claimed = a.claim_of("mail").await;
        assert_eq!(claimed.len(), 1);
        let (task, fence) = (claimed[0].0, Some(claimed[0].1));
        let beat = Heartbeat { task, fence, extend: None, progress: None };
        assert!(matches!(b.engine.tasks.heartbeat(ORG, beat).await.unwrap(), HeartbeatReply::Until(_)));
        let report = TaskReport { task, fence, outcome: ReportOutcome::Done(Bytes::from("1")) };
        assert_eq!(b.engine.tasks.report(ORG, report).await.unwrap(), Reported::Recorded);
        assert!(a.engine.runs.wait(ORG, run, TIMEOUT).await.unwrap());
        assert_eq!(a.status(run).await, RunStatus::Completed);
    }
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_also_works_without_cluster_events() {
    pause_and_resume(two_nodes_without_cluster_events().await).await;
    change_a_type(two_nodes_without_cluster_events().await).await;
    wait_and_subscribe(two_nodes_without_cluster_events().await).await;
    report_to_other_node(two_nodes_without_cluster_events().await).await;
}

/// Two nodes with virtual clocks that start at the same time and are advanced by the test.
async fn two_nodes_at(start: Timestamp) -> (Node, Node) {
    let url = shared().database();
    let clock = Some(start);
    (node_at(&url, "a", clock).await, node_at(&url, "b", clock).await)
}

fn schedule(name: &str, cron: &str) -> lang::Tree {
    let config = json!({ "cron": cron, "missed": "all" });
    let request = json!({ "name": name, "workflow": "wf", "type": "schedule", "config": config });
    lang::read(request.to_string().as_bytes(), lang::Syntax::Json).unwrap()
}

/// 2026-01-01T00:00:00Z.
const NEW_YEAR: Timestamp = Timestamp(1_767_225_600_000_000);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_start_every_fire_time_of_a_schedule_once() {
    const MINUTES: u64 = 20;
    let (a, b) = two_nodes_at(NEW_YEAR).await;
    a.define(json!({ "name": "wf", "tasks": { "t": { "noop": {} } } })).await;
    let mut triggers: Vec<TriggerRow> = Vec::new();
    for n in 0..5 {
        let request = lang::trigger::request(&schedule(&format!("s{n}"), "* * * * *")).unwrap();
        triggers.push(if n % 2 == 0 { &a } else { &b }.engine.triggers.create(ORG, request, None).await.unwrap().0);
    }
    let by = Span::from_secs(60 * MINUTES);
    let (one, other) = tokio::join!(a.engine.virtual_clock.advance(by), b.engine.virtual_clock.advance(by));
    one.unwrap();
    other.unwrap();
    for trigger in &triggers {
        let lines = b.engine.triggers.deliveries(ORG, trigger.id, None, 1_000).await.unwrap();
        let fire_times: BTreeSet<_> = lines.iter().map(|line| line.nominal.unwrap()).collect();
        assert!(fire_times.len() as u64 >= MINUTES, "{} fire times of {}", fire_times.len(), trigger.name);
        let started = lines.iter().filter(|line| line.outcome == DeliveryOutcome::Started).count();
        assert_eq!(
            (started, lines.len()),
            (fire_times.len(), fire_times.len()),
            "each fire time started one run, and none was skipped"
        );
        a.engine.triggers.delete(ORG, trigger.id).await.unwrap();
    }
    let filter = store::RunFilter { limit: 1_000, ..Default::default() };
    let runs = b.store.runs(ORG, &filter).await.unwrap();
    let mut fire_times = BTreeSet::new();
    for run in &runs {
        let reading = b.engine.runs.read(ORG, store::listed_id(run)).await.unwrap().unwrap();
        let origin = &reading.run.state.origin;
        assert!(fire_times.insert((origin.trigger_id, origin.nominal)), "a fire time started two runs");
    }
    assert!(runs.len() as u64 >= MINUTES * 5, "{} runs", runs.len());
    stop_both(a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_changed_on_one_node_fires_on_the_other() {
    // A few seconds before the next minute.
    let (a, b) = two_nodes_at(NEW_YEAR.after(Span::from_secs(55))).await;
    a.define(json!({ "name": "wf", "tasks": { "t": { "noop": {} } } })).await;
    let request = lang::trigger::request(&schedule("s", "0 12 * * *")).unwrap();
    let (trigger, _) = a.engine.triggers.create(ORG, request, None).await.unwrap();
    // The node that changes the schedule starts no more runs.
    a.engine.drain(Duration::ZERO).await;
    let change = lang::read(json!({ "config": { "cron": "* * * * *" } }).to_string().as_bytes(), lang::Syntax::Json);
    let row = a.engine.triggers.change(ORG, trigger.id, &change.unwrap()).await.unwrap().unwrap();
    let due = row.next_at.unwrap();
    let until = Instant::now() + TIMEOUT;
    let line = loop {
        if let Some(line) = b.engine.triggers.deliveries(ORG, trigger.id, None, 10).await.unwrap().pop() {
            break line;
        }
        assert!(Instant::now() < until, "the schedule does not fire");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(line.at.since(due) < Span::from_secs(2), "the delivery is late: {:?} instead of {due:?}", line.at);
    stop_both(a, b).await;
}
