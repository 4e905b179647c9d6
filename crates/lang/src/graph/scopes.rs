//! The groups of a definition: the root group, and the steps inside of each `group` and `loop`.

use super::needs::Graph;
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields;
use crate::step::ParsedStep;
use crate::step::group::{LoopNames, StepOrder};
use crate::tree::{Entry, TreeNode};
use kernel::plan::{Form, NODES_MAX};
use std::collections::BTreeMap;

/// How deep groups may be nested (M5).
const DEPTH_MAX: usize = 16;

pub(super) struct Scopes<'t> {
    /// The root group, then the others: each after the one around it.
    pub all: Vec<StepScope<'t>>,
    /// Where each step is: its scope, and its place there.
    pub index: BTreeMap<&'t str, (usize, u32)>,
}

/// The steps of one group.
pub(super) struct StepScope<'t> {
    pub steps: Vec<ParsedStep<'t>>,
    pub graph: Graph,
    /// The number of its first node.
    pub first: u32,
    /// The step that they are inside of: its scope, and its place there.
    pub around: Option<(usize, usize)>,
    /// If that is a loop: its names.
    pub names: Option<LoopNames<'t>>,
    /// For each step, the number of the group inside of it.
    pub groups: Vec<Option<u32>>,
    /// In a step list, how its steps follow each other; a graph has `needs`.
    pub order: Option<StepOrder>,
}

/// Steps that are still to be read.
struct Unread<'t> {
    tasks: &'t TreeNode,
    around: Option<(usize, usize)>,
    names: Option<LoopNames<'t>>,
    order: Option<StepOrder>,
    depth: usize,
}

impl<'t> Scopes<'t> {
    /// `None` when a limit is exceeded.
    pub fn read(tasks: &'t TreeNode, form: Form, problems: &mut Problems<'_>) -> Option<Scopes<'t>> {
        let is_list = form == Form::Steps;
        let mut scopes = Scopes { all: Vec::new(), index: BTreeMap::new() };
        let order = is_list.then_some(StepOrder::Sequence);
        let mut unread =
            std::collections::VecDeque::from([Unread { tasks, around: None, names: None, order, depth: 0 }]);
        while let Some(Unread { tasks, around, names, order, depth }) = unread.pop_front() {
            let fields = fields::object(tasks, "tasks", problems).unwrap_or_default();
            // A list without steps has been reported.
            if fields.len() == 0 && !is_list && matches!(tasks.value, crate::tree::Value::Object(_)) {
                problems.add(codes::OUT_OF_RANGE, &tasks.span, "`tasks` needs at least one step");
            }
            let (first, number) = (scopes.count(), scopes.all.len());
            if first + fields.len() > NODES_MAX {
                let (count, limit) = (grouped(first + fields.len()), grouped(NODES_MAX));
                let message = format!("this workflow has {count} steps, the limit is {limit}");
                problems.add(codes::LIMIT_EXCEEDED, &tasks.span, message);
                return None;
            }
            if depth > DEPTH_MAX {
                let message = format!("groups and loops may be nested {DEPTH_MAX} deep");
                problems.add(codes::LIMIT_EXCEEDED, &tasks.span, message);
                return None;
            }
            let read = |entry: &'t Entry, problems: &mut Problems<'_>| match is_list {
                true => ParsedStep::of_list(entry, problems),
                false => ParsedStep::new(entry, problems),
            };
            let steps: Vec<ParsedStep<'t>> = fields.iter().map(|entry| read(entry, problems)).collect();
            let mut groups = Vec::with_capacity(steps.len());
            for (place, step) in steps.iter().enumerate() {
                if scopes.index.insert(step.name, (number, place as u32)).is_some() {
                    let message = format!("there is another step {}", quoted(step.name));
                    let draft = Draft::new(codes::DUPLICATE_STEP, step.entry.key_span.clone(), message);
                    problems.push(draft.hint("names are unique in a workflow, also inside of groups and loops"));
                }
                let inside = step.inside();
                groups.push(inside.map(|_| (number + unread.len() + 1) as u32));
                if let Some((tasks, names)) = inside {
                    let (around, order) = (Some((number, place)), is_list.then(|| step.order()));
                    unread.push_back(Unread { tasks, around, names, order, depth: depth + 1 });
                }
            }
            let graph = Graph::default();
            scopes.all.push(StepScope { steps, graph, first: first as u32, around, names, groups, order });
        }
        for number in 0..scopes.all.len() {
            let steps = &scopes.all[number].steps;
            let graph = match scopes.all[number].order {
                Some(order) => Graph::in_order(steps, order, problems),
                None => Graph::read(steps, &scopes, number, problems),
            };
            scopes.all[number].graph = graph;
        }
        Some(scopes)
    }

    /// The number of steps.
    pub fn count(&self) -> usize {
        self.all.last().map_or(0, |scope| scope.first as usize + scope.steps.len())
    }

    /// The scope inside of a step.
    pub fn inside(&self, (scope, step): (usize, usize)) -> Option<usize> {
        self.all.get(scope)?.groups.get(step)?.map(|group| group as usize)
    }

    /// The step that a scope is inside of.
    pub fn step_around(&self, scope: usize) -> Option<&ParsedStep<'t>> {
        let (outer, place) = self.all.get(scope)?.around?;
        self.all[outer].steps.get(place)
    }

    /// The scope, and those around it.
    pub fn outwards(&self, scope: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(scope), |scope| self.all[*scope].around.map(|(outer, _)| outer))
    }
}
