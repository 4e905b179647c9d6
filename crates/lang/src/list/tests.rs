use crate::testing::compiled;
use crate::{Severity, Syntax, compile, read};
use kernel::expr::Expr;
use kernel::path::Root;
use kernel::plan::{Body, Form, GroupKind, Link, OnError, Outcomes, Plan};
use kernel::template::Template;

/// Compiles the steps of a list, one per line.
fn plan(steps: &str) -> Plan {
    let found = list(steps);
    found.unwrap_or_else(|problems| panic!("{problems}"))
}

fn list(steps: &str) -> Result<Plan, String> {
    let lines: Vec<String> = steps.trim().lines().map(|line| format!("  - {}", line.trim())).collect();
    compiled(&format!("name: test\nsteps:\n{}", lines.join("\n"))).map(|compiled| compiled.plan)
}

/// The problems of steps, without their positions.
fn check(steps: &str, expected: &[&str]) {
    let found = list(steps).err().unwrap_or_default();
    let found: Vec<&str> = found.lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest).collect();
    assert_eq!(found, expected, "{steps}");
}

/// `a<b` for each link: `a` comes after `b`; `a<!b`: instead of it; `a<?b`: also after its failure.
fn links(plan: &Plan) -> String {
    let link = |to: &str, link: &Link| {
        let mark = match link.on {
            Outcomes::OK => "",
            Outcomes::SKIPPED => "!",
            Outcomes::ENDED => "?",
            other => panic!("{other:?}"),
        };
        format!("{to}<{mark}{}", plan.node_at(link.from).key)
    };
    let links = plan.nodes().iter().flat_map(|node| node.links.iter().map(|of| link(&node.key, of)));
    links.collect::<Vec<_>>().join(" ")
}

fn group(plan: &Plan, key: &str) -> kernel::plan::GroupBody {
    plan.node_at(plan.find(key).unwrap()).inner().unwrap().clone()
}

#[test]
fn a5_steps_without_an_id_are_called_by_their_place() {
    let plan = plan(
        "{type: noop}
         {type: conditional, condition: true, then: [{type: noop}, {type: noop, id: x}], else: [{type: noop}]}
         {id: p, type: parallel, steps: [{type: group, steps: [{type: noop}]}]}
         {id: 'step[3]', type: noop}",
    );
    let keys: Vec<&str> = plan.nodes().iter().map(|node| node.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "step[0]",
            "step[1]",
            "p",
            "step[3]",
            "step[1].then[0]",
            "x",
            "step[1].else[0]",
            "step[2].steps[0]",
            "step[2].steps[0].steps[0]"
        ]
    );
    assert_eq!(plan.layout().form, Form::Steps);
    check(
        "{id: 'step[1]', type: noop}\n{id: a, type: noop}",
        &[
            "invalid_step_name steps[0].id: `step[1]` is not an id (an id begins with a letter and has up to 80 letters, digits, `_` and `-`)",
        ],
    );
}

#[test]
fn a24_steps_run_in_order_and_a_step_that_may_fail_does_not_end_the_list() {
    let plan = plan(
        "{id: a, type: noop}
         {id: b, type: task, task: t, allowFailure: true}
         {id: c, type: noop}",
    );
    assert_eq!(links(&plan), "b<a c<?b");
    assert_eq!(plan.layout().max_steps, 50);
}

#[test]
fn a27_a_conditional_is_two_branches_of_which_one_runs() {
    let both = plan(
        "{id: c, type: conditional, condition: variables.x, then: [{id: a, type: noop}, {id: b, type: noop}], else: [{id: d, type: noop}, {id: e, type: noop}]}
         {id: z, type: noop}",
    );
    assert_eq!(links(&both), "z<c b<a d<!a e<d");
    let guarded: Vec<&str> = both.nodes().iter().filter(|n| n.guard.is_some()).map(|n| n.key.as_str()).collect();
    assert_eq!(guarded, ["a"], "the condition is evaluated once");
    let of = group(&both, "c");
    assert!(of.kind == GroupKind::Conditional && of.on_error == OnError::Finish);
    let only = plan(
        "{id: c, type: conditional, condition: variables.x, then: [], else: [{id: d, type: noop}, {id: e, type: noop}]}",
    );
    assert_eq!(links(&only), "e<d");
    let guard = only.node_at(only.find("d").unwrap()).guard.clone().unwrap();
    assert_eq!(guard.text, "!(variables.x)");
}

#[test]
fn a27_conditions_are_expressions_booleans_or_equalities() {
    let text = |condition: &str| {
        let steps = format!(
            "{{id: a, type: noop, outputVariable: total}}
             {{type: conditional, condition: {condition}, then: [{{id: t, type: noop}}]}}"
        );
        list(&steps).map(|plan| plan.node_at(plan.find("t").unwrap()).guard.clone().unwrap().text)
    };
    for (condition, expected) in [
        ("\"variables.x == 'a' && outputs.total > 3\"", "variables.x == 'a' && outputs.total > 3"),
        ("true", "true"),
        ("false", "false"),
        ("{variable: x}", "variables.x"),
        ("{variable: order.lines, equals: 3}", "variables.order.lines == 3"),
        ("{variable: x, equals: \"it's\\n\"}", "variables.x == 'it\\'s\\n'"),
        ("{variable: x, equals: null}", "variables.x == null"),
        ("{variable: total, equals: false}", "(variables['total'] ?? outputs['total']) == false"),
        ("{variable: total.sum, equals: 1.5}", "(variables.total.sum ?? outputs.total.sum) == 1.5"),
        ("{variable: a, equals: x}", "(variables['a'] ?? outputs['a']) == 'x'"),
    ] {
        assert_eq!(text(condition).as_deref(), Ok(expected), "{condition}");
    }
    for (condition, code) in [
        ("{variable: 'a b'}", "invalid_value"),
        ("{variable: 5}", "wrong_type"),
        ("{equals: 5}", "missing_field"),
        ("{variable: x, equals: [1]}", "wrong_type"),
        ("{variable: x, is: 1}", "unknown_field"),
        ("[a]", "wrong_type"),
        ("approved", "unknown_root"),
        ("'{{variables.x}}'", "template_in_condition"),
    ] {
        let problems = text(condition).unwrap_err();
        assert!(problems.contains(code), "{condition}: {problems}");
    }
    assert!(text("total").unwrap_err().contains("write `outputs.total`"));
    assert!(text("approved").unwrap_err().contains("write `variables.approved`"));
}

#[test]
fn a28_a_parallel_has_no_links_and_waits_for_all() {
    let plan = plan("{id: p, type: parallel, maxConcurrency: 2, steps: [{id: a, type: noop}, {id: b, type: noop}]}");
    assert_eq!(links(&plan), "");
    let of = group(&plan, "p");
    assert_eq!((of.on_error, of.concurrency, of.kind), (OnError::Finish, 2, GroupKind::Parallel));
}

#[test]
fn a30_loops_and_subworkflows() {
    let plan = plan(
        "{id: l, type: loop, items: variables.users, as: user, maxConcurrency: 5, steps: [{id: a, type: log, message: '{{user.name}} {{index}}'}, {id: b, type: noop}]}
         {id: w, type: loop, while: outputs.n < 3, maxIterations: 9, steps: [{type: set, values: {i: 1}, outputVariable: n}]}
         {id: s, type: subworkflow, workflow: next, input: {x: '{{outputs.n}}'}, detached: true}",
    );
    let (list, poll) = (plan.node_at(0).repeat().unwrap(), plan.node_at(1).repeat().unwrap());
    assert_eq!((list.concurrency, list.name.as_str(), list.body.on_error), (5, "user", OnError::Fail));
    assert_eq!((poll.max_iterations, poll.condition.is_some()), (9, true));
    assert_eq!(links(&plan), "w<l s<w b<a");
    assert!(matches!(&plan.node_at(2).body, Some(Body::Child { child }) if child.detached));
}

#[test]
fn a31_outputs_are_read_by_name_and_by_id() {
    let with_outputs = plan(
        "{id: a, type: noop, outputVariable: total}
         {id: c, type: conditional, condition: true, then: [{id: inner, type: noop}, {type: log, message: '{{outputs.inner}}'}]}
         {id: z, type: set, values: {a: '{{outputs.total}}', b: '{{outputs.inner.x}}', c: '{{outputs.a}}', d: '{{outputs.total.y}}'}}",
    );
    let names: Vec<(&str, bool)> =
        with_outputs.layout().outputs.iter().map(|o| (o.name.as_str(), o.is_internal)).collect();
    assert_eq!(names, [("total", false), ("inner", true)]);
    let writes: Vec<&[u32]> = with_outputs.nodes().iter().map(|node| &node.writes[..]).collect();
    assert_eq!(writes, [&[0][..], &[], &[], &[1], &[]]);
    let mut roots = Vec::new();
    for node in with_outputs.nodes() {
        if let Some(Body::Set { values: Some(values) }) = &node.body {
            values.each_path(&mut |path| roots.push((path.root, path.node)));
        }
    }
    assert_eq!(roots, [(Root::Output, 0), (Root::Output, 1), (Root::Task, 0), (Root::Output, 0)]);
    assert!(matches!(&with_outputs.layout().output, Some(Template::Value { path }) if path.root == Root::Outputs));
    assert_eq!(plan("{type: noop}").layout().output, None, "a run without outputs has no output");
}

#[test]
fn a31_what_cannot_have_been_written_yet_is_refused() {
    let early = |name: &str, by: &str, at: &str| {
        format!(
            "not_an_ancestor steps{at}: `outputs.{name}` is written by `{by}`, which ends only after this is read (move that step before this one)"
        )
    };
    check(
        "{type: log, message: '{{outputs.late}}'}
         {id: b, type: noop, outputVariable: late}",
        &[&early("late", "b", "[0].message")],
    );
    check(
        "{id: c, type: conditional, condition: true, then: [{id: t, type: noop, outputVariable: x}, {id: u, type: noop}], else: [{type: log, message: '{{outputs.u}}'}]}",
        &[&early("u", "u", "[0].else[0].message")],
    );
    // An earlier iteration may have written it, and so may another branch.
    check(
        "{type: loop, while: outputs.n < 3, steps: [{type: log, message: '{{outputs.n ?? 0}}'}, {type: set, values: {a: 1}, outputVariable: n}]}
         {type: parallel, steps: [{type: log, message: '{{outputs.m ?? 0}}'}, {type: noop, outputVariable: m}]}",
        &[],
    );
    check(
        "{id: l, type: loop, items: variables.x, steps: [{id: a, type: noop}], output: '{{outputs.a}} {{outputs.l}}'}",
        &[&early("l", "l", "[0].output")],
    );
}

#[test]
fn a31_two_branches_that_write_one_name_are_a_warning() {
    let warnings = |text: &str| -> Vec<String> {
        let source = format!("name: w\nsteps:\n  - {text}\n");
        let compiled = compile(&read(source.as_bytes(), Syntax::Yaml).unwrap()).unwrap();
        assert!(compiled.warnings.iter().all(|warning| warning.severity == Severity::Warning));
        compiled
            .warnings
            .iter()
            .map(|warning| format!("{} {}: {}", warning.code, warning.path, warning.message))
            .collect()
    };
    let steps = "[{id: a, type: noop, outputVariable: x}, {type: group, steps: [{type: noop, outputVariable: x}]}]";
    assert_eq!(
        warnings(&format!("{{type: parallel, steps: {steps}}}")),
        [
            "output_written_twice steps[0].steps[1].steps[0].outputVariable: `a` writes `outputs.x`, too, at the same time"
        ]
    );
    assert_eq!(warnings(&format!("{{type: group, steps: {steps}}}")), Vec::<String>::new());
}

#[test]
fn decision_10_milliseconds_and_camel_case_are_accepted() {
    let plan = plan(
        "{type: http, url: 'https://h/', timeoutMs: 2500, expectedStatus: 200, outputVariable: a}
         {type: bash, command: date, timeoutMs: 5000}
         {type: wait, durationMs: 250}
         {type: sleep, duration: 5s}
         {type: approval, prompt: Go?, timeout_ms: 60000, default: approve}
         {type: pause, timeoutMs: 60000}",
    );
    assert_eq!(plan.node_at(0).http().unwrap().timeout.millis(), 2_500);
    assert_eq!(plan.node_at(1).task().unwrap().attempt.unwrap().millis(), 35_000);
    assert!(matches!(plan.node_at(2).body, Some(Body::Sleep { span }) if span.millis() == 250));
    assert_eq!(plan.node_at(4).approval().unwrap().timeout.unwrap().millis(), 60_000);
}

#[test]
fn steps_of_a_list_can_be_undone_and_retried() {
    let plan = plan(
        "{id: a, type: task, task: reserve, retries: 4, compensate: {type: bash, command: ./release, timeoutMs: 2000}}
         {id: b, type: http, url: 'https://h/', irreversible: true, retry: never}",
    );
    let undo = plan.node_at(plan.node_at(0).undo.unwrap());
    assert_eq!(undo.body.as_ref().unwrap().kind(), "bash");
    assert!(undo.task().unwrap().input.is_some(), "the input of a command is its own");
    assert!(plan.node_at(0).retry.max_attempts == 5 && plan.node_at(1).retry.never && plan.node_at(1).is_irreversible);
    check(
        "{type: noop, compensate: {type: noop, id: x}}
         {type: task, task: t, compensate: {type: sleep, duration: 5s}}
         {type: task, task: t, compensate: {command: x}}",
        &[
            "field_not_for_kind steps[0].compensate: `step[0]` is a noop step: it does nothing that could be undone",
            "unknown_field steps[0].compensate.id: `compensate` has no `id`",
            "field_not_for_kind steps[1].compensate: a step cannot be undone by a sleep step (use one of `http`, `log`, `noop`, `task`, `bash` or `tool`)",
            "no_step_kind steps[2].compensate: a step of a list needs a `type`",
        ],
    );
}

#[test]
fn m5_a_list_of_two_thousand_steps_compiles() {
    let steps = vec!["{type: noop}"; 2_000].join("\n");
    assert_eq!(plan(&steps).nodes().len(), 2_000);
    assert!(list(&format!("{steps}\n{{type: noop}}")).unwrap_err().contains("limit_exceeded steps:"));
    let nested = |depth: usize| "{type: group, steps: [".repeat(depth) + "{type: noop}" + &"]}".repeat(depth);
    assert!(list(&nested(16)).is_ok());
    assert!(list(&nested(17)).unwrap_err().contains("limit_exceeded"));
}

#[test]
fn the_defaults_of_variables_are_kept() {
    let found =
        compiled("name: t\nvariables: {who: ada, at: {h: 9}}\nruntime: {policy: {maxSteps: 7}}\nsteps: [{type: noop}]");
    let layout = found.unwrap().plan.layout().clone();
    assert_eq!(&layout.variables[..], br#"{"who":"ada","at":{"h":9}}"#);
    assert_eq!(layout.max_steps, 7);
    let negated = plan("{type: conditional, condition: false, else: [{id: e, type: noop}]}");
    let guard = negated.node_at(negated.find("e").unwrap()).guard.clone().unwrap();
    assert!(matches!(guard.expr, Some(Expr::Not { .. })));
}
