//! The state of a worker: which tasks it holds, what it has to report, and how many more tasks it can take.
//!
//! ```text
//!   accept_tasks ─▶ jobs ──finish──▶ outbox ──acknowledge──▶ gone
//!                     └─ heartbeats ───┴──▶ batch: one request
//! ```
//!
//! This code does no I/O and reads no clock, so tests cover every rule without a server. The rules:
//!
//! - A report stays in the outbox until the server has acknowledged it, however often it must be sent.
//! - A free slot is offered either in the open claim or in the report that is being sent, never in both.
//! - Progress is sent before the failure it was saved for, because the failure ends the claim.

use super::outcome::HandlerOutcome;
use api::{ClaimedView, DoneItem, HeartbeatItem, LeaseView, ReportedView};
use serde_json::value::RawValue;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// The server takes no more in one request.
const ENTRIES_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// How often the progress of one task is sent.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// A worker without a free slot that got no response for this long asks whether one of its tasks was cancelled.
const CANCEL_CHECK_AFTER: Duration = Duration::from_millis(400);

/// Why a handler should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The task was cancelled, or its lease was lost.
    Cancelled,
    /// The worker is stopping, and the time to finish tasks is over.
    Draining,
}

/// A task that the worker holds, under one claim token.
struct Job {
    task_id: String,
    lease: Duration,
    /// When the next heartbeat is due; `None` once the lease is lost or the task is cancelled.
    heartbeat_due: Option<Instant>,
    last_heartbeat: Option<Instant>,
    /// Progress that the server has not acknowledged yet, with its number.
    progress: Option<(u64, Box<RawValue>)>,
    /// The number of the latest progress.
    progress_seq: u64,
    stop: watch::Sender<Option<StopReason>>,
    /// Handlers that wait for the response to a heartbeat.
    waiters: Vec<oneshot::Sender<bool>>,
}

impl Job {
    fn apply_lease(&mut self, lease: &LeaseView) {
        if lease.cancel {
            self.heartbeat_due = None;
            self.stop.send_if_modified(|stop| stop.replace(StopReason::Cancelled) != Some(StopReason::Cancelled));
        }
        self.waiters.drain(..).for_each(|waiter| _ = waiter.send(!lease.cancel));
    }
}

/// How a job ended, until the server has acknowledged it.
struct PendingReport {
    item: DoneItem,
    size: usize,
    /// Progress to send before the report.
    progress: Option<Box<RawValue>>,
    /// Replaces a report that the server rejected.
    is_substitute: bool,
}

/// The reports and heartbeats of one request. It must be acknowledged, requeued or rejected before the next.
pub struct WorkerBatch {
    reports: Vec<(usize, bool)>,
    pub done: Vec<DoneItem>,
    /// The claim token of each heartbeat, and the number of the progress that it carries.
    heartbeat_progress: Vec<(String, Option<u64>)>,
    pub heartbeats: Vec<HeartbeatItem>,
    pub credits: u32,
}

impl WorkerBatch {
    pub fn entries(&self) -> usize {
        self.done.len() + self.heartbeats.len()
    }
}

/// A task to start, and the channel that tells its handler to stop.
pub struct StartTask {
    pub task: ClaimedView,
    pub stop: watch::Receiver<Option<StopReason>>,
}

/// When to send the next claim, and for how many tasks.
#[derive(Debug, PartialEq, Eq)]
pub enum NextClaim {
    Now(u32),
    NotBefore(Instant),
    /// Not until the state changes.
    Later,
    Never,
}

pub struct WorkerState {
    slots: usize,
    is_claiming: bool,
    jobs: HashMap<String, Job>,
    outbox: VecDeque<PendingReport>,
    /// Slots offered in the open claim.
    claim_slots: Option<usize>,
    /// Slots offered in the report that is being sent.
    report_slots: Option<usize>,
    /// How many entries to send one at a time, to find the one that the server rejects.
    one_by_one: usize,
    last_response: Instant,
}

impl WorkerState {
    pub fn new(slots: usize, now: Instant) -> WorkerState {
        WorkerState {
            slots,
            is_claiming: true,
            jobs: HashMap::new(),
            outbox: VecDeque::new(),
            claim_slots: None,
            report_slots: None,
            one_by_one: 0,
            last_response: now,
        }
    }

    /// Accepts tasks from the server. A worker that is stopping gives them back.
    pub fn accept_tasks(&mut self, tasks: Vec<ClaimedView>, now: Instant) -> Vec<StartTask> {
        let mut starts = Vec::with_capacity(tasks.len());
        for task in tasks {
            if self.jobs.contains_key(&task.claim_token) {
                continue;
            }
            if !self.is_claiming {
                let given_back = HandlerOutcome::Error(super::Error::snooze(Duration::ZERO));
                self.queue_report(given_back.item(task.task_id, task.claim_token), None);
                continue;
            }
            let lease = Duration::from_millis(task.lease_ms.max(1));
            let (stop, stopped) = watch::channel(None);
            let job = Job {
                task_id: task.task_id.clone(),
                lease,
                heartbeat_due: Some(now + lease / 3),
                last_heartbeat: None,
                progress: None,
                progress_seq: 0,
                stop,
                waiters: Vec::new(),
            };
            self.jobs.insert(task.claim_token.clone(), job);
            starts.push(StartTask { task, stop: stopped });
        }
        starts
    }

    /// A job has ended. Without an outcome, nothing is reported: the task was cancelled, or its lease was lost.
    pub fn finish(&mut self, claim_token: &str, outcome: Option<HandlerOutcome>) {
        let Some(job) = self.jobs.remove(claim_token) else { return };
        let Some(outcome) = outcome else { return };
        let progress = job.progress.filter(|_| matches!(outcome, HandlerOutcome::Error(_))).map(|(_, raw)| raw);
        self.queue_report(outcome.item(job.task_id, claim_token.to_owned()), progress);
    }

    fn queue_report(&mut self, item: DoneItem, progress: Option<Box<RawValue>>) {
        let size = item.result.as_ref().map_or(0, |raw| raw.get().len());
        self.outbox.push_back(PendingReport { item, size, progress, is_substitute: false });
    }

    /// The handler saved its progress. Several calls in a row are sent as one.
    pub fn progress(&mut self, claim_token: &str, raw: Box<RawValue>, now: Instant) {
        let Some(job) = self.jobs.get_mut(claim_token) else { return };
        job.progress_seq += 1;
        job.progress = Some((job.progress_seq, raw));
        let soon = job.last_heartbeat.map_or(now, |at| at + PROGRESS_EVERY);
        job.heartbeat_due = job.heartbeat_due.map(|at| at.min(soon));
    }

    /// The handler asks for a heartbeat now. It receives whether the worker still holds the task.
    pub fn heartbeat(&mut self, claim_token: &str, now: Instant) -> Option<oneshot::Receiver<bool>> {
        let job = self.jobs.get_mut(claim_token).filter(|job| job.heartbeat_due.is_some())?;
        job.heartbeat_due = Some(now);
        let (waiter, response) = oneshot::channel();
        job.waiters.push(waiter);
        Some(response)
    }

    /// The worker is stopping: it claims no more tasks.
    pub fn stop_claiming(&mut self) {
        self.is_claiming = false;
    }

    /// The time to finish is over: handlers that still run are stopped, and their tasks go back to the server.
    pub fn stop_handlers(&mut self) {
        for job in self.jobs.values() {
            job.stop.send_if_modified(|stop| stop.is_none() && stop.replace(StopReason::Draining).is_none());
        }
    }

    /// No task is running, no report is waiting, and no request is open.
    pub fn is_done(&self) -> bool {
        !self.is_claiming
            && self.jobs.is_empty()
            && self.outbox.is_empty()
            && self.claim_slots.is_none()
            && self.report_slots.is_none()
    }

    pub fn is_claiming(&self) -> bool {
        self.is_claiming
    }

    fn free_slots(&self) -> usize {
        let used = self.jobs.len() + self.claim_slots.unwrap_or(0) + self.report_slots.unwrap_or(0);
        if self.is_claiming { self.slots.saturating_sub(used) } else { 0 }
    }

    /// A waiting report goes first: it offers the free slots, too, and its response comes at once. Without a free slot,
    /// a claim for no tasks listens for cancellations.
    pub fn next_claim(&mut self, now: Instant) -> NextClaim {
        if !self.is_claiming {
            return NextClaim::Never;
        }
        if self.report_slots.is_some() || !self.outbox.is_empty() {
            return NextClaim::Later;
        }
        let credits = self.free_slots().min(ENTRIES_MAX);
        let cancel_check_at = self.last_response + CANCEL_CHECK_AFTER;
        if credits == 0 && cancel_check_at > now {
            return NextClaim::NotBefore(cancel_check_at);
        }
        self.claim_slots = Some(credits);
        NextClaim::Now(credits as u32)
    }

    /// The open claim is for no tasks although a slot is free: a new claim should replace it.
    pub fn should_claim_more(&self) -> bool {
        self.claim_slots == Some(0) && self.free_slots() > 0 && self.report_slots.is_none() && self.outbox.is_empty()
    }

    /// The claim has its response, or was dropped.
    pub fn claim_ended(&mut self, now: Instant) {
        (self.claim_slots, self.last_response) = (None, now);
    }

    /// When the next batch is due; it may be in the past.
    pub fn due_at(&self) -> Option<Instant> {
        if !self.outbox.is_empty() {
            return Some(self.last_response);
        }
        self.jobs.values().filter_map(|job| job.heartbeat_due).min()
    }

    /// Everything that is due, with the slots that are free.
    pub fn batch(&mut self, now: Instant) -> Option<WorkerBatch> {
        if self.due_at().is_none_or(|at| at > now && self.outbox.is_empty()) {
            return None;
        }
        let max = if self.one_by_one > 0 { 1 } else { ENTRIES_MAX };
        let mut batch = WorkerBatch {
            reports: Vec::new(),
            done: Vec::new(),
            heartbeat_progress: Vec::new(),
            heartbeats: Vec::new(),
            credits: 0,
        };
        let (mut kept, mut size) = (VecDeque::new(), 0);
        for mut report in self.outbox.drain(..) {
            let has_room = batch.entries() < max && (batch.done.is_empty() || size + report.size <= BATCH_BYTES_MAX);
            match report.progress.clone() {
                // The report follows once its progress is saved.
                Some(progress) if has_room => {
                    batch.add_heartbeat(&report.item.task_id, &report.item.claim_token, Some((0, progress)));
                    report.progress = None;
                    kept.push_back(report);
                }
                None if has_room => {
                    size += report.size;
                    batch.reports.push((report.size, report.is_substitute));
                    batch.done.push(report.item);
                }
                _ => kept.push_back(report),
            }
        }
        self.outbox = kept;
        for (claim_token, job) in &mut self.jobs {
            // A heartbeat that is due soon is sent together with one that is due now.
            if batch.entries() < max && job.heartbeat_due.is_some_and(|at| at <= now + job.lease / 12) {
                job.last_heartbeat = Some(now);
                job.heartbeat_due = Some(now + job.lease / 3);
                batch.add_heartbeat(&job.task_id, claim_token, job.progress.clone());
            }
        }
        if batch.entries() == 0 {
            return None;
        }
        self.one_by_one = self.one_by_one.saturating_sub(1);
        let credits = self.free_slots().min(ENTRIES_MAX);
        (self.report_slots, batch.credits) = (Some(credits), credits as u32);
        Some(batch)
    }

    /// The server has processed a batch. Returns the tasks whose report it did not accept, with its status for each.
    pub fn acknowledge(&mut self, batch: WorkerBatch, acks: Vec<ReportedView>, now: Instant) -> Vec<(String, String)> {
        (self.report_slots, self.last_response) = (None, now);
        let mut rejected = Vec::new();
        for ((item, (_, is_substitute)), ack) in batch.done.into_iter().zip(batch.reports).zip(acks) {
            match &*ack.status {
                "recorded" => {}
                "too_large" if !is_substitute => self.report_substitute(item, "the result is too large"),
                _ => rejected.push((item.task_id, ack.status.into_owned())),
            }
        }
        for (claim_token, number) in batch.heartbeat_progress {
            if let Some(job) = self.jobs.get_mut(&claim_token)
                && number.is_some_and(|number| job.progress_seq == number)
            {
                job.progress = None;
            }
        }
        rejected
    }

    /// Applies the leases of a response: first one for each heartbeat, then the tasks that were cancelled.
    pub fn leases(&mut self, claim_tokens: &[String], leases: Vec<LeaseView>) {
        for (i, lease) in leases.into_iter().enumerate() {
            match claim_tokens.get(i) {
                Some(claim_token) => self.jobs.get_mut(claim_token).into_iter().for_each(|job| job.apply_lease(&lease)),
                // The worker may hold the same task twice, under a lost claim and under a new one.
                None => self
                    .jobs
                    .values_mut()
                    .filter(|job| job.task_id == lease.task_id)
                    .for_each(|job| job.apply_lease(&lease)),
            }
        }
    }

    /// The server did not receive the batch, or its response was lost: the entries are sent again.
    pub fn requeue(&mut self, batch: WorkerBatch, now: Instant) {
        self.report_slots = None;
        let reports = batch.done.into_iter().zip(batch.reports);
        for (item, (size, is_substitute)) in reports.rev() {
            self.outbox.push_front(PendingReport { item, size, progress: None, is_substitute });
        }
        for ((claim_token, _), heartbeat) in batch.heartbeat_progress.into_iter().zip(batch.heartbeats) {
            if let Some(job) = self.jobs.get_mut(&claim_token) {
                job.heartbeat_due = job.heartbeat_due.map(|at| at.min(now));
            } else if let Some(report) = self.outbox.iter_mut().find(|report| report.item.claim_token == claim_token) {
                report.progress = report.progress.take().or(heartbeat.progress);
            }
        }
    }

    /// The server rejected a whole batch. The entries are sent one at a time to find the invalid one. An invalid report
    /// is replaced by a failure that says why; an invalid heartbeat loses its progress. Returns the tasks whose
    /// substitute was rejected, too.
    pub fn rejected(&mut self, mut batch: WorkerBatch, why: &str, now: Instant) -> Vec<(String, String)> {
        if batch.entries() > 1 {
            self.one_by_one = batch.entries();
            self.requeue(batch, now);
            return Vec::new();
        }
        self.report_slots = None;
        if let Some((claim_token, _)) = batch.heartbeat_progress.pop() {
            if let Some(job) = self.jobs.get_mut(&claim_token) {
                job.progress = None;
            }
            return Vec::new();
        }
        let Some((item, (_, is_substitute))) = batch.done.pop().zip(batch.reports.pop()) else { return Vec::new() };
        if is_substitute {
            return vec![(item.task_id, why.to_owned())];
        }
        self.report_substitute(item, &format!("the server rejected the result: {why}"));
        Vec::new()
    }

    fn report_substitute(&mut self, item: DoneItem, why: &str) {
        let outcome = HandlerOutcome::Error(super::Error::fail(why).code("result_refused"));
        let item = outcome.item(item.task_id, item.claim_token);
        self.outbox.push_back(PendingReport { item, size: 0, progress: None, is_substitute: true });
    }
}

impl WorkerBatch {
    fn add_heartbeat(&mut self, task_id: &str, claim_token: &str, progress: Option<(u64, Box<RawValue>)>) {
        let (number, progress) = progress.unzip();
        self.heartbeat_progress.push((claim_token.to_owned(), number));
        self.heartbeats.push(HeartbeatItem {
            task_id: task_id.to_owned(),
            claim_token: claim_token.to_owned(),
            extend: None,
            progress,
        });
    }

    /// The claim tokens of the heartbeats.
    pub fn heartbeat_tokens(&self) -> Vec<String> {
        self.heartbeat_progress.iter().map(|(claim_token, _)| claim_token.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn task(n: u32) -> ClaimedView {
        let text = json!({
            "task_id": format!("task_{n}"), "type": "a.v1", "input": null, "attempt": 1, "max_attempts": 3,
            "claim_token": format!("c{n}"), "lease_until": "", "lease_ms": 30_000, "run_id": "run_1", "step": "task",
            "workflow": null, "progress": null, "idempotency_key": "k",
        })
        .to_string();
        serde_json::from_str(&text).unwrap()
    }

    fn raw(value: Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(&value).unwrap()
    }

    fn done(value: Value) -> Option<HandlerOutcome> {
        Some(HandlerOutcome::Done(raw(value)))
    }

    fn ack(n: u32, status: &'static str) -> ReportedView {
        ReportedView { task_id: format!("task_{n}"), status: status.into() }
    }

    /// The claim tokens of the reports and of the heartbeats with their progress, and the credits.
    fn summary(batch: &WorkerBatch) -> String {
        let done: Vec<&str> = batch.done.iter().map(|item| item.claim_token.as_str()).collect();
        let heartbeats: Vec<String> = batch
            .heartbeats
            .iter()
            .map(|b| format!("{}{}", b.claim_token, b.progress.as_ref().map_or("", |p| p.get())))
            .collect();
        format!("done {done:?} heartbeats {heartbeats:?} credits {}", batch.credits).replace('"', "")
    }

    #[test]
    fn a_free_slot_is_offered_once() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        assert_eq!(worker_state.next_claim(now), NextClaim::Now(4));
        assert!(worker_state.batch(now).is_none(), "nothing to report");
        worker_state.claim_ended(now);
        assert_eq!(
            worker_state.accept_tasks(vec![task(1), task(2), task(1)], now).len(),
            2,
            "the same claim is one job"
        );
        assert_eq!(worker_state.next_claim(now), NextClaim::Now(2));
        worker_state.finish("c1", done(json!(1)));
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(summary(&batch), "done [c1] heartbeats [] credits 1", "two are offered in the claim, one is busy");
        worker_state.claim_ended(now);
        assert_eq!(worker_state.next_claim(now), NextClaim::Later, "the report is still open");
        assert!(worker_state.acknowledge(batch, vec![ack(1, "recorded")], now).is_empty());
        assert_eq!(worker_state.next_claim(now), NextClaim::Now(3));
    }

    #[test]
    fn a_full_worker_listens_for_cancellations_until_a_slot_is_free() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(1, now);
        worker_state.accept_tasks(vec![task(1)], now);
        assert_eq!(worker_state.next_claim(now), NextClaim::NotBefore(now + CANCEL_CHECK_AFTER));
        let later = now + CANCEL_CHECK_AFTER;
        assert_eq!(worker_state.next_claim(later), NextClaim::Now(0));
        assert!(!worker_state.should_claim_more());
        worker_state.finish("c1", done(json!(1)));
        let batch = worker_state.batch(later).unwrap();
        assert_eq!(summary(&batch), "done [c1] heartbeats [] credits 1");
        assert!(!worker_state.should_claim_more(), "the report offers the slot");
        worker_state.acknowledge(batch, vec![ack(1, "recorded")], later);
        assert!(worker_state.should_claim_more(), "and its response had no task");
    }

    #[test]
    fn a_lease_is_renewed_after_a_third_of_it() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.accept_tasks(vec![task(1)], now);
        assert_eq!(worker_state.due_at(), Some(now + Duration::from_secs(10)));
        assert!(worker_state.batch(now + Duration::from_secs(9)).is_none());
        let due = now + Duration::from_secs(10);
        let batch = worker_state.batch(due).unwrap();
        assert_eq!(summary(&batch), "done [] heartbeats [c1] credits 3");
        worker_state.requeue(batch, due);
        let batch = worker_state.batch(due).expect("it is sent again");
        let claim_tokens = batch.heartbeat_tokens();
        worker_state.acknowledge(batch, vec![], due);
        let lease = |cancel| LeaseView { task_id: "task_1".into(), lease_until: None, cancel, error: None };
        worker_state.leases(&claim_tokens, vec![lease(false)]);
        assert_eq!(worker_state.due_at(), Some(due + Duration::from_secs(10)));
        worker_state.leases(&[], vec![lease(true)]);
        assert_eq!(worker_state.due_at(), None, "a cancelled task needs no heartbeats");
    }

    #[test]
    fn reports_stay_until_they_are_acknowledged() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.accept_tasks(vec![task(1), task(2), task(3)], now);
        worker_state.finish("c1", done(json!(1)));
        worker_state.finish("c2", done(json!(2)));
        let batch = worker_state.batch(now).unwrap();
        worker_state.finish("c3", done(json!(3)));
        worker_state.requeue(batch, now);
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(summary(&batch), "done [c1, c2, c3] heartbeats [] credits 4", "in the order in which they ended");
        let rejected =
            worker_state.acknowledge(batch, vec![ack(1, "recorded"), ack(2, "stale_claim"), ack(3, "too_large")], now);
        assert_eq!(rejected, [("task_2".to_owned(), "stale_claim".to_owned())]);
        let batch = worker_state.batch(now).unwrap();
        assert!(batch.done[0].is_final && batch.done[0].claim_token == "c3", "a failure replaces it");
        assert_eq!(worker_state.acknowledge(batch, vec![ack(3, "too_large")], now).len(), 1, "but only once");
        worker_state.stop_claiming();
        assert!(worker_state.is_done());
    }

    #[test]
    fn progress_is_sent_before_the_failure_it_was_saved_for() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.accept_tasks(vec![task(1), task(2)], now);
        worker_state.progress("c1", raw(json!(1)), now);
        worker_state.progress("c1", raw(json!(7)), now);
        worker_state.progress("c2", raw(json!(8)), now);
        worker_state.finish("c1", Some(HandlerOutcome::Error(super::super::Error::retry("no"))));
        worker_state.finish("c2", done(json!(2)));
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(summary(&batch), "done [c2] heartbeats [c17] credits 4");
        worker_state.requeue(batch, now);
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(summary(&batch), "done [c2] heartbeats [c17] credits 4", "also after a failed request");
        worker_state.acknowledge(batch, vec![ack(2, "recorded")], now);
        assert_eq!(summary(&worker_state.batch(now).unwrap()), "done [c1] heartbeats [] credits 4");
    }

    #[test]
    fn an_entry_that_the_server_rejects_is_found_and_replaced() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.accept_tasks(vec![task(1), task(2)], now);
        worker_state.finish("c1", done(json!(1)));
        worker_state.finish("c2", done(json!(2)));
        let batch = worker_state.batch(now).unwrap();
        assert!(worker_state.rejected(batch, "no", now).is_empty());
        let first = worker_state.batch(now).unwrap();
        assert_eq!(summary(&first), "done [c1] heartbeats [] credits 4");
        assert!(worker_state.rejected(first, "no", now).is_empty());
        let second = worker_state.batch(now).unwrap();
        assert_eq!(summary(&second), "done [c2] heartbeats [] credits 4");
        worker_state.acknowledge(second, vec![ack(2, "recorded")], now);
        let substitute = worker_state.batch(now).unwrap();
        assert_eq!(substitute.done[0].error.as_ref().unwrap().code.as_deref(), Some("result_refused"));
        assert_eq!(worker_state.rejected(substitute, "still no", now), [("task_1".to_owned(), "still no".to_owned())]);
    }

    #[test]
    fn a_stopping_worker_gives_back_tasks_that_still_arrive() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(2, now);
        let started = worker_state.accept_tasks(vec![task(1)], now);
        assert_eq!(worker_state.next_claim(now), NextClaim::Now(1));
        worker_state.stop_claiming();
        worker_state.claim_ended(now);
        assert!(worker_state.accept_tasks(vec![task(2)], now).is_empty());
        assert_eq!(worker_state.next_claim(now), NextClaim::Never);
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(batch.done[0].snooze, Some(json!("0ms")));
        assert_eq!(batch.credits, 0);
        worker_state.acknowledge(batch, vec![ack(2, "recorded")], now);
        assert!(!worker_state.is_done());
        worker_state.stop_handlers();
        assert_eq!(*started[0].stop.borrow(), Some(StopReason::Draining));
        worker_state.finish("c1", None);
        assert!(worker_state.is_done());
    }
}
