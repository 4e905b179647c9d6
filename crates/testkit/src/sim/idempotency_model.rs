//! Which attempts have the same idempotency key (I34, M29): all those of a step until it is done, and none of any other
//! work. It knows what was started again, and nothing of how a key is formed.

use super::run_model::RunModel;
use super::violation::{CheckResult, ViolationKind, require};
use std::collections::BTreeMap;

/// One piece of work: a step, how often it began again although it was done, and whether it is undone.
pub type WorkId = (u32, u32, bool);

#[derive(Default)]
pub struct IdempotencyModel {
    keys: BTreeMap<WorkId, String>,
    works: BTreeMap<String, WorkId>,
}

impl IdempotencyModel {
    /// An attempt is given to an executor or to a worker.
    pub fn attempted(&mut self, work: WorkId, key: String) -> CheckResult {
        let known = self.keys.entry(work).or_insert_with(|| key.clone());
        ViolationKind::Duplicated.unless(*known == key, || {
            format!("the idempotency key of s{} was {known}, and is {key} although its work was not done", work.0)
        })?;
        let other = self.works.entry(key.clone()).or_insert(work);
        ViolationKind::Lost.unless(*other == work, || {
            format!("the idempotency key {key} of {work:?} is that of {other:?}, which is other work")
        })
    }
}

impl RunModel {
    /// The work that an attempt at a step does.
    pub fn work_of(&self, step: u32) -> WorkId {
        let seen = &self.steps[step as usize];
        let (of, is_undo) = (seen.undoes.unwrap_or(step as usize), seen.undoes.is_some());
        (of as u32, self.steps[of].generation, is_undo)
    }

    /// M2: the key of a step, with the keys of the steps around it.
    pub fn key_of(&self, step: u32) -> String {
        let seen = &self.steps[step as usize];
        match (seen.undoes, seen.iteration, seen.parent) {
            (Some(undone), ..) => format!("{}/compensate", self.key_of(undone as u32)),
            (None, Some(number), Some(of)) => format!("{}[{number}]", self.key_of(of as u32)),
            (None, None, Some(parent)) => format!("{}/s{}", self.key_of(parent as u32), seen.node),
            _ => format!("s{}", seen.node),
        }
    }

    /// Checks the key of a step that is given to an executor or to a worker.
    pub fn check_key(&self, step: u32, key: &str) -> CheckResult {
        require(key == self.key_of(step), || format!("s{step} has the key {key}, expected {}", self.key_of(step)))
    }
}
