//! What workers make of the tasks of a case: by step, or by type for every step of that type.

use super::Reader;
use crate::codes;
use crate::diagnostic::{Draft, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, Node, Value};
use kernel::Span;
use std::collections::BTreeMap;

/// What a worker makes of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Worked {
    pub report: Report,
    /// How long that takes, from the claim.
    pub took: Span,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    Result(serde_json::Value),
    Error {
        message: String,
        code: Option<String>,
        is_final: bool,
        retry_after: Option<Span>,
    },
    /// Not now: again after so long.
    Snooze(Span),
}

const ANSWER: Shape = Shape {
    known: &["result", "error", "final", "retry_after", "snooze", "took"],
    later: &[],
    synonyms: &[("body", "result"), ("output", "result"), ("fail", "error"), ("delay", "took")],
};
const ERROR: Shape = Shape::only(&["message", "code"]);

impl Reader<'_> {
    /// `tasks: {step or type: answer or answers}`. What is said of a step comes before what is said of its type.
    pub(super) fn worked(&mut self, fields: &Fields<'_>) -> BTreeMap<u32, Vec<Worked>> {
        let mut by_step = BTreeMap::new();
        let mut by_type = BTreeMap::new();
        for entry in fields.get("tasks").map(|node| self.entries(node, "tasks")).unwrap_or_default() {
            let (steps, found) = match self.plan.step(&entry.key) {
                Some(step) => (vec![step], &mut by_step),
                None => (self.steps_of_type(entry), &mut by_type),
            };
            if let Some(step) = steps.iter().find(|step| self.plan.node(**step).task().is_none()) {
                self.not_for_kind(*step, &entry.key_span, "is not done by a worker", "only task steps are");
                continue;
            }
            let answers = self.worked_attempts(&entry.value);
            if !answers.is_empty() {
                found.extend(steps.into_iter().map(|step| (step, answers.clone())));
            }
        }
        by_type.extend(by_step);
        by_type
    }

    fn steps_of_type(&mut self, entry: &Entry) -> Vec<u32> {
        let types = || self.plan.nodes().iter().zip(0u32..).filter_map(|(node, step)| Some((node.task()?, step)));
        let steps: Vec<u32> = types().filter(|(task, _)| task.name == entry.key).map(|(_, step)| step).collect();
        if steps.is_empty() {
            let steps = self.plan.nodes().iter().filter(|node| node.task().is_some()).map(|node| node.key.as_str());
            let names = steps.chain(types().map(|(task, _)| task.name.as_str()));
            let hint = self.problems.suggest(&entry.key, names);
            let message = format!("{} is neither a step of this workflow nor the type of one", quoted(&entry.key));
            let draft = Draft::new(codes::UNKNOWN_CASE_STEP, entry.key_span.clone(), message);
            self.problems.push(draft.maybe_hint(hint));
        }
        steps
    }

    fn worked_attempts(&mut self, node: &Node) -> Vec<Worked> {
        let attempts = self.attempts(node);
        attempts.iter().filter_map(|attempt| self.worked_attempt(attempt)).collect()
    }

    fn worked_attempt(&mut self, node: &Node) -> Option<Worked> {
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
            (Some(result), ..) => Some(Report::Result(result.to_json())),
            (_, Some(error), _) => self.worker_error(error, &answer),
            (.., Some(node)) => self.span(node, "snooze").map(Report::Snooze),
            (None, None, None) => {
                let message = "a worker answers with `result`, `error` or `snooze`";
                self.problems.add(codes::MISSING_FIELD, &node.span, message);
                None
            }
        };
        Some(Worked { report: report?, took: took? })
    }

    fn worker_error(&mut self, node: &Node, answer: &Fields<'_>) -> Option<Report> {
        let error = fields::object(node, "error", &mut self.problems)?;
        error.check(&ERROR, &mut self.problems);
        let message = error.require("message", "`error`", &node.span, &mut self.problems);
        let message = message.and_then(|node| fields::text(node, "message", &mut self.problems)).map(str::to_owned);
        let code = error.get("code").map(|node| fields::text(node, "code", &mut self.problems).map(str::to_owned));
        let is_final =
            answer.get("final").map_or(Some(false), |node| fields::boolean(node, "final", &mut self.problems));
        let retry_after = answer.get("retry_after").map(|node| self.span(node, "retry_after"));
        Some(Report::Error {
            message: message?,
            code: code.map_or(Some(None), |code| code.map(Some))?,
            is_final: is_final?,
            retry_after: retry_after.map_or(Some(None), |span| span.map(Some))?,
        })
    }
}
