//! One step: its kind and its fields, the same in every form of workflow.
//!
//! Each kind has one field that identifies it (`url`, `sleep`, …). The form reads the dependencies (`needs`); a step
//! only gets a `scope` that resolves the paths it may read.

pub(crate) mod group;
mod http;
mod kinds;
mod pairs;
pub(crate) mod retry;
pub(crate) mod task;
mod templates;
mod url;

pub(crate) use templates::{key, template};
pub(crate) use url::literal as literal_url;

use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, TreeNode, Value};
use group::{LoopNames, ReadFrom, ReadPath};
use kernel::expr::{self, Expr};
use kernel::path::{Problem, Resolve};
use kernel::plan::{Body, Guard, Retry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Http,
    Sleep,
    WaitForWebhook,
    Set,
    Log,
    Noop,
    Task,
    Group,
    Loop,
}

/// The field that identifies each kind, and the name of the kind.
const KINDS: &[(&str, &str, Kind)] = &[
    ("url", "http", Kind::Http),
    ("sleep", "sleep", Kind::Sleep),
    ("wait_for_webhook", "wait_for_webhook", Kind::WaitForWebhook),
    ("set", "set", Kind::Set),
    ("log", "log", Kind::Log),
    ("noop", "noop", Kind::Noop),
    ("task", "task", Kind::Task),
    ("group", "group", Kind::Group),
    ("loop", "loop", Kind::Loop),
];

/// The kinds of step that a definition may use.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(_, word, _)| *word)
}

/// The identifying fields of kinds that are not built, refused as `unsupported_step_kind`.
pub const LATER_KINDS: &[&str] = &[
    "wait_for_signal",
    "approval",
    "pause",
    "bash",
    "tool",
    "agent",
    "agent_message",
    "conditional",
    "parallel",
    "subworkflow",
    "script",
    "wait",
];

/// Fields that every kind has. The form reads `needs`.
const COMMON: &[&str] = &["needs", "if", "description", "allow_failure"];

/// Fields of kinds whose attempts may fail.
const ATTEMPT_FIELDS: &[&str] = &["timeout", "retries", "retry"];

/// Fields that only some kinds have, with those kinds and their names for messages.
const FIELDS_OF_SOME_KINDS: &[(&[&str], &[Kind], &str)] = &[
    (http::FIELDS, &[Kind::Http], "http"),
    (task::FIELDS, &[Kind::Task], "task"),
    (ATTEMPT_FIELDS, &[Kind::Http, Kind::Task], "http and task"),
];

const ALL_FIELDS_COUNT: usize =
    COMMON.len() + KINDS.len() + http::FIELDS.len() + task::FIELDS.len() + ATTEMPT_FIELDS.len();

/// The fields of all kinds, to suggest from when a step has no kind.
const ALL_FIELDS: [&str; ALL_FIELDS_COUNT] = {
    let mut kinds = [""; KINDS.len()];
    let mut i = 0;
    while i < KINDS.len() {
        kinds[i] = KINDS[i].0;
        i += 1;
    }
    joined(&[COMMON, &kinds, http::FIELDS, task::FIELDS, ATTEMPT_FIELDS])
};

/// Concatenates lists.
const fn joined<const N: usize>(lists: &[&[&'static str]]) -> [&'static str; N] {
    let mut all = [""; N];
    let (mut at, mut list) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            all[at] = lists[list][i];
            (at, i) = (at + 1, i + 1);
        }
        list += 1;
    }
    all
}

const NO_KIND: Shape = Shape {
    known: &ALL_FIELDS,
    later: &[
        "compensate",
        "irreversible",
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
        "undo",
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
    ],
};

/// A step whose kind has been determined.
pub(crate) struct ParsedStep<'t> {
    pub name: &'t str,
    pub entry: &'t Entry,
    pub fields: Option<Fields<'t>>,
    /// `None` when it is unknown; that has been reported.
    pub kind: Option<Kind>,
}

/// What a step lowers to, except its links.
pub(crate) struct Lowered {
    pub guard: Option<Guard>,
    pub body: Option<Body>,
    pub retry: Retry,
    pub allow_failure: bool,
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
        ParsedStep { name, entry, fields, kind }
    }

    /// The steps inside of it, and the names that a loop has for its items.
    pub fn inside(&self) -> Option<(&'t TreeNode, Option<LoopNames<'t>>)> {
        let fields = self.fields.as_ref()?;
        match self.kind? {
            Kind::Group => group::inside(fields, "group"),
            Kind::Loop => group::inside(fields, "loop"),
            _ => None,
        }
    }

    /// Reads all fields of a step except `needs` and the steps inside of it, and reports their problems. `group` is the
    /// number of the group of those steps.
    pub fn lower(&self, paths: &ReadPath<'_>, group: Option<u32>, problems: &mut Problems<'_>) -> Lowered {
        let scope: &mut Resolve<'_> = &mut |raw| paths(ReadFrom::Step, raw);
        let Some(fields) = &self.fields else {
            return Lowered { guard: None, body: None, retry: retry::once(), allow_failure: false };
        };
        fields.get("description").map(|node| fields::text(node, "description", problems));
        let allow_failure = fields.get("allow_failure").and_then(|n| fields::boolean(n, "allow_failure", problems));
        let guard = fields.get("if").and_then(|node| guard(node, scope, problems));
        if let Some(kind) = self.kind {
            self.check_fields(kind, fields, problems);
        }
        let retry = match self.kind {
            Some(Kind::Http) => retry::read(fields, retry::http_default(), problems),
            Some(Kind::Task) => retry::read(fields, retry::task_default(), problems),
            _ => retry::once(),
        };
        let body = match self.kind {
            Some(Kind::Http) => http::read(self, fields, scope, problems),
            Some(Kind::Sleep) => kinds::sleep(fields, problems),
            Some(Kind::WaitForWebhook) => kinds::webhook(fields, problems),
            Some(Kind::Set) => kinds::set(fields, scope, problems),
            Some(Kind::Log) => kinds::log(fields, scope, problems),
            Some(Kind::Noop) => kinds::noop(fields, problems),
            Some(Kind::Task) => task::read(fields, scope, problems),
            Some(Kind::Group) => group::group(fields, paths, group.unwrap_or(0), problems),
            Some(Kind::Loop) => group::repeat(fields, paths, group.unwrap_or(0), problems),
            None => None,
        };
        Lowered { guard, body, retry, allow_failure: allow_failure.unwrap_or(false) }
    }

    /// R3: each kind refuses the fields of another.
    fn check_fields(&self, kind: Kind, fields: &Fields<'_>, problems: &mut Problems<'_>) {
        fields.check_spellings(problems);
        for entry in fields.iter() {
            let name = entry.name();
            let own = COMMON.contains(&&*name) || KINDS.iter().any(|(field, ..)| *field == name);
            if own || LATER_KINDS.contains(&&*name) {
                continue;
            }
            match FIELDS_OF_SOME_KINDS.iter().find(|(fields, ..)| fields.contains(&&*name)) {
                Some((_, kinds, _)) if kinds.contains(&kind) => {}
                Some((.., owners)) => {
                    let message =
                        format!("`{name}` belongs to {owners} steps, {} is a {} step", quoted(self.name), kind.word());
                    problems.add(codes::FIELD_NOT_FOR_KIND, &entry.key_span, message);
                }
                None => Shape { known: kind.fields(), ..NO_KIND }.refuse(entry, problems),
            }
        }
    }
}

impl Kind {
    pub fn word(self) -> &'static str {
        KINDS.iter().find(|(.., kind)| *kind == self).map_or("", |(_, word, _)| word)
    }

    /// Fields to suggest from.
    fn fields(self) -> &'static [&'static str] {
        const HTTP: [&str; COMMON.len() + 1 + http::FIELDS.len() + ATTEMPT_FIELDS.len()] =
            joined(&[COMMON, &["url"], http::FIELDS, ATTEMPT_FIELDS]);
        const TASK: [&str; COMMON.len() + 1 + task::FIELDS.len() + ATTEMPT_FIELDS.len()] =
            joined(&[COMMON, &["task"], task::FIELDS, ATTEMPT_FIELDS]);
        match self {
            Kind::Http => &HTTP,
            Kind::Task => &TASK,
            Kind::Sleep => &["needs", "if", "description", "allow_failure", "sleep"],
            Kind::WaitForWebhook => &["needs", "if", "description", "allow_failure", "wait_for_webhook"],
            Kind::Set => &["needs", "if", "description", "allow_failure", "set"],
            Kind::Log => &["needs", "if", "description", "allow_failure", "log"],
            Kind::Noop => &["needs", "if", "description", "allow_failure", "noop"],
            Kind::Group => &["needs", "if", "description", "allow_failure", "group"],
            Kind::Loop => &["needs", "if", "description", "allow_failure", "loop"],
        }
    }
}

/// The grammar of decision 16.
fn is_step_name(name: &str) -> bool {
    name.len() <= 80
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The step in a message: its name, unless the name is invalid and could garble the message.
fn name_for_message(name: &str) -> &str {
    if is_step_name(name) { name } else { "a step" }
}

/// R2: exactly one kind.
fn kind_of(entry: &Entry, fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Kind> {
    let name = &entry.key;
    let field_of = |e: &&Entry| KINDS.iter().any(|(field, ..)| *field == e.name()) || LATER_KINDS.contains(&&*e.name());
    let found: Vec<&Entry> = fields.iter().filter(field_of).collect();
    let [one] = found.as_slice() else {
        match found.get(1) {
            None => {
                let kinds: Vec<&str> = KINDS.iter().map(|(field, ..)| *field).collect();
                let message = format!("{} does not say what it does", quoted(name));
                let draft = Draft::new(codes::NO_STEP_KIND, entry.key_span.clone(), message);
                let has = |own: &[&str]| fields.iter().any(|e| own.contains(&&*e.name()));
                problems.push(draft.hint(match (has(http::FIELDS), has(task::FIELDS)) {
                    (true, _) => "an http step needs a `url`".to_owned(),
                    (_, true) => "a task step needs a `task`: the type that workers claim it by".to_owned(),
                    _ => format!("give it one of {}", one_of(&kinds)),
                }));
                fields.check(&NO_KIND, problems);
            }
            Some(second) => {
                let message = format!("{} has both `{}` and `{}`", quoted(name), found[0].key, second.key);
                let draft = Draft::new(codes::TWO_STEP_KINDS, second.key_span.clone(), message);
                problems.push(draft.hint("a step does one thing; make two steps and let one need the other"));
            }
        }
        return None;
    };
    let kind = KINDS.iter().find(|(field, ..)| *field == one.name()).map(|(.., kind)| *kind);
    if kind.is_none() {
        let message = format!("`{}` steps are not supported in this release", one.key);
        let hint = (one.key == "wait").then(|| "in a graph a pause is written `sleep`".to_owned());
        problems.push(Draft::new(codes::UNSUPPORTED_STEP_KIND, one.key_span.clone(), message).maybe_hint(hint));
    }
    kind
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

/// The object in the field of a kind. A value of another type is reported with an example.
fn inner<'t>(node: &'t TreeNode, what: &str, example: &str, problems: &mut Problems<'_>) -> Option<Fields<'t>> {
    if !matches!(node.value, Value::Object(_)) {
        let Draft { code, message, span, .. } = fields::wrong_type(node, what, "an object");
        problems.push(Draft::new(code, span, message).hint(format!("write `{what}: {example}`")));
        return None;
    }
    fields::object(node, what, problems)
}

#[cfg(test)]
mod tests;
