//! One HTTP request of an attempt as it will be sent, and the next request after a redirect. No I/O. Every URL is
//! checked here before a request goes to it: the step's own and each redirect target.

use crate::mailbox::Dispatch;
use bytes::Bytes;
use kernel::advance::Request;
use kernel::event::Failure;
use reqwest::Method;
use url::Url;

/// Headers that another origin must not get; a header counts if its name contains one of these words.
const CONFIDENTIAL: &[&str] = &["authorization", "cookie", "signature", "api-key", "apikey", "token", "secret"];

#[derive(Clone, Debug)]
pub struct Hop {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(String, String)>,
    pub body: Option<Bytes>,
    /// This request or one before it left the step's origin, so it is no longer signed.
    pub has_left: bool,
}

impl Hop {
    /// The step's own request.
    pub fn first(request: &Request, dispatch: &Dispatch) -> Result<Hop, Failure> {
        let invalid = |why: String| Failure::new("invalid_url", why);
        let url = Url::parse(&request.url).map_err(|e| invalid(format!("`{}`: {e}", request.url)))?;
        check(&url).map_err(invalid)?;
        check_host(&url, &request.allow_hosts)?;
        let method = request.method.parse::<Method>();
        let method = method.map_err(|_| Failure::new("invalid_request", "the method cannot be sent"))?;
        let mut hop = Hop { method, url, headers: request.headers.clone(), body: None, has_left: false };
        if let Some((bytes, content_type)) = &request.body {
            hop.add_unless_given("content-type", content_type);
            hop.body = Some(bytes.clone());
        }
        let key = kernel::run::idempotency_key(dispatch.run, &dispatch.key, dispatch.repeats);
        hop.add_unless_given("idempotency-key", &key);
        hop.add_unless_given("x-onward-run", &dispatch.run.to_string());
        hop.add_unless_given("x-onward-attempt", &dispatch.attempt.to_string());
        Ok(hop)
    }

    /// The next request after a redirect with `status` and `location`.
    pub fn redirected(mut self, status: u16, location: &str, allow_hosts: &[String]) -> Result<Hop, Failure> {
        let invalid = |why: String| Failure::new("invalid_redirect", format!("a redirect was not followed: {why}"));
        let url = self.url.join(location).map_err(|e| invalid(format!("`{}`: {e}", shown(location))))?;
        check(&url).map_err(invalid)?;
        check_host(&url, allow_hosts)?;
        if matches!(status, 301..=303) && self.method != Method::GET && self.method != Method::HEAD {
            self.method = Method::GET;
            self.body = None;
            self.headers.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("content-"));
        }
        if url.origin() != self.url.origin() {
            self.has_left = true;
            self.headers.retain(|(name, _)| !is_confidential(name));
        }
        self.url = url;
        Ok(self)
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    fn add_unless_given(&mut self, name: &str, value: &str) {
        if !self.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
            self.headers.push((name.to_owned(), value.to_owned()));
        }
    }
}

/// Is this status a redirect? (300 leaves a choice, 304 and others mean something else.)
pub fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// A URL, cut to fit into a message.
pub fn shown(address: &str) -> String {
    match address.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &address[..end]),
        None => address.to_owned(),
    }
}

fn is_confidential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    CONFIDENTIAL.iter().any(|word| name.contains(word))
}

fn check(url: &Url) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(format!("`{}` is not an http or https address", shown(url.as_str())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a user name or password in a URL is not allowed".to_owned());
    }
    Ok(())
}

fn check_host(url: &Url, allow_hosts: &[String]) -> Result<(), Failure> {
    let host = url.host_str().unwrap_or_default();
    if allow_hosts.is_empty() || allow_hosts.iter().any(|h| h.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(Failure::new("host_not_allowed", format!("`{host}` is not in the step's `allow_hosts`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::advance::Work;
    use kernel::{OrgId, RunId, Span};

    fn request(method: &str, url: &str) -> Request {
        let header = |name: &str| (name.to_owned(), "x".to_owned());
        Request {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: ["Authorization", "Cookie", "X-Hub-Signature", "x-API-key", "X-Auth-Token", "Accept"]
                .map(header)
                .into(),
            body: Some((Bytes::from_static(b"{}"), "application/json")),
            timeout: Span::from_secs(1),
            allow_hosts: Vec::new(),
            redirects: 3,
        }
    }

    fn first(request: Request) -> Result<Hop, Failure> {
        let work = Work::Http(Box::new(request.clone()));
        let key = "call".to_owned();
        let (org, run, step, attempt, repeats, fence) = (OrgId::DEFAULT, RunId([1; 16]), 0, 2, 0, 3);
        let dispatch = Dispatch { org, run, step, key, attempt, repeats, fence, work };
        Hop::first(&request, &dispatch)
    }

    fn names(hop: &Hop) -> String {
        hop.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect::<Vec<_>>().join(" ")
    }

    const ENGINES: &str = "idempotency-key x-onward-run x-onward-attempt";

    #[test]
    fn t4_only_http_urls_without_credentials_are_called() {
        for (url, code) in [
            ("http://h/x", ""),
            ("HTTPS://H:8443", ""),
            ("ftp://h/", "invalid_url"),
            ("file:///etc/passwd", "invalid_url"),
            ("http://u@h/", "invalid_url"),
            ("http://u:p@h/", "invalid_url"),
            ("http://", "invalid_url"),
            ("h", "invalid_url"),
        ] {
            assert_eq!(first(request("GET", url)).map_or_else(|f| f.code, |_| String::new()), code, "{url}");
        }
        let only = |hosts: &[&str], url: &str| {
            let allow_hosts = hosts.iter().map(|h| (*h).to_owned()).collect();
            first(Request { allow_hosts, ..request("GET", url) }).is_ok()
        };
        assert!(only(&["h"], "http://H/") && !only(&["h"], "http://i/") && !only(&["h"], "http://h.i/"));
    }

    #[test]
    fn the_authors_idempotency_key_wins() {
        let mut asked = request("POST", "http://h/");
        asked.headers = vec![("IDEMPOTENCY-Key".to_owned(), "mine".to_owned())];
        let hop = first(asked).unwrap();
        assert_eq!(names(&hop), "idempotency-key content-type x-onward-run x-onward-attempt");
        assert_eq!(hop.headers[0].1, "mine");
    }

    #[test]
    fn t3_a_redirect_changes_method_body_and_headers_by_status() {
        let all = format!("authorization cookie x-hub-signature x-api-key x-auth-token accept content-type {ENGINES}");
        let bare = format!("authorization cookie x-hub-signature x-api-key x-auth-token accept {ENGINES}");
        for (method, status, then, headers) in [
            ("POST", 301, "GET", &bare),
            ("PUT", 302, "GET", &bare),
            ("POST", 303, "GET", &bare),
            ("DELETE", 303, "GET", &bare),
            ("GET", 303, "GET", &all),
            ("HEAD", 302, "HEAD", &all),
            ("POST", 307, "POST", &all),
            ("PATCH", 308, "PATCH", &all),
        ] {
            let hop = first(request(method, "http://h/a/b?c")).unwrap();
            let next = hop.redirected(status, "../d", &[]).unwrap();
            assert_eq!(next.url.as_str(), "http://h/d");
            assert_eq!((next.method.as_str(), &names(&next)), (then, headers), "{method} {status}");
            assert_eq!(next.body.is_some(), method == then);
            assert!(!next.has_left);
        }
    }

    #[test]
    fn t3_confidential_headers_are_dropped_at_another_origin_for_good() {
        for location in ["http://i/", "https://h/", "http://h:8080/", "//i/", "http://h.i/"] {
            let hop = first(request("POST", "http://h/")).unwrap();
            let next = hop.redirected(307, location, &[]).unwrap();
            assert_eq!(names(&next), format!("accept content-type {ENGINES}"), "{location}");
            let back = next.redirected(307, "http://h/", &[]).unwrap();
            assert!(back.has_left && names(&back) == format!("accept content-type {ENGINES}"));
        }
        let same = first(request("POST", "http://h/")).unwrap().redirected(307, "http://H:80/x", &[]).unwrap();
        assert!(!same.has_left, "the same origin, written differently");
    }

    #[test]
    fn t3_a_redirect_target_is_checked_like_the_first_url() {
        for (location, code) in [
            ("ftp://h/", "invalid_redirect"),
            ("file:///etc/passwd", "invalid_redirect"),
            ("javascript:alert(1)", "invalid_redirect"),
            ("http://u:p@h/", "invalid_redirect"),
            ("http://:99999/", "invalid_redirect"),
            ("http://other/", "host_not_allowed"),
            ("//other", "host_not_allowed"),
            ("", ""),
            ("?x", ""),
        ] {
            let hop = first(request("GET", "http://h/")).unwrap();
            let found = hop.redirected(302, location, &["h".to_owned()]);
            assert_eq!(found.map_or_else(|f| f.code, |_| String::new()), code, "{location}");
        }
    }
}
