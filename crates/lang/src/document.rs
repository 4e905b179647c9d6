//! What every form of workflow shares: name and description, trigger, limits.
//!
//! [`compile`] reads these and detects the form; the module of that form reads the steps. The result is a whole plan
//! or every problem, never a part of a plan.

use crate::codes;
use crate::diagnostic::{Diagnostic, Draft, Problems, grouped, is_hostile, normalized, quoted};
use crate::fields::{self, DURATION_MAX, Fields, Shape, Unit, duration};
use crate::graph::LoweredGraph;
use crate::input::{self, Budget, InputSchema};
use crate::list::{self, ListSettings};
use crate::tree::{Tree, TreeNode, Value};
use crate::trigger::{self, Spec};
use crate::{canonical, graph, settings};
use kernel::Plan;
use kernel::plan::{Form, Layout, Verdict};
use kernel::time::Span;
use std::sync::Arc;

const NAME_MAX: usize = 80;
const TAGS_MAX: usize = 16;
/// The default of `max_duration` (R9).
const RUN_DURATION: Span = Span::from_days(30);

/// A definition that may be stored and run.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub meta: Meta,
    pub plan: Plan,
    /// Identifies this version: equal for equal definitions, see `canonical`.
    pub hash: [u8; 32],
    pub form: Form,
    /// The definition as JSON, with keys in the author's order and without the secret of a webhook.
    pub source: serde_json::Value,
    /// The schedule or webhook of the definition.
    pub trigger: Option<Spec>,
    /// What the body of every trigger must fit.
    pub input: Option<Arc<InputSchema>>,
    /// Problems that do not make the definition invalid.
    pub warnings: Vec<Diagnostic>,
}

/// The descriptive fields of a workflow, and the kind of its trigger.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    pub name: String,
    pub slug: Option<String>,
    pub description: Option<String>,
    pub tags: Vec<String>,
    pub enabled: bool,
    /// `api`, `manual`, `cron` or `webhook`.
    pub trigger: String,
}

/// A change of descriptive fields; `None` keeps a field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetaChange {
    pub name: Option<String>,
    pub slug: Option<String>,
    /// An empty text removes the description.
    pub description: Option<String>,
    pub tags: Option<Vec<String>>,
    pub enabled: Option<bool>,
}

/// The fields that can be changed without a new version.
const DESCRIPTION: Shape = Shape {
    known: &["name", "slug", "description", "tags", "enabled"],
    later: &[],
    synonyms: &[("title", "name"), ("id", "slug")],
};

const SHAPE: Shape = Shape {
    known: &[
        "name",
        "slug",
        "description",
        "tags",
        "enabled",
        "version",
        "trigger",
        "cron",
        "timezone",
        "schedule",
        "webhook",
        "tasks",
        "max_duration",
        "max_duration_seconds",
        "fail_when",
        "on_failure",
        "concurrency",
        "callback_url",
        "output",
        "input",
    ],
    // `list::FIELDS` are known in step lists.
    later: &[
        "priority",
        "labels",
        "compensate",
        "irreversible",
        "timeouts",
        "variables",
        "payload",
        "outputs",
        "runtime",
        "constraints",
        "policy",
        "secrets",
        "retry",
        "retries",
    ],
    synonyms: &[
        ("jobs", "tasks"),
        ("nodes", "tasks"),
        ("title", "name"),
        ("on", "trigger"),
        ("id", "slug"),
        ("timeout", "max_duration"),
    ],
};

/// Fields of other forms of workflow, refused as `unsupported_form`.
pub const OTHER_FORMS: &[(&str, &str)] = &[("transitions", "transitions"), ("script", "scripts")];

/// Compiles a document to a plan, or returns all of its problems.
pub fn compile(tree: &Tree) -> Result<Compiled, Vec<Diagnostic>> {
    let mut problems = Problems::new(tree.source());
    let root = tree.root();
    root.check_numbers(&mut problems);
    let compiled = read(root, &mut problems);
    match compiled {
        Some(Read { meta, trigger, layout, input }) if problems.is_empty() => match Plan::new(layout) {
            Ok(plan) => {
                let (form, source) = (plan.layout().form, trigger::without_secret(root.to_json()));
                let (hash, warnings) = (canonical::hash(root), problems.finish(Some(root)));
                return Ok(Compiled { meta, plan, hash, form, source, trigger, input, warnings });
            }
            Err(why) => problems.add(codes::INTERNAL, &root.span, format!("no plan could be made: {why}")),
        },
        // A reader returns `None` only after it has reported a problem. If one ever does not, this is still no success.
        _ if problems.is_empty() => problems.add(codes::INTERNAL, &root.span, "no plan could be made"),
        _ => {}
    }
    Err(problems.finish(Some(root)))
}

/// Whether a document has steps, in any form.
pub fn has_steps(tree: &Tree) -> bool {
    let steps = |key: &str| ["tasks", "steps"].contains(&key) || OTHER_FORMS.iter().any(|(field, _)| *field == key);
    matches!(&tree.root().value, Value::Object(entries) if entries.iter().any(|entry| steps(&entry.key)))
}

/// Reads a document that changes only descriptive fields, or returns all of its problems.
pub fn describe(tree: &Tree) -> Result<MetaChange, Vec<Diagnostic>> {
    let mut problems = Problems::new(tree.source());
    let root = tree.root();
    let change = change(root, &mut problems);
    match change {
        Some(change) if problems.is_empty() => Ok(change),
        _ => Err(problems.finish(Some(root))),
    }
}

fn change(root: &TreeNode, problems: &mut Problems<'_>) -> Option<MetaChange> {
    let fields = fields::object(root, "a change", problems)?;
    fields.check(&DESCRIPTION, problems);
    let text = |problems: &mut Problems<'_>, node| fields::text(node, "description", problems).map(str::to_owned);
    Some(MetaChange {
        name: fields.get("name").and_then(|node| name(node, problems)),
        slug: fields.get("slug").and_then(|node| slug(node, problems)),
        description: fields.get("description").and_then(|node| text(problems, node)),
        tags: fields.get("tags").and_then(|node| tags(node, problems)),
        enabled: fields.get("enabled").and_then(|node| fields::boolean(node, "enabled", problems)),
    })
}

/// A definition whose plan is not made yet.
struct Read {
    meta: Meta,
    trigger: Option<Spec>,
    layout: Layout,
    input: Option<Arc<InputSchema>>,
}

fn read(root: &TreeNode, problems: &mut Problems<'_>) -> Option<Read> {
    let fields = fields::object(root, "a definition", problems)?;
    let is_list = fields.get("steps").is_some_and(|node| !matches!(node.value, Value::Object(_)));
    for entry in fields.unknown(&SHAPE, problems) {
        if is_list && list::FIELDS.contains(&&*entry.name()) {
            continue;
        }
        if entry.key == "steps" {
            let message = "steps by name, with `transitions` or `after`, are not supported in this release";
            let draft = Draft::new(codes::UNSUPPORTED_FORM, entry.key_span.clone(), message);
            problems.push(draft.hint("write a list, `steps: [{type: …}]`, or a graph, `tasks: {name: {…}}`"));
            continue;
        }
        match OTHER_FORMS.iter().find(|(field, _)| *field == entry.key) {
            None => SHAPE.refuse(entry, problems),
            Some((_, form)) => {
                let message = format!("{form} are not supported in this release");
                let draft = Draft::new(codes::UNSUPPORTED_FORM, entry.key_span.clone(), message);
                problems.push(draft.hint("write the workflow as a graph: `tasks: {name: {…}}`"));
            }
        }
    }
    let meta = meta(&fields, &root.span, problems);
    let trigger = own_trigger(&fields, problems);
    let input = fields.get("input").map(|node| input::read(node, problems));
    if let (Some(Some(input)), Some(Some(trigger))) = (&input, &trigger) {
        check_input(input, trigger, &fields, problems);
    }
    let max_duration = max_duration(&fields, problems);
    let on_failure = fields.get("on_failure").map(|node| settings::on_failure(node, problems));
    let fail_when = fields.get("fail_when").map(|node| settings::fail_when(node, problems));
    if let (Some(node), Some(Some((Some(_), _)))) = (fields.get("fail_when"), &on_failure) {
        let message = "`fail_when` and the `strict` or `blocked` of `on_failure` cannot both be given";
        problems.add(codes::EXCLUSIVE_FIELDS, &node.span, message);
    }
    let concurrency = fields.get("concurrency").map(|node| settings::concurrency(node, problems));
    let callback = settings::callback(&fields, problems);
    let (verdict, on_failure) = on_failure.unwrap_or(Some((None, None))).unzip();
    let verdict = fail_when.unwrap_or(Some(verdict.flatten().unwrap_or(Verdict::Unhandled)));
    fields.exclusive("tasks", "steps", problems);
    let output = fields.get("output");
    let (form, graph, own) = match (fields.get("tasks"), fields.get("steps").filter(|_| is_list)) {
        (Some(tasks), _) => {
            let graph = graph::lower(tasks, output, verdict.unwrap_or_default(), Form::Graph, problems);
            (Form::Graph, graph, Some(ListSettings::default()))
        }
        (None, Some(steps)) => {
            let own = list::settings(&fields, problems);
            let rewritten = list::rewrite(steps, problems);
            let graph = graph::lower(&rewritten, output, verdict.unwrap_or_default(), Form::Steps, problems);
            (Form::Steps, graph, own)
        }
        (None, None) => {
            let is_other = OTHER_FORMS.iter().any(|(field, _)| fields.get(field).is_some());
            if !is_other && fields.get("steps").is_none() {
                let message = "a definition needs a field `tasks` or `steps`";
                problems.add(codes::MISSING_FIELD, &root.span, message);
            }
            return None;
        }
    };
    verdict?;
    let LoweredGraph { nodes, groups, output, outputs } = graph?;
    let ListSettings { variables, max_steps } = own?;
    let layout = Layout {
        form,
        groups,
        nodes,
        output,
        outputs,
        variables: variables.into(),
        max_steps,
        max_duration: max_duration?,
        concurrency: concurrency.unwrap_or(None),
        notify: on_failure?.into_iter().chain(callback?).collect(),
        ..Default::default()
    };
    let input = match input {
        Some(input) => Some(Arc::new(input?)),
        None => None,
    };
    Some(Read { meta: meta?, trigger: trigger?, layout, input })
}

/// A schedule knows the body of its runs already. A webhook does not.
fn check_input(schema: &InputSchema, trigger: &Spec, fields: &Fields<'_>, problems: &mut Problems<'_>) {
    let Spec::Schedule(schedule) = trigger else { return };
    let body = trigger::body(schedule.input.as_ref(), None).to_string();
    let Err(found) = schema.check(body.as_bytes(), &mut Budget::default()) else { return };
    let settings = fields.get("schedule").and_then(|node| match &node.value {
        Value::Object(entries) => entries.iter().find(|entry| entry.name() == "input").map(|entry| &entry.value),
        _ => None,
    });
    let Some(place) = settings.or_else(|| fields.get("cron")) else { return };
    for problem in found {
        let message = format!("the runs of this schedule could not start: {}", problem.message);
        problems.push(Draft::new(codes::INPUT_MISMATCH, place.span.clone(), message).maybe_hint(
            problem.hint.or_else(|| Some("`schedule.input` is the body of the runs of a schedule".to_owned())),
        ));
    }
}

fn meta(fields: &Fields<'_>, place: &std::ops::Range<usize>, problems: &mut Problems<'_>) -> Option<Meta> {
    let name = fields.require("name", "a definition", place, problems).and_then(|node| name(node, problems));
    let slug = fields.get("slug").map(|node| slug(node, problems));
    let description =
        fields.get("description").map(|node| fields::text(node, "description", problems).map(str::to_owned));
    let tags = fields.get("tags").map_or(Some(Vec::new()), |node| tags(node, problems));
    let enabled = fields.get("enabled").map_or(Some(true), |node| fields::boolean(node, "enabled", problems));
    fields.get("version").map(|node| fields::text(node, "version", problems));
    let trigger = fields.get("trigger").map_or(Some("api"), |node| trigger(node, problems));
    Some(Meta {
        name: name?,
        slug: slug.unwrap_or_default(),
        description: description.unwrap_or_default(),
        tags: tags?,
        enabled: enabled?,
        trigger: trigger?.to_owned(),
    })
}

fn name(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let name = normalized(fields::text(node, "name", problems)?);
    let count = name.chars().count();
    let why = match name.chars().find(|c| is_hostile(*c)) {
        Some(c) => format!("`name` contains the character {}, which cannot be seen", quoted(&c.to_string())),
        None if count == 0 => "`name` is empty".to_owned(),
        None if name.starts_with("onward.") => "names that begin with `onward.` belong to the engine".to_owned(),
        None if count > NAME_MAX => format!("`name` has {} characters, the limit is {NAME_MAX}", grouped(count)),
        None => return Some(name),
    };
    problems.add(codes::INVALID_NAME, &node.span, why);
    None
}

fn slug(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let slug = fields::text(node, "slug", problems)?;
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let good = slug.len() <= NAME_MAX
        && slug.bytes().next().is_some_and(lower)
        && slug.bytes().all(|b| lower(b) || b == b'_' || b == b'-');
    if !good {
        let draft = Draft::new(codes::INVALID_SLUG, node.span.clone(), format!("{} is not a slug", quoted(slug)));
        problems.push(draft.hint("use up to 80 of a-z, 0-9, `_` and `-`, beginning with a letter or digit"));
        return None;
    }
    Some(slug.to_owned())
}

fn tags(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let items = fields::list(node, "tags", problems)?;
    if items.len() > TAGS_MAX {
        let message = format!("there are {} tags, the limit is {TAGS_MAX}", grouped(items.len()));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let tags: Vec<Option<String>> = items
        .iter()
        .map(|item| {
            let tag = fields::text(item, "tags", problems)?;
            if tag.trim().is_empty() || tag.chars().count() > NAME_MAX || tag.contains(is_hostile) {
                let message = format!("{} is not a tag", quoted(tag));
                let draft = Draft::new(codes::INVALID_VALUE, item.span.clone(), message);
                problems.push(draft.hint("a tag has 1 to 80 visible characters"));
                return None;
            }
            Some(normalized(tag))
        })
        .collect();
    tags.into_iter().collect()
}

fn trigger(node: &TreeNode, problems: &mut Problems<'_>) -> Option<&'static str> {
    let words = [("api", "api"), ("manual", "manual"), ("cron", "cron"), ("webhook", "webhook")];
    fields::word(node, "trigger", &words, problems)
}

/// The schedule of `trigger: cron`, the webhook of `trigger: webhook`, and `None` for other triggers.
fn own_trigger(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Option<Spec>> {
    let kind = fields
        .get("trigger")
        .and_then(|node| if let Value::Text(word) = &node.value { Some(word.as_str()) } else { None });
    for (name, needs) in [("cron", "cron"), ("timezone", "cron"), ("schedule", "cron"), ("webhook", "webhook")] {
        if let Some(entry) = fields.entry(name).filter(|_| kind != Some(needs)) {
            let message = format!("`{name}` has no meaning without `trigger: {needs}`");
            let draft = Draft::new(codes::FIELD_NOT_FOR_TRIGGER, entry.key_span.clone(), message);
            problems.push(draft.hint(format!("write `trigger: {needs}`, or remove it")));
        }
    }
    let place = fields.get("trigger").map(|node| node.span.clone()).unwrap_or_default();
    match kind {
        Some("cron") => {
            let cron = fields.require("cron", "`trigger: cron`", &place, problems);
            let none = Fields::default();
            let policies = match fields.get("schedule") {
                Some(node) => fields::object(node, "schedule", problems).unwrap_or(none),
                None => none,
            };
            policies.check(
                &Shape::only(&["missed", "missed_window", "missed_max", "overlap", "jitter", "input"]),
                problems,
            );
            let schedule = trigger::schedule(cron, fields.get("timezone"), &policies, problems)?;
            Some(Some(Spec::Schedule(Box::new(schedule))))
        }
        Some("webhook") => {
            let node = fields.require("webhook", "`trigger: webhook`", &place, problems)?;
            let settings = fields::object(node, "webhook", problems)?;
            if let Some(entry) = settings.entry("headers") {
                // Their values are secrets, and definitions are shown to users.
                let message = "a definition cannot list headers that a request must have";
                let draft = Draft::new(codes::UNSUPPORTED_SETTING, entry.key_span.clone(), message);
                problems.push(draft.hint("make the trigger with `POST /api/v1/triggers`"));
            }
            Some(Some(Spec::Webhook(Box::new(trigger::webhook(&settings, &node.span, problems)?))))
        }
        _ => Some(None),
    }
}

fn max_duration(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Span> {
    fields.exclusive("max_duration", "max_duration_seconds", problems);
    let range = (Span::from_millis(1), DURATION_MAX);
    if let Some(node) = fields.get("max_duration") {
        return duration(node, "max_duration", Unit::Seconds, range, problems);
    }
    let Some(node) = fields.get("max_duration_seconds") else { return Some(RUN_DURATION) };
    let seconds = fields::whole(node, "max_duration_seconds", 1..=DURATION_MAX.millis() as i64 / 1_000, problems)?;
    Some(Span::from_secs(seconds as u64))
}

#[cfg(test)]
mod tests;
