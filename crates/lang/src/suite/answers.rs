//! Scripted workers of a case: what they report, by step or by type for every step of that type.

use super::Reader;
use super::places::{ByStep, CasePlace};
use crate::codes;
use crate::diagnostic::{Draft, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, TreeNode, Value};
use kernel::Span;

/// The report of a worker for one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerAttempt {
    pub report: GivenReport,
    /// The time from the claim to the report.
    pub took: Span,
}

#[derive(Clone, Debug, PartialEq)]
pub enum GivenReport {
    Result(serde_json::Value),
    Error {
        message: String,
        code: Option<String>,
        is_final: bool,
        retry_after: Option<Span>,
    },
    /// Retry after this time.
    Snooze(Span),
}

const ANSWER: Shape = Shape {
    known: &["result", "error", "final", "retry_after", "snooze", "took"],
    later: &[],
    synonyms: &[("body", "result"), ("output", "result"), ("fail", "error"), ("delay", "took")],
};
const ERROR: Shape = Shape::only(&["message", "code"]);

impl Reader<'_> {
    /// `tasks: {step or type: answer or answers}`. An entry for a step takes precedence over one for its type.
    pub(super) fn worker_reports(&mut self, fields: &Fields<'_>) -> ByStep<Vec<WorkerAttempt>> {
        let mut by_step = ByStep::default();
        let mut by_type = ByStep::default();
        for entry in fields.get("tasks").map(|node| self.entries(node, "tasks")).unwrap_or_default() {
            let is_step = self.plan.find(&entry.key).is_some() || entry.key.contains('/');
            let (places, found) = match is_step {
                true => (self.place(&entry.key, &entry.key_span).into_iter().collect(), &mut by_step),
                false => {
                    let nodes = self.steps_of_type(entry).into_iter();
                    (nodes.map(|node| CasePlace { node, key: None }).collect::<Vec<_>>(), &mut by_type)
                }
            };
            if let Some(place) = places.iter().find(|place| self.plan.node_at(place.node).task().is_none()) {
                self.not_for_kind(place.node, &entry.key_span, "is not done by a worker", "only task steps are");
                continue;
            }
            let answers = self.attempt_reports(&entry.value);
            if !answers.is_empty() {
                places.into_iter().for_each(|place| found.insert(place, answers.clone()));
            }
        }
        by_step.add_defaults(&by_type);
        by_step
    }

    fn steps_of_type(&mut self, entry: &Entry) -> Vec<u32> {
        let types = || self.plan.nodes().iter().zip(0u32..).filter_map(|(node, step)| Some((node.task()?, step)));
        let steps: Vec<u32> = types()
            .filter(|(task, _)| task.name == entry.key || task.allow.contains(&entry.key))
            .map(|(_, step)| step)
            .collect();
        if steps.is_empty() {
            let steps = self.plan.nodes().iter().filter(|node| node.task().is_some()).map(|node| node.key.as_str());
            let names =
                steps.chain(types().flat_map(|(task, _)| task.allow.iter().chain([&task.name]).map(String::as_str)));
            let hint = self.problems.suggest(&entry.key, names);
            let message = format!("{} is neither a step of this workflow nor the type of one", quoted(&entry.key));
            let draft = Draft::new(codes::UNKNOWN_CASE_STEP, entry.key_span.clone(), message);
            self.problems.push(draft.maybe_hint(hint));
        }
        steps
    }

    fn attempt_reports(&mut self, node: &TreeNode) -> Vec<WorkerAttempt> {
        let attempts = self.attempts(node);
        attempts.iter().filter_map(|attempt| self.attempt_report(attempt)).collect()
    }

    fn attempt_report(&mut self, node: &TreeNode) -> Option<WorkerAttempt> {
        let Value::Object(_) = node.value else {
            let draft = fields::wrong_type(node, "what a worker answers", "an object");
            self.problems.push(draft.hint("write `{ result: … }` or `{ error: { message: … } }`"));
            return None;
        };
        let answer = fields::object(node, "what a worker answers", &mut self.problems)?;
        answer.check(&ANSWER, &mut self.problems);
        for (one, other) in [
            ("result", "error"),
            ("result", "snooze"),
            ("error", "snooze"),
            ("result", "final"),
            ("snooze", "final"),
            ("result", "retry_after"),
            ("snooze", "retry_after"),
            ("final", "retry_after"),
        ] {
            answer.exclusive(one, other, &mut self.problems);
        }
        let took = answer.get("took").map_or(Some(Span(0)), |node| self.span(node, "took"));
        let report = match (answer.get("result"), answer.get("error"), answer.get("snooze")) {
            (Some(result), ..) => Some(GivenReport::Result(result.to_json())),
            (_, Some(error), _) => self.worker_error(error, &answer),
            (.., Some(node)) => self.span(node, "snooze").map(GivenReport::Snooze),
            (None, None, None) => {
                let message = "a worker answers with `result`, `error` or `snooze`";
                self.problems.add(codes::MISSING_FIELD, &node.span, message);
                None
            }
        };
        Some(WorkerAttempt { report: report?, took: took? })
    }

    fn worker_error(&mut self, node: &TreeNode, answer: &Fields<'_>) -> Option<GivenReport> {
        let error = fields::object(node, "error", &mut self.problems)?;
        error.check(&ERROR, &mut self.problems);
        let message = error.require("message", "`error`", &node.span, &mut self.problems);
        let message = message.and_then(|node| fields::text(node, "message", &mut self.problems)).map(str::to_owned);
        let code = error.get("code").map(|node| fields::text(node, "code", &mut self.problems).map(str::to_owned));
        let is_final =
            answer.get("final").map_or(Some(false), |node| fields::boolean(node, "final", &mut self.problems));
        let retry_after = answer.get("retry_after").map(|node| self.span(node, "retry_after"));
        Some(GivenReport::Error {
            message: message?,
            code: code.map_or(Some(None), |code| code.map(Some))?,
            is_final: is_final?,
            retry_after: retry_after.map_or(Some(None), |span| span.map(Some))?,
        })
    }
}
