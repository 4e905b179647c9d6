//! Runs the commands of the README, the tutorial and the guides, and compares their output.
//!
//! Blocks marked `sh` run from top to bottom in one shell, in a folder with a copy of `examples/` and `sdks/`, with
//! `onward` on the path. The ports 7420, 7421 and 7422 are replaced by free ones. Every line of a block marked `text`
//! must have been printed; `…` stands for anything. Every page under `docs/guides` is run, so a new page needs no
//! test of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two folders deep").to_owned()
}

/// Three free ports. (All are bound at the same time, so that they differ.)
fn free_ports() -> [u16; 3] {
    let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// The text with other ports. Two passes, because a free port may be one of those that are replaced.
fn moved(text: &str, ports: [u16; 3]) -> String {
    let marks = [("7420", "\u{1}"), ("7421", "\u{2}"), ("7422", "\u{3}")];
    let marked = marks.iter().fold(text.to_owned(), |text, (port, mark)| text.replace(port, mark));
    marks.iter().zip(ports).fold(marked, |text, ((_, mark), port)| text.replace(mark, &port.to_string()))
}

/// The lines of every block marked `kind`, in order.
fn blocks(page: &str, kind: &str) -> String {
    let mut lines = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(mark) => inside = !inside && mark == kind,
            None if inside => lines.extend([line, "\n"]),
            None => {}
        }
    }
    lines
}

/// Whether `line` matches what the page shows; `…` matches anything.
fn is_shown(line: &str, shown: &str) -> bool {
    let mut rest = line;
    shown.split('…').map(str::trim).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// The output of a page's commands.
struct Ran {
    out: String,
    err: String,
}

/// Runs the commands of a page. Panics if a command fails or the output is not what the page shows.
fn run(page: &Path) -> Ran {
    let ports = free_ports();
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["examples", "bin"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    for entry in std::fs::read_dir(root().join("examples")).expect("the examples") {
        let path = entry.expect("an example").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.file_name().expect("files have names");
        std::fs::write(folder.path().join("examples").join(name), moved(&text, ports)).expect("a copy");
    }
    std::os::unix::fs::symlink(root().join("sdks"), folder.path().join("sdks")).expect("a link");
    let onward = env!("CARGO_BIN_EXE_onward");
    std::os::unix::fs::symlink(onward, folder.path().join("bin/onward")).expect("a link");
    let name = page.display();
    let text = moved(&std::fs::read_to_string(page).expect("the page"), ports);
    let script = blocks(&text, "sh").replace("cargo build --release", ":").replace("target/release/onward", onward);
    let quickstart = crate::rust_sdk::program("quickstart");
    let script = script.replace("cargo run --quiet --package onward-client --example quickstart", &quickstart);
    assert!(!script.is_empty(), "{name} has no commands");
    // Kills every background job when the script ends.
    let guarded = format!("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}");
    let path = format!("{}:{}", folder.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("timeout");
    if script.contains("DATABASE_URL") {
        command.env("DATABASE_URL", testkit::postgres::shared().database());
    }
    let ran = command
        .args(["120", "bash", "-euo", "pipefail", "-c", &guarded])
        .env("ONWARD_LISTEN", format!("127.0.0.1:{}", ports[0]))
        .env("ONWARD_URL", format!("http://127.0.0.1:{}", ports[0]))
        .env("PATH", path)
        .current_dir(folder.path())
        .output()
        .expect("bash runs");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{name} stopped:\n{out}\n{err}");
    for shown in blocks(&text, "text").lines() {
        let is_there = out.lines().chain(err.lines()).any(|line| is_shown(line, shown));
        assert!(is_there, "{name} shows `{shown}`, which is not in:\n{out}\n{err}");
    }
    Ran { out: out.into_owned(), err: err.into_owned() }
}

#[test]
fn the_commands_of_the_readme_run_from_top_to_bottom() {
    let Ran { out, err } = run(&root().join("README.md"));
    assert_eq!(out.matches(r#"{"data":{"received":true}}"#).count(), 2, "the repeated callback:\n{out}");
    assert!(out.contains("exit 10") && err.contains("did you mean `charge`?"), "{out}\n{err}");
}

#[test]
fn the_tutorial_runs_from_top_to_bottom() {
    run(&root().join("docs/tutorial.md"));
}

#[test]
fn every_guide_runs_from_top_to_bottom() {
    let pages = std::fs::read_dir(root().join("docs/guides")).expect("the guides");
    let mut pages: Vec<PathBuf> = pages.map(|entry| entry.expect("a guide").path()).collect();
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    pages.sort();
    assert!(!pages.is_empty());
    for page in pages {
        run(&page);
    }
}

#[test]
fn shown_output_is_matched_line_by_line() {
    let page = "a\n```sh\necho 1\n```\n```text\nsh\n```\n```yaml\n- x\n```\n```sh\necho 2\n```\n";
    assert_eq!((blocks(page, "sh"), blocks(page, "text")), ("echo 1\necho 2\n".into(), "sh\n".into()));
    for (line, shown, expected) in [
        ("  ok  paid (4 ms)", "  ok  paid (… ms)", true),
        ("ab", "b", true),
        ("ab", "b … a", false),
        ("anything", "", true),
        ("ok", "not ok", false),
    ] {
        assert_eq!(is_shown(line, shown), expected, "{line} / {shown}");
    }
}
