//! Replay: a new run from an old run's input. The old run does not change.

use super::run_queries::Reading;
use super::runs::{Idempotency, Runs, Source, StartRequest, Started};
use super::tasks::type_of;
use super::workflows::Resolved;
use crate::error::Error;
use kernel::advance::unrepeatable_steps;
use kernel::plan::Form;
use kernel::{OrgId, RunId};
use std::sync::Arc;

/// Which version a replay runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edition {
    /// The one the old run pinned.
    #[default]
    Pinned,
    /// The workflow's current one.
    Latest,
}

impl Runs {
    /// Starts a run with the body, headers and labels of another run; a task also gets its priority, key and callback.
    pub async fn replay(
        &self,
        org: OrgId,
        run: RunId,
        edition: Edition,
        allow_irreversible: bool,
        actor: String,
        idempotency: Option<Idempotency>,
    ) -> Result<Started, Error> {
        let mut reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        let refusal = |reading: &Reading| unrepeatable_steps(&reading.version.plan, &reading.run);
        if !allow_irreversible && !refusal(&reading).is_empty() {
            if reading.lacks_steps() {
                reading = self.read_whole(org, reading).await?;
            }
            let steps = refusal(&reading);
            if !steps.is_empty() {
                return Err(Error::UnsafeReplay(steps));
            }
        }
        self.start_again(org, &reading, edition, idempotency, |start| {
            start.source.replayed_from = Some(run);
            start.source.actor = actor;
        })
        .await
    }

    /// Starts a run with the trigger, body, headers and labels of another run; of a task, also with its priority, key and
    /// callback. `change` says what is different.
    pub(super) async fn start_again(
        &self,
        org: OrgId,
        reading: &Reading,
        edition: Edition,
        idempotency: Option<Idempotency>,
        change: impl FnOnce(&mut StartRequest),
    ) -> Result<Started, Error> {
        let row = match reading.version.plan.layout().form {
            // A task's run has no workflow row; the settings of its type are part of the version it pinned.
            Form::Task => type_of(&self.core, &reading.version).await?,
            _ => self.workflows.workflow_of(org, reading.row.workflow).await?,
        };
        let version = match edition {
            Edition::Pinned => reading.version.clone(),
            Edition::Latest if row.deleted_at.is_some() => return Err(Error::NotFound("workflow")),
            Edition::Latest => {
                let plan = (row.hash, Some(row.lowering));
                self.workflows.catalog().pinned(org, row.id, row.version, &row.name, plan).await?
            }
        };
        let origin = &reading.run.state.origin;
        let body = origin.body.bytes(&reading.payloads);
        let body = body.map_err(|_| Error::Damaged("its input is missing".into()))?.clone();
        let pairs = |list: &[kernel::event::Pair]| list.iter().map(|p| (p.name.clone(), p.value.clone())).collect();
        let (headers, labels) = (pairs(&origin.headers), pairs(&origin.labels));
        let mut source = Source { kind: origin.trigger, ..Source::default() };
        if row.form == Form::Task {
            source.priority = origin.priority;
            source.key.clone_from(&origin.key);
            source.callback_url.clone_from(&origin.callback_url);
        }
        let workflow = Arc::new(Resolved { row, version });
        let start = StartRequest::new(org, workflow, body);
        let mut start = StartRequest { headers, labels, source, idempotency, ..start };
        change(&mut start);
        self.start(start).await
    }
}
