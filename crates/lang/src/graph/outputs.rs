//! `outputs` of step lists: which steps write them, and who may read them.
//!
//! A step writes its result to the name in its `outputVariable`, and to its id. In its own list and in what is inside of
//! that, `outputs.<id>` is the result of the step, like `tasks.<id>.body`. From elsewhere it is what the step wrote last,
//! so the plan notes only those ids that are read in this way.

use super::scopes::Scopes;
use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::step::group::StepOrder;
use kernel::plan::OutputName;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A scope, and a place in it.
pub(super) type Place = (usize, u32);

/// What the steps of a definition write.
#[derive(Default)]
pub(super) struct Outputs<'t> {
    /// By number: the name, and whether it is only that of a step.
    names: RefCell<Vec<(&'t str, bool)>>,
    numbers: RefCell<BTreeMap<&'t str, u32>>,
    /// The steps that write to a name by their `outputVariable`.
    writers: BTreeMap<&'t str, Vec<Place>>,
}

impl<'t> Outputs<'t> {
    pub fn read(scopes: &Scopes<'t>, problems: &mut Problems<'_>) -> Outputs<'t> {
        let mut found = Outputs::default();
        for (number, scope) in scopes.all.iter().enumerate() {
            for (step, place) in scope.steps.iter().zip(0u32..) {
                let Some((name, entry)) = step.output() else { continue };
                found.number(name, false);
                let others = found.writers.entry(name).or_default();
                if let Some(other) = others.iter().find(|other| may_overlap(scopes, **other, (number, place))) {
                    let other = scopes.all[other.0].steps[other.1 as usize].name;
                    let message = format!("{} writes `outputs.{name}`, too, at the same time", quoted(other));
                    let draft = Draft::new(codes::OUTPUT_WRITTEN_TWICE, entry.key_span.clone(), message);
                    problems.warn(draft.hint("the branch that ends last decides; give them different names"));
                }
                others.push((number, place));
            }
        }
        found
    }

    /// The number of an output.
    pub fn number(&self, name: &'t str, is_internal: bool) -> u32 {
        let (mut names, mut numbers) = (self.names.borrow_mut(), self.numbers.borrow_mut());
        *numbers.entry(name).or_insert_with(|| {
            names.push((name, is_internal));
            names.len() as u32 - 1
        })
    }

    /// The steps that write to this name by their `outputVariable`.
    pub fn writers(&self, name: &str) -> Option<&[Place]> {
        self.writers.get(name).map(Vec::as_slice)
    }

    /// The names of `outputs`, without those of steps.
    pub fn variables(&self) -> impl Iterator<Item = &'t str> + '_ {
        self.writers.keys().copied()
    }

    pub fn has_variables(&self) -> bool {
        !self.writers.is_empty()
    }

    /// The numbers that a step writes to, once every path has been read.
    pub fn written_by(&self, step: &crate::step::ParsedStep<'t>) -> Vec<u32> {
        let numbers = self.numbers.borrow();
        let names = step.output().map(|(name, _)| name).into_iter().chain([step.name]);
        let mut written: Vec<u32> = names.filter_map(|name| numbers.get(name).copied()).collect();
        written.dedup();
        written
    }

    pub fn into_names(self) -> Vec<OutputName> {
        let output =
            |(name, is_internal): (&str, bool)| OutputName { name: name.to_owned(), is_internal, ..Default::default() };
        self.names.into_inner().into_iter().map(output).collect()
    }
}

/// The innermost list that two steps are in, and where each is in it, or what it is inside of.
pub(super) fn common(scopes: &Scopes<'_>, one: Place, other: Place) -> Option<(usize, u32, u32)> {
    let way = |place: Place| {
        std::iter::successors(Some(place), |(scope, _)| {
            scopes.all[*scope].around.map(|(scope, place)| (scope, place as u32))
        })
    };
    way(one).find_map(|(scope, at)| way(other).find(|(of, _)| *of == scope).map(|(_, of)| (scope, at, of)))
}

/// Whether two steps are in different branches of the same `parallel`.
fn may_overlap(scopes: &Scopes<'_>, one: Place, other: Place) -> bool {
    common(scopes, one, other)
        .is_some_and(|(scope, a, b)| a != b && scopes.all[scope].order == Some(StepOrder::Parallel))
}

/// Whether a step may have succeeded before another one in the same run begins.
pub(super) fn may_precede(scopes: &Scopes<'_>, writer: Place, reader: Place) -> bool {
    let Some((scope, at, of)) = common(scopes, writer, reader) else { return false };
    let is_in_loop = || scopes.outwards(scope).any(|scope| scopes.all[scope].names.is_some());
    let is_beside = || scopes.all[scope].order == Some(StepOrder::Parallel) && at != of;
    scopes.all[scope].graph.is_ancestor(at, of as usize) || is_beside() || is_in_loop()
}
