//! `subworkflow`: a run of another workflow. The author decides which workflow, not the data.
//!
//! A template may form the name of the workflow only when the step lists the workflows that it may be (`allow`); the
//! kernel then checks the filled-in name against that list.

use super::{StepFields, http::all_or_nothing, names, templates};
use crate::codes;
use crate::diagnostic::{Draft, Problems, is_hostile, normalized, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{TreeNode, Value};
use kernel::path::Resolve;
use kernel::plan::{Body, ChildBody, OnParentClose};
use kernel::template::Part;

/// The fields beside `subworkflow`. Each attempt is another run.
pub(super) const BESIDE: &[&str] = &["retries", "retry"];

pub(super) const FIELDS: Shape = Shape {
    known: &["workflow", "input", "detached", "on_parent_close", "allow"],
    later: &[],
    synonyms: &[("name", "workflow"), ("body", "input"), ("payload", "input"), ("allow_workflows", "allow")],
};

/// A longer text is not the name, slug or id of a workflow.
const NAME_MAX: usize = 80;

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let (workflow, own) = match &step.value().value {
        Value::Text(_) => (Some(step.value()), Fields::default()),
        _ => {
            let own = step.object(problems)?;
            (own.require("workflow", "`subworkflow`", &step.entry.key_span, problems), own)
        }
    };
    let scope: &mut Resolve<'_> = &mut step.scope();
    let allow = own.get("allow").map(|node| names::read(node, "allow", problems));
    let workflow = match &allow {
        // With an invalid list, the name is not checked: it would be reported for lacking a list.
        Some(None) => None,
        Some(Some(allow)) => workflow.and_then(|node| workflow_of(node, Some(allow), scope, problems)),
        None => workflow.and_then(|node| workflow_of(node, None, scope, problems)),
    };
    let input = own.get("input").map(|node| templates::template(node, scope, problems));
    let detached = own.get("detached").map_or(Some(false), |node| fields::boolean(node, "detached", problems));
    let words: Vec<(&str, OnParentClose)> = OnParentClose::ALL.iter().map(|on| (on.as_str(), *on)).collect();
    let on_parent_close =
        own.get("on_parent_close").map(|node| fields::word(node, "on_parent_close", &words, problems));
    let on_parent_close = all_or_nothing(on_parent_close);
    let detached = detached?;
    let default = if detached { OnParentClose::Leave } else { OnParentClose::Cancel };
    let child = ChildBody {
        workflow: workflow?,
        allow: allow.flatten().unwrap_or_default(),
        input: all_or_nothing(input)?,
        detached,
        on_parent_close: on_parent_close?.unwrap_or(default),
        ..Default::default()
    };
    Some(Body::Child { child: Box::new(child) })
}

fn workflow_of(
    node: &TreeNode,
    allow: Option<&[String]>,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<Vec<Part>> {
    let text = fields::text(node, "workflow", problems)?;
    if text.contains("{{") {
        if allow.is_none() {
            let message = "a template may not form the name of a workflow";
            let draft = Draft::new(codes::TEMPLATE_IN_WORKFLOW, node.span.clone(), message);
            problems.push(draft.hint("write the name out, or list the workflows it may be in `allow`"));
            return None;
        }
        return templates::parts(node, "workflow", scope, problems);
    }
    let name = normalized(text);
    if name.is_empty() || name.chars().count() > NAME_MAX || name.contains(is_hostile) {
        let draft = Draft::new(
            codes::INVALID_NAME,
            node.span.clone(),
            format!("{} is not the name of a workflow", quoted(text)),
        );
        problems.push(draft.hint("write the name, the slug or the id of a workflow"));
        return None;
    }
    if allow.is_some_and(|allow| !allow.contains(&name)) {
        let message = format!("the workflow {} is not in `allow`", quoted(&name));
        let draft = Draft::new(codes::WORKFLOW_NOT_ALLOWED, node.span.clone(), message);
        problems.push(draft.hint("add it, or remove `allow`: without templates it is not needed"));
        return None;
    }
    Some(vec![Part { text: name, ..Default::default() }])
}

#[cfg(test)]
mod tests {
    use crate::testing::{check, check_step, steps};
    use kernel::plan::{Body, ChildBody, Node, OnParentClose};

    fn node(fields: &str) -> Node {
        steps(&format!("s: {{{fields}}}")).unwrap().plan.node_at(0).clone()
    }

    fn child(fields: &str) -> ChildBody {
        match node(fields).body {
            Some(Body::Child { child }) => *child,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn m18_a_subworkflow_names_a_workflow() {
        let short = child("subworkflow: send-invoice");
        assert_eq!(short, child("subworkflow: {workflow: ' send-invoice '}"));
        assert_eq!((short.workflow.len(), short.workflow[0].text.as_str()), (1, "send-invoice"));
        assert!(short.input.is_none() && short.allow.is_empty());
        let with = child("subworkflow: {workflow: a, input: {id: '{{trigger.body.id}}'}, allow: [a, b]}");
        assert!(with.input.is_some());
        assert_eq!(with.allow, ["a", "b"]);
    }

    #[test]
    fn m19_a_detached_child_is_left_and_an_attached_one_cancelled_unless_the_author_says_otherwise() {
        let close = |fields: &str| {
            let child = child(&format!("subworkflow: {{workflow: a, {fields}}}"));
            (child.detached, child.on_parent_close)
        };
        assert_eq!(close(""), (false, OnParentClose::Cancel));
        assert_eq!(close("detached: false, on_parent_close: leave"), (false, OnParentClose::Leave));
        assert_eq!(close("detached: true"), (true, OnParentClose::Leave));
        assert_eq!(close("detached: true, onParentClose: cancel"), (true, OnParentClose::Cancel));
    }

    #[test]
    fn a_subworkflow_has_one_attempt_unless_the_author_says_otherwise() {
        assert_eq!(node("subworkflow: a").retry.max_attempts, 1);
        assert_eq!(node("subworkflow: a, retries: 2").retry.max_attempts, 3);
        let policy = node("subworkflow: a, retry: {max_attempts: 4, backoff: {type: fixed, min: 1m}}").retry;
        assert_eq!((policy.max_attempts, policy.min), (4, kernel::time::Span::from_secs(60)));
        assert!(node("subworkflow: a, retry: {max_attempts: 2}").retry.min.0 > 0, "never at once");
    }

    #[test]
    fn data_cannot_choose_the_workflow_unless_the_step_lists_what_it_may_be() {
        let templated = child("subworkflow: {workflow: 'charge-{{trigger.body.plan}}', allow: [charge-a, charge-b]}");
        assert_eq!(templated.workflow.len(), 2);
        let long = "x".repeat(81);
        check_step(&[
            ("subworkflow: '{{trigger.body.w}}'", "template_in_workflow tasks.s.subworkflow"),
            ("subworkflow: {workflow: 'a-{{trigger.body.w}}'}", "template_in_workflow tasks.s.subworkflow.workflow"),
            ("subworkflow: {workflow: a, allow: [b]}", "workflow_not_allowed tasks.s.subworkflow.workflow"),
            ("subworkflow: {workflow: '{{tasks.x.body}}', allow: [b]}", "unknown_step tasks.s.subworkflow.workflow"),
            ("subworkflow: {workflow: '{{trigger.body.w}}', allow: []}", "out_of_range tasks.s.subworkflow.allow"),
            ("subworkflow: {workflow: a, allow: [a, a]}", "invalid_value tasks.s.subworkflow.allow[1]"),
            ("subworkflow: ''", "invalid_name tasks.s.subworkflow"),
            ("subworkflow: {workflow: \"a\\u200bb\"}", "invalid_name tasks.s.subworkflow.workflow"),
            (&format!("subworkflow: {long}"), "invalid_name tasks.s.subworkflow"),
            ("subworkflow: [a]", "wrong_type tasks.s.subworkflow"),
            ("subworkflow: {}", "missing_field tasks.s.subworkflow"),
            ("subworkflow: {workflow: a, detached: 1}", "wrong_type tasks.s.subworkflow.detached"),
            ("subworkflow: {workflow: a, on_parent_close: stop}", "invalid_value tasks.s.subworkflow.on_parent_close"),
        ]);
        check(
            "s: {subworkflow: {workflow: '{{trigger.body.w}}'}, input: {}, timeout: 1h}",
            "template_in_workflow tasks.s.subworkflow.workflow: a template may not form the name of a workflow (write the name out, or list the workflows it may be in `allow`)
             field_not_for_kind tasks.s.input: `input` belongs to task steps, `s` is a subworkflow step (write it inside of `subworkflow`)
             field_not_for_kind tasks.s.timeout: `timeout` belongs to http, task, tool, agent and agent_message steps, `s` is a subworkflow step",
        );
    }
}
