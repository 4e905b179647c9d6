//! Retry of a run: an open one makes the attempts that it waits for now; one that failed or timed out goes on in place
//! (M28).
//!
//! Which steps run again is the kernel's answer, see [`repair`](kernel::advance::repair): to the dry run here, and once
//! more to the input, when the run may have changed.

use super::runs::Runs;
use crate::error::Error;
use crate::services::run_queries::Reading;
use kernel::advance::repair;
use kernel::event::OnConflict;
use kernel::run::Phase;
use kernel::{Admission, Answer, Input, OrgId, RunId, RunStatus};

/// How often a run is read again that changes between reading it and deciding about it.
pub(super) const TRIES_MAX: u32 = 5;

/// A request to retry a run.
#[derive(Clone, Debug, Default)]
pub struct RetryRun {
    /// Of an open run: only this step.
    pub step: Option<String>,
    /// Of a run that has ended: this step runs again, too, and so does what depends on it.
    pub from: Option<String>,
    pub allow_irreversible: bool,
    pub actor: String,
    pub reason: String,
}

/// What a request would lead to. Keys of steps; nothing of it has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rehearsal {
    /// The steps that would run.
    pub would_run: Vec<String>,
    /// Those of them that ran before.
    pub would_repeat: Vec<String>,
}

impl Runs {
    /// Retries a run; answers with its status.
    pub async fn retry(&self, org: OrgId, run: RunId, request: RetryRun) -> Result<RunStatus, Error> {
        for _ in 0..TRIES_MAX {
            let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
            if !reading.run.is_terminal() {
                let step = step_of_open(&reading, &request)?;
                match self.give(org, run, Input::RetryNow { step, actor: request.actor.clone() }).await? {
                    (Answer::Unknown, _) => return Err(Error::NothingToRetry),
                    // It has ended meanwhile.
                    (Answer::Ended(_), status) if status.is_terminal() => continue,
                    (Answer::Ended(status), _) => return Err(Error::Ended(status)),
                    (_, status) => return Ok(status),
                }
            }
            let from = step_of_ended(&reading, &request)?;
            self.check_room(&reading).await?;
            let input = Input::Reopen {
                from,
                allow_irreversible: request.allow_irreversible,
                actor: request.actor.clone(),
                reason: request.reason.clone(),
                admission: Admission::Open,
            };
            match self.give(org, run, input).await? {
                (Answer::Applied, status) => return Ok(status),
                (Answer::Ended(status), _) => return Err(Error::Ended(status)),
                (Answer::NoRoom, _) => return Err(Error::NoRoom),
                (Answer::Unsafe, _) => {
                    let steps = repair(&reading.version.plan, &reading.run, from.as_slice()).irreversible;
                    return Err(Error::UnsafeRetry(keys(&reading, &steps)));
                }
                // It is open again already, or has ended in another way.
                _ => {}
            }
        }
        Err(Error::Unavailable("the run is changing too fast".into()))
    }

    /// What a retry would do. Changes nothing.
    pub async fn plan_retry(&self, org: OrgId, run: RunId, request: &RetryRun) -> Result<Rehearsal, Error> {
        let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        if !reading.run.is_terminal() {
            let only = step_of_open(&reading, request)?;
            let waits = reading.run.steps().filter(|(_, state)| matches!(state.phase, Phase::Retrying { .. }));
            let steps: Vec<u32> =
                waits.map(|(step, _)| step).filter(|step| only.is_none_or(|only| only == *step)).collect();
            return Ok(Rehearsal { would_run: keys(&reading, &steps), would_repeat: Vec::new() });
        }
        let repair = repair(&reading.version.plan, &reading.run, step_of_ended(&reading, request)?.as_slice());
        Ok(Rehearsal { would_run: keys(&reading, &repair.steps), would_repeat: keys(&reading, &repair.repeated) })
    }

    /// M29: a run whose group neither queues nor has room does not go on. The node that owns the group decides that by
    /// itself; on another node the stored runs tell.
    async fn check_room(&self, reading: &Reading) -> Result<(), Error> {
        let Some(group) = &reading.row.concurrency_group else { return Ok(()) };
        let decides_here = group.on_conflict == OnConflict::Queue || self.cluster.nodes().keeps(&group.id);
        match decides_here || !self.stored_concurrency_groups().await?.is_full(group) {
            true => Ok(()),
            false => Err(Error::NoRoom),
        }
    }
}

/// The step that a retry of an open run names.
fn step_of_open(reading: &Reading, request: &RetryRun) -> Result<Option<u32>, Error> {
    if request.from.is_some() {
        let message =
            format!("the run is {}: only one that failed or timed out goes on from a step", reading.run.status());
        return Err(Error::InvalidField { field: "from", message });
    }
    let find = |key: &String| {
        let found = reading.run.find(&reading.version.plan, key);
        found
            .ok_or_else(|| Error::InvalidField { field: "step", message: format!("`{key}` is not a step of this run") })
    };
    request.step.as_ref().map(find).transpose()
}

/// The step from which a run goes on that has ended, if it can.
fn step_of_ended(reading: &Reading, request: &RetryRun) -> Result<Option<u32>, Error> {
    let (plan, run) = (&reading.version.plan, &reading.run);
    if !matches!(run.status(), RunStatus::Failed | RunStatus::Timeout) {
        return Err(Error::Ended(run.status()));
    }
    if let Some(parent) = run.state.origin.parent.as_ref().filter(|parent| !parent.is_detached) {
        return Err(Error::HasParent { parent: parent.run, step: parent.key.clone() });
    }
    if request.step.is_some() {
        let message = format!("the run is {}: name the step in `from`, or leave it out", run.status());
        return Err(Error::InvalidField { field: "step", message });
    }
    let find = |key: &String| {
        let found = run.find(plan, key).filter(|step| run.undoes(plan, *step).is_none());
        let message =
            || format!("`{key}` is not a step of this run that can run again; of what a loop has done, name the loop");
        found.ok_or_else(|| Error::InvalidField { field: "from", message: message() })
    };
    request.from.as_ref().map(find).transpose()
}

pub(super) fn keys(reading: &Reading, steps: &[u32]) -> Vec<String> {
    steps.iter().map(|step| reading.key(*step).into_owned()).collect()
}
