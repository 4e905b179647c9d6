//! `tool`: a named tool with arguments, which a worker of the type `tool.<name>` calls.

use super::{StepFields, bash, task, templates};
use crate::codes;
use crate::diagnostic::{Draft, Problems};
use crate::fields::{self, Fields};
use crate::tree::Value;
use kernel::plan::{Body, TaskBody, TaskKind};
use kernel::template::Template;
use serde_json::json;

pub(super) const ARGUMENTS: &str = "arguments";

/// The fields beside `tool`.
pub(super) const FIELDS: &[&str] =
    &[ARGUMENTS, "timeouts", "priority", "concurrency_key", "timeout", "retries", "retry"];

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let arguments = match step.fields.get(ARGUMENTS) {
        None => Some(Fields::default()),
        Some(node) => fields::object(node, ARGUMENTS, problems),
    };
    // A26: the tool `bash` is the step of that kind.
    if matches!(&step.value().value, Value::Text(name) if name == "bash") {
        let own = arguments?;
        own.check(&bash::FIELDS, problems);
        return bash::body(&own, step, problems);
    }
    let name = fields::text(step.value(), "tool", problems).and_then(|tool| {
        let name = format!("tool.{tool}");
        let Some((message, hint)) = task::type_name_problem(&name) else { return Some(name) };
        problems.push(Draft::new(codes::INVALID_TYPE, step.value().span.clone(), message).hint(hint));
        None
    });
    let input = match step.fields.get(ARGUMENTS) {
        Some(node) => templates::template(node, &mut step.scope(), problems),
        None => Some(Template::literal(&json!({}))),
    };
    let limits = task::limits(step.fields, step, problems);
    arguments?;
    let task = TaskBody { name: name?, input: Some(input?), kind: TaskKind::Tool, ..limits? };
    Some(Body::Task { task: Box::new(task) })
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_step, steps};

    #[test]
    fn a26_a_tool_is_a_task_for_its_worker_and_the_tool_bash_a_command() {
        let plan = steps(
            "a: {tool: web.search, arguments: {q: '{{trigger.body.q}}'}, timeout: 30s, retries: 1}
b: {tool: bash, arguments: {command: date, timeout: 5s}}",
        );
        let plan = plan.unwrap().plan;
        let (a, b) = (plan.node_at(0), plan.node_at(1));
        assert_eq!((a.task().unwrap().name.as_str(), a.retry.max_attempts), ("tool.web.search", 2));
        assert_eq!(b.task().unwrap().name, "onward.bash");
        assert_eq!([a, b].map(|node| node.body.as_ref().unwrap().kind()), ["tool", "bash"]);
        check_step(&[
            ("tool: ''", "invalid_type tasks.s.tool"),
            ("tool: '{{trigger.body.x}}'", "invalid_type tasks.s.tool"),
            ("tool: 7", "wrong_type tasks.s.tool"),
            ("tool: a, arguments: [1]", "wrong_type tasks.s.arguments"),
            (
                "tool: bash, arguments: {comand: date}",
                "missing_field tasks.s.tool, unknown_field tasks.s.arguments.comand",
            ),
        ]);
    }
}
