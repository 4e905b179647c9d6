//! The url of an http step. The author decides the host, not the data.
//!
//! A placeholder may be a path segment or a query value; the value is percent-encoded there. Before the path, a value
//! is inserted as it is, so data could choose the host. That is refused unless the step lists the allowed hosts
//! (`allow_hosts`); the engine then checks the filled-in url against that list.

use super::templates;
use crate::codes;
use crate::diagnostic::{Problems, quoted};
use crate::fields;
use crate::tree::{TreeNode, Value};
use kernel::path::{Problem, Resolve};
use kernel::template::Part;

/// Replaces each placeholder while the url is split. A url cannot contain this character otherwise.
const PLACEHOLDER: char = '\0';

pub(super) fn read(
    node: &TreeNode,
    allow_hosts: Option<&[String]>,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<Vec<Part>> {
    let mut parts = templates::parts(node, "url", scope, problems)?;
    let Value::Text(text) = &node.value else { return None };
    match check(&mut parts, text, allow_hosts) {
        Ok(()) => Some(parts),
        Err(problem) => {
            problems.push_inside(node, text, problem);
            None
        }
    }
}

/// A url without placeholders, such as `callback_url`.
pub(crate) fn literal(node: &TreeNode, what: &str, problems: &mut Problems<'_>) -> Option<String> {
    let text = fields::text(node, what, problems)?;
    let mut parts = [Part { text: text.to_owned(), ..Default::default() }];
    let checked = match text.contains("{{") {
        true => {
            let message = format!("`{what}` may not contain a template");
            Err(Problem::new(codes::TEMPLATE_IN_HOST, message, 0, text.len()))
        }
        false => check(&mut parts, text, None),
    };
    match checked {
        Ok(()) => Some(text.to_owned()),
        Err(problem) => {
            let message = problem.message.replace("`url`", &format!("`{what}`"));
            problems.push_inside(node, text, Problem { message, ..problem });
            None
        }
    }
}

/// Checks a url in parts and marks the placeholders before its path.
fn check(parts: &mut [Part], text: &str, allow_hosts: Option<&[String]>) -> Result<(), Problem> {
    let at_text = |code, message: String| Problem::new(code, message, 0, text.len());
    let literal = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
    if let Some(c) = parts.iter().filter(|p| p.path.is_none()).find_map(|p| p.text.chars().find(|c| literal(*c))) {
        let message = format!("a url may not contain {}", quoted(&c.to_string()));
        return Err(at_text(codes::INVALID_URL, message).hint("percent-encode it"));
    }
    let skeleton: String = parts.iter().map(|p| if p.path.is_some() { "\0" } else { p.text.as_str() }).collect();
    let start = authority_start(&skeleton).ok_or_else(|| {
        let found = skeleton.split("://").next().filter(|s| s.len() < skeleton.len() && !s.is_empty());
        let problem = at_text(codes::INVALID_URL, "`url` must start with `http://` or `https://`".to_owned());
        match found {
            Some(scheme) if !scheme.contains(['/', PLACEHOLDER]) => {
                problem.hint(format!("{} urls cannot be called", quoted(scheme)))
            }
            _ => problem.hint("write the whole url: `https://example.com/path`"),
        }
    })?;
    let end = skeleton[start..].find(['/', '?', '#']).map_or(skeleton.len(), |i| start + i);
    let authority = &skeleton[start..end];
    if authority.contains('@') {
        let problem = at_text(codes::USERINFO_IN_URL, "a url may not carry a user name or password".to_owned());
        return Err(problem.hint("send an `Authorization` header"));
    }
    let templated = skeleton[..end].matches(PLACEHOLDER).count();
    if templated == 0 {
        let host = literal_host(authority).map_err(|message| at_text(codes::INVALID_URL, message))?;
        return match allow_hosts {
            Some(hosts) if !hosts.iter().any(|h| h.eq_ignore_ascii_case(host)) => {
                let message = format!("the host {} is not in `allow_hosts`", quoted(host));
                Err(at_text(codes::HOST_NOT_ALLOWED, message))
            }
            _ => Ok(()),
        };
    }
    if allow_hosts.is_none() {
        let at = text.find("{{").unwrap_or(0);
        let len = text[at..].find("}}").map_or(2, |i| i + 2);
        let message = "a template may not form scheme, host or port of a url";
        let hint = "write the host out, or list the hosts it may be in `allow_hosts`";
        return Err(Problem::new(codes::TEMPLATE_IN_HOST, message, at, len).hint(hint));
    }
    parts.iter_mut().filter(|p| p.path.is_some()).take(templated).for_each(|p| p.raw = true);
    Ok(())
}

/// The start of the host, or `None` when this is not an http url. Placeholders may form the scheme, or everything
/// before the path.
fn authority_start(skeleton: &str) -> Option<usize> {
    let scheme_end = skeleton.find("://").filter(|i| !skeleton[..*i].contains(['/', '?', '#']));
    match scheme_end {
        Some(i) if skeleton[..i].contains(PLACEHOLDER) => Some(i + 3),
        Some(i) => {
            let scheme = &skeleton[..i];
            (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")).then_some(i + 3)
        }
        None => skeleton.starts_with(PLACEHOLDER).then_some(0),
    }
}

/// The host of an authority without placeholders, or what is wrong with it.
fn literal_host(authority: &str) -> Result<&str, String> {
    let (host, port) = match authority.rfind(':') {
        Some(i) if !authority[i..].contains(']') => (&authority[..i], Some(&authority[i + 1..])),
        _ => (authority, None),
    };
    if let Some(port) = port {
        let number = if port.bytes().all(|b| b.is_ascii_digit()) { port.parse::<u16>().ok() } else { None };
        if number.is_none_or(|n| n == 0) {
            return Err(format!("{} is not a port", quoted(port)));
        }
    }
    if host.is_empty() {
        return Err("a url must have a host".to_owned());
    }
    if is_host(host) { Ok(host) } else { Err(format!("{} is not a host", quoted(host))) }
}

/// A host name or address, without port.
pub(super) fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        return inner.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
    };
    host.len() <= 253 && host.strip_suffix('.').unwrap_or(host).split('.').all(label)
}
