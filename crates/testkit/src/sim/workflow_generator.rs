//! Random workflows: drawn from a seed, lowered to a plan for the kernel, and read by the
//! [`run_model`](super::run_model) without the kernel's help.
//!
//! Most are ordinary. [`extreme`](TestWorkflow::extreme) ones test limits: very wide, very deep, all skipped,
//! or waiting only. A test workflow holds only what the model can predict. It does not know how a plan is
//! run.

use super::condition::Condition;
use super::random::Random;
use super::trigger::GROUP_KEY;
use kernel::event::OnConflict;
use kernel::path::{RawPath, Ref, Root, TaskField};
use kernel::plan::{
    ApprovalBody, Backoff, Body, ChildBody, Concurrency, Decision, Form, Group, GroupBody, Guard, Http, Join, Layout,
    Link, Node, Notify, Occasion, OnError, OnParentClose, Outcomes, Repeat, Retry, TaskBody, Verdict,
};
use kernel::template::{self, Part, Template};
use kernel::{Plan, Span, expr};

/// The most steps of an ordinary workflow; most have far fewer.
pub const STEPS_MAX: u64 = 40;
/// How deep groups are nested.
const DEPTH_MAX: usize = 2;

#[derive(Debug)]
pub struct TestWorkflow {
    /// The steps of the root group come first.
    pub steps: Vec<GeneratedStep>,
    /// The steps of each group. Group 0 is the root.
    pub groups: Vec<Vec<usize>>,
    pub max_duration: Span,
    /// Which failures fail the run.
    pub verdict: Verdict,
    pub concurrency: Option<ConcurrencyLimit>,
    /// What is notified when a run ends.
    pub notifications: Vec<EndNotification>,
    /// It consists of one worker task.
    pub is_single_task: bool,
}

/// How many runs of one concurrency group may be open at once, and what happens to a run that exceeds the
/// limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConcurrencyLimit {
    pub max_runs: u32,
    pub on_conflict: OnConflict,
}

#[derive(Clone, Debug)]
pub struct EndNotification {
    pub only_failures: bool,
    /// The workflow that handles the notification; if none, a URL is called.
    pub workflow: Option<String>,
}

#[derive(Debug)]
pub struct GeneratedStep {
    /// The group that it belongs to.
    pub group: usize,
    /// Steps of the same group.
    pub needs: Vec<usize>,
    /// It starts at the first of its needs that succeeds. Such a step has no condition: what a condition would read
    /// depends on the order in which its needs settle.
    pub is_first_join: bool,
    pub guard: Option<Condition>,
    pub kind: StepKind,
    pub retry: Retry,
    pub allow_failure: bool,
    pub undo: UndoSettings,
}

/// What a step says about undoing it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UndoSettings {
    /// The step that undoes it. Such steps are in no group and come after all others.
    pub by: Option<usize>,
    /// The step that it undoes.
    pub undoes: Option<usize>,
    pub is_irreversible: bool,
    pub is_not_compensatable: bool,
    /// It is undone also when its outcome is unknown.
    pub if_unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepKind {
    Http(TriggerPart),
    Noop,
    /// A broken one reads a field that does not exist.
    Set {
        is_broken: bool,
    },
    Sleep(Span),
    Wait(Option<Span>),
    /// Waits for a signal of this name.
    Signal(&'static str, Option<Span>),
    Approval(Gate),
    /// Waits until it is resumed.
    Pause(Option<Span>),
    Task(WorkerTask),
    Child(ChildCall),
    Group(Inner),
    Loop {
        body: Inner,
        count: u32,
        concurrency: u32,
    },
}

/// The run of another workflow that a step starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChildCall {
    /// `workflow 0`, `workflow 1` and so on; those before this one exist.
    pub workflow: usize,
    /// The step does not wait for the end of the run.
    pub is_detached: bool,
    /// The run is cancelled when this one ends.
    pub is_closed_with_parent: bool,
}

/// The steps inside of a group, or of each iteration of a loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inner {
    /// Its number in [`TestWorkflow::groups`].
    pub group: usize,
    pub on_error: OnError,
}

/// The settings of an approval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    pub timeout: Option<Span>,
    /// The decision when the deadline passes.
    pub default: Option<Decision>,
}

/// The names of signals.
pub const SIGNALS: [&str; 2] = ["paid", "shipped"];

/// The settings of a step that a worker performs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerTask {
    pub name: &'static str,
    pub reads: TriggerPart,
    pub priority: Option<u32>,
    /// The task's key is the concurrency group of the trigger, not the key of the run.
    pub is_keyed_by_group: bool,
    pub queue: Option<Span>,
    pub attempt: Option<Span>,
    pub heartbeat: Option<Span>,
    pub total: Option<Span>,
}

/// All task types.
pub const TYPES: [&str; 4] = ["bill.v1", "image", "mail.digest", "mail.send"];

/// Which part of the trigger a template inserts, and where. A template that inserts something needs the
/// payload again for each attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TriggerPart {
    Nothing,
    Flag,
    /// The note is the body.
    Note,
    /// The note is part of a text.
    NoteInText,
    /// The note is part of the URL.
    NoteInUrl,
}

/// Workflows that test limits.
#[derive(Clone, Copy, Debug)]
pub enum Extreme {
    FanIn,
    Chain,
    AllSkipped,
    Single,
    ManyWaits,
}

impl Extreme {
    pub const ALL: [Extreme; 5] =
        [Extreme::FanIn, Extreme::Chain, Extreme::AllSkipped, Extreme::Single, Extreme::ManyWaits];

    /// The coverage mark of a simulation with this workflow.
    pub fn mark(self) -> &'static str {
        match self {
            Extreme::FanIn => "a step needed a thousand others",
            Extreme::Chain => "two hundred steps formed a chain",
            Extreme::AllSkipped => "every step was skipped",
            Extreme::Single => "a workflow had a single step",
            Extreme::ManyWaits => "a run waited for thirty callbacks",
        }
    }
}

impl StepKind {
    /// Does an executor perform it?
    pub fn is_executed(self) -> bool {
        matches!(self, StepKind::Http(_) | StepKind::Noop)
    }

    /// Does it end with something that a client sends?
    pub fn waits_for_client(self) -> bool {
        matches!(self, StepKind::Wait(_) | StepKind::Signal(..) | StepKind::Approval(_) | StepKind::Pause(_))
    }

    /// The steps inside of it.
    pub fn inner(self) -> Option<Inner> {
        match self {
            StepKind::Group(inner) | StepKind::Loop { body: inner, .. } => Some(inner),
            _ => None,
        }
    }

    /// The name of the signal that it waits for.
    pub fn signal(self) -> Option<&'static str> {
        match self {
            StepKind::Signal(name, _) => Some(name),
            _ => None,
        }
    }

    /// The task settings, if a worker performs it.
    pub fn task(&self) -> Option<&WorkerTask> {
        match self {
            StepKind::Task(task) => Some(task),
            _ => None,
        }
    }
}

impl TestWorkflow {
    pub fn draw(random: &mut Random, steps_max: u64) -> TestWorkflow {
        let most = if random.chance(150) { STEPS_MAX } else { 12 };
        let count = random.between(1, most).min(steps_max) as usize;
        let is_dense = random.coin();
        let mut workflow = TestWorkflow::with_steps(random, |random| {
            (0..count).map(|i| GeneratedStep::draw(random, 0, i, is_dense)).collect()
        });
        if random.coin() && count <= 12 {
            workflow.nest(random);
        }
        workflow
    }

    /// Turns some steps into groups and loops, and some of the steps inside of those.
    fn nest(&mut self, random: &mut Random) {
        let mut i = 0;
        while i < self.steps.len() {
            if random.chance(200) && self.steps.len() < STEPS_MAX as usize && self.depth(i) < DEPTH_MAX {
                let (first, count) = (self.steps.len(), random.between(1, 4) as usize);
                let group = self.groups.len();
                let is_dense = random.coin();
                self.steps.extend((0..count).map(|n| GeneratedStep::draw_in(random, group, first, n, is_dense)));
                self.groups.push((first..first + count).collect());
                let body = Inner { group, on_error: random.pick(OnError::ALL) };
                let (count, concurrency) = (random.below(4) as u32, random.between(1, 3) as u32);
                self.steps[i].kind =
                    if random.coin() { StepKind::Group(body) } else { StepKind::Loop { body, count, concurrency } };
                self.steps[i].retry = Retry { max_attempts: 1, ..Default::default() };
            }
            i += 1;
        }
    }

    /// How many groups a step is inside of.
    fn depth(&self, i: usize) -> usize {
        let group = self.steps[i].group;
        let around = self.steps.iter().position(|step| step.kind.inner().is_some_and(|inner| inner.group == group));
        around.map_or(0, |around| self.depth(around) + 1)
    }

    /// How many steps the root group has.
    pub fn roots(&self) -> usize {
        self.groups[0].len()
    }

    /// A workflow that does not depend on time or external input: it only calls services and sets values.
    pub fn draw_timeless(random: &mut Random, steps_max: u64) -> TestWorkflow {
        let mut shape = TestWorkflow::draw(random, steps_max);
        shape.steps.truncate(shape.roots());
        shape.groups.truncate(1);
        shape.max_duration = Span::from_days(30);
        for step in &mut shape.steps {
            step.retry = Retry { max_attempts: 1, ..Default::default() };
            if !matches!(step.kind, StepKind::Set { .. }) {
                step.kind = StepKind::Http(TriggerPart::Nothing);
            }
        }
        shape
    }

    pub fn extreme(random: &mut Random, extreme: Extreme) -> TestWorkflow {
        let quick_kind = |random: &mut Random| match random.below(20) {
            0 => StepKind::Http(TriggerPart::Nothing),
            1 => StepKind::Set { is_broken: random.coin() },
            _ => StepKind::Noop,
        };
        let wait_kind = |random: &mut Random| StepKind::Wait(random.coin().then(|| random.log_millis(50, 120_000)));
        TestWorkflow::with_steps(random, |random| match extreme {
            Extreme::FanIn => {
                let mut steps: Vec<GeneratedStep> =
                    (0..1_000).map(|_| GeneratedStep::simple(quick_kind(random), Vec::new())).collect();
                let guard = random.coin().then(|| Condition::draw(random, &[0, 500, 999], 1));
                steps.push(GeneratedStep { guard, ..GeneratedStep::simple(StepKind::Noop, (0..1_000).collect()) });
                steps.push(GeneratedStep::simple(StepKind::Noop, vec![1_000]));
                steps
            }
            Extreme::Chain => {
                (0..200).map(|i: usize| GeneratedStep::simple(quick_kind(random), previous_step(i))).collect()
            }
            Extreme::AllSkipped => {
                let (yes, no) = (Box::new(Condition::Flag(true)), Box::new(Condition::Flag(false)));
                let mut steps: Vec<GeneratedStep> =
                    (0..30).map(|i: usize| GeneratedStep::simple(quick_kind(random), previous_step(i))).collect();
                steps[0].guard = Some(Condition::Both(yes, no));
                steps
            }
            Extreme::Single => vec![GeneratedStep::simple(draw_kind(random), Vec::new())],
            Extreme::ManyWaits => {
                let mut steps: Vec<GeneratedStep> =
                    (0..30).map(|_| GeneratedStep::simple(wait_kind(random), Vec::new())).collect();
                steps.push(GeneratedStep::simple(StepKind::Noop, (0..30).collect()));
                steps
            }
        })
    }

    fn with_steps(random: &mut Random, steps: impl FnOnce(&mut Random) -> Vec<GeneratedStep>) -> TestWorkflow {
        let steps = steps(random);
        let max_duration = if random.chance(250) { random.log_millis(500, 90_000) } else { Span::from_days(30) };
        TestWorkflow {
            groups: vec![(0..steps.len()).collect()],
            steps,
            max_duration,
            verdict: random.pick(Verdict::ALL),
            concurrency: None,
            notifications: Vec::new(),
            is_single_task: false,
        }
    }

    /// Turns some of the steps that an executor would perform into worker tasks.
    pub fn assign_steps_to_workers(&mut self, random: &mut Random) {
        let share = random.pick(&[200, 500, 900]);
        for step in self.steps.iter_mut().filter(|step| step.kind.is_executed()) {
            if random.chance(share) {
                step.kind = StepKind::Task(WorkerTask::draw(random));
            }
        }
    }

    /// A workflow of one worker task.
    pub fn single_task(random: &mut Random) -> TestWorkflow {
        let task = WorkerTask {
            reads: TriggerPart::Nothing,
            priority: None,
            is_keyed_by_group: false,
            ..WorkerTask::draw(random)
        };
        let step =
            GeneratedStep { retry: draw_retry(random), ..GeneratedStep::simple(StepKind::Task(task), Vec::new()) };
        let max_duration = Span(u64::MAX);
        TestWorkflow {
            steps: vec![step],
            groups: vec![vec![0]],
            max_duration,
            verdict: Verdict::DirectUnhandled,
            concurrency: None,
            notifications: Vec::new(),
            is_single_task: true,
        }
    }

    /// Turns some steps into runs of the workflows before this one, or of one that does not exist.
    pub fn call_others(&mut self, random: &mut Random, number: usize) {
        for step in self.steps.iter_mut().filter(|step| step.kind.is_executed()) {
            if random.chance(250) {
                let workflow = if number == 0 || random.chance(50) { 99 } else { random.below(number as u64) as usize };
                let (is_detached, is_closed_with_parent) = (random.chance(250), random.chance(700));
                step.kind = StepKind::Child(ChildCall { workflow, is_detached, is_closed_with_parent });
            }
        }
    }

    /// The workflow whose runs call a notification URL.
    pub fn notifier(random: &mut Random) -> TestWorkflow {
        TestWorkflow::with_steps(random, |_| {
            vec![GeneratedStep::simple(StepKind::Http(TriggerPart::Nothing), Vec::new())]
        })
    }

    pub fn plan(&self) -> Plan {
        let nodes: Vec<Node> = self.steps.iter().enumerate().map(|(i, step)| step.node(i)).collect();
        let group = |nodes: &Vec<usize>| {
            let nodes = nodes.iter().map(|node| *node as u32).collect();
            Group { nodes, verdict: self.verdict, ..Default::default() }
        };
        let groups = self.groups.iter().map(group).collect();
        let concurrency = self.concurrency.map(|limit| Concurrency {
            key: parts(GROUP_KEY),
            limit: limit.max_runs,
            on_conflict: limit.on_conflict,
            ..Default::default()
        });
        let notify = self.notifications.iter().map(EndNotification::notify).collect();
        let max_duration = self.max_duration;
        let form = if self.is_single_task { Form::Task } else { Form::default() };
        let layout = Layout { form, nodes, groups, max_duration, concurrency, notify, ..Default::default() };
        Plan::new(layout).expect("steps need only earlier steps")
    }

    /// Steps of the root group that wait for something from outside.
    pub fn waits(&self) -> impl Iterator<Item = u32> {
        let waits = self.steps[..self.roots()].iter().enumerate().filter(|(_, s)| s.kind.waits_for_client());
        waits.map(|(i, _)| i as u32)
    }
}

impl GeneratedStep {
    /// The step number `n` of a group whose first step is `first`.
    fn draw_in(random: &mut Random, group: usize, first: usize, n: usize, is_dense: bool) -> GeneratedStep {
        let mut step = GeneratedStep::draw(random, group, n, is_dense);
        step.needs.iter_mut().for_each(|need| *need += first);
        step.guard = (!step.is_first_join && random.chance(350)).then(|| Condition::draw(random, &step.needs, 1));
        step
    }

    fn draw(random: &mut Random, group: usize, i: usize, is_dense: bool) -> GeneratedStep {
        let density = if is_dense { 450 } else { 200 };
        let mut needs: Vec<usize> = (0..i).rev().take(6).filter(|_| random.chance(density)).collect();
        if i > 6 && random.chance(100) {
            needs.push(random.below(i as u64 - 6) as usize);
        }
        let is_first_join = needs.len() > 1 && random.chance(150);
        let guard = (!is_first_join && random.chance(350)).then(|| Condition::draw(random, &needs, 2));
        let (kind, retry) = (draw_kind(random), draw_retry(random));
        let (allow_failure, undo) = (random.chance(100), UndoSettings::default());
        GeneratedStep { group, guard, kind, retry, needs, is_first_join, allow_failure, undo }
    }

    pub(super) fn simple(kind: StepKind, needs: Vec<usize>) -> GeneratedStep {
        let retry = Retry { max_attempts: 2, ..Default::default() };
        let (is_first_join, guard, allow_failure, undo) = (false, None, false, UndoSettings::default());
        GeneratedStep { group: 0, needs, is_first_join, guard, kind, retry, allow_failure, undo }
    }

    fn node(&self, i: usize) -> Node {
        let on = if self.guard.is_some() { Outcomes::ANY } else { Outcomes::OK };
        let link = |from: &usize| Link { from: *from as u32, on, ..Default::default() };
        let guard = |condition: &Condition| {
            let text = condition.to_string();
            let expr = expr::parse(&text, &mut |raw| Ok(reference(raw)));
            Guard { expr: Some(expr.expect("generated conditions are valid")), text, ..Default::default() }
        };
        let UndoSettings { by, undoes, is_irreversible, is_not_compensatable, if_unknown } = self.undo;
        Node {
            key: if undoes.is_some() { "compensate".into() } else { format!("s{i}") },
            group: self.group as u32,
            links: self.needs.iter().map(link).collect(),
            join: if self.is_first_join { Join::Any } else { Join::All },
            guard: self.guard.as_ref().map(guard),
            body: Some(body(self.kind)),
            retry: self.retry.clone(),
            allow_failure: self.allow_failure,
            undo: by.map(|by| by as u32),
            is_irreversible,
            is_not_compensatable,
            undo_if_unknown: if_unknown,
            ..Default::default()
        }
    }
}

impl WorkerTask {
    pub(super) fn draw(random: &mut Random) -> WorkerTask {
        let limit = |random: &mut Random, least| random.chance(250).then(|| random.log_millis(least, 60_000));
        WorkerTask {
            name: random.pick(&TYPES),
            reads: random.pick(&[
                TriggerPart::Nothing,
                TriggerPart::Nothing,
                TriggerPart::Flag,
                TriggerPart::Note,
                TriggerPart::NoteInText,
            ]),
            priority: random.chance(300).then(|| random.below(3) as u32),
            is_keyed_by_group: random.chance(300),
            queue: limit(random, 100),
            attempt: limit(random, 100),
            heartbeat: limit(random, 500),
            total: limit(random, 1_000),
        }
    }

    fn plan_task(&self) -> TaskBody {
        TaskBody {
            name: self.name.into(),
            input: self.reads.text().map(|text| Template::from_parts(parts(text))),
            queue: self.queue,
            attempt: self.attempt,
            heartbeat: self.heartbeat,
            total: self.total,
            priority: self.priority,
            key: if self.is_keyed_by_group { parts(GROUP_KEY) } else { Vec::new() },
            ..Default::default()
        }
    }
}

impl Inner {
    fn plan_body(self) -> GroupBody {
        GroupBody { group: self.group as u32, on_error: self.on_error, ..Default::default() }
    }
}

impl TriggerPart {
    /// The template of the body.
    fn text(self) -> Option<&'static str> {
        match self {
            TriggerPart::Nothing | TriggerPart::NoteInUrl => None,
            TriggerPart::Flag => Some("{{trigger.body.flag}}"),
            TriggerPart::Note => Some("{{trigger.body.note}}"),
            TriggerPart::NoteInText => Some("note: {{trigger.body.note}}!"),
        }
    }
}

impl ConcurrencyLimit {
    pub fn draw(random: &mut Random) -> ConcurrencyLimit {
        let policies = [OnConflict::Queue, OnConflict::Skip, OnConflict::CancelRunning];
        ConcurrencyLimit { max_runs: random.pick(&[1, 1, 2, 3]), on_conflict: random.pick(&policies) }
    }
}

impl EndNotification {
    fn notify(&self) -> Notify {
        let url = if self.workflow.is_none() { "http://listener/".into() } else { String::new() };
        let on = if self.only_failures { Occasion::Failed } else { Occasion::Ended };
        Notify { on, url, workflow: self.workflow.clone().unwrap_or_default(), ..Default::default() }
    }
}

/// The step before this one, if there is one.
fn previous_step(i: usize) -> Vec<usize> {
    i.checked_sub(1).into_iter().collect()
}

fn draw_kind(random: &mut Random) -> StepKind {
    match random.below(23) {
        20 => StepKind::Signal(random.pick(&SIGNALS), random.chance(600).then(|| random.log_millis(50, 120_000))),
        21 => StepKind::Approval(Gate {
            timeout: random.chance(700).then(|| random.log_millis(50, 120_000)),
            default: random.pick(&[None, Some(Decision::Approved), Some(Decision::Denied)]),
        }),
        22 => StepKind::Pause(random.chance(500).then(|| random.log_millis(50, 120_000))),
        0..6 => StepKind::Http(TriggerPart::Nothing),
        6..9 => StepKind::Http(random.pick(&[
            TriggerPart::Flag,
            TriggerPart::Note,
            TriggerPart::NoteInText,
            TriggerPart::NoteInUrl,
        ])),
        9..12 => StepKind::Noop,
        12..14 => StepKind::Set { is_broken: random.chance(200) },
        14..17 => StepKind::Sleep(if random.chance(100) { Span(0) } else { random.log_millis(1, 120_000) }),
        _ => StepKind::Wait(random.chance(700).then(|| random.log_millis(50, 120_000))),
    }
}

pub(super) fn draw_retry(random: &mut Random) -> Retry {
    let never = random.chance(200);
    Retry {
        max_attempts: if never { 1 } else { random.between(1, 4) as u32 },
        backoff: random.pick(&[Backoff::Fixed, Backoff::Exponential, Backoff::Quadratic]),
        min: random.log_millis(1, 10_000),
        max: Span::from_secs(30),
        jitter: random.pick(&[0, 100]),
        never,
        ..Default::default()
    }
}

fn parts(text: &str) -> Vec<Part> {
    template::parse_text(text, &mut |raw| Ok(reference(raw))).expect("generated templates are valid")
}

fn body(kind: StepKind) -> Body {
    match kind {
        StepKind::Http(reads) => {
            let path = if reads == TriggerPart::NoteInUrl { "{{trigger.body.note}}" } else { "" };
            let request = Http {
                method: "POST".into(),
                url: parts(&format!("http://upstream/{path}")),
                body: reads.text().map(|text| Template::from_parts(parts(text))),
                timeout: Span::from_secs(30),
                ..Default::default()
            };
            Body::Http { request: Box::new(request) }
        }
        StepKind::Noop => Body::Noop {},
        StepKind::Set { is_broken } => {
            let text = if is_broken { "{{trigger.body.missing}}" } else { "{{trigger.body.flag}}" };
            Body::Set { values: Some(Template::from_parts(parts(text))) }
        }
        StepKind::Sleep(span) => Body::Sleep { span },
        StepKind::Wait(timeout) => Body::Webhook { timeout },
        StepKind::Signal(name, timeout) => Body::Signal { name: name.into(), timeout },
        StepKind::Approval(Gate { timeout, default }) => {
            let approval =
                ApprovalBody { prompt: parts("{{trigger.body.flag}}?"), timeout, default, ..Default::default() };
            Body::Approval { approval: Box::new(approval) }
        }
        StepKind::Pause(timeout) => Body::Pause { timeout },
        StepKind::Child(ChildCall { workflow, is_detached, is_closed_with_parent }) => {
            let on_parent_close = if is_closed_with_parent { OnParentClose::Cancel } else { OnParentClose::Leave };
            let workflow = parts(&format!("workflow {workflow}"));
            let child = ChildBody { workflow, detached: is_detached, on_parent_close, ..Default::default() };
            Body::Child { child: Box::new(child) }
        }
        StepKind::Group(inner) => Body::Group { group: inner.plan_body() },
        StepKind::Loop { body, count, concurrency } => {
            let list = serde_json::Value::from_iter(0..count);
            let (list, body) = (Some(Template::literal(&list)), body.plan_body());
            let repeat =
                Repeat { body, list, concurrency, max_iterations: 10, name: "item".into(), ..Default::default() };
            Body::Loop { repeat: Box::new(repeat) }
        }
        StepKind::Task(task) => Body::Task { task: Box::new(task.plan_task()) },
    }
}

/// Resolves `trigger.body.…` and `tasks.s3.status`, as a front end of `lang` would.
fn reference(raw: &RawPath<'_>) -> Ref {
    let names: Vec<&str> = raw.segments.iter().map(|s| s.name.as_str()).collect();
    let text = raw.text.to_owned();
    match names.as_slice() {
        ["tasks", step, field] => Ref {
            root: Root::Task,
            node: step[1..].parse().expect("steps are named s0, s1, …"),
            field: TaskField::parse(field).expect("the field of a step"),
            text,
            ..Default::default()
        },
        [_, _, keys @ ..] => {
            let keys = keys.iter().map(|k| (*k).to_owned()).collect();
            Ref { root: Root::TriggerBody, keys, text, ..Default::default() }
        }
        _ => panic!("generated workflows contain no such path: {text}"),
    }
}
