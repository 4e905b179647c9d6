//! The plan: what every way of writing a workflow becomes, and what a run pins.
//!
//! A plan is a group of nodes. A node has *links* from siblings, and each link listens to some
//! outcomes. When all linked siblings have settled, a node whose links were all taken may start (if
//! its guard agrees); a node with a dead link settles as skipped, which settles the links that leave
//! it in turn. That is the whole cascade rule, and the planner of graphs knows no other.
//!
//! [`Layout`] is the stored form: immutable, numbered, decoded forever. [`Plan`] is a checked layout
//! with the reverse links worked out. Reserved in the format for later forms: groups inside groups and
//! repeated ones, joins on the first parent, undo, children.

use crate::event::OnConflict;
use crate::expr::Expr;
use crate::status::Outcome;
use crate::template::{Part, Template};
use crate::time::Span;
use crate::wire;

/// The newest stored format this release writes and reads.
pub const FORMAT: u8 = 1;

/// A definition with more steps is refused.
pub const NODES_MAX: usize = 2_000;

message! {
    pub struct Layout {
        1 => form: Form,
        2 => groups: Vec<Group>,
        3 => nodes: Vec<Node>,
        /// A run that is not done this long after it started ends as `timeout`.
        4 => max_duration: Span,
        /// How many runs may be open at once.
        5 => concurrency: Option<Concurrency>,
        /// Who is told that a run has ended.
        6 => notify: Vec<Notify>,
    }
}

message! {
    /// Runs whose key comes out the same share a limit.
    pub struct Concurrency {
        1 => key: Vec<Part>,
        2 => limit: u32,
        3 => on_conflict: OnConflict,
    }
}

message! {
    pub struct Notify {
        1 => on: Occasion,
        /// This address is called, or…
        2 => url: String,
        /// …a run of the workflow with this name is started.
        3 => workflow: String,
    }
}

names! {
    pub enum Occasion {
        /// However the run ended.
        Ended = 1 "ended",
        /// Only when it failed or ran out of time.
        Failed = 2 "failed",
    }
}

names! {
    /// How it was written.
    pub enum Form {
        Graph = 1 "graph",
        Steps = 2 "steps",
        Transitions = 3 "transitions",
        Script = 4 "script",
        Task = 5 "task",
    }
}

message! {
    /// Nodes that settle together. Group 0 is the run itself. Fields 3 and 4 are reserved for repetition.
    pub struct Group {
        1 => nodes: Vec<u32>,
        2 => verdict: Verdict,
    }
}

names! {
    /// What the outcomes of a group's nodes add up to.
    pub enum Verdict {
        /// Failed when an unhandled failure blocked a dependent, or when something failed and nothing
        /// succeeded; otherwise ok.
        Blocked = 1 "blocked",
        /// Failed when any failure was not handled.
        Strict = 2 "strict",
    }
}

message! {
    /// One step. Fields 8 (undo) and 9 (repeat) are reserved.
    pub struct Node {
        /// Stable and unique in the plan; what people call the step.
        1 => key: String,
        2 => group: u32,
        3 => links: Vec<Link>,
        4 => join: Join,
        5 => guard: Option<Guard>,
        6 => body: Option<Body>,
        7 => retry: Retry,
    }
}

message! {
    pub struct Link {
        1 => from: u32,
        2 => on: Outcomes,
    }
}

names! {
    pub enum Join {
        All = 1 "all",
    }
}

message! {
    /// A condition, with the text people will be shown.
    pub struct Guard {
        1 => expr: Option<Expr>,
        2 => text: String,
    }
}

choice! {
    /// What a node does. 7 (a nested group) and 9 (a child run) are reserved.
    pub enum Body {
        1 => Http { 1 => request: Box<Http> },
        2 => Log { 1 => level: Level, 2 => message: Vec<Part> },
        3 => Set { 1 => values: Option<Template> },
        4 => Noop {},
        5 => Sleep { 1 => span: Span },
        /// Ends when somebody calls the step's callback URL, or after `timeout`.
        6 => Webhook { 1 => timeout: Option<Span> },
        /// Done by whoever claims its type.
        8 => Task { 1 => task: Box<Task> },
    }
}

message! {
    /// Work for a worker outside.
    pub struct Task {
        /// Its type: the dotted name workers claim by.
        1 => name: String,
        /// What the worker is given; what the trigger brought when there is none.
        2 => input: Option<Template>,
        /// How long it may wait to be claimed.
        3 => queue: Option<Span>,
        /// Limit of one attempt.
        4 => attempt: Option<Span>,
        /// No lease is longer: a worker that is silent for so long has lost it.
        5 => heartbeat: Option<Span>,
        /// Limit of everything, from when it could first be claimed.
        6 => total: Option<Span>,
        /// Lower goes first; the run's own when there is none.
        7 => priority: Option<u32>,
        /// Tasks whose key comes out the same share limits; the run's own when it is empty.
        8 => key: Vec<Part>,
    }
}

message! {
    pub struct Http {
        1 => method: String,
        2 => url: Vec<Part>,
        3 => headers: Vec<Header>,
        4 => body: Option<Template>,
        /// Limit of one attempt.
        5 => timeout: Span,
        /// What counts as success; empty means 2xx.
        6 => expected: Vec<StatusRange>,
        /// Hosts a templated host, or a redirect, may turn out to be.
        7 => allow_hosts: Vec<String>,
        /// An object: parameters added to the url.
        8 => query: Option<Template>,
        /// An object: the fields of a form, sent instead of a body.
        9 => form: Option<Template>,
        /// Redirects followed in one attempt.
        10 => redirects: u32,
    }
}

message! {
    pub struct Header {
        1 => name: String,
        2 => value: Vec<Part>,
    }
}

message! {
    pub struct StatusRange {
        1 => from: u16,
        2 => to: u16,
    }
}

names! {
    pub enum Level {
        Debug = 1 "debug",
        Info = 2 "info",
        Warning = 3 "warning",
        Error = 4 "error",
    }
}

message! {
    /// How often a step is tried, and how far apart.
    pub struct Retry {
        /// Charged attempts; at least 1.
        1 => max_attempts: u32,
        2 => backoff: Backoff,
        3 => min: Span,
        4 => max: Span,
        /// Up to this many thousandths are added to a delay.
        5 => jitter: u32,
        /// At most once: an attempt with an unknown end is a failure, not a reason to try again.
        6 => never: bool,
    }
}

names! {
    pub enum Backoff {
        Fixed = 1 "fixed",
        Exponential = 2 "exponential",
        Quadratic = 3 "quadratic",
    }
}

/// A set of outcomes: what a link listens to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(u32);

impl Outcomes {
    pub const OK: Outcomes = Outcomes(1 << Outcome::Ok as u32);
    pub const ANY: Outcomes = Outcomes(
        1 << Outcome::Ok as u32
            | 1 << Outcome::Failed as u32
            | 1 << Outcome::TimedOut as u32
            | 1 << Outcome::Skipped as u32
            | 1 << Outcome::Cancelled as u32,
    );

    pub fn contains(self, outcome: Outcome) -> bool {
        self.0 & 1 << outcome as u32 != 0
    }
}

impl wire::Value for Outcomes {
    fn put(&self, number: u32, out: &mut Vec<u8>) {
        self.0.put(number, out);
    }
    fn take(raw: wire::Raw<'_>, depth: u32) -> Result<Self, wire::Error> {
        u32::take(raw, depth).map(Outcomes)
    }
}

impl Node {
    /// A kind of a later release is left alone: its step stays pending and the run waits for an upgrade.
    pub fn is_known(&self) -> bool {
        !matches!(self.body, None | Some(Body::Unknown { .. }))
    }
}

impl Node {
    /// What a worker outside is to do, if this is such a step.
    pub fn task(&self) -> Option<&Task> {
        match &self.body {
            Some(Body::Task { task }) => Some(task),
            _ => None,
        }
    }
}

impl Body {
    /// The word people use for this kind of step.
    pub fn kind(&self) -> &'static str {
        match self {
            Body::Http { .. } => "http",
            Body::Log { .. } => "log",
            Body::Set { .. } => "set",
            Body::Noop {} => "noop",
            Body::Sleep { .. } => "sleep",
            Body::Webhook { .. } => "wait_for_webhook",
            Body::Task { .. } => "task",
            Body::Unknown { .. } => "unknown",
        }
    }
}

/// A layout that has been checked, with what advancing needs worked out once.
#[derive(Clone, Debug)]
pub struct Plan {
    layout: Layout,
    /// For each node, the nodes that link from it, ascending and without repeats.
    dependents: Vec<Vec<u32>>,
}

impl Plan {
    /// Refuses a layout that refers outside itself or links in a circle: front ends never build one, so
    /// this is damage or a bug, and a run must not start on it.
    pub fn new(layout: Layout) -> Result<Plan, &'static str> {
        let count = layout.nodes.len();
        if layout.groups.is_empty() || count > NODES_MAX {
            return Err("a plan needs a root group and at most 2,000 nodes");
        }
        let mut dependents = vec![Vec::new(); count];
        for (i, node) in layout.nodes.iter().enumerate() {
            for link in &node.links {
                let list = dependents.get_mut(link.from as usize).ok_or("a link comes from nowhere")?;
                if list.last() != Some(&(i as u32)) {
                    list.push(i as u32);
                }
            }
        }
        let in_range = layout.groups.iter().flat_map(|g| &g.nodes).all(|n| (*n as usize) < count);
        if !in_range {
            return Err("a group names a node that is not there");
        }
        let plan = Plan { layout, dependents };
        if plan.is_acyclic() { Ok(plan) } else { Err("the links form a circle") }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        wire::seal(FORMAT, &self.layout)
    }

    pub fn decode(bytes: &[u8]) -> Result<Plan, wire::Error> {
        Plan::new(wire::open(FORMAT, bytes)?).map_err(wire::Error::Malformed)
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn nodes(&self) -> &[Node] {
        &self.layout.nodes
    }

    pub fn node(&self, step: u32) -> &Node {
        &self.layout.nodes[step as usize]
    }

    pub fn step(&self, key: &str) -> Option<u32> {
        self.layout.nodes.iter().position(|n| n.key == key).map(|i| i as u32)
    }

    pub fn dependents(&self, step: u32) -> &[u32] {
        &self.dependents[step as usize]
    }

    pub fn verdict(&self) -> Verdict {
        self.layout.groups[0].verdict
    }

    fn is_acyclic(&self) -> bool {
        let mut left: Vec<usize> = self.layout.nodes.iter().map(distinct_parents).collect();
        let mut free: Vec<u32> = (0..left.len() as u32).filter(|i| left[*i as usize] == 0).collect();
        let mut seen = 0;
        while let Some(step) = free.pop() {
            seen += 1;
            for d in &self.dependents[step as usize] {
                left[*d as usize] -= 1;
                if left[*d as usize] == 0 {
                    free.push(*d);
                }
            }
        }
        seen == left.len()
    }
}

/// How many different siblings a node waits for.
pub fn distinct_parents(node: &Node) -> usize {
    let mut from: Vec<u32> = node.links.iter().map(|l| l.from).collect();
    from.sort_unstable();
    from.dedup();
    from.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(links: &[&[u32]]) -> Layout {
        let node = |(i, from): (usize, &&[u32])| Node {
            key: format!("s{i}"),
            links: from.iter().map(|f| Link { from: *f, on: Outcomes::OK, ..Default::default() }).collect(),
            body: Some(Body::Noop {}),
            ..Default::default()
        };
        let nodes: Vec<Node> = links.iter().enumerate().map(node).collect();
        let all = Group { nodes: (0..nodes.len() as u32).collect(), ..Default::default() };
        Layout { nodes, groups: vec![all], ..Default::default() }
    }

    #[test]
    fn a_plan_reads_back_as_it_was_stored() {
        let plan = Plan::new(layout(&[&[], &[0], &[0, 1]])).unwrap();
        let again = Plan::decode(&plan.encode()).unwrap();
        assert_eq!(plan.layout(), again.layout());
        assert_eq!(again.dependents(0), [1, 2]);
    }

    #[test]
    fn a_plan_that_cannot_be_run_is_refused() {
        assert!(Plan::new(layout(&[&[1], &[0]])).is_err(), "a circle");
        assert!(Plan::new(layout(&[&[0]])).is_err(), "a link to itself");
        assert!(Plan::new(layout(&[&[7]])).is_err(), "a link from nowhere");
        assert!(Plan::new(Layout::default()).is_err(), "no root group");
    }
}
