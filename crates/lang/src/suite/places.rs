//! Which steps of a run an entry of a case is about.
//!
//! Names of steps are unique, so a name stands for the step in every iteration of the loops around it. A key such as
//! `each[3]/charge` stands for one iteration, and takes precedence.

use super::Reader;
use crate::codes;
use crate::diagnostic::{Draft, quoted};
use kernel::event::StepPlace;
use kernel::plan::Plan;
use std::collections::BTreeMap;
use std::ops::Range;

/// Scripts by step.
#[derive(Clone, Debug, PartialEq)]
pub struct ByStep<T> {
    /// By node: for the step wherever it is opened.
    every: BTreeMap<u32, T>,
    /// By key: for one iteration.
    one: BTreeMap<String, T>,
}

impl<T> Default for ByStep<T> {
    fn default() -> Self {
        ByStep { every: BTreeMap::new(), one: BTreeMap::new() }
    }
}

impl<T: Clone> ByStep<T> {
    /// The script of a step, by its node and its key.
    pub fn get(&self, node: u32, key: &str) -> Option<&T> {
        self.one.get(key).or_else(|| self.every.get(&node))
    }

    pub fn is_empty(&self) -> bool {
        self.every.is_empty() && self.one.is_empty()
    }

    /// Every entry, with its node in this plan.
    pub fn all<'s>(&'s self, plan: &'s Plan) -> impl Iterator<Item = (u32, &'s T)> {
        let one = self.one.iter().filter_map(|(key, script)| Some((plan.find(key.rsplit('/').next()?)?, script)));
        self.nodes().chain(one)
    }

    pub(super) fn insert(&mut self, place: CasePlace, script: T) {
        match place.key {
            Some(key) => drop(self.one.insert(key, script)),
            None => drop(self.every.insert(place.node, script)),
        }
    }

    pub(super) fn add_defaults(&mut self, shared: &ByStep<T>) {
        for (node, script) in &shared.every {
            self.every.entry(*node).or_insert_with(|| script.clone());
        }
        for (key, script) in &shared.one {
            self.one.entry(key.clone()).or_insert_with(|| script.clone());
        }
    }

    /// Entries by node, without those for single iterations.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &T)> {
        self.every.iter().map(|(node, script)| (*node, script))
    }
}

/// The step that a key of a case names.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CasePlace {
    pub node: u32,
    /// `None` for the step in every iteration of the loops around it.
    pub key: Option<String>,
}

impl Reader<'_> {
    /// The step that a key names.
    pub(super) fn place(&mut self, key: &str, span: &Range<usize>) -> Option<CasePlace> {
        let parts: Option<Vec<(&str, Option<u32>)>> = key.split('/').map(|text| part(self.plan, text)).collect();
        let parts = parts.unwrap_or_else(|| vec![(key, None)]);
        let name = parts.last().map_or(key, |(name, _)| *name);
        let Some(node) = self.plan.find(name) else {
            let hint = self.problems.suggest(name, self.plan.nodes().iter().map(|node| node.key.as_str()));
            let message = format!("{} is not a step of this workflow", quoted(key));
            self.problems.push(Draft::new(codes::UNKNOWN_CASE_STEP, span.clone(), message).maybe_hint(hint));
            return None;
        };
        if parts.len() == 1 && parts[0].1.is_none() {
            return Some(CasePlace { node, key: None });
        }
        let way: Vec<u32> = way(self.plan, node);
        let fits = parts.len() == way.len()
            && parts.iter().zip(&way).all(|((name, _), node)| self.plan.node_at(*node).key == *name);
        let (last, around) = way.split_last()?;
        let is_loop = |node: &u32| self.plan.node_at(*node).repeat().is_some();
        let indices: Vec<u32> = parts.iter().filter_map(|(_, index)| *index).collect();
        let has_indices = parts.iter().zip(around).all(|((_, index), node)| index.is_some() == is_loop(node));
        let is_iteration = parts.last().is_some_and(|(_, index)| index.is_some());
        if fits && has_indices && !is_iteration {
            // Outside of loops there is one such step only.
            let key = self.plan.key(&StepPlace { node: *last, indices: indices.clone(), ..Default::default() });
            return Some(CasePlace { node, key: (!indices.is_empty()).then(|| key.into_owned()) });
        }
        let message = format!("{} is not the key of a step", quoted(key));
        let hint = format!("write `{}`", example(self.plan, node));
        self.problems.push(Draft::new(codes::UNKNOWN_CASE_STEP, span.clone(), message).hint(hint));
        None
    }

    /// The same where one step is meant: its key.
    pub(super) fn one_step(&mut self, key: &str, span: &Range<usize>) -> Option<(u32, String)> {
        let place = self.place(key, span)?;
        match place.key {
            Some(key) => Some((place.node, key)),
            None if self.plan.loops_around(place.node).is_empty() => {
                let key = self.plan.key(&StepPlace { node: place.node, ..Default::default() }).into_owned();
                Some((place.node, key))
            }
            None => {
                let message = format!("{} is opened in each iteration of a loop", quoted(key));
                let hint = format!("say which one: `{}`", example(self.plan, place.node));
                self.problems.push(Draft::new(codes::UNKNOWN_CASE_STEP, span.clone(), message).hint(hint));
                None
            }
        }
    }
}

/// A part of a key: `charge` or `each[3]`. A step list has steps that are called `step[0]`.
fn part<'k>(plan: &Plan, text: &'k str) -> Option<(&'k str, Option<u32>)> {
    match text.strip_suffix(']').filter(|_| plan.find(text).is_none()) {
        Some(rest) => rest.rsplit_once('[').and_then(|(name, index)| Some((name, Some(index.parse().ok()?)))),
        None => Some((text, None)),
    }
}

/// The nodes from the root group to this one.
fn way(plan: &Plan, node: u32) -> Vec<u32> {
    let mut way: Vec<u32> = std::iter::successors(Some(node), |node| plan.around(*node)).collect();
    way.reverse();
    way
}

/// The key that a step has in the first iterations.
fn example(plan: &Plan, node: u32) -> String {
    let indices = vec![0; plan.loops_around(node).len()];
    plan.key(&StepPlace { node, indices, ..Default::default() }).into_owned()
}
