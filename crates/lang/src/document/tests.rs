use crate::testing::compiled;
use kernel::plan::{Form, Verdict};
use kernel::time::Span;

const TASKS: &str = "tasks: {a: {noop: {}}}";

/// The problems of a definition with these top-level lines and one valid step, without their positions.
fn problems(lines: &str) -> String {
    match compiled(&format!("{TASKS}\n{lines}")) {
        Ok(_) => "ok".to_owned(),
        Err(text) => text.lines().map(|l| l.split_once(' ').map_or(l, |(_, l)| l)).collect::<Vec<_>>().join("\n"),
    }
}

fn code(lines: &str) -> String {
    let found = problems(lines);
    found.split([' ', ':']).next().unwrap_or_default().to_owned()
}

#[test]
fn r9_a_definition_has_defaults() {
    let compiled = compiled(&format!("name: ' plain '\n{TASKS}")).unwrap();
    assert_eq!(compiled.meta.name, "plain");
    assert!(compiled.meta.enabled && compiled.meta.tags.is_empty() && compiled.meta.slug.is_none());
    assert_eq!(compiled.meta.trigger, "api");
    assert_eq!(compiled.form, Form::Graph);
    assert_eq!(compiled.plan.layout().max_duration, Span::from_secs(2_592_000));
    assert_eq!(compiled.plan.verdict(), Verdict::Unhandled);
}

#[test]
fn descriptive_fields_are_read() {
    let source = "name: Order flow\nslug: order-flow\ndescription: d\ntags: [x, y]\nenabled: false\nversion: '7'\ntrigger: manual\n\
                  max_duration: 2h\nfail_when: blocked";
    let compiled = compiled(&format!("{source}\n{TASKS}")).unwrap();
    let meta = &compiled.meta;
    assert_eq!((meta.slug.as_deref(), meta.description.as_deref()), (Some("order-flow"), Some("d")));
    assert_eq!((meta.tags.len(), meta.enabled, meta.trigger.as_str()), (2, false, "manual"));
    assert_eq!(compiled.plan.layout().max_duration, Span::from_secs(7_200));
    assert_eq!(compiled.plan.verdict(), Verdict::Blocked);
    let keys: Vec<&String> = compiled.source.as_object().unwrap().keys().collect();
    assert_eq!(keys[..3], ["name", "slug", "description"], "the author's order");
}

#[test]
fn t18_names_are_visible_and_have_a_limit() {
    let long = "é".repeat(80);
    for good in ["a", "Order flow №1", "日本", &long] {
        assert_eq!(problems(&format!("name: \"{good}\"")), "ok");
    }
    for bad in [
        "",
        "   ",
        &format!("{long}x"),
        "a\\0b",
        "a\\nb",
        "a\\u202eb",
        "a\\u2066b",
        "a\\x7fb",
        "a\\u200bb",
        "a\\u200db",
        "a\\u200fb",
        "a\\ufeffb",
        "a\\u2060b",
        "a\\u061cb",
        "a\\u00adb",
        "a\\U000e0041b",
        "\\u3164",
    ] {
        assert_eq!(code(&format!("name: \"{bad}\"")), "invalid_name", "{bad}");
    }
    assert_eq!(problems("name: 5"), "wrong_type name: `name` must be a text, found a number");
    assert_eq!(problems("slug: x"), "missing_field: a definition needs a field `name`");
}

#[test]
fn t18_names_are_composed() {
    let composed = |name: &str| compiled(&format!("name: \"{name}\"\ntags: [\"{name}\"]\n{TASKS}")).unwrap().meta;
    let meta = composed("Cafe\\u0301");
    assert_eq!((meta.name.as_str(), meta.tags[0].as_str()), ("Caf\u{e9}", "Caf\u{e9}"));
    assert_eq!(composed("Caf\\u00e9").name, meta.name);
    assert_eq!(problems(&format!("name: \"{}\"", "e\\u0301".repeat(80))), "ok", "the composed name is counted");
}

#[test]
fn every_problem_is_reported_in_the_first_round() {
    let found = problems(
        "name: \"\"\nslug: A b\ntimeout: 5m\ntrigger: cron\ncron: nonsense\nschedule: daily\ntags: [\"\"]\nmax_duration: -1s",
    );
    let codes: Vec<&str> = found.lines().map(|l| l.split([' ', ':']).next().unwrap()).collect();
    for code in ["invalid_name", "invalid_slug", "unknown_field", "invalid_cron", "wrong_type", "invalid_value"] {
        assert!(codes.contains(&code), "{code}: {found}");
    }
}

#[test]
fn a_timeout_of_the_workflow_is_called_max_duration() {
    let tree = crate::read(format!("name: x\ntimeout: 5m\n{TASKS}").as_bytes(), crate::Syntax::Yaml).unwrap();
    let problem = crate::compile(&tree).unwrap_err().remove(0);
    assert_eq!((problem.code, problem.hint.as_deref()), ("unknown_field", Some("write `max_duration`")));
}

#[test]
fn fields_are_checked_one_by_one() {
    for (line, expected) in [
        ("slug: a", "ok"),
        ("slug: A", "invalid_slug"),
        ("slug: -a", "invalid_slug"),
        ("slug: ''", "invalid_slug"),
        ("tags: []", "ok"),
        ("tags: x", "wrong_type"),
        ("tags: [1]", "wrong_type"),
        ("tags: ['']", "invalid_value"),
        ("tags: [a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a]", "limit_exceeded"),
        ("enabled: yes", "wrong_type"),
        ("version: 1", "wrong_type"),
        ("description: null", "wrong_type"),
        ("trigger: api", "ok"),
        ("trigger: cron", "missing_field"),
        ("trigger: webhook", "missing_field"),
        ("trigger: carrier-pigeon", "invalid_value"),
        ("trigger: {type: manual}", "wrong_type"),
        ("max_duration: 366d", "ok"),
        ("max_duration: 60", "ok"),
        ("max_duration: 367d", "out_of_range"),
        ("max_duration: 0s", "out_of_range"),
        ("max_duration: soon", "invalid_duration"),
        ("max_duration_seconds: 31622400", "ok"),
        ("max_duration_seconds: 0", "out_of_range"),
        ("max_duration_seconds: 31622401", "out_of_range"),
        ("max_duration_seconds: 1.5", "wrong_type"),
        ("max_duration_seconds: 5\nmax_duration: 5s", "exclusive_fields"),
        ("on_failure: blocked", "ok"),
        ("on_failure: lenient", "invalid_value"),
        ("cron: '* * * * *'", "field_not_for_trigger"),
        ("priority: 5", "unsupported_setting"),
        ("steps: []", "exclusive_fields"),
        ("steps: {}", "exclusive_fields"),
        ("variables: {}", "unsupported_setting"),
        ("script: x", "unsupported_form"),
        ("nmae: x", "unknown_field"),
    ] {
        assert_eq!(code(&format!("name: x\n{line}")), expected, "{line}");
    }
    assert_eq!(
        problems("name: x\ntriger: api"),
        "unknown_field triger: there is no field `triger` (did you mean `trigger`?)"
    );
}

#[test]
fn other_forms_are_refused() {
    for form in ["steps: {a: {task: x}}\ntransitions: []", "script: 'x'"] {
        let found = compiled(&format!("name: x\n{form}")).unwrap_err();
        assert!(found.lines().all(|l| l.contains(" unsupported_form ")), "{found}");
    }
    assert_eq!(compiled("name: x").unwrap_err(), "1:1 missing_field: a definition needs a field `tasks` or `steps`");
    for source in ["[]", "1", "x", "null"] {
        assert!(compiled(source).unwrap_err().contains("wrong_type: a definition must be an object"));
    }
}

#[test]
fn d9_whole_numbers_from_2_53_on_are_refused_everywhere() {
    for (number, good) in [
        ("9007199254740991", true),
        ("-9007199254740991", true),
        ("9007199254740992", false),
        ("9007199254740993", false),
        ("-9007199254740993", false),
        ("1e300", false),
        ("1e999", false),
        ("123456789012345678901234567890", false),
        ("0.1", true),
        ("1e-300", true),
    ] {
        let source = format!(r#"{{"name":"x","tasks":{{"a":{{"set":{{"n":[{number}]}}}}}}}}"#);
        let outcome = compiled(&source).map(|_| ());
        assert_eq!(outcome.is_ok(), good, "{number}");
        if let Err(text) = outcome {
            assert!(text.contains("number_too_large tasks.a.set.n[0]"), "{text}");
        }
    }
    let found = compiled("name: x\ntasks: {a: {noop: {}, if: trigger.body.n == 9007199254740993}}").unwrap_err();
    assert!(found.contains("number_too_large tasks.a.if"), "{found}");
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_text() {
    let source = r#"{
  "name": "",
  "trigger": "cron",
  "tasks": {
    "a": { "url": "nope", "retries": 500 },
    "b": { "needs": ["A"], "if": "tasks.a.status ==", "sleep": "1w" }
  },
  "max_duratoin": 5
}"#;
    assert_eq!(
        compiled(source).unwrap_err(),
        "2:11 invalid_name name: `name` is empty\n\
         3:14 missing_field trigger: `trigger: cron` needs a field `cron`\n\
         5:20 invalid_url tasks.a.url: `url` must start with `http://` or `https://` (write the whole url: `https://example.com/path`)\n\
         5:38 out_of_range tasks.a.retries: `retries` is 500, allowed is 0 to 100\n\
         6:22 needs_unknown_step tasks.b.needs[0]: `b` needs `A`, which is not a step of this workflow (did you mean `a`?)\n\
         6:52 expression_syntax tasks.b.if: the expression ends where a value is expected\n\
         6:64 invalid_duration tasks.b.sleep: `sleep` must be a duration, found `1w` (write a count and a unit such as `500ms`, `30s`, `5m`, `2h` or `1d`, or a whole number of seconds)\n\
         8:3 unknown_field max_duratoin: there is no field `max_duratoin` (did you mean `max_duration`?)"
    );
}

mod hash {
    use super::*;

    fn hash(source: &str) -> [u8; 32] {
        compiled(source).unwrap_or_else(|problems| panic!("{problems}")).hash
    }

    const BASE: &str = r#"{"name": "x", "tasks": {"a": {"url": "https://h", "body": {"n": 1, "m": [true, null]}}, "b": {"sleep": 5}}}"#;

    #[test]
    fn d9_formatting_does_not_change_the_hash() {
        for same in [
            r#"{"tasks":{"b":{"sleep":5},"a":{"body":{"m":[true,null],"n":1.0},"url":"https:\/\/h"}},"name":"x"}"#,
            "name: x\ntasks:\n  b: {sleep: 5}\n  a:\n    url: https://h\n    body:\n      n: 1\n      m: [true, ~]\n",
            r#"{"name": "other", "slug": "s", "description": "d", "tags": ["t"], "enabled": false, "version": "9",
                "tasks": {"a": {"url": "https://h", "body": {"n": 1, "m": [true, null]}}, "b": {"sleep": 5}}}"#,
        ] {
            assert_eq!(hash(same), hash(BASE), "{same}");
        }
    }

    #[test]
    fn d9_meaning_changes_the_hash() {
        for (from, to) in [
            ("\"n\": 1", "\"n\": 2"),
            ("\"n\": 1", "\"n\": \"1\""),
            ("\"n\": 1", "\"name\": 1"),
            ("true, null", "null, true"),
            ("https://h", "https://i"),
            ("\"b\"", "\"c\""),
            ("\"sleep\": 5", "\"sleep\": \"5s\""),
            ("\"name\": \"x\"", "\"name\": \"x\", \"trigger\": \"manual\""),
            ("\"name\": \"x\"", "\"name\": \"x\", \"max_duration\": 5"),
        ] {
            assert_ne!(hash(&BASE.replace(from, to)), hash(BASE), "{from} → {to}");
        }
    }
}
