//! Parents and children: what the records of one run say about another run.
//!
//! A parent's record names each child that it starts, and a child's first record names its parent. Between the two, rows
//! of the inbox travel: the start of a child, the news of its end, the end of its parent. Whatever one side waits for must
//! exist, be on its way, or have been told.

use super::run::{Case, Folded};
use super::{Code, Report};
use kernel::inbox::{InboxKind, StoredInput};
use kernel::run::Phase;
use kernel::{Event, Input, Run, RunId, RunStatus};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use store::Error;
use store::inspect::Relative;

/// A child that a run has started.
#[derive(Clone, Copy)]
pub(super) struct StartedChild {
    step: u32,
    attempt: u32,
    is_detached: bool,
    is_closed_with_parent: bool,
    has_ended: bool,
}

/// Collects the children of a run, in the order of its events.
pub(super) fn note(children: &mut BTreeMap<RunId, StartedChild>, event: &Event) {
    match *event {
        Event::ChildStarted { step, attempt, child, is_detached, is_closed_with_parent, .. } => {
            let started = StartedChild { step, attempt, is_detached, is_closed_with_parent, has_ended: false };
            children.insert(child, started);
        }
        Event::ChildEnded { child, status: Some(_), .. } => {
            children.entry(child).and_modify(|started| started.has_ended = true);
        }
        _ => {}
    }
}

/// M17: the children that exist are those that their parents asked for, each once. Deleted runs do not count. Only sums
/// are kept, so that memory does not grow with the store.
#[derive(Default)]
pub(super) struct Families {
    asked_for: ChildTally,
    found: ChildTally,
    /// Runs whose records could not be read. With one, the sums say nothing.
    unread: u64,
}

#[derive(Default, PartialEq)]
struct ChildTally {
    count: u64,
    sum: u64,
}

impl ChildTally {
    fn add(&mut self, parent: RunId, step: u32, attempt: u32, child: RunId) {
        let mut hasher = DefaultHasher::new();
        (parent.0, step, attempt, child.0).hash(&mut hasher);
        self.count += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

impl Families {
    pub(super) fn cannot_be_read(&mut self) {
        self.unread += 1;
    }

    pub(super) fn end(&self, report: &mut Report) {
        if self.asked_for != self.found && self.unread == 0 {
            let (found, asked_for) = (self.found.count, self.asked_for.count);
            let message = format!("{found} children exist; of those that parents asked for, {asked_for} do");
            report.say(Code::ChildStray, None, message);
        }
    }
}

pub(super) fn check(case: &mut Case<'_>, families: &mut Families, folded: &Folded) -> Result<(), Error> {
    let (inspection, org, id) = (case.inspection, case.stored.row.org, case.stored.row.id);
    let run = &folded.run;
    if let Some(parent) = &run.state.origin.parent
        && inspection.relative(org, parent.run)?.status.is_some()
    {
        families.found.add(parent.run, parent.step, parent.attempt, id);
    }
    if folded.children.is_empty() {
        return Ok(());
    }
    let news = News::read(&inspection.relative(org, id)?);
    for (child, started) in &folded.children {
        let relative = inspection.relative(org, *child)?;
        if relative.status.is_some() {
            families.asked_for.add(id, started.step, started.attempt, *child);
        }
        let is_requested = relative.inbox.iter().any(|row| row.kind == InboxKind::StartChild);
        let is_waited_for = waits_for(run, *child, *started) && !news.0.contains(&(started.step, started.attempt));
        match relative.status {
            None if is_waited_for && !is_requested => {
                case.say_step(Code::ChildMissing, started.step, format!("it waits for {child}"));
            }
            Some(status) if is_waited_for && (started.is_detached || status.is_terminal()) => {
                case.say_step(Code::ChildEndLost, started.step, format!("it waits for {child}, which is {status}"));
            }
            _ => {}
        }
        let is_open = match relative.status {
            Some(status) => !status.is_terminal() && !matches!(status, RunStatus::Cancelling | RunStatus::Compensating),
            None => is_requested,
        };
        if is_open && must_be_closed(run, *child, *started) && !is_told_of_close(&relative, id) {
            let message = format!("{child} goes on, and its parent is {}", run.status());
            case.say_step(Code::ChildLeft, started.step, message);
        }
    }
    Ok(())
}

/// The steps and attempts about whose children there are rows for a run.
struct News(Vec<(u32, u32)>);

impl News {
    fn read(parent: &Relative) -> News {
        let inputs = inputs(parent).filter_map(|input| match input {
            Input::ChildBegan { step, attempt } | Input::ChildEnded { step, attempt, .. } => Some((step, attempt)),
            _ => None,
        });
        News(inputs.collect())
    }
}

fn inputs(of: &Relative) -> impl Iterator<Item = Input> + '_ {
    let rows = of.inbox.iter().filter(|row| row.kind == InboxKind::Input);
    rows.filter_map(|row| StoredInput::open(&row.body).ok())
}

fn waits_for(run: &Run, child: RunId, started: StartedChild) -> bool {
    let Some(step) = run.get(started.step).filter(|_| !run.is_terminal()) else { return false };
    let is_link = step.child.as_ref().is_some_and(|link| link.run == child && link.status.is_none());
    let is_called_off = run.state.called_off.contains_key(&started.step);
    (matches!(step.phase, Phase::Child {}) || is_called_off) && is_link
}

/// M19: the child ends with its parent, or with the step that waited for it.
fn must_be_closed(run: &Run, child: RunId, started: StartedChild) -> bool {
    let has_lost_its_step = !started.is_detached && !waits_for(run, child, started);
    let is_cancelled = !started.is_detached
        && (run.status() == RunStatus::Cancelling || run.state.called_off.contains_key(&started.step));
    started.is_closed_with_parent && !started.has_ended && (run.is_terminal() || is_cancelled || has_lost_its_step)
}

fn is_told_of_close(child: &Relative, by: RunId) -> bool {
    inputs(child).any(|input| matches!(input, Input::ParentClosed { parent, .. } if parent == by))
}
