//! One action for every run that a filter selects.
//!
//! Each run is changed by itself, exactly as a request for it alone would: a run that refuses the action is named in the
//! answer, and the rest goes on.

use super::outbox::NOTIFIER;
use super::repair::RetryRun;
use super::replay::Edition;
use super::runs::{CancelRun, Idempotency, Runs};
use crate::error::Error;
use kernel::plan::Form;
use kernel::{Answer, OrgId, RunId, RunStatus};
use sha2::{Digest, Sha256};
use store::{RunFilter, listed_id};

/// Runs that one call changes.
const BULK_MAX: usize = 1_000;
/// Runs that the answer names.
const NAMED_MAX: usize = 100;
const PAGE: usize = 200;

#[derive(Clone, Debug)]
pub enum RunBulk {
    Cancel {
        compensate: bool,
    },
    Retry {
        allow_irreversible: bool,
    },
    Replay {
        edition: Edition,
        allow_irreversible: bool,
        /// With the same key, a run is replayed once.
        key: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub struct RunBulkOrder {
    pub action: RunBulk,
    pub is_dry: bool,
    pub actor: String,
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct RunBulkDone {
    pub matched: usize,
    pub changed: usize,
    /// The first of the runs that matched.
    pub runs: Vec<RunId>,
    /// The first of the runs that were started.
    pub started: Vec<RunId>,
    /// The first of the runs that were left as they are.
    pub refused: Vec<(RunId, Error)>,
    /// Where to go on, if there may be more.
    pub next: Option<RunId>,
}

impl RunBulk {
    fn applies_to(&self, status: RunStatus) -> bool {
        match self {
            RunBulk::Cancel { .. } => !status.is_terminal() && status != RunStatus::Cancelling,
            RunBulk::Retry { .. } => matches!(status, RunStatus::Failed | RunStatus::Timeout),
            RunBulk::Replay { .. } => status.is_terminal(),
        }
    }
}

impl Runs {
    /// Applies an action to every run that passes a filter, the newest first; a dry run only lists them.
    pub async fn bulk(&self, org: OrgId, order: RunBulkOrder, mut filter: RunFilter) -> Result<RunBulkDone, Error> {
        let wanted = std::mem::take(&mut filter.statuses);
        let is_wanted = |status: &&RunStatus| wanted.is_empty() || wanted.contains(status);
        let applicable = RunStatus::ALL.iter().filter(|status| order.action.applies_to(**status));
        filter.statuses = applicable.filter(is_wanted).copied().collect();
        let mut done = RunBulkDone::default();
        if filter.statuses.is_empty() {
            return Ok(done);
        }
        filter.except = Some(NOTIFIER);
        filter.forms = Form::ALL.iter().filter(|form| **form != Form::Task).copied().collect();
        filter.limit = PAGE;
        loop {
            let rows = self.core.store.runs(org, &filter).await?;
            let is_last = rows.len() < filter.limit;
            for row in rows {
                if done.matched == BULK_MAX {
                    done.next = filter.before;
                    return Ok(done);
                }
                let run = listed_id(&row);
                filter.before = Some(run);
                done.matched += 1;
                if done.runs.len() < NAMED_MAX {
                    done.runs.push(run);
                }
                if order.is_dry {
                    continue;
                }
                match self.change(org, run, &order).await {
                    Ok(started) => {
                        done.changed += 1;
                        done.started.extend(started.filter(|_| done.started.len() < NAMED_MAX));
                    }
                    // It has changed meanwhile, and no longer needs the action.
                    Err(Error::Ended(_) | Error::NotFound(_) | Error::NothingToRetry) => {}
                    Err(
                        error
                        @ (Error::Unavailable(_) | Error::OutcomeUnknown(_) | Error::Stopping | Error::Overloaded),
                    ) => {
                        return Err(error);
                    }
                    Err(error) if done.refused.len() < NAMED_MAX => done.refused.push((run, error)),
                    Err(_) => {}
                }
            }
            if is_last {
                return Ok(done);
            }
        }
    }

    /// Changes one run; answers with the run that this started, if any.
    async fn change(&self, org: OrgId, run: RunId, order: &RunBulkOrder) -> Result<Option<RunId>, Error> {
        let (actor, reason) = (order.actor.clone(), order.reason.clone());
        match &order.action {
            RunBulk::Cancel { compensate } => {
                let (answer, status) =
                    self.cancel(org, run, CancelRun { actor, reason, compensate: *compensate }).await?;
                match answer {
                    Answer::Ended(_) => Err(Error::Ended(status)),
                    _ => Ok(None),
                }
            }
            RunBulk::Retry { allow_irreversible } => {
                let request = RetryRun { allow_irreversible: *allow_irreversible, actor, reason, ..Default::default() };
                self.retry(org, run, request).await.map(|_| None)
            }
            RunBulk::Replay { edition, allow_irreversible, key } => {
                let idempotency = key.as_ref().map(|key| {
                    let fingerprint =
                        Sha256::new().chain_update(run.0).chain_update([*edition as u8]).finalize().into();
                    Idempotency { scope: None, key: format!("{key}:{run}"), fingerprint }
                });
                let started = self.replay(org, run, *edition, *allow_irreversible, actor, idempotency).await?;
                Ok(Some(started.run).filter(|_| !started.deduplicated))
            }
        }
    }
}
