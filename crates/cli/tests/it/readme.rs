//! The README's tour, run as it is printed: a document that does not work is a bug.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two folders deep").to_owned()
}

/// Ports nobody uses right now. (Held together, so that they differ.)
fn free_ports() -> [u16; 2] {
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// Every block marked `sh`, in order.
fn script(readme: &str) -> String {
    let mut blocks = String::new();
    let mut inside = false;
    for line in readme.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => blocks.extend([line, "\n"]),
            _ => {}
        }
    }
    blocks
}

#[test]
fn the_tour_of_the_readme_runs_from_top_to_bottom() {
    let [server, upstream] = free_ports();
    let moved = |text: String| text.replace("7420", &server.to_string()).replace("7421", &upstream.to_string());
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("examples")).expect("a folder");
    for entry in std::fs::read_dir(root().join("examples")).expect("the examples") {
        let path = entry.expect("an example").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.file_name().expect("files have names");
        std::fs::write(folder.path().join("examples").join(name), moved(text)).expect("a copy");
    }
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the README");
    let tour = moved(script(&readme))
        .replace("cargo build --release", ":")
        .replace("target/release/onward", env!("CARGO_BIN_EXE_onward"));
    assert!(tour.matches("curl").count() > 15, "the tour was found");
    // However it ends, nothing it started stays.
    let guarded = format!("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{tour}");
    let ran = Command::new("timeout")
        .args(["120", "bash", "-euo", "pipefail", "-c", &guarded])
        .env("ONWARD_LISTEN", format!("127.0.0.1:{server}"))
        .current_dir(folder.path())
        .output();
    let ran = ran.expect("bash runs");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "the tour stopped:\n{out}\n{err}");
    // What the README shows must be what came out.
    for shown in [
        "data.tasks.handle-failure.status skipped",
        "data.failed_steps [\"charge\"]",
        "{\"data\":{\"received\":true}}",
        "idempotency_key_reused",
        "callback_",
        "exit 10",
    ] {
        assert!(out.contains(shown), "`{shown}` is missing in:\n{out}");
    }
    assert!(err.contains("did you mean `charge`?"), "{err}");
}
