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
    /// Rows may be left that no process has in memory, because a read or an answer failed. Only on a shared store does
    /// anything else read them again.
    has_unread: bool,
}

struct WaitingCaller {
    reply_to: ReplyChannel,
    until: Instant,
}

impl DeferredInputs {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>) -> (Arc<DeferralQueue>, DeferredInputs) {
        let (sender, work) = mpsc::unbounded_channel();
        (
            Arc::new(DeferralQueue(sender)),
            DeferredInputs { core, cluster, work, waiting: BTreeMap::new(), has_unread: false },
        )
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
                () = self.cluster.inbox_written.notified() => self.has_unread = true,
                () = tokio::time::sleep(pause) => {}
            }
            if self.has_unread {
                self.read().await;
            }
            self.answer_callers().await;
        }
    }

    async fn read(&mut self) {
        let read = self.cluster.read_inbox().await;
        self.has_unread = read.is_err();
        if let Err(error) = read {
            tracing::warn!(%error, "the inbox cannot be read; it is read again within a second");
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

    async fn answer(&mut self, answers: &[ConsumedRow]) {
        match self.core.written(self.core.store.answer_inbox(answers).await) {
            Ok(()) => crash::point(Point::InboxAnswered),
            Err(error) => {
                self.has_unread = true;
                tracing::warn!(%error, "inputs from the inbox cannot be answered; they are read again within a second");
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
        #[cfg(test)]
        tests::fail_if_asked()?;
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

#[cfg(test)]
mod tests {
    use crate::StartRequest;
    use crate::clock::ClockMode;
    use crate::engine::{Engine, Options};
    use crate::error::Error;
    use crate::secret::Secret;
    use kernel::inbox::{InboxKind, StoredInput};
    use kernel::{InboxId, OrgId, Span};
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;
    use store::InboxRow;
    use store::prelude::*;

    thread_local! {
        /// How many of the next reads of the inbox fail.
        static FAILING_READS: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn fail_if_asked() -> Result<(), Error> {
        match FAILING_READS.get() {
            0 => Ok(()),
            left => {
                FAILING_READS.set(left - 1);
                Err(Error::Unavailable("the disk is busy".into()))
            }
        }
    }

    #[tokio::test]
    async fn a_row_of_the_inbox_is_read_again_after_a_read_failed_on_a_store_of_one_process() {
        let options = Options {
            secret: Secret::new([7; 32]),
            public_url: "http://127.0.0.1:7420".into(),
            clock: ClockMode::Virtual,
            clock_start: None,
            clock_advance: Span(0),
            accept_clock: false,
            http: Default::default(),
            seed: Some(1),
            node: String::new(),
            retention: None,
            bash: None,
        };
        let store = Arc::new(store::MemoryStore::default());
        let engine = Engine::open(store.clone(), options).await.expect("it opens");
        let tree = lang::read(br#"{"name": "one", "tasks": {"a": {"sleep": "1h"}}}"#, lang::Syntax::Json);
        let compiled = lang::compile(&tree.expect("a document")).expect("a definition");
        engine.workflows.create(OrgId::DEFAULT, &compiled, None).await.expect("it is new");
        let workflow = engine.workflows.resolve(OrgId::DEFAULT, "one").await.expect("it reads").expect("it exists");
        let request = StartRequest::new(OrgId::DEFAULT, workflow, "{}".into());
        let run = engine.runs.start(request).await.expect("it starts").run;
        let written_at = Default::default();
        let key = (OrgId::DEFAULT, run, InboxId::new(written_at, [1; 10]));
        let body = StoredInput::Cancel { actor: "ada".into(), reason: String::new() }.seal();
        let row = InboxRow { key, kind: InboxKind::Input, body, written_at, sender: None };
        store.put_inbox(&[row]).await.expect("it is written");
        FAILING_READS.set(1);
        engine.cluster.inbox_written.notify_one();
        let has_ended = engine.runs.wait(OrgId::DEFAULT, run, Duration::from_secs(20)).await.expect("it reads");
        assert_eq!((has_ended, FAILING_READS.get()), (true, 0));
        engine.stop().await;
    }
}
