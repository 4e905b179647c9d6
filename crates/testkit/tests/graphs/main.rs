//! Random workflows, advanced one result at a time. After every result the kernel and the naive oracle must
//! agree on which steps run, which are skipped and why; at the end they must agree on how the run ended.
//!
//! A workflow of at most [`EXHAUSTIVE_STEPS_MAX`] steps is run with every possible assignment of outcomes, a
//! larger one with a random assignment. `ONWARD_GRAPHS=100000` tests more workflows.

use kernel::advance::TaskResult;
use kernel::event::{Because, Failure, Origin};
use kernel::planted_bugs::{self, Bug};
use kernel::{
    Admission, Context, Effect, Input, Payload, Payloads, Plan, Run, RunId, RunStatus, Span, Timestamp, advance,
};
use std::time::Instant;
use testkit::sim::oracle::{self, StepOutcome, StepState};
use testkit::sim::random::Random;
use testkit::sim::workflow_generator::TestWorkflow;

const GRAPHS: u64 = 20_000;
const STEPS_MAX: u64 = 12;
const EXHAUSTIVE_STEPS_MAX: usize = 5;

/// How a step can end.
const OUTCOMES: [StepOutcome; 4] = [
    StepOutcome { status: "success", code: Some(200) },
    StepOutcome { status: "failed", code: Some(404) },
    StepOutcome { status: "failed", code: None },
    StepOutcome { status: "timeout", code: None },
];

/// The outcomes of one run. Beyond `made`, each is the first of [`OUTCOMES`] or a random one.
struct Choices {
    made: Vec<usize>,
    next: usize,
    random: Option<Random>,
}

impl Choices {
    fn choose(&mut self) -> StepOutcome {
        if self.next == self.made.len() {
            self.made.push(self.random.as_mut().map_or(0, |r| r.below(OUTCOMES.len() as u64) as usize));
        }
        self.next += 1;
        OUTCOMES[self.made[self.next - 1]]
    }

    /// Which of several running steps finishes next: the first, or a random one.
    fn pick(&mut self, steps: &[(u32, u64)]) -> (u32, u64) {
        self.random.as_mut().map_or(steps[0], |r| r.pick(steps))
    }

    /// Moves on to the next assignment of outcomes; returns false after the last.
    fn next_assignment(&mut self) -> bool {
        self.next = 0;
        while let Some(last) = self.made.pop() {
            if last + 1 < OUTCOMES.len() {
                self.made.push(last + 1);
                return true;
            }
        }
        false
    }
}

struct GraphRun<'a> {
    workflow: &'a TestWorkflow,
    plan: &'a Plan,
    flag: bool,
    run: Run,
    /// Steps that an executor is running: step and fence.
    executing: Vec<(u32, u64)>,
    outcomes: Vec<Option<StepOutcome>>,
}

impl GraphRun<'_> {
    fn apply_input(&mut self, input: Input) {
        let (wait_url, payloads) = (|key: &str| key.to_owned(), Payloads::new());
        let context = Context {
            run: RunId([7; 16]),
            now: Timestamp(1_000_000),
            epoch: 1,
            is_draining: false,
            wait_url: &wait_url,
            payloads: &payloads,
            offer: &|_| None,
            hold: &|_| None,
        };
        let advanced = advance(self.plan, &mut self.run, vec![input], &context);
        for effect in advanced.effects {
            if let Effect::Execute { step, fence, .. } = effect {
                self.executing.push((step, fence));
            }
        }
    }

    fn answer(&mut self, choices: &mut Choices) {
        let (step, fence) = choices.pick(&self.executing);
        self.executing.retain(|(other, _)| *other != step);
        let outcome = choices.choose();
        self.outcomes[step as usize] = Some(outcome);
        let took = Span(1);
        let result = match (outcome.status, outcome.code) {
            ("timeout", _) => TaskResult::TimedOut { message: String::new(), took },
            (_, None) => {
                TaskResult::Failed { failure: Failure::new("network", ""), retryable: true, retry_after: None, took }
            }
            (_, Some(status)) => {
                TaskResult::Response { status, headers: Vec::new(), body: Payload::json("{}"), retry_after: None, took }
            }
        };
        self.apply_input(Input::Finished { step, fence, result, digest: 0 });
    }

    /// Compares the state of every step with the oracle.
    fn compare(&self) -> Result<Vec<StepState>, String> {
        let states = oracle::evaluate(self.workflow, 0, self.flag, &self.outcomes, &|_| None);
        for (i, state) in states.iter().enumerate() {
            let step = self.run.step(i as u32);
            let status = step.status().as_str();
            let is_equal = match state {
                StepState::Blocked => status == "pending",
                StepState::Ready => status == "running",
                StepState::Settled(outcome) => status == outcome.status,
                StepState::Skipped(needs) => match step.because.as_deref() {
                    Some(Because::Needs { steps }) => {
                        steps.len() == needs.len() && needs.iter().all(|n| steps.contains(&(*n as u32)))
                    }
                    Some(Because::Condition { .. }) => needs.is_empty(),
                    _ => false,
                },
            };
            if !is_equal {
                return Err(format!("s{i} is {status} because {:?}, the oracle says {state:?}\n{self}", step.because));
            }
        }
        Ok(states)
    }
}

impl std::fmt::Display for GraphRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "flag {}, fails when {}", self.flag, self.workflow.verdict)?;
        for (i, step) in self.workflow.steps.iter().enumerate() {
            let guard = step.guard.as_ref().map_or(String::new(), |g| format!(" if {g}"));
            writeln!(
                f,
                "s{i} {:?} needs {:?}{guard}, may fail: {}: {:?}",
                step.kind, step.needs, step.allow_failure, self.outcomes[i]
            )?;
        }
        Ok(())
    }
}

/// Runs one workflow from its start to its end.
fn run_to_end(workflow: &TestWorkflow, plan: &Plan, flag: bool, choices: &mut Choices) -> Result<(), String> {
    let outcomes = vec![None; workflow.steps.len()];
    let mut graph_run = GraphRun { workflow, plan, flag, run: Run::default(), executing: Vec::new(), outcomes };
    let body = Payload::json(format!("{{\"flag\":{flag}}}"));
    graph_run.apply_input(Input::Start {
        origin: Box::new(Origin { body, ..Default::default() }),
        admission: Admission::Open,
        copied: Vec::new(),
    });
    let mut states = graph_run.compare()?;
    while !graph_run.executing.is_empty() && !graph_run.run.is_terminal() {
        graph_run.answer(choices);
        states = graph_run.compare()?;
    }
    let has_failed = !oracle::culprits(workflow, 0, &states).is_empty();
    let expected = if has_failed { RunStatus::Failed } else { RunStatus::Completed };
    let status = graph_run.run.status();
    if status == expected {
        Ok(())
    } else {
        Err(format!("the run is {status}, the oracle says {expected}\n{graph_run}"))
    }
}

/// Runs one workflow with all its assignments, or with a random one. Returns how many runs that took.
fn check(seed: u64) -> Result<u64, String> {
    let mut random = Random::stream(seed, "graph");
    let steps_max = random.between(1, STEPS_MAX);
    let workflow = TestWorkflow::draw_timeless(&mut random, steps_max);
    let (plan, flag) = (workflow.plan(), random.coin());
    let is_small = workflow.steps.len() <= EXHAUSTIVE_STEPS_MAX;
    let mut choices = Choices { made: Vec::new(), next: 0, random: (!is_small).then_some(random) };
    let mut runs = 0;
    loop {
        run_to_end(&workflow, &plan, flag, &mut choices).map_err(|what| format!("graph {seed}: {what}"))?;
        runs += 1;
        if !is_small || !choices.next_assignment() {
            return Ok(runs);
        }
    }
}

#[test]
fn the_kernel_and_the_oracle_agree_on_every_graph() {
    let graphs = testkit::number_from_env("ONWARD_GRAPHS", GRAPHS);
    let started = Instant::now();
    let runs: u64 = (0..graphs).map(|seed| check(seed).unwrap_or_else(|what| panic!("{what}"))).sum();
    println!("{graphs} graphs, {runs} runs, {:.1} s", started.elapsed().as_secs_f64());
}

#[test]
fn the_oracle_finds_planted_bugs() {
    for bug in [Bug::JoinPerParent, Bug::CascadeIgnoresIf] {
        planted_bugs::arm(Some(bug));
        let found = (0..1_000).find(|seed| check(*seed).is_err());
        planted_bugs::arm(None);
        println!("{bug}: found after {} graphs", found.expect("the bug is found") + 1);
    }
}
