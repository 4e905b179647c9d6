//! Pause and resume of runs and workflows, and a run's place in its concurrency group.

use super::core::refusal;
use super::reply_channel::ReplyChannel;
use super::runs::Runs;
use super::workflows::Workflows;
use crate::concurrency_groups::{ConcurrencyGroups, QueueStatus};
use crate::error::Error;
use crate::mailbox::{Command, Reply};
use kernel::event::OnConflict;
use kernel::{Answer, Input, OrgId, RunId, RunStatus, WorkflowId};
use std::time::{Duration, Instant};
use store::{ClusterEvent, ConcurrencyGroupRow, WorkflowPause};

/// How long a start waits for another node to decide whether the run may begin.
const DECIDED_WITHIN: Duration = Duration::from_secs(2);
/// The pause before the row of such a run is read again; it doubles each time, up to the second value.
const DECISION_READ_AFTER: Duration = Duration::from_millis(5);
const DECISION_READ_EVERY: Duration = Duration::from_millis(100);

impl Runs {
    /// Pauses a run: no further step starts until it is resumed. Steps under way may finish.
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

    /// Which runs of its concurrency group a queued run waits for.
    pub async fn queue_status(&self, run: RunId) -> Result<Option<QueueStatus>, Error> {
        match self.core.ask(|reply_to| Command::QueueStatus { run, reply_to }).await? {
            Reply::QueueStatus(None) if self.core.store.is_shared() => self.remote_queue_status(run).await,
            Reply::QueueStatus(queue_status) => Ok(queue_status),
            other => Err(refusal(other, "run")),
        }
    }

    /// The same from the store, where another node keeps the concurrency group.
    async fn remote_queue_status(&self, run: RunId) -> Result<Option<QueueStatus>, Error> {
        Ok(self.stored_concurrency_groups().await?.queue_status(run))
    }

    pub(super) async fn stored_concurrency_groups(&self) -> Result<ConcurrencyGroups, Error> {
        #[cfg(test)]
        tests::GROUP_READS.set(tests::GROUP_READS.get() + 1);
        let paused = self.core.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        Ok(ConcurrencyGroups::stored(paused, self.core.store.grouped_runs().await?))
    }

    /// The status of a new run after the node that keeps its concurrency group has admitted or skipped it. A run that
    /// has to queue is `pending` at once, without waiting for a decision.
    pub(super) async fn await_remote_admission(
        &self,
        org: OrgId,
        run: RunId,
        concurrency_group: &ConcurrencyGroupRow,
    ) -> RunStatus {
        if self.cluster.keeps(&concurrency_group.id) || !self.is_decided_soon(run, concurrency_group).await {
            return RunStatus::Pending;
        }
        let until = Instant::now() + DECIDED_WITHIN;
        let mut pause = DECISION_READ_AFTER;
        while Instant::now() < until {
            match self.core.store.run(org, run).await {
                Ok(Some(row)) if row.status == RunStatus::Pending => {}
                Ok(Some(row)) => return row.status,
                Ok(None) | Err(_) => break,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(DECISION_READ_EVERY);
        }
        RunStatus::Pending
    }

    /// Will the group's node decide on a new run without waiting for another to end, or has it done so? Reads the runs of
    /// all groups, so a start asks once.
    async fn is_decided_soon(&self, run: RunId, concurrency_group: &ConcurrencyGroupRow) -> bool {
        let is_decided_soon = |groups: ConcurrencyGroups| groups.is_next(run) || !groups.is_queued(run);
        concurrency_group.on_conflict == OnConflict::Skip
            || self.stored_concurrency_groups().await.is_ok_and(is_decided_soon)
    }
}

impl Workflows {
    /// Pauses a workflow: its new runs queue until it is resumed. Runs under way continue.
    pub async fn pause(&self, org: OrgId, workflow: WorkflowId, actor: String, note: String) -> Result<(), Error> {
        let core = &self.core;
        let pause = WorkflowPause { org, workflow, at: self.core.now(), actor, note };
        core.written(core.store.pause_workflow(&pause).await)?;
        self.announce_pause(Command::PauseWorkflow(workflow)).await;
        Ok(())
    }

    pub async fn resume(&self, org: OrgId, workflow: WorkflowId) -> Result<(), Error> {
        self.core.written(self.core.store.resume_workflow(org, workflow).await)?;
        self.announce_pause(Command::ResumeWorkflow(workflow)).await;
        Ok(())
    }

    /// Tells the engine, on every node, of a pause or its end. A start that is requested after the call was answered
    /// comes after it in the inbox.
    pub(super) async fn announce_pause(&self, command: Command<ReplyChannel>) {
        match self.core.store.is_shared() {
            true => self.cluster.broadcast_change(ClusterEvent::PausesChanged).await,
            false => drop(self.core.inbox.send(command)),
        }
    }

    pub async fn paused(&self, org: OrgId, workflow: WorkflowId) -> Result<Option<WorkflowPause>, Error> {
        Ok(self.core.store.workflow_pause(org, workflow).await?)
    }
}

#[cfg(test)]
mod tests {
    use crate::StartRequest;
    use crate::clock::ClockMode;
    use crate::engine::{Engine, Options};
    use crate::secret::Secret;
    use kernel::{OrgId, RunStatus, Span};
    use std::cell::Cell;
    use std::sync::Arc;

    thread_local! {
        /// How often this thread has read the runs of all groups to decide about one.
        pub(super) static GROUP_READS: Cell<usize> = const { Cell::new(0) };
    }

    #[tokio::test]
    async fn a_run_that_queues_on_its_own_node_does_not_read_the_runs_of_all_groups() {
        let options = Options {
            secret: Secret::new([7; 32]),
            public_url: "http://127.0.0.1:7420".into(),
            clock: ClockMode::Virtual,
            clock_start: None,
            clock_advance: Span(0),
            accept_clock: false,
            http: Default::default(),
            seed: Some(1),
            node: String::new(),
            retention: None,
            bash: None,
        };
        let engine = Engine::open(Arc::new(store::MemoryStore::default()), options).await.expect("it opens");
        let source = r#"{"name": "one", "concurrency": {"key": "all", "limit": 1}, "tasks": {"a": {"sleep": "1h"}}}"#;
        let tree = lang::read(source.as_bytes(), lang::Syntax::Json).expect("a document");
        let compiled = lang::compile(&tree).expect("a definition");
        engine.workflows.create(OrgId::DEFAULT, &compiled, None).await.expect("it is new");
        let workflow = engine.workflows.resolve(OrgId::DEFAULT, "one").await.expect("it reads").expect("it exists");
        let before = GROUP_READS.get();
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let request = StartRequest::new(OrgId::DEFAULT, workflow.clone(), "{}".into());
            statuses.push(engine.runs.start(request).await.expect("it starts").status);
        }
        assert_eq!(statuses[1..], [RunStatus::Pending; 2]);
        assert_eq!(GROUP_READS.get() - before, 0);
        engine.stop().await;
    }
}
