//! Settings of a whole workflow: the limit on open runs, what counts as a failure, and the notifications when a run
//! ends.

use crate::codes;
use crate::diagnostic::Problems;
use crate::fields::{self, Fields, Shape};
use crate::graph;
use crate::step;
use crate::tree::{TreeNode, Value};
use kernel::event::OnConflict;
use kernel::plan::{Concurrency, Notify, Occasion, Verdict};
use kernel::template::Part;

/// The largest limit on open runs.
const LIMIT_MAX: i64 = 10_000;

/// `concurrency: {key, limit, on_conflict}`.
pub(crate) fn concurrency(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Concurrency> {
    let fields = fields::object(node, "concurrency", problems)?;
    fields.check(&Shape::only(&["key", "limit", "on_conflict"]), problems);
    let limit = fields.get("limit").map_or(Some(1), |n| fields::whole(n, "limit", 1..=LIMIT_MAX, problems));
    let words: Vec<(&str, OnConflict)> = OnConflict::ALL.iter().map(|o| (o.as_str(), *o)).collect();
    let on_conflict = fields.get("on_conflict").map(|n| fields::word(n, "on_conflict", &words, problems));
    // The key is filled in before the run exists, so it can only read the trigger.
    let key = fields.get("key").map(|node| step::key(node, "key", &mut |raw| graph::trigger_path(raw), problems));
    Some(Concurrency {
        key: key.unwrap_or_else(|| Some(vec![Part::default()]))?,
        limit: limit? as u32,
        on_conflict: on_conflict.unwrap_or(Some(OnConflict::Queue))?,
        ..Default::default()
    })
}

/// `fail_when`: which failures make the run fail.
pub(crate) fn fail_when(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Verdict> {
    let words = [("unhandled", Verdict::Unhandled), ("blocked", Verdict::Blocked)];
    fields::word(node, "fail_when", &words, problems)
}

/// `on_failure`: a notification. It also takes the words that earlier releases had for `fail_when`.
pub(crate) fn on_failure(node: &TreeNode, problems: &mut Problems<'_>) -> Option<(Option<Verdict>, Option<Notify>)> {
    let words = [("strict", Verdict::Unhandled), ("blocked", Verdict::Blocked)];
    if !matches!(node.value, Value::Object(_)) {
        return Some((Some(fields::word(node, "on_failure", &words, problems)?), None));
    }
    let fields = fields::object(node, "on_failure", problems)?;
    fields.check(&Shape::only(&["verdict", "url", "workflow"]), problems);
    fields.exclusive("url", "workflow", problems);
    let verdict = fields.get("verdict").map(|n| fields::word(n, "verdict", &words, problems));
    let url = fields.get("url").map(|n| step::literal_url(n, "url", problems));
    let workflow = fields.get("workflow").map(|n| workflow_name(n, problems));
    if fields.len() == 0 {
        let message = "`on_failure` needs `url` or `workflow`";
        problems.add(codes::OUT_OF_RANGE, &node.span, message);
    }
    let notify = match (url, workflow) {
        (Some(url), _) => Some(Notify { on: Occasion::Failed, url: url?, ..Default::default() }),
        (_, Some(workflow)) => Some(Notify { on: Occasion::Failed, workflow: workflow?, ..Default::default() }),
        (None, None) => None,
    };
    match verdict {
        None => Some((None, notify)),
        Some(verdict) => Some((Some(verdict?), notify)),
    }
}

fn workflow_name(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let name = fields::text(node, "workflow", problems)?.trim();
    if name.is_empty() {
        problems.add(codes::OUT_OF_RANGE, &node.span, "`workflow` is empty");
        return None;
    }
    Some(name.to_owned())
}

/// `callback_url`: called when a run ends, with any status.
pub(crate) fn callback(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Option<Notify>> {
    let Some(node) = fields.get("callback_url") else { return Some(None) };
    let url = step::literal_url(node, "callback_url", problems)?;
    Some(Some(Notify { on: Occasion::Ended, url, ..Default::default() }))
}

#[cfg(test)]
mod tests {
    use crate::{Syntax, compile, read};
    use kernel::event::OnConflict;
    use kernel::plan::{Layout, Occasion, Verdict};

    fn layout(setting: &str) -> Result<Layout, String> {
        let text = format!("name: w\ntasks: {{a: {{noop: {{}}}}}}\n{setting}\n");
        let tree = read(text.as_bytes(), Syntax::Yaml).unwrap();
        match compile(&tree) {
            Ok(compiled) => Ok(compiled.plan.layout().clone()),
            Err(problems) => {
                Err(problems.iter().map(|p| format!("{}: {}", p.code, p.message)).collect::<Vec<_>>().join("; "))
            }
        }
    }

    #[test]
    fn concurrency_has_a_key_a_limit_and_a_policy() {
        let found = layout("concurrency: {}").unwrap().concurrency.unwrap();
        assert_eq!((found.limit, found.on_conflict, found.key[0].text.as_str()), (1, OnConflict::Queue, ""));
        let found = layout("concurrency: {key: 'c-{{trigger.body.id}}', limit: 3, on_conflict: skip}").unwrap();
        let found = found.concurrency.unwrap();
        assert_eq!((found.limit, found.on_conflict, found.key.len()), (3, OnConflict::Skip, 2));
        for (setting, problem) in [
            ("concurrency: 5", "wrong_type: `concurrency` must be an object, found a number"),
            ("concurrency: {limit: 0}", "out_of_range: `limit` is 0, allowed is 1 to 10000"),
            (
                "concurrency: {on_conflict: wait}",
                "invalid_value: `on_conflict` is `wait`, allowed is `queue`, `skip` or `cancel_running`",
            ),
            ("concurrency: {key: trigger.body.id}", "invalid_value: `trigger.body.id` is the same text for every run"),
            ("concurrency: {key: '{{tasks.a.body}}'}", "unknown_root: only `trigger` can be read here, not `tasks`"),
            ("concurrency: {max: 1}", "unknown_field: there is no field `max`"),
        ] {
            assert_eq!(layout(setting).unwrap_err(), problem);
        }
    }

    #[test]
    fn m8_fail_when_says_which_failures_fail_the_run() {
        for (setting, verdict) in [
            ("", Verdict::Unhandled),
            ("fail_when: unhandled", Verdict::Unhandled),
            ("fail_when: blocked", Verdict::Blocked),
            ("on_failure: {url: 'https://example.com/x'}", Verdict::Unhandled),
            ("on_failure: {url: 'https://example.com/x'}\nfail_when: blocked", Verdict::Blocked),
            // As earlier releases wrote it.
            ("on_failure: strict", Verdict::Unhandled),
            ("on_failure: blocked", Verdict::Blocked),
            ("on_failure: {url: 'https://example.com/x', verdict: blocked}", Verdict::Blocked),
        ] {
            assert_eq!(layout(setting).unwrap().groups[0].verdict, verdict, "{setting}");
        }
        for (setting, problem) in [
            ("fail_when: never", "invalid_value: `fail_when` is `never`, allowed is `unhandled` or `blocked`"),
            (
                "on_failure: strict\nfail_when: blocked",
                "exclusive_fields: `fail_when` and the `strict` or `blocked` of `on_failure` cannot both be given",
            ),
        ] {
            assert_eq!(layout(setting).unwrap_err(), problem);
        }
    }

    #[test]
    fn on_failure_and_callback_url_are_notifications() {
        let found = layout("on_failure: {url: 'https://example.com/x', verdict: strict}").unwrap();
        assert_eq!((found.groups[0].verdict, found.notify[0].on), (Verdict::Unhandled, Occasion::Failed));
        let found = layout("on_failure: {workflow: alarm}\ncallback_url: http://127.0.0.1:9/done").unwrap();
        assert_eq!(found.notify.iter().map(|n| n.on).collect::<Vec<_>>(), [Occasion::Failed, Occasion::Ended]);
        for (setting, problem) in [
            ("on_failure: {}", "out_of_range: `on_failure` needs `url` or `workflow`"),
            (
                "on_failure: {url: 'https://x/', workflow: a}",
                "exclusive_fields: `url` and `workflow` cannot both be given",
            ),
            ("on_failure: lax", "invalid_value: `on_failure` is `lax`, allowed is `strict` or `blocked`"),
            ("callback_url: 'ftp://x/'", "invalid_url: `callback_url` must start with `http://` or `https://`"),
            (
                "callback_url: 'https://{{trigger.body.h}}/'",
                "template_in_host: `callback_url` may not contain a template",
            ),
            ("callback_url: 'https://u:p@x/'", "userinfo_in_url: a url may not carry a user name or password"),
        ] {
            assert_eq!(layout(setting).unwrap_err(), problem);
        }
    }
}
