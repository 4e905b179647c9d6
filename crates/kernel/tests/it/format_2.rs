//! Format 2: groups, loops, children, signals, approvals and pauses, in every place where they are stored (M3).
//!
//! The values here leave no field and no variant of format 2 at its default, and the tests compare that with what this
//! release knows: a new field or variant fails here until a golden file has it.

use crate::{check, every_event, given, golden, pair, seen, unhex};
use bytes::Bytes;
use kernel::advance::{Admission, ApprovalDecision, IncomingSignal, StepOverride};
use kernel::event::{
    Because, Callback, CopiedStep, EndAfterUndo, Event, Failure, ForkPoint, MovedOutput, Origin, Override, Parent,
    Record, Response, StepPlace, TriggerKind,
};
use kernel::expr::Expr;
use kernel::inbox::{self, AnswerKind, ChildOutcome, StartChild, StoredAnswer, StoredInput};
use kernel::message;
use kernel::path::{Ref, Root, TaskField};
use kernel::plan::{
    ApprovalBody, Body, ChildBody, Decision, Form, Group, GroupBody, GroupKind, Guard, Join, Layout, Link, Node,
    OnError, OnParentClose, Outcomes, OutputName, Repeat, Retry, TaskBody, TaskKind, Verdict,
};
use kernel::run::{
    AnsweredWait, ApprovalRequest, CalledOff, ChildLink, Copied, Iteration, Iterations, LastReport, MovedTo, Output,
    Phase, Place, Signal, SignalKey, State, Step,
};
use kernel::template::{Part, Template, TemplateEntry};
use kernel::wire::{self, Message, Raw, Reader};
use kernel::{Answer, Input, Payload, Plan, RunId, RunStatus, Span, StepStatus, Timestamp, WorkflowId};
use std::collections::BTreeSet;

const AT: Timestamp = Timestamp(1_790_000_000_000_001);

/// The numbers in the outermost message: of its fields, or of a choice's variant.
fn numbers(bytes: &[u8]) -> BTreeSet<u32> {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(|| reader.field().expect("what was just written")).map(|(number, ..)| number).collect()
}

/// The numbers that this release knows: it does not keep their fields as those of a later release.
fn known(keeps_as_newer: impl Fn(&[u8]) -> bool) -> BTreeSet<u32> {
    let is_known = |number: &u32| {
        let mut field = Vec::new();
        wire::put_bytes(*number, &[], &mut field);
        !keeps_as_newer(&field)
    };
    (1..200).filter(is_known).collect()
}

/// Asserts that the values have something in every field that this release knows.
fn assert_every_field<M: Message + wire::Value>(what: &str, values: &[M]) {
    let written: BTreeSet<u32> = values.iter().flat_map(|value| numbers(&value.encode())).collect();
    let known = known(|field| M::decode(field).is_ok_and(|message| message.is_newer()));
    assert_eq!(written, known, "the fields of {what} that golden files have, and those that there are");
}

/// Asserts that the values have every variant that this release knows, except those of format 1 in `elsewhere`.
fn assert_every_variant<M: Message + wire::Value>(what: &str, values: &[M], elsewhere: &[u32]) {
    let mut written: BTreeSet<u32> = values.iter().flat_map(|value| numbers(&value.encode())).collect();
    written.extend(elsewhere);
    let known = known(|field| M::decode(field).is_ok_and(|choice| choice.is_newer()));
    assert_eq!(written, known, "the variants of {what} that golden files have, and those that there are");
}

/// Asserts that every field of a choice's variant has a value.
fn assert_full<M: Message + wire::Value>(value: &M) {
    let bytes = value.encode();
    let Ok(Some((variant, Raw::Bytes(inner), _))) = Reader::new(&bytes).field() else { panic!("a variant") };
    let known = known(|field| {
        let mut whole = Vec::new();
        wire::put_bytes(variant, field, &mut whole);
        M::decode(&whole).is_ok_and(|choice| choice.is_newer())
    });
    assert_eq!(numbers(inner), known, "the fields of variant {variant}");
}

fn failure() -> Failure {
    Failure::new("child_failed", "the run of `pay` failed")
}

fn parent() -> Parent {
    Parent {
        run: RunId([5; 16]),
        step: 3,
        attempt: 2,
        key: "each[1]/call".into(),
        workflow: "order".into(),
        depth: 4,
        is_detached: true,
        actor: "ada".into(),
        spent: 6,
        ..Default::default()
    }
}

/// The origin of a run that a step of another run started.
fn origin() -> Origin {
    Origin {
        workflow: WorkflowId([1; 16]),
        workflow_name: "pay".into(),
        version: 2,
        hash: Bytes::from_static(&[0xcd; 32]),
        trigger: TriggerKind::Subworkflow,
        body: Payload::json("[1]"),
        expires_at: Timestamp(1_800_000_000_000_000),
        labels: vec![pair("order", "7")],
        lowering: 3,
        parent: Some(Box::new(parent())),
        forked_from: Some(Box::new(fork_point())),
        ..Default::default()
    }
}

/// The events that format 2 added, in the order of their numbers.
fn events() -> Vec<Event> {
    let (step, attempt, child) = (12, 2, RunId([6; 16]));
    vec![
        Event::Opened { step, node: 5, parent: 11, index: 7 },
        Event::GroupStarted { step, seen: seen() },
        Event::LoopStarted {
            step,
            seen: seen(),
            count: Some(2),
            pages: [(0, Payload::json("[1]")), (1, Payload::json("[2]"))].into(),
        },
        Event::RunFinished { output: Payload::json(r#"{"paid":true}"#) },
        Event::SignalReceived {
            name: "paid".into(),
            body: Payload::json("7"),
            actor: "ada".into(),
            key: Bytes::from_static(&[0xaa; 32]),
            fingerprint: Bytes::from_static(&[0xbb; 32]),
        },
        Event::SignalConsumed { step, signal: 41 },
        Event::ApprovalRequested {
            step,
            deadline: Timestamp(7),
            prompt: "Charge 40?".into(),
            items: Some(Payload::json(r#"{"amount":40}"#)),
            seen: seen(),
        },
        Event::ApprovalDecided { step, decision: Decision::Denied, actor: "ada".into(), comment: "too much".into() },
        Event::Continued { step, actor: "grace".into() },
        Event::ChildStarted {
            step,
            attempt,
            child,
            workflow: "pay".into(),
            is_detached: true,
            is_closed_with_parent: true,
            seen: seen(),
        },
        Event::ChildEnded { step, attempt, child, status: Some(RunStatus::Timeout), never_began: true, descendants: 4 },
        Event::RunCancelling { actor: "ada".into(), reason: "done with it".into() },
        Event::RunCompensating { end: Box::new(end()) },
        Event::Returned { step, attempt, response: Some(response()), failure: Some(failure()), digest: 9 },
        Event::Overridden { step, verb: Override::Result, actor: "ada".into(), reason: "stuck".into() },
        Event::RunRetried {
            actor: "ada".into(),
            reason: "fixed".into(),
            steps: vec![12, 13],
            expires_at: AT,
            around: vec![11, 10],
        },
        Event::Copied { step, ended: Box::new(copied_step()) },
        Event::Moved {
            actor: "ada".into(),
            reason: "a new step".into(),
            version: 3,
            hash: Bytes::from_static(&[0xef; 32]),
            lowering: 4,
            nodes: [(0, 2), (12, 5)].into(),
            outputs: vec![moved_output()],
        },
    ]
}

/// How a step ended that a fork did not run.
fn copied_step() -> CopiedStep {
    CopiedStep {
        status: StepStatus::Failed,
        response: Some(response()),
        callback: Some(Callback {
            body: Payload::json("7"),
            digest: Bytes::from_static(&[3; 32]),
            ..Default::default()
        }),
        failure: Some(failure()),
        because: Some(Because::Needs { steps: vec![1] }),
        errors: Some(Payload::json(r#"[{"step":"pay"}]"#)),
        is_given: true,
        writes: vec![2],
        outputs: [(1, Payload::json("7"))].into(),
        ..Default::default()
    }
}

fn moved_output() -> MovedOutput {
    MovedOutput { from: 1, to: 2, node: 5, ..Default::default() }
}

fn fork_point() -> ForkPoint {
    ForkPoint { run: RunId([4; 16]), step: "ship".into(), reason: "the carrier is back".into(), ..Default::default() }
}

/// How a run ends that undoes what it did.
fn end() -> EndAfterUndo {
    EndAfterUndo {
        status: RunStatus::Cancelled,
        failure: Some(failure()),
        step: Some(3),
        actor: "ada".into(),
        reason: "done with it".into(),
        undoes_children: true,
        ..Default::default()
    }
}

fn response() -> Response {
    Response { status_code: Some(200), body: Some(Payload::json("7")), took: Span(5), ..Default::default() }
}

fn record() -> Record {
    let mut events = events();
    events.iter().for_each(assert_full);
    let (step, attempt, of_type) = (12, 2, "mail.fr".to_owned());
    events.extend([
        Event::Created { origin: Box::new(origin()) },
        Event::ApprovalDecided { step, decision: Decision::Approved, actor: String::new(), comment: String::new() },
        Event::ChildEnded { step, attempt, child: RunId([6; 16]), status: None, never_began: false, descendants: 0 },
        Event::Skipped { step, because: Because::Operator { actor: "ada".into(), reason: "stuck".into() } },
        Event::Overridden { step, verb: Override::Skip, actor: String::new(), reason: String::new() },
        Event::Overridden { step, verb: Override::RunNow, actor: String::new(), reason: String::new() },
        Event::LoopStarted { step, seen: Vec::new(), count: None, pages: Default::default() },
        Event::Scheduled { step, attempt, seen: seen(), key: "customer-7".into(), of_type: of_type.clone() },
        Event::Leased {
            step,
            attempt,
            worker: "w1".into(),
            lease: Span::from_secs(30),
            seen: seen(),
            key: "customer-7".into(),
            epoch: 7,
            slot: 3,
            key_slot: 1,
            of_type,
        },
    ]);
    let place = StepPlace { node: 5, indices: vec![3, 7], ..Default::default() };
    Record { at: AT, first: 42, events, inner: [(12, place)].into(), ..Default::default() }
}

#[test]
fn m3_i41_records_of_format_2_are_read() {
    let record = record();
    let bytes = check("record-0.6.hex", &record.seal());
    assert_eq!(bytes[0], 2, "it is sealed as format 2");
    assert_eq!(wire::open::<Record>(1, &bytes), Err(wire::Error::Format(2)), "a release before it waits");
    assert_every_field("Record", std::slice::from_ref(&record));
    assert_every_field("StepPlace", &record.inner.values().cloned().collect::<Vec<_>>());
    assert_every_field("Parent", &[parent()]);
    assert_every_field("EndAfterUndo", &[end()]);
    assert_every_field("CopiedStep", &[copied_step()]);
    assert_every_field("ForkPoint", &[fork_point()]);
    assert_every_field("MovedOutput", &[moved_output()]);
    assert_eq!(Record::open(&bytes), Ok(record));
}

/// All golden records together, whatever release they are of.
#[test]
fn i41_every_event_stands_in_a_golden_record() {
    let mut events = Vec::new();
    for file in std::fs::read_dir(golden("")).expect("the golden files") {
        let file = file.expect("a file").path();
        if file.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("record-")) {
            let bytes = unhex(&std::fs::read_to_string(&file).expect("hex"));
            let record = Record::open(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            events.extend(record.events);
        }
    }
    assert!(events.iter().all(|event| !matches!(event, Event::Unknown { .. })), "this release understands them all");
    assert!(events.len() > every_event().len(), "they were found");
    assert_every_variant("Event", &events, &[]);
}

/// A run inside another, with steps in every phase and every place.
fn state() -> State {
    let iteration = Iteration {
        status: StepStatus::Failed,
        body: Some(Payload::json("null")),
        failure: Some(Failure::new("http_status", "the server answered 503")),
        culprit: "charge".into(),
        started_at: Timestamp(10),
        finished_at: Timestamp(11),
        ..Default::default()
    };
    let iterations = Iterations {
        count: Some(3),
        pages: [(0, Payload::json("[1,2,3]"))].into(),
        opened: 2,
        settled: [(0, iteration)].into(),
        ..Default::default()
    };
    let child = ChildLink {
        run: RunId([6; 16]),
        workflow: "pay".into(),
        is_detached: true,
        is_closed_with_parent: true,
        status: Some(RunStatus::Failed),
        ..Default::default()
    };
    let approval = ApprovalRequest {
        prompt: "Charge 40?".into(),
        items: Some(Payload::json(r#"{"amount":40}"#)),
        decision: Some(Decision::Denied),
        ..Default::default()
    };
    let inner = |phase: Phase, node: u32, index: u32| {
        let place = Place { node, parent: 2, index, ..Default::default() };
        Step { phase, place: Some(Box::new(place)), since: AT, ..Default::default() }
    };
    let done = Phase::Done { status: StepStatus::Failed };
    let [mut waits, mut calls, mut asked, mut task] =
        [Phase::Waiting { deadline: Timestamp(3) }, Phase::Child {}, done, Phase::Ready {}].map(|p| inner(p, 5, 1));
    waits.opened = 41;
    calls.child = Some(Box::new(child));
    asked.approval = Some(Box::new(approval));
    task.of_type = "mail.fr".into();
    (task.done_with, task.overridden, task.is_handled) = (44, Some(Override::Skip), true);
    task.repeats = 2;
    task.copied = Some(Box::new(Copied { errors: Some(Payload::json("[]")), is_given: true, ..Default::default() }));
    (task.slot, task.key_slot, task.is_forced) = (3, 1, true);
    let open = Step { phase: Phase::Open {}, iterations: Some(Box::new(iterations)), ..Default::default() };
    let signal = Signal { number: 43, name: "paid".into(), body: Payload::json("7"), ..Default::default() };
    let signal_key = SignalKey {
        key: Bytes::from_static(&[0xaa; 32]),
        fingerprint: Bytes::from_static(&[0xbb; 32]),
        ..Default::default()
    };
    let report = LastReport { fence: 12, digest: 0xfedc_ba98_7654_3210, ..Default::default() };
    State {
        seq: 77,
        status: RunStatus::Cancelling,
        origin: origin(),
        created_at: Timestamp(5),
        steps: vec![open],
        at: AT,
        inner: [(2, inner(Phase::Open {}, 0, 1)), (3, waits), (4, calls), (5, asked), (300, task)].into(),
        opened: 301,
        reports: [(1, report)].into(),
        output: Some(Payload::json(r#"{"paid":true}"#)),
        signals: vec![signal],
        signal_keys: vec![signal_key],
        children: 9,
        closing: vec![RunId([7; 16]), RunId([8; 16])],
        compensating: Some(Box::new(end())),
        called_off: [(300, called_off())].into(),
        answered: [(7, answered())].into(),
        outputs: [(1, output())].into(),
        begun: 9,
        retries: 2,
        retried: 70,
        moves: vec![moved_to()],
        ..Default::default()
    }
}

fn output() -> Output {
    Output { step: 12, body: Some(Payload::json("9")), node: 4, ..Default::default() }
}

fn answered() -> AnsweredWait {
    let (digest, decision) = (Bytes::from_static(&[0xdd; 32]), Some(Decision::Denied));
    AnsweredWait { digest, decision, is_resumed: true, ..Default::default() }
}

fn moved_to() -> MovedTo {
    MovedTo { seq: 60, version: 3, hash: Bytes::from_static(&[0xef; 32]), lowering: 4, ..Default::default() }
}

fn called_off() -> CalledOff {
    CalledOff { attempt: 2, fence: 40, until: AT, ..Default::default() }
}

/// The state of a snapshot that an earlier release wrote.
fn earlier_state(name: &str) -> State {
    let bytes = unhex(&std::fs::read_to_string(golden(name)).expect("a golden file"));
    wire::open(kernel::run::FORMAT, &bytes).expect("a snapshot")
}

#[test]
fn m3_i41_snapshots_of_format_2_are_read() {
    let state = state();
    let bytes = check("snapshot-0.6.hex", &wire::seal(&state));
    assert_eq!(bytes[0], 2, "it is sealed as format 2");
    let earlier = ["snapshot-0.1.hex", "snapshot-0.2.hex", "snapshot-0.3.hex"].map(earlier_state);
    let states: Vec<State> = earlier.into_iter().chain([state.clone()]).collect();
    let steps: Vec<Step> =
        states.iter().flat_map(|state| state.steps.iter().chain(state.inner.values())).cloned().collect();
    assert_every_field("State", &states);
    assert_every_field("Origin", &states.iter().map(|state| state.origin.clone()).collect::<Vec<_>>());
    assert_every_variant("Phase", &steps.iter().map(|step| step.phase.clone()).collect::<Vec<_>>(), &[]);
    let inner: Vec<Step> = state.inner.values().cloned().collect();
    assert_every_field("Place", &inner.iter().filter_map(|step| step.place.as_deref().cloned()).collect::<Vec<_>>());
    let loops: Vec<Iterations> = state.steps.iter().filter_map(|step| step.iterations.as_deref().cloned()).collect();
    assert_every_field("Iterations", &loops);
    assert_every_field("Iteration", &loops[0].settled.values().cloned().collect::<Vec<_>>());
    assert_every_field(
        "ChildLink",
        &inner.iter().filter_map(|step| step.child.as_deref().cloned()).collect::<Vec<_>>(),
    );
    let asked: Vec<ApprovalRequest> = inner.iter().filter_map(|step| step.approval.as_deref().cloned()).collect();
    assert_every_field("ApprovalRequest", &asked);
    assert_every_field("CalledOff", &[called_off()]);
    assert_every_field("MovedTo", &state.moves);
    assert_every_field("Copied", &inner.iter().filter_map(|s| s.copied.as_deref().cloned()).collect::<Vec<_>>());
    assert_every_field("AnsweredWait", &[answered()]);
    assert_every_field("Output", &[output()]);
    assert_every_field("Signal", &state.signals);
    assert_every_field("SignalKey", &state.signal_keys);
    assert_every_field("LastReport", &state.reports.values().cloned().collect::<Vec<_>>());
    assert_every_field("Step", &steps);
    assert_eq!(wire::open::<State>(kernel::run::FORMAT, &bytes), Ok(state));
}

/// A path that only the inside of a loop has.
fn of_loop(root: Root, text: &str) -> Ref {
    Ref { root, node: 1, keys: vec!["n".into()], text: text.into(), ..Default::default() }
}

fn text(text: &str) -> Vec<Part> {
    vec![Part { text: text.into(), ..Default::default() }]
}

fn whole(path: Ref) -> Option<Template> {
    Some(Template::Value { path })
}

fn outputs() -> Vec<OutputName> {
    let output = |name: &str, is_internal| OutputName { name: name.into(), is_internal, ..Default::default() };
    vec![output("total", false), output("call", true)]
}

/// A group, a loop over a list inside it, a loop with a condition, and a step of each kind that format 2 added.
fn layout() -> Layout {
    let placeholder = |name: &str| vec![Part { path: Some(given(name)), ..Default::default() }];
    let link = |from: u32| Link { from, on: Outcomes::ANY, ..Default::default() };
    let errors = Ref {
        root: Root::Task,
        node: 1,
        field: TaskField::Errors,
        text: "tasks.each.errors".into(),
        ..Default::default()
    };
    let condition = Guard {
        expr: Some(Expr::Path { path: of_loop(Root::Last, "last.n") }),
        text: "last.n".into(),
        ..Default::default()
    };
    let entry = |key: &str, path: Ref| TemplateEntry { key: key.into(), value: whole(path), ..Default::default() };
    let outcome = Template::Object {
        entries: vec![entry("item", of_loop(Root::Item, "row.n")), entry("at", of_loop(Root::Index, "index"))],
    };
    let list = Repeat {
        body: GroupBody {
            group: 2,
            on_error: OnError::Continue,
            concurrency: 4,
            output: Some(outcome),
            kind: GroupKind::Conditional,
            ..Default::default()
        },
        items: Some(Expr::Path { path: given("rows") }),
        concurrency: 10,
        max_iterations: 500,
        name: "row".into(),
        list: Some(Template::literal(&serde_json::json!([1, 2]))),
        ..Default::default()
    };
    let poll = Repeat {
        body: GroupBody { group: 3, on_error: OnError::Finish, ..Default::default() },
        condition: Some(condition),
        concurrency: 1,
        max_iterations: 1_000,
        ..Default::default()
    };
    let child = ChildBody {
        workflow: placeholder("which"),
        allow: vec!["pay".into(), "refund".into()],
        input: whole(of_loop(Root::Item, "row")),
        detached: true,
        on_parent_close: OnParentClose::Leave,
        ..Default::default()
    };
    let task = TaskBody {
        name: String::new(),
        of_type: placeholder("type"),
        allow: vec!["mail.de".into(), "mail.fr".into()],
        kind: TaskKind::Tool,
        ..Default::default()
    };
    let approval = ApprovalBody {
        prompt: text("Charge 40?"),
        items: whole(given("amount")),
        timeout: Some(Span::from_days(1)),
        default: Some(Decision::Denied),
        approvers: vec!["ada".into(), "bob".into()],
        exclude_initiator: true,
        ..Default::default()
    };
    let inside = GroupBody { group: 1, on_error: OnError::Fail, ..Default::default() };
    let bodies = [
        (0, "box", Body::Group { group: inside }),
        (1, "each", Body::Loop { repeat: Box::new(list) }),
        (1, "poll", Body::Loop { repeat: Box::new(poll) }),
        (2, "call", Body::Child { child: Box::new(child) }),
        (2, "task", Body::Task { task: Box::new(task) }),
        (3, "paid", Body::Signal { name: "paid".into(), timeout: Some(Span::from_secs(60)) }),
        (3, "ask", Body::Approval { approval: Box::new(approval) }),
        (3, "hold", Body::Pause { timeout: Some(Span::from_secs(61)) }),
        (3, "first", Body::Set { values: whole(errors) }),
    ];
    let node = |(group, key, body): (u32, &str, Body)| Node {
        key: key.into(),
        group,
        body: Some(body),
        retry: Retry { max_attempts: 1, ..Default::default() },
        ..Default::default()
    };
    let mut nodes: Vec<Node> = bodies.map(node).into();
    nodes[8].undo = Some(9);
    nodes[8].writes = vec![1];
    (nodes[8].is_irreversible, nodes[8].is_not_compensatable, nodes[8].undo_if_unknown) = (true, true, true);
    nodes.push(node((3, kernel::run::UNDO_NAME, Body::Noop {})));
    nodes[8].join = Join::Any;
    nodes[8].links = vec![link(5), link(7)];
    nodes[8].allow_failure = true;
    nodes[8].guard = Some(Guard { text: "true".into(), ..Default::default() });
    let group = |nodes: &[u32]| Group { nodes: nodes.to_vec(), ..Default::default() };
    let root = Group { nodes: vec![0], verdict: Verdict::Blocked, ..Default::default() };
    Layout {
        form: Form::Transitions,
        groups: vec![root, group(&[1, 2]), group(&[3, 4]), group(&[5, 6, 7, 8])],
        nodes,
        max_duration: Span::from_days(30),
        output: Some(Template::literal(&serde_json::json!({ "paid": true }))),
        variables: Bytes::from_static(br#"{"region":"eu"}"#),
        outputs: outputs(),
        max_steps: 50,
        ..Default::default()
    }
}

#[test]
fn m3_i41_plans_of_format_2_are_read() {
    let layout = layout();
    let plan = Plan::new(layout.clone()).unwrap();
    let bytes = check("plan-0.6.hex", &plan.encode());
    assert_eq!(bytes[0], 2, "it is sealed as format 2");
    assert_eq!(Plan::decode(&bytes).unwrap().layout(), &layout);

    let earlier = Plan::decode(&unhex(&std::fs::read_to_string(golden("plan-0.2.hex")).unwrap())).unwrap();
    assert_every_field("Layout", &[earlier.layout().clone(), layout.clone()]);
    assert_every_field("Node", &layout.nodes);
    assert_every_field("OutputName", &layout.outputs);
    let bodies: Vec<Body> = layout.nodes.iter().filter_map(|node| node.body.clone()).collect();
    // http, log, noop, sleep and wait_for_webhook are of format 1.
    assert_every_variant("Body", &bodies, &[1, 2, 4, 5, 6]);
    let is_simple = |body: &&Body| matches!(body, Body::Signal { .. } | Body::Pause { .. });
    bodies.iter().filter(is_simple).for_each(assert_full);
    let repeats: Vec<Repeat> = layout.nodes.iter().filter_map(|node| node.repeat().cloned()).collect();
    assert_every_field("Repeat", &repeats);
    assert_every_field("GroupBody", &repeats.iter().map(|repeat| repeat.body.clone()).collect::<Vec<_>>());
    assert_every_field("ApprovalBody", &layout.nodes.iter().filter_map(|n| n.approval().cloned()).collect::<Vec<_>>());
    let children = bodies.iter().filter_map(|body| match body {
        Body::Child { child } => Some(ChildBody::clone(child)),
        _ => None,
    });
    assert_every_field("ChildBody", &children.collect::<Vec<_>>());
    let task = Plan::decode(&unhex(&std::fs::read_to_string(golden("plan-0.3.hex")).unwrap())).unwrap();
    let tasks = [task.node_at(0), &layout.nodes[4]].map(|node| node.task().expect("a task").clone());
    assert_every_field("TaskBody", &tasks);
}

/// The inputs that format 2 added, in the order of their numbers, and what else their variants may hold.
fn inputs() -> Vec<Input> {
    let (step, attempt) = (12, 2);
    let verdict = |decision: Decision| ApprovalDecision {
        decision,
        actor: "ada".into(),
        comment: "too much".into(),
        shown: "sha256:00".into(),
    };
    let signal = IncomingSignal {
        name: "paid".into(),
        body: Payload::json("7"),
        actor: "ada".into(),
        key: Bytes::from_static(&[0xaa; 32]),
        fingerprint: Bytes::from_static(&[0xbb; 32]),
    };
    vec![
        Input::Signal(Box::new(signal)),
        Input::Decide { step: Some(step), verdict: verdict(Decision::Denied) },
        Input::Continue { step: Some(step), actor: "grace".into() },
        Input::ChildBegan { step, attempt },
        Input::ChildEnded { step, attempt, outcome: Box::new(outcome()) },
        Input::ParentClosed { parent: RunId([5; 16]), compensate: false },
        Input::Cancel { actor: "ada".into(), reason: "done with it".into(), compensate: true },
        Input::ParentClosed { parent: RunId([5; 16]), compensate: true },
        Input::Override {
            step,
            decision: Box::new(StepOverride {
                verb: Override::Result,
                body: Some(Payload::json("7")),
                actor: "ada".into(),
                reason: "stuck".into(),
            }),
        },
        Input::Reopen {
            from: Some(step),
            allow_irreversible: true,
            actor: "ada".into(),
            reason: "fixed".into(),
            admission: Admission::Open,
        },
        Input::Decide { step: None, verdict: verdict(Decision::Approved) },
        Input::Continue { step: None, actor: String::new() },
        Input::ChildEnded { step, attempt, outcome: Box::default() },
    ]
}

fn outcome() -> ChildOutcome {
    ChildOutcome {
        status: RunStatus::Failed,
        output: Some(Payload::json(r#"{"paid":false}"#)),
        failure: Some(failure()),
        is_refused: true,
        never_began: true,
        descendants: 4,
        ..Default::default()
    }
}

#[test]
fn m3_i41_inbox_rows_of_format_2_are_read() {
    message! {
        pub struct Rows { 1 => inputs: Vec<Bytes>, 2 => answers: Vec<Bytes>, 3 => child: Bytes }
    }
    let start = StartChild {
        workflow: "pay".into(),
        input: Payload::json("[1]"),
        parent: Some(parent()),
        ..Default::default()
    };
    let stored: Vec<StoredInput> = inputs().into_iter().map(|input| StoredInput::of(input).expect("stored")).collect();
    stored[..10].iter().for_each(assert_full);
    // Numbers 1 to 8 are of format 1.
    assert_every_variant("StoredInput", &stored, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_every_field("StartChild", std::slice::from_ref(&start));
    assert_every_field("ChildOutcome", &[outcome()]);
    let answers = [Answer::Full, Answer::Forbidden, Answer::Ambiguous, Answer::Unsafe, Answer::NoRoom];
    let kept = answers.map(|answer| StoredAnswer::of(answer, RunStatus::Cancelling, Timestamp(5)));
    let rows = Rows {
        inputs: stored.iter().map(StoredInput::seal).collect(),
        answers: kept.iter().map(StoredAnswer::seal).collect(),
        child: wire::seal(&start).into(),
        ..Default::default()
    };
    // `Unknown`, the last of format 1, has number 9.
    assert_eq!(AnswerKind::ALL.len(), 9 + answers.len(), "an answer of a later format needs a golden file");
    let bytes = check("inbox-0.6.hex", &wire::seal(&rows));
    let rows: Rows = wire::open(inbox::FORMAT, &bytes).unwrap();
    for row in rows.inputs.iter().chain(&rows.answers) {
        assert_eq!(row[0], 2, "each is sealed as format 2");
    }
    let read: Vec<Input> = rows.inputs.iter().map(|body| StoredInput::open(body).unwrap()).collect();
    assert_eq!(format!("{read:?}"), format!("{:?}", inputs()));
    for (body, answer) in rows.answers.iter().zip(answers) {
        let Ok(StoredAnswer::Run { answer: kind, ended, status, created_at }) = StoredAnswer::open(body) else {
            panic!("an answer of a run");
        };
        assert_eq!((kind.answer(ended), status, created_at), (answer, RunStatus::Cancelling, Timestamp(5)));
    }
    assert_eq!(StartChild::open(&rows.child), Ok(start));
}

#[test]
fn m3_every_root_and_field_of_a_path_has_its_number() {
    let roots: Vec<(u32, &str)> = Root::ALL.iter().map(|root| (*root as u32, root.as_str())).collect();
    let added = [(6, "item"), (7, "index"), (8, "last"), (9, "variables"), (10, "outputs"), (11, "output")];
    assert_eq!(roots[5..], added);
    let kinds: Vec<(u32, &str)> = TaskKind::ALL.iter().map(|kind| (*kind as u32, kind.as_str())).collect();
    assert_eq!(kinds, [(1, "task"), (2, "bash"), (3, "tool"), (4, "agent"), (5, "agent_message")]);
    let kinds: Vec<(u32, &str)> = GroupKind::ALL.iter().map(|kind| (*kind as u32, kind.as_str())).collect();
    assert_eq!(kinds, [(1, "group"), (2, "conditional"), (3, "parallel")]);
    assert_eq!((TaskField::Errors as u32, Join::Any as u32, TriggerKind::Subworkflow as u32), (8, 2, 5));
}
