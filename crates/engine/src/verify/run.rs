//! Checks of one run: its records are folded again from the first, and all its other rows must match the result.

use super::definitions::{NoPlan, PlanCache, hex};
use super::families::{self, Families, StartedChild};
use super::{Code, Counts, Problem, Report, history, rows};
use bytes::Bytes;
use kernel::payload::Payloads;
use kernel::plan::{Body, Form};
use kernel::run::{FORMAT, LoadError, Phase, Plans as RunPlans, State};
use kernel::{Context, Event, Input, Payload, Plan, Record, Run, RunId, Timestamp, advance, wire};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use store::Error;
use store::inspect::{Inspection, StoredRun};

pub(super) fn check(
    inspection: &dyn Inspection,
    plans: &mut PlanCache<'_>,
    stored: &StoredRun,
    families: &mut Families,
    report: &mut Report,
) -> Result<(), Error> {
    count(stored, &mut report.counts);
    let plan = plans.get(stored.row.org, stored.row.hash, stored.row.lowering)?;
    let earlier = earlier_plans(plans, stored)?;
    // A panic on unforeseen damage must not end the verification.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut case = Case { inspection, stored, plan: None, report: &mut *report };
        if let Some(why) = &stored.broken {
            case.say(Code::ChainBroken, why);
        }
        // The definition of a plain task is derived from its type and settings; it has no version rows.
        let has_versions = stored.row.form != Form::Task;
        if has_versions && stored.version != Some(stored.row.hash) {
            let message = match stored.version {
                None => format!("version {} of {} does not exist", stored.row.version, stored.row.workflow),
                Some(other) => format!("its version has the hash {}, the run {}", hex(&other), hex(&stored.row.hash)),
            };
            case.say(Code::VersionMissing, message);
        }
        match &plan {
            Ok(plan) if stored.broken.is_none() => {
                case.plan = Some(plan);
                let Ok(earlier) = &earlier else {
                    case.say(Code::DefinitionMissing, "the definition of a version that it had before does not exist");
                    families.cannot_be_read();
                    return Ok(());
                };
                let plans = earlier.iter().map(|(first, plan)| (*first, &**plan));
                return case.check(plan, &RunPlans::new(plans.collect()), families);
            }
            Err(NoPlan::Missing) => {
                case.say(Code::DefinitionMissing, format!("its definition {} does not exist", hex(&stored.row.hash)));
            }
            Ok(_) | Err(NoPlan::Damaged) => {}
        }
        families.cannot_be_read();
        Ok(())
    }));
    outcome.unwrap_or_else(|_| {
        Case { inspection, stored, plan: None, report }.say(Code::CheckFailed, "checking the run panicked");
        Ok(())
    })
}

/// PlanCache of a run, each with its first event.
type PlansFrom = Vec<(u64, Arc<Plan>)>;

/// The plans that the run had, as its records name them.
fn earlier_plans(plans: &mut PlanCache<'_>, stored: &StoredRun) -> Result<Result<PlansFrom, NoPlan>, Error> {
    let mut named = Vec::new();
    for (_, body) in &stored.records {
        // Damage is reported where the records are folded.
        let Ok(record) = Record::open(body) else { break };
        for (event, seq) in record.events.iter().zip(record.first..) {
            match event {
                Event::Created { origin } => named.push((0, origin.hash.clone(), origin.lowering)),
                Event::Moved { hash, lowering, .. } => named.push((seq, hash.clone(), *lowering)),
                _ => {}
            }
        }
    }
    if named.len() < 2 {
        // The row says it, and is compared with the records.
        named = vec![(0, Bytes::copy_from_slice(&stored.row.hash), stored.row.lowering)];
    }
    let mut found = Vec::new();
    for (first, hash, lowering) in named {
        let hash = <[u8; 32]>::try_from(&hash[..]).unwrap_or_default();
        match plans.get(stored.row.org, hash, lowering)? {
            Ok(plan) => found.push((first, plan)),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(found))
}

fn count(stored: &StoredRun, counts: &mut Counts) {
    counts.runs += 1;
    *counts.statuses.entry(stored.row.status).or_default() += 1;
    counts.records += stored.records.len() as u64;
    counts.snapshots += stored.snapshots.len() as u64;
    counts.timers += stored.timers.len() as u64;
    counts.waits += stored.waits.len() as u64;
    counts.ready += stored.ready.len() as u64;
    counts.payloads += stored.payloads.len() as u64;
    counts.labels += stored.labels.len() as u64;
    counts.keys += stored.keys.len() as u64;
}

/// The run that is being checked, and the report.
pub(super) struct Case<'a> {
    pub inspection: &'a dyn Inspection,
    pub stored: &'a StoredRun,
    plan: Option<&'a Plan>,
    report: &'a mut Report,
}

/// The state that the records of a run fold to.
#[derive(Default)]
pub(super) struct Folded {
    pub run: Run,
    /// Time of the last record.
    pub at: Timestamp,
    /// Stored payloads that events refer to: number and length.
    pub payloads: Vec<(u32, u64)>,
    /// The steps that wait for a callback, of those that were in the state after the record that opened them.
    pub callbacks: BTreeSet<u32>,
    /// Its last record moved it to another version.
    pub was_moved_last: bool,
    pub children: BTreeMap<RunId, StartedChild>,
    /// The events with which the run ended, each with the number of notifications that it causes.
    pub ends: Vec<(u64, u64)>,
}

impl Case<'_> {
    pub(super) fn say(&mut self, code: Code, message: impl Into<String>) {
        self.add(code, None, message.into());
    }

    pub(super) fn say_step(&mut self, code: Code, step: u32, message: impl Into<String>) {
        let key = self.plan.and_then(|plan| plan.nodes().get(step as usize)).map(|node| node.key.clone());
        self.add(code, Some(key.unwrap_or_else(|| format!("#{step}"))), message.into());
    }

    fn add(&mut self, code: Code, step: Option<String>, message: String) {
        let row = &self.stored.row;
        self.report.add(Problem { code, org: Some(row.org), run: Some(row.id), step, message });
    }

    fn check(&mut self, plan: &Plan, plans: &RunPlans<'_>, families: &mut Families) -> Result<(), Error> {
        let Some(folded) = self.fold(plans)? else {
            families.cannot_be_read();
            return Ok(());
        };
        rows::check(self, plan, &folded)?;
        families::check(self, families, &folded)?;
        self.check_unfinished(plan, folded);
        Ok(())
    }

    /// `None` when the records cannot be folded; the problem is then reported.
    fn fold(&mut self, plans: &RunPlans<'_>) -> Result<Option<Folded>, Error> {
        let mut folded = Folded::default();
        let stored = self.stored;
        for (number, (pos, body)) in (1..).zip(&stored.records) {
            let record = match Record::open(body) {
                Ok(record) => record,
                Err(wire::Error::Format(format)) => {
                    self.say(Code::RecordNewer, format!("record {number} has format {format}"));
                    return Ok(None);
                }
                Err(error @ wire::Error::Newer(_)) => {
                    self.say(Code::RecordNewer, format!("record {number}: {error}"));
                    return Ok(None);
                }
                Err(error) => {
                    self.say(Code::RecordDamaged, format!("record {number}: {error}"));
                    return Ok(None);
                }
            };
            if record.first != folded.run.state.seq + 1 || record.events.is_empty() {
                let (first, last, count) = (record.first, folded.run.state.seq, record.events.len());
                let message = format!("record {number} has {count} events from {first} on, after event {last}");
                self.say(Code::EventNumbers, message);
                return Ok(None);
            }
            if record.at < folded.at {
                let back = folded.at.since(record.at);
                self.say(Code::TimeBackwards, format!("record {number} is {back} older than the one before it"));
            }
            if !self.apply(plans, &mut folded, number, &record)? {
                return Ok(None);
            }
            self.compare_snapshot(number, *pos, &folded.run);
        }
        if let Some(snapshot) = stored.snapshots.iter().find(|s| s.seq == 0 || s.seq > stored.records.len() as u64) {
            let message = format!("a snapshot is of record {}, the last is {}", snapshot.seq, stored.records.len());
            self.say(Code::SnapshotDiffers, message);
        }
        Ok(Some(folded))
    }

    /// Folds one record; each event is checked before it is applied. False when the rest cannot be folded.
    fn apply(
        &mut self,
        plans: &RunPlans<'_>,
        folded: &mut Folded,
        number: u64,
        record: &Record,
    ) -> Result<bool, Error> {
        for (i, event) in record.events.iter().enumerate() {
            self.report.counts.events += 1;
            let seq = folded.run.state.seq + 1;
            let plan = plans.at(seq);
            let moment = history::EventInContext {
                before: plans.at(seq - 1),
                plan,
                run: &folded.run,
                event,
                at: record.at,
                later: &record.events[i + 1..],
            };
            if !history::check_event(self, &moment)? {
                return Ok(false);
            }
            folded.payloads.extend(payloads(event).into_iter().filter_map(|p| Some((p.stored?, p.len))));
            match folded.run.apply(plan, event, record.at) {
                Ok(()) if event.is_end() => {
                    let count = advance::notifications(plan, &folded.run).len() as u64;
                    folded.ends.push((folded.run.state.seq, count));
                }
                Ok(()) => {}
                Err(LoadError::Newer) => {
                    self.say(Code::RecordNewer, format!("record {number} has an event of a later release"));
                    return Ok(false);
                }
                Err(LoadError::Damaged(what)) => {
                    self.say(Code::EventOutOfPlace, format!("record {number}: {what}"));
                    return Ok(false);
                }
            }
        }
        record.events.iter().for_each(|event| families::note(&mut folded.children, event));
        let plan = plans.at(folded.run.state.seq);
        let takes_callbacks = |step: &u32| {
            folded
                .run
                .get(*step)
                .is_some_and(|_| matches!(folded.run.node(plan, *step).body, Some(Body::Webhook { .. })))
        };
        let opened = record.events.iter().flat_map(|event| match event {
            Event::Created { .. } => 0..plan.root().len() as u32,
            Event::Opened { step, .. } => *step..*step + 1,
            _ => 0..0,
        });
        let callbacks: Vec<u32> = opened.filter(takes_callbacks).collect();
        folded.callbacks.extend(callbacks);
        folded.was_moved_last = record.events.iter().any(|event| matches!(event, Event::Moved { .. }));
        folded.at = record.at;
        Ok(true)
    }

    fn compare_snapshot(&mut self, number: u64, pos: i64, run: &Run) {
        let stored = self.stored;
        for snapshot in stored.snapshots.iter().filter(|snapshot| snapshot.seq == number) {
            let what = match wire::open::<State>(FORMAT, &snapshot.body) {
                Err(error) => error.to_string(),
                Ok(_) if snapshot.pos != pos => {
                    format!("the snapshot has record {number} at position {}, it is at {pos}", snapshot.pos)
                }
                Ok(state) if state != run.state => format!("the snapshot is not the state after record {number}"),
                Ok(_) => continue,
            };
            self.say(Code::SnapshotDiffers, what);
        }
    }

    /// No decision is left over after the last record, with a few exceptions, which the next process handles because the
    /// row says `running`: decisions that wait for a stored payload (no payload is given here, so none is due), and
    /// steps that a stopping server left ready.
    fn check_unfinished(&mut self, plan: &Plan, folded: Folded) {
        if !folded.run.index_matches_state(plan) {
            self.say(Code::CheckFailed, "its index is not what its state says");
        }
        // What follows from a move is decided in the next record.
        if folded.run.is_terminal() || folded.was_moved_last {
            return;
        }
        self.check_unread_signals(plan, &folded.run);
        let decided = |is_draining| {
            let payloads = Payloads::new();
            let context = Context { is_draining, ..context(self.stored, folded.at, &payloads) };
            let advanced = advance(plan, &mut folded.run.clone(), vec![Input::Wake], &context);
            advanced.record.map(|record| record.events).unwrap_or_default()
        };
        // A stopping server does not start ready steps, but it schedules a step without reading its payload. So check
        // what a server that is not stopping would do with the scheduled ones.
        let mut due = decided(true);
        if due.iter().any(|event| matches!(event, Event::Scheduled { .. })) {
            let acting = decided(false);
            let has_moved = |step: &Option<u32>| acting.iter().any(|event| event.step() == *step);
            due.retain(|event| !matches!(event, Event::Scheduled { .. }) || has_moved(&event.step()));
        }
        if !due.is_empty() {
            let names: Vec<&str> = due.iter().filter_map(Event::name).collect();
            self.say(Code::Unfinished, format!("events that are due: {}", names.join(", ")));
        }
    }

    /// M20: no step waits for a signal that is already there. Only the arrival of either gives it to the step.
    fn check_unread_signals(&mut self, plan: &Plan, run: &Run) {
        let waiting = run.steps().filter(|(_, state)| matches!(state.phase, Phase::Waiting { .. }));
        for (step, _) in waiting {
            if let Some(Body::Signal { name, .. }) = &run.node(plan, step).body
                && run.state.signals.iter().any(|signal| signal.name == *name)
            {
                self.say_step(Code::Unfinished, step, format!("it waits for the signal `{name}`, which has arrived"));
            }
        }
    }

    pub(super) fn payload(&self, number: u32) -> Result<Option<Bytes>, Error> {
        self.inspection.payload(self.stored.row.org, self.stored.row.id, number)
    }
}

/// A context for checks only: it has no secret, so its callback URLs are not real.
pub(super) fn context<'a>(stored: &StoredRun, now: Timestamp, payloads: &'a Payloads) -> Context<'a> {
    let wait_url = &|_: &str| "http://callback".to_owned();
    Context {
        run: stored.row.id,
        now,
        epoch: 0,
        is_draining: false,
        wait_url,
        payloads,
        offer: &|_| None,
        hold: &|_| None,
    }
}

/// The payloads of an event.
fn payloads(event: &Event) -> Vec<&Payload> {
    match event {
        Event::Created { origin } => vec![&origin.body],
        Event::Succeeded { response, .. } => response.body.iter().collect(),
        Event::Failed { response, .. } => response.iter().flat_map(|response| &response.body).collect(),
        Event::Received { callback, .. } => callback.iter().map(|callback| &callback.body).collect(),
        Event::WaitClosed { callback, .. } => vec![&callback.body],
        Event::Progress { progress, .. } => vec![progress],
        Event::LoopStarted { pages, .. } => pages.values().collect(),
        Event::SignalReceived { body, .. } => vec![body],
        Event::ApprovalRequested { items, .. } => items.iter().collect(),
        Event::RunFinished { output } => vec![output],
        Event::Returned { response, .. } => response.iter().flat_map(|response| &response.body).collect(),
        Event::Copied { ended, .. } => ended.payloads().collect(),
        _ => Vec::new(),
    }
}
