//! `bash`: a command that the server runs.
//!
//! A bash step is a task of the reserved type [`TYPE`], which a worker in the process of the server claims. The text of
//! the command is fixed when the workflow is written: data reaches it through `env` and `stdin`, where it cannot become
//! part of the command.

use super::{StepFields, http::all_or_nothing, task, templates};
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields::{self, Fields, Shape, Unit, duration};
use crate::tree::{Entry, TreeNode, Value};
use kernel::path::Resolve;
use kernel::plan::{Body, TaskBody, TaskKind};
use kernel::template::{Part, Template, TemplateEntry};
use kernel::time::Span;
use serde_json::json;

/// The type of the task of a `bash` step. Definitions and requests cannot use types that begin like this one.
pub const TYPE: &str = "onward.bash";

pub(super) const FIELDS: Shape = Shape {
    known: &["command", "env", "stdin", "timeout", "timeout_ms"],
    later: &[],
    synonyms: &[
        ("run", "command"),
        ("script", "command"),
        ("cmd", "command"),
        ("environment", "env"),
        ("input", "stdin"),
    ],
};

pub(super) const BESIDE: &[&str] = &["priority", "concurrency_key", "retries", "retry"];

const COMMAND_MAX: usize = 32 * 1024;
const ENV_MAX: usize = 100;
const TIMEOUT: Span = Span::from_secs(120);
const TIMEOUT_MIN: Span = Span::from_secs(1);
const TIMEOUT_MAX: Span = Span::from_secs(600);
/// The command has this much longer before the engine gives the attempt up: the worker ends it first, and says how.
const GRACE: Span = Span::from_secs(30);

/// Variables that change what bash or the programs it starts do: at least those that the library `bash` refuses.
const REFUSED: &[&str] = &[
    "CDPATH",
    "ENV",
    "EXECIGNORE",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLOBIGNORE",
    "HISTFILE",
    "HOSTALIASES",
    "IFS",
    "INPUTRC",
    "LOCALDOMAIN",
    "LOCPATH",
    "NIS_PATH",
    "NLSPATH",
    "OPTIND",
    "PATH",
    "POSIXLY_CORRECT",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "SHELL",
    "SHELLOPTS",
    "TZDIR",
];
const REFUSED_PREFIXES: &[&str] = &["BASH", "DYLD_", "GLIBC_", "LD_", "MALLOC_", "ONWARD_"];

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    body(&own, step, problems)
}

/// Reads the fields of a command.
pub(super) fn body(own: &Fields<'_>, step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let scope: &mut Resolve<'_> = &mut step.scope();
    let command = own.require("command", "`bash`", &step.entry.key_span, problems);
    let command = command.and_then(|node| command_of(node, problems));
    let env = own.get("env").map_or(Some(Vec::new()), |node| env(node, scope, problems));
    let stdin = own.get("stdin").map(|node| text(node, "stdin", scope, problems));
    own.exclusive("timeout", "timeout_ms", problems);
    let limit = |name: &str, unit, problems: &mut Problems<'_>| {
        own.get(name).map(|node| duration(node, name, unit, (TIMEOUT_MIN, TIMEOUT_MAX), problems))
    };
    let timeout = limit("timeout", Unit::Seconds, problems).or_else(|| limit("timeout_ms", Unit::Millis, problems));
    let timeout = timeout.unwrap_or(Some(TIMEOUT));
    let rest = task::settings(step.fields, step, problems);
    let timeout = timeout?;
    let stdin = all_or_nothing(stdin)?.unwrap_or_else(|| Template::literal(&serde_json::Value::Null));
    let entry =
        |key: &str, value: Template| TemplateEntry { key: key.to_owned(), value: Some(value), ..Default::default() };
    let input = Template::Object {
        entries: vec![
            entry("command", Template::literal(&json!(command?))),
            entry("env", Template::Object { entries: env? }),
            entry("stdin", stdin),
            entry("timeout_ms", Template::literal(&json!(timeout.millis()))),
        ],
    };
    let attempt = Some(Span(timeout.0 + GRACE.0));
    let task = TaskBody { name: TYPE.to_owned(), input: Some(input), attempt, kind: TaskKind::Bash, ..rest? };
    Some(Body::Task { task: Box::new(task) })
}

fn command_of(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let command = fields::text(node, "command", problems)?;
    if let Some(at) = command.find("{{") {
        let message = "a command takes no `{{…}}`: data could become part of the command";
        let problem = kernel::path::Problem::new(codes::TEMPLATE_IN_COMMAND, message, at, 2);
        let hint = "write the value into `env` (`env: {NAME: \"{{…}}\"}`) and read `\"$NAME\"`, or pass it as `stdin`";
        problems.push_inside(node, command, problem.hint(hint));
        return None;
    }
    let message = match command {
        blank if blank.trim().is_empty() => "`command` is empty".to_owned(),
        long if long.len() > COMMAND_MAX => {
            format!("`command` has {} bytes, the limit is {}", grouped(long.len()), grouped(COMMAND_MAX))
        }
        nul if nul.contains('\0') => "`command` contains NUL".to_owned(),
        command => return Some(command.to_owned()),
    };
    problems
        .push(Draft::new(codes::INVALID_VALUE, node.span.clone(), message).hint("write the command that bash runs"));
    None
}

fn env(node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Vec<TemplateEntry>> {
    let fields = fields::object(node, "env", problems)?;
    if fields.len() > ENV_MAX {
        let message = format!("`env` has {} variables, the limit is {ENV_MAX}", grouped(fields.len()));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let entries: Vec<Option<TemplateEntry>> = fields.iter().map(|entry| variable(entry, scope, problems)).collect();
    entries.into_iter().collect()
}

fn variable(entry: &Entry, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<TemplateEntry> {
    let name = entry.key.as_str();
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_refused = REFUSED.contains(&name) || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let problem = match (is_name, is_refused) {
        (false, _) => Some((
            format!("{} is not the name of an environment variable", quoted(name)),
            "a name has letters, digits and `_`, and does not begin with a digit",
        )),
        (true, true) => Some((
            format!("{} would change how commands are found or run", quoted(name)),
            "choose another name; a command can set it itself",
        )),
        (true, false) => None,
    };
    if let Some((message, hint)) = &problem {
        problems.push(Draft::new(codes::INVALID_ENV, entry.key_span.clone(), message.as_str()).hint(*hint));
    }
    let value = match &entry.value.value {
        Value::Int(_) | Value::Real(_) | Value::Bool(_) => {
            let text = entry.value.to_json().to_string();
            Some(Template::literal(&json!(text)))
        }
        _ => text(&entry.value, "env", scope, problems),
    };
    let value = Some(value.filter(|_| problem.is_none())?);
    Some(TemplateEntry { key: name.to_owned(), value, ..Default::default() })
}

/// A text, whatever the values in it: a command reads texts only.
fn text(node: &TreeNode, what: &str, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Template> {
    let parts = templates::parts(node, what, scope, problems)?;
    Some(match parts.as_slice() {
        [Part { path: Some(_), .. }] => Template::Text { parts },
        _ => Template::from_parts(parts),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{check, check_step, steps};
    use kernel::plan::TaskBody;
    use kernel::time::Span;

    fn bash(fields: &str) -> TaskBody {
        let plan = steps(&format!("s: {{bash: {{command: date, {fields}}}}}")).unwrap().plan;
        assert_eq!(plan.node_at(0).retry.max_attempts, 1);
        assert_eq!(plan.node_at(0).body.as_ref().unwrap().kind(), "bash");
        plan.node_at(0).task().unwrap().clone()
    }

    #[test]
    fn a25_a_command_has_an_environment_an_input_and_a_time_limit() {
        let plain = bash("");
        assert_eq!((plain.name.as_str(), plain.attempt), ("onward.bash", Some(Span::from_secs(150))));
        let all = bash("env: {A: '{{trigger.body.a}}', B: 7}, stdin: '{{trigger.body}}', timeout: 10m");
        assert_eq!(all.attempt, Some(Span::from_secs(630)));
        let text = format!("{:?}", all.input);
        assert!(text.contains("timeout_ms") && text.contains("600000"), "{text}");
        check_step(&[
            ("bash: date", "wrong_type tasks.s.bash"),
            ("bash: {}", "missing_field tasks.s.bash"),
            ("bash: {command: ' '}", "invalid_value tasks.s.bash.command"),
            ("bash: {command: 7}", "wrong_type tasks.s.bash.command"),
            ("bash: {command: date, timeout: 999ms}", "out_of_range tasks.s.bash.timeout"),
            ("bash: {command: date, timeout: 601s}", "out_of_range tasks.s.bash.timeout"),
            ("bash: {command: date, timeout: 600}", "ok"),
            ("bash: {command: date, stdin: {a: 1}}", "wrong_type tasks.s.bash.stdin"),
            ("bash: {command: date, env: [a]}", "wrong_type tasks.s.bash.env"),
            ("bash: {command: date, env: {A: [1]}}", "wrong_type tasks.s.bash.env.A"),
            ("bash: {command: date, env: {a1_B: x, _: true}}", "ok"),
            ("bash: {command: date, env: {1A: x}}", "invalid_env tasks.s.bash.env.1A"),
        ]);
        for name in [
            "PATH",
            "IFS",
            "ENV",
            "LD_PRELOAD",
            "BASH_ENV",
            "BASH_FUNC_x",
            "SHELLOPTS",
            "DYLD_X",
            "ONWARD_KEY",
            "SHELL",
            "MALLOC_X",
        ] {
            let expected = format!("invalid_env tasks.s.bash.env.{name}");
            check_step(&[(&format!("bash: {{command: date, env: {{{name}: x}}}}"), &expected)]);
        }
    }

    #[test]
    fn decision_5_data_never_becomes_part_of_a_command() {
        check(
            "s: {bash: {command: \"echo {{trigger.body.x}}\"}}",
            "template_in_command tasks.s.bash.command: a command takes no `{{…}}`: data could become part of the command (write the value into `env` (`env: {NAME: \"{{…}}\"}`) and read `\"$NAME\"`, or pass it as `stdin`)",
        );
    }

    #[test]
    fn a_type_of_the_engine_is_refused() {
        check_step(&[("task: onward.bash", "invalid_type tasks.s.task"), ("task: onwards.x", "ok")]);
    }
}
