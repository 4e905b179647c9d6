//! `wait_for_signal`: ends when the run receives a signal of this name, or at its deadline.

use super::StepFields;
use super::wait_for_webhook::timeout;
use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::fields::{self, Shape};
use crate::tree::TreeNode;
use kernel::plan::{Body, is_signal_name};

pub(super) const FIELDS: Shape = Shape {
    known: &["name", "timeout"],
    later: &[],
    synonyms: &[("signal", "name"), ("event", "name"), ("key", "name")],
};

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let name = own.require("name", "`wait_for_signal`", &step.entry.key_span, problems);
    let name = name.and_then(|node| name_of(node, problems));
    let timeout = timeout(&own, problems);
    Some(Body::Signal { name: name?, timeout: timeout? })
}

fn name_of(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let name = fields::text(node, "name", problems)?;
    let (message, hint) = match is_signal_name(name) {
        true => return Some(name.to_owned()),
        false if name.contains("{{") => (
            format!("{} would be a name made from data", quoted(name)),
            "senders address signals by their name, so write it out; a signal reaches one run, and data goes into its body",
        ),
        false => (
            format!("{} is not the name of a signal", quoted(name)),
            "a name begins with a letter and has up to 80 letters, digits, `_`, `.` and `-`",
        ),
    };
    problems.push(Draft::new(codes::INVALID_SIGNAL_NAME, node.span.clone(), message).hint(hint));
    None
}

#[cfg(test)]
mod tests {
    use crate::testing::{check, check_step, steps};
    use kernel::plan::Body;
    use kernel::time::Span;

    #[test]
    fn m20_a_wait_for_a_signal_has_a_name_and_maybe_a_deadline() {
        let plan = steps("a: {wait_for_signal: {name: order.paid-1, timeout: 2h}}\nb: {waitForSignal: {name: x}}");
        let plan = plan.unwrap().plan;
        let timeout = Some(Span::from_secs(7_200));
        assert_eq!(plan.node_at(0).body, Some(Body::Signal { name: "order.paid-1".into(), timeout }));
        assert_eq!(plan.node_at(1).body, Some(Body::Signal { name: "x".into(), timeout: None }));
        let long = "x".repeat(80);
        check_step(&[
            (&format!("wait_for_signal: {{name: {long}}}"), "ok"),
            (&format!("wait_for_signal: {{name: {long}x}}"), "invalid_signal_name tasks.s.wait_for_signal.name"),
            ("wait_for_signal: {name: ''}", "invalid_signal_name tasks.s.wait_for_signal.name"),
            ("wait_for_signal: {name: 1a}", "invalid_signal_name tasks.s.wait_for_signal.name"),
            ("wait_for_signal: {name: 'a b'}", "invalid_signal_name tasks.s.wait_for_signal.name"),
            ("wait_for_signal: {name: 7}", "wrong_type tasks.s.wait_for_signal.name"),
            ("wait_for_signal: {name: a, timeout: 0s}", "out_of_range tasks.s.wait_for_signal.timeout"),
        ]);
        check(
            "a: {wait_for_signal: paid}
b: {wait_for_signal: {timeout: 1h}}
c: {wait_for_signal: {name: 'paid-{{trigger.body.id}}'}}
d: {wait_for_signal: {signal: paid}}",
            "wrong_type tasks.a.wait_for_signal: `wait_for_signal` must be an object, found a text (write `wait_for_signal: {name: paid}`)
             missing_field tasks.b.wait_for_signal: `wait_for_signal` needs a field `name`
             invalid_signal_name tasks.c.wait_for_signal.name: `paid-{{trigger.body.id}}` would be a name made from data (senders address signals by their name, so write it out; a signal reaches one run, and data goes into its body)
             missing_field tasks.d.wait_for_signal: `wait_for_signal` needs a field `name`
             unknown_field tasks.d.wait_for_signal.signal: there is no field `signal` (write `name`)",
        );
    }
}
