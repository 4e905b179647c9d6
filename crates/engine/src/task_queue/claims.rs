//! Open claims: the requests of workers for tasks, and the replies they get.

use super::{PendingCancellation, TaskQueue, TypeKey, TypeQueue};
use bytes::Bytes;
use kernel::{OrgId, RunId, Span, Timestamp};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use store::WorkerRow;

/// What a worker claims: one type, or all types with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exact(Arc<str>),
    Prefix(Arc<str>),
}

impl Pattern {
    /// A `%` at the end is a wildcard. Elsewhere it is invalid, because no type name contains one.
    pub fn parse(text: &str) -> Option<Pattern> {
        match text.strip_suffix('%') {
            Some(prefix) if !prefix.contains('%') => Some(Pattern::Prefix(prefix.into())),
            None if !text.is_empty() && !text.contains('%') => Some(Pattern::Exact(text.into())),
            _ => None,
        }
    }

    /// A wildcard never stands for the types of the engine: their workers name them.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::Exact(exact) => **exact == *name,
            Pattern::Prefix(prefix) => name.starts_with(&**prefix) && !lang::task::is_reserved_type(name),
        }
    }

    /// The type queues it matches.
    pub(super) fn range<'a>(
        &'a self,
        type_queues: &'a BTreeMap<TypeKey, TypeQueue>,
        org: OrgId,
    ) -> impl Iterator<Item = (&'a TypeKey, &'a TypeQueue)> {
        let (from, is_prefix) = match self {
            Pattern::Exact(name) => (name.clone(), false),
            Pattern::Prefix(prefix) => (prefix.clone(), true),
        };
        let start = from.clone();
        // A reserved type in the range of a prefix is passed over, and does not end it.
        let is_in_range = move |name: &str| if is_prefix { name.starts_with(&*start) } else { *name == *start };
        let range = type_queues.range::<TypeKey, _>((Bound::Included((org, from)), Bound::Unbounded));
        let range = range.take_while(move |((of, name), _)| {
            #[cfg(test)]
            super::LOOKED_AT.set(super::LOOKED_AT.get() + 1);
            *of == org && is_in_range(name)
        });
        range.filter(|((_, name), _)| self.matches(name))
    }
}

/// A worker's request for tasks.
pub struct ClaimRequest<T> {
    /// Chosen by the caller; larger for later requests. Among equal claims the oldest is served first.
    pub claim_id: u64,
    pub reply_to: T,
    pub org: OrgId,
    pub worker: String,
    pub types: Vec<String>,
    pub patterns: Vec<Pattern>,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    /// How many tasks the worker takes at most.
    pub credits: u32,
    pub lease: Span,
    /// The worker wants a reply now, even an empty one.
    pub is_immediate: bool,
    /// The claim gets the first task of the whole cluster, even if it has to wait for reads of the store.
    pub is_strict: bool,
}

pub(super) struct OpenClaim<T> {
    pub claim_id: u64,
    pub reply_to: T,
    pub org: OrgId,
    pub worker: String,
    pub patterns: Vec<Pattern>,
    pub runtime: Option<String>,
    pub credits: u32,
    pub lease: Span,
    pub is_immediate: bool,
    /// The claim gets the first task of the whole cluster, even if it has to wait for reads of the store.
    pub is_strict: bool,
    /// Leases for it that are not durable yet.
    pub pending: u32,
    /// Tasks with durable leases for the reply, by offer id.
    pub tasks: BTreeMap<u64, ClaimedTask>,
    pub cancellations: Vec<PendingCancellation>,
    /// It is in the [`ClaimIndex`](super::claim_index::ClaimIndex), so that tasks find it.
    pub is_waiting: bool,
}

impl<T> OpenClaim<T> {
    /// Would it take another task? Not once it has one, which would wait for the next while its lease runs.
    pub fn takes_more(&self) -> bool {
        self.credits > 0 && self.tasks.is_empty()
    }
}

/// A task as its worker receives it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedTask {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    /// The step's key.
    pub step_key: String,
    pub name: String,
    pub workflow: String,
    pub is_plain: bool,
    pub attempt: u32,
    pub max_attempts: u32,
    pub fence: u64,
    pub lease: Span,
    pub until: Timestamp,
    pub input: Bytes,
    pub progress: Option<Bytes>,
    /// Part of its idempotency key.
    pub repeats: u32,
}

/// A cancelled task: its run and, unless the run is a single task, its step.
pub type Cancellation = (RunId, Option<u32>);

/// The reply to a [`ClaimRequest`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimReply {
    pub tasks: Vec<ClaimedTask>,
    /// Tasks the worker holds and can stop working on.
    pub cancellations: Vec<Cancellation>,
}

pub(super) struct WorkerRecord {
    pub row: WorkerRow,
    pub patterns: Vec<Pattern>,
    /// A change of it is not stored yet.
    pub is_new: bool,
    /// It last sent something to this node, not to another.
    pub is_local: bool,
}

impl<T> TaskQueue<T> {
    /// Opens a worker's claim for tasks.
    pub fn open_claim(&mut self, request: ClaimRequest<T>, now: Timestamp) {
        let worker_key = (request.org, request.worker.clone());
        self.register_worker(&request, now);
        let mut cancellations = self.cancellations.remove(&worker_key).unwrap_or_default();
        cancellations.retain(|pending| pending.until > now && !self.is_outdated(pending, &worker_key.1));
        let ClaimRequest {
            claim_id,
            reply_to,
            org,
            worker,
            patterns,
            runtime,
            credits,
            lease,
            is_immediate,
            is_strict,
            ..
        } = request;
        let is_immediate = is_immediate || !cancellations.is_empty();
        let (pending, tasks) = (0, BTreeMap::new());
        let claim = OpenClaim {
            claim_id,
            reply_to,
            org,
            worker,
            patterns,
            runtime,
            credits,
            lease,
            is_immediate,
            is_strict,
            pending,
            tasks,
            cancellations,
            is_waiting: false,
        };
        self.open_claims.insert(claim_id, claim);
        self.claim_index.opened(claim_id, worker_key);
        self.claim_index.mark_new(claim_id);
        self.change_claim(claim_id, |_| {});
    }

    /// Changes an open claim, after which it may take more tasks, or no more.
    pub(super) fn change_claim(&mut self, claim_id: u64, change: impl FnOnce(&mut OpenClaim<T>)) {
        if let Some(claim) = self.open_claims.get_mut(&claim_id) {
            change(claim);
            let takes_more = claim.takes_more();
            self.claim_index.set_waiting(claim, takes_more);
        }
    }

    fn close_claim(&mut self, claim_id: u64) -> Option<OpenClaim<T>> {
        let mut claim = self.open_claims.remove(&claim_id)?;
        self.claim_index.set_waiting(&mut claim, false);
        self.claim_index.closed(claim_id, &(claim.org, claim.worker.clone()));
        Some(claim)
    }

    fn register_worker(&mut self, request: &ClaimRequest<T>, now: Timestamp) {
        let types = serde_json::to_string(&request.types).unwrap_or_default();
        let worker_key = (request.org, request.worker.clone());
        let row = |first_seen| WorkerRow {
            org: request.org,
            id: request.worker.clone(),
            types: types.clone(),
            runtime: request.runtime.clone(),
            version: request.version.clone(),
            slots: request.slots,
            first_seen,
            last_seen: now,
        };
        match self.workers.get_mut(&worker_key) {
            Some(worker) => {
                worker.is_new |= worker.row.types != types || now.since(worker.row.last_seen) > super::ABSENT;
                worker.row = row(worker.row.first_seen);
                worker.is_local = true;
                worker.patterns.clone_from(&request.patterns);
            }
            None => {
                let (patterns, is_new, is_local) = (request.patterns.clone(), true, true);
                let worker = WorkerRecord { row: row(now), patterns, is_new, is_local };
                self.workers.insert(worker_key, worker);
            }
        }
    }

    /// Merges workers that the last process or other nodes stored. A newer record of this node stays.
    pub fn merge_workers(&mut self, rows: Vec<WorkerRow>) {
        for row in rows {
            let worker_key = (row.org, row.id.clone());
            let known = self.workers.get(&worker_key);
            if known.is_some_and(|worker| worker.row.last_seen >= row.last_seen) {
                continue;
            }
            let types: Vec<String> = serde_json::from_str(&row.types).unwrap_or_default();
            let patterns = types.iter().filter_map(|text| Pattern::parse(text)).collect();
            self.workers.insert(worker_key, WorkerRecord { row, patterns, is_new: false, is_local: false });
        }
    }

    /// Workers to store: those that changed, and with `all` every worker that last talked to this node.
    pub fn changed_workers(&mut self, all: bool) -> Vec<WorkerRow> {
        let changed = |worker: &mut WorkerRecord| {
            let is_changed = std::mem::take(&mut worker.is_new) || all && worker.is_local;
            is_changed.then(|| worker.row.clone())
        };
        self.workers.values_mut().filter_map(changed).collect()
    }

    /// Forgets workers that sent nothing since and hold no task.
    pub fn forget_workers(&mut self, since: Timestamp) {
        self.workers.retain(|key, worker| worker.row.last_seen >= since || self.held_by.contains_key(key));
        self.cancellations.retain(|worker_key, _| self.workers.contains_key(worker_key));
    }

    /// The claim's waiting time is over: it is answered as soon as none of its leases is pending.
    pub fn withdraw(&mut self, claim_id: u64) {
        if let Some(claim) = self.open_claims.get_mut(&claim_id) {
            claim.is_immediate = true;
            self.urgent.insert(claim_id);
        }
    }

    /// Answers every open claim, because the node drains.
    pub fn withdraw_all(&mut self) {
        // Nothing is leased any more, so unfinished recovery makes no difference.
        self.is_recovering = false;
        self.answer_all();
    }

    /// Answers every open claim with the tasks it has so far.
    pub fn answer_all(&mut self) {
        let all: Vec<u64> = self.open_claims.keys().copied().collect();
        all.into_iter().for_each(|claim_id| self.withdraw(claim_id));
    }

    /// Drops open claims whose callers are gone.
    pub fn retain_claims(&mut self, keep: impl Fn(&T) -> bool) {
        let gone: Vec<u64> =
            self.open_claims.values().filter(|p| p.pending == 0 && !keep(&p.reply_to)).map(|p| p.claim_id).collect();
        for claim_id in gone {
            self.close_claim(claim_id);
        }
    }

    /// A lease is durable: its task goes into the reply. The held lease now counts against the limits.
    pub fn deliver(&mut self, offer_id: u64, task: ClaimedTask) {
        let Some(lease) = self.pending_leases.remove(&offer_id) else { return };
        if self.open_claims.contains_key(&lease.claim) {
            self.undelivered.insert((task.run, task.step), lease.claim);
            self.add_to_reply(lease.claim, offer_id, task);
        }
    }

    /// A bug on purpose, see [`Bug::LeaseBeforeCommit`](kernel::planted_bugs::Bug).
    pub fn deliver_early(&mut self, offer_id: u64, task: ClaimedTask) {
        let Some(lease) = self.pending_leases.get_mut(&offer_id) else { return };
        // The commit outcome no longer matters to the claim.
        let claim_id = std::mem::replace(&mut lease.claim, u64::MAX);
        self.add_to_reply(claim_id, offer_id, task);
    }

    fn add_to_reply(&mut self, claim_id: u64, offer_id: u64, task: ClaimedTask) {
        self.change_claim(claim_id, |claim| {
            claim.pending -= 1;
            claim.tasks.insert(offer_id, task);
            claim.is_immediate = true;
        });
        self.urgent.insert(claim_id);
    }

    /// Takes the replies to open claims that can be answered now.
    pub fn answers(&mut self) -> Vec<(T, ClaimReply)> {
        let mut answers = Vec::new();
        for claim_id in std::mem::take(&mut self.urgent) {
            let Some(claim) = self.open_claims.get(&claim_id) else { continue };
            if !self.is_answerable(claim) {
                self.urgent.insert(claim_id);
                continue;
            }
            if let Some(claim) = self.close_claim(claim_id) {
                for task in claim.tasks.values() {
                    self.undelivered.remove(&(task.run, task.step));
                }
                let mut cancellations = Vec::new();
                for pending in claim.cancellations {
                    if !self.is_outdated(&pending, &claim.worker) {
                        cancellations.push((pending.run, (!pending.is_plain).then_some(pending.step)));
                    }
                    if !pending.is_delivered {
                        self.notify_worker(
                            (claim.org, claim.worker.clone()),
                            PendingCancellation { is_delivered: true, ..pending },
                        );
                    }
                }
                answers
                    .push((claim.reply_to, ClaimReply { tasks: claim.tasks.into_values().collect(), cancellations }));
            }
        }
        answers
    }

    /// No lease of it is pending, and no read may bring it a task.
    fn is_answerable(&self, claim: &OpenClaim<T>) -> bool {
        claim.pending == 0 && !self.claim_index.is_new(claim.claim_id) && !self.may_get_more(claim)
    }

    /// Is there an open claim that can be answered now?
    pub(super) fn has_answers(&self) -> bool {
        self.urgent.iter().filter_map(|claim_id| self.open_claims.get(claim_id)).any(|claim| self.is_answerable(claim))
    }

    /// May a claim still get a task? Even an immediate claim gets no empty reply while rows are being read or recovery
    /// is not complete.
    pub(super) fn may_get_more(&self, claim: &OpenClaim<T>) -> bool {
        let has_cancellations = !claim.cancellations.is_empty() && !claim.is_strict;
        let has_reply = claim.pending > 0 || !claim.tasks.is_empty() || has_cancellations;
        if has_reply || claim.credits == 0 {
            return false;
        }
        let mut type_queues = claim.patterns.iter().flat_map(|pattern| pattern.range(&self.type_queues, claim.org));
        let is_open = |type_queue: &TypeQueue| match claim.is_strict {
            true => type_queue.rules.accepts_runtime(claim.runtime.as_deref()) && type_queue.is_incomplete(),
            false => type_queue.is_reading(),
        };
        self.is_recovering || type_queues.any(|(_, type_queue)| is_open(type_queue))
    }

    /// The open claim that gets the next task of this type.
    pub(super) fn next_claim(&self, key: &TypeKey) -> Option<u64> {
        self.claim_for(key, None)
    }

    /// An open claim that takes a task of this type: one of `worker` if there is one, else the first.
    pub(super) fn claim_for(&self, key: &TypeKey, worker: Option<&str>) -> Option<u64> {
        let rules = self.type_queues.get(key).map(|type_queue| &type_queue.rules);
        let accepts = |runtime: Option<&str>| {
            #[cfg(test)]
            super::LOOKED_AT.set(super::LOOKED_AT.get() + 1);
            rules.is_none_or(|rules| rules.accepts_runtime(runtime))
        };
        let is_match = |claim: &OpenClaim<T>| {
            claim.is_waiting && accepts(claim.runtime.as_deref()) && claim.patterns.iter().any(|p| p.matches(&key.1))
        };
        let is_match = |claim_id: &u64| self.open_claims.get(claim_id).is_some_and(is_match);
        let own = worker.and_then(|worker| self.claim_index.of_worker(&(key.0, worker.to_owned())).find(is_match));
        own.or_else(|| self.claim_index.first(key, accepts))
    }
}
