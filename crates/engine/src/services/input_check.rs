//! Checking the body of a new run against the `input` schema of its workflow, before anything is written.
//!
//! A repeated request is answered as the first time, even if the workflow has another schema by now.

use super::runs::{Runs, StartRequest, Started};
use crate::error::Error;
use kernel::RunId;
use lang::Budget;

impl Runs {
    /// `None` if the body fits; the run of an earlier request if this one repeats it.
    pub(super) async fn check_input(
        &self,
        request: &StartRequest,
        budget: &mut Budget,
    ) -> Result<Option<Started>, Error> {
        let version = &request.workflow.version;
        // A disabled workflow refuses every body.
        if version.input.is_free() || !request.workflow.row.enabled {
            return Ok(None);
        }
        let Err(misfit) = version.input.check(&request.body, budget) else { return Ok(None) };
        let Some(idempotency) = &request.idempotency else { return Err(misfit) };
        let scope = idempotency.scope.clone().unwrap_or_else(|| version.workflow.to_string());
        let record = self.core.store.idempotency_record(request.org, &scope, &idempotency.key).await?;
        match record {
            None => Err(misfit),
            Some((_, fingerprint)) if fingerprint != idempotency.fingerprint => Err(Error::KeyReused),
            Some((run, _)) => self.repeated(request.org, RunId(run), version.workflow).await.map(Some),
        }
    }
}
