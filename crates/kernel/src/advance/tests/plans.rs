//! Plans as text.

use super::*;

/// `"a; b: a; c: a, b if tasks.a.status == 'success'"`; a name may carry a kind: `nap@sleep: a`.
pub(super) fn plan_of(text: &str) -> Plan {
    nested_plan(&[("", text)])
}

/// A plan with groups: after the root group, the steps inside of other steps, each list with the name of the step around
/// it. `a: any b, c` starts at the first link that is taken.
pub(super) fn nested_plan(groups: &[(&str, &str)]) -> Plan {
    let lines_of = |text: &str| -> Vec<String> {
        text.split(';').map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let head = |l: &str| l.split([':', ' ']).next().unwrap_or_default().to_owned();
    let lines: Vec<(usize, String)> =
        groups.iter().enumerate().flat_map(|(i, (_, text))| lines_of(text).into_iter().map(move |l| (i, l))).collect();
    let names: Vec<String> =
        lines.iter().map(|(_, l)| head(l).split('@').next().unwrap_or_default().to_owned()).collect();
    let find = |name: &str| names.iter().position(|n| n == name).expect(name) as u32;
    let mut nodes = Vec::new();
    for ((group, line), name) in lines.iter().zip(&names) {
        // The innermost loop around the step.
        let mut around = groups[*group].0;
        while !around.is_empty()
            && !lines[find(around) as usize].1.contains("each=")
            && !lines[find(around) as usize].1.contains("while=")
        {
            around = groups[lines[find(around) as usize].0].0;
        }
        let mut resolve =
            |raw: &path::RawPath<'_>| Ok(reference(raw, &find, if line.contains("while=") { name } else { around }));
        let (line, guard) = line.split_once(" if ").map_or((line.as_str(), None), |(l, g)| (l, Some(g)));
        let on = if guard.is_some() { Outcomes::ANY } else { Outcomes::OK };
        let needs = line.split_once(": ").map_or("", |(_, n)| n);
        let (join, needs) = needs.strip_prefix("any ").map_or((Join::All, needs), |needs| (Join::Any, needs));
        let needs = needs.split(',').map(str::trim).filter(|n| !n.is_empty());
        let kind = line.split(": ").next().unwrap_or_default().split_once('@').map_or("http", |(_, k)| k).to_owned();
        nodes.push(Node {
            key: name.clone(),
            group: *group as u32,
            join,
            links: needs.map(|n| Link { from: find(n), on, ..Default::default() }).collect(),
            guard: guard.map(|text| Guard {
                expr: Some(expr::parse(text, &mut resolve).expect(text)),
                text: text.into(),
                ..Default::default()
            }),
            body: Some(body_of(&kind, &mut resolve)),
            retry: match kind.as_str() {
                "http" => Retry { max_attempts: 3, min: Span::from_secs(10), ..Default::default() },
                kind if kind.starts_with("task") => Retry {
                    max_attempts: 3,
                    backoff: Backoff::Quadratic,
                    min: Span::from_secs(60),
                    jitter: 100,
                    ..Default::default()
                },
                "once" => Retry { max_attempts: 1, never: true, ..Default::default() },
                _ => Retry { max_attempts: 1, ..Default::default() },
            },
            ..Default::default()
        });
    }
    for (number, (around, _)) in groups.iter().enumerate().skip(1) {
        match nodes[find(around) as usize].body.as_mut() {
            Some(Body::Group { group }) => group.group = number as u32,
            Some(Body::Loop { repeat }) => repeat.body.group = number as u32,
            other => panic!("{other:?} holds no steps"),
        }
    }
    let group = |number: usize| Group {
        nodes: (0..lines.len() as u32).filter(|node| lines[*node as usize].0 == number).collect(),
        verdict: Verdict::Unhandled,
        ..Default::default()
    };
    let groups = (0..groups.len()).map(group).collect();
    let max_duration = Span::from_days(30);
    Plan::new(Layout { nodes, groups, max_duration, ..Default::default() }).expect("a plan")
}

pub(super) fn reference(raw: &path::RawPath<'_>, find: &dyn Fn(&str) -> u32, around: &str) -> path::Ref {
    let names: Vec<&str> = raw.segments.iter().map(|s| s.name.as_str()).collect();
    let keys = |n: usize| names[n..].iter().map(|s| (*s).to_owned()).collect();
    let text = raw.text.to_owned();
    match names[0] {
        "trigger" => path::Ref { root: path::Root::TriggerBody, keys: keys(2), text, ..Default::default() },
        "item" | "index" | "last" => {
            let root = path::Root::parse(names[0]).expect(names[0]);
            path::Ref { root, node: find(around), keys: keys(1), text, ..Default::default() }
        }
        "variables" => path::Ref { root: path::Root::Variables, keys: keys(1), text, ..Default::default() },
        "outputs" => lists::output_path(&names, text),
        "wait" => path::Ref { root: path::Root::WaitUrl, node: find(names[1]), text, ..Default::default() },
        _ => {
            let field = path::TaskField::parse(names[2]).expect(names[2]);
            path::Ref { root: path::Root::Task, node: find(names[1]), field, keys: keys(3), text, ..Default::default() }
        }
    }
}

pub(super) fn body_of(kind: &str, resolve: &mut path::Resolve<'_>) -> Body {
    let mut parts = |text: &str| template::parse_text(text, resolve).expect(text);
    match kind.split_once('=').unwrap_or((kind, "")) {
        ("http", body) => Body::Http {
            request: Box::new(Http {
                method: "POST".into(),
                url: parts("http://h/"),
                body: (!body.is_empty()).then(|| Template::from_parts(parts(body))),
                ..Default::default()
            }),
        },
        ("noop", _) | ("once", _) => Body::Noop {},
        ("sleep", span) => Body::Sleep { span: Span::parse(span).unwrap_or(Span::from_secs(60)) },
        ("wait", "") => Body::Webhook { timeout: Some(Span::from_secs(60)) },
        ("wait", _) => Body::Webhook { timeout: None },
        ("set", text) => Body::Set { values: Some(Template::from_parts(parts(text))) },
        ("task", input) => Body::Task {
            task: Box::new(TaskBody {
                name: "work.v1".into(),
                input: (!input.is_empty()).then(|| Template::from_parts(parts(input))),
                ..Default::default()
            }),
        },
        ("signal", name) => Body::Signal { name: name.into(), timeout: Some(Span::from_secs(60)) },
        ("approval", prompt) => Body::Approval {
            approval: Box::new(ApprovalBody {
                prompt: parts(prompt),
                timeout: Some(Span::from_secs(60)),
                ..Default::default()
            }),
        },
        ("pause", _) => Body::Pause { timeout: Some(Span::from_secs(60)) },
        ("child", workflow) => {
            Body::Child { child: Box::new(ChildBody { workflow: parts(workflow), ..Default::default() }) }
        }
        ("group", _) => Body::Group { group: GroupBody::default() },
        ("each", items) => Body::Loop {
            repeat: Box::new(Repeat {
                items: Some(expr::parse(items, resolve).expect(items)),
                max_iterations: 1_000,
                ..Default::default()
            }),
        },
        ("while", condition) => Body::Loop {
            repeat: Box::new(Repeat {
                condition: Some(Guard {
                    expr: Some(expr::parse(condition, resolve).expect(condition)),
                    text: condition.into(),
                    ..Default::default()
                }),
                max_iterations: 1_000,
                ..Default::default()
            }),
        },
        ("later", _) => Body::Unknown { number: 99, bytes: Bytes::new() },
        other => panic!("{other:?}"),
    }
}
