//! States that clients seldom see, because a run passes them quickly or because something is wrong with the node: told
//! as events. The others are in the black-box tests of the binary.

use super::*;
use crate::version::Version;
use kernel::event::Origin;
use kernel::plan::Form;
use kernel::{Event, OrgId, Payloads, Run, Span, WorkflowId};
use std::sync::Arc;
use store::RunRow;

const NOW: Timestamp = Timestamp(1_000_000_000_000);

/// The run that these events made.
fn told(tasks: &str, events: Vec<Event>) -> Reading {
    let text = format!("name: w\ntasks: {tasks}");
    let tree = lang::read(text.as_bytes(), lang::Syntax::Yaml).expect("YAML");
    let plan = Arc::new(lang::compile(&tree).expect("a definition").plan);
    let mut run = Run::default();
    let created = Event::Created { origin: Box::new(Origin::default()) };
    for event in std::iter::once(created).chain(events) {
        run.apply(&plan, &event, NOW).expect("the events fit");
    }
    let row = RunRow {
        org: OrgId::DEFAULT,
        id: RunId([1; 16]),
        workflow: WorkflowId([1; 16]),
        workflow_name: "w".into(),
        version: 1,
        hash: [0; 32],
        lowering: 1,
        form: Form::Graph,
        status: run.status(),
        waiting: 0,
        wake_at: None,
        created_at: NOW,
        expires_at: Timestamp::NEVER,
        finished_at: None,
        error_code: None,
        failed_steps: None,
        concurrency_group: None,
        evicted: false,
        deleted_at: None,
    };
    let version = Version {
        org: row.org,
        workflow: row.workflow,
        name: row.workflow_name.clone(),
        number: 1,
        hash: row.hash,
        lowering: 1,
        order: (0..plan.root().len() as u32).collect(),
        plan,
        input: Default::default(),
    };
    let version = Arc::new(version);
    let versions = crate::version::RunVersions::only(version.clone());
    Reading { row, version, versions, run, payloads: Payloads::new() }
}

fn explained(reading: &Reading, facts: &ExplainFacts<'_>) -> Explanation {
    explain(reading, facts, None).expect("the run has an explanation")
}

fn actions(cause: &Cause) -> Vec<&str> {
    cause.next_actions.iter().map(|action| action.action).collect()
}

fn child_started(step: u32, child: RunId) -> Event {
    Event::ChildStarted {
        step,
        attempt: 1,
        child,
        workflow: "other".into(),
        is_detached: false,
        is_closed_with_parent: false,
        seen: Vec::new(),
    }
}

#[test]
fn a_run_that_is_being_cancelled_waits_for_its_children() {
    let child = RunId([2; 16]);
    let cancelling = Event::RunCancelling { actor: "ada".into(), reason: "wrong".into() };
    let reading = told("{ call: { subworkflow: other } }", vec![child_started(0, child), cancelling]);
    let explanation = explained(&reading, &ExplainFacts::default());
    let first = explanation.first();
    assert_eq!((first.reason, actions(first)), (Reason::Cancelling, vec!["wait"]));
    assert_eq!(first.summary, format!("the run was cancelled, and ends when {child} has"));
    assert_eq!(first.details["children"], json!([child.to_string()]));
}

#[test]
fn a_run_and_a_step_that_nothing_has_begun_yet() {
    let reading = told("{ a: { noop: {} } }", vec![]);
    let explanation = explained(&reading, &ExplainFacts::default());
    let first = explanation.first();
    assert_eq!((first.reason, actions(first)), (Reason::PendingDispatch, vec!["wait", "cancel"]));

    let scheduled =
        Event::Scheduled { step: 0, attempt: 1, seen: Vec::new(), key: String::new(), of_type: String::new() };
    let reading = told("{ a: { noop: {} } }", vec![scheduled]);
    let explanation = explained(&reading, &ExplainFacts::default());
    let first = explanation.first();
    assert_eq!((first.reason, actions(first)), (Reason::StepScheduled, vec!["wait", "cancel"]));
}

#[test]
fn a_node_with_a_wrong_clock_says_that_it_fires_no_timers() {
    let until = NOW.after(Span::from_secs(60));
    let timer = Event::TimerSet { step: 1, at: until, seen: Vec::new() };
    let started = Event::Started { step: 0, attempt: 1, epoch: 1, seen: Vec::new() };
    let reading = told("{ a: { noop: {} }, nap: { sleep: 1m } }", vec![started, timer]);
    let report = "this machine's clock is 40s ahead of the database's clock".to_owned();
    let facts = ExplainFacts { clock: Some(report.clone()), ..ExplainFacts::default() };
    let explanation = explained(&reading, &facts);
    let first = explanation.first();
    assert_eq!((first.step.as_deref(), first.urgency), (Some("nap"), Urgency::Blocked));
    let says = format!("`nap` sleeps until {until}; this node fires no timers and leases no tasks: {report}");
    assert_eq!(first.summary, says);
    assert_eq!(first.chain.last().map(|link| (link.what, link.summary.as_str())), Some(("clock", report.as_str())));
    assert_eq!(first.details["clock"], json!(report));
    assert_eq!(explanation.causes[1].step.as_deref(), Some("a"), "what runs needs no timer");
}

#[test]
fn a_step_is_as_urgent_as_the_run_it_waits_for() {
    let (slow, broken) = (RunId([2; 16]), RunId([3; 16]));
    let events = vec![child_started(0, slow), child_started(1, broken)];
    let reading = told("{ a: { subworkflow: other }, b: { subworkflow: other } }", events);
    let cause = |urgency| Cause {
        urgency,
        ..explained(&told("{ x: { noop: {} } }", vec![]), &ExplainFacts::default()).causes.remove(0)
    };
    let children = BTreeMap::from([(slow, cause(Urgency::Until(NOW))), (broken, cause(Urgency::NoWorker))]);
    let facts = ExplainFacts { children: Some(&children), ..ExplainFacts::default() };
    let steps: Vec<Option<String>> = explained(&reading, &facts).causes.into_iter().map(|cause| cause.step).collect();
    assert_eq!(steps, [Some("b".into()), Some("a".into())]);
    // A child that was not read is one that is at work.
    let steps: Vec<Option<String>> =
        explained(&reading, &ExplainFacts::default()).causes.into_iter().map(|cause| cause.step).collect();
    assert_eq!(steps, [Some("a".into()), Some("b".into())]);
}

#[test]
fn the_most_urgent_cause_is_first() {
    let at = |seconds| Urgency::Until(Timestamp(seconds));
    let mut causes =
        [Urgency::AtWork, at(9), Urgency::Decision, at(3), Urgency::NoWorker, Urgency::Failed, Urgency::Blocked];
    causes.sort();
    let expected =
        [Urgency::Failed, Urgency::Blocked, Urgency::NoWorker, Urgency::Decision, at(3), at(9), Urgency::AtWork];
    assert_eq!(causes, expected);
}

#[test]
fn times_are_said_roughly() {
    let said = |seconds| remaining(NOW, NOW.after(Span::from_secs(seconds)));
    let times = [0, 40, 119, 120, 300, 7_199, 7_200, 86_400, 172_800].map(said);
    assert_eq!(times, ["0 s", "40 s", "119 s", "2 min", "5 min", "119 min", "2 h", "24 h", "2 days"]);
}
