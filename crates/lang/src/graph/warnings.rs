//! What probably does not mean what its author thinks: conditions that hide failures, and irreversible steps whose failure
//! undoes what came before them.

use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::step::{Kind, ParsedStep, WITH_ATTEMPTS};
use kernel::expr::{Expr, Op};
use kernel::path::{Ref, Root, TaskField};
use kernel::plan::{Form, Join, Node};
use std::collections::BTreeMap;

const BAD_ENDINGS: [&str; 3] = ["failed", "timeout", "template_error"];

pub(super) fn check(steps: &[&ParsedStep<'_>], nodes: &[Node], form: Form, problems: &mut Problems<'_>) {
    check_irreversible(steps, nodes, form, problems);
    for (step, node) in steps.iter().zip(nodes) {
        let Some(expr) = node.guard.as_ref().and_then(|guard| guard.expr.as_ref()) else { continue };
        let Some(place) = step.fields.as_ref().and_then(|fields| fields.get("if")) else { continue };
        let mut found = ConditionReads::default();
        found.read(expr);
        for (of, endings) in &found.endings {
            let can_end_badly = steps[*of as usize].kind.is_some_and(|info| WITH_ATTEMPTS.contains(&info.kind));
            if let (true, Some(missed)) = (can_end_badly, missed(endings)) {
                let name = steps[*of as usize].name;
                let message = format!("this condition does not see when {} ends as {missed}", quoted(name));
                let hint = format!("`tasks.{name}.failed` is true for `failed`, `timeout` and `template_error`");
                problems.warn(Draft::new(codes::ONE_BAD_ENDING, place.span.clone(), message).hint(hint));
            }
        }
        for path in &found.unequal {
            let of = &nodes[path.node as usize];
            if !of.links.is_empty() || of.guard.is_some() {
                let message = format!("`{} != …` is also true when {} was skipped", path.text, quoted(&of.key));
                let hint = format!("to react to a failure, write `tasks.{}.failed`", of.key);
                problems.warn(Draft::new(codes::TRUE_WHEN_SKIPPED, place.span.clone(), message).hint(hint));
            }
        }
    }
}

/// When an irreversible step fails, it may be unknown whether it did its work. If nothing handles that, the steps before it
/// are undone, although it may have happened.
fn check_irreversible(steps: &[&ParsedStep<'_>], nodes: &[Node], form: Form, problems: &mut Problems<'_>) {
    let is_handled = |of: u32| {
        let needs = |node: &Node| node.links.iter().any(|link| link.from == of);
        nodes.iter().any(|node| needs(node) && (node.guard.is_some() || node.join == Join::Any))
    };
    let is_undone = |node: &Node| node.undo.is_some();
    for ((step, node), number) in steps.iter().zip(nodes).zip(0u32..) {
        let is_child = |kind: Kind| kind == Kind::Subworkflow;
        let can_fail = step.kind.is_some_and(|info| WITH_ATTEMPTS.contains(&info.kind) || is_child(info.kind));
        if !node.is_irreversible
            || !can_fail
            || node.allow_failure
            || is_handled(number)
            || !nodes.iter().any(is_undone)
        {
            continue;
        }
        let Some(place) = step.fields.as_ref().and_then(|fields| fields.entry("irreversible")) else { continue };
        let name = quoted(&node.key);
        let message = format!("when {name} fails, other steps are undone, although {name} may have done its work");
        let hint = match form {
            Form::Steps => "give it `allow_failure: true`, and look at how it ended in a `conditional`".to_owned(),
            _ => format!("add a step with `needs: [{0}]` and `if: \"tasks.{0}.failed\"` that handles it", node.key),
        };
        problems.warn(Draft::new(codes::IRREVERSIBLE_UNHANDLED, place.key_span.clone(), message).hint(hint));
    }
}

/// The bad endings that a condition does not look for, if it looks for some of them.
fn missed(endings: &[&str]) -> Option<String> {
    let missed: Vec<String> = BAD_ENDINGS.iter().filter(|e| !endings.contains(e)).map(|e| format!("`{e}`")).collect();
    (!missed.is_empty() && missed.len() < BAD_ENDINGS.len()).then(|| missed.join(" or "))
}

#[derive(Default)]
struct ConditionReads<'e> {
    /// The bad endings that `tasks.x.status` is compared with, by step.
    endings: BTreeMap<u32, Vec<&'e str>>,
    /// What is compared by `!=` with a value that a skipped step does not have.
    unequal: Vec<&'e Ref>,
}

impl<'e> ConditionReads<'e> {
    fn read(&mut self, expr: &'e Expr) {
        match expr {
            Expr::Not { args } | Expr::And { args } | Expr::Or { args } | Expr::Coalesce { args } => {
                args.iter().for_each(|arg| self.read(arg));
            }
            Expr::Compare { op, args } => match (op, args.as_slice()) {
                (Op::Eq, [Expr::Path { path }, Expr::Text { value }] | [Expr::Text { value }, Expr::Path { path }])
                    if is_status(path) && BAD_ENDINGS.contains(&value.as_str()) =>
                {
                    self.endings.entry(path.node).or_default().push(value);
                }
                (Op::Ne, [Expr::Path { path }, value] | [value, Expr::Path { path }])
                    if path.root == Root::Task && is_of_an_end(path, value) && !self.unequal.contains(&path) =>
                {
                    self.unequal.push(path);
                }
                _ => {}
            },
            // `failed` covers every bad ending.
            Expr::Path { path } if path.root == Root::Task && path.field == TaskField::Failed => {
                self.endings.entry(path.node).or_default().extend(BAD_ENDINGS);
            }
            _ => {}
        }
    }
}

fn is_status(path: &Ref) -> bool {
    path.root == Root::Task && path.field == TaskField::Status
}

/// Is this a comparison of how a step ended, with something other than `skipped`?
fn is_of_an_end(path: &Ref, value: &Expr) -> bool {
    match (path.field, value) {
        (TaskField::Status, Expr::Text { value }) => value != "skipped",
        (TaskField::StatusCode, Expr::Number { .. }) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Severity, Syntax, compile, read};

    fn warnings(condition: &str) -> Vec<String> {
        let text = format!(
            "name: w\ntasks:\n  first: {{ url: 'http://h/' }}\n  then: {{ url: 'http://h/', needs: [first] }}\n  \
             wait: {{ wait_for_webhook: {{}} }}\n  \
             end: {{ noop: {{}}, needs: [first, then, wait], if: \"{condition}\" }}\n"
        );
        let compiled = compile(&read(text.as_bytes(), Syntax::Yaml).unwrap()).unwrap();
        assert!(compiled.warnings.iter().all(|w| w.severity == Severity::Warning && w.path == "tasks.end.if"));
        compiled.warnings.iter().map(|w| format!("{}: {}", w.code, w.message)).collect()
    }

    #[test]
    fn a_condition_on_one_bad_ending_is_a_warning() {
        let one = "one_bad_ending: this condition does not see when `first` ends as `timeout` or `template_error`";
        assert_eq!(warnings("tasks.first.status == 'failed'"), [one]);
        assert_eq!(warnings("'failed' == tasks.first.status && trigger.body.x"), [one]);
        let last = "one_bad_ending: this condition does not see when `first` ends as `template_error`";
        assert_eq!(warnings("tasks.first.status == 'failed' || tasks.first.status == 'timeout'"), [last]);
        for fine in [
            "tasks.first.failed",
            "tasks.first.status == 'success'",
            "tasks.first.status == 'failed' || tasks.first.failed",
            // A wait ends badly in one way only.
            "tasks.wait.status == 'timeout'",
        ] {
            assert_eq!(warnings(fine), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn an_irreversible_step_whose_failure_nothing_handles_is_a_warning() {
        let warnings = |handler: &str, capture: &str| -> Vec<String> {
            let text = format!(
                "name: w\ntasks:\n  reserve: {{ url: 'http://h/', compensate: {{ url: 'http://h/undo' }} }}\n  \
                 capture: {{ url: 'http://h/', needs: [reserve], irreversible: true{capture} }}\n{handler}"
            );
            let compiled = compile(&read(text.as_bytes(), Syntax::Yaml).unwrap()).unwrap();
            compiled.warnings.iter().map(|w| format!("{} at {}: {}", w.code, w.path, w.message)).collect()
        };
        let found = "irreversible_unhandled at tasks.capture.irreversible: when `capture` fails, other steps are undone, \
                     although `capture` may have done its work";
        assert_eq!(warnings("", ""), [found]);
        assert_eq!(warnings("", ", allow_failure: true"), Vec::<String>::new());
        let handler = "  look: { noop: {}, needs: [capture], if: tasks.capture.failed }\n";
        assert_eq!(warnings(handler, ""), Vec::<String>::new());
    }

    #[test]
    fn a_comparison_that_holds_for_a_skipped_step_is_a_warning() {
        let skipped = "true_when_skipped: `tasks.then.status != …` is also true when `then` was skipped";
        assert_eq!(warnings("tasks.then.status != 'success'"), [skipped]);
        let code = "true_when_skipped: `tasks.then.status_code != …` is also true when `then` was skipped";
        assert_eq!(warnings("200 != tasks.then.status_code"), [code]);
        // `first` needs nothing and has no condition: it is never skipped.
        for fine in ["tasks.first.status != 'success'", "tasks.then.status != 'skipped'", "tasks.then.body.x != 1"] {
            assert_eq!(warnings(fine), Vec::<String>::new(), "{fine}");
        }
    }
}
