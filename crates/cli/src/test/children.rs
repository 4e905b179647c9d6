//! The runs that subworkflow steps start. A workflow without a definition in the case gets a stand-in, whose only step
//! is a task: the script says how it ends. A real one runs, with a script of its own.

use super::files::LoadedSuite;
use super::outside::nth;
use super::play::{ORG, PlayFailure, Unscripted};
use engine::Engine;
use engine::services::Reading;
use engine::task_queue::ClaimedTask;
use kernel::plan::Body;
use kernel::{Plan, RunId, RunStatus, Span, WorkflowId};
use lang::suite::{Given, GivenChild, RealChild, ScriptedChild, workflows};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use store::RunFilter;

/// The type of the task of a stand-in.
const STAND_IN: &str = "onward-test.child";
/// A stand-in that does not time out may take this long.
const DURATION_MAX: &str = "366d";
/// Open runs that are listed at a time.
const PAGE: usize = 1_000;

/// How a child ends.
pub enum ChildEnd {
    Completed {
        output: Value,
        took: Span,
    },
    Failed {
        error: String,
        took: Span,
    },
    Cancelled {
        took: Span,
    },
    /// The `max_duration` of its stand-in passes.
    TimedOut,
}

impl ChildEnd {
    fn of(end: &ScriptedChild) -> ChildEnd {
        let took = end.took;
        match end.status {
            RunStatus::Completed => ChildEnd::Completed { output: end.output.clone(), took },
            RunStatus::Cancelled => ChildEnd::Cancelled { took },
            RunStatus::Timeout => ChildEnd::TimedOut,
            _ => ChildEnd::Failed { error: end.error.clone(), took },
        }
    }

    pub fn took(&self) -> Span {
        match self {
            ChildEnd::Completed { took, .. } | ChildEnd::Failed { took, .. } | ChildEnd::Cancelled { took } => *took,
            ChildEnd::TimedOut => Span(0),
        }
    }
}

/// The workflows that stand for those without a definition.
pub struct StandIns {
    count: usize,
}

impl StandIns {
    /// Creates the real definitions of the case, and a stand-in for each other workflow that a step may start.
    pub async fn create(engine: &Engine, loaded: &LoadedSuite, given: &Given) -> Result<StandIns, PlayFailure> {
        let mut real = BTreeSet::new();
        let mut timeouts = BTreeMap::new();
        let mut plans = vec![&loaded.compiled.plan];
        collect(loaded, &loaded.compiled.plan, given, &mut real, &mut timeouts)?;
        for file in real {
            let Some(compiled) = loaded.definitions.get(file) else { continue };
            // The workflow of the case may start itself.
            if compiled.hash != loaded.compiled.hash {
                engine.workflows.create(ORG, compiled, None).await.map_err(|error| failure(file, &error))?;
            }
            plans.push(&compiled.plan);
        }
        let mut count = 0;
        for name in plans.into_iter().flat_map(children_of) {
            if engine.workflows.resolve(ORG, name).await?.is_some() {
                continue;
            }
            let duration = timeouts.get(name).map_or(DURATION_MAX.to_owned(), Span::to_string);
            let source = json!({
                "name": name,
                "max_duration": duration,
                "output": "{{tasks.child.body}}",
                "tasks": { "child": { "task": STAND_IN } },
            });
            let tree = lang::read(source.to_string().as_bytes(), lang::Syntax::Json);
            let compiled = tree.ok().and_then(|tree| lang::compile(&tree).ok());
            // A name that no definition can have, such as an id: the step fails as it would without the workflow.
            let Some(compiled) = compiled else { continue };
            engine.workflows.create(ORG, &compiled, None).await.map_err(|error| failure(name, &error))?;
            count += 1;
        }
        Ok(StandIns { count })
    }

    pub fn exist(&self) -> bool {
        self.count > 0
    }

    pub fn is_one(&self, task: &ClaimedTask) -> bool {
        self.exist() && task.name == STAND_IN
    }
}

fn failure(what: &str, error: &engine::Error) -> PlayFailure {
    PlayFailure { code: None, message: format!("`{what}` cannot be used for a child: {error}") }
}

/// The files of the real children, and the times after which scripted ones time out, by workflow.
fn collect<'a>(
    loaded: &'a LoadedSuite,
    plan: &'a Plan,
    given: &'a Given,
    real: &mut BTreeSet<&'a str>,
    timeouts: &mut BTreeMap<&'a str, Span>,
) -> Result<(), PlayFailure> {
    for (node, child) in given.children.all(plan) {
        match child {
            GivenChild::Real(child) => {
                real.insert(child.file.as_str());
                if let Some(compiled) = loaded.definitions.get(&child.file) {
                    collect(loaded, &compiled.plan, &child.given, real, timeouts)?;
                }
            }
            GivenChild::Scripted(ends) => {
                let Some(Body::Child { child }) = &plan.node_at(node).body else { continue };
                for end in ends.iter().filter(|end| end.status == RunStatus::Timeout) {
                    for name in workflows(child) {
                        if timeouts.insert(name, end.took).is_some_and(|other| other != end.took) {
                            let message =
                                format!("the timeouts of `{name}` differ, and a workflow has one `max_duration`");
                            return Err(PlayFailure { code: None, message });
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The workflows that the steps of a plan may start.
fn children_of(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.nodes()
        .iter()
        .flat_map(|node| match &node.body {
            Some(Body::Child { child }) => Some(workflows(child)),
            _ => None,
        })
        .flatten()
}

/// The script of one run, and the plan whose steps it names.
#[derive(Clone, Copy)]
pub struct ScriptScope<'a> {
    pub plan: &'a Plan,
    pub given: &'a Given,
}

/// The scripts of the runs of a case.
pub struct ScriptScopes<'a> {
    engine: &'a Engine,
    loaded: &'a LoadedSuite,
    /// The workflow of the case.
    workflow: WorkflowId,
    main: ScriptScope<'a>,
    /// `None` for runs without a script: stand-ins and notifications.
    known: BTreeMap<RunId, Option<ScriptScope<'a>>>,
    /// Whether any script gives waiting steps anything.
    is_watching: bool,
}

impl<'a> ScriptScopes<'a> {
    pub fn new(
        engine: &'a Engine,
        loaded: &'a LoadedSuite,
        given: &'a Given,
        (workflow, run): (WorkflowId, RunId),
    ) -> ScriptScopes<'a> {
        let main = ScriptScope { plan: &loaded.compiled.plan, given };
        let known = BTreeMap::from([(run, Some(main))]);
        ScriptScopes { engine, loaded, workflow, main, known, is_watching: gives_waits(given) }
    }

    /// The script of a run; `None` if the case has none for it.
    pub async fn of(&mut self, run: RunId) -> Result<Option<ScriptScope<'a>>, engine::Error> {
        // From the run up to one that is known, then down again.
        let mut above = Vec::new();
        let mut at = run;
        while !self.known.contains_key(&at) {
            let Some(reading) = self.engine.runs.read(ORG, at).await? else { return Ok(None) };
            let parent = reading.run.state.origin.parent.clone();
            above.push((at, reading.row.workflow, parent.clone()));
            match parent {
                Some(parent) => at = parent.run,
                None => break,
            }
        }
        while let Some((run, workflow, parent)) = above.pop() {
            let scope = match parent {
                Some(parent) => {
                    let outer = self.known.get(&parent.run).copied().flatten();
                    outer.and_then(|outer| self.child_scope(outer, &parent.key, workflow))
                }
                None => None,
            };
            self.known.insert(run, scope);
        }
        Ok(self.known.get(&run).copied().flatten())
    }

    fn child_scope(&self, outer: ScriptScope<'a>, key: &str, workflow: WorkflowId) -> Option<ScriptScope<'a>> {
        match outer.given.children.get(node_of(outer.plan, key)?, key) {
            Some(GivenChild::Real(real)) => {
                let RealChild { file, given } = &**real;
                Some(ScriptScope { plan: &self.loaded.definitions.get(file)?.plan, given })
            }
            _ if workflow == self.workflow => Some(self.main),
            _ => None,
        }
    }

    /// How the child ends that a task stands for. The inner error: the script does not say.
    pub async fn end_of_stand_in(&mut self, task: &ClaimedTask) -> Result<Result<ChildEnd, Unscripted>, engine::Error> {
        let reading = self.engine.runs.read(ORG, task.run).await?.ok_or(engine::Error::NotFound("run"))?;
        let origin = &reading.run.state.origin;
        let input = origin.body.value(&reading.payloads).unwrap_or_default().to_string();
        let missing = |step: &str, attempt: u32| {
            Ok(Err(Unscripted::Child { step: step.to_owned(), workflow: task.workflow.clone(), input, attempt }))
        };
        let Some(parent) = &origin.parent else { return missing("", 1) };
        let outer = self.of(parent.run).await?;
        let child = outer.and_then(|outer| outer.given.children.get(node_of(outer.plan, &parent.key)?, &parent.key));
        match child {
            Some(GivenChild::Scripted(ends)) => match nth(ends, parent.attempt) {
                Some(end) => Ok(Ok(ChildEnd::of(end))),
                None => missing(&parent.key, parent.attempt),
            },
            _ => missing(&parent.key, parent.attempt),
        }
    }

    /// The open runs whose script may give waiting steps something.
    pub async fn waiting(&mut self) -> Result<Vec<(Reading, ScriptScope<'a>)>, engine::Error> {
        if !self.is_watching && self.loaded.definitions.is_empty() {
            return Ok(Vec::new());
        }
        let mut filter = RunFilter {
            statuses: RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect(),
            limit: PAGE,
            ..RunFilter::default()
        };
        let mut found = Vec::new();
        loop {
            let page = self.engine.store().runs(ORG, &filter).await?;
            for listed in page.iter().filter_map(|listed| listed.as_ref().ok()) {
                let Some(scope) = self.of(listed.id).await?.filter(|scope| gives_waits(scope.given)) else { continue };
                if let Some(reading) = self.engine.runs.read(ORG, listed.id).await? {
                    found.push((reading, scope));
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => filter.before = Some(store::listed_id(last)),
                _ => return Ok(found),
            }
        }
    }
}

fn gives_waits(given: &Given) -> bool {
    let Given { callbacks, signals, approvals, pauses, .. } = given;
    !(callbacks.is_empty() && signals.is_empty() && approvals.is_empty() && pauses.is_empty())
}

/// The node of the step with this key. Names are unique in a plan.
pub fn node_of(plan: &Plan, key: &str) -> Option<u32> {
    plan.find(key.rsplit('/').next()?)
}
