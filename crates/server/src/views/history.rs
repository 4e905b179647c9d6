//! A run as it was at an earlier event, and what changed since.

use super::{error, failure, output};
use api::{AsOfView, EventRefView, RunDiffView, RunMomentView, StepChangeView, StepMomentView, rfc3339};
use engine::run_diff::{StepMoment, changed_steps};
use engine::services::{Reading, RunHistory, StoredEvent};
use kernel::Plan;

/// The most steps and events that a comparison lists.
const STEPS_MAX: usize = 1_000;
pub const EVENTS_MAX: usize = 100;

pub fn as_of(history: &RunHistory, event: &StoredEvent) -> AsOfView {
    AsOfView { event: event_ref(&history.versions.at(event.seq).plan, event), last_seq: history.last_seq }
}

fn event_ref(plan: &Plan, stored: &StoredEvent) -> EventRefView {
    EventRefView {
        seq: stored.seq,
        at: rfc3339(stored.at),
        kind: stored.event.name().unwrap_or("unknown").to_owned(),
        step: stored.step_key(plan).map(|key| key.into_owned()),
    }
}

/// A whole run right after an event.
pub struct Moment {
    pub event: StoredEvent,
    pub reading: Reading,
}

/// What changed between two moments. `events` are the first ones after the earlier moment.
pub fn diff(history: &RunHistory, from: &Moment, to: &Moment, events: &[StoredEvent]) -> RunDiffView {
    let plan = |seq: u64| &*history.versions.at(seq).plan;
    let order = to.reading.version.order.iter().filter_map(|node| to.reading.run.step_in(None, *node));
    let changes = changed_steps(&from.reading.run, &to.reading.run, &order.collect::<Vec<_>>());
    let change = |change: &engine::run_diff::StepChange<'_>| StepChangeView {
        step: to.reading.key(change.step).into_owned(),
        from: change.from.as_ref().map(step_moment),
        to: step_moment(&change.to),
    };
    let (mut before, mut after) = (run_moment(plan(from.event.seq), from), run_moment(plan(to.event.seq), to));
    if before.output == after.output {
        (before.output, after.output) = (None, None);
    }
    if before.error == after.error {
        (before.error, after.error) = (None, None);
    }
    RunDiffView {
        run_id: history.row.id.to_string(),
        from: before,
        to: after,
        last_seq: history.last_seq,
        steps: changes.iter().take(STEPS_MAX).map(change).collect(),
        changed_steps: changes.len(),
        events: events.iter().map(|event| event_ref(plan(event.seq), event)).collect(),
        event_count: to.event.seq - from.event.seq,
    }
}

fn run_moment(plan: &Plan, moment: &Moment) -> RunMomentView {
    let reading = &moment.reading;
    RunMomentView {
        event: event_ref(plan, &moment.event),
        status: reading.run.status().as_str().into(),
        output: reading.run.state.output.is_some().then(|| output(reading)),
        error: error(reading),
    }
}

fn step_moment(step: &StepMoment<'_>) -> StepMomentView {
    StepMomentView {
        status: step.status.as_str().into(),
        attempt: step.attempt,
        status_code: step.status_code,
        started_at: step.started_at.map(rfc3339),
        finished_at: step.finished_at.map(rfc3339),
        until: step.until.map(rfc3339),
        error: step.failure.map(|why| failure(why, None)),
    }
}
