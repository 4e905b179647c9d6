//! The cases of table A.2, and more.

use super::*;
use crate::scope::tests::{fixture, resolve};

fn truth_of(text: &str) -> Option<bool> {
    let expr = parse(text, &mut resolve).ok()?;
    assert_eq!(wire::Message::decode(&wire::Message::encode(&expr)), Ok(expr.clone()), "stored form of {text}");
    Some(truth(&expr, &fixture(), &mut Vec::new()).unwrap())
}

#[test]
fn a2_r44_r45_conditions() {
    for (text, expected) in [
        ("tasks.a.status_code == 200", true),
        ("tasks.a.status_code != 200", false),
        ("tasks.a.status_code >= 400", false),
        ("tasks.a.body.approved == true", true),
        ("tasks.a.body.s == 'paid'", true),
        ("tasks.a.body.s == \"paid\"", true),
        ("tasks.a.body.n > 6", true),
        ("tasks.a.body.n < 7", false),
        ("tasks.a.body.n <= 7", true),
        ("tasks.sk.status == 'skipped'", true),
        ("tasks.sk.status_code == 200", false),
        ("tasks.sk.status_code != 200", true),
        ("tasks.a.body.missing == 1", false),
        ("tasks.a.body.z == null", true),
        ("tasks.a.body.s > 5", false),
        ("tasks.a.body.n == '7'", false),
        ("tasks.a.status_code == 200 && tasks.a.body.n > 6", true),
        ("(tasks.a.body.n == 7)", true),
        ("200 == tasks.a.status_code", true),
        // not in the table
        ("tasks.a.body.list[0].k == 1", true),
        ("tasks.a.body.list.0.k == 1", true),
        ("tasks.a.body.list[3].k == null", true),
        ("tasks.a.body.missing", false),
        ("tasks.a.body.approved", true),
        ("!tasks.a.body.z", true),
        ("!(tasks.a.body.n == 8) && !false", true),
        ("tasks.a.body.n == 8 || tasks.a.body.s == 'paid'", true),
        ("false || false && true", false),
        ("'paid' in trigger.body.o.words", true),
        ("'ai' in tasks.a.body.s", true),
        ("'k' in trigger.body.o", true),
        ("7 in tasks.a.body.n", false),
        ("tasks.a.body.n == 7.0", true),
        ("tasks.a.body.n > -1e3", true),
        ("tasks.a.status == 'success'", true),
        ("tasks.a.status == 'succeeded'", true),
        ("'completed' == tasks.a.status", true),
        ("tasks.a.status != 'received'", false),
        ("tasks.a.body.s == 'it\\'s'", false),
        ("trigger.headers.X-A == 'b'", true),
        // defaults
        ("tasks.a.body.missing ?? 5 == 5", true),
        ("tasks.a.body.z ?? 'none' == 'none'", true),
        ("tasks.a.body.n ?? 0 > 6", true),
        ("0 < tasks.a.body.missing ?? tasks.sk.body.x ?? tasks.a.body.n", true),
        ("tasks.a.body.missing ?? tasks.sk.body.x", false),
        ("trigger.body.missing??true", true),
        ("!(tasks.a.body.missing ?? (1 == 2))", true),
        ("false ?? true", false),
    ] {
        assert_eq!(truth_of(text), Some(expected), "{text}");
    }
}

#[test]
fn a2_invalid_expressions_are_refused() {
    for text in [
        "",
        "tasks.a.status_code == ",
        "tasks.a..b == 1",
        "== 200",
        "tasks.nope.status == 'x'",
        "a = 1",
        "1 == 2 == 3",
        "(1",
        "1)",
        "'open",
        "tasks.a.status_code === 200",
        "1 &",
        "{{trigger.body.id}} == 1",
        "- 1",
        "1.2.3 == 1",
        "'\\q'",
        "tasks.a.body.n ??",
        "?? 1",
        "tasks.a.body.n ?? == 1",
        "tasks.a.body.n ? 1",
    ] {
        assert_eq!(truth_of(text), None, "{text}");
    }
    assert_eq!(truth_of(&"(".repeat(3000)), None);
    assert_eq!(truth_of(&"!".repeat(4000)), None);
    assert_eq!(truth_of(&format!("'{}'", "x".repeat(LEN_MAX))), None);
}

#[test]
fn all_unknown_steps_are_reported_with_their_positions() {
    let problems = parse("tasks.nope.status == 'x' && tasks.neither.status", &mut resolve).unwrap_err();
    assert_eq!(problems.iter().map(|p| p.at).collect::<Vec<_>>(), [6, 34]);
}

#[test]
fn a_text_without_quotes_and_a_function_get_a_hint_and_hide_nothing() {
    let hints = |text: &str| {
        let problems = parse(text, &mut resolve).unwrap_err();
        problems.iter().map(|p| p.hint.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(hints("tasks.a.status == failed"), ["a text needs quotes: `'failed'`"]);
    assert_eq!(hints("failed != tasks.a.status && tasks.nope.ok").len(), 2);
    assert_eq!(hints("failed != tasks.a.status")[0], "a text needs quotes: `'failed'`");
    assert!(!hints("failed")[0].contains("quotes"), "it is not compared");
    let problems = parse("len(tasks.a.body.list[0]) > (1) && tasks.nope.ok", &mut resolve).unwrap_err();
    assert_eq!(problems.iter().map(|p| p.at).collect::<Vec<_>>(), [0, 41], "{problems:?}");
    assert_eq!(problems[0].message, "there is no function `len`");
    assert!(problems[0].hint.as_deref().is_some_and(|hint| hint.contains("no functions")));
    let problems = parse("max(1, tasks.nope.ok) > now()", &mut resolve).unwrap_err();
    assert_eq!(problems.iter().map(|p| p.at).collect::<Vec<_>>(), [0, 13, 24], "its arguments are read too");
    assert_eq!(hints("len(tasks.a.body").len(), 2, "it is not closed");
    assert!(parse(&"f(".repeat(2_000), &mut resolve).is_err());
}

#[test]
fn values_read_are_recorded_once_and_truncated() {
    let expr = parse("tasks.a.body.n > 6 && tasks.a.body.n < 9 && trigger.body.long != ''", &mut resolve).unwrap();
    let mut seen = Vec::new();
    assert!(truth(&expr, &fixture(), &mut seen).unwrap());
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[0].path.as_str(), seen[0].value.as_str()), ("tasks.a.body.n", "7"));
    assert!(seen[1].value.len() <= SEEN_MAX && seen[1].value.ends_with('…'));
}

#[test]
fn whole_numbers_compare_exactly() {
    let big = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert!(!equal(&big("9007199254740993"), &big("9007199254740992")));
    assert!(equal(&big("1e2"), &big("100")));
}
