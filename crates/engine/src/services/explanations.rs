//! Explanations of runs: gathers the facts that [`explain`] needs, for a run and the runs that its steps wait for, and for
//! all open runs of a workflow. Reads the store on the caller's async task; asks the engine loop only about its queues.

use super::core::refusal;
use super::run_queries::{Reading, load_all};
use super::runs::Runs;
use crate::error::Error;
use crate::explain::{Cause, ClaimStatuses, Definition, ExplainFacts, Explanation, explain, first_cause};
use crate::mailbox::{Command, LoadFailure, QueueQuery, Reply};
use kernel::plan::Form;
use kernel::run::{Phase, ReadyTask};
use kernel::status::Outcome;
use kernel::{OrgId, Reason, RunId, RunStatus, WorkflowId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use store::{QueueKey, RunFilter, WorkflowKey, listed_id};

/// Types and keys of tasks whose claim status one request asks for. Of others it is not said why no worker has them.
const CLAIM_STATUSES_MAX: usize = 64;
/// Runs that one explanation reads: the run, and runs that its steps started, the nearest first.
const RUNS_READ_MAX: usize = 20;
/// How far down an explanation follows runs that started others.
const DEPTH_MAX: u32 = 8;
/// Open runs that a summary reads.
const SUMMARY_RUNS_MAX: usize = 1_000;
const PAGE: usize = 100;
const OPEN: [RunStatus; 5] =
    [RunStatus::Pending, RunStatus::Running, RunStatus::Waiting, RunStatus::Compensating, RunStatus::Cancelling];

/// What the open runs of a workflow wait for.
#[derive(Clone, Debug, Default)]
pub struct WaitSummary {
    /// The most frequent first.
    pub groups: Vec<WaitGroup>,
    /// The open runs that were read.
    pub runs: usize,
    /// There are more open runs, which were not read.
    pub is_truncated: bool,
}

/// Open runs whose most urgent cause is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitGroup {
    pub reason: Reason,
    /// The step without the numbers of iterations: `each/charge` for `each[3]/charge`.
    pub step: Option<String>,
    pub count: usize,
    /// The oldest of the runs that were read.
    pub example: RunId,
}

impl Runs {
    /// Why the run, or one step of it, is where it is. The inner `None`: it has no such step.
    pub async fn explain(
        &self,
        org: OrgId,
        run: RunId,
        step: Option<&str>,
    ) -> Result<Option<(Reading, Option<Explanation>)>, Error> {
        self.cluster.refresh_caches().await?;
        let Some(mut reading) = self.read(org, run).await? else { return Ok(None) };
        if let Some(key) = step {
            reading = self.with_step(org, reading, key).await?;
        }
        let mut claim_statuses = ClaimStatuses::new();
        let facts = self.facts(org, &reading, &mut claim_statuses).await?;
        // Runs to read, each with how far down it is: the nearest first.
        let mut to_read: VecDeque<(RunId, u32)> = children(&reading, step).map(|child| (child, 1)).collect();
        let mut below = Vec::new();
        while let Some((child, depth)) = to_read.pop_front() {
            if below.len() + 1 == RUNS_READ_MAX {
                break;
            }
            // A child that does not exist yet, or cannot be read, ends the chain.
            let Ok(Some(resumed)) = self.load(org, child).await else { continue };
            let reading = Reading::from(resumed);
            let facts = self.facts(org, &reading, &mut claim_statuses).await?;
            if depth < DEPTH_MAX {
                to_read.extend(children(&reading, None).map(|child| (child, depth + 1)));
            }
            below.push((reading, facts));
        }
        // Every run comes before those that it started, so from the end each finds its children explained.
        let mut explained = BTreeMap::new();
        for (reading, facts) in below.into_iter().rev() {
            let cause = self.with_facts(&reading, facts, (&claim_statuses, &explained), first_cause);
            explained.extend(cause.map(|cause| (reading.row.id, cause)));
        }
        let of_step = |reading: &Reading, facts: &ExplainFacts<'_>| explain(reading, facts, step);
        let explanation = self.with_facts(&reading, facts, (&claim_statuses, &explained), of_step);
        Ok(Some((reading, explanation)))
    }

    /// Explains a run with what is known in this process, beside the facts that were read.
    fn with_facts<T>(
        &self,
        reading: &Reading,
        facts: ExplainFacts<'static>,
        (claim_statuses, children): (&ClaimStatuses, &BTreeMap<RunId, Cause>),
        explain: impl FnOnce(&Reading, &ExplainFacts<'_>) -> T,
    ) -> T {
        let (run, clock) = (reading.row.id, &self.core.clock);
        let facts = ExplainFacts {
            now: self.core.now(),
            queued: Some(&|fence| self.http_queue.position(run, fence)),
            wait_url: Some(&|key: &str| self.core.callbacks.url(run, key)),
            claim_statuses: Some(claim_statuses),
            children: Some(children),
            clock: clock.skew_report().filter(|_| clock.is_too_skewed()),
            ..facts
        };
        explain(reading, &facts)
    }

    /// What the store and the engine loop know about a run.
    async fn facts(
        &self,
        org: OrgId,
        reading: &Reading,
        claim_statuses: &mut ClaimStatuses,
    ) -> Result<ExplainFacts<'static>, Error> {
        let run = reading.row.id;
        let is_queued = reading.run.state.queued.is_some();
        self.add_claim_statuses(org, reading, claim_statuses).await?;
        Ok(ExplainFacts {
            definition: self.definition(org, reading).await?,
            queue_status: if is_queued { self.queue_status(run).await? } else { None },
            pause: if is_queued { self.workflows.paused(org, reading.row.workflow).await? } else { None },
            notifications: if reading.run.is_terminal() { self.notifications(org, run).await? } else { Vec::new() },
            leases: self.leases(reading).await?,
            ..ExplainFacts::default()
        })
    }

    /// What the run was started from, as it is now.
    async fn definition(&self, org: OrgId, reading: &Reading) -> Result<Option<Definition>, Error> {
        let (store, row) = (&self.core.store, &reading.row);
        if row.form == Form::Task {
            let found = store.task_type(org, &reading.version.name).await?;
            return Ok(found.map(|found| Definition { version: None, is_enabled: found.enabled }));
        }
        let found = store.workflow(org, &WorkflowKey::IdOrDeleted(row.workflow)).await?;
        Ok(found.map(|found| Definition {
            version: Some(found.version).filter(|_| found.deleted_at.is_none()),
            is_enabled: found.enabled,
        }))
    }

    /// Asks the task queue about the types and keys of the run's ready tasks that are not known yet.
    async fn add_claim_statuses(&self, org: OrgId, reading: &Reading, known: &mut ClaimStatuses) -> Result<(), Error> {
        for ReadyTask { name, key, .. } in reading.run.ready_tasks(&reading.version.plan) {
            if known.len() >= CLAIM_STATUSES_MAX {
                break;
            }
            let task = (name, key);
            if known.contains_key(&task) {
                continue;
            }
            let queue = QueueKey { org, name: task.0.clone(), key: task.1.clone() };
            self.cluster.catch_up(Some((queue.org, &queue.name))).await?;
            match self.core.ask(|reply_to| Command::Query(QueueQuery::ClaimStatus(queue), reply_to)).await? {
                Reply::ClaimStatus(status) => drop(known.insert(task, *status)),
                other => return Err(refusal(other, "task")),
            }
        }
        Ok(())
    }

    /// What the open runs of a workflow wait for. Reads the newest [`SUMMARY_RUNS_MAX`] of them.
    pub async fn summarise_waits(&self, org: OrgId, workflow: WorkflowId) -> Result<WaitSummary, Error> {
        self.cluster.refresh_caches().await?;
        let pause = self.workflows.paused(org, workflow).await?;
        let mut filter =
            RunFilter { statuses: OPEN.to_vec(), workflow: Some(workflow), limit: PAGE, ..RunFilter::default() };
        let mut summary = WaitSummary::default();
        let mut groups: BTreeMap<(Reason, Option<String>), (usize, RunId)> = BTreeMap::new();
        let mut claim_statuses = ClaimStatuses::new();
        loop {
            let page = self.core.store.runs(org, &filter).await?;
            let Some(last) = page.last() else { break };
            if summary.runs >= SUMMARY_RUNS_MAX {
                summary.is_truncated = true;
                break;
            }
            filter.before = Some(listed_id(last));
            summary.runs += page.len();
            let runs: Vec<(OrgId, RunId)> = page.iter().map(|run| (org, listed_id(run))).collect();
            for (loaded, (_, run)) in load_all(&self.workflows, &runs).await.into_iter().zip(&runs) {
                let cause = match loaded {
                    Ok(Some(resumed)) if resumed.run.is_terminal() => continue,
                    Ok(Some(resumed)) => {
                        let reading = Reading::from(resumed);
                        self.add_claim_statuses(org, &reading, &mut claim_statuses).await?;
                        // Nothing that costs a read for each run. So the runs that it started are not followed.
                        let facts = ExplainFacts { pause: pause.clone(), ..ExplainFacts::default() };
                        let cause = self.with_facts(&reading, facts, (&claim_statuses, &BTreeMap::new()), first_cause);
                        cause.map(|cause| (cause.reason, cause.step.as_deref().map(without_numbers)))
                    }
                    Err(LoadFailure::Newer) => Some((Reason::WaitingForUpgrade, None)),
                    Err(LoadFailure::Store(why)) => return Err(Error::Unavailable(why)),
                    // It was deleted meanwhile, or is damaged, which the list of runs says.
                    Ok(None) | Err(LoadFailure::Damaged(_)) => None,
                };
                if let Some(cause) = cause {
                    let (count, oldest) = groups.entry(cause).or_insert((0, *run));
                    (*count, *oldest) = (*count + 1, *run);
                }
            }
        }
        summary.groups = groups
            .into_iter()
            .map(|((reason, step), (count, example))| WaitGroup { reason, step, count, example })
            .collect();
        summary.groups.sort_by_key(|group| Reverse(group.count));
        Ok(summary)
    }
}

/// The runs that steps of this run wait for, or whose failure is theirs: of one step and what is inside of it, or of all.
fn children<'r>(reading: &'r Reading, step: Option<&str>) -> impl Iterator<Item = RunId> + use<'r> {
    let run = &reading.run;
    let under = step.and_then(|key| run.find(&reading.version.plan, key));
    let is_under = move |step: u32| match under {
        Some(under) => std::iter::successors(Some(step), |step| run.parent(*step)).any(|step| step == under),
        None => true,
    };
    let steps = run.steps().filter(move |(number, step)| {
        let has_failed = matches!(step.outcome(), Some(Outcome::Failed | Outcome::TimedOut));
        (has_failed || matches!(step.phase, Phase::Child {})) && is_under(*number)
    });
    steps.filter_map(|(_, step)| Some(step.child.as_deref()?.run)).take(RUNS_READ_MAX)
}

/// A step's key without the numbers of iterations.
fn without_numbers(key: &str) -> String {
    let after = |part| str::split_once(part, ']').map_or(part, |(_, rest)| rest);
    key.split('[').enumerate().map(|(i, part)| if i == 0 { part } else { after(part) }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_numbers_of_iterations_are_left_out() {
        let cases = [("charge", "charge"), ("each[3]/charge", "each/charge"), ("a[0]/b[12]/c", "a/b/c")];
        for (key, expected) in cases {
            assert_eq!(super::without_numbers(key), expected);
        }
    }
}
