//! Stored formats: every release must read what every earlier release wrote.
//!
//! Each golden file holds one stored value in hex. A released file never changes. When a format grows, add a new file
//! (`UPDATE_GOLDEN=1` writes only the files that are missing). The current code must write exactly what the golden
//! files hold.

mod format_2;

use bytes::Bytes;
use kernel::advance::TaskResult;
use kernel::event::{
    Because, Callback, ConcurrencyGroup, Failure, LogLine, OnConflict, Origin, Pair, Queue, Response, TriggerKind,
};
use kernel::expr::{Expr, Seen};
use kernel::inbox::{self, StoredAnswer, StoredInput};
use kernel::message;
use kernel::path::{Ref, Root};
use kernel::plan::{Body, Concurrency, Form, Group, Guard, Layout, Level, Node, Notify, Occasion, TaskBody, Verdict};
use kernel::run::{LoadError, Pause, Phase, State, Step};
use kernel::template::{Part, Template, TemplateEntry};
use kernel::wire::{self, Message};
use kernel::{
    Answer, Event, Input, Payload, Plan, Record, Run, RunId, RunStatus, Span, Timestamp, TriggerId, WorkflowId,
};
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(32).map(|line| line.iter().map(|b| format!("{b:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Compares with the golden file and returns its bytes.
fn check(name: &str, written: &[u8]) -> Vec<u8> {
    let path = golden(name);
    if !path.exists() && std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, hex(written)).unwrap();
    }
    let text =
        std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{name} is missing; write it with UPDATE_GOLDEN=1"));
    assert_eq!(hex(written), text, "what is written now differs from {name}");
    unhex(&text)
}

fn seen() -> Vec<Seen> {
    vec![Seen { path: "tasks.a.status_code".into(), value: "200".into(), ..Default::default() }]
}

fn pair(name: &str, value: &str) -> Pair {
    Pair { name: name.into(), value: value.into(), ..Default::default() }
}

fn response() -> Response {
    Response {
        status_code: Some(201),
        headers: vec![pair("content-type", "application/json")],
        body: Some(Payload::json(r#"{"n":7}"#)),
        took: Span(1_234),
        ..Default::default()
    }
}

fn callback() -> Callback {
    let body = Payload { stored: Some(3), len: 5_000, text: true, truncated: true, ..Default::default() };
    Callback { body, digest: Bytes::from_static(&[0xab; 32]), ..Default::default() }
}

/// One event of each type.
fn every_event() -> Vec<Event> {
    let origin = Origin {
        workflow: WorkflowId([1; 16]),
        workflow_name: "order".into(),
        version: 2,
        hash: Bytes::from_static(&[0xcd; 32]),
        trigger: TriggerKind::Manual,
        body: Payload::json("[1]"),
        headers: vec![pair("x-a", "b")],
        expires_at: Timestamp(1_800_000_000_000_000),
        labels: vec![pair("team", "blue")],
        ..Default::default()
    };
    let failure = Failure::new("http_status", "the server answered 503");
    let (step, attempt) = (4, 2);
    vec![
        Event::Created { origin: Box::new(origin) },
        Event::RunWaiting {},
        Event::RunResumed {},
        Event::RunCompleted {},
        Event::RunFailed { failure: failure.clone(), step: Some(step) },
        Event::RunCancelled { actor: "ada".into(), reason: "done with it".into() },
        Event::RunTimeout {},
        Event::Scheduled { step, attempt, seen: seen(), key: String::new(), of_type: String::new() },
        Event::Leased {
            step,
            attempt,
            worker: "w1".into(),
            lease: Span::from_secs(30),
            seen: Vec::new(),
            key: String::new(),
            epoch: 0,
            slot: 0,
            key_slot: 0,
            of_type: String::new(),
        },
        Event::Started { step, attempt, epoch: 9, seen: seen() },
        Event::Retrying {
            step,
            attempt,
            next: Timestamp(1_800_000_000_500_000),
            failure: failure.clone(),
            charged: true,
            status_code: Some(503),
            died: false,
            digest: 0,
        },
        Event::Succeeded { step, attempt, response: response(), seen: seen(), digest: 0 },
        Event::Received { step, callback: Some(callback()) },
        Event::Failed { step, attempt, failure: failure.clone(), response: Some(response()), seen: seen(), digest: 0 },
        Event::TimedOut { step, attempt, failure, took: Span(5) },
        Event::Skipped { step, because: Because::Condition { seen: seen() } },
        Event::Skipped { step, because: Because::Needs { steps: vec![0, 1] } },
        Event::Cancelled { step },
        Event::TimerSet { step, at: Timestamp(-1), seen: seen() },
        Event::WaitOpened { step, deadline: Timestamp(7), seen: seen() },
        Event::WaitClosed { step, callback: callback() },
        Event::LateResult { step, attempt, summary: "the server answered 200".into() },
        Event::Woken { step },
    ]
}

#[test]
fn i41_records_of_release_0_1_are_read() {
    let record =
        Record { at: Timestamp(1_790_000_000_000_001), first: 42, events: every_event(), ..Default::default() };
    let bytes = check("record-0.1.hex", &record.seal());
    assert_eq!(Record::open(&bytes), Ok(record));
}

/// A run with steps in every phase, folded from events.
#[test]
fn i41_snapshots_of_release_0_1_are_read() {
    use kernel::StepStatus;
    let phases = [
        Phase::Pending {},
        Phase::Ready {},
        Phase::Running { fence: 12, epoch: 3 },
        Phase::Retrying { at: Timestamp(1) },
        Phase::Sleeping { until: Timestamp(2) },
        Phase::Waiting { deadline: Timestamp(3) },
        Phase::Done { status: StepStatus::Skipped },
    ];
    let step = |phase: Phase| Step {
        phase,
        attempt: 2,
        charged: 1,
        started_at: Some(Timestamp(10)),
        finished_at: Some(Timestamp(11)),
        response: Some(Box::new(response())),
        failure: Some(Box::new(Failure::new("network", "connection reset"))),
        because: Some(Box::new(Because::Needs { steps: vec![0] })),
        callback: Some(Box::new(callback())),
        seen: seen(),
        late: true,
        ..Default::default()
    };
    let Event::Created { origin } = every_event().swap_remove(0) else { unreachable!() };
    let state = State {
        seq: 77,
        status: RunStatus::Waiting,
        origin: *origin,
        created_at: Timestamp(5),
        finished_at: Some(Timestamp(6)),
        failure: Some(Failure::new("step_failed", "`a` failed")),
        steps: phases.into_iter().map(step).collect(),
        payloads: 3,
        bytes: 5_123,
        cancelled_by: "ada".into(),
        culprit: Some(4),
        ..Default::default()
    };
    let bytes = check("snapshot-0.1.hex", &wire::seal(&state));
    assert_eq!(wire::open::<State>(kernel::run::FORMAT, &bytes), Ok(state));
}

/// An origin with the fields for triggers, concurrency groups and notifications.
fn origin_0_2() -> Origin {
    Origin {
        workflow: WorkflowId([1; 16]),
        workflow_name: "order".into(),
        version: 2,
        hash: Bytes::from_static(&[0xcd; 32]),
        trigger: TriggerKind::Schedule,
        body: Payload::json("[1]"),
        expires_at: Timestamp(1_800_000_000_000_000),
        trigger_id: Some(TriggerId([2; 16])),
        nominal: Some(Timestamp(1_799_999_999_000_000)),
        delivery: "delivery-1".into(),
        replayed_from: Some(RunId([3; 16])),
        caused_by: Some(RunId([4; 16])),
        actor: "ada".into(),
        callback_url: "https://example.com/told".into(),
        concurrency_group: Some(ConcurrencyGroup {
            key: "customer-7".into(),
            limit: 3,
            on_conflict: OnConflict::CancelRunning,
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn i41_records_of_release_0_2_are_read() {
    let events = vec![
        Event::Created { origin: Box::new(origin_0_2()) },
        Event::Queued { reason: Queue::Limit },
        Event::Queued { reason: Queue::WorkflowPaused },
        Event::Admitted {},
        Event::Paused { actor: "ada".into(), note: "the supplier is closed".into() },
        Event::Unpaused { actor: "grace".into() },
        Event::RetryDue { step: 4, actor: "grace".into() },
    ];
    let record = Record { at: Timestamp(1_790_000_000_000_001), first: 42, events, ..Default::default() };
    let bytes = check("record-0.2.hex", &record.seal());
    assert_eq!(Record::open(&bytes), Ok(record));
}

#[test]
fn i41_snapshots_of_release_0_2_are_read() {
    let paused =
        Pause { actor: "ada".into(), note: "the supplier is closed".into(), at: Timestamp(9), ..Default::default() };
    let state = State {
        seq: 5,
        status: RunStatus::Pending,
        origin: origin_0_2(),
        created_at: Timestamp(5),
        cancelled_by: "onward".into(),
        paused: Some(paused),
        queued: Some(Queue::WorkflowPaused),
        cancel_reason: "superseded".into(),
        ..Default::default()
    };
    let bytes = check("snapshot-0.2.hex", &wire::seal(&state));
    assert_eq!(wire::open::<State>(kernel::run::FORMAT, &bytes), Ok(state));
}

#[test]
fn i41_plans_of_release_0_2_are_read() {
    let key = vec![Part { text: "customer-7".into(), ..Default::default() }];
    let called = Notify { on: Occasion::Ended, url: "https://example.com/told".into(), ..Default::default() };
    let started = Notify { on: Occasion::Failed, workflow: "alarm".into(), ..Default::default() };
    let layout = Layout {
        form: Form::Graph,
        groups: vec![Group { nodes: vec![0], ..Default::default() }],
        nodes: vec![Node { key: "a".into(), body: Some(Body::Noop {}), ..Default::default() }],
        max_duration: Span::from_days(30),
        concurrency: Some(Concurrency { key, limit: 3, on_conflict: OnConflict::Skip, ..Default::default() }),
        notify: vec![called, started],
        ..Default::default()
    };
    let plan = Plan::new(layout.clone()).unwrap();
    let bytes = check("plan-0.2.hex", &plan.encode());
    assert_eq!(Plan::decode(&bytes).unwrap().layout(), &layout);
}

/// An origin with the fields for tasks.
fn origin_0_3() -> Origin {
    Origin {
        workflow_name: "billing.invoice.v1".into(),
        body: Payload::json("null"),
        expires_at: Timestamp::NEVER,
        priority: Some(7),
        run_at: Some(Timestamp(1_790_000_600_000_000)),
        key: "customer-7".into(),
        ..Default::default()
    }
}

#[test]
fn i41_records_of_release_0_3_are_read() {
    let (step, attempt, digest) = (4, 2, 0xfedc_ba98_7654_3210);
    let failure = Failure::new("lease_lost", "its worker was silent until the lease ended");
    let line = LogLine { level: Level::Warning, message: "slow".into(), ..Default::default() };
    let events = vec![
        Event::Created { origin: Box::new(origin_0_3()) },
        Event::Queued { reason: Queue::Later },
        Event::Scheduled { step, attempt, seen: seen(), key: "customer-7".into(), of_type: String::new() },
        Event::Leased {
            step,
            attempt,
            worker: "w1".into(),
            lease: Span::from_secs(30),
            seen: seen(),
            key: "customer-7".into(),
            epoch: 0,
            slot: 0,
            key_slot: 0,
            of_type: String::new(),
        },
        Event::Progress { step, attempt, progress: Payload::json(r#"{"page":7}"#) },
        Event::Logged { step, attempt, lines: vec![line] },
        Event::Retrying {
            step,
            attempt,
            next: Timestamp(1_800_000_000_500_000),
            failure: failure.clone(),
            charged: true,
            status_code: None,
            died: true,
            digest,
        },
        Event::Succeeded { step, attempt, response: response(), seen: Vec::new(), digest },
        Event::Failed { step, attempt, failure, response: None, seen: Vec::new(), digest },
    ];
    let record = Record { at: Timestamp(1_790_000_000_000_001), first: 42, events, ..Default::default() };
    let bytes = check("record-0.3.hex", &record.seal());
    assert_eq!(Record::open(&bytes), Ok(record));
}

#[test]
fn i41_records_of_release_0_4_are_read() {
    let (step, attempt, epoch) = (4, 2, 7);
    let (worker, lease, key) = ("w1".into(), Span::from_secs(30), "customer-7".into());
    let events = vec![
        Event::Leased {
            step,
            attempt,
            worker,
            lease,
            seen: seen(),
            key,
            epoch,
            slot: 3,
            key_slot: 1,
            of_type: String::new(),
        },
        Event::Kept { step, attempt, epoch: 9 },
    ];
    let record = Record { at: Timestamp(1_790_000_000_000_001), first: 42, events, ..Default::default() };
    let bytes = check("record-0.4.hex", &record.seal());
    assert_eq!(Record::open(&bytes), Ok(record));
}

#[test]
fn m3_a_run_with_records_or_a_snapshot_of_a_later_release_is_newer_and_not_damaged() {
    let noop = Node { key: "a".into(), body: Some(Body::Noop {}), ..Default::default() };
    let groups = vec![Group { nodes: vec![0], ..Default::default() }];
    let plan = Plan::new(Layout { nodes: vec![noop], groups, ..Default::default() }).unwrap();
    let created = || vec![Event::Created { origin: Box::default() }];
    let mut record = Record { at: Timestamp(1), first: 1, events: created(), ..Default::default() };
    let run = Run::load(&plan, None, &[record.seal()]).expect("this release wrote it");
    // Field 63 with the number 1.
    record.unknown.keep(&[0x7e, 1]);
    assert_eq!(Run::load(&plan, None, &[record.seal()]).err(), Some(LoadError::Newer));
    let mut state = run.state;
    state.steps[0].unknown.keep(&[0x7e, 1]);
    let snapshot = wire::seal(&state);
    assert_eq!(Run::load(&plan, Some(&snapshot), &[]).err(), Some(LoadError::Newer));
    assert_eq!(LoadError::from(wire::Error::Newer("Verdict")), LoadError::Newer);
}

#[test]
fn i41_records_of_release_0_5_are_read() {
    let failure = Failure::new("host_backoff", "`http://h` is down");
    let events = vec![Event::HeldBack { step: 4, until: Timestamp(1_790_000_005_000_001), failure, seen: seen() }];
    let record = Record { at: Timestamp(1_790_000_000_000_001), first: 42, events, ..Default::default() };
    let bytes = check("record-0.5.hex", &record.seal());
    assert_eq!(Record::open(&bytes), Ok(record));
}

#[test]
fn i41_snapshots_of_release_0_3_are_read() {
    let leased = Step {
        phase: Phase::Leased { fence: 12, worker: "w1".into(), lease: Span::from_secs(30), epoch: 0 },
        attempt: 3,
        charged: 2,
        progress: Some(Box::new(Payload::json(r#"{"page":7}"#))),
        fence: 12,
        digest: 0xfedc_ba98_7654_3210,
        deaths: 1,
        since: Timestamp(1_790_000_000_000_001),
        ready_at: Some(Timestamp(1_789_999_999_000_000)),
        key: "customer-7".into(),
        ..Default::default()
    };
    let state = State {
        seq: 12,
        status: RunStatus::Running,
        origin: origin_0_3(),
        created_at: Timestamp(5),
        steps: vec![leased],
        queued: Some(Queue::Later),
        ..Default::default()
    };
    let bytes = check("snapshot-0.3.hex", &wire::seal(&state));
    assert_eq!(wire::open::<State>(kernel::run::FORMAT, &bytes), Ok(state));
}

#[test]
fn i41_plans_of_release_0_3_are_read() {
    let task = TaskBody {
        name: "billing.invoice.v1".into(),
        input: Some(Template::literal(&serde_json::json!({ "id": 7 }))),
        queue: Some(Span::from_secs(60)),
        attempt: Some(Span::from_secs(61)),
        heartbeat: Some(Span::from_secs(62)),
        total: Some(Span::from_secs(63)),
        priority: Some(7),
        key: vec![Part { text: "customer-7".into(), ..Default::default() }],
        ..Default::default()
    };
    let layout = Layout {
        form: Form::Task,
        groups: vec![Group { nodes: vec![0], verdict: Verdict::DirectUnhandled, ..Default::default() }],
        nodes: vec![Node { key: "task".into(), body: Some(Body::Task { task: Box::new(task) }), ..Default::default() }],
        max_duration: Span(u64::MAX),
        ..Default::default()
    };
    let plan = Plan::new(layout.clone()).unwrap();
    let bytes = check("plan-0.3.hex", &plan.encode());
    assert_eq!(Plan::decode(&bytes).unwrap().layout(), &layout);
}

/// A path into the trigger's body.
fn given(key: &str) -> Ref {
    Ref { root: Root::TriggerBody, keys: vec![key.into()], text: format!("trigger.body.{key}"), ..Default::default() }
}

#[test]
fn i41_plans_of_release_0_4_are_read() {
    let defaults = vec![Template::Value { path: given("b") }, Template::literal(&serde_json::json!("none"))];
    let placeholder = Part { path: Some(given("a")), defaults: defaults.clone(), ..Default::default() };
    let text = Template::Text { parts: vec![Part { text: "to ".into(), ..Default::default() }, placeholder] };
    let whole = Template::ValueOr { path: given("a"), defaults };
    let entry = |key: &str, value| TemplateEntry { key: key.into(), value: Some(value), ..Default::default() };
    let values = Template::Object { entries: vec![entry("text", text), entry("whole", whole)] };
    let args = vec![Expr::Path { path: given("a") }, Expr::Bool { value: true }];
    let expr = Some(Expr::Coalesce { args });
    let guard = Guard { expr, text: "trigger.body.a ?? true".into(), ..Default::default() };
    let body = Some(Body::Set { values: Some(values) });
    let layout = Layout {
        form: Form::Graph,
        groups: vec![Group { nodes: vec![0], ..Default::default() }],
        nodes: vec![Node { key: "a".into(), guard: Some(guard), body, ..Default::default() }],
        max_duration: Span::from_days(30),
        ..Default::default()
    };
    let plan = Plan::new(layout.clone()).unwrap();
    let bytes = check("plan-0.4.hex", &plan.encode());
    assert_eq!(Plan::decode(&bytes).unwrap().layout(), &layout);
}

/// One input of each type that can be stored, and each result of an attempt.
fn every_stored_input() -> Vec<Input> {
    let (step, fence, digest, took) = (4, 12, 0xfedc_ba98_7654_3210, Span(1_234));
    let failure = Failure::new("network", "connection reset");
    let retry_after = Some(Span::from_secs(7));
    let results = vec![
        TaskResult::Done { body: Some(Payload::json("{}")), took },
        TaskResult::Response {
            status: 503,
            headers: vec![pair("x-a", "b")],
            body: Payload::sniff("busy"),
            retry_after,
            took,
        },
        TaskResult::Failed { failure: failure.clone(), retryable: true, retry_after, took },
        TaskResult::TimedOut { message: "too slow".into(), took },
        TaskResult::Blocked { until: Timestamp(1_790_000_000_000_001), failure },
    ];
    let mut inputs = vec![
        Input::Pause { actor: "ada".into(), note: "the supplier is closed".into() },
        Input::Resume { actor: "grace".into() },
        Input::RetryNow { step: Some(0), actor: "grace".into() },
        Input::RetryNow { step: None, actor: "grace".into() },
        Input::Heartbeat { step, fence, progress: Some(Payload::json(r#"{"page":7}"#)) },
        Input::Log {
            step,
            fence,
            lines: vec![LogLine { level: Level::Warning, message: "slow".into(), ..Default::default() }],
        },
        Input::Callback { step, body: Payload::sniff("paid"), digest: Bytes::from_static(&[0xab; 32]) },
        Input::Cancel { actor: "ada".into(), reason: "done with it".into(), compensate: false },
    ];
    inputs.extend(results.into_iter().map(|result| Input::Finished { step, fence, result, digest }));
    inputs
}

#[test]
fn i41_inbox_rows_of_release_0_5_are_read() {
    message! { pub struct Rows { 1 => inputs: Vec<Bytes>, 2 => answers: Vec<Bytes> } }
    let answers = [
        Answer::Applied,
        Answer::Repeated,
        Answer::Conflict,
        Answer::Gone,
        Answer::Stale,
        Answer::Later,
        Answer::Ended(RunStatus::Timeout),
        Answer::TooLarge,
        Answer::Unknown,
    ];
    let stored = answers.map(|answer| StoredAnswer::of(answer, RunStatus::Waiting, Timestamp(5)));
    let rows = Rows {
        inputs: every_stored_input().into_iter().map(|input| StoredInput::of(input).unwrap().seal()).collect(),
        answers: stored.iter().chain([&StoredAnswer::NotFound {}]).map(StoredAnswer::seal).collect(),
        ..Default::default()
    };
    let bytes = check("inbox-0.5.hex", &wire::seal(&rows));
    let rows: Rows = wire::open(inbox::FORMAT, &bytes).unwrap();
    let read: Vec<Input> = rows.inputs.iter().map(|body| StoredInput::open(body).unwrap()).collect();
    assert_eq!(format!("{read:?}"), format!("{:?}", every_stored_input()));
    for (body, answer) in rows.answers.iter().zip(answers) {
        let Ok(StoredAnswer::Run { answer: kind, ended, status, created_at }) = StoredAnswer::open(body) else {
            panic!("an answer of a run");
        };
        assert_eq!((kind.answer(ended), status, created_at), (answer, RunStatus::Waiting, Timestamp(5)));
    }
    assert_eq!(rows.answers.last().map(|body| StoredAnswer::open(body)), Some(Ok(StoredAnswer::NotFound {})));
}

#[test]
fn an_input_of_a_later_release_is_not_applied() {
    let later = StoredInput::Unknown { number: 77, bytes: Bytes::new() };
    assert_eq!(StoredInput::open(&later.seal()).unwrap_err(), wire::Error::Newer("input"));
    assert!(StoredInput::of(Input::Wake).is_none(), "the engine wakes runs by itself");
}

#[test]
fn p20_a_snapshot_keeps_what_a_later_release_added() {
    let mut bytes = State { seq: 1, ..Default::default() }.encode();
    wire::put_bytes(900, b"later", &mut bytes);
    let state = State::decode(&bytes).unwrap();
    assert_eq!(state.seq, 1);
    assert_eq!(state.encode(), bytes);
}
