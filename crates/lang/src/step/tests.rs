use crate::testing::{check, check_step, steps};
use kernel::plan::{Backoff, Body, Http, Level, Retry, StatusRange, TaskBody};
use kernel::template::Template;
use kernel::time::Span;

const U: &str = "url: 'https://h/x'";

fn first(fields: &str) -> kernel::plan::Node {
    let compiled = steps(&format!("s: {{{fields}}}")).unwrap_or_else(|problems| panic!("{fields}: {problems}"));
    compiled.plan.node_at(0).clone()
}

fn http(fields: &str) -> Http {
    match first(fields).body {
        Some(Body::Http { request }) => *request,
        other => panic!("{other:?}"),
    }
}

fn retry(fields: &str) -> Retry {
    first(&format!("{U}, {fields}")).retry
}

#[test]
fn r2_a_step_is_exactly_one_kind() {
    check_step(&[
        ("url: 'https://h'", "ok"),
        ("sleep: 3d", "ok"),
        ("wait_for_webhook: {timeout: 1h}", "ok"),
        ("wait_for_webhook: {}", "ok"),
        ("wait_for_signal: {name: paid}", "ok"),
        ("approval: {prompt: 'Charge?'}", "ok"),
        ("pause: {}", "ok"),
        ("subworkflow: send-invoice", "ok"),
        ("set: {a: 1}", "ok"),
        ("log: {message: hi}", "ok"),
        ("noop: {}", "ok"),
        ("task: billing.invoice.v1", "ok"),
        ("", "no_step_kind tasks.s"),
        ("needs: []", "no_step_kind tasks.s"),
    ]);
    check(
        "a: {url: 'https://h', sleep: 1s}\nb: {method: GET}\nc: {description: x}\nd: {input: {}}",
        "two_step_kinds tasks.a.sleep: `a` has both `url` and `sleep` (a step does one thing; make two steps and let one need the other)
         no_step_kind tasks.b: `b` does not say what it does (an http step needs a `url`)
         no_step_kind tasks.c: `c` does not say what it does (give it one of `url`, `sleep`, `wait_for_webhook`, `wait_for_signal`, `approval`, `pause`, `set`, `log`, `noop`, `task`, `bash`, `tool`, `agent`, `agent_message`, `subworkflow`, `group` or `loop`)
         no_step_kind tasks.d: `d` does not say what it does (a task step needs a `task`: the type that workers claim it by)",
    );
}

#[test]
fn r2_kinds_that_are_not_built_are_refused() {
    for kind in super::LATER_KINDS {
        check_step(&[(&format!("{kind}: x, output: {{}}"), &format!("unsupported_step_kind tasks.s.{kind}"))]);
    }
    check(
        "a: {wait: 5s}",
        "unsupported_step_kind tasks.a.wait: a graph has no `wait` (in a graph a pause is written `sleep`)",
    );
}

#[test]
fn r3_each_kind_refuses_fields_of_another() {
    check(
        "nap: {sleep: 1d, method: GET}\nhook: {wait_for_webhook: {}, retries: 2}\nquiet: {log: {message: x}, retry: never}\ncall: {url: 'https://h', input: {}}\nwork: {task: a.v1, method: GET}",
        "field_not_for_kind tasks.nap.method: `method` belongs to http steps, `nap` is a sleep step
         field_not_for_kind tasks.hook.retries: `retries` belongs to http, task, bash, tool, agent, agent_message and subworkflow steps, `hook` is a wait_for_webhook step
         field_not_for_kind tasks.quiet.retry: `retry` belongs to http, task, bash, tool, agent, agent_message and subworkflow steps, `quiet` is a log step
         field_not_for_kind tasks.call.input: `input` belongs to task steps, `call` is an http step
         field_not_for_kind tasks.work.method: `method` belongs to http steps, `work` is a task step",
    );
    check(
        "a: {url: 'https://h', metod: GET, depends_on: [b], cache: {}}",
        "unknown_field tasks.a.metod: there is no field `metod` (did you mean `method`?)
         unknown_field tasks.a.depends_on: there is no field `depends_on` (write `needs`)
         unsupported_setting tasks.a.cache: `cache` is not supported in this release (remove it: a setting that cannot be honoured is refused, not ignored)",
    );
}

#[test]
fn t18_step_names_have_a_strict_grammar() {
    let long = "x".repeat(80);
    for name in ["a", "true", "__proto__x", "send-receipt", "A_1", &long] {
        let good = name.starts_with(|c: char| c.is_ascii_alphabetic());
        assert_eq!(steps(&format!("{name:?}: {{noop: {{}}}}")).is_ok(), good, "{name}");
    }
    for name in ["", "1a", "-a", "_a", "a.b", "a b", "é", "a/b", &format!("{long}x"), "a\u{202e}b", "a]"] {
        let problems = steps(&format!("\"{name}\": {{noop: {{}}}}")).unwrap_err();
        assert!(problems.contains("invalid_step_name"), "{name}: {problems}");
    }
}

#[test]
fn r9_an_http_step_has_defaults() {
    let request = http(U);
    assert_eq!(request.method, "POST");
    assert_eq!(request.timeout, Span::from_millis(30_000));
    assert!(request.headers.is_empty() && request.body.is_none() && request.expected.is_empty());
    let retry = first(U).retry;
    assert_eq!((retry.max_attempts, retry.backoff, retry.jitter), (6, Backoff::Exponential, 100));
    assert_eq!((retry.min, retry.max), (Span::from_secs(1), Span::from_secs(300)));
    assert_eq!(first("sleep: 1").retry.max_attempts, 1);
}

#[test]
fn methods_are_known_and_written_in_capitals() {
    assert_eq!(http("url: 'https://h', method: patch").method, "PATCH");
    check_step(&[
        ("url: 'https://h', method: BREW", "invalid_value tasks.s.method"),
        ("url: 'https://h', method: 1", "wrong_type tasks.s.method"),
    ]);
}

#[test]
fn an_http_timeout_is_milliseconds_or_a_duration() {
    for (text, millis) in
        [("1500", 1_500), ("1000", 1_000), ("1ms", 1), ("2s", 2_000), ("1h", 3_600_000), ("3600000", 3_600_000)]
    {
        assert_eq!(http(&format!("{U}, timeout: {text}")).timeout, Span::from_millis(millis), "{text}");
    }
    for (text, code) in [
        ("0", "invalid_duration"),
        ("30", "invalid_duration"),
        ("999", "invalid_duration"),
        ("0s", "out_of_range"),
        ("61m", "out_of_range"),
        ("3600001", "out_of_range"),
        ("-1", "invalid_duration"),
        ("1.5", "invalid_duration"),
        ("'5'", "invalid_duration"),
        ("null", "invalid_duration"),
    ] {
        check_step(&[(&format!("{U}, timeout: {text}"), &format!("{code} tasks.s.timeout"))]);
    }
}

#[test]
fn t10_data_cannot_choose_the_host() {
    for (url, code) in [
        ("http://h", "ok"),
        ("HTTPS://h:8443/a?b#c", "ok"),
        ("https://[::1]:80/", "ok"),
        ("https://127.0.0.1/", "ok"),
        ("https://münchen.example/", "ok"),
        ("https://h/{{trigger.body.id}}/y?q={{trigger.body.q}}", "ok"),
        ("https://h?q={{trigger.body.q}}", "ok"),
        ("https://h#{{trigger.body.q}}", "ok"),
        ("https://h/?next=http://u@x", "ok"),
        ("", "invalid_url"),
        ("h/x", "invalid_url"),
        ("/x", "invalid_url"),
        ("ftp://h", "invalid_url"),
        ("https:///x", "invalid_url"),
        ("https://", "invalid_url"),
        ("https:h", "invalid_url"),
        ("https://h:0/", "invalid_url"),
        ("https://h:99999/", "invalid_url"),
        ("https://h:/", "invalid_url"),
        ("https://h h/", "invalid_url"),
        ("https://h\\\\@x/", "invalid_url"),
        ("https://h/a b", "invalid_url"),
        ("https://h/\\n", "invalid_url"),
        ("https://a..b/", "invalid_url"),
        ("https://[::1/", "invalid_url"),
        ("https://h%2f/", "invalid_url"),
        ("https://u@h/", "userinfo_in_url"),
        ("https://u:p@h/", "userinfo_in_url"),
        ("https://{{trigger.body.u}}@h/", "userinfo_in_url"),
        ("{{trigger.body.url}}", "template_in_host"),
        ("{{trigger.body.s}}://h/x", "template_in_host"),
        ("http{{trigger.body.s}}://h/x", "template_in_host"),
        ("https://{{trigger.body.h}}/x", "template_in_host"),
        ("https://h{{trigger.body.h}}/x", "template_in_host"),
        ("https://h:{{trigger.body.h}}/x", "template_in_host"),
        ("https://h{{trigger.body.h}}", "template_in_host"),
        ("https://h{{trigger.body.h}}?x", "template_in_host"),
        ("{{trigger.body.base}}/x?u=http://h/", "template_in_host"),
    ] {
        let expected = if code == "ok" { code.to_owned() } else { format!("{code} tasks.s.url") };
        check_step(&[(&format!("url: \"{url}\""), &expected)]);
    }
    check(
        "s: {url: 'https://api-{{trigger.body.region}}.h/x'}",
        "template_in_host tasks.s.url: a template may not form scheme, host or port of a url (write the host out, or list the hosts it may be in `allow_hosts`)",
    );
}

#[test]
fn t10_with_allow_hosts_data_can_choose_the_host() {
    for (url, raw) in [
        ("{{trigger.body.url}}", "r"),
        ("{{trigger.body.base}}/x/{{trigger.body.id}}", "r-"),
        (
            "{{trigger.body.s}}://{{trigger.body.h}}:{{trigger.body.p}}/{{trigger.body.id}}?q={{trigger.body.q}}",
            "rrr--",
        ),
        ("https://h{{trigger.body.h}}?q={{trigger.body.q}}", "r-"),
        ("https://h.example/{{trigger.body.id}}", "-"),
    ] {
        let request = http(&format!("url: '{url}', allow_hosts: [H.example, other.example]"));
        let placeholders = request.url.iter().filter(|p| p.path.is_some());
        assert_eq!(placeholders.map(|p| if p.raw { 'r' } else { '-' }).collect::<String>(), raw, "{url}");
        assert_eq!(request.allow_hosts, ["h.example", "other.example"]);
    }
    check_step(&[
        ("url: '{{trigger.body.url}}', allow_hosts: []", "out_of_range tasks.s.allow_hosts"),
        ("url: '{{trigger.body.url}}', allow_hosts: h", "wrong_type tasks.s.allow_hosts"),
        ("url: '{{trigger.body.url}}', allow_hosts: ['https://h']", "invalid_host tasks.s.allow_hosts[0]"),
        (
            "url: '{{trigger.body.url}}', allow_hosts: ['h:80', 1]",
            "invalid_host tasks.s.allow_hosts[0], wrong_type tasks.s.allow_hosts[1]",
        ),
        ("url: 'https://h/x', allow_hosts: [other]", "host_not_allowed tasks.s.url"),
        ("url: 'ftp://{{trigger.body.h}}', allow_hosts: [h]", "invalid_url tasks.s.url"),
    ]);
}

#[test]
fn t9_headers_are_tokens_with_one_line_values() {
    let request = http(&format!("{U}, headers: {{Accept: a, X-Id: 'id {{{{trigger.body.id}}}}'}}"));
    let names: Vec<&str> = request.headers.iter().map(|h| h.name.as_str()).collect();
    assert_eq!(names, ["Accept", "X-Id"]);
    assert_eq!(request.headers[1].value.len(), 2);
    for (headers, expected) in [
        ("{}", "ok"),
        ("{Authorization: x}", "ok"),
        ("{'a b': x}", "invalid_header tasks.s.headers[\"a b\"]"),
        ("{'': x}", "invalid_header tasks.s.headers[\"\"]"),
        ("{'X-{{trigger.body.id}}': x}", "invalid_header tasks.s.headers[\"X-{{trigger.body.id}}\"]"),
        ("{a: \"x\\r\\ny: z\"}", "invalid_header tasks.s.headers.a"),
        ("{a: \"x\\0\"}", "invalid_header tasks.s.headers.a"),
        ("{a: 1}", "wrong_type tasks.s.headers.a"),
        ("{a: x, A: y}", "duplicate_header tasks.s.headers.A"),
        ("[a]", "wrong_type tasks.s.headers"),
        ("{Host: x}", "reserved_header tasks.s.headers.Host"),
        ("{content-length: x}", "reserved_header tasks.s.headers.content-length"),
        ("{Transfer-Encoding: x}", "reserved_header tasks.s.headers.Transfer-Encoding"),
        ("{Connection: x}", "reserved_header tasks.s.headers.Connection"),
        ("{X-Onward-Run: x}", "reserved_header tasks.s.headers.X-Onward-Run"),
        ("{x-onward-signature: x}", "reserved_header tasks.s.headers.x-onward-signature"),
        ("{Idempotency-Key: 'order-{{trigger.body.id}}'}", "ok"),
    ] {
        check_step(&[(&format!("{U}, headers: {headers}"), expected)]);
    }
    let many: Vec<String> = (0..65).map(|i| format!("h{i}: x")).collect();
    check_step(&[(&format!("{U}, headers: {{{}}}", many.join(", ")), "limit_exceeded tasks.s.headers")]);
}

#[test]
fn a_query_and_a_form_are_names_with_plain_values() {
    let request = http(&format!("{U}, query: {{q: '{{{{trigger.body.q}}}}', tag: [a, 1, true]}}, form: {{a: 1}}"));
    assert!(matches!(request.query, Some(Template::Object { entries }) if entries.len() == 2));
    assert_eq!(request.form, Some(Template::literal(&serde_json::json!({"a": 1}))));
    assert!(request.body.is_none() && request.redirects == 0);
    for (fields, expected) in [
        ("query: {}", "ok"),
        ("query: {'': x}", "ok"),
        ("query: {a: []}", "ok"),
        ("query: x", "wrong_type tasks.s.query"),
        ("query: {a: null}", "wrong_type tasks.s.query.a"),
        ("query: {a: {b: 1}}", "wrong_type tasks.s.query.a"),
        ("query: {a: [1, [2], null]}", "wrong_type tasks.s.query.a[1], wrong_type tasks.s.query.a[2]"),
        ("query: {a: '{{nope.x}}'}", "unknown_root tasks.s.query.a"),
        ("form: {}", "out_of_range tasks.s.form"),
        ("form: [a]", "wrong_type tasks.s.form"),
        ("form: {a: {}}", "wrong_type tasks.s.form.a"),
        ("form: {a: 1}, body: x", "exclusive_fields tasks.s.form"),
        ("params: {a: 1}", "unknown_field tasks.s.params"),
    ] {
        check_step(&[(&format!("{U}, {fields}"), expected)]);
    }
    let many: Vec<String> = (0..257).map(|i| format!("q{i}: x")).collect();
    check_step(&[(&format!("{U}, query: {{{}}}", many.join(", ")), "limit_exceeded tasks.s.query")]);
}

#[test]
fn t3_redirects_are_off_by_default_and_have_a_limit() {
    assert_eq!(http(&format!("{U}, redirects: 10")).redirects, 10);
    for (redirects, expected) in [
        ("0", "ok"),
        ("11", "out_of_range tasks.s.redirects"),
        ("-1", "out_of_range tasks.s.redirects"),
        ("true", "wrong_type tasks.s.redirects"),
        ("'3'", "wrong_type tasks.s.redirects"),
    ] {
        check_step(&[(&format!("{U}, redirects: {redirects}"), expected)]);
    }
}

#[test]
fn r39_a_body_is_any_json_with_templates_in_its_leaves() {
    let body = |fields: &str| http(&format!("{U}, body: {fields}")).body.unwrap();
    assert_eq!(body("{b: [1, x], a: null}"), Template::literal(&serde_json::json!({"b": [1, "x"], "a": null})));
    assert_eq!(body("null"), Template::literal(&serde_json::Value::Null));
    let Template::Object { entries } = body("{'{{k}}': [1, {x: '{{trigger.body.id}}'}], y: 'a {{trigger.body.id}}'}")
    else {
        panic!("not an object")
    };
    assert_eq!(entries[0].key, "{{k}}", "keys are literal");
    let Some(Template::List { items }) = &entries[0].value else { panic!("not a list") };
    assert_eq!(items[0], Template::literal(&serde_json::json!(1)));
    assert!(
        matches!(&items[1], Template::Object { entries } if matches!(entries[0].value, Some(Template::Value { .. })))
    );
    assert!(matches!(&entries[1].value, Some(Template::Text { parts }) if parts.len() == 2));
    check(
        "s: {url: 'https://h', body: {a: [{b: '{{nope.x}} {{}}'}], c: '{{trigger.body.id'}}",
        "unknown_root tasks.s.body.a[0].b: a path cannot begin with `nope` (a path begins with `trigger`, `tasks` or `wait`)
         template_syntax tasks.s.body.a[0].b: `{{}}` names nothing (write a path such as `{{trigger.body.id}}`)
         template_syntax tasks.s.body.c: this `{{` is not closed",
    );
}

#[test]
fn t37_the_deepest_body_can_be_stored_and_read_back() {
    let body = format!("{}\"{{{{trigger.body.x}}}}\"{}", "{\"a\":".repeat(61), "}".repeat(61));
    let source = format!(r#"{{"name":"d","tasks":{{"s":{{"url":"https://h","body":{body}}}}}}}"#);
    let plan = crate::testing::compiled(&source).unwrap().plan;
    assert_eq!(kernel::Plan::decode(&plan.encode()).unwrap().layout(), plan.layout());
}

#[test]
fn decision_16_fields_may_be_spelt_in_camel_case() {
    assert_eq!(retry("retry: {maxAttempts: 3}").max_attempts, 3);
    assert_eq!(first("waitForWebhook: {}").body, Some(Body::Webhook { timeout: None }));
    assert!(first(&format!("{U}, allowFailure: true")).allow_failure);
    for (fields, expected) in [
        ("retry: {maxAttempts: 3, max_attempts: 3}", "exclusive_fields tasks.s.retry.maxAttempts"),
        ("allowFailure: true, allow_failure: true", "exclusive_fields tasks.s.allowFailure"),
        ("retry: {maxAttempt: 3}", "unknown_field tasks.s.retry.maxAttempt"),
    ] {
        check_step(&[(&format!("{U}, {fields}"), expected)]);
    }
}

#[test]
fn retries_are_a_number_or_a_policy() {
    assert_eq!(retry("retries: 0").max_attempts, 1);
    assert_eq!(retry("retries: 100").max_attempts, 101);
    assert!(retry("retry: never").never);
    assert_eq!(retry("retry: {max_attempts: 3}"), Retry { max_attempts: 3, ..first(U).retry });
    assert_eq!(
        retry("retry: {max_attempts: 2, backoff: {type: quadratic, min: 1m}}"),
        Retry { max_attempts: 2, backoff: Backoff::Quadratic, min: Span::from_secs(60), ..Default::default() }
    );
    let fixed = retry("retry: {backoff: {type: fixed, min: 0, max: 5, jitter: 0.25}}");
    assert_eq!((fixed.max_attempts, fixed.min, fixed.max, fixed.jitter), (6, Span(0), Span::from_secs(5), 250));
    for (fields, expected) in [
        ("retries: -1", "out_of_range tasks.s.retries"),
        ("retries: 101", "out_of_range tasks.s.retries"),
        ("retries: '5'", "wrong_type tasks.s.retries"),
        ("retries: 1, retry: never", "exclusive_fields tasks.s.retry"),
        ("retry: always", "wrong_type tasks.s.retry"),
        ("retry: 3", "wrong_type tasks.s.retry"),
        ("retry: {max_attempts: 0}", "out_of_range tasks.s.retry.max_attempts"),
        ("retry: {max_attempts: 101}", "out_of_range tasks.s.retry.max_attempts"),
        ("retry: {attempts: 2}", "unknown_field tasks.s.retry.attempts"),
        ("retry: {backoff: {type: cubic, min: 1s}}", "invalid_value tasks.s.retry.backoff.type"),
        ("retry: {backoff: {}}", "missing_field tasks.s.retry.backoff, missing_field tasks.s.retry.backoff"),
        ("retry: {backoff: {type: exponential, min: 0s}}", "out_of_range tasks.s.retry.backoff.min"),
        ("retry: {backoff: {type: exponential, min: 10s, max: 5s}}", "out_of_range tasks.s.retry.backoff.max"),
        ("retry: {backoff: {type: fixed, min: 1s, jitter: 1.5}}", "out_of_range tasks.s.retry.backoff.jitter"),
        ("retry: {backoff: {type: fixed, min: 1s, jitter: '1'}}", "wrong_type tasks.s.retry.backoff.jitter"),
    ] {
        check_step(&[(&format!("{U}, {fields}"), expected)]);
    }
}

#[test]
fn expected_statuses_are_numbers_classes_or_a_list() {
    let ranges = |text: &str| {
        let found = http(&format!("{U}, expected_status: {text}")).expected;
        found.iter().map(|StatusRange { from, to, .. }| (*from, *to)).collect::<Vec<_>>()
    };
    assert_eq!(ranges("404"), [(404, 404)]);
    assert_eq!(ranges("2xx"), [(200, 299)]);
    assert_eq!(ranges("[200, 3XX, 100, 599]"), [(200, 200), (300, 399), (100, 100), (599, 599)]);
    for text in ["99", "600", "'200'", "6xx", "2x", "[]", "true", "{}", "200.5"] {
        check_step(&[(&format!("{U}, expected_status: {text}"), "invalid_status tasks.s.expected_status")]);
    }
    check_step(&[(&format!("{U}, expected_status: [200, nope]"), "invalid_status tasks.s.expected_status[1]")]);
}

fn task(fields: &str) -> TaskBody {
    match first(&format!("task: billing.invoice.v1, {fields}")).body {
        Some(Body::Task { task }) => *task,
        other => panic!("{other:?}"),
    }
}

#[test]
fn decision_6_a_task_step_has_defaults() {
    let node = first("task: billing.invoice.v1");
    let expected = TaskBody {
        name: "billing.invoice.v1".into(),
        input: Some(Template::literal(&serde_json::json!({}))),
        ..Default::default()
    };
    assert_eq!(node.body, Some(Body::Task { task: Box::new(expected) }));
    let retry = Retry {
        max_attempts: 3,
        backoff: Backoff::Quadratic,
        min: Span::from_secs(60),
        jitter: 100,
        ..Default::default()
    };
    assert_eq!(node.retry, retry);
    assert_eq!(first("task: a, retries: 4").retry, Retry { max_attempts: 5, ..retry });
    assert!(first("task: a, retry: never").retry.never);
    let fixed = first("task: a, retry: {backoff: {type: fixed, min: 5s}}").retry;
    assert_eq!((fixed.max_attempts, fixed.min, fixed.jitter), (3, Span::from_secs(5), 0));
}

#[test]
fn a_task_step_has_input_limits_priority_and_a_concurrency_key() {
    assert_eq!(task("input: null").input, Some(Template::literal(&serde_json::Value::Null)));
    let filled = task("input: {id: '{{trigger.body.id}}', n: [1]}");
    assert!(matches!(filled.input, Some(Template::Object { entries }) if entries.len() == 2));
    assert_eq!(task("timeout: 5").attempt, Some(Span::from_secs(5)));
    let limits = task("timeout: 5m, timeouts: {queue: 1h, heartbeat: 1s, total: 2h}");
    let read = [limits.queue, limits.attempt, limits.heartbeat, limits.total].map(|span| span.unwrap().to_string());
    assert_eq!(read, ["1h", "5m", "1s", "2h"]);
    assert_eq!(task("timeouts: {attempt: 3s}").attempt, Some(Span::from_secs(3)));
    assert_eq!(task("priority: 0").priority, Some(0));
    assert_eq!(task("concurrency_key: 'c-{{trigger.body.id}}'").key.len(), 2);
    for (fields, expected) in [
        ("priority: 1000000", "ok"),
        ("priority: 1000001", "out_of_range tasks.s.priority"),
        ("priority: -1", "out_of_range tasks.s.priority"),
        ("priority: high", "wrong_type tasks.s.priority"),
        ("timeout: 0s", "out_of_range tasks.s.timeout"),
        ("timeout: 367d", "out_of_range tasks.s.timeout"),
        ("timeouts: 5s", "wrong_type tasks.s.timeouts"),
        ("timeouts: {heartbeat: 999ms}", "out_of_range tasks.s.timeouts.heartbeat"),
        ("timeouts: {queue: soon}", "invalid_duration tasks.s.timeouts.queue"),
        ("timeouts: {totl: 5s}", "unknown_field tasks.s.timeouts.totl"),
        ("timeouts: {attempt: 5s}, timeout: 5s", "exclusive_fields tasks.s.timeouts.attempt"),
        ("concurrency_key: 7", "wrong_type tasks.s.concurrency_key"),
        ("concurrency_key: ''", "invalid_value tasks.s.concurrency_key"),
        ("concurrency_key: trigger.body.id", "invalid_value tasks.s.concurrency_key"),
        ("concurrency_key: '{{tasks.s.body}}'", "not_an_ancestor tasks.s.concurrency_key"),
        ("input: '{{nope.x}}'", "unknown_root tasks.s.input"),
        ("payload: {}", "unknown_field tasks.s.payload"),
        ("cache: {}", "unsupported_setting tasks.s.cache"),
    ] {
        check_step(&[(&format!("task: a.v1, {fields}"), expected)]);
    }
    check(
        "a: {task: a, timeout: 1s, timeouts: {attempt: 1s}}\nb: {task: b, priorty: 5, payload: {}}",
        "exclusive_fields tasks.a.timeouts.attempt: `timeout` and `timeouts.attempt` cannot both be given (both limit one attempt; keep one of them)
         unknown_field tasks.b.priorty: there is no field `priorty` (did you mean `priority`?)
         unknown_field tasks.b.payload: there is no field `payload` (write `input`)",
    );
}

#[test]
fn decision_16_types_are_dotted_names() {
    let long = "x".repeat(200);
    for name in ["a", "billing.invoice.v1", "A_1-b.c", "1.2", &long] {
        check_step(&[(&format!("task: '{name}'"), "ok")]);
    }
    for name in ["", ".", "a.", ".a", "a..b", "a b", "é", "a/b", "a.%", "%", "a\n", &format!("{long}x")] {
        check_step(&[(&format!("task: {}", serde_json::json!(name)), "invalid_type tasks.s.task")]);
    }
    check(
        "a: {task: 'billing.%'}\nb: {task: 'billing..v1'}\nc: {task: 'send mail'}\nd: {task: '{{trigger.body.type}}'}\ne: {task: {type: x}}",
        "invalid_type tasks.a.task: `billing.%` is not one type but many (a worker that claims may end a type in `%`; a task has exactly one)
         invalid_type tasks.b.task: `billing..v1` has an empty part (a type is a dotted name such as `billing.invoice.v1`, of letters, digits, `_`, `-` and `.`)
         invalid_type tasks.c.task: `send mail` contains ` `, which a type cannot (a type is a dotted name such as `billing.invoice.v1`, of letters, digits, `_`, `-` and `.`)
         template_in_type tasks.d.task: a template may not form the type of a task (write the type out, or list the types it may be in `allow`)
         wrong_type tasks.e.task: `task` must be the type of a task, found an object (write `task: billing.invoice.v1`, and what the worker gets as `input`)",
    );
}

#[test]
fn data_cannot_choose_the_type_unless_the_step_lists_what_it_may_be() {
    let task = |fields: &str| {
        let plan = crate::testing::steps(&format!("s: {{{fields}}}")).unwrap().plan;
        plan.node_at(0).task().unwrap().clone()
    };
    let templated = task("task: 'invoice.{{trigger.body.country}}.v1', allow: [invoice.de.v1, invoice.fr.v1]");
    assert_eq!((templated.name.as_str(), templated.of_type.len()), ("", 3));
    assert_eq!(templated.allow, ["invoice.de.v1", "invoice.fr.v1"]);
    let plain = task("task: a.v1, allow: [a.v1, b.v1]");
    assert_eq!(plain, task("task: a.v1"), "the list says nothing more");
    check_step(&[
        ("task: '{{trigger.body.t}}'", "template_in_type tasks.s.task"),
        ("task: 'a.{{trigger.body.t}}.v1'", "template_in_type tasks.s.task"),
        ("task: a.v1, allow: [b.v1]", "type_not_allowed tasks.s.task"),
        ("task: '{{tasks.x.body}}', allow: [b.v1]", "unknown_step tasks.s.task"),
        ("task: '{{trigger.body.t}}', allow: []", "out_of_range tasks.s.allow"),
        ("task: '{{trigger.body.t}}', allow: [a.v1, a.v1]", "invalid_value tasks.s.allow[1]"),
        ("task: '{{trigger.body.t}}', allow: ['billing.%']", "invalid_type tasks.s.allow[0]"),
        ("task: '{{trigger.body.t}}', allow: ['{{trigger.body.u}}']", "invalid_value tasks.s.allow[0]"),
        ("noop: {}, allow: [a]", "field_not_for_kind tasks.s.allow"),
    ]);
}

#[test]
fn the_result_of_a_worker_is_read_like_any_body() {
    check(
        "w: {task: a.v1}\nx: {needs: [w], if: \"tasks.w.body.items.0.id == 7 && tasks.w.error.code != 'no'\", task: b.v1, input: '{{tasks.w.body.items}}', concurrency_key: '{{tasks.w.body.customer}}'}\ny: {noop: {}, if: tasks.w.body.x == 1}",
        "not_an_ancestor tasks.y.if: `y` reads `tasks.w`, but does not need it (add `w` to the `needs` of `y`)",
    );
}

#[test]
fn other_kinds_refuse_invalid_and_unknown_fields() {
    assert_eq!(first("sleep: 13d").body, Some(Body::Sleep { span: Span::from_days(13) }));
    assert_eq!(first("wait_for_webhook: {}").body, Some(Body::Webhook { timeout: None }));
    assert_eq!(first("noop: {}").body, Some(Body::Noop {}));
    assert!(matches!(first("log: {message: x}").body, Some(Body::Log { level: Level::Info, .. })));
    assert!(matches!(first("log: {message: x, level: warning}").body, Some(Body::Log { level: Level::Warning, .. })));
    check_step(&[
        ("sleep: true", "invalid_duration tasks.s.sleep"),
        ("sleep: 1.5", "invalid_duration tasks.s.sleep"),
        ("sleep: 367d", "out_of_range tasks.s.sleep"),
        ("wait_for_webhook: true", "wrong_type tasks.s.wait_for_webhook"),
        ("wait_for_webhook: {timeout: 0s}", "out_of_range tasks.s.wait_for_webhook.timeout"),
        ("wait_for_webhook: {timeuot: 1s}", "unknown_field tasks.s.wait_for_webhook.timeuot"),
        ("set: {}", "out_of_range tasks.s.set"),
        ("set: 1", "wrong_type tasks.s.set"),
        ("log: hi", "wrong_type tasks.s.log"),
        ("log: {}", "missing_field tasks.s.log"),
        ("log: {message: 1}", "wrong_type tasks.s.log.message"),
        ("log: {message: x, level: warn}", "invalid_value tasks.s.log.level"),
        ("noop: {x: 1}", "unknown_field tasks.s.noop.x"),
        ("noop: {}, description: 1", "wrong_type tasks.s.description"),
    ]);
    check(
        "a: {wait_for_webhook: null}",
        "wrong_type tasks.a.wait_for_webhook: `wait_for_webhook` must be an object, found null (write `wait_for_webhook: {}` or `{timeout: 1h}`)",
    );
}

#[test]
fn r44_a2_conditions_are_expressions() {
    for good in ["trigger.body.x == 1", "trigger.body.a && !(trigger.body.b > 2)", "200 == trigger.body.n"] {
        let guard = first(&format!("noop: {{}}, if: \"{good}\"")).guard.unwrap();
        assert_eq!(guard.text, good);
    }
    for bad in ["trigger.body.x ==", "trigger..x == 1", "== 200", "", "trigger.body.x = 1"] {
        check_step(&[(&format!("noop: {{}}, if: \"{bad}\""), "expression_syntax tasks.s.if")]);
    }
    check(
        "a: {noop: {}, if: '{{trigger.body.x}} == 1'}\nb: {noop: {}, if: true}\nc: {noop: {}, if: null}",
        "template_in_condition tasks.a.if: a condition takes no `{{…}}` (an expression names values directly: `tasks.charge.status_code == 200`)
         wrong_type tasks.b.if: `if` must be an expression, as a text, found a boolean (put the expression in quotes)
         wrong_type tasks.c.if: `if` must be an expression, as a text, found null (leave the field out if it has no value)",
    );
}
