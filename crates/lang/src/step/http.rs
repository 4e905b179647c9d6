//! Http steps: one request, its limits, and what counts as success.

use super::{StepFields, pairs, templates, url};
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, one_of, quoted};
use crate::fields::{self, Unit, duration};
use crate::tree::{Entry, TreeNode, Value};
use kernel::path::Resolve;
use kernel::plan::{Body, Header, Http, StatusRange};
use kernel::template::Template;
use kernel::time::Span;

/// The fields beside `url`.
pub(super) const FIELDS: &[&str] = &[
    "method",
    "headers",
    "query",
    "body",
    "form",
    "expected_status",
    "redirects",
    "allow_hosts",
    "host_backoff",
    "timeout",
    "retries",
    "retry",
];

const METHODS: &[&str] = &["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const TIMEOUT: Span = Span::from_secs(30);
const TIMEOUT_MAX: Span = Span::from_secs(3_600);
const HEADERS_MAX: usize = 64;
/// Most servers refuse a longer header value.
const HEADER_VALUE_MAX: usize = 8 * 1024;
const HOSTS_MAX: usize = 64;
const REDIRECTS_MAX: i64 = 10;

/// Headers that describe the connection or the message; the engine sets them. `Idempotency-Key` is not among them: the
/// author may have a better key than run and step.
const RESERVED: &[&str] = &["host", "content-length", "transfer-encoding", "connection"];
const RESERVED_PREFIX: &str = "x-onward-";

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let fields = &step.fields;
    let scope: &mut Resolve<'_> = &mut step.scope();
    let hosts = fields.get("allow_hosts").map(|node| allow_hosts(node, problems));
    // With an invalid host list, the url is not checked: it would be reported for lacking a host list.
    let url = match &hosts {
        Some(None) => None,
        Some(Some(hosts)) => url::read(step.value(), Some(hosts), scope, problems),
        None => url::read(step.value(), None, scope, problems),
    };
    let method = fields.get("method").map_or(Some("POST"), |node| method(node, problems));
    let headers = fields.get("headers").map_or(Some(Vec::new()), |node| headers(step.name, node, scope, problems));
    let query = fields.get("query").map(|node| pairs::read(node, "query", scope, problems));
    fields.exclusive("body", "form", problems);
    let body = fields.get("body").map(|node| templates::template(node, scope, problems));
    let form = fields.get("form").map(|node| form(node, scope, problems));
    let timeout = fields.get("timeout").map_or(Some(TIMEOUT), |node| {
        // Decision 10: a small number could be meant as seconds.
        if let Value::Int(n @ 0..1_000) = node.value {
            let message = format!("`timeout` is {n}: is that seconds or milliseconds?");
            let draft = Draft::new(codes::INVALID_DURATION, node.span.clone(), message);
            problems.push(draft.hint(format!("write `{n}s` or `{n}ms`")));
            return None;
        }
        duration(node, "timeout", Unit::Millis, (Span::from_millis(1), TIMEOUT_MAX), problems)
    });
    let redirects =
        fields.get("redirects").map_or(Some(0), |node| fields::whole(node, "redirects", 0..=REDIRECTS_MAX, problems));
    // A policy that the author wrote decides how long the step waits, unless the author says otherwise.
    let has_own_policy = fields.get("retry").is_some() || fields.get("retries").is_some();
    let host_backoff = fields
        .get("host_backoff")
        .map_or(Some(!has_own_policy), |node| fields::boolean(node, "host_backoff", problems));
    let expected = fields.get("expected_status").map_or(Some(Vec::new()), |node| expected_status(node, problems));
    Some(Body::Http {
        request: Box::new(Http {
            method: method?.to_owned(),
            url: url?,
            headers: headers?,
            query: all_or_nothing(query)?,
            body: all_or_nothing(body)?,
            form: all_or_nothing(form)?,
            timeout: timeout?,
            expected: expected?,
            redirects: redirects? as u32,
            allow_hosts: hosts.flatten().unwrap_or_default(),
            ignores_host_backoff: !host_backoff?,
            ..Default::default()
        }),
    })
}

/// An optional field: `None` when it was given and is invalid.
pub(super) fn all_or_nothing<T>(field: Option<Option<T>>) -> Option<Option<T>> {
    match field {
        Some(None) => None,
        Some(found) => Some(found),
        None => Some(None),
    }
}

/// A form needs a field: without one it would be an empty body with the content type of a form.
fn form(node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Template> {
    if matches!(&node.value, Value::Object(entries) if entries.is_empty()) {
        problems.add(codes::OUT_OF_RANGE, &node.span, "`form` has no fields, at least one is needed");
        return None;
    }
    pairs::read(node, "form", scope, problems)
}

fn method(node: &TreeNode, problems: &mut Problems<'_>) -> Option<&'static str> {
    let given = fields::text(node, "method", problems)?;
    let found = METHODS.iter().find(|m| m.eq_ignore_ascii_case(given));
    if found.is_none() {
        let message = format!("`method` is {}, allowed is {}", quoted(given), one_of(METHODS));
        problems.add(codes::INVALID_VALUE, &node.span, message);
    }
    found.copied()
}

fn headers(step: &str, node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Vec<Header>> {
    let fields = fields::object(node, "headers", problems)?;
    if fields.len() > HEADERS_MAX {
        let message = format!("{} has {} headers, the limit is {HEADERS_MAX}", quoted(step), grouped(fields.len()));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let mut seen: Vec<String> = Vec::new();
    let mut headers = Vec::new();
    for entry in fields.iter() {
        let lower = entry.key.to_ascii_lowercase();
        if seen.contains(&lower) {
            let message = format!("the header {} is given twice, in different case", quoted(&entry.key));
            problems.add(codes::DUPLICATE_HEADER, &entry.key_span, message);
        }
        headers.push(header(entry, &lower, scope, problems));
        seen.push(lower);
    }
    headers.into_iter().collect()
}

fn header(entry: &Entry, lower: &str, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Header> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let name = &entry.key;
    let mut good = true;
    if name.is_empty() || !name.bytes().all(token) {
        problems.add(codes::INVALID_HEADER, &entry.key_span, format!("{} is not a header name", quoted(name)));
        good = false;
    } else if RESERVED.contains(&lower) || lower.starts_with(RESERVED_PREFIX) {
        let draft = Draft::new(
            codes::RESERVED_HEADER,
            entry.key_span.clone(),
            format!("{} is set by the engine", quoted(name)),
        );
        problems.push(draft.hint("remove it"));
        good = false;
    }
    if let Value::Text(text) = &entry.value.value {
        let breaks = text.contains(|c: char| c.is_control() && c != '\t');
        if breaks || text.len() > HEADER_VALUE_MAX {
            let why =
                if breaks { "contains a line break or another control character" } else { "is longer than 8 KiB" };
            problems.add(
                codes::INVALID_HEADER,
                &entry.value.span,
                format!("the value of header {} {why}", quoted(name)),
            );
            good = false;
        }
    }
    let value = templates::parts(&entry.value, "headers", scope, problems)?;
    good.then(|| Header { name: name.clone(), value, ..Default::default() })
}

fn allow_hosts(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let items = fields::list(node, "allow_hosts", problems)?;
    if items.is_empty() || items.len() > HOSTS_MAX {
        let message = format!("`allow_hosts` has {} entries, allowed is 1 to {HOSTS_MAX}", grouped(items.len()));
        problems.add(codes::OUT_OF_RANGE, &node.span, message);
        return None;
    }
    let hosts: Vec<Option<String>> = items
        .iter()
        .map(|item| {
            let host = fields::text(item, "allow_hosts", problems)?;
            if !url::is_host(host) {
                let draft =
                    Draft::new(codes::INVALID_HOST, item.span.clone(), format!("{} is not a host name", quoted(host)));
                problems.push(draft.hint("write it without scheme, port and path: `api.example.com`"));
                return None;
            }
            Some(host.to_ascii_lowercase())
        })
        .collect();
    hosts.into_iter().collect()
}

fn expected_status(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<StatusRange>> {
    match &node.value {
        Value::List(items) if !items.is_empty() => {
            let ranges: Vec<Option<StatusRange>> = items.iter().map(|item| status_range(item, problems)).collect();
            ranges.into_iter().collect()
        }
        _ => status_range(node, problems).map(|range| vec![range]),
    }
}

fn status_range(node: &TreeNode, problems: &mut Problems<'_>) -> Option<StatusRange> {
    let range = match &node.value {
        Value::Int(n @ 100..=599) => Some((*n as u16, *n as u16)),
        Value::Text(text) => match text.as_bytes() {
            [class @ b'1'..=b'5', b'x' | b'X', b'x' | b'X'] => {
                let from = u16::from(class - b'0') * 100;
                Some((from, from + 99))
            }
            _ => None,
        },
        _ => None,
    };
    let Some((from, to)) = range else {
        let found = match &node.value {
            Value::Int(n) => n.to_string(),
            Value::Text(text) => quoted(text),
            Value::List(_) => "an empty list".to_owned(),
            _ => node.kind().to_owned(),
        };
        let draft = Draft::new(codes::INVALID_STATUS, node.span.clone(), format!("{found} is not a status"));
        problems.push(draft.hint("write an integer from 100 to 599, a class such as `2xx`, or a list of these"));
        return None;
    };
    Some(StatusRange { from, to, ..Default::default() })
}
