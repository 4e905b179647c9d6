use crate::testing::{check, compiled, steps};
use kernel::plan::Outcomes;

/// `a>b c>a,d` as steps: each name before `>` needs the ones after it.
fn chain(text: &str) -> String {
    let step = |word: &str| {
        let (name, needs) = word.split_once('>').unwrap_or((word, ""));
        format!("{name}: {{noop: {{}}, needs: [{needs}]}}")
    };
    text.split(' ').map(step).collect::<Vec<_>>().join("\n")
}

#[test]
fn r5_a_cycle_is_named_once() {
    check(
        &chain("a>c b>a c>b d>a e>e2 e2>e"),
        "dependency_cycle tasks.a.needs[0]: these steps need each other in a cycle: `a` → `c` → `b` → `a` (remove one of these needs)
         dependency_cycle tasks.e.needs[0]: these steps need each other in a cycle: `e` → `e2` → `e` (remove one of these needs)",
    );
    check(
        &chain("a>b,c b>a c>a"),
        "dependency_cycle tasks.a.needs[0]: these steps need each other in a cycle: `a` → `b` → `a` (remove one of these needs)",
    );
    check(&chain("a>a"), "needs_itself tasks.a.needs[0]: `a` needs itself (remove it)");
    check(&chain("a b>a c>a d>b,c"), "ok");
}

#[test]
fn r5_long_chains_and_large_cycles_are_handled() {
    let all = |last: &str| {
        let mut words: Vec<String> = (1..2_000).map(|i| format!("s{i}>s{}", i - 1)).collect();
        words.insert(0, last.to_owned());
        steps(&chain(&words.join(" ")))
    };
    assert_eq!(all("s0").unwrap().plan.nodes().len(), 2_000);
    let problems = all("s0>s1999").unwrap_err();
    assert!(problems.contains("`s0` → `s1999` → `s1998`") && problems.contains("… → `s0`"), "{problems}");
}

#[test]
fn r6_needs_must_name_a_step() {
    check(
        "charge: {noop: {}}\nreceipt: {noop: {}, needs: [chrage]}\nx: {noop: {}, needs: [nothing, charge, charge, 1]}\ny: {noop: {}, needs: charge}",
        "needs_unknown_step tasks.receipt.needs[0]: `receipt` needs `chrage`, which is not a step of this workflow (did you mean `charge`?)
         needs_unknown_step tasks.x.needs[0]: `x` needs `nothing`, which is not a step of this workflow
         duplicate_need tasks.x.needs[2]: `x` needs `charge` twice (remove one of them)
         wrong_type tasks.x.needs[3]: `needs` must be a text, found a number
         wrong_type tasks.y.needs: `needs` must be a list of step names, found a text (write `needs: [charge]`)",
    );
}

#[test]
fn r7_a_step_reads_only_its_ancestors() {
    check(
        "
a: {noop: {}}
b: {noop: {}, needs: [a]}
c: {needs: [b], if: tasks.a.status == 'success', set: {x: '{{tasks.b.body.y}}'}}
d: {needs: [a], set: {x: '{{tasks.b.body.y}} {{tasks.d.body}}'}}
e: {if: tasks.a.status_code == 200 || tasks.ab.status == 'x', noop: {}}",
        "not_an_ancestor tasks.d.set.x: `d` reads `tasks.b`, but does not need it (add `b` to the `needs` of `d`)
         not_an_ancestor tasks.d.set.x: `d` reads its own result, which does not exist before it ends
         not_an_ancestor tasks.e.if: `e` reads `tasks.a`, but does not need it (add `a` to the `needs` of `e`)
         unknown_step tasks.e.if: `ab` is not a step of this workflow (did you mean `a`?)",
    );
}

#[test]
fn r7_one_mistake_in_needs_is_reported_once() {
    check(
        "charge: {noop: {}}\nb: {needs: [chrage], set: {x: '{{tasks.charge.body}}'}}\nc: {needs: [b], if: tasks.charge.status == 'failed', noop: {}}",
        "needs_unknown_step tasks.b.needs[0]: `b` needs `chrage`, which is not a step of this workflow (did you mean `charge`?)",
    );
}

#[test]
fn r38_paths_name_the_trigger_steps_and_callback_urls() {
    let check_path = |path: &str, expected: &str| {
        let source = format!(
            "a: {{noop: {{}}}}\nw: {{wait_for_webhook: {{}}}}\ns: {{needs: [a], set: {{x: \"{{{{{path}}}}}\"}}}}"
        );
        let found = match steps(&source) {
            Ok(_) => "ok".to_owned(),
            Err(text) => text.split(' ').nth(1).unwrap_or_default().to_owned(),
        };
        assert_eq!(found, expected, "{path}");
    };
    for path in [
        "trigger.body",
        "trigger.body.a.b[0].c",
        "trigger.headers.x-a",
        "trigger.headers['X-A']",
        "tasks.a.status",
        "tasks.a.status_code",
        "tasks.a.body",
        "tasks.a.body.x",
        "tasks.a.headers",
        "tasks.a.headers.etag",
        "tasks.a.error",
        "tasks.a.error.code",
        "wait.w.url",
        "tasks['a'].body",
    ] {
        check_path(path, "ok");
    }
    for (path, code) in [
        ("trigger", "incomplete_path"),
        ("trigger.headers", "incomplete_path"),
        ("trigger.headers.a.b", "path_too_long"),
        ("trigger.query", "unknown_root"),
        ("tasks", "incomplete_path"),
        ("tasks.a", "incomplete_path"),
        ("tasks.b.body", "unknown_step"),
        ("tasks.a.output", "unknown_task_field"),
        ("tasks.a.status.x", "path_too_long"),
        ("tasks.a.status_code.x", "path_too_long"),
        ("wait.w", "incomplete_path"),
        ("wait.w.token", "unknown_task_field"),
        ("wait.w.url.x", "path_too_long"),
        ("wait.a.url", "not_a_wait"),
        ("wait.nope.url", "unknown_step"),
        ("secrets.KEY", "unsupported_setting"),
        ("item.x", "unknown_root"),
        ("task.a.body", "unknown_root"),
        ("__proto__.x", "unknown_root"),
    ] {
        check_path(path, code);
    }
}

#[test]
fn r18_r20_a_step_with_a_condition_accepts_every_outcome() {
    let plan =
        steps("b: {noop: {}, needs: [a]}\na: {noop: {}}\nc: {noop: {}, needs: [a, b], if: tasks.a.status == 'failed'}")
            .unwrap()
            .plan;
    let keys: Vec<&str> = plan.nodes().iter().map(|n| n.key.as_str()).collect();
    assert_eq!(keys, ["b", "a", "c"], "declaration order is kept");
    let links = |i: u32| plan.node(i).links.iter().map(|l| (l.from, l.on)).collect::<Vec<_>>();
    assert_eq!(links(0), [(1, Outcomes::OK)]);
    assert_eq!(links(2), [(1, Outcomes::ANY), (0, Outcomes::ANY)]);
    assert_eq!(plan.layout().groups[0].nodes, [0, 1, 2]);
}

#[test]
fn header_names_in_paths_are_lower_case() {
    let plan = steps("a: {set: {x: '{{trigger.headers.X-Id}}'}}").unwrap().plan;
    let mut keys = Vec::new();
    if let Some(kernel::plan::Body::Set { values: Some(values) }) = &plan.node(0).body {
        values.each_path(&mut |path| keys.extend(path.keys.clone()));
    }
    assert_eq!(keys, ["x-id"]);
}

#[test]
fn p23_messages_name_the_limits_on_counts() {
    let names: Vec<String> = (0..2_001).map(|i| format!("s{i}")).collect();
    check(&chain(&names.join(" ")), "limit_exceeded tasks: this workflow has 2,001 steps, the limit is 2,000");
    let many = format!("{} last>{}", names[..1_001].join(" "), names[..1_001].join(","));
    check(&chain(&many), "limit_exceeded tasks.last.needs: `last` has 1,001 needs, the limit is 1,000");
    let fan: Vec<String> = (0..11).map(|i| format!("f{i}>{}", names[..1_000].join(","))).collect();
    let many = format!("{} {}", names[..1_000].join(" "), fan.join(" "));
    check(&chain(&many), "limit_exceeded tasks.f10.needs: this workflow has more than 10,000 needs in all");
    check("{}", "out_of_range tasks: `tasks` needs at least one step");
}

#[test]
fn t37_thousands_of_mistakes_are_reported_quickly() {
    let wrong: Vec<String> = (0..1_000).map(|i| format!("\"{}{i}\"", "x".repeat(70))).collect();
    let step = |i: usize| {
        format!(
            "\"{}{i}\":{{\"noop\":{{}},\"needs\":[{}]}}",
            "y".repeat(70),
            if i < 12 { wrong.join(",") } else { String::new() }
        )
    };
    let source = format!("{{\"name\":\"x\",\"tasks\":{{{}}}}}", (0..1_000).map(step).collect::<Vec<_>>().join(","));
    let problems = compiled(&source).unwrap_err();
    assert_eq!(problems.lines().count(), 1_001);
    assert!(problems.ends_with("there are 11000 more problems"), "{}", problems.lines().last().unwrap_or_default());
}
