//! Workers that ask for tasks.

use super::{PendingCancellation, TaskQueue, TypeKey, TypeQueue};
use bytes::Bytes;
use kernel::{OrgId, RunId, Span, Timestamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use store::WorkerRow;

/// What a worker claims: one type, or all that begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exact(Arc<str>),
    Prefix(Arc<str>),
}

impl Pattern {
    /// A `%` at the end is a wildcard, and only there; it stands for itself nowhere else, because no type has one.
    pub fn parse(text: &str) -> Option<Pattern> {
        match text.strip_suffix('%') {
            Some(prefix) if !prefix.contains('%') => Some(Pattern::Prefix(prefix.into())),
            None if !text.is_empty() && !text.contains('%') => Some(Pattern::Exact(text.into())),
            _ => None,
        }
    }

    pub fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::Exact(exact) => **exact == *name,
            Pattern::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }

    /// The lines it is about.
    pub(super) fn range<'a>(
        &'a self,
        type_queues: &'a BTreeMap<TypeKey, TypeQueue>,
        org: OrgId,
    ) -> impl Iterator<Item = (&'a TypeKey, &'a TypeQueue)> {
        let from = match self {
            Pattern::Exact(name) | Pattern::Prefix(name) => name.clone(),
        };
        let range = type_queues.range::<TypeKey, _>((Bound::Included((org, from)), Bound::Unbounded));
        range.take_while(move |((of, name), _)| *of == org && self.matches(name))
    }
}

/// A worker's question for tasks.
pub struct ClaimRequest<T> {
    /// The caller's mark, different for every question.
    pub claim_id: u64,
    pub reply_to: T,
    pub org: OrgId,
    pub worker: String,
    pub types: Vec<String>,
    pub patterns: Vec<Pattern>,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    /// How many it would take.
    pub credits: u32,
    pub lease: Span,
    /// It wants an answer now, even an empty one.
    pub is_immediate: bool,
    /// It is to get what goes first, also of what other nodes left, rather than something soon.
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
    /// It is to get what goes first, also of what other nodes left, rather than something soon.
    pub is_strict: bool,
    /// Tasks it has been promised and that are not durable yet.
    pub pending: u32,
    /// What it gets, by the order in which it was promised.
    pub tasks: BTreeMap<u64, Task>,
    pub cancellations: Vec<PendingCancellation>,
}

impl<T> OpenClaim<T> {
    /// Would it take another task? Not once it has some: they would wait with it, while their leases run.
    pub fn takes_more(&self) -> bool {
        self.credits > 0 && self.tasks.is_empty()
    }
}

/// A task as its worker gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
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
}

/// A task nobody wants any more, by its run and, unless it is a plain one, its step.
pub type Cancellation = (RunId, Option<u32>);

/// The answer to a worker's question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimReply {
    pub tasks: Vec<Task>,
    /// What it has and need not go on with.
    pub cancellations: Vec<Cancellation>,
}

pub(super) struct Worker {
    pub row: WorkerRow,
    pub patterns: Vec<Pattern>,
    pub leased: u32,
    /// Something about it is not stored yet.
    pub is_new: bool,
    /// It was heard of here, and nowhere else since.
    pub is_local: bool,
}

/// Polls by a type or by the beginning of some.
type Lists = HashMap<TypeKey, VecDeque<u64>>;

/// Open polls by what they ask for.
#[derive(Default)]
pub(super) struct ClaimIndex {
    new: Vec<u64>,
    exact: Lists,
    /// By the length of the prefix, so that a type looks itself up a few times and not once for each prefix.
    prefixes: BTreeMap<usize, Lists>,
}

impl ClaimIndex {
    pub fn take_new(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.new)
    }

    /// To be looked at in the next pairing.
    pub fn again(&mut self, claim_id: u64) {
        self.new.push(claim_id);
    }

    pub fn put<T>(&mut self, claim_id: u64, claim: &OpenClaim<T>) {
        for pattern in &claim.patterns {
            let list = match pattern {
                Pattern::Exact(name) => self.exact.entry((claim.org, name.clone())).or_default(),
                Pattern::Prefix(prefix) => {
                    let of_length = self.prefixes.entry(prefix.len()).or_default();
                    of_length.entry((claim.org, prefix.clone())).or_default()
                }
            };
            if !list.contains(&claim_id) {
                list.push_back(claim_id);
            }
        }
    }

    fn remove<T>(&mut self, claim_id: u64, claim: &OpenClaim<T>) {
        for pattern in &claim.patterns {
            match pattern {
                Pattern::Exact(name) => forget(&mut self.exact, &(claim.org, name.clone()), claim_id),
                Pattern::Prefix(prefix) => {
                    if let Some(of_length) = self.prefixes.get_mut(&prefix.len()) {
                        forget(of_length, &(claim.org, prefix.clone()), claim_id);
                        if of_length.is_empty() {
                            self.prefixes.remove(&prefix.len());
                        }
                    }
                }
            }
        }
    }

    /// Those that would take a task of this type. In the order they came, pattern by pattern.
    fn of<'a>(&'a self, key: &'a TypeKey) -> impl Iterator<Item = u64> + 'a {
        let exact = self.exact.get(key).into_iter().flatten();
        let prefixes = self.prefixes.iter().filter_map(|(length, lists)| {
            let prefix = key.1.get(..*length)?;
            lists.get(&(key.0, Arc::from(prefix)))
        });
        exact.chain(prefixes.flatten()).copied()
    }
}

fn forget(lists: &mut Lists, key: &TypeKey, claim_id: u64) {
    if let Some(list) = lists.get_mut(key) {
        list.retain(|other| *other != claim_id);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}

impl<T> TaskQueue<T> {
    /// A worker asks for tasks.
    pub fn open(&mut self, ask: ClaimRequest<T>, now: Timestamp) {
        let who = (ask.org, ask.worker.clone());
        self.register_worker(&ask, now);
        let mut cancellations = self.cancellations.remove(&who).unwrap_or_default();
        cancellations.retain(|pending| pending.until > now && !self.is_outdated(pending, &who.1));
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
        } = ask;
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
        };
        self.open_claims.insert(claim_id, claim);
        self.claim_index.again(claim_id);
    }

    fn register_worker(&mut self, ask: &ClaimRequest<T>, now: Timestamp) {
        let types = serde_json::to_string(&ask.types).unwrap_or_default();
        let leased = self.leases.values().filter(|g| g.org == ask.org && g.worker == ask.worker);
        let who = (ask.org, ask.worker.clone());
        let row = |first_seen| WorkerRow {
            org: ask.org,
            id: ask.worker.clone(),
            types: types.clone(),
            runtime: ask.runtime.clone(),
            version: ask.version.clone(),
            slots: ask.slots,
            first_seen,
            last_seen: now,
        };
        match self.workers.get_mut(&who) {
            Some(worker) => {
                worker.is_new |= worker.row.types != types || now.since(worker.row.last_seen) > super::ABSENT;
                worker.row = row(worker.row.first_seen);
                worker.is_local = true;
                worker.patterns.clone_from(&ask.patterns);
            }
            None => {
                let leased = leased.count() as u32;
                let (patterns, is_new, is_local) = (ask.patterns.clone(), true, true);
                let worker = Worker { row: row(now), patterns, leased, is_new, is_local };
                self.workers.insert(who, worker);
            }
        }
    }

    /// Workers the last process knew, or other nodes do. What is known here of one and is newer stays.
    pub fn remember(&mut self, rows: Vec<WorkerRow>) {
        for row in rows {
            let who = (row.org, row.id.clone());
            let known = self.workers.get(&who);
            if known.is_some_and(|worker| worker.row.last_seen >= row.last_seen) {
                continue;
            }
            let leased = known.map_or(0, |worker| worker.leased);
            let types: Vec<String> = serde_json::from_str(&row.types).unwrap_or_default();
            let patterns = types.iter().filter_map(|text| Pattern::parse(text)).collect();
            self.workers.insert(who, Worker { row, patterns, leased, is_new: false, is_local: false });
        }
    }

    /// Workers of which something is to be stored: all that were heard of, or only those with news.
    pub fn changed_workers(&mut self, all: bool) -> Vec<WorkerRow> {
        let told = |worker: &mut Worker| {
            let is_news = std::mem::take(&mut worker.is_new) || all && worker.is_local;
            is_news.then(|| worker.row.clone())
        };
        self.workers.values_mut().filter_map(told).collect()
    }

    /// Forgets workers that were not heard of since.
    pub fn forget_workers(&mut self, since: Timestamp) {
        self.workers.retain(|_, worker| worker.row.last_seen >= since || worker.leased > 0);
        self.cancellations.retain(|who, _| self.workers.contains_key(who));
    }

    /// Its time is up: it is answered as soon as nothing is on its way to it.
    pub fn withdraw(&mut self, claim_id: u64) {
        if let Some(claim) = self.open_claims.get_mut(&claim_id) {
            claim.is_immediate = true;
            self.urgent.push(claim_id);
        }
    }

    /// Every poll is to be answered.
    pub fn withdraw_all(&mut self) {
        // Nothing is handed out any more: what is still unknown makes no difference.
        self.is_partial = false;
        let all: Vec<u64> = self.open_claims.keys().copied().collect();
        all.into_iter().for_each(|claim_id| self.withdraw(claim_id));
    }

    /// Nobody is behind these any more.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let gone: Vec<u64> =
            self.open_claims.values().filter(|p| p.pending == 0 && !keep(&p.reply_to)).map(|p| p.claim_id).collect();
        for claim_id in gone {
            if let Some(claim) = self.open_claims.remove(&claim_id) {
                self.claim_index.remove(claim_id, &claim);
            }
        }
    }

    /// A hand-over is durable: this is what the worker gets. The room it takes is the grant's from now on.
    pub fn deliver(&mut self, offer_id: u64, task: Task) {
        let Some(kept) = self.pending_leases.remove(&offer_id) else { return };
        if let Some(claim) = self.open_claims.get_mut(&kept.claim) {
            claim.pending -= 1;
            self.undelivered.insert((task.run, task.step), kept.claim);
            claim.tasks.insert(offer_id, task);
            claim.is_immediate = true;
            self.urgent.push(kept.claim);
        }
    }

    /// A bug on purpose, see [`Bug::LeaseBeforeCommit`](kernel::planted::Bug).
    pub fn deliver_early(&mut self, offer_id: u64, task: Task) {
        let Some(kept) = self.pending_leases.get_mut(&offer_id) else { return };
        // What becomes of the commit is of no consequence to the poll any more.
        let claim_id = std::mem::replace(&mut kept.claim, u64::MAX);
        if let Some(claim) = self.open_claims.get_mut(&claim_id) {
            claim.pending -= 1;
            claim.tasks.insert(offer_id, task);
            claim.is_immediate = true;
            self.urgent.push(claim_id);
        }
    }

    /// Polls that can be answered now.
    pub fn answers(&mut self) -> Vec<(T, ClaimReply)> {
        let mut answers = Vec::new();
        for claim_id in std::mem::take(&mut self.urgent) {
            let Some(claim) = self.open_claims.get(&claim_id) else { continue };
            if !self.is_answerable(claim) {
                self.urgent.push(claim_id);
                continue;
            }
            if let Some(claim) = self.open_claims.remove(&claim_id) {
                self.claim_index.remove(claim_id, &claim);
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

    /// Nothing is on its way to it, and nothing may be found for it at once.
    fn is_answerable(&self, claim: &OpenClaim<T>) -> bool {
        claim.pending == 0 && !self.claim_index.new.contains(&claim.claim_id) && !self.may_get_more(claim)
    }

    /// Is there a poll that need not wait any longer?
    pub(super) fn has_answers(&self) -> bool {
        self.urgent.iter().filter_map(|claim_id| self.open_claims.get(claim_id)).any(|claim| self.is_answerable(claim))
    }

    /// Even one in a hurry is not told that there is nothing while that is not known: rows are on their way, or what
    /// the last process had in memory.
    pub(super) fn may_get_more(&self, claim: &OpenClaim<T>) -> bool {
        let has_news = !claim.cancellations.is_empty() && !claim.is_strict;
        let has_something = claim.pending > 0 || !claim.tasks.is_empty() || has_news;
        if has_something || claim.credits == 0 {
            return false;
        }
        let mut type_queues = claim.patterns.iter().flat_map(|pattern| pattern.range(&self.type_queues, claim.org));
        let is_open = |type_queue: &TypeQueue| match claim.is_strict {
            true => type_queue.rules.suits(claim.runtime.as_deref()) && type_queue.is_unread(),
            false => type_queue.is_reading(),
        };
        self.is_partial || type_queues.any(|(_, type_queue)| is_open(type_queue))
    }

    /// The poll that should be served next with a task of this type.
    pub(super) fn next_claim(&self, key: &TypeKey) -> Option<u64> {
        self.claim_for(key, None)
    }

    /// A poll that would take a task of this type: of this worker, if it asks, or of whoever is first.
    pub(super) fn claim_for(&self, key: &TypeKey, worker: Option<&str>) -> Option<u64> {
        let rules = self.type_queues.get(key).map(|type_queue| &type_queue.rules);
        let would = |claim: &OpenClaim<T>| {
            claim.takes_more() && rules.is_none_or(|rules| rules.suits(claim.runtime.as_deref()))
        };
        let is_fresh = |claim_id: &&u64| {
            self.open_claims
                .get(*claim_id)
                .is_some_and(|claim| claim.org == key.0 && claim.patterns.iter().any(|p| p.matches(&key.1)))
        };
        // Those that came since the last pairing are not sorted in yet.
        let fresh = self.claim_index.new.iter().filter(is_fresh).copied();
        let mut first = None;
        for claim_id in self.claim_index.of(key).chain(fresh) {
            let Some(claim) = self.open_claims.get(&claim_id).filter(|claim| would(claim)) else { continue };
            match worker {
                None => return Some(claim_id),
                Some(worker) if claim.worker == worker => return Some(claim_id),
                Some(_) => first = first.or(Some(claim_id)),
            }
        }
        first
    }
}
