//! Workers that ask for tasks.

use super::{Board, Key, Line, Notice};
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
        lines: &'a BTreeMap<Key, Line>,
        org: OrgId,
    ) -> impl Iterator<Item = (&'a Key, &'a Line)> {
        let from = match self {
            Pattern::Exact(name) | Pattern::Prefix(name) => name.clone(),
        };
        let range = lines.range::<Key, _>((Bound::Included((org, from)), Bound::Unbounded));
        range.take_while(move |((of, name), _)| *of == org && self.matches(name))
    }
}

/// A worker's question for tasks.
pub struct Ask<T> {
    /// The caller's mark, different for every question.
    pub place: u64,
    pub ticket: T,
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
    pub is_hasty: bool,
    /// It is to get what goes first, also of what other nodes left, rather than something soon.
    pub is_exact: bool,
}

pub(super) struct Poll<T> {
    pub place: u64,
    pub ticket: T,
    pub org: OrgId,
    pub worker: String,
    pub patterns: Vec<Pattern>,
    pub runtime: Option<String>,
    pub credits: u32,
    pub lease: Span,
    pub is_hasty: bool,
    /// It is to get what goes first, also of what other nodes left, rather than something soon.
    pub is_exact: bool,
    /// Tasks it has been promised and that are not durable yet.
    pub on_its_way: u32,
    /// What it gets, by the order in which it was promised.
    pub tasks: BTreeMap<u64, Task>,
    pub called_off: Vec<Notice>,
}

impl<T> Poll<T> {
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
pub type CalledOff = (RunId, Option<u32>);

/// The answer to a worker's question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Handed {
    pub tasks: Vec<Task>,
    /// What it has and need not go on with.
    pub called_off: Vec<CalledOff>,
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
type Lists = HashMap<Key, VecDeque<u64>>;

/// Open polls by what they ask for.
#[derive(Default)]
pub(super) struct Waiting {
    new: Vec<u64>,
    exact: Lists,
    /// By the length of the prefix, so that a type looks itself up a few times and not once for each prefix.
    prefixes: BTreeMap<usize, Lists>,
}

impl Waiting {
    pub fn take_new(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.new)
    }

    /// To be looked at in the next pairing.
    pub fn again(&mut self, place: u64) {
        self.new.push(place);
    }

    pub fn put<T>(&mut self, place: u64, poll: &Poll<T>) {
        for pattern in &poll.patterns {
            let list = match pattern {
                Pattern::Exact(name) => self.exact.entry((poll.org, name.clone())).or_default(),
                Pattern::Prefix(prefix) => {
                    let of_length = self.prefixes.entry(prefix.len()).or_default();
                    of_length.entry((poll.org, prefix.clone())).or_default()
                }
            };
            if !list.contains(&place) {
                list.push_back(place);
            }
        }
    }

    fn remove<T>(&mut self, place: u64, poll: &Poll<T>) {
        for pattern in &poll.patterns {
            match pattern {
                Pattern::Exact(name) => forget(&mut self.exact, &(poll.org, name.clone()), place),
                Pattern::Prefix(prefix) => {
                    if let Some(of_length) = self.prefixes.get_mut(&prefix.len()) {
                        forget(of_length, &(poll.org, prefix.clone()), place);
                        if of_length.is_empty() {
                            self.prefixes.remove(&prefix.len());
                        }
                    }
                }
            }
        }
    }

    /// Those that would take a task of this type. In the order they came, pattern by pattern.
    fn of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = u64> + 'a {
        let exact = self.exact.get(key).into_iter().flatten();
        let prefixes = self.prefixes.iter().filter_map(|(length, lists)| {
            let prefix = key.1.get(..*length)?;
            lists.get(&(key.0, Arc::from(prefix)))
        });
        exact.chain(prefixes.flatten()).copied()
    }
}

fn forget(lists: &mut Lists, key: &Key, place: u64) {
    if let Some(list) = lists.get_mut(key) {
        list.retain(|other| *other != place);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}

impl<T> Board<T> {
    /// A worker asks for tasks.
    pub fn open(&mut self, ask: Ask<T>, now: Timestamp) {
        let who = (ask.org, ask.worker.clone());
        self.introduce(&ask, now);
        let mut called_off = self.called_off.remove(&who).unwrap_or_default();
        called_off.retain(|notice| notice.until > now && !self.is_outdated(notice, &who.1));
        let Ask { place, ticket, org, worker, patterns, runtime, credits, lease, is_hasty, is_exact, .. } = ask;
        let is_hasty = is_hasty || !called_off.is_empty();
        let (on_its_way, tasks) = (0, BTreeMap::new());
        let poll = Poll {
            place,
            ticket,
            org,
            worker,
            patterns,
            runtime,
            credits,
            lease,
            is_hasty,
            is_exact,
            on_its_way,
            tasks,
            called_off,
        };
        self.polls.insert(place, poll);
        self.waiting.again(place);
    }

    fn introduce(&mut self, ask: &Ask<T>, now: Timestamp) {
        let types = serde_json::to_string(&ask.types).unwrap_or_default();
        let leased = self.grants.values().filter(|g| g.org == ask.org && g.worker == ask.worker);
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
    pub fn news(&mut self, all: bool) -> Vec<WorkerRow> {
        let told = |worker: &mut Worker| {
            let is_news = std::mem::take(&mut worker.is_new) || all && worker.is_local;
            is_news.then(|| worker.row.clone())
        };
        self.workers.values_mut().filter_map(told).collect()
    }

    /// Forgets workers that were not heard of since.
    pub fn forget_workers(&mut self, since: Timestamp) {
        self.workers.retain(|_, worker| worker.row.last_seen >= since || worker.leased > 0);
        self.called_off.retain(|who, _| self.workers.contains_key(who));
    }

    /// Its time is up: it is answered as soon as nothing is on its way to it.
    pub fn withdraw(&mut self, place: u64) {
        if let Some(poll) = self.polls.get_mut(&place) {
            poll.is_hasty = true;
            self.hasty.push(place);
        }
    }

    /// Every poll is to be answered.
    pub fn withdraw_all(&mut self) {
        // Nothing is handed out any more: what is still unknown makes no difference.
        self.is_partial = false;
        let all: Vec<u64> = self.polls.keys().copied().collect();
        all.into_iter().for_each(|place| self.withdraw(place));
    }

    /// Nobody is behind these any more.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let gone: Vec<u64> =
            self.polls.values().filter(|p| p.on_its_way == 0 && !keep(&p.ticket)).map(|p| p.place).collect();
        for place in gone {
            if let Some(poll) = self.polls.remove(&place) {
                self.waiting.remove(place, &poll);
            }
        }
    }

    /// A hand-over is durable: this is what the worker gets. The room it takes is the grant's from now on.
    pub fn hand(&mut self, promise: u64, task: Task) {
        let Some(kept) = self.promises.remove(&promise) else { return };
        if let Some(poll) = self.polls.get_mut(&kept.poll) {
            poll.on_its_way -= 1;
            self.pockets.insert((task.run, task.step), kept.poll);
            poll.tasks.insert(promise, task);
            poll.is_hasty = true;
            self.hasty.push(kept.poll);
        }
    }

    /// A bug on purpose, see [`Bug::GrantBeforeCommit`](kernel::planted::Bug).
    pub fn hand_early(&mut self, promise: u64, task: Task) {
        let Some(kept) = self.promises.get_mut(&promise) else { return };
        // What becomes of the commit is of no consequence to the poll any more.
        let place = std::mem::replace(&mut kept.poll, u64::MAX);
        if let Some(poll) = self.polls.get_mut(&place) {
            poll.on_its_way -= 1;
            poll.tasks.insert(promise, task);
            poll.is_hasty = true;
            self.hasty.push(place);
        }
    }

    /// Polls that can be answered now.
    pub fn answers(&mut self) -> Vec<(T, Handed)> {
        let mut answers = Vec::new();
        for place in std::mem::take(&mut self.hasty) {
            let Some(poll) = self.polls.get(&place) else { continue };
            if !self.is_answerable(poll) {
                self.hasty.push(place);
                continue;
            }
            if let Some(poll) = self.polls.remove(&place) {
                self.waiting.remove(place, &poll);
                for task in poll.tasks.values() {
                    self.pockets.remove(&(task.run, task.step));
                }
                let mut called_off = Vec::new();
                for notice in poll.called_off {
                    if !self.is_outdated(&notice, &poll.worker) {
                        called_off.push((notice.run, (!notice.is_plain).then_some(notice.step)));
                    }
                    if !notice.is_told {
                        self.tell((poll.org, poll.worker.clone()), Notice { is_told: true, ..notice });
                    }
                }
                answers.push((poll.ticket, Handed { tasks: poll.tasks.into_values().collect(), called_off }));
            }
        }
        answers
    }

    /// Nothing is on its way to it, and nothing may be found for it at once.
    fn is_answerable(&self, poll: &Poll<T>) -> bool {
        poll.on_its_way == 0 && !self.waiting.new.contains(&poll.place) && !self.may_get_more(poll)
    }

    /// Is there a poll that need not wait any longer?
    pub(super) fn has_answers(&self) -> bool {
        self.hasty.iter().filter_map(|place| self.polls.get(place)).any(|poll| self.is_answerable(poll))
    }

    /// Even one in a hurry is not told that there is nothing while that is not known: rows are on their way, or what
    /// the last process had in memory.
    pub(super) fn may_get_more(&self, poll: &Poll<T>) -> bool {
        let has_news = !poll.called_off.is_empty() && !poll.is_exact;
        let has_something = poll.on_its_way > 0 || !poll.tasks.is_empty() || has_news;
        if has_something || poll.credits == 0 {
            return false;
        }
        let mut lines = poll.patterns.iter().flat_map(|pattern| pattern.range(&self.lines, poll.org));
        let is_open = |line: &Line| match poll.is_exact {
            true => line.rules.suits(poll.runtime.as_deref()) && line.is_unread(),
            false => line.is_reading(),
        };
        self.is_partial || lines.any(|(_, line)| is_open(line))
    }

    /// The poll that should be served next with a task of this type.
    pub(super) fn next_poll(&self, key: &Key) -> Option<u64> {
        self.poll_for(key, None)
    }

    /// A poll that would take a task of this type: of this worker, if it asks, or of whoever is first.
    pub(super) fn poll_for(&self, key: &Key, worker: Option<&str>) -> Option<u64> {
        let rules = self.lines.get(key).map(|line| &line.rules);
        let would =
            |poll: &Poll<T>| poll.takes_more() && rules.is_none_or(|rules| rules.suits(poll.runtime.as_deref()));
        let is_fresh = |place: &&u64| {
            self.polls
                .get(*place)
                .is_some_and(|poll| poll.org == key.0 && poll.patterns.iter().any(|p| p.matches(&key.1)))
        };
        // Those that came since the last pairing are not sorted in yet.
        let fresh = self.waiting.new.iter().filter(is_fresh).copied();
        let mut first = None;
        for place in self.waiting.of(key).chain(fresh) {
            let Some(poll) = self.polls.get(&place).filter(|poll| would(poll)) else { continue };
            match worker {
                None => return Some(place),
                Some(worker) if poll.worker == worker => return Some(place),
                Some(_) => first = first.or(Some(place)),
            }
        }
        first
    }
}
