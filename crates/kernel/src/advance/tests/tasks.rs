//! Task steps. The harness checks after every advance that the enqueued steps are the claimable ones and that the
//! leases of the effects are those of the run.

use super::*;
use crate::event::LogLine;
use crate::run::WaitKind;
use crate::template::Part;

const LEASE: Span = Span::from_secs(30);

fn offer(worker: &str) -> Offer {
    Offer { worker: worker.into(), lease: LEASE, offer_id: 7, slot: 0, key_slot: 0 }
}

fn done(body: Value) -> TaskResult {
    TaskResult::Done { body: Some(Payload::json(body.to_string())), took: Span(999) }
}

fn failed(retryable: bool, retry_after: Option<Span>) -> TaskResult {
    let failure = Failure::new("declined", "the card was declined");
    TaskResult::Failed { failure, retryable, retry_after, took: Span(999) }
}

/// A plan with every task changed.
fn shaped(text: &str, shape: impl Fn(&mut TaskBody, &mut Retry)) -> Plan {
    let mut layout = plan_of(text).layout().clone();
    for node in &mut layout.nodes {
        if let Some(Body::Task { task }) = &mut node.body {
            shape(task, &mut node.retry);
        }
    }
    Plan::new(layout).unwrap()
}

/// A plain task, as `POST /tasks` makes it.
fn plain(shape: impl Fn(&mut TaskBody, &mut Retry)) -> Plan {
    let mut layout = shaped("task@task", shape).layout().clone();
    (layout.form, layout.max_duration) = (Form::Task, Span(u64::MAX));
    layout.groups[0].verdict = Verdict::DirectUnhandled;
    Plan::new(layout).unwrap()
}

fn origin() -> Origin {
    Origin { body: Payload::json(r#"{"id":5}"#), ..Default::default() }
}

impl Story {
    fn of_plan(plan: Plan) -> Story {
        Story::start(plan, origin(), Admission::Open, Vec::new())
    }

    fn step_of(&self, key: &str) -> u32 {
        self.run.find(&self.plan, key).expect(key)
    }

    fn claim(&mut self, key: &str) -> Answer {
        let step = self.step_of(key);
        self.give(Input::Claim { step, offer: offer("w1") })
    }

    /// Claims a step and returns its fence.
    fn claimed(&mut self, key: &str) -> u64 {
        assert_eq!(self.claim(key), Answer::Applied, "{}", self.statuses());
        self.leases[&self.step_of(key)]
    }

    fn report(&mut self, key: &str, fence: u64, result: TaskResult, digest: u64) -> Answer {
        let step = self.step_of(key);
        self.give(Input::Finished { step, fence, result, digest })
    }

    fn lost(&mut self, key: &str) -> Answer {
        let step = self.step_of(key);
        let fence = self.leases[&step];
        self.give(Input::Lost { step, fence })
    }

    fn error(&self, key: &str) -> &str {
        self.run.step(self.step_of(key)).failure.as_ref().map_or("", |failure| failure.code.as_str())
    }

    /// Seconds until the next timer of the run.
    fn due_in(&self) -> Option<f64> {
        self.run.next_due().map(|at| at.since(self.now).0 as f64 / 1e6)
    }

    /// Moves the clock to the next timer and fires it.
    fn fire_next_timer(&mut self) -> &mut Self {
        self.now = self.run.next_due().expect("something is due");
        self.give(Input::Wake);
        self
    }
}

#[test]
fn w1_a_task_waits_for_a_worker_and_is_leased_to_one() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    assert_eq!(story.statuses(), "task=pending run=running", "an unclaimed task leaves the run running");
    assert_eq!(story.run.waiting_for(&story.plan)[0].kind, WaitKind::Worker);
    assert!(story.run.waits_for_others(&story.plan));
    assert_eq!(story.run.next_due(), None, "it waits as long as it takes");
    let fence = story.claimed("task");
    assert_eq!(story.statuses(), "task=running run=running");
    assert!(!story.run.waits_for_others(&story.plan));
    let assigned = &story.assignments[0];
    assert_eq!((assigned.attempt, assigned.offer_id, assigned.task.max_attempts), (1, 7, 3));
    assert_eq!((assigned.task.worker.as_str(), assigned.task.lease), ("w1", LEASE));
    assert_eq!((&assigned.task.input[..], &assigned.task.progress), (&br#"{"id":5}"#[..], &None));
    assert_eq!(story.claim("task"), Answer::Stale, "two workers never hold the same task");
    story.now = story.now.after(Span::from_secs(4));
    assert_eq!(story.report("task", fence, done(json!({ "ok": true })), 11), Answer::Applied);
    assert_eq!(story.statuses(), "task=success run=completed");
    let response = story.run.step(0).response.as_ref().unwrap();
    assert_eq!(response.took, Span::from_secs(4), "the server's time, not the worker's");
    let events = ["run.created", "step.scheduled task", "step.leased task", "step.succeeded task", "run.completed"];
    assert_eq!(story.events(), events);
}

#[test]
fn a_waiting_worker_gets_a_task_in_the_record_that_makes_it_ready() {
    let mut story = Story::of("a@task; b@task={{tasks.a.body.n}}: a; c@task: a");
    let fence = story.claimed("a");
    *story.offers.borrow_mut() = vec![offer("w2")];
    let records = story.journal.len();
    story.report("a", fence, done(json!({ "n": [1, 2] })), 11);
    assert_eq!(story.journal.len(), records + 1, "a is done and b leased in one record");
    assert_eq!(story.statuses(), "a=success b=running c=pending run=running", "one offer, one task");
    let assigned = story.assignments.last().unwrap();
    assert_eq!(
        (assigned.key.as_str(), assigned.task.worker.as_str(), &assigned.task.input[..]),
        ("b", "w2", &b"[1,2]"[..])
    );
    assert_eq!(story.enqueued, BTreeSet::from([2]), "a task that was leased at once was never enqueued");
    let last = Record::open(story.journal.last().unwrap()).unwrap();
    let names: Vec<_> = last.events.iter().filter_map(Event::name).collect();
    assert_eq!(names, ["step.succeeded", "step.leased", "step.scheduled"]);
    let story = Story::start(plain(|_, _| {}), origin(), Admission::Open, vec![offer("w2")]);
    assert_eq!((story.statuses().as_str(), story.journal.len()), ("task=running run=running", 1));
}

#[test]
fn p8_only_the_holder_of_the_current_fence_is_accepted() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    let first = story.claimed("task");
    assert_eq!(story.lost("task"), Answer::Applied);
    let second = story.claimed("task");
    assert_ne!(first, second);
    let heartbeat = |fence, progress| Input::Heartbeat { step: 0, fence, progress };
    let log = |fence| Input::Log { step: 0, fence, lines: vec![LogLine { message: "x".into(), ..Default::default() }] };
    let before = story.run.state.seq;
    for fence in [first, second + 1, 0] {
        for result in [done(json!(1)), failed(true, None), failed(false, None), TaskResult::snoozed(story.now)] {
            assert_eq!(story.report("task", fence, result, 11), Answer::Stale);
        }
        assert_eq!(story.give(heartbeat(fence, None)), Answer::Stale);
        assert_eq!(story.give(heartbeat(fence, Some(Payload::json("1")))), Answer::Stale);
        assert_eq!(story.give(log(fence)), Answer::Stale);
        assert_eq!(story.give(Input::Lost { step: 0, fence }), Answer::Stale);
    }
    assert_eq!(story.run.state.seq, before, "and nothing was written");
    for input in [heartbeat(second, None), log(second)] {
        assert_eq!(story.give(input), Answer::Applied);
    }
    let outside = Input::Claim { step: 9, offer: offer("w1") };
    assert_eq!(story.give(outside), Answer::Unknown);
    for input in [
        Input::Heartbeat { step: 9, fence: second, progress: None },
        Input::Log { step: 9, fence: second, lines: Vec::new() },
        Input::Lost { step: 9, fence: second },
        Input::Finished { step: 9, fence: second, result: done(json!(1)), digest: 1 },
    ] {
        assert_eq!(story.give(input), Answer::Unknown);
    }
    assert_eq!(story.report("task", second, done(json!(1)), 11), Answer::Applied);
}

#[test]
fn a_worker_may_ask_for_a_month() {
    let mut story = Story::of("a@task");
    let fence = story.claimed("a");
    story.report("a", fence, failed(true, Some(Span::from_days(30))), 11);
    assert_eq!(story.due_in(), Some(30.0 * 86_400.0));
}

#[test]
fn w17_a_worker_that_is_still_alive_is_recorded() {
    let mut story = Story::of("a@task");
    let fence = story.claimed("a");
    let before = story.run.state.seq;
    assert_eq!(story.give(Input::StillAlive { step: 0, fence }), Answer::Applied);
    assert_eq!(story.run.state.seq, before + 1);
    assert_eq!(story.give(Input::StillAlive { step: 0, fence: fence + 1 }), Answer::Stale);
    assert_eq!(story.report("a", fence, done(json!(1)), 11), Answer::Applied);
    assert_eq!(story.give(Input::StillAlive { step: 0, fence }), Answer::Ended(RunStatus::Completed));
    assert_eq!(story.statuses(), "a=success run=completed");
}

#[test]
fn a_reported_code_never_chooses_the_status() {
    for code in ["template_error", "timeout", "skipped", "cancelled", "quarantined"] {
        let mut story = Story::of("a@task");
        let fence = story.claimed("a");
        let failure = Failure::new(code, "the worker says so");
        let result = TaskResult::Failed { failure, retryable: false, retry_after: None, took: Span(9) };
        assert_eq!(story.report("a", fence, result, 11), Answer::Applied);
        assert_eq!((story.statuses().as_str(), story.error("a")), ("a=failed run=failed", code));
    }
}

#[test]
fn a_repeated_report_is_accepted_and_a_different_one_is_refused() {
    // While the run is open.
    let mut story = Story::of("a@task; b@task");
    let fence = story.claimed("a");
    assert_eq!(story.report("a", fence, done(json!(1)), 11), Answer::Applied);
    assert_eq!(story.report("a", fence, done(json!(1)), 11), Answer::Repeated);
    assert_eq!(story.report("a", fence, done(json!(2)), 12), Answer::Stale);
    assert_eq!(story.report("a", fence, failed(true, None), 13), Answer::Stale);
    // A failure that is retried, until the next worker has the task.
    let fence = story.claimed("b");
    assert_eq!(story.report("b", fence, failed(true, None), 21), Answer::Applied);
    assert_eq!(story.report("b", fence, failed(true, None), 21), Answer::Repeated);
    assert_eq!(story.report("b", fence, done(json!(1)), 22), Answer::Stale);
    story.fire_next_timer();
    assert_eq!(story.report("b", fence, failed(true, None), 21), Answer::Repeated, "no other worker has it yet");
    let second = story.claimed("b");
    assert_eq!(story.report("b", fence, failed(true, None), 21), Answer::Stale, "now another worker has it");
    // A snooze.
    let until = story.now.after(Span::from_secs(5));
    assert_eq!(story.report("b", second, TaskResult::snoozed(until), 31), Answer::Applied);
    assert_eq!(story.report("b", second, TaskResult::snoozed(until), 31), Answer::Repeated);
    // After the end of the run.
    story.fire_next_timer();
    let third = story.claimed("b");
    assert_eq!(story.report("b", third, failed(false, None), 41), Answer::Applied);
    assert_eq!(story.statuses(), "a=success b=failed run=failed");
    let before = story.run.state.seq;
    assert_eq!(story.report("b", third, failed(false, None), 41), Answer::Repeated);
    assert_eq!(story.report("b", third, done(json!(1)), 42), Answer::Stale);
    assert_eq!(story.report("b", second, TaskResult::snoozed(until), 31), Answer::Stale);
    assert_eq!(story.run.state.seq, before);
}

#[test]
fn p10_decision_13_a_result_after_cancel_is_recorded_once_and_changes_nothing() {
    let mut story = Story::of("a@task; b@task; c@task");
    let (a, b) = (story.claimed("a"), story.claimed("b"));
    assert_eq!(story.report("b", b, failed(true, None), 21), Answer::Applied);
    assert_eq!(story.cancel(), Answer::Applied);
    assert_eq!(story.statuses(), "a=cancelled b=cancelled c=cancelled run=cancelled");
    assert_eq!(story.aborted, ["a"], "the worker that has it is told");
    let cancelled = Answer::Ended(RunStatus::Cancelled);
    assert_eq!(story.give(Input::Heartbeat { step: 0, fence: a, progress: Some(Payload::json("1")) }), cancelled);
    assert_eq!(story.give(Input::Heartbeat { step: 0, fence: a + 1, progress: None }), Answer::Stale);
    assert_eq!(story.give(Input::Log { step: 0, fence: a, lines: Vec::new() }), cancelled);
    for digest in [11, 11, 12] {
        assert_eq!(story.report("a", a, done(json!(1)), digest), cancelled);
    }
    assert_eq!(story.report("a", a + 1, done(json!(1)), 11), Answer::Stale, "not from another worker");
    assert_eq!(story.report("b", b, failed(true, None), 21), Answer::Repeated, "it was applied before the end");
    assert_eq!(story.report("b", b, done(json!(1)), 22), Answer::Stale);
    assert_eq!(story.report("c", 0, done(json!(1)), 1), cancelled, "no worker ever had it");
    assert_eq!(story.claim("c"), Answer::Stale);
    assert_eq!(story.give(Input::Lost { step: 0, fence: a }), Answer::Stale);
    let late = |e: &&String| e.starts_with("late_result");
    assert_eq!(story.events().iter().filter(late).collect::<Vec<_>>(), ["late_result a"]);
    assert_eq!(story.statuses(), "a=cancelled b=cancelled c=cancelled run=cancelled");
}

#[test]
fn a_claim_that_is_cancelled_in_the_same_advance_gets_no_task() {
    let mut story = Story::of("a@task");
    let cancel = Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false };
    let answers = story.give_all(vec![Input::Claim { step: 0, offer: offer("w1") }, cancel]);
    assert_eq!(answers, [Answer::Applied, Answer::Applied]);
    assert!(story.assignments.is_empty() && story.aborted.is_empty(), "no worker heard of it");
}

/// Two inputs in one advance have the same effect as in two advances.
#[test]
fn decision_13_a_cancel_right_after_the_last_result_is_too_late() {
    let cancel = || Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false };
    let finished = |fence| Input::Finished { step: 0, fence, result: done(json!(1)), digest: 11 };
    let mut story = Story::of_plan(plain(|_, _| {}));
    let fence = story.claimed("task");
    let answers = story.give_all(vec![finished(fence), cancel()]);
    assert_eq!(answers, [Answer::Applied, Answer::Ended(RunStatus::Completed)]);
    assert_eq!(story.statuses(), "task=success run=completed");
    let mut story = Story::of_plan(plain(|_, _| {}));
    let fence = story.claimed("task");
    let answers = story.give_all(vec![cancel(), finished(fence)]);
    assert_eq!(answers, [Answer::Applied, Answer::Ended(RunStatus::Cancelled)]);
    assert_eq!(story.statuses(), "task=cancelled run=cancelled");
    // When another step follows, the cancellation is in time, and no worker gets that step.
    let mut story = Story::of("a@task; b@task: a");
    let fence = story.claimed("a");
    story.offers.borrow_mut().push(offer("w2"));
    assert_eq!(story.give_all(vec![finished(fence), cancel()]), [Answer::Applied, Answer::Applied]);
    assert_eq!(story.statuses(), "a=success b=cancelled run=cancelled");
    assert_eq!((story.assignments.len(), story.aborted.len()), (1, 0));
}

#[test]
fn a_heartbeat_costs_nothing_and_progress_goes_to_the_next_attempt() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    let fence = story.claimed("task");
    let records = story.journal.len();
    assert_eq!(story.give(Input::Heartbeat { step: 0, fence, progress: None }), Answer::Applied);
    assert_eq!(story.journal.len(), records, "a heartbeat without progress is not recorded");
    for progress in [r#"{"page":6}"#, r#"{"page":7}"#] {
        let progress = Some(Payload::json(progress));
        assert_eq!(story.give(Input::Heartbeat { step: 0, fence, progress }), Answer::Applied);
    }
    assert_eq!(story.run.state.bytes, 8 + 10, "the trigger and the latest progress, not all of them");
    assert_eq!(story.events().iter().filter(|e| *e == "step.heartbeat task").count(), 2);
    story.lost("task");
    story.claimed("task");
    assert_eq!(story.assignments[1].task.progress.as_deref(), Some(&br#"{"page":7}"#[..]));
    assert_eq!((story.assignments[1].attempt, &story.assignments[1].task.input), (2, &story.assignments[0].task.input));
}

#[test]
fn progress_and_logs_count_towards_the_size_of_a_run() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    let fence = story.claimed("task");
    let line = |len: usize| LogLine { message: "x".repeat(len), ..Default::default() };
    let log = |len| Input::Log { step: 0, fence, lines: vec![line(len)] };
    assert_eq!(story.give(log(STATE_MAX as usize - 8)), Answer::Applied, "8 bytes are the trigger's");
    assert_eq!(story.give(log(1)), Answer::TooLarge);
    let heartbeat = Input::Heartbeat { step: 0, fence, progress: Some(Payload::json("1")) };
    assert_eq!(story.give(heartbeat), Answer::TooLarge);
    assert_eq!(story.report("task", fence, done(json!(1)), 11), Answer::Applied);
    assert_eq!((story.statuses().as_str(), story.error("task")), ("task=failed run=failed", "state_limit"));
    assert_eq!(story.report("task", fence, done(json!(1)), 11), Answer::Repeated);
}

#[test]
fn a_lost_lease_is_charged_and_tried_again_at_once_until_three_workers_died() {
    let mut story = Story::of_plan(plain(|_, retry| retry.max_attempts = 9));
    for attempt in 1..=3 {
        story.claimed("task");
        assert_eq!(story.run.step(0).charged, attempt);
        assert_eq!(story.lost("task"), Answer::Applied);
        assert!(story.aborted.is_empty(), "there is no worker to tell");
        if attempt < 3 {
            assert_eq!(story.enqueued, BTreeSet::from([0]), "claimable again at once");
            assert_eq!(story.error("task"), "lease_lost");
        }
    }
    assert_eq!((story.statuses().as_str(), story.error("task")), ("task=failed run=failed", "quarantined"));

    let lost = |shape: fn(&mut TaskBody, &mut Retry)| {
        let mut story = Story::of_plan(plain(shape));
        let fence = story.claimed("task");
        story.lost("task");
        assert_eq!(story.report("task", fence, done(json!(1)), 11), Answer::Stale, "the lease has ended");
        format!("{} {}", story.statuses(), story.error("task"))
    };
    assert_eq!(lost(|_, _| {}), "task=pending run=running lease_lost");
    assert_eq!(lost(|_, retry| retry.max_attempts = 1), "task=failed run=failed lease_lost");
    let once =
        |_: &mut TaskBody, retry: &mut Retry| *retry = Retry { max_attempts: 1, never: true, ..Default::default() };
    assert_eq!(lost(once), "task=failed run=failed outcome_unknown");
}

#[test]
fn a_lost_lease_goes_to_a_worker_that_waits_in_the_same_record() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    story.claimed("task");
    *story.offers.borrow_mut() = vec![offer("w2")];
    let records = story.journal.len();
    story.lost("task");
    assert_eq!((story.journal.len(), story.assignments.len()), (records + 1, 2));
    assert_eq!((story.assignments[1].task.worker.as_str(), story.assignments[1].attempt), ("w2", 2));
}

#[test]
fn w12_the_delay_is_the_square_of_the_attempt_in_minutes_plus_up_to_a_tenth() {
    for run in 0..50 {
        let mut story = Story::of_plan(plain(|_, _| {}));
        story.id = RunId([run; 16]);
        let mut delays = Vec::new();
        loop {
            let fence = story.claimed("task");
            assert_eq!(story.report("task", fence, failed(true, None), 11), Answer::Applied);
            let Some(due) = story.due_in() else { break };
            assert_eq!(story.statuses(), "task=retrying run=waiting");
            delays.push(due);
            story.fire_next_timer();
            assert_eq!(story.statuses(), "task=pending run=running");
        }
        let [first, second] = delays[..] else { panic!("{delays:?}") };
        assert!((60.0..=66.0).contains(&first) && (240.0..=264.0).contains(&second), "{delays:?}");
        assert_eq!((story.statuses().as_str(), story.error("task")), ("task=failed run=failed", "declined"));
        assert_eq!((story.run.step(0).attempt, story.run.step(0).charged), (3, 3));
    }
}

#[test]
fn decision_6_a_worker_may_report_a_final_failure_or_a_retry_delay() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    let fence = story.claimed("task");
    story.report("task", fence, failed(true, Some(Span::from_secs(5))), 11);
    assert_eq!(story.due_in(), Some(5.0));
    story.fire_next_timer();
    let fence = story.claimed("task");
    story.now = story.now.after(Span::from_secs(2));
    story.report("task", fence, failed(false, None), 12);
    assert_eq!(story.statuses(), "task=failed run=failed");
    assert_eq!(story.run.step(0).attempt, 2);
    assert_eq!(story.run.step(0).response.as_ref().unwrap().took, Span::from_secs(2));
    let once =
        |_: &mut TaskBody, retry: &mut Retry| *retry = Retry { max_attempts: 1, never: true, ..Default::default() };
    let mut story = Story::of_plan(plain(once));
    let fence = story.claimed("task");
    story.report("task", fence, failed(true, Some(Span::from_secs(5))), 11);
    assert_eq!((story.statuses().as_str(), story.error("task")), ("task=failed run=failed", "declined"));
}

#[test]
fn a_snooze_is_not_charged() {
    let once =
        |_: &mut TaskBody, retry: &mut Retry| *retry = Retry { max_attempts: 1, never: true, ..Default::default() };
    let mut story = Story::of_plan(plain(once));
    for attempt in 1..=5 {
        let fence = story.claimed("task");
        assert_eq!((story.run.step(0).attempt, story.run.step(0).charged), (attempt, 1));
        let until = story.now.after(Span::from_secs(3_600));
        assert_eq!(story.report("task", fence, TaskResult::snoozed(until), 10), Answer::Applied);
        assert_eq!((story.statuses().as_str(), story.error("task")), ("task=retrying run=waiting", "snoozed"));
        assert_eq!(story.due_in(), Some(3_600.0));
        story.fire_next_timer();
        assert_eq!(story.enqueued, BTreeSet::from([0]));
    }
    let fence = story.claimed("task");
    assert_eq!(story.report("task", fence, done(json!(1)), 11), Answer::Applied);
    assert_eq!((story.statuses().as_str(), story.run.step(0).attempt), ("task=success run=completed", 6));
}

#[test]
fn a_queue_timeout_ends_a_task_that_no_worker_claims() {
    let limit = |task: &mut TaskBody, _: &mut Retry| task.queue = Some(Span::from_secs(60));
    let mut story = Story::of_plan(plain(limit));
    assert_eq!(story.due_in(), Some(60.0));
    assert_eq!(story.fire_next_timer().statuses(), "task=timeout run=failed");
    assert_eq!((story.error("task"), story.aborted.len()), ("queue_timeout", 0));
    // Each wait for a worker has the full limit, however long the earlier ones were.
    let mut story = Story::of_plan(plain(limit));
    story.after("59s");
    let fence = story.claimed("task");
    assert_eq!(story.due_in(), None, "its wait is over");
    story.after("5m");
    story.report("task", fence, failed(true, Some(Span::from_secs(1))), 11);
    story.fire_next_timer();
    assert_eq!(story.due_in(), Some(60.0));
    assert_eq!(story.fire_next_timer().error("task"), "queue_timeout");
    assert_eq!(story.run.step(0).attempt, 1);
    // A claim that arrives at the deadline is late.
    let mut story = Story::of_plan(plain(limit));
    story.now = story.now.after(Span::from_secs(60));
    assert_eq!(story.claim("task"), Answer::Stale);
    assert_eq!(story.statuses(), "task=timeout run=failed");
}

#[test]
fn an_attempt_timeout_ends_the_lease_and_the_task_is_retried() {
    let limit = |task: &mut TaskBody, _: &mut Retry| task.attempt = Some(Span::from_secs(10));
    let mut story = Story::of_plan(plain(limit));
    for attempt in 1..=3 {
        let fence = story.claimed("task");
        story.after("9s");
        assert_eq!(story.give(Input::Heartbeat { step: 0, fence, progress: None }), Answer::Applied);
        assert_eq!(story.due_in(), Some(1.0), "a heartbeat does not extend it");
        story.fire_next_timer();
        assert_eq!(story.aborted.len(), attempt, "the worker that has it is told");
        assert_eq!(story.error("task"), "timeout");
        assert_eq!(story.report("task", fence, done(json!(1)), 11), Answer::Stale);
        if attempt < 3 {
            assert_eq!(story.statuses(), "task=retrying run=waiting");
            let due = story.due_in().unwrap();
            assert!([60.0..=66.0, 240.0..=264.0][attempt - 1].contains(&due), "{due}");
            story.fire_next_timer();
        }
    }
    assert_eq!(story.statuses(), "task=timeout run=failed");
}

#[test]
fn a_heartbeat_timeout_shortens_the_lease() {
    for (limit, lease) in [(Some(10), 10), (Some(45), 30), (None, 30)] {
        let shape = |task: &mut TaskBody, _: &mut Retry| task.heartbeat = limit.map(Span::from_secs);
        let mut story = Story::of_plan(plain(shape));
        story.claimed("task");
        assert_eq!(story.assignments[0].task.lease, Span::from_secs(lease));
        assert_eq!(story.run.leased().next().unwrap().lease, Span::from_secs(lease));
    }
}

#[test]
fn a_total_timeout_counts_from_when_the_task_could_first_be_claimed() {
    let limit = |task: &mut TaskBody, retry: &mut Retry| {
        (task.total, retry.max_attempts) = (Some(Span::from_secs(100)), 9);
    };
    // No worker claims the task.
    let mut story = Story::of_plan(plain(limit));
    assert_eq!(story.fire_next_timer().statuses(), "task=timeout run=failed");
    assert_eq!((story.error("task"), story.aborted.len()), ("total_timeout", 0));
    assert_eq!(story.now, START.after(Span::from_secs(100)));
    // A worker holds the task.
    let mut story = Story::of_plan(plain(limit));
    story.after("40s");
    let fence = story.claimed("task");
    assert_eq!(story.due_in(), Some(60.0));
    assert_eq!(story.fire_next_timer().error("task"), "total_timeout");
    assert_eq!(story.aborted, ["task"]);
    assert_eq!(story.report("task", fence, done(json!(1)), 11), Answer::Stale);
    // The next attempt would come too late.
    let mut story = Story::of_plan(plain(limit));
    story.after("40s");
    let fence = story.claimed("task");
    story.after("30s");
    story.report("task", fence, failed(true, Some(Span::from_secs(31))), 11);
    assert_eq!(story.due_in(), Some(30.0));
    assert_eq!(story.fire_next_timer().statuses(), "task=timeout run=failed");
    assert_eq!(story.error("task"), "total_timeout");
    // The time before a step's needs were done does not count.
    let mut story = Story::of_plan(shaped("nap@sleep=1h; a@task: nap", limit));
    story.after("1h");
    assert_eq!(story.due_in(), Some(100.0));
}

#[test]
fn a_step_that_timed_out_can_be_handled() {
    let plan = shaped("a@task; b@task: a if tasks.a.error.code == 'queue_timeout'; c@task: a", |task, _| {
        task.queue = Some(Span::from_secs(60));
    });
    let mut story = Story::of_plan(plan);
    assert_eq!(story.fire_next_timer().statuses(), "a=timeout b=pending c=skipped run=running");
    let fence = story.claimed("b");
    story.report("b", fence, done(json!(1)), 11);
    assert_eq!(story.statuses(), "a=timeout b=success c=skipped run=completed");
}

#[test]
fn a_paused_run_enqueues_nothing_and_keeps_its_leases() {
    let pause = || Input::Pause { actor: "ada".into(), note: String::new() };
    let resume = || Input::Resume { actor: "ada".into() };
    let mut story = Story::of("a@task; b@task; c@task: a");
    let fence = story.claimed("a");
    assert_eq!(story.enqueued, BTreeSet::from([1]));
    story.give(pause());
    assert!(story.enqueued.is_empty(), "what could be claimed no longer can");
    assert_eq!(story.claim("b"), Answer::Stale);
    assert_eq!(story.give(Input::Heartbeat { step: 0, fence, progress: None }), Answer::Applied);
    *story.offers.borrow_mut() = vec![offer("w2")];
    assert_eq!(story.report("a", fence, done(json!(1)), 11), Answer::Applied);
    assert_eq!(story.statuses(), "a=success b=pending c=pending run=waiting");
    assert_eq!(story.offers.borrow().len(), 1, "a waiting worker is not offered anything");
    story.give(resume());
    assert_eq!(story.statuses(), "a=success b=pending c=running run=running");
    assert_eq!(story.enqueued, BTreeSet::from([1]));
    // A lease that ends while the run is paused waits for it too.
    story.give(pause());
    assert_eq!(story.lost("c"), Answer::Applied);
    assert_eq!(story.statuses(), "a=success b=pending c=retrying run=waiting");
    story.give(resume());
    assert_eq!(story.enqueued, BTreeSet::from([1, 2]));
    story.give(pause());
    assert_eq!(story.cancel(), Answer::Applied);
    assert!(story.enqueued.is_empty());
}

#[test]
fn p19_a_draining_process_leases_nothing_but_accepts_results() {
    let mut story = Story::of("a@task; b@task: a");
    let fence = story.claimed("a");
    story.is_draining = true;
    *story.offers.borrow_mut() = vec![offer("w2")];
    assert_eq!(story.report("a", fence, done(json!(1)), 11), Answer::Applied);
    assert_eq!(story.statuses(), "a=success b=pending run=running");
    assert_eq!(story.claim("b"), Answer::Stale);
    story.is_draining = false;
    story.claimed("b");
}

#[test]
fn a_task_for_later_is_pending_until_its_time() {
    let at = START.after(Span::from_secs(600));
    let later = |limit: Option<u64>, run_at| {
        let plan = plain(|task, _| task.total = limit.map(Span::from_secs));
        Story::start(plan, Origin { run_at: Some(run_at), ..origin() }, Admission::Open, vec![offer("w2")])
    };
    let mut story = later(Some(100), at);
    assert_eq!(story.statuses(), "task=pending run=pending");
    assert_eq!((story.run.next_due(), story.enqueued.len()), (Some(at), 0));
    let waiting = story.run.waiting_for(&story.plan);
    assert_eq!((waiting[0].kind, waiting[0].until), (WaitKind::Sleep, Some(at)));
    assert_eq!(story.claim("task"), Answer::Stale);
    assert_eq!(story.give(Input::Admit), Answer::Repeated, "only its timer admits it");
    assert_eq!(story.after("599s").statuses(), "task=pending run=pending");
    assert_eq!(story.after("1s").statuses(), "task=running run=running", "a worker was waiting");
    assert_eq!(story.due_in(), Some(100.0), "its limit begins when it could be claimed");
    let mut story = later(None, at);
    story.offers.borrow_mut().clear();
    assert_eq!(story.after("10m").enqueued, BTreeSet::from([0]));
    assert_eq!(story.run.next_due(), None);
    let mut story = later(None, at);
    assert_eq!(story.cancel(), Answer::Applied);
    assert_eq!((story.statuses().as_str(), story.run.next_due()), ("task=cancelled run=cancelled", None));
    let story = later(None, START);
    assert_eq!(story.statuses(), "task=running run=running", "a time that has come is no reason to wait");
}

#[test]
fn the_expiry_of_a_run_for_later_counts_from_its_start_time() {
    let at = START.after(Span::from_days(40));
    let origin = Origin { run_at: Some(at), ..origin() };
    let story = Story::start(plan_of("a@task"), origin, Admission::Open, Vec::new());
    assert_eq!(story.run.state.origin.expires_at, at.after(Span::from_days(30)));
    assert_eq!(story.run.next_due(), Some(at));
}

#[test]
fn a_large_trigger_body_is_fetched_when_a_worker_claims() {
    let body = json!({ "pad": "x".repeat(INLINE_MAX) }).to_string();
    let large = || Origin { body: Payload::json(body.clone()), ..Default::default() };
    let mut story = Story::start(plain(|_, _| {}), large(), Admission::Open, Vec::new());
    assert_eq!((story.payloads.len(), story.missing.len()), (1, 0), "it is not needed yet");
    assert_eq!(story.claim("task"), Answer::Later);
    assert_eq!((story.missing.as_slice(), story.enqueued.len(), story.assignments.len()), (&[1][..], 1, 0));
    story.give(Input::Wake);
    assert!(story.missing.is_empty(), "it is only fetched for a claim");
    story.resident = story.payloads.clone();
    story.claimed("task");
    assert_eq!(story.assignments[0].task.input, body);
    // The task is retried while the payload is not in memory: the next claim asks for it.
    story.resident.clear();
    story.lost("task");
    assert_eq!(story.statuses(), "task=pending run=running");
    assert_eq!(story.claim("task"), Answer::Later);
    // A waiting worker gets it while it is still in memory.
    let story = Story::start(plain(|_, _| {}), large(), Admission::Open, vec![offer("w2")]);
    assert_eq!(story.assignments[0].task.input, body);
    // A template that reads it needs it before the task can be claimed.
    let mut story =
        Story::start(plan_of("nap@sleep=1s; a@task={{trigger.body.pad}}: nap"), large(), Admission::Open, Vec::new());
    story.after("1s");
    assert_eq!((story.missing.as_slice(), story.enqueued.len()), (&[1][..], 0));
    story.resident = story.payloads.clone();
    story.give(Input::Wake);
    assert_eq!(story.enqueued, BTreeSet::from([1]));
}

/// A type that a template forms is one of those that the step lists, and stays what it was when the task became ready.
#[test]
fn a_type_from_a_template_is_one_of_the_list() {
    let plan = || {
        let id = crate::path::Ref {
            root: crate::path::Root::TriggerBody,
            keys: vec!["id".into()],
            text: "trigger.body.id".into(),
            ..Default::default()
        };
        let parts =
            [Part { text: "invoice.".into(), ..Default::default() }, Part { path: Some(id), ..Default::default() }];
        shaped("a@task", move |task, _| {
            (task.name, task.of_type) = (String::new(), parts.to_vec());
            task.allow = vec!["invoice.5".into(), "invoice.7".into()];
        })
    };
    let mut story = Story::of_plan(plan());
    assert_eq!(story.run.ready_task(&story.plan, 0).name, "invoice.5");
    let fence = story.claimed("a");
    assert_eq!(story.assignments[0].task.name, "invoice.5");
    let failure = Failure::new("busy", "later");
    let failed = TaskResult::Failed { failure, retryable: true, retry_after: None, took: Span(1) };
    story.report("a", fence, failed, 1);
    story.after("1h");
    assert_eq!(story.run.ready_task(&story.plan, 0).name, "invoice.5", "also of the next attempt");
    // A snapshot has it, too.
    let bytes = crate::wire::seal(&story.run.state);
    let run = Run::load(&story.plan, Some(&bytes), &[]).unwrap();
    assert_eq!(run.ready_task(&story.plan, 0).name, "invoice.5");
    // With a waiting worker it is leased at once.
    let story = Story::start(plan(), origin(), Admission::Open, vec![offer("w1")]);
    assert_eq!(story.assignments[0].task.name, "invoice.5");
    let nine = Origin { body: Payload::json(r#"{"id":9}"#), ..Default::default() };
    let other = Story::start(plan(), nine, Admission::Open, vec![offer("w1")]);
    assert_eq!(other.run.step(0).failure.as_ref().unwrap().code, "type_not_allowed");
    assert_eq!(other.run.step(0).failure.as_ref().unwrap().message, "`invoice.9` is not one of: invoice.5, invoice.7");
    assert_eq!(other.run.step(0).attempt, 0, "no worker was asked");
}

#[test]
fn the_input_of_a_worker_is_always_json() {
    let input_of = |plan: Plan, body: Payload| {
        let origin = Origin { body, ..Default::default() };
        let story = Story::start(plan, origin, Admission::Open, vec![offer("w1")]);
        String::from_utf8(story.assignments[0].task.input.to_vec()).unwrap()
    };
    assert_eq!(input_of(plain(|_, _| {}), Payload::json("null")), "null");
    assert_eq!(input_of(plain(|_, _| {}), Payload::sniff("not \"JSON\"")), r#""not \"JSON\"""#);
    assert_eq!(input_of(plan_of("a@task={{trigger.body.id}}"), Payload::json(r#"{"id":[5]}"#)), "[5]");
    let mut story = Story::of("a@task={{trigger.body.missing}}; b@task: a if tasks.a.status == 'template_error'");
    assert_eq!(story.statuses(), "a=template_error b=pending run=running");
    story.claimed("b");
}

#[test]
fn priority_and_key_come_from_the_step_or_else_from_the_run() {
    let wanted = |own: Option<u32>, key: &str, priority: Option<u32>| {
        let plan = shaped("a@task", |task, _| {
            task.priority = own;
            task.key = match key {
                "" => Vec::new(),
                key => vec![
                    template::Part { text: key.into(), ..Default::default() },
                    template::Part {
                        path: Some(path::Ref {
                            root: path::Root::TriggerBody,
                            keys: vec!["id".into()],
                            text: "trigger.body.id".into(),
                            ..Default::default()
                        }),
                        ..Default::default()
                    },
                ],
            };
        });
        let origin = Origin { priority, key: "of-the-run".into(), ..origin() };
        let mut story = Story::start(plan, origin, Admission::Open, Vec::new());
        let offered = story.wanted.borrow()[0].clone();
        assert_eq!(story.run.priority(&story.plan, 0), offered.2);
        assert_eq!(story.run.step(0).key, offered.1);
        story.claimed("a");
        assert_eq!(story.assignments[0].task.key, offered.1, "the key stays the same");
        offered
    };
    let work = |key: &str, priority| ("work.v1".to_owned(), key.to_owned(), priority);
    assert_eq!(wanted(None, "", None), work("of-the-run", 100));
    assert_eq!(wanted(None, "", Some(5)), work("of-the-run", 5));
    assert_eq!(wanted(Some(0), "customer-", Some(5)), work("customer-5", 0));
}

#[test]
fn a_retry_of_a_task_can_be_started_now() {
    let mut story = Story::of_plan(plain(|_, _| {}));
    let retry = || Input::RetryNow { step: Some(0), actor: "ada".into() };
    assert_eq!(story.give(retry()), Answer::Unknown, "it waits for a worker already");
    let fence = story.claimed("task");
    story.report("task", fence, failed(true, None), 11);
    assert_eq!(story.give(retry()), Answer::Applied);
    assert_eq!(story.enqueued, BTreeSet::from([0]));
    story.claimed("task");
    assert_eq!(story.run.step(0).attempt, 2);
}

#[test]
fn p9_a_restart_keeps_the_leases_of_workers() {
    let mut story = Story::of("a@task; b@task: a");
    let fence = story.claimed("a");
    let again = Run::load(&story.plan, None, &story.journal).unwrap();
    assert!(again.running().is_empty(), "no executor had it, so none lost it");
    let lease = again.leased().next().unwrap();
    assert_eq!((lease.step, lease.fence, lease.worker, lease.lease), (0, fence, "w1", LEASE));
    story.run = again;
    story.epoch = 2;
    assert_eq!(story.report("a", fence, done(json!(1)), 11), Answer::Applied);
}

/// Random inputs in random order: the checks of the harness hold, only the current fence is accepted, and the run
/// ends once workers cooperate.
#[test]
fn random_inputs_leave_every_run_valid() {
    for seed in 0..150 {
        let mut random = seed * 7_919 + 1;
        let mut draw = |below: u64| {
            random = crate::retry::seed(&[3; 16], seed as u32, random as u32);
            random % below
        };
        let plan = shaped(
            "a@task; b@task: a; c@task: a if tasks.a.status == 'failed'; d: b, c; e@task=x; z@sleep=5m",
            |task, retry| {
                (task.queue, task.attempt) = (Some(Span::from_secs(900)), Some(Span::from_secs(45)));
                (task.total, retry.max_attempts) = (Some(Span::from_secs(1_500)), 4);
            },
        );
        let mut story = Story::of_plan(plan);
        for digest in 1..120 {
            let step = [0, 1, 2, 4][draw(4) as usize];
            let fence = match draw(4) {
                0 => draw(40),
                _ => story.run.step(step).fence,
            };
            if draw(8) == 0 {
                story.offers.borrow_mut().push(offer("w2"));
            }
            let was = story.run.step(step).clone();
            let is_holder = matches!(was.phase, Phase::Leased { fence: current, .. } if current == fence);
            let result = |n| match n {
                0 => done(json!({ "n": 1 })),
                1 => failed(true, None),
                2 => failed(false, None),
                _ => TaskResult::snoozed(START.after(Span::from_secs(700))),
            };
            let input = match draw(11) {
                0..=3 => Input::Claim { step, offer: offer("w1") },
                4 | 5 => Input::Finished { step, fence, result: result(draw(4)), digest },
                6 => Input::Lost { step, fence },
                7 => Input::Heartbeat { step, fence, progress: (draw(2) == 0).then(|| Payload::json("7")) },
                8 => match story.executing.get("d").copied() {
                    Some((step, fence)) => Input::Finished { step, fence, result: response(200, json!(1)), digest: 0 },
                    None => Input::Wake,
                },
                9 if draw(6) == 0 => Input::Pause { actor: "ada".into(), note: String::new() },
                9 => Input::Resume { actor: "ada".into() },
                _ => {
                    story.after(&format!("{}s", draw(60)));
                    Input::Wake
                }
            };
            if draw(4) == 0 {
                story.give_all(vec![input, Input::Claim { step, offer: offer("w3") }, Input::Lost { step, fence }]);
                continue;
            }
            let by_fence = matches!(input, Input::Finished { .. } | Input::Lost { .. } | Input::Heartbeat { .. });
            let is_task = !matches!(input, Input::Finished { step: 3, .. });
            let answer = story.give(input);
            if by_fence && is_task && !is_holder {
                assert_ne!(answer, Answer::Applied, "seed {seed}: only the holder is accepted");
            }
        }
        story.give(Input::Resume { actor: "ada".into() });
        for _ in 0..60 {
            if story.run.is_terminal() {
                break;
            }
            for step in story.enqueued.clone() {
                story.give(Input::Claim { step, offer: offer("w1") });
            }
            for (step, fence) in story.leases.clone() {
                story.give(Input::Finished { step, fence, result: done(json!(1)), digest: 500 });
            }
            if let Some((step, fence)) = story.executing.get("d").copied() {
                story.give(Input::Finished { step, fence, result: response(200, json!(1)), digest: 0 });
            }
            story.after("5m");
        }
        assert!(story.run.is_terminal(), "seed {seed}: {}", story.statuses());
        assert!(story.leases.is_empty() && story.enqueued.is_empty());
    }
}
