//! What is deliberately absent, checked. Each rule names the files it looks at, the words that may not
//! stand there, and why; a rule that looks at nothing is itself a failure.

use crate::names::{TypeNames, vague_lines};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

struct Rule {
    /// Why it exists; printed when it is broken.
    why: &'static str,
    applies: fn(&str) -> bool,
    forbidden: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        why: "kernel and lang are pure: no runtime, clock, randomness, files or sockets",
        applies: |path| is_rust(path) && (path.starts_with("crates/kernel/src") || path.starts_with("crates/lang/src")),
        forbidden: &[
            "tokio",
            "SystemTime",
            "Instant::",
            "getrandom",
            "rand::",
            "TcpStream",
            "UdpSocket",
            "std::fs",
            "std::env",
            "HashMap",
            "HashSet",
            "async fn",
        ],
    },
    Rule {
        why: "kernel and lang depend on nothing that acts",
        applies: |path| path == "crates/kernel/Cargo.toml" || path == "crates/lang/Cargo.toml",
        forbidden: &["tokio", "rusqlite", "reqwest", "getrandom", "axum"],
    },
    Rule {
        why: "the client knows the API and nothing of what is behind it",
        applies: |path| path == "crates/client/Cargo.toml",
        forbidden: &["kernel.", "lang.", "store.", "engine.", "server."],
    },
    Rule {
        why: "only store knows which database is in use",
        applies: |path| is_product(path) && !path.starts_with("crates/store/"),
        forbidden: &["rusqlite", "tokio_postgres", "SELECT ", "INSERT INTO"],
    },
    Rule {
        why: "only cli ends the process or reads the environment; the SDK does so in one place",
        applies: |path| {
            is_product(path) && !path.starts_with("crates/cli/") && ![CRASH_POINTS, SDK_ENVIRONMENT].contains(&path)
        },
        forbidden: &["process::exit", "process::abort", "env::var", "env::args"],
    },
    Rule {
        why: "a route is declared with what it promises, see server/src/contract.rs",
        applies: |path| is_product(path) && path.starts_with("crates/server/") && !path.ends_with("/contract.rs"),
        forbidden: &["routing::", ".route(", ".route_service(", ".nest("],
    },
    Rule {
        why: "only the clock looks at the machine's time",
        applies: |path| is_product(path) && path.starts_with("crates/engine/") && !path.ends_with("/clock.rs"),
        forbidden: &["SystemTime"],
    },
    Rule {
        why: "nothing is left for later in the code",
        applies: |path| is_rust(path) && !path.starts_with("crates/xtask/"),
        forbidden: &["todo!(", "unimplemented!(", "FIXME", "#[ignore"],
    },
    Rule {
        why: "the page shows what strangers wrote: text never becomes markup or code",
        applies: |path| path.starts_with("ui/src/"),
        forbidden: &[
            "innerHTML",
            "InnerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "eval(",
            "new Function",
            "javascript:",
        ],
    },
    Rule {
        why: "bugs put in on purpose are armed by tests only",
        applies: |path| path.ends_with("Cargo.toml") && !path.starts_with("crates/testkit/"),
        forbidden: &["features = [\"planted\"]"],
    },
];

/// Tests tell a process they start where to die, and the environment is what it has of them. None of
/// it is compiled into a product: see [`check_features`].
const CRASH_POINTS: &str = "crates/store/src/crash.rs";

/// Workers and producers find their server by `ONWARD_URL`, in every language.
const SDK_ENVIRONMENT: &str = "crates/client/src/environment.rs";

/// Longer files are hard to know one's way in.
const LINES_MAX: usize = 900;

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

/// Code that ships: no tests, no tools.
fn is_product(path: &str) -> bool {
    let tool = ["crates/testkit/", "crates/xtask/"].iter().any(|p| path.starts_with(p));
    is_rust(path) && !tool && !is_test(path) && !path.contains("/examples/")
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

pub fn run(root: &Path) -> Result<()> {
    let mut files = vec![root.join("Cargo.toml")];
    collect(&root.join("crates"), &mut files)?;
    collect(&root.join("ui/src"), &mut files)?;
    let mut problems = Vec::new();
    let mut types = TypeNames::default();
    let mut looked_at = vec![0; RULES.len()];
    for file in &files {
        let path = file.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(file)?;
        for (rule, count) in RULES.iter().zip(&mut looked_at) {
            if (rule.applies)(&path) {
                *count += 1;
                check(rule, &path, &text, &mut problems);
            }
        }
        check_features(&path, &text, &mut problems);
        if is_rust(&path) && path.contains("/src/") && !is_test(&path) {
            types.collect(&path, &text);
        }
        let lines = text.lines().count();
        if is_rust(&path) && lines > LINES_MAX {
            problems.push(format!("{path} has {lines} lines: split it where a second header would be needed"));
        }
    }
    for (rule, count) in RULES.iter().zip(&looked_at) {
        if *count == 0 {
            problems.push(format!("a rule looks at nothing: {}", rule.why));
        }
    }
    problems.extend(types.problems());
    for file in prose(root)? {
        let path = file.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        problems.extend(vague_lines(&path, &std::fs::read_to_string(&file)?));
    }
    problems.extend(crate::links::problems(root)?);
    if !problems.is_empty() {
        bail!("not tidy:\n{}", problems.join("\n"));
    }
    println!("tidy: {} files, {} rules", files.len(), RULES.len());
    Ok(())
}

/// Comments may name what code may not use.
fn check(rule: &Rule, path: &str, text: &str, problems: &mut Vec<String>) {
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if line.contains("#[cfg(test)]") && is_rust(path) {
            return;
        }
        for word in rule.forbidden.iter().filter(|word| code.contains(**word)) {
            problems.push(format!("{path}:{}: `{word}`: {}", i + 1, rule.why));
        }
    }
}

/// Crash points may be passed on by a feature of the same name, and turned on for the tests of the
/// binary alone.
fn check_features(path: &str, text: &str, problems: &mut Vec<String>) {
    if !path.ends_with("Cargo.toml") {
        return;
    }
    let mut section = "";
    for (i, line) in text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default().trim();
        if code.starts_with('[') {
            section = code;
        }
        let is_definition = section == "[features]" && code.starts_with("crashpoints =");
        let is_for_tests = section == "[dev-dependencies]" && path == "crates/cli/Cargo.toml";
        if code.contains("crashpoints") && !is_definition && !is_for_tests {
            problems.push(format!("{path}:{}: `crashpoints`: a product has no crash points", i + 1));
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    collect_where(folder, &|path| path.extension().is_some_and(|e| e == "rs" || e == "toml" || e == "js"), files)
}

/// Every file with sentences in it: code, documents, scripts.
fn prose(root: &Path) -> Result<Vec<PathBuf>> {
    let is_text = |path: &Path| match path.extension() {
        Some(e) => ["rs", "md", "js", "css", "html", "py", "sql", "toml", "yaml", "json"].iter().any(|text| e == *text),
        None => path.parent().is_some_and(|folder| folder.ends_with("scripts")),
    };
    let mut files = Vec::new();
    for folder in ["crates", "docs", "sdks", "ui", "bench", "scripts", "examples"] {
        collect_where(&root.join(folder), &is_text, &mut files)?;
    }
    files.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)));
    Ok(files)
}

fn collect_where(folder: &Path, is_wanted: &dyn Fn(&Path) -> bool, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !is_hidden {
            collect_where(&path, is_wanted, files)?;
        } else if is_wanted(&path) {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_points_are_on_in_tests_of_the_binary_only() {
        let on = "engine = { workspace = true, features = [\"crashpoints\"] }";
        for (path, text, expected) in [
            ("crates/cli/Cargo.toml", format!("[dev-dependencies]\n{on}"), 0),
            ("crates/cli/Cargo.toml", format!("[dependencies]\n{on}"), 1),
            ("crates/server/Cargo.toml", format!("[dev-dependencies]\n{on}"), 1),
            ("crates/engine/Cargo.toml", "[features]\ncrashpoints = [\"store/crashpoints\"]".into(), 0),
            ("crates/engine/Cargo.toml", "[features]\ndefault = [\"crashpoints\"]".into(), 1),
            ("Cargo.toml", format!("[workspace.dependencies]\n{on}"), 1),
        ] {
            let mut problems = Vec::new();
            check_features(path, &text, &mut problems);
            assert_eq!(problems.len(), expected, "{path}: {text}");
        }
    }
}
