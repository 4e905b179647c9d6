//! Finds the open claim that gets a task. The cost depends on the patterns and runtimes of workers, not on the number of
//! open claims.

use super::claims::Pattern;
use super::{OpenClaim, TypeKey, WorkerKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Claims with the same pattern, by the runtime of their workers.
type ByRuntime = BTreeMap<Option<String>, BTreeSet<u64>>;
type ByType = HashMap<TypeKey, ByRuntime>;

#[derive(Default)]
pub(super) struct ClaimIndex {
    /// Claims to look at in the next pairing.
    new: BTreeSet<u64>,
    exact: ByType,
    /// By prefix length: a type needs one lookup per length, not one per prefix.
    prefixes: BTreeMap<usize, ByType>,
    /// Every open claim of a worker, whether or not it takes more tasks.
    workers: HashMap<WorkerKey, BTreeSet<u64>>,
}

impl ClaimIndex {
    pub fn take_new(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.new)
    }

    pub fn mark_new(&mut self, claim_id: u64) {
        self.new.insert(claim_id);
    }

    pub fn is_new(&self, claim_id: u64) -> bool {
        self.new.contains(&claim_id)
    }

    pub fn opened(&mut self, claim_id: u64, worker_key: WorkerKey) {
        self.workers.entry(worker_key).or_default().insert(claim_id);
    }

    pub fn closed(&mut self, claim_id: u64, worker_key: &WorkerKey) {
        if let Some(claims) = self.workers.get_mut(worker_key) {
            claims.remove(&claim_id);
            if claims.is_empty() {
                self.workers.remove(worker_key);
            }
        }
    }

    /// The open claims of a worker, oldest first.
    pub fn of_worker(&self, worker_key: &WorkerKey) -> impl Iterator<Item = u64> {
        self.workers.get(worker_key).into_iter().flatten().copied()
    }

    /// Makes a claim available for tasks, or no longer.
    pub fn set_waiting<T>(&mut self, claim: &mut OpenClaim<T>, is_waiting: bool) {
        if std::mem::replace(&mut claim.is_waiting, is_waiting) == is_waiting {
            return;
        }
        for pattern in &claim.patterns {
            let (by_type, name) = match pattern {
                Pattern::Exact(name) => (&mut self.exact, name),
                Pattern::Prefix(prefix) => (self.prefixes.entry(prefix.len()).or_default(), prefix),
            };
            let key = (claim.org, name.clone());
            let by_runtime = by_type.entry(key.clone()).or_default();
            let claims = by_runtime.entry(claim.runtime.clone()).or_default();
            if is_waiting {
                claims.insert(claim.claim_id);
                continue;
            }
            claims.remove(&claim.claim_id);
            if claims.is_empty() {
                by_runtime.remove(&claim.runtime);
            }
            if by_runtime.is_empty() {
                by_type.remove(&key);
            }
        }
    }

    /// The waiting claim that gets the next task of a type, among workers whose runtime the type accepts: claims of
    /// exactly this type first, then by prefix length; within a pattern the oldest.
    pub fn first(&self, key: &TypeKey, accepts: impl Fn(Option<&str>) -> bool) -> Option<u64> {
        let oldest = |by_runtime: &ByRuntime| {
            let accepted = by_runtime.iter().filter(|(runtime, _)| accepts(runtime.as_deref()));
            accepted.filter_map(|(_, claims)| claims.first()).min().copied()
        };
        let of_prefix = |(length, by_type): (&usize, &ByType)| {
            let prefix = key.1.get(..*length)?;
            by_type.get(&(key.0, Arc::from(prefix))).and_then(oldest)
        };
        let exact = self.exact.get(key).and_then(oldest);
        let is_open = !lang::task::is_reserved_type(&key.1);
        exact.or_else(|| is_open.then(|| self.prefixes.iter().find_map(of_prefix)).flatten())
    }
}
