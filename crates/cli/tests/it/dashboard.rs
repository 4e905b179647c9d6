//! The dashboard at `/`, as HTTP answers: which clients get it, what may be cached, and which files exist. What it
//! shows in a browser is tested in `ui/test`.

use crate::harness::{Answer, Server};

const BROWSER: (&str, &str) = ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

/// Every address that the dashboard loads.
fn addresses(dashboard: &str) -> Vec<String> {
    let starts = dashboard.match_indices("=\"ui/").map(|(at, _)| at + 2);
    starts.map(|at| format!("/{}", dashboard[at..].split('"').next().unwrap())).collect()
}

fn dashboard(server: &Server) -> Answer {
    server.send("GET", "/", &[BROWSER], b"")
}

#[test]
fn browsers_get_the_dashboard_and_other_clients_the_version() {
    let server = Server::start();
    let html = dashboard(&server);
    assert_eq!((html.status, html.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(html.header("cache-control"), Some("no-cache"));
    for accept in [None, Some("*/*"), Some("application/json")] {
        let headers: Vec<(&str, &str)> = accept.map(|accept| ("Accept", accept)).into_iter().collect();
        let answer = server.send("GET", "/", &headers, b"");
        assert_eq!(answer.data(200)["name"], "onward", "{accept:?}");
        assert_eq!(answer.header("vary"), Some("Accept"));
    }
    assert_eq!(server.send("POST", "/", &[BROWSER], b"").refusal(405), "method_not_allowed");
    let foreign = server.send("GET", "/", &[BROWSER, ("Host", "evil.test")], b"");
    assert_eq!(foreign.refusal(403), "host_not_allowed");
}

#[test]
fn the_dashboard_runs_only_scripts_of_this_server() {
    let server = Server::start();
    let html = dashboard(&server);
    let policy = html.header("content-security-policy").expect("a policy");
    let mut directives: Vec<&str> = policy.split("; ").collect();
    directives.sort_unstable();
    let expected = [
        "base-uri 'none'",
        "connect-src 'self'",
        "default-src 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "img-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
    ];
    assert_eq!(directives, expected);
    let text = html.text();
    for word in ["http://", "https://", "style=", "onclick", "<style", "<script>"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    assert_eq!(text.matches("<script").count(), 1);
    assert!(text.contains("<script type=\"module\" src=\"ui/"), "{text}");
}

#[test]
fn dashboard_files_may_be_cached_forever_and_no_other_file_exists() {
    let server = Server::start();
    let addresses = addresses(&dashboard(&server).text());
    assert!(addresses.len() > 20, "{addresses:?}");
    for address in &addresses {
        let answer = server.get(address);
        let expected = match address.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(expected)), "{address}");
        assert_eq!(answer.header("cache-control"), Some("public, max-age=31536000, immutable"), "{address}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        if address.ends_with(".js") {
            let text = answer.text();
            let imports = text.match_indices("from").map(|(at, _)| text[at + 4..].trim_start());
            let bare = imports.filter(|rest| rest.starts_with('"') && !rest.starts_with("\"."));
            assert_eq!(bare.count(), 0, "{address} imports by a bare name");
        }
    }
    let base = addresses[0].rsplit_once('/').unwrap().0;
    for path in [
        &format!("{base}/nothing.js"),
        &format!("{base}/index.html"),
        &format!("{base}/package.json"),
        &format!("{base}/test/pure.test.js"),
        &format!("{base}/../../Cargo.toml"),
        &format!("{base}/%2e%2e/%2e%2e/Cargo.toml"),
        &format!("{base}/%2e%2e%2fCargo.toml"),
        &format!("{base}//etc/passwd"),
        &format!("{base}/src/"),
        "/ui/0000000000000000/src/app.js",
        "/ui/x/app.css",
    ] {
        assert_eq!(server.get(path).refusal(404), "not_found", "{path}");
    }
    for path in ["/ui", "/ui/", "/ui/x", "/index.html", "/favicon.ico"] {
        assert_eq!(server.get(path).refusal(404), "unknown_route", "{path}");
    }
    assert_eq!(server.send("POST", &addresses[0], &[], b"").refusal(405), "method_not_allowed");
}
