use crate::testing::{check, check_step, compiled, steps};
use kernel::plan::{Join, OnError, Outcomes};

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
    let links = |i: u32| plan.node_at(i).links.iter().map(|l| (l.from, l.on)).collect::<Vec<_>>();
    assert_eq!(links(0), [(1, Outcomes::OK)]);
    assert_eq!(links(2), [(1, Outcomes::ANY), (0, Outcomes::ANY)]);
    assert_eq!(plan.layout().groups[0].nodes, [0, 1, 2]);
}

#[test]
fn header_names_in_paths_are_lower_case() {
    let plan = steps("a: {set: {x: '{{trigger.headers.X-Id}}'}}").unwrap().plan;
    let mut keys = Vec::new();
    if let Some(kernel::plan::Body::Set { values: Some(values) }) = &plan.node_at(0).body {
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

#[test]
fn m12_paths_reach_what_is_beside_and_around() {
    let definition = |inside: &str| {
        format!(
            "
list: {{noop: {{}}}}
each:
  needs: [list]
  loop:
    items: tasks.list.body.orders
    as: order
    tasks:
      charge: {{noop: {{}}}}
      hook: {{wait_for_webhook: {{}}}}
      pair:
        needs: [charge]
        group:
          tasks:
            x: {{noop: {{}}}}
            y: {{needs: [x], set: {{v: '{inside}'}}}}
again: {{loop: {{while: 'index < 3', tasks: {{z: {{noop: {{}}}}, far: {{wait_for_webhook: {{}}}}}}}}}}
call: {{wait_for_webhook: {{}}}}
other: {{noop: {{}}}}"
        )
    };
    let at = "tasks.each.loop.tasks.pair.group.tasks.y.set.v";
    for (path, expected) in [
        ("tasks.x.body", "ok"),
        ("tasks.charge.status", "ok"),
        ("tasks.list.body.a", "ok"),
        ("order.id", "ok"),
        ("index", "ok"),
        ("trigger.body", "ok"),
        ("wait.hook.url", "ok"),
        ("wait.call.url", "ok"),
        ("tasks.y.body", "not_an_ancestor: `y` reads its own result, which does not exist before it ends"),
        ("tasks.pair.body", "not_an_ancestor: `pair` has no result before the steps inside of it end"),
        ("tasks.each.body", "not_an_ancestor: `each` has no result before the steps inside of it end"),
        (
            "tasks.other.body",
            "not_an_ancestor: `each` reads `tasks.other`, but does not need it (add `other` to the `needs` of `each`)",
        ),
        (
            "tasks.z.body",
            "not_in_scope: `z` is inside of `again`, and can only be read there (read `tasks.again.body`, the result of `again`)",
        ),
        ("wait.far.url", "not_in_scope: `far` is inside of `again`, and can only be read there"),
        ("item.id", "unknown_root: the items of this loop are called `order`"),
        (
            "last.n",
            "unknown_root: `last` has a meaning only in a loop with `while`, whose iterations follow each other",
        ),
        ("index.x", "path_too_long: `index` is a plain value and has nothing inside"),
        ("ordr.id", "unknown_root: a path cannot begin with `ordr` (did you mean `order`?)"),
        ("tasks.pair.errors", "not_an_ancestor: `pair` has no result before the steps inside of it end"),
        ("tasks.x.errors", "unknown_task_field: `x` is no group and no loop (read `error`)"),
    ] {
        let found = match steps(&definition(&format!("{{{{{path}}}}}"))) {
            Ok(_) => "ok".to_owned(),
            Err(text) => text.split_once(' ').unwrap().1.replace(&format!(" {at}"), ""),
        };
        assert_eq!(found, expected, "{path}");
    }
}

#[test]
fn m10_m13_groups_and_loops_lower_to_groups_of_nodes() {
    let plan = steps(
        "
a: {loop: {items: [1, '{{trigger.body.x}}'], concurrency: 3, on_error: continue, output: '{{tasks.c.body}}', tasks: {b: {noop: {}}, c: {needs: [b], noop: {}}}}}
d: {needs: {any: [a]}, group: {on_error: finish, concurrency: 2, tasks: {e: {loop: {while: last.go, tasks: {f: {noop: {}}}}}}}}",
    )
    .unwrap()
    .plan;
    let keys: Vec<&str> = plan.nodes().iter().map(|node| node.key.as_str()).collect();
    assert_eq!(keys, ["a", "d", "b", "c", "e", "f"], "the root group comes first");
    let groups: Vec<&[u32]> = plan.layout().groups.iter().map(|group| group.nodes.as_slice()).collect();
    assert_eq!(groups, [&[0, 1][..], &[2, 3], &[4], &[5]]);
    let repeat = plan.node_at(0).repeat().unwrap();
    assert_eq!((repeat.concurrency, repeat.max_iterations, repeat.name.as_str()), (3, 10_000, "item"));
    assert_eq!((repeat.body.on_error, repeat.body.output.is_some()), (OnError::Continue, true));
    assert!(repeat.list.is_some() && repeat.items.is_none() && repeat.condition.is_none());
    let repeat = plan.node_at(4).repeat().unwrap();
    assert_eq!((repeat.concurrency, repeat.max_iterations, repeat.name.as_str()), (1, 1_000, ""));
    let inner = plan.node_at(1).inner().unwrap();
    assert_eq!((inner.group, inner.on_error, inner.concurrency), (2, OnError::Finish, 2));
    assert_eq!((plan.node_at(1).join, plan.node_at(1).links[0].on), (Join::Any, Outcomes::OK));
    assert_eq!(plan.node_at(3).links[0].from, 2, "links name nodes of the whole plan");
}

#[test]
fn m5_m13_m14_what_groups_and_loops_refuse() {
    check_step(&[
        ("loop: {items: trigger.body.l, tasks: {a: {noop: {}}}}", "ok"),
        ("loop: {tasks: {a: {noop: {}}}}", "missing_field tasks.s.loop"),
        ("loop: {items: trigger.body.l}", "missing_field tasks.s.loop"),
        ("loop: {items: trigger.body.l, tasks: {}}", "out_of_range tasks.s.loop.tasks"),
        (
            "loop: {items: trigger.body.l, while: 'index < 1', tasks: {a: {noop: {}}}}",
            "exclusive_fields tasks.s.loop.while",
        ),
        ("loop: {items: '{{trigger.body.l}}', tasks: {a: {noop: {}}}}", "template_in_condition tasks.s.loop.items"),
        ("loop: {items: 3, tasks: {a: {noop: {}}}}", "wrong_type tasks.s.loop.items"),
        (
            "loop: {while: 'index < 1', concurrency: 2, tasks: {a: {noop: {}}}}",
            "unsupported_setting tasks.s.loop.concurrency",
        ),
        ("loop: {while: 'item < 1', tasks: {a: {noop: {}}}}", "unknown_root tasks.s.loop.while"),
        ("loop: {items: index, tasks: {a: {noop: {}}}}", "unknown_root tasks.s.loop.items"),
        ("loop: {items: trigger.body, as: tasks, tasks: {a: {noop: {}}}}", "invalid_value tasks.s.loop.as"),
        ("loop: {items: trigger.body, as: a b, tasks: {a: {noop: {}}}}", "invalid_value tasks.s.loop.as"),
        ("loop: {while: 'true', as: x, tasks: {a: {noop: {}}}}", "invalid_value tasks.s.loop.as"),
        (
            "loop: {items: trigger.body, concurrency: 1001, tasks: {a: {noop: {}}}}",
            "out_of_range tasks.s.loop.concurrency",
        ),
        (
            "loop: {items: trigger.body, max_iterations: 10001, tasks: {a: {noop: {}}}}",
            "out_of_range tasks.s.loop.max_iterations",
        ),
        (
            "loop: {items: trigger.body, on_error: ignore, tasks: {a: {noop: {}}}}",
            "invalid_value tasks.s.loop.on_error",
        ),
        (
            "loop: {items: trigger.body, steps: {a: {noop: {}}}}",
            "missing_field tasks.s.loop, unknown_field tasks.s.loop.steps",
        ),
        ("loop: {items: trigger.body, tasks: {s: {noop: {}}}}", "duplicate_step tasks.s.loop.tasks.s"),
        (
            "loop: {items: trigger.body, tasks: {a: {needs: [s], noop: {}}}}",
            "needs_unknown_step tasks.s.loop.tasks.a.needs[0]",
        ),
        ("loop: {items: trigger.body, output: '{{tasks.a.body}}', tasks: {a: {noop: {}}}}", "ok"),
        ("loop: {items: trigger.body, tasks: {a: {noop: {}}}}, retries: 2", "field_not_for_kind tasks.s.retries"),
        ("group: {tasks: {a: {noop: {}}}, items: trigger.body}", "unknown_field tasks.s.group.items"),
        ("group: []", "wrong_type tasks.s.group"),
        ("noop: {}, needs: {any: []}", "out_of_range tasks.s.needs.any"),
        ("noop: {}, needs: {all: [s]}", "wrong_type tasks.s.needs"),
    ]);
    let nested = |depth: usize| {
        let open: String = (0..depth).map(|i| format!("g{i}: {{group: {{tasks: {{")).collect();
        format!("{open}a: {{noop: {{}}}}{}", "}}}".repeat(depth))
    };
    assert!(steps(&nested(16)).is_ok());
    assert!(steps(&nested(17)).unwrap_err().contains("groups and loops may be nested 16 deep"));
}

#[test]
fn m12_hints_say_where_a_need_belongs() {
    check(
        "a: {noop: {}}\ng: {group: {tasks: {b: {noop: {}, needs: [a]}, c: {noop: {}}}}}\nd: {noop: {}, needs: [b]}",
        "needs_unknown_step tasks.g.group.tasks.b.needs[0]: `b` needs `a`, which is in another group (let `g` need it)
         needs_unknown_step tasks.d.needs[0]: `d` needs `b`, which is in another group (need `g`, which it is inside of)",
    );
}

#[test]
fn a_workflow_has_an_output() {
    let of = |output: &str| {
        compiled(&format!(
            "name: w\noutput: {output}\ntasks: {{a: {{noop: {{}}}}, g: {{group: {{tasks: {{b: {{noop: {{}}}}}}}}}}}}"
        ))
    };
    assert!(of("{n: '{{tasks.a.body.n}}', g: '{{tasks.g.body}}'}").unwrap().plan.layout().output.is_some());
    assert!(of("'{{tasks.b.body}}'").unwrap_err().contains("not_in_scope output: `b` is inside of `g`"));
    assert!(of("'{{tasks.c.body}}'").unwrap_err().contains("unknown_step output"));
}
