//! One step: its kind and its fields, the same in every form of workflow.
//!
//! Each kind has one field that identifies it (`url`, `sleep`, …), a row in [`KINDS`], and a module that reads it. The
//! form reads the dependencies (`needs`); a step only gets a function that resolves the paths it may read.

mod agent;
mod approval;
mod bash;
pub(crate) mod group;
mod http;
mod log;
mod names;
mod noop;
mod pairs;
mod pause;
pub(crate) mod retry;
mod set;
mod sleep;
mod subworkflow;
pub(crate) mod task;
mod templates;
mod tool;
mod undo;
mod url;
mod wait_for_signal;
mod wait_for_webhook;

pub use bash::TYPE as BASH_TYPE;
pub(crate) use templates::{key, template};
pub(crate) use undo::WITH_ATTEMPTS;
pub(crate) use url::literal as literal_url;

use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, TreeNode, Value};
use group::{LoopNames, ReadFrom, ReadPath, StepOrder};
use kernel::expr::{self, Expr};
use kernel::path::{Problem, RawPath, Ref, Resolve};
use kernel::plan::{Body, Guard, Retry};
use undo::Undo;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Http,
    Sleep,
    WaitForWebhook,
    WaitForSignal,
    Approval,
    Pause,
    Set,
    Log,
    Noop,
    Task,
    Bash,
    Tool,
    Agent,
    AgentMessage,
    Subworkflow,
    Group,
    Loop,
    /// Of step lists only: graphs have conditions and needs.
    Conditional,
    Parallel,
}

/// What is known about a kind.
pub(crate) struct KindInfo {
    pub kind: Kind,
    /// The field that identifies it.
    pub field: &'static str,
    /// Its name.
    pub word: &'static str,
    /// A value of `field`, for hints.
    example: &'static str,
    /// Fields beside `field` that only some kinds have.
    pub beside: &'static [&'static str],
    /// If the value of `field` is an object with fixed fields: these. In a step list they stand in the step itself.
    pub inside: Option<&'static Shape>,
    /// Otherwise, what a step list calls the value of `field`.
    pub list_field: &'static str,
    /// Why graphs have no such kind.
    not_in_graphs: Option<&'static str>,
    /// The default policy of a kind whose attempts can be repeated.
    retry: Option<fn() -> Retry>,
    read: ReadKind,
}

/// Reads what is particular to a kind. `None` after a problem.
type ReadKind = fn(&StepFields<'_, '_>, &mut Problems<'_>) -> Option<Body>;

/// Every kind, in the order in which they are listed in messages.
pub(crate) const KINDS: &[KindInfo] = &[
    KindInfo {
        word: "http",
        beside: http::FIELDS,
        retry: Some(retry::http_default),
        list_field: "url",
        ..kind(Kind::Http, "url", "https://example.com/orders", http::read)
    },
    KindInfo { list_field: "duration", ..kind(Kind::Sleep, "sleep", "13d", sleep::read) },
    KindInfo {
        inside: Some(&wait_for_webhook::FIELDS),
        ..kind(Kind::WaitForWebhook, "wait_for_webhook", "{}` or `{timeout: 1h}", wait_for_webhook::read)
    },
    KindInfo {
        inside: Some(&wait_for_signal::FIELDS),
        ..kind(Kind::WaitForSignal, "wait_for_signal", "{name: paid}", wait_for_signal::read)
    },
    KindInfo {
        inside: Some(&approval::FIELDS), ..kind(Kind::Approval, "approval", "{prompt: \"…\"}", approval::read)
    },
    KindInfo { inside: Some(&pause::FIELDS), ..kind(Kind::Pause, "pause", "{}` or `{timeout: 1h}", pause::read) },
    KindInfo { list_field: "values", ..kind(Kind::Set, "set", "{total: \"{{tasks.charge.body.amount}}\"}", set::read) },
    KindInfo { inside: Some(&log::FIELDS), ..kind(Kind::Log, "log", "{message: \"…\"}", log::read) },
    KindInfo { inside: Some(&noop::FIELDS), ..kind(Kind::Noop, "noop", "{}", noop::read) },
    KindInfo {
        beside: task::FIELDS,
        retry: Some(retry::task_default),
        list_field: "task",
        ..kind(Kind::Task, "task", "billing.invoice.v1", task::read)
    },
    KindInfo {
        beside: bash::BESIDE,
        inside: Some(&bash::FIELDS),
        retry: Some(retry::child_default),
        ..kind(Kind::Bash, "bash", "{command: \"…\"}", bash::read)
    },
    KindInfo {
        beside: tool::FIELDS,
        retry: Some(retry::task_default),
        list_field: "tool",
        ..kind(Kind::Tool, "tool", "web.search", tool::read)
    },
    KindInfo {
        beside: agent::BESIDE,
        inside: Some(&agent::AGENT),
        retry: Some(retry::task_default),
        ..kind(Kind::Agent, "agent", "{goal: \"…\"}", agent::agent)
    },
    KindInfo {
        beside: agent::BESIDE,
        inside: Some(&agent::MESSAGE),
        retry: Some(retry::task_default),
        ..kind(Kind::AgentMessage, "agent_message", "{content: \"…\"}", agent::message)
    },
    KindInfo {
        beside: subworkflow::BESIDE,
        inside: Some(&subworkflow::FIELDS),
        retry: Some(retry::child_default),
        ..kind(Kind::Subworkflow, "subworkflow", "send-invoice` or `{workflow: send-invoice}", subworkflow::read)
    },
    KindInfo { inside: Some(&group::GROUP), ..kind(Kind::Group, "group", "{tasks: {…}}", group::group) },
    KindInfo {
        inside: Some(&group::LOOP), ..kind(Kind::Loop, "loop", "{items: \"…\", tasks: {…}}", group::repeat)
    },
    KindInfo {
        inside: Some(&group::CONDITIONAL),
        not_in_graphs: Some("in a graph, give the steps an `if`"),
        ..kind(Kind::Conditional, "conditional", "", group::conditional)
    },
    KindInfo {
        inside: Some(&group::PARALLEL),
        not_in_graphs: Some("in a graph, steps that do not need each other run in parallel"),
        ..kind(Kind::Parallel, "parallel", "", group::parallel)
    },
];

/// A kind whose name is that of its field, and that has nothing else.
const fn kind(kind: Kind, field: &'static str, example: &'static str, read: ReadKind) -> KindInfo {
    let (beside, inside, list_field, not_in_graphs, retry) = (&[] as &[&str], None, "", None, None);
    KindInfo { kind, field, word: field, example, beside, inside, list_field, not_in_graphs, retry, read }
}

/// The kinds of step that a definition may use.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|info| info.word)
}

/// The identifying fields of kinds that are not built, refused as `unsupported_step_kind`.
pub const LATER_KINDS: &[&str] = &["script"];

/// What step lists call a `sleep`, too.
pub(crate) const WAIT: &str = "wait";

/// Fields that every kind has. The form reads `needs`.
pub(crate) const COMMON: &[&str] = &[
    "needs",
    "if",
    "description",
    "allow_failure",
    "compensate",
    "compensatable",
    "compensate_on_unknown",
    "irreversible",
];

/// The kinds of steps with steps inside of them.
const HOLDERS: [Kind; 4] = [Kind::Group, Kind::Loop, Kind::Conditional, Kind::Parallel];

/// A field of every step of a list.
pub(crate) const OUTPUT_VARIABLE: &str = "output_variable";

/// The kinds that have a field beside the one that identifies them.
fn owners(field: &str) -> Vec<&'static KindInfo> {
    KINDS.iter().filter(|info| info.beside.contains(&field)).collect()
}

/// The kind with this identifying field.
fn kind_with(field: &str) -> Option<&'static KindInfo> {
    KINDS.iter().find(|info| info.field == field)
}

/// The fields of a step: those that are known depend on its kind.
const STEP: Shape = Shape {
    known: &[],
    later: &[
        "callback_url",
        "labels",
        "concurrency",
        "output",
        "outputs",
        "on_error",
        "recovery",
        "join",
        "queue",
        "cache",
    ],
    synonyms: &[
        ("after", "needs"),
        ("depends_on", "needs"),
        ("dependsOn", "needs"),
        ("requires", "needs"),
        ("when", "if"),
        ("condition", "if"),
        ("timeout_ms", "timeout"),
        ("timeoutMs", "timeout"),
        ("retry_attempts", "retries"),
        ("delay", "sleep"),
        ("uri", "url"),
        ("verb", "method"),
        ("expected_status_codes", "expected_status"),
        ("params", "query"),
        ("max_redirects", "redirects"),
        ("follow_redirects", "redirects"),
        ("json", "body"),
        ("key", "concurrency_key"),
        ("worker", "task"),
        ("payload", "input"),
        ("undo", "compensate"),
        ("compensation", "compensate"),
        ("rollback", "compensate"),
    ],
};

/// A step whose kind has been determined.
pub(crate) struct ParsedStep<'t> {
    pub name: &'t str,
    pub entry: &'t Entry,
    pub fields: Option<Fields<'t>>,
    /// `None` when it is unknown; that has been reported.
    pub kind: Option<&'static KindInfo>,
    /// Its fields have been checked by the list that it is in.
    is_of_list: bool,
}

/// What a step lowers to, except its links.
pub(crate) struct Lowered {
    pub guard: Option<Guard>,
    pub body: Option<Body>,
    pub retry: Retry,
    pub allow_failure: bool,
    pub undo: Undo,
}

impl<'t> ParsedStep<'t> {
    pub fn new(entry: &'t Entry, problems: &mut Problems<'_>) -> ParsedStep<'t> {
        let name = entry.key.as_str();
        if !is_step_name(name) {
            let draft = Draft::new(
                codes::INVALID_STEP_NAME,
                entry.key_span.clone(),
                format!("{} is not a step name", quoted(name)),
            );
            problems.push(draft.hint("a name begins with a letter and has up to 80 letters, digits, `_` and `-`"));
        }
        let fields = fields::object(&entry.value, name_for_message(name), problems);
        let kind = fields.as_ref().and_then(|fields| kind_of(entry, fields, problems));
        ParsedStep { name, entry, fields, kind, is_of_list: false }
    }

    /// A step of a list, whose kind and fields have been checked: its first field is that of its kind.
    pub fn of_list(entry: &'t Entry, problems: &mut Problems<'_>) -> ParsedStep<'t> {
        let fields = fields::object(&entry.value, "a step", problems);
        let kind = fields.as_ref().and_then(|fields| kind_with(&fields.iter().next()?.key));
        ParsedStep { name: &entry.key, entry, fields, kind, is_of_list: true }
    }

    /// The steps inside of it, and the names that a loop has for its items.
    pub fn inside(&self) -> Option<(&'t TreeNode, Option<LoopNames<'t>>)> {
        let info = self.kind.filter(|info| HOLDERS.contains(&info.kind))?;
        group::inside(self.fields.as_ref()?.get(info.field)?, info.kind == Kind::Loop)
    }

    /// How the steps inside of it follow each other, in a step list.
    pub fn order(&self) -> StepOrder {
        let own = || self.fields.as_ref()?.get(self.kind?.field);
        match self.kind.map(|info| info.kind) {
            Some(Kind::Parallel) => StepOrder::Parallel,
            Some(Kind::Conditional) => own().map_or(StepOrder::default(), group::order),
            _ => StepOrder::Sequence,
        }
    }

    /// What in `outputs` its result is written to, in a step list. That it is a name has been checked.
    pub fn output(&self) -> Option<(&'t str, &'t Entry)> {
        let entry = self.fields.as_ref()?.entry(OUTPUT_VARIABLE)?;
        match &entry.value.value {
            Value::Text(name) => Some((name, entry)),
            _ => None,
        }
    }

    /// Reads all fields of a step except `needs` and the steps inside of it, and reports their problems. `group` is the
    /// number of the group of those steps.
    pub fn lower(&self, paths: &ReadPath<'_>, group: Option<u32>, problems: &mut Problems<'_>) -> Lowered {
        let scope: &mut Resolve<'_> = &mut |raw| paths(ReadFrom::Step, raw);
        let Some(fields) = &self.fields else {
            let (retry, undo) = (retry::once(), Undo::default());
            return Lowered { guard: None, body: None, retry, allow_failure: false, undo };
        };
        fields.get("description").map(|node| fields::text(node, "description", problems));
        let allow_failure = fields.get("allow_failure").and_then(|n| fields::boolean(n, "allow_failure", problems));
        let guard = fields.get("if").and_then(|node| guard(node, scope, problems));
        let (mut body, mut policy) = (None, retry::once());
        if let Some((info, entry)) = self.kind.and_then(|info| Some((info, fields.entry(info.field)?))) {
            if !self.is_of_list {
                self.check_fields(info, COMMON, fields, problems);
            }
            if let Some(default) = info.retry {
                policy = retry::read(fields, default(), problems);
            }
            let group = group.unwrap_or(0);
            body = (info.read)(&StepFields { name: self.name, info, entry, fields, paths, group }, problems);
        }
        let undo = Undo::read(self, paths, problems);
        Lowered { guard, body, retry: policy, allow_failure: allow_failure.unwrap_or(false), undo }
    }

    /// R3: each kind refuses the fields of another. `common` are those that every kind has here.
    fn check_fields(&self, info: &KindInfo, common: &[&str], fields: &Fields<'_>, problems: &mut Problems<'_>) {
        fields.check_spellings(problems);
        for entry in fields.iter() {
            let name = entry.name();
            if common.contains(&&*name) || info.beside.contains(&&*name) {
                continue;
            }
            // A second kind has been reported.
            if kind_with(&name).is_some() || LATER_KINDS.contains(&&*name) || name == WAIT {
                continue;
            }
            let owners: Vec<&str> = owners(&name).iter().map(|owner| owner.word).collect();
            let is_inside = info.inside.is_some_and(|inside| inside.known.contains(&&*name));
            let (code, message) = match owners.as_slice() {
                [] if is_inside => {
                    (codes::UNKNOWN_FIELD, format!("there is no field `{name}` beside `{}`", info.field))
                }
                [] => {
                    STEP.refuse_among(&info.fields(common), entry, problems);
                    continue;
                }
                owners => {
                    let (owners, kind) = (all_of(owners), info.with_article());
                    let message = format!("`{name}` belongs to {owners} steps, {} is {kind} step", quoted(self.name));
                    (codes::FIELD_NOT_FOR_KIND, message)
                }
            };
            let hint = is_inside.then(|| format!("write it inside of `{}`", info.field));
            problems.push(Draft::new(code, entry.key_span.clone(), message).maybe_hint(hint));
        }
    }
}

/// A step as the reader of its kind gets it.
struct StepFields<'a, 't> {
    name: &'t str,
    info: &'static KindInfo,
    /// The field that identifies its kind.
    entry: &'t Entry,
    fields: &'a Fields<'t>,
    paths: &'a ReadPath<'a>,
    /// The number of the group inside of it.
    group: u32,
}

impl<'t> StepFields<'_, 't> {
    /// The value of the field that identifies the kind.
    fn value(&self) -> &'t TreeNode {
        &self.entry.value
    }

    /// That value, if it is an object. One of another type is reported with an example.
    fn object(&self, problems: &mut Problems<'_>) -> Option<Fields<'t>> {
        let (node, KindInfo { field, example, inside, .. }) = (self.value(), self.info);
        if !matches!(node.value, Value::Object(_)) {
            let Draft { code, message, span, .. } = fields::wrong_type(node, field, "an object");
            problems.push(Draft::new(code, span, message).hint(format!("write `{field}: {example}`")));
            return None;
        }
        let own = fields::object(node, field, problems)?;
        if let Some(shape) = inside {
            own.check(shape, problems);
        }
        Some(own)
    }

    /// Resolves the paths that the step may read before it starts.
    fn scope(&self) -> impl FnMut(&RawPath<'_>) -> Result<Ref, Problem> {
        |raw| (self.paths)(ReadFrom::Step, raw)
    }
}

impl KindInfo {
    /// Fields to suggest from.
    fn fields<'c>(&self, common: &[&'c str]) -> Vec<&'c str> {
        [common, &[self.field], self.beside].concat()
    }

    /// Its name after `a` or `an`.
    pub fn with_article(&self) -> String {
        // The h of http is spoken as a vowel.
        let article = if self.word.starts_with(['a', 'h']) { "an" } else { "a" };
        format!("{article} {}", self.word)
    }
}

/// a, b and c.
fn all_of(words: &[&str]) -> String {
    match words {
        [head @ .., last] if !head.is_empty() => format!("{} and {last}", head.join(", ")),
        _ => words.concat(),
    }
}

/// The grammar of decision 16.
pub(crate) fn is_step_name(name: &str) -> bool {
    name.len() <= 80
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The step in a message: its name, unless the name is invalid and could garble the message.
fn name_for_message(name: &str) -> &str {
    if is_step_name(name) { name } else { "a step" }
}

/// R2: exactly one kind.
fn kind_of(entry: &Entry, fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<&'static KindInfo> {
    let name = &entry.key;
    let names_kind = |e: &&Entry| kind_with(&e.name()).is_some() || LATER_KINDS.contains(&&*e.name()) || e.key == WAIT;
    let found: Vec<&Entry> = fields.iter().filter(names_kind).collect();
    let [one] = found.as_slice() else {
        match found.get(1) {
            None => {
                let in_graphs = KINDS.iter().filter(|info| info.not_in_graphs.is_none());
                let kinds: Vec<&str> = in_graphs.map(|info| info.field).collect();
                let message = format!("{} does not say what it does", quoted(name));
                let draft = Draft::new(codes::NO_STEP_KIND, entry.key_span.clone(), message);
                let is_only_of = |kind: Kind, e: &Entry| matches!(*owners(&e.name()), [one] if one.kind == kind);
                let has_only_of = |kind: Kind| fields.iter().any(|e| is_only_of(kind, e));
                problems.push(draft.hint(match (has_only_of(Kind::Http), has_only_of(Kind::Task)) {
                    (true, _) => "an http step needs a `url`".to_owned(),
                    (_, true) => "a task step needs a `task`: the type that workers claim it by".to_owned(),
                    _ => format!("give it one of {}", one_of(&kinds)),
                }));
                let beside = KINDS.iter().flat_map(|info| info.beside.iter().copied());
                let known: Vec<&str> = COMMON.iter().copied().chain(kinds).chain(beside).collect();
                fields.check_spellings(problems);
                let unknown = fields.iter().filter(|e| !known.contains(&&*e.name()));
                unknown.for_each(|e| STEP.refuse_among(&known, e, problems));
            }
            Some(second) => {
                let message = format!("{} has both `{}` and `{}`", quoted(name), found[0].key, second.key);
                let draft = Draft::new(codes::TWO_STEP_KINDS, second.key_span.clone(), message);
                problems.push(draft.hint("a step does one thing; make two steps and let one need the other"));
            }
        }
        return None;
    };
    let info = kind_with(&one.name());
    let (message, hint) = match info.map(|info| info.not_in_graphs) {
        Some(None) => return info,
        Some(Some(hint)) => (format!("`{}` is a step of step lists (`steps`)", one.key), Some(hint)),
        None if one.key == WAIT => (format!("a graph has no `{WAIT}`"), Some("in a graph a pause is written `sleep`")),
        None => (format!("`{}` steps are not supported in this release", one.key), None),
    };
    let draft = Draft::new(codes::UNSUPPORTED_STEP_KIND, one.key_span.clone(), message);
    problems.push(draft.maybe_hint(hint.map(str::to_owned)));
    None
}

/// The condition of a step.
fn guard(node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Guard> {
    let (expr, text) = expression(node, "if", scope, problems)?;
    Some(Guard { expr: Some(expr), text, ..Default::default() })
}

/// An expression and its text.
fn expression(
    node: &TreeNode,
    what: &str,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<(Expr, String)> {
    let Value::Text(text) = &node.value else {
        let draft = fields::wrong_type(node, what, "an expression, as a text");
        problems.push(match node.value {
            Value::Bool(_) | Value::Int(_) => draft.hint("put the expression in quotes"),
            _ => draft,
        });
        return None;
    };
    if let Some(at) = text.find("{{") {
        let what = if what == "items" { "`items`" } else { "a condition" };
        let problem = Problem::new(codes::TEMPLATE_IN_CONDITION, format!("{what} takes no `{{{{…}}}}`"), at, 2);
        let hint = "an expression names values directly: `tasks.charge.status_code == 200`";
        problems.push_inside(node, text, problem.hint(hint));
        return None;
    }
    match expr::parse(text, scope) {
        Ok(expr) => Some((expr, text.clone())),
        Err(found) => {
            found.into_iter().for_each(|problem| problems.push_inside(node, text, problem));
            None
        }
    }
}

#[cfg(test)]
mod tests;
