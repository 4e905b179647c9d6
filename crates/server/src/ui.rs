//! The dashboard at `/`: the files of `ui/`, compiled into the binary.
//!
//! `/` is small and never cached. Everything it loads is below `/ui/{edition}/…`, where the edition is a hash of all
//! files, so browsers may cache it forever. The dashboard uses the public API alone.
//!
//! The rule: only files in [`FILES`] are served, so no request can read another file. In a debug build the bytes come
//! from the folder if it exists, so that a changed file is served on the next reload.

use crate::contract::{ResponseShape, Route, get};
use crate::routes::system;
use crate::{Answer, Path, Refusal};
use api::VersionView;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderName};
use axum::response::IntoResponse;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write;
use std::sync::LazyLock;

macro_rules! folder {
    () => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../ui/")
    };
}

macro_rules! files {
    ($($name:literal),* $(,)?) => { &[$(($name, include_bytes!(concat!(folder!(), $name)).as_slice())),*] };
}

/// Every file of the dashboard; a test compares this list with the folder.
const FILES: &[(&str, &[u8])] = files![
    "app.css",
    "favicon.svg",
    "index.html",
    "src/api.js",
    "src/app.js",
    "src/explain.js",
    "src/graph.js",
    "src/html.js",
    "src/input.js",
    "src/inside.js",
    "src/json.js",
    "src/key.js",
    "src/kind.js",
    "src/layout.js",
    "src/live.js",
    "src/parts.js",
    "src/route.js",
    "src/run.js",
    "src/runs.js",
    "src/segments.js",
    "src/status.js",
    "src/step.js",
    "src/time.js",
    "src/timeline.js",
    "src/trigger.js",
    "src/triggers.js",
    "src/workflows.js",
    "vendor/LICENSE-htm.txt",
    "vendor/LICENSE-preact-signals-core.txt",
    "vendor/LICENSE-preact-signals.txt",
    "vendor/LICENSE-preact.txt",
    "vendor/VERSIONS",
    "vendor/hooks.js",
    "vendor/htm.js",
    "vendor/preact.js",
    "vendor/signals-core.js",
    "vendor/signals.js",
];

/// The browser loads scripts, styles, the icon and data from this server only, nothing else from anywhere, and refuses
/// inline scripts, inline styles and `eval`. The dashboard shows data that strangers sent; this is a second defence in
/// addition to escaping.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub fn routes() -> Vec<Route> {
    let index = get("/", index, "hello", "Show the dashboard (for browsers) or the version of the server")
        .plain()
        .answers::<VersionView>(200, "the version")
        .shaped(200, "the dashboard", ResponseShape::Plain("text/html"));
    let file = get("/ui/{edition}/{*file}", file, "ui_file", "Get a file of the dashboard").plain();
    let kinds = ["text/javascript", "text/css", "image/svg+xml", "text/plain"];
    let file = kinds.into_iter().fold(file, |route, kind| route.shaped(200, "the file", ResponseShape::Plain(kind)));
    vec![index, file]
}

/// `GET /`: the dashboard for clients that accept `text/html`, the version for others (`curl` accepts `*/*`).
async fn index(headers: HeaderMap) -> Answer {
    if !wants_html(&headers) {
        return Ok(([(VARY, "Accept")], system::hello()).into_response());
    }
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (VARY, "Accept"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    Ok((headers, page(&edition())).into_response())
}

async fn file(Path((wanted, name)): Path<(String, String)>) -> Answer {
    let missing = || {
        let name: String = name.chars().take(120).collect();
        Refusal::not_found("file", &name).hint("reload `/`, which links the files of this edition")
    };
    // A browser would cache the bytes of this edition forever under the address of another.
    if wanted != edition() {
        return Err(missing());
    }
    let (bytes, kind) = read(&name).zip(kind(&name)).ok_or_else(missing)?;
    Ok(([(CONTENT_TYPE, kind), (CACHE_CONTROL, "public, max-age=31536000, immutable")], bytes).into_response())
}

fn wants_html(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    ranges.map(|range| range.split(';').map(str::trim)).any(|mut parts| {
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        is_html && !parts.any(|p| p.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q <= 0.0)))
    })
}

/// `index.html` with the address of this edition and a preload hint for every module. Without the hints the browser
/// would discover the modules one import after the other.
fn page(edition: &str) -> String {
    let text = String::from_utf8_lossy(&read("index.html").unwrap_or_default()).replace("{edition}", edition);
    let modules = FILES.iter().filter(|(name, _)| name.ends_with(".js"));
    let hints = modules.fold(String::new(), |mut hints, (name, _)| {
        let _ = write!(hints, "<link rel=\"modulepreload\" href=\"ui/{edition}/{name}\">");
        hints
    });
    text.replace("<!-- modules -->", &hints)
}

fn kind(name: &str) -> Option<&'static str> {
    Some(match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "txt" | "" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

fn read(name: &str) -> Option<Cow<'static, [u8]>> {
    let (name, embedded) = FILES.iter().find(|(known, _)| *known == name)?;
    let on_disk = if cfg!(debug_assertions) { std::fs::read(format!("{}{name}", folder!())).ok() } else { None };
    Some(on_disk.map_or(Cow::Borrowed(*embedded), Cow::Owned))
}

fn edition() -> String {
    static EDITION: LazyLock<String> = LazyLock::new(hash_of_all);
    if cfg!(debug_assertions) { hash_of_all() } else { EDITION.clone() }
}

fn hash_of_all() -> String {
    let mut hash = Sha256::new();
    for (name, _) in FILES {
        let bytes = read(name).unwrap_or_default();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_folder_is_compiled_in() {
        let mut found = BTreeSet::new();
        for folder in ["", "src/", "vendor/"] {
            for entry in std::fs::read_dir(format!("{}{folder}", folder!())).unwrap() {
                let entry = entry.unwrap();
                let is_for_tests = entry.file_name() == "package.json";
                if entry.file_type().unwrap().is_file() && !is_for_tests {
                    found.insert(format!("{folder}{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        let listed: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(found, listed);
        assert!(FILES.iter().all(|(name, _)| *name == "index.html" || kind(name).is_some()));
    }

    /// `vendor/` has exactly the files that `scripts/vendor-ui` fetched, each with its licence.
    #[test]
    fn vendored_files_are_unchanged_since_they_were_fetched() {
        let bytes = |name: &str| FILES.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1;
        let text = std::str::from_utf8(bytes("vendor/VERSIONS")).unwrap();
        let mut named = BTreeSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let [file, package, _version, licence, expected] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let file = format!("vendor/{file}");
            let hash = Sha256::digest(bytes(&file)).iter().map(|b| format!("{b:02x}")).collect::<String>();
            assert_eq!(hash, expected, "{file}");
            let package = package.replace('@', "").replace('/', "-");
            assert!(!bytes(&format!("vendor/LICENSE-{package}.txt")).is_empty());
            assert!(["MIT", "Apache-2.0"].contains(&licence), "{licence}");
            named.insert(file);
        }
        let scripts = FILES.iter().map(|(name, _)| *name).filter(|n| n.starts_with("vendor/") && n.ends_with(".js"));
        assert!(scripts.map(str::to_owned).eq(named));
    }

    #[test]
    fn only_clients_that_accept_html_get_it() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("TEXT/HTML; q=0.5", true),
            ("application/json, text/html", true),
            ("text/html;q=0", false),
            ("*/*", false),
            ("text/*", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wants_html(&headers), expected, "{accept}");
        }
        assert!(!wants_html(&HeaderMap::new()));
    }
}
