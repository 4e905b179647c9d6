//! `approval`: ends when an actor approves or denies it, or at its deadline.

use super::wait_for_webhook::timeout;
use super::{StepFields, http::all_or_nothing, names, templates};
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped};
use crate::fields::{self, Fields, Shape};
use crate::tree::{TreeNode, Value};
use kernel::path::Resolve;
use kernel::plan::{ApprovalBody, Body, Decision};
use kernel::template::Part;

pub(super) const FIELDS: Shape = Shape {
    known: &["prompt", "items", "timeout", "default", "approvers", "exclude_initiator"],
    later: &[],
    synonyms: &[
        ("message", "prompt"),
        ("question", "prompt"),
        ("data", "items"),
        ("approver", "approvers"),
        ("allow", "approvers"),
    ],
};

/// The longest prompt as written. It is shown in lists and kept in the journal.
const PROMPT_MAX: usize = 4 * 1024;

/// `approved` and `denied` are how a decision is recorded; `approve` and `deny` is what an actor does.
const DECISIONS: &[(&str, Decision)] = &[
    ("approve", Decision::Approved),
    ("deny", Decision::Denied),
    ("approved", Decision::Approved),
    ("denied", Decision::Denied),
];

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let scope: &mut Resolve<'_> = &mut step.scope();
    let prompt = own.require("prompt", "`approval`", &step.entry.key_span, problems);
    let prompt = prompt.and_then(|node| prompt_of(node, scope, problems));
    let items = own.get("items").map(|node| templates::template(node, scope, problems));
    let timeout = timeout(&own, problems);
    let default = own.get("default").map(|node| fields::word(node, "default", DECISIONS, problems));
    warn_about_default(&own, problems);
    let approvers = own.get("approvers").map(|node| names::read(node, "approvers", problems));
    let exclude_initiator =
        own.get("exclude_initiator").map_or(Some(false), |n| fields::boolean(n, "exclude_initiator", problems));
    let approval = ApprovalBody {
        prompt: prompt?,
        items: all_or_nothing(items)?,
        timeout: timeout?,
        default: all_or_nothing(default)?,
        approvers: all_or_nothing(approvers)?.unwrap_or_default(),
        exclude_initiator: exclude_initiator?,
        ..Default::default()
    };
    Some(Body::Approval { approval: Box::new(approval) })
}

fn prompt_of(node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Vec<Part>> {
    if let Value::Text(text) = &node.value {
        if text.trim().is_empty() {
            let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), "`prompt` is empty");
            problems.push(draft.hint("write what is to be approved"));
            return None;
        }
        if text.len() > PROMPT_MAX {
            let (count, limit) = (grouped(text.len()), grouped(PROMPT_MAX));
            let draft = Draft::new(
                codes::LIMIT_EXCEEDED,
                node.span.clone(),
                format!("`prompt` has {count} bytes, the limit is {limit}"),
            );
            problems.push(draft.hint("write what it is about into `items`"));
            return None;
        }
    }
    templates::parts(node, "prompt", scope, problems)
}

/// Without `timeout`, the step waits until the run expires, and then the run ends first.
fn warn_about_default(own: &Fields<'_>, problems: &mut Problems<'_>) {
    if let (Some(entry), None) = (own.entry("default"), own.entry("timeout")) {
        let message = "`default` has no effect without `timeout`";
        let draft = Draft::new(codes::DEFAULT_WITHOUT_TIMEOUT, entry.key_span.clone(), message);
        problems.warn(draft.hint("add `timeout`: the default is the decision when that time has passed"));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check, check_step, steps};
    use kernel::plan::{ApprovalBody, Decision};
    use kernel::time::Span;

    fn approval(fields: &str) -> ApprovalBody {
        let plan = steps(&format!("s: {{approval: {{prompt: 'Charge?', {fields}}}}}")).unwrap().plan;
        plan.node_at(0).approval().unwrap().clone()
    }

    #[test]
    fn m22_an_approval_says_what_is_to_be_approved_and_by_which_actors() {
        let bare = approval("");
        assert_eq!(bare.prompt.len(), 1);
        let rest = ApprovalBody { prompt: Vec::new(), ..bare };
        assert_eq!(rest, ApprovalBody::default(), "everything else has a default");
        let all = approval(
            "items: ['{{trigger.body.order}}'], timeout: 1d, default: deny, approvers: [ada, bob], exclude_initiator: true",
        );
        assert!(all.items.is_some() && all.exclude_initiator);
        assert_eq!((all.timeout, all.default), (Some(Span::from_days(1)), Some(Decision::Denied)));
        assert_eq!(all.approvers, ["ada", "bob"]);
        for (word, decision) in [
            ("approve", Decision::Approved),
            ("approved", Decision::Approved),
            ("deny", Decision::Denied),
            ("denied", Decision::Denied),
        ] {
            assert_eq!(approval(&format!("timeout: 1h, default: {word}")).default, Some(decision));
        }
    }

    #[test]
    fn an_invalid_approval_is_refused() {
        let many: Vec<String> = (0..101).map(|i| format!("a{i}")).collect();
        check_step(&[
            ("approval: yes please", "wrong_type tasks.s.approval"),
            ("approval: {}", "missing_field tasks.s.approval"),
            ("approval: {prompt: ' '}", "invalid_value tasks.s.approval.prompt"),
            ("approval: {prompt: 1}", "wrong_type tasks.s.approval.prompt"),
            (&format!("approval: {{prompt: {}}}", "x".repeat(4_096)), "ok"),
            (&format!("approval: {{prompt: {}}}", "x".repeat(4_097)), "limit_exceeded tasks.s.approval.prompt"),
            ("approval: {prompt: a, approvers: []}", "out_of_range tasks.s.approval.approvers"),
            ("approval: {prompt: a, approvers: ada}", "wrong_type tasks.s.approval.approvers"),
            ("approval: {prompt: a, approvers: [ada, ada]}", "invalid_value tasks.s.approval.approvers[1]"),
            (
                "approval: {prompt: a, approvers: ['', ' a']}",
                "invalid_value tasks.s.approval.approvers[0], invalid_value tasks.s.approval.approvers[1]",
            ),
            (
                "approval: {prompt: a, approvers: ['{{trigger.body.who}}', 1]}",
                "invalid_value tasks.s.approval.approvers[0], wrong_type tasks.s.approval.approvers[1]",
            ),
            (
                &format!("approval: {{prompt: a, approvers: [{}]}}", many.join(", ")),
                "out_of_range tasks.s.approval.approvers",
            ),
            ("approval: {prompt: a, exclude_initiator: 1}", "wrong_type tasks.s.approval.exclude_initiator"),
            ("approval: {prompt: '{{tasks.x.body}}'}", "unknown_step tasks.s.approval.prompt"),
        ]);
        check(
            "s: {approval: {message: 'Charge?', default: yes, timeout: 1h}}",
            "missing_field tasks.s.approval: `approval` needs a field `prompt`
             unknown_field tasks.s.approval.message: there is no field `message` (write `prompt`)
             invalid_value tasks.s.approval.default: `default` is `yes`, allowed is `approve`, `deny`, `approved` or `denied`",
        );
        check(
            "s: {approval: {prompt: 'Charge?'}, approvers: [ada], retries: 2}",
            "unknown_field tasks.s.approvers: there is no field `approvers` beside `approval` (write it inside of `approval`)
             field_not_for_kind tasks.s.retries: `retries` belongs to http, task, bash, tool, agent, agent_message and subworkflow steps, `s` is an approval step",
        );
    }

    #[test]
    fn a_default_without_a_timeout_is_a_warning() {
        let warnings = |fields: &str| -> Vec<String> {
            let compiled = steps(&format!("s: {{approval: {{prompt: a, {fields}}}}}")).unwrap();
            compiled.warnings.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            warnings("default: deny"),
            [
                "3:29 warning default_without_timeout tasks.s.approval.default: `default` has no effect without `timeout` (add `timeout`: the default is the decision when that time has passed)"
            ]
        );
        assert_eq!(warnings("default: deny, timeout: 1h"), Vec::<String>::new());
        assert_eq!(warnings("timeout: 1h"), Vec::<String>::new());
    }
}
