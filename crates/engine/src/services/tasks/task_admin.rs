//! Task administration: reading, listing, retrying and deleting tasks, one by one or in bulk.

use super::super::outbox::NOTIFIER;
use super::super::replay::Edition;
use super::super::run_queries::{Reading, UnreadableRun};
use super::super::runs::{CancelRun, Idempotency, StartedRun};
use super::task_types::type_id;
use super::{TaskKey, Tasks};
use crate::error::Error;
use kernel::plan::Form;
use kernel::run::Phase;
use kernel::{Answer, Input, OrgId, RunId, RunStatus, StepStatus, TaskStatus, Timestamp};
use store::{Erased, ListedRun, RunFilter, listed_id};

/// Tasks that one bulk call changes.
const BULK_MAX: usize = 10_000;
/// Tasks that the answer to a bulk call names.
const NAMED_MAX: usize = 100;
const PAGE: usize = 200;
/// Rows read for one page of a list, when few of them pass the filter.
const ROWS_READ_MAX: usize = 10_000;
/// Types that one pattern of a filter may match.
const TYPES_MAX: usize = 1_000;

/// A task with the state of its run.
pub struct TaskReading {
    pub key: TaskKey,
    pub step: u32,
    pub reading: Reading,
    pub lease_until: Option<Timestamp>,
    /// The task that a retry started in place of this failed one.
    pub released_as: Option<RunId>,
}

#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// A type, or all types with a prefix if it ends in `%`.
    pub name: Option<String>,
    pub status: Option<TaskStatus>,
    pub labels: Vec<(String, String)>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub before: Option<RunId>,
    pub limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    Cancel,
    Retry,
    Delete,
}

/// A page of tasks, newest first.
#[derive(Default)]
pub struct TaskPage {
    pub tasks: Vec<TaskReading>,
    pub unreadable: Vec<UnreadableRun>,
    /// The cursor of the next page, if there may be one.
    pub next: Option<RunId>,
}

#[derive(Debug, Default)]
pub struct BulkDone {
    pub matched: usize,
    pub changed: usize,
    /// The first of the tasks that matched.
    pub tasks: Vec<TaskKey>,
    /// The first of the tasks that were left out because they cannot be read.
    pub unreadable: Vec<UnreadableRun>,
    pub more: bool,
}

impl BulkDone {
    fn leave_out(&mut self, unreadable: UnreadableRun) {
        if self.unreadable.len() < NAMED_MAX {
            self.unreadable.push(unreadable);
        }
    }
}

/// The result of a retry.
pub enum Retried {
    /// The next attempt is due now.
    Due,
    /// A failed task was released again as this run; true if an earlier retry had done so.
    Released(RunId, bool),
}

/// The task status of a step.
pub fn status_of(reading: &Reading, step: u32) -> TaskStatus {
    let state = reading.run.step(step);
    match (&state.phase, state.status()) {
        (Phase::Leased { .. }, _) => TaskStatus::Leased,
        (_, StepStatus::Success | StepStatus::Received) => TaskStatus::Succeeded,
        (_, StepStatus::Failed | StepStatus::Timeout | StepStatus::TemplateError) => TaskStatus::Failed,
        (_, StepStatus::Cancelled | StepStatus::Skipped) => TaskStatus::Cancelled,
        _ => TaskStatus::Pending,
    }
}

/// Statuses the run of a plain task may have.
fn run_statuses(status: TaskStatus) -> Vec<RunStatus> {
    match status {
        TaskStatus::Pending => vec![RunStatus::Pending, RunStatus::Running, RunStatus::Waiting],
        TaskStatus::Leased => vec![RunStatus::Running],
        TaskStatus::Succeeded => vec![RunStatus::Completed],
        TaskStatus::Failed => vec![RunStatus::Failed],
        TaskStatus::Cancelled => vec![RunStatus::Cancelled, RunStatus::Timeout],
    }
}

impl Tasks {
    /// A task; `None` if there is no such run, or the step is not a task.
    pub async fn get(&self, org: OrgId, key: TaskKey) -> Result<Option<TaskReading>, Error> {
        let Some(mut reading) = self.runs.read(org, key.run).await? else { return Ok(None) };
        if reading.run.has_left(key.index()) {
            reading = self.runs.read_whole(org, reading).await?;
        }
        let plan = &reading.version.plan;
        let is_plain = plan.layout().form == Form::Task;
        let step = key.index();
        if is_plain != key.step.is_none()
            || reading.run.get(step).is_none_or(|_| reading.run.node(plan, step).task().is_none())
        {
            return Ok(None);
        }
        self.as_task(org, key, step, reading).await.map(Some)
    }

    async fn as_task(&self, org: OrgId, key: TaskKey, step: u32, reading: Reading) -> Result<TaskReading, Error> {
        let lease_until = self.runs.leases(&reading).await?.into_iter().find(|(of, _)| *of == step).map(|(_, at)| at);
        let released_as = match status_of(&reading, step) {
            TaskStatus::Failed if key.step.is_none() => self.released_as(org, key.run).await?,
            _ => None,
        };
        Ok(TaskReading { key, step, reading, lease_until, released_as })
    }

    async fn released_as(&self, org: OrgId, run: RunId) -> Result<Option<RunId>, Error> {
        let made = self.core.store.idempotency_record(org, RELEASE, &run.to_string()).await?;
        Ok(made.map(|(id, _)| RunId(id)))
    }

    /// Plain tasks, newest first.
    pub async fn list(&self, org: OrgId, filter: &TaskFilter) -> Result<TaskPage, Error> {
        let mut page = TaskPage::default();
        let mut before = filter.before;
        let mut rows_read = 0;
        loop {
            let limit = (filter.limit - page.tasks.len()).max(PAGE.min(filter.limit));
            let rows = self.task_rows(org, filter, before, limit).await?;
            let is_last = rows.len() < limit;
            for row in rows {
                rows_read += 1;
                let run = listed_id(&row);
                before = Some(run);
                let read = match row {
                    Ok(_) => self.runs.read(org, run).await,
                    Err(row) => Err(UnreadableRun::from(row).error),
                };
                match read {
                    Ok(None) => {}
                    Ok(Some(reading)) if filter.status.is_some_and(|status| status_of(&reading, 0) != status) => {}
                    Ok(Some(reading)) => page.tasks.push(self.as_task(org, TaskKey::plain(run), 0, reading).await?),
                    Err(error) if error.is_unreadable_run() => page.unreadable.push(UnreadableRun { run, error }),
                    Err(error) => return Err(error),
                }
                if page.tasks.len() + page.unreadable.len() == filter.limit {
                    return Ok(TaskPage { next: before, ..page });
                }
            }
            if is_last {
                return Ok(page);
            }
            if rows_read >= ROWS_READ_MAX {
                return Ok(TaskPage { next: before, ..page });
            }
        }
    }

    /// Rows of plain tasks that may pass a filter, newest first.
    async fn task_rows(
        &self,
        org: OrgId,
        filter: &TaskFilter,
        before: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<ListedRun>, Error> {
        let rows = RunFilter {
            statuses: filter.status.map(run_statuses).unwrap_or_default(),
            except: Some(NOTIFIER),
            forms: vec![Form::Task],
            labels: filter.labels.clone(),
            since: filter.since,
            until: filter.until,
            before,
            limit,
            ..RunFilter::default()
        };
        let Some(name) = &filter.name else { return Ok(self.core.store.runs(org, &rows).await?) };
        let names = match name.strip_suffix('%') {
            None => vec![name.clone()],
            Some(prefix) => {
                let types = self.core.store.task_types(org, prefix, None, TYPES_MAX + 1).await?;
                if types.len() > TYPES_MAX {
                    return Err(Error::TooManyTypes(prefix.to_owned()));
                }
                types.into_iter().map(|row| row.name).collect()
            }
        };
        let mut all = Vec::new();
        for name in names {
            let of_type = RunFilter { workflow: Some(type_id(&name)), ..rows.clone() };
            all.extend(self.core.store.runs(org, &of_type).await?);
        }
        all.sort_by_key(|row| std::cmp::Reverse(listed_id(row)));
        all.truncate(limit);
        Ok(all)
    }

    /// Makes the next attempt of a task due now, or starts a failed task again as a new run.
    pub async fn retry(&self, org: OrgId, key: TaskKey, actor: String) -> Result<Retried, Error> {
        let task = self.get(org, key).await?.ok_or(Error::NotFound("task"))?;
        match status_of(&task.reading, task.step) {
            TaskStatus::Failed if key.step.is_none() => {
                let run = key.run.to_string();
                let fingerprint = [0; 32];
                let idempotency = Some(Idempotency { scope: Some(RELEASE.into()), key: run, fingerprint });
                let started = self.runs.replay(org, key.run, Edition::Pinned, false, actor, idempotency).await?;
                Ok(Retried::Released(started.run, started.deduplicated))
            }
            status => {
                let (answer, _) =
                    self.runs.give(org, key.run, Input::RetryNow { step: Some(task.step), actor }).await?;
                match answer {
                    Answer::Applied => Ok(Retried::Due),
                    _ => Err(Error::TaskState(status)),
                }
            }
        }
    }

    /// Deletes a task; an open one is cancelled first.
    pub async fn delete(&self, org: OrgId, key: TaskKey, actor: String) -> Result<(), Error> {
        self.get(org, key).await?.ok_or(Error::NotFound("task"))?;
        if key.step.is_some() {
            return Err(Error::RunOpen("a step of a run cannot be deleted; delete or cancel its run".into()));
        }
        self.runs.cancel(org, key.run, CancelRun::plain(actor, "deleted")).await?;
        let hidden = self.core.store.hide(org, key.run, self.core.now()).await;
        match self.core.written(hidden)? {
            Erased::Done => Ok(()),
            Erased::NotFound => Err(Error::NotFound("task")),
            Erased::NotEnded => Err(Error::RunOpen("the task is still open".into())),
            Erased::Changed => Err(Error::RunOpen("the task has changed meanwhile".into())),
            Erased::NotificationsPending => {
                Err(Error::RunOpen("a notification of the task's end is not delivered yet".into()))
            }
            Erased::InboxPending => Err(Error::RunOpen("a request to the task is not applied yet".into())),
        }
    }

    /// Applies an action to every task that passes a filter; a dry run only lists them.
    pub async fn bulk(
        &self,
        org: OrgId,
        action: Bulk,
        filter: TaskFilter,
        is_dry: bool,
        actor: &str,
    ) -> Result<BulkDone, Error> {
        let mut done = BulkDone::default();
        let mut filter = TaskFilter { limit: PAGE, ..filter };
        loop {
            let page = self.list(org, &filter).await?;
            for unreadable in page.unreadable {
                done.leave_out(unreadable);
            }
            for task in page.tasks {
                let status = status_of(&task.reading, task.step);
                let is_open = matches!(status, TaskStatus::Pending | TaskStatus::Leased);
                let waits = matches!(task.reading.run.step(task.step).phase, Phase::Retrying { .. });
                let applies = match action {
                    Bulk::Cancel => is_open,
                    Bulk::Retry => waits || status == TaskStatus::Failed && task.released_as.is_none(),
                    Bulk::Delete => true,
                };
                if !applies {
                    continue;
                }
                if done.matched == BULK_MAX {
                    done.more = true;
                    return Ok(done);
                }
                done.matched += 1;
                if done.tasks.len() < NAMED_MAX {
                    done.tasks.push(task.key);
                }
                if is_dry {
                    continue;
                }
                let actor = actor.to_owned();
                let result = match action {
                    Bulk::Cancel => {
                        let cancelled = self.runs.cancel(org, task.key.run, CancelRun::plain(actor, "")).await;
                        cancelled.and_then(|(answer, _)| match answer {
                            Answer::Applied => Ok(()),
                            _ => Err(Error::TaskState(status)),
                        })
                    }
                    Bulk::Retry => self.retry(org, task.key, actor).await.map(drop),
                    Bulk::Delete => self.delete(org, task.key, actor).await,
                };
                match result {
                    Ok(()) => done.changed += 1,
                    // The task changed meanwhile and no longer needs the action.
                    Err(Error::TaskState(_) | Error::NotFound(_) | Error::RunOpen(_)) => {}
                    Err(error) if error.is_unreadable_run() => {
                        done.leave_out(UnreadableRun { run: task.key.run, error });
                    }
                    Err(error) => return Err(error),
                }
            }
            match page.next {
                Some(next) => filter.before = Some(next),
                None => return Ok(done),
            }
        }
    }
}

/// The scope of the idempotency keys of retried tasks: the key is the failed run, its result the new one.
pub const RELEASE: &str = "release";

impl From<StartedRun> for TaskKey {
    fn from(item: StartedRun) -> TaskKey {
        TaskKey::plain(item.run)
    }
}
