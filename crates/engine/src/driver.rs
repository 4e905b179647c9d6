//! The driver: what happens between the turns of the mailbox, the commits and everything that waits for them.
//!
//! ```text
//!   decide ──▶ begin ──a batch──▶ the caller writes it ──▶ written ──▶ settle ──▶ Shell: replies, work, events, …
//!     └──▶ Reads: runs, payloads and queues that the caller reads; each comes back as a command
//! ```
//!
//! One batch is being written at a time. Meanwhile the next one is decided, and it may be begun before the first is
//! settled. Like the mailbox, the driver has no clock, threads or I/O: threads drive it against a real store
//! ([`engine_loop`](crate::services::engine_loop)), and the simulator as events in virtual time, so both do the same.
//!
//! Invariant: after a refused batch the one that was decided meanwhile is not tried. The state of the store that it
//! would meet is unknown.

use crate::mailbox::{
    Attempts, Command, DeferredInput, Dispatch, LoadFailure, Mailbox, Released, Reply, Resumed, Turn,
};
use crate::nodes::Nodes;
use crate::task_queue::ClaimedTask;
use kernel::advance::TaskResult;
use kernel::event::Failure;
use kernel::{Input, OrgId, RunId, Span, Timestamp};
use store::{
    Batch, ClusterEvent, ConsumedRow, Error, InboxKey, InboxRow, QueueKey, QueuePosition, Store, WriteVerdict,
};

/// The pause before the next batch, when the store has refused one.
pub const RETRY_PAUSE: Span = Span::from_millis(200);

/// What became of a batch.
pub type CommitResult = store::Result<Vec<WriteVerdict>>;

/// What the driver asks of the process around it, in this order, when a batch is settled.
pub trait Shell<T> {
    /// The outcome of a batch is known. Nothing of it has left yet.
    fn batch_written(&mut self, _batch: &Batch, _result: &CommitResult) {}
    /// Gives the reply back if its caller has hung up.
    fn reply(&mut self, reply_to: T, reply: Reply) -> Result<(), Reply>;
    fn abort(&mut self, run: RunId, fence: u64);
    /// Tells the other nodes; the message may be lost.
    fn broadcast(&mut self, event: ClusterEvent);
    /// A run has ended: starts the run that delivers this notification.
    fn notify(&mut self, org: OrgId, run: RunId, number: u64);
    /// Writes inputs to the inbox; their callers are answered from there.
    fn defer(&mut self, inputs: Vec<DeferredInput<T>>);
    /// Answers rows of the inbox that no record consumes.
    fn answer_inbox(&mut self, answers: Vec<ConsumedRow>);
    /// Starts the runs that these rows ask for.
    fn start_children(&mut self, rows: Vec<InboxRow>);
    /// Looks at the rows with which parents close children that do not exist.
    fn close_children(&mut self, keys: Vec<InboxKey>);
    /// Reads the inbox soon.
    fn read_inbox(&mut self);
    /// Starts an attempt. Returns its result if it has one at once.
    fn execute(&mut self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)>;
    fn count(&mut self, _counts: &SettledCounts) {}
}

/// What a settled batch adds to the counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettledCounts {
    pub started: u64,
    pub ended: u64,
    pub steps: u64,
    pub leased: u64,
}

/// Whether the driver goes on after a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Afterwards {
    Continue,
    /// The store refused the batch, or its outcome is unknown and the runs are read again: goes on after
    /// [`RETRY_PAUSE`].
    Pause(Error),
    /// Other nodes have taken over. Goes on after the pause, and the node renews its lease at once.
    Fenced(Error),
    /// Memory and store may disagree forever: the process has to end and to read everything again.
    Stop(Error),
}

/// What a turn needs from the store.
#[derive(Debug, Default)]
pub struct Reads {
    pub runs: Vec<(OrgId, RunId)>,
    pub payloads: Vec<(OrgId, RunId, Vec<u32>)>,
    /// Reads for the task queue. Their results go to the mailbox together: a worker that claims several types must not
    /// get a task of the queue that was read first when another queue's task goes before it.
    pub queues: Vec<QueueRead>,
}

/// A read that the task queue asked for.
#[derive(Clone, Debug)]
pub enum QueueRead {
    Refill(QueueKey, Option<QueuePosition>),
    Keys(OrgId, String, Option<String>),
    LimitSlots(OrgId, String),
}

pub struct Driver<T> {
    mailbox: Mailbox<T>,
    /// The turn that is decided next; its batch is not begun.
    decided: Option<Turn<T>>,
    /// The turn whose batch is being written.
    writing: Option<Turn<T>>,
    /// The turn whose batch was written or refused, and is not settled.
    written: Option<(Turn<T>, CommitResult)>,
    /// The last batch was refused, and so is the one that was decided meanwhile.
    is_refused: bool,
    /// Does a later read show what became of a commit whose outcome is unknown?
    reads_are_durable: bool,
}

impl<T> Driver<T> {
    pub fn new(mailbox: Mailbox<T>, reads_are_durable: bool) -> Driver<T> {
        Driver { mailbox, decided: None, writing: None, written: None, is_refused: false, reads_are_durable }
    }

    pub fn mailbox(&self) -> &Mailbox<T> {
        &self.mailbox
    }

    pub fn retain_watchers(&mut self, keep: impl Fn(&T) -> bool) {
        self.mailbox.retain_watchers(keep);
    }

    /// Takes commands and advances the runs that have inputs. A run whose record is being written does not advance.
    pub fn decide(&mut self, commands: impl IntoIterator<Item = Command<T>>, now: Timestamp) -> Reads {
        let turn = self.decided.get_or_insert_default();
        self.mailbox.tick(now);
        commands.into_iter().for_each(|command| self.mailbox.accept(command));
        self.mailbox.turn(now, turn);
        let refills = turn.refills.drain(..).map(|(queue, after)| QueueRead::Refill(queue, after));
        let keys = turn.key_reads.drain(..).map(|(org, name, after)| QueueRead::Keys(org, name, after));
        let limit_slots = turn.slot_reads.drain(..).map(|(org, name)| QueueRead::LimitSlots(org, name));
        let queues = refills.chain(keys).chain(limit_slots).collect();
        Reads { runs: std::mem::take(&mut turn.loads), payloads: std::mem::take(&mut turn.fetches), queues }
    }

    /// How many runs the next batch has.
    pub fn decided(&self) -> usize {
        self.decided.as_ref().map_or(0, |turn| turn.batch.runs.len())
    }

    /// Does the next batch start steps in this process?
    pub fn starts_local_steps(&self) -> bool {
        self.decided.as_ref().is_some_and(Turn::starts_local_steps)
    }

    /// The next batch to write, if there is one and no other is being written.
    pub fn begin(&mut self) -> Option<Batch> {
        if self.writing.is_some() || self.is_refused {
            return None;
        }
        let mut turn = self.decided.take_if(|turn| !turn.batch.runs.is_empty())?;
        let batch = std::mem::take(&mut turn.batch);
        self.writing = Some(turn);
        Some(batch)
    }

    /// The batch that was begun is written, or not.
    pub fn written(&mut self, batch: Batch, result: CommitResult) {
        let Some(mut turn) = self.writing.take() else { return };
        debug_assert!(self.written.is_none(), "batches are settled in the order in which they were written");
        turn.batch = batch;
        self.is_refused = result.is_err();
        self.written = Some((turn, result));
    }

    /// Carries out what the last batch allows, or takes back what was refused. `None` when nothing is to be settled.
    pub fn settle(&mut self, now: Timestamp, shell: &mut impl Shell<T>) -> Option<Afterwards> {
        if let Some((turn, result)) = self.written.take() {
            self.is_refused &= self.decided.is_some();
            return Some(self.release(turn, result, now, shell));
        }
        let is_to_begin = |turn: &Turn<T>| !turn.batch.runs.is_empty() && !self.is_refused;
        if self.writing.is_some() || self.decided.as_ref().is_none_or(is_to_begin) {
            return None;
        }
        let turn = self.decided.take()?;
        self.is_refused = false;
        let result = match turn.batch.runs.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Error::Unavailable("the batch before it could not be written".into())),
        };
        Some(self.release(turn, result, now, shell))
    }

    fn release(
        &mut self,
        turn: Turn<T>,
        result: CommitResult,
        now: Timestamp,
        shell: &mut impl Shell<T>,
    ) -> Afterwards {
        if !turn.batch.runs.is_empty() {
            shell.batch_written(&turn.batch, &result);
        }
        let next = result.as_ref().err().map_or(Afterwards::Continue, |error| self.after(error));
        let Released {
            replies,
            dispatch,
            aborts,
            notifications,
            started,
            ended,
            steps,
            leased,
            posted,
            touches_remote_group,
            moved,
            deferred,
            inbox_answers,
            children,
            closed_children,
            informs_other_nodes,
            reads_inbox,
        } = self.mailbox.settle(turn, result);
        for (reply_to, reply) in replies {
            // That a caller has hung up matters only for a claim, whose leases go back to the queue.
            if let Err(Reply::Claimed(claimed)) = shell.reply(reply_to, reply) {
                claimed.tasks.iter().for_each(|task| self.mailbox.accept(undelivered(task, now)));
            }
        }
        aborts.into_iter().for_each(|(run, fence)| shell.abort(run, fence));
        posted.into_iter().for_each(|queue| shell.broadcast(ClusterEvent::TaskReady(queue)));
        notifications.into_iter().for_each(|(org, run, number)| shell.notify(org, run, number));
        moved.into_iter().for_each(|(org, run)| shell.broadcast(ClusterEvent::RunAdvanced(org, run)));
        if !deferred.is_empty() {
            shell.defer(deferred);
        }
        if !inbox_answers.is_empty() {
            shell.answer_inbox(inbox_answers);
        }
        if !children.is_empty() {
            shell.start_children(children);
        }
        if !closed_children.is_empty() {
            shell.close_children(closed_children);
        }
        if informs_other_nodes {
            shell.broadcast(ClusterEvent::InboxWritten);
        }
        if reads_inbox {
            shell.read_inbox();
        }
        if touches_remote_group {
            shell.broadcast(ClusterEvent::GroupsChanged);
        }
        for dispatch in dispatch {
            if let Some((dispatch, result)) = shell.execute(dispatch) {
                self.mailbox.accept(finished(&dispatch, result));
            }
        }
        shell.count(&SettledCounts { started, ended, steps, leased });
        next
    }

    fn after(&self, error: &Error) -> Afterwards {
        match error {
            Error::Unavailable(_) => Afterwards::Pause(error.clone()),
            // The runs of the batch are read again before they advance.
            Error::Unknown(_) if self.reads_are_durable => Afterwards::Pause(error.clone()),
            Error::Fenced => Afterwards::Fenced(error.clone()),
            fatal => Afterwards::Stop(fatal.clone()),
        }
    }

    /// When to decide again if nothing arrives; `None` if only a command gives it something to do.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.mailbox.has_work() { Some(now) } else { self.mailbox.next_due() }
    }

    /// Other nodes own this node's runs now: it continues as a node that has just joined. Returns replies for all
    /// callers, and the attempts under way. No batch may be in the works.
    pub fn abandon(&mut self, nodes: Nodes) -> (Vec<(T, Reply)>, Attempts) {
        debug_assert!(self.writing.is_none() && self.written.is_none() && self.decided.is_none());
        self.is_refused = false;
        self.mailbox.abandon(nodes)
    }
}

impl QueueRead {
    /// Reads at most `page` rows, and makes the command for the mailbox.
    pub async fn carry_out<T>(self, store: &dyn Store, page: usize) -> Command<T> {
        match self {
            QueueRead::Refill(queue, after) => {
                let rows = store.ready_tasks(&queue, after, page).await.ok();
                Command::Refilled { queue, rows }
            }
            QueueRead::Keys(org, name, after) => {
                let keys = store.ready_keys(org, &name, after.as_deref(), page).await.ok();
                Command::KeysRead { org, name, keys }
            }
            QueueRead::LimitSlots(org, name) => {
                let rows = store.limit_slots(org, &name).await.ok();
                Command::LimitSlots { org, name, rows }
            }
        }
    }

    /// The command that says that the read failed.
    pub fn failed<T>(self) -> Command<T> {
        match self {
            QueueRead::Refill(queue, _) => Command::Refilled { queue, rows: None },
            QueueRead::Keys(org, name, _) => Command::KeysRead { org, name, keys: None },
            QueueRead::LimitSlots(org, name) => Command::LimitSlots { org, name, rows: None },
        }
    }
}

/// The command for a run that was read.
pub fn loaded<T>(run: RunId, result: Result<Option<Resumed>, LoadFailure>) -> Command<T> {
    Command::Loaded { run, result: result.map(|found| found.map(Box::new)) }
}

/// An executor's result as a command.
pub fn finished<T>(dispatch: &Dispatch, result: TaskResult) -> Command<T> {
    let input = Input::Finished { step: dispatch.step, fence: dispatch.fence, result, digest: 0 };
    Command::Give { org: dispatch.org, run: dispatch.run, input, reply_to: None }
}

/// Returns a task whose worker hung up before it got the lease.
fn undelivered<T>(task: &ClaimedTask, now: Timestamp) -> Command<T> {
    let failure = Failure::new("not_delivered", "the worker hung up before it got the task");
    let result = TaskResult::Blocked { until: now, failure };
    let input = Input::Finished { step: task.step, fence: task.fence, result, digest: 1 };
    Command::Give { org: task.org, run: task.run, input, reply_to: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::tests::start;
    use std::sync::Arc;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    /// Notes the callers that got a reply, and whether it was a refusal.
    #[derive(Default)]
    struct Replies(Vec<(u8, bool)>);

    impl Shell<u8> for Replies {
        fn reply(&mut self, reply_to: u8, reply: Reply) -> Result<(), Reply> {
            self.0.push((reply_to, matches!(reply, Reply::Unavailable(_) | Reply::Unknown(_))));
            Ok(())
        }
        fn abort(&mut self, _: RunId, _: u64) {}
        fn broadcast(&mut self, _: ClusterEvent) {}
        fn notify(&mut self, _: OrgId, _: RunId, _: u64) {}
        fn defer(&mut self, _: Vec<DeferredInput<u8>>) {}
        fn answer_inbox(&mut self, _: Vec<ConsumedRow>) {}
        fn start_children(&mut self, _: Vec<InboxRow>) {}
        fn close_children(&mut self, _: Vec<InboxKey>) {}
        fn read_inbox(&mut self) {}
        fn execute(&mut self, _: Dispatch) -> Option<(Dispatch, TaskResult)> {
            None
        }
    }

    fn driver(reads_are_durable: bool) -> Driver<u8> {
        Driver::new(Mailbox::new(1, Arc::new(|_, _| String::new())), reads_are_durable)
    }

    /// The command that starts run `n`, answered to `n`.
    fn starts(n: u8) -> [Command<u8>; 1] {
        [Command::Start { start: start(RunId([n; 16])), reply_to: n, ended: None }]
    }

    /// The first batch is begun, and the second one decided meanwhile.
    fn with_two_batches(reads_are_durable: bool) -> (Driver<u8>, Batch) {
        let mut driver = driver(reads_are_durable);
        driver.decide(starts(1), NOW);
        let first = driver.begin().expect("a batch");
        driver.decide(starts(2), NOW);
        assert!(driver.begin().is_none(), "one batch is written at a time");
        assert!(driver.settle(NOW, &mut Replies::default()).is_none(), "nothing is known yet");
        (driver, first)
    }

    #[test]
    fn the_next_batch_may_be_begun_before_the_last_one_is_settled() {
        let (mut driver, first) = with_two_batches(true);
        driver.written(first, Ok(vec![WriteVerdict::Committed]));
        let second = driver.begin().expect("the batch that was decided meanwhile");
        let mut replies = Replies::default();
        assert_eq!(driver.settle(NOW, &mut replies), Some(Afterwards::Continue));
        assert_eq!(replies.0, [(1, false)]);
        assert_eq!(driver.settle(NOW, &mut replies), None, "the second batch is being written");
        driver.written(second, Ok(vec![WriteVerdict::Committed]));
        assert_eq!(driver.settle(NOW, &mut replies), Some(Afterwards::Continue));
        assert_eq!(replies.0, [(1, false), (2, false)]);
    }

    #[test]
    fn after_a_refused_batch_the_next_one_is_not_tried() {
        let (mut driver, first) = with_two_batches(true);
        let refused = Error::Unavailable("full".into());
        driver.written(first, Err(refused.clone()));
        assert!(driver.begin().is_none());
        let mut replies = Replies::default();
        assert_eq!(driver.settle(NOW, &mut replies), Some(Afterwards::Pause(refused)));
        assert!(matches!(driver.settle(NOW, &mut replies), Some(Afterwards::Pause(_))));
        assert_eq!(driver.settle(NOW, &mut replies), None);
        assert_eq!(replies.0, [(1, true), (2, true)]);
        driver.decide(starts(3), NOW);
        assert!(driver.begin().is_some(), "the driver goes on");
    }

    #[test]
    fn replies_that_need_no_commit_leave_without_one() {
        let mut driver = driver(true);
        let query = Command::QueueStatus { run: RunId([1; 16]), reply_to: 7 };
        driver.decide([query], NOW);
        assert!(driver.begin().is_none());
        let mut replies = Replies::default();
        assert_eq!(driver.settle(NOW, &mut replies), Some(Afterwards::Continue));
        assert_eq!((replies.0, driver.settle(NOW, &mut Replies::default())), (vec![(7, false)], None));
    }

    #[test]
    fn an_unknown_outcome_stops_a_process_that_cannot_read_what_became_of_it() {
        let unknown = || Error::Unknown("no answer".into());
        for (reads_are_durable, error, next) in [
            (true, unknown(), Afterwards::Pause(unknown())),
            (false, unknown(), Afterwards::Stop(unknown())),
            (true, Error::Fenced, Afterwards::Fenced(Error::Fenced)),
            (true, Error::Refused("no".into()), Afterwards::Stop(Error::Refused("no".into()))),
        ] {
            let (mut driver, first) = with_two_batches(reads_are_durable);
            driver.written(first, Err(error));
            assert_eq!(driver.settle(NOW, &mut Replies::default()), Some(next));
        }
    }
}
