//! `agent` and `agent_message`: work for an agent, and a message to one.
//!
//! This release has no agents of its own: both are tasks that a worker of the type `agent` or `agent_message` does. What
//! such a worker gets is decided here and nowhere else.

use super::{StepFields, http::all_or_nothing, task, templates};
use crate::codes;
use crate::diagnostic::{Draft, Problems};
use crate::fields::{self, Fields, Shape};
use crate::tree::{TreeNode, Value};
use kernel::path::Resolve;
use kernel::plan::{Body, TaskBody, TaskKind};
use kernel::template::{Template, TemplateEntry};
use serde_json::json;

pub(super) const AGENT: Shape = Shape {
    known: &["goal", "content", "message", "tools", "model", "system", "budget"],
    later: &[],
    synonyms: &[("prompt", "goal"), ("instructions", "system"), ("limits", "budget")],
};

pub(super) const MESSAGE: Shape = Shape {
    known: &["content", "message", "goal", "interrupt", "await_response", "await_timeout_ms"],
    later: &[],
    synonyms: &[("text", "content"), ("await_timeout", "await_timeout_ms"), ("wait", "await_response")],
};

/// The fields beside `agent` and `agent_message`.
pub(super) const BESIDE: &[&str] = &["timeouts", "priority", "concurrency_key", "timeout", "retries", "retry"];

/// The names of what the agent is told. They mean the same.
const CONTENT: [&str; 3] = ["content", "message", "goal"];
const AWAIT_MIN: i64 = 1_000;
const AWAIT_MAX: i64 = 366 * 86_400_000;
const BUDGET_MAX: i64 = 1_000_000_000;

pub(super) fn agent(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let scope: &mut Resolve<'_> = &mut step.scope();
    let goal = content(&own, step, scope, problems);
    let mut given = |name: &str, problems: &mut Problems<'_>| {
        all_or_nothing(own.get(name).map(|node| templates::template(node, scope, problems)))
    };
    let (tools, model, system) = (given("tools", problems), given("model", problems), given("system", problems));
    own.get("tools").map(|node| fields::list(node, "tools", problems));
    own.get("model").map(|node| fields::text(node, "model", problems));
    own.get("system").map(|node| fields::text(node, "system", problems));
    let budget = own.get("budget").map(|node| budget(node, problems));
    let entries = [
        ("goal", Some(goal?)),
        ("tools", tools?),
        ("model", model?),
        ("system", system?),
        ("budget", all_or_nothing(budget)?),
    ];
    task_for(TaskKind::Agent, entries, step, problems)
}

pub(super) fn message(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let content = content(&own, step, &mut step.scope(), problems);
    let flag = |name: &str, problems: &mut Problems<'_>| {
        let flag = own.get(name).map_or(Some(false), |node| fields::boolean(node, name, problems));
        flag.map(|flag| Template::literal(&json!(flag)))
    };
    let (interrupt, awaits) = (flag("interrupt", problems), flag("await_response", problems));
    let timeout = own.get("await_timeout_ms").map(|node| {
        let millis = fields::whole(node, "await_timeout_ms", AWAIT_MIN..=AWAIT_MAX, problems)?;
        Some(Template::literal(&json!(millis)))
    });
    let entries = [
        ("content", Some(content?)),
        ("interrupt", Some(interrupt?)),
        ("await_response", Some(awaits?)),
        ("await_timeout_ms", all_or_nothing(timeout)?),
    ];
    task_for(TaskKind::AgentMessage, entries, step, problems)
}

/// A task of the type that is called like the kind, with those of these inputs that are there.
fn task_for<const N: usize>(
    kind: TaskKind,
    entries: [(&str, Option<Template>); N],
    step: &StepFields<'_, '_>,
    problems: &mut Problems<'_>,
) -> Option<Body> {
    let entry = |(key, value): (&str, Option<Template>)| {
        value.map(|value| TemplateEntry { key: key.to_owned(), value: Some(value), ..Default::default() })
    };
    let input = Template::Object { entries: entries.into_iter().filter_map(entry).collect() };
    let limits = task::limits(step.fields, step, problems)?;
    let task = TaskBody { name: kind.as_str().to_owned(), input: Some(input), kind, ..limits };
    Some(Body::Task { task: Box::new(task) })
}

/// A3: what the agent is told, under exactly one of its names.
fn content(
    own: &Fields<'_>,
    step: &StepFields<'_, '_>,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<Template> {
    let mut given = CONTENT.iter().filter_map(|name| Some((*name, own.entry(name)?)));
    let Some((name, first)) = given.next() else {
        let message = format!("`{}` needs one of `content`, `message` or `goal`", step.info.field);
        problems.push(Draft::new(codes::MISSING_FIELD, step.entry.key_span.clone(), message));
        return None;
    };
    for (other, entry) in given {
        let message = format!("`{name}` and `{other}` cannot both be given");
        problems.push(Draft::new(codes::EXCLUSIVE_FIELDS, entry.key_span.clone(), message).hint("keep one of them"));
    }
    if matches!(&first.value.value, Value::Text(text) if text.trim().is_empty()) {
        problems.add(codes::INVALID_VALUE, &first.value.span, format!("`{name}` is empty"));
        return None;
    }
    templates::parts(&first.value, name, scope, problems).map(Template::from_parts)
}

fn budget(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Template> {
    let fields = fields::object(node, "budget", problems)?;
    fields.check(&Shape::only(&["turns", "tokens"]), problems);
    let mut is_good = true;
    for name in ["turns", "tokens"] {
        is_good &= fields.get(name).is_none_or(|n| fields::whole(n, name, 1..=BUDGET_MAX, problems).is_some());
    }
    is_good.then(|| Template::literal(&node.to_json()))
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_step, steps};
    use kernel::template::Template;

    #[test]
    fn a26_agents_and_messages_are_tasks_for_workers() {
        let plan = steps(
            "a: {agent: {goal: 'Sum up {{trigger.body.x}}', tools: [search], model: m, budget: {turns: 5}}}
b: {agent_message: {content: hi, awaitResponse: true, awaitTimeoutMs: 1000}}",
        );
        let plan = plan.unwrap().plan;
        let keys = |node: u32| match &plan.node_at(node).task().unwrap().input {
            Some(Template::Object { entries }) => entries.iter().map(|e| e.key.clone()).collect::<Vec<_>>().join(" "),
            other => panic!("{other:?}"),
        };
        assert_eq!(keys(0), "goal tools model budget");
        assert_eq!(keys(1), "content interrupt await_response await_timeout_ms");
        assert_eq!(plan.node_at(1).task().unwrap().name, "agent_message");
    }

    #[test]
    fn a3_a_message_has_content_and_valid_settings() {
        check_step(&[
            ("agent_message: {}", "missing_field tasks.s.agent_message"),
            ("agent_message: {message: ''}", "invalid_value tasks.s.agent_message.message"),
            ("agent_message: {content: a, goal: b}", "exclusive_fields tasks.s.agent_message.goal"),
            ("agent_message: {content: a, interrupt: 1}", "wrong_type tasks.s.agent_message.interrupt"),
            ("agent_message: {content: a, await_response: yes}", "wrong_type tasks.s.agent_message.await_response"),
            (
                "agent_message: {content: a, await_timeout_ms: 999}",
                "out_of_range tasks.s.agent_message.await_timeout_ms",
            ),
            ("agent: {tools: [a]}", "missing_field tasks.s.agent"),
            (
                "agent: {goal: a, budget: {turns: 0, x: 1}}",
                "out_of_range tasks.s.agent.budget.turns, unknown_field tasks.s.agent.budget.x",
            ),
        ]);
    }
}
