//! The plan: what every form of workflow is compiled to. Each run pins one.
//!
//! A plan is a tree of groups of nodes. A node has *links* from other nodes of its group, and each link accepts some
//! outcomes. A node is decided when all linked nodes have settled. If every link accepts its outcome and the node's
//! condition holds, the node starts; otherwise it settles as skipped, and its dependents are decided in turn. A node
//! with a first-join is decided at the first link that is taken. The body of a node is work, a group, or a loop that
//! repeats a group. Graphs have no other scheduling rule.
//!
//! [`Layout`] is the stored form: immutable, with numbered fields that every later release can decode. The nodes of
//! the root group come first: the steps of a run that exist from its start have the numbers of their nodes. [`Plan`]
//! is a checked layout plus its reverse links.
//!
//! What undoes a step is a node too. It is in no group and has no links: it starts when its run undoes what it did, see
//! [`advance`](mod@crate::advance).

use crate::event::{OnConflict, StepPlace};
use crate::expr::Expr;
use crate::planner::{GraphPlanner, Planner};
use crate::run::WaitKind;
use crate::status::Outcome;
use crate::template::{Part, Template};
use crate::time::Span;
use crate::wire;
use bytes::Bytes;
use std::borrow::Cow;

/// The newest stored format this release writes and reads.
pub const FORMAT: u8 = 2;

/// A definition with more steps is refused.
pub const NODES_MAX: usize = 2_000;

message! {
    pub struct Layout {
        1 => form: Form,
        2 => groups: Vec<Group>,
        3 => nodes: Vec<Node>,
        /// A run that takes longer ends as `timeout`.
        4 => max_duration: Span,
        /// The limit on open runs.
        5 => concurrency: Option<Concurrency>,
        /// The notifications to send when a run ends.
        6 => notify: Vec<Notify>,
        /// The output of a run that completes.
        7 since 2 => output: Option<Template>,
        /// JSON: the defaults of the variables.
        8 since 2 => variables: Bytes,
        /// The outputs that steps write, see [`Node::writes`].
        9 since 2 => outputs: Vec<OutputName>,
        /// A run that would start more steps than this fails; 0 for no limit. Groups and loops do not count, and every
        /// step of an iteration does.
        10 since 2 => max_steps: u32,
    }
}

message! {
    /// A value that several steps may write; the last one to succeed decides.
    pub struct OutputName {
        1 => name: String,
        /// The result of a step that is read by the id of the step: not among the outputs of the run.
        2 => is_internal: bool,
    }
}

message! {
    /// Runs whose keys are equal share a limit.
    pub struct Concurrency {
        1 => key: Vec<Part>,
        2 => limit: u32,
        3 => on_conflict: OnConflict,
    }
}

message! {
    pub struct Notify {
        1 => on: Occasion,
        /// The URL to call. When empty, `workflow` is set.
        2 => url: String,
        /// The name of the workflow to start a run of.
        3 => workflow: String,
    }
}

names! {
    pub enum Occasion {
        /// Any end of the run.
        Ended = 1 "ended",
        /// The run failed or timed out.
        Failed = 2 "failed",
    }
}

names! {
    /// The form in which the workflow was written.
    pub enum Form {
        Graph = 1 "graph",
        Steps = 2 "steps",
        Transitions = 3 "transitions",
        Script = 4 "script",
        Task = 5 "task",
    }
}

message! {
    /// Nodes with one verdict. Group 0 is the run itself. The other groups are bodies of nodes, and say in
    /// [`GroupBody`] what their outcome is.
    pub struct Group {
        1 => nodes: Vec<u32>,
        2 => verdict: Verdict,
    }
}

names! {
    /// How the outcomes of a group's nodes decide the outcome of the group.
    pub enum Verdict {
        /// Of earlier lowerings: like `Blocked`, but only a step that needs the failed one directly can handle it.
        DirectBlocked = 1 "direct_blocked",
        /// Of earlier lowerings: like `Unhandled`, but only a step that needs the failed one directly can handle it.
        DirectUnhandled = 2 "direct_unhandled",
        /// Failed when any failure is unhandled.
        Unhandled = 3 "unhandled",
        /// Failed when an unhandled failure blocked a dependent, or when a node failed and none succeeded.
        Blocked = 4 "blocked",
    }
}

message! {
    /// One step.
    pub struct Node {
        /// The name of the step: stable, and unique in the plan.
        1 => key: String,
        2 => group: u32,
        3 => links: Vec<Link>,
        4 => join: Join,
        5 => guard: Option<Guard>,
        6 => body: Option<Body>,
        7 => retry: Retry,
        /// The node that undoes this one.
        8 since 2 => undo: Option<u32>,
        /// The author expects that this step may fail: its failure counts as handled.
        10 => allow_failure: bool,
        /// What it does can neither be repeated nor undone.
        11 since 2 => is_irreversible: bool,
        /// What it does cannot be undone.
        12 since 2 => is_not_compensatable: bool,
        /// It is undone also when it is not known whether it was done.
        13 since 2 => undo_if_unknown: bool,
        /// The outputs that its result is written to when it succeeds.
        14 since 2 => writes: Vec<u32>,
    }
}

message! {
    pub struct Link {
        1 => from: u32,
        2 => on: Outcomes,
    }
}

names! {
    /// When the links of a node decide it.
    pub enum Join {
        /// When all linked nodes have settled.
        All = 1 "all",
        /// At the first link that is taken (M16).
        Any = 2 since 2 "any",
    }
}

message! {
    /// A condition and its source text, which `explain` shows.
    pub struct Guard {
        1 => expr: Option<Expr>,
        2 => text: String,
    }
}

choice! {
    /// What a node does.
    pub enum Body {
        1 => Http { 1 => request: Box<Http> },
        2 => Log { 1 => level: Level, 2 => message: Vec<Part> },
        3 => Set { 1 => values: Option<Template> },
        4 => Noop {},
        5 => Sleep { 1 => span: Span },
        /// Ends when the step's callback URL is called, or after `timeout`.
        6 => Webhook { 1 => timeout: Option<Span> },
        /// Ends when the nodes of its group have.
        7 since 2 => Group { 1 => group: GroupBody },
        /// Done by a worker that claims its type.
        8 => Task { 1 => task: Box<TaskBody> },
        /// Starts a run of another workflow, and ends when that run has, unless it is detached.
        9 since 2 => Child { 1 => child: Box<ChildBody> },
        /// Ends when its iterations have.
        10 since 2 => Loop { 1 => repeat: Box<Repeat> },
        /// Ends when the run receives a signal of this name, or after `timeout`.
        11 since 2 => Signal { 1 => name: String, 2 => timeout: Option<Span> },
        /// Ends when it is approved or denied, or after its timeout.
        12 since 2 => Approval { 1 => approval: Box<ApprovalBody> },
        /// Ends when it is resumed, or after `timeout`.
        13 since 2 => Pause { 1 => timeout: Option<Span> },
    }
}

message! {
    /// What is to be approved, and by whom.
    pub struct ApprovalBody {
        1 => prompt: Vec<Part>,
        /// Shown with the prompt.
        2 => items: Option<Template>,
        3 => timeout: Option<Span>,
        /// The decision when the deadline passes; without one, it counts as denied.
        4 => default: Option<Decision>,
        /// The actors that may decide. When empty, every actor may.
        5 => approvers: Vec<String>,
        /// The actor that started the run may not decide.
        6 => exclude_initiator: bool,
    }
}

names! {
    pub enum Decision {
        Approved = 1 "approved",
        Denied = 2 "denied",
    }
}

message! {
    /// A run of another workflow.
    pub struct ChildBody {
        /// The name, slug or id of the workflow.
        1 => workflow: Vec<Part>,
        /// The only workflows that it may be, if its name has placeholders.
        2 => allow: Vec<String>,
        /// The body of the child's trigger; without one, that of this run.
        3 => input: Option<Template>,
        /// The step succeeds as soon as the child exists.
        4 => detached: bool,
        5 => on_parent_close: OnParentClose,
    }
}

names! {
    /// What happens to a child that is open when its parent ends.
    pub enum OnParentClose {
        Cancel = 1 "cancel",
        Leave = 2 "leave",
    }
}

message! {
    /// The nodes of a nested group, and what their end means.
    pub struct GroupBody {
        /// Its place in [`Layout::groups`].
        1 => group: u32,
        2 => on_error: OnError,
        /// The most of its nodes that work at the same time; 0 for no limit.
        3 => concurrency: u32,
        /// Its result. Without one, the result of its last nodes (M11).
        4 => output: Option<Template>,
        5 since 2 => kind: GroupKind,
    }
}

names! {
    /// What the author calls a group.
    pub enum GroupKind {
        Group = 1 "group",
        /// Only one of its last nodes runs: its result is that of the one that did.
        Conditional = 2 since 2 "conditional",
        Parallel = 3 since 2 "parallel",
    }
}

names! {
    /// What an unhandled failure inside a group means for the group (M10).
    pub enum OnError {
        /// Nothing more starts, what runs is cancelled, and the group fails.
        Fail = 1 "fail",
        /// The rest runs to its end, then the group fails.
        Finish = 2 "finish",
        /// The rest runs to its end, and the group succeeds.
        Continue = 3 "continue",
    }
}

message! {
    /// A group that is repeated: for each item of a list, or while a condition holds.
    pub struct Repeat {
        /// The nodes of one iteration. Its `on_error` is that of the loop, and its `output` the result of an iteration.
        1 => body: GroupBody,
        /// Where the list is.
        2 => items: Option<Expr>,
        3 => condition: Option<Guard>,
        /// The most iterations that work at the same time.
        4 => concurrency: u32,
        5 => max_iterations: u32,
        /// What the author calls an item.
        6 => name: String,
        /// The list itself, if the author wrote it out.
        7 => list: Option<Template>,
    }
}

message! {
    /// Work for a worker.
    pub struct TaskBody {
        /// The type: the dotted name that workers claim.
        1 => name: String,
        /// The input of the worker; without one, the trigger body.
        2 => input: Option<Template>,
        /// Limit of the time from ready to claimed.
        3 => queue: Option<Span>,
        /// Limit of one attempt.
        4 => attempt: Option<Span>,
        /// The longest lease: a worker that is silent for this long loses the task.
        5 => heartbeat: Option<Span>,
        /// Limit of all attempts together, from when the task could first be claimed.
        6 => total: Option<Span>,
        /// Lower goes first; without one, the run's priority.
        7 => priority: Option<u32>,
        /// The concurrency key: tasks whose keys are equal share limits. When empty, the run's key.
        8 => key: Vec<Part>,
        /// With placeholders, what forms the type; `name` is empty then.
        9 since 2 => of_type: Vec<Part>,
        /// The only types that it may be, if it has placeholders.
        10 since 2 => allow: Vec<String>,
        11 since 2 => kind: TaskKind,
    }
}

names! {
    /// The kind of step that a task does.
    pub enum TaskKind {
        Task = 1 "task",
        /// A command, which a worker in the process of the server runs.
        Bash = 2 since 2 "bash",
        Tool = 3 since 2 "tool",
        Agent = 4 since 2 "agent",
        AgentMessage = 5 since 2 "agent_message",
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
        /// The hosts that a templated url or a redirect may lead to.
        7 => allow_hosts: Vec<String>,
        /// An object: parameters to add to the url.
        8 => query: Option<Template>,
        /// An object: the fields of a form, sent as the body.
        9 => form: Option<Template>,
        /// The most redirects to follow in one attempt.
        10 => redirects: u32,
        /// Attempts start even while the host is down or asked for a pause.
        11 => ignores_host_backoff: bool,
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
    /// How often a step is attempted, and the delays between attempts.
    pub struct Retry {
        /// Charged attempts; at least 1.
        1 => max_attempts: u32,
        2 => backoff: Backoff,
        3 => min: Span,
        4 => max: Span,
        /// The largest random addition to a delay, in thousandths of the delay.
        5 => jitter: u32,
        /// At most once: an attempt whose outcome is unknown fails the step and is not repeated.
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

/// A set of outcomes: those that a link accepts.
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
    /// It did its work, or tried to.
    pub const ENDED: Outcomes =
        Outcomes(1 << Outcome::Ok as u32 | 1 << Outcome::Failed as u32 | 1 << Outcome::TimedOut as u32);
    /// The other alternative: what comes instead of a skipped step.
    pub const SKIPPED: Outcomes = Outcomes(1 << Outcome::Skipped as u32);

    pub fn contains(self, outcome: Outcome) -> bool {
        self.0 & 1 << outcome as u32 != 0
    }
}

impl wire::Value for Outcomes {
    fn put(&self, number: u32, out: &mut wire::Writer) {
        self.0.put(number, out);
    }
    fn take(raw: wire::Raw<'_>, depth: u32) -> Result<Self, wire::Error> {
        u32::take(raw, depth).map(Outcomes)
    }
}

impl Node {
    /// The request, if this is an http step.
    pub fn http(&self) -> Option<&Http> {
        match &self.body {
            Some(Body::Http { request }) => Some(request),
            _ => None,
        }
    }

    /// The task, if a worker does this step.
    pub fn task(&self) -> Option<&TaskBody> {
        match &self.body {
            Some(Body::Task { task }) => Some(task),
            _ => None,
        }
    }

    /// Whether it comes instead of a step that is skipped.
    pub fn is_alternative(&self) -> bool {
        self.links.iter().any(|link| link.on == Outcomes::SKIPPED)
    }

    /// The nodes inside this one: those of its group, or of one iteration of its loop.
    pub fn inner(&self) -> Option<&GroupBody> {
        match &self.body {
            Some(Body::Group { group }) => Some(group),
            Some(Body::Loop { repeat }) => Some(&repeat.body),
            _ => None,
        }
    }

    /// The gate, if the step waits for an approval.
    pub fn approval(&self) -> Option<&ApprovalBody> {
        match &self.body {
            Some(Body::Approval { approval }) => Some(approval),
            _ => None,
        }
    }

    /// What an open wait of this step waits for; `None` for steps of other kinds.
    pub fn wait_kind(&self) -> Option<WaitKind> {
        match &self.body {
            Some(Body::Webhook { .. }) => Some(WaitKind::Webhook),
            Some(Body::Signal { .. }) => Some(WaitKind::Signal),
            Some(Body::Approval { .. }) => Some(WaitKind::Approval),
            Some(Body::Pause { .. }) => Some(WaitKind::Pause),
            _ => None,
        }
    }

    /// The loop, if this is one.
    pub fn repeat(&self) -> Option<&Repeat> {
        match &self.body {
            Some(Body::Loop { repeat }) => Some(repeat),
            _ => None,
        }
    }
}

impl Body {
    /// The name of this kind of step in definitions and the API.
    pub fn kind(&self) -> &'static str {
        match self {
            Body::Http { .. } => "http",
            Body::Log { .. } => "log",
            Body::Set { .. } => "set",
            Body::Noop {} => "noop",
            Body::Sleep { .. } => "sleep",
            Body::Webhook { .. } => "wait_for_webhook",
            Body::Group { group } => group.kind.as_str(),
            Body::Loop { .. } => "loop",
            Body::Task { task } => task.kind.as_str(),
            Body::Child { .. } => "subworkflow",
            Body::Signal { .. } => "wait_for_signal",
            Body::Approval { .. } => "approval",
            Body::Pause { .. } => "pause",
            Body::Unknown { .. } => "unknown",
        }
    }
}

/// A checked layout, with the reverse links that `advance` needs.
#[derive(Clone, Debug)]
pub struct Plan {
    layout: Layout,
    /// For each node, the nodes that link from it, ascending and without repeats.
    dependents: Vec<Vec<u32>>,
    /// For each node, the node that it is inside of, or that it undoes.
    around: Vec<Option<u32>>,
    /// For each node, the node that it undoes.
    undoes: Vec<Option<u32>>,
    can_undo: bool,
    /// For each node: does this release understand all of it?
    known: Vec<bool>,
    /// Makes the planner of a new run.
    planner: fn() -> Box<dyn Planner>,
}

impl Plan {
    /// Refuses a layout with links or groups that name missing nodes, or with a cycle. `lang` never builds one, so
    /// it means damage or a bug, and no run may start on it.
    pub fn new(layout: Layout) -> Result<Plan, &'static str> {
        let count = layout.nodes.len();
        let undoes = check_undo(&layout)?;
        let around = check_groups(&layout)?.into_iter().zip(&undoes).map(|(group, undone)| group.or(*undone)).collect();
        let can_undo = undoes.iter().any(Option::is_some);
        if undoes.iter().filter(|undone| undone.is_none()).count() > NODES_MAX {
            return Err("a plan has at most 2,000 nodes");
        }
        let mut dependents = vec![Vec::new(); count];
        for (i, node) in layout.nodes.iter().enumerate() {
            for link in &node.links {
                let list = dependents.get_mut(link.from as usize).ok_or("a link names a node that is not there")?;
                if list.last() != Some(&(i as u32)) {
                    list.push(i as u32);
                }
            }
        }
        let known = layout.nodes.iter().map(|node| node.body.is_some() && !wire::Value::is_newer(node)).collect();
        let plan =
            Plan { layout, dependents, around, undoes, can_undo, known, planner: || Box::<GraphPlanner>::default() };
        let is_output = |number: &u32| (*number as usize) < plan.layout.outputs.len();
        if !plan.nodes().iter().all(|node| node.writes.iter().all(is_output)) {
            return Err("a node writes an output that is not there");
        }
        if plan.is_acyclic() { Ok(plan) } else { Err("the links form a cycle") }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        wire::seal(&self.layout)
    }

    pub fn decode(bytes: &[u8]) -> Result<Plan, wire::Error> {
        let mut layout: Layout = wire::open(FORMAT, bytes)?;
        // A node that this release does not understand holds up its step only.
        let nodes = std::mem::take(&mut layout.nodes);
        if wire::Value::is_newer(&layout) {
            return Err(wire::Error::Newer("plan"));
        }
        Plan::new(Layout { nodes, ..layout }).map_err(wire::Error::Malformed)
    }

    /// Whether this release understands the step. One that it does not understand stays pending, and its run waits for
    /// an upgrade.
    pub fn is_known(&self, node: u32) -> bool {
        self.known[node as usize]
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn nodes(&self) -> &[Node] {
        &self.layout.nodes
    }

    /// The nodes of the root group: the steps that a run has from its start.
    pub fn root(&self) -> &[Node] {
        &self.layout.nodes[..self.layout.groups[0].nodes.len()]
    }

    /// A node by its place in the plan. The node of a step is [`Run::node`](crate::Run::node).
    pub fn node_at(&self, node: u32) -> &Node {
        &self.layout.nodes[node as usize]
    }

    /// The place of the node with this key. Keys are unique in a plan, except those of nodes that undo others.
    pub fn find(&self, key: &str) -> Option<u32> {
        let is_named = |(node, undone): (&Node, &Option<u32>)| node.key == key && undone.is_none();
        self.layout.nodes.iter().zip(&self.undoes).position(is_named).map(|i| i as u32)
    }

    /// The node that this one undoes.
    pub fn undoes(&self, node: u32) -> Option<u32> {
        self.undoes.get(node as usize).copied().flatten()
    }

    /// Whether any step can be undone.
    pub fn can_undo(&self) -> bool {
        self.can_undo
    }

    /// The node that a node is inside of, or that it undoes; `None` for those of the root group.
    pub fn around(&self, node: u32) -> Option<u32> {
        self.around.get(node as usize).copied().flatten()
    }

    /// The loops that a node is inside of, from the outermost.
    pub fn loops_around(&self, node: u32) -> Vec<u32> {
        let outwards = std::iter::successors(self.around(node), |node| self.around(*node));
        let mut loops: Vec<u32> = outwards.filter(|node| self.node_at(*node).repeat().is_some()).collect();
        loops.reverse();
        loops
    }

    /// The key of a step: its name, after the keys of the steps around it, such as `orders[3]/charge`.
    pub fn key(&self, place: &StepPlace) -> Cow<'_, str> {
        let StepPlace { node, indices, .. } = place;
        let name = &self.node_at(*node).key;
        if indices.is_empty() && self.around(*node).is_none() {
            return Cow::Borrowed(name);
        }
        let (outer, own) = indices.split_at(self.loops_around(*node).len().min(indices.len()));
        let mut key = String::new();
        if let Some(around) = self.around(*node) {
            key += &self.key(&StepPlace { node: around, indices: outer.to_vec(), ..Default::default() });
            key.push('/');
        }
        key += name;
        key.extend(own.iter().map(|index| format!("[{index}]")));
        Cow::Owned(key)
    }

    /// The nodes that link from this one.
    pub fn dependents(&self, node: u32) -> &[u32] {
        &self.dependents[node as usize]
    }

    /// The nodes of a nested group.
    pub fn group(&self, body: &GroupBody) -> &[u32] {
        &self.layout.groups[body.group as usize].nodes
    }

    /// The nodes of a group whose ends nothing waits for: without an `output`, they make its result. What comes instead of
    /// a node does not wait for its end.
    pub fn last_nodes(&self, body: &GroupBody) -> impl Iterator<Item = u32> + '_ {
        let is_last = |node: &u32| self.dependents(*node).iter().all(|next| self.node_at(*next).is_alternative());
        self.group(body).iter().copied().filter(is_last)
    }

    pub(crate) fn planner(&self) -> Box<dyn Planner> {
        (self.planner)()
    }

    /// Replaces the planner that runs of this plan get.
    #[cfg(test)]
    pub(crate) fn with_planner(self, planner: fn() -> Box<dyn Planner>) -> Plan {
        Plan { planner, ..self }
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

/// Checks that the nodes of the root group come first, that no node is in two groups or linked across groups, and that
/// no group is inside itself.
/// Returns for each node the node that it is inside of.
fn check_groups(layout: &Layout) -> Result<Vec<Option<u32>>, &'static str> {
    let Some(root) = layout.groups.first() else { return Err("a plan needs a root group") };
    if !root.nodes.iter().copied().eq(0..root.nodes.len() as u32) {
        return Err("the nodes of the root group do not come first");
    }
    let mut group_of = vec![None; layout.nodes.len()];
    for (group, nodes) in layout.groups.iter().zip(0u32..).map(|(group, number)| (number, &group.nodes)) {
        for node in nodes {
            let slot = group_of.get_mut(*node as usize).ok_or("a group names a node that is not there")?;
            if slot.replace(group).is_some() || layout.nodes[*node as usize].group != group {
                return Err("a node is in two groups");
            }
        }
    }
    let mut owner = vec![None; layout.groups.len()];
    for (node, number) in layout.nodes.iter().zip(0u32..) {
        for link in &node.links {
            if layout.nodes.get(link.from as usize).is_some_and(|from| from.group != node.group) {
                return Err("a link leads into another group");
            }
        }
        if let Some(inner) = node.inner() {
            let slot = owner.get_mut(inner.group as usize).ok_or("a node names a group that is not there")?;
            if slot.replace(number).is_some() || inner.group == 0 {
                return Err("a group has two owners");
            }
        }
    }
    // Owners lead from every group outwards. A group that a node of a later release owns has no owner here.
    for group in 0..layout.groups.len() as u32 {
        let (mut at, mut left) = (group, layout.groups.len());
        while let Some(outer) = owner[at as usize].and_then(|owner: u32| group_of[owner as usize]) {
            left = left.checked_sub(1).ok_or("a group is inside itself")?;
            at = outer;
        }
    }
    Ok(group_of.iter().map(|group| group.and_then(|group| owner[group as usize])).collect())
}

/// Checks that each node that undoes another one has no links and is in no group. Returns for each node the node that
/// it undoes.
fn check_undo(layout: &Layout) -> Result<Vec<Option<u32>>, &'static str> {
    let mut undoes = vec![None; layout.nodes.len()];
    for (node, number) in layout.nodes.iter().zip(0u32..) {
        let Some(undo) = node.undo else { continue };
        let slot = undoes.get_mut(undo as usize).ok_or("a node names an undo that is not there")?;
        let by = &layout.nodes[undo as usize];
        let is_simple = by.links.is_empty() && by.inner().is_none() && by.undo.is_none();
        let is_in_group = layout.groups.iter().any(|group| group.nodes.contains(&undo));
        if slot.replace(number).is_some() || !is_simple || is_in_group {
            return Err("what undoes a node is a node of its own, without links");
        }
    }
    Ok(undoes)
}

/// The longest name of a signal.
pub const SIGNAL_NAME_MAX: usize = 80;

/// A letter, then letters, digits, `_`, `-` and `.`: names stand in paths of requests.
pub fn is_signal_name(name: &str) -> bool {
    name.len() <= SIGNAL_NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// The number of distinct nodes that a node waits for.
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
    fn m3_a_step_or_a_plan_of_a_later_release_is_not_guessed_at() {
        let later = Expr::Unknown { number: 99, bytes: bytes::Bytes::new() };
        let mut with_guard = layout(&[&[], &[0]]);
        let expr = Expr::Not { args: vec![later] };
        with_guard.nodes[1].guard = Some(Guard { expr: Some(expr), ..Default::default() });
        let plan = Plan::decode(&Plan::new(with_guard).unwrap().encode()).unwrap();
        assert_eq!([plan.is_known(0), plan.is_known(1)], [true, false]);

        let mut with_group = layout(&[&[]]);
        with_group.groups[0].unknown.keep(&[0x7e, 1]);
        assert_eq!(Plan::decode(&Plan::new(with_group).unwrap().encode()).err(), Some(wire::Error::Newer("plan")));
    }

    #[test]
    fn a_plan_that_cannot_be_run_is_refused() {
        assert!(Plan::new(layout(&[&[1], &[0]])).is_err(), "a cycle");
        assert!(Plan::new(layout(&[&[0]])).is_err(), "a link to itself");
        assert!(Plan::new(layout(&[&[7]])).is_err(), "a link from a missing node");
        assert!(Plan::new(Layout::default()).is_err(), "no root group");
    }
}
