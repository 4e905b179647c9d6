//! The dependencies of steps: resolves names, finds cycles and computes ancestors.
//!
//! One traversal finds the strongly connected components, each after the components it needs. A component with more
//! than one member is a cycle. In that order, the ancestors of a step are its needs and their ancestors. So even a
//! graph with cycles has ancestors, and the other checks can continue.

use super::scopes::Scopes;
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields;
use crate::step::ParsedStep;
use crate::step::group::StepOrder;
use crate::tree::{TreeNode, Value};
use std::collections::BTreeMap;

const NEEDS_MAX: usize = 1_000;
const EDGES_MAX: usize = 10_000;
/// The most steps of a cycle to list in the message.
const CYCLE_SHOWN_MAX: usize = 10;

/// What a step needs, in the order written.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    pub of: Vec<u32>,
    /// One of them is enough.
    pub is_any: bool,
}

/// The dependencies of the steps of one group.
#[derive(Default)]
pub(super) struct Graph {
    needs: Vec<Needs>,
    /// The ancestors of each step, as a bit set.
    ancestors: Vec<Vec<u64>>,
    /// Steps with unknown ancestors, because their `needs` or those of an ancestor are invalid.
    uncertain: Vec<bool>,
}

impl Graph {
    pub fn read<'t>(steps: &[ParsedStep<'t>], scopes: &Scopes<'t>, scope: usize, problems: &mut Problems<'_>) -> Graph {
        let index: BTreeMap<&str, u32> = steps.iter().enumerate().map(|(i, s)| (s.name, i as u32)).collect();
        let mut needs = vec![Needs::default(); steps.len()];
        let mut uncertain = vec![false; steps.len()];
        let mut edges = 0;
        for (i, step) in steps.iter().enumerate() {
            let Some(node) = step.fields.as_ref().and_then(|f| f.get("needs")) else { continue };
            let reader = NeedsReader { step, index: &index, scopes, scope };
            let (found, complete) = reader.read(node, problems);
            uncertain[i] = !complete;
            edges += found.of.len();
            needs[i] = found;
            if edges > EDGES_MAX {
                let message = format!("this workflow has more than {} needs in all", grouped(EDGES_MAX));
                problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
                uncertain[i..].fill(true);
                break;
            }
        }
        let mut graph = Graph { needs, ancestors: Vec::new(), uncertain };
        graph.find_ancestors(steps, problems);
        graph
    }

    /// The steps of a list: what comes before a step is what it needs.
    pub fn in_order(steps: &[ParsedStep<'_>], order: StepOrder, problems: &mut Problems<'_>) -> Graph {
        let before = |step: usize| match order {
            StepOrder::Parallel => None,
            // The first step of the other branch comes instead of the first one of this branch.
            StepOrder::Branches(then) if step == then => (then > 0).then_some(0),
            StepOrder::Sequence | StepOrder::Branches(_) => step.checked_sub(1),
        };
        let needs =
            |step: usize| Needs { of: before(step).map(|step| step as u32).into_iter().collect(), is_any: false };
        let (needs, uncertain) = ((0..steps.len()).map(needs).collect(), vec![false; steps.len()]);
        let mut graph = Graph { needs, ancestors: Vec::new(), uncertain };
        graph.find_ancestors(steps, problems);
        graph
    }

    pub fn needs(&self, step: usize) -> &Needs {
        &self.needs[step]
    }

    /// Whether `ancestor` has settled whenever `step` starts. Also true when that is unknown, because the invalid
    /// `needs` that makes it unknown has been reported.
    pub fn is_ancestor(&self, ancestor: u32, step: usize) -> bool {
        let bits = self.ancestors.get(step).map_or(&[][..], Vec::as_slice);
        let bit = bits.get(ancestor as usize / 64).is_some_and(|word| word >> (ancestor % 64) & 1 == 1);
        bit || self.uncertain.get(step).copied().unwrap_or(true)
    }

    fn find_ancestors(&mut self, steps: &[ParsedStep<'_>], problems: &mut Problems<'_>) {
        let words = steps.len().div_ceil(64);
        self.ancestors = vec![Vec::new(); steps.len()];
        let needs: Vec<Vec<u32>> = self.needs.iter().map(|needs| needs.of.clone()).collect();
        for component in components(&needs) {
            if component.len() > 1 {
                report_cycle(&component, &needs, steps, problems);
            }
            let mut bits = vec![0u64; words];
            let mut uncertain = false;
            for step in &component {
                uncertain |= self.uncertain[*step as usize];
                for need in &needs[*step as usize] {
                    bits[*need as usize / 64] |= 1 << (need % 64);
                    uncertain |= self.uncertain[*need as usize];
                    for (word, more) in bits.iter_mut().zip(&self.ancestors[*need as usize]) {
                        *word |= more;
                    }
                }
            }
            for step in component {
                self.ancestors[step as usize] = bits.clone();
                self.uncertain[step as usize] = uncertain;
            }
        }
    }
}

/// Reads the `needs` of one step.
struct NeedsReader<'a, 't> {
    step: &'a ParsedStep<'t>,
    /// The steps beside it.
    index: &'a BTreeMap<&'t str, u32>,
    scopes: &'a Scopes<'t>,
    scope: usize,
}

impl NeedsReader<'_, '_> {
    /// The valid needs, and whether all of them are valid.
    fn read(&self, node: &TreeNode, problems: &mut Problems<'_>) -> (Needs, bool) {
        let (node, is_any) = match &node.value {
            Value::Object(entries) => match entries.as_slice() {
                [only] if only.key == "any" => (&only.value, true),
                _ => {
                    let draft = fields::wrong_type(node, "needs", "a list of step names, or `{any: […]}`");
                    problems.push(draft);
                    return (Needs::default(), false);
                }
            },
            _ => (node, false),
        };
        let Value::List(items) = &node.value else {
            let draft = fields::wrong_type(node, "needs", "a list of step names");
            problems.push(match &node.value {
                Value::Text(name) => draft.hint(format!("write `needs: [{}]`", crate::diagnostic::printable(name))),
                _ => draft,
            });
            return (Needs::default(), false);
        };
        if items.len() > NEEDS_MAX {
            let (count, limit) = (grouped(items.len()), grouped(NEEDS_MAX));
            let message = format!("{} has {count} needs, the limit is {limit}", quoted(self.step.name));
            problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
            return (Needs::default(), false);
        }
        if is_any && items.is_empty() {
            problems.add(codes::OUT_OF_RANGE, &node.span, "`any` needs at least one step");
        }
        let mut found = Needs { of: Vec::new(), is_any };
        let mut complete = true;
        for item in items {
            let name = fields::text(item, "needs", problems);
            match name.map(|name| (name, self.need(name, item, problems))) {
                Some((name, Some(need))) if found.of.contains(&need) => {
                    let message = format!("{} needs {} twice", quoted(self.step.name), quoted(name));
                    let draft = Draft::new(codes::DUPLICATE_NEED, item.span.clone(), message);
                    problems.push(draft.hint("remove one of them"));
                }
                Some((_, Some(need))) => found.of.push(need),
                // A step that needs itself has all its other ancestors.
                Some((name, None)) if name == self.step.name => {}
                Some((_, None)) | None => complete = false,
            }
        }
        (found, complete)
    }

    /// The step with this name beside this one.
    fn need(&self, name: &str, item: &TreeNode, problems: &mut Problems<'_>) -> Option<u32> {
        let span = item.span.clone();
        let own = quoted(self.step.name);
        if name == self.step.name {
            let draft = Draft::new(codes::NEEDS_ITSELF, span, format!("{} needs itself", quoted(name)));
            problems.push(draft.hint("remove it"));
            return None;
        }
        if let Some(need) = self.index.get(name) {
            return Some(*need);
        }
        let draft = match self.scopes.index.get(name) {
            Some((scope, _)) => {
                let message = format!("{own} needs {}, which is in another group", quoted(name));
                let draft = Draft::new(codes::NEEDS_UNKNOWN_STEP, span, message);
                let is_around = self.scopes.outwards(self.scope).any(|outer| outer == *scope);
                let subject = if is_around { self.scope } else { *scope };
                let group = self.scopes.step_around(subject).map_or("", |step| step.name);
                match is_around {
                    _ if group == name => draft.hint(format!("remove it: {own} is inside of {}", quoted(group))),
                    true => draft.hint(format!("let {} need it", quoted(group))),
                    false => draft.hint(format!("need {}, which it is inside of", quoted(group))),
                }
            }
            None => {
                let message = format!("{own} needs {}, which is not a step of this workflow", quoted(name));
                let hint = problems.suggest(name, self.index.keys().copied().filter(|n| *n != self.step.name));
                Draft::new(codes::NEEDS_UNKNOWN_STEP, span, message).maybe_hint(hint)
            }
        };
        problems.push(draft);
        None
    }
}

/// Strongly connected components, each after those it needs. (Tarjan's algorithm with an explicit stack, so that a
/// chain of two thousand steps needs no deep recursion.)
fn components(needs: &[Vec<u32>]) -> Vec<Vec<u32>> {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; needs.len()];
    let mut low = vec![0; needs.len()];
    let mut pending = vec![false; needs.len()];
    let mut stack: Vec<u32> = Vec::new();
    let mut found = Vec::new();
    let mut count = 0;
    for root in 0..needs.len() {
        if order[root] != UNSEEN {
            continue;
        }
        // Each frame: a step and how many of its needs have been followed.
        let mut frames: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((step, next)) = frames.pop() {
            if next == 0 {
                order[step] = count;
                low[step] = count;
                count += 1;
                stack.push(step as u32);
                pending[step] = true;
            } else {
                let followed = needs[step][next - 1] as usize;
                low[step] = low[step].min(low[followed]);
            }
            let mut deeper = None;
            let mut at = next;
            while let Some(need) = needs[step].get(at).map(|n| *n as usize) {
                at += 1;
                if order[need] == UNSEEN {
                    deeper = Some(need);
                    break;
                }
                if pending[need] {
                    low[step] = low[step].min(order[need]);
                }
            }
            if let Some(need) = deeper {
                frames.push((step, at));
                frames.push((need, 0));
                continue;
            }
            if low[step] == order[step] {
                let from = stack.iter().rposition(|s| *s as usize == step).unwrap_or(0);
                let mut component = stack.split_off(from);
                component.iter().for_each(|s| pending[*s as usize] = false);
                component.sort_unstable();
                found.push(component);
            }
        }
    }
    found
}

/// Reports one cycle of a component, the shortest through its first step.
fn report_cycle(component: &[u32], needs: &[Vec<u32>], steps: &[ParsedStep<'_>], problems: &mut Problems<'_>) {
    let cycle = shortest_cycle(component, needs);
    let Some((first, second)) = cycle.first().zip(cycle.get(1)) else { return };
    let (step, need) = (&steps[*first as usize], steps[*second as usize].name);
    let mut names: Vec<String> = cycle.iter().take(CYCLE_SHOWN_MAX).map(|s| quoted(steps[*s as usize].name)).collect();
    if cycle.len() > CYCLE_SHOWN_MAX {
        names.push("…".to_owned());
    }
    names.push(quoted(step.name));
    // Point at the entry that begins the cycle.
    let node = step.fields.as_ref().and_then(|f| f.get("needs")).unwrap_or(&step.entry.value);
    let item = match &node.value {
        Value::List(items) => items.iter().find(|item| matches!(&item.value, Value::Text(name) if name == need)),
        _ => None,
    };
    let message = format!("these steps need each other in a cycle: {}", names.join(" → "));
    let draft = Draft::new(codes::DEPENDENCY_CYCLE, item.unwrap_or(node).span.clone(), message);
    problems.push(draft.hint("remove one of these needs"));
}

/// Breadth-first search from the first member back to itself, inside the component.
fn shortest_cycle(component: &[u32], needs: &[Vec<u32>]) -> Vec<u32> {
    let Some(start) = component.first().copied() else { return Vec::new() };
    let mut from: BTreeMap<u32, u32> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(step) = queue.pop_front() {
        for need in &needs[step as usize] {
            if *need == start {
                let mut cycle = vec![step];
                while let Some(before) = cycle.last().filter(|s| **s != start).and_then(|s| from.get(s)) {
                    cycle.push(*before);
                }
                cycle.reverse();
                return cycle;
            }
            if component.binary_search(need).is_ok() && !from.contains_key(need) {
                from.insert(*need, step);
                queue.push_back(*need);
            }
        }
    }
    Vec::new()
}
