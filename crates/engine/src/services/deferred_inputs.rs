//! Inputs that met too many conflicts: writing them to the `inbox` table, applying the rows of runs that this node
//! owns, and answering the callers of this node.
//!
//! ```text
//!   node of the caller                                        owner of the run
//!   mailbox ──▶ put_inbox ──▶ row ──InboxWritten, or a sweep──▶ read_inbox ──▶ mailbox
//!   caller ◀── take_inbox_answers ◀── row with its answer ◀──────────────────── record
//! ```
//!
//! Either node may be killed at any time. A row without an answer is applied by whichever node owns the run next, and
//! an answer whose caller is gone is deleted after an hour.

use super::cluster::Cluster;
use super::core::Core;
use super::reply_channel::ReplyChannel;
use crate::error::Error;
use crate::mailbox::{Command, DeferredInput, InboxInput, Reply};
use kernel::inbox::InboxKind;
use kernel::{Span, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::crash::{self, Point};
use store::{ClusterEvent, ConsumedRow, InboxKey, InboxRow};
use tokio::sync::mpsc;

/// How often the answers that callers wait for are looked up.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// How often an idle service checks whether the engine has stopped.
const IDLE: Duration = Duration::from_secs(1);
/// How long a caller waits for its answer. Afterwards the outcome is unknown to it, and the input is still applied.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long an answer is kept for a caller. No caller waits that long.
const ANSWERS_KEPT: Span = Span::from_secs(60 * 60);
/// Rows read at a time.
const PAGE: usize = 1_000;

/// What the engine loop hands over after a commit.
enum Handover {
    Write(Vec<DeferredInput<ReplyChannel>>),
    Answer(Vec<ConsumedRow>),
}

/// The engine loop's end of the service.
pub struct DeferralQueue(mpsc::UnboundedSender<Handover>);

impl DeferralQueue {
    /// Writes the inputs to the inbox, and answers their callers when the rows have an answer.
    pub fn write(&self, inputs: Vec<DeferredInput<ReplyChannel>>) {
        // If the service has ended, so has the engine; a dropped reply channel says so.
        let _ = self.0.send(Handover::Write(inputs));
    }

    /// Answers rows that no record consumes.
    pub fn answer(&self, answers: Vec<ConsumedRow>) {
        let _ = self.0.send(Handover::Answer(answers));
    }
}

pub struct DeferredInputs {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    work: mpsc::UnboundedReceiver<Handover>,
    waiting: BTreeMap<InboxKey, WaitingCaller>,
}

struct WaitingCaller {
    reply_to: ReplyChannel,
    until: Instant,
}

impl DeferredInputs {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>) -> (Arc<DeferralQueue>, DeferredInputs) {
        let (sender, work) = mpsc::unbounded_channel();
        (Arc::new(DeferralQueue(sender)), DeferredInputs { core, cluster, work, waiting: BTreeMap::new() })
    }

    /// Runs until the engine stops.
    pub async fn run(mut self) {
        while !self.core.inbox.is_closed() {
            let pause = if self.waiting.is_empty() { IDLE } else { POLL_EVERY };
            tokio::select! {
                work = self.work.recv() => match work {
                    Some(Handover::Write(inputs)) => self.write(inputs).await,
                    Some(Handover::Answer(answers)) => self.answer(&answers).await,
                    None => return,
                },
                () = self.cluster.inbox_written.notified() => {
                    if let Err(error) = self.cluster.read_inbox().await {
                        tracing::warn!(%error, "the inbox cannot be read; it is read again within seconds");
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
            self.answer_callers().await;
        }
    }

    async fn write(&mut self, inputs: Vec<DeferredInput<ReplyChannel>>) {
        let now = self.core.now();
        let (mut rows, mut callers) = (Vec::new(), Vec::new());
        for DeferredInput { org, run, body, reply_to } in inputs {
            match self.core.ids.inbox_id(now) {
                Ok(id) => {
                    let (key, kind) = ((org, run, id), InboxKind::Input);
                    rows.push(InboxRow { key, kind, body, written_at: now, sender: None });
                    callers.push(reply_to);
                }
                Err(error) => drop(reply_to.send(Reply::Unavailable(error.to_string()))),
            }
        }
        match self.core.written(self.core.store.put_inbox(&rows).await) {
            Ok(()) => {
                crash::point(Point::InputDeferred);
                self.core.metrics.inputs_deferred_total.add(rows.len() as u64);
                let until = Instant::now() + ANSWER_MAX;
                let waiting = callers.into_iter().map(|reply_to| WaitingCaller { reply_to, until });
                self.waiting.extend(rows.iter().map(|row| row.key).zip(waiting));
                self.core.store.broadcast(ClusterEvent::InboxWritten);
                self.cluster.inbox_written.notify_one();
            }
            Err(error) => {
                let reply = match error {
                    Error::OutcomeUnknown(why) => Reply::Unknown(why),
                    other => Reply::Unavailable(other.to_string()),
                };
                callers.into_iter().for_each(|reply_to| drop(reply_to.send(reply.clone())));
            }
        }
    }

    async fn answer(&self, answers: &[ConsumedRow]) {
        match self.core.written(self.core.store.answer_inbox(answers).await) {
            Ok(()) => crash::point(Point::InboxAnswered),
            Err(error) => {
                tracing::warn!(%error, "inputs from the inbox cannot be answered; they are read again within seconds");
            }
        }
    }

    /// Passes on the answers that have arrived, and gives up on those that are late.
    async fn answer_callers(&mut self) {
        self.waiting.retain(|_, caller| !caller.reply_to.is_closed());
        if self.waiting.is_empty() {
            return;
        }
        let keys: Vec<InboxKey> = self.waiting.keys().copied().collect();
        match self.core.store.take_inbox_answers(&keys).await {
            Ok(answers) => {
                if !answers.is_empty() {
                    crash::point(Point::AnswersTaken);
                }
                for (key, answer) in answers {
                    if let Some(caller) = self.waiting.remove(&key) {
                        let _ = caller.reply_to.send(Reply::stored(&answer));
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the answers in the inbox cannot be read"),
        }
        let now = Instant::now();
        for (_, late) in self.waiting.extract_if(.., |_, caller| caller.until <= now) {
            let why = "the run is changing too fast; the request is stored and will be applied";
            let _ = late.reply_to.send(Reply::Unknown(why.into()));
        }
    }
}

impl Cluster {
    /// Gives the mailbox the inputs in the inboxes of runs that this node owns.
    pub(super) async fn read_inbox(&self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let rows = self.core.store.inbox(InboxKind::Input, after, PAGE).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            let is_last_page = rows.len() < PAGE;
            after = Some(last.key);
            let mine = rows.iter().filter(|row| self.is_mine(row.key.1));
            let inputs: Vec<InboxInput> = mine.filter_map(input_of).collect();
            if !inputs.is_empty() {
                self.core.inbox.send(Command::GiveInbox(inputs));
            }
            if is_last_page {
                return Ok(());
            }
        }
    }

    /// Deletes answers whose callers are gone.
    pub(super) async fn delete_old_answers(&self) -> Result<(), Error> {
        let before = Timestamp(self.core.now().0.saturating_sub_unsigned(ANSWERS_KEPT.0));
        self.core.written(self.core.store.delete_inbox_answers(before).await)
    }
}

/// A row that this release cannot read stays: a node of a later release, or an operator, has to look at it.
fn input_of(row: &InboxRow) -> Option<InboxInput> {
    InboxInput::open(row)
        .inspect_err(|error| {
            let (_, run, id) = row.key;
            tracing::warn!(%run, %id, %error, "an input in the inbox cannot be read");
        })
        .ok()
}
