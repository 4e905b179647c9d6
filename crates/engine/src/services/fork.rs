//! Fork: a new run that takes over results of one that has ended, and goes on from one of its steps (M31).
//!
//! Which steps it takes over is the kernel's answer, see [`fork`](mod@kernel::advance::fork).

use super::repair::{Rehearsal, keys};
use super::replay::Edition;
use super::run_queries::Reading;
use super::runs::{Idempotency, Runs, Started};
use crate::error::Error;
use bytes::Bytes;
use kernel::advance::{Fork, fork};
use kernel::event::{CopiedStep, ForkPoint};
use kernel::{OrgId, Payload, RunId};
use std::collections::BTreeMap;

/// A request to fork a run.
#[derive(Clone, Debug, Default)]
pub struct ForkRun {
    /// The first step that runs again, of the root group.
    pub from: String,
    /// The trigger body, if not that of the run.
    pub input: Option<Bytes>,
    /// Results of steps that do not run.
    pub results: BTreeMap<String, Bytes>,
    pub allow_irreversible: bool,
    pub actor: String,
    pub reason: String,
}

impl Runs {
    /// Starts the fork of a run.
    pub async fn fork(
        &self,
        org: OrgId,
        run: RunId,
        request: ForkRun,
        idempotency: Option<Idempotency>,
    ) -> Result<Started, Error> {
        let (reading, planned) = self.read_fork(org, run, &request).await?;
        if !planned.unrepeatable.is_empty() && !request.allow_irreversible {
            return Err(Error::UnsafeReplay(planned.unrepeatable));
        }
        let whole = |(step, ended)| Ok((step, with_payloads(&reading, ended)?));
        let copied = planned.copied.into_iter().map(whole).collect::<Result<Vec<_>, Error>>()?;
        let ForkRun { from, input, actor, reason, .. } = request;
        let point = ForkPoint { run, step: from, reason, ..Default::default() };
        self.start_again(org, &reading, Edition::Pinned, idempotency, |start| {
            start.source.forked_from = Some(Box::new(point));
            start.source.actor = actor;
            start.body = input.unwrap_or_else(|| start.body.clone());
            start.copied = copied;
        })
        .await
    }

    /// What a fork would run. Changes nothing.
    pub async fn plan_fork(&self, org: OrgId, run: RunId, request: &ForkRun) -> Result<Rehearsal, Error> {
        let (reading, planned) = self.read_fork(org, run, request).await?;
        let (would_run, would_repeat) = (keys(&reading, &planned.would_run), keys(&reading, &planned.would_repeat));
        Ok(Rehearsal { would_run, would_repeat })
    }

    async fn read_fork(&self, org: OrgId, run: RunId, request: &ForkRun) -> Result<(Reading, Fork), Error> {
        let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        if !reading.run.is_terminal() {
            return Err(Error::RunOpen(format!(
                "the run is {}: only one that has ended can be forked",
                reading.run.status()
            )));
        }
        let from = root_step(&reading, "from", &request.from)?;
        let mut given = BTreeMap::new();
        for (key, body) in &request.results {
            let step = root_step(&reading, "results", key)?;
            if step == from {
                let message = format!("`{key}` runs again, so it cannot have a given result: go on from a later step");
                return Err(Error::InvalidField { field: "results", message });
            }
            given.insert(step, Payload::json(body.clone()));
        }
        let planned = fork(&reading.version.plan, &reading.run, from, &given);
        Ok((reading, planned))
    }
}

/// Only what is beside it reads the result of a step, so groups and loops are taken over as a whole.
fn root_step(reading: &Reading, field: &'static str, key: &str) -> Result<u32, Error> {
    let (plan, run) = (&reading.version.plan, &reading.run);
    let invalid = |message: String| Error::InvalidField { field, message };
    let found = run.find(plan, key);
    match (found.filter(|step| run.parent(*step).is_none()), found) {
        (Some(step), _) => Ok(step),
        (None, Some(inner)) => {
            let around = std::iter::successors(run.parent(inner), |step| run.parent(*step)).last();
            let around = around.map(|step| reading.key(step).into_owned()).unwrap_or_default();
            Err(invalid(format!(
                "`{key}` is inside of `{around}`, which a fork takes over or runs as a whole: name that"
            )))
        }
        (None, None) => Err(invalid(format!("`{key}` is not a step of this run"))),
    }
}

/// The step with the bytes of its payloads: those of another run cannot be referred to.
fn with_payloads(reading: &Reading, mut ended: CopiedStep) -> Result<CopiedStep, Error> {
    for payload in ended.payloads_mut() {
        let bytes = payload.bytes(&reading.payloads);
        payload.inline = bytes.map_err(|_| Error::Damaged("a result is missing".into()))?.clone();
        payload.stored = None;
    }
    Ok(ended)
}
