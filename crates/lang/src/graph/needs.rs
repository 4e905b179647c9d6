//! The dependencies of steps: resolves names, finds cycles and computes ancestors.
//!
//! One traversal finds the strongly connected components, each after the components it needs. A component with more
//! than one member is a cycle. In that order, the ancestors of a step are its needs and their ancestors. So even a
//! graph with cycles has ancestors, and the other checks can continue.

use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields;
use crate::step::ParsedStep;
use crate::tree::{TreeNode, Value};
use std::collections::BTreeMap;

const NEEDS_MAX: usize = 1_000;
const EDGES_MAX: usize = 10_000;
/// The most steps of a cycle to list in the message.
const CYCLE_SHOWN_MAX: usize = 10;

pub(super) struct Graph<'t> {
    pub index: BTreeMap<&'t str, u32>,
    /// The needs of each step, in the order written.
    needs: Vec<Vec<u32>>,
    /// The ancestors of each step, as a bit set.
    ancestors: Vec<Vec<u64>>,
    /// Steps with unknown ancestors, because their `needs` or those of an ancestor are invalid.
    uncertain: Vec<bool>,
}

impl<'t> Graph<'t> {
    pub fn read(steps: &[ParsedStep<'t>], problems: &mut Problems<'_>) -> Graph<'t> {
        let index: BTreeMap<&str, u32> = steps.iter().enumerate().map(|(i, s)| (s.name, i as u32)).collect();
        let mut needs = vec![Vec::new(); steps.len()];
        let mut uncertain = vec![false; steps.len()];
        let mut edges = 0;
        for (i, step) in steps.iter().enumerate() {
            let Some(node) = step.fields.as_ref().and_then(|f| f.get("needs")) else { continue };
            let (found, complete) = read_needs(step, node, &index, problems);
            uncertain[i] = !complete;
            edges += found.len();
            needs[i] = found;
            if edges > EDGES_MAX {
                let message = format!("this workflow has more than {} needs in all", grouped(EDGES_MAX));
                problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
                uncertain[i..].fill(true);
                break;
            }
        }
        let mut graph = Graph { index, needs, ancestors: Vec::new(), uncertain };
        graph.find_ancestors(steps, problems);
        graph
    }

    pub fn needs(&self, step: usize) -> &[u32] {
        self.needs.get(step).map_or(&[], Vec::as_slice)
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
        for component in components(&self.needs) {
            if component.len() > 1 {
                report_cycle(&component, &self.needs, steps, problems);
            }
            let mut bits = vec![0u64; words];
            let mut uncertain = false;
            for step in &component {
                uncertain |= self.uncertain[*step as usize];
                for need in &self.needs[*step as usize] {
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

/// The valid needs of one step, and whether all of its needs are valid.
fn read_needs(
    step: &ParsedStep<'_>,
    node: &TreeNode,
    index: &BTreeMap<&str, u32>,
    problems: &mut Problems<'_>,
) -> (Vec<u32>, bool) {
    let Value::List(items) = &node.value else {
        let draft = fields::wrong_type(node, "needs", "a list of step names");
        problems.push(match &node.value {
            Value::Text(name) => draft.hint(format!("write `needs: [{}]`", crate::diagnostic::printable(name))),
            _ => draft,
        });
        return (Vec::new(), false);
    };
    if items.len() > NEEDS_MAX {
        let (count, limit) = (grouped(items.len()), grouped(NEEDS_MAX));
        let message = format!("{} has {count} needs, the limit is {limit}", quoted(step.name));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return (Vec::new(), false);
    }
    let mut found: Vec<u32> = Vec::new();
    let mut complete = true;
    for item in items {
        let Some(name) = fields::text(item, "needs", problems) else {
            complete = false;
            continue;
        };
        let span = item.span.clone();
        if name == step.name {
            problems.push(
                Draft::new(codes::NEEDS_ITSELF, span, format!("{} needs itself", quoted(name))).hint("remove it"),
            );
            continue;
        }
        let Some(need) = index.get(name) else {
            complete = false;
            let message = format!("{} needs {}, which is not a step of this workflow", quoted(step.name), quoted(name));
            let hint = problems.suggest(name, index.keys().copied().filter(|n| *n != step.name));
            problems.push(Draft::new(codes::NEEDS_UNKNOWN_STEP, span, message).maybe_hint(hint));
            continue;
        };
        if found.contains(need) {
            let message = format!("{} needs {} twice", quoted(step.name), quoted(name));
            problems.push(Draft::new(codes::DUPLICATE_NEED, span, message).hint("remove one of them"));
            continue;
        }
        found.push(*need);
    }
    (found, complete)
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
