//! The rules as tables. One harness advances a run the way the engine does. After every advance it checks the
//! invariants: the run equals the fold of its records, its index matches its state, advancing again changes nothing,
//! and the enqueued tasks are exactly the claimable ones.

mod children;
mod fork;
mod holding;
mod host_backoff;
mod lists;
mod nesting;
mod overrides;
mod past;
mod payloads;
mod planners;
mod plans;
mod relocation;
mod repair;
mod tasks;
mod timers;
mod undo;
mod waits;

use super::*;
use crate::event::Failure;
use crate::plan::*;
use crate::run::Plans;
use crate::scope::walk;
use crate::status::StepStatus;
use crate::time::Span;
use crate::{expr, path, retry, template, wire};
use plans::{body_of, nested_plan, plan_of, reference};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const START: Timestamp = Timestamp(1_000_000_000_000);

use template::Template;

/// One run and the effects that it caused.
struct Story {
    id: RunId,
    plan: Plan,
    run: Run,
    now: Timestamp,
    epoch: u64,
    is_draining: bool,
    /// Requests are held back until then.
    held_until: Option<Timestamp>,
    journal: Vec<Bytes>,
    executing: BTreeMap<String, (u32, u64)>,
    sent: Vec<(String, u32, Work)>,
    /// The idempotency keys of what was sent.
    keys: Vec<String>,
    aborted: Vec<String>,
    payloads: Payloads,
    resident: Payloads,
    missing: Vec<u32>,
    /// Workers that wait for a task, one offer each.
    offers: RefCell<Vec<Offer>>,
    /// The tasks for which a waiting worker was looked up: type, key and priority.
    wanted: RefCell<Vec<(String, String, u32)>>,
    /// Steps that a worker may claim, according to the effects.
    enqueued: BTreeSet<u32>,
    /// The fence of each leased step, according to the effects.
    leases: BTreeMap<u32, u64>,
    assignments: Vec<Granted>,
    /// Rows for the inboxes of other runs.
    outgoing: Vec<OutgoingRow>,
    /// The plans of the versions that it was moved away from, each with its last event.
    earlier: Vec<(u64, Plan)>,
}

/// An effect that leased a step to a worker.
#[derive(Clone, Debug)]
struct Granted {
    key: String,
    attempt: u32,
    offer_id: u64,
    task: Assignment,
}

impl Story {
    fn of(text: &str) -> Story {
        Story::with(text, json!({ "id": 5 }))
    }

    fn nested(groups: &[(&str, &str)], body: Value) -> Story {
        Story::changed(groups, body, |_| ())
    }

    /// The same, with another layout from the start.
    fn changed(groups: &[(&str, &str)], body: Value, change: impl FnOnce(&mut Layout)) -> Story {
        let mut layout = nested_plan(groups).layout().clone();
        change(&mut layout);
        let origin = Origin { body: Payload::json(body.to_string()), ..Default::default() };
        Story::start(Plan::new(layout).expect("a plan"), origin, Admission::Open, Vec::new())
    }

    /// The same with another layout, from here on.
    fn with_layout(mut self, change: impl FnOnce(&mut Layout)) -> Story {
        let mut layout = self.plan.layout().clone();
        change(&mut layout);
        self.plan = Plan::new(layout).unwrap();
        self
    }

    fn with(text: &str, body: Value) -> Story {
        Story::begin(text, body, Admission::Open)
    }

    fn admitted(text: &str, admission: Admission) -> Story {
        Story::begin(text, json!({ "id": 5 }), admission)
    }

    fn begin(text: &str, body: Value, admission: Admission) -> Story {
        let origin = Origin { body: Payload::json(body.to_string()), ..Default::default() };
        Story::start(plan_of(text), origin, admission, Vec::new())
    }

    fn start(plan: Plan, origin: Origin, admission: Admission, offers: Vec<Offer>) -> Story {
        let mut story = Story::before_start(plan, offers);
        let start = Input::Start { origin: Box::new(origin), admission, copied: Vec::new() };
        assert_eq!(story.give(start), Answer::Applied);
        story
    }

    fn before_start(plan: Plan, offers: Vec<Offer>) -> Story {
        Story {
            id: RunId([9; 16]),
            plan,
            run: Run::default(),
            now: START,
            epoch: 1,
            is_draining: false,
            held_until: None,
            journal: Vec::new(),
            executing: BTreeMap::new(),
            sent: Vec::new(),
            keys: Vec::new(),
            aborted: Vec::new(),
            payloads: Payloads::new(),
            resident: Payloads::new(),
            missing: Vec::new(),
            offers: RefCell::new(offers),
            wanted: RefCell::default(),
            enqueued: BTreeSet::new(),
            leases: BTreeMap::new(),
            assignments: Vec::new(),
            outgoing: Vec::new(),
            earlier: Vec::new(),
        }
    }

    /// The plans that the run had, see [`Plans`].
    fn plans(&self) -> Plans<'_> {
        let plans = self.earlier.iter().map(|(_, plan)| plan).chain([&self.plan]);
        let first = std::iter::once(0).chain(self.earlier.iter().map(|(seq, _)| seq + 1));
        Plans::new(first.zip(plans).collect())
    }

    fn body(&self, key: &str) -> Value {
        let step = self.run.find(&self.plan, key).expect(key);
        self.run.step(step).body().map_or(Value::Null, |body| body.value(&self.payloads).unwrap())
    }

    fn give(&mut self, input: Input) -> Answer {
        self.give_all(vec![input])[0]
    }

    fn give_all(&mut self, inputs: Vec<Input>) -> Vec<Answer> {
        let wait_url = |key: &str| format!("http://h/wh/{key}");
        let offer = |wanted: OfferedTask<'_>| {
            self.wanted.borrow_mut().push((wanted.name.to_owned(), wanted.key.to_owned(), wanted.priority));
            let mut offers = self.offers.borrow_mut();
            (!offers.is_empty()).then(|| offers.remove(0))
        };
        let hold = |_: NextRequest<'_>| {
            self.held_until.map(|until| HeldBack { until, failure: Failure::new("host_backoff", "`http://h` is down") })
        };
        let context = |payloads, offer| Context {
            run: self.id,
            now: self.now,
            epoch: self.epoch,
            is_draining: self.is_draining,
            wait_url: &wait_url,
            payloads,
            offer,
            hold: &hold,
        };
        let before = self.run.state.clone();
        let to = match inputs.as_slice() {
            [Input::Move(order)] => Some(order.plan.layout().clone()),
            _ => None,
        };
        let advanced = advance(&self.plan, &mut self.run, inputs, &context(&self.resident, &offer));
        if let Some(layout) = to.filter(|_| advanced.record.is_some()) {
            let old = std::mem::replace(&mut self.plan, Plan::new(layout).expect("a plan"));
            self.earlier.push((before.seq, old));
        }
        if let Some(record) = &advanced.record {
            assert_eq!(record.first, before.seq + 1);
            assert_eq!(
                record.first + record.events.len() as u64 - 1,
                self.run.state.seq,
                "events are numbered without gaps"
            );
            self.journal.push(record.seal());
        }
        self.payloads.extend(advanced.payloads.iter().cloned());
        let folded = Run::load_at(&self.plans(), &self.journal, u64::MAX).expect("the journal folds");
        assert_eq!(folded.state, self.run.state, "the run is the fold of its records");
        assert!(folded.index_matches_state(&self.plan), "and so is its index");
        let past = Run::load_at(&self.plans(), &self.journal, before.seq).expect("the journal folds");
        assert_eq!(past.state, before, "the run can be read as it was before");
        let snapshot = Run::load(&self.plan, Some(&self.run.snapshot()), &[]).expect("the snapshot reads back");
        assert_eq!(snapshot.state, self.run.state, "a snapshot loses nothing");
        assert!(self.run.index_matches_state(&self.plan));
        // Sometimes the run goes on from its records, as after a restart.
        if self.journal.len().is_multiple_of(3) {
            self.run = folded.clone();
        }
        let again = advance(&self.plan, &mut self.run.clone(), vec![Input::Wake], &context(&self.resident, &|_| None));
        let has_moved = self.earlier.last().is_some_and(|(seq, _)| *seq == before.seq);
        // What follows from a move is decided with the new plan, in the next advance.
        if !has_moved {
            assert_eq!(again.record, None, "i10: advancing again changes nothing");
            assert!(again.effects.is_empty(), "and has no effects");
        }
        self.missing = advanced.missing;
        self.outgoing.extend(advanced.outgoing);
        for effect in advanced.effects {
            match effect {
                Effect::Execute { step, key, attempt, repeats, fence, work } => {
                    self.keys.push(crate::run::idempotency_key(self.id, &key, repeats));
                    self.executing.insert(key.clone(), (step, fence));
                    self.sent.push((key, attempt, work));
                }
                Effect::Abort { step, fence, is_leased: false } => {
                    let is_it = |(_, running): &(&String, &(u32, u64))| **running == (step, fence);
                    let key = self.executing.iter().find(is_it).expect("it was executing").0.clone();
                    self.executing.remove(&key);
                    self.aborted.push(key);
                }
                Effect::Abort { step, .. } => self.aborted.push(self.run.key(&self.plan, step).into_owned()),
                Effect::LeaseTask { step, attempt, fence, offer_id, task } => {
                    let key = task.step_key.clone();
                    assert_eq!(self.leases.insert(step, fence), None, "no other worker has `{key}`");
                    self.assignments.push(Granted { key, attempt, offer_id, task: *task });
                }
                Effect::LeaseEnded { step, fence } => {
                    // A lease that began in the same advance never reached the worker.
                    assert!(self.leases.remove(&step).is_none_or(|current| current == fence));
                }
                Effect::AdoptLease => {}
                Effect::Enqueue { task } => assert!(self.enqueued.insert(task.step), "enqueued twice"),
                Effect::Dequeue { task } => assert!(self.enqueued.remove(&task.step), "it was not enqueued"),
            }
        }
        let claimable: BTreeSet<u32> = self.run.claimable(&self.plan).collect();
        assert_eq!(self.enqueued, claimable, "the enqueued steps are the claimable ones");
        let leased: BTreeMap<u32, u64> = self.run.leased().map(|lease| (lease.step, lease.fence)).collect();
        assert_eq!(self.leases, leased, "the leases of the effects are those of the run");
        advanced.answers
    }

    fn result(&self, key: &str, result: TaskResult) -> Input {
        let (step, fence) = *self.executing.get(key).unwrap_or_else(|| panic!("`{key}` is not executing"));
        Input::Finished { step, fence, result, digest: 0 }
    }

    /// `"a=200 b=503"`: the responses of steps, each in an advance of its own.
    fn answers(&mut self, text: &str) -> &mut Self {
        for word in text.split_whitespace() {
            let (key, status) = word.split_once('=').expect(word);
            let result = match status {
                "timeout" => TaskResult::TimedOut { message: "no answer within 30s".into(), took: Span(7) },
                "reset" => TaskResult::Failed {
                    failure: Failure::new("network", "connection reset"),
                    retryable: true,
                    retry_after: None,
                    took: Span(7),
                },
                "badurl" => TaskResult::Failed {
                    failure: Failure::new("invalid_url", "no"),
                    retryable: false,
                    retry_after: None,
                    took: Span(7),
                },
                "done" => TaskResult::Done { body: None, took: Span(7) },
                status => response(status.parse().expect(status), json!({ "n": 7 })),
            };
            let input = self.result(key, result);
            assert_eq!(self.give(input), Answer::Applied, "{word}");
        }
        self
    }

    fn callback(&mut self, key: &str, body: &str) -> Answer {
        let step = self.run.find(&self.plan, key).expect(key);
        self.give(Input::Callback { step, body: Payload::sniff(body.to_owned()), digest: Bytes::from(body.to_owned()) })
    }

    fn cancel(&mut self) -> Answer {
        self.give(Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false })
    }

    fn after(&mut self, text: &str) -> &mut Self {
        self.now = self.now.after(Span::parse(text).expect(text));
        self.give(Input::Wake);
        self
    }

    /// Answers every attempt with `status` until no retry is left.
    fn exhaust(&mut self, key: &str, status: &str) -> &mut Self {
        self.answers(&format!("{key}={status}"));
        while self.run.step(self.run.find(&self.plan, key).unwrap()).status() == StepStatus::Retrying {
            self.now = self.run.next_due().unwrap();
            self.give(Input::Wake);
            self.answers(&format!("{key}={status}"));
        }
        self
    }

    fn statuses(&self) -> String {
        let step =
            |(step, state): (u32, &crate::run::Step)| format!("{}={} ", self.run.key(&self.plan, step), state.status());
        let steps: String = self.run.steps().map(step).collect();
        format!("{steps}run={}", self.run.status())
    }

    fn events(&self) -> Vec<String> {
        let plans = self.plans();
        let name = |record: &Record, (seq, event): (u64, &Event)| {
            let step = event.step().map_or(String::new(), |s| format!(" {}", plans.at(seq).key(&record.place(s))));
            format!("{}{step}", event.name().unwrap_or("?"))
        };
        let records = self.journal.iter().map(|b| Record::open(b).unwrap());
        records.flat_map(|r| (r.first..).zip(&r.events).map(|e| name(&r, e)).collect::<Vec<_>>()).collect()
    }
}

fn response(status: u16, body: Value) -> TaskResult {
    let body = Payload::json(body.to_string());
    TaskResult::Response { status, headers: Vec::new(), body, retry_after: None, took: Span(7_000) }
}

#[test]
fn r17_r24_roots_start_together_and_a_join_starts_once() {
    let mut story = Story::of("a; b; c: a, b");
    assert_eq!(story.statuses(), "a=running b=running c=pending run=running");
    let both = vec![story.result("a", response(200, json!(1))), story.result("b", response(200, json!(1)))];
    story.give_all(both);
    assert_eq!(story.sent.iter().filter(|(k, ..)| k == "c").count(), 1);
    assert_eq!(story.answers("c=200").statuses(), "a=success b=success c=success run=completed");
}

/// The cascade rule: how the need ended × whether the step has an `if`.
#[test]
fn r18_r19_r20_the_cascade_rule() {
    let endings: [(&str, &[(&str, &str)]); 6] = [
        // how `a` ends; then, for each condition of `b`, the status of `b` and of the run
        (
            "success",
            &[
                ("", "success run=completed"),
                ("tasks.a.status == 'success'", "success run=completed"),
                ("tasks.a.status == 'failed'", "skipped run=completed"),
            ],
        ),
        (
            "failed",
            &[
                ("", "skipped run=failed"),
                ("tasks.a.status == 'failed'", "success run=completed"),
                ("tasks.a.status == 'success'", "skipped run=failed"),
            ],
        ),
        (
            "timeout",
            &[
                ("", "skipped run=failed"),
                ("tasks.a.status == 'timeout'", "success run=completed"),
                ("tasks.a.status == 'success'", "skipped run=failed"),
            ],
        ),
        (
            "template_error",
            &[
                ("", "skipped run=failed"),
                ("tasks.a.status == 'template_error'", "success run=completed"),
                ("tasks.a.status == 'success'", "skipped run=failed"),
            ],
        ),
        (
            "skipped",
            &[
                ("", "skipped run=completed"),
                ("tasks.a.status == 'skipped'", "success run=completed"),
                ("tasks.a.status == 'success'", "skipped run=completed"),
            ],
        ),
        (
            "received",
            &[
                ("", "success run=completed"),
                ("tasks.a.status == 'received'", "success run=completed"),
                ("tasks.a.status == 'timeout'", "skipped run=completed"),
            ],
        ),
    ];
    for (ending, cases) in endings {
        for (condition, expected) in cases {
            let kind = match ending {
                "template_error" => "a@http={{trigger.body.missing}}",
                "skipped" => "a if trigger.body.id == 0",
                "received" => "a@wait",
                _ => "a",
            };
            let guard = if condition.is_empty() { String::new() } else { format!(" if {condition}") };
            let mut story = Story::of(&format!("{kind}; b: a{guard}"));
            match ending {
                "success" => drop(story.answers("a=200")),
                "failed" => drop(story.answers("a=404")),
                "timeout" => drop(story.exhaust("a", "timeout")),
                "received" => assert_eq!(story.callback("a", "{}"), Answer::Applied),
                _ => {}
            }
            if story.executing.contains_key("b") {
                story.answers("b=200");
            }
            assert_eq!(story.statuses(), format!("a={ending} b={expected}"), "a {ending}, b if `{condition}`");
        }
    }
}

#[test]
fn r19_a_cascade_runs_through_and_resolves_no_templates() {
    let mut story = Story::of("a; b@http={{tasks.a.body.nope}}: a; c: b; d: c if tasks.c.status == 'skipped'");
    story.answers("a=404");
    assert_eq!(story.statuses(), "a=failed b=skipped c=skipped d=running run=running");
    story.answers("d=200");
    assert_eq!(story.run.status(), RunStatus::Completed, "`d` has a condition, and needs `a` through skipped steps");
}

#[test]
fn m8_decision_2_a_run_fails_when_a_failure_is_unhandled() {
    use RunStatus::{Completed, Failed};
    let condition = "tasks.a.status_code != 200";
    // The text of a workflow, the answers, the steps that are not handled, and the run by default and with `blocked`.
    for (text, answers, unhandled, by_default, blocked) in [
        (format!("a; h: a if {condition}"), "a=404 h=200", "", Completed, Completed),
        (format!("a; h: a if {condition}"), "a=404 h=404", "h", Failed, Failed),
        (format!("a; h: a if {condition}; z"), "a=404 h=404 z=200", "h", Failed, Completed),
        ("a; b: a".into(), "a=200 b=404", "b", Failed, Completed),
        ("a; b; c: b".into(), "a=404 b=200 c=200", "a", Failed, Completed),
        ("a; b: a; z".into(), "a=404 z=200", "a", Failed, Failed),
        ("a; b: a; h: a if tasks.a.status == 'failed'".into(), "a=404 h=200", "", Completed, Completed),
        ("a; b: a; c: b; h: c if tasks.c.status == 'skipped'".into(), "a=404 h=200", "", Completed, Completed),
        // The condition was evaluated and did not hold: nothing looked after the failure.
        ("a; g: a if tasks.a.status == 'success'; z: g; y".into(), "a=404 y=200", "a", Failed, Completed),
        ("a if trigger.body.id == 0; b: a".into(), "", "", Completed, Completed),
        ("a".into(), "a=404", "a", Failed, Failed),
    ] {
        for (verdict, expected) in [(Verdict::Unhandled, by_default), (Verdict::Blocked, blocked)] {
            let mut story = Story::of(&text).with_layout(|layout| layout.groups[0].verdict = verdict);
            assert_eq!(story.answers(answers).run.status(), expected, "{text} / {answers} / {verdict}");
            let keys =
                unhandled_steps(&story.plan, &story.run).into_iter().map(|step| story.run.key(&story.plan, step));
            assert_eq!(keys.collect::<Vec<_>>().join(" "), unhandled, "{text} / {answers} / {verdict}");
        }
    }
}

#[test]
fn m8_a_step_with_allow_failure_never_fails_the_run() {
    for verdict in [Verdict::Unhandled, Verdict::Blocked] {
        for (text, answers) in [("a", "a=404"), ("a; b: a", "a=404"), ("a; b", "a=404 b=200")] {
            let mut story = Story::of(text).with_layout(|layout| {
                layout.groups[0].verdict = verdict;
                layout.nodes[0].allow_failure = true;
            });
            assert_eq!(story.answers(answers).run.status(), RunStatus::Completed, "{text} / {verdict}");
            assert_eq!(failed_steps(&story.plan, &story.run), [0]);
            assert!(unhandled_steps(&story.plan, &story.run).is_empty());
        }
    }
}

#[test]
fn m8_the_row_of_a_run_names_its_failed_steps() {
    let mut story = Story::of("a; b; c: b if tasks.b.failed; d");
    story.answers("a=400").answers("b=400").answers("c=200").answers("d=200");
    let steps = FailedSteps::of(&story.plan, &story.run);
    assert_eq!((steps.to_string().as_str(), &steps.unhandled[..]), ("a! b", &["a".to_owned()][..]));
    assert_eq!(FailedSteps::parse(&steps.to_string()), steps);
    assert_eq!(FailedSteps::parse(""), FailedSteps::default());
    let many: Vec<String> = (0..30).map(|i| format!("s{i}")).collect();
    let mut story = Story::of(&many.join("; "));
    for step in &many {
        story.answers(&format!("{step}=400"));
    }
    assert_eq!(FailedSteps::of(&story.plan, &story.run).failed.len(), FailedSteps::MAX);
}

#[test]
fn m7_plans_of_earlier_lowerings_keep_their_rule() {
    use RunStatus::{Completed, Failed};
    for (text, answers, blocked, unhandled) in [
        ("a; b: a", "a=200 b=404", Completed, Failed),
        ("a; b: a; c: b; h: c if tasks.c.status == 'skipped'", "a=404 h=200", Failed, Failed),
    ] {
        for (verdict, expected) in [(Verdict::DirectBlocked, blocked), (Verdict::DirectUnhandled, unhandled)] {
            let mut story = Story::of(text).with_layout(|layout| layout.groups[0].verdict = verdict);
            assert_eq!(story.answers(answers).run.status(), expected, "{text} / {answers} / {verdict}");
        }
    }
}

#[test]
fn r23_decision_6_retries_are_invisible_to_dependents_and_end() {
    let mut story = Story::of("a; b: a");
    story.answers("a=503");
    assert_eq!(story.statuses(), "a=retrying b=pending run=waiting");
    assert!(story.after("9s").executing.len() == 1 && story.sent.len() == 1, "not before its time");
    story.after("1s").answers("a=reset").after("10s");
    assert_eq!(story.sent.iter().map(|(_, attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(story.answers("a=500").statuses(), "a=failed b=skipped run=failed");
    for status in ["400", "401", "404", "301", "badurl"] {
        let mut story = Story::of("a");
        assert_eq!(story.answers(&format!("a={status}")).statuses(), "a=failed run=failed", "{status} is final");
    }
    for status in ["408", "425", "429", "500", "503", "599", "reset", "timeout"] {
        assert_eq!(
            Story::of("a").answers(&format!("a={status}")).statuses(),
            "a=retrying run=waiting",
            "{status} is tried again"
        );
    }
}

#[test]
fn decision_6_retry_after_is_honoured() {
    for (asked, expected) in [(77, 77), (7_200, 3_600)] {
        let mut story = Story::of("a");
        let slow = TaskResult::Response {
            status: 429,
            headers: Vec::new(),
            body: Payload::json("{}"),
            retry_after: Some(Span::from_secs(asked)),
            took: Span(1),
        };
        let input = story.result("a", slow);
        story.give(input);
        assert_eq!(story.run.next_due(), Some(START.after(Span::from_secs(expected))));
    }
}

#[test]
fn p8_only_the_current_fence_counts() {
    let mut story = Story::of("a");
    let stale = story.result("a", response(200, json!(1)));
    story.answers("a=503").after("10s");
    assert_eq!(story.give(stale.clone()), Answer::Stale);
    assert_eq!(story.statuses(), "a=running run=running");
    assert_eq!(story.answers("a=200").statuses(), "a=success run=completed");
    let nowhere = Input::Finished { step: 99, fence: 1, result: response(200, json!(1)), digest: 0 };
    assert_eq!(story.give(nowhere), Answer::Unknown);
}

#[test]
fn p2_p9_a_lost_attempt_is_tried_again_without_being_charged() {
    let mut story = Story::of("a");
    for epoch in 2..12 {
        story.epoch = epoch;
        let running = story.run.running();
        assert_eq!(running.len(), 1);
        let (step, fence, before) = running[0];
        assert_eq!(before, epoch - 1);
        assert_eq!(story.give(Input::Lost { step, fence }), Answer::Applied);
        assert_eq!(story.statuses(), "a=running run=running", "at once");
        assert_eq!(story.give(Input::Lost { step, fence }), Answer::Stale);
    }
    let attempts: Vec<u32> = story.sent.iter().map(|(_, attempt, _)| *attempt).collect();
    assert_eq!(attempts, (1..=11).collect::<Vec<_>>(), "numbers are never reused");
    assert_eq!(story.run.step(0).charged, 1);
}

#[test]
fn decision_6_a_blocked_attempt_is_not_charged() {
    let mut story = Story::of("a; b@once: a");
    let blocked = |story: &Story, after: i64| TaskResult::Blocked {
        until: Timestamp(story.now.0 + after),
        failure: Failure::new("server_stopping", "nothing was sent"),
    };
    for _ in 0..10 {
        let input = story.result("a", blocked(&story, 5_000_000));
        assert_eq!(story.give(input), Answer::Applied);
        assert_eq!(story.statuses(), "a=retrying b=pending run=waiting");
        assert_eq!(story.run.next_due(), Some(story.now.after(Span::from_secs(5))));
        assert_eq!(story.run.step(0).failure.as_ref().unwrap().code, "server_stopping");
        assert_eq!(story.run.step(0).charged, 0);
        story.after("5s");
    }
    let first = retry::delay(&story.plan.node_at(0).retry, 1, None, 0);
    story.answers("a=503");
    assert_eq!(story.run.next_due(), first.map(|delay| story.now.after(delay)), "delays count what was charged");
    story.after("10s").answers("a=200");
    // A step that may be attempted only once still has its attempt, and a time in the past means now.
    let input = story.result("b", blocked(&story, -1));
    story.give(input);
    assert_eq!(story.statuses(), "a=success b=running run=running");
    assert_eq!(story.answers("b=done").statuses(), "a=success b=success run=completed");
}

#[test]
fn p2_retry_never_ends_as_outcome_unknown() {
    let mut story = Story::of("a@once; h: a if tasks.a.error.code == 'outcome_unknown'");
    let (step, fence, _) = story.run.running()[0];
    story.give(Input::Lost { step, fence });
    assert_eq!(story.statuses(), "a=failed h=running run=running");
}

#[test]
fn r40_r43_templates_are_filled_after_the_condition_and_strictly() {
    let story = Story::of("a@http={{trigger.body.nope}} if false");
    assert_eq!(story.statuses(), "a=skipped run=completed");
    let story = Story::of("a@http={{trigger.body.nope}}");
    assert_eq!(story.statuses(), "a=template_error run=failed");
    assert!(story.sent.is_empty(), "nothing is sent");
    assert_eq!(story.run.step(0).failure.as_ref().unwrap().message, "Failed to resolve {{trigger.body.nope}}");
    let mut story = Story::of("a; b@http={{tasks.a.body}}: a");
    story.answers("a=200");
    let Work::Http(request) = &story.sent[1].2 else { panic!() };
    assert_eq!(request.body, Some((Bytes::from_static(b"{\"n\":7}"), "application/json")));
}

#[test]
fn r32_the_callback_url_is_known_to_earlier_steps() {
    let story = Story::of("a@http={{wait.w.url}}; w@wait: a");
    let Work::Http(request) = &story.sent[0].2 else { panic!() };
    assert_eq!(request.body, Some((Bytes::from_static(b"http://h/wh/w"), "text/plain; charset=utf-8")));
}

#[test]
fn r41_r46_a_truncated_body_is_an_error_when_referenced() {
    let mut story = Story::of("a; b@http={{tasks.a.body.amount}}: a; c: a if tasks.a.body.amount > 5");
    let body = Payload { truncated: true, ..Payload::sniff("{\"amount\": 5") };
    let result = TaskResult::Response { status: 200, headers: Vec::new(), body, retry_after: None, took: Span(1) };
    let input = story.result("a", result);
    story.give(input);
    assert_eq!(story.statuses(), "a=success b=template_error c=template_error run=failed");
    let text = "Cannot read 'body.amount' because the response from 'a' exceeded the 256KB limit and was truncated";
    assert_eq!(story.run.step(1).failure.as_ref().unwrap().message, text);
}

#[test]
fn pure_steps_settle_in_the_record_that_decides_them() {
    let mut story = Story::of("a; s@set={{tasks.a.body.n}}: a; t@set={{tasks.s.body}}: s; b@http={{tasks.t.body}}: t");
    let before = story.journal.len();
    story.answers("a=200");
    assert_eq!(story.statuses(), "a=success s=success t=success b=running run=running");
    assert_eq!(story.journal.len(), before + 1, "one record");
}

#[test]
fn a_run_has_a_total_size() {
    let mut story = Story::of("a; b: a; w@wait");
    story.run.state.bytes = STATE_MAX - 3;
    // The harness would compare the edited state with the journal, so this test calls `advance` directly.
    let wait_url = |_: &str| String::new();
    let none = Payloads::new();
    let context = Context {
        run: RunId([9; 16]),
        now: story.now,
        epoch: 1,
        is_draining: false,
        wait_url: &wait_url,
        payloads: &none,
        offer: &|_| None,
        hold: &|_| None,
    };
    let callback = Input::Callback { step: 2, body: Payload::json("[1,2]"), digest: Bytes::from_static(b"x") };
    let input = story.result("a", response(200, json!([1, 2])));
    let advanced = advance(&story.plan, &mut story.run, vec![callback, input], &context);
    assert_eq!(advanced.answers, [Answer::TooLarge, Answer::Applied]);
    assert_eq!(story.run.step(0).failure.as_ref().unwrap().code, "state_limit");
}

#[test]
fn p20_data_of_a_later_release_is_never_ignored() {
    let story = Story::of("a@later; b: a");
    assert_eq!(story.statuses(), "a=pending b=pending run=waiting");
    let record = Record {
        at: START,
        first: 1,
        events: vec![Event::Unknown { number: 77, bytes: Bytes::new() }],
        ..Default::default()
    };
    assert_eq!(Run::load(&story.plan, None, &[record.seal()]).unwrap_err(), crate::run::LoadError::Newer);
    let mut newer = wire::seal(&record);
    newer[0] = 9;
    assert_eq!(Run::load(&story.plan, None, &[newer.into()]).unwrap_err(), crate::run::LoadError::Newer);
}

#[test]
fn decision_4_the_values_that_a_condition_read_are_recorded() {
    let mut story = Story::of("a; b: a if tasks.a.status_code >= 400 && trigger.body.id == 5");
    story.answers("a=200");
    let Some(crate::event::Because::Condition { seen }) = story.run.step(1).because.as_deref() else { panic!() };
    assert_eq!(
        seen.iter().map(|s| (s.path.as_str(), s.value.as_str())).collect::<Vec<_>>(),
        [("tasks.a.status_code", "200")]
    );
}

#[test]
fn the_history_lists_every_event_in_order() {
    let mut story = Story::of("a; nap@sleep: a");
    story.answers("a=503").after("10s").answers("a=200").after("60s");
    assert_eq!(
        story.events(),
        [
            "run.created",
            "step.started a",
            "step.retrying a",
            "run.waiting",
            "step.started a",
            "run.resumed",
            "step.succeeded a",
            "timer.set nap",
            "run.waiting",
            "step.succeeded nap",
            "run.completed",
        ]
    );
}

#[test]
fn a_thousand_parents_settle_in_few_records() {
    let parents: String = (0..1_000).map(|i| format!("p{i}; ")).collect();
    let needs = (0..1_000).map(|i| format!("p{i}")).collect::<Vec<_>>().join(", ");
    let mut story = Story::of(&format!("{parents} join: {needs}"));
    let inputs = (0..1_000).map(|i| story.result(&format!("p{i}"), response(200, json!(i)))).collect();
    story.give_all(inputs);
    assert_eq!(story.journal.len(), 2);
    assert_eq!(story.answers("join=200").run.status(), RunStatus::Completed);
}

#[test]
fn inputs_before_the_run_exists_are_unknown() {
    let plan = plan_of("a");
    let wait_url = |_: &str| String::new();
    let none = Payloads::new();
    let (run, offer) = (RunId([9; 16]), |_: OfferedTask<'_>| None);
    let context = Context {
        run,
        now: START,
        epoch: 1,
        is_draining: false,
        wait_url: &wait_url,
        payloads: &none,
        offer: &offer,
        hold: &|_| None,
    };
    let mut run = Run::default();
    let advanced = advance(
        &plan,
        &mut run,
        vec![Input::Wake, Input::Cancel { actor: String::new(), reason: String::new(), compensate: false }],
        &context,
    );
    assert_eq!((advanced.record, advanced.answers), (None, vec![Answer::Applied, Answer::Unknown]));
    assert_eq!(walk(&json!({"a": [1]}), &["a".into(), "0".into()]), Some(&json!(1)));
}
