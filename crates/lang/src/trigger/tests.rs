use super::*;
use crate::testing::compiled;
use crate::{Diagnostic, Syntax, read};
use serde_json::json;

fn brief(found: Vec<Diagnostic>) -> String {
    found.iter().map(|d| format!("{} {}", d.code, d.path)).collect::<Vec<_>>().join(", ")
}

fn requested(json: &Json) -> Result<TriggerRequest, String> {
    request(&read(json.to_string().as_bytes(), Syntax::Json).unwrap()).map_err(brief)
}

fn with_config(kind: &str, config: Json) -> Result<Spec, String> {
    requested(&json!({ "name": "t", "type": kind, "workflow": "w", "config": config })).map(|request| request.spec)
}

fn problems(kind: &str, config: Json) -> String {
    with_config(kind, config).err().unwrap_or_else(|| "ok".to_owned())
}

#[test]
fn a10_a_schedule_has_defaults_and_reads_back_from_what_is_stored() {
    let spec = with_config("schedule", json!({ "cron": "30 2 * * *" })).unwrap();
    let config = json!({
        "cron": "30 2 * * *", "timezone": "Etc/UTC", "missed": "latest", "missed_window": "1d", "overlap": "allow",
        "jitter": "0ms",
    });
    assert_eq!(spec.config(), config);
    assert_eq!(stored(TriggerKind::Schedule, &config.to_string()).unwrap().config(), config);
    let all = json!({
        "cron": "*/5 * * * 1-5", "timezone": "Europe/Berlin", "missed": "all", "missed_window": "3h",
        "overlap": "queue", "jitter": "90s",
    });
    assert_eq!(with_config("cron", all.clone()).unwrap().config(), all, "`cron` is another word for it");
}

#[test]
fn a_trigger_of_every_type_carries_an_input() {
    let input = json!({ "to": "ops@example.com", "n": [1, null] });
    for (kind, config) in [
        ("schedule", json!({ "cron": "30 2 * * *" })),
        ("webhook", json!({ "path": "p", "unsigned": true })),
        ("manual", json!({})),
    ] {
        let made = |config: &Json, input: &Json| {
            requested(&json!({ "name": "t", "type": kind, "workflow": "w", "config": config, "input": input }))
        };
        let spec = made(&config, &input).unwrap().spec;
        assert_eq!(spec.input(), Some(&input), "{kind}");
        assert_eq!(spec.shown().get("input"), None, "it is shown beside `config`");
        let stored = spec.config().to_string();
        assert_eq!(super::stored(spec.kind(), &stored).unwrap().input(), Some(&input), "{kind}");
        let current =
            CurrentTrigger { name: "t", kind: spec.kind(), workflow: "w", enabled: true, note: None, config: &stored };
        let changed = |patch: Json| {
            let tree = read(patch.to_string().as_bytes(), Syntax::Json).unwrap();
            change(&tree, &current).map(|request| request.spec.input().cloned()).map_err(brief)
        };
        assert_eq!(changed(json!({ "note": "n" })), Ok(Some(input.clone())));
        assert_eq!(changed(json!({ "input": "other" })), Ok(Some(json!("other"))));
        assert_eq!(changed(json!({ "input": null })), Ok(None));
        assert_eq!(made(&config, &Json::Null).unwrap_err(), "wrong_type input");
        assert_eq!(made(&config, &json!("x".repeat(INPUT_MAX))).unwrap_err(), "limit_exceeded input");
        let mut twice = config.clone();
        twice["input"] = json!(1);
        assert_eq!(made(&twice, &input).unwrap_err(), "exclusive_fields input");
    }
    let tasks = "name: x\ntasks: {a: {noop: {}}}\ntrigger: cron\ncron: '30 2 * * *'";
    let own = compiled(&format!("{tasks}\nschedule: {{input: {{to: a}}}}")).unwrap().trigger.unwrap();
    assert_eq!(own.input(), Some(&json!({ "to": "a" })));
}

#[test]
fn decision_16_fields_of_a_trigger_may_be_spelt_in_camel_case() {
    let made = json!({
        "name": "t", "type": "schedule", "workflowId": "w", "config": { "cron": "* * * * *", "missedWindow": "2h" },
    });
    let made = requested(&made).unwrap();
    assert_eq!((made.workflow.as_str(), &made.spec.config()["missed_window"]), ("w", &json!("2h")));
    let config = made.spec.config().to_string();
    let current = CurrentTrigger {
        name: "t",
        kind: TriggerKind::Schedule,
        workflow: "w",
        enabled: true,
        note: None,
        config: &config,
    };
    let changed = |patch: Json| {
        let tree = read(patch.to_string().as_bytes(), Syntax::Json).unwrap();
        change(&tree, &current).map(|request| request.spec.config()["missed_window"].clone()).map_err(brief)
    };
    assert_eq!(changed(json!({ "config": { "missedWindow": "3h" } })), Ok(json!("3h")));
    let both = json!({ "name": "t", "type": "manual", "workflow": "w", "workflowId": "w" });
    assert_eq!(requested(&both).unwrap_err(), "exclusive_fields workflowId");
}

#[test]
fn a18_equal_requests_are_one_delivery_for_a_while() {
    let window = |config: Json| with_config("webhook", config).map(|spec| spec.shown()["dedup_window"].clone());
    assert_eq!(window(json!({ "unsigned": true })), Ok(json!("10m")));
    assert_eq!(window(json!({ "unsigned": true, "dedup_window": "1h" })), Ok(json!("1h")));
    for (config, expected) in [
        (json!({ "unsigned": true, "dedup_window": "0s" }), "out_of_range config.dedup_window"),
        (json!({ "unsigned": true, "dedup_window": "8d" }), "out_of_range config.dedup_window"),
        (
            json!({ "unsigned": true, "dedup": "none", "dedup_window": "1h" }),
            "field_not_for_trigger config.dedup_window",
        ),
    ] {
        assert_eq!(window(config.clone()).unwrap_err(), expected, "{config}");
    }
    let stored = with_config("webhook", json!({ "unsigned": true, "dedup_window": "1h" })).unwrap().config();
    assert_eq!(super::stored(TriggerKind::Webhook, &stored.to_string()).unwrap().config(), stored);
}

#[test]
fn what_arrives_goes_over_the_input() {
    let input = json!({ "a": 1, "b": 2 });
    for (given, arrived, expected) in [
        (Some(&input), None, json!({ "a": 1, "b": 2 })),
        (Some(&input), Some(json!({ "b": 3 })), json!({ "a": 1, "b": 3 })),
        (Some(&input), Some(json!([])), json!([])),
        (None, Some(json!(7)), json!(7)),
        (None, None, json!({})),
    ] {
        assert_eq!(body(given, arrived), expected);
    }
}

#[test]
fn a10_an_invalid_schedule_is_refused() {
    for (config, expected) in [
        (json!({}), "missing_field config"),
        (json!({ "cron": "* * * * *" }), "ok"),
        (json!({ "cron": 5 }), "wrong_type config.cron"),
        (json!({ "cron": "60 * * * *" }), "invalid_cron config.cron"),
        (json!({ "cron": "0 0 30 2 *" }), "impossible_schedule config.cron"),
        (json!({ "cron": "* * * * *", "timezone": "Europe/Berlim" }), "unknown_timezone config.timezone"),
        (json!({ "cron": "* * * * *", "missed": "none" }), "invalid_value config.missed"),
        (json!({ "cron": "* * * * *", "overlap": "drop" }), "invalid_value config.overlap"),
        (json!({ "cron": "* * * * *", "jitter": "2h" }), "out_of_range config.jitter"),
        (json!({ "cron": "* * * * *", "missed_window": "32d" }), "out_of_range config.missed_window"),
        (json!({ "cron": "* * * * *", "missed": "all", "missed_max": 1001 }), "out_of_range config.missed_max"),
        (json!({ "cron": "* * * * *", "missed_max": 5 }), "invalid_value config.missed_max"),
        (json!({ "cron": "* * * * *", "tz": "Etc/UTC" }), "unknown_field config.tz"),
    ] {
        assert_eq!(problems("schedule", config.clone()), expected, "{config}");
    }
    let tree = read(
        br#"{"name":"t","type":"schedule","workflow":"w","config":{"cron":"1 1 1 1 1","timezone":"Europe/Berlim"}}"#,
        Syntax::Json,
    );
    let hint = request(&tree.unwrap()).unwrap_err()[0].hint.clone();
    assert_eq!(hint.as_deref(), Some("did you mean `Europe/Berlin`?"));
}

#[test]
fn a10_a_webhook_needs_a_secret_or_unsigned() {
    let secret = "sixteen chars ok";
    for (config, expected) in [
        (json!({ "path": "orders/new", "secret": secret }), "ok"),
        (json!({ "unsigned": true }), "ok"),
        (json!({ "path": "orders" }), "secret_required config"),
        (json!({ "unsigned": false }), "secret_required config"),
        (json!({ "secret": secret, "unsigned": true }), "exclusive_fields config.unsigned"),
        (json!({ "secret": "short" }), "invalid_secret config.secret"),
        (json!({ "secret": "whsec_not base64!" }), "invalid_secret config.secret"),
        (json!({ "secret": "whsec_YWJj" }), "invalid_secret config.secret"),
        (json!({ "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" }), "ok"),
        (json!({ "unsigned": true, "method": "post" }), "invalid_value config.method"),
        (json!({ "unsigned": true, "dedup": "always" }), "invalid_value config.dedup"),
        (json!({ "unsigned": true, "headers": { "X-A": "b" } }), "ok"),
        (json!({ "unsigned": true, "headers": { "X A": "b" } }), "invalid_header config.headers[\"X A\"]"),
        (json!({ "unsigned": true, "cron": "* * * * *" }), "unknown_field config.cron"),
    ] {
        assert_eq!(problems("webhook", config.clone()), expected, "{config}");
    }
    for bad in ["", "/a", "a/", "a//b", "A", "a b", "ä", "a.b", "..", &"x".repeat(201)] {
        assert_eq!(
            problems("webhook", json!({ "unsigned": true, "path": bad })),
            "invalid_webhook_path config.path",
            "{bad}"
        );
    }
    assert_eq!(problems("manual", json!({ "path": "x" })), "unknown_field config.path");
}

#[test]
fn a4_the_path_of_a_mapping_begins_with_the_payload() {
    let mapped = |path: &str| {
        requested(&json!({ "name": "t", "type": "webhook", "workflow": "w", "config": { "unsigned": true }, "variable_mapping": { "v": path } }))
            .map(|request| request.spec.config()["variable_mapping"]["v"].clone())
    };
    assert_eq!(mapped("$.a.b.c"), Ok(json!("$.a.b.c")));
    for bad in ["a.b.c", "$", "$.", "$.a..b", "$a", ""] {
        assert_eq!(mapped(bad), Err("invalid_mapping variable_mapping.v".to_owned()), "{bad}");
    }
    let schedule = json!({ "name": "t", "type": "schedule", "workflow": "w", "config": { "cron": "* * * * *" }, "variable_mapping": {} });
    assert_eq!(requested(&schedule).unwrap_err(), "field_not_for_trigger variable_mapping");
    assert_eq!(
        requested(&json!({ "nam": 1 })).unwrap_err(),
        "missing_field , missing_field , missing_field , unknown_field nam"
    );
}

#[test]
fn a_secret_is_stored_and_never_shown() {
    let config = json!({ "path": "p", "secret": "very secret", "headers": { "X-Token": "also secret" } });
    let spec = with_config("webhook", config).unwrap();
    assert_eq!(spec.config()["secret"], "very secret");
    let shown = spec.shown();
    assert!(!shown.to_string().contains("secret\":\"") && !shown.to_string().contains("also"), "{shown}");
    assert_eq!((&shown["has_secret"], &shown["headers"]), (&json!(true), &json!(["x-token"])));
    assert_eq!(stored(TriggerKind::Webhook, &spec.config().to_string()).unwrap().config(), spec.config());
}

#[test]
fn a_change_is_merged_into_the_stored_trigger() {
    let spec = with_config("webhook", json!({ "path": "p", "secret": "very secret" })).unwrap();
    let config = spec.config().to_string();
    let current = CurrentTrigger {
        name: "t",
        kind: TriggerKind::Webhook,
        workflow: "w",
        enabled: true,
        note: Some("n"),
        config: &config,
    };
    let changed =
        |patch: Json| change(&read(patch.to_string().as_bytes(), Syntax::Json).unwrap(), &current).map_err(brief);
    let same = changed(json!({})).unwrap();
    assert_eq!((same.spec.config(), same.note.as_deref(), same.enabled), (spec.config(), Some("n"), true));
    let moved = changed(json!({ "config": { "path": "q", "has_secret": true }, "note": null, "name": "u" })).unwrap();
    assert_eq!((moved.spec.config()["path"].as_str(), moved.note, moved.name.as_str()), (Some("q"), None, "u"));
    assert_eq!(moved.spec.config()["secret"], "very secret");
    let open = changed(json!({ "config": { "secret": null, "unsigned": true } })).unwrap();
    assert_eq!(open.spec.config()["secret"], Json::Null);
    for (patch, expected) in [
        (json!({ "type": "manual" }), "field_not_for_trigger type"),
        (json!({ "config": { "path": "/q" } }), "invalid_webhook_path config.path"),
        (json!({ "config": { "secret": null } }), "secret_required config"),
        (json!({ "config": 5 }), "wrong_type config"),
        (json!({ "nmae": "x" }), "unknown_field nmae"),
        (json!([]), "wrong_type "),
    ] {
        assert_eq!(changed(patch.clone()).unwrap_err(), expected, "{patch}");
    }
}

#[test]
fn r10_a_definition_has_its_own_schedule_or_webhook() {
    let tasks = "name: x\ntasks: {a: {noop: {}}}";
    let cron = compiled(&format!(
        "{tasks}\ntrigger: cron\ncron: '30 2 * * *'\ntimezone: Europe/Berlin\nschedule: {{missed: all, overlap: skip}}"
    ));
    let cron = cron.unwrap();
    let config = cron.trigger.unwrap().config();
    assert_eq!(
        (&config["cron"], &config["missed"], &config["overlap"]),
        (&json!("30 2 * * *"), &json!("all"), &json!("skip"))
    );
    assert_eq!(cron.meta.trigger, "cron");
    for (lines, expected) in [
        ("trigger: cron", "missing_field"),
        ("trigger: cron\ncron: '* * * *'", "invalid_cron"),
        ("cron: '* * * * *'", "field_not_for_trigger"),
        ("trigger: webhook", "missing_field"),
        ("trigger: webhook\nwebhook: {path: a}", "secret_required"),
        ("trigger: webhook\nwebhook: {unsigned: true, headers: {a: b}}", "unsupported_setting"),
        ("trigger: api\nwebhook: {unsigned: true}", "field_not_for_trigger"),
        ("trigger: cron\ncron: '* * * * *'\nschedule: {mised: all}", "unknown_field"),
    ] {
        let found = compiled(&format!("{tasks}\n{lines}")).unwrap_err();
        assert_eq!(found.split([' ', ':']).nth(2), Some(expected), "{lines}: {found}");
    }
}

#[test]
fn the_secret_of_a_definition_is_neither_stored_nor_hashed() {
    let source = |webhook: &str| {
        compiled(&format!("name: x\ntrigger: webhook\nwebhook: {{path: p, {webhook}}}\ntasks: {{a: {{noop: {{}}}}}}"))
            .unwrap()
    };
    let (one, other, kept) = (source("secret: very secret"), source("secret: another one"), source("has_secret: true"));
    assert_eq!(one.source["webhook"], json!({ "path": "p", "has_secret": true }));
    assert_eq!((one.hash, one.hash), (other.hash, kept.hash));
    let again = read(one.source.to_string().as_bytes(), Syntax::Json).unwrap();
    assert_eq!(crate::content_hash(&again), one.hash, "what is stored has the hash of what was sent");
    assert_ne!(source("unsigned: true").hash, one.hash);
    let Some(Spec::Webhook(webhook)) = kept.trigger else { panic!("a webhook") };
    assert!(webhook.keeps_secret && webhook.secret.is_none());
}
