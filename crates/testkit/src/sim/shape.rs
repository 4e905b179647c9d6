//! Workflows as the simulator knows them: drawn at random, lowered to a plan for the kernel, and read
//! by the [`model`](super::model) without the kernel's help.
//!
//! A shape holds only what the model can predict. It does not know how a plan is run.

use super::condition::Condition;
use super::random::Random;
use kernel::path::{RawPath, Ref, Root, TaskField};
use kernel::plan::{Backoff, Body, Group, Guard, Http, Layout, Link, Node, Outcomes, Retry, Verdict};
use kernel::template::{self, Template};
use kernel::{Plan, Span, expr};

const STEPS_MAX: u64 = 12;

#[derive(Debug)]
pub struct Shape {
    pub steps: Vec<Step>,
    pub max_duration: Span,
    pub is_strict: bool,
}

#[derive(Debug)]
pub struct Step {
    pub needs: Vec<usize>,
    pub guard: Option<Condition>,
    pub kind: Kind,
    pub retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// One that reads the trigger needs its payload again for each attempt.
    Http {
        reads_trigger: bool,
    },
    Noop,
    /// A broken one reads something that is not there.
    Set {
        is_broken: bool,
    },
    Sleep(Span),
    Wait(Option<Span>),
}

impl Kind {
    /// Does an executor do it?
    pub fn is_executed(self) -> bool {
        matches!(self, Kind::Http { .. } | Kind::Noop)
    }
}

impl Shape {
    pub fn draw(random: &mut Random) -> Shape {
        let count = random.between(1, STEPS_MAX) as usize;
        let is_dense = random.coin();
        let steps = (0..count).map(|i| Step::draw(random, i, is_dense)).collect();
        let max_duration = if random.chance(250) { random.log_millis(500, 90_000) } else { Span::from_days(30) };
        Shape { steps, max_duration, is_strict: random.chance(250) }
    }

    pub fn plan(&self) -> Plan {
        let nodes: Vec<Node> = self.steps.iter().enumerate().map(|(i, step)| step.node(i)).collect();
        let verdict = if self.is_strict { Verdict::Strict } else { Verdict::Blocked };
        let root = Group { nodes: (0..nodes.len() as u32).collect(), verdict, ..Default::default() };
        let layout = Layout { nodes, groups: vec![root], max_duration: self.max_duration, ..Default::default() };
        Plan::new(layout).expect("steps need only earlier ones")
    }

    /// Steps that end with a callback.
    pub fn waits(&self) -> impl Iterator<Item = u32> {
        let waits = self.steps.iter().enumerate().filter(|(_, s)| matches!(s.kind, Kind::Wait(_)));
        waits.map(|(i, _)| i as u32)
    }
}

impl Step {
    fn draw(random: &mut Random, i: usize, is_dense: bool) -> Step {
        let density = if is_dense { 450 } else { 200 };
        let needs: Vec<usize> = (0..i).rev().take(6).filter(|_| random.chance(density)).collect();
        let guard = random.chance(350).then(|| Condition::draw(random, &needs, 2));
        Step { guard, kind: draw_kind(random), retry: draw_retry(random), needs }
    }

    fn node(&self, i: usize) -> Node {
        let on = if self.guard.is_some() { Outcomes::ANY } else { Outcomes::OK };
        let link = |from: &usize| Link { from: *from as u32, on, ..Default::default() };
        let guard = |condition: &Condition| {
            let text = condition.to_string();
            let expr = expr::parse(&text, &mut |raw| Ok(reference(raw)));
            Guard { expr: Some(expr.expect("conditions are well formed")), text, ..Default::default() }
        };
        Node {
            key: format!("s{i}"),
            links: self.needs.iter().map(link).collect(),
            guard: self.guard.as_ref().map(guard),
            body: Some(body(self.kind)),
            retry: self.retry.clone(),
            ..Default::default()
        }
    }
}

fn draw_kind(random: &mut Random) -> Kind {
    match random.below(20) {
        0..9 => Kind::Http { reads_trigger: random.chance(300) },
        9..12 => Kind::Noop,
        12..14 => Kind::Set { is_broken: random.chance(200) },
        14..17 => Kind::Sleep(if random.chance(100) { Span(0) } else { random.log_millis(1, 120_000) }),
        _ => Kind::Wait(random.chance(700).then(|| random.log_millis(50, 120_000))),
    }
}

fn draw_retry(random: &mut Random) -> Retry {
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

fn body(kind: Kind) -> Body {
    let parts =
        |text: &str| template::parse_text(text, &mut |raw| Ok(reference(raw))).expect("templates are well formed");
    match kind {
        Kind::Http { reads_trigger } => Body::Http {
            request: Http {
                method: "POST".into(),
                url: parts("http://upstream/"),
                body: reads_trigger.then(|| Template::from_parts(parts("{{trigger.body.flag}}"))),
                timeout: Span::from_secs(30),
                ..Default::default()
            },
        },
        Kind::Noop => Body::Noop {},
        Kind::Set { is_broken } => {
            let text = if is_broken { "{{trigger.body.missing}}" } else { "{{trigger.body.flag}}" };
            Body::Set { values: Some(Template::from_parts(parts(text))) }
        }
        Kind::Sleep(span) => Body::Sleep { span },
        Kind::Wait(timeout) => Body::Webhook { timeout },
    }
}

/// `trigger.body.…` or `tasks.s3.status`: the front end of shapes.
fn reference(raw: &RawPath<'_>) -> Ref {
    let names: Vec<&str> = raw.segments.iter().map(|s| s.name.as_str()).collect();
    let text = raw.text.to_owned();
    match names.as_slice() {
        ["tasks", step, field] => Ref {
            root: Root::Task,
            node: step[1..].parse().expect("steps are called s0, s1, …"),
            field: TaskField::parse(field).expect("a field of a step"),
            text,
            ..Default::default()
        },
        [_, _, keys @ ..] => {
            let keys = keys.iter().map(|k| (*k).to_owned()).collect();
            Ref { root: Root::TriggerBody, keys, text, ..Default::default() }
        }
        _ => panic!("shapes write no such path: {text}"),
    }
}
