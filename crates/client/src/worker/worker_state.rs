//! A worker's bookkeeping: what it holds, what it has to say, how much more it may take on.
//!
//! ```text
//!   take ─▶ jobs ──finish──▶ outbox ──acknowledged──▶ gone
//!             └─ heartbeats ───┴──▶ batch: one request
//! ```
//!
//! Nothing here waits, asks or looks at a clock, so every rule is tested without any of it. The rules: what is to be
//! reported stays until the server has acknowledged it, however often it must be said. Free slots are lent either to the
//! open poll or to the report under way, never to both. Progress goes out before the failure it was saved for, because
//! with the failure the claim ends.

use super::outcome::Outcome;
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
/// A worker without a free slot that heard nothing for so long asks whether something was cancelled.
const LISTEN_AFTER: Duration = Duration::from_millis(400);

/// Why a handler should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nobody wants the result: the task was cancelled, or its lease was lost.
    Unwanted,
    /// The worker stops, and its time to finish is over.
    Leaving,
}

/// One task in our hands, under one claim token.
struct Job {
    task_id: String,
    lease: Duration,
    /// When the next sign of life is due; never, once there is no lease to keep.
    beat_at: Option<Instant>,
    beaten_at: Option<Instant>,
    /// What was saved and has not arrived yet, with its number.
    progress: Option<(u64, Box<RawValue>)>,
    /// The latest number given.
    said: u64,
    stop: watch::Sender<Option<Stop>>,
    /// Who waits for the answer to a sign of life.
    asking: Vec<oneshot::Sender<bool>>,
}

impl Job {
    fn hear(&mut self, lease: &LeaseView) {
        if lease.cancel {
            self.beat_at = None;
            self.stop.send_if_modified(|stop| stop.replace(Stop::Unwanted) != Some(Stop::Unwanted));
        }
        self.asking.drain(..).for_each(|tell| _ = tell.send(!lease.cancel));
    }
}

/// How a job ended, until that is acknowledged.
struct Report {
    item: DoneItem,
    size: usize,
    /// To be saved before.
    progress: Option<Box<RawValue>>,
    /// It stands for one the server would not take.
    is_substitute: bool,
}

/// What goes out in one request. It must be settled or put back before the next.
pub struct Batch {
    reports: Vec<(usize, bool)>,
    pub done: Vec<DoneItem>,
    /// Token and number of the progress that goes along.
    beats: Vec<(String, Option<u64>)>,
    pub heartbeats: Vec<HeartbeatItem>,
    pub credits: u32,
}

impl Batch {
    pub fn entries(&self) -> usize {
        self.done.len() + self.heartbeats.len()
    }
}

/// A task to begin with, and how its handler learns that it should stop.
pub struct Start {
    pub task: ClaimedView,
    pub stop: watch::Receiver<Option<Stop>>,
}

/// When to poll, and for how many tasks.
#[derive(Debug, PartialEq, Eq)]
pub enum Poll {
    Now(u32),
    NotBefore(Instant),
    /// When something has changed.
    Later,
    Never,
}

pub struct WorkerState {
    slots: usize,
    is_taking: bool,
    jobs: HashMap<String, Job>,
    outbox: VecDeque<Report>,
    /// Slots lent to the open poll.
    polled: Option<usize>,
    /// Slots lent to the report under way.
    lent: Option<usize>,
    /// So many entries are said one by one, to find the one the server would not take.
    careful: usize,
    heard_at: Instant,
}

impl WorkerState {
    pub fn new(slots: usize, now: Instant) -> WorkerState {
        WorkerState {
            slots,
            is_taking: true,
            jobs: HashMap::new(),
            outbox: VecDeque::new(),
            polled: None,
            lent: None,
            careful: 0,
            heard_at: now,
        }
    }

    /// Tasks that were handed to us. Once we leave, they go back untouched.
    pub fn take(&mut self, tasks: Vec<ClaimedView>, now: Instant) -> Vec<Start> {
        let mut starts = Vec::with_capacity(tasks.len());
        for task in tasks {
            if self.jobs.contains_key(&task.claim_token) {
                continue;
            }
            if !self.is_taking {
                let back = Outcome::Not(super::Error::snooze(Duration::ZERO));
                self.say(back.item(task.task_id, task.claim_token), None);
                continue;
            }
            let lease = Duration::from_millis(task.lease_ms.max(1));
            let (stop, told) = watch::channel(None);
            let job = Job {
                task_id: task.task_id.clone(),
                lease,
                beat_at: Some(now + lease / 3),
                beaten_at: None,
                progress: None,
                said: 0,
                stop,
                asking: Vec::new(),
            };
            self.jobs.insert(task.claim_token.clone(), job);
            starts.push(Start { task, stop: told });
        }
        starts
    }

    /// A job has ended; nothing if nobody needs to hear how.
    pub fn finish(&mut self, token: &str, outcome: Option<Outcome>) {
        let Some(job) = self.jobs.remove(token) else { return };
        let Some(outcome) = outcome else { return };
        let progress = job.progress.filter(|_| matches!(outcome, Outcome::Not(_))).map(|(_, raw)| raw);
        self.say(outcome.item(job.task_id, token.to_owned()), progress);
    }

    fn say(&mut self, item: DoneItem, progress: Option<Box<RawValue>>) {
        let size = item.result.as_ref().map_or(0, |raw| raw.get().len());
        self.outbox.push_back(Report { item, size, progress, is_substitute: false });
    }

    /// The handler saved how far it is. Many in a row become one.
    pub fn progress(&mut self, token: &str, raw: Box<RawValue>, now: Instant) {
        let Some(job) = self.jobs.get_mut(token) else { return };
        job.said += 1;
        job.progress = Some((job.said, raw));
        let soon = job.beaten_at.map_or(now, |at| at + PROGRESS_EVERY);
        job.beat_at = job.beat_at.map(|at| at.min(soon));
    }

    /// The handler wants a sign of life to be given now. Answers whether the result is still wanted.
    pub fn beat(&mut self, token: &str, now: Instant) -> Option<oneshot::Receiver<bool>> {
        let job = self.jobs.get_mut(token).filter(|job| job.beat_at.is_some())?;
        job.beat_at = Some(now);
        let (tell, told) = oneshot::channel();
        job.asking.push(tell);
        Some(told)
    }

    /// Nothing more is taken on.
    pub fn leave(&mut self) {
        self.is_taking = false;
    }

    /// The time to finish is over: whatever is still under way goes back.
    pub fn hand_back(&mut self) {
        for job in self.jobs.values() {
            job.stop.send_if_modified(|stop| stop.is_none() && stop.replace(Stop::Leaving).is_none());
        }
    }

    /// Nothing is left to do or to say, and nothing more will come.
    pub fn is_done(&self) -> bool {
        !self.is_taking
            && self.jobs.is_empty()
            && self.outbox.is_empty()
            && self.polled.is_none()
            && self.lent.is_none()
    }

    pub fn is_taking(&self) -> bool {
        self.is_taking
    }

    fn free(&self) -> usize {
        let used = self.jobs.len() + self.polled.unwrap_or(0) + self.lent.unwrap_or(0);
        if self.is_taking { self.slots.saturating_sub(used) } else { 0 }
    }

    /// A report goes first: it takes free slots along, and brings tasks back sooner. Without a free slot, a poll for
    /// nothing listens for what was cancelled.
    pub fn poll(&mut self, now: Instant) -> Poll {
        if !self.is_taking {
            return Poll::Never;
        }
        if self.lent.is_some() || !self.outbox.is_empty() {
            return Poll::Later;
        }
        let credits = self.free().min(ENTRIES_MAX);
        let listen_at = self.heard_at + LISTEN_AFTER;
        if credits == 0 && listen_at > now {
            return Poll::NotBefore(listen_at);
        }
        self.polled = Some(credits);
        Poll::Now(credits as u32)
    }

    /// The open poll asks for nothing although there is room: it should give way to one that asks.
    pub fn is_starved(&self) -> bool {
        self.polled == Some(0) && self.free() > 0 && self.lent.is_none() && self.outbox.is_empty()
    }

    /// The poll was answered, or given up.
    pub fn polled(&mut self, now: Instant) {
        (self.polled, self.heard_at) = (None, now);
    }

    /// When there is something to say; it may be past.
    pub fn due_at(&self) -> Option<Instant> {
        if !self.outbox.is_empty() {
            return Some(self.heard_at);
        }
        self.jobs.values().filter_map(|job| job.beat_at).min()
    }

    /// Everything that is due, with the slots that are free.
    pub fn batch(&mut self, now: Instant) -> Option<Batch> {
        if self.due_at().is_none_or(|at| at > now && self.outbox.is_empty()) {
            return None;
        }
        let max = if self.careful > 0 { 1 } else { ENTRIES_MAX };
        let mut batch =
            Batch { reports: Vec::new(), done: Vec::new(), beats: Vec::new(), heartbeats: Vec::new(), credits: 0 };
        let (mut kept, mut size) = (VecDeque::new(), 0);
        for mut report in self.outbox.drain(..) {
            let has_room = batch.entries() < max && (batch.done.is_empty() || size + report.size <= BATCH_BYTES_MAX);
            match report.progress.clone() {
                // It is said once this has been saved.
                Some(progress) if has_room => {
                    batch.beat(&report.item.task_id, &report.item.claim_token, Some((0, progress)));
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
        for (token, job) in &mut self.jobs {
            // One that is due soon goes along with one that is due.
            if batch.entries() < max && job.beat_at.is_some_and(|at| at <= now + job.lease / 12) {
                job.beaten_at = Some(now);
                job.beat_at = Some(now + job.lease / 3);
                batch.beat(&job.task_id, token, job.progress.clone());
            }
        }
        if batch.entries() == 0 {
            return None;
        }
        self.careful = self.careful.saturating_sub(1);
        let credits = self.free().min(ENTRIES_MAX);
        (self.lent, batch.credits) = (Some(credits), credits as u32);
        Some(batch)
    }

    /// The server has taken down a batch. Answers the reports it did not count, with its word for why.
    pub fn settle(&mut self, batch: Batch, acks: Vec<ReportedView>, now: Instant) -> Vec<(String, String)> {
        (self.lent, self.heard_at) = (None, now);
        let mut refused = Vec::new();
        for ((item, (_, is_substitute)), ack) in batch.done.into_iter().zip(batch.reports).zip(acks) {
            match &*ack.status {
                "recorded" => {}
                "too_large" if !is_substitute => self.substitute(item, "the result is too large"),
                _ => refused.push((item.task_id, ack.status.into_owned())),
            }
        }
        for (token, number) in batch.beats {
            if let Some(job) = self.jobs.get_mut(&token)
                && number.is_some_and(|number| job.said == number)
            {
                job.progress = None;
            }
        }
        refused
    }

    /// What the server says about leases: first those of the heartbeats, then what was cancelled meanwhile.
    pub fn leases(&mut self, beats: &[String], leases: Vec<LeaseView>) {
        for (i, lease) in leases.into_iter().enumerate() {
            match beats.get(i) {
                Some(token) => self.jobs.get_mut(token).into_iter().for_each(|job| job.hear(&lease)),
                // The same task may be here twice, with a claim that was lost and a new one.
                None => {
                    self.jobs.values_mut().filter(|job| job.task_id == lease.task_id).for_each(|job| job.hear(&lease))
                }
            }
        }
    }

    /// Nobody heard the batch, or nobody knows: it is said again.
    pub fn put_back(&mut self, batch: Batch, now: Instant) {
        self.lent = None;
        let reports = batch.done.into_iter().zip(batch.reports);
        for (item, (size, is_substitute)) in reports.rev() {
            self.outbox.push_front(Report { item, size, progress: None, is_substitute });
        }
        for ((token, _), heartbeat) in batch.beats.into_iter().zip(batch.heartbeats) {
            if let Some(job) = self.jobs.get_mut(&token) {
                job.beat_at = job.beat_at.map(|at| at.min(now));
            } else if let Some(report) = self.outbox.iter_mut().find(|report| report.item.claim_token == token) {
                report.progress = report.progress.take().or(heartbeat.progress);
            }
        }
    }

    /// The server would not take a batch as it is. One by one, it will say which entry it means; that one is
    /// replaced by a failure that says so, or dropped. Answers tasks of which nothing can be told.
    pub fn refused(&mut self, mut batch: Batch, why: &str, now: Instant) -> Vec<(String, String)> {
        if batch.entries() > 1 {
            self.careful = batch.entries();
            self.put_back(batch, now);
            return Vec::new();
        }
        self.lent = None;
        if let Some((token, _)) = batch.beats.pop() {
            if let Some(job) = self.jobs.get_mut(&token) {
                job.progress = None;
            }
            return Vec::new();
        }
        let Some((item, (_, is_substitute))) = batch.done.pop().zip(batch.reports.pop()) else { return Vec::new() };
        if is_substitute {
            return vec![(item.task_id, why.to_owned())];
        }
        self.substitute(item, &format!("the server would not take the result: {why}"));
        Vec::new()
    }

    fn substitute(&mut self, item: DoneItem, why: &str) {
        let outcome = Outcome::Not(super::Error::fail(why).code("result_refused"));
        let item = outcome.item(item.task_id, item.claim_token);
        self.outbox.push_back(Report { item, size: 0, progress: None, is_substitute: true });
    }
}

impl Batch {
    fn beat(&mut self, task_id: &str, token: &str, progress: Option<(u64, Box<RawValue>)>) {
        let (number, progress) = progress.unzip();
        self.beats.push((token.to_owned(), number));
        self.heartbeats.push(HeartbeatItem {
            task_id: task_id.to_owned(),
            claim_token: token.to_owned(),
            extend: None,
            progress,
        });
    }

    /// Whose signs of life are in it.
    pub fn beaten(&self) -> Vec<String> {
        self.beats.iter().map(|(token, _)| token.clone()).collect()
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

    fn done(value: Value) -> Option<Outcome> {
        Some(Outcome::Done(raw(value)))
    }

    fn ack(n: u32, status: &'static str) -> ReportedView {
        ReportedView { task_id: format!("task_{n}"), status: status.into() }
    }

    /// Tokens of the reports, then of the heartbeats with their progress, then credits.
    fn told(batch: &Batch) -> String {
        let done: Vec<&str> = batch.done.iter().map(|item| item.claim_token.as_str()).collect();
        let beats: Vec<String> = batch
            .heartbeats
            .iter()
            .map(|b| format!("{}{}", b.claim_token, b.progress.as_ref().map_or("", |p| p.get())))
            .collect();
        format!("done {done:?} beats {beats:?} credits {}", batch.credits).replace('"', "")
    }

    #[test]
    fn slots_are_lent_once() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        assert_eq!(worker_state.poll(now), Poll::Now(4));
        assert!(worker_state.batch(now).is_none(), "nothing to say");
        worker_state.polled(now);
        assert_eq!(worker_state.take(vec![task(1), task(2), task(1)], now).len(), 2, "the same claim is one job");
        assert_eq!(worker_state.poll(now), Poll::Now(2));
        worker_state.finish("c1", done(json!(1)));
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(told(&batch), "done [c1] beats [] credits 1", "two are the poll's, one is busy");
        worker_state.polled(now);
        assert_eq!(worker_state.poll(now), Poll::Later, "the report will tell");
        assert!(worker_state.settle(batch, vec![ack(1, "recorded")], now).is_empty());
        assert_eq!(worker_state.poll(now), Poll::Now(3));
    }

    #[test]
    fn a_full_worker_listens_until_there_is_room() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(1, now);
        worker_state.take(vec![task(1)], now);
        assert_eq!(worker_state.poll(now), Poll::NotBefore(now + LISTEN_AFTER));
        let later = now + LISTEN_AFTER;
        assert_eq!(worker_state.poll(later), Poll::Now(0));
        assert!(!worker_state.is_starved());
        worker_state.finish("c1", done(json!(1)));
        let batch = worker_state.batch(later).unwrap();
        assert_eq!(told(&batch), "done [c1] beats [] credits 1");
        assert!(!worker_state.is_starved(), "the report asks");
        worker_state.settle(batch, vec![ack(1, "recorded")], later);
        assert!(worker_state.is_starved(), "and brought nothing");
    }

    #[test]
    fn a_lease_is_renewed_after_a_third_of_it() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.take(vec![task(1)], now);
        assert_eq!(worker_state.due_at(), Some(now + Duration::from_secs(10)));
        assert!(worker_state.batch(now + Duration::from_secs(9)).is_none());
        let due = now + Duration::from_secs(10);
        let batch = worker_state.batch(due).unwrap();
        assert_eq!(told(&batch), "done [] beats [c1] credits 3");
        worker_state.put_back(batch, due);
        let batch = worker_state.batch(due).expect("it is said again");
        let beaten = batch.beaten();
        worker_state.settle(batch, vec![], due);
        let lease = |cancel| LeaseView { task_id: "task_1".into(), lease_until: None, cancel };
        worker_state.leases(&beaten, vec![lease(false)]);
        assert_eq!(worker_state.due_at(), Some(due + Duration::from_secs(10)));
        worker_state.leases(&[], vec![lease(true)]);
        assert_eq!(worker_state.due_at(), None, "a task nobody wants has no lease to keep");
    }

    #[test]
    fn reports_stay_until_they_are_acknowledged() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.take(vec![task(1), task(2), task(3)], now);
        worker_state.finish("c1", done(json!(1)));
        worker_state.finish("c2", done(json!(2)));
        let batch = worker_state.batch(now).unwrap();
        worker_state.finish("c3", done(json!(3)));
        worker_state.put_back(batch, now);
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(told(&batch), "done [c1, c2, c3] beats [] credits 4", "in their order");
        let refused =
            worker_state.settle(batch, vec![ack(1, "recorded"), ack(2, "stale_claim"), ack(3, "too_large")], now);
        assert_eq!(refused, [("task_2".to_owned(), "stale_claim".to_owned())]);
        let batch = worker_state.batch(now).unwrap();
        assert!(batch.done[0].is_final && batch.done[0].claim_token == "c3", "a failure stands for it");
        assert_eq!(worker_state.settle(batch, vec![ack(3, "too_large")], now).len(), 1, "but only once");
        worker_state.leave();
        assert!(worker_state.is_done());
    }

    #[test]
    fn progress_goes_out_before_the_failure_it_was_saved_for() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.take(vec![task(1), task(2)], now);
        worker_state.progress("c1", raw(json!(1)), now);
        worker_state.progress("c1", raw(json!(7)), now);
        worker_state.progress("c2", raw(json!(8)), now);
        worker_state.finish("c1", Some(Outcome::Not(super::super::Error::retry("no"))));
        worker_state.finish("c2", done(json!(2)));
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(told(&batch), "done [c2] beats [c17] credits 4");
        worker_state.put_back(batch, now);
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(told(&batch), "done [c2] beats [c17] credits 4", "also after a failure");
        worker_state.settle(batch, vec![ack(2, "recorded")], now);
        assert_eq!(told(&worker_state.batch(now).unwrap()), "done [c1] beats [] credits 4");
    }

    #[test]
    fn an_entry_the_server_would_not_take_is_found_and_replaced() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(4, now);
        worker_state.take(vec![task(1), task(2)], now);
        worker_state.finish("c1", done(json!(1)));
        worker_state.finish("c2", done(json!(2)));
        let batch = worker_state.batch(now).unwrap();
        assert!(worker_state.refused(batch, "no", now).is_empty());
        let first = worker_state.batch(now).unwrap();
        assert_eq!(told(&first), "done [c1] beats [] credits 4");
        assert!(worker_state.refused(first, "no", now).is_empty());
        let second = worker_state.batch(now).unwrap();
        assert_eq!(told(&second), "done [c2] beats [] credits 4");
        worker_state.settle(second, vec![ack(2, "recorded")], now);
        let instead = worker_state.batch(now).unwrap();
        assert_eq!(instead.done[0].error.as_ref().unwrap().code.as_deref(), Some("result_refused"));
        assert_eq!(worker_state.refused(instead, "still no", now), [("task_1".to_owned(), "still no".to_owned())]);
    }

    #[test]
    fn who_leaves_hands_back_what_still_comes() {
        let now = Instant::now();
        let mut worker_state = WorkerState::new(2, now);
        let started = worker_state.take(vec![task(1)], now);
        assert_eq!(worker_state.poll(now), Poll::Now(1));
        worker_state.leave();
        worker_state.polled(now);
        assert!(worker_state.take(vec![task(2)], now).is_empty());
        assert_eq!(worker_state.poll(now), Poll::Never);
        let batch = worker_state.batch(now).unwrap();
        assert_eq!(batch.done[0].snooze, Some(json!("0ms")));
        assert_eq!(batch.credits, 0);
        worker_state.settle(batch, vec![ack(2, "recorded")], now);
        assert!(!worker_state.is_done());
        worker_state.hand_back();
        assert_eq!(*started[0].stop.borrow(), Some(Stop::Leaving));
        worker_state.finish("c1", None);
        assert!(worker_state.is_done());
    }
}
