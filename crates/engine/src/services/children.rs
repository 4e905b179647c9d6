//! Starting the runs that steps of other runs ask for.
//!
//! ```text
//!   parent's record + row `start_child`   (one commit)
//!        └─▶ child's first record − that row   (one commit)
//!        └─▶ or, if it can never start: the record of the parent that fails the step − that row
//! ```
//!
//! The node that owns the child's id starts it. The id is part of the row, so starting it twice is the same as once.

use super::cluster::Cluster;
use super::core::Core;
use super::runs::{Runs, StartRequest};
use super::workflows::{Workflows, lock};
use crate::child_rows::{self, ChildRequest, Closing};
use crate::error::Error;
use crate::mailbox::Command;
use kernel::event::Failure;
use kernel::inbox::InboxKind;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::crash::{self, Point};
use store::{InboxKey, InboxRow};
use tokio::sync::mpsc;

/// How often the stored rows are tried again.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Rows queued in memory and read at a time; the others stay in the store.
const PAGE: usize = 1_000;
/// Children that are started at the same time: their first records share a commit.
const AT_ONCE: usize = 256;

/// What the engine loop hands over after a commit.
pub enum ChildWork {
    /// A row that asks for a child.
    Start(InboxRow),
    /// The row with which a parent closes a child that does not exist: not yet, or not any more.
    Close(InboxKey),
}

/// Requests of the engine loop that are not carried out yet.
pub struct ChildQueue {
    sender: mpsc::Sender<ChildWork>,
    waiting: AtomicUsize,
}

impl ChildQueue {
    pub fn new() -> (Arc<ChildQueue>, mpsc::Receiver<ChildWork>) {
        let (sender, receiver) = mpsc::channel(PAGE);
        (Arc::new(ChildQueue { sender, waiting: AtomicUsize::new(0) }), receiver)
    }

    /// False if the queue is full: the row has to be read from the store.
    pub fn put(&self, request: ChildWork) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let is_queued = self.sender.try_send(request).is_ok();
        if !is_queued {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        is_queued
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }
}

pub struct Children {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    runs: Arc<Runs>,
    workflows: Arc<Workflows>,
    queue: Arc<ChildQueue>,
    /// Rows for children that could not be read, or not be decided about yet; tried again with the stored rows.
    undecided: Mutex<BTreeSet<InboxKey>>,
}

/// Why a child could not be started.
enum Refused {
    /// Nothing changes that: the step fails.
    Forever(Failure),
    /// The row stays, and is tried again.
    ForNow(Error),
}

impl Children {
    pub fn new(
        core: Arc<Core>,
        cluster: Arc<Cluster>,
        runs: Arc<Runs>,
        workflows: Arc<Workflows>,
        queue: Arc<ChildQueue>,
    ) -> Children {
        Children { core, cluster, runs, workflows, queue, undecided: Mutex::default() }
    }

    /// Starts children as commits release their rows, and again from the store, until the engine stops.
    pub async fn run(self, mut released: mpsc::Receiver<ChildWork>) {
        while !self.core.inbox.is_closed() {
            if let Err(error) = self.start_stored().await {
                tracing::warn!(%error, "the rows of children to start cannot be read");
            }
            self.try_again().await;
            let pause = tokio::time::sleep(RETRY_EVERY);
            tokio::pin!(pause);
            let mut requests = Vec::new();
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    () = self.cluster.children_wanted.notified() => break,
                    count = released.recv_many(&mut requests, AT_ONCE) => {
                        if count == 0 {
                            return;
                        }
                        self.carry_out(std::mem::take(&mut requests)).await;
                        self.queue.waiting.fetch_sub(count, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Decides again about the rows that could not be decided about.
    async fn try_again(&self) {
        let undecided = std::mem::take(&mut *lock(&self.undecided));
        self.carry_out(undecided.into_iter().map(ChildWork::Close).collect()).await;
    }

    async fn carry_out(&self, requests: Vec<ChildWork>) {
        let mut rows = Vec::new();
        let mut closed = Vec::new();
        for request in requests {
            match request {
                ChildWork::Start(row) => rows.push(row),
                ChildWork::Close(key) => closed.push(key),
            }
        }
        self.start_all(&rows).await;
        for key in closed {
            if let Err(error) = self.close_missing(key).await {
                tracing::warn!(%error, "the rows for a child cannot be read; they are tried again");
                lock(&self.undecided).insert(key);
            }
        }
    }

    async fn start_stored(&self) -> Result<(), store::Error> {
        let mut after = None;
        loop {
            let rows = self.core.store.inbox(InboxKind::StartChild, after, PAGE).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some(last.key);
            let is_last_page = rows.len() < PAGE;
            let mine: Vec<InboxRow> = rows.into_iter().filter(|row| self.cluster.is_mine(row.key.1)).collect();
            for rows in mine.chunks(AT_ONCE) {
                self.start_all(rows).await;
            }
            if is_last_page {
                return Ok(());
            }
        }
    }

    /// Starts these children at the same time.
    async fn start_all(&self, rows: &[InboxRow]) {
        let mut starting: Vec<_> = rows.iter().map(|row| Box::pin(self.start_one(row))).collect();
        // All of them are polled before any is waited for, so that their records share a commit.
        std::future::poll_fn(|context| {
            starting.retain_mut(|one| one.as_mut().poll(context).is_pending());
            if starting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    async fn start_one(&self, row: &InboxRow) {
        let (_, child, _) = row.key;
        let request = match ChildRequest::open(row) {
            Ok(request) => request,
            Err(error) => return tracing::warn!(%child, %error, "the row of a child cannot be read"),
        };
        match self.start(&request).await {
            Ok(()) => {
                // The parent may have ended before the child existed.
                if let Err(error) = self.give_early_inputs(row.key).await {
                    tracing::warn!(%child, %error, "the rows for a child cannot be read; they are tried again");
                    lock(&self.undecided).insert(row.key);
                }
            }
            Err(Refused::Forever(failure)) => {
                // Without the other rows for the child, which only this removes, its row stays and is tried again.
                if let Err(error) = self.fail_step(&request, failure).await {
                    tracing::warn!(%child, %error, "the rows for a child that cannot start cannot be read");
                }
            }
            Err(Refused::ForNow(error)) => tracing::debug!(%child, %error, "a child cannot be started yet"),
        }
    }

    async fn start(&self, request: &ChildRequest) -> Result<(), Refused> {
        let (org, ..) = request.key;
        let name = &request.workflow;
        let found = self.workflows.resolve(org, name).await.map_err(Refused::of)?;
        let workflow = found.ok_or_else(|| Refused::Forever(child_rows::unknown_workflow(name)))?;
        let start = StartRequest::new(org, workflow, request.body.clone());
        match self.runs.start(StartRequest { source: request.source(), ..start }).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Refused::of(error)),
        }
    }

    /// A parent closes a child that does not exist. If it is still to be started, the row is looked at again: the child
    /// gets it once it exists, but it may also be refused. If it was deleted, nothing needs the row any more.
    async fn close_missing(&self, key: InboxKey) -> Result<(), Error> {
        let (org, child, _) = key;
        let store = &self.core.store;
        let rows = store.inbox_of(org, child, PAGE).await?;
        let exists = store.run(org, child).await?.is_some();
        match child_rows::closing(key, &rows, exists) {
            Closing::Wait => drop(lock(&self.undecided).insert(key)),
            Closing::Give => self.give_early_inputs(key).await?,
            Closing::Delete(row) => {
                self.core.written(store.answer_inbox(&[row]).await)?;
                crash::point(Point::InboxAnswered);
            }
        }
        Ok(())
    }

    /// Gives a child the rows that were written for it before it existed.
    async fn give_early_inputs(&self, (org, child, _): InboxKey) -> Result<(), store::Error> {
        let rows = self.core.store.inbox_of(org, child, PAGE).await?;
        let inputs = child_rows::inputs(&rows);
        if !inputs.is_empty() {
            self.core.inbox.send(Command::GiveInbox(inputs));
        }
        Ok(())
    }

    async fn fail_step(&self, request: &ChildRequest, failure: Failure) -> Result<(), store::Error> {
        let (org, child, _) = request.key;
        let rows = self.core.store.inbox_of(org, child, PAGE).await?;
        self.core.inbox.send(Command::GiveInbox(vec![request.refused(failure, &rows)]));
        Ok(())
    }
}

impl Refused {
    fn of(error: Error) -> Refused {
        let code = match &error {
            Error::Disabled => "workflow_disabled",
            Error::InvalidConcurrencyKey(_) => "invalid_concurrency_key",
            Error::InvalidInput(_) => child_rows::INVALID_INPUT,
            Error::Refused(_) => "refused",
            _ => return Refused::ForNow(error),
        };
        Refused::Forever(Failure::new(code, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ClockMode;
    use crate::engine::{Engine, Options};
    use crate::secret::Secret;
    use kernel::inbox::StoredInput;
    use kernel::{InboxId, OrgId, RunId, Span, Timestamp};
    use store::ConsumedRow;
    use store::prelude::*;

    #[tokio::test]
    async fn m17_a_row_that_closes_a_child_is_gone_when_the_child_is_refused_after_it_was_written() {
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
        let children = engine.children_for_test();
        let (org, parent, child) = (OrgId::DEFAULT, RunId([1; 16]), RunId([2; 16]));
        let row = |n: u8, kind, body| {
            let key = (org, child, InboxId([n; 16]));
            InboxRow { key, kind, body, written_at: Timestamp(0), sender: Some(parent) }
        };
        let closes = row(2, InboxKind::Input, StoredInput::ParentClosed { parent }.seal());
        // No node can start it: the row stays until this test removes it, as the refusal would.
        let asks = row(1, InboxKind::StartChild, "of a later release".into());
        store.put_inbox(&[asks.clone(), closes.clone()]).await.expect("they are written");

        children.close_missing(closes.key).await.expect("it reads");
        children.try_again().await;
        assert_eq!(store.inbox_of(org, child, 9).await.expect("it reads").len(), 2, "the child may be started yet");
        store.answer_inbox(&[ConsumedRow { key: asks.key, answer: None }]).await.expect("it is removed");
        children.try_again().await;
        assert_eq!(store.inbox_of(org, child, 9).await.expect("it reads"), [], "no run needs it");
        assert!(lock(&children.undecided).is_empty());
        engine.stop().await;
    }
}
