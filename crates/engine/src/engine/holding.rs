//! Holding runs back and letting them go: pausing a run or a workflow, not waiting for a retry.

use super::{Engine, Error};
use crate::gates::{Crowd, Gates};
use crate::mailbox::{Command, Reply};
use kernel::{Answer, Input, OrgId, RunId, RunStatus, WorkflowId};
use store::{News, WorkflowPause};

impl Engine {
    /// Nothing new starts in the run until it is resumed; what is under way may finish.
    pub async fn pause(
        &self,
        org: OrgId,
        run: RunId,
        actor: String,
        note: String,
    ) -> Result<(Answer, RunStatus), Error> {
        self.give(org, run, Input::Pause { actor, note }).await
    }

    pub async fn resume(&self, org: OrgId, run: RunId, actor: String) -> Result<(Answer, RunStatus), Error> {
        self.give(org, run, Input::Resume { actor }).await
    }

    /// Starts the next attempt of one step now, or of every step that waits for one.
    pub async fn retry_now(
        &self,
        org: OrgId,
        run: RunId,
        step: Option<u32>,
        actor: String,
    ) -> Result<(Answer, RunStatus), Error> {
        self.give(org, run, Input::RetryNow { step, actor }).await
    }

    /// New runs of the workflow wait for their turn until it is resumed; runs under way go on.
    pub async fn pause_workflow(
        &self,
        org: OrgId,
        workflow: WorkflowId,
        actor: String,
        note: String,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let pause = WorkflowPause { org, workflow, at: self.now(), actor, note };
        inner.written(inner.store.pause_workflow(&pause).await)?;
        // Starts that are asked for after this was answered stand behind it in the inbox.
        match inner.store.is_shared() {
            true => inner.change_made(News::Pauses).await,
            false => drop(inner.inbox.send(Command::PauseWorkflow(workflow))),
        }
        Ok(())
    }

    pub async fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Result<(), Error> {
        let inner = &self.inner;
        inner.written(inner.store.resume_workflow(org, workflow).await)?;
        match inner.store.is_shared() {
            true => inner.change_made(News::Pauses).await,
            false => drop(inner.inbox.send(Command::ResumeWorkflow(workflow))),
        }
        Ok(())
    }

    pub async fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Result<Option<WorkflowPause>, Error> {
        Ok(self.inner.store.workflow_pause(org, workflow).await?)
    }

    /// Who stands between a run and its turn.
    pub async fn crowd(&self, run: RunId) -> Result<Option<Crowd>, Error> {
        match self.inner.ask(|ticket| Command::Crowd { run, ticket }).await? {
            Reply::Crowd(None) if self.inner.store.is_shared() => self.crowd_elsewhere(run).await,
            Reply::Crowd(crowd) => Ok(crowd),
            other => Err(super::refusal(other, "run")),
        }
    }

    /// The same where another node keeps the gate: as the store has it.
    async fn crowd_elsewhere(&self, run: RunId) -> Result<Option<Crowd>, Error> {
        let paused = self.inner.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        Ok(Gates::stored(paused, self.inner.store.gated().await?).crowd(run))
    }
}
