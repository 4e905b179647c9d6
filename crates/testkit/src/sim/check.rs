//! What must hold after every commit, read from the store and from nowhere else.
//!
//! The checker keeps what it saw of each run and compares: records only grow (I4), the rows are the
//! fold of the records (I5), the events are legal (see [`model`](super::model)), an unchanged run stays
//! as it is (I10), a run that is not over has something to wake it (I12), and no effect happens before
//! its intent is durable or after its step is done (I7, I8, I35).

use super::model::Model;
use super::shape::Shape;
use super::trace::Marks;
use super::upstream;
use super::{Judgement, require};
use bytes::Bytes;
use engine::Version;
use engine::mailbox::Dispatch;
use kernel::event::Event;
use kernel::{Context, Input, Payload, Payloads, Record, Run, RunId, Timestamp, advance};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use store::memory::StoredRun;

/// One edition of a workflow, as both sides know it.
#[derive(Clone)]
pub struct Definition {
    pub shape: Rc<Shape>,
    pub version: Arc<Version>,
}

#[derive(Default)]
pub struct Checker {
    /// Runs that may come to exist.
    runs: BTreeMap<RunId, Followed>,
    /// Attempts that reached an executor.
    executed: BTreeSet<(RunId, u64)>,
    pub commits: u64,
    /// How often each event was read.
    pub events: Marks,
}

struct Followed {
    definition: Definition,
    model: Model,
    records: Vec<Bytes>,
    /// The latest fold; `None` until the run exists.
    run: Option<Run>,
    newest_at: Timestamp,
    /// Dispatch intents: step and attempt by fence.
    intents: BTreeMap<u64, (u32, u32)>,
    /// The process that each step was last given to.
    holders: BTreeMap<u32, u64>,
}

impl Checker {
    /// Somebody is about to ask for this run.
    pub fn expect(&mut self, run: RunId, definition: Definition, flag: bool, is_large: bool) {
        let model = Model::new(definition.shape.clone(), flag, is_large);
        let followed = Followed {
            definition,
            model,
            records: Vec::new(),
            run: None,
            newest_at: Timestamp::default(),
            intents: BTreeMap::new(),
            holders: BTreeMap::new(),
        };
        self.runs.insert(run, followed);
    }

    /// The run as it is stored, if it is.
    pub fn stored(&self, run: RunId) -> Option<&Run> {
        self.runs.get(&run)?.run.as_ref()
    }

    /// Runs that exist and are not over.
    pub fn open(&self) -> impl Iterator<Item = (RunId, &Definition, &Run)> {
        let existing = self.runs.iter().filter_map(|(id, f)| Some((*id, &f.definition, f.run.as_ref()?)));
        existing.filter(|(.., run)| !run.is_terminal())
    }

    /// A commit by process `writer` may have touched this run.
    pub fn committed(&mut self, stored: &StoredRun, writer: u64) -> Judgement {
        self.commits += 1;
        let followed = self.runs.get_mut(&stored.row.id).ok_or("nobody asked for this run")?;
        followed.read_on(stored, writer, &mut self.events)?;
        followed.compare(stored)
    }

    /// An executor is being given work. `is_newest` when no later process has been started: an older
    /// one cannot know what a newer one did in the meantime.
    pub fn executed(&mut self, dispatch: &Dispatch, is_newest: bool) -> Judgement {
        let Dispatch { run, step, attempt, fence, .. } = dispatch;
        let followed = self.runs.get(run).ok_or("work for a run nobody asked for")?;
        let intent = followed.intents.get(fence);
        require(intent == Some(&(*step, *attempt)), || format!("work for s{step} without a durable intent"))?;
        require(self.executed.insert((*run, *fence)), || format!("attempt {attempt} of s{step} was handed out twice"))?;
        let is_done = is_newest && followed.model.is_done(*step);
        require(!is_done, || format!("s{step} is executed again after its completion"))
    }
}

impl Followed {
    /// Takes in the records that are new.
    fn read_on(&mut self, stored: &StoredRun, writer: u64, events: &mut Marks) -> Judgement {
        let known = self.records.len();
        require(stored.records.get(..known) == Some(&self.records[..]), || "a record was changed or removed".into())?;
        for bytes in &stored.records[known..] {
            let record = Record::open(bytes).map_err(|e| format!("a record cannot be read: {e}"))?;
            let seq = self.run.as_ref().map_or(0, |run| run.state.seq);
            require(record.first == seq + 1, || format!("event {} follows event {seq}", record.first))?;
            require(!record.events.is_empty(), || "a record says nothing".into())?;
            require(record.at >= self.newest_at, || "engine time ran backwards".into())?;
            self.newest_at = record.at;
            for (event, number) in record.events.iter().zip(record.first..) {
                self.model.observe(event, record.at)?;
                self.holds_fence(event, stored)?;
                *events.entry(event.name().unwrap_or("unknown")).or_default() += 1;
                self.is_entitled(event, writer)?;
                if let Event::Started { step, attempt, epoch, .. } = event {
                    self.intents.insert(number, (*step, *attempt));
                    self.holders.insert(*step, *epoch);
                }
            }
            self.model.rest()?;
            self.records.push(bytes.clone());
            self.run = Some(fold(&self.definition, None, &self.records)?);
        }
        Ok(())
    }

    /// I14: a process gives work to itself, and takes it only from those before it.
    fn is_entitled(&self, event: &Event, writer: u64) -> Judgement {
        match event {
            Event::Started { step, epoch, .. } => {
                require(*epoch == writer, || format!("process {writer} gives s{step} to process {epoch}"))
            }
            Event::Retrying { step, charged: false, .. } => {
                let holder = self.holders.get(step).copied().unwrap_or_default();
                require(holder <= writer, || format!("process {writer} takes s{step} from its successor {holder}"))
            }
            _ => Ok(()),
        }
    }

    /// I7, I15: what an upstream answered counts for the attempt it was asked in, and for no other.
    fn holds_fence(&self, event: &Event, stored: &StoredRun) -> Judgement {
        let (step, attempt, response) = match event {
            Event::Succeeded { step, attempt, response, .. } => (step, attempt, Some(response)),
            Event::Failed { step, attempt, response, .. } => (step, attempt, response.as_ref()),
            _ => return Ok(()),
        };
        let Some(body) = response.filter(|r| r.status_code.is_some()).and_then(|r| r.body.as_ref()) else {
            return Ok(());
        };
        let bytes = match body.stored {
            None => &body.inline,
            Some(number) => stored.payloads.get(&number).ok_or("a payload is not stored with its event")?,
        };
        let intent = upstream::fence(bytes).and_then(|fence| self.intents.get(&fence));
        require(intent == Some(&(*step, *attempt)), || {
            format!("attempt {attempt} of s{step} ends with another's answer")
        })
    }

    /// The rows against the records.
    fn compare(&self, stored: &StoredRun) -> Judgement {
        let run = self.run.as_ref().ok_or("a run without records")?;
        if let Some((seq, snapshot)) = &stored.snapshot {
            let tail = fold(&self.definition, Some(snapshot), &self.records[*seq as usize..])?;
            require(tail.state == run.state, || "the snapshot and the records disagree".into())?;
        }
        for payload in payloads(run) {
            let bytes = payload.stored.map_or(Some(&payload.inline), |number| stored.payloads.get(&number));
            let is_whole = bytes.is_some_and(|bytes| bytes.len() as u64 == payload.len);
            require(is_whole, || format!("a payload of {} bytes is lost", payload.len))?;
        }
        let plan = &self.definition.version.plan;
        require(run.index_is_true(plan), || "the index is not what the state says".into())?;
        let (row, status) = (&stored.row, run.status());
        require(row.status == status, || format!("the row says {}, the records {status}", row.status))?;
        require(row.finished_at == run.state.finished_at, || "the row has another end than the records".into())?;
        let due = run.next_due().filter(|_| status.is_parked());
        require(row.wake_at == due, || format!("the row wakes at {:?}, the run is due at {due:?}", row.wake_at))?;
        let timers: Vec<Timestamp> = stored.timers.iter().copied().collect();
        require(timers == Vec::from_iter(due), || format!("timer rows {timers:?} for a run that is due at {due:?}"))?;
        let has_source = status.is_terminal() || due.is_some() || !run.running().is_empty() || run.has_undecided();
        let is_fetching = run.next_due().is_some_and(|at| at <= self.newest_at);
        require(has_source || is_fetching, || "nothing will ever wake this run".into())?;
        self.stays_as_it_is(run)
    }

    /// I10: with nothing new, nothing happens.
    fn stays_as_it_is(&self, run: &Run) -> Judgement {
        let wait_url = |key: &str| key.to_owned();
        let context = Context {
            run: RunId::default(),
            now: self.newest_at,
            epoch: u64::MAX,
            is_draining: false,
            wait_url: &wait_url,
            payloads: &Payloads::new(),
        };
        let again = advance(&self.definition.version.plan, &mut run.clone(), vec![Input::Wake], &context);
        require(again.record.is_none(), || format!("an unchanged run went on: {:?}", again.record))
    }
}

fn payloads(run: &Run) -> impl Iterator<Item = &Payload> {
    let steps = || run.state.steps.iter();
    let responses = steps().filter_map(|step| step.response.as_ref()?.body.as_ref());
    let callbacks = steps().filter_map(|step| Some(&step.callback.as_ref()?.body));
    std::iter::once(&run.state.origin.body).chain(responses).chain(callbacks)
}

pub fn fold(definition: &Definition, snapshot: Option<&Bytes>, records: &[Bytes]) -> Result<Run, String> {
    let folded = Run::load(&definition.version.plan, snapshot.map(|s| &s[..]), records);
    folded.map_err(|e| format!("the records do not fold: {e:?}"))
}
