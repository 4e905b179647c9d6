//! What people and other systems give to steps that wait for them: signals, decisions about approvals, resuming. And
//! the approvals that are open.

use super::run_queries::{Reading, UnreadableRun};
use super::runs::Runs;
use crate::error::Error;
use crate::secret;
use bytes::Bytes;
use kernel::advance::{ApprovalDecision, IncomingSignal};
use kernel::plan::Decision;
use kernel::run::{Phase, WaitKind};
use kernel::{Answer, Input, OrgId, Payload, RunId, RunStatus, Timestamp};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A signal for one run.
pub struct SignalRequest {
    pub name: String,
    pub body: Bytes,
    pub actor: String,
    /// Chosen by the sender: a signal with the same key arrives once.
    pub key: Option<String>,
}

/// A decision about an approval.
pub struct DecisionRequest {
    pub decision: Decision,
    pub actor: String,
    pub comment: String,
    /// Which approval of the run; not needed if only one is open.
    pub step: Option<String>,
    /// The same, by its token.
    pub token: Option<String>,
    /// [`OpenApproval::shown_hash`] as the actor saw it.
    pub shown_hash: Option<String>,
}

/// What became of a request to a waiting step.
pub struct Judged {
    pub answer: Answer,
    pub status: RunStatus,
    /// The step, if the request was about one.
    pub step: Option<String>,
}

/// An approval that no actor has decided.
pub struct OpenApproval {
    pub run: RunId,
    pub workflow: String,
    pub step: String,
    pub prompt: String,
    pub items: Value,
    pub approvers: Vec<String>,
    pub requested_at: Option<Timestamp>,
    pub deadline: Timestamp,
    pub token: String,
    /// A digest of the prompt and the items.
    pub shown_hash: String,
}

/// One page of open approvals, oldest run first.
pub struct OpenApprovals {
    pub approvals: Vec<OpenApproval>,
    pub unreadable: Vec<UnreadableRun>,
    pub next: Option<(RunId, u32)>,
}

impl Runs {
    /// Gives a signal to a run. It is kept until a step reads it.
    pub async fn signal(&self, org: OrgId, run: RunId, signal: SignalRequest) -> Result<(Answer, RunStatus), Error> {
        let SignalRequest { name, body, actor, key } = signal;
        let key = key.map_or(Bytes::new(), |key| digest(&[key.as_bytes()]));
        let fingerprint = digest(&[name.as_bytes(), &body]);
        let signal = IncomingSignal { name, body: Payload::json(body), actor, key, fingerprint };
        match self.give(org, run, Input::Signal(Box::new(signal))).await? {
            (Answer::Conflict, _) => Err(Error::KeyReused),
            answer => Ok(answer),
        }
    }

    /// Approves or denies. The first decision counts; the same one again changes nothing.
    pub async fn decide(&self, org: OrgId, run: RunId, request: DecisionRequest) -> Result<Judged, Error> {
        let mut reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        let mut wanted = wanted_step(&reading, &request);
        // Perhaps a repeat, about a step that has left the state with its iteration.
        if matches!(wanted, Err(Error::NoStep(_) | Error::NotFound(_))) && reading.lacks_steps() {
            reading = self.read_whole(org, reading).await?;
            wanted = wanted_step(&reading, &request);
        }
        let step = match wanted? {
            Some(step) => step,
            None if reading.run.is_terminal() => return Err(Error::Ended(reading.run.status())),
            None => return Err(Error::NothingWaits("an approval")),
        };
        let shown = shown_hash(&reading, step);
        if request.shown_hash.as_ref().is_some_and(|seen| *seen != shown) {
            return Err(Error::ApprovalChanged);
        }
        let DecisionRequest { decision, actor, comment, .. } = request;
        let verdict = ApprovalDecision { decision, actor, comment, shown };
        let (answer, status) = self.give(org, run, Input::Decide { step: Some(step), verdict }).await?;
        Ok(Judged { answer, status, step: Some(reading.key(step).into_owned()) })
    }

    /// Resumes what is paused: the run, or else its `pause` step. With `step`, that one.
    pub async fn resume_any(&self, org: OrgId, run: RunId, step: Option<&str>, actor: String) -> Result<Judged, Error> {
        let Some(name) = step else {
            let (answer, status) = self.resume(org, run, actor.clone()).await?;
            if answer != Answer::Repeated {
                return Ok(Judged { answer, status, step: None });
            }
            return match self.give(org, run, Input::Continue { step: None, actor }).await? {
                (Answer::Ambiguous, _) => {
                    let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
                    Err(Error::SeveralWait(keys(&reading, &waiting(&reading, WaitKind::Pause))))
                }
                // Neither the run nor a step of it was paused.
                (Answer::Unknown, status) => Ok(Judged { answer: Answer::Repeated, status, step: None }),
                (answer, status) => Ok(Judged { answer, status, step: None }),
            };
        };
        let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        let reading = self.with_step(org, reading, name).await?;
        let found = reading.run.find(&reading.version.plan, name).ok_or_else(|| Error::NoStep(name.to_owned()))?;
        let (answer, status) = self.give(org, run, Input::Continue { step: Some(found), actor }).await?;
        Ok(Judged { answer, status, step: Some(name.to_owned()) })
    }

    /// Approvals that wait for a decision, from the one after `after`.
    pub async fn open_approvals(
        &self,
        org: OrgId,
        after: Option<(RunId, u32)>,
        limit: usize,
    ) -> Result<OpenApprovals, Error> {
        let mut rows = self.core.store.open_waits(org, WaitKind::Approval, "", after, limit + 1).await?;
        let next = (rows.len() > limit).then(|| (rows[limit - 1].run, rows[limit - 1].step));
        rows.truncate(limit);
        let mut page = OpenApprovals { approvals: Vec::new(), unreadable: Vec::new(), next };
        let mut readings: BTreeMap<RunId, Option<Reading>> = BTreeMap::new();
        for row in rows {
            if let Entry::Vacant(entry) = readings.entry(row.run) {
                let read = match self.read(org, row.run).await {
                    Err(error) if error.is_unreadable_run() => {
                        page.unreadable.push(UnreadableRun { run: row.run, error });
                        None
                    }
                    read => read?,
                };
                entry.insert(read);
            }
            let reading = readings.get(&row.run).and_then(Option::as_ref);
            page.approvals.extend(reading.and_then(|reading| open_approval(reading, row.step)));
        }
        Ok(page)
    }
}

/// `None` if it was decided meanwhile.
fn open_approval(reading: &Reading, step: u32) -> Option<OpenApproval> {
    let state = reading.run.get(step)?;
    let Phase::Waiting { deadline } = state.phase else { return None };
    let gate = reading.run.node(&reading.version.plan, step).approval()?;
    let request = state.approval.as_deref()?;
    let key = reading.key(step).into_owned();
    Some(OpenApproval {
        run: reading.row.id,
        workflow: reading.row.workflow_name.clone(),
        prompt: request.prompt.clone(),
        items: request
            .items
            .as_ref()
            .map_or(Value::Null, |items| items.value(&reading.payloads).unwrap_or(Value::Null)),
        approvers: gate.approvers.clone(),
        requested_at: state.started_at,
        deadline,
        token: secret::approval_token(reading.row.id, &key),
        shown_hash: shown_hash(reading, step),
        step: key,
    })
}

/// The steps that wait for such a thing.
fn waiting(reading: &Reading, kind: WaitKind) -> Vec<u32> {
    let steps = reading.run.steps().filter(|(_, step)| matches!(step.phase, Phase::Waiting { .. }));
    let node = |step: u32| reading.run.node(&reading.version.plan, step);
    steps.map(|(step, _)| step).filter(|step| node(*step).wait_kind() == Some(kind)).collect()
}

fn keys(reading: &Reading, steps: &[u32]) -> Vec<String> {
    steps.iter().map(|step| reading.key(*step).into_owned()).collect()
}

/// The step that a decision is about; `None` if no step of the run asks or asked for one.
fn wanted_step(reading: &Reading, request: &DecisionRequest) -> Result<Option<u32>, Error> {
    let run = &reading.run;
    if let Some(name) = &request.step {
        return run.find(&reading.version.plan, name).map(Some).ok_or_else(|| Error::NoStep(name.clone()));
    }
    let asked = || run.steps().filter(|(_, step)| step.approval.is_some()).map(|(step, _)| step);
    if let Some(token) = &request.token {
        let has_token = |step: &u32| secret::approval_token(reading.row.id, &reading.key(*step)) == *token;
        return asked().find(has_token).map(Some).ok_or(Error::NotFound("approval"));
    }
    let open = waiting(reading, WaitKind::Approval);
    match open.as_slice() {
        [only] => Ok(Some(*only)),
        // Perhaps a repeat: if only one was ever asked for, it is meant.
        [] => Ok(asked().next().filter(|_| asked().count() == 1)),
        several => Err(Error::SeveralWait(keys(reading, several))),
    }
}

/// `sha256:<hex>` of the prompt and the items that approvers are shown.
fn shown_hash(reading: &Reading, step: u32) -> String {
    let request = reading.run.get(step).and_then(|state| state.approval.as_deref());
    let items = request.and_then(|request| request.items.as_ref()?.bytes(&reading.payloads).ok().cloned());
    let prompt = request.map_or("", |request| request.prompt.as_str());
    let hash = digest(&[prompt.as_bytes(), &items.unwrap_or_default()]);
    hash.iter().fold(String::from("sha256:"), |text, byte| text + &format!("{byte:02x}"))
}

/// SHA-256 of these parts and their lengths.
fn digest(parts: &[&[u8]]) -> Bytes {
    let hash = parts
        .iter()
        .fold(Sha256::new(), |hash, part| hash.chain_update((part.len() as u64).to_be_bytes()).chain_update(part));
    Bytes::copy_from_slice(&hash.finalize())
}
