//! `pause`: ends when an operator resumes the step, or at its deadline.

use super::StepFields;
use super::wait_for_webhook::timeout;
use crate::diagnostic::Problems;
use crate::fields::Shape;
use kernel::plan::Body;

pub(super) const FIELDS: Shape = Shape::only(&["timeout"]);

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    Some(Body::Pause { timeout: timeout(&own, problems)? })
}

#[cfg(test)]
mod tests {
    use crate::testing::{check, steps};
    use kernel::plan::Body;
    use kernel::time::Span;

    #[test]
    fn a_pause_may_have_a_deadline() {
        let plan = steps("a: {pause: {}}\nb: {pause: {timeout: 1h}}").unwrap().plan;
        assert_eq!(plan.node_at(0).body, Some(Body::Pause { timeout: None }));
        assert_eq!(plan.node_at(1).body, Some(Body::Pause { timeout: Some(Span::from_secs(3_600)) }));
        check(
            "a: {pause: 5s}\nb: {pause: {for: 5s}}\nc: {pause: {}, timeout: 1h}",
            "wrong_type tasks.a.pause: `pause` must be an object, found a text (write `pause: {}` or `{timeout: 1h}`)
             unknown_field tasks.b.pause.for: there is no field `for` (allowed here: `timeout`)
             field_not_for_kind tasks.c.timeout: `timeout` belongs to http, task, tool, agent and agent_message steps, `c` is a pause step (write it inside of `pause`)",
        );
    }
}
