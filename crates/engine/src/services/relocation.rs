//! Move: an open run goes on with another version of its workflow (M32).
//!
//! Whether it can is the kernel's answer, see [`misfit`](kernel::advance::misfit): to the caller here, with the steps that
//! do not fit, and once more to the input, when the run may have changed.

use super::overrides::rehearse;
use super::repair::{Rehearsal, TRIES_MAX, keys};
use super::run_queries::Reading;
use super::runs::Runs;
use crate::error::{CannotMove, Error};
use bytes::Bytes;
use kernel::advance::{Misfit, MoveOrder, misfit};
use kernel::plan::Form;
use kernel::{Answer, Input, OrgId, RunId, RunStatus};
use store::{VersionKey, WorkflowKey};

/// A request to move a run.
#[derive(Clone, Debug, Default)]
pub struct MoveRun {
    /// The number of the version; `None` for the current one.
    pub version: Option<u32>,
    pub actor: String,
    pub reason: String,
}

impl Runs {
    /// Moves a run to a version; answers with its status and the version that it has now.
    pub async fn move_run(&self, org: OrgId, run: RunId, request: MoveRun) -> Result<(RunStatus, u32), Error> {
        for _ in 0..TRIES_MAX {
            let (_, order) = self.read_move(org, run, &request).await?;
            let version = order.version;
            match self.give(org, run, Input::Move(Box::new(order))).await? {
                (Answer::Applied | Answer::Repeated, status) => return Ok((status, version)),
                (Answer::Ended(status), _) => return Err(Error::Ended(status)),
                // It has changed since it was read.
                _ => {}
            }
        }
        Err(Error::Unavailable("the run is changing too fast".into()))
    }

    /// What would run at once after a move. Changes nothing.
    pub async fn plan_move(&self, org: OrgId, run: RunId, request: &MoveRun) -> Result<Rehearsal, Error> {
        let (reading, order) = self.read_move(org, run, request).await?;
        Ok(rehearse(&reading, self.core.now(), Input::Move(Box::new(order))).1)
    }

    async fn read_move(&self, org: OrgId, run: RunId, request: &MoveRun) -> Result<(Reading, MoveOrder), Error> {
        let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        if reading.row.form == Form::Task {
            return Err(Error::CannotMove(CannotMove::SingleTask));
        }
        if reading.run.is_terminal() {
            return Err(Error::Ended(reading.run.status()));
        }
        let (id, name) = (reading.row.workflow, &reading.row.workflow_name);
        let number = match request.version {
            Some(number) => number,
            None => {
                let row = self.core.store.workflow(org, &WorkflowKey::IdOrDeleted(id)).await?;
                row.ok_or(Error::NotFound("workflow"))?.version
            }
        };
        let found = self.core.store.version(org, id, VersionKey::Number(number)).await?;
        let row = found.ok_or_else(|| Error::InvalidField {
            field: "version",
            message: format!("`{name}` has no version {number}"),
        })?;
        let target = self.workflows.catalog().pinned(org, id, number, name, (row.hash, None)).await?;
        if let Some(why) = misfit(&reading.version.plan, &reading.run, &target.plan) {
            let steps = |steps: Vec<u32>| keys(&reading, &steps);
            return Err(Error::CannotMove(match why {
                Misfit::Ended(status) => return Err(Error::Ended(status)),
                Misfit::Form => CannotMove::Form,
                Misfit::Busy(busy) => CannotMove::Busy(steps(busy)),
                Misfit::Missing(missing) => CannotMove::Missing(steps(missing)),
                Misfit::Changed(changed) => CannotMove::Changed(steps(changed)),
            }));
        }
        let order = MoveOrder {
            plan: target.plan.clone(),
            version: number,
            hash: Bytes::copy_from_slice(&target.hash),
            lowering: target.lowering,
            actor: request.actor.clone(),
            reason: request.reason.clone(),
        };
        Ok((reading, order))
    }
}
