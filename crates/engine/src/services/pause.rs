//! Holding runs back and letting them go: pausing a run or a workflow, not waiting for a retry.

use super::core::refusal;
use super::runs::Runs;
use super::workflows::Workflows;
use crate::concurrency_groups::{ConcurrencyGroups, QueueStatus};
use crate::error::Error;
use crate::mailbox::{Command, Reply};
use kernel::event::OnConflict;
use kernel::{Answer, Input, OrgId, RunId, RunStatus, WorkflowId};
use std::time::{Duration, Instant};
use store::{ClusterEvent, ConcurrencyGroupRow, WorkflowPause};

/// How long whoever starts a run waits for another node to decide whether it may begin.
const DECIDED_WITHIN: Duration = Duration::from_secs(2);

impl Runs {
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

    /// Who stands between a run and its turn.
    pub async fn queue_status(&self, run: RunId) -> Result<Option<QueueStatus>, Error> {
        match self.core.ask(|reply_to| Command::QueueStatus { run, reply_to }).await? {
            Reply::QueueStatus(None) if self.core.store.is_shared() => self.remote_queue_status(run).await,
            Reply::QueueStatus(queue_status) => Ok(queue_status),
            other => Err(refusal(other, "run")),
        }
    }

    /// The same where another node keeps the gate: as the store has it.
    async fn remote_queue_status(&self, run: RunId) -> Result<Option<QueueStatus>, Error> {
        Ok(self.stored_concurrency_groups().await?.queue_status(run))
    }

    async fn stored_concurrency_groups(&self) -> Result<ConcurrencyGroups, Error> {
        let paused = self.core.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        Ok(ConcurrencyGroups::stored(paused, self.core.store.grouped_runs().await?))
    }

    /// The status of a new run once the node that keeps its gate has decided about it: that it may begin, or that it never
    /// will. That it waits is its status until then, and is not waited for.
    pub(super) async fn await_remote_admission(
        &self,
        org: OrgId,
        run: RunId,
        concurrency_group: &ConcurrencyGroupRow,
    ) -> RunStatus {
        let until = Instant::now() + DECIDED_WITHIN;
        while Instant::now() < until {
            match self.core.store.run(org, run).await {
                Ok(Some(row)) if row.status == RunStatus::Pending => {}
                Ok(Some(row)) => return row.status,
                Ok(None) | Err(_) => break,
            }
            let is_next =
                self.stored_concurrency_groups().await.is_ok_and(|concurrency_groups| concurrency_groups.is_next(run));
            if !is_next && concurrency_group.on_conflict != OnConflict::Skip {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        RunStatus::Pending
    }
}

impl Workflows {
    /// New runs of the workflow wait for their turn until it is resumed; runs under way go on.
    pub async fn pause(&self, org: OrgId, workflow: WorkflowId, actor: String, note: String) -> Result<(), Error> {
        let core = &self.core;
        let pause = WorkflowPause { org, workflow, at: self.core.now(), actor, note };
        core.written(core.store.pause_workflow(&pause).await)?;
        // Starts that are asked for after this was answered stand behind it in the inbox.
        match core.store.is_shared() {
            true => self.cluster.broadcast_change(ClusterEvent::PausesChanged).await,
            false => drop(core.inbox.send(Command::PauseWorkflow(workflow))),
        }
        Ok(())
    }

    pub async fn resume(&self, org: OrgId, workflow: WorkflowId) -> Result<(), Error> {
        let core = &self.core;
        core.written(core.store.resume_workflow(org, workflow).await)?;
        match core.store.is_shared() {
            true => self.cluster.broadcast_change(ClusterEvent::PausesChanged).await,
            false => drop(core.inbox.send(Command::ResumeWorkflow(workflow))),
        }
        Ok(())
    }

    pub async fn paused(&self, org: OrgId, workflow: WorkflowId) -> Result<Option<WorkflowPause>, Error> {
        Ok(self.core.store.workflow_pause(org, workflow).await?)
    }
}
